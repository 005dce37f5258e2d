"""The small kernels around attention's backward pass.

Before it, each row of the result times its cotangent is summed, and the logs of the sums are scaled
for powers of two. Rows behind the last query get weights of zero, so that the pass needs no mask
for them. After it, the buffer of the queries' gradients, which lies in swizzled half tiles, is
scaled, cast and put into its place, and the counters become zeros again.
"""

from __future__ import annotations

import math

from weft.compiler.targets.cuda.attention.backward_memory import (
    HALF_TILE,
    side_count,
    side_numbers,
    tile_queries,
)
from weft.compiler.targets.cuda.attention.description import (
    AttentionKernel,
    AttentionLaunch,
    AttentionSizes,
    AttentionSpec,
)
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
)
from weft.compiler.targets.cuda.warpgroup import packed_pair, unpacked_pair

__all__ = [
    "after_kernel", "after_launch", "before_kernel", "before_launch", "buffer_numbers",
    "counter_numbers", "pad_kernel", "pad_launch", "row_numbers",
]  # fmt: skip

_THREADS = 256
_VECTOR = 8  # numbers of 16 bits that a thread reads at once


def _tiles(spec: AttentionSpec, sizes: AttentionSizes) -> int:
    """Tiles of queries of all heads."""
    return math.ceil(sizes.queries / tile_queries(spec)) * sizes.heads * sizes.batch


def row_numbers(spec: AttentionSpec, sizes: AttentionSizes) -> int:
    """Numbers of `logs` and of `products`: whole tiles of queries for each head."""
    return _tiles(spec, sizes) * tile_queries(spec)


def buffer_numbers(spec: AttentionSpec, sizes: AttentionSizes) -> int:
    """Numbers of the float32 buffer of the queries' gradients."""
    return HALF_TILE * counter_numbers(spec, sizes)


def counter_numbers(spec: AttentionSpec, sizes: AttentionSizes) -> int:
    """Counters, zeros before and after: one for each half tile of each side of a head."""
    return 2 * side_count(spec) * _tiles(spec, sizes)


def _array(name: str) -> list[Parameter]:
    """The parameters of an array [batch, heads, time, head] that is read without a tensor map."""
    strides = (f"{name}_batch_stride", f"{name}_head_stride", f"{name}_stride")
    return [Pointer(name), *map(Word, strides)]


def _row_address(kernel: Kernel, name: str, batch: Value, head: Value, row: Value) -> Value:
    index = kernel.let("u64", "mul.wide.u32", batch, kernel.parameter(f"{name}_batch_stride"))
    stride = kernel.parameter(f"{name}_head_stride")
    index = index + kernel.let("u64", "mul.wide.u32", head, stride)
    stride = kernel.parameter(f"{name}_stride")
    index = index + kernel.let("u64", "mul.wide.u32", row, stride)
    return kernel.parameter(name) + index * 2


def before_launch(spec: AttentionSpec, sizes: AttentionSizes) -> AttentionLaunch:
    """The launch of the kernel before the pass."""
    lanes = row_numbers(spec, sizes) * spec.head // _VECTOR
    return AttentionLaunch(math.ceil(lanes / _THREADS), sizes.parameter_words)


def before_kernel(spec: AttentionSpec) -> AttentionKernel:
    """`products` = sums of out · dout over rows, `logs` = sums · log2 e; +∞ behind the queries."""
    words = ("batch", "heads", "queries")
    parameters = [
        *_array("out"),
        *_array("dout"),
        Pointer("sums"),
        Pointer("logs"),
        Pointer("products"),
        *map(Word, words),
    ]
    kernel = Kernel("attention_rows", parameters, _THREADS)
    lanes, tile = spec.head // _VECTOR, tile_queries(spec)
    index = kernel.special_register("ctaid.x") * _THREADS + kernel.special_register("tid.x")
    heads, queries = kernel.parameter("heads"), kernel.parameter("queries")
    padded = (queries + (tile - 1)) // tile * tile
    number, lane = index // lanes, index % lanes
    line, row = number // padded, number % padded
    inside = (row < queries) & (line < heads * kernel.parameter("batch"))
    total = kernel.variable("f32", 0.0)
    factors = []
    for name in ("out", "dout"):
        place = _row_address(kernel, name, line // heads, line % heads, row)
        four = [kernel.variable("b32", 0) for _ in range(4)]
        place = kernel.address(place, lane, 2 * _VECTOR)
        kernel.do("ld.global.v4.b32", braces(four), at(place), when=inside)
        factors.append([x for pair in four for x in unpacked_pair(kernel, spec.dtype, pair)])
    for x, y in zip(*factors, strict=True):
        total = kernel.fma(x, y, total)
    distance = 1
    while distance < lanes:
        total = total + kernel.let("f32", "shfl.sync.bfly.b32", total, distance, 31, -1)
        distance *= 2
    _store_rows(kernel, (line, row, number), inside, lane.equals(0), total)
    return AttentionKernel.from_text(spec, kernel)


def _store_rows(
    kernel: Kernel, where: tuple[Value, Value, Value], inside: Value, leads: Value, total: Value
) -> None:
    line, row, number = where
    queries = kernel.parameter("queries")
    index = kernel.let("u64", "mul.wide.u32", line, queries)
    index = index + kernel.let("u64", "cvt.u64.u32", row)
    log = kernel.variable("f32", math.inf)
    kernel.do("ld.global.f32", log, at(kernel.parameter("sums") + index * 4), when=inside)
    exists = line < kernel.parameter("heads") * kernel.parameter("batch")
    for name, value in (("logs", log * math.log2(math.e)), ("products", total)):
        place = kernel.address(kernel.parameter(name), number, 4)
        kernel.do("st.global.f32", at(place), value, when=exists & leads)


def pad_launch(spec: AttentionSpec, sizes: AttentionSizes) -> AttentionLaunch:
    """The launch of the kernel before the pass, where rows are summed already."""
    return AttentionLaunch(math.ceil(row_numbers(spec, sizes) / _THREADS), sizes.parameter_words)


def pad_kernel(spec: AttentionSpec) -> AttentionKernel:
    """`products` = `delta`, the sums of out · dout over rows, and `logs` = `sums` · log2 e.

    Behind the last query of a head they are 0 and +∞, so that the pass gives it no weight. Sums of
    scores with a mask that is added stay as they are, as its largest numbers times log2 e overflow.
    A guarded row that sees no key has a sum of 1 here: its weights are 2^-∞.
    """
    parameters = [*map(Pointer, ("sums", "delta", "logs", "products")),
                  *map(Word, ("batch", "heads", "queries"))]  # fmt: skip
    kernel = Kernel("attention_padding", parameters, _THREADS)
    tile = tile_queries(spec)
    number = kernel.special_register("ctaid.x") * _THREADS + kernel.special_register("tid.x")
    queries = kernel.parameter("queries")
    padded = (queries + (tile - 1)) // tile * tile
    line, row = number // padded, number % padded
    exists = line < kernel.parameter("heads") * kernel.parameter("batch")
    inside = (row < queries) & exists
    index = kernel.let("u64", "mul.wide.u32", line, queries) + kernel.let("u64", "cvt.u64.u32", row)
    log, product = kernel.variable("f32", math.inf), kernel.variable("f32", 0.0)
    for name, value in (("sums", log), ("delta", product)):
        kernel.do("ld.global.f32", value, at(kernel.parameter(name) + index * 4), when=inside)
    if spec.guarded:
        log = kernel.select(log.equals(-math.inf), 0.0, log, "f32")
    exponent = log if spec.adds else log * math.log2(math.e)
    for name, value in (("logs", exponent), ("products", product)):
        place = kernel.address(kernel.parameter(name), number, 4)
        kernel.do("st.global.f32", at(place), value, when=exists)
    return AttentionKernel.from_text(spec, kernel)


def after_launch(spec: AttentionSpec, sizes: AttentionSizes) -> AttentionLaunch:
    """The launch of the kernel after the pass: a block for each half tile."""
    return AttentionLaunch(counter_numbers(spec, sizes), sizes.parameter_words)


def after_kernel(spec: AttentionSpec) -> AttentionKernel:
    """The gradient of the queries, `dq`, out of the buffer of half tiles, `buffer`."""
    words = ("heads", "queries", "head")
    parameters = [*_array("dq"), Pointer("buffer"), Pointer("counters"), *map(Word, words)]
    kernel = Kernel("attention_queries", parameters, 128)
    tile, halves = tile_queries(spec), 2 * side_count(spec)  # of each tile
    half, thread = kernel.special_register("ctaid.x"), kernel.special_register("tid.x")
    heads, queries = kernel.parameter("heads"), kernel.parameter("queries")
    tiles = (queries + (tile - 1)) // tile
    side, number = half & (halves - 1), half >> (halves.bit_length() - 1)
    line = number // tiles
    first_row = (number % tiles) * tile
    offset = kernel.let("u64", "mul.wide.u32", half, 4 * HALF_TILE)
    source = kernel.address(kernel.parameter("buffer") + offset, thread, 32)
    eights = [kernel.registers("f32", "number", 8) for _ in range(4)]
    for part, eight in enumerate(eights):
        for side_of_pair in (0, 1):
            four = braces(eight[4 * side_of_pair : 4 * side_of_pair + 4])
            kernel.do("ld.global.v4.f32", four, at(source, 4096 * part + 16 * side_of_pair))
    for part, eight in enumerate(eights):
        # Sixteen rows of the half tile; eight threads hold a row, two units of four each.
        row = (thread >> 3) + 16 * part
        column = ((thread & 7) ^ ((row & 7) >> 1)) * 8
        swapped = (row & 1).equals(1)
        ordered = [kernel.select(swapped, eight[i ^ 4], eight[i], "f32") for i in range(8)]
        if halves > 2:
            # First rows 0 to 7 of each sixteen, then the others, as consumers hand them over.
            row = (((row & 31) >> 3) << 4) + ((row >> 5) << 3) + (row & 7)
        if side_numbers(spec) == 64:
            row = row + side * 64
        else:
            column = column + side * 64
        row = row + first_row
        place = _row_address(kernel, "dq", line // heads, line % heads, row)
        place = kernel.address(place, column, 2)
        scaled = [value * spec.factor for value in ordered]
        pairs = [packed_pair(kernel, spec.dtype, *scaled[i : i + 2]) for i in range(0, 8, 2)]
        inside = (row < queries) & (column < kernel.parameter("head"))
        kernel.do("st.global.v4.b32", at(place), braces(pairs), when=inside)
    counter = kernel.address(kernel.parameter("counters"), half, 4)
    kernel.do("st.global.u32", at(counter), 0, when=thread.equals(0))
    return AttentionKernel.from_text(spec, kernel)
