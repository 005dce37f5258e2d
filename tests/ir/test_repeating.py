"""Repetition: nodes that are copied are those that would be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import weft as wf
from weft import nn, optim
from weft.ir import Graph, Repetition
from weft.ir.reverse import recording

VECTOR, MATRIX = wf.spec("float32", (3,)), wf.spec("float32", (2, 3))


def repeated(f: Any, *kinds: Any) -> tuple[Graph, int]:
    """The graph of f on each of some arguments, and how many times f was called for it."""
    calls = 0

    def each(*tensors: wf.Tensor) -> list[wf.Tensor]:
        nonlocal calls
        repetition, results = Repetition(), list[wf.Tensor]()
        for x in tensors:

            def call(x: wf.Tensor = x) -> Sequence[wf.Tensor]:
                nonlocal calls
                calls += 1
                return [f(x)]

            with recording(False):
                results += repetition(None, call, [x])
        return results

    return wf.ir.trace(each, *kinds), calls


def plainly(f: Any, *kinds: Any) -> Graph:
    return wf.ir.trace(lambda *tensors: [f(x) for x in tensors], *kinds)


def names(graph: Graph) -> list[str]:
    return [node.primitive.name for node in graph.nodes]


def test_a_function_is_called_once_for_each_type() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.sin(x) * 2 + x

    kinds = [VECTOR, MATRIX, VECTOR, MATRIX, VECTOR]
    graph, calls = repeated(f, *kinds)
    assert calls == 2
    assert names(graph) == names(plainly(f, *kinds))
    wf.ir.verify(graph)


def test_copies_compute_what_the_function_does() -> None:
    graph, _ = repeated(lambda x: wf.sin(x) * 2 + x, VECTOR, VECTOR)
    given = [wf.tensor([0.0, 1.0, 2.0]), wf.tensor([3.0, 4.0, 5.0])]
    found = wf.ir.interpret(graph, *given)
    for x, y in zip(given, found, strict=True):
        assert y.tolist() == (wf.sin(x) * 2 + x).tolist()


def test_what_depends_on_no_argument_is_shared() -> None:
    def f(rate: wf.Tensor, *tensors: wf.Tensor) -> list[wf.Tensor]:
        repetition = Repetition()
        with recording(False):
            return [repetition(None, lambda x=x: [x * wf.exp(rate)], [x])[0] for x in tensors]

    graph = wf.ir.trace(f, *[VECTOR] * 4)
    assert names(graph) == ["exp", "multiply", "multiply", "multiply"]


def test_a_result_that_is_the_argument_itself_is_the_other_argument() -> None:
    graph, calls = repeated(lambda x: x, VECTOR, VECTOR)
    assert calls == 1
    assert graph.outputs == graph.inputs


def test_random_numbers_are_drawn_for_each_call() -> None:
    kind = wf.spec("uint32", (2,))
    _, calls = repeated(lambda key: wf.random.normal((3,), key=key), kind, kind)
    assert calls == 2


def test_effects_happen_in_each_call() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        wf.debug.print("{x}", x=x)
        return x * 2

    graph, calls = repeated(f, VECTOR, VECTOR)
    assert (calls, len(names(graph))) == (2, len(names(plainly(f, VECTOR, VECTOR))))


def test_nothing_is_repeated_outside_of_a_trace() -> None:
    repetition, x = Repetition(), wf.ones(3)
    assert [repetition(None, lambda n=n: [x * n], [x])[0].tolist()[0] for n in (2, 3)] == [2.0, 3.0]


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Lion])
def test_a_step_is_the_same_with_and_without_repetition(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> list[Any]:
        wf.random.seed(5)
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 6))
        slow, fast = list(net.parameters())[:2], list(net.parameters())[2:]
        optimizer = make([{"params": slow, "lr": 0.001}, {"params": fast}], lr=0.1)
        step = wf.jit(lambda x: optimizer.minimize((net(x) ** 2).mean()))
        for n in range(3):
            step(wf.full((2, 6), 1.0 + n))
        return [p.tolist() for p in net.parameters()]

    found = trained()
    monkeypatch.setattr(Repetition, "__call__", lambda self, key, f, tensors: f())
    assert trained() == found
