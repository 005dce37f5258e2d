"""The optimisers' formulas in NumPy, float64, written apart from the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Step = Callable[[Array, Array], Array]


def sgd(
    lr: float, momentum: float = 0, dampening: float = 0, decay: float = 0, nesterov: bool = False
) -> Step:
    kept: list[Array] = []

    def step(p: Array, g: Array) -> Array:
        g = g + decay * p
        if momentum:
            buffer = momentum * kept[0] + (1 - dampening) * g if kept else g
            kept[:] = [buffer]
            g = g + momentum * buffer if nesterov else buffer
        return p - lr * g

    return step


def adam(
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    decay: float = 0,
    coupled: bool = True,
    amsgrad: bool = False,
) -> Step:
    m: Any = 0.0
    v: Any = 0.0
    top: Any = 0.0
    t = 0

    def step(p: Array, g: Array) -> Array:
        nonlocal m, v, top, t
        t += 1
        if coupled:
            g = g + decay * p
        else:
            p = p * (1 - lr * decay)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        top = np.maximum(top, v) if amsgrad else v
        return p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(top / (1 - betas[1] ** t)) + eps)

    return step


def rmsprop(
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0,
    centered: bool = False,
    decay: float = 0,
) -> Step:
    v: Any = 0.0
    mean: Any = 0.0
    buffer: Any = 0.0

    def step(p: Array, g: Array) -> Array:
        nonlocal v, mean, buffer
        g = g + decay * p
        v = alpha * v + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        spread = v - mean**2 if centered else v
        buffer = momentum * buffer + g / (np.sqrt(spread) + eps)
        return p - lr * buffer

    return step


def adagrad(
    lr: float, lr_decay: float = 0, initial: float = 0, eps: float = 1e-10, decay: float = 0
) -> Step:
    total: Any = initial
    t = 0

    def step(p: Array, g: Array) -> Array:
        nonlocal total, t
        g = g + decay * p
        total = total + g**2
        rate = lr / (1 + t * lr_decay)
        t += 1
        return p - rate * g / (np.sqrt(total) + eps)

    return step


def adadelta(lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, decay: float = 0) -> Step:
    v: Any = 0.0
    u: Any = 0.0

    def step(p: Array, g: Array) -> Array:
        nonlocal v, u
        g = g + decay * p
        v = rho * v + (1 - rho) * g**2
        d = np.sqrt(u + eps) / np.sqrt(v + eps) * g
        u = rho * u + (1 - rho) * d**2
        return p - lr * d

    return step


def lamb(
    lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, decay: float = 0
) -> Step:
    m: Any = 0.0
    v: Any = 0.0
    t = 0

    def step(p: Array, g: Array) -> Array:
        nonlocal m, v, t
        t += 1
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        r = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + decay * p
        trust = np.linalg.norm(p) / np.linalg.norm(r) if np.any(p) and np.any(r) else 1.0
        return p - lr * trust * r

    return step


def lion(lr: float, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0) -> Step:
    m: Any = 0.0

    def step(p: Array, g: Array) -> Array:
        nonlocal m
        direction = np.sign(betas[0] * m + (1 - betas[0]) * g)
        m = betas[1] * m + (1 - betas[1]) * g
        return p * (1 - lr * decay) - lr * direction

    return step


def muon(lr: float, momentum: float = 0.95, decay: float = 0.1, nesterov: bool = True) -> Step:
    b: Any = 0.0

    def step(p: Array, g: Array) -> Array:
        nonlocal b
        b = momentum * b + (1 - momentum) * g
        x = momentum * b + (1 - momentum) * g if nesterov else b
        x = x / np.linalg.norm(x)
        for _ in range(5):
            x = 3.4445 * x - 4.775 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
        scale = np.sqrt(max(1.0, p.shape[0] / p.shape[1]))
        return p * (1 - lr * decay) - lr * scale * x

    return step


def nadam(lr: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0) -> Step:
    m: Any = 0.0
    v: Any = 0.0
    product, t = 1.0, 0

    def step(p: Array, g: Array) -> Array:
        nonlocal m, v, product, t
        t += 1
        g = g + decay * p
        now, after = (betas[0] * (1 - 0.5 * 0.96 ** (k * 4e-3)) for k in (t, t + 1))
        product *= now
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        spread = np.sqrt(v / (1 - betas[1] ** t)) + 1e-8
        p = p - lr * (1 - now) / (1 - product) * g / spread
        return p - lr * after / (1 - product * after) * m / spread

    return step


def radam(lr: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0) -> Step:
    m: Any = 0.0
    v: Any = 0.0
    t = 0

    def step(p: Array, g: Array) -> Array:
        nonlocal m, v, t
        t += 1
        g = g + decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        limit = 2 / (1 - betas[1]) - 1
        length = limit - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        mean = m / (1 - betas[0] ** t)
        if length <= 5:
            return p - lr * mean
        factor = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
        return p - lr * mean * np.sqrt(factor * (1 - betas[1] ** t)) / (np.sqrt(v) + 1e-8)

    return step


def adamax(lr: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0) -> Step:
    m: Any = 0.0
    u: Any = 0.0
    t = 0

    def step(p: Array, g: Array) -> Array:
        nonlocal m, u, t
        t += 1
        g = g + decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        u = np.maximum(betas[1] * u, np.abs(g) + 1e-8)
        return p - lr / (1 - betas[0] ** t) * m / u

    return step


def adafactor(lr: float, decay: float = 0) -> Step:
    rows: Any = 0.0
    columns: Any = 0.0
    v: Any = 0.0
    t = 0
    eps = np.finfo(np.float32).eps

    def rms(x: Array) -> Any:
        return np.sqrt(np.mean(x**2))

    def step(p: Array, g: Array) -> Array:
        nonlocal rows, columns, v, t
        t += 1
        share = t**-0.8
        rate = max(1e-3, rms(p)) * min(lr, 1 / np.sqrt(t))
        p = p * (1 - lr * decay)
        if g.ndim > 1:
            rows = rows + share * (np.mean(g**2, axis=-1, keepdims=True) - rows)
            columns = columns + share * (np.mean(g**2, axis=-2, keepdims=True) - columns)
            variance = rows * columns / np.maximum(np.mean(rows, axis=-2, keepdims=True), eps)
        else:
            v = v + share * (g**2 - v)
            variance = v
        update = g / np.sqrt(np.maximum(variance, eps * eps))
        return p - rate / max(1.0, rms(update)) * update

    return step


def rprop(lr: float) -> Step:
    size: Any = lr
    before: Any = 0.0

    def step(p: Array, g: Array) -> Array:
        nonlocal size, before
        agreement = np.sign(g * before)
        size = np.clip(size * np.choose(agreement.astype(int) + 1, [0.5, 1.0, 1.2]), 1e-6, 50)
        before = np.where(agreement < 0, 0.0, g)
        return p - np.sign(before) * size

    return step


def asgd(lr: float, lambd: float = 1e-4, alpha: float = 0.75, decay: float = 0) -> Step:
    t = 0

    def step(p: Array, g: Array) -> Array:
        nonlocal t
        rate = lr / (1 + lambd * lr * t) ** alpha
        t += 1
        return p * (1 - lambd * rate) - rate * (g + decay * p)

    return step
