"""Reductions over what has one element, or one element repeated, and reductions of reductions.

As in `simplify`, elements are kept to the bit unless a rule says otherwise. Sums of sums of floats
stay as they are, since another order of adding rounds otherwise.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x[None].max(axis=0), wf.spec("float32", (3,)))
>>> print(reduce_less.apply(graph))  # doctest: +ELLIPSIS
graph(a: f32[3]) {
  b: f32[1, 3] = reshape(a, shape=(1, 3))...
  c: f32[3] = reshape(b, shape=(3,))...
  return c
}
"""

from __future__ import annotations

import math
from functools import cache

from weft.compiler.targets.limits import PassLimits
from weft.core.dtypes import float32, float64
from weft.core.shapes import Shape
from weft.core.types import spec
from weft.ir.dispatch import apply
from weft.ir.kinds import Reduction
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.rewriting import RuleSet
from weft.ir.tensor import Tensor
from weft.ops.contraction import dot, free_axes
from weft.ops.movement import broadcast_to, reshape, transpose
from weft.ops.operands import convert_to
from weft.ops.reduction import reduce_sum

__all__ = ["divide_sums", "reduce_less"]

LONG = 32 * 1024
"""Terms from which a product with a vector becomes a sum in blocks: a matter of rounding, not of a
machine."""
Axes = tuple[int, ...]
reduce_less = RuleSet("reduce_less")
REDUCTIONS = {
    primitive: primitive.kind
    for primitive in PRIMITIVES.values()
    if isinstance(primitive.kind, Reduction) and primitive.lower is None
}
"""The reductions that combine elements as they are."""


def _other_dimensions(shape: Shape, axes: Axes) -> Shape:
    return tuple([dim for axis, dim in enumerate(shape) if axis not in axes])


def _add_single_elements_rule(primitive: Primitive) -> None:
    """The reduction over single elements, which are then the result."""
    dtype = "bool" if REDUCTIONS[primitive].combine in ("and", "or") else "float32"

    @reduce_less.rule(
        lambda x, axes=(1,): apply(primitive, x, axes=axes),
        name=f"{primitive.name}_of_one",
        on=spec(dtype, (2, 1, 3)),
        cases=[{"axes": ()}],
    )
    def of_one(x: Tensor, axes: Axes) -> Tensor | None:
        """The reduction of one real element is the element; of -0.0 the sum is 0.0."""
        if x.dtype.is_complex or any(x.shape[axis] != 1 for axis in axes):
            return None
        single = apply(reshape, x, shape=_other_dimensions(x.shape, axes)) if axes else x
        return single + 0.0 if primitive is reduce_sum and x.dtype.is_floating else single


for _primitive in REDUCTIONS:
    _add_single_elements_rule(_primitive)


def _one_repetition(x: Tensor, shape: Shape, axes: Axes) -> Tensor | None:
    """One of the repetitions along axes; None where there may be none, or elements of x itself."""
    if not all(isinstance(shape[axis], int) and shape[axis] > 0 for axis in axes):
        return None
    new = len(shape) - x.ndim
    own = tuple([axis - new for axis in axes if axis >= new])
    if any(x.shape[axis] != 1 for axis in own):
        return None
    single = apply(reshape, x, shape=_other_dimensions(x.shape, own)) if own else x
    return apply(broadcast_to, single, shape=_other_dimensions(shape, axes))


def _add_twice_rule(primitive: Primitive) -> None:
    """Two reductions that any order gives the same as one."""
    dtype = "bool" if REDUCTIONS[primitive].combine in ("and", "or") else "float32"

    @reduce_less.rule(
        lambda x, first=(1,), second=(0,): apply(
            primitive, apply(primitive, x, axes=first), axes=second
        ),
        name=f"{primitive.name}_twice",
        on=spec(dtype, (2, 3, 4)),
        lone=True,
    )
    def reduce_at_once(x: Tensor, first: Axes, second: Axes) -> Tensor:
        """A reduction of reductions is one reduction."""
        left = [axis for axis in range(x.ndim) if axis not in first]
        axes = tuple(sorted([*first, *[left[axis] for axis in second]]))
        return apply(primitive, x, axes=axes)

    @reduce_less.rule(
        lambda x, shape=(2, 3, 4), axes=(0, 2): apply(
            primitive, apply(broadcast_to, x, shape=shape), axes=axes
        ),
        name=f"{primitive.name}_of_repeated",
        on=spec(dtype, (3, 1)),
        cases=[{"axes": (1,)}, {"axes": (2,)}, {"axes": (1, 2)}],
    )
    def of_repeated(x: Tensor, shape: Shape, axes: Axes) -> Tensor | None:
        """The extreme of equal elements is any of them."""
        return _one_repetition(x, shape, axes)


for _primitive, _kind in REDUCTIONS.items():
    if _kind.is_idempotent:
        _add_twice_rule(_primitive)


@reduce_less.rule(
    lambda x, shape=(2, 3, 4), axes=(0, 2): apply(
        reduce_sum, apply(broadcast_to, x, shape=shape), axes=axes
    ),
    on=spec("float32", (3, 1)),
    exact=False,
    cases=[{"axes": (1,)}, {"axes": (2,)}],
)
def sum_of_repeated(x: Tensor, shape: Shape, axes: Axes) -> Tensor | None:
    """The sum of n equal numbers is n times the number, up to rounding."""
    single = None if x.dtype.bits < 32 else _one_repetition(x, shape, axes)
    if single is None:
        return None
    count = math.prod([int(shape[axis]) for axis in axes])
    if count >= 1 << 24:
        return None
    total = single * count
    return total if x.dtype.is_integer else total + 0.0  # 0.0 of -0.0, as a sum is


@reduce_less.rule(
    lambda x, y, batch=((0,), (0,)): apply(dot, x, y, contract=((), ()), batch=batch),
    on=[spec("float32", (2, 3)), spec("float32", (2, 4))],
    cases=[{"batch": ((), ())}],
)
def product_without_sum(x: Tensor, y: Tensor, batch: tuple[Axes, Axes]) -> Tensor | None:
    """A product that sums over nothing is one of single elements, which keeps the sign of zeros."""
    if x.dtype.is_complex:
        return None
    free_x, free_y = free_axes(x.ndim, batch[0]), free_axes(y.ndim, batch[1])
    left = apply(transpose, x, order=(*batch[0], *free_x))
    right = apply(transpose, y, order=(*batch[1], *free_y))
    stack = right.shape[: len(batch[0])]
    spaced = (*stack, *[1] * len(free_x), *right.shape[len(stack) :])
    left = apply(reshape, left, shape=(*left.shape, *[1] * len(free_y)))
    return left * apply(reshape, right, shape=spaced)


@reduce_less.rule(
    lambda x, y, contract=((0,), (0,)): apply(dot, x, y, contract=contract, batch=((), ())),
    on=[spec("float32", (LONG, 2)), spec("float32", (LONG,))],
    exact=False,
    domain=(0.5, 2.0),
)
def long_product_with_vector(x: Tensor, y: Tensor, contract: tuple[Axes, Axes]) -> Tensor | None:
    """A product over a long axis with a vector is a sum of products, up to rounding.

    Sums are made in blocks, and so keep their precision however long they are.
    """
    if len(contract[0]) != 1 or 1 not in (x.ndim, y.ndim) or not x.dtype.is_floating:
        return None
    matrix, vector, axis = (x, y, contract[0][0]) if y.ndim == 1 else (y, x, contract[1][0])
    count = matrix.shape[axis]
    if not isinstance(count, int) or count < LONG:
        return None
    wide = float64 if x.dtype is float64 else float32
    matrix, vector = convert_to(matrix, wide), convert_to(vector, wide)
    factors = apply(reshape, vector, shape=(count, *[1] * (matrix.ndim - axis - 1)))
    return convert_to(apply(reduce_sum, matrix * factors, axes=(axis,)), x.dtype)


@reduce_less.rule(
    lambda x, first=(1,), second=(0,): apply(
        reduce_sum, apply(reduce_sum, x, axes=first), axes=second
    ),
    on=spec("int32", (2, 3, 4)),
    lone=True,
)
def sum_of_sums(x: Tensor, first: Axes, second: Axes) -> Tensor | None:
    """A sum of sums of integers is one sum."""
    if not x.dtype.is_integer:
        return None
    left = [axis for axis in range(x.ndim) if axis not in first]
    return apply(reduce_sum, x, axes=tuple(sorted([*first, *[left[axis] for axis in second]])))


@cache
def divide_sums(limits: PassLimits) -> RuleSet:
    """The law that depends on how many elements are worth dividing over threads."""
    divided = RuleSet("divide_sums")

    @divided.rule(
        lambda x, axes=(0, 1): apply(reduce_sum, x, axes=axes),
        on=spec("float32", (128, 512)),
        exact=False,
        cases=[{"axes": (0,)}],
    )
    def sum_by_rows(x: Tensor, axes: Axes) -> Tensor | None:
        """A long sum of floats over everything is a sum of its rows' sums, up to rounding.

        Threads divide rows, and a product's epilogue makes their sums while its result is in cache:
        clipping by the norm of all gradients reads none of them again.
        """
        count, rows = x.size, x.shape[0] if x.ndim else 0
        if x.ndim < 2 or len(axes) != x.ndim or not x.dtype.is_floating:
            return None
        if not isinstance(count, int) or count < limits.divided_sum_elements:
            return None
        if not isinstance(rows, int) or rows < limits.divided_sum_rows:
            return None
        if count // rows < limits.divided_sum_columns:
            return None
        return _sum_in_two_steps(x, axes[1:])

    return divided


def _sum_in_two_steps(x: Tensor, first: Axes) -> Tensor:
    """The sum of sums over some axes; those of 16 bits are in float32, as a single sum is."""
    wide = convert_to(x, float32) if x.dtype.bits < 32 else x
    return convert_to(apply(reduce_sum, apply(reduce_sum, wide, axes=first), axes=(0,)), x.dtype)
