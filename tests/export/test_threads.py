"""Exported programs on several threads: the bits of one thread, and of Weft itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from benchmarks.exported import LoadedProgram

import weft as wf
from weft import nn
from weft.compiler.export.sections import Section

from .programs import PROGRAMS, numbers


def a_wide_perceptron() -> tuple[Callable[..., Any], list[wf.Tensor]]:
    """Products, row fusions and sums, each of several chunks."""
    wf.random.seed(0)
    net = nn.Sequential(
        nn.Linear(128, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 128), nn.Softmax(-1)
    )
    return net.eval(), [numbers(300, 128)]


def large_elements() -> tuple[Callable[..., Any], list[wf.Tensor]]:
    return lambda x: (wf.sin(x).sum(1), wf.sort(x, axis=1), wf.exp(x)), [numbers(200, 300)]


def large_convolution() -> tuple[Callable[..., Any], list[wf.Tensor]]:
    weight = numbers(32, 16, 3, 3, seed=1)
    return lambda x: wf.relu(wf.conv2d(x, weight, padding=1)), [numbers(4, 16, 28, 28)]


CASES = {
    "perceptron": a_wide_perceptron,
    "elements": large_elements,
    "convolution": large_convolution,
    "loops": PROGRAMS["loops"],
    "training": PROGRAMS["a_step_of_training"],
}


def outputs_of(shipped: Any, runs: int) -> list[bytes]:
    loaded, program = LoadedProgram(shipped), shipped.interface.program
    found = []
    for _ in range(runs):
        for array, example in zip(loaded.arrays, program.examples, strict=False):
            array[...] = example
        for array in loaded.arrays[len(program.inputs) :]:
            array.fill(77)
        assert loaded.run() == 0
        found.append(b"".join(x.tobytes() for x in loaded.arrays[len(program.inputs) :]))
    loaded.destroy()
    return found


@pytest.mark.parametrize("name", CASES)
def test_several_threads_give_the_bits_of_one(name: str, tmp_path: Path) -> None:
    f, arguments = CASES[name]()
    one = wf.export(f, arguments, tmp_path / "one")
    several = wf.export(f, arguments, tmp_path / "several", threads=4)
    assert several.memory > one.memory
    assert outputs_of(several, 20) == outputs_of(one, 20)


@pytest.mark.parametrize("name", ["perceptron", "elements", "convolution"])
def test_several_threads_give_the_bits_of_the_compiled_function(name: str, tmp_path: Path) -> None:
    f, arguments = CASES[name]()
    shipped = wf.export(f, arguments, tmp_path / "model", threads=3)
    expected = wf.tree.leaves(wf.jit(f)(*arguments))
    data = b"".join(each.detach().numpy().tobytes() for each in expected)
    assert outputs_of(shipped, 1) == [data]


def test_blocks_of_row_fusions_are_taken_by_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, written = list[Any](), Section._row_blocks

    def remember(self: Section, launch: Any, given: Any, scratch: Any, part: Any) -> None:
        parts.append(part)
        written(self, launch, given, scratch, part)

    monkeypatch.setattr(Section, "_row_blocks", remember)
    f, arguments = a_wide_perceptron()
    wf.export(f, arguments, tmp_path / "model", threads=2)
    assert ("%begin", "%end") in parts
    header = (tmp_path / "model" / "model.h").read_text()
    assert "runs on 2 threads: link with -pthread" in header


def test_instances_with_threads_run_at_the_same_time(tmp_path: Path) -> None:
    f, arguments = large_elements()
    shipped = wf.export(f, arguments, tmp_path / "model", threads=3)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: outputs_of(shipped, 20), range(3)))
    assert len({data for each in found for data in each}) == 1


@pytest.mark.parametrize(
    "given", [{"form": "c"}, {"memory": "static"}, {"target": "wasm32"}, {"target": "thumbv7em"}]
)
def test_threads_where_there_are_none_are_refused(given: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(wf.UnsupportedError, match="cannot have 2 threads"):
        wf.export(wf.exp, [wf.ones(3)], tmp_path / "model", threads=2, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [0, -1, True, 2.0, 1000])
def test_a_number_of_threads_that_is_none_is_refused(threads: Any, tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="no number of threads"):
        wf.export(wf.exp, [wf.ones(3)], tmp_path / "model", threads=threads)
