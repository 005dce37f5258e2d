"""Random bits from a key and a position, and the generator that hands out keys.

Bits come from Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
easy as 1, 2, 3", SC'11), the generator of cuRAND, PyTorch's and TensorFlow's GPU kernels. Its block
cipher maps a key of 64 bits and a counter of 128 bits to 128 random bits, so an element depends on
its key and its place alone: not on the device, the order of evaluation, or what else is drawn.
Philox was chosen over Threefry2x32 because its counter has room for the place, the data folded
into a key, and a domain that keeps draws and derived keys apart; and because it needs half as many
array passes for each word.

The counter's words are: block, block's high 16 bits and domain, data's low and high word.

>>> from weft.ops.random_bits import philox
>>> [hex(word) for word in philox(0, (0, 0), (0, 0, 0))]
['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.core.arrays import is_concrete, to_host
from weft.core.dtypes import DType, uint8, uint32, uint64
from weft.core.errors import ArgumentError, DTypeError, ShapeError, TraceError
from weft.core.forks import renew_in_children
from weft.core.shapes import Dimension, Shape, require_equal
from weft.core.types import TensorType
from weft.ir.batching import BatchTrace, to_front
from weft.ir.derivatives import constant
from weft.ir.dispatch import apply
from weft.ir.forward import without_zero_tangents
from weft.ir.kinds import Random
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor, Traced, traces, wrap
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import add

__all__: list[str] = []

Array = np.ndarray[Any, Any]
DRAW, SPLIT, FOLD = 0, 1, 2
"""Domains: numbers, keys made by splitting, keys with data folded in."""
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_ROUNDS = 10
_CHUNK = 1 << 13
"""Blocks computed together: what the second-level cache holds."""
_FEW = 12
"""Blocks that are faster in Python integers than in arrays."""


def philox(block: Any, key: tuple[Any, Any], rest: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    """The four words of a block: of integers, or of arrays of them in uint64."""
    a, b, c, d = block & _LOW, (block >> 32) | rest[0], rest[1], rest[2]
    low, high = key
    for step in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> 32) ^ b ^ ((low + step * _WEYL[0]) & _LOW), second & _LOW
        c, d = (first >> 32) ^ d ^ ((high + step * _WEYL[1]) & _LOW), first & _LOW
    return a, b, c, d


def philox_rounds() -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """For each round the two multipliers, and what is added to the two words of the key."""
    return [
        (_MULTIPLIERS, ((step * _WEYL[0]) & _LOW, (step * _WEYL[1]) & _LOW))
        for step in range(_ROUNDS)
    ]


def _bits(key: Array, data: Array, shape: Any, dtype: DType, domain: int) -> Array:
    words = math.prod(shape) * (dtype.bits // 32)
    blocks, rows = -(-words // 4), data.size
    out = np.empty((rows, blocks, 4), np.uint32)
    keys, datas = key.reshape(rows, 2), data.reshape(rows)
    if rows * blocks <= _FEW:
        _fill_few(out, keys.tolist(), datas.tolist(), domain)
    else:
        _fill_many(out, keys.astype(np.uint64), datas, domain)
    flat = out.reshape(rows, blocks * 4)[:, :words]
    if dtype is uint64:  # the first word is the low one, on every machine
        flat = flat[:, ::2].astype(np.uint64) | (flat[:, 1::2].astype(np.uint64) << 32)
    return np.ascontiguousarray(flat).reshape((*data.shape, *shape))


def _fill_many(out: Array, keys: Array, datas: Array, domain: int) -> None:
    """Write words, [rows, blocks, 4], in stretches of rows and blocks that stay in the cache."""
    rows, blocks, _ = out.shape
    tall = max(1, _CHUNK // blocks)
    for row in range(0, rows, tall):
        key, data = keys[row : row + tall], datas[row : row + tall, None]
        for start in range(0, blocks, _CHUNK):
            part = out[row : row + tall, start : start + _CHUNK]
            block = np.arange(start, start + part.shape[1], dtype=np.uint64)[None, :]
            rest = domain << 16, data & _LOW, data >> 32
            for place, word in enumerate(philox(block, (key[:, :1], key[:, 1:]), rest)):
                part[:, :, place] = word


def _fill_few(out: Array, keys: list[list[int]], datas: list[int], domain: int) -> None:
    """The same in Python integers, which are faster than arrays of few elements."""
    for row, ((low, high), data) in enumerate(zip(keys, datas, strict=True)):
        for block in range(out.shape[1]):
            rest = domain << 16, data & _LOW, data >> 32
            out[row, block] = philox(block, (low, high), rest)


def _bits_type(
    key: TensorType, data: TensorType, shape: Shape, dtype: DType, domain: int
) -> TensorType:
    if key.dtype is not uint32 or data.dtype is not uint64:
        raise DTypeError(
            "random_bits",
            "a key is two uint32 words and the data beside it is uint64",
            expected="key: u32[..., 2], data: u64[...]",
            got={"key": key, "data": data},
            fix="make the key with wf.random.key(0)",
        )
    if key.ndim != data.ndim + 1 or key.shape[-1] != 2:
        raise ShapeError(
            "random_bits",
            "a key has two words",
            expected="key: u32[..., 2], data: u64[...]",
            got={"key": key, "data": data},
            fix="make the key with wf.random.key(0)",
        )
    for a, b in zip(key.shape, data.shape, strict=False):
        require_equal(
            "random_bits",
            a,
            b,
            expected="as many keys as data",
            got={"key": key, "data": data},
            fix="broadcast the data to the keys",
            what="the number of keys and of data",
        )
    if dtype not in (uint32, uint64):
        raise DTypeError(
            "random_bits",
            "bits come in words of 32 or 64",
            expected="uint32 or uint64",
            got={"dtype": dtype},
            fix='draw dtype="uint32" and convert',
        )
    return TensorType(dtype, (*data.shape, *shape))


def _batch_bits(
    size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], **params: Any
) -> tuple[Tensor, int]:
    fronts = [to_front(size, x, axis) for x, axis in zip(operands, axes, strict=True)]
    return apply(random_bits, *fronts, **params), 0


def _samples() -> list[Sample]:
    key, keys = np.array([7, 9], np.uint32), np.array([[0, 1], [2, 3]], np.uint32)
    zero, data = np.zeros((), np.uint64), np.array([5, 1 << 40], np.uint64)
    return [
        Sample((key, zero), {"shape": (3, 2), "dtype": uint32, "domain": DRAW}),
        Sample((key, zero), {"shape": (), "dtype": uint64, "domain": DRAW}),
        Sample((key, zero), {"shape": (0, 4), "dtype": uint32, "domain": DRAW}),
        Sample((keys, data), {"shape": (2,), "dtype": uint32, "domain": FOLD}),
    ]


def _mistakes() -> list[Mistake]:
    key, zero = np.zeros(2, np.uint32), np.zeros((), np.uint64)
    params = {"shape": (), "dtype": uint32, "domain": DRAW}
    words = "a key is two uint32 words and the data beside it is uint64"
    wide = {**params, "dtype": uint8}
    return [
        Mistake((key.astype(np.int64), zero), params, DTypeError, words),
        Mistake((np.zeros(3, np.uint32), zero), params, ShapeError, "a key has two words"),
        Mistake((key, zero), wide, DTypeError, "bits come in words of 32 or 64"),
    ]


_discrete = constant("random bits are integers")

random_bits = Primitive(
    "random_bits",
    "Random words of a shape for each key, of the same value wherever and whenever computed.",
    kind=Random(),
    sharding=shardings.of_random_bits,
    type_rule=_bits_type,
    reference=_bits,
    derivatives=(_discrete, _discrete),
    batch=_batch_bits,
    samples=_samples,
    mistakes=_mistakes,
)


def seed_key(seed: int) -> Tensor:
    """The key of a seed: its low and its high word."""
    if not 0 <= seed < 1 << 64:
        raise ArgumentError(
            "random.key",
            "the seed does not fit a key",
            expected="an integer of 0 to 2**64 - 1",
            got={"seed": seed},
            fix="wf.random.key(0)",
        )
    return wrap(np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))


def fold_key(key: Tensor, data: Tensor) -> Tensor:
    """The key that a key and data (uint64) make together."""
    return apply(random_bits, key, data, shape=(2,), dtype=uint32, domain=FOLD)


class _Here(threading.local):
    """What stands for a generator's counter in this thread, while a function is traced.

    A counter of a trace that has ended stands for nothing any more.
    """

    counter: Tensor | None = None


class Generator:
    """A key and a counter: draw number n uses the key with n folded in.

    Both are tensor handles, rebound by `seed` and by each draw, so that a transform can lift them:
    while a function is traced, `use_counter` puts a traced counter in place of this thread's own.
    """

    def __init__(self, seed: int = 0) -> None:
        self.key = seed_key(seed)
        self.counter = wrap(np.zeros((), np.uint64))
        self._lock = renew_in_children(threading.RLock())
        self.here = _Here()

    def seed(self, seed: int) -> None:
        """Begin again from a seed."""
        self.restore(seed_key(seed), wrap(np.zeros((), np.uint64)))

    def restore(self, key: Tensor, counter: Tensor) -> None:
        """Continue from a key and a counter; while a function is traced, its counter is meant."""
        with self._lock:
            self.key._value = key._value
            self._put(counter)

    def state(self) -> tuple[Tensor, Tensor]:
        """The key and the counter of the next draw."""
        with self._lock:
            return wrap(self.key._value), wrap(self.current()._value)

    def draw(self, op: str) -> Tensor:
        """The key of the next draw."""
        refuse_batches(op)
        with self._lock:
            handle = self.current()
            if is_concrete(handle._value):
                handle._value = to_host(handle._value)
            key = fold_key(self.key, wrap(handle._value))  # the handle: a program reads it anew
            handle._value = add(wrap(handle._value), _ONE)._value
        return key

    def draw_number(self, op: str) -> tuple[Tensor, int | None]:
        """The generator's key and the number of the next draw, of which `draw` makes a key.

        Where the counter is traced, the key of the next draw, and no number.
        """
        refuse_batches(op)
        with self._lock:
            handle = self.current()
            if not is_concrete(handle._value):
                return self.draw(op), None
            number = int(to_host(handle._value))
            handle._value = np.array((number + 1) % (1 << 64), np.uint64)
            return wrap(self.key._value), number

    def current(self) -> Tensor:
        """The handle of the counter that this thread draws from."""
        traced = self.here.counter
        if traced is not None and _is_leftover(traced):
            traced = self.here.counter = None
        return self.counter if traced is None else traced

    def _put(self, counter: Tensor) -> None:
        """Count on from a counter; only concrete ones outlast the trace that they belong to.

        How often a loop draws that `wf.ir.trace` records is known when its graph runs: the counter
        that it comes to is that of this thread's draws up to the end of the trace.
        """
        handle, value = self.current(), without_zero_tangents(counter._value)
        if handle is self.counter and isinstance(value, Traced):
            self.here.counter = wrap(value)
        else:
            handle._value = value

    @contextmanager
    def use_counter(self, counter: Tensor) -> Iterator[Tensor]:
        """Draw from another counter inside a `with` block, in this thread; gives its handle."""
        before = self.here.counter
        handle = self.here.counter = wrap(counter._value)
        try:
            yield handle
        finally:
            self.here.counter = before

    def advance(self, counter: Tensor) -> None:
        """Take over the counter that a traced function came to."""
        with self._lock:
            self._put(counter)


def refuse_batches(op: str) -> None:
    """Refuse to draw from the global generator inside of a vmap."""
    if any(isinstance(trace, BatchTrace) for trace in traces.stack):
        raise TraceError(
            op,
            "the global generator would give every element of a vmap the same numbers",
            expected="a key for each element of the batch",
            got={"key": None},
            fix="keys = wf.random.split(wf.random.key(0), n), map over them, and pass key=key",
        )


def _is_leftover(counter: Tensor) -> bool:
    """Whether a counter belongs to a trace that has ended."""
    return isinstance(counter._value, Traced) and not counter._value.trace.active


_ONE = wrap(np.ones((), np.uint64))
GENERATOR = Generator()
"""The generator behind every function of `wf.random` that is given no key."""
