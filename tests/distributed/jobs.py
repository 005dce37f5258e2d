"""Jobs of real processes for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def launch(
    folder: Path,
    script: str,
    *options: str,
    arguments: tuple[str, ...] = (),
    processes: int = 2,
) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes and give what came of it."""
    path = folder / "job.py"
    path.write_text(script, encoding="utf-8")
    words = [sys.executable, "-m", "weft.cli", "launch", "-n", str(processes), *options]
    words += [str(path), *arguments]
    patient = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}  # beside other work
    return subprocess.run(
        words, capture_output=True, text=True, timeout=300, env=patient, check=False
    )
