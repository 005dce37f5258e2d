"""Attention of float32 in one pass over the keys, with exact products: no score is stored.

A block has 64 queries of a head. For each 64 keys it computes scores, brings the sums so far to the
new maximum, and adds the weighted values.
"""

from __future__ import annotations

from functools import cache

from weft.compiler.targets.cuda.attention.exact_tiles import (
    LOWEST,
    ExactSpec,
    Sums,
    TileBuilder,
)
from weft.compiler.targets.cuda.device_text import TextKernel
from weft.compiler.targets.llvm.ir_builder import LocalVariable

__all__ = ["exact_forward_kernel"]


@cache
def exact_forward_kernel(spec: ExactSpec) -> TextKernel:
    """The kernel: `out`, and `sums`, the logarithms of the sums of exponentials."""
    out = TileBuilder("exact_attention", ("q", "k", "v", "out", "sums"), spec, blocks=3)
    queries, pairs = out.dynamic_array(spec.across_floats), out.dynamic_array(spec.tile_floats)
    weights = out.dynamic_array(spec.tile * spec.line)
    line, key_line, first = out.query_tile()
    out.load_across(queries, out.line_of("%q", line, "%queries"), first, "%queries")
    keys, values = (out.line_of(name, key_line, "%keys") for name in ("%k", "%v"))
    tops = [out.variable(LOWEST, "float") for _ in range(4)]
    totals = [out.variable("0.0", "float") for _ in range(4)]
    sums = out.zeros(4 * spec.chunks)
    with out.loop(0, out.end_of_keys(first), spec.tile) as key:
        out.load_across(pairs, keys, key, "%keys")
        out.wait()
        products = out.zeros(4)
        out.multiply(products, queries, pairs, spec.line, spec.head)
        powers = _powers(out, products, (tops, totals, sums), (line, first, key))
        out.store_turned(weights, powers)
        out.wait()
        out.load_along(pairs, values, key, "%keys")
        out.wait()
        out.multiply(sums, weights, pairs, spec.row, spec.tile)
        out.wait()
    _finish(out, line, first, (tops, totals, sums))
    return out.kernel()


State = tuple[list[LocalVariable], list[LocalVariable], Sums]
"""For each of a thread's rows: the largest score, the sum of its own exponentials, the result."""


def _powers(
    out: TileBuilder, products: Sums, state: State, where: tuple[str, str, str]
) -> list[list[str]]:
    """Exponentials of scores below the new maximum; the state is brought to it."""
    line, first, key = where
    found = []
    for number, (row, top, total, result) in enumerate(zip(products, *state, strict=True)):
        query = out.add(out.add(first, out.rows), number)
        keys = [out.add(out.add(key, out.columns), n) for n in range(4)]
        scores = [out.score(p.value, line, query, k) for p, k in zip(row, keys, strict=True)]
        highest = top.value
        own = scores[0]
        for score in scores[1:]:
            own = out.larger(own, score)
        highest = out.larger(highest, out.over_row("max", own))
        is_nothing = out.put(f"fcmp oeq float {highest}, {LOWEST}", "i1")
        base = out.choose_float(is_nothing, "0.0", highest)
        factor = out.exp(out.floats("fsub", top.value, base))
        powers = [out.exp(out.floats("fsub", score, base)) for score in scores]
        total.value = out.floats("fmul", total.value, factor)
        for power in powers:
            total.value = out.floats("fadd", total.value, power)
        for each in result:
            each.value = out.floats("fmul", each.value, factor)
        top.value = highest
        if out.spec.drops:
            stays = out.stays(line, query, keys[0])
            powers = [out.drop(*pair) for pair in zip(stays, powers, strict=True)]
        found.append(powers)
    return found


def _finish(out: TileBuilder, line: str, first: str, state: State) -> None:
    """Divide by the sums, and store results and logarithms."""
    rows = []
    for number, (top, own, result) in enumerate(zip(*state, strict=True)):
        total = out.over_row("fadd", own.value)
        is_empty = out.put(f"fcmp oeq float {total}, 0.0", "i1")
        divisor = out.choose_float(is_empty, "1.0", total) if out.spec.guarded else total
        rows.append([out.floats("fdiv", each.value, divisor) for each in result])
        safe = out.choose_float(is_empty, "1.0", total)
        log = out.floats("fadd", top.value, out.log(safe))
        row = out.add(out.add(first, out.rows), number)
        leads = out.test("eq", out.columns, 0), out.test("slt", row, "%queries")
        with out.when(out.all_of(*leads)):
            cell = out.add(out.mul(line, "%queries"), row)
            out.store(log, out.at("float", "%sums", cell), "float")
    out.store_rows(out.line_of("%out", line, "%queries"), first, "%queries", rows)
