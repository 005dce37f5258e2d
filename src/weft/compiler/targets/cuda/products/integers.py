"""Products of 8-bit integers with sums of int32, by instructions of single warps.

A program multiplies integers that it has converted to int32. Where they had 8 bits before, they are
multiplied as they are: the sums are the same. Such a product is a `call`, whose graph converts and
multiplies; rows of the summed axis must be whole 16 bytes.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> def f(a, b):
...     return a.astype("int32") @ b.astype("int32").T
>>> graph = wf.ir.trace(f, *[wf.spec("int8", (64, 64))] * 2)
>>> plan = plan_program(graph, target_named("cuda"))
>>> [launch.kernel for launch in plan.launches]
[('product', 'int8', 'n', 't')]
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.graph_passes.dead_code import remove_dead_code
from weft.compiler.graph_passes.short_operands import ShortOperands
from weft.compiler.lowering.matrix_products import Product, arrange_operands, form_of
from weft.compiler.targets.cuda.products.description import INTEGER_PAIRS
from weft.compiler.targets.cuda.products.orders import with_rows_inside
from weft.core.dtypes import int8, int32, int64
from weft.core.shapes import size
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.walking import Tally
from weft.ops.contraction import dot
from weft.ops.control_call import call
from weft.ops.conversion import convert

__all__ = ["integer_form", "is_integer_product", "shorten_products"]

_NAME = "integer product"
_UNIT = 16
"""Elements of the summed axis that are copied at once."""
MOST_TERMS = 1 << 15
"""Terms of 8-bit numbers whose sum is certain to be an int32."""
_PAIRS = {dtypes: name for name, dtypes in INTEGER_PAIRS.items()}


def shorten_products(graph: Graph, tally: Tally) -> Graph:
    """The graph with products of 8-bit integers as such."""
    if not any(_is_whole(node) for node in graph.nodes):
        return graph
    producer = {result: node for node in graph.nodes for result in node.results}
    nodes = [each for node in graph.nodes for each in _shortened_nodes(node, producer)]
    count = sum(is_integer_product(node) for node in nodes)
    if not count:
        return graph
    tally["product of 8-bit integers"] += count
    found = Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)
    return remove_dead_code(found, None)  # conversions that no product reads any more


def _is_whole(node: GraphNode) -> bool:
    """Whether a node is a product of integers."""
    return node.primitive is dot and node.results[0].type.dtype in (int8, int32, int64)


def _shortened_nodes(node: GraphNode, producer: dict[Variable, GraphNode]) -> list[GraphNode]:
    """A node, or the nodes that multiply 8-bit integers in its place."""
    if not _is_whole(node):
        return [node]
    work = ShortOperands(producer)
    sources = [work.short_operand(operand) for operand in node.operands]
    operands = tuple(atom for atom in sources if atom is not None)
    left = node.operands[0].type.shape
    terms = size(left[axis] for axis in node.params["contract"][0])
    is_pair = len(operands) == 2 and tuple(a.type.dtype.name for a in operands) in _PAIRS
    if not is_pair or not isinstance(terms, int) or not terms or terms % _UNIT:
        return [node]
    if node.results[0].type.dtype is int64 and terms > MOST_TERMS:
        return [node]
    arranged = _in_order(replace(node, operands=operands))
    if arranged is None:
        return [node]
    *moved, product = arranged
    return [*work.before, *moved, *_integer_product(product)]


def _in_order(node: GraphNode) -> list[GraphNode] | None:
    """The product after transposes that bring the summed axis to the end of both operands."""
    *moved, product = [node] if form_of(node) is not None else arrange_operands(node)
    form = form_of(product)
    if form is None:
        return None
    return [
        *moved,
        *([product] if form.turned == (False, True) else with_rows_inside(product, form)),
    ]


def _integer_product(node: GraphNode) -> list[GraphNode]:
    """A product whose operands have 8 bits as a call, and the conversion of its sums."""
    given = [Variable(atom.type) for atom in node.operands]
    wide = [Variable(replace(atom.type, dtype=int32)) for atom in node.operands]
    total = Variable(replace(node.results[0].type, dtype=int32))
    widened = [
        GraphNode(convert, (short,), {"dtype": int32}, (atom,), node.location)
        for short, atom in zip(given, wide, strict=True)
    ]
    product = GraphNode(dot, tuple(wide), node.params, (total,), node.location)
    graph = Graph(tuple(given), (*widened, product), (total,), _NAME)
    [result] = node.results
    sums = result if result.type.dtype is int32 else Variable(total.type)
    nodes = [GraphNode(call, node.operands, {"graph": graph}, (sums,), node.location)]
    if sums is not result:
        params = {"dtype": result.type.dtype}
        nodes.append(GraphNode(convert, (sums,), params, (result,), node.location))
    return nodes


def is_integer_product(node: GraphNode) -> bool:
    """Whether a node is a product of 8-bit integers."""
    return node.primitive is call and node.params["graph"].name == _NAME


def integer_form(node: GraphNode) -> tuple[str, Product]:
    """The pair of dtypes that such a node multiplies, and its form."""
    graph: Graph = node.params["graph"]
    operands: tuple[Atom, ...] = node.operands
    form = form_of(graph.nodes[-1])
    assert form is not None
    left, right = (atom.type.dtype.name for atom in operands)
    return _PAIRS[left, right], form
