"""Expressions and memory of one thread: what the LLVM target's `Values` does, for a card.

Scalar code and the table of instructions are the LLVM target's. What differs is memory: a thread's
elements are one vector, read and written 16 bytes at a time where that is aligned, and a thread
whose elements are beyond the end of a loop reads zeros from a place of its own and writes nothing.

Values of one step of a loop are kept for the later loops over the same elements, as long as the
code around them is the same: a row that one loop has read, the next has in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.compiler.targets.cuda.instructions import (
    device_cast,
    device_instruction,
    divide_by_shared,
    shared_reciprocal,
)
from weft.compiler.targets.cuda.mathematics import DeviceExpander
from weft.compiler.targets.cuda.memory_accesses import multiple_of
from weft.compiler.targets.llvm.instructions import call, select
from weft.compiler.targets.llvm.ir_builder import Function, Lines
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.machine import Machine
from weft.compiler.targets.llvm.values import Lanes, Value, Values, at_zero, rare_call
from weft.core.dtypes import DType, bool_, float32
from weft.ir.scalars import Buffer, Scalar, load

NOWHERE_BYTES = 128
"""Zeros that are read in place of what is not there: a vector of the widest dtype."""
_VECTOR_BYTES = 16


class DeviceValues(Values):
    """Writes expressions for one thread of a card.

    active: the condition under which the elements of this step are there; empty if they always are.
    leader: the condition that holds in one thread of a team, where all run the same code.
    registers: scratch memory that is kept in registers.
    """

    def __init__(self, machine: Machine, function: Function) -> None:
        super().__init__(machine, function)
        self.expand = DeviceExpander()
        self.active = ""
        self.active_depth = 0
        self.leader = ""
        self.registers: frozenset[Buffer] = frozenset()
        self.deferred: Lines | None = None
        """Where stores are written that wait until all loads of a loop are under way."""
        self._steps: dict[int, dict[Any, dict[Any, Value]]] = {}

    # --- steps -----------------------------------------------------------------------------------

    @contextmanager
    def step(
        self,
        index: Scalar,
        base: str,
        width: int,
        active: str,
        writes: frozenset[Buffer],
        key: Any = None,
    ) -> Iterator[None]:
        """A scope for a thread's elements from a base on; `key` names elements met before."""
        parent = self.depth
        self.enter(writes - self.registers)  # those are each step's own
        if key is not None:
            known = self._steps.setdefault(parent, {}).setdefault(key, {})
            self.scopes[-1].values = known
        outer = self.lanes, self.lanes_depth, self.active, self.active_depth, self.leader
        self.lanes_depth = self.active_depth = self.depth
        self.lanes = Lanes(index, width, (base,)) if width > 1 else None
        self.active, self.leader = active, ""
        if width == 1:
            self.define(index, (base,))
        yield
        self.lanes, self.lanes_depth, self.active, self.active_depth, self.leader = outer
        text = self.scopes.pop().lines.text
        self.lines.text += text

    def leave(self) -> list[str]:
        """Close the innermost scope; what its steps knew is known no more."""
        self._steps.pop(self.depth, None)
        return super().leave()

    def forget(self, buffers: Iterable[Buffer]) -> None:
        """Loads from buffers that have been stored to are not known any more."""
        changed = frozenset(buffers)
        super().forget(changed)
        for steps in self._steps.values():
            for values in steps.values():
                for x in [x for x in values if isinstance(x, Scalar) and x.buffers & changed]:
                    del values[x]

    # --- instructions ----------------------------------------------------------------------------

    def _write_expression(self, x: Scalar) -> Value:
        if x.op == "divide" and x.dtype is float32 and self.active_depth:
            return self._divide(x)
        return super()._write_expression(x)

    def _divide(self, x: Scalar) -> Value:
        """A quotient; a divisor that all elements share is inverted once."""
        top, below = (self._operand(arg) for arg in x.args)
        is_shared = top.depth >= self.active_depth > below.depth and below.names[0].startswith("%")
        if not is_shared or top.depth != self.depth:
            return super()._write_expression(x)
        key = ("reciprocal", below.names[0])
        known = self.known_value(key)
        if known is None:
            pair = shared_reciprocal(self.scopes[below.depth].lines, below.names[0])
            known = self._keep(key, Value(pair, below.depth))
        kind = Type(float32, top.width)
        short = x.detail == "short"
        name = divide_by_shared(self.lines, kind, top.names[0], below.names[0], known.names, short)
        return Value((name,), self.depth, top.width)

    def _instruction(self, lines: Lines, x: Scalar, width: int, operands: Iterable[str]) -> str:
        given = list(operands)
        if x.op == "cast":
            return device_cast(lines, Type(x.args[0].dtype, width), Type(x.dtype, width), *given)
        if x.op == "call":
            return _call_per_lane(lines, x, width, given)
        written = device_instruction(lines, x, Type(x.args[0].dtype, width), given)
        return super()._instruction(lines, x, width, given) if written is None else written

    def _call_rarely(self, x: Scalar) -> Value:
        operands = [self._operand(arg) for arg in x.args]
        width = max(operand.width for operand in operands)
        if width == 1:
            return super()._call_rarely(x)
        lines, kinds = self.lines, [Type(arg.dtype, width) for arg in x.args]
        wide = [self.widen_value(o, a.dtype)[0] for o, a in zip(operands, x.args, strict=True)]
        name = "poison"
        for lane in range(width):
            parts = [_lane(lines, kind, each, lane) for kind, each in zip(kinds, wide, strict=True)]
            name = _with_lane(lines, kinds[1], name, rare_call(lines, x, 1, *parts), lane)
        return Value((name,), self.depth, width)

    # --- loads -----------------------------------------------------------------------------------

    def _load(self, x: Scalar) -> Value:
        lanes = self.lanes
        if lanes is not None and self._differs_between_lanes(x):
            return self._vector_load(x, lanes)
        place = self.value(x.args[0])
        guard = [self._operand(arg) for arg in x.args[1:]]
        inside = self.depth if x.detail in self.scopes[-1].writes else max(0, self.depth - 1)
        depth = max([place.depth, inside, *(each.depth for each in guard)])
        lines = self.scopes[depth].lines
        pointer = self._pointer(lines, x.detail, place.names[0])
        condition = guard[0].names[0] if guard else ""
        name = self._element(lines, x.detail, pointer, self._where(lines, depth, condition))
        if guard:
            name = select(lines, Type(x.dtype), condition, name, guard[1].names[0])
        return Value((name,), depth)

    def _where(self, lines: Lines, depth: int, condition: str) -> str:
        """The condition under which an access at a depth is made."""
        return _both_conditions(lines, self.active if depth >= self.active_depth else "", condition)

    def _pointer(self, lines: Lines, buffer: Buffer, offset: str) -> str:
        kind = Type(buffer.dtype).memory
        return lines.put(f"getelementptr {kind}, ptr {self.pointers[buffer]}, i64 {offset}")

    def _element(self, lines: Lines, buffer: Buffer, pointer: str, condition: str) -> str:
        kind = Type(buffer.dtype)
        return _load_lanes(lines, kind, pointer, condition, buffer.dtype.itemsize)

    def _vector_load(self, x: Scalar, lanes: Lanes) -> Value:
        kind = Type(x.dtype, lanes.width)
        guards = [self._operand(arg) for arg in x.args[1:]]
        places, contiguous = self._places(x.detail, x.args[0], lanes)
        lines = self.lines
        if contiguous and all(guard.width == 1 for guard in guards):
            condition = guards[0].names[0] if guards else ""
            align = self._alignment(x.detail, x.args[0], lanes)
            where = _both_conditions(lines, self.active, condition)
            name = _load_lanes(lines, kind, places[0], where, align)
            if guards:
                instead = self.widen_value(guards[1], x.dtype)[0]
                name = lines.put(
                    f"select i1 {condition}, {kind.text} {name}, {kind.text} {instead}"
                )
            return Value((name,), self.depth, lanes.width)
        wide = [self.widen_value(g, a.dtype)[0] for g, a in zip(guards, x.args[1:], strict=True)]
        name = "poison"
        for lane in range(lanes.width):
            pointer = self._lane_pointer(x.detail, places[0], contiguous, lane, lanes.width)
            condition = _lane(lines, Type(bool_, lanes.width), wide[0], lane) if wide else ""
            where = _both_conditions(lines, self.active, condition)
            one = self._element(lines, x.detail, pointer, where)
            if wide:
                instead = _lane(lines, kind, wide[1], lane)
                one = select(lines, Type(x.dtype), condition, one, instead)
            name = _with_lane(lines, kind, name, one, lane)
        return Value((name,), self.depth, lanes.width)

    def _alignment(self, buffer: Buffer, offset: Scalar, lanes: Lanes) -> int:
        """The bytes that a vector's address is a multiple of."""
        bytes_wide = buffer.dtype.itemsize * lanes.width
        if not multiple_of(at_zero(offset, lanes.index), lanes.width):
            return buffer.dtype.itemsize
        return min(_VECTOR_BYTES, bytes_wide)

    def _lane_pointer(
        self, buffer: Buffer, place: str, contiguous: bool, lane: int, width: int
    ) -> str:
        if contiguous:
            kind = Type(buffer.dtype).memory
            return self.lines.put(f"getelementptr {kind}, ptr {place}, i64 {lane}")
        return self.lines.put(f"extractelement <{width} x ptr> {place}, i64 {lane}")

    # --- stores ----------------------------------------------------------------------------------

    def store(self, buffer: Buffer, offset: Scalar, value: Scalar, where: Scalar | None) -> None:
        """Write an element, or one for each lane; of some scratch memory, remember it."""
        if buffer not in self.registers:
            super().store(buffer, offset, value, where)
            return
        found = self.value(self.expand(value))
        super().forget([buffer])
        self.scopes[-1].values[load(buffer, offset)] = found

    def _scalar_store(
        self, buffer: Buffer, offset: Value, value: Value, guard: Value | None
    ) -> None:
        lines = self.lines
        pointer = self._pointer(lines, buffer, offset.names[0])
        where = _both_conditions(
            lines, self.active or self.leader, "" if guard is None else guard.names[0]
        )
        self._put(Type(buffer.dtype), value.names[0], pointer, where, buffer.dtype.itemsize)

    def _vector_store(
        self,
        buffer: Buffer,
        offset: Scalar,
        values: tuple[str, ...],
        masks: tuple[str, ...],
        lanes: Lanes,
    ) -> None:
        kind, lines = Type(buffer.dtype, lanes.width), self.lines
        places, contiguous = self._places(buffer, offset, lanes)
        if contiguous and not masks[0]:
            align = self._alignment(buffer, offset, lanes)
            self._put(kind, values[0], places[0], self.active, align)
            return
        for lane in range(lanes.width):
            pointer = self._lane_pointer(buffer, places[0], contiguous, lane, lanes.width)
            held = _lane(lines, Type(bool_, lanes.width), masks[0], lane) if masks[0] else ""
            one, where = (
                _lane(lines, kind, values[0], lane),
                _both_conditions(lines, self.active, held),
            )
            self._put(Type(buffer.dtype), one, pointer, where, buffer.dtype.itemsize)

    def _put(self, kind: Type, value: str, pointer: str, where: str, align: int) -> None:
        if kind.dtype is bool_:
            value = self.lines.put(f"zext {kind.text} {value} to {kind.memory}")
        lines = self.lines if self.deferred is None else self.deferred
        store = f"store {kind.memory} {value}, ptr {pointer}, align {align}"
        conditional(lines, where, [store])


def conditional(lines: Lines, condition: str, instructions: Sequence[str]) -> None:
    """Instructions that only those threads run for which a condition holds; all, if it is empty."""
    if not condition:
        for instruction in instructions:
            lines.do(instruction)
        return
    then, after = lines.fresh("then"), lines.fresh("after")
    lines.do(f"br i1 {condition}, label %{then}, label %{after}")
    lines.label(then)
    for instruction in instructions:
        lines.do(instruction)
    lines.do(f"br label %{after}")
    lines.label(after)


def _load_lanes(lines: Lines, kind: Type, pointer: str, where: str, align: int) -> str:
    if where:
        pointer = lines.put(f"select i1 {where}, ptr {pointer}, ptr %nowhere")
    name = lines.put(f"load {kind.memory}, ptr {pointer}, align {align}")
    if kind.dtype is not bool_:
        return name
    zero = "zeroinitializer" if kind.width > 1 else "0"
    return lines.put(f"icmp ne {kind.memory} {name}, {zero}")


def _both_conditions(lines: Lines, first: str, second: str) -> str:
    """Both conditions; an empty one always holds."""
    if not first or not second:
        return first or second
    return lines.put(f"and i1 {first}, {second}")


def _lane(lines: Lines, kind: Type, vector: str, lane: int) -> str:
    return lines.put(f"extractelement {kind.text} {vector}, i64 {lane}")


def _with_lane(lines: Lines, kind: Type, vector: str, one: str, lane: int) -> str:
    element = Type(kind.dtype).text
    return lines.put(f"insertelement {kind.text} {vector}, {element} {one}, i64 {lane}")


def _call_per_lane(lines: Lines, x: Scalar, width: int, operands: Sequence[str]) -> str:
    """A function of the library, called for each lane."""
    dtype: DType = x.args[0].dtype
    kind = Type(dtype, width)
    if width == 1:
        return call(lines, kind, x.detail, *operands)
    name = "poison"
    for lane in range(width):
        parts = [_lane(lines, kind, operand, lane) for operand in operands]
        name = _with_lane(lines, kind, name, call(lines, Type(dtype), x.detail, *parts), lane)
    return name
