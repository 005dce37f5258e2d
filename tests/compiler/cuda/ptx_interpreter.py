"""Runs kernels that are written as PTX where there is no card: one cluster of blocks after another.

Every register holds a number for each thread. Of the threads that can go on, those furthest back
do, so that they meet again behind a branch. It is strict where a card is not: memory that nobody
gave, unaligned addresses, copies that nobody waited for, what two threads do to one place with
no barrier in between, and reading a block that has not begun or may have left are errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.ops.float8 import FORMATS

Array = np.ndarray[Any, Any]
SHARED_START = 1 << 10
RANK_BITS = 24
"""An address in the cluster's shared memory has the rank of its block, plus one, above these."""
GLOBAL_START, GAP = 1 << 20, 1 << 12
_KINDS = {
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "u64": np.uint64, "b64": np.uint64,
    "f32": np.float32, "b16": np.uint16, "pred": np.bool_, "s64": np.int64,
}  # fmt: skip
_LINE = re.compile(r"(?:@(!?)(\S+) )?([a-z0-9_.:A-Z]+)\s*(.*);$")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


class Memory:
    """The card's memory: arrays at addresses, with gaps that nobody may touch."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.places: dict[str, int] = {}
        self.arrays = dict(arrays)
        end = GAP
        for name, array in arrays.items():
            self.places[name] = end
            end = -(-(end + array.nbytes + GAP) // 256) * 256
        self.bytes = np.zeros(end, np.uint8)
        self.known = np.zeros(end, bool)
        self.stores = np.zeros(end, np.int32)
        """How often each byte was stored."""
        for name, array in arrays.items():
            first = self.places[name]
            self.bytes[first : first + array.nbytes] = array.reshape(-1).view(np.uint8)
            self.known[first : first + array.nbytes] = True

    def address(self, name: str) -> int:
        """Where an array begins."""
        return GLOBAL_START + self.places[name]

    def spread(self, addresses: Array, size: int) -> Array:
        """The places of the bytes at addresses."""
        assert (addresses % size == 0).all(), "an address in the card's memory is not aligned"
        places = addresses.astype(np.int64)[:, None] - GLOBAL_START + np.arange(size)
        assert ((0 <= places) & (places < len(self.bytes))).all(), "an address is far off"
        assert self.known[places].all(), "memory is touched that nobody gave"
        return places

    def result(self, name: str) -> Array:
        """What an array holds now."""
        array, first = self.arrays[name], self.places[name]
        return self.bytes[first : first + array.nbytes].view(array.dtype).reshape(array.shape)

    def store_counts(self, name: str) -> Array:
        """How often each byte of an array was stored."""
        return self.stores[self.places[name] :][: self.arrays[name].nbytes]


@dataclass
class _Copy:
    """A copy that was begun: nothing of it is in shared memory yet."""

    threads: Array
    places: Array
    values: Array
    groups: Array


@dataclass
class _Touched:
    """Who wrote and read each word of the shared memory of blocks, and between which barriers."""

    shape: tuple[int, int]
    writer: Array = field(init=False)
    reader: Array = field(init=False)
    far_reader: Array = field(init=False)

    def __post_init__(self) -> None:
        # thread, barriers of the block before it, barriers of the cluster before it
        self.writer, self.reader = (np.full((3, *self.shape), -1, np.int64) for _ in range(2))
        self.far_reader = np.full(self.shape, -1, np.int64)


class Cluster:
    """Blocks that run together, in one kernel."""

    def __init__(
        self, program: Program, memory: Memory, first_block: int, shared_bytes: int
    ) -> None:
        self.program, self.memory = program, memory
        blocks, threads = program.cluster, program.threads
        count = blocks * threads
        lanes = np.arange(count)
        self.block, self.number = lanes // threads, lanes % threads
        self.special = {
            "%tid.x": self.number, "%ctaid.x": first_block + self.block,
            "shared_bytes": np.full(count, SHARED_START),
        }  # fmt: skip
        self.registers: dict[str, Array] = {
            name: np.zeros(count, _KINDS[kind]) for name, kind in program.registers.items()
        }
        self.shared = np.full((blocks, shared_bytes), 0xFF, np.uint8)
        self.touched = _Touched((blocks, shared_bytes // 4))
        self.place = np.zeros(count, np.int64)
        self.waits = np.zeros(count, np.int64)
        """0: goes on; 1: waits for its block; 2: for its cluster; 3: has left."""
        self.block_waits, self.cluster_waits = np.zeros(count, np.int64), np.zeros(count, np.int64)
        """Barriers that each thread has passed; those of the cluster count as both."""
        self.has_read_far = np.zeros(blocks, bool)
        self.copies: list[_Copy] = []
        self.groups = np.zeros(count, np.int64)

    def run(self) -> None:
        """Run to the end."""
        while (self.waits < 3).any():
            ready = self.waits == 0
            if not ready.any():
                self._release()
                continue
            place = int(self.place[ready].min())
            lanes = np.flatnonzero(ready & (self.place == place))
            self.place[lanes] += 1
            self.program.steps[place](self, lanes)
        assert not self.copies, "a block has left before its copies were done"
        assert not self.has_read_far.any(), "a block may have left while another reads it"

    def _release(self) -> None:
        """All wait: let those go on whose block or cluster is complete."""
        freed = False
        for block in range(self.program.cluster):
            own = self.block == block
            if (self.waits[own] == 1).all():
                self.waits[own], freed = 0, True
                self.block_waits[own] += 1
        if (self.waits == 2).all():
            self.waits[:], freed = 0, True
            self.block_waits += 1
            self.cluster_waits += 1
            self.has_read_far[:] = False
        assert freed, "threads wait at a barrier for others that do not come"

    # --- shared memory ---------------------------------------------------------------------------

    def spread(self, addresses: Array, size: int) -> Array:
        """The places of the bytes at addresses of shared memory."""
        assert (addresses % size == 0).all(), "an address in shared memory is not aligned"
        places = addresses.astype(np.int64)[:, None] - SHARED_START + np.arange(size)
        inside = (0 <= places) & (places < self.shared.shape[1])
        assert inside.all(), "an address is outside of the block's shared memory"
        return places

    def write_shared(self, lanes: Array, places: Array, values: Array) -> None:
        """Store bytes in the shared memory of the threads' own blocks."""
        own = self.block[lanes][:, None]
        words = places[:, ::4] // 4
        for kind, (thread, waited, _) in (
            ("written", self.touched.writer), ("read", self.touched.reader),
        ):  # fmt: skip
            is_now = waited[own, words] == self.block_waits[lanes][:, None]
            is_other = thread[own, words] != lanes[:, None]
            assert not (is_now & is_other).any(), f"a place is written that another has {kind}"
        is_far = self.touched.far_reader[own, words] == self.cluster_waits[lanes][:, None]
        assert not is_far.any(), "a place is written that another block reads"
        flat = own * self.shared.shape[1] // 4 + words
        assert len(np.unique(flat)) == flat.size, "two threads write to one place"
        now = lanes, self.block_waits[lanes], self.cluster_waits[lanes]
        for row, value in zip(self.touched.writer, now, strict=True):
            row[own, words] = value[:, None]
        self.shared[own, places] = values

    def read_shared(self, lanes: Array, places: Array) -> Array:
        """Bytes of the shared memory of the threads' own blocks."""
        own, words = self.block[lanes][:, None], places[:, ::4] // 4
        thread, waited, _ = self.touched.writer
        is_now = waited[own, words] == self.block_waits[lanes][:, None]
        is_other = thread[own, words] != lanes[:, None]
        assert not (is_now & is_other).any(), "a place is read that another has just written"
        readers, seen, _ = self.touched.reader
        is_shared = (seen[own, words] == self.block_waits[lanes][:, None]) & (
            readers[own, words] != lanes[:, None]
        )
        readers[own, words] = np.where(is_shared, -2, lanes[:, None])
        # threads that read one place at once: none of them alone may write there
        flat = own * (self.shared.shape[1] // 4) + words
        _, where, counts = np.unique(flat, return_inverse=True, return_counts=True)
        readers[own, words] = np.where(
            counts[where].reshape(flat.shape) > 1, -2, readers[own, words]
        )
        seen[own, words] = self.block_waits[lanes][:, None]
        return self.shared[own, places]

    def read_far(self, lanes: Array, addresses: Array, size: int) -> Array:
        """Bytes of the shared memory of any block of the cluster."""
        ranks = (addresses.astype(np.int64) >> RANK_BITS) - 1
        assert ((0 <= ranks) & (ranks < self.program.cluster)).all(), "there is no such block"
        places = self.spread(addresses & ((1 << RANK_BITS) - 1), size)
        words, which = places[:, ::4] // 4, ranks[:, None]
        assert (self.cluster_waits[lanes] > 0).all(), "a block is read that may not have begun"
        is_other = ranks != self.block[lanes]
        waits = np.where(is_other, self.cluster_waits[lanes], self.block_waits[lanes])[:, None]
        writer, own_wait, far_wait = (each[which, words] for each in self.touched.writer)
        seen = np.where(is_other[:, None], far_wait, own_wait)
        is_now = (seen == waits) & (writer != lanes[:, None])
        assert not is_now.any(), "a place is read that another block has just written"
        self.touched.far_reader[which, words] = self.cluster_waits[lanes][:, None]
        self.has_read_far[ranks[is_other]] = True
        return self.shared[which, places]

    # --- copies ----------------------------------------------------------------------------------

    def begin_copy(
        self, lanes: Array, targets: Array, sources: Array, size: int, counts: Array
    ) -> None:
        """Copy to shared memory later: `counts` bytes of each source, and zeros behind them."""
        places = self.spread(targets, size)
        assert (sources % size == 0).all(), "the source of a copy is not aligned"
        values = np.zeros((len(lanes), size), np.uint8)
        some = counts > 0
        assert ((counts == 0) | (counts == size)).all()
        if some.any():
            values[some] = self.memory.bytes[self.memory.spread(sources[some], size)]
        # until it is done, the old bytes and the new ones are equally likely
        self.copies.append(_Copy(lanes, places, values, self.groups[lanes]))

    def wait_copies(self, lanes: Array, most: int) -> None:
        """Let all but the last groups of copies of some threads be done."""
        waiting = np.zeros(len(self.place), bool)
        waiting[lanes] = True
        left = []
        for copy in self.copies:
            done = waiting[copy.threads] & (copy.groups < self.groups[copy.threads] - most)
            if done.any():
                self.write_shared(copy.threads[done], copy.places[done], copy.values[done])
            if not done.all():
                rest = ~done
                left.append(_Copy(*(getattr(copy, name)[rest] for name in
                                    ("threads", "places", "values", "groups"))))  # fmt: skip
        self.copies = left


Step = Callable[[Cluster, Array], None]


class Program:
    """The text of a kernel as steps."""

    def __init__(self, text: str, arguments: Mapping[str, int], threads: int) -> None:
        self.arguments, self.threads, self.cluster = arguments, threads, 1
        self.registers: dict[str, str] = {}
        self.steps: list[Step] = []
        self._labels: dict[str, int] = {}
        body = False
        for line in text.splitlines():
            if line.startswith(".reqnctapercluster"):
                self.cluster = int(line.split()[1].strip(","))
            elif line.startswith(".reg"):
                _, kind, names = line.rstrip(";").split(maxsplit=2)
                self.registers |= dict.fromkeys(names.split(", "), kind[1:])
            elif line.endswith(":"):
                self._labels[line[:-1]] = len(self.steps)
            elif line in ("{", "}"):
                body = line == "{"
            elif body:
                self.steps.append(self._step(line))

    def _step(self, line: str) -> Step:
        matched = _LINE.match(line)
        assert matched, line
        negated, condition, name, rest = matched.groups()
        operands = _OPERAND.findall(rest)
        action = self._action(name, operands)

        def step(cluster: Cluster, lanes: Array) -> None:
            if condition:
                lanes = lanes[cluster.registers[condition][lanes] != bool(negated)]
            if len(lanes):
                action(cluster, lanes)

        return step

    def _action(self, name: str, operands: list[str]) -> Step:
        word, _, kind = name.partition(".")
        if name == "bra":
            return lambda c, lanes: c.place.__setitem__(lanes, self._labels[operands[0]])
        if name == "ret":
            return lambda c, lanes: c.waits.__setitem__(lanes, 3)
        if name in ("bar.sync", "barrier.cluster.wait.aligned"):
            number = 1 if name == "bar.sync" else 2
            return lambda c, lanes: c.waits.__setitem__(lanes, number)
        if name.startswith("barrier.cluster.arrive.") or word == "fence":
            return lambda c, lanes: None  # `wait` stands behind it
        if word == "cp":
            return self._copying(name, operands)
        if word in ("ld", "st", "atom"):
            return self._access(name, operands)
        if name == "shfl.sync.bfly.b32":
            return self._exchanging(operands)
        if word == "mov" and any(each.startswith("{") for each in operands):
            return self._packing(operands)
        compute = _compute(word, kind)
        target, sources = operands[0], operands[1:]

        def action(cluster: Cluster, lanes: Array) -> None:
            given = [self._value(cluster, lanes, each) for each in sources]
            with np.errstate(all="ignore"):
                self._assign(cluster, lanes, target, compute(*given))

        return action

    def _assign(self, cluster: Cluster, lanes: Array, target: str, value: Array) -> None:
        held = cluster.registers[target]
        found = np.asarray(value)
        if found.dtype != held.dtype and found.dtype.itemsize == held.dtype.itemsize:
            found = found.view(held.dtype)
        assert found.dtype == held.dtype, (target, found.dtype)
        held[lanes] = found

    def _value(self, cluster: Cluster, lanes: Array, text: str) -> Array:
        """A register, a register of the machine, or a number, as 64 bits or of its own kind."""
        if text in cluster.registers:
            return cluster.registers[text][lanes]
        if text in cluster.special:
            return cluster.special[text][lanes].astype(np.uint32)
        if text.startswith("0f"):
            bits = np.uint32(int.from_bytes(bytes.fromhex(text[2:]), "big"))
            return np.full(len(lanes), bits, np.uint32).view(np.float32)
        return np.full(len(lanes), int(text), np.int64)

    def _address(self, cluster: Cluster, lanes: Array, text: str) -> Array:
        base, _, offset = text[1:-1].partition("+")
        return self._value(cluster, lanes, base).astype(np.int64) + int(offset or 0)

    def _copying(self, name: str, operands: list[str]) -> Step:
        if name == "cp.async.commit_group":
            return lambda c, lanes: c.groups.__setitem__(lanes, c.groups[lanes] + 1)
        if name == "cp.async.wait_group":
            return lambda c, lanes: c.wait_copies(lanes, int(operands[0]))
        target, source, size, count = operands
        assert size == ("16" if ".cg." in name else "4")

        def begin(cluster: Cluster, lanes: Array) -> None:
            places = [self._address(cluster, lanes, each) for each in (target, source)]
            counts = self._value(cluster, lanes, count)
            cluster.begin_copy(lanes, *places, int(size), counts)

        return begin

    def _exchanging(self, operands: list[str]) -> Step:
        """What the lane at a distance has, which must be there at the same time."""
        target, source, distance, _, members = operands
        assert members == "-1", "all lanes of a warp take part"

        def exchange(cluster: Cluster, lanes: Array) -> None:
            others = lanes ^ int(distance)
            assert np.isin(others, lanes).all(), "a lane is asked that is not there"
            given = self._value(cluster, others, source)
            self._assign(cluster, lanes, target, given)

        return exchange

    def _packing(self, operands: list[str]) -> Step:
        """Two halves as a word, or a word as two halves."""
        target, source = operands

        def pack(cluster: Cluster, lanes: Array) -> None:
            if source.startswith("{"):
                low, high = (
                    self._value(cluster, lanes, each).astype(np.uint32)
                    for each in source[1:-1].split(", ")
                )
                self._assign(cluster, lanes, target, low | high << np.uint32(16))
                return
            whole = self._value(cluster, lanes, source).view(np.uint32)
            for shift, each in zip((0, 16), target[1:-1].split(", "), strict=True):
                half = (whole >> np.uint32(shift)).astype(np.uint16)
                self._assign(cluster, lanes, each, half)

        return pack

    def _access(self, name: str, operands: list[str]) -> Step:
        word, space, *_, kind = name.split(".")
        if space == "param":
            number = self.arguments[operands[1][1:-1]]
            wanted = _KINDS[kind]
            return lambda c, lanes: self._assign(
                c, lanes, operands[0], np.full(len(lanes), number, wanted)
            )
        if word == "atom":
            return self._atomic(operands)
        is_load = word == "ld"
        registers, where = operands if is_load else operands[::-1]
        names = registers.strip("{}").split(", ")
        item = np.dtype(_KINDS[kind]).itemsize
        size = item * len(names)

        def access(cluster: Cluster, lanes: Array) -> None:
            addresses = self._address(cluster, lanes, where)
            if not is_load:
                values = np.stack(
                    [_as_kind(self._value(cluster, lanes, each), _KINDS[kind]) for each in names], 1
                )
                _store(cluster, space, lanes, addresses, values.view(np.uint8))
                return
            found = _load(cluster, space, lanes, addresses, size)
            numbers = np.ascontiguousarray(found).view(_KINDS[kind])
            for place, each in enumerate(names):
                self._assign(cluster, lanes, each, numbers[:, place])

        return access

    def _atomic(self, operands: list[str]) -> Step:
        """Add to a word of the card's memory, one thread after the other."""
        target, where, added = operands

        def add(cluster: Cluster, lanes: Array) -> None:
            for lane in lanes:
                one = np.array([lane])
                places = cluster.memory.spread(self._address(cluster, one, where), 4)
                word = cluster.memory.bytes[places].view(np.uint32)[:, 0].copy()
                self._assign(cluster, one, target, word)
                more = self._value(cluster, one, added).astype(np.uint32)
                cluster.memory.bytes[places] = (word + more)[:, None].view(np.uint8)

        return add


def _load(cluster: Cluster, space: str, lanes: Array, addresses: Array, size: int) -> Array:
    if space == "global":
        return cluster.memory.bytes[cluster.memory.spread(addresses, size)]
    if space == "shared":
        return cluster.read_shared(lanes, cluster.spread(addresses, size))
    assert space == "shared::cluster", space
    return cluster.read_far(lanes, addresses, size)


def _store(cluster: Cluster, space: str, lanes: Array, addresses: Array, values: Array) -> None:
    size = values.shape[1]
    if space == "shared":
        cluster.write_shared(lanes, cluster.spread(addresses, size), values)
        return
    assert space == "global", space
    places = cluster.memory.spread(addresses, size)
    cluster.memory.bytes[places] = values
    np.add.at(cluster.memory.stores, places, 1)


# --- what instructions compute -------------------------------------------------------------------


def _fma(x: Array, y: Array, z: Array) -> Array:
    wide = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    return wide.astype(np.float32)


def _short_pair(kind: Any) -> Callable[[Array, Array], Array]:
    def pack(high: Array, low: Array) -> Array:
        halves = [each.astype(kind).view(np.uint16).astype(np.uint32) for each in (high, low)]
        return halves[0] << np.uint32(16) | halves[1]

    return pack


def _code_pair(format: str) -> Callable[[Array, Array], Array]:
    """Two codes of 8-bit floats; what is beyond the format is its highest number, NaN is 0x7F."""
    kind = FORMATS[format].numpy
    highest = np.array([FORMATS[format].top_code - 1], np.uint8).view(kind).astype(np.float32)

    def code(x: Array) -> Array:
        codes = np.clip(x, -highest, highest).astype(kind).view(np.uint8)
        return np.where(np.isnan(x), np.uint8(0x7F), codes).astype(np.uint16)

    return lambda high, low: (code(high) << np.uint16(8)) | code(low)


def _far_address(address: Array, rank: Array) -> Array:
    return address.astype(np.uint32) | (rank + 1).astype(np.uint32) << np.uint32(RANK_BITS)


_WHOLE: dict[str, Callable[..., Array]] = {
    "mul.wide.u32": lambda x, y: x.astype(np.uint64) * y.astype(np.uint32).astype(np.uint64),
    "cvt.u64.u32": lambda x: x.astype(np.uint64),
    "cvt.f32.f16": lambda x: x.view(np.float16).astype(np.float32),
    "cvt.rn.bf16x2.f32": _short_pair(bfloat16.numpy),
    "cvt.rn.f16x2.f32": _short_pair(np.float16),
    "mapa.shared::cluster.u32": _far_address,
    "cvta.to.global.u64": lambda x: x,
    "cvta.param.u64": lambda x: x.astype(np.uint64),
    "mul.hi.u32": lambda x, y: (x.astype(np.uint64) * y.astype(np.uint64) >> np.uint64(32)).astype(
        np.uint32
    ),
    "lg2.approx.ftz.f32": np.log2,
    "fma.rn.f32": _fma,
    "not.pred": np.invert,
    "cvt.rn.satfinite.e4m3x2.f32": _code_pair("e4m3"),
    "cvt.rn.satfinite.e5m2x2.f32": _code_pair("e5m2"),
    "prmt.b32": lambda x, y, chosen: _picked_bytes(x, y, chosen),
    "selp.f32": lambda yes, no, condition: np.where(condition, yes, no),
    "selp.b32": lambda yes, no, condition: np.where(condition, yes, no),
}
_PARTS: dict[str, Callable[..., Array]] = {
    "mov": lambda x: x, "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum,
    "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift, "rem": np.remainder, "neg": np.negative,
    "abs": np.absolute, "ex2": np.exp2, "rcp": np.reciprocal, "sqrt": np.sqrt,
    "setp.lt": np.less, "setp.le": np.less_equal, "setp.gt": np.greater, "setp.eq": np.equal,
    "setp.ge": np.greater_equal, "setp.ne": np.not_equal, "setp.neu": np.not_equal,
}  # fmt: skip


def _picked_bytes(x: Array, y: Array, chosen: Array) -> Array:
    """Four of the bytes of two words, each named by four bits; the highest of them is no sign."""
    both = y.astype(np.uint64) << np.uint64(32) | x.astype(np.uint64)
    found = np.zeros(len(x), np.uint64)
    for place in range(4):
        number = chosen.astype(np.uint64) >> np.uint64(4 * place) & np.uint64(15)
        assert (number < 8).all()
        byte = both >> (number * np.uint64(8)) & np.uint64(255)
        found |= byte << np.uint64(8 * place)
    return found.astype(np.uint32)


def _compute(word: str, rest: str) -> Callable[..., Array]:
    """What an instruction computes of its operands, which are taken as its kind."""
    name = f"{word}.{rest}"
    kind = _KINDS.get(rest.split(".")[-1])
    if name in _WHOLE:
        given = [kind if name.startswith("selp") else None] * 2
        function = _WHOLE[name]
        return lambda *x: function(
            *[_as_kind(v, k) for v, k in zip(x, (*given, None), strict=False)]
        )
    if word == "div":
        function = np.divide if kind is np.float32 else np.floor_divide
    elif word == "setp":
        function = _PARTS[f"setp.{rest.split('.')[0]}"]
    else:
        function = _PARTS[word]
    if word in ("shl", "shr"):
        return lambda x, y: function(_as_kind(x, kind), y.astype(kind))
    return lambda *x: function(*[_as_kind(v, kind) for v in x])


def _as_kind(value: Array, kind: Any) -> Array:
    if kind is None or value.dtype == kind:
        return value
    if value.dtype == np.int64:  # a number in the text
        return value.astype(kind)
    assert value.dtype.itemsize == np.dtype(kind).itemsize
    return value.view(kind)


def run_kernel(
    text: str,
    threads: int,
    blocks: int,
    shared_bytes: int,
    memory: Memory,
    words: Mapping[str, int],
) -> None:
    """Run all blocks of a launch; pointers are the addresses of arrays of their names."""
    arguments = {name: memory.address(name) for name in memory.arrays} | dict(words)
    program = Program(text, arguments, threads)
    assert blocks % program.cluster == 0, "a launch is whole clusters"
    for first in range(0, blocks, program.cluster):
        Cluster(program, memory, first, shared_bytes).run()
