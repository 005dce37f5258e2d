"""The elementary functions of cards, run on the CPU: rounding, and special numbers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.compiler.targets.cpu.engine import call_kernel, compile_kernels, load_text
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cuda import mathematics
from weft.compiler.targets.cuda.library import BY_HAND, FUNCTIONS, definitions
from weft.compiler.targets.cuda.machine import card
from weft.core.dtypes import bfloat16, float32
from weft.ir.loops import For, Kernel, Store
from weft.ir.scalars import (
    Buffer,
    Scalar,
    cast,
    exp,
    exp2,
    index,
    local,
    node,
    nodes_in_order,
    size,
)

Array = np.ndarray[Any, Any]
Reference = Callable[..., Any]
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 8.0, 1000.0, np.inf, -np.inf, np.nan, 1e308,
    -1e308, 5e-324, 1e-310, -1e-310,
]  # fmt: skip


def python(function: Callable[[float], float]) -> Reference:
    """A function of Python's floats: infinite where it overflows or has a pole."""

    def one(x: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return math.nan if math.isnan(x) else math.inf

    return np.vectorize(one, otypes=[np.float64])


REFERENCES: dict[str, tuple[Reference, float]] = {
    "exp": (np.exp, 1), "exp2": (np.exp2, 1), "expm1": (np.expm1, 3), "log": (np.log, 1),
    "log2": (np.log2, 2), "log10": (np.log10, 2), "log1p": (np.log1p, 2), "sin": (np.sin, 2),
    "cos": (np.cos, 2), "tan": (np.tan, 4), "asin": (np.arcsin, 2), "acos": (np.arccos, 2),
    "atan": (np.arctan, 1), "sinh": (np.sinh, 4), "cosh": (np.cosh, 3), "tanh": (np.tanh, 2),
    "asinh": (np.arcsinh, 2), "acosh": (np.arccosh, 2), "atanh": (np.arctanh, 3),
    "cbrt": (np.cbrt, 4), "erf": (python(math.erf), 1), "erfc": (python(math.erfc), 4),
    "atan2": (np.arctan2, 2), "hypot": (np.hypot, 2), "pow": (np.power, 6), "fmod": (np.fmod, 0),
}  # fmt: skip
"""What each function of float64 is compared with, and within how many units in the last place."""
BINARY = {"atan2", "hypot", "pow", "fmod"}


def native(name: str) -> Callable[..., float]:
    """A function of the library, compiled for this CPU."""
    count = 2 if name in BINARY else 1
    given = ", ".join(f"double %a{k}" for k in range(count))
    text = [f'target triple = "{host().triple}"', *definitions([name], card())]
    text.append(f"define double @entry({given}) {{ %r = call double @{name}({given})")
    address = load_text("\n".join([*text, "ret double %r }"]), "entry")
    return ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_double] * count)(address)


def operands(name: str) -> Array:
    """Numbers of all sizes, and where the function is interesting."""
    random = np.random.default_rng(len(name))
    parts = [
        random.normal(size=400),
        random.normal(size=400) * 10.0 ** random.integers(-12, 12, 400),
    ]
    if name in ("asin", "acos", "atanh"):
        parts.append(random.uniform(-1, 1, 800))
    if name == "acosh":
        parts += [1 + random.uniform(0, 5, 400), 1 + 10.0 ** random.uniform(-12, 0, 400)]
    if name in ("sin", "cos", "tan"):
        parts.append(random.normal(size=800) * 10.0 ** random.integers(5, 300, 800))
    if name in ("log", "log2", "log10", "log1p", "cbrt"):
        parts.append(10.0 ** random.uniform(-300, 300, 400))
    if name in ("exp", "exp2", "expm1", "sinh", "cosh"):
        parts.append(random.uniform(-1080, 1080, 800))
    if name in ("erf", "erfc", "lgamma"):
        parts.append(random.uniform(-7, 30, 800))
    return np.concatenate([*parts, SPECIAL])


def same_special(got: Array, expected: Array) -> None:
    """NaNs, infinities and the signs of zeros agree."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


def units(got: Array, expected: Array, kind: type) -> float:
    """The greatest difference, in units in the last place."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(expected.astype(kind)) & np.isfinite(got)
    step = np.spacing(np.abs(expected[finite]).astype(kind)).astype(np.float64)
    away = np.abs(got[finite].astype(np.float64) - expected[finite]) / step
    return float(away.max(initial=0.0))


def test_every_function_of_the_library_is_compared() -> None:
    assert {*FUNCTIONS, *BY_HAND} == {*REFERENCES, "lgamma", "reduced_rest", "reduced_quadrant"}


@pytest.mark.parametrize("name", REFERENCES)
def test_functions_of_float64_are_within_a_few_units(name: str) -> None:
    function, (reference, limit) = native(name), REFERENCES[name]
    x = operands(name)
    given = [x, np.random.default_rng(1).permutation(x)] if name in BINARY else [x]
    with np.errstate(all="ignore"):
        expected = reference(*given)
    got = np.array([function(*each) for each in zip(*given, strict=True)])
    same_special(got, expected)
    assert units(got, expected, np.float64) <= limit


def test_lgamma_is_within_a_few_units_of_1_and_of_itself() -> None:
    x = operands("lgamma")
    with np.errstate(all="ignore"):
        expected = python(math.lgamma)(x)
    function = native("lgamma")
    got = np.array([function(each) for each in x])
    same_special(got, expected)
    finite = np.isfinite(expected)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=2e-14, atol=4e-15)


def on_the_cpu(x: Scalar) -> Scalar:
    """An expression with the CPU's instructions in place of the card's own."""
    done: dict[Scalar, Scalar] = {}
    for each in nodes_in_order(x):
        args = tuple(done[arg] for arg in each.args)
        if each.op == "power_of_two":
            done[each] = exp2(args[0])
        elif each.op == "reciprocal":
            done[each] = 1.0 / args[0]
        else:
            done[each] = node(each.op, each.dtype, args, each.detail)
    return done[x]


def values_of(rule: Callable[[Scalar], Scalar], x: Array) -> Array:
    """An expression of float32 for many numbers."""
    source, target, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
    store = Store(target, i, on_the_cpu(rule(source[i])))
    kernel = Kernel(
        "f", (source, target), ("n",), (For(i, size("n"), (store,), "parallel vector"),)
    )
    found = np.zeros_like(x)
    call_kernel(compile_kernels([kernel])["f"], [x, found], [len(x)], 0, len(x))
    return found


def numbers() -> Array:
    random = np.random.default_rng(3)
    parts = [random.normal(size=20000) * 3, random.uniform(-105, 92, 20000)]
    parts += [random.normal(size=10000) * 10.0 ** random.integers(-8, 2, 10000)]
    parts += [np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 88.7, 88.8, -103.9, -87.5, 10.1])]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "reference", "limit"),
    [
        ("exp", np.exp, 1.5),
        ("tanh", np.tanh, 2),
        ("erf", python(math.erf), 1.5),
        ("erfc", python(math.erfc), 3),
    ],
)
def test_functions_of_float32_are_within_a_few_units(
    name: str, reference: Reference, limit: float
) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64))
    got = values_of(mathematics.SINGLE[name], x)
    with np.errstate(all="ignore"):
        same_special(got, expected.astype(np.float32))
    assert units(got, expected, np.float32) <= limit


@pytest.mark.parametrize(("name", "reference"), [("exp", np.exp), ("erfc", python(math.erfc))])
def test_short_functions_are_within_a_fraction_of_16_bit_rounding(
    name: str, reference: Reference
) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64))
    got = values_of(mathematics.SHORT[name], x).astype(np.float64)
    normal = np.isfinite(expected) & (np.abs(expected) > 2.0**-125) & (expected < 2.0**127)
    np.testing.assert_allclose(got[normal], expected[normal], rtol=2.0**-15)


def test_only_what_is_rounded_next_is_short() -> None:
    x, y = local("x", float32), local("y", float32)
    expand = mathematics.DeviceExpander()
    rounded = expand(cast(exp(x) * y, bfloat16))
    added = expand(cast(exp(x) + y, bfloat16))
    assert len(nodes_in_order(rounded)) < 10
    assert len(nodes_in_order(added)) > 15
