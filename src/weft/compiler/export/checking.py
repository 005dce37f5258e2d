"""An exported program against the reference: the same inputs, run after run, in an emulator."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.export.header import Interface
from weft.compiler.export.linking import (
    build_program,
    is_web,
    run_program,
    runner,
)
from weft.compiler.export.machines import Platform
from weft.compiler.export.microcontroller import board_command, write_board_files
from weft.compiler.export.program import ExportedProgram, Port
from weft.compiler.function.jit import Jit
from weft.compiler.plan.launch import Sizes
from weft.core.arrays import to_host
from weft.core.errors import MiscompiledError, UnsupportedError
from weft.core.records import frozen
from weft.core.shapes import substitute
from weft.ir.graph import Graph
from weft.ir.sizes import resolve_graph
from weft.ir.tensor import wrap
from weft.ir.tracing import interpret
from weft.ir.walking import graphs_of
from weft.ops.control import run as run_by_reference

Array = np.ndarray[Any, Any]
RUNS = 3
"""How often the program runs: state that one run writes is read by the next."""
TOLERANCE = {2: 2e-2, 4: 2e-4, 8: 1e-9}
"""How far numbers of so many bytes may be off, compared with the largest of their tensor."""


@frozen
class Check:
    """What a check found: how far tensors were off, compared with their largest number."""

    runs: int
    differences: dict[str, float]
    notes: tuple[str, ...] = ()

    @property
    def largest_difference(self) -> float:
        """The largest difference."""
        return max(self.differences.values(), default=0.0)

    def __str__(self) -> str:
        found = ", ".join(f"{name} {value:.1e}" for name, value in self.differences.items())
        return "; ".join([f"{self.runs} runs agree with Weft: {found}", *self.notes])


def reference_runs(
    program: ExportedProgram,
    runs: int,
    sizes: Sizes | None = None,
    compute: Callable[[Graph, list[Array]], Sequence[Any]] = run_by_reference,
) -> list[Array]:
    """The outputs of each run, one behind the other, and at last the state, by reference."""
    sizes = program.sizes.largest if sizes is None else sizes
    graph, examples = program.graph, program.examples_at(sizes)
    if sizes:
        graph = resolve_graph(graph, lambda dim: substitute(dim, dict(sizes)))
    states = [state.value for state in program.states]
    found: list[Array] = []
    for _ in range(runs):
        given: dict[int, Array] = {
            port.position: value for port, value in zip(program.inputs, examples, strict=True)
        }
        given |= {weight.port.position: weight.value for weight in program.weights}
        pairs = zip(program.states, states, strict=True)
        given |= {state.read: value for state, value in pairs if state.read is not None}
        with np.errstate(all="ignore"):
            outputs = compute(graph, [given[n] for n in range(len(given))])
        found += [np.asarray(outputs[port.position]) for port in program.outputs]
        states = [np.asarray(outputs[state.port.position]) for state in program.states]
    return [*found, *states]


def run_compiled(graph: Graph, inputs: list[Array]) -> list[Array]:
    """The outputs of a graph as Weft compiles it for this machine."""
    outputs = Jit(partial(interpret, graph))(*map(wrap, inputs))
    return [np.asarray(to_host(each._value)) for each in outputs]


def has_steps(graph: Graph) -> bool:
    """Whether a difference in the last place of a number may become a whole step of another."""
    for node in graph.nodes:
        is_rounded = node.primitive.name == "round"
        counts = any(atom.type.dtype.is_floating for atom in node.operands) and any(
            not atom.type.dtype.is_inexact for atom in node.results
        )
        if is_rounded or counts or any(map(has_steps, graphs_of(node))):
            return True
    return False


def check_program(
    about: Interface, platform: Platform, folder: Path, sources: Sequence[str]
) -> Check:
    """Run an exported program, and compare it with the reference, at some choices of sizes."""
    differences: dict[str, float] = {}
    notes: dict[str, None] = {}
    for sizes in sizes_to_try(about.program):
        data = _output_data(about, platform, folder, sources, sizes)
        ports = [*about.program.outputs] * RUNS + [state.port for state in about.program.states]
        found, wrong = _differences(ports, data, reference_runs(about.program, RUNS, sizes))
        if wrong and has_steps(about.program.graph):
            # A value between two steps of a quantised network is rounded up here and down there:
            # compiled, the program must round as the exported one does.
            apart = found[wrong[0].name]
            compiled = reference_runs(about.program, RUNS, sizes, run_compiled)
            found, wrong = _differences(ports, data, compiled)
            if wrong:
                raise _disagreement(wrong[0], found[wrong[0].name])
            notes[f"as compiled; by the rules of its operations it is {apart:.1e} apart"] = None
        elif wrong:
            raise _disagreement(wrong[0], found[wrong[0].name])
        for name, apart in found.items():
            differences[name] = max(apart, differences.get(name, 0.0))
    return Check(RUNS, differences, tuple(notes))


def sizes_to_try(program: ExportedProgram) -> list[Sizes]:
    """The largest sizes, the smallest, and some between."""
    largest = program.sizes.largest
    if not largest:
        return [{}]
    middle = {name: -(-most // 3) + place for place, (name, most) in enumerate(largest.items())}
    between = {name: min(size, largest[name]) for name, size in middle.items()}
    return [largest, dict.fromkeys(largest, 1), between]


def _output_data(
    about: Interface, platform: Platform, folder: Path, sources: Sequence[str], sizes: Sizes
) -> bytes:
    """What the program writes: the outputs of each run, and at last the state."""
    program = about.program
    with tempfile.TemporaryDirectory() as place:
        given, written = Path(place, "inputs.bin"), Path(place, "outputs.bin")
        given.write_bytes(b"".join(x.tobytes() for x in program.examples_at(sizes)))
        files = [str(given), str(written), str(RUNS), *map(str, sizes.values())]
        if is_web(platform):
            _run_on_the_web(about, folder, files, sizes)
        else:
            _run_built(about, platform, folder, [folder / name for name in sources], files)
        return written.read_bytes()


def _run_built(
    about: Interface, platform: Platform, folder: Path, sources: list[Path], files: list[str]
) -> None:
    """Build a program in C, and run it on files: here, by an emulator, or on a board."""
    place = Path(files[0]).parent
    program = place / f"main{platform.program}"
    if platform.board:
        more, options = write_board_files(place)
        build_program(platform, about.target, [*sources, *more], program, options)
        run_program(board_command(platform.board, program, files), folder)
        return
    command = runner(platform, about.target)
    build_program(platform, about.target, sources, program)
    run_program([*command, str(program), *files], folder)


def _differences(
    ports: Sequence[Port], data: bytes, expected: Sequence[Array]
) -> tuple[dict[str, float], list[Port]]:
    """How far each tensor is off at most, and those that are too far off."""
    differences: dict[str, float] = {}
    wrong, at = list[Port](), 0
    for port, wanted in zip(ports, expected, strict=True):
        array = np.frombuffer(data[at : at + wanted.nbytes], wanted.dtype).reshape(wanted.shape)
        at += wanted.nbytes
        found = _difference(array, wanted)
        if found > (TOLERANCE[wanted.dtype.itemsize] if port.type.dtype.is_floating else 0.0):
            wrong.append(port)
        differences[port.name] = max(found, differences.get(port.name, 0.0))
    return differences, wrong


def _difference(found: Array, wanted: Array) -> float:
    """The largest difference, compared with the largest number; NaN and infinities must agree."""
    if found.dtype.kind in "biu":
        return 0.0 if np.array_equal(found, wanted) else 1.0
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    kept = np.isfinite(b)
    scale = max(1e-30, float(np.abs(b[kept]).max(initial=0.0)))
    return float(np.abs(a[kept] - b[kept]).max(initial=0.0)) / scale


def _run_on_the_web(about: Interface, folder: Path, files: Sequence[str], sizes: Sizes) -> None:
    """Run a module for the web: by wasmtime where its wheel is there, else by node."""
    if find_spec("wasmtime") is not None:
        run_by_wasmtime(about, folder, files, sizes)
        return
    node = shutil.which("node")
    if node is None:
        raise UnsupportedError(
            "export",
            "nothing here runs WebAssembly",
            expected="the wheel wasmtime, or node",
            got={"target": about.target},
            fix="pip install wasmtime",
        )
    run_program([node, "main.mjs", *files], folder)


def run_by_wasmtime(about: Interface, folder: Path, files: Sequence[str], sizes: Sizes) -> None:
    """What `main.mjs` does, by the wheel wasmtime."""
    wasmtime = import_module("wasmtime")
    source, target, runs = files[:3]
    program, name = about.program, about.name
    store = wasmtime.Store()
    module = wasmtime.Module.from_file(store.engine, str(folder / f"{name}.wasm"))
    linker = wasmtime.Linker(store.engine)
    imports: Any = module.imports
    for each in imports:
        function = getattr(math, each.name.removesuffix("f"), None) or getattr(math, each.name)
        linker.define_func(each.module, each.name, each.type, function)
    code: Any = linker.instantiate(store, module).exports(store)
    memory, top = code["memory"], int(code["__heap_base"].value(store))

    def take(size: int) -> int:
        nonlocal top
        start = -(-top // 64) * 64
        top = start + size
        missing = top - memory.data_len(store)
        if missing > 0:
            memory.grow(store, -(-missing // 65536))
        return start

    ports = [*program.inputs, *program.outputs]
    places = [take(port.bytes) for port in ports]
    weights: list[int] = []
    if about.weights_file:
        data = (folder / about.weights_file).read_bytes()[about.weights_offset :]
        weights = [take(len(data))]
        memory.write(store, data, weights[0])
    instance = code[f"{name}_init"](store, take(code[f"{name}_memory"](store)), *weights)
    lengths = {
        port.name: math.prod(port.shape_at(sizes)) * port.type.dtype.itemsize for port in ports
    }
    given = Path(source).read_bytes()
    written: list[bytes] = []
    for _ in range(int(runs)):
        at = 0
        for port, place in zip(program.inputs, places, strict=False):
            memory.write(store, given[at : at + lengths[port.name]], place)
            at += lengths[port.name]
        status = code[f"{name}_run"](store, instance, *sizes.values(), *places)
        if status:
            raise RuntimeError(f"the run gave the status {status}")
        for port, place in zip(program.outputs, places[len(program.inputs) :], strict=True):
            written.append(bytes(memory.read(store, place, place + lengths[port.name])))
    for number, state in enumerate(program.states):
        place = code[f"{name}_state"](store, instance, number)
        written.append(bytes(memory.read(store, place, place + state.port.bytes)))
    Path(target).write_bytes(b"".join(written))


def _disagreement(port: Port, found: float) -> MiscompiledError:
    return MiscompiledError(
        "export",
        f"the exported program gives other numbers for {port.title} than Weft",
        expected="a difference of rounding alone",
        got={port.name: port.type, "largest relative difference": f"{found:.2e}"},
        fix='report it with the program; form="c" may serve meanwhile',
    )
