"""Random programs agree with their files, and come back from them as they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzz.generate import generate, namespace
from tests.nightly import NIGHTLY

import weft as wf
from weft.onnx import export, load
from weft.onnx.exporting.verifying import difference

pytest.importorskip("onnx")
PROGRAMS = range(400) if NIGHTLY else (5, 8, 15, 24, 28, 47, 77, 88, 103, 156, 223, 380, 810, 906)
Array = np.ndarray[Any, Any]
LARGEST = 200_000
"""The most elements of an input of a program that is tried."""
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}


def function_of(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """The function and the arguments of a seed's program, where it is not too large."""
    program = generate(seed)
    if program.elements > LARGEST:
        return None
    space = namespace()
    exec(program.function(), space)
    wf.random.seed(5)
    exec(program.values, space)
    return space["f"], tuple(space[each.name] for each in program.inputs)


def moved_by_rounding(
    f: Callable[..., Any], arguments: list[wf.Tensor], expected: list[Array]
) -> list[Array]:
    """Where results change when f is compiled, or its arguments change in their last place.

    Which of two equal numbers is the least, or whether one has reached the next integer, is
    decided by rounding, and two right programs may round in different ways.
    """
    moved = [np.zeros(each.shape, bool) for each in expected]
    compiled = wf.jit(f)
    for attempt in range(8):
        random, nudged = np.random.default_rng(attempt), []
        for argument in arguments:
            values = argument.numpy().copy()
            if argument.dtype.is_floating:
                unit = float(wf.finfo(argument.dtype).eps) if attempt else 0.0
                steps = random.integers(-2, 3, values.shape) * unit
                values = (values * (1 + steps)).astype(values.dtype)
            nudged.append(wf.asarray(values))
        wf.random.seed(5)
        for number, result in enumerate(wf.tree.leaves(compiled(*nudged))):
            moved[number] |= result.detach().numpy() != expected[number]
    return moved


@pytest.mark.parametrize("seed", PROGRAMS)
def test_a_random_program_agrees_with_its_file_and_comes_back_from_it(
    seed: int, tmp_path: Path
) -> None:
    found = function_of(seed)
    if found is None:
        pytest.skip("a large program")
    f, arguments = found
    copies = [x.detach().numpy().copy() for x in arguments]  # a program may write to its own
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            export(f, arguments, tmp_path / "program.onnx")
        except wf.UnsupportedError as missing:
            pytest.skip(missing.reason)
        wf.random.seed(5)
        expected = wf.tree.leaves(f(*(wf.asarray(x.copy()) for x in copies)))
        again = wf.tree.leaves(load(tmp_path / "program.onnx")(*map(wf.asarray, copies)))
        outputs = [each.detach().numpy() for each in expected]
        moved: list[Array] = []
        for place, (ours, theirs) in enumerate(zip(expected, again, strict=True)):
            assert theirs.type == ours.type
            values, limit = theirs.detach().numpy(), TOLERANCES.get(ours.dtype.name, 0.0)
            if difference(values, outputs[place]) > limit:
                moved = moved or moved_by_rounding(f, [wf.asarray(x) for x in copies], outputs)
                values = np.where(moved[place], outputs[place], values)
            assert difference(values, outputs[place]) <= limit
