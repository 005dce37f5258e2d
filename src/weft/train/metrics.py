"""Metrics: what is counted over batches, and the numbers that follow from the counts.

A metric never averages averages: it adds up counts and sums over all examples, so its value does
not depend on how they were cut into batches. `state` is all it remembers, as arrays, so that a
run that is resumed in the middle of an epoch goes on counting.

>>> import weft as wf
>>> accuracy = wf.train.Accuracy()
>>> accuracy.update(wf.tensor([[0.1, 0.9], [0.8, 0.2]]), wf.tensor([1, 1]))
>>> accuracy.update(wf.tensor([[0.1, 0.9]]), wf.tensor([1]))
>>> round(accuracy.value(), 4)
0.6667
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import weft as wf
from weft.train.names import unknown

__all__ = [
    "MAE", "MSE", "R2", "Accuracy", "Mean", "Metric", "Perplexity", "TopK", "as_metrics",
    "register_metric",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
IGNORED = -100
"""The label of what is not judged, such as padding; cross entropy leaves out the same."""


class Metric:
    """What all metrics are: `update` counts a batch, `value` tells, `reset` begins anew.

    A metric of one's own keeps its counts in `self.state`, set up by `start`.

    >>> import weft as wf
    >>> class Largest(wf.train.Metric):
    ...     def start(self):
    ...         return {"largest": float("-inf")}
    ...     def update(self, outputs, targets):
    ...         self.state["largest"] = max(self.state["largest"], outputs.max().item())
    ...     def value(self):
    ...         return float(self.state["largest"])
    >>> largest = Largest()
    >>> largest.update(wf.tensor([1.0, 3.0]), None)
    >>> largest.name, largest.value()
    ('largest', 3.0)
    """

    name = ""
    higher_is_better = True

    def __init__(self, name: str = "") -> None:
        self.name = name or self.name or _snake(type(self).__name__)
        self.state: dict[str, Any] = {}
        self.reset()

    def start(self) -> dict[str, Any]:
        """The counts before the first batch."""
        return {"total": 0.0, "count": 0}

    def reset(self) -> None:
        """Forget all batches."""
        self.state = {key: np.asarray(value) for key, value in self.start().items()}

    def update(self, outputs: Any, targets: Any) -> None:
        """Count one batch."""
        raise NotImplementedError

    def value(self) -> Any:
        """The metric of all batches since the last reset; NaN if there was none."""
        return _ratio(self.state["total"], self.state["count"])

    def joined_state(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The counts of several processes as those of one: by default, their sums."""
        return {key: np.asarray(sum(state[key] for state in states)) for key in states[0]}

    def add(self, **counts: Any) -> None:
        """Add to the counts."""
        for key, count in counts.items():
            self.state[key] = self.state[key] + count


class Mean(Metric):
    """The mean of a function over all examples, each batch weighted by its size.

    >>> import weft as wf
    >>> distance = wf.train.Mean(lambda outputs, targets: wf.abs(outputs - targets), "distance")
    >>> distance.update(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 4.0]))
    >>> distance.value()
    1.0
    """

    higher_is_better = False

    def __init__(self, function: Callable[[Any, Any], Any], name: str = "") -> None:
        self.function = function
        super().__init__(name or getattr(function, "__name__", "mean").strip("<>"))

    def update(self, outputs: Any, targets: Any) -> None:
        """Count what the function gives: one number for each example, or one for the batch."""
        values = array_of(self.function(outputs, targets)).astype(np.float64)
        weight = values.size if values.ndim else _first_size(targets, outputs)
        self.add(total=values.sum() if values.ndim else values * weight, count=weight)


class ClassMetric(Metric):
    """A metric of predicted classes: along which axis, above what, and what is left out."""

    def __init__(
        self,
        name: str = "",
        *,
        axis: int = -1,
        threshold: float = 0.0,
        ignore_index: int = IGNORED,
    ) -> None:
        self.axis, self.threshold, self.ignore_index = axis, threshold, ignore_index
        super().__init__(name)


class Accuracy(ClassMetric):
    """The share of examples whose class was found.

    Integer targets are compared with the largest of the outputs along `axis`. Targets of the same
    shape as the outputs are yes or no: yes is an output above `threshold`, which is 0 for logits.
    Targets of `ignore_index` are not counted.

    >>> import weft as wf
    >>> accuracy = wf.train.Accuracy()
    >>> accuracy.update(wf.tensor([2.0, -1.0, 0.5]), wf.tensor([1, 0, 0]))
    >>> round(accuracy.value(), 4)
    0.6667
    """

    def start(self) -> dict[str, Any]:
        """The counts before the first batch."""
        return {"total": 0, "count": 0}

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        predicted, wanted = classes_of(
            self.name, outputs, targets, self.axis, self.threshold, self.ignore_index
        )
        self.add(total=np.count_nonzero(predicted == wanted), count=wanted.size)


class TopK(Metric):
    """The share of examples whose class is among the `k` largest outputs; ties count for it.

    >>> import weft as wf
    >>> top = wf.train.TopK(2)
    >>> top.update(wf.tensor([[0.1, 0.9, 0.5], [0.8, 0.3, 0.2]]), wf.tensor([2, 2]))
    >>> top.name, top.value()
    ('top_2', 0.5)
    """

    def __init__(
        self, k: int = 5, name: str = "", *, axis: int = -1, ignore_index: int = IGNORED
    ) -> None:
        self.k, self.axis, self.ignore_index = k, axis, ignore_index
        super().__init__(name or f"top_{k}")

    def start(self) -> dict[str, Any]:
        """The counts before the first batch."""
        return {"total": 0, "count": 0}

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        scores, wanted = scores_of(self.name, outputs, targets, self.axis, self.ignore_index)
        own = np.take_along_axis(scores, wanted[:, None], 1)
        better = np.count_nonzero(scores > own, axis=1)
        self.add(total=np.count_nonzero(better < self.k), count=wanted.size)


class Perplexity(Metric):
    """e to the mean negative log-likelihood of the targets, from logits.

    >>> import weft as wf
    >>> perplexity = wf.train.Perplexity()
    >>> perplexity.update(wf.zeros((2, 3, 8)), wf.tensor([[1, 2, 3], [4, 5, -100]]))
    >>> round(perplexity.value(), 4)
    8.0
    """

    higher_is_better = False

    def __init__(self, name: str = "", *, axis: int = -1, ignore_index: int = IGNORED) -> None:
        self.axis, self.ignore_index = axis, ignore_index
        super().__init__(name)

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        scores, wanted = scores_of(self.name, outputs, targets, self.axis, self.ignore_index)
        scores = scores.astype(np.float64)
        highest = scores.max(axis=1, initial=-np.inf, keepdims=True)
        normal = np.log(np.exp(scores - highest).sum(axis=1)) + highest[:, 0]
        own = np.take_along_axis(scores, wanted[:, None], 1)[:, 0]
        self.add(total=np.sum(normal - own), count=wanted.size)

    def value(self) -> float:
        """The perplexity of all batches; NaN if there was none."""
        return float(np.exp(super().value()))


class MSE(Metric):
    """The mean squared difference between outputs and targets.

    >>> import weft as wf
    >>> error = wf.train.MSE()
    >>> error.update(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 4.0]))
    >>> error.value()
    2.0
    """

    higher_is_better = False

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        predicted, wanted = numbers_of(self.name, outputs, targets)
        self.add(total=np.sum((predicted - wanted) ** 2), count=wanted.size)


class MAE(Metric):
    """The mean absolute difference between outputs and targets.

    >>> import weft as wf
    >>> error = wf.train.MAE()
    >>> error.update(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 4.0]))
    >>> error.value()
    1.0
    """

    higher_is_better = False

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        predicted, wanted = numbers_of(self.name, outputs, targets)
        self.add(total=np.sum(np.abs(predicted - wanted)), count=wanted.size)


class R2(Metric):
    """The share of the targets' variance that the outputs explain: 1 is all, 0 as the mean would.

    >>> import weft as wf
    >>> r2 = wf.train.R2()
    >>> r2.update(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 2.0]))
    >>> r2.update(wf.tensor([4.0]), wf.tensor([3.0]))
    >>> r2.value()
    0.5
    """

    name = "r2"

    def start(self) -> dict[str, Any]:
        """The sums before the first batch."""
        return {"residual": 0.0, "spread": 0.0, "mean": 0.0, "count": 0}

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch; means are joined by Chan's formula, which does not cancel."""
        predicted, wanted = numbers_of(self.name, outputs, targets)
        if wanted.size == 0:
            return
        before, mean = self.state["count"], wanted.mean()
        count = before + wanted.size
        gap = mean - self.state["mean"]
        spread = np.sum((wanted - mean) ** 2) + gap**2 * before * wanted.size / count
        self.add(
            residual=np.sum((predicted - wanted) ** 2),
            spread=spread,
            mean=gap * wanted.size / count,
            count=wanted.size,
        )

    def joined_state(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Metric`; spreads are about each process's own mean."""
        count = sum(state["count"] for state in states)
        mean = sum(state["mean"] * state["count"] for state in states) / max(count, 1)
        apart = sum(state["count"] * (state["mean"] - mean) ** 2 for state in states)
        summed = super().joined_state(states)
        return {**summed, "spread": summed["spread"] + apart, "mean": np.asarray(mean)}

    def value(self) -> float:
        """1 - residual / spread; NaN where the targets are all the same."""
        return 1.0 - _ratio(self.state["residual"], self.state["spread"])


# --- what metrics are given --------------------------------------------------------------------


def array_of(value: Any) -> Array:
    """A tensor's, an array's or a list's numbers."""
    return value.detach().numpy() if isinstance(value, wf.Tensor) else np.asarray(value)


def numbers_of(op: str, outputs: Any, targets: Any) -> tuple[Array, Array]:
    """Outputs and targets of one shape, in float64."""
    predicted, wanted = array_of(outputs), array_of(targets)
    if predicted.shape == (*wanted.shape, 1):
        predicted = predicted[..., 0]
    if predicted.shape != wanted.shape:
        problem, expected = "outputs and targets differ in shape", "targets of the outputs' shape"
        raise _misfit_error(op, problem, expected, predicted, wanted)
    return predicted.astype(np.float64), wanted.astype(np.float64)


def scores_of(
    op: str, outputs: Any, targets: Any, axis: int = -1, ignore_index: int = IGNORED
) -> tuple[Array, Array]:
    """The scores of each class [examples, classes] and the classes [examples], ignored ones out."""
    scores, wanted = array_of(outputs), array_of(targets)
    if scores.ndim == 0 or not -scores.ndim <= axis < scores.ndim:
        raise _misfit_error(op, f"the outputs have no axis {axis} of classes",
                      "a score for each class", scores, wanted)  # fmt: skip
    scores = np.moveaxis(scores, axis, -1)
    if scores.shape[:-1] != wanted.shape or wanted.dtype.kind not in "iu":
        raise _misfit_error(op, "there is not one class for each row of scores",
                      f"integer targets of shape {list(scores.shape[:-1])}",
                      scores, wanted)  # fmt: skip
    scores, wanted = scores.reshape(-1, scores.shape[-1]), wanted.reshape(-1).astype(np.int64)
    kept = wanted != ignore_index
    if not kept.all():
        scores, wanted = scores[kept], wanted[kept]
    check_classes(op, wanted, scores.shape[-1])
    return scores, wanted


def classes_of(
    op: str,
    outputs: Any,
    targets: Any,
    axis: int = -1,
    threshold: float = 0.0,
    ignore_index: int = IGNORED,
) -> tuple[Array, Array]:
    """The classes found and the classes wanted, both [examples], as `Accuracy` describes."""
    predicted, wanted = array_of(outputs), array_of(targets)
    if predicted.shape == (*wanted.shape, 1) and wanted.ndim:
        predicted = predicted[..., 0]
    if predicted.shape == wanted.shape:
        chosen = (predicted > threshold).reshape(-1).astype(np.int64)
        kept = wanted.reshape(-1).astype(np.int64)
        check_classes(op, kept[kept != ignore_index], 2)
        return chosen[kept != ignore_index], kept[kept != ignore_index]
    scores, classes = scores_of(op, outputs, targets, axis, ignore_index)
    return scores.argmax(axis=1), classes


def check_classes(op: str, classes: Array, count: int) -> None:
    """Refuse a class that has no score, naming the first."""
    wrong = np.flatnonzero((classes < 0) | (classes >= count))
    if wrong.size:
        raise wf.BoundsError(
            op,
            "a target is not one of the classes",
            expected=f"classes from 0 to {count - 1}",
            got={f"target {wrong[0]}": int(classes[wrong[0]])},
            fix=f"give the model {int(classes[wrong].max()) + 1} outputs, or correct the labels",
        )


def _misfit_error(
    op: str, problem: str, expected: str, outputs: Array, targets: Array
) -> wf.ShapeError:
    return wf.ShapeError(
        op,
        problem,
        expected=expected,
        got={"outputs": outputs, "targets": targets},
        fix="pass the model's outputs and the batch's targets, or name the axis of classes: axis=1",
    )


def _ratio(total: Any, count: Any) -> float:
    return float(total) / float(count) if count else float("nan")


def _first_size(*values: Any) -> int:
    sizes = [int(value.shape[0]) for value in values if len(getattr(value, "shape", ()))]
    return sizes[0] if sizes else 1


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


# --- names -------------------------------------------------------------------------------------

_REGISTERED: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "top_5": TopK,
    "perplexity": Perplexity,
    "mse": MSE,
    "mae": MAE,
    "r2": R2,
}


def register_metric(name: str, make: Callable[[], Metric]) -> None:
    """Let `metrics=["name"]` stand for a metric of one's own.

    >>> import weft as wf
    >>> wf.train.register_metric("top_3", lambda: wf.train.TopK(3))
    >>> wf.train.as_metrics(["top_3"])[0].name
    'top_3'
    """
    _REGISTERED[name] = make


def as_metrics(metrics: Iterable[Any]) -> list[Metric]:
    """Metrics for metrics, registered names, and functions of outputs and targets.

    >>> import weft as wf
    >>> [metric.name for metric in wf.train.as_metrics(["accuracy", wf.train.MSE("error")])]
    ['accuracy', 'error']
    """
    metric_list = [_as_metric(metric) for metric in metrics]
    names = [metric.name for metric in metric_list]
    for name in names:
        if names.count(name) > 1:
            raise wf.ArgumentError(
                "train.Trainer",
                f"two metrics are called {name!r}",
                expected="metrics of different names",
                got={"metrics": names},
                fix=f'give one another name: name="{name}_2"',
            )
    return metric_list


def _as_metric(metric: Any) -> Metric:
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if metric not in _REGISTERED:
            raise unknown("train.Trainer", "metric", metric, _REGISTERED)
        return _REGISTERED[metric]()
    if isinstance(metric, type) and issubclass(metric, Metric):
        return metric()
    if callable(metric):
        return Mean(metric)
    raise wf.ArgumentTypeError(
        "train.Trainer",
        "this is not a metric",
        expected="a metric, its name, or a function of outputs and targets",
        got={"metric": metric},
        fix='metrics=["accuracy"]',
    )
