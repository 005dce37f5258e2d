"""Discrete distributions, and random order and choice.

>>> import weft as wf
>>> wf.random.randint(0, 10, (3,), key=wf.random.key(0)).dtype
weft.int64
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.dtypes import DEFAULT_INTEGER, DType, as_dtype, float32, float64, int64, uint64
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, short_repr
from weft.core.shapes import Dimension, Shape, check_shape, check_size, equal, normalize_axis
from weft.ir.batching import move_axis
from weft.ir.constants import beside_operands
from weft.ir.dispatch import apply
from weft.ir.eager import by_reference
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs as absolute
from weft.ops.arithmetic import (
    add,
    divide,
    floor,
    maximum,
    minimum,
    multiply,
    negative,
    remainder,
    subtract,
)
from weft.ops.comparison import greater, greater_equal, less, less_equal
from weft.ops.composed.control import while_loop
from weft.ops.composed.random_continuous import (
    standard_gumbel,
    unit,
    unit_tail,
    until_accepted,
    working_dtype,
)
from weft.ops.composed.random_keys import (
    derived_keys,
    drawn_bits,
    key_or_next,
    read_parameters,
    require,
)
from weft.ops.composed.random_programs import compile_draws
from weft.ops.composed.statistics import any as any_holds
from weft.ops.composed.statistics import argmax, cumulative_sum
from weft.ops.elementary import exp, log, log1p, sqrt
from weft.ops.identity import stop_gradient
from weft.ops.indexing import gather
from weft.ops.logic import logical_and, logical_not, logical_or
from weft.ops.movement import broadcast_to, reshape, slice_
from weft.ops.operands import as_tensor, convert_to, scalar_tensor
from weft.ops.placement import default_device_here, draws_on_device, on_device, takes_device
from weft.ops.selection import where
from weft.ops.sorting import argsort, searchsorted
from weft.ops.special import lgamma

__all__ = [
    "bernoulli", "binomial", "categorical", "choice", "permutation", "poisson", "randint",
    "shuffle",
]  # fmt: skip

Key = Tensor | None
SHARE = "0 <= p <= 1"


# --- integers and truth values -----------------------------------------------------------------


whole_words = compile_draws(drawn_bits)


@draws_on_device
def randint(
    low: Any, high: Any, shape: Any = (), *, dtype: Any = None, key: Key = None, device: Any = None
) -> Tensor:
    """Integers from `low` to before `high`, each as likely as any other to one part in 2**64.

    The bounds come first, as in PyTorch. A number of the range is off by (high - low)/2**64 in
    its chance, which no sample shows.

    >>> import weft as wf
    >>> drawn = wf.random.randint(1, 7, (100,), key=wf.random.key(0))
    >>> wf.min(drawn).item(), wf.max(drawn).item()
    (1, 6)
    """
    op = "random.randint"
    if isinstance(high, (tuple, list)):
        raise ArgumentTypeError(
            op,
            "both bounds come before the shape",
            expected="randint(low, high, shape)",
            got={"low": low, "high": high},
            fix=f"wf.random.randint(0, {short_repr(low)}, {tuple(high)})",
        )
    target = DEFAULT_INTEGER if dtype is None else as_dtype(dtype)
    first, last = (_integer(op, name, x) for name, x in (("low", low), ("high", high)))
    _check_integer_dtype(op, target)
    require(op, np.less, "low < high", f"wf.{op}(0, 10, shape)", low=low, high=high)
    if type(low) is int and type(high) is int:
        _check_range(op, low, high, target)
    words = whole_words(key_or_next(op, key), check_shape(op, shape), uint64)
    span = subtract(convert_to(last, uint64), convert_to(first, uint64))
    return add(convert_to(remainder(words, span), target), convert_to(first, target))


def _integer(op: str, name: str, value: Any) -> Tensor:
    wide = type(value) is int and value > np.iinfo(np.int64).max
    tensor = scalar_tensor(op, value, uint64) if wide else as_tensor(op, value, name)
    if not tensor.dtype.is_integer:
        raise DTypeError(
            op,
            f"{name} is not an integer",
            expected="integers",
            got={name: value},
            fix=f"wf.{op}(0, 10, shape)",
        )
    return tensor


def _check_integer_dtype(op: str, dtype: DType) -> None:
    if not dtype.is_integer:
        raise DTypeError(
            op,
            "the numbers are integers",
            expected="an integer dtype",
            got={"dtype": dtype},
            fix=f'wf.{op}(low, high, shape).astype("{dtype.name}")',
        )


def _check_range(op: str, low: int, high: int, dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    if low < limits.min or high - 1 > limits.max:
        raise ArgumentError(
            op,
            f"the range does not fit {dtype.name}",
            expected=f"numbers from {limits.min} to {limits.max}",
            got={"low": low, "high": high},
            fix=f'wf.{op}(low, high, shape, dtype="int64")',
        )


@draws_on_device
def bernoulli(p: Any = 0.5, shape: Any = None, *, key: Key = None, device: Any = None) -> Tensor:
    """True with the chance `p`, which is a number or a tensor.

    >>> import weft as wf
    >>> wf.random.bernoulli(wf.tensor([0.0, 1.0]), key=wf.random.key(0)).tolist()
    [False, True]
    """
    op = "random.bernoulli"
    wanted, target, (p,) = read_parameters(op, shape, None, p=p)
    require(op, is_share, SHARE, f"wf.{op}(0.5)", p=p)
    return less(unit(key_or_next(op, key), wanted, working_dtype(target)), _widen_probability(p))


def _widen_probability(p: Any) -> Any:
    return convert_to(p, working_dtype(p.dtype)) if isinstance(p, Tensor) else p


def is_share(p: Any) -> Any:
    return (p >= 0) & (p <= 1)


@by_reference
@beside_operands
def categorical(logits: Any, axis: int = -1, shape: Any = None, *, key: Key = None) -> Tensor:
    """Positions along an axis, chosen in proportion to exp(logits).

    `shape` is the shape of the result: further axes in front of those of `logits` without `axis`.

    >>> import weft as wf
    >>> logits = wf.log(wf.tensor([0.0, 1.0, 0.0]))
    >>> wf.random.categorical(logits, shape=(4,), key=wf.random.key(0)).tolist()
    [1, 1, 1, 1]
    """
    op = "random.categorical"
    weights = as_tensor(op, logits, "logits")
    if not weights.dtype.is_floating:
        weights = convert_to(weights, float32)
    place = normalize_axis(op, axis, weights.ndim, {"logits": weights})
    if is_zero(weights.shape[place]):
        raise ShapeError(
            op,
            "there is nothing to choose from",
            expected="at least one element along the axis",
            got={"logits": weights, "axis": axis},
            fix="wf.random.categorical(wf.zeros(3))",
        )
    rest = weights.shape[:place] + weights.shape[place + 1 :]
    front = _leading_axes(op, rest if shape is None else check_shape(op, shape), rest, weights)
    whole = front + weights.shape
    noise = standard_gumbel(key_or_next(op, key), whole, working_dtype(weights.dtype))
    total = add(convert_to(weights, noise.dtype), noise)
    return argmax(total, axis=len(front) + place)


def _leading_axes(op: str, shape: Shape, rest: Shape, logits: Tensor) -> Shape:
    """The axes that a result's shape has more than the logits."""
    count = len(shape) - len(rest)
    if count < 0 or not all(map(equal, shape[count:], rest)):
        raise ShapeError(
            op,
            "the shape does not end in that of the logits",
            expected=f"a shape that ends in {list(rest)}",
            got={"shape": list(shape), "logits": logits},
            fix=f"shape=({', '.join(['n', *map(str, rest)])},)",
        )
    return shape[:count]


# --- order and choice --------------------------------------------------------------------------


@takes_device
def permutation(x: Any, axis: int = 0, *, key: Key = None, device: Any = None) -> Tensor:
    """The integers before `x` in random order, or the elements of a tensor along an axis.

    >>> import weft as wf
    >>> wf.sort(wf.random.permutation(5, key=wf.random.key(0))).tolist()
    [0, 1, 2, 3, 4]
    """
    op = "random.permutation"
    if not isinstance(x, (Tensor, np.ndarray)):
        return _order(key_or_next(op, key), check_size(op, "x", x))
    tensor = as_tensor(op, x)
    place = normalize_axis(op, axis, tensor.ndim, {"x": tensor})
    return _rows(tensor, _order(key_or_next(op, key), tensor.shape[place]), place)


@beside_operands
def shuffle(x: Any, axis: int = 0, *, key: Key = None) -> Tensor:
    """The elements of a tensor along an axis in random order. A tensor is a value: `x` stays.

    >>> import weft as wf
    >>> wf.sort(wf.random.shuffle(wf.tensor([3.0, 1.0, 2.0]), key=wf.random.key(0))).tolist()
    [1.0, 2.0, 3.0]
    """
    return permutation(as_tensor("random.shuffle", x), axis, key=key)


def _order(key: Tensor, count: Dimension) -> Tensor:
    return apply(argsort, drawn_bits(key, (count,), uint64), axis=0, descending=False)


def _rows(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """The elements along an axis that a line of indices names."""
    return move_axis(apply(gather, x, index, axes=(axis,)), 0, axis)


@takes_device
@by_reference
def choice(
    x: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    *,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Elements of a tensor along an axis, or integers before `x`, chosen with chances `p`.

    Without `replace` no element is chosen twice.

    >>> import weft as wf
    >>> wf.random.choice(wf.tensor([5.0, 7.0]), (3,), p=[0.0, 1.0], key=wf.random.key(0)).tolist()
    [7.0, 7.0, 7.0]
    """
    op = "random.choice"
    source = as_tensor(op, x) if isinstance(x, (Tensor, np.ndarray)) else None
    place = 0 if source is None else normalize_axis(op, axis, source.ndim, {"x": source})
    count = check_size(op, "x", x) if source is None else source.shape[place]
    wanted = check_shape(op, shape)
    chances = None if p is None else _chances(op, p, count)
    index = _choose_indices(op, key_or_next(op, key), count, wanted, replace, chances)
    return index if source is None else _gather_along(source, index, place)


def _chances(op: str, p: Any, count: Dimension) -> Tensor:
    """Checked chances, in float64."""
    given = np.asarray(p, np.float64) if isinstance(p, (list, tuple)) else p
    chances = convert_to(as_tensor(op, given, "p"), float64)
    if not isinstance(p, Tensor):
        chances = on_device(chances, default_device_here(), is_asked=False)
    if chances.ndim != 1 or not equal(chances.shape[0], count):
        raise ShapeError(
            op,
            "not one chance for each element",
            expected=f"p: [{count}]",
            got={"p": chances},
            fix=f"p = wf.ones({count}) / {count}",
        )
    fix = "p = p / wf.sum(p)"
    require(op, lambda p: p >= 0, "chances of at least 0", fix, p=chances)
    require(op, lambda p: abs(p.sum() - 1) < 1e-5, "chances that add up to 1", fix, p=chances)
    return chances


def _choose_indices(
    op: str, key: Tensor, count: Dimension, shape: Shape, replace: bool, p: Tensor | None
) -> Tensor:
    """The indices of the chosen elements, in the result's shape."""
    total = math.prod(shape)
    if (is_zero(count) and not is_zero(total)) or (not replace and total > count):
        raise ArgumentError(
            op,
            "not enough elements to choose from",
            expected=f"at most {count} without replacement",
            got={"shape": list(shape), "elements": count, "replace": replace},
            fix="choose with replace=True, or fewer",
        )
    if not replace:
        order = _order(key, count) if p is None else _weighted_order(key, p)
        first = apply(slice_, order, starts=(0,), stops=(total,), strides=(1,))
        return apply(reshape, first, shape=shape)
    if p is None:
        return randint(0, count, shape, key=key)
    bounds = cumulative_sum(p, axis=0)
    last = apply(slice_, bounds, starts=(count - 1,), stops=(count,), strides=(1,))
    flat = multiply(unit(key, (total,), float64), last)
    positions = apply(searchsorted, bounds, flat, side="right")
    return apply(reshape, minimum(convert_to(positions, int64), count - 1), shape=shape)


def _weighted_order(key: Tensor, p: Tensor) -> Tensor:
    """Each next element with a chance in proportion to p among the rest (Gumbel's trick)."""
    noisy = add(log(p), standard_gumbel(key, p.shape, float64))
    return apply(argsort, noisy, axis=0, descending=True)


def _gather_along(source: Tensor, index: Tensor, axis: int) -> Tensor:
    """Elements along an axis, in whose place the index's axes stand."""
    rows = _rows(source, apply(reshape, index, shape=(index.size,)), axis)
    shape = source.shape[:axis] + index.shape + source.shape[axis + 1 :]
    return apply(reshape, rows, shape=shape)


# --- counts ------------------------------------------------------------------------------------


@takes_device
@by_reference
def poisson(
    shape: Any = None, rate: Any = 1.0, *, dtype: Any = None, key: Key = None, device: Any = None
) -> Tensor:
    """Numbers of events in a time in which `rate` are expected; int64.

    >>> import weft as wf
    >>> wf.random.poisson((3,), 0.0, key=wf.random.key(0)).tolist()
    [0, 0, 0]
    """
    op = "random.poisson"
    target = DEFAULT_INTEGER if dtype is None else as_dtype(dtype)
    wanted, _, (rate,) = read_parameters(op, shape, None, rate=rate)
    require(op, lambda r: (r >= 0) & (r < 2.0**62), "0 <= rate", f"wf.{op}(shape, 1.0)", rate=rate)
    wide = _discrete(op, rate, wanted)
    few, many = derived_keys(key_or_next(op, key), 2)
    is_few = less(wide, 10.0)
    small = _poisson_by_inversion(few, where(is_few, wide, 1.0), wanted)
    large = _poisson_by_rejection(many, where(is_few, 10.0, wide), wanted)
    return convert_to(where(is_few, small, large), target)


def _discrete(op: str, parameter: Any, shape: Shape) -> Tensor:
    """A parameter in float64 and in the result's shape; a count has no derivative in it."""
    wide = convert_to(stop_gradient(as_tensor(op, parameter)), float64)
    return apply(broadcast_to, wide, shape=shape)


def _poisson_by_inversion(key: Tensor, rate: Tensor, shape: Shape) -> Tensor:
    """Inversion with P(k) = P(k - 1) · rate / k, from P(0) = exp(-rate)."""
    first = exp(negative(rate))
    return _by_inversion(key, shape, first, lambda k, chance: multiply(chance, divide(rate, k)))


def _by_inversion(key: Tensor, shape: Shape, first: Tensor, next_chance: Any) -> Tensor:
    """Draws by inversion: the smallest k whose chances up to k add up to a uniform number.

    `first` is the chance of 0, and `next_chance(k, chance)` that of k, given that of k - 1.
    """

    def step(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # k is one number for all draws; a draw counts on while some of its number is left.
        k, number, chance, rest = state
        rest = subtract(rest, chance)
        k = add(k, 1.0)
        beyond = greater(rest, 0.0)
        chance = next_chance(k, chance)
        return k, add(number, where(beyond, 1.0, 0.0)), chance, rest

    def goes_on(state: tuple[Tensor, ...]) -> Tensor:
        _, _, chance, rest = state
        return any_holds(logical_and(greater(subtract(rest, chance), 0.0), greater(chance, 0.0)))

    start = (scalar_tensor("random", 0.0, float64), filled_tensor(shape, float64, 0.0))
    state = while_loop(goes_on, step, (*start, first, unit(key, shape, float64)))
    return state[1]  # type: ignore[no-any-return]


def _poisson_by_rejection(key: Tensor, rate: Tensor, shape: Shape) -> Tensor:
    """Hörmann's PTRS: "The transformed rejection method for generating Poisson variables"."""
    root = sqrt(rate)
    b = add(multiply(root, 2.53), 0.931)
    a = add(multiply(b, 0.02483), -0.059)
    inverse = add(divide(1.1328, subtract(b, 3.4)), 1.1239)
    bound = subtract(0.9277, divide(3.6224, subtract(b, 2.0)))
    log_rate = log(rate)

    def propose(key: Tensor) -> tuple[Tensor, Tensor]:
        u, v, us = _pair(key, shape)
        k = floor(add(multiply(add(divide(multiply(a, 2.0), us), b), u), add(rate, 0.43)))
        left = log(divide(multiply(v, inverse), add(divide(a, multiply(us, us)), b)))
        right = subtract(subtract(multiply(k, log_rate), rate), lgamma(add(k, 1.0)))
        return k, _is_rejected(us, v, bound, k, greater(left, right), 0.013)

    return until_accepted(key, shape, propose)


def _pair(key: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """u in [-1/2, 1/2), v in (0, 1], and the distance of u from the ends."""
    first, second = derived_keys(key, 2)
    u = subtract(unit(first, shape, float64), 0.5)
    return u, unit_tail(second, shape, float64), subtract(0.5, absolute(u))


def _is_rejected(
    us: Tensor, v: Tensor, bound: Tensor, k: Tensor, above: Tensor, edge: float
) -> Tensor:
    """Whether proposals are rejected.

    A square in the middle lies below the density, so that it is accepted without evaluating it.
    """
    inside = logical_and(greater_equal(us, 0.07), less_equal(v, bound))
    outside = logical_or(less(k, 0.0), logical_and(less(us, edge), greater(v, us)))
    return logical_and(logical_not(inside), logical_or(outside, above))


@takes_device
@by_reference
def binomial(
    shape: Any = None,
    n: Any = 1,
    p: Any = 0.5,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Numbers of successes in `n` attempts with the chance `p` each; int64.

    >>> import weft as wf
    >>> wf.random.binomial((2,), 10, 1.0, key=wf.random.key(0)).tolist()
    [10, 10]
    """
    op = "random.binomial"
    target = DEFAULT_INTEGER if dtype is None else as_dtype(dtype)
    wanted, _, (n, p) = read_parameters(op, shape, None, n=n, p=p)
    whole = "n: whole numbers from 0"
    require(op, lambda n: (n >= 0) & (n == np.floor(n)), whole, f"wf.{op}((), 10)", n=n)
    require(op, is_share, SHARE, f"wf.{op}((), 10, 0.5)", p=p)
    count, chance = (_discrete(op, x, wanted) for x in (n, p))
    # Above 1/2 failures are counted in place of successes: the methods need p ≤ 1/2.
    flipped = greater(chance, 0.5)
    share = where(flipped, subtract(1.0, chance), chance)
    few, many = derived_keys(key_or_next(op, key), 2)
    # Both methods run for all elements; each gets harmless parameters where the other is used.
    is_few = less(multiply(count, share), 10.0)
    small = _binomial_by_inversion(few, where(is_few, count, 1.0), share, wanted)
    large = _binomial_by_rejection(
        many, where(is_few, 40.0, count), where(is_few, 0.5, share), wanted
    )
    drawn = where(is_few, small, large)
    return convert_to(where(flipped, subtract(count, drawn), drawn), target)


def _binomial_by_inversion(key: Tensor, n: Tensor, p: Tensor, shape: Shape) -> Tensor:
    """Inversion with P(k) = P(k - 1) · (n - k + 1) / k · p / (1 - p), from P(0) = (1 - p)ⁿ."""
    odds = divide(p, subtract(1.0, p))
    first = exp(multiply(n, log1p(negative(p))))

    def next_chance(k: Tensor, chance: Tensor) -> Tensor:
        left = maximum(add(subtract(n, k), 1.0), 0.0)
        return multiply(chance, multiply(odds, divide(left, k)))

    return minimum(_by_inversion(key, shape, first, next_chance), n)


def _binomial_by_rejection(key: Tensor, n: Tensor, p: Tensor, shape: Shape) -> Tensor:
    """Hörmann's BTRS, "The generation of binomial random variates", 1993."""
    deviation = sqrt(multiply(multiply(n, p), subtract(1.0, p)))
    b = add(multiply(deviation, 2.53), 1.15)
    a = add(add(multiply(b, 0.0248), -0.0873), multiply(p, 0.01))
    centre = add(multiply(n, p), 0.5)
    bound = subtract(0.92, divide(4.2, b))
    alpha = multiply(add(divide(5.1, b), 2.83), deviation)
    mode = floor(multiply(add(n, 1.0), p))
    log_odds = log(divide(p, subtract(1.0, p)))
    height = add(lgamma(add(mode, 1.0)), lgamma(add(subtract(n, mode), 1.0)))

    def propose(key: Tensor) -> tuple[Tensor, Tensor]:
        u, v, us = _pair(key, shape)
        k = floor(add(multiply(add(divide(multiply(a, 2.0), us), b), u), centre))
        inside = minimum(maximum(k, 0.0), n)
        left = log(divide(multiply(v, alpha), add(divide(a, multiply(us, us)), b)))
        falls = add(lgamma(add(inside, 1.0)), lgamma(add(subtract(n, inside), 1.0)))
        right = add(subtract(height, falls), multiply(subtract(inside, mode), log_odds))
        above = logical_or(greater(left, right), greater(k, n))
        return k, _is_rejected(us, v, bound, k, above, 0.0)

    return until_accepted(key, shape, propose)
