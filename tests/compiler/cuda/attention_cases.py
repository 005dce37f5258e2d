"""Attention, cross entropy and sorts on a card, real or in the host's memory, beside the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.compiler.cuda.device_cases import compare, numbers

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA

Array = np.ndarray[Any, Any]


def launch_names(f: Callable[..., Any], *arrays: Array) -> list[str]:
    """The names of a program's launches on a card."""
    plan = plan_program(wf.ir.trace(f, *map(wf.asarray, arrays)), CUDA)
    return [launch.name for launch in plan.every_launch()]


# --- attention -----------------------------------------------------------------------------------


def _seen(queries: int, keys: int) -> wf.Tensor:
    """A mask that hides keys in no order, and all keys from query 1."""
    i, j = wf.arange(queries)[:, None], wf.arange(keys)
    return ((i * 7 + j * 5) % 3 != 0) & (i != 1)


def _bias(queries: int, keys: int) -> wf.Tensor:
    """Numbers to be added, -inf and the lowest float32 among them; those of query 1 are lowest."""
    i, j = wf.arange(queries)[:, None], wf.arange(keys)
    lowest = float(np.finfo(np.float32).min)
    numbers = wf.sin((i * 3 + j).astype("float32"))
    numbers = wf.where((i + j) % 5 == 2, -np.inf, numbers)
    return wf.where((i == 1) | ((i + j) % 5 == 1), lowest, numbers)


def attend(
    dtype: str = "bfloat16", mask: Callable[..., wf.Tensor] | None = None, **options: Any
) -> Callable[[wf.Tensor, wf.Tensor], wf.Tensor]:
    """Attention of queries, [batch, heads, time, head], to others, in 16 bits."""

    def f(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
        short, keys = q.astype(dtype), k.astype(dtype)
        given = None if mask is None else mask(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        drawn = {"key": wf.random.key(5)} if "dropout" in options else {}
        out = wf.scaled_dot_product_attention(short, keys, keys + 1, given, **options, **drawn)
        return out.astype("float32")

    return f


def gradients(f: Callable[[wf.Tensor, wf.Tensor], wf.Tensor]) -> Callable[..., Any]:
    """The gradients of attention by both inputs, for a cotangent that varies."""

    def loss(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
        return (f(q, k) * wf.sin(q * 9)).sum()

    return wf.grad(loss, argnums=(0, 1))


def _padding(batch: int, heads: int, queries: int, keys: int) -> wf.Tensor:
    """Lengths: the keys of each batch up to one, [batch, 1, 1, keys]."""
    lengths = (wf.arange(batch) * 3 + keys // 2)[:, None, None, None]
    return wf.arange(keys) < lengths


def _each_head(batch: int, heads: int, queries: int, keys: int) -> wf.Tensor:
    slopes = wf.arange(heads, dtype="float32")[:, None, None]
    distance = wf.arange(queries)[:, None] - wf.arange(keys)
    return slopes * distance.astype("float32") * 0.1


Shape = tuple[int, ...]
ATTENTIONS: dict[str, tuple[Callable[..., Any], Shape, Shape]] = {
    "a mask": (attend(mask=lambda b, h, q, k: _seen(q, k)), (2, 2, 21, 64), (2, 2, 38, 64)),
    "a mask of an odd number of keys, causal": (
        attend(mask=lambda b, h, q, k: _seen(q, k), causal=True), (1, 2, 21, 64), (1, 2, 37, 64),
    ),
    "lengths": (attend(mask=_padding), (3, 2, 9, 64), (3, 1, 20, 64)),
    "numbers that are added": (
        attend(mask=lambda b, h, q, k: _bias(q, k)), (1, 2, 21, 64), (1, 2, 38, 64),
    ),
    "numbers of each head, causal": (
        attend("float16", _each_head, causal=True, aligned="end"), (1, 4, 7, 64), (1, 2, 19, 64),
    ),
    "heads of 32": (attend(causal=True), (1, 2, 21, 32), (1, 2, 21, 32)),
    "heads of 96 with a mask": (
        attend(mask=lambda b, h, q, k: _seen(q, k)), (1, 2, 21, 96), (1, 2, 30, 96),
    ),
    "heads of 128 with numbers": (
        attend("float16", lambda b, h, q, k: _bias(q, k)[:, :]), (1, 1, 21, 128), (1, 1, 30, 128),
    ),
    "heads of 200": (attend(causal=True), (1, 2, 21, 200), (1, 2, 30, 200)),
    "heads of 256 with a mask": (
        attend(mask=lambda b, h, q, k: _seen(q, k)), (1, 2, 9, 256), (1, 1, 30, 256),
    ),
    "dropout": (attend(dropout=0.4), (2, 2, 21, 64), (2, 2, 40, 64)),
    "dropout, causal, with a mask, heads of 128": (
        attend("float16", lambda b, h, q, k: _seen(q, k), causal=True, dropout=0.4),
        (1, 2, 21, 128), (1, 2, 36, 128),
    ),
    "one query and a cache": (
        attend(mask=lambda b, h, q, k: wf.arange(k) < 17), (2, 4, 1, 64), (2, 2, 40, 64),
    ),
}  # fmt: skip
"""Programs and the shapes of queries and of keys, all of which have a kernel."""
COMPOSED: dict[str, tuple[Callable[..., Any], Shape, Shape]] = {
    "more queries than keys, aligned at the end": (
        attend(causal=True, aligned="end"), (1, 2, 12, 64), (1, 2, 7, 64),
    ),
    "heads of 20": (attend(causal=True), (1, 2, 9, 20), (1, 2, 9, 20)),
    "dropout of 7 keys": (attend(dropout=0.4), (1, 2, 9, 64), (1, 2, 7, 64)),
    "a scale below zero": (attend(scale=-0.3), (1, 2, 9, 64), (1, 2, 7, 64)),
    "no scale": (attend(scale=0.0), (1, 2, 9, 64), (1, 2, 7, 64)),
    "wide floats": (
        lambda q, k: wf.scaled_dot_product_attention(q, k, k, _seen(9, 7)), (1, 2, 9, 64),
        (1, 2, 7, 64),
    ),
}  # fmt: skip
"""Programs that are made of products."""


def check_attention(name: str) -> None:
    """Attention is the CPU's, with the launches that it is for."""
    f, q, k = {**ATTENTIONS, **COMPOSED}[name]
    arrays = numbers(*q), numbers(*k, 1)[..., 0]
    names = launch_names(f, *arrays)
    assert ("attention" in names) == (name in ATTENTIONS), names
    compare(f, *arrays, limit=3e-2)


def check_attention_gradient(name: str) -> None:
    """The gradients of attention are the CPU's."""
    f, q, k = ATTENTIONS[name]
    arrays = numbers(*q), numbers(*k, 1)[..., 0]
    names = launch_names(gradients(f), *arrays)
    assert ("attention_gradient" in names) == (q[-1] <= 128), names
    compare(gradients(f), *arrays, limit=5e-2)


# --- cross entropy -------------------------------------------------------------------------------


def _labels(rows: int, columns: int) -> wf.Tensor:
    """Labels over all columns, the last one among them; one row is ignored."""
    places = (wf.arange(rows) * 997 + columns - 1) % columns
    return wf.where(wf.arange(rows) == rows // 2, -100, places)


def entropy(
    dtype: str, *, weighted: bool = False, **options: Any
) -> Callable[[wf.Tensor], tuple[wf.Tensor, wf.Tensor]]:
    """A cross entropy of logits in 16 bits, and its gradient, about 1 where logits are equal."""

    def loss(x: wf.Tensor) -> wf.Tensor:
        columns = x.shape[1]
        weight = 1 + wf.arange(columns, dtype="float32") % 3 if weighted else None
        logits = x.astype(dtype).astype("float32")
        labels = _labels(x.shape[0], columns)
        return wf.nn.functional.cross_entropy(logits, labels, weight, **options)

    def loss_and_gradient(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        value, gradient = wf.value_and_grad(loss)(x)
        return value, gradient * x.shape[1]

    return loss_and_gradient


ENTROPIES: dict[str, tuple[Callable[..., Any], tuple[int, int], bool]] = {
    "mean": (entropy("bfloat16"), (2, 4096), True),
    "sum of rows of any length": (entropy("float16", reduction="sum"), (3, 5000), True),
    "weights of classes": (entropy("bfloat16", weighted=True), (5, 4104), True),
    "a row at a time": (entropy("bfloat16", reduction="sum"), (2, 60_000), True),
    "smoothing": (entropy("bfloat16", label_smoothing=0.1), (5, 4096), False),
    "few columns": (entropy("bfloat16"), (5, 1024), False),
    "rows of no whole 16 bytes": (entropy("bfloat16"), (3, 4097), False),
}  # fmt: skip
"""Programs, shapes, and whether the plan holds their rows."""


def check_entropy_plan(name: str) -> None:
    """The plan reads logits once where rows are held."""
    f, shape, is_held = ENTROPIES[name]
    names = launch_names(f, numbers(*shape))
    assert ("softmax gradient" in names) == is_held, names


def check_entropy(name: str) -> None:
    """Loss and gradient are the CPU's."""
    f, shape, _ = ENTROPIES[name]
    compare(f, numbers(*shape) * 3, limit=1e-2)
