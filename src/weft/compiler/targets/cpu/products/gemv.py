"""Products with a vector, which are as quick as the matrix can be read, once.

A matrix whose rows are multiplied term by term (*dots*) is read some rows at a time: each row has
four vectors of sums, which are added up at the end. One whose rows are added up (*sums*) is read in
strips of columns, some rows at a time, and the sums of a strip stay in the innermost cache. Each
element's sum runs in one order, whatever part of the result a call makes. What is done to each
element of the result can follow in a chain, in which elements are the rows.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.products.forms import product_of
>>> kinds = wf.spec("float32", (1, 784)), wf.spec("float32", (784, 512))
>>> node = wf.ir.trace(lambda x, w: x @ w, *kinds).nodes[0]
>>> [launch.name for launch in vector_launches(node, product_of(node)) or ()]
['sums']
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from weft.compiler.plan.launch import Kind, Launch, Sizes, Value
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import symbol_of
from weft.compiler.targets.cpu.llvm.ir_types import Type, steps
from weft.compiler.targets.cpu.machine import Machine, host
from weft.compiler.targets.cpu.products.forms import Product
from weft.core.dtypes import DType
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


def vector_launches(node: GraphNode, product: Product) -> list[Launch] | None:
    """The launch that makes a product with a vector; None where it is none."""
    left, right = node.operands
    _, rows, columns, _ = product.shape
    if not product.dtype.is_floating or (rows != 1 and columns != 1):
        return None
    if rows == 1:
        launch = _dots_launch if product.turned[1] else _sums_launch
        return [launch(node, product, (right, left), 2)]
    launch = _sums_launch if product.turned[0] else _dots_launch
    return [launch(node, product, (left, right), 1)]


def _dots_launch(
    node: GraphNode, product: Product, given: tuple[Value, Value], axis: int
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
    function = functions(product.dtype)["dots"]
    rows: dict[Variable, Dimension] = {node.results[0]: 1}
    if isinstance(given[0], Variable) and given[0] is not given[1]:
        rows[given[0]] = product.shape[3]
    return Launch(
        Kind.VECTOR_PRODUCT, "dots", symbol_of(function), values, node.results, table, extent,
        grain, by_rows=rows,
    )  # fmt: skip


def _sums_launch(
    node: GraphNode, product: Product, given: tuple[Value, Value], axis: int
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
    function, rows = functions(product.dtype)["sums"], {node.results[0]: 1}
    return Launch(
        Kind.VECTOR_PRODUCT, "sums", symbol_of(function), values, node.results, table, extent,
        grain, by_rows=rows,
    )  # fmt: skip


# --- native functions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
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
def functions(dtype: DType, machine: Machine | None = None) -> dict[str, int]:
    """The addresses of the functions for a dtype."""
    return text_addresses(source(shape_of(dtype, machine or host())), ("dots", "sums"))


def source(shape: Shape) -> str:
    """The text of the module."""
    parts = [*_declared(shape)]
    parts += [_dots_function(shape, rows) for rows in shape.rows]
    parts += [_sums_function(shape, count) for count in shape.terms]
    return "\n".join([*parts, _dots(shape), _sums(shape), ""])


def _declared(shape: Shape) -> Iterator[str]:
    kind = Type(shape.dtype, shape.lanes)
    yield "declare i64 @llvm.smin.i64(i64, i64)"
    yield "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
    yield f"declare {kind.text} @llvm.fma.{kind.suffix}({', '.join([kind.text] * 3)})"
    if kind.width > 1:
        given = f"ptr, i32, {kind.mask}, {kind.text}"
        yield f"declare {kind.text} @llvm.masked.load.{kind.suffix}.p0({given})"
        given = f"{kind.text}, ptr, i32, {kind.mask}"
        yield f"declare void @llvm.masked.store.{kind.suffix}.p0({given})"


def _mask(shape: Shape, count: str, name: str) -> list[str]:
    """The lanes below a count."""
    lanes = shape.lanes
    if lanes == 1:
        return []
    kind = f"<{lanes} x i64>"
    return [
        f"  %{name}.one = insertelement {kind} poison, i64 {count}, i64 0",
        f"  %{name}.all = shufflevector {kind} %{name}.one, {kind} poison, "
        f"<{lanes} x i32> zeroinitializer",
        f"  %{name} = icmp slt {kind} {steps(lanes)}, %{name}.all",
    ]


def _load(shape: Shape, name: str, place: str, mask: str = "") -> str:
    kind, align = Type(shape.dtype, shape.lanes), shape.dtype.itemsize
    if not mask or shape.lanes == 1:
        return f"  {name} = load {kind.text}, ptr {place}, align {align}"
    return (
        f"  {name} = call {kind.text} @llvm.masked.load.{kind.suffix}.p0(ptr {place}, "
        f"i32 {align}, {kind.mask} {mask}, {kind.text} zeroinitializer)"
    )


def _added(shape: Shape, name: str, before: str, x: str, y: str) -> list[str]:
    """One more product in a sum."""
    kind = Type(shape.dtype, shape.lanes)
    if shape.fused:
        given = ", ".join(f"{kind.text} {each}" for each in (x, y, before))
        return [f"  {name} = call {kind.text} @llvm.fma.{kind.suffix}({given})"]
    return [
        f"  {name}.p = fmul {kind.text} {x}, {y}",
        f"  {name} = fadd {kind.text} {before}, {name}.p",
    ]


# --- dots ----------------------------------------------------------------------------------------


def _dots_function(shape: Shape, rows: int) -> str:
    """A function `(matrix, vector, terms, result)`: some rows times a vector."""
    kind, element = Type(shape.dtype, shape.lanes), Type(shape.dtype).text
    lanes = shape.lanes
    sums = [(r, u) for r in range(rows) for u in range(SUMS)]
    lines = [
        f"define internal void @dots_{rows}(ptr %m, ptr %v, i64 %terms, ptr %y)"
        " nounwind noinline {",
        "entry:",
        f"  %whole = sub i64 %terms, {lanes * SUMS - 1}",
        *[f"  %o{r} = mul i64 %terms, {r}" for r in range(rows)],
        *[f"  %m{r} = getelementptr {element}, ptr %m, i64 %o{r}" for r in range(rows)],
        "  br label %head",
        "head:",
        "  %t = phi i64 [0, %entry], [%t.next, %body]",
        *[
            f"  %s{r}.{u} = phi {kind.text} [zeroinitializer, %entry], [%n{r}.{u}, %body]"
            for r, u in sums
        ],
        "  %more = icmp slt i64 %t, %whole",
        "  br i1 %more, label %body, label %rest",
        "body:",
        f"  %t.next = add i64 %t, {lanes * SUMS}",
        f"  %v.at = getelementptr {element}, ptr %v, i64 %t",
    ]
    for u in range(SUMS):
        lines.append(f"  %v{u}.at = getelementptr {element}, ptr %v.at, i64 {u * lanes}")
        lines.append(_load(shape, f"%v{u}", f"%v{u}.at"))
    for r in range(rows):
        lines.append(f"  %m{r}.at = getelementptr {element}, ptr %m{r}, i64 %t")
        for u in range(SUMS):
            lines.append(f"  %a{r}.{u} = getelementptr {element}, ptr %m{r}.at, i64 {u * lanes}")
            lines.append(_load(shape, f"%w{r}.{u}", f"%a{r}.{u}"))
            lines += _added(shape, f"%n{r}.{u}", f"%s{r}.{u}", f"%v{u}", f"%w{r}.{u}")
    lines += ["  br label %head", "rest:", *_rest(shape, rows)]
    for r in range(rows):
        lines += _total(shape, r)
    return "\n".join([*lines, "  ret void", "}"])


def _rest(shape: Shape, rows: int) -> list[str]:
    """The terms that are no whole round, a vector at a time, in the first sums."""
    kind, element, lanes = Type(shape.dtype, shape.lanes).text, Type(shape.dtype).text, shape.lanes
    return [
        "  br label %left",
        "left:",
        "  %e = phi i64 [%t, %rest], [%e.next, %part]",
        *[f"  %q{r} = phi {kind} [%s{r}.0, %rest], [%q{r}.next, %part]" for r in range(rows)],
        "  %some = icmp slt i64 %e, %terms",
        "  br i1 %some, label %part, label %summed",
        "part:",
        f"  %e.next = add i64 %e, {lanes}",
        "  %count = sub i64 %terms, %e",
        *_mask(shape, "%count", "mask"),
        f"  %e.at = getelementptr {element}, ptr %v, i64 %e",
        _load(shape, "%x", "%e.at", "%mask"),
        *[
            line
            for r in range(rows)
            for line in (
                f"  %z{r}.at = getelementptr {element}, ptr %m{r}, i64 %e",
                _load(shape, f"%z{r}", f"%z{r}.at", "%mask"),
                *_added(shape, f"%q{r}.next", f"%q{r}", "%x", f"%z{r}"),
            )
        ],
        "  br label %left",
        "summed:",
    ]


def _total(shape: Shape, r: int) -> Iterator[str]:
    """The sum of a row's lanes, halved again and again, stored."""
    kind, lanes = Type(shape.dtype, shape.lanes).text, shape.lanes
    yield f"  %h{r}.a = fadd {kind} %q{r}, %s{r}.1"
    yield f"  %h{r}.b = fadd {kind} %s{r}.2, %s{r}.3"
    yield f"  %h{r}.{lanes} = fadd {kind} %h{r}.a, %h{r}.b"
    element, width = Type(shape.dtype).text, lanes
    while width > 1:
        half, before = width // 2, Type(shape.dtype, width).text
        after = f"<{half} x {element}>"
        low = ", ".join(f"i32 {i}" for i in range(half))
        high = ", ".join(f"i32 {i + half}" for i in range(half))
        for name, order in (("l", low), ("u", high)):
            yield (
                f"  %{name}{r}.{half} = shufflevector {before} %h{r}.{width}, {before} poison, "
                f"<{half} x i32> <{order}>"
            )
        yield f"  %h{r}.{half}{'.v' if half == 1 else ''} = fadd {after} %l{r}.{half}, %u{r}.{half}"
        width = half
    if lanes > 1:
        yield f"  %h{r}.1 = extractelement <1 x {element}> %h{r}.1.v, i64 0"
    yield f"  %y{r} = getelementptr {element}, ptr %y, i64 {r}"
    yield f"  store {element} %h{r}.1, ptr %y{r}, align {shape.dtype.itemsize}"


def _numbered(names: tuple[str, ...]) -> str:
    """The numbers that a function is given, by name."""
    return "\n".join(
        f"  %{name}.at = getelementptr i64, ptr %sizes, i64 {place}\n"
        f"  %{name} = load i64, ptr %{name}.at"
        for place, name in enumerate(names)
    )


HEAD = """
define void @"weft.$name$"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) nounwind {
entry:
  %matrix = load ptr, ptr %buffers
  %vector.at = getelementptr ptr, ptr %buffers, i64 1
  %vector = load ptr, ptr %vector.at
  %result.at = getelementptr ptr, ptr %buffers, i64 2
  %result = load ptr, ptr %result.at
$numbers$
"""

DOTS = f"""{HEAD}
  br label %head
head:
  %o = phi i64 [%begin, %entry], [%o.next, %item.end]
  %some = icmp slt i64 %o, %end
  br i1 %some, label %item, label %done
item:
  %number = sdiv i64 %o, %outputs
  %passed = mul i64 %number, %outputs
  %row = sub i64 %o, %passed
  %room = sub i64 %outputs, %row
  %wanted = sub i64 %end, %o
  %rows = call i64 @llvm.smin.i64(i64 %room, i64 %wanted)
  %o.next = add i64 %o, %rows
  %v.off = mul i64 %number, %terms
  %v = getelementptr $T$, ptr %vector, i64 %v.off
$groups$
item.end:
  br label %head
done:
  ret void
}}
"""


def _dots(shape: Shape) -> str:
    names = ("terms", "outputs")
    groups = "\n".join(_groups(shape))
    return _filled(DOTS, shape, name="dots", numbers=_numbered(names), groups=groups)


def _groups(shape: Shape) -> Iterator[str]:
    """Loops over groups of rows, as many at a time as there is a function for."""
    element, start, before = Type(shape.dtype).text, "0", "item"
    yield f"  br label %rows{shape.rows[0]}"
    for count, following in zip(shape.rows, [*shape.rows[1:], 0], strict=True):
        after = f"rows{following}" if following else "item.end"
        yield f"rows{count}:"
        yield f"  %d{count} = phi i64 [{start}, %{before}], [%n{count}, %make{count}]"
        yield f"  %n{count} = add i64 %d{count}, {count}"
        yield f"  %fits{count} = icmp sle i64 %n{count}, %rows"
        yield f"  br i1 %fits{count}, label %make{count}, label %{after}"
        yield f"make{count}:"
        yield f"  %at{count} = add i64 %o, %d{count}"
        yield f"  %m.off{count} = mul i64 %at{count}, %terms"
        yield f"  %m{count} = getelementptr {element}, ptr %matrix, i64 %m.off{count}"
        yield f"  %y{count} = getelementptr {element}, ptr %result, i64 %at{count}"
        yield f"  call void @dots_{count}(ptr %m{count}, ptr %v, i64 %terms, ptr %y{count})"
        yield f"  br label %rows{count}"
        start, before = f"%d{count}", f"rows{count}"


def _filled(text: str, shape: Shape, **parts: str) -> str:
    for name, part in {
        "T": Type(shape.dtype).text,
        "bytes": str(shape.dtype.itemsize),
        **parts,
    }.items():
        text = text.replace(f"${name}$", part)
    return text


# --- sums ----------------------------------------------------------------------------------------


def _sums_function(shape: Shape, rows: int) -> str:
    """A function `(matrix, row step, vector, result, columns)`: adds some rows to the result."""
    kind, element, lanes = Type(shape.dtype, shape.lanes).text, Type(shape.dtype).text, shape.lanes
    lines = [
        f"define internal void @sums_{rows}(ptr %m, i64 %step, ptr %v, ptr %y, i64 %columns)"
        " nounwind noinline {",
        "entry:",
        f"  %whole = sub i64 %columns, {lanes - 1}",
        *[line for r in range(rows) for line in _factor(shape, r)],
        "  br label %head",
        "head:",
        "  %c = phi i64 [0, %entry], [%c.next, %body]",
        "  %more = icmp slt i64 %c, %whole",
        "  br i1 %more, label %body, label %rest",
        "body:",
        f"  %c.next = add i64 %c, {lanes}",
        f"  %y.at = getelementptr {element}, ptr %y, i64 %c",
        _load(shape, "%s", "%y.at"),
        *_terms(shape, rows, "s", ""),
        f"  store {kind} %s{rows - 1}, ptr %y.at, align {shape.dtype.itemsize}",
        "  br label %head",
        "rest:",
    ]
    if lanes > 1:
        lines += [
            "  %some = icmp slt i64 %c, %columns",
            "  br i1 %some, label %part, label %done",
            "part:",
            "  %count = sub i64 %columns, %c",
            *_mask(shape, "%count", "mask"),
            f"  %p.at = getelementptr {element}, ptr %y, i64 %c",
            _load(shape, "%p", "%p.at", "%mask"),
            *_terms(shape, rows, "p", "%mask"),
            _masked_store(shape, f"%p{rows - 1}", "%p.at"),
            "  br label %done",
            "done:",
        ]
    return "\n".join([*lines, "  ret void", "}"])


def _factor(shape: Shape, r: int) -> Iterator[str]:
    """A row's element of the vector in all lanes, and where the row is."""
    kind, element, lanes = Type(shape.dtype, shape.lanes).text, Type(shape.dtype).text, shape.lanes
    name = f"%x{r}" if lanes == 1 else f"%x{r}.one"
    yield f"  %x{r}.at = getelementptr {element}, ptr %v, i64 {r}"
    yield f"  {name} = load {element}, ptr %x{r}.at, align {shape.dtype.itemsize}"
    if lanes > 1:
        yield f"  %x{r}.in = insertelement {kind} poison, {element} {name}, i64 0"
        yield (
            f"  %x{r} = shufflevector {kind} %x{r}.in, {kind} poison, "
            f"<{lanes} x i32> zeroinitializer"
        )
    yield f"  %m{r}.off = mul i64 %step, {r}"
    yield f"  %m{r} = getelementptr {element}, ptr %m, i64 %m{r}.off"


def _terms(shape: Shape, rows: int, stem: str, mask: str) -> Iterator[str]:
    """A vector of each row, times the row's factor, added to one of sums."""
    for r in range(rows):
        place, before = f"%{stem}w{r}", f"%{stem}" + (str(r - 1) if r else "")
        yield f"  {place}.at = getelementptr {Type(shape.dtype).text}, ptr %m{r}, i64 %c"
        yield _load(shape, place, f"{place}.at", mask)
        yield from _added(shape, f"%{stem}{r}", before, f"%x{r}", place)


def _masked_store(shape: Shape, value: str, place: str) -> str:
    kind, align = Type(shape.dtype, shape.lanes), shape.dtype.itemsize
    return (
        f"  call void @llvm.masked.store.{kind.suffix}.p0({kind.text} {value}, ptr {place}, "
        f"i32 {align}, {kind.mask} %mask)"
    )


SUMMED = f"""{HEAD}
  %size = mul i64 %terms, %columns
  br label %head
head:
  %p = phi i64 [%begin, %entry], [%p.next, %item.end]
  %some = icmp slt i64 %p, %end
  br i1 %some, label %item, label %done
item:
  %number = sdiv i64 %p, %columns
  %from = srem i64 %p, %columns
  %room = sub i64 %columns, %from
  %wanted = sub i64 %end, %p
  %most = call i64 @llvm.smin.i64(i64 %room, i64 %wanted)
  %wide = call i64 @llvm.smin.i64(i64 %most, i64 %width)
  %p.next = add i64 %p, %wide
  %m.first = mul i64 %number, %size
  %m.off = add i64 %m.first, %from
  %m = getelementptr $T$, ptr %matrix, i64 %m.off
  %v.off = mul i64 %number, %terms
  %v = getelementptr $T$, ptr %vector, i64 %v.off
  %y.first = mul i64 %number, %columns
  %y.off = add i64 %y.first, %from
  %y = getelementptr $T$, ptr %result, i64 %y.off
  %bytes = mul i64 %wide, $bytes$
  call void @llvm.memset.p0.i64(ptr %y, i8 0, i64 %bytes, i1 false)
$groups$
item.end:
  br label %head
done:
  ret void
}}
"""


def _sums(shape: Shape) -> str:
    names = ("terms", "columns", "width")
    return _filled(
        SUMMED, shape, name="sums", numbers=_numbered(names), groups="\n".join(_rounds(shape))
    )


def _rounds(shape: Shape) -> Iterator[str]:
    """Loops over groups of terms, as many at a time as there is a function for."""
    element, start, before = Type(shape.dtype).text, "0", "item"
    yield f"  br label %terms{shape.terms[0]}"
    for count, following in zip(shape.terms, [*shape.terms[1:], 0], strict=True):
        after = f"terms{following}" if following else "item.end"
        yield f"terms{count}:"
        yield f"  %t{count} = phi i64 [{start}, %{before}], [%n{count}, %add{count}]"
        yield f"  %n{count} = add i64 %t{count}, {count}"
        yield f"  %fits{count} = icmp sle i64 %n{count}, %terms"
        yield f"  br i1 %fits{count}, label %add{count}, label %{after}"
        yield f"add{count}:"
        yield f"  %m.off{count} = mul i64 %t{count}, %columns"
        yield f"  %m{count} = getelementptr {element}, ptr %m, i64 %m.off{count}"
        yield f"  %v{count} = getelementptr {element}, ptr %v, i64 %t{count}"
        yield (
            f"  call void @sums_{count}(ptr %m{count}, i64 %columns, ptr %v{count}, ptr %y, "
            "i64 %wide)"
        )
        yield f"  br label %terms{count}"
        start, before = f"%t{count}", f"terms{count}"
