"""Normalisation: elements less their mean, divided by their standard deviation.

Statistics are computed in float32 at least, whatever the dtype of the input.

>>> import weft as wf
>>> layer_norm(wf.tensor([1.0, 3.0]), 2, eps=0.0).tolist()
[-1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.eager import unit
from weft.precision import follow_table

Axes = tuple[int, ...]


def _widen_input(x: wf.Tensor) -> wf.Tensor:
    """The input in a dtype with room for sums of squares."""
    return x.astype(wf.float32) if x.dtype.itemsize < 4 else x


def _statistics(x: wf.Tensor, axes: Axes) -> tuple[wf.Tensor, wf.Tensor]:
    """Mean and variance along axes, which are kept."""
    mean = wf.mean(x, axis=axes, keepdims=True)
    return mean, wf.mean(wf.square(x - mean), axis=axes, keepdims=True)


def _scale_and_shift(
    x: wf.Tensor, weight: wf.Tensor | None, bias: wf.Tensor | None, shape: Sequence[Any]
) -> wf.Tensor:
    """x times weight plus bias, both given in a shape that broadcasts."""
    if weight is not None:
        x = x * wf.reshape(weight, shape)
    return x if bias is None else x + wf.reshape(bias, shape)


def _channel_shape(x: wf.Tensor) -> tuple[Any, ...]:
    return (x.shape[1], *[1] * (x.ndim - 2))


def _needs_channels(op: str, x: wf.Tensor, least: int = 2) -> None:
    if x.ndim < least:
        raise wf.ShapeError(
            op,
            "the input has no axis of channels",
            expected=f"[batch, channels, ...] with at least {least} axes",
            got={"x": x},
            fix="add an axis: x[None]",
        )


@follow_table
@unit(weights=("running_mean", "running_var", "weight", "bias"))
def batch_norm(
    x: wf.Tensor,
    running_mean: wf.Tensor | None = None,
    running_var: wf.Tensor | None = None,
    weight: wf.Tensor | None = None,
    bias: wf.Tensor | None = None,
    training: bool = False,
    momentum: float | wf.Tensor = 0.1,
    eps: float = 1e-5,
) -> wf.Tensor:
    """Normalise each channel over the batch and all positions: x [batch, channels, ...].

    In training the statistics are those of the batch, and the running ones are moved towards them
    by the share `momentum`; otherwise the running ones are used.

    >>> x = wf.tensor([[1.0], [3.0]])
    >>> mean, var = wf.zeros(1), wf.ones(1)
    >>> batch_norm(x, mean, var, training=True, momentum=0.5, eps=0.0).tolist(), mean.tolist()
    ([[-1.0], [1.0]], [1.0])
    """
    _needs_channels("batch_norm", x)
    wide, shape = _widen_input(x), _channel_shape(x)
    if not training and running_mean is not None and running_var is not None:
        mean, var = wf.reshape(running_mean, shape), wf.reshape(running_var, shape)
        y = (wide - mean) * wf.rsqrt(var + eps)
        return _scale_and_shift(y, weight, bias, shape).astype(x.dtype)
    _check_count(x)
    axes = (0, *range(2, x.ndim))
    mean = wf.mean(wide, axis=axes, keepdims=True)
    # Around any constant, E (x - c)² - (mean - c)² is the variance, and (x - c) s - (mean - c) s is
    # (x - mean) s. With the mean itself as the constant nothing is lost, and the derivative needs
    # two sums over the batch: of the cotangents, and of their products with x - c.
    center = mean.detach()
    centered, moved = wide - center, mean - center
    var = wf.mean(wf.square(centered), axis=axes, keepdims=True) - wf.square(moved)
    if training and running_mean is not None and running_var is not None:
        _move(running_mean, wf.reshape(mean, (-1,)), momentum)
        _move(running_var, wf.reshape(_unbiased_variance(wide, var, axes), (-1,)), momentum)
    scale = wf.rsqrt(var + eps)
    if weight is not None:
        scale = scale * wf.reshape(weight, shape)
    offset = -(moved * scale)
    if bias is not None:
        offset = offset + wf.reshape(bias, shape)
    return (centered * scale + offset).astype(x.dtype)


def _unbiased_variance(x: wf.Tensor, var: wf.Tensor, axes: Axes) -> wf.Tensor:
    """The variance divided by n - 1 in place of n, which may be symbolic."""
    n = wf.sum(wf.ones_like(x), axis=axes, keepdims=True)
    return wf.multiply(var, n / (n - 1))


def _move(running: wf.Tensor, value: wf.Tensor, momentum: float | wf.Tensor) -> None:
    with wf.no_grad():
        running.copy_((1 - momentum) * running + momentum * value.detach())


def _check_count(x: wf.Tensor) -> None:
    if isinstance(x.size, int) and x.size <= x.shape[1]:
        raise wf.ShapeError(
            "batch_norm",
            "one value for each channel has no variance",
            expected="a batch of at least 2, or positions, in training",
            got={"x": x},
            fix="use a larger batch, or net.eval()",
        )


@follow_table
@unit(weights=("running_mean", "running_var", "weight", "bias"))
def instance_norm(
    x: wf.Tensor,
    running_mean: wf.Tensor | None = None,
    running_var: wf.Tensor | None = None,
    weight: wf.Tensor | None = None,
    bias: wf.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float | wf.Tensor = 0.1,
    eps: float = 1e-5,
) -> wf.Tensor:
    """Normalise each channel of each example over its positions: x [batch, channels, ...].

    >>> instance_norm(wf.tensor([[[1.0, 3.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0]]]
    """
    _needs_channels("instance_norm", x, 3)
    wide, shape = _widen_input(x), _channel_shape(x)
    if use_input_stats or running_mean is None or running_var is None:
        mean, var = _statistics(wide, tuple(range(2, x.ndim)))
        if use_input_stats and running_mean is not None and running_var is not None:
            _move(running_mean, wf.mean(mean, axis=0).reshape(-1), momentum)
            unbiased = _unbiased_variance(wide, var, tuple(range(2, x.ndim)))
            _move(running_var, wf.mean(unbiased, axis=0).reshape(-1), momentum)
    else:
        mean, var = wf.reshape(running_mean, shape), wf.reshape(running_var, shape)
    y = (wide - mean) * wf.rsqrt(var + eps)
    return _scale_and_shift(y, weight, bias, shape).astype(x.dtype)


@follow_table
@unit(weights=("weight", "bias"))
def layer_norm(
    x: wf.Tensor,
    normalized_shape: int | Sequence[int],
    weight: wf.Tensor | None = None,
    bias: wf.Tensor | None = None,
    eps: float = 1e-5,
) -> wf.Tensor:
    """Normalise over the last axes, which have the given shape.

    >>> layer_norm(wf.tensor([[0.0, 2.0]]), 2, bias=wf.ones(2), eps=0.0).tolist()
    [[0.0, 2.0]]
    """
    shape = _last_axes("layer_norm", x, normalized_shape)
    wide = _widen_input(x)
    mean, var = _statistics(wide, tuple(range(-len(shape), 0)))
    return _scale_and_shift((wide - mean) * wf.rsqrt(var + eps), weight, bias, shape).astype(
        x.dtype
    )


@follow_table
@unit(weights=("weight",))
def rms_norm(
    x: wf.Tensor,
    normalized_shape: int | Sequence[int],
    weight: wf.Tensor | None = None,
    eps: float | None = None,
) -> wf.Tensor:
    """Divide by the root of the mean square over the last axes; eps is the dtype's by default.

    >>> rms_norm(wf.tensor([3.0, 3.0]), 2, eps=0.0).tolist()
    [1.0, 1.0]
    """
    shape = _last_axes("rms_norm", x, normalized_shape)
    wide = _widen_input(x)
    small = wf.finfo(x.dtype).eps if eps is None else eps
    square = wf.mean(wf.square(wide), axis=tuple(range(-len(shape), 0)), keepdims=True)
    return _scale_and_shift(wide * wf.rsqrt(square + small), weight, None, shape).astype(x.dtype)


def _last_axes(op: str, x: wf.Tensor, shape: int | Sequence[int]) -> tuple[int, ...]:
    wanted = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if x.ndim < len(wanted) or x.shape[x.ndim - len(wanted) :] != wanted:
        raise wf.ShapeError(
            op,
            "the last axes of the input are not those to normalise over",
            expected=f"x: [..., {', '.join(map(str, wanted))}]",
            got={"x": x, "normalized_shape": wanted},
            fix=f"normalized_shape={tuple(x.shape[-len(wanted) :])}",
        )
    return wanted


@follow_table
@unit(weights=("weight", "bias"))
def group_norm(
    x: wf.Tensor,
    num_groups: int,
    weight: wf.Tensor | None = None,
    bias: wf.Tensor | None = None,
    eps: float = 1e-5,
) -> wf.Tensor:
    """Normalise groups of channels of each example over their positions: x [batch, channels, ...].

    >>> group_norm(wf.tensor([[1.0, 3.0, 5.0, 5.0]]), 2, eps=1e-12).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]
    """
    _needs_channels("group_norm", x)
    channels = x.shape[1]
    if channels % num_groups:
        raise wf.ArgumentError(
            "group_norm",
            "the channels cannot be divided into the groups",
            expected="channels % num_groups == 0",
            got={"x": x, "num_groups": num_groups},
            fix="num_groups=1",
        )
    grouped = wf.reshape(
        _widen_input(x), (x.shape[0], num_groups, channels // num_groups, *x.shape[2:])
    )
    mean, var = _statistics(grouped, tuple(range(2, grouped.ndim)))
    y = wf.reshape((grouped - mean) * wf.rsqrt(var + eps), x.shape)
    return _scale_and_shift(y, weight, bias, _channel_shape(x)).astype(x.dtype)


@follow_table
@unit
def local_response_norm(
    x: wf.Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> wf.Tensor:
    """Divide by a power of the mean square over neighbouring channels: x [batch, channels, ...].

    >>> local_response_norm(wf.tensor([[[2.0]]]), 1, alpha=1.0, beta=0.5, k=0.0).tolist()
    [[[1.0]]]
    """
    _needs_channels("local_response_norm", x, 3)
    widths = [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (x.ndim - 2)]
    square = wf.pad(wf.square(x), widths)
    count: Any = x.shape[1]
    total = sum(
        (wf.narrow(square, 1, i, count) for i in range(1, size)), wf.narrow(square, 1, 0, count)
    )
    return x / (k + alpha * total / size) ** beta
