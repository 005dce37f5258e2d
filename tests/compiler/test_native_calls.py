"""Calls that native code finds and runs: with the bits of Python's way, and nothing else."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.hammer import at_once, restless, times

import weft as wf
from weft.compiler.targets.cpu.runtime import native_calls
from weft.compiler.targets.cpu.runtime.entry_points import entries
from weft.core.errors import BoundsError
from weft.core.wrong_calls import RECALLS
from weft.ir.eager import unit
from weft.ir.primitive import PRIMITIVES

Recall = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    entries() is None or wf.settings.eager != "native", reason="nothing native looks at objects"
)


@pytest.fixture(autouse=True)
def from_any_size_on() -> Iterator[None]:
    before = wf.settings.eager_elements
    wf.settings.eager_elements = 1
    try:
        yield
    finally:
        wf.settings.eager_elements = before


def scaled(x: Any, y: Any, scale: Any = 2, *, shift: float = 0.5) -> wf.Tensor:
    return wf.tanh(x) * y * scale + shift


def native_form(f: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Recall, Recall]:
    """A function as a unit that was called with some arguments, and what native code knows."""
    function = unit(f)
    for _ in range(3):
        function(*args, **kwargs)
    recall = RECALLS[function].native.recall  # type: ignore[union-attr]
    assert recall is not None
    return function, recall


def tensors(*shapes: tuple[int, ...], dtype: str = "float32") -> list[wf.Tensor]:
    rng = np.random.default_rng(4)
    return [wf.tensor(rng.standard_normal(shape), dtype=dtype) for shape in shapes]


def bits(x: wf.Tensor) -> tuple[Any, ...]:
    return x.shape, x.dtype, x.detach().numpy().tobytes()


def test_a_call_that_was_made_before_has_the_bits_of_python_s_way() -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        x, y = tensors((3, 40), (3, 40), dtype=dtype)
        function, recall = native_form(scaled, x, y, 3)
        x, y = x * 2, y - 1
        with wf.settings.changed(fastcall=False):
            expected = function(x, y, 3)
        found = recall(x, y, 3)
        assert type(found) is wf.Tensor
        assert bits(found) == bits(expected)
        assert not found.requires_grad
        assert found.grad is None
        assert bits(found + 0) == bits(expected)


def test_anything_else_than_what_was_given_goes_python_s_way() -> None:
    x, y = tensors((4, 40), (4, 40))
    _, recall = native_form(scaled, x, y, 3, shift=0.25)
    shift = 0.25
    known = {"shift": shift}
    assert recall(x, y, 3) is None
    assert recall(x, y, 3, scale=1) is None
    assert recall(x, y, True, **known) is None
    assert recall(x, y, 3.0, **known) is None
    assert recall(x, y, 4, **known) is None
    assert recall(x, 1.0, 3, **known) is None
    assert recall(x, y.numpy(), 3, **known) is None
    assert recall(x[:2], y[:2], 3, **known) is None
    assert recall(x[:, :20], y, 3, **known) is None
    assert recall(x.T, y.T, 3, **known) is None
    assert recall(x.reshape(2, 80), y.reshape(2, 80), 3, **known) is None
    assert recall(x.reshape(-1), y.reshape(-1), 3, **known) is None
    assert recall(x.astype("float64"), y, 3, **known) is None
    assert recall(x.astype("int32"), y.astype("int32"), 3, **known) is None
    assert recall() is None


def test_an_argument_counts_with_its_name() -> None:
    x, y = tensors((4, 40), (4, 40))
    number = 3.5
    function, recall = native_form(scaled, x, y, shift=number)
    assert bits(recall(x, y, shift=number)) == bits(function(x, y, shift=number))
    assert recall(x, y, scale=number) is None
    assert recall(x, y, number) is None
    assert recall(x, shift=number, y=y) is None


def test_a_truth_value_is_no_number() -> None:
    x, y = tensors((4, 40), (4, 40))
    _, recall = native_form(scaled, x, y, 1)
    assert recall(x, y, 1) is not None
    assert recall(x, y, True) is None


def test_arrays_with_gaps_or_off_their_places_go_python_s_way() -> None:
    x, y = tensors((4, 40), (4, 40))
    function, recall = native_form(scaled, x, y)
    memory = np.zeros(4 * 40 * 4 + 1, np.uint8)
    off = memory[1:].view(np.float32).reshape(4, 40)
    off[...] = x.numpy()
    assert not off.flags.aligned
    gaps = np.zeros((4, 80), np.float32)[:, ::2]
    gaps[...] = x.numpy()
    swapped = x.numpy().astype(">f4")
    for array in (off, gaps, swapped):
        given = wf.ir.tensor.wrap(array)
        assert recall(given, y) is None
    assert bits(function(wf.ir.tensor.wrap(gaps), y)) == bits(recall(x, y))


def test_lists_are_never_known() -> None:
    (x,) = tensors((4, 40))
    axes = [0]
    function = unit(lambda x, axes: wf.sum(wf.exp(x), axis=tuple(axes)))
    for _ in range(4):
        assert function(x, axes).shape == (40,)
    axes[0] = 1
    assert function(x, axes).shape == (4,)
    assert RECALLS[function].native.recall is None  # type: ignore[union-attr]


def unusual(name: str) -> Any:
    return {
        "autocast": lambda: wf.autocast("bfloat16"),
        "settings": lambda: wf.settings.changed(print_precision=3),
        "nans": wf.debug.nans,
        "profile": wf.tools.profile,
    }[name]()


@pytest.mark.parametrize("name", ["autocast", "settings", "nans", "profile"])
def test_whoever_looks_on_sees_a_call(name: str) -> None:
    x, y = tensors((4, 40), (4, 40))
    _, recall = native_form(scaled, x, y)
    with unusual(name):
        assert recall(x, y) is None
    assert recall(x, y) is not None


@pytest.mark.parametrize("name", ["compiler", "fastcall", "eager", "eager_elements"])
def test_a_setting_that_is_changed_counts(name: str) -> None:
    x, y = tensors((4, 40), (4, 40))
    _, recall = native_form(scaled, x, y)
    before = getattr(wf.settings, name)
    other = {"eager": "reference", "eager_elements": 1 << 20}.get(name, False)
    setattr(wf.settings, name, other)
    try:
        assert recall(x, y) is None
    finally:
        setattr(wf.settings, name, before)
    assert recall(x, y) is not None


def test_in_a_trace_a_checkpoint_or_for_a_user_s_rule_nothing_is_recalled() -> None:
    x, y = tensors((4, 40), (4, 40))
    _, recall = native_form(scaled, x, y)
    seen: list[Any] = []

    def look(z: wf.Tensor) -> wf.Tensor:
        seen.append(recall(x, y))
        return wf.sum(z)

    wf.jit(look)(x)
    wf.vmap(look)(x)
    wf.jvp(look, (x,), (x,))
    wf.checkpoint(look)(x.detach().requires_grad_())
    assert seen
    assert all(each is None for each in seen)


def test_gradients_are_those_of_python_s_way() -> None:
    x, y = tensors((4, 40), (4, 40))
    function, recall = native_form(scaled, x, y)
    w = x.clone().requires_grad_()
    assert recall(w, y) is None  # whose place on the tape is made in Python
    function(w, y).sum().backward()
    with wf.no_grad():
        assert bits(recall(w, y)) == bits(function(x, y))
    expected = wf.grad(lambda x: wf.sum(scaled(x, y)))(x)
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


OPERATIONS: dict[str, Callable[[wf.Tensor, wf.Tensor], wf.Tensor]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "multiply with itself": lambda x, y: x * x,
    "divide": lambda x, y: x / (y * y + 1.0),
    "negative": lambda x, y: -x,
    "exp": lambda x, y: wf.exp(x),
    "where": lambda x, y: wf.where(x > y, x, y),
    "maximum": lambda x, y: wf.maximum(x, y),
    "broadcast": lambda x, y: x + y[0],
    "beside a number": lambda x, y: x * 3.0 - 1.0,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_the_bits_and_gradients_of_the_reference(name: str) -> None:
    f = OPERATIONS[name]
    for _ in range(4):
        x, y = tensors((5, 60), (5, 60))
        found = f(x, y)
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        taped = f(a, b)
        taped.backward(wf.ones(taped.shape))
        with wf.no_grad():
            assert bits(f(a, b)) == bits(found)
            assert f(a, b).is_leaf
        assert bits(taped) == bits(found)
        with wf.settings.changed(eager="reference"):
            assert np.allclose(f(x, y).numpy(), found.numpy(), rtol=1e-5, atol=1e-6)
            c, d = x.clone().requires_grad_(), y.clone().requires_grad_()
            f(c, d).backward(wf.ones(taped.shape))
        for got, wanted in ((a, c), (b, d)):
            assert (got.grad is None) == (wanted.grad is None)
            if wanted.grad is not None:
                assert got.grad is not None
                np.testing.assert_allclose(
                    got.grad.numpy(), wanted.grad.numpy(), rtol=1e-5, atol=1e-6
                )


PUBLIC = [name for name in PRIMITIVES if hasattr(wf, name)]


@pytest.mark.parametrize("name", PUBLIC)
def test_samples_of_every_primitive_have_the_bits_of_python_s_way(name: str) -> None:
    wf.settings.eager_elements = 0  # so that single operations of any size run compiled
    f = getattr(wf, name)
    for sample in PRIMITIVES[name].samples():
        given = [wf.tensor(np.asarray(each)) for each in sample.operands]
        with_gaps = [wf.ir.tensor.wrap(np.asfortranarray(x.numpy())) for x in given]
        for operands in (given, with_gaps):
            try:
                f(*operands, **sample.params)
            except (TypeError, wf.WeftError):  # the function is not called as its primitive is
                continue
            with wf.settings.changed(print_precision=3):  # no setting of these calls
                expected = all_bits(f(*operands, **sample.params))
            for _ in range(4):
                assert all_bits(f(*operands, **sample.params)) == expected


def all_bits(result: Any) -> list[Any]:
    results = result if isinstance(result, tuple | list) else [result]
    return [bits(each) if isinstance(each, wf.Tensor) else each for each in results]


def test_a_compiled_function_of_tensors_is_known_natively() -> None:
    f = wf.jit(lambda x, y, n: x * y + n)
    x, y = tensors((3, 4), (3, 4))
    for _ in range(40):
        expected = f(x, y, 2)
    recall = f._repeated.native
    assert recall is not None
    assert bits(recall(x, y, 2)) == bits(expected)
    assert recall(x, y, 3) is None
    assert recall(x, x, 2) is None  # the same tensor twice is another program
    assert bits(f(x, x, 2)) == bits(x * x + 2)
    w = x.clone().requires_grad_()
    assert recall(w, y, 2) is None
    assert f(w, y, 2).requires_grad
    with wf.no_grad():
        assert recall(x, y, 2) is None  # it may have been traced for gradients
        assert bits(f(x, y, 2)) == bits(expected)


class Net(wf.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = wf.nn.ModuleList([wf.nn.Linear(6, 5), wf.nn.Linear(5, 4)])
        self.scale = 2.0

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        for layer in self.layers:
            x = wf.relu(layer(x))
        return x * self.scale


def change_a_weight(net: Net) -> None:
    net.layers[0].weight = wf.nn.Parameter(net.layers[0].weight * 2)


def write_to_a_weight(net: Net) -> None:
    with wf.no_grad():
        net.layers[1].bias += 1.0


def load_other_weights(net: Net) -> None:
    net.load_state_dict({name: value * 3 for name, value in net.state_dict().items()})


def change_a_number(net: Net) -> None:
    net.scale = 5.0


def change_the_mode(net: Net) -> None:
    net.train(not net.training)


def exchange_layers(net: Net) -> None:
    net.layers = wf.nn.ModuleList([wf.nn.Linear(6, 7), wf.nn.Linear(7, 4)])


def put_a_hook(net: Net) -> None:
    net.layers[0].register_forward_hook(lambda module, args, result: result * 10.0)


def give_gradients(net: Net) -> None:
    net(wf.ones((1, 6))).sum().backward()


def by_another_dictionary(net: Net) -> None:
    net.__dict__ = {**net.__dict__, "scale": 7.0}


CHANGES = [
    change_a_weight, write_to_a_weight, load_other_weights, change_a_number, change_the_mode,
    exchange_layers, put_a_hook, give_gradients, by_another_dictionary,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_is_known_natively_while_it_is_as_it_was(change: Callable[[Net], None]) -> None:
    net = Net()
    f = wf.jit(lambda net, x: net(x))
    (x,) = tensors((1, 6))
    with wf.no_grad():
        for _ in range(60):
            f(net, x)
        recall = f._repeated.native
        assert recall is not None
        assert bits(recall(net, x)) == bits(f(net, x))
        assert recall(net, x[0]) is None
        assert recall(Net(), x) is None
        assert recall(net, net) is None
    assert recall(net, x) is None  # with gradients
    change(net)
    with wf.no_grad():
        expected = net(x)
        found = recall(net, x)
        assert found is None or np.allclose(found.numpy(), expected.numpy(), atol=1e-5)
        for _ in range(60):
            np.testing.assert_allclose(f(net, x).numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_tensor_of_the_network_itself_is_another_call() -> None:
    net = wf.nn.Linear(6, 6, bias=False)
    f = wf.jit(lambda net, x: net(x))
    (x,) = tensors((6,))
    with wf.no_grad():
        for _ in range(60):
            f(net, x)
        recall = f._repeated.native
        assert recall is not None
        assert recall(net, net.weight) is None
        assert recall(net, x) is not None
        shown = wf.ir.tensor.wrap(x._value)  # another handle on the same array is another tensor
        assert bits(recall(net, shown)) == bits(f(net, x))


def test_networks_that_are_gone_are_no_longer_known() -> None:
    f = wf.jit(lambda net, x: net(x))
    (x,) = tensors((1, 6))
    with wf.no_grad():
        for _ in range(native_calls.MOST_CALLS + 4):
            net = wf.nn.Linear(6, 6)
            for _ in range(20):
                f(net, x)
            gone = weakref.ref(net)
            expected = (x @ net.weight.T + net.bias).numpy()
            np.testing.assert_allclose(f(net, x).numpy(), expected, atol=1e-5)
            del net
            gc.collect()
            assert gone() is None
        net = wf.nn.Linear(6, 6)
        for _ in range(60):
            f(net, x)
        recall = f._repeated.native
        assert recall is not None
        assert recall(net, x) is not None


def test_what_was_compiled_for_other_dtypes_is_not_known() -> None:
    f = wf.jit(lambda x, y: x @ y)
    x, y = tensors((4, 4), (4, 4))
    with wf.autocast("bfloat16"):
        for _ in range(40):
            assert f(x, y).dtype is wf.bfloat16
    assert f._repeated.native is None
    assert f(x, y).dtype is wf.float32


def test_a_compiled_function_that_closes_over_something_is_not() -> None:
    factor = 2.0

    def scale(x: wf.Tensor) -> wf.Tensor:
        return x * factor

    f = wf.jit(scale)
    (x,) = tensors((3, 4))
    for _ in range(40):
        f(x)
    assert f._repeated.native is None
    factor = 3.0
    assert bits(f(x)) == bits(x * 3.0)


def test_what_a_kernel_refuses_is_said_as_by_python() -> None:
    function = unit(lambda table, places: wf.take(table, places, axis=0) * 1.0)
    (table,) = tensors((50, 8))
    places = wf.tensor(np.arange(40))
    for _ in range(4):
        function(table, places)
    recall = RECALLS[function].native.recall  # type: ignore[union-attr]
    assert recall is not None
    assert recall(table, places) is not None
    bad = wf.tensor(np.arange(40) + 11)
    for _ in range(3):
        assert recall(table, bad) is None
        with pytest.raises(BoundsError):
            function(table, bad)
    assert bits(recall(table, places)) == bits(table[:40])


def test_nothing_is_held_or_lost_by_a_call() -> None:
    x, y = tensors((8, 40), (8, 40))
    _, recall = native_form(scaled, x, y)
    held = [x._value, y._value, x._value.dtype, None]
    recall(x, y)
    gc.collect()
    before = [sys.getrefcount(each) for each in held]
    for _ in range(1000):
        assert recall(x, y) is not None
        assert recall(x, y, 7) is None
    gc.collect()
    after = [sys.getrefcount(each) for each in held]
    assert [abs(b - a) < 100 for a, b in zip(before, after, strict=True)] == [True] * 4
    result = recall(x, y)
    counts = sys.getrefcount(result), sys.getrefcount(result._value)
    assert counts == (2, 2)
    assert result._value.flags.owndata


def test_workspace_is_freed_and_large_programs_go_python_s_way() -> None:
    def in_steps(x: wf.Tensor) -> wf.Tensor:
        return wf.cumulative_sum(wf.sort(x, axis=1), axis=0)

    (x,) = tensors((16, 64))
    function, recall = native_form(in_steps, x)
    for _ in range(200):
        assert bits(recall(x)) == bits(function(x))
    large = native_calls.LARGEST_WORKSPACE // 4
    unknown = unit(in_steps)
    (x,) = tensors((2, large))
    for _ in range(3):
        unknown(x)
    assert RECALLS[unknown].native.recall is None  # type: ignore[union-attr]


def test_threads_share_what_is_known() -> None:
    def read_late(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.cumulative_sum(wf.sort(x, axis=1), axis=0) * y

    x, y = tensors((128, 256), (128, 256))  # so that several are at work at once
    function, recall = native_form(read_late, x, y)
    operands = [(x * n, y + n) for n in range(4)]
    expected = [bits(function(a, b)) for a, b in operands]
    found: list[int] = []

    def work(n: int) -> Callable[[], None]:
        def run() -> None:
            a, b = operands[n]
            for _ in range(times(100)):
                made = recall(a, b)
                if made is not None:
                    found.append(n)
                assert bits(function(a, b) if made is None else made) == expected[n]

        return run

    with restless():
        at_once(*map(work, range(4)))
    assert found  # in one thread at a time; the others go Python's way


def test_a_tensor_may_be_rebound_while_it_is_read() -> None:
    (x,) = tensors((256, 256))
    function, recall = native_form(lambda x: wf.exp(wf.tanh(x)), x)
    one, two = x, x * 2
    expected = {bits(function(one)), bits(function(two))}
    handle = one.clone()
    is_over = threading.Event()

    def rebind() -> None:
        while not is_over.is_set():
            handle._value = one._value.copy()
            handle._value = two._value.copy()

    def read() -> None:
        try:
            for _ in range(times(200)):
                made = recall(handle)
                assert made is None or bits(made) in expected
        finally:
            is_over.set()

    with restless():
        at_once(rebind, read)


def test_more_calls_than_are_known_are_right_all_the_same() -> None:
    function = unit(lambda x, n: wf.exp(x) * n)
    (x,) = tensors((3, 40))
    for _ in range(3):
        for n in range(native_calls.MOST_CALLS + 8):
            assert bits(function(x, n)) == bits(wf.exp(x) * n)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_what_a_signal_s_handler_raises_in_a_long_call_is_raised() -> None:
    def long(x: wf.Tensor) -> wf.Tensor:
        for _ in range(40):
            x = wf.lgamma(wf.abs(x) + 1.5)
        return x

    (x,) = tensors((1 << 19,))
    _, recall = native_form(long, x)
    started = time.perf_counter()
    assert recall(x) is not None
    seconds = time.perf_counter() - started

    def stop(*given: Any) -> None:
        raise ZeroDivisionError("now")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(ZeroDivisionError):
            signal.setitimer(signal.ITIMER_REAL, seconds / 4)
            for _ in range(100):
                recall(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert recall(x) is not None
