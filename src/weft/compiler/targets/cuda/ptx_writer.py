"""Kernels in PTX, the text that the driver compiles, written by Python that reads like the kernel.

A `Kernel` collects instructions. Its values are registers, each written under a name of its own;
operators on them append the instruction and return the register of its result, so `row * 4 + lane`
is two instructions. Whole numbers of Python are immediates. Blocks of code under a condition and
loops are `with` statements.

>>> kernel = Kernel("double", [Pointer("data"), Word("count")], threads=128)
>>> data, count = kernel.parameter("data"), kernel.parameter("count")
>>> index = kernel.special_register("ctaid.x") * 128 + kernel.special_register("tid.x")
>>> with kernel.when(index < count):
...     place = kernel.address(data, index, 4)
...     number = kernel.let("f32", "ld.global.f32", at(place))
...     kernel.do("st.global.f32", at(place), number + number)
>>> "add.f32" in kernel.text() and "mul.wide.u32" in kernel.text()
True
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.core.records import frozen

__all__ = [
    "Kernel", "Loop", "Operand", "Parameter", "Pointer", "TensorMap", "Value", "WindowMap", "Word",
    "at", "braces", "float_literal",
]  # fmt: skip

# Bits of a register for each kind of value, as the instructions that take any kind spell them.
_BITS = {"u32": "b32", "s32": "b32", "f32": "f32", "b32": "b32", "u64": "b64", "b16": "b16"}


@frozen(slots=False)
class Parameter:
    """What a kernel is given at its launch; `name` is the parameter's name in the text."""

    name: str


@frozen(slots=False)
class Pointer(Parameter):
    """The address of an array in the card's memory."""


@frozen(slots=False)
class Word(Parameter):
    """A number of 32 bits: a size, a stride in elements, a count of tiles."""


@frozen(slots=False)
class TensorMap(Parameter):
    """The description of an array for bulk copies, 128 bytes that the driver encodes.

    `axes` names the array's axes from the innermost to the outermost, `box` is the part of them
    that one copy moves, in elements. The bytes of a box's rows are swizzled: rows of 128 bytes,
    16-byte units exchanged by `unit ^ row % 8`. Copies outside of the array read zeros and write
    nothing. A row of `box[0]` elements is at most 128 bytes long.
    """

    dtype: str
    axes: tuple[str, ...]
    box: tuple[int, ...]


@frozen(slots=False)
class WindowMap(TensorMap):
    """The description of an array [images, *size, channels] for bulk copies of its windows.

    `axes` goes from the channels to the images; `box` is how many channels, and of how many places,
    one copy takes. Where places lie is said when the map is encoded.
    """


@frozen(slots=False)
class Value:
    """A register of a kernel: `kind` is its type in PTX without the dot, or `pred`."""

    kernel: Kernel
    name: str
    kind: str

    def __str__(self) -> str:
        return self.name

    def __add__(self, other: Operand) -> Value:
        return self.kernel.binary("add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.kernel.binary("sub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.kernel.binary("mul" if self.kind == "f32" else "mul.lo", self, other)

    def __floordiv__(self, other: Operand) -> Value:
        return self.kernel.binary("div", self, other)

    def __mod__(self, other: Operand) -> Value:
        return self.kernel.binary("rem", self, other)

    def __rshift__(self, other: Operand) -> Value:
        return self.kernel.binary("shr", self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.kernel.bitwise("shl", self, other)

    def __and__(self, other: Operand) -> Value:
        return self.kernel.bitwise("and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.kernel.bitwise("or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.kernel.bitwise("xor", self, other)

    def __lt__(self, other: Operand) -> Value:
        return self.kernel.compare("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.kernel.compare("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.kernel.compare("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.kernel.compare("ge", self, other)

    def equals(self, other: Operand) -> Value:
        """The predicate that both are equal."""
        return self.kernel.compare("eq", self, other)

    def differs(self, other: Operand) -> Value:
        """The predicate that they are not equal."""
        return self.kernel.compare("ne", self, other)

    def minimum(self, other: Operand) -> Value:
        """The smaller of both."""
        return self.kernel.binary("min", self, other)

    def maximum(self, other: Operand) -> Value:
        """The greater of both."""
        return self.kernel.binary("max", self, other)

    def __invert__(self) -> Value:
        return self.kernel.let("pred", "not.pred", self)


Operand = Value | int | float | str


def float_literal(number: float) -> str:
    """A float32 as PTX writes it exactly: its bits.

    >>> float_literal(1.0)
    '0f3F800000'
    """
    return f"0f{struct.unpack('<I', struct.pack('<f', number))[0]:08X}"


def at(address: Operand, offset: int = 0) -> str:
    """An operand in memory: `[address+offset]`."""
    return f"[{address}+{offset}]" if offset else f"[{address}]"


def braces(values: Sequence[Operand]) -> str:
    """Several registers as one operand."""
    return "{" + ", ".join(map(str, values)) + "}"


class Loop:
    """A loop that is being written: it ends where `stop_if` says so."""

    def __init__(self, kernel: Kernel, end: str) -> None:
        self._kernel = kernel
        self._end = end

    def stop_if(self, condition: Value) -> None:
        """Leave the loop here where the condition holds."""
        self._kernel.jump(self._end, condition)


class Kernel:
    """One kernel that is being written: its parameters, registers and instructions in order."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        threads: int,
        blocks: int = 1,
        target: str = "sm_90a",
        cluster: int = 1,
    ) -> None:
        self.name = name
        self.target = target
        self._cluster = cluster
        self.parameters = tuple(parameters)
        self.threads = threads
        self._blocks = blocks
        self._lines: list[str] = []
        self._registers: dict[str, list[str]] = {}
        self._count = 0
        self._shared: list[str] = []

    # Registers and instructions.

    def register(self, kind: str, name: str = "") -> Value:
        """A new register, not yet written."""
        self._count += 1
        given = f"%{name or kind}_{self._count}"
        self._registers.setdefault("b32" if kind == "s32" else kind, []).append(given)
        return Value(self, given, kind)

    def registers(self, kind: str, name: str, count: int) -> list[Value]:
        """New registers for an array that is indexed while the kernel is written."""
        return [self.register(kind, name) for _ in range(count)]

    def do(self, instruction: str, *operands: Operand, when: Value | None = None) -> None:
        """Append an instruction, under a predicate where one is given."""
        condition = f"@{when} " if when is not None else ""
        self._lines.append(f"{condition}{instruction} {', '.join(map(_operand_text, operands))};")

    def let(self, kind: str, instruction: str, *operands: Operand, name: str = "") -> Value:
        """The new register into which an instruction writes."""
        result = self.register(kind, name)
        self.do(instruction, result, *operands)
        return result

    def variable(self, kind: str, start: Operand, name: str = "") -> Value:
        """A new register with a first value, to be written again by `assign`."""
        result = self.register(kind, name)
        self.assign(result, start)
        return result

    def assign(self, target: Value, value: Operand, when: Value | None = None) -> None:
        """Write a register, under a predicate where one is given."""
        self.do(f"mov.{target.kind}", target, _of_kind(target.kind, value), when=when)

    def binary(self, operation: str, left: Value, right: Operand) -> Value:
        """The result of an operation that is spelled with the kind of its operands."""
        kind = left.kind
        return self.let(kind, f"{operation}.{kind}", left, _of_kind(kind, right))

    def bitwise(self, operation: str, left: Value, right: Operand) -> Value:
        """The result of an operation on bits."""
        spelled = "pred" if left.kind == "pred" else _BITS[left.kind]
        return self.let(left.kind, f"{operation}.{spelled}", left, right)

    def compare(self, relation: str, left: Value, right: Operand) -> Value:
        """The predicate that two values stand in a relation."""
        return self.let("pred", f"setp.{relation}.{left.kind}", left, _of_kind(left.kind, right))

    def select(self, condition: Value, yes: Operand, no: Operand, kind: str = "u32") -> Value:
        """One of two values."""
        chosen = [_of_kind(kind, value) for value in (yes, no)]
        return self.let(kind, f"selp.{_BITS[kind]}", *chosen, condition)

    def fma(self, left: Operand, right: Operand, addend: Operand) -> Value:
        """`left * right + addend` of float32, rounded once."""
        operands = [_of_kind("f32", value) for value in (left, right, addend)]
        return self.let("f32", "fma.rn.f32", *operands)

    # Control.

    def label(self, hint: str) -> str:
        """A new name for a place in the code."""
        self._count += 1
        return f"{hint.upper()}_{self._count}"

    def place(self, label: str) -> None:
        """Here is the place of that name."""
        self._lines.append(f"{label}:")

    def jump(self, label: str, condition: Value | None = None) -> None:
        """Go on at a label, where the condition holds."""
        self.do("bra", label, when=condition)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Code for the threads for which the condition holds; the others jump over it."""
        end = self.label("end")
        self.do(f"@!{condition} bra", end)
        yield
        self.place(end)

    @contextmanager
    def loop(self, hint: str = "loop") -> Iterator[Loop]:
        """Code that is repeated until `stop_if`."""
        start, end = self.label(hint), self.label(f"{hint}_end")
        self.place(start)
        yield Loop(self, end)
        self.jump(start)
        self.place(end)

    # What kernels start from.

    def parameter(self, name: str) -> Value:
        """The value of a parameter; of a tensor map, its address."""
        [parameter] = [each for each in self.parameters if each.name == name]
        if isinstance(parameter, Word):
            return self.let("u32", "ld.param.u32", at(name), name=name)
        if isinstance(parameter, Pointer):
            generic = self.let("u64", "ld.param.u64", at(name), name=name)
            return self.let("u64", "cvta.to.global.u64", generic, name=name)
        place = self.let("u64", "mov.b64", name, name=name)
        return self.let("u64", "cvta.param.u64", place, name=name)

    def special_register(self, name: str) -> Value:
        """A register of the machine, such as `tid.x`."""
        return self.let("u32", "mov.u32", f"%{name}", name=name.replace(".", "_"))

    def shared_memory(self) -> Value:
        """The address of the block's shared memory, whose size the launch says."""
        self._shared = [".extern .shared .align 1024 .b8 shared_bytes[];"]
        return self.let("u32", "mov.u32", "shared_bytes", name="shared")

    def address(self, base: Value, index: Operand, size: int) -> Value:
        """`base + index * size`, for an index below 2³²."""
        offset = self.let("u64", "mul.wide.u32", index, size)
        return base + offset

    def text(self) -> str:
        """The whole module."""
        parameters = ",\n  ".join(map(_declaration, self.parameters))
        registers = [
            f".reg .{kind} {', '.join(names[first : first + 16])};"
            for kind, names in self._registers.items()
            for first in range(0, len(names), 16)
        ]
        return "\n".join(
            [
                ".version 8.3",
                f".target {self.target}",
                ".address_size 64",
                *self._shared,
                f".visible .entry {self.name}(",
                f"  {parameters})",
                f".maxntid {self.threads}, 1, 1",
                f".minnctapersm {self._blocks}",
                *([f".reqnctapercluster {self._cluster}, 1, 1"] if self._cluster > 1 else []),
                "{",
                *registers,
                *self._lines,
                "ret;",
                "}",
                "",
            ]
        )


def _operand_text(operand: Operand) -> str:
    return float_literal(operand) if isinstance(operand, float) else str(operand)


def _of_kind(kind: str, value: Operand) -> Operand:
    """Whole numbers among floats are floats."""
    return float(value) if kind == "f32" and isinstance(value, int) else value


def _declaration(parameter: Parameter) -> str:
    if isinstance(parameter, TensorMap):
        return f".param .align 64 .b8 {parameter.name}[128]"
    return f".param .{'u64' if isinstance(parameter, Pointer) else 'u32'} {parameter.name}"
