"""The documents hold: code runs, links lead somewhere, the examples of docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import linecache
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "src" / "weft"
GENERATED = ROOT / "docs" / "reference" / "generated"  # by `make docs`, from docstrings
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples" / "README.md"]
    if GENERATED not in path.parents
)
MODULES = sorted(LIBRARY.rglob("*.py"))

FENCED = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CHECKED_PRINTS = {"learn", "how"}
"""Folders in whose pages a comment behind `print(...)` is what is printed."""


class Block(NamedTuple):
    """One fenced block of a document and the line its code starts at."""

    language: str
    code: str
    line: int


def blocks(text: str) -> list[Block]:
    return [
        Block(match["language"], match["code"], text.count("\n", 0, match.start("code")))
        for match in FENCED.finditer(text)
    ]


def run_blocks(text: str, name: str) -> list[str]:
    """Run the Python blocks of one document in one namespace; errors show the document's line.

    What comes back is each line `print(...)  # words` that printed something else.
    """
    lines, wrong = text.splitlines(), []

    def checked_print(*values: object, **options: Any) -> None:
        print(*values, **options)
        number = sys._getframe(1).f_lineno
        said = lines[number - 1].partition(")  # ")[2]
        printed = " ".join(map(str, values))
        if said and said != printed:
            wrong.append(f"line {number} says {said!r} and prints {printed!r}")

    namespace: dict[str, object] = {"__name__": "__main__", "print": checked_print}
    python = [block for block in blocks(text) if block.language == "python"]
    source = [""] * len(lines)  # the code alone, each line at its place in the document
    for block in python:
        code = block.code.splitlines()
        source[block.line : block.line + len(code)] = code
    linecache.cache[name] = (len(text), None, [f"{line}\n" for line in source], name)
    for block in python:
        exec(compile("\n" * block.line + block.code, name, "exec"), namespace)
    return wrong


def module_name(path: Path) -> str:
    parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_of_a_document_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    if re.search(r"^(from onnx|import onnx|.*wf\.onnx\.)", text, re.MULTILINE):
        pytest.importorskip("onnx")  # which not every Python has
    wrong = run_blocks(text, str(path))
    if path.parent.name in CHECKED_PRINTS:
        assert wrong == []


def anchors(text: str) -> set[str]:
    """The addresses that Markdown gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    kept = [
        "".join(c for c in heading.lower() if c.isalnum() or c in " -_") for heading in headings
    ]
    return {heading.strip().replace(" ", "-") for heading in kept}


def dead_links(path: Path) -> list[str]:
    """The links of a document to files, or to headings of documents, that are not there."""
    prose = FENCED.sub("", path.read_text(encoding="utf-8"))
    targets = [match["target"] for match in LINK.finditer(prose)]
    return [each for each in targets if "://" not in each and not leads_somewhere(path, each)]


def leads_somewhere(path: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    document = path.parent / name if name else path
    if not document.exists():
        return False
    return not anchor or anchor in anchors(document.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_document_lead_somewhere(path: Path) -> None:
    assert dead_links(path) == []


def test_a_dead_link_is_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `head`\n\n[a](#one-head) [b](#two) [c](page.md) [d](other.md)\n")
    assert dead_links(page) == ["#two", "other.md"]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_the_examples_of_a_module_are_true(path: Path) -> None:
    linecache.clearcache()  # of each docstring the debugger would look up all files that are known
    runner = doctest.DocTestRunner()
    for docstring in doctest.DocTestFinder().find(importlib.import_module(module_name(path))):
        if docstring.examples:
            runner.run(docstring)
    result = runner.summarize()
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed, shown above"


ENTRY = re.compile(
    r"^- (?P<words>\*\*.*?): .*?(?P<modules>`weft\.[^-]*)(?=^-|^#|\Z)", re.MULTILINE | re.DOTALL
)


def test_the_glossary_is_in_order_and_names_modules_that_are_there() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for part in glossary.split("\n## ")[1:]:
        entries = list(ENTRY.finditer(part))
        assert len(entries) == part.count("\n- ")  # each has words, a sentence and a module
        words = [entry["words"].strip("*") for entry in entries]
        assert words == sorted(words)
        for name in re.findall(r"`(weft\.[\w.]+)`", part):
            assert importlib.import_module(name).__doc__, name


def test_a_document_with_a_wrong_example_is_caught() -> None:
    text = "# A title\n\n```python\nx = 2\n```\n\nProse.\n\n```python\nassert x == 3\n```\n"
    with pytest.raises(AssertionError) as failure:
        run_blocks(text, "wrong.md")
    assert failure.traceback[-1].lineno == 9  # counted from 0


def test_a_print_that_says_something_else_is_caught() -> None:
    text = "```python\nprint(1 + 1)  # 2\nprint(2)  # 3\n```\n"
    assert run_blocks(text, "wrong.md") == ["line 3 says '3' and prints '2'"]


def test_the_readme_fits_on_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 60
