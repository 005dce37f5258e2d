"""Places: what index tensors say, in the loops that go over them.

An index that only counts along one of its own axes, as those of a batched gather do, is not read:
the loop's own index is at hand.

>>> import numpy as np
>>> from weft.ir.graph import Literal
>>> counting_axis(Literal(np.array([[0, 0], [1, 1], [2, 2]])), {})
0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    Loop,
    NodeKernel,
    Producers,
    all_conditions,
    is_within,
)
from weft.core.dtypes import INDEX, bool_
from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape, size
from weft.ir import scalars
from weft.ir.affine_index import strides
from weft.ir.graph import Literal, Variable
from weft.ir.loops import Accumulate, Let, Statement, Update
from weft.ir.scalars import Scalar
from weft.ops.creation import iota
from weft.ops.movement import broadcast_to, reshape


@frozen
class Places:
    """Loops over index tensors of one shape, and what one iteration knows.

    read: statements that read the indices and report those out of range. fits: whether all are
    within; None where that is known. base: where they lead in x. row: where the row of the other
    tensor, which has the index's shape in front, begins. batch: the axis of x that the first loop
    goes along, if one does.
    """

    loops: list[Loop]
    read: tuple[Statement, ...]
    fits: Scalar | None
    base: Scalar
    row: Scalar
    batch: int | None


def places(
    builder: KernelBuilder, first: int, row: Sequence[Dimension], *, checked: bool = True
) -> Places:
    """The places that the operands from `first` on name along `axes` of operand 0.

    checked: it is looked whether they are within; else they are known to be.
    """
    shape, axes = builder.shape(first), builder.params["axes"]
    counted = _counted_axes(builder, first)
    loops, (own, other), by_axis = _loops(builder, shape, row, any(a is not None for a in counted))
    read: list[Statement] = []
    conditions, base = [], ZERO
    for number, (axis, along) in enumerate(zip(axes, counted, strict=True)):
        index = by_axis.get(along) if along is not None else None
        if index is None:
            index = scalars.local(f"at{number}", INDEX)
            read.append(Let(index, builder.operands[first + number][own]))
            conditions.append(is_within(index, builder.extent(builder.shape(0)[axis])))
        base = base + index * builder.extent(builder.strides(0)[axis])
    fits = None
    found = all_conditions(conditions) if checked else None
    if found is not None:
        fits = scalars.local("fits", bool_)
        read += [Let(fits, found), builder.refuse(scalars.not_(fits))]
    batch = axes[counted.index(0)] if 0 in counted and shape[0] != 1 else None
    return Places(loops, tuple(read), fits, base, other, batch)


def check(builder: KernelBuilder, first: int) -> NodeKernel | None:
    """A kernel that looks whether all places are within; None where that is known."""
    i, axes, shape = scalars.index("i"), builder.params["axes"], builder.shape(first)
    asked = [n for n, along in enumerate(_counted_axes(builder, first)) if along is None]
    found = all_conditions(
        [
            is_within(builder.operands[first + n][i], builder.extent(builder.shape(0)[axes[n]]))
            for n in asked
        ]
    )
    if found is None:
        return None
    fits = scalars.local("fits", bool_)
    body = (
        Accumulate(i, builder.extent(size(shape)), (Update(fits, "and", found),)),
        builder.refuse(scalars.not_(fits)),
    )
    return builder.check(body, size(shape), [first + n for n in asked])


def _counted_axes(builder: KernelBuilder, first: int) -> list[int | None]:
    """The axis of the index that each index counts along, where it goes along all of x's."""
    found = []
    for axis, atom in zip(builder.params["axes"], builder.node.operands[first:], strict=True):
        along = counting_axis(atom, builder.producers)
        whole = along is not None and builder.shape(first)[along] == builder.shape(0)[axis]
        found.append(along if whole else None)
    return found


def _loops(
    builder: KernelBuilder, shape: Shape, row: Sequence[Dimension], apart: bool
) -> tuple[list[Loop], list[Scalar], dict[int, Scalar]]:
    """Loops over the index, apart where an index counts along one, and the offsets in them."""
    own = strides(shape)
    if not apart:
        return *builder.walk("p", shape, own, row), {}
    by_axis = {
        axis: ZERO if dim == 1 else scalars.index(f"p{axis}") for axis, dim in enumerate(shape)
    }
    loops = [(by_axis[axis], builder.extent(dim)) for axis, dim in enumerate(shape) if dim != 1]
    offsets = [builder.offset(list(by_axis.values()), each) for each in (own, row)]
    return loops, offsets, by_axis


def counting_axis(atom: Variable | Literal, producers: Producers) -> int | None:
    """The axis along which a tensor's elements are 0, 1, 2, …, the same along all others."""
    if isinstance(atom, Literal):
        return _counting_axis(atom.value)
    node = producers.get(atom)
    if node is None:
        return None
    if node.primitive is iota:
        return int(node.params["axis"])
    if node.primitive not in (broadcast_to, reshape):
        return None
    before, after = node.operands[0].type.shape, atom.type.shape
    along = counting_axis(node.operands[0], producers)
    if along is None or before[along] == 1:
        return None
    if node.primitive is broadcast_to:
        return along + len(after) - len(before)
    return _axis_after_reshape(along, before, after)


def _axis_after_reshape(axis: int, before: Shape, after: Shape) -> int | None:
    """Where an axis stands after axes of size 1 have come or gone; None where more happens."""
    if [dim for dim in before if dim != 1] != [dim for dim in after if dim != 1]:
        return None
    number = sum(1 for dim in before[:axis] if dim != 1)
    return [place for place, dim in enumerate(after) if dim != 1][number]


def _counting_axis(value: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int | None:
    for axis, dim in enumerate(value.shape):
        line = np.arange(dim).reshape(-1, *[1] * (value.ndim - axis - 1))
        if dim > 1 and (value == line).all():
            return axis
    return None
