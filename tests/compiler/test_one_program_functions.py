"""Functions of several primitives are one program each in eager mode, and so is their way back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.compiler.test_units import LABELS, both_ways, compiled_calls, native, random

import weft as wf

F = wf.nn.functional

__all__ = ["native"]


def spread(x: wf.Tensor) -> wf.Tensor:
    """A positive definite matrix."""
    return x @ x.T + 4 * wf.eye(x.shape[0])


WHOLE: dict[str, Callable[[wf.Tensor], wf.Tensor]] = {
    "cholesky": lambda x: wf.linalg.cholesky(spread(x)),
    "solve": lambda x: wf.linalg.solve(spread(x), x),
    "inv": lambda x: wf.linalg.inv(spread(x)),
    "det": lambda x: wf.linalg.det(0.1 * spread(x)),
    "slogdet": lambda x: wf.linalg.slogdet(spread(x)).logabsdet,
    "eigvalsh": lambda x: wf.linalg.eigvalsh(spread(x)),
    "svdvals": wf.linalg.svdvals,
    "qr": lambda x: wf.linalg.qr(x).R,
    "unfold": lambda x: wf.unfold(x, 1, 3, 2),
    "_pad_with_elements": lambda x: wf.pad(x, 2, mode="reflect"),
    "softplus": lambda x: F.softplus(x, beta=2.0),
    "_cross_entropy_of_two": lambda x: F.binary_cross_entropy(wf.sigmoid(x), wf.sigmoid(-x)),
    "_normal_surprise": lambda x: F.gaussian_nll_loss(x, 2 * x, wf.exp(x)),
    "_hinge": lambda x: F.hinge_embedding_loss(x, wf.sign(x.detach())),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, wf.exp(x)),
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x, -x, wf.sign(x.detach())),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, wf.sign(x.detach())),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, 2 * x, wf.exp(x)),
    "pairwise_distance": lambda x: F.pairwise_distance(x, wf.exp(x)),
    "_reduced_bags": lambda x: F.embedding_bag(wf.asarray(LABELS[None]), x),
}


@pytest.mark.parametrize("name", WHOLE)
def test_functions_of_several_primitives_are_one_program_each(name: str) -> None:
    with compiled_calls() as names:
        by_program, by_reference = both_ways(WHOLE[name], random(6, 6) + 2 * np.eye(6, dtype="f4"))
    assert name in names
    for found, expected in zip(by_program, by_reference, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_reading_by_several_indices_is_one_program_whatever_the_places() -> None:
    x, i = wf.tensor(random(4, 16, 5), requires_grad=True), wf.tensor([3, 0, 3])
    with compiled_calls() as names:
        for place in range(12):
            found = x[i, place]
            np.testing.assert_array_equal(
                found.detach().numpy(), x.detach().numpy()[[3, 0, 3], place]
            )
        x[[0, 1, 2], 3]  # a list is a tensor of indices
        x[i, 3:5], x[wf.tensor([True, False, True, True]), 2]  # shapes of their own: as written
    assert names == ["_selected_elements"]
    with pytest.raises(wf.BoundsError, match="index 16 is out of range"):
        x[i, 16]
    with pytest.raises(wf.BoundsError, match="index 7 is out of range"):
        x[i + 4, 3]
