"""Sizes worth drawing: thresholds by which the compiler chooses kernels, from its constants."""

from __future__ import annotations

from functools import cache

from weft.compiler import grouping, launches, lowering, native_calls, partial_sums, products
from weft.compiler.convolution import plans as convolution_plans
from weft.compiler.convolution import winograd, winograd_calls
from weft.compiler.matmul import calls, chains, plans, vectors, words
from weft.compiler.singles import convolutions, depthwise, pooling, sorting, windows

MODULES = (
    grouping, launches, lowering, native_calls, partial_sums, products, convolution_plans, winograd,
    winograd_calls, calls, chains, plans, vectors, words, convolutions, depthwise, pooling, sorting,
    windows,
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
