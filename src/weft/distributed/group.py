"""A group of processes as collectives see it: an engine, watched.

Before each operation all processes compare what they are about to do, by a sum of a few bytes. So
a process that runs another program, or has a tensor of another shape, is named on every process
instead of being waited for. An operation that takes too long ends the process with a report of
what the others are doing; a process that is lost is an error on all others.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np

import weft as wf
from weft.collectives import (
    Pairs,
    Reduce,
    group_cells,
    has_called,
    process_groups,
    running_calls,
    user_location,
)
from weft.distributed.engines.engine import Engine, LostProcess, widen_for_sum
from weft.distributed.status import Doing, StatusBoard

__all__ = ["TIMED_OUT", "Group", "Watch"]

Array = np.ndarray[Any, Any]
TIMED_OUT = 75
"""The exit code of a process that waited too long."""
LEFT_ALONE = 5.0
"""Seconds that a process waits for others whose scripts are over."""
DESCRIBED = 512
"""Bytes of the text that says what a process is about to do."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Watch:
    """What this process does, for itself and for others, and the thread that ends long waits."""

    def __init__(
        self, rank: int, timeout: float, board: StatusBoard | None = None, grace: float = 0.0
    ) -> None:
        self.rank, self.timeout, self.board, self._grace = rank, timeout, board, grace
        self._numbers = itertools.count(1)
        self._doing: Doing | None = None
        self._members: Sequence[int] = ()
        self._ended = threading.Event()

    def start(self) -> None:
        """Watch from now on, in a thread of its own."""
        threading.Thread(target=self._look, name="weft-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer; who made native calls alone, of which none is noted, says so."""
        self._ended.set()
        if self.board is not None and has_called() and self.board.read(self.rank) is None:
            self.board.write(self.rank, Doing(0, time.time(), "calls of compiled programs", ""))

    @contextmanager
    def during(
        self, operation: str, members: Sequence[int] = (), extra: float = 0.0
    ) -> Iterator[None]:
        """Note an operation of some processes while it runs.

        extra: how many seconds more than others it may take.
        """
        location = user_location()
        line = "" if location is None else str(location)
        self._members = members
        self._doing = Doing(next(self._numbers), time.time() + extra, operation, line)
        if self.board is not None:
            self.board.write(self.rank, self._doing)
        try:
            yield
        finally:
            self._doing = None

    def report(self) -> str:
        """What the other processes on this host are doing, as far as it is known."""
        return "; ".join(self.board.report(self.rank)) if self.board is not None else ""

    def _look(self) -> None:
        native: dict[str, Doing] = {}
        while not self._ended.wait(min(self.timeout / 4, 1.0)):
            native = self._native_calls(native)
            mesh_axis, doing = next(iter(native.items()), ("", self._doing))
            if doing is None:
                continue
            waited = time.time() - doing.since
            if waited > self.timeout + self._grace:
                self._give_up(doing, f"waited longer than {self.timeout:g} s in {doing}")
            members = members_of(mesh_axis) if mesh_axis else self._members
            if waited > LEFT_ALONE and self.board is not None:
                done = ", ".join(map(str, self.board.are_done(members)))
                if done:
                    reason = f"waits for rank {done}, whose script is over, in {doing}"
                    self._give_up(doing, f"{reason}; have all processes call it equally often")

    def _native_calls(self, before: dict[str, Doing]) -> dict[str, Doing]:
        """The calls of compiled programs that run now, each since it was seen first."""
        now = {}
        for mesh_axis, number, description in running_calls():
            known = before.get(mesh_axis)
            is_same = known is not None and known.number == number
            seen = known if is_same else Doing(number, time.time(), description, "")
            assert seen is not None
            now[mesh_axis] = seen
            if self.board is not None and not is_same:
                self.board.write(self.rank, seen)
        return now

    def _give_up(self, doing: Doing, reason: str) -> None:
        """End the process: an engine's call cannot be interrupted."""
        lines = [
            f"distributed: rank {self.rank} {reason}",
            *(self.board.report(self.rank) if self.board is not None else ()),
        ]
        text = "\n  ".join(lines)
        if self.board is not None:
            self.board.write(self.rank, doing._replace(error="a wait that did not end"))
        for give_up in GIVE_UP or [_print_reason]:
            give_up(text, TIMED_OUT)
        os._exit(TIMED_OUT)


def _print_reason(text: str, code: int) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


GIVE_UP: list[Callable[[str, int], None]] = []
"""Called with the reason and the exit code before a process ends itself; see worker.py."""


class Group:
    """A communicator whose operations are compared, noted and watched."""

    def __init__(
        self, engine: Engine, name: str, watch: Watch, checks: bool = True,
        members: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.name, self.watch, self.checks = engine, name, watch, checks
        self.rank, self.size = engine.rank, engine.size
        self.members = range(engine.size) if members is None else members
        """The numbers that the launcher gave its processes."""
        self._what = ""

    @contextmanager
    def saying(self, what: str) -> Iterator[None]:
        """See `Communicator`."""
        self._what = f" {what}" if what else ""
        try:
            yield
        finally:
            self._what = ""

    @contextmanager
    def _operation(self, name: str, detail: str, kind: str = "") -> Iterator[None]:
        """Around an engine's call: note it, compare it with the others', translate a loss."""
        description = f"{name}{kind}({self.name}){self._what} {detail}"
        with self.watch.during(description, self.members):
            try:
                if self.checks:
                    self._compare(description)
                yield
            except LostProcess as lost:
                raise self.lost_error(name, str(lost)) from lost

    def lost_error(self, operation: str, reason: str) -> wf.ProcessError:
        """The error for a process of this group that is gone."""
        return wf.ProcessError(
            operation,
            "a process of the group was lost",
            expected=f"all {self.size} processes of the axis {self.name!r}",
            got={"rank": self.watch.rank},
            note="; ".join(filter(None, [reason, self.watch.report()])),
            fix="look at the first failure that the launcher shows; "
            "wf.distributed.Recovery goes on without the lost process",
        )

    def compare(self, description: str) -> None:
        """Raise an error on every process if not all of them give the same text."""
        with self.watch.during(description, self.members):
            try:
                self._compare(description)
            except LostProcess as lost:
                raise self.lost_error("distributed", str(lost)) from lost

    def _compare(self, description: str) -> None:
        digest = _digest_of(description)
        both = self.engine.largest(np.array([digest, -digest]))
        if both[0] != -both[1]:
            self._say_what_differs(description)

    def _say_what_differs(self, description: str) -> None:
        """Raise an error with what each process is about to do."""
        text = description.encode()[:DESCRIBED].ljust(DESCRIBED)
        texts = self.engine.all_gather(np.frombuffer(text, np.uint8))
        said = [bytes(each).decode(errors="replace").strip() for each in texts]
        usual = max(said, key=said.count)
        others = [rank for rank, each in enumerate(said) if each != usual]
        raise wf.ProcessError(
            "distributed",
            f"processes disagree on what to do: rank {', '.join(map(str, others))} differs",
            expected="the same operation, on tensors of the same type, on every process",
            got={f"rank {rank}": each for rank, each in enumerate(said)},
            fix="make shapes and the order of operations the same on all processes",
        )

    def compare_facts(self, op: str, facts: Mapping[str, str]) -> None:
        """Raise an error on every process if one of the texts is not the same on all of them.

        facts: the texts, by what they say something about; addresses of objects do not count.
        """
        texts = {what: _ADDRESS.sub("", text) for what, text in facts.items()}
        own = [_digest_of(text) for text in texts.values()]
        digests = self.all_gather(np.array(own))
        if (digests == digests[0]).all():
            return
        place = int(np.argmax((digests != digests[0]).any(axis=0)))
        what = list(texts)[place]
        each = [data.decode().split("\n") for data in self.gather_bytes(texts[what].encode())]
        line = next(i for i, lines in enumerate(zip_longest(*each)) if len({*lines}) > 1)
        said = [lines[line].strip() if line < len(lines) else "nothing more" for lines in each]
        usual = max(said, key=said.count)
        others = [self.members[rank] for rank, each in enumerate(said) if each != usual]
        raise wf.ProcessError(
            op,
            f"processes disagree on {what}: rank {', '.join(map(str, others))} differs",
            expected=f"the same for {what} on every process",
            got={f"rank {self.members[rank]}": each for rank, each in enumerate(said)},
            note="" if len(each[0]) == 1 else f"line {line + 1} of how it is shown",
            fix="make it in the same way on all processes",
        )

    def all_reduce(self, array: Array, reduce: Reduce) -> Array:
        """See `Communicator`."""
        # In the words of compiled programs, which may meet it: of two stages of a pipeline, one
        # may have a compiled update, and the other, with few elements, an eager one.
        dtype = widen_for_sum(array.reshape(-1)[:0]).dtype
        with self._operation("all_reduce", f"of {array.size} {dtype.name}", f"_{reduce}"):
            return self.engine.all_reduce(array, reduce)

    def all_gather(self, array: Array) -> Array:
        """See `Communicator`."""
        with self._operation("all_gather", _type_of(array)):
            return self.engine.all_gather(array)

    def reduce_scatter(self, blocks: Array) -> Array:
        """See `Communicator`."""
        with self._operation("reduce_scatter", _type_of(blocks)):
            return self.engine.reduce_scatter(blocks)

    def all_to_all(self, blocks: Array) -> Array:
        """See `Communicator`."""
        with self._operation("all_to_all", _type_of(blocks)):
            return self.engine.all_to_all(blocks)

    def broadcast(self, array: Array, root: int) -> Array:
        """See `Communicator`."""
        with self._operation("broadcast", f"root {root} {_type_of(array)}"):
            return self.engine.broadcast(array, root)

    def permute(self, array: Array, pairs: Pairs) -> Array:
        """See `Communicator`."""
        with self._operation("permute", f"{list(pairs)} {_type_of(array)}"):
            return self.engine.permute(array, pairs)

    def send(self, arrays: Sequence[Array], target: int, tag: int, note: Any = None) -> None:
        """Send arrays and what is noted beside them to one process, and go on at once.

        Nobody may write to the arrays any more.
        """
        header = pickle.dumps((note, [(array.dtype, array.shape) for array in arrays]))
        try:
            self.engine.send(np.frombuffer(header, np.uint8), target, tag)
            for array in arrays:
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                self.engine.send(data, target, tag)
        except LostProcess as lost:
            raise self.lost_error("send", str(lost)) from lost

    def receive(self, source: int, tag: int, what: str = "") -> tuple[list[Array], Any]:
        """The next arrays that a process has sent under a tag, and what it noted beside them."""
        sender = [self.members[source]]
        with self.watch.during(f"receive({self.name}) {what} from {source}", sender):
            try:
                note, kinds = pickle.loads(self.engine.receive(source, tag).tobytes())
                arrays = [
                    self.engine.receive(source, tag).view(dtype).reshape(shape)
                    for dtype, shape in kinds
                ]
            except LostProcess as lost:
                raise self.lost_error("receive", str(lost)) from lost
        return arrays, note

    def barrier(self) -> None:
        """Return once all processes are here."""
        with self._operation("barrier", ""):
            self.engine.barrier()

    def native_words(self) -> dict[int, int] | None:
        """What compiled programs call the engine by; None where it is called in Python."""
        words = getattr(self.engine, "native_words", None)
        found: dict[int, int] | None = None if words is None else words()
        return None if found is None else {**found, group_cells.CHECKS: int(self.checks)}

    def native_failure(self, code: int, description: str) -> BaseException:
        """The error for a native call that ended with a code."""
        if code == group_cells.OTHER_SIZE:
            return wf.ArgumentError(
                "all_reduce",
                "the program was made for a group of another size",
                expected=f"a program for {self.size} processes along {self.name!r}",
                got={"call": description},
                fix="compile the function again: wf.jit(f)",
            )
        if code != group_cells.DIFFERENT:
            text: str = getattr(self.engine, "error_text", str)(code)
            return self.lost_error("all_reduce", text)
        try:
            self._say_what_differs(description)
        except wf.ProcessError as error:
            return error
        return self.lost_error("all_reduce", "processes differed for a moment")

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """The bytes of one process, on all of them."""
        length = int(self.broadcast(np.array([len(data)]), root)[0])
        buffer = np.zeros(length, np.uint8)
        if self.rank == root:
            buffer[:] = np.frombuffer(data, np.uint8)
        return self.broadcast(buffer, root).tobytes() if length else b""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all processes, in the order of ranks."""
        lengths = [int(n) for n in self.all_gather(np.array([len(data)]))[:, 0]]
        padded = np.zeros(max([1, *lengths]), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = self.all_gather(padded)
        return [bytes(row[:n]) for row, n in zip(rows, lengths, strict=True)]

    def subgroup(self, ranks: Sequence[int], name: str) -> Group:
        """The group of some ranks, this one among them; disjoint groups are made at once."""
        members = [self.members[rank] for rank in ranks]
        try:
            engine = self.engine.subgroup(ranks)
        except LostProcess as lost:
            raise self.lost_error(f"the group of {name!r}", str(lost)) from lost
        return Group(engine, name, self.watch, self.checks, members)


def _digest_of(text: str) -> int:
    """The number that stands for a text, of 56 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def members_of(mesh_axis: str) -> Sequence[int]:
    """The numbers of the processes along an axis; none where it has no group any more."""
    group = process_groups().get(mesh_axis)
    return group.members if isinstance(group, Group) else ()


def _type_of(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
