"""How values are placed on a mesh, as users write it.

A tuple names for each axis of a value the mesh axis that it is split along: `("data", None)`.
Along the mesh axes that it does not name, the value is replicated. `split(0, "model")` says the
same for one axis of values of any rank, `replicated` that no axis is split. A dictionary of mesh
axes leaves open what it does not name, and None leaves everything open.

>>> import weft as wf
>>> placements_of(("data", None), wf.spec("float32", (4, 3)), {"data": 2, "model": 2}, "x")
{'data': Split(axis=0), 'model': replicated}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import weft as wf
from weft.sharding import REPLICATED, Placement, Split, local_type, mark

__all__ = ["divided", "match_plan", "placements_of", "replicated", "shard", "split"]

Sizes = Mapping[str, int]
Spec = Any
"""A tuple of mesh axes, `split(...)`, `divided(...)`, `replicated`, a dictionary, or None."""


class AxisSplit:
    """One axis of a value, split along one mesh axis."""

    def __init__(self, axis: int, mesh_axis: str | None) -> None:
        self.axis, self.mesh_axis = axis, mesh_axis

    def __repr__(self) -> str:
        along = "" if self.mesh_axis is None else f", {self.mesh_axis!r}"
        return f"split({self.axis}{along})"


class AnySplit:
    """The first axis of a value that divides, split along one mesh axis."""

    def __init__(self, mesh_axis: str) -> None:
        self.mesh_axis = mesh_axis

    def __repr__(self) -> str:
        return f"divided({self.mesh_axis!r})"


replicated = REPLICATED
"""Every device holds the whole value."""


def split(axis: int, mesh_axis: str | None = None) -> AxisSplit:
    """One axis of a value split along a mesh axis: by default along the last of the mesh.

    >>> split(0, "model")
    split(0, 'model')
    """
    return AxisSplit(axis, mesh_axis)


def divided(mesh_axis: str) -> AnySplit:
    """The first axis whose size divides, split along a mesh axis; replicated where none does.

    For state of which each device keeps a share: `{"optimizer.*": divided("data")}`.

    >>> divided("data")
    divided('data')
    """
    return AnySplit(mesh_axis)


def placements_of(
    spec: Spec, kind: wf.TensorType, mesh: Sizes, name: str
) -> dict[str, Placement | None]:
    """How a value of a type is placed along each mesh axis; None where that is open."""
    if spec is None:
        return dict.fromkeys(mesh)
    if isinstance(spec, Mapping):
        wanted = {axis: _along_one(part, kind, axis, mesh, name) for axis, part in spec.items()}
        return _require_division({axis: wanted.get(axis) for axis in mesh}, kind, mesh, name, spec)
    along: dict[str, Placement] = dict.fromkeys(mesh, REPLICATED)
    if spec == REPLICATED:
        return {**along}
    if isinstance(spec, AxisSplit):
        mesh_axis = spec.mesh_axis or list(mesh)[-1]
        along[_known_axis(mesh_axis, mesh, name)] = Split(_axis_in(spec.axis, kind, name))
    elif isinstance(spec, AnySplit):
        along[_known_axis(spec.mesh_axis, mesh, name)] = _first_split(spec, kind, mesh)
    else:
        _place_by_axes(along, spec, kind, mesh, name)
    return _require_division({**along}, kind, mesh, name, spec)


def _along_one(part: Spec, kind: wf.TensorType, mesh_axis: str, mesh: Sizes, name: str) -> Any:
    _known_axis(mesh_axis, mesh, name)
    if isinstance(part, AxisSplit):
        return Split(_axis_in(part.axis, kind, name))
    if isinstance(part, AnySplit):
        return _first_split(part, kind, mesh)
    if part is None or part == REPLICATED:
        return part
    raise _no_placement(part, kind, name)


def _first_split(spec: AnySplit, kind: wf.TensorType, mesh: Sizes) -> Placement:
    count = mesh[spec.mesh_axis]
    splits = (Split(axis) for axis in range(kind.ndim))
    fitting = (each for each in splits if local_type(kind, each, count) is not None)
    return next(fitting, REPLICATED)


def _place_by_axes(
    along: dict[str, Placement], spec: Spec, kind: wf.TensorType, mesh: Sizes, name: str
) -> None:
    if not isinstance(spec, tuple) or len(spec) != kind.ndim:
        raise _no_placement(spec, kind, name)
    for axis, names in enumerate(axes_of_spec(spec, name)):
        order = [list(mesh).index(_known_axis(each, mesh, name)) for each in names]
        if order != sorted(order):
            raise wf.UnsupportedError(
                "partition",
                "an axis is split along mesh axes in another order than the mesh has them",
                expected=f"outer mesh axes first, as in {tuple(mesh)}",
                got={name: kind, "placement": spec},
                fix="name the mesh axes in the order of Mesh(...)",
            )
        for each in names:
            along[each] = Split(axis)


def axes_of_spec(spec: Sequence[Any], name: str) -> tuple[tuple[str, ...], ...]:
    """For each axis the mesh axes that it is split along.

    >>> axes_of_spec(("data", None, ("a", "b")), "x")
    (('data',), (), ('a', 'b'))
    """
    rows: list[tuple[str, ...]] = []
    for entry in spec:
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        if not all(isinstance(each, str) for each in names):
            raise _no_placement(spec, None, name)
        rows.append(names)
    named = [each for row in rows for each in row]
    if len(set(named)) != len(named):
        raise _no_placement(spec, None, name)
    return tuple(rows)


def _known_axis(mesh_axis: str, mesh: Sizes, name: str) -> str:
    if mesh_axis not in mesh:
        raise wf.ArgumentError(
            "partition",
            f"the mesh has no axis {mesh_axis!r}",
            expected="one of " + ", ".join(mesh),
            got={"value": name, "mesh axis": mesh_axis},
            fix=f"name {next(iter(mesh))!r}, or give the mesh that axis",
        )
    return mesh_axis


def _axis_in(axis: int, kind: wf.TensorType, name: str) -> int:
    if not -kind.ndim <= axis < kind.ndim:
        raise wf.AxisError(
            "partition",
            f"{name} has no axis {axis} to split",
            expected=f"an axis from {-kind.ndim} to {kind.ndim - 1}",
            got={name: kind, "axis": axis},
            fix="wf.distributed.replicated for values without axes",
        )
    return axis % kind.ndim


def _require_division(
    along: dict[str, Placement | None], kind: wf.TensorType, mesh: Sizes, name: str, spec: Spec
) -> dict[str, Placement | None]:
    """Refuse sizes that do not divide, each mesh axis on what the one before it left."""
    local = kind
    for mesh_axis, count in mesh.items():
        placement = along[mesh_axis] or REPLICATED
        part = local_type(local, placement, count)
        if part is None:
            assert isinstance(placement, Split)
            size = local.shape[placement.axis]
            raise wf.ShapeError(
                "partition",
                f"axis {placement.axis} of {name} does not divide among {count} devices",
                expected=f"a multiple of {count} along the mesh axis {mesh_axis!r}",
                got={name: kind, "placement": spec},
                note=f"{size} % {count} = {size % count}" if size else "it has no elements",
                fix=f"pad the axis to {-(-size // count) * count}: wf.pad(x, ...), or replicate it",
            )
        local = part
    return along


def _no_placement(spec: Spec, kind: wf.TensorType | None, name: str) -> wf.ArgumentError:
    entries = "one entry for each axis" if kind is None else f"{kind.ndim} entries"
    return wf.ArgumentError(
        "partition",
        f"this does not say how {name} is placed",
        expected=f"a tuple with {entries}: a mesh axis, at most once, or None; or split(0, 'data')",
        got={name: "a value" if kind is None else kind, "placement": spec},
        fix='("data", None) for a value with two axes',
    )


def match_plan(plan: Mapping[str, Spec], name: str) -> tuple[bool, Spec]:
    """Whether a pattern of a plan matches a name, and what the first one that does says.

    >>> match_plan({"*.bias": replicated, "net.*": split(0)}, "net.head.weight")
    (True, split(0))
    """
    for pattern, spec in plan.items():
        if name == pattern or fnmatchcase(name, pattern):
            return True, spec
    return False, None


def shard(x: Any, placement: Spec) -> wf.Tensor:
    """The same value, marked to be placed on a mesh in a way; see `partition`.

    It may stand anywhere in ordinary code, and does nothing without a mesh.

    >>> import weft as wf
    >>> shard(wf.ones((2, 3)), ("data", None)).shape
    (2, 3)
    """
    tensor = wf.asarray(x)
    if isinstance(placement, tuple) and len(placement) == tensor.ndim:
        return mark(tensor, axes_of_spec(placement, "x"), None)
    if isinstance(placement, Mapping) and placement:
        return _mark_some(tensor, placement)
    if placement == REPLICATED:
        return mark(tensor, ((),) * tensor.ndim, None)
    raise _no_placement(placement, tensor.type, "x").called("shard")


def _mark_some(x: wf.Tensor, placement: Mapping[str, Spec]) -> wf.Tensor:
    rows: list[list[str]] = [[] for _ in range(x.ndim)]
    whole: list[str] = []
    for mesh_axis, part in placement.items():
        if isinstance(part, AxisSplit):
            rows[_axis_in(part.axis, x.type, "x")].append(mesh_axis)
        elif part == REPLICATED:
            whole.append(mesh_axis)
        elif part is not None:
            raise _no_placement(placement, x.type, "x").called("shard")
    return mark(x, tuple(map(tuple, rows)), tuple(whole))
