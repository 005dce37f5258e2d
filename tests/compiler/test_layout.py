"""The choice of layouts: where channels go last, and that transposes stand at the borders only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.graph_passes.channels_last import channels_last
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu.target import CPU
from weft.ir.graph import Graph

X = wf.spec("float32", (4, 3, 12, 12))
W = wf.spec("float32", (8, 3, 3, 3))


def traced(function: Callable[..., Any], *kinds: Any) -> Graph:
    return optimize(wf.ir.trace(function, *kinds), CPU)


def names(graph: Graph) -> Counter[str]:
    return Counter(node.primitive.name for node in graph.nodes)


def transposed(graph: Graph) -> int:
    """Transposes of whole images."""
    return sum(n.primitive.name == "transpose" and n.operands[0].type.ndim > 2 for n in graph.nodes)


def test_a_graph_without_convolutions_is_left_alone() -> None:
    graph = wf.ir.trace(lambda x: wf.relu(x).sum(), X)
    assert channels_last(CPU, graph) is graph


def test_only_borders_are_transposed() -> None:
    def network(x: Any, w: Any, v: Any, u: Any, b: Any) -> Any:
        y = wf.relu(wf.conv2d(x, w, padding=1) + b[:, None, None])
        y = wf.max_pool2d(y, 2)
        y = wf.conv2d(y, v, padding=1) * 2.0 + y
        y = wf.concatenate([y[:, :4], wf.avg_pool2d(wf.relu(y), 1)[:, 2:]], axis=1)
        return wf.pad(wf.conv2d(y, u), ((0, 0), (0, 0), (1, 1), (1, 1))).mean(axis=(2, 3))

    shapes = (8, 8, 3, 3), (5, 10, 3, 3), (8,)
    graph = traced(network, X, W, *[wf.spec("float32", shape) for shape in shapes])
    found = names(graph)
    assert found["conv"] == 0
    assert found["conv_last"] == 3
    assert transposed(graph) == 1, str(graph)


def test_the_gradient_of_a_network_has_no_transposes_inside() -> None:
    def loss(v: Any, w: Any, x: Any, g: Any) -> Any:
        y = wf.conv2d(x, v, padding=1)
        mean = y.mean(axis=(0, 2, 3), keepdims=True)
        spread = ((y - mean) ** 2).mean(axis=(0, 2, 3), keepdims=True)
        y = wf.relu((y - mean) * wf.rsqrt(spread + 1e-5) * g[:, None, None])
        return (wf.max_pool2d(wf.conv2d(y, w, padding=1), 2) ** 2).mean()

    kinds = W, wf.spec("float32", (8, 8, 3, 3)), X, wf.spec("float32", (8,))
    graph = traced(wf.grad(loss, argnums=(0, 1)), *kinds)
    found = names(graph)
    assert found["conv_last_weight_gradient"] == 2
    assert found["conv_last_input_gradient"] == 1
    assert found["window_max_gradient"] == 1
    assert found["scatter_add"] == 0
    assert transposed(graph) == 1, str(graph)


def test_sums_over_images_are_taken_image_by_image() -> None:
    graph = traced(lambda x, w: wf.conv2d(x, w).sum(axis=(0, 2, 3)), X, W)
    axes = [node.params["axes"] for node in graph.nodes if node.primitive.name == "reduce_sum"]
    assert axes == [(1, 2), (0,)]


def test_a_result_that_is_wanted_as_it_was_is_transposed_back() -> None:
    graph = traced(lambda x, w: wf.conv2d(x, w), X, W)
    assert [node.primitive.name for node in graph.nodes] == ["transpose", "conv_last", "transpose"]
    assert graph.outputs[0].type.shape == (4, 8, 10, 10)


def test_integers_and_unknown_sizes_keep_their_order() -> None:
    whole = wf.spec("int32", (2, 3, 8, 8)), wf.spec("int32", (4, 3, 3, 3))
    assert names(traced(wf.conv2d, *whole))["conv"] == 1
    loose = wf.spec("float32", (2, 3, "h", 8)), wf.spec("float32", (4, 3, 3, 3))
    assert names(traced(wf.conv2d, *loose))["conv"] == 1


def test_explain_says_what_went_last() -> None:
    step = wf.jit(lambda x, w: wf.relu(wf.conv2d(x, w)).sum())
    given = wf.ones((4, 3, 12, 12)), wf.ones((8, 3, 3, 3))
    step(*given)
    text = str(step.explain(*given))
    assert "conv with channels last 1" in text
    assert "relu with channels last 1" in text


@pytest.mark.parametrize("axis", [0, 1, 2, (1, 2), (0, 1), (2, 3), (0, 1, 2, 3)])
def test_reductions_along_any_axes_agree(axis: Any) -> None:
    rng = np.random.default_rng(0)
    x = wf.tensor(rng.normal(size=(4, 3, 12, 12)).astype(np.float32))
    w = wf.tensor(rng.normal(size=(8, 3, 3, 3)).astype(np.float32))

    def function(x: Any, w: Any) -> Any:
        y = wf.conv2d(x, w)
        return wf.exp(y * 0.01).sum(axis=axis), y.max(axis=axis)

    for found, wanted in zip(wf.jit(function)(x, w), function(x, w), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-5, atol=1e-5)
