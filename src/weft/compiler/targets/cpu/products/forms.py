"""Matrix products in compiled programs: which operands a native product takes, and the call of it.

A product of float32 or float64 whose operands are stacks of matrices, each plain or transposed, is
native: generated (select.py), or a call of the BLAS that NumPy brings along. So are products of 32
and 64-bit integers. Those of 16-bit floats become such products where no instruction multiplies
them (low_precision.py); operands in another order are transposed before.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda a, b: a @ b, wf.spec("float32", (4, 3)), wf.spec("float32", (3, 5)))
>>> product_of(graph.nodes[0]).shape
(1, 4, 5, 3)
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from weft.compiler.lowering.matrix_products import Product, arrange_operands, form_of
from weft.compiler.targets.cpu.cache.symbols import finder, remember_address
from weft.compiler.targets.cpu.engine import load_text
from weft.compiler.targets.llvm.ir_builder import (
    KERNEL,
    IRBuilder,
    Struct,
    module_text,
)
from weft.compiler.targets.llvm.ir_types import Type
from weft.core.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from weft.ir.graph import Graph, GraphNode, Variable
from weft.ir.walking import Tally
from weft.ops.conversion import convert

GEMM = {float32: "sgemm", float64: "dgemm"}
"""The dtypes of native products, and what the BLAS calls them."""
WHOLE = (int32, int64, uint32, uint64)
"""The integers that tiles multiply."""
SHORT = (float16, bfloat16)


def product_of(node: GraphNode) -> Product | None:
    """The native product that computes a node; None where there is none.

    Of integers only products of matrices are: those with a vector are loops, quick enough.
    """
    dtype = node.operands[0].type.dtype
    product = form_of(node) if dtype in GEMM or dtype in WHOLE else None
    if product is None or dtype in GEMM:
        return product
    return None if 1 in product.shape[1:3] else product


def arrange_products(graph: Graph, tally: Tally) -> Graph:
    """The graph with products as native ones take them: transposed, and of wide floats."""
    nodes = [each for node in graph.nodes for each in _native(node)]
    added = Counter(node.primitive.name for node in nodes)
    added.subtract(node.primitive.name for node in graph.nodes)
    tally.update(+added)
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def _native(node: GraphNode) -> list[GraphNode]:
    """A node, or a product with what must come before and after it."""
    if node.primitive.name == "dot_wide":
        return [node] if form_of(node) is not None else arrange_operands(node)
    if node.primitive.name != "dot":
        return [node]
    if node.operands[0].type.dtype in SHORT:
        *before, product, after = _widen_product(node)
        return [*before, *_native(product), after]
    dtype = node.operands[0].type.dtype
    is_odd = dtype in GEMM and product_of(node) is None
    return arrange_operands(node) if is_odd else [node]


def _widen_product(node: GraphNode) -> list[GraphNode]:
    """A product of 16-bit floats as one of float32, whose sums are rounded once, at the end."""
    wide = [Variable(replace(atom.type, dtype=float32)) for atom in node.operands]
    total = Variable(replace(node.results[0].type, dtype=float32))
    before = [
        GraphNode(convert, (atom,), {"dtype": float32}, (to,), node.location)
        for atom, to in zip(node.operands, wide, strict=True)
    ]
    product = GraphNode(node.primitive, tuple(wide), node.params, (total,), node.location)
    rounding = {"dtype": node.results[0].type.dtype}
    return [*before, product, GraphNode(convert, (total,), rounding, node.results, node.location)]


@cache
def blas() -> ctypes.CDLL | None:
    """The BLAS that NumPy brings along; None where it cannot be found."""
    folder = Path(np.__file__).parent
    files = [*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")]
    return next((ctypes.CDLL(str(file)) for file in files), None)


@cache
def gemm_address(dtype: DType) -> int | None:
    """Where the BLAS has its product; None where it cannot be found, or has none of a dtype."""
    function = getattr(blas(), f"scipy_cblas_{GEMM.get(dtype)}64_", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let the BLAS use one thread inside: the pool divides products, and pools do not nest."""
    library = blas()
    before = 0 if library is None else library.scipy_openblas_get_num_threads64_()
    if before <= 1 or library is None:
        yield
        return
    library.scipy_openblas_set_num_threads64_(1)
    try:
        yield
    finally:
        library.scipy_openblas_set_num_threads64_(before)


_TABLE = Struct(
    "i64 rows, i64 columns, i64 inner, i64 left, i64 right, i64 left_line, i64 right_line,"
    "i64 step, i64 panel, i64 panels"
)
_ROW_MAJOR = "i32 101"
"""How the BLAS names matrices whose rows lie one after the other."""


def source(dtype: DType, gemm: int | None) -> str:
    """The text of a kernel that calls the BLAS, at an address, for each panel of rows."""
    kind = Type(dtype).text
    out = IRBuilder(GEMM[dtype], KERNEL, public=True, may_unwind=True)
    a, b, c = (out.buffer(place) for place in range(3))
    rows, columns, inner, *orders, lda, ldb, step, panel, panels = out.record(_TABLE, "%sizes").all(
        *_TABLE.names
    )
    orders = [out.convert("trunc", order, "i32") for order in orders]
    a_item, b_item, c_item = (
        out.mul(*pair) for pair in ((rows, inner), (inner, columns), (rows, columns))
    )
    function = out.put(f"inttoptr i64 {gemm} to ptr", "ptr")
    with out.loop("%begin", "%end") as i:
        item, part = out.combine("udiv", i, panels), out.combine("urem", i, panels)
        first = out.mul(part, panel)
        height = out.least(out.sub(rows, first), panel)
        left = out.at(kind, a, out.add(out.mul(item, a_item), out.mul(first, step)))
        right = out.at(kind, b, out.mul(item, b_item))
        to = out.at(kind, c, out.add(out.mul(item, c_item), out.mul(first, columns)))
        sizes = height, columns, inner
        operands = f"{kind} 1.0", left, lda, right, ldb, f"{kind} 0.0", to, columns
        out.call(function, _ROW_MAJOR, *orders, *sizes, *operands)
    return module_text(out)


PLAIN, TURNED = 111, 112
"""How the BLAS names a matrix as it is, and its transpose."""
PANEL = 16_000_000
"""About how many floating-point operations one panel of rows should be."""
ROWS = 64
"""The rows of a panel are a multiple of this."""


def table(product: Product, shape: Sequence[int]) -> list[int]:
    """What the native function is given beside its buffers, for these sizes."""
    _, rows, columns, inner = shape
    left, right = product.turned
    return [
        rows,
        columns,
        inner,
        TURNED if left else PLAIN,
        TURNED if right else PLAIN,
        max(1, rows if left else inner),
        max(1, inner if right else columns),
        1 if left else inner,
        panel_rows(shape),
        panels(shape),
    ]


def panel_rows(shape: Sequence[int]) -> int:
    """How many rows one call of the BLAS makes: what threads claim.

    It depends on the sizes only, so that the bits do not depend on the number of threads.
    """
    _, rows, columns, inner = shape
    worth = PANEL // max(1, 2 * columns * inner) + 1
    return min(max(1, rows), max(ROWS, -(-worth // ROWS) * ROWS))


def product_work(shape: Sequence[int]) -> int:
    """The floating-point operations of one panel."""
    return max(1, 2 * panel_rows(shape) * shape[2] * shape[3])


def panels(shape: Sequence[int]) -> int:
    """Into how many panels of rows each product is cut."""
    return -(-shape[1] // panel_rows(shape))


@cache
def product_address(dtype: DType) -> int:
    """The address of a function with a kernel's signature that makes a stack of products."""
    text = source(dtype, gemm_address(dtype))
    return remember_address(load_text(text, f"weft.{GEMM[dtype]}"), "blas", dtype.name)


finder("blas", lambda name: product_address(as_dtype(name)))
