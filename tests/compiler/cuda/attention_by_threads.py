"""Attention's kernels from their PTX, every thread of them, beside attention by NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.compiler.cuda.ptx_interpreter import Memory, run_kernel
from tests.compiler.cuda.warpgroup_interpreter import ArrayMap, run_blocks

from weft.compiler.targets.cuda.attention.backward import backward_kernel, backward_launch
from weft.compiler.targets.cuda.attention.description import AttentionSizes, AttentionSpec
from weft.compiler.targets.cuda.attention.rows import (
    after_kernel,
    after_launch,
    buffer_numbers,
    counter_numbers,
    pad_kernel,
    pad_launch,
    row_numbers,
)
from weft.compiler.targets.cuda.ptx_writer import TensorMap
from weft.core.dtypes import as_dtype

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Problem:
    """Attention, the numbers of a head that are there, and sizes."""

    spec: AttentionSpec
    sizes: AttentionSizes

    def operands(self) -> dict[str, Array]:
        """Queries, keys, values and cotangents, and what the forward pass leaves."""
        spec, sizes = self.spec, self.sizes
        random = np.random.default_rng(sizes.queries * 7 + sizes.keys)
        queries = (sizes.batch, sizes.heads, sizes.queries, sizes.head)
        keys = (sizes.batch, sizes.key_heads, sizes.keys, sizes.head)
        short = as_dtype(spec.dtype).numpy
        shapes = {"q": queries, "k": keys, "v": keys, "dout": queries}
        made = {name: random.normal(size=shape).astype(short) for name, shape in shapes.items()}
        weights, sums = self.weights(made)
        delta = (self.gradient_of_weights(made) * weights).sum(-1)
        return made | {"sums": sums.astype(np.float32), "delta": delta.astype(np.float32)}

    def repeated(self, made: dict[str, Array], name: str) -> Array:
        """Keys or values for each head of queries."""
        return made[name].astype(np.float64).repeat(self.sizes.heads // self.sizes.key_heads, 1)

    def weights(self, made: dict[str, Array]) -> tuple[Array, Array]:
        """What softmax gives, and the logs of its sums."""
        sizes = self.sizes
        scores = made["q"].astype(np.float64) @ self.repeated(made, "k").swapaxes(-1, -2)
        scores *= self.spec.factor
        if self.spec.causal:
            hidden = np.arange(sizes.keys) > np.arange(sizes.queries)[:, None] + sizes.offset
            scores = np.where(hidden, -np.inf, scores)
        highest = scores.max(-1, keepdims=True)
        sums = np.log(np.exp(scores - highest).sum(-1)) + highest[..., 0]
        return np.exp(scores - sums[..., None]), sums

    def gradient_of_weights(self, made: dict[str, Array]) -> Array:
        """The cotangents of the weights."""
        return made["dout"].astype(np.float64) @ self.repeated(made, "v").swapaxes(-1, -2)

    def gradients(self, made: dict[str, Array]) -> dict[str, Array]:
        """The gradients, by NumPy."""
        weights, _ = self.weights(made)
        delta = made["delta"].astype(np.float64)[..., None]
        changes = weights * (self.gradient_of_weights(made) - delta)
        sizes = self.sizes
        grouped = (sizes.batch, sizes.key_heads, -1, sizes.keys, sizes.head)

        def sums_of_groups(each: Array) -> Array:
            return each.reshape(grouped).sum(2)

        q, dout = (made[name].astype(np.float64) for name in ("q", "dout"))
        return {
            "dq": changes @ self.repeated(made, "k") * self.spec.factor,
            "dk": sums_of_groups(changes.swapaxes(-1, -2) @ q) * self.spec.factor,
            "dv": sums_of_groups(weights.swapaxes(-1, -2) @ dout),
        }


def run_backward(problem: Problem, seed: int = 0, multiprocessors: int = 132) -> dict[str, Array]:
    """The gradients by the three kernels of the backward pass, in an order that a seed decides."""
    spec, sizes = problem.spec, problem.sizes
    made = problem.operands()
    words = sizes.parameter_words
    rows = {name: np.full(row_numbers(spec, sizes), np.nan, np.float32)
            for name in ("logs", "products")}  # fmt: skip
    memory = Memory({"sums": made["sums"], "delta": made["delta"], **rows})
    kernel = pad_kernel(spec)
    run_kernel(kernel.text, kernel.threads, pad_launch(spec, sizes).blocks, 0, memory, words)

    kernel = backward_kernel(spec)
    arrays = made | {"dk": np.full_like(made["k"], np.nan), "dv": np.full_like(made["v"], np.nan)}
    maps = {each.name: ArrayMap.of_parameter(each, arrays[each.name])
            for each in kernel.parameters if isinstance(each, TensorMap)}  # fmt: skip
    buffer = np.full(buffer_numbers(spec, sizes), np.nan, np.float32)
    counters = np.zeros(counter_numbers(spec, sizes), np.uint32)
    names = ("logs", "products")
    second = Memory({name: memory.result(name) for name in names}
                    | {"dq": buffer, "counters": counters})  # fmt: skip
    how = backward_launch(spec, sizes, multiprocessors)
    run_blocks(kernel, how.blocks, second, maps, how.words, seed)
    for name in ("dk", "dv"):
        assert (maps[name].stores == 1).all(), "a gradient is stored not once"

    kernel, dq = after_kernel(spec), np.full_like(made["q"], np.nan)
    last = Memory({"dq": dq, "buffer": second.result("dq"), "counters": second.result("counters")})
    strides = {"dq_batch_stride": dq[0].size, "dq_head_stride": dq[0, 0].size,
               "dq_stride": sizes.head}  # fmt: skip
    blocks = after_launch(spec, sizes).blocks
    run_kernel(kernel.text, kernel.threads, blocks, 0, last, words | strides)
    assert not last.result("counters").any(), "counters are not zeros again"
    assert (last.store_counts("dq") == 1).all(), "a gradient is stored not once"
    return {"dq": last.result("dq"), "dk": arrays["dk"], "dv": arrays["dv"]}


def check_backward(problem: Problem, seed: int = 0, multiprocessors: int = 132) -> dict[str, Array]:
    """The kernels' gradients are NumPy's but for rounding; returns them."""
    found = run_backward(problem, seed, multiprocessors)
    for name, wanted in problem.gradients(problem.operands()).items():
        error = np.linalg.norm(found[name].astype(np.float64) - wanted) / np.linalg.norm(wanted)
        assert error < 6e-3, (name, error)
    return found
