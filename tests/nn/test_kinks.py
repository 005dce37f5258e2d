"""Activations and losses at their kinks, at NaN and infinities, and of operands that are not legal.

The slopes at kinks are PyTorch's, which `test_against_torch.py` compares where it is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

F = wf.nn.functional
NAN, INF = math.nan, math.inf
BOTH = pytest.mark.parametrize("transformed", [lambda f: f, wf.jit], ids=["eager", "compiled"])
ONE_BY_ONE = [
    name
    for name in sorted(F.activations.ACTIVATIONS)
    if name not in ("softmax", "log_softmax", "softmin", "glu")
]
SLOPES: dict[str, list[tuple[float, float]]] = {
    "relu": [(0.0, 0.0), (-0.0, 0.0)],
    "relu6": [(0.0, 0.0), (-0.0, 0.0), (6.0, 0.0), (3.0, 1.0)],
    "leaky_relu": [(0.0, 0.01), (-0.0, 0.01)],
    "elu": [(0.0, 1.0), (-0.0, 1.0)],
    "celu": [(0.0, 1.0), (-0.0, 1.0)],
    "selu": [(0.0, 1.7580993), (-0.0, 1.7580993)],
    "hardtanh": [(-1.0, 0.0), (1.0, 0.0), (0.5, 1.0)],
    "hardsigmoid": [(-3.0, 0.0), (3.0, 0.0), (0.0, 1 / 6)],
    "hardswish": [(-3.0, 0.0), (3.0, 1.0), (0.0, 0.5), (INF, 1.0), (-INF, 0.0)],
    "hardshrink": [(-0.5, 0.0), (0.5, 0.0), (1.0, 1.0)],
    "softshrink": [(-0.5, 0.0), (0.5, 0.0), (1.0, 1.0), (-1.0, 1.0)],
    "softsign": [(0.0, 1.0)],
}


@BOTH
@pytest.mark.parametrize("name", SLOPES)
def test_the_slope_at_a_kink_is_that_of_pytorch(name: str, transformed: Any) -> None:
    function = F.activations.ACTIVATIONS[name]
    slope = transformed(wf.grad(lambda x: function(x).sum()))
    places, slopes = zip(*SLOPES[name], strict=True)
    np.testing.assert_allclose(slope(wf.tensor(places)).numpy(), slopes, rtol=1e-6)


@BOTH
def test_the_slope_of_a_threshold_and_of_a_learned_slope_at_the_kink(transformed: Any) -> None:
    at = wf.tensor([1.0, 2.0])
    slope = transformed(wf.grad(lambda x: F.threshold(x, 1.0, 7.0).sum()))
    assert slope(at).tolist() == [0.0, 1.0]
    slope = transformed(wf.grad(lambda x: F.prelu(x, wf.tensor([0.25])).sum()))
    assert slope(wf.tensor([0.0, 2.0])).tolist() == [0.25, 1.0]


@BOTH
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_no_activation_loses_nan(name: str, transformed: Any) -> None:
    found = transformed(F.activations.ACTIVATIONS[name])(wf.tensor([NAN, 0.5, 1.0])).numpy()
    assert np.isnan(found).tolist() == [True, False, False]


@BOTH
def test_no_selection_loses_nan(transformed: Any) -> None:
    x = wf.tensor([NAN, 1.0])
    selections: list[Callable[[wf.Tensor], wf.Tensor]] = [
        lambda x: F.threshold(x, 0.0, 7.0),
        lambda x: F.prelu(x, wf.tensor([0.25])),
        lambda x: wf.clip(x, 0.0, 2.0),
        lambda x: wf.maximum(x, 0.0),
        lambda x: wf.minimum(x, 2.0),
        lambda x: F.softmax(x),
        lambda x: wf.broadcast_to(wf.max(x), (2,)),
        lambda x: F.huber_loss(x, wf.zeros(2), "none"),
        lambda x: F.smooth_l1_loss(x, wf.zeros(2), "none"),
        lambda x: F.hinge_embedding_loss(x, -wf.ones(2), reduction="none"),
        lambda x: F.binary_cross_entropy(x, wf.ones(2), reduction="none"),
        lambda x: F.binary_cross_entropy_with_logits(x, wf.ones(2), reduction="none"),
    ]
    for select in selections:
        assert np.isnan(transformed(select)(x).numpy()[0])


@BOTH
def test_nan_takes_part_in_the_gradient_of_an_extreme(transformed: Any) -> None:
    slope = transformed(wf.grad(lambda x: wf.maximum(x, 1.0).sum() + wf.relu(x).sum()))
    assert slope(wf.tensor([NAN, 0.5, 2.0])).tolist() == [2.0, 1.0, 2.0]


# --- operands that are not legal ---


@pytest.mark.parametrize("wrong", [1.5, -0.25])
def test_a_probability_out_of_range_is_refused(wrong: float) -> None:
    with pytest.raises(wf.ArgumentError) as caught:
        F.binary_cross_entropy(wf.tensor([0.5, wrong]), wf.tensor([1.0, 0.0]))
    assert "above 1" in caught.value.problem
    assert str(wrong) in str(caught.value)
    found = wf.jit(F.binary_cross_entropy)(wf.tensor([0.5, wrong]), wf.tensor([1.0, 0.0]))
    assert math.isnan(found.item())


def test_a_negative_variance_is_no_number_where_it_cannot_be_refused() -> None:
    one = wf.tensor([1.0])
    with pytest.raises(wf.ArgumentError):
        F.gaussian_nll_loss(one, one, -one)
    assert math.isnan(wf.jit(F.gaussian_nll_loss)(one, one, -one).item())
    assert wf.jit(F.gaussian_nll_loss)(one, one, one).item() == 0.0


def test_lengths_out_of_range_are_no_number_where_they_cannot_be_refused() -> None:
    logs, labels = wf.log_softmax(wf.zeros((4, 1, 3))), wf.tensor([[1, 2]])

    def loss(steps: wf.Tensor) -> wf.Tensor:
        return F.ctc_loss(logs, labels, steps, wf.tensor([2]))

    with pytest.raises(wf.ArgumentError):
        loss(wf.tensor([9]))
    assert math.isnan(wf.jit(loss)(wf.tensor([9])).item())
    assert math.isfinite(wf.jit(loss)(wf.tensor([4])).item())


@pytest.mark.parametrize(
    "loss",
    [
        lambda target: F.hinge_embedding_loss(wf.ones(1), target),
        lambda target: F.cosine_embedding_loss(wf.ones((1, 2)), wf.ones((1, 2)), target),
    ],
)
def test_a_target_that_is_neither_side_is_refused(loss: Any) -> None:
    with pytest.raises(wf.ArgumentError):
        loss(wf.tensor([0.0]))


# --- padding ---


@pytest.mark.parametrize(
    ("mode", "widths", "expected"),
    [
        ("reflect", (3, -2), [4, 3, 2, 1, 2, 3]),
        ("reflect", (-2, 3), [3, 4, 5, 4, 3, 2]),
        ("replicate", (2, -1), [1, 1, 1, 2, 3, 4]),
        ("circular", (2, -1), [3, 4, 1, 2, 3, 4]),
        ("constant", (-1, 2), [2, 3, 4, 5, 0, 0]),
        ("reflect", (-1, -2), [2, 3]),
    ],
)
def test_padding_may_cut_at_one_edge_and_add_at_the_other(
    mode: str, widths: tuple[int, int], expected: list[float]
) -> None:
    x = wf.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert F.pad(x, widths, mode).tolist() == expected
    assert F.pad(wf.stack([x, x]), widths, mode).tolist() == [expected] * 2


def test_more_cannot_be_cut_off_than_there_is() -> None:
    with pytest.raises(wf.ShapeError):
        F.pad(wf.ones(3), (-2, -2))
