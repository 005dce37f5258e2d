"""The pass that writes functions of matrices by others for which there is native code.

A pseudo-inverse is a decomposition and a product, an adjugate one with two determinants; what is
given in 16 bits is computed in float32, as the reference does it. So only factorisations are left,
which targets call LAPACK for, beside what every target fuses.

>>> import weft as wf
>>> kinds = wf.spec("float32", (3, 2)), wf.spec("float32", ())
>>> graph = wf.ir.trace(lambda x, rtol: apply(pinv, x, rtol), *kinds)
>>> [node.primitive.name for node in expand_matrix_functions(PassLimits(), graph).nodes][:2]
['svd', 'slice']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft.compiler.targets.limits import PassLimits
from weft.core.dimensions import is_zero
from weft.core.dtypes import float32
from weft.ir.dispatch import apply, apply_multiple, bind
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.primitive import Primitive
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import trace
from weft.ir.walking import Tally, Walk
from weft.ops.comparison import greater
from weft.ops.determinants import adjugate, adjugate_slope, det
from weft.ops.factorizations import svd
from weft.ops.matrices import (
    BY_LAPACK,
    adjoint,
    columns,
    cut_last_axis,
    diagonal_matrix,
    diagonal_of,
    product,
    rows,
)
from weft.ops.movement import broadcast_to, reshape
from weft.ops.operands import convert_to
from weft.ops.reduction import reduce_prod
from weft.ops.selection import where
from weft.ops.solving import pinv

__all__ = ["expand_matrix_functions"]

Expansion = Callable[..., Sequence[Tensor]]


_EXPANSIONS: dict[Primitive, tuple[Expansion, int]] = {}
"""What functions of matrices are in terms of others; and the axes, each as long as the matrix, of
the table of factors that this takes."""


def expand_matrix_functions(limits: PassLimits, graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with factorisations in place of what is made of them."""

    class Expanding(Walk):
        """Writes nodes in terms of others, within the limits."""

        def visit(self, node: GraphNode) -> Sequence[Atom] | None:
            if node.primitive.lower is not BY_LAPACK:
                return None
            expansion = _expansion(node, limits.factor_table_elements)
            if expansion is None:
                return None
            self.tally[node.primitive.name] += 1
            inner = trace(expansion, [atom.type for atom in node.operands]).closed_graph()
            located = [replace(each, location=node.location) for each in inner.nodes]
            return self.splice(Graph(inner.inputs, tuple(located), inner.outputs), node.operands)

    return Expanding(graph, tally).run()


def _expansion(node: GraphNode, largest_table: int) -> Expansion | None:
    """What a node is in terms of others; None where it stays."""
    if node.operands[0].type.dtype.bits == 16:
        return partial(_in_single_precision, node)
    if node.primitive not in _EXPANSIONS:
        return None
    expansion, axes = _EXPANSIONS[node.primitive]
    count = node.operands[0].type.shape[-1]
    if axes and (not isinstance(count, int) or count**axes > largest_table):
        return None
    # of no elements there is no largest singular value
    is_empty = any(is_zero(dim) for dim in node.operands[0].type.shape[-2:])
    if not is_empty:
        return expansion
    (kind,) = [result.type for result in node.results]
    return lambda *operands: [filled_tensor(kind.shape, kind.dtype, 0)]


def _in_single_precision(node: GraphNode, *operands: Tensor) -> Sequence[Tensor]:
    wide = [convert_to(x, float32) if x.dtype.bits == 16 else x for x in operands]
    found = bind(node.primitive, *wide, **node.params)
    results = found if node.primitive.multiple else (found,)
    kinds = [result.type.dtype for result in node.results]
    return [convert_to(x, kind) for x, kind in zip(results, kinds, strict=True)]


def _expands(primitive: Primitive, table_axes: int = 0) -> Callable[[Expansion], Expansion]:
    """Say of which primitive a function is the expansion."""

    def register(expansion: Expansion) -> Expansion:
        _EXPANSIONS[primitive] = expansion, table_axes
        return expansion

    return register


@_expands(pinv)
def _pseudo_inverse(x: Tensor, rtol: Tensor) -> Sequence[Tensor]:
    """V S⁺ Uᴴ, where S⁺ holds 1/s, and 0 for what is at most rtol times the largest."""
    u, s, vh = apply_multiple(svd, x, full=False)
    limit = cut_last_axis(s, 0, 1) * apply(reshape, rtol, shape=(*rtol.shape, 1))
    counts = greater(s, limit)
    inverse = where(counts, 1.0 / where(counts, s, 1.0), 0.0)
    return [product(adjoint(vh), rows(convert_to(inverse, x.dtype)) * adjoint(u))]


@_expands(adjugate, table_axes=2)
def _cofactors(x: Tensor) -> Sequence[Tensor]:
    """det(U) det(Vᴴ) V adj(S) Uᴴ, where adj(S) holds the products of all others."""
    u, s, vh = apply_multiple(svd, x, full=True)
    others = _products_without(s, ~np.eye(int(s.shape[-1]), dtype=bool))
    left = adjoint(vh) * columns(convert_to(others, x.dtype))
    return [product(left, adjoint(u) * _phase(u, vh))]


@_expands(adjugate_slope, table_axes=3)
def _slope_of_cofactors(x: Tensor, t: Tensor) -> Sequence[Tensor]:
    """See `weft.ops.determinants`: minus the minors off the diagonal, their sums on it."""
    u, s, vh = apply_multiple(svd, x, full=True)
    left, right = adjoint(u), adjoint(vh)
    in_bases = product(left, product(t, right))
    others = ~np.eye(int(s.shape[-1]), dtype=bool)
    pairs = others[:, None, :] & others[None, :, :]  # [i, j, k]: k is neither i nor j
    minors = _products_without(s, pairs)
    minors = convert_to(where(wrap(others), minors, 0.0), x.dtype)
    sums = product(minors, rows(diagonal_of(in_bases)))  # [..., n, 1]
    diagonal = apply(reshape, sums, shape=sums.shape[:-1])
    inner = diagonal_matrix(diagonal) - minors * in_bases
    return [product(right, product(inner, left)) * _phase(u, vh)]


def _products_without(s: Tensor, is_factor: Any) -> Tensor:
    """The products of the elements that a table, over them and places before, says are factors."""
    table = wrap(is_factor)
    before, count = is_factor.shape[:-1], is_factor.shape[-1]
    spread = apply(reshape, s, shape=(*s.shape[:-1], *[1] * len(before), count))
    spread = apply(broadcast_to, spread, shape=(*s.shape[:-1], *before, count))
    return apply(reduce_prod, where(table, spread, 1.0), axes=(spread.ndim - 1,))


def _phase(u: Tensor, vh: Tensor) -> Tensor:
    number = apply(det, u) * apply(det, vh)
    return apply(reshape, number, shape=(*number.shape, 1, 1))
