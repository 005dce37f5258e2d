"""Programs on disk: what a graph was compiled to, found by the graph itself.

The tables of a program are stored as an image (relocation.py), so that another process, or a later
one, runs them at once: no pass, no lowering, no plan. A program of symbolic sizes, or one that
calls back into Python, is compiled from its graph each time. What can be asked of a program beside
running it (explanations, profiles, the text of an error) is answered by the program compiled from
the graph, when it is asked.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.targets.cpu.target import compile_program
>>> graph = wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,)))
>>> again = thaw_program(freeze_program(compile_program(graph)), lambda: compile_program(graph))
>>> again.run([np.zeros(3, np.float32)])[0].tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

import gc
import json
import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.compiler.plan.launch import Sizes, Value
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.cache.kernels import codes_of, environment
from weft.compiler.targets.cpu.cache.relocation import Image, take_image
from weft.compiler.targets.cpu.cache.symbols import finder, found_again, remember_address
from weft.compiler.targets.cpu.runtime.driver import WATCHERS, execute_address
from weft.compiler.targets.cpu.runtime.executable import CpuExecutable
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.runtime.tables import State, Tables
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.compiler.targets.target import Donation, Executable, Reuse
from weft.core.dtypes import as_dtype
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, Literal, Variable
from weft.runtime.cache import entry_key, shared_disk
from weft.runtime.compile_queue import BACKGROUND
from weft.runtime.memory import Lifetime, MemoryPlan
from weft.runtime.no_gc import pause_collection
from weft.runtime.stamps import program_sources

Array = np.ndarray[Any, Any]
LARGEST = 64 * 1024 * 1024
"""The most bytes that are stored for one program."""
_LENGTH = struct.Struct("<Q")


def stored_program(digest: str, compiled: Callable[[], Executable]) -> Executable:
    """The program of a graph's digest: found on disk, or compiled and stored for others."""
    key = entry_key(digest.encode(), program_sources(), *environment())
    execute_address()  # it knows the interpreter; what is stored must find this one
    paused = pause_collection()
    try:
        known = thaw_program(shared_disk().get(key), compiled)
        if known is not None:
            return known
        made = compiled()
        data = freeze_program(made) if isinstance(made, Program) else None
    finally:
        if paused:
            gc.enable()
    if data is not None:
        BACKGROUND.submit(lambda: shared_disk().put(key, data), later=True)
    return made


finder("pool", lambda: thread_pool().address)


# --- storing -----------------------------------------------------------------------------------


def freeze_program(program: Program) -> bytes | None:
    """A program as bytes; None where it is not the kind that is stored."""
    if program.symbols or any(each.node is not None for each in program.plan.every_launch()):
        return None
    remember_address(thread_pool().address, "pool")
    tables = program.tables_for({})  # those of the first run, too
    image = _image(program, tables)
    if image is None or image.words.nbytes > LARGEST:
        return None
    arrays = [image.words, image.inward, image.outward, tables.planned, tables.offsets]
    head = {
        **_interface(program),
        "count": len(program.plan.launches),
        "once": program.once,
        "fixed": program.fixed,
        "peak": tables.plan.peak,
        "blas": program.calls_blas,
        "flat": program.is_flat,
        "names": image.names,
        "places": {str(key): place for key, place in image.places.items() if key in _NAMED},
        "lengths": [len(array) for array in arrays],
    }
    text = json.dumps(head).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *[array.tobytes() for array in arrays]])


_NAMED = ("calls", "addresses", "error")


def _image(program: Program, tables: Tables) -> Image | None:
    arrays, constants = _arrays(program, tables)
    again, _ = _arrays(program, program.tables({}))
    distinct = {array.ctypes.data: key for key, array in reversed(arrays.items())}
    kept = {key: array for key, array in arrays.items() if distinct[array.ctypes.data] == key}
    return take_image(
        kept, {key: again[key] for key in kept}, [key for key in constants if key in kept]
    )


def _arrays(program: Program, tables: Tables) -> tuple[dict[Hashable, Array], list[Hashable]]:
    """All arrays of the tables, and which of them hold nothing but constants."""
    arrays: dict[Hashable, Array] = {"error": program.state.error}
    constants: list[Hashable] = ["error"]
    for number, (plan, each) in enumerate(_plans(program.plan, tables)):
        name = "" if number == 0 else f"{number} "
        arrays |= {f"{name}calls": each.calls, f"{name}addresses": each.addresses}
        data = {each.addresses[plan.slots[v]] for v in plan.slots if isinstance(v, Literal)}
        for place, array in enumerate(each.keep):
            arrays[number, place] = array
            if array.ctypes.data in data:
                constants.append((number, place))
    return arrays, constants


def _plans(plan: ProgramPlan, tables: Tables) -> Iterator[tuple[ProgramPlan, Tables]]:
    """A plan and all inside it, with their tables."""
    yield plan, tables
    for position, (_, inner) in tables.nested.items():
        nested = plan.launches[position].nested
        assert nested is not None
        for each, its in zip(nested.plans, inner, strict=True):
            yield from _plans(each, its)


def _interface(program: Program) -> dict[str, Any]:
    """What goes in and comes out, and which values share memory."""
    numbers: dict[Value, int] = {}
    atoms: list[Value] = [*program.graph.inputs, *program.graph.outputs]
    for atom in (*atoms, *map(program.root, atoms)):
        numbers.setdefault(atom, len(numbers))
    return {
        "types": [[v.type.dtype.name, list(v.type.shape)] for v in numbers],
        "constants": {
            n: v.value.tobytes().hex() for v, n in numbers.items() if isinstance(v, Literal)
        },
        "slots": {n: program.slots[v] for v, n in numbers.items() if v in program.slots},
        "roots": {n: numbers[program.root(v)] for v, n in numbers.items()},
        "inputs": len(program.graph.inputs),
        "outputs": [numbers[atom] for atom in program.graph.outputs],
        "donations": list(program.donations.items()),
        "settled": list(program.settled_outputs),
    }


# --- running -----------------------------------------------------------------------------------


def thaw_program(data: bytes | None, compiled: Callable[[], Executable]) -> StoredProgram | None:
    """The program that bytes stand for; None if a native function of it is missing."""
    if data is None:
        return None
    (length,) = _LENGTH.unpack_from(data)
    head = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    arrays, start = [], _LENGTH.size + length
    for count in head["lengths"]:
        arrays.append(np.frombuffer(data, np.int64, count, start))
        start += 8 * count
    words, inward, outward, planned, offsets = arrays
    held = codes_of(_digests(head))  # all at once, which is faster than one by one
    image = Image(words, {}, inward, outward, tuple(tuple(name) for name in head["names"]))
    memory = image.restore_memory(found_again)
    if memory is None:
        return None
    return StoredProgram(head, memory, (planned, offsets), compiled, held)


def _digests(head: dict[str, Any]) -> list[str]:
    """The kernels that a program calls."""
    return [name[1] for name in head["names"] if name[0] == "kernel"]


class StoredProgram(CpuExecutable):
    """A program whose tables were made by another process."""

    def __init__(
        self,
        head: dict[str, Any],
        memory: Array,
        placed: tuple[Array, Array],
        compiled: Callable[[], Executable],
        code: Sequence[object],
    ) -> None:
        super().__init__(head["fixed"])
        self.once = head["once"]
        self._head, self._memory, self._placed = head, memory, placed
        self._compile = compiled
        self._code = code
        self.state = State(self._part("error").view(np.int32)[:1])
        self._full: Program | None = None
        self.donations = {output: tuple(given) for output, given in head["donations"]}
        self.settled_outputs = head["settled"]
        self._restore()

    def _part(self, name: str) -> Array:
        return self._memory[self._head["places"][name] :]

    def _restore(self) -> None:
        """The values that go in and come out, as a graph without nodes."""
        head = self._head
        kinds = [TensorType(as_dtype(name), tuple(shape)) for name, shape in head["types"]]
        atoms: list[Atom] = [Variable(kind) for kind in kinds]
        for number, data in head["constants"].items():
            kind = kinds[int(number)]
            value = np.frombuffer(bytes.fromhex(data), kind.dtype.numpy).reshape(kind.shape)
            atoms[int(number)] = Literal(value.copy())
        inputs = tuple(atoms[: head["inputs"]])
        self.graph = Graph(inputs, (), tuple(atoms[n] for n in head["outputs"]))  # type: ignore[arg-type]
        self.slots = {atoms[int(number)]: slot for number, slot in head["slots"].items()}
        self._roots = {atoms[int(n)]: atoms[root] for n, root in head["roots"].items()}

    def root(self, value: Value) -> Value:
        """See `CpuExecutable`."""
        root: Value = self._roots[value]
        return root

    def tables(self, sizes: Sizes) -> Tables:
        """See `CpuExecutable`."""
        calls, addresses, peak = self._part("calls"), self._part("addresses"), self._head["peak"]
        given = (
            calls.ctypes.data, self._head["count"], addresses.ctypes.data,
            self.state.error.ctypes.data, thread_pool().address,
        )  # fmt: skip
        plan = MemoryPlan((Lifetime("program", peak, 0, 0),), {"program": peak}, {"program": 0})
        return Tables(calls, addresses, *self._placed, [self._memory], plan, given, {})

    @property
    def calls_blas(self) -> bool:
        """See `CpuExecutable`."""
        found: bool = self._head["blas"]
        return found

    @property
    def is_flat(self) -> bool:
        """See `CpuExecutable`."""
        found: bool = self._head["flat"]
        return found

    @property
    def compiled_program(self) -> Program:
        """The program compiled from the graph."""
        if self._full is None:
            made = self._compile()
            assert isinstance(made, Program)
            self._full = made
        return self._full

    def by_reference(self, inputs: list[Array]) -> list[Array]:
        """See `CpuExecutable`."""
        return self.compiled_program.by_reference(inputs)

    def failure(self, tables: Tables, ended: int, inputs: list[Array]) -> BaseException:
        """See `CpuExecutable`: the program compiled from the graph knows the nodes, and says it."""
        try:
            self.compiled_program.run(inputs)
        except Exception as error:
            return error
        return RuntimeError("a stored program reported an error")

    def run(
        self,
        arrays: Sequence[Array],
        donated: Sequence[Donation] = (),
        finished: list[Array] | None = None,
        reused: Sequence[Reuse] = (),
    ) -> list[Array]:
        """See `CpuExecutable`; what watches programs, watches the one compiled from the graph."""
        run = self.compiled_program.run if WATCHERS else super().run
        return run(arrays, donated, finished, reused)
