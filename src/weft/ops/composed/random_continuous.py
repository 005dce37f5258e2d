"""Continuous distributions.

Each takes the shape of the result first, then its parameters, which are numbers or tensors that
broadcast to it. Results are made from uniform bits by a transformation of the parameters, so they
are differentiable in them; gamma, beta and Dirichlet samples, which are drawn by rejection, have
their derivative implicitly, from the distribution function.

>>> import weft as wf
>>> wf.random.normal((2,), mean=10.0, std=0.1, key=wf.random.key(0)).dtype
weft.float32
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.arrays import is_host
from weft.core.dtypes import DType, bool_, float32, float64, uint32, uint64
from weft.core.errors import ShapeError
from weft.core.shapes import Shape, broadcast_shapes, check_shape, size
from weft.ir.dispatch import apply
from weft.ir.eager import by_reference
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor, traces, wrap
from weft.ops.arithmetic import add, divide, maximum, minimum, multiply, negative, square, subtract
from weft.ops.comparison import greater_equal, less, less_equal
from weft.ops.composed import linalg
from weft.ops.composed.control import while_loop
from weft.ops.composed.products import matmul
from weft.ops.composed.random_keys import (
    derived_keys,
    drawn_bits,
    float_dtype,
    key_or_next,
    read_parameters,
    require,
)
from weft.ops.composed.random_programs import allow_programs, compile_draws
from weft.ops.composed.statistics import all as all_hold
from weft.ops.composed.statistics import logsumexp
from weft.ops.elementary import cos, exp, log, log1p, rsqrt, sin, sqrt
from weft.ops.identity import stop_gradient
from weft.ops.logic import bitwise_and, bitwise_right_shift, logical_not, logical_or
from weft.ops.movement import broadcast_to, concatenate, reshape, slice_
from weft.ops.operands import as_tensor, as_tensor_in, convert_to
from weft.ops.placement import draws_on_device, takes_device
from weft.ops.random_bits import fold_key
from weft.ops.random_gamma import gamma_by_concentration
from weft.ops.selection import clip, where
from weft.ops.special import erf, erfinv

__all__ = [
    "beta", "dirichlet", "exponential", "gamma", "gumbel", "laplace", "multivariate_normal",
    "normal", "truncated_normal", "uniform",
]  # fmt: skip

Key = Tensor | None


# --- unit draws --------------------------------------------------------------------------------


def working_dtype(dtype: DType) -> DType:
    """The dtype that samples of a dtype are computed in: 16-bit floats in float32."""
    return float32 if dtype.bits == 16 else dtype


@compile_draws
def unit(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Multiples of 2**-24 (2**-53 for float64) in [0, 1)."""
    wide, mantissa_bits = (uint64, 53) if dtype is float64 else (uint32, 24)
    words = drawn_bits(key, shape, wide)
    high = bitwise_right_shift(words, wide.bits - mantissa_bits)
    return multiply(convert_to(high, dtype), 2.0**-mantissa_bits)


def tail(words: Tensor, dtype: DType, lost: int = 0) -> Tensor:
    """Words, of which the highest `lost` bits are 0, as numbers in (0, 1] that are fine near 0."""
    count = words.dtype.bits - lost
    return multiply(add(convert_to(words, dtype), 0.5), 2.0**-count)


@compile_draws
def unit_tail(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Numbers in (0, 1] that are fine near 0, so that their logarithm reaches far out."""
    return tail(drawn_bits(key, shape, uint64 if dtype is float64 else uint32), dtype)


@compile_draws
def standard_normal(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Box and Muller's pairs: the radius from a uniform tail, which reaches 6.7 deviations.

    Element 2j and 2j + 1 come from words 2j and 2j + 1.
    """
    count = size(shape)
    half = (count + 1) // 2
    wide, mantissa_bits = (uint64, 53) if dtype is float64 else (uint32, 24)
    words = drawn_bits(key, (half, 2), wide)
    first, second = (_column(words, place) for place in (0, 1))
    radius = sqrt(multiply(log(tail(first, dtype)), -2.0))
    turn = convert_to(bitwise_right_shift(second, wide.bits - mantissa_bits), dtype)
    angle = multiply(turn, 2.0 * math.pi * 2.0**-mantissa_bits)
    both = apply(concatenate, multiply(radius, cos(angle)), multiply(radius, sin(angle)), axis=1)
    flat = apply(reshape, both, shape=(2 * half,))
    cut = apply(slice_, flat, starts=(0,), stops=(count,), strides=(1,))
    return apply(reshape, cut, shape=shape)


def _column(x: Tensor, place: int) -> Tensor:
    rows = x.shape[0]
    return apply(slice_, x, starts=(0, place), stops=(rows, place + 1), strides=(1, 1))


@compile_draws
def standard_exponential(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Minus the logarithm of a uniform tail: 0 to 22.9 (45 for float64)."""
    return negative(log(unit_tail(key, shape, dtype)))


@compile_draws
def standard_gumbel(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Minus the logarithm of an exponential that is fine near 0, where the long tail is."""
    below_one = 1.0 - 2.0 ** (-53 if dtype is float64 else -24)
    lot = minimum(unit_tail(key, shape, dtype), below_one)
    return negative(log(negative(log1p(negative(lot)))))


def scale_and_shift(z: Tensor, loc: Any, scale: Any, dtype: DType) -> Tensor:
    """loc + scale·z in the result's dtype."""
    if not is_host(z._value) and traces.by_reference:
        with allow_programs():
            return scale_and_shift(z, loc, scale, dtype)
    z = convert_to(z, dtype)
    z = multiply(z, scale) if isinstance(scale, Tensor) or scale != 1 else z
    return add(z, loc) if isinstance(loc, Tensor) or loc != 0 else z


# --- by transformation -------------------------------------------------------------------------


@draws_on_device
def uniform(
    shape: Any = None,
    low: Any = 0.0,
    high: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Numbers in [low, high), each as likely as any other.

    Multiples of 2**-24 of the interval (2**-53 for float64); rounding may reach `high`, except
    for the interval [0, 1).

    >>> import weft as wf
    >>> wf.random.uniform((3,), -1.0, 1.0, key=wf.random.key(1)).shape
    (3,)
    """
    op = "random.uniform"
    wanted, target, (low, high) = read_parameters(op, shape, dtype, low=low, high=high)
    require(op, np.less, "low < high", f"wf.{op}(shape, 0.0, 1.0)", low=low, high=high)
    drawn = unit(key_or_next(op, key), wanted, working_dtype(target))
    if target.bits == 16:  # a 16-bit float rounds numbers just below 1 up
        drawn = minimum(drawn, 1.0 - 2.0 ** (-8 if target.name == "bfloat16" else -11))
    numbers = not isinstance(high, Tensor) and not isinstance(low, Tensor)
    return scale_and_shift(drawn, low, high - low if numbers else subtract(high, low), target)


@draws_on_device
@by_reference
def normal(
    shape: Any = None,
    mean: Any = 0.0,
    std: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Numbers from the normal distribution, out to 6.7 standard deviations (9.4 for float64).

    >>> import weft as wf
    >>> wf.random.normal((2, 3), mean=wf.tensor([0.0, 10.0, 20.0]), key=wf.random.key(0)).shape
    (2, 3)
    """
    op = "random.normal"
    wanted, target, (mean, std) = read_parameters(op, shape, dtype, mean=mean, std=std)
    require(op, lambda s: s >= 0, "std >= 0", f"wf.{op}(shape, std=1.0)", std=std)
    return scale_and_shift(
        standard_normal(key_or_next(op, key), wanted, working_dtype(target)), mean, std, target
    )


@draws_on_device
@by_reference
def exponential(
    shape: Any = None,
    scale: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Waiting times with the mean `scale`, of events that come at a constant rate 1/scale.

    >>> import weft as wf
    >>> bool(wf.all(wf.random.exponential((100,), key=wf.random.key(0)) >= 0.0))
    True
    """
    op = "random.exponential"
    wanted, target, (scale,) = read_parameters(op, shape, dtype, scale=scale)
    require(op, lambda s: s >= 0, "scale >= 0", f"wf.{op}(shape, scale=1.0)", scale=scale)
    return scale_and_shift(
        standard_exponential(key_or_next(op, key), wanted, working_dtype(target)),
        0.0,
        scale,
        target,
    )


@draws_on_device
@by_reference
def gumbel(
    shape: Any = None,
    loc: Any = 0.0,
    scale: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Numbers from the Gumbel distribution.

    The largest of log-weights plus such numbers is at a place chosen in proportion to the weights.

    >>> import weft as wf
    >>> wf.random.gumbel((4,), key=wf.random.key(0)).shape
    (4,)
    """
    op = "random.gumbel"
    wanted, target, (loc, scale) = read_parameters(op, shape, dtype, loc=loc, scale=scale)
    require(op, lambda s: s >= 0, "scale >= 0", f"wf.{op}(shape, scale=1.0)", scale=scale)
    return scale_and_shift(
        standard_gumbel(key_or_next(op, key), wanted, working_dtype(target)), loc, scale, target
    )


@takes_device
@by_reference
def laplace(
    shape: Any = None,
    loc: Any = 0.0,
    scale: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Numbers from the Laplace distribution: exponential to both sides of `loc`.

    >>> import weft as wf
    >>> wf.random.laplace((4,), key=wf.random.key(0)).shape
    (4,)
    """
    op = "random.laplace"
    wanted, target, (loc, scale) = read_parameters(op, shape, dtype, loc=loc, scale=scale)
    require(op, lambda s: s >= 0, "scale >= 0", f"wf.{op}(shape, scale=1.0)", scale=scale)
    form = working_dtype(target)
    words = drawn_bits(key_or_next(op, key), wanted, uint64 if form is float64 else uint32)
    side = subtract(multiply(convert_to(bitwise_and(words, 1), form), 2.0), 1.0)
    distance = negative(log(tail(bitwise_right_shift(words, 1), form, lost=1)))
    return scale_and_shift(multiply(side, distance), loc, scale, target)


@takes_device
@by_reference
def truncated_normal(
    shape: Any = None,
    low: Any = -2.0,
    high: Any = 2.0,
    mean: Any = 0.0,
    std: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Normal numbers of which only those between `low` and `high` are kept.

    The bounds are those of the result. Computed in float64 by the inverse of the distribution
    function, and differentiable in all four parameters.

    >>> import weft as wf
    >>> drawn = wf.random.truncated_normal((100,), -1.0, 1.0, key=wf.random.key(0))
    >>> bool(wf.all(wf.abs(drawn) <= 1.0))
    True
    """
    op = "random.truncated_normal"
    given = {"low": low, "high": high, "mean": mean, "std": std}
    wanted, target, values = read_parameters(op, shape, dtype, **given)
    low, high, mean, std = (as_tensor_in(op, value, float64) for value in values)
    require(op, np.less, "low < high", f"wf.{op}(shape, -2.0, 2.0)", low=low, high=high)
    require(op, lambda s: s > 0, "std > 0", f"wf.{op}(shape, std=1.0)", std=std)
    below, above = (
        erf(divide(subtract(bound, mean), multiply(std, math.sqrt(2.0)))) for bound in (low, high)
    )
    place = unit(key_or_next(op, key), wanted, float64)
    inside = add(below, multiply(place, subtract(above, below)))
    z = multiply(erfinv(clip(inside, 2.0**-53 - 1.0, 1.0 - 2.0**-53)), math.sqrt(2.0))
    drawn = add(mean, multiply(z, std))
    return convert_to(minimum(maximum(drawn, low), high), target)


@takes_device
@by_reference
def multivariate_normal(
    mean: Any,
    cov: Any,
    shape: Any = (),
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Vectors of correlated normal numbers; `cov` is symmetric and positive definite.

    `mean` is [..., n] and `cov` [..., n, n]; `shape` counts further vectors in front.

    >>> import weft as wf
    >>> cov = wf.tensor([[2.0, 0.5], [0.5, 1.0]])
    >>> wf.random.multivariate_normal(wf.zeros(2), cov, (5,), key=wf.random.key(0)).shape
    (5, 2)
    """
    op = "random.multivariate_normal"
    centre, spread = _common_dtype(op, dtype, mean, cov)
    if centre.ndim < 1 or spread.shape[-2:] != centre.shape[-1:] * 2:
        raise ShapeError(
            op,
            "mean and cov do not go together",
            expected="mean: [..., n], cov: [..., n, n]",
            got={"mean": centre, "cov": spread},
            fix="cov = wf.eye(mean.shape[-1])",
        )
    got = {"mean": centre, "cov": spread}
    batch = broadcast_shapes(op, [centre.shape[:-1], spread.shape[:-2]], got)
    whole = (*check_shape(op, shape), *batch, centre.shape[-1])
    target = centre.dtype
    z = convert_to(standard_normal(key_or_next(op, key), whole, working_dtype(target)), target)
    column = apply(reshape, z, shape=(*whole, 1))
    coloured = matmul(linalg.cholesky(spread), column)
    return add(apply(reshape, coloured, shape=whole), centre)


def _common_dtype(op: str, dtype: Any, mean: Any, cov: Any) -> tuple[Tensor, Tensor]:
    """Mean and covariance in the result's dtype."""
    given = {"mean": as_tensor(op, mean, "mean"), "cov": as_tensor(op, cov, "cov")}
    target = float_dtype(op, dtype, given)
    return convert_to(given["mean"], target), convert_to(given["cov"], target)


# --- by rejection ------------------------------------------------------------------------------


def until_accepted(
    key: Tensor,
    shape: Shape,
    propose: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """float64 numbers that were accepted, element by element.

    `propose(key)` gives proposals and whether each is rejected. An element depends on its own
    proposals alone. NaN must not be rejected, or the loop would not end.
    """

    def attempt(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        number, value, done = state
        proposal, rejected = propose(fold_key(key, number))
        return add(number, 1), where(done, value, proposal), logical_or(done, logical_not(rejected))

    nothing, none = filled_tensor(shape, float64, 0.0), filled_tensor(shape, bool_, False)
    start = (wrap(np.zeros((), np.uint64)), nothing, none)
    _, value, _ = while_loop(lambda state: logical_not(all_hold(state[2])), attempt, start)
    return value  # type: ignore[no-any-return]


def standard_gamma(key: Tensor, concentration: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Gamma samples in float64 as (x, log y) for x·y: y is not 1 where the concentration is < 1.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, for
    concentrations of at least 1; a smaller one is raised by 1 and x multiplied by u**(1/a).
    """
    first, second = derived_keys(key, 2)
    a = apply(broadcast_to, concentration, shape=shape)
    small = less(a, 1.0)
    raised = where(small, add(a, 1.0), a)
    fixed = stop_gradient(raised)
    d = subtract(fixed, 1.0 / 3.0)
    c = rsqrt(multiply(d, 9.0))

    def propose(key: Tensor) -> tuple[Tensor, Tensor]:
        for_normal, for_unit = derived_keys(key, 2)
        z = standard_normal(for_normal, shape, float64)
        root = add(multiply(c, z), 1.0)
        v = multiply(square(root), root)
        lot = log(unit_tail(for_unit, shape, float64))
        limit = add(multiply(square(z), 0.5), multiply(d, add(subtract(1.0, v), log(v))))
        return multiply(d, v), logical_or(less_equal(v, 0.0), greater_equal(lot, limit))

    accepted = gamma_by_concentration(until_accepted(first, shape, propose), raised)
    boost = divide(log(unit_tail(second, shape, float64)), where(small, a, 1.0))
    return accepted, where(small, boost, 0.0)


@takes_device
@by_reference
def gamma(
    shape: Any = None,
    concentration: Any = 1.0,
    scale: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Numbers from the gamma distribution with the mean concentration·scale.

    The derivative in the concentration is implicit, to first order.

    >>> import weft as wf
    >>> bool(wf.all(wf.random.gamma((100,), 2.5, key=wf.random.key(0)) > 0.0))
    True
    """
    op = "random.gamma"
    given = {"concentration": concentration, "scale": scale}
    wanted, target, (concentration, scale) = read_parameters(op, shape, dtype, **given)
    _require_positive(op, concentration=concentration)
    require(op, lambda s: s >= 0, "scale >= 0", f"wf.{op}(shape, 2.0, scale=1.0)", scale=scale)
    x, boost = standard_gamma(key_or_next(op, key), _as_float64(op, concentration), wanted)
    return scale_and_shift(multiply(x, exp(boost)), 0.0, scale, target)


@takes_device
@by_reference
def beta(
    shape: Any = None,
    a: Any = 1.0,
    b: Any = 1.0,
    *,
    dtype: Any = None,
    key: Key = None,
    device: Any = None,
) -> Tensor:
    """Numbers in [0, 1] from the beta distribution with the mean a/(a + b).

    >>> import weft as wf
    >>> wf.random.beta((3,), 2.0, 5.0, key=wf.random.key(0)).shape
    (3,)
    """
    op = "random.beta"
    wanted, target, (a, b) = read_parameters(op, shape, dtype, a=a, b=b)
    _require_positive(op, a=a)
    _require_positive(op, b=b)
    keys = derived_keys(key_or_next(op, key), 2)
    logs = [
        _log_gamma_sample(k, _as_float64(op, c), wanted) for k, c in zip(keys, (a, b), strict=True)
    ]
    ratio = subtract(logs[1], logs[0])  # x/(x + y) = 1/(1 + y/x)
    return convert_to(divide(1.0, add(1.0, exp(ratio))), target)


@takes_device
@by_reference
def dirichlet(
    concentration: Any, shape: Any = (), *, dtype: Any = None, key: Key = None, device: Any = None
) -> Tensor:
    """Vectors of non-negative numbers that add up to 1; `shape` counts vectors in front.

    >>> import weft as wf
    >>> wf.random.dirichlet(wf.tensor([1.0, 2.0, 3.0]), (5,), key=wf.random.key(0)).shape
    (5, 3)
    """
    op = "random.dirichlet"
    given = as_tensor(op, concentration, "concentration")
    if given.ndim == 0:
        raise ShapeError(
            op,
            "the concentration has no axis",
            expected="concentration: [..., n]",
            got={"concentration": given},
            fix=f"wf.{op}(wf.ones(3))",
        )
    whole, target, (given,) = read_parameters(
        op, (*check_shape(op, shape), *given.shape), dtype, concentration=given
    )
    _require_positive(op, concentration=given)
    logs = _log_gamma_sample(key_or_next(op, key), _as_float64(op, given), whole)
    return convert_to(exp(subtract(logs, logsumexp(logs, axis=-1, keepdims=True))), target)


def _log_gamma_sample(key: Tensor, concentration: Tensor, shape: Shape) -> Tensor:
    """The logarithm of a gamma sample, which does not vanish for small concentrations."""
    x, boost = standard_gamma(key, concentration, shape)
    return add(log(x), boost)


def _as_float64(op: str, value: Any) -> Tensor:
    return as_tensor_in(op, value, float64)


def _require_positive(op: str, **parameter: Any) -> None:
    (name,) = parameter
    require(op, lambda value: value > 0, f"{name} > 0", f"wf.{op}(..., {name}=1.0)", **parameter)
