"""Operands with the summed axis last: tensor cores read all but 16-bit floats in this order."""

from __future__ import annotations

from weft.compiler.lowering.matrix_products import Product
from weft.ir.graph import Atom, GraphNode, Variable
from weft.ops.contraction import dot
from weft.ops.movement import transpose


def with_rows_inside(node: GraphNode, form: Product) -> list[GraphNode]:
    """A product whose operands have the summed axis last, as most are read."""
    nodes: list[GraphNode] = []
    operands: list[Atom] = []
    stack = len(node.params["batch"][0])
    sides = zip(node.operands, node.params["contract"], form.turned, (False, True), strict=True)
    inner: list[tuple[int, ...]] = []
    for operand, summed, turned, wanted in sides:
        if turned != wanted:
            rest = tuple(a for a in range(stack, operand.type.ndim) if a not in summed)
            order = (*range(stack), *rest, *sorted(summed))
            kind = operand.type.with_shape(tuple(operand.type.shape[axis] for axis in order))
            turn = Variable(kind)
            nodes.append(GraphNode(transpose, (operand,), {"order": order}, (turn,), node.location))
            operand, summed = turn, tuple(range(kind.ndim - len(summed), kind.ndim))
        operands.append(operand)
        inner.append(tuple(summed))
    params = {"contract": tuple(inner), "batch": node.params["batch"]}
    return [*nodes, GraphNode(dot, tuple(operands), params, node.results, node.location)]
