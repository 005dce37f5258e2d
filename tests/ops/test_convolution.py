"""Convolution, pooling and resizing: values by plain loops, derivatives, arguments, mistakes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import ArgumentError, ShapeError
from weft.testing import check_grads

Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: str = "float32") -> Array:
    generator = np.random.default_rng(sum(shape) + len(shape))
    return np.asarray(generator.normal(size=shape), dtype)


def agree(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def padded(x: Array, padding: int, rank: int, value: float = 0.0) -> Array:
    sides = [(0, 0)] * (x.ndim - rank) + [(padding, padding)] * rank
    return np.pad(x, sides, constant_values=value)


def windows(x: Array, window: tuple[int, ...], stride: int, dilation: int) -> dict[Any, Array]:
    """Each window of an already padded array, by its place."""
    rank = len(window)
    spatial = x.shape[-rank:]
    counts = [
        (d - dilation * (k - 1) - 1) // stride + 1 for d, k in zip(spatial, window, strict=True)
    ]
    return {
        place: x[
            (
                ...,
                *[
                    slice(p * stride, p * stride + dilation * (k - 1) + 1, dilation)
                    for p, k in zip(place, window, strict=True)
                ],
            )
        ]
        for place in product(*map(range, counts))
    }


def naive_conv(x: Array, w: Array, stride: int, padding: int, dilation: int, groups: int) -> Array:
    rank = x.ndim - 2
    found = windows(padded(x, padding, rank), w.shape[2:], stride, dilation)
    counts = tuple(max(place[i] for place in found) + 1 for i in range(rank))
    out = np.zeros((x.shape[0], w.shape[0], *counts))
    inputs, outputs = x.shape[1] // groups, w.shape[0] // groups
    for place, patch in found.items():
        for n, o in product(range(x.shape[0]), range(w.shape[0])):
            group = o // outputs
            channels = patch[n, group * inputs : (group + 1) * inputs]
            out[(n, o, *place)] = np.sum(channels * w[o])
    return out


SETTINGS = [
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    {"stride": 2, "padding": 1, "dilation": 1, "groups": 2},
    {"stride": 1, "padding": 2, "dilation": 2, "groups": 4},
    {"stride": 3, "padding": 1, "dilation": 1, "groups": 1},
]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("settings", SETTINGS)
def test_convolution_agrees_with_a_loop(rank: int, settings: dict[str, int]) -> None:
    x = normal(2, 4, *(6, 5, 5)[:rank])
    w = normal(4, 4 // settings["groups"], *(3, 2, 3)[:rank])
    found = getattr(wf, f"conv{rank}d")(wf.asarray(x), wf.asarray(w), **settings)
    agree(found, naive_conv(x, w, **settings))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("settings", SETTINGS)
def test_transposed_convolution_is_the_adjoint(rank: int, settings: dict[str, int]) -> None:
    x = wf.asarray(normal(2, 4, *(8, 7, 7)[:rank]))
    w = wf.asarray(normal(4, 4 // settings["groups"], *(3, 2, 3)[:rank]))
    y = getattr(wf, f"conv{rank}d")(x, w, **settings)
    back = getattr(wf, f"conv_transpose{rank}d")(y, w, **settings)
    extra = tuple(int(a) - int(b) for a, b in zip(x.shape[2:], back.shape[2:], strict=True))
    back = getattr(wf, f"conv_transpose{rank}d")(y, w, output_padding=extra, **settings)
    assert back.shape == x.shape
    assert float((y * y).sum()) == pytest.approx(float((back * x).sum()), rel=1e-3)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("settings", SETTINGS)
def test_convolutions_have_derivatives(rank: int, settings: dict[str, int]) -> None:
    x = wf.asarray(normal(1, 4, *(5, 4)[:rank], dtype="float64"))
    w = wf.asarray(normal(4, 4 // settings["groups"], *(3, 2)[:rank], dtype="float64"))
    b = wf.asarray(normal(4, dtype="float64"))
    check_grads(lambda *xs: getattr(wf, f"conv{rank}d")(*xs, **settings), [x, w, b])
    check_grads(lambda *xs: getattr(wf, f"conv_transpose{rank}d")(*xs, **settings), [x, w])


def naive_transposed(x: Array, w: Array, s: int, p: int, d: int, e: int) -> Array:
    """Every element of x [N, C, L] puts its multiple of the kernel [C, O, K] into the result."""
    whole = (x.shape[2] - 1) * s + d * (w.shape[2] - 1) + 1
    canvas = np.zeros((x.shape[0], w.shape[1], whole + e), x.dtype)
    for i, k in np.ndindex(x.shape[2], w.shape[2]):
        canvas[:, :, i * s + k * d] += x[:, :, i] @ w[:, :, k]
    return canvas[:, :, p : whole - p + e]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 4])
@pytest.mark.parametrize("padding", [0, 1, 3])
def test_every_legal_output_padding_is_taken(stride: int, dilation: int, padding: int) -> None:
    x, w = normal(2, 2, 4, dtype="float64"), normal(2, 3, 3, dtype="float64")
    for extra in range(max(stride, dilation)):
        expected = naive_transposed(x, w, stride, padding, dilation, extra)

        def transposed(x: wf.Tensor, w: wf.Tensor, extra: int = extra) -> wf.Tensor:
            return wf.conv_transpose1d(x, w, None, stride, padding, extra, 1, dilation)

        agree(transposed(wf.asarray(x), wf.asarray(w)), expected)
        flat = wf.conv_transpose2d(
            wf.asarray(x)[:, :, None], wf.asarray(w)[:, :, None], wf.ones(3, dtype="float64"),
            (1, stride), (0, padding), (0, extra), 1, (1, dilation),
        )  # fmt: skip
        agree(flat[:, :, 0], expected + 1.0)
        if extra == dilation - 1:
            check_grads(transposed, [wf.asarray(x), wf.asarray(w)])


def test_a_transposed_convolution_has_no_negative_size() -> None:
    x, w = wf.ones((1, 1, 1)), wf.ones((1, 1, 2))
    assert wf.conv_transpose1d(x, w, padding=1).shape == (1, 1, 0)
    with pytest.raises(wf.ArgumentError, match="the padding is wider than the result"):
        wf.conv_transpose1d(x, w, padding=2)


def test_padding_may_be_named() -> None:
    x, w = wf.asarray(normal(1, 2, 7)), wf.asarray(normal(3, 2, 4))
    assert wf.conv1d(x, w, padding="same", dilation=2).shape == (1, 3, 7)
    agree(wf.conv1d(x, w, padding="valid"), wf.conv1d(x, w).numpy())
    agree(wf.conv1d(x, w, padding="same"), wf.conv1d(x, w, padding=[(1, 2)]).numpy())


def test_a_single_image_needs_no_batch_axis() -> None:
    x, w = wf.asarray(normal(2, 5, 5)), wf.asarray(normal(3, 2, 3, 3))
    agree(wf.conv2d(x, w), wf.conv2d(x[None], w)[0].numpy())
    agree(wf.max_pool2d(x, 2), wf.max_pool2d(x[None], 2)[0].numpy())


def test_no_images_are_convolved_to_none() -> None:
    assert wf.conv2d(wf.zeros((0, 2, 5, 5)), wf.ones((3, 2, 3, 3))).shape == (0, 3, 3, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "complex64"])
def test_convolution_keeps_the_dtype(dtype: str) -> None:
    x, w = wf.ones((1, 2, 4)).astype(dtype), wf.ones((1, 2, 3)).astype(dtype)
    found = wf.conv1d(x, w)
    assert found.dtype.name == dtype
    assert found.tolist() == [[[6.0, 6.0]]]


POOLS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "stride": 1},
]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("settings", POOLS)
def test_pooling_agrees_with_a_loop(rank: int, settings: dict[str, int]) -> None:
    x = normal(2, 3, *(6, 5, 4)[:rank])
    padding = settings.get("padding", 0)
    kernel = (settings["kernel_size"],) * rank
    stride = settings.get("stride", settings["kernel_size"])
    axes = tuple(range(-rank, 0))

    def naive(value: float, reduce: Any) -> Array:
        found = windows(padded(x, padding, rank, value), kernel, stride, 1)
        counts = tuple(max(place[i] for place in found) + 1 for i in range(rank))
        out = np.zeros((2, 3, *counts))
        for place, patch in found.items():
            out[(..., *place)] = reduce(patch, axis=axes)
        return out

    t = wf.asarray(x)
    agree(getattr(wf, f"max_pool{rank}d")(t, **settings), naive(-np.inf, np.max))
    average = getattr(wf, f"avg_pool{rank}d")
    agree(average(t, **settings), naive(0.0, np.mean))
    agree(average(t, count_include_pad=False, **settings), naive(np.nan, np.nanmean))


def test_max_pooling_gives_the_derivative_to_the_first() -> None:
    x = wf.tensor([[[2.0, 2.0, 1.0, 3.0]]])
    found = wf.grad(lambda t: wf.max_pool1d(t, 2).sum())(x)
    assert found.tolist() == [[[1.0, 0.0, 0.0, 1.0]]]


def test_max_pooling_tells_where() -> None:
    x = wf.tensor([[[[1.0, 5.0, 2.0], [4.0, 3.0, 9.0], [0.0, 7.0, 8.0]]]])
    values, places = wf.max_pool2d(x, 2, stride=1, return_indices=True)
    assert values.tolist() == [[[[5.0, 9.0], [7.0, 9.0]]]]
    assert places.tolist() == [[[[1, 5], [7, 5]]]]


def test_max_pooling_passes_a_nan_on() -> None:
    x = wf.tensor([[[1.0, float("nan"), 2.0, 3.0]]])
    assert np.isnan(wf.max_pool1d(x, 2).numpy()).tolist() == [[[True, False]]]


def test_the_last_window_may_stick_out() -> None:
    x = wf.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0]]])
    assert wf.max_pool1d(x, 2, ceil_mode=True).tolist() == [[[2.0, 4.0, 5.0]]]
    assert wf.avg_pool1d(x, 2, ceil_mode=True).tolist() == [[[1.5, 3.5, 5.0]]]


def test_pooling_has_derivatives() -> None:
    x = wf.asarray(normal(1, 2, 5, 4, dtype="float64"))
    check_grads(lambda t: wf.max_pool2d(t, 2, stride=1, padding=1), [x])
    check_grads(lambda t: wf.avg_pool2d(t, (3, 2), padding=1, count_include_pad=False), [x])
    check_grads(lambda t: wf.adaptive_avg_pool2d(t, (2, 3)), [x])
    check_grads(lambda t: wf.adaptive_max_pool2d(t, (2, 3)), [x])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_adaptive_pooling_takes_stretches(size: int) -> None:
    x = normal(2, 3, 5)
    bounds = [(i * 5 // size, -(-(i + 1) * 5 // size)) for i in range(size)]
    means = np.stack([x[..., a:b].mean(-1) for a, b in bounds], -1)
    largest = np.stack([x[..., a:b].max(-1) for a, b in bounds], -1)
    agree(wf.adaptive_avg_pool1d(wf.asarray(x), size), means)
    agree(wf.adaptive_max_pool1d(wf.asarray(x), size), largest)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [1, (1, None), (2, 3), (4, 1), (2, 4), (4, 6), (None, 6), (8, 3)])
def test_adaptive_means_are_those_of_their_rectangles(size: Any, dtype: str) -> None:
    x = wf.asarray(normal(2, 3, 4, 6)).astype(dtype).requires_grad_()
    wide = x.detach().astype("float64").numpy()
    given = size if isinstance(size, tuple) else (size, size)
    counts = [dim if n is None else n for n, dim in zip(given, (4, 6), strict=True)]
    cut = [
        [(i * dim // n, -(-(i + 1) * dim // n)) for i in range(n)]
        for n, dim in zip(counts, (4, 6), strict=True)
    ]
    expected = np.stack(
        [np.stack([wide[..., a:b, c:d].mean((2, 3)) for c, d in cut[1]], -1) for a, b in cut[0]], -2
    )
    spread = np.zeros((4, 6))
    for a, b in cut[0]:
        for c, d in cut[1]:
            spread[a:b, c:d] += 1 / ((b - a) * (d - c))
    tolerance = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for pool in (wf.adaptive_avg_pool2d, wf.jit(wf.adaptive_avg_pool2d)):
        found = pool(x, size)
        assert found.dtype is x.dtype
        assert np.abs(found.detach().astype("float64").numpy() - expected).max() <= tolerance
    wf.sum(wf.adaptive_avg_pool2d(x, size)).backward()
    assert x.grad is not None
    slopes = x.grad.astype("float64").numpy()
    assert np.abs(slopes - spread).max() <= 4 * tolerance


def test_the_mean_of_all_places_of_16_bit_images_does_not_overflow() -> None:
    images = wf.full((1, 1, 300, 300), 60000.0, dtype="float16")
    assert wf.adaptive_avg_pool2d(images, 1).item() == 60000.0


@pytest.mark.parametrize("size", [(3, 2), (2, 7), (9, 4), (5, 5)], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_infinity_stays_in_its_rectangles(size: tuple[int, int], bad: float) -> None:
    x = normal(1, 2, 7, 7)
    x[0, 1, 3, 2] = bad
    columns, rows = (
        [i * 7 // n <= place < -(-(i + 1) * 7 // n) for i in range(n)]
        for n, place in zip(size, (3, 2), strict=True)
    )
    holds = np.zeros((1, 2, *size), bool)
    holds[0, 1] = np.outer(columns, rows)
    for pool in (wf.adaptive_avg_pool2d, wf.jit(wf.adaptive_avg_pool2d)):
        np.testing.assert_array_equal(np.isfinite(pool(wf.tensor(x), size).numpy()), ~holds)


@pytest.mark.parametrize("size", [1, (1, None), (None, 1), (None, None)], ids=str)
@pytest.mark.parametrize("pool", [wf.adaptive_avg_pool2d, wf.adaptive_max_pool2d])
def test_pooling_of_whole_axes_is_one_program_for_all_images(pool: Any, size: Any) -> None:
    compiled = wf.jit(lambda x: pool(x, size))
    for shape in ((4, 6), (5, 9), (8, 3), (31, 64)):
        x = wf.tensor(normal(2, 3, *shape))
        agree(compiled(x), pool(x, size).numpy())
    assert len(compiled.compilations) == 2


def test_interpolation_agrees_with_known_values() -> None:
    x = wf.tensor([[[1.0, 2.0, 4.0]]])
    assert wf.interpolate(x, size=5).tolist() == [[[1.0, 1.0, 2.0, 2.0, 4.0]]]
    assert wf.interpolate(x, scale_factor=2).tolist() == [[[1.0, 1.0, 2.0, 2.0, 4.0, 4.0]]]
    found = wf.interpolate(x, size=5, mode="linear", align_corners=True)
    assert found.tolist() == [[[1.0, 1.5, 2.0, 3.0, 4.0]]]
    found = wf.interpolate(x, scale_factor=2, mode="linear")
    assert found.tolist() == [[[1.0, 1.25, 1.75, 2.5, 3.5, 4.0]]]
    square = wf.asarray(normal(1, 2, 4, 6))
    assert wf.interpolate(square, size=(2, 9), mode="bilinear").shape == (1, 2, 2, 9)
    agree(wf.interpolate(square, size=2, mode="area"), wf.adaptive_avg_pool2d(square, 2).numpy())
    wide = wf.asarray(normal(1, 1, 3, 2, 2, dtype="float64"))
    check_grads(lambda t: wf.interpolate(t, size=(2, 3, 4), mode="trilinear"), [wide])


def test_cubic_interpolation_agrees_with_pytorch() -> None:
    x = wf.tensor([[[[0.0, 1.0, 4.0], [2.0, 0.0, 1.0]]]])
    cells = [[-0.096, 0.172, 1.0, 2.908, 4.288], [2.192, 1.152, 0.0, 0.468, 1.096]]
    corners = [
        [0.0, 0.3518516, 2.0555549, 4.0],
        [1.0, 0.4351853, 1.0740736, 2.5],
        [2.0, 0.5185189, 0.0925923, 1.0],
    ]
    for f in (wf.interpolate, wf.jit(wf.interpolate)):
        found = f(x, (2, 5), mode="bicubic")[0, 0]
        np.testing.assert_allclose(found.numpy(), cells, rtol=1e-5, atol=1e-6)
        found = f(x, (3, 4), mode="bicubic", align_corners=True)[0, 0]
        np.testing.assert_allclose(found.numpy(), corners, rtol=1e-5, atol=1e-6)
    wide = wf.asarray(normal(1, 2, 3, 2, dtype="float64"))
    check_grads(lambda t: wf.interpolate(t, scale_factor=1.7, mode="bicubic"), [wide])


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda x, w: wf.conv2d(x, w[:, :2]), ShapeError, "channels differ"),
        (lambda x, w: wf.conv2d(x, w[0]), ShapeError, "weight does not have 2 spatial axes"),
        (lambda x, w: wf.conv2d(x[0, 0], w), ShapeError, "input does not have 2 spatial axes"),
        (lambda x, w: wf.conv2d(x[..., :2], w), ShapeError, "larger than the padded input"),
        (lambda x, w: wf.conv2d(x, w, wf.ones(3)), ShapeError, "one element per output channel"),
        (lambda x, w: wf.conv2d(x, w, stride=0), ArgumentError, "stride is not one integer"),
        (lambda x, w: wf.conv2d(x, w, padding=-1), ArgumentError, "padding does not say"),
        (lambda x, w: wf.conv2d(x, w, padding="full"), ArgumentError, "unknown padding"),
        (lambda x, w: wf.conv2d(x, w, stride=2, padding="same"), ArgumentError, "stride of 1"),
        (lambda x, w: wf.conv2d(x, w, groups=0), ArgumentError, "groups must be at least 1"),
        (
            lambda x, w: wf.conv_transpose2d(x, w[:3], output_padding=1),
            ArgumentError,
            "not smaller than stride",
        ),
        (
            lambda x, w: wf.conv_transpose2d(x[..., :1], w[:3], padding=2),
            ArgumentError,
            "wider than the result",
        ),
        (lambda x, w: wf.max_pool2d(x, 2, padding=2), ArgumentError, "more than half"),
        (lambda x, w: wf.max_pool2d(x, (2, 2, 2)), ArgumentError, "kernel_size is not one"),
        (lambda x, w: wf.adaptive_avg_pool2d(x, 0), ArgumentError, "output_size is not one"),
        (lambda x, w: wf.interpolate(x), ArgumentError, "exactly one of size"),
        (lambda x, w: wf.interpolate(x, 2, mode="linear"), ArgumentError, "not a mode for 2"),
        (lambda x, w: wf.interpolate(x[0, 0], 2), ShapeError, "one to three spatial axes"),
    ],
)
def test_wrong_calls_are_refused(call: Any, error: Any, problem: str) -> None:
    with pytest.raises(error) as caught:
        call(wf.ones((1, 3, 8, 8)), wf.ones((4, 3, 3, 3)))
    assert problem in caught.value.problem
    assert caught.value.op
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.fix


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_agrees_with_pytorch(rank: int) -> None:
    torch = pytest.importorskip("torch")
    x, w = normal(2, 4, *(7, 6, 5)[:rank]), normal(6, 2, *(3, 2, 2)[:rank])
    settings = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
    expected = getattr(torch.nn.functional, f"conv{rank}d")(
        torch.tensor(x), torch.tensor(w), **settings
    )
    agree(getattr(wf, f"conv{rank}d")(wf.asarray(x), wf.asarray(w), **settings), expected.numpy())
