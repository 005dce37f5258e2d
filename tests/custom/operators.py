"""What the tests of custom operations share: the example's library, built once, and clean names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import weft as wf
from weft.ir.primitive import PRIMITIVES

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_operator"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@contextmanager
def clean_names() -> Iterator[None]:
    """What is defined inside is gone afterwards."""
    before = set(PRIMITIVES)
    try:
        yield
    finally:
        for name in set(PRIMITIVES) - before:
            del PRIMITIVES[name]


def compiled(source: Path, folder: Path, name: str = "kernels") -> Path:
    """A shared library of a C source."""
    assert COMPILER is not None
    library = folder / f"lib{name}.so"
    command = [
        COMPILER, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
        "-I", wf.custom.include_folder(), "-o", str(library), str(source), "-lm",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def built(text: str, folder: Path, name: str) -> Path:
    """A shared library of C text."""
    source = folder / f"{name}.c"
    source.write_text(text, encoding="utf-8")
    return compiled(source, folder, name)


@cache
def example_library() -> Path:
    """The library of the example."""
    return compiled(EXAMPLE / "kernels.c", Path(mkdtemp(prefix="weft-kernels-")))
