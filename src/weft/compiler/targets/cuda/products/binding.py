"""Products of a plan: the launch of a node, and the kernel that is chosen for its sizes.

>>> import weft as wf
>>> from weft.ir.graph import Literal
>>> graph = wf.ir.trace(lambda a, b: a @ b, *[wf.spec("bfloat16", (64, 64))] * 2)
>>> product_launch(graph.nodes[0]).kernel
('product', 'bfloat16', 'n', 'n')
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256

from weft.compiler.lowering.matrix_products import Product, arrange_operands, form_of
from weft.compiler.plan.launch import Kind, Launch, Value, one
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.capabilities import has_warpgroup_products
from weft.compiler.targets.cuda.parameters import written_kernel_run
from weft.compiler.targets.cuda.products.choice import best_plan, kernel_of, launch
from weft.compiler.targets.cuda.products.description import (
    Matrix,
    Plan,
    ProductKernel,
    ProductSpec,
    Sizes,
    dtype_bytes,
    operands_of,
)
from weft.compiler.targets.cuda.products.fused import (
    MULTIPLIED,
    ROWS_OF_SUM,
    Fused,
    describe_fused,
    is_fused,
)
from weft.compiler.targets.cuda.products.integers import (
    integer_form,
    is_integer_product,
    shorten_products,
)
from weft.compiler.targets.cuda.products.orders import with_rows_inside
from weft.core.dtypes import float32
from weft.core.errors import ArgumentError
from weft.core.settings import settings
from weft.core.shapes import size
from weft.ir.graph import Graph, GraphNode, Variable
from weft.ir.walking import Tally
from weft.ops.contraction import dot

__all__ = [
    "MULTIPLIED", "arrange_products", "bind_product", "chosen_kernel", "is_product",
    "product_launch",
]  # fmt: skip
WAYS = ("exact", "tfloat32")
"""What `settings.float32_products` may be."""
FEWEST_ROUNDED = 1 << 21
"""Multiplications from which float32 is brought to tensor cores, where that is asked for."""
ROW_ALIGNMENT = 16
"""What the bytes of a row are a multiple of, for copies in bulk."""


def is_product(node: GraphNode) -> bool:
    """Whether a node is a product, or one with what follows it, that has a kernel of its own."""
    return (
        is_fused(node)
        or is_integer_product(node)
        or (
            node.primitive is dot
            and node.operands[0].type.dtype in MULTIPLIED
            and form_of(node) is not None
        )
    )


def _rounds_float32() -> bool:
    """Whether tensor cores multiply float32, as tfloat32."""
    way = settings.float32_products
    if way not in WAYS:
        raise ArgumentError(
            "settings",
            "products of float32 are made in one of two ways",
            expected=" or ".join(map(repr, WAYS)),
            got={"float32_products": way},
            fix='wf.settings.float32_products = "tfloat32"',
        )
    return way == "tfloat32"


def _is_rounded(form: Product) -> bool:
    """Whether a product is large enough for tensor cores, and its rows are whole 16 bytes."""
    count = size(form.shape)
    whole = isinstance(form.shape[3], int) and form.shape[3] % (ROW_ALIGNMENT // 4) == 0
    is_large = isinstance(count, int) and count >= FEWEST_ROUNDED
    return form.dtype is float32 and whole and is_large and _rounds_float32()


def arrange_products(graph: Graph, tally: Tally) -> Graph:
    """The graph with operands of products in an order that kernels take."""
    graph = shorten_products(graph, tally)
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        is_odd = node.primitive is dot and node.operands[0].type.dtype in MULTIPLIED
        form = form_of(node) if is_odd else None
        arranged = arrange_operands(node) if is_odd and form is None else [node]
        if form is not None and form.turned != (False, True) and _is_rounded(form):
            arranged = with_rows_inside(node, form)
        if len(arranged) > 1:
            tally["transpose"] += len(arranged) - 1
        nodes += arranged
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def product_launch(node: GraphNode) -> Launch:
    """The launch of a product, or of one with what follows it."""
    if is_integer_product(node):
        dtype, form = integer_form(node)
    elif is_fused(node):
        return _fused_launch(node)
    else:
        found = form_of(node)
        assert found is not None
        dtype, form = _multiplied_as(found), found
    turns = ["t" if turned else "n" for turned in form.turned]
    return Launch(
        Kind.PRODUCT, "dot", ("product", dtype, *turns),
        (*node.operands, *node.results), node.results, form.numbers, one, one,
    )  # fmt: skip


def _multiplied_as(form: Product) -> str:
    return "tfloat32" if form.turned == (False, True) and _is_rounded(form) else form.dtype.name


def _fused_launch(node: GraphNode) -> Launch:
    graph = node.params["graph"]
    fused = describe_fused(graph)
    turns = ["t" if turned else "n" for turned in fused.form.turned]
    digest = sha256(str(graph).encode()).hexdigest()[:16]
    symbol = "product", fused.pair or _multiplied_as(fused.form), *turns, digest
    return Launch(
        Kind.PRODUCT, f"dot+{len(graph.nodes) - 1}", symbol,
        (*node.operands, *node.results), node.results, fused.form.numbers, one, one,
        in_place=tuple(_replaceable_matrices(node, fused)), computes=graph,
    )  # fmt: skip


def _replaceable_matrices(node: GraphNode, fused: Fused) -> Iterator[tuple[Variable, Variable]]:
    """The result and each matrix that is read where the result is then stored."""
    [out] = [
        result for result, name in zip(node.results, fused.stored, strict=True) if name == "out"
    ]
    matrices = {
        each.name for step in fused.steps for each in operands_of(step) if isinstance(each, Matrix)
    }
    for position, name in fused.names:
        operand = node.operands[position]
        if name in matrices and isinstance(operand, Variable) and operand.type == out.type:
            yield out, operand


@binder("product")
def bind_product(binding: Binding, product: Launch) -> Run:
    """What runs a product: the kernel for its sizes, or zeros where nothing is summed."""
    stack, rows, columns, inner = product.numbers(binding.sizes)
    if not stack * rows * columns:
        return binding.native_run()
    values, fused = _named_values(product)
    out = values["out"]
    if not inner:
        count = stack * rows * columns * out.type.dtype.itemsize
        return binding.fill_run(out, 0, count)
    assert isinstance(product.kernel, tuple)
    _, dtype, left, right, *_ = product.kernel
    item = dtype_bytes(dtype)
    lines = (rows if left == "t" else inner), (inner if right == "t" else columns)
    spec = ProductSpec(
        dtype,
        output=out.type.dtype.name,
        transpose_a=left == "t",
        transpose_b=right == "t",
        batched=stack > 1,
        epilogue=() if fused is None else fused.steps,
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
        "sums": (rows // ROWS_OF_SUM, columns),
    }
    whole = (*front, rows, columns)
    shapes |= dict.fromkeys([each.name for each in (*spec.outputs, *spec.matrices)], whole)
    given = values, shapes, how.words
    return written_kernel_run(
        binding, product, kernel, how.blocks, given, how.workspace_bytes, how.counters
    )


def _named_values(product: Launch) -> tuple[dict[str, Value], Fused | None]:
    """The values of a launch by the names that its kernel has for them, and its epilogue."""
    if product.computes is None:
        return dict(zip(("a", "b", "out"), product.values, strict=True)), None
    graph, fused = product.computes, describe_fused(product.computes)
    given = product.values[: len(graph.inputs)]
    values = {name: given[place] for name, place in zip(("a", "b"), fused.factors, strict=True)}
    values |= {name: given[place] for place, name in fused.names}
    return values | dict(zip(fused.stored, product.values[len(given) :], strict=True)), fused


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
