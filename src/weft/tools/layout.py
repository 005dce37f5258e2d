"""Placing a graph in layers: every edge goes down, neighbours stand near each other.

Nodes come in an order in which every edge goes from an earlier to a later one. Long edges get a
place in each layer they cross, so that they run between the nodes and not through them.

>>> from weft.tools.layout import layered_layout
>>> layout = layered_layout([(40, 20), (40, 20), (40, 20)], [(0, 1), (0, 2)])
>>> [round(y) for _, y in layout.centres]
[10, 76, 76]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Layout", "layered_layout"]

Point = tuple[float, float]
Edge = tuple[int, int]

SWEEPS = 12
BENDS = 20_000
"""How many places long edges get in the layers they cross; the longest beyond that go straight."""
BEND = 10.0
"""The width that an edge takes in a layer that it crosses."""


LIGHT = 0.02
"""How much an edge that passes by pulls, beside a node."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The centre of each node, the points that each edge goes through, and the size of it all."""

    centres: list[Point]
    routes: dict[Edge, list[Point]]
    width: float
    height: float


def layered_layout(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[Edge],
    *,
    across: float = 24.0,
    down: float = 46.0,
    top: int = 0,
    bottom: int = 0,
    widest: float = 1500.0,
) -> Layout:
    """Place nodes of these sizes; `across` and `down` are the gaps between them.

    The first `top` nodes stay in the first layer, the last `bottom` nodes in the last; layers that
    are wider than `widest` become several.
    """
    if not sizes:
        return Layout([], {}, 0.0, 0.0)
    unique = list(dict.fromkeys(edges))
    layers = _layers(len(sizes), unique, top, bottom)
    layers = _fold_layers(layers, sizes, top, bottom, widest - across)
    return _Layering(sizes, unique, layers, across, down).layout()


class _Layering:
    """The state of one layout: nodes, then one place per layer for each long edge."""

    def __init__(
        self,
        sizes: Sequence[tuple[float, float]],
        edges: list[Edge],
        layers: list[int],
        across: float,
        down: float,
    ) -> None:
        self.sizes = list(sizes)
        self.count = len(sizes)
        self.edges = edges
        self.across, self.down = across, down
        self.layer = layers
        self.above: dict[int, list[int]] = defaultdict(list)
        self.below: dict[int, list[int]] = defaultdict(list)
        self.bends: dict[Edge, list[int]] = {}
        for edge in sorted(edges, key=lambda e: self.layer[e[1]] - self.layer[e[0]]):
            self._route(edge)
        self.rows = self._rows()

    def _route(self, edge: Edge) -> None:
        """Join two nodes, by way of a place in each layer between them."""
        source, target = edge
        crossed = range(self.layer[source] + 1, self.layer[target])
        chain = [source]
        if len(self.sizes) + len(crossed) <= self.count + BENDS:
            for layer in crossed:
                self.sizes.append((BEND, 0.0))
                self.layer.append(layer)
                chain.append(len(self.sizes) - 1)
            for a, b in zip(chain, [*chain[1:], target], strict=True):
                self.below[a].append(b)
                self.above[b].append(a)
        self.bends[edge] = chain[1:]

    def _rows(self) -> list[list[int]]:
        """The nodes of each layer, in an order that crosses few edges."""
        rows: list[list[int]] = [[] for _ in range(max(self.layer) + 1)]
        for node in self._by_neighbourhood():
            rows[self.layer[node]].append(node)
        place = {node: float(i) for row in rows for i, node in enumerate(row)}
        for sweep in range(SWEEPS):
            downwards = sweep % 2 == 0
            near = self.above if downwards else self.below
            for row in rows if downwards else reversed(rows):
                row.sort(key=lambda node: _mean([place[n] for n in near[node]], place[node]))
                place.update((node, float(i)) for i, node in enumerate(row))
        return rows

    def _by_neighbourhood(self) -> list[int]:
        """All nodes, each soon after one that it is joined with."""
        seen: dict[int, None] = {}
        for start in range(len(self.sizes)):
            stack = [start]
            while stack:
                node = stack.pop()
                if node not in seen:
                    seen[node] = None
                    stack += reversed(self.below[node])
        return list(seen)

    def layout(self) -> Layout:
        """Coordinates, from the order in the layers."""
        x = self._columns()
        y = self._lines()
        left = min(x[node] - self.sizes[node][0] / 2 for node in range(len(self.sizes)))
        centres = [(x[node] - left, y[self.layer[node]]) for node in range(len(self.sizes))]
        routes = {
            edge: _straighten_route([centres[b] for b in bends])
            for edge, bends in self.bends.items()
        }
        right = max(c[0] + size[0] / 2 for c, size in zip(centres, self.sizes, strict=True))
        tallest = max(self.sizes[node][1] for node in self.rows[-1])
        return Layout(centres[: self.count], routes, right, y[-1] + tallest / 2)

    def _lines(self) -> list[float]:
        """The middle of each layer."""
        middles, top = [], 0.0
        for row in self.rows:
            height = max((self.sizes[node][1] for node in row), default=0.0)
            middles.append(top + height / 2)
            top += height + (self.down if height else self.down / 2)
        return middles

    def _columns(self) -> list[float]:
        """Each node near the middle of those it is joined with, without overlaps."""
        x = [0.0] * len(self.sizes)
        for row in self.rows:
            self._spread_row(row, x, [0.0] * len(row))
        for sweep in range(SWEEPS):
            downwards = sweep % 2 == 0
            near = self.above if downwards else self.below
            for row in self.rows if downwards else reversed(self.rows):
                wanted = [
                    _mean([x[n] for n in self._pulling_neighbours(near[node])], x[node])
                    for node in row
                ]
                self._spread_row(row, x, wanted)
        return x

    def _pulling_neighbours(self, near: list[int]) -> list[int]:
        """Those neighbours that a node goes to: nodes where there are any, else long edges."""
        return [node for node in near if node < self.count] or near

    def _spread_row(self, row: list[int], x: list[float], wanted: list[float]) -> None:
        """Give a layer's nodes the places nearest to the wanted ones that keep them apart.

        Nodes that would overlap are taken together to a block, which goes to its mean place;
        edges that only pass by give way.
        """
        blocks: list[tuple[float, int, float, float]] = []  # its start, nodes, weight and width
        offsets: list[float] = []
        for node, want in zip(row, wanted, strict=True):
            width = self.sizes[node][0] + self.across
            start, count, total = want - width / 2, 1, width
            weight = 1.0 if node < self.count else LIGHT
            while blocks and blocks[-1][0] + blocks[-1][3] > start:
                before, many, heavy, wide = blocks.pop()
                start = (before * heavy + (start - wide) * weight) / (heavy + weight)
                count, total, weight = count + many, total + wide, weight + heavy
            blocks.append((start, count, weight, total))
            offsets.append(width)
        nodes = iter(zip(row, offsets, strict=True))
        for start, count, _, _ in blocks:
            for _ in range(count):
                node, width = next(nodes)
                x[node] = start + width / 2
                start += width


def _layers(count: int, edges: Sequence[Edge], top: int, bottom: int) -> list[int]:
    """The layer of each node: below all that it depends on; what depends on nothing, late."""
    layer = [0] * top + [int(top > 0)] * (count - top)
    first: dict[int, int] = {}
    fed = {target for _, target in edges}
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer[target] = max(layer[target], layer[source] + 1)
    for source, target in edges:
        first[source] = min(first.get(source, layer[target]), layer[target])
    free = [n for n in range(top, count) if n not in fed and n in first]
    for node in free:
        layer[node] = max(layer[node], first[node] - 1)
    layer[count - bottom :] = [max(layer)] * bottom
    return layer


def _fold_layers(
    layers: list[int], sizes: Sequence[tuple[float, float]], top: int, bottom: int, widest: float
) -> list[int]:
    """The layers, with those that are too wide divided into several."""
    rows: dict[int, list[int]] = defaultdict(list)
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    line_of_node = [0] * len(layers)
    line = 0
    for layer in sorted(rows):
        width = 0.0
        for node in rows[layer]:
            is_port = node < top or node >= len(layers) - bottom
            if width and width + sizes[node][0] > widest and not is_port:
                line, width = line + 1, 0.0
            width += sizes[node][0]
            line_of_node[node] = line
        line += 1
    return line_of_node


def _straighten_route(points: list[Point]) -> list[Point]:
    """The points without those that lie on a vertical line between their neighbours."""
    return [
        point
        for place, point in enumerate(points)
        if place in (0, len(points) - 1)
        or abs(points[place - 1][0] - point[0]) + abs(points[place + 1][0] - point[0]) > 0.5
    ]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
