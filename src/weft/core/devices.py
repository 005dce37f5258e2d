"""Where a tensor's memory is.

>>> from weft.core.devices import as_device
>>> as_device("cpu")
device('cpu')
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Device:
    """A place for memory and work, named like `cpu`."""

    kind: str

    def __str__(self) -> str:
        return self.kind

    def __repr__(self) -> str:
        return f"device('{self.kind}')"


CPU = Device("cpu")


def as_device(value: object) -> Device:
    """The device that a device or its name stands for; None is the default device."""
    if value is None or (isinstance(value, (str, Device)) and str(value) == "cpu"):
        return CPU
    raise DeviceError(
        "device",
        "no such device here",
        expected="'cpu'",
        got={"device": value},
        fix="leave device= out, or pass device='cpu'",
    )
