"""CLIP: a text and a picture as vectors of one space; Hugging Face's names of the weights.

>>> import weft as wf
>>> from weft.models import CLIP, CLIPConfig, ViTConfig
>>> from weft.models.clip import TextConfig
>>> text = TextConfig(vocabulary=20, width=8, layers=1, heads=2, hidden=16, context=6)
>>> vision = ViTConfig(image=8, patch=4, width=8, layers=1, heads=2, hidden=16)
>>> net = CLIP(CLIPConfig(text, vision, shared=4)).eval()
>>> net.encode_text(wf.tensor([[1, 2, 19]])).shape, net.encode_image(wf.ones((1, 3, 8, 8))).shape
((1, 4), (1, 4))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import weft as wf
from weft import nn
from weft.models.configuration import field_of, number_of, refuse_uneven, refuse_unless, size_of
from weft.models.encoder_layers import ProjectedAttention, activate
from weft.models.gpt_config import ACTIVATIONS
from weft.models.vit import ViTConfig

NAMES = {**ACTIVATIONS, "quick_gelu": "quick_gelu"}
LEGACY_END = 2
"""The end token of old configurations, which stands for the largest token of a text."""


@dataclass(frozen=True)
class TextConfig:
    """The sizes of CLIP's encoder of texts."""

    vocabulary: int = 49408
    width: int = 512
    hidden: int = 2048
    layers: int = 12
    heads: int = 8
    context: int = 77
    end: int = LEGACY_END
    activation: str = "quick_gelu"
    epsilon: float = 1e-5


@dataclass(frozen=True)
class CLIPConfig:
    """The sizes of both encoders, and of the space that they share."""

    text: TextConfig
    vision: ViTConfig
    shared: int = 512

    @property
    def matrix_elements(self) -> int:
        """How many numbers the matrices hold."""
        text, vision = self.text, self.vision
        layers = text.layers * (4 * text.width + 2 * text.hidden)
        table = text.vocabulary + text.context
        joint = self.shared * (text.width + vision.width)
        return text.width * (table + layers) + vision.matrix_elements + joint

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in a Hugging Face `config.json` of model_type clip."""
        return cls(
            _text_sizes(field_of(config, "text_config")),
            _vision_sizes(field_of(config, "vision_config")),
            size_of(config, "projection_dim", 512),
        )


def _text_sizes(config: Mapping[str, Any]) -> TextConfig:
    refuse_unless(config, "hidden_act", NAMES)
    width, heads = size_of(config, "hidden_size", 512), size_of(config, "num_attention_heads", 8)
    refuse_uneven("CLIP", width, heads, 1)
    return TextConfig(
        vocabulary=size_of(config, "vocab_size", 49408),
        width=width,
        hidden=size_of(config, "intermediate_size", 2048),
        layers=size_of(config, "num_hidden_layers", 12),
        heads=heads,
        context=size_of(config, "max_position_embeddings", 77),
        end=size_of(config, "eos_token_id", 49407),
        activation=NAMES[config.get("hidden_act", "quick_gelu")],
        epsilon=number_of(config, "layer_norm_eps", 1e-5),
    )


def _vision_sizes(config: Mapping[str, Any]) -> ViTConfig:
    refuse_unless(config, "hidden_act", NAMES)
    width, heads = size_of(config, "hidden_size", 768), size_of(config, "num_attention_heads", 12)
    refuse_uneven("CLIP", width, heads, 1)
    return ViTConfig(
        image=size_of(config, "image_size", 224),
        patch=size_of(config, "patch_size", 32),
        channels=size_of(config, "num_channels", 3),
        width=width,
        hidden=size_of(config, "intermediate_size", 3072),
        layers=size_of(config, "num_hidden_layers", 12),
        heads=heads,
        activation=NAMES[config.get("hidden_act", "quick_gelu")],
        epsilon=number_of(config, "layer_norm_eps", 1e-5),
    )


class CLIPLayer(nn.Module):
    """Attention, then a feed-forward network, each behind a norm and added to its input."""

    def __init__(self, config: TextConfig | ViTConfig) -> None:
        self.activation = config.activation
        self.self_attn = ProjectedAttention(config.width, config.heads)
        self.layer_norm1 = nn.LayerNorm(config.width, config.epsilon)
        fc1, fc2 = (
            nn.Linear(config.width, config.hidden), nn.Linear(config.hidden, config.width),
        )  # fmt: skip
        self.mlp = nn.ModuleDict({"fc1": fc1, "fc2": fc2})
        self.layer_norm2 = nn.LayerNorm(config.width, config.epsilon)

    def forward(self, x: wf.Tensor, causal: bool) -> Any:
        """[batch, time, width] -> the same."""
        x = x + self.self_attn(self.layer_norm1(x), causal=causal)
        return x + self.mlp["fc2"](activate(self.activation, self.mlp["fc1"](self.layer_norm2(x))))


def _encoder(config: TextConfig | ViTConfig) -> nn.ModuleDict:
    return nn.ModuleDict(
        {"layers": nn.ModuleList([CLIPLayer(config) for _ in range(config.layers)])}
    )


class TextEncoder(nn.Module):
    """A text as the hidden state of its end token."""

    def __init__(self, config: TextConfig) -> None:
        self.end = config.end
        tokens = nn.Embedding(config.vocabulary, config.width)
        positions = nn.Embedding(config.context, config.width)
        self.embeddings = nn.ModuleDict(
            {"token_embedding": tokens, "position_embedding": positions}
        )
        self.encoder = _encoder(config)
        self.final_layer_norm = nn.LayerNorm(config.width, config.epsilon)

    def forward(self, tokens: wf.Tensor) -> Any:
        """tokens [batch, time] -> [batch, width]."""
        x = self.embeddings["token_embedding"](tokens)
        x = x + self.embeddings["position_embedding"](wf.arange(tokens.shape[1]))
        for layer in self.encoder.layers:
            x = layer(x, causal=True)
        x = self.final_layer_norm(x)
        is_end = wf.equal(tokens, self.end).astype("int64")
        last = wf.argmax(tokens if self.end == LEGACY_END else is_end, axis=-1)  # [batch]
        return x[wf.arange(tokens.shape[0]), last]


class VisionEncoder(nn.Module):
    """A picture as the hidden state of its first vector."""

    def __init__(self, config: ViTConfig) -> None:
        width, patch = config.width, config.patch
        self.embeddings = nn.Module()
        self.embeddings.class_embedding = nn.Parameter(wf.zeros(width))
        self.embeddings.patch_embedding = nn.Conv2d(
            config.channels, width, patch, stride=patch, bias=False
        )
        self.embeddings.position_embedding = nn.Embedding(config.patches + 1, width)
        self.pre_layrnorm = nn.LayerNorm(width, config.epsilon)  # the name in the files
        self.encoder = _encoder(config)
        self.post_layernorm = nn.LayerNorm(width, config.epsilon)

    def forward(self, images: wf.Tensor) -> Any:
        """[batch, channels, height, width] -> [batch, width]."""
        parts = self.embeddings
        rows = wf.swapaxes(wf.flatten(parts.patch_embedding(images), 2), 1, 2)
        first = wf.broadcast_to(parts.class_embedding, (images.shape[0], 1, rows.shape[2]))
        x = wf.concat([first, rows], axis=1) + parts.position_embedding.weight
        x = self.pre_layrnorm(x)
        for layer in self.encoder.layers:
            x = layer(x, causal=False)
        return self.post_layernorm(x[:, 0])


class CLIP(nn.Module):
    """Both encoders, with Hugging Face's names."""

    def __init__(self, config: CLIPConfig) -> None:
        self.config = config
        self.text_model = TextEncoder(config.text)
        self.vision_model = VisionEncoder(config.vision)
        self.visual_projection = nn.Linear(config.vision.width, config.shared, bias=False)
        self.text_projection = nn.Linear(config.text.width, config.shared, bias=False)
        self.logit_scale = nn.Parameter(wf.tensor(2.6592))

    def encode_text(self, tokens: wf.Tensor) -> wf.Tensor:
        """tokens [batch, time] -> vectors of length 1 [batch, shared]."""
        return wf.normalize(self.text_projection(self.text_model(tokens)), axis=-1)

    def encode_image(self, images: wf.Tensor) -> wf.Tensor:
        """[batch, channels, height, width] -> vectors of length 1 [batch, shared]."""
        return wf.normalize(self.visual_projection(self.vision_model(images)), axis=-1)

    def forward(self, tokens: wf.Tensor, images: wf.Tensor) -> Any:
        """How well each picture fits each text: [images, texts]."""
        products = self.encode_image(images) @ self.encode_text(tokens).T
        return products * wf.exp(self.logit_scale)
