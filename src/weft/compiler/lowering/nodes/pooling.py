"""The kernel of the gradient of a maximum over windows, where channels are the last axis.

Each window finds its first largest element, or its first NaN, again, and adds its cotangent there.

>>> import weft as wf
>>> x, w = wf.tensor([[[1.0, 3.0, 2.0, 0.0]]]), wf.ones((1, 1, 1))
>>> wf.jit(wf.grad(lambda x: wf.max_pool1d(wf.conv1d(x, w), 2).sum()))(x).tolist()
[[[0.0, 1.0, 1.0, 0.0]]]
"""

from __future__ import annotations

from itertools import product

import numpy as np

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    Loop,
    NodeKernel,
    all_conditions,
    compute_dtype,
    is_short,
    is_within,
    kernel_of,
    nest,
    widen_element,
)
from weft.core.dtypes import INDEX
from weft.core.shapes import is_static, size
from weft.ir import scalars
from weft.ir.affine_index import strides as contiguous
from weft.ir.loops import For, Let, Scratch, Statement, Store
from weft.ir.scalars import Buffer, Scalar


@kernel_of("window_max_gradient")
def window_max_gradient(builder: KernelBuilder) -> NodeKernel | None:
    """What goes before the windows is divided over threads; channels are in vectors."""
    params = builder.params
    window, most = params["window"], builder.limits.unrolled_window_taps
    if window[-1] != 1 or not is_static(window) or int(size(window)) > most:
        return None
    return _Gradient(builder).kernel()


class _Gradient:
    """Writes the kernel."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.builder, self.params = builder, builder.params
        rank = len(self.params["window"])
        self.spatial = builder.shape(0)[-rank:]
        self.counts = builder.shape(1)[-rank:]
        self.lead = size(builder.shape(0)[:-rank])
        self.row = scalars.index("row")
        self.area = builder.extent(size(self.spatial))
        self.loops: list[Loop] = [
            (scalars.index(f"j{axis}"), builder.extent(dim)) for axis, dim in enumerate(self.counts)
        ]
        self.total, self.start = builder.result, self.row * self.area
        self.scratch = list[Scratch]()
        if is_short(builder.result.dtype):
            self.total = Buffer("total", compute_dtype(builder.result.dtype), "scratch")
            self.scratch, self.start = [Scratch(self.total, self.area)], ZERO

    def kernel(self) -> NodeKernel:
        i, builder = scalars.index("i"), self.builder
        zero = Store(self.total, self.start + i, scalars.const(0, self.total.dtype))
        body: tuple[Statement, ...] = (
            For(i, self.area, (zero,), "vector"),
            *nest(self.loops, tuple(self.window()), parallel=False),
        )
        if self.scratch:
            value = scalars.cast(self.total[i], builder.result.dtype)
            own = Store(builder.result, self.row * self.area + i, value)
            body = (*body, For(i, self.area, (own,), "vector"))
        rows = [(self.row, builder.extent(self.lead))]
        work = self.lead * size(self.counts) * size(self.params["window"]) * 2
        return builder.kernel(nest(rows, body, vector=False), work, tuple(self.scratch))

    def tap_offset(self, tap: tuple[int, ...]) -> tuple[Scalar, Scalar | None]:
        """Where a tap is, and whether that is inside."""
        places, conditions = [], []
        for axis, ((index, _), k) in enumerate(zip(self.loops, tap, strict=True)):
            low, high = self.params["padding"][axis]
            gap = k * self.params["dilation"][axis] - low
            place = index * self.params["strides"][axis] + gap
            places.append(place)
            if low or high:
                conditions.append(is_within(place, self.builder.extent(self.spatial[axis])))
        return self.builder.offset(places, contiguous(self.spatial)), all_conditions(conditions)

    def window(self) -> list[Statement]:
        """Find the largest, then go through all taps again."""
        builder, x = self.builder, self.builder.operands[0]
        taps = list(product(*[range(int(dim)) for dim in self.params["window"]]))
        kind = compute_dtype(x.dtype)
        lowest = scalars.const(-np.inf if kind.is_floating else np.iinfo(kind.numpy).min, kind)
        best, found = lowest, scalars.const(-1, INDEX)
        statements: list[Statement] = []
        for number, tap in enumerate(taps):
            place, inside = self.tap_offset(tap)
            instead = scalars.cast(lowest, x.dtype)
            value = scalars.local(f"value{number}", kind)
            source = scalars.load(x, self.row * self.area + place, inside, instead)
            better = scalars.or_(scalars.less(best, value), scalars.less(found, ZERO))
            if kind.is_floating:
                first = scalars.and_(scalars.not_equal(value, value), scalars.equal(best, best))
                better = scalars.or_(better, first)
            if inside is not None:
                better = scalars.and_(better, inside)
            largest = scalars.local(f"best{number}", kind)
            where = scalars.local(f"found{number}", INDEX)
            statements += [
                Let(value, widen_element(source)),
                Let(where, scalars.select(better, scalars.const(number, INDEX), found)),
                Let(largest, scalars.select(better, value, best)),
            ]
            best, found = largest, where
        index = [self.row, *[i for i, _ in self.loops]]
        own = builder.offset(index, contiguous((self.lead, *self.counts)))
        given = scalars.local("given", compute_dtype(x.dtype))
        statements.append(Let(given, widen_element(builder.operands[1][own])))
        for number, tap in enumerate(taps):
            place, inside = self.tap_offset(tap)
            here = scalars.equal(found, scalars.const(number, INDEX))
            target = self.start + place
            old = scalars.load(self.total, target, inside)
            more = scalars.select(here, given, scalars.const(0, given.dtype))
            statements.append(Store(self.total, target, old + more, inside))
        return statements
