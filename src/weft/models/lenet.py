"""LeNet: two convolutions and two layers for small images of one channel.

>>> import weft as wf
>>> from weft.models import LeNet
>>> LeNet()(wf.ones((2, 1, 28, 28))).shape
(2, 10)
"""

from __future__ import annotations

import weft as wf
from weft import nn


class LeNet(nn.Module):
    """20 and 50 filters of 5 x 5, 500 hidden units; small images take padding.

    >>> LeNet(size=8, padding=2)(wf.ones((1, 1, 8, 8))).shape
    (1, 10)
    """

    def __init__(
        self, classes: int = 10, size: int = 28, channels: int = 1, padding: int = 0
    ) -> None:
        side = _halved_side(_halved_side(size, padding), padding)
        if side < 1:
            raise wf.ArgumentError(
                "LeNet",
                "the image is too small for two such convolutions",
                expected="a side of at least 16, or padding",
                got={"size": size, "padding": padding},
                fix=f"LeNet(size={size}, padding=2)",
            )
        self.conv1 = nn.Conv2d(channels, 20, 5, padding=padding)
        self.conv2 = nn.Conv2d(20, 50, 5, padding=padding)
        self.hidden = nn.Linear(50 * side * side, 500)
        self.out = nn.Linear(500, classes)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, size, size] -> [batch, classes]."""
        x = wf.max_pool2d(wf.relu(self.conv1(x)), 2)
        x = wf.max_pool2d(wf.relu(self.conv2(x)), 2)
        x = wf.relu(self.hidden(wf.reshape(x, (x.shape[0], -1))))
        y: wf.Tensor = self.out(x)
        return y


def _halved_side(size: int, padding: int) -> int:
    """The side after one convolution and one pooling."""
    return (size + 2 * padding - 4) // 2
