"""Branches and loops in a graph: their values and derivatives, beside NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft as wf


def program(x: float, w: float) -> float:
    """What the graph below computes, in Python."""
    value = math.sin(w * x) if x > 0 else w * x * x
    for _ in range(3):
        value = value * w + x
    total = 0.0
    for step in range(3):
        total += value
        value = value * w + step
    chosen = value * w
    return (math.sin(chosen) if chosen > 100 else chosen * 2) + total


def build() -> tuple[wf.Graph, list[wf.Tensor]]:
    with wf.Graph() as graph:
        x = wf.placeholder("float64", (), name="x")
        w = wf.Variable(np.float64(0.7), name="w")
        value = wf.cond(x > 0.0, lambda x: wf.sin(w * x), lambda x: w * x * x, x)
        value = wf.while_loop(
            lambda state: state[0] < 3,
            lambda state: (state[0] + 1, state[1] * w + x),
            (wf.tensor(0), value),
            max_steps=4,
        )[1]
        last, seen = wf.scan(
            lambda carry, step: (carry * w + step, carry), value, wf.arange(3, dtype="float64")
        )
        chosen = wf.switch(wf.tensor(1), [wf.sin, lambda t: t * w, wf.cos], last)
        picked = wf.case(
            [(chosen > 100.0, wf.sin), (chosen > -1e6, lambda t: t * 2.0)], chosen, default=wf.exp
        )
        out = picked + wf.sum(seen)
        by_x, by_w = wf.gradients(out, [x, w])
        assert by_x is not None
        assert by_w is not None
        (twice,) = wf.gradients(by_w, [w])
        assert twice is not None
    return graph, [out, by_x, by_w, twice]


@pytest.mark.parametrize("x", [0.9, -1.3])
def test_cond_while_scan_switch_and_case_are_run_and_differentiated(x: float) -> None:
    graph, fetches = build()
    with wf.Session(graph) as session:
        out, by_x, by_w, twice = (value.item() for value in session.run(fetches, {"x": x}))
    h = 1e-4
    assert out == pytest.approx(program(x, 0.7))
    assert by_x == pytest.approx((program(x + h, 0.7) - program(x - h, 0.7)) / (2 * h), rel=1e-6)
    up, down = program(x, 0.7 + h), program(x, 0.7 - h)
    assert by_w == pytest.approx((up - down) / (2 * h), rel=1e-6)
    assert twice == pytest.approx((up - 2 * program(x, 0.7) + down) / h**2, rel=1e-5)


def test_both_branches_are_in_the_graph_and_one_is_chosen_in_each_run() -> None:
    graph, fetches = build()
    held = [op for op in graph.operations if op.kind == "switch"]
    assert held[0].node is not None
    assert len(held[0].node.params["branches"]) == 2
    with wf.Session(graph) as session:
        values = [session.run(fetches[0], {"x": x}).item() for x in (0.9, -1.3, 0.9)]
        assert session.compilations == 1
    assert values == pytest.approx([program(0.9, 0.7), program(-1.3, 0.7), program(0.9, 0.7)])


def test_a_network_with_a_loop_is_trained() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None,), name="x")
        w = wf.Variable(0.5, name="w")
        grown = wf.fori_loop(0, 3, lambda _, value: value * w, x)
        loss = wf.mean((grown - 8.0 * x) ** 2)
        train = wf.optim.Adam(lr=0.1).minimize(loss)
    with wf.Session(graph) as session:
        for _ in range(200):
            session.run(train, {x: [1.0, 2.0]})
        assert session.run(w).item() == pytest.approx(2.0, abs=1e-2)


def test_draws_in_a_branch_differ_from_run_to_run() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("bool", (), name="x")
        noise = wf.cond(x, lambda: wf.random.normal((2,)), lambda: wf.zeros((2,)))
        later = wf.random.normal((2,))
    with wf.Session(graph) as session:
        first, second = (session.run(noise, {x: True}).tolist() for _ in range(2))
        assert first != second
        assert session.run([noise, later], {x: False})[0].tolist() == [0.0, 0.0]
