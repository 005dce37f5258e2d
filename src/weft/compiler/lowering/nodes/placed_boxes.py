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
    KernelBuilder,
    Loop,
    NodeKernel,
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


def _places(builder: KernelBuilder) -> dict[int, Scalar]:
    """The place along each axis that has one."""
    return {axis: builder.operands[1 + i][0] for i, axis in enumerate(builder.params["along"])}


def _loops(builder: KernelBuilder) -> list[Loop]:
    """A loop for each axis of the result."""
    return [
        (scalars.index(f"i{axis}"), builder.extent(dim))
        for axis, dim in enumerate(builder.shape(-1))
    ]


@kernel_of("slice_at")
def slice_at(builder: KernelBuilder) -> NodeKernel:
    """Every so many elements, from places on."""
    steps, strides, base = builder.strides(0), builder.params["strides"], ZERO
    for axis, place in _places(builder).items():
        base = base + place * builder.extent(steps[axis])
    apart = [step * stride for step, stride in zip(steps, strides, strict=True)]
    sizes = builder.params["sizes"]
    loops, (source, target) = builder.walk("i", sizes, apart, strides_of(sizes))
    store = Store(builder.result, target, builder.operands[0][base + source])
    return builder.kernel(nest(loops, (store,)), size(builder.shape(-1)))


@kernel_of("lay_at")
def lay_at(builder: KernelBuilder) -> NodeKernel:
    """An element of x where one is laid, zero elsewhere."""
    places, strides, parts = _places(builder), builder.params["strides"], builder.params["sizes"]
    steps = strides_of(parts)
    loops, conditions, source = _loops(builder), list[Scalar](), ZERO
    for axis, (index, _) in enumerate(loops):
        inside = index - places[axis] if axis in places else index
        if strides[axis] != 1:
            step, moved = builder.extent(strides[axis]), inside
            inside = moved // step
            conditions += [scalars.less_equal(ZERO, moved), scalars.equal(inside * step, moved)]
        if axis in places or strides[axis] != 1:
            conditions.append(is_within(inside, builder.extent(parts[axis])))
        source = source + inside * builder.extent(steps[axis])
    value = scalars.load(builder.operands[0], source, all_conditions(conditions))
    target = builder.offset([index for index, _ in loops], builder.strides(-1))
    return builder.kernel(
        nest(loops, (Store(builder.result, target, value),)), size(builder.shape(-1))
    )


@kernel_of("roll_at")
def roll_at(builder: KernelBuilder) -> NodeKernel:
    """The element so many places before, counted round."""
    places, loops, indices = _places(builder), _loops(builder), list[Scalar]()
    for axis, (index, extent) in enumerate(loops):
        if axis not in places:
            indices.append(index)
        elif builder.params["back"]:
            moved = index + places[axis]
            indices.append(scalars.select(scalars.less(moved, extent), moved, moved - extent))
        else:
            moved = index - places[axis]
            indices.append(scalars.select(scalars.less(moved, ZERO), moved + extent, moved))
    source = builder.offset(indices, builder.strides(0))
    target = builder.offset([index for index, _ in loops], builder.strides(-1))
    store = Store(builder.result, target, builder.operands[0][source])
    return builder.kernel(nest(loops, (store,)), size(builder.shape(-1)))
