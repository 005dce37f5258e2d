"""Events: the latest records are kept, in order, and written as a trace."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread, get_native_id

import pytest

from weft.core.errors import ArgumentError
from weft.runtime.events import Event, Events


def test_the_latest_records_are_kept() -> None:
    events = Events(capacity=4)
    number = events.name("kernel")
    for start in range(10):
        events.record(number, start, start + 1, thread=0)
    assert [event.start for event in events.records()] == [6, 7, 8, 9]
    assert events.dropped() == 6
    events.clear()
    assert events.records() == []
    assert events.name("kernel") == number


def test_a_block_is_measured_on_its_thread() -> None:
    events = Events(capacity=4)
    with pytest.raises(ZeroDivisionError), events.measured("outer"), events.measured("inner"):
        1 / 0
    outer, inner = events.records()
    assert (outer.name, inner.name) == ("outer", "inner")
    assert outer.start <= inner.start <= inner.end <= outer.end
    assert outer.thread == get_native_id()


def test_records_of_several_threads_are_all_kept() -> None:
    events = Events(capacity=1024)

    def write(thread: int) -> None:
        for start in range(200):
            events.record(events.name(f"thread {thread}"), start, start, thread)

    threads = [Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(events.records()) == {
        Event(f"thread {number}", start, start, number)
        for number in range(4)
        for start in range(200)
    }


def test_the_trace_is_in_microseconds(tmp_path: Path) -> None:
    events = Events(capacity=4)
    events.record(events.name('a "name"'), 1500, 4000, thread=7)
    events.write_chrome_trace(tmp_path / "trace.json")
    (event,) = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (event["name"], event["ph"], event["ts"], event["dur"], event["tid"]) == (
        'a "name"', "X", 1.5, 2.5, 7,
    )  # fmt: skip


@pytest.mark.parametrize("capacity", [0, -1, 3, 1000])
def test_a_capacity_that_is_no_power_of_two_is_refused(capacity: int) -> None:
    with pytest.raises(ArgumentError):
        Events(capacity)
