"""Cross entropy of logits and labels, forward and gradient in one read and one write of the logits.

A block holds whole rows of logits in shared memory, one or two at a time. A warp of its own copies
rows in and gradients out in bulk; the other threads go over a row three times while it lies there:
its highest number, the sum of its exponentials, its gradient (softmax - label) · scale, which takes
the row's place. The gradient may be written over the logits in memory, too. A row whose label is
not among the columns has loss and gradient zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field

from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
)
from weft.compiler.targets.cuda.warpgroup import (
    initialize_barrier,
    packed_pair,
    spin_until,
    unpacked_pair,
)
from weft.core.errors import UnsupportedError
from weft.core.records import frozen

__all__ = ["CrossEntropyKernel", "CrossEntropySpec", "cross_entropy_kernel"]

_THREADS = 512  # that compute
_WARPS = _THREADS // 32
_SHARED_BYTES = 227 * 1024
_VECTOR_BYTES = 16
_PAIRS = 4  # of 16-bit numbers in a vector
_HIGHEST = {"bfloat16": "max.bf16x2", "float16": "max.f16x2"}
_LOWEST_PAIR = {"bfloat16": 0xFF80FF80, "float16": 0xFC00FC00}


@frozen(slots=False)
class CrossEntropySpec:
    """Logits [rows, columns] of a dtype, labels of 32-bit integers, losses of float32."""

    dtype: str
    columns: int

    def __post_init__(self) -> None:
        if self.dtype not in _HIGHEST or self.row_bytes % _VECTOR_BYTES:
            raise UnsupportedError(
                "cross_entropy",
                "the kernel is for 16-bit floats in rows of whole 16 bytes",
                expected="bfloat16 or float16, and a multiple of 8 columns",
                got={"dtype": self.dtype, "columns": self.columns},
                fix="pad the columns with -inf, or compute it from log_softmax",
            )
        if self.row_bytes + 256 > _SHARED_BYTES:
            raise UnsupportedError(
                "cross_entropy",
                "a row does not fit into the shared memory of a multiprocessor",
                expected=f"at most {(_SHARED_BYTES - 256) // 2} columns",
                got={"columns": self.columns},
                fix="compute it from log_softmax",
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of logits."""
        return 2 * self.columns

    @property
    def buffers(self) -> int:
        """Rows that a block holds."""
        return 2 if 2 * self.row_bytes + 256 <= _SHARED_BYTES else 1


@frozen(slots=False)
class CrossEntropyKernel:
    """A kernel, ready for the driver; its grid is as large as the card, or as there are rows."""

    spec: CrossEntropySpec
    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...] = field(repr=False)


def cross_entropy_kernel(spec: CrossEntropySpec) -> CrossEntropyKernel:
    """`losses` and `gradient` from `logits`, `labels` and `scale`, the gradient's factor."""
    writer = _Writer(spec)
    writer.write()
    kernel = writer.kernel
    return CrossEntropyKernel(
        spec=spec,
        name=kernel.name,
        text=kernel.text(),
        threads=kernel.threads,
        shared_bytes=writer.size,
        parameters=kernel.parameters,
    )


class _Writer:
    def __init__(self, spec: CrossEntropySpec) -> None:
        self.spec = spec
        names = ("logits", "labels", "scale", "losses", "gradient")
        parameters: list[Parameter] = [*map(Pointer, names), Word("rows")]
        self.kernel = Kernel("cross_entropy", parameters, _THREADS + 32)
        # Behind the rows: one number for each warp, then barriers: full and done of each buffer.
        self.scratch = spec.buffers * spec.row_bytes
        self.barriers = self.scratch + 4 * _WARPS
        self.size = self.barriers + 16 * spec.buffers

    def write(self) -> None:
        kernel = self.kernel
        self.thread = kernel.special("tid.x")
        self.shared = kernel.shared_memory()
        self.rows = kernel.parameter("rows")
        self.blocks = kernel.special("nctaid.x")
        with kernel.when(self.thread.equals(0)):
            for buffer in range(self.spec.buffers):
                initialize_barrier(kernel, self.shared, 1, self.barriers + 16 * buffer)
                done = self.barriers + 16 * buffer + 8
                initialize_barrier(kernel, self.shared, _THREADS, done)
            kernel.do("fence.mbarrier_init.release.cluster")
        kernel.do("bar.sync", 0)
        finish = kernel.label("finish")
        with kernel.when(self.thread >= _THREADS):
            with kernel.when(self.thread.equals(_THREADS)):
                self._move_rows()
            kernel.jump(finish)
        self.scale = kernel.let("f32", "ld.global.f32", at(kernel.parameter("scale")))
        self._for_each_row(self._compute)
        kernel.place(finish)

    def _for_each_row(self, write: Callable[[Value, Value, Value], None]) -> None:
        """Rows of a block in turn, with the address of their buffer's barriers and the parity."""
        kernel = self.kernel
        row = kernel.variable("u32", kernel.special("ctaid.x"), "row")
        buffer = kernel.variable("u32", 0, "buffer")
        parity = kernel.variable("u32", 0, "parity")
        with kernel.loop("row") as loop:
            loop.stop_if(row >= self.rows)
            write(row, buffer, parity)
            kernel.assign(row, row + self.blocks)
            following = buffer + 1
            wraps = following.equals(self.spec.buffers)
            kernel.assign(buffer, kernel.select(wraps, 0, following))
            kernel.assign(parity, parity ^ kernel.select(wraps, 1, 0))

    # The warp that copies.

    def _move_rows(self) -> None:
        """Fill all buffers, then for each row: store its gradient, and load into its place."""
        kernel = self.kernel
        first = kernel.special("ctaid.x")
        for buffer in range(self.spec.buffers):
            row = first + self.blocks * buffer
            place = self.shared + buffer * self.spec.row_bytes
            with kernel.when(row < self.rows):
                self._load(row, place, self.shared + (self.barriers + 16 * buffer))
        self._for_each_row(self._move_row)
        kernel.do("cp.async.bulk.wait_group 0")

    def _move_row(self, row: Value, buffer: Value, parity: Value) -> None:
        kernel = self.kernel
        full = self.shared + self.barriers + buffer * 16
        spin_until(kernel, full, parity, 8)
        place = self.shared + buffer * self.spec.row_bytes
        target = self._row_address("gradient", row)
        copy = "cp.async.bulk.global.shared::cta.bulk_group"
        kernel.do(copy, at(target), at(place), self.spec.row_bytes)
        kernel.do("cp.async.bulk.commit_group")
        following = row + self.blocks * self.spec.buffers
        with kernel.when(following < self.rows):
            kernel.do("cp.async.bulk.wait_group.read 0")
            self._load(following, place, full)

    def _load(self, row: Value, place: Value, full: Value) -> None:
        kernel, size = self.kernel, self.spec.row_bytes
        kernel.do("mbarrier.arrive.expect_tx.shared::cta.b64", "_", at(full), size)
        copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        kernel.do(copy, at(place), at(self._row_address("logits", row)), size, at(full))

    def _row_address(self, name: str, row: Value) -> Value:
        kernel = self.kernel
        offset = kernel.let("u64", "mul.wide.u32", row, self.spec.row_bytes)
        return kernel.parameter(name) + offset

    # The threads that compute.

    def _compute(self, row: Value, buffer: Value, parity: Value) -> None:
        kernel, base = self.kernel, math.log2(math.e)
        self.place = self.shared + buffer * self.spec.row_bytes
        full = self.shared + self.barriers + buffer * 16
        label_place = kernel.address(kernel.parameter("labels"), row, 4)
        label = kernel.let("u32", "ld.global.u32", at(label_place))
        known = label < self.spec.columns  # negative labels are large ones here
        spin_until(kernel, full, parity)
        logit_place = self.place + kernel.select(known, label, 0) * 2
        labelled = self._number(logit_place)
        shift = self._highest_logit() * -base
        total = self._sum(shift)
        log_sum = kernel.let("f32", "lg2.approx.ftz.f32", total) - shift
        scale = kernel.select(known, self.scale, 0.0, "f32")
        loss = kernel.fma(log_sum, math.log(2), labelled * -1.0)
        loss = kernel.select(known, loss, 0.0, "f32")
        losses = kernel.address(kernel.parameter("losses"), row, 4)
        leads = self.thread.equals(0)
        kernel.do("st.global.f32", at(losses), loss, when=leads)
        self._gradient(log_sum * -1.0, scale)
        self._barrier()
        # The label's own gradient, from its logit in full precision.
        exponent = kernel.fma(labelled, base, log_sum * -1.0)
        share = kernel.let("f32", "ex2.approx.ftz.f32", exponent)
        own = (share - 1.0) * scale
        pair = packed_pair(kernel, self.spec.dtype, own, own)
        halves = kernel.registers("b16", "half", 2)
        kernel.do("mov.b32", braces(halves), pair)
        kernel.do("st.shared.b16", at(logit_place), halves[0], when=leads & known)
        kernel.do("fence.proxy.async.shared::cta")
        kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(full, 8))

    def _barrier(self) -> None:
        self.kernel.do("bar.sync", 1, _THREADS)

    def _number(self, place: Value) -> Value:
        kernel = self.kernel
        half = kernel.let("b16", "ld.shared.b16", at(place))
        if self.spec.dtype == "float16":
            return kernel.let("f32", "cvt.f32.f16", half)
        return kernel.let("f32", "mov.b32", braces([kernel.variable("b16", 0), half]))

    def _for_each_vector(self, write: Callable[[Value, list[Value]], None]) -> None:
        """The thread's share of the row, 16 bytes at a time."""
        kernel = self.kernel
        place = kernel.variable("u32", self.place + self.thread * _VECTOR_BYTES, "place")
        end = self.place + self.spec.row_bytes
        with kernel.loop("vector") as loop:
            loop.stop_if(place >= end)
            pairs = kernel.registers("b32", "pair", _PAIRS)
            kernel.do("ld.shared.v4.b32", braces(pairs), at(place))
            write(place, pairs)
            kernel.assign(place, place + _THREADS * _VECTOR_BYTES)

    def _highest_logit(self) -> Value:
        kernel, dtype = self.kernel, self.spec.dtype
        highest = kernel.variable("b32", _LOWEST_PAIR[dtype], "highest")

        def take(place: Value, pairs: list[Value]) -> None:
            left, right = (
                kernel.let("b32", _HIGHEST[dtype], *pairs[first : first + 2]) for first in (0, 2)
            )
            four = kernel.let("b32", _HIGHEST[dtype], left, right)
            kernel.do(_HIGHEST[dtype], highest, highest, four)

        self._for_each_vector(take)
        low, high = unpacked_pair(kernel, dtype, highest)
        return self._over_threads(low.maximum(high), "max.f32")

    def _sum(self, shift: Value) -> Value:
        """The sum of 2^(logit · log2 e + shift)."""
        kernel, base = self.kernel, math.log2(math.e)
        totals = [kernel.variable("f32", 0.0, "total") for _ in range(2)]

        def take(place: Value, pairs: list[Value]) -> None:
            for pair in pairs:
                both = unpacked_pair(kernel, self.spec.dtype, pair)
                for total, number in zip(totals, both, strict=True):
                    exponent = kernel.fma(number, base, shift)
                    power = kernel.let("f32", "ex2.approx.ftz.f32", exponent)
                    kernel.do("add.f32", total, total, power)

        self._for_each_vector(take)
        return self._over_threads(totals[0] + totals[1], "add.f32")

    def _gradient(self, shift: Value, scale: Value) -> None:
        kernel, base = self.kernel, math.log2(math.e)

        def take(place: Value, pairs: list[Value]) -> None:
            results = []
            for pair in pairs:
                numbers = [
                    kernel.let("f32", "ex2.approx.ftz.f32", kernel.fma(number, base, shift)) * scale
                    for number in unpacked_pair(kernel, self.spec.dtype, pair)
                ]
                results.append(packed_pair(kernel, self.spec.dtype, *numbers))
            kernel.do("st.shared.v4.b32", at(place), braces(results))

        self._for_each_vector(take)

    def _over_threads(self, value: Value, operation: str) -> Value:
        """One number of all threads, in a fixed order: over lanes, then over warps."""
        kernel = self.kernel
        value = self._over_lanes(value, operation, 16)
        scratch = self.shared + self.scratch
        slot = scratch + (self.thread >> 5) * 4
        kernel.do("st.shared.f32", at(slot), value, when=(self.thread & 31).equals(0))
        self._barrier()
        place = scratch + (self.thread & (_WARPS - 1)) * 4
        part = kernel.let("f32", "ld.shared.f32", at(place))
        whole = self._over_lanes(part, operation, _WARPS // 2)
        self._barrier()  # before the slots are written again
        return whole

    def _over_lanes(self, value: Value, operation: str, distance: int) -> Value:
        kernel = self.kernel
        while distance:
            other = kernel.let("f32", "shfl.sync.bfly.b32", value, distance, 31, -1)
            value = kernel.let("f32", operation, value, other)
            distance //= 2
        return value
