"""All settings, in one place: what each does, its default, and how to change it for a while.

>>> from weft.core.settings import settings
>>> with settings.changed(full_tracebacks=True):
...     settings.full_tracebacks
True
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from weft.core.errors import ArgumentError, NameUnknownError
from weft.core.forks import in_child, renew_in_children
from weft.core.names import nearest_name


def _choose_from(variable: str, choices: tuple[str, ...]) -> str:
    """What an environment variable chooses; the first choice where it is empty or not set."""
    given = os.environ.get(variable, "").lower() or choices[0]
    if given not in choices:
        raise ArgumentError(
            "settings",
            f"the environment variable {variable} has no such choice",
            expected="one of " + ", ".join(choices),
            got={variable: given},
            fix=f"{variable}={choices[0]}",
        )
    return given


OFF = ("off", "0", "false", "no")
"""The words by which an environment variable turns something off."""
ON = ("on", "1", "true", "yes")


def is_on(variable: str) -> bool:
    """Whether an environment variable leaves something on, as it is where it is not set."""
    return _choose_from(variable, (*ON, *OFF)) in ON


def _number_from(variable: str, default: int) -> int:
    given = os.environ.get(variable, "") or str(default)
    if not given.isdecimal():
        raise ArgumentError(
            "settings",
            f"the environment variable {variable} is no whole number",
            expected="digits",
            got={variable: given},
            fix=f"{variable}={default}",
        )
    return int(given)


@dataclass(slots=True)
class Settings:
    """What can be set. Attributes may be assigned directly, or for a while with `changed`."""

    full_tracebacks: bool = False
    """Keep the framework's own frames in tracebacks."""
    print_elements: int = 1000
    """How many elements `repr` shows before it abbreviates."""
    cache_folder: str = ""
    """Where compiled kernels are kept on disk; empty for the user's cache folder."""
    compiler: bool = True
    """Compile what `jit` is given; off, it runs by reference, to find out which side is wrong."""
    machine: str = ""
    """The machine that code is made for, such as "x86-64-v3"; empty for WEFT_MACHINE, or this one.

    It counts from the first program on, and stays the same in a process.
    """
    tuning: bool = False
    """Measure the ways to make each product when it is first compiled; the fastest is kept."""
    print_precision: int = 4
    """How many digits after the point `repr` shows."""
    fastcall: bool = is_on("WEFT_FASTCALL")
    """Recognise repeated calls by words of the interpreter's memory, and start programs natively.

    A program keeps the way it is started from when it is made.
    """
    in_place_updates: bool = is_on("WEFT_IN_PLACE")
    """Let compiled steps write new state over the old where nobody else holds the array.

    Whether somebody does is told by counts of references. Off, all results get memory of their own.
    """

    float32_products: str = _choose_from("WEFT_FLOAT32_PRODUCTS", ("exact", "tfloat32"))
    """How a card multiplies matrices of float32: "exact", or "tfloat32", on tensor cores.

    Operands of these are rounded to 11 bits; sums are of float32. It counts when a program is made.
    """
    overlap: bool = is_on("WEFT_OVERLAP")
    """Let compiled programs compute while the sums of other gradients are under way.

    It counts when a program is made, and must be the same in all processes. Off, a program waits
    for each collective where it stands; the bits are the same.
    """
    device: str = os.environ.get("WEFT_DEVICE", "cpu")
    """Where tensors are made that name no device, such as "cuda"; see `wf.default_device`."""
    eager: str = _choose_from("WEFT_EAGER", ("native", "reference"))
    """How large tensors are worked on without `jit`: "native" or "reference"; see ir/eager.py."""
    eager_elements: int = _number_from("WEFT_EAGER_ELEMENTS", 256)
    """From how many elements on a tensor is large: single operations on it may run compiled.

    Functions that are several operations do so from an eighth of it on; see ir/eager.py.
    """

    @contextmanager
    def changed(self, **values: Any) -> Iterator[Settings]:
        """Change settings inside a `with` block, for this thread; an assignment is for all."""
        for name in values:
            if name not in _names():
                raise _unknown_setting(name)
        before = _here.values
        _enter(1)
        _here.values = {**before, **values}
        try:
            yield self
        finally:
            _here.values = before
            _enter(-1)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _names():
            raise _unknown_setting(name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise _unknown_setting(name)


def _names() -> list[str]:
    return [field.name for field in fields(Settings)]


def _unknown_setting(name: str) -> NameUnknownError:
    return NameUnknownError(
        "settings",
        f"no setting is called {name!r}",
        expected="one of " + ", ".join(_names()),
        got={"name": name},
        fix=f"wf.settings.{nearest_name(name, _names()) or _names()[0]}",
    )


class _Here(threading.local):
    """The settings that this thread has changed."""

    values: dict[str, Any] = {}  # noqa: RUF012  never changed: each block has its own
    depth: int = 0


class _Changed(Settings):
    """The settings while some thread has changed them for itself: each access asks which one."""

    __slots__ = ()


def _attribute(name: str) -> property:
    slot = Settings.__dict__[name]

    def read(owner: Settings) -> Any:
        values = _here.values
        return values[name] if name in values else slot.__get__(owner)

    def write(owner: Settings, value: Any) -> None:
        values = _here.values
        if name in values:
            values[name] = value
        else:
            slot.__set__(owner, value)

    return property(read, write)


for _name in _names():
    setattr(_Changed, _name, _attribute(_name))
_Changed.__qualname__ = Settings.__qualname__  # what their text begins with

_here = _Here()
_lock = renew_in_children(threading.RLock())
_blocks = [0]
"""How many `with` blocks there are, in all threads."""


def _enter(more: int) -> None:
    with _lock:
        _here.depth += more
        _blocks[0] += more
        object.__setattr__(settings, "__class__", _Changed if _blocks[0] else Settings)


def _forget_other_threads() -> None:
    _blocks[0] = _here.depth


in_child(_forget_other_threads)
settings = Settings()
