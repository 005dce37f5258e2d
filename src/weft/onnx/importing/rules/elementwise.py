"""Operators on each element: arithmetic, comparison, logic, functions of one number."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import weft as wf
from weft.onnx.importing.reading import element_of
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call
from weft.onnx.importing.values import Narrow, round_to_narrow

Tensor = wf.Tensor
Unary = Callable[[Tensor], Tensor]


def _enter_unary(name: str, function: Unary) -> None:
    rule(name)(lambda call, x: function(x))


for _name, _function in {
    "Abs": wf.abs, "Acos": wf.acos, "Acosh": wf.acosh, "Asin": wf.asin, "Asinh": wf.asinh,
    "Atan": wf.atan, "Atanh": wf.atanh, "Ceil": wf.ceil, "Cos": wf.cos, "Cosh": wf.cosh,
    "Erf": wf.erf, "Exp": wf.exp, "Floor": wf.floor, "Log": wf.log, "Neg": wf.negative,
    "Reciprocal": wf.reciprocal, "Relu": wf.relu, "Round": wf.round, "Sigmoid": wf.sigmoid,
    "Sign": wf.sign, "Sin": wf.sin, "Sinh": wf.sinh, "Softplus": wf.softplus, "Sqrt": wf.sqrt,
    "Tan": wf.tan, "Tanh": wf.tanh, "Not": wf.logical_not, "IsNaN": wf.isnan,
    "BitwiseNot": wf.bitwise_invert, "Mish": lambda x: x * wf.tanh(wf.softplus(x)),
    "Softsign": lambda x: x / (1 + wf.abs(x)),
    "HardSwish": lambda x: x * wf.clip(x / 6 + 0.5, 0.0, 1.0),
}.items():  # fmt: skip
    _enter_unary(_name, _function)


@rule("Identity", narrow=True)
def identity(call: Call, x: Any) -> Any:
    """The value itself, of any kind."""
    return x


# --- two operands --------------------------------------------------------------------------------


def align(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The second operand as the oldest versions broadcast it: along an axis of the first."""
    if not call.get("broadcast") or y.ndim == x.ndim:
        return y
    axis = call.get("axis", x.ndim - y.ndim)
    axis = axis + x.ndim if axis < 0 else axis
    return y.reshape((*y.shape, *[1] * (x.ndim - axis - y.ndim)))


def _enter_binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    rule(name)(lambda call, x, y: function(x, align(call, x, y)))


def divide(x: Tensor, y: Tensor) -> Tensor:
    """The quotient; of integers it is cut towards zero."""
    if x.dtype.is_floating:
        return x / y
    quotient = wf.floor_divide(x, y)
    if x.dtype.kind == "unsigned":
        return quotient
    inexact = wf.not_equal(quotient * y, x)
    return quotient + wf.logical_and(inexact, wf.not_equal(x < 0, y < 0)).astype(x.dtype)


for _name, _binary in {
    "Add": wf.add, "Sub": wf.subtract, "Mul": wf.multiply, "Div": divide, "Equal": wf.equal,
    "Greater": wf.greater, "GreaterOrEqual": wf.greater_equal, "Less": wf.less,
    "LessOrEqual": wf.less_equal, "And": wf.logical_and, "Or": wf.logical_or,
    "Xor": wf.logical_xor, "BitwiseAnd": wf.bitwise_and, "BitwiseOr": wf.bitwise_or,
    "BitwiseXor": wf.bitwise_xor,
}.items():  # fmt: skip
    _enter_binary(_name, _binary)


@rule("Pow")
def power(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The power, in the element type of the base."""
    y = align(call, x, y)
    if x.dtype.is_floating:
        return wf.pow(x, y.astype(x.dtype))
    if y.dtype.is_floating:
        return wf.pow(x.astype(y.dtype), y).astype(x.dtype)
    return wf.pow(x, y.astype(x.dtype))


@rule("Mod")
def modulo(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The remainder, with the sign of the divisor, or with `fmod` that of the dividend."""
    return wf.fmod(x, y) if call["fmod"] else wf.remainder(x, y)


@rule("BitShift")
def shift_bits(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Bits moved to the left or to the right."""
    left = call["direction"] == "LEFT"
    return wf.bitwise_left_shift(x, y) if left else wf.bitwise_right_shift(x, y)


def _enter_chain(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    rule(name)(lambda call, *xs: reduce(function, xs))


for _name, _binary in {"Max": wf.maximum, "Min": wf.minimum, "Sum": wf.add}.items():
    _enter_chain(_name, _binary)


@rule("Mean")
def mean_of_inputs(call: Call, *xs: Tensor) -> Tensor:
    """The mean of tensors."""
    return reduce(wf.add, xs) / len(xs)


@rule("Where")
def where(call: Call, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Elements of one tensor or the other."""
    return wf.where(condition, x, y)


@rule("IsInf")
def is_infinite(call: Call, x: Tensor) -> Tensor:
    """Whether elements are infinite, of either sign or of one."""
    positive = wf.isposinf(x) if call["detect_positive"] else wf.zeros(x.shape, dtype="bool")
    return wf.logical_or(positive, wf.isneginf(x)) if call["detect_negative"] else positive


# --- conversion ----------------------------------------------------------------------------------


def convert(call: Call, x: Any, code: int) -> Any:
    """Numbers in another element type, narrow ones included."""
    element = element_of(code, str(call.node))
    source = x.tensor if isinstance(x, Narrow) else x
    if element.is_tensor_type:
        return source.astype(element.name)
    if isinstance(x, Narrow) and x.element is element:
        return x
    return round_to_narrow(source, element, bool(call.get("saturate", 1)))


@rule("Cast", narrow=True)
def cast(call: Call, x: Any) -> Any:
    """Elements in the type that the attribute `to` names."""
    return convert(call, x, _code_of(call["to"]))


def _code_of(to: Any) -> int:
    """The code of an element type, which the oldest versions give by name."""
    names = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7,
             "STRING": 8, "BOOL": 9, "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12,
             "UINT64": 13}  # fmt: skip
    return names[to] if isinstance(to, str) else int(to)


@rule("CastLike", narrow=True)
def cast_like(call: Call, x: Any, target: Any) -> Any:
    """Elements in the type of another value."""
    if isinstance(target, Narrow):
        return round_to_narrow(
            x.tensor if isinstance(x, Narrow) else x,
            target.element,
            bool(call.get("saturate", 1)),
        )
    return (x.tensor if isinstance(x, Narrow) else x).astype(target.dtype)


# --- activations ---------------------------------------------------------------------------------


@rule("Clip")
def clip_by_attributes(call: Call, x: Tensor) -> Tensor:
    """Elements between two bounds that are attributes."""
    return _clip(x, call.get("min"), call.get("max"))


@rule("Clip", since=11)
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Elements between two bounds that are values."""
    return _clip(x, low, high)


def _clip(x: Tensor, low: Any, high: Any) -> Tensor:
    x = x if low is None else wf.maximum(x, low)
    return x if high is None else wf.minimum(x, high)


@rule("Elu")
def elu(call: Call, x: Tensor) -> Any:
    """x where it is positive, else alpha (exp x - 1)."""
    return wf.nn.functional.elu(x, call["alpha"])


@rule("Selu")
def selu(call: Call, x: Tensor) -> Any:
    """A scaled exponential unit."""
    return call["gamma"] * wf.nn.functional.elu(x, call["alpha"])


@rule("Celu")
def celu(call: Call, x: Tensor) -> Any:
    """A continuously differentiable exponential unit."""
    return wf.nn.functional.celu(x, call["alpha"])


@rule("LeakyRelu")
def leaky_relu(call: Call, x: Tensor) -> Any:
    """x where it is positive, else alpha x."""
    return wf.nn.functional.leaky_relu(x, call["alpha"])


@rule("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    """x where it is not negative, else slope x."""
    if call.version < 7 and slope.ndim == 1 and slope.shape[0] != 1 and x.ndim > 1:
        slope = slope.reshape((slope.shape[0], *[1] * (x.ndim - 2)))
    return wf.where(x < 0, slope * x, x)


@rule("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Tensor:
    """x where it is above alpha, else zero."""
    return wf.where(x > call["alpha"], x, 0.0)


@rule("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    """A line between zero and one."""
    return wf.clip(call["alpha"] * x + call["beta"], 0.0, 1.0)


@rule("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    """Elements moved towards zero by the bias; those within lambda of it become zero."""
    bias, edge = call["bias"], call["lambd"]
    wide = x if x.dtype.is_floating else x.astype("float32")
    moved = wf.where(wide < -edge, wide + bias, wf.where(wide > edge, wide - bias, 0.0))
    return moved.astype(x.dtype)


@rule("Gelu")
def gelu(call: Call, x: Tensor) -> Any:
    """The Gaussian error linear unit."""
    return wf.nn.functional.gelu(x, call["approximate"])


# --- along an axis -------------------------------------------------------------------------------


def _over_later_axes(
    function: Callable[[Tensor, int], Tensor],
) -> Callable[[Call, Tensor], Tensor]:
    """A function along an axis, as the older versions mean it: over all later axes together."""

    def of_rows(call: Call, x: Tensor) -> Tensor:
        axis = call["axis"] % max(x.ndim, 1)
        rows = x.reshape((*x.shape[:axis], math.prod(x.shape[axis:], start=1)))
        return function(rows, -1).reshape(x.shape)

    return of_rows


def _hardmax(x: Tensor, axis: int) -> Tensor:
    places = wf.argmax(x, axis=axis, keepdims=True)
    shape: list[Any] = [1] * x.ndim
    shape[axis] = x.shape[axis]
    numbers = wf.arange(x.shape[axis]).reshape(tuple(shape))
    return wf.equal(numbers, places).astype(x.dtype)


def _enter_along_axis(name: str, function: Callable[[Tensor, int], Tensor]) -> None:
    rule(name)(_over_later_axes(function))
    rule(name, since=13)(lambda call, x: function(x, call["axis"]))


for _name, _along in {
    "Softmax": lambda x, axis: wf.softmax(x, axis=axis),
    "LogSoftmax": lambda x, axis: wf.log_softmax(x, axis=axis),
    "Hardmax": _hardmax,
}.items():
    _enter_along_axis(_name, _along)
