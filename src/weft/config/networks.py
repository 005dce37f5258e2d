"""The networks of a configuration: vectors of features, pooled histories, and a model on top.

A batch is `dense`, `ids` and the ids of each sequence, as `FeatureSpace.arrays` gives them. All ids
are rows of one table of vectors already.

>>> import numpy as np
>>> from weft.config.features import FeatureSpace
>>> from weft.config.networks import feature_network
>>> settings = {"city": {"kind": "category", "columns": ["city"], "hash": 10, "share": ""}}
>>> space = FeatureSpace(settings).fit({"city": np.array(["Bern"])})
>>> model = {"kind": "deepfm", "width": 4, "hidden": [8], "dropout": 0.0}
>>> feature_network(model, space, outputs=1)(wf.tensor([[3]])).shape
(1,)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import weft as wf
from weft import nn
from weft.config.features import FeatureSpace, Sequence, no_ids
from weft.models import DLRM, MLP, DeepFM, MMoE, TargetAttention, WideAndDeep
from weft.models.interests import masked_mean
from weft.models.recommendation import Recommender, flatten_features
from weft.train.names import unknown

__all__ = ["FeatureNetwork", "feature_network"]


class FeatureMLP(nn.Module):
    """A perceptron over vectors and numbers; without ids there is no table of vectors."""

    def __init__(
        self, features: int, rows: int, width: int, dense: int, hidden: list[int], dropout: float,
        outputs: int,
    ) -> None:  # fmt: skip
        self.table = nn.Embedding(rows, width) if rows else None
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=0.01)
        self.network = MLP([features * width + dense, *hidden, outputs], dropout=dropout)

    def score(self, vectors: wf.Tensor | None, dense: wf.Tensor | None) -> wf.Tensor:
        """vectors [batch, features, width], dense [batch, dense] -> [batch, outputs]."""
        given = dense if vectors is None else flatten_features(vectors, dense)
        scores: wf.Tensor = self.network(given)
        return scores


class FeatureNetwork(nn.Module):
    """A model over features: looks vectors up, pools sequences, and has the model judge.

    `tables` and `answer` are its two halves, between which a trainer may take the gradients of
    those rows alone that a batch touches.
    """

    def __init__(
        self,
        space: FeatureSpace,
        body: nn.Module,
        attention: nn.ModuleDict,
        wide: tuple[int, ...] = (),
    ) -> None:
        self.has_dense, self.categories = bool(space.numbers), len(space.categories)
        self.sequences: tuple[Sequence, ...] = tuple(space.sequences)
        self.padding = tuple(space.missing_row(each.name) for each in self.sequences)
        self.target_of = tuple(
            space.categories.index(each.target) if each.pooling == "attention" else -1
            for each in self.sequences
        )
        self.body, self.attention, self.wide_ids = body, attention, wide

    def forward(self, *inputs: wf.Tensor) -> wf.Tensor:
        """What `FeatureSpace.arrays` gives, in its order -> [batch] or [batch, outputs]."""
        return self.answer(inputs, [table(places) for table, places in self.tables(inputs)])

    def tables(self, inputs: tuple[wf.Tensor, ...]) -> list[tuple[nn.Embedding, wf.Tensor]]:
        """The tables, and the rows [batch, ids] of each that a batch touches."""
        ids = inputs[1:] if self.has_dense else inputs
        if not ids:
            return []
        looked_up = [(self.body.table, wf.concat(ids, axis=1) if len(ids) > 1 else ids[0])]
        if self.wide_ids:
            looked_up.append((self.body.wide, wf.take(ids[0], wf.tensor(self.wide_ids), axis=1)))
        return looked_up

    def answer(self, inputs: tuple[wf.Tensor, ...], rows: list[wf.Tensor]) -> wf.Tensor:
        """The answer from the rows that were looked up, in the order of `tables`."""
        dense = inputs[0] if self.has_dense else None
        ids = inputs[1:] if self.has_dense else inputs
        vectors = self._pool(ids, rows[0]) if rows else None
        score: wf.Tensor = self.body.score(vectors, dense)
        return score + self.body.wide_score(rows[1]) if self.wide_ids else score

    def _pool(self, ids: tuple[wf.Tensor, ...], vectors: wf.Tensor) -> wf.Tensor:
        """Vectors [batch, ids, width] with one vector for each sequence, behind the categories."""
        begin = self.categories
        fields = [vectors[:, :begin]] if begin else []
        lists = ids[1:] if begin else ids
        for sequence, padding, target, places in zip(
            self.sequences, self.padding, self.target_of, lists, strict=True
        ):
            history = vectors[:, begin : begin + sequence.length]
            begin += sequence.length
            mask = wf.not_equal(places, padding)  # [batch, length]
            pooled = (
                masked_mean(history, mask)
                if target < 0
                else self.attention[sequence.name](vectors[:, target], history, mask)
            )
            fields.append(pooled[:, None])
        return wf.concat(fields, axis=1) if len(fields) > 1 else fields[0]


def feature_network(model: Mapping[str, Any], space: FeatureSpace, outputs: int) -> FeatureNetwork:
    """The network that a table `[model]` describes, over the features of a space."""
    kind, width, dense = model["kind"], model["width"], len(space.numbers)
    count = len(space.categories) + len(space.sequences)
    if kind != "mlp" and not count:
        raise no_ids(space, kind)
    if kind == "dlrm" and not dense:
        raise wf.ArgumentError(
            "config",
            "DLRM has no number to take the products of vectors with",
            expected='at least one feature of kind "number"',
            got={"features": ", ".join(space.settings)},
            fix='another model: model.kind = "deepfm"',
        )
    wide = _wide_ids(model, space) if kind == "wide_deep" else ()
    body = _body(model, space.rows, count, dense, outputs)
    attention = {
        each.name: TargetAttention(width, model.get("attention", [32]))
        for each in space.sequences
        if each.pooling == "attention" and _check_target(each, space)
    }
    return FeatureNetwork(space, body, nn.ModuleDict(attention), wide)


def _body(model: Mapping[str, Any], rows: int, count: int, dense: int, outputs: int) -> nn.Module:
    kind, width = model["kind"], model["width"]
    plain: dict[str, Any] = {"hashing": False}
    if kind == "dlrm":
        return DLRM(count, rows, width, dense, model["bottom"], model["top"], **plain)
    if kind == "mmoe":
        return MMoE(
            count, rows, width, dense, outputs, model["experts"], model["expert"], model["tower"],
            **plain,
        )  # fmt: skip
    hidden, dropout = model["hidden"], model["dropout"]
    if kind == "mlp":
        return FeatureMLP(count, rows, width, dense, hidden, dropout, outputs)
    if kind == "deepfm":
        return DeepFM(count, rows, width, dense, hidden, dropout, **plain)
    if kind == "wide_deep":
        return WideAndDeep(count, rows, width, dense, hidden, dropout, **plain)
    return _Interests(count, rows, width, dense, hidden, dropout)


class _Interests(Recommender):
    """What DIN has on top of pooled histories: a perceptron, and one logit."""

    def __init__(
        self, features: int, rows: int, width: int, dense: int, hidden: list[int], dropout: float
    ) -> None:
        super().__init__(features, rows, width, dense, hashing=False)
        self.network = MLP([features * width + dense, *hidden, 1], dropout=dropout)

    def score(self, vectors: wf.Tensor, dense: wf.Tensor | None) -> wf.Tensor:
        """vectors [batch, features, width], dense [batch, dense] -> [batch]."""
        return wf.squeeze(self.network(flatten_features(vectors, dense)), axis=1)


def _wide_ids(model: Mapping[str, Any], space: FeatureSpace) -> tuple[int, ...]:
    """The numbers of the features of the wide part among all categories."""
    crosses = [n for n in space.categories if space.settings[n]["kind"] == "cross"]
    names = model["wide"] or crosses or space.categories
    for name in names:
        if name not in space.categories:
            raise unknown("config: model.wide", "feature of one id", name, space.categories)
    return tuple(space.categories.index(name) for name in names)


def _check_target(sequence: Sequence, space: FeatureSpace) -> bool:
    if sequence.target not in space.categories:
        where = f"config: features.{sequence.name}.target"
        raise unknown(where, "feature of one id", sequence.target, space.categories)
    return True
