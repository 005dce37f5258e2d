"""Rows of results as they come, and the parts of a script each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["report", "run_parts"]


def report(file: str, row: Mapping[str, object]) -> None:
    """Print a row of results, and append it to a file in the folder that OUT names."""
    text = json.dumps(row)
    print(text, flush=True)
    folder = os.environ.get("OUT")
    if folder:
        with Path(folder, file).open("a") as out:
            out.write(text + "\n")


def run_parts(parts: Mapping[str, Callable[[], None]], script: str, seconds: float) -> None:
    """Run the parts that the command line names, or all: one here, several in a process each."""
    names = sys.argv[1:]
    if len(names) == 1:
        parts[names[0]]()
        return
    for name in names or parts:
        try:
            subprocess.run([sys.executable, script, name], check=True, timeout=seconds)
        except subprocess.SubprocessError as error:
            report(f"{Path(script).stem}_failures.jsonl", {"part": name, "error": str(error)})
