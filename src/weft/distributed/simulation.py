"""One program over all processes of a mesh, in lockstep, in one process.

>>> import weft as wf
>>> f = lambda x: wf.distributed.all_reduce(x, "model")
>>> simulate(f, {"data": 2, "model": 2})(wf.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
[[3.0, 3.0], [7.0, 7.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import weft as wf

__all__ = ["simulate"]


def simulate(f: Callable[..., Any], axes: Mapping[str, int]) -> Callable[..., Any]:
    """The function that runs f as every process of a mesh would run it, and gives all results.

    axes: the mesh axes and their sizes. Arguments and results hold the shards of all processes:
    one axis for each mesh axis stands in front, in the order of `axes`. It is made of
    `wf.vmap(f, axis_name=...)`, so gradients may be taken inside or outside of it.
    """
    for name, size in reversed(list(axes.items())):
        f = wf.vmap(f, axis_name=name, axis_size=size)
    return f
