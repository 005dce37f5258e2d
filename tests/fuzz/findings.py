"""What a search has found: how many programs ran in each way, what failed, what was reached."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import coverage
from tests.fuzz.workers import Outcome

ALIKE = 3
"""How many failures of one kind are made small."""
SMALL = 24
"""How many failures are made small in all."""
WRITTEN = 300
"""How many failures are written to a file, and ..."""
LONGEST = 12_000
"""... how many characters of a script: the file stays below a megabyte."""


@dataclass(slots=True)
class Findings:
    """The sum of many outcomes."""

    first: int
    last: int
    """The seeds that were asked for."""
    programs: int = 0
    seconds: float = 0.0
    ways: Counter[str] = field(default_factory=Counter)
    """How many programs were compared in each way."""
    reached: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    """What failed, by seed."""
    scripts: dict[int, str] = field(default_factory=dict)
    """Programs that failed, made small, by seed."""

    def add(self, outcome: Outcome, seconds: float) -> None:
        """Count an outcome, so many seconds after the beginning."""
        self.programs, self.seconds = self.programs + 1, seconds
        self.ways.update(outcome.ways)
        self.reached.update(outcome.reached)
        if outcome.failure is not None:
            self.failures[outcome.seed] = outcome.failure

    def __str__(self) -> str:
        counts = ", ".join(f"{way} {number}" for way, number in sorted(self.ways.items()))
        failed = " ".join(map(str, [f"{len(self.failures)} failed", *sorted(self.failures)]))
        return f"{self.programs} programs in {self.seconds:.0f} s ({counts}), {failed}"

    def first_of_each_kind(self) -> list[int]:
        """The seeds that are made small: of failures that are alike only a few."""
        kinds: dict[str, list[int]] = {}
        for seed, failure in sorted(self.failures.items()):
            kinds.setdefault(failure.split(" (")[0], []).append(seed)
        return sorted(seed for alike in kinds.values() for seed in alike[:ALIKE])[:SMALL]

    def way_of(self, seed: int, ways: Sequence[str]) -> Sequence[str]:
        """The way that failed, if that is known: of a process that ended it is not."""
        way, what = self.failures[seed].split(": ", 1)
        ended = what.startswith(("does not end", "the process ends"))
        return ways if ended or way not in ways else (way,)

    def write(self, file: Path | None, counted: bool) -> None:
        """Write all of it to a file, if there is to be one."""
        if file is None:
            return
        failures = [
            {"seed": seed, "failure": text[:1000], "script": self.scripts.get(seed, "")[:LONGEST]}
            for seed, text in sorted(self.failures.items(), key=lambda pair: pair[0])
        ]
        failures.sort(key=lambda each: not each["script"])
        content = {
            "seeds": [self.first, self.last],
            "programs": self.programs,
            "seconds": round(self.seconds, 1),
            "ways": dict(self.ways),
            "failed": len(self.failures),
            "failures": failures[:WRITTEN],
            "coverage": coverage.summary(self.reached) if counted else {},
            "reached": dict(sorted(self.reached.items())),
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=0), encoding="utf-8")
