"""Reductions, searches, sorting, and what goes along an axis step by step.

>>> from weft.onnx.exporting.rules import RULES
>>> "reduce_sum" in RULES
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.onnx.exporting.rules import (
    Rule,
    computed_in,
    inlined_program,
    program,
    rule,
    signed_order,
    unsigned_order,
)
from weft.onnx.exporting.writing import Writer

COUNTED = 256
"""The most elements that a value is compared with one by one, where its place is searched."""


def _reduction(primitive: str, operator: str, native: str) -> Rule:
    def write(writer: Writer, node: Any, x: str) -> str:
        dtype, axes = node.operands[0].type.dtype, node.params["axes"]
        if not axes:
            return writer.cast(x, dtype, node.results[0].type.dtype)
        is_order = operator in ("ReduceMax", "ReduceMin")
        ordered, own = signed_order(writer, x, dtype) if is_order else (x, dtype)
        wide = computed_in(own, native)
        inputs = writer.cast(ordered, own, wide), writer.integers(*axes)
        value = writer.op(operator, *inputs, keepdims=0)
        if own is not dtype:
            return unsigned_order(writer, value, dtype)
        return writer.cast(value, wide, node.results[0].type.dtype)

    return rule(primitive)(write)


_reduction("reduce_sum", "ReduceSum", "f16 f32 f64 i32 i64")
_write_float_product = _reduction("reduce_prod", "ReduceProd", "f16 f32 f64")
_reduction("reduce_max", "ReduceMax", "f16 f32 f64 i8 i32 i64")
_reduction("reduce_min", "ReduceMin", "f16 f32 f64 i8 i32 i64")


@rule("reduce_prod")
def _product(writer: Writer, node: Any, x: str) -> str | Sequence[str]:
    """Of integers step by step: runtimes cut a product that an integer does not hold."""
    if node.operands[0].type.dtype.is_floating or not node.params["axes"]:
        return _write_float_product(writer, node, x)
    return inlined_program(_integer_product)(writer, node, x)


def _integer_product(x: wf.Tensor, axes: Sequence[int]) -> wf.Tensor:
    def step(total: wf.Tensor, row: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        return total * row, total

    for axis in sorted(axes, reverse=True):
        rows = wf.moveaxis(x, axis, 0)
        x = wf.scan(step, wf.ones(rows.shape[1:], dtype=x.dtype), rows)[0]
    return x


def _truth_reduction(primitive: str, operator: str) -> None:
    def write(writer: Writer, node: Any, x: str) -> str:
        truth = writer.cast(x, node.operands[0].type.dtype, wf.bool)
        if not node.params["axes"]:
            return truth
        number = writer.op("Cast", truth, to=wf.int32)
        reduced = writer.op(operator, number, writer.integers(*node.params["axes"]), keepdims=0)
        return writer.op("Cast", reduced, to=wf.bool)

    rule(primitive)(write)


_truth_reduction("reduce_all", "ReduceMin")
_truth_reduction("reduce_any", "ReduceSum")


def _place_of_extremum(primitive: str, operator: str) -> None:
    def write(writer: Writer, node: Any, x: str) -> str:
        kind, axis = node.operands[0].type, node.params["axis"]
        if kind.dtype in (wf.int64, wf.uint32, wf.uint64):  # which runtimes do not search
            place = _top(writer, node, x, 1, axis, operator == "ArgMax")[1]
            return writer.op("Squeeze", place, writer.integers(axis))
        wide = computed_in(kind.dtype, "f16 f32 f64 i32")
        return writer.op(operator, writer.cast(x, kind.dtype, wide), axis=axis, keepdims=0)

    rule(primitive)(write)


_place_of_extremum("argmax", "ArgMax")
_place_of_extremum("argmin", "ArgMin")


# --- sorting -------------------------------------------------------------------------------------


def _top(writer: Writer, node: Any, x: str, k: Any, axis: int, largest: bool) -> tuple[str, str]:
    """The k largest or smallest along an axis and their places; of equal ones the first first."""
    dtype = node.operands[0].type.dtype
    ordered, own = signed_order(writer, x, dtype)
    wide = computed_in(own, "f16 f32 f64 i32 i64")
    inputs = writer.cast(ordered, own, wide), writer.model.size(k)
    values, places = writer.ops("TopK", inputs, 2, axis=axis, largest=int(largest), sorted=1)
    if own is not dtype:
        return unsigned_order(writer, values, dtype), places
    return writer.cast(values, wide, dtype), places


@rule("top_k")
def _top_k(writer: Writer, node: Any, x: str) -> tuple[str, str]:
    params = node.params
    return _top(writer, node, x, params["k"], params["axis"], params["largest"])


@rule("sort")
def _sort(writer: Writer, node: Any, x: str) -> str:
    axis = node.params["axis"]
    count = node.operands[0].type.shape[axis]
    return _top(writer, node, x, count, axis, node.params["descending"])[0]


@rule("argsort")
def _argsort(writer: Writer, node: Any, x: str) -> str:
    axis = node.params["axis"]
    count = node.operands[0].type.shape[axis]
    return _top(writer, node, x, count, axis, node.params["descending"])[1]


@program("searchsorted")
def _count_below(x: wf.Tensor, values: wf.Tensor, side: str) -> wf.Tensor:
    """How many elements of x are less than a value, or not greater; in a long one by halves."""
    if x.ndim == 1 and isinstance(x.shape[0], int) and x.shape[0] > COUNTED:
        return _search_by_halves(x, values, side)
    column, x = wf.expand_dims(values, axis=-1), wf.expand_dims(x, axis=-2)
    before = x < column if side == "left" else x <= column
    return wf.sum(before.astype(wf.int64), axis=-1)


def _search_by_halves(x: wf.Tensor, values: wf.Tensor, side: str) -> wf.Tensor:
    """The answer lies from low to high, a range that is halved until it is empty."""
    count = int(x.shape[0])

    def halve(step: wf.Tensor, bounds: Any) -> Any:
        low, high = bounds
        middle = (low + high) // 2
        element = wf.take(x, wf.minimum(middle, count - 1))
        before = element < values if side == "left" else element <= values
        is_open = low < high
        return (
            wf.where(is_open & before, middle + 1, low),
            wf.where(is_open & ~before, middle, high),
        )

    start = wf.zeros(values.shape, dtype=wf.int64), wf.full(values.shape, count, dtype=wf.int64)
    place: wf.Tensor = wf.fori_loop(0, count.bit_length(), halve, start)[0]
    return place


# --- along an axis -------------------------------------------------------------------------------


@rule("cumulative_sum")
def _cumulative_sum(writer: Writer, node: Any, x: str) -> str:
    dtype = node.operands[0].type.dtype
    wide = computed_in(dtype, "f32 f64 i32 i64")
    axis = writer.number(node.params["axis"], wf.int64)
    value = writer.op(
        "CumSum", writer.cast(x, dtype, wide), axis, reverse=int(node.params["reverse"])
    )
    return writer.cast(value, wide, node.results[0].type.dtype)


def _scan_axis(axis: int, reverse: bool, start: Any, step: Any, *xs: wf.Tensor) -> wf.Tensor:
    """What a scan along an axis gives, with that axis where it was."""
    rows = tuple(wf.moveaxis(x, axis, 0) for x in xs)
    empty = [wf.zeros(row.shape[1:], dtype=row.dtype) for row in rows]
    _, ys = wf.scan(step, start(empty), rows, reverse=reverse)
    return wf.moveaxis(ys, 0, axis)


@program("cumulative_prod")
def _cumulative_prod(x: wf.Tensor, axis: int, reverse: bool) -> wf.Tensor:
    def step(total: wf.Tensor, given: Any) -> tuple[wf.Tensor, wf.Tensor]:
        after = total * given[0]
        return after, after

    return _scan_axis(axis, reverse, lambda row: wf.ones_like(row[0]), step, x)


@program("cumulative_logsumexp")
def _cumulative_logsumexp(x: wf.Tensor, axis: int, reverse: bool) -> wf.Tensor:
    def step(total: wf.Tensor, given: Any) -> tuple[wf.Tensor, wf.Tensor]:
        after = wf.logaddexp(total, given[0])
        return after, after

    return _scan_axis(axis, reverse, lambda row: wf.full_like(row[0], -wf.inf), step, x)


@program("linear_recurrence")
def _linear_recurrence(a: wf.Tensor, b: wf.Tensor, axis: int, reverse: bool) -> wf.Tensor:
    def step(y: wf.Tensor, given: Any) -> tuple[wf.Tensor, wf.Tensor]:
        after = given[0] * y + given[1]
        return after, after

    return _scan_axis(axis, reverse, lambda row: wf.zeros_like(row[0]), step, a, b)


def _running_place(x: wf.Tensor, axis: int, reverse: bool, largest: bool) -> wf.Tensor:
    """The place of the extremum so far; of equal ones the last that was met."""
    places = wf.broadcast_to(
        wf.reshape(wf.arange(x.shape[axis]), [-1] + [1] * (x.ndim - axis - 1)), x.shape
    )

    def step(best: Any, given: Any) -> tuple[Any, wf.Tensor]:
        value, place, started = best
        new, number = given
        is_better = (new >= value) if largest else (new <= value)
        wins = (
            is_better | wf.isnan(new) | ~started if new.dtype.is_floating else is_better | ~started
        )
        after = wf.where(wins, new, value), wf.where(wins, number, place), wf.ones_like(started)
        return after, after[1]

    def start(row: Any) -> Any:
        return row[0], row[1], wf.zeros_like(row[0]).astype(wf.bool)

    return _scan_axis(axis, reverse, start, step, x, places)


@program("cumulative_argmax")
def _cumulative_argmax(x: wf.Tensor, axis: int, reverse: bool) -> wf.Tensor:
    return _running_place(x, axis, reverse, largest=True)


@program("cumulative_argmin")
def _cumulative_argmin(x: wf.Tensor, axis: int, reverse: bool) -> wf.Tensor:
    return _running_place(x, axis, reverse, largest=False)
