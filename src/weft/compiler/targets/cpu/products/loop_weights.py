"""Weights of loops in the order in which products pack them.

The right operand of a product that lies with its terms last is packed, and a loop packs what is
the same in all steps once, before the first one. One that lies with its columns last is read as it
is where it meets few rows: in a loop that means rows that are pages apart, in every step. So where
a loop is given the transpose of a matrix, to be multiplied by, it is given the matrix.

>>> import weft as wf
>>> def f(w, h, xs):
...     return wf.scan(lambda h, x: (wf.tanh(x + h @ w.T), None), h, xs)[0]
>>> kinds = [wf.spec("float32", shape) for shape in ((8, 8), (2, 8), (5, 2, 8))]
>>> [node.primitive.name for node in turn_loop_weights(wf.ir.trace(f, *kinds)).nodes]
['scan']
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.graph_passes.loops.scan_parts import Loop
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.walking import Tally, Walk, replace_node
from weft.ops.contraction import dot
from weft.ops.control_loop import scan
from weft.ops.movement import transpose

PLAIN, TURNED = (0,), (1,)
"""The axis of a right operand that is summed over: its rows are terms, or columns."""


def turn_loop_weights(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph whose loops are given matrices in place of their transposes."""
    return _TurnWeights(graph, tally).run()


class _TurnWeights(Walk):
    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive is not scan:
            return None
        loop = Loop.from_scan(node)
        turned = {
            variable: (Variable(maker.operands[0].type), maker.operands[0])
            for variable, operand in loop.consts
            if (maker := self.maker(operand)) is not None
            and maker.primitive is transpose
            and maker.params["order"] == (1, 0)
            and _is_right_operand(loop, variable)
        }
        if not turned:
            return None
        self.tally["turn"] += len(turned)
        loop.consts = [turned.get(variable, (variable, atom)) for variable, atom in loop.consts]
        loop.nodes = [
            _read_turned(inner, turned[right][0])
            if inner.primitive is dot and (right := inner.operands[1]) in turned
            else inner
            for inner in loop.nodes
        ]
        ends, ys = loop.put(self)
        return [*ends, *ys]


def _is_right_operand(loop: Loop, matrix: Variable) -> bool:
    """Whether nothing is done to a matrix but to multiply by it from the right."""
    readers = [node for node in loop.nodes if matrix in node.operands]
    return loop.uses[matrix] == len(readers) > 0 and all(
        node.primitive is dot
        and node.operands[1] is matrix
        and node.params["contract"][1] == PLAIN
        and len(node.params["contract"][0]) == 1
        and node.params["batch"] == ((), ())
        for node in readers
    )


def _read_turned(product: GraphNode, matrix: Variable) -> GraphNode:
    """The product by a matrix whose transpose it was multiplied by."""
    left, _ = product.operands
    contract = product.params["contract"][0], TURNED
    return replace_node(
        product, operands=(left, matrix), params={**product.params, "contract": contract}
    )
