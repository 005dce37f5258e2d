"""Compiled programs read nothing beyond their inputs: what lies there may be no memory at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compiler.fences import KINDS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(os.name != "posix", reason="fences are made of pages without rights")
@pytest.mark.parametrize(
    ("kind", "dtype"), [*[(k, "float32") for k in KINDS], ("joins", "float64")]
)
def test_nothing_is_read_beyond_an_input(kind: str, dtype: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.compiler.fences", kind, dtype]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)
