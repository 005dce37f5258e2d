"""Losses against their definitions, eager and compiled, and what wrong targets get."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.nn import functional as F  # noqa: N812

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((4, 3))
Y = np.random.default_rng(1).standard_normal((4, 3))
Z = np.random.default_rng(2).standard_normal((4, 3))
P = np.random.default_rng(3).dirichlet(np.ones(3), 4)
SIGNS = np.array([[1, -1, 1], [-1, 1, 1], [1, 1, -1], [-1, -1, 1]], np.float64)
LABELS = np.array([2, 0, 1, 2])
WEIGHT = np.array([0.5, 2.0, 1.5])
LOGS = X - np.log(np.exp(X).sum(-1, keepdims=True))
CHOSEN = -LOGS[np.arange(4), LABELS]
COSINE = (X * Y).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Y, axis=1)
HUBER = np.where(abs(X - Y) < 0.5, (X - Y) ** 2 / 2, 0.5 * (abs(X - Y) - 0.25))
Row = tuple[nn.Module, tuple[Array, ...], Any]

TABLE: list[Row] = [
    (nn.MSELoss(), (X, Y), ((X - Y) ** 2).mean()),
    (nn.MSELoss("none"), (X, Y), (X - Y) ** 2),
    (nn.L1Loss("sum"), (X, Y), abs(X - Y).sum()),
    (nn.HuberLoss(delta=0.5), (X, Y), HUBER.mean()),
    (nn.SmoothL1Loss(beta=0.5), (X, Y), (HUBER / 0.5).mean()),
    (nn.CrossEntropyLoss(), (X, LABELS), CHOSEN.mean()),
    (nn.CrossEntropyLoss(ignore_index=2), (X, LABELS), CHOSEN[1:3].mean()),
    (nn.CrossEntropyLoss(weight=wf.tensor(WEIGHT)), (X, LABELS),
     (CHOSEN * WEIGHT[LABELS]).sum() / WEIGHT[LABELS].sum()),
    (nn.CrossEntropyLoss(label_smoothing=0.3), (X, LABELS),
     (0.7 * CHOSEN - 0.3 * LOGS.mean(1)).mean()),
    (nn.CrossEntropyLoss(reduction="sum"), (X, P), -(P * LOGS).sum()),
    (nn.NLLLoss(reduction="none"), (LOGS, LABELS), CHOSEN),
    (nn.BCELoss(), (P, Z > 0), -np.where(Z > 0, np.log(P), np.log(1 - P)).mean()),
    (nn.BCEWithLogitsLoss(), (X, P), (np.log1p(np.exp(X)) - X * P).mean()),
    (nn.BCEWithLogitsLoss(pos_weight=wf.tensor(WEIGHT)), (X, P),
     ((1 - P) * np.log1p(np.exp(X)) + WEIGHT * P * np.log1p(np.exp(-X))).mean()),
    (nn.KLDivLoss("batchmean"), (LOGS, P), (P * (np.log(P) - LOGS)).sum() / 4),
    (nn.PoissonNLLLoss(), (X, Y), (np.exp(X) - Y * X).mean()),
    (nn.GaussianNLLLoss(), (X, Y, P), (0.5 * (np.log(P) + (X - Y) ** 2 / P)).mean()),
    (nn.HingeEmbeddingLoss(0.5), (X, SIGNS),
     np.where(SIGNS == 1, X, np.maximum(0, 0.5 - X)).mean()),
    (nn.MarginRankingLoss(0.5), (X, Y, SIGNS), np.maximum(0, 0.5 - SIGNS * (X - Y)).mean()),
    (nn.SoftMarginLoss(), (X, SIGNS), np.log1p(np.exp(-SIGNS * X)).mean()),
    (nn.CosineEmbeddingLoss(0.1), (X, Y, SIGNS[:, 0]),
     np.where(SIGNS[:, 0] == 1, 1 - COSINE, np.maximum(0, COSINE - 0.1)).mean()),
    (nn.TripletMarginLoss(2.0), (X, Y, Z), np.maximum(
        0, np.linalg.norm(X - Y, axis=1) - np.linalg.norm(X - Z, axis=1) + 2).mean()),
    (nn.MultiMarginLoss(), (X, LABELS), (np.maximum(
        0, 1 - X[np.arange(4), LABELS][:, None] + X) * (np.eye(3)[LABELS] == 0)).sum() / 12),
    (nn.MultiMarginLoss(weight=wf.tensor(WEIGHT)), (X, LABELS), (np.maximum(
        0, 1 - X[np.arange(4), LABELS][:, None] + X) * (np.eye(3)[LABELS] == 0)
        * WEIGHT[LABELS][:, None]).sum() / 12),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "given", "wanted"), TABLE, ids=[repr(r[0]) for r in TABLE])
def test_a_loss_is_its_definition_eager_and_compiled(loss: Any, given: Any, wanted: Any) -> None:
    tensors = [wf.tensor(a if a.dtype == np.int64 else a.astype(np.float32)) for a in given]
    for call in (loss, wf.jit(loss), wf.jit(lambda *xs: loss(*xs))):
        np.testing.assert_allclose(call(*tensors).numpy(), wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 2)])
def test_classes_stand_on_the_second_axis(shape: Any) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal(shape).astype(np.float32)
    rest = shape[2:] if len(shape) > 1 else ()
    labels = generator.integers(0, 3, (*shape[:1], *rest) if len(shape) > 1 else ())
    rows = x.reshape(1, 3) if len(shape) == 1 else np.moveaxis(x, 1, -1).reshape(-1, 3)
    wanted = F.cross_entropy(wf.tensor(rows), wf.tensor(labels.reshape(-1)))
    got = F.cross_entropy(wf.tensor(x), wf.tensor(labels))
    np.testing.assert_allclose(got.item(), wanted.item(), rtol=1e-5)


def test_large_logits_lose_nothing() -> None:
    x = wf.tensor([[1e4, -1e4]], requires_grad=True)
    loss = F.cross_entropy(x, wf.tensor([1]))
    loss.backward()
    assert loss.item() == 2e4
    assert x.grad.tolist() == [[1.0, -1.0]]
    saturated = wf.tensor([0.0, 1.0])
    assert F.binary_cross_entropy(saturated, saturated).item() == 0.0
    assert F.binary_cross_entropy(saturated, 1 - saturated).item() == 100.0


def spelled(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """What a path spells: repetitions joined, then blanks left out."""
    return tuple(symbol for symbol, _ in itertools.groupby(path) if symbol != blank)


@pytest.mark.parametrize(("target", "time", "blank"), [
    ((1,), 3, 0), ((1, 2), 4, 0), ((1, 1), 3, 0), ((), 3, 0), ((0, 2, 0), 5, 1), ((1, 2, 1), 3, 0),
])  # fmt: skip
def test_ctc_is_the_sum_over_all_paths(target: Any, time: int, blank: int) -> None:
    logits = np.random.default_rng(5).standard_normal((time, 1, 3))
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chances = [
        math.exp(sum(logs[t, 0, symbol] for t, symbol in enumerate(path)))
        for path in itertools.product(range(3), repeat=time)
        if spelled(path, blank) == target
    ]
    padded = wf.tensor(np.array([[*target, 0]], np.int64))
    longer = wf.tensor(np.concatenate([logs, logs[:2]]).astype(np.float32))
    lengths = wf.tensor([time]), wf.tensor([len(target)])

    def loss(logs: wf.Tensor) -> wf.Tensor:
        return F.ctc_loss(logs, padded, *lengths, blank=blank, reduction="sum")

    for call in (loss, wf.jit(loss)):
        assert call(longer).item() == pytest.approx(-math.log(sum(chances)), rel=1e-5)


def test_a_target_that_does_not_fit_is_infinite_or_left_out() -> None:
    logs = wf.log_softmax(wf.zeros((2, 2, 3)))
    args = wf.tensor([[1, 1], [1, 2]]), wf.tensor([2, 2]), wf.tensor([2, 2])
    losses = F.ctc_loss(logs, *args, reduction="none")
    assert losses[0].item() == math.inf
    assert math.isfinite(losses[1].item())
    assert F.ctc_loss(logs, *args, reduction="none", zero_infinity=True)[0].item() == 0.0
    gradient = wf.grad(lambda x: F.ctc_loss(x, *args, reduction="sum", zero_infinity=True))(logs)
    assert bool(wf.all(wf.isfinite(gradient)))
    assert not gradient.numpy()[:, 0].any()


WRONG: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (wf.BoundsError, "label 3 at 1", lambda: F.cross_entropy(wf.ones((2, 3)), wf.tensor([0, 3]))),
    (wf.ShapeError, "they are not whole numbers",
     lambda: F.cross_entropy(wf.ones((2, 3)), wf.tensor([0.0, 1.0]))),
    (wf.BoundsError, "use indices from 0 to 2",
     lambda: F.embedding(wf.tensor([3]), wf.ones((3, 2)))),
    (wf.BoundsError, "label -1 at 0", lambda: F.nll_loss(wf.ones((1, 3)), wf.tensor([-1]))),
    (wf.BoundsError, "out of range",
     lambda: wf.jit(F.cross_entropy)(wf.ones((2, 3)), wf.tensor([0, 3]))),
    (wf.BoundsError, "out of range",
     lambda: wf.jit(F.cross_entropy)(wf.ones((2, 3)), wf.tensor([0, -1]))),
    (wf.ShapeError, "class indices", lambda: F.cross_entropy(wf.ones((2, 3)), wf.tensor([0]))),
    (wf.ShapeError, "class indices", lambda: F.cross_entropy(wf.ones((2, 3)), wf.ones((2, 2)))),
    (wf.ShapeError, "one weight",
     lambda: F.cross_entropy(wf.ones((2, 3)), wf.tensor([0, 1]), weight=wf.ones(2))),
    (wf.ArgumentError, "share",
     lambda: F.cross_entropy(wf.ones((2, 3)), wf.tensor([0, 1]), label_smoothing=2.0)),
    (wf.ArgumentError, "reduction", lambda: F.mse_loss(wf.ones(2), wf.ones(2), "average")),
    (wf.ArgumentError, "reduction", lambda: nn.MSELoss("average")),
    (wf.ArgumentError, "negative",
     lambda: F.gaussian_nll_loss(wf.ones(2), wf.ones(2), wf.tensor([1.0, -1.0]))),
    (wf.ShapeError, "different shapes",
     lambda: F.cosine_embedding_loss(wf.ones((2, 3)), wf.ones((2, 3)), wf.ones((2, 3)))),
    (wf.ShapeError, "different shapes", lambda: F.mse_loss(wf.ones((2, 1)), wf.ones(2))),
    (wf.ShapeError, "fit each other",
     lambda: F.ctc_loss(wf.ones((3, 2, 4)), wf.ones((1, 2)), wf.ones(2), wf.ones(2))),
    (wf.ArgumentError, "longer", lambda: F.ctc_loss(
        wf.ones((3, 1, 4)), wf.tensor([[1]]), wf.tensor([4]), wf.tensor([1]))),
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG, ids=[f"{r[1]}-{i}" for i, r in enumerate(WRONG)])
def test_a_wrong_target_is_refused_with_a_reason(row: Any) -> None:
    kind, words, wrong = row
    with pytest.raises(kind, match=words) as caught:
        wrong()
    assert caught.value.fix
    assert caught.value.expected


def test_a_number_is_a_prediction_too() -> None:
    x, target = wf.tensor(-1.0), wf.tensor(0.5)
    for reduction in ("none", "sum", "mean", "batchmean"):
        found = F.kl_div(x, target, reduction)
        assert found.shape == ()
        assert found.item() == pytest.approx(0.5 * math.log(0.5) + 0.5)
    assert nn.KLDivLoss(reduction="batchmean")(x, target).item() == pytest.approx(0.1534, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("turn", [lambda f: f, wf.jit], ids=["eager", "compiled"])
def test_binary_cross_entropy_has_slopes_at_0_and_1(dtype: str, turn: Any) -> None:
    """Where a sigmoid saturates, 0 · ∞ would make a whole network's gradients NaN."""
    x = wf.tensor([0.0, 1.0, 0.0, 1.0, 0.5], dtype=dtype)
    target = wf.tensor([0.0, 1.0, 1.0, 0.0, 0.5], dtype=dtype)
    slopes = turn(wf.grad(lambda x: F.binary_cross_entropy(x, target, reduction="sum")))(x)
    right, left, low, high, even = slopes.tolist()
    assert (right, left, even) == (1.0, -1.0, 0.0)
    assert -math.inf < low < -1e4
    assert 1e4 < high < math.inf
    saturated = wf.tensor([-300.0, 300.0], dtype=dtype)
    loss = lambda z: F.binary_cross_entropy(wf.sigmoid(z), 1 - wf.sigmoid(z))  # noqa: E731
    assert turn(wf.grad(loss))(saturated).tolist() == pytest.approx([0.0, 0.0], abs=1e-100)
