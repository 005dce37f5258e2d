"""Where new tensors are made: the option `device=` of functions that make them.

>>> import weft as wf
>>> wf.zeros(3, device="cpu").device
device('cpu')
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from weft.core.arrays import is_concrete, move
from weft.core.devices import CPU, Device, as_device
from weft.core.errors import UnsupportedError
from weft.core.settings import settings
from weft.ir.tape import Leaf
from weft.ir.tensor import Tensor, constants_on, traces, wrap

__all__: list[str] = []

Parameters = ParamSpec("Parameters")


def takes_device(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Give a function that makes a tensor on the host its option `device`.

    The function itself need not look at it: what it makes is moved. Without the option a tensor is
    made where constants are made in a rule of the library, else on the default device; one that
    is given a tensor stays where that is.
    """

    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        wanted = kwargs.pop("device", None)
        is_given = wanted is None and bool(args) and isinstance(args[0], Tensor)
        if is_given or (wanted is None and settings.device == "cpu" and traces.device is CPU):
            return f(*args, **kwargs)
        device = as_device(wanted) if wanted is not None else default_device_here()
        with constants_on(CPU):
            made = f(*args, **kwargs)
        return on_device(made, device, is_asked=wanted is not None)

    return function


def default_device_here() -> Device:
    """Where a tensor is made that names no device."""
    return traces.device if traces.device is not CPU else as_device(None)


def on_device(made: Tensor, device: Device, *, is_asked: bool) -> Tensor:
    """A tensor that was made on the host, on a device; what is traced is where its trace is."""
    if is_concrete(made._value):
        if made.device == device:
            return made
        moved = wrap(move(made._value, device))
        if type(made._node) is Leaf:
            moved._node = Leaf(moved)
        return moved
    if is_asked and made.device != device:
        raise UnsupportedError(
            "device",
            f"a program for {made.device} makes no tensors on {device}",
            expected=f"device='{made.device}', or none",
            got={"device": device},
            fix="leave device= out: in a compiled function tensors are where its arguments are",
        )
    return made
