"""Conversion between element types.

>>> import weft as wf
>>> wf.tensor([1.7]).astype("int32").tolist()
[1]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core import dtypes
from weft.core.dtypes import DType
from weft.core.types import TensorType
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply, bind
from weft.ir.primitive import Primitive, Sample
from weft.ir.tensor import Tensor


def _converted(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    if x.dtype.kind == "c" and not dtype.is_complex:
        x = x.real
    return x.astype(dtype.numpy)


convert = Primitive(
    "convert",
    "Each element in another dtype; floats are cut towards zero, complex numbers lose their imaginary part.",
    type_rule=lambda x, dtype: TensorType(dtype, x.shape),
    reference=_converted,
    derivatives=[linear(lambda ct, x, dtype: bind(convert, ct, dtype=x.dtype))],
    batch=lambda size, operands, axes, dtype: (bind(convert, operands[0], dtype=dtype), axes[0]),
    samples=lambda: [
        Sample((np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3),), {"dtype": dtypes.float64}),
        Sample((np.linspace(-2, 2, 6, dtype=np.float64),), {"dtype": dtypes.float32}),
        Sample((np.arange(6),), {"dtype": dtypes.float32}),
        Sample((np.ones((2, 2), np.float32),), {"dtype": dtypes.complex64}),
        Sample((np.array([0.0, -1.7, 2.5], np.float32),), {"dtype": dtypes.int32}),
    ],
)


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The tensor with elements of another dtype. A tensor is a value: `copy` changes nothing."""
    target = dtypes.as_dtype(dtype)
    if x.dtype is target:
        return x
    return apply(convert, x, dtype=target)
