"""A picture of a program: one HTML page that needs nothing else, to look at in a browser.

The page shows the graph as it was recorded, after the passes, and cut into kernels; the views lie
behind tabs or side by side. It can be moved, zoomed and searched, and every node knows its line.

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
from weft.tools.drawing import Drawing

__all__ = ["show"]

NESTED = 16
"""How many of the graphs inside of nodes get a tab of their own."""


def show(program: Any, path: str | os.PathLike[str], **sizes: int) -> Path:
    """Write the page of a graph, or of what `step.explain(*args)` returns; its path.

    A graph whose types hold symbols is compiled, and shown as kernels, if their sizes are given.
    """
    if not isinstance(program, wf.ir.Graph) and not hasattr(program, "kernels"):
        raise wf.ArgumentTypeError(
            "tools.show",
            "this is neither a graph nor an explanation",
            expected="a graph, or what step.explain(*args) returns",
            got={"program": program},
            fix='wf.tools.show(step.explain(*args), "step.html")',
        )
    target = Path(path)
    target.write_text(_page(_views(program, sizes), target.stem), encoding="utf-8")
    return target


def _views(program: Any, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """What the tabs show."""
    if isinstance(program, wf.ir.Graph):
        open_ = any(not isinstance(d, int) for kind in program.input_types for d in kind.shape)
        if open_ and not sizes:
            return [_view("recorded", Drawing(program)), *_nested(program)]
        program = wf.explain(program, **sizes)
    kernels = [(each.name, each.kind, each.nodes, str(each)) for each in program.kernels]
    views = [
        _view("recorded", Drawing(program.graph)),
        _view("after the passes", Drawing(program.optimized)),
        _view("kernels", Drawing(program.optimized, kernels)),
        *_nested(program.optimized),
    ]
    changed = [str(each) for each in program.passes if each.rewrites]
    views[1]["notes"] = "\n".join(["what the passes did", *(changed or ["nothing"])])
    memory = str(program.memory).partition("\nlive bytes")[0]
    views[2]["notes"] = "\n".join([str(program).partition("\n\n")[0], "", memory])
    return views


def _nested(graph: wf.ir.Graph) -> Iterator[dict[str, Any]]:
    """The graphs inside of nodes, such as a loop's body."""
    inner = [
        (f"{node.primitive.name} · {key}", each)
        for node in graph.nodes
        for key, value in node.params.items()
        for each in (value if isinstance(value, tuple) else (value,))
        if isinstance(each, wf.ir.Graph)
    ]
    for title, each in inner[:NESTED]:
        yield _view(title, Drawing(each))


def _view(title: str, drawing: Drawing) -> dict[str, Any]:
    return {
        "title": title,
        "width": drawing.width,
        "height": drawing.height,
        "svg": drawing.svg(),
        "nodes": drawing.details(),
        "kernels": drawing.kernel_details(),
        "notes": f"{drawing.count} nodes",
    }


def _page(views: list[dict[str, Any]], title: str) -> str:
    template = files("weft.tools").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps(views, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return template.replace("{{title}}", escape(title)).replace('"{{views}}"', data)
