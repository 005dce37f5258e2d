"""Names for what a recorded call reads and writes, as the user would write them.

>>> from weft.compiler.function.value_names import readable_path
>>> readable_path("[0][1]['body.0.weight']", ["step", "net"])
'net.body.0.weight'
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from weft.compiler.function.recording import Recording, Source
from weft.core import trees
from weft.ir.tensor import Tensor

__all__ = ["UNNAMED", "Names", "argument_names", "names_of", "readable_path"]


class Names(NamedTuple):
    """A name for each input of a graph, and for each output that is state; else an empty one."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


UNNAMED = Names()


def names_of(f: Callable[..., Any], call: tuple[Any, ...], recording: Recording) -> Names:
    """The names in the graph of `f`; the call is what was flattened to its handles."""
    paths = [path for path, leaf in trees.flatten_with_paths(call) if isinstance(leaf, Tensor)]
    arguments = list(argument_names(f, len(call[0])))
    outputs = [""] * len(recording.graph.outputs)
    for write in recording.writes:
        if write.output is not None:
            outputs[write.output] = _name(write.source, paths, arguments)
    inputs = tuple(_name(source, paths, arguments) for source in recording.sources)
    return Names(inputs, tuple(outputs))


def _name(source: Source, paths: Sequence[str], arguments: Sequence[str]) -> str:
    ending = ".grad" if source.gradient else ""
    if source.argument is not None:
        return readable_path(paths[source.argument], arguments) + ending
    return "captured" + ending if source.handle is not None else "random counter"


def readable_path(path: str, arguments: Sequence[str]) -> str:
    """A path in a call as the user would write it: the argument's name, then what is inside."""
    positional = re.match(r"\[0\]\[(\d+)\]", path)
    named = re.match(r"\[1\]\['([^']*)'\]", path)
    outside = re.match(r"\[2\]\[\d+\]", path)
    found = positional or named or outside
    if found is None:
        return path
    rest = re.sub(r"\['([^']*)'\]", r".\1", path[found.end() :])
    if positional:
        return arguments[int(positional[1])] + rest
    return named[1] + rest if named else rest.lstrip(".") or "captured"


def argument_names(f: Callable[..., Any], count: int) -> Iterator[str]:
    """The names of positional arguments; numbers for those that have none."""
    try:
        parameters = list(inspect.signature(getattr(f, "forward", f)).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for number in range(count):
        known = parameters[min(number, len(parameters) - 1)] if parameters else None
        if known is None:
            yield f"argument {number}"
        elif known.kind is known.VAR_POSITIONAL:
            yield f"{known.name} {number - len(parameters) + 1}"
        else:
            yield known.name
