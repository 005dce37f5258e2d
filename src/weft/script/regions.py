"""Regions: bodies recorded as graphs, each exactly once, with all that they change.

A region's graph takes (arguments, the generator's counter, captured tensors). Its outputs are the
tensors among the names' values, the tensors and containers written to, and the counter.

>>> from weft.script.regions import record
>>> import weft as wf
>>> region = record(lambda x, keep: [keep(x * 2)], [wf.spec("float32", (3,))])
>>> region.values[0].type, region.draws
(f32[3], False)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np

from weft.core.errors import UnsupportedError
from weft.core.records import frozen
from weft.core.trees import flatten, unflatten
from weft.core.types import TensorType
from weft.ir.dispatch import active_trace
from weft.ir.graph import Atom, Graph, Literal, Variable
from weft.ir.lifting import Lifting, lift
from weft.ir.parts import possible_origins
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import GraphTrace
from weft.ir.walking import without_dead_nodes
from weft.ops.random_bits import GENERATOR
from weft.script.state import Journal, Touched

__all__: list[str] = []

DEEPEST = 40
"""How many branches and loops may be recorded inside each other."""


class Recording(threading.local):
    """The journals and tests that are being recorded in this thread."""

    def __init__(self) -> None:
        self.journals: list[Journal] = []
        """Those of the regions, outermost first."""
        self.paths: list[Tensor] = []
        """The tests under which what is being recorded happens."""


RECORDING = Recording()


class Slot:
    """Stands for a tensor that is an output of a region: the same slot for the same tensor."""

    __slots__ = ("index", "origin", "source", "type")

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index
        self.type = tensor.type
        self.source = ref(tensor)
        self.origin = tensor._origin

    def outer_tensors(self) -> list[Tensor]:
        """The tensors from outside that this one is, or may be, itself."""
        source = self.source()
        return possible_origins(self.origin) if source is None else [source]


@frozen
class Region:
    """A recorded body; values are trees with a slot for each tensor."""

    graph: Graph
    captured: tuple[Tensor, ...]
    values: list[Any]
    written: list[tuple[Tensor, Slot]]
    touched: list[tuple[Touched, Any]]
    draws: bool
    arguments: int

    def atom(self, slot: Slot) -> Atom:
        """The atom of a slot in the graph."""
        return self.graph.outputs[slot.index]

    @property
    def argument_variables(self) -> tuple[Variable, ...]:
        """The inputs that stand for the arguments."""
        return self.graph.inputs[: self.arguments]

    @property
    def counter(self) -> Variable:
        """The input that stands for the generator's counter."""
        return self.graph.inputs[self.arguments]

    @property
    def captures(self) -> tuple[Variable, ...]:
        """The inputs that stand for captured tensors."""
        return self.graph.inputs[self.arguments + 1 :]


@dataclass(slots=True)
class _Outputs:
    tensors: list[Tensor] = field(default_factory=list)
    slots: dict[int, tuple[Tensor, Slot]] = field(default_factory=dict)
    """Those of the tensors so far, by identity."""

    def keep(self, value: Any) -> Any:
        """A copy of a tree, with a slot in the place of each tensor, which becomes an output."""
        leaves, structure = flatten(value)
        return unflatten(structure, [self._slot(leaf) for leaf in leaves])

    def _slot(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self.slots:
            self.tensors.append(wrap(leaf._value, leaf._node))
            self.slots[id(leaf)] = leaf, Slot(len(self.tensors) - 1, leaf)
        return self.slots[id(leaf)][1]


def record(
    run: Callable[..., list[Any]], types: Sequence[TensorType], lifted: Sequence[Tensor] = ()
) -> Region:
    """The region of `run(*arguments, keep)`, which returns trees that went through `keep`.

    The last arguments are what the lifted tensors stand for inside; what they stand for at the end
    are the last values.
    """
    _check_depth()
    journal, outputs = Journal(), _Outputs()
    values: list[Any] = []
    written: list[tuple[Tensor, Slot]] = []
    touched: list[tuple[Touched, Any]] = []
    draws = False

    def flat(*inputs: Tensor) -> list[Tensor]:
        nonlocal draws
        *own, counter = inputs
        count = len(own) - len(lifted)
        with (
            GENERATOR.use_counter(counter) as handle,
            _activate_journal(journal),
            _lift_handles(lifted, own[count:]),
        ):
            values.extend(run(*own[:count], outputs.keep))
            values.extend(outputs.keep(each) for each in lifted)
            written.extend(_written_handles(journal, outputs))
            touched.extend(_touched_containers(journal, outputs))
        draws = handle._value is not counter._value
        return [*outputs.tensors, handle]

    recorder = _Recorder()
    graph = recorder.graph_of(flat, [*types, GENERATOR.state()[1].type])
    captured = recorder.outer_tensors()
    return Region(graph, captured, values, written, touched, draws, len(types))


class _Recorder(GraphTrace):
    """Records all that a body does, also to tensors from outside: it may not happen at all."""

    name = "script"
    claims = True

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[Tensor] = []

    def _capture(self, tensor: Tensor) -> Variable:
        count = len(self.captures)
        variable = super()._capture(tensor)
        self.handles += [tensor] if len(self.captures) > count else []
        return variable

    def graph_of(self, f: Callable[..., Sequence[Tensor]], types: Sequence[TensorType]) -> Graph:
        """The graph of (arguments, captured tensors)."""
        inputs = [Variable(kind) for kind in types]
        with active_trace(self):
            results = f(*[self.tensor(variable) for variable in inputs])
            outputs = tuple(self.atom(result) for result in results)
        return without_dead_nodes(Graph((*inputs, *self.captures), tuple(self.nodes), outputs))

    def outer_tensors(self) -> tuple[Tensor, ...]:
        """The captured tensors; the very handles where they hold what was captured.

        A handle's value may be another one at the next call of a compiled function.
        """
        pairs = zip(self.handles, self.captured, strict=True)
        return tuple(h if h._value is c._value and h._node is c._node else c for h, c in pairs)


def _written_handles(journal: Journal, outputs: _Outputs) -> Iterator[tuple[Tensor, Slot]]:
    for entry in journal.written.values():
        handle = entry.handle()
        if handle is not None and handle._value is not entry.before:
            yield handle, outputs.keep(handle)


def _touched_containers(journal: Journal, outputs: _Outputs) -> Iterator[tuple[Touched, Any]]:
    journal.drop_own()
    for entry in journal.touched.values():
        held = entry.contents()
        if not same_contents(entry.before, held):
            yield entry, outputs.keep(held)


def same_contents(a: Any, b: Any) -> bool:
    """Whether two copies of a container's contents hold the very same things."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(a[key] is b[key] for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
    return bool(a == b)


@contextmanager
def _activate_journal(journal: Journal) -> Iterator[None]:
    RECORDING.journals.append(journal)
    try:
        with active_trace(journal), Lifting():
            yield
    finally:
        journal.rollback()
        RECORDING.journals.pop()


@contextmanager
def _lift_handles(handles: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """A block in which tensors have other values."""
    with Lifting():
        for handle, value in zip(handles, values, strict=True):
            lift(handle)
            handle._value, handle._node = value._value, None
        yield


@contextmanager
def under_test(test: Tensor) -> Iterator[None]:
    """What is recorded inside happens only if a test holds."""
    RECORDING.paths.append(test)
    try:
        yield
    finally:
        RECORDING.paths.pop()


def _check_depth() -> None:
    if len(RECORDING.journals) >= DEEPEST:
        raise UnsupportedError(
            "script",
            "the function calls itself as long as a traced tensor says so, which never ends here",
            expected=f"at most {DEEPEST} branches and loops inside each other",
            got={"depth": len(RECORDING.journals)},
            fix="write the recursion as a loop: while n > 1:",
        )


def identity(tensor: Tensor) -> tuple[int, int]:
    """The key by which captured tensors are told apart."""
    return id(tensor._value), id(tensor._node)


def literal(number: Any, kind: TensorType) -> Literal:
    """A Python number as a constant of a graph."""
    return Literal(np.asarray(number, kind.dtype.numpy))
