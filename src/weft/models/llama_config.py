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

import weft as wf
from weft.models.configuration import (
    field_of,
    number_of,
    refuse_uneven,
    refuse_unless,
    size_of,
)


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
    input_bias: bool = False
    """Whether queries, keys and values have a bias where the output has none, as in Qwen 2."""
    head_norm: bool = False
    """Whether each head of queries and keys is normalised, as in Qwen 3."""
    windows: tuple[int | None, ...] = ()
    """How many positions each layer sees, its own included, as in Mistral; None or nothing: all."""

    @property
    def head_width(self) -> int:
        """The width of one head."""
        return self.head or self.width // self.heads

    @property
    def matrix_elements(self) -> int:
        """How many numbers the matrices hold."""
        layer = 3 * self.hidden + 2 * self.head_width * (self.heads + self.kv_heads)
        return self.width * (self.vocabulary + self.layers * layer)

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in a Hugging Face `config.json` of model_type llama, mistral, qwen2 or qwen3.

        >>> sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
        ...          "num_hidden_layers": 1, "num_attention_heads": 4}
        >>> LlamaConfig.from_json(sizes).kv_heads
        4
        """
        context = size_of(config, "max_position_embeddings", 2048)
        refuse_unless(config, "hidden_act", ("silu", None))
        kind = config.get("model_type")
        heads, width = size_of(config, "num_attention_heads"), size_of(config, "hidden_size")
        given = {name: value for name, value in config.items() if value is not None}
        shared = size_of(given, "num_key_value_heads", heads)
        head = size_of(given, "head_dim") if "head_dim" in given else None
        refuse_uneven("Llama", width if head is None else heads, heads, shared)
        rope = _rope(config)
        return cls(
            vocabulary=size_of(config, "vocab_size"),
            width=width,
            hidden=size_of(config, "intermediate_size"),
            layers=size_of(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=shared,
            context=context,
            epsilon=number_of(config, "rms_norm_eps", 1e-6),
            rope_base=number_of(rope, "rope_theta", 10000.0) or 10000.0,
            scaling=_scaling(rope),
            head=head,
            attention_bias=config.get("attention_bias", False),
            mlp_bias=config.get("mlp_bias", False),
            tied=config.get("tie_word_embeddings", False),
            input_bias=kind == "qwen2",
            head_norm=kind == "qwen3",
            windows=_windows(config, context),
        )


def _windows(config: Mapping[str, Any], context: int) -> tuple[int | None, ...]:
    """How far each layer sees: in Mistral all alike, in Qwen the last ones, where it is asked for.

    >>> _windows({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 8}, 32)
    (8, 8)
    """
    kind, layers = config.get("model_type"), size_of(config, "num_hidden_layers")
    is_qwen = kind in ("qwen2", "qwen3")
    if not config.get("use_sliding_window", not is_qwen):
        return ()
    if kind != "mistral" and not is_qwen:
        refuse_unless(config, "sliding_window", (None, context))
    if config.get("sliding_window") is None or size_of(config, "sliding_window") >= context:
        return ()
    first = size_of(config, "max_window_layers", layers, least=0) if is_qwen else 0
    kinds = ["full_attention"] * first + ["sliding_attention"] * max(0, layers - first)
    kinds = config.get("layer_types") or kinds
    known = {"full_attention", "sliding_attention"}
    if not isinstance(kinds, list) or len(kinds) != layers or not known.issuperset(kinds):
        raise wf.ArgumentError(
            "config.json",
            "layer_types does not say of each layer how far it sees",
            expected=f"{layers} times full_attention or sliding_attention",
            got={"layer_types": kinds},
            fix="copy the whole config.json of the model",
        )
    window = size_of(config, "sliding_window")
    return tuple(window if each == "sliding_attention" else None for each in kinds)


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says about rotary positions, in its old form or the new one."""
    settings = {"rope_theta": config.get("rope_theta")}
    for name in ("rope_scaling", "rope_parameters"):
        refuse_unless({name: type(config.get(name))}, name, (dict, type(None)))
        settings |= config.get(name) or {}
    return {name: value for name, value in settings.items() if value is not None}


def _scaling(rope: Mapping[str, Any]) -> tuple[float, float, float, float] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    refuse_unless({"rope_type": kind}, "rope_type", ("default", "llama3", "linear"))
    if kind == "default":
        return None
    field_of(rope, "factor")
    factor = number_of(rope, "factor", 1.0) or 1.0
    if kind == "linear":  # every wave is long
        return factor, 1.0, 1.0, 0.0
    names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for name in names:
        field_of(rope, name)
    low, high, original = (number_of(rope, name, 0.0) for name in names)
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
