"""Products of values that were quantised: sums of integers, with one factor behind them.

A file in the QDQ form has `DequantizeLinear` in front of a product. What it came from is kept in
mind, so that the product is one of integers: its sums are exact, and the float32 values in front of
it are not computed in a compiled program, since nothing reads them. Convolutions are those of whole
numbers in float32, or products of integers where each pixel is on its own. Where a sum might not be
exact, or scales differ along the terms, the product is that of the float32 values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import weft as wf
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
LARGEST = {"int8": 255, "uint8": 255}
"""The largest distance of a number from its zero point, by its type."""
EXACT_FLOAT32, EXACT_INT32 = 1 << 24, 1 << 31
"""Below this, sums of whole numbers are exact."""


@dataclass(frozen=True, eq=False)
class Quantised:
    """What a tensor was dequantised from."""

    numbers: Tensor
    scale: Tensor
    zero: Tensor | None
    axis: int
    """Along which scales differ, if they do."""

    @property
    def is_even(self) -> bool:
        """Whether one scale is for all."""
        return self.scale.ndim == 0 or self.scale.shape == (1,)

    def transpose(self) -> Quantised:
        """The same of the transposed matrix."""
        return Quantised(self.numbers.T, self.scale, self.zero, 1 - self.axis)


def remember(call: Call, result: Tensor, origin: Quantised) -> None:
    """Note what a tensor was dequantised from, as long as this call of the module lasts."""
    if origin.numbers.dtype.name in LARGEST and result.dtype is wf.float32:
        call.scope.session.origins[id(result)] = (ref(result), origin)


def origin_of(call: Call, value: Any) -> Quantised | None:
    """What a tensor was dequantised from; None of any other."""
    known = call.scope.session.origins.get(id(value))
    return None if known is None or known[0]() is not value else known[1]


def from_zero_point(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Integers in int32, counted from their zero point."""
    wide = x.astype("int32")
    if zero is None:
        return wide
    offset = zero.astype("int32")
    if offset.ndim == 1 and offset.shape[0] != 1:
        shape: list[Any] = [1] * x.ndim
        shape[axis] = offset.shape[0]
        offset = offset.reshape(tuple(shape))
    elif offset.ndim == 1:
        offset = offset.reshape(())
    return wide - offset


def _are_exact(terms: Any, a: Quantised, b: Quantised, below: int) -> bool:
    """Whether sums of so many products are exact."""
    if not isinstance(terms, int):
        return False
    return terms * LARGEST[a.numbers.dtype.name] * LARGEST[b.numbers.dtype.name] < below


def integer_matmul(a: Quantised | None, b: Quantised | None) -> Tensor | None:
    """The product of two quantised values, as float32; None where it is none of integers."""
    if a is None or b is None or not a.is_even or a.numbers.ndim < 2 or b.numbers.ndim < 2:
        return None
    by_columns = b.numbers.ndim == 2 and b.axis in (1, -1)
    if not (b.is_even or by_columns):
        return None
    if not _are_exact(a.numbers.shape[-1], a, b, EXACT_INT32):
        return None
    total = wf.matmul(
        from_zero_point(a.numbers, a.zero, a.axis), from_zero_point(b.numbers, b.zero, b.axis)
    )
    factor = b.scale.reshape(()) if b.is_even else b.scale
    return total.astype("float32") * (a.scale.reshape(()) * factor)


def integer_convolution(
    call: Call, x: Quantised | None, weight: Quantised | None, convolve: Any
) -> Tensor | None:
    """The convolution of two quantised values, as float32; None where it is none of integers."""
    if x is None or weight is None or not x.is_even or not (weight.is_even or weight.axis == 0):
        return None
    pixels, filters = (from_zero_point(each.numbers, each.zero, 0) for each in (x, weight))
    sizes = weight.numbers.shape
    if not all(isinstance(size, int) for size in sizes):
        return None
    total: Tensor
    terms, spread = math.prod(int(size) for size in sizes[1:]), [1] * (len(sizes) - 2)
    if _are_exact(terms, x, weight, EXACT_FLOAT32):
        total = convolve(call, pixels.astype("float32"), filters.astype("float32"), None)
    elif _is_by_pixel(call, sizes) and _are_exact(terms, x, weight, EXACT_INT32):
        flat = pixels.reshape((*pixels.shape[:2], math.prod(pixels.shape[2:], start=1)))
        product = wf.matmul(filters.reshape(tuple(sizes[:2])), flat)  # [N, M, pixels]
        total = product.reshape((pixels.shape[0], sizes[0], *pixels.shape[2:])).astype("float32")
    else:
        return None
    factor = weight.scale.reshape(()) if weight.is_even else weight.scale.reshape((-1, *spread))
    return total * (x.scale.reshape(()) * factor)


def _is_by_pixel(call: Call, sizes: Sequence[Any]) -> bool:
    """Whether each pixel is multiplied on its own: a window of one, without steps or padding."""
    plain = all(size == 1 for size in sizes[2:]) and call["group"] == 1
    steps = [*(call.get("strides") or []), *(call.get("dilations") or [])]
    no_pads = not any(call.get("pads") or []) and call.get("auto_pad", "NOTSET") != "SAME"
    return plain and all(step == 1 for step in steps) and no_pads
