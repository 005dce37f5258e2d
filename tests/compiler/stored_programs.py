"""Programs of which the second process finds what the first has compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def check_stored(text: str, cache: Path, **environment: str) -> None:
    """Run a text twice, which prints the class of its program and whether its results are right."""
    variables = {**os.environ, "WEFT_CACHE": str(cache), **environment}
    command = [sys.executable, "-c", text]
    said = [
        subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert [line.split() for line in said] == [["Program", "True"], ["StoredProgram", "True"]]
