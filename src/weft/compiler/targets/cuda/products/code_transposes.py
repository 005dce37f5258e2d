"""Matrices of bytes with rows and columns exchanged: codes lie along the summed axis.

A loop reads a byte here and a byte there, each from a sector of its own. Here a warp takes 16 rows
of 128 bytes as words, each row at once; a lane holds four columns of them, exchanges bytes of four
words by `prmt`, and stores four rows of 16 bytes.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x.T, wf.spec("uint8", (64, 40)))
>>> [node] = transposed_codes(graph.nodes[0])
>>> is_transposed_codes(node), matrix_of(node.params["graph"].nodes[0])
(True, (64, 40))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache

from weft.compiler.plan.launch import Kind, Launch, no_numbers, one
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.parameters import WrittenKernel, written_kernel_run
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
)
from weft.core.dtypes import uint8
from weft.core.records import frozen
from weft.core.shapes import size
from weft.ir.graph import Graph, GraphNode, Variable
from weft.ops.control_call import call
from weft.ops.movement import transpose

__all__ = [
    "ROWS",
    "THREADS",
    "TransposeKernel",
    "call_launch",
    "for_each_part",
    "is_transposed_codes",
    "matrix_of",
    "matrix_run",
    "store_turned",
    "transpose_blocks",
    "transpose_kernel",
    "transposed_codes",
    "transposed_codes_launch",
]  # fmt: skip

_NAME = "transposed codes"
THREADS = 256
"""Of a block."""
_SIDE_BY_SIDE = 4  # warps of a block
ROWS = 16
"""Of a warp at a time: what a lane stores at once."""
_COLUMNS = 128  # of a warp: a word for each lane
_WORD = 4
_WARP_ROWS = 2 * ROWS
_TILE_ROWS = THREADS // 32 // _SIDE_BY_SIDE * _WARP_ROWS
_TILE_COLUMNS = _SIDE_BY_SIDE * _COLUMNS
_MOST_BYTES = 1 << 32
"""Of a matrix, so that places in it are words."""


def matrix_of(node: GraphNode) -> tuple[int, int] | None:
    """The rows and columns that a node exchanges; None where there is no kernel for them."""
    if node.primitive is not transpose or node.operands[0].type.dtype is not uint8:
        return None
    order, shape = node.params["order"], node.operands[0].type.shape
    first = order[0]
    if first == 0 or tuple(order) != (*range(first, len(order)), *range(first)):
        return None
    rows, columns = size(shape[:first]), size(shape[first:])
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    is_whole = rows % ROWS == 0 and columns % _WORD == 0
    return (rows, columns) if is_whole and 0 < rows * columns < _MOST_BYTES else None


def transposed_codes(node: GraphNode) -> list[GraphNode]:
    """A transpose as a call that the kernel answers; itself where there is none for it."""
    if matrix_of(node) is None:
        return [node]
    given, result = Variable(node.operands[0].type), Variable(node.results[0].type)
    inner = GraphNode(transpose, (given,), node.params, (result,), node.location)
    graph = Graph((given,), (inner,), (result,), _NAME)
    return [GraphNode(call, node.operands, {"graph": graph}, node.results, node.location)]


def is_transposed_codes(node: GraphNode) -> bool:
    """Whether a node is such a call."""
    return node.primitive is call and node.params["graph"].name == _NAME


def transposed_codes_launch(node: GraphNode) -> Launch:
    """The launch of such a call."""
    return call_launch(node, "transposed_codes")


def call_launch(node: GraphNode, symbol: str) -> Launch:
    """The launch of a call, by what binds it."""
    graph: Graph = node.params["graph"]
    return Launch(
        Kind.LOOP, graph.name, (symbol,), (*node.operands, *node.results), node.results,
        no_numbers, one, one, computes=graph,
    )  # fmt: skip


@binder("transposed_codes")
def bind_transposed_codes(binding: Binding, launch: Launch) -> Run:
    """What runs it."""
    assert launch.computes is not None
    matrix = matrix_of(launch.computes.nodes[0])
    assert matrix is not None
    return matrix_run(binding, launch, transpose_kernel(), ("source", "turned"), matrix)


def matrix_run(
    binding: Binding,
    launch: Launch,
    kernel: WrittenKernel,
    names: Sequence[str],
    matrix: tuple[int, int],
) -> Run:
    """What runs a kernel of the tiles of a matrix; names: of the launch's values in it."""
    values = dict(zip(names, launch.values, strict=True))
    words = dict(zip(("rows", "columns"), matrix, strict=True))
    blocks = transpose_blocks(*matrix)
    return written_kernel_run(binding, launch, kernel, blocks, (values, {}, words))


@frozen(slots=False)
class TransposeKernel:
    """The kernel, ready for the driver."""

    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...] = field(repr=False)


def transpose_blocks(rows: int, columns: int) -> int:
    """The blocks of a launch: one for each tile."""
    return -(-rows // _TILE_ROWS) * -(-columns // _TILE_COLUMNS)


@cache
def transpose_kernel() -> TransposeKernel:
    """`turned`, [columns, rows], from `source`, [rows, columns], both of bytes."""
    parameters = [Pointer("source"), Pointer("turned"), Word("rows"), Word("columns")]
    kernel = Kernel("transpose_codes", parameters, THREADS)
    _write(kernel)
    return TransposeKernel(kernel.name, kernel.text(), THREADS, 0, kernel.parameters)


def _write(kernel: Kernel) -> None:
    rows, columns = kernel.parameter("rows"), kernel.parameter("columns")

    def write_part(row: Value, column: Value) -> None:
        place = kernel.address(kernel.parameter("source"), row * columns + column, 1)
        step = kernel.let("u64", "cvt.u64.u32", columns)
        words = []
        for _ in range(ROWS):
            words.append(kernel.let("b32", "ld.global.b32", at(place)))
            place = place + step
        store_turned(kernel, words, (row, column), rows)

    for_each_part(kernel, rows, columns, write_part)


def for_each_part(
    kernel: Kernel, rows: Value, columns: Value, write: Callable[[Value, Value], None]
) -> None:
    """Code for each 16 rows and four columns of a thread, given where they begin.

    Warps of a block lie side by side along the rows, which are read then and never again, and two
    of them one below the other. Blocks go down the rows first: what they store meets in the cache.
    """
    thread, block = kernel.special_register("tid.x"), kernel.special_register("ctaid.x")
    warp, tiles = thread >> 5, (rows + (_TILE_ROWS - 1)) // _TILE_ROWS
    first = block % tiles * _TILE_ROWS + warp // _SIDE_BY_SIDE * _WARP_ROWS
    column = (
        block // tiles * _TILE_COLUMNS + warp % _SIDE_BY_SIDE * _COLUMNS + (thread & 31) * _WORD
    )
    with kernel.when(column < columns):
        row = kernel.variable("u32", first, "row")
        end = (first + _WARP_ROWS).minimum(rows)
        with kernel.loop("part") as loop:
            loop.stop_if(row >= end)
            write(row, column)
            kernel.assign(row, row + ROWS)


def store_turned(
    kernel: Kernel, words: Sequence[Value], where: tuple[Value, Value], rows: Value
) -> None:
    """Store four columns of 16 rows, given as words, as rows of `turned`."""
    row, column = where
    fours = [_exchange_bytes(kernel, words[first : first + 4]) for first in range(0, ROWS, 4)]
    place = kernel.address(kernel.parameter("turned"), column * rows + row, 1)
    step = kernel.let("u64", "cvt.u64.u32", rows)
    for line in zip(*fours, strict=True):
        kernel.do("st.global.v4.b32", at(place), braces(line))
        place = place + step


def _exchange_bytes(kernel: Kernel, words: Sequence[Value]) -> list[Value]:
    """Four words of four bytes with bytes and words exchanged."""
    a, b, c, d = words

    def pick(x: Value, y: Value, bytes: int) -> Value:
        return kernel.let("b32", "prmt.b32", x, y, bytes)

    found = []
    for pairs in (0x5140, 0x7362):  # the first two bytes of both, or the last
        upper, lower = pick(a, b, pairs), pick(c, d, pairs)
        found += [pick(upper, lower, halves) for halves in (0x5410, 0x7632)]
    return found
