"""Numerical functions of neural networks that are made of reductions.

>>> import weft as wf
>>> wf.softmax(wf.tensor([0.0, 0.0])).tolist()
[0.5, 0.5]
"""

from __future__ import annotations

from typing import Any

from weft.core.dimensions import is_zero
from weft.core.errors import ShapeError
from weft.core.shapes import normalize_axes, normalize_axis
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import maximum, negative
from weft.ops.composed.norms import vector_norm
from weft.ops.elementary import exp, log, sigmoid
from weft.ops.identity import stop_gradient
from weft.ops.movement import slice_
from weft.ops.operands import (
    allowed_dtype,
    as_tensor,
    convert_to,
    promote_operands,
    with_room_for_sums,
)
from weft.ops.reduction import keep_reduced, reduce_max, reduce_sum

__all__ = ["cosine_similarity", "glu", "log_softmax", "normalize", "softmax", "softmin"]

Axis = int | tuple[int, ...]


def _float_operand(op: str, x: Any, axis: Axis) -> tuple[Tensor, tuple[int, ...]]:
    tensor = as_tensor(op, x)
    tensor = convert_to(tensor, allowed_dtype(op, tensor.dtype, "float", (tensor,)))
    return tensor, tuple(sorted(normalize_axes(op, axis, tensor.ndim, {"x": tensor})))


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return keep_reduced(apply(reduce_sum, x, axes=axes), x, axes)


def _less_maximum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The tensor less its largest element along axes, which cancels out of the result."""
    if any(is_zero(x.shape[axis]) for axis in axes):
        return x
    return x - keep_reduced(apply(reduce_max, stop_gradient(x), axes=axes), x, axes)


@unit
def softmax(x: Any, /, *, axis: Axis = -1) -> Tensor:
    """Exponentials divided by their sum along an axis: positive numbers that add up to 1.

    Elements of -inf get 0; where all are -inf, or one is inf, the result is NaN.

    >>> import weft as wf
    >>> wf.softmax(wf.tensor([1000.0, 1000.0, float("-inf")])).tolist()
    [0.5, 0.5, 0.0]
    """
    tensor, axes = _float_operand("softmax", x, axis)
    powers = with_room_for_sums(exp(_less_maximum(tensor, axes)), axes)
    return convert_to(powers / _sum(powers, axes), tensor.dtype)


@unit
def log_softmax(x: Any, /, *, axis: Axis = -1) -> Tensor:
    """The logarithm of `softmax`, without the loss of digits that taking it afterwards has.

    >>> import weft as wf
    >>> wf.log_softmax(wf.tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    tensor, axes = _float_operand("log_softmax", x, axis)
    shifted = _less_maximum(tensor, axes)
    powers = with_room_for_sums(exp(shifted), axes)
    return shifted - convert_to(log(_sum(powers, axes)), tensor.dtype)


@unit
def softmin(x: Any, /, *, axis: Axis = -1) -> Tensor:
    """`softmax` of the negative: small elements get large shares.

    >>> import weft as wf
    >>> wf.softmin(wf.tensor([0.0, 1000.0])).tolist()
    [1.0, 0.0]
    """
    tensor, _ = _float_operand("softmin", x, axis)
    return softmax(negative(tensor), axis=axis)


@unit
def normalize(x: Any, /, *, ord: float = 2, axis: Axis = -1, eps: float = 1e-12) -> Tensor:
    """The tensor divided by its norm along axes, which is taken as at least `eps`.

    >>> import weft as wf
    >>> wf.normalize(wf.tensor([3.0, 4.0])).numpy().round(3).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    tensor, axes = _float_operand("normalize", x, axis)
    return tensor / maximum(vector_norm(tensor, axis=axes, ord=ord, keepdims=True), eps)


@unit
def cosine_similarity(x1: Any, x2: Any, /, *, axis: int = -1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis; norms are taken as at least `eps`.

    >>> import weft as wf
    >>> wf.cosine_similarity(wf.tensor([1.0, 0.0]), wf.tensor([0.0, 2.0])).item()
    0.0
    """
    a, b = promote_operands("cosine_similarity", (x1, x2), "float")
    lengths = [maximum(vector_norm(x, axis=axis, keepdims=True), eps) for x in (a, b)]
    products = (a / lengths[0]) * (b / lengths[1])
    place = normalize_axis("cosine_similarity", axis, products.ndim, {"x1": a, "x2": b})
    return apply(reduce_sum, products, axes=(place,))


@unit
def glu(x: Any, /, *, axis: int = -1) -> Tensor:
    """The gated linear unit: the first half along an axis times the sigmoid of the second.

    >>> import weft as wf
    >>> wf.glu(wf.tensor([2.0, 0.0])).tolist()
    [1.0]
    """
    tensor, places = _float_operand("glu", x, axis)
    place = places[0] if len(places) == 1 else normalize_axis("glu", axis, tensor.ndim, {"x": x})
    count = tensor.shape[place]
    if is_zero(count % 2 - 1):
        raise ShapeError(
            "glu",
            "the axis does not have two halves",
            expected="an even number of elements along the axis",
            got={"x": tensor, "axis": axis},
            fix="choose another axis, or slice the last element off",
        )
    half = count // 2
    first, second = (
        apply(
            slice_,
            tensor,
            starts=tuple([start if i == place else 0 for i in range(tensor.ndim)]),
            stops=tuple([start + half if i == place else d for i, d in enumerate(tensor.shape)]),
            strides=(1,) * tensor.ndim,
        )
        for start in (0, half)
    )
    return first * sigmoid(second)
