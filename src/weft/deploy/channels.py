"""Which axes of parameters and values are the same channels, found from the traced graph.

Each axis has a label: a group of channels, and how many neighbouring elements one channel is (after
a flattening, height · width of them). Primitives that keep axes unite the groups of those that they
keep; what mixes, cuts or joins axes, and what goes in and comes out, fixes its groups: their
channels cannot be taken away.

>>> import weft as wf
>>> from weft.deploy.channels import channel_groups
>>> from weft.onnx.exporting.programs import trace_program
>>> net = wf.models.MLP([4, 8, 3])
>>> program = trace_program(net, (wf.spec("float32", ("batch", 4)),), {})
>>> [group.axes for group in channel_groups(program)]
[[('layers.0.bias', 0, 1), ('layers.0.weight', 0, 1), ('layers.1.weight', 1, 1)]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import weft as wf
from weft.onnx.exporting.programs import Program

__all__ = ["Group", "channel_groups"]

Label = tuple[int, int]
"""A group and how many neighbouring elements a channel is."""


@dataclass(frozen=True)
class Group:
    """Channels that can be taken away together."""

    size: int
    axes: list[tuple[str, int, int]]
    """The parameters, their axes, and how many neighbouring elements a channel is there."""


def channel_groups(program: Program) -> list[Group]:
    """The groups of channels of a program's parameters that nothing fixes."""
    labels = _Labels(program)
    for node in program.graph.nodes:
        labels.visit(node)
    for atom in program.graph.outputs:
        labels.fix(atom)
    members: dict[int, list[tuple[str, int, int]]] = {}
    names = zip(program.state, program.graph.inputs, strict=False)
    for name, variable in names:
        for axis, label in enumerate(labels.axes_of(variable)):
            root, width = labels.resolve(label)
            if root not in labels.fixed:
                members.setdefault(root, []).append((name, axis, width))
    found = [Group(labels.sizes[root], axes) for root, axes in members.items()]
    return [group for group in found if len(group.axes) > 1 and group.size > 1]


class _Labels:
    """Labels of the axes of all values."""

    def __init__(self, program: Program) -> None:
        self.parents: list[Label] = []
        """For each group the one that it is part of, and how many of its channels are one there."""
        self.sizes: list[int] = []
        self.fixed: set[int] = set()
        self._labels: dict[Any, list[Label]] = {}
        count = len(program.state)
        for variable in program.graph.inputs[count:]:
            self.fix(variable)

    def axes_of(self, atom: Any) -> list[Label]:
        """The labels of a value's axes; those of one that is new are groups of their own."""
        if atom not in self._labels:
            self._labels[atom] = [(self._new_label(dim), 1) for dim in atom.type.shape]
            if isinstance(atom, wf.ir.Literal):
                self.fix(atom)
        return self._labels[atom]

    def _new_label(self, size: Any) -> int:
        self.parents.append((len(self.parents), 1))
        self.sizes.append(size if isinstance(size, int) else 0)
        if not isinstance(size, int):
            self.fixed.add(len(self.parents) - 1)
        return len(self.parents) - 1

    def resolve(self, label: Label) -> Label:
        """The group that stands for all that a label's is united with, and its width there."""
        group, width = label
        while self.parents[group][0] != group:
            group, factor = self.parents[group]
            width *= factor
        return group, width

    def root(self, group: int) -> int:
        """The group that stands for all that are united with a group."""
        return self.resolve((group, 1))[0]

    def unite(self, a: Label, b: Label) -> None:
        """Make two labels one: the finer group is blocks of the other; fixed where it is not."""
        (coarse, wide), (fine, narrow) = sorted(
            [self.resolve(a), self.resolve(b)], key=lambda label: -label[1]
        )
        if coarse == fine and wide == narrow:
            return
        same_length = self.sizes[coarse] * wide == self.sizes[fine] * narrow
        if coarse == fine or not same_length or wide % narrow:
            self.fixed |= {coarse, fine}
            return
        self.parents[fine] = coarse, wide // narrow
        if fine in self.fixed:
            self.fixed.add(coarse)

    def fix(self, atom: Any) -> None:
        """Keep all channels of a value."""
        self.fixed |= {self.root(group) for group, _ in self.axes_of(atom)}

    def visit(self, node: Any) -> None:
        """Label the results of a node."""
        rule = _RULES.get(node.primitive.name)
        is_plain = isinstance(node.primitive.kind, wf.ir.kinds.Elementwise)
        if rule is not None:
            rule(self, node)
        elif is_plain:
            _elementwise(self, node)
        else:
            for atom in (*node.operands, *node.results):
                self.fix(atom)

    def put(self, atom: Any, labels: Sequence[Label | None]) -> None:
        """Label a value; axes without a label are groups of their own that are fixed."""
        own = [(self._new_label(dim), 1) for dim in atom.type.shape]
        self._labels[atom] = [
            mine if given is None else given for mine, given in zip(own, labels, strict=True)
        ]
        self.fixed |= {
            group for (group, _), given in zip(own, labels, strict=True) if given is None
        }


Rule = Callable[[_Labels, Any], None]
_RULES: dict[str, Rule] = {}


def _rule(primitive: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES[primitive] = function
        return function

    return register


def _elementwise(labels: _Labels, node: Any) -> None:
    """Axes that broadcast together are the same; an axis of size 1 says nothing."""
    (result,) = node.results
    found: list[Label | None] = [None] * result.type.ndim
    for operand in node.operands:
        shift = result.type.ndim - operand.type.ndim
        for axis, label in enumerate(labels.axes_of(operand)):
            if operand.type.shape[axis] == 1 and result.type.shape[axis + shift] != 1:
                continue
            known = found[axis + shift]
            if known is None:
                found[axis + shift] = label
            else:
                labels.unite(known, label)
    labels.put(result, found)


@_rule("transpose")
def _transpose(labels: _Labels, node: Any) -> None:
    own = labels.axes_of(node.operands[0])
    labels.put(node.results[0], [own[axis] for axis in node.params["order"]])


@_rule("stop_gradient")
def _stop_gradient(labels: _Labels, node: Any) -> None:
    labels.put(node.results[0], labels.axes_of(node.operands[0]))


@_rule("reshape")
def _reshape(labels: _Labels, node: Any) -> None:
    """Axes of size 1 come and go; an axis joined with those behind it is wider."""
    own, old = labels.axes_of(node.operands[0]), node.operands[0].type.shape
    new = node.results[0].type.shape
    given = [(dim, label) for dim, label in zip(old, own, strict=True) if dim != 1]
    found: list[Label | None] = []
    place = 0
    for dim in new:
        if dim == 1:
            found.append(None)
            continue
        if place < len(given) and given[place][0] == dim:
            found.append(given[place][1])
            place += 1
            continue
        joined, size = place, 1
        while joined < len(given) and isinstance(given[joined][0], int) and size < dim:
            size *= given[joined][0]
            joined += 1
        if size != dim or joined == place:
            labels.fix(node.operands[0])
            labels.put(node.results[0], [None] * len(new))
            return
        first = given[place]
        for _, other in given[place + 1 : joined]:
            labels.fixed.add(labels.root(other[0]))
        found.append((first[1][0], first[1][1] * (size // first[0])))
        place = joined
    labels.put(node.results[0], found)


def _kept_axes(labels: _Labels, node: Any, changed: set[int]) -> None:
    """A result that has the axes of the operand, of which some are fixed."""
    own = labels.axes_of(node.operands[0])
    labels.fixed |= {labels.root(own[axis][0]) for axis in changed}
    kept = [None if axis in changed else label for axis, label in enumerate(own)]
    labels.put(node.results[0], kept)


@_rule("window_max")
def _window_max(labels: _Labels, node: Any) -> None:
    ndim = node.operands[0].type.ndim
    _kept_axes(labels, node, set(range(ndim - len(node.params["window"]), ndim)))


_RULES["window_sum"] = _window_max


@_rule("reduce_sum")
def _reduce_sum(labels: _Labels, node: Any) -> None:
    own, axes = labels.axes_of(node.operands[0]), node.params["axes"]
    labels.fixed |= {labels.root(own[axis][0]) for axis in axes}
    labels.put(node.results[0], [each for axis, each in enumerate(own) if axis not in axes])


@_rule("broadcast_to")
def _broadcast_to(labels: _Labels, node: Any) -> None:
    own, old = labels.axes_of(node.operands[0]), node.operands[0].type.shape
    new = node.results[0].type.shape
    shift = len(new) - len(old)
    kept: list[Label | None] = [None] * shift
    kept += [label if old[axis] == new[axis + shift] else None for axis, label in enumerate(own)]
    labels.put(node.results[0], kept)


@_rule("conv")
def _conv(labels: _Labels, node: Any) -> None:
    x, w = (labels.axes_of(operand) for operand in node.operands)
    if node.params["groups"] == 1:
        labels.unite(x[1], w[1])
    else:
        labels.fixed |= {labels.root(each[0]) for each in (x[1], w[0], w[1])}
    labels.fixed |= {labels.root(each[0]) for each in (*x[2:], *w[2:])}
    labels.put(node.results[0], [x[0], w[0], *[None] * (len(x) - 2)])


@_rule("dot")
def _dot(labels: _Labels, node: Any) -> None:
    (left, right), (first, second) = node.params["contract"], node.params["batch"]
    a, b = (labels.axes_of(operand) for operand in node.operands)
    for i, j in (*zip(left, right, strict=True), *zip(first, second, strict=True)):
        labels.unite(a[i], b[j])
    free = [each for i, each in enumerate(a) if i not in (*left, *first)]
    free += [each for j, each in enumerate(b) if j not in (*right, *second)]
    labels.put(node.results[0], [*[a[i] for i in first], *free])
