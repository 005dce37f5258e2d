"""Where constants are made: beside the tensors of the call that needs them.

A function that needs a mask, a count or zeros makes them of nothing but a shape. On which device is
said by `constants_on`, which functions of operands enter by `beside_operands`; where nothing
says, constants are made in the host's memory, and tensors that a user makes on the default device.
While the host is the only device that was asked for, there is nothing to say.

>>> import weft as wf
>>> wf.tril(wf.ones((2, 2), device="cpu")).device
device('cpu')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from weft.core.arrays import CONCRETE, HostArray, move
from weft.core.devices import CPU, Device
from weft.ir.tensor import Tensor, constants_on, traces, wrap

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def beside_operands(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Mark a function of tensors that makes constants: they are made on the tensors' device."""

    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return f(*args, **kwargs) if len(CONCRETE) == 1 else call_beside(f, args, kwargs)

    return function


def call_beside(f: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    """Call a function; the constants that it makes are on the device of its tensors."""
    if len(CONCRETE) == 1:
        return f(*args, **kwargs)
    device = operands_device((*args, *kwargs.values()))
    if device is None or device is traces.device:
        return f(*args, **kwargs)
    with constants_on(device):
        return f(*args, **kwargs)


def operands_device(values: Iterable[Any]) -> Device | None:
    """The device of the tensors among some values, of which the host's may be single numbers.

    None where no values are tensors, or where a trace records all that is done, so that constants
    are part of its program.
    """
    if traces.recording:
        return None
    device: Device | None = None
    for value in values:
        if isinstance(value, Tensor):
            device = value.device
        elif isinstance(value, (list, tuple)):
            device = operands_device(value) or device
        elif isinstance(value, dict):
            device = operands_device(value.values()) or device
        if device is not None and device is not CPU:
            return device
    return device


def place_beside(x: Tensor, other: Tensor) -> Tensor:
    """A tensor that was read from a list or an index, on the device of the one it is used with."""
    if len(CONCRETE) == 1 or type(x._value) is not HostArray:
        return x
    device = other.device
    return x if device is CPU or traces.recording else wrap(move(x._value, device), x._node)
