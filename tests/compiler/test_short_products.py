"""Products of short elements: bfloat16 in sums of float32, 8-bit integers in sums of int32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products import low_precision
from weft.compiler.targets.cpu.products.dot_packing import has_instruction
from weft.compiler.targets.cpu.target import compile_program

Array = np.ndarray[Any, Any]
SIZES = (2, 3, 5, 7, 16, 17, 31, 33, 63, 65, 129, 200)
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda a, b: a @ b,
    "left": lambda a, b: a.mT @ b,
    "right": lambda a, b: a @ b.mT,
    "both": lambda a, b: a.mT @ b.mT,
}


DIGITS = {"bfloat16": 8, "float16": 11}


def drawn(seed: int, *shape: int, dtype: str = "bfloat16") -> Array:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return np.array(wf.tensor(values).astype(dtype).numpy())


def integers(seed: int, dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def lying(form: str, a: Array, b: Array) -> tuple[wf.Tensor, wf.Tensor]:
    """The operands as a form takes them."""
    left = np.swapaxes(a, -1, -2) if form in ("left", "both") else a
    right = np.swapaxes(b, -1, -2) if form in ("right", "both") else b
    return wf.tensor(np.ascontiguousarray(left)), wf.tensor(np.ascontiguousarray(right))


def close(found: Array, a: Array, b: Array) -> None:
    """One rounding to 16 bits, and the roundings of sums in float32."""
    wide = a.astype(np.float64), b.astype(np.float64)
    exact, size = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    bound = 2.0 ** -DIGITS[a.dtype.name] * np.abs(exact) + a.shape[-1] * 2.0**-23 * size + 1e-30
    assert found.dtype == a.dtype
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all()


def names(f: Callable[..., Any], *given: Any) -> list[str]:
    return [call.name for call in compile_program(wf.ir.trace(f, *given)).plan.launches]


def has(dtype: str) -> bool:
    one = wf.ir.trace(lambda x: x @ x, wf.spec(dtype, (2, 2))).nodes[0]
    return low_precision.words_for(one.operands[0], one.operands[1], host()) is not None


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("terms", [1, 2])
def test_products_of_short_floats_are_rounded_once(
    form: str, dtype: str, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With words of one term, and of two where the machine multiplies such."""
    able = has_instruction
    fewer = lambda w, m: w.terms <= terms and able(w, m)  # noqa: E731
    monkeypatch.setattr(low_precision, "has_instruction", fewer)
    rng = np.random.default_rng(3)
    for number in range(16):
        m, n, k = (int(rng.choice((1, *SIZES))) for _ in range(3))
        stack = (3,) if number % 4 == 0 else ()
        a = drawn(number, *stack, m, k, dtype=dtype)
        b = drawn(number + 50, *stack, k, n, dtype=dtype)
        given = lying(form, a, b)
        program = compile_program(wf.ir.trace(FORMS[form], *given))
        close(program.run([each.numpy() for each in given])[0], a, b)


def test_tiny_numbers_of_float16_are_not_lost() -> None:
    a, b = np.full((7, 32), 6e-8, np.float16), np.full((32, 65), 1024, np.float16)
    found = wf.jit(wf.matmul)(wf.tensor(a), wf.tensor(b)).numpy()
    close(found, a, b)
    assert (found > 1e-3).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(50, 66, 5001), (300, 70, 40), (40, 500, 4100)])
def test_long_sums_and_many_rows(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = drawn(1, m, k), drawn(2, k, n)
    for form, product in FORMS.items():
        close(wf.jit(product)(*lying(form, a, b)).numpy(), a, b)


def test_products_with_a_vector_and_of_axes_in_any_order() -> None:
    a, b = drawn(4, 4, 5, 6, 7), drawn(5, 7, 3, 5, 4)
    found = wf.jit(lambda a, b: wf.einsum("ijkl,lmji->km", a, b))(wf.tensor(a), wf.tensor(b))
    left = a.transpose(2, 0, 1, 3).reshape(6, 140)
    close(found.numpy(), left, b.transpose(3, 2, 0, 1).reshape(140, 3))
    for m, n in ((1, 65), (65, 1), (1, 1)):
        a, b = drawn(6, m, 33), drawn(7, 33, n)
        close(wf.jit(wf.matmul)(wf.tensor(a), wf.tensor(b)).numpy(), a, b)
        whole = integers(6, "int8", m, 33), integers(7, "int8", 33, n)
        found = wf.jit(lambda a, b: a.astype("int32") @ b.astype("int32"))(*map(wf.tensor, whole))
        assert (found.numpy() == whole[0].astype(np.int32) @ whole[1].astype(np.int32)).all()


def test_sizes_may_be_symbols_even_of_sums() -> None:
    step = wf.jit(lambda x, y: (x.mT @ y, y @ y.mT))
    for rows in (4, 7, 64, 65, 201):
        x, y = drawn(rows, rows, 40), drawn(rows + 1, rows, 66)
        first, second = (each.numpy() for each in step(wf.tensor(x), wf.tensor(y)))
        close(first, np.ascontiguousarray(x.T), y)
        close(second, y, np.ascontiguousarray(y.T))
    assert len(step.compilations) <= 2


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (100, 64, 0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_empty_products(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    a, b = wf.zeros((m, k), dtype=dtype), wf.zeros((k, n), dtype=dtype)
    found = wf.jit(lambda a, b: a @ b + 1)(a, b).numpy()
    assert found.shape == (m, n)
    assert (found == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", FORMS)
def test_one_bad_number_reaches_its_row_or_column_only(bad: float, form: str) -> None:
    a, b = drawn(8, 70, 33), drawn(9, 33, 65)
    a[13, 32], b[32, 40] = bad, 2.0
    found = wf.jit(FORMS[form])(*lying(form, a, b)).numpy().astype(np.float32)
    assert not np.isfinite(found[13]).any()
    assert np.isfinite(np.delete(found, 13, axis=0)).all()
    assert np.isnan(found[13, 40]) if np.isnan(bad) else found[13, 40] == bad
    turned = wf.jit(FORMS[form])(*lying(form, np.ascontiguousarray(b.T), np.ascontiguousarray(a.T)))
    assert not np.isfinite(turned.numpy().astype(np.float32)[:, 13]).any()
    assert np.isfinite(np.delete(turned.numpy().astype(np.float32), 13, axis=1)).all()


def test_a_product_stays_rounded_where_it_is_widened_at_once() -> None:
    a, b = drawn(10, 65, 40), drawn(11, 40, 33)
    found = wf.jit(lambda a, b: (a @ b).astype("float32"))(wf.tensor(a), wf.tensor(b)).numpy()
    assert found.dtype == np.float32
    assert (found.astype(a.dtype).astype(np.float32) == found).all()
    close(found.astype(a.dtype), a, b)


def test_a_step_in_bfloat16_has_the_same_bits_on_any_number_of_threads() -> None:
    def step(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> Any:
        def loss(w: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
            half = [each.astype("bfloat16") for each in (x, w, v)]
            return ((wf.gelu(half[0] @ half[1]) @ half[2]).astype("float32") ** 2).mean()

        return wf.grad(loss, argnums=(0, 1))(w, v)

    shapes = [(301, 65), (65, 129), (129, 70)]
    given = [wf.tensor(drawn(20 + i, *s).astype(np.float32)) for i, s in enumerate(shapes)]
    compiled = wf.jit(step)
    results = same_result_for_all_threads(lambda: compiled(*given))
    for found, wanted in zip(results, step(*given), strict=True):
        size = float(np.abs(wanted.numpy()).max())
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0.05, atol=0.02 * size)


def test_machines_without_the_instruction_multiply_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(low_precision, "has_instruction", lambda words, machine: False)
    a, b = drawn(12, 65, 33), drawn(13, 33, 70)
    program = compile_program(wf.ir.trace(wf.matmul, wf.tensor(a), wf.tensor(b)))
    assert all(node.primitive is not low_precision.dot_wide for node in program.graph.nodes)
    close(program.run([a, b])[0], a, b)
    a, b = integers(1, "int8", 65, 33), integers(2, "int8", 33, 70)
    graph = wf.ir.trace(lambda a, b: a.astype("int32") @ b.astype("int32"), *map(wf.tensor, (a, b)))
    assert (compile_program(graph).run([a, b])[0] == a.astype(np.int32) @ b.astype(np.int32)).all()


@pytest.mark.skipif(not has("bfloat16"), reason="the machine has no dot instruction of bfloat16")
def test_operands_of_bfloat16_are_not_widened_in_memory() -> None:
    x, w = wf.zeros((256, 64), dtype="bfloat16"), wf.zeros((64, 64), dtype="bfloat16")
    assert names(lambda x, w: wf.relu(x @ w + 1), x, w) == ["pack", "dot+k0"]
    assert names(lambda x, w: wf.exp(x) @ w, x, w)[-1] == "k0+dot+k1"


# --- integers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("total", ["int32", "int64"])
def test_bytes_are_multiplied_exactly(form: str, left: str, total: str) -> None:
    rng = np.random.default_rng(5)
    compiled = wf.jit(lambda a, b: FORMS[form](a.astype(total), b.astype(total)))
    for number in range(10):
        m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
        stack = (2,) if number % 3 == 0 else ()
        a, b = integers(number, left, *stack, m, k), integers(number + 9, "int8", *stack, k, n)
        found = compiled(*lying(form, a, b)).numpy()
        assert found.dtype == np.dtype(total)
        assert (found == a.astype(np.int64) @ b.astype(np.int64)).all()


@pytest.mark.parametrize("value", [-128, 127])
def test_the_largest_bytes_in_long_sums(value: int) -> None:
    a, b = np.full((7, 5001), -128, np.int8), np.full((5001, 70), value, np.int8)
    found = wf.jit(lambda a, b: a.astype("int32") @ b.astype("int32"))(wf.tensor(a), wf.tensor(b))
    assert (found.numpy() == -128 * value * 5001).all()


@pytest.mark.slow
@pytest.mark.parametrize("left", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])
def test_sums_of_integers_wrap_as_those_of_numpy(left: str) -> None:
    for number, (m, n, k) in enumerate([(65, 33, 20), (2, 70, 7), (129, 3, 64), (64, 1, 9)]):
        a, b = integers(number, left, m, k), integers(number + 3, left, k, n)
        for form, product in FORMS.items():
            found = wf.jit(product)(*lying(form, a, b)).numpy()
            assert found.dtype == a.dtype
            assert (found == a @ b).all()


def test_unsigned_bytes_on_the_right_are_multiplied_too() -> None:
    for left in ("int8", "uint8"):
        a, b = integers(1, left, 65, 20), integers(2, "uint8", 20, 33)
        found = wf.jit(lambda a, b: a.astype("int32") @ b.astype("int32"))(*map(wf.tensor, (a, b)))
        assert (found.numpy() == a.astype(np.int32) @ b.astype(np.int32)).all()


@pytest.mark.skipif(not has("int8"), reason="the machine has no dot instruction of bytes")
def test_conversions_before_a_product_of_bytes_are_left_out() -> None:
    a, b = integers(1, "int8", 6, 10, 40), integers(2, "int8", 33, 40)

    def scaled(a: wf.Tensor, b: wf.Tensor) -> Any:
        wide = a.astype("int32").reshape(60, 40) @ b.astype("int32").mT
        return wide.astype("float32") * 0.5

    given = wf.tensor(a), wf.tensor(b)
    assert names(scaled, *given) == ["pack", "dot+k0"]
    wanted = a.reshape(60, 40).astype(np.int32) @ b.astype(np.int32).T
    assert (wf.jit(scaled)(*given).numpy() == wanted * np.float32(0.5)).all()
    constant = wf.tensor(b.astype(np.int32))
    assert names(lambda a: a.astype("int32").reshape(60, 40) @ constant.mT, given[0])[-1] == "dot"
    wide = wf.tensor(b.astype(np.int32) * 2)
    found = wf.jit(lambda a: a.astype("int32").reshape(60, 40) @ wide.mT)(given[0])
    assert (found.numpy() == wanted * 2).all()
