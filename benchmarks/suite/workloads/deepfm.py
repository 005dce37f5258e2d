"""DeepFM: 26 sparse features in one table, 13 dense ones; Adagrad on 512 rows, and one row.

The ids are rows of the table already. Where a framework can, only touched rows are updated: Weft
and PyTorch. For Adagrad a gradient of zero changes nothing, so all sides compute the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import DEVICE, Arrays, Step, Task, Workload, draw, linear_shapes, normal

RATE = 0.01


def widths(sizes: Mapping[str, Any]) -> list[int]:
    """Of the deep part, from input to output."""
    return [sizes["features"] * sizes["width"] + sizes["dense"], *sizes["hidden"], 1]


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """A table, the deep part and the linear one; rows, dense features and clicks."""
    shapes = {"table.weight": (sizes["rows"], sizes["width"])}
    shapes |= linear_shapes("linear", widths(sizes)[0], 1)
    for number, (before, after) in enumerate(pairwise(widths(sizes))):
        shapes |= linear_shapes(f"network.layers.{number}", before, after)
    weights = draw(shapes, rng)
    weights["table.weight"] *= np.float32(0.04)
    batch = sizes["batch"]
    rows = rng.integers(0, sizes["rows"], (batch, sizes["features"]))
    clicks = {"y": rng.integers(0, 2, batch).astype(np.float32)} if sizes["train"] else {}
    return weights, {"rows": rows, "dense": normal(rng, batch, sizes["dense"]), **clicks}


def flops(sizes: Mapping[str, Any]) -> float:
    """The deep part's products; the first one's gradient is needed for the table."""
    forward = 2.0 * sizes["batch"] * sum(a * b for a, b in pairwise(widths(sizes)))
    return 3 * forward if sizes["train"] else forward


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf

    sizes = task.sizes
    names = ("features", "rows", "width", "dense", "hidden")
    net = with_weft.loaded(wf.models.DeepFM(*(sizes[name] for name in names)), task)
    data = with_weft.tensors(task.data)
    if not task.training:
        score = lambda net, rows, dense: net.score(net.table(rows), dense)  # noqa: E731
        return with_weft.calling(task, score, net, *data)
    optimizer = wf.optim.Adagrad(net.parameters(), lr=RATE)

    def step(net: Any, optimizer: Any, rows: Any, dense: Any, clicks: Any) -> Any:
        vectors = wf.optim.take_rows(net.table.weight, rows)
        score = net.score(vectors, dense)
        loss = wf.nn.functional.binary_cross_entropy_with_logits(score, clicks)
        loss.backward()
        optimizer.step(rows=[wf.optim.Rows(net.table.weight, rows, vectors.grad)])
        optimizer.zero_grad()
        return loss

    ready = with_weft.compiled(task, step)
    return lambda: ready(net, optimizer, *data)


def in_torch(task: Task) -> Step:
    """PyTorch, with gradients of the table's touched rows only."""
    import torch
    from torch import nn

    sizes = task.sizes

    class DeepFM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(sizes["rows"], sizes["width"], sparse=True)
            self.linear = nn.Linear(widths(sizes)[0], 1)
            layers = nn.ModuleList([nn.Linear(*pair) for pair in pairwise(widths(sizes))])
            self.network = nn.ModuleDict({"layers": layers})

        def score(self, vectors: Any, dense: Any) -> Any:
            given = x = torch.cat([vectors.flatten(1), dense], dim=1)
            *hidden, last = self.network["layers"]
            for layer in hidden:
                x = torch.relu(layer(x))
            squares = vectors.sum(1) ** 2 - (vectors**2).sum(1)
            return (self.linear(given) + last(x)).squeeze(1) + 0.5 * squares.sum(1)

        def forward(self, rows: Any, dense: Any) -> Any:
            return self.score(self.table(rows), dense)

    net = with_torch.loaded(DeepFM(), task)
    data = with_torch.tensors(task.data)
    if not task.training:
        return with_torch.applying(task, net, data)
    table, *others = net.parameters()
    fused = DEVICE == "cpu"  # there is no fused form for cards
    optimizers = [
        torch.optim.Adagrad([table], RATE),
        torch.optim.Adagrad(others, RATE, fused=fused),
    ]

    def loss(vectors: Any, dense: Any, clicks: Any) -> Any:
        score = net.score(vectors, dense)
        return nn.functional.binary_cross_entropy_with_logits(score, clicks)

    # torch.compile does not trace sparse gradients: the table's lookup stays outside.
    evaluate = with_torch.compiled(task, loss)

    def step() -> Any:
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = evaluate(net.table(data[0]), *data[1:])
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        return value

    return step


def in_jax(task: Task) -> Step:
    """JAX: the gradient of the table is as large as the table."""
    import jax
    from jax import numpy as jnp

    last = len(widths(task.sizes)) - 2

    def forward(p: Any, buffers: Any, rows: Any, dense: Any) -> Any:
        vectors = p["table.weight"][rows]
        given = x = jnp.concatenate([vectors.reshape(len(rows), -1), dense], axis=1)
        for number in range(last):
            x = jax.nn.relu(with_jax.linear(p, f"network.layers.{number}", x))
        x = with_jax.linear(p, f"network.layers.{last}", x)
        squares = vectors.sum(1) ** 2 - (vectors**2).sum(1)
        both = (with_jax.linear(p, "linear", given) + x)[:, 0]
        return both + 0.5 * squares.sum(1), buffers

    def loss(p: Any, buffers: Any, rows: Any, dense: Any, y: Any) -> Any:
        score, buffers = forward(p, buffers, rows, dense)
        terms = jnp.maximum(score, 0) - score * y + jnp.log1p(jnp.exp(-jnp.abs(score)))
        return jnp.mean(terms), buffers

    if not task.training:
        return with_jax.applying(task, forward)
    return with_jax.training(task, loss, with_jax.adagrad(RATE))


def in_keras(task: Task) -> Step:
    """Keras; without XLA the gradient of the table is that of the touched rows."""
    import keras
    import tensorflow as tf
    from keras import ops

    sizes = task.sizes
    rows = keras.Input((sizes["features"],), dtype="int64")
    dense = keras.Input((sizes["dense"],))
    vectors = with_keras.embedding(task, "table")(rows)
    flat = ops.reshape(vectors, (-1, sizes["features"] * sizes["width"]))
    given = x = ops.concatenate([flat, dense], axis=1)
    last = len(widths(sizes)) - 2
    for number in range(last):
        x = with_keras.linear(task, f"network.layers.{number}", "relu")(x)
    both = with_keras.linear(task, "linear")(given)
    both = both + with_keras.linear(task, f"network.layers.{last}")(x)
    squares = ops.sum(vectors, 1) ** 2 - ops.sum(vectors**2, 1)
    model = keras.Model([rows, dense], both[:, 0] + 0.5 * ops.sum(squares, 1))
    if not task.training:
        call = lambda *data: model(list(data), training=False)  # noqa: E731
        return with_keras.calling(task, call, *task.data.values())

    def loss(model: Any, rows: Any, dense: Any, clicks: Any) -> Any:
        score = model([rows, dense], training=True)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicks, score))

    # its epsilon stands under the root: so small that it changes nothing
    optimizer = keras.optimizers.Adagrad(RATE, initial_accumulator_value=0.0, epsilon=1e-20)
    return with_keras.training(task, model, optimizer, loss)


def in_onnx(task: Task) -> Step:
    """ONNX Runtime."""
    graph = with_onnx.Builder(task)
    last = len(widths(task.sizes)) - 2
    vectors = graph.add("Gather", "table.weight", "rows")
    flat = graph.add("Flatten", vectors)
    given = x = graph.add("Concat", flat, "dense", axis=1)
    for number in range(last):
        x = graph.add("Relu", graph.linear(f"network.layers.{number}", x))
    both = graph.linear(f"network.layers.{last}", x)
    both = graph.add("Add", graph.linear("linear", given), both)
    sums = graph.sum(vectors, 1)
    squares = graph.sum(graph.add("Mul", vectors, vectors), 1)
    pairs = graph.sum(graph.add("Sub", graph.add("Mul", sums, sums), squares), 1, keep=True)
    half = graph.constant("half", np.float32(0.5))
    score = graph.add("Add", both, graph.add("Mul", pairs, half))
    return graph.running(graph.reshape(score, -1))


SIDES = {"weft": in_weft, "torch": in_torch, "jax": in_jax, "keras": in_keras}
SIZES = {"features": 26, "dense": 13, "rows": 260_000, "width": 16, "hidden": (400, 400, 400)}
QUICK = {"rows": 1000, "width": 4, "hidden": (16, 16)}
WORKLOADS = {
    "deepfm": Workload(
        title="DeepFM 26 features, 260 000×16, batch 512, Adagrad",
        sides=SIDES,
        sizes={**SIZES, "batch": 512, "train": True},
        quick={**QUICK, "batch": 16},
        inputs=inputs,
        flops=flops,
        training=True,
        aim=0.7,
        rivals=("torch", "torch-compile"),
    ),
    "deepfm-infer": Workload(
        title="DeepFM, one row",
        sides={**SIDES, "onnx": in_onnx},
        sizes={**SIZES, "batch": 1, "train": False},
        quick=QUICK,
        inputs=inputs,
        flops=flops,
        aim=1.0,
        rivals=("onnx",),
    ),
}
