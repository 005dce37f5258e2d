"""Primitives that are applied again as they were before, to arrays of the same types.

What a function applies, and what the way back over it applies, depends on types and options alone.
Once a trace has found that out, the primitives are applied one after the other, without the checks
that led to them, with the same results and the same tape.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (2,)))
>>> known = sequence_of(graph)
>>> known(list(wf.tensor([0.0, 0.0]).numpy()[None]))[0].tolist()
[2.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.arrays import HostArray
from weft.core.errors import WeftError
from weft.core.records import field, frozen
from weft.core.types import TensorType
from weft.ir.dispatch import OBSERVERS, apply, evaluate
from weft.ir.eager import is_native
from weft.ir.eager_primitives import Compute, known_computation
from weft.ir.graph import Atom, Graph, GraphNode, Literal
from weft.ir.kinds import Collective, Control, Movement
from weft.ir.parts import as_part
from weft.ir.primitive import Primitive
from weft.ir.tape import Node, keep, record
from weft.ir.tensor import Tensor, grad_mode, traces, wrap
from weft.ir.tracing import trace
from weft.ir.walking import is_pure

LONGEST = 16
"""Primitives that are applied one after the other, at most."""


@frozen(eq=False)
class Application:
    """A primitive that is applied to values of the same types each time, by their places."""

    primitive: Primitive
    params: dict[str, Any]
    places: tuple[int, ...]
    has_derivative: bool
    known: list[Compute | None] = field(default_factory=list)
    """What computes it with less work, or None where nothing does. Empty at first."""
    hollow: list[tuple[Any, ...]] = field(default_factory=list)
    """What stands on the tape for operands and result that no derivative needs, or None for each
    that stays. Empty at first."""
    pulls: dict[tuple[bool, ...], KnownPull | None] = field(default_factory=dict)
    """What the way back applies, by the operands whose cotangents are asked for."""

    def __call__(self, given: Sequence[Tensor]) -> Tensor:
        """The result for tensors, with its place on the tape."""
        arrays = [x._value for x in given]
        result = wrap(self.compute(arrays))
        if self.has_derivative and grad_mode.enabled:
            for x in given:
                if x._node is not None:
                    self._record(given, arrays, result)
                    break
        if self.primitive.part is not None:
            as_part(result, given[0], (self.primitive.part, self.params))
        return result

    def compute(self, arrays: list[Any]) -> Any:
        """The array of the result."""
        known = self.known[0] if self.known else None
        if known is not None and is_native():
            made = known(arrays)
            if made is not None:
                return made[0]
        result = evaluate(self.primitive, arrays, self.params)._value
        if not self.known and arrays and all(type(array) is HostArray for array in arrays):
            self.known.append(known_computation(self.primitive, arrays, self.params))
        return result

    def _record(self, given: Sequence[Tensor], arrays: list[Any], result: Tensor) -> None:
        """What `weft.ir.tape.record` does; which values are kept is found out once."""
        out = result._value
        if not self.hollow:
            kept, kept_out = keep(self.primitive, tuple(arrays), out)
            pairs = zip((*kept, kept_out), (*arrays, out), strict=True)
            self.hollow.append(tuple([new if new is not old else None for new, old in pairs]))
        hollow = self.hollow[0]
        values = tuple([x if h is None else h for x, h in zip(arrays, hollow, strict=False)])
        parents = tuple([x._node for x in given])
        kept_out = out if hollow[-1] is None else hollow[-1]
        result._node = Node(self.primitive, self.params, values, parents, kept_out, self)


def apply_view(primitive: Primitive, x: Tensor, **params: Any) -> Tensor:
    """A primitive that shows elements of a tensor, applied as others are.

    Of an array of the host without gaps NumPy alone checks the parameters; what it refuses is
    explained by the primitive's own rule.
    """
    value, kind = x._value, primitive.kind
    is_plain = type(value) is HostArray and value.flags.c_contiguous
    if not is_plain or OBSERVERS or traces.keeper is not None:
        return apply(primitive, x, **params)
    assert isinstance(kind, Movement) and kind.view is not None
    try:
        shown = kind.view(value, **params)
    except ValueError:
        return apply(primitive, x, **params)
    result = wrap(shown)
    if x._node is not None and grad_mode.enabled:
        record(primitive, params, (x,), result)
    return as_part(result, x, (primitive.part, params))


@frozen(eq=False)
class Sequential:
    """Applications, to what is given, then constants, then results in order."""

    constants: tuple[Any, ...]
    applications: tuple[Application, ...]
    results: tuple[int, ...]

    def __call__(self, given: list[Any]) -> list[Any]:
        """The arrays of the results, for arrays."""
        values = [*given, *self.constants]
        for each in self.applications:
            values.append(each.compute([values[place] for place in each.places]))
        return [values[place] for place in self.results]


def sequence_of(graph: Graph) -> Sequential | None:
    """The nodes of a graph as applications; None where they are too many, or not plain."""
    is_short = len(graph.nodes) <= LONGEST
    if not is_short or not all(map(_is_replayed, graph.nodes)):
        return None
    places: dict[Any, int] = {variable: place for place, variable in enumerate(graph.inputs)}
    constants: list[Any] = []
    for atom in [*[a for node in graph.nodes for a in node.operands], *graph.outputs]:
        if isinstance(atom, Literal) and id(atom) not in places:
            places[id(atom)] = len(graph.inputs) + len(constants)
            constants.append(atom.value)

    def places_of(atoms: Sequence[Atom]) -> tuple[int, ...]:
        return tuple([places[id(a) if isinstance(a, Literal) else a] for a in atoms])

    applications = []
    for node in graph.nodes:
        is_inexact = node.results[0].type.dtype.is_inexact
        given = places_of(node.operands)
        applications.append(Application(node.primitive, node.params, given, is_inexact))
        places[node.results[0]] = len(places)
    return Sequential(tuple(constants), tuple(applications), places_of(graph.outputs))


def _is_replayed(node: GraphNode) -> bool:
    primitive = node.primitive
    is_plain = not primitive.multiple and not isinstance(primitive.kind, Collective | Control)
    return is_plain and is_pure(node)


def traced_sequence(
    function: Callable[..., Sequence[Tensor]], types: Sequence[TensorType]
) -> tuple[Sequential, Graph] | None:
    """What a function applies to tensors of these types, and its graph.

    None where that is too much, or cannot be told beforehand.
    """
    try:
        closure = trace(function, types)
    except WeftError:  # it looks at values
        return None
    found = None if closure.captured else sequence_of(closure.graph)
    return None if found is None else (found, closure.graph)


@frozen(eq=False)
class KnownPull:
    """The way back over an application: from the cotangent to those of operands asked for."""

    cotangent: tuple[Any, Any]
    """Its dtype and shape; a hook may have put another in its place."""
    sequence: Sequential
    reads: tuple[int, ...]
    """Which of the cotangent, the result and the operands are read."""
    backs: tuple[int | None, ...]
    """Which result of the sequence is the cotangent of each operand, or None for no cotangent."""

    def __call__(self, given: list[Any]) -> list[Any] | None:
        """The cotangents of the operands, for the arrays of cotangent, result and operands.

        None for what is no array of the host, or has another type than what was traced.
        """
        dtype, shape = self.cotangent
        if given[0].dtype != dtype or given[0].shape != shape:
            return None
        for place in self.reads:
            if type(given[place]) is not HostArray:
                return None
        found = self.sequence(given)
        return [None if place is None else found[place] for place in self.backs]


Pull = Callable[..., Sequence[Tensor | None]]
"""Of the cotangent, the result and the operands: the cotangents of the operands asked for."""


def known_pull(pull: Pull, types: Sequence[TensorType]) -> KnownPull | None:
    """What the way back applies to a cotangent, a result and operands of these types.

    None where that is too much, or depends on values.
    """
    places: list[int | None] = []

    def backs(*given: Tensor) -> list[Tensor]:
        found = pull(*given)
        known = [back for back in found if back is not None]
        counted = iter(range(len(known)))
        places[:] = [None if back is None else next(counted) for back in found]
        return known

    traced = traced_sequence(backs, types)
    if traced is None:
        return None
    sequence, graph = traced
    read = {atom for node in graph.nodes for atom in node.operands} | {*graph.outputs}
    reads = [place for place, variable in enumerate(graph.inputs) if variable in read]
    cotangent = types[0].dtype.numpy, types[0].shape
    return KnownPull(cotangent, sequence, tuple(reads), tuple(places))
