"""Fourier transforms, and the matrix of mel bands."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array, element_of
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.movement import whole_axis
from weft.onnx.importing.running import Call

Tensor = wf.Tensor


def _complex(x: Tensor) -> Tensor:
    """A value whose last axis holds real and imaginary parts, or only real ones."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _real_and_imaginary(x: Tensor, dtype: Any) -> Tensor:
    return wf.stack([wf.real(x), wf.imag(x)], axis=-1).astype(dtype)


def _transform(call: Call, x: Tensor, count: Any, axis: int) -> Tensor:
    """The transform along an axis of a value with a last axis of parts."""
    signal = _complex(x)
    call.check_room([count])
    function = wf.fft.ifft if call.get("inverse") else wf.fft.fft
    out = function(signal, n=count, axis=axis)
    if call.get("onesided"):
        key = [slice(None)] * out.ndim
        key[axis] = slice(0, count // 2 + 1)
        out = out[tuple(key)]
    return _real_and_imaginary(out, x.dtype)


def _length(value: Array | None, default: Any) -> Any:
    return default if value is None else int(value.reshape(-1)[0])


@rule("DFT", known=(1,))
def fourier_by_attribute(call: Call, x: Tensor, count: Array | None = None) -> Tensor:
    """The discrete Fourier transform; its axis is an attribute."""
    axis = whole_axis(call["axis"], x.ndim)
    return _transform(call, x, _length(count, x.shape[axis]), axis)


@rule("DFT", since=20, known=(1, 2))
def fourier(call: Call, x: Tensor, count: Array | None = None, axis: Array | None = None) -> Tensor:
    """The discrete Fourier transform; its axis is a value."""
    place = whole_axis(_length(axis, -2), x.ndim)
    return _transform(call, x, _length(count, x.shape[place]), place)


@rule("STFT", known=(1, 3))
def short_time_fourier(
    call: Call,
    x: Tensor,
    step: Array,
    window: Tensor | None = None,
    length: Array | None = None,
) -> Tensor:
    """The transforms of overlapping frames: [batch, frames, bins, 2]."""
    whole = window.shape[0] if window is not None else x.shape[1]
    size, hop = int(_length(length, whole)), _length(step, 1)
    frames = 1 + (int(x.shape[1]) - size) // hop
    call.check_room([x.shape[0], frames, size])
    places = np.arange(frames)[:, None] * hop + np.arange(size)[None]
    signal = wf.take(_complex(x), wf.asarray(places.reshape(-1)), axis=1)
    signal = signal.reshape((x.shape[0], frames, size))
    signal = signal if window is None else signal * window
    out = wf.fft.fft(signal, axis=-1)
    return _real_and_imaginary(out[..., : size // 2 + 1] if call["onesided"] else out, x.dtype)


@rule("MelWeightMatrix", known=(0, 1, 2, 3, 4))
def mel_weights(
    call: Call, bands: Array, length: Array, rate: Array, low: Array, high: Array
) -> Array:
    """The matrix that sums a spectrum in bands of equal width to the ear."""
    count, size = _length(bands, 0), _length(length, 0)
    call.check_room([size // 2 + 1, count])
    edges = [2595 * np.log10(1 + float(each.reshape(-1)[0]) / 700) for each in (low, high)]
    mels = np.arange(count + 2) * (edges[1] - edges[0]) / (count + 2) + edges[0]
    hertz = 700 * (np.power(10, mels / 2595) - 1)
    bins = ((size + 1) * hertz // _length(rate, 1)).astype(int)
    matrix = np.zeros((size // 2 + 1, count))
    for band in range(count):
        first, centre, last = bins[band : band + 3]
        if centre == first:
            matrix[centre, band] = 1
        else:
            rising = np.arange(first, centre + 1)
            matrix[rising, band] = (rising - first) / (centre - first)
        falling = np.arange(centre, last)
        if last > centre:
            matrix[falling, band] = (last - falling) / (last - centre)
    return matrix.astype(element_of(call["output_datatype"], str(call.node)).numpy)
