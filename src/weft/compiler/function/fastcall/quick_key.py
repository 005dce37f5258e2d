"""A key that is quick to make, for calls that are made again.

It says more than programs depend on: modules, trees and closed-over tensors as they are. A call
that is just like an earlier one is found by it; any other one is left to the full key.

>>> import weft as wf
>>> x = wf.ones((2, 3))
>>> key, handles = quick_key(({"a": x, "n": 3},), {}, ())
>>> handles == [x], hash(key) == hash(quick_key(({"a": wf.zeros((2, 3)), "n": 3},), {}, ())[0])
(True, True)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from weft.compiler.function.arguments import shared_places
from weft.core import trees
from weft.core.arrays import CONCRETE, HostArray
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import number_key, static_key
from weft.ir.tape import node_key
from weft.ir.tensor import Tensor, grad_mode

ATOMS = frozenset([bool, int, str, type(None)])
"""Classes of values that are their own key, together with the class."""


def quick_key(
    args: tuple[Any, ...], kwargs: dict[str, Any], outside: Iterable[Any]
) -> tuple[Hashable, list[Tensor]] | None:
    """A key of the call and its tensors in order; None where one of them is traced."""
    key: list[Any] = [grad_mode.enabled, AUTOCAST.get()]
    handles: list[Tensor] = []
    try:
        if not collect(args, key, handles):
            return None
        if kwargs:
            names = sorted(kwargs)
            key += (None, *kwargs)
            if not collect([kwargs[name] for name in names], key, handles):
                return None
        if outside:
            key.append(None)
            if not collect(outside, key, handles):
                return None
    except RecursionError:
        raise trees.endless_tree_error("jit", args) from None
    shared = shared_places(handles)
    if shared:
        key.append(shared)
    return tuple(key), handles


def collect(values: Iterable[Any], key: list[Any], handles: list[Tensor]) -> bool:
    """Add values to a key, and the tensors in them; False where there is a traced one."""
    for x in values:
        kind = type(x)
        if kind is Tensor:
            value = x._value
            if type(value) is not HostArray:
                if type(value) not in CONCRETE:
                    return False
                key.append(value.device)
            handles.append(x)
            key += (value.dtype, value.shape, node_key(x._node), x._grad is None)
        elif kind in ATOMS:
            key += (kind, x)
        elif (parts := trees.take_apart(x)) is not None:
            key += (kind, parts.keys, None if parts.static is None else static_key(parts.static))
            if parts.order:  # a dictionary: functions may go through it
                key += (parts.order, *map(type, parts.order))
            if not collect(parts.children, key, handles):
                return False
        elif isinstance(x, Tensor):
            return False
        else:
            key.append(number_key(x))
    return True
