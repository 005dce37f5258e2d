"""The levels of x86-64 that this processor has, each run in this process, without a linker."""

from __future__ import annotations

from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from benchmarks.exported import LoadedProgram

import weft as wf
from weft.compiler.export.checking import RUNS, reference_runs

from .programs import PROGRAMS

LEVELS = {"x86-64-linux": "sse2", "x86-64-v3-linux": "avx2", "x86-64-v4-linux": "avx512vl"}
CHOSEN = [
    "a_perceptron",
    "convolutions",
    "a_turned_product",
    "orders_and_rows",
    "a_step_of_training",
]


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_program_for_a_level_agrees_with_the_reference(
    name: str, target: str, tmp_path: Path
) -> None:
    if not llvm.get_host_cpu_features().get(LEVELS[target]):
        pytest.skip(f"this processor has no {LEVELS[target]}")
    f, arguments = PROGRAMS[name]()
    shipped = wf.export(f, arguments, tmp_path / "model", target=target)
    program, loaded = shipped.interface.program, LoadedProgram(shipped)
    expected = reference_runs(program, RUNS)
    for run in range(RUNS):
        for array, example in zip(loaded.arrays, program.examples, strict=False):
            array[...] = example
        assert loaded.run() == 0
        for number, _ in enumerate(program.outputs):
            found = loaded.arrays[len(program.inputs) + number]
            wanted = expected[run * len(program.outputs) + number]
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
