"""Where new tensors are made: the option `device=` of functions that make them.

>>> import weft as wf
>>> wf.zeros(3, device="cpu").device
device('cpu')
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from weft.core.arrays import CONCRETE, is_concrete, move
from weft.core.devices import CPU, Device, as_device
from weft.core.errors import UnsupportedError
from weft.core.settings import settings
from weft.ir.constants import call_beside, operands_device
from weft.ir.tape import Leaf
from weft.ir.tensor import Tensor, constants_on, traces, wrap

__all__: list[str] = []

Parameters = ParamSpec("Parameters")


def takes_device(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Give a function that makes a tensor on the host its option `device`.

    The function itself need not look at it: what it makes is moved. Without the option a tensor is
    made beside the tensors that the function is given, else where constants are made in a
    function of the library, else on the default device.
    """

    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        wanted = kwargs.pop("device", None)
        if wanted is None:
            if (len(CONCRETE) == 1 and settings.device == "cpu") or traces.recording:
                return f(*args, **kwargs)
            operands = [value for name, value in kwargs.items() if name != "key"]
            if operands_device((*args, *operands)) is not None:
                return call_beside(f, args, kwargs)
        device = default_device_here() if wanted is None else as_device(wanted)
        with constants_on(None if traces.recording else CPU):
            made = f(*args, **kwargs)
        return on_device(made, device, is_asked=wanted is not None)

    return function


def default_device_here() -> Device:
    """Where a tensor is made that names no device."""
    return traces.device or as_device(None)


def on_device(made: Tensor, device: Device, *, is_asked: bool) -> Tensor:
    """A tensor that was made on the host, on a device; what is traced is where its trace is."""
    if traces.recording:
        if is_asked and traces.recording[-1].device != device:
            raise _elsewhere_in_trace(traces.recording[-1].device, device)
        return made
    is_given_there = made.device is not CPU and not is_asked
    if made.device == device or is_given_there:
        return made
    if not is_concrete(made._value):
        raise _elsewhere_in_trace(made.device, device)
    moved = wrap(move(made._value, device))
    if type(made._node) is Leaf:
        moved._node = Leaf(moved)
    return moved


def _elsewhere_in_trace(traced: Device, wanted: Device) -> UnsupportedError:
    return UnsupportedError(
        "device",
        f"a program for {traced} makes no tensors on {wanted}",
        expected=f"device='{traced}', or none",
        got={"device": wanted},
        fix="leave device= out: in a compiled function tensors are where its arguments are",
    )
