"""Weights before and after a convolution: in panels, and back from sums.

>>> from weft.core.dtypes import float32
>>> sum_kernel(float32, 2, 1, 16, 9).name
'sum'
"""

from __future__ import annotations

from weft.compiler.plan.launch import Kind, Launch, Symbol, Value
from weft.compiler.targets.cpu.products.gemm import functions as product_functions
from weft.compiler.targets.cpu.products.tiles import tile_of
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import Accumulate, For, Kernel, Store, Update
from weft.ir.scalars import Buffer, Scalar

SQUARE = 16
"""Rows and columns that are turned at a time."""


def packing_launch(
    weights: Value,
    target: Variable,
    columns: int,
    machine: Machine,
    *,
    groups: int = 1,
    turned: bool,
) -> Launch:
    """The launch that copies weights [O, C/groups, *kernel] into panels of columns.

    The columns are outputs, and the terms channels and taps; turned: columns are channels, each
    output is a stack of its own, and the terms are taps.
    """
    dtype = weights.type.dtype
    width = tile_of(dtype, machine).columns
    outputs, channels, *kernel = (int(dim) for dim in weights.type.shape)
    taps = 1
    for dim in kernel:
        taps *= dim
    panels = -(-columns // width)
    if turned:
        function: Kernel | Symbol = taps_first(dtype, outputs, channels, taps, width)
        count, terms = outputs * panels, taps
    else:
        function, terms = product_functions(dtype, machine)["pack_turned"], channels * taps
        count = groups * panels
    numbers = [] if turned else [columns, terms, panels]
    grain = max(1, 32768 // max(1, terms * width))
    return Launch(
        Kind.PACK, "pack", function, (weights, target), (target,), lambda sizes: numbers,
        lambda sizes: count, lambda sizes: grain,
    )  # fmt: skip


def _number(value: int) -> Scalar:
    return scalars.const(value, scalars.index("i").dtype)


def taps_first(dtype: DType, outputs: int, channels: int, taps: int, width: int) -> Kernel:
    """The kernel from [outputs, channels, taps] to [outputs, panels of channels, taps, width]."""
    source, target = Buffer("w", dtype), Buffer("out", dtype, "write")
    i, k, j = scalars.index("i"), scalars.index("k"), scalars.index("j")
    panels = -(-channels // width)
    output, panel = i // _number(panels), i % _number(panels)
    channel = panel * _number(width) + j
    at = (output * _number(channels) + channel) * _number(taps) + k
    inside = scalars.less(channel, _number(channels)) if channels % width else None
    place = (i * _number(taps) + k) * _number(width) + j
    store = Store(target, place, scalars.load(source, at, inside))
    inner = For(j, _number(width), (store,), "vector")
    body = For(i, _number(outputs * panels), (For(k, _number(taps), (inner,)),), "parallel")
    return Kernel("pack", (source, target), (), (body,))


def sum_launch(node: GraphNode, partial: Variable) -> Launch:
    """The launch that adds partial sums [splits, groups, rows, outputs] and turns them."""
    splits, groups, rows, outputs = (int(dim) for dim in partial.type.shape)
    kernel = sum_kernel(partial.type.dtype, splits, groups, outputs, rows)
    count = kernel.iterations({})
    grain = max(1, 32768 * count // max(1, rows * splits * groups * outputs))
    return Launch(
        Kind.SUM, "sum", kernel, (partial, *node.results), node.results, lambda sizes: [],
        lambda sizes: count, lambda sizes: grain,
    )  # fmt: skip


def sum_kernel(dtype: DType, splits: int, groups: int, outputs: int, rows: int) -> Kernel:
    """The kernel from partial sums [splits, groups, rows, outputs] to [groups, outputs, rows].

    Squares are turned one after the other, where there are whole ones: lines stay in cache. Where
    several sums are added, outputs are the lanes, so that sums are read as they lie: lines of
    squares that lie whole pages apart would push each other out of the cache.
    """
    source, target = Buffer("partial", dtype), Buffer("out", dtype, "write")
    are_lanes = splits > 1 and outputs % SQUARE == 0
    side = SQUARE if are_lanes or outputs % SQUARE == rows % SQUARE == 0 else 1
    wide = SQUARE if side > 1 and rows % SQUARE == 0 else rows
    i, b, o, r = (scalars.index(name) for name in ("i", "b", "o", "r"))
    k, total = scalars.index("k"), scalars.local("total", dtype)
    blocks = _number(outputs // side)
    group, output = i // blocks, i % blocks * _number(side) + o
    row = b * _number(wide) + r
    at = (group * _number(rows) + row) * _number(outputs) + output
    value = source[k * _number(groups * rows * outputs) + at]
    sums = Accumulate(k, _number(splits), (Update(total, "add", value),))
    place = (group * _number(outputs) + output) * _number(rows) + row
    loops = [(o, side), (r, wide)]
    (outer, count), (lane, lanes) = reversed(loops) if are_lanes else loops
    inner = For(lane, _number(lanes), (sums, Store(target, place, total)), "vector")
    square = For(b, _number(rows // wide), (For(outer, _number(count), (inner,)),))
    body = (For(i, _number(groups) * blocks, (square,), "parallel"),)
    return Kernel("sum", (source, target), (), body)
