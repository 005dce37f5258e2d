"""The way back over small arrays has the bits of the rules that are written with tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir import reverse
from weft.ir.dispatch import apply
from weft.ir.primitive import PRIMITIVES
from weft.ir.small_derivatives import RULES, array_rule

Array = np.ndarray[Any, Any]
SINGLE = np.dtype(np.float32)
NAMES = [
    name
    for name, primitive in PRIMITIVES.items()
    if isinstance(primitive.derivatives, tuple)
    and array_rule(primitive, SINGLE, (1 << len(primitive.derivatives)) - 1) is not None
    and not np.iscomplexobj(primitive.samples()[0].operands[0])
]


@pytest.fixture(autouse=True)
def usual_sizes() -> Iterator[None]:
    """What is small, whatever the environment says."""
    with wf.settings.changed(eager_elements=256):
        yield


@pytest.fixture
def small_nodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The primitives that were gone back over as small ones."""
    found: list[str] = []
    inner = reverse._propagate_small

    def noted(cotangents: Any, live: Any, node: Any, cotangent: Any) -> bool:
        is_small = inner(cotangents, live, node, cotangent)
        found.extend([node.primitive.name] if is_small else [])
        return is_small

    monkeypatch.setattr(reverse, "_propagate_small", noted)
    return found


def gradients(name: str, arrays: list[Array], cotangent: Array) -> list[bytes]:
    operands = [wf.tensor(array).requires_grad_() for array in arrays]
    apply(PRIMITIVES[name], *operands).backward(wf.tensor(cotangent))
    return [b"" if x.grad is None else x.grad.numpy().tobytes() for x in operands]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", NAMES)
def test_small_arrays_have_the_bits_of_the_general_rule(
    name: str, dtype: str, small_nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    primitive = PRIMITIVES[name]
    kind = np.dtype(dtype)
    drawn = next(s.operands for s in primitive.samples() if np.asarray(s.operands[0]).ndim == 2)
    arrays = [np.asarray(each).astype(kind) for each in drawn]
    for array in arrays:
        array.flat[0], array.flat[-1] = np.nan, np.inf
    cotangent = np.random.default_rng(3).standard_normal(arrays[0].shape).astype(kind)
    found = gradients(name, arrays, cotangent)
    assert small_nodes == [name]
    monkeypatch.setattr(reverse, "_propagate_small", lambda *_: False)
    assert found == gradients(name, arrays, cotangent)


def test_the_functions_that_chains_are_made_of_are_small_ones() -> None:
    chained = {"add", "subtract", "multiply", "divide", "tanh", "exp", "sigmoid", "square"}
    assert chained <= set(NAMES)


def test_what_is_asked_for_alone_is_computed(small_nodes: list[str]) -> None:
    x, y = wf.ones(3).requires_grad_(), wf.full((3,), 2.0)
    (x * y).backward(wf.ones(3))
    (y * x).backward(wf.ones(3))
    assert x.grad is not None
    assert x.grad.tolist() == [4.0] * 3
    asked = {asked for primitive, _, asked in RULES if primitive.name == "multiply"}
    assert {1, 2} <= asked
    assert small_nodes == ["multiply"] * 2


def test_other_calls_go_by_the_general_rule(small_nodes: list[str]) -> None:
    x, row = wf.ones((2, 3)).requires_grad_(), wf.ones(3).requires_grad_()
    (x * row).backward(wf.ones((2, 3)))  # of other shapes
    (x * 2.0).backward(wf.ones((2, 3)))  # a number
    (x * x).backward(wf.ones((2, 3)), create_graph=True)
    large = wf.ones(wf.settings.eager_elements).requires_grad_()
    (large * large).backward(wf.ones(wf.settings.eager_elements))
    with wf.debug.nans():
        (x * x).backward(wf.ones((2, 3)))
    assert small_nodes == []
    assert row.grad is not None
    assert row.grad.tolist() == [2.0] * 3


def test_a_freed_tape_is_refused() -> None:
    x = wf.ones(3).requires_grad_()
    y = wf.exp(x)
    y.backward(wf.ones(3))
    with pytest.raises(wf.GradientError):
        y.backward(wf.ones(3))
