"""Layers that normalise.

>>> import weft as wf
>>> from weft import nn
>>> norm = nn.BatchNorm1d(1, eps=0.0)
>>> norm(wf.tensor([[1.0], [3.0]])).tolist(), [round(v, 4) for v in norm.running_mean.tolist()]
([[-1.0], [1.0]], [0.2])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn.module import Module, Parameter, takes_device


class _ChannelNorm(Module):
    """What BatchNorm and InstanceNorm share: one mean and variance for each channel."""

    ranks: ClassVar[tuple[int, ...]]
    weight: wf.Tensor | None
    bias: wf.Tensor | None
    running_mean: wf.Tensor | None
    running_var: wf.Tensor | None
    num_batches_tracked: wf.Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        dtype: Any,
    ) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.weight = Parameter(wf.ones(num_features, dtype=dtype)) if affine else None
        self.bias = Parameter(wf.zeros(num_features, dtype=dtype)) if affine else None
        tracked = track_running_stats
        self.running_mean = wf.zeros(num_features, dtype=dtype) if tracked else None
        self.running_var = wf.ones(num_features, dtype=dtype) if tracked else None
        self.num_batches_tracked = wf.zeros((), dtype=wf.int64) if tracked else None

    def _check(self, x: wf.Tensor, channels: Any) -> None:
        if x.ndim not in self.ranks or channels != self.num_features:
            ranks = " or ".join(map(str, self.ranks))
            raise wf.ShapeError(
                type(self).__name__,
                "the input does not have the channels or the axes of this layer",
                expected=f"[batch, {self.num_features}, ...] with {ranks} axes",
                got={"x": x},
                fix=f"{type(self).__name__}({channels}), or move the channels to axis 1",
            )

    def _share(self) -> float | wf.Tensor:
        """How far the running statistics move; without momentum they are the mean of all."""
        assert self.num_batches_tracked is not None
        with wf.no_grad():
            self.num_batches_tracked += 1
        if self.momentum is not None:
            return self.momentum
        return 1.0 / self.num_batches_tracked.astype(wf.float32)

    def extra_repr(self) -> str:
        """See `Module`."""
        options = f"eps={self.eps}, momentum={self.momentum}, affine={self.affine}"
        return f"{self.num_features}, {options}, track_running_stats={self.track_running_stats}"


class _BatchNorm(_ChannelNorm):
    @takes_device
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, ...] -> the same shape; in training, running statistics move."""
        self._check(x, x.shape[1] if x.ndim > 1 else 0)
        share = self._share() if self.training and self.track_running_stats else 0.0
        tensors = self.running_mean, self.running_var, self.weight, self.bias
        return F.batch_norm(x, *tensors, self.training, share, self.eps)


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of [batch, channels] or [batch, channels, length].

    >>> BatchNorm1d(2)(wf.ones((1, 2, 6))).shape
    (1, 2, 6)
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of [batch, channels, height, width].

    >>> BatchNorm2d(3)(wf.ones((2, 3, 4, 4))).sum().item()
    0.0
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of [batch, channels, depth, height, width].

    >>> BatchNorm3d(2)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 6, 6, 6)
    """

    ranks = (5,)


class _InstanceNorm(_ChannelNorm):
    @takes_device
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, ...] -> the same shape, or without batch."""
        alone = x.ndim == self.ranks[0]
        x = x[None] if alone else x
        self._check(x, x.shape[1] if x.ndim > 1 else 0)
        from_input = self.training or not self.track_running_stats
        share = self.momentum or 0.0
        statistics = self.running_mean, self.running_var
        y = F.instance_norm(x, *statistics, self.weight, self.bias, from_input, share, self.eps)
        return y[0] if alone else y


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of [batch, channels, length].

    >>> InstanceNorm1d(2)(wf.ones((1, 2, 6))).shape
    (1, 2, 6)
    """

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of [batch, channels, height, width].

    >>> InstanceNorm2d(2)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 6, 6)
    """

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of [batch, channels, depth, height, width].

    >>> InstanceNorm3d(2)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 6, 6, 6)
    """

    ranks = (4, 5)


def _shape(sizes: int | Sequence[int]) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)


class LayerNorm(Module):
    """Normalisation over the last axes.

    >>> LayerNorm(2, eps=0.0)(wf.tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    @takes_device
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.elementwise_affine = elementwise_affine
        shape = self.normalized_shape
        self.weight = Parameter(wf.ones(shape, dtype=dtype)) if elementwise_affine else None
        has_bias = elementwise_affine and bias
        self.bias = Parameter(wf.zeros(shape, dtype=dtype)) if has_bias else None

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[..., *normalized_shape] -> the same shape."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """See `Module`."""
        affine = f"elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


class RMSNorm(Module):
    """Division by the root mean square over the last axes.

    >>> RMSNorm(2, eps=0.0)(wf.tensor([3.0, 3.0])).tolist()
    [1.0, 1.0]
    """

    @takes_device
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.elementwise_affine = elementwise_affine
        affine = elementwise_affine
        self.weight = Parameter(wf.ones(self.normalized_shape, dtype=dtype)) if affine else None

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[..., *normalized_shape] -> the same shape."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """See `Module`."""
        affine = f"elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


class GroupNorm(Module):
    """Normalisation of groups of channels of each example.

    >>> GroupNorm(1, 2, eps=0.0)(wf.tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    @takes_device
    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        if num_channels % num_groups:
            raise wf.ArgumentError(
                "GroupNorm",
                "the channels cannot be divided into the groups",
                expected="num_channels % num_groups == 0",
                got={"num_groups": num_groups, "num_channels": num_channels},
                fix="num_groups=1",
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        self.weight = Parameter(wf.ones(num_channels, dtype=dtype)) if affine else None
        self.bias = Parameter(wf.zeros(num_channels, dtype=dtype)) if affine else None

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, ...] -> the same shape."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise wf.ShapeError(
                "GroupNorm",
                "the input does not have the channels of this layer",
                expected=f"[batch, {self.num_channels}, ...]",
                got={"x": x},
                fix="GroupNorm(num_groups, num_channels=x.shape[1])",
            )
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LocalResponseNorm(Module):
    """Division by a power of the mean square over neighbouring channels.

    >>> LocalResponseNorm(2)(wf.ones((1, 4, 3))).shape
    (1, 4, 3)
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, ...] -> the same shape."""
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
