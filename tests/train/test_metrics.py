"""Metrics agree with their formulas over all examples, however these are cut into batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.train import (  # fmt: skip
    AUC,
    F1,
    MAE,
    MSE,
    R2,
    Accuracy,
    ConfusionMatrix,
    Metric,
    Perplexity,
    Precision,
    Recall,
    TopK,
    as_metrics,
)

GENERATOR = np.random.default_rng(5)
SCORES = GENERATOR.normal(size=(200, 6)).astype(np.float32)
LABELS = GENERATOR.integers(0, 5, 200)  # class 5 never occurs, but is found
VALUES = (100 + GENERATOR.normal(size=200)).astype(np.float32)
WANTED = (100 + GENERATOR.normal(size=200)).astype(np.float32)
LOGITS = np.round(GENERATOR.normal(size=200), 1).astype(np.float32)  # with ties
ANSWERS = (LOGITS + GENERATOR.normal(size=200) > 0).astype(np.int64)


def in_batches(metric: Metric, outputs: Any, targets: Any) -> Any:
    for start, end in [(0, 1), (1, 64), (64, 128), (128, 200)]:
        metric.update(wf.tensor(outputs[start:end]), wf.tensor(targets[start:end]))
    return metric.value()


def counts() -> tuple[Any, Any, Any]:
    found = SCORES.argmax(1)
    pairs = [(np.sum((found == c) & (LABELS == c)), np.sum(found == c), np.sum(LABELS == c))
             for c in range(6)]  # fmt: skip
    hits, taken, true = np.array(pairs).T.astype(float)
    return hits, np.maximum(taken, 1e-9), np.maximum(true, 1e-9)


def top_three() -> float:
    order = np.argsort(-SCORES, axis=1)[:, :3]
    return float(np.mean([label in row for label, row in zip(LABELS, order, strict=True)]))


def perplexity() -> float:
    logits = SCORES.astype(np.float64)
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return float(np.exp(-np.mean(np.log(chance[np.arange(200), LABELS]))))


def pairs_won() -> float:
    yes, no = LOGITS[ANSWERS == 1], LOGITS[ANSWERS == 0]
    won = (yes[:, None] > no).sum() + 0.5 * (yes[:, None] == no).sum()
    return float(won / (yes.size * no.size))


def r2() -> float:
    wanted = WANTED.astype(np.float64)
    return float(1 - np.sum((VALUES - wanted) ** 2) / np.sum((wanted - wanted.mean()) ** 2))


def macro(share: Callable[[Any, Any, Any], Any]) -> float:
    return float(np.mean(share(*counts())))


CASES: list[tuple[Metric, Any, Any, float]] = [
    (Accuracy(), SCORES, LABELS, float(np.mean(SCORES.argmax(1) == LABELS))),
    (Accuracy(), LOGITS, ANSWERS, float(np.mean((LOGITS > 0) == ANSWERS))),
    (Accuracy(threshold=0.5), LOGITS, ANSWERS, float(np.mean((LOGITS > 0.5) == ANSWERS))),
    (TopK(3), SCORES, LABELS, top_three()),
    (Perplexity(), SCORES, LABELS, perplexity()),
    (MSE(), VALUES, WANTED, float(np.mean((VALUES - WANTED.astype(float)) ** 2))),
    (MAE(), VALUES, WANTED, float(np.mean(np.abs(VALUES - WANTED.astype(float))))),
    (R2(), VALUES, WANTED, r2()),
    (AUC(), LOGITS, ANSWERS, pairs_won()),
    (Precision(), SCORES, LABELS, macro(lambda hits, taken, true: hits / taken)),
    (Recall(), SCORES, LABELS, macro(lambda hits, taken, true: hits / true)),
    (F1(), SCORES, LABELS, macro(lambda hits, taken, true: 2 * hits / (taken + true))),
    (Precision(average="micro"), SCORES, LABELS, float(np.mean(SCORES.argmax(1) == LABELS))),
    (F1(average="micro"), SCORES, LABELS, float(np.mean(SCORES.argmax(1) == LABELS))),
]


@pytest.mark.parametrize(
    ("metric", "outputs", "targets", "wanted"),
    CASES,
    ids=[f"{type(case[0]).__name__}-{i}" for i, case in enumerate(CASES)],
)
def test_a_metric_over_batches_is_its_formula_over_all(
    metric: Metric, outputs: Any, targets: Any, wanted: float
) -> None:
    metric.reset()
    assert in_batches(metric, outputs, targets) == pytest.approx(wanted, rel=1e-9)
    whole = type(metric).__new__(type(metric))
    whole.__dict__.update(metric.__dict__)
    whole.reset()
    whole.update(wf.tensor(outputs), wf.tensor(targets))
    assert whole.value() == pytest.approx(wanted, rel=1e-9)


def test_the_confusion_matrix_counts_every_pair() -> None:
    matrix = in_batches(ConfusionMatrix(), SCORES, LABELS)
    wanted = np.zeros((6, 6), np.int64)
    for label, found in zip(LABELS, SCORES.argmax(1), strict=True):
        wanted[label, found] += 1
    assert np.array_equal(matrix, wanted)


def test_yes_or_no_is_judged_by_the_yes() -> None:
    found, true = LOGITS > 0, ANSWERS == 1
    assert in_batches(Precision(), LOGITS, ANSWERS) == pytest.approx(true[found].mean())
    assert in_batches(Recall(), LOGITS, ANSWERS) == pytest.approx(found[true].mean())


def test_the_area_of_many_classes_is_the_mean_against_the_rest() -> None:
    single = []
    for c in range(5):
        metric = AUC()
        metric.update(wf.tensor(SCORES[:, c]), wf.tensor((LABELS == c).astype(np.int64)))
        single.append(metric.value())
    assert in_batches(AUC(), SCORES, LABELS) == pytest.approx(np.mean(single))


def test_a_label_may_be_ignored_and_classes_may_lie_on_another_axis() -> None:
    images = wf.tensor(GENERATOR.normal(size=(2, 3, 4, 4)).astype(np.float32))
    labels = np.asarray(images.numpy().argmax(1))
    labels[0] = -100
    metric = Accuracy(axis=1)
    metric.update(images, wf.tensor(labels))
    assert (metric.value(), int(metric.state["count"])) == (1.0, 16)


def test_a_metric_without_examples_is_not_a_number() -> None:
    for metric in (Accuracy(), MSE(), R2(), Perplexity(), AUC(), F1()):
        assert math.isnan(metric.value()), metric.name


def test_a_label_out_of_range_is_named() -> None:
    with pytest.raises(wf.BoundsError) as caught:
        Accuracy().update(wf.zeros((4, 3)), wf.tensor([0, 1, 7, 2]))
    assert caught.value.got == "target 2: 7"
    assert caught.value.expected == "classes from 0 to 2"


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(wf.ShapeError, match="one class for each row"):
        Accuracy().update(wf.zeros((4, 3)), wf.tensor([0, 1]))
    with pytest.raises(wf.ShapeError, match="differ in shape"):
        MSE().update(wf.zeros((4, 3)), wf.zeros((4, 2)))


def test_names_functions_and_classes_stand_for_metrics() -> None:
    def error(outputs: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
        return abs(outputs - targets).mean()

    made = as_metrics(["f1", error, MSE, Accuracy("hits")])
    assert [metric.name for metric in made] == ["f1", "error", "mse", "hits"]
    made[1].update(wf.tensor([1.0, 2.0]), wf.tensor([0.0, 0.0]))
    made[1].update(wf.tensor([4.0]), wf.tensor([0.0]))
    assert made[1].value() == pytest.approx(7 / 3)
    with pytest.raises(wf.NameUnknownError) as caught:
        as_metrics(["acuracy"])
    assert caught.value.fix == "write 'accuracy'"
    with pytest.raises(wf.ArgumentError, match="two metrics"):
        as_metrics([MSE(), "mse"])


def test_a_metric_agrees_with_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    found = SCORES.argmax(1)
    assert in_batches(F1(), SCORES, LABELS) == pytest.approx(
        sklearn.f1_score(LABELS, found, average="macro", zero_division=0)
    )
    assert in_batches(AUC(), LOGITS, ANSWERS) == pytest.approx(
        sklearn.roc_auc_score(ANSWERS, LOGITS)
    )
