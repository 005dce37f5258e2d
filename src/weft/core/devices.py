"""Where a tensor's memory is.

>>> from weft.core.devices import as_device
>>> as_device("cpu")
device('cpu')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from weft.core.errors import DeviceError
from weft.core.settings import settings


class Device:
    """A place for memory and work, named like `cpu` or `cuda:0`.

    There is one object for each name, so that devices are compared quickly.
    """

    __slots__ = ("kind",)
    kind: str
    _known: ClassVar[dict[str, Device]] = {}

    def __new__(cls, kind: str) -> Device:
        """The device of a name."""
        known = cls._known.get(kind)
        if known is None:
            known = super().__new__(cls)
            object.__setattr__(known, "kind", kind)
            known = cls._known.setdefault(kind, known)
        return known

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a device has no {name} to be set")

    def __reduce__(self) -> tuple[type[Device], tuple[str]]:
        return Device, (self.kind,)

    def __str__(self) -> str:
        return self.kind

    def __repr__(self) -> str:
        return f"device('{self.kind}')"

    @property
    def family(self) -> str:
        """What kind of machine it is: `cuda` for `cuda:1`."""
        return self.kind.partition(":")[0]

    @property
    def index(self) -> int:
        """Which one of its kind: 1 for `cuda:1`."""
        return int(self.kind.partition(":")[2] or 0)


CPU = Device("cpu")
DEVICES: dict[str, Device] = {"cpu": CPU}
"""The devices that are known, by name; `arrays.add_device` adds one."""
FINDERS: dict[str, Callable[[str], Device]] = {}
"""What finds a device by its name when it is first asked for, by the name up to a colon; it adds
the device, or raises an error that says why there is none."""
_SHORT_NAMES: dict[str, str] = {}
"""Names by which devices were asked for, such as `cuda`, with their own, `cuda:0`."""
_FAMILIAR = frozenset(["cpu", "cuda", "gpu", "mps", "tpu"])
"""Names that are devices to users of other libraries, whether there is a target for them or not."""


def as_device(value: object) -> Device:
    """The device that a device or its name stands for; None is the default device."""
    if value is None:
        value = settings.device
    if isinstance(value, (str, Device)):
        name = str(value)
        device = DEVICES.get(_SHORT_NAMES.get(name, name))
        if device is not None:
            return device
        find = FINDERS.get(name.partition(":")[0])
        if find is not None:
            device = find(name)
            _SHORT_NAMES[name] = device.kind
            return device
    raise DeviceError(
        "device",
        "no such device here",
        expected=" or ".join(repr(name) for name in sorted({*DEVICES, *FINDERS})),
        got={"device": value},
        fix="leave device= out, or pass device='cpu'",
    )


def device(name: object) -> Device:
    """The device of a name; an error where there is no target that computes on it.

    >>> import weft as wf
    >>> wf.device("cpu") == wf.ones(3).device
    True
    """
    return as_device(name)


def is_device(value: object) -> bool:
    """Whether a value names a device, one that is not there too: a dtype has another name."""
    if isinstance(value, str):
        return value in DEVICES or value.split(":")[0] in _FAMILIAR
    return isinstance(value, Device)
