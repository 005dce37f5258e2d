"""Products with what follows them, as programs: for a real card, or one in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.plan.launch import Launch
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA
from weft.ops.control import run

Array = np.ndarray[Any, Any]
LIMITS = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Errors beside the largest element: epilogues see sums that are not rounded to 16 bits."""


def fused_launches(f: Callable[..., Any], *kinds: Any) -> list[Launch]:
    """The products of a plan for a card that do more than multiply."""
    plan = plan_program(wf.ir.trace(f, *kinds), CUDA)
    return [launch for launch in plan.every_launch() if launch.computes is not None]


def check_on_card(
    f: Callable[..., Any],
    arrays: Sequence[Array],
    dtype: str,
    sized_like: Callable[..., Any] | None = None,
) -> list[Launch]:
    """A function gives on the card what its graph's references give; its fused products.

    `sized_like` gives numbers of the size of what is summed, where sums may cancel.
    """
    tensors = [wf.asarray(array).astype(dtype) for array in arrays]
    graph = wf.ir.trace(f, *tensors)
    given = [tensor.numpy() for tensor in tensors]
    wanted = run(graph, given)
    terms = wanted if sized_like is None else run(wf.ir.trace(sized_like, *tensors), given)
    compiled = wf.jit(f)
    for _ in range(3):  # the last of them as a graph
        found = wf.tree.leaves(compiled(*[tensor.to("cuda") for tensor in tensors]))
        for one, other, summed in zip(found, wanted, terms, strict=True):
            assert one.dtype.name == wf.asarray(other).dtype.name
            result, reference = one.numpy().astype(np.float64), other.astype(np.float64)
            size = np.abs(summed.astype(np.float64)).max(initial=0.0)
            np.testing.assert_allclose(result, reference, rtol=0, atol=LIMITS[dtype] * size + 1e-30)
    return fused_launches(f, *tensors)


def _layer(function: Callable[[wf.Tensor], wf.Tensor]) -> Callable[..., Any]:
    """A layer with its gradients: a product with bias and function, and both derivatives."""

    def loss(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
        return ((function(x @ w + b) @ v).astype("float32") ** 2).mean()

    return wf.value_and_grad(loss, argnums=(0, 1, 2, 3))


def _twice(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, v: wf.Tensor) -> Any:
    y = x @ w
    return y, wf.relu(y + b) @ v, wf.exp(y * 0.25)


LAYER = ((64, 16), (16, 24), (24,), (24, 8))
ODD = ((9, 7), (7, 5), (5,), (5, 3))
TALL = ((1024, 16), (16, 8), (8,), (8, 8))
STACK = ((2, 8, 16), (2, 16, 24), (24,), (2, 24, 8))
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "gelu": (_layer(wf.gelu), LAYER, 3),
    "gelu with sums of rows": (_layer(wf.gelu), TALL, 3),
    "gelu of odd sizes": (_layer(wf.gelu), ODD, 3),
    "gelu by tanh": (_layer(lambda x: wf.gelu(x, approximate="tanh")), LAYER, 3),
    "relu": (_layer(wf.relu), LAYER, 3),
    "silu": (_layer(wf.silu), LAYER, 3),
    "tanh": (_layer(wf.tanh), LAYER, 3),
    "a stack of layers": (
        lambda x, w, b, v: wf.sigmoid(x @ w + b) @ v, STACK, 1,
    ),
    "a product that others read": (_twice, LAYER, 1),
    "a residual": (lambda x, w, b, v: ((x @ w + b) @ v + x[:, :8]) * 2, LAYER, 1),
    "what every row has its own of": (
        lambda x, w, b, v: (x @ w) * x[:, :1].astype("float32").sum(axis=1, keepdims=True), LAYER,
        1,
    ),
    "a number in memory": (lambda x, w, b, v: (x @ w) * b.astype("float32").sum(), LAYER, 1),
    "the same tensor twice": (lambda x, w, b, v: wf.exp(x @ w * 0.1) + b * b, LAYER, 1),
    "a comparison": (lambda x, w, b, v: wf.where(x @ w > b, x @ w, b * 0.5), LAYER, 1),
    "a result that waits for the product itself": (
        lambda x, w, b, v: (lambda y: y / y.astype("float32").sum(axis=1, keepdims=True))(x @ w),
        LAYER, 0,
    ),
    "integers": (lambda x, w, b, v: (x @ w + b).astype("int32"), LAYER, 0),
    "nothing summed": (lambda x, w, b, v: (x[:, :0] @ w[:0] + b) * 2, LAYER, 0),
    "no rows": (lambda x, w, b, v: wf.relu(x[:0] @ w + b), LAYER, 1),
}  # fmt: skip
"""Functions of x, w, b and v, their shapes, and how many products are fused."""


def arrays_of(shapes: Sequence[Sequence[int]], seed: int = 0) -> list[Array]:
    """Random numbers of these shapes."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=shape).astype(np.float32) * 0.5 for shape in shapes]


def check_epilogue(name: str, dtype: str) -> None:
    """A program of a name gives what its references give, with as many fused products."""
    f, shapes, count = PROGRAMS[name]
    assert len(check_on_card(f, arrays_of(shapes), dtype)) == count


_UNARY: list[Callable[[wf.Tensor], wf.Tensor]] = [
    wf.relu, wf.gelu, wf.tanh, wf.sigmoid, wf.abs, lambda x: x * 0.5, lambda x: -x, wf.square,
    lambda x: wf.exp(-wf.abs(x)), lambda x: wf.clip(x, -1, 1),
    lambda x: wf.where(x > 0, x, x * 0.1),
]  # fmt: skip


def check_random(seed: int) -> int:
    """A random chain behind a product of random form; how many products were fused."""
    generator = np.random.default_rng(seed)
    dtype = str(generator.choice(["float32", "bfloat16", "float16"]))
    m, n, k = (int(generator.choice([1, 5, 8, 24, 64, 72])) for _ in range(3))
    left, right = (bool(generator.integers(2)) for _ in range(2))
    shapes = [(k, m) if left else (m, k), (n, k) if right else (k, n), (n,), (m, n), (m, 1)]
    chosen = generator.integers(0, len(_UNARY) + 4, size=int(generator.integers(1, 6))).tolist()
    keeps = bool(generator.integers(2))

    def chain(
        a: wf.Tensor, b: wf.Tensor, c: wf.Tensor, d: wf.Tensor, e: wf.Tensor
    ) -> tuple[wf.Tensor, wf.Tensor]:
        x = (a.T if left else a) @ (b.T if right else b)
        kept = x
        for step, number in enumerate(chosen):
            if number >= len(_UNARY):
                other = (c, d, e, 0.75)[number - len(_UNARY)]
                x = x + other if step % 2 else x * other
            else:
                x = _UNARY[number](x)
            kept = x if step == 0 else kept
        return kept, x

    def f(*given: wf.Tensor) -> Any:
        kept, x = chain(*given)
        return (kept, x @ given[3].T) if keeps else x

    def sizes(*given: wf.Tensor) -> Any:
        kept, x = chain(*given)
        return (kept, wf.abs(x) @ wf.abs(given[3]).T) if keeps else x

    return len(check_on_card(f, arrays_of(shapes, seed), dtype, sizes))
