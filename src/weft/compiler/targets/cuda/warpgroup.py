"""What Hopper has for matrix products: barriers, bulk copies, products of whole warpgroups.

Tiles lie in shared memory as bulk copies leave them: rows of 128 bytes, whose 16-byte units are
swizzled. Eight such rows are an atom of 1,024 bytes. An operand is read along its rows (the axis
that is summed over lies along the row) or across them (the other axis lies along the row), which
its descriptor and two bits of the instruction say.

Accumulators of a product m64nN lie over the 128 threads of a warpgroup like this: register
`4 j + 2 h + t` of a thread is row `16 warp + lane / 4 + 8 h`, column `8 j + 2 (lane % 4) + t`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.targets.cuda.products.description import FLOAT8_PAIRS
from weft.compiler.targets.cuda.ptx_writer import Kernel, Operand, Value, at, braces
from weft.core.records import frozen

__all__ = [
    "ATOM_BYTES", "ROW_BYTES", "Ring", "Thread", "bulk_load", "bulk_store", "bulk_window_load",
    "descriptor", "initialize_barrier", "packed_pair", "spin_until", "store_pairs", "unpacked_pair",
    "warpgroup_barrier", "warpgroup_product",
]  # fmt: skip

ROW_BYTES = 128
ATOM_BYTES = 8 * ROW_BYTES
# Swizzle of 128 bytes; atoms that follow along the rows' other axis are 1,024 bytes apart.
_DESCRIPTOR = (1 << 62) | ((ATOM_BYTES >> 4) << 32)
# Instructions spell the operands' types, and how far one instruction goes along the summed axis.
_PRODUCT_TYPES = {
    "bfloat16": ("bf16.bf16", 16), "float16": ("f16.f16", 16), "tfloat32": ("tf32.tf32", 8),
} | {pair: (".".join(formats), 32) for pair, formats in FLOAT8_PAIRS.items()}  # fmt: skip
_PAIR_TYPES = {"bfloat16": "bf16x2", "float16": "f16x2"}


@frozen(slots=False)
class Thread:
    """Where a thread of a consumer stands: its warpgroup, and its place among accumulators."""

    index: Value  # in the warpgroup, 0 to 127
    lane: Value
    row: Value  # of its first accumulator in the warpgroup's 64
    column: Value  # of its first accumulator in 8
    leads: Value  # the predicate that it is the warpgroup's first thread

    @classmethod
    def of_number(cls, kernel: Kernel, thread: Value) -> Thread:
        """From the thread's number in its block."""
        index, lane = thread & 127, thread & 31
        row = (index >> 5) * 16 + (lane >> 2)
        return cls(index, lane, row, (lane & 3) * 2, index.equals(0))


@dataclass
class Ring:
    """Stages of shared memory that one side fills and the other empties, in turn.

    Each stage has a barrier `full`, on which copies complete, and a barrier `empty`, at which
    readers arrive. Both sides hold the stage they are at and the parity of their round.
    """

    kernel: Kernel
    barriers: Value  # address: full of all stages, then empty of all stages
    stages: int
    stage: Value
    parity: Value

    @classmethod
    def at_first_stage(cls, kernel: Kernel, barriers: Value, stages: int) -> Ring:
        """A ring at its first stage."""
        stage, parity = kernel.variable("u32", 0, "stage"), kernel.variable("u32", 0, "parity")
        return cls(kernel, barriers, stages, stage, parity)

    @staticmethod
    def barrier_bytes(stages: int) -> int:
        """How much shared memory a ring's barriers take."""
        return 16 * stages

    def initialize(self, readers: int) -> None:
        """Prepare the barriers, once, in one thread; `readers` arrive at each empty stage."""
        for stage in range(self.stages):
            initialize_barrier(self.kernel, self.barriers, 1, 8 * stage)
            initialize_barrier(self.kernel, self.barriers, readers, 8 * (self.stages + stage))

    def full_barrier(self) -> Value:
        """The address of this stage's barrier for copies."""
        return self.barriers + self.stage * 8

    def begin_fill(self, size: int) -> Value:
        """Wait until the stage is empty and announce bytes; returns the barrier of the copies."""
        full = self.full_barrier()
        spin_until(self.kernel, full, self.parity ^ 1, 8 * self.stages)
        self.kernel.do("mbarrier.arrive.expect_tx.shared::cta.b64", "_", at(full), size)
        return full

    def wait_full(self) -> Value:
        """Wait until the stage's copies are there; returns the address of its empty barrier."""
        full = self.full_barrier()
        spin_until(self.kernel, full, self.parity)
        return full + 8 * self.stages

    def advance(self) -> None:
        """Go to the next stage."""
        kernel = self.kernel
        following = self.stage + 1
        wraps = following.equals(self.stages)
        kernel.assign(self.stage, kernel.select(wraps, 0, following))
        kernel.assign(self.parity, self.parity ^ kernel.select(wraps, 1, 0))

    def skip(self, count: Value) -> None:
        """Go on by several stages, which another reader empties."""
        kernel = self.kernel
        ahead = self.stage + count
        kernel.assign(self.parity, self.parity ^ ((ahead // self.stages) & 1))
        kernel.assign(self.stage, ahead % self.stages)


def initialize_barrier(kernel: Kernel, barrier: Value, arrivals: int, offset: int = 0) -> None:
    """Prepare a barrier that completes after so many arrivals."""
    kernel.do("mbarrier.init.shared::cta.b64", at(barrier, offset), arrivals)


def spin_until(kernel: Kernel, barrier: Value, parity: Value, offset: int = 0) -> None:
    """Wait until a barrier has completed the phase of that parity."""
    again = kernel.label("wait")
    kernel.place(again)
    done = kernel.let(
        "pred", "mbarrier.try_wait.parity.shared::cta.b64", at(barrier, offset), parity
    )
    kernel.jump(again, ~done)


def warpgroup_barrier(kernel: Kernel, number: Operand) -> None:
    """Wait for the other threads of the warpgroup, at the barrier of that number."""
    kernel.do("bar.sync", number, 128)


def bulk_load(
    kernel: Kernel, source: Value, coordinates: Sequence[Operand], target: Value, barrier: Value
) -> None:
    """Start a copy of a box of a tensor map into shared memory; it completes on the barrier."""
    kernel.do(
        f"cp.async.bulk.tensor.{len(coordinates)}d"
        ".shared::cluster.global.tile.mbarrier::complete_tx::bytes",
        at(target),
        f"[{source}, {braces(coordinates)}]",
        at(barrier),
    )


def bulk_window_load(
    kernel: Kernel,
    source: Value,
    coordinates: Sequence[Operand],
    offsets: Sequence[Value],
    target: Value,
    barrier: Value,
) -> None:
    """Start a copy of a tap of windows into shared memory; it completes on the barrier.

    `coordinates` are the first channel, the first place along each axis from the last, and its
    image; `offsets` say how far the tap is from the place, in the same order.
    """
    short = [kernel.let("b16", "cvt.u16.u32", offset) for offset in offsets]
    kernel.do(
        f"cp.async.bulk.tensor.{len(coordinates)}d"
        ".shared::cluster.global.im2col.mbarrier::complete_tx::bytes",
        at(target),
        f"[{source}, {braces(coordinates)}]",
        at(barrier),
        braces(short),
    )


def bulk_store(
    kernel: Kernel, target: Value, coordinates: Sequence[Operand], source: Value
) -> None:
    """Start a copy of a box out of shared memory; it belongs to the next group committed."""
    kernel.do(
        f"cp.async.bulk.tensor.{len(coordinates)}d.global.shared::cta.tile.bulk_group",
        f"[{target}, {braces(coordinates)}]",
        at(source),
    )


def descriptor(kernel: Kernel, address: Value, chunk_bytes: int = 16) -> Value:
    """How a product instruction names a swizzled tile that starts at an address.

    `chunk_bytes` is how far two chunks of 128-byte rows are apart, for operands that are read
    across their rows and are wider than one row.
    """
    field = kernel.let("u64", "cvt.u64.u32", (address & 0x3FFFF) >> 4)
    return field | (_DESCRIPTOR | ((chunk_bytes >> 4) << 16))


def warpgroup_product(
    kernel: Kernel,
    accumulators: Sequence[Value],
    a: Value | Sequence[Value],
    b: Value,
    adds: Value,
    dtype: str,
    across: tuple[bool, bool] = (False, False),
) -> None:
    """One product of a warpgroup: 64 rows, as many columns as there are accumulators for.

    `dtype` is that of both operands, or a pair of 8-bit floats, which are read along their rows
    alone. `a` is a descriptor or four registers of pairs; `adds` is the predicate that the product
    is added to the accumulators instead of replacing them; `across` says which operands are read
    across their rows in shared memory.
    """
    spelled, depth = _PRODUCT_TYPES[dtype]
    columns = 2 * len(accumulators)
    scales: list[Operand] = [1, 1]
    left: Operand = a if isinstance(a, Value) else braces(a)
    if depth == 16:
        scales += [int(across[1])] if not isinstance(a, Value) else [int(side) for side in across]
    kernel.do(
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{spelled}",
        braces(accumulators),
        left,
        b,
        adds,
        *scales,
    )


def packed_pair(kernel: Kernel, dtype: str, low: Value, high: Value) -> Value:
    """Two float32 as a pair of a 16-bit dtype, in one register."""
    return kernel.let("b32", f"cvt.rn.{_PAIR_TYPES[dtype]}.f32", high, low)


def unpacked_pair(kernel: Kernel, dtype: str, pair: Value) -> list[Value]:
    """The two float32 of a pair of a 16-bit dtype."""
    if dtype == "bfloat16":
        low, high = pair << 16, pair & 0xFFFF0000
        return [kernel.let("f32", "mov.b32", bits) for bits in (low, high)]
    halves = kernel.registers("b16", "half", 2)
    kernel.do("mov.b32", braces(halves), pair)
    return [kernel.let("f32", "cvt.f32.f16", half) for half in halves]


def store_pairs(
    kernel: Kernel, thread: Thread, start: Value, chunk_bytes: int, pairs: Sequence[Value]
) -> None:
    """Write packed accumulators into shared memory, in chunks of swizzled rows of 128 bytes.

    `start` is the address of the warpgroup's first row; pair `2 j + h` is that of accumulators
    `4 j + 2 h` and the next. Eight columns are a unit of 16 bytes, 64 are a chunk.
    """
    swizzle = (thread.row & 7) * 16
    corner = start + thread.row * ROW_BYTES + thread.column * 2
    for j in range(len(pairs) // 2):
        chunk, inside = divmod(j, 8)
        target = (swizzle ^ (16 * inside)) + corner
        for h in (0, 1):
            offset = chunk * chunk_bytes + 8 * h * ROW_BYTES
            kernel.do("st.shared.b32", at(target, offset), pairs[2 * j + h])
