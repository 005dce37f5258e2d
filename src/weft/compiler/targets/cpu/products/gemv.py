"""Products with a vector, which are as quick as the matrix can be read, once.

A matrix whose rows are multiplied term by term (*dots*) is read some rows at a time: each row has
four vectors of sums, which are added up at the end. One whose rows are added up (*sums*) is read in
strips of columns, some rows at a time, and the sums of a strip stay in the innermost cache. Each
element's sum runs in one order, whatever part of the result a call makes. Long sums of float32 are
made in blocks, which are added in float64, so that rounding does not grow with the terms. What is
done to each element of the result can follow in a row fusion, in which elements are the rows.

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

from weft.compiler.fusion.long_sums import BLOCK, SERIAL_BLOCK
from weft.compiler.lowering.matrix_products import Product
from weft.compiler.plan.launch import Kind, Launch, Sizes, Value
from weft.compiler.targets.cpu.cache.kernels import text_symbols
from weft.compiler.targets.cpu.cache.symbols import Origin
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, LocalVariable, module_text
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.ir_vectors import Vectors
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType, float32
from weft.core.records import frozen
from weft.core.shapes import Dimension
from weft.ir.graph import GraphNode, Variable

SUMS = 4
"""The vectors of sums of one row: as many additions are under way at a time."""
LEAST = 256 * 1024
"""The bytes of a matrix from which threads share it: fewer are read before another has begun."""
CHUNK = 128 * 1024
"""The least bytes of a chunk: read in 1 to 4 microseconds, where claiming one takes up to 0.1."""
CHUNKS = 16
"""Into how many chunks a large matrix is cut."""
GROUP = 4
"""What the rows of a chunk are a multiple of."""
NARROW = 512
"""The columns of a strip, where there are twice as many: parts of short rows are slow to read."""
LANES = 16
"""What the columns of a strip are a multiple of."""
LONG = 1024
"""The columns of a strip whose sums are made in blocks: with their totals they fill 12 KB."""


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
    return Shape(dtype, lanes, rows, (8, 1), machine.fuses_multiply_add)


@cache
def functions(dtype: DType, machine: Machine) -> dict[str, Origin]:
    """The symbols of the functions for a dtype."""
    return text_symbols(source(shape_of(dtype, machine)), ("dots", "sums"))


def source(shape: Shape) -> str:
    """The text of the module."""
    dots = {rows: _dots_of_rows(shape, rows) for rows in shape.rows}
    sums = {rows: _sums_of_rows(shape, rows) for rows in shape.terms}
    strip = _strip(shape, sums)
    parts = (*dots.values(), *sums.values(), strip)
    if shape.dtype != float32:
        return module_text(*parts, _dots(shape, dots), _sums(shape, strip, None))
    blocks = _strip_in_blocks(shape, strip)
    return module_text(*parts, blocks, _dots(shape, dots), _sums(shape, strip, blocks))


def _vectors(out: IRBuilder, shape: Shape) -> Vectors:
    return Vectors(out, shape.dtype, shape.lanes, fused=shape.fused)


# --- dots ----------------------------------------------------------------------------------------


def _dots_of_rows(shape: Shape, rows: int) -> IRBuilder:
    """A function `(matrix, vector, terms, result)`: some rows times a vector."""
    out = IRBuilder(f"dots_{rows}", ("ptr %m", "ptr %v", "i64 %terms", "ptr %y"))
    matrix, vector, terms, result = out.parameters
    v = _vectors(out, shape)
    starts = [v.at(matrix, out.mul(terms, r)) for r in range(rows)]

    def store(totals: Sequence[str]) -> None:
        for r, row_sum in enumerate(totals):
            out.store(row_sum, v.at(result, r), v.element, v.align)

    def sum_whole() -> None:
        sums = _dots_until(v, starts, vector, out.variable(0), terms)
        store([_sum_of_lanes(v, of_row) for of_row in sums])

    if shape.dtype != float32:
        sum_whole()
        return out
    with out.choose(out.test("sgt", terms, BLOCK)) as (long, short):
        with long:
            store(_dots_in_blocks(v, starts, vector, terms))
        with short:
            sum_whole()
    return out


def _dots_in_blocks(v: Vectors, starts: Sequence[str], vector: str, terms: str) -> list[str]:
    """The sums of rows that are longer than a block."""
    out, term = v.out, v.out.variable(0)
    wide = [out.variable("0.0", "double") for _ in starts]
    with out.repeat():
        out.leave_unless(out.test("slt", term.value, terms))
        end = out.least(out.add(term.value, BLOCK), terms)
        sums = _dots_until(v, starts, vector, term, end)
        for total, of_row in zip(wide, sums, strict=True):
            block_sum = out.convert("fpext", _sum_of_lanes(v, of_row), "double")
            total.value = out.put(f"fadd double {total.value}, {block_sum}", "double")
    return [out.convert("fptrunc", total.value, v.element) for total in wide]


def _dots_until(
    v: Vectors, starts: Sequence[str], vector: str, term: LocalVariable, end: str
) -> list[list[str]]:
    """The vectors of sums of each row, from a term on up to an end."""
    out, lanes = v.out, v.type.width
    whole = out.sub(end, lanes * SUMS - 1)
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
    # The terms that are no whole round, a vector at a time, in the first sums; of blocks, which are
    # whole rounds, only the last has some.
    with out.repeat():
        now = term.value
        out.leave_unless(out.test("slt", now, end))
        mask = v.mask(out.sub(end, now))
        factor = v.load(v.at(vector, now), mask)
        for start, (total, *_) in zip(starts, sums, strict=True):
            other = v.load(v.at(start, now), mask)
            total.value = v.multiply_add(factor, other, total.value)
        term.value = out.add(now, lanes)
    return [[each.value for each in of_row] for of_row in sums]


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

STRIP = ("ptr %m", "i64 %step", "ptr %v", "ptr %y", "i64 %columns", "i64 %terms")
"""The parameters of a function that adds up rows: columns of a matrix with rows so far apart."""


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


def _strip(shape: Shape, functions: Mapping[int, IRBuilder]) -> IRBuilder:
    """`strip(matrix, step, vector, result, columns, terms)`: the sum of rows, in one order."""
    out = IRBuilder("strip", STRIP)
    matrix, step, vector, result, columns, terms = out.parameters
    v = _vectors(out, shape)
    out.clear(result, out.mul(columns, shape.dtype.itemsize))
    term = out.variable(0)
    for count, function in functions.items():
        with out.groups(term, count, terms) as t:
            start = v.at(matrix, out.mul(t, step))
            out.call(function, start, step, v.at(vector, t), result, columns)
    return out


def _strip_in_blocks(shape: Shape, strip: IRBuilder) -> IRBuilder:
    """The same as `strip` with terms in blocks, whose sums are added in float64."""
    out = IRBuilder("strip_in_blocks", STRIP)
    matrix, step, vector, result, columns, terms = out.parameters
    v = _vectors(out, shape)
    part, totals = out.room(v.element, LONG), out.room("double", LONG)
    with out.loop(0, columns, LONG) as first:
        wide = out.least(out.sub(columns, first), LONG)
        out.clear(totals, out.mul(wide, 8))
        with out.loop(0, terms, SERIAL_BLOCK) as t:
            start = v.at(matrix, out.add(out.mul(t, step), first))
            here = out.least(out.sub(terms, t), SERIAL_BLOCK)
            out.call(strip, start, step, v.at(vector, t), part, wide, here)
            with out.loop(0, wide) as column:
                block_sum = out.load(v.element, v.at(part, column), v.align)
                total = out.at("double", totals, column)
                more = out.convert("fpext", block_sum, "double")
                out.store(
                    out.put(f"fadd double {out.load('double', total)}, {more}", "double"), total
                )
        with out.loop(0, wide) as column:
            total = out.load("double", out.at("double", totals, column))
            rounded = out.convert("fptrunc", total, v.element)
            out.store(rounded, v.at(result, out.add(first, column)), v.element, v.align)
    return out


def _sums(shape: Shape, strip: IRBuilder, blocks: IRBuilder | None) -> IRBuilder:
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
        given = (own_matrix, columns, own_vector, to, wide, terms)
        if blocks is None:
            out.call(strip, *given)
        else:
            with out.choose(out.test("sgt", terms, 2 * SERIAL_BLOCK)) as (long, short):
                with long:
                    out.call(blocks, *given)
                with short:
                    out.call(strip, *given)
        position.value = out.add(now, wide)
    return out
