"""Where the windows of a convolution lie, as copies in bulk take them.

A bulk copy of windows starts at a place of the array and goes on from place to place: along the
last axis by its stride, and where that axis has no more, to the next line, the next image. Of each
place it takes 64 channels of the element that lies an offset further, zeros outside of the array.
So one copy is a tap of as many windows as a tile has rows.

The gradient of the input reads the cotangents by windows as well: element `s i + p` of an axis with
stride `s` is touched by taps `r` with `p + low - r · dilation = s e`, and finds the cotangent at
`i + e`. Elements with the same `p`, a phase, have the same taps.

>>> axis = gradient_axis(size=6, out=3, kernel=3, stride=2, low=1, dilation=1)
>>> [(phase.taps, phase.offsets) for phase in axis.phases], axis.count
([((1,), (0,)), ((0, 2), (1, 0))], 3)
"""

from __future__ import annotations

from math import prod

from weft.compiler.targets.cuda.convolution.sizes import INPUT_GRADIENT, ConvolutionSizes
from weft.core.records import frozen

_MOST_STRIDE = 8


@frozen(slots=False)
class Phase:
    """The taps of some places along an axis, and how far the element of each tap is."""

    taps: tuple[int, ...]
    offsets: tuple[int, ...]


@frozen(slots=False)
class WindowAxis:
    """Places along one axis: `lower + i · stride` for `i` below `count`; taps lie behind them."""

    size: int
    """Elements of the array along the axis."""
    count: int
    lower: int
    stride: int
    phases: tuple[Phase, ...]

    @property
    def upper(self) -> int:
        """The last place, counted from the array's last element."""
        return (self.count - 1) * self.stride + self.lower - (self.size - 1)

    @property
    def steps(self) -> tuple[int, int]:
        """From each tap of a phase to the next: the tap, and the offset."""
        longest = max(self.phases, key=lambda phase: len(phase.taps))
        if len(longest.taps) < 2:
            return 0, 0
        return longest.taps[1] - longest.taps[0], longest.offsets[1] - longest.offsets[0]

    def fits(self, bits: int) -> bool:
        """Whether corners and offsets have at most so many bits."""
        half = 1 << (bits - 1)
        offsets = [offset for phase in self.phases for offset in phase.offsets]
        return (
            -half <= self.lower < half
            and -half <= self.upper < half
            and max(offsets, default=0) < 2 * half
            and self.stride <= _MOST_STRIDE
            and all(phase.taps for phase in self.phases)
        )


def forward_axis(
    size: int, out: int, kernel: int, stride: int, low: int, dilation: int
) -> WindowAxis:
    """The windows of a convolution along an axis."""
    taps = tuple(range(kernel))
    phase = Phase(taps, tuple(tap * dilation for tap in taps))
    return WindowAxis(size, out, -low, stride, (phase,))


def gradient_axis(
    size: int, out: int, kernel: int, stride: int, low: int, dilation: int
) -> WindowAxis:
    """The cotangents that each element of an axis is given."""
    found = []
    for phase in range(stride):
        starts = [(tap, phase + low - tap * dilation) for tap in range(kernel)]
        found.append([(tap, start // stride) for tap, start in starts if start % stride == 0])
    lower = min((offset for phase in found for _, offset in phase), default=0)
    phases = [
        Phase(tuple(tap for tap, _ in phase), tuple(offset - lower for _, offset in phase))
        for phase in found
    ]
    return WindowAxis(out, -(-size // stride), lower, 1, tuple(phases))


@frozen(slots=False)
class Placement:
    """The windows that one kernel reads, axis by axis, of an array [images, *size, channels]."""

    images: int
    axes: tuple[WindowAxis, ...]
    channels: int

    @classmethod
    def from_sizes(cls, sizes: ConvolutionSizes, direction: str) -> Placement:
        """The windows of a convolution, or the cotangents for the gradient of its input."""
        is_back = direction == INPUT_GRADIENT
        axis_of = gradient_axis if is_back else forward_axis
        lists = (sizes.size, sizes.out, sizes.kernel, sizes.strides, sizes.low, sizes.dilation)
        axes = tuple(axis_of(*numbers) for numbers in zip(*lists, strict=True))
        return cls(sizes.images, axes, sizes.outputs if is_back else sizes.channels)

    @property
    def phases(self) -> int:
        """How many sets of taps there are."""
        return prod(len(axis.phases) for axis in self.axes)

    @property
    def rows(self) -> int:
        """Places of all images, of each phase."""
        return self.images * prod(axis.count for axis in self.axes)

    @property
    def taps(self) -> int:
        """Taps of the phase that has most."""
        return prod(max(len(phase.taps) for phase in axis.phases) for axis in self.axes)

    @property
    def is_possible(self) -> bool:
        """Whether bulk copies can take them: the fields of their descriptions are short."""
        rank = len(self.axes)
        return rank <= 3 and all(axis.fits(16 // rank) for axis in self.axes)
