"""Kernels that run along one axis: cumulative forms, recurrences, and positions of extremes.

A cumulative form is one pass along the axis, with its state in scratch memory; the axes behind it
are in vectors, those before it are divided over threads. Running results of floats are made in
float64, and each is rounded once: what comes late in a long sum is not lost.

>>> import weft as wf
>>> wf.jit(wf.cumulative_sum)(wf.tensor([1.0, 2.0, 3.0])).tolist()
[1.0, 3.0, 6.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    NodeKernel,
    compute_dtype,
    is_short,
    kernel_of,
    nest,
    widen_element,
)
from weft.core.dtypes import INDEX, DType, bool_, float64, int32
from weft.core.shapes import size
from weft.ir import scalars
from weft.ir.loops import Accumulate, For, Let, Scratch, Statement, Store, Update
from weft.ir.scalar_functions import add_exponentials
from weft.ir.scalars import Buffer, Scalar

Combine = Callable[[Scalar, Scalar], Scalar]
Extreme = Literal["maximum", "minimum"]


class _Line:
    """The loops of a kernel along one axis: before it, along it, behind it."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.builder = builder
        axis, shape = builder.params["axis"], builder.shape(0)
        self.before, self.inner = scalars.index("before"), scalars.index("inner")
        self.step = scalars.index("step")
        self.count, self.width = (
            builder.extent(shape[axis]),
            builder.extent(size(shape[axis + 1 :])),
        )
        self.rows = builder.extent(size(shape[:axis]))
        backwards = builder.params.get("reverse", False)
        self.place = self.count - 1 - self.step if backwards else self.step
        self.at = (self.before * self.count + self.place) * self.width + self.inner

    def state(self, name: str, dtype: DType) -> Scratch:
        """Memory for what is known so far, of all that goes on side by side."""
        return Scratch(Buffer(name, dtype, "scratch"), self.width)

    def kernel(self, body: tuple[Statement, ...], *scratch: Scratch) -> NodeKernel:
        """Run statements at each place."""
        inside = nest([(self.step, self.count), (self.inner, self.width)], body, parallel=False)
        if scalars.is_const(self.width, 1):
            inside = (For(self.step, self.count, (For(self.inner, self.width, body),)),)
        loops = nest([(self.before, self.rows)], inside, vector=False)
        return self.builder.kernel(loops, size(self.builder.shape(0)) * 2, scratch)


class _LinesSideBySide(_Line):
    """The same for lines whose elements are neighbours, with some lines in vectors.

    A line by itself waits at every step for its own state.
    """

    def __init__(self, builder: KernelBuilder) -> None:
        super().__init__(builder)
        block, lanes = scalars.index("block"), builder.limits.scanned_lines
        start = block * lanes
        self.width = scalars.const(lanes, INDEX)
        self.before = start + self.inner
        self.at = self.before * self.count + self.place
        self.blocks = block, (self.rows + (lanes - 1)) // lanes
        self.lines = self.inner, scalars.minimum(self.width, self.rows - start)

    def kernel(self, body: tuple[Statement, ...], *scratch: Scratch) -> NodeKernel:
        """Run statements at each place."""
        inside = nest([(self.step, self.count), self.lines], body, parallel=False)
        loops = nest([self.blocks], inside, vector=False)
        return self.builder.kernel(loops, size(self.builder.shape(0)) * 2, scratch)


def _lines(builder: KernelBuilder) -> _Line:
    """The loops along one axis of a kernel whose state goes from element to element."""
    axis, shape = builder.params["axis"], builder.shape(0)
    rows, width, least = size(shape[:axis]), size(shape[axis + 1 :]), builder.limits.scanned_lines
    is_beside = width == 1 and isinstance(rows, int) and 0 < least <= 2 * rows
    return _LinesSideBySide(builder) if is_beside else _Line(builder)


def _running_combination(
    combine: Combine, is_cheap: bool = True
) -> Callable[[KernelBuilder], NodeKernel]:
    """Each element combined with what came before it; is_cheap: in less time than memory takes."""

    def write(builder: KernelBuilder) -> NodeKernel:
        line = _lines(builder)
        dtype = float64 if builder.result.dtype.is_floating else builder.result.dtype
        state = line.state("state", dtype)
        if is_cheap and type(line) is _Line and scalars.is_const(line.width, 1):
            return _combination_of_steps(builder, line, state, combine)
        new, here = scalars.cast(builder.operands[0][line.at], dtype), line.inner
        total = scalars.select(
            scalars.equal(line.step, ZERO), new, combine(state.buffer[here], new)
        )
        body = (
            Store(state.buffer, here, total),
            Store(builder.result, line.at, scalars.cast(state.buffer[here], builder.result.dtype)),
        )
        return line.kernel(body, state)

    return write


def _combination_of_steps(
    builder: KernelBuilder, line: _Line, state: Scratch, combine: Combine
) -> NodeKernel:
    """The same of lines by themselves: the state is in memory between groups of steps only."""
    dtype, length = state.buffer.dtype, builder.limits.steps_at_once
    group, groups = scalars.index("group"), line.count // length

    def step_at(number: Scalar) -> Scalar:
        """Where a step of the line is, in memory."""
        place = line.count - 1 - number if builder.params.get("reverse", False) else number
        return line.before * line.count + place

    def element(number: Scalar) -> Scalar:
        return scalars.cast(builder.operands[0][step_at(number)], dtype)

    def result_store(number: Scalar, total: Scalar) -> Store:
        return Store(builder.result, step_at(number), scalars.cast(total, builder.result.dtype))

    def total_from_state(number: Scalar) -> Scalar:
        """What is known after a step that reads the state."""
        total, new = state.buffer[0], element(number)
        return scalars.select(scalars.equal(number, ZERO), new, combine(total, new))

    totals = [scalars.local(f"total{place}", dtype) for place in range(length)]
    steps = [group * length + place for place in range(length)]
    lets = [Let(totals[0], total_from_state(steps[0]))]
    lets += [
        Let(total, combine(before, element(number)))
        for before, total, number in zip(totals[:-1], totals[1:], steps[1:], strict=True)
    ]
    stores = map(result_store, steps, totals)
    together: tuple[Statement, ...] = (*lets, Store(state.buffer, ZERO, totals[-1]), *stores)
    rest = groups * length + line.step
    alone = (
        Let(totals[0], total_from_state(rest)),
        Store(state.buffer, ZERO, totals[0]),
        result_store(rest, totals[0]),
    )
    inside = (For(group, groups, together), For(line.step, line.count - groups * length, alone))
    loops = nest([(line.before, line.rows)], inside, vector=False)
    return builder.kernel(loops, size(builder.shape(0)) * 2, (state,))


kernel_of("cumulative_sum")(_running_combination(scalars.add))
kernel_of("cumulative_prod")(_running_combination(scalars.multiply))
kernel_of("cumulative_logsumexp")(_running_combination(add_exponentials, is_cheap=False))


@kernel_of("linear_recurrence")
def linear_recurrence(builder: KernelBuilder) -> NodeKernel:
    """y[k] = a[k]·y[k-1] + b[k], each product and each sum rounded to the dtype."""
    line, dtype = _lines(builder), builder.result.dtype
    state = line.state("state", compute_dtype(dtype))
    a, b = (widen_element(operand[line.at]) for operand in builder.operands)
    product = a * state.buffer[line.inner]
    total = b + (scalars.round_to(product, dtype) if is_short(dtype) else product)
    value = scalars.cast(scalars.select(scalars.equal(line.step, ZERO), b, total), dtype)
    body = (
        Store(builder.result, line.at, value),
        Store(state.buffer, line.inner, widen_element(builder.result[line.at])),
    )
    return line.kernel(body, state)


def _positions_so_far(extreme: Combine) -> Callable[[KernelBuilder], NodeKernel]:
    """Where the extreme of all elements so far stands; among equals the latest."""

    def write(builder: KernelBuilder) -> NodeKernel:
        line = _lines(builder)
        new = widen_element(builder.operands[0][line.at])
        best, place = line.state("best", new.dtype), line.state("place", INDEX)
        first, at = scalars.equal(line.step, ZERO), line.inner
        top = scalars.select(first, new, extreme(best.buffer[at], new))
        here = scalars.or_(scalars.equal(new, best.buffer[at]), scalars.not_equal(new, new))
        body = (
            Store(best.buffer, at, top),
            Store(place.buffer, at, scalars.select(here, line.place, place.buffer[at])),
            Store(builder.result, line.at, place.buffer[at]),
        )
        return line.kernel(body, best, place)

    return write


kernel_of("cumulative_argmax")(_positions_so_far(scalars.maximum))
kernel_of("cumulative_argmin")(_positions_so_far(scalars.minimum))


# --- positions of extremes -----------------------------------------------------------------------


@kernel_of("argmax")
def argmax(builder: KernelBuilder) -> NodeKernel:
    """The first of the largest elements, or of NaNs."""
    return _first_extreme(builder, "maximum")


@kernel_of("argmin")
def argmin(builder: KernelBuilder) -> NodeKernel:
    """The first of the smallest elements, or of NaNs."""
    return _first_extreme(builder, "minimum")


def _first_extreme(builder: KernelBuilder, combine: Extreme) -> NodeKernel:
    """The extreme first, and then the first place where it stands."""
    line = _Line(builder)
    x = widen_element(builder.operands[0][line.at])
    value = scalars.cast(x, int32) if x.dtype is bool_ else x
    top, found = scalars.local("top", value.dtype), scalars.local("found", INDEX)
    here = scalars.or_(scalars.equal(value, top), scalars.not_equal(value, value))
    place = scalars.select(here, line.step, line.count)
    body = (
        Accumulate(line.step, line.count, (Update(top, combine, value),)),
        Accumulate(line.step, line.count, (Update(found, "minimum", place),)),
        Store(builder.result, line.before * line.width + line.inner, found),
    )
    loops = [(line.before, line.rows), (line.inner, line.width)]
    if scalars.is_const(line.width, 1):
        inside = nest(loops[1:], body, parallel=False, vector=False)
        return builder.kernel(nest(loops[:1], inside, vector=False), size(builder.shape(0)) * 2)
    return builder.kernel(nest(loops, body), size(builder.shape(0)) * 2)
