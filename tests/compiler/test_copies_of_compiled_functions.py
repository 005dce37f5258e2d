"""Copies and pickles of what holds compiled functions, which were called or not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import weft as wf


class Network(wf.nn.Module):
    """A module with a compiled method as an attribute, and one in its class."""

    def __init__(self) -> None:
        self.linear = wf.nn.Linear(2, 1)
        self.fast = wf.jit(self.run)

    def run(self, x: wf.Tensor) -> Any:
        return self.linear(x)

    @wf.jit
    def faster(self, x: wf.Tensor) -> Any:
        return self.linear(x)


@wf.jit
def double(x: wf.Tensor) -> wf.Tensor:
    return 2 * x


COPIES = pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)


@COPIES
def test_a_copy_of_a_module_runs_compiled_with_weights_of_its_own(
    copied: Callable[[Any], Any],
) -> None:
    net, x = Network(), wf.ones((1, 2))
    wanted = [net.fast(x).item() for _ in range(3)][-1]
    other = copied({"net": net, "method": net.faster})
    with wf.no_grad():
        other["net"].linear.weight.mul_(0.0)
        other["net"].linear.bias.mul_(0.0)
    assert other["net"].fast(x).item() == other["method"](x).item() == 0.0
    assert net.fast(x).item() == net.faster(x).item() == wanted


@COPIES
def test_a_compiled_function_with_a_name_is_itself(copied: Callable[[Any], Any]) -> None:
    assert double(wf.ones(2)).tolist() == [2.0, 2.0]
    assert copied(double) is double


def test_a_copy_of_a_compiled_function_without_a_name_compiles_anew() -> None:
    step = wf.jit(lambda x: x + 1)
    assert step(wf.ones(2)).tolist() == [2.0, 2.0]
    other = copy.deepcopy(step)
    assert other is not step
    assert other(wf.ones(2)).tolist() == [2.0, 2.0]
    assert len(step.compilations) == len(other.compilations) == 1
