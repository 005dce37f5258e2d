"""Layers that look rows up in a table.

>>> import weft as wf
>>> from weft import nn
>>> nn.Embedding(10, 4)(wf.tensor([[1, 2, 9]])).shape
(1, 3, 4)
"""

from __future__ import annotations

from typing import Any, Self

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn import init
from weft.nn.functional.checks import choose
from weft.nn.functional.embedding import shorten_rows
from weft.nn.module import Module, Parameter, takes_device


class Embedding(Module):
    """A table of vectors, one for each index.

    padding_idx: that row begins as zeros and is not learned. max_norm: rows that are looked up
    are first scaled down to this norm.

    >>> Embedding.from_pretrained(wf.tensor([[1.0], [2.0]]))(wf.tensor([1])).tolist()
    [[2.0]]
    """

    @takes_device
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = _padding("Embedding", padding_idx, num_embeddings)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.weight = Parameter(wf.empty((num_embeddings, embedding_dim), dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls, weight: wf.Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Self:
        """A table with given rows."""
        embedding = cls(int(weight.shape[0]), int(weight.shape[1]), padding_idx)
        embedding.load_state_dict({"weight": weight})
        return embedding.requires_grad_(not freeze)

    def reset_parameters(self) -> None:
        """Draw new rows, normally distributed."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with wf.no_grad():
                self.weight[self.padding_idx] = 0.0

    def forward(self, index: wf.Tensor) -> wf.Tensor:
        """[...] -> [..., embedding_dim]."""
        if self.max_norm is not None:
            shorten_rows(self.weight, index, self.max_norm, self.norm_type)
        return F.embedding(index, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """See `Module`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class EmbeddingBag(Module):
    """The sum, mean or maximum of the rows of each bag of indices.

    >>> bag = EmbeddingBag(3, 2, mode="sum")
    >>> bag(wf.tensor([0, 1, 2]), wf.tensor([0, 2])).shape
    (2, 2)
    """

    @takes_device
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        choose("EmbeddingBag", "mode", mode, ("mean", "sum", "max"))
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.padding_idx = _padding("EmbeddingBag", padding_idx, num_embeddings)
        self.include_last_offset = include_last_offset
        self.weight = Parameter(wf.empty((num_embeddings, embedding_dim), dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new rows, normally distributed."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with wf.no_grad():
                self.weight[self.padding_idx] = 0.0

    def forward(
        self,
        index: wf.Tensor,
        offsets: wf.Tensor | None = None,
        per_sample_weights: wf.Tensor | None = None,
    ) -> wf.Tensor:
        """[bags, size], or [count] and offsets [bags] -> [bags, embedding_dim]."""
        options = self.padding_idx, self.include_last_offset
        return F.embedding_bag(index, self.weight, offsets, self.mode, per_sample_weights, *options)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"


def _padding(op: str, index: int | None, count: int) -> int | None:
    if index is None:
        return None
    if not -count <= index < count:
        raise wf.BoundsError(
            op,
            "padding_idx is no index of the table",
            expected=f"{-count} <= padding_idx < {count}",
            got={"padding_idx": index},
            fix="padding_idx=0",
        )
    return index % count
