"""Codes of 8-bit floats, and the same transposed, from numbers that are read once.

A loop writes codes, and a kernel more reads them again where a product wants them across. Where the
numbers lie in memory anyway, both are made here at once, with the card's own conversion of pairs.
That one saturates: what is beyond the format, infinite or NaN is seen by a comparison of four, and
put right where there is any.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> from weft.ops.float8 import E4M3, round_to_float8
>>> def f(a, b):
...     return round_to_float8(a, E4M3) @ round_to_float8(b, E4M3)
>>> graph = wf.ir.trace(f, *[wf.spec("bfloat16", (64, 64))] * 2)
>>> [each.name for each in plan_program(graph, target_named("cuda")).launches][-3:]
['codes', 'codes', 'dot+2']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cache

from weft.compiler.fusion.aliases import shares_memory
from weft.compiler.plan.launch import Launch
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.products.code_transposes import (
    ROWS,
    THREADS,
    call_launch,
    for_each_part,
    is_transposed_codes,
    matrix_of,
    matrix_run,
    store_turned,
)
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
    float_literal,
)
from weft.compiler.targets.cuda.warpgroup import unpacked_pair
from weft.core.dtypes import float32
from weft.core.records import frozen
from weft.core.shapes import size
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Elementwise, Movement
from weft.ir.walking import Tally, without_dead_nodes
from weft.ops.control_call import call
from weft.ops.float8 import E4M3, E5M2, FORMATS, float8_codes
from weft.ops.movement import transpose

__all__ = ["CastKernel", "CastSpec", "cast_codes", "cast_kernel", "codes_launch", "is_codes"]

_NAME = "codes"
_LIMITS = {E4M3: 464.0, E5M2: 61439.996}
"""The highest float32 that is rounded to a number; what is above, to NaN or infinity.

Both are half a step above the highest number, one of them to an even one."""


# --- the pass ------------------------------------------------------------------------------------


def cast_codes(graph: Graph, tally: Tally) -> Graph:
    """The graph with codes of what lies in memory made by one kernel, in every order they have."""
    work = _Work(graph)
    replaced = dict[GraphNode, GraphNode]()
    dropped = set[GraphNode]()
    for node in graph.nodes:
        if node.primitive is float8_codes and work.is_taken(node):
            turned = work.turned_by(node)
            replaced[node] = work.codes_node(node, turned)
            dropped |= {turned} if turned is not None else set()
    if not replaced:
        return graph
    tally["codes"] += len(replaced)
    nodes = tuple(replaced.get(node, node) for node in graph.nodes if node not in dropped)
    return without_dead_nodes(Graph(graph.inputs, nodes, graph.outputs, graph.name))


class _Work:
    """A graph whose codes are looked at."""

    def __init__(self, graph: Graph) -> None:
        self.outputs = set(graph.outputs)
        self.makers = {result: node for node in graph.nodes for result in node.results}
        self.users: dict[Variable, list[GraphNode]] = {}
        for node in graph.nodes:
            for atom in dict.fromkeys(node.operands):
                if isinstance(atom, Variable):
                    self.users.setdefault(atom, []).append(node)

    def is_taken(self, node: GraphNode) -> bool:
        """Whether the numbers lie in memory, and are a matrix that the kernel takes."""
        x, scale = node.operands
        if not isinstance(x, Variable) or not isinstance(scale, Variable) or scale.type.shape:
            return False
        return self._is_stored(x) and self._matrix(node) is not None

    def _is_stored(self, x: Atom) -> bool:
        """Whether a value lies in memory, whoever reads it."""
        maker = self.makers.get(x) if isinstance(x, Variable) else None
        if maker is not None and shares_memory(maker):
            return self._is_stored(maker.operands[0])
        return maker is None or not isinstance(maker.primitive.kind, Elementwise | Movement)

    def turned_by(self, node: GraphNode) -> GraphNode | None:
        """The node that transposes the codes, if there is one."""
        users = self.users.get(node.results[0], [])
        return next((each for each in users if is_transposed_codes(each)), None)

    def _matrix(self, node: GraphNode) -> tuple[int, int] | None:
        turned = self.turned_by(node)
        if turned is not None:
            return matrix_of(turned.params["graph"].nodes[0])
        return lines_of(node)

    def codes_node(self, node: GraphNode, turned: GraphNode | None) -> GraphNode:
        """The call that makes the codes, as they are where anyone reads them so, and turned."""
        given = tuple(Variable(atom.type) for atom in node.operands)
        codes = Variable(node.results[0].type)
        inner = [GraphNode(float8_codes, given, node.params, (codes,), node.location)]
        made, results = [codes], [node.results[0]]
        if turned is not None:
            across = Variable(turned.results[0].type)
            params = turned.params["graph"].nodes[0].params
            inner.append(GraphNode(transpose, (codes,), params, (across,), node.location))
            alone = self.users[node.results[0]] == [turned]
            if alone and node.results[0] not in self.outputs:
                made, results = [], []
            made, results = [*made, across], [*results, turned.results[0]]
        graph = Graph(given, tuple(inner), tuple(made), _NAME)
        return GraphNode(call, node.operands, {"graph": graph}, tuple(results), node.location)


def lines_of(node: GraphNode) -> tuple[int, int] | None:
    """The matrix of a tensor's last axis; None where the kernel does not take it."""
    shape = node.operands[0].type.shape
    if not shape:
        return None
    rows, columns = size(shape[:-1]), shape[-1]
    if not isinstance(rows, int) or not isinstance(columns, int) or not rows * columns:
        return None
    return (rows, columns) if rows % ROWS == 0 and columns % 4 == 0 else None


def is_codes(node: GraphNode) -> bool:
    """Whether a node is such a call."""
    return node.primitive is call and node.params["graph"].name == _NAME


# --- the launch ----------------------------------------------------------------------------------


def codes_launch(node: GraphNode) -> Launch:
    """The launch of such a call."""
    return call_launch(node, "codes")


@binder("codes")
def bind_codes(binding: Binding, launch: Launch) -> Run:
    """What runs it."""
    assert launch.computes is not None
    spec, matrix = describe_codes(launch.computes)
    names = ("source", "scale", *spec.stored)
    return matrix_run(binding, launch, cast_kernel(spec), names, matrix)


@frozen(slots=False)
class CastSpec:
    """From numbers of a dtype to codes of a format, stored as they are, turned, or both."""

    dtype: str
    format: str
    stored: tuple[str, ...]


def describe_codes(graph: Graph) -> tuple[CastSpec, tuple[int, int]]:
    """What a kernel does for the graph of a call, and the matrix it is for."""
    codes, *turned = graph.nodes
    names = {codes.results[0]: "codes"} | {node.results[0]: "turned" for node in turned}
    stored = tuple(names[each] for each in graph.outputs if isinstance(each, Variable))
    spec = CastSpec(graph.inputs[0].type.dtype.name, codes.params["format"], stored)
    matrix = matrix_of(turned[0]) if turned else lines_of(codes)
    assert matrix is not None
    return spec, matrix


# --- the kernel ----------------------------------------------------------------------------------


@frozen(slots=False)
class CastKernel:
    """The kernel, ready for the driver."""

    spec: CastSpec
    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...] = field(repr=False)


@cache
def cast_kernel(spec: CastSpec) -> CastKernel:
    """`codes`, [rows, columns], and `turned`, [columns, rows], of `source` times `scale`."""
    pointers = [Pointer(name) for name in ("source", "scale", *spec.stored)]
    kernel = Kernel("codes", [*pointers, Word("rows"), Word("columns")], THREADS)
    _write(kernel, spec)
    return CastKernel(spec, kernel.name, kernel.text(), THREADS, 0, kernel.parameters)


def _write(kernel: Kernel, spec: CastSpec) -> None:
    rows, columns = kernel.parameter("rows"), kernel.parameter("columns")
    scale = kernel.let("f32", "ld.global.f32", at(kernel.parameter("scale")))
    item = 4 if spec.dtype == float32.name else 2

    def write_part(row: Value, column: Value) -> None:
        first = kernel.let("u64", "mul.wide.u32", row, columns)
        first = first + kernel.let("u64", "cvt.u64.u32", column)
        place = kernel.parameter("source") + first * item
        step = kernel.let("u64", "cvt.u64.u32", columns)
        stride = step * item
        loaded = []
        for _ in range(ROWS):  # all on their way before the first is looked at
            loaded.append(kernel.registers("b32", "pair", item))
            kernel.do(f"ld.global.v{item}.b32", braces(loaded[-1]), at(place))
            place = place + stride
        words = [_word_of_codes(kernel, spec, each, scale) for each in loaded]
        if "codes" in spec.stored:
            place = kernel.parameter("codes") + first
            for word in words:
                kernel.do("st.global.b32", at(place), word)
                place = place + step
        if "turned" in spec.stored:
            store_turned(kernel, words, (row, column), rows)

    for_each_part(kernel, rows, columns, write_part)


def _floats(kernel: Kernel, spec: CastSpec, loaded: Sequence[Value]) -> Iterator[Value]:
    for word in loaded:
        if spec.dtype == float32.name:
            yield kernel.let("f32", "mov.b32", word)
        else:
            yield from unpacked_pair(kernel, spec.dtype, word)


def _word_of_codes(kernel: Kernel, spec: CastSpec, loaded: Sequence[Value], scale: Value) -> Value:
    """Four codes, the first in the lowest byte."""
    numbers = [x * scale for x in _floats(kernel, spec, loaded)]
    halves = kernel.registers("b16", "codes", 2)
    for half, low, high in zip(halves, numbers[::2], numbers[1::2], strict=True):
        kernel.do(f"cvt.rn.satfinite.{spec.format}x2.f32", half, high, low)
    word = kernel.let("b32", "mov.b32", braces(halves))
    limit = float_literal(_LIMITS[spec.format])
    sizes = [kernel.let("f32", "abs.f32", x) for x in numbers]
    inside = [kernel.let("pred", "setp.le.f32", each, limit) for each in sizes]
    with kernel.when(~(inside[0] & inside[1] & inside[2] & inside[3])):
        _put_right(kernel, spec, word, numbers, inside)
    return word


def _put_right(
    kernel: Kernel,
    spec: CastSpec,
    word: Value,
    numbers: Sequence[Value],
    inside: Sequence[Value],
) -> None:
    """Codes of NaN, of infinities and of what is rounded to one, which the conversion has not."""
    kind = FORMATS[spec.format]
    for place, (x, is_inside) in enumerate(zip(numbers, inside, strict=True)):
        bits = kernel.let("u32", "mov.b32", x)
        is_number = (bits & 0x7FFFFFFF) <= 0x7F800000
        signed = ((bits >> 24) & 0x80) | kind.top_code
        if kind.top_code == kind.nan_code:  # there are no infinities
            signed = kernel.variable("u32", kind.nan_code)
        code = kernel.select(is_number, signed, kind.nan_code) << (8 * place)
        others = word & (0xFFFFFFFF ^ (0xFF << (8 * place)))
        right = kernel.let("b32", "or.b32", others, code)
        kernel.assign(word, kernel.select(is_inside, word, right, kind="b32"))
