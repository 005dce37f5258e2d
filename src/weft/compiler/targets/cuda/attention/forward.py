"""Attention forward: one pass over keys for each tile of queries, with the log of the sums.

A block holds tiles of 64 queries, one for each of its consumers, and a ring of keys and values in
parts of 128. Scores are products out of shared memory; their exponentials, packed, are the register
operand of the product with the values. The scores of the next part are started before the
exponentials of this one, so that tensor cores and scalar units work side by side. Consumers may
take turns in starting products, so that one multiplies while others take exponentials; where tiles
are short, they find a better rhythm without. The next tile's queries are copied beside this one.

Parts run from the last that a tile sees to the first: only those at the end need a mask. The
longest tiles come first, so that no block is left with a long one at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.compiler.targets.cuda.attention.description import (
    AttentionKernel,
    AttentionLaunch,
    AttentionSizes,
    AttentionSpec,
    extra_parameters,
    head_map,
    load_head_rows,
)
from weft.compiler.targets.cuda.attention.hidden_scores import HiddenScores
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Operand,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
)
from weft.compiler.targets.cuda.warpgroup import (
    ROW_BYTES,
    Ring,
    Thread,
    bulk_store,
    descriptor,
    packed_pair,
    store_pairs,
    warpgroup_barrier,
    warpgroup_product,
)
from weft.core.records import frozen

__all__ = ["ForwardPlan", "forward_kernel", "forward_launch", "forward_plan"]

_QUERIES = 64  # of one consumer
_LOWEST = float("-inf")
_REGISTERS = {2: (40, 232), 3: (32, 160)}
_TURN_BARRIER = 8  # the first of the barriers at which consumers take turns


@frozen(slots=False)
class ForwardPlan:
    """Consumers of a block, parts of keys and values in flight, whether consumers take turns."""

    consumers: int = 2
    stages: int = 2
    turns: bool = False


def forward_plan(spec: AttentionSpec, sizes: AttentionSizes) -> ForwardPlan:
    """Three consumers for heads of 64 where tiles of 192 queries are long, else two.

    Short causal tiles waste less of themselves on the mask when they have 128 queries.
    """
    if spec.head >= 128:
        return ForwardPlan(2, 2)
    if sizes.keys >= (2048 if spec.causal else 1024):
        return ForwardPlan(3, 2, turns=True)
    return ForwardPlan(2, 3)


def part_keys(spec: AttentionSpec) -> int:
    """Keys of one part: fewer for large heads, whose results take most registers."""
    return 64 if spec.head == 256 else 128


def forward_kernel(spec: AttentionSpec, plan: ForwardPlan) -> AttentionKernel:
    """The kernel of attention: results `out`, and `sums`, the logs of the sums of exponentials."""
    writer = _Writer(spec, plan)
    writer.write()
    return AttentionKernel.from_text(spec, writer.kernel, writer.memory.size)


def forward_launch(
    sizes: AttentionSizes, plan: ForwardPlan, multiprocessors: int = 132
) -> AttentionLaunch:
    """The launch of a forward kernel."""
    rows = plan.consumers * _QUERIES
    tiles = math.ceil(sizes.queries / rows) * sizes.heads * sizes.batch
    return AttentionLaunch(min(tiles, multiprocessors), sizes.parameter_words)


class _Memory:
    """Where in a block's shared memory what lies; the rings' barriers last."""

    def __init__(self, spec: AttentionSpec, plan: ForwardPlan) -> None:
        self.tile = _QUERIES * ROW_BYTES * spec.chunks  # of one consumer's queries
        self.tiles = plan.consumers * self.tile
        self.part = part_keys(spec) * ROW_BYTES * spec.chunks  # of keys, and of values
        # Large heads leave no room for the next tile's queries; results take these queries' place.
        self.query_stages = 1 if spec.head == 256 else 2
        self.out = 0 if spec.head == 256 else self.query_stages * self.tiles
        self.keys = self.query_stages * self.tiles + (0 if spec.head == 256 else self.tiles)
        self.values = self.keys + plan.stages * self.part
        self.query_ring = self.values + plan.stages * self.part
        self.key_ring = self.query_ring + Ring.barrier_bytes(self.query_stages)
        self.value_ring = self.key_ring + Ring.barrier_bytes(plan.stages)
        self.size = self.value_ring + Ring.barrier_bytes(plan.stages)


@frozen(slots=False)
class _Tile:
    """A block's tile of queries: where it lies, and how many parts of keys it sees."""

    row: Value
    head: Value
    batch: Value
    parts: Value


class _Writer:
    """Writes the kernel: one warp copies, groups of four warps, the consumers, multiply."""

    def __init__(self, spec: AttentionSpec, plan: ForwardPlan) -> None:
        self.spec, self.plan = spec, plan
        self.memory = _Memory(spec, plan)
        self.part_keys = part_keys(spec)
        names = ("batch", "heads", "group", "queries", "keys", "offset", "head")
        parameters: list[Parameter] = [
            head_map("q", spec.dtype, "queries", _QUERIES),
            head_map("k", spec.dtype, "keys", self.part_keys),
            head_map("v", spec.dtype, "keys", self.part_keys),
            head_map("out", spec.dtype, "queries", _QUERIES),
            Pointer("sums"),
            *map(Word, names),
            *extra_parameters(spec),
        ]
        self.kernel = Kernel("attention", parameters, 128 * (plan.consumers + 1))

    def write(self) -> None:
        """The whole kernel: barriers, then what the producer and the consumers do."""
        kernel, plan, memory = self.kernel, self.plan, self.memory
        self.thread = kernel.special_register("tid.x")
        self.heads, self.batch = kernel.parameter("heads"), kernel.parameter("batch")
        self.queries, self.keys = kernel.parameter("queries"), kernel.parameter("keys")
        self.offset = kernel.parameter("offset")
        self.shared = kernel.shared_memory()
        self.query_ring = Ring.at_first_stage(
            kernel, self.shared + memory.query_ring, memory.query_stages
        )
        self.key_ring = Ring.at_first_stage(kernel, self.shared + memory.key_ring, plan.stages)
        self.value_ring = Ring.at_first_stage(kernel, self.shared + memory.value_ring, plan.stages)
        with kernel.when(self.thread.equals(0)):
            for ring in (self.query_ring, self.key_ring, self.value_ring):
                ring.initialize(4 * plan.consumers)
            kernel.do("fence.mbarrier_init.release.cluster")
        kernel.do("bar.sync", 0)
        self.warpgroup = self.thread >> 7
        finish = kernel.label("finish")
        with kernel.when(self.warpgroup.equals(plan.consumers)):
            kernel.do(f"setmaxnreg.dec.sync.aligned.u32 {_REGISTERS[plan.consumers][0]}")
            with kernel.when(self.thread.equals(128 * plan.consumers)):
                self._for_each_tile(self._produce)
            kernel.jump(finish)
        kernel.do(f"setmaxnreg.inc.sync.aligned.u32 {_REGISTERS[plan.consumers][1]}")
        self._prepare_consumer()
        self._for_each_tile(self._consume)
        kernel.do("cp.async.bulk.wait_group 0")
        kernel.place(finish)

    def _for_each_tile(self, write: Callable[[_Tile], None]) -> None:
        """The last rows of all heads first: under a causal mask they see the most keys."""
        kernel, rows = self.kernel, self.plan.consumers * _QUERIES
        tiles_each = (self.queries + (rows - 1)) // rows
        all_heads = self.heads * self.batch
        number = kernel.variable("u32", kernel.special_register("ctaid.x"), "tile")
        blocks = kernel.special_register("nctaid.x")
        with kernel.loop("tile") as loop:
            loop.stop_if(number >= tiles_each * all_heads)
            row = (tiles_each - number // all_heads - 1) * rows
            head = number % all_heads
            visible = self.keys
            if self.spec.causal:
                visible = visible.minimum(row + self.offset + rows)
            parts = (visible + (self.part_keys - 1)) // self.part_keys
            write(_Tile(row, head % self.heads, head // self.heads, parts))
            kernel.assign(number, number + blocks)

    # The producer.

    def _produce(self, tile: _Tile) -> None:
        """Copy a tile's queries, then its keys and values, part by part from the last."""
        kernel, memory = self.kernel, self.memory
        maps = {name: kernel.parameter(name) for name in ("q", "k", "v")}
        key_head, head = tile.head // kernel.parameter("group"), self.spec.head
        full = self.query_ring.begin_fill(memory.tiles)
        for consumer in range(self.plan.consumers):
            place = self.shared + self.query_ring.stage * memory.tiles + consumer * memory.tile
            where = (tile.row + consumer * _QUERIES, tile.head, tile.batch)
            load_head_rows(kernel, maps["q"], place, full, where, (head, _QUERIES))
        self.query_ring.advance()
        part = kernel.variable("u32", tile.parts, "part")
        with kernel.loop("copy") as loop:
            loop.stop_if(part.equals(0))
            kernel.assign(part, part - 1)
            for name, ring, start in (
                ("k", self.key_ring, memory.keys),
                ("v", self.value_ring, memory.values),
            ):
                full = ring.begin_fill(memory.part)
                place = self.shared + start + ring.stage * memory.part
                where = (part * self.part_keys, key_head, tile.batch)
                load_head_rows(kernel, maps[name], place, full, where, (head, self.part_keys))
                ring.advance()

    # The consumers.

    def _prepare_consumer(self) -> None:
        """Registers and barriers of a consumer."""
        kernel, memory = self.kernel, self.memory
        self.place = Thread.of_number(kernel, self.thread)
        self.leads_warp = self.place.lane.equals(0)
        self.true = self.warpgroup.equals(self.warpgroup)
        self.scores = kernel.registers("f32", "score", self.part_keys // 2)
        self.out = kernel.registers("f32", "out", self.spec.head // 2)
        self.weights = kernel.registers("b32", "weight", self.part_keys // 4)
        self.highest = kernel.registers("f32", "highest", 2)
        self.sums = kernel.registers("f32", "sum", 2)
        self.factors = kernel.registers("f32", "factor", 2)
        sizes = (self.heads, self.queries, self.keys)
        self.hidden = HiddenScores(kernel, self.spec, self.place, self.part_keys, sizes)
        self.barrier = self.warpgroup + 1
        self.out_place = self.shared + memory.out + self.warpgroup * memory.tile
        if self.plan.turns:
            # The first consumer may start at once.
            with kernel.when(self.warpgroup.equals(self.plan.consumers - 1)):
                kernel.do("bar.arrive", _TURN_BARRIER, 256)

    def _wait_for_turn(self) -> None:
        """Wait until the consumer before has started its products, where they take turns."""
        if self.plan.turns:
            self.kernel.do("bar.sync", self.warpgroup + _TURN_BARRIER, 256)

    def _pass_turn(self) -> None:
        """Let the next consumer start its products."""
        if self.plan.turns:
            following = (self.warpgroup + 1) % self.plan.consumers
            self.kernel.do("bar.arrive", following + _TURN_BARRIER, 256)

    def _consume(self, tile: _Tile) -> None:
        kernel = self.kernel
        self.row = tile.row + self.warpgroup * _QUERIES
        limits = [self._limit(h) for h in (0, 1)]
        query_empty = self.query_ring.wait_full()
        query = self.shared + self.query_ring.stage * self.memory.tiles
        self.query = descriptor(kernel, query + self.warpgroup * self.memory.tile)
        for h in (0, 1):
            kernel.assign(self.highest[h], _LOWEST)
            kernel.assign(self.sums[h], 0.0)
        for value in self.out:
            kernel.assign(value, 0.0)
        self.hidden.begin(self.row, tile.batch, tile.head)
        # The last part's scores by themselves, then each part beside the values of the one before.
        part = kernel.variable("u32", tile.parts - 1, "part")
        key_empty = self.key_ring.wait_full()
        self._wait_for_turn()
        kernel.do("wgmma.fence.sync.aligned")
        self._start_scores()
        self._pass_turn()
        self.hidden.read(part * self.part_keys)
        kernel.do("wgmma.wait_group.sync.aligned 0")
        self._release(key_empty)
        self.key_ring.advance()
        self._mask(part, limits)
        self._exponentials()
        self._pack()
        with kernel.loop("part") as loop:
            loop.stop_if(part.equals(0))
            kernel.assign(part, part - 1)
            self._one_part(part, limits)
        # Where results are stored in the queries' place, these are free after that only.
        shares_place = self.memory.query_stages == 1
        if not shares_place:
            self._release(query_empty)
        self.query_ring.advance()
        # What is left: the first part's values.
        value_empty = self.value_ring.wait_full()
        kernel.do("wgmma.fence.sync.aligned")
        self._start_out()
        kernel.do("wgmma.wait_group.sync.aligned 0")
        self._release(value_empty)
        self.value_ring.advance()
        self._finish(tile)
        if shares_place:
            with kernel.when(self.place.leads):
                kernel.do("cp.async.bulk.wait_group.read 0")
            warpgroup_barrier(kernel, self.barrier)
            self._release(query_empty)

    def _one_part(self, part: Value, limits: list[Value]) -> None:
        """Scores of this part beside the product of the part before with its values."""
        kernel = self.kernel
        key_empty = self.key_ring.wait_full()
        self._wait_for_turn()
        kernel.do("wgmma.fence.sync.aligned")
        self._start_scores()
        value_empty = self.value_ring.wait_full()
        self._start_out()
        self._pass_turn()
        self.hidden.read(part * self.part_keys)
        kernel.do("wgmma.wait_group.sync.aligned 1")
        self._release(key_empty)
        self.key_ring.advance()
        self._mask(part, limits)
        self._exponentials()
        kernel.do("wgmma.wait_group.sync.aligned 0")
        self._release(value_empty)
        self.value_ring.advance()
        for number, value in enumerate(self.out):
            kernel.do("mul.f32", value, value, self.factors[number % 4 // 2])
        self._pack()

    def _release(self, empty: Value) -> None:
        """Say that this warp has read a stage of a ring."""
        self.kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(empty), when=self.leads_warp)

    def _start_scores(self) -> None:
        """scores = queries keysᵀ: steps of 32 bytes along a head's rows."""
        kernel, spec, memory = self.kernel, self.spec, self.memory
        keys = self.shared + memory.keys + self.key_ring.stage * memory.part
        key = descriptor(kernel, keys)
        for step in range(spec.head // 16):
            chunk, inside = divmod(step, 4)
            left = self.query + ((chunk * _QUERIES * ROW_BYTES + 32 * inside) >> 4)
            right = key + ((chunk * self.part_keys * ROW_BYTES + 32 * inside) >> 4)
            adds = self.true if step else ~self.true
            warpgroup_product(kernel, self.scores, left, right, adds, spec.dtype)
        kernel.do("wgmma.commit_group.sync.aligned")

    def _start_out(self) -> None:
        """out += weights values: steps of 16 keys, across the rows of the values."""
        kernel, spec, memory = self.kernel, self.spec, self.memory
        values = self.shared + memory.values + self.value_ring.stage * memory.part
        value = descriptor(kernel, values, self.part_keys * ROW_BYTES)
        for step in range(self.part_keys // 16):
            right = value + ((16 * ROW_BYTES * step) >> 4)
            left = self.weights[4 * step : 4 * step + 4]
            warpgroup_product(kernel, self.out, left, right, self.true, spec.dtype, (False, True))
        kernel.do("wgmma.commit_group.sync.aligned")

    def _limit(self, h: int) -> Value:
        """The first key that row `h` of this thread does not see, less the thread's column."""
        limit = self.keys
        if self.spec.causal:
            row = self.row + self.place.row + (8 * h + 1)
            limit = limit.minimum(row + self.offset)
        return limit - self.place.column

    def _mask(self, part: Value, limits: list[Value]) -> None:
        """Scores of keys that a query does not see become -∞, in the parts that have any."""
        kernel = self.kernel
        start = part * self.part_keys
        self.hidden.add_mask(start, self.scores)
        self.hidden.hide(self.scores)
        visible = self.keys
        if self.spec.causal:
            visible = visible.minimum(self.row + self.offset + 1)
        with kernel.when(start + self.part_keys > visible):
            for h in (0, 1):
                left = kernel.let("s32", "sub.s32", limits[h], start)
                for j in range(self.part_keys // 8):
                    for t in (0, 1):
                        hidden = left <= 8 * j + t
                        score = self.scores[4 * j + 2 * h + t]
                        kernel.do("selp.f32", score, _LOWEST, score, hidden)

    def _exponentials(self) -> None:
        """Scores become 2^(c score - c highest); sums and the factor of what was before follow."""
        kernel, scale = self.kernel, self.spec.log_factor
        for h in (0, 1):
            mine = [
                self.scores[4 * j + 2 * h + t] for j in range(self.part_keys // 8) for t in (0, 1)
            ]
            highest = self._highest_score(mine, self.highest[h])
            # Where nothing was visible yet, the highest is -∞: zero in its place gives weights 0.
            nothing = highest.equals(_LOWEST)
            origin = kernel.select(nothing, 0.0, highest, "f32")
            kernel.assign(self.factors[h], self._exponent(self.highest[h], origin, scale))
            kernel.do("ex2.approx.ftz.f32", self.factors[h], self.factors[h])
            kernel.assign(self.highest[h], highest)
            shift = origin * -scale
            partial = [kernel.variable("f32", 0.0) for _ in (0, 1)]
            for number, score in enumerate(mine):
                if self.spec.adds:
                    kernel.assign(score, self._exponent(score, origin, scale))
                else:
                    kernel.do("fma.rn.f32", score, score, scale, shift)
                kernel.do("ex2.approx.ftz.f32", score, score)
                total = partial[number % 2]
                kernel.do("add.f32", total, total, score)
            kernel.do("fma.rn.f32", self.sums[h], self.sums[h], self.factors[h], partial[0])
            kernel.do("add.f32", self.sums[h], self.sums[h], partial[1])

    def _exponent(self, score: Value, origin: Value, scale: float) -> Value:
        """(score - origin) · scale; a mask's largest numbers would overflow in one step."""
        if self.spec.adds:
            return (score - origin) * scale
        return self.kernel.fma(score, scale, origin * -scale)

    def _highest_score(self, mine: list[Value], before: Value) -> Value:
        """The highest of a row's scores and of those before; four lanes share a row."""
        tops = [mine[0].maximum(mine[1]), mine[2].maximum(mine[3])]
        for number, score in enumerate(mine[4:]):
            tops[number % 2] = tops[number % 2].maximum(score)
        top = tops[0].maximum(tops[1])
        for distance in (1, 2):
            other = self.kernel.let("f32", "shfl.sync.bfly.b32", top, distance, 31, -1)
            top = top.maximum(other)
        return top.maximum(before)

    def _pack(self) -> None:
        """Exponentials as pairs: the product that read the last ones has ended."""
        kernel = self.kernel
        for number, weight in enumerate(self.weights):
            both = self.scores[2 * number : 2 * number + 2]
            if self.spec.drops:
                both = self.hidden.kept_pair(both, number // 2, number % 2)
            kernel.assign(weight, packed_pair(kernel, self.spec.dtype, *both))

    # Results.

    def _finish(self, tile: _Tile) -> None:
        kernel, place = self.kernel, self.place
        scales = []
        for h in (0, 1):
            total = self.sums[h]
            for distance in (1, 2):
                total = total + kernel.let("f32", "shfl.sync.bfly.b32", total, distance, 31, -1)
            share = kernel.let("f32", "rcp.approx.ftz.f32", total)
            if self.spec.guarded:
                share = kernel.select(total.equals(0.0), 0.0, share, "f32")
            scales.append(share * (1 / self.spec.kept) if self.spec.drops else share)
            logarithm = kernel.let("f32", "lg2.approx.ftz.f32", total) * math.log(2)
            unit = self.spec.log_factor * math.log(2)
            logarithm = kernel.fma(self.highest[h], unit, logarithm)
            row = self.row + place.row + 8 * h
            line = tile.batch * self.heads + tile.head
            index = kernel.let("u64", "mul.wide.u32", line, self.queries)
            index = index + kernel.let("u64", "cvt.u64.u32", row)
            target = kernel.parameter("sums") + index * 4
            inside = (row < self.queries) & place.column.equals(0)
            kernel.do("st.global.f32", at(target), logarithm, when=inside)
        with kernel.when(place.leads):
            kernel.do("cp.async.bulk.wait_group.read 0")
        warpgroup_barrier(kernel, self.barrier)
        self._write_out(scales)
        kernel.do("fence.proxy.async.shared::cta")
        warpgroup_barrier(kernel, self.barrier)
        with kernel.when(place.leads):
            for chunk in range(self.spec.chunks):
                source = self.out_place + chunk * _QUERIES * ROW_BYTES
                where: list[Operand] = [64 * chunk, self.row, tile.head, tile.batch]
                bulk_store(kernel, kernel.parameter("out"), where, source)
            kernel.do("cp.async.bulk.commit_group")

    def _write_out(self, scales: list[Value]) -> None:
        """Results into shared memory, as the bulk copy reads them."""
        kernel, pairs = self.kernel, []
        for first in range(0, len(self.out), 2):
            values = [value * scales[first % 4 // 2] for value in self.out[first : first + 2]]
            pairs.append(packed_pair(kernel, self.spec.dtype, *values))
        store_pairs(kernel, self.place, self.out_place, _QUERIES * ROW_BYTES, pairs)
