"""Plain values that a compiled function reads from outside, as parts of the key of a call.

What a variable holds may be any object. A number, text, a dtype, a member of an enumeration or a
few of them in a container are values: two that are equal are the same to a program. Functions and
classes are told apart by what they are, other objects by their class alone: what is inside of them
is read by itself (`closures.py`).

>>> Plain("scale", lambda: 3.0)(), Plain("scale", lambda: object())()
(3.0, <class 'object'>)
"""

from __future__ import annotations

import functools
import marshal
from collections import deque
from collections.abc import Callable
from enum import Enum
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np

from weft.core import trees
from weft.core.dtypes import DType
from weft.core.records import frozen
from weft.ir.call_keys import number_key
from weft.ir.tensor import Tensor

__all__ = ["ATOMS", "FEW", "Plain", "holds_tensors", "identity_of", "is_few", "is_plain"]

Read = Callable[[], Any]
FEW, MANY = 32, 4096
"""How many values a container may hold that is read at each call: a bound on its time. One of
numbers and text alone, which are compared at once, may hold many."""
DEEPEST = 6
"""How far functions that are made of others are told apart."""
ATOMS = frozenset([type(None), bool, int, float, complex, str])
_VALUES = (DType, Enum, bytes, int, float, complex, str, np.generic, np.dtype, range, slice)


class _This:
    """One object and no other; what is written to it is not noticed."""

    __slots__ = ("_held",)

    def __init__(self, held: Any) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and other._held is self._held

    def __hash__(self) -> int:
        return id(self._held)


@frozen
class Plain:
    """A variable that holds a plain value, or a few of them: part of the key of a call."""

    name: str
    read: Read

    def __call__(self) -> Any:
        """The value; of what can be no key its class, so that it is told from what was there."""
        value = self.read()
        if type(value) in ATOMS or isinstance(value, Tensor) or is_few(value):
            return value
        if isinstance(value, np.ndarray):
            return _array_key(value)
        if isinstance(value, (set, frozenset, deque)) and len(value) <= FEW:
            return type(value), *(value if isinstance(value, deque) else [frozenset(value)])
        if is_plain(value) and (type(value).__hash__ is not None or isinstance(value, slice)):
            return value
        return value if holds_tensors(value) else _contents_key(value)

    @property
    def place(self) -> tuple[Any, ...]:
        """What tells its variable from others, of the same name, too."""
        read = self.read
        if not isinstance(read, functools.partial):
            return (id(read),)
        owner = getattr(read.func, "__self__", None)  # of `scope.get`
        return id(owner), *[x if isinstance(x, str) else id(x) for x in read.args]

    def key(self) -> Any:
        """What the value is now, for a comparison, if it holds no tensors."""
        leaves, structure = trees.flatten(self())
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            return None
        return structure, *map(number_key, leaves)


def _array_key(array: np.ndarray[Any, Any]) -> Any:
    """What tells a NumPy array from others: its contents if they are few."""
    is_short = array.size <= FEW and not array.dtype.hasobject
    return (array.shape, array.dtype.str, array.tobytes()) if is_short else _This(array)


def _contents_key(value: Any) -> Any:
    """What tells a longer container of numbers and text from others: its bytes, made at once."""
    if type(value) not in (list, tuple, dict) or len(value) > MANY:
        return type(value)
    try:
        return marshal.dumps(value, 0)  # the version without references, which says all by value
    except ValueError:  # it holds something else by now
        return type(value)


def is_plain(value: Any) -> bool:
    """Whether a value is told from others by what it is, not by which object it is."""
    if type(value) in ATOMS or isinstance(value, np.ndarray) or is_few(value):
        return True
    if isinstance(value, (set, frozenset, deque)):
        return all(map(_is_atom, value))
    if isinstance(value, (list, tuple, dict)):
        return all(type(leaf) in ATOMS for leaf in trees.leaves(value))
    if isinstance(value, _VALUES):
        return True
    kind: Any = type(value)  # a date, a path, a fraction: it says itself what is equal to it
    is_compared = kind.__hash__ is not None and kind.__hash__ is not object.__hash__
    return is_compared and kind.__dictoffset__ == 0 and not callable(value) and _is_atom(value)


def _is_atom(value: Any) -> bool:
    """Whether a value that can be hashed is no container and no tensor."""
    return not isinstance(value, (Tensor, type)) and trees.take_apart(value) is None


def is_few(value: Any) -> bool:
    """Whether a container holds a few plain values and tensors, and nothing else."""
    if not isinstance(value, (list, tuple, dict)) or len(value) > FEW:
        return False
    if not trees.is_container(value):
        return False
    leaves = trees.leaves(value)
    return len(leaves) <= FEW and all(
        type(x) in ATOMS or isinstance(x, (Tensor, *_VALUES)) for x in leaves
    )


def holds_tensors(value: Any) -> bool:
    """Whether there is a tensor in a tree."""
    return any(isinstance(leaf, Tensor) for leaf in trees.leaves(value))


def identity_of(value: Any, is_read: Callable[[Any], bool], depth: int = DEEPEST) -> Any:
    """What tells a function, a class or an object from others that may stand in its place.

    Of functions and methods it is their code: what they close over is read by itself where
    `is_read` says so, and is part of the identity of others, such as `wf.grad(f)`.
    """
    if depth == 0:
        return type(value)
    inner = functools.partial(identity_of, is_read=is_read, depth=depth - 1)
    if isinstance(value, FunctionType):
        cells: tuple[CellType, ...] = () if is_read(value) else value.__closure__ or ()
        held = [getattr(cell, "cell_contents", None) for cell in cells]
        defaults = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
        return value.__code__, *map(inner, (*held, *defaults))
    if isinstance(value, MethodType):
        return inner(value.__func__), inner(value.__self__)
    if isinstance(value, functools.partial):
        return functools.partial, inner(value.func)
    if type(value) in ATOMS:
        return number_key(value)
    if isinstance(value, (list, tuple, dict)):
        return type(value), len(value), *(value if isinstance(value, dict) else ())
    if isinstance(value, (type, *_VALUES)) or (callable(value) and not hasattr(value, "__dict__")):
        return _This(value) if isinstance(value, type) or callable(value) else value
    wrapped = getattr(value, "__wrapped__", None)
    return type(value) if wrapped is None else (type(value), inner(wrapped))
