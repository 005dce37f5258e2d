"""Chains: a product and the row-wise kernels around it, run block of rows by block of rows.

What such a kernel reads of the product are rows that have just been made, and are still in cache:
bias, activation, residual, softmax or an optimiser's update become the epilogue of a product, and
a value that only the chain reads is never in main memory: it lies in scratch memory of a block.
A kernel is part of a chain if each of its iterations touches nothing of the chain's values but its
own rows, which the lowering tells (`by_rows`); its code is the same as outside of chains.

>>> import weft as wf
>>> from weft.compiler.program import Program
>>> kinds = [wf.spec("float32", shape) for shape in ((64, 32), (32, 16), (16,))]
>>> program = Program(wf.ir.trace(lambda x, w, b: wf.relu(x @ w + b), *kinds))
>>> [call.name for call in program.calls]
['dot+k0']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import lcm
from typing import TYPE_CHECKING

from weft.compiler.kernels import text_addresses
from weft.compiler.order import early
from weft.core.shapes import Dimension, size, substitute
from weft.ir.graph import Graph, Literal, Variable

if TYPE_CHECKING:
    from weft.compiler.native_calls import Call

Value = Variable | Literal
Sizes = Mapping[str, int]
Root = Callable[[Value], Value]

SCRATCH = 384 * 1024
"""Bytes of a block's rows that should stay in cache."""
UNIT = 256
"""The most rows that an iteration of a kernel in a chain may have."""
LONGEST = 6
"""The most kernels of a chain."""
LINE = 64
STARTS = ("dot", "conv")
"""The names of calls that a chain begins with."""
HEAD, STAGE, ENTRY = 5, 5, 3
"""Numbers at the head of the table, of each stage, and of each buffer."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A call in a chain: it has `many` iterations for each `few` rows."""

    call: Call
    many: Dimension
    few: Dimension


def chained(
    calls: Sequence[Call], outputs: Sequence[Value], graph: Graph, root: Root
) -> list[Call]:
    """The calls with chains as one call each, as early as they can run; `outputs` are stored."""
    return _Chains(calls, outputs, graph, root).all()


class _Chains:
    """What is looked up while chains are found."""

    def __init__(
        self, calls: Sequence[Call], outputs: Sequence[Value], graph: Graph, root: Root
    ) -> None:
        self.calls, self.root = calls, root
        self.outputs = {root(atom) for atom in outputs}
        barriers = [node for node in graph.nodes if node.primitive.name == "barrier"]
        self.fenced: set[Value] = {node.results[0] for node in barriers}
        """What is read behind a barrier is read at its own time, and is no reason for a chain."""
        self.taken: set[int] = set()
        self.readers: dict[Value, list[int]] = {}
        self.maker: dict[Value, int] = {}
        for position, call in enumerate(calls):
            self.maker.update((root(value), position) for value in call.writes)
            for value in {root(v) for v in call.values} - {root(v) for v in call.writes}:
                self.readers.setdefault(value, []).append(position)

    def all(self) -> list[Call]:
        """Every product is the start of a chain, unless it is part of one."""
        taken = self.taken
        chains: dict[int, Call] = {}
        for position, call in enumerate(self.calls):
            if position in taken or not self.is_start(call):
                continue
            found = _Chain(self, position).begun().grown()
            if len(found.stages) > 1:
                taken |= set(found.positions)
                chains[position] = found.call()
        return early(
            [
                chains.get(position, call)
                for position, call in enumerate(self.calls)
                if position in chains or position not in taken
            ],
            self.root,
        )

    def is_start(self, call: Call) -> bool:
        return call.name in STARTS and bool(call.by_rows)

    def first_reader(self, values: Sequence[Value], besides: Sequence[int]) -> int | None:
        """The first call outside that reads any of some values."""
        found = [p for v in values for p in self.readers.get(v, []) if p not in besides]
        return min(found, default=None)


class _Chain:
    """A chain that is being made: its stages, and the elements that a row of its values has."""

    def __init__(self, chains: _Chains, start: int) -> None:
        self.chains = chains
        self.positions = [start]
        call = chains.calls[start]
        self.stages = [Stage(call, 1, 1)]
        result = call.writes[0]
        self.width: dict[Value, Dimension] = {chains.root(result): call.by_rows[result]}
        self.rows = _rows(result, call)

    def begun(self) -> _Chain:
        """The chain with the call before it that makes its left operand, if that fits."""
        chains, (start,), (own,) = self.chains, self.positions, self.stages
        left = chains.root(own.call.values[0])
        made = chains.maker.get(left)
        if made is None or made in chains.taken or own.call.values[0] not in own.call.by_rows:
            return self
        if own.call.values[0] in chains.fenced:
            return self
        if left == chains.root(own.call.values[1]):  # of which the product needs all rows
            return self
        call = chains.calls[made]
        waiting = [chains.root(value) for value in call.writes]
        if chains.is_start(call) or chains.first_reader(waiting, [start, made]) in range(start):
            return self
        before = dict(self.width)
        self.width[left] = own.call.by_rows[own.call.values[0]]  # type: ignore[index]
        stage = self.stage(call)
        if stage is None:
            self.width = before
        else:
            self.positions, self.stages = [made, start], [stage, own]
        return self

    def grown(self) -> _Chain:
        """The chain with as many of the calls that follow as fit."""
        while len(self.stages) < LONGEST:
            following = self.chains.first_reader(list(self.width), self.positions)
            if following is None or following in self.chains.taken:
                break
            stage = self.stage(self.chains.calls[following])
            if stage is None:
                break
            self.positions.append(following)
            self.stages.append(stage)
        return self

    def stage(self, call: Call) -> Stage | None:
        """A call as the next stage; None if it does not fit."""
        root = self.chains.root
        own = {root(value): parts for value, parts in call.by_rows.items()}
        shared = {root(value) for value in call.values} & set(self.width)
        whole = {root(value) for value in call.values if value not in call.by_rows}
        whole |= {root(value) for value in call.values if value in self.chains.fenced}
        if not shared <= set(own) - whole or not {root(v) for v in call.writes} <= set(own):
            return None
        ratios = {_ratio(self.width[value], own[value]) for value in shared}
        ratio = ratios.pop() if len(ratios) == 1 else None
        if ratio is None:
            return None
        widths = {root(v): _width(own[root(v)], ratio) for v in call.writes}
        if any(width is None for width in widths.values()):
            return None
        self.width.update({v: width for v, width in widths.items() if width is not None})
        return Stage(call, *ratio)

    # --- the call ----------------------------------------------------------------------------

    def call(self) -> Call:
        """The chain as one call."""
        first = next(stage.call for stage in self.stages if stage.call.name in STARTS)
        values = self.outside()
        return replace(
            first,
            name="+".join(stage.call.name for stage in self.stages),
            function=address(),
            values=values,
            writes=tuple(v for s in self.stages for v in s.call.writes if v in values),
            sizes=lambda sizes: self.table(sizes, values),
            extent=lambda sizes: -(-self.count(self.rows, sizes) // self.height(sizes)),
            grain=lambda sizes: 1,
            work=self.work,
            in_place=tuple(self.in_place()),
            by_rows={},
            stages=tuple(stage.call for stage in self.stages),
        )

    def work(self, sizes: Sizes) -> float:
        """The work of all stages."""
        return sum(s.call.work(sizes) for s in self.stages if s.call.work is not None)

    def in_place(self) -> Iterator[tuple[Variable, Variable]]:
        """Pairs of which neither is read or stored by another stage."""
        root = self.chains.root
        uses = [{root(v) for v in stage.call.values} for stage in self.stages]
        for stage in self.stages:
            for pair in stage.call.in_place:
                if all(sum(root(v) in used for used in uses) == 1 for v in pair):
                    yield pair

    def is_local(self, value: Value) -> bool:
        """Whether a value is made and read in this chain only."""
        root = self.chains.root(value)
        if root not in self.width or root in self.chains.outputs:
            return False
        return self.chains.first_reader([root], self.positions) is None

    def outside(self) -> tuple[Value, ...]:
        """The values that are in memory, each once."""
        every = [v for stage in self.stages for v in stage.call.values]
        return tuple(dict.fromkeys(v for v in every if not self.is_local(v)))

    def locals(self) -> list[Value]:
        """The values that are in scratch memory, each once."""
        root = self.chains.root
        every = [v for stage in self.stages for v in stage.call.values]
        return list(dict.fromkeys(root(v) for v in every if self.is_local(v)))

    @staticmethod
    def count(dim: Dimension, sizes: Sizes) -> int:
        return int(substitute(dim, dict(sizes)))

    def row_bytes(self, value: Value, sizes: Sizes) -> int:
        """The bytes that one row of a value takes."""
        return self.count(self.width[value], sizes) * value.type.dtype.itemsize

    def height(self, sizes: Sizes) -> int:
        """The rows of a block: as many as a product wants, if they stay in cache."""
        unit = lcm(*[self.count(stage.few, sizes) for stage in self.stages])
        wanted = min(s.call.grain(sizes) for s in self.stages if s.call.name in STARTS)
        held = sum(self.row_bytes(value, sizes) for value in self.width)
        # a block of a convolution is many rows already
        least = 24 if all(stage.call.name != "conv" for stage in self.stages) else 1
        fits = max(least, min(wanted, SCRATCH // max(1, held)))
        return max(1, fits // unit) * unit

    def table(self, sizes: Sizes, values: tuple[Value, ...]) -> list[int]:
        """What the native function is given; see `SOURCE`."""
        height = self.height(sizes)
        places, used = self.places(sizes, height)
        stages, entries, numbers = list[int](), list[int](), list[int]()
        count = sum(len(stage.call.values) for stage in self.stages)
        start = HEAD + STAGE * len(self.stages) + ENTRY * count
        for stage in self.stages:
            many, few = self.count(stage.many, sizes), self.count(stage.few, sizes)
            first = len(entries) // ENTRY
            stages += [stage.call.function, first, start + len(numbers), many, few]
            numbers += stage.call.sizes(sizes)
            for value in stage.call.values:
                local = places.get(self.chains.root(value)) if self.is_local(value) else None
                entries += [values.index(value), 0, 0] if local is None else [-1, *local]
        rows = self.count(self.rows, sizes)
        return [len(self.stages), rows, height, used, count, *stages, *entries, *numbers]

    def places(self, sizes: Sizes, height: int) -> tuple[dict[Value, tuple[int, int]], int]:
        """Where in scratch memory each local is, the bytes of its rows; and how much there is."""
        found, used = dict[Value, tuple[int, int]](), 0
        for value in self.locals():
            wide = self.row_bytes(value, sizes)
            found[value] = used, wide
            used += -(-wide * height // LINE) * LINE
        return found, used


def _rows(result: Variable, call: Call) -> Dimension:
    """How many rows a product has: what is left of the result's size."""
    left: Dimension = size(result.type.shape)
    return left // call.by_rows[result] if call.by_rows[result] != 0 else 0


def _ratio(width: Dimension, part: Dimension) -> tuple[Dimension, Dimension] | None:
    """How many iterations there are for how many rows; None if it is not known to come out."""
    if part == width:
        return 1, 1
    if part == 1:
        return width, 1
    if not isinstance(width, int) or not isinstance(part, int) or 0 in (width, part):
        return None
    if width % part == 0:
        return width // part, 1
    return (1, part // width) if part % width == 0 and part // width <= UNIT else None


def _width(part: Dimension, ratio: tuple[Dimension, Dimension]) -> Dimension | None:
    """The elements of a row of a value of which an iteration makes a part."""
    many, few = ratio
    total = part * many
    if few == 1:
        return total
    exact = isinstance(total, int) and isinstance(few, int) and total % few == 0
    return total // few if exact else None


SOURCE = f"""
declare ptr @malloc(i64)
declare void @free(ptr)
declare i64 @llvm.smin.i64(i64, i64)

define void @"weft.chain"(ptr %buffers, ptr %table, i64 %begin, i64 %end) nounwind {{
entry:
  %count = load i64, ptr %table
  %rows.at = getelementptr i64, ptr %table, i64 1
  %rows = load i64, ptr %rows.at
  %height.at = getelementptr i64, ptr %table, i64 2
  %height = load i64, ptr %height.at
  %bytes.at = getelementptr i64, ptr %table, i64 3
  %bytes = load i64, ptr %bytes.at
  %entries.at = getelementptr i64, ptr %table, i64 4
  %entries = load i64, ptr %entries.at
  %stages = getelementptr i64, ptr %table, i64 {HEAD}
  %stages.size = mul i64 %count, {STAGE}
  %list = getelementptr i64, ptr %stages, i64 %stages.size
  %pointers = alloca ptr, i64 %entries, align 8
  %more = add i64 %bytes, {2 * LINE}
  %memory = call ptr @malloc(i64 %more)
  %memory.number = ptrtoint ptr %memory to i64
  %memory.up = add i64 %memory.number, {LINE - 1}
  %scratch = and i64 %memory.up, {-LINE}
  br label %block
block:
  %b = phi i64 [%begin, %entry], [%b.next, %block.end]
  %some = icmp slt i64 %b, %end
  br i1 %some, label %fill.start, label %done
fill.start:
  %from = mul i64 %b, %height
  %until = add i64 %from, %height
  %to = call i64 @llvm.smin.i64(i64 %until, i64 %rows)
  br label %fill
fill:
  %e = phi i64 [0, %fill.start], [%e.next, %filled]
  %e.some = icmp slt i64 %e, %entries
  br i1 %e.some, label %one, label %stage
one:
  %e.off = mul i64 %e, {ENTRY}
  %e.at = getelementptr i64, ptr %list, i64 %e.off
  %number = load i64, ptr %e.at
  %target = getelementptr ptr, ptr %pointers, i64 %e
  %is.given = icmp sge i64 %number, 0
  br i1 %is.given, label %given, label %own
given:
  %given.at = getelementptr ptr, ptr %buffers, i64 %number
  %given.pointer = load ptr, ptr %given.at
  store ptr %given.pointer, ptr %target
  br label %filled
own:
  %place.at = getelementptr i64, ptr %e.at, i64 1
  %place = load i64, ptr %place.at
  %wide.at = getelementptr i64, ptr %e.at, i64 2
  %wide = load i64, ptr %wide.at
  %before = mul i64 %from, %wide
  %at = add i64 %scratch, %place
  %shifted = sub i64 %at, %before
  store i64 %shifted, ptr %target
  br label %filled
filled:
  %e.next = add i64 %e, 1
  br label %fill
stage:
  %s = phi i64 [0, %fill], [%s.next, %run]
  %s.some = icmp slt i64 %s, %count
  br i1 %s.some, label %run, label %block.end
run:
  %s.off = mul i64 %s, {STAGE}
  %s.at = getelementptr i64, ptr %stages, i64 %s.off
  %function = load ptr, ptr %s.at
  %first.at = getelementptr i64, ptr %s.at, i64 1
  %first = load i64, ptr %first.at
  %own.buffers = getelementptr ptr, ptr %pointers, i64 %first
  %sizes.at = getelementptr i64, ptr %s.at, i64 2
  %sizes = load i64, ptr %sizes.at
  %own.sizes = getelementptr i64, ptr %table, i64 %sizes
  %many.at = getelementptr i64, ptr %s.at, i64 3
  %many = load i64, ptr %many.at
  %few.at = getelementptr i64, ptr %s.at, i64 4
  %few = load i64, ptr %few.at
  %from.many = mul i64 %from, %many
  %to.many = mul i64 %to, %many
  %own.from = sdiv i64 %from.many, %few
  %own.to = sdiv i64 %to.many, %few
  call void %function(ptr %own.buffers, ptr %own.sizes, i64 %own.from, i64 %own.to)
  %s.next = add i64 %s, 1
  br label %stage
block.end:
  %b.next = add i64 %b, 1
  br label %block
done:
  call void @free(ptr %memory)
  ret void
}}
"""


@cache
def address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(SOURCE, ["chain"])["chain"]
