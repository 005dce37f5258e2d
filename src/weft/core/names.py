"""Names that are not there: what the user probably meant.

A name is looked for in the tables of other libraries' names, in the other parts of the library, and
among names that differ by a slip of the keyboard. A guess that is not likely is not made.

>>> from weft.core.names import nearest_name
>>> nearest_name("sofmax", ["softmax", "softmin", "sort"])
'softmax'
>>> nearest_name("int", ["sin", "inf", "sinh"])
''
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dis import get_instructions
from functools import reduce
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import signature
from opcode import opmap
from types import FrameType
from typing import Any

from weft.core.errors import ImportNameError, NameUnknownError, WeftError

PUBLIC: list[Any] = []
"""The public module, filled in by it."""

HOMES = (
    "wf", "x", "wf.nn", "wf.nn.functional", "wf.linalg", "wf.optim", "wf.optim.schedules",
    "wf.data", "wf.random", "wf.fft", "wf.train", "wf.nn.init", "wf.tree", "wf.cuda", "wf.tools",
    "wf.distributed",
)  # fmt: skip
"""Where public names live; `x` is any tensor."""

LETTERS_PER_SLIP, MOST_SLIPS = 4, 2
"""In how many letters one slip is likely, and how many slips are in a word; names that differ more
were not meant."""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name that a wrong one is a slip of the keyboard away from, empty where none is.

    >>> nearest_name("los", ["loss", "los_angeles"])
    'loss'
    """
    plain = _without_case(name)
    alike = [each for each in known if each != name and _digits(each) == _digits(name)]
    slips = {each: _count_slips(plain, _without_case(each)) for each in alike}
    allowed = min(len(plain) // LETTERS_PER_SLIP, MOST_SLIPS)
    likely = {
        each: count
        for each, count in slips.items()
        if count <= allowed or (count == 1 and len(plain) > 2 and each.startswith(name))
    }
    return min(likely, key=lambda each: (likely[each], each)) if likely else ""


def _without_case(name: str) -> str:
    """A name without what is easily mistaken: upper case and underscores."""
    return name.lower().replace("_", "")


def _digits(name: str) -> str:
    """The digits of a name: another number is another thing, not a slip (`int1`, `int16`)."""
    return "".join(filter(str.isdigit, name))


def _count_slips(a: str, b: str) -> int:
    """How many letters are missing, added, wrong or swapped between two words.

    >>> _count_slips("wieght", "weight"), _count_slips("int", "sin")
    (1, 2)
    """
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a):
        last, row, before = before, [i + 1], row
        for j, other in enumerate(b):
            change = before[j] + (letter != other)
            least = min(before[j + 1] + 1, row[j] + 1, change)
            if i and j and letter == b[j - 1] and a[i - 1] == other:
                least = min(least, last[j - 1] + 1)
            row.append(least)
    return row[-1]


def unknown_name(op: str, name: str, known: Iterable[str], owner: str) -> NameUnknownError:
    """The error for a name that `owner` does not have."""
    names = [each for each in known if not each.startswith("_")]
    is_function = (
        owner == "x" and name in _public_names(PUBLIC[0]) and callable(getattr(PUBLIC[0], name))
    )
    return NameUnknownError(
        op,
        f"{name} is a function, not a method" if is_function else f"nothing is called {name!r}",
        expected=f"a name in dir({owner})",
        got={"name": name},
        fix=lambda: suggestion(name, names, owner) or f"look for it: dir({owner})",
    )


def missing_from(owner: str, known: Iterable[str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: the error for a name that it does not have."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name.startswith("_"):
            raise AttributeError(f"module {owner!r} has no attribute {name!r}")
        raise missing_name(owner, name, known, sys._getframe(1))

    return __getattr__


def explain_attributes(kind: type, owner: str) -> None:
    """Let the objects of a class say what to write for an attribute that they do not have.

    It is put on the class from outside, so that type checkers still see which attributes there are.
    """

    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise unknown_name(type(self).__name__, name, dir(self), owner)

    kind.__getattr__ = __getattr__  # type: ignore[attr-defined]


class MissingModules(MetaPathFinder):
    """The last finder of modules: an import of one that we do not have says what to write."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Nothing, or the error for a module that has another name here."""
        package, _, name = fullname.rpartition(".")
        owner = package.replace("weft", "wf", 1)
        if owner not in HOMES or name.startswith("_") or _is_from_import(sys._getframe(1)):
            return None
        fix = _imported_names_fix(sys._getframe(1)) or suggestion(name, [], owner)
        if not fix:
            return None
        raise ImportNameError(
            f"import {fullname}",
            f"there is no module {fullname!r}",
            expected="a module of the library",
            got={"name": name},
            fix=fix,
        )


def _imported_names_fix(frame: FrameType | None) -> str:
    """What to write for the names that a `from` import of a missing module asks for.

    Empty where it asks for none, or nothing is known of one of them.
    """
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    if frame is None:
        return ""
    instructions = list(get_instructions(frame.f_code))
    at = next((i for i, each in enumerate(instructions) if each.offset == frame.f_lasti), 0)
    asked = instructions[at - 1].argval if at else None
    if instructions[at].opname != "IMPORT_NAME" or not isinstance(asked, tuple):
        return ""
    module = str(instructions[at].argval).replace("weft", "wf", 1)
    homes = {each: _public_home(each) for each in asked}
    lines = [
        f"from {home.replace('wf', 'weft', 1)} import "
        + ", ".join(each for each in asked if homes[each] == home)
        for home in dict.fromkeys(filter(None, homes.values()))
    ]
    others = [suggestion(each, [], module) for each in asked if not homes[each]]
    if not all(others):
        return ""
    remarks = [other.partition("  #")[2] for other in others]
    shared = remarks[0] if len(remarks) > 1 and len({*filter(None, remarks)}) == 1 else ""
    calls = [other.removesuffix(f"  #{shared}") if shared else other for other in others]
    return "; ".join([*lines, *calls]) + (f"  #{shared}" if shared else "")


def _public_home(name: str) -> str:
    """The module in which a name is public here, empty where it is in none."""
    modules = (home for home in HOMES if home != "x")
    return next((home for home in modules if name in _public_names(_public(home))), "")


def _is_from_import(frame: FrameType | None) -> bool:
    """Whether Python looks for a module only because `from package import name` found no name."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back
    return False


def missing_name(owner: str, name: str, known: Iterable[str], caller: FrameType) -> WeftError:
    """The error for a name that a module does not have, in an expression or an import.

    `from module import name` forgets an AttributeError, and with it what to write instead: there
    the error is an ImportError.
    """
    error = unknown_name(owner, name, known, owner)
    place = caller.f_lasti
    if place < 0 or caller.f_code.co_code[place] != _IMPORT_FROM:
        return error
    return ImportNameError(
        f"from {owner.replace('wf', 'weft', 1)} import {name}",
        error.problem,
        expected=error.expected,
        got={"name": name},
        fix=error.fix,
    )


_IMPORT_FROM = opmap["IMPORT_FROM"]


def suggestion(name: str, known: Iterable[str], owner: str) -> str:
    """What to write for a name that `owner` does not have, empty where nothing is likely."""
    known = list(known)
    foreign = import_module("weft.core.foreign")  # only a mistake needs it
    call: str = foreign.foreign_call(name, owner)
    if call:
        return _as_method(call.removeprefix("# ")) if owner == "x" else call.removeprefix("# ")
    for home in HOMES:
        public = _public(home)
        if home != owner and name in _public_names(public):
            return written_call(f"{home}.{name}", getattr(public, name))
    if name.endswith("_") and owner == "x" and hasattr(PUBLIC[0].Tensor, name[:-1]):
        return f"x.copy_({written_call(f'x.{name[:-1]}', getattr(PUBLIC[0].Tensor, name[:-1]))})"
    if name.endswith("_") and owner == "wf" and name[:-1] in known:
        return f"x.copy_({written_call(f'wf.{name[:-1]}', getattr(PUBLIC[0], name[:-1]))})"
    if name.endswith("_") and owner in ("wf", "x"):
        base = suggestion(name[:-1], [], owner).partition("  #")[0]
        return f"x.copy_({base})" if base.startswith(("wf.", "x.")) else base
    meant = nearest_name(name, known)
    return f"{owner}.{meant}" if meant else ""


def _as_method(call: str) -> str:
    """A call of a function on x, written as a method where tensors have it.

    >>> _as_method("wf.clip(x, 0.0, 1.0)"), _as_method("wf.acosh(x)")
    ('x.clip(0.0, 1.0)', 'wf.acosh(x)')
    """
    head, _, rest = call.partition("(x")
    name = head.removeprefix("wf.")
    if not rest.startswith((", ", ")")) or not callable(getattr(PUBLIC[0].Tensor, name, None)):
        return call
    return f"x.{name}({rest.removeprefix(', ')}"


def _public(home: str) -> Any:
    """The object that a dotted name stands for."""
    first, _, rest = home.partition(".")
    root = PUBLIC[0] if first == "wf" else PUBLIC[0].Tensor
    return reduce(getattr, rest.split("."), root) if rest else root


def _public_names(public: Any) -> Iterable[str]:
    return getattr(public, "__all__", None) or dir(public)


def written_call(path: str, public: Any) -> str:
    """A call of something public, with the arguments that it needs.

    >>> written_call("wf.take", lambda x, indices, *, axis=None: x)
    'wf.take(x, indices)'
    """
    if not callable(public):
        return path
    try:
        parameters = list(signature(public).parameters.values())
    except (TypeError, ValueError):
        return path
    if path.startswith("x."):
        parameters = parameters[1:]
    needed = [
        each.name if each.kind is not each.KEYWORD_ONLY else f"{each.name}=..."
        for each in parameters
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    ]
    return f"{path}({', '.join(needed)})"
