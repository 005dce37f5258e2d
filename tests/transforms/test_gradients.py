"""Derivatives of functions: of trees, nested, in both modes, and what they refuse."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    GradientError,
    LeakError,
    ShapeError,
    TraceError,
    Unsupported,
)
from weft.ir.dispatch import traces
from weft.ir.reverse import GENERATIONS
from weft.ir.tape import Node


def double(value: Any) -> wf.Tensor:
    return wf.asarray(np.asarray(value, dtype=np.float64))


def known(x1: Any, x2: Any) -> Any:
    """ln(x1) + x1·x2 − sin(x2): 11.652 at (2, 5), with derivatives 5.5 and 1.716."""
    return wf.log(x1) + x1 * x2 - wf.sin(x2)


# --- grad and value_and_grad ---


def test_the_gradient_of_a_function_of_two_numbers() -> None:
    value, (d1, d2) = wf.value_and_grad(known, argnums=(0, 1))(2.0, 5.0)
    assert float(value) == pytest.approx(11.652, abs=1e-3)
    assert float(d1) == pytest.approx(5.5)
    assert float(d2) == pytest.approx(1.716, abs=1e-3)


def test_argnums_choose_arguments_and_the_form_of_the_result() -> None:
    f = lambda a, b, c: (a * b * c).sum()  # noqa: E731
    args = (wf.tensor(2.0), wf.tensor(3.0), wf.tensor(5.0))
    assert wf.grad(f)(*args).item() == 15.0
    assert wf.grad(f, argnums=1)(*args).item() == 10.0
    assert wf.grad(f, argnums=-1)(*args).item() == 6.0
    assert [g.item() for g in wf.grad(f, argnums=(2, 0))(*args)] == [6.0, 15.0]
    assert [g.item() for g in wf.grad(f, argnums=(1,))(*args)] == [10.0]


def test_gradients_have_the_form_of_the_argument() -> None:
    params = {"w": wf.ones((2, 3)), "layers": [(wf.tensor(2.0), wf.zeros(0))], "name": None}

    def loss(p: dict, x: wf.Tensor) -> wf.Tensor:
        return ((p["w"] @ x) * p["layers"][0][0]).sum()

    found = wf.grad(loss)(params, wf.tensor([1.0, 2.0, 3.0]))
    assert found["w"].tolist() == [[2.0, 4.0, 6.0]] * 2
    assert found["layers"][0][0].item() == 12.0
    assert found["layers"][0][1].shape == (0,)
    assert found["name"] is None


def test_a_dataclass_as_an_argument() -> None:
    @dataclass
    class Line:
        slope: wf.Tensor
        offset: wf.Tensor

    found = wf.grad(lambda line, x: line.slope * x + line.offset)(
        Line(wf.tensor(2.0), wf.tensor(1.0)), 3.0
    )
    assert isinstance(found, Line)
    assert found.slope.item() == 3.0
    assert found.offset.item() == 1.0


def test_integers_in_a_tree_have_no_gradient() -> None:
    found = wf.grad(lambda p: p["x"] * p["count"])({"x": wf.tensor(2.0), "count": wf.tensor(3)})
    assert found["x"].item() == 3.0
    assert found["count"] is None


def test_arguments_that_are_not_used_have_a_zero_gradient() -> None:
    found = wf.grad(lambda x, y: x * x, argnums=1)(wf.tensor(2.0), wf.ones((2, 2)))
    assert found.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_constant_function_has_a_zero_gradient() -> None:
    assert wf.grad(lambda x: wf.tensor(1.0))(wf.ones(2)).tolist() == [0.0, 0.0]


def test_keyword_arguments_are_passed_through() -> None:
    assert wf.grad(lambda x, *, k: x * k)(wf.tensor(2.0), k=wf.tensor(7.0)).item() == 7.0


def test_numpy_arrays_and_python_floats_are_arguments() -> None:
    assert wf.grad(lambda x: x * x)(3.0).item() == 6.0
    found = wf.grad(lambda x: (x * x).sum())(np.array([1.0, 2.0]))
    assert found.dtype == wf.float64
    assert found.tolist() == [2.0, 4.0]


def test_aux_is_returned_beside_the_gradient() -> None:
    def f(x: wf.Tensor) -> tuple[wf.Tensor, dict]:
        y = x * x
        return y.sum(), {"y": y, "note": "text"}

    gradient, aux = wf.grad(f, has_aux=True)(wf.tensor([1.0, 2.0]))
    assert gradient.tolist() == [2.0, 4.0]
    assert aux["note"] == "text"
    assert aux["y"].tolist() == [1.0, 4.0]
    (value, aux), gradient = wf.value_and_grad(f, has_aux=True)(wf.tensor([1.0, 2.0]))
    assert value.item() == 5.0
    assert aux["note"] == "text"
    assert gradient.tolist() == [2.0, 4.0]


def test_grad_leaves_no_trace_in_its_arguments() -> None:
    x = wf.tensor(2.0)
    value, gradient = wf.value_and_grad(lambda y: y * y)(x)
    assert not x.requires_grad
    assert not value.requires_grad
    assert not gradient.requires_grad
    assert x.grad is None


def test_grad_inside_a_tape_stays_on_the_tape() -> None:
    x = wf.tensor(2.0, requires_grad=True)
    value, gradient = wf.value_and_grad(lambda y: y**3)(x)
    (gradient + value).backward()  # 3 x² + x³
    assert x.grad.item() == 12.0 + 12.0


def test_closed_over_leaves_get_their_gradient_through_grad() -> None:
    w = wf.tensor(5.0, requires_grad=True)
    gradient = wf.grad(lambda x: w * x * x)(wf.tensor(3.0))  # 2 w x
    gradient.backward()
    assert w.grad.item() == 6.0


def test_the_graph_of_a_gradient_can_be_read() -> None:
    graph = wf.grad(lambda x: wf.sin(x) * x).graph(wf.spec("float32", ()))
    text = str(graph)
    assert "cos" in text
    (found,) = wf.ir.interpret(wf.ir.parse(text), wf.tensor(0.5))
    assert found.item() == pytest.approx(np.cos(0.5) * 0.5 + np.sin(0.5), rel=1e-5)


def test_a_gradient_keeps_the_name_of_its_function() -> None:
    assert wf.grad(known).__name__ == "known"
    assert "5.5" in wf.grad(known).__doc__


# --- nesting ---


def test_nested_gradients_of_sin() -> None:
    x = double(0.7)
    f = wf.sin
    for order in range(1, 6):
        f = wf.grad(f)
        assert f(x).item() == pytest.approx(np.sin(0.7 + order * np.pi / 2), rel=1e-12)


def test_what_a_derivative_inside_was_taken_by_is_no_longer_recorded() -> None:
    q, k = double([0.3, -0.7]), double([0.5, 1.1])
    scale = wf.tensor(2.0, requires_grad=True)

    def inner(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
        return wf.tanh(q * k).sum()

    mixed = wf.grad(lambda k: (wf.grad(inner)(q, k) * k).sum())
    assert not mixed(k).requires_grad
    wf.testing.check_grads(lambda k: mixed(k), (k,), order=1)
    scaled = wf.grad(lambda k: (wf.grad(inner)(q, k) * scale).sum())(k)
    assert scaled.requires_grad  # by what is outside
    scaled.sum().backward()
    expected = wf.grad(lambda k: wf.grad(inner)(q, k).sum())(k).sum()
    np.testing.assert_allclose(scale.grad.item(), expected.item(), rtol=1e-6)


def test_what_a_derivative_inside_of_another_transform_was_taken_by_is_no_longer_recorded() -> None:
    x, w = double([0.3, -0.7]), double([0.5, 1.1])
    scale = wf.tensor(2.0, requires_grad=True)

    def penalty(w: wf.Tensor) -> wf.Tensor:
        return (wf.grad(lambda x: wf.tanh(x * w).sum())(x) ** 2).sum()

    def scaled(w: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        return penalty(w), (wf.grad(lambda x: wf.tanh(x * w).sum())(x) * scale).sum()

    value, push = wf.linearize(wf.grad(penalty), w)
    found = [
        wf.vmap(penalty)(w[None]),
        *wf.jvp(penalty, (w,), (w,)),
        *wf.jvp(wf.grad(penalty), (w,), (w,)),
        wf.hessian(penalty)(w),
        value,
        push(w),
    ]
    assert not any(each.requires_grad for each in found)
    free, bound = wf.vmap(scaled)(w[None])
    assert (free.requires_grad, bound.requires_grad) == (False, True)
    bound.sum().backward()
    np.testing.assert_allclose(scale.grad.item() * 2, bound.item(), rtol=1e-6)
    # An outer derivative goes through both: by a batch of inner ones, and by their tangents.
    wf.testing.check_grads(lambda w: wf.vmap(penalty)(wf.stack([w, 2 * w])), (w,), order=1)
    wf.testing.check_grads(lambda w: wf.jvp(penalty, (w,), (w * 2,))[1], (w,), order=1)


def test_nested_tangents_of_sin() -> None:
    def push(f: Any) -> Any:
        return lambda x: wf.jvp(f, (x,), (wf.ones_like(x),))[1]

    f = wf.sin
    for order in range(1, 6):
        f = push(f)
        assert f(double(0.7)).item() == pytest.approx(np.sin(0.7 + order * np.pi / 2), rel=1e-12)


def test_perturbations_are_not_confused() -> None:
    """d/dx (x · d/dy (x + y)) = 1, by all four ways of nesting the modes."""

    def reverse(f: Any) -> Any:
        return wf.grad(f)

    def forward(f: Any) -> Any:
        return lambda x: wf.jvp(f, (x,), (wf.ones_like(x),))[1]

    one, two = wf.tensor(1.0), wf.tensor(2.0)
    for outer in (reverse, forward):
        for inner in (reverse, forward):
            assert outer(lambda x, d=inner: x * d(lambda y: x + y)(one))(one).item() == 1.0
            found = outer(lambda x, d=inner: x * d(lambda y: x * y * y)(x))(two)  # 2 x³
            assert found.item() == 24.0
            same = outer(lambda x, d=inner: d(lambda y: x)(x) + x)(two)
            assert same.item() == 1.0


def test_an_inner_gradient_through_the_outer_argument_and_a_batch() -> None:
    xs = double([1.0, 2.0, 3.0])
    f = wf.vmap(wf.grad(lambda x: x * wf.vmap(wf.grad(lambda y: x * y**3))(xs).sum()))
    np.testing.assert_allclose(f(xs).numpy(), 2 * xs.numpy() * 3 * (1 + 4 + 9))


def horner(w: wf.Tensor) -> wf.Tensor:
    """w² + 2 w + 3, by a scan that closes over w."""
    coefficients = double([1.0, 2.0, 3.0])
    return wf.scan(lambda c, a: (c * w + a, None), double(0.0), coefficients)[0]


CLOSURES = {
    "vmap": lambda w: wf.vmap(lambda a: a * w)(wf.stack([w, 2.0 / w, 3.0 / w**2 * w])).sum()
    - 3.0 + 2.0 * w + 1.0,
    "scan": horner,
    "checkpoint": lambda w: wf.checkpoint(lambda a: a * w + 3.0)(w + 2.0),
    "checkpoint in scan": lambda w: wf.scan(
        lambda c, a: (wf.checkpoint(lambda b: b * w + a)(c), None), double(0.0), double([1, 2, 3])
    )[0],
    "cond": lambda w: wf.cond(w > 0.0, lambda: w * w + 2.0 * w + 3.0, lambda: w),
    "while": lambda w: wf.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] * w + (s[0] + 2)),
        (wf.asarray(0), wf.ones_like(w)), max_steps=3,
    )[1],
    "grad": lambda w: wf.grad(lambda a: a * (w * w + 2.0 * w + 3.0))(w),
    "jvp": lambda w: wf.jvp(lambda a: a * (w * w + 2.0 * w + 3.0), (w,), (wf.ones_like(w),))[1],
    "linearize": lambda w: wf.linearize(lambda a: a * w * w, w)[1](wf.ones_like(w)) + 2.0 * w + 3.0,
}  # fmt: skip
"""w² + 2 w + 3 at 2, with w closed over by a function that something is done to."""


@pytest.mark.parametrize("f", CLOSURES.values(), ids=CLOSURES)
def test_closed_over_tensors_take_part_in_every_transform(f: Any) -> None:
    w, one = double(2.0), double(1.0)
    assert f(w).item() == 11.0
    assert wf.grad(f)(w).item() == 6.0
    assert wf.jvp(f, (w,), (one,))[1].item() == 6.0
    assert wf.linearize(f, w)[1](one).item() == 6.0
    assert wf.hessian(f)(w).item() == 2.0
    assert wf.vmap(f)(double([2.0, 2.0])).tolist() == [11.0, 11.0]
    assert wf.vmap(wf.grad(f))(double([2.0, 4.0])).tolist() == [6.0, 10.0]
    assert wf.ir.interpret(wf.grad(f).graph(w), w)[0].item() == 6.0
    leaf = double(2.0).requires_grad_()
    f(leaf).backward()
    assert leaf.grad.item() == 6.0


def test_an_exception_inside_leaves_no_transform_running() -> None:
    x = wf.ones(3)
    for run in (
        lambda f: wf.grad(f)(x),
        lambda f: wf.vmap(f)(x),
        lambda f: wf.jvp(f, (x,), (x,)),
        lambda f: wf.linearize(f, x),
        lambda f: wf.jacobian(f, mode="forward")(x),
        lambda f: wf.checkpoint(f)(x),
        lambda f: wf.ir.trace(f, x),
        lambda f: wf.scan(lambda c, y: (f(c), y), x, x),
    ):
        with pytest.raises(ZeroDivisionError):
            run(lambda y: 1 / 0)
    assert traces.stack == []
    assert wf.is_grad_enabled()


@pytest.mark.slow
def test_derivatives_leave_no_cycles_behind() -> None:
    """Tapes are freed by counting references: memory does not wait for the collector."""
    x = wf.ones(3)
    runs = (
        lambda: wf.grad(lambda y: (wf.sin(y) * y).sum())(x),
        lambda: wf.jvp(wf.sin, (x,), (x,)),
        lambda: wf.vmap(wf.grad(lambda y: y * y))(x),
        lambda: wf.grad(wf.checkpoint(lambda y: (y * y).sum()))(x),
        lambda: (wf.ones(3).requires_grad_() * x).sum().backward(),
    )
    for run in runs:
        run()
        run()  # the second call of a function is traced, and remembered from then on
        wait_for_quiet()
        gc.disable()
        try:
            run()
            assert gc.collect() == 0
        finally:
            gc.enable()


def test_threads_differentiate_side_by_side() -> None:
    found: list[float] = []

    def work() -> None:
        gradient = wf.grad(lambda y: (wf.sin(y) * y).sum())
        found.extend(gradient(wf.ones(50))[0].item() for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200
    assert len(set(found)) == 1


def test_python_control_flow_on_values() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        total = x
        while float(total) < 10.0:
            total = total * x
        return total if total > 12.0 else -total

    assert wf.grad(f)(wf.tensor(2.0)).item() == 32.0  # x⁴
    assert wf.jvp(f, (wf.tensor(2.0),), (wf.tensor(1.0),))[1].item() == 32.0
    assert wf.grad(wf.grad(f))(wf.tensor(2.0)).item() == 48.0
    assert wf.jvp(wf.grad(f), (wf.tensor(2.0),), (wf.tensor(1.0),))[1].item() == 48.0
    with pytest.raises(TraceError):
        wf.ir.trace(f, wf.tensor(2.0))


def test_values_can_be_looked_at_under_grad_and_jvp() -> None:
    seen: list[Any] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        seen.append((x.tolist(), int(x[0]), bool(x[1] > 0), f"{float(x[0]):.1f}"))
        return x.sum()

    wf.grad(f)(wf.tensor([1.0, 2.0]))
    wf.jvp(f, (wf.tensor([1.0, 2.0]),), (wf.ones(2),))
    assert seen == [([1.0, 2.0], 1, True, "1.0")] * 2


# --- vjp ---


def test_vjp_of_a_tree() -> None:
    f = lambda a, b: {"sum": a + b, "product": a * b}  # noqa: E731
    out, pullback = wf.vjp(f, wf.tensor(2.0), wf.tensor(3.0))
    assert (out["sum"].item(), out["product"].item()) == (5.0, 6.0)
    backs = pullback({"sum": wf.tensor(1.0), "product": wf.tensor(10.0)})
    assert [b.item() for b in backs] == [31.0, 21.0]
    again = pullback({"sum": wf.tensor(0.0), "product": wf.tensor(1.0)})
    assert [b.item() for b in again] == [3.0, 2.0]


def test_vjp_with_aux() -> None:
    out, pullback, aux = wf.vjp(lambda x: (x * x, "note"), wf.tensor(3.0), has_aux=True)
    assert (out.item(), aux) == (9.0, "note")
    assert pullback(wf.tensor(1.0))[0].item() == 6.0


def test_a_pullback_is_differentiable() -> None:
    def f(ct: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        return wf.vjp(lambda y: y**3, x)[1](ct)[0]

    assert [g.item() for g in wf.grad(f, (0, 1))(wf.tensor(2.0), wf.tensor(3.0))] == [27.0, 36.0]


def test_a_cotangent_must_fit_the_result() -> None:
    _, pullback = wf.vjp(lambda x: {"y": x * x}, wf.ones(2))
    with pytest.raises(ArgumentError, match="another structure"):
        pullback(wf.ones(2))
    with pytest.raises(ShapeError) as caught:
        pullback({"y": wf.ones(3)})
    assert caught.value.expected == "f32[2]"
    with pytest.raises(ShapeError):
        pullback({"y": wf.ones(2, dtype="float64")})


# --- jvp and linearize ---


def test_jvp_of_a_function_of_two_numbers() -> None:
    primals = (wf.tensor(2.0), wf.tensor(5.0))
    value, d1 = wf.jvp(known, primals, (wf.tensor(1.0), wf.tensor(0.0)))
    assert value.item() == pytest.approx(11.652, abs=1e-3)
    assert d1.item() == pytest.approx(5.5)
    _, d2 = wf.jvp(known, primals, (wf.tensor(0.0), wf.tensor(1.0)))
    assert d2.item() == pytest.approx(1.716, abs=1e-3)


def test_jvp_of_a_tree() -> None:
    out, tangent = wf.jvp(
        lambda p: [p["a"] * p["b"], p["a"]],
        ({"a": wf.tensor(2.0), "b": wf.tensor(3.0)},),
        ({"a": wf.tensor(1.0), "b": wf.tensor(10.0)},),
    )
    assert [o.item() for o in out] == [6.0, 2.0]
    assert [t.item() for t in tangent] == [23.0, 1.0]


def test_results_that_do_not_vary_have_zero_tangents() -> None:
    out, tangent = wf.jvp(
        lambda x: (wf.argmax(x), wf.ones(2), wf.sign(x)), (wf.tensor([1.0, 3.0]),), (wf.ones(2),)
    )
    assert out[0].item() == 1
    assert [t.tolist() for t in tangent] == [0, [0.0, 0.0], [0.0, 0.0]]


def test_jvp_takes_what_is_no_number_as_it_is() -> None:
    y, dy = wf.jvp(lambda x, mode: x * len(mode), (wf.tensor(2.0), "two"), (wf.tensor(1.0), "two"))
    assert (y.item(), dy.item()) == (6.0, 3.0)


def test_jvp_with_aux() -> None:
    out, tangent, aux = wf.jvp(
        lambda x: (x * x, "note"), (wf.tensor(3.0),), (wf.tensor(1.0),), has_aux=True
    )
    assert (out.item(), tangent.item(), aux) == (9.0, 6.0, "note")


def test_tangents_must_fit_their_primals() -> None:
    with pytest.raises(ArgumentError, match="different structures"):
        wf.jvp(lambda x, y: x, (wf.ones(2), wf.ones(2)), (wf.ones(2),))
    with pytest.raises(ShapeError) as caught:
        wf.jvp(wf.sin, (wf.ones(2),), (wf.ones(3),))
    assert (caught.value.op, caught.value.expected) == ("jvp", "f32[2]")


def test_linearize_runs_the_function_once() -> None:
    calls: list[int] = []

    def f(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        calls.append(1)
        return wf.sin(x) * y if x[0] > 0 else x

    x, y = wf.tensor([1.0, 2.0]), wf.tensor([3.0, 4.0])
    out, push = wf.linearize(f, x, y)
    for t, u in [(1.0, 0.0), (0.0, 1.0), (2.0, -3.0)]:
        tangents = (wf.full(2, t), wf.full(2, u))
        expected = wf.jvp(lambda a, b: wf.sin(a) * b, (x, y), tangents)[1]
        np.testing.assert_allclose(push(*tangents).numpy(), expected.numpy(), rtol=1e-6)
    assert len(calls) == 1
    np.testing.assert_allclose(out.numpy(), np.sin([1.0, 2.0]) * [3.0, 4.0], rtol=1e-6)


def test_linearize_of_a_constant_is_zero() -> None:
    _, push = wf.linearize(lambda x: wf.ones(3), wf.ones(2))
    assert push(wf.ones(2)).tolist() == [0.0, 0.0, 0.0]


def test_a_linearized_function_is_differentiable_and_batchable() -> None:
    _, push = wf.linearize(lambda x: x**3, wf.tensor(2.0))
    assert wf.grad(push)(wf.tensor(1.0)).item() == 12.0
    assert wf.vmap(push)(wf.tensor([1.0, 2.0])).tolist() == [12.0, 24.0]
    assert (
        wf.grad(lambda x: wf.linearize(lambda y: y**3, x)[1](wf.tensor(1.0)))(wf.tensor(2.0)).item()
        == 12.0
    )


def test_linearize_of_control_flow() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.scan(lambda c, _: (wf.sin(c), None), x, length=3)[0]
        return wf.cond(y > 0.0, lambda z: z * z, lambda z: z, y)

    x, t = double(0.6), double(0.3)
    assert wf.linearize(f, x)[1](t).item() == pytest.approx(wf.jvp(f, (x,), (t,))[1].item())


# --- jacobian, hessian, hvp ---


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_the_jacobian_of_a_matrix_function(mode: Any) -> None:
    a = double([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    x = double([1.0, -1.0, 2.0])
    np.testing.assert_array_equal(wf.jacobian(lambda y: a @ y, mode=mode)(x).numpy(), a.numpy())
    found = wf.jacobian(lambda m: m @ x, mode=mode)(a).numpy()
    assert found.shape == (2, 2, 3)
    np.testing.assert_array_equal(found, np.einsum("ij,k->ijk", np.eye(2), x.numpy()))


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_the_jacobian_of_trees(mode: Any) -> None:
    def f(p: dict, scale: wf.Tensor) -> tuple:
        return p["a"] * scale, {"s": (p["a"] * p["b"]).sum()}

    p = {"a": double([1.0, 2.0]), "b": double([3.0, 4.0])}
    first, second = wf.jacobian(f, mode=mode)(p, double(2.0))
    assert first["a"].tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert first["b"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert second["s"]["a"].tolist() == [3.0, 4.0]
    assert second["s"]["b"].tolist() == [1.0, 2.0]
    assert wf.jacobian(f, argnums=1, mode=mode)(p, double(2.0))[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_the_jacobian_of_scalars_and_of_nothing(mode: Any) -> None:
    assert wf.jacobian(wf.sin, mode=mode)(double(0.0)).shape == ()
    assert wf.jacobian(lambda x: x * 2.0, mode=mode)(wf.zeros(0)).shape == (0, 0)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_the_jacobian_with_respect_to_integers_is_none(mode: Any) -> None:
    p = {"x": double([1.0, 2.0]), "n": wf.tensor(3)}
    found = wf.jacobian(lambda q: q["x"] * q["n"], mode=mode)(p)
    assert found["n"] is None
    assert found["x"].tolist() == [[3.0, 0.0], [0.0, 3.0]]


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_the_jacobian_of_integers_is_refused(mode: Any) -> None:
    with pytest.raises(GradientError) as caught:
        wf.jacobian(lambda x: (x, x > 0.0), mode=mode)(double([1.0, 2.0]))
    assert caught.value.got == "result: bool[2]"


def test_the_jacobian_of_a_holomorphic_function_is_the_same_in_both_modes() -> None:
    z = wf.asarray(np.array([0.3 + 0.4j, -0.7 + 0.2j]))
    expected = np.diag(np.exp(z.numpy()))
    for mode in ("reverse", "forward"):
        np.testing.assert_allclose(wf.jacobian(wf.exp, mode=mode)(z).numpy(), expected)


def test_the_jacobian_between_real_and_complex_numbers_needs_the_mode_that_sees_it() -> None:
    x, z = double([0.3, 0.4]), wf.asarray(np.array([0.3 + 0.4j]))
    spin = lambda y: wf.exp(y * 1.0j)  # noqa: E731
    found = wf.jacobian(spin, mode="forward")(x).numpy()
    np.testing.assert_allclose(found, np.diag(1j * np.exp(1j * x.numpy())))
    with pytest.raises(GradientError) as caught:
        wf.jacobian(spin)(x)
    assert caught.value.fix == 'wf.jacobian(f, mode="forward")'
    np.testing.assert_allclose(wf.jacobian(wf.abs)(z).numpy()[0], z.numpy() / 0.5)
    with pytest.raises(GradientError) as caught:
        wf.jacobian(wf.abs, mode="forward")(z)
    assert caught.value.fix == 'wf.jacobian(f, mode="reverse")'


def test_numbers_as_tangents_and_cotangents_take_the_dtype_they_need() -> None:
    assert wf.jvp(lambda y: y * y, (double(3.0),), (1.0,))[1].item() == 6.0
    assert wf.vjp(lambda y: y * y, double(3.0))[1](1)[0].item() == 6.0
    assert wf.linearize(lambda y: y * y, double(3.0))[1](2.0).item() == 12.0


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        wf.jacobian(wf.sin, mode="backward")  # type: ignore[arg-type]
    assert caught.value.got == "mode: backward"


def test_the_hessian_of_a_quadratic_form() -> None:
    a = double([[2.0, 1.0], [0.0, 3.0]])
    found = wf.hessian(lambda x: x @ (a @ x))(double([1.0, 2.0])).numpy()
    np.testing.assert_allclose(found, a.numpy() + a.numpy().T)


def test_the_hessian_with_respect_to_another_argument() -> None:
    found = wf.hessian(lambda s, x: (s * x**3).sum(), argnums=1)(double(2.0), double([1.0, 2.0]))
    assert found.tolist() == [[12.0, 0.0], [0.0, 24.0]]


def test_the_hessian_of_a_tree() -> None:
    found = wf.hessian(lambda p: p["a"] * p["a"] * p["b"])({"a": double(2.0), "b": double(3.0)})
    assert found["a"]["a"].item() == 6.0
    assert found["a"]["b"].item() == 4.0
    assert found["b"]["a"].item() == 4.0
    assert found["b"]["b"].item() == 0.0


def test_hvp_is_the_hessian_times_a_vector() -> None:
    f = lambda x: (wf.sin(x) * x[::-1] ** 2).sum()  # noqa: E731
    x, t = double([0.3, 0.7, 1.1]), double([1.0, -2.0, 0.5])
    expected = wf.hessian(f)(x).numpy() @ t.numpy()
    np.testing.assert_allclose(wf.hvp(f, (x,), (t,)).numpy(), expected, rtol=1e-10)


def test_hvp_of_two_arguments() -> None:
    found = wf.hvp(lambda x, y: x * x * y, (double(2.0), double(3.0)), (double(1.0), double(0.0)))
    assert [h.item() for h in found] == [6.0, 4.0]


def test_third_derivatives_of_a_vector_function() -> None:
    found = wf.jacobian(wf.hessian(lambda x: (x**4).sum()))(double([1.0, 2.0])).numpy()
    expected = np.zeros((2, 2, 2))
    expected[0, 0, 0], expected[1, 1, 1] = 24.0, 48.0
    np.testing.assert_allclose(found, expected)


# --- stop_gradient ---


def test_stop_gradient_in_both_modes() -> None:
    f = lambda x: x * wf.stop_gradient(x)  # noqa: E731
    x = wf.tensor(3.0)
    assert wf.grad(f)(x).item() == 3.0
    assert wf.jvp(f, (x,), (wf.tensor(1.0),))[1].item() == 3.0
    assert wf.linearize(f, x)[1](wf.tensor(1.0)).item() == 3.0
    assert wf.grad(wf.grad(f))(x).item() == 0.0
    assert wf.vmap(wf.grad(f))(wf.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    graph = wf.ir.trace(f, x)
    assert wf.grad(lambda y: wf.ir.interpret(graph, y)[0])(x).item() == 3.0


def test_stop_gradient_inside_a_loop_body() -> None:
    f = lambda x: wf.fori_loop(0, 2, lambda i, y: y * wf.stop_gradient(y), x)  # noqa: E731
    assert wf.grad(f)(wf.tensor(2.0)).item() == 8.0  # (x·|x|)·|x²|: 4 · 2
    assert wf.jvp(f, (wf.tensor(2.0),), (wf.tensor(1.0),))[1].item() == 8.0


def test_detach_is_stop_gradient_under_both_modes() -> None:
    assert wf.grad(lambda x: x * x.detach())(wf.tensor(3.0)).item() == 3.0
    assert wf.jvp(lambda x: x * x.detach(), (wf.tensor(3.0),), (wf.tensor(1.0),))[1].item() == 3.0


def test_no_grad_inside_grad_stops_reverse_mode() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.no_grad():
            constant = x * x
        return constant * x

    assert wf.grad(f)(wf.tensor(3.0)).item() == 9.0


def constant_square_times(x: wf.Tensor) -> wf.Tensor:
    with wf.no_grad():
        constant = x * x
        constant[...] = constant.clone()
    return constant * x


@pytest.mark.parametrize("f", [constant_square_times, wf.jit(constant_square_times)])
def test_no_grad_inside_a_function_stops_forward_mode(f: Any) -> None:
    x, one = wf.tensor(3.0), wf.tensor(1.0)
    assert wf.jvp(f, (x,), (one,))[1].item() == 9.0
    assert wf.linearize(f, x)[1](one).item() == 9.0
    assert wf.jacobian(f, mode="forward")(x).item() == 9.0
    assert wf.vmap(lambda each: wf.jvp(f, (each,), (one,))[1])(x[None]).tolist() == [9.0]
    assert wf.hessian(f)(x).item() == 0.0
    with wf.no_grad():
        assert wf.jvp(f, (x,), (one,))[1].item() == 9.0


def test_no_grad_inside_enable_grad_counts_where_all_is_inside_no_grad() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.enable_grad(), wf.no_grad():
            constant = x * x
        return constant * x

    with wf.no_grad():
        assert wf.grad(wf.jit(f))(wf.tensor(3.0)).item() == 9.0
        assert wf.jvp(f, (wf.tensor(3.0),), (wf.tensor(1.0),))[1].item() == 9.0


# --- complex numbers ---


def test_complex_gradients_follow_the_adjoint_convention() -> None:
    """⟨ct, J t⟩ = ⟨Jᴴ ct, t⟩ with ⟨a, b⟩ = Re Σ conj(a)·b: the gradient points uphill."""
    z = wf.tensor(1.0 + 2.0j, dtype="complex128")
    w = wf.tensor(3.0 - 1.0j, dtype="complex128")
    assert wf.grad(lambda x: wf.real(x))(z).item() == 1.0
    assert wf.grad(lambda x: wf.imag(x))(z).item() == 1.0j
    assert wf.grad(lambda x: wf.real(x * w))(z).item() == 3.0 + 1.0j  # conj(w)
    assert wf.grad(lambda x: wf.real(x * wf.conj(x)))(z).item() == 2.0 + 4.0j
    assert wf.grad(lambda x: wf.abs(x))(z).item() == pytest.approx((1 + 2j) / np.sqrt(5))


def test_a_real_argument_of_a_complex_function_has_a_real_gradient() -> None:
    found = wf.grad(lambda x: wf.real(wf.exp(x * 1.0j)))(wf.tensor(0.5, dtype="float64"))
    assert found.dtype == wf.float64
    assert found.item() == pytest.approx(-np.sin(0.5))


def test_holomorphic_functions_multiply_by_their_derivative_in_forward_mode() -> None:
    z, t = wf.tensor(0.3 + 0.4j, dtype="complex128"), wf.tensor(1.0 - 2.0j, dtype="complex128")
    for f, slope in [(wf.exp, np.exp), (wf.sin, np.cos), (lambda x: x**3, lambda x: 3 * x**2)]:
        assert wf.jvp(f, (z,), (t,))[1].item() == pytest.approx(slope(0.3 + 0.4j) * (1 - 2j))
        back = wf.vjp(f, z)[1](t)[0].item()
        assert back == pytest.approx(np.conj(slope(0.3 + 0.4j)) * (1 - 2j))


def test_complex_functions_pass_the_gradient_check() -> None:
    z = wf.asarray(np.array([0.3 + 0.4j, -0.7 + 0.2j]))
    wf.testing.check_grads(lambda x: wf.exp(x) * wf.conj(x) / (2.0 + x), [z])
    wf.testing.check_grads(lambda x: wf.abs(wf.fft.fft(x)), [z])


# --- what is refused ---


def test_grad_of_something_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(GradientError) as caught:
        wf.grad(lambda x: x * x)(wf.ones(3))
    assert caught.value.problem == "the function does not return a real scalar"
    assert "f32[3]" in caught.value.got
    assert "wf.jacobian" in caught.value.fix
    with pytest.raises(GradientError):
        wf.grad(lambda x: (x, x))(wf.tensor(1.0))
    with pytest.raises(GradientError):
        wf.grad(lambda x: wf.argmax(x))(wf.ones(3))
    with pytest.raises(GradientError):
        wf.grad(lambda x: x * 1.0j)(wf.tensor(1.0))


def test_grad_of_integers_is_refused() -> None:
    with pytest.raises(GradientError) as caught:
        wf.grad(lambda x: x * 2.0)(wf.tensor(3))
    assert caught.value.got == "x: i64[]"
    with pytest.raises(GradientError):
        wf.grad(lambda x: x * 2.0)(3)


def test_an_argument_that_is_not_there_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        wf.grad(lambda x: x, argnums=1)(wf.tensor(1.0))
    assert caught.value.expected == "argnums from 0 to 0"
    with pytest.raises(ArgumentError):
        wf.grad(lambda x: x, argnums=(0, -2))(wf.tensor(1.0))


def test_an_argument_named_twice_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        wf.grad(lambda x, y: x * y, argnums=(0, -2))(wf.tensor(1.0), wf.tensor(2.0))
    assert caught.value.fix == "argnums=(0,)"


@pytest.mark.parametrize("argnums", ["x", True, 0.0, None])
def test_what_is_no_position_is_refused(argnums: Any) -> None:
    with pytest.raises(ArgumentError):
        wf.grad(lambda x, y: x * y, argnums=argnums)(wf.tensor(1.0), wf.tensor(2.0))


def test_arguments_may_be_written_to_inside() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        x *= 2.0
        x[0] = 5.0
        return (x * x).sum()

    x = wf.tensor([1.0, 3.0])
    assert wf.grad(f)(x).tolist() == [0.0, 24.0]
    assert wf.grad(lambda y: wf.grad(f)(y).sum())(x).tolist() == [0.0, 8.0]
    assert wf.jvp(f, (x,), (wf.ones(2),))[1].item() == 24.0
    assert wf.vmap(f)(x[None]).tolist() == [61.0]
    assert x.tolist() == [1.0, 3.0]


def test_aux_must_be_a_pair() -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        wf.grad(lambda x: x * x, has_aux=True)(wf.tensor(1.0))
    assert caught.value.fix == "return loss, aux"


def test_a_result_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentTypeError):
        wf.grad(lambda x: "text")(wf.tensor(1.0))


def test_a_dual_number_that_leaks_is_refused_with_the_line_where_it_was_traced() -> None:
    kept: list[wf.Tensor] = []
    wf.jvp(lambda x: kept.append(x) or x, (wf.tensor(1.0),), (wf.tensor(1.0),))  # traced here
    for use in (lambda: kept[0] + 1.0, lambda: kept[0].item(), lambda: bool(kept[0])):
        with pytest.raises(LeakError) as caught:
            use()
        assert "jvp" in caught.value.problem
        assert f":{_line_of('# traced here')}" in caught.value.note
        assert caught.value.fix.startswith("return the tensor from the function")


def test_a_variable_of_a_graph_that_leaks_is_refused() -> None:
    kept: list[wf.Tensor] = []
    wf.ir.trace(lambda x: kept.append(x) or x, wf.spec("float32", (2,)))  # recorded here
    with pytest.raises(LeakError) as caught:
        wf.sin(kept[0])
    assert f":{_line_of('# recorded here')}" in caught.value.note


@pytest.mark.parametrize("around", ["jvp", "vmap", "trace"])
def test_a_graph_cannot_close_over_what_has_no_value(around: str) -> None:
    def f(w: wf.Tensor) -> wf.Tensor:
        return wf.ir.interpret(wf.ir.trace(lambda y: y * w, wf.ones(2)), wf.ones(2))[0]

    w = wf.ones(2)
    runs = {
        "jvp": lambda: wf.jvp(f, (w,), (w,)),
        "vmap": lambda: wf.vmap(f)(w),
        "trace": lambda: wf.ir.trace(f, w),
    }
    with pytest.raises(TraceError) as caught:
        runs[around]()
    assert around in caught.value.problem
    assert "pass the tensor as an argument" in caught.value.fix


def test_a_loop_without_a_bound_has_no_reverse_mode_and_says_so() -> None:
    f = lambda x: wf.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, x)  # noqa: E731
    assert wf.jvp(f, (wf.tensor(1.0),), (wf.tensor(1.0),))[1].item() == 16.0
    with pytest.raises((Unsupported, GradientError)) as caught:
        wf.grad(f)(wf.tensor(1.0))
    assert "max_steps" in str(caught.value)


def test_an_operation_without_a_derivative_gives_its_reason() -> None:
    with pytest.raises(Unsupported, match="nextafter"):
        wf.grad(lambda x: wf.nextafter(x, wf.tensor(2.0)))(wf.tensor(1.0))
    with pytest.raises(Unsupported, match="nextafter"):
        wf.jvp(lambda x: wf.nextafter(x, wf.tensor(2.0)), (wf.tensor(1.0),), (wf.tensor(1.0),))


# --- checking derivatives ---


def test_numeric_gradients_agree_with_automatic_ones() -> None:
    f = lambda p: (wf.sin(p["a"]) * p["b"]).sum()  # noqa: E731
    p = {"a": double([[0.1, 0.2]]), "b": double([[3.0], [4.0]])}
    found, expected = wf.testing.numeric_grad(f, p), wf.grad(f)(p)
    for key in p:
        np.testing.assert_allclose(found[key].numpy(), expected[key].numpy(), rtol=1e-8)
    second = wf.testing.numeric_grad(lambda s, x: s * x**2, double(3.0), double(2.0), argnums=1)
    assert second.item() == pytest.approx(12.0)


def test_numeric_gradients_in_single_precision() -> None:
    found = wf.testing.numeric_grad(lambda x: (x * x).sum(), wf.tensor([1.0, 2.0]))
    np.testing.assert_allclose(found.numpy(), [2.0, 4.0], rtol=1e-3)


def test_check_grads_accepts_trees_and_finds_wrong_rules() -> None:
    wf.testing.check_grads(lambda p, y: p["x"] * y, [{"x": double([1.0, 2.0])}, double(3.0)])
    wf.testing.check_grads(lambda x: wf.sin(x), [wf.tensor([0.5, 1.0])])

    @wf.custom_derivative
    def wrong(x: wf.Tensor) -> wf.Tensor:
        return x * x

    wrong.jvp(lambda primals, tangents: (wrong(*primals), 3.0 * primals[0] * tangents[0]))
    for modes in (("forward",), ("reverse",)):
        with pytest.raises(AssertionError):
            wf.testing.check_grads(wrong, [double(2.0)], modes=modes)


def test_check_grads_finds_a_wrong_second_order() -> None:
    f = lambda x: x * x + wf.stop_gradient(x * 0.0)  # noqa: E731
    wf.testing.check_grads(f, [double(2.0)])

    @wf.custom_derivative
    def square(x: wf.Tensor) -> wf.Tensor:
        return x * x

    square.jvp(lambda p, t: (square(*p), 2.0 * wf.stop_gradient(p[0]) * t[0]))
    wf.testing.check_grads(square, [double(2.0)], order=1)
    with pytest.raises(AssertionError):
        wf.testing.check_grads(square, [double(2.0)], order=2)


def _line_of(mark: str) -> int:
    with open(__file__, encoding="utf-8") as source:
        return next(number for number, line in enumerate(source, 1) if mark in line)


# --- leaving the framework ---------------------------------------------------------------------


def scaled_by_a_constant(x: wf.Tensor) -> wf.Tensor:
    return x * float(x.detach().numpy()[0])


def test_a_detached_tensor_is_a_numpy_array_in_every_mode() -> None:
    x, t = wf.tensor([2.0, 3.0]), wf.tensor([1.0, 10.0])

    def forward(x: wf.Tensor) -> wf.Tensor:
        return wf.jvp(scaled_by_a_constant, (x,), (t,))[1]

    assert forward(x).tolist() == [2.0, 20.0]
    assert wf.grad(lambda x: scaled_by_a_constant(x).sum())(x).tolist() == [2.0, 2.0]
    assert wf.jvp(forward, (x,), (t,))[1].tolist() == [0.0, 0.0]
    assert wf.grad(lambda x: (x * forward(x)).sum())(x).tolist() == [2.0, 20.0]
    assert wf.jacobian(scaled_by_a_constant, mode="forward")(x).tolist() == [[2, 0], [0, 2]]


def test_what_has_no_tangent_is_a_numpy_array_under_jvp() -> None:
    x = wf.tensor([2.5, 3.5])
    _, t = wf.jvp(lambda x: x * float(wf.floor(x).numpy().sum()), (x,), (x,))
    assert t.tolist() == [12.5, 17.5]


def test_a_tensor_with_a_tangent_does_not_leave_the_framework() -> None:
    x = wf.tensor([2.0, 3.0])
    with pytest.raises(wf.GradientError, match="nothing is recorded"):
        wf.jvp(lambda x: x * float(x.numpy()[0]), (x,), (x,))
    with pytest.raises(wf.GradientError, match="nothing is recorded"):
        wf.grad(lambda x: wf.jvp(lambda y: y * float(x.numpy()[0]), (x,), (x,))[1].sum())(x)


# --- loops of gradients ------------------------------------------------------------------------


def recorded_nodes() -> int:
    wait_for_quiet()
    return sum(type(each) is Node for each in gc.get_objects())


def descended(params: dict[str, wf.Tensor], net: wf.nn.Module, steps: int) -> dict[str, wf.Tensor]:
    x = wf.ones((4, 3))

    def loss(params: dict[str, wf.Tensor]) -> wf.Tensor:
        return (wf.functional_call(net, params, x) ** 2).mean()

    for _ in range(steps):
        gradients = wf.grad(loss)(params)
        params = {name: p - 0.1 * gradients[name] for name, p in params.items()}
    return params


def test_a_functional_loop_from_detached_parameters_records_nothing() -> None:
    net = wf.nn.Linear(3, 2)
    before = recorded_nodes()
    params = {name: p.detach() for name, p in net.named_parameters()}
    params = descended(params, net, 5)
    assert recorded_nodes() == before
    assert not any(p.requires_grad for p in params.values())


def test_a_functional_loop_that_keeps_every_step_is_warned_of() -> None:
    net = wf.nn.Linear(3, 2)
    descended(dict(net.named_parameters()), net, GENERATIONS)
    with pytest.warns(RuntimeWarning, match=r"begin with \{name: p.detach\(\)"):
        descended(dict(net.named_parameters()), net, GENERATIONS + 1)


def test_a_short_loop_of_gradients_keeps_its_derivative() -> None:
    net = wf.nn.Linear(3, 2)
    params = descended(dict(net.named_parameters()), net, 3)
    (params["weight"] ** 2).sum().backward()
    assert net.weight.grad is not None
