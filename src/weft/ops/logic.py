"""Logic on truth values, and on the bits of integers.

>>> import weft as wf
>>> wf.bitwise_and(wf.tensor([12]), 10).tolist()
[8]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.derivatives import constant
from weft.ir.primitive import Lower
from weft.ir.scalar_functions import is_true
from weft.ir.tensor import Tensor
from weft.ops.families import elementwise

__all__ = [
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "logical_and", "logical_not", "logical_or", "logical_xor",
]  # fmt: skip

_DISCRETE = constant("truth values and bits do not vary smoothly")


def _logical(
    name: str,
    doc: str,
    reference: Callable[..., Any],
    lower: Lower,
    example: str,
    arity: int = 2,
) -> Callable[..., Tensor]:
    return elementwise(
        name,
        doc=doc,
        reference=reference,
        derivatives=[_DISCRETE] * arity,
        lower=lower,
        example=example,
        dtypes="any",
        result="bool",
        commutative=arity == 2,
    )


def _bitwise(
    name: str,
    doc: str,
    reference: Callable[..., Any],
    lower: Lower,
    example: str,
    arity: int = 2,
    dtypes: str = "bits",
    domain: tuple[float, float] = (0.0, 7.0),
    commutative: bool = False,
) -> Callable[..., Tensor]:
    return elementwise(
        name,
        doc=doc,
        reference=reference,
        derivatives=[_DISCRETE] * arity,
        lower=lower,
        example=example,
        dtypes=dtypes,
        domain=domain,
        commutative=commutative,
    )


logical_and = _logical(
    "logical_and",
    "Whether both elements are true; numbers other than 0 are.",
    np.logical_and,
    lambda scalar, x1, x2: is_true(x1) & is_true(x2),
    "[True, True], [True, False] -> [True, False]",
)

logical_or = _logical(
    "logical_or",
    "Whether at least one of the elements is true; numbers other than 0 are.",
    np.logical_or,
    lambda scalar, x1, x2: is_true(x1) | is_true(x2),
    "[True, False], [False, False] -> [True, False]",
)

logical_xor = _logical(
    "logical_xor",
    "Whether exactly one of the elements is true; numbers other than 0 are.",
    np.logical_xor,
    lambda scalar, x1, x2: is_true(x1) ^ is_true(x2),
    "[True, True], [True, False] -> [False, True]",
)

logical_not = _logical(
    "logical_not",
    "Whether each element is false; the number 0 is.",
    np.logical_not,
    lambda scalar, x: ~is_true(x),
    "[True, False] -> [False, True]",
    arity=1,
)

bitwise_and = _bitwise(
    "bitwise_and",
    "The bits set in both elements.",
    np.bitwise_and,
    lambda scalar, x1, x2: x1 & x2,
    "[12, 5], [10, 2] -> [8, 0]",
    commutative=True,
)

bitwise_or = _bitwise(
    "bitwise_or",
    "The bits set in at least one of the elements.",
    np.bitwise_or,
    lambda scalar, x1, x2: x1 | x2,
    "[12, 5], [10, 2] -> [14, 7]",
    commutative=True,
)

bitwise_xor = _bitwise(
    "bitwise_xor",
    "The bits set in exactly one of the elements.",
    np.bitwise_xor,
    lambda scalar, x1, x2: x1 ^ x2,
    "[12, 5], [10, 2] -> [6, 7]",
    commutative=True,
)

bitwise_invert = _bitwise(
    "bitwise_invert",
    "Every bit of each element flipped; for booleans the logical negation.",
    np.invert,
    lambda scalar, x: ~x,
    "[0, 5, -1] -> [-1, -6, 0]",
    arity=1,
)

bitwise_left_shift = _bitwise(
    "bitwise_left_shift",
    "The bits of the first moved up by the second; 0 from the width of the dtype on.",
    np.left_shift,
    lambda scalar, x1, x2: x1 << x2,
    "[1, 5, 1], [3, 1, 64] -> [8, 10, 0]",
    dtypes="integer",
)

bitwise_right_shift = _bitwise(
    "bitwise_right_shift",
    "The bits of the first moved down by the second, keeping the sign.",
    np.right_shift,
    lambda scalar, x1, x2: x1 >> x2,
    "[8, -8, -1], [3, 1, 64] -> [1, -4, -1]",
    dtypes="integer",
)
