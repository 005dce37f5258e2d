"""Sorts and scans for cards assemble for the oldest card, and are cut into the right launches."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compiler.cuda.assembling import PTXAS, needs_ptxas

from weft.compiler.targets.cuda.device_text import TextKernel
from weft.compiler.targets.cuda.machine import OLDEST
from weft.compiler.targets.cuda.nvptx import text_to_ptx
from weft.compiler.targets.cuda.scans import RunningForm, running_kernel, running_steps
from weft.compiler.targets.cuda.sorting import (
    CHUNK,
    chunk_of,
    search_kernel,
    sort_kernels,
    sort_steps,
)
from weft.compiler.targets.llvm.sort_keys import Keys
from weft.core.dtypes import bfloat16, float16, float32, float64, int64

SORTS = sort_kernels(Keys(float32), True, True)
KERNELS = {
    "elements": SORTS.elements,
    "merge": SORTS.merge,
    "wide elements": sort_kernels(Keys(int64, True), True, False).elements,
    "search": search_kernel(Keys(bfloat16), "right"),
    "sums": running_kernel(RunningForm("add", float16, True), "results", 256),
    "totals": running_kernel(RunningForm("lowest", float64, False), "totals", 256),
}


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("name", KERNELS)
def test_it_assembles_for_the_oldest_card(name: str, tmp_path: Path) -> None:
    kernel: TextKernel = KERNELS[name]
    source = tmp_path / "kernel.ptx"
    source.write_text(text_to_ptx(kernel.text))
    command = [str(PTXAS), f"-arch={OLDEST}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_chunks_are_no_longer_than_rows() -> None:
    assert [chunk_of(count) for count in (1, 64, 65, 5000)] == [64, 64, 128, CHUNK]


def test_the_first_few_of_long_rows_take_few_launches() -> None:
    steps = sort_steps(SORTS, CHUNK, (64, 50304, 1, 50), ("values", "indices"))
    assert [step.kernel.name for step in steps] == ["sort_elements", "sort_words", "take_elements"]
    assert steps[0].blocks == 64 * 25
    assert steps[1].blocks == 64


def test_long_rows_are_merged_until_one_run_is_left() -> None:
    steps = sort_steps(SORTS, CHUNK, (1, 1 << 20, 1, 1 << 20), ("values",))
    assert [step.kernel.name for step in steps].count("merge_runs") == 9
    arrays = [step.arrays[:2] for step in steps[1:-1]]
    assert arrays[:2] == [("even", "odd"), ("odd", "even")]
    assert steps[-1].arrays[0] == arrays[-1][1]


def test_rows_of_several_chunks_have_their_totals_scanned_first() -> None:
    form = RunningForm("add", float32, False)
    assert [s.kernel.name for s in running_steps(form, 3, 100, 1)] == ["running_results"]
    names = [s.kernel.name for s in running_steps(form, 3, 5000, 1)]
    assert names == ["running_totals", "running_offsets", "running_results"]
