"""Which element of its operands an element of a movement's result is: arithmetic on indices.

Each function is the `read` of a `Movement`: given a reader, a node and the index of one element of
its result, it says what that element is. The compiler writes movement into what reads it by these.

>>> from weft.ir.affine_index import Affine
>>> align_index((Affine.variable(0), Affine.variable(1)), (1, 5), (4, 5))
(0, i1)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.shapes import Shape
from weft.ir.affine_index import Affine
from weft.ir.graph import GraphNode
from weft.ir.kinds import ElementReader, Index


def align_index(index: Index, operand: Shape, result: Shape) -> Index:
    """The index of a broadcast operand's element that goes into an element of the result."""
    extra = len(result) - len(operand)
    return tuple(
        Affine() if dim == 1 and result[axis + extra] != 1 else index[axis + extra]
        for axis, dim in enumerate(operand)
    )


def of_transpose(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """The axes in another order."""
    order = node.params["order"]
    operand_index = [Affine()] * len(order)
    for place, axis in enumerate(order):
        operand_index[axis] = index[place]
    return reader.element_at(node.operands[0], tuple(operand_index))


def of_broadcast(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """The same element all along an axis that is repeated."""
    operand = node.operands[0]
    return reader.element_at(operand, align_index(index, operand.type.shape, node.params["shape"]))


def of_reshape(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """Only axes of size 1 come and go: other reshapes are not read element by element."""
    operand = node.operands[0]
    indices_of_long_axes = [
        i for i, dim in zip(index, node.params["shape"], strict=True) if dim != 1
    ]
    places = iter(indices_of_long_axes)
    return reader.element_at(
        operand, tuple(Affine() if dim == 1 else next(places) for dim in operand.type.shape)
    )


def of_slice(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """Every so many elements, from a start."""
    starts, strides = node.params["starts"], node.params["strides"]
    operand_index = [
        i * stride + start for i, start, stride in zip(index, starts, strides, strict=True)
    ]
    return reader.element_at(node.operands[0], tuple(operand_index))


def of_flip(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """Counted from the end of some axes."""
    operand = node.operands[0]
    axes = node.params["axes"]
    operand_index = [
        i * -1 + (operand.type.shape[axis] - 1) if axis in axes else i
        for axis, i in enumerate(index)
    ]
    return reader.element_at(operand, tuple(operand_index))


def of_pad(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """An element of the operand, or the number around it."""
    operand = node.operands[0]
    operand_index = [i + -low for i, (low, _, _) in zip(index, node.params["padding"], strict=True)]
    conditions = [
        (i, dim)
        for i, dim, sides in zip(
            operand_index, operand.type.shape, node.params["padding"], strict=True
        )
        if sides != (0, 0, 0)
    ]
    inside = reader.element_at(operand, tuple(operand_index))
    return reader.choice(conditions, inside, reader.number(node.params["value"], node))


def of_concatenate(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """An element of the part that lies there."""
    axis = node.params["axis"]
    end = node.results[0].type.shape[axis]
    element: Any = None
    for operand in reversed(node.operands):
        extent = operand.type.shape[axis]
        start = end - extent
        operand_index = (*index[:axis], index[axis] + -start, *index[axis + 1 :])
        part, within = reader.element_at(operand, operand_index), [(operand_index[axis], extent)]
        # the last part is what is left over: elsewhere its index is out of bounds
        element = (
            reader.only_where(within, part)
            if element is None
            else reader.choice(within, part, element)
        )
        end = start
    return element


def of_identity(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """The element at the same place."""
    return reader.element_at(node.operands[0], index)


def of_full(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """The number that all elements are."""
    return reader.number(node.params["value"], node)


def of_iota(reader: ElementReader[Any], node: GraphNode, index: Index) -> Any:
    """The place along an axis, as a number."""
    return reader.position(index[node.params["axis"]], node)


def is_padded_outside(params: Mapping[str, Any]) -> bool:
    """Whether nothing is put between elements."""
    return all(between == 0 for _, _, between in params["padding"])
