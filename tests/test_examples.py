"""The examples do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_example(name: str) -> str:
    """Run one example the way a user does, and return what it printed."""
    command = [sys.executable, str(ROOT / "examples" / name)]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def demo() -> str:
    return run_example("demo.py")


def test_the_demo_learns_the_digits(demo: str) -> None:
    accuracy = re.search(r"test accuracy\s+([\d.]+) %", demo)
    assert accuracy is not None, demo
    assert float(accuracy[1]) > 95


def test_the_demo_prints_plain_lines_when_nobody_watches(demo: str) -> None:
    assert "\r" not in demo
    assert "\x1b" not in demo


def test_the_demo_prints_the_same_twice(demo: str) -> None:
    def without_times(text: str) -> str:
        return re.sub(r"[\d.]+ s\b", "", text)

    assert without_times(run_example("demo.py")) == without_times(demo)
