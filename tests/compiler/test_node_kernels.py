"""Kernels of single nodes give what the references give, for every dtype, size and error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.lowering.nodes import NODE_KERNELS
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.target import compile_program
from weft.core.dtypes import as_dtype
from weft.core.errors import Unsupported
from weft.core.types import TensorType
from weft.ir.dispatch import bind
from weft.ir.kinds import Control, Elementwise
from weft.ir.loop_verify import verify_kernel
from weft.ir.loops import For, Statement
from weft.ir.primitive import PRIMITIVES, Sample
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import trace

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
Params = dict[str, Any]


def program_of(name: str, operands: Sequence[Array], params: Params, *symbols: int) -> Program:
    """The program of one node; axes of size in `symbols` have unknown sizes."""

    def f(*given: Tensor) -> list[Tensor]:
        return [bind(PRIMITIVES[name], *given, **params)]

    types = [symbolic(wrap(x).type, symbols) for x in operands]
    return compile_program(trace(f, types).graph)


def symbolic(kind: TensorType, symbols: Sequence[int]) -> TensorType:
    shape = tuple(f"n{dim}" if dim in symbols else dim for dim in kind.shape)
    return wf.spec(kind.dtype.name, shape)


def is_compiled(program: Program) -> bool:
    """Whether nothing is called by reference; kernels must keep the rules of the language."""
    for lowered in program.plan.every_lowered:
        verify_kernel(lowered.kernel)
    return all(call.node is None for call in program.plan.launches)


def agree(
    name: str, found: Array, operands: Sequence[Array], params: Params, result: int = 0
) -> None:
    with np.errstate(all="ignore"):
        results = PRIMITIVES[name].reference(*operands, **params)
    expected = np.asarray(results[result] if PRIMITIVES[name].multiple else results)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    limit = {2: 2e-2, 4: 2e-5, 8: 1e-11}[found.dtype.itemsize]
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit * scale)


def is_real(sample: Sample) -> bool:
    wanted = getattr(sample.params.get("dtype"), "is_complex", False)
    return not wanted and not any(np.iscomplexobj(x) for x in sample.operands)


COMPILED = sorted(
    name
    for name, primitive in PRIMITIVES.items()
    if not isinstance(primitive.lower, Unsupported)
    and not isinstance(primitive.kind, Elementwise | Control)
)
"""What is not called by reference; element-wise expressions have tests of their own."""


def test_what_has_a_kernel_is_among_what_is_compiled() -> None:
    assert set(NODE_KERNELS) - set(COMPILED) == {"bitcast"}


@pytest.mark.parametrize("name", [*COMPILED, "bitcast"])
def test_no_sample_is_called_by_reference(name: str) -> None:
    if name == "conv_last_weight_gradient" and not host().masked:
        pytest.skip("without masks the layout pass makes it of whole vectors only")
    primitive = PRIMITIVES[name]
    samples = [sample for sample in primitive.samples() if is_real(sample)]
    arrays = [np.asarray(x) for sample in samples for x in sample.operands]

    def f(*operands: Tensor) -> list[Tensor]:
        rest = list(operands)
        found = [
            bind(primitive, *[rest.pop(0) for _ in sample.operands], **sample.params)
            for sample in samples
        ]
        return [x for each in found for x in (each if primitive.multiple else (each,))]

    program = compile_program(trace(f, [wrap(a).type for a in arrays]).graph)
    assert is_compiled(program)
    results = program.run(arrays)
    count = len(results) // len(samples)
    for number, found in enumerate(results):
        sample = samples[number // count]
        operands = [np.asarray(x) for x in sample.operands]
        agree(name, found, operands, sample.params, number % count)


# --- larger operands, other dtypes, unknown sizes ------------------------------------------------

CONV: Params = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
ODD: Params = {"strides": (2, 3), "padding": ((2, 0), (0, 1)), "dilation": (2, 1), "groups": 3}
LONG: Params = {"strides": (2,), "padding": ((3, 2),), "dilation": (2,), "groups": 1}
POOL: Params = {
    "window": (3, 2),
    "strides": (2, 2),
    "padding": ((1, 1), (0, 1)),
    "dilation": (1, 1),
}
WIDE: Params = {
    "window": (9, 9),
    "strides": (2, 1),
    "padding": ((4, 4), (0, 0)),
    "dilation": (1, 1),
}
LINE: Params = {"axis": 1, "reverse": False}
Shapes = tuple[tuple[int, ...], ...]

CASES: dict[str, tuple[str, Shapes, Params]] = {
    "conv": ("conv", ((7, 5, 9, 11), (6, 5, 3, 3)), CONV),
    "conv with everything": ("conv", ((4, 6, 13, 17), (9, 2, 3, 5)), ODD),
    "conv of a line": ("conv", ((7, 3, 301), (5, 3, 4)), LONG),
    "conv of a large image": ("conv", ((2, 40, 33, 31), (11, 40, 3, 3)), CONV),
    "input gradient": (
        "conv_input_gradient",
        ((7, 6, 9, 11), (6, 5, 3, 3)),
        {**CONV, "spatial": (9, 11)},
    ),
    "input gradient with everything": (
        "conv_input_gradient",
        ((4, 9, 6, 5), (9, 2, 3, 5)),
        {**ODD, "spatial": (13, 17)},
    ),
    "input gradient of a large image": (
        "conv_input_gradient",
        ((2, 11, 33, 31), (11, 40, 3, 3)),
        {**CONV, "spatial": (33, 31)},
    ),
    "weight gradient": (
        "conv_weight_gradient",
        ((7, 5, 9, 11), (7, 6, 9, 11)),
        {**CONV, "kernel": (3, 3)},
    ),
    "weight gradient with everything": (
        "conv_weight_gradient",
        ((4, 6, 13, 17), (4, 9, 6, 5)),
        {**ODD, "kernel": (3, 5)},
    ),
    "weight gradient of a large image": (
        "conv_weight_gradient",
        ((2, 40, 33, 31), (2, 19, 33, 31)),
        {**CONV, "kernel": (3, 3)},
    ),
    "pooled sums": ("window_sum", ((7, 3, 9, 10),), POOL),
    "pooled maxima": ("window_max", ((7, 3, 9, 10),), POOL),
    "pooled positions": ("window_argmax", ((7, 3, 9, 10),), POOL),
    "spread sums": ("window_spread", ((7, 3, 5, 6),), {**POOL, "spatial": (9, 11)}),
    "sums of wide windows": ("window_sum", ((7, 20, 21),), WIDE),
    "maxima of wide windows": ("window_max", ((7, 20, 21),), WIDE),
    "running sums": ("cumulative_sum", ((7, 13, 5),), LINE),
    "running products": ("cumulative_prod", ((7, 6),), {"axis": 1, "reverse": True}),
    "running positions": ("cumulative_argmax", ((7, 40),), LINE),
    "recurrence": ("linear_recurrence", ((7, 13, 5), (7, 13, 5)), LINE),
    "position on the last axis": ("argmax", ((7, 130),), {"axis": 1}),
    "position on the first axis": ("argmin", ((7, 65),), {"axis": 0}),
    "product": ("dot", ((7, 33), (33, 21)), {"contract": ((1,), (0,)), "batch": ((), ())}),
    "product of scattered axes": (
        "dot",
        ((7, 5, 4, 3), (3, 9, 5, 4)),
        {"contract": ((1, 3), (2, 0)), "batch": ((2,), (3,))},
    ),
    "padding between": ("pad", ((7, 5),), {"padding": ((1, 2, 1), (0, 3, 2)), "value": 3}),
    "slice replaced": (
        "update_slice",
        ((7, 9, 8), (7, 3, 4)),
        {"starts": (0, 1, 0), "strides": (1, 3, 2)},
    ),
}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return (
        (rng.normal(size=shape) * 3)
        .round(2 if dtype[0] != "i" else 0)
        .astype(as_dtype(dtype).numpy)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_larger_operands_of_every_dtype(case: str, dtype: str, rng: np.random.Generator) -> None:
    name, shapes, params = CASES[case]
    operands = [numbers(rng, shape, dtype) for shape in shapes]
    program = program_of(name, operands, params)
    assert is_compiled(program)
    agree(name, program.run(operands)[0], operands, params)


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_first_size_may_be_unknown(case: str, rng: np.random.Generator) -> None:
    name, shapes, params = CASES[case]
    first = shapes[0][0]
    operands = [numbers(rng, shape, "float32") for shape in shapes]
    program = program_of(name, operands, params, first)
    assert is_compiled(program)
    for size in (first, first + 4, 1):
        sized = [numbers(rng, resized(shape, first, size), "float32") for shape in shapes]
        agree(name, program.run(sized)[0], sized, params)


def resized(shape: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if dim == old else dim for dim in shape)


def test_sizes_of_images_may_be_unknown(rng: np.random.Generator) -> None:
    operands = [numbers(rng, shape, "float32") for shape in ((2, 3, 11, 13), (4, 3, 3, 3))]
    program = program_of("conv", operands, CONV, 11, 13)
    for size in ((11, 13), (5, 40), (64, 3)):
        x = numbers(rng, (2, 3, *size), "float32")
        agree("conv", program.run([x, operands[1]])[0], [x, operands[1]], CONV)


def test_special_floats_go_through_maxima_and_positions() -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[1, nan, 3, nan], [-inf, -inf, -inf, -inf], [0.0, -0.0, inf, inf]], np.float32)
    pool = {"window": (2,), "strides": (1,), "padding": ((1, 1),), "dilation": (1,)}
    for name, params in [
        ("window_max", pool),
        ("window_argmax", pool),
        ("argmax", {"axis": 1}),
        ("argmin", {"axis": 0}),
        ("cumulative_argmax", LINE),
        ("cumulative_argmin", {"axis": 1, "reverse": True}),
        ("cumulative_logsumexp", LINE),
    ]:
        agree(name, program_of(name, [x], params).run([x])[0], [x], params)


# --- reading and writing at places ---------------------------------------------------------------


def scattered_cases(rng: np.random.Generator) -> list[tuple[list[Array], Params]]:
    """Rows, single elements, a batch that counts along, and axes in another order."""

    def drawn(shape: tuple[int, ...], high: int) -> Array:
        return rng.integers(0, high, shape)

    counting = np.broadcast_to(np.arange(6)[:, None], (6, 9))
    return [
        ([numbers(rng, (11, 200), "float32"), drawn((30,), 11)], {"axes": (0,)}),
        ([numbers(rng, (11, 3), "float32"), drawn((4, 30), 11)], {"axes": (0,)}),
        ([numbers(rng, (6, 50), "float32"), counting.copy(), drawn((6, 9), 50)], {"axes": (0, 1)}),
        ([numbers(rng, (50, 6), "float32"), counting.copy(), drawn((6, 9), 50)], {"axes": (1, 0)}),
        ([numbers(rng, (4, 7, 5, 6), "float32"), drawn((8,), 5)], {"axes": (2,)}),
        ([numbers(rng, (9, 2048), "float32"), drawn((40,), 2048)], {"axes": (1,)}),
        ([numbers(rng, (2, 9, 1024, 1), "float32"), *drawn((2, 40), 2)], {"axes": (0, 2)}),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_gathers_and_scatters_of_every_kind(dtype: str, rng: np.random.Generator) -> None:
    kind = as_dtype(dtype).numpy
    for (x, *indices), params in scattered_cases(rng):
        x = x.astype(kind)
        agree(
            "gather",
            program_of("gather", [x, *indices], params).run([x, *indices])[0],
            [x, *indices],
            params,
        )
        updates = np.asarray(PRIMITIVES["gather"].reference(x, *indices, **params))[
            ..., ::-1
        ].copy()
        operands = [x, updates, *indices]
        for name in ("scatter", "scatter_add", "scatter_max", "scatter_min"):
            if dtype == "bool" and name != "scatter":
                continue
            more = {**params, "unique": False} if name == "scatter" else params
            program = program_of(name, operands, more)
            assert is_compiled(program)
            agree(name, program.run(operands)[0], operands, more)


def innermost_index(statement: Statement) -> str:
    """The name of the index of the innermost loop."""
    inner = [each for each in getattr(statement, "body", ()) if isinstance(each, For)]
    return innermost_index(inner[-1]) if inner else str(statement.index.detail)  # type: ignore[union-attr]


@pytest.mark.parametrize(("columns", "inner"), [(1024, "p0"), (1000, "r0")])
def test_rows_whose_elements_evict_each_other_are_written_element_by_element(
    columns: int, inner: str, rng: np.random.Generator
) -> None:
    operands = [numbers(rng, (96, columns), "float32"), numbers(rng, (40, 96), "float32")]
    index = rng.integers(0, columns, (40,))
    program = program_of("scatter_add", [*operands, index], {"axes": (1,)})
    (update,) = [
        each.kernel for each in program.plan.every_lowered if each.kernel.name == "scatter_add"
    ]
    assert innermost_index(update.body[-1]) == inner


@pytest.mark.parametrize("rows", [7, 8, 17, 40])
@pytest.mark.parametrize(
    "name",
    ["cumulative_sum", "cumulative_prod", "cumulative_logsumexp", "cumulative_argmax",
     "cumulative_argmin", "linear_recurrence"],
)  # fmt: skip
def test_lines_that_go_side_by_side_have_the_bits_of_single_ones(
    name: str, rows: int, rng: np.random.Generator
) -> None:
    count = 2 if name == "linear_recurrence" else 1
    given = [numbers(rng, (rows, 33), "float32") for _ in range(count)]
    for reverse in (False, True):
        params = {"axis": 1, "reverse": reverse}
        program = program_of(name, given, params)
        assert is_compiled(program)
        (together,) = program.run(given)
        agree(name, together, given, params)
        lines = [[x[row : row + 1] for x in given] for row in range(rows)]
        alone = [program_of(name, line, params).run(line)[0] for line in lines[:3]]
        np.testing.assert_array_equal(together[:3], np.concatenate(alone))
        (call,) = [each for each in program.plan.every_lowered if each.kernel.name == name]
        assert ("block" in str(call.kernel)) is (rows >= 8)


def test_an_index_that_is_a_constant_count_is_not_read() -> None:
    def picked(x: Tensor, index: Tensor) -> Tensor:
        return wf.take_along_axis(x, index, axis=1)

    x, index = np.arange(12.0, dtype=np.float32).reshape(3, 4), np.array([[3], [0], [9]])
    program = compile_program(wf.ir.trace(picked, wrap(x), wrap(index[:, :1] % 4)))
    assert is_compiled(program)
    assert program.run([x, index % 4])[0].tolist() == [[3.0], [4.0], [9.0]]
    with pytest.raises(wf.BoundsError, match="index 9 is out of range"):
        program.run([x, index])


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("name", ["gather", "scatter", "scatter_add", "scatter_max"])
def test_an_index_out_of_range_is_the_error_of_the_reference(name: str, wrong: int) -> None:
    x, good, bad = np.ones((5, 70), np.float32), np.array([0, 4]), np.array([2, wrong])
    updates = [] if name == "gather" else [np.ones((2, 70), np.float32)]
    params: Params = {"axes": (0,)} | ({"unique": False} if name == "scatter" else {})
    program = program_of(name, [x, *updates, good], params)
    with pytest.raises(wf.BoundsError) as expected:
        PRIMITIVES[name].reference(x, *updates, bad, **params)
    with pytest.raises(wf.BoundsError) as found:
        program.run([x, *updates, bad])
    assert found.value.problem == expected.value.problem
    agree(name, program.run([x, *updates, good])[0], [x, *updates, good], params)


def test_an_empty_axis_has_no_index_in_range() -> None:
    x, index = np.ones((0, 3), np.float32), np.array([0])
    program = program_of("gather", [x, index], {"axes": (0,)})
    with pytest.raises(wf.BoundsError, match="size 0"):
        program.run([x, index])


def test_an_index_out_of_range_stops_a_whole_step() -> None:
    @wf.jit
    def loss(table: Tensor, index: Tensor) -> Tensor:
        return (table[index] ** 2).sum()

    table = wf.ones((4, 3))
    assert loss(table, wf.tensor([1, 3])).item() == 6.0
    with pytest.raises(wf.BoundsError, match="out of range"):
        loss(table, wf.tensor([1, 4]))
    assert loss(table, wf.tensor([0, 0])).item() == 6.0


# --- bits, threads, whole steps ------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1000,), (3, 5, 7)])
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_random_bits_are_the_same_to_the_last(shape: tuple[int, ...], dtype: str) -> None:
    params: Params = {"shape": shape, "dtype": as_dtype(dtype), "domain": 2}
    one = [np.array([0xFFFFFFFF, 17], np.uint32), np.array((1 << 63) + 5, np.uint64)]
    many = [
        np.arange(12, dtype=np.uint32).reshape(2, 3, 2),
        np.arange(6, dtype=np.uint64).reshape(2, 3),
    ]
    for operands in (one, many):
        program = program_of("random_bits", operands, params)
        assert is_compiled(program)
        agree("random_bits", program.run(operands)[0], operands, params)


THREADED: dict[str, tuple[str, Shapes, Params]] = {
    "scatter": ("scatter_add", ((40, 3000), (500, 3000)), {"axes": (0,)}),
    "weights": (
        "conv_weight_gradient",
        ((9, 40, 20, 20), (9, 40, 20, 20)),
        {**CONV, "kernel": (3, 3)},
    ),
    "inputs": (
        "conv_input_gradient",
        ((9, 40, 20, 20), (40, 8, 3, 3)),
        {**CONV, "spatial": (20, 20)},
    ),
    "conv": ("conv", ((9, 40, 20, 20), (40, 40, 3, 3)), CONV),
}


@pytest.mark.parametrize("case", sorted(THREADED))
def test_the_same_bits_for_any_number_of_threads(case: str, rng: np.random.Generator) -> None:
    name, shapes, params = THREADED[case]
    operands = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    if name == "scatter_add":
        operands.append(rng.integers(0, 40, 500))
    program = program_of(name, operands, params)
    same_result_for_all_threads(lambda: program.run(operands), (1, 2, 3, 5))


def lenet(x: Tensor, *weights: Tensor) -> Tensor:
    first, second, dense, head = weights
    hidden = wf.max_pool2d(wf.tanh(wf.conv2d(x, first)), 2)
    hidden = wf.max_pool2d(wf.tanh(wf.conv2d(hidden, second)), 2)
    hidden = wf.relu(hidden.reshape(hidden.shape[0], -1) @ dense)
    return wf.random.dropout(hidden, 0.5) @ head


def test_a_training_step_of_a_convolutional_network_calls_nothing_by_reference(
    rng: np.random.Generator,
) -> None:
    shapes = ((4, 1, 5, 5), (6, 4, 5, 5), (96, 20), (20, 10))
    weights = [numbers(rng, shape, "float32") * np.float32(0.1) for shape in shapes]
    x, labels = numbers(rng, (8, 1, 28, 28), "float32"), rng.integers(0, 10, 8)

    def loss(x: Tensor, labels: Tensor, *weights: Tensor) -> Tensor:
        chances = wf.log_softmax(lenet(x, *weights))
        return -wf.take_along_axis(chances, labels[:, None], axis=1).mean()

    step: Callable[..., Any] = wf.grad(loss, argnums=(2, 3, 4, 5))
    operands = [wrap(each) for each in (x, labels, *weights)]
    program = compile_program(wf.ir.trace(step, *operands))
    assert is_compiled(program)
