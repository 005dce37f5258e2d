"""What a partitioned function sends, and how its values are placed: a report as a table.

>>> import weft as wf
>>> f = wf.distributed.partition(wf.sum, wf.distributed.Mesh(data=2), [("data", None)])
>>> print(f.explain(wf.ones((4, 3))))  # doctest: +ELLIPSIS
1 transfer on Mesh(data=2), 4 bytes sent by each device
axis  value       type   from            to          collective  bytes  times  line
data  reduce_sum  f32[]  partial by add  replicated  all_reduce  4      1      ...
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.distributed.mesh import Mesh
from weft.sharding import REPLICATED, Partial, Partitioned, Placement, Split, Transfer

__all__ = ["Division", "text_table"]


class Division:
    """How one call is divided among the devices of a mesh; its text is a table of transfers.

    names: those of the inputs. transfers: each change of placement with what it costs.
    `placements()` is the table of all values, `graph` the program of one device.
    """

    def __init__(self, mesh: Mesh, partitioned: Partitioned, names: Sequence[str]) -> None:
        self.mesh, self.names = mesh, tuple(names)
        self.graph = partitioned.graph
        self.transfers: tuple[Transfer, ...] = partitioned.transfers
        self.seconds = dict(partitioned.seconds)
        self._partitioned = partitioned

    @property
    def bytes(self) -> float:
        """The bytes that each device sends in one call."""
        return sum(each.moved * each.times for each in self.transfers)

    def count(self, collective: str) -> int:
        """How many transfers of a kind there are, each counted once."""
        return sum(each.collective == collective for each in self.transfers)

    def inputs(self) -> list[dict[str, Placement]]:
        """How each input of the program is placed along each mesh axis."""
        places = range(len(self._partitioned.graph.inputs))
        return [self._partitioned.placements_of_input(place) for place in places]

    def placements(self) -> str:
        """A table of the values in order: along each mesh axis, how each is placed.

        Values that one axis adds, such as the results of its collectives, are in the tables of
        the axes behind it.
        """
        parts = []
        for axis, rows in self._partitioned.values.items():
            lines = [(name, kind, placement_text(placement)) for name, kind, placement in rows]
            parts.append(f"along {axis}:\n" + text_table(("value", "type", "placement"), lines))
        return "\n".join(parts)

    def __repr__(self) -> str:
        count = len(self.transfers)
        plural = "" if count == 1 else "s"
        sent = f"{_number(self.bytes)} bytes sent by each device"
        head = f"{count} transfer{plural} on {self.mesh}, {sent}"
        inputs = {f"input {place}": name for place, name in enumerate(self.names) if name}
        rows = [
            (
                each.mesh_axis, inputs.get(each.value, each.value), str(each.kind),
                placement_text(each.source), placement_text(each.target), each.collective,
                _number(each.moved), str(each.times),
                "" if each.location is None else str(each.location).rpartition(", in ")[0],
            )
            for each in self.transfers
        ]  # fmt: skip
        titles = ("axis", "value", "type", "from", "to", "collective", "bytes", "times", "line")
        return f"{head}\n{text_table(titles, rows)}" if rows else head


def placement_text(placement: Placement) -> str:
    """A placement in words.

    >>> placement_text(Split(1))
    'split 1'
    """
    if isinstance(placement, Split):
        return f"split {placement.axis}"
    if isinstance(placement, Partial):
        return f"partial by {placement.combine}"
    assert placement == REPLICATED
    return "replicated"


def _number(value: float) -> str:
    return f"{round(value):,}".replace(",", " ")


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells under titles, in columns.

    >>> print(text_table(("a", "b"), [("1", "2")]))
    a  b
    1  2
    """
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
