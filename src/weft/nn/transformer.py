"""Transformers: encoder and decoder layers, stacks of them, with a cache for generation.

>>> import weft as wf
>>> from weft import nn
>>> layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
>>> nn.TransformerEncoder(layer, num_layers=2)(wf.ones((1, 5, 8))).shape
(1, 5, 8)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn import init
from weft.nn.attention import KeyValueCache, MultiheadAttention
from weft.nn.containers import ModuleList
from weft.nn.dropout import Dropout
from weft.nn.linear import Linear
from weft.nn.module import Module, takes_device
from weft.nn.normalization import LayerNorm


class _TransformerLayer(Module):
    """Self-attention and a feed-forward network, each with a residual sum and a norm."""

    @takes_device
    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        self.activation = F.activation_name(type(self).__name__, activation)
        self.norm_first = norm_first
        shared = {"bias": bias, "batch_first": batch_first, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, **shared)
        self._add_cross_attention(d_model, nhead, dropout, shared)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        for number in range(1, self._sublayers() + 1):
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
            setattr(self, f"norm{number}", norm)
            setattr(self, f"dropout{number}", Dropout(dropout))

    def _add_cross_attention(self, width: int, heads: int, dropout: float, shared: Any) -> None:
        """Add the second attention, over the encoder's output, that a decoder has."""

    def _sublayers(self) -> int:
        return 2

    def _apply_sublayer(self, number: int, x: wf.Tensor, sublayer: Any) -> wf.Tensor:
        """A sublayer with its norm and residual sum: before it or after it."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return wf.add(x, dropout(sublayer(norm(x))))
        return norm(x + dropout(sublayer(x)))  # type: ignore[no-any-return]

    def _attention_sublayer(
        self,
        mask: wf.Tensor | None,
        padding: wf.Tensor | None,
        is_causal: bool,
        cache: KeyValueCache | None,
        kept: list[Any],
    ) -> Callable[[wf.Tensor], wf.Tensor]:
        """Self-attention as a sublayer; what the cache is afterwards is appended to `kept`."""

        def attend(x: wf.Tensor) -> wf.Tensor:
            masks = {"attn_mask": mask, "key_padding_mask": padding}
            y, after = self.self_attn(x, is_causal=is_causal, cache=cache, **masks)
            kept.append(after)
            return y  # type: ignore[no-any-return]

        return attend

    def _feed_forward(self, x: wf.Tensor) -> wf.Tensor:
        hidden = F.activate(self.activation, self.linear1(x))
        return self.linear2(self.dropout(hidden))  # type: ignore[no-any-return]

    def new_cache(self, batch: int, capacity: int, dtype: Any = None) -> KeyValueCache:
        """A cache for the layer's self-attention."""
        return self.self_attn.new_cache(batch, capacity, dtype)


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention, then a feed-forward network.

    With `is_causal` or a cache it is the layer of a language model.

    >>> layer = TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    >>> y, cache = layer(wf.ones((1, 3, 4)), cache=layer.new_cache(1, 16))
    >>> y.shape, cache.length.item()
    ((1, 3, 4), 3)
    """

    def forward(
        self,
        src: wf.Tensor,
        src_mask: wf.Tensor | None = None,
        src_key_padding_mask: wf.Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Any:
        """[time, batch, width], or as `batch_first` says; with a cache also the next cache."""
        caches_after: list[Any] = []
        attend = self._attention_sublayer(
            src_mask, src_key_padding_mask, is_causal, cache, caches_after
        )
        x = self._apply_sublayer(2, self._apply_sublayer(1, src, attend), self._feed_forward)
        return x if cache is None else (x, caches_after[0])


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to the encoder's output, then a feed-forward network.

    >>> layer = TransformerDecoderLayer(4, 2, 8, batch_first=True)
    >>> layer(wf.ones((1, 3, 4)), wf.ones((1, 5, 4)), tgt_is_causal=True).shape
    (1, 3, 4)
    """

    def _add_cross_attention(self, width: int, heads: int, dropout: float, shared: Any) -> None:
        self.multihead_attn = MultiheadAttention(width, heads, dropout, **shared)

    def _sublayers(self) -> int:
        return 3

    def forward(
        self,
        tgt: wf.Tensor,
        memory: wf.Tensor,
        tgt_mask: wf.Tensor | None = None,
        memory_mask: wf.Tensor | None = None,
        tgt_key_padding_mask: wf.Tensor | None = None,
        memory_key_padding_mask: wf.Tensor | None = None,
        tgt_is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Any:
        """tgt attends to itself and to memory; with a cache the result has the next one, too."""
        caches_after: list[Any] = []
        attend = self._attention_sublayer(
            tgt_mask, tgt_key_padding_mask, tgt_is_causal, cache, caches_after
        )

        def attend_memory(x: wf.Tensor) -> wf.Tensor:
            masks = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
            return self.multihead_attn(x, memory, memory, **masks)[0]  # type: ignore[no-any-return]

        x = self._apply_sublayer(2, self._apply_sublayer(1, tgt, attend), attend_memory)
        x = self._apply_sublayer(3, x, self._feed_forward)
        return x if cache is None else (x, caches_after[0])


class _Stack(Module):
    """Copies of a layer, one after the other, and a norm at the end."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def new_cache(self, batch: int, capacity: int, dtype: Any = None) -> list[KeyValueCache]:
        """A cache for each layer."""
        return [layer.new_cache(batch, capacity, dtype) for layer in self.layers]

    def _apply_layers(self, x: wf.Tensor, caches: Any, *args: Any, **options: Any) -> Any:
        after = []
        for number, layer in enumerate(self.layers):
            if caches is None:
                x = layer(x, *args, **options)
            else:
                x, cache = layer(x, *args, cache=caches[number], **options)
                after.append(cache)
        x = x if self.norm is None else self.norm(x)
        return x if caches is None else (x, after)


class TransformerEncoder(_Stack):
    """A stack of encoder layers; the layers begin as copies of the one given.

    >>> stack = TransformerEncoder(TransformerEncoderLayer(4, 2, 8), 3)
    >>> sum(name.endswith("linear1.weight") for name in stack.state_dict())
    3
    """

    def forward(
        self,
        src: wf.Tensor,
        mask: wf.Tensor | None = None,
        src_key_padding_mask: wf.Tensor | None = None,
        is_causal: bool = False,
        cache: list[KeyValueCache] | None = None,
    ) -> Any:
        """Through all layers; with caches, also the next caches."""
        options = {"src_key_padding_mask": src_key_padding_mask, "is_causal": is_causal}
        return self._apply_layers(src, cache, src_mask=mask, **options)


class TransformerDecoder(_Stack):
    """A stack of decoder layers; the layers begin as copies of the one given.

    >>> from weft.nn import TransformerDecoderLayer
    >>> decoder = TransformerDecoder(TransformerDecoderLayer(8, 2, 16, batch_first=True), 2)
    >>> decoder(wf.ones((1, 3, 8)), wf.ones((1, 5, 8))).shape
    (1, 3, 8)
    """

    def forward(
        self,
        tgt: wf.Tensor,
        memory: wf.Tensor,
        tgt_mask: wf.Tensor | None = None,
        memory_mask: wf.Tensor | None = None,
        tgt_key_padding_mask: wf.Tensor | None = None,
        memory_key_padding_mask: wf.Tensor | None = None,
        tgt_is_causal: bool = False,
        cache: list[KeyValueCache] | None = None,
    ) -> Any:
        """Through all layers; with caches, also the next caches."""
        masks = {
            "tgt_mask": tgt_mask,
            "memory_mask": memory_mask,
            "tgt_key_padding_mask": tgt_key_padding_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
        }
        return self._apply_layers(tgt, cache, memory, tgt_is_causal=tgt_is_causal, **masks)


class Transformer(Module):
    """An encoder and a decoder (Vaswani et al., 2017).

    >>> net = Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> net(wf.ones((1, 4, 8)), wf.ones((1, 3, 8)), tgt_is_causal=True).shape
    (1, 3, 8)
    """

    @takes_device
    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        sizes = d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps
        options = batch_first, norm_first, bias, dtype
        encoder = TransformerEncoderLayer(*sizes, *options)
        decoder = TransformerDecoderLayer(*sizes, *options)
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype) for _ in range(2)]
        self.encoder = TransformerEncoder(encoder, num_encoder_layers, norms[0])
        self.decoder = TransformerDecoder(decoder, num_decoder_layers, norms[1])
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: wf.Tensor,
        tgt: wf.Tensor,
        src_mask: wf.Tensor | None = None,
        tgt_mask: wf.Tensor | None = None,
        memory_mask: wf.Tensor | None = None,
        src_key_padding_mask: wf.Tensor | None = None,
        tgt_key_padding_mask: wf.Tensor | None = None,
        memory_key_padding_mask: wf.Tensor | None = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
    ) -> wf.Tensor:
        """The decoder's output for tgt, given src."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
        )
