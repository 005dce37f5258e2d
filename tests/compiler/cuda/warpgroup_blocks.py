"""Blocks of threads of a card that is not there: their shared memory, and who touches it when.

What hardware leaves open is an error if it could matter: shared memory that is read or written
while a copy or a product is under way or with nothing that orders the two, registers of products
that are not done, stores that no fence shows to copies and products, two bulk copies to one place
of the card's memory. Order is what barriers, copies' completions and waits give, kept as vector
clocks of warps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.compiler.cuda.ptx_interpreter import SHARED_START

from weft.compiler.targets.cuda.ptx_writer import TensorMap

Array = np.ndarray[Any, Any]
WARP = 32
_BARRIERS = 48
"""The most barriers in shared memory: each is somebody whose writes others wait for."""
READY, ON_BARRIER, AT_NAMED, LEFT = 0, 1, 2, 3
"""What a thread waits for."""


@dataclass
class ArrayMap:
    """What a tensor map says: an array, [outermost, ..., innermost], and the box of a copy."""

    array: Array
    box: tuple[int, ...]
    stores: Array = field(init=False)

    def __post_init__(self) -> None:
        self.stores = np.zeros(self.array.shape, np.int32)

    @classmethod
    def of_parameter(cls, parameter: TensorMap, array: Array) -> ArrayMap:
        """The map of an array whose axes are those of the parameter, the last one innermost."""
        return cls(array, parameter.box)

    def region(self, coordinates: list[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of the array that a box covers, and where in the box that lies."""
        inside, within = [], []
        for first, size, extent in zip(coordinates, self.box, self.array.shape[::-1], strict=True):
            begin, end = max(first, 0), min(first + size, extent)
            inside.append(slice(begin, max(begin, end)))
            within.append(slice(begin - first, max(begin, end) - first))
        return tuple(inside[::-1]), tuple(within[::-1])


@dataclass
class Barrier:
    """A barrier in shared memory."""

    agent: int
    count: int
    clock: Array
    done_clock: Array
    parity: int = 0
    pending: int = 0
    bytes: int = 0


@dataclass
class Product:
    """A product of a warp that may still be under way."""

    sums: list[str]
    left: list[str] | Array
    left_words: Array
    right: Array
    right_words: Array
    adds: bool
    kind: Any
    group: int = -1


@dataclass
class Store:
    """A bulk copy out of shared memory."""

    thread: int
    words: Array
    write: Any
    begin: int = 0
    end: int = 0
    group: int = -1
    is_read: bool = False


def swizzled(addresses: Array) -> Array:
    """Where a byte of rows of 128 bytes lies: units of 16 bytes exchanged by `unit ^ row % 8`."""
    return addresses ^ ((addresses >> 7 & 7) << 4)


class Block:
    """A block of threads; `Program` reads and writes its registers."""

    def __init__(self, run: Any, number: int, blocks: int) -> None:
        program, threads = run.program, run.program.threads
        self.run, self.program, self.memory = run, program, run.memory
        self.warps = threads // WARP
        self.special = {
            "%tid.x": np.arange(threads), "%ctaid.x": np.full(threads, number),
            "%nctaid.x": np.full(threads, blocks), "shared_bytes": np.full(threads, SHARED_START),
        }  # fmt: skip
        self.registers = run.new_registers()
        self.shared = np.full(run.shared_bytes, 0xFF, np.uint8)
        words, agents = run.shared_bytes // 4, self.warps + _BARRIERS
        self.writer, self.written = np.zeros(words, np.int64), np.zeros(words, np.int64)
        self.reads = np.zeros((agents, words), np.int64)
        self.unfenced = np.zeros(words, bool)
        self.arriving, self.leaving = np.zeros(words, bool), np.zeros(words, np.int32)
        # Who: warps and barriers of this block, among those of all blocks.
        self.own = slice(number * agents, (number + 1) * agents)
        self.clocks = np.zeros((self.warps, blocks * agents), np.int64)
        self.own_clocks = self.clocks[:, self.own]
        self.own_clocks[np.arange(self.warps), np.arange(self.warps)] = 1
        self.barriers: dict[int, Barrier] = {}
        self.place, self.waits = np.zeros(threads, np.int64), np.zeros(threads, np.int64)
        self.waited: dict[int, tuple[int, int]] = {}
        self.named: dict[int, tuple[int, list[int]]] = {}
        self.products: list[list[Product]] = [[] for _ in range(self.warps)]
        self.product_group = [0] * self.warps
        self.product_log: list[list[Any]] = [[] for _ in range(self.warps)]
        self.busy: list[set[str]] = [set() for _ in range(self.warps)]
        self.held: list[set[str]] = [set() for _ in range(self.warps)]
        self.unordered: list[set[str]] = [set() for _ in range(self.warps)]
        self.stores: list[Store] = []
        self.store_group = np.zeros(threads, np.int64)
        self.polled = [-1] * self.warps
        self.asked: dict[int, tuple[int, int]] = {}
        self.warp = 0

    # --- order -----------------------------------------------------------------------------------

    def release_to(self, barrier: Barrier) -> None:
        """What this warp has done comes before the barrier's completion."""
        np.maximum(barrier.clock, self.clocks[self.warp], out=barrier.clock)
        self.own_clocks[self.warp, self.warp] += 1

    def release_word(self, address: int) -> None:
        """What this warp has done comes before what reads a word of the card's memory."""
        clocks = self.run.word_clocks
        held = clocks.setdefault(address, np.zeros_like(self.clocks[0]))
        np.maximum(held, self.clocks[self.warp], out=held)
        self.own_clocks[self.warp, self.warp] += 1

    def acquire_word(self, address: int) -> None:
        """This warp knows what came before the last change of a word of the card's memory."""
        if address in self.run.word_clocks:
            now = self.clocks[self.warp]
            np.maximum(now, self.run.word_clocks[address], out=now)

    def complete(self, barrier: Barrier) -> None:
        """End the phase of a barrier at which all have arrived."""
        assert barrier.pending >= 0, "more threads arrive at a barrier than it waits for"
        if barrier.pending or barrier.bytes:
            return
        barrier.parity ^= 1
        barrier.pending = barrier.count
        barrier.done_clock = barrier.clock.copy()
        for thread, (address, parity) in list(self.waited.items()):
            if self.barriers[address] is barrier and barrier.parity != parity:
                del self.waited[thread]
                self.waits[thread] = READY
                warp = self.clocks[thread // WARP]
                np.maximum(warp, barrier.done_clock, out=warp)

    def check_write(self, words: Array) -> None:
        """Nothing may read or write these words beside this warp, which writes them."""
        now = self.own_clocks[self.warp]
        assert not self.arriving[words].any(), "a place is written while a copy to it is under way"
        assert not self.leaving[words].any(), "a place is written that is still read"
        known = now[self.writer[words]] >= self.written[words]
        assert known.all(), "a place is written that another writes with no order"
        bound = now.copy()
        bound[self.warp] = 1 << 60
        seen = self.reads[:, words.ravel()] <= bound[:, None]
        assert seen.all(), "a place is written that another reads with no order"

    def check_read(self, words: Array, *, is_copy: bool) -> None:
        """Everything that was written there is known to this warp; to copies, if one reads."""
        assert not self.arriving[words].any(), "a place is read while a copy to it is under way"
        known = self.own_clocks[self.warp][self.writer[words]] >= self.written[words]
        assert known.all(), "a place is read that another writes with no order"
        assert not (is_copy and self.unfenced[words].any()), "a store is not shown to copies"

    def note_write(self, words: Array, agent: int, clock: int) -> None:
        """Keep who wrote, and when."""
        self.writer[words], self.written[words] = agent, clock

    def note_read(self, words: Array) -> None:
        """Keep that this warp has read."""
        self.reads[self.warp, words] = self.own_clocks[self.warp, self.warp]

    def touch_card(self, places: Array, *, writes: bool) -> None:
        """Bytes of the card's memory are touched: what others do there has an order."""
        words, run, now = np.unique(places // 4), self.run, self.clocks[self.warp]
        agent = self.own.start + self.warp
        known = now[run.card_writer[words]] >= run.card_written[words]
        assert known.all(), "the card's memory is touched that another writes with no order"
        if not writes:
            run.card_reads[agent, words] = now[agent]
            return
        bound = now.copy()
        bound[agent] = 1 << 30
        seen = run.card_reads[:, words] <= bound[:, None]
        assert seen.all(), "the card's memory is written that another reads with no order"
        run.card_writer[words], run.card_written[words] = agent, now[agent]

    # --- what Program asks for -------------------------------------------------------------------

    def spread(self, addresses: Array, size: int) -> Array:
        """The places of the bytes at addresses of shared memory."""
        assert (addresses % size == 0).all(), "an address in shared memory is not aligned"
        places = addresses.astype(np.int64)[:, None] - SHARED_START + np.arange(size)
        assert ((0 <= places) & (places < len(self.shared))).all(), "outside of shared memory"
        return places

    def write_shared(self, lanes: Array, places: Array, values: Array) -> None:
        """Store bytes."""
        del lanes
        words = places[:, ::4] // 4
        assert len(np.unique(words)) == words.size, "two threads write to one place"
        self.check_write(words)
        self.note_write(words, self.warp, int(self.own_clocks[self.warp, self.warp]))
        self.unfenced[words] = True
        self.shared[places] = values

    def read_shared(self, lanes: Array, places: Array) -> Array:
        """Load bytes."""
        del lanes
        words = places[:, ::4] // 4
        self.check_read(words, is_copy=False)
        self.note_read(words)
        return self.shared[places]

    # --- products --------------------------------------------------------------------------------

    def begin_product(self, product: Product, log: Any) -> None:
        """Check what a product reads, and keep it for `wait_products`."""
        registers = set(product.sums)
        left = product.left if isinstance(product.left, list) else []
        late = self.unordered[self.warp] & (registers | set(left))
        assert not late, f"registers of a product are used behind the fence: {sorted(late)[:3]}"
        self.check_read(product.left_words, is_copy=True)
        self.check_read(product.right_words, is_copy=True)
        for words in (product.left_words, product.right_words):
            self.leaving[words] += 1
        if left:
            lanes = self.lanes()
            product.left = [self.registers[name][lanes].copy() for name in left]
            self.held[self.warp] |= set(left)
        product.group = self.product_group[self.warp]
        self.products[self.warp].append(product)
        self.busy[self.warp] |= registers
        own = self.product_log[self.warp]
        own.append(log)
        first = self.product_log[self.warp // 4 * 4]
        if len(first) >= len(own):
            assert first[len(own) - 1] == log, "warps of a group multiply differently"

    def wait_products(self, most: int) -> None:
        """Let all but the last groups of products be done."""
        warp, kept = self.warp, []
        for product in self.products[warp]:
            if product.group >= self.product_group[warp] - most:
                kept.append(product)
                continue
            self._multiply(product)
            for words in (product.left_words, product.right_words):
                self.leaving[words] -= 1
                self.note_read(words)
        self.products[warp] = kept
        self.busy[warp] = {name for product in kept for name in product.sums}
        self.held[warp] = set() if not kept else self.held[warp]

    def _multiply(self, product: Product) -> None:
        lanes, lane = self.lanes(), np.arange(WARP)
        right = self.shared[product.right].view(product.kind)[..., 0].astype(np.float64)
        if isinstance(product.left, list):
            left = np.zeros((16, 16))
            for number, words in enumerate(product.left):
                pairs = np.ascontiguousarray(words).view(product.kind).reshape(WARP, 2)
                row = lane // 4 + 8 * (number % 2)
                for t in (0, 1):
                    left[row, 2 * (lane % 4) + 8 * (number // 2) + t] = pairs[:, t]
        else:
            left = self.shared[product.left].view(product.kind)[..., 0].astype(np.float64)
        with np.errstate(all="ignore"):
            sums = left @ right.T
        for number, name in enumerate(product.sums):
            j, h, t = number // 4, number // 2 % 2, number % 2
            added = sums[lane // 4 + 8 * h, 8 * j + 2 * (lane % 4) + t]
            held = self.registers[name][lanes].astype(np.float64) if product.adds else 0.0
            self.registers[name][lanes] = (held + added).astype(np.float32)

    def lanes(self) -> Array:
        """The threads of the warp that runs."""
        return np.arange(self.warp * WARP, (self.warp + 1) * WARP)

    # --- bulk copies -----------------------------------------------------------------------------

    def begin_load(self, target: int, data: Array, address: int) -> None:
        """Bytes that come to shared memory some time, and are counted by a barrier then."""
        places = self.spread(np.array([target]), 16)[0, 0] + np.arange(len(data))
        words = np.unique(places // 4)
        self.check_write(words)
        self.arriving[words] = True
        self.run.pending.append((self, places, words, data, self.barriers[address]))

    def land(self, places: Array, words: Array, data: Array, barrier: Barrier) -> None:
        """The bytes of a copy are there."""
        self.shared[places] = data
        self.arriving[words] = False
        self.unfenced[words] = False
        own = barrier.clock[self.own]
        own[barrier.agent] += 1
        self.note_write(words, barrier.agent, int(own[barrier.agent]))
        barrier.bytes -= len(data)
        self.complete(barrier)

    def begin_store(self, store: Store) -> None:
        """Begin to read shared memory for a copy."""
        self.check_read(store.words, is_copy=True)
        self.leaving[store.words] += 1
        store.group = int(self.store_group[store.thread])
        for block in self.run.blocks:
            for other in block.stores:
                apart = other.end <= store.begin or store.end <= other.begin
                assert apart, "two copies to one place of the card's memory"
        self.stores.append(store)

    def wait_stores(self, thread: int, most: int, *, is_read: bool) -> None:
        """Let all but the last groups of a thread's copies be read, or be done."""
        for store in [each for each in self.stores if each.thread == thread]:
            if store.group >= self.store_group[thread] - most:
                continue
            if not store.is_read:
                store.is_read = True
                self.leaving[store.words] -= 1
                self.note_read(store.words)
            if not is_read:
                self.finish_store(store)

    def finish_store(self, store: Store) -> None:
        """The copy is in the card's memory."""
        store.write()
        self.stores.remove(store)

    # --- steps -----------------------------------------------------------------------------------

    def is_ready(self, warp: int) -> bool:
        """Whether a warp can go on."""
        own = self.waits[warp * WARP : (warp + 1) * WARP]
        return bool((own == READY).any()) and self.polled[warp] != self.run.changes

    def step(self, warp: int) -> None:
        """One instruction of those threads of a warp that are furthest back."""
        self.warp = warp
        own = slice(warp * WARP, (warp + 1) * WARP)
        ready = self.waits[own] == READY
        place = int(self.place[own][ready].min())
        lanes = np.flatnonzero(ready & (self.place[own] == place)) + warp * WARP
        self.place[lanes] += 1
        try:
            self.program.steps[place](self, lanes)  # type: ignore[arg-type]
        except AssertionError as error:
            raise AssertionError(f"{error} (warp {warp}: {self.run.lines[place]})") from error
