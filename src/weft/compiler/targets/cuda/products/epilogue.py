"""What happens to a tile's sums before they are stored: an epilogue's steps, in registers.

Results go out in one of two ways. In bulk, a warpgroup writes 64 rows of 128 bytes into a swizzled
chunk of shared memory, from which a bulk copy goes on beside the next tile; each stored matrix has
chunks of its own. Directly, each thread stores its pairs under a mask, which any alignment allows.

Vectors along a row are read before the sums begin and wait in registers. The first matrix that an
epilogue reads is copied in bulk at that time, too, into the chunks that the result leaves from:
each thread finds its elements where it will write them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.targets.cuda.products.description import (
    Constant,
    Matrix,
    Operand,
    Plan,
    ProductSpec,
    Scalar,
    Step,
    Sum,
    Vector,
    dtype_bytes,
    operands_of,
)
from weft.compiler.targets.cuda.products.direct import DirectEpilogue, Fragment, Tile
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
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
    Thread,
    bulk_load,
    bulk_store,
    packed_pair,
    spin_until,
    unpacked_pair,
    warpgroup_barrier,
)
from weft.core.records import frozen

__all__ = ["CHUNK_BYTES", "EpilogueLayout", "WarpgroupEpilogue"]

CHUNK_ROWS = 64
CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES
MOST_CHUNKS = 4  # of one warpgroup in shared memory


@frozen(slots=False)
class EpilogueLayout:
    """What an epilogue needs of its kernel: parameters and shared memory."""

    spec: ProductSpec
    plan: Plan

    @property
    def chunk_columns(self) -> int:
        """Columns of the result in one chunk."""
        return ROW_BYTES // dtype_bytes(self.spec.output)

    @property
    def chunks(self) -> int:
        """Chunks that a tile's columns are."""
        return self.plan.tile_n // self.chunk_columns

    @property
    def slots(self) -> int:
        """Chunks of one warpgroup that shared memory has room for."""
        return self.slots_each * len(self.bulk_outputs) * self.staged_blocks

    @property
    def staged_blocks(self) -> int:
        """Blocks of 64 rows whose staged matrix is copied at once; of float32 it is one."""
        is_short = dtype_bytes(self.spec.output) == 2
        return self.plan.blocks_of_rows if self.staged_matrix and is_short else 1

    @property
    def staged_matrix(self) -> Matrix | None:
        """The matrix whose tile is copied in bulk into the chunks of the result."""
        fits = self.plan.bulk and self.spec.aligned_output and self.chunks <= MOST_CHUNKS
        for matrix in self.spec.matrices if fits and not self.plan.split else []:
            if matrix.dtype == self.spec.output:
                return matrix
        return None

    @property
    def bulk_outputs(self) -> list[str]:
        """The results that leave by bulk copies."""
        if not (self.plan.bulk and self.spec.aligned_output):
            return []
        names = [each.name for each in self.spec.outputs if each.dtype == self.spec.output]
        return ["out"] if self.staged_matrix else [*names[-MOST_CHUNKS:]]

    @property
    def slots_each(self) -> int:
        """Chunks of each result that shared memory has room for; they divide a tile's chunks."""
        room = max(1, MOST_CHUNKS // max(1, len(self.bulk_outputs)))
        return max(count for count in range(1, room + 1) if self.chunks % count == 0)

    @property
    def group(self) -> int:
        """Chunks of each result that are computed between two barriers.

        Sums and masked loads need registers of their own, so they are made chunk by chunk.
        """
        sums = any(isinstance(step, Sum) for step in self.spec.epilogue)
        loads = any(matrix != self.staged_matrix for matrix in self.spec.matrices)
        directs = len(self.bulk_outputs) < len(self.spec.outputs)
        return 1 if sums or loads or directs else self.slots_each

    @property
    def vectors(self) -> list[Vector]:
        """Vectors with a number for each column."""
        return [each for each in self._all_vectors if each.per == "column"]

    @property
    def _all_vectors(self) -> list[Vector]:
        return list(dict.fromkeys([each for each in self._read if isinstance(each, Vector)]))

    @property
    def _read(self) -> list[Operand]:
        return [each for step in self.spec.epilogue for each in operands_of(step)]

    @property
    def has_row_sums(self) -> bool:
        """Whether sums cross the warps of a warpgroup."""
        return any(isinstance(step, Sum) and step.over == "rows" for step in self.spec.epilogue)

    @property
    def scratch_bytes(self) -> int:
        """Shared memory of one warpgroup beside its chunks."""
        return 4 * self.plan.tile_n * (len(self.vectors) + 4 * self.has_row_sums)

    @property
    def parameters(self) -> list[Parameter]:
        """What a launch must pass for the epilogue."""
        axes = ("n", "m", "batch")[: 3 if self.spec.batched else 2]
        box = (self.chunk_columns, CHUNK_ROWS, 1)[: len(axes)]
        found: list[Parameter] = []
        for matrix in [*self.spec.outputs, *self.spec.matrices]:
            if matrix.name in self.bulk_outputs or matrix == self.staged_matrix:
                found.append(TensorMap(matrix.name, matrix.dtype, axes, box))
            else:
                strides = [f"{matrix.name}_stride"]
                strides += [f"{matrix.name}_batch_stride"] if self.spec.batched else []
                found += [Pointer(matrix.name), *map(Word, strides)]
        names = [each.name for each in self._all_vectors]
        names += [each.name for each in self._read if isinstance(each, Scalar)]
        names += [step.name for step in self.spec.epilogue if isinstance(step, Sum)]
        return found + [Pointer(name) for name in dict.fromkeys(names)]


class WarpgroupEpilogue(DirectEpilogue):
    """Writes the epilogue of one warpgroup's tiles into a kernel."""

    def __init__(
        self,
        kernel: Kernel,
        layout: EpilogueLayout,
        thread: Thread,
        barrier: Value,
        places: tuple[Value, Value, Value],
        limits: tuple[Value, Value],
    ) -> None:
        """`barrier` is the number of the warpgroup's own.

        `places` are addresses in shared memory: of the warpgroup's chunks, of its scratch, and of
        the barrier on which the staged matrix arrives.
        """
        columns = range(0, layout.plan.tile_n, 8)
        super().__init__(
            kernel,
            layout.spec,
            layout.parameters,
            thread.row,
            thread.column,
            (0, 8),
            columns,
            limits,
        )
        self.layout, self.thread, self.barrier = layout, thread, barrier
        self.chunks, self.scratch, self.arrival = places

    def prepare(self) -> None:
        """Code before the first tile."""
        super().prepare()
        kernel, row = self.kernel, self.thread.row
        self._early: dict[str, list[Value]] = {}
        self._block = 0  # of 64 rows, in a tile
        # The pair of a vector that was read last, for the next row of the same columns.
        self._pairs: dict[tuple[str, int], list[Value]] = {}
        self.parity = kernel.variable("u32", 0, "staged_parity")
        # Units of 16 bytes are swizzled by the row; a pair is 4 bytes, or 8 of float32.
        quad = self.thread.column >> 1
        swizzle = row & 7
        if dtype_bytes(self.spec.output) == 2:
            inside = quad * 4
        else:
            inside, swizzle = (quad & 1) * 8, swizzle ^ (quad >> 1)
        self._swizzle = swizzle * 16
        self._corner = self.chunks + row * ROW_BYTES + inside

    # Before the sums.

    def begin(self, tile: Tile, block: int = 0) -> None:
        """Code before a tile's sums: start to read what the epilogue will need.

        The staged matrix is read for several blocks of 64 rows at once, with the first of them.
        """
        kernel = self.kernel
        self._early, self._block = {}, block
        for operand in [each for step in self.spec.epilogue for each in operands_of(step)]:
            if isinstance(operand, Vector) and operand.name not in self._early:
                self._early[operand.name] = self._vector_part(operand, tile)
            elif isinstance(operand, Scalar) and operand.name not in self._early:
                place = self.values[operand.name]
                self._early[operand.name] = [kernel.let("f32", "ld.global.f32", at(place))]
        if self.layout.staged_matrix and block % self.layout.staged_blocks == 0:
            with kernel.when(self.thread.leads):
                self._copy_staged(tile)

    def _vector_part(self, vector: Vector, tile: Tile) -> list[Value]:
        """What this thread reads of a vector: its two rows, or its share of the columns."""
        if vector.per == "row":
            rows = [tile.row + self.thread.row + 8 * h for h in (0, 1)]
            return [self._raw_element(vector, row, row < self.limits[0]) for row in rows]
        tile_n, parts = self.layout.plan.tile_n, []
        for first in range(0, tile_n, 128):
            place = self.thread.index + first
            column = tile.column + place
            inside = column < self.limits[1]
            parts.append(self._raw_element(vector, column, inside & (place < tile_n)))
        return parts

    def _copy_staged(self, tile: Tile) -> None:
        kernel, layout = self.kernel, self.layout
        assert layout.staged_matrix is not None
        kernel.do("cp.async.bulk.wait_group.read 0")
        size = layout.slots * CHUNK_BYTES
        kernel.do("mbarrier.arrive.expect_tx.shared::cta.b64", "_", at(self.arrival), size)
        for slot in range(layout.slots):
            block, chunk = divmod(slot, layout.chunks)
            column, row, *rest = self._coordinates(tile, chunk)
            target = self.chunks + slot * CHUNK_BYTES
            source = self.values[layout.staged_matrix.name]
            coordinates = [column, row + CHUNK_ROWS * block, *rest]
            bulk_load(kernel, source, coordinates, target, self.arrival)

    def _coordinates(self, tile: Tile, chunk: int) -> list[Value]:
        column = tile.column + chunk * self.layout.chunk_columns
        return [column, tile.row, *([tile.batch] if tile.batch else [])]

    # After the sums.

    def finish(self, tile: Tile, sums: Sequence[Value]) -> None:
        """Code after a tile's sums: the steps, and the stores."""
        layout = self.layout
        column_sums = [
            step
            for step in layout.spec.epilogue
            if isinstance(step, Sum) and step.over == "columns"
        ]
        self._column_sums = {
            step.name: [self.kernel.variable("f32", 0.0) for _ in (0, 1)] for step in column_sums
        }
        self._pairs = {}
        self._spread_vectors()
        if layout.staged_matrix and self._block % layout.staged_blocks == 0:
            spin_until(self.kernel, self.arrival, self.parity)
            self.kernel.assign(self.parity, self.parity ^ 1)
        per_group = layout.group * layout.chunk_columns // 8 if layout.bulk_outputs else 8
        for first in range(0, layout.plan.tile_n // 8, per_group):
            fragments = [
                Fragment(j, h, [sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]])
                for j in range(first, first + per_group)
                for h in (0, 1)
            ]
            self.run_steps(tile, fragments)
        for step in column_sums:
            self._store_column_sums(tile, step)

    def _spread_vectors(self) -> None:
        """Put the threads' shares of vectors where all threads find them."""
        kernel, tile_n = self.kernel, self.layout.plan.tile_n
        if not self.layout.vectors:
            return
        warpgroup_barrier(kernel, self.barrier)
        for number, vector in enumerate(self.layout.vectors):
            for part, value in enumerate(self._early[vector.name]):
                place = self.scratch + self.thread.index * 4
                target = at(place, 4 * (tile_n * number + 128 * part))
                inside = self.thread.index + 128 * part < tile_n
                number_value = self._float(vector.dtype, value)
                kernel.do("st.shared.f32", target, number_value, when=inside)
        warpgroup_barrier(kernel, self.barrier)

    def _operand(self, tile: Tile, fragment: Fragment, operand: Operand) -> list[Value]:
        """What is staged or was read early comes from there."""
        kernel = self.kernel
        if isinstance(operand, Constant):
            return super()._operand(tile, fragment, operand)
        if isinstance(operand, Matrix):
            if operand != self.layout.staged_matrix:
                return super()._operand(tile, fragment, operand)
            place = self._chunk_place(fragment, self._first_slot("out"))
            if operand.dtype == "float32":
                both = kernel.registers("f32", "staged", 2)
                kernel.do("ld.shared.v2.f32", braces(both), place)
                return both
            pair = kernel.let("b32", "ld.shared.b32", place)
            return unpacked_pair(kernel, operand.dtype, pair)
        if isinstance(operand, Scalar):
            return self._early[operand.name] * 2
        if operand.per == "row":
            return [self._float(operand.dtype, self._early[operand.name][fragment.h])] * 2
        if (operand.name, fragment.j) in self._pairs:
            return self._pairs[operand.name, fragment.j]
        number = self.layout.vectors.index(operand)
        start = self.scratch + self.thread.column * 4
        offset = 4 * (self.layout.plan.tile_n * number + 8 * fragment.j)
        pair_values = kernel.registers("f32", "vector", 2)
        kernel.do("ld.shared.v2.f32", braces(pair_values), at(start, offset))
        self._pairs = {(operand.name, fragment.j): pair_values}
        return pair_values

    # Stores.

    def _store(
        self, tile: Tile, name: str, fragments: list[Fragment], steps: Sequence[Step]
    ) -> list[Fragment]:
        if name in self.layout.bulk_outputs:
            return self._store_in_bulk(tile, name, fragments, steps)
        return super()._store(tile, name, fragments, steps)

    def _first_slot(self, name: str) -> int:
        place = self.layout.bulk_outputs.index(name)
        if self.layout.staged_matrix:
            place = self._block % self.layout.staged_blocks
        return place * self.layout.slots_each

    def _chunk_place(self, fragment: Fragment, first_slot: int) -> str:
        """Where in the chunks a fragment lies."""
        layout, size = self.layout, dtype_bytes(self.spec.output)
        chunk, pair = divmod(fragment.j * 8, layout.chunk_columns)
        slot = first_slot + chunk % layout.slots_each
        place = (self._swizzle ^ (pair * size)) + self._corner
        return at(place, slot * CHUNK_BYTES + fragment.h * 8 * ROW_BYTES)

    def _store_in_bulk(
        self, tile: Tile, name: str, fragments: list[Fragment], steps: Sequence[Step]
    ) -> list[Fragment]:
        kernel, layout = self.kernel, self.layout
        first_slot = self._first_slot(name)
        if (
            not layout.staged_matrix
        ):  # else the staged copy waited, and its tile lies in these chunks
            # The last store out of these chunks must have been read; later ones may go on.
            later = len(layout.bulk_outputs) * layout.slots_each // layout.group - 1
            with kernel.when(self.thread.leads):
                kernel.do(f"cp.async.bulk.wait_group.read {later}")
            warpgroup_barrier(kernel, self.barrier)
        stored = []
        for some in self._in_batches(fragments):
            for fragment in self._apply_steps(tile, some, steps):
                stored.append(fragment)
                place = self._chunk_place(fragment, first_slot)
                if dtype_bytes(layout.spec.output) == 4:
                    kernel.do("st.shared.v2.f32", place, braces(fragment.values))
                else:
                    pair = packed_pair(kernel, layout.spec.output, *fragment.values)
                    kernel.do("st.shared.b32", place, pair)
        kernel.do("fence.proxy.async.shared::cta")
        warpgroup_barrier(kernel, self.barrier)
        with kernel.when(self.thread.leads):
            first = fragments[0].j * 8 // layout.chunk_columns
            for number in range(layout.group):
                slot = first_slot + (first + number) % layout.slots_each
                source = self.chunks + slot * CHUNK_BYTES
                target = self.values[name]
                bulk_store(kernel, target, self._coordinates(tile, first + number), source)
            kernel.do("cp.async.bulk.commit_group")
        return stored

    # Partial sums.

    def _sum(self, tile: Tile, step: Sum, fragments: list[Fragment]) -> None:
        if step.over == "rows":
            self._store_row_sums(tile, step, fragments)
        else:
            self._add_column_sums(tile, fragments, self._column_sums[step.name])

    def _mask_fragment(self, fragment: Fragment, inside: Value) -> list[Value]:
        return [self.kernel.select(inside, value, 0.0, "f32") for value in fragment.values]

    def _across_lanes(self, value: Value, distances: Sequence[int]) -> Value:
        for distance in distances:
            other = self.kernel.let("f32", "shfl.sync.bfly.b32", value, distance, 31, -1)
            value = value + other
        return value

    def _store_row_sums(self, tile: Tile, step: Sum, fragments: list[Fragment]) -> None:
        """Sums over the warpgroup's 64 rows: in a thread, over lanes, then over the four warps."""
        kernel, tile_n = self.kernel, self.layout.plan.tile_n
        table = self.scratch + 4 * tile_n * len(self.layout.vectors)
        warp = self.thread.index >> 5
        in_rows = [tile.row + self.thread.row + 8 * h < self.limits[0] for h in (0, 1)]
        warpgroup_barrier(kernel, self.barrier)
        for upper, lower in zip(fragments[::2], fragments[1::2], strict=True):
            pairs = zip(
                self._mask_fragment(upper, in_rows[0]),
                self._mask_fragment(lower, in_rows[1]),
                strict=True,
            )
            both = [self._across_lanes(x + y, (4, 8, 16)) for x, y in pairs]
            place = table + (warp * tile_n + self.thread.column) * 4
            target = at(place, 32 * upper.j)
            kernel.do("st.shared.v2.f32", target, braces(both), when=self.thread.lane < 4)
        warpgroup_barrier(kernel, self.barrier)
        count = 8 * len(fragments) // 2
        for first in range(8 * fragments[0].j, 8 * fragments[0].j + count, 128):
            inside = self.thread.index < min(128, count)
            column = self.thread.index + first
            whole = kernel.variable("f32", 0.0)
            for number in range(4):
                part = kernel.variable("f32", 0.0)
                source = at(table + column * 4, 4 * tile_n * number)
                kernel.do("ld.shared.f32", part, source, when=inside)
                whole = whole + part
            self._store_sum(tile, step, tile.column + column, whole, inside)

    def _store_sum(self, tile: Tile, step: Sum, column: Value, whole: Value, inside: Value) -> None:
        kernel, (m, n) = self.kernel, self.limits
        line = tile.row >> 6
        if tile.batch:
            line = line + tile.batch * ((m + 63) >> 6)
        row = kernel.let("u64", "mul.wide.u32", line, n)
        index = row + kernel.let("u64", "cvt.u64.u32", column)
        place = self.values[step.name] + index * 4
        there = inside & (column < n) & (tile.row < m)
        kernel.do("st.global.f32", at(place), whole, when=there)

    def _add_column_sums(self, tile: Tile, fragments: list[Fragment], totals: list[Value]) -> None:
        for fragment in fragments:
            column = self._column(tile, fragment)
            inside = [column + t < self.limits[1] for t in (0, 1)]
            for where, number in zip(inside, fragment.values, strict=True):
                value = self.kernel.select(where, number, 0.0, "f32")
                total = totals[fragment.h]
                self.kernel.assign(total, total + value)

    def _store_column_sums(self, tile: Tile, step: Sum) -> None:
        kernel, (m, n) = self.kernel, self.limits
        tile_n = self.layout.plan.tile_n
        line = tile.number_n
        if tile.batch:
            line = line + tile.batch * ((n + (tile_n - 1)) // tile_n)
        for h, part in enumerate(self._column_sums[step.name]):
            whole = self._across_lanes(part, (1, 2))
            row = tile.row + self.thread.row + 8 * h
            first = kernel.let("u64", "mul.wide.u32", line, m)
            index = first + kernel.let("u64", "cvt.u64.u32", row)
            place = self.values[step.name] + index * 4
            there = (row < m) & self.thread.column.equals(0)
            kernel.do("st.global.f32", at(place), whole, when=there)
