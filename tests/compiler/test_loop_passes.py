"""The pass that takes work out of loops: what is moved, what must stay, and equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.graph_passes.loops.lighten import lighten_loops
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu.products.loop_weights import turn_loop_weights
from weft.compiler.targets.cpu.target import CPU
from weft.core import trees
from weft.ir.graph import Graph
from weft.ir.tensor import Tensor
from weft.ops.control import run

Function = Callable[..., Any]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return wf.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def lightened(f: Function, *args: Tensor, whole: bool = False) -> tuple[Graph, Counter[str]]:
    """The graph after the pass, or after all of them, which must compute the same."""
    before = wf.ir.trace(f, *args)
    tally: Counter[str] = Counter()
    if whole:
        after = optimize(before, CPU)
    else:
        after = lighten_loops(before, tally, limits=CPU.limits.passes)
    wf.ir.verify(after)
    arrays = [x.numpy() for x in args]
    for found, expected in zip(run(after, arrays), run(before, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    return after, tally


def names(graph: Graph) -> list[str]:
    return [node.primitive.name for node in graph.nodes]


def bodies(graph: Graph) -> list[list[str]]:
    return [names(node.params["graph"]) for node in graph.nodes if node.primitive.name == "scan"]


# --- before the loop ---------------------------------------------------------------------------


def test_what_depends_on_constants_is_computed_once() -> None:
    def f(w: Tensor, h: Tensor) -> Tensor:
        step = lambda c, _: ((c[0], c[1] * wf.exp(c[0]).sum()), None)  # noqa: E731
        return wf.scan(step, (w, h), length=4)[0][1]

    graph, tally = lightened(f, numbers(5), numbers(3))
    assert names(graph) == ["exp", "reduce_sum", "scan"]
    assert bodies(graph) == [["multiply"]]
    assert tally["compute_before_loop"] == 1


def test_what_only_spreads_a_constant_stays() -> None:
    def f(w: Tensor, h: Tensor) -> Tensor:
        step = lambda c, _: ((c[0], c[1] * c[0].reshape(5, 1) + wf.ones(4)), None)  # noqa: E731
        return wf.scan(step, (w, h), length=4)[0][1]

    graph, tally = lightened(f, numbers(5), numbers(5, 4))
    assert {"reshape", "full"} <= set(bodies(graph)[0])
    assert tally == {"take_out_unchanged_carries": 1}


def product_of_xs(w: Tensor, h: Tensor, xs: Tensor) -> Any:
    return wf.scan(lambda h, x: (wf.tanh(h + wf.sin(x) @ w), h), h, xs)


@pytest.mark.parametrize("length", [0, 1, 6])
def test_a_product_that_needs_no_carry_is_one_over_all_steps(length: int) -> None:
    graph, _ = lightened(product_of_xs, numbers(4, 5), numbers(2, 5), numbers(length, 2, 4))
    assert "dot" not in bodies(graph)[0]
    assert names(graph) == ["sin", "dot", "scan"]
    assert graph.nodes[1].results[0].type.shape == (length, 2, 5)


def test_a_constant_on_the_left_is_multiplied_as_well() -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda h, x: (wf.tanh(h + w @ x), h), h, xs)

    graph, _ = lightened(f, numbers(5, 4), numbers(5, 2), numbers(3, 4, 2))
    assert "dot" not in bodies(graph)[0]


def test_products_stay_where_moving_them_only_takes_memory() -> None:
    tall = lightened(product_of_xs, numbers(4, 4), numbers(2000, 4), numbers(3, 2000, 4))[0]
    assert "dot" in bodies(tall)[0]
    wide = lightened(product_of_xs, numbers(4, 100), numbers(2, 100), numbers(3, 2, 4))[0]
    assert "dot" in bodies(wide)[0]
    each = lightened(lambda xs, w: wf.map(lambda x: (x @ w).sum(), xs), numbers(4, 3, 3),
                     numbers(3, 3))[0]  # fmt: skip
    assert "dot" in bodies(each)[0]
    own = lightened(lambda h, xs: wf.scan(lambda h, x: (h * (x @ x), None), h, xs), numbers(3, 3),
                    numbers(4, 3, 3))[0]  # fmt: skip
    assert "dot" in bodies(own)[0]


def test_what_can_fail_or_has_an_effect_stays(capsys: pytest.CaptureFixture[str]) -> None:
    def f(table: Tensor, index: Tensor, h: Tensor) -> Any:
        def step(c: Any, _: Any) -> Any:
            wf.debug.print("{}", c[1])
            return (c[0], c[1], c[2] + wf.take(c[0], c[1], axis=0)), None

        return wf.scan(step, (table, index, h), length=2)[0][2]

    graph, _ = lightened(f, numbers(4, 3), wf.tensor(2), numbers(3))
    assert {"debug_print", "gather"} <= set(bodies(graph)[0])
    assert capsys.readouterr().out == "2\n2\n" * 2


# --- behind the loop ---------------------------------------------------------------------------


def test_a_sum_of_products_is_one_product() -> None:
    def f(total: Tensor, h: Tensor, xs: Tensor) -> Any:
        def step(carry: Any, x: Tensor) -> Any:
            total, h = carry
            h = wf.sin(h + x)
            return (total + x.T @ h, h), None

        return wf.scan(step, (total, h), xs)[0]

    graph, _ = lightened(f, numbers(4, 4), numbers(2, 4), numbers(5, 2, 4), whole=True)
    assert "dot" not in bodies(graph)[0]
    (product,) = [node for node in graph.nodes if node.primitive.name == "dot"]
    assert product.params["contract"] == ((0, 1), (0, 1))
    assert graph.nodes[0].params["num_carry"] == 1


def test_a_sum_of_what_is_an_output_is_taken_behind() -> None:
    def f(total: Tensor, h: Tensor, xs: Tensor) -> Any:
        def step(carry: Any, x: Tensor) -> Any:
            h = wf.sin(carry[1] + x)
            return (carry[0] + h.sum(axis=0), h), h

        return wf.scan(step, (total, h), xs)

    graph, _ = lightened(f, numbers(4), numbers(2, 4), numbers(5, 2, 4))
    assert "reduce_sum" not in bodies(graph)[0]
    assert "reduce_sum" in names(graph)


def test_sums_that_are_read_on_the_way_stay() -> None:
    def f(total: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda t, x: (t + x.T @ x, t.sum()), total, xs)

    graph, _ = lightened(f, numbers(4, 4), numbers(5, 2, 4))
    assert "dot" in bodies(graph)[0]


def test_an_output_that_is_a_product_is_one_product() -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Any:
        def step(h: Tensor, x: Tensor) -> Any:
            h = wf.sin(h + x)
            return h, (h @ w, h[0])

        return wf.scan(step, h, xs)

    graph, tally = lightened(f, numbers(4, 3), numbers(2, 4), numbers(5, 2, 4))
    assert "dot" not in bodies(graph)[0]
    assert tally["late_products"] == 1


# --- fewer carries, inputs and loops -----------------------------------------------------------


def test_a_carry_that_stays_is_a_constant_and_an_input_passed_on_no_output() -> None:
    def f(a: Tensor, b: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda c, x: ((c[0], c[1] * c[0]), (x, c[1], c[1])), (a, b), xs)

    graph, tally = lightened(f, numbers(3), numbers(3, seed=1), numbers(4, 3))
    (loop,) = graph.nodes
    assert (loop.params["num_consts"], loop.params["num_carry"], len(loop.results)) == (1, 1, 2)
    assert (tally["take_out_unchanged_carries"], tally["passed_on"]) == (1, 1)


def test_an_operand_that_comes_twice_is_given_once() -> None:
    graph, _ = lightened(
        lambda h, x: wf.scan(lambda h, x: (h + x[0] * x[1], None), h, (x, x))[0],
        numbers(3), numbers(4, 3))  # fmt: skip
    assert len(graph.nodes[0].operands) == 2


def test_loops_with_the_same_carry_are_one() -> None:
    def f(h: Tensor, xs: Tensor, ys: Tensor) -> Any:
        first = wf.scan(lambda h, x: (wf.sin(h + x), h), h, xs)
        second = wf.scan(lambda h, x: (wf.sin(h + x[0]), h * x[1]), h, (xs, ys))
        third = wf.scan(lambda h, x: (wf.cos(h + x), h), h, xs)
        return first, second, third

    graph, tally = lightened(f, numbers(3), numbers(4, 3), numbers(4, 3, seed=1))
    assert tally["same_carry"] == 1
    assert names(graph).count("scan") == 2


def test_loops_are_not_joined_before_their_operands_are_there() -> None:
    def f(h: Tensor, xs: Tensor) -> Any:
        last, ys = wf.scan(lambda h, x: (wf.sin(h + x), h), h, xs)
        return wf.scan(lambda h, x: (wf.sin(h + x[0]), h * x[1]), h, (xs, ys)), last

    graph, _ = lightened(f, numbers(3), numbers(4, 3))
    assert names(graph).count("scan") == 2


# --- whole programs ----------------------------------------------------------------------------


def layer(w: Tensor, u: Tensor, b: Tensor, xs: Tensor) -> Tensor:
    def step(h: Tensor, x: Tensor) -> Any:
        h = wf.tanh(x @ w + h @ u + b)
        return h, h

    return wf.scan(step, wf.zeros((2, 3)), xs)[1]


def test_a_recurrent_layer_has_one_product_in_each_loop_forward_and_backward() -> None:
    arguments = numbers(4, 3), numbers(3, 3), numbers(3), numbers(6, 2, 4)
    gradient = wf.grad(lambda *a: (layer(*a) ** 2).sum(), argnums=(0, 1, 2, 3))
    graph, _ = lightened(gradient, *arguments, whole=True)
    assert [body.count("dot") for body in bodies(graph)] == [1, 1]
    assert names(graph).count("dot") == 4  # of xs; gradients of both weights, and of xs


def gated(w: Tensor, u: Tensor, b: Tensor, xs: Tensor) -> Tensor:
    def step(h: Tensor, x: Tensor) -> Any:
        total = x @ w + h @ u + b
        h = wf.tanh(total) * wf.sigmoid(total)
        return h, h

    return wf.scan(step, wf.zeros((2, 3)), xs)[1]


def test_a_backward_loop_goes_over_the_sum_that_the_forward_loop_has_made() -> None:
    arguments = numbers(4, 3), numbers(3, 3), numbers(3), numbers(6, 2, 4)
    gradient = wf.grad(lambda *a: (gated(*a) ** 2).sum(), argnums=(0, 1, 2, 3))
    graph, _ = lightened(gradient, *arguments, whole=True)
    forward, backward = [node for node in graph.nodes if node.primitive.name == "scan"]
    count = backward.params["num_consts"] + backward.params["num_carry"]
    sums = [atom for atom in backward.operands[count:] if atom in forward.results]
    early = [v for node in graph.nodes if node.primitive.name == "dot" for v in node.results]
    assert len(sums) == 1
    assert not set(early) & {*backward.operands}


def test_a_sum_is_computed_again_where_its_parts_are_needed_anyway() -> None:
    def f(xs: Tensor, h: Tensor) -> Any:
        (_, (parts, others)) = wf.scan(lambda h, x: (h * x, (h * 2.0, h * 3.0)), h, xs)
        sums = wf.scan(lambda c, each: (c + each[0] * each[1], None), h, (parts, others))[0]
        return sums, parts, others

    graph, tally = lightened(f, numbers(5, 4), numbers(4))
    assert tally["kept_value"] == 0
    assert [node.primitive.name for node in graph.nodes].count("scan") == 2


def test_loops_inside_loops_are_lightened() -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda h, x: (product_of_xs(w, h, xs * x)[0], None), h, xs[:, 0, 0])[0]

    graph, _ = lightened(f, numbers(4, 5), numbers(2, 5), numbers(3, 2, 4))
    inner = next(n for n in graph.nodes if n.primitive.name == "scan").params["graph"]
    assert "dot" not in bodies(inner)[0]


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_agree_with_finite_differences(reverse: bool) -> None:
    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=s) for s in ((4, 3), (3, 3), (3,), (5, 2, 4))]

    def loss(w: Tensor, u: Tensor, b: Tensor, xs: Tensor) -> Tensor:
        def step(h: Tensor, x: Tensor) -> Any:
            h = wf.tanh(x @ w + h @ u + b)
            return h, wf.sin(h)

        start = wf.zeros((2, 3), dtype="float64")
        last, ys = wf.scan(step, start, xs, reverse=reverse)
        return (ys * ys).sum() + last.sum()

    tensors = [wf.asarray(x) for x in arrays]
    found = wf.jit(wf.grad(loss, argnums=(0, 1, 2, 3)))(*tensors)
    for number, (array, gradient) in enumerate(zip(arrays, trees.leaves(found), strict=True)):
        direction = rng.normal(size=array.shape)
        sides = []
        for sign in (1, -1):
            moved = list(tensors)
            moved[number] = wf.asarray(array + sign * 1e-6 * direction)
            sides.append(loss(*moved).item())
        slope = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose((gradient.numpy() * direction).sum(), slope, rtol=1e-6)


def test_a_loop_is_run_for_its_effect_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda c, row: (c, wf.debug.print("row") or row), x[0], x)[1]

    assert wf.jit(f)(wf.ones((3, 2))).tolist() == [[1.0, 1.0]] * 3
    assert capsys.readouterr().out == "row\nrow\nrow\n"


# --- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 5, 60])
def test_a_loop_is_given_the_matrix_whose_transpose_it_multiplies_by(rows: int) -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda h, x: (wf.tanh(x + h @ w.T),) * 2, h, xs)

    given = numbers(24, 24), numbers(rows, 24, seed=1), numbers(6, rows, 24, seed=2)
    graph, _ = lightened(f, *given, whole=True)
    tally: Counter[str] = Counter()
    turned = turn_loop_weights(graph, tally)
    wf.ir.verify(turned)
    assert tally == {"turn": 1}
    assert names(turned) == ["scan"]
    arrays = [x.numpy() for x in given]
    for found, expected in zip(run(turned, arrays), run(graph, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    for found, expected in zip(wf.jit(f)(*given), f(*given), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-5, atol=2e-5)


def test_a_matrix_that_a_loop_reads_otherwise_too_stays_as_it_is() -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Tensor:
        turned = wf.transpose(w, (1, 0))
        return wf.scan(lambda h, x: (wf.tanh(x + h @ turned) * turned, None), h, xs)[0]

    given = numbers(8, 8), numbers(8, 8), numbers(3, 8, 8)
    graph, _ = lightened(f, *given, whole=True)
    assert turn_loop_weights(graph) is graph
