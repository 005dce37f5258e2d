"""In which order the tape is gone back over, and what of it can still be asked for.

>>> import weft as wf
>>> x = wf.tensor(2.0, requires_grad=True)
>>> [type(node).__name__ for node in reachable_nodes([(x * x)._node])]
['Node', 'Leaf']
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TypeVar

from weft.ir.tape import Leaf, Node, Projection
from weft.ir.tensor import Tensor, wrap

AnyNode = Node | Leaf | Projection
T = TypeVar("T", bound=Tensor | None)


def reachable_nodes(roots: Sequence[AnyNode | None]) -> list[AnyNode]:
    """All nodes that the roots were computed from, latest first: an order to go back in."""
    seen: set[AnyNode] = {root for root in roots if root is not None}
    stack = list(seen)
    while stack:
        for parent in stack.pop().parents:
            if parent is not None and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return sorted(seen, key=_number, reverse=True)


def nodes_between(
    roots: Sequence[AnyNode | None], stops: Sequence[AnyNode], oldest: int
) -> tuple[list[AnyNode], bool]:
    """The nodes on a way from the roots back to the stops, latest first.

    Also whether the roots depend on anything else: nodes numbered before `oldest`, or a tensor's
    leaf. The argument of a derivative inside, which is over, is nothing that anyone can ask for.
    """
    live: set[AnyNode] = set(stops)
    visited: set[AnyNode] = set()
    elsewhere = False
    stack = [root for root in roots if root is not None]
    # Back from the roots: parents have smaller numbers, so older nodes lead to no stop.
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        if node in live:
            visited.add(node)
        elif node.number < oldest or (type(node) is Leaf and node.handle is not None):
            elsewhere = True
        else:
            visited.add(node)
            stack.extend(parent for parent in node.parents if parent is not None)
    # Forward again: a node is on a way where one of its parents is.
    ascending = sorted(visited, key=_number)
    for node in ascending:
        if any(parent in live for parent in node.parents):
            live.add(node)
    return [node for node in reversed(ascending) if node in live], elsewhere


_number = attrgetter("number")


def next_node_number() -> int:
    """A number that all nodes to come are above, and those there are below."""
    return Leaf().number


def off_finished_tapes(results: Sequence[T], since: int) -> list[T]:
    """Results without the places on the tape from which no derivative can be asked for any more.

    A derivative that is taken inside of a transform records on the values behind the transform's
    own, too. What it recorded after the number `since` ends at its own arguments, which are gone:
    only a way to older nodes or to a tensor's leaf is kept.
    """
    roots = [each._node for each in results if each is not None and each._node is not None]
    if not roots:
        return list(results)
    recent: set[AnyNode] = set()
    asked: set[AnyNode | None] = set()
    stack = roots
    while stack:
        node = stack.pop()
        if node.number < since or (type(node) is Leaf and node.handle is not None):
            asked.add(node)
        elif node not in recent:
            recent.add(node)
            stack.extend(parent for parent in node.parents if parent is not None)
    for node in sorted(recent, key=_number):  # parents before what was computed from them
        if any(parent in asked for parent in node.parents):
            asked.add(node)
    asked.add(None)
    return [
        each if each is None or each._node in asked else wrap(each._value)  # type: ignore[misc]
        for each in results
    ]
