"""Attention of a plan: which nodes have kernels, their launches, and what binds these to memory."""

from __future__ import annotations

from ast import literal_eval
from functools import cache
from math import inf, prod
from typing import Any

from weft.compiler.plan.launch import Kind, Launch, Sizes, Value, no_numbers, one, static_shape
from weft.compiler.targets.cuda.attention.backward import backward_kernel, backward_launch
from weft.compiler.targets.cuda.attention.backward_memory import KEYS
from weft.compiler.targets.cuda.attention.description import (
    HEADS,
    MASKS,
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
    padded_head,
)
from weft.compiler.targets.cuda.attention.forward import (
    forward_kernel,
    forward_launch,
    forward_plan,
)
from weft.compiler.targets.cuda.attention.hiding import keep_threshold
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
from weft.compiler.targets.cuda.capabilities import multiprocessor_count
from weft.compiler.targets.cuda.parameters import counters_cell, written_kernel_run
from weft.core.dtypes import bfloat16, float16
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.graph import GraphNode
from weft.ir.primitive import Primitive
from weft.ops.attention import attention, attention_gradient

_SAMPLES = (1009, 1013, 1019)
"""Sizes that symbols are tried with."""
_VECTOR = 8
"""Numbers of 16 bits that lie at a place for 16 bytes."""
_WIDE = 4
"""Bytes of a float32."""
_OPERANDS = {
    attention: ("q", "k", "v"),
    attention_gradient: ("q", "k", "v", "sums", "dout", "delta"),
}
_RESULTS = {attention: ("out", "sums"), attention_gradient: ("dq", "dk", "dv")}


def is_attention(node: GraphNode) -> bool:
    """Whether attention, or its gradient, has a kernel: 16-bit floats.

    Sizes of the gradient are known; forward, those of batches, queries and keys may be symbols.
    """
    if node.primitive not in _OPERANDS:
        return False
    named = _with_sample_sizes(operand_types(node), allowed=node.primitive is attention)
    if named is None or named["q"].dtype not in (bfloat16, float16):
        return False
    q, k, v = (named[name] for name in "qkv")
    offset, head = node.params["offset"], int(q.shape[-1])
    kept = node.params.get("kept", 1.0)
    return (
        head % _VECTOR == 0
        and head <= HEADS[-1]
        and v.shape[-1] == head
        and 0 < node.params["scale"] < inf
        and (offset is None or (isinstance(offset, int) and offset >= 0))
        and int(k.shape[-2]) > 0
        and (node.primitive is attention or int(k.shape[-2]) <= KEYS * multiprocessor_count())
        and prod(int(dim) for dim in q.shape) > 0
        and ("mask" not in named or mask_strides(named) is not None)
        and draws_in_blocks(named, kept)
        and (node.primitive is attention or head <= HEADS[-2] or kept >= 1)  # no card has run it
    )


def _with_sample_sizes(
    named: dict[str, TensorType], *, allowed: bool
) -> dict[str, TensorType] | None:
    """The types with a size for each symbol, if symbols are allowed; None where none will do.

    What holds for one odd prime each holds for all sizes: a symbol is at least 1, and equal to no
    other. A size that is computed of symbols might be zero.
    """
    shapes = [kind.shape for kind in named.values()]
    unknown = {str(dim) for shape in shapes for dim in shape if not isinstance(dim, int)}
    if not unknown:
        return named
    head = named["q"].shape[-1]
    if not allowed or len(unknown) > len(_SAMPLES) or not isinstance(head, int):
        return None
    if not all(name.isidentifier() for name in unknown):
        return None
    sizes = dict(zip(sorted(unknown), _SAMPLES, strict=False))
    return {name: kind.with_shape(static_shape(kind.shape, sizes)) for name, kind in named.items()}


def operand_types(node: GraphNode) -> dict[str, TensorType]:
    """The types of the operands of attention, or of its gradient, by name."""
    names = _names(node.primitive, len(node.operands), node.params.get("kept", 1.0) < 1)
    kinds = [atom.type for atom in node.operands]
    return dict(zip(names, kinds, strict=True))


def _names(primitive: Primitive, count: int, drops: bool) -> tuple[str, ...]:
    """The names of so many operands: a mask where there is one more, a key where weights drop."""
    names, drawn = _OPERANDS[primitive], ("key", "data") if drops else ()
    return (*names, *(["mask"] if count > len(names) + len(drawn) else []), *drawn)


def mask_strides(named: dict[str, TensorType]) -> tuple[int, int, int] | None:
    """Elements from batch to batch, head to head and row to row of a mask; None for others."""
    mask, (*front, heads, queries, _) = named["mask"], named["q"].shape
    keys, shape = named["k"].shape[-2], mask.shape
    if mask.dtype.name not in MASKS or not shape or shape[-1] != keys:
        return None
    if not all(isinstance(dim, int) for dim in shape):
        return None
    sizes = [1] * (len(front) + 3 - len(shape)) + [int(dim) for dim in shape]
    lead = sizes[: len(front)]
    has_batch = lead == list(front)
    if not has_batch and any(size != 1 for size in lead):
        return None  # some of the batch's axes have strides, and some have none
    line, matrix = sizes[-1], sizes[-1] * sizes[-2]
    strides = (
        matrix * sizes[-3] if has_batch else 0,
        matrix if sizes[-3] == heads and heads != 1 else 0,
        line if sizes[-2] == queries and queries != 1 else 0,
    )
    return strides if max(strides) < 1 << 32 else None


def _aligned_elements(mask: str, keys: int) -> int:
    """How many neighbours of a mask's rows lie at a place where they can be read at once."""
    if mask == "bool" and keys % 16 == 0:
        return 16
    if mask in ("bfloat16", "float16") and keys % 8 == 0:
        return 8
    return 2 if mask and keys % 2 == 0 else 1


def draws_in_blocks(named: dict[str, TensorType], kept: float) -> bool:
    """Whether weights drop by whole blocks of random words, or none does."""
    if kept >= 1:
        return True
    q, k = named["q"].shape, named["k"].shape
    weights = prod(int(dim) for dim in q[:-1]) * int(k[-2])
    in_blocks = int(k[-2]) % 4 == 0 and weights // 4 < 1 << 32
    return in_blocks and kept > 0 and keep_threshold(kept) < 1 << 32 and named["data"].ndim == 0


def attention_launch(node: GraphNode) -> Launch:
    """The launch of attention or of its gradient."""
    name, params = node.primitive.name, node.params
    words = (
        float(params["scale"]), params["offset"], bool(params["guarded"]),
        float(params.get("kept", 1.0)),
    )  # fmt: skip
    return Launch(
        Kind.PRODUCT, name, (name, *map(repr, words)),
        (*node.operands, *node.results), node.results, no_numbers, one, one,
    )  # fmt: skip


@frozen(slots=False)
class _Bound:
    """What a launch of attention is: its kernel's description, sizes, values and shapes."""

    spec: AttentionSpec
    sizes: AttentionSizes
    values: dict[str, Value]
    shapes: dict[str, tuple[int, ...]]


def _describe(primitive: Primitive, launch: Launch, sizes: Sizes) -> _Bound:
    """What a launch is, with shapes of four axes."""
    assert isinstance(launch.kernel, tuple)
    scale, offset, guarded, kept = map(literal_eval, launch.kernel[1:])
    results = _RESULTS[primitive]
    names = _names(primitive, len(launch.values) - len(results), kept < 1)
    values = dict(zip((*names, *results), launch.values, strict=True))
    kinds = {
        name: value.type.with_shape(static_shape(value.type.shape, sizes))
        for name, value in values.items()
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name in {*"qkv", "out", "dout", "dq", "dk", "dv"} & set(values):
        *front, heads, time, head = (int(dim) for dim in kinds[name].shape)
        shapes[name] = (prod(front), heads, time, head)
    (batch, heads, queries, head), (_, key_heads, keys, _) = shapes["q"], shapes["k"]
    mask = kinds["mask"].dtype.name if "mask" in kinds else ""
    strides = (mask_strides(kinds) if mask else None) or (0, 0, 0)
    spec = AttentionSpec(
        kinds["q"].dtype.name, padded_head(head), causal=offset is not None, scale=scale,
        mask=mask, aligned=_aligned_elements(mask, keys), kept=kept, guarded=guarded,
    )  # fmt: skip
    found = AttentionSizes(
        batch, heads, key_heads, queries, keys, offset or 0, head=head, mask_strides=strides
    )
    return _Bound(spec, found, values, shapes)


@binder("attention")
def bind_attention(binding: Binding, launch: Launch) -> Run:
    """What runs attention."""
    bound = _describe(attention, launch, binding.sizes)
    plan = forward_plan(bound.spec, bound.sizes)
    kernel = _forward(bound.spec, plan)
    how = forward_launch(bound.sizes, plan, binding.stream.device.multiprocessors)
    given = (bound.values, bound.shapes, how.words)
    return written_kernel_run(binding, launch, kernel, how.blocks, given)


@binder("attention_gradient")
def bind_gradient(binding: Binding, launch: Launch) -> Run:
    """What runs the gradient of attention: sums padded to tiles, the pass, gradients of queries."""
    bound = _describe(attention_gradient, launch, binding.sizes)
    spec, sizes = bound.spec, bound.sizes
    rows = aligned_size(_WIDE * row_numbers(spec, sizes))
    cells = {
        "logs": binding.workspace_cell(0, rows),
        "products": binding.workspace_cell(rows, rows),
        "buffer": binding.workspace_cell(2 * rows, _WIDE * buffer_numbers(spec, sizes)),
        # The pass counts in them, and the kernel after it makes them zeros again. Its blocks wait
        # for each other, so all must run at once: no other such launch may have some of the card.
        "counters": counters_cell(binding, counter_numbers(spec, sizes), is_alone=True),
    }
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
                binding, launch, kernel, how.blocks, (bound.values, bound.shapes, how.words),
                cells=own,
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
