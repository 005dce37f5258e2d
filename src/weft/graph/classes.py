"""The class style of static graphs, as teaching frameworks have it: an operation is a class.

A class derived from `Operation` says by `compute` what it gives for values, in NumPy's functions or
Weft's. Its gradient is registered by the name of the class; without one it is derived. Nodes have
no types. In its first run a placeholder is bound to the type of what it is fed; then `compute` of
all nodes is called once, which records the operations of an ordinary graph, and they are compiled.

>>> import numpy as np
>>> import weft as wf
>>> from weft.graph import Operation, Placeholder, RegisterGradient
>>> class sigmoid(Operation):
...     def compute(self, x):
...         return 1 / (1 + np.exp(-x))
>>> @RegisterGradient("sigmoid")
... def _(op, grad):
...     return grad * op.output * (1 - op.output)
>>> with wf.Graph() as graph:
...     x, w = Placeholder(), wf.Variable([1.0, -1.0], name="w")
...     y = sigmoid(x * w)
>>> y
sigmoid(multiply(placeholder, w))
>>> wf.Session(graph).run(y, {x: [0.0, 0.0]}).tolist()
[0.5, 0.5]
"""

from __future__ import annotations

import operator
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import weft as wf
from weft.graph import building
from weft.graph.building import Graph
from weft.graph.variables import FedTensor, placeholder
from weft.names import NODES

__all__ = ["Node", "Operation", "Placeholder", "RegisterGradient", "apply", "bind_nodes"]

GRADIENTS: dict[str, Callable[..., Any]] = {}
"""Gradients that were registered, by the name of the class."""
LINE = 80
"""The longest expression that a node is shown as in one line."""


class RegisterGradient:
    """Give the operations of a name a gradient: a function of the operation and of `grad`.

    `op.inputs` are the values that came in and `op.output` what came out. The result is the
    gradient of the input, or a list of them for several.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        """Register the function, and return it."""
        GRADIENTS[self.name] = gradient
        return gradient


@wf.tree.register_leaf
class Node(metaclass=ABCMeta):  # noqa: B024 (a base whose subclasses say what they give)
    """A value that is known in a run: what operations, placeholders and expressions share."""

    __array_priority__ = 1000.0

    def __init__(self, inputs: Sequence[Any] = (), name: str = "") -> None:
        self.input_nodes = list(inputs)
        self.name = name or type(self).__name__.lower()

    def evaluate(self, graph: Graph, values: Sequence[Any]) -> Any:
        """The tensor of a graph for those of the inputs."""
        raise NotImplementedError

    def minimized_by(self, optimizer: Any) -> Node:
        """What `optimizer.minimize(node)` returns: an update, to be run by a session."""
        return _Update([self], optimizer)

    def __getattr__(self, name: str) -> Any:
        """A method of tensors, which gives a node: `x.sum(axis=0)`."""
        if name.startswith("_") or not callable(getattr(wf.Tensor, name, None)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return lambda *args, **options: apply(
            getattr(wf.Tensor, name), self, *args, name=name, **options
        )

    def __repr__(self) -> str:
        line = _expression(self)
        return line if len(line) <= LINE else _tree_text(self)

    # --- expressions -----------------------------------------------------------------------------

    def __add__(self, other: Any) -> Node:
        return apply(operator.add, self, other)

    def __radd__(self, other: Any) -> Node:
        return apply(operator.add, other, self)

    def __sub__(self, other: Any) -> Node:
        return apply(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Node:
        return apply(operator.sub, other, self)

    def __mul__(self, other: Any) -> Node:
        return apply(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Node:
        return apply(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Node:
        return apply(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return apply(operator.truediv, other, self)

    def __matmul__(self, other: Any) -> Node:
        return apply(operator.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Node:
        return apply(operator.matmul, other, self)

    def __pow__(self, other: Any) -> Node:
        return apply(operator.pow, self, other)

    def __neg__(self) -> Node:
        return apply(operator.neg, self)

    def __getitem__(self, key: Any) -> Node:
        return apply(lambda x: x[key], self, name="getitem")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options.get("out") is not None:
            return NotImplemented
        return apply(ufunc, *inputs, **options)

    def __array_function__(self, function: Any, _: Any, inputs: Any, options: Any) -> Any:
        return apply(function, *inputs, **options)


class Operation(Node):
    """The base of operations that are classes: `compute` says what one gives for values.

    A class with an `__init__` of its own passes its inputs on: `super().__init__([x, y])`.
    """

    def __init__(self, *inputs: Any, name: str = "") -> None:
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list | tuple) else inputs
        super().__init__(given, name or type(self).__name__)

    def compute(self, *values: Any) -> Any:
        """What the operation gives for the values of its inputs."""
        name = type(self).__name__
        raise wf.ArgumentError(
            name,
            "the operation does not say what it gives",
            expected=f"a method compute in class {name}",
            got={"class": name},
            fix="def compute(self, x): ...",
        )

    def evaluate(self, graph: Graph, values: Sequence[Any]) -> Any:
        """See `Node`: `compute`, with the gradient that was registered for the class."""
        gradient = GRADIENTS.get(type(self).__name__)
        if gradient is None:
            return self.compute(*values)
        run = wf.custom_derivative(self._named_compute())
        run.vjp(self._rule(gradient))
        return run(*map(wf.asarray, values))

    def _named_compute(self) -> Callable[..., Any]:
        def compute(*values: Any) -> Any:
            return self.compute(*values)

        compute.__name__ = type(self).__name__
        return compute

    def _rule(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        def rule(*values: Any) -> Any:
            output = self.compute(*values)
            view = SimpleNamespace(inputs=list(values), output=output, operation=self)

            def pullback(cotangent: Any) -> tuple[Any, ...]:
                gradients = gradient(view, cotangent)
                many = isinstance(gradients, list | tuple)
                return _as_cotangents(
                    type(self).__name__, gradients if many else [gradients], values
                )

            return output, pullback

        return rule


def _as_cotangents(name: str, gradients: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """One gradient of the input's shape for each input; what was broadcast is summed."""
    if len(gradients) != len(values):
        raise wf.GradientError(
            f'RegisterGradient("{name}")',
            "there is not one gradient for each input",
            expected=f"a list of {len(values)} gradients",
            got={"gradients": len(gradients)},
            fix="return [grad_of_first, grad_of_second]",
        )
    return tuple(
        _summed_to(wf.asarray(gradient), value.shape)
        for gradient, value in zip(gradients, values, strict=True)
    )


def _summed_to(gradient: wf.Tensor, shape: Sequence[Any]) -> wf.Tensor:
    if gradient.ndim > len(shape):
        gradient = wf.sum(gradient, axis=tuple(range(gradient.ndim - len(shape))))
    axes = [i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1]
    return wf.sum(gradient, axis=tuple(axes), keepdims=True) if axes else gradient


class Placeholder(Node):
    """A value that each run is fed, `feed_dict={x: value}`; its type is that of the first value.

    With a dtype and a shape it is `wf.placeholder`, whose type is known from the beginning.
    """

    def __new__(cls, dtype: Any = None, shape: Any = (), name: str = "placeholder") -> Any:
        """A node without a type, or `wf.placeholder` for one."""
        return super().__new__(cls) if dtype is None else placeholder(dtype, shape, name)

    def __init__(self, dtype: Any = None, shape: Any = (), name: str = "placeholder") -> None:
        super().__init__((), name)
        self.dtype: wf.DType | None = None
        """The dtype, once it was fed."""


Operation.register(building.Operation)
Placeholder.register(FedTensor)


class _Call(Node):
    """A function of nodes, such as that of an operator."""

    def __init__(
        self, function: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any],
        name: str,
    ) -> None:  # fmt: skip
        leaves, self.structure = wf.tree.flatten(list(inputs))
        super().__init__(leaves, name)
        self.function, self.options = function, dict(options)

    def evaluate(self, graph: Graph, values: Sequence[Any]) -> Any:
        """See `Node`."""
        return self.function(*wf.tree.unflatten(self.structure, values), **self.options)


_NAMES = {"mul": "multiply", "sub": "subtract", "truediv": "divide", "neg": "negative"}


def apply(function: Callable[..., Any], *inputs: Any, name: str = "", **options: Any) -> Node:
    """A node of a function of tensors: `wf.graph.apply(wf.relu, x)`.

    >>> from weft.graph import Placeholder
    >>> apply(wf.relu, Placeholder(name="x"))
    relu(x)
    """
    known = getattr(function, "__name__", "function")
    return _Call(function, inputs, options, name or _NAMES.get(known, known))


NODES.append((Node, apply))


class _Update(Node):
    """An optimiser's update by a loss."""

    def __init__(self, inputs: Sequence[Any], optimizer: Any) -> None:
        super().__init__(inputs, f"{type(optimizer).__name__}.minimize")
        self.optimizer = optimizer

    def evaluate(self, graph: Graph, values: Sequence[Any]) -> Any:
        """See `Node`."""
        return self.optimizer.minimize(values[0])


# --- binding -------------------------------------------------------------------------------------


def bind_nodes(
    graph: Graph, leaves: Iterable[Any], feeds: Mapping[Any, Any]
) -> tuple[list[Any], Mapping[Any, Any]]:
    """Fetches and feeds with tensors of the graph for nodes, made for the types that are fed."""
    leaves = list(leaves)
    if not any(map(_is_node, [*leaves, *feeds])):
        return leaves, feeds
    fed = {key: _as_fed(key, value) for key, value in feeds.items() if type(key) is Placeholder}
    types = tuple((key, str(value.dtype), value.shape) for key, value in fed.items())
    with graph:
        tensors = graph.bound_nodes.get(types)
        if tensors is None:
            tensors = graph.bound_nodes[types] = {
                key: placeholder(value.dtype, value.shape, key.name) for key, value in fed.items()
            }
        bound = [_bound_tensor(graph, each, tensors) for each in leaves]
    given = {tensors[key] if key in fed else key: fed.get(key, feeds[key]) for key in feeds}
    return bound, given


def _as_fed(node: Placeholder, value: Any) -> wf.Tensor:
    """A value for a placeholder, in the dtype that the first one had."""
    given = value if isinstance(value, wf.Tensor) else wf.asarray(value)
    if node.dtype is None:
        node.dtype = given.dtype
    elif node.dtype.is_inexact or not given.dtype.is_inexact:
        given = given.astype(node.dtype)
    else:
        raise wf.DTypeError(
            "run",
            f"{node.name} is fed a value of another dtype than before",
            expected=f"{node.dtype.name}, as in the first run",
            got={node.name: given},
            fix="feed floats in the first run, too",
        )
    return given


def _is_node(value: Any) -> bool:
    """Whether a value is a node of this style: graph operations are virtual subclasses alone."""
    return Node in type(value).__mro__


def _bound_tensor(graph: Graph, fetched: Any, tensors: dict[Any, Any]) -> Any:
    """The tensor of a node, after those of all nodes before it; anything else is as it is."""
    waiting = [fetched] if _is_node(fetched) else []
    while waiting:
        node = waiting[-1]
        before = [each for each in node.input_nodes if _is_node(each) and each not in tensors]
        if node not in tensors and before:
            waiting += before
            continue
        waiting.pop()
        if node not in tensors:
            tensors[node] = _evaluated_node(graph, node, tensors)
    return tensors[fetched] if _is_node(fetched) else fetched


def _evaluated_node(graph: Graph, node: Node, tensors: Mapping[Any, Any]) -> Any:
    """The tensor of a node whose inputs have theirs."""
    if isinstance(node, Placeholder):
        raise wf.ArgumentError(
            "run",
            f"{node.name} is not fed",
            expected="a value for every placeholder that the fetches need",
            got={"placeholder": node.name},
            fix="session.run(y, feed_dict={x: value})",
        )
    values = [tensors[each] if _is_node(each) else each for each in node.input_nodes]
    with graph.names.scope(node.name) if isinstance(node, Operation) else nullcontext():
        return node.evaluate(graph, values)


# --- texts ---------------------------------------------------------------------------------------


def _expression(value: Any, depth: int = 8) -> str:
    """A node as the calls that make it; what is too deep is left out."""
    if not _is_node(value) or not value.input_nodes:
        return _short_name(value)
    inner = ", ".join(_expression(each, depth - 1) for each in value.input_nodes) if depth else "…"
    return f"{value.name}({inner})"


def _tree_text(value: Any, indent: str = "", depth: int = 8) -> str:
    """A node with its inputs on lines below it."""
    inputs = value.input_nodes if _is_node(value) and depth else []
    below = [_tree_text(each, indent + "  ", depth - 1) for each in inputs]
    return "\n".join([indent + _short_name(value), *below])


def _short_name(value: Any) -> str:
    if _is_node(value):
        return str(value.name)
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else " ".join(str(value).split())[:24]
