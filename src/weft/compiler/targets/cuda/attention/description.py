"""What attention is: dtype, head size, mask, and the kernels that are made of it, all as data.

>>> AttentionSpec("bfloat16", 64).scale
0.125
>>> padded_head(96)
128
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Self

from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    TensorMap,
    Value,
    Word,
)
from weft.compiler.targets.cuda.warpgroup import ROW_BYTES, bulk_load
from weft.core.errors import UnsupportedError
from weft.core.records import frozen

__all__ = [
    "AttentionKernel", "AttentionLaunch", "AttentionSizes", "AttentionSpec", "extra_parameters",
    "head_map", "padded_head",
]  # fmt: skip

HEAD_CHUNK = 64  # numbers of a head in one row of 128 bytes
HEADS = (64, 128, 256)
"""The sizes of a head that kernels are written for; zeros stand behind smaller ones."""
MASKS = ("", "bool", "bfloat16", "float16", "float32")


def padded_head(head: int) -> int:
    """The smallest size of a head that a kernel is written for; 0 where none is large enough."""
    return next((each for each in HEADS if head <= each), 0)


@frozen(slots=False)
class AttentionSpec:
    """softmax(q kᵀ scale) v, for each head; with `causal`, query i sees keys up to i + offset.

    Queries are [batch, heads, queries, head], keys and values [batch, key heads, keys, head], with
    any strides but the last, whose numbers lie side by side; rows start at multiples of 16 bytes.
    A group of heads / key heads consecutive heads of queries shares one of keys. A mask of truth
    values says which keys a query sees, one of numbers is added to the scores. With `kept` below 1
    weights are dropped as `wf.random.dropout` does. `guarded` rows that see no key are zeros.
    """

    dtype: str
    head: int
    causal: bool = True
    scale: float | None = None
    mask: str = ""
    aligned: int = 1  # how many neighbours of a mask can be read at once: 1, 2, 8 or 16
    kept: float = 1.0
    guarded: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("bfloat16", "float16") or self.head not in HEADS:
            raise UnsupportedError(
                "attention",
                "the kernel is for 16-bit floats and heads of 64, 128 or 256",
                expected="bfloat16 or float16, 64, 128 or 256",
                got={"dtype": self.dtype, "head": self.head},
                fix="pad the heads with zeros, or compute attention from products",
            )
        assert self.mask in MASKS
        if self.scale is None:
            object.__setattr__(self, "scale", 1 / math.sqrt(self.head))

    @property
    def chunks(self) -> int:
        """Chunks of 64 numbers that a head is."""
        return self.head // HEAD_CHUNK

    @property
    def factor(self) -> float:
        """What products of queries and keys are multiplied by."""
        assert self.scale is not None
        return self.scale

    @property
    def adds(self) -> bool:
        """Whether a mask of numbers is added: scores are scaled before, not in the exponent."""
        return self.mask not in ("", "bool")

    @property
    def log_factor(self) -> float:
        """What scores are multiplied by to be exponents of two."""
        return math.log2(math.e) * (1.0 if self.adds else self.factor)

    @property
    def drops(self) -> bool:
        """Whether weights are dropped."""
        return self.kept < 1


@frozen(slots=False)
class AttentionSizes:
    """The sizes of one launch."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    offset: int = 0
    head: int = HEADS[-1]  # numbers that are there, where they are fewer than the kernel's
    mask_strides: tuple[int, int, int] = (0, 0, 0)  # from batch to batch, head to head, row to row

    @property
    def parameter_words(self) -> dict[str, int]:
        """The numbers that kernels' parameters of these names get."""
        return {
            "batch": self.batch,
            "heads": self.heads,
            "group": self.heads // self.key_heads,
            "key_heads": self.key_heads,
            "queries": self.queries,
            "keys": self.keys,
            "offset": self.offset,
            "head": self.head,
            **dict(zip(_MASK_STRIDES, self.mask_strides, strict=True)),
        }


@frozen(slots=False)
class AttentionLaunch:
    """How many blocks a launch has, and the numbers its parameters get."""

    blocks: int
    words: dict[str, int]


@frozen(slots=False)
class AttentionKernel:
    """A kernel, ready for the driver: text, and what a launch must know."""

    spec: AttentionSpec
    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...] = field(repr=False)

    @classmethod
    def from_text(cls, spec: AttentionSpec, kernel: Kernel, shared_bytes: int = 0) -> Self:
        """The kernel whose text is written."""
        return cls(
            spec=spec,
            name=kernel.name,
            text=kernel.text(),
            threads=kernel.threads,
            shared_bytes=shared_bytes,
            parameters=kernel.parameters,
        )


_MASK_STRIDES = ("mask_batch_stride", "mask_head_stride", "mask_row_stride")


def extra_parameters(spec: AttentionSpec) -> list[Parameter]:
    """The parameters of a mask and of dropout, where there are any."""
    mask = [Pointer("mask"), *map(Word, _MASK_STRIDES)] if spec.mask else []
    return [*mask, *([Pointer("key"), Pointer("data")] if spec.drops else [])]


def head_map(name: str, dtype: str, time: str, rows: int) -> TensorMap:
    """The tensor map of queries, keys, values or results, in boxes of 64 numbers of some rows."""
    return TensorMap(name, dtype, ("head", time, "heads", "batch"), (HEAD_CHUNK, rows, 1, 1))


def load_head_rows(
    kernel: Kernel,
    source: Value,
    target: Value,
    full: Value,
    where: tuple[Value, Value, Value],
    size: tuple[int, int],
    first: Value | int = 0,
) -> None:
    """Start the copies of some rows of a head: one for each 64 of its numbers.

    where: the first row, the head and the batch; size: numbers and rows; first: which number is
    the first; full: the barrier that is told of the copies.
    """
    numbers, rows = size
    for chunk in range(numbers // HEAD_CHUNK):
        place = target + chunk * rows * ROW_BYTES
        bulk_load(kernel, source, [first + HEAD_CHUNK * chunk, *where], place, full)
