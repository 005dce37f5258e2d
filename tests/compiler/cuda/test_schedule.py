"""How loops are laid over a card's threads, and long sums over its launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler import kernels as shared
from tests.compiler.cuda.sample_kernels import program_of

import weft as wf
from weft.compiler.targets.cuda.emit import emit_device_module
from weft.compiler.targets.cuda.merging import merge_accumulations
from weft.compiler.targets.cuda.schedule import Schedule, schedule
from weft.compiler.targets.cuda.splitting import split_kernel
from weft.core.dtypes import INDEX, float32
from weft.ir.loop_reference import run_reference
from weft.ir.loop_verify import verify_kernel
from weft.ir.loops import Accumulate, For, Kernel, Let, Store, Update, evaluate
from weft.ir.scalars import Buffer, const, index, local


def scheduled(function: Any, *types: Any) -> Schedule:
    """The layout of a function's last kernel."""
    return schedule(program_of(function, types).lowered[-1].kernel)


@pytest.mark.parametrize(
    ("columns", "team", "width"),
    [
        (5, 1, 1),
        (9, 32, 1),
        (100, 32, 4),
        (768, 32, 4),
        (1025, 64, 1),
        (4096, 128, 4),
        (40000, 1024, 4),
    ],
)
def test_a_row_has_as_many_threads_as_its_length_needs(columns: int, team: int, width: int) -> None:
    made = scheduled(lambda x: wf.softmax(x, axis=-1), wf.spec("float32", (64, columns)))
    assert (made.team, made.width) == (team, width)


def test_a_block_is_some_warps_or_one_larger_team() -> None:
    for columns, block in ((768, 128), (1500, 64), (4096, 128), (30000, 1024)):
        made = scheduled(lambda x: wf.softmax(x, axis=-1), wf.spec("float32", (64, columns)))
        assert made.block == block
        assert made.blocks({}) == -(-64 * made.team // block)


@pytest.mark.parametrize(
    ("dtype", "width"), [("int8", 16), ("bfloat16", 8), ("float32", 4), ("float64", 2)]
)
def test_a_thread_takes_16_bytes_of_elements(dtype: str, width: int) -> None:
    made = scheduled(lambda x: x + x, wf.spec(dtype, (64, 64)))
    assert (made.team, made.width) == (1, width)


def test_rows_that_begin_between_vectors_are_touched_one_by_one() -> None:
    made = scheduled(lambda x: wf.softmax(x, axis=-1), wf.spec("bfloat16", (64, 301)))
    assert made.width == 1


def test_what_only_its_own_thread_reads_of_a_row_is_in_registers() -> None:
    made = scheduled(lambda x: wf.softmax(x, axis=-1), wf.spec("float32", (64, 768)))
    assert [buffer.name for buffer in made.registers] == ["s0"]
    assert not made.exchanged_buffers


def test_what_an_earlier_step_has_written_is_in_memory() -> None:
    made = scheduled(lambda x: wf.cumsum(x, axis=0), wf.spec("float32", (5, 100)))
    assert made.team == 32
    assert not made.registers
    assert "addrspace(3) global" in emit_device_module([made.kernel])


def test_what_other_threads_read_is_exchanged_between_barriers() -> None:
    made = schedule(shared.scanned())
    assert made.team == 1, "running sums have no loop to divide"
    s, y, i, j = Buffer("s", float32, "both"), Buffer("y", float32, "write"), index("i"), index("j")
    n = const(64, INDEX)
    x = Buffer("x", float32)
    body = (
        For(j, n, (Store(s, i * 64 + j, x[j]),), "vector"),
        For(j, n, (Store(y, i * 64 + j, s[i * 64 + 63 - j]),), "vector"),
    )
    kernel = Kernel("turned", (x, s, y), (), (For(i, n, body, "parallel"),))
    verify_kernel(kernel)
    assert schedule(kernel).exchanged_buffers == {s}
    assert emit_device_module([kernel]).count("call void @llvm.nvvm.bar.warp.sync") == 2


def test_serial_loops_over_different_places_are_part_of_the_grid() -> None:
    i, j, k = (index(name) for name in "ijk")
    x, y = Buffer("x", float32), Buffer("y", float32, "write")
    n = [const(count, INDEX) for count in (4, 5, 6)]
    store = Store(y, i * 30 + j * 6 + k, x[k * 20 + j * 4 + i])
    nest = For(i, n[0], (For(j, n[1], (For(k, n[2], (store,), "vector"),)),), "parallel")
    assert len(schedule(Kernel("turned", (x, y), (), (nest,))).grid) == 3
    same = Store(y, i * 30 + k, x[k * 20 + j * 4 + i])
    nest = For(i, n[0], (For(j, n[1], (For(k, n[2], (same,), "vector"),)),), "parallel")
    assert len(schedule(Kernel("last", (x, y), (), (nest,))).grid) == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [33_000, 40_001])
def test_a_long_sum_in_two_kernels_is_the_sum(count: int) -> None:
    (lowered,) = program_of(lambda x: (x * x).sum(), [wf.spec("float32", (count,))]).lowered
    parts = split_kernel(lowered.kernel)
    assert len(parts.kernels) == 2
    x = np.random.default_rng(0).normal(size=count).astype(np.float32)
    between = [
        np.zeros(evaluate(extent, {}), buffer.dtype.numpy) for buffer, extent in parts.between
    ]
    arrays = [np.zeros(1, np.float32), x, *between]
    for kernel in parts.kernels:
        verify_kernel(kernel)
        run_reference(kernel, arrays, [])
    assert arrays[0][0] == pytest.approx(float((x.astype(np.float64) ** 2).sum()), rel=1e-6)


@pytest.mark.parametrize("odd", [None, float("nan"), float("inf")])
def test_a_long_extreme_in_two_kernels_is_the_extreme(odd: float | None) -> None:
    count = 40_001
    (lowered,) = program_of(lambda x: wf.max(wf.abs(x)), [wf.spec("float32", (count,))]).lowered
    parts = split_kernel(lowered.kernel)
    assert [schedule(each).kernel.parallel is not None for each in parts.kernels] == [True, False]
    x = np.random.default_rng(0).normal(size=count).astype(np.float32)
    x[35_000] = x[35_000] if odd is None else odd
    between = [
        np.zeros(evaluate(extent, {}), buffer.dtype.numpy) for buffer, extent in parts.between
    ]
    arrays = [np.zeros(1, np.float32), x, *between]
    for kernel in parts.kernels:
        verify_kernel(kernel)
        run_reference(kernel, arrays, [])
    np.testing.assert_array_equal(arrays[0], [np.abs(x).max()])


def test_kernels_without_long_sums_stay_whole() -> None:
    for kernel in (shared.softmax(), shared.column_sums(), shared.moments()):
        assert split_kernel(kernel).kernels == (kernel,)


def test_accumulations_that_need_each_other_stay_apart() -> None:
    x, y, k = Buffer("x", float32), Buffer("y", float32, "both"), index("k")
    top, total, other = (local(name, float32) for name in ("top", "total", "other"))
    place, extent = const(0, INDEX), const(8, INDEX)
    first = Accumulate(k, extent, (Update(top, "maximum", x[k]),))
    needs_top = Accumulate(k, extent, (Update(total, "add", x[k] - top),))
    reads_store = Accumulate(k, extent, (Update(other, "add", x[k] * y[place]),))
    shorter = Accumulate(k, const(7, INDEX), (Update(other, "add", x[k]),))
    for body in (
        (first, needs_top),
        (first, Let(other, top * 2), Accumulate(k, extent, (Update(total, "add", x[k] * other),))),
        (first, Store(y, place, top), reads_store),
        (first, shorter),
    ):
        kernel = Kernel("rows", (x, y), (), body)
        assert merge_accumulations(kernel) == kernel
