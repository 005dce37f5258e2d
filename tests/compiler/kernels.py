"""Kernels that the tests share, and random ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from weft.compiler.targets.cpu import engine
from weft.compiler.targets.cpu.engine import call_kernel, compile_kernels
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType, float32, float64, int32, int64
from weft.ir import scalars
from weft.ir.loop_reference import run_reference
from weft.ir.loop_verify import verify_kernel
from weft.ir.loops import Accumulate, For, Kernel, Let, Scratch, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar, const, exp, index, load, local, size

Array = np.ndarray[Any, Any]
ROW, COLUMN = index("row"), index("column")
ROWS, COLUMNS = size("rows"), size("columns")
PLACE = ROW * COLUMNS + COLUMN
SIZES = ("rows", "columns")


def softmax(dtype: DType = float32) -> Kernel:
    """Row softmax in three passes."""
    x, y = Buffer("x", dtype), Buffer("y", dtype, "write")
    top, total = local("top", dtype), local("total", dtype)
    risen = exp(x[PLACE] - top)
    body = (
        Accumulate(COLUMN, COLUMNS, (Update(top, "maximum", x[PLACE]),)),
        Accumulate(COLUMN, COLUMNS, (Update(total, "add", risen),)),
        For(COLUMN, COLUMNS, (Store(y, PLACE, risen / total),), "vector"),
    )
    return Kernel("softmax", (x, y), SIZES, (For(ROW, ROWS, body, "parallel"),))


def moments() -> Kernel:
    """Mean and variance of rows, with the centred row kept in scratch memory."""
    x, mean, variance = (
        Buffer("x", float32),
        Buffer("mean", float32, "write"),
        Buffer("variance", float32, "write"),
    )
    kept = Buffer("kept", float32, "scratch")
    total, squares, average = (local(n, float32) for n in ("total", "squares", "average"))
    count = scalars.cast(COLUMNS, float32)
    body: tuple[Statement, ...] = (
        Accumulate(COLUMN, COLUMNS, (Update(total, "add", x[PLACE]),)),
        Let(average, total / count),
        Store(mean, ROW, average),
        For(COLUMN, COLUMNS, (Store(kept, COLUMN, x[PLACE] - average),), "vector"),
        Accumulate(COLUMN, COLUMNS, (Update(squares, "add", kept[COLUMN] * kept[COLUMN]),)),
        Store(variance, ROW, squares / count),
    )
    loop = For(ROW, ROWS, body, "parallel")
    return Kernel("moments", (x, mean, variance), SIZES, (loop,), (Scratch(kept, COLUMNS),))


def column_sums() -> Kernel:
    """The sum of each column, a vector of columns at a time."""
    x, y, total = Buffer("x", float32), Buffer("y", float32, "write"), local("total", float32)
    body = (
        Accumulate(ROW, ROWS, (Update(total, "add", x[PLACE], const(1.0, float32)),)),
        Store(y, COLUMN, total),
    )
    return Kernel("column_sums", (x, y), SIZES, (For(COLUMN, COLUMNS, body, "parallel vector"),))


def transposed_sum() -> Kernel:
    """x + y.T + a row + a column + a scalar."""
    names = ("x", "y", "row_vector", "column_vector", "number")
    x, y, along, down, number = (Buffer(name, float32) for name in names)
    out = Buffer("out", float32, "write")
    value = x[PLACE] + y[COLUMN * ROWS + ROW] + along[COLUMN] + down[ROW] + number[0]
    inner = For(COLUMN, COLUMNS, (Store(out, PLACE, value),), "vector")
    loop = For(ROW, ROWS, (inner,), "parallel")
    return Kernel("transposed_sum", (x, y, along, down, number, out), SIZES, (loop,))


def padded() -> Kernel:
    """Rows with one more element at each side, and every second element of another row."""
    x, y = Buffer("x", float32), Buffer("y", float32, "write")
    inside = (0 < COLUMN) & (COLUMN <= COLUMNS)
    value = load(x, ROW * COLUMNS + COLUMN - 1, inside, 7.0)
    store = Store(y, ROW * (COLUMNS + 2) + COLUMN, value, COLUMN < COLUMNS + 1)
    inner = For(COLUMN, COLUMNS + 2, (store,), "vector")
    return Kernel("padded", (x, y), SIZES, (For(ROW, ROWS, (inner,), "parallel"),))


def gathered() -> Kernel:
    """Rows of a table by number; and each element of a row at a place that the row says."""
    table, numbers, turn = Buffer("table", float32), Buffer("numbers", int64), Buffer("turn", int32)
    rows, turned = Buffer("rows_of", float32, "write"), Buffer("turned", float32, "write")
    take = Store(rows, PLACE, table[numbers[ROW] * COLUMNS + COLUMN])
    at = ROW * COLUMNS + scalars.cast(turn[COLUMN], int64)
    inner = For(COLUMN, COLUMNS, (take, Store(turned, at, table[at])), "vector")
    loop = For(ROW, ROWS, (inner,), "parallel")
    return Kernel("gathered", (table, numbers, turn, rows, turned), SIZES, (loop,))


def scanned() -> Kernel:
    """Running sums: each iteration reads what the one before has written."""
    x, y = Buffer("x", float32), Buffer("y", float32, "both")
    before = load(y, PLACE - 1, 0 < COLUMN, 0.0)
    inner = For(COLUMN, COLUMNS, (Store(y, PLACE, x[PLACE] + before),), "serial")
    return Kernel("scanned", (x, y), SIZES, (For(ROW, ROWS, (inner,), "parallel"),))


@cache
def _address(kernel: Kernel, machine: Machine) -> int:
    return compile_kernels([kernel], width=machine.width)[kernel.name]


def address(kernel: Kernel, width: int | None) -> int:
    """The compiled kernel; each is compiled once for all tests."""
    return _address(kernel, engine.host(width))


def both(kernel: Kernel, arrays: list[Array], sizes: list[int], width: int | None) -> list[Array]:
    """The arrays after the compiled kernel, checked against those after the reference."""
    verify_kernel(kernel)
    expected, got = [a.copy() for a in arrays], [a.copy() for a in arrays]
    extent = kernel.iterations(dict(zip(kernel.sizes, sizes, strict=True)))
    run_reference(kernel, expected, sizes, 0, extent)
    call_kernel(address(kernel, width), got, sizes, 0, extent)
    for position, (a, b) in enumerate(zip(expected, got, strict=True)):
        np.testing.assert_array_equal(b, a, f"buffer {position} at width {width}\n{kernel}")
    return got


# --- random kernels ------------------------------------------------------------------------------

EXACT = (
    "add", "subtract", "multiply", "divide", "minimum", "maximum", "negative", "absolute", "sqrt",
    "floor", "rint",
)  # fmt: skip


def random_expression(random: np.random.Generator, leaves: list[Scalar], depth: int) -> Scalar:
    """An expression of float32 whose compiled form must have the reference's bits."""
    if depth == 0 or random.random() < 0.15:
        return leaves[random.integers(len(leaves))]
    if random.random() < 0.2:
        parts = [random_expression(random, leaves, depth - 1) for _ in range(3)]
        return scalars.select(parts[0] < parts[1], parts[2], parts[0])
    if random.random() < 0.1:
        inner = random_expression(random, leaves, depth - 1)
        return scalars.round_to(inner, (float64, int32)[random.integers(2)])
    op = EXACT[random.integers(len(EXACT))]
    arity = scalars.INSTRUCTIONS[op].arity
    operands = [random_expression(random, leaves, depth - 1) for _ in range(arity)]
    return getattr(scalars, op)(*operands)


def random_kernel(random: np.random.Generator) -> Kernel:
    """Rows with a few accumulations and vector loops, each using what came before."""
    inputs, out = [Buffer(name, float32) for name in "xyz"], Buffer("out", float32, "both")
    places = (PLACE, COLUMN, COLUMN * ROWS + ROW)
    leaves = [b[places[k]] for k, b in enumerate(inputs)] + [const(0.75, float32)]
    body: list[Statement] = []
    for step in range(int(random.integers(1, 4))):
        value = random_expression(random, leaves, 4)
        if random.random() < 0.6:
            combine = ("add", "maximum", "minimum", "multiply")[random.integers(4)]
            found = local(f"found{step}", float32)
            body.append(Accumulate(COLUMN, COLUMNS, (Update(found, combine, value),)))
            leaves = [*leaves, found]
        else:
            again = Store(out, PLACE, value + out[PLACE])
            body.append(For(COLUMN, COLUMNS, (again,), "vector"))
    body.append(
        For(COLUMN, COLUMNS, (Store(out, PLACE, random_expression(random, leaves, 3)),), "vector")
    )
    return Kernel("random", (*inputs, out), SIZES, (For(ROW, ROWS, tuple(body), "parallel"),))
