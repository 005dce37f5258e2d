"""Reductions over rows in chunks: alone, in fusions with products, and beside other kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.threads import same_result_for_all_threads, threads

import weft as wf
from weft.compiler.fusion.costs import usual_bytes
from weft.compiler.fusion.split_reduction import chunk_rows
from weft.compiler.targets.cpu.target import compile_program
from weft.compiler.targets.limits import FusionLimits

Array = np.ndarray[Any, Any]


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def calls(f: Callable[..., Any], *arrays: Array) -> list[str]:
    return [
        call.name for call in compile_program(wf.ir.trace(f, *map(wf.tensor, arrays))).plan.launches
    ]


def stored(f: Callable[..., Any], *arrays: Array) -> set[tuple[Any, ...]]:
    """The shapes of all values that are in memory."""
    program = compile_program(wf.ir.trace(f, *map(wf.tensor, arrays)))
    return {value.type.shape for call in program.plan.launches for value in call.values}


def on_threads(f: Callable[..., Any], *given: wf.Tensor) -> list[Array]:
    """What a compiled function gives, the same bits on any number of threads."""
    compiled = wf.jit(f)
    found: list[list[Array]] = []
    for count in (1, 2, 3):
        with threads(count):
            found.append([np.array(each) for each in compiled(*given)])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert one.tobytes() == same.tobytes()
    return found[0]


# --- alone ---------------------------------------------------------------------------------------

SHAPES = [(64, 16), (200, 33), (97, 40), (127, 16), (8, 200, 64), (3, 1, 48, 1, 20), (1, 640, 17)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_sums_over_rows_are_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    x = (drawn(1, *shape) * 10).astype(dtype)
    axes = tuple(range(len(shape) - 1))
    found = wf.jit(lambda x: x.sum(axis=axes))(wf.tensor(x)).numpy()
    np.testing.assert_allclose(found, x.astype(np.float64).sum(axes), rtol=1e-5, atol=1e-3)


def test_every_reduction_goes_in_chunks() -> None:
    x = drawn(2, 320, 40)

    def every(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        odd = x > 2.5
        return wf.max(x, axis=0), wf.min(x, axis=0), wf.any(odd, axis=0), wf.all(~odd, axis=0)

    found = [each.numpy() for each in wf.jit(every)(wf.tensor(x))]
    odd = x > 2.5
    for one, wanted in zip(found, [x.max(0), x.min(0), odd.any(0), (~odd).all(0)], strict=True):
        assert (one == wanted).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_partial_sums_of_short_floats_are_not_rounded(dtype: str) -> None:
    ones = wf.ones((4096, 16), dtype=dtype)
    x = ones * 0.5 + 0.25 * ones
    assert (wf.jit(lambda x: x.sum(axis=0))(x).numpy().astype(np.float32) == 3072).all()


@pytest.mark.parametrize("shape", [(16, 4096), (1 << 18,), (4, 1 << 16)])
def test_sums_of_parts_of_short_floats_leave_their_range(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float16)
    x.reshape(-1)[:4096], x.reshape(-1)[-4096:] = 30, -30  # 122,880, where 65,504 is the largest
    assert wf.jit(wf.sum)(wf.tensor(x)).item() == 0.0


@pytest.mark.parametrize("shape", [(1 << 19,), (3, 5 * 2**15), (1 << 18,), ((1 << 18) + 1,)])
def test_a_long_sum_has_the_same_bits_for_any_number_of_threads(shape: tuple[int, ...]) -> None:
    x = drawn(7, *shape)
    total = wf.jit(wf.sum)
    found = same_result_for_all_threads(lambda: total(wf.tensor(x)))
    np.testing.assert_allclose(found.item(), x.astype(np.float64).sum(), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_bad_number_reaches_its_column_only(bad: float) -> None:
    x = drawn(3, 128, 20)
    x[77, 5] = bad
    found = wf.jit(lambda x: x.sum(axis=0))(wf.tensor(x)).numpy()
    assert not np.isfinite(found[5])
    assert np.isfinite(np.delete(found, 5)).all()


@pytest.mark.parametrize(
    ("shape", "axes", "rows"),
    [
        ((2048, 64), (0,), 16),
        ((200, 64), (0,), 10),
        ((34 * 4, 64), (0,), 8),
        ((74, 64), (0,), 37),
        ((97, 64), (0,), 0),
        ((48, 64), (0,), 0),
        ((2048, 4), (0,), 0),
        ((64, 2048), (1,), 0),
        ((4, 64, 32), (1,), 0),
        ((0, 64), (0,), 0),
        (("n", 64), (0,), 0),
        (("n", 32, 64), (0, 1), 16),
    ],
)
def test_chunks_come_out_even(shape: tuple[Any, ...], axes: tuple[int, ...], rows: int) -> None:
    graph = wf.ir.trace(lambda x: x.sum(axis=axes), wf.spec("float32", shape))
    assert chunk_rows(graph.nodes[0], FusionLimits(ragged_chunks=False)) == rows


@pytest.mark.parametrize(
    ("shape", "axes", "rows"),
    [
        ((97, 64), (0,), 16),
        ((9, 7, 64), (0, 1), 0),
        (("n", 64), (0,), 16),
        ((8, "n", 64), (0, 1), 16),
    ],
)
def test_chunks_that_do_not_come_out_even(
    shape: tuple[Any, ...], axes: tuple[int, ...], rows: int
) -> None:
    graph = wf.ir.trace(lambda x: x.sum(axis=axes), wf.spec("float32", shape))
    assert chunk_rows(graph.nodes[0], FusionLimits()) == rows


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 97, 640])
def test_reductions_over_a_number_of_rows_that_is_a_symbol(count: int) -> None:
    def every(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return x.sum(axis=0), (wf.exp(x) * y).sum(axis=0), y.sum(axis=(0, 1))

    kinds = wf.spec("float32", ("n", 40)), wf.spec("float32", (3, "n", 40))
    program = compile_program(wf.ir.trace(every, *kinds))
    x, y = drawn(4, count, 40), drawn(5, 3, count, 40)
    found = program.run([x, y])
    wide = np.exp(x.astype(np.float64)) * y
    for one, wanted in zip(found, [x.sum(0), wide.sum(0), y.sum((0, 1))], strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-3)


def test_rows_that_do_not_come_out_even_have_the_same_bits_on_all_threads() -> None:
    x = drawn(20, 997, 130)

    def every(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return x.sum(axis=0), wf.max(x, axis=0), wf.tanh(x).sum(axis=0)

    total, most, bent = on_threads(every, wf.tensor(x))
    np.testing.assert_allclose(total, x.astype(np.float64).sum(0), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(most, x.max(0))
    np.testing.assert_allclose(bent, np.tanh(x.astype(np.float64)).sum(0), rtol=1e-4, atol=1e-3)


def test_sums_with_a_size_that_is_a_symbol() -> None:
    program = compile_program(
        wf.ir.trace(lambda x, w: (x @ w).sum(axis=(0, 1)), wf.spec("float32", ("n", 32, 24)),
                    wf.spec("float32", (24, 40)))
    )  # fmt: skip
    w = drawn(5, 24, 40)
    for count in (0, 1, 5):
        x = drawn(4, count, 32, 24)
        wanted = (x.astype(np.float64) @ w).sum((0, 1))
        np.testing.assert_allclose(program.run([x, w])[0], wanted, rtol=1e-4, atol=1e-3)


def test_what_lies_along_the_rows_is_summed_at_once() -> None:
    x = drawn(6, 40, 320)
    assert calls(lambda x: x.mT.sum(axis=0), x) == ["k0"]
    found = wf.jit(lambda x: wf.exp(x.mT).sum(axis=0))(wf.tensor(x)).numpy()
    np.testing.assert_allclose(found, np.exp(x).sum(1), rtol=1e-5)


# --- in row fusions -------------------------------------------------------------------------------


def test_a_value_that_only_a_chain_and_its_sum_read_is_never_stored() -> None:
    def sums(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        h = wf.tanh(x @ w)
        return h.sum(axis=0), h.sum(axis=1)

    x, w = drawn(7, 320, 30), drawn(8, 30, 48)
    assert (320, 48) not in stored(sums, x, w)
    h = np.tanh(x.astype(np.float64) @ w)
    columns, rows = on_threads(sums, wf.tensor(x), wf.tensor(w))
    np.testing.assert_allclose(columns, h.sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows, h.sum(1), rtol=1e-4, atol=1e-4)


def test_the_sum_of_what_a_product_reads_is_part_of_its_chain() -> None:
    x, w = drawn(9, 320, 40), drawn(10, 40, 48)
    names = calls(lambda x, w: (x @ w, x.sum(axis=0)), x, w)
    assert any(name.startswith("dot+k") for name in names)
    product, total = on_threads(lambda x, w: (x @ w, x.sum(axis=0)), wf.tensor(x), wf.tensor(w))
    np.testing.assert_allclose(product, x @ w, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(total, x.sum(0), rtol=1e-4, atol=1e-4)


def test_a_kernel_and_the_sum_over_its_rows_are_one_pass() -> None:
    def both(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        y = wf.softmax(x, axis=-1)
        return y, y.sum(axis=0)

    x = drawn(11, 4800, 40)
    assert calls(both, x) == ["k0+k1", "k2"]
    y, total = on_threads(both, wf.tensor(x))
    np.testing.assert_allclose(total, y.astype(np.float64).sum(0), rtol=1e-5)


def test_an_element_wise_kernel_and_sums_over_its_rows_are_one_pass() -> None:
    def both(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor, wf.Tensor]:
        y = wf.erf(x) * wf.exp(x) + wf.sin(x)
        return y, y.sum(axis=0), (y * x).max(axis=0)

    x = drawn(12, 50, 32, 40).reshape(1600, 40)
    assert calls(both, x)[0] == "k0+k1"
    y, total, most = on_threads(both, wf.tensor(x))
    np.testing.assert_allclose(total, y.astype(np.float64).sum(0), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(most, (y * x).max(0), rtol=1e-6)


def network(x: wf.Tensor, *weights: wf.Tensor) -> wf.Tensor:
    """Layer norm, GELU and a residual, as a block of a transformer has them."""
    scale, shift, first, bias, second, last = weights
    centred = x - x.mean(axis=-1, keepdims=True)
    h = centred * wf.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift
    return ((x + wf.gelu(h @ first + bias) @ second + last) ** 2).sum()


def gradients(*given: wf.Tensor) -> tuple[wf.Tensor, ...]:
    return wf.grad(network, argnums=tuple(range(7)))(*given)  # type: ignore[no-any-return]


def network_arrays() -> list[Array]:
    shapes = [(8, 48, 32), (32,), (32,), (32, 64), (64,), (64, 32), (32,)]
    return [drawn(20 + i, *shape) for i, shape in enumerate(shapes)]


def test_gradients_of_biases_and_norms_are_made_in_the_chains_of_products() -> None:
    given = [wf.tensor(each) for each in network_arrays()]
    program = compile_program(wf.ir.trace(gradients, *given))
    stages = [
        stage
        for call in program.plan.launches
        for part in call.nested_launches()
        for stage in part.stages
    ]
    roots = [root for stage in stages if stage.group is not None for root in stage.group.roots]
    sums = [root.node.results[0].type.shape for root in roots if root.rows]
    assert sorted(sums) == [(32,), (32,), (32,), (64,)]  # the three biases and the scale


def test_gradients_of_biases_and_norms_are_right_on_any_number_of_threads() -> None:
    given = [wf.tensor(each) for each in network_arrays()]
    found = on_threads(gradients, *given)
    wide = [each.astype("float64") for each in given]
    for one, wanted in zip(found, gradients(*wide), strict=True):
        np.testing.assert_allclose(one, wanted.numpy(), rtol=2e-3, atol=2e-3)


def test_what_is_only_packed_is_never_stored_otherwise() -> None:
    def twice(x: wf.Tensor, w: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return y @ wf.tanh(x @ w)

    x, w, y = drawn(30, 640, 20), drawn(31, 20, 128), drawn(32, 200, 640)
    assert calls(twice, x, w, y) == ["dot+k0+pack", "dot"]
    assert (640, 128) not in stored(twice, x, w, y)
    (found,) = on_threads(lambda *given: (twice(*given),), *map(wf.tensor, (x, w, y)))
    np.testing.assert_allclose(found, y @ np.tanh(x @ w), rtol=1e-3, atol=1e-3)


def test_a_product_of_what_its_own_chain_would_pack_is_right() -> None:
    def both(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor]:
        h = wf.tanh(x @ w)
        return (wf.relu(h) @ h,)

    x, w = drawn(33, 320, 20), drawn(34, 20, 320)
    (found,) = on_threads(both, wf.tensor(x), wf.tensor(w))
    h = np.tanh(x @ w)
    np.testing.assert_allclose(found, np.maximum(h, 0) @ h, rtol=1e-3, atol=1e-2)


# --- what depends on what ------------------------------------------------------------------------


def grown(seed: int) -> Callable[..., tuple[wf.Tensor, ...]]:
    """A program of products, kernels and sums over rows that read each other at random."""

    def program(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, ...]:
        rng = np.random.default_rng(seed)
        values, sums = [x], [w[0]]
        for _ in range(12):
            one, other = (values[int(rng.integers(max(0, len(values) - 4), len(values)))]
                          for _ in range(2))  # fmt: skip
            total = sums[int(rng.integers(len(sums)))]
            match int(rng.integers(6)):
                case 0 | 1:
                    values.append(one @ w)
                case 2:
                    values.append(wf.tanh(one) + other)
                case 3:
                    values.append(wf.softmax(one, axis=-1) - total)
                case 4:
                    sums.append((one * other).mean(axis=0))
                case _:
                    sums.append(wf.sin(one).mean(axis=0) * total)
        return (*values[-2:], *sums[-2:])

    return program


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_programs_that_read_sums_in_any_order_are_right(seed: int) -> None:
    x, w = wf.tensor(drawn(seed, 96, 24)), wf.tensor(drawn(99, 24, 24) * np.float32(0.2))
    program = grown(seed)
    for one, wanted in zip(wf.jit(program)(x, w), program(x, w), strict=True):
        np.testing.assert_allclose(one.numpy(), wanted.numpy(), rtol=2e-3, atol=2e-3)


def test_clipping_by_the_norm_reads_a_gradient_once_more() -> None:
    """Its squares are summed where it is made; one launch then updates everything."""
    net = wf.nn.Linear(784, 512)
    optimizer = wf.optim.Adam(net.parameters(), lr=1e-3)

    @wf.jit
    def step(net: Any, optimizer: Any, x: wf.Tensor) -> wf.Tensor:
        loss = (net(x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        wf.optim.clip_grad_norm(net.parameters(), 1.0)
        optimizer.step()
        return loss

    x = wf.tensor(np.random.default_rng(0).standard_normal((128, 784)).astype(np.float32))
    program = step.program(net, optimizer, x)
    made = next(
        call for call in program.plan.launches if (512, 784) in [v.type.shape for v in call.writes]
    )
    gradient = next(v for v in made.writes if v.type.shape == (512, 784))
    assert "dot" in made.name
    assert (512,) in [v.type.shape for v in made.writes]
    readers = [
        call for call in program.plan.launches if gradient in call.values and call is not made
    ]
    assert len(readers) == 1
    weight = net.weight.detach().numpy().copy()
    step(net, optimizer, x)
    norm = np.sqrt(sum((p.grad.numpy().astype(np.float64) ** 2).sum() for p in net.parameters()))
    assert abs(norm - 1.0) < 1e-4
    assert np.abs(net.weight.detach().numpy() - weight).max() > 1e-4


@pytest.mark.parametrize(
    ("shape", "axes", "in_vectors"),
    [((4, 8, 48), (0, 2), "the terms"), ((6, 8), (0,), "the rows")],
    ids=["channels first", "channels last"],
)
def test_a_number_for_each_row_does_not_decide_how_rows_are_summed(
    shape: tuple[int, ...], axes: tuple[int, ...], in_vectors: str
) -> None:
    """A mean lies as rows would in columns; what is summed tells whether they do."""

    def centred_squares(x: wf.Tensor, mean: wf.Tensor) -> wf.Tensor:
        each = wf.reshape(mean, (-1, *[1] * (len(shape) - 2)))
        return wf.sum(wf.square(x - each), axis=axes)

    x, mean = drawn(0, *shape), drawn(1, shape[1])
    fast = wf.jit(centred_squares)
    found = fast(wf.tensor(x), wf.tensor(mean)).numpy()
    wide = x.astype("f8") - mean.reshape(-1, *[1] * (len(shape) - 2))
    np.testing.assert_allclose(found, (wide**2).sum(axes), rtol=1e-5)
    loops = fast.loops(wf.tensor(x), wf.tensor(mean))
    assert ("parallel vector" in loops) == (in_vectors == "the rows"), loops


def gradient_of_norm(x: wf.Tensor, scale: wf.Tensor, cotangent: wf.Tensor) -> Any:
    """The cotangents of a batch norm over [batch, channel, place]."""

    def norm(x: wf.Tensor, scale: wf.Tensor) -> wf.Tensor:
        mean = wf.mean(x, axis=(0, 2), keepdims=True)
        deviation = wf.sqrt(wf.mean(wf.square(x - mean), axis=(0, 2), keepdims=True) + 1e-5)
        return (x - mean) / deviation * wf.reshape(scale, (-1, 1))

    return wf.vjp(norm, x, scale)[1](cotangent)


@pytest.mark.parametrize("sizes", [(6, 5, 70), ("batch", 5, "places")], ids=["known", "symbols"])
def test_the_derivative_of_a_norm_stores_nothing_as_large_as_its_input(sizes: Any) -> None:
    """Deviations of channels are stored in place of everything that is computed from them."""
    kinds = [wf.spec("float32", sizes), wf.spec("float32", (5,)), wf.spec("float32", sizes)]
    graph = wf.ir.trace(gradient_of_norm, *kinds)
    launches = compile_program(graph).plan.launches
    values = {value for launch in launches for value in launch.values}
    large = [value for value in values if usual_bytes(value.type) > 4 * 5]
    assert len(large) == 3, large  # the input, the cotangent and the result

    x, scale, cotangent = drawn(0, 6, 5, 70), drawn(1, 5), drawn(2, 6, 5, 70)
    found = on_threads(gradient_of_norm, *map(wf.tensor, (x, scale, cotangent)))
    with wf.settings.changed(compiler=False):
        wanted = gradient_of_norm(*map(wf.tensor, (x, scale, cotangent)))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=2e-4, atol=2e-5)


# --- blocks of rows ------------------------------------------------------------------------------


def weighted_rows(x: Any, c: Any) -> Any:
    """A kernel over rows, and sums down the columns of what it reads."""
    y = c * x
    return x * y.sum(axis=-1, keepdims=True), y.sum(axis=0)


@pytest.mark.parametrize(("rows", "width"), [(16384, 256), (4096, 1024), (1024, 4096), (256, 256)])
def test_a_block_of_rows_counts_what_several_stages_read(rows: int, width: int) -> None:
    kinds = [wf.spec("float32", (rows, width))] * 2
    plan = compile_program(wf.ir.trace(weighted_rows, *kinds)).plan
    (blocks,) = [launch.blocks for launch in plan.launches if launch.blocks is not None]
    assert len(blocks.read_again) == 2
    held = 3 * 4 * width  # two operands and the result
    chunk = 16
    assert blocks.height({}) % chunk == 0
    assert blocks.height({}) * held <= max(blocks.limits.row_block_bytes, chunk * held)
    assert blocks.height({}) >= min(rows // blocks.limits.row_blocks, 64 * 1024 // held)


@pytest.mark.parametrize("shape", [(2048, 300), (300, 2100), (700, 17)])
def test_blocks_of_rows_have_the_same_bits_on_any_number_of_threads(shape: tuple[int, ...]) -> None:
    x, c = drawn(1, *shape), drawn(2, *shape)
    rows, sums = on_threads(weighted_rows, wf.tensor(x), wf.tensor(c))
    expected = (c.astype(np.float64) * x).sum(axis=0)
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows, x * (c * x).sum(-1, keepdims=True), rtol=1e-3, atol=1e-3)
