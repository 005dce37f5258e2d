"""Reading and writing at places that are data.

ONNX counts indices along the first axes, so the indexed axes are moved to the front.

>>> from weft.onnx.exporting.rules import RULES
>>> "gather" in RULES
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.onnx.exporting.movement import expand_value, pad_value, slice_value
from weft.onnx.exporting.rules import (
    as_sum,
    computed_in,
    rule,
    summed_in,
)
from weft.onnx.exporting.writing import Writer

__all__ = ["write_gather", "write_transposed"]

SCATTERED = "bool f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64"


def _front_order(ndim: int, axes: Sequence[int]) -> list[int]:
    return [*axes, *[axis for axis in range(ndim) if axis not in axes]]


def _transpose_to(writer: Writer, x: str, order: Sequence[int]) -> str:
    return x if list(order) == sorted(order) else writer.op("Transpose", x, perm=list(order))


def _tuples(writer: Writer, node: Any, indices: Sequence[str]) -> str:
    """The indices of all axes as the last axis of one tensor."""
    last = writer.integers(-1)
    columns = [writer.op("Unsqueeze", index, last) for index in indices]
    return columns[0] if len(columns) == 1 else writer.op("Concat", *columns, axis=-1)


@rule("gather")
def write_gather(writer: Writer, node: Any, x: str, *indices: str) -> str:
    """The elements of x at indices of some axes: index shape, then the other axes."""
    axes, ndim = node.params["axes"], node.operands[0].type.ndim
    if len(axes) == 1:
        # Gather keeps the axes before the indexed one in front; Weft puts them behind the index.
        rank = node.operands[1].type.ndim
        read = writer.op("Gather", x, indices[0], axis=axes[0])
        behind = [*range(axes[0], axes[0] + rank), *range(axes[0])]
        return _transpose_to(writer, read, [*behind, *range(axes[0] + rank, ndim - 1 + rank)])
    front = _transpose_to(writer, x, _front_order(ndim, axes))
    return writer.op("GatherND", front, _tuples(writer, node, indices))


def _scatter(primitive: str, reduction: str | None) -> None:
    def write(writer: Writer, node: Any, x: str, updates: str, *indices: str) -> str:
        axes, kind = node.params["axes"], node.operands[0].type
        wide = computed_in(kind.dtype, SCATTERED)
        if reduction is not None:
            wide = computed_in(kind.dtype, "f32 f64 i32 i64")
        order = _front_order(kind.ndim, axes)
        front = _transpose_to(writer, writer.cast(x, kind.dtype, wide), order)
        out = writer.op(
            "ScatterND",
            front,
            _tuples(writer, node, indices),
            writer.cast(updates, kind.dtype, wide),
            reduction=reduction,
        )
        back = [order.index(axis) for axis in range(kind.ndim)]
        return writer.cast(_transpose_to(writer, out, back), wide, kind.dtype)

    rule(primitive)(write)


_scatter("scatter", None)
_scatter("scatter_add", "add")
_scatter("scatter_max", "max")
_scatter("scatter_min", "min")
_scatter("scatter_multiply", "mul")


def _inside_starts(
    writer: Writer, node: Any, starts: Sequence[str], sizes: Sequence[Any], first: int
) -> str:
    """The starts of a box as int64[n], moved so that the box lies inside."""
    zero = writer.integers(0)
    vector = []
    for position, start in enumerate(starts):
        atom = node.operands[first + position]
        room = writer.model.size(node.operands[0].type.shape[position] - sizes[position])
        given = writer.reshape(writer.cast(start, atom.type.dtype, wf.int64), [1])
        vector.append(writer.op("Max", writer.op("Min", given, room), zero))
    return vector[0] if len(vector) == 1 else writer.op("Concat", *vector, axis=0)


@rule("dynamic_slice")
def _dynamic_slice(writer: Writer, node: Any, x: str, *starts: str) -> str:
    if not starts:
        return x
    sizes = node.params["sizes"]
    low = _inside_starts(writer, node, starts, sizes, 1)
    high = writer.op("Add", low, writer.model.vector(sizes))
    return writer.op("Slice", x, low, high, writer.integers(*range(len(sizes))))


@rule("dynamic_update_slice")
def _dynamic_update_slice(writer: Writer, node: Any, x: str, update: str, *starts: str) -> str:
    """What lies before, beside and after the box is cut from x, axis by axis from the last."""
    if not starts:
        return update
    kind, part = node.operands[0].type, node.operands[1].type
    low = _inside_starts(writer, node, starts, part.shape, 2)
    high = writer.op("Add", low, writer.model.vector(part.shape))
    changed = [
        axis
        for axis, (whole, size) in enumerate(zip(kind.shape, part.shape, strict=True))
        if whole != size
    ]
    value = update
    for axis in reversed(changed):
        # Outside of axis, x is cut to the box in the axes before it; those after are whole again.
        frame = x
        before = [each for each in changed if each < axis]
        if before:
            places = writer.integers(*before)
            starts_before = writer.op("Gather", low, places)
            stops_before = writer.op("Gather", high, places)
            frame = writer.op("Slice", frame, starts_before, stops_before, places)
        place = writer.integers(axis)
        start, stop = writer.op("Gather", low, place), writer.op("Gather", high, place)
        end = writer.model.size(kind.shape[axis])
        head = writer.op("Slice", frame, writer.integers(0), start, place)
        tail = writer.op("Slice", frame, stop, end, place)
        value = writer.op("Concat", head, value, tail, axis=axis)
    return value


# --- windows -------------------------------------------------------------------------------------


def _as_image(writer: Writer, x: str, shape: Sequence[Any], rank: int) -> tuple[str, list[Any]]:
    """A value with exactly two axes before those of the window, and these two."""
    if any(isinstance(dim, int) and dim == 0 for dim in shape):
        raise wf.Unsupported("runtimes slide no window over nothing")
    lead = list(shape[: len(shape) - rank])
    spatial = list(shape[len(shape) - rank :])
    if len(lead) == 2:
        return x, lead
    images: list[Any] = [1, 1]
    for dim in lead:
        images[0] = images[0] * dim
    return writer.reshape(x, [*images, *spatial]), images


def _pads(padding: Any) -> list[int]:
    return [low for low, _ in padding] + [high for _, high in padding]


def _window_attributes(params: Any) -> dict[str, Any]:
    return {
        "kernel_shape": list(params["window"]),
        "strides": list(params["strides"]),
        "pads": _pads(params["padding"]),
        "dilations": list(params["dilation"]),
    }


def _fits(params: Any) -> bool:
    """Whether the padding is smaller than the window, as runtimes ask."""
    pairs = zip(params["padding"], params["window"], params["dilation"], strict=True)
    return all(low < (w - 1) * d + 1 and high < (w - 1) * d + 1 for (low, high), w, d in pairs)


def _max_pool(writer: Writer, node: Any, x: str, count: int) -> tuple[str, ...]:
    dtype, shape = node.operands[0].type.dtype, node.operands[0].type.shape
    wide = computed_in(dtype, "f16 f32 f64 i8 u8")
    params = dict(node.params)
    rank = len(params["window"])
    image, _ = _as_image(writer, writer.cast(x, dtype, wide), shape, rank)
    if not _fits(params):
        raise wf.Unsupported("runtimes take no padding as wide as the window")
    outputs = writer.ops("MaxPool", [image], count, **_window_attributes(params))
    wide_result = writer.cast(outputs[0], wide, dtype)
    return (wide_result, *outputs[1:])


def _as_result(writer: Writer, node: Any, value: str, rank: int) -> str:
    shape = node.results[0].type.shape
    return value if len(shape) == rank + 2 else writer.reshape(value, shape)


@rule("window_max")
def _window_max(writer: Writer, node: Any, x: str) -> str:
    return _as_result(writer, node, _max_pool(writer, node, x, 1)[0], len(node.params["window"]))


@rule("window_argmax")
def _window_argmax(writer: Writer, node: Any, x: str) -> str:
    """The place in the window's axes: MaxPool counts through the whole tensor."""
    rank = len(node.params["window"])
    places = _max_pool(writer, node, x, 2)[1]
    count: Any = 1
    for dim in node.operands[0].type.shape[-rank:]:
        count = count * dim
    inside = writer.op("Mod", places, writer.model.size(count))
    return _as_result(writer, node, inside, rank)


@rule("window_sum")
def _window_sum(writer: Writer, node: Any, x: str) -> str:
    """The mean times the count, or a convolution with ones of integers or where there are holes."""
    dtype, shape, params = node.operands[0].type.dtype, node.operands[0].type.shape, node.params
    wide = summed_in(dtype, "f16 f32 f64", 1, math.prod(params["window"]))
    rank = len(params["window"])
    value, images = _as_image(writer, writer.cast(x, dtype, wide), shape, rank)
    has_mean = dtype.is_floating and all(step == 1 for step in params["dilation"])
    if has_mean and _fits(params):
        attributes = _window_attributes(params)
        del attributes["dilations"]
        mean = writer.op("AveragePool", value, count_include_pad=1, **attributes)
        count = 1
        for width in params["window"]:
            count *= width
        total = writer.op("Mul", mean, writer.number(count, wide))
    else:
        total = _by_ones(writer, value, images, shape[-rank:], wide, params, "Conv")
    return as_sum(writer, _as_result(writer, node, total, rank), wide, dtype)


def _by_ones(
    writer: Writer,
    value: str,
    images: Sequence[Any],
    spatial: Sequence[Any],
    dtype: wf.DType,
    params: Any,
    operator: str,
    **more: Any,
) -> str:
    """A convolution of single channels with ones."""
    rank = len(params["window"])
    flat = writer.reshape(value, [images[0] * images[1], 1, *spatial])
    ones = writer.model.constant(wf.ones((1, 1, *params["window"]), dtype=dtype).numpy())
    return writer.op(operator, flat, ones, **_window_attributes(params), **more) if rank else flat


@rule("window_spread")
def _window_spread(writer: Writer, node: Any, y: str) -> str:
    dtype, shape, params = node.operands[0].type.dtype, node.operands[0].type.shape, node.params
    wide = summed_in(dtype, "f32 f64", 1, math.prod(params["window"]))
    rank = len(params["window"])
    value, images = _as_image(writer, writer.cast(y, dtype, wide), shape, rank)
    extra = _extra(shape[-rank:], params["spatial"], params["window"], params)
    total = _by_ones(
        writer, value, images, shape[-rank:], wide, params, "ConvTranspose", output_padding=extra
    )
    return as_sum(writer, writer.reshape(total, node.results[0].type.shape), wide, dtype)


def _extra(
    counts: Sequence[Any], spatial: Sequence[Any], window: Sequence[int], params: Any
) -> list[int]:
    """How much of the input no window reaches: what a transposed convolution adds at the end."""
    extra = []
    for axis, (count, size, width) in enumerate(zip(counts, spatial, window, strict=True)):
        low, high = params["padding"][axis]
        reach = (count - 1) * params["strides"][axis] + (width - 1) * params["dilation"][axis] + 1
        if isinstance(reach, int) and reach - low - high <= 0:
            raise wf.Unsupported("runtimes take no padding as wide as a transposed window's result")
        rest = size - (reach - low - high)
        if not isinstance(rest, int) or rest < 0:
            raise wf.Unsupported("the size of this transposed window is not known")
        extra.append(rest)
    return extra


@rule("conv_input_gradient")
def write_transposed(writer: Writer, node: Any, y: str, w: str, bias: str | None = None) -> str:
    """A transposed convolution, perhaps with a number added to each channel."""
    dtype, params = node.results[0].type.dtype, node.params
    results, _, *kernel = node.operands[1].type.shape
    wide = summed_in(dtype, "f16 f32 f64", 2, math.prod(kernel) * results // params["groups"])
    extra = _extra(node.operands[0].type.shape[2:], params["spatial"], kernel, params)
    reach = [max(s, d) for s, d in zip(params["strides"], params["dilation"], strict=True)]
    too_far = [max(0, rest - limit + 1) for rest, limit in zip(extra, reach, strict=True)]
    value = writer.op(
        "ConvTranspose",
        *[writer.cast(each, dtype, wide) for each in (y, w)],
        *([] if bias is None else [writer.cast(bias, dtype, wide)]),
        strides=list(params["strides"]),
        pads=_pads(params["padding"]),
        dilations=list(params["dilation"]),
        group=params["groups"],
        output_padding=[rest - far for rest, far in zip(extra, too_far, strict=True)],
    )
    if any(too_far) and bias is not None:
        raise wf.Unsupported("a transposed convolution leaves out more than a stride")
    if any(too_far):
        shape = node.results[0].type.shape
        padding = [(0, 0, 0), (0, 0, 0), *[(0, far, 0) for far in too_far]]
        small = [*shape[:2], *[s - far for s, far in zip(shape[2:], too_far, strict=True)]]
        value = pad_value(writer, value, small, padding, writer.number(0, wide))
    return as_sum(writer, value, wide, dtype)


@rule("conv_weight_gradient")
def _conv_weight_gradient(writer: Writer, node: Any, x: str, y: str) -> str:
    """A convolution in which the batch takes the place of the channels, one batch per group."""
    dtype, params, shape = node.results[0].type.dtype, node.params, node.results[0].type.shape
    (batch, channels, *spatial), groups = node.operands[0].type.shape, params["groups"]
    if batch == 0:
        return expand_value(writer, writer.number(0, dtype), wf.TensorType(dtype, ()), shape)
    terms = math.prod([batch, *node.operands[1].type.shape[2:]])
    wide, rank = summed_in(dtype, "f32 f64", 2, terms), len(spatial)
    swap = [1, 0, *range(2, 2 + rank)]
    image, results = (writer.cast(each, dtype, wide) for each in (x, y))
    if groups == 1:
        image = writer.op("Transpose", image, perm=swap)
    else:
        parts = writer.reshape(image, [batch, groups, channels // groups, *spatial])
        order = [2, 1, 0, *range(3, 3 + rank)]
        image = writer.reshape(
            writer.op("Transpose", parts, perm=order),
            [channels // groups, groups * batch, *spatial],
        )
    value = writer.op(
        "Conv",
        image,
        writer.op("Transpose", results, perm=swap),
        strides=list(params["dilation"]),
        dilations=list(params["strides"]),
        pads=_pads(params["padding"]),
        group=groups,
    )  # [channels of a group, results, ...]
    turned = writer.op("Transpose", value, perm=swap)
    found = [None] * len(shape)  # at least as large as the kernel
    kernel = slice_value(writer, turned, found, [0] * len(shape), shape, [1] * len(shape))
    return as_sum(writer, kernel, wide, dtype)
