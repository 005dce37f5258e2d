"""Discrete Fourier transforms: the public namespace `wf.fft`.

`n` or `s` first cuts an axis or fills it with zeros to that length. `norm` says where the factor
1/n goes: "backward" to the inverse, "forward" to the transform, "ortho" its root to both. The
precision of the input is kept; integers and 16-bit floats are transformed in single precision.

>>> import weft as wf
>>> wf.fft.fft(wf.tensor([1.0, 0.0, 0.0, 0.0])).tolist()
[(1+0j), (1+0j), (1+0j), (1+0j)]
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.dtypes import DEFAULT_FLOAT, as_dtype, complex_of, float32
from weft.core.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, short_repr
from weft.core.names import missing_from
from weft.core.shapes import Dimension, normalize_axes, normalize_axis
from weft.core.wrong_calls import explain_all
from weft.ir.dispatch import apply
from weft.ir.tensor import Tensor, wrap
from weft.ops import fourier
from weft.ops.arithmetic import conj
from weft.ops.fourier import NORMS, OPPOSITE
from weft.ops.movement import concatenate, pad, slice_
from weft.ops.operands import (
    Operand,
    alias,
    as_integer,
    as_number,
    as_sequence,
    as_tensor,
    convert_to,
    promote_operands,
)
from weft.ops.placement import takes_device

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2",
    "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]  # fmt: skip

Sizes = Sequence[int | None] | None
Axes = Sequence[int] | None


# --- complex transforms ------------------------------------------------------------------------


def fft(x: Operand, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The Fourier transform along one axis.

    >>> import weft as wf
    >>> wf.fft.fft(wf.tensor([1.0, 1.0])).tolist()
    [(2+0j), 0j]
    """
    return _transform_axis("fft", x, n, axis, norm, inverse=False)


def ifft(x: Operand, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `fft`.

    >>> import weft as wf
    >>> wf.fft.ifft(wf.tensor([2.0, 0.0])).tolist()
    [(1+0j), (1+0j)]
    """
    return _transform_axis("ifft", x, n, axis, norm, inverse=True)


def fftn(x: Operand, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The Fourier transform along several axes, by default all, or the last ones that s names.

    >>> import weft as wf
    >>> wf.fft.fftn(wf.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    return _transform_axes("fftn", x, s, axes, norm, inverse=False)


def ifftn(x: Operand, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of `fftn`.

    >>> import weft as wf
    >>> wf.fft.ifftn(wf.tensor([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return _transform_axes("ifftn", x, s, axes, norm, inverse=True)


def _transform_axis(
    op: str, x: Operand, n: int | None, axis: int, norm: str, *, inverse: bool
) -> Tensor:
    tensor = _complex(op, x)
    place = normalize_axis(op, axis, tensor.ndim, {"x": tensor})
    sized = _resize_to_lengths(op, tensor, {place: n})
    return apply(fourier.fft, sized, axes=(place,), inverse=inverse, norm=_norm(op, norm))


def _transform_axes(
    op: str, x: Operand, s: Sizes, axes: Axes, norm: str, *, inverse: bool
) -> Tensor:
    tensor = _complex(op, x)
    sizes = _sizes(op, tensor, s, axes)
    sized = _resize_to_lengths(op, tensor, sizes)
    scale = _norm(op, norm)
    if not sizes:
        return alias(sized)
    return apply(fourier.fft, sized, axes=tuple(sizes), inverse=inverse, norm=scale)


# --- real transforms ---------------------------------------------------------------------------


def rfft(x: Operand, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The Fourier transform of real numbers: its first n // 2 + 1 frequencies.

    >>> import weft as wf
    >>> wf.fft.rfft(wf.tensor([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j)]
    """
    tensor = _real_operand("rfft", x)
    place = normalize_axis("rfft", axis, tensor.ndim, {"x": tensor})
    sized = _resize_to_lengths("rfft", tensor, {place: n})
    return apply(fourier.rfft, sized, axis=place, norm=_norm("rfft", norm))


def irfft(x: Operand, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The n real numbers that `rfft` came from; n is 2 (m - 1) for m frequencies by default.

    >>> import weft as wf
    >>> wf.fft.irfft(wf.tensor([4.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    tensor = _complex("irfft", x)
    place = normalize_axis("irfft", axis, tensor.ndim, {"x": tensor})
    return _inverse_real("irfft", tensor, place, n, _norm("irfft", norm))


def _inverse_real(op: str, x: Tensor, axis: int, n: int | None, norm: str) -> Tensor:
    length: Dimension = 2 * (x.shape[axis] - 1) if n is None else _length(op, n)
    _require_elements(op, x, length)
    half = _resize_axes(x, {axis: length // 2 + 1})
    return apply(fourier.irfft, half, axis=axis, n=length, norm=norm)


def rfftn(x: Operand, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The Fourier transform of real numbers along several axes; the last of them is halved.

    >>> import weft as wf
    >>> wf.fft.rfftn(wf.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    tensor = _real_operand("rfftn", x)
    sizes = _sizes("rfftn", tensor, s, axes)
    *others, last = _require_axes(sizes, "rfftn", tensor)
    scale = _norm("rfftn", norm)
    half = apply(fourier.rfft, _resize_to_lengths("rfftn", tensor, sizes), axis=last, norm=scale)
    if not others:
        return half
    return apply(fourier.fft, half, axes=tuple(others), inverse=False, norm=scale)


def irfftn(x: Operand, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of `rfftn`; s holds the sizes of the result.

    >>> import weft as wf
    >>> wf.fft.irfftn(wf.tensor([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    tensor = _complex("irfftn", x)
    sizes = _sizes("irfftn", tensor, s, axes)
    *others, last = _require_axes(sizes, "irfftn", tensor)
    scale = _norm("irfftn", norm)
    sized = _resize_to_lengths("irfftn", tensor, {axis: sizes[axis] for axis in others})
    if others:
        sized = apply(fourier.fft, sized, axes=tuple(others), inverse=True, norm=scale)
    return _inverse_real("irfftn", sized, last, sizes[last], scale)


def fft2(
    x: Operand, /, *, s: Sizes = None, axes: Axes = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The Fourier transform of images: along the last two axes.

    >>> import weft as wf
    >>> wf.fft.fft2(wf.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    return fftn(x, s=s, axes=axes, norm=norm)


def ifft2(
    x: Operand, /, *, s: Sizes = None, axes: Axes = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The inverse of `fft2`.

    >>> import weft as wf
    >>> wf.fft.ifft2(wf.tensor([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    return ifftn(x, s=s, axes=axes, norm=norm)


def rfft2(
    x: Operand, /, *, s: Sizes = None, axes: Axes = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The Fourier transform of images of real numbers; the last axis is halved.

    >>> import weft as wf
    >>> wf.fft.rfft2(wf.ones((4, 4))).shape
    (4, 3)
    """
    return rfftn(x, s=s, axes=axes, norm=norm)


def irfft2(
    x: Operand, /, *, s: Sizes = None, axes: Axes = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The inverse of `rfft2`; s holds the sizes of the result.

    >>> import weft as wf
    >>> wf.fft.irfft2(wf.fft.rfft2(wf.ones((2, 2)))).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return irfftn(x, s=s, axes=axes, norm=norm)


def hfft(x: Operand, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The real spectrum, of n frequencies, of a signal of which x is the first half.

    The other half mirrors it, conjugated.

    >>> import weft as wf
    >>> wf.fft.hfft(wf.tensor([1.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    tensor = _complex("hfft", x)
    place = normalize_axis("hfft", axis, tensor.ndim, {"x": tensor})
    return _inverse_real("hfft", conj(tensor), place, n, OPPOSITE[_norm("hfft", norm)])


def ihfft(x: Operand, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `hfft`: the first half of the signal that has a real spectrum.

    >>> import weft as wf
    >>> wf.fft.ihfft(wf.tensor([4.0, 0.0, 0.0, 0.0])).tolist()
    [(1-0j), (1-0j), (1-0j)]
    """
    tensor = _real_operand("ihfft", x)
    place = normalize_axis("ihfft", axis, tensor.ndim, {"x": tensor})
    sized = _resize_to_lengths("ihfft", tensor, {place: n})
    return conj(apply(fourier.rfft, sized, axis=place, norm=OPPOSITE[_norm("ihfft", norm)]))


def hfft2(
    x: Operand, /, *, s: Sizes = None, axes: Axes = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The real spectrum of images of which x is the first half along the last of the axes.

    s holds the sizes of the result.

    >>> import weft as wf
    >>> wf.fft.hfft2(wf.tensor([[1.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return hfftn(x, s=s, axes=axes, norm=norm)


def ihfft2(
    x: Operand, /, *, s: Sizes = None, axes: Axes = (-2, -1), norm: str = "backward"
) -> Tensor:
    """The inverse of `hfft2`: the first half of images that have a real spectrum.

    >>> import weft as wf
    >>> wf.fft.ihfft2(wf.ones((2, 2))).tolist()
    [[(1-0j), -0j], [-0j, -0j]]
    """
    return ihfftn(x, s=s, axes=axes, norm=norm)


def hfftn(x: Operand, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The real spectrum of what x is the first half of, along the last of the axes.

    >>> import weft as wf
    >>> wf.fft.hfftn(wf.tensor([[1.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return irfftn(conj(_complex("hfftn", x)), s=s, axes=axes, norm=OPPOSITE[_norm("hfftn", norm)])


def ihfftn(x: Operand, /, *, s: Sizes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of `hfftn`: the first half of what has a real spectrum.

    >>> import weft as wf
    >>> wf.fft.ihfftn(wf.ones((2, 2))).tolist()
    [[(1-0j), -0j], [-0j, -0j]]
    """
    real = _real_operand("ihfftn", x)
    return conj(rfftn(real, s=s, axes=axes, norm=OPPOSITE[_norm("ihfftn", norm)]))


# --- frequencies -------------------------------------------------------------------------------


@takes_device
def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of `fft`, in cycles per unit of the sample spacing d.

    >>> import weft as wf
    >>> wf.fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies("fftfreq", np.fft.fftfreq, n, d, dtype)


@takes_device
def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of `rfft`.

    >>> import weft as wf
    >>> wf.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _frequencies("rfftfreq", np.fft.rfftfreq, n, d, dtype)


def _frequencies(op: str, table: Any, n: int, d: float, dtype: Any) -> Tensor:
    kind = DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    if not kind.is_floating:
        raise DTypeError(
            op,
            "frequencies are not integers",
            expected="a floating-point dtype",
            got={"dtype": kind},
            fix='dtype="float32"',
        )
    step = as_number(op, "d", d)
    if step == 0:
        raise ArgumentError(
            op,
            "samples at one place have no frequency",
            expected="a distance d other than 0",
            got={"d": d},
            fix="d=1.0",
        )
    return wrap(table(_length(op, n), step).astype(kind.numpy))


def fftshift(x: Operand, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The spectrum with frequency zero moved to the middle.

    >>> import weft as wf
    >>> wf.fft.fftshift(wf.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    tensor = as_tensor("fftshift", x)
    for axis in normalize_axes("fftshift", axes, tensor.ndim, {"x": tensor}):
        tensor = _rotate_axis(tensor, axis, (tensor.shape[axis] + 1) // 2)
    return alias(tensor)


def ifftshift(x: Operand, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> import weft as wf
    >>> wf.fft.ifftshift(wf.tensor([-0.5, -0.25, 0.0, 0.25])).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    tensor = as_tensor("ifftshift", x)
    for axis in normalize_axes("ifftshift", axes, tensor.ndim, {"x": tensor}):
        tensor = _rotate_axis(tensor, axis, tensor.shape[axis] // 2)
    return alias(tensor)


def _rotate_axis(x: Tensor, axis: int, start: Dimension) -> Tensor:
    """The axis begun at another element, what stood before it put to the end."""
    tail = _stretch(x, axis, start, x.shape[axis])
    return apply(concatenate, tail, _stretch(x, axis, 0, start), axis=axis)


# --- arguments ---------------------------------------------------------------------------------


def _complex(op: str, x: Operand) -> Tensor:
    tensor = promote_operands(op, (x,), "inexact")[0]
    return convert_to(tensor, complex_of(tensor.dtype))


def _real_operand(op: str, x: Operand) -> Tensor:
    tensor = promote_operands(op, (x,), "float")[0]
    return convert_to(tensor, float32) if tensor.dtype.bits == 16 else tensor


def _norm(op: str, norm: str) -> str:
    if norm not in NORMS:
        raise ArgumentError(
            op,
            "unknown norm",
            expected="'backward', 'ortho' or 'forward'",
            got={"norm": repr(norm)},
            fix="leave it out: the inverse is scaled by 1/n",
        )
    return norm


def _length(op: str, n: object) -> int:
    try:
        length = operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(
            op,
            "the length is not an integer",
            expected="an integer n",
            got={"n": short_repr(n)},
            fix="round it: n=int(n)",
        ) from None
    if not 1 <= length < 2**63:
        raise ArgumentError(
            op,
            "a transform has at least one element, and not more than memory",
            expected="n of at least 1",
            got={"n": length},
            fix="leave n out to transform the whole axis",
        )
    return length


def _require_elements(op: str, x: Tensor, length: Dimension) -> None:
    if is_zero(length):
        raise ArgumentError(
            op,
            "a transform has at least one element",
            expected="n of at least 1; one frequency alone gives n=0",
            got={"x": x, "n": 0},
            fix="give the length of the result: n=1",
        )


def _sizes(op: str, x: Tensor, s: Sizes, axes: Axes) -> dict[int, int | None]:
    """The wanted size of each transformed axis, in order; None keeps it."""
    s = None if s is None else as_sequence(op, "s", s)
    if axes is None:
        first = 0 if s is None else x.ndim - len(s)
        if first < 0:
            raise _more_sizes(op, x, s)
        places = tuple(range(first, x.ndim))
    else:
        places = normalize_axes(op, as_sequence(op, "axes", axes), x.ndim, {"x": x})
    if s is None:
        return dict.fromkeys(places)
    if len(s) != len(places):
        raise ArgumentError(
            op,
            "s and axes have different lengths",
            expected="one size per axis",
            got={"s": s, "axes": axes},
            fix="name one axis per size",
        )
    sizes = [as_integer(op, "s", n) for n in s]
    return {axis: None if n == -1 else n for axis, n in zip(places, sizes, strict=True)}


def _more_sizes(op: str, x: Tensor, s: Sizes) -> AxisError:
    return AxisError(
        op,
        "more sizes than axes",
        expected=f"at most {x.ndim} sizes",
        got={"x": x, "s": s},
        fix="give one size per axis",
    )


def _require_axes(sizes: dict[int, int | None], op: str, x: Tensor) -> list[int]:
    if not sizes:
        raise AxisError(
            op,
            "no axis to transform",
            expected="at least one axis",
            got={"x": x},
            fix="leave axes out to transform all of them",
        )
    return list(sizes)


def _resize_to_lengths(op: str, x: Tensor, sizes: dict[int, int | None]) -> Tensor:
    given = {axis: _length(op, n) for axis, n in sizes.items() if n is not None}
    return _resize_axes(x, given)


def _resize_axes(x: Tensor, sizes: dict[int, Any]) -> Tensor:
    """Axes cut, or filled with zeros, to the given sizes."""
    for axis, n in sizes.items():
        if x.shape[axis] == n:
            continue
        if x.shape[axis] > n:
            x = _stretch(x, axis, 0, n)
        else:
            filled = [(0, 0, 0)] * x.ndim
            filled[axis] = (0, n - x.shape[axis], 0)
            x = apply(pad, x, padding=tuple(filled), value=0.0)
    return x


def _stretch(x: Tensor, axis: int, start: Dimension, stop: Dimension) -> Tensor:
    starts: list[Dimension] = [0] * x.ndim
    stops = list(x.shape)
    starts[axis], stops[axis] = start, stop
    return apply(slice_, x, starts=tuple(starts), stops=tuple(stops), strides=(1,) * x.ndim)


explain_all(globals(), __all__)
__getattr__ = missing_from("wf.fft", __all__)
