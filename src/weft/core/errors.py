"""Errors in one form: the operation, what is wrong, expected, got, how to fix it, and where.

Every error the framework raises on purpose is a `WeftError`. Its fields are what tests assert; its
text is rendered from them. The subclasses are also the standard errors that users already catch.

>>> from weft.core.errors import ShapeError
>>> error = ShapeError("matmul", "inner dimensions differ", expected="a.shape[-1] == b.shape[-2]",
...                    got={"a": "f32[32, 784]", "b": "f32[768, 10]"}, fix="transpose b: b.T")
>>> error.op, error.fix
('matmul', 'transpose b: b.T')
>>> isinstance(error, ValueError)
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import numpy as np

from weft.core.locations import Location, user_location


class WeftError(Exception):
    """The base of all errors: fields `op`, `problem`, `expected`, `got`, `note`, `fix`, `at`.

    `got` maps operand names to the operands themselves (tensors, types or plain values), which are
    rendered here, so that a message can never disagree with what was passed.
    """

    def __init__(
        self,
        op: str,
        problem: str,
        *,
        expected: str,
        got: Mapping[str, object],
        fix: str,
        note: str = "",
        at: Location | None = None,
    ) -> None:
        self.op = op
        self.problem = problem
        self.expected = expected
        self.got = "   ".join(f"{name}: {describe(value)}" for name, value in got.items())
        self.note = note
        self.fix = fix
        self.at = at or user_location()
        super().__init__(self._render())

    def _render(self) -> str:
        got = f"{self.got}      {self.note}" if self.note else self.got
        lines = [f"{self.op}: {self.problem}"]
        lines += [f"  expected  {self.expected}", f"  got       {got}", f"  fix       {self.fix}"]
        if self.at is not None:
            lines.append(f"  at        {self.at}")
            lines += [f"              {line}" for line in self.at.source().splitlines()]
        return "\n".join(lines)

    def called(self, op: str) -> Self:
        """This error, under the name of the function that the user called."""
        self.op = op
        self.args = (self._render(),)
        return self

    def located(self, at: Location | None) -> Self:
        """This error, at another line of the user's."""
        self.at = at
        self.args = (self._render(),)
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(self.__dict__), str(self))


def _rebuild(kind: type[WeftError], fields: dict[str, object], text: str) -> WeftError:
    # not that of the class: MemoryError's makes none of its own subclasses that are others', too
    error: WeftError = Exception.__new__(kind)
    error.__dict__.update(fields)
    error.args = (text,)
    return error


class ShapeError(WeftError, ValueError):
    """Shapes that do not fit the operation or each other."""


class DTypeError(WeftError, TypeError):
    """Element types that the operation is not defined for, or that do not promote."""


class AxisError(WeftError, ValueError, IndexError):
    """An axis that the tensor does not have, or that is named twice."""


class BoundsError(WeftError, IndexError):
    """An index outside the dimension it indexes."""


class OutOfMemoryError(WeftError, MemoryError):
    """A program or a value that needs more memory than there is, or than it was given."""


class ArgumentError(WeftError, ValueError):
    """An argument whose value the operation does not take."""


class ArgumentTypeError(WeftError, TypeError):
    """An argument of a kind the operation does not take."""


class NameUnknownError(WeftError, AttributeError, KeyError):
    """A name that nothing is registered under.

    What to write instead may be a function, called when the error is read: who only asks whether
    there is such a name, as `hasattr` does, does not wait for it.
    """

    def __init__(
        self,
        op: str,
        problem: str,
        *,
        expected: str,
        got: Mapping[str, object],
        fix: str | Callable[[], str],
    ) -> None:
        self._find_fix = fix if callable(fix) else None
        fixed = "" if callable(fix) else fix
        super().__init__(op, problem, expected=expected, got=got, fix=fixed)

    def __str__(self) -> str:
        if self._find_fix is not None:
            self.args = (self._render_whole(),)
        return str(self.args[0])

    @property
    def fix(self) -> str:
        """What to write instead."""
        if self._find_fix is not None:
            find, self._find_fix = self._find_fix, None
            self._fix = find()
            self.args = (self._render_whole(),)
        return self._fix

    @fix.setter
    def fix(self, text: str) -> None:
        self._fix = text

    def _render(self) -> str:
        return self.problem if self._find_fix is not None else self._render_whole()

    def _render_whole(self) -> str:
        return super()._render()

    def __reduce__(self) -> tuple[object, ...]:
        text = str(self)  # what to write is found now: a function cannot be written
        return _rebuild, (type(self), dict(self.__dict__), text)


class ImportNameError(WeftError, ImportError):
    """`from weft.nn import X` where there is no X: an ImportError that says what to write."""


class GradientError(WeftError, RuntimeError):
    """A derivative that cannot be taken the way it was asked for."""


class TraceError(WeftError, TypeError):
    """Python asked a traced tensor for something that only a concrete one has."""


class LeakError(WeftError, RuntimeError):
    """A traced tensor was used after its trace had ended."""


class DeviceError(WeftError, ValueError, BufferError):
    """Memory on a device that the operation cannot reach."""


class NanError(WeftError, ArithmeticError):
    """A value that is not a number, where `wf.debug.nans` asked for none."""


class CheckError(WeftError, AssertionError):
    """What a program asserts does not hold when it runs."""


class MiscompiledError(WeftError, AssertionError):
    """A compiled program that breaks the rules of memory: a mistake of Weft's, not of the user."""


class GraphError(WeftError, ValueError):
    """A graph, or its text, that breaks the rules of the IR."""


class ProcessError(WeftError, RuntimeError):
    """Processes that do not fit together: one is lost, late, missing, or runs another program."""


class Unsupported(NotImplementedError):
    """The one way to leave a capability out: a reason that the user can read.

    It stands in a definition's slot in place of a rule, and is raised when the rule is needed.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def error(self, op: str, wanted: str, got: Mapping[str, object]) -> UnsupportedError:
        """What to raise where the missing rule is needed."""
        without = "wf.stop_gradient(x)" if "derivative" in wanted else "wf.map(f, xs)"
        error = UnsupportedError(
            op,
            self.reason,
            expected=f"an operation with {wanted}",
            got=got,
            fix=f"compute it from other operations, or do without: {without}",
        )
        error.reason = self.reason
        return error


class UnsupportedError(WeftError, Unsupported):
    """A capability that an operation does not have was needed."""


def describe(value: object) -> str:
    """How an operand appears behind `got`: its type where it has one, else its value, cut short."""
    kind = getattr(value, "type", None)
    if kind is not None and hasattr(kind, "shape"):
        return str(kind)
    if isinstance(value, np.ndarray):
        return f"ndarray {value.dtype}{list(value.shape)}"
    if isinstance(value, str):
        return value
    return short_repr(value)


def short_repr(value: object) -> str:
    """The repr of a value, cut short; the class's name if the repr fails.

    >>> short_repr("text"), short_repr(list(range(100)))[-12:]
    ("'text'", '9, 20, 21...')
    """
    try:
        text = repr(value)
    except Exception:  # of what is nested too deeply, or has a faulty repr of its own
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."
