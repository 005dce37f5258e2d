"""Collectives and the groups that they run on, for what is built on them.

Users reach the operations as `wf.distributed.all_reduce` and so on.

>>> import weft as wf
>>> wf.vmap(wf.distributed.axis_index, in_axes=None, axis_name="world", axis_size=2)().tolist()
[0, 1]
"""

from __future__ import annotations

from weft.core.locations import user_location
from weft.ir import group_cells
from weft.ir.group_cells import has_called, running_calls
from weft.ir.groups import (
    Communicator,
    Pairs,
    Reduce,
    bind_groups,
    bind_thread_groups,
    bound_groups,
    find_group,
    group_size,
    process_groups,
)
from weft.ops.composed.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    axis_size,
    broadcast,
    gather_of,
    permute,
    reduce_scatter,
    reduce_to,
    sum_of,
    take_shard,
)

__all__ = [
    "Communicator", "Pairs", "Reduce", "all_gather", "all_reduce", "all_to_all",
    "axis_index", "axis_size", "bind_groups", "bind_thread_groups", "bound_groups", "broadcast",
    "find_group", "gather_of", "group_cells", "group_size", "has_called", "permute",
    "process_groups", "reduce_scatter", "reduce_to", "running_calls", "sum_of", "take_shard",
    "user_location",
]  # fmt: skip
