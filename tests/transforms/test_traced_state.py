"""State that a traced function writes: no value of a trace outlasts the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.core.errors import TraceError
from weft.ops.random_bits import GENERATOR


def draw(x: Any) -> Any:
    return x + wf.random.normal(shape=(3,))


def draw_in_a_loop(x: Any) -> Any:
    return wf.fori_loop(0, 3, lambda _, carry: carry + wf.random.normal(shape=(3,)), x)


def draw_until_large(x: Any) -> Any:
    return wf.while_loop(
        lambda carry: wf.sum(carry) < 5,
        lambda carry: carry + wf.abs(wf.random.normal(shape=(3,))),
        x,
    )


def draw_or_not(x: Any) -> Any:
    return wf.cond(wf.sum(x) < 5, draw, lambda carry: carry, x)


DRAWS = [draw, draw_in_a_loop, draw_until_large, draw_or_not]
WAYS: dict[str, Callable[..., Any]] = {"eager": lambda f: f, "jit": wf.jit}


def numbers_of(f: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """What a function gives from a fresh seed, and where the generator is afterwards."""
    wf.random.seed(5)
    result = f(*arguments)
    return result, int(wf.random.get_state().counter)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", DRAWS)
def test_a_trace_leaves_the_generator_usable_and_its_graph_draws_the_same(f: Any, way: str) -> None:
    x = wf.zeros(3)
    expected, _ = numbers_of(f, x)
    for repetition in range(2):  # the second time the function may be compiled already
        graph, _ = numbers_of(wf.ir.trace, WAYS[way](f), x)
        assert isinstance(GENERATOR.counter._value, np.ndarray), repetition
        found = wf.ir.interpret(graph, x)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert wf.random.uniform((2,)).shape == (2,)


@pytest.mark.parametrize("way", WAYS)
def test_a_trace_advances_the_generator_by_what_is_drawn_in_any_case(way: str) -> None:
    _, counter = numbers_of(wf.ir.trace, WAYS[way](lambda x: draw(draw(x))), wf.zeros(3))
    assert counter == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", DRAWS)
def test_types_are_inferred_without_touching_the_generator(f: Any, way: str) -> None:
    kind, _ = numbers_of(wf.ir.infer, WAYS[way](f), wf.zeros(3))
    assert kind.shape == (3,)
    assert isinstance(GENERATOR.counter._value, np.ndarray)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", DRAWS)
def test_a_tangent_advances_the_generator_as_the_function_does(f: Any, way: str) -> None:
    x = wf.zeros(3)
    expected, counter = numbers_of(f, x)
    (value, _), after = numbers_of(wf.jvp, WAYS[way](f), (x,), (wf.ones(3),))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert after == counter


@pytest.mark.parametrize("f", DRAWS)
def test_a_compiled_function_inside_another_draws_on(f: Any) -> None:
    inner, x = wf.jit(f), wf.zeros(3)

    def several(g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: wf.stack([draw(x), g(x), g(x), draw(x)])

    expected, counter = numbers_of(several(f), x)
    inner(x)  # known before it is called inside
    found, after = numbers_of(wf.jit(several(inner)), x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert after == counter


@pytest.mark.parametrize("f", DRAWS)
def test_a_compiled_function_that_draws_is_refused_in_a_vmap(f: Any) -> None:
    compiled = wf.jit(f)
    compiled(wf.zeros(3))
    with pytest.raises(TraceError, match="every element of a vmap the same numbers"):
        numbers_of(wf.vmap(compiled), wf.zeros((2, 3)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("look", [wf.ir.trace, wf.ir.infer])
def test_looking_at_a_function_writes_no_state(look: Any, way: str) -> None:
    norm, x = nn.BatchNorm1d(3), wf.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 6.0]])
    state = [*norm.parameters(), *norm.buffers()]
    before = [each.tolist() for each in state]
    look(WAYS[way](lambda x: norm(x)), x)
    assert [each.tolist() for each in state] == before


@pytest.mark.parametrize("way", WAYS)
def test_statistics_are_plain_numbers_after_a_tangent(way: str) -> None:
    x = wf.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 6.0]])
    norm, expected = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    expected(x)
    wf.jvp(WAYS[way](lambda x: norm(x)), (x,), (x,))
    for one, other in zip(norm.buffers(), expected.buffers(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_hidden_tensor_that_an_inner_function_writes_is_state_of_the_outer_one() -> None:
    held = {"w": wf.ones(3)}
    read = [lambda: held["w"]]  # behind a call: no variable of the function holds it

    @wf.jit
    def inner(x: Any) -> Any:
        read[0]().copy_(read[0]() + x)
        return read[0]() * 2

    inner(wf.zeros(3))
    outer = wf.jit(lambda x: inner(x) + inner(x))
    for expected in (10.0, 18.0):
        assert outer(wf.ones(3)).tolist() == [expected] * 3
    assert held["w"].tolist() == [5.0] * 3
