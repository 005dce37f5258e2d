"""The site has what it promises: every public name, pages that need no network, one version."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from tests.scripts import load_script

import weft as wf

ROOT = Path(__file__).parents[1]


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    return load_script(ROOT / "docs" / "generate_reference.py")


def test_every_public_name_stands_in_the_reference(reference: ModuleType) -> None:
    text = "\n".join(reference.render(page, with_facts=False) for page in reference.pages())
    names = [f"wf.{name}" for name in wf.__all__]
    for short in ("nn", "nn.functional", "optim", "optim.schedules", "data", "train", "models"):
        module = importlib.import_module(f"weft.{short}")
        names += [f"wf.{short}.{name}" for name in module.__all__]
    for module, short in ((wf.linalg, "linalg"), (wf.fft, "fft"), (wf.random, "random")):
        names += [f"wf.{short}.{name}" for name in module.__all__]
    documented = set(re.findall(r"^`+\{py:\w+\} ([\w.]+)", text, re.MULTILINE))
    missing = set(names) - documented - set(reference.public_modules())
    assert missing == set()
    assert len(names) > 700


def test_the_function_that_a_layer_holds_is_no_method_of_its(reference: ModuleType) -> None:
    page = next(each for each in reference.pages() if each.prefix == "wf.nn")
    text = reference.entry(page, "AdaptiveAvgPool1d", with_facts=False)
    assert "AdaptiveAvgPool1d(output_size" in text
    assert "function(output_size" not in text
    linear = reference.entry(page, "Linear", with_facts=False)
    assert "{py:method} forward(x" in linear


def test_what_the_reference_says_of_a_function_is_found_by_running_it(
    reference: ModuleType,
) -> None:
    facts = reference.facts
    assert facts(wf, "tanh", wf.tanh) == [
        "Tangent of the result, `out`: `t * (1 - (out * out))`.",
        "Compiled.",
    ]
    assert facts(wf, "softmax", wf.softmax)[0].startswith("Primitives in the example: `")
    assert facts(wf.linalg, "det", wf.linalg.det)[-1].endswith("`det`: LAPACK decomposes it.")
    assert facts(wf, "floor", wf.floor)[0].startswith("The derivative is zero: ")


def test_a_docstring_becomes_prose_and_blocks_of_code(reference: ModuleType) -> None:
    text = "y = x * w_1, `a*b`.\n\n>>> 1 + 1  # doctest: +ELLIPSIS\n2\n\n    indented\n\n# 1"
    assert " ".join(reference.markdown(text).split()) == (
        r"y = x \* w\_1, `a*b`. ```pycon >>> 1 + 1 2 ``` ```text indented ``` \# 1"
    )


def test_dead_links_and_outside_addresses_of_the_site_are_caught(tmp_path: Path) -> None:
    check = load_script(ROOT / "docs" / "check_site.py")
    page = tmp_path / "a.html"
    page.write_text(
        '<h1 id="top"><a href="#top">1</a><a href="#no">2</a><a href="b.html">3</a>'
        '<a href="https://example.org">4</a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "a.css").write_text(
        "@import '//fonts.example.org/f.css'; a {background: url(a.png)}"
    )
    assert check.faults_of_site(tmp_path) == [
        "a.html: fetches https://example.org/x.js",
        "a.html: dead link #no",
        "a.html: dead link b.html",
        "a.css: fetches //fonts.example.org/f.css",
    ]


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/weft/__init__.py"
    assert wf.__version__.count(".") == 2


def test_the_times_of_the_readme_are_those_of_the_benchmark() -> None:
    rows = json.loads((ROOT / "benchmarks/results/compare.json").read_text())["rows"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for words, workload, scale in (
        ("training step of a GPT (4 layers), ms", "gpt", 1e3),
        ("training step of a ResNet-18, ms", "resnet", 1e3),
        ("inference of an MLP, one image, µs", "mlp-infer", 1e6),
        ("one addition: a call of a function, µs", "overhead", 1e6),
    ):
        best = {name: row["wall"]["best"] * scale for name, row in rows[workload].items()}
        times = (best["weft"], min(best["torch"], best["torch-compile"]), best["jax"])
        digits = 1 if times[0] < 10 else 0
        cells = " | ".join(f"{time:.{digits}f}" for time in times)
        assert f"| {words} | {cells} |" in readme


def test_every_lesson_is_listed() -> None:
    lessons = {path.stem for path in (ROOT / "docs" / "learn").glob("*.md")} - {"index"}
    index = (ROOT / "docs" / "learn" / "index.md").read_text(encoding="utf-8").splitlines()
    assert lessons <= set(index)


def test_a_notebook_has_the_code_of_its_lesson_in_order() -> None:
    notebooks = load_script(ROOT / "docs" / "generate_notebooks.py")
    assert len(notebooks.LESSONS) == 10
    text = "# One\n\nSee [two](02.md).\n\n```python\nx = 1\n```\n\nThen:\n\n```python\nx + 1\n```\n"
    cells = notebooks.notebook(text)["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown", "code"]
    assert ["".join(cell["source"]) for cell in cells] == [
        "# One\n\nSee two.", "x = 1", "Then:", "x + 1",
    ]  # fmt: skip


def test_sites_of_versions_stand_beside_each_other_and_open_at_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_versions = load_script(ROOT / "docs" / "build_versions.py")
    built: list[tuple[str, list[str]]] = []

    def build(tree: Path, site: Path, versions: list[str]) -> None:
        built.append(((tree / "revision").read_text(), versions))
        (site / "docs").mkdir(parents=True)
        (site / "docs" / "index.html").write_text("")

    monkeypatch.setattr(build_versions, "build", build)
    monkeypatch.setattr(
        build_versions, "extract", lambda revision, tree: (tree / "revision").write_text(revision)
    )
    build_versions.build_versions(tmp_path, ["HEAD", "v0.1.0"])
    names = ["latest", "0.1.0"]
    assert built == [("HEAD", names), ("v0.1.0", names)]
    assert "url=latest/docs/index.html" in (tmp_path / "index.html").read_text()
    assert load_script(ROOT / "docs" / "check_site.py").faults_of_site(tmp_path) == []
