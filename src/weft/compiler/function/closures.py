"""What a function closes over: tensors that are as good as arguments of it.

A compiled function must see what its closed-over tensors hold at each call, and what names are
bound to. So the variables from outside that hold tensors, in the function and in those it calls,
are found before it is traced, and read anew at each call.

>>> import weft as wf
>>> w = wf.tensor(2.0)
>>> [read().item() for read in closed_over(lambda x: w * x)]
[2.0]
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from weft.core import trees
from weft.core.locations import is_internal
from weft.ir.tensor import Tensor

Read = Callable[[], Any]
DEPTH = 6
"""How far functions that call functions, and objects that hold objects, are followed: a bound on
the time of a call, on any machine."""


def closed_over(function: Any) -> list[Read]:
    """How to read each variable from outside that holds tensors."""
    return list(_of_function(function, set(), DEPTH))


def held_by_objects(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What objects and functions among a call's arguments hold of tensors, where they are no trees.

    >>> import weft as wf
    >>> w = wf.tensor(2.0)
    >>> [held.item() for held in held_by_objects((lambda x: w * x, 3.0), {})]
    [2.0]
    """
    objects = [leaf for leaf in trees.leaves((args, kwargs)) if not isinstance(leaf, Tensor)]
    seen: set[int] = set()
    reads = [
        functools.partial(operator.itemgetter(place), objects) for place in range(len(objects))
    ]
    return [found() for read in reads for found in _of_value(read, seen, DEPTH)]


def _of_function(function: Any, seen: set[int], depth: int) -> Iterator[Read]:
    if id(function) in seen or depth == 0:
        return
    seen.add(id(function))
    if isinstance(function, MethodType):
        yield from _of_value(functools.partial(getattr, function, "__self__"), seen, depth)
        yield from _of_function(function.__func__, seen, depth)
    elif isinstance(function, functools.partial):
        yield from _of_value(lambda: (function.args, function.keywords), seen, depth)
        yield from _of_function(function.func, seen, depth)
    elif isinstance(function, FunctionType) and _is_the_users(function):
        yield from _of_variables(function, seen, depth)
    elif hasattr(function, "__wrapped__"):
        yield from _of_function(function.__wrapped__, seen, depth - 1)
    elif any(isinstance(leaf, Tensor) for leaf in trees.leaves(function)):
        yield lambda: function  # a tree that can be called, such as a module


def _is_the_users(function: FunctionType) -> bool:
    """Whether a function is not the framework's; one from `python -c` or `exec` has no file."""
    filename = function.__code__.co_filename
    if filename == "<string>":
        return str(function.__globals__.get("__name__")).split(".")[0] != "weft"
    return not is_internal(filename)


def _of_variables(function: FunctionType, seen: set[int], depth: int) -> Iterator[Read]:
    for cell in function.__closure__ or ():
        yield from _of_value(functools.partial(getattr, cell, "cell_contents", None), seen, depth)
    scope = function.__globals__
    for name in _names(function.__code__):
        if name in scope:
            yield from _of_value(functools.partial(scope.get, name), seen, depth)


def _names(code: CodeType) -> set[str]:
    """The global names that a function, and the functions inside it, use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _of_value(read: Read, seen: set[int], depth: int) -> Iterator[Read]:
    """A variable that holds tensors; functions and objects are looked into."""
    value = read()
    if value is None or isinstance(value, (type, ModuleType, str, bytes, int, float, complex)):
        return
    if isinstance(value, Tensor):
        yield read
    elif (callable(value) and not hasattr(value, "__dict__")) or isinstance(value, FunctionType):
        yield from _of_function(value, seen, depth - 1)
    elif any(isinstance(leaf, Tensor) for leaf in trees.leaves(value)):
        yield read
    elif isinstance(value, (list, tuple, dict)):
        for leaf in trees.leaves(value):
            yield from _of_function(leaf, seen, depth - 1)
    else:
        yield from _of_object(value, seen, depth)


def _of_object(value: Any, seen: set[int], depth: int) -> Iterator[Read]:
    """The tensors among the attributes of an object that is no tree."""
    if id(value) in seen or depth == 0 or not hasattr(value, "__dict__"):
        return
    yield from _of_function(value, seen, depth)
    seen.add(id(value))
    if type(value).__module__.split(".")[0] in ("weft", "numpy", "builtins"):
        return
    for name in list(vars(value)):
        yield from _of_value(functools.partial(getattr, value, name, None), seen, depth - 1)
