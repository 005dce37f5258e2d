"""Where values of a graph are: what `transfer` says, and beside their operands.

A value may also be on any device: what is made of a shape alone, and single numbers of the host.

>>> import weft as wf
>>> from weft.core.devices import CPU
>>> graph = wf.ir.trace(lambda x: [x + 1, wf.arange(3)], wf.spec("float32", (3,)))
>>> output_places(graph, [CPU])
(device('cpu'), None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.arrays import different_devices
from weft.core.devices import CPU, Device
from weft.ir.graph import Atom, Graph, Variable
from weft.ir.primitive import Primitive

Place = Device | None
"""A device; None for what may be on any."""
TRANSFER = "transfer"


def result_places(
    primitive: Primitive,
    params: Mapping[str, Any],
    operands: Sequence[Any],
    places: Sequence[Place],
    count: int,
) -> tuple[Place, ...]:
    """The places of the results of a node, of which there are `count`."""
    if primitive.name == TRANSFER:
        return (Device(params["device"]),)
    if primitive.name == "call":
        return output_places(params["graph"], places)
    return (common_place(primitive.name, operands, places),) * count


def common_place(op: str, operands: Sequence[Any], places: Sequence[Place]) -> Place:
    """The one device of some operands, an error where there are several; None where any will do.

    Operands are tensors or variables. A single number of the host fits beside any.
    """
    found = {place for place in places if place is not None}
    if len(found) > 1:
        places = [
            None if place is CPU and not operand.type.shape else place
            for operand, place in zip(operands, places, strict=True)
        ]
        found = {place for place in places if place is not None}
    if len(found) > 1:
        raise different_devices(op, operands, places)
    return found.pop() if found else None


def output_places(graph: Graph, places: Sequence[Place]) -> tuple[Place, ...]:
    """The places of a graph's outputs, given those of its inputs."""
    known: dict[Variable, Place] = dict(zip(graph.inputs, places, strict=True))

    def place(atom: Atom) -> Place:
        return known[atom] if isinstance(atom, Variable) else None

    for node in graph.nodes:
        given = [*map(place, node.operands)]
        made = result_places(node.primitive, node.params, node.operands, given, len(node.results))
        known.update(zip(node.results, made, strict=True))
    return tuple(map(place, graph.outputs))
