"""Attention with several heads, with a cache of keys and values for generation.

Masks are PyTorch's: truth values say what is hidden, numbers are added to the scores.

>>> import weft as wf
>>> from weft import nn
>>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
>>> y, _ = attention(wf.ones((1, 5, 8)), is_causal=True)
>>> y.shape
(1, 5, 8)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn import init
from weft.nn.functional.attention import repeated_heads
from weft.nn.functional.checks import refuse_whole_masks, values_of
from weft.nn.linear import Linear
from weft.nn.module import Module, Parameter, takes_device


class KeyValueCache(NamedTuple):
    """Keys and values of the positions seen so far, with room for more: a tree of tensors.

    Its shapes never change, so that all steps of a generation are one compiled program.

    >>> KeyValueCache.empty(batch=1, heads=2, capacity=16, head=4).length.item()
    0
    """

    key: wf.Tensor  # [batch, heads, capacity, head]
    value: wf.Tensor  # [batch, heads, capacity, head]
    length: wf.Tensor  # []: how many positions are filled

    @classmethod
    def empty(
        cls,
        batch: int,
        heads: int,
        capacity: int,
        head: int,
        dtype: Any = None,
        device: Any = None,
    ) -> KeyValueCache:
        """A cache that holds nothing yet.

        >>> KeyValueCache.empty(1, 2, 16, 4).key.shape
        (1, 2, 16, 4)
        """
        room = wf.zeros((batch, heads, capacity, head), dtype=dtype, device=device)
        return cls(room, room.clone(), wf.zeros((), dtype=wf.int64, device=device))

    def extended(self, key: wf.Tensor, value: wf.Tensor) -> KeyValueCache:
        """The cache with more positions: key and value [batch, heads, time, head].

        More than there is room for is an error, when compiled too: writes are checked.
        """
        time, capacity = key.shape[-2], self.key.shape[-2]
        filled = values_of(self.length)
        if filled is not None and int(filled) + time > capacity:
            raise wf.BoundsError(
                "KeyValueCache",
                "the cache is full",
                expected=f"at most {capacity} positions",
                got={"length": int(filled), "new": time},
                fix=f"make room: new_cache(batch, capacity={int(filled) + time})",
            )
        places = self.length + wf.arange(time)
        key = wf.index_copy(self.key, 2, places, key.astype(self.key.dtype))
        value = wf.index_copy(self.value, 2, places, value.astype(self.value.dtype))
        return KeyValueCache(key, value, self.length + time)


class MultiheadAttention(Module):
    """Attention of several heads at once, between projections (Vaswani et al., 2017).

    num_kv_heads: keys and values have that many heads, each shared by a group of the queries'.
    rotary: a `RotaryPosition` that turns queries and keys.

    >>> net = MultiheadAttention(8, 4, num_kv_heads=2)
    >>> net.in_proj_weight.shape, net(wf.ones((3, 1, 8)))[0].shape
    ((16, 8), (3, 1, 8))
    """

    @takes_device
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        num_kv_heads: int | None = None,
        rotary: Module | None = None,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_heads(embed_dim, num_heads, kv_heads)
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.dropout, self.batch_first, self.rotary = dropout, batch_first, rotary
        self.head_dim = embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self._make_weights(bias, dtype)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    @property
    def projected_widths(self) -> tuple[int, int, int]:
        """How wide projected queries, keys and values are: fewer heads may be left than begun."""
        shared = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, shared, shared

    def _make_weights(self, bias: bool, dtype: Any) -> None:
        """One weight for all three projections where they take the same width; PyTorch's names."""
        q, k, v = self.projected_widths
        self.in_proj_weight = self.q_proj_weight = None
        self.k_proj_weight = self.v_proj_weight = None
        if self.kdim == self.vdim == self.embed_dim:
            self.in_proj_weight = self._new_weight((q + k + v, self.embed_dim), dtype)
        else:
            self.q_proj_weight = self._new_weight((q, self.embed_dim), dtype)
            self.k_proj_weight = self._new_weight((k, self.kdim), dtype)
            self.v_proj_weight = self._new_weight((v, self.vdim), dtype)
        self.in_proj_bias = Parameter(wf.zeros(q + k + v, dtype=dtype)) if bias else None

    def _new_weight(self, shape: tuple[int, int], dtype: Any) -> wf.Tensor:
        return init.xavier_uniform_(Parameter(wf.empty(shape, dtype=dtype)))

    def new_cache(self, batch: int, capacity: int, dtype: Any = None) -> KeyValueCache:
        """A cache for `forward(x, cache=...)`, with room for `capacity` positions."""
        sizes = batch, self.num_kv_heads, capacity, self.head_dim
        return KeyValueCache.empty(*sizes, dtype, self.out_proj.weight.device)

    def forward(
        self,
        query: wf.Tensor,
        key: wf.Tensor | None = None,
        value: wf.Tensor | None = None,
        key_padding_mask: wf.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: wf.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> tuple[wf.Tensor, Any]:
        """The output and, if needed, the weights [batch, queries, keys]; with a cache, the next.

        query [queries, batch, embed], or [batch, queries, embed] with batch_first, or without
        batch; key and value likewise, the query by default. key_padding_mask [batch, keys] is True
        where a key does not count; attn_mask [queries, keys] or [batch * heads, queries, keys] is
        True where a query does not see a key. is_causal: a query sees no later key, mask or not, as
        with a cache.
        """
        key = query if key is None else key
        value = key if value is None else value
        alone = query.ndim == 2
        self._check(query, key, value)
        q, k, v = self._project_heads(*(self._batch_first(x, alone) for x in (query, key, value)))
        drop = self.dropout if self.training else 0.0
        if cache is not None:
            other = key is not query or value is not query or need_weights
            _check_cached(other or attn_mask is not None or key_padding_mask is not None)
            return self._with_cache(q, k, v, cache, alone, drop)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        mask = self._mask(q, k, key_padding_mask, attn_mask, alone)
        if not need_weights:
            out = F.scaled_dot_product_attention(q, k, v, mask, causal=is_causal, dropout=drop)
            return self._join_heads(out, alone), None
        weights = F.attention_weights(q, k, mask, causal=is_causal)
        dropped = F.dropout(weights, drop, self.training)
        out = self._join_heads(dropped @ repeated_heads(v, q), alone)
        weights_to_return = wf.mean(weights, axis=1) if average_attn_weights else weights
        return out, weights_to_return[0] if alone else weights_to_return

    def _check(self, query: wf.Tensor, key: wf.Tensor, value: wf.Tensor) -> None:
        widths = (self.embed_dim, self.kdim, self.vdim)
        given = {"query": query, "key": key, "value": value}
        fits = query.ndim in (2, 3) and query.ndim == key.ndim == value.ndim
        if not fits or any(x.shape[-1] != w for x, w in zip(given.values(), widths, strict=True)):
            order = "batch, time" if self.batch_first else "time, batch"
            raise wf.ShapeError(
                "MultiheadAttention",
                "queries, keys or values do not have the widths of this layer",
                expected=f"[{order}, width] with widths {widths}",
                got=given,
                fix=f"MultiheadAttention({query.shape[-1] if query.ndim else 1}, num_heads)",
            )

    def _batch_first(self, x: wf.Tensor, alone: bool) -> wf.Tensor:
        """[batch, time, width]."""
        if alone:
            return wf.expand_dims(x, axis=0)
        return x if self.batch_first else wf.swapaxes(x, 0, 1)

    def _project_heads(
        self, query: wf.Tensor, key: wf.Tensor, value: wf.Tensor
    ) -> tuple[wf.Tensor, wf.Tensor, wf.Tensor]:
        """Queries, keys and values: [batch, heads, time, head]."""
        q, k, _ = self.projected_widths
        bias = self.in_proj_bias
        if query is key and key is value and self.in_proj_weight is not None:
            joint = F.linear(query, self.in_proj_weight, bias)
            parts = joint[..., :q], joint[..., q : q + k], joint[..., q + k :]
        else:
            biases = (None,) * 3 if bias is None else (bias[:q], bias[q : q + k], bias[q + k :])
            rows = zip((query, key, value), self._split_weights(), biases, strict=True)
            first, second, third = (F.linear(*row) for row in rows)
            parts = first, second, third
        return self._heads(parts[0]), self._heads(parts[1]), self._heads(parts[2])

    def _split_weights(self) -> tuple[Any, Any, Any]:
        q, k, _ = self.projected_widths
        joint = self.in_proj_weight
        if joint is None:
            return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        return joint[:q], joint[q : q + k], joint[q + k :]

    def _heads(self, x: wf.Tensor) -> wf.Tensor:
        heads = int(x.shape[2]) // self.head_dim
        split = wf.reshape(x, (*x.shape[:2], heads, self.head_dim))
        return wf.swapaxes(split, 1, 2)

    def _join_heads(self, out: wf.Tensor, alone: bool) -> wf.Tensor:
        """[batch, heads, time, head] -> the projected output, in the input's layout."""
        heads_side_by_side = wf.reshape(
            wf.swapaxes(out, 1, 2), (out.shape[0], out.shape[2], self.projected_widths[0])
        )
        y = self.out_proj(heads_side_by_side)
        if alone:
            return wf.squeeze(y, axis=0)
        return y if self.batch_first else wf.swapaxes(y, 0, 1)

    def _with_cache(
        self,
        q: wf.Tensor,
        k: wf.Tensor,
        v: wf.Tensor,
        cache: KeyValueCache,
        alone: bool,
        drop: float,
    ) -> tuple[wf.Tensor, KeyValueCache]:
        if self.rotary is not None:
            q, k = self.rotary(q, cache.length), self.rotary(k, cache.length)
        after = cache.extended(k, v)
        seen = F.causal_mask(q.shape[2], after.key.shape[2], cache.length)
        keys, values = after.key.astype(q.dtype), after.value.astype(q.dtype)
        out = F.scaled_dot_product_attention(q, keys, values, seen, dropout=drop)
        return self._join_heads(out, alone), after

    def _mask(
        self,
        q: wf.Tensor,
        k: wf.Tensor,
        padding: wf.Tensor | None,
        given: wf.Tensor | None,
        alone: bool,
    ) -> wf.Tensor | None:
        """What a query sees, or what is added to its scores: [batch or 1, heads or 1, q, k]."""
        masks = []
        if given is not None:
            refuse_whole_masks("MultiheadAttention", "attn_mask", given, "mask == 0")
            shaped = given
            if given.ndim == 3:
                whole = (given.shape[0] // self.num_heads, self.num_heads)
                shaped = wf.reshape(given, (*whole, q.shape[2], k.shape[2]))
            masks.append(shaped)
        if padding is not None:
            _check_padding(padding, k, alone)
            masks.append(wf.reshape(padding, (k.shape[0], 1, 1, k.shape[2])))
        if not masks:
            return None
        if all(mask.dtype is wf.bool for mask in masks):
            hidden = masks[0] if len(masks) == 1 else masks[0] | masks[1]
            return wf.logical_not(hidden)
        added = [_as_scores(mask, q.dtype) for mask in masks]
        return added[0] if len(added) == 1 else added[0] + added[1]

    def extra_repr(self) -> str:
        """See `Module`."""
        groups = "" if self.num_kv_heads == self.num_heads else f", {self.num_kv_heads} shared"
        return f"{self.embed_dim}, num_heads={self.num_heads}{groups}, dropout={self.dropout}"


def _check_cached(more: bool) -> None:
    if more:
        raise wf.UnsupportedError(
            "MultiheadAttention",
            "a cache is for causal self-attention, without other masks",
            expected="attention(x, cache=cache)",
            got={"given": "a cache with other keys, with a mask, or with need_weights"},
            fix="leave the masks out, or compute without a cache",
        )


def _check_padding(padding: wf.Tensor, k: wf.Tensor, alone: bool) -> None:
    refuse_whole_masks("MultiheadAttention", "key_padding_mask", padding, "mask == 0")
    batch, keys = k.shape[0], k.shape[2]
    wanted = (keys,) if alone else (batch, keys)
    if padding.shape != wanted:
        is_turned = padding.shape == wanted[::-1]
        raise wf.ShapeError(
            "MultiheadAttention",
            "key_padding_mask has not one value for each key of each example",
            expected=f"[keys] = {wanted}" if alone else f"[batch, keys] = {wanted}, in any layout",
            got={"key_padding_mask": padding},
            fix="key_padding_mask.mT" if is_turned else f"wf.zeros({wanted}, dtype=wf.bool)",
        )


def _as_scores(mask: wf.Tensor, dtype: wf.DType) -> wf.Tensor:
    if mask.dtype is wf.bool:
        return wf.where(mask, -wf.inf, 0.0).astype(dtype)
    return mask.astype(dtype)


def _check_heads(embed_dim: int, num_heads: int, kv_heads: int) -> None:
    if num_heads < 1 or embed_dim % num_heads or kv_heads < 1 or num_heads % kv_heads:
        raise wf.ArgumentError(
            "MultiheadAttention",
            "the width cannot be divided into the heads, or the heads into groups",
            expected="embed_dim % num_heads == 0 and num_heads % num_kv_heads == 0",
            got={"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": kv_heads},
            fix="num_heads=1",
        )
