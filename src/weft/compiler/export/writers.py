"""What writes an exported program: the interface of a form, and what the code needs beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from weft.compiler.export.sizes import SizeRange, Values
from weft.compiler.plan.launch import Launch
from weft.core.dtypes import DType
from weft.ir.graph import Literal
from weft.ir.loops import Kernel

Operand = str | int


class Assignable(Protocol):
    """A value that is assigned anew along the way."""

    value: str


class Writer(Protocol):
    """Writes one function: what `IRBuilder` has, and calls of kernels."""

    def launch(
        self,
        function: str,
        buffers: Sequence[str],
        numbers: Sequence[Operand],
        begin: Operand,
        end: Operand,
    ) -> None:
        """Call a kernel with these buffers and numbers, for a part of its iterations."""

    def reserve(self, pointer: str) -> None:
        """Say where the scratch memory of the kernels that are called next begins."""

    def place(self, pointer: str, offset: Operand) -> str:
        """An address so many bytes further."""

    def integer(self, dtype: DType, pointer: str, place: Operand) -> str:
        """An integer in memory, as one of 64 bits."""

    def size(self, name: str) -> str:
        """A size that the caller has chosen."""

    def look_up(self, table: Sequence[int], place: Operand) -> str:
        """A number of a table."""

    def hold(self, number: Operand) -> Operand:
        """The number, computed here and once."""

    def work_space(self, needed: Operand) -> str:
        """The address of the work space of an instance, which holds so many bytes; or null."""

    def scratch_bytes(self, sizes: SizeRange) -> str:
        """The bytes of scratch memory of one thread, for the sizes that the caller has chosen."""

    def is_missing(self, pointer: str) -> str:
        """Whether an address is null."""

    def copy(self, target: str, source: str, count: Operand) -> None:
        """Copy so many bytes."""

    def clear(self, target: str, count: Operand) -> None:
        """Fill so many bytes with zeros."""

    def variable(self, start: Operand) -> Assignable:
        """A value that loops and conditions from here on may change."""

    def loop(self, start: Operand, end: Operand) -> AbstractContextManager[str]:
        """A loop from a number to below another one; gives the index."""

    def repeat(self) -> AbstractContextManager[None]:
        """A loop that `leave_unless` ends."""

    def leave_unless(self, condition: str) -> None:
        """Go on behind the innermost loop where a condition does not hold."""

    def when(self, condition: str) -> AbstractContextManager[None]:
        """What is done where a condition holds."""

    def test(self, how: str, a: Operand, b: Operand) -> str:
        """A comparison, as `slt`."""

    def select(self, condition: str, yes: Operand, no: Operand) -> str:
        """One of two values."""

    def add(self, a: Operand, b: Operand) -> str:
        """A sum."""

    def sub(self, a: Operand, b: Operand) -> str:
        """A difference."""

    def mul(self, a: Operand, b: Operand) -> str:
        """A product."""

    def div(self, a: Operand, b: Operand) -> str:
        """A quotient."""

    def give(self, value: Operand | None = None) -> None:
        """Return from the function."""

    def has_failed(self) -> str:
        """Whether a kernel has reported an error."""


class RowWriter(Writer, Protocol):
    """Writes a function in the convention of kernels, for a part of the blocks of rows."""

    scratch: str
    """Where the scratch memory of the thread begins that runs it."""

    def given_buffer(self, place: int) -> str:
        """One of the buffers that it is given."""


class ThreadedWriter(Writer, Protocol):
    """A writer whose functions several threads may run."""

    def launch_parallel(
        self,
        function: str,
        buffers: Sequence[str],
        numbers: Sequence[Operand],
        end: Operand,
        grain: int,
    ) -> None:
        """Call a kernel by all threads, in chunks of so many iterations."""

    def place_workers(self, scratch: str, own: Operand) -> None:
        """Say where the scratch memory of all threads is, and how many bytes each has."""

    def row_function(self, name: str) -> RowWriter:
        """What writes a function in the convention of kernels, which this one may launch."""


@dataclass
class Needs:
    """What the code of a program needs: functions, tables, constants, memory, messages."""

    kernels: dict[str, tuple[str, Kernel]] = field(default_factory=dict)
    """By digest: a name, and the kernel."""
    texts: dict[tuple[str, ...], str] = field(default_factory=dict)
    """By symbol: the name of a function that is written by hand."""
    tables: dict[tuple[int, ...], str] = field(default_factory=dict)
    constants: dict[int, tuple[str, Literal]] = field(default_factory=dict)
    """By identity of the literal: a name, and the literal."""
    messages: list[str] = field(default_factory=list)
    scratch: Values = field(default_factory=lambda: np.zeros(1, np.int64))
    """Bytes of scratch memory that kernels take at most, for each choice of sizes."""
    preparing_scratch: int = 0
    """Those that preparation takes."""
    buffers: int = 1
    """The most buffers of a call."""
    threads: int = 1
    is_stripped: bool = False
    """Whether names of operations and lines of the source are left out."""
    row_functions: int = 0
    """How many functions there are that run row fusions for a part of their blocks."""

    def take_scratch(self, needed: Values) -> None:
        """Say that kernels take so much scratch memory, for each choice of sizes."""
        self.scratch = np.maximum(self.scratch, needed)

    def function(self, launch: Launch) -> str:
        """The name of the function that a launch calls."""
        kernel = launch.kernel
        if isinstance(kernel, Kernel):
            known = self.kernels.get(kernel.digest)
            if known is None:
                title = "" if self.is_stripped else "_" + re.sub(r"\W+", "_", kernel.name)
                known = f"kernel_{len(self.kernels)}{title}", kernel
                self.kernels[kernel.digest] = known
            return known[0]
        assert kernel[0] == "text", kernel
        return self.texts.setdefault(kernel, f"native_{len(self.texts)}_{kernel[2]}")

    def table(self, numbers: Sequence[int]) -> str:
        """The name of a table of numbers; an empty one is any."""
        key = tuple(int(number) for number in numbers) or (0,)
        return self.tables.setdefault(key, f"numbers_{len(self.tables)}")

    def constant(self, literal: Literal) -> str:
        """The name of a constant in memory."""
        known = self.constants.get(id(literal))
        if known is None:
            same = next((n for n, c in self.constants.values() if _is_same(c, literal)), None)
            name = same or f"constant_{len(self.constants)}"
            known = self.constants[id(literal)] = name, literal
        return known[0]

    def message(self, text: str) -> int:
        """The status that stands for an error."""
        if text not in self.messages:
            self.messages.append(text)
        return self.messages.index(text) + 1


def _is_same(one: Literal, other: Literal) -> bool:
    a, b = np.asarray(one.value), np.asarray(other.value)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
