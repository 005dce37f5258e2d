"""Arrays: the values that tensors hold while nothing is traced, each in the memory of a device.

A tensor's value is an array, or what a transform traces in its place. Two questions are asked of
it, and each is answered here alone:

- `is_concrete(value)`: is the value there, on whatever device, and not traced?
- `is_host(value)`: is it a NumPy array, so that NumPy and Python may read its memory now?

Where each nanosecond counts, `type(value) in CONCRETE` and `type(value) is HostArray` ask the same
without a call. A device other than the host brings a class of arrays of its own (`add_device`),
whose objects are then concrete everywhere.

>>> import numpy as np
>>> is_concrete(np.ones(3)), is_concrete("traced"), device_of(np.ones(3))
(True, False, device('cpu'))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np

from weft.core.devices import CPU, DEVICES, Device
from weft.core.errors import DeviceError


class Array(Protocol):
    """What every concrete value has. It is never written to after it was made."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, as NumPy names it."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""

    @property
    def device(self) -> Any:
        """Where its memory is: a `Device`, but text in NumPy's arrays, so ask `device_of`."""


class DeviceArray(Array, Protocol):
    """An array in memory that the host cannot read."""

    @property
    def kind(self) -> Any:
        """Its device, dtype and shape as one object, which equal ones share; None for no such."""

    def to_host(self) -> np.ndarray[Any, Any]:
        """A copy of the elements in the host's memory."""


class Exchange(Protocol):
    """How memory of a device is shared with other libraries; see the module that implements it."""

    def export_array(
        self,
        array: Any,
        stream: Any,
        max_version: tuple[int, int] | None,
        copy: bool | None,
        /,
    ) -> Any:
        """A DLPack capsule of an array."""

    def array_interface(self, array: Any, /) -> dict[str, Any] | None:
        """What `__cuda_array_interface__` says of an array; None where it cannot be said."""

    def import_array(self, obj: Any, ordinal: int, /) -> DeviceArray:
        """An array on the memory of what speaks DLPack."""

    def import_interface(self, obj: Any, /) -> DeviceArray:
        """An array on the memory of what has `__cuda_array_interface__`."""


EXCHANGES: dict[str, Exchange] = {}
"""By the family of devices, such as `cuda`: how their memory is shared."""
HostArray = np.ndarray
"""The class of arrays in the host's memory; a subclass of it is none."""
CONCRETE: set[type] = {HostArray}
"""The classes of values that are there: arrays of every device, and nothing that is traced."""
_FROM_HOST: dict[Device, tuple[type, Callable[[np.ndarray[Any, Any]], DeviceArray]]] = {}
"""For each other device its class of arrays, and what copies an array of the host to it."""
Fill = Callable[[np.dtype[Any], tuple[int, ...], Any], DeviceArray | None]
"""Makes an array of one value, given dtype, shape and value; None where it cannot."""
_FILLS: dict[Device, Fill] = {}
"""For devices that have it, what makes arrays of one value there."""


_COMPUTING = {CPU}
"""The devices that there is a target for."""
ON_COMPUTING: list[Callable[[Device], None]] = []
"""What is told of each device that comes to be known and has a target."""


def is_concrete(value: object) -> TypeGuard[Array]:
    """Whether a tensor has a value, on any device, instead of being traced."""
    return type(value) in CONCRETE


def is_host(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether a tensor's value is in memory that NumPy and Python read."""
    return type(value) is HostArray


def device_of(value: Any) -> Device:
    """The device of a tensor's value; a traced one knows where it will be computed."""
    if type(value) is HostArray:
        return CPU
    device: Device = value.device
    return device


def add_device(
    device: Device,
    array_class: type,
    from_host: Callable[[np.ndarray[Any, Any]], DeviceArray],
    *,
    computing: bool = False,
    fill: Fill | None = None,
) -> None:
    """Make a device known: its name, its class of arrays, and how an array is copied to it.

    computing: there is a target that computes on it. fill: see `filled_array`.
    """
    DEVICES[device.kind] = device
    CONCRETE.add(array_class)
    _FROM_HOST[device] = array_class, from_host
    if fill is not None:
        _FILLS[device] = fill
    if computing and device not in _COMPUTING:
        _COMPUTING.add(device)
        for tell in ON_COMPUTING:
            tell(device)


def computing_devices() -> list[Device]:
    """The devices that there is a target for and that were asked for, by name."""
    return sorted(_COMPUTING, key=str)


def can_compute_on(device: Device) -> bool:
    """Whether there is a target that computes on a device."""
    return device in _COMPUTING


def remove_device(device: Device) -> None:
    """Forget a device that was added; its arrays are values no more."""
    del DEVICES[device.kind]
    _COMPUTING.discard(device)
    CONCRETE.discard(_FROM_HOST.pop(device)[0])
    _FILLS.pop(device, None)


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """The elements in the host's memory: the array itself, or a copy."""
    if type(array) is HostArray:
        return array
    copy: np.ndarray[Any, Any] = array.to_host()
    return copy


def move(array: Any, device: Device) -> Array:
    """The elements in the memory of a device: the array itself where it is there already."""
    if device_of(array) == device:
        moved_array: Array = array
        return moved_array
    host = to_host(array)
    return host if device == CPU else _FROM_HOST[device][1](host)


def filled_array(
    device: Device, dtype: np.dtype[Any], shape: tuple[int, ...], value: Any
) -> DeviceArray | None:
    """An array of one value, made in the memory of a device; None where it has no way to."""
    fill = _FILLS.get(device)
    return None if fill is None else fill(dtype, shape, value)


def check_one_device(op: str, operands: Sequence[Any]) -> None:
    """Refuse tensors that are not all on one device; one number of the host fits beside any."""
    places = {device_of(each._value) for each in operands if each.shape or not is_host(each._value)}
    if len(places) < 2:
        return
    placed = [
        operand.device if operand.shape or not is_host(operand._value) else None
        for operand in operands
    ]
    raise different_devices(op, operands, placed)


def different_devices(
    op: str, operands: Sequence[Any], places: Sequence[Device | None]
) -> DeviceError:
    """The error for operands on several devices; one that fits beside any has no place."""
    named = [
        (f"x{place + 1}", operand, device)
        for place, (operand, device) in enumerate(zip(operands, places, strict=True))
        if device is not None
    ]
    first = named[0][2]
    other = next(name for name, _, device in named if device != first)
    return DeviceError(
        op,
        "the operands are on different devices",
        expected="all operands on one device",
        got={name: f"{operand.type} on {device}" for name, operand, device in named},
        fix=f'move one of them first: {other}.to("{first}")',
    )


def not_on_host(op: str, tensor: Any) -> DeviceError:
    """The error for a tensor of another device, where its elements are read in place."""
    return DeviceError(
        op,
        f"the elements are in the memory of {tensor.device}, which the host cannot read",
        expected="a tensor on the CPU",
        got={"x": f"{tensor.type} on {tensor.device}"},
        fix='copy it first: x.to("cpu")',
    )
