"""Other limits of the processor, for the length of one test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.compiler.targets.cpu.target import CPU, CpuTarget


def change_pass_limits(monkeypatch: pytest.MonkeyPatch, **changed: int) -> None:
    """Let the graph passes decide by other numbers."""
    limits = CPU.limits
    passes = replace(limits.passes, **changed)
    monkeypatch.setattr(CpuTarget, "limits", replace(limits, passes=passes))
