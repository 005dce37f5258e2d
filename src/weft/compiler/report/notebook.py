"""Reports of the compiler as HTML, which notebooks show.

>>> import weft as wf
>>> f = wf.jit(lambda x: wf.exp(x).sum())
>>> "<table" in f.explain(wf.ones(8))._repr_html_()
True
"""

from __future__ import annotations

from typing import Any

from weft.compiler.report.stages import stage_lines
from weft.compiler.report.text import amount, names_with_counts
from weft.core.html import bar, block, opening, preformatted, table
from weft.runtime.arena import readable_size

__all__ = ["explanation_html", "memory_html"]

LISTED = 200
"""The most kernels and values that a notebook is given."""


def explanation_html(explanation: Any) -> str:
    """What was compiled: the head, stages, a table of kernels, each with its lines, and memory."""
    kernels = explanation.kernels[:LISTED]
    rows = [
        (k.name, k.kind, k.space, names_with_counts(k.primitives), f"{amount(k.flops)}FLOP",
         readable_size(k.read), readable_size(k.written))
        for k in kernels
    ]  # fmt: skip
    header = ["launch", "kind", "loops over", "primitives", "work", "read", "written"]
    rest = len(explanation.kernels) - len(kernels)
    more = preformatted(f"and {rest} more: see .kernels") if rest else ""
    lines = "\n".join(str(kernel) for kernel in kernels)
    return block(
        preformatted("\n".join(explanation.head_lines())),
        table(header, rows),
        more,
        opening("your lines, by launch", preformatted(lines)),
        opening("stages", preformatted("\n".join(stage_lines(explanation.stages)))),
        opening("memory", memory_html(explanation.memory)),
        opening("the program as recorded", preformatted(str(explanation.graph))),
    )


def memory_html(report: Any) -> str:
    """What a program allocates: by purpose, the largest values, and the bytes over its calls."""
    names = ["inputs", "outputs", "donated", "constants", "arena", "temporary"]
    names += ["replaced"] if report.replaced else []
    parts = [
        preformatted(f"peak {readable_size(report.peak)}"),
        table([], [(name, readable_size(getattr(report, name))) for name in names]),
    ]
    if report.largest:
        rows = [
            (readable_size(v.bytes), v.name, v.type, "" if v.at is None else str(v.at))
            for v in report.largest[:LISTED]
        ]
        inside = table(["size", "value", "type", "from"], rows)
        parts.append(opening("the largest values that live together", inside, is_open=True))
    if report.timeline:
        most = max(report.timeline) or 1
        pairs = list(zip(report.calls, report.timeline, strict=False))[:LISTED]
        lines = [
            f"<div>{bar(live / most)} {preformatted_line(name, live)}</div>" for name, live in pairs
        ]
        parts.append(opening("live bytes at each call", "".join(lines)))
    return block(*parts)


def preformatted_line(name: str, live: int) -> str:
    """A call's name and its live bytes, behind a bar."""
    style = "font-family:ui-monospace,monospace;font-size:12px"
    return f'<span style="{style}">{name} {readable_size(live)}</span>'
