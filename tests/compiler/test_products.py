"""Generated matrix products: against NumPy in float64, on any size, stride, dtype and machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.threads import threads

import weft as wf
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.engine import call_kernel
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products.gemm import ENTRIES, source
from weft.compiler.targets.cpu.products.tiles import tile_of
from weft.compiler.targets.cpu.target import compile_program

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 5, 7, 17, 63, 65, 129)
TOLERANCE = {"float32": 2e-5, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}


def drawn(seed: int, *shape: int, dtype: str = "float32") -> Array:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return wf.tensor(values).astype(dtype).numpy().copy()


def close(found: Array, wanted: Array, dtype: str, terms: int) -> None:
    scale = max(1.0, float(np.sqrt(terms)))
    error = np.abs(found.astype(np.float64) - wanted).max(initial=0.0)
    assert error <= TOLERANCE[dtype] * scale * 4


def product(a: Array, b: Array) -> Array:
    return a.astype(np.float64) @ b.astype(np.float64)


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda a, b: a @ b,
    "left": lambda a, b: a.mT @ b,
    "right": lambda a, b: a @ b.mT,
    "both": lambda a, b: a.mT @ b.mT,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_any_size_and_form_are_those_of_numpy(form: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    compiled = wf.jit(FORMS[form])
    for number in range(24):
        m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
        a, b = drawn(number, m, k, dtype=dtype), drawn(number + 99, k, n, dtype=dtype)
        left = a.T.copy() if form in ("left", "both") else a
        right = b.T.copy() if form in ("right", "both") else b
        found = compiled(wf.tensor(left), wf.tensor(right)).numpy()
        close(found, product(a, b), dtype, k)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_stacks_of_products_in_every_dtype(dtype: str) -> None:
    a, b = drawn(1, 2, 3, 65, 17, dtype=dtype), drawn(2, 2, 3, 17, 70, dtype=dtype)
    found = wf.jit(wf.matmul)(wf.tensor(a), wf.tensor(b)).numpy()
    assert found.dtype == a.dtype
    close(found, product(a, b), dtype, 17)
    shared = wf.jit(wf.matmul)(wf.tensor(a), wf.tensor(b[0, 0])).numpy()
    close(shared, product(a, b[0, 0]), dtype, 17)


def test_long_sums_are_made_in_parts() -> None:
    a, b = drawn(3, 50, 2500), drawn(4, 2500, 66)
    close(wf.jit(wf.matmul)(wf.tensor(a), wf.tensor(b)).numpy(), product(a, b), "float32", 2500)
    turned = wf.jit(lambda a, b: a.mT @ b)(wf.tensor(a.T.copy()), wf.tensor(b)).numpy()
    close(turned, product(a, b), "float32", 2500)


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (64, 64, 0), (100, 3, 0)])
def test_empty_products(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    found = wf.jit(lambda a, b: wf.relu(a @ b) + 1)(wf.zeros((m, k)), wf.zeros((k, n))).numpy()
    assert found.shape == (m, n)
    assert (found == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_reaches_its_row_or_column_only(bad: float) -> None:
    a, b = drawn(5, 70, 33), drawn(6, 33, 65)
    a[13, 4] = bad
    found = wf.jit(wf.matmul)(wf.tensor(a), wf.tensor(b)).numpy()
    assert not np.isfinite(found[13]).any()
    assert np.isfinite(np.delete(found, 13, axis=0)).all()
    right = wf.jit(lambda b, a: b @ a.mT)(wf.tensor(drawn(7, 66, 33)), wf.tensor(a)).numpy()
    assert not np.isfinite(right[:, 13]).any()
    assert np.isfinite(np.delete(right, 13, axis=1)).all()


def test_views_are_taken_as_they_are() -> None:
    wide = wf.tensor(drawn(8, 60, 80))
    found = wf.jit(lambda x: x[::2, 1:70:3] @ x[:23, ::-1])(wide).numpy()
    x = wide.numpy()
    close(found, product(x[::2, 1:70:3], x[:23, ::-1]), "float32", 23)


def test_sums_over_several_axes_in_any_order() -> None:
    a, b = drawn(9, 4, 5, 6, 7), drawn(10, 7, 3, 5, 4)
    found = wf.jit(lambda a, b: wf.einsum("ijkl,lmji->km", a, b))(wf.tensor(a), wf.tensor(b))
    wanted = np.einsum("ijkl,lmji->km", a.astype(np.float64), b.astype(np.float64))
    close(found.numpy(), wanted, "float32", 140)


def test_sizes_may_be_symbols() -> None:
    step = wf.jit(lambda x, w: wf.relu(x @ w.mT) * 2)
    w = drawn(11, 66, 40)
    for rows in (3, 64, 65, 200):
        x = drawn(rows, rows, 40)
        found = step(wf.tensor(x), wf.tensor(w)).numpy()
        close(found, np.maximum(product(x, w.T), 0) * 2, "float32", 40)
    assert len(step.compilations) <= 2


@pytest.mark.parametrize("width", [1, 4, 8])
@pytest.mark.parametrize("fused", [True, False])
def test_tiles_for_other_machines(width: int, fused: bool) -> None:
    tile = replace(tile_of(wf.float32, host(width)), fused=fused)
    functions = text_addresses(source(tile), ENTRIES)
    for number, (m, n, k) in enumerate([(7, 17, 5), (65, 33, 20), (13, 1, 64)]):
        a, b = drawn(number, m, k), drawn(number + 1, n, k)
        panels = -(-n // tile.columns)
        packed = np.zeros((panels, k, tile.columns), np.float32)
        call_kernel(functions["pack_turned"], [b, packed], [n, k, panels], 0, panels)
        found = np.full((m, n), np.nan, np.float32)
        steps = [k, 1, m * k, 0, tile.columns, k * tile.columns]
        table = [m, n, k, *steps, 16, 12, 0]
        call_kernel(functions["rows"], [a, packed, found], table, 0, m)
        close(found, product(a, b.T), "float32", k)


# --- row fusion ---------------------------------------------------------------------------------


PACKING = [] if host().masked else ["pack"]
"""Without masks, a right operand whose columns are no whole vectors is packed first."""


def names(f: Callable[..., Any], *arrays: Array) -> list[str]:
    return [
        call.name for call in compile_program(wf.ir.trace(f, *map(wf.tensor, arrays))).plan.launches
    ]


def test_bias_activation_residual_and_scale_are_the_end_of_a_product() -> None:
    def layer(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        return x + wf.tanh(x @ w + b) * 0.5

    x, w, b = drawn(12, 129, 65), drawn(13, 65, 65), drawn(14, 65)
    assert names(layer, x, w, b) == [*PACKING, "dot+k0"]
    found = wf.jit(layer)(*map(wf.tensor, (x, w, b))).numpy()
    close(found, x + np.tanh(product(x, w) + b) * 0.5, "float32", 65)


def test_the_product_is_stored_where_others_read_it() -> None:
    def both(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        h = x @ w
        return h, wf.relu(h)

    x, w = drawn(15, 100, 30), drawn(16, 30, 70)
    h, active = (each.numpy() for each in wf.jit(both)(wf.tensor(x), wf.tensor(w)))
    close(h, product(x, w), "float32", 30)
    assert (active == np.maximum(h, 0)).all()


def test_rows_of_a_product_are_normalised_while_they_are_in_cache() -> None:
    def attention(q: wf.Tensor, k: wf.Tensor, mask: wf.Tensor) -> wf.Tensor:
        return wf.softmax(q @ k.mT + mask, axis=-1)

    q, k, mask = drawn(17, 3, 4, 50, 8), drawn(18, 3, 4, 50, 8), drawn(19, 50, 50)
    scores = product(q, np.swapaxes(k, -1, -2)) + mask
    wanted = np.exp(scores - scores.max(-1, keepdims=True))
    wanted /= wanted.sum(-1, keepdims=True)
    close(wf.jit(attention)(*map(wf.tensor, (q, k, mask))).numpy(), wanted, "float32", 8)


def test_products_in_a_row_are_one_chain_without_memory_between_them() -> None:
    def mlp(x: wf.Tensor, first: wf.Tensor, second: wf.Tensor) -> wf.Tensor:
        return wf.relu(wf.relu(x @ first) @ second)

    x, first, second = drawn(20, 500, 40), drawn(21, 40, 90), drawn(22, 90, 30)
    program = compile_program(wf.ir.trace(mlp, *map(wf.tensor, (x, first, second))))
    assert [call.name for call in program.plan.launches if "dot" in call.name] == ["dot+k0+dot+k1"]
    held = {variable.type.shape for call in program.plan.launches for variable in call.values}
    assert (500, 90) not in held
    wanted = np.maximum(product(np.maximum(product(x, first), 0), second), 0)
    close(program.run([x, first, second])[0], wanted, "float32", 40 * 90)


Pair = tuple[Callable[[wf.Tensor], wf.Tensor], Callable[[Array], Array]]
ACROSS: dict[str, Pair] = {
    "transposed": (lambda h: h + h.mT, lambda h: h + h.T),
    "turned over": (lambda h: wf.flip(h, axis=0) * 2, lambda h: h[::-1] * 2),
    "less a sum over rows": (lambda h: h - h.sum(axis=0), lambda h: h - h.sum(0)),
    "beside the next row": (lambda h: wf.exp(h)[1:] - h[:-1], lambda h: np.exp(h)[1:] - h[:-1]),
    "padded": (
        lambda h: wf.pad(h, ((1, 0), (0, 2))) * 3,
        lambda h: np.pad(h, ((1, 0), (0, 2))) * 3,
    ),
}


@pytest.mark.parametrize("way", ACROSS)
def test_what_looks_across_rows_is_right_in_a_chain_or_out_of_it(way: str) -> None:
    compute, wanted = ACROSS[way]
    x, w = drawn(23, 80, 20), drawn(24, 20, 80) * np.float32(0.1)
    found = wf.jit(lambda x, w: compute(x @ w))(wf.tensor(x), wf.tensor(w)).numpy()
    close(found, wanted(product(x, w)), "float32", 20 * 80)


def test_two_products_read_by_one_kernel() -> None:
    x, w = drawn(30, 90, 20), drawn(31, 20, 90)
    found = wf.jit(lambda x, w: x @ w + w.mT @ x.mT)(wf.tensor(x), wf.tensor(w)).numpy()
    close(found, product(x, w) + product(w.T, x.T), "float32", 20)


def test_what_makes_the_left_operand_is_the_start_of_a_chain() -> None:
    def gated(x: wf.Tensor, y: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.relu((wf.exp(x) * y) @ w)

    x, y, w = drawn(32, 129, 33), drawn(33, 129, 33), drawn(34, 33, 65)
    assert names(gated, x, y, w) == [*PACKING, "k0+dot+k1"]
    wanted = np.maximum(product(np.exp(x) * y, w), 0)
    close(wf.jit(gated)(*map(wf.tensor, (x, y, w))).numpy(), wanted, "float32", 33 * 20)


def test_a_training_step_has_the_same_bits_on_any_number_of_threads() -> None:
    def step(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> tuple[wf.Tensor, ...]:
        def loss(w: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
            return (wf.softmax(wf.gelu(x @ w) @ v) ** 2).sum()

        gw, gv = wf.grad(loss, argnums=(0, 1))(w, v)
        return w - 0.1 * gw, v - 0.1 * gv

    shapes = [(300, 65), (65, 129), (129, 70)]
    # small enough that no row of the softmax hangs on rounding, whatever the order of sums
    given = [wf.tensor(drawn(25 + i, *shape) * 0.3) for i, shape in enumerate(shapes)]
    compiled = wf.jit(step)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append([each.numpy().tobytes() for each in compiled(*given)])
    assert results[0] == results[1] == results[2]
    for found, wanted in zip(compiled(*given), step(*given), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_short_floats_are_summed_in_float32_and_rounded_once() -> None:
    ones = wf.ones((64, 4096), dtype="bfloat16")
    assert (wf.jit(lambda a, b: a @ b.mT)(ones, ones).numpy().astype(np.float32) == 4096).all()


def test_a_product_with_a_vector_has_a_kernel_of_its_own() -> None:
    x, w = drawn(40, 1, 300), drawn(41, 300, 70)
    program = compile_program(wf.ir.trace(wf.matmul, wf.tensor(x), wf.tensor(w)))
    assert [call.name for call in program.plan.launches] == ["sums"]
    assert not program.calls_blas
    close(program.run([x, w])[0], product(x, w), "float32", 300)


@pytest.mark.parametrize(
    ("rows", "terms", "chunks"),
    [
        (255, 256, 1),  # below the bytes that threads share
        (256, 256, 2),
        (257, 256, 3),
        (768, 256, 6),
        (2044, 256, 16),
        (4096, 256, 16),  # more bytes make no more chunks
        (8, 65_536, 2),  # a row of more bytes than a chunk: a group of rows
    ],
)
def test_a_matrix_that_meets_a_vector_is_cut_by_its_bytes(
    rows: int, terms: int, chunks: int
) -> None:
    x, w = drawn(43, 1, terms), drawn(44, rows, terms)
    program = compile_program(
        wf.ir.trace(lambda x, w: x @ w.mT, *map(wf.tensor, (x, w))),
    )
    (launch,) = program.plan.launches
    assert launch.name == "dots"
    assert -(-launch.extent({}) // launch.grain({})) == chunks
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(program.run([x, w])[0])
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    close(found[0], product(x, w.T), "float32", terms)


@pytest.mark.parametrize("columns", [255, 256, 257, 1100])
def test_columns_that_meet_a_vector_have_the_same_bits_in_any_chunks(columns: int) -> None:
    x, w = drawn(45, 1, 256), drawn(46, 256, columns)
    multiply, found = wf.jit(wf.matmul), []
    for count in (1, 2, 3):
        with threads(count):
            found.append(multiply(wf.tensor(x), wf.tensor(w)).numpy())
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    close(found[0], product(x, w), "float32", 256)


def test_two_vectors_are_multiplied_with_several_sums() -> None:
    generator = np.random.default_rng(42)
    multiply = wf.jit(wf.matmul)
    for size in (1, 7, 2048, 16_000):
        a, b = generator.uniform(0, 1, (2, size)).astype(np.float32)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        found = float(multiply(wf.tensor(a), wf.tensor(b)))
        assert abs(found - exact) <= 4e-7 * exact


@pytest.mark.parametrize("size", [65, 96, 128, 300])
def test_a_value_is_multiplied_with_itself_as_a_whole(size: int) -> None:
    def square(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        made, gram = wf.tanh(x), x @ x.mT
        return made @ made, (gram @ gram) @ x

    x = drawn(50, size, size) / np.float32(size)
    made, gram = np.tanh(x.astype(np.float64)), product(x, x.T)
    first, second = wf.jit(square)(wf.tensor(x))
    close(first.numpy(), made @ made, "float32", size)
    close(second.numpy(), gram @ gram @ x, "float32", size)
