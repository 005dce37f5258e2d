"""Every public function, called with junk: it answers, or refuses with an error of the house.

A `TypeError` of Python's own is right only where the call does not fit the signature. Never a bare
error of NumPy, never an assertion, never a warning.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import weft as wf
from weft.ir.tensor import traces


@pytest.fixture(autouse=True, scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What junk makes somebody write is written to a folder of its own."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("junk"))
    yield
    os.chdir(before)


def first(*xs: Any, **options: Any) -> Any:
    """A function of anything."""
    return xs[0] if xs else 1.0


NUMBERS = [0, 1, -1, 2, 3, 7, True, 0.5, -2.5, float("nan"), float("inf"), 1j, 2**70, np.float32(2)]
WORDS = ["", "sum", "linear", "float32", "ij,jk->ik", "i", "backward", "nonsense"]
LISTS: list[Any] = [
    [], (), [1, 2], (0,), (1, -1), (0, 0), (2, 3), (-1, -1), [1.5, "a"], [[1], [2, 3]], [None],
    (1, 2, 3),
    ((1, 1), (0, 2)), [wf.ones(3), wf.ones(3)], [wf.ones((2, 3)), wf.zeros(3)], (wf.ones(2), None),
]  # fmt: skip
THINGS: list[Any] = [
    None, ..., slice(None), {}, {"a": 1.0}, object(), range(3), wf.float32, wf.int8, first,
    np.dtype("int64"),
]  # fmt: skip
TENSORS: list[Any] = [
    wf.tensor(2.0), wf.tensor(3), wf.tensor(True), wf.zeros(0), wf.tensor([1.0, -2.0, 0.5]),
    wf.tensor([0, 1, 2]), wf.tensor([5, -7]), wf.tensor([True, False, True]), wf.ones((2, 3)),
    wf.eye(2), wf.zeros((2, 2)), wf.tensor([[1j, 2.0], [0.0, 1.0]]), wf.ones((0, 3)),
    wf.ones((1, 2, 3)), wf.ones((1, 2, 4, 4)), wf.ones(3, dtype="bfloat16"),
    wf.ones(3, dtype="uint8"), wf.ones((2, 2), dtype="float64"), wf.tensor([float("nan"), 1.0]),
    wf.tensor([1.0, 2.0], requires_grad=True), wf.tensor([2], dtype="uint64"), wf.random.key(0),
    np.ones(3), np.arange(4).reshape(2, 2), np.array("text"), np.array([None]), np.float64(1.5),
    np.ones((2, 3), order="F")[::-1], np.array(["2024-01-01"], "datetime64[D]"),
]  # fmt: skip
JUNK: list[Any] = [*NUMBERS, *WORDS, *LISTS, *THINGS, *TENSORS]

FOREIGN = {
    "no_grad", "enable_grad", "symbol", "is_grad_enabled", "while_loop",
    "global_variables_initializer", "group", "placeholder",
}  # fmt: skip
"""What takes no data, a loop that may never end on junk, and what begins the default graph."""
SWITCHES = [value for value in JUNK if not isinstance(value, np.ndarray)]
"""What is passed for a flag or a word: NumPy itself refuses to say what an array's truth is."""


def public() -> dict[str, Callable[..., Any]]:
    spaces = {"": wf, "linalg.": wf.linalg, "fft.": wf.fft, "random.": wf.random}
    return {
        prefix + name: getattr(space, name)
        for prefix, space in spaces.items()
        for name in space.__all__
        if inspect.isfunction(getattr(space, name)) and name not in FOREIGN
    }


def methods() -> dict[str, Callable[..., Any]]:
    """What tensors can do, but for writing to them."""
    signs = ["__add__", "__matmul__", "__pow__", "__and__", "__lshift__", "__lt__", "__getitem__"]
    named = [name for name in dir(wf.Tensor) if not name.startswith("_") and name[-1] != "_"]
    found = {name: getattr(wf.Tensor, name) for name in [*named, *signs]}
    return {f"Tensor.{name}": method for name, method in found.items() if callable(method)}


FUNCTIONS = public() | methods()


@st.composite
def calls(draw: st.DrawFn, function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that fit the signature; the first ones are tensors more often than not."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if number == 0 and function in vars(wf.Tensor).values():
            values = st.sampled_from([x for x in TENSORS if isinstance(x, wf.Tensor)])
        elif parameter.annotation in ("bool", "bool | None", "str"):
            values = st.sampled_from(SWITCHES)
        else:
            values = st.sampled_from(TENSORS if number < 2 and draw(st.booleans()) else JUNK)
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += draw(st.lists(values, max_size=3))
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if draw(st.booleans()):
                kwargs[parameter.name] = draw(values)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            if parameter.default is not parameter.empty and draw(st.booleans()):
                break
            args.append(draw(values))
    return args, kwargs


def fits(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call has the arguments that the signature asks for."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def attempt(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    """Call with junk; what comes out is checked here."""
    state = wf.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(*args, **kwargs)
    except wf.WeftError as error:
        fields = [error.op, error.problem, error.expected, error.got, error.fix]
        if not all(fields):
            raise
    except TypeError:
        if fits(function, args, kwargs):
            raise
    finally:
        wf.random.set_state(state)
    assert traces.stack == []
    assert wf.is_grad_enabled()


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_junk_is_answered_or_refused(name: str, data: st.DataObject) -> None:
    args, kwargs = data.draw(calls(FUNCTIONS[name]))
    attempt(FUNCTIONS[name], args, kwargs)
