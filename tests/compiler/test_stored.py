"""Programs on disk: run by another process as by the one that compiled them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft.compiler.targets.cpu.cache import kernels, program_store
from weft.compiler.targets.cpu.cache import relocation as image_module
from weft.compiler.targets.cpu.cache.program_store import (
    StoredProgram,
    freeze_program,
    thaw_program,
)
from weft.compiler.targets.cpu.cache.relocation import take_image
from weft.compiler.targets.cpu.cache.symbols import found_again, origin
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.target import compile_program
from weft.runtime.cache import DiskCache
from weft.runtime.compile_queue import BACKGROUND

Array = np.ndarray[Any, Any]
KINDS = (wf.spec("float32", (5, 7)), wf.spec("float32", (7, 3)))


def _inputs(seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=kind.shape).astype(np.float32) for kind in KINDS]


def _step(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, ...]:
    loss, slope = wf.value_and_grad(lambda w: (wf.softmax(x @ w) ** 2).sum())(w)
    return loss, w - 0.1 * slope


def _loop(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
    start = wf.zeros((3,))
    total = wf.scan(lambda total, row: (wf.tanh(total + row @ w), total * 2), start, x)
    return wf.cond(total[0].sum() > 0, lambda a: a * 2, lambda a: a - 1, total[1])


def _constants(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, ...]:
    table = wf.arange(35, dtype=wf.float32).reshape(5, 7)
    return x + table, wf.ones((2,)), w, (x * 2).reshape(7, 5)


PROGRAMS: list[Callable[..., Any]] = [_step, _loop, _constants]


@pytest.mark.parametrize("function", PROGRAMS)
def test_a_stored_program_gives_the_same_bits(function: Callable[..., Any]) -> None:
    graph = wf.ir.trace(function, *KINDS)
    program = compile_program(graph)
    restored = thaw_program(freeze_program(program), lambda: compile_program(graph))
    assert restored is not None
    for seed in range(3):
        expected = program.run(_inputs(seed))
        found = restored.run(_inputs(seed))
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
        assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in expected]


def test_a_stored_program_says_what_is_wrong_as_the_compiled_one_does() -> None:
    kinds = wf.spec("float32", (4,)), wf.spec("int64", (2,))
    graph = wf.ir.trace(lambda x, i: wf.take(x, i), *kinds)
    program = compile_program(graph)
    restored = thaw_program(freeze_program(program), lambda: compile_program(graph))
    assert restored is not None
    arrays = [np.ones(4, np.float32), np.array([0, 9])]
    with pytest.raises(wf.BoundsError) as expected:
        program.run(arrays)
    with pytest.raises(wf.BoundsError) as found:
        restored.run(arrays)
    assert (found.value.op, found.value.got) == (expected.value.op, expected.value.got)
    assert restored.run([arrays[0], np.array([0, 1])])[0].tolist() == [1.0, 1.0]


def test_programs_of_symbolic_sizes_are_not_stored() -> None:
    graph = wf.ir.trace(lambda x: x * 2, wf.spec("float32", ("n",)))
    assert freeze_program(compile_program(graph)) is None


def test_programs_that_call_python_are_not_stored() -> None:
    graph = wf.ir.trace(lambda x: wf.nextafter(x, x + 1), wf.spec("float32", (3, 3)))
    assert freeze_program(compile_program(graph)) is None


def test_a_missing_kernel_means_that_the_program_is_compiled_again() -> None:
    program = compile_program(wf.ir.trace(lambda x: wf.exp(x) + 1, wf.spec("float32", (3,))))
    data = freeze_program(program)
    assert data is not None
    assert thaw_program(data.replace(b'"kernel"', b'"nobody"'), lambda: program) is None


def test_a_number_that_is_no_known_address_has_no_image() -> None:
    table, again = ({"table": np.array([1 << 45])} for _ in range(2))
    assert take_image(table, again, plain=()) is None
    assert take_image(table, again, plain=("table",)) is not None


def test_small_addresses_are_found_and_numbers_like_them_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the interpreter lies at a fixed place, arrays lie where sizes might be."""

    def made() -> dict[Any, Any]:
        data, constant = np.array([5, 6, 7]), shared
        words = [data.ctypes.data + 8, number, constant.ctypes.data, 3]
        return {"table": np.array(words), "data": data, "constant": constant}

    shared, number = np.array([1.5]), 0
    first = made()
    number = int(first["data"].ctypes.data) + 16  # what looks like an address, and stays
    first["table"][1] = number
    monkeypatch.setattr(image_module, "SMALL", 1 << 60)  # as if all of them were small
    image = take_image(first, made(), plain=("data", "constant"))
    assert image is not None
    memory = image.restore_memory(lambda name: None)
    assert memory is not None
    start = image.places["table"]
    places = [8 * image.places["data"] + 8, number, 8 * image.places["constant"], 3]
    moved = [memory.ctypes.data + places[0], number, memory.ctypes.data + places[2], 3]
    assert memory[start : start + 4].tolist() == moved


def test_a_program_is_found_by_the_code_that_made_it_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = DiskCache(tmp_path)
    monkeypatch.setattr(program_store, "shared_disk", lambda: cache)
    graph = wf.ir.trace(lambda x: wf.sin(x) * 5, wf.spec("float32", (4,)))
    first = program_store.stored_program(graph.digest(), lambda: compile_program(graph))
    BACKGROUND.finish()  # the program is written
    again = program_store.stored_program(graph.digest(), lambda: compile_program(graph))
    monkeypatch.setattr(program_store, "program_sources", lambda: "other code")
    other = program_store.stored_program(graph.digest(), lambda: compile_program(graph))
    assert [type(each) for each in (first, again, other)] == [Program, StoredProgram, Program]


def test_functions_are_found_again_by_name() -> None:
    assert found_again(("kernel", "0" * 64)) is None
    assert found_again(("text", "0" * 64, "chain")) is None


SCRIPT = """
import weft as wf
from weft.compiler.function.program_cache import executable
w = wf.tensor([[0.5, -1.0], [0.25, 2.0]], requires_grad=True)
optimizer = wf.optim.Adam([w], lr=0.1)
@wf.jit
def step(w, optimizer, x):
    loss = (wf.tanh(x @ w) ** 2).sum()
    optimizer.minimize(loss)
    return loss
x = wf.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
losses = [step(w, optimizer, x).item().hex() for _ in range(3)]
print(losses, type(executable(step.graph(w, optimizer, x))).__name__)
"""


@pytest.mark.slow
def test_a_second_process_runs_what_the_first_one_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "WEFT_CACHE": str(tmp_path)}
    found = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    assert not any(each.stderr for each in found)
    first, second = (each.stdout.rsplit(" ", 1) for each in found)
    assert first[0] == second[0]
    assert [first[1].strip(), second[1].strip()] == ["Program", "StoredProgram"]


SUMS = """
import weft as wf
f = wf.jit(lambda x: x + 2)
print([f(wf.ones((n,)))[0].item() for n in (3, 4, 5)])  # a stored program, then one for all sizes
"""


@pytest.mark.slow
def test_code_of_another_emitter_is_not_found(tmp_path: Path) -> None:
    package = tmp_path / "weft"
    ignored = shutil.ignore_patterns("__pycache__", "sets")
    shutil.copytree(Path(wf.__file__).parent, package, ignore=ignored)
    environment = {
        **os.environ, "WEFT_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip

    def run() -> str:
        command = [sys.executable, "-c", SUMS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert not done.stderr
        return done.stdout.strip()

    assert [run(), run()] == ["[3.0, 3.0, 3.0]"] * 2
    emitter = package / "compiler/targets/llvm/instructions.py"
    before = emitter.stat()
    emitter.write_text(emitter.read_text().replace('"add", "fadd"', '"add", "fsub"'))
    os.utime(emitter, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert emitter.stat().st_size == before.st_size
    assert run() == "[-1.0, -1.0, -1.0]"


def test_machine_code_goes_when_no_program_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "RECENT", 0)
    program = compile_program(wf.ir.trace(lambda x: wf.exp(x) * 1.375, wf.spec("float32", (3,))))
    (address,) = [program.maker.address(launch) for launch in program.plan.launches]
    wait_for_quiet()
    assert origin(address) is not None
    assert program.run([np.zeros(3, np.float32)])[0].tolist() == [1.375] * 3
    del program
    wait_for_quiet()
    assert origin(address) is None
