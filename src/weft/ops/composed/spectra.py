"""Spectra of signals over time: window functions, and transforms of overlapping frames.

>>> import weft as wf
>>> signal = wf.sin(wf.arange(64.0))
>>> frames = wf.stft(signal, 16, window=wf.hann_window(16))
>>> frames.shape
(9, 17)
>>> restored = wf.istft(frames, 16, window=wf.hann_window(16), length=64)
>>> bool(wf.allclose(restored, signal, atol=1e-5))
True
"""

from __future__ import annotations

import math
from typing import Any

from weft.core.errors import ArgumentError, ShapeError
from weft.ir.eager import unit
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs, divide, multiply, square
from weft.ops.comparison import equal
from weft.ops.composed import fft
from weft.ops.composed.creation import arange, ones, zeros
from weft.ops.composed.gathering import index_add
from weft.ops.composed.manipulation import moveaxis, reshape_known, swapaxes
from weft.ops.composed.padding import pad
from weft.ops.composed.rearrangement import narrow, unfold
from weft.ops.elementary import cos, sqrt
from weft.ops.operands import Operand, as_integer, as_tensor
from weft.ops.selection import clip, where
from weft.ops.special import i0

__all__ = [
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "istft", "kaiser_window",
    "stft",
]  # fmt: skip


# --- windows -----------------------------------------------------------------------------------


def _phase(op: str, n: int, periodic: bool, dtype: Any, device: Any) -> Tensor | None:
    """Places along a window, 0 to 1; None where it has one place, or none, and all is 1.

    A periodic window is one period of a longer row, a symmetric one ends as it begins.
    """
    count = as_integer(op, "n", n)
    if count < 0:
        raise ArgumentError(
            op,
            "a window has no negative length",
            expected="n >= 0",
            got={"n": n},
            fix=f"wf.{op}(400)",
        )
    if count < 2:
        return None
    whole = count if periodic else count - 1
    return arange(0, count, dtype=dtype or "float32", device=device) / whole


def _cosines(op: str, n: int, periodic: bool, dtype: Any, device: Any, *weights: float) -> Tensor:
    """A sum of cosines of 0, 1, 2 … periods with alternating signs."""
    phase = _phase(op, n, periodic, dtype, device)
    if phase is None:
        return ones((n,), dtype=dtype, device=device)
    window = phase * 0 + weights[0]
    for number, weight in enumerate(weights[1:], 1):
        window = window + (-1) ** number * weight * cos(2 * math.pi * number * phase)
    return window


def hann_window(n: int, periodic: bool = True, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A raised cosine: zero at the edges, one in the middle.

    >>> import weft as wf
    >>> [round(value, 4) for value in wf.hann_window(4).tolist()]
    [0.0, 0.5, 1.0, 0.5]
    """
    return _cosines("hann_window", n, periodic, dtype, device, 0.5, 0.5)


def hamming_window(
    n: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """A raised cosine that does not quite reach zero at the edges.

    >>> import weft as wf
    >>> [round(value, 4) for value in wf.hamming_window(4).tolist()]
    [0.08, 0.54, 1.0, 0.54]
    """
    return _cosines("hamming_window", n, periodic, dtype, device, 0.54, 0.46)


def blackman_window(
    n: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """A sum of three cosines, with lower side lobes than Hann's.

    >>> import weft as wf
    >>> [round(value, 4) for value in wf.blackman_window(4).tolist()]
    [-0.0, 0.34, 1.0, 0.34]
    """
    return _cosines("blackman_window", n, periodic, dtype, device, 0.42, 0.5, 0.08)


def bartlett_window(
    n: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """A triangle: zero at the edges, one in the middle.

    >>> import weft as wf
    >>> wf.bartlett_window(4).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    phase = _phase("bartlett_window", n, periodic, dtype, device)
    if phase is None:
        return ones((n,), dtype=dtype, device=device)
    return 1 - abs(2 * phase - 1)


def kaiser_window(
    n: int, periodic: bool = True, beta: Any = 12.0, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Kaiser's window, near the narrowest main lobe for its side lobes; beta trades one for other.

    >>> import weft as wf
    >>> [round(value, 4) for value in wf.kaiser_window(4, beta=1.0).tolist()]
    [0.7898, 0.945, 1.0, 0.945]
    """
    phase = _phase("kaiser_window", n, periodic, dtype, device)
    if phase is None:
        return ones((n,), dtype=dtype, device=device)
    inside = clip(1 - square(2 * phase - 1), min=0.0)  # rounding may leave it just below zero
    height = where(equal(inside, 0.0), 0.0, sqrt(where(equal(inside, 0.0), 1.0, inside)))
    return divide(i0(multiply(height, beta)), i0(multiply(height * 0 + 1, beta)))


# --- frames ------------------------------------------------------------------------------------


def _frame_sizes(
    op: str, n_fft: int, hop_length: int | None, win_length: int | None
) -> tuple[int, int, int]:
    size = as_integer(op, "n_fft", n_fft)
    hop = size // 4 if hop_length is None else as_integer(op, "hop_length", hop_length)
    length = size if win_length is None else as_integer(op, "win_length", win_length)
    if size < 1 or hop < 1 or not 1 <= length <= size:
        raise ArgumentError(
            op,
            "frames of no length, or that do not move on",
            expected="n_fft >= 1, hop_length >= 1 and 1 <= win_length <= n_fft",
            got={"n_fft": n_fft, "hop_length": hop_length, "win_length": win_length},
            fix=f"wf.{op}(x, 400, hop_length=160)",
        )
    return size, hop, length


def _whole_window(op: str, window: Operand | None, size: int, length: int) -> Tensor | None:
    """The window with zeros around it, as long as a frame; None stands for ones."""
    if window is None and length == size:
        return None
    given = ones((length,)) if window is None else as_tensor(op, window, "window")
    if given.shape != (length,):
        raise ShapeError(
            op,
            "the window is not as long as a frame",
            expected=f"a window of {length} elements",
            got={"window": given},
            fix=f"window=wf.hann_window({length})",
        )
    before = (size - length) // 2
    return pad(given, (before, size - length - before)) if length < size else given


@unit
def stft(
    x: Operand,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Operand | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> Tensor:
    """The Fourier transform of overlapping frames of a signal: [..., time] to [..., bins, frames].

    Frames of n_fft samples begin every `hop_length` samples, a quarter of a frame by default, and
    are multiplied by the window. With `center` frame t is centred at sample t · hop_length of the
    signal, which is padded. Spectra of real signals have their first half, unless onesided=False.

    >>> import weft as wf
    >>> wf.stft(wf.ones(8), 4, center=False).shape
    (3, 5)
    """
    size, hop, length = _frame_sizes("stft", n_fft, hop_length, win_length)
    signal = as_tensor("stft", x)
    if signal.ndim == 0:
        raise ShapeError(
            "stft",
            "a signal has a time axis",
            expected="x: [..., time]",
            got={"x": signal},
            fix="x.reshape(-1)",
        )
    if center:
        widths = [(0, 0)] * (signal.ndim - 1) + [(size // 2, size // 2)]
        signal = pad(signal, widths, mode=pad_mode)
    frames = unfold(signal, -1, size, hop)  # [..., frames, n_fft]
    shape = _whole_window("stft", window, size, length)
    frames = frames if shape is None else frames * shape
    norm = "ortho" if normalized else "backward"
    half = not signal.dtype.is_complex if onesided is None else onesided
    spectra = fft.rfft(frames, norm=norm) if half else fft.fft(frames, norm=norm)
    return swapaxes(spectra, -1, -2)


@unit
def istft(
    x: Operand,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Operand | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
) -> Tensor:
    """The signal whose `stft` is nearest to x: frames are added where they overlap.

    Each sample is divided by the sum of the squares of all windows over it, so windows must leave
    none at zero. `length` is that of the signal, which the frames alone do not say.

    >>> import weft as wf
    >>> wf.istft(wf.stft(wf.arange(8.0), 4), 4).tolist()[:3]
    [0.0, 1.0, 2.0]
    """
    size, hop, width = _frame_sizes("istft", n_fft, hop_length, win_length)
    spectra = as_tensor("istft", x)
    bins = size // 2 + 1
    half = spectra.ndim > 1 and spectra.shape[-2] == bins if onesided is None else onesided
    if spectra.ndim < 2 or spectra.shape[-2] != (bins if half else size):
        raise ShapeError(
            "istft",
            "the spectra do not have a bin for each frequency of a frame",
            expected=f"x: [..., {bins if half else size}, frames]",
            got={"x": spectra, "n_fft": n_fft},
            fix="give n_fft as it was given to wf.stft",
        )
    norm = "ortho" if normalized else "backward"
    rows = swapaxes(spectra, -1, -2)  # [..., frames, bins]
    frames = fft.irfft(rows, n=size, norm=norm) if half else fft.ifft(rows, norm=norm)
    shape = _whole_window("istft", window, size, width)
    shape = ones((size,)) if shape is None else shape
    signal = _overlap_add(frames * shape, hop)
    count = int(frames.shape[-2])
    squares = reshape_known(square(shape), (1, size)) * ones((count, 1))
    weights = _overlap_add(squares, hop)
    start = size // 2 if center else 0
    stop = int(signal.shape[-1]) - start if length is None else start + length
    kept = min(stop, int(signal.shape[-1])) - start
    out = divide(narrow(signal, -1, start, kept), narrow(weights, -1, start, kept))
    return out if kept == stop - start else pad(out, _at_end(out.ndim, stop - start - kept))


def _at_end(ndim: int, width: int) -> list[tuple[int, int]]:
    return [(0, 0)] * (ndim - 1) + [(0, width)]


def _overlap_add(frames: Tensor, hop: int) -> Tensor:
    """[..., frames, size] -> [..., time]: each frame added where it begins."""
    count, size = int(frames.shape[-2]), int(frames.shape[-1])
    total = (count - 1) * hop + size
    places = arange(count)[:, None] * hop + arange(size)
    lines = reshape_known(frames, (*frames.shape[:-2], count * size))
    first = moveaxis(lines, -1, 0)  # [frames · size, ...]
    canvas = zeros((total, *first.shape[1:]), dtype=first.dtype)
    return moveaxis(index_add(canvas, 0, reshape_known(places, (count * size,)), first), 0, -1)
