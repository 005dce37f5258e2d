"""Pooling: windows of positions reduced to one.

>>> import weft as wf
>>> from weft import nn
>>> nn.MaxPool2d(2)(wf.arange(16.0).reshape(1, 1, 4, 4)).tolist()
[[[[5.0, 7.0], [13.0, 15.0]]]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn.module import Module

Sizes = int | Sequence[int]


def hashable_size(value: Any) -> Any:
    """Lists as tuples, so that they are part of a program's key."""
    return tuple(value) if isinstance(value, list) else value


class _Pool(Module):
    """A pooling function with the options in `names`."""

    function: ClassVar[Callable[..., Any]]
    names: ClassVar[tuple[str, ...]]

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}

    def forward(self, x: wf.Tensor) -> Any:
        """[batch, channels, *spatial] -> [batch, channels, *spatial'], or without batch."""
        return type(self).function(x, **self._options())

    def extra_repr(self) -> str:
        """See `Module`."""
        return ", ".join(f"{name}={value}" for name, value in self._options().items())


class _MaxPool(_Pool):
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        self.kernel_size = hashable_size(kernel_size)
        self.stride = self.kernel_size if stride is None else hashable_size(stride)
        self.padding, self.dilation = hashable_size(padding), hashable_size(dilation)
        self.return_indices, self.ceil_mode = return_indices, ceil_mode


class MaxPool1d(_MaxPool):
    """The largest element of each window of [batch, channels, length].

    >>> MaxPool1d(2)(wf.tensor([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
    [[[3.0, 2.0]]]
    """

    function = F.max_pool1d


class MaxPool2d(_MaxPool):
    """The largest element of each window of [batch, channels, height, width].

    >>> MaxPool2d(2)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 3, 3)
    """

    function = F.max_pool2d


class MaxPool3d(_MaxPool):
    """The largest element of each window of [batch, channels, depth, height, width].

    >>> MaxPool3d(2)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 3, 3, 3)
    """

    function = F.max_pool3d


class _MaxUnpool(_Pool):
    names = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        self.kernel_size = hashable_size(kernel_size)
        self.stride = self.kernel_size if stride is None else hashable_size(stride)
        self.padding = hashable_size(padding)

    def forward(  # type: ignore[override]
        self, x: wf.Tensor, indices: wf.Tensor, output_size: Sequence[int] | None = None
    ) -> Any:
        """Pooled values and where they were found -> the values there, and zeros elsewhere."""
        return type(self).function(x, indices, **self._options(), output_size=output_size)


class MaxUnpool1d(_MaxUnpool):
    """Values put back to where `MaxPool1d(return_indices=True)` found them.

    >>> y, places = MaxPool1d(2, return_indices=True)(wf.tensor([[[1.0, 3.0]]]))
    >>> MaxUnpool1d(2)(y, places).tolist()
    [[[0.0, 3.0]]]
    """

    function = F.max_unpool1d


class MaxUnpool2d(_MaxUnpool):
    """Values put back to where `MaxPool2d(return_indices=True)` found them.

    >>> values, places = MaxPool2d(2, return_indices=True)(wf.ones((1, 1, 4, 4)))
    >>> MaxUnpool2d(2)(values, places).shape
    (1, 1, 4, 4)
    """

    function = F.max_unpool2d


class MaxUnpool3d(_MaxUnpool):
    """Values put back to where `MaxPool3d(return_indices=True)` found them.

    >>> values, places = MaxPool3d(2, return_indices=True)(wf.ones((1, 1, 4, 4, 4)))
    >>> MaxUnpool3d(2)(values, places).shape
    (1, 1, 4, 4, 4)
    """

    function = F.max_unpool3d


class _AvgPool(_Pool):
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.kernel_size = hashable_size(kernel_size)
        self.stride = self.kernel_size if stride is None else hashable_size(stride)
        self.padding = hashable_size(padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad


class AvgPool1d(_AvgPool):
    """The mean of each window of [batch, channels, length].

    >>> AvgPool1d(2)(wf.tensor([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
    [[[2.0, 1.0]]]
    """

    function = F.avg_pool1d


class AvgPool2d(_AvgPool):
    """The mean of each window of [batch, channels, height, width].

    >>> AvgPool2d(2)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 3, 3)
    """

    function = F.avg_pool2d


class AvgPool3d(_AvgPool):
    """The mean of each window of [batch, channels, depth, height, width].

    >>> AvgPool3d(2)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 3, 3, 3)
    """

    function = F.avg_pool3d


class _AdaptivePool(_Pool):
    names = ("output_size",)

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        self.output_size = hashable_size(output_size)


class AdaptiveAvgPool1d(_AdaptivePool):
    """Means over windows such that the output has a given length.

    >>> AdaptiveAvgPool1d(3)(wf.ones((1, 2, 6))).shape
    (1, 2, 3)
    """

    function = F.adaptive_avg_pool1d


class AdaptiveAvgPool2d(_AdaptivePool):
    """Means over windows such that the output has a given size; None keeps an axis.

    >>> AdaptiveAvgPool2d(1)(wf.ones((2, 3, 5, 7))).shape
    (2, 3, 1, 1)
    """

    function = F.adaptive_avg_pool2d


class AdaptiveAvgPool3d(_AdaptivePool):
    """Means over windows such that the output has a given size.

    >>> AdaptiveAvgPool3d(3)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 3, 3, 3)
    """

    function = F.adaptive_avg_pool3d


class AdaptiveMaxPool1d(_AdaptivePool):
    """Maxima over windows such that the output has a given length.

    >>> AdaptiveMaxPool1d(3)(wf.ones((1, 2, 6))).shape
    (1, 2, 3)
    """

    function = F.adaptive_max_pool1d


class AdaptiveMaxPool2d(_AdaptivePool):
    """Maxima over windows such that the output has a given size.

    >>> AdaptiveMaxPool2d(3)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 3, 3)
    """

    function = F.adaptive_max_pool2d


class AdaptiveMaxPool3d(_AdaptivePool):
    """Maxima over windows such that the output has a given size.

    >>> AdaptiveMaxPool3d(3)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 3, 3, 3)
    """

    function = F.adaptive_max_pool3d
