"""VGG: stacks of 3 x 3 convolutions, halved five times, and three wide layers.

>>> import weft as wf
>>> from weft.models import vgg19
>>> net = vgg19(classes=10, size=32, hidden=64)
>>> net(wf.ones((1, 3, 32, 32))).shape, sum(isinstance(m, wf.nn.Conv2d) for m in net.modules())
((1, 10), 16)
"""

from __future__ import annotations

from collections.abc import Sequence

import weft as wf
from weft import nn

VGG11, VGG16, VGG19 = (1, 1, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)
"""How many convolutions stand before each halving."""
WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """The network of torchvision, whose names it has; size is the side of the image."""

    def __init__(
        self,
        depths: Sequence[int] = VGG19,
        classes: int = 1000,
        size: int = 224,
        hidden: int = 4096,
        dropout: float = 0.5,
        batch_norm: bool = False,
        widths: Sequence[int] = WIDTHS,
    ) -> None:
        self.features = nn.Sequential(*_stages(depths, widths, batch_norm))
        side = max(1, size // 2 ** len(widths))
        self.avgpool = nn.AdaptiveAvgPool2d((side, side))
        self.classifier = nn.Sequential(
            nn.Linear(widths[-1] * side * side, hidden), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, 3, size, size] -> [batch, classes]."""
        x = self.avgpool(self.features(x))  # [batch, widths[-1], side, side]
        y: wf.Tensor = self.classifier(wf.reshape(x, (x.shape[0], -1)))
        return y


def _stages(depths: Sequence[int], widths: Sequence[int], batch_norm: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    before = 3
    for depth, width in zip(depths, widths, strict=True):
        for _ in range(depth):
            convolution = nn.Conv2d(before, width, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out")
            norm = [nn.BatchNorm2d(width)] if batch_norm else []
            layers += [convolution, *norm, nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    return layers


def vgg19(classes: int = 1000, size: int = 224, hidden: int = 4096, **options: object) -> VGG:
    """The whole VGG-19: sixteen convolutions and three layers."""
    return VGG(VGG19, classes, size, hidden, **options)  # type: ignore[arg-type]
