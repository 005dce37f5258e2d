"""The sizes of a convolution, read off a node.

>>> import weft as wf
>>> from weft.compiler.graph_passes.channels_last_primitives import PLAIN, conv_last
>>> from weft.ir.dispatch import apply
>>> kinds = wf.spec("float32", (4, 9, 8)), wf.spec("float32", (16, 8, 3))
>>> node = wf.ir.trace(lambda x, w: apply(conv_last, x, w, **PLAIN), *kinds).nodes[0]
>>> node_sizes(node).taps
3
"""

from __future__ import annotations

from math import prod
from typing import Any

from weft.core.records import frozen
from weft.core.shapes import Dimension
from weft.ir.graph import GraphNode


@frozen
class Sizes:
    """The sizes of a convolution: images may be a symbol, all others are numbers.

    channels, outputs: of one group. area: spatial sizes of x; counts: of y.
    """

    images: Dimension
    groups: int
    channels: int
    outputs: int
    area: tuple[int, ...]
    counts: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Places of the kernel."""
        return prod(self.kernel)

    @property
    def flops(self) -> Dimension:
        """Multiplications and additions."""
        inner = self.channels * self.taps * self.outputs * self.groups
        return self.images * (2 * prod(self.counts) * inner)


def sizes_of(x: Any, w: Any, y: Any, params: Any) -> Sizes | None:
    """The sizes of a convolution, given shapes with channels last; None where one is a symbol."""
    groups = params["groups"]
    numbers = (*x[1:], *w, *y[1:])
    if not all(isinstance(dim, int) for dim in numbers):
        return None
    low = tuple(side[0] for side in params["padding"])
    return Sizes(
        x[0], groups, w[1], w[0] // groups, tuple(x[1:-1]), tuple(y[1:-1]), tuple(w[2:]),
        tuple(params["strides"]), tuple(params["dilation"]), low,
    )  # fmt: skip


def node_sizes(node: GraphNode) -> Sizes | None:
    """The sizes of a node with channels last."""
    a, b = (operand.type.shape for operand in node.operands)
    c = node.results[0].type.shape
    name = node.primitive.name
    if name == "conv_last":
        return sizes_of(a, b, c, node.params)
    if name == "conv_last_input_gradient":
        return sizes_of(c, b, a, node.params)
    return sizes_of(a, c, b, node.params)
