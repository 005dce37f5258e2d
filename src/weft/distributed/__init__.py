"""Many processes: one program over a mesh.

>>> import weft as wf
>>> total = wf.distributed.simulate(wf.distributed.all_reduce, {"world": 2})
>>> total(wf.tensor([1.0, 2.0])).tolist()
[3.0, 3.0]
"""

from __future__ import annotations

from weft.collectives import (
    Communicator,
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    axis_size,
    broadcast,
    permute,
    reduce_scatter,
    reduce_to,
    take_shard,
)
from weft.distributed.checkpoints import ShardedCheckpoints
from weft.distributed.division import Division
from weft.distributed.loaders import share_loader
from weft.distributed.measuring import measure_costs, read_costs
from weft.distributed.mesh import Mesh
from weft.distributed.parameters import (
    load_whole_state,
    shard_experts,
    shard_model,
    shard_parameters,
    whole_state,
)
from weft.distributed.partitioning import PartitionedFunction, partition
from weft.distributed.placing import divided, replicated, shard, split
from weft.distributed.planning import Plan, plan
from weft.distributed.process_group import (
    barrier,
    bind_axes,
    broadcast_object,
    gather_objects,
    init,
    is_initialized,
    local_rank,
    rank,
    role,
    run_threads,
    shutdown,
    world,
    world_size,
)
from weft.distributed.recovery import Recovery
from weft.distributed.ring import ring_attention
from weft.distributed.sharing import LocalSteps, data_parallel, part_weight
from weft.distributed.simulation import simulate
from weft.distributed.stages.choices import plan_pipeline
from weft.distributed.stages.pipeline import Pipeline
from weft.distributed.tables import ParameterServer
from weft.names import missing_from as _missing_from
from weft.sharding import Costs

__all__ = [
    "Communicator", "Costs", "Division", "LocalSteps", "Mesh", "ParameterServer",
    "PartitionedFunction", "Pipeline", "Plan", "Recovery", "ShardedCheckpoints", "all_gather",
    "all_reduce", "all_to_all", "axis_index", "axis_size", "barrier", "bind_axes", "broadcast",
    "broadcast_object", "data_parallel", "divided", "gather_objects", "init", "is_initialized",
    "load_whole_state", "local_rank", "measure_costs", "part_weight", "partition", "permute",
    "plan", "plan_pipeline", "rank", "read_costs", "reduce_scatter", "reduce_to", "replicated",
    "ring_attention", "role", "run_threads", "shard", "shard_experts", "shard_model",
    "shard_parameters", "share_loader", "shutdown", "simulate", "split", "take_shard",
    "whole_state", "world", "world_size",
]  # fmt: skip

__getattr__ = _missing_from("wf.distributed", __all__)
