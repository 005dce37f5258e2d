"""Attention of a plan: which nodes have kernels, their launches, and what binds these to memory."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from weft.compiler.plan.launch import Kind, Launch, Sizes, no_numbers, one, static_shape
from weft.compiler.targets.cuda.attention.backward import backward_kernel, backward_launch
from weft.compiler.targets.cuda.attention.description import (
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
)
from weft.compiler.targets.cuda.attention.forward import (
    forward_kernel,
    forward_launch,
    forward_plan,
)
from weft.compiler.targets.cuda.attention.rows import (
    after_kernel,
    after_launch,
    buffer_numbers,
    counter_numbers,
    pad_kernel,
    pad_launch,
    row_numbers,
)
from weft.compiler.targets.cuda.binding import Binding, Run, aligned_size, binder, in_order
from weft.compiler.targets.cuda.parameters import written_kernel_run
from weft.core.dtypes import bfloat16, float16
from weft.core.types import TensorType
from weft.ir.graph import GraphNode
from weft.ops.attention import attention, attention_gradient

HEADS = (64, 128)
"""The sizes of a head that kernels are written for."""
MOST_KEYS = 132 * 128
"""Keys that the pass back holds on a card at once, one block of 128 on each multiprocessor."""
_WIDE = 4
"""Bytes of a float32."""


def is_attention(node: GraphNode) -> bool:
    """Whether attention, or its gradient, has a kernel: 16-bit floats, causal or without a mask."""
    if node.primitive not in (attention, attention_gradient):
        return False
    q, k, v = (atom.type for atom in node.operands[:3])
    shapes = [*q.shape, *k.shape, *v.shape]
    if q.dtype not in (bfloat16, float16) or not all(isinstance(dim, int) for dim in shapes):
        return False
    count = 3 if node.primitive is attention else 6
    offset = node.params["offset"]
    return (
        len(node.operands) == count  # neither a mask nor dropout
        and q.shape[-1] in HEADS
        and v.shape[-1] == q.shape[-1]
        and (offset is None or (isinstance(offset, int) and offset >= 0))
        and 0 < int(k.shape[-2]) <= MOST_KEYS
        and prod(int(dim) for dim in q.shape) > 0
    )


def attention_launch(node: GraphNode) -> Launch:
    """The launch of attention or of its gradient."""
    name = node.primitive.name
    words = (repr(node.params["scale"]), repr(node.params["offset"]))
    return Launch(
        Kind.PRODUCT, name, (name, *words), (*node.operands, *node.results), node.results,
        no_numbers, one, one,
    )  # fmt: skip


def _describe(launch: Launch, sizes: Sizes) -> tuple[AttentionSpec, AttentionSizes, Any]:
    """The kernel's description, the sizes, and what gives shapes of four axes."""

    def shape(kind: TensorType) -> tuple[int, ...]:
        *front, heads, time, head = static_shape(kind.shape, sizes)
        return (prod(front), heads, time, head)

    q, k = (shape(value.type) for value in launch.values[:2])
    assert isinstance(launch.kernel, tuple)
    scale, offset = launch.kernel[1:]
    spec = AttentionSpec(
        launch.values[0].type.dtype.name, q[3], causal=offset != "None", scale=float(scale)
    )
    shifted = 0 if offset == "None" else int(offset)
    return spec, AttentionSizes(q[0], q[1], k[1], q[2], k[2], shifted), shape


@binder("attention")
def bind_attention(binding: Binding, launch: Launch) -> Run:
    """What runs attention."""
    spec, sizes, shape = _describe(launch, binding.sizes)
    plan = forward_plan(spec, sizes)
    kernel = _forward(spec, plan)
    how = forward_launch(sizes, plan, binding.stream.device.multiprocessors)
    values = dict(zip(("q", "k", "v", "out", "sums"), launch.values, strict=True))
    shapes = {name: shape(value.type) for name, value in values.items() if name != "sums"}
    return written_kernel_run(binding, launch, kernel, how.blocks, (values, shapes, how.words))


@binder("attention_gradient")
def bind_gradient(binding: Binding, launch: Launch) -> Run:
    """What runs the gradient of attention: sums padded to tiles, the pass, gradients of queries."""
    spec, sizes, shape = _describe(launch, binding.sizes)
    names = ("q", "k", "v", "sums", "dout", "delta", "dq", "dk", "dv")
    values = dict(zip(names, launch.values, strict=True))
    shapes = {n: shape(v.type) for n, v in values.items() if n not in ("sums", "delta")}
    rows = aligned_size(_WIDE * row_numbers(spec, sizes))
    cells = {
        "logs": binding.workspace_cell(0, rows),
        "products": binding.workspace_cell(rows, rows),
        "buffer": binding.workspace_cell(2 * rows, _WIDE * buffer_numbers(spec, sizes)),
    }
    counters = counter_numbers(spec, sizes)
    multiprocessors = binding.stream.device.multiprocessors
    steps = (
        (_kernel(pad_kernel, spec), pad_launch(spec, sizes), cells),
        (
            _kernel(backward_kernel, spec),
            backward_launch(spec, sizes, multiprocessors),
            {**cells, "dq": cells["buffer"]},
        ),
        (_kernel(after_kernel, spec), after_launch(spec, sizes), cells),
    )
    return in_order(
        [
            written_kernel_run(
                binding, launch, kernel, how.blocks, (values, shapes, how.words),
                counters=counters, cells=own,
            )
            for kernel, how, own in steps
        ]
    )  # fmt: skip


@cache
def _forward(spec: AttentionSpec, plan: Any) -> AttentionKernel:
    return forward_kernel(spec, plan)


@cache
def _kernel(write: Any, spec: AttentionSpec) -> AttentionKernel:
    made: AttentionKernel = write(spec)
    return made
