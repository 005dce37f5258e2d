"""Lowering: a group of nodes written as one kernel of the loop language.

Rows are divided over threads. Within a row, reductions are accumulated one after the other, values
per row are locals, and values over the whole space are stored by vector loops; a value that only
its own loop reads is never stored. Neighbouring loops that every access runs through in one
stretch are one loop.

>>> import weft as wf
>>> from weft.compiler.fusion.grouping import group
>>> from weft.compiler.targets.limits import Limits
>>> graph = wf.ir.trace(lambda x: x * 2 + 1, wf.spec("float32", (4, 8)))
>>> limits = Limits()
>>> (fused,) = group(graph, is_lowered, limits.fusion)
>>> print(lower(fused, context_of(graph, limits.lowering), "k").kernel)
kernel k(v0: both f32, v1: read f32; count)
  parallel vector i < count
    v0[i] = v1[i] * 2 + 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, reduce
from typing import Any

import numpy as np

from weft.compiler.fusion.element_reads import Reading
from weft.compiler.fusion.grouping import Group, Root, Step, counting_index, is_reduction
from weft.compiler.fusion.long_sums import with_blocks
from weft.compiler.fusion.split_reduction import accumulation_dtype, rows_left
from weft.compiler.lowering.group_reuse import Signature, rebound
from weft.compiler.lowering.row_vectors import rows_in_vectors
from weft.compiler.lowering.symbolic_size import Extents, count_at_run_time
from weft.compiler.lowering.transposed_tiles import in_tiles, tiled_loop
from weft.compiler.targets.limits import LoweringLimits
from weft.core.dimensions import is_negative
from weft.core.records import frozen
from weft.core.shapes import Dimension, size
from weft.ir import scalars
from weft.ir.affine_index import Affine, offset
from weft.ir.graph import Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Condition, Index, Movement, Reduction
from weft.ir.loops import (
    Accumulate,
    For,
    Kernel,
    Kind,
    Let,
    Scratch,
    Statement,
    Store,
    Update,
)
from weft.ir.scalar_functions import lower_element, why_not_lowered
from weft.ir.scalars import Buffer, Scalar
from weft.ir.walking import one_number


@frozen
class Context:
    """What is known of the graph that a group belongs to."""

    producer: dict[Variable, GraphNode]
    readers: dict[Variable, list[GraphNode]]
    outputs: frozenset[Variable]
    limits: LoweringLimits
    stored: frozenset[Variable] = frozenset()
    """The values that some group stores."""
    made: dict[Hashable, tuple[Lowered, Signature]] = field(default_factory=dict)
    """What was made of groups so far, by their signatures."""


def context_of(graph: Graph, limits: LoweringLimits, steps: Sequence[Step] = ()) -> Context:
    """The context of a graph's groups, which are among its steps."""
    readers: dict[Variable, list[GraphNode]] = {}
    for node in graph.nodes:
        for atom in node.operands:
            if isinstance(atom, Variable):
                readers.setdefault(atom, []).append(node)
    outputs = frozenset(atom for atom in graph.outputs if isinstance(atom, Variable))
    groups = [step for step in steps if isinstance(step, Group)]
    stored = frozenset(v for g in groups for r in g.roots for v in (r.variable, r.target[0]))
    producer = {v: n for n in graph.nodes for v in n.results}
    return Context(producer, readers, outputs, limits, stored)


@frozen
class Lowered:
    """A kernel, and the values that its buffers hold, in order."""

    kernel: Kernel
    values: tuple[Variable | Literal, ...]
    written: tuple[Variable, ...]
    known: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the kernel that are numbers here."""
    in_place: tuple[tuple[Variable, Variable], ...] = ()
    """Stored values, and read ones whose place they may take; see `_Lowering.in_place`."""
    by_rows: Mapping[Variable, Dimension] = field(default_factory=dict)
    """Values of which an iteration touches its own part only; see `_Lowering.by_rows`."""
    work: Dimension | None = None
    """How many element operations it is; None: as many as its group's space has elements."""


def is_lowered(node: GraphNode) -> bool:
    """Whether a node can be part of a kernel."""
    kinds = [atom.type.dtype for atom in (*node.operands, *node.results)]
    if any(kind.is_complex for kind in kinds) or len(node.results) != 1:
        return False
    kind = node.primitive.kind
    if isinstance(kind, Movement) and kind.read is not None:
        return kind.reads_if is None or kind.reads_if(node.params)
    if isinstance(kind, Reduction):
        return False
    return why_not_lowered(node.primitive, kinds[:-1], kinds[-1], node.params) is None


def lower(group: Group, context: Context, name: str) -> Lowered:
    """A group as a kernel; of equal groups, such as those of a network's layers, the first is."""
    lowering = _Lowering(group, context)
    signature = Signature(group, context.producer, lowering.escaping, lowering.outside)
    if signature.key not in context.made:
        context.made[signature.key] = lowering.kernel(name), signature
    return rebound(*context.made[signature.key], signature, name)


class _Elements(Reading[Scalar]):
    """Builds the scalar expression of one element."""

    def __init__(self, lowering: _Lowering) -> None:
        stored = {root.variable for root in lowering.group.roots}
        super().__init__(lowering.context.producer, stored | lowering.outside)
        self.lowering = lowering

    def load(self, variable: Variable, index: Index) -> Scalar:
        """A local where the value is at hand, else a load."""
        found = self.lowering.locals.get(variable)
        if found is not None:
            return found
        return self._load_element(variable, index)

    def _load_element(self, value: Variable | Literal, index: Index) -> Scalar:
        return scalars.load(*self.lowering.locate_element(value, index))

    def literal(self, literal: Literal, index: Index) -> Scalar:
        """A number, or a load from an array of constants."""
        number = one_number(literal.value)
        if number is not None:
            return scalars.const(number.item(), literal.type.dtype)
        return self._load_element(literal, index)

    def number(self, value: Any, node: GraphNode) -> Scalar:
        """A number of the node's dtype."""
        dtype = node.results[0].type.dtype
        return scalars.const(np.asarray(value).astype(dtype.numpy).item(), dtype)

    def position(self, index: Affine, node: GraphNode) -> Scalar:
        """An index as a number."""
        return scalars.cast(self.lowering.place(index), node.results[0].type.dtype)

    def operation(self, node: GraphNode, operands: list[Scalar]) -> Scalar:
        """The primitive's own lowering."""
        return lower_element(node.primitive, operands, node.results[0].type.dtype, node.params)

    def choice(self, conditions: Sequence[Condition], inside: Scalar, outside: Scalar) -> Scalar:
        """Select by the conditions; what is loaded inside is loaded only there."""
        holds = self.lowering.condition(conditions)
        return (
            inside
            if holds is None
            else scalars.select(holds, scalars.guard_loads(inside, holds), outside)
        )

    def only_where(self, conditions: Sequence[Condition], element: Scalar) -> Scalar:
        """The element, whose loads are made only where the conditions hold."""
        holds = self.lowering.condition(conditions)
        return element if holds is None else scalars.guard_loads(element, holds)


class _Lowering:
    """The state of writing one kernel."""

    def __init__(self, group: Group, context: Context) -> None:
        self.group = group
        self.context = context
        self.locals: dict[Variable, Scalar] = {}
        self.values: dict[Variable | Literal, Buffer] = {}
        self.extents = Extents()
        self.members = {root.variable for root in group.roots}
        self.outside = {
            atom
            for root in group.roots
            for atom, _ in root.reads
            if isinstance(atom, Variable) and atom not in self.members
        }
        self.joined = _whole_values(group)
        self.escaping = {v for v in self.members if self._is_read_outside(v)}
        self.tiled_loop = tiled_loop(group, self.merged_loops, context.limits.transposed_tile)

    # --- loops -------------------------------------------------------------------------------

    @cached_property
    def merged_loops(self) -> list[list[int]]:
        """Neighbouring loops that are one loop, outer and inner apart."""
        outer, whole = len(self.group.outer), len(self.group.outer + self.group.inner)
        merged: list[list[int]] = []
        for loop in range(whole):
            previous = merged[-1] if merged and loop != outer else None
            if previous is not None and self._are_contiguous(previous[-1], loop):
                previous.append(loop)
            else:
                merged.append([loop])
        return merged

    def _are_contiguous(self, first: int, second: int) -> bool:
        if any(_uses_positions(root, self.context) for root in self.group.roots):
            return False
        extent = (self.group.outer + self.group.inner)[second]
        return all(a.factor(first) == a.factor(second) * extent for a in self._accesses())

    def _accesses(self) -> list[Affine]:
        reads = [offset(i, v.type.shape) for root in self.group.roots for v, i in root.reads]
        return reads + [_stored_at(root) for root in self.group.roots]

    def extent(self, position: int) -> Scalar:
        """How often a merged loop runs."""
        total: Dimension = 1
        for loop in self.merged_loops[position]:
            total = total * (self.group.outer + self.group.inner)[loop]
        return self.dimension(total)

    def variable(self, position: int) -> Scalar:
        """The index of a merged loop."""
        return scalars.index("ijklmnop"[position] if position < 8 else f"i{position}")

    def place(self, where: Affine, first: int = 0) -> Scalar:
        """An offset over the merged loops, or over those from loop number `first` on."""
        total = self.dimension(where.constant)
        for position, loops in enumerate(self.merged_loops):
            factor = where.factor(loops[-1])
            if factor != 0 and loops[0] >= first:
                total = self.variable(position) * self.dimension(factor) + total
        return total

    def condition(self, conditions: Sequence[Condition]) -> Scalar | None:
        """Whether indices are within their bounds; None where they always are."""
        tests: list[Scalar] = []
        for index, bound in conditions:
            least, most = index.range(self.group.outer + self.group.inner)
            start = -index.constant
            moving = self.place(index + start)  # so that neighbours share the test at their border
            if not is_negative(-least - 1):
                tests.append(scalars.not_(scalars.less(moving, self.dimension(start))))
            if not is_negative(most - bound):
                tests.append(scalars.less(moving, self.dimension(bound + start)))
        return reduce(scalars.and_, tests) if tests else None

    def dimension(self, dim: Dimension) -> Scalar:
        """A size as an expression over the symbols, which the kernel is given."""
        return self.extents.extent_of(dim)

    # --- values ------------------------------------------------------------------------------

    def buffer(self, value: Variable | Literal, access: scalars.Access = "read") -> Buffer:
        """The buffer that holds a value."""
        known = self.values.get(value)
        if known is None:
            known = Buffer(f"v{len(self.values)}", value.type.dtype, access)
            self.values[value] = known
        return known

    def locate_element(self, value: Variable | Literal, index: Index) -> tuple[Buffer, Scalar]:
        """The buffer that holds a value, and where in it an element is."""
        where = offset(index, value.type.shape)
        row = self.held_rows.get(value)
        if row is None:
            return self.buffer(value), self.place(where)
        return row, self.place(where, len(self.group.outer))

    @cached_property
    def held_rows(self) -> dict[Variable | Literal, Buffer]:
        """Values that nothing but later loops over the same row reads: a row of each in scratch."""
        row = size(self.group.inner)
        if not self.group.inner or not isinstance(row, int) or self._rows_go_in_vectors:
            return {}
        found = self._read_by_later_loops() - self.escaping
        fits = [r.variable for r in self.group.roots if r.variable in found]
        return {
            v: Buffer(f"s{number}", v.type.dtype, "scratch")
            for number, v in enumerate(fits)
            if row * v.type.dtype.itemsize <= self.context.limits.held_row_bytes
        }

    def _is_read_outside(self, variable: Variable) -> bool:
        """Whether a value is read outside the group."""
        if variable in self.context.outputs:
            return True
        pending = list(self.context.readers.get(variable, ()))
        seen: set[Variable] = set()
        while pending:
            node = pending.pop()
            result = node.results[0]
            if result in self.members or result in self.joined or result in seen:
                continue
            seen.add(result)
            readers = self.context.readers.get(result, ())
            is_whole = result in self.context.outputs or result in self.context.stored
            if not readers or is_whole or len(node.results) != 1 or not _is_inlined(node):
                return True
            pending += readers
        return False

    # --- statements --------------------------------------------------------------------------

    def kernel(self, name: str) -> Lowered:
        """The kernel of the whole group."""
        self.elements = _Elements(self)
        for root in self.group.roots:
            if root.variable in self._stored_roots and root.variable not in self.held_rows:
                self.buffer(root.target[0], "both")
        body = self._column_body() if self._rows_go_in_vectors else self._row_body()
        if self.tiled_loop is not None:
            pair = self.variable(self.tiled_loop), self.variable(len(self.merged_loops) - 1)
            body = in_tiles(body, pair, self.context.limits.transposed_tile)
        body, known = count_at_run_time(body) if not self.extents.symbols else (body, {})
        divides = self.context.limits.divided_reduction_elements > 0
        body = with_blocks(body, is_outermost=divides)
        sizes = (*self.extents.symbols, *known)
        row = self.dimension(size(self.group.inner)) if self.held_rows else None
        scratch = tuple(
            Scratch(buffer, row) for buffer in self.held_rows.values() if row is not None
        )
        kernel = Kernel(name, tuple(self.values.values()), sizes, body, scratch)
        made = {r.target[0] for r in self.group.roots if r.variable in self._stored_roots}
        written = tuple(v for v in self.values if v in made)
        pairs, rows = tuple(self.in_place()), self.by_rows()
        return Lowered(kernel, tuple(self.values), written, known, pairs, rows)

    def by_rows(self) -> dict[Variable, Dimension]:
        """Values that each iteration of the first loop touches a part of, which is its own.

        The parts lie one after the other and make up the whole. Indices are within their bounds,
        so that what the other loops add stays below a part where nothing is added to it.
        """
        if not self.merged_loops or self.merged_loops[0][0] >= len(self.group.outer):
            return {}
        rows = [loops for loops in self.merged_loops if loops[0] < len(self.group.outer)]
        if (len(rows) == 1 and self._rows_go_in_vectors) or self.tiled_loop == 0:  # no row: a tile
            return {}
        first = self.merged_loops[0]
        count = size((self.group.outer + self.group.inner)[loop] for loop in first)
        accesses: dict[Variable | Literal, set[Affine]] = {}
        for root in self.group.roots:
            for atom, index in (root.target, *root.reads):
                accesses.setdefault(atom, set()).add(offset(index, atom.type.shape))
        found: dict[Variable, Dimension] = {}
        for value, places in accesses.items():
            parts = {place.factor(first[-1]) for place in places}
            part = parts.pop() if len(parts) == 1 else 0
            starts = all(place.constant == 0 for place in places)
            if isinstance(value, Variable) and starts and part * count == size(value.type.shape):
                found[value] = part
        return found

    def in_place(self) -> Iterator[tuple[Variable, Variable]]:
        """Pairs of a stored value and a read one that may lie in one place.

        The first is stored by the last loop of a row, at a place where the other is read before,
        and no other place of the other is read: rows do not see each other's memory.
        """
        last = self._loops()[-1] if self.group.inner else self.group.roots
        if self.group.inner and self.group.per_row(last[0]):
            return
        places: dict[Variable | Literal, set[Affine]] = {}
        for root in self.group.roots:
            for atom, index in root.reads:
                places.setdefault(atom, set()).add(offset(index, atom.type.shape))
        for root in last:
            if root.variable in self._stored_roots and root.part is None:
                own = _stored_at(root)
                for atom in self.values:
                    fits = atom in self.outside and places.get(atom) == {own}
                    if fits and isinstance(atom, Variable) and _same_bytes(atom, root.variable):
                        yield root.variable, atom

    @cached_property
    def _stored_roots(self) -> set[Variable]:
        """Roots that need memory: read elsewhere, or by a later loop over the same row."""
        parts = {root.variable for root in self.group.roots if root.is_partial}
        return self.escaping | self._read_by_later_loops() | parts

    def _read_by_later_loops(self) -> set[Variable]:
        found: set[Variable] = set()
        loop_of: dict[Variable, int] = {}
        for number, roots in enumerate(self._loops()):
            for root in roots:
                loop_of[root.variable] = number
                found.update(
                    v
                    for v, _ in root.reads
                    if v in loop_of
                    and loop_of[v] != number
                    and not self.group.per_row(self._root(v))
                )
        return found

    def _root(self, variable: Variable) -> Root:
        return next(root for root in self.group.roots if root.variable is variable)

    def _loops(self) -> list[list[Root]]:
        """Roots in the order they are computed; those over the whole space share loops."""
        loops: list[list[Root]] = []
        pending: list[Root] = []
        for root in self.group.roots:
            if not self.group.per_row(root):
                pending.append(root)
                continue
            if {v for v, _ in root.reads} & {each.variable for each in pending}:
                loops.append(pending)
                pending = []
            loops.append([root])
        return [*loops, pending] if pending else loops

    def _row_body(self) -> tuple[Statement, ...]:
        rows = [p for p, loops in enumerate(self.merged_loops) if loops[0] < len(self.group.outer)]
        inner = [p for p in range(len(self.merged_loops)) if p not in rows]
        if not self.group.inner:
            return self._nest(rows, self._stores(self.group.roots), vector=True)
        body: list[Statement] = []
        for roots in self._loops():
            if self.group.per_row(roots[0]):
                body += self._row_value(roots[0], inner)
            else:
                body += self._nest(inner, self._stores(roots), vector=True, parallel=False)
                for root in roots:
                    self._forget(root.variable)
        return self._nest(rows, tuple(body), vector=False)

    def _nest(
        self,
        positions: Sequence[int],
        body: tuple[Statement, ...],
        *,
        vector: bool,
        parallel: bool = True,
    ) -> tuple[Statement, ...]:
        """Statements inside loops: the first divided over threads, the last in vectors."""
        for position in reversed(positions):
            last, first = position == positions[-1], position == positions[0]
            kinds = ("parallel " * (first and parallel) + "vector" * (last and vector)).strip()
            kind: Kind = kinds or "serial"  # type: ignore[assignment]
            body = (For(self.variable(position), self.extent(position), body, kind),)
        return body

    def _stores(self, roots: Sequence[Root]) -> tuple[Statement, ...]:
        """Compute roots over the whole space, at one place, and then store those that are needed.

        Everything is read before anything is stored, so that results may take operands' places.
        """
        statements: list[Statement] = []
        stores: list[Statement] = []
        for root in roots:
            value = self._value(root)
            local = scalars.local(f"x{len(self.locals)}", value.dtype)
            if len(roots) > 1:
                statements.append(Let(local, value))
                self._define(root.variable, local)
                value = local
            if root.variable in self._stored_roots:
                stores.append(self._store(root, value))
        return (*statements, *stores)

    def _define(self, variable: Variable, local: Scalar) -> None:
        self.locals[variable] = local
        self.elements._known.clear()

    def _forget(self, variable: Variable) -> None:
        self.locals.pop(variable, None)
        self.elements._known.clear()

    def _value(self, root: Root) -> Scalar:
        """One element of a root, or of what a reduction reads."""
        if not is_reduction(root.node):
            return self.elements.of_node(root.node, counting_index(root.variable.type.shape, 0))
        element = self.elements.element_at(root.node.operands[0], root.operand_index)
        return self._term(root.node, element)

    def _term(self, node: GraphNode, element: Scalar) -> Scalar:
        """What a reduction combines of an element: itself, where the definition says no more."""
        if node.primitive.lower is None:
            return element
        dtype = accumulation_dtype(node.results[0].type.dtype)
        return lower_element(node.primitive, [element], dtype, node.params)

    def _store(self, root: Root, value: Scalar) -> Store:
        return Store(*self.locate_element(*root.target), value)

    def _row_value(self, root: Root, inner: Sequence[int]) -> list[Statement]:
        """A value per row: a reduction, or an operation on such; a local from here on."""
        dtype = root.variable.type.dtype
        value = self._value(root)
        local = scalars.local(f"r{len(self.locals)}", accumulation_dtype(value.dtype))
        statements: list[Statement] = []
        if root.is_reduction:
            wide = scalars.cast(value, local.dtype)
            statements += self._accumulation(root, wide, local, inner)
        else:
            statements.append(Let(local, scalars.cast(value, local.dtype)))
        self._define(root.variable, scalars.cast(local, dtype))
        if root.variable in self._stored_roots:
            statements.append(self._store(root, self.locals[root.variable]))
        return statements

    def _accumulation(
        self, root: Root, value: Scalar, local: Scalar, inner: Sequence[int]
    ) -> list[Statement]:
        """A reduction over one or several loops; inner ones are accumulated first."""
        kind = root.node.primitive.kind
        assert isinstance(kind, Reduction)
        positions = list(inner)
        if not positions:
            return [Let(local, value)]
        if value.op == "const" and value.dtype.is_integer and kind.combine == "add":  # a count
            extents = [self.extent(position) for position in positions]
            count = scalars.cast(reduce(scalars.multiply, extents), local.dtype)
            return [Let(local, count * value)]
        body: tuple[Statement, ...] = ()
        for depth, position in enumerate(reversed(positions)):
            last = depth == len(positions) - 1
            into = local if last else scalars.local(f"{local.detail}p{depth}", local.dtype)
            update = Update(into, kind.combine, value)
            extent = self._rows(root, position) if depth == 0 else self.extent(position)
            body = (Accumulate(self.variable(position), extent, (update,), body),)
            value = into
        return list(body)

    def _rows(self, root: Root, position: int) -> Scalar:
        """How often the innermost loop of a reduction runs; the last chunk may have fewer rows."""
        own = counting_index(root.variable.type.shape, 0)
        left = rows_left(own, root.node, root.rows) if root.rows else None
        if left is None:
            return self.extent(position)
        count, start = left
        return scalars.minimum(self.extent(position), self.dimension(count) - self.place(start))

    # --- sums over columns -------------------------------------------------------------------

    @cached_property
    def _rows_go_in_vectors(self) -> bool:
        return rows_in_vectors(self.group, self.context.limits)

    def _column_body(self) -> tuple[Statement, ...]:
        rows = [p for p, loops in enumerate(self.merged_loops) if loops[0] < len(self.group.outer)]
        inner = [p for p in range(len(self.merged_loops)) if p not in rows]
        body: list[Statement] = []
        for root in self.group.roots:
            body += self._row_value(root, inner)
        return self._nest(rows, tuple(body), vector=True)


def _whole_values(group: Group) -> set[Variable]:
    """The values that are made of parts which are all in a group."""
    counts = Counter(root.part.whole for root in group.roots if root.part is not None)
    parts = {root.part.whole: root.part.count for root in group.roots if root.part is not None}
    return {whole for whole, count in counts.items() if count == parts[whole]}


def _stored_at(root: Root) -> Affine:
    """Where the element of a root that the loops are at is stored."""
    whole, index = root.target
    return offset(index, whole.type.shape)


def _same_bytes(one: Variable, other: Variable) -> bool:
    a, b = one.type, other.type
    return a.dtype.itemsize == b.dtype.itemsize and size(a.shape) == size(b.shape)


def _is_inlined(node: GraphNode) -> bool:
    return is_lowered(node) and not is_reduction(node)


def _uses_positions(root: Root, context: Context) -> bool:
    """Whether an expression looks at single indices."""
    stack = [root.node]
    seen: set[Variable | Literal] = {variable for variable, _ in root.reads}
    while stack:
        node = stack.pop()
        kind = node.primitive.kind
        if isinstance(kind, Movement) and kind.by_place:
            return True
        for atom in node.operands:
            if atom not in seen and isinstance(atom, Variable) and atom in context.producer:
                seen.add(atom)
                stack.append(context.producer[atom])
    return False
