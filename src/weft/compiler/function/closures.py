"""What a function closes over: tensors and plain values that are as good as arguments of it.

A compiled function must see what its closed-over tensors hold at each call, and what names are
bound to. So the variables from outside that hold tensors, numbers or text, in the function and in
those it calls, are found before it is traced, and read anew at each call. Of objects these are the
attributes that the functions name. What a function changes itself while it is traced, such as a
counter of its calls, is no argument of it: `Jit` leaves that out again.

>>> import weft as wf
>>> w, scale = wf.tensor(2.0), 3.0
>>> [read() if isinstance(read, Plain) else read().item() for read in closed_over(lambda x: w * x)]
[2.0]
>>> [read() for read in closed_over(lambda x: scale * x)]
[3.0]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from weft.core import trees
from weft.core.locations import is_internal
from weft.core.records import frozen
from weft.ir.call_keys import number_key
from weft.ir.tensor import Tensor

Read = Callable[[], Any]
DEPTH = 6
"""How far functions that call functions, and objects that hold objects, are followed: a bound on
the time of a call, on any machine."""
FEW = 32
"""How many values a container may hold that is read at each call: a bound on its time, too."""
ATOMS = frozenset([type(None), bool, int, float, complex, str])
_BY_IDENTITY: Any = object.__hash__
_OTHERS = ("weft", "numpy", "builtins", "functools", "enum", "logging", "threading")
"""Packages whose objects are not looked into."""


class _ThisArray:
    """One NumPy array and no other; what is written to it is not noticed."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ThisArray) and other._array is self._array

    def __hash__(self) -> int:
        return id(self._array)


def _array_key(array: np.ndarray[Any, Any]) -> Hashable:
    """What tells a NumPy array from others: its contents if they are few."""
    is_few = array.size <= FEW and not array.dtype.hasobject
    return (array.shape, array.dtype.str, array.tobytes()) if is_few else _ThisArray(array)


@frozen
class Plain:
    """A variable that holds a plain value, or a few of them: part of the key of a call."""

    name: str
    read: Read

    def __call__(self) -> Any:
        """The value; of what can be no key its class, so that it is told from what was there."""
        value = self.read()
        if type(value) in ATOMS or isinstance(value, Tensor) or _is_few(value):
            return value
        if isinstance(value, np.ndarray):
            return _array_key(value)
        return value if _holds_tensors(value) else type(value)

    def key(self) -> Hashable:
        """What the value is now, if it holds no tensors."""
        leaves, structure = trees.flatten(self())
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            return None
        return structure, *map(number_key, leaves)


def closed_over(function: Any) -> list[Read]:
    """How to read each variable from outside that holds tensors or plain values."""
    search = _Search()
    search.found += search.of_function(function, DEPTH)
    return search.finish()


def held_by(objects: Iterable[Any], function: Any) -> list[Read]:
    """How to read what a function reads of objects that are its arguments."""
    search = _Search()
    list(search.of_function(function, DEPTH))  # for the names that it reads
    for each in objects:
        search.found += search.of_object(each, DEPTH)
    return search.finish()


def is_stateful(value: Any) -> bool:
    """Whether a value is told from others by identity, but may hold other values in each call."""
    if isinstance(value, FunctionType):
        return _is_the_users(value)
    kind: Any = type(value)
    return issubclass(kind, (MethodType, functools.partial)) or _is_stateful_class(kind)


@functools.cache
def _is_stateful_class(kind: type[Any]) -> bool:
    methods: Any = kind
    if methods.__hash__ is not _BY_IDENTITY:
        return False
    has_attributes = kind.__dictoffset__ != 0 and not issubclass(kind, type)
    return has_attributes and kind.__module__.split(".")[0] not in _OTHERS


class _Search:
    """Variables that are found, and what was looked into."""

    def __init__(self) -> None:
        self.found: list[Read] = []
        self._names: set[str] = set()
        """Names in the functions that were followed."""
        self._attributes: set[int] = set()
        """Reads of plain attributes: they count where a function names them."""
        self._objects: list[tuple[Any, int]] = []
        self._seen: set[int] = set()

    def finish(self) -> list[Read]:
        """All that was found, once methods of objects are followed, too."""
        tried: set[tuple[int, str]] = set()
        grows = True
        while grows:
            grows = False
            for value, depth in [*self._objects]:
                for name in dir(type(value)):
                    is_named = name in self._names or name.startswith("__")
                    method = _code_of(getattr(type(value), name, None)) if is_named else None
                    if method is not None and (id(value), name) not in tried:
                        tried.add((id(value), name))
                        grows = True
                        self.found += self.of_function(method, depth)
        return [
            read
            for read in self.found
            if not (isinstance(read, Plain) and id(read) in self._attributes)
            or read.name in self._names
        ]

    def of_function(self, function: Any, depth: int) -> Iterator[Read]:
        """The variables from outside of a function, and of those it calls."""
        if id(function) in self._seen or depth == 0:
            return
        self._seen.add(id(function))
        if isinstance(function, MethodType):
            yield from self._of_value("", functools.partial(getattr, function, "__self__"), depth)
            yield from self.of_function(function.__func__, depth)
        elif isinstance(function, functools.partial):
            yield from self._of_value("", lambda: (function.args, function.keywords), depth)
            yield from self.of_function(function.func, depth)
        elif isinstance(function, FunctionType) and _is_the_users(function):
            yield from self._of_variables(function, depth)
        elif hasattr(function, "__wrapped__"):
            yield from self.of_function(function.__wrapped__, depth - 1)
        elif _holds_tensors(function):
            yield lambda: function  # a tree that can be called, such as a module

    def _of_variables(self, function: FunctionType, depth: int) -> Iterator[Read]:
        names = _names(function.__code__)
        self._names |= names
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            read = functools.partial(getattr, cell, "cell_contents", None)
            yield from self._of_value(name, read, depth)
        scope = function.__globals__
        for name in sorted(names):
            if name in scope:
                yield from self._of_value(name, functools.partial(scope.get, name), depth)

    def _of_value(self, name: str, read: Read, depth: int) -> Iterator[Read]:
        """A variable that holds tensors or plain values; functions and objects are looked into."""
        value = read()
        if type(value) in ATOMS or isinstance(value, np.ndarray):
            yield Plain(name, read)
        elif isinstance(value, (type, ModuleType, str, bytes, int, float, complex)):
            return
        elif isinstance(value, Tensor):
            yield read
        elif (callable(value) and not hasattr(value, "__dict__")) or isinstance(
            value, FunctionType
        ):
            yield from self.of_function(value, depth - 1)
        elif _holds_tensors(value):
            yield read
        elif isinstance(value, (list, tuple, dict)):
            if _is_few(value):
                yield Plain(name, read)
            for leaf in trees.leaves(value):
                yield from self.of_function(leaf, depth - 1)
        else:
            yield from self.of_object(value, depth)

    def of_object(self, value: Any, depth: int) -> Iterator[Read]:
        """What is among the attributes of an object that is no tree."""
        if id(value) in self._seen or depth == 0 or not hasattr(value, "__dict__"):
            return
        yield from self.of_function(value, depth)
        self._seen.add(id(value))
        if type(value).__module__.split(".")[0] in _OTHERS:
            return
        self._objects.append((value, depth - 1))
        for name in list(vars(value)):
            read = functools.partial(getattr, value, name, None)
            for found in self._of_value(name, read, depth - 1):
                if isinstance(found, Plain) and found.read is read:
                    self._attributes.add(id(found))
                yield found


def _code_of(method: Any) -> FunctionType | None:
    """The function behind an attribute of a class: of a method, compiled or not, or a property."""
    for name in ("fget", "func", "__wrapped__"):
        method = getattr(method, name, method)
    is_users = isinstance(method, FunctionType) and _is_the_users(method)
    return method if is_users and method.__name__ != "__init__" else None


def _is_the_users(function: FunctionType) -> bool:
    """Whether a function is not the framework's; one from `python -c` or `exec` has no file."""
    filename = function.__code__.co_filename
    if filename == "<string>":
        return str(function.__globals__.get("__name__")).split(".")[0] != "weft"
    return not is_internal(filename)


def _names(code: CodeType) -> set[str]:
    """The global names and attributes that a function, and the functions inside it, use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in trees.leaves(value))


def _is_few(value: Any) -> bool:
    """Whether a container holds a few plain values and tensors, and nothing else."""
    if type(value) not in (list, tuple, dict) or len(value) > FEW:
        return False
    leaves = trees.leaves(value)
    return len(leaves) <= FEW and all(type(x) in ATOMS or isinstance(x, Tensor) for x in leaves)
