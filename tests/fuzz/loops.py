"""The family of loops and choices, with functions that are used more than once."""

from __future__ import annotations

from tests.fuzz.draw import Draw, Value

BODIES = [
    "wf.sin({q})*{q}",
    "{q}*2-0.5",
    "wf.tanh({q}+{c})",
    "{q}*{q}*0.5",
    "wf.relu({q})+{q}",
    "wf.where({q}>0,{q},{q}*0.1)",
    "wf.exp(-{q}*{q})",
    "wf.flip({q})*{c}",
    "{q}-wf.mean({q})",
    "wf.softmax({q})",
    "wf.cumulative_sum({q})",
    "{q}/(1+wf.abs({q}))",
    "wf.roll({q},1)",
    "wf.cos({q})",
    "wf.maximum({q},{c})",
    "wf.sigmoid({q})*{c}",
]


def _body(draw: Draw, v: Value, depth: int = 0) -> tuple[str, tuple[str, ...]]:
    """A function that keeps the shape of its argument: an old one, one like it, or a new one."""
    if draw.bodies and draw.chance(0.55):
        name = draw.one_of(sorted(draw.bodies))
        return name, draw.bodies[name]
    draw.counter += 1
    name = f"g{draw.counter}"
    if draw.bodies and draw.chance(0.3):
        old = draw.one_of(sorted(draw.bodies))
        lines = tuple(line.replace(f"{old}(", f"{name}(") for line in draw.bodies[old])
    else:
        captured = [
            x.name for x in draw.values if x.kind == "f" and x.ndim == 0 and x.dtype == v.dtype
        ]
        constant = draw.one_of(captured) if captured and draw.chance(0.6) else "0.75"
        count = int(draw.rng.integers(1, 4))
        made = [
            f"    q = {_spaced(draw.one_of(BODIES)).format(q='q', c=constant)}"
            for _ in range(count)
        ]
        if depth == 0 and draw.chance(0.15):
            made.append("    q = wf.fori_loop(0, 2, lambda i, z: wf.sin(z) * z, q)")
        lines = (f"def {name}(q):", *made, "    return q")
    draw.bodies[name] = lines
    return name, lines


def _spaced(text: str) -> str:
    for mark in "*-+>/":
        text = text.replace(mark, f" {mark} ")
    return text.replace(",", ", ").replace("( - ", "(-").replace("=  ", "= ")


COUNTS = (2, 3, 7, 20, 50, 50)
"""How often a function is applied, one call after the other."""
MOVES = (
    "wf.flip({q})",
    "wf.roll({q}, 1, axis=-1)",
    "wf.pad({q}, [(0, 0)] * ({q}.ndim - 1) + [(1, 0)])[..., :-1]",
    "wf.flip(wf.pad({q}, [(0, 0)] * ({q}.ndim - 1) + [(2, 0)])[..., 1:-1])",
    "wf.concat([{q}[..., 1:], {q}[..., :1]], axis=-1)",
)
"""What moves elements and keeps the shape."""


def repeat(draw: Draw) -> str:
    """A function applied many times, as the layers of a deep model are: nothing but expressions."""
    v = draw.value("f", 1, 3, where=lambda v: 0 < v.size <= 4000)
    options = MOVES if draw.chance(0.5) else [_spaced(each) for each in BODIES]
    body = draw.one_of(options).format(q="q", c="0.75")
    if draw.chance(0.3):
        body = draw.one_of(MOVES).replace("{q}", f"({body})")
    return f"repeated(lambda q: {body}, {v.name}, {draw.one_of(COUNTS)})"


def control(draw: Draw) -> tuple[tuple[str, ...], str]:
    """A loop or a choice: the functions it calls, and the expression."""
    v = draw.value("f", 0, 3, where=lambda v: v.size <= 4000)
    g, lines = _body(draw, v)
    h, more = _body(draw, v)
    options = [
        *["wf.cond(wf.sum({v}) > 0, {g}, {h}, {v})"] * 2,
        *["wf.switch((wf.sum({v}) > 0).astype(wf.int32), [{g}, {h}], {v})"] * 2,
        "wf.fori_loop(0, 3, lambda i, z: {g}(z), {v})",
        "{g}({h}({v}))",
        "wf.checkpoint({g})({v})",
        "wf.jit({g})({v})",
        "doubled({g}({v}))",
        "held({g}, {v}) * {v}",
        "held(lambda z: wf.fori_loop(0, 2, lambda i, y: {g}(y), z), {v}) - {h}({v})",
        "wf.jit(lambda z: held({g}, z) * z)({v})",
        "wf.while_loop(lambda z: wf.any(wf.abs(z) > 0.3), lambda z: wf.sin(z) * 0.5, {v})",
        "wf.while_loop(lambda z: wf.sum(z * z) > 0.5, lambda z: z * 0.5, {v}, max_steps=8)",
        "wf.while_loop(lambda z: wf.any(wf.abs(z) > 0.3), lambda z: {g}(z) * 0.25, {v}, "
        "max_steps=4)",
    ]
    if v.ndim and v.shape[0] <= 70:
        options += [
            "wf.map({g}, {v})",
            "wf.map({g}, wf.map({g}, {v}))",
            "wf.map({g}, wf.map({h}, {v}))",
            "wf.scan(lambda c, q: ({g}(c + q), c * q), {v}[0], {v})[1]",
            "wf.scan(lambda c, q: ({g}(c) * 0.5 + q, {h}(q)), {v}[0] * 0, {v})[0]",
            "wf.scan(lambda c, q: (c * 0.5 + {g}(q), c), {v}[0], {v}, reverse=True)[1]",
            "wf.vmap({g})({v})",
            "wf.scan(lambda c, q: ({g}(c), c), {v}[0], length=3)[1]",
            "wf.scan(lambda c, q: ({g}(c * 0.5 + q), c), {v}[0], "
            "wf.scan(lambda c, q: ({g}(c * 0.5 + q), c), {v}[0], {v})[1])[0]",
        ] * 2
    if v.ndim > 1 and v.shape[0] <= 20 and v.shape[1] <= 20:
        options += [
            "wf.map(lambda r: wf.map({g}, r), {v})",
            "wf.map(lambda r: wf.scan(lambda c, q: ({g}(c + q), q), r[0], r)[1], {v})",
        ]
    text = draw.one_of(options)
    used = [*(lines if "{g}" in text else ()), *(more if "{h}" in text and h != g else ())]
    return tuple(used), text.format(v=v.name, g=g, h=h)


def watch(draw: Draw) -> str:
    """A print inside of what is done to each row: called back, once for all rows."""
    v = draw.value("f", 1, 3, where=lambda v: 0 < v.size <= 400)
    return f'wf.vmap(lambda row: (wf.debug.print("{{}}", wf.max(row)), row * 2)[1])({v.name})'
