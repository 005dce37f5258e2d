"""What is freed stays with the process: steps do not meet their pages anew."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import pytest

from weft.runtime import freed_memory
from weft.runtime.freed_memory import VARIABLE, is_left_alone, keep_freed_memory

STEPS = """
import resource
import numpy as np
import weft as wf

x = wf.tensor(np.ones(1 << 20, np.float32))
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    before = faults()
    kept = [wf.relu(x) for _ in range(6)]
    del kept
print((faults() - before) // 6)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_arrays_of_a_step_take_the_pages_of_the_last_one() -> None:
    environment = {k: v for k, v in os.environ.items() if not is_left_alone({k: v})}
    ran = subprocess.run(
        [sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 64, "an array has 1024 pages"


@pytest.mark.parametrize("name", [VARIABLE, "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_environment_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise AssertionError("the C library was asked")

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", refuse)
    monkeypatch.setenv(name, "off")
    assert keep_freed_memory.__wrapped__() is False


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if is_left_alone({name: os.environ[name]}):
            monkeypatch.delenv(name)
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory.__wrapped__() is False
