"""What is allowed, but seldom meant: dtypes, broadcasts, branches never taken, numbers at risk.

>>> import weft as wf
>>> specs = wf.spec("float32", ("n",)), wf.spec("float32", ("n", 1))
>>> print(wf.tools.check(lambda a, b: (a - b).sum(), *specs).findings[0].problem)
subtract makes f32[n, n] of two tensors that have n elements each
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import weft as wf
from weft.tools.findings import WARNING, Finding
from weft.tools.ranges import Range, range_of
from weft.tools.subject import Subject

__all__ = ["surprise_findings"]

HALVES = ("float16", "bfloat16")


def surprise_findings(subject: Subject, ranges: dict[Any, Range]) -> Iterator[Finding]:
    """Everything that this file looks for, line by line, each line once for each rule."""
    producers = {result: node for node in subject.graph.nodes for result in node.results}
    seen: set[Any] = set()
    rules: list[Callable[..., Iterator[Finding]]] = [
        _find_float64, _whole_division, _mixed_halves, _outer_broadcast, _dead_choice, _dead_branch,
        _risks,
    ]  # fmt: skip
    doubles = any(kind.dtype.name == "float64" for kind in subject.graph.input_types)
    for number, node in enumerate(subject.graph.nodes):
        looked = _Look(subject, node, number, producers, ranges, doubles)
        for rule in rules if subject.is_own(node) else rules[:3]:
            for finding in rule(looked):
                key = finding.rule, str(finding.at), finding.module
                if key not in seen:
                    seen.add(key)
                    yield finding


class _Look:
    """One node, and what is around it."""

    def __init__(
        self,
        subject: Subject,
        node: Any,
        number: int,
        producers: dict[Any, Any],
        ranges: dict[Any, Range],
        doubles: bool,
    ) -> None:
        self.subject, self.node, self.number = subject, node, number
        self.producers, self.doubles = producers, doubles
        self.name = node.primitive.name
        self.types = [atom.type for atom in node.operands]
        self.ranges = [range_of(atom, ranges) for atom in node.operands]

    def warning(self, rule: str, problem: str, fix: str) -> Finding:
        location = self.node.location
        return Finding(
            WARNING,
            rule,
            problem,
            got="   ".join(map(str, self.types)),
            fix=fix,
            at=self.subject.place(self.node),
            module="" if location is None else location.module,
        )

    def dtype_before_conversion(self, position: int) -> Any:
        """The dtype that an operand had before it was converted on the same line, if it was."""
        producing_node = self.producers.get(self.node.operands[position])
        if producing_node is None or producing_node.primitive.name != "convert":
            return None
        return (
            producing_node.operands[0].type.dtype
            if producing_node.location == self.node.location
            else None
        )


def _find_float64(look: _Look) -> Iterator[Finding]:
    """Where float64 comes from, unless it was asked for by an input."""
    makes_double = any(result.type.dtype.name == "float64" for result in look.node.results)
    had = any(kind.dtype.name == "float64" for kind in look.types)
    is_count = look.name == "convert" and look.types[0].ndim == 0  # follows a tensor's dtype
    if makes_double and not had and not look.doubles and not is_count:
        yield look.warning(
            "float64",
            f"{look.name} makes float64, though no input is: all that follows is twice as large",
            'convert to what the rest is in: .astype("float32")',
        )


def _whole_division(look: _Look) -> Iterator[Finding]:
    """An integer division whose result is then used as a float."""
    if look.name != "convert" or not look.node.results[0].type.dtype.is_inexact:
        return
    producing_node = look.producers.get(look.node.operands[0])
    if producing_node is not None and producing_node.primitive.name == "floor_divide":
        whole = _Look(look.subject, producing_node, 0, look.producers, {}, look.doubles)
        yield whole.warning(
            "integer division",
            "// drops the fraction, and the result is then used as a float",
            "divide with /, or round on purpose: wf.floor(a / b)",
        )


def _mixed_halves(look: _Look) -> Iterator[Finding]:
    """16-bit operands that are widened because the other one is wider, or of the other kind."""
    if look.name == "convert":
        return
    before = [look.dtype_before_conversion(position) for position in range(len(look.types))]
    halves = {each.name for each in before if each is not None and each.name in HALVES}
    if not halves:
        return
    others = {kind.dtype.name for kind, was in zip(look.types, before, strict=True) if was is None}
    wide = {name for name in others if name in ("float32", "float64")}
    if len(halves) == 2 or wide:
        kinds = " and ".join(sorted(halves | (wide if len(halves) < 2 else set())))
        result = look.node.results[0].type.dtype.name
        yield look.warning(
            "mixed precision",
            f"{look.name} of {kinds} is computed in {result}",
            f"convert one of them: .astype({min(halves)!r})",
        )


def _outer_broadcast(look: _Look) -> Iterator[Finding]:
    """[n] and [n, 1] make [n, n]: each is repeated along the other's only axis."""
    numbers = all(kind.dtype.is_inexact for kind in look.types)
    if not look.node.primitive.broadcasts or len(look.types) != 2 or not numbers:
        return
    small, large = sorted(look.types, key=lambda kind: kind.ndim)
    if small.ndim == large.ndim or small.ndim == 0:
        return
    last = small.ndim
    aligned = list(zip(small.shape, large.shape[-last:], strict=True))
    repeated = [a for a, b in aligned if b == 1 and a != 1]
    missing = [size for size in large.shape[:-last] if size != 1]
    if repeated and missing and repeated[0] == missing[-1]:
        result = look.node.results[0].type
        yield look.warning(
            "broadcast",
            f"{look.name} makes {result} of two tensors that have {repeated[0]} elements each",
            "give both the same shape: b.squeeze(-1), or a[:, None]",
        )


def _dead_choice(look: _Look) -> Iterator[Finding]:
    """A where that always chooses the same side."""
    if look.name != "where":
        return
    mask = look.ranges[0].constant
    if mask is None or not _is_repeated(look):
        return
    side = "third" if mask else "second"
    yield look.warning(
        "dead branch",
        f"where never chooses its {side} argument: the condition is always {bool(mask)}",
        "leave the where out, or look at the condition",
    )


def _is_repeated(look: _Look) -> bool:
    """Whether a condition is the same in a second trace: what is drawn at random is not."""
    atom = look.node.operands[0]
    other = look.subject.repeated.nodes[look.number].operands[0]
    if not isinstance(atom, wf.ir.Literal) or not isinstance(other, wf.ir.Literal):
        return True
    return atom.value.size < 2 or bool(np.array_equal(atom.value, other.value))


def _dead_branch(look: _Look) -> Iterator[Finding]:
    """A choice between functions that is made before the program runs."""
    if look.name != "switch":
        return
    known = look.ranges[0].constant
    if known is not None:
        yield look.warning(
            "dead branch",
            f"the same branch is always taken: number {int(known)} of "
            f"{len(look.node.params['branches'])}",
            "call the one function, or look at the condition",
        )


def _risks(look: _Look) -> Iterator[Finding]:
    """Where a zero, or a negative number, gives NaN or infinity."""
    kind = look.node.primitive.kind
    if isinstance(kind, wf.ir.kinds.Elementwise) and kind.needs_positive:
        yield from _domain(look)
    elif look.name == "divide":
        denominator = look.ranges[1]
        if denominator.low == 0.0 and denominator.reached and denominator.constant is None:
            yield look.warning(
                "not finite",
                "the denominator may be zero: nothing keeps it away from it",
                "add a small number to it: a / (b + 1e-6)",
            )
        elif denominator.constant == 0.0:
            yield look.warning(
                "not finite", "the denominator is always zero", "look at where it comes from"
            )


def _domain(look: _Look) -> Iterator[Finding]:
    """Logarithms and roots at, or below, zero."""
    own = look.ranges[0]
    if not own.is_known or own.low > 0 or own.low == float("-inf"):
        if own.high < 0:
            yield look.warning(
                "not finite",
                f"{look.name} of what is always negative is NaN",
                "look at the sign of what comes in",
            )
        return
    if own.low < 0 and own.high >= 0:
        problem = f"{look.name} of what may be negative, down to {own.low:g}, is NaN"
    elif own.low == 0 and look.name == "sqrt":
        problem = "the gradient of sqrt at zero is infinite, and zero may occur"
    elif own.low == 0:
        problem = f"{look.name} of what may be zero is infinite"
    else:
        return
    if look.name == "sqrt" and not own.reached:
        return
    yield look.warning("not finite", problem, _remedy(look))


def _remedy(look: _Look) -> str:
    producing_node = look.producers.get(look.node.operands[0])
    name = "" if producing_node is None else producing_node.primitive.name
    if look.name == "log" and name == "divide":
        return "take both in one: wf.log_softmax(x)"
    if look.name == "log" and name == "sigmoid":
        return "take both in one: wf.log_sigmoid(x)"
    return f"add a small number before: wf.{look.name}(x + 1e-6), or clip it: wf.clip(x, 1e-6)"
