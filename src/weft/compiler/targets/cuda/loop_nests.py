"""Kernels of the loop language that are written for a card: loops, offsets, and the launch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.compiler.lowering.builder import ZERO
from weft.compiler.plan.launch import Kind, Launch, Value, no_numbers, one
from weft.core.dtypes import INDEX
from weft.ir.graph import Variable
from weft.ir.loops import For, Kernel, Statement
from weft.ir.scalars import Scalar, const


def loop_launch(kernel: Kernel, values: Sequence[Value], result: Variable) -> Launch:
    """The launch of a kernel of the loop language that is written for a card."""
    return Launch(
        Kind.LOOP, kernel.name, kernel, tuple(values), (result,), no_numbers,
        lambda sizes: kernel.iterations({}), one,
    )  # fmt: skip


def loop_nest(
    loops: Sequence[tuple[Scalar, int]], body: Sequence[Statement]
) -> tuple[Statement, ...]:
    """Loops around statements: the first is parallel, the last a vector loop."""
    inside = tuple(body)
    for place, (index, extent) in reversed(list(enumerate(loops))):
        kind: Any = "serial"
        if place == len(loops) - 1:
            kind = "vector"
        elif place == 0:
            kind = "parallel"
        inside = (For(index, const(extent, INDEX), inside, kind),)
    return inside


def row_major_offset(places: Sequence[Scalar], shape: Sequence[int]) -> Scalar:
    """Where an index leads to in an array without gaps."""
    offset = ZERO
    for place, dim in zip(places, shape, strict=True):
        offset = offset * dim + place
    return offset


def place_of_tap(tap: Scalar, kernel: Sequence[int]) -> list[Scalar]:
    """The number of a tap as a place along each axis of the kernel."""
    found: list[Scalar] = []
    for axis in range(len(kernel)):
        inner = prod(kernel[axis + 1 :])
        place = tap // inner if inner > 1 else tap
        found.append(place % kernel[axis] if axis else place)
    return found
