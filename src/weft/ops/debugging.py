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

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.core.dtypes import bool_, from_numpy
from weft.core.errors import CheckError, NanError
from weft.core.locations import Location
from weft.core.settings import settings
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.batching import to_front
from weft.ir.derivatives import constant, every
from weft.ir.dispatch import OBSERVERS, apply, quiet
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor, wrap
from weft.ops import contraction, families

__all__: list[str] = []

Array = np.ndarray[Any, Any]
TOKEN = TensorType(bool_, ())
_token = every(lambda index: constant("what is shown has no derivative"))


def _token_type(*operands: TensorType, **params: Any) -> TensorType:
    return TOKEN


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


class Shown:
    """An array in a format string: `{}` its values, `{:.3f}` each of them so, `{.shape}` a part."""

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


def _print(*arrays: Array, text: str, rows: int) -> Array:
    for values in _elements(arrays, rows):
        sys.stdout.write(text.format(*map(Shown, values)) + "\n")
    return np.asarray(True)


def _print_samples() -> list[Sample]:
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    return [
        Sample((x, np.array(2)), {"text": "x = {0:.2f}, n = {1}", "rows": 0}, derivative=False),
        Sample((), {"text": "here", "rows": 0}, derivative=False),
    ]


debug_print: Primitive = Primitive(
    "debug_print",
    "Prints a line with values in it, once for each element of a batch.",
    type_rule=_token_type,
    reference=_print,
    derivatives=_token,
    batch=_batch(lambda: debug_print),
    samples=_print_samples,
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


def _stop_samples() -> list[Sample]:
    """Of a batch without elements, so that nothing stops."""
    params = {"names": ("x",), "file": "train.py", "line": 1, "rows": 1}
    return [Sample((np.zeros((0, 2), np.float32),), params, derivative=False)]


debug_breakpoint: Primitive = Primitive(
    "debug_breakpoint",
    "Stops in the debugger with values at hand, once for each element of a batch.",
    type_rule=_token_type,
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
        raise CheckError(
            "assert",
            text,
            expected="a test that holds when the program runs",
            got={"test": False},
            note=f"for {failed} of {holds.size} elements of a batch" if rows else "",
            fix=fix,
            at=Location(file, line, function) if file else None,
        )
    return np.asarray(True)


def _check_samples() -> list[Sample]:
    params = {"text": "x > 0", "fix": "make it so", "file": "f.py", "line": 1, "function": "f"}
    return [Sample((np.array(True),), {**params, "rows": 0}, derivative=False)]


def _check_mistakes() -> list[Mistake]:
    params = {"text": "no", "fix": "yes", "file": "f.py", "line": 1, "function": "f", "rows": 0}
    return [Mistake((np.array(False),), params, CheckError, "no")]


debug_check: Primitive = Primitive(
    "debug_check",
    "Raises where a test does not hold, for any element of a batch.",
    type_rule=_token_type,
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
    """Raise at the user's line where a result holds NaN; constants are what they are."""
    if arrays and any(map(has_nan, results)):
        raise nan_found(primitive.name, arrays, results, location) from None


def nan_found(
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

    lock = threading.Lock()
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
            module.quiet = _closed if _ShortPaths.closed else quiet  # type: ignore[attr-defined]


def _closed(*_: Any) -> Any:
    """Stands in the place of a short path: what it does must be seen, so the long way is taken."""
    raise RuntimeError
