"""What flows between nodes: tensors, host arrays, sequences, and numbers of narrow types.

A host array (`np.ndarray`) is a value that is known while a program is traced; one of dtype object
holds sizes, of which some are symbols. A sequence is a list, an empty optional is None. `Narrow` is
a tensor whose numbers are those of a type that Weft does not compute in, such as float8 or int4,
carried by a wider one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import weft as wf
from weft.onnx.importing.reading import ELEMENTS, Array, Element

Value = Any


@dataclass(frozen=True, eq=False)
class Narrow:
    """Numbers of a narrow type in a tensor of float32, int8 or uint8, which holds them exactly."""

    element: Element
    tensor: wf.Tensor


def is_symbolic(value: Value) -> bool:
    """Whether a value is a host array of sizes with symbols among them."""
    return isinstance(value, np.ndarray) and value.dtype == object


def pack_sizes(sizes: Any) -> Array:
    """Sizes as a host array: of int64, unless some are symbols.

    >>> pack_sizes([2, 3]).dtype
    dtype('int64')
    """
    array = np.empty(np.shape(sizes), object)
    array[...] = sizes
    return tidy_sizes(array)


def tidy_sizes(sizes: Any) -> Array:
    """A host array as int64 where no symbol is left in it."""
    array: Array = np.asarray(sizes)
    if array.dtype == object and not any(isinstance(each, wf.Dim) for each in array.flat):
        kinds = {type(each) for each in array.flat}
        return array.astype(np.bool_ if kinds and kinds <= {bool, np.bool_} else np.int64)
    return array


def host_value(value: Value) -> Array | None:
    """The host array of a tensor that is known now; None of one that is traced."""
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value.detach().numpy())
    except wf.TraceError:
        return None


def as_tensor(value: Value) -> Value:
    """A host array as a tensor, or as narrow numbers; other values as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == object:
        return wf.stack([wf.full((), each, dtype="int64") for each in value.reshape(-1)]).reshape(
            value.shape
        )
    element = next((each for each in ELEMENTS.values() if each.numpy == value.dtype), None)
    if element is not None and not element.is_tensor_type:
        return Narrow(element, wf.asarray(value.astype(carrier_of(element))))
    return wf.asarray(value)


def carrier_of(element: Element) -> Any:
    """The NumPy type whose tensors carry the numbers of a narrow type."""
    return {"int4": np.int8, "uint4": np.uint8}.get(element.name, np.float32)


def narrow_array(value: Narrow) -> Array:
    """Narrow numbers as an array of their own type."""
    return np.asarray(value.tensor.detach().numpy()).astype(value.element.numpy)


# --- rounding to narrow types --------------------------------------------------------------------


def round_to_narrow(x: wf.Tensor, element: Element, saturate: bool = True) -> Narrow:
    """Numbers rounded to the nearest of a narrow type, ties to even."""
    if element.name in ("int4", "uint4"):
        return Narrow(element, _wrap_halves(x, element))
    info = ml_dtypes.finfo(element.numpy)  # type: ignore[no-untyped-call]
    wide = x.astype("float32")
    largest, fine = float(info.max), int(info.nmant)
    lowest = int(info.minexp)
    size = wf.abs(wide)
    # The exponent of each number, from its bits; what is below the smallest shares its spacing.
    exponent = wf.bitwise_right_shift(wf.bitcast(size, "int32"), 23) - 127
    exponent = wf.maximum(exponent, lowest)
    spacing = wf.exp2((exponent - fine).astype("float32"))
    rounded = wf.round(wide / spacing) * spacing
    is_inside = wf.abs(rounded) <= largest
    limit = wf.copysign(wf.full_like(wide, largest), wide)
    outside = limit if saturate else _overflow(wide, element)
    out = wf.where(is_inside, rounded, outside)
    empty = largest if element.name == "float4e2m1" else wide  # a type without NaN
    out = wf.where(wf.isnan(wide), empty, out)
    return Narrow(element, wf.stop_gradient(out))


def _overflow(x: wf.Tensor, element: Element) -> wf.Tensor:
    """What a number becomes that is too large: infinity where the type has one, else no number."""
    if element.name == "float8e5m2":
        return wf.copysign(wf.full_like(x, float("inf")), x)
    return wf.full_like(x, float("nan"))


def _wrap_halves(x: wf.Tensor, element: Element) -> Any:
    """Integers of which the lowest four bits are kept; other numbers are limited."""
    is_signed = element.name == "int4"
    least, most = (-8, 7) if is_signed else (0, 15)
    if x.dtype.is_floating:
        return wf.clip(wf.trunc(x), least, most).astype("int8" if is_signed else "uint8")
    bits = wf.bitwise_and(x.astype("int32"), 15)
    if is_signed:
        return wf.where(bits > most, bits - 16, bits).astype("int8")
    return bits.astype("uint8")
