"""Batching: running a function on a whole batch, whose axis the function does not see.

A traced tensor holds the whole batch and shows the shape of one element. Each primitive's batching
rule gets the whole tensors with the places of their batch axes, and gives results with theirs.

>>> import weft as wf
>>> wf.vmap(lambda x: x.sum())(wf.ones((2, 3))).tolist()
[3.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.arrays import HostArray, move
from weft.core.devices import Device
from weft.core.errors import Unsupported
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.dispatch import active_trace, apply, is_collective_over
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.tape_order import next_node_number, off_finished_tapes
from weft.ir.tensor import Tensor, Trace, Traced, traces, wrap


class Batched(Traced):
    """A tensor whose axis `axis` is hidden: its type is that of one element of the batch."""

    __slots__ = ("axis", "tensor")
    tensor: Tensor
    axis: int

    @property
    def device(self) -> Device:
        """Where the tensor with its hidden axis is."""
        return self.tensor.device


class BatchTrace(Trace):
    """Applies each primitive to all elements of the batch at once, by its batching rule."""

    name = "vmap"

    def __init__(self, size: Dimension, axis_name: str | None = None) -> None:
        self.size = self.axis_size = size
        self.axis_name = axis_name

    def tensor(self, tensor: Tensor, axis: int | None) -> Tensor:
        """A tensor whose `axis` is hidden; without one it is the same for all elements."""
        if axis is None:
            return tensor
        value = Batched()
        value.trace = self
        shape = tensor.shape
        value.type = TensorType(tensor.dtype, shape[:axis] + shape[axis + 1 :])
        value.tensor = tensor
        value.axis = axis
        return wrap(value)

    def tensor_and_axis(self, tensor: Tensor) -> tuple[Tensor, int | None]:
        """The whole tensor and the place of its batch axis, which is None if it has none."""
        value = tensor._value
        if isinstance(value, Batched) and value.trace is self:
            return value.tensor, value.axis
        return tensor, None

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        if is_collective_over(primitive, params, self.axis_name):
            return self._process_shards(primitive, operands, params)
        rule = primitive.batch
        if isinstance(rule, Unsupported):
            got = {f"x{i + 1}": operand for i, operand in enumerate(operands)}
            raise rule.error(primitive.name, "a batching rule", got)
        pairs = [self.tensor_and_axis(operand) for operand in operands]
        tensors = tuple(tensor for tensor, _ in pairs)
        outside, traces.axis_name = traces.axis_name, self.axis_name
        try:
            out, axes = rule(self.size, tensors, tuple(axis for _, axis in pairs), **params)
        finally:
            traces.axis_name = outside
        if primitive.multiple:
            return tuple(self.tensor(o, a) for o, a in zip(out, axes, strict=True))
        return self.tensor(out, axes)

    def _process_shards(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any]
    ) -> Tensor:
        """A collective over the axis of this batch: its reference takes all shards at once."""
        fronts = [to_front(self.size, *self.tensor_and_axis(operand)) for operand in operands]
        return self.tensor(apply(primitive, *fronts, **{**params, "stacked": True}), 0)


def vmap(
    f: Callable[..., Sequence[Tensor]],
    size: Dimension,
    arguments: Sequence[Tensor],
    axes: Sequence[int | None],
    axis_name: str | None = None,
) -> list[tuple[Tensor, int | None]]:
    """The results of f over a batch, each with its batch axis, None where it has none."""
    trace, since = BatchTrace(size, axis_name), next_node_number()
    with active_trace(trace):
        inner = [trace.tensor(x, axis) for x, axis in zip(arguments, axes, strict=True)]
        pairs = [trace.tensor_and_axis(result) for result in f(*inner)]
    tensors = off_finished_tapes([tensor for tensor, _ in pairs], since)
    return list(zip(tensors, [axis for _, axis in pairs], strict=True))


def move_axis(tensor: Tensor, source: int, destination: int) -> Tensor:
    """The tensor with one axis moved, the order of the others kept."""
    if source == destination:
        return tensor
    order = [axis for axis in range(tensor.ndim) if axis != source]
    order.insert(destination, source)
    return apply(PRIMITIVES["transpose"], tensor, order=tuple(order))


def to_front(size: Dimension, tensor: Tensor, axis: int | None) -> Tensor:
    """The tensor with its batch axis first; one without gets one by broadcasting."""
    if axis is not None:
        return move_axis(tensor, axis, 0)
    if type(tensor._value) is HostArray and traces.device is not None:
        tensor = wrap(move(tensor._value, traces.device), tensor._node)
    shape = (size, *tensor.shape)
    return apply(PRIMITIVES["broadcast_to"], tensor, shape=shape)
