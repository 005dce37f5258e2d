"""Accumulations in their fixed order; the module `weft.ir.loops` says which it is."""

from __future__ import annotations

from abc import abstractmethod

from weft.compiler.targets.llvm.blocks import Body, Control
from weft.compiler.targets.llvm.instructions import TABLE, select
from weft.compiler.targets.llvm.ir_builder import Lines
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.machine import Machine
from weft.compiler.targets.llvm.values import Lanes
from weft.core.dtypes import DType
from weft.ir.loop_reference import identity
from weft.ir.loops import PARTIALS, Accumulate, Statement, Update, has_loops, written_buffers
from weft.ir.scalars import const

LONGEST = 16
"""Instructions of an accumulation's body up to which it is written for 64 elements."""
_MANY = 8
"""Vectors of partial results beyond which they are kept in memory."""

Vectors = tuple[str, ...]


class Accumulation(Control):
    """Writes accumulations; `in_vectors` says whether a vector loop is around."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.in_vectors = False

    @abstractmethod
    def body(self, body: tuple[Statement, ...]) -> None:
        """Write statements."""

    def accumulate(self, loop: Accumulate) -> None:
        """Write an accumulation, and define its locals."""
        stop = self.values.scalar(loop.extent)
        if self.in_vectors or has_loops(loop.body):
            write = self._in_order
        elif PARTIALS // self.machine.width > _MANY or self.work(loop) > LONGEST:
            write = self._partials_in_memory
        else:
            write = self._partials_in_registers
        width, count = self._shape()
        kinds = [Type(u.variable.dtype, width) for u in loop.updates]
        instead = [
            (kind.text, _identity(update, kind))
            for update, kind in zip(loop.updates, kinds, strict=True)
            for _ in range(count)
        ]
        results = self.guard_range(
            "0", stop, written_buffers(loop.body), lambda: write(loop, stop), instead
        )
        for position, update in enumerate(loop.updates):
            names = tuple(results[position * count : (position + 1) * count])
            self._finish(update, names, kinds[position])

    def _shape(self) -> tuple[int, int]:
        """The lanes of a vector, and the vectors, that statements are written for."""
        lanes = self.values.lanes
        return (1, 1) if lanes is None else (lanes.width, len(lanes.bases))

    def _finish(self, update: Update, names: Vectors, kind: Type) -> None:
        if update.init is not None:
            init = self.values.vectors(update.init)
            combine = TABLE[update.combine]
            lines = self.values.lines
            pairs = zip(init, names, strict=True)
            names = tuple(combine(lines, kind, first, name) for first, name in pairs)
        self.values.define(update.variable, names, kind.width)

    def _in_order(self, loop: Accumulate, stop: str) -> list[str]:
        """One accumulator, or one for each lane of the loop around."""
        width, count = self._shape()
        carried = [
            (Type(u.variable.dtype, width).text, _identity(u, Type(u.variable.dtype, width)))
            for u in loop.updates
            for _ in range(count)
        ]

        def body(i: str, names: list[str]) -> list[str]:
            self.values.define(loop.index, (i,))
            self.body(loop.body)
            return self._update_accumulators(loop.updates, names, width, ())

        return self.loop("0", stop, 1, written_buffers(loop.body), body, carried, runs=True)

    def _update_accumulators(
        self, updates: tuple[Update, ...], names: list[str], width: int, masks: Vectors
    ) -> list[str]:
        """Combine accumulators with the values of this iteration, in the lanes of masks."""
        lines = self.values.lines
        count = len(names) // len(updates)
        results = []
        for position, update in enumerate(updates):
            kind = Type(update.variable.dtype, width)
            taken = [self.values.vectors(each) for each in update.summands]
            for k, parts in enumerate(zip(*taken, strict=True)):
                name = names[position * count + k]
                if update.times is None:
                    result = TABLE[update.combine](lines, kind, name, *parts)
                else:
                    result = TABLE["fma"](lines, kind, *parts, name)
                results.append(select(lines, kind, masks[k], result, name) if masks else result)
        return results

    def _partials_in_registers(self, loop: Accumulate, stop: str) -> list[str]:
        """64 partial results as vectors, each step one element for all of them."""
        width, writes = self.machine.width, written_buffers(loop.body)
        extent = _constant(loop)
        whole = self.end_of_whole_steps("0", stop, PARTIALS, extent)
        names = self._beginnings(loop)
        if whole != "0":
            body = self._partial_body(loop, width)
            names = self.loop("0", whole, PARTIALS, writes, body, self._carried_pairs(loop, names))
        if whole != str(extent):
            places = self._memory(loop)
            self._spill(loop, places, names)
            self._accumulate_rest(loop, places, whole, stop)
            names = self._restore_vectors(loop, places)
        return self._join_partial_results(loop, names)

    def _partials_in_memory(self, loop: Accumulate, stop: str) -> list[str]:
        """64 partial results in memory, so that long bodies are written only once."""
        places = self._memory(loop)
        self._spill(loop, places, self._beginnings(loop))
        self._accumulate_rest(loop, places, "0", stop)
        return self._join_partial_results(loop, self._restore_vectors(loop, places))

    def _accumulate_rest(self, loop: Accumulate, places: list[str], start: str, stop: str) -> None:
        """Go on with partial results in memory: in vectors, the last one masked or scalar."""
        width, writes, extent = self.machine.width, written_buffers(loop.body), _constant(loop)
        whole = self.end_of_whole_steps(start, stop, width, extent)
        if width == 1 or (self.machine.masked and whole != str(extent)):
            body = self._spot_body(loop, places, stop)
            self.loop(start, stop, width, writes, body, [])
            return
        self.loop(start, whole, width, writes, self._spot_body(loop, places, ""), [])
        if whole != str(extent):
            self.loop(whole, stop, 1, writes, self._single_body(loop, places), [])

    def _memory(self, loop: Accumulate) -> list[str]:
        return [self.local(f"[{PARTIALS} x {Type(u.variable.dtype).memory}]") for u in loop.updates]

    def _beginnings(self, loop: Accumulate) -> list[str]:
        width = self.machine.width
        kinds = [(u, Type(u.variable.dtype, width)) for u in loop.updates]
        return [_identity(u, kind) for u, kind in kinds for _ in range(PARTIALS // width)]

    def _carried_pairs(self, loop: Accumulate, names: list[str]) -> list[tuple[str, str]]:
        count = len(names) // len(loop.updates)
        kinds = [Type(u.variable.dtype, self.machine.width).text for u in loop.updates]
        return [(kinds[position // count], name) for position, name in enumerate(names)]

    def _partial_body(self, loop: Accumulate, width: int) -> Body:
        def body(i: str, names: list[str]) -> list[str]:
            lanes = Lanes(loop.index, width, self.bases(i, width, PARTIALS // width))
            return self._lane_updates(loop, lanes, names)

        return body

    def _spot_body(self, loop: Accumulate, places: list[str], stop: str) -> Body:
        """Combine a vector of elements with the partial results of its lanes, in memory."""
        width = self.machine.width
        if width == 1:
            return self._single_body(loop, places)

        def body(i: str, _: list[str]) -> list[str]:
            masks = (self.mask(i, stop, width),) if stop else ()
            pointers = self._spots(loop, places, i)
            names = self._load_locals(loop, pointers)
            results = self._lane_updates(loop, Lanes(loop.index, width, (i,), masks), names)
            self._store_locals(loop, pointers, results)
            return []

        return body

    def _single_body(self, loop: Accumulate, places: list[str]) -> Body:
        """Combine one element with the partial result of its number, in memory."""

        def body(i: str, _: list[str]) -> list[str]:
            self.values.define(loop.index, (i,))
            self.body(loop.body)
            pointers = self._spots(loop, places, i)
            names = self._load_locals(loop, pointers, 1)
            self._store_locals(
                loop, pointers, self._update_accumulators(loop.updates, names, 1, ()), 1
            )
            return []

        return body

    def _spots(self, loop: Accumulate, places: list[str], i: str) -> list[str]:
        lines = self.values.lines
        spot = lines.put(f"and i64 {i}, {PARTIALS - 1}")
        return [
            lines.put(f"getelementptr {Type(u.variable.dtype).memory}, ptr {place}, i64 {spot}")
            for u, place in zip(loop.updates, places, strict=True)
        ]

    def _load_locals(self, loop: Accumulate, pointers: list[str], width: int = 0) -> list[str]:
        lines, lanes = self.values.lines, width or self.machine.width
        kinds = [Type(u.variable.dtype, lanes) for u in loop.updates]
        pairs = zip(kinds, pointers, strict=True)
        return [_from_local(lines, kind, pointer) for kind, pointer in pairs]

    def _store_locals(
        self, loop: Accumulate, pointers: list[str], names: list[str], width: int = 0
    ) -> None:
        lanes = width or self.machine.width
        for update, pointer, name in zip(loop.updates, pointers, names, strict=True):
            _to_local(self.values.lines, Type(update.variable.dtype, lanes), pointer, name)

    def _spill(self, loop: Accumulate, places: list[str], names: list[str]) -> None:
        for (kind, pointer), name in zip(self._vectors(loop, places), names, strict=True):
            _to_local(self.values.lines, kind, pointer, name)

    def _restore_vectors(self, loop: Accumulate, places: list[str]) -> list[str]:
        lines = self.values.lines
        return [_from_local(lines, kind, spot) for kind, spot in self._vectors(loop, places)]

    def _vectors(self, loop: Accumulate, places: list[str]) -> list[tuple[Type, str]]:
        """The type and place of each vector of partial results."""
        lines, width = self.values.lines, self.machine.width
        found = []
        for update, place in zip(loop.updates, places, strict=True):
            kind = Type(update.variable.dtype, width)
            for lane in range(0, PARTIALS, width):
                step = f"getelementptr {Type(kind.dtype).memory}, ptr {place}, i64 {lane}"
                found.append((kind, lines.put(step)))
        return found

    def _lane_updates(self, loop: Accumulate, lanes: Lanes, names: list[str]) -> list[str]:
        results: list[str] = []

        def write() -> None:
            self.body(loop.body)
            results.extend(self._update_accumulators(loop.updates, names, lanes.width, lanes.masks))

        self.in_lanes(lanes, write)
        return results

    def _join_partial_results(self, loop: Accumulate, names: list[str]) -> list[str]:
        """64 partial results made one: each half combined with the other."""
        width = self.machine.width
        count = len(names) // len(loop.updates)
        results = []
        for position, update in enumerate(loop.updates):
            own = names[position * count : (position + 1) * count]
            while len(own) > 1:
                kind, half = Type(update.variable.dtype, width), len(own) // 2
                own = [self._combine_two(update, kind, own[k], own[k + half]) for k in range(half)]
            results.append(self._combine_lanes(update, own[0], width))
        return results

    def _combine_lanes(self, update: Update, name: str, width: int) -> str:
        lines, dtype = self.values.lines, update.variable.dtype
        while width > 1:
            kind, half = Type(dtype, width), width // 2
            parts = [_lanes_of(lines, kind, name, range(k, k + half)) for k in (0, half)]
            name = self._combine_two(update, Type(dtype, half), *parts)
            width = half
        return name

    def _combine_two(self, update: Update, kind: Type, x: str, y: str) -> str:
        return TABLE[update.combine](self.values.lines, kind, x, y)


def _lanes_of(lines: Lines, kind: Type, name: str, lanes: range) -> str:
    if len(lanes) == 1:
        return lines.put(f"extractelement {kind.text} {name}, i64 {lanes[0]}")
    chosen = "<" + ", ".join(f"i32 {lane}" for lane in lanes) + ">"
    mask = f"<{len(lanes)} x i32> {chosen}"
    return lines.put(f"shufflevector {kind.text} {name}, {kind.text} poison, {mask}")


def _from_local(lines: Lines, kind: Type, pointer: str) -> str:
    """A vector of partial results from the stack; truth values take a byte there."""
    name = lines.put(f"load {kind.memory}, ptr {pointer}, align {kind.dtype.itemsize}")
    return (
        name
        if kind.memory == kind.text
        else lines.put(f"trunc {kind.memory} {name} to {kind.text}")
    )


def _to_local(lines: Lines, kind: Type, pointer: str, name: str) -> None:
    if kind.memory != kind.text:
        name = lines.put(f"zext {kind.text} {name} to {kind.memory}")
    lines.do(f"store {kind.memory} {name}, ptr {pointer}, align {kind.dtype.itemsize}")


def _constant(loop: Accumulate) -> int | None:
    """The extent, if it is known."""
    return int(loop.extent.detail) if loop.extent.op == "const" else None


def _identity(update: Update, kind: Type) -> str:
    return kind.literal(_identity_of(update.combine, kind.dtype))


def _identity_of(combine: str, dtype: DType) -> bool | int | float:
    return const(identity(combine, dtype).item(), dtype).detail  # type: ignore[no-any-return]
