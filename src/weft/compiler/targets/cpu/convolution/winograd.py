"""Convolutions of 3x3 by the algorithm of Winograd, with tiles of 4x4 results: F(4x4, 3x3).

A tile of 6x6 elements becomes 36 numbers for each channel, the weights become 36 for each pair of
channels; then there are 36 products, with a quarter of the multiplications, and 36 sums become 16
results. The points are 0, ±3/4, ±3/2 and infinity: their powers are exact in binary, and their
error is a third of that of 0, ±1, ±2 (docs/design/compiler.md). The gradient of the input is the
same with weights turned by half; that of the weights is the transpose, from tiles of 6x6 and 4x4
to 3x3.

>>> bool(abs(OUTPUT @ (WEIGHT @ [1.0, 2.0, 3.0] * (INPUT @ [1.0, 0, 0, 0, 0, 0]))).round(6)[0] == 1)
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.compiler.targets.cpu.convolution.frames import (
    FRAME,
    frame_bytes,
    named_numbers,
    place_block,
)
from weft.compiler.targets.cpu.products.tiles import Tile
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.ir_vectors import Vectors

POINTS = 0.75, 1.5
_A, _B = (point * point for point in POINTS)
_N, _M = 1 / (2 * _A * (_A - _B)), 1 / (2 * _B * (_B - _A))
INPUT = np.array(
    [
        [_A * _B, 0, -(_A + _B), 0, 1, 0],
        [0, -POINTS[0] * _B, -_B, POINTS[0], 1, 0],
        [0, POINTS[0] * _B, -_B, -POINTS[0], 1, 0],
        [0, -POINTS[1] * _A, -_A, POINTS[1], 1, 0],
        [0, POINTS[1] * _A, -_A, -POINTS[1], 1, 0],
        [0, _A * _B, 0, -(_A + _B), 0, 1],
    ]
)
"""From six elements of x to six numbers."""
WEIGHT = np.array(
    [
        [1 / (_A * _B), 0, 0],
        [_N, _N * POINTS[0], _N * _A],
        [_N, -_N * POINTS[0], _N * _A],
        [_M, _M * POINTS[1], _M * _B],
        [_M, -_M * POINTS[1], _M * _B],
        [0, 0, 1],
    ]
)
"""From three weights to six numbers."""
OUTPUT = np.array(
    [
        [1, 1, 1, 1, 1, 0],
        [0, POINTS[0], -POINTS[0], POINTS[1], -POINTS[1], 0],
        [0, _A, _A, _B, _B, 0],
        [0, POINTS[0] ** 3, -(POINTS[0] ** 3), POINTS[1] ** 3, -(POINTS[1] ** 3), 1],
    ]
)
"""From six sums to four results."""
SIDE, RESULT, COUNT = 6, 4, 36
SHARED = (*FRAME, "strips", "across", "most")
WINOGRAD = (
    *SHARED, "y_image", "height", "width", "channels", "outputs", "parts", "rows_at", "terms_at",
    "deep", "w_panel", "w_term", "w_first", "w_tap",
)  # fmt: skip
"""What `winograd` is told; the tables follow."""
WEIGHTS = (
    *SHARED, "channels", "outputs", "splits", "channel_parts", "output_parts", "rows_at",
    "terms_at", "second",
)  # fmt: skip
"""What `winograd_weights` is told; tables and the frame of y follow."""

Transform = Callable[[Vectors, Sequence[str]], list[str]]


def winograd_functions(tile: Tile) -> list[IRBuilder]:
    """The functions of convolutions by Winograd's method."""
    return [
        _input_function(tile),
        _result_function(tile),
        _spread_function(tile),
        _weight_function(tile),
        _weight_gradient_function(tile),
        _winograd(tile),
        _winograd_weights(tile),
    ]


def _vectors(out: IRBuilder, tile: Tile) -> Vectors:
    return Vectors(out, tile.dtype, tile.lanes, fused=tile.fused)


def _input(v: Vectors, d: Sequence[str]) -> list[str]:
    """`INPUT` times six vectors: rows of opposite points share their even and odd parts."""
    (a, b), (p, q) = POINTS, (_A, _B)
    found = [v.scale_and_add(p * q, d[0], v.scale_and_add(-(p + q), d[2], d[4]))]
    for point, other in ((a, q), (b, p)):
        even, odd = v.scale_and_add(-other, d[2], d[4]), v.scale_and_add(-other, d[1], d[3])
        found += [v.scale_and_add(point, odd, even), v.scale_and_add(-point, odd, even)]
    return [*found, v.scale_and_add(p * q, d[1], v.scale_and_add(-(p + q), d[3], d[5]))]


def _output(v: Vectors, m: Sequence[str]) -> list[str]:
    """`OUTPUT` times six vectors."""
    (a, b), (p, q) = POINTS, (_A, _B)
    even, odd = v.add(m[1], m[2]), v.sub(m[1], m[2])
    more, less = v.add(m[3], m[4]), v.sub(m[3], m[4])
    return [
        v.add(m[0], v.add(even, more)),
        v.scale_and_add(a, odd, v.scale_and_add(b, less)),
        v.scale_and_add(p, even, v.scale_and_add(q, more)),
        v.scale_and_add(a**3, odd, v.scale_and_add(b**3, less, m[5])),
    ]


def _transform_output(v: Vectors, e: Sequence[str]) -> list[str]:
    """The transpose of `OUTPUT` times four vectors."""
    found = [e[0]]
    for point in POINTS:
        even = v.scale_and_add(point**2, e[2], e[0])
        odd = v.scale_and_add(point**2, e[3], e[1])
        found += [v.scale_and_add(point, odd, even), v.scale_and_add(-point, odd, even)]
    return [*found, e[3]]


def _transform_square(v: Vectors, square: list[list[str]], transform: Transform) -> list[list[str]]:
    """A transform of the columns and then of the rows of a square."""
    columns = [transform(v, list(column)) for column in zip(*square, strict=True)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return [transform(v, row) for row in rows]


def _tiles(name: str, tile: Tile, size: int, step: int, transform: Transform) -> IRBuilder:
    """A function that turns all tiles of a frame into `COUNT` matrices of tiles by channels.

    Frames of `%many` images are `%frame0` by `%frame2` pixels of `%wide` elements.
    """
    element = Type(tile.dtype).text
    given = ("many", "strips", "across", "frame0", "frame2", "wide", "most")
    out = IRBuilder(name, ("ptr %x", "ptr %to", *(f"i64 %{each}" for each in given)))
    v = _vectors(out, tile)
    line, plane = out.mul("%frame2", "%wide"), out.mul("%most", "%wide")
    with out.loop(0, "%many") as image, out.loop(0, "%strips") as i, out.loop(0, "%across") as j:
        row = out.add(out.mul(image, "%frame0"), out.mul(i, step))
        start = out.add(out.mul(row, line), out.mul(out.mul(j, step), "%wide"))
        number = out.add(out.mul(out.add(out.mul(image, "%strips"), i), "%across"), j)
        with out.loop(0, "%wide", tile.lanes) as c:
            first = out.at(element, "%x", out.add(start, c))
            square = []
            for k in range(size):
                begin = out.at(element, first, out.mul(line, k))
                square.append(
                    [v.load(out.at(element, begin, out.mul("%wide", m))) for m in range(size)]
                )
            target = out.at(element, "%to", out.add(out.mul(number, "%wide"), c))
            made = _transform_square(v, square, transform)
            for k, values in enumerate(made):
                for m, value in enumerate(values):
                    place = out.mul(plane, k * SIDE + m)
                    v.store(value, out.at(element, target, place))
    return out


def _input_function(tile: Tile) -> IRBuilder:
    return _tiles("winograd_seen", tile, SIDE, RESULT, _input)


def _spread_function(tile: Tile) -> IRBuilder:
    return _tiles("winograd_spread", tile, RESULT, RESULT, _transform_output)


def _result_function(tile: Tile) -> IRBuilder:
    """A function that turns sums [COUNT, most, panel] into results, without those outside y."""
    element = Type(tile.dtype).text
    given = [
        "many",
        "strips",
        "across",
        "from",
        "height",
        "width",
        "pixel",
        "image",
        "wide",
        "most",
    ]
    out = IRBuilder("winograd_made", ("ptr %m", "ptr %y", *(f"i64 %{each}" for each in given)))
    v = _vectors(out, tile)
    plane = out.mul("%most", tile.columns)
    with out.loop(0, "%many") as image, out.loop(0, "%strips") as i, out.loop(0, "%across") as j:
        number = out.add(out.mul(out.add(out.mul(image, "%strips"), i), "%across"), j)
        row, column = out.add(out.mul(i, RESULT), "%from"), out.mul(j, RESULT)
        first = out.add(out.mul(image, "%image"), 0)
        with out.loop(0, "%wide", tile.lanes) as c:
            source = out.at(element, "%m", out.add(out.mul(number, tile.columns), c))
            square = [
                [v.load(out.at(element, source, out.mul(plane, k * SIDE + n))) for n in range(SIDE)]
                for k in range(SIDE)
            ]
            for k, values in enumerate(_transform_square(v, square, _output)):
                here = out.add(row, k)
                with out.when(out.test("slt", here, "%height")):
                    for n, value in enumerate(values):
                        there = out.add(column, n)
                        with out.when(out.test("slt", there, "%width")):
                            at = out.mul(out.add(out.mul(here, "%width"), there), "%pixel")
                            place = out.add(out.add(first, at), c)
                            v.store(value, out.at(element, "%y", place))
    return out


def _weight(v: Vectors, w: Sequence[str]) -> list[str]:
    """`WEIGHT` times three vectors."""
    found = [v.scale_and_add(float(WEIGHT[0, 0]), w[0])]
    for row in (1, 3):
        first, second, third = (float(each) for each in WEIGHT[row])
        even, odd = (
            v.scale_and_add(first, w[0], v.scale_and_add(third, w[2])),
            v.scale_and_add(second, w[1]),
        )
        found += [v.add(even, odd), v.sub(even, odd)]
    return [*found, w[2]]


def _backward(v: Vectors, p: Sequence[str]) -> list[str]:
    """The transpose of `WEIGHT` times six vectors."""
    a, b = WEIGHT[1], WEIGHT[3]
    even, odd = v.add(p[1], p[2]), v.sub(p[1], p[2])
    more, less = v.add(p[3], p[4]), v.sub(p[3], p[4])
    first = v.scale_and_add(float(a[0]), even, v.scale_and_add(float(b[0]), more))
    third = v.scale_and_add(float(a[2]), even, v.scale_and_add(float(b[2]), more, p[5]))
    return [
        v.scale_and_add(float(WEIGHT[0, 0]), p[0], first),
        v.scale_and_add(float(a[1]), odd, v.scale_and_add(float(b[1]), less)),
        third,
    ]


def _weight_function(tile: Tile) -> IRBuilder:
    """A function from weights of some terms, in a panel, to `COUNT` matrices of them."""
    element = Type(tile.dtype).text
    given = ("terms", "step", "tap", "plane")
    out = IRBuilder("winograd_weights_of", ("ptr %w", "ptr %to", *(f"i64 %{n}" for n in given)))
    v = _vectors(out, tile)
    with out.loop(0, "%terms") as t, out.loop(0, tile.columns, tile.lanes) as j:
        start = out.at(element, "%w", out.add(out.mul(t, "%step"), j))
        square = [
            [v.load(out.at(element, start, out.mul("%tap", 3 * k + m))) for m in range(3)]
            for k in range(3)
        ]
        target = out.at(element, "%to", out.add(out.mul(t, tile.columns), j))
        for k, values in enumerate(_transform_square(v, square, _weight)):
            for m, value in enumerate(values):
                v.store(value, out.at(element, target, out.mul("%plane", k * SIDE + m)))
    return out


def _weight_gradient_function(tile: Tile) -> IRBuilder:
    """A function from `COUNT` sums of channels by outputs to weights [channels, taps, outputs]."""
    element, wide = Type(tile.dtype).text, tile.columns
    given = ("channels", "outputs", "line")
    out = IRBuilder("winograd_weighed", ("ptr %p", "ptr %w", *(f"i64 %{name}" for name in given)))
    v = _vectors(out, tile)
    with out.loop(0, "%channels") as c, out.loop(0, "%outputs", tile.lanes) as o:
        source = out.at(element, "%p", out.add(out.mul(c, wide), o))
        square = [
            [v.load(out.at(element, source, (k * SIDE + m) * wide * wide)) for m in range(SIDE)]
            for k in range(SIDE)
        ]
        target = out.at(element, "%w", out.add(out.mul(out.mul(c, 9), "%line"), o))
        for k, values in enumerate(_transform_square(v, square, _backward)):
            for m, value in enumerate(values):
                v.store(value, out.at(element, target, out.mul("%line", 3 * k + m)))
    return out


def _products(
    out: IRBuilder,
    element: str,
    starts: Sequence[str],
    steps: Sequence[str],
    tables: Sequence[str],
    numbers: Sequence[str],
) -> None:
    """`COUNT` products, of matrices that begin at some places and are some steps apart."""
    with out.loop(0, COUNT) as k:
        a, b, c = (
            out.at(element, start, out.mul(k, step))
            for start, step in zip(starts, steps, strict=True)
        )
        out.call("@gathered", a, *tables, b, c, *numbers)


def _winograd(tile: Tile) -> IRBuilder:
    """Iterations are blocks of strips of tiles, each in parts of panels."""
    element, size = Type(tile.dtype).text, tile.dtype.itemsize
    out = IRBuilder("winograd", KERNEL, public=True)
    x, u, y = (out.buffer(place) for place in range(3))
    n = named_numbers(out, WINOGRAD, " ".join(WINOGRAD))
    wide = tile.columns
    frame, frame_whole = out.memory(frame_bytes(out, tile, n))
    plane = out.mul(n["most"], n["channels"])
    seen, seen_whole = out.memory(out.mul(plane, COUNT * size))
    sums, sums_whole = out.memory(out.mul(n["most"], COUNT * size * wide))
    panels = out.div(out.add(n["outputs"], wide - 1), wide)
    share = out.div(out.sub(out.add(panels, n["parts"]), 1), n["parts"])
    # weights are transformed before, or here: `w_tap` is then how far their taps are apart
    is_raw = out.test("ne", n["w_tap"], 0)
    own_plane = out.mul(n["deep"], wide)
    own_weights, own_whole = out.memory(out.mul(own_plane, COUNT * size))
    step = out.select(is_raw, own_plane, out.mul(panels, n["w_panel"]))
    rows, terms = (out.at("i64", "%sizes", n[name]) for name in ("rows_at", "terms_at"))
    with out.loop("%begin", "%end") as number:
        block, part = out.div(number, n["parts"]), out.rem(number, n["parts"])
        # What the block's windows see, with zeros for padding, transformed:
        # [COUNT, most, channels].
        first, many, q, start = place_block(out, n, block)
        out.call("@frame", x, "%sizes", frame, first, many, start, 0, n["channels"])
        strips = out.least(out.sub(n["strips"], q), n["rows"])
        tiles = out.mul(out.mul(many, strips), n["across"])
        shape = (many, strips, n["across"])
        area = n["frame0"], n["frame2"]
        out.call("@winograd_seen", frame, seen, *shape, *area, n["channels"], n["most"])
        to = out.least(out.mul(out.add(part, 1), share), panels)
        with out.loop(out.mul(part, share), to) as panel:
            column = out.mul(panel, wide)
            own = out.least(out.sub(n["outputs"], column), wide)
            begin = out.add(out.mul(panel, n["w_panel"]), n["w_first"])
            # Products of a panel of outputs, some channels at a time: [COUNT, most, panel].
            with out.loop(0, n["channels"], n["deep"]) as t:
                deep = out.least(out.sub(n["channels"], t), n["deep"])
                add = out.test("sgt", t, 0)
                source = out.at(element, u, out.add(begin, out.mul(t, n["w_term"])))
                with out.when(is_raw):
                    steps_of = n["w_term"], n["w_tap"], own_plane
                    out.call("@winograd_weights_of", source, own_weights, deep, *steps_of)
                weights = out.select(is_raw, own_weights, source)
                starts = out.at(element, seen, t), weights, sums
                steps = plane, step, out.mul(n["most"], wide)
                _products(out, element, starts, steps, (rows, terms), (deep, add, tiles, own))
            # The panel's sums, transformed back into y.
            target = out.at(element, y, out.add(out.mul(first, n["y_image"]), column))
            row, place = out.mul(q, RESULT), (n["height"], n["width"], n["outputs"], n["y_image"])
            out.call("@winograd_made", sums, target, *shape, row, *place, own, n["most"])
    for each in (frame_whole, seen_whole, sums_whole, own_whole):
        out.free(each)
    return out


def _winograd_weights(tile: Tile) -> IRBuilder:
    """Iterations are splits of the blocks, times parts of channels and of outputs."""
    element, size = Type(tile.dtype).text, tile.dtype.itemsize
    out = IRBuilder("winograd_weights", KERNEL, public=True)
    x, y, w = (out.buffer(place) for place in range(3))
    n = named_numbers(out, WEIGHTS, " ".join(WEIGHTS))
    second = out.at("i64", "%sizes", n["second"])
    wide = tile.columns
    area = out.mul(n["frame0"], n["frame2"])
    bytes_ = out.mul(out.mul(area, n["at_once"]), wide * size)
    frame, frame_whole = out.memory(bytes_)
    plane = out.mul(n["most"], wide)
    seen, seen_whole = out.memory(out.mul(plane, COUNT * size))
    spread, spread_whole = out.memory(out.mul(plane, COUNT * size))
    images = out.div(out.sub(out.add(n["images"], n["at_once"]), 1), n["at_once"])
    every = out.mul(images, n["blocks"])
    share = out.div(out.sub(out.add(every, n["splits"]), 1), n["splits"])
    pairs = out.mul(n["channel_parts"], n["output_parts"])
    sums, sums_whole = out.memory(COUNT * wide * wide * size)
    rows, terms = (out.at("i64", "%sizes", n[name]) for name in ("rows_at", "terms_at"))
    with out.loop("%begin", "%end") as number:
        split, pair = out.div(number, pairs), out.rem(number, pairs)
        c0 = out.mul(out.div(pair, n["output_parts"]), wide)
        o0 = out.mul(out.rem(pair, n["output_parts"]), wide)
        own_c = out.least(out.sub(n["channels"], c0), wide)
        own_o = out.least(out.sub(n["outputs"], o0), wide)
        row = out.mul(out.add(out.mul(split, n["channels"]), c0), 9)
        target = out.at(element, w, out.add(out.mul(row, n["outputs"]), o0))
        from_ = out.mul(split, share)
        to = out.least(out.add(from_, share), every)
        with out.loop(from_, out.most(to, out.add(from_, 1))) as block:
            # a split without a block is one of no tiles, which stores zeros
            first, some, q, start = place_block(out, n, block)
            many = out.select(out.test("slt", block, to), some, 0)
            strips = out.least(out.sub(n["strips"], q), n["rows"])
            tiles = out.mul(out.mul(many, strips), n["across"])
            shape = (many, strips, n["across"])
            # What is seen of x, then the cotangents of y, in one frame after the other.
            out.call("@frame", x, "%sizes", frame, first, many, start, c0, own_c)
            given = (*shape, n["frame0"], n["frame2"], own_c, n["most"])
            out.call("@winograd_seen", frame, seen, *given)
            own = [out.number(second, FRAME.index(name)) for name in ("frame0", "frame2")]
            begin = out.mul(q, RESULT)
            out.call("@frame", y, second, frame, first, many, begin, o0, own_o)
            out.call("@winograd_spread", frame, spread, *shape, *own, own_o, n["most"])
            add = out.test("sgt", block, from_)

            with out.loop(0, COUNT) as k:
                a = out.at(element, seen, out.mul(out.mul(k, n["most"]), own_c))
                b = out.at(element, spread, out.mul(out.mul(k, n["most"]), own_o))
                c = out.at(element, sums, out.mul(k, wide * wide))
                out.call("@gathered", a, rows, terms, b, c, tiles, add, own_c, own_o)
        out.call("@winograd_weighed", sums, target, own_c, own_o, n["outputs"])
    for each in (frame_whole, seen_whole, spread_whole, sums_whole):
        out.free(each)
    return out
