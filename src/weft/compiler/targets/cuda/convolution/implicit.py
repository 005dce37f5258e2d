"""Convolutions as products whose windows are read where they lie, by bulk copies.

With weights as rows [O, taps, C] the three directions are these products:

    forward           y  [places, O]     = windows of x [places, (tap, c)]  · w [O, (tap, c)]ᵀ
    input gradient    dx [places, C]     = windows of y [places, (tap, o)]  · w [(tap, o), C]
    weight gradient   dw [O, (tap, c)]   = y [places, O]ᵀ · windows of x [places, (tap, c)]

A step of the first two is 64 channels of one tap, a step of the last one 64 places. Windows never
go through memory; what lies outside of the array, and channels behind the last, are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.targets.cuda.convolution.placement import Placement, WindowAxis
from weft.compiler.targets.cuda.convolution.sizes import FORWARD, WEIGHT_GRADIENT
from weft.compiler.targets.cuda.products.description import Plan, ProductKernel, ProductSpec
from weft.compiler.targets.cuda.products.tensor_core import (
    ProductWriter,
    Unit,
    shared_bytes,
)
from weft.compiler.targets.cuda.ptx_writer import (
    Operand,
    Parameter,
    Pointer,
    TensorMap,
    Value,
    WindowMap,
    Word,
)
from weft.compiler.targets.cuda.warpgroup import ROW_BYTES, bulk_load, bulk_window_load
from weft.core.records import frozen

__all__ = [
    "STEP_CHANNELS",
    "ConvolutionKernel",
    "Geometry",
    "convolution_kernel",
    "convolution_spec",
]

STEP_CHANNELS = 64
"""Channels of one copy: 128 bytes."""


@frozen(slots=False)
class AxisGeometry:
    """What a kernel knows of an axis: strides and taps, but no sizes."""

    stride: int
    lower: int
    counts: tuple[int, ...]
    """Taps of each phase."""
    first_taps: tuple[int, ...]
    first_offsets: tuple[int, ...]
    steps: tuple[int, int]
    """From a tap of a phase to the next: the tap, and the offset."""
    kernel: int

    @classmethod
    def from_axis(cls, axis: WindowAxis, kernel: int) -> AxisGeometry:
        """Of an axis whose kernel has so many taps."""
        return cls(
            axis.stride,
            axis.lower,
            tuple(len(phase.taps) for phase in axis.phases),
            tuple(phase.taps[0] for phase in axis.phases),
            tuple(phase.offsets[0] for phase in axis.phases),
            axis.steps,
            kernel,
        )


@frozen(slots=False)
class Geometry:
    """How windows lie, from the last axis to the first; one kernel serves all sizes."""

    direction: str
    axes: tuple[AxisGeometry, ...]

    @classmethod
    def from_placement(
        cls, direction: str, placement: Placement, kernel: Sequence[int]
    ) -> Geometry:
        """The geometry of windows for a kernel of these taps."""
        pairs = zip(placement.axes, kernel, strict=True)
        axes = [AxisGeometry.from_axis(axis, taps) for axis, taps in pairs]
        return cls(direction, tuple(reversed(axes)))

    @property
    def has_phases(self) -> bool:
        """Whether places have different sets of taps."""
        return any(len(axis.counts) > 1 for axis in self.axes)


@frozen(slots=False)
class ConvolutionKernel(ProductKernel):
    """The kernel of a product that reads windows."""

    geometry: Geometry


def convolution_spec(
    direction: str, dtype: str, output: str, columns: int, *, stack: int = 1
) -> ProductSpec:
    """The product of a direction, of a stack of phases or parts."""
    return ProductSpec(
        dtype,
        output=output,
        transpose_a=direction == WEIGHT_GRADIENT,
        transpose_b=direction == FORWARD,
        batched=stack > 1,
        aligned_output=columns % 8 == 0,
    )


def convolution_kernel(geometry: Geometry, spec: ProductSpec, plan: Plan) -> ConvolutionKernel:
    """The kernel of a convolution that is cut as the plan says."""
    is_for_weights = geometry.direction == WEIGHT_GRADIENT
    writer = (_WeightGradientWriter if is_for_weights else _RowWriter)(geometry, spec, plan)
    writer.write()
    size = shared_bytes(spec, plan)
    return ConvolutionKernel.from_text(spec, plan, writer.kernel, size, geometry=geometry)


class _WindowWriter(ProductWriter):
    """What both kinds of kernels share: sizes of axes, and places as coordinates."""

    name = "convolution"

    def __init__(self, geometry: Geometry, spec: ProductSpec, plan: Plan) -> None:
        self.geometry = geometry
        super().__init__(spec, plan)

    def _map_axes(self) -> tuple[str, ...]:
        return ("channel", *(f"axis{k}" for k in range(len(self.geometry.axes))), "image")

    def _size_words(self) -> list[Parameter]:
        last = ["batch"] if self.spec.batched else []
        counts = [f"count{k}" for k in range(len(self.geometry.axes))]
        split = ["parts"] if self.plan.split else []
        names = ["m", "n", "k", *last, "blocks", *counts, *split, "run"]
        shared = [Pointer("workspace"), Pointer("counters")] if self.plan.split else []
        return [*map(Word, names), *shared]

    def place_coordinates(self, row: Operand) -> list[Value]:
        """Where the place of a row lies in the array: along each axis from the last, its image."""
        found: list[Value] = []
        rest = self.kernel.variable("u32", row, "place")
        for axis, count in zip(self.geometry.axes, self.counts, strict=True):
            found.append((rest % count) * axis.stride + axis.lower)
            rest = rest // count
        return [*found, rest]

    def begin_copies(self, unit: Unit) -> None:
        """Read the parameters that both kinds of copies need."""
        super().begin_copies(unit)
        self.counts = [self.kernel.parameter(f"count{k}") for k in range(len(self.geometry.axes))]


class _RowWriter(_WindowWriter):
    """Windows are the rows of the product: forward, and the gradient of the input."""

    def parameter_list(self) -> list[Parameter]:
        """See `ProductWriter`."""
        spec, plan = self.spec, self.plan
        box = STEP_CHANNELS, 1, (plan.tile_n if spec.transpose_b else STEP_CHANNELS)
        return [
            WindowMap("a", spec.dtype, self._map_axes(), (STEP_CHANNELS, plan.tile_m)),
            TensorMap("b", spec.dtype, ("channel", "tap", "output"), box),
            *self.layout.parameters,
            *self._size_words(),
        ]

    def count_tiles(self) -> None:
        """See `ProductWriter`; `blocks` is how often 64 channels go into those of a window."""
        super().count_tiles()
        self.channel_blocks = self.kernel.parameter("blocks")

    def unit(self, tile: Value, first: Operand, count: Value) -> Unit:
        """See `ProductWriter`; the steps of a tile are those of its phase."""
        unit = super().unit(tile, first, count)
        if not self.geometry.has_phases:
            return unit
        assert unit.batch is not None
        steps = self.channel_blocks
        rest = unit.batch
        for axis in self.geometry.axes:
            steps = steps * self._of_phase(axis.counts, rest % len(axis.counts))
            rest = rest // len(axis.counts)
        return replace(unit, count=steps)

    def _of_phase(self, numbers: Sequence[int], phase: Value) -> Operand:
        """The number of a phase."""
        if len(set(numbers)) == 1:
            return numbers[0]
        chosen: Operand = numbers[0]
        for place, number in enumerate(numbers[1:], 1):
            chosen = self.kernel.select(phase.equals(place), number, chosen)
        return chosen

    def begin_copies(self, unit: Unit) -> None:
        """Where the tile's first place is, and the tap and the channels of its first step."""
        super().begin_copies(unit)
        kernel = self.kernel
        self.start = self.place_coordinates(unit.row)
        first = kernel.variable("u32", unit.first, "first")
        self.channel = kernel.variable("u32", (first % self.channel_blocks) * STEP_CHANNELS)
        rest = first // self.channel_blocks
        phase = unit.batch if self.geometry.has_phases else None
        self.numbers, self.limits, self.first_taps, self.first_offsets = [], [], [], []
        for axis in self.geometry.axes:
            own = kernel.variable("u32", 0) if phase is None else phase % len(axis.counts)
            phase = phase // len(axis.counts) if phase is not None else None
            limit = self._of_phase(axis.counts, own)
            self.numbers.append(kernel.variable("u32", rest % limit, "tap"))
            self.limits.append(limit)
            self.first_taps.append(self._of_phase(axis.first_taps, own))
            self.first_offsets.append(self._of_phase(axis.first_offsets, own))
            rest = rest // limit

    def copy_step(self, unit: Unit, step: Value, target: Value, full: Value) -> None:
        """64 channels of a tap of the tile's windows, and of the weights."""
        kernel, plan = self.kernel, self.plan
        offsets: list[Value] = []
        tap = kernel.variable("u32", 0)
        axes = self.geometry.axes
        for number, axis, first in zip(self.numbers, axes, self.first_offsets, strict=True):
            offsets.append(number * axis.steps[1] + first)
        for place in reversed(range(len(axes))):
            own = self.numbers[place] * axes[place].steps[0] + self.first_taps[place]
            tap = tap * axes[place].kernel + own
        bulk_window_load(kernel, self.a, [self.channel, *self.start], offsets, target, full)
        target = target + plan.tile_m * ROW_BYTES
        if self.spec.transpose_b:
            bulk_load(kernel, self.b, [self.channel, tap, unit.column], target, full)
        else:
            for chunk in range(plan.tile_n // 64):
                where = [unit.column + 64 * chunk, tap, self.channel]
                bulk_load(kernel, self.b, where, target + chunk * self.chunk_bytes, full)
        self._advance()

    def _advance(self) -> None:
        """Go on to the next channels, and behind the last to the next tap."""
        kernel = self.kernel
        following = self.channel + STEP_CHANNELS
        wraps = following >= self.channel_blocks * STEP_CHANNELS
        kernel.assign(self.channel, kernel.select(wraps, 0, following))
        for number, limit in zip(self.numbers, self.limits, strict=True):
            kernel.assign(number, number + 1, when=wraps)
            wraps = number >= limit
            kernel.assign(number, 0, when=wraps)


class _WeightGradientWriter(_WindowWriter):
    """Windows are the right operand, places are summed over."""

    def parameter_list(self) -> list[Parameter]:
        """See `ProductWriter`."""
        dtype, step = self.spec.dtype, self.row_elements
        return [
            TensorMap("a", dtype, ("output", "place"), (64, step)),
            WindowMap("b", dtype, self._map_axes(), (STEP_CHANNELS, step)),
            *self.layout.parameters,
            *self._size_words(),
        ]

    def unit(self, tile: Value, first: Operand, count: Value) -> Unit:
        """See `ProductWriter`; a stack is of parts of the sum over all places."""
        unit = super().unit(tile, first, count)
        if unit.batch is None:
            return unit
        run = self.kernel.parameter("run")
        start = unit.batch * run
        return replace(unit, first=start, count=(self.steps - start).minimum(run))

    def begin_copies(self, unit: Unit) -> None:
        """For each 64 columns of the tile: their channels, and where their tap is."""
        super().begin_copies(unit)
        kernel, axes = self.kernel, self.geometry.axes
        blocks = kernel.parameter("blocks")
        self.chunks: list[tuple[Value, list[Value]]] = []
        for chunk in range(self.plan.tile_n // 64):
            number = (unit.column >> 6) + chunk
            exists = number * 64 < self.n
            # A tile may reach beyond the last tap: channels that are not there are zeros.
            channel = kernel.select(exists, (number % blocks) * 64, blocks * 64)
            rest = kernel.select(exists, number // blocks, 0)
            offsets = []
            for axis in axes:
                offsets.append((rest % axis.kernel) * axis.steps[1])
                rest = rest // axis.kernel
            self.chunks.append((channel, offsets))
        self._begin_places(unit)

    def _begin_places(self, unit: Unit) -> None:
        """The place of the unit's first step, and how far the next is along each axis."""
        kernel = self.kernel
        first = kernel.variable("u32", unit.first) * self.row_elements
        self.numbers: list[
            Value
        ] = []  # of the place, along each axis from the last, then its image
        self.moves: list[Value] = []
        rest, move = first, kernel.variable("u32", self.row_elements)
        for count in self.counts:
            self.numbers.append(kernel.variable("u32", rest % count, "place"))
            self.moves.append(move % count)
            rest, move = rest // count, move // count
        self.numbers.append(kernel.variable("u32", rest, "image"))
        self.moves.append(move)

    def _advance_places(self) -> None:
        """Go on by a step: digits of a number with the axes' counts are added, with carries."""
        kernel = self.kernel
        carry = kernel.variable("u32", 0)
        for number, move, count in zip(self.numbers, self.moves, self.counts, strict=False):
            kernel.assign(number, number + move + carry)
            wraps = number >= count
            kernel.assign(number, number - count, when=wraps)
            carry = kernel.select(wraps, 1, 0)
        kernel.assign(self.numbers[-1], self.numbers[-1] + self.moves[-1] + carry)

    def copy_step(self, unit: Unit, step: Value, target: Value, full: Value) -> None:
        """64 places: of the cotangents, and of a tap of the windows for each 64 columns."""
        kernel, plan = self.kernel, self.plan
        depth = step * self.row_elements
        for chunk in range(plan.tile_m // 64):
            where = [unit.row + 64 * chunk, depth]
            bulk_load(kernel, self.a, where, target + chunk * self.chunk_bytes, full)
        target = target + plan.tile_m * ROW_BYTES
        axes = zip(self.numbers, self.geometry.axes, strict=False)
        start = [number * axis.stride + axis.lower for number, axis in axes]
        start.append(self.numbers[-1])
        for number, (channel, offsets) in enumerate(self.chunks):
            place = target + number * self.chunk_bytes
            bulk_window_load(kernel, self.b, [channel, *start], offsets, place, full)
        self._advance_places()
