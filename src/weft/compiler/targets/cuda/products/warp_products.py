"""Products by instructions of single warps, which cards have since compute capability 8.0.

A block of 8 warps computes a tile: operands come by asynchronous copies of 16 bytes a thread into a
ring of stages, 128 bytes of the summed axis each, and go from there into registers as fragments of
8 × 16 bytes. 16-byte units of a row are exchanged by `unit ^ row % 8`, so that neither copies nor
fragments meet in a bank. 16-bit operands lie in memory in either order; a fragment that is read
across its rows is transposed on its way. All others are multiplied along their rows.

One instruction takes 32 bytes of the summed axis: 16 bfloat16 or float16, 8 tfloat32, 32 int8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.targets.cuda.products.description import (
    INTEGER_PAIRS,
    Plan,
    ProductKernel,
    ProductSpec,
    dtype_bytes,
)
from weft.compiler.targets.cuda.products.direct import DirectEpilogue, Tile, operands_and_sizes
from weft.compiler.targets.cuda.products.epilogue import EpilogueLayout
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Operand,
    Value,
    at,
    braces,
)

__all__ = ["WARP_DTYPES", "takes_warp_products", "warp_kernel", "warp_plan"]

_THREADS = 256
_ROW_BYTES = 128
_UNIT_BYTES = 16
_UNITS = _ROW_BYTES // _UNIT_BYTES
_STEP_BYTES = 32  # of the summed axis, in one instruction
_STAGES = 3
_WARPS = {128: (2, 4), 64: (2, 4)}
# How instructions spell operands and sums, and the shape they multiply.
WARP_DTYPES = {
    "bfloat16": ("m16n8k16", "bf16.bf16", "f32"),
    "float16": ("m16n8k16", "f16.f16", "f32"),
    "tfloat32": ("m16n8k8", "tf32.tf32", "f32"),
} | {
    pair: ("m16n8k32", ".".join(f"{dtype[0].replace('i', 's')}8" for dtype in dtypes), "s32")
    for pair, dtypes in INTEGER_PAIRS.items()
}


def takes_warp_products(spec: ProductSpec) -> bool:
    """Whether warps multiply such operands: 16-bit ones in any order, others along their rows."""
    if spec.dtype not in WARP_DTYPES or not spec.aligned:
        return False
    return dtype_bytes(spec.dtype) == 2 or (not spec.transpose_a and spec.transpose_b)


def warp_plan(tiles_of_128: int, multiprocessors: int) -> Plan:
    """Large tiles where they give every multiprocessor work, else small ones."""
    side = 128 if tiles_of_128 >= multiprocessors else 64
    return Plan(side, side, stages=_STAGES, bulk=False, warps=True)


def warp_kernel(spec: ProductSpec, plan: Plan) -> ProductKernel:
    """The kernel of a product that single warps multiply."""
    writer = _Writer(spec, plan)
    writer.write()
    return ProductKernel.from_text(spec, plan, writer.kernel, plan.stages * writer.stage_bytes)


@dataclass
class _Operand:
    """One operand's way through shared memory: `rows` of the result's axis, a stage deep.

    Where the summed axis lies along memory, a line of shared memory is a row of the tile. Else
    lines are steps of the summed axis, in chunks of 64 rows of the tile.
    """

    kernel: Kernel
    name: str
    size: int  # bytes of an element
    rows: int
    across: bool  # whether the summed axis lies across memory
    place: Value  # in shared memory, of the first stage

    @property
    def depth(self) -> int:
        """Elements of the summed axis in a stage."""
        return _ROW_BYTES // self.size

    @property
    def copies(self) -> int:
        """How many units each thread copies for a stage."""
        return self.rows * _UNITS // _THREADS

    def prepare(self, thread: Value, first_row: Value, limit: Value, batch: Value | None) -> None:
        """Code before the loop: what this thread copies, and where from."""
        kernel = self.kernel
        base = kernel.parameter(self.name)
        stride = kernel.parameter(f"{self.name}_stride")
        if batch is not None:
            each = kernel.parameter(f"{self.name}_batch_stride")
            index = kernel.let("u64", "mul.wide.u32", batch, each)
            base = base + index * self.size
        self._copies: list[tuple[Value, Value, Value, Value]] = []
        for number in range(self.copies):
            unit = thread + number * _THREADS
            line, column = unit // _UNITS, unit % _UNITS
            place = self.place + line * _ROW_BYTES + ((column ^ (line & 7)) * _UNIT_BYTES)
            if self.across:
                depth = line % self.depth
                row = (line // self.depth) * 64 + column * 8
            else:
                depth, row = column * (_UNIT_BYTES // self.size), line
            row = row + first_row
            outer, inner = (depth, row) if self.across else (row, depth)
            index = kernel.let("u64", "mul.wide.u32", outer, stride)
            index = index + kernel.let("u64", "cvt.u64.u32", inner)
            source = kernel.variable("u64", base + index * self.size)
            self._copies.append((place, source, depth, row < limit))
        self._advance = (
            kernel.let("u64", "mul.wide.u32", stride, _ROW_BYTES)
            if self.across
            else kernel.variable("u64", _ROW_BYTES)
        )

    def copy(self, first_depth: Value, limit: Value, stage: Value) -> None:
        """Start the thread's copies for a stage; zeros outside of the operand."""
        kernel = self.kernel
        for place, source, depth, is_row in self._copies:
            exists = is_row & (depth + first_depth < limit)
            count = kernel.select(exists, _UNIT_BYTES, 0)
            kernel.do(
                "cp.async.cg.shared.global", at(place + stage), at(source), _UNIT_BYTES, count
            )
            kernel.assign(source, source + self._advance)

    def fragments(
        self, lane: Value, first: Value, count: int, step: int, stage: Value, *, is_left: bool
    ) -> list[list[Value]]:
        """Fragments of 16 rows of the tile each, four registers, for one instruction.

        Of a left operand these are rows 0 to 7 and 8 to 15 of the first 16 bytes, then of the
        second; of a right one both halves of rows 0 to 7, then those of rows 8 to 15.
        """
        kernel = self.kernel
        matrix, line = lane // 8, lane % 8
        by_row, by_depth = (matrix & 1, matrix >> 1) if is_left else (matrix >> 1, matrix & 1)
        found = []
        for number in range(count):
            if self.across:
                depth = by_depth * 8 + line + step * 16
                unit = (first + 16 * number) // 8 + by_row
                chunk = (unit // _UNITS) * (self.depth * _ROW_BYTES)
                address = chunk + depth * _ROW_BYTES + (((unit % 8) ^ (depth & 7)) * _UNIT_BYTES)
                kind = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
            else:
                row = first + 16 * number + by_row * 8 + line
                unit = by_depth + step * 2
                address = row * _ROW_BYTES + ((unit ^ (row & 7)) * _UNIT_BYTES)
                kind = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
            registers = kernel.registers("b32", self.name, 4)
            kernel.do(kind, braces(registers), at(self.place + address + stage))
            found.append(registers)
        return found


class _Writer:
    """Writes the kernel: all warps of a block share a ring of operands, and part a tile."""

    def __init__(self, spec: ProductSpec, plan: Plan) -> None:
        self.spec, self.plan = spec, plan
        self.layout = EpilogueLayout(spec, plan)
        parameters = operands_and_sizes(spec, self.layout.parameters)
        self.kernel = Kernel("warp_product", parameters, _THREADS, target="sm_80")
        self.warps = _WARPS[plan.tile_m]
        self.warp_rows, self.warp_columns = (
            plan.tile_m // self.warps[0], plan.tile_n // self.warps[1],
        )  # fmt: skip

    @property
    def stage_bytes(self) -> int:
        """What both operands take in one stage of the ring."""
        return (self.plan.tile_m + self.plan.tile_n) * _ROW_BYTES

    def write(self) -> None:
        """The whole kernel."""
        kernel, plan, spec = self.kernel, self.plan, self.spec
        thread, block = kernel.special_register("tid.x"), kernel.special_register("ctaid.x")
        self.m, self.n, self.k = (kernel.parameter(name) for name in ("m", "n", "k"))
        tile = Tile.at_number(block, (self.m, self.n), spec, plan)
        shared = kernel.shared_memory()
        size = dtype_bytes(spec.dtype)
        a = _Operand(kernel, "a", size, plan.tile_m, spec.transpose_a, shared)
        b_place = shared + plan.tile_m * _ROW_BYTES
        b = _Operand(kernel, "b", size, plan.tile_n, not spec.transpose_b, b_place)
        a.prepare(thread, tile.row, self.m, tile.batch)
        b.prepare(thread, tile.column, self.n, tile.batch)
        self.lane, warp = thread % 32, thread // 32
        self.first_row = (warp % self.warps[0]) * self.warp_rows
        self.first_column = (warp // self.warps[0]) * self.warp_columns
        sums = self._sums(a, b)
        self._finish(tile, sums)

    def _sums(self, a: _Operand, b: _Operand) -> list[list[list[Value]]]:
        """The thread's sums: by 16 rows, by 8 columns, four of each."""
        kernel, stages = self.kernel, self.plan.stages
        kind = "b32" if self.spec.dtype in INTEGER_PAIRS else "f32"
        sums = [
            [[kernel.variable(kind, 0, "sum") for _ in range(4)]
             for _ in range(self.warp_columns // 8)]
            for _ in range(self.warp_rows // 16)
        ]  # fmt: skip
        filled = kernel.variable("u32", 0, "filled")
        target = kernel.variable("u32", 0, "target_stage")
        for _ in range(stages - 1):
            self._fill((a, b), filled, target)
        depth = kernel.variable("u32", 0, "depth")
        stage = kernel.variable("u32", 0, "stage")
        with kernel.loop("depth") as loop:
            loop.stop_if(depth >= self.k)
            kernel.do(f"cp.async.wait_group {stages - 2}")
            kernel.do("bar.sync", 0)  # all see this stage, and have left the one before it
            self._fill((a, b), filled, target)
            for step in range(_ROW_BYTES // _STEP_BYTES):
                self._multiply(a, b, step, stage, sums)
            kernel.assign(depth, depth + a.depth)
            self._advance(stage)
        kernel.do("cp.async.wait_group 0")
        return sums

    def _fill(self, operands: tuple[_Operand, _Operand], filled: Value, target: Value) -> None:
        """Start the copies of the next part; nothing is read behind the last."""
        kernel = self.kernel
        with kernel.when(filled < self.k):
            for operand in operands:
                operand.copy(filled, self.k, target)
        kernel.do("cp.async.commit_group")
        kernel.assign(filled, filled + operands[0].depth)
        self._advance(target)

    def _advance(self, stage: Value) -> None:
        """Go on to the next stage of the ring."""
        kernel = self.kernel
        following = stage + self.stage_bytes
        wraps = following.equals(self.plan.stages * self.stage_bytes)
        kernel.assign(stage, kernel.select(wraps, 0, following))

    def _multiply(
        self,
        a: _Operand,
        b: _Operand,
        step: int,
        stage: Value,
        sums: Sequence[Sequence[Sequence[Value]]],
    ) -> None:
        shape, pair, total = WARP_DTYPES[self.spec.dtype]
        spelled = f"mma.sync.aligned.{shape}.row.col.{total}.{pair}.{total}"
        rows, columns = self.warp_rows // 16, self.warp_columns // 16
        left = a.fragments(self.lane, self.first_row, rows, step, stage, is_left=True)
        right = b.fragments(self.lane, self.first_column, columns, step, stage, is_left=False)
        for line, x in zip(sums, left, strict=True):
            for number, total_values in enumerate(line):
                y = right[number // 2][2 * (number % 2) : 2 * (number % 2) + 2]
                four = braces(total_values)
                self.kernel.do(spelled, four, braces(x), braces(y), four)

    def _finish(self, tile: Tile, sums: Sequence[Sequence[Sequence[Value]]]) -> None:
        kernel = self.kernel
        row = self.first_row + self.lane // 4
        column = self.first_column + (self.lane % 4) * 2
        rows = [16 * i + 8 * h for i in range(len(sums)) for h in (0, 1)]
        columns = [8 * j for j in range(len(sums[0]))]
        epilogue = DirectEpilogue(
            kernel, self.spec, self.layout.parameters, row, column, rows, columns, (self.m, self.n)
        )
        epilogue.prepare()
        values: list[Operand] = [
            sums[i][j][2 * h + t]
            for j in range(len(columns))
            for i in range(len(sums))
            for h in (0, 1)
            for t in (0, 1)
        ]
        floats = [
            kernel.let("f32", "mov.b32", each) if self.spec.dtype in INTEGER_PAIRS else each
            for each in values
        ]
        epilogue.finish(tile, [each for each in floats if isinstance(each, Value)])
