"""Operators that normalise: over the batch, a channel, a layer, a neighbourhood."""

from __future__ import annotations

import math
from typing import Any

import weft as wf
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.movement import whole_axis
from weft.onnx.importing.running import Call

Tensor = wf.Tensor


def per_channel(value: Tensor, x: Tensor) -> Tensor:
    """One number for each channel, [C, 1, …], to broadcast with [N, C, *spatial]."""
    return value.reshape((-1, *[1] * (x.ndim - 2)))


@rule("BatchNormalization")
def batch_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, ...]:
    """Channels with given means and variances; in training with those of the batch."""
    if not call.get("training_mode") and call.get("is_test", 1):
        return (_affine(x, mean, var, scale, bias, call["epsilon"]),)
    axes = (0, *range(2, x.ndim))
    own_mean, own_var = wf.mean(x, axis=axes), wf.var(x, axis=axes)
    momentum = call["momentum"]
    out = _affine(x, own_mean, own_var, scale, bias, call["epsilon"])
    running = [
        (old * momentum + new * (1 - momentum)).astype(old.dtype)
        for old, new in ((mean, own_mean), (var, own_var))
    ]
    return (out, *running, own_mean, own_var)


def _affine(
    x: Tensor, mean: Tensor, var: Tensor, scale: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    # Statistics may be of a wider type than the data.
    factor = scale.astype(var.dtype) * wf.rsqrt(var + epsilon)
    shift = bias.astype(var.dtype) - mean * factor
    wide = x.astype(var.dtype) * per_channel(factor, x) + per_channel(shift, x)
    return wide.astype(x.dtype)


@rule("InstanceNormalization")
def instance_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Each channel of each sample with mean zero and variance one."""
    axes = tuple(range(2, x.ndim))
    out = _standardize(x, axes, call["epsilon"])
    return out * per_channel(scale, x) + per_channel(bias, x)


def _standardize(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    mean = wf.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    var = wf.mean(centred * centred, axis=axes, keepdims=True)
    return centred * wf.rsqrt(var + epsilon)


def _computing_type(call: Call, x: Tensor) -> Any:
    """The type that statistics are computed in."""
    codes = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
    wanted = codes.get(call.get("stash_type", 1), "float32")
    return x.dtype if x.dtype.bits > 32 else wanted


@rule("LayerNormalization")
def layer_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The last axes with mean zero and variance one; and their means and inverse deviations."""
    axes = tuple(range(whole_axis(call["axis"], x.ndim), x.ndim))
    wide = x.astype(_computing_type(call, x))
    mean = wf.mean(wide, axis=axes, keepdims=True)
    centred = wide - mean
    inverse = wf.rsqrt(wf.mean(centred * centred, axis=axes, keepdims=True) + call["epsilon"])
    out = (centred * inverse).astype(x.dtype) * scale
    return (out if bias is None else out + bias), mean, inverse


@rule("RMSNormalization")
def rms_normalization(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    """The last axes with a mean square of one."""
    axes = tuple(range(whole_axis(call["axis"], x.ndim), x.ndim))
    wide = x.astype(_computing_type(call, x))
    inverse = wf.rsqrt(wf.mean(wide * wide, axis=axes, keepdims=True) + call["epsilon"])
    return (wide * inverse).astype(x.dtype) * scale


@rule("GroupNormalization")
def group_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Groups of channels with mean zero and variance one."""
    groups = call["num_groups"]
    wide = x.astype(_computing_type(call, x)) if call.version >= 21 else x
    parts = wide.reshape((x.shape[0], groups, math.prod(x.shape[1:], start=1) // groups))
    out = _standardize(parts, (2,), call["epsilon"]).astype(x.dtype)
    if call.version < 21:  # one scale for each group
        out = out * scale.reshape((-1, 1)) + bias.reshape((-1, 1))
        return out.reshape(x.shape)
    return out.reshape(x.shape) * per_channel(scale, x) + per_channel(bias, x)


@rule("LRN")
def local_response(call: Call, x: Tensor) -> Tensor:
    """Elements divided by a measure of their neighbours in other channels."""
    size, channels = call["size"], x.shape[1]
    # Neighbours beyond all channels are zero.
    low, high = (min(each, int(channels)) for each in ((size - 1) // 2, size // 2))
    squares = wf.pad(x * x, [(0, 0), (low, high), *[(0, 0)] * (x.ndim - 2)])
    total = squares[:, :channels]
    for offset in range(1, low + high + 1):
        total = total + squares[:, offset : offset + channels]
    return x / wf.pow(call["bias"] + call["alpha"] / size * total, call["beta"])


@rule("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Tensor:
    """Vectors along an axis of norm one."""
    size = wf.abs(x) if call["p"] == 1 else x * x
    norm = wf.sum(size, axis=call["axis"], keepdims=True)
    norm = norm if call["p"] == 1 else wf.sqrt(norm)
    is_zero = wf.equal(norm, 0)
    return wf.where(is_zero, 0.0, x / wf.where(is_zero, 1.0, norm))


@rule("MeanVarianceNormalization")
def mean_variance(call: Call, x: Tensor) -> Tensor:
    """Some axes with mean zero and variance one."""
    axes = tuple(call["axes"])
    mean = wf.mean(x, axis=axes, keepdims=True)
    var = wf.mean(x * x, axis=axes, keepdims=True) - mean * mean
    return (x - mean) / (wf.sqrt(var) + 1e-9)
