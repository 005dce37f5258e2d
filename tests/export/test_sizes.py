"""Exported programs whose sizes each run chooses: every choice agrees with Weft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.exported import LoadedProgram

import weft as wf
from weft import nn
from weft.compiler.export.checking import reference_runs
from weft.compiler.export.linking import c_compiler
from weft.compiler.export.machines import platform_named
from weft.compiler.export.sizes import SizeRange

from .programs import numbers

Case = tuple[Callable[..., Any], list[Any], dict[str, int]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


@case
def a_perceptron() -> Case:
    wf.random.seed(0)
    net = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 4)).eval()
    return net, [wf.spec("float32", ("batch", 20))], {"batch": 40}


@case
def a_convolutional_network() -> Case:
    wf.random.seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 5),
    ).eval()  # fmt: skip
    return net, [wf.spec("float32", ("batch", 3, 12, 12))], {"batch": 9}


@case
def attention_over_time() -> Case:
    wf.random.seed(0)
    table, project = wf.random.normal((30, 16)), nn.Linear(16, 48)

    def f(tokens: wf.Tensor) -> wf.Tensor:
        x = table[tokens]  # [batch, time, 16]
        parts = wf.split(project(x), 3, axis=-1)
        heads = [wf.swapaxes(p.reshape((*p.shape[:2], 2, 8)), 1, 2) for p in parts]
        seen = wf.scaled_dot_product_attention(*heads, causal=True)
        return wf.swapaxes(seen, 1, 2).reshape(x.shape) + x

    return f, [wf.spec("int64", ("batch", "time"))], {"batch": 4, "time": 11}


@case
def a_recurrent_layer() -> Case:
    wf.random.seed(0)
    net = nn.LSTM(6, 10)
    return lambda x: net(x)[0], [wf.spec("float32", ("batch", "time", 6))], {"batch": 3, "time": 7}


@case
def sums_backwards() -> Case:
    def f(x: wf.Tensor) -> Any:
        last, rows = wf.scan(lambda c, row: (c * 0.5 + row, c), wf.zeros(4), x, reverse=True)
        return last, rows, wf.cumulative_sum(x, axis=0), x[::-1]

    return f, [wf.spec("float32", ("time", 4))], {"time": 12}


@case
def orders() -> Case:
    return (
        lambda x: (wf.sort(x, axis=0), wf.argmax(x, axis=0), wf.concat([x, x * 2], axis=0)),
        [wf.spec("float32", ("rows", 5))],
        {"rows": 13},
    )


@case
def products_of_two_sizes() -> Case:
    weight = numbers(24, 24, seed=4)
    return (
        lambda a, b: (a @ weight @ b.T, a.sum(0) + b.mean(0), wf.softmax(a, axis=0)),
        [wf.spec("float32", ("m", 24)), wf.spec("float32", ("n", 24))],
        {"m": 10, "n": 9},
    )


@case
def a_choice() -> Case:
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.cond(x.sum() > 0, lambda x: wf.exp(x) * 2, lambda x: -x, x)

    return f, [wf.spec("float32", ("n", 3))], {"n": 6}


@case
def a_running_sum() -> Case:
    total = wf.zeros(5)

    def f(x: wf.Tensor) -> wf.Tensor:
        total.copy_(total + x.sum(0))
        return x + total

    return f, [wf.spec("float32", ("batch", 5))], {"batch": 7}


def run_at(shipped: Any, loaded: LoadedProgram, sizes: dict[str, int]) -> list[Any]:
    """The outputs at a choice of sizes, in memory that ends where the values do."""
    program = shipped.interface.program
    inputs = program.examples_at(sizes)
    outputs = [np.full(port.shape_at(sizes), 77, port.type.dtype.numpy) for port in program.outputs]
    places = [each.ctypes.data for each in (*inputs, *outputs)]
    assert loaded.call(*sizes.values(), *places) == 0
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_every_choice_of_sizes_agrees_with_the_reference(name: str, tmp_path: Path) -> None:
    f, arguments, largest = CASES[name]()
    threads = 2 if name in ("a_perceptron", "attention_over_time") else 1
    shipped = wf.export(f, arguments, tmp_path / "model", sizes=largest, threads=threads)
    loaded, program = LoadedProgram(shipped), shipped.interface.program
    choices = list(program.sizes.choices)
    np.random.default_rng(0).shuffle(choices)  # sizes grow and shrink from run to run
    for sizes in choices[:16]:
        loaded.reset()
        expected = reference_runs(program, 1, sizes)
        for found, wanted in zip(run_at(shipped, loaded, sizes), expected, strict=False):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5, err_msg=str(sizes))
    loaded.destroy()


@pytest.mark.parametrize("name", ["a_perceptron", "a_recurrent_layer", "a_choice", "a_running_sum"])
def test_a_program_in_c_takes_every_size(name: str, tmp_path: Path) -> None:
    if c_compiler(platform_named("host")) is None:
        pytest.skip("no C compiler is found")
    f, arguments, largest = CASES[name]()
    check = wf.export(f, arguments, tmp_path / "model", sizes=largest, form="c").check()
    assert check.largest_difference < 1e-4


@pytest.mark.slow
def test_the_largest_sizes_have_the_bits_of_a_program_for_them(tmp_path: Path) -> None:
    f, arguments, largest = a_convolutional_network()
    several = wf.export(f, arguments, tmp_path / "several", sizes=largest)
    x = several.interface.program.examples[0]
    fixed = wf.export(f, [wf.tensor(x)], tmp_path / "fixed")
    found = run_at(several, LoadedProgram(several), largest)[0]
    np.testing.assert_array_equal(found, run_at(fixed, LoadedProgram(fixed), {})[0])


@pytest.mark.parametrize("batch", [0, -1, 41, 2**40, -(2**62)])
def test_a_size_that_the_program_was_not_made_for_is_a_status(batch: int, tmp_path: Path) -> None:
    f, arguments, largest = a_perceptron()
    shipped = wf.export(f, arguments, tmp_path / "model", sizes=largest)
    loaded = LoadedProgram(shipped)
    assert loaded.run(batch) == 1
    assert shipped.interface.messages[0] == "batch must be from 1 to 40"
    assert "MODEL_MOST_BATCH 40" in (tmp_path / "model" / "model.h").read_text()


@pytest.mark.parametrize("sizes", [None, {}, {"batch": 0}, {"batch": 4, "time": 3}, {"batch": 2.5}])
def test_largest_sizes_that_do_not_fit_the_symbols_are_refused(sizes: Any, tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="largest of each size") as error:
        wf.export(wf.exp, [wf.spec("float32", ("batch", 3))], tmp_path / "model", sizes=sizes)
    assert "batch" in str(error.value)


def test_too_many_choices_are_refused(tmp_path: Path) -> None:
    kind = wf.spec("float32", ("batch", "time"))
    with pytest.raises(wf.UnsupportedError, match="1000000 ways"):
        wf.export(wf.exp, [kind], tmp_path / "model", sizes={"batch": 1000, "time": 1000})


def test_a_function_that_fixes_a_size_is_refused_with_the_line(tmp_path: Path) -> None:
    fixed = wf.ones((3, 4))
    with pytest.raises(wf.UnsupportedError, match="fixes the size batch") as error:
        wf.export(lambda x: x + fixed, [wf.spec("float32", ("batch", 4))], tmp_path / "model",
                  sizes={"batch": 8})  # fmt: skip
    assert error.value.at is not None


def test_a_function_that_decides_by_a_size_is_refused(tmp_path: Path) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return x * 2 if x.shape[0] > 4 else x

    with pytest.raises(wf.UnsupportedError, match="decides by a size"):
        wf.export(f, [wf.spec("float32", ("n", 4))], tmp_path / "model", sizes={"n": 8})


def test_a_number_is_a_polynomial_or_a_table_of_all_its_values() -> None:
    sizes = SizeRange({"m": 5, "n": 7})

    def value_of(count: Any, at: dict[str, int]) -> int:
        if isinstance(count, int):
            return count
        if count.table:
            return int(count.table[(at["m"] - 1) * 7 + at["n"] - 1])
        powers = [(at["m"] ** a) * (at["n"] ** b) * c for (a, b), c in count.terms]
        return sum(powers)

    functions: list[Callable[[Any], int]] = [
        lambda at: 3,
        lambda at: at["m"] * at["n"] * 4 + 2,
        lambda at: at["m"] ** 2 * at["n"] - 5,
        lambda at: -(-at["m"] // 2) * at["n"],
        lambda at: max(3, at["n"]),
        lambda at: at["m"] ** 4,
    ]
    for function in functions:
        count = sizes.count_of(function)
        assert all(value_of(count, at) == function(at) for at in sizes.choices)
