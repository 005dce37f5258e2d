"""Quantised operators: numbers as integers with a scale and a zero point.

Integer products are sums of integers, exact in int32; they are computed in that type.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import weft as wf
from weft.onnx.importing.reading import ELEMENTS, element_of
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.integer_products import Quantised, from_zero_point, remember
from weft.onnx.importing.rules.movement import whole_axis
from weft.onnx.importing.rules.windows import convolve
from weft.onnx.importing.running import Call
from weft.onnx.importing.values import Narrow, round_to_narrow

Tensor = wf.Tensor
_UINT8 = 2


def _broadcast_scale(value: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point to broadcast with a value: one number, one per slice, or per block."""
    if value.ndim == 0 or (value.ndim == 1 and value.shape[0] == 1):
        return value.reshape(())
    if value.ndim == 1:
        place = whole_axis(axis, x.ndim)
        return value.reshape((-1, *[1] * (x.ndim - place - 1)))
    if not block:
        return value
    place = whole_axis(axis, x.ndim)
    repeated = wf.repeat(value, block, axis=place)
    return repeated[(*[slice(None)] * place, slice(0, x.shape[place]))]


def _carrier(value: Any) -> Any:
    return value.tensor if isinstance(value, Narrow) else value


def quantize(x: Tensor, scale: Tensor, zero: Any, element: Any, saturate: bool = True) -> Any:
    """The nearest numbers of an integer or narrow type, in units of the scale."""
    steps = x / scale
    if element.name.startswith("float"):
        shift = _carrier(zero)
        steps = steps if shift is None else steps + shift.astype(steps.dtype)
        return round_to_narrow(steps, element, saturate)
    form = _limits(element)
    steps = wf.round(steps)
    offset = _carrier(zero)
    steps = steps if offset is None else steps + offset.astype(steps.dtype)
    limited = wf.clip(steps, float(form.min), float(form.max))
    if element.is_tensor_type:
        return limited.astype(element.name)
    return Narrow(element, limited.astype("int8" if form.min < 0 else "uint8"))


def _limits(element: Any) -> Any:
    """The smallest and largest number of an integer type."""
    if element.is_tensor_type:
        return np.iinfo(element.numpy)
    return ml_dtypes.iinfo(element.numpy)  # type: ignore[no-untyped-call]


@rule("QuantizeLinear", narrow=True)
def quantize_linear(call: Call, x: Tensor, scale: Tensor, zero: Any = None) -> Any:
    """Numbers as integers: round(x / scale) + zero point, within the type."""
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    code = call.get("output_dtype") or _UINT8
    if isinstance(zero, Narrow):
        element = zero.element
    elif zero is not None:
        element = _element_named(zero.dtype.name)
    else:
        element = element_of(code, str(call.node))
    wide = x if x.dtype.is_floating else x.astype("float32")
    factor = _broadcast_scale(scale, x, axis, block).astype(wide.dtype)
    offset = None if zero is None else _broadcast_scale(_carrier(zero), x, axis, block)
    return quantize(wide, factor, offset, element, bool(call.get("saturate", 1)))


def _element_named(name: str) -> Any:
    return next(each for each in ELEMENTS.values() if each.name == name)


@rule("DequantizeLinear", narrow=True)
def dequantize_linear(call: Call, x: Any, scale: Tensor, zero: Any = None) -> Any:
    """Integers as numbers: (x - zero point) * scale."""
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    source = _carrier(x)
    wide = source.astype("float32")
    if zero is not None:
        wide = wide - _broadcast_scale(_carrier(zero), source, axis, block).astype("float32")
    factor = _broadcast_scale(scale, source, axis, block)
    result = (wide * factor.astype("float32")).astype(scale.dtype)
    if not block and scale.ndim <= 1 and not isinstance(x, Narrow):
        place = 0 if scale.ndim == 0 or scale.shape[0] == 1 else whole_axis(axis, source.ndim)
        remember(call, result, Quantised(source, scale, zero, place))
    return result


@rule("DynamicQuantizeLinear")
def dynamic_quantize(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers as uint8 over the range they have, with zero in it."""
    low = wf.minimum(wf.min(x), 0.0)
    high = wf.maximum(wf.max(x), 0.0)
    scale = (high - low) / 255.0
    safe = wf.where(wf.equal(scale, 0), 1.0, scale)
    zero = wf.clip(wf.round(-low / safe), 0.0, 255.0)
    numbers = wf.clip(wf.round(x / safe) + zero, 0.0, 255.0)
    return numbers.astype("uint8"), scale, zero.astype("uint8")


@rule("MatMulInteger")
def matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """The product of integer matrices, counted from their zero points."""
    return wf.matmul(from_zero_point(a, a_zero, a.ndim - 2), from_zero_point(b, b_zero, b.ndim - 1))


@rule("ConvInteger")
def conv_integer(
    call: Call, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Any:
    """The convolution of integers, counted from their zero points."""
    return _whole_convolution(call, from_zero_point(x, x_zero, 1), from_zero_point(w, w_zero, 0))


def _whole_convolution(call: Call, x: Tensor, w: Tensor) -> Any:
    """A convolution of whole numbers, exact in float64."""
    return convolve(call, x.astype("float64"), w.astype("float64"), None).astype("int32")


def _requantize(total: Tensor, scale: Tensor, y_scale: Tensor, y_zero: Any) -> Any:
    element = y_zero.element if isinstance(y_zero, Narrow) else _element_named(y_zero.dtype.name)
    numbers = total.astype("float32") * scale.astype("float32")
    return quantize(numbers, y_scale.astype("float32"), y_zero, element)


@rule("QLinearMatMul", narrow=True)
def qlinear_matmul(
    call: Call, a: Tensor, a_scale: Tensor, a_zero: Any, b: Tensor, b_scale: Tensor, b_zero: Any,
    y_scale: Tensor, y_zero: Any,
) -> Any:  # fmt: skip
    """The product of quantised matrices, quantised."""
    if any(isinstance(each, Narrow) for each in (a, b)):
        numbers = [
            (_carrier(x).astype("float32") - _carrier(z).astype("float32")) for x, z in
            ((a, a_zero), (b, b_zero))
        ]  # fmt: skip
        total = wf.matmul(*numbers)
    else:
        total = wf.matmul(
            from_zero_point(a, a_zero, a.ndim - 2), from_zero_point(b, b_zero, b.ndim - 1)
        )
    return _requantize(total, a_scale * b_scale, y_scale, y_zero)


@rule("QLinearConv")
def qlinear_conv(
    call: Call, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor,
    w_zero: Tensor, y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None,
) -> Any:  # fmt: skip
    """The convolution of quantised values, quantised."""
    total = _whole_convolution(call, from_zero_point(x, x_zero, 1), from_zero_point(w, w_zero, 0))
    spread = [1] * (x.ndim - 2)
    if bias is not None:
        total = total + bias.astype("int32").reshape((-1, *spread))
    scale = x_scale.reshape(()) * (
        w_scale.reshape((-1, *spread)) if w_scale.ndim and w_scale.shape[0] != 1
        else w_scale.reshape(())
    )  # fmt: skip
    return _requantize(total, scale, y_scale.reshape(()), y_zero.reshape(()))
