"""The driver's calls and errors, on a library that stands in for it; no card is needed."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from tests.compiler.cuda.fake_driver import CODE, FakeLibrary

import weft as wf
from weft.compiler.targets.cuda import device as devices
from weft.compiler.targets.cuda import driver as drivers
from weft.compiler.targets.cuda.device import Device, Event, PinnedMemory, Stream
from weft.compiler.targets.cuda.driver import Driver, open_driver
from weft.compiler.targets.cuda.graphs import Graph, capture_graph
from weft.compiler.targets.cuda.modules import Launch, Module, assemble, machine_code
from weft.core.errors import ArgumentError, DeviceError, OutOfMemoryError


@pytest.fixture(autouse=True)
def whole_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that is not there maps nothing."""


def fake_device(**options: int) -> tuple[FakeLibrary, Device]:
    library = FakeLibrary(**options)
    devices.CURRENT.__dict__.clear()
    return library, Device(open_driver(library), 0)


def fake_launch(device: Device) -> Launch:
    function = Module(device, CODE).function("kernel", shared=100_000)
    return Launch(function, (4, 1, 1), (256, 1, 1), [ctypes.c_uint64(7), ctypes.c_int64(9)])


def test_a_machine_without_a_driver_says_so_and_computes_on_its_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers, "LIBRARIES", ("libno-such-driver.so",))
    drivers._opened_driver.cache_clear()
    try:
        assert not drivers.is_available()
        assert devices.device_count() == 0
        with pytest.raises(DeviceError, match="no NVIDIA driver") as caught:
            drivers.load_driver()
        assert "device='cpu'" in caught.value.fix
        assert (wf.tensor([1.0]) + 1).tolist() == [2.0]
    finally:
        drivers._opened_driver.cache_clear()


def test_an_old_driver_is_refused_with_its_version() -> None:
    with pytest.raises(DeviceError, match="too old") as caught:
        open_driver(FakeLibrary(version=11_080))
    assert "11.8" in caught.value.got


def test_a_driver_without_a_function_is_refused_by_its_name() -> None:
    library = FakeLibrary()
    del library.cuMemAllocAsync
    with pytest.raises(DeviceError, match="too old") as caught:
        open_driver(library)
    assert "cuMemAllocAsync" in caught.value.got


def test_a_function_of_newer_drivers_is_missed_only_where_it_is_called() -> None:
    library = FakeLibrary()
    del library.cuTensorMapEncodeTiled
    driver = open_driver(library)
    with pytest.raises(DeviceError, match="too old") as caught:
        driver("cuTensorMapEncodeTiled")
    assert "cuTensorMapEncodeTiled" in caught.value.got


def test_a_machine_without_a_card_is_refused() -> None:
    with pytest.raises(DeviceError) as caught:
        open_driver(FakeLibrary(cards=0))
    assert "CUDA_ERROR_NO_DEVICE" in caught.value.got
    assert "CUDA_VISIBLE_DEVICES" in caught.value.fix


def test_an_old_card_is_refused_by_its_name() -> None:
    with pytest.raises(DeviceError, match="card is too old") as caught:
        fake_device(major=7)
    assert caught.value.got == "card: Fake Card, 7.0"
    assert caught.value.expected == "compute capability 8.0 or later"


def test_an_ordinal_beyond_the_cards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = open_driver(FakeLibrary(cards=2))
    monkeypatch.setattr(devices, "load_driver", lambda: driver)
    with pytest.raises(ArgumentError, match="no card number 5") as caught:
        devices.device.__wrapped__(5)
    assert caught.value.expected == "a number from 0 to 1"


def test_every_result_that_is_no_success_names_the_call_and_the_result() -> None:
    library, _ = fake_device()
    driver = Driver(library)
    for name in set(drivers.SIGNATURES) - {"cuGetErrorName", "cuGetErrorString"}:
        library.results = {name: 999}
        with pytest.raises(DeviceError) as caught:
            driver(name, *[ctypes.byref(ctypes.c_void_p())] * len(drivers.SIGNATURES[name]))
        assert caught.value.op == name
        assert caught.value.got == "result: CUDA_ERROR_UNKNOWN (999)"
        assert "what the driver says" in caught.value.fix


def test_no_memory_is_an_error_of_memory() -> None:
    library, device = fake_device()
    stream = Stream(device)
    library.results = {"cuMemAllocAsync": 2}
    with pytest.raises(OutOfMemoryError) as caught:
        stream.allocate(1 << 40)
    assert isinstance(caught.value, MemoryError)
    assert "smaller batch" in caught.value.fix


def test_a_kernel_that_faulted_says_that_the_context_is_lost() -> None:
    library, device = fake_device()
    library.results = {"cuCtxSynchronize": 700}
    with pytest.raises(DeviceError, match="cuCtxSynchronize") as caught:
        device.synchronize()
    assert "restart the process" in caught.value.fix


def test_a_text_that_is_refused_comes_with_the_compilers_log() -> None:
    library, device = fake_device()
    library.results = {"cuLinkAddData_v2": 218}
    with pytest.raises(DeviceError, match="line 7: bad") as caught:
        assemble(device, ".version 8.0\n.target sm_80\nnonsense")
    assert "CUDA_ERROR_INVALID_PTX" in caught.value.got
    assert ".version 8.0" in caught.value.got
    assert library.names()[-1] == "cuLinkDestroy"


def test_assembled_code_is_the_bytes_that_the_driver_made() -> None:
    _, device = fake_device()
    assert assemble(device, ".version 8.0") == CODE


def test_machine_code_is_compiled_once_for_a_card_and_a_driver() -> None:
    text = ".version 8.0 // of this test"
    for options, compiled in (({}, 1), ({}, 0), ({"major": 10}, 1), ({"version": 13_010}, 1)):
        library, device = fake_device(**options)
        assert machine_code(device, text) == CODE
        assert library.names().count("cuLinkComplete") == compiled


def test_memory_that_is_dropped_is_given_to_the_next_of_its_size() -> None:
    library, device = fake_device()
    stream = Stream(device)
    memory, other = stream.allocate(0), stream.allocate(1000)
    pointer = memory.pointer
    assert stream.arena.used == 512 + 1024, "no elements have an address too"
    del memory
    again = stream.allocate(512)
    assert again.pointer == pointer != other.pointer
    assert library.names().count("cuMemAllocAsync") == 2
    assert "cuMemFreeAsync" not in library.names()
    assert (stream.arena.used, stream.arena.peak) == (1536, 1536)


def test_memory_that_is_free_goes_back_before_there_is_none() -> None:
    library, device = fake_device()
    stream = Stream(device)
    kept, dropped = stream.allocate(100), stream.allocate(5000)
    pointer = dropped.pointer
    del dropped
    allocate, refused = library.cuMemAllocAsync, []

    def first_refused(*arguments: object) -> int:
        refused.append(arguments)
        return 2 if len(refused) == 1 else allocate(*arguments)

    stream.driver._functions["cuMemAllocAsync"] = first_refused
    large = stream.allocate(1 << 30)
    assert ("cuMemFreeAsync", (pointer, stream.handle)) in library.calls
    assert stream.arena.used == 512 + (1 << 30)
    del kept, large


def test_a_stream_gives_its_memory_back_when_it_ends() -> None:
    library, device = fake_device()
    stream = Stream(device)
    memory = stream.allocate(64)
    pointer = memory.pointer
    del memory, stream
    gc.collect()
    assert [name for name, given in library.calls if given and given[0] == pointer] == [
        "cuMemFreeAsync"
    ]
    assert library.names()[-1] == "cuStreamDestroy_v2"


def test_pinned_memory_lives_as_long_as_an_array_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library, device = fake_device()
    behind = ctypes.create_string_buffer(64)
    monkeypatch.setattr(device.driver, "handle", lambda *_: ctypes.addressof(behind))
    array = PinnedMemory(device, 64).array("float32", (4, 4))
    gc.collect()
    array[...] = 1.0
    assert np.frombuffer(behind.raw, np.float32).tolist() == [1.0] * 16
    assert "cuMemFreeHost" not in library.names()
    del array
    gc.collect()
    assert library.names()[-1] == "cuMemFreeHost"


def test_a_launch_is_given_dimensions_shared_memory_and_operands() -> None:
    library, device = fake_device()
    stream, launch = Stream(device), fake_launch(device)
    assert "cuFuncSetAttribute" in library.names(), "more shared memory than is free is asked for"
    launch.set(1, 11)
    launch(stream)
    name, given = library.calls[-1]
    assert name == "cuLaunchKernel"
    assert given[1:9] == (4, 1, 1, 256, 1, 1, 100_000, stream.handle)
    places = [ctypes.cast(place, ctypes.POINTER(ctypes.c_int64))[0] for place in given[9]]
    assert places == [7, 11]


def test_a_graph_is_built_of_launches_and_updated() -> None:
    library, device = fake_device()
    graph, launch = Graph(device), fake_launch(device)
    first = graph.add(launch)
    second = graph.add(launch, after=[first])
    assert second != first
    assert list(library.calls[-1][1][2]) == [first]
    ready = graph.instantiate()
    ready.update(second, launch)
    parameters = library.calls[-1][1][2]._obj
    assert (parameters.gx, parameters.bx, parameters.shared) == (4, 256, 100_000)
    stream = Stream(device)
    ready(stream)
    assert library.names()[-1] == "cuGraphLaunch"


def test_what_is_put_on_a_stream_is_captured_also_where_it_fails() -> None:
    library, device = fake_device()
    stream = Stream(device)
    with capture_graph(stream) as graphs:
        fake_launch(device)(stream)
    assert len(graphs) == 1
    with pytest.raises(RuntimeError, match="inside"), capture_graph(stream):
        raise RuntimeError("inside")
    assert library.names().count("cuStreamEndCapture") == 2


def test_time_is_read_between_events() -> None:
    _, device = fake_device()
    stream, start, end = Stream(device), Event(device), Event(device)
    start.record(stream)
    end.record(stream)
    end.synchronize()
    stream.wait(end)
    assert end.milliseconds_since(start) == 1.5


def test_copies_go_to_the_stream_with_their_sizes() -> None:
    library, device = fake_device()
    stream = Stream(device)
    memory, source = stream.allocate(64), np.ones(16, np.float32)
    stream.upload(memory, source)
    assert library.calls[-1][1] == (memory.pointer, source.ctypes.data, 64, stream.handle)
    stream.download(source, memory)
    assert library.calls[-1][1] == (source.ctypes.data, memory.pointer, 64, stream.handle)
    stream.upload(memory, np.ones(0, np.float32))
    assert library.names()[-1] == "cuMemcpyDtoHAsync_v2", "nothing is not copied"


def test_a_missing_driver_is_reported_at_the_line_that_asks() -> None:
    if drivers.is_available():
        pytest.skip("this machine has a card")
    texts = []
    for make in (lambda: wf.zeros(3, device="cuda"), lambda: wf.ones(4).to("cuda")):
        with pytest.raises(DeviceError, match="NVIDIA driver") as caught:
            make()
        assert caught.value.at is not None
        texts.append(caught.value.at.source())
    assert "wf.zeros(3" in texts[0]
    assert "wf.ones(4)" in texts[1]
