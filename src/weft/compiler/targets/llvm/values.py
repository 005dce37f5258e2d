"""Expressions as LLVM values: each computed once, as far out of the loops as it can be.

A scope is a stretch of code that dominates what is written inside it: the function's body, what
precedes a loop, and the loop's body. A value is written into the outermost scope that knows its
operands. Loads go no further out than just before the loop they stand in, where it is known that
the loop runs; and stay inside where the loop writes to their buffer.

In a vector loop a value either is the same for all lanes, one scalar; or it is `count` vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.compiler.targets.llvm.double_functions import FUSED, ROUNDED
from weft.compiler.targets.llvm.elementary import DOUBLE, SINGLE, Expander
from weft.compiler.targets.llvm.instructions import (
    TABLE,
    bitcast,
    call,
    cast,
    lookup,
    scale,
    select,
)
from weft.compiler.targets.llvm.ir_builder import Function, Lines
from weft.compiler.targets.llvm.ir_types import Type, element, overload, steps, vector_text
from weft.compiler.targets.llvm.machine import Machine
from weft.compiler.targets.llvm.pairs import is_pair, load_every_second, write_pairs
from weft.core.dtypes import INDEX, DType, bool_, float64
from weft.core.records import frozen
from weft.ir.loops import Statement, Store
from weft.ir.scalars import Buffer, Scalar, coefficient, const, is_const

ZEROS = "[16 x i64]"
"""What is read in place of a vector that is not: `%zeros`, as long as the longest."""


@frozen
class Value:
    """An expression that is written: its names, of scalars or vectors, and in which scope."""

    names: tuple[str, ...]
    depth: int
    width: int = 1


@frozen
class Lanes:
    """The vectors of the loop that is being written: the index of the first lane of each."""

    index: Scalar
    width: int
    bases: tuple[str, ...]
    masks: tuple[str, ...] = ()


@dataclass
class Scope:
    """Code that dominates what is inside; `writes` are the buffers that its loop stores to."""

    lines: Lines
    writes: frozenset[Buffer]
    values: dict[Any, Value] = field(default_factory=dict)


class Values:
    """Writes expressions into scopes."""

    def __init__(self, machine: Machine, function: Function) -> None:
        self.machine = machine
        self.function = function
        # without an instruction, each of their many fused steps would be a call itself
        in_double, fused = (ROUNDED, FUSED) if machine.fuses_multiply_add else ({}, {})
        self.expand = Expander(machine.half, SINGLE | in_double, DOUBLE | fused)
        self.scopes: list[Scope] = [Scope(Lines(function), frozenset())]
        self.pointers: dict[Buffer, str] = {}
        self.lanes: Lanes | None = None
        self.lanes_depth = 0

    # --- scopes ----------------------------------------------------------------------------------

    @property
    def lines(self) -> Lines:
        """Where statements are written."""
        return self.scopes[-1].lines

    @property
    def depth(self) -> int:
        """The innermost scope."""
        return len(self.scopes) - 1

    def enter(self, writes: frozenset[Buffer]) -> Lines:
        """Open a scope."""
        self.forget(writes)
        self.scopes.append(Scope(Lines(self.function), writes))
        return self.lines

    def leave(self) -> list[str]:
        """Close the innermost scope; its lines."""
        return self.scopes.pop().lines.text

    def forget(self, buffers: Iterable[Buffer]) -> None:
        """Loads from buffers that have been stored to are not known any more."""
        changed = frozenset(buffers)
        for scope in self.scopes if changed else ():
            stale = [x for x in scope.values if isinstance(x, Scalar) and x.buffers & changed]
            for x in stale:
                del scope.values[x]

    def define(self, variable: Scalar, names: tuple[str, ...], width: int = 1) -> None:
        """Give an index or local a value, in the innermost scope."""
        self.scopes[-1].values[variable] = Value(names, self.depth, width)

    def known_value(self, key: Any) -> Value | None:
        """What is written already, in any scope around."""
        for scope in reversed(self.scopes):
            found = scope.values.get(key)
            if found is not None:
                return found
        return None

    def _keep(self, key: Any, value: Value) -> Value:
        self.scopes[value.depth].values[key] = value
        return value

    # --- expressions -----------------------------------------------------------------------------

    def value(self, x: Scalar) -> Value:
        """The value of an expanded expression."""
        pending = [x]
        while pending:
            current = pending[-1]
            if self.known_value(current) is not None:
                pending.pop()
                continue
            missing = [
                arg for arg in self._needed_operands(current) if self.known_value(arg) is None
            ]
            if missing:
                pending += missing
                continue
            pending.pop()
            self._keep(current, self._write_expression(current))
        found = self.known_value(x)
        assert found is not None
        return found

    def scalar(self, x: Scalar) -> str:
        """The name of a value that is the same for all lanes."""
        return self.value(self.expand(x)).names[0]

    def vectors(self, x: Scalar) -> tuple[str, ...]:
        """The names of an expression's vectors, or of its scalar outside vector loops."""
        return self.widen_value(self.value(self.expand(x)), x.dtype)

    def _needed_operands(self, x: Scalar) -> tuple[Scalar, ...]:
        """The operands that must be there first; a load's place is written in its own way."""
        return x.args[1:] if x.op == "load" and self.lanes is not None else x.args

    def _write_expression(self, x: Scalar) -> Value:
        if x.op == "const":
            return Value((Type(x.dtype).literal(x.detail),), 0)
        if x.op == "index":
            return self._index(x)
        if x.op == "load":
            return self._load(x)
        if x.op == "rarely":
            return self._call_rarely(x)
        operands = [self._operand(arg) for arg in x.args]
        depth = max(operand.depth for operand in operands)
        width = max(operand.width for operand in operands)
        lines = self.scopes[depth].lines
        if width == 1:
            return Value((self._instruction(lines, x, 1, [o.names[0] for o in operands]),), depth)
        parts = [self.widen_value(o, a.dtype) for o, a in zip(operands, x.args, strict=True)]
        names = [self._instruction(lines, x, width, each) for each in zip(*parts, strict=True)]
        return Value(tuple(names), depth, width)

    def _operand(self, x: Scalar) -> Value:
        found = self.known_value(x)
        return self.value(x) if found is None else found

    def _instruction(self, lines: Lines, x: Scalar, width: int, operands: Iterable[str]) -> str:
        kind = Type(x.args[0].dtype, width)
        match x.op:
            case "cast":
                return cast(lines, kind, Type(x.dtype, width), *operands)
            case "bitcast":
                return bitcast(lines, kind, Type(x.dtype, width), *operands)
            case "select":
                return select(lines, Type(x.dtype, width), *operands)
            case "call":
                return call(lines, kind, x.detail, *operands)
            case "scale":
                return scale(lines, kind, width in self.machine.permuted, *operands)
            case "lookup":
                return lookup(lines, kind, width in self.machine.permuted, x.detail, *operands)
        return TABLE[x.op](lines, kind, *operands)

    def _index(self, x: Scalar) -> Value:
        """The index of the vector loop, a number for each lane."""
        lanes = self.lanes
        assert lanes is not None and x is lanes.index, f"{x} is not in scope"
        lines, kind = self.scopes[self.lanes_depth].lines, Type(INDEX, lanes.width)
        names = []
        for base in lanes.bases:
            splat = lines.splat(base, kind)
            names.append(lines.put(f"add {kind.text} {splat}, {steps(lanes.width)}"))
        return Value(tuple(names), self.lanes_depth, lanes.width)

    def widen_value(self, value: Value, dtype: DType) -> tuple[str, ...]:
        """A value for each lane, also where it is the same for all."""
        lanes = self.lanes
        if lanes is None or value.width == lanes.width:
            return value.names
        return (self._splat(value, dtype, lanes.width),) * len(lanes.bases)

    def _splat(self, value: Value, dtype: DType, width: int) -> str:
        kind = Type(dtype, width)
        name = value.names[0]
        if not name.startswith("%"):
            return f"splat ({element(dtype)} {name})"
        key = ("splat", name, width)
        found = self.known_value(key)
        if found is None:
            lines = self.scopes[value.depth].lines
            found = self._keep(key, Value((lines.splat(name, kind),), value.depth, width))
        return found.names[0]

    def _call_rarely(self, x: Scalar) -> Value:
        """Call a function if a lane needs it, or else leave the value as it is."""
        operands = [self._operand(arg) for arg in x.args]
        depth = max(operand.depth for operand in operands)
        width = max(operand.width for operand in operands)
        lines = self.scopes[depth].lines
        parts = [
            self.widen_value(o, a.dtype) if width > 1 else o.names
            for o, a in zip(operands, x.args, strict=True)
        ]
        names = [rare_call(lines, x, width, *each) for each in zip(*parts, strict=True)]
        return Value(tuple(names), depth, width)

    # --- memory ----------------------------------------------------------------------------------

    def _load(self, x: Scalar) -> Value:
        lanes, buffer = self.lanes, x.detail
        if lanes is not None and lanes.width > 1 and self._differs_between_lanes(x):
            return self._vector_load(x, lanes)
        place = self.value(x.args[0])
        guard = [self._operand(arg) for arg in x.args[1:]]
        inside = self.depth if buffer in self.scopes[-1].writes else max(0, self.depth - 1)
        depth = (
            max(place.depth, inside, *(each.depth for each in guard))
            if guard
            else max(place.depth, inside)
        )
        lines = self.scopes[depth].lines
        pointer = lines.put(
            f"getelementptr {_memory(buffer)}, ptr {self.pointers[buffer]}, i64 {place.names[0]}"
        )
        if guard:
            pointer = lines.put(f"select i1 {guard[0].names[0]}, ptr {pointer}, ptr %nowhere")
        name = _from_memory(
            lines,
            Type(buffer.dtype),
            f"load {_memory(buffer)}, ptr {pointer}, align {buffer.dtype.itemsize}",
        )
        if guard:
            name = select(lines, Type(buffer.dtype), guard[0].names[0], name, guard[1].names[0])
        return Value((name,), depth)

    def _differs_between_lanes(self, x: Scalar) -> bool:
        """Whether an expression differs between lanes."""
        lanes = self.lanes
        assert lanes is not None
        for variable in x.variables:
            if variable is lanes.index:
                return True
            found = self.known_value(variable)
            if found is not None and found.width > 1:
                return True
        return False

    def _vector_load(self, x: Scalar, lanes: Lanes) -> Value:
        kind = Type(x.dtype, lanes.width)
        if (
            len(x.args) > 1
            and not self._differs_between_lanes(x.args[1])
            and is_const(x.args[2], 0)
        ):
            places, contiguous = self._places(x.detail, x.args[0], lanes)
            if contiguous:
                return self._load_or_zeros(x, places, lanes)
        step = self._step(x.args[0], lanes)
        if len(x.args) == 1 and not lanes.masks and step is not None and is_const(step, 2):
            starts = self._second_elements(x.detail, x.args[0], lanes)
            loaded = [load_every_second(self.lines, kind, start) for start in starts]
            elements = tuple(_truth(self.lines, kind, each) for each in loaded)
            return Value(elements, self.depth, lanes.width)
        guards = [self.widen_value(self._operand(arg), arg.dtype) for arg in x.args[1:]]
        otherwise = guards[1] if guards else (_zero(kind),) * len(lanes.bases)
        masks = self._masks(guards[0] if guards else (), lanes)
        if guards and x.dtype is bool_:
            wide = vector_text("i8", lanes.width)
            otherwise = tuple(self.lines.put(f"zext {kind.text} {o} to {wide}") for o in otherwise)
        places, contiguous = self._places(x.detail, x.args[0], lanes)
        names = []
        for place, mask, instead in zip(places, masks, otherwise, strict=True):
            read = _contiguous_load if contiguous else _gather
            names.append(_from_memory(self.lines, kind, read(kind, place, mask, instead)))
        return Value(tuple(names), self.depth, lanes.width)

    def _load_or_zeros(self, x: Scalar, places: Sequence[str], lanes: Lanes) -> Value:
        """Vectors that are read as a whole or not at all: a mask is slower than another place."""
        kind, holds = Type(x.dtype, lanes.width), self._operand(x.args[1]).names[0]
        names = []
        for place, mask in zip(places, self._masks((), lanes), strict=True):
            chosen = self.lines.put(f"select i1 {holds}, ptr {place}, ptr %zeros")
            read = _contiguous_load(kind, chosen, mask, "zeroinitializer")
            names.append(_from_memory(self.lines, kind, read))
        return Value(tuple(names), self.depth, lanes.width)

    def _masks(self, conditions: tuple[str, ...], lanes: Lanes) -> tuple[str, ...]:
        """The lanes that memory is touched for: those of the loop where a condition holds."""
        if not conditions:
            return lanes.masks or ("",) * len(lanes.bases)
        if not lanes.masks:
            return conditions
        kind = vector_text("i1", lanes.width)
        pairs = zip(lanes.masks, conditions, strict=True)
        return tuple(self.lines.put(f"and {kind} {a}, {b}") for a, b in pairs)

    def _places(self, buffer: Buffer, offset: Scalar, lanes: Lanes) -> tuple[list[str], bool]:
        """Pointers for each vector: to its first element, or to the element of every lane."""
        step = self._step(offset, lanes)
        if step is None:
            vectors = self.widen_value(self.value(offset), INDEX)
            return [self._pointers(buffer, v, lanes.width) for v in vectors], False
        start = self.value(self.expand(at_zero(offset, lanes.index)))
        origin = self._origin(buffer, start)
        if is_const(step, 1):
            return [self._move_pointer(buffer, origin, base) for base in lanes.bases], True
        return self._strided_pointers(buffer, origin, self.value(self.expand(step)), lanes), False

    def _step(self, offset: Scalar, lanes: Lanes) -> Scalar | None:
        """How far apart the elements of neighbouring lanes are, where that is the same for all."""
        return None if self._varies_otherwise(offset, lanes) else coefficient(offset, lanes.index)

    def _second_elements(self, buffer: Buffer, offset: Scalar, lanes: Lanes) -> list[str]:
        """Pointers to the first element of each vector that takes every second one."""
        start = self.value(self.expand(at_zero(offset, lanes.index)))
        origin = self._origin(buffer, start)
        places = [self.lines.put(f"mul i64 {base}, 2") for base in lanes.bases]
        return [self._move_pointer(buffer, origin, place) for place in places]

    def _varies_otherwise(self, offset: Scalar, lanes: Lanes) -> bool:
        """Whether more than the loop's index makes an offset differ between lanes."""
        others = (self.known_value(v) for v in offset.variables if v is not lanes.index)
        return any(found is not None and found.width > 1 for found in others)

    def _origin(self, buffer: Buffer, start: Value) -> str:
        key = ("origin", buffer, start.names[0])
        found = self.known_value(key)
        if found is None:
            lines, pointer = self.scopes[start.depth].lines, self.pointers[buffer]
            name = lines.put(
                f"getelementptr {_memory(buffer)}, ptr {pointer}, i64 {start.names[0]}"
            )
            found = self._keep(key, Value((name,), start.depth))
        return found.names[0]

    def _move_pointer(self, buffer: Buffer, origin: str, base: str) -> str:
        return self.lines.put(f"getelementptr {_memory(buffer)}, ptr {origin}, i64 {base}")

    def _pointers(self, buffer: Buffer, offsets: str, width: int) -> str:
        pointer = self.pointers[buffer]
        return self.lines.put(
            f"getelementptr {_memory(buffer)}, ptr {pointer}, <{width} x i64> {offsets}"
        )

    def _strided_pointers(
        self, buffer: Buffer, origin: str, step: Value, lanes: Lanes
    ) -> list[str]:
        """Pointers that are equally far apart."""
        kind = Type(INDEX, lanes.width)
        key = ("strides", step.names[0], lanes.width)
        strides = self.known_value(key)
        if strides is None:
            lines = self.scopes[step.depth].lines
            splat = self._splat(step, INDEX, lanes.width)
            name = lines.put(f"mul {kind.text} {splat}, {steps(lanes.width)}")
            strides = self._keep(key, Value((name,), step.depth, lanes.width))
        found = []
        for base in lanes.bases:
            start = self.lines.put(f"mul i64 {base}, {step.names[0]}")
            first = self._move_pointer(buffer, origin, start)
            found.append(
                self.lines.put(
                    f"getelementptr {_memory(buffer)}, ptr {first}, {kind.text} {strides.names[0]}"
                )
            )
        return found

    def prefetch(self, buffer: Buffer, offset: Scalar, writes: bool) -> None:
        """Ask for the lines that the lanes' elements lie in."""
        assert self.lanes is not None
        # operands for the second cache, as the first may hold no more than this row
        kind = f"i32 {int(writes)}, i32 {3 if writes else 2}, i32 1"
        for place in self._places(buffer, self.expand(offset), self.lanes)[0]:
            self.lines.do(f"call void @llvm.prefetch.p0(ptr {place}, {kind})")

    def store(self, buffer: Buffer, offset: Scalar, value: Scalar, where: Scalar | None) -> None:
        """Write an element, or one for each lane."""
        lanes = self.lanes
        offset, value = self.expand(offset), self.expand(value)
        guard = None if where is None else self.value(self.expand(where))
        if lanes is None or lanes.width == 1:
            self._scalar_store(buffer, self.value(offset), self.value(value), guard)
        else:
            values = self.widen_value(self.value(value), buffer.dtype)
            conditions = () if guard is None else self.widen_value(guard, bool_)
            self._vector_store(buffer, offset, values, self._masks(conditions, lanes), lanes)
        self.forget([buffer])

    def are_pairs(self, first: Statement, second: Statement) -> bool:
        """Whether two statements store neighbouring elements of each lane, all of which are on."""
        lanes = self.lanes
        if (
            lanes is None
            or lanes.width == 1
            or lanes.masks
            or not is_pair(first, second, lanes.index)
        ):
            return False
        assert isinstance(first, Store)
        return self._step(first.offset, lanes) is not None

    def store_pairs(self, first: Statement, second: Statement) -> None:
        """Write what two stores do to neighbouring elements of each lane, at once."""
        lanes = self.lanes
        assert lanes is not None and isinstance(first, Store) and isinstance(second, Store)
        buffer = first.buffer
        kind = Type(buffer.dtype, lanes.width)
        values = [
            self.widen_value(self.value(self.expand(each.value)), buffer.dtype)
            for each in (first, second)
        ]
        starts = self._second_elements(buffer, self.expand(first.offset), lanes)
        for start, *pair in zip(starts, *values, strict=True):
            one, other = (_to_memory(self.lines, kind, each) for each in pair)
            write_pairs(self.lines, kind, start, (one, other))
        self.forget([buffer])

    def _scalar_store(
        self, buffer: Buffer, offset: Value, value: Value, guard: Value | None
    ) -> None:
        lines = self.lines
        stored = _to_memory(lines, Type(buffer.dtype), value.names[0])
        pointer = self._move_pointer(buffer, self.pointers[buffer], offset.names[0])
        if guard is not None:
            pointer = lines.put(f"select i1 {guard.names[0]}, ptr {pointer}, ptr %nowhere")
        lines.do(f"store {_memory(buffer)} {stored}, ptr {pointer}, align {buffer.dtype.itemsize}")

    def _vector_store(
        self,
        buffer: Buffer,
        offset: Scalar,
        values: tuple[str, ...],
        masks: tuple[str, ...],
        lanes: Lanes,
    ) -> None:
        kind = Type(buffer.dtype, lanes.width)
        places, contiguous = self._places(buffer, offset, lanes)
        for place, value, mask in zip(places, values, masks, strict=True):
            stored = _to_memory(self.lines, kind, value)
            write = _contiguous_store if contiguous else _scatter
            self.lines.do(write(kind, stored, place, mask))


def at_zero(offset: Scalar, variable: Scalar) -> Scalar:
    """An affine offset at 0 of a variable."""
    if variable not in offset.variables:
        return offset
    if offset is variable:
        return const(0, INDEX)
    x, y = (at_zero(arg, variable) for arg in offset.args)
    match offset.op:
        case "add":
            return x + y
        case "subtract":
            return x - y
    return x * y


def rare_call(lines: Lines, x: Scalar, width: int, condition: str, *given: str) -> str:
    """Call a function of operands where a condition holds in some lane, or else keep the last."""
    *operands, near = given
    kind, wide = Type(x.dtype, width), Type(float64, width)
    some = condition
    if width > 1:
        some = lines.put(f"call i1 @llvm.vector.reduce.or.v{width}i1({kind.mask} {condition})")
    here, far, after = lines.fresh("near"), lines.fresh("far"), lines.fresh("after")
    lines.do(f"br label %{here}")
    lines.label(here)
    lines.do(f"br i1 {some}, label %{far}, label %{after}")
    lines.label(far)
    result = call(lines, wide, x.detail, *[cast(lines, kind, wide, each) for each in operands])
    result = select(lines, kind, condition, cast(lines, wide, kind, result), near)
    lines.do(f"br label %{after}")
    lines.label(after)
    return lines.put(f"phi {kind.text} [ {near}, %{here} ], [ {result}, %{far} ]")


# --- instructions of memory ----------------------------------------------------------------------


def _memory(buffer: Buffer) -> str:
    return Type(buffer.dtype).memory


def _zero(kind: Type) -> str:
    return "zeroinitializer" if kind.width > 1 else "0"


def _from_memory(lines: Lines, kind: Type, instruction: str) -> str:
    return _truth(lines, kind, lines.put(instruction))


def _truth(lines: Lines, kind: Type, loaded: str) -> str:
    """What was loaded; of truth values, which are bytes in memory, as such."""
    if kind.dtype is not bool_:
        return loaded
    return lines.put(f"icmp ne {kind.memory} {loaded}, {_zero(kind)}")


def _to_memory(lines: Lines, kind: Type, value: str) -> str:
    if kind.dtype is not bool_:
        return value
    return lines.put(f"zext {kind.text} {value} to {kind.memory}")


def _contiguous_load(kind: Type, place: str, mask: str, instead: str) -> str:
    align = kind.dtype.itemsize
    if not mask:
        return f"load {kind.memory}, ptr {place}, align {align}"
    name = f"@llvm.masked.load.{_memory_suffix(kind)}.p0"
    given = f"ptr {place}, i32 {align}, {kind.mask} {mask}, {kind.memory} {instead}"
    return f"call {kind.memory} {name}({given})"


def _gather(kind: Type, places: str, mask: str, instead: str) -> str:
    name = f"@llvm.masked.gather.{_memory_suffix(kind)}.{overload('ptr', kind.width)}"
    pointers, on = vector_text("ptr", kind.width), mask or "splat (i1 true)"
    given = f"{pointers} {places}, i32 {kind.dtype.itemsize}, {kind.mask} {on}"
    return f"call {kind.memory} {name}({given}, {kind.memory} {instead})"


def _contiguous_store(kind: Type, value: str, place: str, mask: str) -> str:
    align = kind.dtype.itemsize
    if not mask:
        return f"store {kind.memory} {value}, ptr {place}, align {align}"
    name = f"@llvm.masked.store.{_memory_suffix(kind)}.p0"
    given = f"{kind.memory} {value}, ptr {place}, i32 {align}, {kind.mask} {mask}"
    return f"call void {name}({given})"


def _scatter(kind: Type, value: str, places: str, mask: str) -> str:
    name = f"@llvm.masked.scatter.{_memory_suffix(kind)}.{overload('ptr', kind.width)}"
    pointers, on = vector_text("ptr", kind.width), mask or "splat (i1 true)"
    given = f"{kind.memory} {value}, {pointers} {places}, i32 {kind.dtype.itemsize}"
    return f"call void {name}({given}, {kind.mask} {on})"


def _memory_suffix(kind: Type) -> str:
    return overload("i8", kind.width) if kind.dtype is bool_ else kind.suffix
