"""Sums of many terms keep their digits, eager and compiled, over every kind of axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.threads import threads

import weft as wf
from weft.compiler.fusion.long_sums import BLOCK, SERIAL_BLOCK
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES

Program = Callable[[Any], Any]
MANY = 4_000_000
BOTH = pytest.mark.parametrize("transformed", [lambda f: f, wf.jit], ids=["eager", "compiled"])


def _numbers(*shape: int) -> np.ndarray:
    """Positive numbers of no special kind: rounding errors of a plain sum add up to about 1e-4."""
    return (np.arange(np.prod(shape)) % 1013 / 1013 + 0.1).astype(np.float32).reshape(shape)


def _error(found: Any, expected: Any) -> float:
    return float(np.max(np.abs(np.asarray(found, np.float64) / expected - 1)))


@BOTH
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((MANY,), 0), ((MANY // 2, 2), 0), ((2, MANY // 2), 1), ((3, MANY // 12, 4), (0, 1)),
     ((MANY // 400, 20, 20), (0, 2)), ((MANY // 64, 64), 0)],
    ids=str,
)  # fmt: skip
def test_a_long_sum_is_exact_to_a_few_roundings(transformed: Any, shape: Any, axes: Any) -> None:
    x = _numbers(*shape)
    expected = x.astype(np.float64).sum(axis=axes)
    assert _error(transformed(lambda x: wf.sum(x, axis=axes))(wf.tensor(x)), expected) < 1e-6


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    ("name", "f", "expected"),
    [
        ("mean", lambda x: x.mean(), lambda x: x.mean()),
        ("variance", lambda x: x.var(), lambda x: x.var()),
        ("norm", lambda x: wf.sqrt(wf.square(x).sum()), lambda x: np.sqrt(np.square(x).sum())),
        ("chain", lambda x: (wf.exp(x) * 2 + 1).sum(), lambda x: (np.exp(x) * 2 + 1).sum()),
        ("logsumexp", wf.logsumexp, lambda x: np.log(np.exp(x).sum())),
        ("inner product", lambda x: x @ x, lambda x: x @ x),
        ("rows", lambda x: x.reshape(4, -1) @ x[: MANY // 4],
         lambda x: x.reshape(4, -1) @ x[: MANY // 4]),
        ("columns", lambda x: x[: MANY // 4] @ x.reshape(-1, 4),
         lambda x: x[: MANY // 4] @ x.reshape(-1, 4)),
        ("product", lambda x: x.reshape(4, -1) @ x.reshape(-1, 4),
         lambda x: x.reshape(4, -1) @ x.reshape(-1, 4)),
    ],
)  # fmt: skip
def test_what_is_made_of_long_sums_is_exact(
    transformed: Any, name: str, f: Program, expected: Program
) -> None:
    x = _numbers(MANY)
    limit = 1e-5 if name == "product" else 1e-6
    assert _error(transformed(f)(wf.tensor(x)), expected(x.astype(np.float64))) < limit


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda a, b: a @ b, lambda rows, terms: ((rows, terms), (terms,))),
        (lambda a, b: a @ b, lambda rows, terms: ((terms,), (terms, rows))),
        (lambda a, b: a @ b.T, lambda rows, terms: ((terms,), (rows, terms))),
        (lambda a, b: a.T @ b, lambda rows, terms: ((terms, rows), (terms,))),
        (lambda a, b: a @ b, lambda rows, terms: ((terms,), (terms,))),
        (lambda a, b: a @ b, lambda rows, terms: ((2, rows, terms), (2, terms, 1))),
        (lambda a, b: a @ b, lambda rows, terms: ((2, 1, terms), (2, terms, rows))),
    ],
    ids=["rows", "columns", "rows turned", "columns turned", "vectors", "stack of rows",
         "stack of columns"],
)  # fmt: skip
def test_a_product_with_a_vector_is_exact_in_a_program_for_all_sizes(
    f: Program, shapes: Callable[[int, int], Any]
) -> None:
    """Sizes on both sides of a block of terms, and of a strip of columns, whose sums are joined."""
    compiled = wf.jit(f)
    few = 2 * SERIAL_BLOCK  # as many terms are added one after the other
    for rows, terms in [
        (4, 300), (5, 700), (1100, few), (1100, few + 1), (6, BLOCK), (3, BLOCK + 1), (5, 250_000)
    ]:  # fmt: skip
        a, b = (_numbers(*shape) for shape in shapes(rows, terms))
        expected = f(a.astype(np.float64), b.astype(np.float64))
        assert _error(compiled(wf.tensor(a), wf.tensor(b)), expected) < 1e-6, (rows, terms)


@BOTH
def test_ones_are_counted_beyond_what_a_float_counts_one_by_one(transformed: Any) -> None:
    """2²⁴ + 1 is no float32: whoever adds ones to it stays there."""
    count = (1 << 24) + (1 << 22)
    ones = wf.broadcast_to(wf.tensor([1.0]), (count, 2))
    assert transformed(lambda x: wf.sum(x + 0.0, axis=0))(ones).tolist() == [count] * 2


def test_a_running_sum_counts_ones_beyond_what_a_float_counts_one_by_one() -> None:
    count = (1 << 24) + (1 << 22)
    assert wf.jit(lambda x: wf.cumulative_sum(x)[-1])(wf.ones(count)).item() == count


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_are_rounded_once(transformed: Any, dtype: str, reverse: bool) -> None:
    x = wf.tensor(_numbers(3, 70_000) / 2).astype(dtype)
    wide = x.numpy().astype(np.float64)
    ordered = np.flip(wide, 1) if reverse else wide
    expected = np.flip(np.cumsum(ordered, 1), 1) if reverse else np.cumsum(ordered, 1)
    primitive = PRIMITIVES["cumulative_sum"]
    found = transformed(lambda x: bind(primitive, x, axis=1, reverse=reverse))(x)
    np.testing.assert_array_equal(found.numpy(), expected.astype(x.numpy().dtype))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_running_results_of_a_line_are_made_one_by_one(
    name: str, dtype: str, reverse: bool
) -> None:
    """Of lengths on both sides of a group of steps, of a known size and of any."""
    accumulate = np.cumsum if name == "cumulative_sum" else np.cumprod
    run = partial(bind, PRIMITIVES[name], axis=1, reverse=reverse)
    general = wf.jit(run)
    for count in (3, 4, 1, 15, 16, 17, 31, 32, 33, 100, 0):
        x = (_numbers(3, count) * 3 - 1).astype(dtype)
        x[:, :1] = -0.0 if dtype.startswith("float") else 0
        ordered = np.flip(x, 1) if reverse else x
        wide = np.float64 if dtype.startswith("float") else x.dtype
        expected = accumulate(ordered, 1, dtype=wide).astype(dtype)
        expected = np.flip(expected, 1) if reverse else expected
        for program in (wf.jit(run), general):
            assert program(wf.tensor(x)).numpy().tobytes() == expected.tobytes()


@BOTH
def test_running_products_and_log_sums_keep_their_digits(transformed: Any) -> None:
    x = _numbers(MANY // 8)
    factors = wf.tensor(np.exp((x - x.mean()) / 1000))
    expected = np.cumprod(factors.numpy().astype(np.float64))
    assert _error(transformed(wf.cumulative_prod)(factors), expected) < 1e-6
    logs = np.logaddexp.accumulate(x.astype(np.float64))
    assert _error(transformed(wf.cumulative_logsumexp)(wf.tensor(x)), logs) < 1e-6


@BOTH
def test_sums_of_16_bit_floats_are_rounded_at_the_end(transformed: Any) -> None:
    x = wf.tensor(_numbers(2, 100_000)).astype("bfloat16")
    expected = x.numpy().astype(np.float64).sum(axis=1).astype(x.numpy().dtype)
    np.testing.assert_array_equal(transformed(lambda x: x.sum(axis=1))(x).numpy(), expected)


@pytest.mark.parametrize("block", [BLOCK, SERIAL_BLOCK])
def test_sums_on_both_sides_of_a_block_are_exact(block: int) -> None:
    for count in (2 * block - 1, 2 * block, 2 * block + 1, 3 * block, 3 * block + 7):
        x = _numbers(count, 3)
        for axis, y in ((0, x), (1, np.ascontiguousarray(x.T))):
            found = wf.jit(lambda y, axis=axis: y.sum(axis=axis))(wf.tensor(y))
            assert _error(found, y.astype(np.float64).sum(axis=axis)) < 1e-6


def test_a_long_sum_of_a_size_that_is_not_known_is_exact() -> None:
    total = wf.jit(lambda x: x.sum(axis=0))
    for count in (5, 600, 40_000, 100_001):
        x = _numbers(count, 2)
        assert _error(total(wf.tensor(x)), x.astype(np.float64).sum(axis=0)) < 1e-6


def test_long_sums_do_not_depend_on_the_number_of_threads() -> None:
    x = wf.tensor(_numbers(MANY // 100, 100))
    programs = [lambda x: x.sum(), lambda x: x.sum(axis=0), lambda x: x.reshape(-1) @ x.reshape(-1)]
    for program in programs:
        found = []
        for count in (1, 2):
            with threads(count):
                found.append(wf.jit(program)(x).numpy().tobytes())
        assert len(set(found)) == 1


REDUCTIONS: dict[str, Program] = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "variance": lambda x: x.var(),
    "norm": lambda x: wf.sqrt((x * x).sum()),
    "maximum": lambda x: x.max(),
    "minimum": lambda x: x.min(),
    "product": lambda x: (1 + x / 1e6).prod(),
    "any": lambda x: (x > 1.0985).any(),
    "integers": lambda x: (x * 100).astype("int32").sum(),
    "log of a sum": lambda x: wf.logsumexp(x),
    "several": lambda x: x.max() + x.sum() / x.min(),
    "of columns": lambda x: (x.reshape(-1, 1) * wf.arange(3.0)).sum(),
}
SIZES = (2, 5, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 1_000_003)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_everything_have_one_result_for_any_threads(name: str) -> None:
    """In programs of a size, and in one for all sizes, on both sides of what is divided."""
    f = REDUCTIONS[name]
    general = wf.jit(f)
    for count in (3, 4):
        general(wf.tensor(_numbers(count)))
    for count in SIZES:
        x = _numbers(count)
        expected = wf.ir.interpret(wf.ir.trace(f, wf.tensor(x)), wf.tensor(x))[0].numpy()
        for program in (wf.jit(f), general):
            found = []
            for workers in (1, 2, 4):
                with threads(workers):
                    found.append(program(wf.tensor(x)).numpy())
            assert len({each.tobytes() for each in found}) == 1, count
            np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
    assert len(general.compilations) == 2


@pytest.mark.parametrize("name", ["sum", "maximum", "variance"])
def test_reductions_of_a_size_that_is_not_known_are_divided_over_threads(name: str) -> None:
    program = wf.jit(REDUCTIONS[name])
    for count in (3, 4):
        program(wf.tensor(_numbers(count)))
    launches = program.program(wf.tensor(_numbers(5))).plan.launches
    assert max(launch.extent({"n0": 10 * BLOCK + 1}) for launch in launches) == 11


def test_the_report_counts_the_terms_of_a_divided_reduction_once() -> None:
    x = wf.ones(1 << 18)
    explained = wf.jit(lambda x: x.sum()).explain(x)
    assert [kernel.flops for kernel in explained.kernels] == [1 << 18, 0]
    assert "parts: f64[16], results of blocks of a reduction" in str(explained)


@pytest.mark.parametrize("place", [0, BLOCK - 1, 3 * BLOCK, 300_000])
def test_a_nan_anywhere_is_the_result(place: int) -> None:
    x = _numbers(300_001)
    x[place] = np.nan
    for f in (wf.sum, wf.max, wf.min, wf.prod, wf.var):
        for shape in ((300_001,), (3, 100_000)):
            if place < np.prod(shape):
                part = wf.tensor(x[: np.prod(shape)].reshape(shape))
                assert np.isnan(f(part).item())
                assert np.isnan(wf.jit(f)(part).item())


def test_a_reduction_of_nothing_is_its_first_value_in_a_program_for_all_sizes() -> None:
    total = wf.jit(lambda x: x.sum())
    counts = [total(wf.ones(count)).item() for count in (3, 4, 0, 2 * BLOCK + 1, 0)]
    assert counts == [3, 4, 0, 2 * BLOCK + 1, 0]


@pytest.mark.nightly
@BOTH
def test_100_million_terms_are_summed_exactly(transformed: Any) -> None:
    x = _numbers(100_000_000)
    total = x.sum(dtype=np.float64)
    assert _error(transformed(lambda x: x.sum())(wf.tensor(x)), total) < 1e-7
    assert _error(transformed(wf.cumulative_sum)(wf.tensor(x)).numpy()[-1], total) < 1e-7
