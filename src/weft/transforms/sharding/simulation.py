"""The step of one device, event by event: how long it takes, and how much memory it needs.

Nodes run in order on the device. A collective begins when its operand is there and the link of its
mesh axis is free; it runs beside the work behind it until a node reads its result. Values are kept
until their last reader; inputs are kept throughout.

>>> import weft as wf
>>> from weft.transforms.sharding.costs import Costs
>>> graph = wf.ir.trace(lambda x: wf.exp(x) @ x, wf.spec("float32", (1000, 1000)))
>>> simulated = simulate_step(graph, {}, Costs())
>>> simulated.memory, simulated.seconds == simulated.computing
(12000000, True)
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.core.records import frozen
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Collective
from weft.ir.walking import graphs_of
from weft.transforms.sharding.costs import Costs, size_in_bytes
from weft.transforms.sharding.search import steps_of
from weft.transforms.sharding.strategies import whole_strategy
from weft.transforms.sharding.transfers import transfers_in


@frozen
class Event:
    """One operation in the timeline of a device: where it runs, from when to when."""

    place: str
    name: str
    start: float
    end: float


@frozen(eq=False)
class Simulated:
    """A simulated step: seconds, of which so many compute and so many send; the most bytes held."""

    seconds: float
    computing: float
    sending: float
    memory: int
    timeline: tuple[Event, ...]


def simulate_step(graph: Graph, links: Mapping[str, Costs], work: Costs) -> Simulated:
    """Run the program of one device in time: `links` are the mesh axes, `work` the device."""
    ready: dict[Atom, float] = {}
    free: dict[str, float] = {DEVICE: work.overhead}
    busy: dict[str, float] = {DEVICE: work.overhead}
    timeline = []
    for node in graph.nodes:
        place, seconds = _work_of(node, links, work)
        known = [ready.get(atom, 0.0) for atom in node.operands]
        start = max([free.get(place, 0.0), *known])
        end = start + seconds
        free[place], busy[place] = end, busy.get(place, 0.0) + seconds
        ready.update(dict.fromkeys(node.results, end))
        timeline.append(Event(place, node.primitive.name, start, end))
    computing = busy.pop(DEVICE, 0.0)
    last = max(free.values(), default=0.0)
    return Simulated(last, computing, sum(busy.values()), _most_bytes(graph), tuple(timeline))


DEVICE = "device"


def _work_of(node: GraphNode, links: Mapping[str, Costs], work: Costs) -> tuple[str, float]:
    """Where a node runs, and how long; collectives inside of loops keep the device waiting."""
    if isinstance(node.primitive.kind, Collective):
        alone = Graph((), (node,), ())
        moved = [links[each.mesh_axis].transfer(each.moved) for each in transfers_in(alone)]
        return (f"link {node.params['mesh_axis']}", sum(moved)) if moved else (DEVICE, 0.0)
    inner = [each for graph in graphs_of(node) for each in graph.nodes]
    if inner:
        return DEVICE, steps_of(node) * sum(_work_of(each, links, work)[1] for each in inner)
    return DEVICE, work.compute(node, whole_strategy(node), 1)


def _most_bytes(graph: Graph) -> int:
    """The most bytes of values that are held at once."""
    last: dict[Atom, int] = {}
    for place, node in enumerate(graph.nodes):
        last.update(dict.fromkeys(node.operands, place))
    kept = {*graph.inputs, *graph.outputs}
    held = most = sum(size_in_bytes(each.type) for each in graph.inputs)
    ending: dict[int, list[Atom]] = {}
    for atom, place in last.items():
        ending.setdefault(place, []).append(atom)
    for place, node in enumerate(graph.nodes):
        held += sum(size_in_bytes(result.type) for result in node.results)
        most = max(most, held)
        unread = [result for result in node.results if result not in last]
        for atom in (*ending.get(place, ()), *unread):
            if isinstance(atom, Variable) and atom not in kept:
                held -= size_in_bytes(atom.type)
    return most
