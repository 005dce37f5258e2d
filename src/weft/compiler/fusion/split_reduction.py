"""Reductions over rows in two parts: the rows of each chunk, and then the chunks.

A reduction over the leading axes of a value, such as the gradient of a bias, goes down its columns.
Chunk by chunk it is made of rows that lie side by side, by threads that divide the chunks, and can
be a part of the fusion that makes the rows (`weft.compiler.plan.row_fusion`), while they are in
cache. Where chunks begin depends on sizes only, and each column's sum has one order. Where rows do
not come out even, or are not known before a program runs, the last chunk has fewer.

>>> import weft as wf
>>> node = wf.ir.trace(lambda x: x.sum(axis=(0, 1)), wf.spec("float32", (8, 200, 64))).nodes[0]
>>> chunk_rows(node, FusionLimits()), halves(node, 10)[0].type.shape
(10, (8, 20, 64))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.targets.limits import FusionLimits
from weft.core.dtypes import DType, bfloat16, float16, float32
from weft.core.shapes import Dimension, size
from weft.core.types import TensorType
from weft.ir.affine_index import Affine
from weft.ir.graph import GraphNode, Variable
from weft.ir.primitive import PRIMITIVES, Primitive


def accumulation_dtype(dtype: DType) -> DType:
    """The dtype that values are accumulated in: 16-bit floats in float32."""
    return float32 if dtype in (float16, bfloat16) else dtype


def chunk_rows(node: GraphNode, limits: FusionLimits) -> int:
    """The rows of a chunk of a reduction over all leading axes; 0 where there are no chunks."""
    shape, last = node.operands[0].type.shape, _last_summed_axis(node)
    axes = [axis for axis, dim in enumerate(shape) if dim != 1]
    reduced = [axis for axis in axes if axis in node.params["axes"]]
    if last < 0 or axes[: len(reduced)] != reduced or 0 in shape:
        return 0
    rows, columns = size(shape[: last + 1]), size(shape[last + 1 :])
    if _is_below(rows, limits.chunked_rows) or _is_below(columns, limits.chunked_columns):
        return 0
    found = _divisor(shape[last], limits)
    if not found and limits.ragged_chunks and not _is_below(shape[last], limits.chunk_rows):
        return limits.chunk_rows
    # Threads divide chunks: smaller ones, down to 16 rows, where there would be too few.
    while found % 32 == 0 and _is_below(rows, limits.fewest_chunks * found):
        found //= 2
    return 0 if rows == found else found  # one chunk is the whole sum


def rows_left(own: Sequence[Affine], node: GraphNode, rows: int) -> tuple[Dimension, Affine] | None:
    """How many rows there are, and where a chunk begins; None where chunks come out even."""
    last = _last_summed_axis(node)
    count = node.operands[0].type.shape[last]
    if isinstance(count, int) and count % rows == 0:
        return None
    return count, own[last] * rows


def _last_summed_axis(node: GraphNode) -> int:
    """The last axis that is summed over and has more than one element; -1 where there is none."""
    shape = node.operands[0].type.shape
    return max([axis for axis in node.params["axes"] if shape[axis] != 1], default=-1)


def _is_below(count: object, least: int) -> bool:
    return isinstance(count, int) and count < least


def _divisor(dim: object, limits: FusionLimits) -> int:
    """The rows of a chunk: the most up to `chunk_rows` that come out even, else a few more."""
    if not isinstance(dim, int):
        return 0
    fewer = range(limits.chunk_rows, limits.fewest_chunk_rows - 1, -1)
    tried = [*fewer, *range(limits.chunk_rows + 1, limits.most_chunk_rows + 1)]
    return next((rows for rows in tried if dim % rows == 0), 0)


def chunk_lines(node: GraphNode, rows: int, limits: FusionLimits) -> int:
    """How many times a chunk takes all rows of the last summed axis: along the axis before it.

    As many as leave chunks for all threads.
    """
    shape, last = node.operands[0].type.shape, _last_summed_axis(node)
    if limits.chunk_elements == 0 or last < 1 or shape[last] != rows or shape[last - 1] == 1:
        return 1
    count, before = size(shape), shape[last - 1]
    if not isinstance(count, int) or not isinstance(before, int):
        return 1
    most = count // (rows * limits.chunk_elements)
    return max([lines for lines in range(1, before + 1) if before % lines == 0 and lines <= most],
               default=1)  # fmt: skip


def halves(node: GraphNode, rows: int, lines: int = 1) -> tuple[Variable, GraphNode]:
    """What the reduction of the rows of each chunk makes, and the reduction of that."""
    last, shape = _last_summed_axis(node), node.operands[0].type.shape
    # [..., rows, columns...] -> [..., chunks, columns...]: the summed axis keeps its place, so that
    # the same reduction, over the same axes, makes the result of the partial ones.
    chunks = (*shape[:last], (shape[last] + rows - 1) // rows, *shape[last + 1 :])
    if lines > 1:
        chunks = (*chunks[: last - 1], chunks[last - 1] // lines, *chunks[last:])
    partial = Variable(TensorType(accumulation_dtype(node.results[0].type.dtype), chunks))
    if node.primitive.lower is None:
        return partial, replace(node, operands=(partial,))
    axes = {"axes": node.params["axes"]}
    plain = _combining_reduction(node.primitive)
    return partial, replace(node, primitive=plain, operands=(partial,), params=axes)


def _combining_reduction(primitive: Primitive) -> Primitive:
    """The reduction that combines partial results of another, as they are."""
    alike = (each for each in PRIMITIVES.values() if each.kind == primitive.kind)
    return next(each for each in alike if each.lower is None)


def chunk_index(
    own: Sequence[Affine], node: GraphNode, rows: int, loop: int, lines: int = 1
) -> tuple[Affine, ...]:
    """The element that a reduction of a chunk reads: of its own index, and the loops over rows.

    `loop` is the number of the first of these: over lines, if there are some, then over rows.
    """
    last = _last_summed_axis(node)
    inner = {last: (rows, loop + (lines > 1))}
    if lines > 1:
        inner[last - 1] = (lines, loop)
    return tuple(
        index * inner[axis][0] + Affine.variable(inner[axis][1]) if axis in inner else index
        for axis, index in enumerate(own)
    )
