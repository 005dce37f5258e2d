"""Scatters over a whole card: bits of the processor, one sort for all, faults, and text."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.compiler.cuda.assembling import PTXAS, needs_ptxas
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.scatter_cases import SCATTERS, check_order_of_sums, check_scatter

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda import ordered_scatters
from weft.compiler.targets.cuda.machine import OLDEST
from weft.compiler.targets.cuda.nvptx import text_to_ptx
from weft.compiler.targets.cuda.ordered_scatters import (
    ScatterForm,
    chunk_kernel,
    crossing_kernel,
    last_kernel,
    order_scatters,
)
from weft.compiler.targets.cuda.target import CUDA
from weft.core.dtypes import float32, float64, int32
from weft.optim.rows import summed_by_row

KERNELS = (chunk_kernel, crossing_kernel, last_kernel)


@pytest.fixture
def small(card: HostCard, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    """A card whose blocks and chunks are so small that few updates are many chunks."""
    for name, few in (("THREADS", 8), ("CHUNK", 4), ("AT_ONCE", 2), ("FEWEST_UPDATES", 8)):
        monkeypatch.setattr(ordered_scatters, name, few)
    for kernel in KERNELS:
        kernel.cache_clear()
    yield card
    for kernel in KERNELS:
        kernel.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCATTERS)
def test_a_scatter_gives_on_a_card_the_bits_of_the_processor(small: HostCard, name: str) -> None:
    check_scatter(name, 46)


@pytest.mark.parametrize(("count", "rows"), [(60, 3), (61, 20)])
def test_rows_add_up_many_updates_in_their_order(small: HostCard, count: int, rows: int) -> None:
    check_order_of_sums(count, rows)


def test_rows_out_of_range_are_left_out_and_reported(small: HostCard) -> None:
    table = wf.zeros((6, 2)).to("cuda")

    @wf.jit
    def add(index: wf.Tensor, updates: wf.Tensor) -> None:
        table.copy_(wf.index_add(table, 0, index, updates))

    updates = wf.ones((10, 2)).to("cuda")
    add(wf.tensor([-1, 5, 5, 0, 0, 0, 0, 0, 0, 0]).to("cuda"), updates)
    assert table.tolist() == [[7, 7], [0, 0], [0, 0], [0, 0], [0, 0], [3, 3]]
    add(wf.tensor([6, 5, 5, 0, -7, 0, 0, 0, 1 << 40, 0]).to("cuda"), updates)
    with pytest.raises(wf.BoundsError, match="out of range"):
        wf.cuda.synchronize()
    assert table.tolist() == [[12, 12], [0, 0], [0, 0], [0, 0], [0, 0], [5, 5]]


def test_scatters_with_the_same_indices_share_a_sort() -> None:
    def update(x: wf.Tensor, y: wf.Tensor, i: wf.Tensor, u: wf.Tensor) -> object:
        return wf.index_copy(x, 0, i, u), wf.index_copy(y, 0, i, u * 2)

    table, rows = wf.spec("float32", (999, 4)), wf.spec("float32", (500, 4))
    graph = wf.ir.trace(update, table, table, wf.spec("int64", (500,)), rows)
    names = [launch.name for launch in plan_program(graph, CUDA).launches]
    assert names.count("argsort") == 1
    assert names.count("ordered scatter") == 2


def test_gradients_of_rows_are_summed_with_one_sort() -> None:
    kinds = wf.spec("int64", (500,)), wf.spec("float32", (500, 4))
    plan = plan_program(wf.ir.trace(summed_by_row, *kinds), CUDA)
    names = [launch.name for launch in plan.launches]
    assert names.count("argsort") == 1
    assert {"ordered scatter", "ordered scatter_add"} <= set(names)


def test_a_running_sum_that_may_fall_is_sorted() -> None:
    def add(steps: wf.Tensor, updates: wf.Tensor) -> wf.Tensor:
        return wf.segment_sum(updates, wf.cumulative_sum(steps), 500)

    kinds = wf.spec("int64", (500,)), wf.spec("float32", (500, 4))
    names = [launch.name for launch in plan_program(wf.ir.trace(add, *kinds), CUDA).launches]
    assert names.count("argsort") == 1


def test_the_places_of_a_lookup_are_checked_once() -> None:
    def loss(table: wf.Tensor, i: wf.Tensor) -> wf.Tensor:
        return (wf.take(table, i, axis=0) ** 2).sum()

    graph = wf.ir.trace(wf.grad(loss), wf.spec("float32", (999, 4)), wf.spec("int64", (500,)))
    launches = [each for each in plan_program(graph, CUDA).launches if each.checked]
    assert [(each.name, each.is_pinned) for each in launches] == [
        ("gather", True),
        ("ordered scatter_add", False),
    ]


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [((999, 4), 1, "float32"), ((999, 4), 0, "complex64"), ((999, 0), 0, "float32")],
)
def test_other_scatters_stay_loops(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    updates = list(shape)
    updates[axis] = 500
    kinds = wf.spec(dtype, shape), wf.spec("int64", (500,)), wf.spec(dtype, tuple(updates))
    graph = wf.ir.trace(lambda x, i, u: wf.index_add(x, axis, i, u), *kinds)
    assert order_scatters(graph) is graph


def test_rows_of_many_batches_stay_loops() -> None:
    def put(x: wf.Tensor, i: wf.Tensor, u: wf.Tensor) -> wf.Tensor:
        return wf.put_along_axis(x, i, u, axis=1)

    def names(batches: int) -> list[str]:
        kinds = [wf.spec(dtype, (batches, 99)) for dtype in ("float32", "int64", "float32")]
        graph = wf.ir.trace(put, *kinds)
        return [node.primitive.name for node in order_scatters(graph).nodes]

    assert "argsort" in names(4)
    assert "argsort" not in names(400)


TEXTS = {
    "sums": chunk_kernel(ScatterForm("add", float32, 1)),
    "crossing sums": crossing_kernel(ScatterForm("add", float64, 2)),
    "highest": chunk_kernel(ScatterForm("maximum", float32, 1)),
    "lowest": crossing_kernel(ScatterForm("minimum", int32, 1)),
    "copies": last_kernel(16, 2, True),
    "copies to places of their own": last_kernel(1, 1, False),
}


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("name", TEXTS)
def test_it_assembles_for_the_oldest_card(name: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.ptx"
    source.write_text(text_to_ptx(TEXTS[name].text))
    command = [str(PTXAS), f"-arch={OLDEST}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sums_of_long_rows_do_not_lose_small_numbers(small: HostCard) -> None:
    count = 400
    updates = np.full((count, 1), 0.1, np.float32)
    add = wf.jit(lambda x, i, u: wf.index_add(x, 0, i, u))
    index = wf.zeros((count,), dtype="int64").to("cuda")
    found = add(wf.zeros((2, 1)).to("cuda"), index, wf.asarray(updates).to("cuda"))
    assert abs(float(found[0, 0]) - 40) < 1e-4
