"""The choice of layouts: convolutions with channels last, and all that lies between them.

With channels last a convolution reads and writes places as rows of a product, without a copy of a
patch; bias, normalisation, activation and residual are kernels over the same rows; sums over all
images run down columns. So every convolution that has native code gets its channels last, and the
order spreads from its result through element-wise operations, reductions, windows, slices and
joins. Transposes are left at the borders only: where a value comes in, or is wanted in its own
order. docs/design/compiler.md has the measurements that made it the choice.

>>> import weft as wf
>>> from weft.compiler.targets.target import target_named
>>> kinds = wf.spec("float32", (2, 3, 8, 8)), wf.spec("float32", (4, 3, 3, 3))
>>> graph = wf.ir.trace(lambda x, w: wf.relu(wf.conv2d(x, w)).sum(), *kinds)
>>> [node.primitive.name for node in channels_last(target_named("cpu"), graph).nodes]
['transpose', 'conv_last', 'relu', 'reduce_sum']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.graph_passes.channels_last_primitives import (
    WITH_CHANNELS_LAST,
    to_first,
    to_last,
    window_max_gradient,
)
from weft.compiler.lowering.nodes.places import counting_axis
from weft.compiler.targets.target import Target
from weft.core.dtypes import bfloat16, float16, float32
from weft.core.shapes import Shape
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Elementwise, Reduction, Window
from weft.ir.primitive import Primitive
from weft.ir.walking import Tally, Walk
from weft.ops import movement
from weft.ops.conversion import convert
from weft.ops.identity import barrier, stopped
from weft.ops.indexing import scatter_add
from weft.ops.reduction import reduce_sum
from weft.ops.windows import window_argmax, window_spread

__all__ = ["channels_last"]

SHORT = (float16, bfloat16)


def channels_last(target: Target, graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with the channels of its convolutions, and of what is between them, last."""
    if not any(node.primitive in WITH_CHANNELS_LAST for node in graph.nodes):
        return graph
    return _Last(target, graph, tally).run()


class _Last(Walk):
    """Remembers for each value the one with its channels last, where there is one."""

    def __init__(self, target: Target, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self.target = target
        self.last: dict[Variable, Atom] = {}

    def walk_nested(self, graph: Graph) -> Graph:
        return channels_last(self.target, graph, self.tally)

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive in WITH_CHANNELS_LAST:
            return self.convolution(node)
        spread = self.spreads(node)
        made = None if spread is None else spread(node)
        if made is not None:
            self.tally[f"{node.primitive.name} with channels last"] += 1
        return made

    def spreads(self, node: GraphNode) -> Callable[[GraphNode], Sequence[Atom] | None] | None:
        """How the order goes through a node that reads a value with channels last."""
        primitive, kind = node.primitive, node.primitive.kind
        if primitive is movement.reshape:
            return self.fuse_pool_gradient
        if not any(isinstance(atom, Variable) and atom in self.last for atom in node.operands):
            return None
        if isinstance(kind, Elementwise) or primitive in (stopped, barrier):
            return self.elementwise
        if isinstance(kind, Reduction):
            return self.move_reduction
        if isinstance(kind, Window) and kind.combine is not None:
            return self.windows
        if primitive is window_spread:
            return self.spread_window
        return self.movement_rule(primitive)

    def movement_rule(
        self, primitive: Primitive
    ) -> Callable[[GraphNode], Sequence[Atom] | None] | None:
        """How the order goes through movement along axes."""
        if primitive is movement.pad:
            return self.move_pad
        if primitive is movement.slice_:
            return self.move_slice
        return self.move_concatenate if primitive is movement.concatenate else None

    # --- values ------------------------------------------------------------------------------

    def restore_order(self, made: Atom, like: GraphNode) -> Sequence[Atom]:
        """The value in its own order, which nobody may want."""
        order = to_first(made.type.ndim)
        back = self.make(movement.transpose, made, like=like, order=order)
        assert isinstance(back, Variable)
        self.last[back] = made
        return [back]

    def with_channels_last(self, atom: Atom, like: GraphNode) -> Atom:
        """A value with its channels last."""
        if isinstance(atom, Literal):
            order = to_last(atom.value.ndim)
            return Literal(np.ascontiguousarray(atom.value.transpose(order)))
        if atom not in self.last:
            self.last[atom] = self.turn_channels_last(atom, like)
        return self.last[atom]

    def turn_channels_last(self, atom: Variable, like: GraphNode) -> Atom:
        """A value with its channels last, which it does not have yet."""
        maker, order = self.maker(atom), to_last(atom.type.ndim)
        shape = tuple(atom.type.shape[axis] for axis in order)
        if maker is not None and maker.primitive is movement.broadcast_to:
            source = self.with_rank(maker.operands[0], atom.type.ndim, like)
            return self.make(
                movement.broadcast_to, self.with_channels_last(source, like), like=like, shape=shape
            )
        if maker is not None and maker.primitive is movement.full:
            return self.make(maker.primitive, like=like, **{**maker.params, "shape": shape})
        return self.make(movement.transpose, atom, like=like, order=order)

    def with_rank(self, atom: Atom, ndim: int, like: GraphNode) -> Atom:
        """A value with axes of size 1 in front, up to a rank."""
        missing = ndim - atom.type.ndim
        if missing == 0:
            return atom
        shape: Shape = (1,) * missing + atom.type.shape
        if isinstance(atom, Literal):
            return Literal(atom.value.reshape(shape))
        return self.make(movement.reshape, atom, like=like, shape=shape)

    # --- convolutions ------------------------------------------------------------------------

    def convolution(self, node: GraphNode) -> Sequence[Atom] | None:
        """A convolution with channels last; of 16-bit floats in float32 if the target wants it."""
        primitive, turned, has_channels = WITH_CHANNELS_LAST[node.primitive]
        if not self.target.has_convolution(node):
            return None
        dtype = node.results[0].type.dtype
        is_widened = dtype in SHORT and not self.target.limits.passes.multiplies_short_floats
        operands = []
        for atom, turn in zip(node.operands, turned, strict=True):
            operand = self.with_channels_last(atom, node) if turn else atom
            if is_widened:
                operand = self.make(convert, operand, like=node, dtype=float32)
            operands.append(operand)
        made = self.make(primitive, *operands, like=node, **node.params)
        if is_widened:
            made = self.make(convert, made, like=node, dtype=dtype)
        self.tally[f"{node.primitive.name} with channels last"] += 1
        return self.restore_order(made, node) if has_channels else [made]

    # --- what lies between -------------------------------------------------------------------

    def elementwise(self, node: GraphNode) -> Sequence[Atom] | None:
        ndim = node.results[0].type.ndim
        whole = [a for a in node.operands if isinstance(a, Variable) and a in self.last]
        if all(atom.type.ndim != ndim for atom in whole):
            return None
        operands = [
            self.with_channels_last(self.with_rank(atom, ndim, node), node)
            if atom.type.ndim
            else atom
            for atom in node.operands
        ]
        return self.restore_order(
            self.make(node.primitive, *operands, like=node, **node.params), node
        )

    def move_reduction(self, node: GraphNode) -> Sequence[Atom] | None:
        (atom,) = node.operands
        axes = tuple(node.params["axes"])
        place = {axis: at for at, axis in enumerate(to_last(atom.type.ndim))}
        kept = [place[axis] for axis in range(atom.type.ndim) if axis not in axes]
        if kept != sorted(kept):
            return None
        moved = tuple(sorted(place[axis] for axis in axes))
        operand = self.with_channels_last(atom, node)
        splits = node.primitive is reduce_sum and atom.type.dtype.bits >= 32
        splits = splits and self.target.limits.passes.sums_by_image
        if splits and kept == [atom.type.ndim - 1] and len(moved) > 1:
            # image by image first: rows that were just made are summed while they are in cache
            operand = self.make(node.primitive, operand, like=node, axes=moved[1:])
            moved = (0,)
        return [self.make(node.primitive, operand, like=node, **{**node.params, "axes": moved})]

    def windows(self, node: GraphNode) -> Sequence[Atom] | None:
        (atom,) = node.operands
        if len(node.params["window"]) != atom.type.ndim - 2:
            return None
        made = self.make(
            node.primitive,
            self.with_channels_last(atom, node),
            like=node,
            **_with_channels(node.params),
        )
        return self.restore_order(made, node)

    def spread_window(self, node: GraphNode) -> Sequence[Atom] | None:
        (atom,) = node.operands
        if len(node.params["window"]) != atom.type.ndim - 2:
            return None
        params = _with_channels({k: v for k, v in node.params.items() if k != "spatial"})
        spatial = (*node.params["spatial"], atom.type.shape[1])
        made = self.make(
            node.primitive,
            self.with_channels_last(atom, node),
            like=node,
            spatial=spatial,
            **params,
        )
        return self.restore_order(made, node)

    def move_pad(self, node: GraphNode) -> Sequence[Atom] | None:
        return self.by_axis(node, "padding")

    def move_slice(self, node: GraphNode) -> Sequence[Atom] | None:
        return self.by_axis(node, "starts", "stops", "strides")

    def by_axis(self, node: GraphNode, *names: str) -> Sequence[Atom] | None:
        """A node with parameters that have one entry for each axis."""
        atom = node.operands[0]
        order = to_last(atom.type.ndim)
        moved = {name: tuple(node.params[name][axis] for axis in order) for name in names}
        made = self.make(
            node.primitive,
            self.with_channels_last(atom, node),
            like=node,
            **{**node.params, **moved},
        )
        return self.restore_order(made, node)

    def move_concatenate(self, node: GraphNode) -> Sequence[Atom] | None:
        axis = to_last(node.results[0].type.ndim).index(node.params["axis"])
        operands = [self.with_channels_last(atom, node) for atom in node.operands]
        return self.restore_order(self.make(node.primitive, *operands, like=node, axis=axis), node)

    # --- the gradient of a maximum over windows ----------------------------------------------

    def fuse_pool_gradient(self, node: GraphNode) -> Sequence[Atom] | None:
        """Cotangents scattered to where the maxima of windows are, as one kernel."""
        scatter = self.maker(node.operands[0])
        if scatter is None or scatter.primitive is not scatter_add:
            return None
        found = self.places_of_maxima(scatter)
        if found is None or found.operands[0].type.shape != node.results[0].type.shape:
            return None
        x, counts = found.operands[0], found.results[0].type.shape
        if x not in self.last or len(found.params["window"]) != x.type.ndim - 2:
            return None
        assert isinstance(x, Variable)
        cotangent = self.make(movement.reshape, scatter.operands[1], like=node, shape=counts)
        made = self.make(
            window_max_gradient, self.last[x], self.with_channels_last(cotangent, node), like=node,
            **_with_channels(found.params),
        )  # fmt: skip
        return self.restore_order(made, node)

    def places_of_maxima(self, scatter: GraphNode) -> GraphNode | None:
        """The node that finds the places that are scattered to, if all is as it should be."""
        if len(scatter.operands) != 4 or tuple(scatter.params["axes"]) != (0, 1):
            return None
        zeros, _, rows, places = scatter.operands
        number = self.uniform(zeros)
        if number is None or number != 0 or counting_axis(rows, self.makers) != 0:
            return None
        if zeros.type.shape[0] != rows.type.shape[0]:
            return None
        flat = self.maker(places)
        if flat is None or flat.primitive is not movement.reshape:
            return None
        found = self.maker(flat.operands[0])
        return found if found is not None and found.primitive is window_argmax else None


def _with_channels(params: Any) -> dict[str, Any]:
    """The parameters of windows with one more axis, along which a window is one channel."""
    return {
        "window": (*params["window"], 1),
        "strides": (*params["strides"], 1),
        "padding": (*params["padding"], (0, 0)),
        "dilation": (*params["dilation"], 1),
    }
