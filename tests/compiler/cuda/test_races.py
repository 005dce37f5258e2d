"""Two accesses to one place without an order are found; the kernels of all samples have none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.compiler.cuda.emulated import run_emulated
from tests.compiler.cuda.sample_kernels import SampleProgram, Values, sample_programs

from weft.compiler.lowering.groups import Lowered
from weft.compiler.targets.cuda import schedule as schedules
from weft.compiler.targets.cuda.schedule import schedule
from weft.compiler.targets.cuda.splitting import split_kernel
from weft.core.dtypes import INDEX, float32
from weft.ir.loop_reference import run_reference
from weft.ir.loops import For, Kernel, Store
from weft.ir.scalars import Buffer, const, index

ROW = 40
X, OUT = Buffer("x", float32), Buffer("out", float32, "both")


pytestmark = pytest.mark.usefixtures("small_blocks")


def kernel_of(*body: For | Store) -> Kernel:
    """A kernel over three rows of `OUT`."""
    rows = For(index("row"), const(3, INDEX), body, "parallel")
    return Kernel("rows", (X, OUT), (), (rows,))


def test_a_place_written_by_two_threads_has_an_order_only_where_they_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row, i = index("row"), index("i")
    zeros = For(i, const(ROW, INDEX), (Store(OUT, row * ROW + i, const(0, float32)),), "vector")
    kernel = kernel_of(zeros, Store(OUT, row * ROW + 7, X[row]))
    arrays = [np.arange(1.0, 4.0, dtype=np.float32), np.ones(3 * ROW, np.float32)]
    (_, found) = run_emulated(kernel, arrays)
    assert found.reshape(3, ROW)[:, 7].tolist() == [1.0, 2.0, 3.0]
    monkeypatch.setattr(schedules, "contested_buffers", lambda body, grid: frozenset())
    with pytest.raises(AssertionError, match="without a wait in between"):
        run_emulated(kernel, arrays)


@pytest.mark.parametrize("step", [1, 2])
def test_loops_that_give_a_place_to_its_own_thread_do_not_wait(step: int) -> None:
    row, i = index("row"), index("i")
    second = row * ROW + (i if step == 1 else (i * 7) % ROW)
    loops = [
        For(i, const(ROW, INDEX), (Store(OUT, place, X[i]),), "vector")
        for place in (row * ROW + i, second)
    ]
    assert bool(schedule(kernel_of(*loops)).exchanged_buffers) == (step == 2)


def team_kernels() -> Iterator[tuple[SampleProgram, Lowered]]:
    """The kernels of all samples that threads run together, each once."""
    seen = set[str]()
    for sample in sample_programs():
        for lowered in sample.program.every_lowered:
            parts = map(schedule, split_kernel(lowered.kernel).kernels)
            if lowered.kernel.digest not in seen and any(part.team > 1 for part in parts):
                seen.add(lowered.kernel.digest)
                yield sample, lowered


@pytest.mark.slow
def test_kernels_of_all_samples_have_no_races_and_give_what_references_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "FEW", 1)  # short rows have teams, too
    count = 0
    for sample, lowered in team_kernels():
        kernel = replace(lowered.kernel, name="k")
        named = {**sample.sizes, **lowered.known}
        sizes = [named[name] for name in kernel.sizes]
        given = Values(sample).arrays(lowered)
        before = [x.view(x.real.dtype) if x.dtype.kind == "c" else x for x in given]
        expected = [array.copy() for array in before]
        run_reference(kernel, expected, sizes)
        for got, wanted in zip(run_emulated(kernel, before, sizes), expected, strict=True):
            np.testing.assert_allclose(
                got.astype(np.float64), wanted.astype(np.float64), rtol=2e-2, atol=1e-4,
                err_msg=f"{sample}\n{kernel}",
            )  # fmt: skip
        count += 1
    assert count > 50
