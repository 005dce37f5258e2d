"""Attention written by hand becomes the primitive: softmax(q @ kᵀ · scale + mask) @ v.

If all that is computed from the probabilities of a site can be replaced, so that nothing needs
them any more, it is: no matrix of queries × keys is left. Otherwise the graph stays as it is, as it
does where sizes are small; the primitive itself becomes products there.

>>> import weft as wf
>>> kind = wf.spec("float32", (2, 256, 16))
>>> graph = wf.ir.trace(lambda q, k, v: wf.softmax(q @ k.mT * 0.25) @ v, *[kind] * 3)
>>> from weft.compiler.pipeline import optimize
>>> from weft.compiler.targets.target import target_named
>>> [node.primitive.name for node in optimize(graph, target_named("cpu")).nodes]
['attention']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.graph_passes.attention.masks import COMPUTED, computed_mask
from weft.compiler.graph_passes.attention.sites import Site, View, sites
from weft.compiler.targets.target import Target
from weft.core.dtypes import DType, float64
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.tensor import Tensor
from weft.ir.tracing import trace
from weft.ir.walking import Tally, Walk
from weft.ops.attention import (
    attention,
    attention_gradient,
    plain_attention,
    plain_gradient,
    wide_dtype,
)
from weft.ops.conversion import convert
from weft.ops.movement import reshape, transpose

__all__ = ["recognize_attention"]


def recognize_attention(target: Target, graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with attention as one primitive, where that pays."""
    after = _Rewrite(graph, tally, target).run()
    # masks of what was found are looked at when they are made
    return after if after is graph else _Rewrite(after, tally, target).run()


# --- rewriting -----------------------------------------------------------------------------------


_FORMULAS: dict[Primitive, Callable[..., tuple[Tensor, ...]]] = {
    attention: plain_attention,
    attention_gradient: plain_gradient,
}


def _formula(node: GraphNode) -> Graph:
    """The products that a node stands for, at its place."""
    formula = _FORMULAS[node.primitive]
    kinds = [atom.type for atom in node.operands]
    graph = trace(lambda *xs: formula(*xs, **node.params), kinds).closed_graph()
    nodes = [
        GraphNode(each.primitive, each.operands, each.params, each.results, node.location)
        for each in graph.nodes
    ]
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


class _Rewrite(Walk):
    """Puts attention, and its gradient, where the first product with their results stood."""

    def __init__(self, graph: Graph, tally: Tally | None, target: Target) -> None:
        super().__init__(graph, tally)
        self.target, self.limits = target, target.limits.passes
        found = sites(graph, self.limits.recognized_queries, self.tally)
        self.found = {v: site for site in found for v in site.results}
        self.made: dict[Variable, tuple[list[Atom], dict[str, Any], list[Atom]]] = {}
        self.gradients: dict[Variable, dict[str, Atom]] = {}

    def walk_nested(self, graph: Graph) -> Graph:
        return _Rewrite(graph, self.tally, self.target).run()

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive in _FORMULAS and not self.target.has_attention(node):
            return self.splice(_formula(node), node.operands)
        if node.primitive in COMPUTED:
            return self.computing_mask(node)
        site = self.found.get(node.results[0]) if node.results else None
        if site is None:
            return None
        name, product, number = site.results[node.results[0]]
        _, _, (out, _) = self.forward(site, node)
        found = out if name == "out" else self.backward(site, node)[name]
        if not site.is_stacked:
            found = self.make(reshape, found, like=node, shape=found.type.shape[1:])
        found = self.view_value(View(found, product.order, number), node)
        return (self.convert_value(found, node.results[0].type.dtype, node),)

    def computing_mask(self, node: GraphNode) -> Sequence[Atom] | None:
        """Attention that computes its mask, if it has one that is made of less."""
        primitive, place = COMPUTED[node.primitive]
        drawn = 2 if node.params.get("kept", 1.0) < 1 else 0
        if len(node.operands) <= place + drawn:
            return None
        found = computed_mask(node.operands[place], self.makers, self.limits.mask_operations)
        if found is None:
            return None
        masking, leaves = found
        operands = [*node.operands[:place], *leaves, *node.operands[place + 1 :]]
        self.tally["mask computed in attention"] += 1
        return self.put_results(primitive, operands, {**node.params, "masking": masking}, node)

    def view_value(self, view: View, like: GraphNode) -> Atom:
        """A view as a value."""
        atom = self.renamed_atom(view.atom)
        if view.order != tuple(range(len(view.order))):
            atom = self.make(transpose, atom, like=like, order=view.order)
        if abs(view.scale - 1) > (1e-14 if atom.type.dtype is float64 else 1e-6):
            factor = Literal(np.array(view.scale, atom.type.dtype.numpy))
            atom = self.make(PRIMITIVES["multiply"], atom, factor, like=like)
        return atom

    def view_with_heads(self, site: Site, view: View, like: GraphNode) -> Atom:
        """A view as a value, with an axis of heads."""
        atom = self.view_value(view, like)
        if site.is_stacked:
            return atom
        return self.make(reshape, atom, like=like, shape=(1, *atom.type.shape))

    def convert_value(self, atom: Atom, dtype: DType, like: GraphNode) -> Atom:
        """A value in a dtype."""
        if atom.type.dtype is dtype:
            return atom
        return self.make(convert, atom, like=like, dtype=dtype)

    def forward(self, site: Site, node: GraphNode) -> tuple[list[Atom], dict[str, Any], list[Atom]]:
        """The operands and parameters of attention, and its results."""
        if site.powers not in self.made:
            assert site.v is not None
            views = [View(each.atom, each.order) for each in (site.q, site.k, site.v)]
            operands = [self.view_with_heads(site, each, node) for each in views] + self.mask(
                site, node
            )
            params = {"offset": site.offset, "scale": site.scale, "guarded": False}
            if site.drop is not None:
                operands += [self.renamed_atom(site.drop.key), self.renamed_atom(site.drop.data)]
                params["kept"] = site.drop.kept
            results = self.put_results(attention, operands, params, node)
            self.made[site.powers] = operands, params, results
            self.tally["attention"] += 1
        return self.made[site.powers]

    def backward(self, site: Site, node: GraphNode) -> dict[str, Atom]:
        """The three gradients."""
        if site.powers not in self.gradients:
            assert site.ct is not None
            operands, params, (out, lse) = self.forward(site, node)
            ct = self.view_with_heads(site, View(site.ct.atom, site.ct.order), node)
            wide = [self.convert_value(x, lse.type.dtype, node) for x in (ct, out)]
            weighed = self.make(PRIMITIVES["multiply"], *wide, like=node)
            axes = (out.type.ndim - 1,)
            delta = self.make(PRIMITIVES["reduce_sum"], weighed, like=node, axes=axes)
            given = [*operands[:3], lse, ct, delta, *operands[3:]]
            found = self.put_results(attention_gradient, given, params, node)
            self.gradients[site.powers] = dict(zip(("dq", "dk", "dv"), found, strict=True))
            self.tally["attention gradient"] += 1
        return self.gradients[site.powers]

    def put_results(
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
            each = self.renamed_atom(condition)
            if inverted:
                each = self.make(PRIMITIVES["logical_not"], each, like=node)
            hidden = each if hidden is None else self.make_binary("logical_and", hidden, each, node)
        bias: Atom | None = None
        for atom in site.biases:
            each = self.convert_value(self.renamed_atom(atom), wide_dtype(atom.type.dtype), node)
            bias = each if bias is None else self.make_binary("add", bias, each, node)
        if hidden is None or bias is None:
            return [each for each in (hidden, bias) if each is not None]
        nothing = Literal(np.array(-np.inf, bias.type.dtype.numpy))
        return [self.make(PRIMITIVES["where"], hidden, bias, nothing, like=node)]

    def make_binary(self, name: str, x: Atom, y: Atom, like: GraphNode) -> Atom:
        return self.make(PRIMITIVES[name], x, y, like=like)
