"""Memory of a card shared with other libraries: capsules, streams, and who holds what how long."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard, host_card

import weft as wf
from weft.compiler.targets.cuda import dlpack
from weft.compiler.targets.cuda.array import compute_stream
from weft.ops.dlpack import CUDA_KIND, _content, _handed_out, take_capsule


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as card:
        yield card
        dlpack.collect_dropped(wait=True)


class Other:
    """An array of another library: it hands out what it was made of, and keeps what it was told."""

    def __init__(self, tensor: wf.Tensor, versions: bool = True) -> None:
        self.tensor, self.versions = tensor, versions
        self.told: dict[str, Any] = {}

    def __dlpack__(self, **options: Any) -> Any:
        if "max_version" in options and not self.versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.told = options
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


DTYPES = ["float32", "bfloat16", "float64", "int8", "uint16", "int64", "bool", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("versions", [True, False])
def test_memory_goes_out_and_comes_in_without_a_copy(
    card: HostCard, dtype: str, versions: bool
) -> None:
    x = wf.arange(6).reshape(2, 3).astype(dtype).to("cuda")
    assert x.__dlpack_device__() == (CUDA_KIND, 0)
    other = Other(x, versions)
    y = wf.from_dlpack(other)
    assert (y.type, y.device) == (x.type, x.device)
    assert y._value.pointer == x._value.pointer
    assert y.cpu().tolist() == x.cpu().tolist()
    assert other.told["stream"] == compute_stream(0).handle
    assert wf.asarray(other)._value.pointer == x._value.pointer
    assert wf.from_dlpack(other, copy=True)._value.pointer != x._value.pointer
    assert wf.from_dlpack(other, device="cpu").device == wf.device("cpu")


@pytest.mark.parametrize(("stream", "handle"), [(None, 1), (1, 1), (2, 2), (0x7000, 0x7000)])
def test_a_consumers_stream_waits_for_an_event_of_ours(
    card: HostCard, stream: int | None, handle: int
) -> None:
    x = wf.ones(3, device="cuda") * 2
    card.calls.clear()
    capsule = x.__dlpack__(stream=stream)
    record, wait = (
        next(given for name, given in card.calls if name == wanted)
        for wanted in ("cuEventRecord", "cuStreamWaitEvent")
    )
    assert record[1] == compute_stream(0).handle
    assert wait[:2] == (handle, record[0])
    del capsule


def test_nobody_waits_where_the_consumer_asks_for_it_and_no_stream_is_zero(card: HostCard) -> None:
    x = wf.ones(3, device="cuda")
    card.calls.clear()
    x.__dlpack__(stream=-1)
    assert "cuStreamWaitEvent" not in card.names()
    for wrong in (0, "default", -2):
        with pytest.raises(wf.ArgumentError, match="no stream of a card"):
            x.__dlpack__(stream=wrong)


def test_memory_stays_as_long_as_the_other_side_holds_it(card: HostCard) -> None:
    x = wf.full((300,), 7.0, device="cuda")
    pointer = x._value.pointer
    memory, release = take_capsule(x.__dlpack__(stream=1, max_version=(1, 0)))
    assert (memory.pointer, memory.shape) == (pointer, (300,))
    del x
    gc.collect()
    taken = [wf.zeros(300, device="cuda") for _ in range(4)]
    assert pointer not in [each._value.pointer for each in taken]
    assert card.memory_at(pointer)[:4].view(np.float32)[0] == 7.0
    card.calls.clear()
    release()
    dlpack.collect_dropped()
    # our stream waits for the consumer's before the memory is used again
    assert ("cuEventRecord", 1) in [(name, given[-1]) for name, given in card.calls]
    assert wf.zeros(300, device="cuda")._value.pointer == pointer


def test_a_capsule_that_nobody_takes_lets_go_by_itself(card: HostCard) -> None:
    x = wf.ones(700, device="cuda")
    pointer = x._value.pointer
    capsule = x.__dlpack__(stream=1)
    del x, capsule
    gc.collect()
    dlpack.collect_dropped()
    assert wf.ones(700, device="cuda")._value.pointer == pointer


def test_foreign_memory_is_given_back_after_the_work_that_reads_it(card: HostCard) -> None:
    x = wf.ones(40, device="cuda")
    released: list[str] = []
    pointer, kind = x._value.pointer, np.dtype(np.float32)
    array = dlpack.borrow_array(
        compute_stream(0), pointer, kind, (40,), lambda: released.append("x")
    )
    y = wf.asarray(array)
    z = y + 1
    del array, y
    gc.collect()
    assert released == []
    card.calls.clear()
    wf.cuda.synchronize()
    assert released == ["x"]
    assert card.names().index("cuEventRecord") < card.names().index("cuEventSynchronize")
    assert float(z.sum()) == 80.0


def test_memory_that_begins_between_two_vectors_is_copied(card: HostCard) -> None:
    x = wf.arange(41, dtype="float32").to("cuda")
    released: list[str] = []
    stream, kind = compute_stream(0), np.dtype(np.float32)
    given = x._value.pointer + 4, kind, (40,), lambda: released.append("x")
    y = wf.asarray(dlpack.borrow_array(stream, *given))
    assert y._value.pointer % 16 == 0
    assert y.tolist() == [*range(1, 41)]
    gc.collect()
    wf.cuda.synchronize()
    assert released == ["x"], "others need not wait until the copy is dropped"


def test_what_is_shared_is_never_written_to(card: HostCard) -> None:
    given = wf.zeros(64, device="cuda")
    state = wf.from_dlpack(Other(given))
    own = wf.zeros(64, device="cuda")
    memory, release = take_capsule(own.__dlpack__(stream=1))

    @wf.jit
    def add(x: wf.Tensor) -> None:
        state.copy_(state + x)
        own.copy_(own + x)

    one = wf.ones(64, device="cuda")
    add(one)
    add(one)
    assert (float(state.sum()), float(own.sum())) == (128.0, 128.0)
    assert float(given.sum()) == 0.0
    assert card.memory_at(memory.pointer)[:256].view(np.float32).sum() == 0.0
    release()


def test_strides_and_devices_that_do_not_fit_are_refused(card: HostCard) -> None:
    class Strided(Other):
        def __dlpack__(self, **options: Any) -> Any:

            capsule = super().__dlpack__(**options)
            _content(capsule)[0].view.strides[0] = 1
            return capsule

    with pytest.raises(wf.DTypeError, match="does not hand this array out") as caught:
        wf.from_dlpack(Strided(wf.ones((2, 3), device="cuda")))
    assert "one after the other" in str(caught.value)
    with pytest.raises(wf.DeviceError, match="not copied to a third device"):
        wf.ones(3, device="cuda").__dlpack__(dl_device=(2, 5))
    host = wf.ones(3, device="cuda").__dlpack__(dl_device=(1, 0), max_version=(1, 0))
    assert take_capsule(host)[0].device == (1, 0)


def test_the_interface_of_arrays_on_cards_is_offered_and_read(card: HostCard) -> None:
    x = wf.arange(6, dtype="int32").reshape(2, 3).to("cuda")
    said = x.__cuda_array_interface__
    assert (said["shape"], said["typestr"], said["version"]) == ((2, 3), "<i4", 3)
    assert said["data"] == (x._value.pointer, False)
    assert said["stream"] == compute_stream(0).handle
    assert not hasattr(wf.ones(3), "__cuda_array_interface__")
    assert not hasattr(wf.ones(3, dtype="bfloat16", device="cuda"), "__cuda_array_interface__")

    class Described:
        __cuda_array_interface__: ClassVar[dict[str, Any]] = {**said, "stream": 0x9000}

    card.calls.clear()
    y = wf.asarray(Described())
    assert (y.tolist(), y._value.pointer) == ([[0, 1, 2], [3, 4, 5]], x._value.pointer)
    assert ("cuEventRecord", 0x9000) in [(name, given[-1]) for name, given in card.calls]
    assert "cuStreamWaitEvent" in card.names()
    Described.__cuda_array_interface__ = {**said, "strides": (4, 8)}
    with pytest.raises(wf.DTypeError, match="does not hand this array out"):
        wf.asarray(Described())


def test_a_consumer_that_refuses_the_memory_raises_its_own_error_and_lets_go(
    card: HostCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    x, held = wf.ones((5, 2), device="cuda"), len(_handed_out)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Unsupported device"):
            np.from_dlpack(x)
    del x
    gc.collect()
    assert not raised
    assert len(_handed_out) == held
