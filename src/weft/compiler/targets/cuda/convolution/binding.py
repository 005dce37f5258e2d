"""Convolutions of a plan: the kernel that is chosen for their sizes."""

from __future__ import annotations

from functools import cache, lru_cache

from weft.compiler.plan.launch import Launch
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.convolution.implicit import (
    STEP_CHANNELS,
    ConvolutionKernel,
    Geometry,
    convolution_kernel,
    convolution_spec,
)
from weft.compiler.targets.cuda.convolution.parts import steps_of_part, weight_gradient_cut
from weft.compiler.targets.cuda.convolution.placement import Placement
from weft.compiler.targets.cuda.convolution.sizes import (
    FORWARD,
    WEIGHT_GRADIENT,
    ConvolutionSizes,
)
from weft.compiler.targets.cuda.parameters import Corners, written_kernel_run
from weft.compiler.targets.cuda.products.choice import best_plan, launch, with_most_stages
from weft.compiler.targets.cuda.products.description import Plan, ProductSpec, Sizes
from weft.core.records import frozen


@frozen(slots=False)
class ConvolutionProduct:
    """A convolution as a product: where windows lie, its sizes, and what a launch is given."""

    direction: str
    sizes: ConvolutionSizes
    placement: Placement
    element_strides: tuple[int, ...] = ()
    """Elements from place to place along each axis, where windows overlap in memory."""
    parts: int = 1
    """Parts that the sums over all places are cut into, for the gradient of weights."""

    @classmethod
    def from_sizes(
        cls,
        direction: str,
        sizes: ConvolutionSizes,
        element_strides: tuple[int, ...] = (),
        parts: int = 1,
    ) -> ConvolutionProduct:
        """The product of a direction."""
        placement = Placement.from_sizes(sizes, direction)
        return cls(direction, sizes, placement, element_strides, parts)

    @property
    def channel_blocks(self) -> int:
        """How often 64 channels go into those of a window."""
        return -(-self.placement.channels // STEP_CHANNELS)

    @property
    def product_sizes(self) -> Sizes:
        """The sizes of the product; channels of a tap are rounded up to whole steps."""
        sizes, placement = self.sizes, self.placement
        length = placement.taps * self.channel_blocks * STEP_CHANNELS
        if self.direction == WEIGHT_GRADIENT:
            return Sizes(sizes.outputs, length, placement.rows, self.parts)
        columns = sizes.outputs if self.direction == FORWARD else sizes.channels
        return Sizes(placement.rows, columns, length, placement.phases)

    @property
    def geometry(self) -> Geometry:
        """What the kernel knows."""
        return Geometry.from_placement(self.direction, self.placement, self.sizes.kernel)

    def spec(self, dtype: str, output: str) -> ProductSpec:
        """The product's operands and result."""
        product = self.product_sizes
        return convolution_spec(self.direction, dtype, output, product.n, stack=product.batch)

    @property
    def corners(self) -> Corners:
        """Where windows lie, for the map of them."""
        axes = self.placement.axes[::-1]
        return Corners(
            tuple(axis.lower for axis in axes),
            tuple(axis.upper for axis in axes),
            tuple(axis.stride for axis in axes),
            self.element_strides,
        )

    @property
    def window_words(self) -> dict[str, int]:
        """The numbers that the kernel is given beside those of a product."""
        counts = {f"count{k}": axis.count for k, axis in enumerate(self.placement.axes[::-1])}
        run = steps_of_part(self.placement.rows, self.parts)
        return {"blocks": self.channel_blocks, "run": run, **counts}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of operands and result, as the kernel's maps have them."""
        sizes, product, placement = self.sizes, self.product_sizes, self.placement
        windows = (sizes.images, *(axis.size for axis in placement.axes), placement.channels)
        front = (product.batch,) if product.batch > 1 else ()
        out = (*front, product.m, product.n)
        if self.direction == WEIGHT_GRADIENT:
            return {"a": (placement.rows, sizes.outputs), "b": windows, "out": out}
        return {"a": windows, "b": (sizes.outputs, sizes.taps, sizes.channels), "out": out}


@binder("convolution")
def bind_convolution(binding: Binding, convolution: Launch) -> Run:
    """What runs a convolution that reads its windows where they lie."""
    a, b, out = convolution.values
    parts, count, *numbers = convolution.numbers(binding.sizes)
    element_strides, sizes = tuple(numbers[:count]), ConvolutionSizes.from_numbers(numbers[count:])
    assert isinstance(convolution.kernel, tuple)
    product = ConvolutionProduct.from_sizes(convolution.kernel[1], sizes, element_strides, parts)
    card = binding.stream.device
    spec = product.spec(a.type.dtype.name, out.type.dtype.name)
    kernel = chosen_kernel(product.geometry, spec, product.product_sizes, card.multiprocessors)
    how = launch(kernel, product.product_sizes, card.multiprocessors)
    given = {"a": a, "b": b, "out": out}, product.shapes, {**product.window_words, **how.words}
    windows = "b" if product.direction == WEIGHT_GRADIENT else "a"
    return written_kernel_run(
        binding, convolution, kernel, how.blocks, given, how.workspace_bytes, how.counters,
        corners={windows: product.corners},
    )  # fmt: skip


@lru_cache(maxsize=4096)
def chosen_kernel(
    geometry: Geometry, spec: ProductSpec, sizes: Sizes, multiprocessors: int
) -> ConvolutionKernel:
    """The kernel for a convolution of these sizes."""
    if geometry.direction == WEIGHT_GRADIENT:
        tile = weight_gradient_cut(sizes, multiprocessors, sizes.batch).tile
        plan = with_most_stages(spec, Plan(*tile, stages=0))
    else:
        plan = best_plan(spec, sizes, multiprocessors, is_even=not geometry.has_phases)
    return _kernel(geometry, spec, plan)


@cache
def _kernel(geometry: Geometry, spec: ProductSpec, plan: Plan) -> ConvolutionKernel:
    return convolution_kernel(geometry, spec, plan)
