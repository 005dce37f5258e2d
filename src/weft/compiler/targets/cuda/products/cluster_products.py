"""Small products of float32 by multiply-adds: little work, so that waiting is what must be short.

A block of 256 threads computes a tile of 64 × 64 over a run of the summed axis. Of what it reads
four steps are on their way at any time, as many as hide memory's latency: more of them at once
fill the queue of copies before the first product. Steps are written out. A thread multiplies 8 rows
by 8 columns, which reads half as much from shared memory as 4 by 4; the four groups of eight lanes
in a warp take a quarter of each step, and add up their sums by exchanges of halves. Blocks of a
cluster share a tile, each with a run of its own; each then adds up some rows of the tile, in the
order of runs, from the shared memory of all of them. Nothing goes through the card's memory in
between, and nobody counts who is last.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from weft.compiler.targets.cuda.products.description import Plan, ProductKernel, ProductSpec
from weft.compiler.targets.cuda.products.direct import DirectEpilogue, Tile, operands_and_sizes
from weft.compiler.targets.cuda.products.epilogue import EpilogueLayout
from weft.compiler.targets.cuda.ptx_writer import Kernel, Value, at, braces

__all__ = [
    "CLUSTERS", "MOST_STEPS", "MOST_STEPS_ELSEWHERE", "STEP", "TILE", "cluster_kernel",
    "takes_clusters",
]  # fmt: skip

TILE = 64
"""Rows and columns of a tile."""
CLUSTERS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Blocks that may share a tile; eight is the most that every card with clusters has."""
MOST_STEPS = 16
"""Steps of a block, for which both operands fit into the shared memory of cards with clusters."""
MOST_STEPS_ELSEWHERE = 11
"""The same for every card since Ampere: 99 KB, where the operands' lines lie least tightly."""
STEP = 16
"""How much of the summed axis is one step."""
_THREADS = 256
_PADDING = 4  # floats behind each line, so that neighbours of a column lie in different banks
_SUMS_LINE = 4 * (TILE + 2)  # bytes of a row of sums, so that stores of a warp differ in banks
_OWN = 8  # rows, and columns, of a thread
_AHEAD = 4  # steps whose copies are on their way
_GROUPS = 4  # of lanes, each with a quarter of a step
_ROWS = _THREADS // 32  # of sums that all threads take at once, a pair of neighbours each


def takes_clusters(spec: ProductSpec) -> bool:
    """Whether operands are of four bytes, which the smallest copy brings."""
    return spec.dtype in ("float32", "tfloat32")


def cluster_kernel(spec: ProductSpec, plan: Plan) -> ProductKernel:
    """The kernel of a product whose blocks share tiles in clusters of `plan.cluster`."""
    writer = _Writer(spec, plan)
    writer.write()
    return ProductKernel.from_text(spec, plan, writer.kernel, writer.shared_bytes)


@dataclass
class _Operand:
    """One operand's way: 64 rows of the result's axis, and the block's run of the summed one.

    In shared memory lines lie as in the card's memory, and four numbers are read at once: where the
    summed axis lies along them, a thread's rows are 8 apart, else they are twice four neighbours.
    """

    kernel: Kernel
    name: str
    depth_inside: bool  # whether the summed axis lies along the lines
    aligned: bool  # whether lines are whole numbers of 16 bytes
    depth: int  # of the run
    place: int  # bytes, in the block's shared memory

    @property
    def line(self) -> int:
        """Floats from one line in shared memory to the next."""
        return (self.depth if self.depth_inside else TILE) + _PADDING

    @property
    def bytes(self) -> int:
        """What it takes in shared memory."""
        return 4 * self.line * (TILE if self.depth_inside else self.depth)

    def row(self, own: Value, number: Value) -> Value:
        """The row of the tile that a thread has as its `number`-th; both are below 8."""
        if self.depth_inside:
            return own + number * _OWN
        return own * 4 + number % 4 + number // 4 * (4 * _OWN)

    def prepare(
        self,
        thread: Value,
        shared: Value,
        first: tuple[Value, Value],
        limits: tuple[Value, Value],
        batch: Value | None,
    ) -> None:
        """What this thread copies in each step; `first` and `limits`: of rows, and of depth."""
        kernel = self.kernel
        stride = kernel.parameter(f"{self.name}_stride")
        base = kernel.parameter(self.name)
        if batch is not None:
            each = kernel.parameter(f"{self.name}_batch_stride")
            base = base + kernel.let("u64", "mul.wide.u32", batch, each) * 4
        width = 4 if self.aligned else 1
        inner = (STEP if self.depth_inside else TILE) // width
        self._copies: list[tuple[Value, Value, Value, Value]] = []
        for number in range(TILE * STEP // width // _THREADS):
            unit = thread + number * _THREADS
            fast, slow = (unit % inner) * width, unit // inner
            row, depth = (slow, fast) if self.depth_inside else (fast, slow)
            far_row, far_depth = row + first[0], depth + first[1]
            outer, within = (far_row, far_depth) if self.depth_inside else (far_depth, far_row)
            index = kernel.let("u64", "mul.wide.u32", outer, stride)
            index = index + kernel.let("u64", "cvt.u64.u32", within)
            source = kernel.variable("u64", base + index * 4)
            place = shared + (slow * self.line + fast) * 4
            self._copies.append((place, source, far_depth, far_row < limits[0]))
        self._width, self._limit = width, limits[1]
        self._advance = (
            kernel.variable("u64", 4 * STEP)
            if self.depth_inside
            else kernel.let("u64", "mul.wide.u32", stride, 4 * STEP)
        )

    def _step_place(self, step: int) -> int:
        """Where a step's numbers begin, in bytes of the block's shared memory."""
        return self.place + 4 * STEP * step * (1 if self.depth_inside else self.line)

    def copy(self, step: int) -> None:
        """Begin the copies of a step; zeros where there is nothing."""
        kernel, size = self.kernel, 4 * self._width
        how = "cg" if size == 16 else "ca"
        for place, source, depth, row_exists in self._copies:
            exists = row_exists & (depth + step * STEP < self._limit)
            count = kernel.select(exists, size, 0)
            target = at(place, self._step_place(step))
            kernel.do(f"cp.async.{how}.shared.global", target, at(source), size, count)
            kernel.assign(source, source + self._advance)

    def numbers(self, own: Value, step: int) -> list[list[Value]]:
        """The thread's rows at the four depths of its group in a step, by row."""
        kernel, lines = self.kernel, list[list[Value]]()
        for number in range(_OWN):
            if self.depth_inside:
                offset = _OWN * number * self.line
            else:  # four depths, each with twice four rows
                offset = number // 2 * self.line + 4 * _OWN * (number % 2)
            four = kernel.registers("f32", self.name, 4)
            source = at(own, self._step_place(step) + 4 * offset)
            kernel.do("ld.shared.v4.f32", braces(four), source)
            lines.append(four)
        if self.depth_inside:
            return lines
        depths = [[*low, *high] for low, high in zip(lines[::2], lines[1::2], strict=True)]
        return [list(each) for each in zip(*depths, strict=True)]

    def first_address(self, shared: Value, own: Value, group: Value) -> Value:
        """Where the first of a thread's numbers are, but for the place of a step."""
        if self.depth_inside:
            return shared + own * (4 * self.line) + group * 16
        return shared + own * 16 + group * (4 * 4 * self.line)


class _Writer:
    """Writes the kernel."""

    def __init__(self, spec: ProductSpec, plan: Plan) -> None:
        self.spec, self.plan = spec, plan
        self.layout = EpilogueLayout(spec, plan)
        parameters = operands_and_sizes(spec, self.layout.parameters)
        target = "sm_90" if plan.cluster > 1 else "sm_80"
        self.kernel = Kernel(
            "cluster_product", parameters, _THREADS, target=target, cluster=plan.cluster
        )
        depth = plan.stages * STEP
        inside = not spec.transpose_a, spec.transpose_b
        self.a = _Operand(self.kernel, "a", inside[0], spec.aligned, depth, 0)
        self.b = _Operand(self.kernel, "b", inside[1], spec.aligned, depth, self.a.bytes)

    @property
    def shared_bytes(self) -> int:
        """What both operands take, and the sums, which lie where these were."""
        return max(self.a.bytes + self.b.bytes, TILE * _SUMS_LINE)

    def write(self) -> None:
        """The whole kernel."""
        kernel, cluster = self.kernel, self.plan.cluster
        self.thread, block = kernel.special_register("tid.x"), kernel.special_register("ctaid.x")
        self.shared = kernel.shared_memory()
        lane = self.thread % 32
        self.own_row, self.own_column, self.group = self.thread // 32, lane % _OWN, lane // _OWN
        m, n, k = (kernel.parameter(name) for name in ("m", "n", "k"))
        tile = Tile.at_number(block // cluster, (m, n), self.spec, self.plan)
        self.rank = block % cluster
        run = self.plan.stages * STEP
        first = self.rank * run
        last = k.minimum(first + run)
        self.a.prepare(self.thread, self.shared, (tile.row, first), (m, last), tile.batch)
        self.b.prepare(self.thread, self.shared, (tile.column, first), (n, last), tile.batch)
        for step in range(_AHEAD):
            self._begin_copies(step)
        self._store_sums(self._sums())
        self._finish(tile, (m, n))

    def _begin_copies(self, step: int) -> None:
        """Begin the copies of a step; behind the last one of nothing, so that waits are alike."""
        if step < self.plan.stages:
            self.a.copy(step)
            self.b.copy(step)
        self.kernel.do("cp.async.commit_group")

    def _sums(self) -> list[list[Value]]:
        """The thread's sums over its group's part of the block's run, by row and column."""
        kernel = self.kernel
        left = self.a.first_address(self.shared, self.own_row, self.group)
        right = self.b.first_address(self.shared, self.own_column, self.group)
        sums = [[kernel.variable("f32", 0.0, "sum") for _ in range(_OWN)] for _ in range(_OWN)]
        for step in range(self.plan.stages):
            kernel.do(f"cp.async.wait_group {_AHEAD - 1}")
            kernel.do("bar.sync", 0)
            self._begin_copies(step + _AHEAD)
            rows, columns = self.a.numbers(left, step), self.b.numbers(right, step)
            for number in range(STEP // _GROUPS):
                for line, x in zip(sums, rows, strict=True):
                    for total, y in zip(line, columns, strict=True):
                        kernel.do("fma.rn.f32", total, x[number], y[number], total)
        return sums

    def _store_sums(self, sums: list[list[Value]]) -> None:
        """Put the block's sums where its operands were, by row and column of the tile.

        Of what two groups have, one keeps the even rows and the other the odd ones, then columns.
        """
        kernel = self.kernel
        kernel.do("bar.sync", 0)
        odd_row, odd_column = self.group % 2, self.group // 2
        by_column = _halves(kernel, odd_row, 8, sums)
        kept = _halves(
            kernel, odd_column, 16, [list(each) for each in zip(*by_column, strict=True)]
        )
        for j, totals in enumerate(kept):
            column = self.shared + self.b.row(self.own_column, odd_column + 2 * j) * 4
            for i, total in enumerate(totals):
                row = self.a.row(self.own_row, odd_row + 2 * i)
                kernel.do("st.shared.f32", at(column + row * _SUMS_LINE), total)

    def _finish(self, tile: Tile, limits: tuple[Value, Value]) -> None:
        """Add up this block's rows of the tile, eight at a time, and do what follows."""
        kernel, cluster = self.kernel, self.plan.cluster
        self._wait_for_all()
        turns = TILE // _ROWS
        for first in range(0, turns, cluster):
            is_last = first + cluster > turns  # not for all blocks of the cluster
            with kernel.when(self.rank + first < turns) if is_last else nullcontext():
                self._add_up(tile, limits, (self.rank + first) * _ROWS)
        if cluster > 1:  # others may still read this block's shared memory
            kernel.do("barrier.cluster.arrive.relaxed.aligned")
            kernel.do("barrier.cluster.wait.aligned")

    def _add_up(self, tile: Tile, limits: tuple[Value, Value], first_row: Value) -> None:
        """Eight rows of the tile: each thread a pair of neighbours, of all blocks in order."""
        row, column = first_row + self.thread // 32, (self.thread % 32) * 2
        own = self.shared + row * _SUMS_LINE + column * 4
        totals, *others = [self._pair(own, part) for part in range(self.plan.cluster)]
        for other in others:
            totals = [total + value for total, value in zip(totals, other, strict=True)]
        epilogue = DirectEpilogue(
            self.kernel, self.spec, self.layout.parameters, row, column, [0], [0], limits
        )
        epilogue.prepare()
        epilogue.finish(tile, totals)

    def _pair(self, own: Value, part: int) -> list[Value]:
        """Two neighbours of one block of the cluster."""
        kernel, space, place = self.kernel, "shared", own
        if self.plan.cluster > 1:
            space = "shared::cluster"
            place = kernel.let("u32", "mapa.shared::cluster.u32", own, part)
        pair = kernel.registers("f32", "part", 2)
        kernel.do(f"ld.{space}.v2.f32", braces(pair), at(place))
        return pair

    def _wait_for_all(self) -> None:
        """Wait until all threads of the cluster are here, and see what they wrote."""
        if self.plan.cluster == 1:
            self.kernel.do("bar.sync", 0)
            return
        self.kernel.do("barrier.cluster.arrive.aligned")
        self.kernel.do("barrier.cluster.wait.aligned")


def _halves(
    kernel: Kernel, is_odd: Value, distance: int, lines: list[list[Value]]
) -> list[list[Value]]:
    """Sums with the lane at a distance: this one gets the even lines, or where it is odd those."""
    takes_odd = is_odd.equals(1)
    found = []
    for even, odd in zip(lines[::2], lines[1::2], strict=True):
        line = []
        for x, y in zip(even, odd, strict=True):
            kept = kernel.select(takes_odd, y, x, "f32")
            given = kernel.select(takes_odd, x, y, "f32")
            other = kernel.let("f32", "shfl.sync.bfly.b32", given, distance, 31, -1)
            line.append(kept + other)
        found.append(line)
    return found
