"""What the page is told: the groups, operations, edges and kernels of a picture, as plain data.

>>> import weft as wf
>>> from weft.tools.picture import Picture
>>> from weft.tools.views import view_data
>>> view = view_data("as written", Picture(wf.ir.trace(wf.sin, wf.spec("float32", ()))), {})
>>> [node["title"] for node in view["nodes"]], view["edges"]
(['a', 'sin', 'output 0'], [(0, 1, 0), (1, 2, 0)])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.tools.picture import PHASES, Item, Part, Picture, place_text

__all__ = ["memory_data", "numbered_places", "view_data"]

LARGEST = 10
"""How many of the values that live at the peak are listed."""


def view_data(
    title: str,
    picture: Picture,
    places: dict[Any, int],
    kernels: Sequence[Any] = (),
    seconds: Sequence[float] = (),
) -> dict[str, Any]:
    """One tab of the page; places are numbered as they are met."""
    groups = _Groups()
    phases = {item.phase for item in picture.items}
    for phase in PHASES:  # in this order from left to right
        if phase in phases:
            groups.number(phase, ())
    nodes = [_node(item, groups, places) for item in picture.items]
    count = len(picture.graph.nodes)
    described = [
        _kernel(number, kernel, nodes, groups, seconds[number] if seconds else None)
        for number, kernel in enumerate(kernels)
    ]
    _lend_phases(described)
    return {
        "title": title,
        "groups": groups.found,
        "nodes": nodes,
        "edges": picture.edges,
        "kernels": described,
        "notes": f"{count} operations" if count != 1 else "1 operation",
    }


class _Groups:
    """Groups by phase and path, numbered so that each comes after the one that it is in."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.known: dict[tuple[str, tuple[str, ...]], int] = {}

    def number(self, phase: str, path: Sequence[Part]) -> int:
        """The number of a group, which is made where it is new."""
        key = phase, tuple(f"{part.kind} {part.key}" for part in path)
        if key not in self.known:
            parent = self.number(phase, path[:-1]) if path else -1
            last = path[-1] if path else Part("phase", phase, phase)
            self.known[key] = len(self.found)
            self.found.append(
                {"name": last.name, "kind": last.kind, "parent": parent, "phase": phase}
            )
        return self.known[key]


def _node(item: Item, groups: _Groups, places: dict[Any, int]) -> dict[str, Any]:
    place = -1 if item.location is None else places.setdefault(item.location, len(places))
    return {
        "title": item.title,
        "kind": item.kind,
        "small": item.small,
        "text": item.text or item.label,
        "values": item.values,
        "phase": item.phase,
        "group": groups.number(item.phase, item.path),
        "place": place,
        "kernel": item.kernel,
    }


def _kernel(
    number: int,
    kernel: Any,
    nodes: Sequence[dict[str, Any]],
    groups: _Groups,
    seconds: float | None,
) -> dict[str, Any]:
    inside = [node for node in nodes if node["kernel"] == number]
    group = inside[0]["group"] if inside else -1
    chain = []
    parent = groups.found[group]["parent"] if inside else -1
    while parent >= 0 and groups.found[parent]["parent"] >= 0:
        chain.append(groups.found[parent]["name"])
        parent = groups.found[parent]["parent"]
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "text": str(kernel),
        "fused": " + ".join(dict.fromkeys(kernel.primitives)),
        "module": "/".join(reversed(chain)),
        "phase": inside[0]["phase"] if inside else "",
        "group": group,
        "seconds": seconds,
        "bytes": kernel.read + kernel.written,
        "flops": kernel.flops,
    }


def _lend_phases(kernels: list[dict[str, Any]]) -> None:
    """Give launches that only prepare operands, such as packing, the phase of the next launch."""
    following = PHASES[0]
    for kernel in reversed(kernels):
        following = kernel["phase"] = kernel["phase"] or following


def numbered_places(places: dict[Any, int]) -> list[tuple[str, str]]:
    """Where each place is, and the line there."""
    return [(place_text(place), place.source()) for place in places]


def memory_data(memory: Any) -> dict[str, Any]:
    """The data of the chart of memory."""
    return {
        "peak": memory.peak,
        "inputs": memory.inputs,
        "outputs": memory.outputs,
        "calls": memory.calls,
        "timeline": memory.timeline,
        "largest": [
            {
                "name": value.name,
                "type": value.type,
                "bytes": value.bytes,
                "where": "" if value.at is None else _where(value.at),
            }
            for value in memory.largest[:LARGEST]
        ],
    }


def _where(location: Any) -> str:
    place = place_text(location).partition(", in ")[0]
    return " · ".join(filter(None, [location.module, place]))
