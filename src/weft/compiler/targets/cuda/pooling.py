"""The gradient of max pooling on a card: which tap of each window is largest, then sums by element.

A loop over windows that adds to elements would have to go one by one. Here the first launch finds
for each window the number of its first largest tap; in the second each element adds up, in the
order of taps, the cotangents of those windows in which it is that tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from weft.compiler.graph_passes.channels_last_primitives import window_max_gradient
from weft.compiler.lowering.builder import ZERO, all_conditions, is_within, widen_element
from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.loop_nests import (
    loop_launch,
    loop_nest,
    place_of_tap,
    row_major_offset,
)
from weft.core.dtypes import INDEX, bfloat16, float16, float32, int32
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import Accumulate, Kernel, Let, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar, const

MOST_TAPS = 64
"""Taps up to which a window is written out."""


def is_pooling_gradient(node: GraphNode) -> bool:
    """Whether a node is the gradient of max pooling of floats, of sizes that are known."""
    if node.primitive is not window_max_gradient:
        return False
    kinds = [atom.type for atom in node.operands]
    dims = [dim for kind in kinds for dim in kind.shape]
    return (
        kinds[0].dtype in (float32, bfloat16, float16)
        and all(isinstance(dim, int) and dim > 0 for dim in dims)
        and prod(node.params["window"]) <= MOST_TAPS
    )


@frozen(slots=False)
class _Windows:
    """How windows lie in the last axes of x."""

    lead: int
    size: tuple[int, ...]
    counts: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    dilation: tuple[int, ...]


def pooling_gradient_launches(node: GraphNode) -> list[Launch]:
    """The two launches."""
    x, ct = node.operands
    params, rank = node.params, len(node.params["window"])
    shape, counts = (tuple(map(int, atom.type.shape)) for atom in (x, ct))
    windows = _Windows(
        prod(shape[:-rank]), shape[-rank:], counts[-rank:], tuple(params["window"]),
        tuple(params["strides"]), tuple(low for low, _ in params["padding"]),
        tuple(params["dilation"]),
    )  # fmt: skip
    largest = Variable(TensorType(int32, counts))
    return [_largest_taps(windows, x, largest), _sums(windows, ct, largest, node.results[0])]


def _largest_taps(windows: _Windows, x: Value, largest: Variable) -> Launch:
    """The number of each window's first largest tap; NaN exceeds all numbers."""
    source, target = Buffer("x", x.type.dtype), Buffer("out", int32, "write")
    row = scalars.index("n")
    places = [scalars.index(f"p{axis}") for axis in range(len(windows.counts))]
    lowest = const(-np.inf, float32)
    best, found = lowest, const(-1, INDEX)
    body: list[Statement] = []
    for number, tap in enumerate(product(*map(range, windows.window))):
        at = [
            place * stride + (k * step - low)
            for place, stride, k, step, low in zip(
                places, windows.strides, tap, windows.dilation, windows.low, strict=True
            )
        ]
        inside = all_conditions(
            [is_within(a, const(dim, INDEX)) for a, dim in zip(at, windows.size, strict=True)]
        )
        assert inside is not None
        offset = row_major_offset([row, *at], [windows.lead, *windows.size])
        loaded = scalars.load(source, offset, inside, scalars.cast(lowest, source.dtype))
        value, where, most = (
            scalars.local(f"{name}{number}", dtype)
            for name, dtype in (("value", float32), ("found", INDEX), ("best", float32))
        )
        first_nan = scalars.and_(scalars.not_equal(value, value), scalars.equal(best, best))
        better = scalars.or_(scalars.less(best, value), scalars.less(found, ZERO))
        better = scalars.and_(scalars.or_(better, first_nan), inside)
        body += [
            Let(value, scalars.cast(widen_element(loaded), float32)),
            Let(where, scalars.select(better, const(number, INDEX), found)),
            Let(most, scalars.select(better, value, best)),
        ]
        best, found = most, where
    own = row_major_offset([row, *places], [windows.lead, *windows.counts])
    body.append(Store(target, own, scalars.cast(found, int32)))
    loops = [(row, windows.lead), *zip(places, windows.counts, strict=True)]
    kernel = Kernel("largest taps", (source, target), (), loop_nest(loops, body))
    return loop_launch(kernel, (x, largest), largest)


def _sums(windows: _Windows, ct: Value, largest: Variable, dx: Variable) -> Launch:
    """Each element's sum of the cotangents of windows whose largest tap it is, in float32."""
    given, taps = Buffer("ct", ct.type.dtype), Buffer("largest", int32)
    target = Buffer("out", dx.type.dtype, "write")
    row, tap = scalars.index("n"), scalars.index("t")
    places = [scalars.index(f"h{axis}") for axis in range(len(windows.size))]
    at, inside = _window_of_tap(windows, places, tap)
    own = row_major_offset([row, *at], [windows.lead, *windows.counts])
    is_largest = scalars.equal(
        scalars.cast(scalars.load(taps, own, inside, const(-1, int32)), INDEX), tap
    )
    value = scalars.load(given, own, scalars.and_(inside, is_largest))
    total = scalars.local("total", float32)
    update = Update(total, "add", scalars.cast(widen_element(value), float32))
    body = (
        Accumulate(tap, const(prod(windows.window), INDEX), (update,)),
        Store(
            target,
            row_major_offset([row, *places], [windows.lead, *windows.size]),
            scalars.cast(total, target.dtype),
        ),
    )
    loops = [(row, windows.lead), *zip(places, windows.size, strict=True)]
    kernel = Kernel("sums of windows", (given, taps, target), (), loop_nest(loops, body))
    return loop_launch(kernel, (ct, largest, dx), dx)


def _window_of_tap(
    windows: _Windows, places: Sequence[Scalar], tap: Scalar
) -> tuple[list[Scalar], Scalar]:
    """The window in which an element is a tap, and whether there is one."""
    at: list[Scalar] = []
    conditions: list[Scalar] = []
    steps = zip(
        places, place_of_tap(tap, windows.window), windows.strides, windows.dilation, windows.low,
        windows.counts, strict=True,
    )  # fmt: skip
    for place, k, stride, step, low, count in steps:
        start = place + low - k * step
        window = start // stride if stride > 1 else start
        if stride > 1:
            conditions.append(scalars.equal(window * stride, start))
        conditions.append(is_within(window, const(count, INDEX)))
        at.append(window)
    inside = all_conditions(conditions)
    assert inside is not None
    return at, inside
