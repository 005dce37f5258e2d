"""Layers that say how alike two tensors are.

>>> import weft as wf
>>> from weft import nn
>>> nn.CosineSimilarity(axis=-1)(wf.tensor([1.0, 0.0]), wf.tensor([1.0, 1.0])).item() > 0.7
True
"""

from __future__ import annotations

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn.module import Module


class CosineSimilarity(Module):
    """x1 · x2 / (|x1| |x2|) along an axis.

    >>> CosineSimilarity()(wf.ones((2, 3)), wf.ones((2, 3))).shape
    (2,)
    """

    def __init__(self, axis: int = 1, eps: float = 1e-8) -> None:
        self.axis, self.eps = axis, eps

    def forward(self, x1: wf.Tensor, x2: wf.Tensor) -> wf.Tensor:
        """The similarity, without the axis."""
        return F.cosine_similarity(x1, x2, axis=self.axis, eps=self.eps)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"axis={self.axis}, eps={self.eps}"


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis.

    >>> round(PairwiseDistance()(wf.tensor([3.0, 0.0]), wf.tensor([0.0, 4.0])).item(), 4)
    5.0
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False) -> None:
        self.p, self.eps, self.keepdims = p, eps, keepdims

    def forward(self, x1: wf.Tensor, x2: wf.Tensor) -> wf.Tensor:
        """The distance of each pair of vectors."""
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdims)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"p={self.p}, eps={self.eps}, keepdims={self.keepdims}"
