"""Vision transformers: a picture as a row of patches; Hugging Face's names of the weights.

>>> import weft as wf
>>> from weft.models import ViT, ViTConfig
>>> config = ViTConfig(image=8, patch=4, width=8, layers=1, heads=2, hidden=16, labels=3)
>>> ViT(config).eval()(wf.ones((2, 3, 8, 8))).shape
(2, 3)
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
class ViTConfig:
    """The sizes of a vision transformer; labels 0: no classifier."""

    image: int = 224
    patch: int = 16
    channels: int = 3
    width: int = 768
    hidden: int = 3072
    layers: int = 12
    heads: int = 12
    labels: int = 0
    pooler: bool = False
    bias: bool = True
    activation: str = "gelu"
    epsilon: float = 1e-12

    @property
    def patches(self) -> int:
        """How many patches a picture has."""
        return (self.image // self.patch) ** 2

    @property
    def matrix_elements(self) -> int:
        """How many numbers the matrices hold."""
        tables = self.patches + self.channels * self.patch**2
        return self.width * (tables + self.layers * (4 * self.width + 2 * self.hidden))

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in a Hugging Face `config.json` of model_type vit.

        >>> sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        ...          "num_attention_heads": 2}
        >>> ViTConfig.from_json(sizes).patches
        196
        """
        refuse_unless(config, "hidden_act", ACTIVATIONS)
        width, heads = size_of(config, "hidden_size"), size_of(config, "num_attention_heads")
        refuse_uneven("ViT", width, heads, 1)
        image, patch = size_of(config, "image_size", 224), size_of(config, "patch_size", 16)
        refuse_uneven("ViT", image, patch, 1)
        return cls(
            image=image,
            patch=patch,
            channels=size_of(config, "num_channels", 3),
            width=width,
            hidden=size_of(config, "intermediate_size"),
            layers=size_of(config, "num_hidden_layers"),
            heads=heads,
            bias=bool(config.get("qkv_bias", True)),
            activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
            epsilon=number_of(config, "layer_norm_eps", 1e-12),
        )


class PatchEmbeddings(nn.Module):
    """Patches as vectors, behind one for the whole picture, each with its position."""

    def __init__(self, config: ViTConfig) -> None:
        width, patch = config.width, config.patch
        self.cls_token = nn.Parameter(wf.zeros((1, 1, width)))
        self.position_embeddings = nn.Parameter(wf.zeros((1, config.patches + 1, width)))
        projection = nn.Conv2d(config.channels, width, patch, stride=patch)
        self.patch_embeddings = nn.ModuleDict({"projection": projection})

    def forward(self, images: wf.Tensor) -> Any:
        """[batch, channels, height, width] -> [batch, 1 + patches, width]."""
        grid = self.patch_embeddings["projection"](images)  # [batch, width, rows, columns]
        rows = wf.swapaxes(wf.flatten(grid, 2), 1, 2)
        first = wf.broadcast_to(self.cls_token, (images.shape[0], 1, rows.shape[2]))
        return wf.concat([first, rows], axis=1) + self.position_embeddings


class ViTSelfAttention(nn.Module):
    """Projections to queries, keys and values, and their attention."""

    def __init__(self, config: ViTConfig) -> None:
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width, config.bias)
        self.key = nn.Linear(config.width, config.width, config.bias)
        self.value = nn.Linear(config.width, config.width, config.bias)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, patches, width] -> the same."""
        q, k, v = (split_heads(f(x), self.heads) for f in (self.query, self.key, self.value))
        return join_heads(F.scaled_dot_product_attention(q, k, v))


class ViTLayer(nn.Module):
    """Attention, then a feed-forward network, each behind a norm and added to its input."""

    def __init__(self, config: ViTConfig) -> None:
        self.activation = config.activation
        output: Any = nn.ModuleDict({"dense": nn.Linear(config.width, config.width)})
        self.attention: Any = nn.ModuleDict(
            {"attention": ViTSelfAttention(config), "output": output}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.width, config.hidden)})
        self.output = nn.ModuleDict({"dense": nn.Linear(config.hidden, config.width)})
        self.layernorm_before = nn.LayerNorm(config.width, config.epsilon)
        self.layernorm_after = nn.LayerNorm(config.width, config.epsilon)

    def forward(self, x: wf.Tensor) -> Any:
        """[batch, patches, width] -> the same."""
        attended = self.attention["attention"](self.layernorm_before(x))
        x = x + self.attention["output"]["dense"](attended)
        hidden = F.activate(self.activation, self.intermediate["dense"](self.layernorm_after(x)))
        return x + self.output["dense"](hidden)


class ViT(nn.Module):
    """A vision transformer, with Hugging Face's names."""

    def __init__(self, config: ViTConfig) -> None:
        self.config = config
        self.embeddings = PatchEmbeddings(config)
        layers = nn.ModuleList([ViTLayer(config) for _ in range(config.layers)])
        self.encoder = nn.ModuleDict({"layer": layers})
        self.layernorm = nn.LayerNorm(config.width, config.epsilon)
        dense = {"dense": nn.Linear(config.width, config.width)}
        self.pooler = nn.ModuleDict(dense) if config.pooler else None
        self.classifier = nn.Linear(config.width, config.labels) if config.labels else None

    def hidden(self, images: wf.Tensor) -> Any:
        """Pictures [batch, channels, height, width] -> [batch, 1 + patches, width]."""
        x = self.embeddings(images)
        for layer in self.encoder.layer:
            x = layer(x)
        return self.layernorm(x)

    def forward(self, images: wf.Tensor) -> Any:
        """Logits [batch, labels]; without a classifier the hidden states."""
        x = self.hidden(images)
        return x if self.classifier is None else self.classifier(x[:, 0])
