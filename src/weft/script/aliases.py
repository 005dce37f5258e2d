"""Names for the same tensor: what `y = a` in a branch makes of y, for whoever writes to it.

In Python y is then the very object that a is. A branch or a loop that depends on a traced tensor
gives y a tensor of its own, so a write to one of them would not reach the other. Which tensors a
name may stand for is found here; writes to them are refused (`ir/parts.py`).

>>> import weft as wf
>>> @wf.script
... def larger(a, b):
...     y = a if a.sum() > b.sum() else b
...     y += 1
...     return y
>>> try:
...     wf.jit(larger)(wf.ones(2), wf.zeros(2))
... except wf.ArgumentError as error:
...     print(error.problem)
whether this is the same tensor as another one depends on a traced tensor
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from weft.core.locations import is_internal, user_frame
from weft.ir.tape import Leaf
from weft.ir.tensor import Tensor
from weft.script.regions import Slot

__all__: list[str] = []


def aliases(name: str, side: Any) -> list[Tensor]:
    """The tensors from outside that a name stands for itself on one side of a branch or loop.

    The name's own tensor from before is one of them only if something else holds it, too.
    """
    if isinstance(side, Slot):
        return side.outer_tensors()
    return [side] if isinstance(side, Tensor) and _is_held(side, name) else []


def _is_held(tensor: Tensor, name: str) -> bool:
    """Whether a parameter, or another variable of the functions that are running, is a tensor."""
    if type(tensor._node) is Leaf:
        return True
    frame = user_frame()
    scripted = None if frame is None else _function(frame)
    while frame is not None:
        if not is_internal(frame.f_code.co_filename):
            own = name if _function(frame) == scripted else None
            if any(tensor is each for each in _values_of_frame(frame, own)):
                return True
        frame = frame.f_back
    return False


def _function(frame: FrameType) -> tuple[str, str]:
    """The file and name that frames of a scripted function and of its parts share."""
    return frame.f_code.co_filename, frame.f_code.co_name


def _values_of_frame(frame: FrameType, own: str | None) -> Iterator[Any]:
    """The values of a function's variables, except the variable named `own`."""
    for variable, value in frame.f_locals.items():
        if variable != own:
            yield value
        if isinstance(value, dict):
            yield from list(value.values())
        elif isinstance(value, (list, tuple)):
            yield from value
