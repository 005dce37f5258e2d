"""BERT-shaped encoders: every token sees every other one; Hugging Face's names of the weights.

>>> import weft as wf
>>> from weft.models import BERT, BERTConfig
>>> net = BERT(BERTConfig(vocabulary=30, width=8, layers=1, heads=2, hidden=16, context=12)).eval()
>>> net(wf.tensor([[1, 2, 3]])).shape, net.embed(wf.tensor([[1, 2, 3]])).shape
((1, 3, 8), (1, 8))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import weft as wf
from weft import nn
from weft.models.attention import join_heads, split_heads
from weft.models.configuration import number_of, refuse_uneven, refuse_unless, size_of
from weft.models.gpt_config import ACTIVATIONS
from weft.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class BERTConfig:
    """The sizes of a BERT."""

    vocabulary: int = 30522
    width: int = 768
    hidden: int = 3072
    layers: int = 12
    heads: int = 12
    context: int = 512
    types: int = 2
    dropout: float = 0.1
    activation: str = "gelu"
    epsilon: float = 1e-12
    pooler: bool = True

    @property
    def matrix_elements(self) -> int:
        """How many numbers the matrices hold."""
        tables = self.vocabulary + self.context + self.types
        return self.width * (tables + self.layers * (4 * self.width + 2 * self.hidden))

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in a Hugging Face `config.json` of model_type bert.

        >>> sizes = {"vocab_size": 30, "hidden_size": 8, "intermediate_size": 16,
        ...          "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> BERTConfig.from_json(sizes).context
        512
        """
        refuse_unless(config, "position_embedding_type", ("absolute",))
        refuse_unless(config, "hidden_act", ACTIVATIONS)
        width, heads = size_of(config, "hidden_size"), size_of(config, "num_attention_heads")
        refuse_uneven("BERT", width, heads, 1)
        return cls(
            vocabulary=size_of(config, "vocab_size"),
            width=width,
            hidden=size_of(config, "intermediate_size"),
            layers=size_of(config, "num_hidden_layers"),
            heads=heads,
            context=size_of(config, "max_position_embeddings", 512),
            types=size_of(config, "type_vocab_size", 2),
            dropout=number_of(config, "hidden_dropout_prob", 0.1),
            activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
            epsilon=number_of(config, "layer_norm_eps", 1e-12),
        )


class Embeddings(nn.Module):
    """The sum of the embeddings of a token, its position and its sentence's type."""

    def __init__(self, config: BERTConfig) -> None:
        self.word_embeddings = nn.Embedding(config.vocabulary, config.width)
        self.position_embeddings = nn.Embedding(config.context, config.width)
        self.token_type_embeddings = nn.Embedding(config.types, config.width)
        self.LayerNorm = nn.LayerNorm(config.width, config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: wf.Tensor, types: wf.Tensor | None) -> Any:
        """[batch, time] -> [batch, time, width]."""
        x = self.word_embeddings(tokens) + self.position_embeddings(wf.arange(tokens.shape[1]))
        kinds = wf.zeros_like(tokens) if types is None else types
        return self.dropout(self.LayerNorm(x + self.token_type_embeddings(kinds)))


class SelfAttention(nn.Module):
    """Self-attention: projections to queries, keys and values, and their attention."""

    def __init__(self, config: BERTConfig) -> None:
        self.heads, self.p = config.heads, config.dropout
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)

    def forward(self, x: wf.Tensor, seen: wf.Tensor | None) -> wf.Tensor:
        """x [batch, time, width], seen [batch, 1, 1, time] -> [batch, time, width]."""
        q, k, v = (split_heads(f(x), self.heads) for f in (self.query, self.key, self.value))
        drop = self.p if self.training else 0.0
        return join_heads(F.scaled_dot_product_attention(q, k, v, seen, dropout=drop))


class AddedOutput(nn.Module):
    """A projection, added to what went in before, and a norm."""

    def __init__(self, config: BERTConfig, width: int) -> None:
        self.dense = nn.Linear(width, config.width)
        self.LayerNorm = nn.LayerNorm(config.width, config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: wf.Tensor, before: wf.Tensor) -> Any:
        """x [..., width], before [..., config.width] -> [..., config.width]."""
        return self.LayerNorm(self.dropout(self.dense(x)) + before)


class Attention(nn.Module):
    """Self-attention and its output."""

    def __init__(self, config: BERTConfig) -> None:
        self.add_module("self", SelfAttention(config))  # the name in the files
        self.output = AddedOutput(config, config.width)

    def forward(self, x: wf.Tensor, seen: wf.Tensor | None) -> Any:
        """[batch, time, width] -> the same."""
        return self.output(self.self(x, seen), x)


class EncoderLayer(nn.Module):
    """Attention, then a feed-forward network."""

    def __init__(self, config: BERTConfig) -> None:
        self.activation = config.activation
        self.attention = Attention(config)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.width, config.hidden)})
        self.output = AddedOutput(config, config.hidden)

    def forward(self, x: wf.Tensor, seen: wf.Tensor | None) -> Any:
        """[batch, time, width] -> the same."""
        x = self.attention(x, seen)
        return self.output(F.activate(self.activation, self.intermediate["dense"](x)), x)


class BERT(nn.Module):
    """An encoder of text, with Hugging Face's names."""

    def __init__(self, config: BERTConfig) -> None:
        self.config = config
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList([EncoderLayer(config) for _ in range(config.layers)])
        self.encoder = nn.ModuleDict({"layer": layers})
        dense = {"dense": nn.Linear(config.width, config.width)}
        self.pooler = nn.ModuleDict(dense) if config.pooler else None
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self, tokens: wf.Tensor, mask: wf.Tensor | None = None, types: wf.Tensor | None = None
    ) -> Any:
        """tokens [batch, time] -> [batch, time, width]; mask is 0 where there is no token."""
        x = self.embeddings(tokens, types)
        seen = None if mask is None else wf.not_equal(mask, 0)[:, None, None, :]
        for layer in self.encoder.layer:
            x = layer(x, seen)
        return x

    def pooled(self, hidden: wf.Tensor) -> wf.Tensor:
        """What `forward` returned [batch, time, width] -> one vector of each first token."""
        if self.pooler is None:
            raise wf.UnsupportedError(
                "BERT.pooled",
                "this network has no pooler",
                expected="BERTConfig(pooler=True)",
                got={"pooler": False},
                fix="net.embed(tokens, mask): the mean of all tokens",
            )
        return wf.tanh(self.pooler["dense"](hidden[:, 0]))

    def embed(self, tokens: wf.Tensor, mask: wf.Tensor | None = None) -> wf.Tensor:
        """One vector of length 1 for each sentence: the mean of its tokens [batch, width]."""
        hidden = self(tokens, mask)
        counted = wf.ones_like(tokens) if mask is None else mask
        weights = counted.astype(hidden.dtype)[:, :, None]  # [batch, time, 1]
        total = wf.sum(hidden * weights, axis=1)
        return wf.normalize(total / wf.maximum(wf.sum(weights, axis=1), 1e-9), axis=-1)
