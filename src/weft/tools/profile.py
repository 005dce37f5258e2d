"""A profile of compiled programs: a table of kernels, and a trace for Perfetto.

>>> import weft as wf
>>> f = wf.jit(lambda x: wf.exp(x @ x))
>>> x = wf.ones((16, 16))
>>> with wf.tools.profile() as profile:
...     _ = f(x), f(x)
>>> [(row.name, row.fused, row.calls) for row in sorted(profile.rows, key=lambda row: row.name)]
[('dot', 'dot', 2), ('k0', 'exp', 2)]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import weft as wf
from weft.files import write_text

__all__ = ["Profile", "ProfileRow", "profile"]

LISTED = 30
"""How many kernels the table shows before it only counts the rest."""
FUSED = 48
"""How many characters of what was fused it shows."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """All calls of one kernel of one program."""

    name: str
    kind: str
    fused: str
    calls: int
    seconds: float
    bytes: int
    flops: int

    @property
    def bandwidth(self) -> float:
        """GB/s, read and written."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def rate(self) -> float:
        """GFLOP/s."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0


class Profile:
    """The timed calls of compiled programs; `print` it for a table, `write_trace` for a picture."""

    def __init__(self) -> None:
        self.calls: Sequence[Any] = ()

    @property
    def rows(self) -> list[ProfileRow]:
        """One row per kernel, the longest first."""
        groups: dict[Any, list[Any]] = {}
        for call in self.calls:
            groups.setdefault((call.program, id(call.kernel)), []).append(call)
        rows = [_row(calls) for calls in groups.values()]
        return sorted(rows, key=lambda row: -row.seconds)

    @property
    def seconds(self) -> float:
        """The time of all calls together."""
        return float(sum(call.end - call.start for call in self.calls)) / 1e9

    @property
    def gaps(self) -> float:
        """The time between the kernels of one run, of all runs together, in seconds."""
        apart = [b.start - a.end for a, b in pairwise(self.calls) if a.run == b.run]
        return float(sum(apart)) / 1e9

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        rows, total = self.rows, self.seconds
        runs = len({call.run for call in self.calls})
        yield (
            f"{runs} runs, {len(self.calls)} calls, {total * 1e3:.3f} ms in kernels, "
            f"{self.gaps * 1e3:.3f} ms between them"
        )
        yield (
            f"{'kernel':<12} {'fused':<{FUSED}} {'calls':>6} {'total ms':>9} {'share':>6} "
            f"{'GB/s':>7} {'GFLOP/s':>8}"
        )
        for row in rows[:LISTED]:
            share = row.seconds / total if total else 0.0
            yield (
                f"{row.name:<12} {_shorten_text(row.fused):<{FUSED}} {row.calls:>6} "
                f"{row.seconds * 1e3:>9.3f} {share:>6.1%} {row.bandwidth:>7.1f} {row.rate:>8.1f}"
            )
        if len(rows) > LISTED:
            yield f"and {len(rows) - LISTED} more: see .rows"

    def write_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the calls as a file that https://ui.perfetto.dev and chrome://tracing open."""
        events = [*self._runs(), *[_event(call) for call in self.calls]]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
        target = Path(path)
        write_text("write_trace", target, text)
        return target

    def _runs(self) -> Iterator[dict[str, Any]]:
        """Each run of a program as an event that its calls lie in."""
        runs: dict[int, list[Any]] = {}
        for call in self.calls:
            runs.setdefault(call.run, []).append(call)
        for number, calls in runs.items():
            end = max(call.end for call in calls)
            yield _span(f"program {calls[0].program}", calls[0], end, {"run": number})


@contextmanager
def profile(path: str | os.PathLike[str] | None = None) -> Iterator[Profile]:
    """Time each kernel of the compiled programs that run inside; a path also writes the trace.

    Kernels are timed by native code: nothing of Python runs between them, nor in the profile. Those
    of a card are timed by its events, and launched one by one meanwhile.

    >>> import weft as wf
    >>> f = wf.jit(lambda x: wf.exp(x).sum())
    >>> with wf.tools.profile() as profile:
    ...     _ = f(wf.ones(1000))
    >>> profile.seconds > 0
    True
    """
    result = Profile()
    with wf.timings() as calls:
        result.calls = calls
        yield result
    if path is not None:
        result.write_trace(path)


def _row(calls: Sequence[Any]) -> ProfileRow:
    kernel, count = calls[0].kernel, len(calls)
    fused = dict.fromkeys(kernel.primitives)
    seconds = sum(call.seconds for call in calls)
    moved = kernel.read + kernel.written
    return ProfileRow(
        kernel.name, kernel.kind, ", ".join(fused), count, seconds, moved * count,
        kernel.flops * count,
    )  # fmt: skip


def _event(call: Any) -> dict[str, Any]:
    kernel = call.kernel
    details = {
        "kind": kernel.kind, "space": kernel.space, "fused": kernel.primitives,
        "lines": list(kernel.lines), "bytes": kernel.read + kernel.written, "flops": kernel.flops,
    }  # fmt: skip
    return _span(kernel.name, call, call.end, details)


def _span(name: str, call: Any, end: int, details: dict[str, Any]) -> dict[str, Any]:
    # Their unit is the microsecond, as a fraction where need be.
    return {
        "name": name, "ph": "X", "ts": call.start / 1000, "dur": (end - call.start) / 1000,
        "pid": os.getpid(), "tid": call.thread, "cat": call.device, "args": details,
    }  # fmt: skip


def _shorten_text(text: str) -> str:
    return text if len(text) <= FUSED else text[: FUSED - 1] + "…"
