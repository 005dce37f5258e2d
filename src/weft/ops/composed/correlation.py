"""How far variables go together, and whether two tensors agree.

>>> import weft as wf
>>> wf.cov(wf.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])).tolist()
[[1.0, 2.0], [2.0, 4.0]]
"""

from __future__ import annotations

from typing import Any

from weft.core.errors import ShapeError
from weft.ir.eager import unit
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import conj, divide, real
from weft.ops.composed.elementwise import isclose
from weft.ops.composed.manipulation import reshape_known
from weft.ops.composed.products import matmul, matrix_transpose
from weft.ops.composed.rearrangement import diagonal
from weft.ops.composed.statistics import all, mean
from weft.ops.elementary import sqrt
from weft.ops.operands import Operand, as_number, promote_operands

__all__ = ["allclose", "corrcoef", "cov"]


@unit
def cov(x: Operand, /, *, correction: Any = 1) -> Tensor:
    """The covariances of the rows of x, which are variables, over its columns, observations.

    Sums of products are divided by the number of observations less `correction`.

    >>> import weft as wf
    >>> wf.cov(wf.tensor([1.0, 3.0])).item()
    2.0
    """
    tensor = promote_operands("cov", (x,), "inexact")[0]
    if tensor.ndim not in (1, 2):
        raise ShapeError(
            "cov",
            f"the tensor has {tensor.ndim} axes",
            expected="a line of observations, or a matrix [variables, observations]",
            got={"x": tensor},
            fix="map over the others: wf.vmap(wf.cov)(x)",
        )
    rows = reshape_known(tensor, (1, *tensor.shape)) if tensor.ndim == 1 else tensor
    deviations = rows - mean(rows, axis=1, keepdims=True)
    products = matmul(deviations, matrix_transpose(conj(deviations)))
    observations: Any = rows.shape[1]
    covariances = divide(products, observations - as_number("cov", "correction", correction))
    return reshape_known(covariances, ()) if tensor.ndim == 1 else covariances


@unit
def corrcoef(x: Operand, /) -> Tensor:
    """The correlations of the rows of x, over its columns: covariances by deviations, -1 to 1.

    >>> import weft as wf
    >>> wf.corrcoef(wf.tensor([[1.0, 2.0], [6.0, 2.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    covariances = cov(x)
    if covariances.ndim == 0:
        return divide(covariances, covariances)
    deviations = sqrt(real(diagonal(covariances)))
    size = deviations.shape[0]
    rows, columns = reshape_known(deviations, (size, 1)), reshape_known(deviations, (1, size))
    return divide(divide(covariances, rows), columns)


def allclose(
    x1: Operand, x2: Operand, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether all elements are close, as `isclose` says: one truth value.

    >>> import weft as wf
    >>> bool(wf.allclose(wf.tensor([1.0, 1.0]), wf.tensor([1.0, 1.000001])))
    True
    """
    return all(isclose(x1, x2, rtol=rtol, atol=atol, equal_nan=equal_nan))
