"""Operators that make fewer elements of many: sums, extremes, places of extremes, sums so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
Axes = tuple[int, ...] | None


def _in_own_type(function: Callable[..., Tensor]) -> Callable[[Tensor, Axes, bool], Tensor]:
    """A reduction whose result has the element type of its operand."""

    def reduce_axes(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
        return function(x, axis=axes, keepdims=keepdims).astype(x.dtype)

    return reduce_axes


def _extreme(function: Callable[..., Tensor], empty: float) -> Callable[..., Tensor]:
    """A maximum or minimum, also of truths, and of nothing."""

    def reduce_axes(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
        if x.dtype.kind == "bool":
            return function(x.astype("uint8"), axis=axes, keepdims=keepdims).astype("bool")
        if isinstance(x.size, int) and x.size == 0:
            return _of_nothing(x, axes, keepdims, empty)
        return function(x, axis=axes, keepdims=keepdims)

    return reduce_axes


def _of_nothing(x: Tensor, axes: Axes, keepdims: bool, empty: float) -> Tensor:
    """What an extreme of no elements is: the number that all others replace."""
    value: Any = empty
    if not x.dtype.is_floating:
        info = wf.iinfo(x.dtype)
        value = info.min if empty < 0 else info.max
    shape = wf.sum(x, axis=axes, keepdims=keepdims).shape
    return wf.full(shape, value, dtype=x.dtype)


def _mean(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    if x.dtype.is_floating:
        return wf.mean(x, axis=axes, keepdims=keepdims)
    wide = wf.mean(x.astype("float64"), axis=axes, keepdims=keepdims)
    return wf.trunc(wide).astype(x.dtype)


def _log_sum(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    return wf.log(wf.sum(x, axis=axes, keepdims=keepdims))


def _log_sum_exp(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    if isinstance(x.size, int) and x.size == 0:
        return _log_sum(wf.exp(x), axes, keepdims)
    return wf.logsumexp(x, axis=axes, keepdims=keepdims)


_SUM = _in_own_type(wf.sum)
REDUCTIONS: dict[str, Callable[[Tensor, Axes, bool], Tensor]] = {
    "ReduceSum": _SUM,
    "ReduceProd": _in_own_type(wf.prod),
    "ReduceMax": _extreme(wf.max, float("-inf")),
    "ReduceMin": _extreme(wf.min, float("inf")),
    "ReduceMean": _mean,
    "ReduceL1": lambda x, axes, keepdims: _SUM(wf.abs(x), axes, keepdims),
    "ReduceL2": lambda x, axes, keepdims: wf.sqrt(_SUM(x * x, axes, keepdims)),
    "ReduceSumSquare": lambda x, axes, keepdims: _SUM(x * x, axes, keepdims),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}


def _enter_reduction(name: str) -> None:
    function = REDUCTIONS[name]

    def by_attribute(call: Call, x: Tensor) -> Tensor:
        return _reduce(call, function, x, call.get("axes"))

    def by_input(call: Call, x: Tensor, axes: Array | None = None) -> Tensor:
        return _reduce(call, function, x, None if axes is None else axes.reshape(-1).tolist())

    rule(name)(by_attribute)
    rule(name, since=13 if name == "ReduceSum" else 18, known=(1,))(by_input)


def _reduce(call: Call, function: Callable[..., Tensor], x: Tensor, axes: Any) -> Tensor:
    if not axes:
        if call.get("noop_with_empty_axes"):
            return function(x[None], (0,), False)
        axes = None
    return function(x, None if axes is None else tuple(axes), bool(call["keepdims"]))


for _name in REDUCTIONS:
    _enter_reduction(_name)


@rule("ArgMax", "ArgMin")
def place_of_extreme(call: Call, x: Tensor) -> Any:
    """Where the largest or smallest element stands: the first one, or the last one."""
    function: Any = wf.argmax if call.node.operator == "ArgMax" else wf.argmin
    axis, keepdims = call["axis"], bool(call["keepdims"])
    if not call.get("select_last_index"):
        return function(x, axis=axis, keepdims=keepdims)
    return x.shape[axis] - 1 - function(wf.flip(x, axis=axis), axis=axis, keepdims=keepdims)


@rule("CumSum", known=(1,))
def cumulative_sum(call: Call, x: Tensor, axis: Array) -> Tensor:
    """Sums so far, from either end, with or without the element itself."""
    place = int(axis.reshape(-1)[0])
    x = wf.flip(x, axis=place) if call["reverse"] else x
    sums = wf.cumulative_sum(x, axis=place).astype(x.dtype)
    sums = sums - x if call["exclusive"] else sums
    return wf.flip(sums, axis=place) if call["reverse"] else sums


@rule("TopK")
def largest_elements_by_attribute(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest elements; how many is an attribute."""
    return _topk(call, x, call["k"])


@rule("TopK", since=10, known=(1,))
def largest_elements(call: Call, x: Tensor, count: Array) -> tuple[Tensor, Tensor]:
    """The largest or smallest elements, and where they stand."""
    return _topk(call, x, int(count.reshape(-1)[0]))


def _topk(call: Call, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    found = wf.topk(x, count, axis=call["axis"], largest=bool(call.get("largest", 1)))
    return found[0], found[1]
