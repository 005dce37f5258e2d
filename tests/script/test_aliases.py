"""Two names for one tensor, if a traced test says so: writes to them are refused, never lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft as wf

Function = Callable[..., Any]


@wf.script
def chosen(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        y = a
    else:
        y = b
    y += 1
    return y + a + b


@wf.script
def expression(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    y = a if x.sum() > 0 else b
    y[0] = 9.0
    return y + a + b


@wf.script
def kept_or_made(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    y = a
    if x.sum() > 0:
        y = y * 2
    y += 1
    return y + a


@wf.script
def argument(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        a = a * 2
    a += 1
    return a


@wf.script
def other_way_round(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        y = a
    else:
        y = b
    a += 1
    return y


@wf.script
def in_a_list(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        both = [a, b]
    else:
        both = [b, a]
    both[0].zero_()
    return a + b


@wf.script
def made_inside(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        z = a * 2
        y = z
    else:
        z, y = a * 2, a * 3
    y += 1
    return y + z


@wf.script
def two_levels(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        if x.sum() > 1:
            y = a
        else:
            y = a * 2
    else:
        y = a * 3
    y += 1
    return y + a


@wf.script
def after_a_loop(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    y = a
    n = wf.tensor(0.0)
    while n < x.sum():
        y = y + 1
        n += 1
    y += 10
    return y + a


@wf.script
def in_a_loop(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    y = b * 1
    n = wf.tensor(0.0)
    while n < x.sum():
        y = a
        n += 1
    y += 10
    return y + a


REFUSED: list[Function] = [
    chosen, expression, kept_or_made, argument, other_way_round, in_a_list, made_inside, two_levels,
    after_a_loop, in_a_loop,
]  # fmt: skip


def arguments(sign: float) -> tuple[wf.Tensor, wf.Tensor, wf.Tensor]:
    return wf.tensor([1.0, 2.0]) * sign, wf.tensor([1.0, 1.0]), wf.tensor([5.0, 5.0])


@pytest.mark.parametrize("f", REFUSED)
def test_a_write_that_would_reach_one_of_two_tensors_is_refused(f: Function) -> None:
    for sign in (1.0, -1.0):
        given = arguments(sign)
        f(*given)
        given = arguments(sign)
        with pytest.raises(wf.ArgumentError, match="the same tensor as another one"):
            wf.jit(f)(*given)
        assert [x.tolist() for x in given[1:]] == [[1.0, 1.0], [5.0, 5.0]]


@wf.script
def own_values(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        y = a.clone()
    else:
        y = b + 0
    y += 1
    y[0] = 7.0
    return y + a + b


@wf.script
def alike_on_both_sides(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        z = a * 2
        y = z
    else:
        z = a * 3
        y = z
    y = y + 1
    return y + z


@wf.script
def its_own_before(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    y = a * 1
    if x.sum() > 0:
        if x.sum() > 1:
            y = y * 2
        y += 1
    y += 1
    return y + a


@wf.script
def steps(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    y = a * 1
    n = wf.tensor(0.0)
    while n < x.sum():
        n += 1
        if n > 1:
            y = y * 2
        y += 1
    y += 1
    return y + a


@wf.script
def updated_in_place(x: wf.Tensor, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    y = a
    if x.sum() > 0:
        y += 1
    for row in x:
        y += row
    return y + a


TAKEN: list[Function] = [own_values, alike_on_both_sides, its_own_before, steps, updated_in_place]


@pytest.mark.parametrize("f", TAKEN)
def test_other_writes_are_as_in_python(f: Function) -> None:
    for sign in (1.0, -1.0):
        eager, traced = arguments(sign), arguments(sign)
        assert wf.jit(f)(*traced).tolist() == f(*eager).tolist()
        assert [x.tolist() for x in traced] == [x.tolist() for x in eager]


def test_a_tensor_may_be_written_to_again_when_the_other_is_gone() -> None:
    x, a, b = arguments(1.0)
    with pytest.raises(wf.ArgumentError):
        wf.jit(chosen)(x, a, b)
    a += 1
    a[0] = 4.0
    assert a.tolist() == [4.0, 2.0]
