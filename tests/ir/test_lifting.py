"""Handles that stand for another value in one thread only."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

import weft as wf
from weft.ir.lifting import Lifted, Lifting, lift


def elsewhere(f: Callable[[], Any]) -> Any:
    """What a function returns in another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(f()))
    thread.start()
    thread.join()
    return found[0]


def put(x: wf.Tensor, number: float) -> None:
    lift(x)
    x._value = wf.tensor(number)._value


def test_a_lifted_handle_is_itself_for_all_other_threads() -> None:
    x = wf.tensor(1.0)
    with Lifting():
        put(x, 2.0)
        assert x.item() == 2.0
        assert elsewhere(x.item) == 1.0
        assert elsewhere(lambda: (x + x).item()) == 2.0
        assert elsewhere(lambda: pickle.loads(pickle.dumps(x)).item()) == 1.0
    assert x.item() == 1.0
    assert type(x) is wf.Tensor


def test_what_another_thread_writes_meanwhile_is_not_lost() -> None:
    x = wf.tensor(1.0)
    with Lifting():
        put(x, 2.0)
        elsewhere(lambda: x.copy_(wf.tensor(5.0)))
        assert x.item() == 2.0
    assert x.item() == 5.0


def test_gradients_and_histories_are_lifted_too() -> None:
    x = wf.tensor(1.0, requires_grad=True)
    x.grad = wf.tensor(3.0)
    with Lifting():
        lift(x)
        x.grad = None
        x.requires_grad_(False)
        assert elsewhere(lambda: (x.grad.item(), x.requires_grad)) == (3.0, True)
    assert (x.grad.item(), x.requires_grad) == (3.0, True)


def test_blocks_inside_each_other_go_back_one_by_one() -> None:
    x = wf.tensor(1.0)
    with Lifting():
        put(x, 2.0)
        with Lifting():
            put(x, 3.0)
            assert x.item() == 3.0
        assert (x.item(), type(x) is wf.Tensor) == (2.0, False)
    assert (x.item(), type(x) is wf.Tensor) == (1.0, True)


def test_an_inner_block_writes_to_what_only_the_outer_one_has_lifted() -> None:
    x = wf.tensor(1.0)
    with Lifting():
        put(x, 2.0)
        with Lifting():
            x.copy_(wf.tensor(7.0))
        assert x.item() == 7.0
    assert x.item() == 1.0


def test_two_threads_lift_one_handle() -> None:
    x = wf.tensor(1.0)
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with Lifting():
            put(x, 9.0)
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with Lifting():
        put(x, 2.0)
        thread.start()
        inside.wait()
        assert x.item() == 2.0
    assert x.item() == 1.0
    assert isinstance(x, Lifted)  # the other thread is not done
    leave.set()
    thread.join()
    assert type(x) is wf.Tensor


def test_a_block_that_ends_with_an_error_leaves_nothing() -> None:
    x = wf.tensor(1.0)
    with pytest.raises(KeyboardInterrupt), Lifting():
        put(x, 2.0)
        raise KeyboardInterrupt
    assert (x.item(), type(x)) == (1.0, wf.Tensor)


def test_a_handle_that_is_gone_is_not_taken_for_a_new_one_in_its_place() -> None:
    with Lifting():
        for number in range(100):
            x = wf.tensor(float(number))
            lift(x)
            assert x.item() == number
            x._value = wf.tensor(-1.0)._value
            del x
            gc.collect(0)


def test_handles_of_other_classes_keep_what_is_theirs() -> None:
    with wf.Graph():
        variable = wf.Variable([1.0, 2.0], name="v")
    kind = type(variable)
    with Lifting():
        lift(variable)
        assert variable.name == "v"
        assert isinstance(variable, kind)
    assert type(variable) is kind
