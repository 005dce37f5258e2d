"""Convolutions with channels last as products: of the windows of an image with the weights.

With x: [N, *size, C], w: [O, C, *kernel] and y: [N, *out, O], the windows of x are the rows of a
matrix, [N·out, taps·C], and the weights those of another, [O, taps·C]:

    y = windows · weightsᵀ,   dw = yᵀ · windows,   dx: the rows of y · weights added up where
                                                   windows overlap

Where a window is one element, the image is that matrix already. Rows are made longer by zeros where
copies in bulk want whole 16 bytes.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> kinds = wf.spec("bfloat16", (2, 8, 6, 6)), wf.spec("bfloat16", (4, 8, 3, 3))
>>> plan = plan_program(wf.ir.trace(lambda x, w: wf.conv2d(x, w), *kinds), target_named("cuda"))
>>> [launch.name for launch in plan.launches if launch.name.startswith(("wi", "we", "dot"))]
['windows', 'weights', 'dot']
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.compiler.graph_passes.channels_last_primitives import CHANNELS_LAST, WITH_CHANNELS_LAST
from weft.compiler.lowering.builder import ZERO, all_conditions, is_within
from weft.compiler.plan.launch import Kind, Launch, Value, no_numbers, one
from weft.compiler.targets.cuda.products.binding import MULTIPLIED
from weft.core.dtypes import INDEX, DType, float32
from weft.core.records import frozen
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import Accumulate, For, Kernel, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar, const
from weft.ops.convolution import conv, conv_weight_gradient

ROW_BYTES = 16
"""What the bytes of a row of windows are a multiple of."""


def is_convolution(node: GraphNode) -> bool:
    """Whether a convolution, or a gradient of one, becomes a product: all but grouped ones."""
    if node.primitive not in WITH_CHANNELS_LAST and node.primitive not in CHANNELS_LAST:
        return False
    if "groups" not in node.params or node.params["groups"] != 1:
        return False
    kinds = [atom.type for atom in (*node.operands, *node.results)]
    dims = [dim for kind in kinds for dim in kind.shape]
    return all(kind.dtype in MULTIPLIED for kind in kinds) and all(
        isinstance(dim, int) and dim > 0 for dim in dims
    )


@frozen(slots=False)
class _Sizes:
    """The sizes of a convolution, and how windows lie."""

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

    def row_length(self, dtype: DType) -> int:
        """Elements of a row of windows, with the zeros behind it."""
        length, step = self.taps * self.channels, ROW_BYTES // dtype.itemsize
        return length if self.are_windows_elements else -(-length // step) * step


def convolution_launches(node: GraphNode) -> list[Launch]:
    """The launches of a convolution with channels last, or of a gradient of one."""
    a, b = node.operands
    result = node.results[0]
    if node.primitive is WITH_CHANNELS_LAST[conv][0]:
        return _forward(_sizes(a, b.type.shape, result, node), a, b, result)
    if node.primitive is WITH_CHANNELS_LAST[conv_weight_gradient][0]:
        return _weight_gradient(_sizes(a, result.type.shape, b, node), a, b, result)
    return _input_gradient(_sizes(result, b.type.shape, a, node), a, b, result)


def _sizes(x: Value, weights: Shape, y: Value, node: GraphNode) -> _Sizes:
    """Sizes of an image [N, *size, C], weights [O, C, *kernel] and a result [N, *out, O]."""
    images, *size, channels = map(int, x.type.shape)
    *out, outputs = map(int, y.type.shape[1:])
    params = node.params
    return _Sizes(
        images, tuple(size), channels, tuple(out), outputs, tuple(map(int, weights[2:])),
        tuple(params["strides"]), tuple(low for low, _ in params["padding"]),
        tuple(params["dilation"]),
    )  # fmt: skip


def _forward(sizes: _Sizes, x: Value, w: Value, y: Variable) -> list[Launch]:
    before, windows = _windows(sizes, x)
    more, weights = _weights(sizes, w)
    shape = sizes.rows, sizes.outputs, sizes.row_length(x.type.dtype)
    return [*before, *more, _product(windows, weights, y, shape, ("n", "t"))]


def _weight_gradient(sizes: _Sizes, x: Value, y: Value, dw: Variable) -> list[Launch]:
    before, windows = _windows(sizes, x)
    length = sizes.row_length(x.type.dtype)
    shape = sizes.outputs, length, sizes.rows
    if sizes.taps == 1 and length == sizes.channels:
        return [*before, _product(y, windows, dw, shape, ("t", "n"))]
    flat = Variable(TensorType(float32, (sizes.outputs, length)))
    return [
        *before,
        _product(y, windows, flat, shape, ("t", "n")),
        _reordered_weights(sizes, flat, dw, length, is_back=True),
    ]


def _input_gradient(sizes: _Sizes, y: Value, w: Value, dx: Variable) -> list[Launch]:
    more, weights = _weights(sizes, w)
    length = sizes.row_length(y.type.dtype)
    shape = sizes.rows, length, sizes.outputs
    if sizes.are_windows_elements:
        return [*more, _product(y, weights, dx, shape, ("n", "n"))]
    spread = Variable(TensorType(float32, (sizes.rows, length)))
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


def loop_launch(kernel: Kernel, values: Sequence[Value], result: Variable) -> Launch:
    """The launch of a kernel of the loop language that is written for a card."""
    return Launch(
        Kind.LOOP, kernel.name, kernel, tuple(values), (result,), no_numbers,
        lambda sizes: kernel.iterations({}), one,
    )  # fmt: skip


def _index(name: str) -> Scalar:
    return scalars.index(name)


def loop_nest(
    loops: Sequence[tuple[Scalar, int]], body: Sequence[Statement]
) -> tuple[Statement, ...]:
    """Loops around statements: the first is parallel, the last a vector loop."""
    inside = tuple(body)
    for place, (index, extent) in reversed(list(enumerate(loops))):
        kind: Any = "serial"
        if place == len(loops) - 1:
            kind = "vector"
        elif place == 0:
            kind = "parallel"
        inside = (For(index, const(extent, INDEX), inside, kind),)
    return inside


def row_major_offset(places: Sequence[Scalar], shape: Sequence[int]) -> Scalar:
    """Where an index leads to in an array without gaps."""
    offset = ZERO
    for place, dim in zip(places, shape, strict=True):
        offset = offset * dim + place
    return offset


def _windows(sizes: _Sizes, x: Value) -> tuple[list[Launch], Value]:
    """The matrix of windows, [N·out, taps·C and zeros], and what makes it."""
    if sizes.are_windows_elements:
        return [], x
    dtype = x.type.dtype
    length = sizes.row_length(dtype)
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


def _reach(sizes: _Sizes) -> list[tuple[int, int]]:
    """The first and the last place that windows touch, along each axis."""
    return [
        (-low, (count - 1) * stride + (width - 1) * step - low)
        for count, stride, width, step, low in zip(
            sizes.out, sizes.strides, sizes.kernel, sizes.dilation, sizes.low, strict=True
        )
    ]


def place_of_tap(tap: Scalar, kernel: Sequence[int]) -> list[Scalar]:
    """The number of a tap as a place along each axis of the kernel."""
    found: list[Scalar] = []
    for axis in range(len(kernel)):
        inner = prod(kernel[axis + 1 :])
        place = tap // inner if inner > 1 else tap
        found.append(place % kernel[axis] if axis else place)
    return found


def _weights(sizes: _Sizes, w: Value) -> tuple[list[Launch], Value]:
    """The matrix of weights, [O, taps·C and zeros], and what makes it."""
    dtype = w.type.dtype
    length = sizes.row_length(dtype)
    if sizes.taps == 1 and length == sizes.channels:
        return [], w
    matrix = Variable(TensorType(dtype, (sizes.outputs, length)))
    return [_reordered_weights(sizes, w, matrix, length, is_back=False)], matrix


def _reordered_weights(
    sizes: _Sizes, given: Value, result: Variable, length: int, *, is_back: bool
) -> Launch:
    """Weights [O, C, taps] as rows [O, taps·C and zeros], or back."""
    source, target = Buffer("w", given.type.dtype), Buffer("out", result.type.dtype, "write")
    output, taps, channels = _index("o"), sizes.taps, sizes.channels
    column = _index("j")
    if is_back:
        channel, tap = column // taps, column % taps
        loops = [(output, sizes.outputs), (column, channels * taps)]
        value = source[output * length + tap * channels + channel]
        place = output * (channels * taps) + column
    else:
        tap, channel = column // channels, column % channels
        loops = [(output, sizes.outputs), (column, length)]
        guard = None
        if length > taps * channels:
            guard = scalars.less(column, const(taps * channels, INDEX))
        value = scalars.load(source, (output * channels + channel) * taps + tap, guard)
        place = output * length + column
    store = Store(target, place, scalars.cast(value, target.dtype))
    kernel = Kernel("weights", (source, target), (), loop_nest(loops, (store,)))
    return loop_launch(kernel, (given, result), result)


def _overlap(sizes: _Sizes, spread: Variable, dx: Variable) -> Launch:
    """The gradient of the image: each element the sum of what windows have for it, in float32."""
    source, target = Buffer("spread", float32), Buffer("out", dx.type.dtype, "write")
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
