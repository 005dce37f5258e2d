"""Grouping: which nodes of a graph become one kernel.

Element-wise and movement nodes are written into their consumers, unless their value is needed as
a whole: by a node that is no loop over elements, as an output, or by several expensive readers.
Values that are needed as a whole, and reductions, are *roots*. Roots over the same space share a
kernel: a space is rows (outer axes) and what lies in a row (inner axes). A root over the whole
space reads others at its own place, a root over the rows holds one value per row.

>>> import weft as wf
>>> from weft.compiler.fusion.grouping import group
>>> graph = wf.ir.trace(lambda x: wf.softmax(x), wf.spec("float32", (4, 8)))
>>> [type(step).__name__ for step in group(graph, lambda node: True, FusionLimits())]
['Group']
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from weft.compiler.fusion.aliases import shares_memory
from weft.compiler.fusion.costs import usual_bytes
from weft.compiler.fusion.element_reads import Accesses, Loads
from weft.compiler.fusion.readers import further_reader_counts, reader_counts, why_read_as_whole
from weft.compiler.fusion.split_reduction import chunk_index, chunk_lines, chunk_rows, halves
from weft.compiler.targets.limits import FusionLimits
from weft.core.dtypes import bfloat16, float16
from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape, size
from weft.ir.affine_index import Affine, offset
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Elementwise, Index, Reduction
from weft.ir.scalar_functions import element_cost
from weft.ir.scalars import FUNCTION
from weft.ops.conversion import convert, of_parts
from weft.ops.identity import barrier, stopped
from weft.ops.movement import concatenate

DEEPEST = 120
"""How deep an expression may be, with operations that only move elements: it is walked through
recursively, on any machine."""
NESTED = 4
"""How many joins may lie within each other: each reads its parts under conditions of their own, so
that what is written doubles with every one."""
LOOP = 4
"""How much a root's own loop weighs; an elementary function weighs `FUNCTION`, the rest 1. A unit
of `FusionLimits.kernel_weight`, not a machine's."""
NEIGHBOURS = 64
"""How many groups that have to do with a root are tried, the last ones first: a bound on the
compiler's own work."""


@frozen
class Part:
    """A part of a stored value: where on an axis it starts, and of how many parts it is one."""

    whole: Variable
    axis: int
    start: Dimension
    count: int

    def index(self, own: Index) -> Index:
        """Where in the whole an element of the part is."""
        return tuple(i + self.start if axis == self.axis else i for axis, i in enumerate(own))


@frozen
class Root:
    """A value that is stored: by a loop over its elements, or by a reduction.

    outer: the loops over its elements; inner: those that a reduction sums over. Loops are numbered,
    outer before inner, and `reads` says which elements of stored values one element needs. A root
    that is a part of a joined value is stored there. One that reduces chunks of rows has so many
    lines of so many rows in each; another root reduces what it makes.
    """

    variable: Variable
    node: GraphNode
    outer: Shape
    inner: Shape
    reads: Loads
    part: Part | None = None
    rows: int = 0
    lines: int = 1

    @property
    def is_partial(self) -> bool:
        """Whether another value is made of it, which the graph does not say."""
        return self.part is not None or self.rows > 0

    @property
    def operand_index(self) -> Index:
        """The index of what a reduction reads."""
        if self.rows == 0:
            return reduced_index(self.node, len(self.outer))
        own = counting_index(self.variable.type.shape, 0)
        return chunk_index(own, self.node, self.rows, len(self.outer), self.lines)

    @property
    def is_reduction(self) -> bool:
        """Whether the root is one value per row of what it reads."""
        return is_reduction(self.node)

    @property
    def target(self) -> tuple[Variable, Index]:
        """The value that it is stored in, and where in it an element is."""
        own = counting_index(self.variable.type.shape, 0)
        return (
            (self.variable, own) if self.part is None else (self.part.whole, self.part.index(own))
        )


@frozen
class Recomputed:
    """What it takes to compute a value again: operations, functions, and small values to store."""

    operations: int
    is_dear: bool
    small: tuple[Variable, ...] = ()

    def is_cheap(self, limits: FusionLimits, near: bool) -> bool:
        """Whether each reader computes the value again; near: it would still be in cache."""
        return self.operations <= limits.recomputed_operations and not (self.is_dear and near)


@dataclass(slots=True)
class Group:
    """Roots that share a kernel, in order: rows (outer) and what lies in a row (inner)."""

    outer: Shape
    inner: Shape
    roots: list[Root]
    weight: int = 0
    """How much the kernel holds; see `FusionLimits.kernel_weight`."""

    def per_row(self, root: Root) -> bool:
        """Whether a root holds one value per row."""
        return root.is_reduction or root.outer != self.outer + self.inner

    def join_root(self, root: Root) -> bool:
        """Whether the root fits this group; if so it becomes part of it."""
        split = self._split_with(root)
        if split is None:
            return False
        before = self.outer, self.inner
        self.outer, self.inner = split
        if self._reads_in_place(root):
            self.roots.append(root)
            return True
        self.outer, self.inner = before
        return False

    def _split_with(self, root: Root) -> tuple[Shape, Shape] | None:
        """Rows and what lies in them, for the group with this root; None if there is no way."""
        whole = self.outer + self.inner
        if root.is_reduction:
            if (root.outer, root.inner) == (self.outer, self.inner):
                return self.outer, self.inner
            unsplit = not self.inner and not any(self.per_row(r) for r in self.roots)
            fits = root.outer + root.inner == whole and root.inner
            return (root.outer, root.inner) if unsplit and fits else None
        return (self.outer, self.inner) if root.outer in (whole, self.outer) else None

    def _reads_in_place(self, root: Root) -> bool:
        """Whether a root reads the others' values only at its own place, or its own row."""
        whole = counting_index(self.outer + self.inner, 0)
        members: dict[Atom, Root] = {member.target[0]: member for member in self.roots}
        for atom, index in root.reads:
            member = members.get(atom)
            if member is None:
                continue
            if member.part is not None:
                return False
            # a root of one value per row has the loops of rows only, so it cannot be at a place
            own = whole[: len(self.outer)] if self.per_row(member) else whole
            if tuple(i for i in index if i != Affine()) != own:
                return False
        return True


@dataclass(slots=True)
class Single:
    """A node that stands alone: a product, a gather, a sort, a call by reference."""

    node: GraphNode


Step = Group | Single


def group(graph: Graph, fusible: Callable[[GraphNode], bool], limits: FusionLimits) -> list[Step]:
    """The steps of a program, in an order that can be run."""
    return _Grouping(graph, fusible, limits).steps()


def why_stored(
    graph: Graph, fusible: Callable[[GraphNode], bool], limits: FusionLimits
) -> dict[Variable, str]:
    """The values that are written to memory as a whole, and for each the reason."""
    return _Grouping(graph, fusible, limits).reasons


class _Grouping:
    """The state of cutting one graph into steps."""

    def __init__(
        self, graph: Graph, fusible: Callable[[GraphNode], bool], limits: FusionLimits
    ) -> None:
        self.graph, self.limits = graph, limits
        self.loops = {
            node
            for node in graph.nodes
            if is_reduction(node) or (fusible(node) and not shares_memory(node))
        }
        self.producer = {v: node for node in graph.nodes for v in node.results}
        self.joined_parts = {n.operands[0] for n in graph.nodes if n.primitive is of_parts}
        """The joins that are complex numbers: their parts are best stored side by side."""
        self.readers = reader_counts(graph)
        self.further = further_reader_counts(graph, self.readers)
        """How many more read a value that is widened than its conversions are."""
        self.inputs, self.outputs = set[Atom](graph.inputs), set[Atom](graph.outputs)
        self.floors: dict[Atom, int] = {}
        self.dear: set[Atom] = set()
        self.weights: dict[Atom, int] = {}
        """How much the expressions of values hold that are not stored."""
        self.sources: dict[Atom, frozenset[Atom]] = {}
        """The stored values, of as many elements, that expressions of values read."""
        self.depths: dict[Atom, int] = {}
        self.nested: dict[Atom, int] = {}
        """How many joins lie within each other in expressions of values that are not stored."""
        self.near: dict[Atom, dict[int, None]] = {}
        """The groups, by place, that read a value of many elements, or make one."""
        self.last_read = {a: place for place, n in enumerate(graph.nodes) for a in n.operands}
        self.reasons = self._reasons()
        self.stored = set(self.reasons)
        self.accesses = Accesses(self.producer, self.stored)

    def steps(self) -> list[Step]:
        """One pass over the nodes; each root joins the last group that it may join.

        What is computed again behind a barrier joins no group from before it: it would be there
        all the time, and not when it is needed.
        """
        steps: list[Step] = []
        place: dict[Atom, int] = {}
        for node in self._nodes_in_order():
            self._raise_floor(node, len(steps))
            if not self._is_loop(node):
                steps.append(Single(node))
                place.update((result, len(steps) - 1) for result in node.results)
            elif node.results[0] in self.stored:
                roots = self._roots(node)
                for root in roots:
                    place[root.variable] = self._place(steps, place, root)
                place[node.results[0]] = max(place[root.variable] for root in roots)
        return steps

    def _nodes_in_order(self) -> list[GraphNode]:
        """The nodes, numbers that are made of nothing but given numbers before all others.

        A count of steps is then there when a state is updated, wherever it was written. So are few
        elements that are made of a few given indices or labels: a gradient does not wait for them.
        """
        few = filter(self._is_few, self.inputs)
        known = {atom for atom in few if not _is_many(atom) or atom.type.dtype.is_integer}
        first: list[GraphNode] = []
        for node in self.graph.nodes:
            is_ready = all(isinstance(a, Literal) or a in known for a in node.operands)
            if is_ready and self._is_loop(node) and self._is_few(node.results[0]):
                known.update(node.results)
                first.append(node)
        early = set(first)
        return [*first, *[node for node in self.graph.nodes if node not in early]]

    def _is_few(self, atom: Atom) -> bool:
        count, most = atom.type.size, self.limits.early_elements
        return not _is_many(atom) or (isinstance(count, int) and count <= most)

    def _roots(self, node: GraphNode) -> list[Root]:
        """The roots that make a value."""
        if self._is_divided(node):
            return list(self._part_roots(node))
        rows = chunk_rows(node, self.limits) if is_reduction(node) else 0
        return (self._in_chunks(node, rows) if rows else None) or [self._root(node)]

    def _in_chunks(self, node: GraphNode, rows: int) -> list[Root] | None:
        """A reduction over rows in two parts; None where it does not go down columns."""
        lines = chunk_lines(node, rows, self.limits)
        partial, rest = halves(node, rows, lines)
        outer = tuple(dim for dim in partial.type.shape if dim != 1)
        inner = (lines, rows) if lines > 1 else (rows,)
        own = Root(partial, node, outer, inner, frozenset(), rows=rows, lines=lines)
        own = replace(own, reads=self.accesses.element_at(node.operands[0], own.operand_index))
        moves = [offset(index, atom.type.shape) for atom, index in own.reads]
        steps = {each.factor(len(outer) - 1) for each in moves if each.factor(len(outer)) != 0}
        if not {1} <= steps <= {0, 1}:
            return None
        if node.results[0] in self.floors:
            self.floors[partial] = self.floors[node.results[0]]
        return [own, self._root(rest)]

    def _is_divided(self, node: GraphNode) -> bool:
        """Whether a join is made part by part: no element then asks which part it belongs to."""
        variable = node.results[0]
        if node.primitive is not concatenate or variable not in self.whole:
            return False
        if variable in self.joined_parts:
            return True
        count = variable.type.size
        return not (isinstance(count, int) and count < self.limits.divided_join_elements)

    def _part_roots(self, node: GraphNode) -> Iterator[Root]:
        """The parts of a join, each a root that is stored at its place."""
        whole, axis = node.results[0], node.params["axis"]
        start: Dimension = 0
        for operand in node.operands:  # passes have left out those without elements
            same = Variable(operand.type)
            copy = GraphNode(stopped, (operand,), {}, (same,), node.location)
            part = Part(whole, axis, start, len(node.operands))
            yield replace(self._root(copy), part=part)
            start = start + operand.type.shape[axis]

    def _raise_floor(self, node: GraphNode, position: int) -> None:
        """Note the first step that may compute what a node makes, where a barrier says so."""
        own = position if node.primitive is barrier else -1
        floor = max([own, *[self.floors.get(atom, -1) for atom in node.operands]])
        if floor >= 0:
            self.floors.update(dict.fromkeys(node.results, floor))

    def _is_loop(self, node: GraphNode) -> bool:
        return node in self.loops

    def _reasons(self) -> dict[Variable, str]:
        """Outputs, reductions, and what is read by anything but a loop over elements."""
        stored = {atom: "an output" for atom in self.graph.outputs if isinstance(atom, Variable)}
        for node in self.graph.nodes:
            name = node.primitive.name
            if not self._is_loop(node):
                for atom in node.operands:
                    if isinstance(atom, Variable):
                        stored.setdefault(atom, why_read_as_whole(node))
                for result in node.results:
                    stored.setdefault(result, f"{name} makes it as a whole")
            elif is_reduction(node):
                stored.setdefault(node.results[0], "a reduction")
        self.whole = set(stored)
        cost: dict[Variable, int] = {}
        for place, node in enumerate(self.graph.nodes):
            self._weigh(node, place, stored, cost)
        return stored

    def _weigh(
        self, node: GraphNode, place: int, stored: dict[Variable, str], cost: dict[Variable, int]
    ) -> None:
        """Store what is too long to be written into its readers, or too dear for several."""
        variable = node.results[0]
        if not self._is_loop(node) or variable in stored:
            return
        own = 1 if node.primitive.broadcasts else 0
        total = own + sum(cost.get(a, 0) for a in node.operands if isinstance(a, Variable))
        depth = 1 + max([self.depths.get(atom, 0) for atom in node.operands], default=0)
        inner = max([self.nested.get(atom, 0) for atom in node.operands], default=0)
        nested = inner + (node.primitive is concatenate)
        readers = self.readers.get(variable, 0)
        dear = is_function(node) or any(atom in self.dear for atom in node.operands)
        limits = self.limits
        near = self.last_read.get(variable, place) - place <= limits.cached_distance
        sources = self._whole_sources(node, stored)
        if readers > 1 and self._reads_too_many(variable, len(sources)):
            reason = f"{readers} readers, and {len(sources)} values to read for each"
            self._store_narrow(node, reason, stored, cost)
            return
        self.sources[variable] = sources
        again = Recomputed(total, dear)
        if readers > 1 and not again.is_cheap(limits, near):
            again = self._beside_small(variable, stored)
            if again.is_cheap(limits, near):
                total, dear = again.operations, again.is_dear
                for small in again.small:
                    stored[small] = "few elements, and each serves many of a value computed again"
        if readers > 1 and not again.is_cheap(limits, near):
            reason = f"{readers} readers, and {total} operations to compute it again"
            self._store_narrow(node, reason, stored, cost)
        elif total > limits.expression_operations:
            most = limits.expression_operations
            stored[variable] = f"an expression of {total} operations, the most are {most}"
        elif depth > DEEPEST:
            stored[variable] = f"an expression {depth} operations deep, the most are {DEEPEST}"
        elif nested > NESTED:
            stored[variable] = f"{nested} joins within each other, the most are {NESTED}"
        else:
            cost[variable], self.depths[variable] = total, depth
            self.nested[variable] = nested
            self.weights[variable] = self._weight(node)
            self.dear.update([variable] if dear else ())

    def _reads_too_many(self, variable: Variable, sources: int) -> bool:
        """Whether more is read where each reader computes a value again than where it is stored.

        Storing reads its sources once, and writes and reads the value.
        """
        readers = self.readers.get(variable, 0) + self.further.get(variable, 0)
        is_more = readers * sources > sources + 1 + readers
        return sources > self.limits.recomputed_reads and is_more

    def _whole_sources(self, node: GraphNode, stored: Container[Atom]) -> frozenset[Atom]:
        """The stored values of as many elements that a node's expression reads."""
        count = node.results[0].type.size
        found: frozenset[Atom] = frozenset()
        for atom in node.operands:
            if atom in self.sources and atom not in stored:
                found |= self.sources[atom]
            elif isinstance(atom, Variable) and atom.type.size == count:
                found |= {atom}
        return found

    def _store_narrow(
        self, node: GraphNode, reason: str, stored: dict[Variable, str], cost: dict[Variable, int]
    ) -> None:
        """Store a value; of widened 16-bit floats these, which each reader widens."""
        variable, narrow = node.results[0], self._narrow_operand(node)
        if narrow is None:
            stored[variable] = reason
            return
        stored[narrow] = reason
        small = [a for a in node.operands[1:] if isinstance(a, Variable) and a in self.producer]
        stored.update({a: "few elements, and each serves many" for a in small if a not in stored})
        self.sources[variable] = frozenset([narrow])
        self.depths[variable] = self.weights[variable] = 3
        cost[variable], self.nested[variable] = 2, 0

    def _narrow_operand(self, node: GraphNode) -> Variable | None:
        """The 16-bit floats that a node widens, if these are to be stored in its place.

        They may be less a number of each row, its mean: that has few elements, and is read again.
        """
        small = usual_bytes(node.results[0].type) // self.limits.served_elements
        if node.primitive.name == "subtract" and usual_bytes(node.operands[1].type) <= small:
            whole = node.operands[0]
            node = self.producer.get(whole, node) if isinstance(whole, Variable) else node
        if node.primitive is not convert or not self.limits.stores_narrow_floats:
            return None
        source = node.operands[0]
        return source if isinstance(source, Variable) and self._is_narrow_loop(source) else None

    def _is_narrow_loop(self, variable: Variable) -> bool:
        """Whether a loop of this program makes 16-bit floats."""
        is_narrow = variable.type.dtype in (bfloat16, float16)
        return is_narrow and self.producer.get(variable) in self.loops

    def _beside_small(self, value: Variable, stored: dict[Variable, str]) -> Recomputed:
        """What a value takes if the small values that it is computed from are stored.

        Small are those of which each element serves many of the value's: a mean, a scale of rows.
        """
        most = usual_bytes(value.type) // self.limits.served_elements
        operations, is_dear, small = 0, False, list[Variable]()
        atoms: list[Atom] = [value]
        while atoms:
            atom = atoms.pop()
            if not isinstance(atom, Variable) or atom in stored or atom in self.inputs:
                continue
            node = self.producer[atom]
            own = 1 if node.primitive.broadcasts else 0
            if own and usual_bytes(atom.type) <= most:
                small.append(atom)
                continue
            operations += own
            is_dear = is_dear or is_function(node)
            atoms += node.operands
        return Recomputed(operations, is_dear, tuple(small))

    def _root(self, node: GraphNode) -> Root:
        """A stored value with the loops it is computed in; axes of size 1 need none."""
        variable, outer = node.results[0], tuple(d for d in node.results[0].type.shape if d != 1)
        if not is_reduction(node):
            index = counting_index(variable.type.shape, 0)
            return Root(variable, node, outer, (), self.accesses.of_node(node, index))
        operand, axes = node.operands[0], node.params["axes"]
        sizes = [operand.type.shape[axis] for axis in axes]
        reduced = tuple(size for size in sizes if size != 1)
        reads = self.accesses.element_at(operand, reduced_index(node, len(outer)))
        return Root(variable, node, outer, reduced, reads)

    def _place(self, steps: list[Step], place: dict[Atom, int], root: Root) -> int:
        """Put a root into the last group that it fits, if nothing that it reads comes later."""
        needed = max([place.get(atom, -1) for atom, _ in root.reads], default=-1)
        needed = max(needed, self.floors.get(root.variable, -1))
        weight = LOOP + self._weight(root.node)
        for position in self._neighbours(root, needed):
            step = steps[position]
            assert isinstance(step, Group)
            if step.weight + weight > self.limits.kernel_weight:
                continue
            if self._belongs_to_group(root, step) and step.join_root(root):
                step.weight += weight
                self._note(root, position)
                return position
        steps.append(Group(root.outer, root.inner, [root], weight))
        self._note(root, len(steps) - 1)
        return len(steps) - 1

    def _neighbours(self, root: Root, needed: int) -> list[int]:
        """The groups that read, or make, what a root reads, the last ones first."""
        places: set[int] = set()
        for atom in [*self._join_of(root), *[atom for atom, _ in root.reads]]:
            for position in islice(reversed(self.near.get(atom, {})), NEIGHBOURS):
                if position >= needed:
                    places.add(position)
        return sorted(places, reverse=True)[:NEIGHBOURS]

    def _note(self, root: Root, position: int) -> None:
        """Let a root be found by those that read what it reads, or what it makes."""
        read = [atom for atom, _ in root.reads if _is_many(atom)]
        for atom in [root.variable, *self._join_of(root), *read]:
            self.near.setdefault(atom, {})[position] = None

    def _join_of(self, root: Root) -> list[Variable]:
        """The complex numbers that a root is a part of."""
        whole = None if root.part is None else root.part.whole
        return [whole] if whole in self.joined_parts and whole is not None else []

    def _weight(self, node: GraphNode) -> int:
        """How much a node holds, with what is written into it."""
        own = FUNCTION if is_function(node) else 1
        return own + sum([self.weights.get(atom, 0) for atom in node.operands])

    def _belongs_to_group(self, root: Root, group: Group) -> bool:
        """Whether a root may be in a group that reads, or makes, what it reads.

        Updates of state stay out of reductions that make their gradients, and out of others that do
        not concern them: they would be done row by row, and are done all at once elsewhere.
        """
        own = {each.variable for each in group.roots}
        apart = root.outer == group.outer or own.isdisjoint(atom for atom, _ in root.reads)
        if group.inner and apart and not root.is_reduction and self._is_update(root):
            return False
        return not self._ends_rows(root, group)

    def _ends_rows(self, root: Root, group: Group) -> bool:
        """Whether a long loop over elements would share a kernel with a sum over all of them.

        Such a kernel has no rows, which threads divide.
        """
        whole = group.outer + group.inner
        if root.is_reduction == bool(group.inner) or whole != root.outer + root.inner:
            return False
        if root.outer if root.is_reduction else group.outer:
            return False
        members = group.roots if root.is_reduction else [root]
        count = size(whole)
        is_long = not isinstance(count, int) or count > self.limits.undivided_sum_elements
        return is_long or any(map(self._is_update, members))

    def _is_update(self, root: Root) -> bool:
        """Whether a root replaces an input: it is an output, and reads the input at its place."""
        if root.variable not in self.outputs:
            return False
        own = offset(counting_index(root.variable.type.shape, 0), root.variable.type.shape)
        return any(
            atom in self.inputs
            and atom.type.shape == root.variable.type.shape
            and offset(index, atom.type.shape) == own
            for atom, index in root.reads
        )


def _is_many(atom: Atom) -> bool:
    return any(dim != 1 for dim in atom.type.shape)


def counting_index(shape: Shape, first: int) -> Index:
    """The loop variables of a value's axes, from number `first` on; axes of size 1 have none."""
    numbers = count(first)
    return tuple(Affine() if dim == 1 else Affine.variable(next(numbers)) for dim in shape)


def reduced_index(node: GraphNode, outer: int) -> Index:
    """The index of what a reduction reads: its own loops, then, from `outer` on, those it sums."""
    shape, axes = node.operands[0].type.shape, node.params["axes"]
    kept = iter(counting_index(node.results[0].type.shape, 0))
    inner = iter(counting_index(tuple(shape[axis] for axis in axes), outer))
    return tuple(next(inner) if axis in axes else next(kept) for axis in range(len(shape)))


def is_reduction(node: GraphNode) -> bool:
    """Whether a node is a reduction that the loop language can write."""
    real = not node.operands or not node.operands[0].type.dtype.is_complex
    return isinstance(node.primitive.kind, Reduction) and real


def is_function(node: GraphNode) -> bool:
    """Whether computing an element costs as much as reading and writing it does."""
    if not isinstance(node.primitive.kind, Elementwise):
        return False
    dtypes = [atom.type.dtype for atom in node.operands]
    return element_cost(node.primitive, dtypes, node.results[0].type.dtype, node.params) >= FUNCTION
