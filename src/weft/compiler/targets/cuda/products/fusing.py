"""Products take what follows them element by element, so that it is computed in registers.

For each product the pass looks for the last value that has to lie in memory anyway (another
product reads it, or the caller) and that is computed element by element of the product. What is in
between and is read elsewhere must follow from one value on the way, which is then stored, too: the
input of an activation serves its derivative. A sum over all rows of the last value becomes a sum of
partial sums, which the kernel makes.

>>> import weft as wf
>>> kinds = *[wf.spec("bfloat16", (64, 64))] * 3, wf.spec("bfloat16", (64,))
>>> graph = wf.ir.trace(lambda a, b, c, d: wf.relu(a @ b + d) @ c, *kinds)
>>> [node.primitive.name for node in fuse_epilogues(graph).nodes]
['call', 'dot']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.compiler.fusion.aliases import shares_memory
from weft.compiler.fusion.grouping import is_reduction
from weft.compiler.lowering.matrix_products import form_of
from weft.compiler.targets.cuda.products.float8 import decoders_of
from weft.compiler.targets.cuda.products.fused import (
    MULTIPLIED,
    ROWS_OF_SUM,
    describe_fused,
    is_elementwise,
)
from weft.core.dtypes import float32
from weft.core.errors import Unsupported
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Movement
from weft.ir.walking import Tally, without_dead_nodes
from weft.ops.contraction import dot
from weft.ops.control_call import call
from weft.ops.conversion import convert
from weft.ops.float8 import float8_codes
from weft.ops.movement import reshape
from weft.ops.reduction import reduce_sum

__all__ = ["fuse_epilogues"]

LARGEST_CONE = 64
"""Nodes that are looked at for one epilogue."""
FEWEST_SUMMED_ROWS = 1024
"""Rows from which partial sums pay: fewer are no work."""
SHORT_ALIGNMENT = 8
"""What 16-bit operands have a multiple of along their rows, for the kernels that make sums."""


def fuse_epilogues(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with products that do what follows them."""
    work = _Work(graph)
    for node in graph.nodes:
        is_known = node.primitive is dot and node.operands[0].type.dtype in MULTIPLIED
        if is_known and form_of(node) is not None and work.fuse(node) and tally is not None:
            tally["epilogues"] += 1
    return work.result() if work.fused else graph


@frozen(slots=False)
class _Cut:
    """What one epilogue computes: nodes from the product to `last`, and what is stored before."""

    nodes: tuple[GraphNode, ...]
    kept: Variable | None
    last: Variable


class _Work:
    """A graph while products in it are fused."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = list(graph.nodes)
        self.makers = {result: node for node in graph.nodes for result in node.results}
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.outputs = set(graph.outputs)
        self.users: dict[Atom, list[GraphNode]] = {}
        for node in graph.nodes:
            for atom in dict.fromkeys(node.operands):
                self.users.setdefault(atom, []).append(node)
        self.fused = 0

    def fuse(self, product: GraphNode) -> bool:
        """Fuse what follows a product, as far as that can be."""
        followers = self._followers(product)
        stored = [each for each in followers if self._is_stored(each.results[0])]
        for last in reversed(stored):
            cut = self._cut_at(product, last, followers)
            if cut is not None and (
                self._replace(product, cut, with_sums=True)
                or self._replace(product, cut, with_sums=False)
            ):
                self.fused += 1
                return True
        return self._fuse_codes(product)

    def _fuse_codes(self, product: GraphNode) -> bool:
        """Make a product of codes one node, with nothing that follows it."""
        if decoders_of(product, self.makers) is None:
            return False
        alone = _Cut((), None, product.results[0])
        done = any(self._replace(product, alone, with_sums=each) for each in (True, False))
        self.fused += done
        return done

    # --- what may be fused ------------------------------------------------------------------------

    def _followers(self, product: GraphNode) -> list[GraphNode]:
        """The nodes that are computed element by element of a product, in order."""
        value = product.results[0]
        reached = self._nodes_behind(value)
        found: dict[Variable, GraphNode] = {value: product}
        for node in sorted(reached, key=self.order.__getitem__):
            if not is_elementwise(node) or node.results[0].type.shape != value.type.shape:
                continue
            if all(
                atom in found or not self._is_in(atom, value, reached) for atom in node.operands
            ):
                found[node.results[0]] = node
                if len(found) > LARGEST_CONE:
                    break
        return [node for node in found.values() if node is not product]

    def _is_in(self, atom: Atom, value: Variable, reached: set[GraphNode]) -> bool:
        """Whether an atom is a value or depends on it."""
        if atom is value:
            return True
        maker = self.makers.get(atom) if isinstance(atom, Variable) else None
        return maker is not None and maker in reached

    def _nodes_behind(self, value: Variable) -> set[GraphNode]:
        """All nodes that depend on a value."""
        reached: set[GraphNode] = set()
        pending: list[Atom] = [value]
        while pending:
            for node in self.users.get(pending.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    pending += node.results
        return reached

    def _is_stored(self, value: Variable) -> bool:
        """Whether a value has to lie in memory, whatever is fused."""
        if value in self.outputs:
            return True
        for node in self.users.get(value, ()):
            if shares_memory(node):
                if self._is_stored(node.results[0]):
                    return True
            elif node.primitive is float8_codes:
                return True  # of a scale that all of the value is read for
            elif not (is_elementwise(node) or is_reduction(node) or _is_movement(node)):
                return True
        return False

    def _cut_at(
        self, product: GraphNode, last: GraphNode, followers: Sequence[GraphNode]
    ) -> _Cut | None:
        """The nodes of an epilogue that ends with a value, and the value that others need."""
        value = product.results[0]
        dependent = {node.results[0]: node for node in followers}
        inside = self._inputs_of(last, dependent)
        if inside is None or not self._is_given(product, inside):
            return None
        way = [value, *[v for v in dependent if dependent[v] in inside]]
        needed = [
            each
            for each in way
            if each is not last.results[0]
            and (each in self.outputs or any(u not in inside for u in self.users[each]))
        ]
        if not needed:
            return _Cut(tuple(inside), None, last.results[0])
        if self._updates_input(last, inside):
            return None  # state is brought up to date all at once elsewhere
        kept = self._common_source(value, needed, inside, last.results[0])
        if kept is None or kept.type.dtype.itemsize > value.type.dtype.itemsize:
            return None
        return _Cut(tuple(inside), kept, last.results[0])

    def _inputs_of(
        self, last: GraphNode, dependent: dict[Variable, GraphNode]
    ) -> list[GraphNode] | None:
        """The element-wise nodes that a value is computed by, in order; None where many.

        Those that do not depend on the product are computed again where they are not stored.
        """
        shape = last.results[0].type.shape
        inside = {last}
        pending = [last]
        while pending:
            for atom in pending.pop().operands:
                node = self.makers.get(atom) if isinstance(atom, Variable) else None
                if node is None or node in inside or not is_elementwise(node):
                    continue
                is_own = atom in dependent
                if is_own or (node.results[0].type.shape == shape and not self._is_stored(atom)):  # type: ignore[arg-type]
                    inside.add(node)
                    pending.append(node)
        return sorted(inside, key=self._place) if len(inside) <= LARGEST_CONE else None

    def _matrices(self, inside: Sequence[GraphNode]) -> Iterator[Variable]:
        """What nodes read that has an element for each of theirs, and is not their own."""
        shape = inside[-1].results[0].type.shape
        own = {node.results[0] for node in inside}
        for atom in {atom for node in inside for atom in node.operands} - own:
            if isinstance(atom, Variable) and atom.type.shape == shape:
                yield atom

    def _is_given(self, product: GraphNode, inside: Sequence[GraphNode]) -> bool:
        """Whether all that is read is there before the product: operands would be held for it."""
        place = self.order[product]
        made = [self.makers[each] for each in self._matrices(inside) if each in self.makers]
        return all(self.order[node] <= place for node in made)

    def _updates_input(self, last: GraphNode, inside: Sequence[GraphNode]) -> bool:
        """Whether the last value is an output that takes the place of an input."""
        inputs = [each for each in self._matrices(inside) if each in self.graph.inputs]
        return last.results[0] in self.outputs and bool(inputs)

    def _place(self, node: GraphNode) -> int:
        return self.order.get(node, -1)

    def _common_source(
        self,
        value: Variable,
        needed: Sequence[Variable],
        inside: Sequence[GraphNode],
        last: Variable,
    ) -> Variable | None:
        """The last value on the one way from the product that all needed values follow from."""
        source = value
        while source not in needed:
            readers = [node for node in self.users[source] if node in inside]
            if len(readers) != 1 or readers[0].results[0] is last:
                return None
            following = readers[0].results[0]
            grows = following.type.dtype.itemsize > source.type.dtype.itemsize
            if grows and readers[0].primitive is convert:
                return source  # the same numbers in fewer bytes
            source = following
        return source

    # --- the new node -----------------------------------------------------------------------------

    def _replace(self, product: GraphNode, cut: _Cut, *, with_sums: bool) -> bool:
        """Put one node in the place of a product and what follows it, if a kernel can do it."""
        sums = list(self._sums(cut.last)) if with_sums else []
        if with_sums and (not sums or not _makes_sums(product)):
            return False
        inner = [*(decoders_of(product, self.makers) or ()), product, *cut.nodes]
        made = {result for node in inner for result in node.results}
        kept = [] if cut.kept is None else [cut.kept]
        operands = list(dict.fromkeys(
            atom for node in inner for atom in node.operands
            if isinstance(atom, Variable) and atom not in made
        ))  # fmt: skip
        stored = [*kept, cut.last]
        partial = _partial_sums(cut.last, product) if sums else None
        copied = _copied_graph(operands, inner, stored, partial)
        try:
            describe_fused(copied)
        except Unsupported:
            return False
        results = [*stored, *([partial[-1].results[0]] if partial else [])]
        fused = GraphNode(
            call, tuple(operands), {"graph": copied}, tuple(results), product.location
        )
        self._install(fused, product)
        for node in sums:
            self._add_up(results[-1], node)
        return True

    def _sums(self, value: Variable) -> Iterator[GraphNode]:
        """The sums over all rows of a value."""
        axes = tuple(range(value.type.ndim - 1))
        for node in self.users.get(value, ()):
            if node.primitive is reduce_sum and node.params["axes"] == axes:
                yield node
            elif node.primitive is convert and node.results[0].type.dtype is float32:
                for other in self.users.get(node.results[0], ()):
                    if other.primitive is reduce_sum and other.params["axes"] == axes:
                        yield other

    def _install(self, fused: GraphNode, product: GraphNode) -> None:
        place = self.order[product]
        replaced = {self.makers[result] for result in fused.results if result in self.makers}
        self.nodes = [fused if node is product else node for node in self.nodes]
        self.nodes = [node for node in self.nodes if node not in replaced]
        self.order[fused] = place
        self._renew_users({product, *replaced}, fused)
        for result in fused.results:
            self.makers[result] = fused

    def _renew_users(self, removed: set[GraphNode], *added: GraphNode) -> None:
        for node in removed:
            for atom in dict.fromkeys(node.operands):
                self.users[atom] = [each for each in self.users[atom] if each is not node]
        for node in added:
            for atom in dict.fromkeys(node.operands):
                self.users.setdefault(atom, []).append(node)

    def _add_up(self, partial: Variable, node: GraphNode) -> None:
        """Partial sums added up in place of a sum."""
        result = node.results[0]
        if result.type.dtype is float32:
            nodes = [GraphNode(reduce_sum, (partial,), {"axes": (0,)}, (result,), node.location)]
        else:
            total = Variable(TensorType(float32, result.type.shape))
            nodes = [
                GraphNode(reduce_sum, (partial,), {"axes": (0,)}, (total,), node.location),
                GraphNode(
                    convert, (total,), {"dtype": result.type.dtype}, (result,), node.location
                ),
            ]
        place = self.nodes.index(node)
        self.nodes[place : place + 1] = nodes
        self._renew_users({node}, *nodes)
        for each in nodes:
            self.order[each] = self.order[node]
            self.makers[each.results[0]] = each

    def result(self) -> Graph:
        """The graph in an order that can be run, without what nobody needs any more."""
        nodes = tuple(_in_order(self.nodes))
        return without_dead_nodes(
            Graph(self.graph.inputs, nodes, self.graph.outputs, self.graph.name)
        )


def _is_movement(node: GraphNode) -> bool:
    return isinstance(node.primitive.kind, Movement)


def _makes_sums(product: GraphNode) -> bool:
    """Whether the kernel of a product is sure to make partial sums, whatever the sizes."""
    form = form_of(product)
    assert form is not None
    stack, rows, columns, inner = form.shape
    if form.dtype is float32 or stack != 1 or not isinstance(rows, int):
        return False
    if rows % ROWS_OF_SUM or rows < FEWEST_SUMMED_ROWS:
        return False
    lines = rows if form.turned[0] else inner, inner if form.turned[1] else columns, columns
    return all(isinstance(line, int) and line % SHORT_ALIGNMENT == 0 for line in lines)


def _partial_sums(value: Variable, product: GraphNode) -> list[GraphNode]:
    """The nodes of partial sums of a matrix over each so many rows."""
    columns = value.type.shape[-1]
    form = form_of(product)
    assert form is not None
    rows = form.shape[1]
    assert isinstance(rows, int)
    shape = rows // ROWS_OF_SUM, ROWS_OF_SUM, columns
    location = product.location
    blocks = Variable(TensorType(value.type.dtype, shape))
    wide = Variable(TensorType(float32, shape))
    sums = Variable(TensorType(float32, (shape[0], columns)))
    nodes = [GraphNode(reshape, (value,), {"shape": shape}, (blocks,), location)]
    if value.type.dtype is float32:
        wide = blocks
    else:
        nodes.append(GraphNode(convert, (blocks,), {"dtype": float32}, (wide,), location))
    return [*nodes, GraphNode(reduce_sum, (wide,), {"axes": (1,)}, (sums,), location)]


def _copied_graph(
    operands: Sequence[Variable],
    inner: Sequence[GraphNode],
    stored: Sequence[Variable],
    partial: Sequence[GraphNode] | None,
) -> Graph:
    """A graph of its own, with variables of its own."""
    renamed: dict[Atom, Atom] = {each: Variable(each.type, each.name) for each in operands}
    nodes = []
    for node in [*inner, *(partial or ())]:
        for result in node.results:
            renamed[result] = Variable(result.type, result.name)
        nodes.append(
            GraphNode(
                node.primitive,
                tuple(a if isinstance(a, Literal) else renamed[a] for a in node.operands),
                node.params,
                tuple(renamed[r] for r in node.results),  # type: ignore[misc]
                node.location,
            )
        )
    outputs = [*stored, *([partial[-1].results[0]] if partial else [])]
    inputs = tuple(renamed[each] for each in operands)
    return Graph(inputs, tuple(nodes), tuple(renamed[each] for each in outputs))  # type: ignore[arg-type]


def _in_order(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """The nodes, each as early as it stands and no earlier than what it reads."""
    makers = {result: node for node in nodes for result in node.results}
    done: dict[GraphNode, None] = {}
    for first in nodes:
        pending = [first]
        while pending:
            node = pending[-1]
            missing = [
                makers[atom]
                for atom in node.operands
                if isinstance(atom, Variable) and atom in makers and makers[atom] not in done
            ]
            if missing:
                pending += missing
            else:
                done[pending.pop()] = None
    return list(done)
