"""The GPT of `gpt` writes 100 tokens after one, greedily, each handed to Python as it comes.

Keys and values lie in a cache with room for 128 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from suite import with_keras, with_onnx, with_torch
from suite.task import Arrays, Step, Task, Workload, draw
from suite.workloads import gpt

CAPACITY = 128
START = 1
INT32 = 6
"""ONNX's number of the type."""


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """The weights alone; places weigh more than tokens, or the same one would come again."""
    weights = draw(gpt.shapes(sizes), rng)
    weights["wpe.weight"] *= np.float32(4)
    return weights, {}


def flops(sizes: Mapping[str, Any]) -> float:
    """A pass of one token, so many times; the keys are few."""
    one = {**sizes, "context": 1, "batch": 1, "train": False}
    return sizes["tokens"] * gpt.flops(one)


def least_bytes(sizes: Mapping[str, Any]) -> float:
    """All weights are read for each token."""
    return 4.0 * sizes["tokens"] * sum(float(np.prod(s)) for s in gpt.shapes(sizes).values())


def in_weft(task: Task) -> Step:
    """Weft."""
    net = gpt.weft_net(task)
    start = [[START]] * task.sizes["batch"]
    return lambda: net.generate(start, task.sizes["tokens"], temperature=0.0)


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch

    net = gpt.torch_net(task)
    sizes = task.sizes
    room = sizes["batch"], sizes["heads"], CAPACITY, sizes["width"] // sizes["heads"]
    caches = torch.zeros(sizes["layers"], 2, *room, dtype=net.wte.weight.dtype)

    def next_token(token: Any, position: Any) -> Any:
        return torch.argmax(net(token, caches, position)[:, -1], dim=-1, keepdim=True)

    step = with_torch.compiled(task, next_token)

    def generate() -> Any:
        caches.zero_()
        token = torch.full((sizes["batch"], 1), START)
        found = [token[:, 0].tolist()]
        with torch.inference_mode():
            for number in range(sizes["tokens"]):
                token = step(token, torch.tensor([number]))
                found.append(token[:, 0].tolist())
        return torch.tensor(found).T

    return generate


def in_jax(task: Task) -> Step:
    """JAX."""
    import jax
    from jax import numpy as jnp

    forward = gpt.jax_forward(task.sizes)
    sizes = task.sizes
    kind = sizes.get("dtype", "float32")
    weights = {name: jnp.asarray(array, kind) for name, array in task.weights.items()}
    shape = sizes["batch"], CAPACITY, sizes["heads"], sizes["width"] // sizes["heads"]

    def next_token(weights: Any, caches: Any, token: Any, position: Any) -> Any:
        logits, caches = forward(weights, caches, token, position)
        return jnp.argmax(logits[:, -1:], axis=-1), caches

    step = jax.jit(next_token, donate_argnums=1)

    def generate() -> Any:
        caches = [[jnp.zeros(shape, kind) for _ in "kv"] for _ in range(sizes["layers"])]
        token = jnp.full((sizes["batch"], 1), START)
        found = [np.asarray(token[:, 0])]
        for number in range(sizes["tokens"]):
            token, caches = step(weights, caches, token, number)
            found.append(np.asarray(token[:, 0]))
        return np.array(found).T

    return generate


def in_keras(task: Task) -> Step:
    """Keras: the caches are variables of TensorFlow."""
    import tensorflow as tf
    from keras import ops

    sizes = task.sizes
    table, places = gpt.keras_tables(task)
    blocks = [gpt.keras_block(task, f"h.{number}") for number in range(sizes["layers"])]
    last = with_keras.norm(task, "ln_f")
    zeros = tf.zeros([CAPACITY, sizes["heads"], sizes["width"] // sizes["heads"]])
    caches = [[tf.Variable(zeros), tf.Variable(zeros)] for _ in blocks]

    def next_token(token: Any, position: Any) -> Any:
        seen = ops.reshape(ops.arange(CAPACITY) <= position, (1, 1, 1, CAPACITY))

        def attend(cache: list[Any], q: Any, *new: Any) -> Any:
            for old, given in zip(cache, new, strict=True):
                old.scatter_nd_update(ops.reshape(position, (1, 1)), given[0])
            return ops.dot_product_attention(q, *(c[None] for c in cache), mask=seen)

        x = table(token) + places(ops.reshape(position, (1, 1)))
        for block, cache in zip(blocks, caches, strict=True):
            x = block(x, partial(attend, cache))
        return ops.argmax(table(last(x), reverse=True), axis=-1)

    step = tf.function(next_token, jit_compile=task.compiled)

    def generate() -> Any:
        for cache in caches:
            for old in cache:
                old.assign(zeros)
        token, found = tf.constant([[START]]), [START]
        for number in range(sizes["tokens"]):
            token = tf.cast(step(token, tf.constant(number)), tf.int32)
            found.append(int(token.numpy()[0, 0]))
        return np.array([found])

    return generate


def onnx_graph(task: Task) -> tuple[Any, str, dict[str, str]]:
    """A step's nodes, the name of the token it chooses, and where each past one becomes present."""
    sizes = task.sizes
    graph = with_onnx.Builder(task)
    seen = graph.add("Cast", "position", to=INT32)
    one = graph.constant("one", np.array([1], np.int32))
    total = graph.add("Squeeze", graph.add("Add", seen, one))
    options = dict.fromkeys(("num_heads", "kv_num_heads"), sizes["heads"])
    presents: dict[str, str] = {}

    def attend(number: int, joined: str) -> str:
        past = [f"past.{number}.{part}" for part in "kv"]
        operands = joined, "", "", *past, seen, total
        kind = "GroupQueryAttention"
        y, *after = graph.add(kind, *operands, outputs=3, domain=with_onnx.OWN, **options)
        presents.update(zip(past, after, strict=True))
        return str(y)

    x = graph.add("Gather", "wte.weight", "token")
    x = graph.add("Add", x, graph.add("Gather", "wpe.weight", "position"))
    for number in range(sizes["layers"]):
        x = gpt.onnx_block(graph, f"h.{number}", x, partial(attend, number))
    logits = graph.add("MatMul", graph.norm("ln_f", x), graph.turned("wte.weight"))
    return graph, graph.add("ArgMax", logits, axis=-1, keepdims=0), presents


def in_onnx(task: Task) -> Step:
    """ONNX Runtime: past keys and values go in, and come out in the same memory."""
    import onnxruntime

    sizes = task.sizes
    graph, chosen, presents = onnx_graph(task)
    start = {"token": np.array([[START]]), "position": np.array([0])}
    zeros = np.zeros((1, sizes["heads"], CAPACITY, sizes["width"] // sizes["heads"]), np.float32)
    inputs = start | dict.fromkeys(presents, zeros)
    session = graph.session(inputs, [chosen, *presents.values()])
    place = onnxruntime.OrtValue.ortvalue_from_numpy  # in the array's own memory
    held = {name: place(array.copy()) for name, array in inputs.items()}
    after = place(start["token"].copy())
    binding = session.io_binding()
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for past, present in presents.items():
        binding.bind_ortvalue_output(present, held[past])
    binding.bind_ortvalue_output(chosen, after)

    def generate() -> Any:
        token, found = start["token"], [START]
        for number in range(sizes["tokens"]):
            held["token"].update_inplace(token)
            held["position"].update_inplace(np.array([number]))
            session.run_with_iobinding(binding)
            token = after.numpy()
            found.append(int(token[0, 0]))
        return np.array([found])

    return generate


SIDES = {
    "weft": in_weft,
    "torch": in_torch,
    "jax": in_jax,
    "keras": in_keras,
    "onnx": in_onnx,
}
WORKLOADS = {
    "generation": Workload(
        title="GPT, 100 tokens with a cache",
        sides=SIDES,
        sizes={**gpt.SIZES, "tokens": 100, "batch": 1},
        quick={**gpt.QUICK, "context": 128, "tokens": 10, "batch": 1},
        inputs=inputs,
        flops=flops,
        bytes=least_bytes,
        tolerance=0.0,
        aim=1.0,
    )
}
