"""Building a graph operation by operation: what define-then-run stands on.

A `Builder` is a trace that stays open: while it is entered, and wherever one of its tensors is an
operand, operations become nodes. Cells are inputs that somebody keeps between runs: variables,
large constants, the state of a module or an optimiser. A handle that becomes a cell stands for it
as long as the builder is entered; what is written to such a handle is an update of the cell.

>>> import weft as wf
>>> builder = wf.staging.Builder()
>>> with builder:
...     x = builder.placeholder(wf.Tensor(), wf.spec("float32", ("n",)))
...     y = x * 2.0
>>> [node.primitive.name for node in builder.nodes], y.type
(['multiply'], f32[n])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from weft.core.arrays import is_concrete
from weft.core.errors import GraphError, TraceError
from weft.core.shapes import Dimension, Shape, Unifier, equal
from weft.core.types import TensorType
from weft.ir.dispatch import bind
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.lifting import Lifting, lift
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.sizes import resolve_graph
from weft.ir.tape import Hollow, Leaf, Node, Projection, record
from weft.ir.tensor import Tensor, Trace, Traced, host_array, traces, wrap
from weft.ir.tracing import GraphTrace, Staged
from weft.ops.random_bits import GENERATOR

__all__ = [
    "BUILDING", "Builder", "Cell", "builder_of", "current_builder", "held_value", "resolve_sizes",
    "same_shape", "suspend_building",
]  # fmt: skip

Recorded = Callable[[GraphNode, Sequence[Tensor]], None]
"""Called with each new node, and the tensors it makes."""
SMALL = 16
"""The most elements of a constant that is written into the graph; a larger one is a cell."""

BUILDING: list[Builder] = []
"""The builders that are entered, in any thread; empty almost always."""


class Entered(threading.local):
    """The builders that this thread has entered, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Builder] = []


_entered = Entered()


def current_builder() -> Builder | None:
    """The innermost builder that this thread has entered."""
    return _entered.stack[-1] if _entered.stack else None


class Symbolic(Staged):
    """A tensor of a graph that is being built: it has a type, and a value in each run."""

    __slots__ = ()

    def host_array(self, purpose: str) -> np.ndarray[Any, Any]:
        """Refuse: a staged tensor has no array; see `Traced`."""
        chooses = purpose == "bool()"
        raise TraceError(
            purpose,
            "a tensor of a graph has no value until a session runs it",
            expected="a tensor that session.run returned",
            got={"x": self.type},
            fix="wf.cond(c, f, g, x), or wf.where(c, a, b)" if chooses else "session.run(x)",
        )


@dataclass(eq=False, slots=True)
class Cell:
    """An input that is kept between runs, and the value that it begins with.

    `initial` is a constant or a value of the graph that depends on nothing fed. `handle` is the
    tensor that stands for it; `original` what an eager handle held, and gets back outside.
    """

    variable: Variable
    initial: Atom
    name: str = ""
    kind: str = "variable"
    trainable: bool = False
    follows: bool = False
    """Whether a value that is written to the handle between runs counts."""
    handle: Tensor | None = None
    value: Any = None
    began: Any = None
    """What the handle held when it became the cell's; other handles may hold it too."""
    original: Any = None


class Builder(GraphTrace):
    """Records operations as nodes of a graph that never closes; enter it with `with`."""

    name = "a graph"
    adopts = True

    def __init__(self, recorded: Recorded | None = None) -> None:
        super().__init__()
        self.cells: list[Cell] = []
        self.sizes = Unifier()
        self.current: dict[Variable, Variable] = {}
        """What stands for a cell now: the result of an assignment that must have happened."""
        self.key, self.counter = [Variable(x.type) for x in GENERATOR.state()]
        """Inputs for the random generator: each run has a key of its own, and counts from 0."""
        self.drawn = self.tensor(self.counter)
        self._recorded = recorded
        self._makers: dict[Variable, GraphNode] = {}
        self._by_handle: dict[int, Cell] = {}
        self._by_variable: dict[Variable, Cell] = {}
        self._constants: dict[int, Cell] = {}
        self._exits: list[tuple[list[Trace], Any]] = []
        self._lifting = Lifting()
        self._replaced: list[tuple[Tensor, Any, Any]] = []
        self._begun: list[tuple[Tensor, Any]] = []
        """Handles that were written to, with what their cells begin with from then on."""
        self._repeats: dict[Any, Tensor] = {}
        self.inputs: set[Variable] = set()

    # --- entering and leaving ---

    def __enter__(self) -> Self:
        if any(not isinstance(trace, Builder) for trace in traces.stack):
            raise _inside_another(traces.stack[-1])
        lifting = GENERATOR.use_counter(self.drawn)
        counter = lifting.__enter__()
        self._exits.append((traces.recording, (lifting, counter)))
        traces.stack.append(self)
        self.level = len(traces.stack)
        traces.recording = [*traces.recording, self]
        self.sizes.__enter__()
        BUILDING.append(self)
        _entered.stack.append(self)
        if len(self._exits) == 1:
            self._lifting.__enter__()
            self._lift()
        return self

    def __exit__(self, *raised: object) -> None:
        has_failed = any(raised)
        if not has_failed:
            self.settle()
        self.written_cells()
        _entered.stack.remove(self)
        BUILDING.remove(self)
        self.sizes.__exit__(*raised)
        traces.stack.remove(self)
        before, (lifting, counter) = self._exits.pop()
        traces.recording = before
        lifting.__exit__(None, None, None)
        if not self._exits:
            self.level = 0
            self._lifting.__exit__()
            self._restore()
        seeded = is_concrete(counter._value)
        self.drawn = self.drawn if seeded else wrap(counter._value)
        if seeded and not has_failed:
            raise _seed_error()

    def _lift(self) -> None:
        """Let the handles of cells stand for them."""
        for cell in self.cells:
            owner = cell.handle
            if owner is not None:
                if owner._value is not cell.value:
                    cell.original = owner._value
                self._let_stand_for(owner, cell.value)

    def _restore(self) -> None:
        """Give handles from outside their old values back."""
        for cell in self.cells:
            owner = cell.handle
            if owner is not None and cell.original is not None and _is_symbolic(owner):
                owner._value = cell.original
        for owner, value in self._begun:
            owner._value = value
        self._begun.clear()
        for tensor, value, node in reversed(self._replaced):
            if _is_symbolic(tensor):
                tensor._value, tensor._node = value, node
        self._replaced.clear()

    def _let_stand_for(self, handle: Tensor, value: Any) -> None:
        """Let a handle stand for a value of the graph; for other threads it is what it was."""
        if self._exits and is_concrete(handle._value):
            lift(handle)
        handle._value = value

    def settle_if_entered(self) -> None:
        """Take up what was written so far, before a run; what is left is settled already."""
        if self._exits:
            self.settle()

    def settle(self) -> None:
        """Take up writes to cells that `written_cells` has not returned; see `Graph`."""

    # --- recording ---

    def tensor(self, variable: Variable) -> Tensor:
        """See `GraphTrace`."""
        value = Symbolic()
        value.trace = self
        value.type = variable.type
        value.variable = variable
        return wrap(value)

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        result = super().process_primitive(primitive, operands, params, types)
        node = self.nodes[-1]
        results = result if primitive.multiple else (result,)
        for variable in node.results:
            self._makers[variable] = node
        if self._recorded is not None:
            self._recorded(node, results)
        return result

    def atom(self, tensor: Tensor) -> Atom:
        """See `GraphTrace`; a leaf that is used for the first time becomes a cell."""
        value = tensor._value
        if value is GENERATOR.key._value:
            return self.key
        if isinstance(value, Staged) and value.trace is not self:
            raise _foreign_tensor_error(tensor)
        cell = self._of_leaf(tensor)
        if cell is not None:
            value = cell.value
            self._let_stand_for(tensor, value)  # what the tape keeps must be the cell, too
        elif tensor._node is not None and is_concrete(value):
            value = self._repeat_from_cells(tensor)._value
        if isinstance(value, Staged):
            return self.current.get(value.variable, value.variable)
        return self._constant(tensor)

    def _of_leaf(self, tensor: Tensor) -> Cell | None:
        """The cell of a leaf that requires a gradient, which becomes one when it is first used."""
        leaf, value = tensor._node, tensor._value
        handle = leaf.handle() if type(leaf) is Leaf and leaf.handle is not None else None
        if handle is None:
            return None
        known = self._by_handle.get(id(handle))
        if known is not None:
            return known if value is known.began or value is known.original else None
        fixed = is_concrete(value) or self.is_closed(value.variable)
        return self.adopt_cell(handle, trainable=True) if fixed and handle._value is value else None

    def _repeat_from_cells(self, tensor: Tensor) -> Tensor:
        """A tensor that was computed at once from leaves: the same here, from their cells.

        The handle holds that, too, as long as the builder is entered.
        """
        self._replaced.append((tensor, tensor._value, tensor._node))
        staged = self._repeat(tensor._node, tensor)
        self._let_stand_for(tensor, staged._value)
        tensor._node = staged._node
        return tensor

    def _repeat(self, node: Any, tensor: Tensor) -> Tensor:
        """Record what a node of the tape computed; its operands are repeated before it."""
        if node in self._repeats:
            return self._repeats[node]
        place = 0
        if type(node) is Projection:
            place, node = node.index, node.parents[0]
        if type(node) is not Node or node.values is None:
            raise _lost_tape_error(tensor)
        # the tape keeps Python's numbers as they are; here they are constants of the others' dtype
        weak = next(wrap(x).dtype for x in node.values if type(x) is not float)
        values = [np.array(x, weak.numpy) if type(x) is float else x for x in node.values]
        pairs = zip(values, node.parents, strict=True)
        operands = [self._operand(wrap(value, parent), tensor) for value, parent in pairs]
        results = node.out if node.primitive.multiple else (node.out,)
        variables = tuple([Variable(wrap(value).type) for value in results])
        atoms = tuple([self.atom(operand) for operand in operands])
        known = {atom: x for atom, x in zip(atoms, operands, strict=True) if type(atom) is Variable}
        self.replay(GraphNode(node.primitive, atoms, node.params, variables), known)
        self._repeats[node] = known[variables[place]]
        return known[variables[place]]

    def _operand(self, operand: Tensor, tensor: Tensor) -> Tensor:
        """An operand of a computation that is repeated; one that was not kept cannot be."""
        leaf = operand._node
        handle = leaf.handle() if type(leaf) is Leaf and leaf.handle is not None else None
        if handle is not None:
            return wrap(self.adopt_cell(handle, trainable=True).value, leaf)
        if operand._node is not None and not isinstance(operand._value, Staged):
            return self._repeat(operand._node, tensor)
        if isinstance(operand._value, Hollow):
            raise _lost_tape_error(tensor)
        return operand

    def _constant(self, tensor: Tensor) -> Atom:
        value = tensor._value
        if isinstance(value, Traced):
            raise _inside_another(value.trace)
        if value.size <= SMALL:
            return Literal(value)
        known = self._constants.get(id(value))
        if known is None:
            known = Cell(Variable(tensor.type), Literal(value), kind="constant")
            self._constants[id(value)] = known
            self._keep(known)
        return known.variable

    # --- inputs ---

    def placeholder(self, handle: Tensor, kind: TensorType) -> Tensor:
        """Let a new handle stand for an input that is fed in each run."""
        variable = Variable(kind)
        self.inputs.add(variable)
        _fill(handle, self.tensor(variable)._value)
        handle._node = Leaf() if kind.dtype.is_inexact else None
        return handle

    def cell(self, handle: Tensor, initial: Tensor, name: str, trainable: bool) -> Cell:
        """Let a new handle stand for a cell that begins with a value."""
        start = self._start(initial)
        self._check_closed(start, initial)
        _fill(handle, initial._value)
        if initial.dtype.is_inexact:
            handle._node = Leaf(handle)
        return self._adopt(handle, start, name, trainable)

    def _start(self, initial: Tensor) -> Atom:
        if is_concrete(initial._value):
            return Literal(host_array(initial, "variable"))
        return self.atom(initial)

    def adopt_cell(
        self, handle: Tensor, name: str = "", trainable: bool = False, follows: bool = False
    ) -> Cell:
        """Let a handle that holds a value, or one that can be computed at first, be a cell's."""
        known = self._by_handle.get(id(handle))
        if known is not None:
            return known
        value = handle._value
        if handle._node is not None and type(handle._node) is not Leaf:
            raise _lost_tape_error(handle)
        if is_concrete(value):
            start = Literal(host_array(handle, "variable"))
            cell = self._adopt(handle, start, name, trainable)
            cell.original, cell.follows = value, follows
            return cell
        if not isinstance(value, Staged) or value.trace is not self:
            raise _foreign_tensor_error(handle)
        self._check_closed(value.variable, handle)
        return self._adopt(handle, value.variable, name, trainable)

    def _adopt(self, handle: Tensor, initial: Atom, name: str, trainable: bool) -> Cell:
        variable = Variable(handle.type)
        value = self.tensor(variable)._value
        cell = Cell(variable, initial, name, "variable", trainable)
        cell.handle, cell.value, cell.began = handle, value, handle._value
        self._by_handle[id(handle)] = cell
        self._let_stand_for(handle, value)
        self._keep(cell)
        return cell

    def _keep(self, cell: Cell) -> None:
        self.cells.append(cell)
        self._by_variable[cell.variable] = cell

    def replay(self, node: GraphNode, values: dict[Variable, Tensor]) -> None:
        """Add a node of another program, given what stands for its variables, with its results."""
        read = [values[a] if isinstance(a, Variable) else wrap(a.value) for a in node.operands]
        operands = tuple(read)
        types = tuple([result.type for result in node.results])
        multiple = node.primitive.multiple
        results = self.process_primitive(
            node.primitive, operands, node.params, types if multiple else types[0]
        )
        inexact = any(kind.dtype.is_inexact for kind in types)
        if inexact and any(operand._node is not None for operand in operands):
            record(node.primitive, node.params, operands, results)
        values.update(zip(node.results, results if multiple else (results,), strict=True))

    def cell_of(self, tensor: Tensor) -> Cell | None:
        """The cell that a handle stands for, also while the builder is left."""
        cell = self._by_handle.get(id(tensor))
        if cell is not None:
            return cell
        return self.cell_behind(self.variable_of(tensor))

    def cell_behind(self, variable: Variable | None) -> Cell | None:
        """The cell that a variable is the input of."""
        return None if variable is None else self._by_variable.get(variable)

    def variable_of(self, tensor: Tensor) -> Variable | None:
        """The variable of a tensor in this graph; None for a tensor of no or another graph."""
        value = tensor._value
        return value.variable if isinstance(value, Staged) and value.trace is self else None

    def maker(self, variable: Variable) -> GraphNode | None:
        """The node that makes a variable; None for an input."""
        return self._makers.get(variable)

    def is_closed(self, start: Atom) -> bool:
        """Whether a value depends on nothing that is fed: it can be computed once, at first."""
        waiting, seen = [start], set()
        while waiting:
            atom = waiting.pop()
            if isinstance(atom, Literal) or atom in seen:
                continue
            seen.add(atom)
            if atom in self.inputs:
                return False
            node = self._makers.get(atom)
            waiting += () if node is None else node.operands
        return True

    def _check_closed(self, start: Atom, tensor: Tensor) -> None:
        if not self.is_closed(start):
            raise GraphError(
                "Variable",
                "the initial value depends on a placeholder",
                expected="a value that is known before anything is fed",
                got={"initial": tensor},
                fix="begin with zeros, and assign: v.assign(value)",
            )

    # --- writing ---

    def mark_value(self, value: Tensor) -> Tensor:
        """A node of its own whose result is a value: a cell's next one, or a named constant."""
        stopped = PRIMITIVES["stop_gradient"]
        result: Tensor = self.process_primitive(stopped, (value,), {}, value.type)
        return wrap(result._value)

    def identity(self, value: Tensor) -> Tensor:
        """A node of its own with the same value and derivative."""
        if not isinstance(value._value, Traced):
            return self.mark_value(value)
        copy: Tensor = bind(PRIMITIVES["reshape"], value, shape=value.shape)
        return copy

    def written_cells(self) -> list[tuple[Cell, Tensor]]:
        """Cells whose handles were written to, with what they hold; they stand for cells again."""
        cells_and_values = []
        for cell in self.cells:
            owner = cell.handle
            if owner is not None and self._exits and owner._value is not cell.value:
                cells_and_values.append((cell, wrap(owner._value)))
                owner._value = cell.value
        return cells_and_values

    def begin_with(self, cell: Cell, value: Tensor) -> None:
        """Let a cell begin with another value."""
        cell.initial = self._start(value)
        if is_concrete(value._value):
            cell.original = value._value
            if cell.handle is not None:
                self._begun.append((cell.handle, value._value))

    def resolve(self, kind: TensorType) -> TensorType:
        """A type with what is known of its sizes by now."""
        return kind.with_shape(self.sizes.resolve_shape(kind.shape))

    @property
    def known_sizes(self) -> Callable[[Dimension], Dimension] | None:
        """What sizes were found to be; None where nothing was."""
        return self.sizes.resolve if self.sizes.bindings else None


def _is_symbolic(handle: Tensor) -> bool:
    return isinstance(handle._value, Traced)


def held_value(cell: Cell) -> Tensor | None:
    """What the handle of a cell held before the graph was built, or holds since, outside it."""
    owner = cell.handle
    value = cell.original
    if owner is not None and is_concrete(owner._value):
        value = owner._value
    if value is None and isinstance(cell.initial, Literal):
        value = cell.initial.value
    return None if value is None else wrap(value)


def resolve_sizes(graph: Graph, sizes: Callable[[Dimension], Dimension]) -> Graph:
    """A graph with what is known of its sizes."""
    return resolve_graph(graph, sizes)


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are equal, or can be made so in the graph that is being built.

    >>> same_shape((2, 3), (2, 3)), same_shape((2, 3), (2, 4))
    (True, False)
    """
    return a == b or (len(a) == len(b) and all(map(equal, a, b)))


def _fill(handle: Tensor, value: Any) -> None:
    handle._value, handle._node, handle._grad, handle._origin = value, None, None, None


def builder_of(tensor: Any) -> Builder | None:
    """The builder that a tensor belongs to; None for a tensor that has a value.

    >>> import weft as wf
    >>> wf.staging.builder_of(wf.tensor(1.0)) is None
    True
    """
    value = getattr(tensor, "_value", None)
    trace = value.trace if isinstance(value, Staged) else None
    return trace if isinstance(trace, Builder) else None


@contextmanager
def suspend_building() -> Iterator[None]:
    """Compute at once inside, whatever is being built around.

    >>> import weft as wf
    >>> with wf.staging.Builder(), wf.staging.suspend_building():
    ...     wf.zeros(2).tolist()
    [0.0, 0.0]
    """
    stack, recorded, lifted = traces.stack, traces.recording, GENERATOR.here.counter
    traces.stack, traces.recording, GENERATOR.here.counter = [], [], None
    inner = _entered.stack
    _entered.stack = []
    try:
        with Unifier():
            yield
    finally:
        traces.stack, traces.recording, GENERATOR.here.counter = stack, recorded, lifted
        _entered.stack = inner


def _foreign_tensor_error(tensor: Tensor) -> GraphError:
    return GraphError(
        "graph",
        "a tensor belongs to another graph, or to a branch that is being traced",
        expected="tensors of this graph, and tensors that have a value",
        got={"x": tensor},
        fix="build both in one graph; from a branch of wf.cond, return the value",
    )


def _inside_another(trace: Trace) -> TraceError:
    return TraceError(
        "graph",
        f"a graph cannot be built inside {trace.name}",
        expected="wf.Graph outside of jit, grad, vmap and the functions of control flow",
        got={"inside": trace.name},
        fix="build the graph first, and call session.run; in a graph use wf.gradients",
    )


def _lost_tape_error(tensor: Tensor) -> GraphError:
    return GraphError(
        "graph",
        "a tensor was computed outside from one that requires a gradient, and its tape is gone",
        expected="parameters themselves, or what is computed from them in the graph",
        got={"x": tensor},
        fix="compute it inside: with graph:; or x.detach() for a constant",
    )


def _seed_error() -> TraceError:
    return TraceError(
        "random.seed",
        "the generator was seeded while a graph was built: each run would draw the same",
        expected="a seed before the graph is built, or before the session runs",
        got={"inside": "a graph"},
        fix="wf.random.seed(0) before: with wf.Graph() as graph:",
    )
