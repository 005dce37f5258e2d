"""One entry of the catalogue: a wrong program and the fields of the error it must give.

The wrong line of a program is the one marked `# wrong`, or else its last.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from weft import WeftError

MARK = "# wrong"


@dataclass(frozen=True)
class Mistake:
    """A wrong program; `op` is the error's own, the other fields are parts of the error's."""

    title: str
    error: type[WeftError]
    op: str
    problem: str
    expected: str
    got: str
    fix: str
    run: Callable[[], object]

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def file(self) -> str:
        return self.run.__code__.co_filename

    @property
    def line(self) -> int:
        """The line of the file that is wrong."""
        lines, first = inspect.getsourcelines(self.run)
        marked = [number for number, text in enumerate(lines) if MARK in text]
        return first + (marked[0] if marked else len(lines) - 1)

    @property
    def code(self) -> str:
        """The program, as a user would write it."""
        lines = inspect.getsource(self.run).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("def ")) + 1
        return textwrap.dedent("\n".join(lines[start:])) + "\n"


Family = list[Mistake]


def mistake(
    family: Family,
    title: str,
    error: type[WeftError],
    op: str,
    *,
    problem: str,
    expected: str,
    got: str,
    fix: str,
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Put the decorated program into a family."""

    def enter(run: Callable[[], object]) -> Callable[[], object]:
        family.append(Mistake(title, error, op, problem, expected, got, fix, run))
        return run

    return enter
