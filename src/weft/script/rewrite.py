"""The rewriting: control flow as calls of the runtime, with bodies as inner functions.

    if x > 0:        def true(): nonlocal y; y = x
        y = x    ->  def false(): nonlocal y; y = -x
    else:            __weft__.branch(x > 0, true, false, state)
        y = -x

`state` reads and writes the names that the bodies bind. The runtime looks at the value of the test:
a traced tensor makes a node of the graph, anything else runs one of the bodies as Python would.
Every new node has the place of the statement it stands for.

>>> import ast
>>> from weft.script.rewrite import rewrite_function
>>> tree = rewrite_function(ast.parse("def f(x): return x > 0 and not x").body[0])
>>> print(ast.unparse(tree))
def f(x):
    return __weft__.and_(x > 0, lambda: __weft__.negation(x))
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from weft.script import jumps
from weft.script.jumps import RUNTIME
from weft.script.names import Liveness, bound_names, captured_names, declared_names, own_nodes

Function = ast.FunctionDef | ast.AsyncFunctionDef
T = TypeVar("T", bound=ast.AST)
SUSPENDS = ast.Yield | ast.YieldFrom | ast.Await | ast.AsyncFor | ast.AsyncWith


def rewrite_function(function: Function) -> Function:
    """A function whose control flow calls the runtime; functions inside it likewise."""
    function.decorator_list = []
    _without_annotations(function)
    function.args.defaults = [ast.Constant(None) for _ in function.args.defaults]
    function.args.kw_defaults = [each and ast.Constant(None) for each in function.args.kw_defaults]
    _rewrite_body(function)
    return function


def _without_annotations(function: Function) -> None:
    arguments = function.args
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each]
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]:
        argument.annotation = None
    function.returns = None


def _rewrite_body(function: Function) -> None:
    nodes = own_nodes(function.body)
    suspended = next((node for node in nodes if isinstance(node, SUSPENDS)), None)
    if suspended is None and isinstance(function, ast.FunctionDef):
        jumps.lower(function)
        outer_names = declared_names(function.body, ast.Nonlocal) | declared_names(
            function.body, ast.Global
        )
        Liveness(captured_names(function.body) | outer_names).block(function.body, set())
        refused = None
    else:
        refused = "yield" if isinstance(suspended, ast.Yield | ast.YieldFrom) else "async"
    rewriter = _Rewriter(function, refused)
    names = bound_names(function.body) - _names_elsewhere(function)
    function.body = [*_binding(names, function), *rewriter.block(function.body)]


def _names_elsewhere(function: Function) -> set[str]:
    """Names that are parameters, or another scope's."""
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    body = function.body
    return arguments | declared_names(body, ast.Global) | declared_names(body, ast.Nonlocal)


def _binding(names: set[str], at: ast.AST) -> list[ast.stmt]:
    """A statement that binds nothing, but makes the names the function's own."""
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in sorted(names)]
    assigned = ast.Assign(targets, ast.Constant(None))
    return [_locate_at(ast.If(ast.Constant(False), [assigned], []), at)] if names else []


class _Rewriter(ast.NodeTransformer):
    """Rewrites the statements and expressions of one function.

    `refused` names a construct around the statement that tensors cannot decide about: then Python's
    own statements stay, and the runtime refuses traced tensors as their tests.
    """

    def __init__(self, function: Function | ast.Lambda, refused: str | None) -> None:
        self.refused = refused
        body = function.body if isinstance(function.body, list) else [function.body]
        self.globals = declared_names(body, ast.Global)
        named = [*function.args.posonlyargs, *function.args.args]
        self.first = named[0].arg if named else None

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements, rewritten."""
        statements: list[ast.stmt] = []
        for node in body:
            result = self.visit(node)
            statements += result if isinstance(result, list) else [result]
        return statements

    # --- statements ----------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if self.refused:
            node.test = self._plain_test(test, "if")
            node.body, node.orelse = self.block(node.body), self.block(node.orelse)
            return node
        names = bound_names([*node.body, *node.orelse])
        body, orelse = self.block(node.body), self.block(node.orelse)
        return _statements(
            f"""
def _weft_true():
    NAMES
    BODY
def _weft_false():
    NAMES
    ORELSE
STATE
{RUNTIME}.branch(TEST, _weft_true, _weft_false, _weft_state)
""",
            node.test if _has_place(node.test) else node,
            NAMES=self._declarations(names),
            BODY=body or [ast.Pass()],
            ORELSE=orelse or [ast.Pass()],
            STATE=self._state(names, _marked_names(node, "wanted"), [], node),
            TEST=test,
        )

    def visit_While(self, node: ast.While) -> Any:
        test = self.visit(node.test)
        if self.refused:
            node.test = self._plain_test(_test_with_flags(_stop_flags(node), test), "while")
            node.body = self.block(node.body)
            return node
        names = bound_names([*node.body, node.test])
        changed = _updated_names(node.body)
        body = self.block(node.body)
        return _statements(
            f"""
def _weft_test():
    TEST_NAMES
    return TEST
def _weft_body():
    NAMES
    BODY
STATE
{RUNTIME}.repeat(_weft_test, lambda: FLAGS, _weft_body, _weft_state)
""",
            node.test,
            TEST_NAMES=self._declarations(bound_names([node.test])),
            NAMES=self._declarations(names),
            TEST=test,
            BODY=body,
            FLAGS=_flags(node),
            STATE=self._state(names, _marked_names(node, "carried"), changed, node),
        )

    def visit_For(self, node: ast.For) -> Any:
        source = self.visit(node.iter)
        if self.refused:
            node.iter = _call("plain_items", [source, ast.Constant(self.refused)], node.iter)
            node.body = [*self.block(node.body), *_leave(_stop_flags(node), node)]
            return node
        names = bound_names([*node.body, node.target])
        changed = [
            name for name in _updated_names(node.body) if name not in bound_names([node.target])
        ]
        target = self.visit(node.target)
        body = self.block(node.body)
        return _statements(
            f"""
def _weft_body(_weft_item):
    NAMES
    TARGET
    BODY
STATE
{RUNTIME}.for_each(SOURCE, lambda: FLAGS, _weft_body, _weft_state)
""",
            node.iter,
            NAMES=self._declarations(names),
            TARGET=[
                _locate_at(ast.Assign([target], ast.Name("_weft_item", ast.Load())), node.target)
            ],
            BODY=body,
            SOURCE=source,
            FLAGS=_flags(node),
            STATE=self._state(names, _marked_names(node, "carried"), changed, node),
        )

    def visit_Try(self, node: ast.Try) -> Any:
        before = self.refused
        self.refused = before or ("try/except" if node.handlers else None)
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        for handler in node.handlers:
            handler.type = handler.type and self.visit(handler.type)
            handler.body = self.block(handler.body)
        self.refused = before
        node.finalbody = self.block(node.finalbody)
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        test = self.visit(node.test)
        message = self.visit(node.msg) if node.msg else ast.Constant(None)
        words = ast.Constant(ast.unparse(node.test))
        parts = [test, _thunk(message, node), words]
        return _locate_at(ast.Expr(_call("check", parts, node.test)), node)

    def visit_Raise(self, node: ast.Raise) -> Any:
        self.generic_visit(node)
        if node.exc is not None:
            node.exc = _call("marked_error", [node.exc], node.exc)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        return [*_touch_calls(node.targets, node), node]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return _locate_at(ast.Pass(), node)
        assigned = ast.copy_location(ast.Assign([node.target], node.value), node)
        return self.visit(assigned)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return [*_touch_calls([node.target], node), node]
        sign = ast.Constant(type(node.op).__name__)
        value = _call("update", [sign, _load(node.target.id, node), node.value], node)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_Delete(self, node: ast.Delete) -> Any:
        self.generic_visit(node)
        return [*_touch_calls(node.targets, node), node]

    # --- functions inside ----------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.args.defaults = [self.visit(each) for each in node.args.defaults]
        _rewrite_body(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        _rewrite_body(node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        node.body = _Rewriter(node, None).visit(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node

    # --- expressions ---------------------------------------------------------------------------

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        if _binds_name(node):
            return node
        word = "and_" if isinstance(node.op, ast.And) else "or_"
        first, *rest = node.values
        for value in rest:
            first = _call(word, [first, _thunk(value, value)], node)
        return first

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return _call("negation", [node.operand], node) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        if _binds_name(node):
            return node
        values = [_thunk(node.body, node.body), _thunk(node.orelse, node.orelse)]
        return _call("choice", [node.test, *values], node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) == 1 or _binds_name(node):
            return node
        signs: list[ast.expr] = [ast.Constant(type(op).__name__) for op in node.ops]
        rest = [_thunk(each, each) for each in node.comparators]
        return _call("chain", [node.left, _tuple(signs), *rest], node)

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and _is_runtime(node.func.value):
            return node
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            if not node.args and self.first:
                node.args = [_load("__class__", node), _load(self.first, node)]
            return node
        node.func = _call("callee", [node.func], node.func)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        self.generic_visit(node)
        node.ifs = [
            _call("python_test", [t, _word("a comprehension"), _word("if")], t) for t in node.ifs
        ]
        return node

    # --- parts ---------------------------------------------------------------------------------

    def _plain_test(self, test: ast.expr, construct: str) -> ast.expr:
        return _call("python_test", [test, _word(self.refused or ""), _word(construct)], test)

    def _declarations(self, names: Iterable[str]) -> list[ast.stmt]:
        """Declarations that make names mean the function's own."""
        ours = sorted(set(names) - self.globals)
        theirs = sorted(set(names) & self.globals)
        declarations: list[ast.stmt] = [ast.Nonlocal(ours)] if ours else []
        return declarations + ([ast.Global(theirs)] if theirs else [])

    def _state(
        self, names: set[str], wanted: set[str], changed: Sequence[str], at: ast.stmt
    ) -> list[ast.stmt]:
        """`_weft_state`: the names that a body binds, those wanted afterwards first."""
        ordered = sorted(names & wanted) + sorted(names - wanted)
        first = len(names & wanted)
        text = "def _weft_get():\n    return (" + "".join(f"lambda: {n}, " for n in ordered) + ")\n"
        text += "def _weft_put(_weft_values):\n    NAMES\n"
        for index, name in enumerate(ordered):
            text += f"    {name} = _weft_values[{index}]\n"
            text += f"    if {name} is {RUNTIME}.undefined: del {name}\n"
        stays, theirs = tuple(changed), tuple(sorted(names & self.globals))
        text += (
            f"_weft_state = {RUNTIME}.state(_weft_get, _weft_put, {tuple(ordered)!r}, {first},"
            f" {stays!r}, {theirs!r})"
        )
        return _statements(text, at, NAMES=self._declarations(names) or [ast.Pass()])


def _updated_names(body: Sequence[ast.stmt]) -> list[str]:
    """Names that are only updated in place: by `x += y` or not at all."""
    updated = {
        node.target.id
        for node in own_nodes(body)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    plain = [node for node in own_nodes(body) if not isinstance(node, ast.AugAssign)]
    stored = {
        node.id
        for parent in plain
        for node in ast.iter_child_nodes(parent)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del)
    }
    return sorted(updated - stored)


def _touch_calls(targets: Sequence[ast.expr], at: ast.stmt) -> list[ast.stmt]:
    """Calls that tell the runtime whose contents or attributes are about to be stored to."""
    calls: list[ast.stmt] = []
    for target in targets:
        for node in ast.walk(target):
            stores = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
            if stores and isinstance(node, ast.Attribute | ast.Subscript) and _is_path(node.value):
                calls += _touch(_copy_expression(node.value), at)
    return calls


def _touch(base: ast.expr, at: ast.stmt) -> list[ast.stmt]:
    return [_locate_at(ast.Expr(_call("touch", [base], at)), at)]


def _is_path(node: ast.expr) -> bool:
    """Whether an expression may be evaluated once more: names, attributes, items."""
    allowed = (
        ast.Name | ast.Attribute | ast.Subscript | ast.Constant | ast.expr_context | ast.UnaryOp
        | ast.USub | ast.BinOp | ast.operator
    )  # fmt: skip
    return all(isinstance(each, allowed) for each in ast.walk(node))


def _copy_expression(node: ast.expr) -> ast.expr:
    text = ast.parse(ast.unparse(node), mode="eval").body
    for each in ast.walk(text):
        vars(each).pop("lineno", None)
    return text


def _binds_name(node: ast.expr) -> bool:
    """Whether an expression binds a name or suspends, which an inner function could not do."""
    kinds = ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await
    return any(isinstance(each, kinds) for each in own_nodes([node]))


def _stop_flags(node: ast.stmt) -> list[str]:
    flags: list[str] = getattr(node, "stops", [])
    return flags


def _flags(node: ast.stmt) -> ast.expr:
    return _tuple([_load(name, node) for name in _stop_flags(node)])


def _test_with_flags(flags: list[str], test: ast.expr) -> ast.expr:
    """The test of a loop that Python runs, which ends when a flag is set."""
    if not flags:
        return test
    going = _call("no_flag_is_set", [_load(name, test) for name in flags], test)
    return _locate_at(ast.BoolOp(ast.And(), [going, test]), test)


def _leave(flags: list[str], node: ast.For) -> list[ast.stmt]:
    if not flags:
        return []
    going = _call("no_flag_is_set", [_load(name, node) for name in flags], node)
    return [_locate_at(ast.If(ast.UnaryOp(ast.Not(), going), [ast.Break()], []), node)]


def _marked_names(node: ast.stmt, name: str) -> set[str]:
    names: set[str] = getattr(node, name)
    return names


def _is_runtime(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == RUNTIME


def _has_place(node: ast.AST) -> bool:
    return hasattr(node, "lineno")


# --- building ----------------------------------------------------------------------------------


def _load(name: str, at: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name(name, ast.Load()), at)


def _word(text: str) -> ast.expr:
    return ast.Constant(text)


def _tuple(parts: list[ast.expr]) -> ast.expr:
    return ast.Tuple(parts, ast.Load())


def _call(name: str, arguments: list[ast.expr], at: ast.AST) -> ast.expr:
    """A call of the runtime, at a place."""
    function = ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load())
    return _locate_at(ast.Call(function, arguments, []), at)


def _thunk(value: ast.expr, at: ast.AST) -> ast.expr:
    arguments = ast.arguments([], [], None, [], [], None, [])
    return _locate_at(ast.Lambda(arguments, value), at)


def _locate_at(node: T, at: ast.AST) -> T:
    """The nodes that have no place yet, at the place of another."""
    for each in ast.walk(node):
        if isinstance(each, ast.expr | ast.stmt | ast.arg) and not _has_place(each):
            ast.copy_location(each, at)
    return node


class _Filling(ast.NodeTransformer):
    """Puts expressions and statements in the place of names in capitals."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> Any:
        return self.parts.get(node.id, node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Name) and isinstance(self.parts.get(node.value.id), list):
            return self.parts[node.value.id]
        return self.generic_visit(node)


def _statements(text: str, at: ast.AST, **parts: Any) -> list[ast.stmt]:
    """Statements from a text, all at one place but for the parts that are put in."""
    module = ast.parse(text.strip())
    for node in ast.walk(module):
        vars(node).pop("lineno", None)
    filled: ast.Module = _Filling(parts).visit(module)
    return list(_locate_at(filled, at).body)
