"""A picture of a program: one HTML page that needs nothing else, an SVG file, or one for Graphviz.

The page shows the graph as it was recorded, after the passes, and cut into kernels, collapsed by
module: what is clicked opens. Forward, backward and update have their own colours, memory is drawn
over time, and kernels are listed by the time they took, where they were measured.

>>> import tempfile, pathlib
>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: wf.softmax(x * 2), wf.spec("float32", (4, 8)))
>>> path = wf.tools.show(graph, pathlib.Path(tempfile.mkdtemp()) / "softmax.html")
>>> path.read_text(encoding="utf-8").startswith("<!doctype html>")
True
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import weft as wf
from weft.files import write_text
from weft.tools.dot import dot_text
from weft.tools.drawing import svg_text
from weft.tools.picture import Kernel, Picture, module_classes, nested_graphs
from weft.tools.profile import Profile
from weft.tools.views import memory_data, numbered_places, view_data

__all__ = ["show"]

NESTED = 16
"""How many of the graphs inside of nodes get a tab of their own."""
ENDINGS = (".html", ".svg", ".dot", ".gv")


def show(
    program: Any,
    path: str | os.PathLike[str],
    *,
    profile: Profile | None = None,
    model: Any = None,
    **sizes: int,
) -> Path:
    """Write a picture of a graph, or of what `step.explain(*args)` returns; its path.

    The file's ending says what is written: .html, .svg, or .dot for Graphviz. `profile`, of calls
    of the same program, tells how long each kernel took; with `model`, the network that it calls,
    layers are shown with their classes. A graph whose types hold symbols is compiled, and shown as
    kernels, if their sizes are given.

    >>> import os, tempfile, weft as wf
    >>> f = wf.jit(lambda x: wf.exp(x).sum())
    >>> path = os.path.join(tempfile.mkdtemp(), "f.html")
    >>> show(f.explain(wf.ones(8)), path).name
    'f.html'
    """
    target = Path(path)
    explained = explained_or_graph("tools.show", program, sizes)
    if target.suffix.lower() not in ENDINGS:
        raise wf.ArgumentError(
            "tools.show",
            f"files ending in {target.suffix!r} are not written",
            expected=f"one of {', '.join(ENDINGS)}",
            got={"path": str(target)},
            fix=f'wf.tools.show(program, "{target.stem or "step"}.html")',
        )
    classes = {} if model is None else module_classes(model)
    write_text("tools.show", target, _render_file(explained, target, profile, classes))
    return target


def _render_file(
    program: Any, target: Path, profile: Profile | None, classes: Mapping[str, str]
) -> str:
    if target.suffix.lower() == ".html":
        return _page(_page_data(program, profile, classes), target.stem)
    picture = recorded_picture(program, classes)
    if target.suffix.lower() == ".svg":
        return svg_text(picture, target.stem)
    return dot_text(picture, target.stem)


def explained_or_graph(op: str, program: Any, sizes: Mapping[str, int]) -> Any:
    """An explanation of the program where it can be compiled; else its graph."""
    if hasattr(program, "kernels"):
        return program
    if not isinstance(program, wf.ir.Graph):
        raise wf.ArgumentTypeError(
            op,
            "this is neither a graph nor an explanation",
            expected="a graph, or what step.explain(*args) returns",
            got={"program": program},
            fix='wf.tools.show(step.explain(*args), "step.html")',
        )
    is_open = any(not isinstance(d, int) for kind in program.input_types for d in kind.shape)
    return program if is_open and not sizes else wf.explain(program, **sizes)


def recorded_picture(program: Any, classes: Mapping[str, str] | None = None) -> Picture:
    """The picture of a program as it was recorded."""
    if isinstance(program, wf.ir.Graph):
        return Picture(program, classes=classes)
    inputs, outputs = program.names
    return Picture(program.graph, (), inputs, outputs, classes)


def _page_data(program: Any, profile: Profile | None, classes: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the page shows."""
    places: dict[Any, int] = {}
    views = list(_views(program, profile, places, classes))
    return {
        "views": views,
        "places": numbered_places(places),
        "memory": None if isinstance(program, wf.ir.Graph) else memory_data(program.memory),
    }


def _views(
    program: Any, profile: Profile | None, places: dict[Any, int], classes: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The tabs of the page, each with its data."""
    recorded = view_data("as written", recorded_picture(program, classes), places)
    graph = program if isinstance(program, wf.ir.Graph) else program.optimized
    if isinstance(program, wf.ir.Graph):
        yield recorded
    else:
        kernels = [Kernel(k.name, k.kind, k.nodes, str(k)) for k in program.kernels]
        inputs, outputs = program.names
        fused = Picture(program.optimized, kernels, inputs, outputs, classes)
        optimized = Picture(program.optimized, (), inputs, outputs, classes)
        yield recorded
        yield {**view_data("after the passes", optimized, places), "notes": _passes(program)}
        seconds = [] if profile is None else measured_times(program, profile)
        shown = view_data("kernels", fused, places, program.kernels, seconds)
        yield {**shown, "notes": _costs(program)}
    for title, each in list(nested_graphs(graph))[:NESTED]:
        yield view_data(title, Picture(each, classes=classes), places)


def _passes(program: Any) -> str:
    changed = [str(each) for each in program.passes if each.rewrites]
    counts = f"{len(program.optimized.nodes)} operations after the passes"
    return "\n".join([counts, "", "what the passes did", *(changed or ["nothing"])])


def _costs(program: Any) -> str:
    memory = str(program.memory).partition("\nthe largest values")[0].partition("\nlive bytes")[0]
    return "\n".join([str(program).partition("\n\n")[0], "", memory])


def measured_times(program: Any, profile: Profile) -> list[float]:
    """The mean time of each kernel of a program in the runs of it that were profiled."""
    runs: dict[int, list[Any]] = {}
    for call in profile.calls:
        runs.setdefault(call.run, []).append(call)
    names = [kernel.name for kernel in program.kernels]
    fitting = [r for r in runs.values() if [call.kernel.name for call in r] == names]
    if not fitting:
        raise wf.ArgumentError(
            "tools.show",
            "the profile holds no whole run of this program",
            expected=f"a run of {len(names)} kernels",
            got={"runs": [len(calls) for calls in runs.values()]},
            fix="with wf.tools.profile() as profile: step(*args)",
        )
    return [
        sum(call.seconds for call in calls) / len(calls) for calls in zip(*fitting, strict=True)
    ]


def _page(data: dict[str, Any], title: str) -> str:
    folder = files("weft.tools").joinpath("page")

    def part(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    script = "".join(part(name) for name in ("layout.js", "scene.js", "page.js"))
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    page = part("page.html").replace("{{style}}", part("page.css")).replace("{{script}}", script)
    return page.replace("{{title}}", escape(title)).replace('"{{data}}"', text)
