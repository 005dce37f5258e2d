"""Movement: transposes, reshapes, broadcasts, slices and joins that cancel or become one.

Element-wise operations broadcast by themselves, so a `broadcast_to` before one is dropped. Products
name their axes, so a transpose before or behind one is absorbed.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x.T.T + wf.broadcast_to(x[0], (2, 3)), wf.spec("float32", (2, 3)))
>>> print(absorb_movement(rearrange.apply(graph)))  # doctest: +ELLIPSIS
graph(a: f32[2, 3]) {
  b: f32[1, 3] = slice(a, starts=(0, 0), stops=(1, 3), strides=(1, 1))...
  c: f32[3] = reshape(b, shape=(3,))...
  d: f32[2, 3] = add(a, c)...
  return d
}
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.core.shapes import Dimension, Shape
from weft.core.types import TensorType, spec
from weft.ir.dispatch import apply
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.rewriting import RuleSet
from weft.ir.tensor import Tensor
from weft.ir.walking import Tally, Walk, replace_node
from weft.ops import movement
from weft.ops.contraction import Axes, dot, free_axes

__all__ = ["absorb_movement", "rearrange"]

rearrange = RuleSet("rearrange")

Order = tuple[int, ...]
Padding = tuple[tuple[Dimension, Dimension, Dimension], ...]
_CUBE = spec("float32", (2, 3, 4))
transposed = partial(apply, movement.transpose)
reshaped = partial(apply, movement.reshape)
spread = partial(apply, movement.broadcast_to)
flipped = partial(apply, movement.flip)
sliced = partial(apply, movement.slice_)
padded = partial(apply, movement.pad)
joined = partial(apply, movement.concatenate)
product = partial(apply, dot)


def absorb_movement(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with less movement before operations on any number of operands."""
    return _Absorb(graph, tally).run()


# --- transposes and reshapes -------------------------------------------------------------------


@rearrange.rule(lambda x, order=(0, 1): transposed(x, order=order))
def transpose_nothing(x: Tensor, order: Order) -> Tensor | None:
    """A transpose that leaves every axis where it is."""
    return x if order == tuple(range(x.ndim)) else None


@rearrange.rule(
    lambda x, first=(1, 2, 0), second=(2, 1, 0): transposed(
        transposed(x, order=first), order=second
    ),
    on=_CUBE,
)
def transpose_twice(x: Tensor, first: Order, second: Order) -> Tensor:
    """Two transposes are one."""
    return transposed(x, order=tuple([first[axis] for axis in second]))


@rearrange.rule(
    lambda x, order=(1, 2, 0): transposed(x, order=order),
    on=spec("float32", (1, 2, 3)),
    cases=[{"order": (0, 2, 1)}],
)
def transpose_ones(x: Tensor, order: Order) -> Tensor | None:
    """A transpose that only moves axes of size 1 is a reshape."""
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved != sorted(moved) or len(moved) == x.ndim:
        return None
    return reshaped(x, shape=tuple([x.shape[axis] for axis in order]))


@rearrange.rule(lambda x, shape=(2, 3): reshaped(x, shape=shape))
def reshape_nothing(x: Tensor, shape: Shape) -> Tensor | None:
    """A reshape to the shape that is there."""
    return x if x.shape == shape else None


@rearrange.rule(
    lambda x, first=(3, 2), second=(6,): reshaped(reshaped(x, shape=first), shape=second)
)
def reshape_twice(x: Tensor, first: Shape, second: Shape) -> Tensor:
    """Two reshapes are one."""
    return reshaped(x, shape=second)


@rearrange.rule(lambda x, axes=(): flipped(x, axes=axes))
def flip_nothing(x: Tensor, axes: Order) -> Tensor | None:
    """A flip of axes with at most one element."""
    return x if all(x.shape[axis] in (0, 1) for axis in axes) else None


@rearrange.rule(
    lambda x, first=(0, 1), second=(0,): flipped(flipped(x, axes=first), axes=second),
    cases=[{"first": (1,), "second": (1,)}],
)
def flip_twice(x: Tensor, first: Order, second: Order) -> Tensor:
    """Flips of an axis cancel in pairs."""
    return flipped(x, axes=tuple(sorted(set(first) ^ set(second))))


# --- broadcasts --------------------------------------------------------------------------------


@rearrange.rule(lambda x, shape=(2, 3): spread(x, shape=shape))
def spread_nothing(x: Tensor, shape: Shape) -> Tensor | None:
    """A broadcast to the shape that is there."""
    return x if x.shape == shape else None


@rearrange.rule(
    lambda x, first=(4, 2, 3), second=(5, 4, 2, 3): spread(spread(x, shape=first), shape=second)
)
def spread_twice(x: Tensor, first: Shape, second: Shape) -> Tensor:
    """Two broadcasts are one."""
    return spread(x, shape=second)


def _shape_of_rank(shape: Shape, rank: int) -> Shape:
    """The shape with ones in front, up to a rank."""
    return (1,) * (rank - len(shape)) + shape


@rearrange.rule(
    lambda x, first=(1, 1, 2, 3), second=(5, 4, 2, 3): spread(
        reshaped(x, shape=first), shape=second
    ),
    cases=[{"first": (2, 3), "second": (4, 2, 3)}],
)
def spread_new_axes(x: Tensor, first: Shape, second: Shape) -> Tensor | None:
    """A broadcast makes leading axes by itself."""
    return spread(x, shape=second) if first == _shape_of_rank(x.shape, len(first)) else None


# --- slices, paddings and joins ----------------------------------------------------------------


def _cut_box(x: Tensor, starts: Shape, stops: Shape, strides: Shape) -> Tensor:
    return sliced(x, starts=starts, stops=stops, strides=strides)


@rearrange.rule(
    lambda x, starts=(0, 0), stops=(2, 3), strides=(1, 1): _cut_box(x, starts, stops, strides)
)
def slice_everything(x: Tensor, starts: Shape, stops: Shape, strides: Shape) -> Tensor | None:
    """A slice of all elements."""
    whole = (
        stops == x.shape
        and all(start == 0 for start in starts)
        and all(stride == 1 for stride in strides)
    )
    return x if whole else None


@rearrange.rule(
    lambda x, a=(3, 0), b=(9, 5), c=(2, 1), d=(1, 2), e=(3, 4), f=(2, 2): _cut_box(
        _cut_box(x, a, b, c), d, e, f
    ),
    on=spec("float32", (10, 5)),
    cases=[
        {"a": (2, 0), "b": (10, 5), "c": (3, 1), "d": (0, 1), "e": (3, 5), "f": (1, 3)},
        {"a": (2, 0), "b": (10, 5), "c": (3, 1), "d": (3, 1), "e": (3, 5), "f": (1, 3)},
    ],
)
def slice_twice(
    x: Tensor, a: Shape, b: Shape, c: Shape, d: Shape, e: Shape, f: Shape
) -> Tensor | None:
    """A slice of a slice, neither of which is empty, is a slice."""
    if not all(isinstance(place, int) for place in (*a, *b, *d, *e)):
        return None
    if any(start >= stop for start, stop in (*zip(a, b, strict=True), *zip(d, e, strict=True))):
        return None
    outer, inner = zip(a, c, strict=True), zip(d, e, f, strict=True)
    each = [(*one, *other) for one, other in zip(outer, inner, strict=True)]
    starts = [start + stride * first for start, stride, first, _, _ in each]
    stops = [start + stride * (last - 1) + 1 for start, stride, _, last, _ in each]
    return _cut_box(
        x, tuple(starts), tuple(stops), tuple([stride * step for _, stride, _, _, step in each])
    )


@rearrange.rule(
    lambda x, padding=((0, 0, 0), (0, 0, 0)), value=2.5: padded(x, padding=padding, value=value)
)
def pad_nothing(x: Tensor, padding: Padding, value: float) -> Tensor | None:
    """A padding of no width."""
    return None if any(width != 0 for sides in padding for width in sides) else x


@rearrange.rule(
    lambda x, padding=((1, 2, 0), (0, 1, 0)), value=2.5, a=(1, 0), b=(3, 3), c=(1, 1): _cut_box(
        padded(x, padding=padding, value=value), a, b, c
    )
)
def slice_inside(
    x: Tensor, padding: Padding, value: float, a: Shape, b: Shape, c: Shape
) -> Tensor | None:
    """The slice of a padding that takes it off again."""
    sides = zip(padding, a, b, x.shape, strict=True)
    inside = all(
        side == (start, side[1], 0) and stop == start + dim for side, start, stop, dim in sides
    )
    return x if inside and all(stride == 1 for stride in c) else None


@rearrange.rule(
    lambda x, inner=((1, 2, 0), (0, 1, 0)), outer=((1, 0, 0), (2, 0, 0)), value=2.5: padded(
        padded(x, padding=inner, value=value), padding=outer, value=value
    )
)
def pad_twice(x: Tensor, inner: Padding, outer: Padding, value: float) -> Tensor | None:
    """A padding around a padding of the same value is one."""
    if any(between != 0 for _, _, between in (*inner, *outer)):
        return None
    sides = [(a + c, b + d, 0) for (a, b, _), (c, d, _) in zip(inner, outer, strict=True)]
    return padded(x, padding=tuple(sides), value=value)


@rearrange.rule(lambda x, axis=1: joined(x, axis=axis))
def join_one(x: Tensor, axis: int) -> Tensor:
    """One tensor joined to nothing."""
    return x


def _side_by_side(x: Tensor, y: Tensor, first: Padding, second: Padding) -> Tensor | None:
    """The sum of x and y among zeros, if y begins where x ends along one axis."""
    if len(first) != len(second):  # the sum spreads one of them
        return None
    apart = [axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if len(apart) != 1 or any(between != 0 for _, _, between in (*first, *second)):
        return None
    (axis,) = apart
    if second[axis][0] != first[axis][0] + x.shape[axis]:
        return None
    if any(axis != place and x.shape[place] != y.shape[place] for place in range(x.ndim)):
        return None
    ends = (first[axis][0], second[axis][1], 0)
    padding = (*first[:axis], ends, *first[axis + 1 :])
    return padded(joined(x, y, axis=axis), padding=padding, value=0.0)


@rearrange.rule(
    lambda x, y, first=((0, 3, 0), (1, 0, 0)), second=((2, 1, 0), (1, 0, 0)): (
        padded(x, padding=first, value=0.0) + padded(y, padding=second, value=0.0)
    ),
    signed_zeros=False,
)
def add_neighbours(x: Tensor, y: Tensor, first: Padding, second: Padding) -> Tensor | None:
    """The sum of tensors among zeros that lie side by side is a join, up to the sign of zeros.

    This is how the gradients of the parts of a split meet.
    """
    found = _side_by_side(x, y, first, second)
    return found if found is not None else _side_by_side(y, x, second, first)


# --- products ----------------------------------------------------------------------------------


def _axes_before_transpose(
    order: Order, contract: Order, batch: Order
) -> tuple[Order, Order] | None:
    """The axes of a product before a transpose; None where the free ones change their order."""
    free = [order[axis] for axis in free_axes(len(order), contract, batch)]
    if free != sorted(free):
        return None
    return tuple([order[axis] for axis in contract]), tuple([order[axis] for axis in batch])


@rearrange.rule(
    lambda x, y, order=(1, 0), contract=((1,), (0,)), batch=((), ()): product(
        transposed(x, order=order), y, contract=contract, batch=batch
    ),
    on=[spec("float32", (3, 2)), spec("float32", (3, 4))],
)
def product_of_transpose(
    x: Tensor, y: Tensor, order: Order, contract: Axes, batch: Axes
) -> Tensor | None:
    """A product reads its left operand along any axes."""
    found = _axes_before_transpose(order, contract[0], batch[0])
    if found is None:
        return None
    return product(x, y, contract=(found[0], contract[1]), batch=(found[1], batch[1]))


@rearrange.rule(
    lambda x, y, order=(1, 0), contract=((1,), (0,)), batch=((), ()): product(
        x, transposed(y, order=order), contract=contract, batch=batch
    ),
    on=[spec("float32", (2, 3)), spec("float32", (4, 3))],
)
def product_by_transpose(
    x: Tensor, y: Tensor, order: Order, contract: Axes, batch: Axes
) -> Tensor | None:
    """A product reads its right operand along any axes."""
    found = _axes_before_transpose(order, contract[1], batch[1])
    if found is None:
        return None
    return product(x, y, contract=(contract[0], found[0]), batch=(batch[0], found[1]))


@rearrange.rule(
    lambda x, y, order=(1, 0), contract=((1,), (0,)), batch=((), ()): transposed(
        product(x, y, contract=contract, batch=batch), order=order
    ),
    on=[spec("float32", (2, 3)), spec("float32", (3, 4))],
    lone=True,
    exact=False,
)
def transpose_of_product(
    x: Tensor, y: Tensor, order: Order, contract: Axes, batch: Axes
) -> Tensor | None:
    """The transpose of a product is the product of its operands in the other order."""
    stack = len(batch[0])
    rows = x.ndim - len(contract[0]) - stack
    turned = (*range(stack + rows, len(order)), *range(stack, stack + rows))
    if order[stack:] != turned or sorted(order[:stack]) != list(range(stack)):
        return None
    left, right = ([side[axis] for axis in order[:stack]] for side in batch)
    return product(y, x, contract=contract[::-1], batch=(tuple(right), tuple(left)))


# --- operations that broadcast and joins of many -----------------------------------------------


class _Absorb(Walk):
    """What no pattern says: operations on any number of operands."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive.broadcasts:
            return self.with_sources(node)
        if node.primitive is movement.concatenate:
            return self.flat(node)
        return self.part(node) if node.primitive is movement.slice_ else None

    def with_sources(self, node: GraphNode) -> Sequence[Atom] | None:
        """An element-wise operation on what its operands were before they were broadcast."""
        operands = node.operands
        for index, atom in enumerate(operands):
            source = self.source(atom)
            if source is atom:
                continue
            tried = (*operands[:index], source, *operands[index + 1 :])
            if _has_type(node, tried):
                operands = tried
        if operands is node.operands:
            return None
        self.tally["broadcast_before_elementwise"] += 1
        return self.put(replace_node(node, operands=operands))

    def source(self, atom: Atom) -> Atom:
        """What was broadcast, or given leading axes of size 1, to make an operand."""
        while (node := self.maker(atom)) is not None and _only_spreads(node):
            atom = node.operands[0]
        return atom

    def flat(self, node: GraphNode) -> Sequence[Atom] | None:
        """A join of joins along the same axis, without empty parts."""
        axis = node.params["axis"]
        parts: list[Atom] = []
        for atom in node.operands:
            inner = self.maker(atom)
            if (
                inner is None
                or inner.primitive is not node.primitive
                or inner.params != node.params
            ):
                parts.append(atom)
            else:
                parts.extend(inner.operands)
        kept = [atom for atom in parts if atom.type.shape[axis] != 0] or parts[:1]
        if tuple(kept) == node.operands:
            return None
        self.tally["join_of_joins"] += 1
        return [self.make(node.primitive, *kept, like=node, axis=axis)]

    def part(self, node: GraphNode) -> Sequence[Atom] | None:
        """The slice of a join that lies in one of its parts."""
        join = self.maker(node.operands[0])
        if join is None or join.primitive is not movement.concatenate:
            return None
        axis = join.params["axis"]
        low: Dimension = 0
        for atom in join.operands:
            high = low + atom.type.shape[axis]
            start, stop = (node.params[key][axis] for key in ("starts", "stops"))
            known = all(isinstance(at, int) for at in (low, high, start, stop))
            if known and low <= start and stop <= high:
                return [self.shift_slice(node, atom, axis, low)]
            low = high
        return None

    def shift_slice(self, node: GraphNode, atom: Atom, axis: int, by: Dimension) -> Atom:
        self.tally["slice_of_join"] += 1
        starts, stops = (list(node.params[key]) for key in ("starts", "stops"))
        starts[axis], stops[axis] = starts[axis] - by, stops[axis] - by
        bounds = {"starts": tuple(starts), "stops": tuple(stops)}
        return self.make(node.primitive, atom, like=node, **{**node.params, **bounds})


def _only_spreads(node: GraphNode) -> bool:
    """Whether a node does nothing that an element-wise operation would not do by itself."""
    if node.primitive is not movement.reshape:
        return node.primitive is movement.broadcast_to
    shape: Shape = node.params["shape"]
    return shape == _shape_of_rank(node.operands[0].type.shape, len(shape))


def _has_type(node: GraphNode, operands: Sequence[Atom]) -> bool:
    """Whether an element-wise operation gives the same type on other operands."""
    kinds: list[TensorType] = [atom.type for atom in operands]
    return node.primitive.type_rule(*kinds, **node.params) == node.results[0].type
