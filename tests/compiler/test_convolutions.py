"""Native convolutions: against the reference, on any size, stride, dilation, group and dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.threads import threads

import weft as wf
from weft.compiler.graph_passes.channels_last_primitives import (
    conv_last,
    conv_last_input_gradient,
    conv_last_weight_gradient,
)
from weft.compiler.lowering.convolution_sizes import Sizes, sizes_of
from weft.compiler.targets.cpu import target as cpu_target
from weft.compiler.targets.cpu.convolution import packing, plans, winograd, winograd_select
from weft.compiler.targets.cpu.engine import call_kernel, compile_kernels
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products.tiles import tile_of
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.target import compile_program
from weft.core.dimensions import symbol
from weft.ir.dispatch import apply
from weft.ir.primitive import Primitive

Array = np.ndarray[Any, Any]
Params = dict[str, Any]
PADDED: Params = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Params]] = {
    "a line": ((2, 9, 3), (4, 3, 2), {
        "strides": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}),
    "a line with everything": ((1, 7, 4), (2, 2, 3), {
        "strides": (2,), "padding": ((1, 2),), "dilation": (2,), "groups": 2}),
    "a long line": ((2, 9000, 4), (8, 4, 5), {
        "strides": (3,), "padding": ((2, 2),), "dilation": (1,), "groups": 1}),
    "few channels": ((5, 13, 11, 3), (7, 3, 3, 3), PADDED),
    "more than a panel": ((4, 17, 16, 5), (70, 5, 3, 3), PADDED),
    "strides, dilation and groups": ((3, 9, 11, 16), (20, 8, 3, 2), {
        "strides": (2, 1), "padding": ((1, 2), (0, 1)), "dilation": (1, 2), "groups": 2}),
    "one tap and a stride": ((3, 9, 11, 6), (20, 6, 1, 1), {
        "strides": (2, 2), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}),
    "one tap and padding": ((3, 9, 11, 6), (20, 6, 1, 1), {
        "strides": (2, 2), "padding": ((1, 1), (2, 0)), "dilation": (1, 1), "groups": 1}),
    "more padding than kernel": ((2, 9, 9, 8), (8, 8, 3, 3), {
        "strides": (1, 1), "padding": ((4, 4), (3, 3)), "dilation": (2, 2), "groups": 1}),
    "a stride of three": ((9, 10, 8, 12), (24, 12, 5, 3), {
        "strides": (3, 2), "padding": ((2, 2), (1, 1)), "dilation": (1, 1), "groups": 1}),
    "small images": ((19, 4, 4, 24), (65, 24, 3, 3), PADDED),
    "no padding": ((8, 12, 12, 20), (50, 20, 5, 5), {
        "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}),
    "one image": ((1, 12, 12, 20), (50, 20, 5, 5), {
        "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}),
    "one image with odd rows": ((1, 7, 9, 4), (6, 2, 3, 3), {**PADDED, "groups": 2}),
    "each channel alone": ((3, 9, 8, 19), (19, 1, 3, 3), {**PADDED, "groups": 19}),
    "each channel alone, with a stride": ((2, 9, 8, 6), (6, 1, 3, 2), {
        "strides": (2, 3), "padding": ((1, 1), (0, 1)), "dilation": (1, 2), "groups": 6}),
    "two outputs of each channel": ((2, 9, 8, 6), (12, 1, 3, 3), {**PADDED, "groups": 6}),
    "a volume": ((2, 5, 6, 7, 4), (6, 2, 2, 3, 3), {
        "strides": (1, 2, 3), "padding": ((1, 0), (1, 1), (2, 2)), "dilation": (1, 1, 2),
        "groups": 2}),
    "no images": ((0, 6, 6, 4), (3, 4, 2, 2), {
        "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}),
    "Winograd": ((2, 8, 8, 64), (64, 64, 3, 3), PADDED),
    "Winograd with odd sizes": ((3, 7, 9, 48), (80, 48, 3, 3), PADDED),
    "Winograd with odd padding": ((2, 5, 13, 32), (32, 32, 3, 3), {
        **PADDED, "padding": ((0, 0), (2, 1))}),
    "Winograd with images together": ((19, 4, 4, 64), (64, 64, 3, 3), PADDED),
    "Winograd with wide weights": ((8, 4, 4, 384), (384, 384, 3, 3), PADDED),
}  # fmt: skip


def compiled(primitive: Primitive, operands: list[Array], params: Params) -> Program:
    kinds = [wf.spec(each.dtype.name, each.shape) for each in operands]
    return compile_program(wf.ir.trace(lambda a, b: apply(primitive, a, b, **params), *kinds))


def drawn(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def sides(name: str, dtype: str = "float32") -> list[tuple[Primitive, list[Array], Params]]:
    """The three sides of a case: primitive, operands and parameters of each."""
    x_shape, w_shape, params = CASES[name]
    x, w = drawn(1, *x_shape, dtype=dtype), drawn(2, *w_shape, dtype=dtype)
    y = drawn(3, *conv_last.reference(x, w, **params).shape, dtype=dtype)
    return [
        (conv_last, [x, w], params),
        (conv_last_input_gradient, [y, w], {**params, "spatial": x_shape[1:-1]}),
        (conv_last_weight_gradient, [x, y], {**params, "kernel": w_shape[2:]}),
    ]


def has_whole_vectors(program: Program) -> bool:
    """Whether the layout pass makes such a gradient here: without masks, of whole vectors only."""
    node = program.graph.nodes[0]
    outputs = int(node.results[0].type.shape[0]) // node.params["groups"]
    return host().masked or outputs % tile_of(node.results[0].type.dtype, host()).lanes == 0


def error(found: Array, wanted: Array) -> float:
    """The largest difference, compared with the largest number."""
    scale = max(1e-30, float(np.abs(wanted).max(initial=0.0)))
    return float(np.abs(found.astype(np.float64) - wanted).max(initial=0.0)) / scale


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_sides_of_a_convolution_agree_with_the_reference(name: str) -> None:
    for primitive, operands, params in sides(name):
        program = compiled(primitive, operands, params)
        wide = [each.astype(np.float64) for each in operands]
        found = program.run(operands)[0]
        is_made = primitive is not conv_last_weight_gradient or has_whole_vectors(program)
        assert not (is_made and any(call.node for call in program.plan.launches)), (
            "called by reference"
        )
        assert found.dtype == np.float32
        assert error(found, primitive.reference(*wide, **params)) < 5e-6


@pytest.mark.parametrize(
    ("splits", "groups", "rows", "outputs"),
    [(1, 1, 32, 48), (3, 1, 32, 48), (2, 2, 9, 32), (3, 2, 9, 5), (1, 2, 9, 32)],
)
def test_partial_sums_are_added_in_their_order_and_turned(
    splits: int, groups: int, rows: int, outputs: int, rng: np.random.Generator
) -> None:
    partial = rng.normal(size=(splits, groups, rows, outputs)).astype(np.float32)
    kernel = packing.sum_kernel(wf.float32, splits, groups, outputs, rows)
    target = np.zeros((groups, outputs, rows), np.float32)
    address = compile_kernels([kernel])[kernel.name]
    call_kernel(address, [partial, target], [], 0, kernel.iterations({}))
    total = partial[0]
    for each in partial[1:]:
        total = total + each
    np.testing.assert_array_equal(target, total.transpose(0, 2, 1))


def test_sums_of_several_parts_are_read_as_they_lie() -> None:
    """The innermost loop goes over outputs, which lie one behind the other in each part."""
    text = str(packing.sum_kernel(wf.float32, 8, 1, 512, 256))
    assert "vector o < 16" in text
    assert "vector r" not in text


def test_one_image_is_shared_by_two_threads() -> None:
    sizes = [node_sizes_of(name) for name in ("one image", "one image with odd rows")]
    assert [(plan.rows, plan.blocks) for plan in (plans.forward(each, 64) for each in sizes)] == [
        (4, 2),
        (4, 2),
    ]
    small = replace(sizes[0], area=(6, 6), counts=(2, 2))
    assert plans.forward(small, 64).blocks == 1


def node_sizes_of(name: str) -> Sizes:
    """The sizes of a case's convolution."""
    primitive, operands, params = sides(name)[0]
    shape = primitive.reference(*operands, **params).shape
    found = sizes_of(operands[0].shape, operands[1].shape, shape, params)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["strides, dilation and groups", "a volume", "small images"])
def test_float64_is_computed_in_float64(name: str) -> None:
    for primitive, operands, params in sides(name, "float64"):
        found = compiled(primitive, operands, params).run(operands)[0]
        assert error(found, primitive.reference(*operands, **params)) < 1e-13


@pytest.mark.parametrize(
    "name", ["more than a panel", "small images", "Winograd", "no padding", "one image"]
)
def test_bits_do_not_depend_on_threads(name: str) -> None:
    for primitive, operands, params in sides(name):
        program = compiled(primitive, operands, params)
        found = []
        for count in (1, 2, 3):
            with threads(count):
                found.append(program.run(operands)[0].tobytes())
        assert len(set(found)) == 1


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("name", ["a stride of three", "Winograd with images together"])
def test_narrow_vectors_without_masks_agree(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = replace(host(width), masked=False)
    monkeypatch.setattr(cpu_target, "host", lambda: machine)
    for primitive, operands, params in sides(name):
        found = compiled(primitive, operands, params).run(operands)[0]
        assert error(found, primitive.reference(*operands, **params)) < 5e-6


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_gradients_of_channels_alone_have_a_kernel_on_machines_without_masks(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = replace(host(), masked=False)
    monkeypatch.setattr(cpu_target, "host", lambda: machine)
    gradient = wf.grad(
        lambda w, x: (wf.conv2d(x, w, padding=1, groups=5) ** 2).sum().astype("float32")
    )
    w, x = (
        wf.tensor(drawn(n, *s)).astype(dtype) for n, s in enumerate([(5, 1, 3, 3), (2, 5, 6, 7)])
    )
    program = compile_program(wf.ir.trace(gradient, w, x))
    kernels = [each.kernel.name for each in program.plan.lowered]
    assert "conv_last_weight_gradient" in kernels
    wanted = gradient(w, x).astype("float64").numpy()
    found = wf.jit(gradient)(w, x).astype("float64").numpy()
    assert error(found, wanted) < (2e-2 if dtype == "bfloat16" else 1e-5)


def test_the_matrices_of_winograd_make_a_convolution() -> None:
    x, w = drawn(0, 6, dtype="float64"), drawn(1, 3, dtype="float64")
    made = winograd.OUTPUT @ ((winograd.WEIGHT @ w) * (winograd.INPUT @ x))
    np.testing.assert_allclose(made, np.correlate(x, w, "valid"), atol=1e-14)


def test_winograd_is_as_exact_as_documented() -> None:
    x, w = drawn(1, 2, 16, 16, 256), drawn(2, 64, 256, 3, 3)
    found = compiled(conv_last, [x, w], PADDED).run([x, w])[0]
    wanted = conv_last.reference(x.astype(np.float64), w.astype(np.float64), **PADDED)
    spread = float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))
    assert 1e-7 < spread < 3e-6


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"kernel": (5, 5)}, False),
        ({"strides": (2, 2)}, False),
        ({"dilation": (2, 1)}, False),
        ({"channels": 3}, False),
        ({"groups": 2}, False),
        ({"images": 1}, False),
    ],
)
def test_winograd_is_for_plain_convolutions_of_three_by_three(change: Params, fits: bool) -> None:
    given: Params = {
        "images": 2, "groups": 1, "channels": 64, "outputs": 64, "area": (8, 8), "counts": (8, 8),
        "kernel": (3, 3), "strides": (1, 1), "dilation": (1, 1), "low": (1, 1),
    }  # fmt: skip
    sizes = Sizes(**{**given, **change})
    assert winograd_select.fits(sizes, wf.float32, host()) is fits


def test_bias_scale_residual_and_activation_are_the_epilogue() -> None:
    def block(x: Any, w: Any, b: Any, v: Any) -> Any:
        y = wf.relu(wf.conv2d(x, w, padding=1) * 2.0 + b[:, None, None])
        return wf.conv2d(wf.relu(wf.conv2d(y, v) + y) + y, v).sum()

    shapes = (16, 3, 16, 16), (24, 3, 3, 3), (24,), (24, 24, 1, 1)
    program = compile_program(wf.ir.trace(block, *[wf.spec("float32", shape) for shape in shapes]))
    names = [call.name for call in program.plan.launches for call in (call.members or (call,))]
    assert sum(name.startswith("conv+k") for name in names) >= 2, names
    arrays = [drawn(number, *shape) for number, shape in enumerate(shapes)]
    wanted = block(*[wf.tensor(each) for each in arrays])
    np.testing.assert_allclose(program.run(arrays)[0], wanted.numpy(), rtol=1e-5)


@pytest.mark.parametrize("size", [5, 32])
def test_a_program_of_any_number_of_images_is_compiled_once(size: int) -> None:
    step = wf.jit(lambda x, w: wf.relu(wf.conv2d(x, w, padding=1)))
    w = wf.tensor(drawn(2, 32, 32, 3, 3))
    for images in (2, 3, size):
        x = wf.tensor(drawn(1, images, 32, 6, 5))
        found, wanted = step(x, w), wf.relu(wf.conv2d(x, w, padding=1))
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=2e-4)
    assert len(step.compilations) <= 2


@pytest.mark.parametrize("side", [1, 2, 4])
def test_blocks_of_any_number_of_small_images_have_several_and_the_last_one_fewer(
    side: int,
) -> None:
    assert plans.cut_blocks(symbol("n"), side, side, plans.PLACES) == (side, plans.TOGETHER)

    def both(x: wf.Tensor, w: wf.Tensor) -> Any:
        y, gradients = wf.value_and_grad(
            lambda x, w: (wf.conv2d(x, w, padding=1) ** 2).sum(), argnums=(0, 1)
        )(x, w)
        return y, *gradients

    step, w = wf.jit(both), wf.tensor(drawn(2, 40, 32, 3, 3))
    for images in (3, plans.TOGETHER, 1, plans.TOGETHER - 1, 2 * plans.TOGETHER + 1):
        x = wf.tensor(drawn(images, images, 32, side, side))
        found = step(x, w)
        for one, other in zip(found, both(x, w), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-4, atol=2e-3)
    assert len(step.compilations) <= 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_computed_in_float32(dtype: str) -> None:
    x, w = (
        wf.tensor(drawn(n, *s)).astype(dtype) for n, s in enumerate([(2, 3, 8, 8), (4, 3, 3, 3)])
    )
    found, wanted = wf.jit(wf.conv2d)(x, w), wf.conv2d(x, w)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(
        found.astype("float32").numpy(), wanted.astype("float32").numpy(), rtol=1e-2, atol=1e-2
    )


@pytest.mark.slow
def test_a_compiled_training_step_agrees_with_the_eager_one() -> None:
    def loss(x: Any, v: Any, w: Any) -> Any:
        y = wf.max_pool2d(wf.relu(wf.conv2d(x, v, padding=1)), 3, stride=2, padding=1)
        return (wf.avg_pool2d(wf.conv2d(y, w, stride=2, padding=1), 2) ** 2).mean()

    given = [
        wf.tensor(drawn(n, *s)) for n, s in enumerate([(3, 4, 17, 15), (8, 4, 3, 3), (6, 8, 3, 3)])
    ]
    gradient = wf.grad(loss, argnums=(0, 1, 2))
    for found, wanted in zip(wf.jit(gradient)(*given), gradient(*given), strict=True):
        assert error(found.numpy(), wanted.numpy()) < 1e-5


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_gradient_of_pooling_goes_to_the_first_largest(stride: int, padding: int) -> None:
    def pooled(x: Any, w: Any) -> Any:
        y = wf.max_pool2d(wf.conv2d(x, w), 3, stride=stride, padding=padding)
        return (y * wf.arange(y.size * 1.0).reshape(y.shape)).sum()

    x = wf.tensor(np.random.default_rng(0).integers(0, 3, (2, 1, 8, 9)).astype(np.float32))
    w = wf.ones((5, 1, 1, 1))
    gradient = wf.grad(pooled)
    compiled_one = wf.jit(gradient)
    np.testing.assert_array_equal(compiled_one(x, w).numpy(), gradient(x, w).numpy())


def test_torch_gives_the_same_numbers() -> None:
    torch = pytest.importorskip("torch")
    x, w = drawn(1, 4, 16, 9, 9), drawn(2, 12, 4, 3, 3)
    given = {"stride": 2, "padding": 1, "dilation": 1, "groups": 4}
    wanted = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(w), **given).numpy()
    found = wf.jit(lambda x, w: wf.conv2d(x, w, **given))(wf.tensor(x), wf.tensor(w))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4)
