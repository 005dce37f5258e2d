"""Groups that are alike: the layers of a network are lowered once, and bound to other values.

A signature says all that a kernel depends on, with values by number: the group's loops, its roots
and the expressions that lead to them, which of them are read elsewhere, and every number.

>>> import weft as wf
>>> from weft.compiler.fusion.grouping import group
>>> from weft.compiler.lowering.groups import context_of, is_lowered, lower
>>> from weft.compiler.targets.limits import Limits
>>> graph = wf.ir.trace(lambda x: wf.sin(wf.sin(x) @ x), wf.spec("float32", (4, 4)))
>>> limits = Limits()
>>> context = context_of(graph, limits.lowering)
>>> first, _, second = group(graph, is_lowered, limits.fusion)
>>> one, other = (lower(each, context, name) for each, name in ((first, "a"), (second, "b")))
>>> one.kernel.digest == other.kernel.digest, len(context.made), other.kernel.name
(True, 1, 'b')
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from weft.compiler.fusion.grouping import Group, Part, Root
from weft.ir.graph import Atom, GraphNode, Literal, Variable, literal_bytes

if TYPE_CHECKING:
    from weft.compiler.lowering.groups import Lowered

L = TypeVar("L", bound="Lowered")


class Signature:
    """What a group's kernel depends on, as a key, and the values that it leaves open."""

    def __init__(
        self,
        group: Group,
        producer: Mapping[Variable, GraphNode],
        escaping: Set[Variable],
        outside: Set[Variable],
    ) -> None:
        self._producer = producer
        self._stored = outside | {root.variable for root in group.roots}
        self.numbers: dict[Atom, int] = {}
        self._tokens: list[Hashable] = [group.outer, group.inner]
        for root in group.roots:
            self._root(root, root.variable in escaping)
        self.key = tuple(self._tokens)

    def _root(self, root: Root, escapes: bool) -> None:
        self._node(root.node)
        self._tokens += (
            self._number(root.variable),
            escapes,
            root.outer,
            root.inner,
            root.rows,
            root.lines,
        )
        if root.part is not None:
            self._tokens += self._part(root.part)

    def _part(self, part: Part) -> tuple[Hashable, ...]:
        return self._number(part.whole), part.axis, part.start, part.count

    def _node(self, node: GraphNode) -> None:
        # as text, since -0.0 equals 0.0 and True equals 1
        params = repr(node.params) if node.params else ""
        self._tokens += (node.primitive, params, len(node.operands))
        for operand in node.operands:
            self._atom(operand)
        self._tokens += [result.type for result in node.results]

    def _atom(self, atom: Atom) -> None:
        if atom in self.numbers:
            self._tokens.append(self.numbers[atom])
        elif isinstance(atom, Literal):
            self._tokens += (self._number(atom), literal_bytes(atom))
        elif atom in self._stored or atom not in self._producer:
            self._tokens.append(self._number(atom))
        else:
            self._node(self._producer[atom])
            self._tokens.append(self._number(atom))

    def _number(self, atom: Atom) -> Hashable:
        """The number of a value, and what is known of it where it is met first."""
        known = self.numbers.get(atom)
        if known is not None:
            return known
        self.numbers[atom] = len(self.numbers)
        return "new", atom.type


def rebound(made: Lowered, known: Signature, signature: Signature, name: str) -> Lowered:
    """What was made of one group, for another of the same signature."""
    if known is signature:
        return made
    other: dict[Any, Any] = dict(zip(known.numbers, signature.numbers, strict=True))
    kernel = replace(made.kernel, name=name)
    kernel.__dict__["digest"] = made.kernel.digest  # known, and the same
    return replace(rename_values(made, other.__getitem__), kernel=kernel)


def rename_values(made: L, named: Callable[[Any], Any]) -> L:
    """A lowered kernel over other values."""
    return replace(
        made,
        values=tuple(map(named, made.values)),
        written=tuple(map(named, made.written)),
        in_place=tuple((named(a), named(b)) for a, b in made.in_place),
        by_rows={named(v): part for v, part in made.by_rows.items()},
    )
