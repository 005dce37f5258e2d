"""Scales and shifts of channels go into the weights: what batch norm is when a model is used.

With running statistics, batch norm after a convolution multiplies each output channel by a number
and adds another. Multiplying the weights instead is less work wherever they are smaller than the
result, and none where they are constant; the shift is an epilogue of the convolution. The same
holds for a product with a matrix. What else needs the unscaled result, as training does, keeps it.

>>> import weft as wf
>>> kinds = [wf.spec("float32", shape) for shape in ((1, 2, 9, 9), (3, 2, 3, 3), (3, 1, 1))]
>>> graph = wf.ir.trace(lambda x, w, s: wf.conv2d(x, w) * s, *kinds)
>>> [node.primitive.name for node in fold_scales.apply(graph).nodes]
['reshape', 'multiply', 'conv']
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from math import prod
from typing import Any, NamedTuple

from weft.core.arrays import is_concrete
from weft.core.shapes import Shape
from weft.core.types import TensorType, spec
from weft.ir.dispatch import apply
from weft.ir.primitive import Primitive
from weft.ir.rewriting import RuleSet
from weft.ir.tensor import Tensor
from weft.ops.contraction import NONE, Axes, dot, free_axes
from weft.ops.convolution import conv
from weft.ops.movement import reshape

__all__ = ["fold_scales"]

fold_scales = RuleSet("fold_scales")


Program = Callable[..., Tensor]


class Weighted(NamedTuple):
    """A primitive that multiplies by weights, and where the channels of its result are.

    channel(result): the axis of the result. axis(w, **params): that of the weights; None where
    there is no such one. x, w, s, params: what its laws are checked with.
    """

    primitive: Primitive
    channel: Callable[[Shape], int]
    axis: Callable[..., int | None]
    x: Shape
    w: Shape
    s: Shape
    params: dict[str, Any]
    fixed: dict[str, Any]

    def product(self, x: Tensor, w: Tensor, **params: Any) -> Tensor:
        """The result."""
        return apply(self.primitive, x, w, **params, **self.fixed)

    def shape(self, x: Tensor, w: Tensor, **params: Any) -> Shape:
        """The shape of the result."""
        kind = self.primitive.type_rule(x.type, w.type, **params, **self.fixed)
        assert isinstance(kind, TensorType)
        return kind.shape

    def scale_weights(
        self, w: Tensor, s: Tensor, y: Shape, params: dict[str, Any]
    ) -> Tensor | None:
        """The weights, each channel's times its number; None where that is no less work."""
        axis = self.axis(w, **params)
        if axis is None or not self.is_channel(s, y) or not _folding_pays(w, y):
            return None
        shape = tuple([w.shape[axis] if place == axis else 1 for place in range(w.ndim)])
        return w * apply(reshape, s, shape=shape)

    def is_channel(self, s: Tensor, y: Shape) -> bool:
        """Whether a tensor is one number for each channel of the result."""
        channel = self.channel(y)
        shape = (*[1] * (len(y) - s.ndim), *s.shape)
        wanted = tuple([dim if axis == channel else 1 for axis, dim in enumerate(y)])
        return bool(y) and shape == wanted and y[channel] != 1


def _folding_pays(w: Tensor, y: Shape) -> bool:
    """Whether the weights are constant, or fewer than the elements of the result."""
    if not all(isinstance(dim, int) for dim in w.shape):
        return False
    known = [prod([dim for dim in shape if isinstance(dim, int)]) for shape in (w.shape, y)]
    return is_concrete(w._value) or known[0] < known[1]


CONVOLUTION = Weighted(
    conv,
    channel=lambda y: 1,
    axis=lambda w, **params: 0,
    x=(2, 4, 7, 8),
    w=(6, 2, 2, 3),
    s=(6, 1, 1),
    params={
        "strides": (2, 1),
        "padding": ((1, 0), (0, 1)),
        "dilation": (1, 2),
        "groups": 2,
    },
    fixed={},
)
PRODUCT = Weighted(
    dot,
    channel=lambda y: len(y) - 1,
    axis=lambda w, contract: _only_free(w, contract),
    x=(5, 4, 3),
    w=(3, 6),
    s=(6,),
    params={"contract": ((2,), (0,))},
    fixed={"batch": NONE},
)


def _only_free(w: Tensor, contract: Axes) -> int | None:
    free = free_axes(w.ndim, contract[1])
    return free[0] if len(free) == 1 else None


def _law(each: Weighted, name: str, law: str, left: Program, right: Program) -> None:
    """A law about the product y and numbers of each channel: left(y, *numbers) is a right side.

    right(product, scaled, *numbers) makes it of the product with weights that were scaled.
    """
    count = len(signature(left).parameters) - 1

    def scaled_product(x: Tensor, w: Tensor, *numbers: Tensor, **params: Any) -> Tensor:
        return left(each.product(x, w, **params), *numbers)

    def product_of_scaled(x: Tensor, w: Tensor, *numbers: Tensor, **params: Any) -> Tensor | None:
        y = each.shape(x, w, **params)
        if x.dtype.bits < 32 or not all(each.is_channel(s, y) for s in numbers):
            return None

        def product(factor: Tensor | None) -> Tensor | None:
            weights = w if factor is None else each.scale_weights(w, factor, y, params)
            return None if weights is None else each.product(x, weights, **params)

        return right(product, *numbers)

    names = [Parameter(f"x{i}", Parameter.POSITIONAL_OR_KEYWORD) for i in range(count + 2)]
    holes = [Parameter(k, Parameter.KEYWORD_ONLY, default=v) for k, v in each.params.items()]
    scaled_product.__signature__ = Signature([*names, *holes])  # type: ignore[attr-defined]
    product_of_scaled.__doc__ = law.replace("y", "x∗w")
    types = [spec("float32", shape) for shape in (each.x, each.w, *[each.s] * count)]
    label = f"{each.primitive.name}_{name}"
    fold_scales.rule(
        scaled_product, name=label, on=types, lone=True, exact=False, domain=(0.5, 2.0)
    )(product_of_scaled)


def _with(
    product: Callable[[Tensor | None], Tensor | None], factor: Tensor | None, shift: Any
) -> Any:
    y = product(factor)
    return None if y is None else shift(y)


for _each in (CONVOLUTION, PRODUCT):
    _law(_each, "scaled", "y · s = x∗(w · s).", lambda y, s: y * s, lambda p, s: p(s))
    _law(_each, "divided", "y / s = x∗(w / s).", lambda y, s: y / s, lambda p, s: p(1.0 / s))
    _law(
        _each,
        "raised_scaled",
        "(y + b) · s = x∗(w · s) + b · s.",
        lambda y, b, s: (y + b) * s,
        lambda p, b, s: _with(p, s, lambda y: y + b * s),
    )
    _law(
        _each,
        "lowered_scaled",
        "(y - b) · s = x∗(w · s) - b · s.",
        lambda y, b, s: (y - b) * s,
        lambda p, b, s: _with(p, s, lambda y: y - b * s),
    )
    _law(
        _each,
        "raised_divided",
        "(y + b) / s = x∗(w / s) + b / s.",
        lambda y, b, s: (y + b) / s,
        lambda p, b, s: _with(p, 1.0 / s, lambda y: y + b / s),
    )
    _law(
        _each,
        "lowered_divided",
        "(y - b) / s = x∗(w / s) - b / s.",
        lambda y, b, s: (y - b) / s,
        lambda p, b, s: _with(p, 1.0 / s, lambda y: y - b / s),
    )
    _law(
        _each,
        "raised_twice",
        "y + a + b = y + (a + b).",
        lambda y, a, b: y + a + b,
        lambda p, a, b: _with(p, None, lambda y: y + (a + b)),
    )
    _law(
        _each,
        "lowered_raised",
        "y - a + b = y + (b - a).",
        lambda y, a, b: y - a + b,
        lambda p, a, b: _with(p, None, lambda y: y + (b - a)),
    )
