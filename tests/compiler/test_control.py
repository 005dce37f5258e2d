"""Loops and choices are compiled whole: the same results as eagerly, and no Python in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.quiet import peak_bytes
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.targets.cpu.target import compile_program
from weft.core import trees
from weft.ir.dispatch import apply_multiple
from weft.ir.tensor import Tensor

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return wf.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def agree(f: Callable[..., Any], *args: Any, by_reference: bool = False) -> wf.Explanation:
    """Compile and compare with what is computed eagerly."""
    fast = wf.jit(f)
    report = fast.explain(*args)
    assert by_reference or "by reference" not in str(report)
    found, expected = trees.leaves(fast(*args)), trees.leaves(f(*args))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)
    return report


# --- scans -------------------------------------------------------------------------------------


def recurrence(w: Tensor, h: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = wf.tanh(h @ w + x)
        return h, h * 2

    return wf.scan(step, h, xs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_a_scan_of_any_length_in_both_directions(length: int, reverse: bool) -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda h, x: (wf.sin(h @ w + x), h - x), h, xs, reverse=reverse)

    agree(f, numbers(4, 4), numbers(3, 4), numbers(length, 3, 4))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_gradients_of_a_scan_are_scans(length: int) -> None:
    def loss(w: Tensor, h: Tensor, xs: Tensor) -> Tensor:
        last, ys = recurrence(w, h, xs)
        return (last * last).sum() + (ys * xs).sum()

    arguments = numbers(4, 4), numbers(3, 4, seed=1), numbers(length, 3, 4, seed=2)
    agree(wf.grad(loss, argnums=(0, 1, 2)), *arguments)


def test_second_derivatives_and_tangents_of_a_scan() -> None:
    def total(x: Tensor) -> Tensor:
        return wf.scan(lambda c, y: (wf.sin(c * y), c), x[0], x)[0]

    agree(wf.grad(lambda x: wf.grad(total)(x).sum()), numbers(5))
    agree(lambda x: wf.jvp(total, (x,), (wf.ones(5),)), numbers(5))


def test_a_scan_over_a_batch() -> None:
    agree(wf.vmap(recurrence, in_axes=(None, 0, 1)), numbers(4, 4), numbers(2, 3, 4),
          numbers(5, 2, 3, 4))  # fmt: skip
    agree(wf.vmap(wf.grad(lambda w, h, xs: recurrence(w, h, xs)[1].sum()), in_axes=(None, 0, None)),
          numbers(4, 4), numbers(2, 3, 4), numbers(5, 3, 4))  # fmt: skip


def test_carries_of_whole_numbers_and_truth_values() -> None:
    def f(xs: Tensor) -> Any:
        def step(carry: Any, x: Tensor) -> Any:
            count, seen, small = carry
            positive = x > 0
            return (
                count + positive.astype("int64"),
                wf.logical_or(seen, positive),
                small + 1,
            ), seen

        start = wf.tensor(0), wf.tensor(False), wf.tensor(250, dtype="uint8")
        return wf.scan(step, start, xs)

    agree(f, numbers(9))


def test_carries_that_are_swapped_kept_or_read_before_they_change() -> None:
    def f(a: Tensor, b: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda c, x: ((c[1], c[0], c[2], c[0]), (c[3], x)), (a, b, a + b, b), xs)

    for length in (1, 2, 3):
        agree(f, numbers(3), numbers(3, seed=1), numbers(length, 3))


def test_outputs_that_are_inputs_constants_equal_or_reshaped() -> None:
    def f(w: Tensor, xs: Tensor) -> Any:
        def step(c: Tensor, x: Tensor) -> Any:
            y = wf.exp(x)
            return c + y, (x, w, y, y, y.reshape(2, 3), x.reshape(6), wf.ones(2), c)

        return wf.scan(step, xs[0] * 0, xs)

    agree(f, numbers(4), numbers(5, 3, 2))


def test_results_that_nobody_uses() -> None:
    agree(lambda h, xs: wf.scan(lambda h, x: (wf.sin(h + x), wf.cos(h)), h, xs)[0],
          numbers(3), numbers(4, 3))  # fmt: skip
    agree(lambda h, xs: wf.scan(lambda h, x: (wf.sin(h + x), wf.cos(h)), h, xs)[1],
          numbers(3), numbers(4, 3))  # fmt: skip


def test_a_scan_without_a_carry_or_without_anything_to_go_over() -> None:
    agree(lambda xs: wf.map(lambda x: wf.softmax(x @ x.T), xs), numbers(4, 3, 3))
    agree(lambda x: wf.scan(lambda c, _: (c * 2, c), x, length=6), numbers(3))
    agree(lambda x: wf.fori_loop(0, 5, lambda i, x: x * 1.5 + i, x), numbers(3))


def test_complex_numbers_and_half_precision_are_carried() -> None:
    agree(lambda x, xs: wf.scan(lambda c, y: (c * y, c), x, xs),
          wf.ones(2, dtype="complex64") * 1j, numbers(3, 2).astype("complex64"),
          by_reference=True)  # fmt: skip
    agree(lambda x, xs: wf.scan(lambda c, y: (c * y, c), x, xs),
          wf.ones(2, dtype="bfloat16"), numbers(3, 2).astype("bfloat16"))  # fmt: skip


# --- other loops and choices -------------------------------------------------------------------


def collatz(n: Tensor) -> Tensor:
    def step(state: Any) -> Any:
        n, count = state
        return wf.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return wf.while_loop(lambda s: s[0] != 1, step, (n, wf.tensor(0)))[1]


@pytest.mark.parametrize("n", [1, 2, 3, 27])
def test_a_while_loop_of_any_number_of_steps(n: int) -> None:
    agree(collatz, wf.tensor(n))


def test_a_while_loop_over_a_batch_with_a_bound_and_its_gradient() -> None:
    agree(wf.vmap(collatz), wf.tensor([1, 27, 6, 7]))

    def grown(w: Tensor, x: Tensor) -> Tensor:
        return wf.while_loop(
            lambda x: (x * x).sum() < 10.0, lambda x: wf.sin(x) + x * w, x, max_steps=6
        ).sum()

    agree(grown, wf.tensor(1.5), numbers(3))
    agree(wf.grad(grown, argnums=(0, 1)), wf.tensor(1.5), numbers(3))
    agree(wf.vmap(wf.grad(grown), in_axes=(0, None)), wf.tensor([1.5, 0.2, 3.0]), numbers(3))


def test_a_condition_that_is_a_carry_or_a_constant() -> None:
    def count(n: Tensor) -> Any:
        return wf.while_loop(lambda s: s[0], lambda s: (s[1] < 5, s[1] + 1), (n > 0, n))

    agree(count, wf.tensor(1))
    agree(count, wf.tensor(0))
    agree(lambda x: wf.while_loop(lambda x: wf.tensor(False), lambda x: x + 1, x), numbers(2))
    agree(lambda x: wf.while_loop(lambda x: wf.tensor(True), lambda x: x + 1, x, max_steps=3),
          numbers(2))  # fmt: skip


def test_bounds_of_a_loop_that_are_tensors() -> None:
    agree(lambda n, x: wf.fori_loop(0, n, lambda i, x: x * 0.5 + i, x), wf.tensor(4), numbers(3))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32",
                                   "int64", "uint64"])  # fmt: skip
def test_a_choice_by_an_index_of_any_dtype(dtype: str) -> None:
    branches = [wf.sin, lambda x: x, lambda x: wf.full((2, 3), 2.0), lambda x: wf.exp(x @ x.T) @ x]
    branches = [lambda x, f=f: f(x).sum(axis=0) for f in branches]
    for number in range(len(branches)):
        index = wf.tensor(number, dtype=dtype)
        agree(lambda i, x: wf.switch(i, branches, x), index, numbers(2, 3))


def test_choices_by_row_and_their_gradients() -> None:
    def chosen(p: Tensor, x: Tensor) -> Tensor:
        return wf.cond(p, lambda x: wf.log(x), lambda x: x * x, x)

    p, x = wf.tensor([True, False, True]), wf.tensor([[1.0, 2.0], [-1.0, -2.0], [3.0, 0.5]])
    agree(wf.vmap(chosen), p, x)
    agree(wf.grad(lambda x: wf.vmap(chosen)(p, x).sum()), x)
    agree(wf.grad(lambda x: chosen(p[0], x).sum()), x * x)
    agree(wf.vmap(wf.vmap(chosen)), wf.tensor([[True, False], [False, True], [True, True]]), x * x)


# --- inside each other -------------------------------------------------------------------------


@pytest.mark.slow
def test_loops_and_choices_inside_each_other() -> None:
    def inner(x: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda c, y: (c * 0.5 + wf.sin(y), c), x, xs)

    def f(x: Tensor, xs: Tensor) -> Any:
        def step(c: Tensor, y: Tensor) -> Any:
            c, ys = inner(c, xs + y)
            c = wf.cond(c.sum() > 0, lambda c: inner(c, xs)[0], lambda c: c - 1, c)
            c = wf.while_loop(lambda c: (c * c).sum() > 2.0, lambda c: c * 0.7, c, max_steps=20)
            return c, ys.sum(axis=0)

        return wf.scan(step, x, xs)

    agree(f, numbers(3), numbers(4, 3, seed=3))
    agree(wf.grad(lambda x, xs: f(x, xs)[0].sum(), argnums=(0, 1)), numbers(3), numbers(4, 3))


def test_random_numbers_are_drawn_in_a_loop() -> None:
    def f(x: Tensor) -> Any:
        return wf.scan(lambda c, _: (c + wf.random.normal((3,)), None), x, length=4)[0]

    wf.random.seed(5)
    expected = [f(wf.zeros(3)).tolist() for _ in range(2)]
    wf.random.seed(5)
    fast = wf.jit(f)
    found = [fast(wf.zeros(3)).tolist() for _ in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# --- sizes, threads, memory --------------------------------------------------------------------


def test_a_second_length_is_the_last_to_be_compiled() -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Tensor:
        last, ys = recurrence(w, h, xs)
        return (ys * ys).sum() + last.sum()

    step = wf.jit(wf.grad(f, argnums=(0, 2)))
    for length in (3, 5, 8, 2, 30):
        arguments = numbers(4, 4), numbers(3, 4), numbers(length, 3, 4)
        expected = wf.grad(f, argnums=(0, 2))(*arguments)
        for a, b in zip(step(*arguments), expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    assert len(step.compilations) == 2
    assert "by reference" not in str(step.explain(*arguments))


def test_sizes_inside_a_loop_may_be_symbols() -> None:
    step = wf.jit(lambda h, xs: wf.scan(lambda h, x: (wf.softmax(h + x), h @ x), h, xs))
    for width in (3, 5, 70):
        h, xs = numbers(width), numbers(4, width)
        found = step(h, xs)
        expected = wf.scan(lambda h, x: (wf.softmax(h + x), h @ x), h, xs)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)
    assert len(step.compilations) == 2


def test_the_same_bits_for_any_number_of_threads() -> None:
    gradient = wf.grad(lambda *a: (recurrence(*a)[1] ** 2).sum(), argnums=(0, 2))
    arguments = [numbers(64, 64), numbers(200, 64), numbers(6, 200, 64)]
    program = compile_program(wf.ir.trace(gradient, *arguments))
    same_result_for_all_threads(lambda: program.run([x.numpy() for x in arguments]))


def test_more_values_than_a_kernel_has() -> None:
    def f(xs: list[Tensor]) -> Any:
        return wf.fori_loop(0, 3, lambda i, xs: [*xs[1:], xs[0] * 2], xs)

    agree(f, [numbers(2, seed=i) for i in range(300)])


# --- looking inside ----------------------------------------------------------------------------


def lstm(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The mean loss of a small language model over [time, batch] tokens."""
    width = weights["recurrent"].shape[0]

    def step(carry: Any, x: Tensor) -> Any:
        hidden, cell = carry
        gates = x @ weights["input"] + hidden @ weights["recurrent"] + weights["bias"]
        i, f, g, o = wf.split(gates, 4, axis=-1)
        cell = wf.sigmoid(f) * cell + wf.sigmoid(i) * wf.tanh(g)
        hidden = wf.sigmoid(o) * wf.tanh(cell)
        return (hidden, cell), hidden

    start = wf.zeros((tokens.shape[1], width))
    _, hidden = wf.scan(step, (start, start), wf.take(weights["embedding"], tokens[:-1], axis=0))
    scores = wf.log_softmax(hidden @ weights["head"])
    return -wf.take_along_axis(scores, tokens[1:][..., None], axis=-1).mean()


def lstm_weights(vocabulary: int, width: int) -> dict[str, Tensor]:
    shapes = {
        "embedding": (vocabulary, width), "input": (width, 4 * width),
        "recurrent": (width, 4 * width), "bias": (4 * width,), "head": (width, vocabulary),
    }  # fmt: skip
    made = {name: numbers(*s, seed=i) * 0.3 for i, (name, s) in enumerate(shapes.items())}
    return {name: x.detach().requires_grad_() for name, x in made.items()}


def train(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    loss = lstm(weights, tokens)
    loss.backward()
    with wf.no_grad():
        for weight in weights.values():
            weight -= 0.5 * weight.grad
            weight.grad = None
    return loss


@pytest.mark.slow
def test_training_a_recurrent_network_agrees_with_doing_it_eagerly() -> None:
    tokens = wf.asarray(np.random.default_rng(1).integers(0, 11, (8, 3)))
    eager, compiled = lstm_weights(11, 6), lstm_weights(11, 6)
    fast = wf.jit(train)
    for _ in range(5):
        expected, found = train(eager, tokens), fast(compiled, tokens)
        np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-5)
    for name, weight in eager.items():
        np.testing.assert_allclose(compiled[name].detach().numpy(), weight.detach().numpy(),
                                   rtol=1e-3, atol=1e-5)  # fmt: skip
    report = fast.explain(compiled, tokens)
    assert report.references == []
    assert "by reference" not in str(report)


def test_what_a_loop_does_is_listed_and_counted() -> None:
    report = agree(recurrence, numbers(8, 8), numbers(3, 8), numbers(5, 3, 8))
    (loop,) = report.kernels
    assert (loop.kind, loop.space) == ("loop", "5 steps")
    label, kernels = loop.sections[0]
    assert label == "body"
    assert any("dot" in kernel.primitives for kernel in kernels)
    products = 2 * 3 * 8 * 8
    assert loop.flops == 5 * (products + 3 * 24)  # and an addition, tanh, and a multiplication
    assert report.flops == loop.flops
    lines = str(report).splitlines()
    assert "    body" in lines
    assert any(line.startswith("      ") and "tanh" in line for line in lines)
    kinds = agree(lambda p, x: wf.cond(p, wf.sin, lambda x: x, x), wf.tensor(True), numbers(3))
    assert [k.kind for k in kinds.kernels if k.kind != "kernel"] == ["choice"]
    text = str(kinds)
    assert "one of 2 branches" in text
    assert "branch 0: nothing to compute" in text


def test_a_call_by_reference_inside_a_loop_is_named() -> None:
    def f(xs: Tensor) -> Any:
        return wf.map(lambda x: wf.nextafter(x @ x.T, wf.zeros_like(x)), xs)

    report = agree(f, numbers(2, 3, 3), by_reference=True)
    (call,) = report.references
    assert call.primitives == ["nextafter"]
    assert "by reference: " + call.reason in str(report)


@pytest.mark.skipif("WEFT_CHECK" in os.environ, reason="checks take memory of their own")
def test_the_memory_of_a_loop_is_known_before() -> None:
    def f(w: Tensor, h: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda h, x: (wf.tanh(wf.exp(h @ w) @ w + x), None), h, xs)[0]

    arguments = [numbers(300, 300), numbers(400, 300), numbers(5, 400, 300)]
    fast = wf.jit(f)
    report, program = fast.memory(*arguments), fast.program(*arguments)
    assert any(value.name == "inside scan" for value in report.values)
    arrays = [x.numpy() for x in arguments]

    def run() -> list[np.ndarray]:
        program.release()
        return program.run(arrays)

    assert run()
    assert report.allocated == pytest.approx(peak_bytes(run), rel=0.02)


def test_loops_are_timed_and_shown() -> None:
    fast = wf.jit(recurrence)
    arguments = numbers(4, 4), numbers(3, 4), numbers(5, 3, 4)
    fast(*arguments)
    with wf.timings() as calls:
        fast(*arguments)
    assert [call.kernel.kind for call in calls] == ["loop"]
    assert "tanh" in fast.loops(*arguments)
    assert ".globl" in fast.assembly(*arguments)


# --- errors and effects ------------------------------------------------------------------------


def test_an_index_out_of_range_in_a_loop_is_named_as_eagerly() -> None:
    def f(table: Tensor, xs: Tensor) -> Any:
        return wf.scan(lambda c, i: (c + wf.take(table, i, axis=0), None), table[0] * 0, xs)[0]

    fast, table = wf.jit(f), numbers(4, 3)
    with pytest.raises(wf.WeftError) as eager:
        f(table, wf.tensor([1, 7, 2]))
    with pytest.raises(wf.WeftError) as compiled:
        fast(table, wf.tensor([1, 7, 2]))
    assert type(compiled.value) is type(eager.value)
    assert compiled.value.problem == eager.value.problem
    np.testing.assert_allclose(
        fast(table, wf.tensor([1, 3, 2])).numpy(), table.numpy()[[1, 3, 2]].sum(0), rtol=1e-5
    )


def test_what_is_made_of_constants_alone_is_made_once() -> None:
    def f(w: Tensor, table: Tensor, h: Tensor, xs: Tensor) -> Any:
        def step(h: Tensor, i: Tensor) -> Any:
            h = wf.tanh(wf.einsum("bi,oi->bo", h, w))
            return h + wf.take(table, i, axis=0), None

        return wf.scan(step, h, xs)[0]

    arguments = numbers(40, 40), numbers(4, 40), numbers(3, 40)
    agree(f, *arguments, wf.tensor([1, 3, 0]))
    program = compile_program(wf.ir.trace(f, *arguments, wf.tensor([1, 3, 0])))
    (body,) = program.plan.inner_plans
    assert [call.name for call in body.launches[: body.once]] == ["pack"]
    with pytest.raises(wf.WeftError) as eager:
        f(*arguments, wf.tensor([1, 9, 0]))
    with pytest.raises(type(eager.value)) as compiled:
        program.run([*[x.numpy() for x in arguments], np.array([1, 9, 0])])
    assert compiled.value.problem == eager.value.problem


@pytest.mark.parametrize("rows", [0, 1])
def test_a_branch_that_is_not_there_is_named_as_eagerly(rows: int) -> None:
    primitive = wf.ir.PRIMITIVES["switch"]
    sample = primitive.samples()[3 if rows else 0]

    def f(*operands: Tensor) -> Any:
        return apply_multiple(primitive, *operands, **sample.params)

    operands = [wf.asarray(x) for x in sample.operands]
    for wrong in (operands[0] + 7, operands[0] - 7):
        with pytest.raises(wf.BoundsError, match="no branch has this index"):
            wf.jit(f)(wrong, *operands[1:])


def test_an_error_of_a_reference_in_a_loop_reaches_the_caller() -> None:
    def f(xs: Tensor) -> Any:
        return wf.map(lambda x: wf.cond(x.sum() > 0, wf.linalg.inv, lambda x: x, x), xs)

    fast = wf.jit(f)
    good = np.stack([np.eye(2), -np.eye(2), 2 * np.eye(2)]).astype(np.float32)
    np.testing.assert_allclose(fast(wf.asarray(good)).numpy()[2], np.eye(2) / 2)
    with pytest.raises(wf.ArgumentError, match="singular"):
        fast(wf.asarray(np.ones((3, 2, 2), np.float32)))
    np.testing.assert_allclose(fast(wf.asarray(good)).numpy()[1], -np.eye(2))


def test_prints_in_a_loop(capsys: pytest.CaptureFixture[str]) -> None:
    @wf.jit
    def f(xs: Tensor) -> Any:
        def step(c: Tensor, x: Tensor) -> Any:
            wf.debug.print("c = {:.1f}, x = {}", c, x)
            return c + x.sum(), None

        return wf.scan(step, 0.0, xs)[0]

    f(wf.tensor([[1.0, 2.0], [3.0, 4.0]]))
    f(wf.tensor([[1.0], [0.5]]))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "c = 0.0, x = [1., 2.]", "c = 3.0, x = [3., 4.]", "c = 0.0, x = [1.]", "c = 1.0, x = [0.5]",
    ]  # fmt: skip


def test_what_body_and_condition_prepare_once_lies_apart() -> None:
    v, w = numbers(300, 300) / 17, numbers(300, 300, seed=1) / 17  # each is packed before the loop

    def f(x: Tensor) -> Any:
        return wf.while_loop(
            lambda c: (c[0] < 3) & (wf.exp(c[1] @ v).sum() > 0.0),
            lambda c: (c[0] + 1, wf.tanh(c[1] @ w) * 0.5),
            (wf.tensor(0), x),
        )

    agree(f, numbers(128, 300, seed=2))


def test_a_breakpoint_in_a_loop_may_call_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    @wf.jit
    def f(xs: Tensor) -> Any:
        def step(c: Tensor, x: Tensor) -> Any:
            wf.debug.breakpoint(c=c)
            return c + x, None

        return wf.scan(step, 0.0, xs)[0]

    def hook() -> None:
        seen.append(len(seen))
        if len(seen) == 1:
            assert f(wf.tensor([1.0, 2.0])).item() == 3.0

    monkeypatch.setattr("sys.breakpointhook", hook)
    assert f(wf.tensor([1.0, 2.0])).item() == 3.0
    assert len(seen) == 4
