"""Control flow that holds graphs: what the derived tests of its primitives cannot see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    BoundsError,
    DTypeError,
    GradientError,
    ShapeError,
    WeftError,
)


def double(value: object) -> wf.Tensor:
    return wf.asarray(np.asarray(value, np.float64))


def recurrence(w: wf.Tensor, h: wf.Tensor, xs: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    def step(h: Any, x: Any) -> Any:
        h = wf.tanh(w * h + x)
        return h, h * x

    return wf.scan(step, h, xs)


def unrolled(w: wf.Tensor, h: wf.Tensor, xs: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    ys = []
    for i in range(xs.shape[0]):
        h = wf.tanh(w * h + xs[i])
        ys.append(h * xs[i])
    return h, wf.stack(ys)


def close(found: object, expected: object, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=1e-12)


@pytest.fixture
def operands(rng: np.random.Generator) -> tuple[wf.Tensor, ...]:
    return double(rng.normal(size=3)), double(rng.normal(size=3)), double(rng.normal(size=(5, 3)))


# --- branches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pred", [True, False, wf.tensor(True), wf.tensor(False)])
def test_cond_takes_the_branch_that_the_predicate_names(pred: Any) -> None:
    result = wf.cond(pred, lambda x: {"y": x * 2.0}, lambda x: {"y": -x}, wf.tensor(3.0))
    assert result["y"].item() == (6.0 if bool(pred) else -3.0)


def test_both_branches_are_traced_once_and_only_the_chosen_one_is_computed() -> None:
    seen = []

    def fails(x: Any) -> Any:
        seen.append("fails")
        return wf.switch(wf.astype(x, "int64"), [wf.sin], x)  # has no branch for 7

    def holds(x: Any) -> Any:
        seen.append("holds")
        return x

    assert wf.cond(True, holds, fails, wf.tensor(7.0)).item() == 7.0
    assert sorted(seen) == ["fails", "holds"]


def test_switch_and_case_choose_among_several() -> None:
    branches = [lambda x: x, lambda x: x * 10.0, lambda x: x * 100.0]
    assert [wf.switch(i, branches, wf.tensor(2.0)).item() for i in range(3)] == [2.0, 20.0, 200.0]
    for x, expected in ((5.0, 10.0), (0.5, 50.0), (-1.0, 0.0)):
        t = wf.tensor(x)
        pairs = [(t > 1.0, lambda x: x * 2.0), (t > 0.0, lambda x: x * 100.0)]
        assert wf.case(pairs, t, default=lambda x: x * 0.0).item() == expected


def test_tensors_that_a_branch_closes_over_have_gradients() -> None:
    w = wf.tensor(3.0, requires_grad=True)
    v = wf.tensor([1.0, 2.0], requires_grad=True)
    wf.cond(wf.tensor(True), lambda x: x * w * v.sum(), lambda x: x * w, wf.tensor(2.0)).backward()
    assert w.grad.item() == 6.0
    assert v.grad.tolist() == [6.0, 6.0]


def test_a_closed_over_detached_tensor_stays_detached() -> None:
    v = wf.tensor([1.0, 2.0], requires_grad=True)

    def step(c: Any, _: Any) -> Any:
        return c + (v * v.detach()).sum(), None

    wf.scan(step, 0.0, None, length=1)[0].backward()
    assert v.grad.tolist() == [1.0, 2.0]


def test_a_batched_predicate_selects_also_in_the_derivative() -> None:
    """0/0 in the branch that a row did not take must not reach its gradient."""

    def f(x: Any) -> Any:
        return wf.cond(x > 0.0, wf.log, lambda x: x * 3.0, x)

    x = double([0.0, 2.0])
    assert wf.grad(lambda x: wf.vmap(f)(x).sum())(x).tolist() == [3.0, 0.5]
    assert wf.vmap(wf.grad(f))(x).tolist() == [3.0, 0.5]
    _, t = wf.jvp(wf.vmap(f), (x,), (double([1.0, 1.0]),))
    assert t.tolist() == [3.0, 0.5]


def test_an_index_for_each_row_takes_each_rows_branch() -> None:
    branches = [wf.sin, wf.cos, lambda x: x * x]
    index, x = wf.tensor([2, 0, 1]), double([0.3, 0.4, 0.5])
    found = wf.vmap(lambda i, x: wf.switch(i, branches, x))(index, x)
    close(found, [0.09, np.sin(0.4), np.cos(0.5)])


def test_nested_maps_over_a_predicate() -> None:
    x = double([[1.0, -2.0], [-3.0, 4.0]])
    f = wf.vmap(wf.vmap(lambda x: wf.cond(x > 0.0, lambda x: x * x, lambda x: -x, x)))
    assert f(x).tolist() == [[1.0, 2.0], [3.0, 16.0]]
    assert wf.grad(lambda x: f(x).sum())(x).tolist() == [[2.0, -1.0], [-1.0, 8.0]]


# --- scan --------------------------------------------------------------------------------------


def test_a_scan_is_a_loop(operands: Any) -> None:
    for found, expected in zip(recurrence(*operands), unrolled(*operands), strict=True):
        close(found, expected)


def test_a_reversed_scan_leaves_each_result_at_its_place() -> None:
    last, ys = wf.scan(lambda c, x: (c + x, c), 0.0, wf.tensor([1.0, 2.0, 3.0]), reverse=True)
    assert last.item() == 6.0
    assert ys.tolist() == [5.0, 3.0, 0.0]


def test_a_scan_over_trees_and_over_nothing() -> None:
    xs = {"a": wf.tensor([1.0, 2.0]), "b": (wf.tensor([10, 20]),)}

    def step(carry: Any, x: Any) -> Any:
        carry = {"n": carry["n"] + x["b"][0], "s": carry["s"] + x["a"]}
        return carry, {"both": (carry["n"], carry["s"])}

    last, ys = wf.scan(step, {"n": 0, "s": 0.0}, xs)
    assert (last["n"].item(), last["s"].item()) == (30, 3.0)
    assert ys["both"][0].tolist() == [10, 30]
    assert wf.scan(lambda c, _: (c * 2, None), wf.tensor(1), None, length=10)[0].item() == 1024


def test_a_scan_of_no_steps_gives_the_first_carry() -> None:
    last, ys = wf.scan(lambda c, x: (c + x, wf.stack([x, x])), wf.tensor(4.0), wf.zeros((0,)))
    assert last.item() == 4.0
    assert ys.shape == (0, 2)


def test_python_numbers_in_a_carry_take_the_dtype_of_the_step() -> None:
    last, _ = wf.scan(lambda c, x: (c + x, None), 0, double([0.5, 0.25]))
    assert last.dtype == wf.float64
    assert last.item() == 0.75


def test_map_goes_through_the_first_axis() -> None:
    assert wf.map(lambda x: x @ x, wf.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [5.0, 25.0]


def test_derivatives_of_a_scan_are_those_of_the_loop(operands: Any) -> None:
    def loss(f: Any) -> Any:
        return lambda *xs: sum((y * y).sum() for y in f(*xs))

    found = wf.grad(loss(recurrence), argnums=(0, 1, 2))(*operands)
    expected = wf.grad(loss(unrolled), argnums=(0, 1, 2))(*operands)
    for a, b in zip(found, expected, strict=True):
        close(a, b, 1e-10)
    wf.testing.check_grads(recurrence, operands, order=2)


def test_nested_scans_with_a_branch_inside_have_second_derivatives(operands: Any) -> None:
    def nested(w: Any, h: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            inner, ys = wf.scan(lambda s, u: (s * 0.5 + wf.sin(u * w), s * u), carry, xs * 2.0)
            chosen = wf.cond(wf.sum(x) > 0.0, lambda a: wf.sin(a * w), lambda a: a * a * 0.3, inner)
            return chosen, ys

        return wf.scan(step, h, xs)

    wf.testing.check_grads(nested, operands, order=2)


def test_gradients_of_scans_are_batched(operands: Any) -> None:
    w, h, xs = operands
    ws = wf.stack([w, w * 0.5, -w])
    gradient = wf.grad(lambda w: (recurrence(w, h, xs)[1] ** 2).sum())
    found = wf.vmap(gradient)(ws)
    for i in range(3):
        close(found[i], gradient(ws[i]), 1e-10)


def test_scans_map_over_each_kind_of_operand(operands: Any) -> None:
    pairs = [wf.stack([x, x * 0.5]) for x in operands]
    for i in range(3):
        axes = tuple(0 if i == j else None for j in range(3))
        given = [pairs[j] if i == j else operands[j] for j in range(3)]
        found = wf.vmap(recurrence, in_axes=axes)(*given)
        for row in range(2):
            one = [pairs[j][row] if i == j else operands[j] for j in range(3)]
            for a, b in zip(found, recurrence(*one), strict=True):
                close(a[row], b)


def test_integers_in_a_carry_have_no_derivative() -> None:
    def f(x: Any) -> Any:
        return wf.scan(lambda c, _: ((c[0] + 1, c[1] * x), c[0]), (0, 1.0), None, length=3)[0][1]

    assert wf.grad(f)(double(2.0)).item() == 12.0
    assert wf.jvp(f, (double(2.0),), (double(1.0),))[1].item() == 12.0


def test_a_module_weight_learns_through_a_scan() -> None:
    w = wf.tensor([0.5, -0.3], requires_grad=True)
    last, _ = wf.scan(lambda h, x: (wf.tanh(w * h + x), None), wf.zeros(2), wf.ones((3, 2)))
    last.sum().backward()
    expected = wf.grad(
        lambda w: wf.tanh(w * wf.tanh(w * wf.tanh(w * 0.0 + 1.0) + 1.0) + 1.0).sum()
    )(w.detach())
    close(w.grad, expected, 1e-6)


# --- while and fori ----------------------------------------------------------------------------


def newton(a: wf.Tensor, **options: int) -> wf.Tensor:
    """The square root by Newton's iteration."""

    def goes_on(state: Any) -> Any:
        x, before = state
        return wf.abs(x - before) > 1e-9

    def step(state: Any) -> Any:
        x, _ = state
        return (x + a / x) / 2.0, x

    return wf.while_loop(goes_on, step, (a, a + 1.0), **options)[0]


def test_a_while_loop_runs_until_its_condition_fails() -> None:
    assert newton(double(2.0)).item() == pytest.approx(2.0**0.5)
    assert wf.while_loop(lambda x: x < 0.0, lambda x: x * 2.0, wf.tensor(3.0)).item() == 3.0


def test_max_steps_ends_a_loop() -> None:
    assert wf.while_loop(lambda x: x > 0.0, lambda x: x + 1.0, 1.0, max_steps=5).item() == 6.0


def test_a_while_loop_has_forward_derivatives() -> None:
    _, tangent = wf.jvp(newton, (double(2.0),), (double(1.0),))
    assert tangent.item() == pytest.approx(0.5 / 2.0**0.5)


def test_a_bounded_while_loop_has_reverse_derivatives_to_second_order() -> None:
    gradient = wf.grad(lambda a: newton(a, max_steps=20))
    assert gradient(double(2.0)).item() == pytest.approx(0.5 / 2.0**0.5)
    assert wf.grad(gradient)(double(2.0)).item() == pytest.approx(-0.25 / 2.0**1.5)


def test_elements_of_a_batch_leave_a_while_loop_one_by_one() -> None:
    a = double([2.0, 9.0, 1e6, 0.25])
    close(wf.vmap(newton)(a), np.sqrt(np.asarray(a)))
    slope = 0.5 / np.sqrt(np.asarray(a))
    close(wf.vmap(wf.grad(lambda a: newton(a, max_steps=30)))(a), slope, 1e-9)
    total = wf.grad(lambda a: wf.vmap(lambda a: newton(a, max_steps=30))(a).sum())
    close(total(a), slope, 1e-9)


def test_an_unbounded_while_loop_refuses_reverse_mode_with_the_way_out() -> None:
    with pytest.raises(GradientError) as caught:
        wf.grad(newton)(double(2.0))
    assert caught.value.op == "while_loop"
    assert "max_steps" in caught.value.expected
    assert "wf.jvp" in caught.value.fix


def test_fori_loop_counts() -> None:
    total = lambda i, x: x + i  # noqa: E731
    assert wf.fori_loop(2, 5, total, wf.tensor(0)).item() == 9
    assert wf.fori_loop(5, 2, total, wf.tensor(7)).item() == 7
    assert wf.fori_loop(wf.tensor(2), wf.tensor(5), total, wf.tensor(0)).item() == 9
    assert wf.grad(lambda x: wf.fori_loop(0, 3, lambda i, y: y * x, 1.0))(double(2.0)).item() == 12


# --- graphs ------------------------------------------------------------------------------------


def test_a_loop_is_one_node_of_a_graph(operands: Any) -> None:
    graph = wf.ir.trace(recurrence, *[x.type for x in operands])
    assert [node.primitive.name for node in graph.nodes] == ["scan"]
    assert wf.ir.parse(str(graph)) == graph


def test_a_loop_inside_a_trace_closes_over_traced_tensors(operands: Any) -> None:
    w, h, xs = operands

    def f(w: Any, h: Any) -> Any:
        v = w * 2.0
        return wf.scan(lambda c, x: (c * v + x, None), h, xs)[0]

    graph = wf.ir.trace(f, w.type, h.type)
    close(wf.ir.interpret(graph, w, h)[0], f(w, h))


def test_types_of_loops_over_sizes_that_are_symbols() -> None:
    kind = wf.spec("float32", ("time", 3))
    found = wf.ir.infer(lambda xs: wf.scan(lambda c, x: (c + x, c), wf.zeros(3), xs), kind)
    assert str(found) == "(f32[3], f32[time, 3])"


# --- the global generator ----------------------------------------------------------------------


def test_draws_continue_through_loops_and_branches() -> None:
    wf.random.seed(3)
    expected = [wf.random.uniform().item() for _ in range(8)]
    wf.random.seed(3)
    _, ys = wf.scan(lambda c, _: (c, wf.random.uniform()), (), None, length=3)
    chosen = wf.cond(wf.tensor(True), lambda: wf.random.uniform(), lambda: 0.0)
    skipped = wf.cond(wf.tensor(False), lambda: wf.random.uniform(), lambda: 0.0)
    looped = wf.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, wf.random.uniform()), (wf.tensor(0), 0.0)
    )
    found = [*ys.tolist(), chosen.item(), looped[1].item(), wf.random.uniform().item()]
    assert found == [*expected[:4], expected[5], expected[6]]
    assert skipped.item() == 0.0


# --- against JAX -------------------------------------------------------------------------------


def test_scan_and_cond_agree_with_jax(operands: Any) -> None:
    jax = pytest.importorskip("jax")
    arrays = [np.asarray(x) for x in operands]

    def program(scan: Any, cond: Any, sin: Any, w: Any, h: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return cond(c[0] > 0, lambda c: sin(c * w) + x, lambda c: c * c * 0.3, c), c * x

        return scan(step, h, xs)

    with jax.enable_x64(True):
        parts = jax.lax.scan, jax.lax.cond, jax.numpy.sin
        expected, pull = jax.vjp(lambda *xs: program(*parts, *xs), *arrays)
        seeds = jax.tree.map(lambda y: jax.numpy.ones_like(y), expected)
        slopes = pull(seeds)
    found, back = wf.vjp(lambda *xs: program(wf.scan, wf.cond, wf.sin, *xs), *operands)
    for a, b in zip(found, expected, strict=True):
        close(a, b)
    for a, b in zip(back((wf.ones_like(found[0]), wf.ones_like(found[1]))), slopes, strict=True):
        close(a, b, 1e-10)


# --- mistakes ----------------------------------------------------------------------------------

X = wf.tensor([1.0, 2.0])
ONE = wf.tensor(1.0)
MISTAKES = {
    "predicate is a float": (
        lambda: wf.cond(ONE, wf.sin, wf.cos, ONE), ArgumentTypeError, "cond", "wf.any",
    ),
    "predicate has axes": (
        lambda: wf.cond(X > 0.0, wf.sin, wf.cos, X), ArgumentTypeError, "cond", "wf.where",
    ),
    "branches differ in structure": (
        lambda: wf.cond(True, lambda x: x, lambda x: (x, x), ONE),
        ArgumentError, "cond", "false_fn",
    ),
    "branches differ in dtype": (
        lambda: wf.cond(True, lambda x: x, lambda x: wf.astype(x, "int32"), ONE),
        DTypeError, "cond", 'astype("float32")',
    ),
    "branches differ in shape": (
        lambda: wf.cond(True, lambda x: x, lambda x: x.sum(), X), ShapeError, "cond", "false_fn",
    ),
    "a branch returns text": (
        lambda: wf.cond(True, lambda x: x, lambda x: "a", ONE),
        ArgumentTypeError, "cond", "convert",
    ),
    "no branches": (lambda: wf.switch(0, [], ONE), ArgumentError, "switch", "[f, g]"),
    "index out of range": (
        lambda: wf.switch(2, [wf.sin, wf.cos], ONE), BoundsError, "switch", "wf.clip(index, 0, 1)",
    ),
    "index is a float": (
        lambda: wf.switch(ONE, [wf.sin], ONE), ArgumentTypeError, "switch", "int32",
    ),
    "carry changes shape": (
        lambda: wf.scan(lambda c, x: (X, x), 1.0, X), ShapeError, "scan", "[2]",
    ),
    "carry changes dtype": (
        lambda: wf.scan(lambda c, x: (c + x, x), wf.tensor([1]), X[:, None]),
        DTypeError, "scan", 'init.astype("float32")',
    ),
    "carry changes structure": (
        lambda: wf.scan(lambda c, x: ((c[0],), x), (ONE, ONE), X), ArgumentError, "scan", "(*, *)",
    ),
    "no pair": (lambda: wf.scan(lambda c, x: c, ONE, X), ArgumentTypeError, "scan", "carry, y"),
    "lengths differ": (
        lambda: wf.scan(lambda c, x: (c, None), ONE, {"a": X, "b": X[:1]}), ShapeError, "scan",
        "xs.b[:2]",
    ),
    "length and xs differ": (
        lambda: wf.scan(lambda c, x: (c, None), ONE, X, length=3), ShapeError, "scan", "[:3]",
    ),
    "nothing to scan over": (
        lambda: wf.scan(lambda c, x: (c, None), ONE), ArgumentError, "scan", "length=10",
    ),
    "no axis to scan over": (
        lambda: wf.scan(lambda c, x: (c, None), ONE, ONE), ShapeError, "scan", "close over",
    ),
    "length is a float": (
        lambda: wf.scan(lambda c, x: (c, None), ONE, None, length=2.5), ArgumentTypeError, "scan",
        "length=10",
    ),
    "condition is not a truth value": (
        lambda: wf.while_loop(lambda x: x, lambda x: x, ONE), ArgumentTypeError, "while_loop",
        "wf.any",
    ),
    "condition draws": (
        lambda: wf.while_loop(lambda x: wf.random.uniform() < x, lambda x: x, ONE),
        ArgumentError, "while_loop", "body_fn",
    ),
    "max_steps is negative": (
        lambda: wf.while_loop(lambda x: x > 0.0, lambda x: x, ONE, max_steps=-1),
        ArgumentError, "while_loop", "max_steps=100",
    ),
    "body changes dtype": (
        lambda: wf.while_loop(lambda x: x > 0.0, lambda x: x > 1.0, ONE), DTypeError, "while_loop",
        'astype("bool")',
    ),
    "bound is a float": (
        lambda: wf.fori_loop(0, ONE, lambda i, x: x, ONE), ArgumentTypeError, "fori_loop", "int64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_with_the_way_out(name: Any) -> None:
    call, kind, op, fix = MISTAKES[name]
    with pytest.raises(WeftError) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.op == op
    assert fix in caught.value.fix
    assert caught.value.got
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
