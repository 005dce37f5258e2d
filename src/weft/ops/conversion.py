"""Conversion between element types, and between numbers and their bits.

>>> import weft as wf
>>> wf.tensor([1.7]).astype("int32").tolist()
[1]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core import dtypes
from weft.core.devices import as_device
from weft.core.dtypes import DType, complex_of, real_of
from weft.core.errors import DTypeError, Unsupported
from weft.core.types import TensorType
from weft.ir import ranges
from weft.ir.derivatives import constant, linear
from weft.ir.dispatch import apply
from weft.ir.kinds import Elementwise, Movement
from weft.ir.numerics import convert_numbers
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops.operands import DTYPE_CLASSES, alias, as_tensor, wrong_dtype
from weft.ops.placement import to_device

__all__ = ["astype", "bitcast"]

Array = np.ndarray[Any, Any]


def _convert_array(x: Array, dtype: DType) -> Any:
    if x.dtype.kind == "c" and not (dtype.is_complex or dtype is dtypes.bool_):
        x = x.real
    converted_array: Array = convert_numbers(x, dtype.numpy)
    return converted_array


convert: Primitive = Primitive(
    "convert",
    "Each element in another dtype; floats are cut towards zero and to the range of an integer, "
    "complex numbers lose their imaginary part.",
    kind=Elementwise(bounds=ranges.of_conversion),
    type_rule=lambda x, dtype: TensorType(dtype, x.shape),
    reference=_convert_array,
    derivatives=[linear(lambda ct, x, dtype: apply(convert, ct, dtype=x.dtype))],
    batch=lambda size, operands, axes, dtype: (apply(convert, operands[0], dtype=dtype), axes[0]),
    samples=lambda: [
        Sample((np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3),), {"dtype": dtypes.float64}),
        Sample((np.linspace(-2, 2, 6, dtype=np.float64),), {"dtype": dtypes.float32}),
        Sample((np.arange(6),), {"dtype": dtypes.float32}),
        Sample((np.ones((2, 2), np.float32),), {"dtype": dtypes.complex64}),
        Sample((np.array([1 + 2j, 3 - 1j], np.complex64),), {"dtype": dtypes.float32}),
        Sample((np.array([0.0, -1.7, 2.5], np.float32),), {"dtype": dtypes.int32}),
        Sample((np.array([0.0, -1.5], np.float32),), {"dtype": dtypes.bfloat16}, derivative=False),
        Sample((np.array([0.0, -1.5], np.float32),), {"dtype": dtypes.bool_}),
    ],
    lower=lambda scalar, x, dtype: scalar.cast(x, dtype),
)


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The tensor with elements of another dtype.

    Floats are cut towards zero; what an integer dtype cannot hold becomes the nearest number that
    it can, and NaN becomes 0. Integers wrap around. Complex numbers do not become real ones. A
    tensor is a value: with `copy=False` a tensor that has the dtype already is returned as it is.

    >>> import weft as wf
    >>> wf.astype(wf.tensor([1.7, -1.7, 300.0]), wf.int8).tolist()
    [1, -1, 127]
    """
    tensor = as_tensor("astype", x)
    if device is not None and as_device(device) != tensor.device:
        tensor = to_device(tensor, device)
    target = dtypes.as_dtype(dtype)
    if tensor.dtype is target:
        return alias(tensor) if copy else tensor
    if tensor.dtype.is_complex and not (target.is_complex or target is dtypes.bool_):
        raise DTypeError(
            "astype",
            "a complex number is not a real one",
            expected="a complex dtype",
            got={"x": tensor, "dtype": target.name},
            fix=f'choose a real number first: x.real.astype("{target.name}"), or abs(x)',
        )
    return apply(convert, tensor, dtype=target)


def _bitcast_type(x: TensorType, dtype: DType) -> TensorType:
    if x.dtype.bits != dtype.bits or dtypes.bool_ in (x.dtype, dtype):
        raise DTypeError(
            "bitcast",
            "dtypes of different sizes",
            expected=f"a dtype of {x.dtype.bits} bits that is not bool",
            got={"x": x, "dtype": dtype},
            fix=f'pass dtype="{_same_size(x.dtype).name}"',
        )
    return x.with_dtype(dtype)


def _same_size(dtype: DType) -> DType:
    """An integer dtype of the same size, or the dtype itself where there is none."""
    signed = [d for d in dtypes.DTYPES if d.kind == "signed" and d.bits == dtype.bits]
    return signed[0] if signed else dtype


bits_as: Primitive = Primitive(
    "bitcast",
    "The same bits, read as another dtype of the same size.",
    kind=Elementwise(),
    type_rule=_bitcast_type,
    reference=lambda x, dtype: np.ascontiguousarray(x).view(dtype.numpy).reshape(x.shape),
    derivatives=[constant("bits are not a number that varies smoothly")],
    batch=lambda size, operands, axes, dtype: (apply(bits_as, operands[0], dtype=dtype), axes[0]),
    samples=lambda: [
        Sample((np.array([[1.0, -2.5]], np.float32),), {"dtype": dtypes.uint32}, derivative=False),
        Sample((np.array(3, np.int64),), {"dtype": dtypes.float64}),
        Sample((np.zeros((0, 2), np.float16),), {"dtype": dtypes.bfloat16}, derivative=False),
    ],
    mistakes=lambda: [
        Mistake((np.ones(2, np.float32),), {"dtype": dtypes.int64}, DTypeError, "different sizes"),
    ],
)


def bitcast(x: Tensor, dtype: Any, /) -> Tensor:
    """The same bits, read as another dtype of the same size.

    >>> import weft as wf
    >>> wf.bitcast(wf.tensor([1.0]), wf.uint32).tolist()
    [1065353216]
    """
    return apply(bits_as, as_tensor("bitcast", x), dtype=dtypes.as_dtype(dtype))


# --- complex numbers in memory -------------------------------------------------------------------

_ALIAS = Unsupported("its result lies where its operand does")
_IN_PROGRAMS = Unsupported("it stands in compiled programs only, after derivatives and batching")


def _part_samples(dtype: Any) -> list[Any]:
    return [np.arange(6, dtype=dtype).reshape(shape) for shape in ((3, 2), (1, 3, 2))]


def _whole_numbers(parts: Any) -> Any:
    flat = np.ascontiguousarray(parts).reshape(-1)
    return flat.view(np.result_type(flat.dtype, np.complex64)).reshape(parts.shape[:-1])


def _whole_type(x: TensorType) -> TensorType:
    if x.dtype not in DTYPE_CLASSES["parts"]:
        raise wrong_dtype("of_parts", "parts", {"x": x})
    return TensorType(complex_of(x.dtype), x.shape[:-1])


as_parts: Primitive = Primitive(
    "as_parts",
    "The memory of complex numbers as real ones: one more axis, of the two parts of each.",
    kind=Movement(is_alias=True),
    lower=_ALIAS,
    type_rule=lambda z: TensorType(real_of(z.dtype), (*z.shape, 2)),
    reference=lambda z: np.stack([z.real, z.imag], -1),
    derivatives=_IN_PROGRAMS,
    batch=_IN_PROGRAMS,
    samples=lambda: [Sample((x,), derivative=False) for x in _part_samples(np.complex64)],
)

of_parts: Primitive = Primitive(
    "of_parts",
    "The complex numbers whose parts lie along the last axis, which has two elements.",
    kind=Movement(is_alias=True),
    lower=_ALIAS,
    type_rule=_whole_type,
    reference=_whole_numbers,
    derivatives=_IN_PROGRAMS,
    batch=_IN_PROGRAMS,
    samples=lambda: [Sample((x,), derivative=False) for x in _part_samples(np.float32)],
)
