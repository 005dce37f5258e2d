"""Attention written by hand becomes the primitive: softmax(q @ kᵀ · scale + mask) @ v.

A softmax along rows, whose scores are a product of two matrices, scaled and masked, is a *site*.
What is computed from its probabilities are products with values, and in a training step those
that give the three gradients; the cotangent of the scores is recognised by its polynomial. If all
of these can be replaced, so that nothing needs the probabilities any more, they are: no matrix of
queries × keys is left. Otherwise the graph stays as it is, as it does where sizes are small; the
primitive itself becomes products there.

>>> import weft as wf
>>> kind = wf.spec("float32", (2, 256, 16))
>>> graph = wf.ir.trace(lambda q, k, v: wf.softmax(q @ k.mT * 0.25) @ v, *[kind] * 3)
>>> from weft.compiler.pipeline import optimize
>>> [node.primitive.name for node in optimize(graph).nodes]
['attention']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.passes.causality import causal_offset
from weft.compiler.passes.polynomials import (
    Polynomial,
    Polynomials,
    Sum,
    factors,
    ratio,
    uniform,
)
from weft.core.dtypes import float32, float64
from weft.core.shapes import Dimension
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.tensor import Tensor
from weft.ir.tracing import trace
from weft.ir.walking import Tally, Walk, is_pure
from weft.ops.attention import attention, attention_gradient, plain_attention, plain_gradient
from weft.ops.contraction import dot, free_axes
from weft.ops.movement import transpose

__all__ = ["recognize_attention"]

FEWEST = 128
"""Queries below which what is written as products stays so; twice as many where no key is hidden
by its place, as then no block of keys can be left out. See docs/design/attention.md."""
SMALL = 64
"""Queries below which the primitive becomes products."""
HIDDEN = -1e6
"""A number that hides a key from a query which sees others, as -inf does."""
Makers = dict[Variable, GraphNode]


def recognize_attention(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with attention as one primitive, where that pays."""
    return _Rewrite(graph, tally).run()


# --- views ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """A value with its axes in another order, times a number."""

    atom: Atom
    order: tuple[int, ...]
    scale: float = 1.0

    def same(self, other: View) -> bool:
        """Whether two views show the same, up to the number."""
        return self.atom is other.atom and self.order == other.order


def _view(atom: Atom, order: tuple[int, ...], makers: Makers) -> View:
    """What is behind transposes and factors."""
    scale = 1.0
    while isinstance(atom, Variable) and atom in makers:
        node = makers[atom]
        if node.primitive is transpose:
            order = tuple(node.params["order"][axis] for axis in order)
            atom = node.operands[0]
            continue
        found = _scaled(node, makers)
        if found is None:
            break
        atom, scale = found[0], scale * found[1]
    return View(atom, order, scale)


def _scaled(node: GraphNode, makers: Makers) -> tuple[Atom, float] | None:
    """What a node multiplies by a number, and the number."""
    if node.primitive.name not in ("multiply", "divide"):
        return None
    pairs = [(node.operands[0], node.operands[1])]
    if node.primitive.name == "multiply":
        pairs.append((node.operands[1], node.operands[0]))
    for value, factor in pairs:
        number = uniform(factor, makers)
        if number and np.isfinite(number) and value.type.shape == node.results[0].type.shape:
            return value, number if node.primitive.name == "multiply" else 1 / number
    return None


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a matrix of queries × keys: which axis it sums over, and the other operand.

    other: as [batch, summed, kept]; order: from [batch, left over, kept] to the node's result.
    """

    node: GraphNode
    summed: int
    other: View
    order: tuple[int, ...]


def _product(node: GraphNode, matrix: Variable, makers: Makers) -> Product | None:
    """How a node multiplies a matrix of each batch by another one."""
    count = matrix.type.ndim - 2
    sides = [side for side, atom in enumerate(node.operands) if atom is matrix]
    if node.primitive is not dot or len(sides) != 1:
        return None
    side = sides[0]
    contract, batch = node.params["contract"], node.params["batch"]
    other = node.operands[1 - side]
    free = free_axes(other.type.ndim, contract[1 - side], batch[1 - side])
    if len(contract[0]) != 1 or set(batch[side]) != set(range(count)) or len(free) != 1:
        return None
    paired = dict(zip(batch[side], batch[1 - side], strict=True))
    stack = tuple(paired[axis] for axis in range(count))
    order = (*stack, contract[1 - side][0], free[0])
    ends = (count, count + 1) if side == 0 else (count + 1, count)
    result = (*batch[side], *ends)
    return Product(node, contract[side][0] - count, _view(other, order, makers), result)


# --- sites ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Site:
    """A softmax of scaled and masked products of queries and keys, and what is made of it."""

    scores: GraphNode
    q: View
    k: View
    scale: float
    powers: Variable
    """Exponentials of scores, less the largest of each row."""
    conditions: list[tuple[Atom, bool]] = field(default_factory=list)
    """Truth values, and whether they say what is hidden."""
    masks: list[tuple[Atom, bool]] = field(default_factory=list)
    """Those among them that no offset says."""
    biases: list[Atom] = field(default_factory=list)
    offset: Dimension | None = None
    v: View | None = None
    ct: View | None = None
    results: dict[Variable, tuple[str, Product, float]] = field(default_factory=dict)
    """For each product that is replaced: by what, and times which number."""


def _softmax(node: GraphNode, makers: Makers) -> tuple[Variable, Variable] | None:
    """Scores and exponentials of exp(s - max(s)), the numerator of a softmax along rows."""
    if node.primitive.name != "exp":
        return None
    lowered = makers.get(node.operands[0])  # type: ignore[arg-type]
    if lowered is None or lowered.primitive.name != "subtract":
        return None
    scores, column = lowered.operands
    largest = makers.get(column)  # type: ignore[arg-type]
    top = makers.get(largest.operands[0]) if largest and largest.operands else None  # type: ignore[arg-type]
    if largest is None or top is None or top.primitive.name != "reduce_max":
        return None
    whole = largest.primitive.name == "reshape" and column.type.shape == (
        *scores.type.shape[:-1],
        1,
    )
    last = (scores.type.ndim - 1,)
    if not whole or top.operands[0] is not scores or top.params["axes"] != last:
        return None
    return (scores, node.results[0]) if isinstance(scores, Variable) else None


def _site(scores: Variable, powers: Variable, makers: Makers) -> Site | None:
    """The site of a softmax; None where its scores are no masked and scaled product."""
    if scores not in makers:
        return None
    found = Site(makers[scores], View(scores, ()), View(scores, ()), 1.0, powers)
    atom: Atom = scores
    while isinstance(atom, Variable) and atom in makers:
        node = makers[atom]
        if node.primitive is dot:
            return _with_product(found, node, makers)
        scaled = _scaled(node, makers)
        if scaled is not None:
            atom = scaled[0]
            found.scale *= scaled[1]
            continue
        inner = _unmasked(found, node, makers) if found.scale == 1.0 else None
        if inner is None or inner.type.shape != scores.type.shape:
            return None
        atom = inner
    return None


def _with_product(site: Site, node: GraphNode, makers: Makers) -> Site | None:
    """The site with its queries and keys; None where its sizes do not pay."""
    a, b = node.operands
    contract, batch = node.params["contract"], node.params["batch"]
    free = [free_axes(x.type.ndim, contract[s], batch[s]) for s, x in enumerate((a, b))]
    single = len(free[0]) == len(free[1]) == len(contract[0]) == 1
    if not single or not batch[0] or a.type.dtype not in (float32, float64):
        return None
    queries = node.results[0].type.shape[-2]
    fewest = 2 * FEWEST if site.offset is None else FEWEST
    if isinstance(queries, int) and queries < fewest:
        return None
    site.scores = node
    site.q, site.k = (
        _view(x, (*batch[s], *free[s], *contract[s]), makers) for s, x in enumerate((a, b))
    )
    site.scale *= site.q.scale * site.k.scale
    return site


def _unmasked(site: Site, node: GraphNode, makers: Makers) -> Atom | None:
    """What a node hides keys of or adds to; the site then knows of it."""
    if node.primitive.name == "where":
        return _unhidden(site, node, makers)
    if node.primitive.name != "add":
        return None
    for value, bias in (node.operands, node.operands[::-1]):
        if value.type.shape == node.results[0].type.shape and _leads_to_dot(value, makers):
            if not _hides(site, bias, makers):
                site.biases.append(bias)
            return value
    return None


def _leads_to_dot(atom: Atom, makers: Makers) -> bool:
    """Whether a value is scores on the way to becoming masked ones."""
    for _ in range(8):
        node = makers.get(atom)  # type: ignore[arg-type]
        if node is None:
            return False
        if node.primitive is dot:
            return True
        names = {"where": slice(1, 3), "add": slice(0, 2)}
        scaled = _scaled(node, makers)
        inner = [scaled[0]] if scaled else node.operands[names.get(node.primitive.name, slice(0))]
        same = [x for x in inner if x.type.shape == node.results[0].type.shape]
        if not same:
            return False
        atom = next((x for x in same if x in makers), same[0])
    return False


def _unhidden(site: Site, node: GraphNode, makers: Makers) -> Atom | None:
    condition, first, second = node.operands
    for value, fill, inverted in ((first, second, False), (second, first, True)):
        number = uniform(fill, makers)
        if number is not None and _hide(site, condition, number, inverted, makers):
            return value
    return None


def _hides(site: Site, bias: Atom, makers: Makers) -> bool:
    """Whether what is added is 0, or hides."""
    node = makers.get(bias)  # type: ignore[arg-type]
    if node is not None and node.primitive.name in ("convert", "broadcast_to"):
        return _hides(site, node.operands[0], makers)
    if node is None or node.primitive.name != "where":
        return False
    condition, *values = node.operands
    first, second = (uniform(x, makers) for x in values)
    if first == 0 and second is not None:
        return _hide(site, condition, second, False, makers)
    if second == 0 and first is not None:
        return _hide(site, condition, first, True, makers)
    return False


def _hide(site: Site, condition: Atom, fill: float, inverted: bool, makers: Makers) -> bool:
    """Note a mask; -inf hides in any case, another number only where each query sees some key."""
    offset = causal_offset(condition, inverted, makers) if site.offset is None else None
    causal = offset is not None and offset >= 0 and fill <= HIDDEN
    if not causal and fill != -np.inf:
        return False
    site.conditions.append((condition, inverted))
    if causal:
        site.offset = offset
    else:
        site.masks.append((condition, inverted))
    return True


# --- what is made of a site ----------------------------------------------------------------------


def _sites(graph: Graph) -> Iterator[Site]:
    """The sites that can be replaced whole."""
    makers = {v: node for node in graph.nodes for v in node.results}
    dots = [node for node in graph.nodes if node.primitive is dot]
    for node in graph.nodes if len(dots) > 1 else ():
        found = _softmax(node, makers)
        site = None if found is None else _site(*found, makers)
        if site is not None:
            _collect(site, dots, graph, makers)
            if site.v is not None and site.results and _is_replaced(site, graph, makers):
                yield site


def _collect(site: Site, dots: list[GraphNode], graph: Graph, makers: Makers) -> None:
    """Find the products with probabilities, and with the cotangents of scores."""
    shape = site.powers.type.shape
    polynomials = Polynomials(graph, len(shape), lambda node: _unchosen(site, node, makers))
    matrices = [
        (node, matrix)
        for node in dots
        for matrix in dict.fromkeys(node.operands)
        if isinstance(matrix, Variable) and matrix.type.shape == shape
    ]
    for node, matrix in matrices:
        product = _product(node, matrix, makers)
        if product is not None:
            polynomial = polynomials.of(matrix)
            if not _note_value(site, product, polynomial):
                _note_score(site, product, polynomial, makers)


def _unchosen(site: Site, node: GraphNode, makers: Makers) -> Atom | None:
    """What a mask of the site leaves of a gradient: all of it, as the rest is 0 already."""
    if node.primitive.name != "where":
        return None
    for condition, inverted in site.conditions:
        kept, other = node.operands[2 if inverted else 1], node.operands[1 if inverted else 2]
        if node.operands[0] is condition and uniform(other, makers) == 0:
            return kept
    return None


def _note_value(site: Site, product: Product, found: Polynomial) -> bool:
    """A product with probabilities: with values, or in the gradient of values."""
    e = site.powers
    number = ratio(found, {factors((e, 1), (Sum((factors((e, 1)),)), -1)): 1.0})
    if number is None:
        return False
    other = product.other
    name = "out" if product.summed == 1 else "dv"
    if name == "out" and not _agrees(site, "v", other):
        return True
    if name == "dv" and not _agrees(site, "ct", other):
        return True
    site.results[product.node.results[0]] = name, product, number * other.scale
    return True


def _agrees(site: Site, name: str, view: View) -> bool:
    """Whether a view is the site's, which it becomes if there is none."""
    known: View | None = getattr(site, name)
    if known is None:
        setattr(site, name, view)
        return True
    return known.same(view)


def _note_score(site: Site, product: Product, found: Polynomial, makers: Makers) -> None:
    """A product with the cotangents of scores: in the gradient of queries, or of keys."""
    e = site.powers
    others = {f for each in found for f, power in each if isinstance(f, Variable) and power == 1}
    if len(others - {e}) != 1:
        return
    (moved,) = others - {e}
    total = Sum((factors((e, 1)),))
    assert isinstance(moved, Variable)
    wanted = {
        factors((e, 1), (total, -1), (moved, 1)): 1.0,
        factors((e, 1), (total, -2), (Sum((factors((e, 1), (moved, 1)),)), 1)): -1.0,
    }
    number = ratio(found, wanted)
    views = None if number is None else _moved_by(moved, makers)
    if number is None or views is None:
        return
    known = site.q if product.summed == 0 else site.k
    ct, v = views
    if known.same(product.other) and _agrees(site, "ct", ct) and _agrees(site, "v", v):
        number *= ct.scale * v.scale * product.other.scale / site.scale
        name = "dk" if product.summed == 0 else "dq"
        site.results[product.node.results[0]] = name, product, number


def _moved_by(moved: Variable, makers: Makers) -> tuple[View, View] | None:
    """The cotangent and the values whose product the cotangent of probabilities is."""
    node = makers.get(moved)
    if node is None or node.primitive is not dot:
        return None
    contract, batch = node.params["contract"], node.params["batch"]
    views = []
    for side, atom in enumerate(node.operands):
        free = free_axes(atom.type.ndim, contract[side], batch[side])
        views.append(_view(atom, (*batch[side], *free, *contract[side]), makers))
    count = moved.type.ndim - 2
    plain = len(contract[0]) == 1 and len(batch[0]) == count
    return (views[0], views[1]) if plain else None


def _is_replaced(site: Site, graph: Graph, makers: Makers) -> bool:
    """Whether nothing needs the scores any more, and what is needed is there in time."""
    assert site.v is not None
    given = [site.q.atom, site.k.atom, site.v.atom, *site.biases, *[m for m, _ in site.masks]]
    back = [] if site.ct is None else [site.ct.atom]
    place = {v: number for number, node in enumerate(graph.nodes) for v in node.results}
    gradients = [v for v, (name, *_) in site.results.items() if name != "out"]
    if gradients and site.ct is None:
        return False
    pairs = [(given, list(site.results)), (back, gradients)]
    for atoms, results in pairs:
        latest = max([place.get(a, -1) for a in atoms if isinstance(a, Variable)], default=-1)
        if any(place[result] <= latest for result in results):
            return False
    needed: set[Atom] = {*graph.outputs, *given, *back}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.results) or not is_pure(node):
            if node is site.scores:
                return False
            if node.results[0] not in site.results:
                needed.update(node.operands)
    return True


# --- rewriting -----------------------------------------------------------------------------------


_FORMULAS: dict[Primitive, Callable[..., tuple[Tensor, ...]]] = {
    attention: plain_attention,
    attention_gradient: plain_gradient,
}


def _is_small(node: GraphNode) -> bool:
    queries = node.operands[0].type.shape[-2]
    return isinstance(queries, int) and queries < SMALL


def _formula(node: GraphNode) -> Graph:
    """The products that a node stands for, at its place."""
    formula = _FORMULAS[node.primitive]
    kinds = [atom.type for atom in node.operands]
    graph = trace(lambda *xs: formula(*xs, **node.params), kinds).closed()
    nodes = [
        GraphNode(each.primitive, each.operands, each.params, each.results, node.location)
        for each in graph.nodes
    ]
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


class _Rewrite(Walk):
    """Puts attention, and its gradient, where the first product with their results stood."""

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self.found = {v: site for site in _sites(graph) for v in site.results}
        self.made: dict[Variable, tuple[list[Atom], dict[str, Any], list[Atom]]] = {}
        self.gradients: dict[Variable, dict[str, Atom]] = {}

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive in _FORMULAS and _is_small(node):
            return self.splice(_formula(node), node.operands)
        site = self.found.get(node.results[0]) if node.results else None
        if site is None:
            return None
        name, product, number = site.results[node.results[0]]
        _, _, (out, _) = self.forward(site, node)
        found = out if name == "out" else self.backward(site, node)[name]
        found = self.arranged(View(found, product.order, number), node)
        return (found,)

    def arranged(self, view: View, like: GraphNode) -> Atom:
        """A view as a value."""
        atom = self.renamed(view.atom)
        if view.order != tuple(range(len(view.order))):
            atom = self.make(transpose, atom, like=like, order=view.order)
        if abs(view.scale - 1) > 1e-6:
            factor = Literal(np.array(view.scale, atom.type.dtype.numpy))
            atom = self.make(PRIMITIVES["multiply"], atom, factor, like=like)
        return atom

    def forward(self, site: Site, node: GraphNode) -> tuple[list[Atom], dict[str, Any], list[Atom]]:
        """The operands and parameters of attention, and its results."""
        if site.powers not in self.made:
            assert site.v is not None
            views = [View(each.atom, each.order) for each in (site.q, site.k, site.v)]
            operands = [self.arranged(each, node) for each in views] + self.mask(site, node)
            params = {"offset": site.offset, "scale": site.scale, "guarded": False}
            results = self.several(attention, operands, params, node)
            self.made[site.powers] = operands, params, results
            self.tally["attention"] += 1
        return self.made[site.powers]

    def backward(self, site: Site, node: GraphNode) -> dict[str, Atom]:
        """The three gradients."""
        if site.powers not in self.gradients:
            assert site.ct is not None
            operands, params, (out, lse) = self.forward(site, node)
            ct = self.arranged(View(site.ct.atom, site.ct.order), node)
            weighed = self.make(PRIMITIVES["multiply"], ct, out, like=node)
            axes = (out.type.ndim - 1,)
            delta = self.make(PRIMITIVES["reduce_sum"], weighed, like=node, axes=axes)
            given = [*operands[:3], lse, ct, delta, *operands[3:]]
            found = self.several(attention_gradient, given, params, node)
            self.gradients[site.powers] = dict(zip(("dq", "dk", "dv"), found, strict=True))
            self.tally["attention gradient"] += 1
        return self.gradients[site.powers]

    def several(
        self, primitive: Primitive, operands: list[Atom], params: dict[str, Any], like: GraphNode
    ) -> list[Atom]:
        """The results of a new node."""
        kinds = primitive.type_rule(*[each.type for each in operands], **params)
        results = tuple([Variable(kind) for kind in kinds])  # type: ignore[union-attr]
        node = GraphNode(primitive, tuple(operands), params, results, like.location)
        return list(self.put(node))

    def mask(self, site: Site, node: GraphNode) -> list[Atom]:
        """What hides keys and what is added to scores, as one operand; none where nothing is."""
        hidden: Atom | None = None
        for condition, inverted in site.masks:
            each = self.renamed(condition)
            if inverted:
                each = self.make(PRIMITIVES["logical_not"], each, like=node)
            hidden = each if hidden is None else self.joined("logical_and", hidden, each, node)
        bias: Atom | None = None
        for atom in site.biases:
            each = self.renamed(atom)
            bias = each if bias is None else self.joined("add", bias, each, node)
        if hidden is None or bias is None:
            return [each for each in (hidden, bias) if each is not None]
        nothing = Literal(np.array(-np.inf, bias.type.dtype.numpy))
        return [self.make(PRIMITIVES["where"], hidden, bias, nothing, like=node)]

    def joined(self, name: str, x: Atom, y: Atom, like: GraphNode) -> Atom:
        return self.make(PRIMITIVES[name], x, y, like=like)
