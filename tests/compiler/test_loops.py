"""The loop language: nodes, text, digest, verifier and reference interpreter."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.compiler import kernels
from tests.compiler.kernels import COLUMN, COLUMNS, PLACE, ROW, SIZES

from weft.core.dtypes import bool_, float16, float32, float64, int8, int32, int64, uint8
from weft.core.errors import DTypeError, GraphError
from weft.ir import scalars
from weft.ir.loop_reference import OPERATORS, run_reference
from weft.ir.loop_verify import verify_kernel
from weft.ir.loops import Accumulate, For, Kernel, Let, Scratch, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar, coefficient, const, exp, index, load, local, select

X, Y = Buffer("x", float32), Buffer("y", float32, "write")
HERE, N = index("i"), scalars.size("n")
T = local("t", float32)


def kernel(*body: Statement, scratch: tuple[Scratch, ...] = ()) -> Kernel:
    return Kernel("k", (X, Y), ("n",), body, scratch)


# --- nodes ---------------------------------------------------------------------------------------


def test_equal_expressions_are_one_object() -> None:
    assert X[HERE] * 2 + 1 is X[HERE] * 2 + 1
    assert pickle.loads(pickle.dumps(X[HERE] * 2)) is X[HERE] * 2
    assert const(0.0, float32) is not const(-0.0, float32)
    assert const(float("nan"), float32) is const(float("nan"), float32)
    assert const(1, int32) is not const(1.0, float32)


def test_threads_make_one_node() -> None:
    def build(_: int) -> Scalar:
        x: Scalar = X[HERE]
        for step in range(200):
            x = x * (step + 0.5)
        return x

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(build, range(32)))) == 1


def test_a_scalar_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="a Scalar is a value"):
        X[HERE].op = "add"


def test_numbers_take_the_dtype_of_the_other_operand() -> None:
    assert (X[HERE] + 1).args[1] is const(1.0, float32)
    assert (HERE + 1).dtype is int64
    assert const(300, uint8).detail == 44
    assert const(200, int8).detail == -56


def test_index_arithmetic_is_folded_and_floats_are_not() -> None:
    assert HERE * 1 + 0 is HERE
    assert HERE * 0 is const(0, int64)
    assert const(7, int64) // 2 is const(3, int64)
    assert (X[HERE] * 1).op == "multiply"


@pytest.mark.parametrize(
    "make",
    [
        lambda: X[HERE] + HERE,
        lambda: X[HERE] // 2,
        lambda: ~X[HERE],
        lambda: exp(HERE),
        lambda: Buffer("h", float16)[HERE] + 1,
        lambda: select(X[HERE], X[HERE], 0.0),
        lambda: scalars.add(1, 2),
        lambda: scalars.bitcast(X[HERE], int64),
    ],
)
def test_wrong_operands_are_refused_with_their_dtypes(make: object) -> None:
    with pytest.raises(DTypeError, match="does not take these operands"):
        make()  # type: ignore[operator]


def test_coefficients_of_affine_offsets() -> None:
    assert coefficient(PLACE, COLUMN) is const(1, int64)
    assert coefficient(PLACE, ROW) is COLUMNS
    assert coefficient(5 - 2 * COLUMN, COLUMN) is const(-2, int64)
    assert coefficient(COLUMN * COLUMN, COLUMN) is None
    assert coefficient(COLUMN % 3, COLUMN) is None
    numbers = Buffer("numbers", int64)
    assert coefficient(numbers[ROW] * COLUMNS + COLUMN, COLUMN) is const(1, int64)
    assert coefficient(numbers[COLUMN], COLUMN) is None


def test_operators_bind_as_in_python() -> None:
    a, b, c = (local(name, float32) for name in "abc")
    p, q = local("p", bool_), local("q", bool_)
    texts = {
        "a - (b - c)": a - (b - c),
        "a - b - c": (a - b) - c,
        "-(a + b) * c": -(a + b) * c,
        "a / (b * c)": a / (b * c),
        "(a < b) & p": (a < b) & p,
        "(p | q) & p": (p | q) & p,
        "maximum(a, 0.5)": scalars.maximum(a, 0.5),
        "cast<f64>(a)": scalars.cast(a, float64),
        "a * -1": a * -1,
        "a - -0.0": a - -0.0,
    }
    for text, x in texts.items():
        assert str(x) == text


# --- text and digest -----------------------------------------------------------------------------


def test_a_kernel_prints_what_it_does() -> None:
    assert str(kernels.moments()) == (
        "kernel moments(x: read f32, mean: write f32, variance: write f32; rows, columns)\n"
        "  scratch kept: f32[columns]\n"
        "  parallel row < rows\n"
        "    accumulate column < columns\n"
        "      total: f32 add= x[row * columns + column]\n"
        "    let average: f32 = total / cast<f32>(columns)\n"
        "    mean[row] = average\n"
        "    vector column < columns\n"
        "      kept[column] = x[row * columns + column] - average\n"
        "    accumulate column < columns\n"
        "      squares: f32 add= kept[column] * kept[column]\n"
        "    variance[row] = squares / cast<f32>(columns)"
    )


def test_conditions_and_repeated_parts_print() -> None:
    part = exp(X[HERE] * X[HERE] + X[HERE] + 0.1)
    guarded = load(X, HERE - 1, HERE > 0, 7.0)
    body = (Store(Y, HERE, part / (part + guarded), HERE < N),)
    assert str(kernel(For(HERE, N, body, "parallel vector"))).splitlines()[1:] == [
        "  parallel vector i < n",
        "    %0 = exp(x[i] * x[i] + x[i] + 0.1)",
        "    y[i] = %0 / (%0 + x[i - 1, where 0 < i else 7]) where i < n",
    ]


def test_text_grows_with_the_kernel_and_not_with_its_paths() -> None:
    x: Scalar = X[HERE]
    for _ in range(100):
        x = x * x + 1
    made = kernel(For(HERE, N, (Store(Y, HERE, x),)))
    assert len(str(made)) < 10_000
    assert made.digest


def test_deep_expressions_are_no_trouble() -> None:
    x: Scalar = X[HERE]
    for step in range(3000):
        x = x + float(step % 7)
    made = kernel(For(HERE, N, (Store(Y, HERE, x),), "parallel vector"))
    assert max(map(len, str(made).splitlines())) < 1000
    kernels.both(made, [np.ones(3, np.float32), np.zeros(3, np.float32)], [3], None)


def test_a_digest_leaves_names_out_and_nothing_else() -> None:
    def double(name: str, i: str, n: str, factor: float = 2.0, kind: str = "vector") -> Kernel:
        x, y, j = Buffer(f"{name}in", float32), Buffer(f"{name}out", float32, "write"), index(i)
        loop = For(j, scalars.size(n), (Store(y, j, x[j] * factor),), kind)  # type: ignore[arg-type]
        return Kernel(name, (x, y), (n,), (loop,))

    first = double("a", "i", "n").digest
    assert first == double("b", "j", "m").digest
    assert first != double("a", "i", "n", factor=3.0).digest
    assert first != double("a", "i", "n", kind="serial").digest


def test_a_digest_tells_dtypes_of_numbers_and_orders_of_buffers_apart() -> None:
    def cast_of(dtype: object) -> str:
        value = scalars.cast(const(1, dtype), float32)  # type: ignore[arg-type]
        return kernel(Store(Y, const(0, int64), value)).digest

    assert cast_of(int32) != cast_of(int64)
    a, b, out = Buffer("a", float32), Buffer("b", float32), Buffer("out", float32, "write")
    store = Store(out, const(0, int64), a[0] - b[0])
    assert (
        Kernel("k", (a, b, out), (), (store,)).digest
        != Kernel("k", (b, a, out), (), (store,)).digest
    )


def test_iterations_are_counted_from_sizes() -> None:
    blocks = scalars.minimum((N + 63) // 64, 8)
    made = kernel(For(HERE, blocks, (), "parallel"))
    assert [made.iterations({"n": n}) for n in (0, 1, 64, 65, 10_000)] == [0, 1, 1, 2, 8]
    assert kernel(Store(Y, const(0, int64), X[0])).iterations({"n": 3}) == 1


# --- the verifier --------------------------------------------------------------------------------

STORE = Store(Y, HERE, X[HERE])
KEPT = Buffer("kept", float32, "scratch")
BROKEN: dict[str, Kernel] = {
    "used outside its scope": kernel(STORE),
    "a local is defined twice": kernel(Let(T, X[0]), Let(T, X[1])),
    "a local gets a value of another dtype": kernel(Let(T, const(1, int64))),
    "a loop's index is taken": kernel(For(HERE, N, (For(HERE, N, (STORE,)),))),
    "a store to what is not to be written": kernel(For(HERE, N, (Store(X, HERE, X[HERE]),))),
    "a store of another dtype": kernel(For(HERE, N, (Store(Y, HERE, HERE),))),
    "an offset is not an int64": kernel(Store(Y, const(1, int32), X[0])),
    "an extent is not an int64": kernel(For(HERE, const(3, int32), (STORE,))),
    "a size that the kernel is not given": kernel(For(HERE, scalars.size("m"), (STORE,))),
    "a load from another kernel's buffer": kernel(Let(T, Buffer("z", float32)[0])),
    "a parallel loop is not the outermost": kernel(
        For(index("j"), N, (For(HERE, N, (STORE,), "parallel"),))
    ),
    "a vector loop inside another": kernel(
        For(index("j"), N, (For(HERE, N, (STORE,), "vector"),), "vector")
    ),
    "iterations depend on each other": kernel(
        For(HERE, N, (Store(Y, HERE, load(Buffer("y", float32, "write"), HERE + 1)),), "vector")
    ),
    "an extent differs between lanes": kernel(
        For(HERE, N, (For(index("j"), HERE, (STORE,)),), "vector")
    ),
    "a loop cannot be unrolled": kernel(For(HERE, N, (STORE,), "unrolled")),
    "does not combine so": kernel(Accumulate(HERE, N, (Update(T, "and", X[HERE]),))),
    "an accumulator starts with another dtype": kernel(
        Accumulate(HERE, N, (Update(T, "add", X[HERE], const(0, int32)),))
    ),
    "two buffers or sizes have one name": Kernel("k", (X, Buffer("x", int32)), (), ()),
    "scratch memory depends on more than sizes": kernel(scratch=(Scratch(KEPT, HERE),)),
    "a condition is not a bool": kernel(Store(Y, const(0, int64), X[0], const(1, int64))),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_the_verifier_refuses(problem: str) -> None:
    with pytest.raises(GraphError) as caught:
        verify_kernel(BROKEN[problem])
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    "made",
    [
        kernels.softmax(), kernels.moments(), kernels.column_sums(), kernels.transposed_sum(),
        kernels.padded(), kernels.gathered(), kernels.scanned(),
    ],
    ids=lambda made: made.name,
)  # fmt: skip
def test_the_verifier_accepts(made: Kernel) -> None:
    verify_kernel(made)


# --- the reference -------------------------------------------------------------------------------


def test_the_reference_computes_a_softmax() -> None:
    x = np.random.default_rng(0).normal(size=(3, 70)).astype(np.float32)
    y = np.zeros(210, np.float32)
    run_reference(kernels.softmax(), [x.ravel(), y], [3, 70])
    risen = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y.reshape(3, 70), risen / risen.sum(1, keepdims=True), rtol=1e-6)


def test_the_reference_runs_a_part_of_the_parallel_loop() -> None:
    x, y = np.ones(12, np.float32), np.zeros(4, np.float32)
    run_reference(kernels.column_sums(), [x, y], [3, 4], 1, 3)
    assert y.tolist() == [0.0, 4.0, 4.0, 0.0]


def test_the_reference_adds_in_the_documented_order() -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    total = local("total", float32)
    body = (
        Accumulate(COLUMN, COLUMNS, (Update(total, "add", X[COLUMN]),)),
        Store(Y, const(0, int64), total),
    )
    y = np.zeros(1, np.float32)
    run_reference(Kernel("k", (X, Y), SIZES, body), [x, y], [0, 1000])
    parts = np.zeros(64, np.float32)
    for i, value in enumerate(x):
        parts[i % 64] += value
    while parts.size > 1:
        parts = parts[: parts.size // 2] + parts[parts.size // 2 :]
    assert y[0] == parts[0]


def test_the_reference_refuses_offsets_before_the_buffer() -> None:
    with pytest.raises(IndexError, match="negative"):
        run_reference(kernel(Store(Y, const(-1, int64), X[0])), [np.ones(1, "f4")] * 2, [0])


@pytest.mark.parametrize("depth", [1, 12, 13, 30])
def test_the_reference_runs_loops_however_deep_they_are(depth: int) -> None:
    """Sums in the innermost loop reach the outermost, though Python nests only 20 loops."""
    indices = [index(f"i{level}") for level in range(depth)]
    total, place = local("total", float32), sum(indices[1:], indices[0])
    body: tuple[Statement, ...] = (
        Accumulate(COLUMN, COLUMNS, (Update(total, "add", X[COLUMN] * 2),)),
        Store(Y, place, total + Y[place]),
    )
    for level, each in enumerate(indices):
        body = (For(each, const(2 if level < 3 else 1, int64), body),)
    y = np.zeros(4, np.float32)
    run_reference(Kernel("k", (X, Y), SIZES, body), [np.ones(5, np.float32), y], [1, 5])
    assert y.tolist() == {1: [10, 10, 0, 0]}.get(depth, [10, 30, 30, 10])


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_of_numpys_scalars_have_the_bits_of_the_instructions_reference(name: str) -> None:
    instruction = scalars.INSTRUCTIONS[name]
    rng = np.random.default_rng(1)
    for dtype in sorted(instruction.dtypes, key=str):
        values = rng.integers(0, 256, (60, dtype.numpy.itemsize), np.uint8).tobytes()
        numbers = np.frombuffer(values, dtype.numpy if dtype is not bool_ else np.uint8)
        edges = np.array([0, 1, 7, 70], np.uint8).astype(dtype.numpy)
        numbers = np.concatenate([edges, numbers.astype(dtype.numpy)])
        for operands in zip(
            *[rng.permutation(numbers) for _ in range(instruction.arity)], strict=True
        ):
            with np.errstate(all="ignore"):
                wanted = instruction.reference(*operands)
                text = OPERATORS[name].format(*[f"x[{i}]" for i in range(len(operands))])
                computed = eval(text, {"x": operands})
            assert computed.dtype == wanted.dtype
            assert computed.tobytes() == wanted.tobytes()
