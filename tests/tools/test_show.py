"""`wf.tools.show`: a page that stands alone, with everything of the graph on it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import weft as wf
from weft.tools.drawing import Drawing
from weft.tools.layout import layered


def views(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r"^const VIEWS = (.*);$", text, re.MULTILINE)
    assert found is not None
    pages: list[dict[str, Any]] = json.loads(found[1])
    return pages


def f(x: wf.Tensor) -> wf.Tensor:
    return wf.softmax((x * 1) @ x)  # a line with <tags> & more


def test_a_graph_is_shown_before_and_after_the_passes_and_as_kernels(tmp_path: Path) -> None:
    graph = wf.ir.trace(f, wf.spec("float32", (4, 4)))
    path = wf.tools.show(graph, tmp_path / "graph.html")
    recorded, optimized, kernels = views(path)
    assert [each["title"] for each in (recorded, optimized, kernels)] == [
        "recorded", "after the passes", "kernels",
    ]  # fmt: skip
    titles = [node["title"] for node in recorded["nodes"]]
    assert titles[0] == "input a"
    assert titles[-1] == "output 0"
    assert titles.count("multiply") == 1
    assert "multiply" not in [node["title"] for node in optimized["nodes"]]
    assert [kernel["name"] for kernel in kernels["kernels"]] == ["dot", "k0"]
    assert "a line with <tags>" in recorded["nodes"][1]["source"]
    assert recorded["nodes"][1]["where"].startswith("tests/tools/test_show.py")
    assert "f32[4, 4]" in recorded["svg"]


def test_an_explanation_is_shown(tmp_path: Path) -> None:
    report = wf.jit(f).explain(wf.ones((4, 4)))
    page = wf.tools.show(report, str(tmp_path / "step.html")).read_text(encoding="utf-8")
    assert "<title>step</title>" in page


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    graph = wf.ir.trace(f, wf.spec("float32", (4, 4)))
    page = wf.tools.show(graph, tmp_path / "graph.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|<link|<img|@import|src=", page)
    assert "</script>" not in page[page.index("const VIEWS") : page.rindex("</script>")]


def test_graphs_inside_of_nodes_have_their_own_view(tmp_path: Path) -> None:
    graph = wf.ir.trace(
        lambda x: wf.scan(lambda c, y: (c + y, c), wf.tensor(0.0), x)[0], wf.spec("float32", (4,))
    )
    assert "scan · graph" in [each["title"] for each in views(wf.tools.show(graph, tmp_path / "g"))]


def test_symbols_without_sizes_are_shown_as_recorded(tmp_path: Path) -> None:
    graph = wf.ir.trace(lambda x: x * 2, wf.spec("float32", ("n",)))
    assert len(views(wf.tools.show(graph, tmp_path / "g"))) == 1
    assert len(views(wf.tools.show(graph, tmp_path / "g", n=8))) == 3


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentTypeError, match="neither a graph nor an explanation"):
        wf.tools.show(wf.jit(f), tmp_path / "g")


# --- drawing -----------------------------------------------------------------------------------


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def corners(drawing: Drawing) -> list[tuple[float, float, float, float]]:
    return [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        for (x, y), (w, h) in [(shape.centre, shape.size) for shape in drawing.shapes]
    ]


@pytest.mark.parametrize("with_kernels", [False, True])
def test_nodes_do_not_overlap_and_edges_go_down(with_kernels: bool) -> None:
    def net(x: wf.Tensor) -> wf.Tensor:
        hidden = [wf.tanh(x @ x + float(i)) for i in range(4)]
        return sum(wf.softmax(h) @ hidden[0] for h in hidden)

    report = wf.jit(wf.grad(lambda x: net(x).sum())).explain(wf.ones((4, 4)))
    kernels = [(k.name, k.kind, k.nodes, "") for k in report.kernels]
    drawing = Drawing(report.optimized, kernels if with_kernels else ())
    places = corners(drawing)
    pairs = [(a, b) for i, a in enumerate(places) for b in places[:i]]
    assert not any(overlap(a, b) for a, b in pairs)
    assert all(
        drawing.shapes[a].centre[1] < drawing.shapes[b].centre[1] for a, b, _ in drawing.edges
    )
    for box in drawing.boxes:
        inside = [places[member] for member in box.members]
        assert all(
            box.corner[0] <= x1 and x2 <= box.corner[0] + box.size[0] for x1, _, x2, _ in inside
        )
    assert min(x for x, *_ in places) >= -0.1
    assert max(x for _, _, x, _ in places) <= drawing.width + 0.1


def test_a_value_that_two_kernels_compute_is_drawn_in_both() -> None:
    def twice(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        y = wf.exp(x)
        return y.sum(axis=0), y.sum(axis=1)

    report = wf.jit(twice).explain(wf.ones((4, 6)))
    drawing = Drawing(report.optimized, [(k.name, k.kind, k.nodes, "") for k in report.kernels])
    assert [shape.title for shape in drawing.shapes].count("exp") == 2


def test_a_large_graph_is_laid_out_soon() -> None:
    count = 3000
    edges = [(i, i + 1) for i in range(count - 1)] + [(i, count - 1 - i) for i in range(count // 2)]
    layout = layered([(50.0, 20.0)] * count, edges)
    assert len(layout.centres) == count
    assert layout.height > 0


def test_nothing_is_drawn_for_an_empty_graph() -> None:
    assert layered([], []).centres == []
    assert Drawing(wf.ir.Graph((), (), ())).svg() == ""
