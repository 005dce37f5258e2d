"""Scalar functions that epilogues apply to float32 in registers.

A function takes the kernel and its arguments and returns the register of its result. `register`
adds one under a name; everything that describes an epilogue speaks of names alone.

>>> from weft.compiler.targets.cuda.ptx_writer import Kernel
>>> kernel = Kernel("example", [], threads=32)
>>> x = kernel.variable("f32", 1.0)
>>> scalar_function("add", 2)(kernel, x, x).kind
'f32'
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.compiler.targets.cuda.ptx_writer import Kernel, Value
from weft.core.errors import NameUnknownError

__all__ = ["ScalarFunction", "register", "scalar_function"]

ScalarFunction = Callable[..., Value]

_FUNCTIONS: dict[tuple[str, int], ScalarFunction] = {}


def register(name: str, arguments: int) -> Callable[[ScalarFunction], ScalarFunction]:
    """Make a function of so many float32 known to epilogues under a name."""

    def add(function: ScalarFunction) -> ScalarFunction:
        _FUNCTIONS[name, arguments] = function
        return function

    return add


def scalar_function(name: str, arguments: int) -> ScalarFunction:
    """The function of that name and number of arguments."""
    if (name, arguments) not in _FUNCTIONS:
        known = sorted(each for each, count in _FUNCTIONS if count == arguments)
        raise NameUnknownError(
            "epilogue",
            f"no scalar function of {arguments} arguments has this name",
            expected=", ".join(known),
            got={"name": name},
            fix="register it: weft.compiler.targets.cuda.products.functions.register",
        )
    return _FUNCTIONS[name, arguments]


@register("add", 2)
def _add(kernel: Kernel, x: Value, y: Value) -> Value:
    return x + y


@register("subtract", 2)
def _subtract(kernel: Kernel, x: Value, y: Value) -> Value:
    return x - y


@register("multiply", 2)
def _multiply(kernel: Kernel, x: Value, y: Value) -> Value:
    return x * y


@register("relu", 1)
def _relu(kernel: Kernel, x: Value) -> Value:
    return x.maximum(0.0)


@register("relu_derivative", 2)
def _relu_derivative(kernel: Kernel, cotangent: Value, x: Value) -> Value:
    return kernel.select(x > 0.0, cotangent, 0.0, "f32")


def _exponential(kernel: Kernel, x: Value) -> Value:
    """eˣ through the machine's 2ˣ, with a relative error near 2⁻²²."""
    return kernel.let("f32", "ex2.approx.ftz.f32", x * math.log2(math.e))


def _reciprocal(kernel: Kernel, x: Value) -> Value:
    return kernel.let("f32", "rcp.approx.ftz.f32", x)


@register("sigmoid", 1)
def _sigmoid(kernel: Kernel, x: Value) -> Value:
    return _reciprocal(kernel, _exponential(kernel, x * -1.0) + 1.0)


@register("silu", 1)
def _silu(kernel: Kernel, x: Value) -> Value:
    return x * _sigmoid(kernel, x)


# GELU with tanh: x σ(2 z), z = √(2/π) (x + 0.044715 x³). Written with σ, small results far to the
# left keep their relative accuracy, which 1 + tanh z loses.
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = _LINEAR * 0.044715


def _gelu_weight(kernel: Kernel, square: Value, x: Value) -> Value:
    """σ(2 z): the factor of x in GELU."""
    scale = -math.log2(math.e)
    exponent = x * kernel.fma(square, _CUBIC * scale, _LINEAR * scale)
    return _reciprocal(kernel, kernel.let("f32", "ex2.approx.ftz.f32", exponent) + 1.0)


@register("gelu_tanh", 1)
def _gelu_tanh(kernel: Kernel, x: Value) -> Value:
    return x * _gelu_weight(kernel, x * x, x)


@register("gelu_tanh_derivative", 2)
def _gelu_tanh_derivative(kernel: Kernel, cotangent: Value, x: Value) -> Value:
    # s + x s (1 - s) (2 z)'
    square = x * x
    weight = _gelu_weight(kernel, square, x)
    slope = x * kernel.fma(square, 3 * _CUBIC, _LINEAR)
    rest = kernel.fma(weight, weight * -1.0, weight)
    return cotangent * kernel.fma(rest, slope, weight)


def _normal_tail(kernel: Kernel, x: Value) -> tuple[Value, Value]:
    """Φ(x) and e^(-x²/2), by formula 7.1.26 of Abramowitz and Stegun (error 1.5e-7)."""
    absolute = kernel.let("f32", "abs.f32", x)
    step = _reciprocal(kernel, kernel.fma(absolute, 0.3275911 / math.sqrt(2), 1.0))
    sum_ = kernel.fma(step, 1.061405429, -1.453152027)
    for coefficient in (1.421413741, -0.284496736, 0.254829592):
        sum_ = kernel.fma(sum_, step, coefficient)
    bell = _exponential(kernel, x * x * -0.5)
    tail = sum_ * step * bell * 0.5  # Φ(-|x|)
    return kernel.select(x > 0.0, kernel.fma(tail, -1.0, 1.0), tail, "f32"), bell


@register("gelu_erf", 1)
def _gelu_erf(kernel: Kernel, x: Value) -> Value:
    return x * _normal_tail(kernel, x)[0]


@register("gelu_erf_derivative", 2)
def _gelu_erf_derivative(kernel: Kernel, cotangent: Value, x: Value) -> Value:
    below, bell = _normal_tail(kernel, x)
    return cotangent * kernel.fma(x * bell, 1 / math.sqrt(2 * math.pi), below)
