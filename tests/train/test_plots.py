"""Pictures: files that decoders accept, with the curves where they belong."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.train import plots
from weft.train.plots import COLOURS, chart, curves_of, ticks
from weft.train.png import FONT, Canvas, encode


@pytest.fixture(autouse=True)
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are our own pictures, whether or not matplotlib is installed."""
    monkeypatch.setattr(plots, "find_spec", lambda name: None)


def decode(data: bytes) -> Any:
    """The pixels of a PNG file whose rows have no filter."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        name, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(name + content)
        chunks[name], place = content, place + 12 + length
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3, 6: 4}[kind]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape((height, width, channels) if channels > 1 else (height, width))


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 3), (2, 2, 4)])
def test_pixels_come_back(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(decode(encode(pixels)), pixels)


def test_pillow_reads_the_same_pixels() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (7, 4, 3)).astype(np.uint8)
    assert np.array_equal(np.asarray(image.open(BytesIO(encode(pixels)))), pixels)


def test_a_falling_curve_falls() -> None:
    canvas = chart(curves_of({"loss": [3.0, 2.0, 1.0]}), (400, 300))
    drawn = np.all(canvas.pixels[40:] == COLOURS[0], axis=-1)  # below the names
    ys, xs = np.nonzero(drawn)
    left, right = ys[xs < 100].mean(), ys[xs > 360].mean()
    assert left < 50
    assert right > 190


def test_all_that_numbers_need_can_be_written() -> None:
    assert set("0123456789.-+eabcdfghijklmnopqrstuvwxyz_/") <= set(FONT)
    assert {glyph.shape for glyph in FONT.values()} == {(5, 3)}
    canvas = Canvas(40, 20)
    canvas.text(0, 0, "17", (0, 0, 0), scale=1)
    assert (canvas.pixels[:5, :8] == 0).any()
    assert (canvas.pixels[6:] == 255).all()


def test_curves_may_have_gaps_and_single_points(tmp_path: Path) -> None:
    wf.train.plot(
        {"loss": [float("nan"), 1.0, float("inf"), 2.0], "one": [1.0]}, tmp_path / "a.png"
    )
    wf.train.plot([{"epoch": 1, "loss": 5.0}], tmp_path / "b.png")
    assert decode((tmp_path / "b.png").read_bytes()).shape == (440, 720, 3)


def test_an_unknown_curve_is_named(tmp_path: Path) -> None:
    with pytest.raises(wf.NameUnknownError) as caught:
        wf.train.plot({"loss": [1.0]}, tmp_path / "a.png", ["los"])
    assert caught.value.fix == "write 'loss'"


def test_the_axis_of_one_value_is_as_wide_as_the_value() -> None:
    assert plots.value_range([0.001, 0.001], 0.0) == (0.0005, 0.0015)
    assert plots.value_range([-4.0], 0.0) == (-6.0, -2.0)
    assert plots.value_range([0.0], 0.0) == (-0.5, 0.5)


def test_ticks_are_round() -> None:
    assert ticks(0.0, 7.3, 5) == [0.0, 2.0, 4.0, 6.0]
    assert ticks(-0.011, 0.012, 4) == [-0.01, 0.0, 0.01]
