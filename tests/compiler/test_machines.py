"""Code for a lesser processor than the one at hand: named, kept apart, and as right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import weft as wf
from weft.compiler.fusion.grouping import group
from weft.compiler.lowering.groups import context_of, is_lowered, lower
from weft.compiler.targets.cpu.engine import _object
from weft.compiler.targets.cpu.machine import (
    LEVELS,
    available_machines,
    host,
    level_of,
    machine_named,
)
from weft.compiler.targets.cpu.products import gemm, gemv, tiles
from weft.compiler.targets.cpu.products.dot_packing import has_instruction, words_of
from weft.compiler.targets.cpu.target import CPU
from weft.compiler.targets.llvm.emit import emit_module
from weft.core.errors import ArgumentError

pytestmark = pytest.mark.slow

TRIPLE = "x86_64-unknown-linux-gnu"
X86 = [name for name in LEVELS if name.startswith("x86")]
is_x86 = pytest.mark.skipif(host().is_arm, reason="names processors of another kind")

SCRIPT = """
import json
import numpy as np
import weft as wf
from weft.compiler.targets.cpu.machine import host, level_of
x = wf.tensor(np.linspace(-3, 3, 37 * 29, dtype=np.float32).reshape(37, 29))
half = x.astype("bfloat16")
f = lambda x, half: (
    wf.gelu(x) @ wf.tanh(x).T, wf.softmax(x, axis=1), wf.sort(x, axis=0), half @ half.T,
    wf.exp(x).sum(axis=0),
)
found, expected = wf.jit(f)(x, half), f(x, half)
for a, b in zip(found, expected):
    np.testing.assert_allclose(a.astype("float32").numpy(), b.astype("float32").numpy(), 2e-2, 1e-3)
np.testing.assert_allclose(found[1].numpy(), expected[1].numpy(), 1e-5)
print(json.dumps([host().width, level_of(host())]))
"""


def run(machine: str, folder: Path, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "WEFT_MACHINE": machine, "WEFT_CACHE": str(folder)}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@is_x86
def test_each_machine_has_all_of_the_lesser_ones() -> None:
    for lesser, greater in pairwise(X86):
        assert LEVELS[lesser] < LEVELS[greater]
    assert [machine_named(name, TRIPLE, LEVELS[name]).width for name in X86] == [4, 4, 8, 16]
    assert [level_of(machine_named(name, TRIPLE, LEVELS[name])) for name in X86] == X86


@pytest.mark.parametrize("machine", [name for name in available_machines() if name != "x86-64-v2"])
def test_code_for_a_lesser_machine_gives_the_same_numbers(machine: str, tmp_path: Path) -> None:
    for _ in range(2):  # compiled, then from disk
        done = run(machine, tmp_path)
        assert not done.stderr
        width, level = json.loads(done.stdout)
        assert level == machine
        assert width == {"x86-64": 4, "x86-64-v3": 8, "x86-64-v4": 16, "aarch64": 4}[machine]


@is_x86
def test_code_of_one_machine_is_not_found_by_another(tmp_path: Path) -> None:
    names: list[set[str]] = []
    for machine in ("x86-64", available_machines()[-1]):
        assert not run(machine, tmp_path).stderr
        names.append({path.name for path in tmp_path.rglob("*") if path.is_file()})
    assert len(names[1]) >= 2 * len(names[0])


@is_x86
def test_a_greater_machine_is_refused() -> None:
    with pytest.raises(ArgumentError, match="cannot run code for x86-64-v4") as caught:
        machine_named("x86-64-v4", TRIPLE, LEVELS["x86-64-v3"])
    assert "avx512f" in str(caught.value)
    assert caught.value.fix == "WEFT_MACHINE=x86-64-v3"


@is_x86
def test_an_unknown_machine_is_refused(tmp_path: Path) -> None:
    script = "import weft as wf; wf.jit(lambda x: x + 1)(wf.ones((3,)))"
    assert "no machine of this kind is called 'pentium'" in run("pentium", tmp_path, script).stderr


def test_the_machine_of_a_process_stays_the_same() -> None:
    host()
    other = "x86-64" if os.environ.get("WEFT_MACHINE") != "x86-64" else "x86-64-v2"
    with (
        wf.settings.changed(machine=other),
        pytest.raises(ArgumentError, match="code for another machine was made in this process"),
    ):
        host()


@is_x86
@pytest.mark.parametrize("name", X86)
def test_llvm_takes_what_is_written_for_each_machine(name: str) -> None:
    """Also for machines that nobody here has: instructions that LLVM cannot select would end it."""
    machine = machine_named(name, TRIPLE, LEVELS[name])
    graph = wf.ir.trace(
        lambda x: wf.softmax(wf.gelu(x) * wf.exp(x), axis=-1), wf.spec("float32", (5, 37))
    )
    context = context_of(graph, CPU.limits.lowering)
    groups = group(graph, is_lowered, CPU.limits.fusion)
    kernels = [lower(each, context, "k").kernel for each in groups]
    texts = [emit_module([kernel], machine) for kernel in kernels]
    assert texts
    for dtype in (wf.float32, wf.float64):
        texts.append(gemm.source(tiles.tile_of(dtype, machine)))
        texts.append(gemv.source(gemv.shape_of(dtype, machine)))
    for left, right in ((wf.bfloat16, wf.bfloat16), (wf.int8, wf.int8)):
        kind = words_of(left, right)
        assert kind is not None
        assert not has_instruction(kind, machine)  # they came after the fourth level
    for text in texts:
        assert _object(text, machine, 2)[:4] == b"\x7fELF"
