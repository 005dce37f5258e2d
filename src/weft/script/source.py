"""From a function to its syntax tree, and back from a tree to a function.

The tree is that of the whole file, so that lines and columns are the user's. The new function has
the old one's globals, closure, defaults and attributes; its inner functions bear its name.

>>> from weft.script.source import tree_of
>>> tree_of(tree_of).node.name
'tree_of'
"""

from __future__ import annotations

import ast
import copy
import linecache
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from weft.core.records import frozen
from weft.script.jumps import RUNTIME

GENERATED = "_weft_"
"""How the names of functions begin that only the rewriting made."""


@frozen(slots=False)
class Found:
    """A function in its file, and the class it stands in, if any."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    owner: str | None


def tree_of(function: types.FunctionType) -> Found | None:
    """The syntax tree of a function, to be changed freely; None where there is no source."""
    code = function.__code__
    functions = _functions(code.co_filename, "".join(linecache.getlines(code.co_filename)))
    same = [each for each in functions if _is_source_of(each.node, code)]
    return copy.deepcopy(same[0]) if len(same) == 1 else None


@lru_cache(maxsize=64)
def _functions(file: str, text: str) -> tuple[Found, ...]:
    """All functions of a file."""
    try:
        tree = ast.parse(text, file)
    except SyntaxError:
        return ()
    functions: list[Found] = []

    def walk(node: ast.AST, owner: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                functions.append(Found(child, owner))
            walk(child, child.name if isinstance(child, ast.ClassDef) else owner)

    walk(tree, None)
    return tuple(functions)


def _is_source_of(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, code: types.CodeType
) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *[each.lineno for each in node.decorator_list]])
    return node.name == code.co_name and first == code.co_firstlineno


def compile_function(
    tree: ast.FunctionDef | ast.AsyncFunctionDef, owner: str | None, code: types.CodeType
) -> types.CodeType:
    """The code of a changed function, with the free names of the old code still free."""
    free = [*code.co_freevars, RUNTIME]
    inner: list[ast.stmt] = [tree]
    tree.name = f"{GENERATED}function"  # its own name may mean something else inside
    if owner is not None:  # names such as self.__x mean the class, its own name is not ours
        inner = [ast.ClassDef(owner, [], [], [tree], [])]
        inner = inner if owner in free else [ast.Global([owner]), *inner]
    names = [ast.arg(name) for name in dict.fromkeys(free) if name != "__class__"]
    arguments = ast.arguments([], names, None, [], [], None, [])
    factory = ast.FunctionDef(f"{GENERATED}factory", arguments, inner, [])
    module = ast.Module([factory], [])
    for node in ast.walk(module):
        if isinstance(node, ast.expr | ast.stmt | ast.arg) and not hasattr(node, "lineno"):
            ast.copy_location(node, tree)
    ast.fix_missing_locations(module)
    whole = compile(module, code.co_filename, "exec", dont_inherit=True, flags=_future(code))
    inner_code = _find_code(whole, tree.name)
    return _rename_code(inner_code, code.co_name, code.co_qualname)


def _future(code: types.CodeType) -> int:
    """The `from __future__` features that the code was compiled under."""
    return code.co_flags & 0x1000000  # annotations


def _find_code(code: types.CodeType, name: str) -> types.CodeType:
    """The first function of a name, at any depth."""
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            if each.co_name == name and not _is_class(each):
                return each
            try:
                return _find_code(each, name)
            except LookupError:
                continue
    raise LookupError(name)


def _is_class(code: types.CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names


def _rename_code(code: types.CodeType, name: str, qualified: str) -> types.CodeType:
    """The code, with its generated inner functions under the name of the function they are in."""
    consts = tuple(
        _rename_code(each, *_name_of(each, name, qualified))
        if isinstance(each, types.CodeType)
        else each
        for each in code.co_consts
    )
    return code.replace(co_consts=consts, co_name=name, co_qualname=qualified)


def _name_of(code: types.CodeType, name: str, qualified: str) -> tuple[str, str]:
    generated = code.co_name.startswith(GENERATED) or code.co_name == "<lambda>"
    return (name, qualified) if generated else (code.co_name, code.co_qualname)


def rebuild_function(
    function: types.FunctionType, code: types.CodeType, runtime: Any
) -> Callable[..., Any]:
    """The function with other code, in which `__weft__` is the runtime."""
    old = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = {**old, RUNTIME: types.CellType(runtime)}
    closure = tuple(cells[name] for name in code.co_freevars)
    new = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    new.__kwdefaults__ = function.__kwdefaults__
    new.__qualname__ = function.__qualname__
    new.__module__ = function.__module__
    new.__doc__ = function.__doc__
    new.__dict__.update(function.__dict__)
    return new
