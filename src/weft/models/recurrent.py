"""A language model of long short-term memories.

>>> import weft as wf
>>> from weft.models import LSTMLanguageModel
>>> net = LSTMLanguageModel(vocabulary=27, width=8, layers=2)
>>> net(wf.tensor([[1, 2, 3]])).shape, net.generate([0], 5).shape
((1, 3, 27), (6,))
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft import nn
from weft.models.generation import LanguageModel
from weft.nn import functional as F  # noqa: N812
from weft.precision import without_float8


class LSTMLanguageModel(LanguageModel):
    """Tokens to vectors, through LSTMs, to what may come next; tied: one table for both."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        self.context = 0  # the state has no length
        self.width, self.layers = width, layers
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)
        if tied:
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
            self.head.weight = self.embedding.weight

    def forward(self, tokens: wf.Tensor, cache: Any = None) -> Any:
        """tokens [batch, time] -> logits [batch, time, vocabulary]; with a state also the next."""
        x = self.dropout(self.embedding(tokens))  # [batch, time, width]
        y, state = self.lstm(x, cache)
        with without_float8():
            logits = F.linear(self.dropout(y), self.head.weight, self.head.bias)
        return logits if cache is None else (logits, state)

    def new_cache(self, batch: int, capacity: int) -> Any:
        """The state before the first token: it needs no room."""
        weight, sizes = self.head.weight, (self.layers, batch, self.width)
        zeros = wf.zeros(sizes, dtype=weight.dtype, device=weight.device)
        return zeros, zeros.clone()
