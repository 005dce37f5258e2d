"""Kernels for cards, run by an emulated one against the loop language's reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler import kernels as shared
from tests.compiler.cuda.emulated import run_emulated
from tests.compiler.cuda.sample_kernels import program_of

import weft as wf
from weft.compiler.targets.cuda import schedule as schedules
from weft.compiler.targets.cuda.schedule import schedule
from weft.compiler.targets.cuda.splitting import split_kernel
from weft.core.dtypes import INDEX, float32
from weft.ir.dispatch import apply
from weft.ir.loop_reference import run_reference
from weft.ir.loops import Accumulate, For, Kernel, Store, Update
from weft.ir.scalars import Buffer, const, index, local
from weft.ops.placed_boxes import lay_at, roll_at, slice_at

Array = np.ndarray[Any, Any]


pytestmark = pytest.mark.usefixtures("small_blocks")


def drawn(*counts: int) -> list[Array]:
    random = np.random.default_rng(sum(counts))
    return [random.normal(size=count).astype(np.float32) for count in counts]


def check(kernel: Kernel, arrays: list[Array], sizes: tuple[int, ...] = ()) -> None:
    expected = [array.copy() for array in arrays]
    run_reference(kernel, expected, sizes)
    for one, other in zip(run_emulated(kernel, arrays, sizes), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6, err_msg=str(kernel))


def one_kernel(function: Callable[..., Any], shape: tuple[int, ...]) -> Kernel:
    (lowered,) = program_of(function, [wf.spec("float32", shape)]).lowered
    return lowered.kernel


@pytest.mark.parametrize("columns", [6, 100, 1100])
def test_softmax_of_one_thread_a_warp_and_several(columns: int) -> None:
    kernel = one_kernel(lambda x: wf.softmax(x, axis=-1), (3, columns))
    check(kernel, drawn(3 * columns, 3 * columns))


def test_elements_and_their_rest() -> None:
    (lowered,) = program_of(lambda x: wf.tanh(x) * 2.0, [wf.spec("float32", (1003,))]).lowered
    arrays = drawn(1003, 1003)
    check(lowered.kernel, arrays, (1003,))


def test_long_rows_whose_sums_are_in_blocks_are_whole_for_a_team() -> None:
    kernel = one_kernel(lambda x: wf.logsumexp(x, axis=-1), (2, 600))
    plan = schedule(kernel)
    assert (plan.team, plan.vector) == (32, None)
    assert "block <" not in str(split_kernel(kernel).kernels[0])
    check(kernel, drawn(2, 1200))


def test_long_columns_have_a_team_each_where_they_are_few() -> None:
    kernel = one_kernel(lambda x: (x * 1.0).sum(axis=0), (60, 8))
    assert schedule(kernel).team == 1
    x, y = drawn(900 * 3, 3)
    check(shared.column_sums(), [x, y], (900, 3))
    tall = program_of(lambda x: x.sum(axis=0), [wf.spec("float32", (601, 3))]).lowered[-1].kernel
    assert schedule(tall).team == 32
    check(tall, drawn(3, 601 * 3))


@pytest.mark.parametrize(
    "kernel", [shared.moments(), shared.padded(), shared.scanned()], ids=lambda kernel: kernel.name
)
def test_sizes_at_run_time(kernel: Kernel) -> None:
    counts = {"moments": (120, 3, 3), "padded": (120, 126), "scanned": (120, 120)}
    check(kernel, drawn(*counts[kernel.name]), (3, 40))


def test_running_sums_down_columns_wait_for_each_step() -> None:
    kernel = one_kernel(lambda x: wf.cumsum(x, axis=0), (5, 100))
    check(kernel, drawn(500, 500))


def test_a_thread_takes_several_rows_where_these_share_what_they_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "ROW_THREADS", 1)
    kinds = [wf.spec("float32", shape) for shape in ((3, 12, 16), (16,), (3, 1, 16))]
    (lowered,) = program_of(lambda x, a, b: ((x - a) * b, x * a), kinds).lowered
    plan = schedule(lowered.kernel)
    assert [int(loop.extent.detail) for loop in plan.grid] == [3, 3, 16]
    assert len(plan.body) == 4 * 4
    check(lowered.kernel, drawn(576, 576, 576, 16, 48))


def chunked(rows: int, columns: int, count: int = 1) -> Kernel:
    """Sums down columns of [count, rows, columns], as the second part of a longer sum has them."""
    x, y = Buffer("x", float32), Buffer("y", float32, "write")
    i, j, k, total = index("i"), index("j"), index("k"), local("t", float32)
    place = k * columns + (j + i * (rows * columns))
    inner = (
        Accumulate(k, const(rows, INDEX), (Update(total, "add", x[place] * 0.5),)),
        Store(y, j + i * columns, total),
    )
    vector = For(j, const(columns, INDEX), inner, "vector")
    return Kernel("sums", (y, x), (), (For(i, const(count, INDEX), (vector,), "parallel"),))


@pytest.mark.parametrize(
    ("rows", "columns", "team"),
    [(128, 32, 8), (129, 64, 8), (260, 32, 16), (128, 33, 32), (127, 32, 1)],
)
def test_sums_down_few_columns_share_each_row_of_memory(rows: int, columns: int, team: int) -> None:
    kernel = chunked(rows, columns, 2)
    plan = schedule(kernel)
    assert plan.team == team
    assert plan.is_across == (columns % 32 == 0 and rows >= 128)
    check(kernel, [np.abs(array) for array in drawn(2 * columns, 2 * rows * columns)])


@pytest.mark.parametrize(
    ("columns", "count", "team"), [(64, 8, 16), (32, 4, 8), (12, 8, 4), (64, 3, 32), (200, 8, 32)]
)
def test_short_rows_share_a_warp_where_all_warps_are_whole(
    columns: int, count: int, team: int
) -> None:
    kernel = one_kernel(lambda x: x / (1.0 + (x * x).sum(axis=-1, keepdims=True)), (count, columns))
    assert schedule(kernel).team == team
    check(kernel, drawn(count * columns, count * columns))


def test_what_several_threads_write_to_one_place_is_written_in_its_order() -> None:
    def diagonal(x: wf.Tensor) -> wf.Tensor:
        return wf.diag(x)

    (*_, lowered) = program_of(diagonal, [wf.spec("float32", (300,))]).lowered
    kernel = lowered.kernel
    plan = schedule(kernel)
    assert plan.team > 1
    assert len(plan.exchanged_buffers) == 1
    check(kernel, drawn(300 * 300, 300) + [np.arange(300)] * 2 + drawn(300 * 300))


def box(sizes: tuple[int, ...], strides: tuple[int, ...], *along: int) -> dict[str, Any]:
    """The parameters of a box."""
    return {"along": along, "sizes": sizes, "strides": strides}


PLACED: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "slice_at": (
        lambda x, *at: apply(slice_at, x, *at, **box((4, 7, 9), (2, 1, 1), 0, 2), shape=(4, 63)),
        (9, 7, 16),
        (4, 7, 9),
    ),
    "whole rows": (
        lambda x, a, b: apply(slice_at, x, a, **box((5, 64), (1, 1), 0), shape=(320,)),
        (9, 64),
        (5, 64),
    ),
    "lay_at": (
        lambda x, *at: apply(lay_at, x, *at, **box((4, 7, 4), (2, 1, 3), 0, 2), shape=(9, 7, 16)),
        (4, 7, 4),
        (9, 7, 16),
    ),
    "roll_at": (
        lambda x, a, b: apply(roll_at, x, a, b, along=(0, 1), back=False), (9, 64), (9, 64)
    ),
    "rolled back": (lambda x, a, b: apply(roll_at, x, b, along=(0,), back=True), (70,), (70,)),
    "dynamic_slice": (
        lambda x, a, b: wf.dynamic_slice(x, (a, b, 0), (5, 6, 5)), (9, 16, 5), (5, 6, 5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_places_that_are_data_have_threads_for_all_elements(name: str) -> None:
    function, shape, result = PLACED[name]
    number = wf.spec("int64", ())
    (lowered,) = program_of(function, [wf.spec("float32", shape), number, number]).lowered
    kernel = lowered.kernel
    plan = schedule(kernel)
    assert plan.vector is not None, "one team would do all of the work"
    assert plan.blocks({}) * plan.block * plan.width >= np.prod(result)
    x, out = drawn(int(np.prod(shape)), int(np.prod(result)))
    count = sum(buffer.dtype is INDEX for buffer in kernel.buffers)
    for places in ((0, 0), (1, 4), (0, 3)):
        starts = [np.array([place]) for place in places[:count]]
        starts += [np.array([0])] * (count - len(starts))
        check(kernel, [x, *starts, out])


def test_a_box_is_written_by_as_many_threads_as_it_has_elements() -> None:
    number, box = wf.spec("int64", ()), wf.spec("float32", (3, 40))
    program = program_of(
        lambda x, y, a: wf.dynamic_update_slice(x, y, (a, 0)),
        [wf.spec("float32", (9, 64)), box, number],
    )
    (kernel,) = [each.kernel for each in program.lowered if "dynamic" in each.kernel.name]
    assert [loop.kind for loop in schedule(kernel).grid] == ["parallel", "vector"]
    update, out = drawn(120, 576)
    check(kernel, [update, np.array([2]), np.array([0]), out])
