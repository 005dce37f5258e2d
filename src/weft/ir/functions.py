"""From a Python function over trees of tensors to its graph, and to its types.

>>> import weft as wf
>>> wf.ir.trace(wf.tanh, wf.spec("float32", (2,))).output_types
(f32[2],)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core import trees
from weft.core.dtypes import from_numpy, result_type
from weft.core.errors import ArgumentTypeError, DTypeError, TraceError
from weft.core.guards import Guards
from weft.core.records import frozen
from weft.core.shapes import Unifier
from weft.core.trees import TreeStructure
from weft.core.types import TensorType
from weft.ir.abstract import AbstractTrace
from weft.ir.dispatch import active_trace
from weft.ir.graph import Graph
from weft.ir.lifting import Lifting, lift
from weft.ir.sizes import resolve_graph, resolve_type
from weft.ir.tensor import Tensor, Trace, Traced, wrap
from weft.ir.tracing import Closure, GraphTrace, trace

__all__ = ["infer", "trace_function", "trace_whole"]


def trace_function(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """The graph of f for arguments, or types, like these; closed-over tensors become constants.

    Arguments are trees. Tensors, arrays, types and positional floats in them become inputs, in
    order; everything else, such as an integer for an axis, is what it is. Symbolic dimensions
    that must be equal are made so throughout the graph.

    >>> import weft as wf
    >>> trace_function(lambda x: x + wf.zeros(3), wf.spec("float32", ("batch",))).input_types
    (f32[3],)
    """
    return _trace_call(_Call.from_arguments(f, args, kwargs), whole=False)


def trace_whole(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """The graph of f with everything that it computes, also what no result needs.

    >>> import weft as wf
    >>> len(trace_whole(lambda x: (wf.sin(x), wf.cos(x))[0], wf.spec("float32", ())).nodes)
    2
    """
    return _trace_call(_Call.from_arguments(f, args, kwargs), whole=True)


def _trace_call(call: _Call, whole: bool) -> Graph:
    def flat(*tensors: Tensor) -> list[Tensor]:
        return [_tensor("trace", leaf) for leaf in trees.leaves(call.run(tensors))]

    with Lifting(), Guards({}), Unifier() as unifier:
        types = [_type("trace", leaf) for leaf in call.operands()]
        closure = trace(flat, types, whole=whole, recorder=_FunctionTrace())
        _check_constants(closure)
        graph = closure.closed_graph()
    return resolve_graph(graph, unifier.resolve) if unifier.bindings else graph


def _check_constants(closure: Closure) -> None:
    """Refuse what cannot become a constant: a tensor that has no value yet."""
    for tensor in closure.captured:
        if isinstance(tensor._value, Traced):
            raise TraceError(
                "trace",
                f"the function closes over a tensor traced by {tensor._value.trace.name}",
                expected="concrete tensors around the function, which become constants",
                got={"x": tensor},
                fix="pass the tensor as an argument: wf.ir.trace(f, x)",
            )


def infer(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The types of f's results for arguments of these types, without computing anything.

    Symbolic dimensions that must be equal are unified; a contradiction names both places.

    >>> import weft as wf
    >>> infer(lambda x, w: x @ w, wf.spec("float32", ("batch", "n")), wf.spec("float32", (784, 10)))
    f32[batch, 10]
    """
    call = _Call.from_arguments(f, args, kwargs)
    recorder = _TypeTrace()
    with Lifting(), active_trace(recorder), Guards({}), Unifier() as unifier:
        inputs = [recorder.tensor(_type("infer", leaf)) for leaf in call.operands()]
        result = call.run(inputs)
        sizes = unifier.resolve
        return trees.map_tree(lambda leaf: resolve_type(_type("infer", leaf), sizes), result)


class _WithoutWrites(Trace):
    """Nothing is run, so tensors that the function writes to are as before when the trace ends."""

    adopts = True

    def adopt(self, handle: Tensor) -> None:
        """See `Trace`. What the trace has made itself is nobody else's."""
        value = handle._value
        if not isinstance(value, Traced) or value.trace is not self:
            lift(handle)


class _FunctionTrace(_WithoutWrites, GraphTrace):
    """Records the graph of a function."""


class _TypeTrace(_WithoutWrites, AbstractTrace):
    """Computes the types of a function's results."""


@frozen
class _Call:
    """A call of f, of which some leaves of the arguments are operands."""

    f: Callable[..., Any]
    leaves: list[Any]
    structure: TreeStructure
    places: list[int]

    @classmethod
    def from_arguments(
        cls, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Call:
        leaves, structure = trees.flatten((args, kwargs))
        positional = len(trees.leaves(args))
        places = [
            place
            for place, leaf in enumerate(leaves)
            if _is_array(leaf) or (place < positional and isinstance(leaf, (float, complex)))
        ]
        return cls(f, leaves, structure, places)

    def operands(self) -> list[Any]:
        return [self.leaves[place] for place in self.places]

    def run(self, tensors: tuple[Tensor, ...] | list[Tensor]) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = trees.unflatten(self.structure, leaves)
        return self.f(*args, **kwargs)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, TensorType)) or hasattr(leaf, "__array__")


def _type(op: str, leaf: Any) -> TensorType:
    return leaf if isinstance(leaf, TensorType) else _tensor(op, leaf).type


def _tensor(op: str, leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    if type(leaf) in (bool, int, float, complex):
        return wrap(np.array(leaf, result_type(op, [leaf]).numpy))
    if not hasattr(leaf, "__array__"):
        raise ArgumentTypeError(
            op,
            "this is not a tensor",
            expected="tensors, NumPy arrays or numbers as results",
            got={"result": leaf},
            fix="return only tensors, or trees of them",
        )
    array = np.asarray(leaf)
    try:
        return wrap(array.astype(from_numpy(array.dtype).numpy, copy=False))
    except KeyError:
        raise DTypeError(
            op,
            "no tensor can hold these elements",
            expected="numbers or booleans",
            got={"array": array},
            fix='convert the array first, for example array.astype("float32")',
        ) from None
