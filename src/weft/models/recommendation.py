"""Recommenders over categorical features: DLRM, DeepFM, and Wide & Deep, with one large table.

All features share a table of rows; a feature's id is hashed to a row of it. `loss_and_rows` gives
gradients only for the rows a batch touches, and `optimizer.step(rows=...)` changes only those rows
of the table and of the optimiser's state.

>>> import weft as wf
>>> from weft.models import DeepFM
>>> net = DeepFM(features=3, rows=100, width=4, dense=2, hidden=(8,))
>>> ids = wf.tensor([[7, 123456789, 3]])
>>> net(ids, wf.ones((1, 2))).shape
(1,)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import weft as wf
from weft import nn
from weft.models.perceptron import MLP
from weft.nn import functional as F  # noqa: N812

MULTIPLIERS = 0x7FEB352D, 0x846CA68B
"""Those of a mixer of 32 bits whose every output bit depends on every input bit."""


def hashed(ids: wf.Tensor, rows: int) -> wf.Tensor:
    """Rows [batch, features] for ids of any size; the same id in another feature is another row.

    >>> hashed(wf.tensor([[5, 5], [5, 6]]), 1000).tolist()
    [[769, 969], [769, 906]]
    """
    features = wf.arange(ids.shape[1]).astype(wf.uint32)
    low = wf.bitwise_and(ids, 0xFFFFFFFF).astype(wf.uint32)
    high = wf.bitwise_and(wf.bitwise_right_shift(ids, 32), 0xFFFFFFFF).astype(wf.uint32)
    return wf.remainder(_mix_bits(low + _mix_bits(high + _mix_bits(features + 1))), rows).astype(
        wf.int64
    )


def _mix_bits(x: wf.Tensor) -> wf.Tensor:
    """Bits of uint32 [...] spread over all places; products wrap around."""
    for shift, multiplier in zip((16, 15), MULTIPLIERS, strict=True):
        x = wf.bitwise_xor(x, wf.bitwise_right_shift(x, shift))
        x = x * wf.asarray(multiplier, dtype=wf.uint32)
    return wf.bitwise_xor(x, wf.bitwise_right_shift(x, 16))


class Recommender(nn.Module):
    """What all share: a table [rows, width] and a click as a logit.

    Ids are hashed to rows of the table; with `hashing=False` they are its rows already.
    """

    def __init__(
        self, features: int, rows: int, width: int, dense: int, hashing: bool = True
    ) -> None:
        self.features, self.rows, self.dense, self.hashing = features, rows, dense, hashing
        self.table = nn.Embedding(rows, width)
        nn.init.normal_(self.table.weight, std=0.01)

    def forward(self, ids: wf.Tensor, dense: wf.Tensor | None = None) -> wf.Tensor:
        """ids [batch, features], dense [batch, dense] -> the logit of a click [batch]."""
        return self.score(self.table(self.places(ids)), dense)

    def places(self, ids: wf.Tensor) -> wf.Tensor:
        """The rows of the table that a batch touches: [batch, features]."""
        if ids.ndim != 2 or ids.shape[1] != self.features:
            raise wf.ShapeError(
                type(self).__name__,
                "there is not one id for each feature",
                expected=f"ids: [batch, {self.features}]",
                got={"ids": ids},
                fix=f"{type(self).__name__}(features={ids.shape[-1] if ids.ndim else 1}, ...)",
            )
        return hashed(ids, self.rows) if self.hashing else ids

    def score(self, vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
        """vectors [batch, features, width] -> the logit of a click [batch]."""
        raise NotImplementedError

    def loss_and_rows(
        self, ids: wf.Tensor, dense: wf.Tensor | None, clicks: wf.Tensor
    ) -> tuple[wf.Tensor, list[wf.optim.Rows]]:
        """The loss, gone back from, and the gradient of the touched rows for `optimizer.step`.

        >>> net = DeepFM(features=2, rows=50, width=4, hidden=(8,))
        >>> optimizer = wf.optim.Adagrad(net.parameters(), lr=0.1)
        >>> ids, clicks = wf.tensor([[1, 2], [3, 4]]), wf.tensor([1.0, 0.0])
        >>> loss, rows = net.loss_and_rows(ids, None, clicks)
        >>> optimizer.step(rows=rows)
        >>> rows[0].gradient.shape, net.table.weight.grad
        ((2, 2, 4), None)
        """
        places = self.places(ids)
        vectors = wf.optim.take_rows(self.table.weight, places)
        loss = F.binary_cross_entropy_with_logits(self.score(vectors, dense), clicks)
        loss.backward()
        gradient: Any = vectors.grad
        return loss, [wf.optim.Rows(self.table.weight, places, gradient)]


class DLRM(Recommender):
    """Dense features through a network, products of all pairs of vectors, a network on top."""

    def __init__(
        self,
        features: int,
        rows: int,
        width: int = 16,
        dense: int = 13,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (64,),
        hashing: bool = True,
    ) -> None:
        super().__init__(features, rows, width, dense, hashing)
        self.bottom = MLP([dense, *bottom, width])
        count = features + 1
        self.top = MLP([width + count * (count - 1) // 2, *top, 1])

    def score(self, vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
        """vectors [batch, features, width], dense [batch, dense] -> [batch]."""
        lowered = self.bottom(dense)  # [batch, width]
        everything = wf.concat([lowered[:, None], vectors], axis=1)
        products = everything @ everything.mT  # [batch, features + 1, features + 1]
        count = self.features + 1
        pairs = [products[:, i, :i] for i in range(1, count)]
        joined = wf.concat([lowered, *pairs], axis=1)
        return wf.squeeze(self.top(joined), axis=1)


class DeepRecommender(Recommender):
    """A network over the vectors of an example, beside a shallow part that subclasses add."""

    def __init__(
        self,
        features: int,
        rows: int,
        width: int = 16,
        dense: int = 0,
        hidden: Sequence[int] = (64, 64),
        dropout: float = 0.0,
        hashing: bool = True,
    ) -> None:
        super().__init__(features, rows, width, dense, hashing)
        inputs = features * width + dense
        self.add_shallow_part(inputs, rows)
        self.network = MLP([inputs, *hidden, 1], dropout=dropout)

    @abstractmethod
    def add_shallow_part(self, inputs: int, rows: int) -> None:
        """Add what stands beside the network, whose rows have so many inputs."""


class DeepFM(DeepRecommender):
    """A factorisation machine beside a network, both over the same vectors (Guo et al., 2017)."""

    def add_shallow_part(self, inputs: int, rows: int) -> None:
        """The machine's weights of single features."""
        self.linear = nn.Linear(inputs, 1)

    def score(self, vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
        """vectors [batch, features, width], dense [batch, dense] -> [batch]."""
        given = flatten_features(vectors, dense)
        # the sum over all pairs of their products: half of (sum squared - squares summed)
        squares = wf.sum(vectors, axis=1) ** 2 - wf.sum(vectors**2, axis=1)  # [batch, width]
        pairs = 0.5 * wf.sum(squares, axis=1)
        return wf.squeeze(self.linear(given) + self.network(given), axis=1) + pairs


class WideAndDeep(DeepRecommender):
    """A weight for each id beside a network over the vectors (Cheng et al., 2016).

    The wide part is linear in ids, which remembers; the deep part generalises.

    >>> net = WideAndDeep(features=2, rows=50, width=4, hidden=(8,))
    >>> net(wf.tensor([[1, 2], [3, 4]])).shape
    (2,)
    """

    def add_shallow_part(self, inputs: int, rows: int) -> None:
        """A weight for each id, zero at first."""
        self.wide = nn.Embedding(rows, 1)
        nn.init.zeros_(self.wide.weight)

    def forward(self, ids: wf.Tensor, dense: wf.Tensor | None = None) -> wf.Tensor:
        """ids [batch, features], dense [batch, dense] -> the logit of a click [batch]."""
        places = self.places(ids)
        return self.score(self.table(places), dense) + self.wide_score(self.wide(places))

    def wide_score(self, weights: wf.Tensor) -> wf.Tensor:
        """The weights of ids, [batch, ids, 1] -> their sum [batch]."""
        return wf.sum(weights, axis=(1, 2))

    def score(self, vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
        """The deep part: vectors [batch, features, width], dense [batch, dense] -> [batch]."""
        return wf.squeeze(self.network(flatten_features(vectors, dense)), axis=1)


def flatten_features(vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
    """All that is known of an example, in a row: [batch, features * width + dense]."""
    flat = wf.reshape(vectors, (vectors.shape[0], -1))
    return flat if dense is None else wf.concat([flat, dense], axis=1)
