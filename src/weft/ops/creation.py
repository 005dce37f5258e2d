"""Tensors made from nothing but a shape.

>>> import weft as wf
>>> wf.arange(3).tolist()
[0, 1, 2]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dtypes import DType, float32, int64
from weft.core.errors import AxisError, DTypeError
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.dispatch import apply
from weft.ir.kinds import Movement
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ops import movement_reads as reads
from weft.ops import sharding_rules as shardings
from weft.ops.operands import DTYPE_CLASSES, wrong_dtype

__all__: list[str] = []


def _iota_type(shape: Shape, dtype: DType, axis: int) -> TensorType:
    if dtype not in DTYPE_CLASSES["number"]:
        raise wrong_dtype("iota", "number", {"dtype": dtype})
    if not 0 <= axis < len(shape):
        raise AxisError(
            "iota",
            f"axis {axis} is out of range",
            expected="an axis of the shape",
            got={"shape": list(shape), "axis": axis},
            fix="count along the first axis: axis=0",
        )
    return TensorType(dtype, shape)


def _count_along(shape: tuple[int, ...], dtype: DType, axis: int) -> np.ndarray[Any, Any]:
    line = np.arange(shape[axis]).astype(dtype.numpy)
    return np.broadcast_to(line.reshape(-1, *[1] * (len(shape) - axis - 1)), shape)


iota: Primitive = Primitive(
    "iota",
    "Each element's position along one axis: 0, 1, 2, …",
    kind=Movement(reads.of_iota, by_place=True),
    sharding=shardings.of_iota,
    type_rule=_iota_type,
    reference=_count_along,
    derivatives=(),
    batch=lambda size, operands, axes, /, **params: (apply(iota, **params), None),
    samples=lambda: [
        Sample((), {"shape": (3,), "dtype": int64, "axis": 0}),
        Sample((), {"shape": (2, 3, 4), "dtype": float32, "axis": 1}),
        Sample((), {"shape": (0, 3), "dtype": float32, "axis": 0}),
    ],
    mistakes=lambda: [
        Mistake((), {"shape": (3,), "dtype": int64, "axis": 1}, AxisError, "out of range"),
        Mistake(
            (),
            {"shape": (3,), "dtype": DTYPE_CLASSES["bool"][0], "axis": 0},
            DTypeError,
            "not defined for this dtype",
        ),
    ],
)
