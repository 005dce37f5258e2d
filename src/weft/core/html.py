"""Pieces of HTML for what notebooks show: tables, things that open, bars and text.

Everything that comes from outside is escaped; colours are those of the notebook's theme.

>>> from weft.core.html import table
>>> table(["name"], [["<b>"]]).count("&lt;b&gt;")
1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["bar", "block", "opening", "preformatted", "table"]

_CELL = "text-align:left;padding:1px 12px 1px 0;border-bottom:1px solid rgba(128,128,128,.25)"
_MONO = "font-family:ui-monospace,monospace;font-size:12px"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of texts, each cell as `str` writes it."""
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in header)
    lines = []
    for row in rows:
        cells = [escape(str(cell)).replace("  ", "&nbsp;&nbsp;") for cell in row]
        lines.append("".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    above = f"<div>{escape(caption)}</div>" if caption else ""
    head_row = f"<thead><tr>{head}</tr></thead>" if header else ""
    return (
        f'{above}<table style="border-collapse:collapse;{_MONO}">{head_row}'
        f"<tbody>{body}</tbody></table>"
    )


def opening(summary: str, inside: str, is_open: bool = False) -> str:
    """A line that shows what is inside when it is clicked; `inside` is HTML."""
    state = " open" if is_open else ""
    return (
        f'<details{state} style="{_MONO};margin-left:4px"><summary style="cursor:pointer">'
        f'{escape(summary)}</summary><div style="margin-left:16px">{inside}</div></details>'
    )


def preformatted(text: str) -> str:
    """Text as it stands."""
    style = f"{_MONO};white-space:pre;overflow-x:auto;margin:0;line-height:1.35"
    return f'<pre style="{style}">{escape(text)}</pre>'


def bar(part: float) -> str:
    """A bar that is filled up to a part of 1."""
    width = round(100 * min(max(part, 0.0), 1.0), 1)
    return (
        '<span style="display:inline-block;width:160px;height:9px;'
        'background:rgba(128,128,128,.18)"><span style="display:block;height:9px;'
        f'background:#2a6fdb;width:{width}%"></span></span>'
    )


def block(*parts: str) -> str:
    """Pieces below each other, in one box that a notebook shows."""
    return f'<div style="max-width:100%;overflow-x:auto">{"".join(parts)}</div>'
