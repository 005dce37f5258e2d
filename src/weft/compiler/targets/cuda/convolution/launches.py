"""The launches of convolutions with channels last: which way each of them goes.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> kinds = wf.spec("bfloat16", (2, 64, 6, 6)), wf.spec("bfloat16", (64, 64, 3, 3))
>>> plan = plan_program(wf.ir.trace(lambda x, w: wf.conv2d(x, w), *kinds), target_named("cuda"))
>>> [launch.name for launch in plan.launches if launch.name.startswith(("wi", "we", "conv"))]
['weights', 'convolution']
"""

from __future__ import annotations

from math import prod

from weft.compiler.graph_passes.channels_last_primitives import CHANNELS_LAST, WITH_CHANNELS_LAST
from weft.compiler.plan.launch import Kind, Launch, Value, one
from weft.compiler.targets.cuda.convolution.depthwise import depthwise_launches, is_depthwise
from weft.compiler.targets.cuda.convolution.folding import Fold
from weft.compiler.targets.cuda.convolution.implicit import STEP_CHANNELS
from weft.compiler.targets.cuda.convolution.parts import weight_gradient_cut
from weft.compiler.targets.cuda.convolution.placement import Placement
from weft.compiler.targets.cuda.convolution.sizes import (
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    ConvolutionSizes,
    direction_of,
    sizes_of,
)
from weft.compiler.targets.cuda.convolution.windows import (
    weight_rows,
    weights_from_rows,
    window_launches,
)
from weft.compiler.targets.cuda.loop_nests import loop_launch, loop_nest, row_major_offset
from weft.compiler.targets.cuda.products.binding import MULTIPLIED
from weft.compiler.targets.cuda.products.description import Sizes
from weft.core.dtypes import bfloat16, float16, float32
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import Kernel, Store
from weft.ir.scalars import Buffer

FEWEST_CHANNELS = 32
"""Channels from which a step of 64 is not mostly zeros."""
_CHANNEL_STEP = 8
"""Channels of 16 bytes, in which bulk copies count."""


def is_convolution(node: GraphNode) -> bool:
    """Whether a convolution, or a gradient of one, has launches of the card's own.

    One group is a product, and so many groups as channels are sums of each; others are loops.
    """
    if node.primitive not in WITH_CHANNELS_LAST and node.primitive not in CHANNELS_LAST:
        return False
    kinds = [atom.type for atom in (*node.operands, *node.results)]
    dims = [dim for kind in kinds for dim in kind.shape]
    is_known = all(kind.dtype in MULTIPLIED for kind in kinds) and all(
        isinstance(dim, int) and dim > 0 for dim in dims
    )
    if not is_known or "groups" not in node.params:
        return False
    return node.params["groups"] == 1 or is_depthwise(node)


def convolution_launches(
    node: GraphNode, *, reads_windows: bool = True, multiprocessors: int = 132
) -> list[Launch]:
    """The launches of a convolution with channels last, or of a gradient of one.

    Without `reads_windows`, the card has no bulk copies of windows.
    """
    if is_depthwise(node):
        return depthwise_launches(node)
    sizes, direction = sizes_of(node), direction_of(node)
    if not reads_windows:
        return window_launches(node)
    fold = _fold(sizes, direction, node)
    (a, b), result = node.operands, node.results[0]
    if fold is not None:
        return _folded_launches(fold, direction, (a, b, result), multiprocessors)
    if not _reads_windows(sizes, direction, node):
        return window_launches(node)
    if direction == WEIGHT_GRADIENT:
        return _weight_gradient(sizes, (a, b, result), multiprocessors)
    before, weights = weight_rows(sizes, b)
    phases = Placement.from_sizes(sizes, direction).phases
    if direction == INPUT_GRADIENT and phases > 1:
        return [*before, *_phased_gradient(sizes, a, weights, result)]
    return [*before, _launch(sizes, direction, a, weights, result)]


def _reads_windows(sizes: ConvolutionSizes, direction: str, node: GraphNode) -> bool:
    """Whether bulk copies read the windows of a convolution, and should."""
    if node.operands[0].type.dtype not in (bfloat16, float16):
        return False
    if direction != WEIGHT_GRADIENT and sizes.are_windows_elements:
        return False  # a product of what lies there
    if direction == INPUT_GRADIENT and sizes.taps == 1:
        return False  # a product whose rows are spread: other elements are zeros
    placement = Placement.from_sizes(sizes, direction)
    aligned = [sizes.channels] if direction not in _BOTH else [sizes.channels, sizes.outputs]
    return (
        placement.channels >= FEWEST_CHANNELS
        and all(count % _CHANNEL_STEP == 0 for count in aligned)
        and placement.is_possible
    )


def _fold(sizes: ConvolutionSizes, direction: str, node: GraphNode) -> Fold | None:
    """How a convolution of few channels is folded; None where it is not."""
    if node.operands[0].type.dtype not in (bfloat16, float16) or sizes.are_windows_elements:
        return None
    if direction == INPUT_GRADIENT or sizes.channels >= FEWEST_CHANNELS:
        return None
    if direction == WEIGHT_GRADIENT and sizes.outputs % _CHANNEL_STEP:
        return None
    fold = Fold.from_sizes(sizes)
    is_possible = fold is not None and Placement.from_sizes(fold.sizes, direction).is_possible
    return fold if is_possible else None


def _folded_launches(
    fold: Fold, direction: str, values: tuple[Value, Value, Variable], multiprocessors: int
) -> list[Launch]:
    """The launches of a convolution of few channels, or of the gradient of its weights."""
    a, b, result = values
    before, rows = fold.row_launch(a)
    strides = fold.element_strides
    if direction == WEIGHT_GRADIENT:
        product, flat = _parts_of_gradient(fold.sizes, (rows, b), multiprocessors, strides)
        return [before, product, fold.unfold_launch(flat, result)]
    more, weights = fold.weight_launch(b)
    return [before, more, _launch(fold.sizes, direction, rows, weights, result, strides)]


_BOTH = (INPUT_GRADIENT, WEIGHT_GRADIENT)
"""Directions in which bulk copies read rows of channels and rows of outputs."""


def _launch(
    sizes: ConvolutionSizes,
    direction: str,
    a: Value,
    b: Value,
    result: Variable,
    element_strides: tuple[int, ...] = (),
    parts: int = 1,
) -> Launch:
    """The launch of a direction; `element_strides` say how windows lie that overlap in memory."""
    numbers = [parts, len(element_strides), *element_strides, *sizes.as_numbers()]
    return Launch(
        Kind.CONVOLUTION, "convolution", ("convolution", direction), (a, b, result), (result,),
        lambda _: numbers, one, one,
    )  # fmt: skip


def _weight_gradient(
    sizes: ConvolutionSizes, values: tuple[Value, Value, Variable], multiprocessors: int
) -> list[Launch]:
    """Parts of the gradients in the order of the product's columns, then their sums in place."""
    x, y, dw = values
    product, flat = _parts_of_gradient(sizes, (x, y), multiprocessors)
    return [product, weights_from_rows(sizes, flat, dw, int(flat.type.shape[2]) // sizes.taps)]


def _parts_of_gradient(
    sizes: ConvolutionSizes,
    operands: tuple[Value, Value],
    multiprocessors: int,
    element_strides: tuple[int, ...] = (),
) -> tuple[Launch, Variable]:
    """The launch that makes parts of the gradient of weights, and these: [parts, O, taps · C]."""
    x, y = operands
    length = sizes.taps * -(-sizes.channels // STEP_CHANNELS) * STEP_CHANNELS
    cut = weight_gradient_cut(Sizes(sizes.outputs, length, sizes.rows), multiprocessors)
    flat = Variable(TensorType(float32, (cut.parts, sizes.outputs, length)))
    launch = _launch(sizes, WEIGHT_GRADIENT, y, x, flat, element_strides, cut.parts)
    return launch, flat


def _phased_gradient(
    sizes: ConvolutionSizes, y: Value, weights: Value, dx: Variable
) -> list[Launch]:
    """With strides: elements phase by phase, then brought into their order."""
    placement = Placement.from_sizes(sizes, INPUT_GRADIENT)
    shape = placement.phases, placement.rows, sizes.channels
    phased = Variable(TensorType(dx.type.dtype, shape))
    return [
        _launch(sizes, INPUT_GRADIENT, y, weights, phased),
        _in_order(sizes, placement, phased, dx),
    ]


def _in_order(
    sizes: ConvolutionSizes, placement: Placement, phased: Variable, dx: Variable
) -> Launch:
    """Elements [phases, N, *counts, C] as [N, *size, C]."""
    source, target = Buffer("phased", phased.type.dtype), Buffer("out", dx.type.dtype, "write")
    image, channel = scalars.index("n"), scalars.index("c")
    places = [scalars.index(f"p{axis}") for axis in range(len(sizes.size))]
    phases = [place % stride for place, stride in zip(places, sizes.strides, strict=True)]
    inside = [place // stride for place, stride in zip(places, sizes.strides, strict=True)]
    counts = [axis.count for axis in placement.axes]
    offset = row_major_offset(
        [row_major_offset(phases, sizes.strides), image, *inside, channel],
        [prod(sizes.strides), sizes.images, *counts, sizes.channels],
    )
    shape = [sizes.images, *sizes.size, sizes.channels]
    store = Store(target, row_major_offset([image, *places, channel], shape), source[offset])
    loops = list(zip([image, *places, channel], shape, strict=True))
    kernel = Kernel("phases", (source, target), (), loop_nest(loops, (store,)))
    return loop_launch(kernel, (phased, dx), dx)
