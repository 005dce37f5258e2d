"""Subgraphs that are recognised: attention written by hand, and scales that weights can take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from tests.compiler.limits import change_pass_limits
from tests.compiler.test_passes import assert_becomes, assert_stays

import weft as wf
from weft.compiler.graph_passes.attention.causal import causal_offset
from weft.compiler.graph_passes.attention.recognize import recognize_attention
from weft.compiler.graph_passes.laws.fold_batch_norm import fold_scales
from weft.compiler.pipeline import optimize, optimize_with_report
from weft.compiler.targets.cpu.target import CPU
from weft.ir import Graph, GraphNode

FEWEST, SMALL = CPU.limits.passes.recognized_queries, CPU.limits.passes.attention_queries
TIME = 40
SHAPE = (2, 3, TIME, 8)


def names(graph: Graph) -> Counter[str]:
    return Counter(node.primitive.name for node in graph.nodes)


def arguments(graph: Graph, seed: int = 0) -> list[wf.Tensor]:
    rng = np.random.default_rng(seed)
    return [
        wf.asarray(rng.normal(size=tuple(map(int, kind.shape))).astype(kind.dtype.numpy))
        for kind in graph.input_types
    ]


def assert_same(before: Graph, after: Graph, limit: float = 1e-9) -> None:
    wf.ir.verify(after)
    xs = arguments(before)
    pairs = zip(wf.ir.interpret(after, *xs), wf.ir.interpret(before, *xs), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=limit, atol=limit)


def params_of(graph: Graph) -> dict[str, Any]:
    (node,) = [node for node in graph.nodes if node.primitive.name == "attention"]
    return {**node.params, "operands": len(node.operands)}


def recognize(graph: Graph, tally: Counter[str] | None = None) -> Graph:
    """The pass, with the limits that the processor has in this test."""
    return recognize_attention(CPU, graph, tally)


# --- attention -----------------------------------------------------------------------------------


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognise attention of short sequences too, which are quicker to compute by reference."""
    change_pass_limits(monkeypatch, recognized_queries=0, attention_queries=0)


PLAIN = """graph(a: f32[2, 256, 8], b: f32[2, 48, 8], c: f32[2, 48, 4]) {
  d: f32[2, 256, 48] = dot(a, b, contract=((2,), (2,)), batch=((0,), (0,)))
  e: f32[2, 256, 48] = multiply(d, 0.5)
  f: f32[2, 256] = reduce_max(e, axes=(2,))
  g: f32[2, 256, 1] = reshape(f, shape=(2, 256, 1))
  h: f32[2, 256, 48] = subtract(e, g)
  i: f32[2, 256, 48] = exp(h)
  j: f32[2, 256] = reduce_sum(i, axes=(2,))
  k: f32[2, 256, 1] = reshape(j, shape=(2, 256, 1))
  l: f32[2, 256, 48] = divide(i, k)
  m: f32[2, 256, 4] = dot(l, c, contract=((2,), (1,)), batch=((0,), (0,)))
  return m%s
}"""


def test_a_softmax_of_products_is_attention() -> None:
    after = """graph(a: f32[2, 256, 8], b: f32[2, 48, 8], c: f32[2, 48, 4]) {
  d: f32[2, 256, 4], e: f32[2, 256] = attention(a, b, c, offset=None, scale=0.5, guarded=False)
  return d
}"""
    assert_becomes(recognize, PLAIN % "", after)


@pytest.mark.parametrize("returned", ["l", "i", "e", "d", "j"])
def test_what_is_needed_elsewhere_is_computed_as_before(returned: str) -> None:
    assert_stays(recognize, PLAIN % f", {returned}")


def test_short_sequences_stay_products() -> None:
    assert_stays(recognize, (PLAIN % "").replace("256", str(2 * FEWEST - 1)))


def test_attention_of_few_queries_becomes_products() -> None:
    """Scores and probabilities of both directions are then the same nodes."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (wf.scaled_dot_product_attention(q, k, v, causal=True) ** 2).sum()

    kinds = [wf.spec("float64", (2, size, 8)) for size in (SMALL - 1, 70, 70)]
    before = wf.ir.trace(wf.value_and_grad(loss, argnums=(0, 1, 2)), *kinds)
    after = optimize(before, CPU)
    found = names(after)
    assert found["attention"] == found["attention_gradient"] == 0
    assert (found["dot"], found["exp"]) == (6, 2)
    assert all(node.location is not None for node in after.nodes)
    assert_same(before, after)
    longer = wf.ir.trace(loss, *[wf.spec("float64", (2, SMALL, 8))] * 3)
    assert names(optimize(longer, CPU))["attention"] == 1


def heads(x: Any) -> Any:
    return wf.swapaxes(x, -2, -3)


def triangle(time: int = TIME, dtype: Any = "bool") -> Any:
    return wf.tril(wf.ones((time, time), dtype=dtype))


def scaled(q: Any, k: Any) -> Any:
    return q @ k.mT * 0.5


SCORES: dict[str, Callable[[Any, Any], Any]] = {
    "scale after": lambda q, k: q @ k.mT * 0.25,
    "scale before": lambda q, k: (q * 0.5) @ (k / 4.0).mT,
    "a root": lambda q, k: q @ wf.swapaxes(k, -1, -2) / math.sqrt(8),
    "einsum": lambda q, k: wf.einsum("bhtd,bhsd->bhts", q, k) * 0.5,
    "a triangle": lambda q, k: wf.where(triangle(), scaled(q, k), -wf.inf),
    "a large number": lambda q, k: wf.where(triangle(), scaled(q, k), -1e9),
    "what is hidden": lambda q, k: wf.where(
        wf.triu(wf.ones((TIME, TIME), dtype="bool"), k=1), -wf.inf, scaled(q, k)
    ),
    "an added triangle": lambda q, k: scaled(q, k) + wf.triu(
        wf.full((TIME, TIME), -wf.inf, dtype=q.dtype), k=1
    ),
    "zero of a triangle": lambda q, k: wf.where(
        triangle(dtype="float32") == 0, -wf.inf, scaled(q, k)
    ),
    "positions": lambda q, k: wf.where(
        wf.arange(TIME)[:, None] < wf.arange(TIME)[None, :], -wf.inf, scaled(q, k)
    ),
    "a constant": lambda q, k: wf.where(
        wf.asarray(np.tri(TIME, dtype=bool)), scaled(q, k), -wf.inf
    ),
}  # fmt: skip
CAUSAL = set(list(SCORES)[4:])


def assert_attention(f: Callable[..., Any], count: int, shape: tuple[int, ...] = SHAPE) -> Graph:
    """One attention, and no softmax beside it; and the same results."""
    before = wf.ir.trace(f, *[wf.spec("float64", shape)] * count)
    after = optimize(before, CPU)
    found = names(after)
    assert (found["attention"], found["exp"], found["reduce_max"]) == (1, 0, 0)
    assert_same(before, after)
    assert optimize(after, CPU) is after
    return after


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("spelling", sorted(SCORES))
def test_every_spelling_is_recognised(spelling: str) -> None:
    after = assert_attention(lambda q, k, v: wf.softmax(SCORES[spelling](q, k)) @ v, 3)
    assert names(after)["dot"] == 0
    assert params_of(after)["offset"] == (0 if spelling in CAUSAL else None)
    assert params_of(after)["operands"] == 3


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("spelling", sorted(SCORES))
def test_every_spelling_is_recognised_in_training(spelling: str) -> None:
    def loss(q: Any, k: Any, v: Any, weights: Any) -> Any:
        return (wf.softmax(SCORES[spelling](q, k)) @ v * weights).sum()

    after = assert_attention(wf.value_and_grad(loss, argnums=(0, 1, 2)), 4)
    assert names(after)["attention_gradient"] == 1
    assert names(after)["dot"] == 0


@pytest.mark.usefixtures("any_size")
def test_heads_that_lie_inside_are_recognised() -> None:
    def f(q: Any, k: Any, v: Any) -> Any:  # [batch, time, heads, head]
        weights = wf.softmax(wf.einsum("bthd,bshd->bhts", q, k) / 3.0)
        return wf.einsum("bhts,bshd->bthd", weights, v)

    after = assert_attention(f, 3, (2, TIME, 3, 8))
    assert names(after)["dot"] == 0


@pytest.mark.usefixtures("any_size")
def test_masks_are_passed_on() -> None:
    """Truth values are joined, numbers are added, and both become numbers."""

    def f(q: Any, k: Any, v: Any, bias: Any, seen: Any, also: Any) -> Any:
        scores = wf.where(seen, scaled(q, k) + bias, -wf.inf)
        return wf.softmax(wf.where(also, scores, -wf.inf)) @ v

    kinds = [wf.spec("float64", SHAPE)] * 3 + [wf.spec("float64", (TIME, TIME))]
    kinds += [wf.spec("bool", (2, 1, 1, TIME)), wf.spec("bool", (TIME, 1))]
    before = wf.ir.trace(f, *kinds)
    after = optimize(before, CPU)
    assert params_of(after)["operands"] == 4
    rng = np.random.default_rng(0)
    xs = arguments(before)
    seen = rng.random((2, 1, 1, TIME)) < 0.7
    xs[4], xs[5] = wf.asarray(seen), wf.asarray(np.ones((TIME, 1), bool))
    (found,), (wanted,) = wf.ir.interpret(after, *xs), wf.ir.interpret(before, *xs)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-9)


@pytest.mark.usefixtures("any_size")
def test_a_number_that_may_not_hide_enough_is_left_alone() -> None:
    """A query that such a mask hides everything from sees everything."""

    def f(q: Any, k: Any, v: Any, seen: Any) -> Any:
        return wf.softmax(wf.where(seen, scaled(q, k), -1e9)) @ v

    kinds = [wf.spec("float64", SHAPE)] * 3 + [wf.spec("bool", (2, 1, 1, TIME))]
    assert names(optimize(wf.ir.trace(f, *kinds), CPU))["attention"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("any_size")
def test_rows_that_see_nothing_stay_nan() -> None:
    def f(q: Any, k: Any, v: Any, seen: Any) -> Any:
        return wf.softmax(wf.where(seen, scaled(q, k), -wf.inf)) @ v

    seen = np.ones((TIME, TIME), bool)
    seen[5] = False
    rng = np.random.default_rng(0)
    xs = [wf.asarray(rng.normal(size=SHAPE)) for _ in range(3)] + [wf.asarray(seen)]
    np.testing.assert_allclose(wf.jit(f)(*xs).numpy(), f(*xs).numpy(), rtol=1e-9)


DECLINED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "dropped weights": lambda q, k, v: (wf.softmax(scaled(q, k)) * wf.cos(q @ k.mT)) @ v,
    "another axis": lambda q, k, v: wf.softmax(scaled(q, k), axis=-2) @ v,
    "a bias that is scaled": lambda q, k, v: wf.softmax((q @ k.mT + k @ q.mT) * 0.5) @ v,
    "a function of scores": lambda q, k, v: wf.softmax(wf.tanh(scaled(q, k))) @ v,
    "no values": lambda q, k, v: wf.softmax(scaled(q, k)).sum(axis=-2) + v[..., 0],
}


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("name", sorted(DECLINED))
def test_what_is_no_attention_is_left_alone(name: str) -> None:
    before = wf.ir.trace(DECLINED[name], *[wf.spec("float64", SHAPE)] * 3)
    after = optimize(before, CPU)
    assert names(after)["attention"] == 0
    assert_same(before, after)


@pytest.mark.usefixtures("any_size")
def test_a_bias_with_a_gradient_leaves_the_step_as_it_is() -> None:
    def loss(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return (wf.softmax(scaled(q, k) + bias) @ v).sum()

    kinds = [wf.spec("float64", SHAPE)] * 3 + [wf.spec("float64", (TIME, TIME))]
    before = wf.ir.trace(wf.grad(loss, argnums=(0, 3)), *kinds)
    after = optimize(before, CPU)
    assert names(after)["attention"] == 0
    assert_same(before, after)


def layer(x: Any, w: Any, out: Any) -> Any:
    batch, time, width = x.shape
    q, k, v = (heads(a.reshape((batch, time, 2, -1))) for a in wf.split(x @ w, 3, axis=-1))
    scores = wf.where(triangle(time), q @ k.mT / math.sqrt(width // 2), -wf.inf)
    return x + heads(wf.softmax(scores) @ v).reshape((batch, time, width)) @ out


@pytest.mark.usefixtures("any_size")
def test_layers_of_a_model_are_recognised_each() -> None:
    def loss(x: Any, parameters: Any) -> Any:
        for w, out in parameters:
            x = layer(x, w, out)
        return (x * x).sum()

    kinds = [(wf.spec("float64", (8, 24)), wf.spec("float64", (8, 8)))] * 2
    flat = [kind for pair in kinds for kind in pair]

    def step(x: Any, *flat: Any) -> Any:
        value, gradients = wf.value_and_grad(loss, argnums=1)(
            x, [(flat[0], flat[1]), (flat[2], flat[3])]
        )
        return value, *[g for pair in gradients for g in pair]

    before = wf.ir.trace(step, wf.spec("float64", (2, TIME, 8)), *flat)
    after, reports = optimize_with_report(before, CPU)
    found = names(after)
    assert (found["attention"], found["attention_gradient"], found["exp"]) == (2, 2, 0)
    assert_same(before, after, 1e-7)
    rewrites = Counter[str]()
    for report in reports:
        rewrites.update(report.rewrites)
    assert (rewrites["attention"], rewrites["attention gradient"]) == (2, 2)


def test_explain_tells_of_attention() -> None:
    f = wf.jit(lambda q, k, v: wf.softmax(q @ k.mT * 0.5) @ v)
    xs = [wf.zeros((1, 2 * FEWEST, 8))] * 3
    assert "attention 1" in str(f.explain(*xs))


def offset_of(f: Callable[[], Any], inverted: bool = False) -> int | None:
    graph = wf.ir.trace(f)
    makers = {v: node for node in graph.nodes for v in node.results}
    return causal_offset(graph.outputs[0], inverted, makers)


def test_offsets_are_read_from_comparisons() -> None:
    i, j = (lambda: wf.arange(5)[:, None]), (lambda: wf.arange(7)[None, :])
    assert offset_of(lambda: i() >= j()) == 0
    assert offset_of(lambda: j() < i()) == -1
    assert offset_of(lambda: i() + 2 >= j()) == 2
    assert offset_of(lambda: j() - 2 > i(), inverted=True) == 2
    assert offset_of(lambda: wf.logical_not(i() < j())) == 0
    assert offset_of(lambda: i() <= j()) is None
    assert offset_of(lambda: i() >= 2 * j()) is None


def test_offsets_are_read_from_constants() -> None:
    makers: dict[Any, Any] = {}
    for offset in (0, 2, -1):
        table = wf.ir.Literal(np.tri(4, 6, offset, dtype=bool))
        assert causal_offset(table, False, makers) == max(-1, offset)
        hidden = wf.ir.Literal(~np.tri(4, 6, offset, dtype=bool))
        assert causal_offset(hidden, True, makers) == offset
    other = np.tri(4, 6, dtype=bool)
    other[3, 5] = True
    assert causal_offset(wf.ir.Literal(other), False, makers) is None


# --- scales of channels --------------------------------------------------------------------------

SCALES = {rule.name for rule in fold_scales}
IMAGE = [wf.spec("float64", s) for s in ((2, 3, 9, 9), (4, 3, 3, 3), *[(4,)] * 4)]


def normalized(x: Any, w: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
    y = wf.conv2d(x, w)
    channel = lambda v: v[:, None, None]  # noqa: E731
    spread = wf.sqrt(channel(variance * variance) + 1e-5)
    return wf.relu((y - channel(mean)) / spread * channel(gamma) + channel(beta))


def by_reciprocal(x: Any, w: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
    y = wf.conv2d(x, w)
    channel = lambda v: v.reshape((1, -1, 1, 1))  # noqa: E731
    factor = channel(gamma) * wf.rsqrt(channel(variance * variance) + 1e-5)
    return wf.relu((y - channel(mean)) * factor + channel(beta))


def computed(nodes: Iterable[GraphNode]) -> list[str]:
    """What nodes do, but for the transposes at the borders of a layout."""
    return [node.primitive.name for node in nodes if node.primitive.name != "transpose"]


@pytest.mark.parametrize("f", [normalized, by_reciprocal])
def test_batch_norm_goes_into_the_weights(f: Callable[..., Any]) -> None:
    before = wf.ir.trace(f, *IMAGE)
    after = optimize(before, CPU)
    assert_same(before, after)
    large = [n for n in after.nodes if n.results[0].type.size == 2 * 4 * 7 * 7]
    assert computed(large) == ["conv_last", "add", "relu"]


def test_batch_norm_of_a_compiled_model_is_a_convolution_and_its_epilogue() -> None:
    xs = [wf.asarray(np.random.default_rng(0).normal(size=k.shape)) for k in IMAGE]
    f = wf.jit(normalized)
    np.testing.assert_allclose(f(*xs).numpy(), normalized(*xs).numpy(), rtol=1e-9, atol=1e-9)
    explained = str(f.explain(*xs))
    assert "conv_lowered_divided" in explained
    assert "conv_lowered_raised" in explained


def test_constant_weights_are_scaled_once_and_for_all() -> None:
    rng = np.random.default_rng(0)
    constants = [wf.asarray(rng.normal(size=k.shape)) for k in IMAGE[1:]]
    before = wf.ir.trace(lambda x: normalized(x, *constants), IMAGE[0])
    after = optimize(before, CPU)
    assert computed(after.nodes) == ["conv_last", "add", "relu"]
    assert_same(before, after)


def test_a_layer_takes_the_scale_of_its_outputs() -> None:
    before = """graph(a: f32[9, 4], b: f32[4, 6], c: f32[6], d: f32[6]) {
  e: f32[9, 6] = dot(a, b, contract=((1,), (0,)), batch=((), ()))
  f: f32[9, 6] = multiply(e, c)
  g: f32[9, 6] = add(f, d)
  return g
}"""
    after = """graph(a: f32[9, 4], b: f32[4, 6], c: f32[6], d: f32[6]) {
  e: f32[1, 6] = reshape(c, shape=(1, 6))
  f: f32[4, 6] = multiply(b, e)
  g: f32[9, 6] = dot(a, f, contract=((1,), (0,)), batch=((), ()))
  h: f32[9, 6] = add(g, d)
  return h
}"""
    assert_becomes(fold_scales.apply, before, after)


DOT = """graph(a: f32[%s, 4], b: f32[4, 6], c: f32[%s]) {
  d: f32[%s, 6] = dot(a, b, contract=((1,), (0,)), batch=((), ()))
  e: f32[%s, 6] = multiply(d, c)
  return e%s
}"""


def test_scales_stay_where_moving_them_costs_more() -> None:
    """Few rows; a scale of each row; a result that something else needs."""
    assert_stays(fold_scales.apply, DOT % (3, 6, 3, 3, ""))
    assert_stays(fold_scales.apply, DOT % (9, "9, 1", 9, 9, ""))
    assert_stays(fold_scales.apply, DOT % (9, "1", 9, 9, ""))
    assert_stays(fold_scales.apply, DOT % (9, 6, 9, 9, ", d"))


def test_training_keeps_the_statistics_of_the_batch() -> None:
    """The unscaled result is needed: nothing moves, and the gradients are the same."""

    def loss(x: Any, w: Any, gamma: Any) -> Any:
        y = wf.conv2d(x, w)
        mean = y.mean(axis=(0, 2, 3), keepdims=True)
        spread = wf.sqrt(((y - mean) ** 2).mean(axis=(0, 2, 3), keepdims=True) + 1e-5)
        return (wf.relu((y - mean) / spread * gamma[:, None, None]) ** 2).sum()

    before = wf.ir.trace(wf.grad(loss, argnums=(1, 2)), *IMAGE[:3])
    _, reports = optimize_with_report(before, CPU)
    assert not [name for report in reports for name in report.rewrites if name in SCALES]
