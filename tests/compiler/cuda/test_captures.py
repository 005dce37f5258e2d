"""Threads beside a capture, programs that are gone, and memory that a copy still reads."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import numbers
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.thread_cases import (
    check_captures_beside_threads,
    check_exchanged_axes,
    check_pinned_uploads,
)

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda import faults
from weft.compiler.targets.cuda.array import compute_stream, upload_array
from weft.compiler.targets.cuda.attention import binding as attention_binding
from weft.compiler.targets.cuda.binding import MOST_BLOCKS, Binding
from weft.compiler.targets.cuda.device import RUN_LOCK, PinnedMemory, hold_quick_calls
from weft.compiler.targets.cuda.executable import CudaExecutable
from weft.compiler.targets.cuda.graphs import Span, capture_graph, dependencies
from weft.compiler.targets.cuda.parameters import _checked_word
from weft.compiler.targets.cuda.target import CUDA


def run_beside_capture(work: Callable[[], object]) -> None:
    """Do some work in another thread, which begins while a stream is captured."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            compute_stream(0).device.make_current()  # a thread's first call is never quick
            work()
        except BaseException as error:
            failed.append(error)

    thread, stream = Thread(target=run), compute_stream(0)
    with RUN_LOCK, capture_graph(stream):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() or failed, "nothing may be put on a stream that is captured"
    thread.join()
    if failed:
        raise failed[0]


def test_elements_are_read_after_a_capture(card: HostCard) -> None:
    x = wf.asarray(np.arange(5, dtype=np.float32)).to("cuda")
    run_beside_capture(lambda: np.testing.assert_array_equal(x.numpy(), np.arange(5)))


def test_a_quick_call_allocates_after_a_capture(card: HostCard) -> None:
    x = wf.asarray(np.arange(2000, dtype=np.float32)).to("cuda")
    held = [x + x for _ in range(2)]  # from the second on, calls are quick
    compute_stream(0).arena.release()
    before = compute_stream(0).arena.used
    found: list[wf.Tensor] = []
    run_beside_capture(lambda: found.append(x + x))
    np.testing.assert_array_equal(found[0].numpy(), held[0].numpy())
    assert compute_stream(0).arena.used > before


@pytest.mark.parametrize(
    "work",
    [
        lambda x: wf.cuda.synchronize(),
        lambda x: wf.cuda.release_memory(),
        lambda x: x.__dlpack__(stream=1),
        lambda x: wf.asarray(np.ones(64, np.float32)).to("cuda"),
        lambda x: x[1:3],  # a copy, as it begins between two vectors
        lambda x: wf.ones((7,), device="cuda"),
    ],
    ids=["synchronize", "release_memory", "dlpack", "upload", "copy", "fill"],
)
def test_other_work_waits_for_a_capture(
    card: HostCard, work: Callable[[wf.Tensor], object]
) -> None:
    x = wf.asarray(np.arange(5, dtype=np.float32)).to("cuda")
    work(x)  # so that memory is there
    run_beside_capture(lambda: work(x))
    assert x.tolist() == [0, 1, 2, 3, 4]


def test_a_batch_is_waited_for_after_a_capture(card: HostCard) -> None:
    x = wf.zeros((1,), device="cuda")
    upload = wf.cuda.Staging(0).begin()
    batch = upload.add(np.arange(6.0))
    run_beside_capture(upload.finish)
    np.testing.assert_array_equal(batch.to_host(), np.arange(6.0))
    assert x.tolist() == [0]


def test_what_is_dropped_in_a_capture_is_freed_after_it(card: HostCard) -> None:
    stream = compute_stream(0)
    memory = PinnedMemory(stream.device, 64)
    with RUN_LOCK, capture_graph(stream), hold_quick_calls():
        del memory
        assert "cuMemFreeHost" not in card.names()
    assert "cuMemFreeHost" in card.names()


def test_an_index_out_of_range_is_reported_though_the_program_is_gone(card: HostCard) -> None:
    kind = wf.spec("float32", (4,)), wf.spec("int64", (2,))
    graph = wf.ir.trace(lambda x, i: wf.take(x, i, axis=0), *kind)
    x, places = (wf.asarray(each).to("cuda")._value for each in (numbers(4), np.array([0, 9])))
    for _ in range(3):  # the cells are used again later, and then have nothing to say
        program = CudaExecutable(plan_program(graph, CUDA), 0)
        (found,) = program.run([x, places])
        gone = weakref.ref(program._bind([]))
        del program
        gc.collect()
        assert gone() is None
        with pytest.raises(wf.BoundsError, match="out of range"):
            found.to_host()
        np.testing.assert_array_equal(x.to_host(), numbers(4))


def test_cells_are_used_again_after_two_waits(card: HostCard) -> None:
    compute_stream(0)
    pages = faults.FaultPages(0)
    cells = [pages.take(lambda: None) for _ in range(3)]  # type: ignore[arg-type, return-value]
    with faults._lock:  # a program may be collected while another thread, or this one, is inside
        pages.give(cells)
    free = len(pages._free)
    pages.reclaim()
    assert len(pages._free) == free
    pages.reclaim()
    assert len(pages._free) == free + 3
    assert not pages._nodes


@pytest.mark.parametrize("is_pinned", [False, True])
def test_an_array_in_pinned_memory_may_be_changed_after_its_upload(
    card: HostCard, is_pinned: bool
) -> None:
    stream = compute_stream(0)
    memory = PinnedMemory(stream.device, 64)
    array = memory.array(np.float32, (16,)) if is_pinned else np.zeros(16, np.float32)
    card.calls.clear()
    upload_array(stream, array)
    assert ("cuEventSynchronize" in card.names()) == is_pinned


def test_pinned_memory_of_batches_is_freed_after_their_copies(card: HostCard) -> None:
    wf.zeros((1,), device="cuda")
    staging = wf.cuda.Staging(0)
    batch = staging.begin().add(np.arange(6.0))
    card.calls.clear()
    del staging
    names = card.names()
    assert names.index("cuEventSynchronize") < names.index("cuMemFreeHost")
    np.testing.assert_array_equal(batch.to_host(), np.arange(6.0))


@pytest.mark.parametrize("blocks", [0, MOST_BLOCKS, MOST_BLOCKS + 5])
def test_a_grid_that_no_card_counts_is_refused(card: HostCard, blocks: int) -> None:
    class Named:
        name, handle, shared = "rows", 1, 0

    with pytest.raises(wf.UnsupportedError, match="more blocks") as caught:
        Binding.kernel_run(None, Named, blocks, 32, [])  # type: ignore[arg-type]
    assert str(blocks) in str(caught.value)


def test_a_number_that_does_not_fit_into_a_word_is_refused() -> None:
    assert _checked_word("a_batch_stride", (1 << 32) - 1) == (1 << 32) - 1
    with pytest.raises(wf.UnsupportedError, match="32 bits"):
        _checked_word("a_batch_stride", 1 << 32)


def test_counters_of_a_launch_that_begin_anew_are_all_touched() -> None:
    binding = Binding.__new__(Binding)
    binding._counters, binding._own_counters = 768, (0, 0)
    binding._held, binding.counter_words = [], {}
    for _ in range(2):  # the second piece lies before the first
        binding.counter_cell(1 << 20, 1024, 200)
    assert binding._own_counters == (1 << 20, (1 << 20) + 1024)


def test_captures_beside_threads(card: HostCard) -> None:
    check_captures_beside_threads(sizes=2, rounds=4)


def test_pinned_memory_may_be_changed_after_an_upload(card: HostCard) -> None:
    check_pinned_uploads(1000, 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_exchanged_axes(card: HostCard, dtype: str) -> None:
    check_exchanged_axes(dtype)


def test_launches_whose_blocks_wait_for_each_other_are_in_order(card: HostCard) -> None:
    """Two gradients of attention that share nothing: each might have half of the card, for ever."""

    def loss(q: wf.Tensor) -> wf.Tensor:
        return wf.scaled_dot_product_attention(q, q, q, causal=True).astype("float32").sum()

    kinds = [wf.spec("bfloat16", (1, 2, 64, 64))] * 2
    graph = wf.ir.trace(lambda a, b: (wf.grad(loss)(a), wf.grad(loss)(b)), *kinds)
    program = CudaExecutable(plan_program(graph, CUDA), 0)
    binding: Any = program._bind([]).launches
    counted = [each.counters for each in binding.touched if each.counters[1]]
    assert len(counted) == 2
    spans = [[Span(*each, True)] for each in counted]
    assert dependencies(spans) == [[], [0]]


def test_gradients_of_more_keys_than_a_smaller_card_holds_are_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = [wf.spec("bfloat16", (1, 1, length, 64)) for length in (128, 114 * 128 + 128)]

    def gradient(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
        return wf.grad(lambda q: wf.scaled_dot_product_attention(q, k, k).astype("float32").sum())(
            q
        )

    graph = wf.ir.trace(gradient, *kinds)
    for count, is_there in ((132, True), (114, False)):
        monkeypatch.setattr(attention_binding, "multiprocessor_count", lambda count=count: count)
        names = [launch.name for launch in plan_program(graph, CUDA).launches]
        assert ("attention_gradient" in names) == is_there, names
