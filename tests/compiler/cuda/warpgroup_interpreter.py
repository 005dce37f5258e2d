"""Runs kernels of warpgroups from their PTX where there is no card: all blocks side by side.

Warps take turns in an order that a seed decides, and copies land when it says so. It is stricter
than a card; `warpgroup_blocks.py` says what is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tests.compiler.cuda.ptx_interpreter import SHARED_START, Memory, Program, Step
from tests.compiler.cuda.warpgroup_blocks import (
    AT_NAMED,
    LEFT,
    ON_BARRIER,
    READY,
    WARP,
    Array,
    ArrayMap,
    Barrier,
    Block,
    Product,
    Store,
    swizzled,
)

from weft.core.dtypes import bfloat16

_KINDS = {"bf16": bfloat16.numpy, "f16": np.float16}


class Launch:
    """All blocks of a kernel."""

    def __init__(
        self, program: WarpgroupProgram, memory: Memory, blocks: int, shared_bytes: int, seed: int
    ) -> None:
        self.program, self.memory, self.shared_bytes = program, memory, shared_bytes
        self.lines = program.lines
        self.random = np.random.default_rng(seed)
        self.pending: list[Any] = []
        self.changes = 0
        self.blocks: list[Block] = []
        for number in range(blocks):
            self.blocks.append(Block(self, number, blocks))
        words, agents = len(memory.bytes) // 4, self.blocks[0].clocks.shape[1]
        self.card_writer, self.card_written = np.zeros(words, np.int32), np.zeros(words, np.int32)
        self.card_reads = np.zeros((agents, words), np.int32)
        self.word_clocks: dict[int, Array] = {}
        """What comes before the last change of each word that blocks tell each other by."""

    def new_registers(self) -> dict[str, Array]:
        """Registers of a block, which hold nothing yet."""
        return self.program.new_registers()

    def run(self) -> None:
        """Run to the end, in an order that the seed decides."""
        while True:
            ready = [(block, warp) for block in self.blocks for warp in range(block.warps)
                     if block.is_ready(warp)]  # fmt: skip
            count = len(ready) + len(self.pending)
            if not count:
                break
            chosen = int(self.random.integers(count))
            if chosen >= len(ready):
                block, *landing = self.pending.pop(chosen - len(ready))
                block.land(*landing)
                continue
            block, warp = ready[chosen]
            for _ in range(int(self.random.integers(1, 400))):
                block.step(warp)
                if not block.is_ready(warp):
                    break
        for block in self.blocks:
            stuck = np.flatnonzero(block.waits != LEFT)
            waiting = [self.lines[int(block.place[each]) - 1] for each in stuck[:1]]
            assert not len(stuck), f"threads wait for others that do not come: {waiting}"
            for store in list(block.stores):
                assert store.is_read, "a block has left before its copies were read"
                block.finish_store(store)


class WarpgroupProgram(Program):
    """The text of a kernel of warpgroups as steps."""

    def __init__(
        self,
        text: str,
        arguments: Mapping[str, int],
        threads: int,
        maps: Mapping[str, ArrayMap],
    ) -> None:
        self.maps, self.map_names = dict(maps), list(maps)
        self.lines: list[str] = []
        super().__init__(text, arguments, threads)

    def new_registers(self) -> dict[str, Array]:
        """Registers of a block."""
        kinds = {"f32": np.float32, "u64": np.uint64, "b64": np.uint64, "b16": np.uint16,
                 "pred": np.bool_, "s64": np.int64}  # fmt: skip
        return {name: np.zeros(self.threads, kinds.get(kind, np.uint32))
                for name, kind in self.registers.items()}  # fmt: skip

    def _step(self, line: str) -> Step:
        self.lines.append(line)
        return super()._step(line)

    # --- registers -------------------------------------------------------------------------------

    def _value(self, cluster: Any, lanes: Array, text: str) -> Array:
        if text in self.maps:
            return np.full(len(lanes), self.map_names.index(text), np.int64)
        assert text not in cluster.busy[cluster.warp], f"{text} is read before its product is done"
        if text in cluster.registers:
            cluster.unordered[cluster.warp].add(text)
        return super()._value(cluster, lanes, text)

    def _assign(self, cluster: Any, lanes: Array, target: str, value: Array) -> None:
        held = target in cluster.busy[cluster.warp] or target in cluster.held[cluster.warp]
        assert not held, f"{target} is written before its product is done"
        if target != "_":
            cluster.unordered[cluster.warp].add(target)
            super()._assign(cluster, lanes, target, value)

    def _number(self, cluster: Any, lanes: Array, text: str) -> int:
        """A value that is the same for all threads."""
        values = self._value(cluster, lanes, text)
        assert (values == values[0]).all(), f"{text} differs among threads of a warp"
        return int(values[0])

    def _place(self, cluster: Any, lanes: Array, text: str) -> int:
        addresses = self._address(cluster, lanes, text)
        assert (addresses == addresses[0]).all()
        return int(addresses[0])

    # --- instructions ----------------------------------------------------------------------------

    def _action(self, name: str, operands: list[str]) -> Step:
        word = name.partition(".")[0]
        if name == "bar.sync":
            return self._named_barrier(operands)
        if name == "ret":
            return lambda c, lanes: c.waits.__setitem__(lanes, LEFT)
        if name.startswith("fence.proxy.async"):
            return _fence
        if word in ("setmaxnreg", "fence"):
            return lambda c, lanes: None
        if word == "mbarrier":
            return self._barrier(name, operands)
        if word == "wgmma":
            return self._product(name, operands)
        if word == "cp" and ".bulk" in name:
            return self._bulk(name, operands)
        if word == "red":
            return self._add_one(operands)
        if word == "shfl":
            return self._shuffle(name, operands)
        if name.startswith("ld.acquire"):
            return self._poll(operands)
        return super()._action(name, operands)

    def _access(self, name: str, operands: list[str]) -> Step:
        act = super()._access(name, operands)
        word, space, *_, kind = name.split(".")
        if word == "atom":
            return self._exchange_word(act, operands)
        if space != "global":
            return act
        where, registers = operands if word == "st" else operands[::-1]
        size = int(kind[1:]) // 8 * len(registers.split(", "))

        def access(block: Any, lanes: Array) -> None:
            places = block.memory.spread(self._address(block, lanes, where), size)
            block.touch_card(places, writes=word == "st")
            act(block, lanes)

        return access

    def _exchange_word(self, act: Step, operands: list[str]) -> Step:
        def exchange(block: Any, lanes: Array) -> None:
            assert len(lanes) == 1
            address = self._place(block, lanes, operands[1])
            block.acquire_word(address)
            act(block, lanes)
            block.release_word(address)
            block.run.changes += 1

        return exchange

    def _named_barrier(self, operands: list[str]) -> Step:
        def wait(block: Any, lanes: Array) -> None:
            number = self._number(block, lanes, operands[0])
            count = int(operands[1]) if len(operands) > 1 else self.threads
            wanted, arrived = block.named.setdefault(number, (count, []))
            assert wanted == count, "threads disagree about who waits at a barrier"
            arrived.extend(int(lane) for lane in lanes)
            block.waits[lanes] = AT_NAMED
            if len(arrived) < count:
                return
            assert len(arrived) == count
            del block.named[number]
            warps = sorted({lane // WARP for lane in arrived})
            block.clocks[warps] = block.clocks[warps].max(0)
            block.own_clocks[warps, warps] += 1
            block.waits[arrived] = READY

        return wait

    def _barrier(self, name: str, operands: list[str]) -> Step:
        def act(block: Any, lanes: Array) -> None:
            if ".init." in name:
                address, count = self._place(block, lanes, operands[0]), int(operands[1])
                assert address % 8 == 0
                assert address not in block.barriers
                block.spread(np.array([address]), 8)
                clocks = [np.zeros(block.clocks.shape[1], np.int64) for _ in range(2)]
                agent = block.warps + len(block.barriers)
                block.barriers[address] = Barrier(agent, count, *clocks, pending=count)
            elif ".try_wait." in name:
                self._try_wait(block, lanes, operands)
            else:
                address = self._place(block, lanes, operands[1])
                assert address in block.barriers, "nobody has prepared a barrier"
                barrier = block.barriers[address]
                if ".expect_tx." in name:
                    assert len(lanes) == 1
                    barrier.bytes += self._number(block, lanes, operands[2])
                block.release_to(barrier)
                barrier.pending -= len(lanes)
                block.complete(barrier)

        return act

    def _try_wait(self, block: Any, lanes: Array, operands: list[str]) -> None:
        """Wait for the phase: hardware may say that it has not come, and the kernel asks again."""
        target, where, parity_text = operands
        address = self._place(block, lanes, where)
        assert address in block.barriers, "nobody has prepared a barrier"
        barrier, parity = block.barriers[address], self._number(block, lanes, parity_text)
        self._assign(block, lanes, target, np.ones(len(lanes), bool))
        if barrier.parity != parity:
            own = block.clocks[block.warp]
            np.maximum(own, barrier.done_clock, out=own)
            return
        block.waits[lanes] = ON_BARRIER
        for lane in lanes:
            block.waited[int(lane)] = (address, parity)

    def _product(self, name: str, operands: list[str]) -> Step:
        if name.startswith("wgmma.fence"):
            return lambda c, lanes: c.unordered[c.warp].clear()  # type: ignore[attr-defined]
        if name.startswith("wgmma.commit"):
            return _commit_products
        if name.startswith("wgmma.wait"):
            return lambda c, lanes: c.wait_products(int(operands[0]))  # type: ignore[attr-defined]
        shape, kind = name.split(".")[4], _KINDS[name.split(".")[-1]]
        columns = int(shape[shape.index("n") + 1 : shape.index("k")])
        sums = operands[0].strip("{}").split(", ")
        left, right, adds, *rest = operands[1:]
        across = [int(each) for each in rest[2:]]

        def begin(block: Any, lanes: Array) -> None:
            assert len(lanes) == WARP, "threads of a warp multiply apart"
            assert len(sums) == columns // 2
            numbers = [self._number(block, lanes, each) for each in (right, adds)]
            b = _operand_places(numbers[0], np.arange(columns), across[-1])
            log: tuple[Any, ...] = (name, tuple(sums), *numbers)
            names: list[str] | Array = left.strip("{}").split(", ")
            words = np.zeros(0, np.int64)
            if not left.startswith("{"):
                described = self._number(block, lanes, left)
                rows = np.arange(16) + 16 * (block.warp % 4)
                names = _operand_places(described, rows, across[0])
                words = np.unique(names[..., 0] // 4)
                log = (*log, described)
            product = Product(
                sums, names, words, b, np.unique(b[..., 0] // 4), bool(numbers[1]), kind
            )
            block.begin_product(product, log)

        return begin

    def _bulk(self, name: str, operands: list[str]) -> Step:
        if ".commit_group" in name:
            return _commit_stores
        if ".wait_group" in name:
            return lambda c, lanes: _wait_stores(c, lanes, int(operands[0]), ".read" in name)
        if ".tensor." in name:
            is_load = "mbarrier" in name
            return self._tensor_load(operands) if is_load else self._tensor_store(operands)
        if "mbarrier" in name:
            return self._flat_load(operands)
        return self._flat_store(operands, adds=name.startswith("cp.reduce"))

    def _box(self, block: Any, lanes: Array, text: str) -> tuple[ArrayMap, list[int]]:
        """The array and the coordinates of `[map, {…}]`."""
        register, _, rest = text[1:-1].partition(", ")
        found = self.maps[self.map_names[self._number(block, lanes, register)]]
        signed = [self._number(block, lanes, each) for each in rest.strip("{}").split(", ")]
        return found, [each - (1 << 32) if each >= 1 << 31 else each for each in signed]

    def _tensor_load(self, operands: list[str]) -> Step:
        def begin(block: Any, lanes: Array) -> None:
            assert len(lanes) == 1, "a copy is begun by several threads"
            target, barrier = (self._place(block, lanes, operands[k]) for k in (0, 2))
            found, coordinates = self._box(block, lanes, operands[1])
            inside, within = found.region(coordinates)
            box = np.zeros(found.box[::-1], found.array.dtype)
            box[within] = found.array[inside]
            rows = box.reshape(-1, found.box[0]).view(np.uint8)
            assert target % 1024 == 0
            assert rows.shape[1] == 128
            data = np.zeros(rows.size, np.uint8)
            data[swizzled(np.arange(rows.size))] = rows.ravel()
            block.begin_load(target, data, barrier)

        return begin

    def _tensor_store(self, operands: list[str]) -> Step:
        def begin(block: Any, lanes: Array) -> None:
            assert len(lanes) == 1, "a copy is begun by several threads"
            found, coordinates = self._box(block, lanes, operands[0])
            size = int(np.prod(found.box)) * found.array.itemsize
            start = block.spread(np.array([self._place(block, lanes, operands[1])]), 1024)[0, 0]
            rows = block.shared[start + swizzled(np.arange(size))].view(found.array.dtype)
            inside, within = found.region(coordinates)
            box = rows.reshape(found.box[::-1])[within]

            def write() -> None:
                found.array[inside] = box
                found.stores[inside] += 1

            words = np.arange(start // 4, (start + size) // 4)
            block.begin_store(Store(int(lanes[0]), words, write))

        return begin

    def _flat_load(self, operands: list[str]) -> Step:
        def begin(block: Any, lanes: Array) -> None:
            target, source, barrier = (self._place(block, lanes, operands[k]) for k in (0, 1, 3))
            size = self._number(block, lanes, operands[2])
            assert len(lanes) == 1, "a copy is begun by several threads"
            assert size % 16 == source % 16 == 0
            places = block.memory.spread(np.arange(source, source + size, 16), 16)
            block.begin_load(target, block.memory.bytes[places].ravel(), barrier)

        return begin

    def _flat_store(self, operands: list[str], *, adds: bool) -> Step:
        def begin(block: Any, lanes: Array) -> None:
            target, source = (self._place(block, lanes, operands[k]) for k in (0, 1))
            size, memory = self._number(block, lanes, operands[2]), block.memory
            assert len(lanes) == 1, "a copy is begun by several threads"
            assert size % 16 == 0
            places = memory.spread(np.arange(target, target + size, 16), 16).ravel()
            start = block.spread(np.array([source]), 16)[0, 0]
            data = block.shared[start : start + size].view(np.float32).copy()

            def write() -> None:
                held = memory.bytes[places].view(np.float32) if adds else np.float32(0)
                memory.bytes[places] = (held + data if adds else data).view(np.uint8)
                memory.stores[places] += 1

            words = np.arange(start // 4, (start + size) // 4)
            block.begin_store(Store(int(lanes[0]), words, write, target, target + size))

        return begin

    def _add_one(self, operands: list[str]) -> Step:
        def add(block: Any, lanes: Array) -> None:
            for lane in lanes:
                one = np.array([lane])
                places = block.memory.spread(self._address(block, one, operands[0]), 4)[0]
                word = block.memory.bytes[places].view(np.uint32)
                added = self._value(block, one, operands[1]).astype(np.uint32)
                block.memory.bytes[places] = (word + added).view(np.uint8)
                block.release_word(int(self._address(block, one, operands[0])[0]))
            block.run.changes += 1

        return add

    def _poll(self, operands: list[str]) -> Step:
        """Read a counter; nobody asks again before a counter has changed."""

        def read(block: Any, lanes: Array) -> None:
            asked = (self._place(block, lanes, operands[1]), block.run.changes)
            if block.asked.get(block.warp) == asked:
                block.place[lanes] -= 1
                block.polled[block.warp] = block.run.changes
                return
            block.asked[block.warp] = asked
            block.acquire_word(asked[0])
            places = block.memory.spread(self._address(block, lanes, operands[1]), 4)
            words = np.ascontiguousarray(block.memory.bytes[places]).view(np.uint32)[:, 0]
            self._assign(block, lanes, operands[0], words)

        return read

    def _shuffle(self, name: str, operands: list[str]) -> Step:
        target, source, other = operands[:3]

        def exchange(block: Any, lanes: Array) -> None:
            assert len(lanes) == WARP, "threads of a warp exchange without the others"
            values = self._value(block, lanes, source)
            number = self._value(block, lanes, other).astype(np.int64)
            from_lane = np.arange(WARP) ^ number if ".bfly." in name else number
            self._assign(block, lanes, target, values[from_lane % WARP])

        return exchange


def _operand_places(described: int, rows: Array, is_across: int) -> Array:
    """The places in shared memory of [row, 16 along the sum, 2 bytes] of an operand."""
    start = (described & 0x3FFF) << 4
    leading, stride = ((described >> shift & 0x3FFF) << 4 for shift in (16, 32))
    assert described >> 62 == 1, "the swizzle is not that of 128 bytes"
    row, depth = rows[:, None], np.arange(16)[None]
    if is_across:
        inside = row % 64 * 2 + row // 64 * leading + depth % 8 * 128 + depth // 8 * stride
    else:
        inside = row // 8 * stride + row % 8 * 128 + depth * 2
    addresses = swizzled(start + inside) - SHARED_START
    return addresses[..., None] + np.arange(2)


def _fence(block: Any, lanes: Array) -> None:
    """What this warp has stored is shown to copies."""
    del lanes
    block.unfenced[block.writer == block.warp] = False


def _commit_products(block: Any, lanes: Array) -> None:
    del lanes
    block.product_group[block.warp] += 1


def _commit_stores(block: Any, lanes: Array) -> None:
    block.store_group[lanes] += 1


def _wait_stores(block: Any, lanes: Array, most: int, is_read: bool) -> None:
    for lane in lanes:
        block.wait_stores(int(lane), most, is_read=is_read)


def run_blocks(
    kernel: Any,
    blocks: int,
    memory: Memory,
    maps: Mapping[str, ArrayMap],
    words: Mapping[str, int],
    seed: int = 0,
) -> None:
    """Run a kernel; pointers are the addresses of arrays of their names."""
    arguments = {name: memory.address(name) for name in memory.arrays} | dict(words)
    program = WarpgroupProgram(kernel.text, arguments, kernel.threads, maps)
    Launch(program, memory, blocks, kernel.shared_bytes, seed).run()
