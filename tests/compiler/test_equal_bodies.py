"""Loops and choices with one body, again and again: a compiled program keeps their values apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.graph_passes.loops.lighten import lighten_loops
from weft.compiler.targets.cpu.target import CPU
from weft.ir.tensor import Tensor
from weft.ops.control import run

Function = Callable[[Any], Any]


def body(q: Tensor) -> Tensor:
    return wf.sin(q) * q


def custom(f: Function) -> Function:
    own = wf.custom_derivative(f)
    own.jvp(lambda primals, tangents: (own(*primals), wf.jvp(f, primals, tangents)[1]))
    return own


def loop_of(f: Function, x: Tensor, **options: Any) -> Any:
    return wf.scan(lambda h, q: (f(h) * 0.5 + q, f(h * q)), wf.tensor(0.2), x, **options)


FORMS: dict[str, Callable[[Function], Function]] = {
    "map": lambda f: lambda x: wf.map(f, x),
    "scan": lambda f: lambda x: loop_of(f, x)[1],
    "reversed scan": lambda f: lambda x: loop_of(f, x, reverse=True)[1],
    "carry": lambda f: lambda x: wf.scan(lambda h, q: (f(h) * 0.5 + q, None), x, x)[0],
    "scan of a map": lambda f: lambda x: wf.map(lambda q: wf.map(f, x * q).sum(), x),
    "while": lambda f: (
        lambda x: wf.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[1])), (wf.tensor(0), x), max_steps=5
        )[1]
    ),
    "cond": lambda f: lambda x: wf.cond(x.sum() > 0, f, lambda q: q * 2, x),
    "checkpoint": lambda f: lambda x: wf.map(wf.checkpoint(f), x),
    "custom derivative": lambda f: lambda x: wf.map(custom(f), x),
}
TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "gradient": lambda f: wf.grad(lambda x: f(x).sum()),
    "second derivative": lambda f: wf.grad(lambda x: wf.grad(lambda x: f(x).sum())(x).sum()),
    "tangent": lambda f: lambda x: wf.jvp(f, (x,), (x * 0.5,))[1],
    "batched gradient": lambda f: (
        lambda x: wf.vmap(wf.grad(lambda x: f(x).sum()))(wf.stack([x, x * 0.5]))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("form", FORMS)
def test_calls_with_one_body_behind_each_other_are_compiled_as_they_are(
    form: str, transform: str
) -> None:
    once = FORMS[form](body)
    f = TRANSFORMS[transform](lambda x: once(once(x)))
    x = wf.tensor([0.3, 1.1, 0.7])
    np.testing.assert_allclose(wf.jit(f)(x).numpy(), f(x).numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("numbers", [(2.0, 3.0), (0.0, -0.0), (1, True)])
def test_bodies_that_differ_in_a_number_are_two(numbers: Sequence[float]) -> None:
    def f(x: Tensor) -> Tensor:
        first, second = numbers
        inner = wf.map(lambda q: wf.sin(q) * first, x)
        return wf.map(lambda q: wf.cos(q) / (wf.sin(q) * second), inner) + inner

    x = wf.tensor([0.3, -1.1, 2.0])
    np.testing.assert_allclose(wf.jit(f)(x).numpy(), f(x).numpy(), rtol=2e-5)


def test_a_later_loop_does_not_take_values_of_an_earlier_one_for_its_own() -> None:
    """Both bodies are one graph, so that their variables are the same; their values are not."""
    step = wf.ir.trace(lambda h, q: (h + wf.sin(q), wf.sin(q) * q), wf.spec("float32", ()),
                       wf.spec("float32", ()))  # fmt: skip

    def f(h: Tensor, xs: Tensor) -> Any:
        def body(h: Tensor, q: Tensor) -> Any:
            return wf.ir.interpret(step, h, q)

        _, first = wf.scan(body, h, xs)
        return wf.scan(body, h, first)

    arrays = [np.float32(0.5), np.array([0.3, 1.1, 2.0], np.float32)]
    before = wf.ir.trace(f, *[wf.asarray(array) for array in arrays])
    scans = [node for node in before.nodes if node.primitive.name == "scan"]
    shared = scans[0].params["graph"]
    nodes = [wf.ir.GraphNode(n.primitive, n.operands, {**n.params, "graph": shared}, n.results)
             for n in scans]  # fmt: skip
    whole = wf.ir.Graph(before.inputs, tuple(nodes), before.outputs)
    after = lighten_loops(whole, limits=CPU.limits.passes)
    for found, expected in zip(run(after, arrays), run(before, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
