"""Words for reports: amounts, counts and places.

>>> names_with_counts(["add", "exp", "add"]), count_text(1, "step", "steps")
('add ×2, exp', '1 step')
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.locations import Location


def amount(value: float) -> str:
    """A number with a prefix of the thousands, and a blank.

    >>> amount(12_300_000), amount(7)
    ('12.3 M', '7 ')
    """
    for prefix in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.0f} " if not prefix else f"{value:.1f} {prefix}"
        value /= 1000
    return f"{value:.1f} T"


def count_text(count: int, one: str, many: str) -> str:
    """A count with the word for one, or for several."""
    return f"{count} {one if count == 1 else many}"


def names_with_counts(names: Sequence[str]) -> str:
    """Names in order, with how often each comes."""
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if many == 1 else f"{name} ×{many}" for name, many in counts.items())


def place(at: Location | None) -> str:
    """A user's line: where, and its text."""
    if at is None:
        return ""
    source = at.source().partition("\n")[0]
    return f"{str(at).partition(', in ')[0]}   {source}".rstrip()
