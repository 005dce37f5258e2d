"""Metrics of classes: the confusion matrix, what follows from it, and the area under the ROC.

>>> import weft as wf
>>> matrix = wf.train.ConfusionMatrix()
>>> matrix.update(wf.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), wf.tensor([0, 1, 1]))
>>> matrix.value().tolist()
[[1, 0], [1, 1]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.train.metrics import Array, ClassMetric, Metric, array_of, classes_of, register_metric

__all__ = ["AUC", "F1", "ConfusionMatrix", "Precision", "Recall"]

AVERAGES = ("macro", "micro", "none")


class ConfusionMatrix(ClassMetric):
    """How often each class (row) was taken for each class (column); `Accuracy` says how."""

    def start(self) -> dict[str, Any]:
        """The counts before the first batch."""
        return {"matrix": np.zeros((0, 0), np.int64)}

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        predicted, wanted = classes_of(
            self.name, outputs, targets, self.axis, self.threshold, self.ignore_index
        )
        self._grow(self._count(array_of(outputs), array_of(targets)))
        np.add.at(self.state["matrix"], (wanted, predicted), 1)

    def joined_state(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Metric`; a process may not have met all classes."""
        matrices = [state["matrix"] for state in states]
        whole = np.zeros((max(map(len, matrices)),) * 2, np.int64)
        for matrix in matrices:
            whole[: len(matrix), : len(matrix)] += matrix
        return {"matrix": whole}

    def value(self) -> Any:
        """The matrix int64[classes, classes]: rows are true classes, columns predicted ones."""
        return self.state["matrix"].copy()

    def _count(self, outputs: Array, targets: Array) -> int:
        """How many classes the outputs tell apart: two where there is one output for each."""
        single = outputs.shape in (targets.shape, (*targets.shape, 1))
        return 2 if single else outputs.shape[self.axis]

    def _grow(self, size: int) -> None:
        old = self.state["matrix"]
        missing = max(0, size - len(old))
        self.state["matrix"] = np.pad(old, (0, missing))


class Precision(ConfusionMatrix):
    """The share of the examples predicted as a class that are of it.

    `average` is "macro" (the mean over classes that occur), "micro" (all examples count alike) or
    "none" (one number for each class). With two classes and one output, it is that of class 1.

    >>> import weft as wf
    >>> precision = wf.train.Precision()
    >>> precision.update(wf.tensor([1.0, 2.0, -1.0]), wf.tensor([1, 0, 1]))
    >>> precision.value()
    0.5
    """

    def __init__(self, name: str = "", *, average: str = "macro", **options: Any) -> None:
        if average not in AVERAGES:
            raise wf.ArgumentError(
                f"train.{type(self).__name__}",
                "no such average",
                expected=", ".join(map(repr, AVERAGES)),
                got={"average": average},
                fix='average="macro"',
            )
        self.average = average
        super().__init__(name, **options)

    def start(self) -> dict[str, Any]:
        """The counts before the first batch; whether the task is binary is not known yet."""
        return {**super().start(), "binary": False}

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        super().update(outputs, targets)
        shape, wanted = array_of(outputs).shape, array_of(targets).shape
        self.state["binary"] = np.asarray(shape in (wanted, (*wanted, 1)))

    def value(self) -> Any:
        """The number, or one for each class."""
        matrix = self.state["matrix"]
        hits, predicted, wanted = np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
        if self.average == "micro" and not self.state["binary"]:
            return float(self.share(hits.sum(), predicted.sum(), wanted.sum()))
        each = self.share(hits, predicted, wanted)
        if self.average == "none":
            return each
        if self.state["binary"]:
            return float(each[1])
        occurs = (predicted + wanted) > 0
        return float(each[occurs].mean()) if occurs.any() else float("nan")

    def share(self, hits: Any, found: Any, wanted: Any) -> Any:
        """The metric of a class that was hit, found and wanted so often."""
        return _divide_or_zero(hits, found)


class Recall(Precision):
    """The share of a class's examples that are predicted as it; arguments as for `Precision`.

    >>> import weft as wf
    >>> recall = wf.train.Recall()
    >>> recall.update(wf.tensor([1.0, 2.0, -1.0, -2.0]), wf.tensor([1, 0, 1, 1]))
    >>> round(recall.value(), 4)
    0.3333
    """

    def share(self, hits: Any, found: Any, wanted: Any) -> Any:
        """The metric of a class that was hit, found and wanted so often."""
        return _divide_or_zero(hits, wanted)


class F1(Precision):
    """The harmonic mean of precision and recall; arguments as for `Precision`.

    >>> import weft as wf
    >>> f1 = wf.train.F1(average="none")
    >>> f1.update(wf.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 2.0]]), wf.tensor([0, 1, 0]))
    >>> [round(float(x), 4) for x in f1.value()]
    [0.6667, 0.6667]
    """

    def share(self, hits: Any, found: Any, wanted: Any) -> Any:
        """The metric of a class that was hit, found and wanted so often."""
        return _divide_or_zero(2 * hits, found + wanted)


class AUC(Metric):
    """The area under the ROC curve, exactly: how often a yes scores above a no; ties count half.

    Scores are one for each example, or one for each class, of which every class against the rest
    is averaged (of two, the second counts). All scores are kept until the next reset.

    >>> import weft as wf
    >>> auc = wf.train.AUC()
    >>> auc.update(wf.tensor([0.1, 0.4, 0.35]), wf.tensor([0, 0, 1]))
    >>> auc.update(wf.tensor([0.8]), wf.tensor([1]))
    >>> auc.value()
    0.75
    """

    def start(self) -> dict[str, Any]:
        """Empty lists of scores and targets."""
        return {"scores": np.zeros((0, 0), np.float32), "targets": np.zeros(0, np.int64)}

    def update(self, outputs: Any, targets: Any) -> None:
        """Keep a batch."""
        scores, wanted = array_of(outputs), array_of(targets).reshape(-1).astype(np.int64)
        scores = scores.reshape(len(wanted), -1) if len(wanted) else scores.reshape(0, 1)
        single = scores.shape[1] == 1
        classes_of(self.name, scores[:, 0] if single else scores, wanted)
        if self.state["scores"].shape[0] == 0:
            self.state["scores"] = np.zeros((0, scores.shape[1]), scores.dtype)
        self.state["scores"] = np.concatenate([self.state["scores"], scores])
        self.state["targets"] = np.concatenate([self.state["targets"], wanted])

    def joined_state(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All scores of several processes."""
        kept = [state for state in states if len(state["targets"])] or states[:1]
        return {key: np.concatenate([state[key] for state in kept]) for key in kept[0]}

    def value(self) -> float:
        """The area; NaN where there are not both kinds of examples."""
        scores, targets = self.state["scores"], self.state["targets"]
        if scores.shape[1] <= 2:
            return _area(scores[:, -1], targets == 1) if scores.size else float("nan")
        present = np.unique(targets)
        return float(np.mean([_area(scores[:, c], targets == c) for c in present]))


def _area(scores: Array, is_yes: Array) -> float:
    """Mann and Whitney's count of pairs, by ranks."""
    yes = int(np.count_nonzero(is_yes))
    no = is_yes.size - yes
    if not yes or not no:
        return float("nan")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[places]
    return float((ranks[is_yes].sum() - yes * (yes + 1) / 2) / (yes * no))


def _divide_or_zero(top: Any, bottom: Any) -> Any:
    """The quotient; 0 where the divisor is 0."""
    return np.where(np.asarray(bottom) > 0, top / np.maximum(bottom, 1), 0.0)


for _name, _kind in (("precision", Precision), ("recall", Recall), ("f1", F1), ("auc", AUC)):
    register_metric(_name, _kind)
register_metric("confusion_matrix", ConfusionMatrix)
