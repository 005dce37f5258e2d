"""Python numbers beside tensors as arrays: operands of a program, and no part of its code.

A learning rate, a slope, the start of a slice: where such a number is part of a program, each new
value is a program of its own. As an array without axes it is read when the program runs. On other
devices than the host a number is copied once, and found again by its value.

>>> import numpy as np
>>> from weft.core.devices import CPU
>>> number_array(0.1, np.dtype("float32"), CPU)
array(0.1, dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

import numpy as np

from weft.core.arrays import CONCRETE, HostArray, can_compute_on, device_of, move
from weft.core.devices import CPU, Device
from weft.core.dtypes import BY_NUMPY
from weft.ir.tensor import Tensor, wrap

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call, by position and by name."""

MOST_NUMBERS = 4096
"""How many numbers are kept on other devices before all are forgotten."""
BLOCK, ROW = 1024, 16
"""Whole numbers from 0 on come in blocks, of which each number is a part: so a counter is copied
once in so many calls. Parts begin 16 bytes apart, where kernels may read vectors."""
_kept: dict[tuple[Any, ...], Any] = {}


def number_array(value: float, dtype: np.dtype[Any], device: Device) -> Any:
    """A number as an array without axes on a device, which nobody writes to."""
    if device is CPU:
        return _host_number(value, dtype)
    is_wide = dtype.itemsize == 8 and can_compute_on(device)
    if is_wide and type(value) is int and value >= 0:
        return counted_part(
            value, (dtype,), lambda numbers: _numbers_in_rows(numbers.astype(dtype)), device
        )
    text = value if value and value == value else repr(value)  # two zeros, and NaN
    return _kept_array((device, dtype, text), lambda: _host_number(value, dtype), device)


def counted_part(
    number: int,
    key: tuple[Any, ...],
    make: Callable[[HostArray[Any, Any]], HostArray[Any, Any]],
    device: Device,
    shape: tuple[int, ...] = (),
) -> Any:
    """What belongs to a whole number from 0 on, on a device that computes: a part of a block.

    make: the rows of a block, given its numbers in uint64; a row is 16 bytes and begins with what
    is asked for, in that shape. key: what rows depend on beside the number.
    """
    block, place = divmod(number, BLOCK)
    first = block * BLOCK

    def rows() -> HostArray[Any, Any]:
        return make(np.array(first, np.uint64) + np.arange(BLOCK, dtype=np.uint64))

    held = _kept_array((device, "block", *key, block), rows, device)
    return held.part_at(place * ROW, held.kind.with_shape(shape))


def kept_array(array: Any, device: Device) -> Any:
    """A small array, such as a key, on a device: copied once, and found again by its bytes."""
    if type(array) is not HostArray or device is CPU:
        return move(array, device)
    key = device, array.dtype, array.shape, array.tobytes()
    return _kept_array(key, lambda: array, device)


def _kept_array(key: tuple[Any, ...], make: Callable[[], Any], device: Device) -> Any:
    known = _kept.get(key)
    if known is None:
        if len(_kept) >= MOST_NUMBERS:
            _kept.clear()
        known = _kept[key] = move(make(), device)
    return known


def _numbers_in_rows(numbers: HostArray[Any, Any]) -> HostArray[Any, Any]:
    """Numbers of 8 bytes, each at the beginning of a row."""
    return np.repeat(numbers, ROW // numbers.itemsize).reshape(len(numbers), -1)


def _host_number(value: float, dtype: np.dtype[Any]) -> HostArray[Any, Any]:
    with np.errstate(all="ignore"):  # a number that the dtype does not reach
        return np.array(value, dtype)


def number_reader(
    f: Callable[..., Any], names: Sequence[str], is_large: Callable[[float], bool]
) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    """What gives the arguments of a call with some Python floats as tensors beside the others.

    They get the dtype of the tensors, as they do where one is computed with a float. Where these
    have several dtypes, are traced or not large by their elements, arguments stay as they are.
    """
    code = unwrap(f).__code__
    places = [(code.co_varnames.index(name), name) for name in names]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        given = [(place, name) for place, name in places if _is_float(args, kwargs, place, name)]
        first = _common_array(args, kwargs) if given else None
        if first is None or (type(first) is HostArray and not is_large(first.size)):
            return args, kwargs
        dtype, device = first.dtype, device_of(first)
        ordered, named = [*args], dict(kwargs)
        for place, name in given:
            values: Any = (ordered, place) if place < len(args) else (named, name)
            holder, key = values
            holder[key] = wrap(number_array(holder[key], dtype, device))
        return tuple(ordered), named

    return read


def _is_float(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> bool:
    return type(args[place] if place < len(args) else kwargs.get(name)) is float


def _common_array(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An array of the tensors of a call; None where a number beside them has no one dtype.

    None, too, where no program runs the call, as tensors are traced.
    """
    first: Any = None
    for value in (*args, *kwargs.values()):
        if type(value) is Tensor:
            array = value._value
            if type(array) not in CONCRETE or (first is not None and array.dtype != first.dtype):
                return None
            first = array if first is None or array.size > first.size else first
    return first if first is not None and BY_NUMPY[first.dtype].is_inexact else None
