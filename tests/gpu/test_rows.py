"""Rows, columns and long sums of many sizes on a card: against the CPU, and the same bits twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.sample_kernels import SampleProgram, program_of
from tests.gpu.kernel_runs import run_kernel
from tests.gpu.test_kernels import agree, on_both

import weft as wf
from weft.compiler.targets.cuda.driver import is_available
from weft.core.dtypes import as_dtype

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no NVIDIA card here")
Array = np.ndarray[Any, Any]
COLUMNS = (1, 2, 7, 9, 31, 33, 64, 100, 257, 768, 1000, 1024, 1032, 1500, 4096, 5001, 33000, 70000)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: wf.softmax(x, axis=-1),
    "log softmax": lambda x: wf.log_softmax(x, axis=-1),
    "norm": lambda x: (x - x.mean(axis=-1, keepdims=True)) / (x.std(axis=-1, keepdims=True) + 1.0),
    "sums": lambda x: (x * 0.5).sum(axis=-1),
    "sum": lambda x: x.sum(),
    "greatest": lambda x: x.max(axis=-1),
    "place of the greatest": lambda x: x.argmax(axis=-1),
    "columns": lambda x: x.sum(axis=0),
    "turned": lambda x: x.mT + 1.0,
    "running sums": lambda x: wf.cumsum(x, axis=-1),
    "running sums down": lambda x: wf.cumsum(x, axis=0),
    "several": lambda x: (x.sum(axis=-1), (x * x).sum(axis=-1), wf.exp(x * 0.1)),
}


def check(function: Callable[..., Any], *operands: Array) -> None:
    """Run all kernels of a function on a card and on the CPU."""
    types = [wf.spec(as_dtype(x.dtype).name, x.shape) for x in operands]
    program = program_of(function, types)
    sample = SampleProgram("a function", 0, program, operands)
    itemsize = max(2, min(x.dtype.itemsize for x in operands))  # sums of blocks are wider
    for lowered, got, expected in on_both(sample):
        for position, (one, other) in enumerate(zip(got, expected, strict=True)):
            agree(one, other, f"buffer {position}\n{lowered.kernel}", itemsize)


def drawn(shape: tuple[int, ...], dtype: str) -> Array:
    kind = as_dtype(dtype)
    random = np.random.default_rng(shape[-1])
    if kind.is_floating:
        return random.normal(size=shape).astype(kind.numpy)
    return random.integers(0, 100, shape).astype(kind.numpy)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_float32_of_every_length(name: str, columns: int) -> None:
    rows = 5 if columns > 2000 else 37
    check(FUNCTIONS[name], drawn((rows, columns), "float32"))


@pytest.mark.parametrize("name", ["softmax", "norm", "sums", "columns"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("columns", [8, 100, 768, 1001, 4096])
def test_other_floats(name: str, dtype: str, columns: int) -> None:
    check(FUNCTIONS[name], drawn((19, columns), dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("columns", [5, 100, 1001])
def test_integers_have_the_cpus_bits(dtype: str, columns: int) -> None:
    check(lambda x: (x.sum(axis=-1), x.max(axis=0), x * x + x), drawn((17, columns), dtype))


def test_a_row_of_one_warp_has_the_same_bits_twice_and_in_any_launch() -> None:
    for columns in (768, 4096, 70000):
        x = drawn((6, columns), "float32")
        program = program_of(lambda x: x.sum(axis=-1), [wf.spec("float32", x.shape)])
        (lowered,) = program.every_lowered
        arrays = [np.zeros(6, np.float32), x.reshape(-1)]
        first, second = (run_kernel(lowered.kernel, arrays)[0] for _ in range(2))
        np.testing.assert_array_equal(first, second)
        more = program_of(lambda x: x.sum(axis=-1), [wf.spec("float32", (12, columns))])
        (other,) = more.lowered
        twice = [np.zeros(12, np.float32), np.concatenate([x, x]).reshape(-1)]
        third = run_kernel(other.kernel, twice)[0]
        np.testing.assert_array_equal(third, np.concatenate([first, first]))


@pytest.mark.parametrize("sizes", [(3, 64), (5, 100), (4, 1024), (2, 3000)])
def test_sizes_known_only_at_run_time(sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    program = program_of(lambda x: wf.softmax(x, axis=-1), [wf.spec("float32", ("m", "n"))])
    named = {"m": rows, "n": columns}
    sample = SampleProgram("softmax", 0, program, (drawn(sizes, "float32"),), named)
    for _, got, expected in on_both(sample):
        for one, other in zip(got, expected, strict=True):
            agree(one, other, f"{sizes}")
