"""Collectives: what the processes along one axis of a mesh compute together, each from its shard.

A collective names its mesh axis and the axis's size. It has two forms. In the form that users
call, the operand is the shard of this process, and the group that is bound to the axis computes
(ir/groups.py). With `stacked=True` the operand holds the shards of all processes along its first
axis, and so does the result: this is the reference, the form that `vmap(f, axis_name=...)` gives,
and the one that tests are derived from. Derivatives and batching are the same for both.

Derivatives are those of the sum of all processes' results. So a sum over processes transposes to
a sum over processes, gathering to summing and scattering, a permutation to its inverse.

>>> import weft as wf
>>> f = wf.vmap(lambda x: wf.distributed.all_reduce(x, "data"), axis_name="data")
>>> f(wf.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
[[4.0, 6.0], [4.0, 6.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX
from weft.core.errors import ArgumentError, AxisError, ShapeError, Unsupported
from weft.core.shapes import Dimension, equal
from weft.core.types import TensorType
from weft.ir import numerics
from weft.ir.batching import move_axis
from weft.ir.derivatives import OperandDerivative, linear, tangent
from weft.ir.dispatch import apply
from weft.ir.groups import Communicator, Pairs, find_group, said_around
from weft.ir.kinds import Collective
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.scalars import Combine
from weft.ir.tensor import Tensor
from weft.ops import comparison
from weft.ops.cumulative import is_narrow
from weft.ops.operands import DTYPE_CLASSES, convert_to, wrong_dtype

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def collective(
    name: str,
    *,
    doc: str,
    over_shards: Callable[..., Array],
    over_group: Callable[..., Array],
    derivative: OperandDerivative,
    shard_type: Callable[..., TensorType] = lambda x, size: x,
    dtypes: str = "any",
    axes: Sequence[str] = (),
    samples: Callable[[], Sequence[Sample]],
    mistakes: Sequence[Mistake] = (),
) -> Primitive:
    """Define a collective of one operand.

    over_shards(stack, size, **own): all results of all shards, [size, ...] to [size, ...].
    over_group(group, shard, **own): the result of this process. shard_type(type, size, **own): the
    type of a result. axes: the parameters among its own that name axes of a shard. Whoever applies
    it may say `what` it is for, a text that must be the same on all processes.
    """
    allowed = frozenset(DTYPE_CLASSES[dtypes])

    def type_rule(
        x: TensorType, mesh_axis: str, size: int, stacked: bool, what: str = "", **own: Any
    ) -> TensorType:
        _check_axis(name, x, mesh_axis, size, stacked)
        if x.dtype not in allowed:
            raise wrong_dtype(name, dtypes, {"x": x})
        if not stacked:
            return shard_type(x, size=size, **own)
        one = shard_type(x.with_shape(x.shape[1:]), size=size, **own)
        return one.with_shape((size, *one.shape))

    def reference(
        x: Array, mesh_axis: str, size: int, stacked: bool, what: str = "", **own: Any
    ) -> Array:
        if stacked:
            return over_shards(x, size, **own)
        if size == 1:
            return np.asarray(over_shards(x[None], size, **own)[0])
        group = _group_of_size(name, mesh_axis, size)
        with said_around(group, what):
            return over_group(group, np.require(x, requirements="C"), **own)

    primitive = Primitive(
        name,
        doc,
        kind=Collective(),
        lower=Unsupported(f"{name} is computed by the group of processes that its axis names"),
        type_rule=type_rule,
        reference=reference,
        derivatives=[derivative],
        batch=_batch_behind_shards(lambda: primitive, axes),
        samples=samples,
        mistakes=lambda: [*_axis_mistakes(), *mistakes],
        impure=True,
    )
    return primitive


def _batch_behind_shards(
    primitive_of: Callable[[], Primitive], axes: Sequence[str]
) -> Callable[..., tuple[Tensor, int]]:
    """The batching rule: the batch axis stands first in a shard, so behind the axis of shards."""

    def batch(
        size: Dimension,
        operands: tuple[Tensor, ...],
        places: tuple[int, ...],
        /,
        stacked: bool,
        **params: Any,
    ) -> tuple[Tensor, int]:
        shifted = {key: params[key] + 1 for key in axes}
        moved = move_axis(operands[0], places[0], int(stacked))
        result = apply(primitive_of(), moved, **{**params, **shifted, "stacked": stacked})
        return result, int(stacked)

    return batch


def _check_axis(op: str, x: TensorType, mesh_axis: str, size: int, stacked: bool) -> None:
    """Refuse what is no name of an axis, or no number of shards."""
    if not (mesh_axis and type(mesh_axis) is str and type(size) is int and size > 0):
        raise ArgumentError(
            op,
            "this is no axis of a mesh",
            expected="mesh_axis: a name; size: how many shards it has, at least 1",
            got={"mesh_axis": mesh_axis, "size": size},
            fix='mesh_axis="data", size=2',
        )
    if stacked and not (x.ndim and equal(x.shape[0], size)):
        raise ShapeError(
            op,
            "the operand does not hold one shard for each process",
            expected=f"a first axis of size {size}",
            got={"x": x, "size": size},
            fix="stack the shards along axis 0",
        )


def _axis_mistakes() -> list[Mistake]:
    x = np.ones((3, 2), np.float32)
    named = {"mesh_axis": "data", "size": 2}
    return [
        Mistake((x,), {**named, "size": 0, "stacked": False}, ArgumentError, "no axis of a mesh"),
        Mistake((x,), {**named, "stacked": True}, ShapeError, "one shard for each process"),
    ]


def _group_of_size(op: str, mesh_axis: str, size: int) -> Communicator:
    """The group of an axis, which has the size that the program was made for."""
    group = find_group(op, mesh_axis)
    if group.size != size:
        raise ArgumentError(
            op,
            "the program was made for a group of another size",
            expected=f"{size} processes along the axis {mesh_axis!r}",
            got={"size": group.size},
            fix=f"start {size} processes, or trace the function again",
        )
    return group


def _check_shard_axis(op: str, x: TensorType, axis: int, name: str = "axis") -> None:
    if type(axis) is not int or not 0 <= axis < x.ndim:
        raise AxisError(
            op,
            f"{name} is no axis of a shard",
            expected=f"an axis from 0 to {x.ndim - 1}" if x.ndim else "a shard with an axis",
            got={"x": x, name: axis},
            fix=f"{name}=0" if x.ndim else "give it an axis: x[None]",
        )


def _with_axis_times(x: TensorType, axis: int, times: int) -> TensorType:
    return x.with_shape(tuple([d * times if i == axis else d for i, d in enumerate(x.shape)]))


def split_type(op: str, x: TensorType, axis: int, size: int) -> TensorType:
    """The type of one of `size` equal parts along an axis."""
    dim = x.shape[axis]
    if isinstance(dim, int) and dim % size:
        raise ShapeError(
            op,
            "the axis does not split into equal parts",
            expected=f"a multiple of {size} along axis {axis}",
            got={"x": x, "axis": axis, "size": size},
            note=f"{dim} % {size} = {dim % size}",
            fix=f"pad the axis to {-(-dim // size) * size}: wf.pad(x, ...)",
        )
    return x.with_shape(tuple([d // size if i == axis else d for i, d in enumerate(x.shape)]))


def split_blocks(x: Array, axis: int, size: int) -> Array:
    """Equal parts along an axis, as blocks along a new first axis."""
    shape = (*x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :])
    return np.moveaxis(x.reshape(shape), axis, 0)


def join_blocks(blocks: Array, axis: int) -> Array:
    """Blocks along a first axis, joined along another axis: the inverse of `split_blocks`."""
    moved = np.moveaxis(blocks, 0, axis)
    joined_size = moved.shape[axis] * moved.shape[axis + 1]
    return moved.reshape((*moved.shape[:axis], joined_size, *moved.shape[axis + 2 :]))


def _cube(*shape: int) -> Array:
    """Well separated elements in scrambled order."""
    count = int(np.prod(shape))
    values = np.arange(count) * 7 % max(count, 1) / 8 - 1.45
    return np.asarray(values.reshape(shape), np.float32)


def _stack_samples(*others: tuple[tuple[int, ...], dict[str, Any]], **own: Any) -> list[Sample]:
    """Samples of two and of four shards, one of a single process, and others by shape."""
    shapes = [((2, 4, 4), own), ((4, 4, 4), own), *others]
    samples = [
        Sample((_cube(*shape),), {"mesh_axis": "data", "size": shape[0], "stacked": True, **each})
        for shape, each in shapes
    ]
    alone = Sample((_cube(2, 3),), {"mesh_axis": "data", "size": 1, "stacked": False, **own})
    return [*samples, alone]


# --- reductions over processes -------------------------------------------------------------------


def sum_shards(stack: Array) -> Array:
    """The sum along the first axis, in the order of processes; 16-bit floats are summed wider."""
    wide = stack.astype(np.float32) if is_narrow(stack.dtype) else stack
    return np.asarray(np.add.reduce(wide, axis=0, dtype=wide.dtype)).astype(stack.dtype, copy=False)


def _repeat_shards(result: Array, size: int) -> Array:
    return np.broadcast_to(result, (size, *result.shape))


_MORE_REDUCED: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (((3,), {}), ((2, 0), {}))

all_reduce_sum: Primitive = collective(
    "all_reduce_sum",
    doc="The sum of the shards of all processes along a mesh axis.",
    over_shards=lambda stack, size: _repeat_shards(sum_shards(stack), size),
    over_group=lambda group, x: group.all_reduce(x, "sum"),
    derivative=linear(lambda ct, x, **params: apply(all_reduce_sum, ct, **params)),
    dtypes="number",
    samples=lambda: _stack_samples(*_MORE_REDUCED),
)


def _extreme_tangent(t: Tensor, out: Tensor, x: Tensor, **params: Any) -> Tensor:
    """The mean of the tangents of the processes that hold the extreme."""
    chosen = convert_to(comparison.equal(x, out), t.dtype)
    total = apply(all_reduce_sum, t * chosen, **params)
    return total / apply(all_reduce_sum, chosen, **params)


all_reduce_max: Primitive = collective(
    "all_reduce_max",
    doc="The largest of the shards' elements; its derivative is shared evenly among equals.",
    over_shards=lambda stack, size: _repeat_shards(
        np.asarray(numerics.maximum_over(stack, (0,))), size
    ),
    over_group=lambda group, x: group.all_reduce(x, "max"),
    derivative=tangent(_extreme_tangent),
    dtypes="ordered",
    samples=lambda: _stack_samples(*_MORE_REDUCED),
)

all_reduce_min: Primitive = collective(
    "all_reduce_min",
    doc="The smallest of the shards' elements; its derivative is shared evenly among equals.",
    over_shards=lambda stack, size: _repeat_shards(
        np.asarray(numerics.minimum_over(stack, (0,))), size
    ),
    over_group=lambda group, x: group.all_reduce(x, "min"),
    derivative=tangent(_extreme_tangent),
    dtypes="ordered",
    samples=lambda: _stack_samples(*_MORE_REDUCED),
)


REDUCERS: dict[Combine, Primitive] = {
    "add": all_reduce_sum,
    "maximum": all_reduce_max,
    "minimum": all_reduce_min,
}
"""The reductions over processes, by how two elements are combined."""


# --- pieces moved between processes --------------------------------------------------------------


def _gather_type(x: TensorType, size: int, axis: int) -> TensorType:
    _check_shard_axis("all_gather", x, axis)
    return _with_axis_times(x, axis, size)


def _scatter_type(x: TensorType, size: int, axis: int) -> TensorType:
    _check_shard_axis("reduce_scatter", x, axis)
    return split_type("reduce_scatter", x, axis, size)


def _exchange_type(x: TensorType, size: int, split_axis: int, concat_axis: int) -> TensorType:
    for name, axis in (("split_axis", split_axis), ("concat_axis", concat_axis)):
        _check_shard_axis("all_to_all", x, axis, name)
    return _with_axis_times(split_type("all_to_all", x, split_axis, size), concat_axis, size)


def _exchange_shards(stack: Array, size: int, split_axis: int, concat_axis: int) -> Array:
    blocks = np.stack([split_blocks(x, split_axis, size) for x in stack])  # [from, to, ...]
    return np.stack([join_blocks(received, concat_axis) for received in np.swapaxes(blocks, 0, 1)])


_VECTOR = np.ones((3,), np.float32)
_OF_TWO = {"mesh_axis": "data", "size": 2, "stacked": False}

gather_shards: Primitive = collective(
    "all_gather",
    doc="The shards of all processes, joined along an axis.",
    over_shards=lambda stack, size, axis: _repeat_shards(join_blocks(stack, axis), size),
    over_group=lambda group, x, axis: join_blocks(group.all_gather(x), axis),
    derivative=linear(lambda ct, x, **params: apply(scatter_sum, ct, **params)),
    shard_type=_gather_type,
    axes=("axis",),
    samples=lambda: _stack_samples(((2, 3, 2), {"axis": 1}), axis=0),
    mistakes=[Mistake((_VECTOR,), {**_OF_TWO, "axis": 1}, AxisError, "no axis of a shard")],
)

scatter_sum: Primitive = collective(
    "reduce_scatter",
    doc="This process's part, along an axis, of the sum of all shards.",
    over_shards=lambda stack, size, axis: split_blocks(sum_shards(stack), axis, size),
    over_group=lambda group, x, axis: group.reduce_scatter(
        np.ascontiguousarray(split_blocks(x, axis, group.size))
    ),
    derivative=linear(lambda ct, x, **params: apply(gather_shards, ct, **params)),
    shard_type=_scatter_type,
    dtypes="number",
    axes=("axis",),
    samples=lambda: _stack_samples(((2, 3, 4), {"axis": 1}), axis=0),
    mistakes=[
        Mistake((_VECTOR,), {**_OF_TWO, "axis": 1}, AxisError, "no axis of a shard"),
        Mistake((_VECTOR,), {**_OF_TWO, "axis": 0}, ShapeError, "does not split"),
    ],
)

exchange_parts: Primitive = collective(
    "all_to_all",
    doc="Part i of each shard along one axis goes to process i, which joins them along another.",
    over_shards=_exchange_shards,
    over_group=lambda group, x, split_axis, concat_axis: join_blocks(
        group.all_to_all(np.ascontiguousarray(split_blocks(x, split_axis, group.size))),
        concat_axis,
    ),
    derivative=linear(
        lambda ct, x, split_axis, concat_axis, **params: apply(
            exchange_parts, ct, split_axis=concat_axis, concat_axis=split_axis, **params
        )
    ),
    shard_type=_exchange_type,
    axes=("split_axis", "concat_axis"),
    samples=lambda: _stack_samples(
        ((2, 3, 4), {"split_axis": 1, "concat_axis": 0}), split_axis=0, concat_axis=1
    ),
    mistakes=[
        Mistake(
            (_VECTOR,),
            {**_OF_TWO, "split_axis": 0, "concat_axis": 0},
            ShapeError,
            "does not split",
        )
    ],
)


def _check_root(op: str) -> Callable[..., TensorType]:
    def shard_type(x: TensorType, size: int, root: int) -> TensorType:
        if type(root) is not int or not 0 <= root < size:
            raise ArgumentError(
                op,
                "root is no process of the axis",
                expected=f"a number from 0 to {size - 1}",
                got={"root": root},
                fix="root=0",
            )
        return x

    return shard_type


def _sum_at(stack: Array, size: int, root: int) -> Array:
    result = np.zeros_like(stack)
    result[root] = sum_shards(stack)
    return result


def _sum_at_root(group: Communicator, x: Array, root: int) -> Array:
    total = group.all_reduce(x, "sum")
    return total if group.rank == root else np.zeros_like(x)


_ROOT_MISTAKES = [Mistake((_VECTOR,), {**_OF_TWO, "root": 2}, ArgumentError, "root is no process")]

broadcast_shard: Primitive = collective(
    "broadcast_shard",
    doc="The shard of one process along a mesh axis, on all of them.",
    over_shards=lambda stack, size, root: _repeat_shards(stack[root], size),
    over_group=lambda group, x, root: group.broadcast(x, root),
    derivative=linear(lambda ct, x, **params: apply(reduce_shards, ct, **params)),
    shard_type=_check_root("broadcast_shard"),
    samples=lambda: _stack_samples(((3,), {"root": 2}), root=0),
    mistakes=_ROOT_MISTAKES,
)

reduce_shards: Primitive = collective(
    "reduce_shards",
    doc="The sum of all shards on one process, zeros on the others.",
    over_shards=_sum_at,
    over_group=_sum_at_root,
    derivative=linear(lambda ct, x, **params: apply(broadcast_shard, ct, **params)),
    shard_type=_check_root("reduce_shards"),
    dtypes="number",
    samples=lambda: _stack_samples(((3,), {"root": 2}), root=0),
    mistakes=_ROOT_MISTAKES,
)


def _check_pairs(x: TensorType, size: int, pairs: Pairs) -> TensorType:
    flat = [rank for pair in pairs for rank in pair]
    sources, targets = [pair[0] for pair in pairs], [pair[-1] for pair in pairs]
    fits = all(len(pair) == 2 for pair in pairs) and all(0 <= rank < size for rank in flat)
    if not fits or len({*sources}) < len(sources) or len({*targets}) < len(targets):
        raise ArgumentError(
            "permute_shards",
            "these are no pairs of a sender and a receiver",
            expected=f"pairs of ranks from 0 to {size - 1}, each once as sender and as receiver",
            got={"pairs": list(pairs)},
            fix=f"pairs=(({0}, {size - 1}),)",
        )
    return x


def _permute_stack(stack: Array, size: int, pairs: Pairs) -> Array:
    result = np.zeros_like(stack)
    for source, target in pairs:
        result[target] = stack[source]
    return result


permute_shards: Primitive = collective(
    "permute_shards",
    doc="Shards sent between pairs of processes; zeros where none arrives.",
    over_shards=_permute_stack,
    over_group=lambda group, x, pairs: group.permute(x, pairs),
    derivative=linear(
        lambda ct, x, pairs, **params: apply(
            permute_shards, ct, pairs=tuple([(b, a) for a, b in pairs]), **params
        )
    ),
    shard_type=_check_pairs,
    samples=lambda: [
        Sample(
            (_cube(*shape),),
            {"mesh_axis": "data", "size": shape[0], "stacked": True, "pairs": pairs},
        )
        for shape, pairs in (
            ((3, 2), ((0, 1), (1, 2), (2, 0))),
            ((4, 2), ((0, 1), (2, 3))),
            ((2, 2, 2), ()),
        )
    ],
    mistakes=[
        Mistake((_VECTOR,), {**_OF_TWO, "pairs": ((0, 2),)}, ArgumentError, "no pairs"),
        Mistake((_VECTOR,), {**_OF_TWO, "pairs": ((0, 1), (0, 0))}, ArgumentError, "no pairs"),
    ],
)


def _index_type(mesh_axis: str, size: int, stacked: bool) -> TensorType:
    _check_axis("shard_index", TensorType(INDEX, (size,)), mesh_axis, size, stacked)
    return TensorType(INDEX, (size,) if stacked else ())


def _own_index(mesh_axis: str, size: int, stacked: bool) -> Array:
    if stacked:
        return np.arange(size, dtype=INDEX.numpy)
    rank = _group_of_size("shard_index", mesh_axis, size).rank if size > 1 else 0
    return np.asarray(rank, INDEX.numpy)


shard_index: Primitive = Primitive(
    "shard_index",
    "The number of this process along a mesh axis, from 0.",
    kind=Collective(),
    lower=Unsupported("the number of a process is known to the group that its axis names"),
    type_rule=_index_type,
    reference=_own_index,
    derivatives=(),
    batch=lambda size, operands, axes, /, **params: (apply(shard_index, **params), None),
    samples=lambda: [
        Sample((), {"mesh_axis": "data", "size": 3, "stacked": True}),
        Sample((), {"mesh_axis": "data", "size": 1, "stacked": False}),
    ],
    impure=True,
)
