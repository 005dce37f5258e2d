"""Long programs: compiling takes work in proportion to the graph, and no recursion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.fusion.grouping import Group, group
from weft.compiler.lowering.groups import is_lowered
from weft.compiler.pipeline import VERIFYING, optimize
from weft.compiler.plan.planning import WrittenKernels, plan_program
from weft.compiler.targets.cpu.target import CPU, compile_program
from weft.ir.tensor import Tensor

pytestmark = pytest.mark.slow

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def unverified() -> Iterator[None]:
    """What is counted is the compiler's own work, without that of the verifiers."""
    before = [*VERIFYING]
    VERIFYING.clear()
    yield
    VERIFYING.extend(before)


def functions(n: int, x: Tensor) -> Tensor:
    for place in range(n):
        x = wf.sin(x) * 1.01 if place % 2 else x + 0.5
    return x.sum()


def products(n: int, x: Tensor) -> Tensor:
    w = wf.ones((8, 8)) * 0.1
    for _ in range(n):
        x = wf.tanh(x @ w)
    return x.sum()


def sums(n: int, x: Tensor) -> Tensor:
    for _ in range(n):
        x = x * 0.9 + wf.sin(x).sum() * 1e-3
    return x.sum()


def beside_each_other(n: int, x: Tensor) -> Tensor:
    parts = [wf.tanh(x * (place + 1.0)).sum() for place in range(n)]
    return wf.stack(parts).sum()


def used_again_far_later(n: int, x: Tensor) -> Tensor:
    values = []
    for _ in range(n):
        x = wf.sin(x) * 1.01
        values.append(x)
    for value in values:
        x = x * 0.5 + value
    return x.sum()


def assignments(n: int, x: Tensor) -> Tensor:
    y = x.clone()
    for place in range(n):
        y[place % 8] = y[(place + 3) % 8] * 1.01
    return y.sum()


def loops(n: int, x: Tensor) -> Tensor:
    for place in range(n // 4):
        x = wf.scan(lambda h, _, k=place: (wf.sin(h) + k * 0.1, None), x, length=3)[0]
    return x.sum()


KINDS = [functions, products, sums, beside_each_other, used_again_far_later, assignments, loops]
DEEP = 1500
"""Operations behind each other: more than the interpreter allows calls inside of calls."""


def calls_made(run: Callable[[], object]) -> int:
    """How many functions are called, in Python or in C, from this thread."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def compile_only(f: Function) -> None:
    """All of it but LLVM's part, as kernels that are known from elsewhere would not be counted."""
    plan_program(wf.ir.trace(f, wf.spec("float32", (8, 8))), CPU, (), WrittenKernels())


# A program with its gradient holds the program alone.
@pytest.mark.parametrize("gradient", [pytest.param(False, marks=pytest.mark.nightly), True])
@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_graph_takes_at_most_twice_the_work(kind: Function, gradient: bool) -> None:
    def work(n: int) -> int:
        f = partial(kind, n)
        return calls_made(lambda: compile_only(wf.grad(f) if gradient else f))

    work(10)  # what is made once for all programs
    # long enough that chains are cut into several kernels, of which most are equal
    assert work(240) < 2.3 * work(120)


def inside_each_other(n: int, way: str, x: Tensor) -> Tensor:
    if n == 0:
        return wf.sin(x) * 2
    inner = partial(inside_each_other, n - 1, way)
    if way == "scan":
        return wf.scan(lambda c, row: (inner(c) + row, c), x, wf.ones((3, 8, 8)))[0]
    if way == "while":
        step = lambda c: (inner(c[0]), c[1] + 1)  # noqa: E731
        return wf.while_loop(lambda c: c[1] < 2, step, (x, wf.tensor(0)))[0]
    return wf.cond(x.sum() > 0, inner, lambda y: y * 3, x)


@pytest.mark.parametrize("way", ["scan", "while", "cond"])
def test_loops_inside_of_loops_take_work_in_proportion(way: str) -> None:
    def work(n: int) -> int:
        return calls_made(lambda: compile_only(partial(inside_each_other, n, way)))

    work(2)
    assert work(10) < 4 * work(5)  # each level is part of the text of those around it


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_long_chain_compute_what_the_chain_does(kind: Function) -> None:
    f = partial(kind, 100)
    x = wf.asarray(np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32) * 0.1)
    np.testing.assert_allclose(wf.jit(f)(x).item(), f(x).item(), rtol=1e-3)
    found, expected = wf.jit(wf.grad(f))(x), wf.grad(f)(x)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [functions, sums, beside_each_other, used_again_far_later])
def test_no_kernel_holds_more_than_the_most(kind: Function) -> None:
    graph = optimize(wf.ir.trace(wf.grad(partial(kind, 200)), wf.spec("float32", (8, 8))), CPU)
    groups = [s for s in group(graph, is_lowered, CPU.limits.fusion) if isinstance(s, Group)]
    assert len(groups) > 1
    most = CPU.limits.fusion.kernel_weight
    assert all(each.weight <= most for each in groups if len(each.roots) > 1)


def test_equal_parts_of_a_chain_are_compiled_once() -> None:
    def chain(n: int, x: Tensor) -> Tensor:
        for _ in range(n):
            x = wf.sin(x)
        return x

    kernels = []
    for n in (500, 1000):
        program = compile_program(wf.ir.trace(partial(chain, n), wf.spec("float32", (64,))))
        kernels.append({each.kernel.digest for each in program.plan.every_lowered})
    assert len(kernels[1]) <= len(kernels[0]) + 1


def moved(x: Tensor) -> Tensor:
    for _ in range(DEEP // 4):
        x = wf.concat([x[1:], x[:1]], axis=0)
    return x


def deep(x: Tensor) -> Tensor:
    for _ in range(DEEP):
        x = x * 0.999 + 0.001
    return x.sum()


WAYS: dict[str, Callable[[Tensor], object]] = {
    "gradient": wf.grad(deep),
    "second derivative": wf.grad(lambda x: wf.grad(deep)(x).sum()),
    "tangent": lambda x: wf.jvp(deep, (x,), (x,)),
    "batch": lambda x: wf.vmap(wf.grad(deep))(wf.stack([x, x])),
    "checkpoint": wf.grad(wf.checkpoint(deep)),
    "text": lambda x: wf.ir.parse(str(wf.ir.trace(deep, x))),
    "verifier": lambda x: wf.ir.verify(wf.ir.trace(deep, x)),
    "digest": lambda x: wf.ir.trace(deep, x).digest(),
    "compiled": wf.jit(deep),
    "compiled gradient": wf.jit(wf.grad(deep)),
    "compiled movement": wf.jit(moved),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_graph_is_too_long(way: str) -> None:
    WAYS[way](wf.ones(4))


def test_no_tape_is_too_long() -> None:
    x = wf.ones(4)
    x.requires_grad = True
    deep(x).backward()
    assert x.grad is not None
    assert np.isfinite(x.grad.numpy()).all()
