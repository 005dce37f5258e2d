"""Sizes worth drawing: thresholds by which the compiler chooses kernels, from its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cache

from weft.compiler.fusion import grouping
from weft.compiler.targets.cpu import sorting
from weft.compiler.targets.cpu.convolution import plans as convolution_plans
from weft.compiler.targets.cpu.convolution import winograd, winograd_select
from weft.compiler.targets.cpu.products import dot_packing, forms, gemv, tile_plans
from weft.compiler.targets.cpu.products import select as calls
from weft.compiler.targets.cpu.target import CPU

MODULES = (
    grouping, forms, convolution_plans, winograd, winograd_select, calls, tile_plans, gemv,
    dot_packing, sorting,
)  # fmt: skip
LARGEST = 1100


def _numbers() -> Iterator[object]:
    """The limits by which stages decide, and the constants of the processor's own kernels."""
    for stage in (CPU.limits.fusion, CPU.limits.lowering, CPU.limits.plan):
        yield from (getattr(stage, each.name) for each in fields(stage))
    for module in MODULES:
        yield from (value for name, value in vars(module).items() if name.isupper())


@cache
def thresholds() -> tuple[int, ...]:
    """The whole numbers among these that can be sizes, and square roots of larger ones."""
    found: set[int] = {16, 32, 64, 320}
    for value in _numbers():
        if type(value) is int and value > 1:
            root = int(value**0.5)
            found |= {number for number in (value, root) if 2 <= number <= LARGEST}
    return tuple(sorted(found))
