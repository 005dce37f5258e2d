"""A program as an object file: its functions in C's convention around the kernels of its plan.

`NAME_init` makes an instance in memory that it is given, `NAME_run` is one run. All that changes is
in that memory, so that instances in two threads do not meet. Nothing is called beside what LLVM
itself calls for copies (`memcpy`, `memset`), and `malloc` and `free` in `NAME_create`.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from weft.compiler.export.bodies import Addresses, Bodies
from weft.compiler.export.fused import with_own_fma
from weft.compiler.export.layout import (
    GROWN,
    POOL,
    WEIGHTS,
    WHOLE,
    Blob,
    Footprint,
    Layout,
    footprint,
)
from weft.compiler.export.object_sizes import SizedFunctions, begin_work_space
from weft.compiler.export.object_writers import (
    GlobalNeeds,
    ObjectWriter,
    allocate,
    argument_name,
    word,
)
from weft.compiler.export.program import ExportedProgram
from weft.compiler.export.threads import pool_bytes, pool_functions
from weft.compiler.export.writers import Needs
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.cache.kernels import text_of
from weft.compiler.targets.cpu.engine import emit_linked
from weft.compiler.targets.llvm.emit import emit_module
from weft.compiler.targets.llvm.ir_builder import IRBuilder, module_text
from weft.compiler.targets.llvm.machine import Machine
from weft.core.records import frozen


@frozen
class ObjectFile:
    """The code of a program, and how much memory an instance needs."""

    code: bytes
    memory: Footprint
    messages: tuple[str, ...]
    functions: tuple[str, ...]
    called: tuple[str, ...]
    """The functions of the C library that it calls by name."""


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
            {port.name: f"%{argument_name(port.name)}" for port in ports},
        )

    def run(self) -> ObjectWriter:
        """`NAME_run(model, inputs, outputs)`: one run; 0, or the status of what went wrong."""
        program = self.bodies.program
        ports = [*program.inputs, *program.outputs]
        sizes = [f"i64 %{argument_name(name)}" for name in self.layout.sizes.names]
        given = ["ptr %model", *sizes, *[f"ptr %{argument_name(port.name)}" for port in ports]]
        out = ObjectWriter(f"{self.name}_run", given, "i32", self.needs)
        self.bodies.run(out, self.addresses(out))
        out.give(0)
        return out

    def init(self) -> ObjectWriter:
        """`NAME_init(memory, weights)`: an instance, with its first state, ready to run.

        With work space it is `own_init`, which is told how many bytes there are.
        """
        weights = [] if self.inside else ["ptr %weights"]
        if self.layout.has_work_space:
            out = ObjectWriter(
                "own_init", ["ptr %model", "i64 %bytes", *weights], "ptr", self.needs
            )
            out.hide()
            begin_work_space(out, self.layout.end)
        else:
            given = ["ptr %model", *weights]
            out = ObjectWriter(f"{self.name}_init", given, "ptr", self.needs)
        self._begin_instance(out)
        out.give("%model")
        return out

    def _begin_instance(self, out: ObjectWriter) -> None:
        """Write what is in an instance at first."""
        if not self.inside:
            out.store("%weights", out.place("%model", WEIGHTS), "ptr")
        if self.needs.threads > 1:
            out.clear(out.place("%model", POOL), pool_bytes(self.needs.threads))
        self.bodies.prepare(out, self.addresses(out, "" if self.inside else "%weights"))
        out.call(f"@{self.name}_reset", "ptr %model")

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
        out = ObjectWriter(f"{self.name}_memory", [], word(machine))
        out.give(size)
        return out

    def create(self, machine: Machine, size: int) -> list[ObjectWriter]:
        """`NAME_create(weights)` and `NAME_destroy(model)`: an instance in memory of its own."""
        weights = [] if self.inside else ["ptr %weights"]
        out = ObjectWriter(f"{self.name}_create", weights, "ptr")
        model, whole = allocate(out, size, machine)
        with out.when(out.is_missing(whole)):
            out.give("null")
        if self.layout.has_work_space:
            out.call("@own_init", f"ptr {model}", size, *weights, result="ptr")
        else:
            out.call(f"@{self.name}_init", f"ptr {model}", *weights, result="ptr")
        out.store(whole, out.at("i8", model, WHOLE), "ptr")
        if self.needs.threads > 1:
            pool, scratch = (out.at("i8", model, at) for at in (POOL, self.layout.end))
            out.call("@start_workers", f"ptr {pool}", f"ptr {scratch}")
        out.give(model)
        end = ObjectWriter(f"{self.name}_destroy", ["ptr %model"])
        with end.when(end.test("ne", "%model", "null")):
            if self.needs.threads > 1:
                end.call("@stop_workers", f"ptr {end.at('i8', '%model', POOL)}")
            if self.layout.has_work_space:
                end.free(end.load("ptr", end.at("i8", "%model", GROWN)))
            end.free(end.load("ptr", end.at("i8", "%model", WHOLE)))
        return [out, end]


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
    memory = footprint(layout, needs)
    own = [run, writer.reset(), writer.state(), writer.memory(machine, memory.whole)]
    own += writer.create(machine, memory.instance) if heap else []
    hidden = list[ObjectWriter]()
    if layout.has_work_space:
        sized = SizedFunctions(name, writer.bodies, needs, machine, memory)
        own += [*sized.inits(inside), sized.workspace()]
        hidden = [init, sized.scratch(), sized.work_space(heap)]
    else:
        own.append(init)
    functions = [each.symbol[1:] for each in own] + [f"{name}_message"]
    declared = [f'declare void @"weft.{each}"(ptr, ptr, i64, i64)' for each in _called_names(needs)]
    scratch = int(memory.scratch.table.flat[0])
    pool = pool_functions(threads, needs.buffers, scratch) if threads > 1 else []
    functions_text = (*pool, *needs.written_rows, *hidden, *own, *writer.message())
    main = module_text(*_data(needs, blob, inside), *declared, *functions_text)
    texts = [main, *_modules(needs, machine)]
    code, called = emit_linked(texts, machine, functions)
    return ObjectFile(code, memory, tuple(needs.messages), tuple(functions), called)


def _data(needs: Needs, blob: Blob, inside: bool) -> list[str]:
    """Tables, constants and weights."""
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
    return data


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
    return texts if machine.fuses_multiply_add else [with_own_fma(text) for text in texts]


def _without_malloc(text: str) -> str:
    """A module whose functions take scratch memory from their caller."""
    if "@malloc(" not in text:
        return text
    text = re.sub(r"^declare (ptr @malloc|void @free)\(.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*call void @free\(ptr \S+\)\n", "", text, flags=re.MULTILINE)
    return (
        text.replace("call ptr @malloc(", "call ptr @take(ptr %buffers, ")
        + _take_scratch().definition
        + "\n"
    )


def _take_scratch() -> IRBuilder:
    """What kernels take scratch memory by: the cell in front of their buffers says where it is."""
    out = IRBuilder("take", ("ptr %buffers", "i64 %size"), result="ptr")
    cell = out.pointer("%buffers", -1)
    first = out.load("ptr", cell)
    whole_lines = out.combine("and", out.add("%size", 63), -64)
    out.store(out.at("i8", first, whole_lines), cell)
    out.give(first)
    return out
