"""Passes: programs before and after, in text; and the same results on programs drawn at random."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tests.laws import Arguments, Program, close, positions, total
from tests.test_laws import programs

import weft as wf
from weft.compiler.graph_passes.common_subexpressions import merge_common_subexpressions
from weft.compiler.graph_passes.dead_code import remove_dead_code
from weft.compiler.graph_passes.folding import fold_constants
from weft.compiler.graph_passes.graph_pass import run_pass
from weft.compiler.graph_passes.inlining import inline
from weft.compiler.graph_passes.laws.movement import absorb_movement, rearrange
from weft.compiler.pipeline import optimize, optimize_with_report, pipeline
from weft.compiler.targets.cpu.target import CPU
from weft.core.errors import Unsupported
from weft.ir import PRIMITIVES, Graph, Primitive, Variable
from weft.ir.dispatch import apply
from weft.ir.kinds import Effect
from weft.ir.printing import print_graph
from weft.ir.walking import replace_node

Run = Callable[[Graph], Graph]


def text(graph: Graph) -> str:
    return print_graph(graph, locations=False)


def assert_becomes(run: Run, before: str, after: str) -> None:
    """A pass makes one program of another, once, and leaves that as it is."""
    given, wanted = wf.ir.parse(before), wf.ir.parse(after)
    wf.ir.verify(given)
    found = run(given)
    wf.ir.verify(found)
    assert text(found) == text(wanted)
    assert run(found) is found


def assert_stays(run: Run, program: str) -> None:
    graph = wf.ir.parse(program)
    wf.ir.verify(graph)
    assert run(graph) is graph


def arguments(graph: Graph, seed: int = 0) -> list[wf.Tensor]:
    rng = np.random.default_rng(seed)
    return [
        wf.asarray(np.asarray(rng.normal(size=tuple(map(int, t.shape))) * 2).astype(t.dtype.numpy))
        for t in graph.input_types
    ]


def assert_same_results(before: Graph, after: Graph, limit: float = 1e-8) -> None:
    wf.ir.verify(after)
    xs = arguments(before)
    assert after.output_types == before.output_types
    close(wf.ir.interpret(after, *xs), wf.ir.interpret(before, *xs), text(after), limit)


# --- dead code ---------------------------------------------------------------------------------


@pytest.fixture
def effect() -> Iterator[Primitive]:
    """A primitive that does something beside its result."""
    yield Primitive(
        "effect_of_tests",
        "The same value, told to somebody.",
        kind=Effect(),
        lower=Unsupported("for tests"),
        type_rule=lambda x: x,
        reference=lambda x: x,
        derivatives=Unsupported("for tests"),
        batch=Unsupported("for tests"),
        samples=tuple,
        impure=True,
    )
    del PRIMITIVES["effect_of_tests"]


def test_what_no_output_needs_goes_and_effects_stay(effect: Primitive) -> None:
    assert_becomes(
        remove_dead_code,
        """graph(a: f32[2], b: f32[2]) {
          c: f32[2] = sin(a)
          d: f32[2] = exp(c)
          e: f32[2] = cos(a)
          f: f32[2] = effect_of_tests(e)
          g: f32[2] = barrier(c)
          return b
        }""",
        """graph(a: f32[2], b: f32[2]) {
          c: f32[2] = cos(a)
          d: f32[2] = effect_of_tests(c)
          return b
        }""",
    )


def test_a_loop_stays_for_the_sake_of_an_effect_inside(effect: Primitive) -> None:
    def step(carry: Any, x: wf.Tensor) -> Any:
        told = apply(effect, carry[0] + x)
        return (carry[0] * 2.0, carry[1] * told), carry[1]

    graph = wf.ir.trace(lambda x: wf.scan(step, (0.0, 1.0), x)[1], wf.spec("float32", (3,)))
    unused = Graph(graph.inputs, graph.nodes, graph.inputs)
    (node,) = remove_dead_code(unused).nodes
    assert (node.primitive.name, node.params["num_carry"], len(node.operands)) == ("scan", 1, 2)
    assert [n.primitive.name for n in node.params["graph"].nodes] == [
        "add",
        "effect_of_tests",
        "multiply",
    ]
    wf.ir.verify(remove_dead_code(unused))


def test_branches_lose_results_and_operands_that_nothing_uses() -> None:
    assert_becomes(
        remove_dead_code,
        """graph(a: i32[], b: f32[2], c: f32[2]) {
          d: f32[2], e: f32[2] = switch(a, b, c, branches=(graph(f: f32[2], g: f32[2]) {
            h: f32[2] = sin(f)
            i: f32[2] = cos(g)
            return h, i
          }, graph(j: f32[2], k: f32[2]) {
            return j, k
          }), rows=0)
          return d
        }""",
        """graph(a: i32[], b: f32[2], c: f32[2]) {
          d: f32[2] = switch(a, b, branches=(graph(f: f32[2]) {
            h: f32[2] = sin(f)
            return h
          }, graph(j: f32[2]) {
            return j
          }), rows=0)
          return d
        }""",
    )


def test_a_scan_loses_what_it_carries_for_its_own_sake() -> None:
    """Of the carry (a, b, c), a needs b; c is only its own. Of the constants, c's is dead."""

    def step(carry: Any, x: Any) -> Any:
        a, b, c = carry
        first, second = x
        return (a + b, b * first, c + second * constant), (a, c)

    constant = wf.ones(())

    def program(a: Any, b: Any, c: Any, k: Any, xs: Any, ys: Any) -> Any:
        nonlocal constant
        constant = k
        (last, _, _), (stacked, _) = wf.scan(step, (a, b, c), (xs, ys))
        return last, stacked

    scalar, line = wf.spec("float64", ()), wf.spec("float64", (4,))
    graph = wf.ir.trace(program, scalar, scalar, scalar, scalar, line, line)
    trimmed = remove_dead_code(graph)
    (node,) = [node for node in trimmed.nodes if node.primitive.name == "scan"]
    assert (node.params["num_consts"], node.params["num_carry"]) == (0, 2)
    assert len(node.operands) == 3
    assert len(node.results) == 3
    assert remove_dead_code(trimmed) is trimmed
    assert_same_results(graph, trimmed)


def test_a_while_loop_keeps_what_its_condition_reads() -> None:
    def program(n: Any, a: Any, b: Any, k: Any) -> Any:
        def body(state: Any) -> Any:
            count, x, y = state
            return count + 1.0, x * 0.5, y + k

        return wf.while_loop(lambda state: state[0] < 3.0, body, (n, a, b))[1]

    scalar = wf.spec("float64", ())
    graph = wf.ir.trace(program, scalar, scalar, scalar, scalar)
    trimmed = remove_dead_code(graph)
    (node,) = trimmed.nodes
    assert (len(node.operands), len(node.results), node.params["num_consts"]) == (2, 2, 0)
    assert_same_results(graph, trimmed)


# --- folding -----------------------------------------------------------------------------------

FOLDED = {
    "numbers": (
        "c: f32[] = add(2.0, 3.0)\n d: f32[3] = multiply(a, c)",
        "d: f32[3] = multiply(a, 5.0)",
    ),
    "small constants": (
        "c: f32[2] = sin(f32[2] [0.0, 0.0])\n e: f32[2] = flip(f32[2] [1.0, 2.0], axes=(0,))\n"
        "f: f32[2] = add(c, e)\n g: f32[2] = multiply(f, b)\n h: f32[] = reduce_sum(g, axes=(0,))\n"
        "d: f32[3] = multiply(a, h)",
        "g: f32[2] = multiply(f32[2] [2.0, 1.0], b)\n h: f32[] = reduce_sum(g, axes=(0,))\n"
        "d: f32[3] = multiply(a, h)",
    ),
    "equal elements through movement": (
        "c: f32[9] = full(shape=(9,), dtype=float32, value=2.0)\n"
        "e: f32[3, 3] = reshape(c, shape=(3, 3))\n"
        "f: f32[3, 3] = transpose(e, order=(1, 0))\n g: f32[3, 3] = exp2(f)\n"
        "h: f32[3] = reduce_max(g, axes=(0,))\n d: f32[3] = multiply(a, h)",
        "d: f32[3] = multiply(a, 4.0)",
    ),
    "sums of whole numbers": (
        "c: f32[7, 3] = full(shape=(7, 3), dtype=float32, value=1.0)\n"
        "e: f32[3] = reduce_sum(c, axes=(0,))\n d: f32[3] = multiply(a, e)",
        "d: f32[3] = multiply(a, 7.0)",
    ),
    "conversions": (
        "c: i32[3] = full(shape=(3,), dtype=int32, value=3)\n"
        "e: f32[3] = convert(c, dtype=float32)\n d: f32[3] = multiply(a, e)",
        "d: f32[3] = multiply(a, 3.0)",
    ),
    "equal parts joined": (
        "c: f32[1] = full(shape=(1,), dtype=float32, value=3.0)\n"
        "e: f32[2] = full(shape=(2,), dtype=float32, value=3.0)\n"
        "f: f32[3] = concatenate(c, e, axis=0)\n d: f32[3] = multiply(a, f)",
        "d: f32[3] = multiply(a, 3.0)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_known_is_computed(name: str) -> None:
    frame = "graph(a: f32[3], b: f32[2]) {{\n {}\n return d\n}}"
    before, after = FOLDED[name]
    assert_becomes(fold_constants, frame.format(before), frame.format(after))


NOT_FOLDED = {
    "rounding depends on the order of a sum": (
        "c: f32[7, 3] = full(shape=(7, 3), dtype=float32, value=0.1)\n"
        "e: f32[3] = reduce_sum(c, axes=(0,))\n d: f32[3] = multiply(a, e)"
    ),
    "positions cost nothing where they are used": (
        "c: f32[3] = iota(shape=(3,), dtype=float32, axis=0)\n d: f32[3] = multiply(a, c)"
    ),
    "an error stays where it is": "d: i64[] = pow(2, -1)",
    "too large": f"d: f32[2000] = flip(f32[2000] 0x{'00' * 4000 + '01' * 4000}, axes=(0,))",
    "the shape comes from the constant": (
        "c: f32[2, 3] = full(shape=(2, 3), dtype=float32, value=2.0)\n d: f32[2, 3] = add(a, c)"
    ),
    "all of nothing is true": (
        "c: bool[0, 3] = full(shape=(0, 3), dtype=bool, value=False)\n"
        "d: bool[3] = reduce_all(c, axes=(0,))"
    ),
    "not the same zero": (
        "c: f32[1] = full(shape=(1,), dtype=float32, value=0.0)\n"
        "e: f32[1] = full(shape=(1,), dtype=float32, value=-0.0)\n"
        "d: f32[2] = concatenate(c, e, axis=0)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_what_is_not_known_or_better_left_stays(name: str) -> None:
    assert_stays(fold_constants, f"graph(a: f32[3]) {{\n {NOT_FOLDED[name]}\n return d\n}}")


def test_sums_of_integers_wrap_around() -> None:
    graph = wf.ir.parse(
        """graph() {
          a: i8[50] = full(shape=(50,), dtype=int8, value=7)
          b: i8[] = reduce_sum(a, axes=(0,))
          return b
        }"""
    )
    assert_same_results(graph, fold_constants(graph))
    assert fold_constants(graph).nodes == ()


# --- common subexpressions ---------------------------------------------------------------------


def test_equal_nodes_become_one_also_with_operands_exchanged() -> None:
    assert_becomes(
        merge_common_subexpressions,
        """graph(a: f32[2], b: f32[2]) {
          c: f32[2] = multiply(a, b)
          d: f32[2] = multiply(b, a)
          e: f32[2] = add(c, 1.0)
          f: f32[2] = add(1.0, d)
          g: f32[2] = subtract(e, f)
          h: f32[2] = subtract(a, b)
          i: f32[2] = subtract(b, a)
          return g, h, i
        }""",
        """graph(a: f32[2], b: f32[2]) {
          c: f32[2] = multiply(a, b)
          e: f32[2] = add(c, 1.0)
          g: f32[2] = subtract(e, e)
          h: f32[2] = subtract(a, b)
          i: f32[2] = subtract(b, a)
          return g, h, i
        }""",
    )


@pytest.mark.parametrize(
    "program",
    [
        "c: f32[2] = barrier(a)\n d: f32[2] = barrier(a)\n e: f32[2] = sin(c)\n f: f32[2] = sin(d)",
        "e: f32[2] = add(a, 0.0)\n f: f32[2] = add(a, -0.0)",
        "e: f32[3] = pad(a, padding=((0, 1, 0),), value=0.0)\n"
        "f: f32[3] = pad(a, padding=((0, 1, 0),), value=-0.0)",
        "e: f32[2] = full(shape=(2,), dtype=float32, value=1)\n"
        "f: f64[2] = full(shape=(2,), dtype=float64, value=1)",
    ],
    ids=["barriers", "zeros", "zeros in parameters", "dtypes"],
)
def test_what_only_looks_equal_is_not_merged(program: str) -> None:
    assert_stays(merge_common_subexpressions, f"graph(a: f32[2]) {{\n {program}\n return e, f\n}}")


def test_random_bits_of_the_same_key_are_one() -> None:
    def program(key: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return tuple(wf.random.normal((3,), key=key) for _ in range(2))

    key = wf.random.key(0)
    graph = wf.ir.trace(program, key)
    merged = merge_common_subexpressions(graph)
    assert len(merged.nodes) * 2 == len(graph.nodes)
    assert merged.outputs[0] is merged.outputs[1]


def test_what_a_checkpoint_recomputes_stays_apart() -> None:
    f = wf.checkpoint(lambda x: wf.sin(wf.sin(x) * 2.0))
    graph = wf.ir.trace(wf.grad(lambda x: f(x).sum()), wf.spec("float32", (3,)))
    counts = Counter(node.primitive.name for node in optimize(graph, CPU).nodes)
    assert counts["barrier"] == 1
    plain = wf.ir.trace(wf.value_and_grad(lambda x: f(x).sum()), wf.spec("float32", (3,)))
    assert Counter(node.primitive.name for node in optimize(plain, CPU).nodes)["sin"] == 3


def test_equal_loops_are_one() -> None:
    def program(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return tuple(wf.scan(lambda c, y: (c + y, c), 0.0, x)[0] for _ in range(2))

    graph = merge_common_subexpressions(wf.ir.trace(program, wf.spec("float32", (3,))))
    assert [node.primitive.name for node in graph.nodes].count("scan") == 1


# --- inlining ----------------------------------------------------------------------------------


def test_a_function_with_its_own_derivative_is_inlined_wherever_it_is_called() -> None:
    f = wf.custom_derivative(lambda x: wf.sin(x) * 2.0)
    f.vjp(lambda x: (f(x), lambda ct: (ct,)))
    graph = wf.ir.trace(lambda x: f(f(x)), wf.spec("float64", (3,)))
    inlined = inline(graph)
    assert [node.primitive.name for node in inlined.nodes] == ["sin", "multiply"] * 2
    assert_same_results(graph, inlined)


def test_one_graph_can_be_inlined_twice() -> None:
    f = wf.custom_derivative(lambda x: wf.sin(x) * 2.0)
    f.vjp(lambda x: (f(x), lambda ct: (ct,)))
    graph = wf.ir.trace(f, wf.spec("float64", (3,)))
    (first,) = graph.nodes
    result = Variable(first.results[0].type)
    second = replace_node(first, operands=first.results, results=(result,))
    twice = Graph(graph.inputs, (first, second), (result,))
    assert_same_results(twice, inline(twice))


def test_a_branch_that_is_known_is_taken() -> None:
    branches = "branches=(graph(f: f32[2]) {\n g: f32[2] = sin(f)\n return g\n}, "
    branches += "graph(f: f32[2]) {\n return f\n}), rows=0"
    assert_becomes(
        inline,
        f"graph(a: f32[2]) {{\n b: f32[2] = switch(i32[] 0, a, {branches})\n return b\n}}",
        "graph(a: f32[2]) {\n b: f32[2] = sin(a)\n return b\n}",
    )
    assert_stays(
        inline,
        f"graph(a: f32[2], i: i32[]) {{\n b: f32[2] = switch(i, a, {branches})\n return b\n}}",
    )


# --- movement ----------------------------------------------------------------------------------

MOVED = {
    "a broadcast before an element-wise operation": (
        "c: f32[2, 3] = broadcast_to(b, shape=(2, 3))\n d: f32[2, 3] = add(a, c)",
        "d: f32[2, 3] = add(a, b)",
    ),
    "leading axes": (
        "c: f32[1, 3] = reshape(b, shape=(1, 3))\n d: f32[2, 3] = add(a, c)",
        "d: f32[2, 3] = add(a, b)",
    ),
    "joins of joins, without what is empty": (
        "c: f32[4, 3] = concatenate(a, a, axis=0)\n"
        "e: f32[0, 3] = full(shape=(0, 3), dtype=float32, value=0.0)\n"
        "d: f32[6, 3] = concatenate(a, c, e, axis=0)",
        "d: f32[6, 3] = concatenate(a, a, a, axis=0)",
    ),
    "joins along different axes": (
        "c: f32[2, 6] = concatenate(a, a, axis=1)\n d: f32[4, 6] = concatenate(c, c, axis=0)",
        "c: f32[2, 6] = concatenate(a, a, axis=1)\n d: f32[4, 6] = concatenate(c, c, axis=0)",
    ),
    "a slice of a join": (
        "f: f32[2, 3] = sin(a)\n c: f32[4, 3] = concatenate(a, f, axis=0)\n"
        "d: f32[1, 3] = slice(c, starts=(3, 0), stops=(4, 3), strides=(1, 1))",
        "f: f32[2, 3] = sin(a)\n"
        "d: f32[1, 3] = slice(f, starts=(1, 0), stops=(2, 3), strides=(1, 1))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_movement_is_absorbed(name: str) -> None:
    frame = "graph(a: f32[2, 3], b: f32[3]) {{\n {}\n return d\n}}"
    before, after = MOVED[name]
    assert_becomes(absorb_movement, frame.format(before), frame.format(after))


@pytest.mark.parametrize(
    "program",
    [
        "c: f32[2, 3] = broadcast_to(b, shape=(2, 3))\n d: f32[2, 3] = sin(c)",
        "c: f32[2, 3] = broadcast_to(b, shape=(2, 3))\n d: f32[2, 3] = add(b, c)",
        "c: f32[2, 6] = concatenate(a, a, axis=1)\n d: f32[4, 6] = concatenate(c, c, axis=0)",
        "c: f32[4, 3] = concatenate(a, a, axis=0)\n"
        "d: f32[2, 3] = slice(c, starts=(1, 0), stops=(3, 3), strides=(1, 1))",
    ],
)
def test_movement_that_gives_the_shape_stays(program: str) -> None:
    graph = absorb_movement(
        wf.ir.parse(f"graph(a: f32[2, 3], b: f32[3]) {{\n {program}\n return d\n}}")
    )
    wf.ir.verify(graph)
    assert [node.primitive.name for node in graph.nodes].count("broadcast_to") <= 1


@pytest.mark.parametrize(
    ("shapes", "program"),
    [
        (((2, 3), (4, 3)), lambda x, y: x @ y.T),
        (((3, 2), (4, 3)), lambda x, y: (y @ x).T),
        (((2, 5, 4, 3), (2, 7, 4, 3)), lambda q, k: _heads(q) @ _heads(k).mT),
        (((2, 5, 4, 3), (2, 7, 4, 3)), lambda q, k: (_heads(k) @ _heads(q).mT).mT),
    ],
)
def test_products_take_transposes_in(
    shapes: tuple[tuple[int, ...], ...], program: Callable[..., Any]
) -> None:
    graph = wf.ir.trace(program, *[wf.spec("float64", shape) for shape in shapes])
    absorbed = rearrange.apply(graph)
    assert [node.primitive.name for node in absorbed.nodes] == ["dot"]
    assert_same_results(graph, absorbed)


def _heads(x: wf.Tensor) -> wf.Tensor:
    return wf.permute_dims(x, (0, 2, 1, 3))


def test_free_axes_of_a_product_keep_their_order() -> None:
    def program(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.permute_dims(x, (1, 0, 2)) @ y

    graph = wf.ir.trace(program, wf.spec("float64", (2, 3, 4)), wf.spec("float64", (4, 5)))
    assert rearrange.apply(graph) is graph


def test_the_gradients_of_a_split_meet_in_one_join() -> None:
    def loss(x: wf.Tensor) -> wf.Tensor:
        a, b, c = wf.split(x, 3, axis=-1)
        return (wf.sin(a) * wf.cos(b) * wf.exp(c)).sum()

    graph = wf.ir.trace(wf.grad(loss), wf.spec("float64", (2, 6)))
    optimized = optimize(graph, CPU)
    counts = Counter(node.primitive.name for node in optimized.nodes)
    assert counts["concatenate"] == 1
    assert counts["pad"] == 0
    assert_same_results(graph, optimized)


# --- the pipeline ------------------------------------------------------------------------------


def test_every_pass_has_a_reason() -> None:
    assert all(each.reason for each in pipeline(CPU))


def test_the_report_says_what_each_pass_did() -> None:
    graph = wf.ir.trace(lambda x: (x * 1.0).sum() + x.sum(), wf.spec("float32", (3,)))
    optimized, reports = optimize_with_report(graph, CPU)
    assert reports[0].before == len(graph.nodes)
    assert reports[-1].after == len(optimized.nodes)
    done = {report.name: report.rewrites for report in reports if report.rewrites}
    assert done == {"laws": {"multiply_by_one": 1}, "merge": {"reduce_sum": 1}}
    assert "laws: 4 -> 3 nodes   multiply_by_one 1" in [str(report) for report in reports]
    assert all(report.seconds >= 0 for report in reports)


def test_locations_outlive_the_pipeline() -> None:
    graph = wf.ir.trace(
        lambda x: wf.exp(wf.negative(-x) / 4.0) * wf.ones(3), wf.spec("float32", (3,))
    )
    assert all(node.location is not None for node in optimize(graph, CPU).nodes)


def attention_loss(x: Any, w: Any, v: Any, scale: Any) -> Any:
    """A layer norm, causal attention and a projection, as a user writes them."""
    batch, time_, width = x.shape
    centred = x - x.mean(axis=-1, keepdims=True)
    h = centred / wf.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale
    q, k, u = (
        _heads(a.reshape((batch, time_, 2, width // 2))) for a in wf.split(h @ w, 3, axis=-1)
    )
    scores = wf.where(wf.tril(wf.ones((time_, time_), dtype=wf.bool)), q @ k.mT * 0.5, -1e9)
    out = _heads(wf.softmax(scores, axis=-1) @ u).reshape((batch, time_, width))
    return (wf.gelu(out @ v) ** 2).mean()


ATTENTION = [wf.spec("float64", s) for s in ((2, 5, 8), (8, 24), (8, 8), (8,))]


def test_a_layer_of_attention_is_left_with_what_it_means() -> None:
    graph = wf.ir.trace(wf.grad(attention_loss, argnums=(0, 1, 2, 3)), *ATTENTION)
    optimized = optimize(graph, CPU)
    counts = Counter(node.primitive.name for node in optimized.nodes)
    assert counts["dot"] == 12
    assert counts["transpose"] == 4
    assert counts["stop_gradient"] == counts["broadcast_to"] == counts["pad"] == 0
    assert len(optimized.nodes) < 0.87 * len(graph.nodes)
    assert_same_results(graph, optimized)


def test_sizes_may_be_symbols() -> None:
    kinds = [wf.spec("float64", ("batch", 5, 8)), *ATTENTION[1:]]
    graph = wf.ir.trace(wf.grad(attention_loss, argnums=(0, 1)), *kinds)
    optimized = optimize(graph, CPU)
    wf.ir.verify(optimized)
    xs = [
        wf.asarray(np.random.default_rng(1).normal(size=s))
        for s in ((3, 5, 8), (8, 24), (8, 8), (8,))
    ]
    close(wf.ir.interpret(optimized, *xs), wf.ir.interpret(graph, *xs))


def test_what_is_optimized_stays_as_it_is() -> None:
    optimized = optimize(wf.ir.trace(wf.grad(attention_loss, argnums=(0, 1)), *ATTENTION), CPU)
    assert optimize(optimized, CPU) is optimized


def training_step(layers: int) -> Graph:
    """Gradients through layers of attention, and an optimiser's update of each matrix."""

    def loss(x: Any, parameters: Any) -> Any:
        for w, v, scale in parameters:
            x = x + attention_loss(x, w, v, scale) * x
        return x.sum()

    def step(x: Any, parameters: Any, moments: Any) -> Any:
        gradients = wf.grad(loss, argnums=1)(x, parameters)
        return [
            (p - 0.001 * m / (wf.sqrt(m * m) + 1e-8), 0.9 * m + 0.1 * g)
            for ps, ms, gs in zip(parameters, moments, gradients, strict=True)
            for p, m, g in zip(ps, ms, gs, strict=True)
        ]

    each = [tuple(ATTENTION[1:]) for _ in range(layers)]
    return wf.ir.trace(step, ATTENTION[0], each, each)


@pytest.mark.slow
def test_the_time_to_optimize_grows_with_the_graph_and_no_faster() -> None:
    def seconds(graph: Graph) -> float:
        start = time.thread_time()
        optimize(graph, CPU)
        return time.thread_time() - start

    small, large = training_step(layers=5), training_step(layers=20)
    assert len(large.nodes) > 3000
    pairs = [(seconds(small), seconds(large)) for _ in range(4)]
    fast, slow = (min(column) for column in zip(*pairs, strict=True))
    assert slow / fast < 2 * len(large.nodes) / len(small.nodes)


@pytest.mark.slow
def test_long_chains_are_walked_without_recursion() -> None:
    def program(x: wf.Tensor) -> wf.Tensor:
        for _ in range(1500):
            x = wf.expand_dims(x.reshape(6), axis=0)
        return x.reshape(6) * 2.0

    graph = wf.ir.trace(program, wf.spec("float64", (2, 3)))
    for each in pipeline(CPU):
        assert_same_results(graph, run_pass(each, graph)[0])
    assert [node.primitive.name for node in optimize(graph, CPU).nodes] == ["reshape", "multiply"]


# --- the same results, on programs drawn at random ---------------------------------------------


@pytest.mark.slow
@given(programs())
def test_optimized_programs_compute_the_same(drawn: tuple[Program, Arguments]) -> None:
    f, xs = drawn
    graph = wf.ir.trace(f, *xs)
    optimized = optimize(graph, CPU)
    wf.ir.verify(optimized)
    close(wf.ir.interpret(optimized, *xs), wf.ir.interpret(graph, *xs), str(graph))


@pytest.mark.slow
@given(programs())
def test_optimized_gradients_are_the_same(drawn: tuple[Program, Arguments]) -> None:
    f, xs = drawn
    graph = wf.ir.trace(wf.value_and_grad(total(f), argnums=positions(xs)), *xs)
    optimized = optimize(graph, CPU)
    wf.ir.verify(optimized)
    close(wf.ir.interpret(optimized, *xs), wf.ir.interpret(graph, *xs), str(graph))


@pytest.mark.slow
@given(programs())
def test_each_pass_alone_leaves_a_graph_that_verifies(drawn: tuple[Program, Arguments]) -> None:
    f, xs = drawn
    graph = wf.ir.trace(wf.grad(total(f), argnums=positions(xs)), *xs)
    for each in pipeline(CPU):
        result = run_pass(each, graph)[0]
        wf.ir.verify(result)
        close(wf.ir.interpret(result, *xs), wf.ir.interpret(graph, *xs), each.name)


def test_batched_and_jumping_programs_compute_the_same() -> None:
    def program(x: Any) -> Any:
        y = wf.vmap(lambda row: wf.cond(row.sum() > 0.0, wf.sin, lambda r: r * 1.0, row))(x)
        return wf.fori_loop(0, 3, lambda i, c: c * 1.0 + y / 2.0, y)

    for f in (program, lambda x: wf.grad(lambda z: program(z).sum())(x)):
        graph = wf.ir.trace(f, wf.spec("float64", (4, 3)))
        assert_same_results(graph, optimize(graph, CPU))
