"""Diffusion: a network learns to tell the noise in a noisy example; taken away, it leaves new ones.

>>> import weft as wf
>>> from weft.models import Diffusion, PointDenoiser
>>> process = Diffusion(PointDenoiser(width=2, hidden=16), steps=10)
>>> process.loss(wf.ones((4, 2))).shape, process.sample((3, 2)).shape
((), (3, 2))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import weft as wf
from weft import nn
from weft.models.unet import UNet
from weft.nn import functional as F  # noqa: N812


class PointDenoiser(nn.Module):
    """Noise in points [batch, width] at times [batch]: layers that are told the time."""

    def __init__(self, width: int = 2, hidden: int = 128, layers: int = 3) -> None:
        self.hidden = hidden
        self.first = nn.Linear(width, hidden)
        self.times = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(layers)])
        self.layers = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(layers)])
        self.head = nn.Linear(hidden, width)

    def forward(self, x: wf.Tensor, time: wf.Tensor) -> wf.Tensor:
        """x [batch, width], time [batch] -> [batch, width]."""
        known = F.sinusoidal_positions(time, self.hidden)  # [batch, hidden]
        x = self.first(x)
        for layer, told in zip(self.layers, self.times, strict=True):
            x = x + layer(wf.silu(x + told(known)))
        y: wf.Tensor = self.head(wf.silu(x))
        return y


class ImageDenoiser(nn.Module):
    """Noise in images [batch, channels, height, width] at times [batch]: a U-Net.

    >>> ImageDenoiser(1, (4, 8), 16)(wf.ones((2, 1, 8, 8)), wf.tensor([0, 5])).shape
    (2, 1, 8, 8)
    """

    def __init__(
        self, channels: int = 1, widths: Sequence[int] = (16, 32, 64), condition: int = 64
    ) -> None:
        self.condition = condition
        self.time = nn.Linear(condition, condition, activation="silu")
        self.unet = UNet(channels, channels, widths, condition)

    def forward(self, x: wf.Tensor, time: wf.Tensor) -> wf.Tensor:
        """x [batch, channels, height, width], time [batch] -> the shape of x."""
        y: wf.Tensor = self.unet(x, self.time(F.sinusoidal_positions(time, self.condition)))
        return y


class Diffusion(nn.Module):
    """Noise added in steps, and taken away again (Ho et al., 2020; Song et al., 2021).

    `kept` [steps] is the share of the example's variance that is left after each step: a cosine.
    """

    def __init__(self, net: nn.Module, steps: int = 200) -> None:
        self.net, self.steps = net, steps
        angles = (np.arange(1, steps + 1) / steps + 0.008) / 1.008 * np.pi / 2
        kept = np.clip(np.cos(angles) ** 2 / np.cos(0.008 / 1.008 * np.pi / 2) ** 2, 1e-4, 0.9999)
        self.register_buffer("kept", wf.asarray(kept.astype(np.float32)), persistent=False)

    def loss(self, x: wf.Tensor) -> wf.Tensor:
        """How well the noise is told, at times drawn by chance."""
        time = wf.random.randint(0, self.steps, (x.shape[0],))
        noise = wf.random.normal(x.shape)
        return F.mse_loss(self.net(self.noisy(x, noise, time), time), noise)

    def noisy(self, x: wf.Tensor, noise: wf.Tensor, time: wf.Tensor) -> wf.Tensor:
        """Examples after some steps: time [batch]."""
        share = wf.reshape(wf.take(self.kept, time, axis=0), (-1, *[1] * (x.ndim - 1)))
        return wf.sqrt(share) * x + wf.sqrt(1 - share) * noise

    def sample(
        self, shape: Sequence[int], key: wf.Tensor | None = None, chance: float = 1.0
    ) -> wf.Tensor:
        """New examples out of noise; chance 0 draws noise at the beginning only (DDIM)."""
        keys = wf.random.split(wf.random.key(0) if key is None else key)
        x, following = wf.random.normal(tuple(shape), key=keys[0]), keys[1]
        with nn.evaluation_mode(self), wf.no_grad():
            for number in reversed(range(self.steps)):
                now = wf.tensor(number), following, wf.tensor(float(chance))
                x, following = denoising_step(self, x, *now)
        return x


@wf.jit  # type: ignore[untyped-decorator]
def denoising_step(
    process: Diffusion, x: wf.Tensor, number: wf.Tensor, key: wf.Tensor, chance: wf.Tensor
) -> tuple[wf.Tensor, wf.Tensor]:
    """x at time `number` -> x one step earlier, and the next random key: compiled once."""
    share = wf.take(process.kept, number, axis=0)
    is_last = wf.equal(number, 0)
    before = wf.where(is_last, 1.0, wf.take(process.kept, wf.maximum(number - 1, 0), axis=0))
    told = process.net(x, wf.broadcast_to(number, (x.shape[0],)))
    clean = (x - wf.sqrt(1 - share) * told) / wf.sqrt(share)
    spread = chance * wf.sqrt((1 - before) / (1 - share) * (1 - share / before))
    keys = wf.random.split(key)
    direction = wf.sqrt(wf.maximum(1 - before - spread**2, 0.0)) * told
    noise = spread * wf.random.normal(x.shape, key=keys[0])
    return wf.sqrt(before) * clean + direction + noise, keys[1]
