"""Drawing a picture as SVG: what the page shows at first, modules open as far as can be read.

Forward goes down on the left, backward goes up beside it, updates stand on the right. A group is
laid out by itself, with ports for what comes in and goes out, and then as one box in its own group.

>>> import weft as wf
>>> from weft.tools.drawing import svg_text
>>> from weft.tools.picture import Picture
>>> graph = wf.ir.trace(lambda x: x * 2, wf.spec("float32", (3,)))
>>> svg_text(Picture(graph), "double").count('class="node')
3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any

from weft.tools.dot import COLOURS
from weft.tools.layout import Layout, Point, layered_layout
from weft.tools.picture import PHASES, Item, Part, Picture, place_text, shorten_text

__all__ = ["Drawing", "svg_text"]

CHARACTER = 7.25
"""The width of a character of the font, in its size for titles; small ones are narrower."""
SMALL = 6.1
MARGIN = 14.0
PORT = 8.0
TITLE = 24.0
GAP = 70.0
MANY = 60
"""How many items may be seen before modules stay closed."""
STYLE = """
svg { background: #fff; }
text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #22262d;
  text-anchor: middle; }
text.small, text.type { font-size: 10px; fill: #717885; }
text.type { paint-order: stroke; stroke: #fff; stroke-width: 3px; }
text.name { font-weight: 600; }
.open text { text-anchor: start; font-weight: 600; }
.open.phase text { font: 700 17px system-ui, sans-serif; }
.open rect { fill-opacity: .3; stroke-opacity: .5; }
.edge { fill: none; stroke: #9aa1ac; stroke-width: 1.2px; marker-end: url(#arrow); }
.edge.across { opacity: .3; marker-end: none; }
"""

Key = int | tuple[Any, ...]
"""An item by number, a group by its phase and path, or a port."""


def svg_text(picture: Picture, title: str) -> str:
    """A picture as one SVG file that needs nothing else."""
    drawing = Drawing(picture)
    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    box = f'viewBox="{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}"'
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} width="{width:.0f}" ',
            f'height="{height:.0f}"><title>{escape(title)}</title><style>{STYLE}</style>',
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" ',
            'markerHeight="6" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#9aa1ac"/></marker>',
            f"</defs>{drawing.svg()}</svg>\n",
        ]
    )


@dataclass
class Group:
    """A phase, a module, a line or a kernel: what is directly inside, and how much in all."""

    key: tuple[Any, ...]
    name: str
    phase: str
    inside: list[Key] = field(default_factory=list)
    size: int = 0


@dataclass
class Frame:
    """An open group: where everything stands, relative to its corner."""

    size: Point
    centres: dict[Any, Point]
    routes: dict[tuple[Any, Any], list[Point]]
    frames: dict[Key, Frame]
    corner: Point = (0.0, 0.0)


class Drawing:
    """A picture with a place for everything that is seen of it."""

    def __init__(self, picture: Picture, many: int = MANY) -> None:
        self.picture = picture
        self.groups: dict[tuple[Any, ...], Group] = {}
        self._add_groups()
        self.open = self._open_groups(many)
        self.boxes: dict[Key, tuple[float, float, float, float]] = {}
        self.frames: dict[Key, Frame] = {}
        self.inside: dict[Key, dict[tuple[Any, Any], None]] = {}
        self.edges: dict[tuple[Key, Key], list[tuple[Key, Any, Any]]] = {}
        self.labels: dict[Key, dict[str, None]] = {}
        for source, target, value in picture.edges:
            self._add_edge(source, target, value)
        self.width, self.height = self._place()

    # --- what is seen ------------------------------------------------------------------------

    def _add_groups(self) -> None:
        for phase in PHASES:
            if any(item.phase == phase for item in self.picture.items):
                self.groups[(phase,)] = Group((phase,), phase, phase)
        for number, item in enumerate(self.picture.items):
            chain = self._chain(item)
            for outer, inner in pairwise(chain):
                if inner not in self.groups:
                    part: Part = item.path[len(inner) - 2]
                    self.groups[inner] = Group(inner, part.name, item.phase)
                    self.groups[outer].inside.append(inner)
            self.groups[chain[-1]].inside.append(number)
            for key in chain:
                self.groups[key].size += item.kind not in ("input", "output")

    def _chain(self, item: Item) -> list[tuple[Any, ...]]:
        """The groups that an item lies in, outermost first."""
        whole = (item.phase, *item.path)
        return [whole[: depth + 1] for depth in range(len(whole))]

    def _open_groups(self, many: int) -> set[Key]:
        """The groups that are open: level by level, as long as it can be read."""
        open_keys: set[Key] = {key for key in self.groups if len(key) == 1}
        level = [key for key in self.groups if len(key) == 1]
        while level:
            inner = [k for key in level for k in self.groups[key].inside if isinstance(k, tuple)]
            level = [key for key in inner if key[-1].kind == "module"]
            if len(self._visible_keys(open_keys | set(level))) > many:
                break
            open_keys |= set(level)
        everything: set[Key] = set(self.groups)
        return everything if len(self._visible_keys(everything)) <= many else open_keys

    def _visible_keys(self, is_open: set[Key]) -> list[Key]:
        stack: list[Key] = [key for key in self.groups if len(key) == 1]
        visible: list[Key] = []
        while stack:
            key = stack.pop()
            if isinstance(key, tuple) and key in is_open:
                stack += self.groups[key].inside
            else:
                visible.append(key)
        return visible

    def _shown_key(self, number: int) -> Key:
        """What stands for an item: itself, or the outermost closed group that it is in."""
        chain = self._chain(self.picture.items[number])
        return next((key for key in chain if key not in self.open), number)

    def _home(self, key: Key) -> list[tuple[Any, ...]]:
        """The open groups around something, outermost first."""
        if isinstance(key, tuple):
            return [key[: depth + 1] for depth in range(len(key) - 1)]
        return self._chain(self.picture.items[key])

    def _phase(self, key: Key) -> str:
        return str(key[0]) if isinstance(key, tuple) else self.picture.items[key].phase

    def _add_edge(self, source: int, target: int, value: int) -> None:
        a, b = self._shown_key(source), self._shown_key(target)
        if a == b:
            return
        across = self._phase(a) != self._phase(b)
        kind = self.picture.items[source].values[value][1]
        if not across or a not in self.labels:
            self.labels.setdefault(a, {})[kind] = None
        if (a, b) not in self.edges:
            self.edges[a, b] = [] if across else self._legs(a, b)

    def _legs(self, a: Key, b: Key) -> list[tuple[Key, Any, Any]]:
        """The parts of an edge's way: out of its groups, across, and into those it ends in."""
        up, down = [*self._home(a), a], [*self._home(b), b]
        shared = 0
        while up[shared + 1] == down[shared + 1]:
            shared += 1
        legs: list[tuple[Key, Any, Any]] = [
            (up[level], up[level + 1], ("out", a)) for level in range(len(up) - 2, shared, -1)
        ]
        legs.append((up[shared], up[shared + 1], down[shared + 1]))
        legs += [
            (down[level], ("in", a), down[level + 1]) for level in range(shared + 1, len(down) - 1)
        ]
        for group, start, end in legs:
            self.inside.setdefault(group, {})[start, end] = None
        return legs

    # --- where it stands ---------------------------------------------------------------------

    def _place(self) -> Point:
        """Phases side by side; forward and backward end at the same height."""
        columns: list[Key] = [key for key in self.groups if len(key) == 1]
        frames = [self._frame(key) for key in columns]
        tallest = max((frame.size[1] for frame in frames), default=0.0)
        x = 0.0
        for key, frame in zip(columns, frames, strict=True):
            below = 0.0 if self._phase(key) == PHASES[2] else tallest - frame.size[1]
            self._put(key, frame, (x, below))
            x += frame.size[0] + GAP
        return max(0.0, x - GAP), tallest

    def _frame(self, key: Key) -> Frame:
        assert isinstance(key, tuple)
        group, pairs = self.groups[key], list(self.inside.get(key, {}))
        ends = dict.fromkeys(end for pair in pairs for end in pair)
        entering = [end for end in ends if isinstance(end, tuple) and end[0] == "in"]
        leaving = [end for end in ends if isinstance(end, tuple) and end[0] == "out"]
        keys = _topological_order(group.inside, pairs)
        frames = {k: self._frame(k) for k in keys if k in self.open}
        everything = [*entering, *keys, *leaving]
        index = {each: place for place, each in enumerate(everything)}
        sizes = [(PORT, 0.0)] * len(entering)
        sizes += [frames[k].size if k in frames else self._size(k) for k in keys]
        sizes += [(PORT, 0.0)] * len(leaving)
        turned = [(index[a], index[b]) for a, b in pairs]
        layout = layered_layout(
            sizes,
            [(min(pair), max(pair)) for pair in turned],
            across=22.0,
            top=len(entering),
            bottom=len(leaving),
            widest=560.0 if group.phase == PHASES[2] else 1500.0,
        )
        return self._frame_layout(group, layout, everything, pairs, turned, frames)

    def _frame_layout(
        self,
        group: Group,
        layout: Layout,
        everything: Sequence[Any],
        pairs: Sequence[tuple[Any, Any]],
        turned: Sequence[tuple[int, int]],
        frames: dict[Key, Frame],
    ) -> Frame:
        """A layout with a title above it and a margin around it; backward is turned over."""
        whole = len(group.key) == 1
        least = 160.0 if whole else len(group.name) * CHARACTER + 44
        width = max(layout.width + 2 * MARGIN, least)
        labels = 16.0 if group.phase == PHASES[1] else 0.0  # stand above the uppermost
        head = (40.0 if whole else TITLE + MARGIN) + labels
        left = (width - layout.width) / 2

        def move_point(point: Point) -> Point:
            y = layout.height - point[1] if group.phase == PHASES[1] else point[1]
            return left + point[0], head + y

        routes = {}
        for pair, (a, b) in zip(pairs, turned, strict=True):
            route = layout.routes[min(a, b), max(a, b)]
            routes[pair] = [move_point(point) for point in (route if a < b else reversed(route))]
        centres = {
            k: move_point(centre) for k, centre in zip(everything, layout.centres, strict=True)
        }
        return Frame((width, layout.height + head + MARGIN + 4), centres, routes, frames)

    def _put(self, key: Key, frame: Frame, corner: Point) -> None:
        frame.corner = corner
        self.frames[key] = frame
        self.boxes[key] = (*corner, *frame.size)
        for inner, (x, y) in frame.centres.items():
            if isinstance(inner, tuple) and inner[0] in ("in", "out"):
                continue
            width, height = frame.frames[inner].size if inner in frame.frames else self._size(inner)
            place = corner[0] + x - width / 2, corner[1] + y - height / 2
            if inner in frame.frames:
                self._put(inner, frame.frames[inner], place)
            else:
                self.boxes[inner] = (*place, width, height)

    def _size(self, key: Key) -> Point:
        if isinstance(key, tuple):
            return max(len(self.groups[key].name) * CHARACTER + 30, 110.0), 40.0
        item = self.picture.items[key]
        wide = max(len(item.title) * CHARACTER, len(item.small) * SMALL)
        return wide + 22, 40.0 if item.small else 27.0

    # --- what is drawn -----------------------------------------------------------------------

    def svg(self) -> str:
        """Open groups, then edges, then what is closed."""
        parts = [self._open_svg(key, box) for key, box in self.boxes.items() if key in self.frames]
        parts += [self._edge_svg(a, b, legs) for (a, b), legs in self.edges.items()]
        for key, box in self.boxes.items():
            if key not in self.frames:
                parts += [self._closed_svg(key, box), self._label_svg(key, box)]
        return "".join(parts)

    def _open_svg(self, key: Key, box: tuple[float, ...]) -> str:
        assert isinstance(key, tuple)
        group = self.groups[key]
        line, fill = COLOURS[group.phase]
        whole = len(key) == 1
        below = 27 if whole else 18
        return (
            f'<g class="open{" phase" if whole else ""}">{_rectangle(box, fill, line, 10)}'
            f'<text x="{box[0] + 12:.1f}" y="{box[1] + below:.1f}" style="fill:{line}">'
            f"{escape(group.name)}</text></g>"
        )

    def _closed_svg(self, key: Key, box: tuple[float, ...]) -> str:
        line, fill = COLOURS[self._phase(key)]
        if isinstance(key, tuple):
            title, told = self.groups[key].name, self.groups[key].name
            small, kind = f"{self.groups[key].size} operations", "group"
        else:
            item = self.picture.items[key]
            title, small, told, kind = (
                item.title,
                item.small,
                _tooltip_text(item),
                f"node {item.kind}",
            )
        is_put = "put" in kind
        x, middle = box[0] + box[2] / 2, box[1] + box[3] / 2
        name = ' class="name"' if kind == "group" else ""
        parts = [
            f'<g class="{kind}"><title>{escape(told)}</title>',
            _rectangle(box, "#fff" if is_put else fill, line, box[3] / 2 if is_put else 5),
            f'<text{name} x="{x:.1f}" y="{middle + (-3 if small else 4):.1f}">'
            f"{escape(title)}</text>",
        ]
        if small:
            under = f'x="{x:.1f}" y="{middle + 12:.1f}"'
            parts.append(f'<text class="small" {under}>{escape(small)}</text>')
        return "".join([*parts, "</g>"])

    def _label_svg(self, key: Key, box: tuple[float, ...]) -> str:
        kinds = [kind for kind in self.labels.get(key, {}) if kind]
        if not kinds:
            return ""
        text = shorten_text(kinds[0], 30) + (f"  +{len(kinds) - 1}" if len(kinds) > 1 else "")
        y = box[1] - 6 if self._phase(key) == PHASES[1] else box[1] + box[3] + 13
        at = f'x="{box[0] + box[2] / 2:.1f}" y="{y:.1f}"'
        return f'<text class="type" {at}>{escape(text)}</text>'

    def _edge_svg(self, a: Key, b: Key, legs: Sequence[tuple[Key, Any, Any]]) -> str:
        (x1, y1, w1, h1), (x2, y2, w2, h2) = self.boxes[a], self.boxes[b]
        if not legs:
            start, end = (x1 + w1, y1 + h1 / 2), (x2, y2 + h2 / 2)
            middle = (start[0] + end[0]) / 2
            colour = COLOURS[self._phase(b)][0]
            return (
                f'<path class="edge across" style="stroke:{colour}" d="M{start[0]:.1f} '
                f"{start[1]:.1f}C{middle:.1f} {start[1]:.1f} {middle:.1f} {end[1]:.1f} "
                f'{end[0]:.1f} {end[1]:.1f}"/>'
            )
        up = self._phase(a) == PHASES[1]
        away = 17.0 if self.labels.get(a) else 0.0
        first = (x1 + w1 / 2, y1 - away if up else y1 + h1 + away)
        last = (x2 + w2 / 2, y2 + h2 if up else y2)
        path = f"M{first[0]:.1f} {first[1]:.1f}"
        for (xa, ya), (xb, yb) in pairwise([first, *self._route_points(legs), last]):
            middle = (ya + yb) / 2
            path += f"C{xa:.1f} {middle:.1f} {xb:.1f} {middle:.1f} {xb:.1f} {yb:.1f}"
        return f'<path class="edge" d="{path}"/>'

    def _route_points(self, legs: Sequence[tuple[Key, Any, Any]]) -> Iterator[Point]:
        for group, start, end in legs:
            frame = self.frames[group]
            points = list(frame.routes[start, end])
            if isinstance(start, tuple) and start[0] == "in":
                points.insert(0, frame.centres[start])
            if isinstance(end, tuple) and end[0] == "out":
                points.append(frame.centres[end])
            for x, y in points:
                yield x + frame.corner[0], y + frame.corner[1]


def _topological_order(keys: Sequence[Key], pairs: Sequence[tuple[Any, Any]]) -> list[Key]:
    """An order in which edges go from earlier to later ones, but for those that close a cycle."""
    waiting: dict[Any, set[Any]] = {key: set() for key in keys}
    for a, b in pairs:
        if a in waiting and b in waiting and a != b:
            waiting[b].add(a)
    order: list[Key] = []
    left = list(keys)
    while left:
        ready = next((key for key in left if not waiting[key]), left[0])
        left.remove(ready)
        order.append(ready)
        for others in waiting.values():
            others.discard(ready)
    return order


def _rectangle(box: tuple[float, ...], fill: str, line: str, round_: float) -> str:
    x, y, width, height = box
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{round_:.0f}" fill="{fill}" stroke="{line}"/>'
    )


def _tooltip_text(item: Item) -> str:
    place = place_text(item.location)
    return "\n".join([item.text, place, item.location.source()]) if place else item.text
