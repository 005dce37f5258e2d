"""Every public function, called with junk: it answers, or refuses with an error of the house.

A `TypeError` of Python's own is right only where the call does not fit the signature. Never a bare
error of NumPy, never an assertion, never a warning.
"""

from __future__ import annotations

import inspect
import os
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.hammer import times

import weft as wf
from weft.ir.tensor import traces

pytestmark = pytest.mark.slow


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
@settings(max_examples=times(12), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_junk_is_answered_or_refused(name: str, data: st.DataObject) -> None:
    args, kwargs = data.draw(calls(FUNCTIONS[name]))
    attempt(FUNCTIONS[name], args, kwargs)


# --- what was made to do harm --------------------------------------------------------------------


class NoArray:
    """Gives something else where an array is asked for."""

    def __array__(self, *args: Any, **options: Any) -> Any:
        return "no array"


class NoCapsule:
    """Speaks of DLPack, and gives a number."""

    def __dlpack__(self, **options: Any) -> Any:
        return 7

    def __dlpack_device__(self) -> Any:
        return 1, 0


class NoDevice(NoCapsule):
    """Says nothing that is a device."""

    def __dlpack_device__(self) -> Any:
        return "here"


class Unspeakable:
    """What cannot even be shown."""

    def __repr__(self) -> str:
        raise ValueError("no name")


class Lengthy:
    """Says that it is endless."""

    def __index__(self) -> int:
        return 2**70


def nested(levels: int) -> Any:
    tree: Any = 1.0
    for _ in range(levels):
        tree = [tree]
    return tree


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
ITSELF: dict[str, Any] = {}
ITSELF["self"] = ITSELF
HOSTILE: dict[str, Any] = {
    "a list that holds itself": ENDLESS,
    "a dict that holds itself": ITSELF,
    "a deep list": nested(100_000),
    "no array": NoArray(),
    "no capsule": NoCapsule(),
    "no device": NoDevice(),
    "what cannot be shown": Unspeakable(),
    "a long range": range(10**13),
    "2**62": 2**62,
    "2**63": 2**63,
    "2**70": Lengthy(),
    "-2**62": -(2**62),
    "NaN": float("nan"),
    "many axes": (1,) * 100,
    "many elements": (2**40, 2**40),
    "many of nothing": (2**62, 0),
}
X = wf.ones((2, 3))
TAKERS: dict[str, Callable[[Any], Any]] = {
    "tensor": wf.tensor,
    "asarray": wf.asarray,
    "add": lambda value: X + value,
    "index": lambda value: X[value],
    "slice": lambda value: X[:value],
    "zeros": wf.zeros,
    "full": lambda value: wf.full(value, 1.0),
    "eye": wf.eye,
    "reshape": X.reshape,
    "broadcast_to": lambda value: wf.broadcast_to(X, value),
    "tile": lambda value: wf.tile(X, value),
    "repeat": lambda value: wf.repeat(X, value),
    "random.normal": wf.random.normal,
    "concat": wf.concat,
    "stack": wf.stack,
    "sum": lambda value: wf.sum(X, axis=value),
    "pad": lambda value: wf.pad(X, value),
    "fft": lambda value: wf.fft.fft(X, n=value),
    "interpolate": lambda value: wf.interpolate(wf.ones((1, 1, 2, 2)), size=value),
    "histogram": lambda value: wf.histogram(X, value),
    "spec": lambda value: wf.spec("float32", value),
    "broadcast_shapes": wf.broadcast_shapes,
    "from_dlpack": wf.from_dlpack,
    "jit": wf.jit(first),
    "jit of zeros": lambda value: wf.jit(lambda x: x + wf.zeros(value).sum())(wf.ones(1)),
    "grad": wf.grad(lambda x: wf.sum(x)),
    "vmap": wf.vmap(first),
    "jvp": lambda value: wf.jvp(first, (value,), (value,)),
    "scan": lambda value: wf.scan(lambda c, x: (c, x), value, X),
    "cond": lambda value: wf.cond(wf.tensor(True), first, first, value),
    "checkpoint": lambda value: wf.checkpoint(first)(value),
    "save": lambda value: wf.save({"x": value}, "x.safetensors"),
    "Linear": lambda value: wf.nn.Linear(value, 3),
    "Embedding": lambda value: wf.nn.Embedding(value, 3),
    "Conv2d": lambda value: wf.nn.Conv2d(value, 3, 3),
}
LONGEST_SECONDS = 20.0


@pytest.mark.parametrize("thing", HOSTILE)
@pytest.mark.parametrize("taker", TAKERS)
def test_what_was_made_to_do_harm_is_refused_soon(taker: str, thing: str) -> None:
    begun = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attempt(TAKERS[taker], [HOSTILE[thing]], {})
    assert time.perf_counter() - begun < LONGEST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_a_value_that_no_memory_holds_is_refused_by_size() -> None:
    with pytest.raises(wf.OutOfMemoryError) as caught:
        wf.zeros((2**45,))
    assert caught.value.expected == f"room for {2**47} bytes"
    assert isinstance(caught.value, MemoryError)
