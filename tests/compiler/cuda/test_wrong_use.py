"""What a card and its memory refuse, and that work goes on afterwards: on the card of the host."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard

import weft as wf
from weft.compiler.targets.cuda.array import array_kind, compute_stream, new_array
from weft.compiler.targets.cuda.device import Stream, device

NO_MEMORY, INVALID_ADDRESS = 2, 700


@pytest.mark.parametrize(
    "ask",
    [
        wf.cuda.synchronize, wf.cuda.memory_stats, wf.cuda.reset_peak_memory,
        wf.cuda.get_device_name, wf.cuda.release_memory,
    ],
)  # fmt: skip
def test_what_is_asked_of_cards_is_not_answered_for_the_processor(card: HostCard, ask: Any) -> None:
    ask(), ask("cuda"), ask("cuda:0"), ask(wf.ones(3, device="cuda").device)
    with pytest.raises(wf.DeviceError, match="this is no card") as caught:
        ask("cpu")
    assert caught.value.got == "device: cpu"


def test_a_card_that_is_full_says_what_is_largest_on_it(card: HostCard) -> None:
    held = [wf.ones(shape, device="cuda") for shape in ((300, 70), (20, 20), (4, 4))]
    # another card's array, which is larger, is not what this one is full of
    elsewhere = new_array(held[0]._value.memory, array_kind(1, np.dtype("float32"), (900, 900)))
    wf.cuda.release_memory()
    card.results["cuMemAllocAsync"] = NO_MEMORY
    with pytest.raises(wf.OutOfMemoryError, match="cuda:0 has no room for") as caught:
        held[0] + held[0]
    card.results.clear()
    assert caught.value.got.startswith("largest tensors: f32[300, 70] (0.1 MiB), f32[20, 20]")
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert elsewhere.shape == (900, 900)
    np.testing.assert_array_equal((held[0] + held[0]).numpy(), np.full((300, 70), 2.0))


def test_a_card_is_not_full_of_models_that_were_let_go_of(
    card: HostCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(dict[str, int]):
        """Results of calls on a card with so many bytes."""

        most = 0

        def get(self, name: str, *default: Any) -> Any:
            taken = sum(map(len, card.blocks.values()))
            is_full = name == "cuMemAllocAsync" and taken > self.most
            return NO_MEMORY if is_full else super().get(name, *default)

    def train() -> None:
        model = wf.nn.Sequential(wf.nn.Linear(300, 100, device="cuda"), wf.nn.ReLU())
        optimizer = wf.optim.AdamW(model.parameters())
        model(wf.ones((4, 300), device="cuda")).sum().backward()
        optimizer.step()

    train()
    gc.collect()
    wf.cuda.release_memory()
    results = Full()
    results.most = sum(map(len, card.blocks.values())) + 1_500_000
    monkeypatch.setattr(card, "results", results)
    gc.disable()  # it would come by chance
    try:
        for _ in range(12):
            train()
    finally:
        gc.enable()


@pytest.mark.parametrize("compiled", [False, True])
def test_code_that_had_no_room_is_loaded_when_there_is_some(card: HostCard, compiled: bool) -> None:
    # Its code must be new, also where a unit falls back on operations: no other test has uint16.
    x = wf.ones((3, 6), dtype="float32" if compiled else "uint16", device="cuda")

    def halves(x: wf.Tensor) -> wf.Tensor:
        return wf.minimum(x * 0.375 + 0.125, 9.0 + compiled)

    f = wf.jit(halves) if compiled else lambda x: wf.bitwise_xor(x, x)
    card.results["cuModuleLoadData"] = NO_MEMORY
    with pytest.raises(wf.OutOfMemoryError) as caught:
        f(x)
    assert caught.value.at is not None
    assert Path(caught.value.at.file).name == Path(__file__).name  # and not a thread that compiles
    card.results.clear()
    wanted = (wf.jit(halves) if compiled else f)(x.to("cpu"))
    np.testing.assert_allclose(f(x).numpy(), wanted.numpy(), rtol=1e-6)


def test_what_is_dropped_after_a_fault_raises_nothing(
    card: HostCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    stream = Stream(device())
    memory = stream.allocate(1 << 16)
    del memory  # the stream keeps it
    for name in ("cuStreamSynchronize", "cuMemFreeAsync", "cuStreamDestroy_v2"):
        card.results[name] = INVALID_ADDRESS
    del stream
    gc.collect()
    card.results.clear()
    assert not raised
    assert float(wf.ones(3).sum()) == 3.0


def test_a_wait_needs_no_event_that_another_thread_took(card: HostCard) -> None:
    class Taken(list[Any]):
        """A list that another thread empties between two looks at it."""

        def pop(self, *place: Any) -> Any:
            self.clear()
            return super().pop(*place)

    stream = compute_stream(0)
    wf.cuda.synchronize()
    stream._idle_events = Taken(stream._idle_events)
    assert stream._idle_events
    wf.cuda.synchronize()
    assert len(stream._idle_events) == 1


def test_memory_is_given_back_while_another_thread_asks_for_a_new_size(card: HostCard) -> None:
    stream = Stream(device())
    for count in (1 << 10, 1 << 12, 1 << 14):
        stream.allocate(count)  # dropped at once
    free, other = card.do_cuMemFreeAsync, iter(range(1, 100))

    def free_while_others_allocate(address: int, handle: int) -> None:
        stream.arena.pool(1 << 20 | next(other) << 9)
        free(address, handle)

    card.do_cuMemFreeAsync = free_while_others_allocate  # type: ignore[method-assign]
    try:
        stream.arena.release()
    finally:
        del card.do_cuMemFreeAsync
    assert stream.arena.used == 0


def test_an_allocation_that_found_room_at_last_holds_nothing_of_its_callers(card: HostCard) -> None:
    class Held:
        """Something that a caller has."""

    answers = [NO_MEMORY]
    alive = [Held()]
    watch = weakref.ref(alive[0])

    class Once(dict[str, int]):
        """No room for the first allocation."""

        def get(self, name: str, *default: Any) -> Any:
            is_first = name == "cuMemAllocAsync" and answers
            return answers.pop() if is_first else super().get(name, *default)

    def allocate(held: Held) -> int:
        return stream.allocate(1 << 21).count

    stream, before = Stream(device()), card.results
    gc.disable()
    try:
        card.results = Once()
        allocate(alive.pop())
        assert not answers
        assert watch() is None
    finally:
        gc.enable()
        card.results = before
