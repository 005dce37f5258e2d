"""Whisper: sound as text, an encoder of spectrograms and a decoder of tokens.

Weights have Hugging Face's names.

>>> import weft as wf
>>> from weft.models import Whisper, WhisperConfig
>>> config = WhisperConfig(vocabulary=20, mels=4, width=8, layers=1, heads=2, hidden=16,
...                        frames=6, context=5, decoder_layers=1, decoder_heads=2,
...                        decoder_hidden=16)
>>> Whisper(config).eval()(wf.ones((1, 4, 12)), wf.tensor([[1, 2]])).shape
(1, 2, 20)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import weft as wf
from weft import nn
from weft.models.configuration import refuse_uneven, refuse_unless, size_of
from weft.models.encoder_layers import ProjectedAttention
from weft.nn import functional as F  # noqa: N812
from weft.precision import without_float8


@dataclass(frozen=True)
class WhisperConfig:
    """The sizes of a Whisper; frames: how many the encoder makes of twice as many."""

    vocabulary: int = 51865
    mels: int = 80
    width: int = 384
    hidden: int = 1536
    layers: int = 4
    heads: int = 6
    frames: int = 1500
    decoder_hidden: int = 1536
    decoder_layers: int = 4
    decoder_heads: int = 6
    context: int = 448

    @property
    def matrix_elements(self) -> int:
        """How many numbers the matrices hold."""
        width = self.width
        encoder = self.frames + 3 * (self.mels + width)
        encoder += self.layers * (4 * width + 2 * self.hidden)
        decoder = self.vocabulary + self.context
        decoder += self.decoder_layers * (8 * width + 2 * self.decoder_hidden)
        return width * (encoder + decoder)

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in a Hugging Face `config.json` of model_type whisper."""
        refuse_unless(config, "activation_function", ("gelu",))
        refuse_unless(config, "scale_embedding", (False,))
        width = size_of(config, "d_model")
        sizes = cls(
            vocabulary=size_of(config, "vocab_size"),
            mels=size_of(config, "num_mel_bins", 80),
            width=width,
            hidden=size_of(config, "encoder_ffn_dim"),
            layers=size_of(config, "encoder_layers"),
            heads=size_of(config, "encoder_attention_heads"),
            frames=size_of(config, "max_source_positions", 1500),
            decoder_hidden=size_of(config, "decoder_ffn_dim"),
            decoder_layers=size_of(config, "decoder_layers"),
            decoder_heads=size_of(config, "decoder_attention_heads"),
            context=size_of(config, "max_target_positions", 448),
        )
        for heads in (sizes.heads, sizes.decoder_heads):
            refuse_uneven("Whisper", width, heads, 1)
        return sizes


class WhisperLayer(nn.Module):
    """Attention over itself, in a decoder over the sound too, then a feed-forward network."""

    def __init__(self, width: int, heads: int, hidden: int, is_decoder: bool) -> None:
        self.self_attn = ProjectedAttention(width, heads, key_bias=False)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.is_decoder = is_decoder
        if is_decoder:
            self.encoder_attn = ProjectedAttention(width, heads, key_bias=False)
            self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: wf.Tensor, sound: wf.Tensor | None = None) -> Any:
        """x [batch, time, width], sound [batch, frames, width] -> as x."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), causal=self.is_decoder)
        if self.is_decoder:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), sound)
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class WhisperEncoder(nn.Module):
    """Frames of a spectrogram, two at a time, each with its position."""

    def __init__(self, config: WhisperConfig) -> None:
        width = config.width
        self.conv1 = nn.Conv1d(config.mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.frames, width)
        sizes = width, config.heads, config.hidden
        self.layers = nn.ModuleList([WhisperLayer(*sizes, False) for _ in range(config.layers)])
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, spectrogram: wf.Tensor) -> Any:
        """[batch, mels, 2 * frames] -> [batch, frames, width]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(spectrogram))))
        x = wf.swapaxes(x, 1, 2)
        x = x + self.embed_positions(wf.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class WhisperDecoder(nn.Module):
    """Tokens, each of which sees those before it and the whole sound."""

    def __init__(self, config: WhisperConfig) -> None:
        width = config.width
        self.embed_tokens = nn.Embedding(config.vocabulary, width)
        self.embed_positions = nn.Embedding(config.context, width)
        sizes = width, config.decoder_heads, config.decoder_hidden
        layers = [WhisperLayer(*sizes, True) for _ in range(config.decoder_layers)]
        self.layers = nn.ModuleList(layers)
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, tokens: wf.Tensor, sound: wf.Tensor) -> Any:
        """tokens [batch, time], sound [batch, frames, width] -> [batch, time, width]."""
        x = self.embed_tokens(tokens) + self.embed_positions(wf.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, sound)
        return self.layer_norm(x)


class Whisper(nn.Module):
    """Encoder and decoder, with Hugging Face's names; the table of tokens is the head, too."""

    def __init__(self, config: WhisperConfig) -> None:
        self.config = config
        self.model = nn.ModuleDict(
            {"encoder": WhisperEncoder(config), "decoder": WhisperDecoder(config)}
        )

    def encode(self, spectrogram: wf.Tensor) -> Any:
        """[batch, mels, 2 * frames] -> [batch, frames, width]."""
        return self.model["encoder"](spectrogram)

    def forward(self, spectrogram: wf.Tensor, tokens: wf.Tensor) -> Any:
        """Logits [batch, time, vocabulary] of the next tokens."""
        return self.decode(tokens, self.encode(spectrogram))

    def decode(self, tokens: wf.Tensor, sound: wf.Tensor) -> Any:
        """Logits of the next tokens, where the sound was encoded before."""
        decoder = self.model["decoder"]
        decoded = decoder(tokens, sound)
        with without_float8():
            return F.linear(decoded, decoder.embed_tokens.weight)
