"""What a body changes: names of the function, tensors, lists, dicts, sets and attributes.

While a body is recorded, a journal notes what is about to be written to, and what it held before.
Afterwards everything is as it was, and the journal knows what the body would have left.

>>> from weft.script.state import Journal
>>> journal, numbers = Journal(), [1]
>>> journal.touch(numbers)
>>> numbers.append(2)
>>> journal.rollback()
>>> numbers
[1]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.errors import UnsupportedError
from weft.core.records import frozen
from weft.core.references import held_beside
from weft.ir.lifting import lift
from weft.ir.tensor import Tensor, Trace, Traced

__all__: list[str] = []


class Undefined:
    """Stands for a name that has no value."""

    def __repr__(self) -> str:
        return "undefined"


undefined = Undefined()


@frozen
class State:
    """The names that a body binds, the first `wanted` of which are read afterwards.

    `updated` are only ever changed by `x += y`; `theirs` are global.
    """

    readers: Callable[[], tuple[Callable[[], Any], ...]]
    put: Callable[[Sequence[Any]], None]
    names: tuple[str, ...]
    wanted: int
    updated: tuple[str, ...]
    theirs: tuple[str, ...]

    def get(self) -> list[Any]:
        """The values of the names."""
        return [_value(reader) for reader in self.readers()]


def _value(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except NameError:
        return undefined


@dataclass(slots=True)
class Written:
    """A tensor from outside that was written to, and the value it stood for before."""

    handle: weakref.ref[Tensor]
    before: Any


CONTAINERS = (list, dict, set)


@dataclass(slots=True)
class Touched:
    """A container, or an object with attributes, and what it held before."""

    owner: Any
    before: Any

    def contents(self) -> Any:
        """A copy of what it holds."""
        return contents(self.owner)

    def restore(self, held: Any = None) -> None:
        """Make it hold what it held before, or something else."""
        replace_contents(self.owner, self.before if held is None else held)


def contents(owner: Any) -> Any:
    """A copy of what a container holds, or of an object's attributes."""
    return owner.copy() if isinstance(owner, CONTAINERS) else dict(vars(owner))


def replace_contents(owner: Any, held: Any) -> None:
    """Make a container hold other things, and stay the same container."""
    if isinstance(owner, list):
        owner[:] = held
    elif isinstance(owner, (dict, set)):
        owner.clear()
        owner.update(held)
    else:
        for name in vars(owner).keys() - held.keys():
            object.__delattr__(owner, name)
        for name, value in held.items():
            if vars(owner).get(name, undefined) is not value:
                object.__setattr__(owner, name, value)


class Journal(Trace):
    """Notes the writes of a body; it is a trace only so that writes are reported to it."""

    name = "script"
    adopts = True

    def __init__(self) -> None:
        self.written: dict[int, Written] = {}
        self.touched: dict[int, Touched] = {}

    def adopt(self, handle: Tensor) -> None:
        """See `Trace`. What this body made itself is nobody else's business."""
        value = handle._value
        if isinstance(value, Traced) and value.trace.level >= self.level - 1:
            return
        known = self.written.get(id(handle))
        if known is None or known.handle() is None:
            self.written[id(handle)] = Written(weakref.ref(handle), value)
        lift(handle)

    def touch_gradient(self, handle: Tensor, written: bool) -> None:
        """See `Trace`."""
        if written and id(handle) in self.written:
            raise UnsupportedError(
                "script",
                "a gradient is written in a branch or loop that depends on a traced tensor",
                expected="gradients as values there",
                got={"x": handle},
                fix="gradient = wf.grad(loss)(x), or call backward() outside",
            )

    def touch(self, owner: Any) -> None:
        """Note that a container or an object is about to be changed."""
        if id(owner) not in self.touched:
            self.touched[id(owner)] = Touched(owner, contents(owner))

    def drop_own(self) -> None:
        """Forget the containers that only this body holds: it made them."""
        for key in list(self.touched):
            entry = self.touched[key]
            held = [entry.owner]
            entry.owner = None
            if held_beside(held, (0,), 0):
                del self.touched[key]
            else:
                entry.owner = held[0]

    def rollback(self) -> None:
        """Put everything back; tensors were written to in this thread's eyes only."""
        for entry in self.touched.values():
            entry.restore()
