"""A small U-Net: down to few positions and up again, with a bridge at every size.

>>> import weft as wf
>>> from weft.models import UNet
>>> UNet(channels=1, classes=2, widths=(4, 8))(wf.ones((1, 1, 16, 16))).shape
(1, 2, 16, 16)
"""

from __future__ import annotations

from collections.abc import Sequence

import weft as wf
from weft import nn


class DoubleConvolution(nn.Module):
    """Two 3 x 3 convolutions with norms; a vector, if given, is added to every position."""

    def __init__(self, before: int, after: int, condition: int = 0) -> None:
        groups = next(n for n in (8, 4, 2, 1) if after % n == 0)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, after)
        self.condition = nn.Linear(condition, after) if condition else None

    def forward(self, x: wf.Tensor, vector: wf.Tensor | None = None) -> wf.Tensor:
        """x [batch, before, height, width], vector [batch, condition]."""
        x = wf.silu(self.norm1(self.conv1(x)))
        if self.condition is not None:
            x = x + self.condition(vector)[:, :, None, None]
        return wf.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    """As many classes per position as asked; the sides must halve len(widths) - 1 times.

    condition: the width of a vector that every stage is told, such as the time in diffusion.
    """

    def __init__(
        self,
        channels: int = 1,
        classes: int = 2,
        widths: Sequence[int] = (16, 32, 64),
        condition: int = 0,
    ) -> None:
        self.halvings = len(widths) - 1
        ins = [channels, *widths[:-1]]
        pairs = list(zip(ins, widths, strict=True))
        self.down = nn.ModuleList([DoubleConvolution(a, b, condition) for a, b in pairs])
        ups = list(zip(widths[:0:-1], widths[-2::-1], strict=True))  # from the deepest upwards
        self.widen = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2) for a, b in ups])
        self.up = nn.ModuleList([DoubleConvolution(2 * b, b, condition) for _, b in ups])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: wf.Tensor, vector: wf.Tensor | None = None) -> wf.Tensor:
        """[batch, channels, height, width] -> [batch, classes, height, width]."""
        self._check(x)
        bridges = []
        for number, stage in enumerate(self.down):
            x = stage(wf.max_pool2d(x, 2) if number else x, vector)
            bridges.append(x)
        bridges.pop()
        for widen, stage in zip(self.widen, self.up, strict=True):
            x = stage(wf.concat([bridges.pop(), widen(x)], axis=1), vector)
        y: wf.Tensor = self.head(x)
        return y

    def _check(self, x: wf.Tensor) -> None:
        step = 2**self.halvings
        sides = [n for n in x.shape[-2:] if isinstance(n, int)]
        if x.ndim != 4 or any(side % step for side in sides):
            raise wf.ShapeError(
                "UNet",
                "the sides of the image cannot be halved that often",
                expected=f"[batch, channels, height, width], sides divisible by {step}",
                got={"x": x},
                fix=f"pad the image to a multiple of {step}, or give fewer widths",
            )
