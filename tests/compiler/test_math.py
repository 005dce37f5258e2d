"""The elementary functions of the LLVM target against NumPy in double precision."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weft.compiler.targets.cpu import engine
from weft.compiler.targets.cpu.engine import call_kernel, compile_kernels
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.llvm.double_functions import ROUNDED
from weft.compiler.targets.llvm.elementary import DOUBLE, LIBRARY, SINGLE, Expander, lookup
from weft.compiler.targets.llvm.instructions import TABLE
from weft.core.dtypes import DType, float32, float64, int32
from weft.ir import scalars
from weft.ir.loops import For, Kernel, Store
from weft.ir.scalars import (
    INSTRUCTIONS,
    Buffer,
    Scalar,
    const,
    index,
    node,
    nodes_in_order,
    size,
)

Array = np.ndarray[Any, Any]

REFERENCE: dict[str, Callable[..., Array]] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": np.vectorize(math.erf, otypes="d"), "erfc": np.vectorize(math.erfc, otypes="d"),
    "lgamma": np.vectorize(INSTRUCTIONS["lgamma"].reference, otypes="d"),
}  # fmt: skip
UNARY = sorted(n for n in LIBRARY if INSTRUCTIONS[n].arity == 1)


def reference(name: str, *operands: Array) -> Array:
    function = REFERENCE.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        return np.asarray(function(*(x.astype(np.float64) for x in operands)))


def compiled(name: str, dtype: DType, width: int | None = None) -> Callable[..., Array]:
    arity = INSTRUCTIONS[name].arity
    inputs = [Buffer(f"x{k}", dtype) for k in range(arity)]
    out, i = Buffer("y", dtype, "write"), index("i")
    value: Scalar = getattr(scalars, name)(*(x[i] for x in inputs))
    body = (For(i, size("n"), (Store(out, i, value),), "parallel vector"),)
    address = compile_kernels([Kernel(name, (*inputs, out), ("n",), body)], width=width)[name]

    def run(*operands: Array) -> Array:
        result = np.zeros_like(operands[0])
        call_kernel(address, [*operands, result], [result.size], 0, result.size)
        return result

    return run


def ulps(got: Array, exact: Array) -> Array:
    """Errors in units of the last place; infinity where one is a NaN and the other is not."""
    kind = got.dtype.type
    with np.errstate(all="ignore"), warnings.catch_warnings():
        near = exact.astype(kind)
        unit = np.spacing(np.abs(near)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == near) | (np.isnan(got) & np.isnan(near))
    # beyond the greatest number: the exact value counts as the next power of two
    edge = (
        np.isfinite(got)
        & np.isinf(near)
        & (np.abs(exact) < 2.0 ** (128 if kind is np.float32 else 1023))
    )
    error = np.where(edge, 1.0, error)
    return np.where(
        same, np.minimum(np.nan_to_num(error, nan=0.0), 1.0), np.nan_to_num(error, nan=np.inf)
    )


def every(stride: int) -> Array:
    """Float32s of all magnitudes, both signs, and what is special."""
    bits = np.arange(0, 1 << 32, stride, dtype=np.uint64).astype(np.uint32)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 88.72283, -103.97, 1e-45], "f4"
    )
    near_one = np.nextafter(np.float32(1), np.float32(2)) ** np.arange(-50, 50, dtype=np.float32)
    return np.concatenate([bits.view(np.float32), special, near_one.astype(np.float32)])


def test_table_and_expansions_cover_the_vocabulary() -> None:
    assert set(TABLE) | set(LIBRARY) == set(INSTRUCTIONS)
    assert not set(TABLE) & set(LIBRARY)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNARY)
def test_float32_functions_are_within_one_and_a_half_ulp(name: str) -> None:
    x = every(4096 if name in SINGLE else 65537)
    error = ulps(compiled(name, float32)(x), reference(name, x))
    worst = int(np.argmax(error))
    assert error[worst] <= (1.5 if name in SINGLE else 0.51), f"{error[worst]} at {x[worst]!r}"


@pytest.mark.parametrize("name", ["exp", "exp2", "tanh", "log", "sin", "erf", "erfc", *ROUNDED])
def test_every_width_gives_the_same_bits(name: str) -> None:
    x = every(1000003)
    given = [x, x[::-1].copy()][: INSTRUCTIONS[name].arity]
    widest = compiled(name, float32)(*given)
    for width in (1, 2, 4, 8, 16):
        np.testing.assert_array_equal(compiled(name, float32, width)(*given), widest)


@pytest.mark.parametrize("name", ROUNDED)
def test_functions_that_are_computed_in_float64_call_nothing(name: str) -> None:
    operands = [scalars.local(f"x{k}", float32) for k in range(INSTRUCTIONS[name].arity)]
    expanded = Expander(half=True, single=SINGLE | ROUNDED)(getattr(scalars, name)(*operands))
    assert not any(each.op == "call" for each in nodes_in_order(expanded))


@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "erfc"])
def test_processors_without_permutations_give_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = every(1000003)
    here = compiled(name, float32)(x)
    monkeypatch.setattr(engine, "host", lambda width=None: replace(host(width), permuted=()))
    for width in (8, 16):
        np.testing.assert_array_equal(compiled(name, float32, width)(x), here)


@pytest.mark.parametrize(("name", "last"), [("erfc", 10.5), ("erf", 4.5), ("tanh", 10.0)])
def test_functions_in_pieces_are_within_their_bounds_where_they_vary(
    name: str, last: float
) -> None:
    start, stop = (int(np.float32(x).view(np.uint32)) for x in (2.0**-6, last))
    x = np.arange(start, stop, 601, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, -x])
    error = ulps(compiled(name, float32)(x), reference(name, x))
    worst = int(np.argmax(error))
    assert error[worst] <= (1.3 if name == "erfc" else 1.0), f"{error[worst]} at {x[worst]!r}"


@pytest.mark.parametrize(
    ("name", "scale", "last"), [("erfc", 1.48, 10.1), ("erf", 3.8, 3.94), ("tanh", 1.65, 9.05)]
)
def test_functions_in_pieces_are_continuous_where_pieces_meet(
    name: str, scale: float, last: float
) -> None:
    starts = [2.0**octave * (1 + quarter / 4) for octave in range(4) for quarter in range(4)]
    edges = np.array([*((start - 1) / scale for start in starts[1:]), last], "f4")
    steps = np.arange(-40, 41, dtype=np.int32)
    x = (edges.view(np.int32)[:, None] + steps).view("f4").ravel()
    for each in (x, -x):
        assert ulps(compiled(name, float32)(each), reference(name, each)).max() <= 1.3


def test_functions_in_pieces_end_at_their_limits() -> None:
    x = np.array([3.94, 9.05, 12, 1e10, 3e38, np.inf], "f4")
    for name, first in (("tanh", 1), ("erf", 0)):
        run = compiled(name, float32)
        np.testing.assert_array_equal(run(x[first:]), 1.0)
        np.testing.assert_array_equal(run(-x[first:]), -1.0)
        assert np.isnan(run(np.array([np.nan], "f4"))).all()


def applied(value: Callable[..., Scalar], width: int, *operands: Array) -> Array:
    """An expression of float32 for each element of arrays."""
    inputs = [
        Buffer(f"x{k}", int32 if x.dtype == np.int32 else float32) for k, x in enumerate(operands)
    ]
    out, i = Buffer("y", float32, "write"), index("i")
    body = (For(i, size("n"), (Store(out, i, value(*(x[i] for x in inputs))),), "parallel vector"),)
    address = compile_kernels([Kernel("k", (*inputs, out), ("n",), body)], width=width)["k"]
    result = np.zeros(operands[0].size, np.float32)
    call_kernel(address, [*operands, result], [result.size], 0, result.size)
    return result


@pytest.mark.parametrize("count", [8, 16])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_lookups_take_the_last_bits(width: int, count: int) -> None:
    table = tuple(float(np.float32(x)) for x in np.random.default_rng(0).normal(size=count))
    places = np.concatenate([np.arange(-37, 37), [-(2**31), 2**31 - 1, 1 << 21]]).astype(np.int32)
    got = applied(lambda place: lookup(table, place), width, places)
    np.testing.assert_array_equal(got, np.array(table, "f4")[places & (count - 1)])


def test_erfc_is_right_down_to_its_last_subnormal_number() -> None:
    x = np.linspace(9.0, 10.1, 20001).astype("f4")
    got, exact = compiled("erfc", float32)(x), reference("erfc", x)
    assert got[0] > 2.0**-126 > got[got > 0].min() == 2.0**-149
    assert ulps(got, exact).max() <= 1.3


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_scaling_rounds_once(width: int) -> None:
    random = np.random.default_rng(4)
    x = random.uniform(-2, 2, 5000).astype("f4")
    whole = random.integers(-160, 131, 5000).astype("f4")
    x[:5], whole[:5] = [0.0, -0.0, np.inf, np.nan, np.nan], [5, -5, -150, 3, np.nan]
    got = applied(lambda a, b: node("scale", float32, (a, b)), width, x, whole)
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) * 2.0 ** whole.astype(np.float64)).astype("f4")
    np.testing.assert_array_equal(got, exact)
    np.testing.assert_array_equal(np.signbit(got[:2]), [False, True])


def test_erfc_of_what_is_special() -> None:
    x = np.array([0.0, -0.0, 1e-45, np.inf, -np.inf, 3e38, -3e38, np.nan], "f4")
    expected = np.array([1, 1, 1, 0, 2, 0, 2, np.nan], "f4")
    np.testing.assert_array_equal(compiled("erfc", float32)(x), expected)


HALF_ROOT = math.sqrt(0.5)


def distribution(x: Scalar, sign: int) -> Scalar:
    return scalars.erfc(x * const(sign * HALF_ROOT, float32))


def bell(x: Scalar) -> Scalar:
    y = x * const(-HALF_ROOT, float32)
    return scalars.exp(-(y * y))


@pytest.mark.parametrize("sign", [1, -1])
def test_erfc_of_a_multiple_of_the_half_root_is_that_of_the_unrounded_product(sign: int) -> None:
    start, stop = (int(np.float32(x).view(np.uint32)) for x in (2.0**-20, 14.3))
    x = np.arange(start, stop, 1201, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, -x])
    got = applied(lambda value: distribution(value, sign), 8, x)
    exact = reference("erfc", x.astype(np.float64) * (sign * HALF_ROOT))
    assert 0 < got[got > 0].min() < 2.0**-126
    assert ulps(got, exact).max() <= 4.5


def test_the_bell_curve_is_within_2_ulp_and_ends_at_zero() -> None:
    x = np.linspace(-14.6, 14.6, 40001).astype("f4")
    exact = np.exp(-0.5 * x.astype(np.float64) ** 2)
    got = applied(bell, 8, x)
    assert ulps(got, exact).max() <= 2.0
    assert got[0] == got[-1] == 0.0 < got[got > 0].min() < 2.0**-126


def test_the_normal_distribution_of_what_is_special_and_in_every_width() -> None:
    special = np.array([0.0, -0.0, 1e-45, np.inf, -np.inf, 3e38, -3e38, np.nan], "f4")
    expected = np.array([1, 1, 1, 0, 2, 0, 2, np.nan], "f4")
    got = applied(lambda value: distribution(value, 1), 8, special)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(applied(bell, 8, special[3:]), [0, 0, 0, 0, np.nan])
    x = every(1000003)
    for value in (lambda each: distribution(each, -1), bell):
        widest = applied(value, 16, x)
        for width in (1, 2, 4, 8):
            np.testing.assert_array_equal(applied(value, width, x), widest)


@pytest.mark.parametrize("name", ["sin", "tan", "tanh", "sinh", "expm1", "log1p", "erf", "cbrt"])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_odd_functions_keep_the_sign_of_zero(name: str, dtype: DType) -> None:
    got = compiled(name, dtype)(np.array([0.0, -0.0] * 20, dtype.numpy))
    np.testing.assert_array_equal(got, 0.0)
    assert np.signbit(got).tolist() == [False, True] * 20


def test_power_is_within_2_ulp() -> None:
    random = np.random.default_rng(0)
    pool = every(65537 * 61)
    x = np.concatenate([random.choice(pool, 200_000), random.uniform(0, 4, 200_000).astype("f4")])
    y = np.concatenate(
        [random.choice(pool, 200_000), random.uniform(-60, 60, 200_000).astype("f4")]
    )
    with np.errstate(all="ignore"):
        y[::3] = np.round(y[::3])
    special = np.array(
        [0.0, -0.0, 1, -1, 2, -2, 3, 0.5, -0.5, np.inf, -np.inf, np.nan, -3, 1e38], "f4"
    )
    x = np.concatenate([x, np.repeat(special, special.size)])
    y = np.concatenate([y, np.tile(special, special.size)])
    error = ulps(compiled("power", float32)(x, y), reference("power", x, y))
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, f"{error[worst]} at {x[worst]!r} ** {y[worst]!r}"


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_fmod_is_exact_for_all_magnitudes_and_next_to_multiples(dtype: DType) -> None:
    """Quotients next to whole numbers, up to those that are called for; NaN and zeros, too."""
    rng, kind, bits = np.random.default_rng(0), dtype.numpy, f"u{dtype.itemsize}"
    digits = np.finfo(kind).nmant
    special = np.array(
        [0, -0.0, 1, -3, np.inf, -np.inf, np.nan, np.finfo(kind).smallest_subnormal, 2.0**digits,
         -np.finfo(kind).smallest_subnormal, np.finfo(kind).max, 2.0 ** (digits + 2)],
        kind,
    )  # fmt: skip
    others = [each.ravel() for each in np.meshgrid(special, special)]
    below = rng.normal(size=200_000).astype(kind)
    most = 2 ** (digits + 1)
    multiples = below * rng.integers(-most, most, below.size).astype(kind)
    nearby = [np.nextafter(multiples, kind.type(end)) for end in (-np.inf, np.inf)]
    any_bits = [
        rng.integers(0, np.iinfo(bits).max, 200_000, dtype=bits, endpoint=True).view(kind)
        for _ in range(2)
    ]
    x = np.concatenate([others[0], multiples, *nearby, any_bits[0]])
    y = np.concatenate([others[1], below, below, below, any_bits[1]])
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    is_nan = np.isnan(expected)
    for width in (1, 8, 16):
        found = compiled("fmod", dtype, width)(x, y)
        np.testing.assert_array_equal(np.isnan(found), is_nan)
        np.testing.assert_array_equal(found[~is_nan].view(bits), expected[~is_nan].view(bits))


@pytest.mark.parametrize("name", ["power", "atan2", "hypot"])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_functions_of_two_numbers(name: str, dtype: DType) -> None:
    random = np.random.default_rng(2)
    x, y = (np.abs(random.normal(size=3000) * 3).astype(dtype.numpy) for _ in range(2))
    assert ulps(compiled(name, dtype)(x, y), reference(name, x, y)).max() <= 1.01


@pytest.mark.parametrize("name", UNARY)
def test_float64_functions_are_within_4_ulp(name: str) -> None:
    random = np.random.default_rng(1)
    x = np.concatenate(
        [
            random.normal(size=2000) * 10.0 ** random.integers(-8, 3, 2000),
            [0.0, np.inf, np.nan, 1.0],
        ]
    )
    got, exact = compiled(name, float64)(x), reference(name, x)
    if name == "lgamma":  # Python's, which is the reference, is inexact itself
        np.testing.assert_allclose(got, exact, rtol=1e-13, atol=1e-13)
    else:
        assert ulps(got, exact).max() <= 4.0


@pytest.mark.parametrize("name", sorted(DOUBLE))
def test_float64_polynomials_are_within_4_ulp_at_all_magnitudes(name: str) -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 1 << 64, 100_000, dtype=np.uint64).view(np.float64)
    tiny = random.integers(0, 1 << 52, 1000, dtype=np.uint64).view(np.float64)
    edges = [-0.0, -np.inf, 709.78, 709.79, -708.5, -745.1, -745.2, 5e-324, 0.625, -0.625]
    x = np.concatenate(
        [bits, tiny, random.normal(size=100_000) * 2, random.uniform(-746, 710, 100_000), edges]
    )
    error = ulps(compiled(name, float64)(x), reference(name, x))
    worst = int(np.argmax(error))
    assert error[worst] <= 4.0, f"{error[worst]} at {x[worst]!r}"
