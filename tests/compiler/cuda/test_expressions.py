"""Scalar expressions of epilogues: how exact their functions are, and what has no instructions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.compiler.cuda.epilogues_by_numpy import Array, evaluate_expression

from weft.compiler.targets.cuda.products.expressions import expand_expression, instruction_count
from weft.core.dtypes import bfloat16, float32, float64
from weft.core.errors import Unsupported
from weft.ir import scalars
from weft.ir.scalars import Scalar, cast, local

_X = local("x", bfloat16)
_WIDE = cast(_X, float32)


def _numbers() -> Array:
    """bfloat16 of both signs and all sizes up to 11, as float32."""
    line = np.linspace(-11, 11, 3001)
    small = np.logspace(-30, 1, 600)
    found: Array = np.concatenate([line, small, -small]).astype(bfloat16.numpy).astype(np.float32)
    return found


def _gelu(x: Scalar) -> Scalar:
    return x * (scalars.erfc(x * -math.sqrt(0.5)) * 0.5)


def _gelu_derivative(x: Scalar) -> Scalar:
    """As autodiff writes it."""
    part = x * -math.sqrt(0.5)
    bell = scalars.exp(-(part * part)) * (-2 / math.sqrt(math.pi))
    return scalars.erfc(part) * 0.5 + x * 0.5 * bell * -math.sqrt(0.5)


def _exact_gelu(x: float) -> float:
    return x * 0.5 * math.erfc(-x * math.sqrt(0.5))


def _exact_derivative(x: float) -> float:
    bell = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return 0.5 * math.erfc(-x * math.sqrt(0.5)) + x * bell


@pytest.mark.parametrize(
    ("function", "exact", "limit"),
    [(_gelu, _exact_gelu, 2.0**-16), (scalars.erfc, math.erfc, 2.0**-15),
     (scalars.exp, math.exp, 2.0**-19), (scalars.tanh, math.tanh, 2.0**-20)],
    ids=["gelu", "erfc", "exp", "tanh"],
)  # fmt: skip
def test_functions_that_are_rounded_next_have_small_relative_errors(
    function: Callable[[Scalar], Scalar], exact: Callable[[float], float], limit: float
) -> None:
    x = _numbers()
    found = evaluate_expression(expand_expression(cast(function(_WIDE), bfloat16)), {"x": x})
    wanted = np.array([exact(float(each)) for each in x])
    there = np.abs(wanted) > 2.0**-120  # smaller numbers are taken for 0
    errors = np.abs(found[there] / wanted[there] - 1)
    assert errors.max() < limit


def test_a_derivative_that_crosses_zero_has_a_small_absolute_error() -> None:
    x = _numbers()
    expression = expand_expression(cast(_gelu_derivative(_WIDE), bfloat16))
    wanted = np.array([_exact_derivative(float(each)) for each in x])
    assert np.abs(evaluate_expression(expression, {"x": x}) - wanted).max() < 2.0**-21


def test_infinity_and_nan_stay_what_they_are() -> None:
    expression = expand_expression(cast(_gelu(_WIDE), bfloat16))
    x = np.array([np.inf, np.nan, 0.0, -200.0], np.float32)
    found = evaluate_expression(expression, {"x": x})
    np.testing.assert_array_equal(found, [np.inf, np.nan, 0.0, 0.0])


def test_the_power_in_erfc_and_the_one_beside_it_are_one() -> None:
    expression = expand_expression(cast(_gelu_derivative(_WIDE), bfloat16))
    powers = [x for x in scalars.nodes_in_order(expression) if x.op == "power_of_two"]
    assert len(powers) == 1
    assert instruction_count(expression) <= 34


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (cast(scalars.log(_WIDE), float64), "not f64"),
        (cast(scalars.lgamma(_WIDE), bfloat16), "no cast of f64"),
        (scalars.less(_WIDE, 0.0), "bool"),
    ],
)
def test_what_has_no_instructions_is_refused_with_the_reason(x: Scalar, reason: str) -> None:
    with pytest.raises(Unsupported) as caught:
        expand_expression(x)
    assert reason in caught.value.reason


def test_large_and_tiny_constants_are_multiplied_where_they_stand() -> None:
    huge = local("y", float32) * 1e-30
    product = expand_expression(cast(huge * local("x", float32), bfloat16))
    values = {"x": np.float32([1e30]), "y": np.float32([1e30])}
    assert np.isfinite(evaluate_expression(product, values)).all()
