"""A mixture of experts: a router sends each token to a few of many feed-forward networks.

Each expert takes at most `capacity` tokens of a group; first choices have priority over second
ones, and earlier tokens over later ones. A choice beyond that is dropped: the token gets nothing
from that expert, so a layer that adds its input (a residual) passes it on unchanged (Lepikhin et
al., "GShard", 2021; Fedus et al., "Switch transformers", 2022).

Experts may lie on the processes along a mesh axis (`wf.distributed.shard_experts`). Tokens then
travel to the experts and back by two all-to-all exchanges. The tokens of a process are its groups,
so n processes compute what one does with n times as many groups.

>>> import weft as wf
>>> layer = wf.nn.MixtureOfExperts(8, 16, experts=4)
>>> layer(wf.ones((2, 3, 8))).shape
(2, 3, 8)
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import weft as wf
from weft.collectives import all_to_all, axis_size
from weft.nn import functional as F  # noqa: N812
from weft.nn import init
from weft.nn.module import Module, Parameter
from weft.precision import without_float8

__all__ = ["MixtureOfExperts", "Routing"]


class Routing(NamedTuple):
    """What a mixture of experts tells of its choices.

    balance: E · Σ (share of first choices) · (mean probability) over the E experts, a mean over
    groups; 1 where all are used alike, and a term to add to the loss. dropped: the share of choices
    that found no place. counts: how many tokens chose each expert, dropped ones included.

    >>> layer = MixtureOfExperts(4, 8, experts=3, k=2)
    >>> _, routing = layer(wf.ones((1, 5, 4)), return_routing=True)
    >>> routing.counts.sum().item()
    10
    """

    balance: wf.Tensor
    dropped: wf.Tensor
    counts: wf.Tensor


class MixtureOfExperts(Module):
    """Feed-forward networks, `experts` of them, of which `k` see each token.

    width: the size of tokens; hidden: that inside of experts. capacity_factor: how many tokens an
    expert takes, in shares of an even distribution; None takes all, and drops none. groups: how
    many groups tokens are divided into, in order, each with capacity of its own. normalize: whether
    the weights of the chosen experts sum to one. `layer(x, return_routing=True)` gives a `Routing`
    beside the result.

    >>> MixtureOfExperts(4, 8, experts=3)(wf.ones((1, 5, 4))).shape
    (1, 5, 4)
    """

    mesh_axis: str | None = None
    """The mesh axis that experts are divided along; see `wf.distributed.shard_experts`."""

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        k: int = 2,
        *,
        capacity_factor: float | None = 1.25,
        groups: int = 1,
        activation: str = "gelu",
        normalize: bool = True,
    ) -> None:
        _check_sizes(width, hidden, experts, k, capacity_factor, groups)
        self.width, self.hidden, self.experts, self.k = width, hidden, experts, k
        self.capacity_factor, self.groups, self.normalize = capacity_factor, groups, normalize
        self.activation = F.activation_name("MixtureOfExperts", activation)
        self.router = Parameter(wf.empty((experts, width)))
        self.weight_in = Parameter(wf.empty((experts, width, hidden)))
        self.bias_in = Parameter(wf.zeros((experts, hidden)))
        self.weight_out = Parameter(wf.empty((experts, hidden, width)))
        self.bias_out = Parameter(wf.zeros((experts, width)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, uniform within 1 / √(size of the input); biases are zero."""
        init.uniform_(self.router, -1 / math.sqrt(self.width), 1 / math.sqrt(self.width))
        for weight, size in ((self.weight_in, self.width), (self.weight_out, self.hidden)):
            init.uniform_(weight, -1 / math.sqrt(size), 1 / math.sqrt(size))
        init.zeros_(self.bias_in)
        init.zeros_(self.bias_out)

    def expert_parameters(self) -> list[wf.Tensor]:
        """The parameters whose first axis counts experts, of which processes may have parts."""
        return [self.weight_in, self.bias_in, self.weight_out, self.bias_out]

    def forward(self, x: wf.Tensor, return_routing: bool = False) -> Any:
        """[..., width] -> [..., width]; with return_routing, a `Routing` beside it."""
        tokens = x.reshape(-1, self.width)
        count = tokens.shape[0]
        self._check_groups(x, count)
        chosen = self._choose(tokens)
        slots, is_kept, capacity = self._slots_of(chosen.experts, count)
        inputs = self._dispatch(tokens, slots, is_kept, capacity)  # [group, expert, place, width]
        flat = self._compute(inputs).reshape(-1, self.width)
        weights = wf.where(is_kept, chosen.weights, 0.0)  # [token, choice]
        places = wf.where(is_kept, slots, 0)
        taken = wf.take(flat, places.reshape(-1), axis=0).reshape(count, self.k, self.width)
        result = (taken * weights[:, :, None]).sum(axis=1).reshape(x.shape)
        return (result, self._routing_of(chosen, is_kept)) if return_routing else result

    def _choose(self, tokens: wf.Tensor) -> _Choice:
        """The experts of each token, best first, and their weights."""
        with without_float8():
            scores = F.linear(tokens, self.router)
        probabilities = F.softmax(scores, axis=-1)  # [token, expert]
        weights, experts = wf.topk(probabilities, self.k, axis=-1)
        if self.normalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return _Choice(probabilities, weights, experts)

    def _slots_of(self, experts: wf.Tensor, count: Any) -> tuple[wf.Tensor, wf.Tensor, Any]:
        """For each choice its slot among all of all groups, whether there is one; the capacity."""
        members = count // self.groups
        capacity = self._capacity(members)
        # [group, choice, token, expert]: first choices stand before second ones
        ordered = wf.swapaxes(experts.reshape(self.groups, members, self.k), 1, 2)
        marks = wf.one_hot(ordered, self.experts, dtype="int64")
        queue = marks.reshape(self.groups, self.k * members, self.experts)
        place = ((wf.cumsum(queue, axis=1) - 1) * queue).sum(axis=-1)  # [group, choice · token]
        place = place.reshape(self.groups, self.k, members)
        group = wf.arange(self.groups)[:, None, None]
        slots = (group * self.experts + ordered) * capacity + place
        back = (count, self.k)
        is_kept = wf.swapaxes(place < capacity, 1, 2).reshape(*back)
        return wf.swapaxes(slots, 1, 2).reshape(*back), is_kept, capacity

    def _capacity(self, members: Any) -> Any:
        """How many tokens of a group an expert takes."""
        if self.capacity_factor is None:
            return members
        factor = Fraction(self.capacity_factor).limit_denominator(1024)
        wanted, even = members * self.k * factor.numerator, self.experts * factor.denominator
        return (wanted + even - 1) // even

    def _dispatch(
        self, tokens: wf.Tensor, slots: wf.Tensor, is_kept: wf.Tensor, capacity: Any
    ) -> wf.Tensor:
        """The tokens in the slots of experts, zeros in those that are empty."""
        size = self.groups * self.experts * capacity
        numbers = wf.arange(1, tokens.shape[0] + 1)[:, None] + wf.zeros_like(slots)
        place = wf.where(is_kept, slots, size)  # one slot more, for what is dropped
        empty = wf.zeros((size + 1,), dtype="int64")
        token_of_slot = wf.scatter(empty, 0, place.reshape(-1), numbers.reshape(-1))[:size]
        rows = wf.concat([wf.zeros((1, self.width), dtype=tokens.dtype), tokens])
        return wf.take(rows, token_of_slot, axis=0).reshape(
            self.groups, self.experts, capacity, self.width
        )

    def _compute(self, inputs: wf.Tensor) -> wf.Tensor:
        """Each expert's network on its tokens, where the expert is."""
        if self.mesh_axis is not None:  # [group · process, own expert, place, width]
            inputs = all_to_all(inputs, self.mesh_axis, split_axis=1, concat_axis=0)
        groups, own, capacity = inputs.shape[0], inputs.shape[1], inputs.shape[2]
        rows = wf.swapaxes(inputs, 0, 1).reshape(own, groups * capacity, self.width)
        hidden = F.activate(self.activation, rows @ self.weight_in + self.bias_in[:, None])
        outputs = hidden @ self.weight_out + self.bias_out[:, None]
        outputs = wf.swapaxes(outputs.reshape(own, groups, capacity, self.width), 0, 1)
        if self.mesh_axis is not None:
            outputs = all_to_all(outputs, self.mesh_axis, split_axis=0, concat_axis=1)
        return outputs

    def _routing_of(self, chosen: _Choice, is_kept: wf.Tensor) -> Routing:
        first = wf.one_hot(chosen.experts[:, 0], self.experts, dtype="float32")
        shares = first.reshape(self.groups, -1, self.experts).mean(axis=1)
        means = chosen.probabilities.reshape(self.groups, -1, self.experts).mean(axis=1)
        balance = (shares * means).sum(axis=-1).mean() * self.experts
        counts = wf.one_hot(chosen.experts, self.experts, dtype="int64").sum(axis=(0, 1))
        return Routing(balance, 1 - is_kept.astype("float32").mean(), counts)

    def _check_groups(self, x: wf.Tensor, count: Any) -> None:
        if isinstance(count, int) and count % self.groups:
            raise wf.ShapeError(
                "MixtureOfExperts",
                "the tokens do not divide into groups",
                expected=f"a multiple of {self.groups} tokens",
                got={"x": x, "groups": self.groups},
                note=f"{count} % {self.groups} = {count % self.groups}",
                fix="groups=1, or another batch size",
            )
        if self.mesh_axis is not None:
            _check_own_experts(self.weight_in, self.experts, self.mesh_axis)

    def extra_repr(self) -> str:
        """See `Module`."""
        place = "" if self.mesh_axis is None else f", mesh_axis={self.mesh_axis!r}"
        return f"{self.width}, {self.hidden}, experts={self.experts}, k={self.k}{place}"


class _Choice(NamedTuple):
    """The probabilities of all experts, and weights and numbers of the chosen ones, best first."""

    probabilities: wf.Tensor
    weights: wf.Tensor
    experts: wf.Tensor


def _check_own_experts(weight: wf.Tensor, experts: int, mesh_axis: str) -> None:
    size = axis_size(mesh_axis)
    if weight.shape[0] * size != experts:
        raise wf.ShapeError(
            "MixtureOfExperts",
            "the experts here are not those of one process along the axis",
            expected=f"{experts} experts divided among {size} processes",
            got={"weight_in": weight, "mesh_axis": mesh_axis, "processes": size},
            fix="wf.distributed.shard_experts(layer, mesh_axis) in each process",
        )


def _check_sizes(
    width: int, hidden: int, experts: int, k: int, capacity_factor: float | None, groups: int
) -> None:
    counts = {"width": width, "hidden": hidden, "experts": experts, "k": k, "groups": groups}
    are_counts = all(type(count) is int and count > 0 for count in counts.values())
    is_factor = capacity_factor is None or capacity_factor > 0
    if not are_counts or k > experts or not is_factor:
        raise wf.ArgumentError(
            "MixtureOfExperts",
            "these are no sizes of a mixture of experts",
            expected="whole numbers of at least 1, k at most experts, a positive capacity_factor",
            got={**counts, "capacity_factor": capacity_factor},
            fix="MixtureOfExperts(512, 2048, experts=8, k=2)",
        )
