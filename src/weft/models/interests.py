"""Recommenders of sequences and of several aims: DIN and MMoE.

>>> import weft as wf
>>> from weft.models import DIN
>>> net = DIN(features=2, rows=100, width=4, hidden=(8,))
>>> history = wf.tensor([[5, 6, 0], [7, 0, 0]])
>>> net(wf.tensor([[1, 5], [2, 9]]), history, mask=history > 0).shape
(2,)
"""

from __future__ import annotations

from collections.abc import Sequence

import weft as wf
from weft import nn
from weft.models.perceptron import MLP
from weft.models.recommendation import Recommender, flatten_features

__all__ = ["DIN", "MMoE", "TargetAttention", "masked_mean"]


class TargetAttention(nn.Module):
    """A history pooled by what it has to do with a target (Zhou et al., 2018).

    A small network looks at target, item, their difference and product, and weighs the item. As
    in the paper the weights do not sum to one, so that a longer interest weighs more.

    >>> pool = TargetAttention(4, hidden=(8,))
    >>> mask = wf.tensor([[True, True, False]])
    >>> pool(wf.ones((1, 4)), wf.ones((1, 3, 4)), mask).shape
    (1, 4)
    """

    def __init__(self, width: int, hidden: Sequence[int] = (32,), activation: str = "silu") -> None:
        self.network = MLP([4 * width, *hidden, 1], activation=activation)

    def forward(self, target: wf.Tensor, history: wf.Tensor, mask: wf.Tensor) -> wf.Tensor:
        """target [batch, width], history [batch, length, width], mask [batch, length]."""
        batch, length, width = history.shape
        targets = wf.broadcast_to(target[:, None], history.shape)
        pairs = wf.concat([targets, history, targets - history, targets * history], axis=2)
        scores = self.network(wf.reshape(pairs, (batch * length, 4 * width)))
        weights = wf.where(mask, wf.reshape(scores, (batch, length)), 0.0)
        return wf.sum(weights[:, :, None] * history, axis=1)  # [batch, width]


def masked_mean(vectors: wf.Tensor, mask: wf.Tensor) -> wf.Tensor:
    """The mean of vectors [batch, length, width] where the mask is true; zero where it never is.

    >>> masked_mean(wf.tensor([[[2.0], [4.0], [9.0]]]), wf.tensor([[True, True, False]])).tolist()
    [[3.0]]
    """
    weights = mask.astype(vectors.dtype)[:, :, None]
    count = wf.maximum(wf.sum(weights, axis=1), wf.asarray(1.0, dtype=vectors.dtype))
    return wf.sum(vectors * weights, axis=1) / count


class DIN(Recommender):
    """A deep interest network: the history is pooled by what it has to do with one feature.

    `target` is the number of that feature among the ids.
    """

    def __init__(
        self,
        features: int,
        rows: int,
        width: int = 16,
        dense: int = 0,
        hidden: Sequence[int] = (64, 32),
        attention: Sequence[int] = (32,),
        target: int = -1,
        dropout: float = 0.0,
        hashing: bool = True,
    ) -> None:
        super().__init__(features, rows, width, dense, hashing)
        self.target = target
        self.attention = TargetAttention(width, attention)
        self.network = MLP([(features + 1) * width + dense, *hidden, 1], dropout=dropout)

    def forward(  # type: ignore[override]
        self,
        ids: wf.Tensor,
        history: wf.Tensor,
        dense: wf.Tensor | None = None,
        *,
        mask: wf.Tensor,
    ) -> wf.Tensor:
        """ids [batch, features], history and its mask [batch, length] -> a logit [batch].

        The history's items get the rows that the target's ids get.
        """
        vectors, length = self.table(self.places(ids)), history.shape[1]
        if self.hashing:
            # an item is hashed in the column of the target, so that it meets the target's row
            columns = wf.broadcast_to(history[:, :, None], (*history.shape, self.features))
            flat = self.places(wf.reshape(columns, (-1, self.features)))[:, self.target]
            history = wf.reshape(flat, (-1, length))
        pooled = self.attention(vectors[:, self.target], self.table(history), mask)
        return self.score(wf.concat([vectors, pooled[:, None]], axis=1), dense)

    def score(self, vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
        """vectors [batch, features + 1, width], the last the pooled history -> [batch]."""
        return wf.squeeze(self.network(flatten_features(vectors, dense)), axis=1)


class MMoE(Recommender):
    """Several aims at once: experts that all share, mixed anew for each (Ma et al., 2018).

    >>> net = MMoE(features=2, rows=50, width=4, tasks=2, experts=3, expert=(8,), tower=(4,))
    >>> net(wf.tensor([[1, 2], [3, 4]])).shape
    (2, 2)
    """

    def __init__(
        self,
        features: int,
        rows: int,
        width: int = 16,
        dense: int = 0,
        tasks: int = 2,
        experts: int = 4,
        expert: Sequence[int] = (64,),
        tower: Sequence[int] = (32,),
        hashing: bool = True,
    ) -> None:
        super().__init__(features, rows, width, dense, hashing)
        given = features * width + dense
        self.experts = nn.ModuleList([MLP([given, *expert]) for _ in range(experts)])
        self.gates = nn.ModuleList([nn.Linear(given, experts) for _ in range(tasks)])
        self.towers = nn.ModuleList([MLP([expert[-1], *tower, 1]) for _ in range(tasks)])

    def score(self, vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
        """vectors [batch, features, width], dense [batch, dense] -> [batch, tasks]."""
        given = flatten_features(vectors, dense)
        opinions = wf.stack([wf.relu(expert(given)) for expert in self.experts], axis=1)
        scores = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = wf.softmax(gate(given), axis=1)  # [batch, experts]
            scores.append(tower(wf.sum(weights[:, :, None] * opinions, axis=1)))
        return wf.concat(scores, axis=1)
