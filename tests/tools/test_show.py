"""`wf.tools.show`: a page that stands alone, an SVG, a DOT file; everything of the graph on it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import weft as wf
from weft.compiler.targets.cpu.machine import host
from weft.tools.drawing import Drawing
from weft.tools.layout import layered_layout
from weft.tools.picture import Kernel, Picture


def data(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r"^const DATA = (.*);$", text, re.MULTILINE)
    assert found is not None
    page: dict[str, Any] = json.loads(found[1])
    return page


def views(path: Path) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = data(path)["views"]
    return pages


def f(x: wf.Tensor) -> wf.Tensor:
    return wf.softmax((x * 1) @ x)  # a line with <tags> & more


class Net(wf.nn.Module):
    def __init__(self) -> None:
        self.first = wf.nn.Linear(4, 8)
        self.blocks = [wf.nn.Sequential(wf.nn.Linear(8, 8), wf.nn.ReLU()) for _ in range(2)]
        self.last = wf.nn.Linear(8, 2)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def step(net: Net, optimizer: wf.optim.Optimizer, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    loss = ((net(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    """A training step: what it was compiled to, and how long its kernels took."""
    net = Net()
    optimizer = wf.optim.Adam(net.parameters(), lr=1e-3)
    arguments = net, optimizer, wf.ones((3, 4)), wf.ones((3, 2))
    compiled = wf.jit(step)
    explained = compiled.explain(*arguments)
    with wf.tools.profile() as profile:
        compiled(*arguments)
    return explained, profile


def test_a_graph_is_shown_before_and_after_the_passes_and_as_kernels(tmp_path: Path) -> None:
    graph = wf.ir.trace(f, wf.spec("float32", (4, 4)))
    path = wf.tools.show(graph, tmp_path / "graph.html")
    recorded, optimized, kernels = views(path)
    assert [each["title"] for each in (recorded, optimized, kernels)] == [
        "as written", "after the passes", "kernels",
    ]  # fmt: skip
    titles = [node["title"] for node in recorded["nodes"]]
    assert titles[0] == "a"
    assert titles[-1] == "output 0"
    assert titles.count("multiply") == 1
    assert "multiply" not in [node["title"] for node in optimized["nodes"]]
    packing = [] if host().masked else ["pack"]  # four columns are no whole vectors
    assert [kernel["name"] for kernel in kernels["kernels"]] == [*packing, "dot", "k0"]
    where, source = data(path)["places"][recorded["nodes"][1]["place"]]
    assert "a line with <tags>" in source
    assert where.startswith("tests/tools/test_show.py")
    assert recorded["nodes"][1]["values"][0][1] == "f32[4, 4]"


def test_every_node_knows_its_phase_and_its_modules(trained: tuple[Any, Any]) -> None:
    picture = Picture(trained[0].graph, (), *trained[0].names)
    homes: dict[str, set[str]] = {}
    for item in picture.items:
        homes.setdefault(item.phase, set()).add("/".join(part.name for part in item.path))
    layers = {"Net/first", "Net/last", "Net/blocks.0/0", "Net/blocks.1/0"}
    assert set(homes) == {"forward", "backward", "update"}
    assert layers <= homes["forward"]
    assert layers <= homes["backward"]
    assert layers <= homes["update"]
    by_title = {item.title: item for item in picture.items if item.kind == "input"}
    assert by_title["x"].path == ()
    weights = [item for item in picture.items if item.title == "weight"]
    assert {item.path[1].name for item in weights} == {"first", "last", "blocks.0", "blocks.1"}
    assert any(item.text.startswith("new net.first.weight:") for item in picture.items)


def test_a_module_that_is_called_twice_is_two_groups() -> None:
    layer = wf.nn.Linear(3, 3)
    graph = wf.ir.trace(lambda x: layer(layer(x)), wf.spec("float32", (1, 3)))
    assert {n.location.module for n in graph.nodes if n.location} == {"Linear", "Linear·2"}


def test_nothing_is_named_where_nothing_is_traced() -> None:
    seen = []
    layer = wf.nn.Identity()
    layer.register_forward_hook(lambda *_: seen.append(wf.ir.is_tracing()))
    layer(wf.ones(2))
    wf.ir.trace(layer, wf.spec("float32", (2,)))
    assert seen == [False, True]


def test_kernels_have_their_measured_time_and_lie_in_their_modules(
    trained: tuple[Any, Any], tmp_path: Path
) -> None:
    explained, profile = trained
    page = data(wf.tools.show(explained, tmp_path / "step.html", profile=profile))
    view = page["views"][2]
    assert len(view["kernels"]) == len(explained.kernels)
    assert sum(k["seconds"] for k in view["kernels"]) == pytest.approx(profile.seconds)
    groups = view["groups"]
    for kernel in view["kernels"]:
        if kernel["group"] >= 0:
            assert groups[kernel["group"]]["kind"] == "kernel"
            assert groups[kernel["group"]]["phase"] == kernel["phase"]
    fused = [node for node in view["nodes"] if node["kernel"] >= 0]
    assert len(fused) == sum(len(kernel.nodes) for kernel in explained.kernels)
    assert page["memory"]["timeline"] == list(explained.memory.timeline)
    assert page["memory"]["peak"] == explained.memory.peak


def test_a_profile_of_another_program_is_refused(trained: tuple[Any, Any], tmp_path: Path) -> None:
    with wf.tools.profile() as other:
        wf.jit(lambda x: x + 1)(wf.ones(3))
    with pytest.raises(wf.ArgumentError, match="no whole run of this program"):
        wf.tools.show(trained[0], tmp_path / "step.html", profile=other)


def test_groups_come_after_those_they_are_in(trained: tuple[Any, Any], tmp_path: Path) -> None:
    for view in views(wf.tools.show(trained[0], tmp_path / "step.html")):
        assert all(group["parent"] < number for number, group in enumerate(view["groups"]))
        assert all(a < b for a, b, _ in view["edges"])


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    graph = wf.ir.trace(f, wf.spec("float32", (4, 4)))
    page = wf.tools.show(graph, tmp_path / "graph.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|<link|<img|@import|src=", page)
    assert "</script>" not in page[page.index("const DATA") : page.rindex("</script>")]
    assert "{{" not in page


def test_graphs_inside_of_nodes_have_their_own_view(tmp_path: Path) -> None:
    graph = wf.ir.trace(
        lambda x: wf.scan(lambda c, y: (c + y, c), wf.tensor(0.0), x)[0], wf.spec("float32", (4,))
    )
    page = wf.tools.show(graph, tmp_path / "g.html")
    assert "scan · graph" in [each["title"] for each in views(page)]


def test_symbols_without_sizes_are_shown_as_recorded(tmp_path: Path) -> None:
    graph = wf.ir.trace(lambda x: x * 2, wf.spec("float32", ("n",)))
    assert len(views(wf.tools.show(graph, tmp_path / "g.html"))) == 1
    assert len(views(wf.tools.show(graph, tmp_path / "g.html", n=8))) == 3


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentTypeError, match="neither a graph nor an explanation"):
        wf.tools.show(wf.jit(f), tmp_path / "g.html")


def test_an_ending_that_is_not_known_is_refused(tmp_path: Path) -> None:
    graph = wf.ir.trace(f, wf.spec("float32", (4, 4)))
    with pytest.raises(wf.ArgumentError, match="not written"):
        wf.tools.show(graph, tmp_path / "g.png")


# --- other formats -----------------------------------------------------------------------------


def test_an_svg_file_is_well_formed_and_has_every_phase(
    trained: tuple[Any, Any], tmp_path: Path
) -> None:
    path = wf.tools.show(trained[0], tmp_path / "step.svg")
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"forward", "backward", "update", "Net", "blocks.0", "f32[3, 8]"} <= set(texts)


def test_a_dot_file_nests_modules_and_joins_what_is_there(
    trained: tuple[Any, Any], tmp_path: Path
) -> None:
    text = wf.tools.show(trained[0], tmp_path / "step.dot").read_text(encoding="utf-8")
    assert text.count("{") == text.count("}")
    declared = set(re.findall(r"^ *(n\d+) \[", text, re.MULTILINE))
    joined = set(re.findall(r"(n\d+) -> (n\d+)", text))
    assert {end for pair in joined for end in pair} <= declared
    assert 'label="blocks.0"' in text
    assert '[label="f32[3, 8]"]' in text


def test_tensorboard_reads_the_graph(trained: tuple[Any, Any], tmp_path: Path) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    wf.tools.write_graph_events(trained[0], tmp_path)
    found = module.EventAccumulator(str(tmp_path))
    found.Reload()
    nodes = {node.name: node for node in found.Graph().node}
    assert all(name.partition(":")[0] in nodes for n in nodes.values() for name in n.input)
    dot = nodes["forward/Net/first/dot"]
    sizes = [dim.size for dim in dot.attr["_output_shapes"].list.shape[0].dim]
    assert (dot.op, dot.device, sizes) == ("dot", "forward", [3, 8])


def test_graph_events_hold_the_names(trained: tuple[Any, Any], tmp_path: Path) -> None:
    written = wf.tools.write_graph_events(trained[0], tmp_path).read_bytes()
    assert b"forward/Net/blocks.0/0/dot" in written
    assert b"update/Net/last/" in written


# --- drawing -----------------------------------------------------------------------------------


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize("many", [20, 1000])
def test_closed_boxes_do_not_overlap_and_open_ones_hold_theirs(
    trained: tuple[Any, Any], many: int
) -> None:
    kernels = [Kernel(k.name, k.kind, k.nodes, "") for k in trained[0].kernels]
    drawing = Drawing(Picture(trained[0].optimized, kernels, *trained[0].names), many)
    corners = {key: (x, y, x + w, y + h) for key, (x, y, w, h) in drawing.boxes.items()}
    closed = [key for key in corners if key not in drawing.frames]
    pairs = [(a, b) for i, a in enumerate(closed) for b in closed[:i]]
    assert not any(overlap(corners[a], corners[b]) for a, b in pairs)
    for key in corners:
        outer = drawing._home(key)[-1] if drawing._home(key) else None
        if outer is not None:
            x1, y1, x2, y2 = corners[outer]
            assert x1 <= corners[key][0] <= corners[key][2] <= x2
            assert y1 <= corners[key][1] <= corners[key][3] <= y2
    assert len(closed) < len(drawing.picture.items) or many == 1000


def test_edges_go_down_and_those_of_the_way_back_go_up(trained: tuple[Any, Any]) -> None:
    drawing = Drawing(Picture(trained[0].graph, (), *trained[0].names), 10_000)
    for (a, b), legs in drawing.edges.items():
        if legs:
            is_lower = drawing.boxes[a][1] < drawing.boxes[b][1]
            assert is_lower != (drawing._phase(a) == "backward")


def test_a_value_that_two_kernels_compute_is_drawn_in_both() -> None:
    def twice(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        y = wf.sqrt(x)
        return y.sum(axis=0), y.sum(axis=1)

    report = wf.jit(twice).explain(wf.ones((4, 6)))
    kernels = [Kernel(k.name, k.kind, k.nodes, "") for k in report.kernels]
    assert [item.title for item in Picture(report.optimized, kernels).items].count("sqrt") == 2


@pytest.mark.slow
def test_a_large_graph_is_laid_out_soon() -> None:
    count = 3000
    edges = [(i, i + 1) for i in range(count - 1)] + [(i, count - 1 - i) for i in range(count // 2)]
    layout = layered_layout([(50.0, 20.0)] * count, edges)
    assert len(layout.centres) == count
    assert layout.height > 0


def test_wide_layers_are_folded() -> None:
    layout = layered_layout([(100.0, 20.0)] * 11, [(0, i) for i in range(1, 11)], widest=330.0)
    assert layout.width < 700  # in one row: 1240
    assert len({round(y) for _, y in layout.centres}) == 5


def test_nothing_is_drawn_for_an_empty_graph() -> None:
    assert layered_layout([], []).centres == []
    assert Drawing(Picture(wf.ir.Graph((), (), ()))).svg() == ""


def test_layers_are_shown_with_their_classes_where_the_network_is_known(tmp_path: Path) -> None:
    net = wf.models.MLP([4, 3, 2])
    step = wf.jit(lambda x: net(x))
    explained = step.explain(wf.ones((2, 4)))
    plain = wf.tools.show(explained, tmp_path / "plain.dot").read_text(encoding="utf-8")
    named = wf.tools.show(explained, tmp_path / "named.dot", model=net).read_text(encoding="utf-8")
    assert "layers.0: Linear" in named
    assert "layers.0: Linear" not in plain
    assert "layers.0" in plain
    page = wf.tools.show(explained, tmp_path / "named.html", model=net).read_text(encoding="utf-8")
    assert "layers.1: Linear" in page
