"""Dimensions obey the laws of integers, and print as one would write them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.core.dimension_text import parse_dim
from weft.core.dimensions import Dim, Dimension, substitute, symbol
from weft.core.errors import ArgumentError, GraphError, TraceError

NAMES = ("batch", "time", "n")
batch, time, n = map(symbol, NAMES)
small = st.integers(-6, 6)
sizes = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(1, 30)))


def grow(inner: st.SearchStrategy[Dimension]) -> st.SearchStrategy[Dimension]:
    divisor = st.integers(-7, 7).filter(bool)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a // b, inner, divisor),
        st.builds(lambda a, b: a % b, inner, divisor),
        st.builds(lambda a, b: a // b, inner, st.sampled_from([batch, time + 1, 2 * n])),
    )


dims = st.recursive(st.one_of(small, st.sampled_from([batch, time, n])), grow, max_leaves=6)
OPERATIONS = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a // b,
    lambda a, b: a % b,
]


@given(dims, dims, dims)
def test_sums_and_products_obey_the_laws_of_a_ring(
    a: Dimension, b: Dimension, c: Dimension
) -> None:
    assert (a + b) * c == a * c + b * c
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert (a + b, a * b) == (b + a, b * a)
    assert a - a == 0
    assert a + -b == a - b


@given(dims)
def test_text_reads_back_to_the_same_dimension(a: Dimension) -> None:
    assert parse_dim(str(a)) == a


@given(dims, dims, sizes, st.sampled_from(OPERATIONS))
def test_substitution_commutes_with_evaluation(
    a: Dimension,
    b: Dimension,
    values: dict[str, int],
    operation: Callable[[Dimension, Dimension], Dimension],
) -> None:
    x, y = substitute(a, values), substitute(b, values)
    assert isinstance(x, int)
    assert isinstance(y, int)
    assume(y != 0)
    assert substitute(operation(a, b), values) == operation(x, y)


@given(dims, st.integers(1, 7), small)
def test_whole_multiples_leave_a_floor_quotient(a: Dimension, b: int, k: int) -> None:
    assert (a + b * k) // b == a // b + k
    assert a // b * b + a % b == a


@given(dims, dims)
def test_equal_dimensions_have_equal_hash_and_text(a: Dimension, b: Dimension) -> None:
    left, right = (a + b) * 2 // 2, b + a
    assert left == right
    keys = [hash(getattr(each, "terms", each)) for each in (left, right)]
    assert (keys[0], str(left)) == (keys[1], str(right))


@given(dims, dims, sizes)
def test_an_order_that_is_decided_holds_for_all_sizes(
    a: Dimension, b: Dimension, values: dict[str, int]
) -> None:
    for relation in ("__lt__", "__le__", "__gt__", "__ge__"):
        try:
            decided = getattr(a, relation)(b) if isinstance(a, Dim) else None
        except TraceError:
            continue
        if decided is not None:
            assert decided == getattr(substitute(a, values), relation)(substitute(b, values))


@given(dims)
def test_dimensions_survive_pickle_and_copy(a: Dimension) -> None:
    assert pickle.loads(pickle.dumps(a)) == a == copy.deepcopy(a)


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (batch, "batch"),
        (2 * batch + 1, "2*batch + 1"),
        (1 - batch, "-batch + 1"),
        (batch * batch * n, "batch*batch*n"),
        (time // 2, "floor(time/2)"),
        ((time - 1) // 2, "floor((time - 1)/2)"),
        ((time + 1) // 2 + 3, "floor((time + 1)/2) + 3"),
        (time // batch, "floor(time/batch)"),
        (time // (2 * batch), "floor(time/(2*batch))"),
        (7 // n, "floor(7/n)"),
        (3 * (n // 2) * n, "3*n*floor(n/2)"),
    ],
)
def test_dimensions_print_as_one_writes_them(dim: Dim, text: str) -> None:
    assert str(dim) == repr(dim) == text
    assert parse_dim(text) == dim


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4 * n) // 2, 2 * n),
        ((n * time) // time, n),
        ((n * n - 1) // (n + 1), n - 1),
        (n // 2 // 2, n // 4),
        ((n // 2 + 1) // 2, (n + 2) // 4),
        ((2 * n + 1) // 4, n // 2),
        ((2 * n) // (2 * time), n // time),
        (-(-n // 2), (n + 1) // 2),
        (n // -2, -n // 2),
        ((n - 3) // 2 + 1, (n - 1) // 2),
        (n % 1, 0),
        (7 % n, 7 - n * (7 // n)),
        (n + np.int64(2), n + 2),
        (np.int32(2) * n, 2 * n),
        (np.int64(5) - n, 5 - n),
    ],
)
def test_the_normal_form_sees_equal_dimensions(left: Dimension, right: Dimension) -> None:
    assert left == right


def test_arithmetic_that_comes_out_constant_gives_an_int() -> None:
    for value in (n - n + 3, (n + 3) - n, 0 * n, n // n * 3, (4 * n) % 2):
        assert type(value) is int


def test_orders_are_decided_from_sizes_of_at_least_one() -> None:
    assert n >= 1
    assert n + 1 > 1
    assert not n < 1
    assert n // 2 >= 0
    assert n - n // 2 > 0
    assert n % 2 < 2
    assert n % 2 >= 0
    assert n * time <= n * time
    assert 0 < n
    assert bool(n)


def test_symbols_are_those_that_remain() -> None:
    product = n * (time // 2) + batch - batch
    assert isinstance(product, Dim)
    assert product.symbols() == {"n", "time"}


@pytest.mark.parametrize(
    "question",
    [
        int,
        float,
        range,
        lambda d: d < 3,
        lambda d: d - 1 >= batch,
        lambda d: bool(d - 1),
        lambda d: d % 2 < 1,
        lambda d: d // 2 > 0,
        lambda d: d * time > d + 1,
    ],
)
def test_what_depends_on_a_size_is_a_trace_error(question: Callable[[object], object]) -> None:
    with pytest.raises(TraceError) as caught:
        question(n)
    assert caught.value.op == "dimension"
    assert "n" in caught.value.problem
    assert "wf.where" in caught.value.fix
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_operands_that_are_not_integers_are_left_to_the_other_side() -> None:
    class Right:
        def __radd__(self, other: object) -> str:
            return "right"

        def __rmul__(self, other: object) -> str:
            return "right"

    right: Any = Right()
    number: Any = 1.5
    assert n + right == "right"
    assert n * right == "right"
    with pytest.raises(TypeError):
        n + number


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="division by zero"):
        n // 0
    with pytest.raises(ArgumentError, match="division by zero"):
        n % 0
    with pytest.raises(ArgumentError, match="division by zero"):
        substitute(3 // (n - 1), {"n": 1})


def test_a_name_that_is_no_identifier_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        symbol("2n")
    assert caught.value.got == "name: '2n'"


@pytest.mark.parametrize("text", ["", "2*", "n +", "floor(n)", "(n", "n n", "n ? 2", "floor(n/2"])
def test_text_that_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_dim(text)
    assert caught.value.got == f"text: {text!r}"
