"""Static analysis: what is wrong with a program, told before it runs, with file and line.

Nothing is computed: the program is traced with the types of its inputs, whose sizes may be symbols.
Errors are what cannot work; warnings are what is seldom meant.

>>> import weft as wf
>>> net = wf.nn.Sequential(wf.nn.Linear(784, 10), wf.nn.Softmax(-1))
>>> print(wf.tools.check(net, wf.spec("float32", ("batch", 784))))
Sequential: nothing wrong was found
  f32[batch, 784] -> f32[batch, 10]
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import weft as wf
from weft.tools.findings import ERROR, WARNING, Finding, Report
from weft.tools.flow import flow_findings
from weft.tools.ranges import ranges_of
from weft.tools.subject import Place, Subject, caller, is_same_line
from weft.tools.surprises import surprise_findings

__all__ = ["check"]

LIBRARY = str(Path(__file__).parents[1])


def check(
    program: Any,
    *specs: Any,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
    name: str = "",
    at: Any = None,
) -> Report:
    """Look for mistakes in a function or a module, given the types of its inputs.

    loss: a function of the results and the targets, so that gradients are followed from there.
    at: the place to tell where none is known.

    >>> import weft as wf
    >>> report = wf.tools.check(lambda x: wf.log(wf.relu(x)), wf.spec("float32", ("n",)))
    >>> report.ok, report.warnings[0].problem
    (True, 'log of what may be zero is infinite')
    """
    if not callable(program):
        raise wf.ArgumentTypeError(
            "tools.check",
            "this is neither a function nor a module",
            expected="what can be called with tensors",
            got={"program": program},
            fix='wf.tools.check(net, wf.spec("float32", ("batch", 784)))',
        )
    title = name or getattr(program, "__name__", type(program).__name__)
    try:
        subject = Subject.from_program(program, specs, loss, list(targets), at)
    except wf.WeftError as error:
        return Report(title, _signature(specs, None), (_framework_error_finding(error, at),))
    except Exception as error:
        return Report(title, _signature(specs, None), (_program_error_finding(error, at),))
    given = subject.graph.input_types[len(subject.graph.inputs) - len(subject.given) :]
    findings = tuple(sorted(_findings(subject), key=lambda each: each.severity != ERROR))
    return Report(title, _signature(given, subject.graph.output_types), findings)


def _findings(subject: Subject) -> Iterator[Finding]:
    ranges = ranges_of(subject.graph)
    yield from _result_findings(subject)
    yield from _size_findings(subject)
    yield from flow_findings(subject, ranges)
    yield from surprise_findings(subject, ranges)


def _signature(given: Sequence[Any], results: Sequence[Any] | None) -> str:
    taken = ", ".join(str(getattr(each, "type", each)) for each in given)
    return f"{taken} -> {', '.join(map(str, results)) if results is not None else 'error'}"


def _framework_error_finding(error: wf.WeftError, at: Any) -> Finding:
    """An error of the framework's has all that is told."""
    place = error.at
    got = f"{error.got}      {error.note}" if error.note else error.got
    return Finding(
        ERROR,
        type(error).__name__,
        f"{error.op}: {error.problem}",
        got=got,
        expected=error.expected,
        fix=error.fix,
        at=at if is_same_line(place, caller()) else place,
        module="" if place is None else place.module,
    )


def _program_error_finding(error: Exception, at: Any) -> Finding:
    """An error of the program's own, at its innermost line outside of the framework."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARY)]
    place = Place(own[-1].filename, own[-1].lineno or 0, own[-1].name) if own else at
    return Finding(
        ERROR,
        type(error).__name__,
        str(error) or "raised while the program was traced",
        fix="run the program on a small input to see the whole traceback",
        at=place,
    )


def _result_findings(subject: Subject) -> Iterator[Finding]:
    """A loss is one real number."""
    if not subject.has_loss:
        return
    kinds = subject.graph.output_types
    if len(kinds) == 1 and kinds[0].ndim == 0 and kinds[0].dtype.is_inexact:
        return
    yield Finding(
        ERROR,
        "loss",
        "the loss is not one real number",
        expected="f32[]",
        got=", ".join(map(str, kinds)),
        fix="reduce it: loss.mean()",
        at=subject.at,
    )


def _size_findings(subject: Subject) -> Iterator[Finding]:
    """Symbolic sizes that the program works for one number of only."""
    inputs = subject.graph.inputs[len(subject.graph.inputs) - len(subject.given) :]
    for variable, asked in zip(inputs, subject.given, strict=True):
        for wanted, size in zip(asked.shape, variable.type.shape, strict=True):
            if not isinstance(wanted, int) and isinstance(size, int):
                yield Finding(
                    WARNING,
                    "fixed size",
                    f"{wanted} can only be {size}: the program was written for that size",
                    got=f"{subject.names[variable]}: {asked}, used as {variable.type}",
                    fix="take the size from the input: x.shape[0]; or ask for that number",
                    at=subject.at,
                )
