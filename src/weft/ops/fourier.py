"""Discrete Fourier transforms: complex to complex, real to half a spectrum, and back.

All are linear. The adjoint of a transform is the transform in the other direction, with the scale
on the other side. Half a spectrum stands for a whole one, in which all frequencies but the first
(and, for an even length, the last) occur twice. The adjoints multiply or divide by these counts.

>>> import weft as wf
>>> wf.fft.rfft(wf.ones(4)).tolist()
[(4+0j), 0j, 0j]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.dtypes import DType, complex_of, float32, float64, real_of
from weft.core.errors import ArgumentError, DTypeError, ShapeError, Unsupported
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply, bind
from weft.ir.kinds import Transform
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.families import batch_each
from weft.ops.movement import pad, reshape

__all__: list[str] = []

NORMS = ("backward", "ortho", "forward")
BY_NUMPY = Unsupported("NumPy transforms it")
OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""Where the adjoint of a transform is scaled."""


def _require(op: str, x: TensorType, complex_wanted: bool, axes: tuple[int, ...]) -> None:
    """Refuse a dtype that the transform does not take, and axes without elements."""
    fits = x.dtype.is_complex if complex_wanted else x.dtype in (float32, float64)
    if not fits:
        wanted = "complex64 or complex128" if complex_wanted else "float32 or float64"
        raise DTypeError(
            op,
            "the transform is not defined for this dtype",
            expected=wanted,
            got={"x": x},
            fix=f'convert first: x.astype("{wanted.split()[0]}")',
        )
    for axis in axes:
        if is_zero(x.shape[axis]):
            raise ShapeError(
                op,
                f"axis {axis} has no elements to transform",
                expected="at least 1 element along every transformed axis",
                got={"x": x},
                fix="pad it: n=1 gives one element, a zero",
            )


def _fft_type(x: TensorType, axes: tuple[int, ...], inverse: bool, norm: str) -> TensorType:
    _require("fft", x, True, axes)
    return x


def _fft(x: Any, axes: tuple[int, ...], inverse: bool, norm: Any) -> Any:
    return (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=axes, norm=norm)


def _adjoint_fft(ct: Tensor, x: Tensor, axes: tuple[int, ...], inverse: bool, norm: str) -> Tensor:
    return apply(fft, ct, axes=axes, inverse=not inverse, norm=OPPOSITE[norm])


def _signal(*shape: int, dtype: Any = np.float32) -> Any:
    generator = np.random.default_rng(len(shape))
    x = generator.normal(size=shape)
    return (x + 1j * generator.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(
        dtype
    )


fft: Primitive = Primitive(
    "fft",
    "The discrete Fourier transform along axes, or its inverse; `norm` says which one is scaled.",
    kind=Transform(
        lambda params, n: "ifft" if params["inverse"] else "fft", lambda params: params["inverse"]
    ),
    lower=BY_NUMPY,
    sharding=shardings.beside_axes,
    type_rule=_fft_type,
    reference=_fft,
    derivatives=[linear(_adjoint_fft)],
    batch=batch_each(
        lambda: fft,
        lambda size, axes, **params: {"axes": tuple(axis + 1 for axis in axes), **params},
    ),
    samples=lambda: (
        [
            Sample(
                (_signal(3, 4, dtype=np.complex64),),
                {"axes": axes, "inverse": inverse, "norm": norm},
            )
            for axes, inverse, norm in (
                ((1,), False, "backward"),
                ((0,), True, "backward"),
                ((0, 1), False, "ortho"),
                ((1, 0), True, "forward"),
            )
        ]
        + [
            Sample(
                (np.zeros((0, 2), np.complex64),), {"axes": (1,), "inverse": False, "norm": "ortho"}
            )
        ]
    ),
    mistakes=lambda: [
        Mistake(
            (np.zeros((2, 0), np.complex64),),
            {"axes": (1,), "inverse": False, "norm": "ortho"},
            ShapeError,
            "axis 1 has no elements",
        ),
        Mistake(
            (np.ones(2, np.float32),),
            {"axes": (0,), "inverse": False, "norm": "ortho"},
            DTypeError,
            "not defined for this dtype",
        ),
    ],
)


def _resized_type(x: TensorType, axis: int, size: Dimension, dtype: DType) -> TensorType:
    return TensorType(dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


def _occurrences(n: Dimension, ndim: int, axis: int, dtype: DType) -> Tensor:
    """How often each frequency of half a spectrum occurs in the whole one, along an axis."""
    # [1, 2, …, 2, 1] for an even length, [1, 2, …, 2] for an odd one.
    last = 1 - n % 2
    inner = filled_tensor((n // 2 - last,), dtype, 2)
    counts = bind(pad, inner, padding=((1, last, 0),), value=1.0)
    shape = tuple(n // 2 + 1 if position == axis else 1 for position in range(ndim))
    return apply(reshape, counts, shape=shape)


def _rfft_type(x: TensorType, axis: int, norm: str) -> TensorType:
    _require("rfft", x, False, (axis,))
    return _resized_type(x, axis, x.shape[axis] // 2 + 1, complex_of(x.dtype))


def _adjoint_rfft(ct: Tensor, x: Tensor, axis: int, norm: str) -> Tensor:
    # irfft adds each inner frequency twice, once for each half of the spectrum.
    counts = _occurrences(x.shape[axis], x.ndim, axis, x.dtype)
    return apply(irfft, ct / counts, axis=axis, n=x.shape[axis], norm=OPPOSITE[norm])


rfft: Primitive = Primitive(
    "rfft",
    "The first half of the spectrum of real numbers along an axis; the other half mirrors it.",
    kind=Transform(
        lambda params, n: "rfft_n_odd" if n % 2 else "rfft_n_even", lambda params: False
    ),
    lower=BY_NUMPY,
    sharding=shardings.beside_axes,
    type_rule=_rfft_type,
    reference=lambda x, axis, norm: np.fft.rfft(x, axis=axis, norm=norm),
    derivatives=[linear(_adjoint_rfft)],
    batch=batch_each(lambda: rfft, lambda size, axis, norm: {"axis": axis + 1, "norm": norm}),
    samples=lambda: [
        Sample((_signal(3, 4),), {"axis": 1, "norm": "backward"}),
        Sample((_signal(3, 4),), {"axis": 0, "norm": "ortho"}),
        Sample((_signal(5),), {"axis": 0, "norm": "forward"}),
        Sample((_signal(1, dtype=np.float64),), {"axis": 0, "norm": "backward"}),
        Sample((_signal(2),), {"axis": 0, "norm": "backward"}),
    ],
    mistakes=lambda: [
        Mistake(
            (np.ones(2, np.complex64),), {"axis": 0, "norm": "ortho"}, DTypeError, "not defined"
        ),
        Mistake((np.ones(0, np.float32),), {"axis": 0, "norm": "ortho"}, ShapeError, "no elements"),
    ],
)


def _irfft_type(x: TensorType, axis: int, n: Dimension, norm: str) -> TensorType:
    _require("irfft", x, True, (axis,))
    if x.shape[axis] != n // 2 + 1:
        raise ArgumentError(
            "irfft",
            "the number of frequencies does not fit n",
            expected=f"{n // 2 + 1} frequencies for n={n}",
            got={"x": x, "n": n},
            fix="pad or slice the spectrum to n // 2 + 1 frequencies",
        )
    return _resized_type(x, axis, n, real_of(x.dtype))


def _adjoint_irfft(ct: Tensor, x: Tensor, axis: int, n: Dimension, norm: str) -> Tensor:
    counts = _occurrences(n, x.ndim, axis, ct.dtype)
    return apply(rfft, ct, axis=axis, norm=OPPOSITE[norm]) * counts


irfft: Primitive = Primitive(
    "irfft",
    "n real numbers from the first half of their spectrum along an axis.",
    kind=Transform(lambda params, n: "irfft", lambda params: True),
    lower=BY_NUMPY,
    sharding=shardings.beside_axes,
    type_rule=_irfft_type,
    reference=lambda x, axis, n, norm: np.fft.irfft(x, n, axis=axis, norm=norm),
    derivatives=[linear(_adjoint_irfft)],
    batch=batch_each(
        lambda: irfft, lambda size, axis, n, norm: {"axis": axis + 1, "n": n, "norm": norm}
    ),
    samples=lambda: [
        Sample((_signal(2, 3, dtype=np.complex64),), {"axis": 1, "n": 4, "norm": "backward"}),
        Sample((_signal(2, 3, dtype=np.complex64),), {"axis": 1, "n": 5, "norm": "ortho"}),
        Sample((_signal(2, 3, dtype=np.complex64),), {"axis": 0, "n": 2, "norm": "forward"}),
        Sample((_signal(1, dtype=np.complex128),), {"axis": 0, "n": 1, "norm": "backward"}),
    ],
    mistakes=lambda: [
        Mistake(
            (np.ones(3, np.complex64),),
            {"axis": 0, "n": 8, "norm": "ortho"},
            ArgumentError,
            "the number of frequencies does not fit n",
        )
    ],
)
