"""Calls that do not fit a function's parameters: what to write instead.

Functions with options are wrapped once, where they become public: a call costs nothing more until
Python itself refuses it, and then the options of other libraries are looked up.

>>> from weft.core.wrong_calls import explain_arguments
>>> @explain_arguments
... def total(x, /, *, axis=None, keepdims=False):
...     return x
>>> try:
...     total(1, dim=0)
... except TypeError as error:
...     error.problem, error.fix
('dim is called axis here, as in NumPy', 'axis=0')
>>> try:
...     total(1, 0)
... except TypeError as error:
...     error.problem, error.fix
('options are passed by name', 'total(x, axis=0)')
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature, unwrap
from types import FunctionType
from typing import Any, Protocol, TypeVar

from weft.core.deferred import NODES, deferred_call
from weft.core.errors import ArgumentTypeError, short_repr
from weft.core.names import nearest_name

__all__ = ["RECALLS", "Recall", "explain_all", "explain_arguments", "takes_options"]

F = TypeVar("F", bound=Callable[..., Any])
DEFERRING = ("weft.ops.", "weft.nn.functional.")
"""Where the functions are that become nodes of a graph when they are given one."""


class Native(Protocol):
    """What native code knows of a function; see `weft.ir.eager`."""

    recall: Callable[..., Any] | None


class Recall:
    """What gives the result of a call that a function remembers, or None for another one."""

    __slots__ = ("find", "native")

    def __init__(
        self,
        find: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        native: Native | None = None,
    ) -> None:
        self.find = find
        """What does so for arguments; see `weft.ir.remembered_calls`."""
        self.native = native
        """What is asked before."""


RECALLS: dict[Callable[..., Any], Recall] = {}
"""Functions that remember calls. They are asked first, so that such a call goes through no wrapper.
"""
NUMPY_OPTIONS = {"axis", "axes", "keepdims", "axis1", "axis2"}


def explain_arguments(f: F) -> F:
    """The function, whose calls with wrong arguments give an error that says what to write."""
    defers = str(f.__module__).startswith(DEFERRING) and "." not in f.__qualname__
    find, native = (RECALLS[f].find, RECALLS[f].native) if f in RECALLS else (None, None)

    @wraps(f)
    def function(*args: Any, **kwargs: Any) -> Any:
        if NODES and defers:
            node = deferred_call(f, args, kwargs, f.__name__)
            if node is not None:
                return node
        if find is not None:
            if native is not None and native.recall is not None:
                result = native.recall(*args, **kwargs)
                if result is not None:
                    return result
            result = find(args, kwargs)
            if result is not None:
                return result
        try:
            return f(*args, **kwargs)
        except TypeError as error:
            explained = None if error.__class__ is not TypeError else _explain(f, args, kwargs)
            if explained is None:
                raise
            raise explained from None

    function.explains_arguments = True  # type: ignore[attr-defined]
    return function  # type: ignore[return-value]


def explain_all(module: dict[str, Any], names: Iterable[str]) -> None:
    """Let the functions and classes of a module explain the arguments that they do not take.

    A function is wrapped, also where it was defined, so that it is found there and can be pickled;
    a class gets another `__init__` and other methods. What takes operands only, by position, stays
    as it is, because it is quicker to call, and so does `forward`, which subclasses define.
    """
    home = module["__name__"]
    for name in (each for each in names if each in module):
        public = module[name]
        if isinstance(public, FunctionType) and takes_options(public):
            explained: FunctionType = explain_arguments(public)
            origin: Any = sys.modules[public.__module__]
            if vars(origin).get(explained.__name__) is public:
                setattr(origin, explained.__name__, explained)
            module[name] = explained
        elif isinstance(public, type):
            for owner in public.__mro__:
                if owner.__module__.startswith(home):
                    _explain_methods(owner)


def _explain_methods(owner: type) -> None:
    """Let the constructor and the public methods of a class explain what they do not take."""
    for name, method in list(vars(owner).items()):
        is_public = name == "__init__" or not (name.startswith("_") or name == "forward")
        if is_public and isinstance(method, FunctionType) and takes_options(method):
            setattr(owner, name, explain_arguments(method))


def takes_options(f: Any) -> bool:
    """Whether a function has parameters that are passed by name, and does not explain them yet."""
    if getattr(f, "explains_arguments", False):
        return False
    code = unwrap(f).__code__
    return bool(code.co_kwonlyargcount or code.co_argcount > code.co_posonlyargcount)


def _explain(f: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> ArgumentTypeError | None:
    """The error for a call that does not fit, None where the arguments are not the reason."""
    form = signature(f)
    try:
        form.bind(*args, **kwargs)
    except TypeError as reason:
        problem = str(reason)
    else:
        return None
    op = type(args[0]).__name__ if f.__name__ == "__init__" else f.__name__
    if next(iter(form.parameters), "") == "self":
        form, args = form.replace(parameters=list(form.parameters.values())[1:]), args[1:]
    taken = {
        name
        for name, each in form.parameters.items()
        if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    unknown = [name for name in kwargs if name not in taken]
    if unknown:
        return unknown_option(op, unknown[0], kwargs[unknown[0]], form.parameters)
    if problem == "too many positional arguments":
        return _too_many(op, form, args)
    return ArgumentTypeError(
        op,
        problem,
        expected=_form_text(op, form),
        got={f"argument {i}": value for i, value in enumerate(args)} or {"arguments": "none"},
        fix=_form_text(op, form),
    )


def unknown_option(op: str, given: str, value: Any, known: Iterable[str]) -> ArgumentTypeError:
    """The error for an option that a function does not have."""
    foreign = import_module("weft.core.foreign")  # only a mistake needs it
    names = [name for name in known if name not in ("args", "kwargs", "shared", "unknown")]
    options: dict[str, str] = foreign.OPTIONS.get(op, {})
    text = options.get(f"{given}={value!r}" if isinstance(value, bool) else given, "")
    text = (text or options.get(given, "")).replace("{value}", _argument_text(value))
    meant: str = foreign.EVERYWHERE.get(given, "")
    if text.startswith("# "):
        problem, fix = f"there is no {given} here", text[2:]
        expected = ", ".join(names) or "no options"
    elif text or meant in names:
        called = text.partition("=")[0] or meant
        numpy = ", as in NumPy" if called in NUMPY_OPTIONS else ""
        problem, expected = f"{given} is called {called} here{numpy}", f"{called}="
        fix = text or f"{meant}={_argument_text(value)}"
    else:
        close = nearest_name(given, names)
        problem, expected = f"no option is called {given!r}", "one of " + ", ".join(names)
        fix = f"{close}={_argument_text(value)}" if close else f"leave {given} out"
    return ArgumentTypeError(op, problem, expected=expected, got={given: value}, fix=fix)


def takes_no_arguments(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArgumentTypeError:
    """The error for arguments of what takes none."""
    return ArgumentTypeError(
        op,
        "this takes no arguments",
        expected=f"{op}()",
        got={**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs},
        fix=f"{op}()",
    )


def _too_many(op: str, form: Signature, args: tuple[Any, ...]) -> ArgumentTypeError:
    """The error for more positional arguments than a function takes."""
    parameters = form.parameters.values()
    positional = [
        each.name
        for each in parameters
        if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    options = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    extra = args[len(positional) :]
    if positional[:1] == ["shape"] and all(isinstance(each, int) for each in args):
        problem, fix = "a shape is one argument", f"{op}({args})"
    elif positional[:1] == ["arrays"] and any(hasattr(each, "ndim") for each in extra):
        names = ", ".join(f"x{i}" for i in range(1, len(args) + 1))
        problem, fix = "the tensors are one argument", f"{op}([{names}])"
    elif len(options) >= len(extra):
        named = [
            f"{name}={_argument_text(value)}" for name, value in zip(options, extra, strict=False)
        ]
        problem, fix = "options are passed by name", f"{op}({', '.join([*positional, *named])})"
    else:
        problem, fix = "too many arguments", _form_text(op, form)
    return ArgumentTypeError(
        op,
        problem,
        expected=_form_text(op, form),
        got={f"argument {i}": value for i, value in enumerate(args)},
        fix=fix,
    )


def _argument_text(value: Any) -> str:
    """A value as it is written in a call; a tensor or another object is left out."""
    is_written = value is None or isinstance(value, (bool, int, float, str, tuple, list))
    return short_repr(value) if is_written else "..."


def _form_text(op: str, form: Signature) -> str:
    """How a function is called: its parameters without their types."""
    bare = [each.replace(annotation=Parameter.empty) for each in form.parameters.values()]
    return f"{op}{form.replace(parameters=bare, return_annotation=Signature.empty)}"
