r"""Pictures without a dependency: PNG files, and the lines and characters that a chart needs.

>>> import numpy as np
>>> encode(np.zeros((2, 3), np.uint8))[:4]
b'\x89PNG'
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Canvas", "encode"]

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Colour: TypeAlias = tuple[int, int, int]
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}

_GLYPHS = """
0 75557 1 26227 2 71747 3 71317 4 55711 5 74717 6 74757 7 71122 8 75757 9 75717
- 00700 + 02720 . 00002 e 07746 % 51245 ( 12221 ) 42224 , 00024 _ 00007 / 11244 : 02020
a 06357 b 44656 c 03443 d 11353 f 34644 g 03536 h 44655 i 20222 j 10116 k 44565 l 22223
m 05775 n 06555 o 02552 p 06564 q 03531 r 05644 s 03636 t 27223 u 05553 v 05552 w 05777
x 05225 y 05524 z 07247
"""


def _glyphs() -> dict[str, Pixels]:
    """Characters of 3 by 5 points; each digit is a row, its bits the points."""
    words = _GLYPHS.split()
    return {
        name: np.array([[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in rows[:5]], np.uint8)
        for name, rows in zip(words[::2], words[1::2], strict=True)
    }


FONT = _glyphs()


def encode(pixels: Pixels) -> bytes:
    """The PNG file of pixels [height, width] or [height, width, 3 or 4]."""
    height, width = pixels.shape[:2]
    kind = _COLOUR_TYPES[1 if pixels.ndim == 2 else pixels.shape[2]]
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    rows = np.pad(
        pixels.reshape(height, -1), ((0, 0), (1, 0))
    )  # each row begins with its filter: none
    data = zlib.compress(np.ascontiguousarray(rows).tobytes(), 6)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


class Canvas:
    """White pixels to draw on; what lies outside is cut off.

    >>> canvas = Canvas(4, 3)
    >>> canvas.line(0, 1, 3, 1, (0, 0, 0))
    >>> canvas.pixels[1, :, 0].tolist()
    [0, 0, 0, 0]
    """

    def __init__(self, width: int, height: int) -> None:
        self.pixels: Pixels = np.full((height, width, 3), 255, np.uint8)

    def line(
        self, x0: float, y0: float, x1: float, y1: float, colour: Colour, thickness: int = 1
    ) -> None:
        """A straight line."""
        steps = int(max(abs(x1 - x0), abs(y1 - y0))) + 1
        xs = np.rint(np.linspace(x0, x1, steps + 1)).astype(int)
        ys = np.rint(np.linspace(y0, y1, steps + 1)).astype(int)
        for shift in range(thickness):
            self._dots(xs, ys + shift, colour)
            self._dots(xs + shift, ys, colour)

    def text(self, x: int, y: int, text: str, colour: Colour, scale: int = 2) -> None:
        """A line of text whose upper left corner is at (x, y)."""
        for position, character in enumerate(text.lower()):
            glyph = FONT.get(character)
            if glyph is not None:
                ys, xs = np.nonzero(np.kron(glyph, np.ones((scale, scale), np.uint8)))
                self._dots(xs + x + position * 4 * scale, ys + y, colour)

    def _dots(self, xs: Any, ys: Any, colour: Colour) -> None:
        height, width = self.pixels.shape[:2]
        inside = (xs >= 0) & (xs < width) & (ys >= 0) & (ys < height)
        self.pixels[ys[inside], xs[inside]] = colour
