"""Products of numbers that are rounded to 8-bit floats: cards of Hopper multiply their codes.

Such an operand is what a `float8_numbers` makes of codes and one scale. The pass brings the codes
into the order that instructions read, the summed axis last; the numbers are then made for this
product alone, and become part of it where its epilogue is fused (`fusing.py`). Elsewhere, and where
rows are no whole 16 bytes, the program stays a product of bfloat16: the same numbers.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> from weft.ops.float8 import E4M3, round_to_float8
>>> def f(a, b):
...     return round_to_float8(a, E4M3) @ round_to_float8(b, E4M3).T
>>> graph = wf.ir.trace(f, *[wf.spec("float32", (64, 64))] * 2)
>>> plan = plan_program(graph, target_named("cuda"))
>>> [launch.kernel[:4] for launch in plan.launches if str(launch.kind) == "product"]
[('product', 'e4m3 by e4m3', 'n', 't')]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.compiler.lowering.matrix_products import arrange_operands, form_of
from weft.compiler.targets.cuda.products.code_transposes import transposed_codes
from weft.compiler.targets.cuda.products.orders import with_rows_inside
from weft.core.dtypes import bfloat16, uint8
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.walking import Tally, keeps_elements, without_dead_nodes
from weft.ops.contraction import dot
from weft.ops.float8 import float8_numbers

__all__ = ["arrange_codes", "decoders_of"]

_UNIT = 16
"""Codes that are copied at once: rows along the summed axis are a multiple of them."""


def decoders_of(
    product: GraphNode, makers: Mapping[Variable, GraphNode]
) -> tuple[GraphNode, GraphNode] | None:
    """The nodes that make both operands of codes, where a kernel multiplies the codes."""
    nodes = [makers.get(atom) for atom in product.operands if isinstance(atom, Variable)]
    left, right = nodes if len(nodes) == 2 else (None, None)
    if left is None or right is None or not (_is_decoder(left) and _is_decoder(right)):
        return None
    form = form_of(product)
    if form is None or form.turned != (False, True):
        return None
    inner = form.shape[3]
    return (left, right) if isinstance(inner, int) and inner and inner % _UNIT == 0 else None


def _is_decoder(node: GraphNode) -> bool:
    """Whether a node makes numbers of codes that lie in memory, with one scale for all."""
    if node.primitive is not float8_numbers:
        return False
    codes, scale = node.operands
    return isinstance(codes, Variable) and not scale.type.shape


def arrange_codes(graph: Graph, tally: Tally) -> Graph:
    """The graph with products of rounded numbers whose codes have the summed axis last."""
    if not any(node.primitive is float8_numbers for node in graph.nodes):
        return graph
    makers = {result: node for node in graph.nodes for result in node.results}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        arranged = _arranged_product(node, makers) if node.primitive is dot else None
        tally["products of float8"] += arranged is not None
        nodes += arranged or [node]
    return without_dead_nodes(Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name))


def _arranged_product(
    node: GraphNode, makers: Mapping[Variable, GraphNode]
) -> list[GraphNode] | None:
    """The nodes of a product of codes in the order that kernels read; None where it is none."""
    if node.results[0].type.dtype is not bfloat16:
        return None
    sources = [_CodeSource(makers, atom) for atom in node.operands]
    decoders = [source.decoder for source in sources]
    if None in decoders:
        return None
    given = tuple(source.codes for source in sources)
    *moved, product = _in_order(replace(node, operands=given))
    form = form_of(product)
    inner = None if form is None or form.turned != (False, True) else form.shape[3]
    if not isinstance(inner, int) or not inner or inner % _UNIT:
        return None
    numbers = []
    for decoder, codes in zip(decoders, product.operands, strict=True):
        assert decoder is not None
        result = Variable(replace(codes.type, dtype=bfloat16))
        numbers.append(replace(decoder, operands=(codes, decoder.operands[1]), results=(result,)))
    operands = tuple(each.results[0] for each in numbers)
    before = [each for source in sources for each in source.before]
    turned = [each for node in moved for each in transposed_codes(node)]
    return [*before, *turned, *numbers, replace(product, operands=operands)]


def _in_order(node: GraphNode) -> list[GraphNode]:
    """A product after transposes that bring the summed axis to the end of both operands."""
    *moved, product = [node] if form_of(node) is not None else arrange_operands(node)
    form = form_of(product)
    if form is None or form.turned == (False, True):
        return [*moved, product]
    return [*moved, *with_rows_inside(product, form)]


class _CodeSource:
    """The codes that an operand is made of; `before` are the nodes that move them."""

    def __init__(self, makers: Mapping[Variable, GraphNode], atom: Atom) -> None:
        self.makers = makers
        self.before: list[GraphNode] = []
        self.decoder: GraphNode | None = None
        self.codes = self._codes_of(atom)

    def _codes_of(self, atom: Atom) -> Atom:
        node = self.makers.get(atom) if isinstance(atom, Variable) else None
        if node is None:
            return atom
        if _is_decoder(node):
            self.decoder = node
            return node.operands[0]
        if not keeps_elements(node):
            return atom
        codes = self._codes_of(node.operands[0])
        if self.decoder is None:
            return atom
        result = Variable(replace(node.results[0].type, dtype=uint8))
        self.before.append(replace(node, operands=(codes,), results=(result,)))
        return result
