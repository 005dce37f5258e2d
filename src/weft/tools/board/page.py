"""The page as text: one file with style, script and, where it is exported, all of its data."""

from __future__ import annotations

import base64
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from weft.files import open_file, write_text
from weft.tools.board.reading import Run, read_run, run_folders, run_name

SAMPLE_BYTES = 4 << 20
"""The largest file of a sample that is shown."""
TYPES = {".png": "image/png", ".wav": "audio/wav"}


def page_text(runs: list[Run] | None = None) -> str:
    """The page; without runs it asks the server that it came from, again and again."""
    folder = files("weft.tools.board")

    def part(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    # "<" is written so that no text of a run ends the element that the data stand in
    data = "null" if runs is None else as_json(runs).replace("<", "\\u003c")
    parts = {"style": part("board.css"), "script": part("board.js"), "data": data}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], part("board.html"))


def as_json(value: Any) -> str:
    """JSON that browsers read: what is not finite has no word there, and becomes null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_without_infinities(value), allow_nan=False)


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def export_page(root: Path, path: Path) -> Path:
    """Write the page of all runs below a folder, with their samples, as one file."""
    runs = []
    for folder in run_folders(root):
        run = read_run(folder, run_name(root, folder))
        for sample in run["samples"]:
            for kind in ("image", "audio"):
                if kind in sample:
                    found = sample_bytes(folder, str(sample[kind]))
                    sample[kind] = found and _data_address(found)
        runs.append(run)
    write_text("board", path, page_text(runs))
    return path


def sample_bytes(folder: Path, name: str) -> tuple[str, bytes] | None:
    """The type and the bytes of a sample of a run; None where there is none of this name."""
    kind = TYPES.get(Path(name).suffix)
    if kind is None or Path(name).name != name:
        return None
    try:
        with open_file("board", folder / "samples" / name) as file:
            data = file.read(SAMPLE_BYTES + 1)
    except OSError:
        return None
    return None if len(data) > SAMPLE_BYTES else (kind, data)


def _data_address(found: tuple[str, bytes]) -> str:
    kind, data = found
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
