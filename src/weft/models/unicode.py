r"""Patterns with Unicode classes, which Python's own regular expressions do not have.

>>> from weft.models.unicode import portable_pattern
>>> portable_pattern(r"\p{L}+|\p{N}{1,2}|\s+").findall("añ ½12³")
['añ', ' ', '½1', '2³']
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from itertools import groupby
from typing import NamedTuple

import weft as wf

SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
r"""White space as Unicode has it; Python's \s takes four control characters more."""
CLASS = re.compile(
    r"\\p\{(?P<category>[A-Z][a-z]?)\}|\\(?P<space>[sS])|\\.|(?P<bracket>[\[\]])", re.DOTALL
)

PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))|(?P<repeat>[*+]|\{\d*,\})|.",
    re.DOTALL,
)


@cache
def portable_pattern(pattern: str) -> re.Pattern[str]:
    r"""A pattern with \p{L}, \p{N}, \s as the Rust and Oniguruma libraries read them."""
    if _repeats_a_repeat(pattern):
        raise _pattern_error(pattern, "it repeats a group that repeats, which may take forever")
    inside = False

    def replace_class(match: re.Match[str]) -> str:
        nonlocal inside
        if match["bracket"]:
            inside = match["bracket"] == "["
            return match[0]
        if match["category"]:
            ranges = _ranges(match["category"])
            return ranges if inside else f"[{ranges}]"
        if match["space"] == "s":
            return SPACES if inside else f"[{SPACES}]"
        return f"[^{SPACES}]" if match["space"] else match[0]

    try:
        return re.compile(CLASS.sub(replace_class, pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise _pattern_error(pattern, str(error)) from None


def _repeats_a_repeat(pattern: str) -> bool:
    """Whether a group that holds an unbounded repeat is repeated without bound itself.

    Python tries all ways to divide a text among such repeats, twice as many with each letter.
    """
    groups, ended = [False], False
    for match in PART.finditer(pattern):
        if match["open"]:
            groups.append(False)
        elif match["close"] and len(groups) > 1:
            ended = groups.pop()
            groups[-1] |= ended
            continue
        elif match["repeat"]:
            if ended:
                return True
            groups[-1] = True
        ended = False
    return False


def _pattern_error(pattern: str, reason: str) -> wf.ArgumentError:
    return wf.ArgumentError(
        "tokenizer",
        f"the pattern of words cannot be used: {reason}",
        expected="a regular expression as published tokenizers have them",
        got={"pattern": pattern},
        fix="take the tokenizer.json that the model was published with",
    )


@cache
def _ranges(category: str) -> str:
    """All characters of a category, as ranges between brackets."""
    ranges = []
    for is_inside, runs in groupby(_runs(), lambda run: run.category.startswith(category)):
        if is_inside:
            first, *others = runs
            last = others[-1] if others else first
            ranges.append(f"\\U{first.start:08x}-\\U{last.end:08x}")
    return "".join(ranges)


class _Run(NamedTuple):
    """Characters behind each other of one category: the codes of the first and of the last."""

    category: str
    start: int
    end: int


@cache
def _runs() -> list[_Run]:
    """All characters in order; more than a million, so one walk serves every category."""
    runs, start = [], 0
    categories = map(unicodedata.category, map(chr, range(sys.maxunicode + 1)))
    for category, same in groupby(categories):
        end = start + len(list(same))
        runs.append(_Run(category, start, end - 1))
        start = end
    return runs
