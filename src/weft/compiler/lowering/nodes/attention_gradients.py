"""The kernel of attention's gradient: probabilities again from scores and their log-sum-exp.

A task takes one head of keys and values, with all queries that share it: it has probabilities and
the cotangents of scores of a block of queries and a block of keys in scratch memory, and adds what
they give to all three results. Where there are few heads, a task takes a block of queries and adds
to their gradient alone, or some blocks of keys and adds to theirs; scores are then computed twice,
but the machine is full. Each sum is one task's, in an order that depends on sizes only.

>>> import weft as wf
>>> q, v = wf.zeros((1, 2, 4)), wf.tensor([[[1.0], [3.0]]])
>>> loss = lambda v: wf.scaled_dot_product_attention(q, q, v, causal=True).sum()
>>> wf.jit(wf.grad(loss))(v).tolist()
[[[1.5], [0.5]]]
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.lowering.builder import (
    ONE,
    ZERO,
    KernelBuilder,
    NodeKernel,
    is_short,
    kernel_of,
    widen_element,
)
from weft.compiler.lowering.nodes.attention import Writer
from weft.compiler.lowering.nodes.convolutions import products, zero_buffer
from weft.core.dtypes import INDEX
from weft.core.shapes import Dimension, size
from weft.ir import scalars
from weft.ir.loops import For, Let, Statement, Store
from weft.ir.scalars import Buffer, Scalar


@kernel_of("attention_gradient", "computed_attention_gradient")
def attention_gradient(builder: KernelBuilder) -> NodeKernel:
    """The cotangents of queries, keys and values."""
    return _Backward(builder, 6).kernel()


class _Backward(Writer):
    task = scalars.index("task")
    member = scalars.index("member")
    """Which of the heads of queries that share one of keys."""
    query_block = scalars.index("query_block")
    begin = scalars.local("begin", INDEX)
    """The first of the keys that the task adds to, and how many they are."""
    there = scalars.local("there", INDEX)

    def kernel(self) -> NodeKernel:
        """The kernel of all three gradients."""
        lanes = self.lanes
        self.lse, self.ct, self.delta = self.builder.operands[3:6]
        self.turned_ct = self.memory("turned_ct", self.value * lanes)
        self.powers, self.moved = (
            self.memory(n, self.key_block * lanes) for n in ("powers", "moved")
        )
        self.height, self.shift = (self.memory(n, lanes) for n in ("height", "shift"))
        self.total = self.columns("total", self.head)
        self.dk = self._target(1, "dk", self.head)
        self.dv = self._target(2, "dv", self.value)
        heads = size(self.batch) * self.shared
        split = isinstance(heads, int) and heads < self.limits.divided_heads
        body, tasks = self.divide_head() if split else (self.whole_head(), self.extent(heads))
        return self.single_kernel((For(self.task, tasks, body, "parallel"),), 3)

    def _target(self, place: int, name: str, width: Dimension) -> Buffer:
        """Where sums over queries are kept: in the result, unless its dtype is too short."""
        out = self.outs[place]
        return self.memory(name, self.keys * width) if is_short(out.dtype) else out

    # --- tasks ---------------------------------------------------------------------------------

    def whole_head(self) -> tuple[Statement, ...]:
        """All of one head of keys."""
        keys = self.key_blocks([*self.weights(), self.dq(), *self.dkv()])
        return (
            Let(self.shared_row, self.task),
            Let(self.begin, ZERO),
            Let(self.there, self.extent(self.keys)),
            *self.clear_targets(),
            self.all_queries((*self.no_dq(), keys, self.dq_written())),
            *self.store_targets(),
        )

    def divide_head(self) -> tuple[tuple[Statement, ...], Scalar]:
        """Blocks of queries first, then blocks of keys; how many there are together."""
        chunk = self.limits.divided_head_key_blocks * self.key_block
        chunks = self.extent((self.keys + (chunk - 1)) // chunk)
        first = self.extent(size(self.batch) * self.heads * self.blocks)
        second = self.extent(size(self.batch) * self.shared) * chunks
        one, other = scalars.index("one"), scalars.index("other")
        is_first = scalars.less(self.task, first)
        body = (
            For(one, scalars.select(is_first, ONE, ZERO), self.some_queries()),
            For(other, scalars.select(is_first, ZERO, ONE), self.some_keys(first, chunks)),
        )
        return body, first + second

    def some_queries(self) -> tuple[Statement, ...]:
        """A block of queries, with all keys that it sees."""
        blocks = self.extent(self.blocks)
        return (
            *self.place_block(self.task // blocks, self.task % blocks),
            self.shared_head(),
            *self.queries_known(),
            *self.no_dq(),
            self.key_blocks([*self.weights(), self.dq()]),
            self.dq_written(),
        )

    def some_keys(self, first: Scalar, chunks: Scalar) -> tuple[Statement, ...]:
        """Some blocks of keys, with all queries that see them."""
        blocks = self.limits.divided_head_key_blocks
        chunk, rest = blocks * self.key_block, self.task - first
        most = self.extent(self.keys) - self.begin
        many = scalars.const(blocks, INDEX)
        begin = self.begin // self.key_block
        return (
            Let(self.shared_row, rest // chunks),
            Let(self.begin, rest % chunks * chunk),
            Let(self.there, scalars.minimum(scalars.const(chunk, INDEX), most)),
            *self.clear_targets(),
            self.all_queries((self.key_blocks([*self.weights(), *self.dkv()], begin, many),)),
            *self.store_targets(),
        )

    def all_queries(self, body: tuple[Statement, ...]) -> Statement:
        """Statements for each block of queries of each head that shares the task's keys."""
        row = self.shared_row * self.group + self.member
        inner = (*self.place_block(row, self.query_block), *self.queries_known(), *body)
        blocks = For(self.query_block, self.extent(self.blocks), inner)
        return For(self.member, scalars.const(self.group, INDEX), (blocks,))

    # --- a block of queries --------------------------------------------------------------------

    def queries_known(self) -> tuple[Statement, ...]:
        """Queries and cotangents in columns; what each row of scores is lowered by."""
        i = scalars.index("i")
        place, there = self.row * self.extent(self.queries) + self.first + i, self.rows
        lse, delta = (
            scalars.load(x, place, scalars.less(i, there)) for x in (self.lse, self.delta)
        )
        if self.guarded:
            nothing = scalars.equal(lse, self.number(-float("inf")))
            lse = scalars.select(nothing, self.number(0), lse)
        return (
            self.copy_turned(self.q, self.turned_q, self.head, self.builder.params["scale"]),
            self.copy_turned(self.ct, self.turned_ct, self.value, 1.0),
            self.for_each_query(Store(self.height, i, lse), Store(self.shift, i, delta), index=i),
        )

    def weights(self) -> tuple[Statement, ...]:
        """Probabilities of the block, and the cotangents of its scores."""
        return (*self.for_each_tile(self._keep_powers), self._score_cotangents())

    def _keep_powers(self, scores: Sequence[Scalar], tile: Scalar, i: Scalar) -> list[Statement]:
        places = [self.place_in_block(tile, number, i) for number in range(self.tall)]
        return [
            Store(self.powers, place, scalars.exp(score - self.height[i]))
            for place, score in zip(places, scores, strict=True)
        ]

    def _score_cotangents(self) -> Statement:
        i, d, t = scalars.index("i"), scalars.index("d"), scalars.index("t")
        lets, bases = self.key_rows("v", t, self.value)
        left = [widen_element(self.v[base + d]) for base in bases]
        right = self.turned_ct[d * self.lanes + i]
        sums, found = products("c", self.tall, self.extent(self.value), left, right, d)
        scale = self.number(self.builder.params["scale"])
        stays = [] if self.key is None else self.stays(t, i)
        factor, nothing = self.number(1 / self.kept if self.kept else 0), self.number(0)
        stores = []
        for number, local in enumerate(found):
            place = self.place_in_block(t, number, i)
            back = scalars.select(stays[number], local * factor, nothing) if stays else local
            moved = self.powers[place] * (back - self.shift[i]) * scale
            stores.append(Store(self.moved, place, moved))
            if stays:
                kept = scalars.select(stays[number], self.powers[place] * factor, nothing)
                stores.append(Store(self.powers, place, kept))
        return For(t, self.tiles, (*lets, self.for_each_query(sums, *stores, index=i)))

    # --- results -------------------------------------------------------------------------------

    def no_dq(self) -> tuple[Statement, ...]:
        """Sums for a new block of queries."""
        return zero_buffer(self.total, self.extent(self.column_count(self.head)))

    def dq(self) -> Statement:
        """Keys, weighted by the cotangents of scores."""
        return self.add_weighted_rows(self.k, self.head, self.moved, self.total)

    def dq_written(self) -> Statement:
        """Copy the block's gradient, turned back."""
        i, d = scalars.index("i"), scalars.index("d")
        line = (self.row * self.extent(self.queries) + self.first + i) * self.extent(self.head)
        value = scalars.cast(self.total[d * self.lanes + i], self.outs[0].dtype)
        inner = For(d, self.extent(self.head), (Store(self.outs[0], line + d, value),), "vector")
        return For(i, self.rows, (inner,))

    def dkv(self) -> tuple[Statement, ...]:
        """Queries and cotangents, weighted for each key."""
        return (
            self._add_to_keys(self.dv, self.powers, self.ct, self.value),
            self._add_to_keys(self.dk, self.moved, self.q, self.head),
        )

    def _add_to_keys(
        self, target: Buffer, weights: Buffer, rows: Buffer, width: Dimension
    ) -> Statement:
        """Add rows of the block of queries, weighted, to each key of the block."""
        t, i, d = scalars.index("t"), scalars.index("i"), scalars.index("d")
        narrow = isinstance(width, int) and width <= 2 * self.limits.vector_lanes
        unit = self.limits.accumulators // (2 if narrow else 4)
        lets: list[Statement] = []
        left, places, inside = [], [], []
        line = (self.row * self.extent(self.queries) + self.first + i) * self.extent(width)
        for number in range(unit):
            here = scalars.local(f"here{number}", INDEX)
            lets.append(Let(here, scalars.minimum(t * unit + number, self.seen_keys - 1)))
            left.append(weights[here * self.lanes + i])
            places.append(self._target_line(target, self.start + here, width) + d)
            inside.append(scalars.less(t * unit + number, self.seen_keys))
        sums, found = products("g", unit, self.rows, left, widen_element(rows[line + d]), i)
        stores = [
            Store(target, place, target[place] + local, there)
            for place, local, there in zip(places, found, inside, strict=True)
        ]
        inner = For(d, self.extent(width), (sums, *stores), "vector")
        return For(t, (self.seen_keys + (unit - 1)) // unit, (*lets, inner))

    def _target_line(self, target: Buffer, key: Scalar, width: Dimension) -> Scalar:
        whole = self.shared_row * self.extent(self.keys)
        return (key if target.access == "scratch" else whole + key) * self.extent(width)

    def clear_targets(self) -> tuple[Statement, ...]:
        """Zeros for the task's keys."""
        return tuple(
            self._each_target(x, width, self.number(0), x)
            for x, width in ((self.dk, self.head), (self.dv, self.value))
        )

    def store_targets(self) -> tuple[Statement, ...]:
        """Copy what was kept beside the results."""
        pairs = ((self.dk, self.head, self.outs[1]), (self.dv, self.value, self.outs[2]))
        return tuple(
            self._each_target(source, width, None, out)
            for source, width, out in pairs
            if source is not out
        )

    def _each_target(
        self, source: Buffer, width: Dimension, value: Scalar | None, target: Buffer
    ) -> Statement:
        """A number, or what is in another buffer, for each element of the task's keys."""
        e = scalars.index("e")
        begin = self._target_line(source, self.begin, width)
        found = scalars.cast(source[begin + e], target.dtype) if value is None else value
        store = Store(target, self._target_line(target, self.begin, width) + e, found)
        return For(e, self.there * self.extent(width), (store,), "vector")
