"""Repetition: what a function does to traced tensors, recorded once and then copied.

An optimiser does the same to each parameter. Tracing it again for each costs as much as tracing a
network; copying the nodes of the first one of a type costs a tenth of it, and gives the same graph.

>>> import weft as wf
>>> def scaled(*tensors):
...     repetition = Repetition()
...     return [repetition(None, lambda: [x * 2 + 1], [x])[0] for x in tensors]
>>> graph = wf.ir.trace(scaled, *[wf.spec("float32", (3,))] * 3)
>>> [node.primitive.name for node in graph.nodes]
['multiply', 'add', 'multiply', 'add', 'multiply', 'add']
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from weft.core.records import frozen
from weft.ir.graph import Atom, GraphNode, Variable
from weft.ir.kinds import Random
from weft.ir.tensor import Tensor, grad_mode, traces
from weft.ir.tracing import GraphTrace, Staged
from weft.ir.walking import is_pure


@frozen
class _Recipe:
    """The nodes that depend on the tensors a function was given, and what it returned."""

    nodes: tuple[GraphNode, ...]
    given: tuple[Variable, ...]
    returned: tuple[Atom, ...]


class Repetition:
    """Calls functions of tensors, each combination of types and of a key once."""

    def __init__(self) -> None:
        self._recipes: dict[Hashable, _Recipe] = {}

    def __call__(
        self, key: Hashable, f: Callable[[], Sequence[Tensor]], tensors: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """What f returns, which is pure, and a function of these tensors and of what the key names.

        Where f was called with such a key before, for other tensors of these types, it is not
        called: its nodes are recorded again for these.
        """
        trace = _only_trace(tensors)
        if trace is None:
            return f()
        given = tuple([tensor._value.variable for tensor in tensors])
        place = (key, tuple([variable.type for variable in given]))
        recipe = self._recipes.get(place)
        if recipe is not None:
            return _copy_nodes(recipe, given, trace)
        start = len(trace.nodes)
        results = f()
        recipe = _recipe(trace, trace.nodes[start:], given, results)
        if recipe is not None:
            self._recipes[place] = recipe
        return results


def _only_trace(tensors: Sequence[Tensor]) -> GraphTrace | None:
    """The trace that all tensors are in, if it is the only one and nothing else looks on."""
    trace = traces.recording[0] if len(traces.recording) == 1 else None
    if not isinstance(trace, GraphTrace) or traces.keeper is not None or grad_mode.enabled:
        return None
    values = [tensor._value for tensor in tensors]
    is_alone = all(isinstance(value, Staged) and value.trace is trace for value in values)
    return trace if is_alone and len(set(map(id, values))) == len(values) else None


def _recipe(
    trace: GraphTrace,
    nodes: Sequence[GraphNode],
    given: tuple[Variable, ...],
    results: Sequence[Tensor],
) -> _Recipe | None:
    """The part of some nodes that depends on given variables; None where it may not be copied."""
    if any(isinstance(node.primitive.kind, Random) or not is_pure(node) for node in nodes):
        return None
    if not all(isinstance(x._value, Staged) and x._value.trace is trace for x in results):
        return None
    known: set[Atom] = set(given)
    dependent: list[GraphNode] = []
    for node in nodes:
        if not known.isdisjoint(node.operands):
            known.update(node.results)
            dependent.append(node)
    return _Recipe(tuple(dependent), given, tuple([trace.atom(x) for x in results]))


def _copy_nodes(recipe: _Recipe, given: Sequence[Variable], trace: GraphTrace) -> list[Tensor]:
    """The results of a recipe for other variables, with its nodes recorded for them."""
    renamed: dict[Atom, Atom] = dict(zip(recipe.given, given, strict=True))
    for node in recipe.nodes:
        operands = tuple([renamed.get(atom, atom) for atom in node.operands])
        results = tuple([Variable(variable.type) for variable in node.results])
        renamed.update(zip(node.results, results, strict=True))
        trace.nodes.append(GraphNode(node.primitive, operands, node.params, results, node.location))
    returned = [renamed.get(atom, atom) for atom in recipe.returned]
    return [trace.tensor(atom) for atom in returned if isinstance(atom, Variable)]
