"""Operators on sizes, computed on the host: symbols pass through, so programs keep them.

These rules serve small arrays of integers, truths and symbols that are known while a program is
traced. One that returns None leaves the node to the rule of tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import size_rule
from weft.onnx.importing.rules.movement import cut_axes, whole_axis
from weft.onnx.importing.running import Call
from weft.onnx.importing.values import tidy_sizes

SMALL = 4096
"""Elements up to which integers are computed on the host."""


def _elementwise(function: Callable[..., Any], *arrays: Array) -> Array | None:
    if max(each.size for each in arrays) > SMALL:
        return None
    if all(each.dtype != object for each in arrays):
        return np.asarray(function(*arrays))
    wide = np.broadcast_arrays(*[each.astype(object) for each in arrays])
    out = np.empty(wide[0].shape, object)
    for place in np.ndindex(out.shape):
        out[place] = function(*[each[place] for each in wide])
    return out


def _enter(name: str, function: Callable[..., Any]) -> None:
    size_rule(name)(lambda call, *xs: _elementwise(function, *xs))


def _divide(a: Any, b: Any) -> Any:
    """The quotient; sizes are not negative, so it is cut towards zero by the floor."""
    if isinstance(a, np.ndarray):
        quotient = np.floor_divide(a, b)
        return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))
    return a // b


def _pick(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y) if isinstance(condition, np.ndarray) else x if condition else y


def _negate(a: Any) -> Any:
    return np.logical_not(a) if isinstance(a, np.ndarray) else not a


def _logical_and(a: Any, b: Any) -> Any:
    return np.logical_and(a, b) if isinstance(a, np.ndarray) else bool(a) and bool(b)


def _logical_or(a: Any, b: Any) -> Any:
    return np.logical_or(a, b) if isinstance(a, np.ndarray) else bool(a) or bool(b)


def _maximum(a: Any, b: Any) -> Any:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else max(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return np.minimum(a, b) if isinstance(a, np.ndarray) else min(a, b)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _divide,
    "Neg": operator.neg, "Equal": operator.eq, "Less": operator.lt, "Greater": operator.gt,
    "LessOrEqual": operator.le, "GreaterOrEqual": operator.ge, "Where": _pick, "Not": _negate,
    "And": _logical_and, "Or": _logical_or,
}  # fmt: skip
for _name, _function in _ARITHMETIC.items():
    _enter(_name, _function)


def _enter_pairwise(name: str, function: Callable[..., Any]) -> None:
    def pairwise(call: Call, *xs: Array) -> Array | None:
        total: Array | None = xs[0]
        for each in xs[1:]:
            total = None if total is None else _elementwise(function, total, each)
        return total

    size_rule(name)(pairwise)


for _name, _pair in {"Max": _maximum, "Min": _minimum}.items():
    _enter_pairwise(_name, _pair)


@size_rule("Cast")
def cast(call: Call, x: Array) -> Array | None:
    """Sizes as integers, which they are."""
    wanted = {6: np.int32, 7: np.int64, 9: np.bool_}.get(call["to"])
    if wanted is None or x.size > SMALL:
        return None
    return x.astype(wanted) if x.dtype != object else x


@size_rule("Identity")
def identity(call: Call, x: Array) -> Array:
    """The sizes themselves."""
    return x


@size_rule("Concat")
def concat(call: Call, *xs: Array) -> Array:
    """Lists of sizes joined."""
    if any(each.dtype == object for each in xs):
        return np.concatenate([each.astype(object) for each in xs], axis=call.get("axis", 1))
    return np.concatenate(xs, axis=call.get("axis", 1))


@size_rule("Gather")
def gather(call: Call, x: Array, indices: Array) -> Array | None:
    """Some of the sizes."""
    if max(x.size, indices.size) > SMALL or indices.dtype == object:
        return None
    return np.take(x, indices, axis=call["axis"])


@size_rule("Slice")
def slice_(call: Call, x: Array, *bounds: Array | None) -> Array | None:
    """A stretch of the sizes."""
    if call.version < 10:
        axes = call.get("axes") or list(range(len(call["starts"])))
        return np.asarray(cut_axes(x, call["starts"], call["ends"], axes, [1] * len(axes)))
    if any(each is not None and each.dtype == object for each in bounds):
        return None
    starts, ends, axes, steps = (
        None if each is None else each.tolist() for each in (*bounds, *[None] * (4 - len(bounds)))
    )
    assert starts is not None
    places = list(range(len(starts))) if axes is None else axes
    return np.asarray(cut_axes(x, starts, ends, places, steps or [1] * len(starts)))


@size_rule("Squeeze")
def squeeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    """Sizes without axes of one element."""
    places = call.get("axes") if axes is None else axes.reshape(-1).tolist()
    return x.squeeze() if not places else x.squeeze(tuple(places))


@size_rule("Unsqueeze")
def unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    """Sizes with axes of one element."""
    places = call.get("axes") if axes is None else axes.reshape(-1).tolist()
    return np.expand_dims(x, tuple(places or ()))


@size_rule("Reshape")
def reshape(call: Call, x: Array, shape: Array | None = None) -> Array | None:
    """Sizes in another shape."""
    entries = call.get("shape") if shape is None else shape.tolist()
    if x.size > SMALL or entries is None or any(isinstance(each, wf.Dim) for each in entries):
        return None
    kept = [
        x.shape[i] if e == 0 and not call.get("allowzero") else e for i, e in enumerate(entries)
    ]
    return x.reshape(kept)


@size_rule("Expand")
def expand(call: Call, x: Array, shape: Array) -> Array | None:
    """One size repeated."""
    if shape.dtype == object or int(np.prod(shape)) > SMALL:
        return None
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))


@size_rule("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def reduce_sizes(call: Call, x: Array, axes: Array | None = None) -> Array | None:
    """The product, sum or extreme of a list of sizes."""
    places = call.get("axes") if axes is None else axes.reshape(-1).tolist()
    if x.ndim != 1 or x.size == 0 or call.get("noop_with_empty_axes") or x.dtype.kind not in "iO":
        return None
    if x.dtype == object and call.node.operator in ("ReduceMax", "ReduceMin"):
        return None
    for place in places or ():
        whole_axis(place, 1)
    name = call.node.operator.removeprefix("Reduce").lower()
    out = np.asarray(getattr(x, name)(axis=0), x.dtype)
    return out.reshape(1) if call["keepdims"] else out


@size_rule("Split")
def split_sizes(call: Call, x: Array, sizes: Array | None = None) -> tuple[Array, ...] | None:
    """A list of sizes in parts."""
    counts = call.get("split") if sizes is None else sizes.tolist()
    if x.ndim != 1 or x.dtype != object or any(isinstance(each, wf.Dim) for each in counts or ()):
        return None
    if counts is None:
        step = -(-len(x) // call.count)
        counts = [step] * (call.count - 1) + [len(x) - step * (call.count - 1)]
    edges = np.cumsum(counts)[:-1]
    return tuple(tidy_sizes(each) for each in np.split(x, edges))
