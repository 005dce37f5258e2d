"""Debugging: prints, breakpoints and a NaN check that work eagerly, in transforms and compiled.

>>> import weft as wf
>>> @wf.jit
... def f(x):
...     y = x * 2
...     wf.debug.print("y = {}, mean {:.1f}", y, y.mean())
...     return y
>>> f(wf.tensor([1.0, 2.0])).tolist()
y = [2., 4.], mean 3.0
[2.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from weft.core.errors import ArgumentTypeError
from weft.core.locations import user_frame
from weft.ir.dispatch import apply
from weft.ir.tensor import Tensor
from weft.ops.debugging import (
    Place,
    debug_breakpoint,
    debug_print,
    format_value,
    observed_for_nan,
    places,
    wrong_text,
)

__all__ = ["breakpoint", "nans", "print"]


def print(text: str, /, *values: Any, **named: Any) -> None:
    """Print a line whenever the program comes here, with values in the places of `text`.

    Places are those of `str.format` for whole values: `{}`, `{0:.3f}`, `{loss}`. Tensors are shown
    with the values they have when the program runs; under `vmap` there is a line for each element,
    under `grad` and `jvp` the values are the primals. What is not a tensor is written as it is now.

    >>> import weft as wf
    >>> wf.debug.print("{name} {x:.2f}", name="loss", x=wf.tensor([1.0, 0.5]))
    loss [1.00, 0.50]
    >>> wf.vmap(lambda x: wf.debug.print("{}", x))(wf.tensor([1, 2]))
    1
    2
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(
            "debug.print",
            "the first argument is not a text with places for the values",
            expected="a string as for str.format",
            got={"text": text},
            fix='wf.debug.print("x = {}", x)',
        )
    written, tensors = _Places(text, values, named).filled_text()
    apply(debug_print, *tensors, text=written, rows=0)


class _Places:
    """A format text: values are filled in now, tensors get numbered places."""

    def __init__(self, text: str, values: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.text, self.values, self.named = text, values, named
        self.tensors: list[Tensor] = []
        self.used: set[int] = set()
        self.next = 0

    def filled_text(self) -> tuple[str, list[Tensor]]:
        """The text with places 0, 1, … for tensors alone, and these tensors."""
        written = "".join(
            _escape_braces(part.before) + self._place(part) for part in places(self.text)
        )
        if len(self.used) < len(self.values):
            raise wrong_text(f"{len(self.values)} values for {len(self.used)} places", self.text)
        return written, self.tensors

    def _place(self, place: Place) -> str:
        if place.field is None:
            return ""
        value = self._value(place.field)
        if not isinstance(value, Tensor):
            return _escape_braces(format_value(place, value))
        position = next((i for i, t in enumerate(self.tensors) if t is value), len(self.tensors))
        self.tensors += [value] if position == len(self.tensors) else []
        conversion = f"!{place.conversion}" if place.conversion else ""
        return f"{{{position}{conversion}{':' + place.form if place.form else ''}}}"

    def _value(self, name: str) -> Any:
        if name in self.named:
            return self.named[name]
        if name and not name.isdecimal():
            raise wrong_text(f"no value is called {name!r}", self.text)
        position = int(name) if name else self.next
        self.next += not name
        self.used.add(position)
        if position >= len(self.values):
            count = len(self.values)
            raise wrong_text(f"{count} values, and none for place {position}", self.text)
        return self.values[position]


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def breakpoint(**tensors: Tensor) -> None:
    """Stop in Python's debugger whenever the program comes here, in compiled code too.

    At hand are the tensors given by name; without any, those that the caller's names stand for.
    What stops is `sys.breakpointhook`, so PYTHONBREAKPOINT chooses the debugger, or none.
    """
    frame = user_frame()
    found: dict[str, Any] = tensors or ({} if frame is None else dict(frame.f_locals))
    values = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    apply(
        debug_breakpoint,
        *values.values(),
        names=tuple(values),
        file="<unknown>" if frame is None else frame.f_code.co_filename,
        line=1 if frame is None else frame.f_lineno,
        rows=0,
    )


@contextmanager
def nans() -> Iterator[None]:
    """Raise `wf.NanError` at the line that made the first NaN, inside; also a decorator.

    Eager operations are checked one by one. A compiled program whose results hold NaN is run again
    by reference, node by node. Both are slow, and meant for finding the line.

    >>> import weft as wf
    >>> try:
    ...     with wf.debug.nans():
    ...         wf.log(wf.tensor([1.0, -1.0]))
    ... except wf.NanError as error:
    ...     error.op, error.problem, error.got
    ('log', 'the first NaN is made here', 'x1: f32[2] in [-1, 1]')
    """
    with observed_for_nan():
        yield
