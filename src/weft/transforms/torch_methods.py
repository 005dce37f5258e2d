"""Methods of tensors that PyTorch's users write: shapes, element types, arithmetic in place.

>>> import weft as wf
>>> x = wf.tensor([1.0, 2.0])
>>> x.unsqueeze(0).expand(3, -1).shape, x.long().dtype.name
((3, 2), 'int64')
>>> x.mul_(0.5).add_(1.0, alpha=2).tolist()
[2.5, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from weft.core.errors import ArgumentError, AxisError, DTypeError, ShapeError
from weft.core.shapes import Dimension
from weft.ir.parts import refuse_part
from weft.ir.tape import rebind
from weft.ir.tensor import Tensor
from weft.ops import arithmetic, comparison, conversion, elementary
from weft.ops.composed import creation, gathering, manipulation
from weft.ops.composed.elementwise import lerp
from weft.ops.operands import as_tensor
from weft.ops.selection import clip, where

Function = Callable[..., Any]


def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """The tensor with a new axis of size 1 at a place of the result."""
    return manipulation.expand_dims(x, axis)


def expand(x: Tensor, *sizes: Any) -> Tensor:
    """The tensor broadcast to sizes, of which -1 leaves an axis as it is: x.expand(3, -1)."""
    wanted = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    new = len(wanted) - x.ndim
    if new < 0 or any(size == -1 for size in wanted[:new]):
        raise ShapeError(
            "expand",
            "not one size for each axis" if new < 0 else "a new axis has no size to keep",
            expected=f"{x.ndim} sizes or more, new axes first, -1 where an axis stays",
            got={"x": x, "sizes": tuple(wanted)},
            fix=f"x.expand{(-1,) * x.ndim}",
        )
    kept = [x.shape[i - new] if size == -1 else size for i, size in enumerate(wanted)]
    return manipulation.broadcast_to(x, tuple(kept))


def transpose(x: Tensor, *axes: Any) -> Tensor:
    """The axes in another order, reversed by default: x.transpose(1, 0) or x.transpose((1, 0))."""
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    if len(axes) == 2 and all(isinstance(each, int) for each in axes):
        _refuse_pair(x, *axes)
    return manipulation.permute_dims(x, order if axes else tuple(reversed(range(x.ndim))))


def _refuse_pair(x: Tensor, first: int, second: int) -> None:
    """Refuse two axes that would be exchanged in PyTorch, and not here."""
    places = (first % x.ndim, second % x.ndim) if x.ndim else (first, second)
    if x.ndim != 2 or places == (0, 1):
        raise AxisError(
            "transpose",
            "two axes name an order, not the axes to exchange",
            expected="an order of all axes, as in NumPy",
            got={"x": x, "axes": (first, second)},
            fix=f"x.swapaxes({first}, {second})",
        )


def permute(x: Tensor, *axes: Any) -> Tensor:
    """The axes in another order: x.permute(2, 0, 1) or x.permute((2, 0, 1))."""
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return manipulation.permute_dims(x, order)


def repeat(x: Tensor, repeats: Any, *more: Any, axis: int | None = None) -> Tensor:
    """Each element of an axis repeated, in its place; the axis is named, or the call is refused.

    PyTorch's `x.repeat(2)` repeats the whole tensor and NumPy's each element.
    """
    if axis is not None and not more:
        return manipulation.repeat(x, repeats, axis=axis)
    counts = (repeats, *more)
    raise ArgumentError(
        "repeat",
        "this means one thing in PyTorch and another in NumPy",
        expected="an axis by name, for elements that are repeated",
        got={"x": x, "repeats": counts if more else repeats},
        fix=f"x.tile({counts}) for all of it, x.repeat({repeats!r}, axis=0) for each element",
    )


def _conversion_to(dtype: DType) -> Function:
    def convert(x: Tensor) -> Tensor:
        return conversion.astype(x, dtype)

    convert.__doc__ = f"The elements as {dtype.name}."
    return convert


def add(x: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """The sum, as `x + other`; `alpha` multiplies the other."""
    return arithmetic.add(x, other if alpha == 1 else arithmetic.multiply(other, alpha))


def sub(x: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """The difference, as `x - other`; `alpha` multiplies the other."""
    return arithmetic.subtract(x, other if alpha == 1 else arithmetic.multiply(other, alpha))


def check_same(sign: str, tensor: Tensor, result: Tensor) -> None:
    """Refuse a result that a tensor cannot take the place of: another dtype or shape."""
    if result.dtype is not tensor.dtype:
        raise DTypeError(
            sign,
            "the result has another dtype than the tensor it would replace",
            expected=f"a result of dtype {tensor.dtype.name}",
            got={"x": tensor, "result": result},
            fix=f"give the result its own dtype: {_separate_line(sign)}",
        )
    if result.shape != tensor.shape:
        raise ShapeError(
            sign,
            "the result has another shape than the tensor it would replace",
            expected=f"an operand that broadcasts to {list(tensor.shape)}",
            got={"x": tensor, "result": result},
            fix=f"give the result its own shape: {_separate_line(sign)}",
        )


def _separate_line(sign: str) -> str:
    """The line that computes the same into a tensor of its own: `+=` or `add_` without writing."""
    operator = sign[:-1] if sign.endswith("=") else SIGNS.get(sign, "")
    return f"x = x {operator} y" if operator else f"x = wf.{sign[:-1]}(x, ...)"


def _in_place(name: str, function: Function) -> Function:
    """A function of a tensor that gives one of the same type, as a method that rebinds it."""

    def method(x: Tensor, *args: Any, **options: Any) -> Tensor:
        refuse_part(name, x)
        result = function(x, *args, **options)
        check_same(name, x, result)
        return rebind(x, result, name)

    method.__name__ = name
    method.__doc__ = f"`{name[:-1]}` in place: the tensor takes the result, and is returned."
    return method


def div(x: Tensor, other: Any) -> Tensor:
    """The quotient, as `x / other`; `x // other` is rounded down."""
    return arithmetic.divide(x, other)


def transposed_matrix(x: Tensor) -> Tensor:
    """The transpose of a matrix; a line or a number is its own."""
    if x.ndim > 2:
        raise AxisError(
            "t",
            "only a matrix has one transpose",
            expected="at most two axes",
            got={"x": x},
            fix="x.mT for the last two axes, x.permute(...) for an order of all",
        )
    return manipulation.permute_dims(x, tuple(reversed(range(x.ndim))))


def type_as(x: Tensor, other: Tensor) -> Tensor:
    """The elements in the element type of another tensor."""
    return conversion.astype(x, as_tensor("type_as", other, "other").dtype)


def choose(x: Tensor, condition: Any, other: Any) -> Tensor:
    """x where the condition holds, else the other: x.where(mask, 0.0)."""
    return where(condition, x, other)


def masked_fill(x: Tensor, mask: Any, value: Any) -> Tensor:
    """x with a value in all places where the mask, broadcast to x, is true."""
    return gathering.masked_fill(x, as_tensor("masked_fill", mask, "mask"), value)


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """The tensor broadcast to the shape of another."""
    return manipulation.broadcast_to(x, as_tensor("expand_as", other, "other").shape)


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """The same elements in the shape of another tensor."""
    return manipulation.reshape(x, as_tensor("view_as", other, "other").shape)


def contiguous(x: Tensor) -> Tensor:
    """The tensor: its elements are in order by themselves."""
    return x


def numel(x: Tensor) -> Dimension:
    """How many elements there are, as `x.size`."""
    return x.size


def _new_tensor(x: Tensor, sizes: tuple[Any, ...], value: Any, options: dict[str, Any]) -> Tensor:
    """One value in sizes that may be several arguments, in the dtype and on the device of x."""
    shape = sizes[0] if len(sizes) == 1 else sizes
    return creation.full(shape, value, **{"dtype": x.dtype, "device": x.device, **options})


def new_zeros(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Zeros in the dtype and on the device of x: x.new_zeros(2, 3) or x.new_zeros((2, 3))."""
    return _new_tensor(x, sizes, 0, options)


def new_ones(x: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Ones in the dtype and on the device of x."""
    return _new_tensor(x, sizes, 1, options)


def new_full(x: Tensor, shape: Any, fill_value: Any, **options: Any) -> Tensor:
    """One value in the dtype and on the device of x."""
    return _new_tensor(x, (shape,), fill_value, options)


DTYPE_METHODS: dict[str, DType] = {
    "float": float32, "double": float64, "half": float16, "bfloat16": bfloat16, "bool": bool_,
    "long": int64, "int": int32, "short": int16, "char": int8, "byte": uint8,
}  # fmt: skip
"""PyTorch's names of element types that are methods."""

SIGNS: dict[str, str] = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/", "pow_": "**"}
"""How what is done in place is written apart from it."""

IN_PLACE: dict[str, Function] = {
    "add_": add,
    "sub_": sub,
    "mul_": arithmetic.multiply,
    "div_": arithmetic.divide,
    "pow_": elementary.pow,
    "neg_": arithmetic.negative,
    "clip_": clip,
    "clamp_": clip,
    "lerp_": lerp,
    "masked_fill_": gathering.masked_fill,
}  # fmt: skip
"""Functions that are methods which write their result into the tensor."""

COMPARISONS: dict[str, Function] = {
    "eq": comparison.equal,
    "ne": comparison.not_equal,
    "lt": comparison.less,
    "le": comparison.less_equal,
    "gt": comparison.greater,
    "ge": comparison.greater_equal,
}
"""PyTorch's short names of comparisons."""

TORCH_METHODS: dict[str, Function] = {
    "add": add,
    "sub": sub,
    "mul": arithmetic.multiply,
    "div": div,
    "neg": arithmetic.negative,
    "t": transposed_matrix,
    **COMPARISONS,
    "unsqueeze": unsqueeze,
    "expand": expand,
    "transpose": transpose,
    "permute": permute,
    "repeat": repeat,
    "where": choose,
    "masked_fill": masked_fill,
    "type_as": type_as,
    "clamp": clip,
    "contiguous": contiguous,
    "expand_as": expand_as,
    "new_full": new_full,
    "new_ones": new_ones,
    "new_zeros": new_zeros,
    "numel": numel,
    "reshape_as": view_as,
    "view_as": view_as,
    **{name: _in_place(name, function) for name, function in IN_PLACE.items()},
    **{name: _conversion_to(dtype) for name, dtype in DTYPE_METHODS.items()},
}  # fmt: skip
"""Methods by name."""
