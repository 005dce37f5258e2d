"""The script for a card that is lent for minutes: it loses nothing, and goes on where it ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import steps
from benchmarks.gpu.reporting import run_parts
from benchmarks.gpu.sitting import CUT, LOST, RESULTS, TESTS, Part, main, parts, sit

ROOT = Path(__file__).parents[3]


def python(name: str, text: str, limit: float = 20, least: float = 0) -> Part:
    return Part(name, (sys.executable, "-c", text), limit, least)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]


def test_each_part_is_written_down_whatever_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, handed = tmp_path / "state", tmp_path / "out"
    folder.mkdir(), handed.mkdir()
    monkeypatch.setenv("OUT", str(handed))
    chosen = [
        python("fails", "print('FAILED tests/gpu/test_rows.py::test_sums - 1 != 2'); exit(1)"),
        python("dies", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        python("hangs", "import time; print('begun', flush=True); time.sleep(99)", limit=1),
        python("works", "print('fine')"),
    ]
    assert not sit(chosen, 60, folder)
    found = {row["part"]: row for row in rows(handed)}
    assert [found[part.name]["result"] for part in chosen] == [1, -11, LOST, 0]
    assert found["fails"]["failed"] == ["tests/gpu/test_rows.py::test_sums"]
    assert found["hangs"]["end"] == ["begun"]
    assert "=== works" in (handed / "sitting.log").read_text()


def test_a_second_call_goes_on_where_the_first_was_cut(tmp_path: Path) -> None:
    first = python("first", "print(1)")
    slow, never = python("slow", "import time; time.sleep(2)"), python("never", "", least=50)
    sit([first, slow, never], 1.5, tmp_path)
    assert [(row["part"], row["result"]) for row in rows(tmp_path)] == [("first", 0), ("slow", CUT)]
    assert sit([first, slow, never], 60, tmp_path)
    assert [(row["part"], row["result"]) for row in rows(tmp_path)[2:]] == [
        ("slow", 0), ("never", 0),
    ]  # fmt: skip


def test_every_file_of_the_cards_tests_is_a_part(tmp_path: Path) -> None:
    files = {file.stem.removeprefix("test_") for file in (ROOT / "tests/gpu").glob("test_*.py")}
    assert files == {*TESTS}
    found = [part.name for part in parts(tmp_path, dry=False)]
    assert len({*found}) == len(found)
    assert found[0] == "tests programs"


@pytest.mark.slow
@pytest.mark.parametrize("only", ["tests captures", "fuzz", "steps", "rows"])
def test_a_dry_run_needs_no_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    given = ["sitting.py", "--dry", "--only", only, "--folder", str(tmp_path / "state")]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit) as ended:
        main()
    (row,) = rows(tmp_path / "out")
    assert (row["result"], row["failed"], ended.value.code) == (0, [], False), row["end"]


def test_the_parts_of_a_script_run_in_processes_that_find_its_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[list[str], Path]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["steps.py"])
        patch.setattr(subprocess, "run", lambda part, cwd, **_: begun.append((part, cwd)))
        run_parts(steps.PARTS, steps.__file__, seconds=60)
    commands = [[sys.executable, "-m", "benchmarks.gpu.steps", name] for name in steps.PARTS]
    assert begun == [(command, ROOT) for command in commands]
    shown = subprocess.run(
        [*commands[0][:-1], "nothing"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert shown.stderr.startswith("steps has no part nothing: it has mlp, eager")
