"""The plain target runs every plan, and agrees with the processor on what a plan means."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fuzz.compare import examine
from tests.fuzz.generate import generate
from tests.fuzz.run import SMALL, is_plain

import weft as wf
from weft.compiler.plan.launch import Kind
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cpu.target import CPU
from weft.compiler.targets.plain.target import PLAIN

Array = np.ndarray[Any, Any]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def compare(f: Callable[..., Any], *arrays: Array, limit: float = 1e-5) -> list[Kind]:
    """Run a function by both targets; the kinds of launches that the plain one has made."""
    graph = wf.ir.trace(f, *map(wf.asarray, arrays))
    plan = plan_program(graph, PLAIN)
    found = PLAIN.executable(plan).run([array.copy() for array in arrays])
    wanted = CPU.executable(plan_program(graph, CPU)).run([array.copy() for array in arrays])
    for one, other in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(_wide(one), _wide(other), rtol=limit, atol=limit)
    return [launch.kind for launch in plan.every_launch()]


def _wide(array: Array) -> Array:
    return array.astype(complex if array.dtype.kind == "c" else np.float64)


def attended(q: wf.Tensor) -> wf.Tensor:
    return wf.scaled_dot_product_attention(q, q, q).sum()


def assigned(x: wf.Tensor) -> wf.Tensor:
    y = wf.exp(x)
    y[wf.asarray([0, 2])] += x[:2]
    return y * 2


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], Kind]] = {
    "a softmax of a product": (lambda x: wf.softmax(x @ x.T).sum(axis=0), (6, 5), Kind.LOOP),
    "a sort": (lambda x: wf.sort(wf.exp(x), axis=1)[:, ::2], (3, 5), Kind.REFERENCE),
    "updates that run as one": (
        lambda x: [wf.cumsum(x * 2, axis=0), x[0] * 3, x.T * 2],
        (4, 3),
        Kind.GROUPED,
    ),
    "a loop and its gradient": (
        wf.grad(lambda x: wf.scan(lambda c, r: (wf.sin(c + r), c * r), x[0], x)[1].sum()),
        (4, 3),
        Kind.CONTROL,
    ),
    "a loop backwards": (
        lambda x: wf.scan(lambda c, r: (c + r, c), x[0], x, reverse=True),
        (4, 3),
        Kind.CONTROL,
    ),
    "a loop that asks": (
        lambda x: wf.while_loop(lambda c: (c * c).sum() < 90, lambda c: c * 1.5 + 1, x),
        (4,),
        Kind.CONTROL,
    ),
    "a choice": (
        lambda x: wf.cond(x.sum() > 0, lambda x: x * 2, lambda x: wf.cumsum(x), x),
        (6,),
        Kind.CONTROL,
    ),
    "an update in places": (assigned, (5, 3), Kind.COPY),
    "attention's gradient": (wf.grad(attended), (1, 2, 4, 8), Kind.LOOP),
    "an empty axis": (lambda x: (x[:0] @ x.T).sum() + wf.exp(x), (3, 4), Kind.LOOP),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_means_the_same_for_both_targets(name: str) -> None:
    f, shape, kind = PROGRAMS[name]
    assert kind in compare(f, numbers(*shape))


@pytest.mark.slow
def test_a_small_convolution_and_its_gradients_are_loops() -> None:
    def loss(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return (wf.conv2d(x, w) ** 2).sum()

    kinds = compare(wf.grad(loss, argnums=(0, 1)), numbers(1, 2, 3, 3), numbers(2, 2, 2, 2))
    assert Kind.CONVOLUTION not in kinds


def test_a_kernel_that_refuses_its_operands_says_what_the_reference_says() -> None:
    graph = wf.ir.trace(
        lambda x, i: wf.take(x, i, axis=0), wf.spec("float32", (3,)), wf.spec("int64", (1,))
    )
    arrays = [np.ones(3, np.float32), np.array([7])]
    messages = []
    for target in (CPU, PLAIN):
        with pytest.raises(wf.WeftError) as caught:
            target.executable(plan_program(graph, target)).run(arrays)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_an_output_is_written_to_the_input_it_is_donated() -> None:
    graph = wf.ir.trace(lambda x: x * 2, wf.spec("float32", (4,)))
    executable = PLAIN.executable(plan_program(graph, PLAIN))
    x = numbers(4)
    wanted = x * 2
    assert executable.donations == {0: (0,)}
    (found,) = executable.run([x], [(0, 0)])
    assert found is x
    np.testing.assert_array_equal(found, wanted)


def test_a_plan_of_another_target_is_refused() -> None:
    graph = wf.ir.trace(lambda x: x @ x, wf.spec("float32", (4, 4)))
    with pytest.raises(wf.UnsupportedError, match="function of another target"):
        PLAIN.executable(plan_program(graph, CPU)).run([numbers(4, 4)])


def test_unknown_sizes_are_those_of_the_run() -> None:
    graph = wf.ir.trace(lambda x: wf.cumsum(x, axis=0) @ x.T, wf.spec("float32", ("n", 3)))
    executable = PLAIN.executable(plan_program(graph, PLAIN))
    for count in (1, 4, 2):
        x = numbers(count, 3)
        np.testing.assert_allclose(
            executable.run([x])[0], np.cumsum(x, axis=0) @ x.T, rtol=1e-5, atol=1e-5
        )


@pytest.mark.slow
def test_random_programs_agree() -> None:
    """A few, with seeds of their own: the fuzzer's 500 are run by the plain target, too."""
    drawn = [generate(seed) for seed in range(1000, 1100)]
    small = [each for each in drawn if each.elements <= SMALL and is_plain(each)]
    assert len(small) >= 2
    assert [examine(each, ("plain",)) for each in small] == [None] * len(small)


def test_a_watched_run_tells_when_each_launch_began_and_ended() -> None:
    x = numbers(6, 5)
    graph = wf.ir.trace(lambda x: wf.softmax(x @ x.T).sum(axis=0), wf.asarray(x))
    plan = plan_program(graph, PLAIN)
    told: list[tuple[Any, ...]] = []
    before = time.perf_counter_ns()
    with PLAIN.watch(lambda *run: told.append(run)):
        PLAIN.executable(plan).run([x])
    after = time.perf_counter_ns()
    PLAIN.executable(plan).run([x])
    ((of, sizes, spans),) = told
    assert (of, sizes, len(spans)) == (plan, {}, len(plan.launches))
    moments = [before, *[moment for span in spans for moment in span], after]
    assert moments == sorted(moments)


def test_a_run_that_fails_tells_of_the_launches_up_to_the_one_that_did() -> None:
    graph = wf.ir.trace(lambda x, i: wf.take(wf.exp(x), i, axis=0), numbers(3, 2), np.array([7]))
    told: list[tuple[Any, ...]] = []
    with PLAIN.watch(lambda *run: told.append(run)), pytest.raises(wf.BoundsError):
        PLAIN.executable(plan_program(graph, PLAIN)).run([numbers(3, 2), np.array([7])])
    ((plan, _, spans),) = told
    assert 0 < len(spans) <= len(plan.launches)
