"""What attention is: dtype, head size, mask, and the kernels that are made of it, all as data.

>>> AttentionSpec("bfloat16", 64).scale
0.125
"""

from __future__ import annotations

import math
from dataclasses import field

from weft.compiler.targets.cuda.ptx_writer import Parameter, TensorMap
from weft.core.errors import UnsupportedError
from weft.core.records import frozen

__all__ = ["AttentionKernel", "AttentionLaunch", "AttentionSizes", "AttentionSpec", "head_map"]

HEAD_CHUNK = 64  # numbers of a head in one row of 128 bytes


@frozen(slots=False)
class AttentionSpec:
    """softmax(q kᵀ scale) v, for each head; with `causal`, query i sees keys up to i + offset.

    Queries are [batch, heads, queries, head], keys and values [batch, key heads, keys, head], with
    any strides but the last, whose numbers lie side by side; rows start at multiples of 16 bytes.
    A group of heads / key heads consecutive heads of queries shares one of keys.
    """

    dtype: str
    head: int
    causal: bool = True
    scale: float = 0.0

    def __post_init__(self) -> None:
        if self.dtype not in ("bfloat16", "float16") or self.head not in (64, 128):
            raise UnsupportedError(
                "attention",
                "the kernel is for 16-bit floats and heads of 64 or 128",
                expected="bfloat16 or float16, 64 or 128",
                got={"dtype": self.dtype, "head": self.head},
                fix="pad the heads with zeros, or compute attention from products",
            )
        if not self.scale:
            object.__setattr__(self, "scale", 1 / math.sqrt(self.head))

    @property
    def chunks(self) -> int:
        """Chunks of 64 numbers that a head is."""
        return self.head // HEAD_CHUNK


@frozen(slots=False)
class AttentionSizes:
    """The sizes of one launch."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    offset: int = 0

    @property
    def words(self) -> dict[str, int]:
        """The numbers that kernels' parameters of these names get."""
        return {
            "batch": self.batch,
            "heads": self.heads,
            "group": self.heads // self.key_heads,
            "key_heads": self.key_heads,
            "queries": self.queries,
            "keys": self.keys,
            "offset": self.offset,
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


def head_map(name: str, dtype: str, time: str, rows: int) -> TensorMap:
    """The tensor map of queries, keys, values or results, in boxes of 64 numbers of some rows."""
    return TensorMap(name, dtype, ("head", time, "heads", "batch"), (HEAD_CHUNK, rows, 1, 1))
