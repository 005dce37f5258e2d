"""The tape: what was computed from what, for reverse mode.

Each recorded operation is a `Node` that holds its operands' values and the nodes that made them.
Nodes are numbered as they are made, so descending numbers are a valid order for going back.
A `Leaf` is where a derivative is asked for.

>>> from weft.ir.tape import Leaf
>>> Leaf().parents
()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

from weft.core.arrays import is_concrete
from weft.core.errors import GradientError
from weft.core.types import TensorType
from weft.core.unchanged import ChangeCount
from weft.ir.derivatives import Constant, Every, Joint, Linear, Tangent
from weft.ir.primitive import Primitive
from weft.ir.tensor import Tensor, Trace, Traced, about_to_write, grad_mode, wrap

Hook = Callable[[Tensor], Tensor | None]
_numbers = count(1)
_next_number = _numbers.__next__
LARGE = 1 << 16
"""Bytes from which a value that no derivative needs is not kept."""
NO_PARAMS: dict[str, Any] = {}


class Node:
    """One recorded operation: operands' values, the nodes they came from, and the result."""

    __slots__ = ("hooks", "known", "number", "out", "params", "parents", "primitive", "values")

    def __init__(
        self,
        primitive: Primitive,
        params: dict[str, Any],
        values: tuple[Any, ...] | None,
        parents: tuple[Any, ...],
        out: Any,
        known: Any = None,
    ) -> None:
        self.primitive = primitive
        self.params = params
        self.values = values
        self.parents = parents
        self.out = out
        self.known = known
        """The application that it was, if that was remembered; see applications.py."""
        self.number = _next_number()
        self.hooks: list[Hook] | None = None


class Projection:
    """One of several results of a node."""

    __slots__ = ("hooks", "index", "number", "parents")

    def __init__(self, node: Node, index: int) -> None:
        self.parents = (node,)
        self.index = index
        self.number = _next_number()
        self.hooks: list[Hook] | None = None


LEAF_HOOKS = ChangeCount()
"""How often hooks were put on leaves, or taken off: a compiled step runs them, too."""


class Leaf:
    """Where a derivative is asked for: a tensor with `requires_grad`, or an argument of `grad`.

    `source` is the node behind an argument that itself depends on an outer derivative's argument,
    `generation` how many derivatives, one after another, that argument was made by.
    """

    __slots__ = ("generation", "handle", "hooks", "number", "parents")

    def __init__(self, handle: Tensor | None = None, source: Any = None) -> None:
        self.generation = 0
        self.handle = None if handle is None else weakref.ref(handle)
        self.parents = () if source is None else (source,)
        self.number = _next_number()
        self.hooks: list[Hook] | None = None


def node_key(node: Any) -> Any:
    """What programs depend on of a tensor's place on the tape: whether there is one, and hooks."""
    if node is None or not LEAF_HOOKS.count:
        return node is None
    return (*node.hooks,) if type(node) is Leaf and node.hooks else False


class HollowTrace(Trace):
    """Stands behind values that were not kept: they have a type and nothing else."""

    name = "the tape, which did not keep its value"

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        if primitive.multiple:
            return tuple(hollow_tensor(each) for each in types)
        return hollow_tensor(types)


class Hollow(Traced):
    """A value of which only the type was kept."""

    __slots__ = ()


_HOLLOW_TRACE = HollowTrace()


def hollow_tensor(kind: TensorType) -> Tensor:
    """A tensor that has a type and no value."""
    value = Hollow()
    value.trace = _HOLLOW_TRACE
    value.type = kind
    return wrap(value)


def record(
    primitive: Primitive,
    params: dict[str, Any],
    operands: tuple[Tensor, ...],
    result: Any,
) -> None:
    """Attach the node of an operation to its result, or to each of its results."""
    parents = tuple(operand._node for operand in operands)
    values = tuple(operand._value for operand in operands)
    if primitive.multiple:
        out = tuple(each._value for each in result)
        node = Node(primitive, params, values, parents, out)
        for index, each in enumerate(result):
            if each.dtype.is_inexact:
                each._node = Projection(node, index)
    else:
        out = result._value
        values_and_out = keep(primitive, values, out)
        result._node = Node(primitive, params, values_and_out[0], parents, values_and_out[1])


def keep(primitive: Primitive, values: tuple[Any, ...], out: Any) -> tuple[tuple[Any, ...], Any]:
    """Operands and result, with the large ones that no derivative needs made hollow.

    A linear operand's transpose needs the other operands, an additive one's only the constant ones.
    """
    if not any(_is_large(value) for value in (out, *values)):
        return values, out
    derivatives = primitive.derivatives
    if isinstance(derivatives, Joint) or not isinstance(derivatives, (Every, tuple, list)):
        return values, out
    kinds = [primitive.derivative(index) for index in range(len(values))]
    if any(isinstance(kind, Tangent) for kind in kinds):
        return values, out
    linear = [isinstance(kind, Linear) for kind in kinds]
    needed = [
        isinstance(kind, Constant) or sum(linear) > linear[index]
        for index, kind in enumerate(kinds)
    ]
    pairs = zip(values, needed, strict=True)
    return tuple(
        value if need else _without_large_value(value) for value, need in pairs
    ), _without_large_value(out)


def _is_large(value: Any) -> bool:
    return is_concrete(value) and value.nbytes >= LARGE


def _without_large_value(value: Any) -> Any:
    return hollow_tensor(wrap(value).type)._value if _is_large(value) else value


def is_own_leaf(tensor: Tensor) -> bool:
    """Whether gradients accumulate in this handle; other handles on its value share the node."""
    node = tensor._node
    return type(node) is Leaf and node.handle is not None and node.handle() is tensor


def rebind(tensor: Tensor, result: Tensor, op: str) -> Tensor:
    """Make a handle stand for a new value: what writing to a tensor means.

    A leaf that requires a gradient may be rebound only under `no_grad`, and stays a leaf. An
    argument inside `grad` is the function's own: it may be written to like any other tensor.
    """
    leaf = is_own_leaf(tensor)
    if leaf and grad_mode.enabled:
        raise GradientError(
            op,
            "a leaf that requires a gradient was written to",
            expected="updates of leaves inside wf.no_grad()",
            got={"x": tensor},
            fix="indent the line that writes under: with wf.no_grad():",
        )
    about_to_write(tensor)
    tensor._value = result._value
    if leaf and hasattr(result._value, "stopped"):
        result._value.stopped = False  # a leaf has a derivative, whatever was written to it
    if not leaf:
        tensor._node = result._node if grad_mode.enabled else None
    return tensor
