"""`custom_derivative`: the user's rule is used wherever the function goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import ArgumentTypeError, GradientError


def with_jvp() -> Any:
    """x², with a derivative of 100 x t by a rule for forward mode."""

    @wf.custom_derivative
    def f(x: wf.Tensor) -> wf.Tensor:
        return x * x

    @f.jvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return f(x), 100.0 * x * t

    return f


def with_vjp() -> Any:
    """x², with a derivative of 100 x ct by a rule for reverse mode."""

    @wf.custom_derivative
    def f(x: wf.Tensor) -> wf.Tensor:
        return x * x

    @f.vjp
    def rule(x: wf.Tensor) -> Any:
        return f(x), lambda ct: 100.0 * x * ct

    return f


MAKERS = [pytest.param(with_jvp, id="jvp"), pytest.param(with_vjp, id="vjp")]
x = wf.tensor(3.0)
one = wf.tensor(1.0)


@pytest.mark.parametrize("make", MAKERS)
def test_the_value_is_the_function_s(make: Any) -> None:
    assert make()(x).item() == 9.0
    assert make()(3.0).item() == 9.0


@pytest.mark.parametrize("make", MAKERS)
def test_reverse_mode_uses_the_rule(make: Any) -> None:
    f = make()
    assert wf.grad(f)(x).item() == 300.0
    leaf = wf.tensor(3.0, requires_grad=True)
    (f(leaf) * 2.0).backward()
    assert leaf.grad.item() == 600.0


@pytest.mark.parametrize("make", MAKERS)
def test_the_rule_is_differentiated_for_higher_orders(make: Any) -> None:
    assert wf.grad(wf.grad(make()))(x).item() == 100.0
    assert wf.grad(wf.grad(lambda y: make()(y) * y))(x).item() == pytest.approx(
        # (f y)' = 100 y² + y², whose derivative is 202 y
        202.0 * 3.0 + (100.0 - 2.0) * 3.0 * 1.0
    )


def test_forward_mode_uses_the_rule() -> None:
    f = with_jvp()
    assert wf.jvp(f, (x,), (one,))[1].item() == 300.0
    assert wf.linearize(f, x)[1](one).item() == 300.0
    assert wf.jvp(wf.grad(f), (x,), (one,))[1].item() == 100.0
    assert wf.grad(lambda y: wf.jvp(f, (y,), (one,))[1])(x).item() == 100.0


def test_forward_mode_with_a_rule_for_reverse_mode_only_is_refused() -> None:
    f = with_vjp()
    with pytest.raises(GradientError) as caught:
        wf.jvp(f, (x,), (one,))
    assert caught.value.op == "jvp"
    assert caught.value.problem == "f has a derivative for reverse mode only"
    assert caught.value.fix == "give one with @f.jvp"


def test_with_both_rules_each_mode_uses_its_own() -> None:
    f = with_jvp()
    f.vjp(lambda y: (f(y), lambda ct: 7.0 * ct))
    assert wf.grad(f)(x).item() == 7.0
    assert wf.jvp(f, (x,), (one,))[1].item() == 300.0


@pytest.mark.parametrize("make", MAKERS)
def test_under_vmap(make: Any) -> None:
    f = make()
    xs = wf.tensor([1.0, 2.0])
    assert wf.vmap(f)(xs).tolist() == [1.0, 4.0]
    assert wf.vmap(wf.grad(f))(xs).tolist() == [100.0, 200.0]
    assert wf.grad(lambda ys: wf.vmap(f)(ys).sum())(xs).tolist() == [100.0, 200.0]
    assert wf.vmap(wf.vmap(wf.grad(f)))(xs[None]).tolist() == [[100.0, 200.0]]
    assert wf.vmap(wf.grad(wf.grad(f)))(xs).tolist() == [100.0, 100.0]
    assert wf.grad(lambda ys: wf.vmap(wf.grad(f))(ys).sum())(xs).tolist() == [100.0, 100.0]


def test_forward_mode_under_vmap() -> None:
    f, xs = with_jvp(), wf.tensor([1.0, 2.0])
    assert wf.vmap(lambda y: wf.jvp(f, (y,), (one,))[1])(xs).tolist() == [100.0, 200.0]
    assert wf.jvp(wf.vmap(f), (xs,), (wf.ones(2),))[1].tolist() == [100.0, 200.0]


@pytest.mark.parametrize("make", MAKERS)
def test_inside_a_trace_the_rule_is_kept(make: Any) -> None:
    f = make()
    graph = wf.ir.trace(f, x)
    assert "custom" in str(graph)
    assert wf.ir.interpret(graph, x)[0].item() == 9.0
    assert wf.grad(lambda y: wf.ir.interpret(graph, y)[0])(x).item() == 300.0
    (found,) = wf.ir.interpret(wf.grad(f).graph(x), x)
    assert found.item() == 300.0


@pytest.mark.parametrize("make", MAKERS)
def test_the_rule_is_found_again_by_the_text_of_a_graph(make: Any) -> None:
    f = make()
    graph = wf.ir.trace(f, x)
    again = wf.ir.parse(str(graph))
    assert again == graph
    assert wf.grad(lambda y: wf.ir.interpret(again, y)[0])(x).item() == 300.0


def test_text_of_another_process_is_refused_when_its_derivative_is_needed() -> None:
    graph = wf.ir.trace(with_jvp(), x)
    text = str(graph).replace("f#", "gone#")
    again = wf.ir.parse(text)
    assert wf.ir.interpret(again, x)[0].item() == 9.0
    with pytest.raises(GradientError, match="another process"):
        wf.grad(lambda y: wf.ir.interpret(again, y)[0])(x)


@pytest.mark.parametrize("make", MAKERS)
def test_inside_control_flow_the_rule_is_kept(make: Any) -> None:
    f = make()
    branch = lambda y: wf.cond(y > 0.0, f, wf.sin, y)  # noqa: E731
    assert wf.grad(branch)(x).item() == 300.0
    scanned = lambda y: wf.scan(lambda c, z: (c + f(z), None), wf.tensor(0.0), y)[0]  # noqa: E731
    assert wf.grad(scanned)(wf.tensor([1.0, 2.0])).tolist() == [100.0, 200.0]
    looped = lambda y: wf.fori_loop(0, 1, lambda i, z: f(z), y)  # noqa: E731
    assert wf.grad(looped)(x).item() == 300.0
    assert wf.vmap(wf.grad(branch))(wf.tensor([1.0, 2.0])).tolist() == [100.0, 200.0]


def test_inside_control_flow_in_forward_mode() -> None:
    f = with_jvp()
    branch = lambda y: wf.cond(y > 0.0, f, wf.sin, y)  # noqa: E731
    assert wf.jvp(branch, (x,), (one,))[1].item() == 300.0
    looped = lambda y: wf.fori_loop(0, 1, lambda i, z: f(z), y)  # noqa: E731
    assert wf.jvp(looped, (x,), (one,))[1].item() == 300.0


@pytest.mark.parametrize("make", MAKERS)
def test_inside_a_checkpoint(make: Any) -> None:
    assert wf.grad(wf.checkpoint(make()))(x).item() == 300.0


def test_several_arguments_and_trees() -> None:
    @wf.custom_derivative
    def f(p: dict, y: wf.Tensor) -> tuple:
        return p["a"] * y, p["b"] + y

    @f.jvp
    def rule(primals: Any, tangents: Any) -> Any:
        (p, y), (dp, dy) = primals, tangents
        return f(p, y), (dp["a"] * y + p["a"] * dy, 10.0 * dp["b"] + dy)

    p = {"a": wf.tensor(2.0), "b": wf.tensor(5.0)}
    loss = lambda p, y: f(p, y)[0] + f(p, y)[1]  # noqa: E731
    dp, dy = wf.grad(loss, argnums=(0, 1))(p, x)
    assert dp["a"].item() == 3.0
    assert dp["b"].item() == 10.0
    assert dy.item() == 3.0


def test_a_pullback_for_several_arguments() -> None:
    @wf.custom_derivative
    def f(a: wf.Tensor, b: dict) -> wf.Tensor:
        return a * b["c"]

    f.vjp(lambda a, b: (f(a, b), lambda ct: (ct * 7.0, {"c": ct * 11.0})))
    da, db = wf.grad(f, argnums=(0, 1))(x, {"c": x})
    assert da.item() == 7.0
    assert db["c"].item() == 11.0


def test_a_pullback_may_return_none_for_what_has_no_derivative() -> None:
    @wf.custom_derivative
    def f(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        return a * b

    f.vjp(lambda a, b: (f(a, b), lambda ct: (ct * b, None)))
    da, db = wf.grad(f, argnums=(0, 1))(x, x)
    assert da.item() == 3.0
    assert db.item() == 0.0


def test_gradient_clipping_as_in_the_books() -> None:
    @wf.custom_derivative
    def clipped(y: wf.Tensor) -> wf.Tensor:
        return y

    clipped.vjp(lambda y: (y, lambda ct: wf.clip(ct, -1.0, 1.0)))
    f = lambda y: (clipped(y) * wf.tensor([5.0, 0.5, -7.0])).sum()  # noqa: E731
    assert wf.grad(f)(wf.ones(3)).tolist() == [1.0, 0.5, -1.0]


def test_a_numerically_safe_derivative() -> None:
    @wf.custom_derivative
    def log1pexp(y: wf.Tensor) -> wf.Tensor:
        return wf.log1p(wf.exp(y))

    @log1pexp.jvp
    def rule(primals: Any, tangents: Any) -> Any:
        return log1pexp(*primals), tangents[0] * (1.0 - 1.0 / (1.0 + wf.exp(primals[0])))

    assert wf.grad(log1pexp)(wf.tensor(100.0)).item() == 1.0
    wf.testing.check_grads(log1pexp, [wf.asarray(np.array([0.3, -0.8]))])


def test_integer_arguments_are_allowed_beside_others() -> None:
    @wf.custom_derivative
    def f(y: wf.Tensor, n: wf.Tensor) -> wf.Tensor:
        return y * n

    @f.jvp
    def rule(primals: Any, tangents: Any) -> Any:
        return f(*primals), 50.0 * tangents[0]

    assert wf.grad(f)(x, wf.tensor(2)).item() == 50.0
    assert wf.grad(lambda y: wf.vmap(f, in_axes=(0, None))(y, wf.tensor(2)).sum())(
        wf.ones(2)
    ).tolist() == [50.0, 50.0]


def test_the_name_and_doc_are_the_function_s() -> None:
    @wf.custom_derivative
    def halve(y: wf.Tensor) -> wf.Tensor:
        """Half of it."""
        return y / 2.0

    assert halve.__name__ == "halve"
    assert halve.__doc__ == "Half of it."


def test_a_function_without_a_rule_is_refused() -> None:
    @wf.custom_derivative
    def f(y: wf.Tensor) -> wf.Tensor:
        return y

    with pytest.raises(GradientError) as caught:
        f(x)
    assert caught.value.op == "f"
    assert caught.value.expected == "a rule given with @f.jvp or @f.vjp"


def closing_over(w: wf.Tensor) -> Any:
    @wf.custom_derivative
    def f(y: wf.Tensor) -> wf.Tensor:
        return y * w

    f.jvp(lambda p, t: (f(*p), t[0] * w))
    return f


@pytest.mark.parametrize(
    "program",
    [
        lambda w: wf.grad(lambda v: closing_over(v)(x))(w[0]),
        lambda w: wf.grad(lambda v: closing_over(v)(v))(w[0]),
        lambda w: wf.grad(lambda v: wf.vmap(closing_over(v))(w).sum())(w[0]),
        lambda w: wf.grad(lambda v: wf.cond(v > 0.0, closing_over(v), wf.sin, x))(w[0]),
        lambda w: wf.jvp(lambda v: closing_over(v)(x), (w,), (w,)),
        lambda w: wf.jvp(lambda v: closing_over(v)(v), (w,), (w,)),
        lambda w: wf.vmap(lambda v: closing_over(v)(v))(w),
        lambda w: wf.vmap(lambda v: closing_over(v)(x))(w),
        lambda w: wf.ir.trace(lambda v: closing_over(v)(v), w),
        lambda w: closing_over(w.requires_grad_())(x),
    ],
)
def test_closing_over_what_a_transform_works_on_is_refused(program: Any) -> None:
    """The rule knows nothing of such a tensor: its derivative would be silently lost."""
    with pytest.raises(GradientError) as caught:
        program(wf.ones(3))
    assert "the function closes over a tensor" in caught.value.problem
    assert "pass the tensor as an argument" in caught.value.fix


def test_closing_over_a_detached_tensor_is_fine() -> None:
    w = wf.tensor(3.0, requires_grad=True)
    assert wf.grad(closing_over(w.detach()))(x).item() == 3.0
    with wf.no_grad():
        assert closing_over(w)(x).item() == 9.0


def test_closing_over_a_constant_is_fine_everywhere() -> None:
    table = wf.tensor([1.0, 2.0])

    @wf.custom_derivative
    def f(y: wf.Tensor) -> wf.Tensor:
        return (y * table).sum()

    f.jvp(lambda p, t: (f(*p), 5.0 * t[0].sum()))
    assert wf.grad(f)(wf.ones(2)).tolist() == [5.0, 5.0]
    assert wf.vmap(wf.grad(f))(wf.ones((2, 2))).tolist() == [[5.0, 5.0], [5.0, 5.0]]
    assert wf.ir.interpret(wf.ir.trace(f, wf.ones(2)), wf.ones(2))[0].item() == 3.0


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentTypeError):
        with_jvp()("text")


def test_a_pullback_with_the_wrong_number_of_parts_is_refused() -> None:
    @wf.custom_derivative
    def f(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        return a * b

    f.vjp(lambda a, b: (f(a, b), lambda ct: ct))
    with pytest.raises(GradientError) as caught:
        wf.grad(f)(x, x)
    assert "one cotangent" in caught.value.expected


def test_a_cotangent_of_the_wrong_shape_is_refused() -> None:
    @wf.custom_derivative
    def f(a: wf.Tensor) -> wf.Tensor:
        return a.sum()

    f.vjp(lambda a: (f(a), lambda ct: ct))
    with pytest.raises(GradientError) as caught:
        wf.grad(f)(wf.ones(3))
    assert "f32[3]" in caught.value.expected
    f.jvp(lambda p, t: (f(*p), t[0]))
    with pytest.raises(GradientError):
        wf.jvp(f, (wf.ones(3),), (wf.ones(3),))
