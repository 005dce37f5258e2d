"""Annotated shapes are verified at call and at trace, and what does not fit is named."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, WeftError
from weft.core.shapes import ContradictionError

# mypy: disable-error-code="name-defined,misc"
# ruff: noqa: F821, F722, UP037


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return wf.tensor(np.zeros(shape, dtype), dtype=dtype)


@wf.checked
def attend(
    q: wf.Float["batch", "time", "head"], k: wf.Float["batch", "time", "head"], scale: float = 1.0
) -> wf.Float["batch", "time", "head"]:
    return wf.multiply(wf.add(q, k), scale)


def test_what_fits_runs() -> None:
    assert attend(zeros(2, 8, 16), zeros(2, 8, 16)).shape == (2, 8, 16)
    assert attend(zeros(2, 8, 16), k=zeros(2, 8, 16), scale=2.0).shape == (2, 8, 16)
    assert attend(q=zeros(0, 1, 1), k=zeros(0, 1, 1)).shape == (0, 1, 1)
    assert attend.__name__ == "attend"


def test_a_size_that_does_not_fit_is_refused_with_its_parameter_and_the_call() -> None:
    with pytest.raises(ShapeError) as caught:
        attend(zeros(2, 8, 16), zeros(2, 9, 16))
    error = caught.value
    assert (error.op, error.problem) == ("attend", "axis 1 of k is 9, not 8")
    assert error.expected == 'k: Float["batch", "time", "head"] with time = 8 from q'
    assert error.got == "q: f32[2, 8, 16]   k: f32[2, 9, 16]"
    assert error.note == "8 != 9"
    assert error.fix.startswith("make k.shape[1] 8")
    assert error.at is not None
    assert error.at.file == __file__
    assert "attend(zeros(2, 8, 16), zeros(2, 9, 16))" in error.at.source()


def test_a_wrong_dtype_is_refused() -> None:
    with pytest.raises(DTypeError) as caught:
        attend(zeros(2, 8, 16), zeros(2, 8, 16, dtype="int32"))
    error = caught.value
    assert (error.op, error.problem) == ("attend", "k is int32")
    assert 'k: Float["batch", "time", "head"], one of float16' in error.expected
    assert error.fix == 'convert it: k.astype("float32")'
    assert error.got == "q: f32[2, 8, 16]   k: i32[2, 8, 16]"


def test_a_wrong_number_of_axes_is_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        attend(zeros(8, 16), zeros(2, 8, 16))
    assert caught.value.problem == "q has 2 axes, not 3"
    assert caught.value.fix == "add 1 in front: q[None, ...]"
    with pytest.raises(ShapeError, match="q has 4 axes, not 3"):
        attend(zeros(1, 2, 8, 16), zeros(2, 8, 16))


def test_what_is_no_tensor_is_refused() -> None:
    arguments: Any = [[1.0]]
    with pytest.raises(ArgumentTypeError) as caught:
        attend(arguments, zeros(2, 8, 16))
    assert caught.value.problem == "q is not a tensor"
    assert caught.value.fix == "convert it first: wf.tensor(q)"


def test_a_wrong_result_is_refused() -> None:
    @wf.checked
    def bad(x: wf.Float["n"]) -> wf.Float["n", "n"]:
        return x

    with pytest.raises(ShapeError) as caught:
        bad(zeros(3))
    assert caught.value.problem == "result has 1 axes, not 2"
    assert caught.value.got == "x: f32[3]   result: f32[3]"

    @wf.checked
    def pair(x: wf.Float["n"], y: wf.Float["m"]) -> tuple[wf.Float["m"], wf.Float["n"]]:
        return x, y

    assert pair(zeros(3), zeros(3))[0].shape == (3,)
    with pytest.raises(ShapeError) as caught:
        pair(zeros(3), zeros(4))
    assert caught.value.expected == 'result[0]: Float["m"] with m = 4 from y'


def test_the_number_of_results_is_verified() -> None:
    @wf.checked
    def pair(x: wf.Float["n"]) -> tuple[wf.Float["n"], wf.Float["n"]]:
        return x  # type: ignore[no-any-return]

    with pytest.raises(ArgumentTypeError) as caught:
        pair(zeros(3))
    assert caught.value.expected == "a tuple of 2"


def test_literal_sizes_and_free_axes() -> None:
    @wf.checked
    def f(x: wf.Float["_", 3, None]) -> Any:
        return x

    f(zeros(9, 3, 7))
    with pytest.raises(ShapeError) as caught:
        f(zeros(9, 4, 7))
    assert caught.value.problem == "axis 1 of x is 4, not 3"
    assert caught.value.expected == 'x: Float["_", 3, "_"]'


def test_leading_axes_may_be_left_open() -> None:
    @wf.checked
    def f(x: wf.Float["...", "n", "n"], y: wf.Float["n", ...]) -> Any:
        return x

    f(zeros(5, 4, 3, 3), zeros(3))
    f(zeros(3, 3), zeros(3, 4, 5))
    with pytest.raises(ShapeError, match="x has 1 axes, not at least 2"):
        f(zeros(3), zeros(3))
    with pytest.raises(ShapeError, match="axis 2 of x is 4, not 3"):
        f(zeros(5, 3, 4), zeros(3))


def test_axes_may_have_one_name_together() -> None:
    @wf.checked
    def f(x: wf.Float["*batch", "n"], y: wf.Float["*batch"]) -> wf.Float["n", "*batch"]:
        return wf.tensor(np.zeros((x.shape[-1], *y.shape), np.float32))

    assert f(zeros(2, 3, 4), zeros(2, 3)).shape == (4, 2, 3)
    assert f(zeros(4), zeros()).shape == (4,)
    for wrong in (zeros(2, 4), zeros(2), zeros(2, 3, 1)):
        with pytest.raises(ShapeError) as caught:
            f(zeros(2, 3, 4), wrong)
        assert caught.value.expected == 'y: Float["*batch"] with batch = [2, 3] from x'


def test_expressions_are_computed_and_solved() -> None:
    @wf.checked
    def f(x: wf.Float["2*n"], y: wf.Float["n + m"], z: wf.Float["m"]) -> Any:
        return x

    f(zeros(6), zeros(7), zeros(4))
    with pytest.raises(ShapeError) as caught:
        f(zeros(6), zeros(8), zeros(4))
    assert caught.value.problem == "axis 0 of y is 8, not 7"
    assert caught.value.expected == 'y: Float["n + m"] with m = 4 from z, n = 3 from x'
    with pytest.raises(ShapeError, match=r"axis 0 of x is 5, not 2\*n"):
        f(zeros(5), zeros(8), zeros(4))


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_linear_expression_gives_its_name_a_size(a: int, b: int, n: int) -> None:
    @wf.checked
    def f(x: wf.Float[f"{a}*n + {b}"]) -> wf.Float["n"]:
        return zeros(n)

    assert f(zeros(a * n + b)).shape == (n,)


def test_names_that_nothing_decides_are_refused() -> None:
    @wf.checked
    def f(x: wf.Float["n*m"]) -> Any:
        return x

    with pytest.raises(ShapeError) as caught:
        f(zeros(6))
    assert caught.value.note == "m and n are known from no other axis"


@pytest.mark.parametrize(
    ("annotation", "fits", "wrong"),
    [
        (wf.Int, "uint8", "float32"),
        (wf.Bool, "bool", "int8"),
        (wf.Complex, "complex64", "float32"),
        (wf.Float32, "float32", "float64"),
        (wf.Int64, "int64", "int32"),
        (wf.UInt16, "uint16", "int16"),
    ],
)
def test_each_kind_allows_its_dtypes(annotation: Any, fits: str, wrong: str) -> None:
    def f(x: Any) -> Any:
        return x

    f.__annotations__["x"] = annotation["n"]
    g = wf.checked(f)
    g(zeros(2, dtype=fits))
    with pytest.raises(DTypeError, match=f"x is {wrong}"):
        g(zeros(2, dtype=wrong))


def test_any_dtype_has_a_kind_of_its_own() -> None:
    @wf.checked
    def f(x: wf.Shaped["n"], y: wf.Shaped["n"]) -> Any:
        return x

    f(zeros(3, dtype="bool"), zeros(3, dtype="complex128"))
    with pytest.raises(ShapeError):
        f(zeros(3, dtype="bool"), zeros(4, dtype="complex128"))


def test_methods_skip_self_and_other_parameters_are_let_be() -> None:
    class Layer:
        width = 3

        @wf.checked
        def forward(self, x: wf.Float["batch", 3], training: bool = False) -> wf.Float["batch", 3]:
            return x if not training else None  # type: ignore[return-value]

        @wf.checked
        @staticmethod
        def fixed(x: wf.Float["n"]) -> Any:
            return x

        @classmethod
        @wf.checked
        def made(cls, x: wf.Float["n"]) -> Any:
            return cls.width

    assert Layer().forward(zeros(2, 3)).shape == (2, 3)
    assert Layer.fixed(zeros(2)).shape == (2,)
    assert Layer.made(zeros(2)) == 3
    with pytest.raises(ShapeError, match="forward: axis 1 of x is 4, not 3"):
        Layer().forward(zeros(2, 4))
    with pytest.raises(ShapeError, match="fixed: "):
        Layer.fixed(zeros(2, 2))
    with pytest.raises(ArgumentTypeError, match="result is not a tensor"):
        Layer().forward(zeros(2, 3), training=True)


def test_optional_tensors_may_be_none() -> None:
    @wf.checked
    def f(
        x: wf.Float["n"],
        mask: wf.Bool["n"] | None = None,
        bias: Optional[wf.Float["n"]] = None,  # noqa: UP045
        other: wf.Float["n"] = None,
    ) -> Any:
        return x

    f(zeros(3))
    f(zeros(3), None, None, None)
    f(zeros(3), zeros(3, dtype="bool"), zeros(3), zeros(3))
    for wrong in ({"mask": zeros(4, dtype="bool")}, {"bias": zeros(4)}, {"other": zeros(4)}):
        with pytest.raises(ShapeError, match="is 4, not 3"):
            f(zeros(3), **wrong)
    with pytest.raises(ArgumentTypeError, match="x is not a tensor"):
        f(None)


def test_repeated_parameters_are_checked_one_by_one() -> None:
    @wf.checked
    def f(*xs: wf.Float["n"], **named: wf.Float["n"]) -> Any:
        return len(xs) + len(named)

    assert f(zeros(3), zeros(3), y=zeros(3)) == 3
    with pytest.raises(ShapeError, match=r"axis 0 of xs\[1\] is 4, not 3"):
        f(zeros(3), zeros(4))
    with pytest.raises(ShapeError, match="axis 0 of y is 5, not 3"):
        f(zeros(3), y=zeros(5))


def test_the_clean_form_for_type_checkers_works_too() -> None:
    @wf.checked
    def f(x: Annotated[wf.Tensor, wf.Float["n", "n"]]) -> Any:
        return x

    f(zeros(3, 3))
    with pytest.raises(ShapeError, match="axis 1 of x is 4, not 3"):
        f(zeros(3, 4))


def test_names_without_quotes_mean_the_same_where_annotations_are_kept_as_text() -> None:
    @wf.checked
    def f(x: wf.Float[rows, 2 * columns]) -> wf.Float[columns]:
        return zeros(2)

    f(zeros(3, 4))
    with pytest.raises(ShapeError, match="axis 0 of result is 2, not 3"):
        f(zeros(3, 6))


def test_numpy_arrays_are_checked_as_tensors_are() -> None:
    with pytest.raises(ShapeError, match="axis 1 of k is 9, not 8"):
        attend(zeros(2, 8, 16), np.zeros((2, 9, 16), np.float32))


def test_a_call_that_does_not_fit_the_signature_gets_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'k'"):
        attend(zeros(2, 8, 16))


# --- at trace ----------------------------------------------------------------------------------


def test_symbolic_sizes_are_verified_and_unified() -> None:
    spec = wf.spec
    q = spec("float32", ("b", "t", 16))
    assert wf.ir.infer(attend, q, q) == q
    k = spec("float32", (2, "s", "h"))
    assert wf.ir.infer(attend, q, k).shape[::2] == (2, 16)
    with pytest.raises(ShapeError) as caught:
        wf.ir.infer(attend, q, spec("float32", (2, "t", 17)))
    assert caught.value.problem == "axis 2 of k is 17, not 16"
    with pytest.raises(ShapeError, match="axis 1 of k is t \\+ 1, not t"):
        wf.ir.infer(attend, q, spec("float32", ("b", wf.ir.infer(wf.sin, q).shape[1] + 1, 16)))


def test_a_graph_of_a_checked_function_has_its_sizes() -> None:
    @wf.checked
    def f(x: wf.Float["batch", 784]) -> Any:
        return wf.sin(x)

    graph = wf.ir.trace(f, wf.spec("float32", ("n", "features")))
    assert graph.output_types == (wf.spec("float32", ("n", 784)),)


def test_names_in_annotations_are_not_those_of_the_trace() -> None:
    @wf.checked
    def f(x: wf.Float["n", "m"], y: wf.Float["m"]) -> Any:
        return y

    x, y = wf.spec("float32", ("m", "n")), wf.spec("float32", ("n",))
    assert wf.ir.infer(f, x, y) == y


# --- at definition -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "axes", [("2 *",), (-1,), (2.5,), ("a b",), (True,), ("...", "*n"), ("**n",)]
)
def test_axes_that_mean_nothing_are_refused_at_once(axes: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        wf.Float[axes]
    assert caught.value.op == "Float"
    assert "sizes, names, expressions" in caught.value.expected
    assert caught.value.fix.startswith('Float["batch", "time", 64]')


def test_a_function_without_annotations_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:

        @wf.checked
        def f(x: int) -> int:
            return x

    assert caught.value.problem == "f has nothing to check"
    assert caught.value.got == "function: f(x: 'int') -> 'int'"


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:

        @wf.checked
        def f(x: unheard_of.Float["n"]) -> Any:
            return x

    assert caught.value.problem == "the annotation of x cannot be read"
    assert caught.value.note == "name 'unheard_of' is not defined"


def test_other_annotations_may_be_unknown() -> None:
    @wf.checked
    def f(x: wf.Float["n"], y: SomeTypeForCheckersOnly = 0) -> Any:  # type: ignore[assignment]
        return x

    assert f(zeros(2)).shape == (2,)


def test_annotations_print_as_they_are_written() -> None:
    assert str(wf.Float["batch", 3, None, ...]) == 'Float["batch", 3, "_", "..."]'
    assert str(wf.Int["n"] | None) == 'Int["n"] | None'
    assert repr(wf.Float) == "weft.Float"


def test_contradictions_under_a_trace_name_both_places() -> None:
    @wf.checked
    def f(x: wf.Float["n"], y: wf.Float["n"]) -> Any:
        return x

    def g(x: Any, y: Any, z: Any) -> Any:
        f(x, y)
        return f(x, z)

    kinds = [wf.spec("float32", (size,)) for size in ("batch", 32, 64)]
    with pytest.raises(WeftError) as caught:
        wf.ir.infer(g, *kinds)
    assert isinstance(caught.value, ContradictionError)
    assert caught.value.earlier is not None
    assert "batch = 32 was fixed at" in caught.value.note
