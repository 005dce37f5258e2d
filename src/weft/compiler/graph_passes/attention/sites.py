"""Attention written by hand: softmaxes of scaled and masked products, and what is made of them.

A softmax along rows, whose scores are a product of two matrices, scaled and masked, is a *site*.
What is computed from its probabilities are products with values, and in a training step those
that give the three gradients; the cotangent of the scores is recognised by its polynomial.

>>> import weft as wf
>>> kind = wf.spec("float32", (2, 256, 16))
>>> graph = wf.ir.trace(lambda q, k, v: wf.softmax(q @ k.mT * 0.25) @ v, *[kind] * 3)
>>> from weft.compiler.graph_passes.graph_pass import run_pass
>>> from weft.compiler.pipeline import pipeline
>>> from weft.compiler.targets.target import target_named
>>> for each in pipeline(target_named("cpu"))[:6]:
...     graph, _ = run_pass(each, graph)
>>> [(site.scale, list(site.results.values())[0][0]) for site in sites(graph, 128)]
[(0.25, 'out')]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.graph_passes.attention.causal import causal_offset
from weft.compiler.graph_passes.attention.polynomials import (
    Polynomial,
    Polynomials,
    Sum,
    factors,
    ratio,
    uniform,
    variables,
)
from weft.core.dtypes import bfloat16, bool_, float16, float32, float64, uint32
from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.walking import Tally, is_pure
from weft.ops.contraction import dot, free_axes
from weft.ops.movement import transpose
from weft.ops.random_bits import DRAW

__all__ = ["Product", "Site", "View", "sites"]

HIDDEN = -1e6
"""A number that hides a key from a query which sees others, as -inf does; of exponentials, not of a
machine."""
FLOATS = (float32, float64, float16, bfloat16)
Makers = dict[Variable, GraphNode]


# --- views ---------------------------------------------------------------------------------------


@frozen
class View:
    """A value with its axes in another order, times a number."""

    atom: Atom
    order: tuple[int, ...]
    scale: float = 1.0

    def shows_same(self, other: View) -> bool:
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
        found = _scaled_value(node, makers)
        if found is None:
            break
        atom, scale = found[0], scale * found[1]
    return View(atom, order, scale)


def _scaled_value(node: GraphNode, makers: Makers) -> tuple[Atom, float] | None:
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


@frozen
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


@frozen
class Dropout:
    """Which probabilities stay, by numbers that a key draws, and with which chance."""

    stays: Variable
    key: Atom
    data: Atom
    kept: float


def _dropout(stays: Atom, makers: Makers) -> Dropout | None:
    """The dropout that a condition says: less(float(random_bits >> 8) · 2⁻²⁴, kept)."""
    node = makers.get(stays)  # type: ignore[arg-type]
    if node is None or node.primitive.name != "less" or not isinstance(stays, Variable):
        return None
    kept = uniform(node.operands[1], makers)
    wanted = (("multiply", 2.0**-24), ("convert", None), ("bitwise_right_shift", 8.0))
    atom = node.operands[0]
    for name, number in wanted:
        inner = makers.get(atom)  # type: ignore[arg-type]
        if inner is None or inner.primitive.name != name or inner.results[0].type.dtype is float64:
            return None
        if number is not None and uniform(inner.operands[1], makers) != number:
            return None
        atom = inner.operands[0]
    bits = makers.get(atom)  # type: ignore[arg-type]
    if kept is None or bits is None or bits.primitive.name != "random_bits":
        return None
    plain = bits.params["dtype"] is uint32 and bits.params["domain"] == DRAW and 0 < kept < 1
    key, data = bits.operands
    return Dropout(stays, key, data, kept) if plain else None


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
    drop: Dropout | None = None
    results: dict[Variable, tuple[str, Product, float]] = field(default_factory=dict)
    """For each product that is replaced: by what, and times which number."""

    @property
    def is_stacked(self) -> bool:
        """Whether there is an axis in front of queries and keys."""
        return self.powers.type.ndim > 2


def _softmax(node: GraphNode, makers: Makers) -> tuple[Variable, Variable] | None:
    """Scores and exponentials of exp(s - max(s)), or exp(s): numerators of a softmax."""
    if node.primitive.name != "exp":
        return None
    lowered = makers.get(node.operands[0])  # type: ignore[arg-type]
    if lowered is None or lowered.primitive.name != "subtract":
        plain = node.operands[0]
        return (plain, node.results[0]) if _leads_to_dot(plain, makers) else None  # type: ignore[return-value]
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


def _site(scores: Variable, powers: Variable, makers: Makers, fewest: int) -> Site | None:
    """The site of a softmax; None where its scores are no masked and scaled product."""
    if scores not in makers:
        return None
    found = Site(makers[scores], View(scores, ()), View(scores, ()), 1.0, powers)
    atom: Atom = scores
    while isinstance(atom, Variable) and atom in makers:
        node = makers[atom]
        if node.primitive is dot:
            return _with_product(found, node, makers, fewest)
        scaled = _scaled_value(node, makers)
        if scaled is not None:
            atom = scaled[0]
            found.scale *= scaled[1]
            continue
        if _is_between_floats(node):
            atom = node.operands[0]
            continue
        inner = _value_before_mask(found, node, makers) if found.scale == 1.0 else None
        if inner is None or inner.type.shape != scores.type.shape:
            return None
        atom = inner
    return None


def _with_product(site: Site, node: GraphNode, makers: Makers, fewest: int) -> Site | None:
    """The site with its queries and keys; None where its sizes do not pay."""
    a, b = node.operands
    contract, batch = node.params["contract"], node.params["batch"]
    free = [free_axes(x.type.ndim, contract[s], batch[s]) for s, x in enumerate((a, b))]
    single = len(free[0]) == len(free[1]) == len(contract[0]) == 1
    if not single or a.type.dtype not in FLOATS or a.type.dtype is not b.type.dtype:
        return None
    queries = node.results[0].type.shape[-2]
    if isinstance(queries, int) and queries < (2 * fewest if site.offset is None else fewest):
        return None
    site.scores = node
    site.q, site.k = (
        _view(x, (*batch[s], *free[s], *contract[s]), makers) for s, x in enumerate((a, b))
    )
    site.scale *= site.q.scale * site.k.scale
    return site


def _value_before_mask(site: Site, node: GraphNode, makers: Makers) -> Atom | None:
    """What a node hides keys of or adds to; the site then knows of it."""
    if node.primitive.name == "where":
        return _value_before_hiding(site, node, makers)
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
        scaled = _scaled_value(node, makers)
        inner = [scaled[0]] if scaled else node.operands[names.get(node.primitive.name, slice(0))]
        inner = node.operands if _is_between_floats(node) else inner
        same = [x for x in inner if x.type.shape == node.results[0].type.shape]
        if not same:
            return False
        atom = next((x for x in same if x in makers), same[0])
    return False


def _is_between_floats(node: GraphNode) -> bool:
    """Whether a node makes floats of others: sums are kept in float32 in any case."""
    kinds = [atom.type.dtype for atom in (*node.operands, *node.results)]
    return node.primitive.name == "convert" and all(kind in FLOATS for kind in kinds)


def _value_before_hiding(site: Site, node: GraphNode, makers: Makers) -> Atom | None:
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
    parts = _conjunction(condition, inverted, makers) if fill == -np.inf else []
    for part in parts or [(condition, inverted)]:
        offset = causal_offset(*part, makers) if site.offset is None else None
        if offset is not None and offset >= 0 and fill <= HIDDEN:
            site.offset = offset
        elif fill == -np.inf:
            site.masks.append(part)
        else:
            return False
    site.conditions.append((condition, inverted))
    return True


def _conjunction(condition: Atom, inverted: bool, makers: Makers) -> list[tuple[Atom, bool]]:
    """Conditions that hold together where one does: a & b, or not (a | b)."""
    node = makers.get(condition)  # type: ignore[arg-type]
    names = ("logical_or", "bitwise_or") if inverted else ("logical_and", "bitwise_and")
    if node is None or node.primitive.name not in names or condition.type.dtype is not bool_:
        return [(condition, inverted)]
    parts = [_conjunction(each, inverted, makers) for each in node.operands]
    return [*parts[0], *parts[1]]


# --- what is made of a site ----------------------------------------------------------------------


def sites(graph: Graph, fewest: int, tally: Tally | None = None) -> Iterator[Site]:
    """The sites that can be replaced whole; the tally says why others stay.

    Below `fewest` queries they stay; see `PassLimits.recognized_queries`.
    """
    makers = {v: node for node in graph.nodes for v in node.results}
    dots = [node for node in graph.nodes if node.primitive is dot]
    for node in graph.nodes if len(dots) > 1 else ():
        found = _softmax(node, makers)
        if found is None:
            continue
        site = _site(*found, makers, fewest)
        if site is not None:
            _collect(site, dots, graph, makers)
        why = _why_kept(site, found[0], graph, makers, fewest)
        if site is not None and not why:
            yield site
        elif tally is not None and why and found[0] is not node.operands[0]:
            tally[f"softmax of products kept as {why}"] += 1


def _why_kept(
    site: Site | None, scores: Variable, graph: Graph, makers: Makers, fewest: int
) -> str:
    """Why a softmax stays as it is; nothing where it is attention or has nothing to do with it."""
    if site is None:
        queries = scores.type.shape[-2] if scores.type.ndim > 1 else 1
        few = isinstance(queries, int) and queries < fewest
        other = "its scores are more than a product, scaled and masked by -inf"
        kept = "it has few queries" if few else other
        return kept if _leads_to_dot(scores, makers) else ""
    if site.v is None or not site.results:
        return "no product with values is of its probabilities"
    return "" if _is_replaced(site, graph, makers) else "its probabilities are needed elsewhere"


def _collect(site: Site, dots: list[GraphNode], graph: Graph, makers: Makers) -> None:
    """Find the products with probabilities, and with the cotangents of scores."""
    shape = site.powers.type.shape
    polynomials = Polynomials(
        graph,
        len(shape),
        lambda node: _value_before_choice(site, node, makers),
        lambda node: _value_before_dropout(shape, node, makers),
    )
    matrices = [
        (node, matrix)
        for node in dots
        for matrix in dict.fromkeys(node.operands)
        if isinstance(matrix, Variable) and matrix.type.shape == shape
    ]
    for node, matrix in matrices:
        product = _product(node, matrix, makers)
        if product is not None:
            polynomial = polynomials.polynomial_of(matrix)
            if not _note_value(site, product, polynomial, makers):
                _note_score(site, product, polynomial, makers)


def _value_before_choice(site: Site, node: GraphNode, makers: Makers) -> Atom | None:
    """What a mask of the site leaves of a gradient: all of it, as the rest is 0 already."""
    if _is_between_floats(node):
        return node.operands[0]
    if node.primitive.name != "where":
        return None
    for condition, inverted in site.conditions:
        kept, other = node.operands[2 if inverted else 1], node.operands[1 if inverted else 2]
        if node.operands[0] is condition and uniform(other, makers) == 0:
            return kept
    return None


def _value_before_dropout(
    shape: Shape, node: GraphNode, makers: Makers
) -> tuple[Atom, Variable] | None:
    """What dropout leaves of a matrix of probabilities, or of cotangents, and what says where."""
    if node.primitive.name != "where":
        return None
    condition, value, other = node.operands
    if condition.type.shape != shape or value.type.shape != shape or uniform(other, makers) != 0:
        return None
    found = _dropout(condition, makers)
    return None if found is None else (value, found.stays)


def _is_dropout_of_site(site: Site, found: Polynomial, makers: Makers) -> bool:
    """Whether the dropout in a polynomial is the site's, which it becomes if it is the first."""
    conditions = {f for term in found for f in variables(term) if f.type.dtype is bool_}
    drops = [_dropout(each, makers) for each in conditions]
    if len(drops) > 1:
        return False
    drop = drops[0] if drops else None
    if not site.results:
        site.drop = drop
    return drop == site.drop


def _note_value(site: Site, product: Product, found: Polynomial, makers: Makers) -> bool:
    """A product with probabilities: with values, or in the gradient of values."""
    if not _is_dropout_of_site(site, found, makers):
        return False
    e, drop = site.powers, site.drop
    stays = [] if drop is None else [(drop.stays, 1)]
    number = ratio(found, {factors((e, 1), (Sum((factors((e, 1)),)), -1), *stays): 1.0})
    if number is None:
        return False
    number *= 1.0 if drop is None else drop.kept
    other = product.other
    name = "out" if product.summed == 1 else "dv"
    if name == "out" and not _is_view_of_site(site, "v", other):
        return True
    if name == "dv" and not _is_view_of_site(site, "ct", other):
        return True
    site.results[product.node.results[0]] = name, product, number * other.scale
    return True


def _is_view_of_site(site: Site, name: str, view: View) -> bool:
    """Whether a view is the site's, which it becomes if there is none."""
    known: View | None = getattr(site, name)
    if known is None:
        setattr(site, name, view)
        return True
    return known.shows_same(view)


def _note_score(site: Site, product: Product, found: Polynomial, makers: Makers) -> None:
    """A product with the cotangents of scores: in the gradient of queries, or of keys."""
    if not _is_dropout_of_site(site, found, makers):
        return
    e, drop = site.powers, site.drop
    others = {f for each in found for f, power in each if isinstance(f, Variable) and power == 1}
    others -= {e} if drop is None else {e, drop.stays}
    if len(others) != 1:
        return
    (moved,) = others
    total = Sum((factors((e, 1)),))
    assert isinstance(moved, Variable)
    back = [(moved, 1)] if drop is None else [(moved, 1), (drop.stays, 1)]
    wanted = {
        factors((e, 1), (total, -1), *back): 1.0,
        factors((e, 1), (total, -2), (Sum((factors((e, 1), *back),)), 1)): -1.0,
    }
    number = ratio(found, wanted)
    views = None if number is None else _moved_by(moved, makers)
    if number is None or views is None:
        return
    known = site.q if product.summed == 0 else site.k
    ct, v = views
    if (
        known.shows_same(product.other)
        and _is_view_of_site(site, "ct", ct)
        and _is_view_of_site(site, "v", v)
    ):
        number *= ct.scale * v.scale * product.other.scale / site.scale
        number *= 1.0 if drop is None else drop.kept
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
    given += [] if site.drop is None else [site.drop.key, site.drop.data]
    back = [] if site.ct is None else [site.ct.atom]
    if len({x.type.dtype for x in (*given[:3], *back)}) > 1:
        return False
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
