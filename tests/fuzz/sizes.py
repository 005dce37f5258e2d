"""Sizes worth drawing: thresholds by which the compiler chooses kernels, from its constants."""

from __future__ import annotations

from functools import cache

from weft.compiler.fusion import grouping, split_reduction
from weft.compiler.lowering import groups
from weft.compiler.lowering.nodes import convolutions, depthwise, pooling, windows
from weft.compiler.plan import in_place, launch, row_fusion
from weft.compiler.targets.cpu import sorting
from weft.compiler.targets.cpu.convolution import plans as convolution_plans
from weft.compiler.targets.cpu.convolution import winograd, winograd_select
from weft.compiler.targets.cpu.products import dot_packing, forms, gemv, tile_plans
from weft.compiler.targets.cpu.products import select as calls

MODULES = (
    grouping, in_place, groups, launch, split_reduction, forms, convolution_plans, winograd,
    winograd_select, calls, row_fusion, tile_plans, gemv, dot_packing, convolutions, depthwise,
    pooling, sorting, windows,
)  # fmt: skip
LARGEST = 1100


@cache
def thresholds() -> tuple[int, ...]:
    """The whole numbers of these modules that can be sizes, and square roots of larger ones."""
    found: set[int] = {16, 32, 64, 320}
    for module in MODULES:
        for name, value in vars(module).items():
            if name.isupper() and type(value) is int and value > 1:
                root = int(value**0.5)
                found |= {number for number in (value, root) if 2 <= number <= LARGEST}
    return tuple(sorted(found))
