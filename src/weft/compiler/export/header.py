"""The header of an exported program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from string import Template

from weft.compiler.export.c_kernels import element_type
from weft.compiler.export.program import ExportedProgram, Port, size_name
from weft.core.records import frozen

_HEADER = Template("""\
/* $name.h: a program of Weft for $target. Made by wf.export: do not edit.
 *
 * An instance ($name *) holds all that changes. Runs of one instance must not
 * overlap; several instances may run at the same time, each in a thread of its own.
$threads */
#ifndef ${upper}_H
#define ${upper}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct $name $name;

#define ${upper}_MEMORY ${memory}u /* bytes of an instance$whole */
$instance#define ${upper}_ALIGNMENT 64u /* what its address is a multiple of */
$most$beside
/* The bytes of an instance: ${upper}_MEMORY. */
size_t ${name}_memory(void);

/* An instance in ${upper}_MEMORY bytes that the caller has, and keeps.$told */
$name *${name}_init(void *memory$more);
$work$heap
/* One run: 0, or a status. Inputs and outputs must not overlap. After an error the
 * outputs and the state are not to be used: call ${name}_reset.
$sizes$ports */
int ${name}_run($parameters);

/* What a status says. */
const char *${name}_message(int status);

/* The state, which each run replaces, by number; NULL where there is none.
$states */
${numbers}void *${name}_state($name *model, int index);

/* The state as it was at first. */
void ${name}_reset($name *model);

/* Names, dtypes, shapes and bytes of what goes in and out$varying. */
typedef struct {
    const char *name, *dtype;
    int rank;
    int64_t shape[8];
    size_t bytes;
} ${name}_tensor;
$tables
#ifdef __cplusplus
}
#endif

#endif /* ${upper}_H */
""")

_BESIDE = Template("""\
#define ${upper}_WEIGHTS_FILE "$file"
#define ${upper}_WEIGHTS_OFFSET ${offset}u /* where the weights begin in it */
""")

_INSTANCE = Template("""\
#define ${upper}_INSTANCE ${instance}u /* bytes of one without work space */
""")

_WORK = Template("""
/* The bytes of work space that a run of these sizes takes; 0 for sizes that it refuses. */
size_t ${name}_workspace($sizes);

/* An instance in so many bytes that the caller has, and keeps: ${upper}_INSTANCE, and work
 * space for the largest run. A run that needs more gives a status. NULL for less.$told */
$name *${name}_init_in(void *memory, size_t bytes$more);
""")

_HEAP = Template("""
/* An instance in memory from malloc; NULL where there is none.$grows$told */
$name *${name}_create($weights);

/* Give the memory of such an instance back. */
void ${name}_destroy($name *model);
""")


@frozen
class Interface:
    """What the texts say of a program."""

    name: str
    program: ExportedProgram
    target: str
    memory: int
    """The bytes of an instance, with memory for every run."""
    instance: int
    """Those of one without work space."""
    heap: bool
    weights_file: str
    """The file beside the code that holds the weights; empty where they are inside."""
    weights_offset: int
    messages: tuple[str, ...]
    threads: int = 1

    @property
    def macro_prefix(self) -> str:
        """The name as macros begin with it."""
        return self.name.upper()

    @property
    def ports(self) -> tuple[Port, ...]:
        """What a run is given, in order: inputs, then outputs."""
        return (*self.program.inputs, *self.program.outputs)


def port_line(port: Port) -> str:
    """What a comment says of a tensor."""
    plain = port.title.replace("*/", "* /").replace("\n", " ")  # a comment must not end here
    title = "" if port.title == port.name else f" ({plain})"
    return f"{port.name}: {port.type.dtype.name}[{', '.join(map(str, port.type.shape))}]{title}"


def header_text(about: Interface) -> str:
    """The header."""
    words = {"name": about.name, "upper": about.macro_prefix}
    weights = "const void *weights" if about.weights_file else ""
    told = " The weights must stay where they are." if weights else ""
    states = [state.port for state in about.program.states]
    lines = [f" *   in   {port_line(port)}\n" for port in about.program.inputs]
    lines += [f" *   out  {port_line(port)}\n" for port in about.program.outputs]
    file = {"file": about.weights_file, "offset": str(about.weights_offset)}
    is_sized = bool(about.program.sizes.largest)
    grows = (
        "\n * A run asks for the work space that its sizes take, where it has less."
        if is_sized
        else ""
    )
    heap = _HEAP.substitute(words, told=told, weights=weights or "void", grows=grows)
    more = f", {weights}" if weights else ""
    sizes = ", ".join(f"int64_t {size_name(each)}" for each in about.program.sizes.names)
    return _HEADER.substitute(
        words,
        target=about.target,
        threads=""
        if about.threads == 1
        else f" * An instance from {about.name}_create runs on {about.threads} threads: link with "
        "-pthread.\n",
        memory=about.memory,
        beside=_BESIDE.substitute(words, **file) if weights else "",
        told=told,
        more=more,
        whole=", with work space for every run" if is_sized else "",
        instance=_INSTANCE.substitute(words, instance=about.instance) if is_sized else "",
        work=_WORK.substitute(words, more=more, told=told, sizes=sizes) if is_sized else "",
        heap=heap if about.heap else "",
        ports="".join(lines),
        most="".join(
            f"#define {about.macro_prefix}_MOST_{name.upper()} {most} /* the largest {name} */\n"
            for name, most in about.program.sizes.largest.items()
        ),
        sizes="".join(
            f" *   size {name}: from 1 to {most}, of each run; any other gives a status\n"
            for name, most in about.program.sizes.largest.items()
        ),
        varying="; -1: a size of the run, with bytes at most"
        if about.program.sizes.largest
        else "",
        parameters=run_parameters(about.name, about.program),
        states="".join(f" *   {n}  {port_line(port)}\n" for n, port in enumerate(states)),
        numbers="".join(
            f"#define {about.macro_prefix}_STATE_{port.name.upper()} {n}\n"
            for n, port in enumerate(states)
        ),
        tables="".join(_tables(about, states)),
    )


def run_parameters(name: str, program: ExportedProgram) -> str:
    """The parameters of a run."""
    inputs = [f"const {element_type(port.type.dtype)} *{port.name}" for port in program.inputs]
    outputs = [f"{element_type(port.type.dtype)} *{port.name}" for port in program.outputs]
    sizes = [f"int64_t {size_name(each)}" for each in program.sizes.names]
    return ", ".join([f"{name} *model", *sizes, *inputs, *outputs])


def _tables(about: Interface, states: Sequence[Port]) -> Iterator[str]:
    """What goes in and out, for programs that ask."""
    groups = ("inputs", about.program.inputs), ("outputs", about.program.outputs)
    for title, ports in (*groups, ("states", states)):
        yield f"#define {about.macro_prefix}_{title.upper()} {len(ports)}\n"
        yield f"static const {about.name}_tensor {about.name}_{title}[] = {{\n"
        for port in ports:
            dims = [str(dim) if isinstance(dim, int) else "-1" for dim in port.type.shape]
            shape = ", ".join(dims) or "0"
            kind = f'"{port.type.dtype.name}", {port.type.ndim}, {{{shape}}}'
            yield f"    {{{json.dumps(port.title)}, {kind}, {port.bytes}}},\n"
        yield "    {0, 0, 0, {0}, 0}};\n"
