"""The table of rules: (domain, operator, since-version) -> a function of Weft tensors.

A rule takes the node and its inputs, and returns one value or a tuple of them. Its inputs are
tensors, except at the places that `known` names: there it gets host arrays, which may hold symbolic
sizes, so that what shapes a program is a constant of it. An omitted input is None.

>>> from weft.onnx.importing import rules
>>> from weft.onnx.importing.registry import find_rule
>>> find_rule("", "Softmax", 13).since, find_rule("", "Softmax", 11).since
(13, 1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]
EVERY = -1
"""As a place in `known`: every input."""


@dataclass(frozen=True)
class Rule:
    """How one operator is computed, from one version of it on."""

    function: Function
    since: int
    known: tuple[int, ...]
    narrow: bool
    """Whether the rule itself takes numbers of types that tensors do not have, such as float8."""
    moves: bool
    """Whether it only moves elements, so that such numbers pass through it unchanged."""

    def needs_known(self, place: int) -> bool:
        """Whether the input at a place must be known when the program is traced."""
        return place in self.known or EVERY in self.known


RULES: dict[tuple[str, str], list[Rule]] = {}
SIZE_RULES: dict[str, Function] = {}
"""Rules over host arrays for operators that compute sizes from sizes."""


def rule(
    *operators: str,
    since: int = 1,
    known: tuple[int, ...] = (),
    domain: str = "",
    narrow: bool = False,
    moves: bool = False,
) -> Callable[[Function], Function]:
    """Enter a function into the table, for each of the operators it is named for."""

    def enter(function: Function) -> Function:
        for operator in operators:
            versions = RULES.setdefault((domain, operator), [])
            versions.append(Rule(function, since, known, narrow, moves))
            versions.sort(key=lambda each: each.since)
        return function

    return enter


def size_rule(*operators: str) -> Callable[[Function], Function]:
    """Enter a function of host arrays, for sizes that are symbols."""

    def enter(function: Function) -> Function:
        SIZE_RULES.update(dict.fromkeys(operators, function))
        return function

    return enter


def find_rule(domain: str, operator: str, version: int) -> Rule | None:
    """The newest rule that is not newer than a version of the operator."""
    candidates = [each for each in RULES.get((domain, operator), []) if each.since <= version]
    return candidates[-1] if candidates else None
