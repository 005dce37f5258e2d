"""The variational autoencoder: images to a few numbers that are about normal, and back.

>>> import weft as wf
>>> from weft.models import VAE
>>> net = VAE(pixels=64, hidden=32, latent=4)
>>> images = wf.full((2, 8, 8), 0.5)
>>> net.loss(images).shape, net.sample(3).shape
((), (3, 64))
"""

from __future__ import annotations

from typing import NamedTuple

import weft as wf
from weft import nn
from weft.nn import functional as F  # noqa: N812


class Encoded(NamedTuple):
    """Pixels as logits [batch, pixels], and the normal distribution they were drawn from."""

    logits: wf.Tensor
    mean: wf.Tensor  # [batch, latent]
    log_variance: wf.Tensor  # [batch, latent]


class VAE(nn.Module):
    """Encoder and decoder of one hidden layer each (Kingma and Welling, 2013)."""

    def __init__(self, pixels: int = 784, hidden: int = 256, latent: int = 16) -> None:
        self.latent = latent
        self.encoder = nn.Linear(pixels, hidden, activation="relu")
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden, activation="relu"), nn.Linear(hidden, pixels)
        )

    def encode(self, x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        """Images [batch, ...] -> mean and logarithm of the variance, [batch, latent] each."""
        hidden = self.encoder(wf.reshape(x, (x.shape[0], -1)))
        return self.mean(hidden), self.log_variance(hidden)

    def forward(self, x: wf.Tensor) -> Encoded:
        """Images with ink from 0 to 1 -> what a draw is decoded to; evaluated, the mean."""
        mean, log_variance = self.encode(x)
        drawn = mean
        if self.training:
            drawn = mean + wf.exp(0.5 * log_variance) * wf.random.normal(mean.shape)
        return Encoded(self.decoder(drawn), mean, log_variance)

    def loss(self, x: wf.Tensor) -> wf.Tensor:
        """The negative evidence bound per image: what is lost, and how far from normal."""
        logits, mean, log_variance = self(x)
        target = wf.reshape(x, logits.shape)
        lost = F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        spread = 1 + log_variance - mean**2 - wf.exp(log_variance)
        return (lost - 0.5 * wf.sum(spread)) / x.shape[0]

    def sample(self, count: int, key: wf.Tensor | None = None) -> wf.Tensor:
        """New images [count, pixels], ink from 0 to 1."""
        with wf.no_grad():
            return wf.sigmoid(self.decoder(wf.random.normal((count, self.latent), key=key)))
