"""Parameters split over processes (ZeRO 3): each keeps its part, and gathers the whole to compute.

    model.blocks = [wf.distributed.shard_parameters(block) for block in model.blocks]
    optimizer = wf.distributed.data_parallel(wf.optim.AdamW(model.parameters()), zero=3)

A split module gathers its parameters when it is called and lets them go; the way back gathers them
again, and its gradients arrive summed and split. Products are kept from the forward pass, what is
cheap is computed again. So memory holds the whole parameters of one module at a time.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import weft as wf
from weft.collectives import all_gather, axis_size, broadcast, take_shard
from weft.nn import Module
from weft.nn.layout import PARAMETER, lay_out, put_together

__all__ = ["ShardedModule", "is_part", "part_of", "shard_parameters", "whole_shape"]

_shapes: dict[int, tuple[ref[wf.Tensor], tuple[int, ...]]] = {}
"""The shape of the whole, for each parameter that is split, by identity."""


def shard_parameters(module: Any, mesh_axis: str = "data") -> ShardedModule:
    """The module with its parameters split over the processes along an axis.

    Parameters become those of the first process. An optimiser is made afterwards, and shared by
    `data_parallel(optimizer, zero=3)`.

    >>> import weft as wf
    >>> wf.distributed.init()
    >>> layer = shard_parameters(wf.nn.Linear(3, 2))
    >>> layer(wf.ones((4, 3))).shape, [p.shape for p in layer.parameters()]
    ((4, 2), [(6,), (2,)])
    >>> wf.distributed.shutdown()
    """
    with wf.no_grad():
        for parameter in module.parameters():
            if is_part(parameter):
                continue
            shape = whole_shape(parameter)
            parameter.set_(part_of(broadcast(parameter, mesh_axis), mesh_axis))
            _note_shape(parameter, shape)
    return ShardedModule(module, mesh_axis)


def _note_shape(parameter: wf.Tensor, shape: tuple[int, ...]) -> None:
    key = id(parameter)

    def forget(_: object) -> None:
        _shapes.pop(key, None)

    _shapes[key] = ref(parameter, forget), shape


def part_of(tensor: wf.Tensor, mesh_axis: str) -> wf.Tensor:
    """This process's part of a tensor's elements, as a vector; the last ones may be zeros."""
    size = axis_size(mesh_axis)
    missing = -int(tensor.size) % size
    flat = tensor.reshape(-1)
    filled = wf.concat([flat, wf.zeros(missing, dtype=flat.dtype)]) if missing else flat
    return take_shard(filled, mesh_axis) if size > 1 else filled


def is_part(parameter: wf.Tensor) -> bool:
    """Whether a parameter is split over processes."""
    known = _shapes.get(id(parameter))
    return known is not None and known[0]() is parameter


def whole_shape(parameter: wf.Tensor) -> tuple[int, ...]:
    """The shape of a parameter, of the whole where it is split."""
    if is_part(parameter):
        return _shapes[id(parameter)][1]
    return tuple(int(size) for size in parameter.shape)


class ShardedModule(Module):
    """A module whose parameters are gathered when it is called."""

    def __init__(self, module: Any, mesh_axis: str) -> None:
        super().__init__()
        self.module, self.mesh_axis = module, mesh_axis
        layout = lay_out(module)
        roles = {place.index: place.role for place in layout.places}
        self.shapes = tuple(
            whole_shape(tensor) if roles[index] == PARAMETER else None
            for index, tensor in enumerate(layout.tensors)
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own result."""

        def call_gathered(*args: Any, **kwargs: Any) -> Any:
            layout = lay_out(self.module)
            tensors = [
                tensor if shape is None else self._gather(tensor, shape)
                for tensor, shape in zip(layout.tensors, self.shapes, strict=True)
            ]
            return put_together(layout.skeleton, tensors)(*args, **kwargs)

        return wf.checkpoint(call_gathered, policy="products")(*args, **kwargs)

    def _gather(self, part: wf.Tensor, shape: tuple[int, ...]) -> wf.Tensor:
        count = 1
        for size in shape:
            count *= size
        whole = all_gather(part, self.mesh_axis)
        return whole[:count].reshape(shape)
