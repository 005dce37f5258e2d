"""Programs of eager work share memory, which a large program of its own takes the place of."""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.compiler.targets.cpu.runtime.executable import LARGE_PROGRAMS, SHARED
from weft.runtime.arena import LARGE, account


def test_memory_of_eager_work_goes_back_before_a_large_program_takes_its_own() -> None:
    count = LARGE // 4  # of float32: one value between is as large as the bound
    drawn = wf.random.normal((2 * count,))
    assert max((block.size for block in SHARED._free), default=0) >= LARGE
    before = account.current
    total = wf.jit(lambda x: wf.cumsum(wf.cumsum(x.reshape(64, -1), axis=0), axis=1)[-1, -1])
    total(drawn)
    assert max((block.size for block in SHARED._free), default=0) < LARGE
    assert account.current <= before + 2 * count * 4


def test_large_compiled_functions_that_take_turns_share_their_memory() -> None:
    x = wf.ones(LARGE // 4)

    def program(factor: float) -> Any:
        return wf.jit(
            lambda x: wf.cumsum(wf.cumsum(x.reshape(64, -1) * factor, axis=0), axis=1)[-1, -1]
        )

    programs = [program(factor) for factor in (1.0, 2.0, 3.0)]
    expected = [run(x).item() for run in programs]
    held = account.current
    for _ in range(2):
        assert [run(x).item() for run in programs] == expected
        assert [run(x[: LARGE // 8]).item() for run in programs] == [e / 2 for e in expected]
    assert account.current <= held + 4 * LARGE // 8 + 1024
    assert [each.size >= LARGE for each in LARGE_PROGRAMS._free] == [True]
