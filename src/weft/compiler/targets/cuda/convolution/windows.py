"""Convolutions with channels last as products of windows that are written to memory.

With x: [N, *size, C], w: [O, C, *kernel] and y: [N, *out, O], the windows of x are the rows of a
matrix, [N·out, taps·C], and the weights those of another, [O, taps·C]:

    y = windows · weightsᵀ,   dw = yᵀ · windows,   dx: the rows of y · weights added up where
                                                   windows overlap

Where a window is one element, the image is that matrix already. Rows are made longer by zeros where
copies in bulk want whole 16 bytes. This is the way of what bulk copies of windows do not take:
float32, and few channels.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> kinds = wf.spec("float32", (2, 8, 6, 6)), wf.spec("float32", (4, 8, 3, 3))
>>> plan = plan_program(wf.ir.trace(lambda x, w: wf.conv2d(x, w), *kinds), target_named("cuda"))
>>> [launch.name for launch in plan.launches if launch.name.startswith(("wi", "we", "dot"))]
['windows', 'weights', 'dot']
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.lowering.builder import all_conditions, is_within
from weft.compiler.plan.launch import Kind, Launch, Value, one
from weft.compiler.targets.cuda.convolution.sizes import (
    FORWARD,
    WEIGHT_GRADIENT,
    ConvolutionSizes,
    direction_of,
    sizes_of,
)
from weft.compiler.targets.cuda.loop_nests import (
    loop_launch,
    loop_nest,
    place_of_tap,
    row_major_offset,
)
from weft.core.dtypes import INDEX, DType, float32
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import Accumulate, Kernel, Store, Update
from weft.ir.scalars import Buffer, Scalar, const

ROW_BYTES = 16
"""What the bytes of a row of windows are a multiple of."""


def window_launches(node: GraphNode) -> list[Launch]:
    """The launches of a convolution whose windows are written to memory."""
    sizes, direction = sizes_of(node), direction_of(node)
    (a, b), result = node.operands, node.results[0]
    if direction == FORWARD:
        return _forward(sizes, a, b, result)
    if direction == WEIGHT_GRADIENT:
        return _weight_gradient(sizes, a, b, result)
    return _input_gradient(sizes, a, b, result)


def row_length(sizes: ConvolutionSizes, dtype: DType) -> int:
    """Elements of a row of windows, with the zeros behind it."""
    length, step = sizes.taps * sizes.channels, ROW_BYTES // dtype.itemsize
    return length if sizes.are_windows_elements else -(-length // step) * step


def _forward(sizes: ConvolutionSizes, x: Value, w: Value, y: Variable) -> list[Launch]:
    before, windows = _windows(sizes, x)
    more, weights = weight_rows(sizes, w)
    shape = sizes.rows, sizes.outputs, row_length(sizes, x.type.dtype)
    return [*before, *more, _product(windows, weights, y, shape, ("n", "t"))]


def _weight_gradient(sizes: ConvolutionSizes, x: Value, y: Value, dw: Variable) -> list[Launch]:
    before, windows = _windows(sizes, x)
    length = row_length(sizes, x.type.dtype)
    shape = sizes.outputs, length, sizes.rows
    if sizes.taps == 1 and length == sizes.channels:
        return [*before, _product(y, windows, dw, shape, ("t", "n"))]
    flat = Variable(TensorType(float32, (1, sizes.outputs, length)))
    return [
        *before,
        _product(y, windows, flat, shape, ("t", "n")),
        weights_from_rows(sizes, flat, dw, sizes.channels),
    ]


def _input_gradient(sizes: ConvolutionSizes, y: Value, w: Value, dx: Variable) -> list[Launch]:
    more, weights = weight_rows(sizes, w)
    length = row_length(sizes, y.type.dtype)
    shape = sizes.rows, length, sizes.outputs
    if sizes.are_windows_elements:
        return [*more, _product(y, weights, dx, shape, ("n", "n"))]
    # one tap for an element at most: nothing is added up, so nothing is lost in short floats
    kind = dx.type.dtype if sizes.taps == 1 else float32
    spread = Variable(TensorType(kind, (sizes.rows, length)))
    return [*more, _product(y, weights, spread, shape, ("n", "n")), _overlap(sizes, spread, dx)]


# --- the parts -----------------------------------------------------------------------------------


def _product(
    a: Value, b: Value, out: Variable, shape: Sequence[int], turns: tuple[str, str]
) -> Launch:
    rows, columns, inner = shape
    return Launch(
        Kind.PRODUCT, "dot", ("product", a.type.dtype.name, *turns), (a, b, out), (out,),
        lambda sizes: [1, rows, columns, inner], one, one,
    )  # fmt: skip


def _index(name: str) -> Scalar:
    return scalars.index(name)


def _windows(sizes: ConvolutionSizes, x: Value) -> tuple[list[Launch], Value]:
    """The matrix of windows, [N·out, taps·C and zeros], and what makes it."""
    if sizes.are_windows_elements:
        return [], x
    dtype = x.type.dtype
    length = row_length(sizes, dtype)
    matrix = Variable(TensorType(dtype, (sizes.rows, length)))
    source, target = Buffer("x", dtype), Buffer("out", dtype, "write")
    image = _index("n")
    places = [_index(f"p{axis}") for axis in range(len(sizes.out))]
    row = row_major_offset([image, *places], [sizes.images, *sizes.out])
    loops = [(image, sizes.images), *zip(places, sizes.out, strict=True)]
    if length == sizes.taps * sizes.channels:
        taps = [_index(f"k{axis}") for axis in range(len(sizes.kernel))]
        channel = _index("c")
        column = row_major_offset([*taps, channel], [*sizes.kernel, sizes.channels])
        loops += [*zip(taps, sizes.kernel, strict=True), (channel, sizes.channels)]
        is_there: list[Scalar] = []
    else:  # rows with zeros behind them, of few channels: each element finds its tap
        column = _index("j")
        tap, channel = column // sizes.channels, column % sizes.channels
        taps = place_of_tap(tap, sizes.kernel)
        loops += [(column, length)]
        is_there = [scalars.less(column, const(sizes.taps * sizes.channels, INDEX))]
    inside = [
        place * stride + tap * step - low
        for place, stride, tap, step, low in zip(
            places, sizes.strides, taps, sizes.dilation, sizes.low, strict=True
        )
    ]
    for at, dim, limits in zip(inside, sizes.size, _reach(sizes), strict=True):
        if limits[0] < 0 or limits[1] >= dim:
            is_there.append(is_within(at, const(dim, INDEX)))
    guard = all_conditions(is_there)
    offset = row_major_offset(
        [image, *inside, channel], [sizes.images, *sizes.size, sizes.channels]
    )
    value = scalars.load(source, offset, guard)
    store = Store(target, row * length + column, value)
    kernel = Kernel("windows", (source, target), (), loop_nest(loops, (store,)))
    return [loop_launch(kernel, (x, matrix), matrix)], matrix


def _reach(sizes: ConvolutionSizes) -> list[tuple[int, int]]:
    """The first and the last place that windows touch, along each axis."""
    return [
        (-low, (count - 1) * stride + (width - 1) * step - low)
        for count, stride, width, step, low in zip(
            sizes.out, sizes.strides, sizes.kernel, sizes.dilation, sizes.low, strict=True
        )
    ]


def weight_rows(sizes: ConvolutionSizes, w: Value) -> tuple[list[Launch], Value]:
    """The matrix of weights, [O, taps·C and zeros], and what makes it."""
    dtype = w.type.dtype
    length = row_length(sizes, dtype)
    if sizes.taps == 1 and length == sizes.channels:
        return [], w
    matrix = Variable(TensorType(dtype, (sizes.outputs, length)))
    return [reordered_weights(sizes, w, matrix, length)], matrix


def reordered_weights(
    sizes: ConvolutionSizes, given: Value, result: Variable, length: int
) -> Launch:
    """Weights [O, C, taps] as rows [O, taps·C and zeros]."""
    output, column = _index("o"), _index("j")
    taps, channels = sizes.taps, sizes.channels
    tap, channel = column // channels, column % channels
    guard = None
    if length > taps * channels:
        guard = scalars.less(column, const(taps * channels, INDEX))
    source = Buffer("w", given.type.dtype)
    value = scalars.load(source, (output * channels + channel) * taps + tap, guard)
    target = Buffer("out", result.type.dtype, "write")
    store = Store(target, output * length + column, scalars.cast(value, target.dtype))
    loops = [(output, sizes.outputs), (column, length)]
    kernel = Kernel("weights", (source, target), (), loop_nest(loops, (store,)))
    return loop_launch(kernel, (given, result), result)


def weights_from_rows(
    sizes: ConvolutionSizes, rows: Variable, result: Variable, per_tap: int
) -> Launch:
    """Rows of `per_tap` numbers for each tap, in parts that are added up, as [O, C, taps].

    Parts are [parts, O, taps·per_tap and zeros], in float32.
    """
    taps, channels = sizes.taps, sizes.channels
    parts, outputs, length = map(int, rows.type.shape)
    output, channel, tap, part = (_index(name) for name in ("o", "c", "t", "p"))
    source = Buffer("w", rows.type.dtype)
    target = Buffer("out", result.type.dtype, "write")
    offset = row_major_offset(
        [part, output, tap * per_tap + channel], [parts, outputs, length]
    )  # fmt: skip
    total = scalars.local("total", rows.type.dtype)
    place = row_major_offset([output, channel, tap], [outputs, channels, taps])
    body = (
        Accumulate(part, const(parts, INDEX), (Update(total, "add", source[offset]),)),
        Store(target, place, scalars.cast(total, target.dtype)),
    )
    # Neighbours are channels, which lie side by side in the larger of both arrays.
    loops = [(output, outputs), (tap, taps), (channel, channels)]
    kernel = Kernel("weights", (source, target), (), loop_nest(loops, body))
    return loop_launch(kernel, (rows, result), result)


def _overlap(sizes: ConvolutionSizes, spread: Variable, dx: Variable) -> Launch:
    """The gradient of the image: each element the sum of what windows have for it, in float32."""
    kind = spread.type.dtype
    source, target = Buffer("spread", kind), Buffer("out", dx.type.dtype, "write")
    length = int(spread.type.shape[1])
    image, channel, tap = _index("n"), _index("c"), _index("t")
    places = [_index(f"h{axis}") for axis in range(len(sizes.size))]
    taps = place_of_tap(tap, sizes.kernel)
    windows: list[Scalar] = []
    conditions: list[Scalar] = []
    for place, at, stride, step, low, count in zip(
        places, taps, sizes.strides, sizes.dilation, sizes.low, sizes.out, strict=True
    ):
        start = place + low - at * step
        window = start // stride if stride > 1 else start
        if stride > 1:
            conditions.append(scalars.equal(window * stride, start))
        conditions.append(is_within(window, const(count, INDEX)))
        windows.append(window)
    row = row_major_offset([image, *windows], [sizes.images, *sizes.out])
    value = scalars.load(
        source, row * length + tap * sizes.channels + channel, all_conditions(conditions)
    )
    value = scalars.cast(value, float32)
    total = scalars.local("total", float32)
    shape = [sizes.images, *sizes.size, sizes.channels]
    body = (
        Accumulate(tap, const(sizes.taps, INDEX), (Update(total, "add", value),)),
        Store(
            target,
            row_major_offset([image, *places, channel], shape),
            scalars.cast(total, target.dtype),
        ),
    )
    loops = [
        (image, sizes.images),
        *zip(places, sizes.size, strict=True),
        (channel, sizes.channels),
    ]
    kernel = Kernel("overlap", (source, target), (), loop_nest(loops, body))
    return loop_launch(kernel, (spread, dx), dx)
