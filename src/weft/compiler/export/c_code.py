"""A program as one file in C99, for machines that LLVM does not know.

Kernels are those of the loop language, products and convolutions included, each a function; a run
is a list of calls. The interface is that of the object file (`header.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from string import Template
from typing import Any

import numpy as np

from weft.compiler.export.bodies import Addresses, Bodies
from weft.compiler.export.c_kernels import (
    c_function,
    element_type,
    helper_text,
    kernel_parameters,
    number_text,
)
from weft.compiler.export.layout import Blob, Footprint, Layout, footprint
from weft.compiler.export.program import ExportedProgram, Port, size_name
from weft.compiler.export.sizes import SizeRange
from weft.compiler.export.writers import Needs, Operand
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.limits import Limits
from weft.compiler.targets.plain.target import PlainTarget
from weft.core.dtypes import DTYPES, DType, from_numpy
from weft.core.records import frozen
from weft.ir.graph import Literal

_FILE = Template("""\
/* $name.c: a program of Weft in C99. Made by wf.export: do not edit. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "$name.h"

/* The head of an instance; behind it are the state, and the memory of a run. */
struct $name {
    const unsigned char *weights;
    void *whole;
    int32_t error;
$fields};

$declared
$constants
$helpers$kernels
size_t ${name}_memory(void)
{
    return ${upper}_MEMORY;
}

void ${name}_reset($name *model)
{
    unsigned char *own_memory = (unsigned char *)model;
$reset    (void)own_memory;
}

$init
int ${name}_run($parameters)
{
    unsigned char *own_memory = (unsigned char *)model;
    int32_t *own_error = &model->error;
    *own_error = 0;
$run    (void)own_memory;
    return 0;
}

const char *${name}_message(int status)
{
    static const char *const messages[] = {
        "no error",
$messages    };
    int count = (int)(sizeof messages / sizeof *messages);
    return status >= 0 && status < count ? messages[status] : "no such status";
}

void *${name}_state($name *model, int index)
{
    static const size_t places[] = {$places};
    return index >= 0 && index < ${upper}_STATES ? (unsigned char *)model + places[index] : NULL;
}
$data""")

_INIT = Template("""\
$kind$name *$init(void *given$more)
{
    $name *model = given;
    unsigned char *own_memory = given;
    int32_t *own_error = &model->error;
    model->weights = $weights;
    *own_error = 0;
$begin$prepare    (void)own_memory;
    ${name}_reset(model);
    return model;
}
""")

_HEAP = Template("""
$name *${name}_create($parameter)
{
    void *whole = malloc($bytes + ${upper}_ALIGNMENT);
    if (!whole)
        return NULL;
    $name *model = $init(aligned_memory(whole)$argument);
    model->whole = whole;
    return model;
}

void ${name}_destroy($name *model)
{
    if (!model)
        return;
$grown    free(model->whole);
}
""")

_ALIGNED = Template("""
static void *aligned_memory(void *whole)
{
    uintptr_t first = (uintptr_t)whole + ${upper}_ALIGNMENT - 1;
    return (void *)(first - first % ${upper}_ALIGNMENT);
}
""")

_FIELDS = """\
    void *grown;
    unsigned char *work; /* the memory of a run, which its sizes tell */
    size_t held;
"""

_BEGIN = Template("""\
    model->whole = model->grown = NULL;
    model->work = own_memory + $end;
    model->held = bytes - $end;
""")

_SIZED = Template("""
$name *${name}_init(void *memory$more)
{
    return own_init(memory, ${upper}_MEMORY$argument);
}

$name *${name}_init_in(void *memory, size_t bytes$more)
{
    return bytes < ${upper}_INSTANCE ? NULL : own_init(memory, bytes$argument);
}

/* The scratch memory of a run. */
static int64_t own_scratch($sizes)
{
$scratch}

size_t ${name}_workspace($sizes)
{
$workspace}

/* The work space, once it holds so many bytes; NULL where it cannot. */
static unsigned char *own_work($name *model, int64_t needed)
{
    if (model->held >= (size_t)needed)
        return model->work;
$grow}
""")

_GROW = Template("""\
    if (!model->whole)
        return NULL; /* the caller's memory stays as it is */
    free(model->grown);
    /* by half as much again, so that sizes which grow by one do not ask each time */
    size_t most = $most, half = model->held + model->held / 2, bytes = (size_t)needed;
    half = half < most ? half : most;
    bytes = bytes > half ? bytes : half;
    model->grown = malloc(bytes + ${upper}_ALIGNMENT);
    model->held = model->grown ? bytes : 0;
    model->work = model->grown ? aligned_memory(model->grown) : NULL;
    return model->work;
""")

_TESTS = {"slt": "<", "eq": "==", "ne": "!=", "uge": ">="}
_PLACE = re.compile(r"\((\w+) \+ (\d+)\)")


class SourceTarget(PlainTarget):
    """A machine that a C compiler knows: kernels of the loop language, one after the other."""

    name = "plain"
    limits = replace(Limits(), plan=replace(Limits().plan, fused_launches=False))


SOURCE = SourceTarget()


class SourceVariable:
    """A variable in C: an assignment is a line."""

    def __init__(self, out: SourceWriter, name: str) -> None:
        self._out, self._name = out, name

    @property
    def value(self) -> str:
        """Its name."""
        return self._name

    @value.setter
    def value(self, text: str) -> None:
        self._out.put(f"{self._name} = {text};")


class SourceWriter:
    """Writes the body of one function; see `sections.Writer`."""

    def __init__(self, needs: Needs) -> None:
        self.needs, self.lines = needs, list[str]()
        self.indent, self.count, self.scratch = 1, 0, "own_memory"
        self.held = 0
        """How many numbers are held."""

    @property
    def text(self) -> str:
        """The lines of the body."""
        held = [f"    int64_t own_amounts[{self.held}];"] if self.held else []
        return "".join(f"{line}\n" for line in (*held, *self.lines))

    def put(self, line: str) -> None:
        """Write a line."""
        self.lines.append("    " * self.indent + line)

    def fresh(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self.put(f"{head} {{")
        self.indent += 1
        yield
        self.indent -= 1
        self.put("}")

    def launch(
        self,
        function: str,
        buffers: Sequence[str],
        numbers: Sequence[Operand],
        begin: Operand,
        end: Operand,
    ) -> None:
        """See `Writer`."""
        kernel = next(each for name, each in self.needs.kernels.values() if name == function)
        given = [
            f"({'const ' if b.access == 'read' else ''}{element_type(b.dtype)} *){pointer}"
            for b, pointer in zip(kernel.buffers, buffers, strict=False)
        ]
        rest: Mapping[str, Operand] = {"scratch": self.scratch, "begin": begin, "end": end}
        more = [*numbers, *[rest[each] for each in kernel_parameters(kernel)]]
        self.put(f"{function}({', '.join([*given, *map(str, more)])});")

    def reserve(self, pointer: str) -> None:
        """See `Writer`."""
        self.scratch = pointer

    def place(self, pointer: str, offset: Operand) -> str:
        """See `Writer`."""
        if offset == 0:
            return pointer
        known = _PLACE.fullmatch(pointer)
        if known is not None and isinstance(offset, int):
            return f"({known[1]} + {int(known[2]) + offset})"
        return f"({pointer} + {offset})"

    def integer(self, dtype: DType, pointer: str, place: Operand) -> str:
        """See `Writer`."""
        return f"(int64_t)((const {element_type(dtype)} *){pointer})[{place}]"

    def size(self, name: str) -> str:
        """See `Writer`."""
        return size_name(name)

    def look_up(self, table: Sequence[int], place: Operand) -> str:
        """See `Writer`."""
        return f"{self.needs.table(table)}[{place}]"

    def hold(self, number: Operand) -> Operand:
        """See `Writer`."""
        self.put(f"own_amounts[{self.held}] = {number};")
        self.held += 1
        return f"own_amounts[{self.held - 1}]"

    def work_space(self, needed: Operand) -> str:
        """See `Writer`."""
        name = self.fresh("p")
        self.put(f"unsigned char *{name} = own_work(model, {needed});")
        return name

    def scratch_bytes(self, sizes: SizeRange) -> str:
        """See `Writer`."""
        return f"own_scratch({', '.join(map(size_name, sizes.names))})"

    def is_missing(self, pointer: str) -> str:
        """See `Writer`."""
        return f"!{pointer}"

    def copy(self, target: str, source: str, count: Operand) -> None:
        """See `Writer`."""
        self.put(f"memcpy({target}, {source}, {count});")

    def clear(self, target: str, count: Operand) -> None:
        """See `Writer`."""
        self.put(f"memset({target}, 0, {count});")

    def variable(self, start: Operand) -> SourceVariable:
        """See `Writer`: a number, or an address."""
        is_number = isinstance(start, int)
        name = self.fresh("n" if is_number else "p")
        self.put(f"{'int64_t ' if is_number else 'unsigned char *'}{name} = {start};")
        return SourceVariable(self, name)

    @contextmanager
    def loop(self, start: Operand, end: Operand) -> Iterator[str]:
        """See `Writer`."""
        name = self.fresh("i")
        with self._block(f"for (int64_t {name} = {start}; {name} < {end}; {name}++)"):
            yield name

    @contextmanager
    def repeat(self) -> Iterator[None]:
        """See `Writer`."""
        with self._block("for (;;)"):
            yield

    def leave_unless(self, condition: str) -> None:
        """See `Writer`."""
        self.put(f"if (!({condition})) break;")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """See `Writer`."""
        with self._block(f"if ({condition})"):
            yield

    def test(self, how: str, a: Operand, b: Operand) -> str:
        """See `Writer`."""
        return f"{'(uint64_t)' if how == 'uge' else ''}{a} {_TESTS[how]} {b}"

    def select(self, condition: str, yes: Operand, no: Operand) -> str:
        """See `Writer`."""
        return f"({condition} ? {yes} : {no})"

    def add(self, a: Operand, b: Operand) -> str:
        """See `Writer`."""
        return f"({a} + {b})"

    def sub(self, a: Operand, b: Operand) -> str:
        """See `Writer`."""
        return f"({a} - {b})"

    def mul(self, a: Operand, b: Operand) -> str:
        """See `Writer`."""
        return f"({a} * {b})"

    def div(self, a: Operand, b: Operand) -> str:
        """See `Writer`."""
        return f"({a} / {b})"

    def give(self, value: Operand | None = None) -> None:
        """See `Writer`."""
        self.put("return;" if value is None else f"return {value};")

    def has_failed(self) -> str:
        """See `Writer`."""
        return "*own_error != 0"


class _SourceNeeds(Needs):
    """What a program needs; constants are arrays."""

    def constant(self, literal: Literal) -> str:
        """See `Needs`."""
        return f"((unsigned char *){super().constant(literal)})"


@frozen
class SourceFile:
    """A program in C, and how much memory an instance needs."""

    text: str
    memory: Footprint
    messages: tuple[str, ...]


def source_file(
    name: str, program: ExportedProgram, plan: ProgramPlan, blob: Blob, parameters: str,
    *, inside: bool, heap: bool,
) -> SourceFile:  # fmt: skip
    """The file of a program whose plan is for `SOURCE`; `parameters`: those of a run."""
    layout, needs = Layout(program, plan), _SourceNeeds(is_stripped=program.is_stripped)
    bodies = Bodies(program, layout, blob, needs)
    at = _addresses(program, blob, inside)
    run, prepare, reset = (SourceWriter(needs) for _ in range(3))
    bodies.run(run, at)
    bodies.prepare(prepare, at)
    bodies.reset(reset, at)
    helpers: set[str] = set()
    kernels = [c_function(each, kernel, helpers) for each, kernel in needs.kernels.values()]
    words = {"name": name, "upper": name.upper()}
    shipped = blob.arrays if inside else ()
    memory = footprint(layout, needs)
    beginning = _instance_functions(words, bodies, memory, prepare.text, inside=inside, heap=heap)
    text = _FILE.substitute(
        words,
        declared="\n".join(
            f"{_declaration(_weight_name(port), value)};" for port, value in shipped
        ),
        fields=_FIELDS if layout.has_work_space else "",
        constants=_constants(needs),
        helpers="".join(f"{helper_text(each, DTYPES)}\n\n" for each in sorted(helpers)),
        kernels="".join(f"{each}\n\n" for each in kernels),
        reset=reset.text,
        init=beginning,
        parameters=parameters,
        run=run.text,
        messages="".join(f"        {_string_literal(each)},\n" for each in needs.messages),
        places=", ".join(map(str, layout.states)) or "0",
        data="".join(f"\n{_array(_weight_name(port), value)}\n" for port, value in shipped),
    )
    return SourceFile(text, memory, tuple(needs.messages))


def _constants(needs: Needs) -> str:
    arrays = [
        _array(each, np.asarray(literal.value))
        for each, literal in dict(needs.constants.values()).items()
    ]
    tables = [
        f"static const int64_t {table}[] = {{{', '.join(map(str, numbers))}}};"
        for numbers, table in needs.tables.items()
    ]
    return "\n".join([*arrays, *tables])


def _instance_functions(
    words: Mapping[str, str], bodies: Bodies, memory: Footprint, prepare: str,
    *, inside: bool, heap: bool,
) -> str:  # fmt: skip
    """The functions that make instances, and what tells how much memory a run needs."""
    layout = bodies.layout
    more, argument = ("", "") if inside else (", const void *weights", ", weights")
    is_sized = layout.has_work_space
    text = _ALIGNED.substitute(words) if heap else ""
    text += _INIT.substitute(
        words,
        kind="static " if is_sized else "",
        init="own_init" if is_sized else f"{words['name']}_init",
        more=f", size_t bytes{more}" if is_sized else more,
        weights="NULL" if inside else "weights",
        begin=_BEGIN.substitute(end=layout.end) if is_sized else "",
        prepare=prepare,
    )
    if is_sized:
        scratch, workspace = SourceWriter(bodies.needs), SourceWriter(bodies.needs)
        bytes_of_kernels = memory.scratch.write(scratch)
        if isinstance(bytes_of_kernels, int):
            for each in layout.sizes.names:
                scratch.put(f"(void){size_name(each)};")
        scratch.give(bytes_of_kernels)
        workspace.give(f"(size_t){bodies.bytes_of_run(workspace)}")
        sizes = ", ".join(f"int64_t {size_name(each)}" for each in layout.sizes.names)
        grow = (
            _GROW.substitute(words, most=int(memory.work.max())) if heap else "    return NULL;\n"
        )
        text += _SIZED.substitute(
            words, more=more, argument=argument, sizes=sizes, scratch=scratch.text,
            workspace=workspace.text, grow=grow,
        )  # fmt: skip
    if heap:
        upper = words["upper"]
        text += _HEAP.substitute(
            words,
            parameter="void" if inside else "const void *weights",
            bytes=f"{upper}_INSTANCE" if is_sized else f"{upper}_MEMORY",
            init="own_init" if is_sized else f"{words['name']}_init",
            argument=f", {upper}_INSTANCE{argument}" if is_sized else argument,
            grown="    free(model->grown);\n" if is_sized else "",
        )
    return text


def _addresses(program: ExportedProgram, blob: Blob, inside: bool) -> Addresses:
    """What the functions call what they are given, and the weights."""
    if inside:
        weights = {port.name: f"((unsigned char *){_weight_name(port)})" for port, _ in blob.arrays}
    else:
        weights = {
            name: f"((unsigned char *)model->weights + {at})" for name, at in blob.offsets.items()
        }
    ports = [*program.inputs, *program.outputs]
    return Addresses(
        "own_memory",
        "((unsigned char *)own_error)",
        weights,
        {port.name: f"((unsigned char *){port.name})" for port in ports},
    )


def _weight_name(port: Port) -> str:
    return f"weight_{port.name}"


def _declaration(name: str, value: np.ndarray[Any, Any]) -> str:
    kind = element_type(from_numpy(value.dtype))
    return f"static const {kind} {name}[{max(1, value.size)}]"


def _array(name: str, value: np.ndarray[Any, Any]) -> str:
    """An array with its numbers, some on each line."""
    dtype = from_numpy(value.dtype)
    if dtype.is_floating and dtype.bits == 16:
        numbers = [str(each) for each in value.reshape(-1).view(np.uint16).tolist()]
    else:
        flat = value.reshape(-1)
        numbers = [number_text(each, dtype) for each in flat.tolist()]
    lines = [", ".join(numbers[n : n + 8]) for n in range(0, len(numbers), 8)] or ["0"]
    return f"{_declaration(name, value)} = {{\n    " + ",\n    ".join(lines) + "};"


def _string_literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
