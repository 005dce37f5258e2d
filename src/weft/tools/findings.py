"""What a check found, in the form of the framework's errors: the problem, a fix, and where.

>>> from weft.tools.findings import Finding
>>> print(Finding("warning", "unused", "fc.bias is never used", fix="delete it"))
warning: unused: fc.bias is never used
  fix       delete it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Finding", "Report"]

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or looks as if it were; `at` is the user's line."""

    severity: str
    rule: str
    problem: str
    got: str = ""
    fix: str = ""
    at: Any = None
    expected: str = ""
    module: str = ""

    def __str__(self) -> str:
        lines = [f"{self.severity}: {self.rule}: {self.problem}"]
        for name in ("expected", "got", "fix"):
            text = getattr(self, name)
            lines += [f"  {name:<9} {text}"] if text else []
        lines += [f"  in        {self.module}"] if self.module else []
        if self.at is not None:
            lines.append(f"  at        {self.at}")
            lines += [f"              {line}" for line in self.at.source().splitlines()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        place = self.at
        return {
            "severity": self.severity,
            "rule": self.rule,
            "problem": self.problem,
            "expected": self.expected,
            "got": self.got,
            "fix": self.fix,
            "module": self.module,
            "file": None if place is None else place.file,
            "line": None if place is None else place.line,
            "column": None if place is None else place.column,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about a program; its text is what `weft check` prints."""

    name: str
    signature: str
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors."""
        return [each for each in self.findings if each.severity == ERROR]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that only look like a mistake."""
        return [each for each in self.findings if each.severity == WARNING]

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def __str__(self) -> str:
        errors, warnings = len(self.errors), len(self.warnings)
        counts = [_count_text(errors, "error"), _count_text(warnings, "warning")]
        told = " and ".join(count for count in counts if count) or "nothing wrong was found"
        return "\n\n".join([*map(str, self.findings), f"{self.name}: {told}\n  {self.signature}"])

    def json(self) -> str:
        """The report as JSON, for other programs."""
        return json.dumps(
            {
                "program": self.name,
                "signature": self.signature,
                "errors": len(self.errors),
                "warnings": len(self.warnings),
                "findings": [each.as_dict() for each in self.findings],
            },
            indent=1,
        )


def _count_text(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count > 1 else ''}" if count else ""
