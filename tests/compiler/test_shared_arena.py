"""Programs of eager work share memory, which a large program of its own takes the place of."""

from __future__ import annotations

import weft as wf
from weft.compiler.targets.cpu.runtime.executable import SHARED
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
