"""Exported programs whose sizes each run chooses: a run takes the memory of its own sizes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.exported import LoadedProgram

import weft as wf
from weft.compiler.export.checking import reference_runs
from weft.compiler.export.linking import build_program, c_compiler, web_linker
from weft.compiler.export.machines import platform_named
from weft.compiler.export.sizes import SizeRange
from weft.compiler.export.work_space import Staircase

from .programs import numbers
from .test_sizes import CASES, run_at

needs_compiler = pytest.mark.skipif(
    c_compiler(platform_named("host")) is None, reason="no C compiler is found"
)
GUARD = 0xA5


class Instance:
    """An instance in memory of ours, with bytes around it that nothing may touch."""

    def __init__(self, loaded: LoadedProgram, size: int) -> None:
        self.loaded, self.size = loaded, size
        self.memory = np.full(size + 512, GUARD, "u1")
        self.first = -self.memory.ctypes.data % 64 + 64
        init = self._function("model_init_in", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self.loaded.instance = init(self.memory.ctypes.data + self.first, size)

    def _function(self, name: str, *kinds: Any) -> Any:
        return ctypes.CFUNCTYPE(*kinds)(self.loaded._address(name))

    @property
    def is_within_its_memory(self) -> bool:
        """Whether nothing was written around it."""
        end = self.first + self.size
        return set(self.memory[: self.first]) | set(self.memory[end:]) == {GUARD}


def workspace(loaded: LoadedProgram, *sizes: int) -> int:
    kinds = [ctypes.c_int64] * len(sizes)
    call = ctypes.CFUNCTYPE(ctypes.c_size_t, *kinds)(loaded._address("model_workspace"))
    return int(call(*sizes))


@pytest.mark.parametrize("name", CASES)
def test_a_run_stays_within_the_work_space_that_its_sizes_take(name: str, tmp_path: Path) -> None:
    f, arguments, largest = CASES[name]()
    shipped = wf.export(f, arguments, tmp_path / "model", sizes=largest)
    loaded, program = LoadedProgram(shipped), shipped.interface.program
    choices = list(program.sizes.choices)
    np.random.default_rng(1).shuffle(choices)
    needed = [workspace(loaded, *sizes.values()) for sizes in choices]
    assert shipped.interface.instance + max(needed) <= shipped.memory
    for sizes, size in zip(choices[:12], needed, strict=False):
        instance = Instance(loaded, shipped.interface.instance + size)
        expected = reference_runs(program, 1, sizes)
        for found, wanted in zip(run_at(shipped, loaded, sizes), expected, strict=False):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5, err_msg=str(sizes))
        assert instance.is_within_its_memory, sizes


def test_one_row_does_not_pay_for_the_most_that_are_allowed(tmp_path: Path) -> None:
    f, arguments, _ = CASES["a_perceptron"]()
    shipped = wf.export(f, arguments, tmp_path / "model", sizes={"batch": 1000})
    loaded = LoadedProgram(shipped)
    assert workspace(loaded, 1) * 100 < workspace(loaded, 1000)
    assert [workspace(loaded, batch) for batch in (0, -1, 1001, 2**40)] == [0, 0, 0, 0]
    header = (tmp_path / "model" / "model.h").read_text()
    assert f"MODEL_INSTANCE {shipped.interface.instance}u" in header


def test_memory_that_is_too_small_is_refused_and_holds_smaller_runs(tmp_path: Path) -> None:
    f, arguments, largest = CASES["a_perceptron"]()
    shipped = wf.export(f, arguments, tmp_path / "model", sizes=largest, memory="static")
    assert not {"malloc", "free"} & set(shipped.called)
    shipped = wf.export(f, arguments, tmp_path / "model", sizes=largest)
    loaded, least = LoadedProgram(shipped), shipped.interface.instance
    Instance(loaded, least - 1)
    assert loaded.instance is None
    instance = Instance(loaded, least + workspace(loaded, 3))
    assert loaded.run(3) == 0
    status = loaded.run(40)
    assert shipped.interface.messages[status - 1] == "there is no memory for a run of these sizes"
    assert loaded.run(2) == 0
    assert instance.is_within_its_memory


WATCHED = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"

static size_t limit = 1 << 30, last;

static void *watched(size_t size)
{
    last = size;
    return size > limit ? NULL : malloc(size);
}

static float x[40 * 50], output[40 * 50];

int main(void)
{
    model *made = model_create();
    int64_t batches[] = {1, 2, 40, 3, 40};
    for (int i = 0; i < 5; i++) {
        last = 0;
        int status = model_run(made, batches[i], x, output);
        printf("%d %d\\n", status, last > 0);
    }
    model_destroy(made);
    made = model_create();
    limit = model_workspace(4) + 64;
    int first = model_run(made, 40, x, output);
    printf("%s %d\\n", model_message(first), model_run(made, 4, x, output));
    model_destroy(made);
    return 0;
}
"""


@needs_compiler
def test_work_space_grows_with_the_sizes_and_a_refusal_leaves_the_instance_usable(
    tmp_path: Path,
) -> None:
    shipped = wf.export(
        lambda x: wf.softmax(wf.cumulative_sum(wf.exp(x), axis=1), axis=0),
        [wf.spec("float32", ("batch", 50))], tmp_path / "model", sizes={"batch": 40}, form="c",
    )  # fmt: skip
    main = shipped.folder / "watched.c"
    whole = WATCHED.replace(
        "static float x",
        '#define malloc watched\n#include "model.c"\n#undef malloc\nstatic float x',
    )
    main.write_text(whole)
    build_program(platform_named("host"), "host", [main], tmp_path / "watched")
    said = subprocess.run([str(tmp_path / "watched")], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        "0 1", "0 1", "0 1", "0 0", "0 0", "there is no memory for a run of these sizes 0",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["object", "c"])
def test_what_is_prepared_of_sizes_and_weights_is_prepared_for_each_run(
    form: str, tmp_path: Path
) -> None:
    weight = numbers(3)

    def f(x: wf.Tensor) -> wf.Tensor:
        rows = wf.arange(x.shape[0]).sum().astype("float32")
        return x * (wf.exp(weight) * rows) @ wf.ones((3, 5))

    shipped = wf.export(
        f, [wf.spec("float32", ("n", 3))], tmp_path / "model", sizes={"n": 30}, form=form
    )
    if form == "c":
        if c_compiler(platform_named("host")) is None:
            pytest.skip("no C compiler is found")
        assert shipped.check().largest_difference < 1e-5
        return
    loaded, program = LoadedProgram(shipped), shipped.interface.program
    for n in (4, 1, 30, 7):
        wanted = reference_runs(program, 1, {"n": n})[0]
        np.testing.assert_allclose(run_at(shipped, loaded, {"n": n})[0], wanted, rtol=1e-5)


@needs_compiler
def test_values_that_shrink_as_a_size_grows_have_room_for_all(tmp_path: Path) -> None:
    def f(x: wf.Tensor) -> Any:
        rest = wf.exp(wf.ones((200 - x.shape[0], 50)))
        return x.sum(0), (wf.sort(rest, axis=1) * 2 + rest).sum(1)

    kind = wf.spec("float32", ("n", 3))
    shipped = wf.export(f, [kind], tmp_path / "model", sizes={"n": 150})
    assert shipped.interface.program.outputs[1].count == 199
    assert shipped.check().largest_difference < 1e-5


@pytest.mark.parametrize("name", ["a_perceptron", "attention_over_time"])
def test_threads_have_their_part_of_work_space_that_grows(name: str, tmp_path: Path) -> None:
    f, arguments, largest = CASES[name]()
    one = wf.export(f, arguments, tmp_path / "one", sizes=largest)
    three = wf.export(f, arguments, tmp_path / "three", sizes=largest, threads=3)
    alone, together = LoadedProgram(one), LoadedProgram(three)
    most = tuple(largest.values())
    for sizes in (tuple(1 for _ in most), most, tuple(max(1, m // 2) for m in most), most):
        chosen = dict(zip(largest, sizes, strict=True))
        for a, b in zip(run_at(one, alone, chosen), run_at(three, together, chosen), strict=True):
            np.testing.assert_array_equal(a, b)
    together.destroy()


PAGE = """\
import { readFileSync } from "node:fs";
import { load } from "./main.mjs";
const bytes = readFileSync(new URL("model.wasm", import.meta.url));
for (const most of [undefined, { batch: 2 }]) {
  const model = await load(bytes, most);
  model.x.fill(1);
  console.log(model.x.length, model.run(1), model.run(2), model.run(40) === 0);
}
"""


def test_a_page_takes_the_memory_of_the_sizes_that_it_asks_for(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or web_linker() is None:
        pytest.skip("node and a linker for the web are needed")
    f, arguments, largest = CASES["a_perceptron"]()
    wf.export(f, arguments, tmp_path / "model", sizes=largest, target="wasm32")
    page = tmp_path / "model" / "page.mjs"
    page.write_text(PAGE)
    said = subprocess.run([node, str(page)], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["800 0 0 true", "40 0 0 false"]


def test_a_staircase_is_nowhere_below_its_numbers() -> None:
    sizes = SizeRange({"m": 9, "n": 5})
    values = np.random.default_rng(0).integers(0, 1000, 45)
    found = Staircase.lowest_above(values, sizes).values
    assert (found >= values).all()
    assert found[0] == values[0], "the smallest sizes are a class of their own"
    assert set(found) <= set(values)
