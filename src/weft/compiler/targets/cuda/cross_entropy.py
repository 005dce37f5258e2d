"""Softmax of logits with the gradient of its cross entropy: logits are read and written once.

A block holds whole rows of logits in shared memory, one or two at a time. A warp of its own copies
rows in and gradients out in bulk; the other threads go over a row three times while it lies there:
its highest number, the sum of its exponentials, and its gradient, softmax · factor with a term
added at the label, which takes the row's place. Highest numbers and sums are results, too: losses
are computed of them and of the logits at the labels. A label that is no column has no term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from functools import cache

from weft.compiler.graph_passes.cross_entropy import CrossEntropyFusion, softmax_gradient
from weft.compiler.plan.launch import Kind, Launch, no_numbers, one, static_shape
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.parameters import written_kernel_run
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
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.walking import Tally

__all__ = [
    "CrossEntropyKernel", "CrossEntropySpec", "cross_entropy_kernel", "cross_entropy_launch",
    "fuse_cross_entropy", "is_cross_entropy",
]  # fmt: skip

_THREADS = 512  # that compute
_WARPS = _THREADS // 32
_SHARED_BYTES = 227 * 1024
_VECTOR_BYTES = 16
_PAIRS = 4  # of 16-bit numbers in a vector
_HIGHEST = {"bfloat16": "max.bf16x2", "float16": "max.f16x2"}
_LOWEST_PAIR = {"bfloat16": 0xFF80FF80, "float16": 0xFC00FC00}
FEWEST_COLUMNS = 4096
"""Shorter rows are held in registers by loops."""


@frozen(slots=False)
class CrossEntropySpec:
    """Logits [rows, columns] of a dtype; labels of 64-bit integers, all else of float32."""

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
    """`top`, `total` and `gradient` from `logits`, and rows' `labels`, `terms` and `factors`."""
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


def holds_rows(kind: TensorType) -> bool:
    """Whether logits of a type are held by rows: long ones of 16-bit floats that fit."""
    rows, columns = kind.shape
    if not isinstance(rows, int) or not isinstance(columns, int) or rows == 0:
        return False
    if columns < FEWEST_COLUMNS or kind.dtype.name not in _HIGHEST:
        return False
    return columns % (_VECTOR_BYTES // 2) == 0 and 2 * columns + 256 <= _SHARED_BYTES


class _HeldRows(CrossEntropyFusion):
    def is_held(self, logits: TensorType) -> bool:
        return holds_rows(logits)


def fuse_cross_entropy(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with softmax and gradient as one node, where a multiprocessor holds a row."""
    return _HeldRows(graph, tally).run()


def is_cross_entropy(node: GraphNode) -> bool:
    """Whether a node is a softmax with its gradient that the kernel is for."""
    return node.primitive is softmax_gradient and holds_rows(node.operands[0].type)


def cross_entropy_launch(node: GraphNode) -> Launch:
    """The launch of a softmax with its gradient, which may lie where the logits do."""
    logits, gradient = node.operands[0], node.results[2]
    values = (*node.operands[:4], *node.results, *node.operands[4:])
    return Launch(
        Kind.LOOP, "softmax gradient", ("softmax_gradient",), values,
        node.results, no_numbers, one, one,
        in_place=() if isinstance(logits, Literal) else ((gradient, logits),),
    )  # fmt: skip


@binder("softmax_gradient")
def bind_cross_entropy(binding: Binding, launch: Launch) -> Run:
    """What runs a softmax with its gradient."""
    values = dict(zip(_ARRAYS, launch.values[: len(_ARRAYS)], strict=True))
    kind = launch.values[0].type
    rows, columns = static_shape(kind.shape, binding.sizes)
    kernel = _kernel_of(CrossEntropySpec(kind.dtype.name, columns))
    blocks = min(rows, binding.stream.device.multiprocessors)
    return written_kernel_run(binding, launch, kernel, blocks, (values, {}, {"rows": rows}))


@cache
def _kernel_of(spec: CrossEntropySpec) -> CrossEntropyKernel:
    return cross_entropy_kernel(spec)


_ARRAYS = ("logits", "labels", "terms", "factors", "top", "total", "gradient")
"""The kernel's arrays, in the order of the primitive's operands and results."""


class _Writer:
    """Writes the kernel: one thread moves rows, the others compute on those that are there."""

    def __init__(self, spec: CrossEntropySpec) -> None:
        self.spec = spec
        parameters: list[Parameter] = [*map(Pointer, _ARRAYS), Word("rows")]
        self.kernel = Kernel("cross_entropy", parameters, _THREADS + 32)
        # Behind the rows: one number for each warp, then barriers: full and done of each buffer.
        self.scratch = spec.buffers * spec.row_bytes
        self.barriers = self.scratch + 4 * _WARPS
        self.size = self.barriers + 16 * spec.buffers

    def write(self) -> None:
        """The whole kernel: barriers, then the thread that moves and those that compute."""
        kernel = self.kernel
        self.thread = kernel.special_register("tid.x")
        self.shared = kernel.shared_memory()
        self.rows = kernel.parameter("rows")
        self.blocks = kernel.special_register("nctaid.x")
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
        self._for_each_row(self._compute)
        kernel.place(finish)

    def _for_each_row(self, write: Callable[[Value, Value, Value], None]) -> None:
        """Rows of a block in turn, with the address of their buffer's barriers and the parity."""
        kernel = self.kernel
        row = kernel.variable("u32", kernel.special_register("ctaid.x"), "row")
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
        first = kernel.special_register("ctaid.x")
        for buffer in range(self.spec.buffers):
            row = first + self.blocks * buffer
            place = self.shared + buffer * self.spec.row_bytes
            with kernel.when(row < self.rows):
                self._load(row, place, self.shared + (self.barriers + 16 * buffer))
        self._for_each_row(self._move_row)
        kernel.do("cp.async.bulk.wait_group 0")

    def _move_row(self, row: Value, buffer: Value, parity: Value) -> None:
        """When a row is done: store its gradient, then load the row that takes its buffer."""
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
        """Start to copy a row's logits into a buffer."""
        kernel, size = self.kernel, self.spec.row_bytes
        kernel.do("mbarrier.arrive.expect_tx.shared::cta.b64", "_", at(full), size)
        copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        kernel.do(copy, at(place), at(self._row_address("logits", row)), size, at(full))

    def _row_address(self, name: str, row: Value) -> Value:
        """Where a row of an array begins."""
        kernel = self.kernel
        offset = kernel.let("u64", "mul.wide.u32", row, self.spec.row_bytes)
        return kernel.parameter(name) + offset

    # The threads that compute.

    def _compute(self, row: Value, buffer: Value, parity: Value) -> None:
        """A row: its highest logit, its sum, and the gradient in the place of its logits."""
        kernel, base = self.kernel, math.log2(math.e)
        self.place = self.shared + buffer * self.spec.row_bytes
        full = self.shared + self.barriers + buffer * 16
        label_place = kernel.address(kernel.parameter("labels"), row, 8)
        wide_label = kernel.let("u64", "ld.global.u64", at(label_place))
        known = wide_label < self.spec.columns  # negative labels are large ones here
        label = kernel.select(known, kernel.let("u32", "cvt.u32.u64", wide_label), 0)
        term, factor = (
            kernel.let("f32", "ld.global.f32", at(self._number_place(name, row)))
            for name in ("terms", "factors")
        )
        spin_until(kernel, full, parity)
        logit_place = self.place + label * 2
        labelled = self._number(logit_place)
        highest = self._highest_logit()
        shift = highest * -base
        total = self._sum(shift)
        ratio = kernel.let("f32", "div.rn.f32", factor, total)
        leads = self.thread.equals(0)
        for name, value in (("top", highest), ("total", total)):
            place = self._number_place(name, row)
            kernel.do("st.global.f32", at(place), value, when=leads)
        self._gradient(shift, ratio)
        self._barrier()
        # The label's own gradient, from its logit in full precision.
        power = kernel.let("f32", "ex2.approx.ftz.f32", kernel.fma(labelled, base, shift))
        own = kernel.fma(power, ratio, term)
        pair = packed_pair(kernel, self.spec.dtype, own, own)
        halves = kernel.registers("b16", "half", 2)
        kernel.do("mov.b32", braces(halves), pair)
        kernel.do("st.shared.b16", at(logit_place), halves[0], when=leads & known)
        kernel.do("fence.proxy.async.shared::cta")
        kernel.do("mbarrier.arrive.shared::cta.b64", "_", at(full, 8))

    def _number_place(self, name: str, row: Value) -> Value:
        """Where the number of a row lies."""
        return self.kernel.address(self.kernel.parameter(name), row, 4)

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
        """The highest logit of the row, known to all threads."""
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

    def _gradient(self, shift: Value, ratio: Value) -> None:
        """factor · 2^(logit · log2 e + shift) / sum, in the place of each logit."""
        kernel, base = self.kernel, math.log2(math.e)

        def take(place: Value, pairs: list[Value]) -> None:
            results = []
            for pair in pairs:
                numbers = [
                    kernel.let("f32", "ex2.approx.ftz.f32", kernel.fma(number, base, shift)) * ratio
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
