"""The sizes of a convolution with channels last, and how its windows lie."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.compiler.graph_passes.channels_last_primitives import WITH_CHANNELS_LAST
from weft.compiler.plan.launch import Value
from weft.core.records import frozen
from weft.core.shapes import Shape
from weft.ir.graph import GraphNode
from weft.ops.convolution import conv, conv_weight_gradient

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"
"""What is computed: the convolution, or a gradient of one."""


@frozen(slots=False)
class ConvolutionSizes:
    """An image [N, *size, C], weights [O, C, *kernel] and a result [N, *out, O]."""

    images: int
    size: tuple[int, ...]
    channels: int
    out: tuple[int, ...]
    outputs: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    """Elements that the first window reaches beyond the image, along each axis."""
    dilation: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Elements of a window, without its channels."""
        return prod(self.kernel)

    @property
    def rows(self) -> int:
        """Windows of all images."""
        return self.images * prod(self.out)

    @property
    def are_windows_elements(self) -> bool:
        """Whether windows are single elements, all of them in order."""
        return self.taps == 1 and self.out == self.size and not any(self.low)

    def as_numbers(self) -> list[int]:
        """All of it as one list, which `from_numbers` reads."""
        axes = (self.size, self.out, self.kernel, self.strides, self.low, self.dilation)
        return [self.images, self.channels, self.outputs, *(n for each in axes for n in each)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> ConvolutionSizes:
        """The sizes of a list of numbers."""
        images, channels, outputs, *rest = numbers
        rank = len(rest) // 6
        size, out, *others = (tuple(rest[rank * k : rank * (k + 1)]) for k in range(6))
        return cls(images, size, channels, out, outputs, *others)


def direction_of(node: GraphNode) -> str:
    """What a convolution with channels last computes."""
    if node.primitive is WITH_CHANNELS_LAST[conv][0]:
        return FORWARD
    is_for_weights = node.primitive is WITH_CHANNELS_LAST[conv_weight_gradient][0]
    return WEIGHT_GRADIENT if is_for_weights else INPUT_GRADIENT


def sizes_of(node: GraphNode) -> ConvolutionSizes:
    """The sizes of a convolution with channels last, or of a gradient of one."""
    (a, b), result = node.operands, node.results[0]
    direction = direction_of(node)
    if direction == FORWARD:
        return _sizes(a, b.type.shape, result, node)
    if direction == WEIGHT_GRADIENT:
        return _sizes(a, result.type.shape, b, node)
    return _sizes(result, b.type.shape, a, node)


def _sizes(x: Value, weights: Shape, y: Value, node: GraphNode) -> ConvolutionSizes:
    images, *size, channels = map(int, x.type.shape)
    *out, outputs = map(int, y.type.shape[1:])
    params = node.params
    return ConvolutionSizes(
        images, tuple(size), channels, tuple(out), outputs, tuple(map(int, weights[2:])),
        tuple(params["strides"]), tuple(low for low, _ in params["padding"]),
        tuple(params["dilation"]),
    )  # fmt: skip
