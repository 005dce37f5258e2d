"""Convolutions of few channels: taps along the last axis become channels.

With channels last, the taps of a window along the last axis lie side by side in memory. Where an
image has few channels, 64 elements from a window's first tap on hold all of them: a row of the
image is read as `out` places of 64 channels, which overlap, a stride apart. What is left is a
convolution along the other axes, whose weights are zeros for elements behind the window.

Bulk copies step by whole 16 bytes, so rows are written once with zeros around them, and with as
many channels as make the stride such a step: three channels of an image become four where the
stride is 2.

>>> sizes = ConvolutionSizes(
...     images=1, size=(224, 224), channels=3, out=(112, 112), outputs=64,
...     kernel=(7, 7), strides=(2, 2), low=(3, 3), dilation=(1, 1),
... )
>>> fold = Fold.from_sizes(sizes)
>>> fold.channels, fold.step, fold.length, fold.sizes.kernel
(4, 8, 952, (7, 1))
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from weft.compiler.lowering.builder import all_conditions, is_within
from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.convolution.implicit import STEP_CHANNELS
from weft.compiler.targets.cuda.convolution.sizes import ConvolutionSizes
from weft.compiler.targets.cuda.loop_nests import loop_launch, loop_nest, row_major_offset
from weft.core.dtypes import INDEX
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import Variable
from weft.ir.loops import Accumulate, Kernel, Store, Update
from weft.ir.scalars import Buffer, const

_ALIGNED = 8
"""Elements of 16 bytes."""


@frozen(slots=False)
class Fold:
    """How rows of an image are written, and the convolution of what bulk copies see of them."""

    given: ConvolutionSizes
    channels: int
    """Of an element of a row, with zeros behind those that the image has."""
    step: int
    """Elements from one place to the next."""
    length: int
    """Elements of a row."""
    sizes: ConvolutionSizes

    @classmethod
    def from_sizes(cls, given: ConvolutionSizes) -> Fold | None:
        """How a convolution is folded; None where a window does not fit 64 elements."""
        stride, places = given.strides[-1], given.out[-1]
        fitting = (
            count
            for count in (1, 2, 4, 8, 16, 32)
            if count >= given.channels and stride * count % _ALIGNED == 0
        )
        channels = next(fitting, None)
        span = (given.kernel[-1] - 1) * given.dilation[-1] + 1
        if channels is None or span * channels > STEP_CHANNELS or given.low[-1] < 0:
            return None
        step = stride * channels
        sizes = replace(
            given,
            size=(*given.size[:-1], places),
            channels=STEP_CHANNELS,
            kernel=(*given.kernel[:-1], 1),
            strides=(*given.strides[:-1], 1),
            low=(*given.low[:-1], 0),
            dilation=(*given.dilation[:-1], 1),
        )
        return cls(given, channels, step, (places - 1) * step + STEP_CHANNELS, sizes)

    @property
    def outer_taps(self) -> int:
        """Taps along the other axes."""
        return prod(self.given.kernel[:-1])

    @property
    def element_strides(self) -> tuple[int, ...]:
        """Elements from one place to the next along each axis, from the last to the images."""
        found = [self.step]
        following = self.length
        for size in reversed(self.given.size[:-1]):
            found.append(following)
            following *= size
        return (*found, following)

    def row_launch(self, x: Value) -> tuple[Launch, Variable]:
        """What writes the rows, and the rows."""
        given, dtype = self.given, x.type.dtype
        shape = (given.images, *given.size[:-1], self.length)
        rows = Variable(TensorType(dtype, shape))
        source, target = Buffer("x", dtype), Buffer("out", dtype, "write")
        outer = [scalars.index(f"p{axis}") for axis in range(len(shape) - 1)]
        column = scalars.index("j")
        place = column // self.channels - given.low[-1]
        channel = column % self.channels
        conditions = [is_within(place, const(given.size[-1], INDEX))]
        if self.channels > given.channels:
            conditions.append(scalars.less(channel, const(given.channels, INDEX)))
        offset = row_major_offset(
            [*outer, place, channel], [given.images, *given.size, given.channels]
        )
        value = scalars.load(source, offset, all_conditions(conditions))
        store = Store(target, row_major_offset([*outer, column], shape), value)
        loops = list(zip([*outer, column], shape, strict=True))
        kernel = Kernel("folded", (source, target), (), loop_nest(loops, (store,)))
        return loop_launch(kernel, (x, rows), rows), rows

    def weight_launch(self, w: Value) -> tuple[Launch, Variable]:
        """What brings weights [O, C, outer taps, taps] to rows [O, outer taps, 64], and these."""
        given, taps = self.given, self.given.kernel[-1]
        shape = (given.outputs, self.outer_taps, STEP_CHANNELS)
        rows = Variable(TensorType(w.type.dtype, shape))
        source, target = Buffer("w", w.type.dtype), Buffer("out", w.type.dtype, "write")
        output, outer, column = (scalars.index(name) for name in ("o", "r", "j"))
        place, channel = column // self.channels, column % self.channels
        step = given.dilation[-1]
        tap = place // step if step > 1 else place
        conditions = [
            scalars.less(tap, const(taps, INDEX)),
            scalars.less(channel, const(given.channels, INDEX)),
        ]
        if step > 1:
            conditions.append(scalars.equal(tap * step, place))
        offset = row_major_offset(
            [output, channel, outer, tap], [given.outputs, given.channels, self.outer_taps, taps]
        )
        value = scalars.load(source, offset, all_conditions(conditions))
        store = Store(target, row_major_offset([output, outer, column], shape), value)
        loops = list(zip([output, outer, column], shape, strict=True))
        kernel = Kernel("folded weights", (source, target), (), loop_nest(loops, (store,)))
        return loop_launch(kernel, (w, rows), rows), rows

    def unfold_launch(self, rows: Variable, dw: Variable) -> Launch:
        """What adds up parts [parts, O, outer taps · 64] to gradients [O, C, outer taps, taps]."""
        given, taps = self.given, self.given.kernel[-1]
        parts = int(rows.type.shape[0])
        source, target = Buffer("rows", rows.type.dtype), Buffer("out", dw.type.dtype, "write")
        shape = (given.outputs, given.channels, self.outer_taps, taps)
        indices = [scalars.index(name) for name in ("o", "c", "r", "t")]
        (output, channel, outer, tap), part = indices, scalars.index("p")
        column = tap * (given.dilation[-1] * self.channels) + channel
        offset = row_major_offset(
            [part, output, outer, column], [parts, given.outputs, self.outer_taps, STEP_CHANNELS]
        )
        total = scalars.local("total", rows.type.dtype)
        body = (
            Accumulate(part, const(parts, INDEX), (Update(total, "add", source[offset]),)),
            Store(target, row_major_offset(indices, shape), scalars.cast(total, target.dtype)),
        )
        loops = list(zip(indices, shape, strict=True))
        kernel = Kernel("unfolded weights", (source, target), (), loop_nest(loops, body))
        return loop_launch(kernel, (rows, dw), dw)
