"""Layers without parameters that rearrange, resize or pad.

>>> import weft as wf
>>> from weft import nn
>>> nn.Flatten()(wf.ones((2, 3, 4))).shape
(2, 12)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn.module import Module
from weft.nn.pooling import Sizes, hashable_size


class Identity(Module):
    """The input as it is; arguments are taken and ignored.

    >>> Identity()(3)
    3
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept and ignore any arguments."""

    def forward(self, x: Any) -> Any:
        """The input."""
        return x


class Flatten(Module):
    """A range of axes made one.

    >>> Flatten(0)(wf.ones((2, 3))).shape
    (6,)
    """

    def __init__(self, start_axis: int = 1, end_axis: int = -1) -> None:
        self.start_axis, self.end_axis = start_axis, end_axis

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, ...] -> [batch, all]."""
        return wf.flatten(x, self.start_axis, self.end_axis)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"start_axis={self.start_axis}, end_axis={self.end_axis}"


class Unflatten(Module):
    """One axis made several.

    >>> Unflatten(1, (2, 3))(wf.ones((4, 6))).shape
    (4, 2, 3)
    """

    def __init__(self, axis: int, sizes: Sequence[int]) -> None:
        self.axis, self.sizes = axis, tuple(sizes)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """The axis in the sizes given."""
        axis = self.axis % x.ndim
        return wf.reshape(x, (*x.shape[:axis], *self.sizes, *x.shape[axis + 1 :]))

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"axis={self.axis}, sizes={self.sizes}"


class Upsample(Module):
    """The spatial axes resized, to a size or by a factor.

    >>> Upsample(scale_factor=2)(wf.tensor([[[1.0, 2.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        self.size, self.scale_factor = hashable_size(size), hashable_size(scale_factor)
        self.mode, self.align_corners = mode, align_corners

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, *spatial] -> [batch, channels, *resized]."""
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def extra_repr(self) -> str:
        """See `Module`."""
        by = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        return f"{by}, mode={self.mode!r}"


class PixelShuffle(Module):
    """[..., channels r², height, width] -> [..., channels, height r, width r].

    >>> PixelShuffle(2)(wf.ones((1, 8, 3, 3))).shape
    (1, 2, 6, 6)
    """

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """Channels become positions."""
        return F.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """[..., channels, height r, width r] -> [..., channels r², height, width].

    >>> PixelUnshuffle(2)(wf.ones((1, 2, 6, 6))).shape
    (1, 8, 3, 3)
    """

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = downscale_factor

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """Positions become channels."""
        return F.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels of the groups taken in turn.

    >>> ChannelShuffle(2)(wf.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1, 1)).reshape(-1).tolist()
    [1.0, 3.0, 2.0, 4.0]
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, ...] -> the same shape."""
        return F.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"groups={self.groups}"


class _Pad(Module):
    """Padding of the last axes: one width for all edges, or (left, right, top, bottom …)."""

    rank: ClassVar[int]
    mode: ClassVar[str] = "constant"
    value: float = 0.0

    def __init__(self, padding: int | Sequence[int]) -> None:
        edges = (padding,) * (2 * self.rank) if isinstance(padding, int) else tuple(padding)
        if len(edges) != 2 * self.rank:
            raise wf.ArgumentError(
                type(self).__name__,
                "the padding is not one width, or one for each edge",
                expected=f"an integer, or {2 * self.rank} of them",
                got={"padding": padding},
                fix=f"{type(self).__name__}(1)",
            )
        self.padding = edges

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[..., *spatial] -> [..., *wider]."""
        return F.pad(x, self.padding, type(self).mode, self.value)

    def extra_repr(self) -> str:
        """See `Module`."""
        value = f", value={self.value}" if self.value else ""
        return f"{self.padding}{value}"


class ZeroPad1d(_Pad):
    """Zeros at the ends of the last axis.

    >>> ZeroPad1d((1, 0))(wf.tensor([[[1.0, 2.0]]])).tolist()
    [[[0.0, 1.0, 2.0]]]
    """

    rank = 1


class ZeroPad2d(_Pad):
    """Zeros at the edges of the last two axes.

    >>> ZeroPad2d(1)(wf.ones((1, 1, 2, 2))).shape
    (1, 1, 4, 4)
    """

    rank = 2


class ZeroPad3d(_Pad):
    """Zeros at the edges of the last three axes.

    >>> ZeroPad3d(1)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 8, 8, 8)
    """

    rank = 3


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad1d(_ConstantPad):
    """A number at the ends of the last axis.

    >>> ConstantPad1d(1, 5.0)(wf.tensor([[[1.0, 2.0]]])).tolist()
    [[[5.0, 1.0, 2.0, 5.0]]]
    """

    rank = 1


class ConstantPad2d(_ConstantPad):
    """A number at the edges of the last two axes.

    >>> ConstantPad2d(1, 5.0)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 8, 8)
    """

    rank = 2


class ConstantPad3d(_ConstantPad):
    """A number at the edges of the last three axes.

    >>> ConstantPad3d(1, 5.0)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 8, 8, 8)
    """

    rank = 3


class ReflectionPad1d(_Pad):
    """The last axis mirrored at its ends.

    >>> ReflectionPad1d(1)(wf.tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[2.0, 1.0, 2.0, 3.0, 2.0]]]
    """

    rank, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The last two axes mirrored at their edges.

    >>> ReflectionPad2d(1)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 8, 8)
    """

    rank, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """The last three axes mirrored at their edges.

    >>> ReflectionPad3d(1)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 8, 8, 8)
    """

    rank, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The ends of the last axis repeated.

    >>> ReplicationPad1d(1)(wf.tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 3.0, 3.0]]]
    """

    rank, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The edges of the last two axes repeated.

    >>> ReplicationPad2d(1)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 8, 8)
    """

    rank, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The edges of the last three axes repeated.

    >>> ReplicationPad3d(1)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 8, 8, 8)
    """

    rank, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The last axis continued from its other end.

    >>> CircularPad1d(1)(wf.tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[3.0, 1.0, 2.0, 3.0, 1.0]]]
    """

    rank, mode = 1, "circular"


class CircularPad2d(_Pad):
    """The last two axes continued from their other edges.

    >>> CircularPad2d(1)(wf.ones((1, 2, 6, 6))).shape
    (1, 2, 8, 8)
    """

    rank, mode = 2, "circular"


class CircularPad3d(_Pad):
    """The last three axes continued from their other edges.

    >>> CircularPad3d(1)(wf.ones((1, 2, 6, 6, 6))).shape
    (1, 2, 8, 8, 8)
    """

    rank, mode = 3, "circular"


class Unfold(Module):
    """Patches of images as columns: [N, C, H, W] -> [N, C · rows · columns, patches].

    >>> Unfold(2)(wf.ones((1, 3, 4, 4))).shape
    (1, 12, 9)
    """

    names: ClassVar[tuple[str, ...]] = ("kernel_size", "dilation", "padding", "stride")

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        self.kernel_size, self.dilation = hashable_size(kernel_size), hashable_size(dilation)
        self.padding, self.stride = hashable_size(padding), hashable_size(stride)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """See `nn.functional.unfold`."""
        return F.unfold(x, **{name: getattr(self, name) for name in self.names})

    def extra_repr(self) -> str:
        """See `Module`."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.names)


class Fold(Module):
    """Columns put back as patches of images, and added where they overlap.

    >>> Fold((4, 4), 2)(wf.ones((1, 12, 9))).shape
    (1, 3, 4, 4)
    """

    names: ClassVar[tuple[str, ...]] = (
        "output_size", "kernel_size", "dilation", "padding", "stride",
    )  # fmt: skip

    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
    ) -> None:
        self.output_size = hashable_size(output_size)
        self.kernel_size, self.dilation = hashable_size(kernel_size), hashable_size(dilation)
        self.padding, self.stride = hashable_size(padding), hashable_size(stride)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """See `nn.functional.fold`."""
        return F.fold(x, **{name: getattr(self, name) for name in self.names})

    def extra_repr(self) -> str:
        """See `Module`."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.names)
