"""Assembles PTX with the toolkit's `ptxas`, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PTXAS = shutil.which("ptxas")
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")


def spilled_bytes(text: str, processor: str = "sm_90a") -> int:
    """Assemble a module, for Hopper if not said; how many bytes of registers went to memory."""
    assert PTXAS is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(text)
        command = [PTXAS, f"-arch={processor}", "-v", str(source), "-o", str(Path(folder, "out"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # C7510 and its kin: products that ptxas had to put one behind the other.
    assert "serialized" not in done.stderr, done.stderr
    return sum(int(count) for count in re.findall(r"(\d+) bytes spill stores", done.stderr))
