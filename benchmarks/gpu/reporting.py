"""Rows of results as they come, and the parts of a script each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["report", "run_parts"]

ROOT = Path(__file__).resolve().parents[2]


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
    names, name_of_script = sys.argv[1:], Path(script).stem
    unknown = [name for name in names if name not in parts]
    if unknown:
        sys.exit(f"{name_of_script} has no part {', '.join(unknown)}: it has {', '.join(parts)}")
    if len(names) == 1:
        parts[names[0]]()
        return
    for name in names or parts:
        command = [sys.executable, "-m", f"benchmarks.gpu.{name_of_script}", name]
        try:
            subprocess.run(command, check=True, timeout=seconds, cwd=ROOT)
        except subprocess.SubprocessError as error:
            report(f"{name_of_script}_failures.jsonl", {"part": name, "error": str(error)})
