"""Values that only a run of a graph knows: a function that is given one becomes a node, too.

The class style of static graphs has nodes without types. It puts its kind of node here, so that
functions below it can ask, and until it does a call costs one look at an empty list.

>>> from weft.core.deferred import deferred_call
>>> deferred_call(abs, (1,), {}, "abs") is None
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["NODES", "deferred_call"]

NODES: list[tuple[type, Callable[..., Any]]] = []
"""The kind of nodes, and what makes one of a function and its arguments; empty until needed."""


def deferred_call(
    function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], name: str
) -> Any:
    """The node of a call with a node among its arguments or in a list of them, else None."""
    if not NODES:
        return None
    kind, make_node = NODES[0]
    for each in args:
        for value in each if isinstance(each, (list, tuple)) else (each,):
            if kind in type(value).__mro__:
                return make_node(function, *args, name=name, **options)
    return None
