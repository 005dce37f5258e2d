"""Primitives that move elements, make constants, and pass values on.

>>> from weft.onnx.exporting.rules import RULES
>>> "reshape" in RULES
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.exporting.rules import computed_in, rule
from weft.onnx.exporting.writing import Writer

__all__ = ["pad_value", "slice_value"]

MOVED = "bool f32 f64 f16 i8 i32 i64 u8 u32 u64"
"""The dtypes that runtimes pad."""
WRITTEN_OUT = 1 << 10
"""The most elements of a computed constant that stands in the file."""


def _same_value(primitive: str) -> None:
    """A primitive whose result is its operand."""
    rule(primitive)(lambda writer, node, x: x)


_same_value("stop_gradient")
_same_value("barrier")
_same_value("transfer")
_same_value("shard")
_same_value("rounding_cotangent")


@rule("straight_through")
def _straight_through(writer: Writer, node: Any, x: str, y: str) -> str:
    return y


@rule("reshape")
def _reshape(writer: Writer, node: Any, x: str) -> str:
    return writer.reshape(x, node.params["shape"])


@rule("transpose")
def _transpose(writer: Writer, node: Any, x: str) -> str:
    order = list(node.params["order"])
    return x if order == sorted(order) else writer.op("Transpose", x, perm=order)


@rule("broadcast_to")
def _broadcast_to(writer: Writer, node: Any, x: str) -> str:
    return expand_value(writer, x, node.operands[0].type, node.params["shape"])


def expand_value(writer: Writer, x: str, kind: wf.TensorType, shape: Sequence[Any]) -> str:
    """A value repeated to a shape; sizes that it has already need not be computed."""
    behind = (None,) * (len(shape) - kind.ndim) + tuple(kind.shape)
    sizes = [1 if old == new else new for old, new in zip(behind, shape, strict=True)]
    if all(size == 1 for size in sizes) and len(shape) == kind.ndim:
        return x
    wide = computed_in(kind.dtype, "bool f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64")
    out = writer.op("Expand", writer.cast(x, kind.dtype, wide), writer.model.vector(sizes))
    return writer.cast(out, wide, kind.dtype)


@rule("concatenate")
def _concatenate(writer: Writer, node: Any, *xs: str) -> str:
    return xs[0] if len(xs) == 1 else writer.op("Concat", *xs, axis=node.params["axis"])


@rule("flip")
def _flip(writer: Writer, node: Any, x: str) -> str:
    axes = node.params["axes"]
    if not axes:
        return x
    ends = [np.iinfo(np.int64).min] * len(axes)
    return writer.op(
        "Slice",
        x,
        writer.integers(*[-1] * len(axes)),
        writer.integers(*ends),
        writer.integers(*axes),
        writer.integers(*[-1] * len(axes)),
    )


@rule("slice")
def _slice(writer: Writer, node: Any, x: str) -> str:
    params = node.params
    return slice_value(
        writer,
        x,
        node.operands[0].type.shape,
        params["starts"],
        params["stops"],
        params["strides"],
    )


def slice_value(
    writer: Writer,
    x: str,
    shape: Sequence[Any],
    starts: Sequence[Any],
    stops: Sequence[Any],
    strides: Sequence[Any],
) -> str:
    """A part of a value; axes that are kept whole are not mentioned."""
    cut = [
        axis
        for axis, (low, high, step) in enumerate(zip(starts, stops, strides, strict=True))
        if not (isinstance(low, int) and low == 0 and high == shape[axis] and step == 1)
    ]
    if not cut:
        return x
    steps = [strides[axis] for axis in cut]
    return writer.op(
        "Slice",
        x,
        writer.model.vector([starts[axis] for axis in cut]),
        writer.model.vector([_end(stops[axis], shape[axis]) for axis in cut]),
        writer.integers(*cut),
        *([] if all(step == 1 for step in steps) else [writer.model.vector(steps)]),
    )


def _end(stop: Any, size: Any) -> Any:
    """Where a slice ends: to the end of a symbolic axis without computing its size."""
    return np.iinfo(np.int64).max if stop == size and not isinstance(size, int) else stop


@rule("pad")
def _pad(writer: Writer, node: Any, x: str) -> str:
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, MOVED)
    fill = writer.number(node.params["value"], wide)
    shape = node.operands[0].type.shape
    value = pad_value(writer, writer.cast(x, dtype, wide), shape, node.params["padding"], fill)
    return writer.cast(value, wide, dtype)


def pad_value(writer: Writer, x: str, shape: Sequence[Any], padding: Any, fill: str) -> str:
    """A value with (before, after, between) elements added to each axis; less than 0 cuts."""
    sizes = list(shape)
    for axis, (_, _, between) in enumerate(padding):
        if between:
            x = _space_axis(writer, x, sizes, axis, between, fill)
            sizes[axis] = sizes[axis] * (between + 1) - between
    grown = [
        axis
        for axis, (low, high, _) in enumerate(padding)
        if _is_positive(low) or _is_positive(high)
    ]
    if grown:
        pads = [padding[axis][side] if _is_positive(padding[axis][side]) else 0
                for side in (0, 1) for axis in grown]  # fmt: skip
        x = writer.op("Pad", x, writer.model.vector(pads), fill, writer.integers(*grown))
    starts = [0 if _at_least_zero(low) else -low for low, _, _ in padding]
    cuts = [0 if _at_least_zero(high) else high for _, high, _ in padding]
    pads_before = [low if _is_positive(low) else 0 for low, _, _ in padding]
    pads_after = [high if _is_positive(high) else 0 for _, high, _ in padding]
    full = [a + b + c for a, b, c in zip(sizes, pads_before, pads_after, strict=True)]
    stops = [size + cut for size, cut in zip(full, cuts, strict=True)]
    return slice_value(writer, x, full, starts, stops, [1] * len(sizes))


def _is_positive(size: Any) -> bool:
    return not isinstance(size, int) or size > 0


def _at_least_zero(size: Any) -> bool:
    return not isinstance(size, int) or size >= 0


def _space_axis(
    writer: Writer, x: str, sizes: Sequence[Any], axis: int, between: int, fill: str
) -> str:
    """A value with elements between those of an axis: pad_value on an axis behind, then joined."""
    before, after = list(sizes[: axis + 1]), list(sizes[axis + 1 :])
    column = writer.op("Unsqueeze", x, writer.integers(axis + 1))
    pads = [0, between]
    column = writer.op("Pad", column, writer.integers(*pads), fill, writer.integers(axis + 1))
    size = sizes[axis] * (between + 1)
    flat = writer.reshape(column, [*before[:-1], size, *after])
    whole = [*before[:-1], size, *after]
    stops = [*before[:-1], size - between, *after]
    return slice_value(writer, flat, whole, [0] * len(whole), stops, [1] * len(whole))


@rule("update_slice")
def _update_slice(writer: Writer, node: Any, x: str, update: str) -> str:
    """The update, pad_value to the size of x, where a mask pad_value likewise is true."""
    kind, part = node.operands[0].type, node.operands[1].type
    starts, strides = node.params["starts"], node.params["strides"]
    wide = computed_in(kind.dtype, "f32 f64 f16 i32 i64 u8")
    padding = [
        (start, size - start - ((count - 1) * step + 1), step - 1)
        for start, size, count, step in zip(starts, kind.shape, part.shape, strides, strict=True)
    ]
    spread = pad_value(
        writer, writer.cast(update, kind.dtype, wide), part.shape, padding, writer.number(0, wide)
    )
    ones = expand_value(writer, writer.number(True, wf.bool), wf.spec("bool", ()), part.shape)
    mask = pad_value(writer, ones, part.shape, padding, writer.number(False, wf.bool))
    chosen = writer.op("Where", mask, spread, writer.cast(x, kind.dtype, wide))
    return writer.cast(chosen, wide, kind.dtype)


@rule("full")
def _full(writer: Writer, node: Any) -> str:
    shape, dtype = node.params["shape"], node.params["dtype"]
    value = np.array(node.params["value"]).astype(dtype.numpy)
    sizes = [dim for dim in shape if isinstance(dim, int)]
    if len(sizes) == len(shape) and np.prod(sizes, dtype=np.int64) <= WRITTEN_OUT:
        return writer.model.constant(np.full(sizes, value, dtype.numpy))
    kind = wf.TensorType(dtype, ())
    return expand_value(writer, writer.model.constant(value), kind, shape)


@rule("iota")
def _iota(writer: Writer, node: Any) -> str:
    shape, dtype, axis = node.params["shape"], node.params["dtype"], node.params["axis"]
    count = shape[axis]
    if isinstance(count, int) and count <= WRITTEN_OUT:
        line = writer.model.constant(np.arange(count).astype(dtype.numpy))
    else:
        end = writer.op("Squeeze", writer.model.size(count), writer.integers(0))
        bounds = writer.number(0, wf.int64), end, writer.number(1, wf.int64)
        line = writer.cast(writer.op("Range", *bounds), wf.int64, dtype)
    column = [1] * axis + [count] + [1] * (len(shape) - axis - 1)
    if len(shape) > 1:
        line = writer.reshape(line, column)
    return expand_value(writer, line, wf.TensorType(dtype, tuple(column)), shape)


@rule("triangle")
def _triangle(writer: Writer, node: Any, x: str) -> str:
    dtype, lower, offset = node.results[0].type.dtype, node.params["lower"], node.params["offset"]
    wide = computed_in(dtype, "bool f32 f64 i64")
    number = (writer.number(offset, wf.int64),) if offset else ()
    value = writer.op("Trilu", writer.cast(x, dtype, wide), *number, upper=0 if lower else 1)
    return writer.cast(value, wide, dtype)


def _effect(primitive: str) -> None:
    """What only shows or checks values is left out; its result is a mere token."""

    def write(writer: Writer, node: Any, *operands: str) -> str:
        writer.model.notes.append(f"{primitive} is left out: {writer.place}")
        return writer.model.constant(np.ones(node.results[0].type.shape, bool))

    rule(primitive)(write)


_effect("debug_print")
_effect("debug_check")
_effect("debug_breakpoint")
