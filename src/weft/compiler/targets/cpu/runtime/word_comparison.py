"""Going through a table of words: whether objects of the interpreter hold what they held.

The table is that of `weft.runtime.object_words`.

>>> known = Struct(", ".join(f"ptr {name}" for name in COMPARED_BY))
>>> "define internal i1 @compare(ptr %words)" in compare_function(known).definition
True
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.targets.llvm.ir_builder import IRBuilder, Record, Struct
from weft.runtime.object_words import DICT, END, WORD

COMPARED_BY = ("PyDict_Size", "PyDict_Next", "PyList_Size", "PyList_GetItem")
"""The functions of the interpreter that say what a container holds."""


def compare_function(known: Struct) -> IRBuilder:
    """`compare(words)`: whether all is as a table says.

    known: the struct `@known` of the module, with the addresses of the functions that are needed.
    """
    out = IRBuilder("compare", ("ptr %words",), result="i1", may_unwind=True)
    functions = out.record(known, "@known")
    rooms = [out.room("i64"), out.room("ptr"), out.room("ptr")]
    at = out.variable(out.parameters[0])
    with out.repeat():
        part = at.value
        kind = out.load("i64", part)
        with out.when(out.test("eq", kind, END)):
            out.give("true")
        place, wanted, items = out.pointer(part, 1), out.number(part, 2), out.at("i64", part, 3)
        with out.choose(out.test("eq", kind, WORD)) as (is_word, is_container):
            with is_word:
                _give_false_unless(out, out.test("eq", out.load("i64", place), wanted))
                at.value = items
            with is_container, out.choose(out.test("eq", kind, DICT)) as (is_dict, is_list):
                with is_dict:
                    at.value = _compare_dict(out, functions, place, wanted, items, rooms)
                with is_list:
                    at.value = _compare_list(out, functions, place, wanted, items)
    return out


def _give_false_unless(out: IRBuilder, condition: str) -> None:
    with out.unless(condition):
        out.give("false")


def _compare_dict(
    out: IRBuilder, functions: Record, place: str, wanted: str, items: str, rooms: Sequence[str]
) -> str:
    """Go on where a dict has these keys and values, by identity, in order; what is behind them."""
    position, key, value = rooms
    size = out.call(functions["PyDict_Size"], place, result="i64")
    _give_false_unless(out, out.test("eq", size, wanted))
    out.store(0, position)
    following = functions["PyDict_Next"]
    with out.loop(0, wanted) as i:
        found = out.call(following, place, position, key, value, result="i32")
        pair = out.at("i64", items, out.mul(i, 2))
        same_key = out.test("eq", out.load("i64", key), out.number(pair, 0))
        same_value = out.test("eq", out.load("i64", value), out.number(pair, 1))
        both = out.combine("and", same_key, same_value)
        _give_false_unless(out, out.combine("and", both, out.test("ne", found, 0)))
    return out.at("i64", items, out.mul(wanted, 2))


def _compare_list(out: IRBuilder, functions: Record, place: str, wanted: str, items: str) -> str:
    """Go on where a list has these items, by identity; what is behind them."""
    size = out.call(functions["PyList_Size"], place, result="i64")
    _give_false_unless(out, out.test("eq", size, wanted))
    item_of = functions["PyList_GetItem"]
    with out.loop(0, wanted) as i:
        item = out.call(item_of, place, i, result="i64")
        _give_false_unless(out, out.test("eq", item, out.number(items, i)))
    return out.at("i64", items, wanted)
