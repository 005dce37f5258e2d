"""A program as an object file: its functions in C's convention around the kernels of its plan.

`NAME_init` makes an instance in memory that it is given, `NAME_run` is one run. All that changes is
in that memory, so that instances in two threads do not meet. Nothing is called beside what LLVM
itself calls for copies (`memcpy`, `memset`), and `malloc` and `free` in `NAME_create`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.compiler.export.bodies import Addresses, Bodies
from weft.compiler.export.fused import with_own_fma
from weft.compiler.export.layout import (
    ERROR,
    POOL,
    SCRATCH,
    WEIGHTS,
    WHOLE,
    Blob,
    Layout,
    in_lines,
)
from weft.compiler.export.program import ExportedProgram
from weft.compiler.export.threads import pool_bytes, pool_functions
from weft.compiler.export.writers import Needs, Operand
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.cache.kernels import text_of
from weft.compiler.targets.cpu.engine import emit_linked
from weft.compiler.targets.llvm.emit import emit_module
from weft.compiler.targets.llvm.ir_builder import IRBuilder, module_text
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType
from weft.core.records import frozen

TAKE = """
define internal ptr @take(ptr %buffers, i64 %size) nounwind {
  %cell = getelementptr ptr, ptr %buffers, i64 -1
  %top = load ptr, ptr %cell
  %first = load ptr, ptr %top
  %up = add i64 %size, 63
  %whole = and i64 %up, -64
  %next = getelementptr i8, ptr %first, i64 %whole
  store ptr %next, ptr %top
  ret ptr %first
}
"""
"""What kernels take scratch memory by: the address in front of their buffers says where it is."""


@frozen
class ObjectFile:
    """The code of a program, and how much memory an instance needs."""

    code: bytes
    memory: int
    messages: tuple[str, ...]
    functions: tuple[str, ...]
    called: tuple[str, ...]
    """The functions of the C library that it calls by name."""


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
        return f"%{_argument(name)}"

    def look_up(self, table: Sequence[int], place: Operand) -> str:
        """See `Writer`."""
        return self.load("i64", self.at("i64", f"@{self.needs.table(table)}", place))

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


class _Functions:
    """Writes the functions of a program."""

    def __init__(self, name: str, bodies: Bodies, needs: GlobalNeeds, inside: bool) -> None:
        self.name, self.bodies, self.inside = name, bodies, inside
        self.layout, self.needs = bodies.layout, needs

    def addresses(self, out: ObjectWriter, weights: str = "") -> Addresses:
        """What a function calls what it is given, and the weights."""
        if not weights:
            weights = "@weights" if self.inside else out.load("ptr", out.place("%model", WEIGHTS))
        program = self.bodies.program
        ports = [*program.inputs, *program.outputs]
        return Addresses(
            "%model",
            "%error",
            {name: out.place(weights, at) for name, at in self.bodies.blob.offsets.items()},
            {port.name: f"%{_argument(port.name)}" for port in ports},
        )

    def run(self) -> ObjectWriter:
        """`NAME_run(model, inputs, outputs)`: one run; 0, or the status of what went wrong."""
        program = self.bodies.program
        ports = [*program.inputs, *program.outputs]
        sizes = [f"i64 %{_argument(name)}" for name in self.layout.sizes.names]
        given = ["ptr %model", *sizes, *[f"ptr %{_argument(port.name)}" for port in ports]]
        out = ObjectWriter(f"{self.name}_run", given, "i32", self.needs)
        self.bodies.run(out, self.addresses(out))
        out.give(0)
        return out

    def init(self) -> ObjectWriter:
        """`NAME_init(memory, weights)`: an instance, with its first state, ready to run."""
        given = ["ptr %model"] if self.inside else ["ptr %model", "ptr %weights"]
        out = ObjectWriter(f"{self.name}_init", given, "ptr", self.needs)
        if not self.inside:
            out.store("%weights", out.place("%model", WEIGHTS), "ptr")
        if self.needs.threads > 1:
            out.clear(out.place("%model", POOL), pool_bytes(self.needs.threads))
        self.bodies.prepare(out, self.addresses(out, "" if self.inside else "%weights"))
        out.call(f"@{self.name}_reset", "ptr %model")
        out.give("%model")
        return out

    def reset(self) -> ObjectWriter:
        """`NAME_reset(model)`: the state as it was at first."""
        out = ObjectWriter(f"{self.name}_reset", ["ptr %model"])
        self.bodies.reset(out, self.addresses(out))
        return out

    def state(self) -> ObjectWriter:
        """`NAME_state(model, index)`: where a piece of state is."""
        out = ObjectWriter(f"{self.name}_state", ["ptr %model", "i32 %index"], "ptr")
        for number, at in enumerate(self.layout.states):
            with out.when(out.test("eq", "%index", str(number))):
                out.give(out.at("i8", "%model", at))
        out.give("null")
        return out

    def message(self) -> list[ObjectWriter | str]:
        """`NAME_message(status)`: what a status says."""
        out, parts = ObjectWriter(f"{self.name}_message", ["i32 %status"], "ptr"), list[str]()
        for number, text in enumerate(["no error", *self.needs.messages, "no such status"]):
            data = text.encode() + b"\0"
            name = f"@message_{number}"
            parts.append(f"{name} = internal constant [{len(data)} x i8] {_bytes(data)}")
            if number <= len(self.needs.messages):
                with out.when(out.test("eq", "%status", str(number))):
                    out.give(name)
            else:
                out.give(name)
        return [*parts, out]

    def memory(self, machine: Machine, size: int) -> ObjectWriter:
        """`NAME_memory()`: the bytes of an instance."""
        out = ObjectWriter(f"{self.name}_memory", [], f"i{8 * machine.address_bytes}")
        out.give(size)
        return out

    def create(self, machine: Machine, size: int) -> list[ObjectWriter]:
        """`NAME_create(weights)` and `NAME_destroy(model)`: an instance in memory of its own."""
        word = f"i{8 * machine.address_bytes}"
        out = ObjectWriter(f"{self.name}_create", [] if self.inside else ["ptr %weights"], "ptr")
        whole = out.call("malloc", f"{word} {size + 64}", result="ptr")
        with out.when(out.test("eq", whole, "null")):
            out.give("null")
        up = out.add(out.convert("ptrtoint", whole, "i64"), 63)
        model = out.convert("inttoptr", out.combine("and", up, -64), "ptr")
        out.store(whole, out.at("i8", model, WHOLE), "ptr")
        given = [f"ptr {model}"] if self.inside else [f"ptr {model}", "ptr %weights"]
        out.call(f"@{self.name}_init", *given, result="ptr")
        if self.needs.threads > 1:
            pool, scratch = (out.at("i8", model, at) for at in (POOL, self.layout.scratch))
            out.call("@start_workers", f"ptr {pool}", f"ptr {scratch}")
        out.give(model)
        end = ObjectWriter(f"{self.name}_destroy", ["ptr %model"])
        with end.when(end.test("ne", "%model", "null")):
            if self.needs.threads > 1:
                end.call("@stop_workers", f"ptr {end.at('i8', '%model', POOL)}")
            end.call("free", f"ptr {end.load('ptr', end.at('i8', '%model', WHOLE))}")
        return [out, end]


def _argument(name: str) -> str:
    return f'"in.{name}"'


def _bytes(data: bytes) -> str:
    """Bytes as LLVM's text has them: a backslash and two digits each."""
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    values = np.frombuffer(data, np.uint8)
    text = np.full((len(data), 3), ord("\\"), np.uint8)
    text[:, 1], text[:, 2] = digits[values >> 4], digits[values & 15]
    return 'c"' + text.tobytes().decode("ascii") + '"'


def object_file(
    name: str, program: ExportedProgram, plan: ProgramPlan, blob: Blob, machine: Machine,
    *, inside: bool, heap: bool, threads: int = 1,
) -> ObjectFile:  # fmt: skip
    """The object file of a program for a machine; `heap`: with create and destroy."""
    layout, needs = (
        Layout(program, plan, threads),
        GlobalNeeds(threads=threads, is_stripped=program.is_stripped),
    )
    writer = _Functions(name, Bodies(program, layout, blob, needs), needs, inside)
    run, init = writer.run(), writer.init()
    for each in (run, init, *needs.written_rows):
        each.begin_calls(needs.buffers)
    scratch = in_lines(needs.scratch) if threads > 1 else needs.scratch
    memory = layout.scratch + scratch * threads
    own = [run, init, writer.reset(), writer.state(), writer.memory(machine, memory)]
    own += writer.create(machine, memory) if heap else []
    functions = [each.symbol[1:] for each in own] + [f"{name}_message"]
    data = [
        f"@{table} = internal constant [{len(numbers)} x i64] "
        f"[{', '.join(f'i64 {number}' for number in numbers)}], align 8"
        for numbers, table in needs.tables.items()
    ]
    literals = dict(needs.constants.values())
    data += [
        f"{'@' if not each.startswith('@') else ''}{each} = "
        f"{_constant(literal.value.tobytes(), 'internal')}"
        for each, literal in literals.items()
    ]
    if inside:
        data.append(f"@weights = {_constant(blob.data(), 'internal')}")
    declared = [f'declare void @"weft.{each}"(ptr, ptr, i64, i64)' for each in _called_names(needs)]
    pool = pool_functions(threads, needs.buffers, scratch) if threads > 1 else []
    main = module_text(*data, *declared, *pool, *needs.written_rows, *own, *writer.message())
    texts = [main, *_modules(needs, machine)]
    code, called = emit_linked(texts, machine, functions)
    return ObjectFile(code, memory, tuple(needs.messages), tuple(functions), called)


def _constant(data: bytes, linkage: str) -> str:
    return f"{linkage} constant [{max(1, len(data))} x i8] {_bytes(data or bytes(1))}, align 64"


def _called_names(needs: Needs) -> list[str]:
    return [*[name for name, _ in needs.kernels.values()], *needs.texts.values()]


def _modules(needs: Needs, machine: Machine) -> list[str]:
    """The modules of kernels and of functions that were written by hand."""
    kernels = [replace(kernel, name=name) for name, kernel in needs.kernels.values()]
    texts = [emit_module(kernels, machine)] if kernels else []
    sources: dict[str, dict[str, str]] = {}
    for symbol, name in needs.texts.items():
        source, own = text_of(symbol)
        sources.setdefault(source, {})[own] = name
    for number, (source, names) in enumerate(sources.items()):

        def rename(
            match: re.Match[str], names: dict[str, str] = names, number: int = number
        ) -> str:
            return f'@"weft.{names.get(match[1], f"unused_{number}_{match[1]}")}"'

        texts.append(re.sub(r'@"weft\.(\w+)"', rename, source))
    texts = [_without_malloc(text) for text in texts]
    return texts if machine.fused else [with_own_fma(text) for text in texts]


def _without_malloc(text: str) -> str:
    """A module whose functions take scratch memory from their caller."""
    if "@malloc(" not in text:
        return text
    text = re.sub(r"^declare (ptr @malloc|void @free)\(.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*call void @free\(ptr \S+\)\n", "", text, flags=re.MULTILINE)
    return text.replace("call ptr @malloc(", "call ptr @take(ptr %buffers, ") + TAKE
