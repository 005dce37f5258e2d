"""Products with a vector: every form, size and dtype, the same bits on any threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.threads import threads

import weft as wf
from weft.compiler.targets.cpu.engine import call_kernel, emit_text, load_object
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products.gemv import LEAST, shape_of, source
from weft.compiler.targets.cpu.target import compile_program
from weft.core.dtypes import as_dtype

Array = np.ndarray[Any, Any]
SIZES = (0, 1, 3, 16, 17, 65, 300)


def drawn(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(found: Array, wanted: Array, terms: int) -> None:
    assert found.shape == wanted.shape
    error = np.finfo(found.dtype).eps * max(1, terms)
    np.testing.assert_allclose(found, wanted, rtol=4 * error, atol=4 * error)


def wide(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


FORMS: dict[str, tuple[Callable[[wf.Tensor, wf.Tensor], wf.Tensor], str]] = {
    "x Wᵀ": (lambda x, w: x @ w.mT, "dots"),
    "W xᵀ": (lambda x, w: w @ x.mT, "dots"),
    "x W": (lambda x, w: x @ w, "sums"),
    "Wᵀ xᵀ": (lambda x, w: w.mT @ x.mT, "sums"),
}


def operands(
    form: str, stack: tuple[int, ...], count: int, outputs: int, terms: int
) -> list[Array]:
    """Some vectors and a matrix, as the form takes them."""
    shape = (outputs, terms) if FORMS[form][1] == "dots" else (terms, outputs)
    return [drawn(1, *stack, count, terms), drawn(2, *stack, *shape)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_sizes_are_right(form: str, dtype: str) -> None:
    function, name = FORMS[form]
    for outputs in SIZES:
        for terms in (0, 1, 17, 143):
            given = [a.astype(dtype) for a in operands(form, (), 1, outputs, terms)]
            program = compile_program(wf.ir.trace(function, *map(wf.tensor, given)))
            x, w = given
            wanted = wide(x, w.T) if name == "dots" else wide(x, w)
            wanted = wanted if form.startswith("x") else wanted.T
            if outputs > 1 and terms > 1:
                assert program.plan.launches[-1].name == name
            close(program.run(given)[0], wanted, terms)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("form", ["x Wᵀ", "W xᵀ"])
@pytest.mark.parametrize("stack", [(), (3,), (2, 2)])
def test_stacks_of_vectors_and_no_others(form: str, count: int, stack: tuple[int, ...]) -> None:
    function, _ = FORMS[form]
    given = operands(form, stack, count, 37, 70)
    program = compile_program(wf.ir.trace(function, *map(wf.tensor, given)))
    assert ("dots" in [call.name for call in program.plan.launches]) == (count == 1)
    x, w = given
    wanted = wide(x, np.swapaxes(w, -1, -2))
    close(program.run(given)[0], wanted if form == "x Wᵀ" else np.swapaxes(wanted, -1, -2), 70)


@pytest.mark.parametrize("form", FORMS)
def test_a_large_product_has_the_same_bits_on_any_number_of_threads(form: str) -> None:
    function, name = FORMS[form]
    outputs, terms = 1030, 517
    given = operands(form, (), 1, outputs, terms)
    assert given[1].nbytes > LEAST
    program = compile_program(wf.ir.trace(function, *map(wf.tensor, given)))
    call = program.plan.launches[-1]
    assert call.extent({}) > call.grain({})
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(program.run(given)[0])
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    x, w = given
    wanted = wide(x, w.T if name == "dots" else w)
    close(found[0], wanted if form.startswith("x") else wanted.T, terms)


@pytest.mark.parametrize("form", FORMS)
def test_a_stack_is_shared_among_threads(form: str) -> None:
    function, name = FORMS[form]
    given = operands(form, (40,), 1, 70, 66)
    program = compile_program(wf.ir.trace(function, *map(wf.tensor, given)))
    call = program.plan.launches[-1]
    assert call.extent({}) > call.grain({})
    x, w = given
    wanted = wide(x, np.swapaxes(w, -1, -2) if name == "dots" else w)
    wanted = wanted if form.startswith("x") else np.swapaxes(wanted, -1, -2)
    close(program.run(given)[0], wanted, 66)


@pytest.mark.parametrize("form", FORMS)
def test_a_small_product_stays_on_its_thread(form: str) -> None:
    given = operands(form, (), 1, 128, 128)
    call = compile_program(wf.ir.trace(FORMS[form][0], *map(wf.tensor, given))).plan.launches[-1]
    assert call.extent({}) <= call.grain({})


@pytest.mark.parametrize("form", FORMS)
def test_infinities_and_nan_stay_where_they_are(form: str) -> None:
    function, name = FORMS[form]
    x, w = operands(form, (), 1, 21, 35)
    matrix = w if name == "dots" else w.T
    matrix[3, 34], matrix[5, 0], matrix[20, 7] = np.inf, np.nan, -np.inf
    found = wf.jit(function)(wf.tensor(x), wf.tensor(w)).numpy().ravel()
    assert np.isinf(found[[3, 20]]).all()
    assert np.isnan(found[5])
    assert np.isfinite(np.delete(found, [3, 5, 20])).all()
    x[0, 2] = np.inf
    found = wf.jit(function)(wf.tensor(x), wf.tensor(w)).numpy()
    assert not np.isfinite(found).any()


def test_sizes_that_are_not_known() -> None:
    f = wf.jit(lambda x, w: x @ w.mT)
    g = wf.jit(lambda x, w: x @ w)
    for outputs, terms in ((5, 7), (9, 11), (300, 900), (1, 5), (4, 0)):
        x, w = drawn(5, 1, terms), drawn(6, outputs, terms)
        close(f(wf.tensor(x), wf.tensor(w)).numpy(), wide(x, w.T), terms)
        close(g(wf.tensor(x), wf.tensor(w.T.copy())).numpy(), wide(x, w.T), terms)


@pytest.mark.parametrize("width", [1, 4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fused", [True, False])
def test_machines_with_other_vectors(width: int, dtype: str, fused: bool) -> None:
    if width > host().width:
        pytest.skip("this machine has narrower vectors")
    shape = shape_of(as_dtype(dtype), host(width=width))
    kind = type(shape)(shape.dtype, shape.lanes, shape.rows, shape.terms, fused and shape.fused)
    places = load_object(emit_text(source(kind)), ["dots", "sums"])
    for outputs, terms in ((1, 1), (7, 33), (37, 70)):
        x, w = drawn(7, terms, dtype=dtype), drawn(8, outputs, terms, dtype=dtype)
        result = np.full(outputs, np.nan, dtype)
        call_kernel(places["dots"], [w, x, result], [terms, outputs], 0, outputs)
        close(result, wide(w, x), terms)
        turned = np.ascontiguousarray(w.T)
        result = np.full(outputs, np.nan, dtype)
        call_kernel(places["sums"], [turned, x, result], [terms, outputs, 16], 0, outputs)
        close(result, wide(w, x), terms)


def test_a_part_of_a_result_has_the_bits_of_the_whole() -> None:
    shape = shape_of(as_dtype("float32"), host())
    places = load_object(emit_text(source(shape)), ["dots", "sums"])
    outputs, terms = 91, 203
    x, w = drawn(9, terms), drawn(10, outputs, terms)
    whole, parts = np.zeros(outputs, np.float32), np.zeros(outputs, np.float32)
    numbers = [terms, outputs]
    call_kernel(places["dots"], [w, x, whole], numbers, 0, outputs)
    for begin in range(0, outputs, 5):
        call_kernel(places["dots"], [w, x, parts], numbers, begin, min(outputs, begin + 5))
    assert whole.tobytes() == parts.tobytes()


def test_steps_of_a_loop_multiply_by_a_matrix_that_stays() -> None:
    def run(h: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        def step(h: wf.Tensor, _: Any) -> tuple[wf.Tensor, wf.Tensor]:
            return wf.tanh(h @ w.mT), h.sum()

        return wf.scan(step, h, None, length=5)[0]

    h, w = drawn(11, 1, 40), drawn(12, 40, 40) / 7
    wanted = h.astype(np.float64)
    for _ in range(5):
        wanted = np.tanh(wide(wanted, w.T))
    close(wf.jit(run)(wf.tensor(h), wf.tensor(w)).numpy(), wanted, 200)


@pytest.mark.parametrize("form", ["x Wᵀ", "x W"])
@pytest.mark.parametrize("outputs", [1, 17, 300, 1100])
def test_bias_activation_and_residual_follow_in_a_chain(form: str, outputs: int) -> None:
    function, name = FORMS[form]

    def layer(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, r: wf.Tensor) -> wf.Tensor:
        product: wf.Tensor = function(x, w)
        found: wf.Tensor = wf.tanh(product + b) + r
        return found

    x, w = operands(form, (), 1, outputs, 300)
    b, r = drawn(3, outputs), drawn(4, 1, outputs)
    given = [wf.tensor(each) for each in (x, w, b, r)]
    if outputs > 1:
        assert [
            call.name for call in compile_program(wf.ir.trace(layer, *given)).plan.launches
        ] == [f"{name}+k0"]
    compiled, found = wf.jit(layer), []
    for count in (1, 2, 3):
        with threads(count):
            found.append(compiled(*given).numpy())
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    wanted = r + np.tanh(wide(x, w.T if name == "dots" else w) + b)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-4)


def test_a_matrix_that_is_computed_is_multiplied_row_by_row() -> None:
    w, x = drawn(5, 300, 65), drawn(6, 65)
    program = compile_program(wf.ir.trace(lambda w, x: wf.exp(w) @ x, wf.tensor(w), wf.tensor(x)))
    assert [call.name for call in program.plan.launches] == ["k0+dots"]
    close(program.run([w, x])[0], wide(np.exp(w), x), 65 * 40)
