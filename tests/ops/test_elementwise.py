"""Element-wise functions: what the tests derived from samples cannot see.

Values against NumPy and `math` on every dtype and at the edges, the standard's special cases,
derivatives at kinks and poles, signatures, and what wrong calls are answered with.
"""

from __future__ import annotations

import doctest
import inspect
import math
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.dtypes import DTYPES
from weft.ops import arithmetic, comparison, elementary, logic, selection, special
from weft.ops.composed import elementwise as composed

MODULES = (arithmetic, comparison, elementary, logic, selection, special, composed)
NAMES = [(name, getattr(module, name)) for module in MODULES for name in module.__all__]
INF, NAN = math.inf, math.nan
EDGES = [0, -0.0, 1, -1, 2, 3, 0.5, -0.5, 1.5, 2.5, -2.5, 7, 100, 127, INF, -INF, NAN, 1e-30, -3]


def _maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NumPy's, with zeros in order: the sum of two zeros is the greater of them."""
    out = np.maximum(x, y)
    return out if out.dtype.kind in "biu" else np.where((x == 0) & (y == 0), x + y, out)


def _minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.minimum(x, y)
    return out if out.dtype.kind in "biu" else np.where((x == 0) & (y == 0), -(-x - y), out)


IN_NUMPY = {
    "maximum": _maximum, "minimum": _minimum,
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin,
    "asinh": np.arcsinh, "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh,
    "pow": np.power, "bitwise_invert": np.invert, "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
}  # fmt: skip
UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_invert",
    "cbrt",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_not",
    "negative",
    "positive",
    "real",
    "signbit",
    "sin",
    "sinh",
    "square",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
BINARY = [
    "add",
    "atan2",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "copysign",
    "divide",
    "equal",
    "fmod",
    "greater",
    "greater_equal",
    "hypot",
    "less",
    "less_equal",
    "logaddexp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "not_equal",
    "pow",
    "remainder",
    "subtract",
]

_COMPLEX = frozenset({"complex"})
_INEXACT = frozenset({"float", "complex"})
REFUSED = {name: frozenset({"bool"}) for name in UNARY + BINARY} | {
    name: kinds
    for names, kinds in {
        "hypot atan2 copysign logaddexp nextafter cbrt": _COMPLEX,
        "less less_equal greater greater_equal maximum minimum": _COMPLEX,
        "floor ceil trunc signbit fmod remainder": _COMPLEX | {"bool"},
        "bitwise_and bitwise_or bitwise_xor bitwise_invert": _INEXACT,
        "bitwise_left_shift bitwise_right_shift": _INEXACT | {"bool"},
    }.items()
    for name in names.split()
}
"""The kinds of dtypes that a function refuses; booleans where nothing else is said."""


def _edges(dtype: wf.DType) -> np.ndarray:
    values = np.array([x for x in EDGES if math.isfinite(x)] if dtype.is_integer else EDGES)
    values = np.abs(values) if dtype.kind == "unsigned" else values
    with np.errstate(all="ignore"):
        values = values + 1j * np.roll(values, 3) if dtype.is_complex else values
        return values.astype(dtype.numpy)


def _agree(name: str, dtype: wf.DType, *operands: np.ndarray) -> None:
    """The public function gives what NumPy gives, or refuses the dtype with all fields."""
    try:
        found = getattr(wf, name)(*map(wf.asarray, operands))
    except wf.DTypeError:
        assert dtype.kind in REFUSED[name]
        return
    works_in = np.float32 if found.dtype is wf.float32 and not dtype.is_inexact else dtype.numpy
    with np.errstate(all="ignore"):
        function = IN_NUMPY.get(name) or getattr(np, name)
        expected = np.asarray(function(*[x.astype(works_in) for x in operands]))
    assert found.dtype.numpy == expected.dtype
    wide = np.complex128 if found.dtype.is_complex else np.float64
    tolerance = 1e-2 if dtype.bits == 16 else 1e-5
    value = found.numpy()
    np.testing.assert_allclose(value.astype(wide), expected.astype(wide), rtol=tolerance)
    if found.dtype.is_floating:
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(value)[known], np.signbit(expected)[known])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.short)
@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_agree_with_numpy_on_every_dtype(name: str, dtype: wf.DType) -> None:
    _agree(name, dtype, _edges(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.short)
@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_agree_with_numpy_on_every_dtype(name: str, dtype: wf.DType) -> None:
    first, second = (grid.ravel() for grid in np.meshgrid(_edges(dtype), _edges(dtype)))
    if name == "pow" and dtype.is_integer:
        second = np.abs(second)
    _agree(name, dtype, first, second)


def test_signatures_are_those_of_the_standard() -> None:
    for name in UNARY:
        (parameter,) = inspect.signature(getattr(wf, name)).parameters.values()
        assert parameter.name == "x"
        assert parameter.kind is parameter.POSITIONAL_ONLY
    for name in BINARY:
        parameters = inspect.signature(getattr(wf, name)).parameters.values()
        assert [p.name for p in parameters] == ["x1", "x2"]
        assert all(p.kind is p.POSITIONAL_ONLY for p in parameters)
    assert list(inspect.signature(wf.clip).parameters) == ["x", "min", "max"]
    assert list(inspect.signature(wf.round).parameters) == ["x", "decimals"]


@pytest.mark.parametrize(("name", "function"), NAMES, ids=[name for name, _ in NAMES])
def test_every_public_function_has_an_example_that_runs(name: str, function: object) -> None:
    tests = doctest.DocTestParser().get_doctest(function.__doc__ or "", {}, name, None, 0)
    assert tests.examples
    results = doctest.DocTestRunner(verbose=False).run(tests, out=lambda text: None)
    assert results.failed == 0, function.__doc__


# --- the standard's special cases --------------------------------------------------------------


@pytest.mark.parametrize(
    ("x1", "x2", "expected"),
    [
        (INF, 2.0, INF), (INF, -2.0, -INF), (-INF, 2.0, -INF), (-INF, -2.0, INF),
        (2.0, INF, 0.0), (2.0, -INF, -0.0), (-2.0, INF, -0.0), (-2.0, -INF, 0.0),
        (INF, INF, NAN), (1.0, 0.0, INF), (-1.0, 0.0, -INF), (0.0, 0.0, NAN),
        (7.0, 2.0, 3.0), (-7.0, 2.0, -4.0), (0.0, -1.0, -0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floor_divide_has_the_special_cases_of_the_standard(
    dtype: str, x1: float, x2: float, expected: float
) -> None:
    found = wf.floor_divide(wf.tensor(x1, dtype=dtype), wf.tensor(x2, dtype=dtype)).item()
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        (NAN, 0.0, 1.0), (0.0, 0.0, 1.0), (1.0, NAN, 1.0), (0.0, -1.0, INF), (-0.0, -1.0, -INF),
        (-INF, 0.5, INF), (-INF, 3.0, -INF), (-8.0, 1 / 3, NAN), (0.5, INF, 0.0),
    ],
)  # fmt: skip
def test_pow_has_the_special_cases_of_the_standard(
    base: float, exponent: float, expected: float
) -> None:
    found = wf.pow(wf.tensor(base), wf.tensor(exponent)).item()
    np.testing.assert_equal(found, expected)
    np.testing.assert_equal(wf.pow(wf.tensor(base), exponent).item(), expected)


def test_integers_divided_by_zero_give_zero_without_a_warning() -> None:
    x, zero = wf.tensor([7, -7, -(2**63)]), wf.tensor([0, 0, -1])
    assert wf.floor_divide(x, zero).tolist() == [0, 0, -(2**63)]
    assert wf.remainder(x, zero).tolist() == [0, 0, 0]
    assert wf.floor_divide(wf.tensor([7], dtype="uint8"), 0).tolist() == [0]


def test_shifts_by_the_width_and_more_move_every_bit_out() -> None:
    x = wf.tensor([1, -1, 5], dtype="int8")
    shift = wf.tensor([8, 9, 100], dtype="int8")
    assert wf.bitwise_left_shift(x, shift).tolist() == [0, 0, 0]
    assert wf.bitwise_right_shift(x, shift).tolist() == [0, -1, 0]


def test_unsigned_numbers_wrap_around() -> None:
    x = wf.tensor([0, 1, 255], dtype="uint8")
    assert wf.negative(x).tolist() == [0, 255, 1]
    assert (x + 1).tolist() == [1, 2, 0]


def test_round_goes_to_the_even_neighbour_and_takes_decimals() -> None:
    x = wf.tensor([0.5, 1.5, 2.5, -0.5, -1.5])
    assert wf.round(x).tolist() == [0.0, 2.0, 2.0, -0.0, -2.0]
    assert wf.round(wf.tensor([125.0, 135.0]), decimals=-1).tolist() == [120.0, 140.0]
    assert wf.round(wf.tensor([1.0 + 2.6j])).tolist() == [1 + 3j]
    assert wf.round(wf.tensor([3])).dtype is wf.int64


def test_parts_of_complex_numbers_are_real() -> None:
    z = wf.tensor([3.0 + 4.0j, 0.0j, -1.0 + 0.0j], dtype="complex128")
    assert wf.abs(z).dtype is wf.float64
    assert wf.abs(z).tolist() == [5.0, 0.0, 1.0]
    assert wf.real(z).tolist() == [3.0, 0.0, -1.0]
    assert wf.imag(z).tolist() == [4.0, 0.0, 0.0]
    assert wf.sign(z).tolist() == [0.6 + 0.8j, 0j, -1 + 0j]
    assert wf.imag(wf.tensor([1.0, 2.0])).tolist() == [0.0, 0.0]
    assert wf.abs(wf.tensor([complex(INF, NAN)])).tolist() == [INF]


def test_whole_powers_are_exact_and_keep_the_dtype() -> None:
    x = wf.tensor([3.0, -1.1])
    assert (x**2).tolist() == (x * x).tolist()
    assert (x**3).tolist() == (x * x * x).tolist()
    assert (x**1).tolist() == x.tolist()
    assert (x**0).tolist() == [1.0, 1.0]
    assert (x**-1).tolist() == (1 / x).tolist()
    assert wf.pow(wf.tensor([3], dtype="int8"), 2).dtype is wf.int8
    assert wf.pow(wf.tensor([3]), 2.0).dtype is wf.float32
    assert wf.pow(2, wf.tensor([3])).tolist() == [8]
    assert wf.pow(wf.tensor([1.5], dtype="bfloat16"), 3).dtype is wf.bfloat16


# --- Python scalars are weak -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("scalar", [2, 2.5, True, 2**40])
def test_python_scalars_do_not_widen_a_floating_tensor(dtype: str, scalar: float) -> None:
    x = wf.tensor([1.0, 2.0], dtype=dtype)
    assert wf.add(x, scalar).dtype is x.dtype
    assert wf.multiply(scalar, x).dtype is x.dtype


def test_numpy_arrays_and_scalars_are_operands() -> None:
    x = wf.tensor([1.0, 2.0])
    assert wf.add(x, np.float32(1)).tolist() == [2.0, 3.0]
    assert wf.add(np.array([1.0]), x).dtype is wf.float64
    assert wf.exp(0.0).item() == 1.0
    assert wf.where(np.array([True, False]), x, 0.0).tolist() == [1.0, 0.0]


def test_large_python_integers_are_exact_in_double_precision() -> None:
    x = wf.tensor([1.0], dtype="float64")
    assert wf.add(x, 2**53 + 2).tolist() == [2.0**53 + 4]
    assert wf.multiply(x, -(2**60)).tolist() == [-(2.0**60)]


# --- where and clip ----------------------------------------------------------------------------


def test_where_promotes_its_choices_and_broadcasts() -> None:
    mask = wf.tensor([[True], [False]])
    assert wf.where(mask, wf.tensor([1, 2]), 0.5).tolist() == [[1.0, 2.0], [0.5, 0.5]]
    assert wf.where(mask, 1, 2).dtype is wf.int64
    assert wf.where(wf.tensor([True]), wf.tensor([1.0], dtype="float64"), 2.0).dtype is wf.float64
    assert wf.where(True, wf.tensor([1.0]), 2.0).tolist() == [1.0]


def test_clip_keeps_the_dtype_and_saturates_bounds_beyond_it() -> None:
    x = wf.tensor([0, 100, 200], dtype="uint8")
    assert wf.clip(x, -5, 1000).tolist() == [0, 100, 200]
    assert wf.clip(x, wf.tensor(-1), wf.tensor(150)).tolist() == [0, 100, 150]
    assert wf.clip(x, max=wf.tensor([50, 300, 10])).tolist() == [0, 100, 10]
    half = wf.tensor([1.0, 2.0], dtype="float16")
    assert wf.clip(half, wf.tensor([1.5])).dtype is wf.float16
    assert wf.clip(wf.tensor([1, 5]), 1.5, 2.5).tolist() == [1.5, 2.5]
    assert wf.clip(wf.tensor([1.0, NAN]), 0.0, 0.5).tolist()[0] == 0.5
    assert math.isnan(wf.clip(wf.tensor([NAN]), 0.0, 0.5).item())


def test_clip_without_bounds_is_another_handle_on_the_value() -> None:
    x = wf.tensor([1.0, 2.0])
    y, z = wf.clip(x), wf.positive(x)
    x[0] = 5.0
    assert y.tolist() == z.tolist() == [1.0, 2.0]


# --- special functions -------------------------------------------------------------------------

# From mpmath with 40 digits.
SPECIAL = {
    "erf": [(0.1, 0.1124629160182848922), (2.0, 0.995322265018952734)],
    "erfc": [
        (10.0, 2.0884875837625447570e-45),
        (26.0, 5.6631924088561428464e-296),
        (-3.0, 1.99997790950300141456),
    ],
    "erfinv": [
        (0.5, 0.4769362762044698734),
        (1 - 1e-12, 5.0420318985726961301),
        (-0.999, -2.3267537655135244939),
    ],
    "lgamma": [
        (0.5, 0.57236494292470008707),
        (100.5, 361.43554046777762156),
        (-0.5, 1.2655121234846454965),
        (1e-10, 23.025850929882735237),
        (1 + 1e-9, -5.7721571183810395192e-10),
        (2 - 1e-9, -4.2278436975733279119e-10),
    ],
    "digamma": [
        (1.0, -0.57721566490153286061),
        (0.1, -10.423754940411076795),
        (-0.5, 0.03648997397857652056),
        (1e5, 11.512920464961895087),
    ],
    "i0e": [
        (1.0, 0.46575960759364043650),
        (30.0, 0.073145946482237293929),
        (-5.0, 0.18354081260932835307),
    ],
    "i1e": [(1.0, 0.20791041534970844887), (30.0, 0.071916330598647554706)],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_have_the_digits_of_a_double(name: str) -> None:
    xs, expected = np.array(SPECIAL[name]).T
    found = getattr(wf, name)(wf.asarray(xs)).numpy()
    np.testing.assert_allclose(found, expected, rtol=4e-15)


def test_error_functions_agree_with_math_everywhere() -> None:
    xs = np.linspace(-6.0, 26.0, 3001)
    erf, erfc = wf.erf(wf.asarray(xs)).numpy(), wf.erfc(wf.asarray(xs)).numpy()
    np.testing.assert_allclose(erf, [math.erf(x) for x in xs], rtol=1e-15)
    np.testing.assert_allclose(erfc, [math.erfc(x) for x in xs], rtol=2e-15)


def test_lgamma_agrees_with_math_also_below_zero() -> None:
    xs = np.concatenate([np.linspace(0.01, 30, 3000), [1e300]])
    found = wf.lgamma(wf.asarray(xs)).numpy()
    expected = np.array([math.lgamma(x) for x in xs])
    np.testing.assert_allclose(found, expected, rtol=2e-15, atol=2e-15)
    below = -np.linspace(0.013, 12.7, 500)
    expected = np.array([math.lgamma(x) for x in below])
    np.testing.assert_allclose(wf.lgamma(wf.asarray(below)).numpy(), expected, rtol=0, atol=1e-13)


def test_special_functions_at_infinity_and_at_poles() -> None:
    edges = wf.tensor([INF, -INF, 0.0, -0.0, -1.0, NAN])
    np.testing.assert_equal(wf.erf(edges).tolist()[:4], [1.0, -1.0, 0.0, -0.0])
    np.testing.assert_equal(wf.erfc(edges).tolist()[:2], [0.0, 2.0])
    np.testing.assert_equal(wf.lgamma(edges).tolist(), [INF, INF, INF, INF, INF, NAN])
    np.testing.assert_equal(wf.digamma(edges).tolist()[2:], [-INF, INF, NAN, NAN])
    np.testing.assert_equal(wf.erfinv(wf.tensor([1.0, -1.0, 2.0])).tolist(), [INF, -INF, NAN])
    np.testing.assert_equal(wf.sinc(wf.tensor([0.0])).tolist(), [1.0])


def test_erfinv_of_float32_is_rounded_once_up_to_the_last_number_below_one() -> None:
    near_one = 1 - 2.0 ** -np.linspace(1, 24, 5000)
    tiny = 10.0 ** np.linspace(-44, 0, 5000, endpoint=False)
    p = np.concatenate([near_one, -near_one, tiny, np.linspace(-0.9, 0.9, 5000)]).astype(np.float32)
    exact = wf.erfinv(wf.asarray(p.astype(np.float64))).numpy()
    found = wf.jit(wf.erfinv)(wf.asarray(p)).numpy()
    units = np.spacing(np.abs(exact).astype(np.float32))
    assert np.max(np.abs(found - exact) / units) < 0.51


def test_erfinv_undoes_erf_and_polygamma_follows_from_digamma() -> None:
    p = np.linspace(-0.999, 0.999, 101)
    np.testing.assert_allclose(wf.erf(wf.erfinv(wf.asarray(p))).numpy(), p, rtol=1e-14)
    pi = math.pi
    assert wf.polygamma(1, wf.asarray(np.float64(1))).item() == pytest.approx(pi**2 / 6, rel=1e-15)
    assert wf.polygamma(0, wf.tensor([1.0])).tolist() == wf.digamma(wf.tensor([1.0])).tolist()
    assert wf.polygamma(2, wf.asarray(-0.5)).item() == pytest.approx(-0.82879664423432, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_round_to_narrow_dtypes(name: str, dtype: str) -> None:
    x = wf.tensor([0.25, 0.5], dtype=dtype)
    wide = getattr(wf, name)(x.astype("float64")).astype(dtype)
    assert getattr(wf, name)(x).tolist() == wide.tolist()


def test_activations_are_stable_at_the_far_ends() -> None:
    x = wf.tensor([-1000.0, -20.0, 0.0, 1000.0])
    assert wf.softplus(x).tolist() == pytest.approx([0.0, math.exp(-20.0), math.log(2), 1000.0])
    assert wf.log_sigmoid(x).tolist() == pytest.approx([-1000.0, -20.0, -math.log(2), 0.0])
    assert wf.sigmoid(x).tolist() == pytest.approx([0.0, math.exp(-20.0), 0.5, 1.0])
    assert wf.gelu(x).tolist() == pytest.approx([0.0, 0.0, 0.0, 1000.0])
    assert wf.gelu(wf.tensor([-10.0], dtype="float64")).item() == pytest.approx(
        -7.619853024160527e-23
    )
    assert wf.silu(wf.tensor(2)).dtype is wf.float32


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_agrees_with_pytorch(approximate: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-5, 5, 101, dtype=np.float32)
    expected = torch.nn.functional.gelu(torch.from_numpy(x), approximate=approximate).numpy()
    found = wf.gelu(wf.asarray(x), approximate=approximate).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_composed_functions_agree_with_numpy() -> None:
    x = np.array([-3.0, 0.0, 0.25, 2.5, INF, -INF, NAN])
    for name in ("deg2rad", "rad2deg", "isposinf", "isneginf", "nan_to_num", "reciprocal"):
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x)
        np.testing.assert_allclose(getattr(wf, name)(wf.asarray(x)).numpy(), expected)
    assert wf.reciprocal(wf.tensor([2, 4])).tolist() == [0.5, 0.25]
    y = np.array([-3.0, 0.001, 0.25, 2.5, INF, INF, NAN])
    for equal_nan in (False, True):
        found = wf.isclose(wf.asarray(x), wf.asarray(y), equal_nan=equal_nan).tolist()
        assert found == np.isclose(x, y, equal_nan=equal_nan).tolist()
    np.testing.assert_allclose(
        wf.sinc(wf.asarray(np.linspace(-3, 3, 61))).numpy(),
        np.sinc(np.linspace(-3, 3, 61)),
        atol=1e-15,
    )
    assert wf.nan_to_num(wf.tensor([1, 2])).tolist() == [1, 2]
    assert wf.nan_to_num(wf.tensor([INF, -INF, NAN]), 1.0, 2.0, 3.0).tolist() == [2.0, 3.0, 1.0]
    assert wf.lerp(wf.tensor([0.1]), wf.tensor([0.7]), 1.0).tolist() == wf.tensor([0.7]).tolist()
    assert wf.logit(wf.sigmoid(wf.tensor([0.75]))).item() == pytest.approx(0.75, rel=1e-6)


# --- derivatives at kinks and poles ------------------------------------------------------------


def _slope(function: object, *at: float, argnum: int = 0) -> float:
    xs = [wf.tensor(x, dtype="float64", requires_grad=i == argnum) for i, x in enumerate(at)]
    function(*xs).backward()
    slope = xs[argnum].grad.item()
    tangents = [wf.tensor(float(i == argnum), dtype="float64") for i in range(len(at))]
    plain = tuple(wf.tensor(x, dtype="float64") for x in at)
    _, pushed = wf.jvp(function, plain, tuple(tangents))
    np.testing.assert_equal(pushed.item(), slope)
    return slope


def _curvature(function: object, at: float) -> float:
    slope = wf.grad(lambda x: wf.grad(function)(x))
    return slope(wf.tensor(at, dtype="float64")).item()


@pytest.mark.parametrize(
    ("function", "at", "argnum", "expected"),
    [
        (wf.maximum, (1.0, 1.0), 0, 0.5), (wf.maximum, (1.0, 1.0), 1, 0.5),
        (wf.minimum, (1.0, 1.0), 0, 0.5), (wf.minimum, (2.0, 1.0), 0, 0.0),
        (wf.maximum, (INF, INF), 0, 0.5),
        (wf.abs, (0.0,), 0, 0.0), (wf.relu, (0.0,), 0, 0.0), (wf.sqrt, (0.0,), 0, INF),
        (wf.hypot, (0.0, 0.0), 0, 0.0), (wf.atan2, (0.0, 0.0), 0, 0.0),
        (wf.hypot, (1e300, 1e300), 0, math.sqrt(0.5)),
        (lambda x: x**2, (0.0,), 0, 0.0), (lambda x: x**3, (0.0,), 0, 0.0),
        (lambda x: x**0, (0.0,), 0, 0.0), (lambda x: x**1, (0.0,), 0, 1.0),
        (lambda x: x**0.5, (0.0,), 0, INF),
        (wf.pow, (0.0, 2.0), 0, 0.0), (wf.pow, (0.0, 2.0), 1, 0.0),
        (wf.pow, (0.0, 0.0), 0, 0.0), (wf.pow, (0.0, 1.0), 0, 1.0), (wf.pow, (-2.0, 2.0), 0, -4.0),
        (lambda x: wf.clip(x, 0.0, 1.0), (0.0,), 0, 1.0),
        (lambda x: wf.clip(x, 0.0, 1.0), (1.5,), 0, 0.0),
        (lambda x: wf.clip(x, min=0.0), (0.5,), 0, 1.0),
        (lambda low: wf.clip(0.5, low, 1.0), (0.75,), 0, 1.0),
        (lambda high: wf.clip(2.0, 0.0, high), (1.0,), 0, 1.0),
        (wf.xlogy, (0.0, 0.0), 0, 0.0), (wf.xlogy, (0.0, 0.0), 1, 0.0),
        (wf.xlogy, (0.0, 2.0), 0, math.log(2.0)), (wf.xlog1py, (0.0, -1.0), 0, 0.0),
        (wf.logaddexp, (-INF, -INF), 0, 0.5), (wf.logaddexp, (-INF, 0.0), 0, 0.0),
        (wf.logaddexp, (1000.0, 0.0), 0, 1.0),
        (wf.sinc, (0.0,), 0, 0.0), (wf.i1e, (0.0,), 0, 0.5), (wf.softplus, (0.0,), 0, 0.5),
        (wf.floor, (1.5,), 0, 0.0), (wf.sign, (1.5,), 0, 0.0), (wf.round, (1.4,), 0, 0.0),
        (lambda x: wf.where(x > 0, wf.sqrt(wf.where(x > 0, x, 1.0)), 0.0), (0.0,), 0, 0.0),
    ],
)  # fmt: skip
def test_slopes_at_edges(
    function: object, at: tuple[float, ...], argnum: int, expected: float
) -> None:
    if function in (wf.floor, wf.sign, wf.round):
        x = wf.tensor(at[0], dtype="float64")
        assert wf.grad(function)(x).item() == expected
        return
    np.testing.assert_allclose(_slope(function, *at, argnum=argnum), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "at", "expected"),
    [
        (lambda x: x**2, 0.0, 2.0), (lambda x: x**3, 0.0, 0.0), (lambda x: x**3, 2.0, 12.0),
        (lambda x: wf.pow(x, wf.tensor(2.0, dtype="float64")), 0.0, 2.0),
        (wf.sinc, 0.0, -(math.pi**2) / 3), (wf.softplus, 0.0, 0.25),
        (wf.lgamma, 1.0, math.pi**2 / 6), (wf.erf, 0.0, 0.0), (wf.relu, 1.0, 0.0),
        (lambda x: wf.logaddexp(x, x * 0.0), 0.0, 0.25),
        (lambda x: wf.abs(x * x), 3.0, 2.0),
    ],
)  # fmt: skip
def test_second_derivatives_at_edges(function: object, at: float, expected: float) -> None:
    np.testing.assert_allclose(_curvature(function, at), expected, atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        wf.abs, wf.sign, wf.real, wf.imag, wf.conj, lambda z: wf.abs(z) ** 2, wf.exp, wf.sqrt,
        lambda z: wf.real(z * wf.conj(z)), lambda z: z**3, wf.tanh, wf.log, lambda z: 1 / z,
        lambda z: wf.where(wf.real(z) > 0, z, wf.conj(z)),
    ],
)  # fmt: skip
def test_derivatives_of_complex_functions_in_both_modes(function: object) -> None:
    z = wf.tensor([0.5 + 0.7j, 1.2 - 0.4j, -0.3 + 0.2j], dtype="complex128")
    wf.testing.check_grads(function, [z], order=2)


def test_the_length_of_a_complex_zero_has_no_slope() -> None:
    z = wf.tensor(0j, dtype="complex128", requires_grad=True)
    wf.abs(z).backward()
    assert z.grad.item() == 0


@pytest.mark.parametrize("scalar", [2, 2.1, 0.5])
def test_derivatives_with_python_scalars_equal_those_with_tensors(scalar: float) -> None:
    functions = [wf.add, wf.subtract, wf.multiply, wf.divide, wf.pow, wf.maximum, wf.minimum]
    functions += [wf.hypot, wf.atan2, wf.remainder, wf.fmod, wf.logaddexp, wf.copysign]
    functions += [wf.xlogy, wf.xlog1py]
    for function in functions:
        for call in (function, lambda x, y, f=function: f(y, x)):
            slopes = []
            for other in (scalar, wf.tensor(scalar, dtype="float64")):
                x = wf.tensor([0.7, 3.3], dtype="float64", requires_grad=True)
                wf.sum(call(x, other)).backward()
                slopes.append(0.0 if x.grad is None else x.grad.numpy())
            np.testing.assert_allclose(*slopes, rtol=1e-14)


# --- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "op", "problem", "fix"),
    [
        (lambda x: wf.add(x, wf.ones(3)), wf.ShapeError, "add", "shapes do not broadcast", "x"),
        (lambda x: wf.bitwise_and(x, 1), wf.DTypeError, "bitwise_and", "not defined", "astype"),
        (lambda x: wf.less(x + 1j, 0), wf.DTypeError, "less", "not defined", "x.real"),
        (lambda x: wf.floor(x + 1j), wf.DTypeError, "floor", "not defined", "x.real"),
        (lambda x: wf.abs(x > 0), wf.DTypeError, "abs", "not defined", "astype"),
        (lambda x: wf.add([1], x), wf.ArgumentTypeError, "add", "not a tensor", "wf.tensor"),
        (lambda x: wf.sin("x"), wf.ArgumentTypeError, "sin", "not a tensor", "float(x)"),
        (lambda x: wf.pow(wf.tensor([2]), -1), wf.ArgumentError, "pow", "negative power", "float"),
        (
            lambda x: wf.pow(wf.tensor([2]), wf.tensor([-1])),
            wf.ArgumentError,
            "pow",
            "negative power",
            "astype",
        ),
        (lambda x: wf.where(x, 1.0, 0.0), wf.DTypeError, "where", "not boolean", "condition != 0"),
        (lambda x: wf.clip(x + 1j, 0, 1), wf.DTypeError, "clip", "not defined", "x.real"),
        (lambda x: wf.clip(x, 1j), wf.DTypeError, "clip", "not defined", "x.real"),
        (
            lambda x: wf.add(wf.tensor([1], dtype="uint8"), 300),
            wf.DTypeError,
            "add",
            "fit",
            "wider",
        ),
        (
            lambda x: wf.add(wf.tensor([1], dtype="uint64"), wf.tensor([1])),
            wf.DTypeError,
            "add",
            "do not promote",
            "astype",
        ),
        (lambda x: wf.gelu(x, approximate="fast"), wf.ArgumentError, "gelu", "fast", "tanh"),
        (lambda x: wf.polygamma(-1, x), wf.ArgumentError, "polygamma", "order", "polygamma(1"),
        (lambda x: wf.bitcast(x, "int64"), wf.DTypeError, "bitcast", "sizes", "int32"),
        (lambda x: wf.nan_to_num(x + 1j), wf.DTypeError, "nan_to_num", "not defined", "x.real"),
    ],
)
def test_mistakes_are_refused_with_a_fix(
    call: object, error: type, op: str, problem: str, fix: str
) -> None:
    with pytest.raises(error) as caught:
        call(wf.tensor([1.0, 2.0]))
    assert caught.value.op == op
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.at is not None


def test_nextafter_says_why_it_has_no_derivative() -> None:
    with pytest.raises(wf.Unsupported, match="representable"):
        wf.grad(lambda x: wf.nextafter(x, x + 1.0))(wf.tensor(1.0))


def test_bits_survive_a_bitcast_and_back() -> None:
    x = wf.tensor([1.5, -0.0, NAN], dtype="bfloat16")
    again = wf.bitcast(wf.bitcast(x, "uint16"), "bfloat16")
    np.testing.assert_equal(again.tolist(), x.tolist())


@pytest.mark.parametrize("transformed", [lambda f: f, wf.jit], ids=["eager", "compiled"])
def test_slopes_of_powers_are_their_limits(transformed: Any) -> None:
    by_base = transformed(wf.grad(lambda x, y: (x**y).sum()))
    by_exponent = transformed(wf.grad(lambda x, y: (x**y).sum(), argnums=1))
    base = wf.tensor([INF, -INF, NAN, 0.0, 2.0])
    assert by_base(base, wf.zeros(5)).tolist() == [0.0] * 5
    base, exponent = wf.tensor([0.0, 0.0, 0.0, INF, 2.0]), wf.tensor([-0.3, 2.0, 0.0, -1.0, 1.0])
    found = by_exponent(base, exponent).tolist()
    assert found[:4] == [-INF, 0.0, 0.0, 0.0]
    assert found[4] == pytest.approx(2 * math.log(2))
    assert by_exponent(wf.tensor([-2.0]), wf.tensor([2.0])).item() == 0.0


def test_the_mixed_derivative_of_a_power_at_exponent_0_is_the_reciprocal() -> None:
    mixed = wf.grad(wf.grad(lambda x, y: x**y), argnums=1)
    assert mixed(wf.tensor(4.0), wf.tensor(0.0)).item() == 0.25


def test_powers_of_a_number_have_the_slopes_of_powers_of_a_tensor() -> None:
    exponent = wf.tensor([-1.0, 0.0, 2.0, 0.5])
    for number in (0.0, 3.0, INF):
        found = wf.grad(lambda y, number=number: (number**y).sum())(exponent).numpy()
        base = wf.full((4,), number)
        expected = wf.grad(lambda y, base=base: (base**y).sum())(exponent).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "function", [wf.sinc, wf.gelu, lambda x: wf.round(x, decimals=1)], ids=["sinc", "gelu", "round"]
)
def test_functions_of_several_steps_round_16_bit_floats_once(function: Any, dtype: str) -> None:
    x = wf.tensor(np.linspace(-5.97, 5.99, 301).astype(np.float32)).astype(dtype)
    expected = function(x.astype("float32")).astype(dtype).numpy()
    np.testing.assert_array_equal(function(x).numpy(), expected)
    compiled = wf.jit(function)(x).numpy().astype(np.float64)
    np.testing.assert_allclose(compiled, expected.astype(np.float64), rtol=2**-7, atol=1e-6)


def test_the_slope_of_logit_is_infinite_at_its_ends() -> None:
    assert wf.grad(lambda x: wf.logit(x).sum())(wf.tensor([0.0, 0.5, 1.0])).tolist() == [
        INF,
        4.0,
        INF,
    ]
