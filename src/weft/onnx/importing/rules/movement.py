"""Operators that move elements: reshaping, cutting, joining, padding, repeating."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array, element_of
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call
from weft.onnx.importing.values import Narrow, pack_sizes

Tensor = wf.Tensor
FAR = 1 << 31
"""Bounds beyond this one mean the end of an axis."""


def whole_axis(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a value with {rank} axes")
    return axis % rank


# --- shapes --------------------------------------------------------------------------------------


@rule("Shape", narrow=True)
def shape_of(call: Call, x: Any) -> Array:
    """The sizes of a tensor, or those of some of its axes: known while the program is traced."""
    tensor = x.tensor if isinstance(x, Narrow) else x
    sizes = tensor.shape[call.get("start", 0) : call.get("end")]
    return pack_sizes(list(sizes))


@rule("Size", narrow=True)
def size_of(call: Call, x: Any) -> Array:
    """How many elements a tensor has."""
    tensor = x.tensor if isinstance(x, Narrow) else x
    return pack_sizes(math.prod(tensor.shape, start=1))


@rule("Reshape", known=(1,), moves=True)
def reshape(call: Call, x: Tensor, shape: Array | None = None) -> Tensor:
    """The elements in another shape; 0 keeps a size, -1 is what is left."""
    entries = list(call["shape"] if shape is None else shape.tolist())
    if not call.get("allowzero"):
        entries = [
            x.shape[i] if isinstance(e, int) and e == 0 else e for i, e in enumerate(entries)
        ]
    return x.reshape(tuple(entries))


@rule("Flatten", moves=True)
def flatten(call: Call, x: Tensor) -> Tensor:
    """The elements as a matrix, split at an axis."""
    axis = call["axis"]
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis], start=1), math.prod(x.shape[axis:], start=1)))


@rule("Transpose", moves=True)
def transpose(call: Call, x: Tensor) -> Tensor:
    """The axes in another order."""
    order = call.get("perm") or list(reversed(range(x.ndim)))
    return wf.permute_dims(x, tuple(order))


@rule("Squeeze", moves=True)
def squeeze_by_attribute(call: Call, x: Tensor) -> Tensor:
    """The value without axes of one element."""
    return _squeeze(x, call.get("axes"))


@rule("Squeeze", since=13, known=(1,), moves=True)
def squeeze(call: Call, x: Tensor, axes: Array | None = None) -> Tensor:
    """The value without axes of one element, which are a value."""
    return _squeeze(x, None if axes is None else axes.reshape(-1).tolist())


def _squeeze(x: Tensor, axes: list[int] | None) -> Tensor:
    if axes is None:
        axes = [axis for axis, size in enumerate(x.shape) if isinstance(size, int) and size == 1]
    return wf.squeeze(x, axis=tuple(axes)) if axes else x


@rule("Unsqueeze", moves=True)
def unsqueeze_by_attribute(call: Call, x: Tensor) -> Tensor:
    """The value with axes of one element."""
    return wf.expand_dims(x, axis=tuple(call["axes"]))


@rule("Unsqueeze", since=13, known=(1,), moves=True)
def unsqueeze(call: Call, x: Tensor, axes: Array) -> Tensor:
    """The value with axes of one element, which are a value."""
    return wf.expand_dims(x, axis=tuple(axes.reshape(-1).tolist()))


@rule("Expand", known=(1,), moves=True)
def expand(call: Call, x: Tensor, shape: Array) -> Tensor:
    """The value broadcast with a shape."""
    target = wf.broadcast_shapes(x.shape, tuple(shape.tolist()))
    call.check_room(target)
    return wf.broadcast_to(x, target)


@rule("Tile", known=(1, 2), moves=True)
def tile(call: Call, x: Tensor, repeats: Array, axis: Array | None = None) -> Tensor:
    """The value repeated along its axes."""
    if axis is not None:  # the oldest version: along one axis
        counts = [1] * x.ndim
        counts[int(axis)] = int(repeats)
    else:
        counts = repeats.tolist()
    call.check_room([s * c for s, c in zip(x.shape, counts, strict=True)])
    return wf.tile(x, tuple(counts))


@rule("DepthToSpace", moves=True)
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    """Channels laid out as blocks of pixels."""
    n, c, h, w = x.shape
    b = call["blocksize"]
    if call.get("mode", "DCR") == "DCR":
        parts = x.reshape((n, b, b, c // (b * b), h, w))
        order = (0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape((n, c // (b * b), b, b, h, w))
        order = (0, 1, 4, 2, 5, 3)
    return wf.permute_dims(parts, order).reshape((n, c // (b * b), h * b, w * b))


@rule("SpaceToDepth", moves=True)
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    """Blocks of pixels laid out as channels."""
    n, c, h, w = x.shape
    b = call["blocksize"]
    parts = x.reshape((n, c, h // b, b, w // b, b))
    return wf.permute_dims(parts, (0, 3, 5, 1, 2, 4)).reshape((n, c * b * b, h // b, w // b))


# --- parts ---------------------------------------------------------------------------------------


@rule("Slice", moves=True)
def slice_by_attributes(call: Call, x: Tensor) -> Any:
    """A part of the value, between bounds that are attributes."""
    axes = call.get("axes") or list(range(len(call["starts"])))
    return cut_axes(x, call["starts"], call["ends"], axes, [1] * len(axes))


@rule("Slice", since=10, known=(1, 2, 3, 4), moves=True)
def slice_(
    call: Call,
    x: Tensor,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Any:
    """A part of the value, between bounds that are values."""
    first = starts.tolist()
    places = list(range(len(first))) if axes is None else axes.tolist()
    return cut_axes(
        x, first, ends.tolist(), places, [1] * len(first) if steps is None else steps.tolist()
    )


def cut_axes(x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    """The elements between bounds along axes, in steps; bounds beyond an axis are its ends."""
    key = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = whole_axis(axis, x.ndim)
        key[place] = slice_of(start, end, step, x.shape[place])
    return x[tuple(key)]


def slice_of(start: Any, end: Any, step: int, size: Any) -> slice:
    """The slice that bounds of the format mean, which are clamped to the axis."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        if step > 0:
            return slice(*slice(start, end, step).indices(size))
        first, last, _ = slice(start, end, step).indices(size)
        return slice(first, None if last < 0 else last, step) if first >= 0 else slice(0, 0)
    if isinstance(start, int) and (start >= FAR or start <= -FAR):
        start = None if (start > 0) == (step < 0) else start
    if isinstance(end, int) and (end >= FAR or end <= -FAR):
        end = None if (end > 0) == (step > 0) else end
    return slice(start, end, step)


@rule("Split", moves=True)
def split_by_attribute(call: Call, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Parts along an axis, whose sizes are an attribute."""
    return _split_axis(call, x, call.get("split"))


@rule("Split", since=13, known=(1,), moves=True)
def split_by_sizes(call: Call, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    """Parts along an axis, whose sizes are a value, or as equal as they can be."""
    return _split_axis(call, x, None if sizes is None else sizes.tolist())


def _split_axis(call: Call, x: Tensor, sizes: list[Any] | None) -> tuple[Tensor, ...]:
    axis = whole_axis(call["axis"], x.ndim)
    if sizes is None:
        count = call.count
        if call.get("num_outputs", count) != count:
            raise ValueError(f"num_outputs {call['num_outputs']} of {count} outputs")
        whole = x.shape[axis]
        step = -(-whole // count)
        sizes = [step] * (count - 1) + [whole - step * (count - 1)]
    return tuple(cut_parts(x, sizes, axis))


def cut_parts(x: Tensor, sizes: list[Any], axis: int) -> list[Tensor]:
    """Parts of given sizes along an axis."""
    parts, start = [], 0
    for size in sizes:
        key = [slice(None)] * x.ndim
        key[axis] = slice(start, start + size)
        parts.append(x[tuple(key)])
        start = start + size
    return parts


@rule("Concat", moves=True)
def concat(call: Call, *xs: Tensor) -> Tensor:
    """Values joined along an axis."""
    return wf.concat(list(xs), axis=call.get("axis", 1))


# --- padding -------------------------------------------------------------------------------------


@rule("Pad")
def pad_by_attributes(call: Call, x: Tensor) -> Tensor:
    """The value made larger; how much is an attribute."""
    widths = call.get("pads") or call.get("paddings")
    return _pad(call, x, widths, call.get("value", 0.0), range(x.ndim))


@rule("Pad", since=11, known=(1, 3))
def pad(
    call: Call, x: Tensor, pads: Array, value: Tensor | None = None, axes: Array | None = None
) -> Tensor:
    """The value made larger or smaller at its edges."""
    places = range(x.ndim) if axes is None else [whole_axis(a, x.ndim) for a in axes.tolist()]
    if value is not None:
        value = value.reshape(()).astype(x.dtype)
    return _pad(call, x, pads.tolist(), 0 if value is None else value, places)


def _pad(call: Call, x: Tensor, widths: Any, value: Any, axes: Any) -> Tensor:
    axes = list(axes)
    before: list[Any] = [0] * x.ndim
    after: list[Any] = [0] * x.ndim
    for i, axis in enumerate(axes):
        before[axis], after[axis] = widths[i], widths[i + len(axes)]
    pairs = list(zip(before, after, strict=True))
    known = [(b, a) for b, a in pairs if isinstance(b, int) and isinstance(a, int)]
    call.check_room([s + b + a for s, (b, a) in zip(x.shape, pairs, strict=True)])
    if any(b < 0 or a < 0 for b, a in known):  # a negative width cuts elements off
        key = tuple(
            slice(max(-b, 0), size - max(-a, 0))
            for size, (b, a) in zip(x.shape, pairs, strict=True)
        )
        x = x[key]
        pairs = [(max(b, 0), max(a, 0)) for b, a in pairs]
    mode = call["mode"]
    if mode == "constant":
        return wf.pad(x, pairs, constant_values=value)
    return wf.pad(x, pairs, mode=mode)


# --- new values ----------------------------------------------------------------------------------


@rule("ConstantOfShape", known=(0,))
def constant_of_shape(call: Call, shape: Array) -> Any:
    """One number in a shape."""
    value = call.get("value")
    sizes = tuple(shape.tolist())
    call.check_room(sizes)
    number = np.zeros(1, np.float32) if value is None else value
    if not any(isinstance(size, wf.Dim) for size in sizes) and math.prod(sizes) <= 64:
        return np.full(sizes, number.reshape(-1)[0], number.dtype)
    return wf.full(sizes, number.reshape(-1)[0].item(), dtype=number.dtype)


@rule("Range", known=(0, 1, 2))
def number_range(call: Call, start: Array, limit: Array, delta: Array) -> Any:
    """Numbers from a start in steps, before a limit."""
    bounds = [each.reshape(-1)[0] for each in (start, limit, delta)]
    if any(isinstance(each, wf.Dim) for each in bounds):
        first, stop, step = (each if isinstance(each, wf.Dim) else int(each) for each in bounds)
        count = -((first - stop) // step)
        return wf.arange(count) * step + first
    count = max(math.ceil(float(bounds[1] - bounds[0]) / float(bounds[2])), 0)
    call.check_room([count])
    numbers = np.arange(count).astype(start.dtype) * bounds[2] + bounds[0]
    return wf.asarray(numbers.astype(start.dtype))


@rule("EyeLike")
def eye_like(call: Call, x: Tensor) -> Tensor:
    """Ones on a diagonal, in the shape of a matrix."""
    code = call.get("dtype")
    rows, columns = x.shape
    matrix = wf.eye(rows, columns, k=call["k"])
    if code is None:
        return matrix.astype(x.dtype)
    return matrix.astype(element_of(code, str(call.node)).name)
