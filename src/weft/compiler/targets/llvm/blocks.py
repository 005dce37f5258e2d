"""Loops and branches as LLVM blocks, around whatever is written inside them.

>>> from weft.compiler.targets.cpu.machine import host
>>> control = Control(host(width=1))
>>> control.loop("0", "9", 3, frozenset(), lambda i, names: [i], [("i64", "7")])
['%i4']
>>> print(control.values.lines.text[-1])
after3:
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.targets.llvm.ir_builder import Function
from weft.compiler.targets.llvm.ir_types import steps, vector_text
from weft.compiler.targets.llvm.machine import Machine
from weft.compiler.targets.llvm.values import ZEROS, Lanes, Values
from weft.ir.loops import Accumulate, For, expressions, walk
from weft.ir.scalars import Buffer, nodes_in_order

Body = Callable[[str, list[str]], list[str]]
"""Writes a loop's body: given its index and what it carries, what it carries on."""


class Control:
    """The state of writing one function."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.values = Values(machine, Function())
        self.entry: list[str] = [
            "  %nowhere = alloca i64, align 8",
            "  store i64 0, ptr %nowhere",
            f"  %zeros = alloca {ZEROS}, align 64",
            f"  store {ZEROS} zeroinitializer, ptr %zeros",
        ]

    def local(self, kind: str) -> str:
        """Memory on the stack, for the whole call."""
        name = f"%local{next(self.values.function.numbers)}"
        self.entry.append(f"  {name} = alloca {kind}, align 64")
        return name

    def end_of_whole_steps(self, start: str, stop: str, step: int, extent: int | None) -> str:
        """The end of as many whole steps as there are."""
        if extent is not None:
            return str(int(start) + (extent - int(start)) // step * step)
        lines = self.values.lines
        count = lines.put(f"sub i64 {stop}, {start}") if start != "0" else stop
        whole = lines.put(f"and i64 {count}, {-step}")
        return lines.put(f"add i64 {start}, {whole}") if start != "0" else whole

    def bases(self, i: str, width: int, count: int) -> tuple[str, ...]:
        """The index of the first lane of each vector."""
        lines = self.values.lines
        return (i, *(lines.put(f"add i64 {i}, {width * k}") for k in range(1, count)))

    def mask(self, i: str, stop: str, width: int) -> str:
        """The lanes from an index on that are before the end."""
        lines = self.values.lines
        left = lines.put(f"sub i64 {stop}, {i}")
        most = lines.put(f"call i64 @llvm.smin.i64(i64 {left}, i64 {width})")
        short = lines.put(f"trunc i64 {most} to i32")
        one = lines.put(f"insertelement <{width} x i32> poison, i32 {short}, i64 0")
        kind = vector_text("i32", width)
        splat = lines.put(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")
        return lines.put(f"icmp slt {kind} {steps(width, 'i32')}, {splat}")

    def in_lanes(self, lanes: Lanes, write: Callable[[], None]) -> None:
        """Write something for vectors."""
        values = self.values
        outer = values.lanes, values.lanes_depth
        values.lanes, values.lanes_depth = lanes, values.depth
        write()
        values.lanes, values.lanes_depth = outer

    def guard_range(
        self,
        start: str,
        stop: str,
        writes: frozenset[Buffer],
        inside: Callable[[], list[str]],
        instead: list[tuple[str, str]],
    ) -> list[str]:
        """Write code that runs only if start < stop; its values, or others of the given types."""
        values = self.values
        values.enter(writes)
        results = inside()
        text = values.leave()
        lines = values.lines
        if _runs(start, stop):
            lines.text += text
            return results
        guard, then, end, after = (lines.fresh(stem) for stem in ("guard", "then", "end", "after"))
        lines.do(f"br label %{guard}")
        lines.label(guard)
        some = lines.put(f"icmp slt i64 {start}, {stop}")
        lines.do(f"br i1 {some}, label %{then}, label %{after}")
        lines.label(then)
        lines.text += text
        lines.do(f"br label %{end}")
        lines.label(end)
        lines.do(f"br label %{after}")
        lines.label(after)
        return [
            lines.put(f"phi {kind} [ {other}, %{guard} ], [ {result}, %{end} ]")
            for result, (kind, other) in zip(results, instead, strict=True)
        ]

    def loop(
        self,
        start: str,
        stop: str,
        step: int,
        writes: frozenset[Buffer],
        body: Body,
        carried: list[tuple[str, str]],
        runs: bool = False,
    ) -> list[str]:
        """Write a loop that carries values of given types and beginnings; their last values."""
        values = self.values
        entry, head, latch, after = (
            values.lines.fresh(stem) for stem in ("entry", "body", "latch", "after")
        )
        i, following = f"%{values.lines.fresh('i')}", f"%{values.lines.fresh('n')}"
        names = [f"%{values.lines.fresh('c')}" for _ in carried]
        values.enter(writes)
        results = body(i, names)
        text = values.leave()
        lines = values.lines
        lines.do(f"br label %{entry}")
        lines.label(entry)
        if runs or _runs(start, stop):
            lines.do(f"br label %{head}")
        else:
            some = lines.put(f"icmp slt i64 {start}, {stop}")
            lines.do(f"br i1 {some}, label %{head}, label %{after}")
        lines.label(head)
        lines.do(f"{i} = phi i64 [ {start}, %{entry} ], [ {following}, %{latch} ]")
        for name, result, (kind, first) in zip(names, results, carried, strict=True):
            lines.do(f"{name} = phi {kind} [ {first}, %{entry} ], [ {result}, %{latch} ]")
        lines.text += text
        lines.do(f"br label %{latch}")
        lines.label(latch)
        lines.do(f"{following} = add nsw i64 {i}, {step}")
        again = lines.put(f"icmp slt i64 {following}, {stop}")
        lines.do(f"br i1 {again}, label %{head}, label %{after}")
        lines.label(after)
        if runs or _runs(start, stop):
            return results
        return [
            lines.put(f"phi {kind} [ {first}, %{entry} ], [ {result}, %{latch} ]")
            for result, (kind, first) in zip(results, carried, strict=True)
        ]

    def work(self, loop: For | Accumulate) -> int:
        """The instructions of a loop's body."""
        roots = [self.values.expand(x) for s in walk((loop,)) for x in expressions(s)]
        return sum(1 for x in nodes_in_order(*roots) if x.args and x.variables)


def _runs(start: str, stop: str) -> bool:
    """Whether a loop with constant bounds runs at all."""
    return start.isdigit() and stop.isdigit() and int(start) < int(stop)
