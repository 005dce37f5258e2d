"""Sequence to sequence: a Transformer that reads one sequence and writes another.

>>> import weft as wf
>>> from weft.models import Seq2Seq
>>> net = Seq2Seq(source=20, target=20, width=16, heads=2, layers=1).eval()
>>> net(wf.tensor([[3, 4, 5]]), wf.tensor([[1, 3]])).shape
(1, 2, 20)
>>> net.translate(wf.tensor([[3, 4, 5]]), begin=1, end=2, longest=6).shape[0]
1
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft as wf
from weft import nn
from weft.models.attention import Caches
from weft.precision import without_float8


class Seq2Seq(nn.Module):
    """An encoder and a decoder over tokens; the token `padding` is not looked at."""

    def __init__(
        self,
        source: int,
        target: int,
        width: int = 128,
        heads: int = 4,
        layers: int = 2,
        hidden: int | None = None,
        dropout: float = 0.1,
        padding: int = 0,
    ) -> None:
        self.width, self.padding = width, padding
        self.source, self.target = nn.Embedding(source, width), nn.Embedding(target, width)
        self.positions = nn.SinusoidalPosition(width)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            width, heads, layers, layers, hidden or 4 * width, dropout,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.head = nn.Linear(width, target)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=width**-0.5)

    def forward(self, source: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
        """source [batch, n], target [batch, m] -> what follows each of target [batch, m, words]."""
        memory, hidden = self.encode(source)
        decoded = self.transformer.decoder(
            self._embed_tokens(self.target, target),
            memory,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        with without_float8():
            y: wf.Tensor = self.head(decoded)
        return y

    def encode(self, source: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        """What source becomes [batch, n, width], and where it is padding [batch, n]."""
        hidden = wf.equal(source, self.padding)
        embedded = self._embed_tokens(self.source, source)
        return self.transformer.encoder(embedded, src_key_padding_mask=hidden), hidden

    def decode(
        self, token: wf.Tensor, memory: wf.Tensor, hidden: wf.Tensor, cache: Caches
    ) -> tuple[wf.Tensor, Caches]:
        """One more token [batch] -> what may follow [batch, words], and the next cache."""
        x = self._embed_tokens(self.target, wf.expand_dims(token, axis=1), cache[0].length)
        decoded, cache = self.transformer.decoder(
            x, memory, memory_key_padding_mask=hidden, cache=cache
        )
        with without_float8():
            return self.head(decoded[:, -1]), cache

    def _embed_tokens(self, table: nn.Module, tokens: wf.Tensor, start: Any = 0) -> Any:
        return self.dropout(self.positions(table(tokens) * math.sqrt(self.width), start))

    def translate(self, source: wf.Tensor, begin: int, end: int, longest: int) -> wf.Tensor:
        """The likeliest words one after the other, padded after the end: [batch, time]."""
        batch = int(source.shape[0])
        with nn.evaluation_mode(self), wf.no_grad():
            return self._translate_batch(wf.asarray(source), batch, begin, end, longest)

    def _translate_batch(
        self, source: wf.Tensor, batch: int, begin: int, end: int, longest: int
    ) -> wf.Tensor:
        memory, hidden = self.encode(source)
        cache = self.transformer.decoder.new_cache(batch, longest)
        token = wf.full((batch,), begin, device=memory.device)
        ended = np.zeros(batch, bool)
        columns: list[Any] = []
        while len(columns) < longest and not ended.all():
            token, cache = word_step(self, token, memory, hidden, cache)
            columns.append(np.where(ended, self.padding, token.numpy()))
            ended |= columns[-1] == end
        return wf.asarray(np.stack(columns, axis=1), device=memory.device)


@wf.jit  # type: ignore[untyped-decorator]
def word_step(
    net: Seq2Seq, token: wf.Tensor, memory: wf.Tensor, hidden: wf.Tensor, cache: Caches
) -> tuple[wf.Tensor, Caches]:
    """The likeliest word after `token` [batch], and the next cache: compiled once."""
    scores, cache = net.decode(token, memory, hidden, cache)
    return wf.argmax(scores, axis=-1), cache
