"""Looking at values while a program runs: prints and breakpoints as primitives, and the NaN check.

A print is a node like any other, so it happens where it stands in every mode: at once, in a loop's
body, in compiled code. It has an effect, so it is neither merged nor dropped, and a derivative,
which computes again what has been shown, does not show it twice. Its result is a mere token.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: wf.debug.print("x = {}", x) or x * 2, wf.spec("float32", (2,)))
>>> [node.primitive.name for node in graph.nodes]
['debug_print', 'multiply']
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from string import Formatter
from typing import Any, NamedTuple

import numpy as np

from weft.core.dtypes import bool_, from_numpy
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckError,
    NanError,
    ShapeError,
    Unsupported,
)
from weft.core.forks import renew_in_children
from weft.core.locations import Location
from weft.core.settings import settings
from weft.core.shapes import Dimension, equal
from weft.core.types import TensorType
from weft.ir.batching import to_front
from weft.ir.derivatives import constant, every
from weft.ir.dispatch import OBSERVERS, apply, quiet
from weft.ir.kinds import Effect
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor, wrap
from weft.ops import contraction, families

__all__: list[str] = []

Array = np.ndarray[Any, Any]
TOKEN = TensorType(bool_, ())
LAST_LINE = 10_000_000
LONGEST_NUMBER = 3
"""The most digits of a width or a precision: a line is not filled up with millions of blanks."""
_token = every(lambda index: constant("what is shown has no derivative"))


def _check_rows(op: str, operands: Sequence[TensorType], rows: int) -> None:
    """Refuse batch axes that the operands do not have, or not all of one size."""
    fronts = [operand.shape[:rows] for operand in operands] if _is_count(rows) else [(0,)]
    agree = all(len(front) == rows and all(map(equal, front, fronts[0])) for front in fronts)
    if not (_is_count(rows) and agree):
        raise ShapeError(
            op,
            "these are not the batch axes of all operands",
            expected="rows: how many axes of a batch stand in front of every operand",
            got={**{f"x{i + 1}": x for i, x in enumerate(operands)}, "rows": rows},
            fix="call the function under wf.vmap, which counts them",
        )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _check_place(op: str, file: object, line: object, *texts: object) -> None:
    """Refuse a location or a text of the wrong type."""
    if not all(isinstance(text, str) for text in (file, *texts)) or not (
        type(line) is int and 0 <= line <= LAST_LINE
    ):
        raise ArgumentTypeError(
            op,
            "this is no place in a source file",
            expected=f"texts, and a line of at most {LAST_LINE}",
            got={"file": file, "line": line},
            fix="trace the function again: wf.ir.trace(f, ...)",
        )


def _elements(arrays: Sequence[Array], rows: int) -> Iterator[list[Array]]:
    """The arrays of each element of a batch: `rows` batch axes stand in front of all of them."""
    for index in np.ndindex(arrays[0].shape[:rows] if arrays else ()):
        yield [array[index] for array in arrays]


def _batch(primitive: Callable[[], Primitive]) -> Callable[..., Any]:
    """One more batch axis in front of every operand: the effect happens for each element."""

    def batch(
        size: Dimension,
        operands: tuple[Tensor, ...],
        axes: tuple[int | None, ...],
        *,
        rows: int,
        **params: Any,
    ) -> tuple[Tensor, None]:
        fronts = [to_front(size, x, axis) for x, axis in zip(operands, axes, strict=True)]
        return apply(primitive(), *fronts, rows=rows + 1, **params), None

    return batch


# --- prints ------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A part of a line to print: text, then a place with the name or number of its value."""

    before: str
    field: str | None
    form: str
    conversion: str | None


_CONVERSIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda value: value,
    "s": str,
    "r": repr,
    "a": ascii,
}


def places(text: str) -> list[Place]:
    """The parts of a text; a place takes a whole value, in a form of its own.

    Attributes and items are refused: through them a text that came with a file could read all
    that the program knows.

    >>> places("x = {0:.2f}")
    [Place(before='x = ', field='0', form='.2f', conversion=None)]
    """
    try:
        parsed_places = [Place(a, b, c or "", d) for a, b, c, d in Formatter().parse(text)]
    except (ValueError, TypeError) as error:
        raise wrong_text(str(error), text) from None
    for place in parsed_places:
        if place.field and not (place.field.isidentifier() or _is_number(place.field)):
            raise wrong_text(f"{place.field!r} is a part of a value", text, whole=True)
        if "{" in place.form or re.search(rf"\d{{{LONGEST_NUMBER + 1}}}", place.form):
            raise wrong_text(f"{place.form!r} is no plain form of a value", text, whole=True)
        if place.conversion not in _CONVERSIONS:
            raise wrong_text(f"there is no conversion {place.conversion!r}", text)
    return parsed_places


def _is_number(field: str) -> bool:
    return field.isascii() and field.isdecimal() and len(field) < 10


def format_value(place: Place, value: Any) -> str:
    """A value as a place shows it."""
    try:
        return format(_CONVERSIONS[place.conversion](value), place.form)
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong_text(str(error), f"{{:{place.form}}}") from None


def wrong_text(problem: str, text: object, whole: bool = False) -> ArgumentError:
    """The error for a text that cannot be printed with values in it."""
    return ArgumentError(
        "debug.print",
        problem,
        expected="places for whole values, as in {}, {0:.3f}, {loss}"
        if whole
        else "a place in the text for each value, and a value for each place",
        got={"text": repr(text)},
        fix='wf.debug.print("{} of {}", x.shape, x)'
        if whole
        else 'wf.debug.print("x = {}, y = {y}", x, y=y)',
    )


class Shown:
    """An array in a line: `{}` its values, `{:.3f}` each of them so."""

    def __init__(self, array: Array) -> None:
        self._array = np.asarray(array)

    def __format__(self, specification: str) -> str:
        array = self._array
        if from_numpy(array.dtype).numpy.kind == "V":  # NumPy does not know how to write them
            array = array.astype(np.float32)
        if not specification:
            return np.array2string(
                array,
                separator=", ",
                threshold=settings.print_elements,
                precision=settings.print_precision,
            )
        if array.ndim == 0:
            return format(array.item(), specification)
        return np.array2string(
            array,
            separator=", ",
            threshold=settings.print_elements,
            formatter={"all": lambda element: format(element, specification)},
        )

    __str__ = __repr__ = lambda self: format(self, "")


def _numbered_places(text: str, count: int) -> list[Place]:
    """The parts of a text whose places hold the numbers of operands."""
    parsed_places = places(text)
    for field in [place.field for place in parsed_places if place.field is not None]:
        if not (_is_number(field) and int(field) < count):
            raise wrong_text(f"there is no operand {field!r}", text)
    return parsed_places


def _print_type(*operands: TensorType, text: str, rows: int) -> TensorType:
    _check_rows("debug.print", operands, rows)
    _numbered_places(text, len(operands))
    return TOKEN


def _print(*arrays: Array, text: str, rows: int) -> Array:
    parts = _numbered_places(text, len(arrays))
    for values in _elements(arrays, rows):
        line = ""
        for place in parts:
            line += place.before
            if place.field is not None:
                line += format_value(place, Shown(values[int(place.field)]))
        sys.stdout.write(line + "\n")
    return np.asarray(True)


def _print_samples() -> list[Sample]:
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    return [
        Sample((x, np.array(2)), {"text": "x = {0:.2f}, n = {1}", "rows": 0}, derivative=False),
        Sample((), {"text": "here", "rows": 0}, derivative=False),
    ]


def _print_mistakes() -> list[Mistake]:
    x = np.zeros(2, np.float32)
    return [
        Mistake((x,), {"text": text, "rows": 0}, ArgumentError, problem)
        for text, problem in [
            ("{0.__class__}", "a part of a value"),
            ("{0[0]}", "a part of a value"),
            ("{0:{0}}", "no plain form"),
            ("{0:9999}", "no plain form"),
            ("{0!x}", "no conversion"),
            ("{1}", "no operand"),
            ("{x}", "no operand"),
            ("{", "Single"),
        ]
    ] + [Mistake((x,), {"text": "{0}", "rows": 2}, ShapeError, "batch axes")]


debug_print: Primitive = Primitive(
    "debug_print",
    "Prints a line with values in it, once for each element of a batch.",
    kind=Effect(),
    lower=Unsupported("it has an effect"),
    type_rule=_print_type,
    reference=_print,
    derivatives=_token,
    batch=_batch(lambda: debug_print),
    samples=_print_samples,
    mistakes=_print_mistakes,
    impure=True,
)


# --- breakpoints -------------------------------------------------------------------------------


def _stop(*arrays: Array, names: tuple[str, ...], file: str, line: int, rows: int) -> Array:
    """Call Python's breakpoint hook from a frame at the user's line, with values as its locals."""
    stop = compile("\n" * (line - 1) + "__breakpointhook__()", file, "exec")
    for values in _elements(arrays, rows):
        known = dict(zip(names, [wrap(np.array(value)) for value in values], strict=True))
        exec(stop, {"__breakpointhook__": sys.breakpointhook, "__name__": "weft.debug"}, known)
    return np.asarray(True)


def _stop_type(
    *operands: TensorType, names: tuple[str, ...], file: str, line: int, rows: int
) -> TensorType:
    _check_rows("debug.breakpoint", operands, rows)
    _check_place("debug.breakpoint", file, line, *names)
    if len(names) != len(operands):
        raise ArgumentError(
            "debug.breakpoint",
            "there is not one name for each operand",
            expected=f"{len(operands)} names",
            got={"names": names},
            fix="wf.debug.breakpoint(x=x)",
        )
    return TOKEN


def _stop_samples() -> list[Sample]:
    """Of a batch without elements, so that nothing stops."""
    params = {"names": ("x",), "file": "train.py", "line": 1, "rows": 1}
    return [Sample((np.zeros((0, 2), np.float32),), params, derivative=False)]


debug_breakpoint: Primitive = Primitive(
    "debug_breakpoint",
    "Stops in the debugger with values at hand, once for each element of a batch.",
    kind=Effect(),
    lower=Unsupported("it has an effect"),
    type_rule=_stop_type,
    reference=_stop,
    derivatives=_token,
    batch=_batch(lambda: debug_breakpoint),
    samples=_stop_samples,
    impure=True,
)


# --- checks ------------------------------------------------------------------------------------


def _check(
    holds: Array, *, text: str, fix: str, file: str, line: int, function: str, rows: int
) -> Array:
    """Raise at the user's line unless every element of the batch holds."""
    if not holds.all():
        failed = int(holds.size - np.count_nonzero(holds))
        at = _checks.get((file, line, function))
        notes = [f"for {failed} of {holds.size} elements of a batch"] if rows else []
        notes += [f"the test stands in {file}:{line}"] if file and at is None else []
        raise CheckError(
            "assert",
            text,
            expected="a test that holds when the program runs",
            got={"test": False},
            note="   ".join(notes),
            fix=fix,
            at=at,
        )
    return np.asarray(True)


_checks: dict[tuple[str, int, str], Location] = {}
"""Where this process itself has put tests: the only places whose source an error shows. A graph
from elsewhere may name any file, and the line would stand in the log of whoever runs it."""


def check_place(at: Location | None) -> dict[str, Any]:
    """The parameters of a check that stands at a place of the user's."""
    if at is None:
        return {"file": "", "line": 0, "function": ""}
    _checks[at.file, at.line, at.function] = at
    return {"file": at.file, "line": at.line, "function": at.function}


def _check_type(
    holds: TensorType, *, text: str, fix: str, file: str, line: int, function: str, rows: int
) -> TensorType:
    _check_rows("assert", [holds], rows)
    _check_place("assert", file, line, function, text, fix)
    return TOKEN


def _check_samples() -> list[Sample]:
    params = {"text": "x > 0", "fix": "make it so", "file": "f.py", "line": 1, "function": "f"}
    return [Sample((np.array(True),), {**params, "rows": 0}, derivative=False)]


def _check_mistakes() -> list[Mistake]:
    params = {"text": "no", "fix": "yes", "file": "f.py", "line": 1, "function": "f", "rows": 0}
    return [Mistake((np.array(False),), params, CheckError, "no")]


debug_check: Primitive = Primitive(
    "debug_check",
    "Raises where a test does not hold, for any element of a batch.",
    kind=Effect(),
    lower=Unsupported("it has an effect"),
    type_rule=_check_type,
    reference=_check,
    derivatives=_token,
    batch=_batch(lambda: debug_check),
    samples=_check_samples,
    mistakes=_check_mistakes,
    impure=True,
)


# --- NaN ---------------------------------------------------------------------------------------


def has_nan(array: Any) -> bool:
    """Whether some element is not a number."""
    array = np.asarray(array)
    return from_numpy(array.dtype).is_inexact and bool(np.isnan(array).any())


def refuse_nan(
    primitive: Primitive,
    arrays: Sequence[Any],
    results: Sequence[Any],
    location: Location | None,
) -> None:
    """Raise at the user's line if a result holds NaN; constants may hold it."""
    if arrays and any(map(has_nan, results)):
        raise nan_error(primitive.name, arrays, results, location) from None


def nan_error(
    op: str, arrays: Sequence[Any], results: Sequence[Any], location: Location | None
) -> NanError:
    """The error for a result that holds NaN, made here or already given."""
    given = [index for index, array in enumerate(arrays) if has_nan(array)]
    problem = f"x{given[0] + 1} already holds NaN" if given else "the first NaN is made here"
    total = sum(np.isnan(np.asarray(result)).sum() for result in results if has_nan(result))
    size = sum(np.size(result) for result in results)
    fix = (
        "look at where this operand comes from, or replace it: wf.nan_to_num(x)"
        if given
        else _FIXES.get(op, 'look at the operands before this line: wf.debug.print("{}", x)')
    )
    return NanError(
        op,
        problem,
        expected="numbers only, inside wf.debug.nans()",
        got={f"x{index + 1}": _range(array) for index, array in enumerate(arrays)},
        note=f"{total} of {size} elements of the result are NaN",
        fix=fix,
        at=location,
    )


_FIXES = {
    "log": "keep the operand positive: wf.log(wf.maximum(x, 1e-12))",
    "sqrt": "keep the operand from going below zero: wf.sqrt(wf.maximum(x, 0))",
    "divide": "keep 0 / 0 out: a / wf.where(b == 0, 1, b)",
}


def _range(array: Any) -> str:
    """An operand by its type and the range of its elements."""
    array = np.asarray(array)
    kind = TensorType(from_numpy(array.dtype), array.shape)
    if array.size == 0 or kind.dtype.is_complex or kind.dtype is bool_:
        return str(kind)
    numbers = array.astype(np.float64)
    if np.isnan(numbers).all():
        return f"{kind} all NaN"
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    return f"{kind} = {low:.4g}" if array.ndim == 0 else f"{kind} in [{low:.4g}, {high:.4g}]"


@contextmanager
def observed_for_nan() -> Iterator[None]:
    """Check every primitive that is computed by reference inside, in all threads."""
    OBSERVERS.append(refuse_nan)
    try:
        with without_short_paths():
            yield
    finally:
        OBSERVERS.remove(refuse_nan)


class _ShortPaths:
    """How many `with` blocks want the short paths closed, in all threads."""

    lock = renew_in_children(threading.Lock())
    closed = 0


@contextmanager
def without_short_paths() -> Iterator[None]:
    """Let every call inside go through `bind`; in other threads, too, which only takes longer."""
    _close_short_paths(1)
    try:
        yield
    finally:
        _close_short_paths(-1)


def _close_short_paths(more: int) -> None:
    with _ShortPaths.lock:
        _ShortPaths.closed += more
        for module in (families, contraction):
            module.quiet = _no_short_path if _ShortPaths.closed else quiet  # type: ignore[attr-defined]


def _no_short_path(*_: Any) -> Any:
    """In place of a short path: calls must be seen, so they all take the long path."""
    raise RuntimeError
