"""How primitives are divided among devices, where their kind does not say it.

Each function is the `sharding` of a primitive's definition, or makes one: given whole types,
parameters and the number of devices, it lists strategies (see `ir/sharding.py`). Rules of kinds are
in `transforms/sharding/strategies.py`; a primitive without either is computed by every device.

>>> import weft as wf
>>> from weft.ops.sharding_rules import of_reshape
>>> whole, flat = wf.spec("float32", (4, 3)), wf.spec("float32", (12,))
>>> [each.params for each in of_reshape([whole], [flat], {"shape": (12,)}, 2)]
[{'shape': (6,)}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from weft.core.dtypes import INDEX, bool_
from weft.core.shapes import Shape
from weft.ir.dispatch import apply
from weft.ir.primitive import PRIMITIVES
from weft.ir.sharding import (
    REPLICATED,
    SUM,
    Part,
    Partial,
    Placement,
    Rule,
    Split,
    Strategy,
    Types,
    replace_size,
    split_axes,
    split_to_terms,
)
from weft.ir.tensor import Tensor

__all__: list[str] = []

Params = Mapping[str, Any]


# --- movement ------------------------------------------------------------------------------------


def of_reshape(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """Axes that become axes: of each group, the outermost one on both sides.

    A split into contiguous parts of a group's outermost axis is the same split of its elements.
    """
    old, new = operands[0].shape, results[0].shape
    for left, right in _groups_of_reshape(old, new):
        outer_left = next((axis for axis in left if old[axis] != 1), None)
        outer_right = next((axis for axis in right if new[axis] != 1), None)
        if outer_left is None or outer_right is None or new[outer_right] % count:
            continue
        shape = replace_size(new, outer_right, new[outer_right] // count)
        yield split_axes((outer_left,), (outer_right,), shape=shape)


def _groups_of_reshape(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Axes of both shapes in the smallest groups that hold the same number of elements."""
    left: list[int] = []
    right: list[int] = []
    old_axes, new_axes = list(range(len(old))), list(range(len(new)))
    while old_axes or new_axes:
        sizes = prod(old[a] for a in left), prod(new[a] for a in right)
        if (sizes[0] <= sizes[1] and old_axes) or not new_axes:
            left.append(old_axes.pop(0))
        else:
            right.append(new_axes.pop(0))
        elements = prod(old[a] for a in left), prod(new[a] for a in right)
        if elements[0] == elements[1] and elements[0] != 0:
            yield left, right
            left, right = [], []


def of_slice(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """Axes that are kept whole."""
    for axis, (before, after) in enumerate(zip(operands[0].shape, results[0].shape, strict=True)):
        if before == after and isinstance(before, int):
            stops = replace_size(params["stops"], axis, before // count)
            yield split_axes((axis,), (axis,), stops=stops)


def of_update_slice(
    operands: Types, results: Types, params: Params, count: int
) -> Iterator[Strategy]:
    """Axes that are replaced whole, in which x and its update lie side by side."""
    for axis, (whole, part) in enumerate(zip(operands[0].shape, operands[1].shape, strict=True)):
        if whole == part:
            yield split_axes((axis, axis), (axis,))


def of_iota(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """Every axis; along the one that is counted, each device counts on from its first place."""
    shape = results[0].shape
    for axis, size in enumerate(shape):
        local = replace_size(shape, axis, size // count)
        compute = _count_from_part if axis == params["axis"] else None
        yield split_axes((), (axis,), compute, shape=local)


def _count_from_part(part: Part, **params: Any) -> Tensor:
    local = apply(PRIMITIVES["iota"], **params)
    first = part.index() * params["shape"][params["axis"]]
    return apply(
        PRIMITIVES["add"], local, apply(PRIMITIVES["convert"], first, dtype=params["dtype"])
    )


def of_triangle(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """Every axis; of rows or columns, the diagonal is found by their places in the whole."""
    last = operands[0].ndim - 1
    for axis in range(last + 1):
        compute = None if axis < last - 1 else _triangle_of_part(axis)
        yield split_axes((axis,), (axis,), compute)


def _triangle_of_part(split: int) -> Any:
    def compute(part: Part, x: Tensor, lower: bool, offset: int) -> Tensor:
        rows, columns = (_places(part, x, axis, axis == split) for axis in (x.ndim - 2, x.ndim - 1))
        names = ("less_equal", "greater_equal")
        is_kept = apply(PRIMITIVES[names[not lower]], columns, rows + offset)
        return apply(PRIMITIVES["where"], is_kept, x, _zeros(x, x.shape))

    return compute


def _places(part: Part, x: Tensor, axis: int, is_split: bool) -> Tensor:
    """Each element's place along an axis of the whole."""
    line = apply(PRIMITIVES["iota"], shape=x.shape, dtype=INDEX, axis=axis)
    return line + part.index() * x.shape[axis] if is_split else line


def _zeros(x: Tensor, shape: Shape) -> Tensor:
    value = False if x.dtype is bool_ else 0
    return apply(PRIMITIVES["full"], shape=shape, dtype=x.dtype, value=value)


# --- all axes but some ---------------------------------------------------------------------------


def beside_axes(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """All axes but those that the parameter `axis` or `axes` names, which results may have lost."""
    named = params["axes"] if "axes" in params else (params["axis"],)
    rank = operands[0].ndim
    for axis in range(rank):
        if axis in named:
            continue
        lost = sum(1 for each in named if each < axis)
        places = [axis if result.ndim == rank else axis - lost for result in results]
        yield split_axes((axis,) * len(operands), places)


def before_last(core: int) -> Rule:
    """All axes before the last ones, which every operand and result has: stacks of matrices."""

    def rule(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
        for axis in range(operands[0].ndim - core):
            yield split_axes((axis,) * len(operands), (axis,) * len(results))

    return rule


def before_windows(
    operands: Types, results: Types, params: Params, count: int
) -> Iterator[Strategy]:
    """All axes before those that windows move along."""
    return iter(before_last(len(params["window"]))(operands, results, params, count))


def of_searchsorted(
    operands: Types, results: Types, params: Params, count: int
) -> Iterator[Strategy]:
    """The values searched for, and rows of lines with values of their own."""
    last = operands[0].ndim - 1
    yield split_axes((None, last), (last,))
    for axis in range(last):
        yield split_axes((axis, axis), (axis,))


# --- products ------------------------------------------------------------------------------------


def of_dot(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """Batch and free axes give split results, contracted ones terms of the whole."""
    contract, batch = params["contract"], params["batch"]
    for place, axes in enumerate(zip(*batch, strict=True)):
        yield split_axes(axes, (place,))
    place = len(batch[0])
    for side in (0, 1):
        for axis in range(operands[side].ndim):
            if axis not in (*contract[side], *batch[side]):
                split_operands = (axis, None) if side == 0 else (None, axis)
                yield split_axes(split_operands, (place,))
                place += 1
    for axes in zip(*contract, strict=True):
        yield split_to_terms(axes)


def of_convolution(form: str) -> Rule:
    """Batches, channels and groups of a convolution, whose operands and result are named.

    form: as in "xwy", where x is [N, C, *size], w is [O, C/groups, *kernel], y is [N, O, *out].
    """
    axis_of = {"x": {"N": 0, "C": 1}, "w": {"O": 0, "C": 1}, "y": {"N": 0, "O": 1}}

    def rule(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
        groups = params["groups"]
        if groups > 1 and groups % count == 0:  # a group is a slice of C in x, and of O in w and y
            of_groups = [{"x": 1, "w": 0, "y": 1}[name] for name in form]
            yield split_axes(of_groups[:2], of_groups[2:], groups=groups // count)
        for letter in "N" if groups > 1 else "NCO":
            axes = [axis_of[name].get(letter) for name in form]
            if axes[2] is None:
                yield split_to_terms(axes[:2])
            else:
                yield split_axes(axes[:2], axes[2:])

    return rule


def of_attention(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """Batches, heads and, without a causal offset, queries; nothing where a key drops some."""
    if params.get("kept", 1.0) < 1:
        return
    q, k = operands[0], operands[1]
    rank = q.ndim
    is_gradient = len(results) == 3
    stacked = 6 if is_gradient else 3
    for axis in range(rank - 1):
        is_time = axis == rank - 2
        if is_time and params["offset"] is not None:
            continue
        shared = is_time or k.shape[axis] != q.shape[axis]
        if shared and is_gradient and not is_time:
            continue
        keys = None if shared else axis
        axes = [axis, keys, keys, *[axis] * (stacked - 3)]
        masks = [_aligned_axis(x.shape, axis - (rank - x.ndim)) for x in operands[stacked:]]
        given = split_axes([*axes, *masks], ())
        terms: Placement = SUM if is_time else Split(axis)
        backward = (Split(axis), terms, terms)
        yield Strategy(given.operands, backward if is_gradient else (Split(axis), Split(axis)))


def _aligned_axis(shape: Shape, axis: int) -> int | None:
    """An axis of an operand that broadcasts, where it has one that is not repeated."""
    return axis if axis >= 0 and shape[axis] != 1 else None


# --- elements at places --------------------------------------------------------------------------


def of_gather(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
    """Axes of the indices, axes of x that no index addresses, and addressed ones.

    Where an addressed axis is split (the vocabulary of an embedding), each device reads the rows
    that it holds, and zeros for others: the result is the sum of all.
    """
    x, first = operands[0], operands[1]
    indices, axes = len(operands) - 1, params["axes"]
    for axis in range(first.ndim):
        yield split_axes((None, *[axis] * indices), (axis,))
    for place, axis in enumerate(_other_axes(x.ndim, axes)):
        yield split_axes((axis, *[None] * indices), (first.ndim + place,))
    if x.dtype is not bool_:
        for number, axis in enumerate(axes):
            given = split_axes((axis, *[None] * indices), ())
            yield Strategy(given.operands, (SUM,), compute=_gather_own_rows(number))


def _gather_own_rows(number: int) -> Any:
    def compute(part: Part, x: Tensor, *indices: Tensor, axes: tuple[int, ...]) -> Tensor:
        size = x.shape[axes[number]]
        held, is_inside = _local_places(part, indices[number], size, elsewhere=0)
        moved = (*indices[:number], held, *indices[number + 1 :])
        rows = apply(PRIMITIVES["gather"], x, *moved, axes=axes)
        column = (*is_inside.shape, *[1] * (rows.ndim - is_inside.ndim))
        mask = apply(PRIMITIVES["reshape"], is_inside, shape=column)
        return apply(PRIMITIVES["where"], mask, rows, _zeros(rows, rows.shape))

    return compute


def _local_places(part: Part, index: Tensor, size: Any, elsewhere: Any) -> tuple[Tensor, Tensor]:
    """Places in this device's part of an axis, and which of them lie inside it.

    Those in the parts of other devices are one place. What lies outside of the whole axis stays as
    it is, and so is out of range here, too: every device says so.
    """
    local = index - part.index() * size
    is_inside = _is_between(local, size)
    other = apply(
        PRIMITIVES["where"], _is_between(index, size * part.count), _index(elsewhere), index
    )
    return apply(PRIMITIVES["where"], is_inside, local, other), is_inside


def _is_between(place: Tensor, size: Any) -> Tensor:
    """Which places are at least 0 and below a size."""
    return apply(
        PRIMITIVES["logical_and"],
        apply(PRIMITIVES["greater_equal"], place, _index(0)),
        apply(PRIMITIVES["less"], place, _index(size)),
    )


def _index(value: Any) -> Tensor:
    return apply(PRIMITIVES["full"], shape=(), dtype=INDEX, value=value)


def _other_axes(rank: int, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(rank) if axis not in axes]


def of_scatter(terms: Mapping[str, Partial] | None) -> Rule:
    """Axes that no index addresses, addressed ones and, where updates combine, their own axes.

    terms: what becomes of x and of the result where updates are split: a partial sum is updated
    to one; of a maximum, each device updates the whole.
    """

    def rule(operands: Types, results: Types, params: Params, count: int) -> Iterator[Strategy]:
        x, first = operands[0], operands[2]
        indices, axes = len(operands) - 2, params["axes"]
        for place, axis in enumerate(_other_axes(x.ndim, axes)):
            yield split_axes((axis, first.ndim + place, *[None] * indices), (axis,))
        for number, axis in enumerate(axes):
            given = (axis, None, *[None] * indices)
            yield split_axes(given, (axis,), _scatter_own_rows(number))
        for axis in range(first.ndim if terms is not None else 0):
            assert terms is not None
            split_updates = (Split(axis),) * (1 + indices)
            yield Strategy((terms.get("x", REPLICATED), *split_updates), (terms["result"],))

    return rule


def _scatter_own_rows(number: int) -> Any:
    """Writes to rows that other devices hold go to one more row, which is cut off again."""

    def compute(part: Part, x: Tensor, updates: Tensor, *indices: Tensor, **params: Any) -> Tensor:
        axis = params["axes"][number]
        size = x.shape[axis]
        row, _ = _local_places(part, indices[number], size, elsewhere=size)
        moved = (*indices[:number], row, *indices[number + 1 :])
        spare = _zeros(x, replace_size(x.shape, axis, 1))
        longer = apply(PRIMITIVES["concatenate"], x, spare, axis=axis)
        if "unique" in params:  # several updates may go to the spare row
            params = {**params, "unique": False}
        written = apply(part.primitive, longer, updates, *moved, **params)
        bounds = {"starts": (0,) * x.ndim, "stops": x.shape, "strides": (1,) * x.ndim}
        return apply(PRIMITIVES["slice"], written, **bounds)

    return compute


def of_dynamic_slice(
    operands: Types, results: Types, params: Params, count: int
) -> Iterator[Strategy]:
    """Axes that are read whole, whatever the start."""
    starts = [None] * (len(operands) - 1)
    for axis, (whole, part) in enumerate(zip(operands[0].shape, params["sizes"], strict=True)):
        if whole == part and isinstance(whole, int):
            sizes = replace_size(params["sizes"], axis, whole // count)
            yield split_axes((axis, *starts), (axis,), sizes=sizes)


def of_dynamic_update_slice(
    operands: Types, results: Types, params: Params, count: int
) -> Iterator[Strategy]:
    """Axes that are written whole, whatever the start."""
    starts = [None] * (len(operands) - 2)
    for axis, (whole, part) in enumerate(zip(operands[0].shape, operands[1].shape, strict=True)):
        if whole == part:
            yield split_axes((axis, axis, *starts), (axis,))


def of_placed_box(
    operands: Types, results: Types, params: Params, count: int
) -> Iterator[Strategy]:
    """Axes without a place that stay as they are."""
    before, after, places = operands[0].shape, results[0].shape, [None] * (len(operands) - 1)
    if len(before) != len(after):
        return
    for axis, dim in enumerate(before):
        if axis in params["along"] or after[axis] != dim or not isinstance(dim, int):
            continue
        parts: dict[str, Any] = {
            name: replace_size(params[name], axis, dim // count)
            for name in ("sizes", "shape")
            if name in params
        }
        yield split_axes((axis, *places), (axis,), **parts)


# --- random bits ---------------------------------------------------------------------------------


def of_random_bits(
    operands: Types, results: Types, params: Params, count: int
) -> Iterator[Strategy]:
    """Keys; and axes of the draw, of which each device draws all and keeps its part.

    So the numbers of the whole are the same on every mesh.
    """
    keys = operands[1].ndim
    for axis in range(keys):
        yield split_axes((axis, axis), (axis,))
    for axis in range(keys, results[0].ndim):
        drawn = split_axes((None, None), (axis,), _draw_part(axis))
        yield Strategy(drawn.operands, drawn.results, compute=drawn.compute, is_divided=False)


def _draw_part(axis: int) -> Any:
    def compute(part: Part, key: Tensor, data: Tensor, **params: Any) -> Tensor:
        whole = apply(part.primitive, key, data, **params)
        return slice_part(part, whole, axis)

    return compute


def slice_part(part: Part, whole: Tensor, axis: int) -> Tensor:
    """This device's part of a value that every device holds."""
    size = whole.shape[axis] // part.count
    starts = [_index(0)] * whole.ndim
    starts[axis] = part.index() * size
    sizes = replace_size(whole.shape, axis, size)
    result: Tensor = apply(PRIMITIVES["dynamic_slice"], whole, *starts, sizes=sizes)
    return result
