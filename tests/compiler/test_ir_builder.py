"""Functions written with the builder of LLVM IR, compiled and called."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from weft.compiler.targets.cpu.engine import load_text
from weft.compiler.targets.llvm.ir_builder import IRBuilder, Struct, module_text
from weft.compiler.targets.llvm.ir_vectors import Vectors
from weft.core.dtypes import DType, float64, int64

NUMBER, POINTER = ctypes.c_int64, ctypes.c_void_p


def compiled(function: IRBuilder, *kinds: Any, before: tuple[IRBuilder, ...] = ()) -> Any:
    """The last function of a module, for Python to call; it is called `weft.f`."""
    address = load_text(module_text(*before, function), "weft.f")
    return ctypes.CFUNCTYPE(NUMBER if function.result == "i64" else None, *kinds)(address)


def builder(*parameters: str, result: str = "i64") -> IRBuilder:
    return IRBuilder("f", parameters, public=True, result=result)


def test_variables_change_in_a_loop_until_it_is_left() -> None:
    out = builder("i64 %a", "i64 %b")
    a, b = (out.variable(each) for each in out.parameters)
    with out.repeat():
        out.leave_unless(out.test("ne", b.value, 0))
        a.value, b.value = b.value, out.rem(a.value, b.value)
    out.give(a.value)
    assert compiled(out, NUMBER, NUMBER)(84, 36) == 12


def test_a_function_may_return_from_inside_of_loops() -> None:
    out = builder("i64 %wanted")
    steps = out.variable(0)
    with out.loop(0, 10) as i, out.loop(0, 10) as j:
        steps.value = out.add(steps.value, 1)
        with out.when(out.test("eq", out.mul(i, j), out.parameters[0])):
            out.give(steps.value)
    out.give(-1)
    f = compiled(out, NUMBER)
    assert [f(0), f(6), f(83)] == [1, 17, -1]


def test_both_sides_of_a_choice_may_assign_or_return() -> None:
    out = builder("i64 %x")
    x, result = out.parameters[0], out.variable(5)
    with out.choose(out.test("sgt", x, 0)) as (positive, other):
        with positive:
            result.value = out.mul(x, 2)
        with other:
            with out.when(out.test("eq", x, 0)):
                out.give(100)
            result.value = out.sub(0, x)
    out.give(result.value)
    f = compiled(out, NUMBER)
    assert [f(4), f(0), f(-3)] == [8, 100, 3]


def test_leaving_a_loop_keeps_what_was_assigned_before() -> None:
    out = builder("i64 %limit")
    total, last = out.variable(0), out.variable(-1)
    with out.loop(0, 100) as i:
        total.value = out.add(total.value, i)
        with out.when(out.test("sgt", total.value, out.parameters[0])):
            last.value = i
            out.leave()
    out.give(last.value)
    f = compiled(out, NUMBER)
    assert [f(9), f(10**6)] == [4, -1]


def test_a_loop_that_tests_at_its_end_runs_at_least_once() -> None:
    out = builder("i64 %n")
    count, rest = out.variable(0), out.variable(out.parameters[0])
    with out.repeat():
        count.value, rest.value = out.add(count.value, 1), out.sub(rest.value, 3)
        out.again_if(out.test("sgt", rest.value, 0))
    out.give(out.sub(out.mul(count.value, 100), rest.value))
    f = compiled(out, NUMBER)
    assert [f(0), f(3), f(7)] == [103, 100, 302]


def test_groups_of_falling_sizes_make_up_all_numbers() -> None:
    out = builder("i64 %n")
    position, calls = out.variable(0), out.variable(0)
    for count in (4, 2, 1):
        with out.groups(position, count, out.parameters[0]) as first:
            place = out.add(out.mul(calls.value, 10), first)
            calls.value = place
    out.give(calls.value)
    f = compiled(out, NUMBER)
    assert [f(0), f(3), f(7), f(9)] == [0, 2, 46, 48]


def test_a_variable_that_no_loop_changes_needs_no_phi_node() -> None:
    out = builder("i64 %n")
    kept = out.variable(7)
    with out.loop(0, 3), out.loop(0, out.parameters[0]):
        pass
    with out.when(out.test("sgt", kept.value, 0)):
        kept.value = out.add(kept.value, 1)
    out.give(kept.value)
    assert out.definition.count(" phi ") == 3  # both indices, and the variable behind the condition
    assert compiled(out, NUMBER)(2) == 8


def test_records_lie_as_c_lays_them_out() -> None:
    class Row(ctypes.Structure):
        _fields_ = [("small", ctypes.c_int32), ("large", NUMBER), ("last", ctypes.c_int8)]

    row = Struct("i32 small, i64 large, i8 last")
    out = builder("ptr %rows", "i64 %count", result="void")
    rows, count = out.parameters
    with out.loop(0, count) as i:
        record = out.record(row, rows, i)
        record["large"] = out.convert("sext", record["small"], "i64")
        record["last"] = 3
    array = (Row * 3)(*[Row(-number, 0, 0) for number in range(3)])
    compiled(out, POINTER, NUMBER)(ctypes.addressof(array), 3)
    assert [(each.small, each.large, each.last) for each in array] == [
        (0, 0, 3), (-1, -1, 3), (-2, -2, 3)
    ]  # fmt: skip


@pytest.mark.parametrize(("held", "expected"), [(3, 3 * 1000 + 4), (9, 9 * 1000 + 10)])
def test_a_word_is_exchanged_where_it_is_the_old_one(held: int, expected: int) -> None:
    out = builder("ptr %word")
    word = out.parameters[0]
    found, is_old = out.exchange(word, 3, 4, "acq_rel")
    with out.when(out.combine("xor", is_old, 1)):
        out.fetch("add", word, 1, "monotonic")
    out.give(out.add(out.mul(found, 1000), out.load_atomic(word, "acquire")))
    cell = NUMBER(held)
    assert compiled(out, POINTER)(ctypes.addressof(cell)) == expected


def test_a_module_declares_once_what_its_functions_call() -> None:
    inner = IRBuilder("inner", ("i64 %x",), result="i64")
    inner.give(inner.least(inner.parameters[0], 10))
    out = builder("i64 %x")
    out.give(out.least(out.call(inner, out.parameters[0]), 8))
    assert module_text(inner, out).count("declare") == 1
    assert compiled(out, NUMBER, before=(inner,))(12) == 8


@pytest.mark.parametrize("dtype", [float64, int64], ids=str)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_a_mask_keeps_what_lies_behind_the_last_column(
    dtype: DType, fused: bool, count: int
) -> None:
    out = builder("ptr %x", "ptr %y", "i64 %count", result="void")
    x, y, columns = out.parameters
    v = Vectors(out, dtype, 4, fused=fused)
    mask = v.mask(columns)
    factor = v.splat(out.load(v.element, x))
    v.store(v.multiply_add(factor, v.load(x, mask), v.load(y, mask)), y, mask)
    left, right = np.arange(2, 6).astype(dtype.numpy), np.full(6, 10).astype(dtype.numpy)
    compiled(out, POINTER, POINTER, NUMBER)(left.ctypes.data, right.ctypes.data, count)
    assert right.tolist() == [*(10 + 2 * left[:count]), *[10] * (6 - count)]
