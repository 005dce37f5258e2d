"""Selection: one of several values, element by element.

>>> import weft as wf
>>> wf.where(wf.tensor([True, False]), 1.0, 2.0).tolist()
[1.0, 2.0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.arrays import CONCRETE, HostArray
from weft.core.dtypes import DType, bool_
from weft.core.errors import DTypeError, ShapeError
from weft.core.settings import settings
from weft.core.shapes import broadcast_shapes
from weft.core.types import TensorType
from weft.ir import numerics, ranges
from weft.ir.derivatives import additive, constant, tangent
from weft.ir.dispatch import apply, array_of_number, quiet
from weft.ir.eager import DIFFERENTIATED
from weft.ir.eager_primitives import large_elementwise, record_large
from weft.ir.kinds import Elementwise
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.remembered_calls import remember_host_calls
from weft.ir.tensor import Tensor, grad_mode, wrap
from weft.ops.comparison import greater, greater_equal, less, less_equal
from weft.ops.families import batch_broadcast, function_elsewhere, tape_node
from weft.ops.logic import logical_and
from weft.ops.operands import (
    DTYPE_CLASSES,
    alias,
    as_tensor,
    convert_to,
    promote_operands,
    scalar_tensor,
    wrong_dtype,
)

__all__ = ["clip", "where"]

Array = np.ndarray[Any, Any]
_BOOL = np.dtype(np.bool_)


def _where_type(condition: TensorType, x1: TensorType, x2: TensorType) -> TensorType:
    got = {"condition": condition, "x1": x1, "x2": x2}
    if condition.dtype is not bool_:
        raise DTypeError(
            "where",
            "the condition is not boolean",
            expected="a condition of dtype bool",
            got=got,
            fix="compare first: condition != 0",
        )
    if x1.dtype is not x2.dtype:
        raise DTypeError(
            "where",
            "the choices have different dtypes",
            expected="x1.dtype == x2.dtype",
            got=got,
            fix="convert one of them: x2.astype(x1.dtype)",
        )
    shape = broadcast_shapes("where", [condition.shape, x1.shape, x2.shape], got)
    return TensorType(x1.dtype, shape)


def _where_samples() -> list[Sample]:
    mask = np.array([[True, False, True], [False, False, True]])
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    return [
        Sample((mask, x, x * 2)),
        Sample((mask, x[:1], x[:, :1])),
        Sample((mask[0], x, np.float32(3))),
        Sample((np.bool_(True), np.float32(1), np.float32(2))),
        Sample((mask[:0], x[:0], x[:0])),
        Sample((mask, x.astype(np.complex64), x.astype(np.complex64) * 2j)),
        Sample((mask, np.arange(6).reshape(2, 3), np.arange(3))),
    ]


def _where_mistakes() -> list[Mistake]:
    x = np.ones(2, np.float32)
    mask = np.array([True, False])
    return [
        Mistake((x, x, x), {}, DTypeError, "the condition is not boolean"),
        Mistake((mask, x, x.astype(np.int32)), {}, DTypeError, "different dtypes"),
        Mistake((mask, x, np.ones(3, np.float32)), {}, ShapeError, "do not broadcast"),
    ]


select: Primitive = Primitive(
    "where",
    "The elements of x1 where the condition is true, those of x2 where it is not.",
    kind=Elementwise(bounds=ranges.of_choice),
    type_rule=_where_type,
    reference=np.where,
    derivatives=[
        constant("a truth value does not vary smoothly"),
        additive(lambda ct, condition, x1, x2: where(condition, ct, 0.0)),
        additive(lambda ct, condition, x1, x2: where(condition, 0.0, ct)),
    ],
    batch=lambda size, operands, axes: batch_broadcast(select, operands, axes),
    samples=_where_samples,
    mistakes=_where_mistakes,
    lower=lambda scalar, condition, x1, x2: scalar.select(condition, x1, x2),
    broadcasts=True,
)


def where(condition: Any, x1: Any, x2: Any, /) -> Tensor:
    """The elements of x1 where the condition is true, those of x2 where it is not.

    Only the chosen elements get a gradient. Both choices are computed, so keep a derivative that
    would be infinite out of the one that is not taken by another `where` inside.

    >>> import weft as wf
    >>> x = wf.tensor([-1.0, 4.0])
    >>> wf.where(x > 0, x, 0.0).tolist()
    [0.0, 4.0]
    """
    if type(condition) is Tensor:
        mask = condition._value
        if type(mask) is HostArray and mask.dtype is _BOOL:
            is_large = mask.size >= DIFFERENTIATED * settings.eager_elements
            chosen = _large_where(condition, x1, x2) if is_large else None
            chosen = _short_where(mask, x1, x2) if chosen is None else chosen
            if chosen is not None:
                return chosen
        elif type(mask) is not HostArray and type(mask) in CONCRETE:
            return _where_elsewhere(condition, x1, x2)
    return _where_promoted(condition, x1, x2)


def _where_promoted(condition: Any, x1: Any, x2: Any) -> Tensor:
    """`where` of anything that makes tensors."""
    return apply(
        select, as_tensor("where", condition, "condition"), *promote_operands("where", (x1, x2))
    )


_where_elsewhere, _ = function_elsewhere(select, _where_promoted)
_choose_compiled, _native_choices = large_elementwise(select)


def _large_where(condition: Tensor, x1: Any, x2: Any) -> Tensor | None:
    """`where` of large tensors of one dtype by a kernel: NumPy takes a branch for each element."""
    like = x1 if type(x1) is Tensor else x2
    if type(like) is not Tensor or type(like._value) is not HostArray:
        return None
    sides = []
    for side in (x1, x2):
        if type(side) is not Tensor:
            if not _is_weak(side, like._value):
                return None
            side = wrap(array_of_number(side, like._value.dtype))
        if type(side._value) is not HostArray or side._value.dtype is not like._value.dtype:
            return None
        sides.append(side)
    operands = (condition, *sides)
    recall = _native_choices.recall
    found = None if recall is None else recall(*operands)
    return _choose_compiled(operands) if found is None else record_large(select, operands, found)


def _short_where(mask: Array, x1: Any, x2: Any) -> Tensor | None:
    """`where` at once, for concrete tensors of one dtype, one of which may be a Python float."""
    a = x1._value if type(x1) is Tensor else x1
    b = x2._value if type(x2) is Tensor else x2
    plain = type(a) is HostArray and (
        b.dtype is a.dtype if type(b) is HostArray else _is_weak(b, a)
    )
    if not plain and not (type(b) is HostArray and _is_weak(a, b)):
        return None
    try:
        value: Array = quiet(np.where, mask, a, b)
    except (RuntimeError, ValueError):
        return None
    node = x1._node if type(x1) is Tensor else None
    other = x2._node if type(x2) is Tensor else None
    if (node is None and other is None) or not grad_mode.enabled:
        return wrap(value)
    return wrap(value, tape_node(select, (mask, a, b), (None, node, other), value))


def _is_weak(scalar: Any, array: Array) -> bool:
    return type(scalar) is float and array.dtype.kind in "fc"


def _clip_type(x: TensorType, low: TensorType, high: TensorType) -> TensorType:
    got = {"x": x, "min": low, "max": high}
    if x.dtype not in DTYPE_CLASSES["real"] or not x.dtype is low.dtype is high.dtype:
        raise wrong_dtype("clip", "real", got)
    return TensorType(x.dtype, broadcast_shapes("clip", [x.shape, low.shape, high.shape], got))


def _clip_samples() -> list[Sample]:
    x = np.linspace(-2.1, 2.2, 12, dtype=np.float32).reshape(3, 4)
    low, high = np.float32(-1), np.float32(1)
    return [
        Sample((x, low, high)),
        Sample((x, x.mean(1, keepdims=True), x.max(0) + 1)),
        Sample((x[0, 0], low, high)),
        Sample((x[:0], low, high)),
        Sample((np.arange(6), np.int64(2), np.int64(4))),
    ]


def _clip_mistakes() -> list[Mistake]:
    x = np.ones(2, np.float32)
    z = x.astype(np.complex64)
    return [
        Mistake((x, x, np.ones(3, np.float32)), {}, ShapeError, "do not broadcast"),
        Mistake((z, z, z), {}, DTypeError, "not defined for this dtype"),
    ]


clamp: Primitive = Primitive(
    "clip",
    "x, but low where it is less, and high where that is greater.",
    kind=Elementwise(bounds=ranges.of_clip),
    type_rule=_clip_type,
    reference=lambda x, low, high: numerics.minimum(numerics.maximum(x, low), high),
    derivatives=[
        tangent(
            lambda t, out, x, low, high: where(
                logical_and(greater_equal(x, low), less_equal(x, high)), t, 0.0
            ),
            diagonal=True,
        ),
        tangent(
            lambda t, out, x, low, high: where(
                logical_and(less(x, low), less_equal(low, high)), t, 0.0
            ),
            diagonal=True,
        ),
        tangent(
            lambda t, out, x, low, high: where(
                greater(where(greater(x, low), x, low), high), t, 0.0
            ),
            diagonal=True,
        ),
    ],
    batch=lambda size, operands, axes: batch_broadcast(clamp, operands, axes),
    samples=_clip_samples,
    mistakes=_clip_mistakes,
    lower=lambda scalar, x, low, high: scalar.minimum(scalar.maximum(x, low), high),
    broadcasts=True,
)


@remember_host_calls
def clip(x: Any, /, min: Any = None, max: Any = None) -> Tensor:
    """Each element, but at least `min` and at most `max`, where these are given.

    The result has the dtype of x; integer bounds that it cannot hold are as good as none. The
    gradient passes where x lies within the bounds, on them too. `max` wins over a greater `min`.

    >>> import weft as wf
    >>> wf.clip(wf.tensor([-1.0, 0.5, 2.0]), 0.0, 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    value = x._value if type(x) is Tensor else None
    is_elsewhere = type(value) is not HostArray and type(value) in CONCRETE
    if is_elsewhere and x.dtype.is_floating and not min is max is None:
        low, high = (-math.inf if min is None else min), (math.inf if max is None else max)
        return _clip_elsewhere(x, low, high)
    return _clip_promoted(x, min, max)


def _clip_promoted(x: Any, min: Any, max: Any) -> Tensor:
    """`clip` of anything that makes tensors."""
    tensor = as_tensor("clip", x)
    if tensor.dtype not in DTYPE_CLASSES["real"]:
        raise wrong_dtype("clip", "real", {"x": tensor})
    if min is None and max is None:
        return alias(tensor)
    dtype = _clip_dtype(tensor, [bound for bound in (min, max) if bound is not None])
    lowest, highest = extremes(dtype)
    low = scalar_tensor("clip", lowest, dtype) if min is None else _clip_bound(min, dtype, "min")
    high = scalar_tensor("clip", highest, dtype) if max is None else _clip_bound(max, dtype, "max")
    return apply(clamp, convert_to(tensor, dtype), low, high)


def _clip_unbounded(x: Tensor, low: Any, high: Any) -> Tensor:
    """`clip` of floats with bounds, of which infinite ones are none."""
    lowest, highest = (type(x) is float and math.isinf(x) for x in (low, high))
    return _clip_promoted(x, None if lowest else low, None if highest else high)


_clip_elsewhere, _ = function_elsewhere(clamp, _clip_unbounded)


def _clip_dtype(x: Tensor, bounds: Sequence[Any]) -> DType:
    """The dtype of x, except where an integer meets a floating-point bound."""
    if x.dtype.is_integer:
        fractions = any(map(_has_fraction, bounds))
        tensors = promote_operands("clip", (x, *bounds), "real") if fractions else (x,)
        return tensors[0].dtype
    return x.dtype


def _has_fraction(bound: Any) -> bool:
    return type(bound) is not int and as_tensor("clip", bound).dtype.is_inexact


def extremes(dtype: DType) -> tuple[Any, Any]:
    """The least and the greatest number of a real dtype."""
    if dtype.is_floating:
        return -np.inf, np.inf
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def _clip_bound(bound: Any, dtype: DType, name: str) -> Tensor:
    """A bound in the dtype of x; an integer beyond its range becomes the nearest within it."""
    lowest, highest = extremes(dtype)
    if type(bound) in (bool, int) and dtype.is_integer:
        nearest = lowest if bound < lowest else highest if bound > highest else int(bound)
        return scalar_tensor("clip", nearest, dtype)
    if type(bound) in (bool, int, float):
        return scalar_tensor("clip", bound, dtype)
    tensor = as_tensor("clip", bound, name)
    if tensor.dtype not in DTYPE_CLASSES["ordered"]:
        raise wrong_dtype("clip", "real", {name: tensor})
    if tensor.dtype.is_integer and dtype.is_integer and tensor.dtype is not dtype:
        least, most = extremes(tensor.dtype)
        low = scalar_tensor("clip", max(least, lowest), tensor.dtype)
        high = scalar_tensor("clip", min(most, highest), tensor.dtype)
        tensor = apply(clamp, tensor, low, high)
    return convert_to(tensor, dtype)
