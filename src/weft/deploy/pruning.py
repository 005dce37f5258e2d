"""Pruning: weights set to zero, or whole channels taken away so that the network is smaller.

>>> import weft as wf
>>> net = wf.models.MLP([4, 8, 3])
>>> report = wf.deploy.prune_channels(net, 0.5, wf.spec("float32", ("batch", 4)))
>>> report.parameters, net(wf.ones((2, 4))).shape
((67, 35), (2, 3))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft as wf
from weft.deploy.channels import Group, channel_groups
from weft.onnx.exporting.programs import trace_program

__all__ = ["Pruning", "prune_channels", "prune_weights"]

Array = np.ndarray[Any, Any]
SIZES = {
    ("weight", 0): ("out_features", "out_channels", "num_features", "num_channels"),
    ("weight", 1): ("in_features", "in_channels"),
}
"""What layers call the sizes of the axes of their weights."""


@dataclass(frozen=True)
class Pruning:
    """What was taken away."""

    parameters: tuple[int, int]
    """How many numbers the parameters had that were not zero, and have."""
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each group of channels, by its first weight, or for each weight: how many of how many."""
    masks: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)
    """For each weight that was thinned out, which of its numbers stay."""

    def hold(self, net: wf.nn.Module) -> None:
        """Set the weights that were taken away to zero again, after a step of fine-tuning."""
        parameters = dict(net.named_parameters())
        for name, mask in self.masks.items():
            _write(parameters[name], np.where(mask, parameters[name].detach().numpy(), 0))

    def __str__(self) -> str:
        before, after = self.parameters
        share = after / before if before else 1.0
        lines = [f"{before:,} numbers before, {after:,} after ({share:.1%})"]
        return "\n".join([*lines, *[f"  {n}: {a} of {b}" for n, (a, b) in self.kept.items()]])


def prune_weights(net: wf.nn.Module, share: float, *, everywhere: bool = True) -> Pruning:
    """Set the smallest weights to zero; `report.hold(net)` keeps them there while tuning.

    share: of the weights with two axes or more. everywhere: the smallest of all layers together;
    else the same share of each.

    >>> net = wf.nn.Linear(2, 2, bias=False)
    >>> _ = net.load_state_dict({"weight": [[1.0, 0.1], [0.2, 3.0]]})
    >>> prune_weights(net, 0.5).parameters, net.weight.tolist()
    ((4, 2), [[1.0, 0.0], [0.0, 3.0]])
    """
    check_share("prune_weights", share)
    weights = {name: p for name, p in net.named_parameters() if p.ndim > 1}
    sizes = {name: np.abs(p.detach().numpy().astype(np.float64)) for name, p in weights.items()}
    everything = np.concatenate([each.reshape(-1) for each in sizes.values()] or [np.zeros(0)])
    limit = _limit(everything, share)
    limits = {name: limit if everywhere else _limit(sizes[name], share) for name in weights}
    masks = {name: sizes[name] > limits[name] for name in weights}
    kept = {name: (int(np.count_nonzero(mask)), int(mask.size)) for name, mask in masks.items()}
    counts = int(np.count_nonzero(everything)), sum(count for count, _ in kept.values())
    report = Pruning(counts, kept, masks)
    report.hold(net)
    return report


def _limit(sizes: Array, share: float) -> float:
    """The size that so large a share of the numbers does not exceed; below all for none."""
    count = round(share * sizes.size)
    return float(np.sort(sizes, axis=None)[count - 1]) if count else -1.0


def prune_channels(
    net: wf.nn.Module,
    share: float,
    *examples: Any,
    importance: Callable[[Mapping[str, Array]], Array] | None = None,
) -> Pruning:
    """Take the least important channels away: the network is smaller and faster, in place.

    share: of the channels of each group. examples: tensors or types that the network is traced
    with; channels that its results depend on by number, that are cut or joined, or that meet a
    fixed size are left. importance: from the rows of all weights of a group, by name, [channels,
    ...] each, to a number for each channel; the root of the sum of squares by default.
    """
    check_share("prune_channels", share)
    program = trace_program(net, examples, {})
    before = sum(int(p.size) for _, p in net.named_parameters())
    kept: dict[str, tuple[int, int]] = {}
    for group in channel_groups(program):
        count = max(1, group.size - round(share * group.size))
        state = _state_of(net)
        rows = {
            f"{name}[{axis}]": _rows(state[name].detach().numpy(), axis, group.size)
            for name, axis, _ in group.axes
        }
        numbers = np.asarray((importance or _norms)(rows))
        stays = np.sort(np.argsort(-numbers, kind="stable")[:count])
        if _cut_group(net, group, stays, examples, program.graph.output_types):
            kept[_first_weight(group, state)] = count, group.size
    after = sum(int(p.size) for _, p in net.named_parameters())
    return Pruning((before, after), kept)


def _cut_group(
    net: wf.nn.Module, group: Group, stays: Array, examples: Any, wanted: Sequence[wf.TensorType]
) -> bool:
    """Take channels away if the network works without them; otherwise leave it as it was.

    Code may hold a size as a number: of groups, of heads. Only a trace tells.
    """
    undo = [_cut_tensor(net, *place, stays) for place in group.axes]
    try:
        found = trace_program(net, examples, {}).graph.output_types
    except wf.WeftError:
        found = ()
    if [str(kind) for kind in found] == [str(kind) for kind in wanted]:
        return True
    for put_back in reversed(undo):
        put_back()
    return False


def check_share(op: str, share: float) -> None:
    """Refuse a share that is none, or everything."""
    if not 0 <= share < 1:
        raise wf.ArgumentError(
            op,
            "the share to take away is not from 0 to 1",
            expected="0 <= share < 1",
            got={"share": share},
            fix="share=0.5",
        )


def _first_weight(group: Group, state: Mapping[str, wf.Tensor]) -> str:
    names = [name for name, axis, _ in group.axes if axis == 0 and state[name].ndim > 1]
    return (names or [group.axes[0][0]])[0]


def _rows(value: Array, axis: int, count: int) -> Array:
    """The numbers of each channel: [channels, ...]."""
    return np.moveaxis(value, axis, 0).reshape(count, -1)


def _norms(rows: Mapping[str, Array]) -> Array:
    """The root of the sum of squares over all weights of a group."""
    squares = [np.square(each.astype(np.float64)).sum(axis=1) for each in rows.values()]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))


def _state_of(net: wf.nn.Module) -> dict[str, wf.Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _cut_tensor(
    net: wf.nn.Module, name: str, axis: int, width: int, stays: Array
) -> Callable[[], None]:
    """Keep some channels of a parameter or a buffer, and tell its layer; gives the way back."""
    owner, _, own = name.rpartition(".")
    holder: Any = net.get_submodule(owner) if owner else net
    tensor = getattr(holder, own)
    places = (stays[:, None] * width + np.arange(width)).reshape(-1)
    value = wf.asarray(np.take(tensor.detach().numpy(), places, axis=axis))
    names = [each for each in SIZES.get((own, axis), ()) if hasattr(holder, each)]
    sizes = {each: getattr(holder, each) for each in names}
    is_parameter = name in dict(net.named_parameters())
    _put(holder, own, value, is_parameter and tensor.requires_grad, is_parameter)
    for each in names:
        setattr(holder, each, len(places))

    def put_back() -> None:
        _put(holder, own, tensor.detach(), is_parameter and tensor.requires_grad, is_parameter)
        for each, size in sizes.items():
            setattr(holder, each, size)

    return put_back


def _put(holder: Any, own: str, value: wf.Tensor, learns: bool, is_parameter: bool) -> None:
    held = wf.nn.Parameter(value) if is_parameter else value
    setattr(holder, own, held)
    if is_parameter:
        held.requires_grad = learns


def _write(parameter: wf.Tensor, value: Array) -> None:
    with wf.no_grad():
        parameter.copy_(wf.asarray(value.astype(parameter.dtype.numpy)))
