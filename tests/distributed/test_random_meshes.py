"""Random programs, divided among the devices of random meshes, agree with plain ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fuzz.compare import examine
from tests.fuzz.generate import generate
from tests.hammer import NIGHTLY

SEEDS = range(300) if NIGHTLY else (8, 56)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_on_a_random_mesh_agrees_with_the_plain_one(seed: int) -> None:
    program = generate(seed)
    if program.ending in ("tuned", "thread", "studied"):  # which say how `jit` is called
        program = replace(program, ending="call")
    assert examine(program, ("mesh",)) is None
