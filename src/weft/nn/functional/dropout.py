"""Dropout: parts of the input set to zero at random, the rest scaled to keep the mean.

>>> import weft as wf
>>> dropout(wf.ones(3), 0.5, training=False).tolist()
[1.0, 1.0, 1.0]
"""

from __future__ import annotations

import weft as wf
from weft.eager import beside_operands
from weft.nn.functional.activations import SELU_ALPHA, SELU_SCALE


def dropout(x: wf.Tensor, p: float = 0.5, training: bool = True) -> wf.Tensor:
    """Each element is dropped with the chance p.

    >>> dropout(wf.ones(3), 1.0).tolist()
    [0.0, 0.0, 0.0]
    """
    return wf.random.dropout(x, p, training)


@beside_operands
def feature_dropout(x: wf.Tensor, p: float, training: bool, op: str, rank: int) -> wf.Tensor:
    """Each channel of each example is dropped whole: x [batch, channels, *spatial]."""
    if x.ndim not in (rank + 1, rank + 2):
        raise wf.ShapeError(
            op,
            f"the input does not have {rank} spatial axes",
            expected=f"[batch, channels, *{rank} spatial], or without batch",
            got={"x": x},
            fix="nn.Dropout drops single elements of any shape",
        )
    lead = x.ndim - rank
    mask = wf.random.dropout(wf.ones((*x.shape[:lead], *[1] * rank), dtype=x.dtype), p, training)
    return x * mask


def dropout1d(x: wf.Tensor, p: float = 0.5, training: bool = True) -> wf.Tensor:
    """Channels are dropped: x [batch, channels, length].

    >>> dropout1d(wf.ones((1, 2, 3)), 0.0).shape
    (1, 2, 3)
    """
    return feature_dropout(x, p, training, "dropout1d", 1)


def dropout2d(x: wf.Tensor, p: float = 0.5, training: bool = True) -> wf.Tensor:
    """Channels are dropped: x [batch, channels, height, width].

    >>> dropout2d(wf.ones((1, 2, 3, 3)), 1.0).sum().item()
    0.0
    """
    return feature_dropout(x, p, training, "dropout2d", 2)


def dropout3d(x: wf.Tensor, p: float = 0.5, training: bool = True) -> wf.Tensor:
    """Channels are dropped: x [batch, channels, depth, height, width].

    >>> dropout3d(wf.ones((1, 2, 1, 1, 1)), 0.0).shape
    (1, 2, 1, 1, 1)
    """
    return feature_dropout(x, p, training, "dropout3d", 3)


@beside_operands
def alpha_dropout(x: wf.Tensor, p: float = 0.5, training: bool = True) -> wf.Tensor:
    """Dropout to the negative limit of SELU, with mean and variance kept.

    >>> alpha_dropout(wf.ones(2), 0.5, training=False).tolist()
    [1.0, 1.0]
    """
    if not training or p == 0:
        return wf.random.dropout(x, p, False)
    if p == 1:
        return wf.zeros_like(x)
    low = -SELU_SCALE * SELU_ALPHA
    scale = ((1 - p) * (1 + p * low**2)) ** -0.5
    stays = wf.random.dropout_mask(x.shape, p)
    return wf.multiply(scale, wf.where(stays, x, low) - low * p)


@beside_operands
def drop_path(x: wf.Tensor, p: float = 0.5, training: bool = True) -> wf.Tensor:
    """Each example of the batch is dropped whole (stochastic depth): x [batch, ...].

    >>> drop_path(wf.ones((2, 3)), 1.0).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    mask = wf.ones((*x.shape[:1], *[1] * (x.ndim - 1)), dtype=x.dtype)
    return x * wf.random.dropout(mask, p, training)
