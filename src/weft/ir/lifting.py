"""Handles that stand for another value in one thread: what tracing does to the tensors it is given.

While a function is traced, its arguments and the state it writes hold traced values, but only for
the thread that traces. A handle's own slots are never touched: they hold the real value all the
time, for all other threads, and when the trace ends in whatever way there is nothing to restore.

A handle that is lifted has another class meanwhile, whose attributes ask the thread's table first.
So all other handles are as quick as ever.

>>> import weft as wf
>>> x = wf.tensor(1.0)
>>> with Lifting():
...     lift(x)
...     x._value = wf.tensor(2.0)._value
...     x.item()
2.0
>>> x.item(), type(x) is wf.Tensor
(1.0, True)
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Self

from weft.core.forks import in_child, renew_in_children
from weft.ir.tensor import Tensor


class Substitute:
    """The value that a handle has in one thread. It does not keep the handle alive."""

    __slots__ = ("_grad", "_node", "_value", "handle", "owner")

    def __init__(self, handle: Tensor, owner: Lifting) -> None:
        self._value, self._node, self._grad = handle._value, handle._node, handle._grad
        self.handle = weakref.ref(handle)
        self.owner = owner


class _Here(threading.local):
    """The innermost block of this thread, and what its handles stand for."""

    table: dict[int, Substitute] = {}  # noqa: RUF012  never changed: each block has its own
    block: Lifting | None = None


here = _Here()
_lock = renew_in_children(threading.Lock())
_blocks: dict[int, weakref.WeakSet[Lifting]] = {}
"""For each handle that is lifted in any thread, the blocks that lift it."""


class Lifting:
    """A `with` block in which handles may be lifted; at its end they have their old values."""

    __slots__ = ("__weakref__", "_lifted", "_outer")

    def __enter__(self) -> Self:
        self._lifted: list[weakref.ref[Tensor]] = []
        self._outer = here.table, here.block
        here.table, here.block = {**here.table}, self
        return self

    @property
    def enclosing_block(self) -> Lifting | None:
        """The block around this one."""
        return self._outer[1]

    def __exit__(self, *raised: object) -> None:
        here.table, here.block = self._outer
        self.lower()

    def lower(self) -> None:
        """Give all handles that only this block lifts their classes back."""
        for reference in self._lifted:
            handle = reference()
            if handle is not None:
                _lower(handle, self)

    def add(self, handle: Tensor) -> None:
        """Note a handle whose class is that of lifted ones, as long as a block says so."""
        self._lifted.append(weakref.ref(handle))
        with _lock:
            _blocks.setdefault(id(handle), weakref.WeakSet()).add(self)
            if not isinstance(handle, Lifted):
                handle.__class__ = _lifted_class(type(handle))


def _lower(handle: Tensor, block: Lifting) -> None:
    """Give a handle its class back, unless another block lifts it."""
    with _lock:
        blocks = _blocks.get(id(handle))
        if blocks is not None:
            blocks.discard(block)
        if not blocks:
            _blocks.pop(id(handle), None)
            if isinstance(handle, Lifted):
                handle.__class__ = type(handle).__mro__[_OWN]


def lift(handle: Tensor) -> None:
    """Let what this thread writes to a handle be seen by this thread alone, to the block's end."""
    block, known = here.block, here.table.get(id(handle))
    assert block is not None, "a handle is lifted inside of a block"
    if known is None or known.owner is not block or known.handle() is not handle:
        substitute = Substitute(handle, block)
        block.add(handle)
        here.table[id(handle)] = substitute


def _attribute(name: str) -> property:
    """The attribute of a lifted handle: the thread's own, or what is in the slot."""
    slot = Tensor.__dict__[name]

    def read(handle: Tensor) -> Any:
        known = here.table.get(id(handle))
        if known is None or known.handle() is not handle:
            return slot.__get__(handle)
        return getattr(known, name)

    def write(handle: Tensor, value: Any) -> None:
        known = here.table.get(id(handle))
        if known is None or known.handle() is not handle:
            slot.__set__(handle, value)
        else:
            setattr(known, name, value)

    return property(read, write)


class Lifted(Tensor):
    """A handle that stands for another value in some thread."""

    __slots__ = ()


for _name in ("_value", "_node", "_grad"):
    setattr(Lifted, _name, _attribute(_name))

_OWN = 2
"""Where a lifted handle's own class stands among those it is made of."""


_classes: dict[type[Tensor], type[Tensor]] = {}


def _lifted_class(own: type[Tensor]) -> type[Tensor]:
    """The class of lifted handles for those of a class; it has the same name and the same slots."""
    if own not in _classes:
        parts = {"__slots__": (), "__module__": own.__module__}
        _classes[own] = type(own.__name__, (Lifted, own), parts)
    return _classes[own]


def _forget_other_threads() -> None:
    """Drop the substitutes of other threads, which do not exist in a forked child."""
    own, block = list[Lifting](), here.block
    while block is not None:
        own.append(block)
        block = block.enclosing_block
    others = {other for blocks in _blocks.values() for other in blocks} - {*own}
    _lock._at_fork_reinit()  # type: ignore[attr-defined]
    for other in others:
        other.lower()


in_child(_forget_other_threads)
