"""What programs must do on a card, whether that is a real one or one in the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.hammer import at_once

import weft as wf
from weft.compiler.plan.launch import Kind
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA
from weft.ir.primitive import PRIMITIVES, Primitive, Sample

Array = np.ndarray[Any, Any]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def _wide(array: Array) -> Array:
    return array.astype(complex if array.dtype.kind == "c" else np.float64)


SAMPLES = [
    pytest.param(primitive, sample, id=f"{name} {number}")
    for name, primitive in sorted(PRIMITIVES.items())
    for number, sample in enumerate(primitive.samples())
    if not primitive.impure
]


def check_sample(primitive: Primitive, sample: Sample) -> None:
    """A primitive gives on the card what its reference gives."""
    with np.errstate(all="ignore"):
        wanted = primitive.reference(*sample.operands, **sample.params)
    place = wf.device("cuda")
    handles = [wf.asarray(np.asarray(x)).to(place) for x in sample.operands]
    expected = wanted if primitive.multiple else (wanted,)
    results: list[Any] = []
    for _ in range(2):  # the second call is found by the first one's key
        found = wf.ir.dispatch.bind(primitive, *handles, **sample.params)
        results += found if primitive.multiple else (found,)
    for result, array in zip(results, [*expected, *expected], strict=True):
        if handles:
            assert result.device == place
        host = result.numpy()
        assert (host.shape, host.dtype) == (np.shape(array), np.asarray(array).dtype)
        limit = 1e-2 if host.dtype.itemsize == 2 else 2e-5
        np.testing.assert_allclose(_wide(host), _wide(np.asarray(array)), rtol=limit, atol=limit)


def compare(f: Callable[..., Any], *arrays: Array, limit: float = 1e-5) -> list[Kind]:
    """Run a compiled function on the card and on the CPU; the kinds of the card's launches."""
    compiled = wf.jit(f)
    wanted = wf.tree.leaves(compiled(*map(wf.asarray, arrays)))
    for _ in range(4):  # the last of them as a graph
        moved = [wf.asarray(array).to("cuda") for array in arrays]
        found = wf.tree.leaves(compiled(*moved))
        for one, other in zip(found, wanted, strict=True):
            assert one.device == wf.device("cuda")
            np.testing.assert_allclose(
                _wide(one.numpy()), _wide(other.numpy()), rtol=limit, atol=limit
            )
    plan = plan_program(wf.ir.trace(f, *map(wf.asarray, arrays)), CUDA)
    return [launch.kind for launch in plan.every_launch()]


def _switch(x: wf.Tensor) -> wf.Tensor:
    return wf.switch((x.sum() > 0).astype("int32"), [lambda y: y * 2, lambda y: wf.exp(y)], x)


def _attend(x: wf.Tensor) -> wf.Tensor:
    short = x.astype("bfloat16")
    y = wf.scaled_dot_product_attention(short, short * 0.5, short + 1, causal=True)
    return y.astype("float32")


def _attend_shared(x: wf.Tensor) -> wf.Tensor:
    short = x.astype("bfloat16")
    return wf.scaled_dot_product_attention(
        short, short[:, ::2], short[:, 1::2], causal=True
    ).astype("float32")


def _often() -> wf.Tensor:
    """600 places in a table of 40 rows, some of them often."""
    wave = wf.abs(wf.sin(wf.arange(600, dtype="float32") * 0.37))
    return (wave * wave * 39).astype("int64")


def _weights() -> wf.Tensor:
    return wf.arange(600, dtype="float32")[:, None] % 7


def _classify(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    labels = (wf.abs(x[:, 0]) * 3).astype("int64")
    loss = lambda x: wf.nn.functional.cross_entropy(x * 2 - 1, labels)  # noqa: E731
    return wf.value_and_grad(loss)(x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], Kind]] = {
    "softmax of a product": (lambda x: wf.softmax(x @ x.T).sum(axis=0), (6, 8), Kind.PRODUCT),
    "a stack of products": (lambda x: wf.einsum("bij,bkj->bik", x, x), (3, 4, 8), Kind.PRODUCT),
    "a product of odd sizes": (lambda x: x.T @ x, (7, 5), Kind.PRODUCT),
    "a scan": (
        lambda x: wf.scan(lambda c, r: (wf.tanh(c + r), c * r), x[0], x), (5, 4), Kind.CONTROL,
    ),
    "a scan over rows that begin anywhere": (
        lambda x: wf.scan(lambda c, r: (c + r, c * r), x[0], x), (5, 3), Kind.CONTROL,
    ),
    "a scan that hands its carry on": (
        lambda x: wf.scan(lambda c, r: ((c[1], c[0] + r), r), (x[0], x[1]), x), (4, 4),
        Kind.CONTROL,
    ),
    "a scan whose carries are its rows": (
        lambda x: wf.scan(
            lambda c, r: (lambda h: ((h, c[1] * h, h), (h, c[0])))(wf.tanh(c[0] + r)),
            (x[0], x[1], x[2]), x,
        ), (5, 4), Kind.CONTROL,
    ),
    "a scan whose carries are rows that begin anywhere": (
        lambda x: wf.scan(lambda c, r: (wf.tanh(c + r), wf.tanh(c + r)), x[0], x), (5, 3),
        Kind.CONTROL,
    ),
    "a gradient through a scan": (
        wf.grad(lambda x: wf.scan(lambda c, r: (wf.sin(c * r), c), x[0], x)[0].sum()), (4, 3),
        Kind.CONTROL,
    ),
    "a while loop": (
        lambda x: wf.while_loop(lambda v: v.sum() < 100, lambda v: v * 2 + 1, wf.abs(x)), (3, 4),
        Kind.CONTROL,
    ),
    "a choice": (_switch, (3, 4), Kind.CONTROL),
    "a choice in each row": (wf.vmap(_switch), (5, 3), Kind.CONTROL),
    "attention": (_attend, (1, 2, 20, 64), Kind.PRODUCT),
    "attention of shared heads": (_attend_shared, (1, 4, 12, 64), Kind.PRODUCT),
    "attention without a mask": (
        lambda x: wf.scaled_dot_product_attention(*[x.astype("float16")] * 3).astype("float32"),
        (1, 20, 128), Kind.PRODUCT,
    ),
    "a gradient of attention": (
        wf.grad(lambda x: (_attend(x) * x).sum()), (1, 2, 20, 64), Kind.PRODUCT,
    ),
    "a gradient of attention of shared heads": (
        wf.grad(lambda x: (_attend_shared(x) * x).sum()), (1, 4, 12, 64), Kind.PRODUCT,
    ),
    "attention of wide floats": (
        lambda x: wf.scaled_dot_product_attention(x, x, x, causal=True), (2, 12, 8),
        Kind.PRODUCT,
    ),
    "a gradient of rows that are looked up": (
        lambda x: wf.grad(lambda t: (wf.sin(t)[_often()] * _weights()).sum())(x), (40, 6),
        Kind.LOOP,
    ),
    "the same in 16 bits": (
        lambda x: wf.grad(
            lambda t: (t.astype("bfloat16")[_often()].astype("float32") * _weights()).sum()
        )(x), (40, 6), Kind.LOOP,
    ),
    "a cross entropy with its gradient": (_classify, (9, 20), Kind.LOOP),
    "a convolution": (lambda x: wf.conv2d(x, x[:2, :, :3, :3], padding=1), (3, 8, 6, 6),
                      Kind.PRODUCT),
    "a convolution with strides, holes and few channels": (
        lambda x: wf.conv2d(x, x[:2, :, :3, :2], stride=(2, 1), padding=(2, 1), dilation=(1, 2)),
        (3, 3, 7, 6), Kind.PRODUCT,
    ),
    "a convolution of single elements": (
        lambda x: wf.conv2d(x, x[:2, :, :1, :1]), (3, 8, 4, 5), Kind.PRODUCT,
    ),
    "gradients of a convolution": (
        lambda x: wf.grad(lambda a, b: (wf.sin(wf.conv2d(a, b, padding=1)) ** 2).sum(),
                          argnums=(0, 1))(x, x[:2, :, :3, :3]), (3, 8, 5, 6), Kind.PRODUCT,
    ),
    "gradients of a convolution with strides": (
        lambda x: wf.grad(lambda a, b: (wf.conv2d(a, b, stride=2, padding=(1, 0)) ** 2).sum(),
                          argnums=(0, 1))(x, x[:2, :, :3, :3]), (2, 3, 7, 6), Kind.PRODUCT,
    ),
    "gradients of a convolution of single elements": (
        lambda x: wf.grad(lambda a, b: (wf.conv2d(a, b, stride=2) ** 2).sum(),
                          argnums=(0, 1))(x, x[:2, :, :1, :1]), (2, 8, 5, 6), Kind.PRODUCT,
    ),
    "a convolution along one axis": (
        lambda x: wf.grad(lambda a: (wf.conv1d(a, a[:2, :, :3], stride=2) ** 2).sum())(x),
        (3, 4, 9), Kind.PRODUCT,
    ),
    "a gradient of max pooling of a convolution": (
        lambda x: wf.grad(lambda a: (wf.max_pool2d(
            wf.conv2d(a, a[:3, :, :1, :1]), 3, stride=2, padding=1) ** 2).sum())(x),
        (3, 4, 7, 6), Kind.PRODUCT,
    ),
    "a sort": (lambda x: wf.sort(wf.exp(x), axis=1)[:, ::2], (3, 5), Kind.SORT),
    "a call by reference": (lambda x: wf.linalg.inv(x @ x.T + 1)[:, ::2], (3, 5), Kind.REFERENCE),
    "a long sum": (lambda x: (x * x).sum(), (40_000,), Kind.LOOP),
    "a join": (lambda x: wf.concat([x, wf.flip(x, axis=0) * 2, x[:1]], axis=0), (5, 4), Kind.LOOP),
    "its own input": (lambda x: [x, x.reshape(-1), x * 1.5], (3, 4), Kind.LOOP),
    "no elements": (lambda x: [wf.exp(x), x.sum(axis=0), x.T @ x], (0, 4), Kind.PRODUCT),
}  # fmt: skip


def _limit(name: str) -> float:
    """16-bit floats and long sums differ more."""
    return 5e-2 if "attention" in name else 1e-4 if "convolution" in name else 1e-5


def check_program(name: str) -> None:
    """A program gives on the card what it gives on the processor, by the launches it is for."""
    f, shape, kind = PROGRAMS[name]
    assert kind in compare(f, numbers(*shape), limit=_limit(name))


def check_threads() -> None:
    """Eager calls of several threads at once do not read each other's operands."""
    arrays = [np.full(5, k, np.float32) for k in range(4)]
    tensors = [wf.asarray(array).to("cuda") for array in arrays]
    found: dict[int, set[float]] = {k: set() for k in range(4)}

    def work(k: int) -> None:
        for _ in range(150):
            found[k].update((tensors[k] * tensors[k] + tensors[k]).numpy().tolist())

    at_once(*[partial(work, k) for k in range(4)])
    assert found == {k: {float(k * k + k)} for k in range(4)}


def training_step(model: wf.nn.Module, optimizer: wf.optim.Optimizer) -> Any:
    """A step of a classifier, compiled whole, which closes over both."""

    @wf.jit
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        loss = wf.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def train(device: str, steps: int) -> list[float]:
    """The losses of some steps of a small network, compiled whole."""
    wf.random.seed(3)
    model = wf.nn.Sequential(wf.nn.Linear(6, 16), wf.nn.GELU(), wf.nn.Linear(16, 3)).to(device)
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.01)
    generator = np.random.default_rng(0)
    xs = generator.normal(size=(8, 6)).astype(np.float32)
    x, y = wf.asarray(xs).to(device), wf.asarray(np.arange(8) % 3).to(device)

    step = training_step(model, optimizer)
    return [float(step(x, y)) for _ in range(steps)]
