"""What the attention of language models shares: heads taken apart, causal sight, a cache.

>>> import weft as wf
>>> from weft.models.attention import attend, split_heads
>>> q = split_heads(wf.ones((1, 3, 8)), heads=2)
>>> y, cache = attend(q, q, q)
>>> q.shape, y.shape, cache
((1, 2, 3, 4), (1, 3, 8), None)
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft import nn
from weft.nn import functional as F  # noqa: N812

Caches = list[nn.KeyValueCache]


def split_heads(x: wf.Tensor, heads: int) -> wf.Tensor:
    """[batch, time, heads * head] -> [batch, heads, time, head]."""
    batch, time, width = x.shape
    return wf.swapaxes(wf.reshape(x, (batch, time, heads, width // heads)), 1, 2)


def join_heads(x: wf.Tensor) -> wf.Tensor:
    """[batch, heads, time, head] -> [batch, time, heads * head]."""
    batch, heads, time, head = x.shape
    return wf.reshape(wf.swapaxes(x, 1, 2), (batch, time, heads * head))


def attend(
    q: wf.Tensor,
    k: wf.Tensor,
    v: wf.Tensor,
    cache: nn.KeyValueCache | None = None,
    dropout: float = 0.0,
    window: int | None = None,
) -> tuple[wf.Tensor, nn.KeyValueCache | None]:
    """Causal attention: the joined heads [batch, time, width], and the cache with k and v in it.

    q [batch, heads, time, head]; k and v may have fewer heads, shared by groups of q's. With a
    window each position sees so many, its own included.
    """
    if cache is None and window is not None:
        seen = F.causal_mask(q.shape[2], k.shape[2]) & _near_mask(q.shape[2], k.shape[2], 0, window)
        return join_heads(F.scaled_dot_product_attention(q, k, v, seen, dropout=dropout)), None
    if cache is None:
        out = F.scaled_dot_product_attention(q, k, v, causal=True, dropout=dropout)
        return join_heads(out), None
    after = cache.extended(k, v)
    seen = F.causal_mask(q.shape[2], after.key.shape[2], cache.length)  # [time, capacity]
    if window is not None:
        seen = seen & _near_mask(q.shape[2], after.key.shape[2], cache.length, window)
    keys, values = after.key.astype(q.dtype), after.value.astype(q.dtype)
    return join_heads(F.scaled_dot_product_attention(q, keys, values, seen)), after


def _near_mask(queries: Any, keys: Any, start: Any, window: int) -> wf.Tensor:
    """True where the key j is not before the window of the query start + i: [queries, keys]."""
    rows = wf.expand_dims(wf.arange(queries), axis=1) + start
    return wf.greater(wf.arange(keys), rows - window)


def start_of(caches: Caches | None) -> wf.Tensor | int:
    """The position of the first new token: how many a cache holds already."""
    return 0 if caches is None else caches[0].length
