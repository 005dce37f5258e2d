"""A picture for Graphviz: modules as clusters, types on the edges, a colour for each phase.

>>> import weft as wf
>>> from weft.tools.dot import dot_text
>>> from weft.tools.picture import Picture
>>> print(dot_text(Picture(wf.ir.trace(wf.sin, wf.spec("float32", (3,)))), "sine"))
digraph "sine" {
  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=11];
  edge [fontname="monospace", fontsize=9, color="#868e96", fontcolor="#868e96"];
  subgraph cluster_0 {
    label="forward"; style="rounded"; color="#1971c2"; fontcolor="#1971c2";
    n0 [label="a", shape=ellipse, fillcolor="white", color="#1971c2"];
    n1 [label="sin", fillcolor="#e3f0fc", color="#1971c2"];
    n2 [label="output 0", shape=ellipse, fillcolor="white", color="#1971c2"];
  }
  n0 -> n1 [label="f32[3]"];
  n1 -> n2 [label="f32[3]"];
}
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.tools.picture import PHASES, Item, Part, Picture

__all__ = ["dot_text"]

COLOURS = {
    "forward": ("#1971c2", "#e3f0fc"),
    "backward": ("#c2571a", "#fdeadb"),
    "update": ("#2b8a3e", "#def4e3"),
}
"""A line and a fill for each phase."""


def dot_text(picture: Picture, title: str) -> str:
    """The picture in the language of Graphviz."""
    lines = [
        f"digraph {_quote_label(title)} {{",
        '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=11];',
        '  edge [fontname="monospace", fontsize=9, color="#868e96", fontcolor="#868e96"];',
        *_Clusters(picture).lines(),
        *[f"  {line}" for line in _edges(picture)],
        "}",
    ]
    return "\n".join(lines) + "\n"


class _Clusters:
    """The nested groups of a picture, numbered as they are written."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.count = 0

    def lines(self) -> Iterator[str]:
        """The lines of all phases and the groups in them."""
        everything = list(enumerate(self.picture.items))
        for phase in PHASES:
            members = [each for each in everything if each[1].phase == phase]
            if members:
                yield from self._cluster(Part("phase", phase, phase), members, 0)

    def _cluster(self, part: Part, members: list[tuple[int, Item]], depth: int) -> Iterator[str]:
        indent = "  " * (depth + 1)
        line = COLOURS[members[0][1].phase][0]
        style = "rounded" if part.kind != "line" else "rounded,dotted"
        yield f"{indent}subgraph cluster_{self.count} {{"
        self.count += 1
        look = f'style="{style}"; color="{line}"; fontcolor="{line}";'
        yield f"{indent}  label={_quote_label(part.name)}; {look}"
        inner: dict[Part, list[tuple[int, Item]]] = {}
        for number, item in members:
            if len(item.path) == depth:
                yield f"{indent}  {_node(number, item)}"
            else:
                inner.setdefault(item.path[depth], []).append((number, item))
        for each, group_members in inner.items():
            yield from self._cluster(each, group_members, depth + 1)
        yield f"{indent}}}"


def _node(number: int, item: Item) -> str:
    line, fill = COLOURS[item.phase]
    is_put = item.kind in ("input", "output")
    label = item.title + (f"\n{item.small}" if item.small else "")
    shape = "shape=ellipse, " if is_put else ""
    fill = "white" if is_put else fill
    return f'n{number} [label={_quote_label(label)}, {shape}fillcolor="{fill}", color="{line}"];'


def _edges(picture: Picture) -> Iterator[str]:
    for source, target, value in picture.edges:
        label = _quote_label(picture.items[source].values[value][1])
        yield f"n{source} -> n{target} [label={label}];"


def _quote_label(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
