"""Where new tensors are made: the option `device=` of functions that make them.

>>> import weft as wf
>>> wf.zeros(3, device="cpu").device
device('cpu')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from weft.core.arrays import CONCRETE, can_compute_on, move
from weft.core.devices import CPU, Device, as_device
from weft.core.errors import UnsupportedError
from weft.core.settings import settings
from weft.ir.constants import call_beside, operands_device
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply
from weft.ir.kinds import Movement
from weft.ir.primitive import Primitive, Sample
from weft.ir.tape import Leaf
from weft.ir.tensor import Tensor, constants_on, traces, wrap
from weft.ops import movement_reads as reads

__all__ = ["default_device"]

Parameters = ParamSpec("Parameters")

transfer: Primitive = Primitive(
    "transfer",
    "The same elements in the memory of another device.",
    kind=Movement(reads.of_identity),
    type_rule=lambda x, device, source: x,
    reference=lambda x, device, source: move(x, as_device(device)),
    derivatives=[
        linear(lambda ct, x, device, source: apply(transfer, ct, device=source, source=device))
    ],
    batch=lambda size, operands, axes, **params: (apply(transfer, *operands, **params), axes[0]),
    samples=lambda: [
        Sample((np.linspace(-1, 1, 6, dtype=np.float32),), {"device": "cpu", "source": "cpu"})
    ],
    impure=True,
)


def to_device(x: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """The tensor on a device: itself where it is there already, else a copy (Array API).

    The derivative goes back over the same way.
    """
    target = as_device(device)
    if x.device == target:
        return x
    if not may_move(target):
        raise UnsupportedError(
            "to",
            f"a program for {traces.recording[-1].device} has no part on another device here",
            expected="a move outside of loops, branches and checkpoints, to a device that computes",
            got={"x": f"{x.type} on {x.device}", "device": target},
            fix=f'move the arguments before the call, or the results after it: y.to("{target}")',
        )
    return apply(transfer, x, device=str(target), source=str(x.device))


def may_move(target: Device) -> bool:
    """Whether what is being traced, if anything is, may have a part on a device."""
    traced = traces.recording
    return not traced or (can_compute_on(target) and all(each.spans_devices for each in traced))


def takes_device(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Give a function that makes a tensor on the host its option `device`.

    The function itself need not look at it: what it makes is moved. Without the option a tensor is
    made beside the tensors that the function is given, else where constants are made in a
    function of the library, else on the default device.
    """
    return _with_device(f, is_made_there=lambda is_asked, operands: False)


def fills_device(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """The same for a function that makes a tensor of one value: on the device itself."""
    return _with_device(f, is_made_there=lambda is_asked, operands: True)


def draws_on_device(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """The same for a function that draws numbers: on the device itself, where one is named.

    A program for each size is compiled for that. On the default device layers begin, each with
    sizes of its own: their weights are drawn on the host, and moved. So is what is drawn with
    parameters of the host.
    """

    def is_made_there(is_asked: bool, operands: Sequence[Any]) -> bool:
        return is_asked and not any(map(_is_of_host, operands))

    return _with_device(f, is_made_there=is_made_there)


def _is_of_host(value: Any) -> bool:
    """Whether a value is an array of the host, or a tensor there."""
    return isinstance(value, np.ndarray) or (isinstance(value, Tensor) and value.device is CPU)


def _with_device(
    f: Callable[Parameters, Tensor], *, is_made_there: Callable[[bool, Sequence[Any]], bool]
) -> Callable[Parameters, Tensor]:
    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        wanted = kwargs.pop("device", None)
        if wanted is None:
            if (len(CONCRETE) == 1 and settings.device == "cpu") or traces.recording:
                return f(*args, **kwargs)
            operands = [
                value
                for name, value in kwargs.items()
                if name != "key" or (isinstance(value, Tensor) and value.device is not CPU)
            ]
            if operands_device((*args, *operands)) is not None:
                return call_beside(f, args, kwargs)
        device = default_device_here() if wanted is None else as_device(wanted)
        given = (*args, *[value for name, value in kwargs.items() if name != "key"])
        place = filled_place(device) if is_made_there(wanted is not None, given) else CPU
        with constants_on(None if traces.recording else place):
            made = f(*args, **kwargs)
        if place is not CPU and made.device is place:
            return made
        return on_device(made, device, is_asked=wanted is not None)

    return function


def filled_place(device: Device) -> Device:
    """Where such a tensor is made that is to be on a device: there, if that computes."""
    return device if can_compute_on(device) and not traces.recording else CPU


class default_device:  # noqa: N801  a context manager, called as a function is
    """Make new tensors on a device where none is named: from now on, or inside a `with` block.

    A call by itself is for all threads, a block for its own. Tensors that exist stay where they
    are, and what is computed of them is beside them.

    >>> import weft as wf
    >>> with wf.default_device("cpu"):
    ...     x = wf.zeros(3)
    >>> x.device
    device('cpu')
    """

    __slots__ = ("_block", "_device", "_outside")

    def __init__(self, device: Any) -> None:
        self._device, self._outside = as_device(device), settings.device
        settings.device = str(self._device)

    def __enter__(self) -> Device:
        settings.device = self._outside
        self._block = settings.changed(device=str(self._device))
        self._block.__enter__()
        return self._device

    def __exit__(self, *raised: object) -> None:
        self._block.__exit__(None, None, None)


def default_device_here() -> Device:
    """Where a tensor is made that names no device."""
    return traces.device or as_device(None)


def on_device(made: Tensor, device: Device, *, is_asked: bool) -> Tensor:
    """A tensor that was made on the host, on a device; what is traced is where its trace is."""
    if traces.recording:
        if not is_asked or made.device == device:
            return made
        if not may_move(device):
            raise _elsewhere_in_trace(traces.recording[-1].device, device)
        return to_device(made, device)
    is_given_there = made.device is not CPU and not is_asked
    if made.device == device or is_given_there:
        return made
    if type(made._node) is not Leaf:
        return to_device(made, device)
    moved = wrap(move(made._value, device))
    moved._node = Leaf(moved)
    return moved


def _elsewhere_in_trace(traced: Device, wanted: Device) -> UnsupportedError:
    return UnsupportedError(
        "device",
        f"a program for {traced} makes no tensors on {wanted} here",
        expected=f"device='{traced}', or none",
        got={"device": wanted},
        fix="leave device= out: in a compiled function tensors are where its arguments are",
    )
