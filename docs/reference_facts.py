"""What the reference says about functions of tensors: primitives, derivatives, what is compiled.

Everything is found by running the library: the primitives of a function are those that its own
examples reach, and a derivative is what forward mode records.

>>> import weft as wf
>>> derivative_text(wf.tanh)
['t * (1 - (out * out))']
"""

from __future__ import annotations

import doctest
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import weft as wf
from weft.core.errors import Unsupported
from weft.ir.derivatives import Constant
from weft.ir.dispatch import OBSERVERS
from weft.ir.graph import Graph, Literal
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ops.debugging import without_short_paths

SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
LONGEST = 120
"""Derivatives with more letters than that are said by their primitives alone."""


def facts(owner: ModuleType, name: str, function: Callable[..., Any]) -> list[str]:
    """Sentences on primitives, derivative and compilation of a function of a module."""
    primitive = getattr(function, "primitive", None)
    primitives = [primitive] if primitive else primitives_in_examples(owner, name, function)
    if not primitives:
        return []
    sentences = [] if primitive else [f"Primitives in the example: {_listing(primitives)}."]
    return [*sentences, *_derivative_sentences(function, primitives), _compiled(primitives)]


def _derivative_sentences(
    function: Callable[..., Any], primitives: Sequence[Primitive]
) -> Iterator[str]:
    for each in primitives:
        if isinstance(each.derivatives, Unsupported):
            yield f"No derivative: {each.derivatives.reason}."
            return
    reasons = [_constant_reason(each) for each in primitives]
    if all(reasons):
        yield f"The derivative is zero: {reasons[0]}."
        return
    if texts := derivative_text(function):
        rules = " and ".join(f"`{text}`" for text in texts)
        yield f"Tangent of the result, `out`: {rules}."


def _constant_reason(primitive: Primitive) -> str:
    """Why the result varies with no operand; empty where it does."""
    rules = primitive.derivatives
    if not isinstance(rules, tuple) or not rules:
        return ""
    reasons = [rule.reason for rule in rules if isinstance(rule, Constant)]
    return reasons[0] if len(reasons) == len(rules) else ""


def _compiled(primitives: Sequence[Primitive]) -> str:
    """What compiled programs make of them, by what each primitive's definition says."""
    refused = {
        each.name: each.lower.reason for each in primitives if isinstance(each.lower, Unsupported)
    }
    if not refused:
        return "Compiled."
    called = "; ".join(f"`{name}`: {reason}" for name, reason in refused.items())
    return f"Not generated as loops: {called}."


def _listing(primitives: Sequence[Primitive]) -> str:
    names = sorted({f"`{each.name}`" for each in primitives})
    return ", ".join(names)


def primitives_in_examples(
    owner: ModuleType, name: str, function: Callable[..., Any]
) -> list[Primitive]:
    """The primitives that calls of the function reach in the examples of its docstring."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(function) or "")
    if not examples or not callable(function) or inspect.isclass(function):
        return []
    home = inspect.getmodule(inspect.unwrap(function)) or owner
    reached: dict[str, Primitive] = {}
    with _observed(owner, name, function, reached) as observed, TemporaryDirectory() as folder:
        names = {**vars(home), "wf": wf, function.__name__: observed}
        test = doctest.DocTest(examples, names, name, None, None, None)
        before = os.getcwd()
        os.chdir(folder)
        try:
            with redirect_stdout(StringIO()), suppress(Exception):
                doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None)
        finally:
            os.chdir(before)
    return [primitive for key, primitive in reached.items() if PRIMITIVES.get(key) is primitive]


@contextmanager
def _observed(
    owner: ModuleType, name: str, function: Callable[..., Any], reached: dict[str, Primitive]
) -> Iterator[Callable[..., Any]]:
    """The function, standing in its module for a while, as one that notes what it reaches."""

    def note(primitive: Primitive, *call: object) -> None:
        reached[primitive.name] = primitive

    def observed(*arguments: Any, **named: Any) -> Any:
        OBSERVERS.append(note)
        try:
            return function(*arguments, **named)
        finally:
            OBSERVERS.remove(note)

    setattr(owner, name, observed)
    try:
        with without_short_paths():
            yield observed
    finally:
        setattr(owner, name, function)


def derivative_text(function: Callable[..., Any]) -> list[str]:
    """The tangent of an element-wise function by each operand, as formulas of x1, x2, t and out."""
    primitive = getattr(function, "primitive", None)
    count = len(primitive.derivatives) if primitive and _is_written_out(primitive) else 0
    texts = [_tangent_text(function, primitive, index, count) for index in range(count)]
    return texts if all(texts) and set(texts) != {"0"} else []


def _is_written_out(primitive: Primitive) -> bool:
    return isinstance(primitive.derivatives, tuple) and primitive.broadcasts


def _tangent_text(
    function: Callable[..., Any], primitive: Primitive, index: int, count: int
) -> str:
    if isinstance(primitive.derivatives[index], Constant):  # type: ignore[index]
        return "0"

    def tangent(*values: Any) -> Any:
        *xs, t = values

        def of_one(x: Any) -> Any:
            return function(*xs[:index], x, *xs[index + 1 :])

        return wf.jvp(of_one, (xs[index],), (t,))[1]

    with suppress(wf.WeftError):
        graph = wf.ir.trace(tangent, *[wf.spec("float32", ())] * (count + 1))
        names = ["x"] if count == 1 else [f"x{i + 1}" for i in range(count)]
        text = _formula(graph, [*names, "t"], primitive)
        return text if len(text) <= LONGEST else ""
    return ""


def _formula(graph: Graph, names: Sequence[str], primitive: Primitive) -> str:
    """The one result of a graph of scalars, written as a formula; empty where it has parameters."""
    formulas: dict[Any, str] = dict(zip(graph.inputs, names, strict=True))
    arguments = list(graph.inputs[:-1])
    for node in graph.nodes:
        operands = [_atom_text(each, formulas) for each in node.operands]
        if node.primitive is primitive and list(node.operands) == arguments:
            formulas[node.results[0]] = "out"
        elif node.primitive.name == "full":
            formulas[node.results[0]] = f"{float(node.params['value']):.6g}"
        elif node.params:
            return ""
        else:
            formulas[node.results[0]] = _call_text(node.primitive.name, operands)
    return _atom_text(graph.outputs[0], formulas)


def _atom_text(atom: Any, formulas: dict[Any, str]) -> str:
    return f"{float(atom.value):.6g}" if isinstance(atom, Literal) else formulas[atom]


def _call_text(name: str, operands: Sequence[str]) -> str:
    """One operation on formulas, with terms of zero left out of sums."""
    if name == "add":
        return " + ".join(_factor(each) for each in operands if each != "0") or "0"
    if name == "subtract" and operands[1] == "0":
        return operands[0]
    if name == "negative" or (name == "subtract" and operands[0] == "0"):
        return f"-{_factor(operands[-1])}"
    if name in SYMBOLS:
        return f" {SYMBOLS[name]} ".join(_factor(each) for each in operands)
    return f"{name}({', '.join(operands)})"


def _factor(formula: str) -> str:
    """A formula in brackets where it has signs of its own outside of brackets."""
    depth = 0
    for letter in formula:
        depth += (letter == "(") - (letter == ")")
        if letter == " " and depth == 0:
            return f"({formula})"
    return formula
