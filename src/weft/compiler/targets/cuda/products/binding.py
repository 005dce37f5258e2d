"""Products of a plan: the launch of a node, and the kernel that is chosen for its sizes.

>>> import weft as wf
>>> from weft.ir.graph import Literal
>>> graph = wf.ir.trace(lambda a, b: a @ b, *[wf.spec("bfloat16", (64, 64))] * 2)
>>> product_launch(graph.nodes[0]).kernel
('product', 'bfloat16', 'n', 'n')
"""

from __future__ import annotations

from functools import cache, lru_cache

from weft.compiler.lowering.matrix_products import arrange_operands, form_of
from weft.compiler.plan.launch import Kind, Launch, one
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.capabilities import has_warpgroup_products
from weft.compiler.targets.cuda.parameters import written_kernel_run
from weft.compiler.targets.cuda.products.choice import best_plan, kernel_of, launch
from weft.compiler.targets.cuda.products.description import (
    Plan,
    ProductKernel,
    ProductSpec,
    Sizes,
    dtype_bytes,
)
from weft.core.dtypes import bfloat16, float16, float32
from weft.ir.graph import Graph, GraphNode
from weft.ir.walking import Tally
from weft.ops.contraction import dot

MULTIPLIED = (float32, bfloat16, float16)
"""The dtypes that have kernels of their own; others are loops."""
ROW_ALIGNMENT = 16
"""What the bytes of a row are a multiple of, for copies in bulk."""


def is_product(node: GraphNode) -> bool:
    """Whether a node is a product that has a kernel of its own."""
    return (
        node.primitive is dot
        and node.operands[0].type.dtype in MULTIPLIED
        and form_of(node) is not None
    )


def arrange_products(graph: Graph, tally: Tally) -> Graph:
    """The graph with operands of products in an order that kernels take."""
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        is_odd = node.primitive is dot and node.operands[0].type.dtype in MULTIPLIED
        arranged = arrange_operands(node) if is_odd and form_of(node) is None else [node]
        if len(arranged) > 1:
            tally["transpose"] += len(arranged) - 1
        nodes += arranged
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def product_launch(node: GraphNode) -> Launch:
    """The launch of a product."""
    form = form_of(node)
    assert form is not None
    turns = ["t" if turned else "n" for turned in form.turned]
    return Launch(
        Kind.PRODUCT, "dot", ("product", form.dtype.name, *turns),
        (*node.operands, *node.results), node.results, form.numbers, one, one,
    )  # fmt: skip


@binder("product")
def bind_product(binding: Binding, product: Launch) -> Run:
    """What runs a product: the kernel for its sizes, or zeros where nothing is summed."""
    stack, rows, columns, inner = product.numbers(binding.sizes)
    if not stack * rows * columns:
        return lambda: None
    a, b, out = product.values
    if not inner:
        count = stack * rows * columns * out.type.dtype.itemsize
        return lambda: binding.stream.driver(
            "cuMemsetD8Async", binding.address(out), 0, count, binding.stream.handle
        )
    assert isinstance(product.kernel, tuple)
    _, dtype, left, right = product.kernel
    item = dtype_bytes(dtype)
    lines = (rows if left == "t" else inner), (inner if right == "t" else columns)
    spec = ProductSpec(
        dtype,
        output=out.type.dtype.name,
        transpose_a=left == "t",
        transpose_b=right == "t",
        batched=stack > 1,
        aligned=all(line * item % ROW_ALIGNMENT == 0 for line in lines),
        aligned_output=columns * out.type.dtype.itemsize % ROW_ALIGNMENT == 0,
    )
    card = binding.stream.device
    sizes = Sizes(rows, columns, inner, stack)
    has_warpgroups = has_warpgroup_products(card.ordinal)
    kernel = chosen_kernel(spec, sizes, card.multiprocessors, has_warpgroups=has_warpgroups)
    how = launch(kernel, sizes, card.multiprocessors)
    front = (stack,) if stack > 1 else ()
    shapes = {
        "a": (*front, *((inner, rows) if spec.transpose_a else (rows, inner))),
        "b": (*front, *((columns, inner) if spec.transpose_b else (inner, columns))),
        "out": (*front, rows, columns),
    }
    given = {"a": a, "b": b, "out": out}, shapes, how.words
    return written_kernel_run(
        binding, product, kernel, how.blocks, given, how.workspace_bytes, how.counters
    )


@lru_cache(maxsize=4096)
def chosen_kernel(
    spec: ProductSpec, sizes: Sizes, multiprocessors: int, *, has_warpgroups: bool = True
) -> ProductKernel:
    """The kernel for a product of these sizes on a card."""
    plan = best_plan(spec, sizes, multiprocessors, has_warpgroups=has_warpgroups)
    return _kernel(spec, plan)


@cache
def _kernel(spec: ProductSpec, plan: Plan) -> ProductKernel:
    return kernel_of(spec, plan)
