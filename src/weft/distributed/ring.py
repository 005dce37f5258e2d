"""Ring attention: attention over a context that is split along a mesh axis.

Each process holds its part of the queries, keys and values along time. Keys and values travel once
around the ring of processes; each process keeps a running softmax of its queries over what has
passed (Liu, Zaharia, Abbeel: "Ring attention with blockwise transformers for near-infinite
context", 2023). So no process ever holds the whole context, or scores over it.

>>> import weft as wf
>>> q = wf.random.normal((2, 1, 4, 8), key=wf.random.key(0))  # two processes, 4 of 8 steps each
>>> f = lambda q: wf.distributed.ring_attention(q, q, q, "context")
>>> wf.vmap(f, axis_name="context")(q).shape
(2, 1, 4, 8)
"""

from __future__ import annotations

import math

import weft as wf
from weft.collectives import axis_index, axis_size, permute

__all__ = ["ring_attention"]


def ring_attention(
    q: wf.Tensor,
    k: wf.Tensor,
    v: wf.Tensor,
    mesh_axis: str,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> wf.Tensor:
    """Softmax attention of this process's queries over the keys and values of all processes.

    q, k and v are parts [..., time, head] of equal length, in the order of processes along the mesh
    axis. causal: a query sees keys up to its own place in the whole. scale: 1/√head by default.
    """
    if q.shape[-2] != k.shape[-2] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise wf.ShapeError(
            "ring_attention",
            "q, k and v are not parts of one length",
            expected="[..., time, head] with the same time for all, and the same head for q and k",
            got={"q": q, "k": k, "v": v},
            fix="split all of them along time: wf.distributed.take_shard(x, mesh_axis, axis=-2)",
        )
    count, time = axis_size(mesh_axis), q.shape[-2]
    scaled = q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    onward = [(rank, (rank + 1) % count) for rank in range(count)]
    place = axis_index(mesh_axis)
    queries = place * time + wf.arange(time)  # places in the whole
    highest = total = summed = None
    for step in range(count):
        scores = scaled @ wf.swapaxes(k, -1, -2)  # [..., time, time]
        if causal:
            keys = (place - step) % count * time + wf.arange(time)
            scores = wf.where(queries[:, None] >= keys[None, :], scores, -math.inf)
        top = wf.stop_gradient(wf.max(scores, axis=-1, keepdims=True))
        # the first block is the process's own, in which every query sees a key: top is finite
        highest_now = top if highest is None else wf.maximum(highest, top)
        weights = wf.exp(scores - highest_now)
        total_here, summed_here = wf.sum(weights, axis=-1, keepdims=True), weights @ v
        if highest is None:
            total, summed = total_here, summed_here
        else:
            faded = wf.exp(highest - highest_now)
            total, summed = total * faded + total_here, summed * faded + summed_here
        highest = highest_now
        if step < count - 1:
            k, v = permute(k, mesh_axis, pairs=onward), permute(v, mesh_axis, pairs=onward)
    assert summed is not None
    return summed / total
