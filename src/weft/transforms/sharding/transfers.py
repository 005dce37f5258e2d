"""What the program of one device sends: its collectives, read from its graph.

>>> import weft as wf
>>> f = wf.distributed.partition(wf.sum, wf.distributed.Mesh(data=2), [("data", None)])
>>> graph = f.graph(wf.ones((4, 3)))
>>> [(each.collective, each.source, each.moved) for each in transfers_in(graph)]
[('all_reduce', Partial(combine='add'), 4.0)]
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.core.locations import Location
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.kinds import Collective
from weft.ir.sharding import REPLICATED, SUM, Partial, Placement, Split
from weft.ir.walking import graphs_of
from weft.ops.collectives import REDUCERS, exchange_parts, gather_shards, scatter_sum
from weft.transforms.sharding.costs import size_in_bytes
from weft.transforms.sharding.search import steps_of


@frozen
class Transfer:
    """One collective in the program of a device.

    value: the operation that made what is sent, or which input it is. kind: its local type.
    moved: the bytes that each device sends in it. times: how often it runs, if that is known.
    """

    mesh_axis: str
    value: str
    kind: TensorType
    source: Placement
    target: Placement
    collective: str
    moved: float
    times: int
    location: Location | None


def transfers_in(graph: Graph, times: int = 1) -> Iterator[Transfer]:
    """The collectives of a program, in order, with those inside of loops."""
    makers: dict[Atom, str] = {each: f"input {i}" for i, each in enumerate(graph.inputs)}
    for node in graph.nodes:
        makers.update(dict.fromkeys(node.results, node.primitive.name))
    for node in graph.nodes:
        for inner in graphs_of(node):
            yield from transfers_in(inner, times * steps_of(node))
        if isinstance(node.primitive.kind, Collective) and node.operands:
            yield _transfer(node, makers.get(node.operands[0], "value"), times)


def _transfer(node: GraphNode, value: str, times: int) -> Transfer:
    params, kind = node.params, node.operands[0].type
    count, sent = params["size"], size_in_bytes(kind)
    share = (count - 1) / count * sent
    source: Placement
    target: Placement
    source, target, name, moved = REPLICATED, REPLICATED, node.primitive.name, share
    if node.primitive is gather_shards:
        source, moved = Split(params["axis"]), (count - 1.0) * sent
    elif node.primitive is scatter_sum:
        source, target = SUM, Split(params["axis"])
    elif node.primitive is exchange_parts:
        source, target = Split(params["concat_axis"]), Split(params["split_axis"])
    else:
        for combine, primitive in REDUCERS.items():
            if node.primitive is primitive:
                source, name, moved = Partial(combine), "all_reduce", 2 * share
    return Transfer(
        params["mesh_axis"], value, kind, source, target, name, moved, times, node.location
    )
