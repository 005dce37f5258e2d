"""Which names statements bind and read, and which are still wanted afterwards.

Only the names of one function's own scope count as bound. What a nested function reads may be read
at any later time, so such names are always wanted.

>>> import ast
>>> from weft.script.names import bound_names
>>> sorted(bound_names(ast.parse("x = [i for i in y]; x.z = 1").body))
['x']
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = FUNCTIONS | ast.Lambda | ast.ClassDef


class _Bound(ast.NodeVisitor):
    """Collects the names that are bound in the scope of the visited statements."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.outer: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.names.add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.names.add(node.name)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.names.add(node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """A lambda is another scope, so that nothing inside is bound here."""

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for test in node.ifs:
            self.visit(test)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.names |= {node.name} if node.name else set()
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self.names.add(node.asname or node.name.split(".")[0])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self.names |= {node.name} if node.name else set()
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self.names |= {node.name} if node.name else set()

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.names |= {node.rest} if node.rest else set()
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.outer |= set(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.outer |= set(node.names)


def bound_names(body: Iterable[ast.AST]) -> set[str]:
    """The names that statements bind in their own scope."""
    visitor = _Bound()
    for node in body:
        visitor.visit(node)
    return visitor.names


def own_nodes(body: Iterable[ast.AST]) -> list[ast.AST]:
    """All nodes of statements except those inside nested functions and classes."""
    nodes: list[ast.AST] = []
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if not isinstance(node, SCOPES):
            waiting.extend(ast.iter_child_nodes(node))
    return nodes


def declared_names(
    body: Iterable[ast.AST], kind: type[ast.Global] | type[ast.Nonlocal]
) -> set[str]:
    """The names that `global` or `nonlocal` statements list."""
    return {name for node in own_nodes(body) if isinstance(node, kind) for name in node.names}


def read(*nodes: ast.AST | None) -> set[str]:
    """The names that are read anywhere in some nodes."""
    return {
        node.id
        for root in nodes
        if root is not None
        for node in ast.walk(root)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load | ast.Del)
    }


def captured_names(body: Iterable[ast.AST]) -> set[str]:
    """The names that functions, lambdas and classes inside read, or rebind."""
    inner = [node for node in own_nodes(body) if isinstance(node, SCOPES)]
    rebound = {
        name
        for scope in inner
        for node in ast.walk(scope)
        if isinstance(node, ast.Nonlocal)
        for name in node.names
    }
    return read(*inner) | rebound


class Liveness:
    """Marks each branch and loop with the names that are wanted after it, backwards.

    A branch gets `wanted`: names read after it. A loop gets `wanted`, and `carried`: names that
    are read after it or by a next step before that binds them.
    """

    def __init__(self, always: set[str]) -> None:
        self.always = always

    def block(self, body: Sequence[ast.stmt], after: set[str]) -> set[str]:
        """The names wanted before some statements."""
        for statement in reversed(body):
            after = self._statement(statement, after)
        return after

    def _statement(self, node: ast.stmt, after: set[str]) -> set[str]:
        match node:
            case ast.If():
                node.wanted = after | self.always  # type: ignore[attr-defined]
                either = self.block(node.body, after) | self.block(node.orelse, after)
                return either | read(node.test)
            case ast.While():
                return self._loop(node, after, read(node.test), set())
            case ast.For() | ast.AsyncFor():
                return self._loop(node, after, set(), bound_names([node.target])) | read(node.iter)
            case ast.With() | ast.AsyncWith():
                return self.block(node.body, after) | read(*node.items)
            case ast.Try():
                parts = [node.body, *[h.body for h in node.handlers], node.orelse, node.finalbody]
                inside = after | read(node)
                return inside.union(*[self.block(part, inside) for part in parts])
            case ast.Match():
                bodies = [self.block(case.body, after) for case in node.cases]
                return after.union(*bodies) | read(node)
        return (after - self._killed_names(node)) | self._used_names(node)

    def _loop(
        self,
        node: ast.While | ast.For | ast.AsyncFor,
        after: set[str],
        test: set[str],
        own: set[str],
    ) -> set[str]:
        head = after | test | set(getattr(node, "stops", ()))
        for _ in range(2):  # names reach the head of a next step through this one
            head = head | (self.block(node.body, head) - own)
        self.block(node.body, head)
        node.wanted = after | self.always  # type: ignore[union-attr]
        node.carried = head | self.always  # type: ignore[union-attr]
        return head

    def _killed_names(self, node: ast.stmt) -> set[str]:
        """Names that a simple statement binds anew, whatever they were before."""
        if isinstance(node, ast.Assign):
            return _stored_names(node.targets) - self.always
        if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            return {node.target.id} - self.always
        return {node.name} - self.always if isinstance(node, FUNCTIONS) else set()

    def _used_names(self, node: ast.stmt) -> set[str]:
        return read(node) | (
            _stored_names([node.target]) if isinstance(node, ast.AugAssign) else set()
        )


def _stored_names(targets: Iterable[ast.expr]) -> set[str]:
    """The names that are bound by assigning to targets."""
    nodes = [node for target in targets for node in ast.walk(target)]
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
