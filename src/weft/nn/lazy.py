"""Layers that take their input size from the first batch.

A lazy layer has no parameters until it is called once; then it is the layer it stands for, with all
of its attributes. Parameters of a network with lazy layers that were not called yet are refused, so
that no optimiser is made without them.

>>> import weft as wf
>>> from weft import nn
>>> net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
>>> net(wf.ones((4, 3))).shape
(4, 2)
>>> net[0]
Linear(in_features=3, out_features=8, bias=True)
"""

from __future__ import annotations

from typing import Any, ClassVar

import weft as wf
from weft.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from weft.nn.layout import CHANGES
from weft.nn.linear import Linear
from weft.nn.module import Module, Waiting
from weft.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)


class _Lazy(Module):
    """A layer whose first argument, the size of its input along an axis, is not known yet."""

    becomes: ClassVar[type[Module]]
    axis: ClassVar[int] = 1

    def __init__(self, *args: Any, **options: Any) -> None:
        self.arguments, self.options = args, options
        Waiting.layers.add(self)

    def forward(self, x: wf.Tensor) -> Any:
        """Become the layer that this input needs, and call it."""
        name = self.becomes.__name__
        if wf.ir.is_tracing():
            raise wf.UnsupportedError(
                f"Lazy{name}",
                "a lazy layer gets its parameters in a call that is not compiled",
                expected="a call with a batch before wf.jit, wf.grad or wf.vmap",
                got={"x": x},
                fix="net(batch)",
            )
        with wf.default_device(x.device):
            layer = self.becomes(x.shape[self.axis], *self.arguments, **self.options)
        layer.train(self.training)
        kept = {key: self.__dict__[key] for key in ("_hooks", "_pre_hooks")}
        self.__dict__.clear()
        self.__dict__.update(layer.__dict__ | kept)
        self.__class__ = self.becomes  # type: ignore[assignment]
        CHANGES.count += 1
        Waiting.layers.discard(self)
        return self.forward(x)

    def extra_repr(self) -> str:
        """See `Module`."""
        given = [repr(each) for each in self.arguments]
        return ", ".join(given + [f"{name}={value!r}" for name, value in self.options.items()])


class LazyLinear(_Lazy):
    """A `Linear` that takes `in_features` from its first input: LazyLinear(out_features).

    >>> LazyLinear(4)(wf.ones((2, 3))).shape
    (2, 4)
    """

    becomes, axis = Linear, -1


class LazyConv1d(_Lazy):
    """A `Conv1d` that takes `in_channels` from its first input.

    >>> LazyConv1d(4, 3)(wf.ones((1, 2, 6))).shape
    (1, 4, 4)
    """

    becomes = Conv1d


class LazyConv2d(_Lazy):
    """A `Conv2d` that takes `in_channels` from its first input.

    >>> LazyConv2d(4, 3)(wf.ones((1, 2, 5, 5))).shape
    (1, 4, 3, 3)
    """

    becomes = Conv2d


class LazyConv3d(_Lazy):
    """A `Conv3d` that takes `in_channels` from its first input.

    >>> LazyConv3d(4, 3)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 4, 4, 4, 4)
    """

    becomes = Conv3d


class LazyConvTranspose1d(_Lazy):
    """A `ConvTranspose1d` that takes `in_channels` from its first input.

    >>> LazyConvTranspose1d(4, 3)(wf.ones((1, 2, 6))).shape
    (1, 4, 8)
    """

    becomes = ConvTranspose1d


class LazyConvTranspose2d(_Lazy):
    """A `ConvTranspose2d` that takes `in_channels` from its first input.

    >>> LazyConvTranspose2d(4, 3)(wf.ones((1, 2, 6, 6))).shape
    (1, 4, 8, 8)
    """

    becomes = ConvTranspose2d


class LazyConvTranspose3d(_Lazy):
    """A `ConvTranspose3d` that takes `in_channels` from its first input.

    >>> LazyConvTranspose3d(4, 3)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 4, 8, 8, 8)
    """

    becomes = ConvTranspose3d


class LazyBatchNorm1d(_Lazy):
    """A `BatchNorm1d` that takes `num_features` from its first input.

    >>> LazyBatchNorm1d()(wf.ones((1, 2, 6))).shape
    (1, 2, 6)
    """

    becomes = BatchNorm1d


class LazyBatchNorm2d(_Lazy):
    """A `BatchNorm2d` that takes `num_features` from its first input.

    >>> LazyBatchNorm2d()(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 6, 6)
    """

    becomes = BatchNorm2d


class LazyBatchNorm3d(_Lazy):
    """A `BatchNorm3d` that takes `num_features` from its first input.

    >>> LazyBatchNorm3d()(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 6, 6, 6)
    """

    becomes = BatchNorm3d


class LazyInstanceNorm1d(_Lazy):
    """An `InstanceNorm1d` that takes `num_features` from its first input, with or without batch.

    >>> LazyInstanceNorm1d()(wf.ones((1, 2, 6))).shape
    (1, 2, 6)
    """

    becomes, axis = InstanceNorm1d, -2


class LazyInstanceNorm2d(_Lazy):
    """An `InstanceNorm2d` that takes `num_features` from its first input, with or without batch.

    >>> LazyInstanceNorm2d()(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 6, 6)
    """

    becomes, axis = InstanceNorm2d, -3


class LazyInstanceNorm3d(_Lazy):
    """An `InstanceNorm3d` that takes `num_features` from its first input, with or without batch.

    >>> LazyInstanceNorm3d()(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 6, 6, 6)
    """

    becomes, axis = InstanceNorm3d, -4
