"""Placeholders, variables and constants: what a graph is fed, keeps, and is given.

>>> import weft as wf
>>> with wf.Graph() as graph:
...     x = wf.placeholder("float32", (None,), name="x")
...     total = wf.Variable(0.0, name="total")
...     add = total.assign_add(wf.sum(x))
>>> with wf.Session(graph) as session:
...     session.run(add, {x: [1.0, 2.0]}).item(), session.run(total).item()
(3.0, 3.0)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import weft as wf
from weft.graph.building import Graph, Operation, current, entered_graph
from weft.graph.names import checked_name

__all__ = [
    "FedTensor", "Variable", "constant", "global_variables", "global_variables_initializer",
    "group", "identity", "name_scope", "placeholder", "trainable_variables",
]  # fmt: skip


class FedTensor(wf.Tensor):
    """A placeholder of a known type: a tensor whose value is given to each run."""

    __slots__ = ("declared", "name")
    name: str
    declared: tuple[Any, ...]


def _deferring_operator(name: str) -> Any:
    """An operator of tensors that leaves nodes of the class style to the node's own operator."""
    inherited = getattr(wf.Tensor, name)

    def method(self: wf.Tensor, *given: Any, **options: Any) -> Any:
        operands = given[1] if name == "__array_function__" else given  # there, their types
        if any(hasattr(type(each), "minimized_by") for each in operands):
            return NotImplemented
        return inherited(self, *given, **options)

    return method


def placeholder(dtype: Any, shape: Any = (), name: str = "placeholder") -> FedTensor:
    """A tensor that `session.run` is fed: `feed_dict={x: value}`. None is a size of any number.

    `wf.graph.Placeholder()` has no type until its first run.

    >>> import weft as wf
    >>> with wf.Graph():
    ...     wf.placeholder("float32", (None, 784), name="images").type
    f32[images_0, 784]
    """
    given = _sizes(shape)
    graph = current()
    new_placeholder = FedTensor()
    controls, graph._controls = graph._controls, ()
    operation = graph.add("placeholder", checked_name("placeholder", name))
    graph._controls = controls
    base = "".join(c if c.isalnum() else "_" for c in operation.name)
    base = base if base[0].isalpha() else f"x{base}"
    sizes = [wf.symbol(f"{base}_{axis}") if n is None else n for axis, n in enumerate(given)]
    kind = wf.spec(dtype, tuple(sizes))
    graph.builder.placeholder(new_placeholder, kind)
    new_placeholder.name, new_placeholder.declared = operation.name, given
    graph.fill(operation, new_placeholder)
    return new_placeholder


def _sizes(shape: Any) -> tuple[Any, ...]:
    if isinstance(shape, int | str | wf.Dim):
        return (shape,)
    if not isinstance(shape, list | tuple):
        raise wf.ArgumentTypeError(
            "placeholder",
            "the number of axes must be known",
            expected="a tuple of sizes, with None for those that vary",
            got={"shape": shape},
            fix="shape=(None, 784)",
        )
    return tuple(shape)


class Variable(wf.Tensor):
    """A tensor that keeps its value from run to run, in each session its own.

    initial: a value, or tensors of the graph that depend on nothing fed, such as random numbers: a
    session computes them when it is entered. Reading a variable gives the value at the beginning
    of the run; see `Graph.control_dependencies` for later ones.
    """

    __slots__ = ("_cell", "_graph", "initial")

    def __init__(
        self,
        initial: Any,
        name: str = "Variable",
        trainable: bool = True,
        dtype: Any = None,
    ) -> None:
        self._graph = graph = current()
        given = initial if isinstance(initial, wf.Tensor) else wf.asarray(initial, dtype=dtype)
        given = given if dtype is None else given.astype(dtype)
        self.initial = given.detach()
        trained = trainable and given.dtype.is_inexact
        checked_name("Variable", name)
        self._cell = graph.builder.cell(self, self.initial, name, trained)
        graph._name_cells()

    @property
    def name(self) -> str:
        """The name of the variable in its graph."""
        return self._cell.name

    @property
    def trainable(self) -> bool:
        """Whether optimisers change it."""
        return self._cell.trainable

    def assign(self, value: Any, name: str = "assign") -> wf.Tensor:
        """Give the variable a value in every run that fetches the result, which is that value.

        >>> import weft as wf
        >>> with wf.Graph() as graph:
        ...     w = wf.Variable([1.0, 2.0], name="w")
        ...     double = w.assign(w * 2)
        >>> with wf.Session(graph) as session:
        ...     session.run(double).tolist(), session.run(w).tolist()
        ([2.0, 4.0], [2.0, 4.0])
        """
        return self._assign_value(name, value)

    def assign_add(self, value: Any, name: str = "assign_add") -> wf.Tensor:
        """Add to the variable in every run that fetches the result, the new value."""
        return self._assign_value(name, value, wf.add)

    def assign_sub(self, value: Any, name: str = "assign_sub") -> wf.Tensor:
        """Subtract from the variable in every run that fetches the result, the new value."""
        return self._assign_value(name, value, wf.subtract)

    def read_value(self) -> wf.Tensor:
        """The value as a tensor of its own; after assignments that must have happened, theirs."""
        return self._graph.builder.identity(self)

    def _assign_value(self, op: str, given: Any, combine: Any = None) -> wf.Tensor:
        value = wf.asarray(given) if not isinstance(given, wf.Tensor) else given
        value = value if combine is None else combine(self, value)
        if not isinstance(given, wf.Tensor) and combine is None:
            value = wf.asarray(given, dtype=self.dtype)
        if value.dtype is not self.dtype:
            raise wf.DTypeError(
                op,
                f"the value has another dtype than {self.name}",
                expected=f"{self.name}: {self.type}",
                got={"value": value},
                fix=f'v.{op}(value.astype("{self.dtype.name}"))',
            )
        kind = self._graph.builder.resolve(value.type)
        if kind.shape != self.shape:
            if combine is not None or kind.shape != ():
                raise _shape_error(op, self.name, self, value)
            value = wf.broadcast_to(value, self.shape)
        return self._graph.assign(self._cell, value.detach(), f"{self.name.split('/')[-1]}/{op}")


def constant(value: Any, dtype: Any = None, name: str = "constant") -> wf.Tensor:
    """A tensor of the graph that has a value, under a name.

    >>> import weft as wf
    >>> with wf.Graph() as graph:
    ...     ten = wf.graph.constant([10.0], name="ten")
    >>> wf.Session(graph).run("ten").tolist()
    [10.0]
    """
    graph = current()
    graph._next = "constant_value", checked_name("constant", name), None
    try:
        return graph.builder.mark_value(wf.asarray(value, dtype=dtype))
    finally:
        graph._next = None


def identity(x: Any, name: str = "identity") -> wf.Tensor:
    """The same value under a name, by which it can be fetched; derivatives go through.

    >>> import weft as wf
    >>> with wf.Graph() as graph:
    ...     x = wf.placeholder("float32", (), name="x")
    ...     y = wf.graph.identity(x * x, name="square")
    ...     slope = wf.gradients(y, [x])[0]
    >>> [value.item() for value in wf.Session(graph).run(["square", slope], {"x": 3.0})]
    [9.0, 6.0]
    """
    graph = _graph_of(x) or current()
    graph._next = "identity", checked_name("identity", name), None
    try:
        return graph.builder.identity(x if isinstance(x, wf.Tensor) else wf.asarray(x))
    finally:
        graph._next = None


def group(*operations: Any, name: str = "group") -> Operation:
    """An operation that is done when all of these are; its value is None.

    >>> import weft as wf
    >>> with wf.Graph() as graph:
    ...     a, b = wf.Variable(1.0), wf.Variable(2.0)
    ...     both = wf.group(a.assign(10.0), b.assign(20.0))
    >>> with wf.Session(graph) as session:
    ...     session.run(both), [value.item() for value in session.run([a, b])]
    (None, [10.0, 20.0])
    """
    graph = next((g for g in map(_graph_of, operations) if g is not None), None) or current()
    waits = [graph.as_operation("group", each) for each in operations]
    return graph.add("group", checked_name("group", name), controls=waits)


def _graph_of(given: Any) -> Graph | None:
    if isinstance(given, Operation):
        return given.graph
    builder = wf.staging.builder_of(given)
    return getattr(builder, "graph", None)


def global_variables_initializer() -> Operation:
    """An operation that gives all variables their initial values again.

    Entering a session does so at first: this is for beginning anew.
    """
    return current().add("initialize", "initialize")


def global_variables() -> list[wf.Tensor]:
    """All variables of the present graph, with those of modules and optimisers.

    >>> import weft as wf
    >>> with wf.Graph():
    ...     w, steps = wf.Variable([1.0]), wf.Variable(0, trainable=False)
    ...     len(wf.global_variables()), len(wf.trainable_variables())
    (2, 1)
    """
    graph = entered_graph()
    return [] if graph is None else graph.global_variables()


def trainable_variables() -> list[wf.Tensor]:
    """The variables of the present graph that optimisers change."""
    graph = entered_graph()
    return [] if graph is None else graph.trainable_variables()


@contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Put the names of operations made inside under a name; where no graph is built, nothing.

    >>> import weft as wf
    >>> with wf.Graph() as graph, wf.name_scope("layer1"):
    ...     w = wf.Variable([1.0], name="w")
    >>> w.name
    'layer1/w'
    """
    if wf.staging.current_builder() is None:
        yield checked_name("name_scope", name)
        return
    with current().names.scope(name) as inner:
        yield inner


def adopt(module: Any) -> None:
    """Let the tensors of a module that is called be variables of the graph that is being built."""
    graph = current()
    learned = {id(tensor) for _, tensor in module.named_parameters()}
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in tensors:
        if tensor.is_leaf and graph.builder.cell_of(tensor) is None:  # or computed, as in a copy
            trained = id(tensor) in learned and tensor.requires_grad
            graph.builder.adopt_cell(tensor, name, trainable=trained)
    graph._name_cells()


def _shape_error(op: str, name: str, variable: wf.Tensor, value: wf.Tensor) -> wf.ShapeError:
    return wf.ShapeError(
        op,
        f"the value has another shape than {name}",
        expected=f"{name}: {variable.type}",
        got={"value": value},
        fix=f"reshape it first: v.{op}(value.reshape({tuple(variable.shape)}))",
    )


for _name in ("add", "sub", "mul", "truediv", "matmul", "array_ufunc", "array_function"):
    for _kind in (Variable, FedTensor):
        setattr(_kind, f"__{_name}__", _deferring_operator(f"__{_name}__"))
