"""Attention, and the positions it does not see by itself.

>>> import weft as wf
>>> q, v = wf.zeros((2, 4)), wf.tensor([[1.0], [3.0]])
>>> scaled_dot_product_attention(q, q, v, causal=True).tolist()
[[1.0], [2.0]]
"""

from __future__ import annotations

import math
from typing import Any

import weft as wf
from weft.eager import beside_operands, unit
from weft.nn.functional.checks import needs_axes, refuse_whole_masks


def scaled_dot_product_attention(
    q: wf.Tensor,
    k: wf.Tensor,
    v: wf.Tensor,
    mask: wf.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | wf.Tensor | None = None,
    dropout: float = 0.0,
) -> wf.Tensor:
    """The mean of v, for each query weighted by the softmax of its products with the keys.

    q [..., heads, queries, head], k and v [..., heads, keys, head]; the heads of q may be a
    multiple of those of k. mask broadcasts to [..., heads, queries, keys]: truth values say what
    a query sees, numbers are added to the scores. dropout drops weights with that chance.

    >>> scaled_dot_product_attention(*[wf.ones((2, 3))] * 3).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    return wf.scaled_dot_product_attention(
        q, k, v, mask, causal=causal, scale=scale, dropout=dropout
    )


@unit
def attention_weights(
    q: wf.Tensor,
    k: wf.Tensor,
    mask: wf.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | wf.Tensor | None = None,
) -> wf.Tensor:
    """The weights of attention, [..., heads, queries, keys]; a query that sees no key has zeros.

    >>> attention_weights(wf.zeros((2, 4)), wf.zeros((2, 4)), causal=True).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    needs_axes("attention_weights", 2, q=q, k=k)
    factor = 1.0 / math.sqrt(int(q.shape[-1])) if scale is None else scale
    scores = (q * factor) @ repeated_heads(k, q).mT  # [..., heads, queries, keys]
    if causal:
        visible = causal_mask(q.shape[-2], k.shape[-2])
        scores = wf.where(visible, scores, -wf.inf)
    if mask is not None:
        refuse_whole_masks("attention_weights", "mask", mask, "mask != 0")
        scores = wf.where(mask, scores, -wf.inf) if mask.dtype is wf.bool else scores + mask
    blind = wf.isneginf(wf.max(scores, axis=-1, keepdims=True))
    return wf.where(blind, 0.0, wf.softmax(wf.where(blind, 0.0, scores), axis=-1))


def repeated_heads(x: wf.Tensor, q: wf.Tensor) -> wf.Tensor:
    """Keys or values with each head repeated for the group of queries' heads that share it."""
    if x.ndim < 3 or x.shape[-3] == q.shape[-3]:
        return x
    return wf.repeat(x, int(q.shape[-3]) // int(x.shape[-3]), axis=-3)


def causal_mask(queries: Any, keys: Any, start: Any = 0) -> wf.Tensor:
    """True where the query at position start + i sees the key j <= start + i: [queries, keys].

    >>> causal_mask(2, 3, 1).tolist()
    [[True, True, False], [True, True, True]]
    """
    rows = wf.expand_dims(wf.arange(queries), axis=1) + start
    return wf.less_equal(wf.arange(keys), rows)


@beside_operands
def rotary_angles(
    positions: wf.Tensor, width: int, base: float | wf.Tensor = 10000.0
) -> tuple[wf.Tensor, wf.Tensor]:
    """Cosine and sine of each position times each of width / 2 frequencies: [time, width / 2].

    >>> cosine, sine = rotary_angles(wf.arange(2), 4)
    >>> cosine.shape, sine[0].tolist()
    ((2, 2), [0.0, 0.0])
    """
    powers = wf.arange(0, width, 2).astype(wf.float32) / width
    logarithm = wf.log(base) if isinstance(base, wf.Tensor) else math.log(base)
    frequencies = wf.exp(powers * -logarithm)
    angles = wf.expand_dims(positions.astype(wf.float32), axis=-1) * frequencies
    return wf.cos(angles), wf.sin(angles)


@unit
def apply_rotary(
    x: wf.Tensor, cosine: wf.Tensor, sine: wf.Tensor, interleaved: bool = False
) -> wf.Tensor:
    """Turn pairs of x [..., time, width] by angles [time, width / 2].

    Pairs are an element of the first half with one of the second, as in GPT-NeoX and Hugging
    Face's Llama; interleaved: neighbours, as in RoFormer and the original Llama.

    >>> x = wf.tensor([[1.0, 0.0]])
    >>> apply_rotary(x, wf.tensor([[0.0]]), wf.tensor([[1.0]])).tolist()
    [[0.0, 1.0]]
    """
    needs_axes("apply_rotary", 1, x=x)
    half = x.shape[-1] // 2
    cosine, sine = cosine.astype(x.dtype), sine.astype(x.dtype)
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x[..., :half], x[..., half:]
    rotated_halves = [first * cosine - second * sine, second * cosine + first * sine]
    if not interleaved:
        return wf.concat(rotated_halves, axis=-1)
    return wf.reshape(wf.stack(rotated_halves, axis=-1), x.shape)


def sinusoidal_positions(positions: wf.Tensor, width: int, base: float = 10000.0) -> wf.Tensor:
    """Sines and cosines, in turn, of each position: [time, width] (Vaswani et al., 2017).

    >>> sinusoidal_positions(wf.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    cosine, sine = rotary_angles(positions, width, base)
    return wf.reshape(wf.stack([sine, cosine], axis=-1), (*positions.shape, width))
