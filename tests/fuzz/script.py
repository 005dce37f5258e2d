"""What the scripts of random programs are made of besides steps. A script holds their source.

Each transform takes a function of tensors that returns a list, and returns another such function:
they can follow each other in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES

PARTS = (
    "numbers", "sampled", "doubled", "repeated", "held", "constant", "weights", "total",
    "gradients", "valued", "tangents", "batched", "rematerialised", "compiled", "trained",
    "studied",
)  # fmt: skip
"""The names below that scripts may need, in the order in which they stand there."""
Function = Callable[..., Any]


def numbers(dtype: str, shape: tuple[int, ...], seed: int, layout: str = "") -> Any:
    rng = np.random.default_rng(seed)
    kind = wf.zeros((), dtype=dtype).numpy().dtype
    x = rng.uniform(-1.5, 1.5, shape)
    if kind.kind == "c":
        x = x + 1j * rng.uniform(-1.5, 1.5, shape)
    if kind.kind in "iub":
        x = rng.integers({"i": -5, "u": 0, "b": 0}[kind.kind], 2 if kind.kind == "b" else 6, shape)
    if layout == "odd" and x.size:
        x.flat[:: 1 + x.size // 5] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])
    x = np.asarray(x).astype(kind)
    if layout == "turned":
        x = np.ascontiguousarray(x.T).T
    if layout == "reversed":
        x = x[::-1].copy()[::-1]
    if layout == "strided":
        x = np.repeat(x, 2, axis=-1)[..., ::2]
    if layout == "broadcast":
        x = np.broadcast_to(x[:1], shape)
    return wf.asarray(x)


def sampled(name: str, number: int, scale: Any) -> Any:
    sample = list(PRIMITIVES[name].samples())[number]
    operands = [wf.asarray(np.asarray(operand)) for operand in sample.operands]
    for place, x in enumerate(operands):
        if sample.derivative and x.dtype.is_inexact:
            operands[place] = x * (1 + 1e-3 * wf.tanh(wf.mean(scale))).astype(x.dtype)
            break
    else:
        never = wf.any(scale > float("inf"))  # so that the sample is no constant of the program
        operands[:1] = [wf.where(never, wf.zeros_like(x), x) for x in operands[:1]]
    return bind(PRIMITIVES[name], *operands, **sample.params)


def doubled(x: Any) -> Any:
    double = wf.custom_derivative(lambda x: x * 2)
    double.jvp(lambda primals, tangents: (primals[0] * 2, tangents[0] * 3))
    return double(x)


def repeated(f: Function, x: Any, count: int) -> Any:
    for _ in range(count):
        x = f(x)
    return x


def held(f: Function, x: Any) -> Any:
    with wf.no_grad():
        return f(x)


def constant(x: Any) -> Any:
    flat = np.linspace(-1.0, 1.0, int(np.prod([int(size) for size in x.shape])))
    return wf.asarray(flat).astype(x.dtype)


def weights(x: Any) -> Any:
    return wf.reshape(wf.sin(1.0 + wf.arange(x.size, dtype=wf.float64)), x.shape).astype(x.dtype)


def total(f: Function) -> Function:
    def loss(*xs: Any) -> Any:
        parts = []
        for y in f(*xs):
            if y.dtype.is_complex:
                parts += [(wf.real(y) * weights(wf.real(y))).sum(), wf.imag(y).sum()]
            elif y.dtype.is_inexact:
                parts += [(y * weights(y)).sum()]
        return sum((part.astype(wf.float64) for part in parts[1:]), parts[0].astype(wf.float64))

    return loss


def gradients(f: Function) -> Function:
    def g(*xs: Any) -> list[Any]:
        moved = tuple(i for i, x in enumerate(xs) if x.dtype.is_inexact)
        return list(wf.grad(total(f), argnums=moved)(*xs))

    return g


def valued(f: Function) -> Function:
    return lambda *xs: [*f(*xs), *gradients(f)(*xs)]


def tangents(f: Function) -> Function:
    def g(*xs: Any) -> list[Any]:
        moved = [i for i, x in enumerate(xs) if x.dtype.is_inexact]

        def part(*ys: Any) -> Any:
            rest = dict(zip(moved, ys, strict=True))
            return f(*[rest.get(i, x) for i, x in enumerate(xs)])

        primals = tuple(xs[i] for i in moved)
        ts = tuple(weights(wf.flip(x)) for x in primals)
        outs, pushed = wf.jvp(part, primals, ts)
        return [*outs, *[t for t in pushed if t.dtype.is_inexact]]

    return g


def batched(f: Function) -> Function:
    def g(*xs: Any) -> list[Any]:
        return list(wf.vmap(f)(*[wf.stack([x, wf.flip(x)]) for x in xs]))

    return g


def rematerialised(f: Function) -> Function:
    return wf.checkpoint(f)


def compiled(f: Function) -> Function:
    return wf.jit(f)


def trained(f: Function, way: Function, optimizer: str) -> Function:
    def g(*xs: Any) -> list[Any]:
        w = [wf.tensor(x, requires_grad=True) for x in xs if x.dtype.is_inexact]
        rest = [x for x in xs if not x.dtype.is_inexact]
        # a gradient that cancels is noise, which must not be made as large as any other
        smooth = {} if optimizer == "SGD" else {"eps": 0.1}
        rule = getattr(wf.optim, optimizer)(w, lr=0.01, **smooth)

        def back(*rest: Any) -> Any:
            floats, others = iter(w), iter(rest)
            given = [next(floats) if x.dtype.is_inexact else next(others) for x in xs]
            loss = total(f)(*given)
            loss.backward()
            return loss

        def step(*rest: Any) -> Any:
            rule.zero_grad()
            loss = back(*rest)
            rule.step()
            return loss

        def update() -> None:
            rule.step()
            rule.zero_grad()

        if optimizer == "SGD":  # the gradients of two calls are added up
            back, update = way(back), way(update)
            losses = [each for _ in range(3) for each in (back(*rest), back(*rest), update())]
        else:
            step = way(step)
            losses = [step(*rest) for _ in range(3)]
        return [*[loss.detach() for loss in losses if loss is not None], *[x.detach() for x in w]]

    return g


def studied(f: Function) -> Function:
    step = wf.jit(f)

    def g(*xs: Any) -> Any:
        assert str(step.explain(*xs))
        peak = step.memory(*xs).peak
        try:
            return wf.jit(f, memory=max(1, peak * 4 // 5))(*xs)
        except MemoryError:
            return step(*xs)

    return g
