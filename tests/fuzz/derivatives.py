"""The family of derivatives inside a program: of functions of a value, weighted by a constant."""

from __future__ import annotations

from tests.fuzz.draw import Draw
from tests.fuzz.elements import groups

FUNCTIONS = (
    "wf.tanh(q) * q",
    "wf.softmax(q, axis=-1)",
    "q * wf.mean(q)",
    "wf.cumulative_sum(q, axis=-1)",
    "F.layer_norm(q, q.shape[-1], eps=0.1)",
    "wf.where(q > 0, q, q * q)",
    "held(wf.tanh, q) * q",
    "held(lambda z: z * z, wf.sin(q)) - q",
)
GROUPED = (
    "F.group_norm(q, {g}, eps=0.1)",
    "F.group_norm(q * wf.sigmoid(q), {g}, eps=0.1)",
    "F.group_norm(q, {g}, eps=0.1) * wf.sigmoid(q)",
)
"""Functions of channels, which are the second axis.

Norms are of a large eps: two numbers that are normed are 1 and -1 however they move, and what is
left of their derivative is the rounding of eps.
"""
DERIVATIVES = (
    "wf.grad(lambda q: ({f} * {w}).sum())({v})",
    "wf.grad(lambda q: ({f} * {w}).sum())({v})",
    "wf.value_and_grad(lambda q: wf.mean({f} * {w}))({v})[1]",
    "wf.jvp(lambda q: {f}, ({v},), ({w},))[1]",
    "wf.vjp(lambda q: {f}, {v})[1]({w})[0]",
    "wf.grad(lambda q: wf.tanh({f} * {v}).sum())(wf.reshape(constant({v}), {v}.shape))",
)
"""The last one at a constant: a batch or a tangent outside knows the program's values alone."""


def derive(draw: Draw) -> str:
    """A gradient or a tangent as a value of the program, of which more is made."""
    v = draw.value("f", 1, 4, where=lambda v: v.size > 0)
    functions = GROUPED if v.ndim > 1 and draw.chance(0.5) else FUNCTIONS
    others = [x.name for x in draw.values if (x.shape, x.dtype) == (v.shape, v.dtype)]
    weights = f"wf.reshape(constant({v.name}), {v.name}.shape)"
    if draw.chance(0.3):
        weights = draw.one_of(others)
    f = draw.one_of(functions).format(g=groups(draw, v))
    return draw.one_of(DERIVATIVES).format(f=f, w=weights, v=v.name)
