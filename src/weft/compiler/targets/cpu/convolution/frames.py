"""Frames: copies of what a block of a convolution sees, with zeros for padding.

>>> FRAME.index("pixel")
6
"""

from __future__ import annotations

from weft.compiler.targets.cpu.products.tiles import Tile
from weft.compiler.targets.llvm.ir_builder import IRBuilder
from weft.compiler.targets.llvm.ir_types import Type

FRAME = (
    "images", "at_once", "blocks", "rows", "step", "x_image", "pixel", "low0", "low1", "low2",
    "frame0", "frame1", "frame2", "area0", "area1", "area2",
)  # fmt: skip
"""What copying a frame is told: see `Frame` in plans.py."""


def named_numbers(out: IRBuilder, names: tuple[str, ...], wanted: str) -> dict[str, str]:
    """Numbers of the table, by name."""
    return {name: out.number("%sizes", names.index(name)) for name in wanted.split()}


def frame_function(tile: Tile) -> IRBuilder:
    """Copy what a block sees: `%first` image and `%many` of them, from row `%from` on.

    Of each pixel `%wide` elements are copied, from `%at` on.
    """
    element, size = Type(tile.dtype).text, tile.dtype.itemsize
    given = ("first", "many", "from", "at", "wide")
    parameters = ("ptr %x", "ptr %sizes", "ptr %to", *(f"i64 %{name}" for name in given))
    out = IRBuilder("frame", parameters)
    n = named_numbers(out, FRAME, "x_image pixel low1 low2 frame0 frame1 frame2 area0 area1 area2")
    bytes_ = out.mul("%wide", size)
    is_whole = out.test("eq", n["pixel"], "%wide")
    is_part = out.put(f"xor i1 {is_whole}, true")
    inner = out.least(n["area2"], out.sub(n["frame2"], n["low2"]))
    begin = out.most(out.sub(0, n["low2"]), 0)  # a window may begin inside
    before = out.most(n["low2"], 0)
    inside = out.most(out.sub(inner, begin), 0)
    behind = out.sub(n["frame2"], out.add(before, inside))
    line = out.mul(n["frame2"], bytes_)
    lines = out.mul(n["frame0"], n["frame1"])
    with out.loop(0, "%many") as image, out.loop(0, lines) as number:
        i, j = out.div(number, n["frame1"]), out.rem(number, n["frame1"])
        at = out.add(out.mul(image, lines), number)
        target = out.at("i8", "%to", out.mul(at, line))
        row, column = out.add(i, "%from"), out.sub(j, n["low1"])
        fits = [
            out.test("sge", row, 0), out.test("slt", row, n["area0"]),
            out.test("sge", column, 0), out.test("slt", column, n["area1"]),
            out.test("sgt", inside, 0),
        ]  # fmt: skip
        whole = fits[0]
        for each in fits[1:]:
            whole = out.put(f"and i1 {whole}, {each}")
        with out.when(whole):
            place = out.mul(out.add(out.mul(row, n["area1"]), column), n["area2"])
            place = out.mul(out.add(place, begin), n["pixel"])
            first = out.mul(out.add("%first", image), n["x_image"])
            source = out.at(element, "%x", out.add(out.add(first, place), "%at"))
            skipped, copied = out.mul(before, bytes_), out.mul(inside, bytes_)
            out.clear(target, skipped)
            middle = out.at("i8", target, skipped)
            with out.when(is_whole):
                out.copy(middle, source, copied)
            with out.when(is_part), out.loop(0, inside) as k:
                one = out.at(element, source, out.mul(k, n["pixel"]))
                out.copy(out.at("i8", middle, out.mul(k, bytes_)), one, bytes_)
            out.clear(out.at("i8", middle, copied), out.mul(behind, bytes_))
        with out.when(out.put(f"xor i1 {whole}, true")):
            out.clear(target, line)
    return out


def frame_bytes(out: IRBuilder, tile: Tile, n: dict[str, str]) -> str:
    """The memory of a frame."""
    count = out.mul(out.mul(n["frame0"], n["frame1"]), out.mul(n["frame2"], n["pixel"]))
    return out.mul(out.mul(count, n["at_once"]), tile.dtype.itemsize)


def place_block(out: IRBuilder, n: dict[str, str], block: str) -> tuple[str, str, str, str]:
    """The first image of a block, how many, its first row among q's, and its first frame row."""
    number, inside = out.div(block, n["blocks"]), out.rem(block, n["blocks"])
    first = out.mul(number, n["at_once"])
    many = out.least(out.sub(n["images"], first), n["at_once"])
    q = out.mul(inside, n["rows"])
    return first, many, q, out.sub(out.mul(q, n["step"]), n["low0"])
