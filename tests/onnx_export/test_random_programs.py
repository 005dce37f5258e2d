"""Random programs agree with their files, and come back from them as they were."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzz.generate import generate, namespace

import weft as wf
from weft.onnx import export, load
from weft.onnx.exporting.verifying import difference

pytest.importorskip("onnx")
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
PROGRAMS = range(400) if NIGHTLY else (15, 24, 35, 47, 77, 88, 103, 156, 223, 240)
LARGEST = 200_000
"""The most elements of an input of a program that is tried."""
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}


def function_of(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """The function and the arguments of a seed's program, where it has no state."""
    program = generate(seed)
    if program.ending in ("train", "state") or program.elements > LARGEST:
        return None
    space = namespace()
    exec(program.function(), space)
    wf.random.seed(5)
    exec(program.values, space)
    return space["f"], tuple(space[each.name] for each in program.inputs)


@pytest.mark.parametrize("seed", PROGRAMS)
def test_a_random_program_agrees_with_its_file_and_comes_back_from_it(
    seed: int, tmp_path: Path
) -> None:
    found = function_of(seed)
    if found is None:
        pytest.skip("a program with state, or a large one")
    f, arguments = found
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            export(f, arguments, tmp_path / "program.onnx")
        except wf.UnsupportedError as missing:
            pytest.skip(missing.reason)
        wf.random.seed(5)
        expected = wf.tree.leaves(f(*arguments))
        again = wf.tree.leaves(load(tmp_path / "program.onnx")(*arguments))
    for ours, theirs in zip(expected, again, strict=True):
        assert theirs.type == ours.type
        apart = difference(theirs.detach().numpy(), ours.detach().numpy())
        assert apart <= TOLERANCES.get(ours.dtype.name, 0.0)
