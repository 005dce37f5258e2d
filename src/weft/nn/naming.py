"""The name of a module that is called while a graph is traced: what its nodes remember.

The outermost module is called by its class, those inside by their attribute in the module that
calls them.

>>> import weft as wf
>>> from weft import nn
>>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
>>> graph = wf.ir.trace(net, wf.spec("float32", (1, 2)))
>>> sorted({node.location.module for node in graph.nodes})
['Sequential/0', 'Sequential/1']
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import weft as wf
from weft.nn.layout import lay_out


@dataclass(slots=True)
class Call:
    """A module that is being called: the names of all in its network, and its own."""

    names: dict[int, str]
    own: str


@dataclass
class Calls(threading.local):
    """The modules being called in this thread, outermost first."""

    stack: list[Call] = field(default_factory=list)


_calls = Calls()


@contextmanager
def enter_module(module: Any) -> Iterator[None]:
    """Trace a module's call under its name."""
    call, name = _call_and_name(module)
    _calls.stack.append(call)
    try:
        with wf.ir.entered(name):
            yield
    finally:
        _calls.stack.pop()


def _call_and_name(module: Any) -> tuple[Call, str]:
    """The call of a module, and its name inside the module that calls it."""
    caller = _calls.stack[-1] if _calls.stack else None
    own = None if caller is None else caller.names.get(id(module))
    if caller is None or own is None:
        names = {id(each): name for name, each in lay_out(module).modules}
        return Call(names, ""), type(module).__name__
    inside = f"{caller.own}." if caller.own else ""
    return Call(caller.names, own), own.removeprefix(inside) or type(module).__name__
