"""Random bits, the same as in Weft, from a key that is a value of the file.

>>> import weft as wf
>>> key, data = wf.tensor([1, 2], dtype="uint32"), wf.tensor(0, dtype="uint64")
>>> random_words(key, data, (2,), wf.uint32, DRAW).shape
(2,)
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.onnx.exporting.rules import program

__all__ = ["DRAW", "random_words"]

DRAW = 0
"""The domain of numbers that are drawn, in which keys are not split."""
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


@program("random_bits")
def random_words(
    key: wf.Tensor, data: wf.Tensor, shape: Any, dtype: wf.DType, domain: int
) -> wf.Tensor:
    """Philox4x32 of ten rounds in uint64, the same bits as everywhere: blocks of four words."""
    words: Any = dtype.bits // 32
    for dim in shape:
        words = words * dim
    blocks = (words + 3) // 4
    low = _number(0xFFFFFFFF)
    numbers = wf.arange(blocks).astype(wf.uint64)  # [blocks]
    data = wf.expand_dims(data, axis=-1)  # [..., 1]
    parts = [numbers & low, _upper_half(numbers) | _number(domain << 16)]
    a, b, c, d = (*parts, data & low, _upper_half(data))
    keys = [wf.expand_dims(key[..., word], axis=-1).astype(wf.uint64) for word in (0, 1)]
    for step in range(_ROUNDS):
        first, second = a * _number(_MULTIPLIERS[0]), c * _number(_MULTIPLIERS[1])
        turns = [
            (k + _number(step * weyl & 0xFFFFFFFFFFFFFFFF)) & low
            for k, weyl in zip(keys, _WEYL, strict=True)
        ]
        a, b = _upper_half(second) ^ b ^ turns[0], second & low
        c, d = _upper_half(first) ^ d ^ turns[1], first & low
    batch = data.shape[:-1]
    columns = [wf.broadcast_to(word, (*batch, blocks)) for word in (a, b, c, d)]
    flat = wf.reshape(wf.stack(columns, axis=-1), (*batch, 4 * blocks))[..., :words]
    if dtype is wf.uint64:
        pairs = wf.reshape(flat, (*batch, words // 2, 2))
        flat = pairs[..., 0] | (pairs[..., 1] << _number(32))
    return wf.reshape(flat, (*batch, *shape)).astype(dtype)


def _number(value: int) -> wf.Tensor:
    return wf.tensor(value, dtype=wf.uint64)


def _upper_half(x: wf.Tensor) -> wf.Tensor:
    return x >> _number(32)
