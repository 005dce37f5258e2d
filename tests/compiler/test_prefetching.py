"""Rows fetch ahead what the next one reads: it changes when memory is read, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.compiler.targets.cpu.engine import call_kernel, compile_kernels
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.llvm import emit
from weft.compiler.targets.llvm.emit import emit_module
from weft.compiler.targets.llvm.prefetching import plan_prefetch
from weft.core.dtypes import INDEX, float32
from weft.ir.loops import Accumulate, For, Kernel, Scratch, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar, const, erfc, index, load, local

Array = np.ndarray[Any, Any]
X, W, Y = Buffer("x", float32), Buffer("w", float32), Buffer("y", float32, "write")
PLACES = Buffer("places", INDEX)
HELD = Buffer("s", float32, "scratch")
ROW, COLUMN = index("i"), index("j")


def rows(columns: int, value: Scalar) -> For:
    """A value for each element, divided by the row's sum."""
    n, total = const(columns, INDEX), local("total", float32)
    body: tuple[Statement, ...] = (
        For(COLUMN, n, (Store(HELD, COLUMN, value),), "vector"),
        Accumulate(COLUMN, n, (Update(total, "add", HELD[COLUMN]),)),
        For(COLUMN, n, (Store(Y, ROW * columns + COLUMN, HELD[COLUMN] / total),), "vector"),
    )
    return For(ROW, const(1 << 20, INDEX), body, "parallel")


def touched(row: For, work: int = 30) -> list[tuple[str, str, bool]]:
    plan = plan_prefetch(row, lambda loop: work if loop is row.body[0] else 2)
    return [] if plan is None else [(t.buffer.name, str(t.offset), t.writes) for t in plan[1]]


def test_the_next_row_is_read_ahead_and_this_one_is_made_ready_to_write() -> None:
    row = rows(40, erfc(X[ROW * 40 + COLUMN] * W[COLUMN]))
    assert touched(row) == [("x", "i * 40 + j + 40", False), ("y", "i * 40 + j", True)]


def test_light_loops_fetch_nothing_ahead() -> None:
    assert touched(rows(40, X[ROW * 40 + COLUMN]), work=8) == []


def test_places_that_are_guarded_or_scattered_are_left_alone() -> None:
    inside = COLUMN < 3
    for value in (load(X, ROW * 40 + COLUMN, inside, 0.0), X[PLACES[COLUMN]], X[COLUMN * 40 + ROW]):
        assert [name for name, _, _ in touched(rows(40, erfc(value)))] == ["y"]


@pytest.mark.slow
@pytest.mark.skipif(host().width == 1, reason="there are no vectors here")
@pytest.mark.parametrize("columns", [1, 15, 16, 33, 100, 257])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_fetching_ahead_changes_no_bit(
    columns: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows(columns, erfc(X[ROW * columns + COLUMN] * W[COLUMN]))
    scratch = (Scratch(HELD, const(columns, INDEX)),)
    kernel = Kernel("k", (X, W, Y), (), (row,), scratch)
    random = np.random.default_rng(columns)
    x, w = (random.normal(size=s).astype("f4") for s in ((count, columns), columns))
    results = []
    for plan in (plan_prefetch, lambda *_: None):
        monkeypatch.setattr(emit, "plan_prefetch", plan)
        y = np.full((count, columns), np.nan, "f4")
        call_kernel(compile_kernels([kernel])["k"], [x, w, y], [], 0, count)
        results.append(y)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0].sum(1), 1.0, rtol=1e-5)


def test_only_vector_code_fetches_ahead() -> None:
    kernel = Kernel(
        "k",
        (X, W, Y),
        (),
        (rows(64, erfc(X[ROW * 64 + COLUMN] * W[COLUMN])),),
        (Scratch(HELD, const(64, INDEX)),),
    )
    assert "llvm.prefetch" not in emit_module([kernel], host(1))
    if host().width > 1:
        assert "llvm.prefetch" in emit_module([kernel], host())
