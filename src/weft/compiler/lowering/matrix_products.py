"""Products as stacks of matrices, and what brings operands into such an order, for any target.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda a, b: a @ b, wf.spec("float32", (4, 3)), wf.spec("float32", (3, 5)))
>>> form_of(graph.nodes[0]).shape
(1, 4, 5, 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.core.dtypes import DType
from weft.core.records import frozen
from weft.core.shapes import Dimension, size, substitute
from weft.ir.graph import Atom, GraphNode, Variable
from weft.ops.contraction import free_axes
from weft.ops.movement import transpose

UNKNOWN = 1 << 40
"""What a number of elements that is not known is taken for."""


@frozen
class Product:
    """A stack of products of matrices: [stack, rows, inner] times [stack, inner, columns]."""

    dtype: DType
    shape: tuple[Dimension, Dimension, Dimension, Dimension]
    """How many products, rows, columns, and terms of each sum."""
    turned: tuple[bool, bool]
    """Whether each operand lies in memory transposed."""

    def numbers(self, sizes: Mapping[str, int]) -> list[int]:
        """How many products, rows, columns and terms there are, for some sizes."""
        return [int(substitute(dim, dict(sizes))) for dim in self.shape]


def form_of(node: GraphNode) -> Product | None:
    """A node as a stack of products of matrices; None where its operands lie otherwise."""
    a, b = (operand.type for operand in node.operands)
    contract, batch = node.params["contract"], node.params["batch"]
    if any(tuple(axes) != tuple(range(len(axes))) for axes in batch):
        return None
    left = _is_transpose(a.ndim, batch[0], contract[0], inner_last=True)
    right = _is_transpose(b.ndim, batch[1], contract[1], inner_last=False)
    if left is None or right is None or not _same_order(contract):
        return None
    rows = size(a.shape[axis] for axis in free_axes(a.ndim, contract[0], batch[0]))
    columns = size(b.shape[axis] for axis in free_axes(b.ndim, contract[1], batch[1]))
    inner = size(a.shape[axis] for axis in contract[0])
    stack = size(a.shape[axis] for axis in batch[0])
    return Product(a.dtype, (stack, rows, columns, inner), (left, right))


def _same_order(contract: tuple[Sequence[int], Sequence[int]]) -> bool:
    pairs = list(zip(*contract, strict=True))
    return sorted(pairs) == sorted(pairs, key=lambda pair: pair[1])


def _is_transpose(
    ndim: int, batch: Sequence[int], contract: Sequence[int], *, inner_last: bool
) -> bool | None:
    """Whether an operand is the transpose of what the product wants; None if it is neither."""
    free = free_axes(ndim, tuple(contract), tuple(batch))
    inner = tuple(sorted(contract))
    rest = tuple(range(len(batch), ndim))
    plain = free + inner if inner_last else inner + free
    if rest == plain:
        return False
    return True if rest == (inner + free if inner_last else free + inner) else None


def arrange_operands(node: GraphNode) -> list[GraphNode]:
    """The product after a transpose of each operand that does not lie as it should.

    The terms may be summed in the order of either operand's axes: fewer elements are then moved.
    """
    pairs = list(zip(*node.params["contract"], strict=True))
    orders = [sorted(pairs, key=lambda pair: pair[side]) for side in (0, 1)]
    options = [[_side(node, side, order) for side in (0, 1)] for order in orders]
    sides = min(options, key=_moved_elements)
    turned = [turn for turn, _, _ in sides if turn is not None]
    operands = tuple(operand for _, operand, _ in sides)
    stack = tuple(range(len(node.params["batch"][0])))
    params = {"contract": tuple(inner for _, _, inner in sides), "batch": (stack, stack)}
    return [*turned, GraphNode(node.primitive, operands, params, node.results, node.location)]


Side = tuple[GraphNode | None, Atom, tuple[int, ...]]
"""A transpose where one is needed, the operand after it, and the axes that are summed over."""


def _moved_elements(sides: Sequence[Side]) -> int:
    """How many elements transposes move, as far as that is known."""
    counts = [operand.type.size for turn, operand, _ in sides if turn is not None]
    return sum(count if isinstance(count, int) else UNKNOWN for count in counts)


def _side(node: GraphNode, side: int, pairs: Sequence[tuple[int, int]]) -> Side:
    """One operand, with the sum's axes in the order of some pairs."""
    operand = node.operands[side]
    ndim, inner_last = operand.type.ndim, side == 0
    inner, batch = tuple([pair[side] for pair in pairs]), tuple(node.params["batch"][side])
    leading = batch == tuple(range(len(batch)))
    ordered = inner == tuple(sorted(inner))
    if leading and ordered and _is_transpose(ndim, batch, inner, inner_last=inner_last) is not None:
        return None, operand, inner
    free = free_axes(ndim, inner, batch)
    turn = _turn(operand, batch + (free + inner if inner_last else inner + free), node)
    start = ndim - len(inner) if inner_last else len(batch)
    return turn, turn.results[0], tuple(range(start, start + len(inner)))


def _turn(operand: Atom, order: tuple[int, ...], node: GraphNode) -> GraphNode:
    shape = tuple(operand.type.shape[axis] for axis in order)
    result = Variable(operand.type.with_shape(shape))
    return GraphNode(transpose, (operand,), {"order": order}, (result,), node.location)
