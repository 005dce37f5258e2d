"""Objects with tensors among their attributes as trees, so that `jit` sees and keeps their state.

>>> import weft as wf
>>> from weft.optim.nodes import tree_node
>>> class Counter:
...     def __init__(self): self.count, self.name = wf.tensor(3), "counter"
>>> tree_node(Counter, ("count",))
>>> [leaf.item() for leaf in wf.tree.leaves(Counter())]
[3]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft as wf


def tree_node(kind: type[Any], children: Sequence[str], ignored: Sequence[str] = ()) -> None:
    """Make a class a tree of some of its attributes; the rest is static, save what is ignored."""

    def flatten(node: Any) -> tuple[dict[str, Any], Any]:
        known = {*children, *ignored}
        rest = tuple([(name, value) for name, value in vars(node).items() if name not in known])
        return {name: getattr(node, name) for name in children}, rest

    def unflatten(cls: type[Any], named: dict[str, Any], rest: Any) -> Any:
        node = object.__new__(cls)
        vars(node).update(named, **dict(rest))
        return node

    wf.tree.register_node(kind, flatten, unflatten, attributes=True)
