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

import marshal
from collections.abc import Hashable, Iterable
from typing import Any

from weft.compiler.function.arguments import shared_places
from weft.core import trees
from weft.core.arrays import CONCRETE, HostArray
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import number_key, static_key
from weft.ir.tape import LEAF_HOOKS, node_key
from weft.ir.tensor import Tensor, grad_mode

ATOMS = frozenset([bool, int, str, type(None)])
"""Classes of values that are their own key, together with the class."""
TEXT = frozenset([str])


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


def _exact_key(static: Any) -> Hashable:
    """What tells a static value from those that are equal, as 1 and True are, without a walk."""
    try:
        return marshal.dumps(static, 0)
    except ValueError:  # it holds more than numbers and text
        return static_key(static)


def collect(values: Iterable[Any], key: list[Any], handles: list[Tensor]) -> bool:
    """Add values to a key, and the tensors in them; False where there is a traced one."""
    has_hooks = LEAF_HOOKS.count > 0
    for x in values:
        kind = type(x)
        if kind is Tensor:
            value = x._value
            if type(value) is not HostArray:
                if type(value) not in CONCRETE:
                    return False
                key.append(value.device)
            handles.append(x)
            node = x._node
            place = node_key(node) if has_hooks else node is None
            key += (value.dtype, value.shape, place, x._grad is None)
        elif kind in ATOMS:
            key += (kind, x)
        elif (parts := trees.take_apart(x)) is not None:
            static, order = parts.static, parts.order
            if static is not None and parts.memory is None:
                static = _exact_key(static)
            key += (kind, order or parts.keys, static)  # functions may go through a dictionary
            if order and not TEXT.issuperset(map(type, order)):
                key += map(type, order)
            if not collect(parts.children, key, handles):
                return False
        elif isinstance(x, Tensor):
            return False
        else:
            key.append(number_key(x))
    return True
