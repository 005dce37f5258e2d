"""A softmax with the gradient of its cross entropy as one node, for targets that read logits once.

A training step over a large vocabulary needs of each row of logits the highest one, the sum of
exponentials, and the gradient: the softmax times a factor, with a term added at the label. Factors
and terms (mean, ignored labels, weights of classes, scale of the loss) are numbers of a row that
are known before the softmax, so one pass over a row that is held can do all three.

>>> import weft as wf
>>> kinds = wf.spec("bfloat16", (4, 8192)), wf.spec("int64", (4,))
>>> def loss(x, y):
...     return wf.nn.functional.cross_entropy(x.astype("float32"), y)
>>> graph = wf.ir.trace(wf.value_and_grad(loss), *kinds)
>>> from weft.compiler.pipeline import optimize
>>> from weft.compiler.targets.target import target_named
>>> rows = CrossEntropyFusion(optimize(graph, target_named("plain"))).run()
>>> [str(v.type) for n in rows.nodes if n.primitive is softmax_gradient for v in n.results]
['f32[4]', 'f32[4]', 'bf16[4, 8192]']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.compiler.graph_passes.dead_code import remove_dead_code
from weft.core.dtypes import DType, bfloat16, float16, float32, int64
from weft.core.errors import DTypeError, ShapeError, Unsupported
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Opaque
from weft.ir.primitive import Primitive, Sample
from weft.ir.walking import Walk, is_pure, replace_node
from weft.ops.conversion import convert
from weft.ops.movement import reshape

__all__ = ["CrossEntropyFusion", "softmax_gradient"]

Array = np.ndarray[Any, Any]
_REASON = Unsupported("it stands in compiled programs only, after derivatives and batching")
_NARROW = (bfloat16, float16)


# --- the primitive -------------------------------------------------------------------------------


def _type_rule(
    x: TensorType, labels: TensorType, terms: TensorType, factors: TensorType, *before: TensorType
) -> tuple[TensorType, TensorType, TensorType]:
    got = {"x": x, "labels": labels, "terms": terms, "factors": factors}
    if x.dtype not in _NARROW or (labels.dtype, terms.dtype, factors.dtype) != (
        int64,
        float32,
        float32,
    ):
        raise DTypeError(
            "softmax_gradient",
            "not the dtypes of logits, labels, terms and factors",
            expected="bfloat16 or float16, int64, float32, float32",
            got=got,
            fix="convert what is given",
        )
    if x.ndim != 2 or any(each.shape != x.shape[:1] for each in (labels, terms, factors)):
        raise ShapeError(
            "softmax_gradient",
            "labels, terms and factors are not one for each row",
            expected="x: [rows, columns], the others: [rows]",
            got=got,
            fix="reshape what is given",
        )
    rows = TensorType(float32, x.shape[:1])
    return rows, rows, x


def _reference(
    x: Array, labels: Array, terms: Array, factors: Array, *before: Array
) -> tuple[Array, Array, Array]:
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        top = wide.max(axis=1, initial=-np.inf)
        powers = np.exp(wide - top[:, None])
        total = powers.sum(axis=1)
        gradient = powers * (factors / total)[:, None]
    is_label = labels[:, None] == np.arange(x.shape[1])
    gradient = np.where(is_label, gradient + terms[:, None], gradient)
    return top, total, gradient.astype(x.dtype)


def _samples() -> list[Sample]:
    rng = np.random.default_rng(3)
    terms, factors = (rng.normal(size=3).astype(np.float32) for _ in range(2))
    return [
        Sample(
            (rng.normal(size=(3, 16)).astype(dtype), np.array([2, 15, -1]), terms, factors),
            derivative=False,
        )
        for dtype in (np.float16, bfloat16.numpy)
    ]


softmax_gradient: Primitive = Primitive(
    "softmax_gradient",
    "Rows' highest numbers, sums of exponentials, and softmax · factor with a term at the label; "
    "further operands are computed before, as the gradient may take the logits' place.",
    kind=Opaque(),
    lower=Unsupported("targets whose multiprocessors hold a row have code of their own for it"),
    type_rule=_type_rule,
    reference=_reference,
    derivatives=_REASON,
    batch=_REASON,
    samples=_samples,
    multiple=True,
)


# --- the pass ------------------------------------------------------------------------------------


@frozen(slots=False, eq=False)
class _Site:
    """A softmax over rows and the gradient of a cross entropy of it, in the form passes give."""

    x: Atom  # [rows, columns], of 16 bits
    labels: Atom  # [rows, 1]
    terms: Atom  # [rows, 1]
    factors: Atom  # [rows, 1]
    picks: tuple[Variable, ...]  # elements of x at places, which do not need the softmax
    top: Variable  # [rows]
    total: Variable  # [rows]
    gradient: Variable  # [rows, columns], of x's dtype


class CrossEntropyFusion(Walk):
    """Makes each such site one node, also in graphs inside; targets say which rows they hold."""

    def is_held(self, logits: TensorType) -> bool:
        """Whether the target holds rows of logits of a type."""
        return logits.ndim == 2

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        """Keep every node: sites are looked for in the graph as a whole."""
        return None

    def run(self) -> Graph:
        """The graph with the nodes of sites."""
        graph = super().run()
        finder = _Finder(graph)
        sites = [site for site in finder.sites() if self.is_held(site.x.type)]
        if not sites:
            return graph
        self.tally["cross entropy"] += len(sites)
        return remove_dead_code(_with_sites(graph, sites, finder.makers))


class _Finder:
    """Looks for sites by the sum that their gradients end in."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = {v: node for node in graph.nodes for v in node.results}
        self.readers: dict[Variable, list[GraphNode]] = {}
        for node in graph.nodes:
            for atom in {a for a in node.operands if isinstance(a, Variable)}:
                self.readers.setdefault(atom, []).append(node)

    def sites(self) -> Iterator[_Site]:
        """All sites."""
        for node in self.graph.nodes:
            if node.primitive.name == "add":
                for one_hot, weighted in (node.operands, node.operands[::-1]):
                    site = self._site(node.results[0], one_hot, weighted)
                    if site is not None:
                        yield site
                        break

    def _operands_of(self, atom: Atom, name: str) -> tuple[Atom, ...]:
        """The operands of the node that makes a value, if it is of that name; else none."""
        node = self.makers.get(atom) if isinstance(atom, Variable) else None
        return node.operands if node is not None and node.primitive.name == name else ()

    def _site(self, result: Variable, one_hot: Atom, weighted: Atom) -> _Site | None:
        marked, softmax = self._label_term(one_hot), self._softmax(weighted)
        if marked is None or softmax is None:
            return None
        (labels, terms), (x, factors, top, total) = marked, softmax
        gradient = self._gradient_value(result, x.type.dtype)
        columns = (x.type.shape[0], 1)
        if gradient is None or not (labels.type.shape == terms.type.shape == columns):
            return None
        own = {self.makers[top], self.makers[total]}
        if any(self._depends_on(own, atom) for atom in (labels, terms, factors)):
            return None
        picks = [
            node.results[0]
            for node in self.graph.nodes
            if node.primitive.name == "gather" and self._source(node.operands[0]) is self._source(x)
        ]
        picks = [pick for pick in picks if not self._depends_on(own, pick)]
        return _Site(x, labels, terms, factors, tuple(picks), top, total, gradient)

    def _source(self, atom: Atom) -> Atom:
        """The value whose elements a value has, in another shape."""
        for name in ("reshape", "barrier"):
            moved = self._operands_of(atom, name)
            if moved:
                return self._source(moved[0])
        return atom

    def _label_term(self, atom: Atom) -> tuple[Atom, Atom] | None:
        """Labels and terms of where(labels == 0, 1, 2, …, terms, 0)."""
        chosen = self._operands_of(atom, "where")
        if not chosen or not _is_zero(chosen[2]):
            return None
        pair = self._operands_of(chosen[0], "equal")
        for labels, places in (pair, pair[::-1]) if pair else ():
            node = self.makers.get(places) if isinstance(places, Variable) else None
            counts = node is not None and node.primitive.name == "iota"
            if counts and node is not None and node.params["axis"] == places.type.ndim - 1:
                is_line = places.type.shape == (1, atom.type.shape[-1])
                return (labels, chosen[1]) if is_line and labels.type.dtype is int64 else None
        return None

    def _softmax(self, atom: Atom) -> tuple[Atom, Atom, Variable, Variable] | None:
        """Logits, factors, highest and sums of (factors / sums) · exp(logits - highest)."""
        product = self._operands_of(atom, "multiply")
        for ratio, powers in (product, product[::-1]) if product else ():
            share, difference = self._operands_of(ratio, "divide"), self._operands_of(powers, "exp")
            moved = self._operands_of(difference[0], "subtract") if difference else ()
            if not share or not moved or share[0].type.ndim != 2:
                continue
            total = self._reduction_along_rows(share[1], "reduce_sum", powers)
            top = self._reduction_along_rows(moved[1], "reduce_max", moved[0])
            if total is not None and top is not None:
                wide = self._operands_of(moved[0], "convert")
                x = wide[0] if wide and wide[0].type.dtype in _NARROW else moved[0]
                return (x, share[0], top, total) if x.type.dtype in _NARROW else None
        return None

    def _reduction_along_rows(self, column: Atom, name: str, of: Atom) -> Variable | None:
        """The value [rows] that a column [rows, 1] is, if it is a reduction of that along rows."""
        line = self._operands_of(column, "reshape")
        source = self._operands_of(line[0], name) if line else ()
        if not source or source[0] is not of or of.type.ndim != 2:
            return None
        reduced = line[0]
        assert isinstance(reduced, Variable)
        is_row = self.makers[reduced].params["axes"] == (1,) and column.type.shape[1] == 1
        return reduced if is_row else None

    def _gradient_value(self, result: Variable, dtype: DType) -> Variable | None:
        """The gradient in the dtype of the logits, if it is needed in no other."""
        if result.type.dtype is dtype:
            return result
        readers = self.readers.get(result, [])
        if len(readers) != 1 or result in self.graph.outputs:
            return None
        rounded = readers[0].results[0]
        is_rounding = readers[0].primitive is convert and rounded.type.dtype is dtype
        return rounded if is_rounding else None

    def _depends_on(self, nodes: set[GraphNode], value: Atom) -> bool:
        """Whether a value is computed by one of some nodes, or of their results."""
        left = [value]
        seen: set[Atom] = set()
        while left:
            atom = left.pop()
            node = self.makers.get(atom) if isinstance(atom, Variable) else None
            if node is None or atom in seen:
                continue
            if node in nodes:
                return True
            seen.add(atom)
            left += node.operands
        return False


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and atom.value.ndim == 0 and not float(atom.value)


def _with_sites(graph: Graph, sites: Sequence[_Site], makers: dict[Variable, GraphNode]) -> Graph:
    """The graph with the nodes of sites; what they read is put before what reads their results."""
    renamed: dict[Atom, Atom] = {}
    makers = dict(makers)
    for site in sites:
        node = makers[site.gradient]
        for new in _site_nodes(site, node, renamed):
            makers |= dict.fromkeys(new.results, new)
    placed: dict[GraphNode, GraphNode] = {}

    def place(last: GraphNode) -> None:
        """Add a node behind the nodes that it reads."""
        left = [last]
        while left:
            node = left[-1]
            operands = tuple([renamed.get(atom, atom) for atom in node.operands])
            needed = [makers[a] for a in operands if isinstance(a, Variable) and a in makers]
            waiting = [each for each in needed if each not in placed]
            if waiting:
                left += waiting
                continue
            left.pop()
            if node not in placed:
                placed[node] = replace_node(node, operands=operands)

    outputs = tuple([renamed.get(atom, atom) for atom in graph.outputs])
    needed = _needed_nodes(outputs, makers, renamed)
    for node in graph.nodes:
        if node in needed or not is_pure(node):
            place(node)
    for atom in outputs:
        if isinstance(atom, Variable) and atom in makers:
            place(makers[atom])
    return Graph(graph.inputs, tuple(placed.values()), outputs, graph.name)


def _needed_nodes(
    outputs: Sequence[Atom], makers: dict[Variable, GraphNode], renamed: dict[Atom, Atom]
) -> set[GraphNode]:
    """The nodes that outputs are computed by: others would be placed too early for their sake."""
    needed: set[GraphNode] = set()
    left = list(outputs)
    while left:
        atom = left.pop()
        node = makers.get(atom) if isinstance(atom, Variable) else None
        if node is not None and node not in needed:
            needed.add(node)
            left += [renamed.get(each, each) for each in node.operands]
    return needed


def _site_nodes(site: _Site, like: GraphNode, renamed: dict[Atom, Atom]) -> list[GraphNode]:
    """The nodes of a site; says which values they replace."""
    nodes: list[GraphNode] = []

    def put(primitive: Primitive, *operands: Atom, **params: Any) -> tuple[Variable, ...]:
        kinds = primitive.type_rule(*[atom.type for atom in operands], **params)
        every = (kinds,) if isinstance(kinds, TensorType) else kinds
        results = tuple([Variable(kind) for kind in every])
        nodes.append(GraphNode(primitive, operands, params, results, like.location))
        return results

    def line(column: Atom, dtype: DType) -> Atom:
        """[rows, 1] as [rows], in a dtype."""
        (flat,) = put(reshape, column, shape=column.type.shape[:1])
        return flat if flat.type.dtype is dtype else put(convert, flat, dtype=dtype)[0]

    operands = [line(site.labels, int64), *[line(x, float32) for x in (site.terms, site.factors)]]
    top, total, gradient = put(softmax_gradient, site.x, *operands, *site.picks)
    renamed[site.gradient] = gradient
    for old, new in ((site.top, top), (site.total, total)):
        narrow = old.type.dtype is not float32
        renamed[old] = put(convert, new, dtype=old.type.dtype)[0] if narrow else new
    return nodes
