"""Positions for attention: turned into angles, learned, or sines and cosines.

>>> import weft as wf
>>> from weft import nn
>>> nn.RotaryPosition(8)(wf.ones((1, 2, 5, 8))).shape
(1, 2, 5, 8)
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn import init
from weft.nn.functional.checks import check_range
from weft.nn.module import Module, Parameter, takes_device


def _check_even(op: str, width: int) -> int:
    if width < 2 or width % 2:
        raise wf.ArgumentError(
            op,
            "the width cannot be divided into pairs",
            expected="an even width",
            got={"width": width},
            fix=f"{op}({width + 1})",
        )
    return width


def _check_width(
    layer: RotaryPosition | LearnedPosition | SinusoidalPosition, x: wf.Tensor
) -> None:
    if x.ndim < 2 or x.shape[-1] != layer.width:
        name = type(layer).__name__
        raise wf.ShapeError(
            name,
            "the input does not have the width of these positions",
            expected=f"[..., time, {layer.width}]",
            got={"x": x},
            fix=f"make the layer with the width {x.shape[-1] if x.ndim else 2}",
        )


class RotaryPosition(Module):
    """Turns pairs of queries and keys by angles that grow with the position (Su et al., 2021).

    interleaved: neighbours are pairs; otherwise an element of the first half and one of the second.

    >>> x = wf.ones((1, 4))
    >>> RotaryPosition(4)(x).tolist() == x.tolist()  # position 0 turns nothing
    True
    """

    def __init__(self, width: int, base: float = 10000.0, interleaved: bool = False) -> None:
        self.width = _check_even("RotaryPosition", width)
        self.base, self.interleaved = base, interleaved

    def forward(self, x: wf.Tensor, start: Any = 0) -> wf.Tensor:
        """[..., time, width] -> the same shape; the first element stands at position `start`."""
        _check_width(self, x)
        positions = wf.arange(x.shape[-2]) + start
        cosine, sine = F.rotary_angles(positions, self.width, self.base)
        return F.apply_rotary(x, cosine, sine, self.interleaved)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.width}, base={self.base}, interleaved={self.interleaved}"


class LearnedPosition(Module):
    """Adds a learned vector to each position.

    >>> LearnedPosition(16, 4)(wf.ones((2, 5, 4)), start=3).shape
    (2, 5, 4)
    """

    @takes_device
    def __init__(self, capacity: int, width: int, dtype: Any = None, *, device: Any = None) -> None:
        self.capacity, self.width = capacity, width
        self.weight = Parameter(wf.empty((capacity, width), dtype=dtype))
        init.normal_(self.weight, std=0.02)

    def forward(self, x: wf.Tensor, start: Any = 0) -> wf.Tensor:
        """[..., time, width] -> the same shape; the first element stands at position `start`."""
        _check_width(self, x)
        positions = check_range(
            "LearnedPosition", wf.arange(x.shape[-2]) + start, self.capacity, "position"
        )
        return x + wf.take(self.weight, positions, axis=0)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.capacity}, {self.width}"


class SinusoidalPosition(Module):
    """Adds sines and cosines of each position (Vaswani et al., 2017).

    >>> SinusoidalPosition(4)(wf.zeros((1, 4))).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        self.width, self.base = _check_even("SinusoidalPosition", width), base

    def forward(self, x: wf.Tensor, start: Any = 0) -> wf.Tensor:
        """[..., time, width] -> the same shape; the first element stands at position `start`."""
        _check_width(self, x)
        positions = wf.arange(x.shape[-2]) + start
        return x + F.sinusoidal_positions(positions, self.width, self.base).astype(x.dtype)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.width}, base={self.base}"
