"""Attention's kernels from their PTX, every thread of them, beside the primitives' references."""

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
from weft.ops.attention import attention, attention_gradient

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Problem:
    """Attention and its sizes; a mask of the spec's kind is the same for all heads."""

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
        extra = self.extra_operands()
        first = [made[name] for name in "qkv"]
        out, sums = attention.reference(*first, *extra.values(), **self.parameters)
        delta = (np.asarray(out, np.float64) * made["dout"].astype(np.float64)).sum(-1)
        return made | {"sums": np.asarray(sums), "delta": delta.astype(np.float32)}

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the primitives."""
        spec = self.spec
        offset = self.sizes.offset if spec.causal else None
        return {"offset": offset, "scale": spec.scale, "guarded": spec.guarded, "kept": spec.kept}

    def extra_operands(self) -> dict[str, Array]:
        """The mask, and what dropout draws with."""
        extra, random = {}, np.random.default_rng(3)
        shape = (self.sizes.queries, self.sizes.keys)
        if self.spec.mask == "bool":
            extra["mask"] = random.random(shape) > 0.3
        elif self.spec.mask:
            numbers = np.where(random.random(shape) > 0.2, random.normal(size=shape), -np.inf)
            extra["mask"] = numbers.astype(as_dtype(self.spec.mask).numpy)
        if self.spec.drops:
            extra |= {"key": np.array([5, 7], np.uint32), "data": np.array(11, np.uint64)}
        return extra

    def gradients(self, made: dict[str, Array]) -> dict[str, Array]:
        """The gradients, by the primitive's reference."""
        given = [made[name] for name in ("q", "k", "v", "sums", "dout", "delta")]
        extra = self.extra_operands().values()
        found = attention_gradient.reference(*given, *extra, **self.parameters)
        return dict(zip(("dq", "dk", "dv"), map(np.asarray, found), strict=True))


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
                    | {"dq": buffer, "counters": counters} | problem.extra_operands())  # fmt: skip
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
    """The kernels' gradients are the reference's but for rounding; returns them."""
    found = run_backward(problem, seed, multiprocessors)
    for name, wanted in problem.gradients(problem.operands()).items():
        exact = wanted.astype(np.float64)
        error = np.linalg.norm(found[name].astype(np.float64) - exact) / np.linalg.norm(exact)
        assert error < 6e-3, (name, error)
    return found
