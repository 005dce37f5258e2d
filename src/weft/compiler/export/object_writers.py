"""What writes functions in C's convention as LLVM's text, for an exported program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.compiler.export.layout import ERROR, POOL, SCRATCH
from weft.compiler.export.sizes import SizeRange
from weft.compiler.export.writers import Needs, Operand
from weft.compiler.targets.llvm.ir_builder import IRBuilder
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType


@dataclass
class GlobalNeeds(Needs):
    """What a program needs; constants are known by the names of globals."""

    written_rows: list[RowFunction] = field(default_factory=list)

    def constant(self, literal: object) -> str:
        """See `Needs`."""
        return "@" + super().constant(literal)  # type: ignore[arg-type]


class ObjectWriter(IRBuilder):
    """Writes one function in C's convention, as LLVM's text; first it is given the instance."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[str],
        result: str = "void",
        needs: GlobalNeeds | None = None,
    ) -> None:
        super().__init__(name, parameters, public=True, result=result)
        self.symbol = f"@{name}"
        self.head = f"define {result} @{name}({', '.join(parameters)}) nounwind {{"
        self.needs = needs or GlobalNeeds()
        self.longest = 1
        """Of the tables of numbers that are written for the sizes of a call."""
        self.kinds |= {
            "%cell": "ptr",
            "%pool": "ptr",
            "%error": "ptr",
            "%pointers": "ptr",
            "%buffers": "ptr",
        }

    def hide(self) -> None:
        """Leave the function to this module alone."""
        self.head = self.head.replace("define ", "define internal ", 1)

    def begin_calls(self, buffers: int) -> None:
        """Write what calls of kernels need, at the beginning of the function."""
        self.text[:0] = [
            f"  %pointers = alloca ptr, i64 {buffers + 1}, align 16",
            f"  %cell = getelementptr i8, ptr %model, i64 {SCRATCH}",
            f"  %error = getelementptr i8, ptr %model, i64 {ERROR}",
            "  store ptr %cell, ptr %pointers",
            "  %buffers = getelementptr ptr, ptr %pointers, i64 1",
            f"  %pool = getelementptr i8, ptr %model, i64 {POOL}",
            f"  %table = alloca i64, i64 {self.longest}, align 16",
            "  store i32 0, ptr %error",
        ]

    def launch(
        self,
        function: str,
        buffers: Sequence[str],
        numbers: Sequence[Operand],
        begin: Operand,
        end: Operand,
    ) -> None:
        """See `Writer`."""
        self._store_buffers(buffers)
        given = f"ptr %buffers, ptr {self._table(numbers)}, i64 {begin}, i64 {end}"
        self.do(f'call void @"weft.{function}"({given})')

    def launch_parallel(
        self,
        function: str,
        buffers: Sequence[str],
        numbers: Sequence[Operand],
        end: Operand,
        grain: int,
    ) -> None:
        """See `ThreadedWriter`."""
        self._store_buffers(buffers)
        self.do(
            f'call void @parallel(ptr %pool, ptr @"weft.{function}", ptr %buffers, '
            f"i64 {len(buffers)}, ptr {self._table(numbers)}, i64 {end}, i64 {grain})"
        )

    def _store_buffers(self, buffers: Sequence[str]) -> None:
        for place, pointer in enumerate(buffers):
            self.store(pointer, self.at("ptr", "%buffers", place), "ptr")

    def _table(self, numbers: Sequence[Operand]) -> str:
        """Where numbers are: a constant, or memory that is written for the sizes of the call."""
        known = [number for number in numbers if isinstance(number, int)]
        if len(known) == len(numbers):
            return f"@{self.needs.table(known)}"
        self.longest = max(self.longest, len(numbers))
        for place, number in enumerate(numbers):
            self.store(str(number), self.at("i64", "%table", place), "i64")
        return "%table"

    def size(self, name: str) -> str:
        """See `Writer`."""
        return f"%{argument_name(name)}"

    def look_up(self, table: Sequence[int], place: Operand) -> str:
        """See `Writer`."""
        return self.load("i64", self.at("i64", f"@{self.needs.table(table)}", place))

    def hold(self, number: Operand) -> Operand:
        """See `Writer`: a value is computed once."""
        return number

    def work_space(self, needed: Operand) -> str:
        """See `Writer`."""
        return self.call("@own_work", "ptr %model", needed, result="ptr")

    def scratch_bytes(self, sizes: SizeRange) -> str:
        """See `Writer`."""
        given = [f"i64 {self.size(name)}" for name in sizes.names]
        return self.call("@own_scratch", *given, result="i64")

    def is_missing(self, pointer: str) -> str:
        """See `Writer`."""
        return self.test("eq", pointer, "null")

    def place_workers(self, scratch: str, own: Operand) -> None:
        """See `ThreadedWriter`."""
        self.do(f"call void @place_workers(ptr %pool, ptr {scratch}, i64 {own})")

    def row_function(self, name: str) -> RowFunction:
        """See `Writer`."""
        function = RowFunction(name, self.needs)
        self.needs.written_rows.append(function)
        return function

    def reserve(self, pointer: str) -> None:
        """See `Writer`."""
        self.store(pointer, "%cell", "ptr")

    def place(self, pointer: str, offset: Operand) -> str:
        """See `Writer`."""
        return pointer if offset == 0 else self.at("i8", pointer, offset)

    def integer(self, dtype: DType, pointer: str, place: Operand) -> str:
        """See `Writer`."""
        kind = f"i{dtype.bits}"
        found = self.load(kind, self.at(kind, pointer, place), dtype.itemsize)
        how = "sext" if dtype.kind == "signed" else "zext"
        return found if dtype.bits == 64 else self.convert(how, found, "i64")

    def has_failed(self) -> str:
        """See `Writer`."""
        return self.test("ne", self.load("i32", "%error"), "0")


class RowFunction(ObjectWriter):
    """Writes a function in the convention of kernels; see `RowWriter`."""

    def __init__(self, name: str, needs: GlobalNeeds) -> None:
        parameters = ["ptr %given", "ptr %sizes", "i64 %begin", "i64 %end"]
        super().__init__(name, parameters, "void", needs)
        self.symbol = f'@"weft.{name}"'
        self.head = f"define internal void {self.symbol}({', '.join(parameters)}) nounwind {{"
        self.kinds["%own_scratch"] = "ptr"
        self.scratch = "%own_scratch"

    def given_buffer(self, place: int) -> str:
        """See `RowWriter`."""
        return self.load("ptr", self.at("ptr", "%given", place))

    def begin_calls(self, buffers: int) -> None:
        """See `ObjectWriter`: the scratch memory is that of the thread that calls it."""
        self.text[:0] = [
            f"  %pointers = alloca ptr, i64 {buffers + 1}, align 16",
            "  %cell_at = getelementptr ptr, ptr %given, i64 -1",
            "  %cell = load ptr, ptr %cell_at",
            "  %own_scratch = load ptr, ptr %cell",
            "  store ptr %cell, ptr %pointers",
            "  %buffers = getelementptr ptr, ptr %pointers, i64 1",
        ]


def argument_name(name: str) -> str:
    """What a parameter is called in LLVM's text."""
    return f'"in.{name}"'


def word(machine: Machine) -> str:
    """The type of `size_t`."""
    return f"i{8 * machine.address_bytes}"


def allocate(out: ObjectWriter, size: Operand, machine: Machine) -> tuple[str, str]:
    """So many bytes of `malloc` that begin a line of cache, and what is to be freed, or null."""
    count = out.add(size, 64)
    count = count if machine.address_bytes == 8 else out.convert("trunc", count, "i32")
    whole = out.call("malloc", f"{word(machine)} {count}", result="ptr")
    up = out.add(out.convert("ptrtoint", whole, "i64"), 63)
    return out.convert("inttoptr", out.combine("and", up, -64), "ptr"), whole
