"""The driver on a card: memory, copies, graphs, errors."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.compiler.cuda.sample_kernels import program_of
from tests.gpu.kernel_runs import card_code

import weft as wf
from weft.compiler.targets.cuda.device import Event, PinnedMemory, Stream, device, device_count
from weft.compiler.targets.cuda.driver import is_available
from weft.compiler.targets.cuda.graphs import Graph, capture_graph
from weft.compiler.targets.cuda.modules import Launch, Module, assemble
from weft.core.errors import DeviceError, OutOfMemoryError

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no NVIDIA card here")


def doubling(stream: Stream, count: int) -> tuple[Launch, np.ndarray, object, object]:
    """A launch that doubles what is in memory, its operand, and the memories."""
    program = program_of(lambda x: x * 2.0, [wf.spec("float32", (count,))])
    (lowered,) = program.every_lowered
    kernel = card_code(lowered.kernel)
    target, source = stream.allocate(4 * count), stream.allocate(4 * count)
    values = np.arange(count, dtype=np.float32)
    stream.upload(source, values)
    pointers = [target.pointer, source.pointer]
    (launch,), _ = kernel.launches(stream, pointers, dict.fromkeys(kernel.sizes, count))
    return launch, values, target, source


def downloaded(stream: Stream, memory: object, count: int) -> np.ndarray:
    found = np.empty(count, np.float32)
    stream.download(found, memory)  # type: ignore[arg-type]
    stream.synchronize()
    return found


def test_a_card_says_what_it_is() -> None:
    card = device()
    assert card.capability >= (8, 0)
    assert card.multiprocessors > 0
    assert card.name
    assert device_count() >= 1
    stats = card.memory_stats()
    assert 0 < stats.free <= stats.total


def test_work_runs_in_order_and_is_timed() -> None:
    stream = Stream(device())
    launch, values, target, _ = doubling(stream, 1000)
    start, end = Event(device()), Event(device())
    start.record(stream)
    launch(stream)
    end.record(stream)
    end.synchronize()
    assert end.milliseconds_since(start) > 0
    np.testing.assert_array_equal(downloaded(stream, target, 1000), values * 2)


def test_pinned_memory_goes_there_and_back() -> None:
    card = device()
    stream = Stream(card)
    first, second = (PinnedMemory(card, 4096).array("float32", (1024,)) for _ in range(2))
    first[:] = np.arange(1024)
    memory = stream.allocate(4096)
    stream.upload(memory, first)
    stream.download(second, memory)
    stream.synchronize()
    np.testing.assert_array_equal(first, second)


def test_a_captured_graph_runs_again_and_a_built_one_is_updated() -> None:
    card = device()
    stream = Stream(card)
    launch, values, target, _source = doubling(stream, 512)
    with capture_graph(stream) as graphs:
        launch(stream)
    assert graphs[0].count() == 1
    stream.fill(target, b"\0", 4 * 512)  # type: ignore[arg-type]
    graphs[0].instantiate()(stream)
    np.testing.assert_array_equal(downloaded(stream, target, 512), values * 2)
    built = Graph(card)
    first = built.add(launch)
    ready = built.instantiate()
    other = stream.allocate(4 * 512)
    moved = Launch(launch.function, launch.grid, launch.block, launch.operands)
    moved.set(0, other.pointer)
    ready.update(first, moved)
    ready(stream)
    np.testing.assert_array_equal(downloaded(stream, other, 512), values * 2)


def test_machine_code_is_loaded_again_without_compiling() -> None:
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry nothing(.param .u64 a)\n{ ret; }\n"
    )
    code = assemble(device(), text)
    assert code[:4] == b"\x7fELF"
    assert Module(device(), code).function("nothing").resources()["registers"] > 0


def test_wrong_text_is_refused_with_the_compilers_log() -> None:
    with pytest.raises(DeviceError, match="does not compile this PTX") as caught:
        assemble(device(), ".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n")
    assert "ptxas" in caught.value.problem


def test_too_much_memory_is_an_error_after_which_work_goes_on() -> None:
    stream = Stream(device())
    with pytest.raises(OutOfMemoryError):
        stream.allocate(1 << 46)
    launch, values, target, _ = doubling(stream, 64)
    launch(stream)
    np.testing.assert_array_equal(downloaded(stream, target, 64), values * 2)


def test_a_thousand_steps_need_no_more_memory_than_one() -> None:
    stream = Stream(device())
    for _ in range(3):
        stream.allocate(1 << 20)
    gc.collect()
    before = device().memory_stats().reserved
    for step in range(1000):
        memories = [stream.allocate((step % 7 + 1) << 17) for _ in range(3)]
        del memories
    stream.synchronize()
    assert device().memory_stats().reserved - before <= 64 << 20
    assert stream.arena.used == 0


def test_a_buffer_that_begins_inside_a_vector_is_refused() -> None:
    stream = Stream(device())
    program = program_of(lambda x: x * 2.0, [wf.spec("float32", (64,))])
    (lowered,) = program.every_lowered
    kernel = card_code(lowered.kernel)
    memory = stream.allocate(1024)
    with pytest.raises(DeviceError, match="middle of a vector"):
        kernel.launches(stream, [memory.pointer + 4, memory.pointer], {})
