"""A program, run in one of several ways; each gives what the calls of the program return.

`eager` and `jit` are the library's own. `checked` is `jit` in the compiler's checking mode, with
graphs and plans verified. `wide` computes in float64 throughout and is what all others are measured
against; `noisy` does so too and moves each value by a little more than rounding would, so that it
says how much rounding may change the results. `torch` runs the same text with PyTorch behind the
names. `native` is eager too, with every function and primitive of whatever size as a compiled unit;
`again` is eager as users have it, and calls a program that has no state so often that what it does
is remembered. All others compute by reference where they are eager. `plain` runs small programs by
the plain target, whose plans nothing but NumPy computes. `mesh` divides the program among the
devices of a random mesh, with random placements of its inputs, and runs all of them in lockstep.
`cuda` is `jit` on a card and `cuda-eager` eager mode on it; where there is no card, small programs
are run by the one in the host's memory.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tests.compiler.cuda.host_card import host_card
from tests.distributed.random_placements import partition_at_random
from tests.fuzz import script
from tests.fuzz.generate import namespace
from tests.fuzz.program import Program
from tests.fuzz.workers import ON_CARD

import weft as wf
from weft.compiler.pipeline import VERIFYING
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.plain.target import PLAIN
from weft.core.settings import settings

Array = np.ndarray[Any, Any]
Result = list[Array] | Exception
"""What one call gives: its outputs, or what it raises."""
NARROW = re.compile(r"wf\.(float16|bfloat16|float32|complex64)\b")
SMALL = 32
"""The most elements of an input that the plain target is given."""
MANY = 20_000
"""The most elements and operations of a program that it is given."""
SHARES = {"native": 5, "again": 2, "mesh": 4, "cuda-eager": 3}
"""Ways that take long: only every so many programs are run in them."""
SEED = 5
"""Where the global generator begins in each way."""
CALLS = 3
"""How often a function that has state is called."""
MORE_CALLS = 3
"""How many calls of a compiled function follow the first: the last ones go the quick ways."""
REMEMBERED = 3
"""After how many calls eager functions, and the way back over them, are remembered."""


SLOW = "the interpreter of loops would take too long"


class Unusable(Exception):
    """A program that cannot be run in some way, such as one that PyTorch has no words for."""


REFUSED = (wf.UnsupportedError, NotImplementedError, MemoryError, Unusable)
"""What says that a way does not do something, and not that it is wrong."""


def ways_of(seed: int, ways: Sequence[str]) -> tuple[str, ...]:
    """The ways among some that the program of a seed is run in."""
    return tuple(way for way in ways if seed % SHARES.get(way, 1) == 0)


def run(program: Program, way: str, number: int = 0, noise: float = 0.0) -> list[Result]:
    """What each call of a program gives; `number` tells several noisy runs apart."""
    space = namespace()
    text, values = program.function(noisy=way == "noisy"), program.values
    if way in ("wide", "noisy"):
        text = NARROW.sub(lambda found: _wider(found[1]), text)
        space |= {
            "numbers": _wide_numbers,
            "sampled": _wide_sampled,
            "noisy": _Noise(number, noise),
        }
    if way == "noisy":
        noisy = space["noisy"]
        space["repeated"] = lambda f, x, count: script.repeated(lambda y: noisy(f(y)), x, count)
    if way == "torch":
        odd = any(each.layout == "odd" for each in program.inputs)
        if odd or program.ending in ("state", "train"):
            raise Unusable("PyTorch takes NaN otherwise, or writes to views")
        text = text.replace(".astype(", ".to(")
        space |= _torch_namespace()
    by_interpreter = way == "plain" or (way in ON_CARD and not wf.cuda.is_available())
    if by_interpreter and (program.elements > SMALL or not is_plain(program)):
        raise Unusable(SLOW)
    if way == "again" and program.ending not in ("call", "sizes", "alias"):
        raise Unusable("calls of what has state differ")
    exec(text, space)
    wf.random.seed(SEED)
    with _mode(way, program.ending == "tuned"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = script.studied if program.ending == "studied" else wf.jit
        ways = {"jit": compiled, "checked": compiled, "cuda": compiled, "plain": _by_plain_target,
                "again": _called_again}  # fmt: skip
        ways["mesh"] = partial(partition_at_random, seed=_number_of(program))
        turn = ways.get(way, lambda f: f)
        if by_interpreter and way in ON_CARD:
            turn = partial(_on_imitated_card, turn=turn)
        return list(_calls(program, space, values, turn))


def _number_of(program: Program) -> int:
    """A number that a program's text says, the same in every process."""
    return crc32(program.function().encode())


def _torch_namespace() -> dict[str, Any]:
    """The names of scripts with PyTorch behind them."""
    try:
        from tests.fuzz import twin
    except (ImportError, OSError) as error:  # PyTorch is optional, and may lack a library here
        raise Unusable("PyTorch is not installed") from error
    return twin.twin_namespace()


def is_plain(program: Program) -> bool:
    """Whether a program is a function of its inputs, without what loops are slow at."""
    return program.ending in ("call", "sizes", "alias") and "conv" not in program.script


def _called_again(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called with the same tensors before the call that counts."""

    def run_again(*tensors: wf.Tensor) -> Any:
        state = wf.random.get_state()
        for _ in range(REMEMBERED):
            f(*tensors)
            wf.random.set_state(state)
        return f(*tensors)

    return run_again


def _by_plain_target(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is planned for the plain target at each call, and run by it."""

    def run_plainly(*tensors: wf.Tensor) -> list[wf.Tensor]:
        graph = _small_graph(f, *tensors)
        plan = plan_program(graph, PLAIN)
        return [wf.asarray(x) for x in PLAIN.executable(plan).run([x.numpy() for x in tensors])]

    return run_plainly


def _on_imitated_card(f: Callable[..., Any], turn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is run by the card in the host's memory, where it is small enough."""
    turned = turn(f)

    def run_on_card(*tensors: wf.Tensor) -> Any:
        state = wf.random.get_state()
        _small_graph(f, *tensors)
        wf.random.set_state(state)
        return turned(*tensors)

    return run_on_card


def _small_graph(f: Callable[..., Any], *tensors: wf.Tensor) -> wf.ir.Graph:
    """The graph of a function that the interpreter of loops can run in a short time."""
    graph = wf.ir.trace(f, *tensors)
    elements = sum(int(value.type.size) for node in graph.nodes for value in node.results)
    if elements + wf.flops(graph) > MANY:
        raise Unusable(SLOW)
    return graph


@contextmanager
def _mode(way: str, tuned: bool) -> Iterator[None]:
    checked = CHECKED() if way == "checked" else nullcontext()
    chosen = {"eager": "native" if way in ("native", "again") else "reference", "tuning": tuned}
    chosen |= {"eager_elements": 1} if way == "native" else {}
    VERIFYING.extend([True] if way == "checked" else [])
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in chosen.items():  # for good: what is changed for a while in a thread
                patch.setattr(settings, name, value)  # is nothing that native code looks at
            placed = _card() if way in ON_CARD else nullcontext()
            with np.errstate(all="ignore"), checked, placed:
                yield
    finally:
        VERIFYING.clear()


@contextmanager
def _card() -> Iterator[None]:
    """Inside, tensors are made on a card: the machine's own, or one in the host's memory."""
    with pytest.MonkeyPatch.context() as patch:
        imitated = nullcontext() if wf.cuda.is_available() else host_card(patch)
        patch.setattr(settings, "device", "cuda")  # in all threads
        with imitated as card:
            yield
            if card is not None:
                card.check_fences()


CHECKED = getattr(wf.testing, "checked_memory", nullcontext)
"""The compiler's checking mode."""


def has_checking_mode() -> bool:
    """Whether compiled programs can be run with their memory checked."""
    return CHECKED is not nullcontext


def _calls(
    program: Program, space: dict[str, Any], values: str, way: Callable[..., Any]
) -> Iterator[Result]:
    f, names = space["f"], [each.name for each in program.inputs]
    if program.ending == "train":
        f = space["trained"](f, way, program.optimizer)
    else:
        f = way(f)
    for sizes in program.other_sizes() if program.ending == "sizes" else [program.sizes]:
        exec(replace(program, sizes=sizes).values, space)
        given = [space[name] for name in names]
        if program.ending == "state":
            for _ in range(CALLS):
                yield _result(f, given, also=given)
        elif program.ending == "thread":
            yield from _together(f, given)
        else:
            yield _result(f, given)
        if program.ending in ("call", "tuned"):
            for _ in range(MORE_CALLS if program.ending == "call" else 1):
                yield _result(f, given)
        if program.ending == "alias":
            yield _result(f, [space[name] for name in program.aliased])


def _result(f: Callable[..., Any], given: Sequence[Any], also: Sequence[Any] = ()) -> Result:
    try:
        results = f(*given)
        _check_tapes(results, given)
        return [_array(each) for each in [*results, *also]]
    except Exception as error:
        if not isinstance(error, REFUSED):
            # eager mode has drawn what stands before the error, and a compiled function nothing
            wf.random.seed(SEED + 1)
        return error


def _check_tapes(results: Sequence[Any], given: Sequence[Any]) -> None:
    """Refuse results that cannot be read: on a tape, with nothing to take a derivative by."""
    asked = any(getattr(each, "requires_grad", False) for each in given)
    if not asked and any(getattr(each, "requires_grad", False) for each in results):
        raise AssertionError("a result is on the tape of a derivative that is over")


def _together(f: Callable[..., Any], given: Sequence[Any]) -> list[Result]:
    """Two calls at the same time."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(_result(f, given)))
    thread.start()
    own = _result(f, given)
    thread.join()
    return [own, *results]


def _array(value: Any) -> Array:
    if isinstance(value, wf.Tensor):
        return np.array(value.detach().numpy())
    value = value.detach()
    return np.array((value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy())


def _wider(name: str) -> str:
    return "wf.complex128" if name == "complex64" else "wf.float64"


def _wide_numbers(dtype: str, shape: tuple[int, ...], seed: int, layout: str = "") -> Any:
    return _widened(script.numbers(dtype, shape, seed, layout))


def _widened(x: Any) -> Any:
    if x.dtype.is_complex:
        return x.astype(wf.complex128)
    return x.astype(wf.float64) if x.dtype.is_inexact else x


def _wide_sampled(name: str, number: int, scale: Any) -> Any:
    """A sample in the dtypes that it has, as parameters may name them; its results are widened."""
    results = script.sampled(name, number, scale)
    if isinstance(results, tuple):
        return tuple(_widened(each) for each in results)
    return _widened(results)


class _Noise:
    """Moves values by a relative amount; each call has numbers of its own.

    Every other run has zeros where a narrow dtype may underflow.
    """

    def __init__(self, seed: int, amount: float) -> None:
        self.rng, self.amount = np.random.default_rng([seed, 9]), amount
        is_half = 2e-3 < amount < 2e-2  # four roundings of float16, of which bfloat16 has more
        least = np.finfo(np.float16 if is_half else np.float32).smallest_normal
        self.least = float(least) if seed % 2 else 0.0

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, wf.Tensor) or not x.dtype.is_inexact or x.size == 0:
            return x
        moved = 1.0 + self.amount * self.rng.choice([-1.0, 1.0], tuple(int(n) for n in x.shape))
        x = x * wf.asarray(moved).astype(x.dtype)
        return wf.where(wf.abs(x) < self.least, 0.0, x) if self.least else x
