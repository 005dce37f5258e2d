"""Reductions: an operation over all elements along axes.

>>> import weft as wf
>>> wf.ones((2, 3)).sum(axis=0).tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.types import TensorType
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply, bind
from weft.ir.primitive import Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops.families import batch_each
from weft.ops.movement import broadcast_to, reshape


def reduced_type(x: TensorType, axes: tuple[int, ...]) -> TensorType:
    """The type without the reduced axes."""
    return x.with_shape(tuple(dim for axis, dim in enumerate(x.shape) if axis not in axes))


def spread(reduced: Tensor, like: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A reduction's result repeated along the reduced axes."""
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(like.shape))
    return apply(broadcast_to, bind(reshape, reduced, shape=kept), shape=like.shape)


def _sum(x: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iub" else x.dtype
    return np.asarray(np.sum(x, axis=axes, dtype=wide)).astype(x.dtype, copy=False)


reduce_sum = Primitive(
    "reduce_sum",
    "The sum over axes; 16-bit floats are added in float32.",
    type_rule=reduced_type,
    reference=_sum,
    derivatives=[linear(lambda ct, x, axes: spread(ct, x, axes))],
    batch=batch_each(lambda: reduce_sum, lambda size, axes: {"axes": tuple(a + 1 for a in axes)}),
    samples=lambda: [
        Sample((np.arange(24, dtype=np.float32).reshape(2, 3, 4),), {"axes": axes})
        for axes in ((0,), (1, 2), (), (0, 1, 2))
    ]
    + [Sample((np.zeros((0, 3), np.float32),), {"axes": (0,)})],
)
