"""A run killed with SIGKILL at any moment resumes, and ends with the same weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft as wf

pytestmark = pytest.mark.slow

RUN = Path(__file__).parent / "killed_run.py"


def test_a_run_that_is_killed_ends_with_the_same_weights(tmp_path: Path) -> None:
    place, seed, accumulate = tmp_path / "runs", "1", "2"
    command = [sys.executable, str(RUN), str(place), seed, accumulate]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    ends = result.stdout.splitlines()
    assert sum(line.endswith(": killed") for line in ends) >= 3, ends
    whole = wf.load(place / "whole.safetensors")
    killed = wf.load(place / "killed.safetensors")
    assert killed["rows"] == whole["rows"]
    for name, wanted in whole["state"].items():
        assert np.array_equal(killed["state"][name].numpy(), wanted.numpy()), (name, ends)
    assert not list((place / "killed").glob(".writing-*"))
    assert len(list((place / "killed").iterdir())) == 2  # keep_last
