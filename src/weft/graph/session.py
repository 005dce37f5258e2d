"""`Session`: runs a graph, and holds the values of its variables.

Each session has values of its own, as in TensorFlow 1; they begin with the initial values when the
session is entered, or when a variable is first needed. Each set of fetches is compiled once.

>>> import weft as wf
>>> with wf.Graph() as graph:
...     x = wf.placeholder("float32", (None,), name="x")
...     w = wf.Variable(2.0, name="w")
...     y = w * x
>>> with wf.Session(graph) as session:
...     session.run({"y": y, "w": "w"}, feed_dict={x: [1.0, 3.0]})["y"].tolist()
[2.0, 6.0]
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import weft as wf
from weft.graph.building import Graph, entered_graph
from weft.graph.classes import bind_nodes
from weft.graph.feeding import check_sizes, read_feed
from weft.graph.plans import Fetched, Plan, initial_values, make_plan, next_key, read_fetch

__all__ = ["Session"]


class Session:
    """Runs parts of a graph; `with wf.Session(graph) as session:` closes it at the end.

    device: where values are and runs compute, and what is fed is moved to; the default device if
    it is not said.
    """

    def __init__(self, graph: Graph | wf.ir.Graph | None = None, *, device: Any = None) -> None:
        chosen = entered_graph() if graph is None else graph
        chosen = Graph.of(chosen) if isinstance(chosen, wf.ir.Graph) else chosen
        if not isinstance(chosen, Graph):
            raise _no_graph(graph)
        self.graph, self.device = chosen, wf.device(device)
        self._values: dict[wf.ir.Variable, wf.Tensor] = {}
        self._plans: dict[Hashable, Plan] = {}
        self._is_open = True

    def __enter__(self) -> Self:
        self._check_open("session")
        self.initialize()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all values; the session cannot run any more."""
        self._is_open = False
        self._values.clear()
        self._plans.clear()

    def initialize(self) -> None:
        """Give all variables their initial values."""
        self._check_open("initialize")
        self._values.clear()
        with wf.staging.suspend_building():
            self._begin(self.graph.builder.cells)

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """The values of fetches: one, or a tree of tensors, operations and names.

        feed_dict: values for placeholders, by the placeholder or its name; any other tensor of the
        graph may be given a value too. Only what the fetches need is computed. The value of an
        operation is None.

        >>> import weft as wf
        >>> with wf.Graph() as graph:
        ...     x = wf.placeholder("float32", (2,), name="x")
        ...     y = x + 1.0
        >>> with wf.Session(graph) as session:
        ...     session.run(y, {"x": [1.0, 2.0]}).tolist()
        [2.0, 3.0]
        """
        self._check_open("run")
        if feed_dict is not None and not isinstance(feed_dict, Mapping):
            raise _not_fed(feed_dict)
        leaves, structure = wf.tree.flatten(fetches)
        leaves, feed_dict = bind_nodes(self.graph, leaves, feed_dict or {})
        with wf.staging.suspend_building():
            self.graph.builder.settle_if_entered()
            feeds = self._read_feeds(feed_dict)
            fetched = [read_fetch(self.graph, leaf) for leaf in leaves]
            plan = self._plan(fetched, feeds)
            values = iter(self._execute(plan, feeds))
            results = [None if each.atom is None else next(values) for each in fetched]
        return wf.tree.unflatten(structure, results)

    @property
    def compilations(self) -> int:
        """How many programs were compiled: each set of fetches one, or two for all sizes."""
        return sum([plan.compilations for plan in self._plans.values()])

    def load(self, variable: Any, value: Any) -> None:
        """Give a variable a value, from outside the graph.

        >>> import weft as wf
        >>> with wf.Graph() as graph:
        ...     w = wf.Variable([1.0, 2.0], name="w")
        >>> with wf.Session(graph) as session:
        ...     session.load("w", [5.0, 6.0])
        ...     session.run(w).tolist()
        [5.0, 6.0]
        """
        self._check_open("load")
        handle = self.graph.get_tensor_by_name(variable) if isinstance(variable, str) else variable
        cell = self.graph.builder.cell_of(handle) if isinstance(handle, wf.Tensor) else None
        if cell is None:
            raise _not_a_variable(variable)
        with wf.staging.suspend_building():
            kept = read_feed(cell.name, cell.variable.type, cell.variable.type.shape, value)
            self._values[cell.variable] = self._own_copy(kept)

    def cell_values(self) -> list[wf.Tensor]:
        """The present values of all that the graph keeps, its large constants too."""
        self._check_open("cell_values")
        with wf.staging.suspend_building():
            cells = self.graph.builder.cells
            self._begin(cells)
            return [self._values[cell.variable].detach() for cell in cells]

    def state_dict(self) -> dict[str, wf.Tensor]:
        """The present values of all variables by name; `wf.save` writes it."""
        self._check_open("state_dict")
        with wf.staging.suspend_building():
            cells = self.graph.cells()
            self._begin(cells)
            return {cell.name: self._values[cell.variable].detach() for cell in cells}

    def load_state_dict(self, state: Any) -> None:
        """Take the values of variables from what `state_dict` returned."""
        names = [cell.name for cell in self.graph.cells()]
        state = state if isinstance(state, Mapping) else {}
        wrong = [name for name in state if name not in names]
        missing = [name for name in names if name not in state]
        if wrong or missing:
            raise wf.ArgumentError(
                "load_state_dict",
                "the entries are not those of this graph's variables",
                expected=f"{len(names)} entries, as in session.state_dict()",
                got={"missing": missing[:4], "unexpected": wrong[:4]},
                fix="load the state of a session of the same graph",
            )
        for name, value in state.items():
            self.load(name, value)

    # --- one run ---

    def _read_feeds(self, feed_dict: Mapping[Any, Any]) -> dict[wf.ir.Variable, wf.Tensor]:
        feeds: dict[wf.ir.Variable, wf.Tensor] = {}
        sizes: dict[str, tuple[Any, str]] = {}
        for key, value in feed_dict.items():
            tensor = self.graph.get_tensor_by_name(key) if isinstance(key, str) else key
            if not isinstance(tensor, wf.Tensor):
                raise _not_fed(key)
            variable = self.graph.variable_of(tensor)
            if (cell := self.graph.builder.cell_of(tensor)) is not None:
                raise _fed_variable(cell.name)
            name = self.graph.operation_of(tensor).name
            kind = self.graph.builder.resolve(variable.type)
            declared = getattr(tensor, "declared", kind.shape)
            given = read_feed(name, kind, declared, value)
            check_sizes(name, kind, given, sizes)
            feeds[variable] = given.to(self.device)
        return feeds

    def _plan(self, fetched: Sequence[Fetched], feeds: Mapping[wf.ir.Variable, wf.Tensor]) -> Plan:
        key = tuple([each.atom or each.operation for each in fetched]), frozenset(feeds)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = make_plan(self.graph, fetched, list(feeds))
        return plan

    def _execute(
        self, plan: Plan, feeds: Mapping[wf.ir.Variable, wf.Tensor]
    ) -> Sequence[wf.Tensor]:
        if plan.begins:
            self._values.clear()
            self._begin(self.graph.builder.cells)
        self._begin(plan.cells)
        for cell in plan.cells:
            if cell.follows and cell not in plan.assigned:
                self._follow(cell)
        tensors = [feeds[variable] for variable in plan.fed]
        tensors += [self._values[cell.variable] for cell in plan.cells]
        tensors += [each.to(self.device) for each in next_key()] if plan.draws else ()
        return plan.run(tensors)

    def _begin(self, cells: Sequence[wf.staging.Cell]) -> None:
        """Give cells that have no value yet their initial ones."""
        missing = [cell for cell in cells if cell.variable not in self._values]
        for cell in missing:
            if (value := wf.staging.held_value(cell)) is not None:
                self._values[cell.variable] = self._own_copy(value)
        computed = [cell for cell in missing if cell.variable not in self._values]
        if computed:
            known = {variable: value.to("cpu") for variable, value in self._values.items()}
            values = initial_values(self.graph, computed, known)
            for cell, value in zip(computed, values, strict=True):
                self._values[cell.variable] = self._own_copy(value)

    def _own_copy(self, value: wf.Tensor) -> wf.Tensor:
        """A value in memory that nobody else holds, where the session computes."""
        return value.to(self.device).clone()

    def _follow(self, cell: wf.staging.Cell) -> None:
        """Take a value written to the handle since the last run, as by `optimizer.lr = 0.01`."""
        value = wf.staging.held_value(cell)
        if value is not None:
            self._values[cell.variable] = value.to(self.device)

    def _check_open(self, op: str) -> None:
        if not self._is_open:
            raise wf.ArgumentError(
                op,
                "the session is closed, and its values are gone",
                expected="a session inside its with block, or one that was not closed",
                got={"session": "closed"},
                fix="with wf.Session(graph) as session: session.run(...)",
            )


def _no_graph(given: Any) -> wf.ArgumentTypeError:
    return wf.ArgumentTypeError(
        "Session",
        "there is no graph to run",
        expected="a wf.Graph, the program of a function, or a default graph that was built",
        got={"graph": given},
        fix="with wf.Graph() as graph: ...; wf.Session(graph)",
    )


def _not_a_variable(given: Any) -> wf.GraphError:
    return wf.GraphError(
        "load",
        "only variables keep a value",
        expected="a variable of the session's graph, or its name",
        got={"variable": given},
        fix="feed it: session.run(y, feed_dict={x: value})",
    )


def _fed_variable(name: str) -> wf.ArgumentError:
    return wf.ArgumentError(
        "run",
        f"{name} keeps its own value, and cannot be fed",
        expected="placeholders, or tensors that are computed",
        got={"key": name},
        fix=f'session.load("{name}", value)',
    )


def _not_fed(key: Any) -> wf.ArgumentTypeError:
    return wf.ArgumentTypeError(
        "run",
        "feed_dict names something that is not a tensor of the graph",
        expected="placeholders, tensors of the graph, or their names as keys",
        got={"key": key},
        fix="feed_dict={x: batch}",
    )
