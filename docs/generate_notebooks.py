"""Write build/notebooks: each lesson of docs/learn as a notebook, its code blocks as cells.

    python docs/generate_notebooks.py

Prose becomes cells of text, Python blocks become cells of code, and what stands between is kept in
order. The notebooks hold no results: `docs/run_notebooks.py` runs them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
LESSONS = sorted((DOCS / "learn").glob("[0-9]*.md"))
FOLDER = DOCS.parent / "build" / "notebooks"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)[^)\s]+\)")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(text: str) -> dict[str, Any]:
    """A document as a notebook; links to other pages become their words."""
    cells = []
    for index, part in enumerate(PYTHON.split(text)):
        if index % 2:
            cells.append(_cell("code", part, index, outputs=[], execution_count=None))
        elif part.strip():
            cells.append(_cell("markdown", LINK.sub(r"\1", part), index))
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, text: str, index: int, **more: Any) -> dict[str, Any]:
    source = text.strip().splitlines(keepends=True)
    return {"cell_type": kind, "id": f"part-{index}", "metadata": {}, "source": source, **more}


def main() -> None:
    """Write the notebooks of all lessons."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for lesson in LESSONS:
        content = json.dumps(notebook(lesson.read_text(encoding="utf-8")), indent=1)
        (FOLDER / f"{lesson.stem}.ipynb").write_text(f"{content}\n", encoding="utf-8")
    print(f"{FOLDER}: {len(LESSONS)} notebooks")


if __name__ == "__main__":
    main()
