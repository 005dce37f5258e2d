"""Whether a program gives the same in all ways, up to what rounding may change.

The judge is the program in float64, and how far it moves when each of its values is disturbed by
about as much as the narrowest dtype rounds. So a result near a kink, a tie or a cancellation is not
called wrong, and one that is exact is compared exactly.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from tests.fuzz.program import Program
from tests.fuzz.run import REFUSED, Result, has_checking_mode, run

import weft as wf
from weft.ir.primitive import PRIMITIVES

Array = np.ndarray[Any, Any]
DISTURBED = 4.0
"""How many times the rounding of the narrowest dtype values are disturbed by."""
SPREAD, SCALE = 12.0, 24.0
"""How many times the spread, and the rounding of the largest element, a result may be off."""
FINEST = 2e-13
"""The rounding that float64 is given: functions of a machine differ by more than one step."""
USUAL = 0.5
"""The size of the numbers that cancel where a result is much smaller, such as a derivative of 0;
where n of them are added up, n**0.7 times as much is rounded: √n if each sum were near 0."""
EAGER, PYTORCH = 256.0, 16.0
"""How many times more eager mode, and PyTorch, may be off: rules of derivatives read results as
they were before they were disturbed, so that what cancels inside of one is not in the spread."""
ATTENTION = 32.0
"""How many times more a compiled gradient through attention may be off: it takes what each row of
probabilities gives from the results, so that what cancels in eager mode leaves its rounding."""
TRAINED = 64.0
"""How many times more is rounded in three steps of training."""
MORE_RUNS = 8
"""How many more disturbed runs there are before a result is called wrong."""
DIFFERS = "differs"
"""What is said of numbers that are wrong."""
COARSE = 1e-4
"""Dtypes that round more than this are compared with eager mode, but say nothing of it."""
PACKAGE = Path(wf.__file__).parent


NARROW = 1e-12
"""Roundings above it are those of float32, and of what is narrower."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong with a program: in which way it was run, and what happened."""

    way: str
    what: str
    detail: str = ""

    def is_like(self, other: Failure | None) -> bool:
        """Whether it is the same failure, of a smaller program."""
        return other is not None and (self.way, self.what) == (other.way, other.what)

    def __str__(self) -> str:
        return f"{self.way}: {self.what}" + (f" ({self.detail})" if self.detail else "")


def examine(
    program: Program, ways: Sequence[str], compared: list[str] | None = None
) -> Failure | None:
    """The first failure of a program; None where all agree, or where it cannot be run eagerly.

    The names of the ways that could be compared are added to a list, where one is given.
    """
    eager = run(program, "eager")
    if all(isinstance(each, Exception) for each in eager):
        return None
    wide = run(program, "wide")
    noise = DISTURBED * rounding(program, eager)
    others = [run(program, "noisy", number, noise) for number in (1, 2)]
    usual = USUAL * max(1.0, program.elements**0.7)
    usual *= TRAINED if program.ending == "train" else 1.0
    judge = [_Judge(each, noise / DISTURBED, usual) for each in zip(wide, *others, strict=True)]
    failure = _compared("eager", eager, eager, judge, EAGER)
    if failure is not None and failure.what == DIFFERS:
        judge = _more_runs(program, judge, noise)
        failure = _compared("eager", eager, eager, judge, EAGER)
    for way in ways if failure is None else ():
        if way == "checked" and not has_checking_mode():
            continue
        try:
            found = run(program, way)
        except REFUSED:
            continue
        if compared is not None:
            compared.append(way)
        if failure is None:
            factor = _factor(program, way)
            failure = _compared(way, found, eager, judge, factor)
            if failure is not None and failure.what == DIFFERS:
                judge = _more_runs(program, judge, noise)
                failure = _compared(way, found, eager, judge, factor)
    return failure


def _more_runs(program: Program, judge: list[_Judge], noise: float) -> list[_Judge]:
    """The judge with more disturbed runs: two may miss the other side of a step or a tie.

    They are disturbed as much as the others, so that the spread of a smooth program hardly grows.
    """
    others = [run(program, "noisy", number, noise) for number in range(3, 3 + MORE_RUNS)]
    added_runs = zip(*others, strict=True)
    return [each.with_runs(added) for each, added in zip(judge, added_runs, strict=True)]


def _factor(program: Program, way: str) -> float:
    """How many times more a way may be off than rounding explains."""
    text = program.script.split("def f(")[1]
    derived = {"gradients", "valued"}.intersection(program.transforms) or "wf.grad(" in text
    attends = ("attention" in text or "softmax" in text) and derived
    return max(PYTORCH if way == "torch" else 1.0, ATTENTION if attends else 1.0)


def rounding(program: Program, results: Sequence[Result]) -> float:
    """The rounding of the narrowest dtype in a program."""
    text = program.script.split("def f(")[1]
    arrays = [array for each in results if isinstance(each, list) for array in each]
    names = {str(array.dtype) for array in arrays}
    steps = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "complex64": 2.0**-24}
    found = [step for name, step in steps.items() if name in names or _mentions(text, name)]
    for name, number in re.findall(r"sampled\('(\w+)', (\d+)", text):
        sample = list(PRIMITIVES[name].samples())[int(number)]
        found += [steps.get(str(np.asarray(x).dtype), 0.0) for x in sample.operands]
    if "sampled(" in text or "one_hot" in text or "int" in text or "bool" in text or ">" in text:
        found.append(steps["float32"])  # whole numbers become float32
    return max(found, default=FINEST)


def _mentions(text: str, name: str) -> bool:
    without = text.replace("bfloat16", "") if name == "float16" else text
    return name in without


def _compared(
    way: str,
    found: Sequence[Result],
    eager: Sequence[Result],
    judge: Sequence[_Judge],
    factor: float,
) -> Failure | None:
    for number, (one, reference, expected) in enumerate(zip(found, eager, judge, strict=True)):
        if isinstance(reference, Exception):
            continue
        if isinstance(one, REFUSED) or (way == "torch" and isinstance(one, Exception)):
            continue
        if isinstance(one, Exception):
            return Failure(way, f"raises {type(one).__name__} at {place(one)}", str(one)[:300])
        failure = _outputs(way, one, reference, expected, factor)
        if failure is not None:
            return replace(failure, detail=f"call {number}, {failure.detail}")
    return None


def _outputs(
    way: str, found: list[Array], eager: list[Array], judge: _Judge, factor: float
) -> Failure | None:
    if len(found) != len(eager):
        return Failure(way, DIFFERS, f"{len(found)} outputs, not {len(eager)}")
    for number, (one, other) in enumerate(zip(found, eager, strict=True)):
        if one.shape != other.shape:
            return Failure(
                way, "has another shape", f"output {number}: {one.shape}, not {other.shape}"
            )
        if way != "torch" and one.dtype != other.dtype:
            return Failure(
                way, "has another dtype", f"output {number}: {one.dtype}, not {other.dtype}"
            )
        if way == "torch" and one.dtype.kind in "fc":
            one = np.where(np.isnan(one), other, one)  # it has NaN where a limit exists
        wrong = judge.wrong(number, one, None if way == "eager" else other, factor)
        if wrong is not None:
            return Failure(way, DIFFERS, f"output {number}: {wrong}")
    return None


class _Judge:
    """The results of one call in float64, with those of disturbed runs."""

    def __init__(self, results: Sequence[Result], step: float, usual: float) -> None:
        runs = [each for each in results if isinstance(each, list)]
        self.usable = len(runs) == len(results) and len({len(each) for each in runs}) == 1
        self.runs, self.step, self.usual = runs, step, usual
        self._known: dict[int, _Expected] = {}

    def with_runs(self, added: Sequence[Result]) -> _Judge:
        """The judge with further disturbed runs; those that raise say nothing."""
        if not self.usable:
            return self
        return _Judge(
            [*self.runs, *(x for x in added if isinstance(x, list))], self.step, self.usual
        )

    def wrong(self, number: int, found: Array, eager: Array | None, factor: float) -> str | None:
        """What is wrong with an output; None where nothing is, or nothing can be said.

        What is as eager mode has it is right, unless it is eager mode that is looked at: a value
        that a narrow dtype rounds to a tie is a tie there.
        """
        if not self.usable or (eager is None and self.step > COARSE):
            return None
        if self.runs[0][number].shape != found.shape or not found.size:
            return None
        expected = self._expected(number)
        wide = expected.wide
        largest, found = _largest(found.dtype), _plain(found)
        if self.step > NARROW:  # a total in float64 may be made of narrower numbers
            largest = min(largest, _largest(np.dtype(np.float32)))
        if wide.dtype.kind in "iub":
            known = eager is not None and np.array_equal(eager, wide)
            sure = known and all(np.array_equal(each, wide) for each in expected.noisy)
            return _described(found != wide, found, wide) if sure else None
        with np.errstate(all="ignore"):
            reference = wide if eager is None else _plain(eager)
            same = (found == reference) | (np.isnan(found) & np.isnan(reference))
            if same.all():
                return None
            places = self._wrong_floats(found, reference, same, expected, factor)
            # what overflows in a narrower dtype, or on the way there, is no number
            most = self._most_of_outputs
            beyond = (np.abs(wide) > largest / 4) | (~np.isfinite(found) & (most > largest**0.5))
            # and so is what is made of numbers so small that their inverses, multiplied, do
            beyond |= ~np.isfinite(found) & (np.abs(wide) < largest**-0.75)
            return _described(places & ~beyond, found, wide)

    def _expected(self, number: int) -> _Expected:
        """What the runs say of an output, which is asked for once for every way."""
        if number not in self._known:
            with np.errstate(all="ignore"):
                self._known[number] = _expected_of(*[_plain(each[number]) for each in self.runs])
        return self._known[number]

    @cached_property
    def _most_of_outputs(self) -> float:
        return max(_most_finite(_plain(each)) for each in self.runs[0])

    def _wrong_floats(
        self, found: Array, eager: Array, same: Array, expected: _Expected, factor: float
    ) -> Array:
        wide, scale = expected.wide, expected.scale
        limit = factor * (SPREAD * expected.spread + SCALE * self.step * max(scale, self.usual))
        if limit > 0.3 * scale:  # rounding alone may change everything, but makes no NaN
            limit = np.inf
        places = expected.both & ~same & ~(np.abs(found - wide) <= limit)
        places &= ~(np.abs(found - eager) <= limit)
        places |= expected.lost & ~np.isnan(found) & np.isnan(eager)
        places |= expected.endless & (eager == wide) & (found != wide)
        return np.asarray(places)


class _Expected(NamedTuple):
    """An output in float64 and in disturbed runs, and where these say something of it."""

    wide: Array
    noisy: list[Array]
    both: Array
    """Where all agree that it is finite."""
    lost: Array
    endless: Array
    spread: float
    scale: float


def _expected_of(wide: Array, *noisy: Array) -> _Expected:
    if wide.dtype.kind in "iub":
        return _Expected(wide, [*noisy], wide, wide, wide, 0.0, 0.0)
    finite = np.isfinite(wide)
    both = finite & np.logical_and.reduce([np.isfinite(each) == finite for each in noisy])
    lost = np.isnan(wide) & np.logical_and.reduce([np.isnan(each) for each in noisy])
    endless = np.isinf(wide) & np.logical_and.reduce([each == wide for each in noisy])
    spread = max((_most(np.abs(each - wide)[both]) for each in noisy), default=0.0)
    return _Expected(wide, [*noisy], both, lost, endless, spread, _most(np.abs(wide)[both]))


def _most_finite(x: Array) -> float:
    """The greatest number of an output, which may be what another one is made of."""
    return float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))


def _described(places: Array, found: Array, wide: Array) -> str | None:
    count = int(np.count_nonzero(places))
    if not count:
        return None
    first = tuple(int(i) for i in np.argwhere(places)[0]) if places.ndim else ()
    return f"{count} of {places.size} elements, at {first} {found[first]!r}, not {wide[first]!r}"


def _largest(dtype: np.dtype[Any]) -> float:
    return np.inf if dtype.kind in "iub" else float(ml_dtypes.finfo(dtype).max)


def _most(numbers: Array) -> float:
    return float(np.max(numbers, initial=0.0))


def _plain(array: Array) -> Array:
    """An array in a dtype that NumPy computes with."""
    if array.dtype.kind in "iub":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def place(error: BaseException) -> str:
    """The last line of the library that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    if not own:
        return "a script"
    return f"{Path(own[-1].filename).relative_to(PACKAGE)}:{own[-1].lineno}"
