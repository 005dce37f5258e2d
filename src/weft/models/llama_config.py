"""The sizes of a Llama, read from a `config.json`, and how fast its positions turn.

>>> from weft.models.llama_config import LlamaConfig
>>> LlamaConfig(width=64, heads=8).head_width
8
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from weft.models.configuration import field_of, refuse_unless


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama; `scaling` is Llama 3's (factor, low, high, original context)."""

    vocabulary: int = 32000
    width: int = 4096
    hidden: int = 11008
    layers: int = 32
    heads: int = 32
    kv_heads: int = 32
    context: int = 2048
    epsilon: float = 1e-5
    rope_base: float = 10000.0
    scaling: tuple[float, float, float, float] | None = None
    head: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False

    @property
    def head_width(self) -> int:
        """The width of one head."""
        return self.head or self.width // self.heads

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in a Hugging Face `config.json` of model_type llama or mistral.

        >>> sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
        ...          "num_hidden_layers": 1, "num_attention_heads": 4}
        >>> LlamaConfig.from_json(sizes).kv_heads
        4
        """
        context = config.get("max_position_embeddings", 2048)
        refuse_unless(config, "hidden_act", ("silu", None))
        refuse_unless(config, "sliding_window", (None, *range(context, context + 1)))
        heads = field_of(config, "num_attention_heads")
        return cls(
            vocabulary=field_of(config, "vocab_size"),
            width=field_of(config, "hidden_size"),
            hidden=field_of(config, "intermediate_size"),
            layers=field_of(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            context=context,
            epsilon=config.get("rms_norm_eps", 1e-6),
            rope_base=_rope(config).get("rope_theta") or 10000.0,
            scaling=_scaling(_rope(config)),
            head=config.get("head_dim"),
            attention_bias=config.get("attention_bias", False),
            mlp_bias=config.get("mlp_bias", False),
            tied=config.get("tie_word_embeddings", False),
        )


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says about rotary positions, in its old form or the new one."""
    old = {"rope_theta": config.get("rope_theta")}
    return old | (config.get("rope_scaling") or {}) | (config.get("rope_parameters") or {})


def _scaling(rope: Mapping[str, Any]) -> tuple[float, float, float, float] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    refuse_unless({"rope_type": kind}, "rope_type", ("default", "llama3", "linear"))
    if kind == "default":
        return None
    factor = float(field_of(rope, "factor"))
    if kind == "linear":  # every wave is long
        return factor, 1.0, 1.0, 0.0
    names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    low, high, original = (float(field_of(rope, name)) for name in names)
    return factor, low, high, original


def rope_frequencies(config: LlamaConfig) -> np.ndarray[Any, Any]:
    """How fast each pair of a head turns: [head / 2]; Llama 3 slows long waves by a factor.

    >>> rope_frequencies(LlamaConfig(width=8, heads=2)).tolist()
    [1.0, 0.009999999776482582]
    """
    width = config.head_width
    frequencies = config.rope_base ** (-np.arange(0, width, 2) / width)
    if config.scaling is None:
        return frequencies.astype(np.float32)
    factor, low, high, original = config.scaling
    if high == low:
        return (frequencies / factor).astype(np.float32)
    waves = original * frequencies / (2 * math.pi)  # how many fit into the original context
    kept = np.clip((waves - low) / (high - low), 0.0, 1.0)
    return (frequencies * (kept + (1 - kept) / factor)).astype(np.float32)
