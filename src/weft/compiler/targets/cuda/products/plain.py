"""Products by plain multiply-adds of float32, for any dtype, alignment and size.

A block of 256 threads computes a tile: each thread a square of it, in blocks of four rows and four
columns. Parts of both operands, 16 deep, lie in shared memory with the summed axis outermost. There
are two of each: while one is multiplied, the next is read and written into the other. Where tiles
are few, several blocks share one, each a part of the summed axis; who comes last adds the parts up
in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.targets.cuda.products.description import (
    Plan,
    ProductKernel,
    ProductSpec,
    dtype_bytes,
)
from weft.compiler.targets.cuda.products.direct import DirectEpilogue, Tile, operands_and_sizes
from weft.compiler.targets.cuda.products.epilogue import EpilogueLayout
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
)

__all__ = ["PLAIN_DEPTH", "plain_kernel"]

_THREADS = 256
_BLOCKS = 2  # of a multiprocessor: while one waits for its operands, the other multiplies
PLAIN_DEPTH = 16  # of the summed axis, in one part of the operands
_PADDING = 4  # floats behind each row, so that columns of the part lie in different banks


def plain_kernel(spec: ProductSpec, plan: Plan) -> ProductKernel:
    """The kernel of a product that takes no tensor cores."""
    writer = _Writer(spec, plan)
    writer.write()
    return ProductKernel.from_text(spec, plan, writer.kernel, writer.shared_bytes)


@dataclass
class _Operand:
    """One operand's way into shared memory: rows of the result's axis, parts of the summed one.

    `width` numbers that lie side by side are read at once.
    """

    kernel: Kernel
    name: str
    dtype: str
    rows: int
    depth_inside: bool  # whether the summed axis lies along the rows of memory
    width: int
    place: Value  # in shared memory

    def prepare(
        self, thread: Value, first: tuple[Value, Value], limit: Value, batch: Value | None
    ) -> None:
        """Code before the loop: this thread's addresses, and which of its rows exist.

        `first` is the row and the depth of the first part.
        """
        first_row, first_depth = first
        kernel = self.kernel
        stride = kernel.parameter(f"{self.name}_stride")
        base = kernel.parameter(self.name)
        if batch is not None:
            each = kernel.parameter(f"{self.name}_batch_stride")
            index = kernel.let("u64", "mul.wide.u32", batch, each)
            base = base + index * self._size
        inner = (PLAIN_DEPTH if self.depth_inside else self.rows) // self.width
        fast, slow = (thread % inner) * self.width, thread // inner
        self._slow_step = _THREADS // inner
        self._row, self._depth = (slow, fast) if self.depth_inside else (fast, slow)
        self._addresses, self._row_exists = [], []
        for number in range(self._count):
            row, depth = self._position(number)
            absolute = row + first_row
            deep = depth + first_depth
            outer, within = (absolute, deep) if self.depth_inside else (deep, absolute)
            index = kernel.let("u64", "mul.wide.u32", outer, stride)
            index = index + kernel.let("u64", "cvt.u64.u32", within)
            self._addresses.append(kernel.variable("u64", base + index * self._size))
            self._row_exists.append(absolute < limit)
        steps = PLAIN_DEPTH * self._size
        self._advance = (
            kernel.variable("u64", steps)
            if self.depth_inside
            else kernel.let("u64", "mul.wide.u32", stride, steps)
        )

    @property
    def _size(self) -> int:
        return dtype_bytes(self.dtype)

    @property
    def _count(self) -> int:
        return self.rows * PLAIN_DEPTH // self.width // _THREADS

    def _position(self, number: int) -> tuple[Value, Value]:
        """Row and depth in the part of what the thread reads as its `number`-th."""
        step = number * self._slow_step
        if self.depth_inside:
            return self._row + step, self._depth
        return self._row, self._depth + step

    def read(self, first_depth: Value, depth_limit: Value) -> list[list[Value]]:
        """Start to read the next part into registers; zeros where there is nothing."""
        kernel = self.kernel
        parts = []
        for number, address in enumerate(self._addresses):
            exists = self._row_exists[number]
            exists = exists & (self._position(number)[1] + first_depth < depth_limit)
            parts.append(self._read_one(address, exists))
            kernel.assign(address, address + self._advance)
        return parts

    def _read_one(self, address: Value, exists: Value) -> list[Value]:
        kernel = self.kernel
        if self._size == 2:
            half = kernel.variable("b16", 0)
            kernel.do("ld.global.b16", half, at(address), when=exists)
            return [half]
        values = [kernel.variable("f32", 0.0) for _ in range(self.width)]
        if self.width == 1:
            kernel.do("ld.global.f32", values[0], at(address), when=exists)
        else:
            kernel.do("ld.global.v4.f32", braces(values), at(address), when=exists)
        return values

    def write(self, parts: Sequence[Sequence[Value]], buffer: Value) -> None:
        """Write what was read into shared memory, as float32."""
        kernel, line = self.kernel, 4 * (self.rows + _PADDING)
        for number, part in enumerate(parts):
            row, depth = self._position(number)
            place = self.place + buffer * (PLAIN_DEPTH * line) + depth * line + row * 4
            values = [self._float(value) for value in part]
            if len(values) == 4 and not self.depth_inside:
                kernel.do("st.shared.v4.f32", at(place), braces(values))
                continue
            for offset, value in enumerate(values):
                kernel.do("st.shared.f32", at(place, offset * line), value)

    def _float(self, value: Value) -> Value:
        kernel = self.kernel
        if self._size == 4:
            return value
        if self.dtype == "float16":
            return kernel.let("f32", "cvt.f32.f16", value)
        return kernel.let("f32", "mov.b32", braces([kernel.variable("b16", 0), value]))

    def thread_values(self, depth: int, buffer: Value, first: Value) -> list[Value]:
        """What one thread multiplies at a depth: fours that are 64 rows apart."""
        kernel, line = self.kernel, 4 * (self.rows + _PADDING)
        place = self.place + buffer * (PLAIN_DEPTH * line) + first * 4
        found: list[Value] = []
        for block in range(self.rows // 64):
            four = kernel.registers("f32", self.name, 4)
            source = at(place, depth * line + 256 * block)
            kernel.do("ld.shared.v4.f32", braces(four), source)
            found += four
        return found


class _Writer:
    """Writes the kernel: a tile of 16 × 16 threads, each with fours of rows and columns."""

    def __init__(self, spec: ProductSpec, plan: Plan) -> None:
        self.spec, self.plan = spec, plan
        self.layout = EpilogueLayout(spec, plan)
        blocks = _BLOCKS if self.width > 1 else 1  # more addresses leave too few registers
        self.kernel = Kernel("plain_product", self._parameter_list(), _THREADS, blocks, "sm_80")

    @property
    def width(self) -> int:
        """Numbers of an operand that are read at once."""
        return 4 if dtype_bytes(self.spec.dtype) == 4 and self.spec.aligned else 1

    @property
    def shared_bytes(self) -> int:
        """What two parts of both operands take."""
        lines = self.plan.tile_m + self.plan.tile_n + 2 * _PADDING
        return 2 * PLAIN_DEPTH * 4 * lines

    def _parameter_list(self) -> list[Parameter]:
        found = operands_and_sizes(self.spec, self.layout.parameters)
        if self.plan.split:
            found += [Word("parts"), Word("run"), Pointer("workspace"), Pointer("counters")]
        return found

    def write(self) -> None:
        """The whole kernel."""
        kernel, plan, spec = self.kernel, self.plan, self.spec
        self.thread = kernel.special_register("tid.x")
        self.block = kernel.special_register("ctaid.x")
        self.m, self.n, self.k = (kernel.parameter(name) for name in ("m", "n", "k"))
        self.first_depth, self.last_depth = kernel.variable("u32", 0), self.k
        tile = self.block
        if plan.split:
            self.parts, run = kernel.parameter("parts"), kernel.parameter("run")
            tile = self.block // self.parts
            self.first_depth = (self.block % self.parts) * run * PLAIN_DEPTH
            self.last_depth = self.k.minimum(self.first_depth + run * PLAIN_DEPTH)
        where = Tile.at_number(tile, (self.m, self.n), spec, plan)
        row, column = (self.thread // 16) * 4, (self.thread % 16) * 4
        sums = self._sums(where, row, column)
        finish = kernel.label("finish")
        if plan.split:
            self._sum_of_parts(tile, [value for line in sums for value in line], finish)
        self._finish(where, row, column, sums)
        kernel.place(finish)

    def _operands(self, tile: Tile) -> tuple[_Operand, _Operand]:
        kernel, plan, spec = self.kernel, self.plan, self.spec
        shared = kernel.shared_memory()
        width = self.width
        a_bytes = 2 * PLAIN_DEPTH * 4 * (plan.tile_m + _PADDING)
        a = _Operand(kernel, "a", spec.dtype, plan.tile_m, not spec.transpose_a, width, shared)
        place = shared + a_bytes
        b = _Operand(kernel, "b", spec.dtype, plan.tile_n, spec.transpose_b, width, place)
        a.prepare(self.thread, (tile.row, self.first_depth), self.m, tile.batch)
        b.prepare(self.thread, (tile.column, self.first_depth), self.n, tile.batch)
        return a, b

    def _sums(self, tile: Tile, row: Value, column: Value) -> list[list[Value]]:
        """The thread's sums, by row and column."""
        kernel, plan = self.kernel, self.plan
        operands = self._operands(tile)
        sums = [
            [kernel.variable("f32", 0.0, "sum") for _ in range(plan.tile_n // 16)]
            for _ in range(plan.tile_m // 16)
        ]
        depth = kernel.variable("u32", self.first_depth, "depth")
        buffer = kernel.variable("u32", 0, "buffer")
        for operand in operands:
            operand.write(operand.read(depth, self.last_depth), buffer)
        kernel.do("bar.sync", 0)
        with kernel.loop("depth") as loop:
            loop.stop_if(depth >= self.last_depth)
            following = depth + PLAIN_DEPTH
            waiting = [operand.read(following, self.last_depth) for operand in operands]
            for inner in range(PLAIN_DEPTH):
                left = operands[0].thread_values(inner, buffer, row)
                right = operands[1].thread_values(inner, buffer, column)
                for line, x in zip(sums, left, strict=True):
                    for total, y in zip(line, right, strict=True):
                        kernel.do("fma.rn.f32", total, x, y, total)
            kernel.assign(buffer, buffer ^ 1)
            for operand, parts in zip(operands, waiting, strict=True):
                operand.write(parts, buffer)
            kernel.assign(depth, following)
            kernel.do("bar.sync", 0)
        return sums

    def _part_place(self, number: Value) -> Value:
        """The address of a part in the workspace, for this thread."""
        kernel, plan = self.kernel, self.plan
        size = plan.tile_m * plan.tile_n * 4
        offset = kernel.let("u64", "mul.wide.u32", number, size)
        return kernel.address(kernel.parameter("workspace") + offset, self.thread, 16)

    def _sum_of_parts(self, tile: Value, sums: list[Value], finish: str) -> None:
        """Store this part; the last block of a tile goes on with the sum of all."""
        kernel, stride = self.kernel, 16 * _THREADS
        mine = self._part_place(self.block)
        for four in range(len(sums) // 4):
            part = braces(sums[4 * four : 4 * four + 4])
            kernel.do("st.global.v4.f32", at(mine, stride * four), part)
        kernel.do("bar.sync", 0)
        counter = kernel.address(kernel.parameter("counters"), tile, 4)
        flag = kernel.shared_memory()
        leads = self.thread.equals(0)
        with kernel.when(leads):
            kernel.do("fence.acq_rel.gpu")
            before = kernel.let("u32", "atom.global.acq_rel.gpu.add.u32", at(counter), 1)
            kernel.do("st.shared.u32", at(flag), before)
        kernel.do("bar.sync", 0)
        arrived = kernel.let("u32", "ld.shared.u32", at(flag))
        kernel.jump(finish, arrived.differs(self.parts - 1))
        kernel.do("st.global.u32", at(counter), 0, when=leads)
        kernel.do("fence.acq_rel.gpu")
        for value in sums:
            kernel.assign(value, 0.0)
        number = kernel.variable("u32", tile * self.parts, "part")
        last = number + self.parts
        with kernel.loop("parts") as loop:
            loop.stop_if(number >= last)
            theirs = self._part_place(number)
            for four in range(len(sums) // 4):
                values = kernel.registers("f32", "part", 4)
                source = at(theirs, stride * four)
                kernel.do("ld.global.cg.v4.f32", braces(values), source)
                for total, value in zip(sums[4 * four : 4 * four + 4], values, strict=True):
                    kernel.do("add.f32", total, total, value)
            kernel.assign(number, number + 1)

    def _finish(self, tile: Tile, row: Value, column: Value, sums: list[list[Value]]) -> None:
        plan = self.plan
        rows = [64 * block + i for block in range(plan.tile_m // 64) for i in range(4)]
        columns = [64 * block + i for block in range(plan.tile_n // 64) for i in (0, 2)]
        limits = (self.m, self.n)
        parameters = self.layout.parameters
        epilogue = DirectEpilogue(
            self.kernel, self.spec, parameters, row, column, rows, columns, limits
        )
        epilogue.prepare()
        pairs = [line[2 * j : 2 * j + 2] for j in range(len(columns)) for line in sums]
        epilogue.finish(tile, [value for pair in pairs for value in pair])
