"""Sizes are unified, and shapes that do not fit are refused in the one form."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_dimensions import batch, dims, n, time

from weft.core.dimensions import Dimension
from weft.core.errors import ArgumentTypeError, AxisError, ShapeError
from weft.core.locations import Location
from weft.core.shapes import (
    ContradictionError,
    Shape,
    Unifier,
    broadcast_shapes,
    check_shape,
    equal,
    match_size,
    normalize_axes,
    normalize_axis,
    require_equal,
    size,
    symbol,
)

# --- unification -------------------------------------------------------------------------------


need = partial(
    require_equal, "matmul", expected="a == b", got={"a": 1}, fix="transpose", what="sizes differ"
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
    assert error.earlier.file == error.at.file == __file__
    assert error.earlier.line + 1 == error.at.line
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
    first, second = (Location("train.py", line, "step") for line in (12, 40))
    with Unifier() as unifier, pytest.raises(ContradictionError) as caught:
        unifier.at = first
        need(batch, 32)
        unifier.at = second
        need(batch, 64)
    assert (caught.value.earlier, caught.value.at) == (first, second)
    assert "batch = 32 was fixed at train.py:12" in caught.value.note


@pytest.mark.parametrize(
    ("pattern", "dim", "known", "found"),
    [
        (n, 3, {}, {"n": 3}),
        (n, n + 1, {}, {"n": n + 1}),
        (2 * n + 1, 7, {}, {"n": 3}),
        (n * time, 6, {"n": 2}, {"n": 2, "time": 3}),
        (n + time, 2 * n, {"n": n}, {"n": n, "time": n}),
        (n - 1, 0, {}, {"n": 1}),
        (n // 2, 3, {"n": 7}, {"n": 7}),
        (4, 4, {}, {}),
    ],
)
def test_a_pattern_takes_the_size_it_is_given(
    pattern: Dimension,
    dim: Dimension,
    known: dict[str, Dimension],
    found: dict[str, Dimension],
) -> None:
    known = dict(known)
    assert match_size(pattern, dim, known)
    assert known == found


@pytest.mark.parametrize(
    ("pattern", "dim", "known"),
    [
        (2 * n, 7, {}),
        (n + 2, 1, {}),
        (n * n, 9, {}),
        (n // 2, 3, {}),
        (n * time, 6, {}),
        (n, 4, {"n": 3}),
        (4, 5, {}),
    ],
)
def test_a_pattern_that_does_not_fit_leaves_what_is_known(
    pattern: Dimension, dim: Dimension, known: dict[str, Dimension]
) -> None:
    before = dict(known)
    assert not match_size(pattern, dim, known)
    assert known == before


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
    left: Shape, right: Shape, note: str, fix: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        broadcast_shapes("add", [left, right], {"a": left, "b": right})
    error = caught.value
    assert (error.op, error.problem) == ("add", "shapes do not broadcast")
    assert error.got == f"a: {left}   b: {right}"
    assert (error.note, error.fix) == (note, fix)
    names = {"a": np.ones(left), "b": np.ones(right)}
    names[fix.split(": ")[1][0]] = eval(fix.split(": ")[1], dict(names))
    assert (names["a"] + names["b"]).ndim == max(len(left), len(right))


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


def test_a_product_of_symbols_fits_itself_and_nothing_else() -> None:
    area = symbol("height") * symbol("width")
    known: dict[str, Any] = {}
    assert match_size(area, area, known)
    assert known == {"height": symbol("height"), "width": symbol("width")}
    assert not match_size(area, symbol("height") * 3, {})
    assert not match_size(area, 12, {})
