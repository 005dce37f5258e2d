"""Partitioning: from a graph over whole values to the graph of one device of a mesh.

One mesh axis is done after the other. What an axis leaves is an ordinary graph, with local types
and collectives over that axis, so that the next axis divides it further.

>>> import weft as wf
>>> from weft.ir.sharding import Split
>>> from weft.transforms.sharding.costs import Costs
>>> graph = wf.ir.trace(wf.sum, wf.spec("float32", (4, 3)))
>>> done = partition_graph(graph, {"data": (2, Costs())}, {"data": [Split(0)]}, {"data": [None]})
>>> done.graph.input_types, [transfer.collective for transfer in done.transfers]
((f32[2, 3],), ['all_reduce'])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.core.records import frozen
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.sharding import REPLICATED, Placement
from weft.ir.sizes import specialize
from weft.ir.verify import verify
from weft.ir.walking import Walk
from weft.ops.control_call import call
from weft.ops.sharding_mark import shard_mark
from weft.transforms.custom import custom
from weft.transforms.sharding import control as control
from weft.transforms.sharding.costs import Costs
from weft.transforms.sharding.emit import local_program
from weft.transforms.sharding.search import Along, Search
from weft.transforms.sharding.transfers import Transfer, transfers_in

Placements = Sequence[Placement | None]


@frozen(eq=False)
class Partitioned:
    """The program of one device, and how its inputs and outputs are placed along each mesh axis.

    transfers: the collectives in it. seconds: what the search estimates for each axis.
    """

    graph: Graph
    inputs: Mapping[str, tuple[Placement, ...]]
    outputs: Mapping[str, tuple[Placement, ...]]
    transfers: tuple[Transfer, ...]
    seconds: Mapping[str, float]
    values: Mapping[str, Sequence[tuple[str, str, Placement]]]
    """For each axis the values in order: name, type and placement."""

    def placements_of_input(self, place: int) -> dict[str, Placement]:
        """How an input is placed along each mesh axis."""
        return {name: placements[place] for name, placements in self.inputs.items()}

    def placements_of_output(self, place: int) -> dict[str, Placement]:
        """How an output is placed along each mesh axis."""
        return {name: placements[place] for name, placements in self.outputs.items()}


def partition_graph(
    graph: Graph,
    mesh: Mapping[str, tuple[int, Costs]],
    inputs: Mapping[str, Placements],
    outputs: Mapping[str, Placements],
) -> Partitioned:
    """Divide a graph among the devices of a mesh, given placements for each mesh axis.

    A placement that is None is chosen: of an input as its readers like it, of an output as it
    comes, never partial.
    """
    graph = _Inline(graph).run()
    placed: dict[str, tuple[Placement, ...]] = {}
    handed: dict[str, tuple[Placement, ...]] = {}
    seconds: dict[str, float] = {}
    values: dict[str, Sequence[tuple[str, str, Placement]]] = {}
    for name, (count, costs) in mesh.items():
        if count == 1:  # a part is the whole
            placed[name] = (REPLICATED,) * len(graph.inputs)
            handed[name] = (REPLICATED,) * len(graph.outputs)
            seconds[name], values[name] = 0.0, []
            continue
        search = Search(graph, Along(name, count, costs), inputs[name], outputs[name])
        placed[name] = tuple(search.placed[variable] for variable in graph.inputs)
        handed[name] = tuple(map(search.output_placement, range(len(graph.outputs))))
        seconds[name] = search.seconds
        values[name] = _placed_values(search)
        graph = local_program(search)
    graph = _WithoutMarks(graph).run()
    verify(graph)
    return Partitioned(graph, placed, handed, tuple(transfers_in(graph)), seconds, values)


def _placed_values(search: Search) -> list[tuple[str, str, Placement]]:
    rows = [(v.name or "input", str(v.type), search.placed[v]) for v in search.graph.inputs]
    made = [(node.primitive.name, result) for node in search.graph.nodes for result in node.results]
    return [*rows, *[(name, str(result.type), search.placed[result]) for name, result in made]]


class _WithoutMarks(Walk):
    """Marks, replaced by what they mark: all mesh axes have read them."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        """See `Walk`."""
        return node.operands if node.primitive is shard_mark else None


class _Inline(Walk):
    """Calls of graphs, replaced by what they call: a program is divided as one."""

    def visit(self, node: GraphNode) -> list[Atom] | None:
        """See `Walk`."""
        if node.primitive not in (call, custom):
            return None
        inner = specialize(node.params["graph"], [atom.type for atom in node.operands])
        return self.splice(inner, node.operands)
