"""Parameters split over processes (ZeRO 3): each keeps its part, and gathers the whole to compute.

    model.blocks = [wf.distributed.shard_parameters(block) for block in model.blocks]
    optimizer = wf.distributed.data_parallel(wf.optim.AdamW(model.parameters()), zero=3)

A split module gathers its parameters when it is called and lets them go; the way back gathers them
again, and its gradients arrive summed and split. Products are kept from the forward pass, what is
cheap is computed again. So memory holds the whole parameters of one module at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

import weft as wf
from weft.collectives import all_gather, axis_size, broadcast, gather_of, take_shard
from weft.distributed.process_group import number_of_module
from weft.nn import Identity, MixtureOfExperts, Module, ModuleList, Sequential
from weft.nn.layout import PARAMETER, lay_out, put_together

__all__ = [
    "Part", "ShardedModule", "forget_part", "forget_values", "gather_part", "gather_value",
    "is_of_experts", "is_part", "is_tensor_part", "load_whole_state", "note_tensor_part",
    "own_value", "part_facts", "part_of", "shard_experts", "shard_model", "shard_parameters",
    "state_handles", "whole_shape", "whole_state",
]  # fmt: skip


class Part(NamedTuple):
    """What is known of a parameter of which each process along an axis keeps a part."""

    handle: ref[wf.Tensor]
    shape: tuple[int, ...]
    """That of the whole."""
    mesh_axis: str
    is_expert: bool = False
    """Whether it is one of experts, which are used where they are and never gathered to compute."""
    copies: str | None = None
    """The mesh axis along which processes have the same experts."""
    axis: int | None = None
    """The axis that is split, where programs compute with the part: tensor parallel in stages."""


_parts: dict[int, Part] = {}
"""The parameters that are split, by identity."""


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
            _note_part(parameter, Part(_reference_to(parameter), shape, mesh_axis))
    return ShardedModule(module, mesh_axis)


def shard_experts(module: Any, mesh_axis: str = "data", copies: str | None = None) -> Any:
    """The module, whose mixtures of experts have their experts divided along a mesh axis.

    Parameters of experts become this process's part of those of the first process. Each process
    gives the module tokens of its own: the axis is that of data parallel training. With another
    axis beside it, as on a mesh of `data` x `expert`, name it: `shard_experts(model, "expert",
    copies="data")`; processes along it have the same experts.

    >>> import weft as wf
    >>> wf.distributed.init()
    >>> layer = shard_experts(wf.nn.MixtureOfExperts(4, 8, experts=2))
    >>> layer(wf.ones((3, 4))).shape, layer.mesh_axis
    ((3, 4), 'data')
    >>> wf.distributed.shutdown()
    """
    size = axis_size(mesh_axis)
    layers = [each for each in module.modules() if isinstance(each, MixtureOfExperts)]
    for layer in layers:
        if layer.experts % size:
            raise wf.ShapeError(
                "shard_experts",
                "the experts do not divide among the processes",
                expected=f"a multiple of {size} experts",
                got={"experts": layer.experts, "processes": size},
                fix=f"experts={-(-layer.experts // size) * size}",
            )
        with wf.no_grad():
            for parameter in layer.expert_parameters():
                if not is_part(parameter):
                    shape = whole_shape(parameter)
                    first = parameter if copies is None else broadcast(parameter, copies)
                    whole = broadcast(first, mesh_axis)
                    parameter.set_(take_shard(whole, mesh_axis) if size > 1 else whole)
                    handle = _reference_to(parameter)
                    _note_part(parameter, Part(handle, shape, mesh_axis, True, copies))
        layer.mesh_axis = mesh_axis
    return module


def _reference_to(parameter: wf.Tensor) -> ref[wf.Tensor]:
    """A weak reference to a parameter, with which what is known of it ends."""
    key = id(parameter)

    def forget(_: object) -> None:
        _parts.pop(key, None)

    return ref(parameter, forget)


def _note_part(parameter: wf.Tensor, part: Part) -> None:
    _parts[id(parameter)] = part


def note_tensor_part(
    parameter: wf.Tensor, shape: tuple[int, ...], mesh_axis: str, axis: int
) -> None:
    """Note that a parameter holds this process's part of one axis of a whole of a shape."""
    _note_part(parameter, Part(_reference_to(parameter), shape, mesh_axis, axis=axis))


def forget_part(parameter: wf.Tensor) -> None:
    """Note that a parameter is whole again."""
    _parts.pop(id(parameter), None)


def part_facts(parameter: wf.Tensor) -> Part | None:
    """What is known of a parameter that is split over processes; None for one that is whole."""
    known = _parts.get(id(parameter))
    return known if known is not None and known.handle() is parameter else None


def part_of(tensor: wf.Tensor, mesh_axis: str) -> wf.Tensor:
    """This process's part of a tensor's elements, as a vector; the last ones may be zeros."""
    size = axis_size(mesh_axis)
    missing = -int(tensor.size) % size
    flat = tensor.reshape(-1)
    filled = wf.concat([flat, wf.zeros(missing, dtype=flat.dtype)]) if missing else flat
    return take_shard(filled, mesh_axis) if size > 1 else filled


def is_part(parameter: wf.Tensor) -> bool:
    """Whether a parameter is split over processes."""
    return part_facts(parameter) is not None


def is_tensor_part(parameter: wf.Tensor) -> bool:
    """Whether a parameter is a part along one of its axes, whose gradient is that of the part."""
    known = part_facts(parameter)
    return known is not None and known.axis is not None


def is_of_experts(parameter: wf.Tensor) -> bool:
    """Whether a parameter is this process's part of the experts of all."""
    known = part_facts(parameter)
    return known is not None and known.is_expert


def whole_shape(parameter: wf.Tensor) -> tuple[int, ...]:
    """The shape of a parameter, of the whole where it is split."""
    known = part_facts(parameter)
    return tuple(int(size) for size in parameter.shape) if known is None else known.shape


def _shape_of_part(parameter: wf.Tensor) -> tuple[int, ...]:
    """The shape of this process's part of experts, or of a flat parameter, in the world now."""
    known = part_facts(parameter)
    assert known is not None
    size = axis_size(known.mesh_axis)
    if known.is_expert:
        return (known.shape[0] // size, *known.shape[1:])
    return (-(-math.prod(known.shape) // size),)


def forget_values(parameter: wf.Tensor) -> None:
    """Make room in a split parameter for values that are put in place of lost ones.

    A part of experts gets the shape that it has among the processes that there are now. One along
    an axis where programs compute with it gets that of the whole, which is split again.
    """
    known = part_facts(parameter)
    if known is None:
        return
    kind = {"dtype": parameter.dtype, "device": parameter.device}
    if known.axis is not None:
        forget_part(parameter)
    with wf.no_grad():
        shape = known.shape if known.axis is not None else _shape_of_part(parameter)
        parameter.set_(wf.zeros(shape, **kind))


class ShardedModule(Module):
    """A module whose parameters are gathered when it is called.

    without: parameters that modules inside of it gather by themselves. lets_go: whether gathered
    parameters are let go after the call, and gathered again on the way back.
    """

    def __init__(
        self,
        module: Any,
        mesh_axis: str,
        without: Sequence[wf.Tensor] = (),
        lets_go: bool = True,
    ) -> None:
        super().__init__()
        self.module, self.mesh_axis, self.lets_go = module, mesh_axis, lets_go
        self.number = number_of_module()
        """What its parts are gathered as: processes that gather another module's are named."""
        layout = lay_out(module)
        roles = {place.index: place.role for place in layout.places}
        left_out = {id(parameter) for parameter in without}
        self.shapes = tuple(
            whole_shape(tensor)
            if roles[index] == PARAMETER
            and id(tensor) not in left_out
            and not is_of_experts(tensor)
            else None
            for index, tensor in enumerate(layout.tensors)
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own result."""

        def call_gathered(*args: Any, **kwargs: Any) -> Any:
            layout = lay_out(self.module)
            what = f"part {self.number}."
            pairs = enumerate(zip(layout.tensors, self.shapes, strict=True))
            tensors = [
                tensor
                if shape is None
                else gather_part(tensor, shape, self.mesh_axis, f"{what}{place}")
                for place, (tensor, shape) in pairs
            ]
            return put_together(layout.skeleton, tensors)(*args, **kwargs)

        call = wf.checkpoint(call_gathered, policy="products") if self.lets_go else call_gathered
        return call(*args, **kwargs)


def gather_part(
    part: wf.Tensor, shape: tuple[int, ...], mesh_axis: str, what: str = ""
) -> wf.Tensor:
    """The whole tensor of a shape, of whose flat elements each process has a part."""
    whole = gather_of(part, mesh_axis, what)
    return whole[: math.prod(shape)].reshape(shape)


# --- whole models --------------------------------------------------------------------------------


def shard_model(model: Any, optimizer: Any, mesh_axis: str = "data") -> ShardedModule:
    """Split a model's parameters, and what an optimiser keeps for them; the model to call.

    Modules in rows (Sequential, ModuleList, lists) are gathered one at a time. What is outside of
    rows, as embeddings that are used twice, is gathered at the beginning and stays until the end of
    the step. The model given has the same handles, and is called no more.
    """
    blocks = _blocks_of(model)
    outer = {id(p) for p in _outside_of(model, blocks)}
    for parameter, slots in zip(optimizer.parameters, optimizer.state, strict=True):
        if not is_part(parameter):
            with wf.no_grad():
                for value in slots.values():
                    value.set_(part_of(broadcast(value, mesh_axis), mesh_axis))
    shard_parameters(model, mesh_axis)
    single = [block for block in blocks if not any(id(p) in outer for p in block.parameters())]
    replaced = {id(block): ShardedModule(block, mesh_axis) for block in single}
    gathered = [p for block in single for p in block.parameters()]
    return ShardedModule(_with_blocks(model, replaced), mesh_axis, gathered, lets_go=False)


def _blocks_of(model: Any) -> list[Any]:
    """The outermost modules with parameters that stand in rows of modules."""
    found: list[Any] = []

    def look(module: Any, in_row: bool) -> None:
        if in_row and any(True for _ in module.parameters()):
            found.append(module)
            return
        is_row = isinstance(module, (Sequential, ModuleList))
        for value in vars(module).values():
            members = value if isinstance(value, (list, tuple)) else [value]
            for member in members:
                if isinstance(member, Module):
                    look(member, is_row or member is not value)

    look(model, False)
    return found


def _outside_of(model: Any, blocks: Sequence[Any]) -> list[wf.Tensor]:
    """The parameters that a model has outside of its blocks, or in two of them."""
    counts: dict[int, int] = {}
    for block in blocks:
        for parameter in block.parameters():
            counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    inside = _with_blocks(model, {id(block): Identity() for block in blocks})
    outside = {id(parameter) for parameter in inside.parameters()}
    return [p for p in model.parameters() if id(p) in outside or counts.get(id(p), 0) > 1]


def _with_blocks(model: Any, replaced: Mapping[int, Any]) -> Any:
    """A copy of a model with other modules in place of some; tensors are the same handles."""

    def copy_value(value: Any) -> Any:
        if isinstance(value, Module):
            return replaced[id(value)] if id(value) in replaced else copy_module(value)
        if type(value) in (list, tuple):
            return type(value)(copy_value(each) for each in value)
        return value

    def copy_module(module: Any) -> Any:
        if not any(id(each) in replaced for each in module.modules()):
            return module
        new = copy.copy(module)
        for name, value in vars(module).items():
            new.__dict__[name] = copy_value(value)
        new.__dict__["_layout"] = None  # what is remembered of the tensors of the other
        return new

    return replaced[id(model)] if id(model) in replaced else copy_module(model)


def state_handles(model: Any) -> dict[str, wf.Tensor]:
    """The parameters and buffers in a state, by name: of a module, or of a list of them."""
    is_module = hasattr(model, "state_dict")
    parts = {"": model} if is_module else {f"{place}.": part for place, part in enumerate(model)}
    found: dict[str, wf.Tensor] = {}
    for start, part in parts.items():
        if hasattr(part, "state_dict"):
            handles = {**dict(part.named_buffers()), **dict(part.named_parameters())}
            found |= {f"{start}{name}": handles[name] for name in part.state_dict()}
    return found


def whole_state(model: Any) -> dict[str, wf.Tensor]:
    """The state of a model with its split parameters gathered, by name."""
    handles = dict(model.named_parameters())
    return {
        name: gather_value(value, handles[name]) if name in handles else value
        for name, value in model.state_dict().items()
    }


def load_whole_state(model: Any, weights: Mapping[str, Any]) -> None:
    """Put whole weights into a model, of whose parameters this process may have parts."""
    handles = dict(model.named_parameters())
    own = {
        name: own_value(wf.asarray(value), handles[name]) if name in handles else value
        for name, value in weights.items()
    }
    model.load_state_dict(own)


def gather_value(value: wf.Tensor, parameter: wf.Tensor) -> wf.Tensor:
    """A parameter's value, or what is kept for it, gathered where processes have parts of it."""
    known = part_facts(parameter)
    if known is None:
        return value
    if known.axis is not None:
        return all_gather(value.detach(), known.mesh_axis, axis=known.axis)
    return gather_part(value.detach(), known.shape, known.mesh_axis)


def own_value(value: wf.Tensor, parameter: wf.Tensor) -> wf.Tensor:
    """This process's part of what belongs to a parameter; all of it where that is whole."""
    known = part_facts(parameter)
    if known is None:
        return value
    if known.axis is not None:
        return take_shard(value, known.mesh_axis, axis=known.axis)
    return part_of(value, known.mesh_axis).reshape(parameter.shape)
