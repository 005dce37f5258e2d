"""The sizes of a GPT, read from a `config.json`, and Hugging Face's names of activations.

>>> from weft.models.gpt_config import GPTConfig
>>> GPTConfig(width=64).context
256
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from weft.models.configuration import number_of, refuse_unless, size_of


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT; `tied` uses the table of tokens as the head, too."""

    vocabulary: int = 65
    width: int = 256
    layers: int = 4
    heads: int = 8
    context: int = 256
    dropout: float = 0.0
    tied: bool = True
    bias: bool = True
    activation: str = "gelu"
    epsilon: float = 1e-5
    hidden: int | None = None

    @property
    def matrix_elements(self) -> int:
        """How many numbers the matrices hold."""
        hidden = self.hidden or 4 * self.width
        layer = 4 * self.width + 2 * hidden
        return self.width * (self.vocabulary + self.context + self.layers * layer)

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in a Hugging Face `config.json` of model_type gpt2.

        >>> sizes = {"vocab_size": 65, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
        >>> GPTConfig.from_json(sizes).activation
        'gelu_tanh'
        """
        refuse_unless(config, "scale_attn_by_inverse_layer_idx", (False,))
        refuse_unless(config, "scale_attn_weights", (True,))
        refuse_unless(config, "activation_function", ACTIVATIONS)
        return cls(
            vocabulary=size_of(config, "vocab_size"),
            width=size_of(config, "n_embd"),
            layers=size_of(config, "n_layer"),
            heads=size_of(config, "n_head"),
            context=size_of(config, "n_positions"),
            dropout=number_of(config, "resid_pdrop", 0.1),
            tied=config.get("tie_word_embeddings", True),
            activation=ACTIVATIONS[config.get("activation_function", "gelu_new")],
            epsilon=number_of(config, "layer_norm_epsilon", 1e-5),
            hidden=None if config.get("n_inner") is None else size_of(config, "n_inner"),
        )


ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}
"""Hugging Face's names of activations, and ours."""
