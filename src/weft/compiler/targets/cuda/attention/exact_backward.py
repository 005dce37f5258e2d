"""The gradient of attention of float32, with exact products, in two kernels.

One has a block for 64 queries and goes over the keys, the other a block for 64 keys and goes over
the queries that see them, of all heads that share them. Both compute weights anew from scores and
the logarithms of their sums. Two products are made twice so, but every sum has one block and one
order: nobody waits, and nothing is added in memory.
"""

from __future__ import annotations

from functools import cache

from weft.compiler.targets.cuda.attention.exact_tiles import (
    LOWEST,
    ExactSpec,
    Sums,
    TileBuilder,
    float_text,
)
from weft.compiler.targets.cuda.device_text import TextKernel

__all__ = ["exact_keys_kernel", "exact_queries_kernel"]

_POINTERS = ("q", "k", "v", "sums", "dout", "delta")


@cache
def exact_queries_kernel(spec: ExactSpec) -> TextKernel:
    """The kernel of the gradient of the queries."""
    out = TileBuilder("exact_gradient_of_queries", (*_POINTERS, "dq"), spec, blocks=2)
    queries, cotangents = (out.dynamic_array(spec.across_floats) for _ in range(2))
    keys, values = out.dynamic_array(spec.tile_floats), out.dynamic_array(spec.across_floats)
    turned = out.dynamic_array(spec.tile * spec.line)
    line, key_line, first = out.query_tile()
    for array, name in ((queries, "%q"), (cotangents, "%dout")):
        out.load_across(array, out.line_of(name, line, "%queries"), first, "%queries")
    own_keys, own_values = (out.line_of(name, key_line, "%keys") for name in ("%k", "%v"))
    rows = [out.add(out.add(first, out.rows), number) for number in range(4)]
    numbers = [_row_numbers(out, line, row) for row in rows]
    gradient = out.zeros(4 * spec.chunks)
    with out.loop(0, out.end_of_keys(first), spec.tile) as key:
        out.load_across(keys, own_keys, key, "%keys")
        out.load_across(values, own_values, key, "%keys")
        out.wait()
        products, back = out.zeros(4), out.zeros(4)
        out.multiply(products, queries, keys, spec.line, spec.head)
        out.multiply(back, cotangents, values, spec.line, spec.head)
        found = []
        for number, (scores, weights) in enumerate(zip(products, back, strict=True)):
            places = [out.add(out.add(key, out.columns), n) for n in range(4)]
            stays = out.stays(line, rows[number], places[0]) if spec.drops else [""] * 4
            pairs = [
                _of_score(
                    out, line, (rows[number], place), numbers[number], (s.value, w.value), stay
                )
                for place, s, w, stay in zip(places, scores, weights, stays, strict=True)
            ]
            found.append([change for _, change in pairs])
        out.store_turned(turned, found)
        out.wait()
        out.load_along(keys, own_keys, key, "%keys")
        out.wait()
        out.multiply(gradient, turned, keys, spec.row, spec.tile)
        out.wait()
    target = out.line_of("%dq", line, "%queries")
    out.store_rows(target, first, "%queries", [[each.value for each in row] for row in gradient])
    return out.kernel()


def _row_numbers(out: TileBuilder, line: str, query: str) -> tuple[str, str]:
    """The logarithm of a query's sum, and what is subtracted from its weights' cotangents."""
    place = out.least(query, out.sub("%queries", 1))
    cell = out.add(out.mul(line, "%queries"), place)
    log, delta = (out.load("float", out.at("float", name, cell)) for name in ("%sums", "%delta"))
    if out.spec.guarded:
        is_nothing = out.put(f"fcmp oeq float {log}, {LOWEST}", "i1")
        log = out.choose_float(is_nothing, "0.0", log)
    return log, delta


def _of_score(
    out: TileBuilder,
    line: str,
    place: tuple[str, str],
    numbers: tuple[str, str],
    products: tuple[str, str],
    stays: str,
) -> tuple[str, str]:
    """The weight of a query and a key, after dropout, and the cotangent of their product.

    products: of the query and the key, and of the cotangent and the value.
    """
    query, key = place
    log, delta = numbers
    product, back = products
    if out.spec.drops:
        back = out.drop(stays, back)
    score = out.score(product, line, query, key)
    weight = out.exp(out.floats("fsub", score, log))
    # a query behind the last reads the numbers of the last one, which may be no numbers
    weight = out.choose_float(out.test("slt", query, "%queries"), weight, "0.0")
    change = out.floats("fmul", weight, out.floats("fsub", back, delta))
    change = out.floats("fmul", change, float_text(out.spec.scale))
    if out.spec.drops:
        weight = out.drop(stays, weight)
    return weight, out.choose_float(out.test("slt", query, "%queries"), change, "0.0")


@cache
def exact_keys_kernel(spec: ExactSpec) -> TextKernel:
    """The kernel of the gradients of keys and values; its tiles are tiles of keys."""
    out = TileBuilder("exact_gradient_of_keys", (*_POINTERS, "dk", "dv"), spec, blocks=2)
    keys, values = (out.dynamic_array(spec.across_floats) for _ in range(2))
    queries, cotangents = (out.dynamic_array(spec.tile_floats) for _ in range(2))
    turned = out.dynamic_array(spec.tile * spec.line)
    first = out.mul(out.rem(out.block_number, "%tiles"), spec.tile)
    key_line = out.div(out.block_number, "%tiles")
    for array, name in ((keys, "%k"), (values, "%v")):
        out.load_across(array, out.line_of(name, key_line, "%keys"), first, "%keys")
    of_keys, of_values = out.zeros(4 * spec.chunks), out.zeros(4 * spec.chunks)
    start = "0"
    if spec.causal:  # tiles before see no key of this block
        start = out.mul(out.div(out.most(out.sub(first, "%offset"), 0), spec.tile), spec.tile)
    lines = out.mul(key_line, "%group")
    with (
        out.loop(lines, out.add(lines, "%group")) as line,
        out.loop(start, "%queries", spec.tile) as at,
    ):
        sources = [out.line_of(name, line, "%queries") for name in ("%q", "%dout")]
        for array, source in zip((queries, cotangents), sources, strict=True):
            out.load_across(array, source, at, "%queries")
        out.wait()
        products, back = out.zeros(4), out.zeros(4)
        out.multiply(products, keys, queries, spec.line, spec.head)
        out.multiply(back, values, cotangents, spec.line, spec.head)
        weights, changes = _of_keys(out, products, back, (line, first, at))
        out.store_turned(turned, weights)
        out.wait()
        for array, source in zip((queries, cotangents), sources, strict=True):
            out.load_along(array, source, at, "%queries")
        out.wait()
        out.multiply(of_values, turned, cotangents, spec.row, spec.tile)
        out.wait()
        out.store_turned(turned, changes)
        out.wait()
        out.multiply(of_keys, turned, queries, spec.row, spec.tile)
        out.wait()
    for name, sums in (("%dk", of_keys), ("%dv", of_values)):
        target = out.line_of(name, key_line, "%keys")
        out.store_rows(target, first, "%keys", [[each.value for each in row] for row in sums])
    return out.kernel()


def _of_keys(
    out: TileBuilder, products: Sums, back: Sums, where: tuple[str, str, str]
) -> tuple[list[list[str]], list[list[str]]]:
    """Weights, and cotangents of products, of a thread's keys and queries."""
    line, first, query = where
    queries = [out.add(out.add(query, out.columns), number) for number in range(4)]
    numbers = [_row_numbers(out, line, each) for each in queries]
    weights: list[list[str]] = []
    changes: list[list[str]] = []
    own = out.add(first, out.rows)
    # for each query whether its weights of the thread's four keys stay
    stays = [out.stays(line, each, own) if out.spec.drops else [""] * 4 for each in queries]
    for number, (scores, cotangents) in enumerate(zip(products, back, strict=True)):
        key = out.add(own, number)
        pairs = [
            _of_score(out, line, (q, key), known, (s.value, c.value), stay[number])
            for q, known, s, c, stay in zip(
                queries, numbers, scores, cotangents, stays, strict=True
            )
        ]
        weights.append([weight for weight, _ in pairs])
        changes.append([change for _, change in pairs])
    return weights, changes
