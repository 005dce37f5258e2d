"""The LLVM target against NumPy and against the reference interpreter, at every vector width."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.compiler import kernels
from tests.compiler.kernels import COLUMN, COLUMNS, PLACE, ROW, ROWS, SIZES, both

from weft.compiler.targets.cpu import engine
from weft.compiler.targets.cpu.engine import (
    assembly,
    call_kernel,
    compile_kernels,
    emit_object,
    load_object,
)
from weft.compiler.targets.llvm.instructions import TABLE
from weft.core.dtypes import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
)
from weft.ir import scalars
from weft.ir.loop_reference import convert
from weft.ir.loops import Accumulate, For, Kernel, Let, Store, Update
from weft.ir.scalars import INSTRUCTIONS, Buffer, Scalar, const, index, local, size

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
REAL = tuple(d for d in DTYPES if not d.is_complex)
EDGES = (0, 1, 2, 15, 16, 17, 63, 64, 65, 67, 131)
COUNT = 67
WIDTHS = (1, 2, 4, 8, 16)
CONSTRUCTOR = {"and": scalars.and_, "or": scalars.or_, "not": scalars.not_}


@pytest.fixture(params=["masked", "unmasked"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The rest of a loop is a masked vector, or scalar as on machines without masks."""
    if request.param == "unmasked":
        plain = engine.host
        monkeypatch.setattr(engine, "host", lambda width=None: replace(plain(width), masked=False))
    return request.param


def samples(dtype: DType, seed: int) -> Array:
    """Numbers with the edges of the dtype among them."""
    random = np.random.default_rng(seed)
    if dtype is bool_:
        return random.integers(0, 2, COUNT).astype(bool)
    if dtype.is_floating:
        found = random.normal(size=COUNT) * 10.0 ** random.integers(-3, 4, COUNT)
        found[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -1.5, 2.5]
        return random.permutation(found).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    found = random.integers(max(limits.min, -100), min(limits.max, 100), COUNT)
    edges = [limits.min, limits.max, 0, 1, limits.max - 1, limits.max // 2, 63, 7]
    return random.permutation(
        np.concatenate([found[8:].astype(dtype.numpy), np.array(edges, dtype.numpy)])
    )


def same(got: Array, expected: Array, message: str = "") -> None:
    """Equal numbers, NaN among them; NumPy does not know the NaNs of bfloat16."""
    assert got.dtype == expected.dtype
    if got.dtype == bfloat16.numpy:
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(got, expected, message)


def elementwise(
    name: str, inputs: list[DType], output: DType, value: Callable[..., Scalar]
) -> Kernel:
    i = index("i")
    buffers = [Buffer(f"x{k}", dtype) for k, dtype in enumerate(inputs)]
    out = Buffer("y", output, "write")
    store = Store(out, i, value(*(b[i] for b in buffers)))
    return Kernel(name, (*buffers, out), ("n",), (For(i, size("n"), (store,), "parallel vector"),))


def run(kernel: Kernel, arrays: list[Array], width: int | None) -> Array:
    result = np.zeros(arrays[0].size, kernel.buffers[-1].dtype.numpy)
    address = compile_kernels([kernel], width=width)[kernel.name]
    call_kernel(address, [*arrays, result], [result.size], 0, result.size)
    return result


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("name", sorted(TABLE))
def test_instructions_agree_with_numpy(name: str, width: int) -> None:
    instruction = INSTRUCTIONS[name]
    make = CONSTRUCTOR.get(name) or getattr(scalars, name)
    dtypes = sorted(instruction.dtypes, key=lambda d: d.name)
    made, given = [], []
    for dtype in dtypes:
        result = bool_ if instruction.result == "bool" else dtype
        made.append(elementwise(dtype.name, [dtype] * instruction.arity, result, make))
        given.append([samples(dtype, seed) for seed in range(instruction.arity)])
    addresses = compile_kernels(made, width=width)
    for kernel, arrays in zip(made, given, strict=True):
        got = np.zeros(COUNT, kernel.buffers[-1].dtype.numpy)
        call_kernel(addresses[kernel.name], [*arrays, got], [COUNT], 0, COUNT)
        with np.errstate(all="ignore"):
            expected = np.array(
                [instruction.reference(*row) for row in zip(*arrays, strict=True)], got.dtype
            )
        same(got, expected, f"{name} of {kernel.name}")


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("source", REAL, ids=str)
def test_casts_agree_with_numpy(source: DType, width: int) -> None:
    x = samples(source, 0)
    made = [elementwise(t.name, [source], t, lambda x, t=t: scalars.cast(x, t)) for t in REAL]
    addresses = compile_kernels(made, width=width)
    for target in REAL:
        got = np.zeros(COUNT, target.numpy)
        call_kernel(addresses[target.name], [x, got], [COUNT], 0, COUNT)
        with np.errstate(all="ignore"):
            expected = np.array([convert(each, target) for each in x], target.numpy)
        same(got, expected, f"{source} to {target}")


@pytest.mark.parametrize("half", [True, False], ids=["processor", "software"])
def test_float16_is_rounded_to_nearest_even(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not half:
        plain = replace(engine.host(), half=False)
        monkeypatch.setattr(engine, "host", lambda width=None: plain)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    widened = elementwise("widen", [float16], float32, lambda x: scalars.cast(x, float32))
    with np.errstate(all="ignore"):  # on ARM, NumPy warns of NaNs that signal
        same(run(widened, [every], None), every.astype(np.float32))
        random = np.random.default_rng(0)
        x = np.concatenate(
            [
                random.integers(0, 1 << 32, 200_000).astype(np.uint32).view(np.float32),
                (every[:-1].astype(np.float32) + every[1:].astype(np.float32)) / 2,
                np.array([65519.996, 65520.0, 2.0**-25, 2.0**-25 * 1.0001], np.float32),
            ]
        )
        narrow = elementwise("narrow", [float32], float16, lambda x: scalars.cast(x, float16))
        same(run(narrow, [x], None), x.astype(np.float16))
        wide = x.astype(np.float64) * (1 + 2.0**-40)
        narrow = elementwise("narrower", [float64], float16, lambda x: scalars.cast(x, float16))
        same(run(narrow, [wide], None), wide.astype(np.float16))


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    x = np.random.default_rng(0).integers(0, 1 << 32, 200_000).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(bfloat16.numpy)
    kernel = elementwise("narrow", [float32], bfloat16, lambda x: scalars.cast(x, bfloat16))
    same(run(kernel, [x], None), expected)
    kernel = elementwise("widen", [bfloat16], float32, lambda x: scalars.cast(x, float32))
    same(run(kernel, [expected], None), expected.astype(np.float32))


# --- kernels -------------------------------------------------------------------------------------


def rows(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("machine")
def test_sums_have_the_documented_order_at_every_width(width: int) -> None:
    x, y = Buffer("x", float32), Buffer("y", float32, "write")
    total, most = local("total", float32), local("most", float32)
    updates = (Update(total, "add", x[PLACE]), Update(most, "maximum", x[PLACE] * x[PLACE]))
    body = (Accumulate(COLUMN, COLUMNS, updates), Store(y, ROW, total + most))
    kernel = Kernel("sums", (x, y), SIZES, (For(ROW, ROWS, body, "parallel"),))
    for columns in EDGES:
        both(kernel, [rows(3 * columns), np.zeros(3, np.float32)], [3, columns], width)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("combine", ["add", "multiply", "maximum", "minimum", "and", "or"])
@pytest.mark.usefixtures("machine")
def test_accumulators_of_every_dtype(combine: Any, width: int) -> None:
    dtypes = sorted(INSTRUCTIONS[combine].dtypes, key=lambda d: d.name)
    for dtype in dtypes:
        columns = 67 if dtype is not float32 else 0
        x, y, found = Buffer("x", dtype), Buffer("y", dtype, "write"), local("found", dtype)
        body = (Accumulate(COLUMN, const(columns, int64), (Update(found, combine, x[COLUMN]),)),)
        kernel = Kernel("all", (x, y), (), (*body, Store(y, const(0, int64), found)))
        both(kernel, [samples(dtype, 1)[:columns], np.zeros(1, dtype.numpy)], [], width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("machine")
def test_softmax_is_close_to_numpy(width: int) -> None:
    address = kernels.address(kernels.softmax(), width)
    for columns in EDGES[1:]:
        x, y = rows(3, columns), np.zeros((3, columns), np.float32)
        call_kernel(address, [x, y], [3, columns], 0, 3)
        risen = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        np.testing.assert_allclose(y, risen / risen.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (5, 16), (7, 67), (3, 131)])
@pytest.mark.usefixtures("machine")
def test_kernels_agree_with_the_reference(shape: tuple[int, int], width: int) -> None:
    m, n = shape
    random = np.random.default_rng(m)
    for_rows, for_columns = np.zeros(m, np.float32), np.zeros(n, np.float32)
    out = np.zeros(m * n, np.float32)
    both(kernels.moments(), [rows(m * n), for_rows, for_rows], [m, n], width)
    both(kernels.column_sums(), [rows(m * n), for_columns], [m, n], width)
    operands = [rows(m * n), rows(m * n), rows(n), rows(m), rows(1), out]
    both(kernels.transposed_sum(), operands, [m, n], width)
    both(kernels.padded(), [rows(m * n), np.zeros(m * (n + 2), np.float32)], [m, n], width)
    both(kernels.scanned(), [rows(m * n), out], [m, n], width)
    numbers, turn = random.integers(0, max(m, 1), m), random.permutation(n).astype(np.int32)
    both(kernels.gathered(), [rows(m * n), numbers, turn, out, out], [m, n], width)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.usefixtures("machine")
def test_random_kernels_agree_with_the_reference(seed: int) -> None:
    random = np.random.default_rng(seed)
    kernel = kernels.random_kernel(random)
    m, n = int(random.integers(1, 4)), int(random.choice(EDGES))
    arrays = [rows(m * n), rows(n), rows(m * n, seed=1), rows(m * n, seed=2)]
    for width in (1, 8, 16):
        both(kernel, arrays, [m, n], width)


@pytest.mark.parametrize("width", [1, 8, 16])
@pytest.mark.usefixtures("machine")
def test_nested_accumulations_unrolled_loops_and_several_axes(width: int) -> None:
    x, y, i, j, k = Buffer("x", float32), Buffer("y", float32, "write"), *map(index, "ijk")
    inner, outer = local("inner", float32), local("outer", float32)
    place = (i * 5 + j) * 67 + k
    body = (
        Accumulate(j, const(5, int64), (Update(outer, "add", inner),), (
            Accumulate(k, const(67, int64), (Update(inner, "add", x[place]),)),
        )),
        For(j, const(3, int64), (Store(y, i * 3 + j, outer + x[i * 5 + j]),), "unrolled"),
    )  # fmt: skip
    kernel = Kernel("nested", (x, y), ("n",), (For(i, size("n"), body, "parallel"),))
    both(kernel, [rows(4 * 5 * 67), np.zeros(12, np.float32)], [4], width)


@pytest.mark.parametrize("width", [1, 8, 16])
@pytest.mark.usefixtures("machine")
def test_a_loop_in_a_vector_loop_sees_one_extent_for_all_lanes(width: int) -> None:
    x, y, i, j = Buffer("x", float32), Buffer("y", float32, "both"), index("i"), index("j")
    n = size("n")
    scaled = local("scaled", float32)
    inner = For(j, n, (Let(scaled, x[j * n + i] * 2), Store(y, j * n + i, y[j * n + i] + scaled)))
    kernel = Kernel("inner", (x, y), ("n",), (For(i, n, (inner,), "vector"),))
    both(kernel, [rows(19 * 19), rows(19 * 19)], [19], width)


def test_parts_of_the_parallel_loop_give_the_same_bits() -> None:
    kernel = kernels.column_sums()
    address = compile_kernels([kernel])["column_sums"]
    x, whole, parts = rows(9, 201), np.zeros(201, np.float32), np.zeros(201, np.float32)
    call_kernel(address, [x, whole], [9, 201], 0, 201)
    for begin in range(0, 201, 37):
        call_kernel(address, [x, parts], [9, 201], begin, min(201, begin + 37))
    same(parts, whole)


@pytest.mark.usefixtures("machine")
def test_nothing_outside_the_range_is_touched() -> None:
    kernel = elementwise("twice", [float32], float32, lambda x: x * 2)
    for width in WIDTHS:
        address = compile_kernels([kernel], width=width)["twice"]
        for n in EDGES:
            x, y = rows(300), np.zeros(300, np.float32)
            call_kernel(address, [x[50:], y[50:]], [n], 0, n)
            assert not y[:50].any()
            assert not y[50 + n :].any()
            same(y[50 : 50 + n], x[50 : 50 + n] * 2)


def test_a_kernel_may_have_the_name_of_a_function_of_the_c_library() -> None:
    kernel = elementwise("tan", [float64], float64, scalars.tan)
    x = samples(float64, 0)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(kernel, [x], None), np.tan(x), rtol=1e-15)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of another kind")
@pytest.mark.parametrize(("processor", "width"), [("x86-64", 4), ("haswell", 8), ("x86-64", 1)])
def test_older_processors_give_the_same_bits(
    processor: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = engine.host()
    if processor == "haswell" and own.width < 8:
        pytest.skip("this machine is older")
    x = samples(float32, 0)
    made = {
        "exp": scalars.exp, "sin": scalars.sin, "rint": scalars.rint,
        "power": lambda x: scalars.power(x, x), "half": lambda x: scalars.round_to(x, float16),
    }  # fmt: skip
    compiled = {name: elementwise(name, [float32], float32, value) for name, value in made.items()}
    expected = {name: run(kernel, [x], None) for name, kernel in compiled.items()}
    older = replace(own, processor=processor, features="", width=width, masked=False, half=False)
    monkeypatch.setattr(engine, "host", lambda width=None: older)
    for name, kernel in compiled.items():
        same(run(kernel, [x], None), expected[name], name)


def test_objects_load_again_and_assembly_is_text() -> None:
    kernel = elementwise("twice", [float32], float32, lambda x: x * 2)
    code = emit_object([kernel])
    x, y = rows(100), np.zeros(100, np.float32)
    for _ in range(2):
        call_kernel(load_object(code, ["twice"])["twice"], [x, y], [100], 0, 100)
        same(y, x * 2)
    assert "weft.twice" in assembly([kernel])


def test_shifts_and_divisions_by_numbers_need_no_care() -> None:
    x = samples(int32, 0)
    made = {
        "up": lambda x: x << 3, "down": lambda x: x >> 40, "part": lambda x: x // 7,
        "rest": lambda x: x % -3, "none": lambda x: x // 0,
    }  # fmt: skip
    for name, value in made.items():
        kernel = elementwise(name, [int32], int32, value)
        both_ways = [run(kernel, [x], width) for width in (1, 16)]
        same(both_ways[0], both_ways[1])
    same(run(elementwise("part", [int32], int32, made["part"]), [x], 16), x // 7)
    same(run(elementwise("rest", [int32], int32, made["rest"]), [x], 16), x % -3)
