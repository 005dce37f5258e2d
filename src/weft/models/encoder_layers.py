"""The layers of encoders that CLIP, Whisper and others share: norms first, four projections.

>>> import weft as wf
>>> from weft.models.encoder_layers import ProjectedAttention
>>> ProjectedAttention(8, 2)(wf.ones((1, 3, 8))).shape
(1, 3, 8)
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft import nn
from weft.models.attention import join_heads, split_heads
from weft.nn import functional as F  # noqa: N812


def quick_gelu(x: wf.Tensor) -> wf.Tensor:
    """x σ(1.702 x), an approximation of GELU that early CLIPs were trained with."""
    return x * wf.sigmoid(1.702 * x)


def activate(name: str, x: wf.Tensor) -> wf.Tensor:
    """An activation by Weft's name, or `quick_gelu`."""
    return quick_gelu(x) if name == "quick_gelu" else F.activate(name, x)


class ProjectedAttention(nn.Module):
    """Attention of x over itself or over another value, with Hugging Face's names."""

    def __init__(self, width: int, heads: int, key_bias: bool = True) -> None:
        self.heads = heads
        self.k_proj = nn.Linear(width, width, key_bias)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: wf.Tensor, other: wf.Tensor | None = None, *, causal: bool = False) -> Any:
        """x [batch, time, width], other [batch, keys, width] -> [batch, time, width]."""
        source = x if other is None else other
        q = split_heads(self.q_proj(x), self.heads)
        k, v = (split_heads(f(source), self.heads) for f in (self.k_proj, self.v_proj))
        return self.out_proj(join_heads(F.scaled_dot_product_attention(q, k, v, causal=causal)))
