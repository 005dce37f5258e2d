"""Keys of calls: all that a program depends on of the arguments of a function.

>>> import weft as wf
>>> key, tensors = plain_key((wf.ones((2, 3)), 1.5), {"axis": 0})
>>> key[1:4], len(tensors)
(((2, 3), <class 'float'>, 1.5), 1)
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from weft.core.arrays import CONCRETE, HostArray
from weft.core.dtypes import DType
from weft.ir.tensor import Tensor, traces

__all__ = ["DEEPEST", "SIMPLE", "number_key", "plain_key", "static_key"]

_INTEGER, _WHOLE = frozenset([int]), frozenset([int, type(None)])
DEEPEST = 8
"""How deep lists of arguments may lie in each other."""
SIMPLE = frozenset([int, bool, str, type(None), type(Ellipsis), DType])
"""Classes of arguments that are parts of keys as they are."""


def plain_key(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Hashable | None, list[Tensor]]:
    """All that a call of plain arguments depends on, and its tensors; None for other arguments.

    Plain are concrete tensors, numbers, text, slices, dtypes, and lists of these. The key says
    which tensors lie in memory with gaps, or in another order, but not how.
    """
    device = traces.device
    if device is None and len(args) == 1 and not kwargs:  # as below, for a tensor alone
        x = args[0]
        if type(x) is Tensor and type(x._value) is HostArray and x._value.flags.c_contiguous:
            return (x._value.dtype, x._value.shape), [x]
    parts: list[Any] = [] if device is None else [device]
    handles: list[Tensor] = []
    if not _read_plain(args, parts, handles):
        return None, handles
    if kwargs:
        parts.extend(kwargs)
        if not _read_plain(kwargs.values(), parts, handles):
            return None, handles
    return tuple(parts), handles


def _read_plain(values: Any, parts: list[Any], handles: list[Tensor], depth: int = 0) -> bool:
    """Add plain arguments to a key and to the tensors of a call; False where one is not plain."""
    for value in values:
        kind = type(value)
        if kind is Tensor:
            array = value._value
            handles.append(value)
            if type(array) is HostArray:
                parts += (array.dtype, array.shape)
                if not array.flags.c_contiguous:
                    parts.append(None)
            elif type(array) in CONCRETE and array.kind is not None:
                parts.append(array.kind)
            else:
                return False
        elif kind in SIMPLE:
            parts += (kind, value)
        elif kind is float:
            parts += (kind, value if value and value == value else repr(value))
        elif kind is slice:
            bounds = value.start, value.stop, value.step
            if not _WHOLE.issuperset(map(type, bounds)):
                return False
            parts.append(kind)
            parts += bounds
        elif kind is tuple or kind is list:
            if _INTEGER.issuperset(map(type, value)):  # a shape, or axes: at once
                parts += (kind, tuple(value))
                continue
            if depth > DEEPEST:  # a list may hold itself
                return False
            parts += (kind, len(value))
            if not _read_plain(value, parts, handles, depth + 1):
                return False
        else:
            return False
    return True


def static_key(value: Any) -> Hashable:
    """A setting as part of a key: -0.0 is another number than 0.0, and 1 another than True."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind, tuple([static_key(each) for each in value])
    return number_key(value)


def number_key(value: Any) -> tuple[type, Any]:
    """A value that is no container as part of a key: as text, NaN is the same as NaN, too."""
    kind = type(value)
    if kind is slice:  # which older Pythons cannot hash
        bounds = value.start, value.stop, value.step
        return slice, bounds if _WHOLE.issuperset(map(type, bounds)) else value
    if kind is float and value and value == value:  # neither of two zeros, nor NaN
        return kind, value
    return kind, repr(value) if isinstance(value, (float, complex, np.inexact)) else value
