"""Naming what is traced: which module a node belongs to.

>>> import weft as wf
>>> def f(x):
...     with wf.ir.entered("body"):
...         y = x * 2
...     with wf.ir.entered("body"):
...         return y + 1
>>> graph = wf.ir.trace(f, wf.spec("float32", (3,)))
>>> [node.location.module for node in graph.nodes]
['body', 'body·2']
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.core.scopes import scope, scopes
from weft.ir.tensor import traces


def is_tracing() -> bool:
    """Whether operations are being recorded as a graph.

    >>> is_tracing()
    False
    """
    return bool(traces.recording)


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Trace what is inside as a part of this name, below the present one.

    A part that is entered again in the same trace gets a number, so that each call is seen.
    """
    path = f"{scopes.module}/{name}" if scopes.module else name
    if traces.recording:
        counts = traces.recording[-1].part_counts
        counts[path] = counts.get(path, 0) + 1
        path = path if counts[path] == 1 else f"{path}·{counts[path]}"
    with scope(path):
        yield
