"""Sorting and searching give what NumPy gives: every dtype, axis, order, and what is no number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cpu.cache.program_store import freeze_program, thaw_program
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.sorting import FEW, SHORT, Keys, _row_parts
from weft.compiler.targets.cpu.target import compile_program
from weft.core.dtypes import float32, int64
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = wf.get_num_threads()
    yield
    wf.set_num_threads(before)


def numpy_of(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def drawn(dtype: str, *shape: int, seed: int = 0) -> Array:
    """Elements with many equal ones and the ends of the range; floats with all special ones."""
    rng, kind = np.random.default_rng(seed), numpy_of(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        ends = np.iinfo(kind)
        found = rng.integers(ends.min, ends.max, shape, dtype=kind, endpoint=True)
        found.flat[::3] = 7
        found.flat[1::50] = ends.min
        return found
    x = rng.standard_normal(shape).round(1)
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0]
    for place, value in enumerate(special):
        x.flat[place :: 7 + place] = value
    return x.astype(kind)


def comparable(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind not in "iub" else x


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """The stable order, by comparing pairs: not greater, NaN above all, earlier before later."""
    keys = comparable(x)
    if not descending:
        return np.argsort(keys, axis=axis, kind="stable")
    ranks = np.unique(keys, return_inverse=True, equal_nan=True)[1].reshape(keys.shape)
    return np.argsort(-ranks, axis=axis, kind="stable")


def program_of(name: str, *arrays: Array, **params: Any) -> Program:
    types = [wf.asarray(array).type for array in arrays]

    def f(*given: wf.Tensor) -> Any:
        found = bind(PRIMITIVES[name], *given, **params)
        return tuple(found) if PRIMITIVES[name].multiple else found

    program = compile_program(wf.ir.trace(f, *types))
    assert all(call.node is None for call in program.plan.launches)
    return program


def taken(x: Array, places: Array, axis: int) -> bytes:
    """The bits of the elements at places: both zeros, and NaNs, are told apart."""
    return np.take_along_axis(x, places, axis).tobytes()


SHAPES = [
    ((1,), 0), ((SHORT,), 0), ((SHORT + 1,), 0), ((1000,), 0), ((3, 70, 4), 1), ((3, 5, 4), 0),
    ((7, 9), 1), ((0,), 0), ((4, 0, 3), 1), ((0, 5), 1),
]  # fmt: skip


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_sorted_and_equal_elements_keep_their_order(dtype: str, descending: bool) -> None:
    for number, (shape, axis) in enumerate(SHAPES):
        x = drawn(dtype, *shape, seed=number)
        places = order_of(x, axis, descending)
        params = {"axis": axis, "descending": descending}
        (indices,) = program_of("argsort", x, **params).run([x])
        np.testing.assert_array_equal(indices, places)
        (values,) = program_of("sort", x, **params).run([x])
        assert values.dtype == x.dtype
        assert values.tobytes() == taken(x, places, axis)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_the_first_few_are_those_of_the_whole_order(dtype: str, largest: bool) -> None:
    for shape, axis, k in (
        ((500,), 0, 3), ((500,), 0, 1), ((40 * FEW + 5,), 0, 40), ((500,), 0, 500),
        ((6, 400, 2), 1, 5), ((6, 4), 1, 2), ((5,), 0, 0), ((20_000,), 0, 100),
        ((3, 4 * 24), 1, 24), ((3, 4 * 24 + 1), 1, 24), ((3, 101), 1, 25), ((7, 21), 1, 5),
    ):  # fmt: skip
        x = drawn(dtype, *shape)
        places = np.take(order_of(x, axis, largest), np.arange(k), axis)
        values, indices = program_of("top_k", x, k=k, axis=axis, largest=largest).run([x])
        np.testing.assert_array_equal(indices, places)
        assert values.tobytes() == taken(x, places, axis)


@pytest.mark.parametrize("rising", [False, True])
def test_the_first_few_of_what_comes_in_the_worst_order(rising: bool) -> None:
    x = np.arange(5000, dtype=np.float32)
    x = x if rising else x[::-1].copy()
    values, indices = program_of("top_k", x, k=20, axis=0, largest=True).run([x])
    np.testing.assert_array_equal(values, np.arange(4999, 4979, -1))
    np.testing.assert_array_equal(x[indices], values)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_go_where_numpy_puts_them(dtype: str, side: Any) -> None:
    for rows, n, m in ((1, 50, 33), (3, 50, 33), (2, 1, 5), (2, 0, 5), (2, 5, 0)):
        x, wanted = drawn(dtype, rows, n), drawn(dtype, rows, m, seed=1)
        x = np.take_along_axis(x, order_of(x, 1, descending=False), 1)
        (found,) = program_of("searchsorted", x, wanted, side=side).run([x, wanted])
        for row in range(rows):
            expected = np.searchsorted(comparable(x[row]), comparable(wanted[row]), side)
            np.testing.assert_array_equal(found[row], expected)


def test_rows_divided_over_threads_are_the_same() -> None:
    x = drawn("float32", 300, 257)
    program = program_of("argsort", x, axis=0, descending=False)
    found = []
    for count in (1, 2, 3):
        wf.set_num_threads(count)
        found.append(program.run([x])[0].tobytes())
    assert found[0] == found[1] == found[2]
    call = program.plan.launches[0]
    assert call.extent({}) > call.grain({})


def test_scratch_memory_is_planned_and_bounded() -> None:
    x = np.zeros((1000, 100), np.float32)
    program = program_of("sort", x, axis=1, descending=False)
    assert program.plan.planner.plan_for({}).peak == 16 * 100 * 2 * 8
    assert _row_parts(3, 100, Keys(float32)) == 3
    assert _row_parts(1000, 50_000_000, Keys(int64)) == 1
    report = wf.explain(program.graph)
    assert not report.references
    assert "scratch" in str(report.memory)


def test_places_beyond_32_bits_have_wider_words() -> None:
    assert (Keys(float32).word, Keys(float32, wide=True).word, Keys(int64).word) == (
        "i64", "i128", "i128",
    )  # fmt: skip


def test_sizes_that_are_not_known_in_advance() -> None:
    sort = wf.jit(lambda x: (wf.sort(x, axis=0), wf.argsort(x)))
    for shape in ((5, 3), (90, 2), (2, 77), (301, 30)):
        x = drawn("float32", *shape)
        values, places = sort(wf.tensor(x))
        np.testing.assert_array_equal(values.numpy(), np.sort(x, axis=0))
        np.testing.assert_array_equal(places.numpy(), np.argsort(x, kind="stable"))
    assert len(sort.compilations) <= 3


def test_a_stored_program_sorts() -> None:
    kind = wf.spec("float32", (3, 100))
    graph = wf.ir.trace(lambda x: (wf.sort(x), *wf.topk(x, 2)), kind)
    program = thaw_program(freeze_program(compile_program(graph)), lambda: compile_program(graph))
    assert program is not None
    x = drawn("float32", 3, 100)
    values, top, places = program.run([x])
    np.testing.assert_array_equal(values, np.sort(x))
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), top)


def test_complex_numbers_are_sorted_by_reference() -> None:
    x = wf.tensor(np.array([2j, 1 + 1j, 1 - 1j, 0], np.complex64))
    sort = wf.jit(wf.sort)
    assert sort(x).tolist() == [0, 2j, 1 - 1j, 1 + 1j]
    assert [kernel.name for kernel in sort.explain(x).references] == ["sort"]


def test_sorting_has_derivatives_when_compiled() -> None:
    x = drawn("int8", 40).astype(np.float32) + np.arange(40) / 64
    weights = np.arange(40, dtype=np.float32)
    slope = wf.jit(wf.grad(lambda x: (wf.sort(x) * weights).sum()))(wf.tensor(x))
    np.testing.assert_array_equal(slope.numpy()[np.argsort(x)], weights)
