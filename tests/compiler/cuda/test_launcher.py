"""Records of native runs, and eager calls that are found again, on a card in the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from random import Random
from threading import Thread, current_thread
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import check_threads, numbers
from tests.compiler.cuda.host_card import HostCard, host_card

import weft as wf
from weft.compiler.targets.cuda import binding as bindings
from weft.compiler.targets.cuda import bound_program
from weft.compiler.targets.cuda.array import (
    CudaArray,
    array_kind,
    compute_stream,
    new_array,
)
from weft.compiler.targets.cuda.bound_program import FEW_LAUNCHES, QUICK_LAUNCHES, BoundProgram
from weft.compiler.targets.cuda.device import RUN_LOCK, Stream, hold_quick_calls
from weft.compiler.targets.cuda.graphs import Span, dependencies
from weft.compiler.targets.cuda.launcher import (
    FAULT,
    NativeRun,
    Record,
    check_fault,
    copy_bytes,
    encode_map,
    fill_bytes,
    launch_kernel,
    merge_runs,
    set_cell,
)
from weft.core.errors import DeviceError, OutOfMemoryError
from weft.ir.elsewhere import key_elsewhere
from weft.ir.tensor import wrap

Array = np.ndarray[Any, Any]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as card:
        yield card
        card.results.clear()
        card.check_fences()


def cell(number: int) -> Array:
    return np.array([number], np.int64)


def at(array: Array) -> int:
    return int(array.ctypes.data)


def run(*records: Record) -> NativeRun:
    return NativeRun(compute_stream(0), records)


def on_card(array: Array) -> CudaArray:
    value: CudaArray = wf.asarray(array).to("cuda")._value
    return value


def test_a_cell_is_set_to_another_cells_number_and_an_offset(card: HostCard) -> None:
    source, target = cell(1 << 62), cell(0)
    run(set_cell(at(target), at(source), -5))()
    assert int(target[0]) == (1 << 62) - 5


def test_bytes_are_copied_and_filled_where_cells_say(card: HostCard) -> None:
    a, b = on_card(np.arange(6, dtype=np.float32)), on_card(np.zeros(6, np.float32))
    first, second = cell(a.pointer), cell(b.pointer)
    run(copy_bytes(at(second), at(first), 16), fill_bytes(at(first), 0, 8))()
    assert b.to_host().tolist() == [0, 1, 2, 3, 0, 0]
    assert a.to_host().tolist() == [0, 0, 2, 3, 4, 5]


def test_what_lies_where_it_is_copied_to_is_not_copied(card: HostCard) -> None:
    place = cell(on_card(np.ones(4, np.float32)).pointer)
    card.calls.clear()
    run(copy_bytes(at(place), at(place), 16))()
    assert card.names() == []


def test_a_tensor_map_is_encoded_when_its_value_has_moved(card: HostCard) -> None:
    values = [on_card(numbers(8, 8)) for _ in range(2)]
    value, encoded = cell(values[0].pointer), cell(-1)
    storage = (ctypes.c_ubyte * 256)()
    sizes, strides = np.array([8, 8], np.uint64), np.array([32], np.uint64)
    box = np.array([8, 8], np.uint32)
    arguments = np.array(
        [ctypes.addressof(storage), 7, 2, at(sizes), at(strides), at(box), at(box), 0, 3, 2, 0],
        np.int64,
    )
    refresh = run(encode_map(at(value), at(encoded), at(arguments)))
    card.calls.clear()
    refresh()
    refresh()
    assert card.names() == ["cuTensorMapEncodeTiled"]
    assert int(encoded[0]) == int(value[0])
    value[0] = values[1].pointer
    refresh()
    assert len(card.names()) == 2
    given = card.calls[-1][1]
    assert given[1:4] == (7, 2, int(value[0]))
    assert given[8:] == (0, 3, 2, 0)


def test_a_fault_ends_a_run_before_what_comes_behind_it(card: HostCard) -> None:
    fault, source, target = cell(0), cell(3), cell(0)
    checked = run(check_fault(at(fault)), set_cell(at(target), at(source)))
    assert checked.call(checked.address) == 0
    assert int(target[0]) == 3
    fault[0], target[0] = 1, 0
    assert checked.call(checked.address) == FAULT
    assert int(target[0]) == 0


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (launch_kernel(7, 4, 256, 0, 0), "cuLaunchKernel"),
        (fill_bytes(at(held := cell(64)), 0, 8), "cuMemsetD8Async"),
    ],
)
def test_a_call_that_the_driver_refuses_is_named(card: HostCard, record: Record, name: str) -> None:
    card.results = {name: 700}
    with pytest.raises(DeviceError) as caught:
        run(set_cell(at(held), at(held)), record)()
    assert caught.value.op == name
    assert "700" in str(caught.value)


def test_runs_that_follow_each_other_natively_are_one(card: HostCard) -> None:
    source, targets = cell(5), [cell(0) for _ in range(3)]
    seen: list[int] = []

    def between() -> None:
        seen.append(int(targets[1][0]))

    runs = [run(set_cell(at(target), at(source))) for target in targets]
    merged = merge_runs([runs[0], runs[1], between, runs[2]])
    assert len(merged) == 3
    for each in merged:
        each()
    assert seen == [5]
    assert [int(target[0]) for target in targets] == [5, 5, 5]


def launches_of(call: Callable[[], Any], card: HostCard) -> int:
    card.calls.clear()
    call()
    return card.names().count("cuLaunchKernel")


CALLS: dict[str, Callable[[wf.Tensor], wf.Tensor]] = {
    "sum of two": lambda x: x + x,
    "a float": lambda x: x * 0.1,
    "a float on the left": lambda x: 1.5 / x,
    "an integer": lambda x: x - 3,
    "zero": lambda x: wf.copysign(x, 0.0),
    "minus zero": lambda x: wf.copysign(x, -0.0),
    "not a number": lambda x: x * float("nan"),
    "infinity": lambda x: x / float("inf"),
    "function": wf.exp,
    "comparison": lambda x: x > 0.5,
    "rows": lambda x: x.sum(axis=1),
    "columns": lambda x: x.sum(axis=0),
    "columns kept": lambda x: x.sum(axis=0, keepdims=True),
    "turned": lambda x: x.T,
    "another shape": lambda x: x.reshape(-1),
    "broadcast": lambda x: x + x[0],
    "unit": wf.gelu,
    "product": lambda x: x @ x.T,
    "whole numbers": lambda x: wf.arange(4, device=x.device) * 3 + 1,
    "a float beside whole numbers": lambda x: wf.arange(4, device=x.device) * 0.5,
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eager_calls_that_are_found_again_give_what_the_processor_gives(
    card: HostCard, dtype: str
) -> None:
    host = wf.asarray(numbers(3, 4)).astype(dtype)
    there = host.to("cuda")
    for _ in range(3):
        for name, call in CALLS.items():
            wanted, found = call(host), call(there)
            assert (found.dtype, found.shape, found.device.family) == (
                wanted.dtype, wanted.shape, "cuda",
            ), name  # fmt: skip
            np.testing.assert_allclose(
                found.astype("float64").numpy(), wanted.astype("float64").numpy(),
                rtol=1e-2 if dtype == "bfloat16" else 1e-5, err_msg=name,
            )  # fmt: skip
            signs = [np.signbit(each.astype("float32").numpy()) for each in (found, wanted)]
            assert name == "not a number" or (signs[0] == signs[1]).all(), name


def test_a_call_that_is_found_again_is_one_launch(card: HostCard) -> None:
    x = wf.asarray(numbers(3, 4)).to("cuda")
    for call in (lambda: x + x, lambda: x * 2.5, lambda: wf.exp(x), lambda: wf.gelu(x)):
        call()
        assert launches_of(call, card) == 1
    assert launches_of(lambda: x.reshape(-1), card) == 0


def test_derivatives_go_through_calls_that_are_found_again(card: HostCard) -> None:
    def gradient(device: str) -> list[float]:
        x = wf.asarray(numbers(3, 4)).to(device)
        x.requires_grad = True
        for _ in range(2):
            x.grad = None
            ((x * x + 2.0 * x).reshape(-1) / wf.exp(x).reshape(-1)).sum().backward()
        assert x.grad is not None
        found: list[float] = x.grad.reshape(-1).tolist()
        return found

    np.testing.assert_allclose(gradient("cuda"), gradient("cpu"), rtol=1e-5)


def test_shapes_and_dtypes_that_do_not_fit_are_refused_as_on_the_processor(card: HostCard) -> None:
    x, y = wf.ones((2, 3), device="cuda"), wf.ones((4, 5), device="cuda")
    for _ in range(2):
        with pytest.raises(wf.ShapeError, match="broadcast"):
            x + y
    assert (x + wf.ones(3, dtype="int64", device="cuda")).dtype is wf.float32
    assert (x.astype("float16") + x).dtype is wf.float32


def test_nan_is_found_in_calls_that_were_made_before(card: HostCard) -> None:
    x = wf.tensor([0.0, 1.0]).to("cuda")
    x / x
    with wf.debug.nans(), pytest.raises(wf.NanError):
        x / x


def test_what_is_to_run_by_reference_is_not_found_again(card: HostCard) -> None:
    x = wf.asarray(numbers(3, 4)).to("cuda")
    for call in (lambda: x + x, lambda: x * 2.5, lambda: wf.exp(x), lambda: x.sum(axis=0)):
        call()
        assert launches_of(call, card) == 1
        with wf.settings.changed(eager="reference"):
            assert launches_of(call, card) == 0
        assert launches_of(wf.ir.eager.by_reference(call), card) == 0
        assert launches_of(call, card) == 1


def test_parameters_that_python_calls_equal_have_keys_of_their_own(card: HostCard) -> None:
    primitive = wf.ir.primitive.PRIMITIVES["reduce_sum"]
    array = wf.ones((2, 2), device="cuda")._value
    numbers = (1, 1.0, True, 0.0, -0.0, 0, False, (1,), ((1,),), wf.float32, None)
    keys = {key_elsewhere(primitive, [array], {"axes": number}) for number in numbers}
    assert len(keys) == len(numbers)
    assert None not in keys


def test_a_run_without_memory_leaves_the_card_usable(card: HostCard) -> None:
    x = wf.ones((5, 7), device="cuda")
    compute_stream(0).arena.release()
    card.results = {"cuMemAllocAsync": 2}
    with pytest.raises(OutOfMemoryError):
        wf.exp(x)
    card.results.clear()
    np.testing.assert_allclose(wf.exp(x).numpy(), np.e, rtol=1e-6)


def test_a_stream_is_what_a_run_goes_to(card: HostCard) -> None:
    stream: Stream = compute_stream(0)
    place = cell(on_card(np.ones(4, np.float32)).pointer)
    card.calls.clear()
    run(fill_bytes(at(place), 0, 4))()
    assert card.calls[-1] == ("cuMemsetD8Async", (int(place[0]), 0, 4, stream.handle))


def test_launches_wait_for_those_whose_memory_they_touch() -> None:
    read, write = (lambda a, b: Span(a, b, False)), (lambda a, b: Span(a, b, True))
    launches = [
        [write(0, 10)],
        [read(0, 10), write(10, 20)],
        [read(0, 10), write(20, 30)],
        [read(5, 6), write(30, 40)],
        [read(10, 40), write(40, 50)],
        [write(5, 15)],
        [read(50, 60), write(60, 70)],
    ]
    assert dependencies(launches) == [[], [0], [0], [0], [1, 2, 3], [4], []]


def test_every_pair_of_launches_that_meet_is_in_order() -> None:
    draw = Random(5)
    for _ in range(20):
        launches = []
        for _ in range(12):
            starts = [draw.randrange(40) for _ in range(draw.randrange(1, 4))]
            launches.append(
                [Span(s, s + draw.randrange(1, 6), draw.random() < 0.4) for s in starts]
            )
        edges = dependencies(launches)
        after: list[set[int]] = []
        for direct in edges:
            after.append({*direct}.union(*(after[each] for each in direct)))
        for late, spans in enumerate(launches):
            for early in range(late):
                meet = any(
                    a.start < b.end and b.start < a.end and (a.is_written or b.is_written)
                    for a in spans
                    for b in launches[early]
                )
                assert not meet or early in after[late]
            assert not any(one in after[other] for one in edges[late] for other in edges[late])


def test_a_step_branches_where_launches_need_no_order(card: HostCard) -> None:
    @wf.jit
    def step(a: wf.Tensor, b: wf.Tensor) -> tuple[wf.Tensor, ...]:
        first, second = wf.exp(a @ b), wf.sin(b @ a)
        return first.sum(axis=0), second.sum(axis=1), (first @ second).sum(), a @ a

    a, b = (wf.asarray(numbers(12, 12) + k) for k in range(2))
    wanted = [x.numpy() for x in step(a, b)]
    there = a.to("cuda"), b.to("cuda")
    for _ in range(5):
        for found, expected in zip(step(*there), wanted, strict=True):
            np.testing.assert_allclose(found.numpy(), expected, rtol=2e-3)
    built = [nodes for nodes in card.nodes.values() if len(nodes) > 3]
    assert built
    waiting = [after for after, _ in built[-1].values()]
    assert sum(not after for after in waiting) > 1, "all launches are one behind the other"


def test_launches_have_workspaces_of_their_own_while_these_are_small(
    card: HostCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (on_card(np.ones(1 << 10, np.float32)) for _ in range(2))
    program = wf.jit(lambda x, y: (wf.sort(x), wf.sort(y))).program(wrap(x), wrap(y))
    sizes = []
    for limit in (0, 1 << 20):
        monkeypatch.setattr(bindings, "OWN_WORKSPACES", limit)
        program.release()
        bound = program._bind([x, y])  # type: ignore[attr-defined]
        sizes.append(bound.launches.workspace_bytes)
    assert sizes[1] == 2 * sizes[0] > 0


def test_a_call_that_was_made_before_is_one_native_call_and_waits_for_captures(
    card: HostCard,
) -> None:
    x, y = (wf.asarray(np.arange(6, dtype=np.float32) + k).to("cuda") for k in range(2))
    wanted = (x + y).numpy()
    before = card.launched
    np.testing.assert_array_equal((x + y).numpy(), wanted)
    assert card.launched == before + 1
    found: list[Array] = []

    def call_again() -> None:
        compute_stream(0).device.make_current()  # a thread's first call is never quick
        found.append((x + y).numpy())

    thread = Thread(target=call_again)
    with RUN_LOCK:
        with hold_quick_calls():
            thread.start()
            thread.join(0.2)
        assert thread.is_alive(), "nothing is put on a stream while it is captured"
        assert card.launched == before + 1
    thread.join()
    np.testing.assert_array_equal(found[0], wanted)


def test_eager_calls_of_several_threads_do_not_mix_their_operands(card: HostCard) -> None:
    check_threads()


class SeenByOneThread(list[Any]):
    """Observers of launches that other threads have not seen yet."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = current_thread()

    def __bool__(self) -> bool:
        return current_thread() is self._thread


@pytest.mark.parametrize("way", ["a graph", "a watched run"])
def test_quick_calls_of_another_thread_wait_while_cells_are_filled_and_read(
    card: HostCard, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    f = wf.jit(lambda a, b: wf.exp((a @ b) @ (a @ a)).sum(axis=0))
    x, y = (on_card(numbers(12, 12) / 12 + k) for k in range(2))
    wanted, wanted_there = (f(wrap(a), wrap(b)).numpy() for a, b in ((x, y), (y, x)))
    program: Any = f.program(wrap(x), wrap(y))
    bound = program._bind([x, y])
    assert FEW_LAUNCHES <= bound.launches.count <= QUICK_LAUNCHES
    quick, found = program.quick_call([x, y]), list[Array]()

    def call_quickly() -> None:
        compute_stream(0).device.make_current()  # a thread's first call is never quick
        found.append(quick([y, x])[0].to_host())

    thread, write = Thread(target=call_quickly), BoundProgram._write_cells

    def write_and_let_go_on(self: BoundProgram, words: list[int]) -> None:
        write(self, words)
        if not thread.ident:
            thread.start()
            thread.join(0.2)
            assert thread.is_alive(), "another call has written to the cells"

    monkeypatch.setattr(BoundProgram, "_write_cells", write_and_let_go_on)
    if way == "a watched run":
        monkeypatch.setattr(bound_program, "OBSERVERS", SeenByOneThread())
    room = new_array(compute_stream(0).allocate(48), array_kind(0, np.dtype(np.float32), (12,)))
    with RUN_LOCK:
        for _ in range(2):  # at the same addresses: the second run is made a graph
            (result,) = bound.run([x, y], (), [(0, room)])
    assert thread.ident
    thread.join()
    np.testing.assert_array_equal(result.to_host(), wanted)
    np.testing.assert_array_equal(found[0], wanted_there)


def test_a_reshaped_tensor_shares_memory_whenever_it_is_asked_for(card: HostCard) -> None:
    x = wf.asarray(np.arange(6, dtype=np.float32)).to("cuda")
    for _ in range(3):
        view = x.reshape(2, 3)
        assert view._value.pointer == x._value.pointer
        assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    del x
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: wf.sum(x, axis=0),
        lambda x: wf.mean(x, axis=(0, 1), keepdims=True),
        lambda x: x.reshape(-1, 2) * 2,
        lambda x: wf.concat([x, x[:1]], axis=0),
        lambda x: wf.squeeze(x[None], axis=0).max(axis=1),
    ],
)
def test_what_a_function_applies_is_remembered_on_a_card_with_its_tape(
    card: HostCard, f: Callable[[wf.Tensor], wf.Tensor]
) -> None:
    array = numbers(4, 6)
    here = wf.asarray(array).requires_grad_()
    (f(here) ** 2).sum().backward()
    for _ in range(5):
        there = wf.asarray(array).to("cuda").requires_grad_()
        result = f(there)
        np.testing.assert_allclose(result.detach().numpy(), f(here).detach().numpy(), rtol=1e-5)
        assert result.device == there.device
        (result**2).sum().backward()
        np.testing.assert_allclose(there.grad.numpy(), here.grad.numpy(), rtol=1e-5)
    for _ in range(3):
        with pytest.raises(wf.DeviceError, match="different devices"):
            wf.concat([there, here])
