"""Functions of whole matrices: powers, exponentials, and products of many.

>>> import weft as wf
>>> wf.linalg.matrix_power(wf.tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
[[1.0, 5.0], [0.0, 1.0]]
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from weft.core.dimensions import is_zero
from weft.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from weft.core.shapes import Dimension
from weft.ir.constants import beside_operands
from weft.ir.dispatch import apply
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs
from weft.ops.comparison import greater, less
from weft.ops.composed.products import matmul
from weft.ops.identity import stop_gradient
from weft.ops.matrices import identity, product, require_square
from weft.ops.movement import broadcast_to, reshape
from weft.ops.operands import Operand, alias, as_sequence, promote_operands
from weft.ops.reduction import reduce_max, reduce_sum
from weft.ops.selection import where
from weft.ops.solving import inv, solve

__all__ = ["matrix_exp", "matrix_power", "multi_dot"]


def matrix_power(x: Operand, n: int, /) -> Tensor:
    """The n-th power of each square matrix; a negative power is one of the inverse.

    >>> import weft as wf
    >>> wf.linalg.matrix_power(wf.tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    exponent = _exponent(n)
    tensor = promote_operands("matrix_power", (x,), "number" if exponent >= 0 else "inexact")[0]
    require_square("matrix_power", tensor.type, allowed="any")
    if exponent < 0:
        return matrix_power(apply(inv, tensor), -exponent)
    if exponent == 0:
        return _ones(tensor)
    return _power(tensor, exponent) if exponent > 1 else alias(tensor)


def _power(x: Tensor, n: int) -> Tensor:
    """The n-th power of matrices, by repeated squaring."""
    if n == 1:
        return x
    half = _power(x, n // 2)
    squared = product(half, half)
    return product(squared, x) if n % 2 else squared


def _exponent(n: object) -> int:
    try:
        return operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(
            "matrix_power",
            "the exponent is not an integer",
            expected="an integer n",
            got={"n": n},
            fix="round it: int(n)",
        ) from None


def multi_dot(arrays: Sequence[Operand], /) -> Tensor:
    """The product of several matrices, in the order of multiplication that costs least.

    The first and the last may be vectors.

    >>> import weft as wf
    >>> wf.linalg.multi_dot([wf.ones(2), wf.ones((2, 3)), wf.ones(3)]).tolist()
    6.0
    """
    arrays = as_sequence("multi_dot", "arrays", arrays)
    if len(arrays) < 2:
        raise ArgumentError(
            "multi_dot",
            "nothing to multiply",
            expected="at least two matrices",
            got={"arrays": len(arrays)},
            fix="pass them as one sequence: multi_dot([a, b, c])",
        )
    tensors = list(promote_operands("multi_dot", arrays, "number"))
    ranks = [x.ndim for x in tensors]
    if any(rank != 2 for rank in ranks[1:-1]) or not {ranks[0], ranks[-1]} <= {1, 2}:
        raise ShapeError(
            "multi_dot",
            "a factor is not a matrix",
            expected="matrices; the first and the last may be vectors",
            got={f"x{i + 1}": x for i, x in enumerate(tensors)},
            fix="multiply stacks of matrices with a @ b @ c",
        )
    return _multiply_chain(tensors)


def _multiply_chain(factors: list[Tensor]) -> Tensor:
    """The cheapest way to multiply each stretch of factors, short stretches first."""
    sides = [1 if factors[0].ndim == 1 else factors[0].shape[-2], *[x.shape[-1] for x in factors]]
    count = len(factors)
    best: dict[tuple[int, int], tuple[Dimension, int]] = {(i, i): (0, i) for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sides[i] * sides[k + 1] * sides[j + 1], k)
                for k in range(i, j)
            )

    def stretch(i: int, j: int) -> Tensor:
        middle = best[i, j][1]
        return factors[i] if i == j else matmul(stretch(i, middle), stretch(middle + 1, j))

    return stretch(0, count - 1)


_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0,
    40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_PADE_RADIUS = 5.371920351148152  # Higham (2005): up to this 1-norm the approximant is exact
_SQUARINGS = 16


def matrix_exp(x: Operand, /) -> Tensor:
    """The exponential of each square matrix, by Padé approximation, scaling and squaring.

    NaN where the 1-norm of a matrix is above 352 000.

    >>> import weft as wf
    >>> wf.linalg.matrix_exp(wf.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    tensor = promote_operands("matrix_exp", (x,), "inexact")[0]
    if is_zero(require_square("matrix_exp", tensor.type)):
        return alias(tensor)
    last = tensor.ndim - 1
    sums = apply(reduce_sum, abs(stop_gradient(tensor)), axes=(last - 1,))
    size = apply(reduce_max, sums, axes=(last - 1,)) * (1.0 / _PADE_RADIUS)
    size = apply(reshape, size, shape=(*size.shape, 1, 1))
    # x / 2ⁿ with the smallest n of at least 0 that brings the norm inside the radius
    doublings = [greater(size, 2.0**n) for n in range(_SQUARINGS)]
    scaled = tensor
    for needed in doublings:
        scaled = where(needed, scaled * 0.5, scaled)
    out = _pade(scaled)
    for needed in reversed(doublings):
        out = where(needed, product(out, out), out)
    return where(less(size, 2.0**_SQUARINGS), out, float("nan"))


@beside_operands
def _pade(x: Tensor) -> Tensor:
    """The (13, 13) approximant: odd and even parts p, q give (q - p)⁻¹ (q + p)."""
    one = _ones(x)
    c = [each / _PADE[0] for each in _PADE]
    second = product(x, x)
    fourth = product(second, second)
    sixth = product(fourth, second)
    odd = product(sixth, c[13] * sixth + c[11] * fourth + c[9] * second)
    odd = product(x, odd + c[7] * sixth + c[5] * fourth + c[3] * second + c[1] * one)
    even = product(sixth, c[12] * sixth + c[10] * fourth + c[8] * second)
    even = even + c[6] * sixth + c[4] * fourth + c[2] * second + c[0] * one
    return apply(solve, even - odd, even + odd)


def _ones(x: Tensor) -> Tensor:
    """An identity matrix for each matrix of a stack."""
    return apply(broadcast_to, identity(x.shape[-1], x.dtype), shape=x.shape)
