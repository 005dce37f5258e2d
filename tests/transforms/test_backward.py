"""`.backward()` means what it means in PyTorch, and values never change."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft.core.errors import ArgumentTypeError, DTypeError, GradientError, ShapeError
from weft.ir import tape
from weft.ir.tape_order import reachable_nodes


def leaf(value: object) -> wf.Tensor:
    return wf.tensor(value, requires_grad=True)


# --- accumulation ---


def test_gradients_accumulate_in_leaves() -> None:
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    (3.0 * x).sum().backward()
    assert x.grad.tolist() == [5.0, 7.0]


def test_a_tensor_used_twice_gets_both_contributions() -> None:
    x = leaf(3.0)
    y = x * 2.0
    (y * y + y).backward()
    assert x.grad.item() == 26.0


def test_only_leaves_get_a_gradient() -> None:
    x = leaf(2.0)
    y = x * x
    y.backward()
    assert y.grad is None
    assert not y.is_leaf
    assert x.is_leaf


def test_a_constant_gets_no_gradient() -> None:
    x, c = leaf(2.0), wf.tensor(5.0)
    (x * c).backward()
    assert c.grad is None
    assert x.grad.item() == 5.0


def test_gradients_have_the_type_of_their_leaf_after_broadcasting() -> None:
    row, column, scalar = leaf([1.0, 2.0, 3.0]), leaf([[1.0], [2.0]]), leaf(2.0)
    (row * column * scalar).sum().backward()
    assert row.grad.tolist() == [6.0, 6.0, 6.0]
    assert column.grad.tolist() == [[12.0], [12.0]]
    assert scalar.grad.item() == 18.0


def test_gradients_have_the_dtype_of_their_leaf_after_promotion() -> None:
    narrow = wf.tensor([1.0, 2.0], dtype="float16", requires_grad=True)
    wide = wf.tensor([3.0, 4.0], dtype="float64", requires_grad=True)
    (narrow * wide).sum().backward()
    assert narrow.grad.dtype == wf.float16
    assert wide.grad.dtype == wf.float64
    assert narrow.grad.tolist() == [3.0, 4.0]


def test_a_gradient_can_be_weighted() -> None:
    x = leaf([1.0, 2.0, 3.0])
    (x * x).backward(wf.tensor([1.0, 0.0, 10.0]))
    assert x.grad.tolist() == [2.0, 0.0, 60.0]


def test_a_tensor_of_one_element_counts_as_a_scalar() -> None:
    x = leaf([[3.0]])
    (x * x).backward()
    assert x.grad.tolist() == [[6.0]]


def test_a_leaf_can_be_its_own_root() -> None:
    x = leaf(3.0)
    x.backward()
    assert x.grad.item() == 1.0


def test_the_gradient_of_several_results_of_one_operation() -> None:
    x = leaf([[4.0, 1.0], [1.0, 3.0]])
    q, r = wf.linalg.qr(x)
    (q @ r).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.ones((2, 2)), atol=1e-5)


def test_results_that_are_not_used_contribute_nothing() -> None:
    x = leaf([3.0, 1.0, 2.0])
    values, places = wf.topk(x, 2)
    (values * wf.tensor([1.0, 10.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 10.0]
    assert not places.requires_grad


def test_a_long_chain_does_not_overflow_the_stack() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(5000):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1.0


def test_gradients_can_be_cleared_and_assigned() -> None:
    x = leaf([1.0, 2.0])
    x.sum().backward()
    x.grad = None
    assert x.grad is None
    x.grad = wf.tensor([5.0, 5.0])
    x.sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]
    x.grad.zero_()
    assert x.grad.tolist() == [0.0, 0.0]


# --- the tape's life ---


def test_a_second_backward_over_a_freed_tape_is_refused() -> None:
    x = leaf(3.0)
    y = x * x
    y.backward()
    with pytest.raises(GradientError) as caught:
        y.backward()
    error = caught.value
    assert error.op == "backward"
    assert error.problem == "the tape was freed by an earlier backward"
    assert error.got == "operation: multiply" or error.got.startswith("operation: ")
    assert "retain_graph=True" in error.fix
    assert x.grad.item() == 6.0


def test_retain_graph_allows_a_second_backward() -> None:
    x = leaf(3.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 12.0
    with pytest.raises(GradientError):
        y.backward()


def test_a_shared_part_of_the_tape_is_freed_with_the_first_loss() -> None:
    x = leaf(3.0)
    shared = x * x
    one, other = shared * 2.0, shared * 3.0
    one.backward()
    with pytest.raises(GradientError):
        other.backward()


def test_values_on_the_tape_are_freed_by_backward() -> None:
    x = leaf(np.ones(4, np.float32))
    y = wf.exp(x)
    kept = weakref.ref(y._value)
    loss = (y * y).sum()
    del y
    wait_for_quiet()
    assert kept() is not None
    loss.backward()
    wait_for_quiet()
    assert kept() is None


def test_large_values_that_no_derivative_needs_are_not_kept() -> None:
    x = leaf(np.ones(tape.LARGE, np.float32))
    y = x * 2.0
    kept = weakref.ref(y._value)
    loss = (y + 1.0).sum()
    del y
    wait_for_quiet()
    assert kept() is None
    loss.backward()
    assert x.grad[0].item() == 2.0


def test_what_is_not_kept_does_not_change_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient() -> np.ndarray:
        x = leaf(np.linspace(0.1, 1.0, 6, dtype=np.float32).reshape(2, 3))
        y = wf.concat([x @ x.T, wf.exp(x)[:, :2]], axis=0) - x[:, :1].sum()
        (wf.sin(y).T * 3.0 / y.T).sum().backward()
        return x.grad.numpy()

    expected = gradient()
    monkeypatch.setattr(tape, "LARGE", 0)
    monkeypatch.setattr("weft.ops.families.LARGE", 0)
    np.testing.assert_array_equal(gradient(), expected)


def test_a_tape_that_nobody_holds_is_collected_without_the_collector() -> None:
    wait_for_quiet()
    gc.disable()
    try:
        x = leaf(np.ones(4, np.float32))
        y = wf.exp(x) * x
        kept = weakref.ref(y._value)
        del y
        assert kept() is None
    finally:
        gc.enable()


# --- create_graph ---


def test_create_graph_makes_gradients_differentiable() -> None:
    x = leaf(2.0)
    (x**3).backward(create_graph=True)
    assert x.grad.item() == 12.0
    assert x.grad.requires_grad
    first, x.grad = x.grad, None
    first.backward()
    assert x.grad.item() == 12.0


def test_gradients_are_constants_without_create_graph() -> None:
    x = leaf(2.0)
    (x**3).backward()
    assert not x.grad.requires_grad


def test_a_gradient_penalty_reaches_the_weights() -> None:
    w, x = leaf(3.0), leaf(2.0)
    y = w * x * x
    (slope,) = wf.vjp(lambda x: w * x * x, x)[1](wf.tensor(1.0))
    (y + slope**2).backward()  # w x² + (2 w x)²
    assert w.grad.item() == 4.0 + 2 * 12.0 * 4.0
    assert x.grad.item() == 12.0 + 2 * 12.0 * 6.0


def test_double_backward_by_hand() -> None:
    x = leaf([1.0, 2.0])
    y = (wf.exp(x) * x).sum()
    y.backward(create_graph=True)
    gradient, x.grad = x.grad, None
    gradient.sum().backward()
    expected = np.exp([1.0, 2.0]) * (2.0 + np.array([1.0, 2.0]))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)


# --- hooks ---


def test_a_hook_sees_and_changes_a_gradient() -> None:
    x = leaf(3.0)
    y = x * 2.0
    seen: list[float] = []
    y.register_hook(lambda g: seen.append(g.item()))
    y.register_hook(lambda g: g * 10.0)
    (y * y).backward()
    assert seen == [12.0]
    assert x.grad.item() == 240.0


def test_hooks_run_in_order_and_can_be_removed() -> None:
    x = leaf(1.0)
    y = x * 1.0
    y.register_hook(lambda g: g + 1.0)
    remove = y.register_hook(lambda g: g * 5.0)
    y.backward(retain_graph=True)
    assert x.grad.item() == 10.0
    remove()
    remove()
    x.grad = None
    y.backward()
    assert x.grad.item() == 2.0


def test_a_hook_of_a_leaf_runs_before_accumulation() -> None:
    x = leaf([3.0, -4.0])
    x.register_hook(lambda g: wf.clip(g, -1.0, 1.0))
    (x * x).sum().backward()
    assert x.grad.tolist() == [1.0, -1.0]


def test_a_hook_runs_once_with_the_whole_gradient() -> None:
    x = leaf(3.0)
    y = x * 1.0
    seen: list[float] = []
    y.register_hook(lambda g: seen.append(g.item()))
    (y * y + y * 4.0).backward()
    assert seen == [10.0]


def test_a_hook_on_a_tensor_without_history_is_refused() -> None:
    with pytest.raises(GradientError):
        wf.tensor(1.0).register_hook(lambda g: g)


def test_retain_grad_keeps_the_gradient_of_an_intermediate() -> None:
    x = leaf(3.0)
    y = x * 2.0
    y.retain_grad()
    (y * y).backward(retain_graph=True)
    assert y.grad.item() == 12.0
    (y * y).backward()
    assert y.grad.item() == 24.0


def test_retain_grad_changes_nothing_for_a_leaf() -> None:
    x = leaf(3.0)
    x.retain_grad()
    (x * x).backward()
    assert x.grad.item() == 6.0


# --- switching the tape off ---


def test_no_grad_records_nothing() -> None:
    x = leaf(1.0)
    with wf.no_grad():
        y = x * 2.0
        assert not wf.is_grad_enabled()
        with wf.enable_grad():
            z = x * 3.0
    assert not y.requires_grad
    assert z.requires_grad
    assert wf.is_grad_enabled()


def test_no_grad_is_a_decorator_that_can_be_used_again() -> None:
    @wf.no_grad()
    def evaluate(x: wf.Tensor) -> wf.Tensor:
        return x * 2.0

    x = leaf(1.0)
    assert not evaluate(x).requires_grad
    assert not evaluate(x).requires_grad
    assert (x * 2.0).requires_grad


def test_no_grad_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), wf.no_grad():
        1 / 0
    assert wf.is_grad_enabled()


def test_no_grad_is_the_thread_s_own() -> None:
    seen: list[bool] = []
    with wf.no_grad():
        thread = threading.Thread(target=lambda: seen.append(wf.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_grad_works_inside_no_grad() -> None:
    with wf.no_grad():
        assert wf.grad(lambda x: x * x)(wf.tensor(3.0)).item() == 6.0


def test_detach_is_the_value_without_its_history() -> None:
    x = leaf(3.0)
    y = x * x
    z = y.detach()
    assert not z.requires_grad
    (z * x).backward()
    assert x.grad.item() == 9.0
    assert y.requires_grad


def test_an_explicitly_trained_copy_is_a_leaf_of_its_own() -> None:
    x = leaf(3.0)
    y = (x * x).detach().requires_grad_()
    (y * 2.0).backward()
    assert y.grad.item() == 2.0
    assert x.grad is None


def test_requires_grad_can_be_switched_on_leaves() -> None:
    x = wf.tensor([1.0])
    x.requires_grad = True
    assert (x * 2).requires_grad
    x.requires_grad = False
    assert not (x * 2).requires_grad
    x.requires_grad_(True)
    x.requires_grad_(True)
    assert x.requires_grad


def test_integer_results_have_no_history() -> None:
    x = leaf([1.0, 3.0, 2.0])
    assert not wf.argmax(x).requires_grad
    assert not (x > 1.0).requires_grad
    assert not x.astype("int64").requires_grad


def test_clone_shares_the_value_and_the_history() -> None:
    x = leaf([1.0, 2.0])
    y = x.clone()
    (y * y).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    with wf.no_grad():
        x += 1.0
    assert y.tolist() == [1.0, 2.0]


SAME = {
    "clone": lambda x: x.clone(),
    "positive": lambda x: +x,
    "reshape": lambda x: x.reshape(3),
    "flatten": lambda x: x.flatten(),
    "broadcast": lambda x: wf.broadcast_to(x, (3,)),
    "astype": lambda x: wf.astype(x, "float32", copy=True),
    "asarray": lambda x: wf.asarray(x, copy=True),
    "squeeze": lambda x: wf.squeeze(x),
    "roll": lambda x: wf.roll(x, 0),
    "clip": lambda x: wf.clip(x),
    "written": lambda x: _written_whole(x),
    "set": lambda x: wf.zeros(3).set_(x),
    "computed": lambda x: x * 1.0,
}
"""Ways to the same elements, nearly none of which computes anything."""


def _written_whole(x: wf.Tensor) -> wf.Tensor:
    result = wf.zeros(3)
    result[:] = x
    return result


@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_taken_under_no_grad_has_no_history(same: Any, compiled: bool) -> None:
    def loss(w: wf.Tensor) -> wf.Tensor:
        with wf.no_grad():
            target = same(w)
        return ((2 * w - target) ** 2).sum()

    x = leaf([1.0, 2.0, 3.0])

    def step(x: wf.Tensor) -> None:
        loss(x).backward()

    (wf.jit(step) if compiled else step)(x)
    assert x.grad.tolist() == [4.0, 8.0, 12.0]
    gradient = wf.grad(loss)
    assert (wf.jit(gradient) if compiled else gradient)(x.detach()).tolist() == [4.0, 8.0, 12.0]
    with wf.no_grad():
        assert not same(x).requires_grad


@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
def test_no_grad_counts_inside_of_what_is_differentiated_as_a_graph(same: Any) -> None:
    def loss(w: wf.Tensor) -> wf.Tensor:
        with wf.no_grad():
            target = same(w)
        return ((2 * w - target) ** 2).sum()

    def looped(w: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda total, _: (total + loss(w), None), wf.tensor(0.0), length=2)[0] / 2

    x = leaf([1.0, 2.0, 3.0])
    wf.jit(loss)(x).backward()
    assert x.grad.tolist() == [4.0, 8.0, 12.0]
    for function in (wf.jit(loss), wf.checkpoint(loss), looped, wf.jit(looped)):
        assert wf.grad(function)(x.detach()).tolist() == [4.0, 8.0, 12.0]


def test_a_result_from_inside_of_no_grad_has_no_derivative_beside_others_that_have() -> None:
    @wf.jit
    def both(w: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        with wf.no_grad():
            target = w * 3.0
            with wf.enable_grad():
                kept = w * 5.0
        return target + kept, w * 2.0

    x = leaf([1.0, 2.0])
    first, second = both(x)
    (first + second).sum().backward()
    assert x.grad.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("same", ["clone", "positive", "broadcast", "astype", "asarray", "clip"])
def test_a_copy_of_a_leaf_is_none_and_may_be_written_to(same: str) -> None:
    x = leaf([1.0, 2.0, 3.0])
    y = SAME[same](x)
    assert not y.is_leaf
    y[0] = 5.0
    y *= 2.0
    (y * y).sum().backward()
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert x.grad.tolist() == [0.0, 16.0, 24.0]


def test_hooks_and_gradients_of_a_clone_are_its_own() -> None:
    x = leaf([1.0, 2.0])
    y = x.clone()
    y.retain_grad()
    y.register_hook(lambda gradient: gradient * 10.0)
    (3.0 * x + y * y).sum().backward()
    assert y.grad.tolist() == [2.0, 4.0]
    assert x.grad.tolist() == [23.0, 43.0]


# --- rebinding ---


def test_writing_changes_nothing_that_was_computed_earlier() -> None:
    x = wf.tensor([1.0, 2.0])
    y = x * 10.0
    alias = x
    x += 5.0
    assert y.tolist() == [10.0, 20.0]
    assert alias.tolist() == [6.0, 7.0]
    assert alias is x


def test_a_gradient_uses_the_values_from_before_a_write() -> None:
    w = leaf([2.0, 3.0])
    x = w * 1.0
    y = x * x
    x += 100.0
    x[0] = 0.0
    y.sum().backward()
    assert w.grad.tolist() == [4.0, 6.0]


def test_a_gradient_goes_through_writes() -> None:
    w = leaf([2.0, 3.0])
    x = w * 1.0
    x *= x
    x[0] = 7.0
    x[1:] += w[:1]
    x.sum().backward()
    assert w.grad.tolist() == [1.0, 6.0]


def test_a_written_value_gets_its_gradient() -> None:
    x, v = wf.zeros(3), leaf(5.0)
    x[1] = v
    (x * wf.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert v.grad.item() == 2.0


def test_writing_to_a_leaf_is_refused() -> None:
    x = leaf([1.0, 2.0])
    for write in (
        lambda: x.__iadd__(1.0),
        lambda: x.__setitem__(0, 5.0),
        lambda: x.zero_(),
        lambda: x.copy_(wf.ones(2)),
    ):
        with pytest.raises(GradientError) as caught:
            write()
        assert caught.value.problem == "a leaf that requires a gradient was written to"
        assert "with wf.no_grad():" in caught.value.fix
        assert caught.value.got == "x: f32[2]"
    assert x.tolist() == [1.0, 2.0]


def test_a_leaf_written_under_no_grad_stays_a_leaf() -> None:
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    with wf.no_grad():
        x -= 0.5 * x.grad
    assert x.tolist() == [0.0, 0.0]
    assert x.is_leaf
    assert x.requires_grad
    x.grad = None
    x.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_in_place_operations_keep_shape_and_dtype() -> None:
    x = wf.tensor([1, 2])
    with pytest.raises(DTypeError):
        x += 0.5
    with pytest.raises(DTypeError):
        x /= 2
    y = wf.tensor([1.0, 2.0])
    with pytest.raises(ShapeError):
        y += wf.ones((2, 2))
    assert x.tolist() == [1, 2]
    assert y.tolist() == [1.0, 2.0]


def test_a_numpy_view_does_not_see_a_write() -> None:
    x = wf.tensor([1.0, 2.0])
    view = x.numpy()
    x += 1.0
    assert view.tolist() == [1.0, 2.0]


# --- what is refused ---


def test_backward_from_a_tensor_with_several_elements_is_refused() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(GradientError) as caught:
        (x * x).backward()
    assert caught.value.problem == "the tensor is not a real scalar"
    assert caught.value.got == "x: f32[2]"
    assert "x.sum().backward()" in caught.value.fix
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_backward_from_a_complex_scalar_is_refused() -> None:
    x = leaf(1.0 + 2.0j)
    with pytest.raises(GradientError, match="not a real scalar"):
        (x * x).backward()


def test_backward_from_a_constant_is_refused() -> None:
    with pytest.raises(GradientError) as caught:
        wf.tensor(1.0).backward()
    assert "requires_grad=True" in caught.value.fix


def test_a_weight_of_another_shape_is_refused() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(ShapeError) as caught:
        (x * x).backward(wf.ones(3))
    assert caught.value.expected == "gradient: f32[2]"
    assert caught.value.got == "gradient: f32[3]"


def test_a_weight_that_is_no_tensor_is_refused() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises((ArgumentTypeError, ShapeError)):
        (x * x).backward([1.0, 1.0])


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_integers_have_no_gradients(dtype: str) -> None:
    with pytest.raises(GradientError) as caught:
        wf.tensor([1, 0], dtype=dtype, requires_grad=True)
    assert "complex dtype" in caught.value.expected
    assert "float" in caught.value.fix
    with pytest.raises(GradientError):
        wf.tensor([1, 0], dtype=dtype).requires_grad_()


def test_an_intermediate_cannot_be_told_not_to_require_a_gradient() -> None:
    x = leaf(1.0)
    y = x * 2.0
    with pytest.raises(GradientError) as caught:
        y.requires_grad = False
    assert "x.detach()" in caught.value.fix


def test_a_wrong_gradient_cannot_be_assigned() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(ShapeError):
        x.grad = wf.ones(3)
    with pytest.raises(ArgumentTypeError):
        x.grad = 5.0


def test_complex_gradients_point_uphill() -> None:
    """|z|² grows fastest along z: its gradient is 2 z."""
    z = leaf(3.0 + 4.0j)
    (wf.abs(z) ** 2).backward()
    assert z.grad.item() == pytest.approx(6.0 + 8.0j)


def test_backward_inside_a_traced_function_is_traced() -> None:
    def step(w: wf.Tensor) -> wf.Tensor:
        inner = w.detach().requires_grad_()
        (inner * inner).sum().backward()
        return w - 0.1 * inner.grad

    graph = wf.ir.trace(step, wf.spec("float32", (2,)))
    (found,) = wf.ir.interpret(graph, wf.tensor([1.0, 2.0]))
    np.testing.assert_allclose(found.numpy(), [0.8, 1.6], rtol=1e-6)


def test_backward_inside_vmap_gives_a_gradient_per_example() -> None:
    def gradient(x: wf.Tensor) -> wf.Tensor:
        inner = x.detach().requires_grad_()
        (inner**3).backward()
        return inner.grad

    assert wf.vmap(gradient)(wf.tensor([1.0, 2.0])).tolist() == [3.0, 12.0]


def test_the_tape_holds_one_node_per_operation() -> None:
    x = leaf(1.0)
    y = wf.sin(x) * x + x
    assert len(reachable_nodes([y._node])) == 4  # sin, multiply, add, and the leaf
