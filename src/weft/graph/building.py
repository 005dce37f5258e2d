"""`Graph`: a program that is defined first and run by sessions.

Inside `with wf.Graph() as graph:` operations on tensors of the graph, random draws and tensors of
one value become nodes; nothing is computed. Every node is an `Operation` with a name. A tensor that
is made from numbers, such as `wf.tensor([1.0])`, is a constant.

>>> import weft as wf
>>> with wf.Graph() as graph:
...     x = wf.placeholder("float32", (None, 2), name="x")
...     y = wf.sum(x * 2.0, axis=1)
>>> [operation.name for operation in graph.operations]
['x', 'multiply', 'reduce_sum']
>>> print(graph.program(y))  # doctest: +ELLIPSIS
graph(a: f32[x_0, 2]) {
  b: f32[x_0, 2] = multiply(a, 2.0)...
  c: f32[x_0] = reduce_sum(b, axes=(1,))...
  return c
}
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import weft as wf
from weft.graph.names import Names
from weft.names import nearest_name
from weft.notebook import block, table

__all__ = ["Graph", "Operation", "current", "default_graph", "reset_default_graph"]


@wf.tree.register_leaf
@dataclass(eq=False, slots=True)
class Operation:
    """One step of a graph: a node, an input, an assignment, or nothing but what it waits for."""

    graph: Graph
    name: str
    kind: str
    node: wf.ir.GraphNode | None = None
    results: tuple[wf.ir.Variable, ...] = ()
    controls: tuple[Operation, ...] = ()
    """What must have happened in a run before this."""
    target: wf.staging.Cell | None = None
    """The cell that this is, or that it assigns to."""
    tensors: tuple[wf.Tensor, ...] = ()

    @property
    def outputs(self) -> tuple[wf.Tensor, ...]:
        """The tensors that it makes."""
        pairs = zip(self.tensors, self.results, strict=True)
        return tuple([self.graph._handle_of(tensor, result) for tensor, result in pairs])

    @property
    def at(self) -> Any:
        """Where in the user's code it was made."""
        return None if self.node is None else self.node.location

    def __repr__(self) -> str:
        kinds = ", ".join(str(self.graph.builder.resolve(each.type)) for each in self.results)
        return f"<{self.kind} {self.name!r}{': ' if kinds else ''}{kinds}>"


class Recorder(wf.staging.Builder):
    """The builder behind a graph."""

    graph: Graph

    def settle(self) -> None:
        """Make writes to a module's state updates; see `Graph.updates`."""
        self.graph._settle()


class Graph:
    """Operations that are defined now and run later, by `wf.Session`."""

    def __init__(self) -> None:
        self.builder = Recorder(self._add_node)
        self.builder.graph = self
        self.names = Names()
        self.outputs: list[wf.Tensor] = []
        """What a graph made from a function or a file returns."""
        self.updates: list[Operation] = []
        """Assignments to the state of modules that were called, such as running means."""
        self._operations: list[Operation] = []
        self._by_name: dict[str, Operation] = {}
        self._makers: dict[wf.ir.Variable, Operation] = {}
        self._controls: tuple[Operation, ...] = ()
        self._cells = 0
        self._next: tuple[str, str, wf.staging.Cell | None] | None = None
        self.bound_nodes: dict[Any, dict[Any, Any]] = {}
        """What nodes of the class style became, by the types that were fed; see classes.py."""

    def __enter__(self) -> Self:
        self.builder.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self.builder.__exit__(*raised)

    def __repr__(self) -> str:
        listed = self.operations
        count = f"{len(listed)} operation{'' if len(listed) == 1 else 's'}"
        return "\n".join([f"<Graph of {count}>", *(f"  {each!r}" for each in listed)])

    def _repr_html_(self) -> str:
        rows = []
        for each in self.operations:
            kinds = ", ".join(str(self.builder.resolve(result.type)) for result in each.results)
            place = "" if each.at is None else str(each.at).partition(", in ")[0]
            rows.append((each.name, each.kind, kinds, place))
        return block(table(["operation", "kind", "type", "made at"], rows))

    def as_default(self) -> Self:
        """The graph itself, as in `with graph.as_default():`."""
        return self

    # --- what is in it ---

    @property
    def operations(self) -> list[Operation]:
        """All operations, in the order in which they were made."""
        self._name_cells()
        return list(self._operations)

    def get_operation_by_name(self, name: Any) -> Operation:
        """The operation of a name.

        >>> import weft as wf
        >>> with wf.Graph() as graph:
        ...     x = wf.placeholder("float32", (), name="x")
        >>> graph.get_operation_by_name("x")
        <placeholder 'x': f32[]>
        """
        self._name_cells()
        operation = self._by_name.get(name) if isinstance(name, str) else None
        if operation is None:
            raise _unknown_operation(name, self._by_name)
        return operation

    def get_tensor_by_name(self, name: str) -> wf.Tensor:
        """The result of an operation, by the operation's name, or by `name:1` for its second."""
        base, _, number = str(name).partition(":")
        outputs = self.get_operation_by_name(base).outputs
        numbered = not number or (number.isdecimal() and int(number) < len(outputs))
        if not outputs or not numbered:
            raise wf.NameUnknownError(
                "get_tensor_by_name",
                f"operation {base!r} has no such result",
                expected=f"{len(outputs)} results, numbered from 0",
                got={"name": name},
                fix=f'graph.get_tensor_by_name("{base}:0")' if outputs else "fetch the operation",
            )
        return outputs[int(number or 0)]

    def operation_of(self, fetched: Any) -> Operation:
        """The operation that makes a tensor of this graph."""
        variable = self.variable_of(fetched)
        self._name_cells()
        return self._makers[variable]

    def variable_of(self, tensor: wf.Tensor) -> wf.ir.Variable:
        """The variable of a tensor in the program; a tensor of another graph is refused."""
        cell = self.builder.cell_of(tensor)
        variable = self.builder.variable_of(tensor) if cell is None else cell.variable
        if variable is None:
            raise _not_here(tensor)
        return variable

    def cells(self, trainable: bool = False) -> list[wf.staging.Cell]:
        """The variables of the graph, or those of them that are trained."""
        self._name_cells()
        variables = [cell for cell in self.builder.cells if cell.kind == "variable"]
        return [cell for cell in variables if cell.trainable or not trainable]

    def global_variables(self) -> list[wf.Tensor]:
        """All variables, with those of modules and optimisers."""
        return [self._handle_of(cell.handle, cell.variable) for cell in self.cells()]

    def trainable_variables(self) -> list[wf.Tensor]:
        """The variables that optimisers change."""
        return [self._handle_of(cell.handle, cell.variable) for cell in self.cells(trainable=True)]

    def maker(self, variable: wf.ir.Variable) -> Operation | None:
        """The operation that makes a variable."""
        return self._makers.get(variable)

    def _handle_of(self, tensor: wf.Tensor | None, variable: wf.ir.Variable) -> wf.Tensor:
        """The handle that was given out for a variable, unless it stands for something else now."""
        if tensor is not None:
            cell = self.builder.cell_of(tensor)
            known = self.builder.variable_of(tensor) if cell is None else cell.variable
            if known is variable:
                return tensor
        return self.builder.tensor(variable)

    # --- adding to it ---

    def add(
        self,
        kind: str,
        name: str,
        results: Sequence[wf.ir.Variable] = (),
        tensors: Sequence[wf.Tensor] = (),
        node: wf.ir.GraphNode | None = None,
        target: wf.staging.Cell | None = None,
        controls: Sequence[Operation] = (),
    ) -> Operation:
        """A new operation, under a name that is made unique."""
        waits = tuple(dict.fromkeys([*controls, *self._controls]))
        operation = Operation(
            self, self.names.unique(name), kind, node, tuple(results), waits, target, tuple(tensors)
        )
        self._operations.append(operation)
        self._by_name[operation.name] = operation
        for result in operation.results:
            self._makers[result] = operation
        return operation

    def fill(self, operation: Operation, tensor: wf.Tensor) -> None:
        """Let an operation that was added without a result have this one."""
        variable = self.variable_of(tensor)
        operation.results, operation.tensors = (variable,), (tensor,)
        self._makers[variable] = operation

    def assign(
        self, cell: wf.staging.Cell, value: wf.Tensor, name: str, kind: str = "assign"
    ) -> wf.Tensor:
        """Let a cell have a value after the runs that compute the result, which is that value."""
        self._next = kind, name, cell
        try:
            return self.builder.mark_value(value)
        finally:
            self._next = None

    @contextmanager
    def control_dependencies(self, operations: Sequence[Any]) -> Iterator[None]:
        """Let operations made inside happen after these, and read variables as these leave them.

        >>> import weft as wf
        >>> with wf.Graph() as graph:
        ...     count = wf.Variable(0, name="count")
        ...     with graph.control_dependencies([count.assign_add(1)]):
        ...         twice = count * 2
        >>> with wf.Session(graph) as session:
        ...     session.run(twice).item(), session.run(twice).item()
        (2, 4)
        """
        if not isinstance(operations, list | tuple):
            raise _not_an_operation("control_dependencies", operations)
        controls = [self.as_operation("control_dependencies", each) for each in operations]
        before, current = self._controls, dict(self.builder.current)
        self._controls = tuple(dict.fromkeys([*before, *controls]))
        for cell, assignment in self.assignments(controls).items():
            self.builder.current[cell.variable] = assignment.results[0]
        try:
            yield
        finally:
            self._controls, self.builder.current = before, current

    def as_operation(self, op: str, given: Any) -> Operation:
        """An operation of this graph, given itself, by its result, or by its name."""
        if isinstance(given, str):
            return self.get_operation_by_name(given.partition(":")[0])
        if isinstance(given, wf.Tensor):
            return self.operation_of(given)
        if isinstance(given, Operation) and given.graph is self:
            return given
        raise _not_an_operation(op, given)

    def assignments(
        self, operations: Sequence[Operation], fed: frozenset[wf.ir.Variable] = frozenset()
    ) -> dict[wf.staging.Cell, Operation]:
        """The last assignment to each cell that these operations need; refused without an order."""
        by_cell: dict[wf.staging.Cell, Operation] = {}
        for each in self.needed(operations, fed):
            if each.kind != "assign":
                continue
            assert each.target is not None
            earlier = by_cell.get(each.target)
            if earlier is not None and earlier not in self.needed([each], fed):
                raise _unordered_error(earlier, each)
            by_cell[each.target] = each
        return by_cell

    def needed(
        self, operations: Sequence[Operation], fed: frozenset[wf.ir.Variable] = frozenset()
    ) -> list[Operation]:
        """What must happen for these operations, in an order that can be run."""
        self._name_cells()
        reached: set[Operation] = set()
        waiting = list(operations)
        while waiting:
            each = waiting.pop()
            if each in reached or (each.results and fed.issuperset(each.results)):
                continue
            reached.add(each)
            waiting += each.controls
            operands = () if each.node is None else each.node.operands
            waiting += [
                self._makers[atom]
                for atom in operands
                if isinstance(atom, wf.ir.Variable) and atom in self._makers and atom not in fed
            ]
        return [each for each in self._operations if each in reached]

    def program(self, fetches: Any, feeds: Sequence[wf.Tensor] = ()) -> wf.ir.Graph:
        """The `wf.ir.Graph` that computes something: what a session compiles."""
        program: wf.ir.Graph = PLANNER[0](self, fetches, feeds)
        return program

    # --- what the builder tells ---

    def _add_node(self, node: wf.ir.GraphNode, tensors: Sequence[wf.Tensor]) -> None:
        self._name_cells()
        kind, name, target = self._next or (node.primitive.name, node.primitive.name, None)
        self._next = None
        self.add(kind, name, node.results, tensors, node, target)

    def _name_cells(self) -> None:
        """Give cells that the builder found an operation, and so a name."""
        while self._cells < len(self.builder.cells):
            cell = self.builder.cells[self._cells]
            self._cells += 1
            default = "Variable" if cell.kind == "variable" else "constant"
            handle = cell.handle
            tensor = self.builder.tensor(cell.variable) if handle is None else handle
            controls, self._controls = self._controls, ()  # an input waits for nothing
            operation = self.add(
                cell.kind, cell.name or default, [cell.variable], [tensor], target=cell
            )
            self._controls = controls
            cell.name = operation.name

    def _settle(self) -> None:
        """Make writes to cells updates; a write that depends on nothing fed is an initial value."""
        for cell, value in self.builder.written_cells():
            variable = self.builder.variable_of(value)
            if variable is None or self._is_constant(variable):
                self.builder.begin_with(cell, value)
            else:
                result = self.assign(cell, value, f"{cell.name}/update")
                self.updates.append(self.operation_of(result))

    def _is_constant(self, variable: wf.ir.Variable) -> bool:
        """Whether a value depends on neither placeholders nor variables."""
        makers = [self._makers[variable]] if variable in self._makers else []
        inputs = {"placeholder", "variable"}
        return all(each.kind not in inputs for each in self.needed(makers))

    # --- from and to other forms ---

    @classmethod
    def of(
        cls,
        program: wf.ir.Graph,
        names: Sequence[str] = (),
        values: Mapping[str, Any] | None = None,
    ) -> Graph:
        """A graph of the program of a function, such as `wf.jit(f).graph(x)` or `wf.ir.trace`.

        Its inputs are placeholders under these names, or variables where a value is given.

        >>> import weft as wf
        >>> graph = wf.Graph.of(wf.jit(lambda x: x * 2).graph(wf.tensor([1.0])), names=["x"])
        >>> with wf.Session(graph) as session:
        ...     session.run(graph.outputs, {"x": [3.0]})[0].tolist()
        [6.0]
        """
        graph: Graph = IMPORTER[0](program, names, dict(values or {}))
        return graph

    def save(self, path: Any, session: Any = None) -> None:
        """Write the graph, and the values of its variables in a session, to one file of data.

        >>> import tempfile, weft as wf
        >>> with wf.Graph() as graph:
        ...     x = wf.placeholder("float32", (None,), name="x")
        ...     y = wf.multiply(x, wf.Variable([2.0], name="w"))
        >>> path = tempfile.mkdtemp() + "/double.weft"
        >>> graph.save(path)
        >>> loaded = wf.Graph.load(path)
        >>> with wf.Session(loaded) as session:
        ...     session.run("multiply", {"x": [4.0]}).tolist()
        [8.0]
        """
        FILES[0](self, path, session)

    @classmethod
    def load(cls, path: Any) -> Graph:
        """The graph that a file holds, checked; no code of the model's is needed, none is run."""
        graph: Graph = FILES[1](path)
        return graph


PLANNER: list[Any] = []
"""Makes programs of fetches, filled in by plans.py."""
IMPORTER: list[Any] = []
"""Makes graphs of programs, filled in by files.py."""
FILES: list[Any] = []
"""Writes and reads files, filled in by files.py."""


class _Default(threading.local):
    graph: Graph | None = None


_default = _Default()


def default_graph() -> Graph:
    """The graph that scripts build which open none: entered when it is first needed.

    From then on the operations of this thread build it, until `wf.reset_default_graph()`.
    """
    if _default.graph is None:
        _default.graph = Graph()
        _default.graph.__enter__()
    return _default.graph


def reset_default_graph() -> None:
    """Leave the default graph; the next placeholder or variable begins a new one.

    >>> import weft as wf
    >>> x = wf.placeholder("float32", (2,))
    >>> wf.zeros(2).requires_grad, wf.reset_default_graph(), wf.zeros(2).tolist()
    (False, None, [0.0, 0.0])
    """
    graph, _default.graph = _default.graph, None
    if graph is not None:
        graph.__exit__()


def entered_graph() -> Graph | None:
    """The innermost graph that is entered, or None."""
    builder = wf.staging.current_builder()
    return builder.graph if isinstance(builder, Recorder) else None


def current() -> Graph:
    """The innermost graph that is entered, or the default one."""
    return entered_graph() or default_graph()


def _unknown_operation(name: Any, known: Mapping[str, Operation]) -> wf.NameUnknownError:
    close = nearest_name(str(name), known)
    return wf.NameUnknownError(
        "graph",
        f"the graph has no operation called {name!r}",
        expected=f"one of its {len(known)} operations",
        got={"name": repr(name)},
        fix=f'"{close}"' if close else "[operation.name for operation in graph.operations]",
    )


def _not_here(tensor: Any) -> wf.GraphError:
    return wf.GraphError(
        "graph",
        "the tensor is not one of this graph's",
        expected="a tensor that was made inside: with graph:",
        got={"x": tensor},
        fix="run it in a session of its own graph, or feed its value",
    )


def _not_an_operation(op: str, given: Any) -> wf.GraphError:
    return wf.GraphError(
        op,
        "this is no operation of this graph",
        expected="operations of this graph, tensors of it, or their names",
        got={"given": given},
        fix="build it inside: with graph:",
    )


def _unordered_error(first: Operation, second: Operation) -> wf.GraphError:
    assert first.target is not None
    return wf.GraphError(
        "graph",
        f"{first.target.name} is assigned twice in one run, in no order",
        expected="one assignment, or a second one that happens after the first",
        got={"first": first.name, "second": second.name},
        fix=f'with graph.control_dependencies(["{first.name}"]): make {second.name} inside',
        at=second.at,
    )
