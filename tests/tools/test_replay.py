"""Records of what programs are compiled to: equal in every process, and a changed plan is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPLAY = Path(__file__).parents[2] / "tools" / "replay.py"
NAMES = ["products-with-epilogues", "loop-in-a-loop", "symbolic-sizes", "reference-calls"]
MODULES = """
import sys
sys.path.insert(0, sys.argv[1])
import replay
"""
WIDER = MODULES + "import weft.runtime.memory\nweft.runtime.memory.ALIGNMENT = 4096\n"
OTHER_KERNELS = MODULES + "import weft as wf\nwf.exp = wf.exp2\nwf.tanh = wf.gelu = wf.sigmoid\n"
RUN = "sys.exit(replay.main(sys.argv[2:]))"


def replay(*arguments: str, change: str = MODULES, **environment: str) -> tuple[int, str]:
    """The exit status of a command and what it prints, with something changed before."""
    command = [sys.executable, "-c", change + RUN, str(REPLAY.parent), *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert result.returncode in (0, 1), result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, result.stdout


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    replay("record", str(folder), "--only", *NAMES, PYTHONHASHSEED="1")
    return folder


def test_another_process_without_a_cache_writes_the_same_record(
    before: Path, tmp_path: Path
) -> None:
    after, cache = str(tmp_path / "after"), str(tmp_path / "cache")
    replay("record", after, "--only", *NAMES, PYTHONHASHSEED="77", WEFT_CACHE=cache)
    status, text = replay("compare", str(before), after)
    assert status == 0
    kernels, modules = (len(list((before / part).iterdir())) for part in ("kernels", "modules"))
    assert text.splitlines() == [
        "4 of 4 programs are equal",
        f"{kernels} of {kernels} kernels are equal",
        f"{modules} of {modules} modules are equal",
    ]
    assert kernels > 8
    assert modules > 4


def test_a_record_says_graph_launches_memory_and_kernels(before: Path) -> None:
    text = (before / "loop-in-a-loop.txt").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    assert "scan: control run_loop" in lines
    assert sum(line.startswith("section ") for line in lines) == 4  # two bodies and two branches
    assert sum(line.startswith("memory peak ") for line in lines) == 5
    digests = [line.split()[1] for line in lines if line.startswith("k") and len(line.split()) == 2]
    assert all((before / "kernels" / f"{digest}.txt").exists() for digest in digests)
    sizes = (before / "symbolic-sizes.txt").read_text(encoding="utf-8")
    assert "= 40\n" in sizes


def test_a_changed_memory_plan_is_seen(before: Path, tmp_path: Path) -> None:
    after = str(tmp_path / "after")
    replay("record", after, "--only", *NAMES, change=WIDER)
    status, text = replay("compare", str(before), after)
    assert status == 1
    assert "== reference-calls" in text
    assert "-memory peak" in text
    kernels = len(list((before / "kernels").iterdir()))
    assert f"{kernels} of {kernels} kernels are equal" in text


def test_changed_kernels_and_missing_programs_are_seen(before: Path, tmp_path: Path) -> None:
    after = str(tmp_path / "after")
    replay("record", after, "--only", "products-with-epilogues", change=OTHER_KERNELS)
    status, text = replay("compare", str(before), after)
    assert status == 1
    assert f"symbolic-sizes: only in {before}" in text
    assert "0 of 4 programs are equal" in text
    assert f"only in {after}/kernels/" in text


def test_records_of_different_machines_are_not_compared(before: Path, tmp_path: Path) -> None:
    (tmp_path / "machine.txt").write_text("another\n", encoding="utf-8")
    status, text = replay("compare", str(before), str(tmp_path))
    assert status == 1
    assert text.startswith("these records are of different machines")
