"""The way back over movement, for arrays of the host: what the derivatives apply, by NumPy alone.

A derivative is written with tensors, and its primitives check types and places first. Of the views
that networks take at every step (a slice, heads, a flat batch) that takes longer than the elements,
so these have the same in terms of arrays: of the cotangent, the operand's shape and the parameters.

>>> import numpy as np
>>> of_slice(np.ones(2), (5,), starts=(1,), stops=(5,), strides=(2,)).tolist()
[0.0, 1.0, 0.0, 1.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]


def inverse(order: Sequence[int]) -> Sizes:
    """The permutation that undoes a permutation."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def of_transpose(ct: Array, shape: Sizes, /, order: Sizes) -> Array:
    """The axes in the order that they came from."""
    return ct.transpose(inverse(order))


def of_reshape(ct: Array, before: Sizes, /, shape: Sizes) -> Array | None:
    """The shape that it had; None where elements would be copied, for which there are programs."""
    return ct.reshape(before) if ct.flags.c_contiguous else None


def of_slice(ct: Array, shape: Sizes, /, starts: Sizes, stops: Sizes, strides: Sizes) -> Array:
    """Zeros around and between the elements."""
    whole: Array = np.zeros(shape, ct.dtype)
    key: tuple[Any, ...] = (*map(slice, starts, stops, strides), ...)
    whole[key] = ct
    return whole
