"""Making tensors: of a shape, of a range, or of what the rest of Python holds.

Python numbers get the default dtypes (float32, int64, complex64, bool); arrays keep theirs.

>>> import weft as wf
>>> wf.full((2,), 0.5).tolist()
[0.5, 0.5]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core import dtypes
from weft.core.arrays import is_host
from weft.core.devices import as_device
from weft.core.dtypes import DType, as_dtype, bool_
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    GradientError,
    WeftError,
)
from weft.core.shapes import Dim, Dimension, check_shape, check_size
from weft.ir.constants import place_beside
from weft.ir.dispatch import apply
from weft.ir.elsewhere import device_unit
from weft.ir.reverse import filled_tensor
from weft.ir.tape import Leaf
from weft.ir.tensor import Tensor, constants_on, wrap
from weft.ops.arithmetic import add, multiply, subtract
from weft.ops.comparison import equal, greater_equal
from weft.ops.composed.ingestion import from_dlpack, ingest
from weft.ops.creation import iota
from weft.ops.identity import stop_gradient
from weft.ops.movement import broadcast_to, reshape
from weft.ops.operands import (
    alias,
    as_integer,
    as_tensor,
    constant_array,
    convert_to,
    is_live,
    scalar_tensor,
)
from weft.ops.placement import filled_place, fills_device, on_device, takes_device
from weft.ops.selection import where

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like",
    "linspace", "meshgrid", "ones", "ones_like", "tensor", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

_SCALARS = (bool, int, float, complex)

# --- of what Python holds ----------------------------------------------------------------------


@takes_device
def asarray(
    obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """A tensor of a tensor, an array, a number or nested lists of these.

    The memory of a NumPy array, of a buffer and of what speaks DLPack is shared where it can be;
    `copy=True` never shares, and `copy=False` refuses what cannot be.

    >>> import weft as wf
    >>> wf.asarray([[1, 2], [3, 4]]).dtype, wf.asarray([1.5]).dtype
    (weft.int64, weft.float32)
    """
    ingested, shared = ingest("asarray", obj, None if dtype is None else as_dtype(dtype))
    if copy is False and not shared:
        raise ArgumentError(
            "asarray",
            "this cannot be done without a copy",
            expected="a tensor or an array that has the dtype already",
            got={"obj": obj, "dtype": dtype, "copy": copy},
            fix="let it copy where it must: copy=None",
        )
    if not shared:
        return ingested
    return _copy_tensor(ingested) if copy else ingested


@takes_device
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A new tensor of a number, an array or nested lists; always a copy, with no history.

    With `requires_grad` derivatives are taken with respect to it, and `backward` fills its `grad`.
    Derivatives do not pass through it, in any mode: `wf.asarray` and `wf.stack` follow them.

    >>> import weft as wf
    >>> x = wf.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0]
    """
    ingested, shared = ingest("tensor", data, None if dtype is None else as_dtype(dtype))
    result = alias(stop_gradient(_copy_tensor(ingested) if shared else ingested))
    if requires_grad:
        _require_inexact(result)
        result._node = Leaf(result)
    return result


def _copy_tensor(made: Tensor) -> Tensor:
    value = made._value
    copied = alias(made)
    if is_host(value):
        copied._value = np.array(value)
    return copied


def _require_inexact(x: Tensor) -> None:
    if not x.dtype.is_inexact:
        raise GradientError(
            "tensor",
            f"{x.dtype.name} has no derivatives",
            expected="a floating-point or complex dtype with requires_grad=True",
            got={"data": x},
            fix='wf.tensor(data, dtype="float32", requires_grad=True)',
        )


# --- of one value ------------------------------------------------------------------------------


def _constant_tensor(op: str, shape: Any, dtype: Any, value: float) -> Tensor:
    chosen = dtypes.DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    return filled_tensor(check_shape(op, shape), chosen, value)


@fills_device
def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of zeros.

    >>> import weft as wf
    >>> wf.zeros((2,)).tolist()
    [0.0, 0.0]
    """
    return _constant_tensor("zeros", shape, dtype, 0)


@fills_device
def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ones.

    >>> import weft as wf
    >>> wf.ones((2,), dtype="int32").tolist()
    [1, 1]
    """
    return _constant_tensor("ones", shape, dtype, 1)


@fills_device
def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of any values: zeros, since what a program computes must be repeatable.

    >>> import weft as wf
    >>> wf.empty((2, 3)).shape
    (2, 3)
    """
    return _constant_tensor("empty", shape, dtype, 0)


@fills_device
def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of one value, with the dtype of the value unless another is given.

    >>> import weft as wf
    >>> wf.full((2,), 7).dtype
    weft.int64
    """
    return _fill_shape("full", check_shape("full", shape), fill_value, dtype, None)


def _fill_shape(op: str, shape: Any, value: Any, dtype: Any, default: DType | None) -> Tensor:
    """One value in a shape; values that are no Python numbers are repeated."""
    if type(value) not in _SCALARS:
        single = as_tensor(op, value, "fill_value")
        chosen = default or single.dtype if dtype is None else as_dtype(dtype)
        return apply(broadcast_to, convert_to(single, chosen), shape=shape)
    own = default or dtypes.result_type(op, [value])
    chosen = own if dtype is None else as_dtype(dtype)
    _check_fits(op, value, chosen)
    if type(value) is complex:
        return apply(broadcast_to, scalar_tensor(op, value, chosen), shape=shape)
    return filled_tensor(shape, chosen, value)


def _check_fits(op: str, value: Any, dtype: DType) -> None:
    """Refuse a number that the dtype cannot hold, or only part of."""
    if type(value) is complex and not dtype.is_complex:
        raise _range_error(op, value, dtype, "complex64")
    if type(value) is float and dtype.is_integer and not math.isfinite(value):
        raise _range_error(op, value, dtype, "float32")
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= int(value) <= limits.max:
            raise _range_error(op, value, dtype, "int64" if -(2**63) <= value < 2**63 else "uint64")


def _range_error(op: str, value: Any, dtype: DType, wider: str) -> DTypeError:
    return DTypeError(
        op,
        f"the number does not fit {dtype.name}",
        expected=f"a number that {dtype.name} can hold",
        got={"number": value, "dtype": dtype},
        fix=f'choose another dtype: dtype="{wider}"',
    )


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros in the shape and dtype of a tensor.

    >>> import weft as wf
    >>> wf.zeros_like(wf.tensor([1, 2])).tolist()
    [0, 0]
    """
    return _fill_like("zeros_like", x, 0, dtype, device)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones in the shape and dtype of a tensor.

    >>> import weft as wf
    >>> wf.ones_like(wf.tensor([1, 2])).tolist()
    [1, 1]
    """
    return _fill_like("ones_like", x, 1, dtype, device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Any values, which are zeros, in the shape and dtype of a tensor.

    >>> import weft as wf
    >>> wf.empty_like(wf.tensor([1, 2])).shape
    (2,)
    """
    return _fill_like("empty_like", x, 0, dtype, device)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One value in the shape and dtype of a tensor.

    >>> import weft as wf
    >>> wf.full_like(wf.tensor([1, 2]), 7).tolist()
    [7, 7]
    """
    return _fill_like("full_like", x, fill_value, dtype, device)


def _fill_like(op: str, x: Any, value: Any, dtype: Any, device: Any) -> Tensor:
    like = as_tensor(op, x)
    target = like.device if device is None else as_device(device)
    with constants_on(filled_place(target)):
        filled = _fill_shape(op, like.shape, value, dtype, like.dtype)
    return on_device(filled, target, is_asked=device is not None)


# --- of a range --------------------------------------------------------------------------------


@takes_device
def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """The numbers from `start` in steps of `step`, before `stop`; arange(n) starts at 0.

    `stop` may be a symbolic dimension.

    >>> import weft as wf
    >>> wf.arange(3).tolist(), wf.arange(1, 2, 0.5).tolist()
    ([0, 1, 2], [1.0, 1.5])
    """
    first, last = (0, start) if stop is None else (start, stop)
    named = {"start": first, "stop": last, "step": step}
    first, last, step = (_number("arange", name, value) for name, value in named.items())
    if step == 0:
        raise ArgumentError(
            "arange",
            "a step of 0 never arrives",
            expected="a step other than 0",
            got={"start": first, "stop": last, "step": step},
            fix="for equal values use wf.full((n,), value)",
        )
    known = not any(isinstance(value, Dim) for value in (first, last, step))
    if known and not abs((last - first) / step) < 2**62:
        raise ArgumentError(
            "arange",
            "the numbers never end",
            expected="a finite range of numbers",
            got={"start": first, "stop": last, "step": step},
            fix="wf.arange(0, 10)",
        )
    whole = not any(isinstance(value, float) for value in (first, last, step))
    default = dtypes.DEFAULT_INTEGER if whole else dtypes.DEFAULT_FLOAT
    chosen = default if dtype is None else as_dtype(dtype)
    return _range(first, step, _range_length(first, last, step), chosen)


def _number(op: str, name: str, value: Any) -> Any:
    """A Python number or dimension, also from a tensor or array that holds one."""
    if isinstance(value, (int, float, Dim)):
        return value
    if _is_single(value):
        number = as_tensor(op, value)
        if not number.dtype.is_complex:
            return constant_array(op, name, number).item()
    raise ArgumentTypeError(
        op,
        f"{type(value).__name__} is not a real number",
        expected="integers or floats",
        got={"value": value},
        fix=f"wf.{op}(0, 10)",
    )


def _is_single(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic, Tensor)) and value.ndim == 0


def _range_length(start: Any, stop: Any, step: Any) -> Dimension:
    if isinstance(start, float) or isinstance(stop, float) or isinstance(step, float):
        steps: int = math.ceil((stop - start) / step)
        return max(0, steps)
    if isinstance(start, int) and isinstance(stop, int):
        return len(range(start, stop, step))
    symbolic: Dimension = (stop - start + step - 1) // step
    return symbolic


def _range(start: Any, step: Any, length: Dimension, dtype: DType) -> Tensor:
    """start + step·i in the widest dtype of the kind, which rounds once, and then in the dtype."""
    if isinstance(start, Dim):
        raise ArgumentTypeError(
            "arange",
            "a symbolic start is a value that is not known yet",
            expected="a start that is a number",
            got={"start": start},
            fix="count from 0 and slice: wf.arange(stop)[start:]",
        )
    if isinstance(length, int) and length and dtype is not bool_:
        for value in (start, start + step * (length - 1)):
            _check_fits("arange", value, dtype)
    wide = _widest_dtype(dtype)
    numbers = apply(iota, shape=(length,), dtype=dtype if (start, step) == (0, 1) else wide, axis=0)
    if (start, step) == (0, 1):
        return numbers
    return convert_to(
        add(multiply(numbers, _wrap_unsigned(step, wide)), _wrap_unsigned(start, wide)), dtype
    )


def _widest_dtype(dtype: DType) -> DType:
    if dtype.is_inexact:
        return dtypes.complex128 if dtype.is_complex else dtypes.float64
    return dtypes.uint64 if dtype is dtypes.uint64 else dtypes.int64


def _wrap_unsigned(value: Any, dtype: DType) -> Tensor:
    """A number in a dtype, negative ones around the corner where it is unsigned."""
    return scalar_tensor("arange", value % 2**64 if dtype is dtypes.uint64 else value, dtype)


@takes_device
def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced numbers from `start` to `stop`, which is one of them by default.

    The ends may be tensors without axes, which derivatives are taken by.

    >>> import weft as wf
    >>> wf.linspace(0.0, 1.0, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    count = check_size("linspace", "num", num)
    if any(is_live(end) for end in (start, stop)):
        return _line(start, stop, int(count), dtype, endpoint)
    named = {"start": start, "stop": stop}
    ends = [x if isinstance(x, complex) else _number("linspace", n, x) for n, x in named.items()]
    whole = any(isinstance(x, complex) for x in ends)
    default = dtypes.DEFAULT_COMPLEX if whole else dtypes.DEFAULT_FLOAT
    chosen = default if dtype is None else as_dtype(dtype)
    with np.errstate(all="ignore"):
        line = np.linspace(ends[0], ends[1], int(count), endpoint=endpoint)
        return wrap(line.astype(chosen.numpy))


def _line(start: Any, stop: Any, count: int, dtype: Any, endpoint: bool) -> Tensor:
    """`linspace` between tensors: a mean of the ends for each place, exact at the ends."""
    ends = [as_tensor("linspace", end) for end in (start, stop)]
    whole = any(end.dtype.is_complex for end in ends)
    default = dtypes.DEFAULT_COMPLEX if whole else dtypes.DEFAULT_FLOAT
    wide = dtypes.complex128 if whole else dtypes.float64
    first, last = (convert_to(end, wide) for end in ends)
    places = wrap(np.linspace(0.0, 1.0, count, endpoint=endpoint))
    share = convert_to(place_beside(places, first), wide)
    line = add(multiply(first, subtract(1.0, share)), multiply(last, share))
    return convert_to(line, default if dtype is None else as_dtype(dtype))


# --- matrices and grids ------------------------------------------------------------------------


def _positions(shape: Any, axis: int) -> Tensor:
    return apply(iota, shape=tuple(shape), dtype=dtypes.INDEX, axis=axis)


def _diagonal_columns(op: str, shape: Any, k: Any) -> Tensor:
    """For each place of a matrix, the column in which its row meets the k-th diagonal."""
    beyond = 2**62  # further than any column, and far from where the sum would wrap
    return add(_positions(shape, 0), min(max(as_integer(op, "k", k), -beyond), beyond))


@takes_device
def eye(
    n_rows: Any,
    n_cols: Any = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """A matrix with ones on the k-th diagonal, counted upwards, and zeros elsewhere.

    >>> import weft as wf
    >>> wf.eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    chosen = dtypes.DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    shape = check_shape("eye", (n_rows, n_rows if n_cols is None else n_cols))
    diagonal = equal(_diagonal_columns("eye", shape, k), _positions(shape, 1))
    return convert_to(diagonal, chosen)


@device_unit
def tril(x: Any, /, *, k: int = 0) -> Tensor:
    """The lower triangle of each matrix, on and below the k-th diagonal; zeros above.

    >>> import weft as wf
    >>> wf.tril(wf.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    matrix = _matrices("tril", x)
    shape = matrix.shape[-2:]
    is_lower = greater_equal(_diagonal_columns("tril", shape, k), _positions(shape, 1))
    return where(is_lower, matrix, _zero(matrix))


@device_unit
def triu(x: Any, /, *, k: int = 0) -> Tensor:
    """The upper triangle of each matrix, on and above the k-th diagonal; zeros below.

    >>> import weft as wf
    >>> wf.triu(wf.ones((2, 2))).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    matrix = _matrices("triu", x)
    shape = matrix.shape[-2:]
    is_upper = greater_equal(_positions(shape, 1), _diagonal_columns("triu", shape, k))
    return where(is_upper, matrix, _zero(matrix))


def _zero(x: Tensor) -> Any:
    return False if x.dtype is bool_ else 0


def _matrices(op: str, x: Any) -> Tensor:
    matrix = as_tensor(op, x)
    if matrix.ndim < 2:
        raise AxisError(
            op,
            "only matrices have triangles",
            expected="at least 2 axes",
            got={"x": matrix},
            fix="give it a second axis first: x[None, :]",
        )
    return matrix


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Each of several vectors along its own axis of a grid; "xy" swaps the first two axes.

    >>> import weft as wf
    >>> [grid.tolist() for grid in wf.meshgrid(wf.arange(2), wf.arange(3), indexing="ij")]
    [[[0, 0, 0], [1, 1, 1]], [[0, 1, 2], [0, 1, 2]]]
    """
    vectors = [as_tensor("meshgrid", array) for array in arrays]
    _check_grid(vectors, indexing)
    count = len(vectors)
    places = list(range(count))
    if indexing == "xy" and count > 1:
        places[:2] = 1, 0
    sizes: list[Dimension] = [1] * count
    for vector, place in zip(vectors, places, strict=True):
        sizes[place] = vector.size
    grids = []
    for vector, place in zip(vectors, places, strict=True):
        line = tuple(dim if axis == place else 1 for axis, dim in enumerate(sizes))
        grids.append(apply(broadcast_to, apply(reshape, vector, shape=line), shape=tuple(sizes)))
    return tuple(grids)


def _check_grid(vectors: list[Tensor], indexing: str) -> None:
    error: type[WeftError] | None = None
    if indexing not in ("xy", "ij"):
        error, problem = ArgumentError, f"no indexing is called {indexing!r}"
    elif any(vector.ndim > 1 for vector in vectors):
        error, problem = AxisError, "a grid is made of vectors"
    if error is not None:
        raise error(
            "meshgrid",
            problem,
            expected='vectors, and indexing="xy" or "ij"',
            got={**{f"x{i + 1}": x for i, x in enumerate(vectors)}, "indexing": indexing},
            fix='wf.meshgrid(x.reshape(-1), y.reshape(-1), indexing="ij")',
        )
