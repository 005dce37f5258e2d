"""The kernel of attention: one pass over keys for a block of queries.

A task takes a block of queries of one head, turned so that queries lie in vectors. For a block of
keys after the other it has their scores in scratch memory, raises the largest score so far, and
adds exponentials times values to what it has, lowered to the new largest score. So scores are
never in main memory, and blocks of keys that no query of the block sees are left out. The order of
every sum depends on sizes only.

>>> import weft as wf
>>> q, v = wf.zeros((1, 2, 4)), wf.tensor([[[1.0], [3.0]]])
>>> wf.jit(wf.scaled_dot_product_attention)(q, q, v).tolist()
[[[2.0], [2.0]]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    NodeKernel,
    compute_dtype,
    kernel_of,
    widen_element,
)
from weft.compiler.lowering.nodes.convolutions import products, rows_at_a_time, zero_buffer
from weft.compiler.targets.limits import LoweringLimits
from weft.core.dtypes import INDEX, bool_, float32, float64, uint64
from weft.core.shapes import Dimension, Shape, size
from weft.ir import scalars
from weft.ir.affine_index import strides
from weft.ir.graph import Graph, GraphNode, Literal, Variable
from weft.ir.loops import Accumulate, For, Kernel, Let, Scratch, Statement, Store, Update
from weft.ir.scalar_functions import lower_element
from weft.ir.scalars import Buffer, Scalar
from weft.ops.random_bits import DRAW, philox

LOWEST = {float32: -3.4028234663852886e38, float64: -1.7976931348623157e308}
"""The lowest numbers but -inf: of the formats of numbers, not of a machine."""


class Writer:
    """What the kernels of attention share: sizes, blocks of queries, and scores."""

    def __init__(self, builder: KernelBuilder, mask: int) -> None:
        self.builder, self.limits = builder, builder.limits
        node = builder.node
        self.q, self.k, self.v = builder.operands[:3]
        self.kept = builder.params.get("kept", 1.0)
        drawn: Sequence[Buffer | None] = builder.operands[-2:] if self.kept < 1 else (None, None)
        self.key, self.data = drawn
        self.masks = builder.operands[mask:-2] if self.key else builder.operands[mask:]
        self.mask_shapes = [atom.type.shape for atom in node.operands[mask:]]
        self.masking: Graph | None = builder.params.get("masking")
        self.outs = tuple(
            Buffer(f"out{i}", each.type.dtype, "both") for i, each in enumerate(node.results)
        )
        # q [*batch, heads, queries, head]; k, v [*batch, shared heads, keys, head or value]
        (*self.batch, self.heads, self.queries, self.head) = builder.shape(0)
        self.shared, self.keys, self.value = builder.shape(2)[-3:]
        self.group = 1 if self.heads == self.shared else int(self.heads) // int(self.shared)
        self.offset = builder.params["offset"]
        self.guarded = builder.params["guarded"] or self.keys == 0
        self.dtype = compute_dtype(self.q.dtype)
        self.lanes = _lanes(self.queries, self.offset is not None, builder.limits)
        self.key_block = builder.limits.attention_block_keys
        """Keys of a block."""
        is_narrow = self.lanes <= 2 * builder.limits.vector_lanes
        self.tall = builder.limits.accumulators // (2 if is_narrow else 4)
        self.scratch: list[Scratch] = []
        self.turned_q = self.memory("turned", self.head * self.lanes)
        """The queries of the block, [head, lanes], so that queries lie side by side."""

    # what a task is about
    row = scalars.local("row", INDEX)
    """Which head of which batch, counted through all."""
    shared_row = scalars.local("shared_row", INDEX)
    first = scalars.local("first", INDEX)
    """The first query of the block."""
    limit = scalars.local("limit", INDEX)
    """The keys that some query of the block sees."""
    block = scalars.index("block")
    """Which block of keys."""
    start = scalars.local("start", INDEX)
    tiles = scalars.local("tiles", INDEX)
    """How many times `tall` keys the block has, which one pass multiplies."""

    def extent(self, dim: Dimension) -> Scalar:
        """A size as an expression."""
        return self.builder.extent(dim)

    def number(self, value: float) -> Scalar:
        """A number of the dtype of sums."""
        return scalars.const(value, self.dtype)

    def memory(self, name: str, count: Dimension) -> Buffer:
        """Scratch memory of so many elements."""
        buffer = Buffer(name, self.dtype, "scratch")
        self.scratch.append(Scratch(buffer, self.extent(count)))
        return buffer

    @property
    def blocks(self) -> Dimension:
        """How many blocks of queries a head has."""
        return (self.queries + (self.lanes - 1)) // self.lanes

    @property
    def rows(self) -> Scalar:
        """How many queries of the block there are."""
        return scalars.minimum(
            scalars.const(self.lanes, INDEX), self.extent(self.queries) - self.first
        )

    def place_block(self, row: Scalar, block: Scalar) -> list[Statement]:
        """What follows from a head and a block of queries."""
        keys = self.extent(self.keys)
        last = keys
        if self.offset is not None:
            # Query i sees keys up to i + offset: the last query of the block sees most.
            seen = self.first + self.rows + self.extent(self.offset)
            last = scalars.maximum(ZERO, scalars.minimum(keys, seen))
        return [
            Let(self.row, row),
            Let(self.first, block * self.lanes),
            Let(self.limit, last),
        ]

    def shared_head(self) -> Let:
        """Which head of keys the head of queries sees."""
        return Let(self.shared_row, self.row // self.group if self.group > 1 else self.row)

    def key_blocks(
        self, body: Sequence[Statement], begin: Scalar = ZERO, most: Scalar | None = None
    ) -> For:
        """Statements for each block of keys that is seen, or for some of them."""
        count = (self.limit + (self.key_block - 1)) // self.key_block - begin
        count = count if most is None else scalars.minimum(most, count)
        lets = [
            Let(self.start, (begin + self.block) * self.key_block),
            Let(self.tiles, (self.seen_keys + (self.tall - 1)) // self.tall),
        ]
        return For(self.block, count, (*lets, *body))

    @property
    def seen_keys(self) -> Scalar:
        """How many keys of the block are seen by some query."""
        return scalars.minimum(scalars.const(self.key_block, INDEX), self.limit - self.start)

    def for_each_query(self, *stores: Statement, index: Scalar) -> For:
        """Statements for each query of the block."""
        return For(index, self.extent(self.lanes), stores, "vector")

    def copy_turned(
        self, source: Buffer, target: Buffer, width: Dimension, scale: float
    ) -> Statement:
        """Copy rows of the block of queries as [width, lanes], zeros for those that are not."""
        d, i = scalars.index("d"), scalars.index("i")
        # [lanes, width] -> [width, lanes]: a key's element multiplies a vector of queries.
        line = (self.row * self.extent(self.queries) + self.first + i) * self.extent(width) + d
        value = widen_element(scalars.load(source, line, scalars.less(i, self.rows)))
        scaled = value if scale == 1 else value * self.number(scale)
        store = Store(target, d * self.lanes + i, scaled)
        return For(d, self.extent(width), (For(i, self.extent(self.lanes), (store,), "vector"),))

    def key_rows(
        self, name: str, tile: Scalar, width: Dimension
    ) -> tuple[list[Statement], list[Scalar]]:
        """Where the rows of keys, or of values, of a tile begin; the last stands for later ones."""
        lets: list[Statement] = []
        found = []
        for number in range(self.tall):
            base = scalars.local(f"{name}{number}", INDEX)
            # No load is out of bounds: scores of keys beyond the last are hidden later.
            key = scalars.minimum(
                self.start + tile * self.tall + number, self.extent(self.keys) - 1
            )
            place = self.shared_row * self.extent(self.keys) + key
            lets.append(Let(base, place * self.extent(width)))
            found.append(base)
        return lets, found

    def score_tile(
        self, sums: Sequence[Scalar], tile: Scalar, i: Scalar, masked: bool
    ) -> list[Scalar]:
        """Scores of a tile, given its products: -inf where a key is hidden."""
        scores = []
        nothing = self.number(-float("inf"))
        for number, value in enumerate(sums):
            key = self.start + tile * self.tall + number
            if self.masks or self.masking:
                seen = self._mask(key, i)
                if seen.dtype is bool_:
                    value = scalars.select(seen, value, nothing)
                else:
                    value = value + widen_element(seen)
            # Tiles that all queries see whole are written without this question.
            if masked:
                value = scalars.select(self._is_seen(key, i), value, nothing)
            scores.append(value)
        return scores

    def _mask(self, key: Scalar, i: Scalar) -> Scalar:
        """The mask for a key and a query: loaded, or computed of what is loaded."""
        there = self._is_there(key, i)
        loads = [
            scalars.load(buffer, self._mask_place(shape, key, i), there)
            for buffer, shape in zip(self.masks, self.mask_shapes, strict=False)
        ]
        if self.masking is None:
            return loads[0]
        known: dict[Variable, Scalar] = dict(zip(self.masking.inputs, loads, strict=True))
        for node in self.masking.nodes:
            operands = [_number(x) if isinstance(x, Literal) else known[x] for x in node.operands]
            known[node.results[0]] = self._element(node, operands, key, i)
        return known[self.masking.outputs[0]]  # type: ignore[index]

    def _element(self, node: GraphNode, operands: list[Scalar], key: Scalar, i: Scalar) -> Scalar:
        """One element of a node of the graph that computes the mask."""
        name, kind = node.primitive.name, node.results[0].type
        if name in ("broadcast_to", "reshape"):
            return operands[0]
        if name == "full":
            value = np.asarray(node.params["value"]).astype(kind.dtype.numpy)
            return scalars.const(value.item(), kind.dtype)
        if name == "iota":
            along = key if node.params["axis"] == kind.ndim - 1 else self.first + i
            return scalars.cast(along, kind.dtype)
        return lower_element(node.primitive, operands, kind.dtype, node.params)

    def _is_there(self, key: Scalar, i: Scalar) -> Scalar:
        """Whether the mask may be read there."""
        rows, keys = scalars.less(i, self.rows), scalars.less(key, self.extent(self.keys))
        return scalars.and_(rows, keys)

    def _is_seen(self, key: Scalar, i: Scalar) -> Scalar:
        seen = scalars.less(key, self.limit)
        if self.offset is None:
            return seen
        latest = self.first + i + self.extent(self.offset)
        return scalars.and_(seen, scalars.less_equal(key, latest))

    def _mask_place(self, given: Shape, key: Scalar, i: Scalar) -> Scalar:
        """Where a mask is for a key and a query: not moved along axes of size 1."""
        whole = (*self.batch, self.heads, self.queries, self.keys)
        shape = (*[1] * (len(whole) - len(given)), *given)
        steps = [0 if dim == 1 else step for dim, step in zip(shape, strides(shape), strict=True)]
        lead = whole[:-2]
        total = (self.first + i) * self.extent(steps[-2]) + key * self.extent(steps[-1])
        for axis, (dim, counted) in enumerate(zip(lead, strides(lead), strict=True)):
            if steps[axis] != 0:
                along = self.row // self.extent(counted)
                along = along % self.extent(dim) if axis else along
                total = total + along * self.extent(steps[axis])
        return total

    def stays(self, tile: Scalar, i: Scalar) -> list[Scalar]:
        """Whether each probability of a tile is kept: by the word that its place draws."""
        lead = self.builder.node.operands[-1].type.ndim
        each = self.extent(size(self.batch[lead:]) * self.heads)
        number, row = (self.row // each, self.row % each) if lead else (ZERO, self.row)
        line = row * self.extent(self.queries) + self.first + i
        words = self._tile_words(number, line, self.start + tile * self.tall)
        # The upper 24 bits of a word are the uniform number in [0, 1) that eager mode compares.
        limit = scalars.const(ceil(float(np.float32(self.kept)) * (1 << 24)), uint64)
        return [scalars.less(word >> 8, limit) for word in words]

    def _tile_words(self, number: Scalar, line: Scalar, begin: Scalar) -> list[Scalar]:
        """The words of a tile's keys: four of a block where rows are whole blocks."""
        key, data, keys = self.key, self.data, self.extent(self.keys)
        assert key is not None
        assert data is not None
        low, high = (scalars.cast(key[number * 2 + place], uint64) for place in range(2))
        rest = (DRAW << 16, data[number] & 0xFFFFFFFF, data[number] >> 32)

        def block(place: Scalar) -> tuple[Scalar, ...]:
            return philox(place, (low, high), rest)

        # Philox gives four words for a block of four places. Where rows of keys are whole blocks, a
        # tile draws each block once; else a place picks its word among the four of its block.
        if isinstance(self.keys, int) and self.keys % 4 == 0:
            first = scalars.cast(line * (self.keys // 4), uint64) + scalars.cast(begin >> 2, uint64)
            return [word for four in range(self.tall // 4) for word in block(first + four)]
        found = []
        for each in range(self.tall):
            place = scalars.cast(line * keys + begin + each, uint64)
            words, which = block(place >> 2), place & 3
            word = words[3]
            for each_word in range(3):
                chosen = scalars.equal(which, each_word)
                word = scalars.select(chosen, words[each_word], word)
            found.append(word)
        return found

    def add_weighted_rows(
        self,
        rows: Buffer,
        width: Dimension,
        weights: Buffer,
        total: Buffer,
        factor: Buffer | None = None,
    ) -> Statement:
        """Add rows of the block of keys, weighted for each query, to [width, lanes]."""
        i, j, t = scalars.index("i"), scalars.index("j"), scalars.index("t")
        unit, last = rows_at_a_time(self.tall, width), self.extent(width) - 1
        line = scalars.local("line", INDEX)
        first = (self.shared_row * self.extent(self.keys) + self.start) * self.extent(width)
        lets: list[Statement] = [Let(line, first)]
        left = []
        for number in range(unit):
            column = scalars.local(f"column{number}", INDEX)
            lets.append(Let(column, line + scalars.minimum(t * unit + number, last)))
            left.append(widen_element(rows[column + j * self.extent(width)]))
        sums, found = products("o", unit, self.seen_keys, left, weights[j * self.lanes + i], j)
        stores = []
        for number, local in enumerate(found):
            place = (t * unit + number) * self.lanes + i
            before = total[place] if factor is None else total[place] * factor[i]
            stores.append(Store(total, place, before + local))
        count = self.extent((width + (unit - 1)) // unit)
        return For(t, count, (*lets, self.for_each_query(sums, *stores, index=i)))

    def columns(self, name: str, width: Dimension) -> Buffer:
        """Memory for [width, lanes], and as many rows more as `add_weighted_rows` writes."""
        return self.memory(name, self.column_count(width))

    def column_count(self, width: Dimension) -> Dimension:
        """How many elements that are."""
        unit = rows_at_a_time(self.tall, width)
        return -(-width // unit) * unit * self.lanes

    def seen_by_all(self) -> Scalar:
        """How many tiles of the block all queries see whole."""
        most = self.limit
        if self.offset is not None:
            most = scalars.minimum(most, self.first + self.extent(self.offset) + 1)
        whole = scalars.maximum(ZERO, most - self.start) // self.tall
        return scalars.minimum(self.tiles, whole)

    def for_each_tile(
        self, keep: Callable[[Sequence[Scalar], Scalar, Scalar], Sequence[Statement]]
    ) -> tuple[Statement, ...]:
        """Statements on the scores of each tile: first of keys that all queries see, then others.

        `keep` writes what becomes of a tile's scores, one for each of its keys, for query i.
        """
        whole = scalars.local("whole", INDEX)

        def tiles(begin: Scalar, count: Scalar, masked: bool) -> Statement:
            i, d, t = scalars.index("i"), scalars.index("d"), scalars.index("t")
            tile = scalars.local("tile", INDEX)
            lets, bases = self.key_rows("k", tile, self.head)
            left = [widen_element(self.k[base + d]) for base in bases]
            right = self.turned_q[d * self.lanes + i]
            sums, found = products("s", self.tall, self.extent(self.head), left, right, d)
            kept = keep(self.score_tile(found, tile, i, masked), tile, i)
            inner = self.for_each_query(sums, *kept, index=i)
            return For(t, count, (Let(tile, begin + t), *lets, inner))

        return (
            Let(whole, self.seen_by_all()),
            tiles(ZERO, whole, masked=False),
            tiles(whole, self.tiles - whole, masked=True),
        )

    def place_in_block(self, tile: Scalar, number: int, i: Scalar) -> Scalar:
        """Where what belongs to a key of a tile and to query i is kept."""
        return (tile * self.tall + number) * self.lanes + i

    def single_kernel(self, body: tuple[Statement, ...], products_: int) -> NodeKernel:
        """The kernel; its work counts a vector of products as one operation."""
        node = self.builder.node
        rows = size(self.batch) * self.heads * self.queries
        work = rows * self.keys * (self.head + self.value) * products_
        kernel = Kernel(
            node.primitive.name,
            (*self.builder.operands, *self.outs),
            tuple(self.builder.extents.symbols),
            body,
            tuple(self.scratch),
        )
        values = (*node.operands, *node.results)
        return NodeKernel(kernel, values, node.results, work=(work + 31) // 32)


def _number(literal: Literal) -> Scalar:
    return scalars.const(literal.value.item(), literal.type.dtype)


def _lanes(queries: Dimension, is_causal: bool, limits: LoweringLimits) -> int:
    """Queries of a block: so many that few are left over, in whole vectors."""
    most = limits.causal_block_queries if is_causal else limits.attention_block_queries
    vector = limits.vector_lanes
    if not isinstance(queries, int):
        return most
    blocks = max(1, -(-queries // most))
    each = -(-queries // blocks)
    return max(vector, -(-each // vector) * vector)


# --- forward -------------------------------------------------------------------------------------


@kernel_of("attention", "computed_attention")
def attention(builder: KernelBuilder) -> NodeKernel:
    """Blocks of queries are divided over threads; those with the most keys are begun first."""
    return _Forward(builder, 3).kernel()


class _Forward(Writer):
    """The results, and the logarithms of the sums of exponentials."""

    def kernel(self) -> NodeKernel:
        """A task for each head and block of queries: blocks of keys in turn, each in four steps."""
        lanes = self.lanes
        self.scores = self.memory("scores", self.key_block * lanes)
        self.total = self.columns("total", self.value)
        names = ("before", "top", "sum", "factor")
        self.before, self.top, self.sum, self.factor = (self.memory(n, lanes) for n in names)
        task = scalars.index("task")
        blocks = self.extent(self.blocks)
        body = (
            *self.place_block(task // blocks, blocks - 1 - task % blocks),
            self.shared_head(),
            self.copy_turned(self.q, self.turned_q, self.head, self.builder.params["scale"]),
            *self.begin_sums(),
            self.key_blocks(
                [
                    *self.scored_tiles(),
                    *self.rescale_sums(),
                    self.exponentiate_scores(),
                    *self.drop_weights(),
                    self.add_values(),
                ]
            ),
            *self.write_results(),
        )
        tasks = self.extent(size(self.batch) * self.heads) * blocks
        return self.single_kernel((For(task, tasks, body, "parallel"),), 1)

    def begin_sums(self) -> tuple[Statement, ...]:
        """Nothing seen so far: the lowest height, and sums of zero."""
        i = scalars.index("i")
        # not -inf, whose difference to itself is no number
        lowest = self.number(LOWEST[self.dtype])
        return (
            self.for_each_query(
                Store(self.top, i, lowest),
                Store(self.before, i, lowest),
                Store(self.sum, i, self.number(0)),
                index=i,
            ),
            *zero_buffer(self.total, self.extent(self.column_count(self.value))),
        )

    def scored_tiles(self) -> tuple[Statement, ...]:
        """Scores of the block, and the largest so far."""
        return self.for_each_tile(self._keep_scores)

    def _keep_scores(self, values: Sequence[Scalar], tile: Scalar, i: Scalar) -> list[Statement]:
        scores = [scalars.local(f"score{number}", self.dtype) for number in range(self.tall)]
        top = self.top[i]
        for score in scores:
            top = scalars.maximum(top, score)
        held = [Let(score, value) for score, value in zip(scores, values, strict=True)]
        stores = [
            Store(self.scores, self.place_in_block(tile, number, i), score)
            for number, score in enumerate(scores)
        ]
        return [*held, *stores, Store(self.top, i, top)]

    def rescale_sums(self) -> tuple[Statement, ...]:
        """How much what was added before counts, now that there is a larger score."""
        i = scalars.index("i")
        factor = scalars.exp(self.before[i] - self.top[i])
        return (
            self.for_each_query(
                Store(self.factor, i, factor),
                Store(self.sum, i, self.sum[i] * self.factor[i]),
                Store(self.before, i, self.top[i]),
                index=i,
            ),
        )

    def exponentiate_scores(self) -> Statement:
        """Exponentials in place of scores, and their sum."""
        i, j = scalars.index("i"), scalars.index("j")
        power, total = scalars.local("power", self.dtype), scalars.local("powers", self.dtype)
        place = j * self.lanes + i
        body = (
            Let(power, scalars.exp(self.scores[place] - self.top[i])),
            Store(self.scores, place, power),
        )
        sums = Accumulate(j, self.tiles * self.tall, (Update(total, "add", power),), body)
        return self.for_each_query(sums, Store(self.sum, i, self.sum[i] + total), index=i)

    def drop_weights(self) -> tuple[Statement, ...]:
        """Exponentials times the factors of dropout, once they are summed."""
        if self.key is None:
            return ()
        t, i = scalars.index("t"), scalars.index("i")
        stores = []
        for number, stays in enumerate(self.stays(t, i)):
            place = (t * self.tall + number) * self.lanes + i
            kept = self.scores[place] * self.number(1 / self.kept if self.kept else 0)
            stores.append(Store(self.scores, place, scalars.select(stays, kept, self.number(0))))
        return (For(t, self.tiles, (self.for_each_query(*stores, index=i),)),)

    def add_values(self) -> Statement:
        """Values times exponentials, to what there was before, lowered."""
        return self.add_weighted_rows(self.v, self.value, self.scores, self.total, self.factor)

    def write_results(self) -> tuple[Statement, ...]:
        """Sums divided by the sum of exponentials, turned back; and the logarithm of that."""
        i, d = scalars.index("i"), scalars.index("d")
        inverse = 1 / self.sum[i]
        if self.guarded:
            inverse = scalars.select(scalars.equal(self.sum[i], 0), self.number(0), inverse)
        out, lse = self.outs
        place = self.row * self.extent(self.queries) + self.first + i
        value = self.total[d * self.lanes + i] * self.factor[i]
        store = Store(out, place * self.extent(self.value) + d, scalars.cast(value, out.dtype))
        height = self.top[i] + scalars.log(self.sum[i])
        return (
            self.for_each_query(Store(self.factor, i, inverse), index=i),
            For(i, self.rows, (Store(lse, place, scalars.cast(height, lse.dtype)),), "vector"),
            For(i, self.rows, (For(d, self.extent(self.value), (store,), "vector"),)),
        )
