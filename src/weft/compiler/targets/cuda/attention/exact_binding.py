"""Attention of float32 of a plan: which nodes have exact kernels, and what runs these.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> kinds = [wf.spec("float32", (2, 4, 128, 64))] * 3
>>> graph = wf.ir.trace(wf.scaled_dot_product_attention, *kinds)
>>> [launch.name for launch in plan_program(graph, target_named("cuda")).launches]
['exact attention']
"""

from __future__ import annotations

from ast import literal_eval
from math import inf, prod

from weft.compiler.plan.launch import Kind, Launch, no_numbers, one, static_shape
from weft.compiler.targets.cuda.attention.binding import (
    draws_in_blocks,
    mask_strides,
    operand_types,
)
from weft.compiler.targets.cuda.attention.exact_backward import (
    exact_keys_kernel,
    exact_queries_kernel,
)
from weft.compiler.targets.cuda.attention.exact_forward import exact_forward_kernel
from weft.compiler.targets.cuda.attention.exact_tiles import ExactSpec
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.device_text import TextKernel
from weft.compiler.targets.cuda.sorting import Step, bind_steps
from weft.core.dtypes import float32
from weft.core.settings import settings
from weft.ir.graph import GraphNode
from weft.ops.attention import attention, attention_gradient

__all__ = ["exact_attention_launch", "is_exact_attention"]

_RESULTS = {attention: ("out", "sums"), attention_gradient: ("dq", "dk", "dv")}
_LARGEST_HEAD = 128
SIDE = 16
"""Threads along each side of a tile."""
FEWEST_QUERIES = 16
"""Fewer queries leave most of a tile empty: products of one row are spread over more blocks."""
_UNIT = 4
"""Floats that are read at once."""


def is_exact_attention(node: GraphNode) -> bool:
    """Whether attention of float32, or its gradient, has kernels: known sizes.

    Where products of float32 may be rounded to tfloat32, tensor cores make them faster.
    """
    if node.primitive not in _RESULTS:
        return False
    if settings.float32_products == "tfloat32":
        return False
    named = operand_types(node)
    q, k, v = (named[name] for name in "qkv")
    shapes = [*q.shape, *k.shape, *v.shape]
    if q.dtype is not float32 or not all(isinstance(dim, int) and dim > 0 for dim in shapes):
        return False
    offset, head = node.params["offset"], int(q.shape[-1])
    return (
        int(q.shape[-2]) >= FEWEST_QUERIES
        and head % _UNIT == 0
        and head <= _LARGEST_HEAD
        and v.shape[-1] == head
        and 0 < node.params["scale"] < inf
        and (offset is None or (isinstance(offset, int) and offset >= 0))
        and ("mask" not in named or mask_strides(named) is not None)
        and ("mask" not in named or named["mask"].dtype.name in ("bool", "float32"))
        and draws_in_blocks(named, node.params.get("kept", 1.0))
    )


def exact_attention_launch(node: GraphNode) -> Launch:
    """The launch of exact attention, or of its gradient."""
    params, named = node.params, operand_types(node)
    mask = named["mask"].dtype.name if "mask" in named else ""
    strides = (mask_strides(named) if mask else None) or (0, 0, 0)
    words = (
        float(params["scale"]), params["offset"], bool(params["guarded"]),
        float(params.get("kept", 1.0)), mask, *strides,
    )  # fmt: skip
    name = node.primitive.name.replace("attention", "exact attention").replace("_", " ")
    return Launch(
        Kind.PRODUCT, name, (name, *named, *map(repr, words)),
        (*node.operands, *node.results), node.results, no_numbers, one, one,
    )  # fmt: skip


_WORDS = 8


def _describe(
    binding: Binding, launch: Launch, results: tuple[str, ...]
) -> tuple[ExactSpec, dict[str, int], tuple[int, ...], tuple[int, int, int]]:
    """What is computed, cells by name, numbers of all kernels, and lines, queries and keys."""
    assert isinstance(launch.kernel, tuple)
    names = (*launch.kernel[1:-_WORDS], *results)
    scale, offset, guarded, kept, mask, *strides = map(literal_eval, launch.kernel[-_WORDS:])
    values = dict(zip(names, launch.values, strict=True))
    cells = {name: binding.cell(launch, value) for name, value in values.items()}
    *front, heads, queries, head = static_shape(values["q"].type.shape, binding.sizes)
    *_, key_heads, keys, _ = static_shape(values["k"].type.shape, binding.sizes)
    spec = ExactSpec(head, offset is not None, scale, mask, guarded, SIDE, kept)
    numbers = (heads, heads // key_heads, queries, keys, offset or 0, *(strides if mask else ()))
    return spec, cells, numbers, (prod(front) * heads, queries, keys)


def _more_names(spec: ExactSpec) -> tuple[str, ...]:
    """The arrays that only some kernels have."""
    return (*(("mask",) if spec.mask else ()), *(("key", "data") if spec.drops else ()))


def _step(
    kernel: TextKernel, names: tuple[str, ...], lines: int, rows: int, numbers: tuple[int, ...]
) -> Step:
    """The launch of a kernel: a block for each tile of rows of each line."""
    tiles = -(-rows // (4 * SIDE))
    return Step(kernel, lines * tiles, names, (*numbers, tiles))


@binder("exact attention")
def bind_exact_attention(binding: Binding, launch: Launch) -> Run:
    """What runs exact attention."""
    spec, cells, numbers, (lines, queries, _) = _describe(binding, launch, _RESULTS[attention])
    names = ("q", "k", "v", "out", "sums", *_more_names(spec))
    step = _step(exact_forward_kernel(spec), names, lines, queries, numbers)
    return bind_steps(binding, [step], cells)


@binder("exact attention gradient")
def bind_exact_gradient(binding: Binding, launch: Launch) -> Run:
    """What runs the gradient of exact attention: of the queries, then of keys and values."""
    results = _RESULTS[attention_gradient]
    spec, cells, numbers, (lines, queries, keys) = _describe(binding, launch, results)
    given = ("q", "k", "v", "sums", "dout", "delta")
    of_queries = (*given, "dq", *_more_names(spec))
    of_keys = (*given, "dk", "dv", *_more_names(spec))
    steps = [
        _step(exact_queries_kernel(spec), of_queries, lines, queries, numbers),
        _step(exact_keys_kernel(spec), of_keys, lines // numbers[1], keys, numbers),
    ]
    return bind_steps(binding, steps, cells)
