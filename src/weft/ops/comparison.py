"""Comparisons of two tensors, and questions about each element: results are booleans.

>>> import weft as wf
>>> wf.less(wf.tensor([1.0, 3.0]), 2.0).tolist()
[True, False]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dtypes import uint64
from weft.ir import ranges
from weft.ir import scalar_functions as functions
from weft.ir.derivatives import constant
from weft.ir.dispatch import apply
from weft.ir.kinds import Elementwise
from weft.ir.primitive import PRIMITIVES, Lower
from weft.ir.ranges import Order
from weft.ir.tensor import Tensor
from weft.ops.families import elementwise
from weft.ops.logic import logical_and, logical_not, logical_or
from weft.ops.operands import convert_to

__all__ = [
    "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal",
    "not_equal", "signbit",
]  # fmt: skip

_DISCRETE = constant("a truth value does not vary smoothly")


def _comparison(
    name: str,
    doc: str,
    reference: Callable[..., Any],
    lower: Lower,
    example: str,
    compares: Order | None = None,
) -> Callable[..., Tensor]:
    return elementwise(
        name,
        doc=doc,
        reference=reference,
        derivatives=[_DISCRETE, _DISCRETE],
        lower=lower,
        example=example,
        dtypes="any" if compares is None else "ordered",
        result="bool",
        kind=Elementwise(compares=compares, bounds=compares and ranges.of_comparison(compares)),
        commutative=compares is None,
        unlike=_with_uint64(name, reference),
    )


def _with_uint64(name: str, reference: Callable[..., Any]) -> Callable[..., Tensor | None]:
    """uint64 and signed integers have no common dtype, but an order: negative ones come first."""

    def compare(x1: Any, x2: Any) -> Tensor | None:
        if not (isinstance(x1, Tensor) and isinstance(x2, Tensor)):
            return None
        kinds = (x1.dtype.kind, x2.dtype.kind)
        if uint64 not in (x1.dtype, x2.dtype) or "signed" not in kinds:
            return None
        negative = less(x1 if kinds[0] == "signed" else x2, 0)
        compared = apply(PRIMITIVES[name], convert_to(x1, uint64), convert_to(x2, uint64))
        if reference(0, 1) if kinds[0] == "signed" else reference(1, 0):
            return logical_or(negative, compared)
        return logical_and(logical_not(negative), compared)

    return compare


def _predicate(
    name: str,
    doc: str,
    reference: Callable[..., Any],
    lower: Lower,
    example: str,
    dtypes: str = "any",
) -> Callable[..., Tensor]:
    return elementwise(
        name,
        doc=doc,
        reference=reference,
        derivatives=[_DISCRETE],
        lower=lower,
        example=example,
        dtypes=dtypes,
        result="bool",
    )


equal = _comparison(
    "equal",
    "Whether the elements are equal; NaN equals nothing.",
    np.equal,
    lambda scalar, x1, x2: scalar.equal(x1, x2),
    "[1.0, 2.0], [1.0, 3.0] -> [True, False]",
)

not_equal = _comparison(
    "not_equal",
    "Whether the elements differ; NaN differs from everything.",
    np.not_equal,
    lambda scalar, x1, x2: scalar.not_equal(x1, x2),
    "[1.0, 2.0], [1.0, 3.0] -> [False, True]",
)

less = _comparison(
    "less",
    "Whether the elements of the first are less than those of the second.",
    np.less,
    lambda scalar, x1, x2: x1 < x2,
    "[1.0, 3.0], [2.0, 2.0] -> [True, False]",
    "<",
)

less_equal = _comparison(
    "less_equal",
    "Whether the elements of the first are at most those of the second.",
    np.less_equal,
    lambda scalar, x1, x2: x1 <= x2,
    "[1.0, 2.0, 3.0], [2.0, 2.0, 2.0] -> [True, True, False]",
    "<=",
)

greater = _comparison(
    "greater",
    "Whether the elements of the first are greater than those of the second.",
    np.greater,
    lambda scalar, x1, x2: x1 > x2,
    "[1.0, 3.0], [2.0, 2.0] -> [False, True]",
    ">",
)

greater_equal = _comparison(
    "greater_equal",
    "Whether the elements of the first are at least those of the second.",
    np.greater_equal,
    lambda scalar, x1, x2: x1 >= x2,
    "[1.0, 2.0, 3.0], [2.0, 2.0, 2.0] -> [False, True, True]",
    ">=",
)

isfinite = _predicate(
    "isfinite",
    "Whether each element is neither infinite nor NaN.",
    np.isfinite,
    lambda scalar, x: functions.is_finite(x),
    '[1.0, float("inf"), float("nan")] -> [True, False, False]',
)

isinf = _predicate(
    "isinf",
    "Whether each element is infinite, of either sign; a complex number is, if a part of it is.",
    np.isinf,
    lambda scalar, x: functions.is_infinite(x),
    '[1.0, float("-inf"), float("nan")] -> [False, True, False]',
)

isnan = _predicate(
    "isnan",
    "Whether each element is not a number.",
    np.isnan,
    lambda scalar, x: scalar.not_equal(x, x),
    '[1.0, float("inf"), float("nan")] -> [False, False, True]',
)

signbit = _predicate(
    "signbit",
    "Whether the sign bit of each element is set, as it is in -0.0.",
    np.signbit,
    lambda scalar, x: functions.sign_bit(x),
    "[1.0, 0.0, -0.0] -> [False, False, True]",
    "real",
)
