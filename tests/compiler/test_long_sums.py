"""Sums of many terms keep their digits, eager and compiled, over every kind of axis."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.nightly
@BOTH
def test_100_million_terms_are_summed_exactly(transformed: Any) -> None:
    x = _numbers(100_000_000)
    total = x.sum(dtype=np.float64)
    assert _error(transformed(lambda x: x.sum())(wf.tensor(x)), total) < 1e-7
    assert _error(transformed(wf.cumulative_sum)(wf.tensor(x)).numpy()[-1], total) < 1e-7
