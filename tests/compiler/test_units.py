"""Eager work in compiled units: the numbers, tapes, errors and state of work by reference."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.function.taped import split_graph, unit_executable
from weft.compiler.function.units import OWN_SIZES, _compilations
from weft.compiler.targets.cpu.runtime.executable import SHARED, CpuExecutable
from weft.eager import unit
from weft.ir import eager, graph
from weft.runtime.memory import Lifetime, plan

F = wf.nn.functional

N = 256
LEAST = N // eager.COMPOSED
"""The elements from which units run compiled."""


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """Units at their usual sizes, whatever the environment says."""
    with wf.settings.changed(eager="native", eager_elements=N):
        yield


@contextmanager
def compiled_calls() -> Iterator[list[str]]:
    """The names of the functions that get a compiled form inside."""
    names: list[str] = []
    before = eager.COMPILE[0]

    def noted(function: Callable[..., Any], *call: Any) -> Any:
        names.append(function.__name__)
        return before(function, *call)

    eager.COMPILE[0] = noted
    try:
        yield names
    finally:
        eager.COMPILE[0] = before


@contextmanager
def observed_runs() -> Iterator[list[Any]]:
    """What `Forms.find` finds for the calls inside, None for those by reference."""
    found: list[Any] = []
    find = eager.Forms.find

    def noted(self: Any, args: Any, kwargs: Any) -> Any:
        result = find(self, args, kwargs)
        found.append(result[0])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager.Forms, "find", noted)
        yield found


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def both_ways(
    f: Callable[..., Any], *arrays: np.ndarray[Any, Any]
) -> list[list[np.ndarray[Any, Any]]]:
    """The result and all gradients of a function: by units of any size, and by reference."""
    found = []
    for way in ("native", "reference"):
        with wf.settings.changed(eager=way, eager_elements=1):
            tensors = [wf.tensor(a, requires_grad=a.dtype == np.float32) for a in arrays]
            result = f(*tensors)
            (result * wf.tensor(random(*result.shape, seed=9))).sum().backward()
            gradients = [t.grad.numpy() for t in tensors if t.grad is not None]
            found.append([result.detach().numpy(), *gradients])
    return found


LABELS = np.arange(12) % 5
CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray[Any, Any], ...]]] = {
    "gelu": (F.gelu, (random(3, 7),)),
    "silu": (F.silu, (random(3, 7),)),
    "relu": (F.relu, (random(3, 7),)),
    "softmax": (lambda x: F.softmax(x, axis=0), (random(3, 7),)),
    "log_softmax": (wf.log_softmax, (random(3, 7),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, 7, w, b), (random(3, 7), random(7), random(7))),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (random(4, 3, 5), random(3), random(3)),
    ),
    "group_norm": (lambda x: F.group_norm(x, 2), (random(2, 4, 3),)),
    "linear": (F.linear, (random(3, 7), random(5, 7), random(5))),
    "one row": (F.linear, (random(7), random(5, 7))),
    "matmul": (lambda a, b: a @ b, (random(2, 3, 4), random(4, 5))),
    "einsum": (lambda a, b: wf.einsum("ij,kj->ik", a, b), (random(3, 4), random(5, 4))),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (random(2, 3, 6, 6), random(4, 3, 3, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (random(2, 3, 6, 6),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (random(2, 3, 6, 6),)),
    "cross_entropy": (F.cross_entropy, (random(12, 5), LABELS)),
    "embedding": (lambda w, i: F.embedding(i, w), (random(5, 3), LABELS)),
    "indices of several axes": (lambda x, i: x[i, :, i], (random(5, 3, 6), LABELS)),
    "an index of the last axis": (lambda x, i: x[..., i], (random(2, 3, 5), LABELS)),
    "an index beside a number": (lambda x, i: x[i, -1], (random(5, 3, 2), LABELS)),
    "an index beside a new axis": (
        lambda x, i: x[:, None, i[:, None], i],
        (random(2, 5, 5), LABELS),
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True),
        (random(2, 2, 6, 4), random(2, 2, 6, 4, seed=1), random(2, 2, 6, 4, seed=2)),
    ),
    "the same tensor thrice": (
        lambda x: F.scaled_dot_product_attention(x, x, x),
        (random(2, 2, 6, 4),),
    ),
    "mse": (F.mse_loss, (random(3, 4), random(3, 4, seed=1))),
    "no rows": (F.gelu, (random(0, 7),)),
    "no columns": (lambda a, b: a @ b, (random(3, 0), random(0, 5))),
    "a view": (lambda x: F.gelu(x.T[1:]), (random(3, 7),)),
    "primitives": (lambda x: wf.tanh(x) * wf.exp(-x) / (1 + x * x), (random(3, 7),)),
    "split": (
        lambda x: sum(a * (i + 1) for i, a in enumerate(wf.split(x, 3, axis=1))),
        (random(4, 6),),
    ),
    "split unevenly": (
        lambda x: wf.concat([a.sum(axis=1) for a in wf.split(x, [1, 3], axis=1)[1:]]),
        (random(4, 6),),
    ),
    "chunk": (lambda x: wf.gelu(wf.chunk(x, 4, axis=1)[2]), (random(4, 6),)),
    "heads": (
        lambda x: F.scaled_dot_product_attention(
            *[
                wf.permute_dims(a.reshape(2, 5, 3, 4), (0, 2, 1, 3))
                for a in wf.split(x, 3, axis=-1)
            ],
            causal=True,
        ),
        (random(2, 5, 36),),
    ),
    "transposed": (lambda x, w: F.softmax(x.T @ w.T) @ w, (random(6, 4), random(5, 6))),
    "std": (lambda x: wf.std(x, axis=0), (random(5, 3),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), (random(1, 2, 3, 3),)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_unit_gives_the_numbers_and_gradients_of_the_reference(name: str) -> None:
    f, arrays = CASES[name]
    native, reference = both_ways(f, *arrays)
    assert len(native) == len(reference)
    for found, expected in zip(native, reference, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_an_lstm_agrees_and_its_states_too() -> None:
    def last(x: wf.Tensor, w: wf.Tensor, h: wf.Tensor) -> wf.Tensor:
        y, (hidden, cell) = F.recurrent_layer("lstm", x, (h, h), (w, w, None, None))
        return y.sum() + hidden.sum() * 2 + cell.sum()

    native, reference = both_ways(last, random(4, 2, 3), random(12, 3), random(2, 3))
    for found, expected in zip(native, reference, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [LEAST - 1, LEAST, LEAST + 1])
def test_which_way_a_call_goes_depends_on_its_size(size: int) -> None:
    @unit
    def shifted(x: wf.Tensor) -> wf.Tensor:
        return wf.sin(x) + 1

    with compiled_calls() as names:
        shifted(wf.ones(size))
    assert ("shifted" in names) == (size >= LEAST)


def test_a_small_call_that_is_known_goes_another_way_once_it_counts_as_large() -> None:
    @unit
    def double(x: wf.Tensor) -> wf.Tensor:
        return x + x

    x = wf.asarray(random(3, 2))
    for few, is_compiled in ((100, False), (1, True), (100, False), (48, True), (49, False)):
        with wf.settings.changed(eager_elements=few), observed_runs() as runs:
            for _ in range(3):
                np.testing.assert_array_equal(double(x).numpy(), 2 * x.numpy())
        assert (runs == [None] * 3) is not is_compiled


def test_nothing_is_compiled_by_reference_inside_traces_and_under_observers() -> None:
    x = wf.ones((64, 64))
    with compiled_calls() as names:
        with wf.settings.changed(eager="reference"):
            F.gelu(x)
        with wf.debug.nans():
            F.mish(x)
        wf.vmap(F.mish)(x)
        wf.jvp(F.mish, [x], [x])
        wf.ir.trace(F.mish, wf.spec("float32", (64, 64)))
    assert names == []


def test_settings_that_are_equal_but_not_the_same_have_forms_of_their_own() -> None:
    @unit
    def signed(x: wf.Tensor, zero: Any) -> wf.Tensor:
        return x * 0 + (1.0 if str(zero) == "0.0" else 2.0 if zero is True else 3.0)

    x = wf.ones(N)
    found = [signed(x, zero)[0].item() for zero in (0.0, -0.0, True, 1, 1.0, 0.0)]
    assert found == [1.0, 3.0, 2.0, 3.0, 3.0, 1.0]


def test_tensors_inside_of_tuples_are_arguments() -> None:
    @unit
    def total(pair: tuple[wf.Tensor, list[wf.Tensor]]) -> wf.Tensor:
        return pair[0] + 2 * pair[1][0]

    x, y = wf.ones(N), wf.full((N,), 3.0)
    assert total((x, [y]))[0].item() == 7.0
    assert total((y, [x]))[0].item() == 5.0


def test_a_second_derivative_goes_through_a_unit() -> None:
    found = []
    for way in ("native", "reference"):
        with wf.settings.changed(eager=way, eager_elements=1):
            x = wf.tensor([0.3, -1.2], requires_grad=True)
            F.gelu(x).sum().backward(create_graph=True)
            first = x.grad
            x.grad = None
            (first * first).sum().backward()
            found.append(x.grad.numpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_derivative_that_is_recorded_again_writes_no_graph_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = wf.tensor(random(8, 16), requires_grad=True), wf.tensor(random(4, 16))
    written: list[Any] = []
    structure = graph.structure
    monkeypatch.setattr(graph, "structure", lambda it: written.append(it) or structure(it))
    for is_known in (False, True):
        written.clear()
        (slope,) = wf.gradients(wf.tanh(F.linear(x, w)).sum(), [x])
        (slope**2).sum().backward()
        assert is_known != bool(written)


def test_a_second_derivative_goes_past_what_was_let_go() -> None:
    key = wf.random.key(3)
    for rows in (64, 80, 96):  # from the second on, rows are a symbol
        x = wf.tensor(random(rows, 256), requires_grad=True)
        y = wf.random.dropout(x * x, 0.5, key=key)
        y.sum().backward(create_graph=True)
        first, x.grad = x.grad, None
        first.sum().backward()
        expected = np.where(y.detach().numpy() == 0, 0.0, 4.0)
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


def test_gradients_of_functions_nest_over_units() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return F.softmax(x * x).sum() + F.gelu(x).sum()

    x = wf.tensor(random(5))
    with wf.settings.changed(eager_elements=1):
        found = wf.grad(lambda x: wf.grad(f)(x).sum())(x)
    with wf.settings.changed(eager="reference"):
        expected = wf.grad(lambda x: wf.grad(f)(x).sum())(x)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)


def test_hooks_see_gradients_between_units() -> None:
    x = wf.tensor(random(N), requires_grad=True)
    y = F.gelu(x)
    seen: list[wf.Tensor] = []

    def double(gradient: wf.Tensor) -> wf.Tensor:
        seen.append(gradient)
        return gradient * 2

    y.register_hook(double)
    F.silu(y).sum().backward()
    doubled = x.grad
    x.grad = None
    F.silu(F.gelu(x)).sum().backward()
    assert len(seen) == 1
    np.testing.assert_allclose(doubled.numpy(), 2 * x.grad.numpy(), rtol=1e-6)


def test_a_tape_is_used_once_unless_it_is_retained() -> None:
    x = wf.tensor(random(N), requires_grad=True)
    y = F.gelu(x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy()
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * first)
    with pytest.raises(wf.GradientError, match="backward"):
        y.backward()


def test_what_is_written_after_a_call_does_not_change_its_derivative() -> None:
    x = wf.tensor(random(N), requires_grad=True)
    w = wf.tensor(random(N, seed=1))
    y = F.mse_loss(F.gelu(x), w)
    w.zero_()
    y.backward()
    native = x.grad.numpy()
    with wf.settings.changed(eager="reference"):
        z = wf.tensor(random(N), requires_grad=True)
        F.mse_loss(F.gelu(z), wf.tensor(random(N, seed=1))).backward()
    np.testing.assert_allclose(native, z.grad.numpy(), rtol=1e-5, atol=1e-8)


def test_inputs_that_no_derivative_needs_are_let_go() -> None:
    x = wf.tensor(random(256, 256), requires_grad=True)
    before = x * 1.0
    held = weakref.ref(before._value)
    after = wf.random.dropout(before, 0.5)
    del before
    gc.collect()
    assert held() is None
    after.sum().backward()
    assert x.grad is not None


def test_errors_are_those_of_the_reference() -> None:
    x, w = wf.ones((64, 32)), wf.ones((5, 31))
    with pytest.raises(wf.ShapeError, match="as many features") as caught:
        F.linear(x, w)
    assert "test_units.py" in str(caught.value)
    labels = wf.full((64,), 40, dtype=wf.int64)
    with pytest.raises(wf.BoundsError, match="the label 40 at 0 is out of range"):
        F.cross_entropy(x, labels)
    F.cross_entropy(x, labels - 10)
    with pytest.raises(wf.BoundsError, match="the label 40 at 0 is out of range"):
        F.cross_entropy(x, labels)


def test_running_statistics_move_once() -> None:
    x = wf.tensor(random(16, 8, 16))
    native, reference = wf.nn.BatchNorm1d(8), wf.nn.BatchNorm1d(8)
    native(x)
    with wf.settings.changed(eager="reference"):
        reference(x)
    np.testing.assert_allclose(native.running_mean.numpy(), reference.running_mean.numpy(), 1e-5)
    np.testing.assert_allclose(native.running_var.numpy(), reference.running_var.numpy(), 1e-5)


def test_statistics_that_are_parts_of_a_tensor_are_refused_as_by_reference() -> None:
    x, both = wf.tensor(random(16, 8, 16)), wf.zeros((2, 8))
    F.batch_norm(x, wf.zeros(8), wf.ones(8), training=True)  # which compiles it
    with pytest.raises(wf.ArgumentError, match="part"):
        F.batch_norm(x, both[0], both[1], training=True)


def test_dropout_draws_the_same_bits_either_way() -> None:
    x = wf.ones((64, 64))
    found = []
    for way in ("native", "reference"):
        wf.random.seed(5)
        with wf.settings.changed(eager=way):
            found += [(F.dropout(x, 0.3) + F.dropout(x, 0.3)).numpy()]
    np.testing.assert_array_equal(*found)


def test_few_programs_serve_many_sizes() -> None:
    @unit
    def scaled(x: wf.Tensor) -> wf.Tensor:
        return wf.softmax(x * 2)

    with compiled_calls() as names:
        for rows in range(40, 60):
            expected = np.exp(2.0) / (32 * np.exp(2.0))
            np.testing.assert_allclose(scaled(wf.ones((rows, 32))).numpy(), expected, rtol=1e-6)
    assert names.count("scaled") == 20
    assert 1 <= len(_compilations(scaled.__wrapped__, ()).compilations) <= OWN_SIZES + 2  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_join_is_compiled_where_it_is_made_again() -> None:
    def join(count: int) -> wf.Tensor:
        return wf.concat((wf.ones((300, count)), wf.zeros((300, 100))), axis=1)

    with compiled_calls() as names:
        for count in range(150, 160):  # as the keys of a model that writes grow
            join(count)
        assert names == []
        found = [join(160) for _ in range(4)]
        assert len(names) == 1
    assert all((each[:, :160] == 1).all() and (each[:, 160:] == 0).all() for each in found)


def test_a_function_of_ever_new_settings_goes_on_by_reference() -> None:
    @unit
    def offset(x: wf.Tensor, by: float) -> wf.Tensor:
        return x + by

    x = wf.ones(N)
    assert [offset(x, float(k))[0].item() for k in range(80)] == [k + 1.0 for k in range(80)]
    assert len(_compilations(offset.__wrapped__, ()).compilations) == eager.SETTINGS  # type: ignore[attr-defined]


def test_a_unit_of_the_users_reads_what_it_closes_over_at_each_call() -> None:
    factor, options = 2.0, SimpleNamespace(power=1.0)

    @unit
    def scaled(x: wf.Tensor, slope: float = 1.0) -> wf.Tensor:
        return wf.exp(x * slope * 0) * factor**options.power

    x = wf.ones(100).requires_grad_()
    for factor, options.power in ((2.0, 1.0), (5.0, 1.0), (5.0, 2.0), (2.0, 1.0)):
        for _ in range(3):
            (scaled(x) * x).sum().backward()
            assert x.grad[0].item() == factor**options.power
            x.grad = None


@pytest.mark.slow
def test_threads_share_units() -> None:
    faults: list[str] = []

    def work(number: int) -> None:
        for rows in range(33, 45):
            x = wf.tensor(random(rows + number, 64, seed=rows), requires_grad=True)
            F.layer_norm(F.gelu(x), 64).square().sum().backward()
            with wf.settings.changed(eager="reference"):
                y = wf.tensor(random(rows + number, 64, seed=rows), requires_grad=True)
                F.layer_norm(F.gelu(y), 64).square().sum().backward()
            if not np.allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-3, atol=1e-5):
                faults.append(f"{number}, {rows}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_cotangent_that_is_a_view_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One native call, and not an attempt and then the steps of a run with arrays to copy."""
    stepwise: list[Any] = []
    original = CpuExecutable._run_by_steps

    def noted(program: CpuExecutable, *given: Any) -> Any:
        stepwise.append(program)
        return original(program, *given)

    monkeypatch.setattr(CpuExecutable, "_run_by_steps", noted)
    cotangent = random(48, 32, seed=1)
    found = []
    for way in ("native", "native", "reference"):
        with wf.settings.changed(eager=way):
            x = wf.tensor(random(32, 48)).requires_grad_()
            wf.permute_dims(F.gelu(x), (1, 0)).backward(wf.tensor(cotangent))
            assert x.grad is not None
            found.append(x.grad.numpy())
    assert stepwise == []
    np.testing.assert_allclose(found[1], found[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Lion"])
def test_an_optimiser_updates_as_by_reference(name: str) -> None:
    found = []
    for way in ("native", "reference"):
        with wf.settings.changed(eager=way):
            net = wf.nn.Linear(64, 32)
            with wf.no_grad():
                net.weight.copy_(wf.tensor(random(32, 64)))
                net.bias.copy_(wf.tensor(random(32)))
            optimizer = getattr(wf.optim, name)(net.parameters(), lr=0.01)
            for step in range(4):
                net(wf.tensor(random(16, 64, seed=step))).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append(net.weight.detach().numpy())
    np.testing.assert_allclose(*found, rtol=2e-4, atol=2e-5)


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    used, unused = wf.nn.Linear(64, 64), wf.nn.Linear(64, 64)
    before = unused.weight.detach().numpy().copy()
    optimizer = wf.optim.Adam([*used.parameters(), *unused.parameters()], lr=0.1)
    used(wf.ones((4, 64))).sum().backward()
    optimizer.step()
    np.testing.assert_array_equal(unused.weight.detach().numpy(), before)


@pytest.mark.parametrize(
    ("f", "types", "saved"),
    [
        (lambda x: F.gelu(x), [(64, 64)], []),
        (lambda x, w: F.linear(x, w), [(8, 64), (32, 64)], []),
        (lambda x: wf.softmax(x), [(8, 64)], ["f32[8]", "f32[8]"]),
    ],
    ids=["gelu", "linear", "softmax"],
)
def test_little_is_saved_for_the_way_back(
    f: Callable[..., Any], types: list[tuple[int, ...]], saved: list[str]
) -> None:
    graph = wf.ir.trace(f, *[wf.spec("float32", shape) for shape in types])
    halves = split_graph(graph, (True,) * len(types))
    assert [str(kind) for kind in halves.forward.output_types[1:]] == saved


def test_the_way_back_over_a_recurrent_layer_multiplies_nothing_again() -> None:
    layer = wf.nn.LSTM(8, 8)
    weights = {name: value.detach() for name, value in layer.named_parameters()}

    def outputs(x: wf.Tensor, *values: wf.Tensor) -> wf.Tensor:
        return wf.functional_call(layer, dict(zip(weights, values, strict=True)), x)[0]

    graph = wf.ir.trace(outputs, wf.spec("float32", (5, 4, 8)), *weights.values())
    halves = split_graph(graph, (True,) * len(graph.inputs))
    (loop,) = [node for node in halves.backward.nodes if node.primitive.name == "scan"]
    inside = [node.primitive.name for node in loop.params["graph"].nodes]
    behind = [node.primitive.name for node in halves.backward.nodes]
    # the cotangent of the hidden state; those of x and of both weights
    assert (inside.count("dot"), behind.count("dot")) == (1, 3)


def test_units_of_a_step_share_their_memory() -> None:
    SHARED.release()
    x = wf.tensor(random(4, 8, 24, 24), requires_grad=True)
    for size in (3, 5, 7):
        wf.nn.Conv2d(8, 8, size, padding=size // 2)(x).sum().backward()
    (block,) = SHARED._free
    assert block.size > 0


def test_a_program_inside_of_another_has_memory_of_its_own() -> None:
    graph = wf.ir.trace(lambda x: wf.softmax(x @ x) @ x, wf.spec("float32", (64, 64)))
    program, x = unit_executable(graph), random(64, 64)
    (expected,) = program.run([x])
    outer = SHARED.take(plan([Lifetime("x", 1, 0, 0)]))  # as a program that is being run has it
    outer.memory[:] = 7
    (found,) = program.run([x])
    np.testing.assert_array_equal(found, expected)
    assert (outer.memory == 7).all()
    SHARED.give(outer)


def test_a_square_tensor_and_its_transpose_have_programs_of_their_own() -> None:
    x = wf.tensor(random(32, 32))
    for given in (x, x.T, x, x.T):
        found = F.softmax(given).numpy()
        with wf.settings.changed(eager="reference"):
            np.testing.assert_allclose(found, F.softmax(given).numpy(), rtol=1e-5)


def test_statistics_inside_of_a_checkpoint_move_once() -> None:
    x, norm = wf.tensor(random(16, 8, 16), requires_grad=True), wf.nn.BatchNorm1d(8)
    wf.checkpoint(norm)(x).square().sum().backward()
    expected = 0.1 * x.detach().numpy().mean(axis=(0, 2))
    np.testing.assert_allclose(norm.running_mean.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seen", [[20], [100, 30, 20], [16, 64]], ids=str)
def test_bits_do_not_depend_on_the_sizes_that_were_seen_before(
    rng: np.random.Generator, seen: list[int]
) -> None:
    """A run that is resumed at a short batch sees that size first."""
    x = rng.standard_normal((100, 17)).astype(np.float32)

    def after(sizes: list[int]) -> tuple[bytes, bytes]:
        @unit
        def scaled(x: wf.Tensor) -> wf.Tensor:  # programs of its own, as in a new process
            return wf.softmax(x, axis=0) * x.sum(axis=0)

        for rows in [*sizes, 64]:
            given = wf.tensor(x[:rows], requires_grad=True)
            result = scaled(given * 1)  # sizes of leaves are those of weights, which do not change
            (result * result).sum().backward()
        assert given.grad is not None
        return result.detach().numpy().tobytes(), given.grad.numpy().tobytes()

    assert after(seen) == after([])
