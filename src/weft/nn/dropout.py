"""Layers that drop parts of their input in training.

>>> import weft as wf
>>> from weft import nn
>>> nn.Dropout(0.5).eval()(wf.ones(2)).tolist()
[1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn.module import Module


class _Dropout(Module):
    """Parts dropped with the chance p; `inplace` is taken as a habit and changes nothing."""

    function: ClassVar[Callable[..., wf.Tensor]]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0.0 <= p <= 1.0:
            raise wf.ArgumentError(
                type(self).__name__,
                "p is no probability",
                expected="0 <= p <= 1",
                got={"p": p},
                fix=f"{type(self).__name__}(0.5)",
            )
        self.p = p

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """The same shape; the input itself when not training."""
        return type(self).function(x, self.p, self.training)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"p={self.p}"


class Dropout(_Dropout):
    """Each element is dropped with the chance p, the rest divided by 1 - p.

    >>> Dropout(0.5).eval()(wf.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """

    function = F.dropout


class Dropout1d(_Dropout):
    """Channels of [batch, channels, length] are dropped whole.

    >>> Dropout1d(0.5).eval()(wf.ones((1, 2, 6))).shape
    (1, 2, 6)
    """

    function = F.dropout1d


class Dropout2d(_Dropout):
    """Channels of [batch, channels, height, width] are dropped whole.

    >>> Dropout2d(0.5).eval()(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 6, 6)
    """

    function = F.dropout2d


class Dropout3d(_Dropout):
    """Channels of [batch, channels, depth, height, width] are dropped whole.

    >>> Dropout3d(0.5).eval()(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 6, 6, 6)
    """

    function = F.dropout3d


class AlphaDropout(_Dropout):
    """Dropout that keeps the mean and variance that SELU works with.

    >>> AlphaDropout(0.5).eval()(wf.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """

    function = F.alpha_dropout


class DropPath(_Dropout):
    """Examples of the batch are dropped whole: stochastic depth, before a residual sum.

    >>> DropPath(1.0)(wf.ones((2, 1))).tolist()
    [[0.0], [0.0]]
    """

    function = F.drop_path
