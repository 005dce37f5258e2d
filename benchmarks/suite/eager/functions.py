"""Single functions beside PyTorch's: forward, and forward with backward.

A function is written once where both libraries spell it alike. Its first operand has about as many
elements as the size says (the result, for an embedding). Backward starts from a random cotangent,
since one of ones would give the gradient zero to softmax and norms.
"""
# ruff: noqa: N803 - F is what users call the functional module

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from suite import with_torch, with_weft
from suite.task import SEED, Arrays, Step, Task, Workload, normal

SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 19, 1 << 22)
AIM, AIMED_FROM = 1.1, 1 << 16
"""Weft's time at most as a multiple of PyTorch's, and from how many elements up."""
WIDTH = 256
"""Of rows: what softmax, norms and layers see as their last axis."""
IMAGE = 28
TABLE = (1000, 64)
DROPPED = 0.1
SAMPLED = 61

Spelling = Callable[[Any, Any], Callable[..., Any]]
"""The function of (library, library.nn.functional)."""


@dataclass(frozen=True)
class Function:
    """Operands for a count of elements, and how both libraries spell the function of them.

    Floating operands have gradients, but for running statistics.
    """

    operands: Callable[[int, np.random.Generator], Arrays]
    weft: Spelling
    torch: Spelling | None = None
    sizes: tuple[int, ...] = ()
    """More counts than those of all functions."""
    tolerance: float = 1e-4
    digest: Callable[[Sequence[np.ndarray]], list[float]] | None = None


def one(count: int, rng: np.random.Generator) -> Arrays:
    """A vector."""
    return {"x": normal(rng, count)}


def two(count: int, rng: np.random.Generator) -> Arrays:
    """Two vectors."""
    return {"x": normal(rng, count), "y": normal(rng, count)}


def chosen(count: int, rng: np.random.Generator) -> Arrays:
    """A condition and two vectors."""
    return {"condition": rng.random(count) < 0.5, **two(count, rng)}


def rows(count: int, rng: np.random.Generator) -> Arrays:
    """Rows of one width."""
    return {"x": normal(rng, count // WIDTH, WIDTH)}


def halves(count: int, rng: np.random.Generator) -> Arrays:
    """Rows in two parts."""
    shape = (count // WIDTH, WIDTH // 2)
    return {"x": normal(rng, *shape), "y": normal(rng, *shape)}


def scaled_rows(count: int, rng: np.random.Generator) -> Arrays:
    """Rows with the scale and shift of a norm."""
    return {**rows(count, rng), "weight": normal(rng, WIDTH), "bias": normal(rng, WIDTH)}


def labelled_rows(count: int, rng: np.random.Generator) -> Arrays:
    """Logits and classes."""
    return {**rows(count, rng), "classes": rng.integers(0, WIDTH, count // WIDTH)}


def layer(count: int, rng: np.random.Generator) -> Arrays:
    """Rows, and the weight and bias of a layer that keeps the width."""
    return {**rows(count, rng), "weight": _weight(rng, WIDTH, WIDTH), "bias": normal(rng, WIDTH)}


def factors(count: int, rng: np.random.Generator) -> Arrays:
    """Square matrices up to 512; beyond, the first one grows in height."""
    width = min(math.isqrt(count), 512)
    return {"x": normal(rng, count // width, width), "y": _weight(rng, width, width)}


def image(count: int, rng: np.random.Generator) -> Arrays:
    """A batch of images of 32 channels and 28×28 positions; fewer of both if it is small."""
    channels = 32 if count >= 1 << 14 else 8
    side = min(IMAGE, math.isqrt(count // channels))
    batch = max(1, count // (channels * side**2))
    return {"x": normal(rng, batch, channels, side, side)}


def normed_image(count: int, rng: np.random.Generator) -> Arrays:
    """Images, running statistics, and the scale and shift of a norm."""
    images = image(count, rng)
    channels = images["x"].shape[1]
    running = {"running_mean": np.zeros(channels, np.float32)}
    running["running_var"] = np.ones(channels, np.float32)
    return {**images, **running, "weight": normal(rng, channels), "bias": normal(rng, channels)}


def filtered_image(count: int, rng: np.random.Generator) -> Arrays:
    """Images, 3×3 filters that keep the channels, and a bias."""
    images = image(count, rng)
    channels = images["x"].shape[1]
    weight = _weight(rng, channels, channels, 3, 3)
    return {**images, "weight": weight, "bias": normal(rng, channels)}


def lookup(count: int, rng: np.random.Generator) -> Arrays:
    """Places in a table, and the table."""
    return {"index": rng.integers(0, TABLE[0], count // TABLE[1]), "table": normal(rng, *TABLE)}


def heads(count: int, rng: np.random.Generator) -> Arrays:
    """Queries, keys and values: [batch, heads, time, 32], at most 8 heads and 256 times."""
    time = 256 if count >= 1 << 16 else 64 if count >= 1 << 14 else 32
    places = count // (32 * time)
    number = min(8, places)
    shape = (places // number, number, time, 32)
    return {name: normal(rng, *shape) for name in "qkv"}


def matrix(count: int, rng: np.random.Generator) -> Arrays:
    """As square as powers of two allow."""
    height = 1 << (math.isqrt(count).bit_length() - 1)
    return {"x": normal(rng, height, count // height)}


def positions(count: int, rng: np.random.Generator) -> Arrays:
    """Vectors of 8 heads at each position: [batch, time, 8, 32], at most 256 times."""
    time = min(256, count // 256)
    return {"x": normal(rng, count // (time * 256), time, 8, 32)}


def _weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return normal(rng, *shape) / np.float32(math.sqrt(math.prod(shape[1:])))


def sampled(arrays: Sequence[np.ndarray]) -> list[float]:
    """What is compared: elements from all over each array in units of their size, and that size."""
    values: list[float] = []
    for array in arrays:
        flat = np.asarray(array, np.float64).ravel()
        size = math.sqrt(float(np.mean(np.square(flat)))) or 1.0
        places = np.linspace(0, flat.size - 1, min(SAMPLED, flat.size)).astype(int)
        values += [*(flat[places] / size).tolist(), math.log(size)]
    return values


def kept(arrays: Sequence[np.ndarray]) -> list[float]:
    """For dropout, whose choices differ: the share of elements it keeps, and the mean square."""
    return [value for a in arrays for value in (np.mean(a != 0).item(), np.mean(a**2).item())]


FUNCTIONS: dict[str, Function] = {
    "add": Function(two, lambda lib, F: operator.add),
    "multiply": Function(two, lambda lib, F: operator.mul),
    "relu": Function(one, lambda lib, F: F.relu),
    "gelu": Function(one, lambda lib, F: F.gelu),
    "silu": Function(one, lambda lib, F: F.silu),
    "sigmoid": Function(one, lambda lib, F: lib.sigmoid),
    "tanh": Function(one, lambda lib, F: lib.tanh),
    "exp": Function(one, lambda lib, F: lib.exp),
    "softmax": Function(
        rows,
        lambda lib, F: lambda x: F.softmax(x, axis=-1),
        lambda lib, F: lambda x: F.softmax(x, dim=-1),
    ),
    "log_softmax": Function(
        rows,
        lambda lib, F: lambda x: F.log_softmax(x, axis=-1),
        lambda lib, F: lambda x: F.log_softmax(x, dim=-1),
    ),
    "layer_norm": Function(
        scaled_rows, lambda lib, F: lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b)
    ),
    "batch_norm": Function(
        normed_image, lambda lib, F: lambda *operands: F.batch_norm(*operands, training=True)
    ),
    "conv2d": Function(
        filtered_image,
        lambda lib, F: lambda x, w, b: F.conv2d(x, w, b, padding=1),
        sizes=(8 * 32 * IMAGE**2,),
    ),
    "max_pool2d": Function(image, lambda lib, F: lambda x: F.max_pool2d(x, 2)),
    "linear": Function(layer, lambda lib, F: F.linear),
    "matmul": Function(factors, lambda lib, F: operator.matmul),
    "embedding": Function(lookup, lambda lib, F: F.embedding),
    "cross_entropy": Function(labelled_rows, lambda lib, F: F.cross_entropy),
    "attention": Function(
        heads,
        lambda lib, F: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True),
        lambda lib, F: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "dropout": Function(
        one, lambda lib, F: lambda x: F.dropout(x, DROPPED), tolerance=0.1, digest=kept
    ),
    "sum": Function(one, lambda lib, F: lib.sum),
    "mean": Function(one, lambda lib, F: lib.mean),
    "transpose": Function(
        matrix,
        lambda lib, F: lambda x: lib.reshape(lib.permute_dims(x, (1, 0)), (-1,)),
        lambda lib, F: lambda x: lib.reshape(lib.permute(x, (1, 0)), (-1,)),
    ),
    "split_heads": Function(
        positions,
        lambda lib, F: lambda x: lib.reshape(lib.permute_dims(x, (0, 2, 1, 3)), (-1, 32)),
        lambda lib, F: lambda x: lib.reshape(lib.permute(x, (0, 2, 1, 3)), (-1, 32)),
    ),
    "concat": Function(
        halves,
        lambda lib, F: lambda x, y: lib.concat((x, y), axis=1),
        lambda lib, F: lambda x, y: lib.concat((x, y), dim=1),
    ),
    "where": Function(chosen, lambda lib, F: lib.where),
}


def in_weft(task: Task, function: Function) -> Step:
    """Weft."""
    import weft as wf

    return _step(task, function.weft(wf, wf.nn.functional), with_weft.tensors)


def in_torch(task: Task, function: Function) -> Step:
    """PyTorch."""
    import torch

    spelling = function.torch or function.weft
    return _step(task, spelling(torch, torch.nn.functional), with_torch.tensors)


def _step(task: Task, function: Callable[..., Any], tensors: Callable[[Arrays], list[Any]]) -> Step:
    """Forward alone, or with the gradients of the operands that have any."""
    operands = tensors(task.data)
    if not task.sizes["backward"]:
        return lambda: function(*operands)
    named = zip(task.data.items(), operands, strict=True)
    leaves = [x.requires_grad_() for (name, array), x in named if _has_gradient(name, array)]
    result = function(*operands)
    cotangents = []
    if result.ndim:
        drawn = normal(np.random.default_rng(SEED + 1), *result.shape)
        cotangents = tensors({"cotangent": drawn})

    def step() -> Any:
        for leaf in leaves:
            leaf.grad = None
        function(*operands).backward(*cotangents)
        return tuple(leaf.grad for leaf in leaves)

    return step


def _has_gradient(name: str, array: np.ndarray) -> bool:
    return array.dtype == np.float32 and not name.startswith("running")


def names(sizes: Sequence[int]) -> list[str]:
    """Every function at these sizes and its own, forward and then both ways."""
    return [
        f"{name}-{label(size)}{suffix}"
        for name, function in FUNCTIONS.items()
        for suffix in ("", "-backward")
        for size in sorted({*sizes, *(function.sizes if tuple(sizes) == SIZES else ())})
    ]


def parts(name: str) -> tuple[str, int, bool]:
    """The function of a workload's name, its size, and whether it goes backward, too."""
    function, _, size = name.removesuffix("-backward").rpartition("-")
    return function, count(size), name.endswith("-backward")


def workload(name: str) -> Workload:
    """The workload of a name; an unknown one is a KeyError."""
    if name.removesuffix("-backward").rpartition("-")[0] not in FUNCTIONS:
        raise KeyError(name)
    key, size, backward = parts(name)
    function = FUNCTIONS[key]
    return Workload(
        title=f"{key}, {label(size)}{', both ways' if backward else ''}",
        sides={
            "weft": partial(in_weft, function=function),
            "torch": partial(in_torch, function=function),
        },
        sizes={"count": size, "backward": backward},
        quick={},
        inputs=partial(_inputs, function=function),
        tolerance=function.tolerance,
        aim=AIM if size >= AIMED_FROM else None,
        rivals=("torch",),
        digest=function.digest or sampled,
    )


def _inputs(
    sizes: Mapping[str, Any], rng: np.random.Generator, function: Function
) -> tuple[Arrays, Arrays]:
    return {}, function.operands(sizes["count"], rng)


def label(size: int) -> str:
    """A count of elements in short: 64K, 4M."""
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def count(text: str) -> int:
    """The count of elements that a label stands for."""
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper())
    return int(text) if factor is None else int(text[:-1]) * factor
