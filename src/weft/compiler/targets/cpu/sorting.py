"""Native functions for `sort`, `argsort`, `top_k` and `searchsorted`.

An element's *key* is an unsigned integer with the same order: NaN is the largest, both zeros are
one, a descending order has all bits turned. A row is sorted as words: a key above, the element's
place below. No two words are equal, so any order of them is the stable one, and the places say
which elements to take. Short rows are sorted by insertion, long ones byte by byte from the lowest
(bytes that are the same all over are skipped). Of a row whose first few are wanted, twice as many
candidates are kept, and thrown out by half. Rows are divided over threads, each with scratch memory
of its own, which is planned with the program's.

>>> import weft as wf
>>> x = wf.tensor([2.0, wf.nan, -1.0, 2.0])
>>> wf.jit(lambda x: (wf.argsort(x), wf.topk(x, 2)[1]))(x)[0].tolist()
[2, 0, 3, 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from weft.compiler.plan.launch import Kind, Launch
from weft.compiler.targets.cpu.cache.kernels import text_symbols
from weft.compiler.targets.cpu.cache.symbols import Origin
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, module_text
from weft.compiler.targets.llvm.sort_keys import MOST, Keys, search_line
from weft.core.dtypes import uint8
from weft.core.errors import UnsupportedError
from weft.core.shapes import Dimension, size, substitute
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Variable
from weft.ir.kinds import Sort

Sizes = Mapping[str, int]

SHORT = 48
"""Elements up to which a row is sorted by insertion."""
FEW = 32
"""Where less than one in so many is wanted, candidates are kept instead of the row sorted."""
SOME = 4
"""The same where candidates are so few that they are sorted by insertion."""
SLICES = 16
"""Into how many parts, each with scratch memory, the rows are divided at most."""
ROOM = 64 << 20
"""Bytes of scratch memory from which there are fewer parts."""
CHUNK = 4096
"""The least elements of a part."""


# --- an array of words -------------------------------------------------------------------------


def _insertion_sort(keys: Keys) -> IRBuilder:
    """`inserted(a, n)`: words in ascending order, each moved down to its place."""
    out = IRBuilder("inserted", ("ptr %a", "i64 %n"))
    with out.loop(1, "%n") as i:
        word = keys.load(out, "%a", i)
        place = out.variable(i)
        with out.repeat():
            out.leave_unless(out.test("sgt", place.value, 0))
            lower = out.sub(place.value, 1)
            other = keys.load(out, "%a", lower)
            out.leave_unless(out.put(f"icmp ugt {keys.word} {other}, {word}"))
            keys.store(out, other, "%a", place.value)
            place.value = lower
        keys.store(out, word, "%a", place.value)
    return out


def _radix_sort(keys: Keys) -> IRBuilder:
    """`distributed(a, b, n)`: words in ascending order by one byte after the other; b is used."""
    out = IRBuilder("distributed", ("ptr %a", "ptr %b", "i64 %n"))
    tables = [out.put("alloca [256 x i64], align 64") for _ in keys.bytes]
    source, target, total = (out.put(f"alloca {kind}") for kind in ("ptr", "ptr", "i64"))
    out.do(f"store ptr %a, ptr {source}")
    out.do(f"store ptr %b, ptr {target}")
    for table in tables:
        out.clear(table, "2048")
    with out.loop(0, "%n") as i:
        word = keys.load(out, "%a", i)
        for table, shift in zip(tables, keys.bytes, strict=True):
            _count_digit(out, table, keys.digit(out, word, shift))
    for table, shift in zip(tables, keys.bytes, strict=True):
        first = keys.digit(out, keys.load(out, "%a", 0), shift)
        with out.when(out.test("ne", out.number(table, first), "%n")):
            _first_places(out, table, total)
            _dealt(out, keys, table, shift, (source, target))
    last = out.put(f"load ptr, ptr {source}")
    with out.when(out.put(f"icmp ne ptr {last}, %a")):
        out.copy("%a", last, out.mul("%n", keys.word_bytes))
    return out


def _count_digit(out: IRBuilder, table: str, digit: str) -> str:
    """Count one more of a digit; how many there were."""
    at = out.at("i64", table, digit)
    old = out.put(f"load i64, ptr {at}")
    out.do(f"store i64 {out.add(old, 1)}, ptr {at}")
    return old


def _first_places(out: IRBuilder, table: str, total: str) -> None:
    """Make of how often each digit comes, where the first with it goes."""
    out.do(f"store i64 0, ptr {total}")
    with out.loop(0, 256) as digit:
        at, before = out.at("i64", table, digit), out.put(f"load i64, ptr {total}")
        out.do(f"store i64 {out.add(before, out.put(f'load i64, ptr {at}'))}, ptr {total}")
        out.do(f"store i64 {before}, ptr {at}")


def _dealt(out: IRBuilder, keys: Keys, table: str, shift: int, cells: tuple[str, str]) -> None:
    """Move the words to where their digits go; the two arrays then change places."""
    source, target = (out.put(f"load ptr, ptr {cell}") for cell in cells)
    with out.loop(0, "%n") as i:
        word = keys.load(out, source, i)
        keys.store(out, word, target, _count_digit(out, table, keys.digit(out, word, shift)))
    out.do(f"store ptr {target}, ptr {cells[0]}")
    out.do(f"store ptr {source}, ptr {cells[1]}")


def _order_words() -> IRBuilder:
    """`ordered(a, b, n)`: words in ascending order, by what is quicker."""
    out = IRBuilder("ordered", ("ptr %a", "ptr %b", "i64 %n"))
    is_short = out.test("sle", "%n", SHORT)
    with out.when(is_short):
        out.call("@inserted", "%a", "%n")
    with out.when(out.put(f"xor i1 {is_short}, true")):
        out.call("@distributed", "%a", "%b", "%n")
    return out


# --- rows --------------------------------------------------------------------------------------


def _order_row(keys: Keys) -> IRBuilder:
    """`whole(x, stride, n, k, a)`: a row as words in order."""
    out = IRBuilder("whole", ("ptr %x", "i64 %stride", "i64 %n", "i64 %k", "ptr %a"))
    with out.loop(0, "%n") as i:
        keys.store(out, keys.word_of(out, "%x", "%stride", i), "%a", i)
    out.call("@ordered", "%a", out.at(keys.word, "%a", "%n"), "%n")
    return out


def _first_few(keys: Keys) -> IRBuilder:
    """`first_few(x, stride, n, k, a)`: the first k words of a row in order.

    Candidates are appended as long as they are below the k-th so far; whenever there are 2k, the
    larger half goes.
    """
    out = IRBuilder("first_few", ("ptr %x", "i64 %stride", "i64 %n", "i64 %k", "ptr %a"))
    limit, count = out.put(f"alloca {keys.word}, align 16"), out.put("alloca i64")
    out.do(f"store {keys.word} -1, ptr {limit}, align 8")
    out.do(f"store i64 0, ptr {count}")
    room, spare = out.mul("%k", 2), out.at(keys.word, "%a", "%n")
    with out.loop(0, "%n") as i:
        word = keys.word_of(out, "%x", "%stride", i)
        most = out.put(f"load {keys.word}, ptr {limit}, align 8")
        with out.when(out.put(f"icmp ult {keys.word} {word}, {most}")):
            held = out.put(f"load i64, ptr {count}")
            keys.store(out, word, "%a", held)
            more = out.add(held, 1)
            out.do(f"store i64 {more}, ptr {count}")
            with out.when(out.test("eq", more, room)):
                out.call("@ordered", "%a", spare, room)
                out.do(f"store i64 %k, ptr {count}")
                last = keys.load(out, "%a", out.sub("%k", 1))
                out.do(f"store {keys.word} {last}, ptr {limit}, align 8")
    held = out.put(f"load i64, ptr {count}")
    out.call("@ordered", "%a", spare, held)
    return out


def _rows(keys: Keys, values: bool, indices: bool) -> IRBuilder:
    """The kernel: it is given n, k, how far apart neighbours are, and the rows of a part."""
    out = IRBuilder("rows", KERNEL, public=True)
    n, k, stride, grain = (out.number("%sizes", place) for place in range(4))
    x, *results, scratch = (out.buffer(place) for place in range(2 + values + indices))
    part = out.mul(out.mul(out.div("%begin", grain), n), 2 * keys.word_bytes)
    a = out.at("i8", scratch, part)
    is_short = out.test("sle", k, SHORT // 2)
    are_few = out.test("slt", out.mul(k, out.select(is_short, SOME, FEW)), n)
    function = out.select(are_few, "@first_few", "@whole")
    with out.loop("%begin", "%end") as row:
        before, inner = out.div(row, stride), out.rem(row, stride)
        start = out.add(out.mul(out.mul(before, n), stride), inner)
        line = out.at(keys.kind, x, start)
        out.call(function, line, stride, n, k, a)
        first = out.add(out.mul(out.mul(before, k), stride), inner)
        with out.loop(0, k) as j:
            place, target = (
                keys.place(out, keys.load(out, a, j)),
                out.add(first, out.mul(j, stride)),
            )
            if values:
                taken = out.at(keys.kind, line, out.mul(place, stride))
                found = out.put(f"load {keys.kind}, ptr {taken}")
                out.do(f"store {keys.kind} {found}, ptr {out.at(keys.kind, results[0], target)}")
            if indices:
                out.do(f"store i64 {place}, ptr {out.at('i64', results[-1], target)}")
    return out


@cache
def _rows_symbol(keys: Keys, values: bool, indices: bool) -> Origin:
    parts = [
        _insertion_sort(keys),
        _radix_sort(keys),
        _order_words(),
        _order_row(keys),
        _first_few(keys),
    ]
    source = module_text(*parts, _rows(keys, values, indices))
    return text_symbols(source, ["rows"])["rows"]


def _search(keys: Keys, side: str) -> IRBuilder:
    """The kernel of `searchsorted`, which is given n and m: each search halves what is left."""
    out = IRBuilder("search", KERNEL, public=True)
    n, m = (out.number("%sizes", place) for place in range(2))
    x, wanted, result = (out.buffer(place) for place in range(3))
    with out.loop("%begin", "%end") as i:
        key = keys.key(out, wanted, i)
        line = out.at(keys.kind, x, out.mul(out.div(i, m), n))
        place = search_line(out, keys, line, n, key, side)
        out.store(place, out.at("i64", result, i))
    return out


@cache
def _search_symbol(keys: Keys, side: str) -> Origin:
    return text_symbols(module_text(_search(keys, side)), ["search"])["search"]


# --- calls -------------------------------------------------------------------------------------


def sort_launches(node: GraphNode) -> list[Launch] | None:
    """The launch of a node that sorts or searches; None for any other, and for complex numbers."""
    is_search = node.primitive.name == "searchsorted"
    if not is_search and not isinstance(node.primitive.kind, Sort):
        return None
    if node.operands[0].type.dtype.is_complex:
        return None
    return [_search_launch(node) if is_search else _sort_launch(node)]


def _sort_launch(node: GraphNode) -> Launch:
    params, kind, axis = node.params, node.operands[0].type, node.params["axis"]
    count: Dimension = kind.shape[axis]
    first: Dimension = params.get("k", count)
    stride = size(kind.shape[axis + 1 :])
    rows = size(kind.shape[:axis]) * stride
    descending = params["largest"] if node.primitive.name == "top_k" else params["descending"]
    keys = Keys(kind.dtype, descending, isinstance(count, int) and count >= MOST)
    parts = _row_parts(rows, count, keys)
    scratch = Variable(TensorType(uint8, (count * (parts * 2 * keys.word_bytes),)))

    def sorting_numbers(sizes: Sizes) -> list[int]:
        found = [int(substitute(dim, dict(sizes))) for dim in (count, first, stride, rows)]
        if found[0] >= MOST and keys.place_bits == 32:
            raise _too_long(node, found[0])
        grain = max(1, -(-found[3] // parts), CHUNK // max(1, found[0]))
        return [*found[:3], grain, found[3] if found[0] and found[1] else 0]

    function = _rows_symbol(keys, node.primitive.name != "argsort", node.primitive.name != "sort")
    return Launch(
        Kind.SORT,
        node.primitive.name,
        function,
        (node.operands[0], *node.results, scratch),
        (*node.results, scratch),
        lambda sizes: sorting_numbers(sizes)[:4],
        lambda sizes: sorting_numbers(sizes)[4],
        lambda sizes: sorting_numbers(sizes)[3],
    )


def _row_parts(rows: Dimension, count: Dimension, keys: Keys) -> int:
    """Into how many parts the rows are divided: few where rows are few, or long."""
    parts = min(rows, SLICES) if isinstance(rows, int) else SLICES
    if isinstance(count, int):
        parts = min(parts, ROOM // max(1, count * 2 * keys.word_bytes))
    return max(1, parts)


def _search_launch(node: GraphNode) -> Launch:
    line, wanted = (atom.type for atom in node.operands)

    def search_numbers(sizes: Sizes) -> list[int]:
        dims = line.shape[-1], wanted.shape[-1], size(wanted.shape)
        return [int(substitute(dim, dict(sizes))) for dim in dims]

    return Launch(
        Kind.SORT,
        "searchsorted",
        _search_symbol(Keys(line.dtype), node.params["side"]),
        (*node.operands, *node.results),
        node.results,
        lambda sizes: search_numbers(sizes)[:2],
        lambda sizes: search_numbers(sizes)[2],
        lambda sizes: max(64, CHUNK // max(1, search_numbers(sizes)[0].bit_length())),
    )


def _too_long(node: GraphNode, count: int) -> UnsupportedError:
    return UnsupportedError(
        node.primitive.name,
        "rows that are as long as this are sorted only where their size is known",
        expected=f"fewer than {MOST} elements along the axis",
        got={"x": node.operands[0].type, "size": count},
        fix="call it for this size alone, or by reference: wf.settings.changed(compiler=False)",
    )
