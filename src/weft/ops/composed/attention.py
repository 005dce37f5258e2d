"""Attention as users call it: with or without heads, causal or masked.

>>> import weft as wf
>>> wf.scaled_dot_product_attention(*[wf.ones((2, 3))] * 3).tolist()
[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
"""

from __future__ import annotations

from math import sqrt
from typing import Any, Literal

import numpy as np

from weft.core.errors import ArgumentError, ShapeError, UnsupportedError, WeftError
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.eager import unit
from weft.ir.tensor import Tensor, wrap
from weft.ops.arithmetic import multiply
from weft.ops.attention import attention
from weft.ops.composed.random_keys import key_or_next
from weft.ops.movement import reshape
from weft.ops.operands import as_number, as_tensor, convert_to, is_live, promote_operands

__all__ = ["scaled_dot_product_attention"]

_OP = "scaled_dot_product_attention"


@unit
def scaled_dot_product_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    aligned: Literal["start", "end"] = "start",
    scale: float | Tensor | None = None,
    dropout: float = 0.0,
    key: Tensor | None = None,
) -> Tensor:
    """The mean of values, for each query weighted by the softmax of its products with the keys.

    q: [..., heads, queries, head], k and v: [..., heads, keys, head]; heads may be left out, and
    those of q may be a multiple of those of k and v, which then share them in groups. mask
    broadcasts to [..., heads, queries, keys]: truth values say which keys a query sees, numbers
    are added to the scores. causal: query i sees the keys up to i; with aligned="end" the last
    query sees the last key, as with a cache of earlier keys. scale: 1/√head unless given; a tensor
    without axes may have a derivative. A query that sees no key gets zeros, and what a query does
    not see does not matter, be it NaN. dropout: the chance that a weight becomes 0, as
    `wf.random.dropout` of the weights with this key.

    >>> import weft as wf
    >>> q, v = wf.zeros((2, 4)), wf.tensor([[1.0], [3.0]])
    >>> wf.scaled_dot_product_attention(q, q, v).tolist()
    [[2.0], [2.0]]
    >>> wf.scaled_dot_product_attention(q, q, v, causal=True).tolist()
    [[1.0], [2.0]]
    """
    q, k, v = promote_operands(_OP, (q, k, v), "float")
    if is_live(scale):
        q, scale = multiply(q, convert_to(as_tensor(_OP, scale, "scale"), q.dtype)), 1.0
    operands = [q, k, v]
    if mask is not None:
        mask_tensor = as_tensor(_OP, mask, "mask")
        operands.append(
            convert_to(mask_tensor, q.dtype) if mask_tensor.dtype.is_inexact else mask_tensor
        )
    single = q.ndim == 2 and k.ndim == 2 and v.ndim == 2
    if single:
        operands[:3] = [apply(reshape, x, shape=(1, *x.shape)) for x in operands[:3]]
    params: dict[str, Any] = {
        "offset": _offset(q, k, causal, aligned), "scale": _scale(q, scale), "guarded": True,
    }  # fmt: skip
    keep_share = 1.0 - _share(dropout)
    if keep_share < 1:
        operands += [key_or_next(_OP, key), wrap(np.zeros((), np.uint64))]
        params["kept"] = keep_share
    try:
        out, _ = apply_multiple(attention, *operands, **params)
    except WeftError as error:
        raise error.called(_OP) from None
    return apply(reshape, out, shape=out.shape[1:]) if single else out


def _offset(q: Tensor, k: Tensor, causal: bool, aligned: str) -> Dimension | None:
    """How many keys more than its own number a query sees."""
    if aligned not in ("start", "end"):
        raise ArgumentError(
            _OP,
            "causal attention is aligned at the start or at the end",
            expected='"start": query 0 sees key 0, or "end": the last query sees the last key',
            got={"aligned": aligned},
            fix='aligned="start"',
        )
    if not causal or q.ndim < 2 or k.ndim < 2:
        return None
    return 0 if aligned == "start" else k.shape[-2] - q.shape[-2]


def _share(dropout: float) -> float:
    p = float(as_number(_OP, "dropout", dropout))
    if 0 <= p <= 1:
        return p
    raise ArgumentError(
        _OP,
        "the chance of dropout is no share",
        expected="a number from 0 to 1",
        got={"dropout": dropout},
        fix=f"wf.{_OP}(q, k, v, dropout=0.1)",
    )


def _scale(q: Tensor, scale: float | Tensor | None) -> float:
    if scale is not None:
        return float(as_number(_OP, "scale", scale))
    if q.ndim == 0:
        raise _no_head(q.type)
    head = q.shape[-1]
    if not isinstance(head, int):
        raise UnsupportedError(
            _OP,
            "a head of symbolic size has no default scale",
            expected="a head whose size is known",
            got={"q": q},
            fix="give the scale: scale=0.125",
        )
    return 1.0 / sqrt(max(1, head))


def _no_head(q: TensorType) -> ShapeError:
    return ShapeError(
        _OP,
        "q has no axes",
        expected="[..., queries, head]",
        got={"q": q},
        fix="give q an axis of queries and one of a head",
    )
