"""The benchmarks run and their results agree between libraries; how fast is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_eager_benchmark_times_every_case_and_writes_it_down(tmp_path: Path) -> None:
    output = tmp_path / "eager.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "eager.py")]
    command += ["--rounds", "2", "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    times = json.loads(output.read_text(encoding="utf-8"))["nanoseconds"]
    assert len(times) == 9
    for case, row in times.items():
        assert 0 < row["Weft"]["best"] <= row["Weft"]["median"], case
        assert case in result.stdout
