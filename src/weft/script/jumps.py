"""`return`, `break` and `continue` as plain assignments to flags.

Afterwards control leaves a statement only at its end, so that branches and loops can become
functions. What follows a branch that always returns moves into the other branch, which then needs
no flag; elsewhere statements behind a possible jump stand under `if` the flags are not set.

>>> import ast
>>> from weft.script.jumps import lower
>>> f = ast.parse('''
... def f(x):
...     if x > 0:
...         return x
...     return -x
... ''').body[0]
>>> print(ast.unparse(lower(f)))
def f(x):
    if x > 0:
        _weft_result = x
    else:
        _weft_result = -x
    return _weft_result
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from weft.core.records import frozen
from weft.script.names import own_nodes

RESULT = "_weft_result"
RETURNED = "_weft_returned"
RUNTIME = "__weft__"
LOOPS = ast.For | ast.While | ast.AsyncFor


@frozen(slots=False)
class _Place:
    """Where a statement stands: the flags of its loop, and whether nothing follows it."""

    tail: bool
    broken: str | None = None
    skipped: str | None = None


def lower(function: ast.FunctionDef) -> ast.FunctionDef:
    """The function with no jump but, perhaps, one `return` at its very end."""
    nodes = own_nodes(function.body)
    jumps = [n for n in nodes if isinstance(n, ast.Return | ast.Break | ast.Continue)]
    last = function.body[-1]
    if not [jump for jump in jumps if jump is not last] and not _has_else(nodes):
        return function
    returns = any(isinstance(jump, ast.Return) for jump in jumps)
    lowering = _Lowering(returns, falls=not always_returns(function.body))
    body = lowering.block(function.body, _Place(tail=True))
    function.body = [*lowering.start(function), *body, *lowering.end(last)]
    return function


def _has_else(nodes: Sequence[ast.AST]) -> bool:
    return any(isinstance(node, LOOPS) and node.orelse for node in nodes)


def always_returns(body: Sequence[ast.stmt]) -> bool:
    """Whether control never reaches the end of some statements."""
    return any(map(_always_leaves, body))


def _always_leaves(node: ast.stmt) -> bool:
    match node:
        case ast.Return() | ast.Raise():
            return True
        case ast.If():
            return bool(node.orelse) and always_returns(node.body) and always_returns(node.orelse)
        case ast.With():
            return always_returns(node.body)
        case ast.Try():
            handled = all(always_returns(handler.body) for handler in node.handlers)
            whole = always_returns([*node.body, *node.orelse]) and handled
            return whole or always_returns(node.finalbody)
        case ast.While(test=ast.Constant(value=value)) if value:
            return not any(isinstance(each, ast.Break) for each in _own_loop_nodes(node.body))
    return False


def _own_loop_nodes(body: Sequence[ast.stmt]) -> list[ast.AST]:
    """Nodes of a loop's body, without what belongs to loops inside it."""
    inner = {
        id(each)
        for node in own_nodes(body)
        if isinstance(node, LOOPS)
        for each in own_nodes(node.body)
    }
    return [node for node in own_nodes(body) if id(node) not in inner]


class _Lowering:
    """Rewrites the statements of one function.

    `falls` says that it may reach its end without returning; `flagged`, that the flag of having
    returned is read somewhere.
    """

    def __init__(self, returns: bool, *, falls: bool) -> None:
        self.returns = returns
        self.falls = self.flagged = returns and falls
        self.loops = 0

    def start(self, function: ast.FunctionDef) -> list[ast.stmt]:
        """What stands before the body: nothing is returned yet."""
        return [_assign(RETURNED, ast.Constant(False), function.body[0])] if self.flagged else []

    def end(self, at: ast.stmt) -> list[ast.stmt]:
        """The statement that ends the function: the return of its result."""
        if not self.returns:
            return []
        text = f"{RUNTIME}.return_value({RETURNED}, lambda: {RESULT})" if self.falls else RESULT
        return [_locate_at(ast.Return(_expression(text)), at)]

    def block(self, body: Sequence[ast.stmt], place: _Place) -> list[ast.stmt]:
        """The statements, with those behind a possible jump moved or guarded."""
        lowered: list[ast.stmt] = []
        for index, node in enumerate(body):
            rest = body[index + 1 :]
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                return lowered + self._jump(node, place)
            if rest and isinstance(node, ast.If) and self._pushes(node, rest):
                return lowered + self._statement(node, place)
            flags = self._flags(node, place)
            inner = place if not rest else replace(place, tail=False)
            lowered += self._statement(node, inner)
            if flags and rest:
                return [*lowered, self._guard(flags, self.block(rest, place), rest[0])]
        return lowered

    def _pushes(self, node: ast.If, rest: Sequence[ast.stmt]) -> bool:
        """Move what follows a branch that always returns into the other branch."""
        if always_returns(node.body):
            node.orelse = [*node.orelse, *rest]
        elif node.orelse and always_returns(node.orelse):
            node.body = [*node.body, *rest]
        else:
            return False
        return True

    def _jump(self, node: ast.Return | ast.Break | ast.Continue, place: _Place) -> list[ast.stmt]:
        if isinstance(node, ast.Return):
            result = _assign(RESULT, node.value or ast.Constant(None), node)
            if place.tail and not self.falls:  # nothing follows that would read the flag
                return [result]
            self.flagged = True
            return [result, _assign(RETURNED, ast.Constant(True), node)]
        flag = place.broken if isinstance(node, ast.Break) else place.skipped
        return [_assign(flag or "", ast.Constant(True), node)]

    def _flags(self, node: ast.stmt, place: _Place) -> list[str]:
        """The flags that a statement may set, so that what follows it is not to happen."""
        kinds = {type(each) for each in _own_loop_nodes([node])}
        flags = [RETURNED] if _returns([node]) else []
        flags += [place.broken] if place.broken and ast.Break in kinds else []
        flags += [place.skipped] if place.skipped and ast.Continue in kinds else []
        return flags

    def _guard(self, flags: list[str], body: list[ast.stmt], at: ast.stmt) -> ast.stmt:
        self.flagged |= RETURNED in flags
        test = _expression(f"{RUNTIME}.no_flag_is_set({', '.join(flags)})")
        return _locate_at(ast.If(test, body or [ast.Pass()], []), at)

    def _statement(self, node: ast.stmt, place: _Place) -> list[ast.stmt]:
        match node:
            case ast.If():
                node.body = self.block(node.body, place)
                node.orelse = self.block(node.orelse, place)
            case ast.With() | ast.AsyncWith():
                node.body = self.block(node.body, place)
            case ast.Match():
                for each in node.cases:
                    each.body = self.block(each.body, place)
            case ast.Try():
                return self._try(node, replace(place, tail=False))
            case ast.For() | ast.While() | ast.AsyncFor():
                return self._loop(node, place)
        return [node]

    def _try(self, node: ast.Try, place: _Place) -> list[ast.stmt]:
        flags = [flag for each in node.body for flag in self._flags(each, place)]
        node.body = self.block(node.body, place)
        for handler in node.handlers:
            handler.body = self.block(handler.body, place)
        if node.orelse:
            orelse = self.block(node.orelse, place)
            node.orelse = [self._guard(flags, orelse, node.orelse[0])] if flags else orelse
        node.finalbody = self.block(node.finalbody, place)
        return [node]

    def _loop(self, node: LOOPS, place: _Place) -> list[ast.stmt]:
        self.loops += 1
        own = {type(each) for each in _own_loop_nodes(node.body)}
        broken = f"_weft_broken_{self.loops}" if ast.Break in own else None
        skipped = f"_weft_skipped_{self.loops}" if ast.Continue in own else None
        stops = ([broken] if broken else []) + ([RETURNED] if _returns(node.body) else [])
        self.flagged |= RETURNED in stops
        start = [_assign(broken, ast.Constant(False), node)] if broken else []
        first = [_assign(skipped, ast.Constant(False), node.body[0])] if skipped else []
        node.body = [*first, *self.block(node.body, _Place(False, broken, skipped))]
        orelse, node.orelse = node.orelse, []
        node.stops = stops  # type: ignore[union-attr]
        after = self.block(orelse, replace(place, tail=False))
        if after and stops:
            after = [self._guard(stops, after, orelse[0])]
        return [*start, node, *after]


def _returns(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(each, ast.Return) for each in own_nodes(body))


def _expression(text: str) -> ast.expr:
    """An expression without a place."""
    body = ast.parse(text, mode="eval").body
    for node in ast.walk(body):
        vars(node).pop("lineno", None)
    return body


def _assign(name: str, value: ast.expr, at: ast.stmt) -> ast.stmt:
    return _locate_at(ast.Assign([ast.Name(name, ast.Store())], value), at)


def _locate_at(node: ast.stmt, at: ast.AST) -> ast.stmt:
    """The new nodes of a statement, at the place of another."""
    for each in ast.walk(node):
        if isinstance(each, ast.expr | ast.stmt) and not hasattr(each, "lineno"):
            ast.copy_location(each, at)
    return node
