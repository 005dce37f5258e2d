"""The kernel of random bits: Philox4x32 with 10 rounds, as `weft.ops.random_bits` defines it.

Blocks of four words are in vectors, and divided over threads where there is one key.

>>> import weft as wf
>>> draw = lambda key: wf.random.bits((3,), key=key)
>>> key = wf.random.key(7)
>>> wf.jit(draw)(key).tolist() == draw(key).tolist()
True
"""

from __future__ import annotations

from weft.compiler.lowering.builder import ZERO, KernelBuilder, NodeKernel, kernel_of, nest
from weft.core.dtypes import uint32, uint64
from weft.core.shapes import size
from weft.ir import scalars
from weft.ir.loops import Store
from weft.ir.scalars import Scalar
from weft.ops.random_bits import philox


@kernel_of("random_bits")
def random_bits(builder: KernelBuilder) -> NodeKernel:
    """Random words of a shape for each key."""
    rows, shape = size(builder.shape(1)), size(builder.params["shape"])
    single = rows == 1
    row = ZERO if single else scalars.index("row")
    block, count = scalars.index("block"), builder.extent(shape)
    values = _block_words(builder, row, block)
    each = len(values)
    stores = []
    for number, value in enumerate(values):
        place = block * each + number
        stores.append(Store(builder.result, row * count + place, value, scalars.less(place, count)))
    blocks = (block, (count + (each - 1)) // each)
    loops = [blocks] if single else [(row, builder.extent(rows)), blocks]
    work = rows * shape * builder.limits.random_word_operations
    return builder.kernel(nest(loops, tuple(stores)), work)


def _block_words(builder: KernelBuilder, row: Scalar, block: Scalar) -> list[Scalar]:
    """What a block of a row gives, as elements of the result."""
    key, data = builder.operands
    words = [scalars.cast(key[row * 2 + place], uint64) for place in range(2)]
    rest = (builder.params["domain"] << 16, data[row] & 0xFFFFFFFF, data[row] >> 32)
    found = philox(scalars.cast(block, uint64), (words[0], words[1]), rest)
    if builder.result.dtype is uint32:
        return [scalars.cast(word, uint32) for word in found]
    return [low | (high << 32) for low, high in (found[:2], found[2:])]
