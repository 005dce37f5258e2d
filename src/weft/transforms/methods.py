"""What tensors can do: operators, methods and properties, from the layers that define them.

>>> import weft as wf
>>> x = wf.tensor([1.0, 2.0])
>>> x += 1
>>> (x * x).sum().item()
13.0
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import FunctionType
from typing import Any

from weft.core.arrays import is_host
from weft.core.cache_lines import begins_within_line, copy_on_line
from weft.core.errors import (
    ArgumentError,
    ShapeError,
)
from weft.core.names import unknown_name
from weft.core.wrong_calls import explain_arguments, takes_options
from weft.ir.dispatch import apply
from weft.ir.parts import as_part, refuse_choice, refuse_part
from weft.ir.reverse import filled_like
from weft.ir.tape import rebind
from weft.ir.tensor import Tensor, grad_mode, traces, wrap
from weft.ops import (
    arithmetic,
    comparison,
    conversion,
    display,
    elementary,
    exchange,
    logic,
    movement,
)
from weft.ops.composed import (
    datatypes,
    gathering,
    indexing,
    linalg,
    manipulation,
    neural,
    precision,
    products,
    rearrangement,
    searching,
    statistics,
)
from weft.ops.identity import stop_gradient
from weft.ops.operands import alias, as_tensor, as_tensor_in
from weft.ops.placement import to_device
from weft.ops.selection import clip
from weft.transforms import backward
from weft.transforms.numpy_functions import array_function, array_ufunc
from weft.transforms.pair_methods import pair_method
from weft.transforms.torch_methods import TORCH_METHODS, check_same

__all__ = ["install"]

Function = Callable[..., Any]


def _reflected_operator(function: Function) -> Function:
    """The operator for a tensor on the right-hand side."""

    def method(self: Tensor, other: Any) -> Tensor:
        return function(other, self)  # type: ignore[no-any-return]

    return method


def _in_place(sign: str, function: Function) -> Function:
    """`x op= y`: rebinds the handle to the new value, of the same type."""

    def method(self: Tensor, other: Any) -> Tensor:
        if self._origin is not None:
            refuse_choice(f"{sign}=", self)
        result = function(self, other)
        check_same(f"{sign}=", self, result)
        return rebind(self, result, f"{sign}=")

    return method


def _comparison(function: Function) -> Function:
    """== and != answer by identity for what no tensor can equal, such as None."""

    def method(self: Tensor, other: Any) -> Any:
        if other is None or isinstance(other, (str, bytes)):
            return NotImplemented
        return function(self, other)

    return method


def _axis_method(function: Function) -> Function:
    """A function with a keyword `axis` as a method that also takes it by position: x.sum(0)."""
    default = signature(function).parameters["axis"].default

    @wraps(function)
    def method(self: Tensor, axis: Any = default, **options: Any) -> Any:
        return function(self, axis=axis, **options)

    return method


def _missing_attribute(x: Tensor, name: str) -> Any:
    """Raise the error for `x.name` without such an attribute, with a suggestion."""
    if name.startswith("_"):
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")
    raise unknown_name("tensor", name, dir(x), "x")


def _set_item(x: Tensor, key: Any, value: Any) -> None:
    refuse_part("setitem", x, key)
    updated = indexing.with_update(x, key, value)
    rebind(x, updated if grad_mode.enabled else alias(updated), "setitem")


def _zero(x: Tensor) -> Tensor:
    """Set all elements to zero, and return the tensor."""
    refuse_part("zero_", x)
    return _fill(x, 0)


def _fill(x: Tensor, value: Any) -> Tensor:
    """Set all elements to one value, and return the tensor."""
    refuse_part("fill_", x)
    return rebind(x, filled_like(x, value), "fill_")


def _copy(x: Tensor, source: Any) -> Tensor:
    """Take the values of another tensor, broadcast, converted and moved, and return the tensor."""
    refuse_part("copy_", x)
    given = as_tensor_in("copy_", source, x.dtype) if type(source) in (float, complex) else source
    values = conversion.astype(as_tensor("copy_", given), x.dtype)
    if not traces.recording:
        values = to_device(values, x.device)
    is_plain = values._node is None and is_host(values._value)
    if not is_plain or values.shape != x.shape:
        values = apply(movement.broadcast_to, values, shape=x.shape)
    values = exchange.own_value(values)
    if begins_within_line(values._value):  # it is put here to be read again and again
        values = wrap(copy_on_line(values._value), values._node)
    return rebind(x, values, "copy_")


def _set(x: Tensor, source: Any) -> Tensor:
    """Stand for another tensor's value, of any shape and dtype, and return the tensor."""
    refuse_part("set_", x)
    given = as_tensor("set_", source)
    return rebind(x, given if grad_mode.enabled else alias(given), "set_")


def _clone(x: Tensor) -> Tensor:
    """Another handle on the same value, with the same history; foreign memory is copied."""
    owned = exchange.own_value(x)
    value = owned._value
    if x._node is None or not grad_mode.enabled:
        return alias(owned)
    # a node of its own: its hooks and its gradient are not those of x, and it is no leaf
    return wrap(value, apply(movement.reshape, x, shape=x.shape)._node)


def _reshape(x: Tensor, *shape: Any) -> Tensor:
    """The same elements in another shape: x.reshape(2, -1) or x.reshape((2, -1))."""
    return manipulation.reshape(x, shape[0] if len(shape) == 1 else shape)


def _matrix_transpose(x: Tensor) -> Tensor:
    """The transpose of a matrix."""
    if x.ndim != 2:
        raise ShapeError(
            "T",
            "only a tensor with two axes has a transpose",
            expected="x.ndim == 2",
            got={"x": x},
            fix="x.mT for stacks of matrices, wf.permute_dims(x, axes) for any order",
        )
    return apply(movement.transpose, x, order=(1, 0))


def _real_part(x: Tensor) -> Tensor:
    return as_part(arithmetic.real(x), x, "x.real")


def _imaginary_part(x: Tensor) -> Tensor:
    return as_part(arithmetic.imag(x), x, "x.imag")


def _namespace(x: Tensor, /, *, api_version: str | None = None) -> Any:
    if api_version not in (None, *datatypes.STANDARD_VERSIONS):
        raise ArgumentError(
            "__array_namespace__",
            "no such version of the standard here",
            expected=f"{datatypes.STANDARD_VERSIONS[-1]} or earlier",
            got={"api_version": api_version},
            fix="leave api_version out",
        )
    return NAMESPACE[0]


NAMESPACE: list[Any] = []
"""The public module, filled in by it."""

OPERATORS: dict[str, Function] = {
    "add": arithmetic.add,
    "sub": arithmetic.subtract,
    "mul": arithmetic.multiply,
    "truediv": arithmetic.divide,
    "floordiv": arithmetic.floor_divide,
    "mod": arithmetic.remainder,
    "pow": elementary.pow,
    "matmul": products.matmul,
    "and": logic.bitwise_and,
    "or": logic.bitwise_or,
    "xor": logic.bitwise_xor,
    "lshift": logic.bitwise_left_shift,
    "rshift": logic.bitwise_right_shift,
}

SIGNS: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
"""How the operators are written."""

SPECIAL: dict[str, Any] = {
    "__neg__": arithmetic.negative,
    "__pos__": arithmetic.positive,
    "__abs__": arithmetic.abs,
    "__invert__": logic.bitwise_invert,
    "__eq__": _comparison(comparison.equal),
    "__ne__": _comparison(comparison.not_equal),
    "__lt__": comparison.less,
    "__le__": comparison.less_equal,
    "__gt__": comparison.greater,
    "__ge__": comparison.greater_equal,
    "__getattr__": _missing_attribute,
    "__getitem__": indexing.getitem,
    "__setitem__": _set_item,
    "__iter__": exchange.iterate,
    "__bool__": exchange.truth,
    "__int__": exchange.as_integer,
    "__float__": exchange.as_float,
    "__complex__": exchange.as_complex,
    "__index__": exchange.index,
    "__array__": exchange.array,
    "__array_function__": array_function,
    "__array_ufunc__": array_ufunc,
    "__array_namespace__": _namespace,
    "__dlpack__": exchange.dlpack,
    "__dlpack_device__": exchange.dlpack_device,
    "__repr__": display.text,
    "__format__": display.format_tensor,
    "_repr_html_": display.page,
    "__reduce__": exchange.reduce_tensor,
    "__copy__": exchange.copy_handle,
    "__deepcopy__": exchange.deep_copy,
}

PROPERTIES: dict[str, property] = {
    "__cuda_array_interface__": property(
        exchange.cuda_array_interface, doc=exchange.cuda_array_interface.__doc__
    ),
    "T": property(_matrix_transpose, doc=_matrix_transpose.__doc__),
    "mT": property(products.matrix_transpose, doc="The transposes of a stack of matrices."),
    "real": property(_real_part, doc="The real part of each element."),
    "imag": property(_imaginary_part, doc="The imaginary part of each element."),
    "requires_grad": property(
        backward.get_requires_grad,
        backward.set_requires_grad,
        doc=backward.get_requires_grad.__doc__,
    ),
    "grad": property(backward.get_grad, backward.set_grad, doc=backward.get_grad.__doc__),
    "is_leaf": property(backward.is_leaf, doc=backward.is_leaf.__doc__),
}

METHODS: dict[str, Function] = {
    "backward": backward.backward,
    "register_hook": backward.register_hook,
    "retain_grad": backward.retain_grad,
    "requires_grad_": backward.requires_grad_,
    "detach": stop_gradient,
    "clone": _clone,
    "zero_": _zero,
    "fill_": _fill,
    "copy_": _copy,
    "set_": _set,
    "numpy": exchange.numpy,
    "item": exchange.item,
    "tolist": exchange.tolist,
    "to": exchange.to,
    "to_device": to_device,
    "cpu": exchange.to_cpu,
    "cuda": exchange.to_cuda,
    "astype": conversion.astype,
    "reshape": _reshape,
    "view": _reshape,
    "clip": clip,
    "dot": precision.matmul,
    "matmul": precision.matmul,
    "mm": precision.matmul,
    "bmm": precision.matmul,
    "trace": linalg.trace,
    **TORCH_METHODS,
}

NAMED: dict[Any, tuple[str, ...]] = {
    arithmetic: ("abs", "ceil", "conj", "floor", "round", "sign", "square", "trunc"),
    elementary: (
        "acos", "asin", "atan", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p", "log2",
        "pow", "relu", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
    ),
    manipulation: (
        "broadcast_to", "expand_dims", "flip", "moveaxis", "roll", "squeeze", "swapaxes", "tile",
    ),
    rearrangement: ("chunk", "diagonal", "flatten", "narrow", "ravel", "split", "unfold"),
    gathering: (
        "gather", "index_add", "index_copy", "masked_select", "scatter", "scatter_add",
        "scatter_reduce", "take", "take_along_axis",
    ),
    searching: ("nonzero", "topk"),
    comparison: ("isfinite", "isinf", "isnan"),
}  # fmt: skip
"""Functions that are methods under their own name."""

ALONG: dict[Any, tuple[str, ...]] = {
    statistics: (
        "all", "any", "argmax", "argmin", "cumulative_prod", "cumulative_sum", "max", "mean",
        "min", "prod", "std", "sum", "var", "logsumexp",
    ),
    searching: ("argsort", "sort"),
    neural: ("log_softmax", "softmax"),
}  # fmt: skip
"""Functions that are methods with the axis as an optional position."""
PAIRS = ("max", "min", "sort")
"""Those of them that give values and places in PyTorch."""


def _public_function(name: str, function: Function) -> Function:
    """A function as users call it: the one that casts inside of `autocast`, if there is one."""
    return getattr(precision, name) if name in precision.__all__ else function


def install() -> None:
    """Put everything on the class; a name that a layer does not define is an error here."""
    for name, function in OPERATORS.items():
        public = _public_function(name, function)
        setattr(Tensor, f"__{name}__", public)
        setattr(Tensor, f"__r{name}__", _reflected_operator(public))
        setattr(Tensor, f"__i{name}__", _in_place(SIGNS[name], function))  # the dtype stays
    for name, attribute in {**SPECIAL, **PROPERTIES}.items():
        setattr(Tensor, name, attribute)
    for name, method in METHODS.items():
        _set_method(name, method)
    for module, chosen in NAMED.items():
        for name in chosen:
            _set_method(name, _public_function(name, getattr(module, name)))
    for module, chosen in ALONG.items():
        for name in chosen:
            made = pair_method if name in PAIRS else _axis_method
            _set_method(name, made(_public_function(name, getattr(module, name))))

    for name, longer in (("cumsum", "cumulative_sum"), ("cumprod", "cumulative_prod")):
        _set_method(name, getattr(Tensor, longer))


def _set_method(name: str, method: Function) -> None:
    """Put a method on the class; one with options explains those that it does not take."""
    explains = isinstance(method, FunctionType) and takes_options(method)
    setattr(Tensor, name, explain_arguments(method) if explains else method)


install()
