"""What a program says to other processes: collectives over the axis of a mesh, by its name.

The name is that of a group of processes, or of a `vmap` whose elements are the shards.

>>> import weft as wf
>>> f = wf.vmap(lambda x: wf.distributed.all_reduce(x, "data"), axis_name="data")
>>> f(wf.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
[[4.0, 6.0], [4.0, 6.0]]
"""

from __future__ import annotations

from typing import Any

from weft.core.errors import ArgumentError
from weft.core.shapes import normalize_axis
from weft.ir.constants import beside_operands
from weft.ir.dispatch import apply
from weft.ir.groups import Pairs, group_size
from weft.ir.tensor import Tensor, constants_on
from weft.ops.boxes import dynamic_slice
from weft.ops.collectives import (
    all_reduce_max,
    all_reduce_min,
    all_reduce_sum,
    broadcast_shard,
    exchange_parts,
    gather_shards,
    permute_shards,
    reduce_shards,
    scatter_sum,
    shard_index,
    split_type,
)
from weft.ops.operands import as_tensor
from weft.ops.placement import default_device_here

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "axis_index", "axis_size", "broadcast", "gather_of",
    "permute", "reduce_scatter", "reduce_to", "sum_of", "take_shard",
]  # fmt: skip


def _own_params(op: str, mesh_axis: str, what: str = "") -> dict[str, Any]:
    said = {"what": what} if what else {}
    return {"mesh_axis": mesh_axis, "size": group_size(op, mesh_axis), "stacked": False, **said}


_REDUCERS = {"sum": all_reduce_sum, "max": all_reduce_max, "min": all_reduce_min}


def all_reduce(x: Any, mesh_axis: str = "world", *, op: str = "sum") -> Tensor:
    """The sum, "mean", "max" or "min" of all processes' tensors, element by element.

    >>> import weft as wf
    >>> f = wf.vmap(lambda x: wf.distributed.all_reduce(x, "data", op="mean"), axis_name="data")
    >>> f(wf.tensor([1.0, 2.0, 6.0])).tolist()
    [3.0, 3.0, 3.0]
    """
    x, params = as_tensor("all_reduce", x), _own_params("all_reduce", mesh_axis)
    if op != "mean" and op not in _REDUCERS:
        raise ArgumentError(
            "all_reduce",
            "no such reduction",
            expected="one of sum, mean, max, min",
            got={"op": op},
            fix='op="sum"',
        )
    if op == "mean":
        total = apply(all_reduce_sum, x, **params)
        return total / group_size("all_reduce", mesh_axis)
    return apply(_REDUCERS[op], x, **params)


def sum_of(x: Any, mesh_axis: str, what: str, *, scattered: bool = False) -> Tensor:
    """The sum of all processes' tensors, or this process's part of it along the first axis.

    what: what it is for, a text; processes that say something else are named in an error.
    """
    params = _own_params("all_reduce", mesh_axis, what)
    return (
        apply(scatter_sum, x, axis=0, **params) if scattered else apply(all_reduce_sum, x, **params)
    )


def gather_of(x: Any, mesh_axis: str, what: str) -> Tensor:
    """The tensors of all processes, joined along the first axis; for `what` see `sum_of`."""
    return apply(gather_shards, x, axis=0, **_own_params("all_gather", mesh_axis, what))


def all_gather(x: Any, mesh_axis: str = "world", *, axis: int = 0) -> Tensor:
    """The tensors of all processes, joined along an axis in the order of ranks.

    >>> import weft as wf
    >>> f = wf.vmap(lambda x: wf.distributed.all_gather(x, "data"), axis_name="data")
    >>> f(wf.tensor([[1.0], [2.0]])).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    x, params = as_tensor("all_gather", x), _own_params("all_gather", mesh_axis)
    place = normalize_axis("all_gather", axis, x.ndim, {"x": x})
    return apply(gather_shards, x, axis=place, **params)


def reduce_scatter(x: Any, mesh_axis: str = "world", *, axis: int = 0) -> Tensor:
    """This process's part, along an axis, of the sum of all processes' tensors.

    >>> import weft as wf
    >>> f = wf.vmap(lambda x: wf.distributed.reduce_scatter(x, "data"), axis_name="data")
    >>> f(wf.tensor([[1.0, 2.0], [10.0, 20.0]])).tolist()
    [[11.0], [22.0]]
    """
    x, params = as_tensor("reduce_scatter", x), _own_params("reduce_scatter", mesh_axis)
    place = normalize_axis("reduce_scatter", axis, x.ndim, {"x": x})
    return apply(scatter_sum, x, axis=place, **params)


def all_to_all(
    x: Any, mesh_axis: str = "world", *, split_axis: int = 0, concat_axis: int = 0
) -> Tensor:
    """Part i along `split_axis` goes to process i, which joins all parts along `concat_axis`.

    >>> import weft as wf
    >>> f = wf.vmap(lambda x: wf.distributed.all_to_all(x, "data"), axis_name="data")
    >>> f(wf.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    x, params = as_tensor("all_to_all", x), _own_params("all_to_all", mesh_axis)
    places = [normalize_axis("all_to_all", a, x.ndim, {"x": x}) for a in (split_axis, concat_axis)]
    return apply(exchange_parts, x, split_axis=places[0], concat_axis=places[1], **params)


def broadcast(x: Any, mesh_axis: str = "world", *, root: int = 0) -> Tensor:
    """The tensor of process `root`, on all processes.

    >>> import weft as wf
    >>> f = wf.vmap(lambda x: wf.distributed.broadcast(x, "data", root=1), axis_name="data")
    >>> f(wf.tensor([1.0, 2.0])).tolist()
    [2.0, 2.0]
    """
    x = as_tensor("broadcast", x)
    return apply(broadcast_shard, x, root=root, **_own_params("broadcast", mesh_axis))


def reduce_to(x: Any, mesh_axis: str = "world", *, root: int = 0) -> Tensor:
    """The sum of all processes' tensors on process `root`, zeros on the others.

    >>> import weft as wf
    >>> f = wf.vmap(lambda x: wf.distributed.reduce_to(x, "data"), axis_name="data")
    >>> f(wf.tensor([1.0, 2.0])).tolist()
    [3.0, 0.0]
    """
    x = as_tensor("reduce_to", x)
    return apply(reduce_shards, x, root=root, **_own_params("reduce_to", mesh_axis))


def permute(x: Any, mesh_axis: str = "world", *, pairs: Pairs) -> Tensor:
    """What the process that is paired with this one sends; zeros where none is.

    pairs: senders and receivers, by rank. One pair is a send and a receive.

    >>> import weft as wf
    >>> f = lambda x: wf.distributed.permute(x, "data", pairs=[(0, 1), (1, 0)])
    >>> wf.vmap(f, axis_name="data")(wf.tensor([1.0, 2.0])).tolist()
    [2.0, 1.0]
    """
    x, plain_pairs = as_tensor("permute", x), tuple([tuple(pair) for pair in pairs])
    return apply(permute_shards, x, pairs=plain_pairs, **_own_params("permute", mesh_axis))


def axis_index(mesh_axis: str = "world") -> Tensor:
    """The number of this process along a mesh axis, as a tensor.

    >>> import weft as wf
    >>> f = lambda x: x * wf.distributed.axis_index("data")
    >>> wf.vmap(f, axis_name="data")(wf.ones(3)).tolist()
    [0.0, 1.0, 2.0]
    """
    with constants_on(default_device_here()):
        return apply(shard_index, **_own_params("axis_index", mesh_axis))


def axis_size(mesh_axis: str = "world") -> int:
    """How many processes a mesh axis has.

    >>> import weft as wf
    >>> f = lambda x: x * wf.distributed.axis_size("data")
    >>> wf.vmap(f, axis_name="data")(wf.ones(3)).tolist()
    [3.0, 3.0, 3.0]
    """
    return group_size("axis_size", mesh_axis)


@beside_operands
def take_shard(x: Any, mesh_axis: str = "world", *, axis: int = 0) -> Tensor:
    """This process's part, along an axis, of a tensor that is the same on all processes.

    >>> import weft as wf
    >>> f = lambda x: wf.distributed.take_shard(x, "data")
    >>> wf.vmap(f, in_axes=None, axis_name="data", axis_size=2)(wf.arange(4)).tolist()
    [[0, 1], [2, 3]]
    """
    x = as_tensor("take_shard", x)
    place = normalize_axis("take_shard", axis, x.ndim, {"x": x})
    size = group_size("take_shard", mesh_axis)
    part = split_type("take_shard", x.type, place, size).shape
    index = axis_index(mesh_axis)
    starts = [index * part[place] if i == place else index * 0 for i in range(x.ndim)]
    return apply(dynamic_slice, x, *starts, sizes=part)
