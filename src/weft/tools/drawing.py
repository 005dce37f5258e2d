"""Drawing a graph as SVG: nodes with their constants, types on the edges, kernels as boxes.

>>> import weft as wf
>>> from weft.tools.drawing import Drawing
>>> drawing = Drawing(wf.ir.trace(lambda x: x * 2, wf.spec("float32", (3,))))
>>> [detail["title"] for detail in drawing.details()]
['input a', 'multiply', 'output 0']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any

import weft as wf
from weft.tools.layout import Edge, Point, layered

__all__ = ["Drawing"]

CHARACTER = 7.25
"""The width of a character of the page's font, in its size for titles; small ones are narrower."""
SMALL = 0.82
LINE = 16.0
LONGEST = 34
"""How many characters of a node's constants and parameters are shown."""
MARGIN = 14.0
PORT = 8.0
TITLE = 22.0

Kernel = tuple[str, str, Sequence[Any], str]
"""A name, a kind, the nodes in it, and what is known of it."""


@dataclass
class Shape:
    """What is drawn as one box: an input, a node or an output."""

    title: str
    kind: str
    small: str = ""
    label: str = ""
    """What is written under it, on the edges that leave it: the values and their types."""
    text: str = ""
    where: str = ""
    source: str = ""
    kernel: int = -1
    centre: Point = (0.0, 0.0)

    @property
    def size(self) -> tuple[float, float]:
        """Its width and height; what is written under it needs room too."""
        titles = len(self.title) * CHARACTER
        wide = max(titles, SMALL * CHARACTER * max(len(self.small), len(self.label) - 4))
        return wide + 20, LINE * (1 + bool(self.small)) + 12


@dataclass
class Box:
    """A kernel: the shapes in it, its title, and where it is."""

    name: str
    kind: str
    text: str
    members: list[int] = field(default_factory=list)
    corner: Point = (0.0, 0.0)
    size: Point = (0.0, 0.0)


class Drawing:
    """A graph with places for its nodes; with kernels, their nodes lie together."""

    def __init__(self, graph: wf.ir.Graph, kernels: Sequence[Kernel] = ()) -> None:
        self.graph = graph
        self.count = len(graph.nodes)
        self.names = wf.ir.name_variables(graph)
        self.shapes: list[Shape] = []
        self.edges: list[tuple[int, int, str]] = []
        self.boxes = [Box(name, kind, text) for name, kind, _, text in kernels]
        self.routes: dict[Edge, list[Point]] = {}
        self._add_shapes([nodes for _, _, nodes, _ in kernels])
        self.width, self.height = self._place()

    # --- what there is -----------------------------------------------------------------------

    def _add_shapes(self, kernels: Sequence[Sequence[Any]]) -> None:
        """Inputs, nodes and outputs, so that every edge goes from an earlier to a later one.

        What several kernels compute, each for itself, is drawn in each of them.
        """
        made: dict[Any, int] = {}
        for variable in self.graph.inputs:
            made[variable] = len(self.shapes)
            name = self.names[variable]
            self.shapes.append(Shape(f"input {name}", "input", label=str(variable.type)))
        fused = {node for nodes in kernels for node in nodes}
        rest = [node for node in self.graph.nodes if node not in fused]
        for number, nodes in enumerate(kernels):
            rest = self._add_ready(rest, made)
            inside = dict(made)
            for node in nodes:
                self._add_node(node, inside, number)
            made = {**inside, **made}
        for node in rest:
            self._add_node(node, made)
        for position, atom in enumerate(self.graph.outputs):
            self.shapes.append(Shape(f"output {position}", "output", label=""))
            self._join(atom, made)

    def _add_ready(self, nodes: list[Any], made: dict[Any, int]) -> list[Any]:
        """Add the nodes whose operands are there; those that are left."""
        left = []
        for node in nodes:
            if all(atom in made for atom in node.operands if atom in self.names):
                self._add_node(node, made)
            else:
                left.append(node)
        return left

    def _add_node(self, node: Any, made: dict[Any, int], kernel: int = -1) -> None:
        place = node.location
        self.shapes.append(
            Shape(
                node.primitive.name,
                _kind(node),
                small=_cut(", ".join([*self._constants(node), *_parameters(node)])),
                label=", ".join(f"{self.names[r]}: {r.type}" for r in node.results),
                text=self._text(node),
                where="" if place is None else str(place),
                source="" if place is None else place.source(),
                kernel=kernel,
            )
        )
        for atom in dict.fromkeys(node.operands):
            self._join(atom, made)
        made.update((result, len(self.shapes) - 1) for result in node.results)

    def _join(self, atom: Any, made: dict[Any, int]) -> None:
        """An edge from where a value is made to the last shape."""
        if atom in made:
            self.edges.append((made[atom], len(self.shapes) - 1, self.names[atom]))

    def _constants(self, node: Any) -> list[str]:
        return [self._atom(a) for a in node.operands if a not in self.names]

    def _atom(self, atom: Any) -> str:
        if atom in self.names:
            return self.names[atom]
        return f"{atom.value.item():.6g}" if atom.value.ndim == 0 else f"constant {atom.type}"

    def _text(self, node: Any) -> str:
        results = ", ".join(f"{self.names[r]}: {r.type}" for r in node.results)
        operands = [self._atom(atom) for atom in node.operands]
        return f"{results} = {node.primitive.name}({', '.join([*operands, *_parameters(node)])})"

    # --- where it is -------------------------------------------------------------------------

    def _place(self) -> Point:
        sizes = [shape.size for shape in self.shapes]
        pairs = [(source, target) for source, target, _ in self.edges]
        if not self.boxes:
            layout = layered(sizes, pairs)
            for shape, centre in zip(self.shapes, layout.centres, strict=True):
                shape.centre = centre
            self.routes = layout.routes
            return layout.width, layout.height
        return self._place_boxes(sizes, pairs)

    def _place_boxes(self, sizes: list[tuple[float, float]], pairs: list[Edge]) -> Point:
        """Kernels are laid out by themselves, and then as nodes among the others."""
        units = self._units(sizes, pairs)
        unit_of = {member: n for n, unit in enumerate(units) for member in unit.members}
        crossing = {(unit_of[a], unit_of[b]) for a, b in pairs if unit_of[a] != unit_of[b]}
        outer = layered([unit.size for unit in units], sorted(crossing), down=56.0)
        for unit, centre in zip(units, outer.centres, strict=True):
            unit.centre = centre
            for member in unit.members:
                self.shapes[member].centre = unit.place(member)
            if unit.boxed:
                box = self.boxes[self.shapes[unit.members[0]].kernel]
                box.members, box.corner, box.size = unit.members, unit.corner, unit.size
        for a, b in pairs:
            first, last = units[unit_of[a]], units[unit_of[b]]
            if first is last:
                self.routes[a, b] = first.within(a, b)
            else:
                between = outer.routes[unit_of[a], unit_of[b]]
                self.routes[a, b] = [*first.way_out(a), *between, *last.way_in(a, b)]
        return outer.width, outer.height

    def _units(self, sizes: list[tuple[float, float]], pairs: list[Edge]) -> list[_Unit]:
        """Kernels and single shapes, in order."""
        members: dict[Any, list[int]] = {}
        for number, shape in enumerate(self.shapes):
            key = shape.kernel if shape.kernel >= 0 else ("one", number)
            members.setdefault(key, []).append(number)
        home = {number: key for key, numbers in members.items() for number in numbers}
        edges: dict[Any, list[Edge]] = {}
        for edge in pairs:
            for key in {home[edge[0]], home[edge[1]]}:
                edges.setdefault(key, []).append(edge)
        return [
            _Unit(numbers, sizes, edges.get(key, []), self._title(numbers))
            for key, numbers in members.items()
        ]

    def _title(self, members: Sequence[int]) -> str:
        """What stands on a kernel; nothing where there is none."""
        kernel = self.shapes[members[0]].kernel
        return f"{self.boxes[kernel].name}  {self.boxes[kernel].kind}" if kernel >= 0 else ""

    # --- what is drawn -----------------------------------------------------------------------

    def svg(self) -> str:
        """Boxes, then edges, then nodes."""
        parts = [self._box_svg(number, box) for number, box in enumerate(self.boxes) if box.members]
        parts += [self._edge_svg(*edge) for edge in self.edges]
        parts += [self._title_svg(number, b) for number, b in enumerate(self.boxes) if b.members]
        parts += [self._shape_svg(number, shape) for number, shape in enumerate(self.shapes)]
        return "".join(parts)

    def _box_svg(self, number: int, box: Box) -> str:
        (x, y), (width, height) = box.corner, box.size
        return (
            f'<g class="box {escape(box.kind)}" data-kernel="{number}">'
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="10"/></g>'
        )

    def _title_svg(self, number: int, box: Box) -> str:
        x, y = box.corner[0] + MARGIN, box.corner[1] + TITLE - 2
        words = escape(f"{box.name}  {box.kind}")
        text = f'<text x="{x:.1f}" y="{y:.1f}">{words}</text>'
        return f'<g class="title" data-kernel="{number}">{text}</g>'

    def _edge_svg(self, source: int, target: int, name: str) -> str:
        a, b = self.shapes[source], self.shapes[target]
        start = a.centre[0], a.centre[1] + a.size[1] / 2 + (LINE if a.label else 0)
        end = b.centre[0], b.centre[1] - b.size[1] / 2
        points = [start, *self.routes.get((source, target), []), end]
        path = f"M{start[0]:.1f} {start[1]:.1f}"
        for (x1, y1), (x2, y2) in pairwise(points):
            middle = (y1 + y2) / 2
            path += f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
        return f'<path class="edge" data-from="{source}" data-to="{target}" d="{path}"/>'

    def _shape_svg(self, number: int, shape: Shape) -> str:
        (x, y), (width, height) = shape.centre, shape.size
        small, label = escape(shape.small), escape(_cut(shape.label, 60))
        first = y + (4 if not small else -3)
        parts = [
            f'<g class="node {shape.kind}" data-node="{number}">',
            f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}"'
            f' height="{height:.1f}" rx="{height / 2 if "put" in shape.kind else 5:.0f}"/>',
            f'<text x="{x:.1f}" y="{first:.1f}">{escape(shape.title)}</text>',
        ]
        if small:
            parts.append(f'<text class="small" x="{x:.1f}" y="{y + 12:.1f}">{small}</text>')
        if label:
            under = y + height / 2 + 12
            parts.append(f'<text class="type" x="{x:.1f}" y="{under:.1f}">{label}</text>')
        return "".join([*parts, "</g>"])

    def details(self) -> list[dict[str, Any]]:
        """What the page tells of each node."""
        return [
            {
                "title": shape.title, "text": shape.text or shape.label, "where": shape.where,
                "source": shape.source, "kernel": shape.kernel, "at": shape.centre,
            }
            for shape in self.shapes
        ]  # fmt: skip

    def kernel_details(self) -> list[dict[str, Any]]:
        """What the page tells of each kernel."""
        return [
            {"name": box.name, "kind": box.kind, "text": box.text, "at": [*box.corner, *box.size]}
            for box in self.boxes
        ]


class _Unit:
    """A kernel or a single shape, laid out by itself.

    Values come into a kernel through ports at its top and leave through ports at its bottom, so
    that their edges run between the nodes inside.
    """

    def __init__(
        self,
        members: list[int],
        sizes: Sequence[tuple[float, float]],
        edges: Sequence[Edge],
        title: str,
    ) -> None:
        self.members = members
        self.boxed = bool(title)
        self.centre: Point = (0.0, 0.0)
        inside = set(members)
        entering = [a for a, b in edges if a not in inside] if self.boxed else []
        leaving = [a for a, b in edges if b not in inside] if self.boxed else []
        order = [*[("in", a) for a in dict.fromkeys(entering)], *members]
        order += [("out", a) for a in dict.fromkeys(leaving)]
        self.index: dict[Any, int] = {key: place for place, key in enumerate(order)}
        ports = len(set(entering)), len(set(leaving))
        boxes = [(PORT, 0.0)] * ports[0] + [sizes[m] for m in members] + [(PORT, 0.0)] * ports[1]
        joined = [(self.index[a if a in inside else ("in", a)], self.index[b])
                  for a, b in edges if b in inside and (self.boxed or a in inside)]  # fmt: skip
        joined += [(self.index[a], self.index["out", a]) for a in dict.fromkeys(leaving)]
        self.layout = layered(boxes, joined, across=18.0, top=ports[0], bottom=ports[1])
        frame = (2 * MARGIN, 2 * MARGIN + TITLE) if self.boxed else (0.0, 0.0)
        width = max(self.layout.width + frame[0], len(title) * CHARACTER + frame[0])
        self.size = width, self.layout.height + frame[1]

    @property
    def corner(self) -> Point:
        """The upper left corner."""
        return self.centre[0] - self.size[0] / 2, self.centre[1] - self.size[1] / 2

    def place(self, key: Any) -> Point:
        """Where a member or a port is."""
        return self._moved([self.layout.centres[self.index[key]]])[0]

    def within(self, a: int, b: int) -> list[Point]:
        """The bends of an edge between two members."""
        return self._route(a, b)

    def way_in(self, a: int, b: int) -> list[Point]:
        """From the port of a value that comes in to the member that reads it."""
        return [self.place(("in", a)), *self._route(("in", a), b)] if self.boxed else []

    def way_out(self, a: int) -> list[Point]:
        """From a member to the port where its value leaves."""
        return [*self._route(a, ("out", a)), self.place(("out", a))] if self.boxed else []

    def _route(self, a: Any, b: Any) -> list[Point]:
        return self._moved(self.layout.routes[self.index[a], self.index[b]])

    def _moved(self, points: Sequence[Point]) -> list[Point]:
        left, top = self.corner
        x = left + (self.size[0] - self.layout.width) / 2
        y = top + (MARGIN + TITLE if self.boxed else 0)
        return [(x + dx, y + dy) for dx, dy in points]


def _kind(node: Any) -> str:
    """How a node is coloured."""
    name = node.primitive.name
    if node.primitive.broadcasts:
        return "elementwise"
    if name.startswith(("reduce_", "cumulative_")):
        return "reduction"
    return "product" if name.startswith(("dot", "conv_")) or name == "conv" else "movement"


def _parameters(node: Any) -> list[str]:
    return [f"{k}={_value(v)}" for k, v in node.params.items() if not _is_empty(v)]


def _is_empty(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_empty, value))


def _value(value: Any) -> str:
    if isinstance(value, wf.ir.Graph):
        return f"graph of {len(value.nodes)}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_value, value)) + ("," if len(value) == 1 else "") + ")"
    return str(getattr(value, "name", value))


def _cut(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
