"""What the primitives on stacks of matrices share: checks, batching, and small matrix algebra.

A stack has shape [..., rows, columns]; its leading axes are batch axes. The functions here take
and give tensors, so derivative rules made of them can be differentiated, batched and traced.

>>> import numpy as np
>>> from weft.ir.tensor import wrap
>>> from weft.ops.matrices import diagonal_matrix
>>> np.asarray(diagonal_matrix(wrap(np.array([1.0, 2.0])))._value).tolist()
[[1.0, 0.0], [0.0, 2.0]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.dtypes import DType
from weft.core.errors import ArgumentError, DTypeError, ShapeError, Unsupported
from weft.core.records import frozen
from weft.core.shapes import Dimension, require_equal
from weft.core.types import TensorType
from weft.ir.batching import to_front
from weft.ir.derivatives import linear, tangent
from weft.ir.dispatch import apply, bind
from weft.ir.kinds import Movement
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor, wrap
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import conj
from weft.ops.contraction import dot
from weft.ops.conversion import convert
from weft.ops.families import batch_each, elementwise
from weft.ops.movement import pad, reshape, slice_, transpose
from weft.ops.operands import wrong_dtype

__all__: list[str] = []

Array = np.ndarray[Any, Any]
BY_LAPACK = Unsupported("LAPACK decomposes it")


# --- what type rules check ---------------------------------------------------------------------


def require_matrix(op: str, x: TensorType, name: str = "x", allowed: str = "inexact") -> None:
    """Refuse what is not a matrix or a stack of them, or has a dtype that does not fit."""
    if allowed == "inexact" and not x.dtype.is_inexact:
        raise wrong_dtype(op, allowed, {name: x})
    if x.ndim < 2:
        raise ShapeError(
            op,
            "not a matrix",
            expected="at least 2 axes: [..., rows, columns]",
            got={name: x},
            fix=f"give it two axes, for example {name}.reshape(1, -1)",
        )


def require_square(op: str, x: TensorType, name: str = "x", allowed: str = "inexact") -> Dimension:
    """The number of rows of a square matrix, or of a stack of them; others are refused."""
    require_matrix(op, x, name, allowed)
    return require_equal(
        op,
        x.shape[-2],
        x.shape[-1],
        expected=f"{name}.shape[-2] == {name}.shape[-1]",
        got={name: x},
        fix=f"make it square, for example {name}.mT @ {name}",
        what="the matrix is not square",
    )


def square_type(op: str) -> Callable[[TensorType], TensorType]:
    """The type rule of a function from square matrices to matrices of the same type."""

    def type_rule(x: TensorType) -> TensorType:
        require_square(op, x)
        return x

    return type_rule


def require_system(op: str, a: TensorType, b: TensorType) -> TensorType:
    """The type of the solution of a @ x = b for equal stacks of matrices."""
    require_square(op, a, "a")
    require_matrix(op, b, "b")
    got = {"a": a, "b": b}
    if a.dtype is not b.dtype:
        raise DTypeError(
            op,
            "the two sides have different dtypes",
            expected="one dtype",
            got=got,
            fix="convert one side: b.astype(a.dtype)",
        )
    if a.ndim != b.ndim:
        raise ShapeError(
            op,
            "the stacks have different numbers of axes",
            expected="a.ndim == b.ndim",
            got=got,
            fix="broadcast the leading axes first",
        )
    for axis in range(a.ndim - 1):
        require_equal(
            op,
            a.shape[axis],
            b.shape[axis],
            expected=f"a.shape[{axis}] == b.shape[{axis}]",
            got=got,
            fix="give b as many rows as a has",
            what="the number of rows differs" if axis == a.ndim - 2 else "the stacks differ",
        )
    return b


def smaller_side(rows: Dimension, columns: Dimension) -> Dimension:
    """The smaller side of a matrix."""
    return rows if rows == columns or rows < columns else columns


# --- references: NumPy's functions with our dtypes and errors ----------------------------------


@frozen
class Failure:
    """What NumPy's LinAlgError means for one operation."""

    problem: str
    expected: str
    fix: str


SINGULAR = Failure(
    "the matrix is singular",
    "a matrix with independent columns",
    "use the pseudo-inverse, which always exists: wf.linalg.pinv(x)",
)
INDEFINITE = Failure(
    "the matrix is not positive definite",
    "a positive definite matrix",
    "move its eigenvalues up: x + 1e-6 * wf.eye(x.shape[-1])",
)
DIVERGED = Failure(
    "the iteration did not converge",
    "finite elements",
    "find the elements that are not: wf.isfinite(x)",
)


def by_numpy(op: str, f: Callable[..., Any], failure: Failure = DIVERGED) -> Callable[..., Any]:
    """A reference that works on 16-bit floats in float32 and fails with a house error."""

    def reference(*arrays: Array, **params: Any) -> Any:
        dtype = arrays[0].dtype
        narrow = dtype.itemsize == 2
        wide = [array.astype(np.float32) for array in arrays] if narrow else arrays
        try:
            results = f(*wide, **params)
        except np.linalg.LinAlgError:
            raise ArgumentError(
                op,
                failure.problem,
                expected=failure.expected,
                got={"x": wrap(arrays[0])},
                fix=failure.fix,
            ) from None
        if isinstance(results, tuple):
            return tuple(_narrow_result(each, dtype) for each in results)
        return _narrow_result(results, dtype)

    return reference


def _narrow_result(result: Any, dtype: np.dtype[Any]) -> Array:
    array = np.asarray(result)
    narrow = dtype.itemsize == 2 and array.dtype == np.float32
    return array.astype(dtype) if narrow else array


# --- batching ----------------------------------------------------------------------------------


def batch_stacks(primitive_of: Callable[[], Primitive]) -> Callable[..., Any]:
    """The batching rule of a primitive on stacks: one more leading axis."""

    def batch(
        size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], **params: Any
    ) -> Any:
        primitive = primitive_of()
        front = [to_front(size, x, axis) for x, axis in zip(operands, axes, strict=True)]
        result = bind(primitive, *front, **params)
        return (result, (0,) * len(result)) if primitive.multiple else (result, 0)

    return batch


# --- matrix algebra on tensors -----------------------------------------------------------------


def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return apply(transpose, x, order=order)


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    transposed = matrix_transpose(x)
    return conj(transposed) if x.dtype.is_complex else transposed


def product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of equal stacks."""
    last = a.ndim - 1
    stack = tuple(range(last - 1))
    return apply(dot, a, b, contract=((last,), (last - 1,)), batch=(stack, stack))


def columns(s: Tensor) -> Tensor:
    """A stack of vectors as rows [..., 1, n]: a factor for each column."""
    return apply(reshape, s, shape=(*s.shape[:-1], 1, s.shape[-1]))


def rows(s: Tensor) -> Tensor:
    """A stack of vectors as columns [..., n, 1]: a factor for each row."""
    return apply(reshape, s, shape=(*s.shape, 1))


def diagonal_of(x: Tensor, offset: int = 0) -> Tensor:
    """A diagonal of each matrix: every (columns + 1)-th element in row-major order."""
    height, width = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    if offset and (height <= down or width <= right):
        length: Dimension = 0
    else:
        length = smaller_side(height - down, width - right)
    if is_zero(length):
        return cut_last_axis(_flat(x), 0, 0, width + 1)
    start = down * width + right
    return cut_last_axis(_flat(x), start, start + (length - 1) * (width + 1) + 1, width + 1)


def diagonal_matrix(d: Tensor) -> Tensor:
    """Square matrices with the given diagonals: n zeros between two neighbours."""
    n = d.shape[-1]
    spread = (*[(0, 0, 0)] * (d.ndim - 1), (0, 0, n))
    return apply(reshape, bind(pad, d, padding=spread, value=0.0), shape=(*d.shape, n))


def identity(n: Dimension, dtype: DType) -> Tensor:
    """The identity matrix."""
    return diagonal_matrix(filled_tensor((n,), dtype, 1))


def trace_of(x: Tensor) -> Tensor:
    """The sum of the diagonal of each square matrix, as the product with the identity."""
    last = x.ndim - 1
    one = identity(x.shape[-1], x.dtype)
    return apply(dot, x, one, contract=((last - 1, last), (0, 1)), batch=((), ()))


def cut_last_axis(x: Tensor, start: Dimension, stop: Dimension, stride: Dimension = 1) -> Tensor:
    """Elements of the last axis."""
    before = x.shape[:-1]
    return apply(
        slice_,
        x,
        starts=(*[0] * len(before), start),
        stops=(*before, stop),
        strides=(*[1] * len(before), stride),
    )


def first_columns(x: Tensor, count: Dimension) -> Tensor:
    """The first columns of each matrix."""
    return x if x.shape[-1] == count else cut_last_axis(x, 0, count)


def first_rows(x: Tensor, count: Dimension) -> Tensor:
    """The first rows of each matrix."""
    return (
        x
        if x.shape[-2] == count
        else matrix_transpose(cut_last_axis(matrix_transpose(x), 0, count))
    )


def real_part(x: Tensor, dtype: DType) -> Tensor:
    """The real part, of the given real dtype."""
    return x if x.dtype is dtype else apply(convert, x, dtype=dtype)


def imaginary_part(x: Tensor) -> Tensor:
    """x without its real part: an imaginary number."""
    return (x - conj(x)) * 0.5


def _flat(x: Tensor) -> Tensor:
    return apply(reshape, x, shape=(*x.shape[:-2], x.shape[-2] * x.shape[-1]))


# --- primitives that the rules are made of -----------------------------------------------------


def _triangle_type(x: TensorType, lower: bool, offset: int) -> TensorType:
    require_matrix("triangle", x, allowed="any")
    return x


triangle: Primitive = Primitive(
    "triangle",
    "The elements on and below (or on and above) a diagonal of each matrix, zero elsewhere.",
    kind=Movement(fill=lambda params: 0, by_place=True),
    sharding=shardings.of_triangle,
    type_rule=_triangle_type,
    reference=lambda x, lower, offset: np.tril(x, offset) if lower else np.triu(x, offset),
    derivatives=[
        linear(lambda ct, x, lower, offset: bind(triangle, ct, lower=lower, offset=offset))
    ],
    batch=batch_each(
        lambda: triangle, lambda size, lower, offset: {"lower": lower, "offset": offset}
    ),
    samples=lambda: [
        Sample((np.arange(1, 7, dtype=np.float32).reshape(2, 3),), {"lower": True, "offset": 0}),
        Sample((np.arange(9, dtype=np.int32).reshape(3, 3),), {"lower": True, "offset": -1}),
        Sample((np.ones((2, 3, 2), np.complex64),), {"lower": False, "offset": 1}),
        Sample((np.zeros((0, 2), np.float32),), {"lower": False, "offset": 0}),
    ],
    mistakes=lambda: [
        Mistake((np.ones(3, np.float32),), {"lower": True, "offset": 0}, ShapeError, "not a matrix")
    ],
)


def lower_part(x: Tensor, offset: int = 0) -> Tensor:
    """The elements on and below a diagonal."""
    return apply(triangle, x, lower=True, offset=offset)


def upper_part(x: Tensor, offset: int = 0) -> Tensor:
    """The elements on and above a diagonal."""
    return apply(triangle, x, lower=False, offset=offset)


def hermitian_of_lower(x: Tensor) -> Tensor:
    """The Hermitian matrix that shares x's lower triangle (of its diagonal, the real part)."""
    below = lower_part(x, -1)
    both = below + adjoint(below)
    diagonal = lower_part(x) - below
    if x.dtype.is_complex:
        diagonal = (diagonal + conj(diagonal)) * 0.5
    return both + diagonal


reciprocal_or_zero = elementwise(
    "reciprocal_or_zero",
    doc="1 / x, and 0 where x is 0: the differences of equal eigenvalues divide nothing.",
    reference=lambda x: np.where(x == 0, x, 1 / x),
    derivatives=[tangent(lambda t, out, x: -(t * (out * out)))],
    lower=lambda scalar, x: scalar.select(scalar.equal(x, 0), x, 1 / x),
    domain=(0.5, 2.0),
)
