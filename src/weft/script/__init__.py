"""Python control flow into the graph.

`@wf.script` reads a function's source and hands its branches, loops, boolean operators and
assertions to a runtime (operators.py), which looks at the values: on a traced tensor they become
nodes of the graph (branches.py, loops.py), on anything else they are what Python does.

>>> import weft as wf
>>> @wf.script
... def clipped_sum(xs, limit):
...     total = 0.0
...     for x in xs:
...         if x < 0:
...             continue
...         total += x
...         if total > limit:
...             return limit
...     return total
>>> xs = wf.tensor([1.0, -2.0, 3.0])
>>> float(clipped_sum(xs, wf.tensor(9.0))), float(wf.jit(clipped_sum)(xs, wf.tensor(9.0)))
(4.0, 4.0)
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from weft.script.decorator import script

__all__ = ["script"]


class _Script(ModuleType):
    """The package itself can be called, whoever imports it first: `wf.script` is the decorator."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return script(*args, **options)


sys.modules[__name__].__class__ = _Script
