"""Loops of recurrent layers as one kernel: which are, and every thread of their steps.

The interpreter is strict, so these tests are of order and of memory as much as of numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.compiler.cuda import recurrent_by_threads
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.recurrent_by_threads import check_loop, loops_in, loops_of
from tests.compiler.cuda.recurrent_cases import SMALL, check_layer, recorded_runs

import weft as wf
from weft.compiler.targets.cuda.recurrent.description import StepForm, describe_step
from weft.compiler.targets.cuda.recurrent.kernel import (
    Layout,
    RecurrentKernel,
    best_layout,
    recurrent_kernel,
)
from weft.core.errors import Unsupported

KINDS = ["RNN", "GRU", "LSTM"]


def forms_of(kind: str, units: int, batch: int) -> list[StepForm]:
    """The steps of a layer and of its gradient."""
    return [
        describe_step(loop.plans[0].graph, loop.num_consts, loop.num_carry)
        for loop in loops_of(kind, units, batch)
    ]


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_layer_and_its_gradient_are_steps_of_one_product(kind: str, gates: int) -> None:
    forward, back = forms_of(kind, 32, 6)
    assert (len(forward.multiplied), forward.products) == (1, gates)
    assert (len(back.multiplied), back.products) == (gates, 1)
    assert forward.transposed != back.transposed
    assert best_layout(forward, 8).blocks == best_layout(back, 8).blocks == 8


def test_blocks_that_would_not_run_at_once_are_none() -> None:
    form = forms_of("LSTM", 256, 64)[0]
    assert (best_layout(form, 128).rows, best_layout(form, 127).rows) == (32, 64)
    assert best_layout(form, 64).blocks == 64
    with pytest.raises(Unsupported, match="do not run"):
        best_layout(form, 63)
    with pytest.raises(Unsupported, match="even"):
        best_layout(forms_of("RNN", 30, 4)[0], 132)


def _describe(step: object, *shapes: tuple[int, ...]) -> StepForm:
    graph = wf.ir.trace(step, *(wf.spec("float32", shape) for shape in shapes))  # type: ignore[arg-type]
    return describe_step(graph, 1, 1)


def test_other_steps_say_why_they_are_none() -> None:
    shapes = (8, 8), (2, 8)
    for message, step in {
        "multiplies nothing": lambda w, h: h * 2,
        "other products": lambda w, h: h @ w @ w,
        "not of single units": lambda w, h: wf.softmax(h @ w, axis=1),
        "other numbers": lambda w, h: (h @ w).astype("float16"),
    }.items():
        with pytest.raises(Unsupported, match=message):
            _describe(step, *shapes)


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("kind", KINDS)
def test_all_steps_of_a_layer_assemble_without_spills(kind: str) -> None:
    for form in forms_of(kind, 256, 64):
        for rows in (32, 64):
            kernel = recurrent_kernel(Layout(form, rows), reverse=False)
            assert spilled_bytes(kernel.text, "sm_80") == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rows"), [("RNN", 64), ("GRU", 0), ("LSTM", 32)])
def test_steps_are_numpys_with_the_same_bits_in_any_order_of_warps(kind: str, rows: int) -> None:
    for loop in loops_of(kind, 32, 5):
        first, second = (check_loop(loop, 2, seed, rows) for seed in (0, 1))
        assert all(first[each].tobytes() == second[each].tobytes() for each in first)


def _odd_step(
    consts: tuple[wf.Tensor, ...], carry: tuple[wf.Tensor, ...], rows: tuple[wf.Tensor, wf.Tensor]
) -> tuple[tuple[wf.Tensor, ...], tuple[wf.Tensor, ...]]:
    """A step that reads everything in every way, and whose carries change places."""
    weights, bias, matrix, factor = consts
    (h, c, d), (wide, row) = carry, rows
    mixed = wf.concatenate([wf.tanh(d) * wide[:, 32:], h - matrix], axis=1)
    p, q = wf.split(mixed @ weights + bias, 2, axis=1)
    made = wf.where(row > 0, p, q * bias[:32]) * factor
    return (d, h + 0.5, wf.sigmoid(made)), (c, wf.concatenate([q, row, mixed[:, :32]], axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_any_step_of_one_product_is_numpys(reverse: bool) -> None:
    def f(
        consts: tuple[wf.Tensor, ...], carry: tuple[wf.Tensor, ...], rows: tuple[wf.Tensor, ...]
    ) -> object:
        return wf.scan(lambda c, x: _odd_step(consts, c, x), carry, rows, reverse=reverse)

    shapes = ((64, 64), (64,), (3, 32), ()), ((3, 32),) * 3, ((2, 3, 64), (2, 3, 32))
    given = [tuple(wf.spec("float32", shape) for shape in each) for each in shapes]
    [loop] = loops_in(wf.ir.trace(f, *given))
    check_loop(loop, 2)


@pytest.mark.slow
def test_rows_end_at_their_lengths() -> None:
    loops = loops_of("LSTM", 32, 3, lengths=wf.asarray(np.array([1, 3, 2])))
    assert len(loops) == 2
    for loop in loops:
        check_loop(loop, 3)


@pytest.mark.slow
def test_rows_of_two_groups_do_not_wait_for_each_other() -> None:
    check_loop(loops_of("GRU", 32, 33)[0], 2)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["red.release", "bar.sync 0", "bra TURN", "atom.acq_rel"])
def test_a_kernel_without_one_of_its_waits_is_refused(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_kernel(layout: Layout, *, reverse: bool) -> RecurrentKernel:
        kernel = recurrent_kernel(layout, reverse=reverse)
        lines = kernel.text.splitlines()
        del lines[next(n for n, each in enumerate(lines) if line in each)]
        return replace(kernel, text="\n".join(lines) + "\n")

    monkeypatch.setattr(recurrent_by_threads, "recurrent_kernel", broken_kernel)
    loop = loops_of("RNN", 32, 3)[0]
    with pytest.raises(AssertionError):
        for seed in range(6):
            check_loop(loop, 3, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_layer_in_a_program_is_the_processors(
    card: HostCard, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check_layer(name, monkeypatch)


@pytest.mark.slow
def test_rows_with_lengths_are_launched_step_by_step(
    card: HostCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recorded_runs(monkeypatch)
    layer = wf.nn.LSTM(8, 32, device="cuda")
    x, lengths = wf.ones((2, 3, 8)).to("cuda"), wf.asarray(np.array([1, 2, 2])).to("cuda")
    wf.jit(lambda x: layer(x, lengths=lengths)[0])(x)
    assert found == [None]
