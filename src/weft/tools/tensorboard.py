"""A program in TensorBoard's graph tab: the same picture, as an event file.

Phases and modules are name scopes, which TensorBoard collapses; the phase is the device, by which
it can colour.

>>> import tempfile
>>> import weft as wf
>>> graph = wf.ir.trace(wf.sin, wf.spec("float32", (3,)))
>>> wf.tools.write_graph_events(graph, tempfile.mkdtemp()).name.split(".")[2]
'tfevents'
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.tools.picture import Picture, place_text
from weft.tools.show import explained_or_graph, recorded_picture
from weft.train.events import EventWriter, GraphEntry

__all__ = ["graph_entries", "write_graph_events"]


def write_graph_events(program: Any, folder: str | os.PathLike[str]) -> Path:
    """Write a graph, or what `step.explain(*args)` returns, as TensorBoard events; the file."""
    explained = explained_or_graph("tools.write_graph_events", program, {})
    with EventWriter(folder) as writer:
        writer.graph(graph_entries(recorded_picture(explained)))
        return writer.path


def graph_entries(picture: Picture) -> Iterator[GraphEntry]:
    """The nodes of a picture as TensorBoard takes them."""
    names: list[str] = []
    taken: dict[str, int] = {}
    for item in picture.items:
        scopes = [item.phase, *[part.name for part in item.path], item.title]
        name = "/".join(map(_word, scopes))
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name}_{taken[name] - 1}")
    inputs: dict[int, list[str]] = {}
    for source, target, value in picture.edges:
        ending = f":{value}" if value else ""
        inputs.setdefault(target, []).append(names[source] + ending)
    for number, item in enumerate(picture.items):
        place = place_text(item.location)
        where = {"line": place} if place else {}
        yield GraphEntry(
            names[number],
            "Placeholder" if item.kind == "input" else item.title,
            inputs.get(number, []),
            item.phase,
            {"text": item.text, **where},
            [_sizes(kind) for _, kind in item.values],
        )


def _sizes(kind: str) -> list[int]:
    """The sizes in a type such as f32[3, n]; -1 for a symbol."""
    inside = kind.partition("[")[2].rstrip("]")
    parts = [part.strip() for part in inside.split(",")] if inside else []
    return [int(part) if part.isdigit() else -1 for part in parts]


def _word(text: str) -> str:
    """A name that TensorFlow allows: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_") or "_"
