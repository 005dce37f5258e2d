"""Main programs that show how an exported program is used: in C, and in JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from string import Template

from weft.compiler.export.c_kernels import element_type
from weft.compiler.export.header import Interface, port_line
from weft.compiler.export.program import Port
from weft.core.dimensions import Floor
from weft.core.records import frozen
from weft.core.shapes import Dimension, size

_MAIN = Template("""\
/* Shows how $name.h is used. Without arguments it runs once, on zeros, and prints.
 *
 *     ./main inputs.bin outputs.bin [runs]$usage
 *
 * reads the inputs one behind the other from a file for each run, which begins again
 * at its end, and writes the outputs of each run, and at last the state.
 */
#include <stdio.h>
#include <stdlib.h>
#include "$name.h"

$arrays$sizes$memory
$weights$reading
int main(int argc, char **argv)
{
    int runs = argc > 3 ? atoi(argv[3]) : 1;
$chosen    FILE *source = argc > 1 ? fopen(argv[1], "rb") : NULL;
    FILE *target = argc > 2 ? fopen(argv[2], "wb") : NULL;
    $name *model = $create;
    if (!model || (argc > 1 && !source) || (argc > 2 && !target))
        return 2;
    for (int i = 0; i < runs; i++) {
        if (source)
            read_inputs(source);
        int status = ${name}_run($given);
        if (status) {
            fprintf(stderr, "%s\\n", ${name}_message(status));
            return 1;
        }
        if (target) {
$writing        }
    }
    for (int i = 0; target && i < ${upper}_STATES; i++)
        fwrite(${name}_state(model, i), 1, ${name}_states[i].bytes, target);
    if (target)
        fclose(target);
    else {
$printing    }
$end    return 0;
}
""")

_READING = Template("""\
static void read_inputs(FILE *file)
{
    int first = fgetc(file);
    if (first == EOF)
        rewind(file);
    else
        ungetc(first, file);
    if ($short) {
        fprintf(stderr, "the file of inputs is too short\\n");
        exit(2);
    }
}
""")

_STATIC = Template("""\
static unsigned char memory[${upper}_MEMORY + ${upper}_ALIGNMENT];

static void *aligned_memory(void)
{
    uintptr_t first = (uintptr_t)memory + ${upper}_ALIGNMENT - 1;
    return (void *)(first - first % ${upper}_ALIGNMENT);
}
""")

_WEIGHTS = Template("""\
#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const void *load_weights(void)
{
    int file = open(${upper}_WEIGHTS_FILE, O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about))
        exit(2);
    char *whole = mmap(NULL, about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (whole == MAP_FAILED)
        exit(2);
    return whole + ${upper}_WEIGHTS_OFFSET;
}
#else
static const void *load_weights(void)
{
    FILE *file = fopen(${upper}_WEIGHTS_FILE, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        exit(2);
    long size = ftell(file) - ${upper}_WEIGHTS_OFFSET;
    char *weights = malloc(size);
    if (!weights || fseek(file, ${upper}_WEIGHTS_OFFSET, SEEK_SET))
        exit(2);
    if (fread(weights, 1, size, file) != (size_t)size)
        exit(2);
    fclose(file);
    return weights;
}
#endif

""")


def main_text(about: Interface) -> str:
    """A main program in C."""
    words = {"name": about.name, "upper": about.macro_prefix}
    program, weights = about.program, "load_weights()" if about.weights_file else ""
    arrays = [
        f"static {element_type(port.type.dtype)} {port.name}_data[{max(1, port.count)}];"
        f" /* {port_line(port)} */\n"
        for port in about.ports
    ]
    names = program.sizes.names
    missing = [
        f"fread({port.name}_data, 1, {_bytes_text(port)}, file) != {_bytes_text(port)}"
        for port in program.inputs
    ]
    if about.heap:
        create = f"{about.name}_create({weights})"
    else:
        create = f"{about.name}_init(aligned_memory(){', ' + weights if weights else ''})"
    return _MAIN.substitute(
        words,
        arrays="".join(arrays),
        memory="" if about.heap else _STATIC.substitute(words),
        weights=_WEIGHTS.substitute(words) if weights else "",
        reading=_READING.substitute(short=" || ".join(missing) or "0"),
        create=create,
        usage="".join(f" [{name}]" for name in names),
        sizes="".join(
            f"static size_t {name}_now = {about.macro_prefix}_MOST_{name.upper()};\n"
            for name in names
        ),
        chosen="".join(
            f"    if (argc > {4 + n})\n        {name}_now = strtoull(argv[{4 + n}], NULL, 10);\n"
            for n, name in enumerate(names)
        ),
        given=", ".join(
            [
                "model",
                *[f"(int64_t){name}_now" for name in names],
                *[f"{port.name}_data" for port in about.ports],
            ]
        ),
        writing="".join(
            f"            fwrite({port.name}_data, 1, {_bytes_text(port)}, target);\n"
            for port in program.outputs
        ),
        printing="".join(
            f'        printf("{port.name}[0] = %g\\n", (double){port.name}_data[0]);\n'
            for port in program.outputs
        ),
        end=f"    {about.name}_destroy(model);\n" if about.heap else "",
    )


def _bytes_text(port: Port) -> str:
    """The bytes of a tensor, as C computes them from the sizes of the run."""
    if not port.largest:
        return str(port.bytes)
    return f"{port.type.dtype.itemsize} * {_dimension_text(size(port.type.shape), _IN_C)}"


@frozen
class _Language:
    """How a language calls the size of a name, and the whole part of a quotient."""

    name: Callable[[str], str]
    quotient: Callable[[str, str], str]


_IN_C = _Language(lambda name: f"{name}_now", lambda above, below: f"({above} / {below})")
_IN_JAVASCRIPT = _Language(
    lambda name: f"most.{name}", lambda above, below: f"Math.floor({above} / {below})"
)


def _dimension_text(dim: Dimension, language: _Language) -> str:
    """A size; quotients are of numbers that are not negative."""
    if isinstance(dim, int):
        return str(dim)
    terms = [
        " * ".join([f"({coefficient})", *[_atom_text(atom, language) for atom in monomial]])
        for monomial, coefficient in dim.terms
    ]
    return f"({' + '.join(terms)})"


def _atom_text(atom: str | Floor, language: _Language) -> str:
    if isinstance(atom, str):
        return language.name(atom)
    sides = (_dimension_text(side, language) for side in (atom.numerator, atom.denominator))
    return language.quotient(*sides)


def _count_text(port: Port) -> str:
    """How many elements a tensor has at most, as JavaScript computes it from the largest sizes."""
    elements = size(port.type.shape)
    is_growing = isinstance(elements, int) or all(
        coefficient > 0 and all(isinstance(atom, str) for atom in monomial)
        for monomial, coefficient in elements.terms
    )
    return _dimension_text(elements, _IN_JAVASCRIPT) if is_growing else str(port.count)


_SCRIPT = Template("""\
// Shows how $name.wasm is used, in a browser, or by: node main.mjs [inputs.bin outputs.bin runs]
const mathematics = new Proxy({}, {
  get: (_, f) => Math[f] ?? Math[f.replace(/f$$/, "")] ?? ((x, y) => x % y),
});

// An instance: its arrays are views of the module's memory; run() gives a status, 0 if all is well.
${telling}export async function load(bytes$more) {
  const made = await WebAssembly.instantiate(bytes, { env: mathematics });
  const code = made.instance.exports;
  let top = code.__heap_base.value;
  const take = (size) => {
    const start = (top + 63) & ~63;
    top = start + size;
    const missing = top - code.memory.buffer.byteLength;
    if (missing > 0) code.memory.grow(Math.ceil(missing / 65536));
    return start;
  };
  const places = [$sizes].map(take);
$shipping  const model = $init;
  const buffer = code.memory.buffer;
  return {
    run: ($parameters) => code.${name}_run(model, $given...places),
    reset: () => code.${name}_reset(model),
    state: (index, size) => new Uint8Array(buffer, code.${name}_state(model, index), size),
$views  };
}

if (typeof process !== "undefined" && process.argv[1]?.endsWith("main.mjs")) {
  const { readFileSync, writeFileSync } = await import("node:fs");
  const file = (name) => readFileSync(new URL(name, import.meta.url));
  const model = await load(file("$name.wasm")$weights);
  const [, , source, target, runs] = process.argv;
  const given = source ? readFileSync(source) : null, written = [];
  let at = 0;
  for (let i = 0; i < Number(runs ?? 1); i++) {
    if (given && at >= given.length) at = 0;
    for (const array of given ? [$inputs] : []) {
      const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
      bytes.set(given.subarray(at, (at += bytes.length)));
    }
    const status = model.run();
    if (status) throw new Error(`status $${status}`);
    for (const array of [$outputs]) written.push(Buffer.from(array.slice().buffer));
  }
  [$states].forEach((size, i) => written.push(Buffer.from(model.state(i, size))));
  if (target) writeFileSync(target, Buffer.concat(written));
  else console.log([$outputs].map((array) => String(array[0])).join(" "));
}
""")

_VIEWS = {
    "float32": "Float32Array", "float64": "Float64Array", "int8": "Int8Array",
    "uint8": "Uint8Array", "bool": "Uint8Array", "int16": "Int16Array", "uint16": "Uint16Array",
    "int32": "Int32Array", "uint32": "Uint32Array", "int64": "BigInt64Array",
    "uint64": "BigUint64Array", "float16": "Uint16Array", "bfloat16": "Uint16Array",
}  # fmt: skip
"""The views of JavaScript; 16-bit floats are their bits."""


def script_text(about: Interface) -> str:
    """A main program in JavaScript, for a browser or node."""
    program, is_beside = about.program, bool(about.weights_file)
    shipping = [
        "  const shipped = take(weights.byteLength);\n",
        "  new Uint8Array(code.memory.buffer).set(new Uint8Array(weights), shipped);\n",
    ]
    file = f', file("{about.weights_file}").subarray({about.weights_offset})'
    views = [
        f"    {port.name}: new {_VIEWS[port.type.dtype.name]}"
        f"(buffer, places[{n}], {_count_text(port)}), // {port_line(port)}\n"
        for n, port in enumerate(about.ports)
    ]
    largest = ", ".join(f"{name}: {most}" for name, most in program.sizes.largest.items())
    return _SCRIPT.substitute(
        name=about.name,
        parameters=", ".join(f"{name} = most.{name}" for name in program.sizes.names),
        given="".join(f"BigInt({name}), " for name in program.sizes.names),
        more=(", weights" if is_beside else "") + (f", most = {{ {largest} }}" if largest else ""),
        telling="// most: the sizes that its memory is for; smaller ones take less.\n"
        if largest
        else "",
        init=_script_init(about),
        sizes=", ".join(
            f"{port.type.dtype.itemsize} * {_count_text(port)}" for port in about.ports
        ),
        shipping="".join(shipping) if is_beside else "",
        views="".join(views),
        weights=file if is_beside else "",
        inputs=", ".join(f"model.{port.name}" for port in program.inputs),
        outputs=", ".join(f"model.{port.name}" for port in program.outputs),
        states=", ".join(str(state.port.bytes) for state in program.states),
    )


def _script_init(about: Interface) -> str:
    """What makes an instance in JavaScript; one for some sizes has the work space of these."""
    name, sizes = about.name, about.program.sizes.largest
    shipped = ", shipped" if about.weights_file else ""
    if not sizes:
        return f"code.{name}_init(take(code.{name}_memory()){shipped})"
    given = ", ".join(f"BigInt(most.{each})" for each in sizes)
    is_largest = " && ".join(f"most.{each} >= {most}" for each, most in sizes.items())
    room = (
        f"({is_largest}) ? code.{name}_memory() : {about.instance} + code.{name}_workspace({given})"
    )
    return f"((room) => code.{name}_init_in(take(room), room{shipped}))(\n    {room},\n  )"
