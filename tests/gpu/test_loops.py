"""Kernels written by hand and at random on a card, with sizes that are known when they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler import kernels as shared
from tests.gpu.kernel_runs import run_kernel
from tests.gpu.test_kernels import agree

from weft.compiler.targets.cuda.driver import is_available
from weft.ir.loop_reference import run_reference
from weft.ir.loops import Accumulate, Kernel, walk

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no NVIDIA card here")
Array = np.ndarray[Any, Any]
SIZES = ((1, 1), (3, 7), (5, 64), (4, 100), (2, 300), (3, 1100))


def arrays(name: str, rows: int, columns: int) -> list[Array]:
    """Operands and results of a kernel by its name."""
    random = np.random.default_rng(rows * columns)

    def drawn(count: int) -> Array:
        return random.normal(size=count).astype(np.float32)

    def zeros(count: int) -> Array:
        return np.zeros(count, np.float32)

    count = rows * columns
    match name:
        case "moments":
            return [drawn(count), zeros(rows), zeros(rows)]
        case "column_sums":
            return [drawn(count), zeros(columns)]
        case "transposed_sum":
            operands = [drawn(n) for n in (count, count, columns, rows, 1)]
            return [*operands, zeros(count)]
        case "padded":
            return [drawn(count), zeros(rows * (columns + 2))]
        case "gathered":
            numbers = random.integers(0, rows, rows).astype(np.int64)
            turn = random.permutation(columns).astype(np.int32)
            return [drawn(count), numbers, turn, zeros(count), zeros(count)]
    return [drawn(count), zeros(count)]


def on_both(kernel: Kernel, given: list[Array], sizes: tuple[int, int]) -> tuple[list[Array], ...]:
    expected = [array.copy() for array in given]
    run_reference(kernel, expected, sizes)
    return run_kernel(kernel, given, sizes), expected


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "kernel",
    [
        shared.softmax(),
        shared.moments(),
        shared.column_sums(),
        shared.transposed_sum(),
        shared.padded(),
        shared.gathered(),
        shared.scanned(),
    ],
    ids=lambda kernel: kernel.name,
)
def test_kernels_with_run_time_sizes_agree_with_the_reference(
    kernel: Kernel, sizes: tuple[int, int]
) -> None:
    got, expected = on_both(kernel, arrays(kernel.name, *sizes), sizes)
    for position, (one, other) in enumerate(zip(got, expected, strict=True)):
        agree(one, other, f"buffer {position}, {sizes}\n{kernel}")


def exact_kernels(count: int) -> list[Kernel]:
    """Random kernels whose accumulations do not round, so that every bit is the reference's."""
    found: list[Kernel] = []
    random = np.random.default_rng(5)
    while len(found) < count:
        kernel = shared.random_kernel(random)
        loops = [s for s in walk(kernel.body) if isinstance(s, Accumulate)]
        if all(u.combine in ("maximum", "minimum") for s in loops for u in s.updates):
            found.append(kernel)
    return found


def test_random_kernels_have_the_references_bits() -> None:
    random = np.random.default_rng(6)
    for kernel in exact_kernels(25):
        for sizes in ((3, 7), (2, 70), (3, 300)):
            count = sizes[0] * sizes[1]
            given = [random.normal(size=count).astype(np.float32) for _ in kernel.buffers]
            got, expected = on_both(kernel, given, sizes)
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(one, other, f"{sizes}\n{kernel}")
