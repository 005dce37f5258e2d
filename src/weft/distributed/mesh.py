"""Meshes: devices in a grid whose axes have names.

>>> import weft as wf
>>> mesh = wf.distributed.Mesh(data=2, model=4)
>>> mesh, mesh.size, mesh.coordinates(5)
(Mesh(data=2, model=4), 8, {'data': 1, 'model': 1})
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import weft as wf
from weft.sharding import Costs

__all__ = ["Mesh"]


class Mesh:
    """A grid of devices: named axes and their sizes, the outermost first.

    It is a description: nothing is started. Ranks count through the grid in row-major order.
    costs: for mesh axes by name, what transfers and work cost; `Costs()` for those not named.

    >>> Mesh(data=2).axes
    {'data': 2}
    """

    def __init__(self, *, costs: Mapping[str, Costs] | None = None, **axes: int) -> None:
        for name, size in axes.items():
            if type(size) is not int or size < 1:
                raise wf.ArgumentError(
                    "Mesh",
                    f"the axis {name!r} has no size",
                    expected="a whole number of devices, at least 1, for each axis",
                    got={name: size},
                    fix="Mesh(data=2, model=2)",
                )
        unknown = [name for name in costs or () if name not in axes]
        if not axes or unknown:
            raise wf.ArgumentError(
                "Mesh",
                f"there is no axis {unknown[0]!r}" if unknown else "a mesh has no axis",
                expected="sizes of axes by name, and costs of these",
                got={"axes": axes, "costs": list(costs or ())},
                fix="Mesh(data=2, model=2)",
            )
        self.axes: dict[str, int] = dict(axes)
        self.costs = {name: (costs or {}).get(name, Costs()) for name in axes}

    @property
    def size(self) -> int:
        """How many devices it has."""
        return prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """The place of a rank along each axis."""
        if not 0 <= rank < self.size:
            raise wf.ArgumentError(
                "Mesh",
                "the rank is outside of the mesh",
                expected=f"a rank from 0 to {self.size - 1}",
                got={"rank": rank, "mesh": self},
                fix="mesh.coordinates(0)",
            )
        places: dict[str, int] = {}
        for name, size in reversed(self.axes.items()):
            places[name], rank = rank % size, rank // size
        return dict(reversed(places.items()))

    def check_world(self, world: int) -> None:
        """Refuse a world of another size than the mesh has devices.

        >>> Mesh(data=2).check_world(2)
        """
        if world != self.size:
            raise wf.ArgumentError(
                "Mesh",
                "the mesh does not fit the world",
                expected=f"{self.size} processes: " + " x ".join(map(str, self.axes.values())),
                got={"mesh": self, "processes": world},
                fix=f"start {self.size} processes: weft launch -n {self.size} train.py",
            )

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes.items())})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return False
        same = list(self.axes.items()) == list(other.axes.items())
        return same and self.costs == other.costs

    def __hash__(self) -> int:
        return hash((*self.axes.items(), *self.costs.values()))
