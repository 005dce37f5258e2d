"""Random kills, many of them: in the nightly run alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hammer import NIGHTLY

pytest.importorskip("mpi4py")


@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="takes an hour")
def test_a_hundred_random_kills_change_nothing() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    words = [sys.executable, str(script), "--kills", "100"]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
