"""What is checked: a function or a network, traced with everything that it computes.

>>> import weft as wf
>>> from weft.tools.subject import Subject
>>> specs = [wf.spec("float32", ("batch", 2))]
>>> subject = Subject.from_program(wf.nn.Linear(2, 3), specs, None, [], None)
>>> sorted(subject.parameters.values()), subject.graph.output_types
(['bias', 'weight'], (f32[batch, 3],))
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import weft as wf

__all__ = ["Place", "Subject", "caller"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file that was found without running it."""

    file: str
    line: int
    function: str = ""
    column: int | None = None

    def __str__(self) -> str:
        inside = f", in {self.function}" if self.function else ""
        path = Path(self.file)
        here = Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return f"{shown}:{self.line}{inside}"

    def source(self) -> str:
        """The text of the line."""
        lines = Path(self.file).read_text(encoding="utf-8").splitlines()
        return lines[self.line - 1].strip() if 0 < self.line <= len(lines) else ""


@dataclass(frozen=True)
class Subject:
    """A traced program: its graph, and what its inputs are."""

    graph: wf.ir.Graph
    given: tuple[wf.TensorType, ...]
    """The types that were asked for, of the last inputs."""
    names: dict[Any, str]
    """The names of all inputs."""
    parameters: dict[Any, str]
    """Those that are learned."""
    frozen: frozenset[Any]
    """Parameters that do not ask for a gradient."""
    net: Any
    start: Any
    """Where the check was asked for: a line there says nothing of the program."""
    at: Any
    """What to tell in its place."""
    repeated: wf.ir.Graph
    """The same once more, with other random numbers."""
    has_loss: bool

    @classmethod
    def from_program(
        cls,
        program: Any,
        specs: Sequence[Any],
        loss: Callable[..., Any] | None,
        targets: Sequence[Any],
        at: Any,
    ) -> Subject:
        """Trace a program, and its loss, without computing anything."""
        net = program if isinstance(program, wf.nn.Module) else None
        state = {} if net is None else {**dict(net.named_parameters()), **dict(net.named_buffers())}

        def run(held: dict[str, Any], inputs: Sequence[Any], wanted: Sequence[Any]) -> Any:
            called = program if net is None else _functional_net(net, held)
            results = called(*inputs)
            return results if loss is None else loss(results, *wanted)

        before = wf.random.get_state()
        try:
            types = {name: tensor.type for name, tensor in state.items()}
            graph = wf.ir.trace_whole(run, types, list(specs), list(targets))
            repeated = wf.ir.trace_whole(run, types, list(specs), list(targets))
        finally:
            wf.random.set_state(before)
        keys = wf.tree.leaves({name: name for name in types})  # in the order of the inputs
        learned = {} if net is None else dict(net.named_parameters())
        held = dict(zip(graph.inputs, keys, strict=False))
        by_name = {name: variable for variable, name in held.items()}
        rest = graph.inputs[len(keys) :]
        given = (*_types(specs), *_types(targets))
        return cls(
            graph,
            given,
            {**held, **{variable: f"input {n}" for n, variable in enumerate(rest)}},
            {by_name[name]: name for name in learned},
            frozenset(v for v, n in held.items() if n in learned and not learned[n].requires_grad),
            net,
            caller(),
            at,
            repeated,
            loss is not None,
        )

    def place(self, node: Any) -> Any:
        """The user's line of a node, if it is one."""
        return self.at if is_same_line(node.location, self.start) else node.location

    def is_own(self, node: Any) -> bool:
        """Whether a node was made in the user's code, and not in a layer of the library's."""
        module = "" if node.location is None else node.location.module
        kind = self._kinds.get(module)
        return kind is None or not _is_library(kind)

    @cached_property
    def _kinds(self) -> dict[str, type]:
        """The classes of the modules, by their paths."""
        if self.net is None:
            return {}
        root = type(self.net).__name__
        modules = self.net.named_modules()
        classes = {name: type(module) for name, module in modules}
        paths: dict[str, type] = {}
        for node in self.graph.nodes:
            path = "" if node.location is None else node.location.module
            first, _, rest = path.partition("/")
            inner = ".".join(part.partition("·")[0] for part in rest.split("/")) if rest else ""
            if first.partition("·")[0] == root and inner in classes:
                paths[path] = classes[inner]
        return paths

    def definition(self, name: str) -> Any:
        """Where in the user's classes a parameter, or the module that holds it, is made."""
        owner, parts = self.net, name.split(".")
        nearest_place = self.at
        for number, part in enumerate(parts):
            place = _assignment(type(owner), part)
            nearest_place = place if place is not None else nearest_place
            owner = _part_of(owner, part)
            if owner is None or number == len(parts) - 1:
                return nearest_place
        return nearest_place


def _functional_net(net: Any, state: dict[str, Any]) -> Callable[..., Any]:
    return lambda *inputs: wf.functional_call(net, state, *inputs)


def _types(specs: Sequence[Any]) -> list[wf.TensorType]:
    leaves = wf.tree.leaves(list(specs))
    return [each if isinstance(each, wf.TensorType) else wf.asarray(each).type for each in leaves]


def _part_of(owner: Any, part: str) -> Any:
    if isinstance(owner, (list, tuple)):
        return owner[int(part)] if part.isdigit() and int(part) < len(owner) else None
    if isinstance(owner, dict):
        return owner.get(part)
    return dict(owner.named_children()).get(part) or vars(owner).get(part)


def is_same_line(place: Any, other: Any) -> bool:
    """Whether a place says no more than another: nothing, or the same line."""
    if place is None or other is None:
        return place is None
    return bool((place.file, place.line) == (other.file, other.line))


def caller() -> Any:
    """The user's line that is running."""
    with wf.ir.scope("caller"):
        return wf.ir.trace(lambda x: x + 1, wf.spec("float32", ())).nodes[0].location


def _is_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "weft"


def _assignment(cls: type, attribute: str) -> Place | None:
    """The line `self.attribute = ...` of a class of the user's."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or _is_library(cls):
        return None
    try:
        lines, first = inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return None
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        if not isinstance(node, ast.Assign):
            continue
        if any(isinstance(t, ast.Attribute) and t.attr == attribute for t in node.targets):
            return Place(file, first + node.lineno - 1, "__init__")
    return None
