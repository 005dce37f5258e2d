"""`wf.script`: a function whose Python control flow on tensors becomes part of the graph.

>>> import weft as wf
>>> callable(wf.script)
True
"""

from __future__ import annotations

import ast
import re
import sysconfig
import types
import weakref
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar, overload

from weft.core.errors import ArgumentError, WeftError
from weft.core.locations import PACKAGE, Location
from weft.script import mistakes, notes
from weft.script.operators import Operators
from weft.script.rewrite import rewrite_function
from weft.script.source import compile_function, rebuild_function, tree_of

__all__ = ["script"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def script(f: F, /) -> F: ...


@overload
def script(*, max_steps: int | None = None, unroll: int = 8) -> Callable[[F], F]: ...


def script(f: Any = None, /, *, max_steps: int | None = None, unroll: int = 8) -> Any:
    """A function whose `if`, `while`, `for`, `and`, `assert` … also work on traced tensors.

    On values that Python can see (numbers, tensors outside a trace) it runs as it is written; under
    `jit`, `vmap` or in a `Graph` its control flow on tensors becomes `cond`, `while_loop` and
    `scan`, in the functions that it calls as well. Python ranges longer than `unroll` become a
    scan where that is possible. `max_steps` bounds every `while`, so that reverse mode can go back
    over it; a loop that is not done by then is an error.

    >>> import weft as wf
    >>> @wf.script
    ... def collatz(n):
    ...     steps = 0
    ...     while n != 1:
    ...         n = n // 2 if n % 2 == 0 else 3 * n + 1
    ...         steps += 1
    ...     return steps
    >>> collatz(6), wf.jit(collatz)(wf.tensor(6)).item()
    (8, 8)
    """
    if f is None:
        return partial(_script_function, max_steps=max_steps, unroll=unroll)
    return _script_function(f, max_steps=max_steps, unroll=unroll)


def _script_function(f: Any, *, max_steps: int | None, unroll: int) -> Any:
    _check_options(max_steps, unroll)
    if isinstance(f, (staticmethod, classmethod)):
        return type(f)(_script_function(f.__func__, max_steps=max_steps, unroll=unroll))
    if isinstance(f, types.MethodType):
        inner = _script_function(f.__func__, max_steps=max_steps, unroll=unroll)
        return types.MethodType(inner, f.__self__)
    if not isinstance(f, types.FunctionType):
        raise mistakes.not_a_function(f)
    runtime = Operators(_converted_callable, max_steps, unroll)
    new = _rewritten_function(f, runtime)
    if new is None:
        raise mistakes.no_source(f)

    @wraps(f)
    def call_script(*args: Any, **kwargs: Any) -> Any:
        with notes.during_call():
            try:
                return new(*args, **kwargs)
            except NameError as error:
                explained = _explain_name_error(error)
                if explained is None:
                    raise
                raise explained from None

    return call_script


def _check_options(max_steps: object, unroll: object) -> None:
    for name, value, least in (("max_steps", max_steps, 1), ("unroll", unroll, 0)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= least):  # type: ignore[operator]
            raise ArgumentError(
                "script",
                f"{name} is not a number of steps",
                expected=f"an integer of at least {least}",
                got={name: value},
                fix=f"@wf.script({name}=100)",
            )


# --- names without a value ---------------------------------------------------------------------


def _explain_name_error(error: NameError) -> WeftError | None:
    """The error for a name that a traced test left without a value; None for any other name."""
    name = re.search(r"'(\w+)'", str(error))
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if name is None or last is None:
        return None
    code = last.tb_frame.f_code
    known = notes.reason(code.co_filename, name[1])
    if known is None:
        return None
    reason, decided = known
    place = "" if decided is None else f" (line {decided.line})"
    at = Location(code.co_filename, last.tb_lineno, code.co_name)
    return mistakes.missing_value(name[1], reason + place, at)


# --- which functions, and their rewritten forms ------------------------------------------------


_codes: dict[tuple[str, types.CodeType], types.CodeType | None] = {}
"""Rewritten code, by file and code."""
_functions: weakref.WeakKeyDictionary[Any, dict[Operators, Any]] = weakref.WeakKeyDictionary()


def _rewritten_function(
    function: types.FunctionType, runtime: Operators
) -> Callable[..., Any] | None:
    """A function with its control flow rewritten; None where there is no source."""
    known = _functions.setdefault(function, {})
    if runtime not in known:
        code = _rewritten_code(function)
        known[runtime] = None if code is None else rebuild_function(function, code, runtime)
    rewritten: Callable[..., Any] | None = known[runtime]
    return rewritten


def _rewritten_code(function: types.FunctionType) -> types.CodeType | None:
    key = function.__code__.co_filename, function.__code__
    if key not in _codes:
        _codes[key] = _compile(function)
    return _codes[key]


def _compile(function: types.FunctionType) -> types.CodeType | None:
    definition = tree_of(function)
    if definition is None:
        return None
    node = definition.node
    if isinstance(node, ast.Lambda):
        returned = ast.copy_location(ast.Return(node.body), node.body)
        node = ast.copy_location(ast.FunctionDef("_weft_lambda", node.args, [returned], []), node)
    return compile_function(rewrite_function(node), definition.owner, function.__code__)


def _converted_callable(function: Any, runtime: Operators) -> Any:
    """What to call in place of a function: its rewritten form, where it is the user's."""
    if isinstance(function, types.FunctionType):
        if not _is_users(function.__code__.co_filename):
            return function
        return _rewritten_function(function, runtime) or function
    if isinstance(function, types.MethodType):
        inner = _converted_callable(function.__func__, runtime)
        same = inner is function.__func__
        return function if same else types.MethodType(inner, function.__self__)
    if isinstance(function, partial):
        return partial(
            _converted_callable(function.func, runtime), *function.args, **function.keywords
        )
    call = None if isinstance(function, type) else _method(type(function), "__call__")
    if isinstance(call, types.FunctionType) and _is_users(call.__code__.co_filename):
        return types.MethodType(_converted_callable(call, runtime), function)
    return function


def _method(kind: type, name: str) -> Any:
    """What a class has under a name, found as Python finds special methods."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_THROUGH = tuple(PACKAGE + name for name in ("nn/module.py", "nn/containers.py"))
"""Files of the package that call the user's functions: what a module or container runs."""


@lru_cache(maxsize=1024)
def _is_users(file: str) -> bool:
    """Whether functions of a file are the user's, and not a library's."""
    if file.startswith(PACKAGE):
        return file in _THROUGH
    return not file.startswith(_LIBRARIES) and "site-packages" not in file
