"""Convolutions for cards: where windows lie, kernels that assemble, numbers on a host's card."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes
from tests.compiler.cuda.convolution_cases import CASES, Case, check_convolution, square
from tests.compiler.cuda.host_card import HostCard, host_card
from tests.compiler.cuda.window_copies import Array, WindowTable, product_shapes, window_product

from weft.compiler.targets.cuda.convolution.binding import ConvolutionProduct, chosen_kernel
from weft.compiler.targets.cuda.convolution.sizes import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    ConvolutionSizes,
)
from weft.ops.convolution import conv, conv_input_gradient, conv_weight_gradient

DIRECTIONS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


WITHOUT_SOME_TAPS = (
    "a stride that leaves elements",
    "single elements with a stride",
    "holes and a stride",
    "axes that differ",
)
"""Some elements of the image are in no window."""


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as made:
        yield made


def _product(
    case: Case, direction: str, out: tuple[int, ...], parts: int = 1
) -> ConvolutionProduct:
    low = tuple(first for first, _ in case.padding)
    sizes = ConvolutionSizes(
        case.images, case.size, case.channels, out, case.outputs, case.kernel, case.stride, low,
        case.dilation,
    )  # fmt: skip
    assert ConvolutionSizes.from_numbers(sizes.as_numbers()) == sizes
    return ConvolutionProduct.from_sizes(direction, sizes, parts=parts)


def _last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _emulated(product: ConvolutionProduct, a: Array, b: Array) -> Array:
    """What the chosen kernel computes, by what its maps and words say."""
    dtype = "float32" if product.direction == WEIGHT_GRADIENT else "bfloat16"
    spec = product.spec("bfloat16", dtype)
    corners, shapes = product.corners, product.shapes
    windows = shapes["b" if product.direction == WEIGHT_GRADIENT else "a"]
    table = WindowTable(
        windows[::-1], corners.lower, corners.upper, (1, *corners.strides, 1)
    )  # fmt: skip
    sizes = product.product_sizes
    words = {"m": sizes.m, "n": sizes.n, "batch": sizes.batch, **product.window_words}
    wanted = product_shapes(product.geometry, spec, words, table)
    assert (wanted["a"], wanted["b"]) == (shapes["a"], shapes["b"])
    given = a.reshape(shapes["a"]), b.reshape(shapes["b"])
    return window_product(product.geometry, spec, words, table, *given)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.groups == 1])
def test_the_places_of_windows_give_the_convolution_and_its_gradients(name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (case.images, case.channels, *case.size)).astype(np.float32)
    w = rng.integers(-2, 3, (case.outputs, case.channels, *case.kernel)).astype(np.float32)
    y = conv.reference(x, w, **case.params)
    ct = rng.integers(-2, 3, y.shape).astype(np.float32)
    out, rows = y.shape[2:], np.moveaxis(w.reshape(*w.shape[:2], -1), 1, 2)

    product = _product(case, FORWARD, out)
    found = _emulated(product, _last(x), rows)
    np.testing.assert_array_equal(found.reshape(_last(y).shape), _last(y))

    steps = -(-case.images * int(np.prod(out)) // 64)
    product = _product(case, WEIGHT_GRADIENT, out, parts=-(-steps // max(1, steps // 3)))
    found = _emulated(product, _last(ct), _last(x)).sum(axis=0)
    found = found.reshape(case.outputs, rows.shape[1], -1)
    wanted = conv_weight_gradient.reference(x, ct, kernel=case.kernel, **case.params)
    found = np.moveaxis(found[:, :, : case.channels], 1, 2).reshape(wanted.shape)
    np.testing.assert_array_equal(found, wanted)

    product = _product(case, INPUT_GRADIENT, out)
    if not product.placement.is_possible:
        assert name in WITHOUT_SOME_TAPS
        return
    assert name not in WITHOUT_SOME_TAPS
    axes = product.placement.axes
    phased = _emulated(product, _last(ct), rows).reshape(
        *case.stride, case.images, *(axis.count for axis in axes), case.channels
    )
    rank = len(axes)
    order = [rank, *(k for axis in range(rank) for k in (rank + 1 + axis, axis)), 2 * rank + 1]
    whole = phased.transpose(order).reshape(
        case.images, *(a.count * s for a, s in zip(axes, case.stride, strict=True)), case.channels
    )
    wanted = conv_input_gradient.reference(ct, w, spatial=case.size, **case.params)
    inside = (slice(None), *(slice(0, size) for size in case.size))
    np.testing.assert_array_equal(whole[inside], _last(wanted))


SMALL = {
    "padding": square(1, 32, 8, 3, 2, padding=1),
    "a stride": square(1, 32, 32, 2, 3, stride=2, padding=1),
    "single elements with a stride": square(1, 32, 8, 3, 1, stride=2),
    "few channels": square(1, 3, 8, 3, 2),
    "few channels with a stride and padding": square(1, 3, 8, 5, 3, stride=2, padding=1),
    "one channel with holes": square(1, 1, 8, 4, 2, padding=2, dilation=2),
    "each channel alone": square(1, 4, 4, 4, 3, 2, 1, groups=4),
    "each channel alone with holes": square(2, 3, 3, 5, 2, 1, 2, 2, groups=3),
    "too many taps for one copy": square(1, 9, 8, 5, 5),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_program_with_a_convolution_is_exact_on_a_card(card: HostCard, name: str) -> None:
    check_convolution(SMALL[name])


@needs_ptxas
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["a stride of 2", "one axis", "three axes", "odd outputs"])
def test_a_kernel_that_reads_windows_assembles_without_spills(name: str, direction: str) -> None:
    case = CASES[name]
    out = tuple(
        (size + sum(padding) - (taps - 1) * dilation - 1) // stride + 1
        for size, padding, taps, dilation, stride in zip(
            case.size, case.padding, case.kernel, case.dilation, case.stride, strict=True
        )
    )
    product = _product(case, direction, out)
    spec = product.spec("bfloat16", "bfloat16")
    kernel = chosen_kernel(product.geometry, spec, product.product_sizes, 132)
    assert spilled_bytes(kernel.text) == 0
