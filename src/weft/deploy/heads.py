"""Heads of attention taken away, so that projections and attention are smaller for real.

>>> import weft as wf
>>> net = wf.models.BERT(wf.models.BERTConfig(30, 16, 24, 2, 4, 12))
>>> report = wf.deploy.prune_heads(net, 0.5)
>>> report.kept["encoder.layer.0.attention.self"], net.encoder.layer[0].attention.self.heads
((2, 4), 2)
>>> net(wf.tensor([[1, 2, 3]])).shape
(1, 3, 16)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft as wf
from weft.deploy.pruning import Pruning, check_share

__all__ = ["HeadPruning", "prune_heads"]

Array = np.ndarray[Any, Any]
Measure = Callable[[wf.nn.Module], float]
SIZES = ("out_features", "in_features")
"""What linear layers call the sizes of the axes of their weights [out, in]."""


@dataclass(frozen=True)
class HeadPruning(Pruning):
    """What was taken away, and what it cost; `kept` has heads of keys, which queries share."""

    heads: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """For each attention, which of its heads of keys are left, by their old numbers."""
    measured: dict[str, float] = field(default_factory=dict)
    """What `measure` gave before, after pruning, and after tuning."""

    def __str__(self) -> str:
        numbers = [f"  {when}: {value:.6g}" for when, value in self.measured.items()]
        return "\n".join([super().__str__(), *numbers])


@dataclass(frozen=True)
class _Part:
    """A tensor of an attention; along an axis it has segments, each of all heads in order."""

    holder: Any
    name: str
    axis: int
    segments: tuple[int, ...]

    @property
    def value(self) -> Array:
        found: Array = getattr(self.holder, self.name).detach().numpy()
        return found

    def rows_of(self, head: int, count: int, segment: int) -> Array:
        """The places along the axis of one of so many heads, in a segment."""
        width = self.segments[segment] // count
        start = sum(self.segments[:segment]) + head * width
        return np.arange(start, start + width)

    def keep(self, heads: Array, count: int) -> None:
        """Keep some heads."""
        places = [
            self.rows_of(int(head), count, segment)
            for segment in range(len(self.segments))
            for head in heads
        ]
        old = getattr(self.holder, self.name)
        value = np.take(self.value, np.concatenate(places), axis=self.axis)
        new = wf.nn.Parameter(wf.asarray(value))
        setattr(self.holder, self.name, new)
        new.requires_grad = old.requires_grad
        if self.name == "weight" and isinstance(self.holder, wf.nn.Linear):
            setattr(self.holder, SIZES[self.axis], value.shape[self.axis])


@dataclass(frozen=True)
class _Attention:
    """An attention: what gives its queries, keys and values, what reads them, and its counts."""

    name: str
    module: Any
    counts: tuple[str, ...]
    """The attributes that say how many heads there are: of queries, and of keys."""
    into: tuple[_Part, ...]
    values: tuple[_Part, int]
    """What gives the values, and in which segment."""
    out: _Part

    @property
    def heads(self) -> int:
        """How many heads of keys there are; those of queries are a multiple."""
        return int(getattr(self.module, self.counts[-1]))

    def importance(self) -> Array:
        """For each head, how large what it writes may be: norms of its values and its output."""
        part, segment = self.values
        given = [
            np.linalg.norm(np.take(part.value, part.rows_of(h, self.heads, segment), part.axis))
            for h in range(self.heads)
        ]
        written = [
            np.linalg.norm(
                np.take(self.out.value, self.out.rows_of(h, self.heads, 0), self.out.axis)
            )
            for h in range(self.heads)
        ]
        return np.array(given) * np.array(written)

    def keep(self, heads: Array) -> None:
        """Keep some heads, and tell the module."""
        count = self.heads
        for part in (*self.into, self.out):
            part.keep(heads, count)
        for name in self.counts:
            setattr(self.module, name, getattr(self.module, name) // count * len(heads))


def prune_heads(
    net: wf.nn.Module,
    share: float,
    *,
    importance: Callable[[str, wf.nn.Module], Any] | None = None,
    measure: Measure | None = None,
    tune: Callable[[wf.nn.Module], Any] | None = None,
) -> HeadPruning:
    """Take the least important heads of each attention away, in place; at least one stays.

    share: of the heads of each attention; where groups of queries share keys, of these groups.
    Attentions that are known: `nn.MultiheadAttention` and what is made of it, those of the models
    in `wf.models`, and any module with `heads` and projections of their names. importance: from
    the name and the module of an attention to a number for each head; the product of the norms of
    what gives its values and what reads its output by default. measure: a number of the network,
    for the report. tune: what trains it afterwards, with a new optimiser.
    """
    check_share("prune_heads", share)
    found = list(_attentions(net))
    if not found:
        raise wf.UnsupportedError(
            "prune_heads",
            "no attention is found in the network",
            expected="nn.MultiheadAttention, or modules with heads, and q_proj, k_proj, v_proj",
            got={"net": type(net).__name__},
            fix="name the projections of your attention so, and its output out_proj",
        )
    measured = {} if measure is None else {"before": float(measure(net))}
    before = sum(int(p.size) for _, p in net.named_parameters())
    kept: dict[str, tuple[int, int]] = {}
    heads: dict[str, tuple[int, ...]] = {}
    for each in found:
        count = each.heads
        numbers = _scores(each, importance)
        stays = max(1, count - round(share * count))
        chosen = np.sort(np.argsort(-numbers, kind="stable")[:stays])
        if stays < count:
            each.keep(chosen)
        kept[each.name] = stays, count
        heads[each.name] = tuple(chosen.tolist())
    after = sum(int(p.size) for _, p in net.named_parameters())
    if measure is not None:
        measured["pruned"] = float(measure(net))
    if tune is not None:
        tune(net)
        if measure is not None:
            measured["tuned"] = float(measure(net))
    return HeadPruning((before, after), kept, heads=heads, measured=measured)


def _scores(attention: _Attention, importance: Callable[[str, wf.nn.Module], Any] | None) -> Array:
    if importance is None:
        return attention.importance()
    numbers = np.asarray(importance(attention.name, attention.module), np.float64)
    if numbers.shape != (attention.heads,):
        raise wf.ShapeError(
            "prune_heads",
            f"importance does not give one number for each head of {attention.name}",
            expected=f"{attention.heads} numbers",
            got={"shape": numbers.shape},
            fix="importance=lambda name, module: numpy.ones(module.heads)",
        )
    return numbers


# --- which attentions there are ------------------------------------------------------------------


def _attentions(net: wf.nn.Module) -> Iterator[_Attention]:
    """The attentions of a network, each once."""
    modules = dict(net.named_modules())
    seen: set[int] = set()
    for name, module in modules.items():
        if id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, wf.nn.MultiheadAttention):
            yield _multihead_parts(name, module)
        elif isinstance(getattr(module, "heads", None), int):
            known = _four_projections(name, module) or _joint_projection(name, module)
            known = known or _with_output_beside(name, module, modules)
            if known is not None:
                yield known


def _linear_parts(layer: Any, axis: int, parts: int = 1) -> list[_Part]:
    """The weight of a linear layer, and its bias where the axis is that of the output."""
    is_turned = not isinstance(layer, wf.nn.Linear)  # [in, out], as GPT-2's are
    along = 1 - axis if is_turned else axis
    size = int(layer.weight.shape[along])
    segments = (size // parts,) * parts
    found = [_Part(layer, "weight", along, segments)]
    if axis == 0 and getattr(layer, "bias", None) is not None:
        found.append(_Part(layer, "bias", 0, segments))
    return found


def _counts(module: Any) -> tuple[str, ...]:
    return ("heads", "kv_heads") if hasattr(module, "kv_heads") else ("heads",)


def _four_projections(name: str, module: Any) -> _Attention | None:
    """Four projections in one module: Llama's, CLIP's, Whisper's."""
    out = getattr(module, "o_proj", None) or getattr(module, "out_proj", None)
    layers = [getattr(module, each, None) for each in ("q_proj", "k_proj", "v_proj")]
    if out is None or not all(isinstance(each, wf.nn.Linear) for each in layers):
        return None
    into = [part for layer in layers for part in _linear_parts(layer, 0)]
    values = _linear_parts(layers[2], 0)[0]
    return _Attention(
        name, module, _counts(module), tuple(into), (values, 0), _linear_parts(out, 1)[0]
    )


def _joint_projection(name: str, module: Any) -> _Attention | None:
    """Queries, keys and values of one product: GPT's."""
    joint, out = getattr(module, "c_attn", None), getattr(module, "c_proj", None)
    if joint is None or out is None:
        return None
    into = _linear_parts(joint, 0, parts=3)
    return _Attention(name, module, ("heads",), tuple(into), (into[0], 2), _linear_parts(out, 1)[0])


def _with_output_beside(
    name: str, module: Any, modules: Mapping[str, wf.nn.Module]
) -> _Attention | None:
    """Three projections whose output is in the module around them: BERT's, ViT's."""
    layers = [getattr(module, each, None) for each in ("query", "key", "value")]
    out = modules.get(f"{name.rpartition('.')[0]}.output.dense".lstrip("."))
    if out is None or not all(isinstance(each, wf.nn.Linear) for each in layers):
        return None
    into = [part for layer in layers for part in _linear_parts(layer, 0)]
    values = _linear_parts(layers[2], 0)[0]
    return _Attention(name, module, ("heads",), tuple(into), (values, 0), _linear_parts(out, 1)[0])


def _multihead_parts(name: str, module: Any) -> _Attention:
    """`nn.MultiheadAttention`, with one weight for all three projections or with three."""
    segments = tuple(module.projected_widths)
    into: list[_Part] = []
    if module.in_proj_weight is not None:
        joint = _Part(module, "in_proj_weight", 0, segments)
        into, values = [joint], (joint, 2)
    else:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        into = [_Part(module, n, 0, (width,)) for n, width in zip(names, segments, strict=True)]
        values = (into[2], 0)
    if module.in_proj_bias is not None:
        into.append(_Part(module, "in_proj_bias", 0, segments))
    out = _linear_parts(module.out_proj, 1)[0]
    return _Attention(name, module, ("num_heads", "num_kv_heads"), tuple(into), values, out)
