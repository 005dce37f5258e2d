"""Products by warpgroup instructions: one warp copies operands, warpgroups multiply them.

A block holds `stages` parts of the operands: `tile_m` rows of A and `tile_n` of B, 128 bytes of the
summed axis each. The producer, one thread, starts bulk copies into stages that are empty; consumers
wait for full stages and multiply them, each its 64 rows of the tile. The grid stays: a block goes
from tile to tile, and copies of the next tile run beside the epilogue of this one.

Sums of products of 8-bit floats keep 13 bits behind the point while instructions add to them. So
each step's sums begin at zero, and are added to the tile's as float32, which have registers of
their own: 128 terms are summed in fewer bits, and no more.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.targets.cuda.products.description import (
    FLOAT8_PAIRS,
    Plan,
    ProductKernel,
    ProductSpec,
    dtype_bytes,
)
from weft.compiler.targets.cuda.products.direct import Tile
from weft.compiler.targets.cuda.products.epilogue import (
    CHUNK_BYTES,
    EpilogueLayout,
    WarpgroupEpilogue,
)
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Operand,
    Parameter,
    Pointer,
    TensorMap,
    Value,
    Word,
    at,
    braces,
)
from weft.compiler.targets.cuda.warpgroup import (
    ROW_BYTES,
    Ring,
    Thread,
    bulk_load,
    descriptor,
    initialize_barrier,
    warpgroup_barrier,
    warpgroup_product,
)
from weft.core.records import frozen

__all__ = ["ProductWriter", "Unit", "shared_bytes", "stage_bytes", "tensor_core_kernel"]

# One instruction multiplies 32 bytes of the summed axis: four of them are a row of 128 bytes.
_INSTRUCTIONS = 4
_TURN_BARRIER = 8  # the first of two barriers at which alternating consumers take turns
# Registers of a producer's and of a consumer's threads, by the number of consumers.
_REGISTERS = {2: (40, 232), 3: (32, 160)}


def tensor_core_kernel(spec: ProductSpec, plan: Plan) -> ProductKernel:
    """The kernel of a product that is cut as the plan says."""
    writer = ProductWriter(spec, plan)
    writer.write()
    return ProductKernel.from_text(spec, plan, writer.kernel, shared_bytes(spec, plan))


def stage_bytes(plan: Plan) -> int:
    """Shared memory of one stage of both operands."""
    return (plan.tile_m + plan.tile_n) * ROW_BYTES


def shared_bytes(spec: ProductSpec, plan: Plan) -> int:
    """Shared memory of a block."""
    return _Memory.from_plan(spec, plan).size


@frozen(slots=False)
class _Memory:
    """Where in a block's shared memory what lies."""

    chunks: int
    scratch: int
    flags: int
    arrivals: int
    ring: int
    size: int

    @classmethod
    def from_plan(cls, spec: ProductSpec, plan: Plan) -> _Memory:
        layout = EpilogueLayout(spec, plan)
        chunks = plan.stages * stage_bytes(plan)
        scratch = chunks + plan.consumers * layout.slots * CHUNK_BYTES
        flags = scratch + plan.consumers * layout.scratch_bytes
        arrivals = flags + 16
        ring = arrivals + 8 * plan.consumers
        return cls(chunks, scratch, flags, arrivals, ring, ring + Ring.barrier_bytes(plan.stages))


@frozen(slots=False)
class Unit:
    """A tile, or a part of one along the summed axis: steps `first` to `first + count`."""

    row: Value
    column: Value
    batch: Value | None
    number_n: Value
    number: Value  # of the tile among all
    first: Operand
    count: Value


class ProductWriter:
    """Writes the kernel of a product; others than matrices override what copies operands."""

    name = "product"

    def __init__(self, spec: ProductSpec, plan: Plan) -> None:
        self.spec, self.plan = spec, plan
        self.layout = EpilogueLayout(spec, plan)
        self.memory = _Memory.from_plan(spec, plan)
        self.row_elements = ROW_BYTES // dtype_bytes(spec.dtype)
        self.promotes = spec.dtype in FLOAT8_PAIRS
        threads = 128 * plan.consumers + (128 if plan.consumers > 1 else 32)
        self.kernel = Kernel(self.name, self.parameter_list(), threads)

    def parameter_list(self) -> list[Parameter]:
        """A box is 128 bytes of the axis along the rows, and a tile's or a stage's rows."""
        spec, plan, row = self.spec, self.plan, self.row_elements
        last = ("batch",) if spec.batched else ()
        one = (1,) if spec.batched else ()
        box_a = (row, plan.tile_m) if not spec.transpose_a else (64, row)
        box_b = (row, plan.tile_n) if spec.transpose_b else (64, row)
        axes_a = ("m", "k") if spec.transpose_a else ("k", "m")
        axes_b = ("k", "n") if spec.transpose_b else ("n", "k")
        dtype = "uint8" if self.promotes else spec.dtype
        sizes = ["m", "n", "k", *last, *(["parts", "run"] if plan.split else [])]
        shared = [Pointer("workspace"), Pointer("counters")] if plan.split else []
        return [
            TensorMap("a", dtype, axes_a + last, box_a + one),
            TensorMap("b", dtype, axes_b + last, box_b + one),
            *self.layout.parameters,
            *map(Word, sizes),
            *shared,
        ]

    def write(self) -> None:
        """Write all of it."""
        kernel, plan = self.kernel, self.plan
        self.thread = kernel.special_register("tid.x")
        self.block = kernel.special_register("ctaid.x")
        self.m, self.n, self.k = (kernel.parameter(name) for name in ("m", "n", "k"))
        self.shared = kernel.shared_memory()
        self.ring = Ring.at_first_stage(kernel, self.shared + self.memory.ring, plan.stages)
        self._initialize()
        self.count_tiles()
        self.warpgroup = self.thread >> 7
        finish = kernel.label("finish")
        produces = self.warpgroup.equals(plan.consumers)
        with kernel.when(produces):
            if plan.consumers > 1:
                kernel.do(f"setmaxnreg.dec.sync.aligned.u32 {_REGISTERS[plan.consumers][0]}")
            with kernel.when(self.thread.equals(128 * plan.consumers)):
                self._for_each_unit(self._produce)
            kernel.jump(finish)
        if plan.consumers > 1:
            kernel.do(f"setmaxnreg.inc.sync.aligned.u32 {_REGISTERS[plan.consumers][1]}")
        self._prepare_consumer()
        if plan.alternate:
            self._for_each_second_unit(self._consume)
        else:
            self._for_each_unit(self._consume)
        kernel.do("cp.async.bulk.wait_group 0")
        kernel.place(finish)

    def _initialize(self) -> None:
        kernel, plan = self.kernel, self.plan
        with kernel.when(self.thread.equals(0)):
            self.ring.initialize(4 if plan.alternate else 4 * plan.consumers)
            for consumer in range(plan.consumers):
                offset = self.memory.arrivals + 8 * consumer
                initialize_barrier(kernel, self.shared, 1, offset)
            kernel.do("fence.mbarrier_init.release.cluster")
        kernel.do("bar.sync", 0)

    def count_tiles(self) -> None:
        """Code that counts tiles, and the steps of each."""
        plan = self.plan
        self.tiles_m = (self.m + (plan.tile_m - 1)) // plan.tile_m
        self.tiles_n = (self.n + (plan.tile_n - 1)) // plan.tile_n
        self.tiles_each = self.tiles_m * self.tiles_n
        self.tiles = self.tiles_each
        if self.spec.batched:
            self.tiles = self.tiles_each * self.kernel.parameter("batch")
        self.steps = (self.k + (self.row_elements - 1)) // self.row_elements

    # The order of work.

    def _for_each_unit(self, write: Callable[[Unit], None]) -> None:
        if self.plan.split:
            self._for_each_part(write)
            return
        kernel = self.kernel
        tile = kernel.variable("u32", self.block, "tile")
        blocks = kernel.special_register("nctaid.x")
        with kernel.loop("tile") as loop:
            loop.stop_if(tile >= self.tiles)
            write(self.unit(tile, 0, self.steps))
            kernel.assign(tile, tile + blocks)

    def _for_each_second_unit(self, write: Callable[[Unit], None]) -> None:
        """The tiles of one of two consumers; the stages between them are the other's."""
        kernel = self.kernel
        blocks = kernel.special_register("nctaid.x")
        tile = kernel.variable("u32", self.block + blocks * self.warpgroup, "tile")
        self.ring.skip(self.steps * self.warpgroup)
        with kernel.loop("tile") as loop:
            loop.stop_if(tile >= self.tiles)
            write(self.unit(tile, 0, self.steps))
            self.ring.skip(self.steps)
            kernel.assign(tile, tile + blocks * 2)

    def _for_each_part(self, write: Callable[[Unit], None]) -> None:
        """Each tile is `parts` units of at most `run` steps, side by side."""
        kernel = self.kernel
        parts, run = kernel.parameter("parts"), kernel.parameter("run")
        number = kernel.variable("u32", self.block, "unit")
        blocks = kernel.special_register("nctaid.x")
        with kernel.loop("unit") as loop:
            loop.stop_if(number >= self.tiles * parts)
            first = (number % parts) * run
            count = (self.steps - first).minimum(run)
            self.part, self.parts = number, parts
            write(self.unit(number // parts, first, count))
            kernel.assign(number, number + blocks)

    def unit(self, tile: Value, first: Operand, count: Value) -> Unit:
        """Tiles run down `group` rows of tiles before they go to the next column."""
        plan = self.plan
        batch = tile // self.tiles_each if self.spec.batched else None
        within = tile % self.tiles_each if self.spec.batched else tile
        band_tiles = self.tiles_n * plan.group
        band_row = (within // band_tiles) * plan.group
        rows = (self.tiles_m - band_row).minimum(plan.group)
        place = within % band_tiles
        row = (place % rows + band_row) * plan.tile_m
        number_n = place // rows
        return Unit(row, number_n * plan.tile_n, batch, number_n, tile, first, count)

    # The producer.

    def _produce(self, unit: Unit) -> None:
        kernel, plan = self.kernel, self.plan
        step = kernel.variable("u32", unit.first, "k_step")
        end = unit.count + unit.first
        self.begin_copies(unit)
        with kernel.loop("copy") as loop:
            loop.stop_if(step >= end)
            full = self.ring.begin_fill(stage_bytes(plan))
            target = self.shared + self.ring.stage * stage_bytes(plan)
            self.copy_step(unit, step, target, full)
            self.ring.advance()
            kernel.assign(step, step + 1)

    def begin_copies(self, unit: Unit) -> None:
        """Code of the producer before the steps of a unit."""
        self.a, self.b = self.kernel.parameter("a"), self.kernel.parameter("b")

    def copy_step(self, unit: Unit, step: Value, target: Value, full: Value) -> None:
        """Start the copies of one step into a stage; they complete on its barrier."""
        depth = step * self.row_elements
        where = (unit.row, depth, unit.batch)
        self._copy(self.a, target, full, where, self.spec.transpose_a, True)
        target = target + self.plan.tile_m * ROW_BYTES
        where = (unit.column, depth, unit.batch)
        self._copy(self.b, target, full, where, not self.spec.transpose_b, False)

    def _copy(
        self,
        source: Value,
        target: Value,
        full: Value,
        where: tuple[Value, Value, Value | None],
        across: bool,
        is_a: bool,
    ) -> None:
        """Copies of one operand's part: one, or one for each 64 columns where these lie in rows."""
        first, depth, batch = where
        last = [batch] if batch else []
        if not across:
            bulk_load(self.kernel, source, [depth, first, *last], target, full)
            return
        for chunk in range((self.plan.tile_m if is_a else self.plan.tile_n) // 64):
            place = target + chunk * self.chunk_bytes
            bulk_load(self.kernel, source, [first + 64 * chunk, depth, *last], place, full)

    @property
    def chunk_bytes(self) -> int:
        """A chunk of an operand that is read across its rows: one row for each step of k."""
        return self.row_elements * ROW_BYTES

    # The consumers.

    def _prepare_consumer(self) -> None:
        kernel, plan, memory, layout = self.kernel, self.plan, self.memory, self.layout
        self.true = self.warpgroup.equals(self.warpgroup)
        count = plan.blocks_of_rows * plan.tile_n // 2
        self.sums = kernel.registers("f32", "sum", count)
        self.step_sums = kernel.registers("f32", "step_sum", count) if self.promotes else self.sums
        self.place = Thread.of_number(kernel, self.thread)
        self.barrier = self.warpgroup + 1
        places = (
            self.shared + memory.chunks + self.warpgroup * (layout.slots * CHUNK_BYTES),
            self.shared + memory.scratch + self.warpgroup * layout.scratch_bytes,
            self.shared + memory.arrivals + self.warpgroup * 8,
        )
        limits = (self.m, self.n)
        self.epilogue = WarpgroupEpilogue(kernel, layout, self.place, self.barrier, places, limits)
        self.epilogue.prepare()
        if plan.alternate:
            # The first consumer may start at once.
            second = self.warpgroup.equals(1)
            kernel.do("bar.arrive", _TURN_BARRIER, 256, when=second)
        if plan.split:
            self.workspace = kernel.parameter("workspace")
            self.counters = kernel.parameter("counters")

    def _consume(self, unit: Unit) -> None:
        row = unit.row if self.plan.alternate else unit.row + self.warpgroup * 64
        tile = Tile(row, unit.column, unit.batch, unit.number_n)
        self.epilogue.begin(tile)
        if self.promotes:
            self._multiply_and_promote(unit)
        else:
            self._multiply(unit)
        if not self.plan.split:
            each = self.plan.tile_n // 2
            self.epilogue.finish(tile, self.sums[:each])
            for block in range(1, self.plan.blocks_of_rows):
                tile = Tile(row + 64 * block, unit.column, unit.batch, unit.number_n)
                self.epilogue.begin(tile, block)
                self.epilogue.finish(tile, self.sums[each * block : each * (block + 1)])
            return
        skip = self.kernel.label("shared")
        with self.kernel.when(self.parts.differs(1)):
            self._sum_of_parts(unit, skip)
        self.epilogue.finish(tile, self.sums)
        self.kernel.place(skip)

    def _multiply(self, unit: Unit) -> None:
        """The sums of a unit; a stage is released when the products after its own have begun."""
        kernel, ring = self.kernel, self.ring
        lane_leads = self.place.lane.equals(0)
        if self.plan.alternate:
            # A stage's barrier tells two rounds apart, not more: the other's must have passed.
            kernel.do("bar.sync", self.warpgroup + _TURN_BARRIER, 256)
        step = kernel.variable("u32", 0, "step")
        previous = kernel.variable("u32", 0, "previous")
        with kernel.loop("multiply") as loop:
            loop.stop_if(step >= unit.count)
            empty = ring.wait_full()
            adds = step.differs(0)
            kernel.do("wgmma.fence.sync.aligned")
            self._multiply_stage(adds)
            kernel.do("wgmma.commit_group.sync.aligned")
            kernel.do("wgmma.wait_group.sync.aligned 1")
            releases = adds & lane_leads
            kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(previous), when=releases)
            kernel.assign(previous, empty)
            ring.advance()
            kernel.assign(step, step + 1)
        if self.plan.alternate:
            kernel.do("bar.arrive", (self.warpgroup ^ 1) + _TURN_BARRIER, 256)
        kernel.do("wgmma.wait_group.sync.aligned 0")
        kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(previous), when=lane_leads)

    def _multiply_and_promote(self, unit: Unit) -> None:
        """The sums of a unit, each step's by themselves and then in float32.

        While one consumer adds, the others' products run.
        """
        kernel, ring = self.kernel, self.ring
        for value in self.sums:
            kernel.assign(value, 0.0)
        step = kernel.variable("u32", 0, "step")
        with kernel.loop("multiply") as loop:
            loop.stop_if(step >= unit.count)
            empty = ring.wait_full()
            kernel.do("wgmma.fence.sync.aligned")
            self._multiply_stage(~self.true)
            kernel.do("wgmma.commit_group.sync.aligned")
            kernel.do("wgmma.wait_group.sync.aligned 0")
            leads = self.place.lane.equals(0)
            kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(empty), when=leads)
            for value, part in zip(self.sums, self.step_sums, strict=True):
                kernel.do("add.f32", value, value, part)
            ring.advance()
            kernel.assign(step, step + 1)

    def _multiply_stage(self, adds: Value) -> None:
        kernel, plan, spec = self.kernel, self.plan, self.spec
        across = (spec.transpose_a, not spec.transpose_b)
        start = self.shared + self.ring.stage * stage_bytes(plan)
        # 64 rows, or one chunk of 64 columns: of either, each consumer has its own.
        part = self.chunk_bytes if across[0] else 64 * ROW_BYTES
        a = descriptor(kernel, start if plan.alternate else start + self.warpgroup * part)
        b = descriptor(kernel, start + plan.tile_m * ROW_BYTES, self.chunk_bytes)
        # An instruction further along k: 32 bytes in the row, or 16 rows.
        strides = [2048 >> 4 if side else 32 >> 4 for side in across]
        for number in range(_INSTRUCTIONS):
            left, right = (
                operand + number * stride if number else operand
                for operand, stride in zip((a, b), strides, strict=True)
            )
            condition = self.true if number else adds
            each = plan.tile_n // 2
            for block in range(plan.blocks_of_rows):
                sums = self.step_sums[each * block : each * (block + 1)]
                rows = left + ((part * block) >> 4) if block else left
                warpgroup_product(kernel, sums, rows, right, condition, spec.dtype, across)

    # Tiles that several blocks share.

    def _part_place(self, number: Value) -> Value:
        """The address of a part in the workspace, for this thread."""
        kernel, plan = self.kernel, self.plan
        part = number * plan.consumers + self.warpgroup
        offset = kernel.let("u64", "mul.wide.u32", part, 64 * plan.tile_n * 4)
        return kernel.address(self.workspace + offset, self.place.index, 16)

    def _sum_of_parts(self, unit: Unit, skip: str) -> None:
        """Store this part; who comes last adds up all parts in their order along k."""
        kernel, plan = self.kernel, self.plan
        mine = self._part_place(self.part)
        for first in range(0, len(self.sums), 4):
            four = braces(self.sums[first : first + 4])
            kernel.do("st.global.v4.f32", at(mine, 512 * first), four)
        warpgroup_barrier(kernel, self.barrier)
        flag = self.shared + self.memory.flags + self.warpgroup * 4
        counter = kernel.address(self.counters, unit.number * plan.consumers + self.warpgroup, 4)
        with kernel.when(self.place.leads):
            kernel.do("fence.acq_rel.gpu")
            before = kernel.let("u32", "atom.global.acq_rel.gpu.add.u32", at(counter), 1)
            kernel.do("st.shared.u32", at(flag), before)
        warpgroup_barrier(kernel, self.barrier)
        arrived = kernel.let("u32", "ld.shared.u32", at(flag))
        kernel.jump(skip, arrived.differs(self.parts - 1))
        kernel.do("st.global.u32", at(counter), 0, when=self.place.leads)
        kernel.do("fence.acq_rel.gpu")
        for value in self.sums:
            kernel.assign(value, 0.0)
        number = kernel.variable("u32", unit.number * self.parts, "part")
        last = number + self.parts
        with kernel.loop("parts") as loop:
            loop.stop_if(number >= last)
            theirs = self._part_place(number)
            for first in range(0, len(self.sums), 4):
                parts = kernel.registers("f32", "part", 4)
                kernel.do("ld.global.cg.v4.f32", braces(parts), at(theirs, 512 * first))
                for value, part in zip(self.sums[first : first + 4], parts, strict=True):
                    kernel.do("add.f32", value, value, part)
            kernel.assign(number, number + 1)
