"""Losses over numbers: how far a prediction is from its target.

Each takes `reduction`: "mean", "sum", or "none" for one number per element.

>>> import weft as wf
>>> mse_loss(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 4.0])).item()
2.0
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import weft as wf
from weft.eager import unit
from weft.nn.functional.checks import choose, refuse_where, same_shape
from weft.precision import follow_table

REDUCTIONS = ("mean", "sum", "none")


def reduce_losses(op: str, losses: wf.Tensor, reduction: str) -> wf.Tensor:
    """The losses of all elements as the reduction asks for them."""
    choose(op, "reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return losses
    return wf.mean(losses) if reduction == "mean" else wf.sum(losses)


@follow_table
@unit
def mse_loss(x: wf.Tensor, target: wf.Tensor, reduction: str = "mean") -> wf.Tensor:
    """(x - target)².

    >>> mse_loss(wf.tensor([1.0]), wf.tensor([4.0])).item()
    9.0
    """
    same_shape("mse_loss", x, target)
    return reduce_losses("mse_loss", wf.square(x - target), reduction)


@follow_table
@unit
def l1_loss(x: wf.Tensor, target: wf.Tensor, reduction: str = "mean") -> wf.Tensor:
    """|x - target|.

    >>> l1_loss(wf.tensor([1.0]), wf.tensor([4.0])).item()
    3.0
    """
    same_shape("l1_loss", x, target)
    return reduce_losses("l1_loss", wf.abs(x - target), reduction)


@follow_table
@unit
def smooth_l1_loss(
    x: wf.Tensor, target: wf.Tensor, reduction: str = "mean", beta: float = 1.0
) -> wf.Tensor:
    """½ d² / beta where d = |x - target| is below beta, d - ½ beta elsewhere.

    >>> smooth_l1_loss(wf.tensor([1.0, 0.0]), wf.tensor([4.0, 1.0]), "none").tolist()
    [2.5, 0.5]
    """
    if beta == 0:
        return l1_loss(x, target, reduction)
    return huber_loss(x, target, reduction, beta) / beta


@follow_table
@unit(numbers=("delta",))
def huber_loss(
    x: wf.Tensor, target: wf.Tensor, reduction: str = "mean", delta: float = 1.0
) -> wf.Tensor:
    """½ d² where d = |x - target| is below delta, delta (d - ½ delta) elsewhere.

    >>> huber_loss(wf.tensor([0.0]), wf.tensor([3.0]), delta=2.0).item()
    4.0
    """
    same_shape("huber_loss", x, target)
    distance = wf.abs(x - target)
    inside = wf.minimum(distance, delta)
    return reduce_losses("huber_loss", inside * (distance - 0.5 * inside), reduction)


@follow_table
def binary_cross_entropy(
    x: wf.Tensor, target: wf.Tensor, weight: wf.Tensor | None = None, reduction: str = "mean"
) -> wf.Tensor:
    """-(t log x + (1 - t) log(1 - x)) for probabilities x; logarithms are at least -100.

    Numbers below 0 or above 1 are refused. Inside a transform, where they are not known, their loss
    is NaN, which `wf.debug.nans` finds.

    >>> round(binary_cross_entropy(wf.tensor([0.5]), wf.tensor([1.0])).item(), 4)
    0.6931
    """
    same_shape("binary_cross_entropy", x, target)
    refuse_where(
        "binary_cross_entropy",
        "x",
        x,
        lambda values: (values < 0) | (values > 1),
        "a probability is below 0 or above 1",
        expected="0 <= x <= 1",
        fix="F.binary_cross_entropy_with_logits(x, target), or wf.sigmoid(x) first",
    )
    return _cross_entropy_of_two(x, target, weight, reduction)


@unit
def _cross_entropy_of_two(
    x: wf.Tensor, target: wf.Tensor, weight: wf.Tensor | None, reduction: str
) -> wf.Tensor:
    """`binary_cross_entropy` of numbers that were looked at."""
    low = _bounded_log(wf.log, x, x)
    high = _bounded_log(lambda p: wf.log1p(-p), x, 1 - x)
    losses = -(target * low + (1 - target) * high)
    return reduce_losses(
        "binary_cross_entropy", losses if weight is None else weight * losses, reduction
    )


def _bounded_log(
    log: Callable[[wf.Tensor], wf.Tensor], x: wf.Tensor, distance: wf.Tensor
) -> wf.Tensor:
    """log x of at least -100, with a slope of at most 1e12; `distance` is that from its pole.

    At the pole the slope of a logarithm that `maximum` bounds would be 0 · ∞, which is NaN.
    """
    least = max(1e-12, float(wf.finfo(x.dtype).smallest_normal))
    is_inside = distance > least
    # Where this branch is not taken, its slope is that at 1/2: 0 times that is 0.
    inside = log(wf.where(is_inside, x, 0.5))
    rise = (distance - wf.stop_gradient(distance)) / least
    outside = wf.maximum(log(wf.stop_gradient(x)), -100.0) + rise
    return wf.where(is_inside, inside, outside)


@follow_table
@unit
def binary_cross_entropy_with_logits(
    x: wf.Tensor,
    target: wf.Tensor,
    weight: wf.Tensor | None = None,
    reduction: str = "mean",
    pos_weight: wf.Tensor | None = None,
) -> wf.Tensor:
    """Binary cross entropy of sigmoid(x), exact for large x; pos_weight scales the positive part.

    >>> binary_cross_entropy_with_logits(wf.tensor([1000.0]), wf.tensor([0.0])).item()
    1000.0
    """
    same_shape("binary_cross_entropy_with_logits", x, target)
    if pos_weight is None:
        losses = wf.softplus(x) - x * target
    else:
        losses = (1 - target) * wf.softplus(x) + pos_weight * target * wf.softplus(-x)
    if weight is not None:
        losses = weight * losses
    return reduce_losses("binary_cross_entropy_with_logits", losses, reduction)


@follow_table
@unit
def kl_div(
    x: wf.Tensor, target: wf.Tensor, reduction: str = "mean", log_target: bool = False
) -> wf.Tensor:
    """target (log target - x) for log-probabilities x; "batchmean" divides the sum by the batch.

    >>> kl_div(wf.log(wf.tensor([[0.5, 0.5]])), wf.tensor([[0.5, 0.5]]), "batchmean").item()
    0.0
    """
    same_shape("kl_div", x, target)
    choose("kl_div", "reduction", reduction, (*REDUCTIONS, "batchmean"))
    losses = wf.exp(target) * (target - x) if log_target else wf.xlogy(target, target) - target * x
    if reduction == "batchmean":
        return wf.sum(losses) / (x.shape[0] if x.ndim else 1)
    return reduce_losses("kl_div", losses, reduction)


@follow_table
@unit
def poisson_nll_loss(
    x: wf.Tensor,
    target: wf.Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> wf.Tensor:
    """exp(x) - target x, or x - target log(x + eps); `full` adds Stirling's term.

    >>> poisson_nll_loss(wf.tensor([0.0]), wf.tensor([3.0])).item()
    1.0
    """
    same_shape("poisson_nll_loss", x, target)
    losses = wf.exp(x) - target * x if log_input else x - target * wf.log(x + eps)
    if full:
        safe = wf.maximum(target, 1.0)
        term = safe * wf.log(safe) - safe + 0.5 * wf.log(2 * math.pi * safe)
        losses = losses + wf.where(target > 1, term, 0.0)
    return reduce_losses("poisson_nll_loss", losses, reduction)


@follow_table
def gaussian_nll_loss(
    x: wf.Tensor,
    target: wf.Tensor,
    var: wf.Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> wf.Tensor:
    """½ (log var + (x - target)² / var), with var at least eps; `full` adds ½ log 2π.

    A negative variance is refused; inside a transform, where it is not known, its loss is NaN.

    >>> gaussian_nll_loss(wf.tensor([1.0]), wf.tensor([3.0]), wf.tensor([1.0])).item()
    2.0
    """
    same_shape("gaussian_nll_loss", x, target)
    refuse_where(
        "gaussian_nll_loss",
        "var",
        var,
        lambda values: values < 0,
        "a variance is negative",
        expected="var >= 0",
        fix="make it positive: wf.softplus(var)",
    )
    return _normal_surprise(x, target, var, full, eps, reduction)


@unit
def _normal_surprise(
    x: wf.Tensor, target: wf.Tensor, var: wf.Tensor, full: bool, eps: float, reduction: str
) -> wf.Tensor:
    """`gaussian_nll_loss` of variances that were looked at."""
    if var.shape == x.shape[:-1]:
        var = wf.expand_dims(var, axis=-1)
    fixed = wf.stop_gradient(var)
    least = wf.where(fixed < 0, wf.nan, wf.maximum(fixed, eps))
    bounded = least + (var - fixed)  # the derivative by var passes the bound
    losses = 0.5 * (wf.log(bounded) + wf.square(x - target) / bounded)
    return reduce_losses(
        "gaussian_nll_loss", losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction
    )


@follow_table
def hinge_embedding_loss(
    x: wf.Tensor, target: wf.Tensor, margin: float = 1.0, reduction: str = "mean"
) -> wf.Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1.

    >>> x, target = wf.tensor([2.0, 0.25]), wf.tensor([1.0, -1.0])
    >>> hinge_embedding_loss(x, target, reduction="none").tolist()
    [2.0, 0.75]
    """
    same_shape("hinge_embedding_loss", x, target)
    _refuse_other_signs("hinge_embedding_loss", target)
    return _hinge(x, target, margin, reduction)


@unit
def _hinge(x: wf.Tensor, target: wf.Tensor, margin: float, reduction: str) -> wf.Tensor:
    """`hinge_embedding_loss` for targets that were looked at."""
    losses = wf.where(wf.equal(target, 1), x, wf.relu(margin - x))
    return reduce_losses("hinge_embedding_loss", losses, reduction)


@follow_table
@unit
def margin_ranking_loss(
    x1: wf.Tensor, x2: wf.Tensor, target: wf.Tensor, margin: float = 0.0, reduction: str = "mean"
) -> wf.Tensor:
    """max(0, margin - target (x1 - x2)).

    >>> margin_ranking_loss(wf.tensor([1.0]), wf.tensor([3.0]), wf.tensor([1.0])).item()
    2.0
    """
    same_shape("margin_ranking_loss", x1, x2)
    same_shape("margin_ranking_loss", x1, target)
    return reduce_losses("margin_ranking_loss", wf.relu(margin - target * (x1 - x2)), reduction)


@follow_table
@unit
def soft_margin_loss(x: wf.Tensor, target: wf.Tensor, reduction: str = "mean") -> wf.Tensor:
    """log(1 + exp(-target x)), for targets 1 and -1.

    >>> round(soft_margin_loss(wf.tensor([0.0]), wf.tensor([1.0])).item(), 4)
    0.6931
    """
    same_shape("soft_margin_loss", x, target)
    return reduce_losses("soft_margin_loss", wf.softplus(-target * x), reduction)


def _refuse_other_signs(op: str, target: wf.Tensor) -> None:
    refuse_where(
        op,
        "target",
        target,
        lambda values: np.abs(values) != 1,
        "a target is neither 1 nor -1",
        expected="1 for what belongs together, -1 for what does not",
        fix="wf.where(target > 0, 1, -1)",
    )


@follow_table
def cosine_embedding_loss(
    x1: wf.Tensor, x2: wf.Tensor, target: wf.Tensor, margin: float = 0.0, reduction: str = "mean"
) -> wf.Tensor:
    """1 - cos(x1, x2) where the target is 1, max(0, cos(x1, x2) - margin) where it is -1.

    >>> a = wf.tensor([[1.0, 0.0]])
    >>> cosine_embedding_loss(a, a, wf.tensor([-1.0])).item()
    1.0
    """
    same_shape("cosine_embedding_loss", x1, x2)
    cosine = wf.cosine_similarity(x1, x2, axis=-1)
    same_shape("cosine_embedding_loss", cosine, target)
    _refuse_other_signs("cosine_embedding_loss", target)
    return _hinge_of_cosines(cosine, target, margin, reduction)


@unit
def _hinge_of_cosines(
    cosine: wf.Tensor, target: wf.Tensor, margin: float, reduction: str
) -> wf.Tensor:
    """`cosine_embedding_loss` of cosines, for targets that were looked at."""
    losses = wf.where(wf.equal(target, 1), 1 - cosine, wf.relu(cosine - margin))
    return reduce_losses("cosine_embedding_loss", losses, reduction)


@follow_table
@unit
def pairwise_distance(
    x1: wf.Tensor, x2: wf.Tensor, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> wf.Tensor:
    """The p-norm of x1 - x2 + eps along the last axis.

    >>> round(pairwise_distance(wf.tensor([3.0, 0.0]), wf.tensor([0.0, 4.0])).item(), 4)
    5.0
    """
    return wf.linalg.vector_norm(x1 - x2 + eps, axis=-1, ord=p, keepdims=keepdims)


@follow_table
@unit
def triplet_margin_loss(
    anchor: wf.Tensor,
    positive: wf.Tensor,
    negative: wf.Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> wf.Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin).

    swap: the negative is measured from the positive where that is nearer.

    >>> a, n = wf.tensor([[0.0]]), wf.tensor([[3.0]])
    >>> round(triplet_margin_loss(a, a, n, margin=5.0).item(), 4)
    2.0
    """
    same_shape("triplet_margin_loss", anchor, positive)
    same_shape("triplet_margin_loss", anchor, negative)
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = wf.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduce_losses("triplet_margin_loss", wf.relu(near - far + margin), reduction)
