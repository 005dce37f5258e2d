"""Dimensions obey the laws of integers, and shapes that do not fit are refused in the one form."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.core import shapes
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    GraphError,
    ShapeError,
    TraceError,
)
from weft.core.shapes import (
    ContradictionError,
    Dim,
    Dimension,
    Unifier,
    broadcast_shapes,
    check_shape,
    equal,
    normalize_axes,
    normalize_axis,
    parse_dim,
    require_equal,
    size,
    substitute,
    symbol,
)

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


# --- the algebra of dimensions -----------------------------------------------------------------


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
    assume(y != 0 and b != 0)
    assert substitute(operation(a, b), values) == operation(x, y)


@given(dims, st.integers(1, 7), small)
def test_whole_multiples_leave_a_floor_quotient(a: Dimension, b: int, k: int) -> None:
    assert (a + b * k) // b == a // b + k
    assert a // b * b + a % b == a


@given(dims, dims)
def test_equal_dimensions_have_equal_hash_and_text(a: Dimension, b: Dimension) -> None:
    left, right = (a + b) * 2 // 2, b + a
    assert left == right
    assert (hash(left), str(left)) == (hash(right), str(right))


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
    assert (n * (time // 2)).symbols() == {"n", "time"}


@pytest.mark.parametrize(
    "question",
    [int, float, range, lambda d: d < 3, lambda d: d - 1 >= batch, lambda d: bool(d - 1)],
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

    assert n + Right() == "right"  # type: ignore[operator]
    assert n * Right() == "right"  # type: ignore[operator]
    with pytest.raises(TypeError):
        n + 1.5  # type: ignore[operator]


def test_division_by_zero_is_refused() -> None:
    for divide in (lambda: n // 0, lambda: n % 0, lambda: substitute(3 // (n - 1), {"n": 1})):
        with pytest.raises(ArgumentError, match="division by zero"):
            divide()


def test_a_name_that_is_no_identifier_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        symbol("2n")
    assert caught.value.got == "name: '2n'"


@pytest.mark.parametrize("text", ["", "2*", "n +", "floor(n)", "(n", "n n", "n ? 2", "floor(n/2"])
def test_text_that_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_dim(text)
    assert caught.value.got == f"text: {text!r}"


# --- unification -------------------------------------------------------------------------------


def need(a: Dimension, b: Dimension) -> Dimension:
    return require_equal(
        "matmul", a, b, expected="a == b", got={"a": a}, fix="transpose", what="sizes differ"
    )


def test_without_a_unifier_only_equal_dimensions_are_equal() -> None:
    assert equal(n + 1, 1 + n)
    assert not equal(n, 3)
    assert not equal(2, 3)


def test_a_symbol_takes_the_size_it_must_have() -> None:
    with Unifier() as unifier:
        assert equal(2 * n, 64)
        assert equal(time, batch)
        assert equal(batch + 1, n)
    assert unifier.resolve_shape((n, time, batch, 5)) == (32, 31, 31, 5)
    assert unifier.bindings["n"].at is not None
    assert unifier.bindings["n"].at.file == __file__


@given(dims, dims)
def test_what_was_unified_is_equal_after_resolving(a: Dimension, b: Dimension) -> None:
    with Unifier() as unifier:
        if equal(a, b):
            assert unifier.resolve(a) == unifier.resolve(b)


@pytest.mark.parametrize(
    ("a", "b"), [(2 * n, 63), (n, n + 1), (n + 3, 2), (n // 2, 3), (n * n, n), (2 * n, 3 * time)]
)
def test_what_has_no_one_solution_is_not_equal(a: Dimension, b: Dimension) -> None:
    with Unifier() as unifier:
        assert not equal(a, b)
    assert not unifier.bindings


def test_unifiers_nest_and_end() -> None:
    with Unifier() as outer:
        with Unifier() as inner:
            assert equal(n, 3)
        assert not outer.bindings
        assert equal(n, 4)
    assert inner.resolve(n) == 3
    assert outer.resolve(n) == 4
    assert not equal(n, 4)


def test_sizes_that_agree_give_the_resolved_size() -> None:
    with Unifier():
        assert need(n, 32) == 32
        assert need(time, n) == 32


def test_sizes_that_differ_are_a_shape_error() -> None:
    with pytest.raises(ShapeError) as caught:
        need(784, 768)
    assert type(caught.value) is ShapeError
    assert (caught.value.problem, caught.value.note) == ("sizes differ", "784 != 768")
    with pytest.raises(ShapeError, match="floor\\(n/2\\) is not known to equal 4"):
        need(n // 2, 4)


def test_a_contradiction_names_both_places() -> None:
    with Unifier(), pytest.raises(ContradictionError) as caught:
        need(batch, 32)
        need(batch, 64)
    error = caught.value
    assert error.earlier is not None
    assert error.at is not None
    assert (error.earlier.line, error.at.line) != (None, None)
    assert f"batch = 32 was fixed at {error.earlier}" in error.note
    assert error.note.startswith("batch != 64; ")
    assert pickle.loads(pickle.dumps(error)).earlier == error.earlier


def test_a_contradiction_through_another_symbol_names_every_step() -> None:
    with Unifier(), pytest.raises(ContradictionError) as caught:
        need(n, time)
        need(n, 32)
        need(time, 64)
    assert "time = n was fixed" in caught.value.note
    assert "n = 32 was fixed" in caught.value.note


def test_a_replayed_graph_names_the_places_it_is_given() -> None:
    first, second = (shapes.Location("train.py", line, "step") for line in (12, 40))
    with Unifier() as unifier, pytest.raises(ContradictionError) as caught:
        unifier.at = first
        need(batch, 32)
        unifier.at = second
        need(batch, 64)
    assert (caught.value.earlier, caught.value.at) == (first, second)
    assert "batch = 32 was fixed at train.py:12" in caught.value.note


# --- shapes ------------------------------------------------------------------------------------

static_shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(st.lists(static_shapes, min_size=1, max_size=4))
def test_broadcasting_agrees_with_numpy(given_shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(ShapeError) as caught:
            broadcast_shapes("add", given_shapes, {})
        assert caught.value.expected == "dimensions equal or 1, from the right"
    else:
        assert broadcast_shapes("add", given_shapes, {}) == expected


def test_symbols_broadcast_against_one_and_unify_with_the_rest() -> None:
    assert broadcast_shapes("add", [(n, 1), (1, time)], {}) == (n, time)
    with Unifier() as unifier:
        assert broadcast_shapes("add", [(n, time), (32, batch)], {}) == (32, time)
    assert unifier.resolve(batch) == time
    with pytest.raises(ShapeError, match="axis -1: n is not known to equal 3"):
        broadcast_shapes("add", [(n,), (3,)], {})


def test_broadcasting_to_a_contradiction_names_both_places() -> None:
    with Unifier(), pytest.raises(ContradictionError) as caught:
        broadcast_shapes("add", [(n,), (3,)], {})
        broadcast_shapes("add", [(n,), (4,)], {})
    assert caught.value.earlier is not None
    assert "axis -1: n != 4; n = 3 was fixed at" in caught.value.note


@pytest.mark.parametrize(
    ("left", "right", "note", "fix"),
    [
        ((3,), (4,), "axis -1: 3 != 4", "make b.shape[-1] 3, or 1 to repeat it: b[..., :1]"),
        ((32, 10), (32,), "axis -1: 10 != 32", "line b up from the left: b[..., None]"),
        ((32,), (32, 10), "axis -1: 32 != 10", "line a up from the left: a[..., None]"),
        ((3, 4), (4, 3), "axis -2: 3 != 4", "transpose b: b.mT"),
        (
            (2, 3),
            (5, 3),
            "axis -2: 2 != 5",
            "make b.shape[-2] 2, or 1 to repeat it: b[..., :1, :]",
        ),
    ],
)
def test_shapes_that_do_not_broadcast_come_with_a_fix(
    left: shapes.Shape, right: shapes.Shape, note: str, fix: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        broadcast_shapes("add", [left, right], {"a": left, "b": right})
    error = caught.value
    assert (error.op, error.problem) == ("add", "shapes do not broadcast")
    assert error.got == f"a: {left}   b: {right}"
    assert (error.note, error.fix) == (note, fix)
    a, b = np.ones(left), np.ones(right)
    assert np.add(
        *eval(f"({fix.split(': ')[1]}, {'a' if 'b' in fix.split(': ')[1] else 'b'})")
    ).size
    assert a.shape == left
    assert b.shape == right


def test_the_operand_that_does_not_fit_is_named_among_several() -> None:
    operands = {"condition": (1,), "x": (3,), "y": (4,)}
    with pytest.raises(ShapeError, match=r"make y.shape\[-1\] 3"):
        broadcast_shapes("where", list(operands.values()), operands)


def test_size_is_the_product_of_the_dimensions() -> None:
    assert size((2, n, 3)) == 6 * n
    assert size(()) == 1
    assert size((0, n)) == 0


def test_shapes_are_taken_from_integers_of_any_kind() -> None:
    assert check_shape("zeros", 3) == (3,)
    assert check_shape("zeros", n) == (n,)
    assert check_shape("zeros", ()) == ()
    assert check_shape("zeros", np.array([2, 3])) == (2, 3)
    taken = check_shape("zeros", [np.int64(2), n + 1, 0])
    assert taken == (2, n + 1, 0)
    assert type(taken[0]) is int


@pytest.mark.parametrize("shape", [-1, (2, -3), (n, -n)])
def test_negative_dimensions_are_refused(shape: object) -> None:
    with pytest.raises(ShapeError) as caught:
        check_shape("zeros", shape)
    assert (caught.value.op, caught.value.problem) == ("zeros", "a dimension is negative")


@pytest.mark.parametrize("shape", [2.0, (2, 3.5), None, "batch", ("batch", 2), {2.5}])
def test_what_is_no_shape_is_refused(shape: object) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        check_shape("zeros", shape)
    assert caught.value.expected == "an integer or a sequence of integers"
    assert "shape" in caught.value.fix


# --- axes --------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.data())
def test_axes_count_from_either_end(ndim: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-ndim, ndim - 1))
    assert normalize_axis("sum", axis, ndim, {}) == range(ndim)[axis]
    assert normalize_axes("sum", [axis], ndim, {}) == (range(ndim)[axis],)
    assert normalize_axes("sum", np.int64(axis), ndim, {}) == (range(ndim)[axis],)


def test_no_axis_means_all_of_them() -> None:
    assert normalize_axes("sum", None, 3, {}) == (0, 1, 2)
    assert normalize_axes("sum", (), 3, {}) == ()


@pytest.mark.parametrize(
    ("axis", "ndim", "problem", "fix"),
    [
        (2, 2, "axis 2 is out of range", "pick one, for example the last: axis=1"),
        (-3, 2, "axis -3 is out of range", "pick one, for example the last: axis=1"),
        (1, 1, "axis 1 is out of range", "axis=0"),
        (0, 0, "axis 0 is out of range", "leave axis out: there is only one element"),
        (1.0, 2, "axis 1.0 is not an integer", "pick one, for example the last: axis=1"),
        (True, 2, "axis True is not an integer", "pick one, for example the last: axis=1"),
        ("x", 2, "axis 'x' is not an integer", "pick one, for example the last: axis=1"),
        ((0, -2), 2, "axis 0 is named twice", "name each axis once: axis=(0,)"),
        ((0, 5), 2, "axis 5 is out of range", "pick one, for example the last: axis=1"),
    ],
)
def test_axes_that_are_not_there_are_refused(
    axis: object, ndim: int, problem: str, fix: str
) -> None:
    with pytest.raises(AxisError) as caught:
        normalize_axes("sum", axis, ndim, {"x": "f32[...]"})
    error = caught.value
    assert (error.op, error.problem, error.fix) == ("sum", problem, fix)
    assert error.got.startswith("x: f32[...]   axis: ")
