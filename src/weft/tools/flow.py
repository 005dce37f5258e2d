"""What reaches the result, and what gradients reach: parameters, inputs and values that do not.

>>> import weft as wf
>>> net = wf.nn.Linear(2, 3)
>>> report = wf.tools.check(net, wf.spec("float32", ("n", 2)), loss=lambda y: wf.round(y).sum())
>>> [(each.rule, each.problem) for each in report.findings]
[('zero gradient', 'weight and bias can never learn: round passes no gradient back')]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import weft as wf
from weft.tools.findings import ERROR, WARNING, Finding
from weft.tools.ranges import Range, range_of
from weft.tools.subject import Subject

__all__ = ["flow_findings"]


def flow_findings(subject: Subject, ranges: dict[Any, Range]) -> Iterator[Finding]:
    """Unused parameters and inputs, values that go nowhere, and gradients that are always zero."""
    live = _live_nodes(subject)
    used = {atom for node in live for atom in node.operands} | set(subject.graph.outputs)
    unused = [variable for variable in subject.parameters if variable not in used]
    yield from _unused_parameters(subject, unused)
    yield from _unused_inputs(subject, used)
    yield from _lost_values(subject, live)
    if subject.has_loss or subject.parameters:
        yield from _zero_gradients(subject, live, used, ranges)


def _live_nodes(subject: Subject) -> set[Any]:
    """The nodes that an output needs."""
    needed = set(subject.graph.outputs)
    live = set()
    for node in reversed(subject.graph.nodes):
        if node.primitive.impure or not needed.isdisjoint(node.results):
            live.add(node)
            needed.update(node.operands)
    return live


def _unused_parameters(subject: Subject, unused: list[Any]) -> Iterator[Finding]:
    """One finding for each module: a layer that is not called has several."""
    groups: dict[str, list[Any]] = {}
    for variable in unused:
        groups.setdefault(subject.parameters[variable].rpartition(".")[0], []).append(variable)
    for owner, variables in groups.items():
        names = [subject.parameters[variable] for variable in variables]
        calls = f"call self.{owner} in forward, or delete it" if owner else "use it, or delete it"
        yield Finding(
            WARNING,
            "unused parameter",
            f"{_join_names(names)} never {'reaches' if len(names) == 1 else 'reach'} the result",
            got=_types_text(variables, names),
            fix=calls,
            at=subject.definition(names[0]),
        )


def _unused_inputs(subject: Subject, used: set[Any]) -> Iterator[Finding]:
    count = len(subject.given)
    for variable in subject.graph.inputs[len(subject.graph.inputs) - count :] if count else ():
        if variable not in used:
            yield Finding(
                WARNING,
                "unused input",
                f"{subject.names[variable]} does not change the result",
                got=str(variable.type),
                fix="use it, or do not pass it",
                at=subject.at,
            )


def _lost_values(subject: Subject, live: set[Any]) -> Iterator[Finding]:
    """Lines of which nothing reaches the result; of a chain of them, the last."""
    lines: dict[Any, list[Any]] = {}
    for node in subject.graph.nodes:
        lines.setdefault(_line(node), []).append(node)
    read = {atom for node in subject.graph.nodes for atom in node.operands}
    for line, nodes in lines.items():
        ends = [node for node in nodes if read.isdisjoint(node.results)]
        if line is None or not ends or any(node in live for node in nodes):
            continue
        if not any(isinstance(a, wf.ir.Variable) for node in nodes for a in node.operands):
            continue
        last = ends[-1]
        yield Finding(
            WARNING,
            "lost value",
            f"what {last.primitive.name} gives here never reaches the "
            f"{'loss' if subject.has_loss else 'result'}",
            got=", ".join(str(result.type) for result in last.results),
            fix="use it in what is returned, or delete the line",
            at=subject.place(last),
            module=_module(last),
        )


def _zero_gradients(
    subject: Subject, live: set[Any], used: set[Any], ranges: dict[Any, Range]
) -> Iterator[Finding]:
    """Parameters that the result varies with, but whose gradient is zero whatever comes."""
    reached, blocked = _reached_values(subject, live, ranges)
    groups: dict[Any, list[Any]] = {}
    for variable in subject.parameters:
        wanted = variable in used and variable not in subject.frozen
        if wanted and variable not in reached and variable.type.dtype.is_inexact:
            groups.setdefault(_blocker(variable, subject, blocked), []).append(variable)
    for blocker, variables in groups.items():
        names = [subject.parameters[variable] for variable in variables]
        why = "" if blocker is None else f": {blocked[blocker]}"
        yield Finding(
            ERROR,
            "zero gradient",
            f"{_join_names(names)} can never learn{why}",
            got=_types_text(variables, names),
            fix="let a gradient through, or freeze it: net.requires_grad_(False)",
            at=subject.definition(names[0]) if blocker is None else subject.place(blocker),
            module="" if blocker is None else _module(blocker),
        )


def _reached_values(
    subject: Subject, live: set[Any], ranges: dict[Any, Range]
) -> tuple[set[Any], dict[Any, str]]:
    """The values that a gradient of the result may reach, and the nodes that hold it up."""
    outputs = [atom for atom in subject.graph.outputs if atom.type.dtype.is_inexact]
    reached: set[Any] = set(outputs)
    blocked: dict[Any, str] = {}
    for node in reversed(subject.graph.nodes):
        if node not in live:
            continue
        if reached.isdisjoint(node.results):
            continue
        for index, atom in enumerate(node.operands):
            if not atom.type.dtype.is_inexact:
                continue
            reason = _why_blocked(node, index, ranges)
            if reason:
                blocked[node] = reason
            else:
                reached.add(atom)
    return reached, blocked


def _why_blocked(node: Any, index: int, ranges: dict[Any, Range]) -> str:
    """Why no gradient goes back to an operand; empty where one may."""
    primitive = node.primitive
    name = primitive.name
    try:
        reason = getattr(primitive.derivative(index), "reason", None)
    except Exception:  # one rule for all operands, or none: nothing can be told
        return ""
    if reason is not None:
        return f"{name} passes no gradient back"
    others = [range_of(a, ranges) for i, a in enumerate(node.operands) if i != index]
    own = range_of(node.operands[index], ranges)
    if name == "relu" and own.high <= 0 and own.low < 0:
        return "relu of what is never positive is always zero"
    if name in ("multiply", "dot") and any(each.constant == 0.0 for each in others):
        return f"{name} by zero gives zero"
    if name == "where" and index > 0 and (mask := others[0].constant) is not None:
        return "" if bool(mask) == (index == 1) else "where never chooses it"
    return ""


def _blocker(variable: Any, subject: Subject, blocked: dict[Any, str]) -> Any:
    """The first node after a parameter that lets no gradient back."""
    downstream = {variable}
    for node in subject.graph.nodes:
        if not downstream.isdisjoint(node.operands):
            if node in blocked:
                return node
            downstream.update(node.results)
    return None


def _line(node: Any) -> tuple[str, int] | None:
    return None if node.location is None else (node.location.file, node.location.line)


def _module(node: Any) -> str:
    return "" if node.location is None else str(node.location.module)


def _join_names(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _types_text(variables: list[Any], names: list[str]) -> str:
    return "   ".join(f"{name}: {v.type}" for name, v in zip(names, variables, strict=True))
