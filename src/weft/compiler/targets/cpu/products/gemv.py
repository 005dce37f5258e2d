"""Products with a vector, which are as quick as the matrix can be read, once.

A matrix whose rows are multiplied term by term (*dots*) is read some rows at a time: each row has
four vectors of sums, which are added up at the end. One whose rows are added up (*sums*) is read in
strips of columns, some rows at a time, and the sums of a strip stay in the innermost cache. Each
element's sum runs in one order, whatever part of the result a call makes. What is done to each
element of the result can follow in a chain, in which elements are the rows.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.machine import host
>>> from weft.compiler.targets.cpu.products.forms import product_of
>>> kinds = wf.spec("float32", (1, 784)), wf.spec("float32", (784, 512))
>>> node = wf.ir.trace(lambda x, w: x @ w, *kinds).nodes[0]
>>> [launch.name for launch in vector_launches(node, product_of(node), host()) or ()]
['sums']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from weft.compiler.lowering.matrix_products import Product
from weft.compiler.plan.launch import Kind, Launch, Sizes, Value
from weft.compiler.targets.cpu.cache.kernels import text_symbols
from weft.compiler.targets.cpu.cache.symbols import Origin
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, module_text
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.ir_vectors import Vectors
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType
from weft.core.records import frozen
from weft.core.shapes import Dimension
from weft.ir.graph import GraphNode, Variable

SUMS = 4
"""The vectors of sums of one row: as many additions are under way at a time."""
LEAST = 256 * 1024
"""The bytes of a matrix from which threads share it: fewer are read before another has begun."""
CHUNK = 32 * 1024
"""The least bytes of a chunk."""
CHUNKS = 16
"""Into how many chunks a large matrix is cut."""
GROUP = 4
"""What the rows of a chunk are a multiple of."""
NARROW = 512
"""The columns of a strip, where there are twice as many: parts of short rows are slow to read."""
LANES = 16
"""What the columns of a strip are a multiple of."""


def vector_launches(node: GraphNode, product: Product, machine: Machine) -> list[Launch] | None:
    """The launch that makes a product with a vector; None where it is none."""
    left, right = node.operands
    _, rows, columns, _ = product.shape
    if not product.dtype.is_floating or (rows != 1 and columns != 1):
        return None
    if rows == 1:
        # A single column lies as a row does, and a row has several sums.
        is_row = product.turned[1] or columns == 1
        launch = _dots_launch if is_row else _sums_launch
        return [launch(node, product, (right, left), 2, machine)]
    launch = _sums_launch if product.turned[0] else _dots_launch
    return [launch(node, product, (left, right), 1, machine)]


def _dots_launch(
    node: GraphNode, product: Product, given: tuple[Value, Value], axis: int, machine: Machine
) -> Launch:
    """The launch that multiplies the rows of a matrix; `axis`: where they are in the shape."""
    size = product.dtype.itemsize

    def table(sizes: Sizes) -> list[int]:
        shape = product.numbers(sizes)
        return [shape[3], shape[axis]]

    def extent(sizes: Sizes) -> int:
        shape = product.numbers(sizes)
        return shape[0] * shape[axis]

    def grain(sizes: Sizes) -> int:
        row, total = max(1, product.numbers(sizes)[3] * size), extent(sizes)
        if row * total < LEAST:
            return max(1, total)
        return -(-max(CHUNK // row, total // CHUNKS, 1) // GROUP) * GROUP

    values = (*given, *node.results)
    function = functions(product.dtype, machine)["dots"]
    rows: dict[Variable, Dimension] = {node.results[0]: 1}
    if isinstance(given[0], Variable) and given[0] is not given[1]:
        rows[given[0]] = product.shape[3]
    return Launch(
        Kind.VECTOR_PRODUCT, "dots", function, values, node.results, table, extent,
        grain, by_rows=rows,
    )  # fmt: skip


def _sums_launch(
    node: GraphNode, product: Product, given: tuple[Value, Value], axis: int, machine: Machine
) -> Launch:
    """The launch that adds up the rows of a matrix; `axis`: where its columns are in the shape."""
    size = product.dtype.itemsize

    def width(sizes: Sizes) -> int:
        shape = product.numbers(sizes)
        columns = shape[axis]
        if columns * shape[3] * size < LEAST:
            return columns
        wanted = max(min(NARROW, -(-columns // 2)), -(-columns // CHUNKS))
        return -(-wanted // LANES) * LANES

    def table(sizes: Sizes) -> list[int]:
        shape = product.numbers(sizes)
        return [shape[3], shape[axis], width(sizes)]

    def extent(sizes: Sizes) -> int:
        shape = product.numbers(sizes)
        return shape[0] * shape[axis]

    def grain(sizes: Sizes) -> int:
        terms, total, wide = product.numbers(sizes)[3], extent(sizes), width(sizes)
        if terms * total * size < LEAST:
            return max(1, total)
        return max(1, wide * max(1, CHUNK // max(1, terms * wide * size)))

    values = (*given, *node.results)
    function, rows = functions(product.dtype, machine)["sums"], {node.results[0]: 1}
    return Launch(
        Kind.VECTOR_PRODUCT, "sums", function, values, node.results, table, extent,
        grain, by_rows=rows,
    )  # fmt: skip


# --- native functions ----------------------------------------------------------------------------


@frozen
class Shape:
    """How many rows, or vectors of columns, are multiplied at a time; lanes; fused or not."""

    dtype: DType
    lanes: int
    rows: tuple[int, ...]
    terms: tuple[int, ...]
    fused: bool


def shape_of(dtype: DType, machine: Machine) -> Shape:
    """What fits a machine's registers: 32 of them hold sums of four rows, 16 of two."""
    lanes = max(1, machine.width * 4 // dtype.itemsize)
    rows = (4, 1) if machine.registers == 32 else (2, 1)
    return Shape(dtype, lanes, rows, (8, 1), machine.fused)


@cache
def functions(dtype: DType, machine: Machine) -> dict[str, Origin]:
    """The symbols of the functions for a dtype."""
    return text_symbols(source(shape_of(dtype, machine)), ("dots", "sums"))


def source(shape: Shape) -> str:
    """The text of the module."""
    dots = {rows: _dots_of_rows(shape, rows) for rows in shape.rows}
    sums = {rows: _sums_of_rows(shape, rows) for rows in shape.terms}
    return module_text(*dots.values(), *sums.values(), _dots(shape, dots), _sums(shape, sums))


def _vectors(out: IRBuilder, shape: Shape) -> Vectors:
    return Vectors(out, shape.dtype, shape.lanes, fused=shape.fused)


# --- dots ----------------------------------------------------------------------------------------


def _dots_of_rows(shape: Shape, rows: int) -> IRBuilder:
    """A function `(matrix, vector, terms, result)`: some rows times a vector."""
    out = IRBuilder(f"dots_{rows}", ("ptr %m", "ptr %v", "i64 %terms", "ptr %y"))
    matrix, vector, terms, result = out.parameters
    v, lanes = _vectors(out, shape), shape.lanes
    whole = out.sub(terms, lanes * SUMS - 1)
    starts = [v.at(matrix, out.mul(terms, r)) for r in range(rows)]
    term = out.variable(0)
    sums = [[out.variable("zeroinitializer", v.kind) for _ in range(SUMS)] for _ in starts]
    with out.repeat():
        now = term.value
        out.leave_unless(out.test("slt", now, whole))
        place = v.at(vector, now)
        factors = [v.load(v.at(place, u * lanes)) for u in range(SUMS)]
        for start, of_row in zip(starts, sums, strict=True):
            place = v.at(start, now)
            for u, (factor, total) in enumerate(zip(factors, of_row, strict=True)):
                other = v.load(v.at(place, u * lanes))
                total.value = v.multiply_add(factor, other, total.value)
        term.value = out.add(now, lanes * SUMS)
    # The terms that are no whole round, a vector at a time, in the first sums.
    with out.repeat():
        now = term.value
        out.leave_unless(out.test("slt", now, terms))
        mask = v.mask(out.sub(terms, now))
        factor = v.load(v.at(vector, now), mask)
        for start, (total, *_) in zip(starts, sums, strict=True):
            other = v.load(v.at(start, now), mask)
            total.value = v.multiply_add(factor, other, total.value)
        term.value = out.add(now, lanes)
    for r, of_row in enumerate(sums):
        row_sum = _sum_of_lanes(v, [each.value for each in of_row])
        out.store(row_sum, v.at(result, r), v.element, v.align)
    return out


def _sum_of_lanes(v: Vectors, sums: Sequence[str]) -> str:
    """The sum of a row's four vectors and of its lanes, halved again and again."""
    a, b, c, d = sums
    total, width = v.add(v.add(a, b), v.add(c, d)), v.type.width
    while width > 1:
        width //= 2
        before, after = (Type(v.type.dtype, each).text for each in (2 * width, width))
        after = f"<1 x {v.element}>" if width == 1 else after
        halves = []
        for first in (0, width):
            order = ", ".join(f"i32 {first + lane}" for lane in range(width))
            mask = f"<{width} x i32> <{order}>"
            halves.append(
                v.out.put(f"shufflevector {before} {total}, {before} poison, {mask}", after)
            )
        total = v.out.put(f"fadd {after} {halves[0]}, {halves[1]}", after)
    if v.type.width == 1:
        return total
    return v.out.put(f"extractelement <1 x {v.element}> {total}, i64 0", v.element)


def _dots(shape: Shape, functions: Mapping[int, IRBuilder]) -> IRBuilder:
    """`dots(...)`: some elements of a stack of products, in groups of rows that have a function."""
    out = IRBuilder("dots", KERNEL, public=True)
    v, (_, sizes, begin, end) = _vectors(out, shape), out.parameters
    matrix, vector, result = (out.buffer(place) for place in range(3))
    terms, outputs = out.number(sizes, 0), out.number(sizes, 1)
    output = out.variable(begin)
    with out.repeat():
        now = output.value
        out.leave_unless(out.test("slt", now, end))
        number = out.div(now, outputs)
        row = out.sub(now, out.mul(number, outputs))
        rows = out.least(out.sub(outputs, row), out.sub(end, now))
        own_vector = v.at(vector, out.mul(number, terms))
        done = out.variable(0)
        for count, function in functions.items():
            with out.groups(done, count, rows) as first:
                place = out.add(now, first)
                start = v.at(matrix, out.mul(place, terms))
                out.call(function, start, own_vector, terms, v.at(result, place))
        output.value = out.add(now, rows)
    return out


# --- sums ----------------------------------------------------------------------------------------


def _sums_of_rows(shape: Shape, rows: int) -> IRBuilder:
    """A function `(matrix, row step, vector, result, columns)`: adds some rows to the result."""
    given = ("ptr %m", "i64 %step", "ptr %v", "ptr %y", "i64 %columns")
    out = IRBuilder(f"sums_{rows}", given)
    matrix, step, vector, result, columns = out.parameters
    v, lanes = _vectors(out, shape), shape.lanes
    whole = out.sub(columns, lanes - 1)
    factors, starts = list[str](), list[str]()
    for r in range(rows):
        factors.append(v.splat(out.load(v.element, v.at(vector, r), v.align)))
        starts.append(v.at(matrix, out.mul(step, r)))

    def add_rows(column: str, mask: str = "") -> None:
        place = v.at(result, column)
        total = v.load(place, mask)
        for factor, start in zip(factors, starts, strict=True):
            total = v.multiply_add(factor, v.load(v.at(start, column), mask), total)
        v.store(total, place, mask)

    column = out.variable(0)
    with out.repeat():
        now = column.value
        out.leave_unless(out.test("slt", now, whole))
        add_rows(now)
        column.value = out.add(now, lanes)
    if lanes > 1:
        with out.when(out.test("slt", column.value, columns)):
            add_rows(column.value, v.mask(out.sub(columns, column.value)))
    return out


def _sums(shape: Shape, functions: Mapping[int, IRBuilder]) -> IRBuilder:
    """`sums(...)`: some elements of a stack of products, strip by strip of columns."""
    out = IRBuilder("sums", KERNEL, public=True)
    v, (_, sizes, begin, end) = _vectors(out, shape), out.parameters
    matrix, vector, result = (out.buffer(place) for place in range(3))
    terms, columns, width = (out.number(sizes, place) for place in range(3))
    item_size = out.mul(terms, columns)
    position = out.variable(begin)
    with out.repeat():
        now = position.value
        out.leave_unless(out.test("slt", now, end))
        number, first = out.div(now, columns), out.rem(now, columns)
        there = out.least(out.sub(columns, first), out.sub(end, now))
        wide = out.least(there, width)
        own_matrix = v.at(matrix, out.add(out.mul(number, item_size), first))
        own_vector = v.at(vector, out.mul(number, terms))
        to = v.at(result, out.add(out.mul(number, columns), first))
        out.clear(to, out.mul(wide, shape.dtype.itemsize))
        term = out.variable(0)
        for count, function in functions.items():
            with out.groups(term, count, terms) as t:
                start = v.at(own_matrix, out.mul(t, columns))
                out.call(function, start, columns, v.at(own_vector, t), to, wide)
        position.value = out.add(now, wide)
    return out
