"""What a compiled program is, as stable text: the one module here that knows compiler internals.

`read` gives graph, launches, memory plan and kernels of a program. Addresses do not stand in it: a
native function is named by the digest of the kernel or of the LLVM text it comes from, and a place
in a table by the table and the offset. So two processes, and two versions of the compiler that
plan alike, give the same text. Kernels are not compiled for it: `without_machine_code` gives each
of them a number for an address.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from weft.compiler.function.jit import Jit
from weft.compiler.plan.launch import Kind
from weft.compiler.targets.cpu import target
from weft.compiler.targets.cpu.cache import kernels
from weft.compiler.targets.cpu.cache.symbols import origin, remember_address
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.runtime import tables as table_module
from weft.compiler.targets.cpu.runtime.control_tables import control_address, control_numbers
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.ir.graph import Literal, Variable
from weft.ir.printing import print_graph

LONG = re.compile(r"0x([0-9a-f]{128,})")
"""Constants that are written as their digest."""
FIRST_ADDRESS = 1 << 44
LAST_ADDRESS = 1 << 48
"""Between these lie addresses of memory and of functions, and no number that a launch is given."""
DIGITS = 16
"""How many digits of a digest are written."""

Array = np.ndarray[Any, Any]
Tables = Any


@dataclass
class Reading:
    """The text of one program, and its kernels in the loop language by digest."""

    text: str
    kernels: dict[str, str]


class CapturedCall(Exception):
    """A call of a compiled function that was not made: what would have been called with what."""

    def __init__(self, function: Jit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__("a call of a compiled function")
        self.function, self.args, self.kwargs = function, args, kwargs

    def explanation(self) -> Any:
        """What the call is compiled to."""
        return self.function.explain(*self.args, **self.kwargs)


@contextmanager
def captured_calls() -> Iterator[None]:
    """Inside, the call of a compiled function raises `CapturedCall` instead of running."""
    original = Jit.__call__

    def capture(self: Jit, *args: Any, **kwargs: Any) -> Any:
        raise CapturedCall(self, args, kwargs)

    Jit.__call__ = capture  # type: ignore[method-assign]
    try:
        yield
    finally:
        Jit.__call__ = original  # type: ignore[method-assign]


# --- native functions --------------------------------------------------------------------------

MODULES: dict[str, str] = {}
"""The digest of each hand-written module's LLVM text, by the key it is cached under."""
SOURCES: dict[str, str] = {}
"""The LLVM texts by digest."""


@contextmanager
def without_machine_code() -> Iterator[None]:
    """Inside, kernels have numbers for addresses, and the texts of modules are remembered."""
    numbers = count(LAST_ADDRESS, 64)
    addresses: dict[str, int] = {}
    key_of, begin, compiled = kernels.entry_key, target.begin, table_module.kernel_codes

    def key_of_text(content: bytes, *environment: str) -> str:
        key = key_of(content, *environment)
        if b"define" in content:
            digest = hashlib.sha256(content).hexdigest()[:DIGITS]
            MODULES[key], SOURCES[digest] = digest, content.decode()
        return key

    def number(wanted: Sequence[Any]) -> list[Any]:
        for kernel in wanted:
            if kernel.digest not in addresses:
                addresses[kernel.digest] = remember_address(next(numbers), "kernel", kernel.digest)
        return [kernels.Code(addresses[kernel.digest], None) for kernel in wanted]

    kernels.entry_key, target.begin = key_of_text, lambda wanted: None
    table_module.kernel_codes = number
    try:
        yield
    finally:
        kernels.entry_key, target.begin, table_module.kernel_codes = key_of, begin, compiled


def machine_text() -> str:
    """What programs are compiled for, and who folds their constants."""
    machine = host()
    versions = f"Python {sys.version_info.major}.{sys.version_info.minor}, NumPy {np.__version__}"
    target = f"{machine.triple} {machine.processor} {machine.width}"
    return f"{versions}\n{target}\n{machine.features}\n"


def function_text(address: int) -> str | None:
    """A native function without its address; None where the number is no function."""
    match origin(address):
        case None:
            return None
        case "kernel", digest:
            return f"kernel {digest[:DIGITS]}"
        case "text", key, name:
            return f"{name} of module {MODULES[key]}"
        case "library", _, _, symbol:
            return f"{symbol} of a library"
        case name:
            return " ".join(name)


# --- programs ----------------------------------------------------------------------------------


@dataclass
class Places:
    """Where tables lie, so that an address in one is written as table and offset."""

    starts: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Names and lengths in bytes, by address."""

    def add(self, name: str, array: Array) -> None:
        """Give an array a name, if it has none."""
        self.starts.setdefault(int(array.ctypes.data), (name, max(8, array.nbytes)))

    def text(self, number: int) -> str:
        """A number, or what the address that it is stands for."""
        function = function_text(number)
        if function is not None:
            return f"<{function}>"
        for start, (name, length) in self.starts.items():
            if start <= number < start + length:
                return f"<{name} + {number - start}>"
        return "<address>" if FIRST_ADDRESS <= number < LAST_ADDRESS else str(number)

    def texts(self, numbers: Any) -> str:
        """The same for each of several."""
        return " ".join(self.text(int(number)) for number in numbers)


def read(explanation: Any) -> Reading:
    """A program as text."""
    program, sizes = Program(explanation.plan), explanation.sizes
    places = Places()
    places.add("error", program.state.error)
    places.starts[thread_pool().address] = "pool", 8
    lines = [f"traced {explanation.graph.digest()[:DIGITS]}"]
    lines += [f"size {name} = {value}" for name, value in sorted(sizes.items())]
    lines += [f"donated output {out} to input {given}" for out, given in explanation.donated]
    lines += [f"may take: output {out}, inputs {given}" for out, given in program.donations.items()]
    lines += _plan(program, program.plan, program.tables(sizes), sizes, places)
    texts = {each.kernel.digest[:DIGITS]: str(each.kernel) for each in program.plan.every_lowered}
    return Reading("\n".join(lines) + "\n", texts)


def _plan(program: Any, part: Any, tables: Tables, sizes: Any, places: Places) -> Iterator[str]:
    yield "graph"
    text = print_graph(part.graph, locations=False)
    yield from LONG.sub(lambda found: f"0x… of {_digest(found[1].encode())}", text).splitlines()
    yield f"slots {len(part.slots)}, first launches once {part.once}"
    yield from [f"  {line}" for line in _slots(part, places)]
    for position, launch in enumerate(part.launches):
        yield f"launch {position}"
        yield from [f"  {line}" for line in _launch(program, part, launch, sizes, places)]
        if launch.nested is not None:
            lines = _nested(program, part, position, launch, tables, sizes, places)
            yield from [f"  {line}" for line in lines]
    yield f"memory peak {tables.plan.peak}"
    yield from [f"  {line}" for line in _memory(tables.plan)]
    yield "kernels"
    yield from [f"  {each.kernel.name} {each.kernel.digest[:DIGITS]}" for each in part.lowered]


def _slots(part: Any, places: Places) -> Iterator[str]:
    """Inputs, outputs and constants; where the other values lie, the memory plan says."""
    inputs = {part.root(v): n for n, v in enumerate(part.graph.inputs)}
    outputs = [part.root(v) for v in part.graph.outputs]
    for value, slot in part.slots.items():
        words = [f"input {inputs[value]}"] if value in inputs else []
        words += [f"output {n}" for n, root in enumerate(outputs) if root is value]
        words += [_constant(value, places)] if isinstance(value, Literal) else []
        if words:
            yield f"slot {slot}: {value.type} {', '.join(words)}"


def _constant(value: Any, places: Places) -> str:
    if value.value.dtype == np.int64 and value.value.size <= 8:
        return f"constant {places.texts(value.value.ravel())}"
    return f"constant {_digest(np.ascontiguousarray(value.value).tobytes())}"


def _launch(program: Any, part: Any, launch: Any, sizes: Any, places: Places) -> Iterator[str]:
    yield f"{launch.name}: {function_text(_address(program, launch))}"
    writes = {part.root(value) for value in launch.writes}
    yield "slots " + " ".join(
        ("→" if part.root(value) in writes else "") + str(_slot(part, value))
        for value in launch.values
    )
    yield f"extent {launch.extent(sizes)}, grain {launch.grain(sizes)}"
    if launch.nested is None:
        yield f"numbers {places.texts(program.maker.numbers_of(launch, sizes)[1])}"
    pairs = [f"{_slot(part, new)} in {_slot(part, old)}" for new, old in launch.in_place]
    if pairs:
        yield f"in place {', '.join(pairs)}"
    if launch.updates:
        yield "updates " + " ".join(str(_slot(part, value)) for value in launch.updates)
    if launch.by_rows:
        rows = sorted(f"{_slot(part, value)}: {dim}" for value, dim in launch.by_rows.items())
        yield f"by rows {', '.join(rows)}"
    if launch.node is not None:
        yield f"by reference {launch.node.primitive.name}"
    for kind in ("stages", "members"):
        for each in getattr(launch, kind):
            yield f"{kind[:-1]}"
            yield from [f"  {line}" for line in _launch(program, part, each, sizes, places)]


def _address(program: Any, launch: Any) -> int:
    """The address of a launch's function."""
    if launch.kind is Kind.CONTROL:
        return control_address(launch.nested.form)
    return int(program.maker.address(launch))


def _slot(part: Any, value: Any) -> str:
    """The slot of a value; values that only a chain's stages share have none."""
    root = part.root(value)
    if root in part.slots:
        return str(part.slots[root])
    return f"({root.type})" if isinstance(root, Variable) else "(constant)"


def _nested(
    program: Any,
    part: Any,
    position: int,
    launch: Any,
    tables: Tables,
    sizes: Any,
    places: Places,
) -> Iterator[str]:
    """The numbers of a loop or choice, the tables they lead to, and the sections inside."""
    nested, (reached, inner) = launch.nested, tables.nested[position]
    places.add("reached", reached)
    for number, table in enumerate(inner):
        places.add(f"launches of {number}", table.calls)
        places.add(f"slots of {number}", table.addresses)
    keep: list[Array] = []
    error = program.state.error
    numbers = control_numbers(nested.form, inner, sizes, reached, error, keep)
    for number, array in enumerate(keep):
        places.add(f"table {number}", array)
    yield f"numbers {places.texts(numbers)}"
    for number, array in enumerate(keep):
        yield f"table {number}: {places.texts(array.ravel())}"
    yield f"scratch {nested.form.bytes(sizes)}, steps {nested.form.steps(sizes)}"
    for number, (each, table) in enumerate(zip(nested.plans, inner, strict=True)):
        yield f"section {number}"
        yield from [
            f"  {line}" for line in _plan(program, each, table, sizes, Places(dict(places.starts)))
        ]


def _memory(plan: Any) -> Iterator[str]:
    for buffer in plan.buffers:
        lies = f"offset {plan.offsets[buffer.name]}, {plan.sizes[buffer.name]} bytes"
        lives = f"launches {buffer.first} to {buffer.last}"
        where = (
            f", in the place of {plan.reused[buffer.name]}" if buffer.name in plan.reused else ""
        )
        yield f"slot {buffer.name}: {lies}, {lives}{where}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
