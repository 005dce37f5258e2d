"""Convolutions and their transposes, over one, two or three spatial axes.

>>> import weft as wf
>>> from weft import nn
>>> nn.Conv2d(3, 8, kernel_size=3, padding="same")(wf.ones((1, 3, 5, 5))).shape
(1, 8, 5, 5)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn import init
from weft.nn.functional.checks import choose
from weft.nn.functional.rearrangement import MODES
from weft.nn.module import Module, Parameter, takes_device

Sizes = int | Sequence[int]


def per_axis(op: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    """One integer for each spatial axis."""
    entries = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(entries) != rank or not all(isinstance(entry, int) for entry in entries):
        raise wf.ArgumentError(
            op,
            f"{name} is not one integer for each of the {rank} spatial axes",
            expected=f"an integer, or {rank} of them",
            got={name: value},
            fix=f"{name}={(1,) * rank if rank > 1 else 1}",
        )
    return entries


class _Convolution(Module):
    """What both directions share: sizes, weight [first, second / groups, *kernel], bias [out]."""

    rank: ClassVar[int]
    function: ClassVar[Callable[..., wf.Tensor]]
    bias: wf.Tensor | None

    def _set_sizes(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes,
        dilation: Sizes, groups: int,
    ) -> None:  # fmt: skip
        op = type(self).__name__
        counts: dict[str, Any] = {
            "in_channels": in_channels, "out_channels": out_channels, "groups": groups
        }  # fmt: skip
        for name, value in counts.items():
            if not isinstance(value, Integral):
                raise wf.ArgumentTypeError(
                    op,
                    f"{name} is no integer",
                    expected="an integer of at least 1",
                    got={name: value},
                    fix=f"{name}=1",
                )
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise wf.ArgumentError(
                op,
                "the channels cannot be divided into the groups",
                expected="in_channels % groups == 0 and out_channels % groups == 0",
                got={"in_channels": in_channels, "out_channels": out_channels, "groups": groups},
                fix="groups=1",
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(op, "kernel_size", kernel_size, self.rank)
        self.stride = per_axis(op, "stride", stride, self.rank)
        self.dilation = per_axis(op, "dilation", dilation, self.rank)

    def _set_weights(self, first: int, second: int, bias: bool, dtype: Any) -> None:
        shape = (first, second // self.groups, *self.kernel_size)
        self.weight = Parameter(wf.empty(shape, dtype=dtype))
        self.bias = Parameter(wf.empty((self.out_channels,), dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters, uniform within 1 / √fan_in."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init.fans("reset_parameters", self.weight)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """See `Module`."""
        parts = [f"{self.in_channels}, {self.out_channels}", f"kernel_size={self.kernel_size}"]
        parts.append(f"stride={self.stride}")
        for name, default in (
            ("padding", (0,) * self.rank), ("output_padding", (0,) * self.rank),
            ("dilation", (1,) * self.rank), ("groups", 1), ("padding_mode", "zeros"),
        ):  # fmt: skip
            value = self.__dict__.get(name, default)
            parts += [] if value == default else [f"{name}={value!r}"]
        return ", ".join([*parts, *([] if self.bias is not None else ["bias=False"])])


class _Conv(_Convolution):
    @takes_device
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        op = type(self).__name__
        self._set_sizes(in_channels, out_channels, kernel_size, stride, dilation, groups)
        choose(op, "padding_mode", padding_mode, ("zeros", "reflect", "replicate", "circular"))
        self.padding_mode = padding_mode
        if isinstance(padding, str):
            choose(op, "padding", padding, ("same", "valid"))
            if padding == "same" and any(step != 1 for step in self.stride):
                raise wf.ArgumentError(
                    op,
                    'padding="same" needs a stride of 1',
                    expected="stride=1",
                    got={"stride": stride, "padding": padding},
                    fix="padding=1, or stride=1",
                )
        self.padding = (
            padding if isinstance(padding, str) else per_axis(op, "padding", padding, self.rank)
        )
        self._set_weights(out_channels, in_channels, bias, dtype)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, in, *spatial] -> [batch, out, *spatial'], or without batch."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = self._pad_input(x), 0
        options = self.stride, padding, self.dilation, self.groups
        return type(self).function(x, self.weight, self.bias, *options)

    def _pad_input(self, x: wf.Tensor) -> wf.Tensor:
        widths = [(0, 0)] * (x.ndim - self.rank) + self._edges()
        return wf.pad(x, widths, MODES[self.padding_mode])

    def _edges(self) -> list[tuple[int, int]]:
        if self.padding == "valid":
            return [(0, 0)] * self.rank
        if self.padding == "same":
            spans = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            return [(span // 2, span - span // 2) for span in spans]
        assert isinstance(self.padding, tuple)
        return [(width, width) for width in self.padding]


class Conv1d(_Conv):
    """Convolution over [batch, channels, length].

    >>> Conv1d(2, 4, 3, stride=2)(wf.ones((1, 2, 7))).shape
    (1, 4, 3)
    """

    rank, function = 1, F.conv1d


class Conv2d(_Conv):
    """Convolution over [batch, channels, height, width].

    >>> Conv2d(2, 4, 3, padding=1, groups=2)(wf.ones((1, 2, 5, 5))).shape
    (1, 4, 5, 5)
    """

    rank, function = 2, F.conv2d


class Conv3d(_Conv):
    """Convolution over [batch, channels, depth, height, width].

    >>> Conv3d(1, 2, 2)(wf.ones((1, 1, 3, 3, 3))).shape
    (1, 2, 2, 2, 2)
    """

    rank, function = 3, F.conv3d


class _ConvTranspose(_Convolution):
    @takes_device
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        op = type(self).__name__
        self._set_sizes(in_channels, out_channels, kernel_size, stride, dilation, groups)
        self.padding = per_axis(op, "padding", padding, self.rank)
        self.output_padding = per_axis(op, "output_padding", output_padding, self.rank)
        self._set_weights(in_channels, out_channels, bias, dtype)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, in, *spatial] -> [batch, out, *spatial'], or without batch."""
        options = self.stride, self.padding, self.output_padding, self.groups, self.dilation
        return type(self).function(x, self.weight, self.bias, *options)


class ConvTranspose1d(_ConvTranspose):
    """The transpose of a convolution over [batch, channels, length].

    >>> ConvTranspose1d(2, 4, 3, stride=2)(wf.ones((1, 2, 4))).shape
    (1, 4, 9)
    """

    rank, function = 1, F.conv_transpose1d


class ConvTranspose2d(_ConvTranspose):
    """The transpose of a convolution over [batch, channels, height, width].

    >>> ConvTranspose2d(2, 4, 2, stride=2)(wf.ones((1, 2, 3, 3))).shape
    (1, 4, 6, 6)
    """

    rank, function = 2, F.conv_transpose2d


class ConvTranspose3d(_ConvTranspose):
    """The transpose of a convolution over [batch, channels, depth, height, width].

    >>> ConvTranspose3d(2, 1, 2)(wf.ones((1, 2, 2, 2, 2))).shape
    (1, 1, 3, 3, 3)
    """

    rank, function = 3, F.conv_transpose3d
