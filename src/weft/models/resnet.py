"""Residual networks, for small images and for those of ImageNet; torchvision's names.

>>> import weft as wf
>>> from weft.models import resnet18
>>> net = resnet18(classes=10, small=True)
>>> net(wf.ones((1, 3, 32, 32))).shape
(1, 10)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import weft as wf
from weft import nn


def _convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, which the norm behind it would take away."""
    layer = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    return layer


def _shortcut(before: int, after: int, stride: int) -> nn.Sequential | None:
    """What fits the input to the output of a block, where their shapes differ."""
    if stride == 1 and before == after:
        return None
    return nn.Sequential(_convolution(before, after, 1, stride), nn.BatchNorm2d(after))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions, added to the input."""

    expansion: ClassVar[int] = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        self.conv1 = _convolution(before, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(before, width, stride)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, before, height, width] -> [batch, width, height / stride, width / stride]."""
        y = wf.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return wf.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A narrow 3 x 3 convolution between two of 1 x 1, added to the input."""

    expansion: ClassVar[int] = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        after = width * self.expansion
        self.conv1 = _convolution(before, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, after, 1)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = _shortcut(before, after, stride)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, before, height, width] -> [batch, 4 width, height / stride, width / stride]."""
        y = wf.relu(self.bn1(self.conv1(x)))
        y = wf.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return wf.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A stem, four stages of blocks, the mean over positions, and a head.

    small: the stem for 32 x 32 images, one 3 x 3 convolution; else ImageNet's, which divides the
    sides by four.
    """

    def __init__(
        self,
        block: Any,
        depths: Sequence[int],
        classes: int = 1000,
        small: bool = False,
        widths: Sequence[int] = (64, 128, 256, 512),
    ) -> None:
        before = widths[0]
        self.conv1 = _convolution(3, before, 3 if small else 7, 1 if small else 2)
        self.bn1 = nn.BatchNorm2d(before)
        self.maxpool = None if small else nn.MaxPool2d(3, 2, padding=1)
        for number, (depth, width) in enumerate(zip(depths, widths, strict=True), 1):
            blocks = []
            for index in range(depth):
                blocks.append(block(before, width, 2 if number > 1 and index == 0 else 1))
                before = width * block.expansion
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.fc = nn.Linear(before, classes)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, 3, height, width] -> [batch, classes]."""
        x = wf.relu(self.bn1(self.conv1(x)))
        x = x if self.maxpool is None else self.maxpool(x)
        for number in range(1, self.stages + 1):
            x = getattr(self, f"layer{number}")(x)
        y: wf.Tensor = self.fc(wf.mean(x, axis=(2, 3)))
        return y


def resnet18(classes: int = 1000, small: bool = False) -> ResNet:
    """ResNet-18: eight blocks of two convolutions.

    >>> import weft as wf
    >>> net = resnet18(classes=10, small=True).eval()
    >>> net.summary(wf.spec("float32", (1, 3, 32, 32))).operations > 10**9
    True
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, small)


def resnet34(classes: int = 1000, small: bool = False) -> ResNet:
    """ResNet-34: sixteen blocks of two convolutions."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes, small)


def resnet50(classes: int = 1000, small: bool = False) -> ResNet:
    """ResNet-50: sixteen blocks of three convolutions."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, small)
