"""Every sample's kernels on a card, against the CPU's: bits of integers, rounding of floats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.sample_kernels import SampleProgram, Values, runs, sample_programs
from tests.gpu.kernel_runs import card_code, run_kernel

from weft.compiler.lowering.groups import Lowered
from weft.compiler.targets.cpu.cache.kernels import Code
from weft.compiler.targets.cpu.cache.kernels import kernel_codes as cpu_code
from weft.compiler.targets.cpu.engine import call_kernel
from weft.compiler.targets.cuda.code import Code as CardCode
from weft.compiler.targets.cuda.code import KernelCode
from weft.compiler.targets.cuda.device import device
from weft.compiler.targets.cuda.driver import is_available
from weft.ir.loops import Kernel
from weft.ir.primitive import PRIMITIVES

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(not is_available(), reason="there is no NVIDIA card here")
BATCH = 64
"""Kernels that are compiled together."""


def samples_of(primitive: str) -> list[SampleProgram]:
    return [each for each in sample_programs() if each.primitive == primitive]


@cache
def compiled() -> dict[str, tuple[KernelCode, Code]]:
    """Every kernel by digest: on the card, and on the CPU."""
    kernels: dict[str, Kernel] = {each.kernel.digest: each.kernel for _, each in runs()}
    every = list(kernels.values())
    batches = [every[start : start + BATCH] for start in range(0, len(every), BATCH)]
    on_card = CardCode(every, device())
    made = [on_card.code_of(kernel) for kernel in every]
    codes = [code for batch in batches for code in cpu_code(batch)]
    return dict(zip(kernels, zip(made, codes, strict=True), strict=True))


def code_of(kernel: Kernel) -> tuple[KernelCode, Code]:
    """A kernel on the card, and on the CPU."""
    known = compiled().get(kernel.digest)
    return known or (card_code(kernel), cpu_code([kernel])[0])


def on_both(sample: SampleProgram) -> Iterator[tuple[Lowered, list[Array], list[Array]]]:
    """The arrays after each kernel of a sample, on the card and on the CPU."""
    values = Values(sample)
    for lowered in sample.program.every_lowered:
        kernel = lowered.kernel
        card, cpu = code_of(kernel)
        named = {**sample.sizes, **lowered.known}
        sizes = [named[name] for name in kernel.sizes]
        before = values.arrays(lowered)
        got = run_kernel(kernel, before, sizes, card)
        expected = [array.copy() for array in before]
        extent = kernel.iterations(dict(zip(kernel.sizes, sizes, strict=True)))
        call_kernel(cpu.address, expected, sizes, 0, extent)
        values.write(lowered, expected)
        yield lowered, got, expected


def agree(got: Array, expected: Array, message: str, itemsize: int = 8) -> None:
    """Equal bits of integers; floats within rounding of the greatest, in so many bytes or fewer."""
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected, message)
        return
    if got.dtype.kind == "c":  # its parts one after the other
        part = np.dtype(f"f{got.dtype.itemsize // 2}")
        got, expected = (np.ascontiguousarray(each).view(part) for each in (got, expected))
    limit = {2: 2e-2, 4: 2e-5, 8: 1e-11}[min(got.dtype.itemsize, itemsize)]
    wide, other = got.astype(np.float64), expected.astype(np.float64)
    finite = other[np.isfinite(other)]
    scale = np.abs(finite).max(initial=0.0)
    np.testing.assert_allclose(wide, other, limit, limit * scale * 0.01, err_msg=message)


@pytest.mark.parametrize("primitive", sorted(PRIMITIVES))
def test_kernels_compute_on_a_card_what_they_compute_on_the_cpu(primitive: str) -> None:
    for sample in samples_of(primitive):
        for lowered, got, expected in on_both(sample):
            for position, (one, other) in enumerate(zip(got, expected, strict=True)):
                agree(one, other, f"{sample}, buffer {position}\n{lowered.kernel}")


def test_random_bits_are_the_cpus() -> None:
    samples = samples_of("random_bits")
    assert samples
    for sample in samples:
        for _, got, expected in on_both(sample):
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(one, other)
