"""Attention backward: gradients of queries, keys and values, with every sum in a fixed order.

A block takes 128 keys and their values, and goes over the tiles of queries that see them. Its two
consumers hold 64 keys each, with queries along the columns: scores and the cotangents of weights
are products out of shared memory, and the weights and their cotangents, packed, are register
operands of the products that add to the gradients of values and keys.

The gradient of a tile of queries is a sum over blocks of keys. Cotangents of scores go through
shared memory; each consumer multiplies half of the tile with all 128 keys, and a warp of the
producer's group adds the result to a float32 buffer in memory by a bulk copy that adds. A counter
for each half tile says how many blocks have added: the last keys come first, each block waits for
its turn, and the first writes instead of adding. So the order is fixed, and no buffer is cleared.
Under a causal mask, blocks of keys are taken in pairs, first and last, so that all have equal work;
all blocks of a head run side by side.

Gradients of heads of 256 do not fit into the registers: a block makes one half of their numbers, a
*side*, and two blocks compute the same scores. Keys and values of both sides leave room for one
stage of queries. So what only the scores need, the other side's queries and cotangents, is released
as soon as these are there, and the next tile's are on their way while the gradients are multiplied.

`rows.py` holds the small kernels before and after: sums of out · cotangent over each row before,
the buffer's scaling and cast after.
"""

from __future__ import annotations

import math
from functools import partial

from weft.compiler.targets.cuda.attention.backward_memory import (
    HALF_TILE,
    KEYS,
    BackwardMemory,
    side_count,
    side_numbers,
    tile_queries,
)
from weft.compiler.targets.cuda.attention.backward_order import KeyBlock, QueryTile, WorkOrder
from weft.compiler.targets.cuda.attention.description import (
    AttentionKernel,
    AttentionLaunch,
    AttentionSizes,
    AttentionSpec,
    extra_parameters,
    head_map,
    load_head_rows,
)
from weft.compiler.targets.cuda.attention.hidden_weights import HiddenWeights, WeightTile
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Operand,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
)
from weft.compiler.targets.cuda.warpgroup import (
    ROW_BYTES,
    Ring,
    Thread,
    bulk_store,
    descriptor,
    initialize_barrier,
    packed_pair,
    spin_until,
    store_pairs,
    warpgroup_barrier,
    warpgroup_product,
)
from weft.core.errors import UnsupportedError

__all__ = ["backward_kernel", "backward_launch"]

_HALF = 64  # keys of one consumer
_ALL_CONSUMERS = 3  # the barrier at which both consumers meet


def backward_kernel(spec: AttentionSpec) -> AttentionKernel:
    """The kernel of the gradients `dk`, `dv` and of the buffer `dq`."""
    writer = _Writer(spec)
    writer.write()
    return AttentionKernel.from_text(spec, writer.kernel, writer.memory.size)


def backward_launch(
    spec: AttentionSpec, sizes: AttentionSizes, multiprocessors: int = 132
) -> AttentionLaunch:
    """The launch of a backward kernel."""
    blocks = math.ceil(sizes.keys / KEYS)
    units = math.ceil(blocks / 2) if spec.causal else blocks
    if units > multiprocessors:
        raise UnsupportedError(
            "attention",
            "the backward pass holds all keys of a head on the card at once",
            expected=f"at most {multiprocessors * KEYS * (2 if spec.causal else 1)} keys",
            got={"keys": sizes.keys},
            fix="split the keys, and add the gradients",
        )
    count = units * sizes.key_heads * sizes.batch * side_count(spec)
    return AttentionLaunch(min(count, multiprocessors), sizes.parameter_words)


class _Writer:
    """Writes the kernel: one warp copies, two add up gradients of queries, two groups multiply."""

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec, self.memory = spec, BackwardMemory(spec)
        self.tile, self.numbers = tile_queries(spec), side_numbers(spec)
        self.has_other = side_count(spec) > 1  # side of the head, beside the one that is made
        names = ("batch", "heads", "group", "key_heads", "queries", "keys", "offset", "head")
        parameters: list[Parameter] = [
            head_map("q", spec.dtype, "queries", self.tile),
            head_map("k", spec.dtype, "keys", KEYS),
            head_map("v", spec.dtype, "keys", KEYS),
            head_map("dout", spec.dtype, "queries", self.tile),
            head_map("dk", spec.dtype, "keys", _HALF),
            head_map("dv", spec.dtype, "keys", _HALF),
            Pointer("logs"),
            Pointer("products"),
            Pointer("dq"),
            Pointer("counters"),
            *map(Word, names),
            *extra_parameters(spec),
        ]
        self.kernel = Kernel("attention_backward", parameters, 384)

    def write(self) -> None:
        """The whole kernel: barriers, then each warp's part."""
        kernel, memory = self.kernel, self.memory
        self.thread = kernel.special_register("tid.x")
        self.order = WorkOrder(kernel, self.spec)
        self.shared = kernel.shared_memory()
        self.query_ring = Ring.at_first_stage(
            kernel, self.shared + memory.query_ring, memory.stages
        )
        self.cotangent_ring = Ring.at_first_stage(
            kernel, self.shared + memory.cotangent_ring, memory.stages
        )
        self.key_ring = Ring.at_first_stage(kernel, self.shared + memory.key_ring, 1)
        self.rings = [self.query_ring, self.cotangent_ring, self.key_ring]
        if self.has_other:
            self.other_ring = Ring.at_first_stage(kernel, self.shared + memory.other_ring, 1)
            self.rings.append(self.other_ring)
        self.half_parity = kernel.variable("u32", 0, "half_parity")
        self._initialize()
        self.order.count()
        self.warpgroup = self.thread >> 7
        finish = kernel.label("finish")
        with kernel.when(self.warpgroup.equals(2)):
            kernel.do("setmaxnreg.dec.sync.aligned.u32 40")
            with kernel.when(self.thread.equals(256)):
                self.order.for_each_block(self._produce)
            for half in (0, 1):
                with kernel.when(self.thread.equals(256 + 32 * (half + 1))):
                    self.order.for_each_block(partial(self._add_up, half))
            kernel.jump(finish)
        kernel.do("setmaxnreg.inc.sync.aligned.u32 232")
        self._prepare_consumer()
        self.order.for_each_block(self._consume)
        kernel.place(finish)

    def _initialize(self) -> None:
        """Set up the barriers, by one thread for all."""
        kernel, memory = self.kernel, self.memory
        with kernel.when(self.thread.equals(0)):
            for ring in self.rings:
                ring.initialize(8)
            for half in (0, 1):
                initialize_barrier(kernel, self.shared, 128, memory.half_full + 8 * half)
                initialize_barrier(kernel, self.shared, 1, memory.half_empty + 8 * half)
            kernel.do("fence.mbarrier_init.release.cluster")
        kernel.do("bar.sync", 0)

    # The producer.

    def _produce(self, block: KeyBlock) -> None:
        """Copy a block's keys and values, then the queries and cotangents that see them."""
        memory = self.memory
        places = [("k", memory.keys, block.side), ("v", memory.values, block.side)]
        if block.side is not None:
            other = block.side ^ 1
            places += [("k", memory.other_keys, other), ("v", memory.other_values, other)]
        full = self.key_ring.begin_fill(len(places) * memory.key_bytes)
        for name, start, side in places:
            where = (block.number * KEYS, block.key_head, block.batch)
            self._load(name, self.shared + start, full, where, side)
        self.key_ring.advance()
        self.order.for_each_tile(block, lambda tile: self._produce_tile(block, tile))

    def _load(
        self,
        name: str,
        target: Value,
        full: Value,
        where: tuple[Value, Value, Value],
        side: Value | None,
    ) -> None:
        """Start the copies of a side's numbers of some keys or queries."""
        kernel, rows = self.kernel, KEYS if name in ("k", "v") else self.tile
        first = 0 if side is None else side * self.numbers
        source = kernel.parameter(name)
        load_head_rows(kernel, source, target, full, where, (self.numbers, rows), first)

    def _produce_tile(self, block: KeyBlock, tile: QueryTile) -> None:
        """Copy a tile of queries with the logs of its rows, and of cotangents with their sums."""
        kernel, memory = self.kernel, self.memory
        where = (tile.number * self.tile, tile.head, block.batch)
        numbers = self.order.tile_place(block, tile) * self.tile
        queries = ("q", self.query_ring, memory.queries, "logs", 0)
        cotangents = ("dout", self.cotangent_ring, memory.cotangents, "products", 1)
        parts = [queries, cotangents]
        if block.side is not None:
            self._produce_other(where, block.side ^ 1)
            parts = [cotangents, queries]  # as they come free
        for name, ring, start, vector, line in parts:
            full = ring.begin_fill(memory.tile_bytes + memory.row_bytes)
            place = self.shared + start + ring.stage * memory.tile_bytes
            self._load(name, place, full, where, block.side)
            source = kernel.address(kernel.parameter(vector), numbers, 4)
            target = self._row_place(ring, line)
            kernel.do(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
                at(target),
                at(source),
                memory.row_bytes,
                at(full),
            )
            ring.advance()

    def _produce_other(self, where: tuple[Value, Value, Value], other: Value) -> None:
        """Copy the other side's numbers of a tile's queries and cotangents."""
        memory = self.memory
        full = self.other_ring.begin_fill(2 * memory.tile_bytes)
        for name, start in (("q", memory.other_queries), ("dout", memory.other_cotangents)):
            self._load(name, self.shared + start, full, where, other)
        self.other_ring.advance()

    def _row_place(self, ring: Ring, line: int) -> Value:
        memory = self.memory
        place = self.shared + memory.rows + ring.stage * (2 * memory.row_bytes)
        return place + line * memory.row_bytes

    # The warps that add up the queries' gradients.

    def _add_up(self, half: int, block: KeyBlock) -> None:
        """Add a half of each tile's gradient to the buffer in memory."""
        self.order.for_each_tile(block, lambda tile: self._add_half(block, tile, half))

    def _add_half(self, block: KeyBlock, tile: QueryTile, half: int) -> None:
        """Wait for the blocks of later keys, then add this block's half tile, piece by piece."""
        kernel, memory = self.kernel, self.memory
        self._await_piece(half)
        number = self.order.half_place(block, tile, half)
        counter = kernel.address(kernel.parameter("counters"), number, 4)
        offset = kernel.let("u64", "mul.wide.u32", number, 4 * HALF_TILE)
        target = kernel.parameter("dq") + offset
        turn = self.order.turn(block, tile)
        again = kernel.label("turn")
        kernel.place(again)
        added = kernel.let("u32", "ld.acquire.gpu.global.u32", at(counter))
        kernel.jump(again, added.differs(turn))
        kernel.do("fence.proxy.async")
        for piece in range(memory.pieces):
            if piece:
                self._await_piece(half)
            self._add_piece(half, target, turn, piece * memory.piece_bytes)
        kernel.do("cp.async.bulk.wait_group 0")
        kernel.do("fence.proxy.async")
        kernel.do("red.release.gpu.global.add.u32", at(counter), 1)

    def _await_piece(self, half: int) -> None:
        """Wait until a consumer has written a piece of its half tile."""
        full = self.shared + self.memory.half_full + 8 * half
        spin_until(self.kernel, full, self.half_parity)
        self.kernel.assign(self.half_parity, self.half_parity ^ 1)

    def _add_piece(self, half: int, target: Value, turn: Value, distance: int) -> None:
        """Add a piece of a half tile to the buffer; the first block's takes the buffer's place."""
        kernel, memory = self.kernel, self.memory
        source = self.shared + memory.halves + memory.piece_bytes * half
        operands = (at(target, distance), at(source), memory.piece_bytes)
        first = turn.equals(0)
        kernel.do("cp.async.bulk.global.shared::cta.bulk_group", *operands, when=first)
        adding = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
        kernel.do(adding, *operands, when=~first)
        kernel.do("cp.async.bulk.commit_group")
        kernel.do("cp.async.bulk.wait_group.read 0")
        empty = self.shared + memory.half_empty
        kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(empty, 8 * half))

    # The consumers.

    def _prepare_consumer(self) -> None:
        """Registers and descriptors of a group that multiplies."""
        kernel, spec = self.kernel, self.spec
        self.place = Thread.of_number(kernel, self.thread)
        self.leads_warp = self.place.lane.equals(0)
        self.true = self.warpgroup.equals(self.warpgroup)
        self.false = ~self.true
        self.barrier = self.warpgroup + 1
        self.weights = kernel.registers("f32", "weight", self.tile // 2)
        self.changes = kernel.registers("f32", "change", self.tile // 2)
        self.packed_weights = kernel.registers("b32", "packed_weight", self.tile // 4)
        self.packed_changes = kernel.registers("b32", "packed_change", self.tile // 4)
        self.dk = kernel.registers("f32", "dk", self.numbers // 2)
        self.dv = kernel.registers("f32", "dv", self.numbers // 2)
        self.dq = kernel.registers("f32", "dq", 32)
        sizes = (self.order.heads, self.order.queries, self.order.keys)
        self.hidden = HiddenWeights(kernel, spec, self.place, (_HALF, self.tile), sizes)
        # Which of the two buffers of scores' cotangents is next, in bytes.
        self.score_buffer = kernel.variable("u32", 0, "score_buffer")
        mine = self.shared + self.warpgroup * (_HALF * ROW_BYTES)
        self.my_keys = descriptor(kernel, mine + self.memory.keys)
        self.my_values = descriptor(kernel, mine + self.memory.values)
        if self.has_other:
            self.my_other_keys = descriptor(kernel, mine + self.memory.other_keys)
            self.my_other_values = descriptor(kernel, mine + self.memory.other_values)
        # As the right operand of the queries' gradient: all keys, or half of each key's numbers.
        keys = self.shared + self.memory.keys
        if self.numbers == 128:
            keys = keys + self.warpgroup * (KEYS * ROW_BYTES)
        self.all_keys = descriptor(kernel, keys)

    def _consume(self, block: KeyBlock) -> None:
        """The gradients of a block's keys and values: sums over all tiles that see them."""
        kernel = self.kernel
        for value in (*self.dk, *self.dv):
            kernel.assign(value, 0.0)
        key_empty = self.key_ring.wait_full()
        self.key_ring.advance()
        self.order.for_each_tile(block, lambda tile: self._consume_tile(block, tile))
        kernel.do("bar.sync", _ALL_CONSUMERS, 256)
        self._finish(block)
        kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(key_empty), when=self.leads_warp)

    def _consume_tile(self, block: KeyBlock, tile: QueryTile) -> None:
        """The five products of a tile.

        Scores of the next tile are not started early: registers are short, and ptxas would put all
        products one behind the other.
        """
        kernel = self.kernel
        # 1. scores = keys queriesᵀ, and 2. the weights' cotangents = values cotangentsᵀ.
        if self.has_other:
            other_empty = self._start_other_side()
        query_empty = self.query_ring.wait_full()
        if not self.has_other:
            kernel.do("wgmma.fence.sync.aligned")
        query = self._stage_descriptor(self.memory.queries, self.query_ring)
        self._start_rows(self.weights, self.my_keys, query, adds=self.has_other)
        cotangent_empty = self.cotangent_ring.wait_full()
        cotangent = self._stage_descriptor(self.memory.cotangents, self.cotangent_ring)
        self._start_rows(self.changes, self.my_values, cotangent, adds=self.has_other)
        where = self._weight_tile(block, tile)
        self.hidden.read(where)
        # The scores are there, the cotangents still on their way: weights are made meanwhile.
        kernel.do("wgmma.wait_group.sync.aligned 1")
        if self.has_other:
            self._release(other_empty)
            self.other_ring.advance()
        self._mask(where)
        self._exponentials()
        kernel.do("wgmma.wait_group.sync.aligned 0")
        self._pack()
        self._write_scores()
        kernel.do("wgmma.fence.sync.aligned")
        # 3. dv += weights cotangents, 4. dq = changesᵀ keys, of both consumers' changes, which both
        # must have written before, and 5. dk += changes queries.
        self._start_sum(self.dv, self.packed_weights, cotangent)
        kernel.do("bar.sync", _ALL_CONSUMERS, 256)
        self._start_query_gradient()
        self._start_sum(self.dk, self.packed_changes, query)
        # dv and dq are done: the cotangents' stage is free, and dq goes to the warp that adds it.
        kernel.do("wgmma.wait_group.sync.aligned 1")
        self._release(cotangent_empty)
        self.cotangent_ring.advance()
        self._hand_over(0)
        kernel.do("wgmma.wait_group.sync.aligned 0")
        self._release(query_empty)
        self.query_ring.advance()
        if self.memory.pieces > 1:
            self._hand_over(1)
        if self.memory.score_buffers > 1:
            kernel.assign(self.score_buffer, self.score_buffer ^ self.memory.score_bytes)

    def _start_other_side(self) -> Value:
        """Begin scores and cotangents with the other side of the head; the barrier that is left."""
        kernel, memory = self.kernel, self.memory
        other_empty = self.other_ring.wait_full()
        kernel.do("wgmma.fence.sync.aligned")
        for sums, left, start in (
            (self.weights, self.my_other_keys, memory.other_queries),
            (self.changes, self.my_other_values, memory.other_cotangents),
        ):
            self._start_rows(sums, left, descriptor(kernel, self.shared + start))
        return other_empty

    def _release(self, empty: Value) -> None:
        """Say that this warp has read a stage of a ring."""
        self.kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(empty), when=self.leads_warp)

    def _stage_descriptor(self, start: int, ring: Ring) -> Value:
        place = self.shared + start + ring.stage * self.memory.tile_bytes
        return descriptor(self.kernel, place, self.tile * ROW_BYTES)

    def _start_rows(
        self, sums: list[Value], left: Value, right: Value, *, adds: bool = False
    ) -> None:
        """sums = (64 rows of keys or values) (tile of queries or cotangents)ᵀ, or are added to."""
        for step in range(self.numbers // 16):
            chunk, inside = divmod(step, 4)
            a = left + ((chunk * KEYS * ROW_BYTES + 32 * inside) >> 4)
            b = right + ((chunk * self.tile * ROW_BYTES + 32 * inside) >> 4)
            stays = self.true if step or adds else self.false
            warpgroup_product(self.kernel, sums, a, b, stays, self.spec.dtype)
        self.kernel.do("wgmma.commit_group.sync.aligned")

    def _start_sum(self, sums: list[Value], left: list[Value], right: Value) -> None:
        """sums += (packed weights or changes) (tile of cotangents or queries)."""
        for step in range(self.tile // 16):
            b = right + ((16 * ROW_BYTES * step) >> 4)
            a = left[4 * step : 4 * step + 4]
            across = (False, True)
            warpgroup_product(self.kernel, sums, a, b, self.true, self.spec.dtype, across)
        self.kernel.do("wgmma.commit_group.sync.aligned")

    def _start_query_gradient(self) -> None:
        """dq = changesᵀ keys: half of the queries, or of the numbers of a head."""
        kernel, memory = self.kernel, self.memory
        place = self.shared + memory.scores + self.score_buffer
        if self.numbers == 64:
            place = place + self.warpgroup * memory.score_chunk
        changes = descriptor(kernel, place)
        for step in range(KEYS // 16):
            distance = (16 * ROW_BYTES * step) >> 4
            adds = self.true if step else self.false
            a, b = changes + distance, self.all_keys + distance
            warpgroup_product(kernel, self.dq, a, b, adds, self.spec.dtype, (True, True))
        kernel.do("wgmma.commit_group.sync.aligned")

    # Weights and their cotangents.

    def _weight_tile(self, block: KeyBlock, tile: QueryTile) -> WeightTile:
        """Which keys and queries the weights of this consumer are of."""
        first_key = block.number * KEYS + self.warpgroup * _HALF
        return WeightTile(first_key, tile.number * self.tile, block.batch, tile.head)

    def _mask(self, where: WeightTile) -> None:
        """Scores of keys that a query does not see become -∞, in the tiles that have any."""
        kernel, first_key = self.kernel, where.first_key
        self.hidden.add_mask(where, self.weights)
        self.hidden.hide(self.weights)
        # Keys behind the last would have scores of zero, and weights that may overflow.
        with kernel.when(first_key + _HALF > self.order.keys):
            for h in (0, 1):
                hidden = first_key + self.place.row + 8 * h >= self.order.keys
                for number, score in enumerate(self.weights):
                    if number // 2 % 2 == h:
                        kernel.do("selp.f32", score, float("-inf"), score, hidden)
        if not self.spec.causal:
            return
        start = where.first_query + self.order.offset
        with kernel.when(first_key + (_HALF - 1) > start):
            for h in (0, 1):
                key = first_key + self.place.row + 8 * h
                left = kernel.let("s32", "sub.s32", key, start + self.place.column)
                for j in range(self.tile // 8):
                    for t in (0, 1):
                        hidden = left > 8 * j + t
                        score = self.weights[4 * j + 2 * h + t]
                        kernel.do("selp.f32", score, float("-inf"), score, hidden)

    def _row_pair(self, ring: Ring, line: int, j: int) -> list[Value]:
        pair = self.kernel.registers("f32", "row", 2)
        place = self._row_place(ring, line) + self.place.column * 4
        self.kernel.do("ld.shared.v2.f32", braces(pair), at(place, 32 * j))
        return pair

    def _exponentials(self) -> None:
        """Scores become weights: 2^(c score - log of the sum)."""
        kernel, scale = self.kernel, self.spec.log_factor
        for j in range(self.tile // 8):
            logs = self._row_pair(self.query_ring, 0, j)
            for h in (0, 1):
                for t in (0, 1):
                    score = self.weights[4 * j + 2 * h + t]
                    if self.spec.adds:
                        kernel.assign(score, (score - logs[t]) * scale)
                    else:
                        shifted = kernel.let("f32", "neg.f32", logs[t])
                        kernel.do("fma.rn.f32", score, score, scale, shifted)
                    kernel.do("ex2.approx.ftz.f32", score, score)

    def _pack(self) -> None:
        """Weights and weight · (cotangent - row sum) as pairs."""
        kernel, dtype = self.kernel, self.spec.dtype
        for j in range(self.tile // 8):
            products = self._row_pair(self.cotangent_ring, 1, j)
            for h in (0, 1):
                first = 4 * j + 2 * h
                weights = kept = self.weights[first : first + 2]
                backs = self.changes[first : first + 2]
                if self.spec.drops:
                    kept, backs = self.hidden.with_dropout(kept, backs, (j, h))
                pair = packed_pair(kernel, dtype, *kept)
                kernel.assign(self.packed_weights[2 * j + h], pair)
                changes = [weights[t] * (backs[t] - products[t]) for t in (0, 1)]
                pair = packed_pair(kernel, dtype, *changes)
                kernel.assign(self.packed_changes[2 * j + h], pair)

    def _write_scores(self) -> None:
        """Cotangents of scores into shared memory, rows of keys."""
        memory = self.memory
        start = self.shared + memory.scores + self.score_buffer
        start = start + self.warpgroup * (_HALF * ROW_BYTES)
        store_pairs(self.kernel, self.place, start, memory.score_chunk, self.packed_changes)
        self.kernel.do("fence.proxy.async.shared::cta")

    def _hand_over(self, piece: int) -> None:
        """Give half a tile of the queries' gradient, or half of that, to the warp that adds it up.

        A piece of two is the first eight rows of each sixteen, or the others, one behind the other.
        """
        kernel, memory = self.kernel, self.memory
        empty = self.shared + memory.half_empty + self.warpgroup * 8
        spin_until(kernel, empty, self.half_parity ^ 1)
        kernel.assign(self.half_parity, self.half_parity ^ 1)
        half = self.shared + memory.halves + self.warpgroup * memory.piece_bytes
        # Rows of 64 numbers; units of four are exchanged by `unit ^ row % 8`.
        quad = self.place.column >> 1
        swizzle = ((self.place.row & 7) ^ (quad >> 1)) * 16
        row, parts = self.place.row, [0, 1]
        if memory.pieces > 1:
            row, parts = ((row >> 4) << 3) + (row & 7), [piece]
        corner = half + row * 256 + (quad & 1) * 8
        for j in range(8):
            target = (swizzle ^ (32 * j)) + corner
            for h in parts:
                pair = braces(self.dq[4 * j + 2 * h : 4 * j + 2 * h + 2])
                offset = 8 * 256 * h if memory.pieces == 1 else 0
                kernel.do("st.shared.v2.f32", at(target, offset), pair)
        kernel.do("fence.proxy.async.shared::cta")
        full = self.shared + memory.half_full + self.warpgroup * 8
        kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(full))

    # Gradients of keys and values.

    def _finish(self, block: KeyBlock) -> None:
        """Store the gradients out of the shared memory that held keys and values."""
        kernel, memory = self.kernel, self.memory
        for name, sums, start, scale in (
            ("dk", self.dk, memory.keys, self.spec.factor),
            ("dv", self.dv, memory.values, 1 / self.spec.kept),
        ):
            self._write_gradient(sums, self.shared + start, scale)
            kernel.do("fence.proxy.async.shared::cta")
            warpgroup_barrier(kernel, self.barrier)
            with kernel.when(self.place.leads):
                row = block.number * KEYS + self.warpgroup * _HALF
                first = None if block.side is None else block.side * self.numbers
                for chunk in range(self.numbers // 64):
                    source = self.shared + start + self.warpgroup * (_HALF * ROW_BYTES)
                    source = source + chunk * KEYS * ROW_BYTES
                    number = 64 * chunk if first is None else first + 64 * chunk
                    where: list[Operand] = [number, row, block.key_head, block.batch]
                    bulk_store(kernel, kernel.parameter(name), where, source)
                kernel.do("cp.async.bulk.commit_group")
        with kernel.when(self.place.leads):
            kernel.do("cp.async.bulk.wait_group.read 0")
        warpgroup_barrier(kernel, self.barrier)

    def _write_gradient(self, sums: list[Value], start: Value, scale: float) -> None:
        kernel, pairs = self.kernel, []
        for first in range(0, len(sums), 2):
            values = [value * scale for value in sums[first : first + 2]]
            pairs.append(packed_pair(kernel, self.spec.dtype, *values))
        place = start + self.warpgroup * (_HALF * ROW_BYTES)
        store_pairs(kernel, self.place, place, KEYS * ROW_BYTES, pairs)
