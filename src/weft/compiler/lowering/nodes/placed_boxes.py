"""Kernels of slices, what is laid among zeros, and rolls, at places that are data.

Each element of the result is one loop iteration, which nothing stands beside: on a card all of them
are a grid, and each reads the few places for itself.

>>> import weft as wf
>>> from weft.ir.dispatch import apply
>>> from weft.ops.placed_boxes import lay_at
>>> box = {"along": (0,), "sizes": (2,), "strides": (2,)}
>>> lay = wf.jit(lambda x, start: apply(lay_at, x, start, **box, shape=(5,)))
>>> lay(wf.tensor([1, 2]), wf.tensor(1)).tolist()
[0, 1, 0, 2, 0]
"""

from __future__ import annotations

from weft.compiler.lowering.builder import (
    ZERO,
    Draft,
    Loop,
    SingleKernel,
    all_conditions,
    is_within,
    kernel_of,
    nest,
)
from weft.core.shapes import size
from weft.ir import scalars
from weft.ir.affine_index import strides as strides_of
from weft.ir.loops import Store
from weft.ir.scalars import Scalar


def _places(draft: Draft) -> dict[int, Scalar]:
    """The place along each axis that has one."""
    return {axis: draft.operands[1 + i][0] for i, axis in enumerate(draft.params["along"])}


def _loops(draft: Draft) -> list[Loop]:
    """A loop for each axis of the result."""
    return [
        (scalars.index(f"i{axis}"), draft.extent(dim)) for axis, dim in enumerate(draft.shape(-1))
    ]


@kernel_of("slice_at")
def slice_at(draft: Draft) -> SingleKernel:
    """Every so many elements, from places on."""
    steps, strides, base = draft.strides(0), draft.params["strides"], ZERO
    for axis, place in _places(draft).items():
        base = base + place * draft.extent(steps[axis])
    apart = [step * stride for step, stride in zip(steps, strides, strict=True)]
    sizes = draft.params["sizes"]
    loops, (source, target) = draft.walk("i", sizes, apart, strides_of(sizes))
    store = Store(draft.result, target, draft.operands[0][base + source])
    return draft.kernel(nest(loops, (store,)), size(draft.shape(-1)))


@kernel_of("lay_at")
def lay_at(draft: Draft) -> SingleKernel:
    """An element of x where one is laid, zero elsewhere."""
    places, strides, parts = _places(draft), draft.params["strides"], draft.params["sizes"]
    steps = strides_of(parts)
    loops, conditions, source = _loops(draft), list[Scalar](), ZERO
    for axis, (index, _) in enumerate(loops):
        inside = index - places[axis] if axis in places else index
        if strides[axis] != 1:
            step, moved = draft.extent(strides[axis]), inside
            inside = moved // step
            conditions += [scalars.less_equal(ZERO, moved), scalars.equal(inside * step, moved)]
        if axis in places or strides[axis] != 1:
            conditions.append(is_within(inside, draft.extent(parts[axis])))
        source = source + inside * draft.extent(steps[axis])
    value = scalars.load(draft.operands[0], source, all_conditions(conditions))
    target = draft.offset([index for index, _ in loops], draft.strides(-1))
    return draft.kernel(nest(loops, (Store(draft.result, target, value),)), size(draft.shape(-1)))


@kernel_of("roll_at")
def roll_at(draft: Draft) -> SingleKernel:
    """The element so many places before, counted round."""
    places, loops, indices = _places(draft), _loops(draft), list[Scalar]()
    for axis, (index, extent) in enumerate(loops):
        if axis not in places:
            indices.append(index)
        elif draft.params["back"]:
            moved = index + places[axis]
            indices.append(scalars.select(scalars.less(moved, extent), moved, moved - extent))
        else:
            moved = index - places[axis]
            indices.append(scalars.select(scalars.less(moved, ZERO), moved + extent, moved))
    source = draft.offset(indices, draft.strides(0))
    target = draft.offset([index for index, _ in loops], draft.strides(-1))
    store = Store(draft.result, target, draft.operands[0][source])
    return draft.kernel(nest(loops, (store,)), size(draft.shape(-1)))
