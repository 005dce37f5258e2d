"""Taking what a caller passed and making tensors of it: conversion and promotion.

>>> from weft.ops.operands import as_tensor
>>> as_tensor("f", 2.5).type
f32[]
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from weft.core import dtypes
from weft.core.arrays import is_concrete
from weft.core.dimensions import Dim
from weft.core.dtypes import DType, from_numpy, result_type
from weft.core.errors import (
    ArgumentTypeError,
    DTypeError,
    OutOfMemoryError,
    TraceError,
    WeftError,
)
from weft.core.shapes import size
from weft.core.sharing import note_lending
from weft.ir.dispatch import apply
from weft.ir.forward import has_derivative, refuse_derivative
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.tensor import Tensor, Traced, grad_mode, host_array, wrap

Scalar = bool | int | float | complex
Operand = Any
"""What an operation takes: a tensor, a NumPy array or a Python scalar."""

DTYPE_CLASSES: dict[str, tuple[DType, ...]] = {
    "any": dtypes.DTYPES,
    "bool": (dtypes.bool_,),
    "ordered": tuple(d for d in dtypes.DTYPES if not d.is_complex),
    "integer": tuple(d for d in dtypes.DTYPES if d.is_integer),
    "bits": tuple(d for d in dtypes.DTYPES if d.is_integer or d is dtypes.bool_),
    "real": tuple(d for d in dtypes.DTYPES if d.is_integer or d.is_floating),
    "number": tuple(d for d in dtypes.DTYPES if d is not dtypes.bool_),
    "float": tuple(d for d in dtypes.DTYPES if d.is_floating),
    "parts": (dtypes.float32, dtypes.float64),
    "complex": tuple(d for d in dtypes.DTYPES if d.is_complex),
    "inexact": tuple(d for d in dtypes.DTYPES if d.is_inexact),
}

NUMBERS: dict[str, str] = {
    "any": "numbers and booleans",
    "bool": "booleans",
    "ordered": "real numbers and booleans",
    "integer": "integers",
    "bits": "integers and booleans",
    "real": "integers and floats",
    "number": "numbers",
    "float": "floats",
    "parts": "float32 and float64",
    "complex": "complex numbers",
    "inexact": "floats and complex numbers",
}
"""The classes of dtypes in words."""


def as_tensor(op: str, value: Operand, name: str = "x") -> Tensor:
    """A tensor of what was passed: arrays without a copy, scalars with their default dtype."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        return scalar_tensor(op, value, result_type(op, [value]))
    if isinstance(value, (np.ndarray, np.generic)):
        return array_tensor(op, value)
    if is_concrete(value):
        return wrap(value)
    if isinstance(value, Dim):
        return scalar_tensor(op, value, dtypes.DEFAULT_INTEGER)
    raise ArgumentTypeError(
        op,
        f"{name} is not a tensor",
        expected="a tensor, a NumPy array or a number",
        got={name: repr(value) if isinstance(value, str) else value},
        fix=_conversion(value, name),
    )


def as_tensor_in(op: str, value: Operand, dtype: DType, name: str = "x") -> Tensor:
    """A tensor of what was passed in a dtype: a float is rounded to it, not to the default first.

    >>> as_tensor_in("copy_", 0.1, dtypes.float64).item()
    0.1
    """
    if (type(value) is float and dtype.is_inexact) or (type(value) is complex and dtype.is_complex):
        return scalar_tensor(op, value, dtype)
    return convert_to(as_tensor(op, value, name), dtype)


def widen_sums(x: Tensor) -> Tensor:
    """16-bit floats as float32, so that sums which are divided afterwards do not overflow."""
    return convert_to(x, dtypes.float32) if x.dtype.is_inexact and x.dtype.bits == 16 else x


def with_room_for_sums(powers: Tensor, axes: Sequence[int]) -> Tensor:
    """Numbers up to 1, in float32 where float16 cannot hold the sum of as many along axes.

    A vocabulary of 128 thousand words is more than 65504, float16's greatest number. Of a symbolic
    size this is not known; it is taken to be smaller.
    """
    count = size(tuple([powers.shape[axis] for axis in axes]))
    is_full = powers.dtype is dtypes.float16 and isinstance(count, int) and count > 65504
    return convert_to(powers, dtypes.float32) if is_full else powers


def _conversion(value: Operand, name: str) -> str:
    """Advice on how to turn a value into an operand."""
    if isinstance(value, (list, tuple)):
        return f"convert it first: wf.tensor({name})"
    if value is None:
        return f"pass a tensor for {name}: does the function that made it return it?"
    if isinstance(value, str):
        return f"convert it to a number first: float({name})"
    return f"pass numbers for {name}, as in wf.tensor([1.0, 2.0])"


def alias(tensor: Tensor) -> Tensor:
    """Another handle on the same value: rebinding one leaves the other alone.

    Like any result it has no history under `no_grad`, and none in a graph that is recorded there.
    """
    if grad_mode.enabled:
        return wrap(tensor._value, tensor._node)
    value = tensor._value
    if isinstance(value, Traced) and value.trace.is_stopping() and tensor.dtype.is_inexact:
        return apply(PRIMITIVES["stop_gradient"], tensor)
    return wrap(tensor._value)


def array_tensor(op: str, value: Any) -> Tensor:
    """A tensor on a NumPy array's own memory, in native byte order."""
    array = np.asarray(value)
    try:
        dtype = from_numpy(array.dtype)
    except KeyError:
        raise DTypeError(
            op,
            "no tensor can hold these elements",
            expected="one of " + ", ".join(d.name for d in dtypes.DTYPES),
            got={"array": array},
            fix='convert the array first, for example array.astype("float32")',
        ) from None
    native = array.astype(dtype.numpy, copy=False)
    if native is value:
        note_lending(native)
    return wrap(native)


def scalar_tensor(op: str, value: Scalar | Dim, dtype: DType) -> Tensor:
    """A tensor without axes; an integer that the dtype cannot hold is refused.

    A symbolic size is counted when it is known: as the sum of that many ones.
    """
    if isinstance(value, Dim):
        ones = apply(PRIMITIVES["full"], shape=(value,), dtype=dtypes.INDEX, value=1)
        return convert_to(apply(PRIMITIVES["reduce_sum"], ones, axes=(0,)), dtype)
    try:
        with np.errstate(all="ignore"):
            return wrap(np.array(value, dtype.numpy))
    except (OverflowError, TypeError):  # ml_dtypes raises TypeError for large integers
        raise DTypeError(
            op,
            f"the number does not fit {dtype.name}",
            expected=f"a number that {dtype.name} can hold: {span(dtype)}",
            got={"number": value},
            fix='convert the tensor to a wider dtype first: x.astype("int64")',
        ) from None


def span(dtype: DType) -> str:
    """The numbers that a dtype holds, in words."""
    if not dtype.is_integer:
        return "True or False" if dtype is dtypes.bool_ else "a float of its size"
    limits = np.iinfo(dtype.numpy)
    return f"{limits.min} to {limits.max}"


def as_integer(op: str, name: str, value: object) -> int:
    """An argument that counts something, as a Python integer."""
    if not isinstance(value, bool):
        with suppress(TypeError, ValueError, IndexError):
            return operator.index(value)  # type: ignore[arg-type]
    raise _argument_error(op, name, value, "an integer", f"{name}=1")


def as_number(op: str, name: str, value: object) -> float:
    """An argument that measures something, as a Python number."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Tensor):
        value = constant_array(op, name, value)
    if isinstance(value, (np.floating, np.integer, np.ndarray)):
        with suppress(TypeError, ValueError):
            return float(value)
    raise _argument_error(op, name, value, "a real number", f"{name}=1.0")


def constant_array(op: str, name: str, x: Tensor) -> np.ndarray[Any, Any]:
    """The array of a tensor that is given for a number: refused where that would freeze it.

    What is read as a number is a constant to derivatives and to compiled programs.
    """
    refuse_derivative(op, name, x)
    try:
        return host_array(x, op)
    except TraceError as error:
        raise TraceError(
            op,
            f"{name} is read as a number, but {error.problem}",
            expected=f"a Python number, or a concrete tensor, for {name}",
            got={name: x},
            fix=f"pass {name} as a Python number, which a function is compiled for",
        ) from None


def is_live(value: object) -> bool:
    """Whether a value is one number in a tensor that a trace or a derivative follows."""
    if not isinstance(value, Tensor) or value.ndim != 0:
        return False
    return not is_concrete(value._value) or has_derivative(value)


@contextmanager
def room(op: str, got: Mapping[str, object]) -> Iterator[None]:
    """Say which operation asks NumPy for more memory than there is."""
    try:
        yield
    except WeftError:
        raise
    except (MemoryError, ValueError, OverflowError) as error:
        raise OutOfMemoryError(
            op,
            "there is not enough memory for the result",
            expected="sizes that fit into the memory",
            got=got,
            note=str(error),
            fix="write the size that is meant",
        ) from error


LONGEST_LIST = 1 << 24
"""The most elements of a range that is taken for a list."""


def as_sequence(op: str, name: str, value: object) -> tuple[Any, ...]:
    """An argument that lists something, as a tuple."""
    is_array = isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0
    if isinstance(value, range) and value[LONGEST_LIST:]:
        raise _argument_error(
            op, name, value, f"a list of at most {LONGEST_LIST}", f"{name}=(0, 1)"
        )
    if is_array or isinstance(value, (tuple, list, range)):
        return tuple(value)  # type: ignore[arg-type]
    raise _argument_error(op, name, value, "a tuple or a list", f"{name}=(0, 1)")


def check_function(op: str, f: object) -> None:
    """Refuse as a function what cannot be called."""
    if not callable(f):
        raise _argument_error(op, "f", f, "a function", f"wf.{op}(lambda x: ...)")


def _argument_error(op: str, name: str, value: object, kind: str, fix: str) -> ArgumentTypeError:
    value_text = repr(value) if isinstance(value, str) else value
    return ArgumentTypeError(
        op, f"{name} is not {kind}", expected=kind, got={name: value_text}, fix=fix
    )


def promote_operands(
    op: str, values: Sequence[Operand], allowed: str = "any"
) -> tuple[Tensor, ...]:
    """Tensors of one dtype: the operands' common one, which the operation is defined for.

    Integers given to an operation on floating-point numbers become the default float. What NumPy
    makes of a Python float, as np.sqrt(2) does, is as weak beside a tensor as the float itself.
    """
    first = values[0]
    if type(first) is Tensor:
        common = first.dtype
        alike = all(type(value) is Tensor and value.dtype is common for value in values)
        if alike and allowed_dtype(op, common, allowed, values) is common:
            return tuple(values)
    if any(isinstance(value, Tensor) for value in values):
        values = [value.item() if _is_numpy_float(value) else value for value in values]
    scalars = [_is_scalar(value) for value in values]
    tensors: list[Any] = [
        v
        if s or isinstance(v, Tensor)
        else as_tensor(op, v, f"x{i + 1}" if len(values) > 1 else "x")
        for i, (v, s) in enumerate(zip(values, scalars, strict=True))
    ]
    kinds: list[Any] = [
        _weak_number(t) if s else t.dtype for t, s in zip(tensors, scalars, strict=True)
    ]
    dtype = allowed_dtype(op, result_type(op, kinds), allowed, values)
    return tuple(
        scalar_tensor(op, t, dtype) if s else convert_to(t, dtype)
        for t, s in zip(tensors, scalars, strict=True)
    )


def _is_scalar(value: Operand) -> bool:
    return type(value) in (bool, int, float, complex, Dim)


def _is_numpy_float(value: Operand) -> bool:
    """Whether a value is a Python float or complex number in NumPy's clothes."""
    return isinstance(value, (float, complex)) and isinstance(value, np.generic)


def _weak_number(value: Scalar | Dim) -> Scalar:
    return 1 if isinstance(value, Dim) else value


def allowed_dtype(op: str, dtype: DType, allowed: str, values: Sequence[Operand]) -> DType:
    """The dtype the operation works in, or an error when it is not defined for this one."""
    choices = DTYPE_CLASSES[allowed]
    if dtype in choices:
        return dtype
    if not dtype.is_inexact and dtypes.DEFAULT_FLOAT in choices and dtypes.int64 not in choices:
        return dtypes.DEFAULT_FLOAT
    names = ["x"] if len(values) == 1 else [f"x{i + 1}" for i in range(len(values))]
    raise wrong_dtype(op, allowed, dict(zip(names, values, strict=True)))


def wrong_dtype(op: str, allowed: str, got: Mapping[str, object]) -> DTypeError:
    """The error for a dtype that an operation is not defined for."""
    choices = DTYPE_CLASSES[allowed]
    given = [dtype for dtype in map(_dtype_of, got.values()) if dtype is not None]
    wanted = next(d for d in (dtypes.float32, dtypes.int64, *choices) if d in choices)
    if given and not any(d.is_inexact for d in given) and dtypes.int64 in choices:
        wanted = dtypes.int64
    fix = f'convert first: x.astype("{wanted.name}")'
    if any(d.is_complex for d in given) and not wanted.is_complex:
        fix = "choose a real number: abs(x), x.real or x.imag"
    return DTypeError(
        op,
        f"not defined for this dtype, only for {NUMBERS[allowed]}",
        expected=", ".join(d.name for d in choices),
        got=got,
        fix=fix,
    )


def _dtype_of(value: object) -> DType | None:
    dtype = getattr(value, "dtype", None)
    return dtype if isinstance(dtype, DType) else None


def apply_as(op: str, primitive: Primitive, *operands: Tensor, **params: Any) -> Any:
    """`apply`, with errors under the name of the public function that was called."""
    try:
        return apply(primitive, *operands, **params)
    except WeftError as error:
        raise error.called(op) from None


def convert_to(tensor: Tensor, dtype: DType) -> Tensor:
    """The tensor with elements of another dtype; itself where it already has it."""
    if tensor.dtype is dtype:
        return tensor
    return apply(PRIMITIVES["convert"], tensor, dtype=dtype)
