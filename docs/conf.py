"""How Sphinx builds the site: `make docs` writes it to build/site, to be read without a network.

The source folder is the root of the repository, so that the links between documents are those that
hold on disk. Which pages there are follows from the files: a new page in docs/ is a guide under
"How do I", and docs/coming_from_*.md stand under "Coming from".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "src"))

from sphinx.addnodes import pending_xref  # noqa: E402

import weft  # noqa: E402

project = "Weft"
author = "the authors of Weft"
release = version = weft.__version__

extensions = ["myst_parser", "sphinx_copybutton"]
PROJECT = ("CHANGELOG", "CONTRIBUTING", "SECURITY")
root_doc = "docs/index"
include_patterns = ["docs/**.md", "examples/README.md", *(f"{name}.md" for name in PROJECT)]
exclude_patterns = [".*", "build", "dist", "src", "tests", "benchmarks", "htmlcov"]
myst_heading_anchors = 3
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
highlight_language = "text"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"Weft {release}"
html_static_path = ["static"]
html_css_files = ["weft.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "to_docs.html"}  # the folder of the site opens at docs/index
html_show_sphinx = html_show_copyright = False
html_copy_source = False
html_theme_options: dict[str, Any] = {"footer_icons": []}
SITE_VERSIONS = os.environ.get("SITE_VERSIONS", "").split()
"""The versions whose sites stand beside this one; see build_versions.py."""
html_context = {"site_versions": SITE_VERSIONS}
if SITE_VERSIONS:
    sidebar = ["brand", "search", "scroll-start", "navigation", "scroll-end"]
    html_sidebars = {"**": [*(f"sidebar/{each}.html" for each in sidebar), "versions.html"]}

# The pages of docs/ that have a section of their own; all others are guides.
SECTIONS = {"index", "install", "errors", "glossary", "transforms", "project"}
LISTING = ["docs/coming_from/index", "docs/how/index", "docs/reference/index"]
SHALLOW = {"docs/errors": 2, "docs/transforms": 2, "CHANGELOG": 3}
"""Pages whose list of contents stops at a level of headings, as they have hundreds."""


def listed_pages(name: str) -> list[str]:
    """What stands for `(pages)` on an index page: pages that are found, not listed by hand."""
    found = sorted(path.stem for path in DOCS.glob("*.md"))
    coming = [each for each in found if each.startswith("coming_from_")]
    if name == "docs/coming_from/index":
        return [f"/docs/{each}" for each in coming]
    if name == "docs/how/index":
        listed = (DOCS / "how" / "index.md").read_text(encoding="utf-8").split()
        tasks = sorted(path.stem for path in (DOCS / "how").glob("*.md"))
        more = [f"/docs/how/{each}" for each in tasks if each not in {*listed, "index"}]
        return more + [f"/docs/{each}" for each in found if each not in {*SECTIONS, *coming}]
    if name == "docs/reference/index":
        order = (DOCS / "reference" / "generated" / "order.txt").read_text(encoding="utf-8")
        return [f"generated/{each}" for each in order.split()]
    return []


def _complete_page(app: Any, name: str, source: list[str]) -> None:
    """Put the lists of pages and the links to notebooks into pages as they are read."""
    source[0] = source[0].replace("(pages)", "\n".join(listed_pages(name)))
    folder, _, page = name.rpartition("/")
    notebook = f"build/notebooks/{page}.ipynb"
    if folder == "docs/learn" and (ROOT / notebook).exists():
        source[0] += f"\nThis page {{download}}`as a notebook </{notebook}>`.\n"


def _correct_page(app: Any, doctree: Any) -> None:
    """Shorten long lists of contents, and take the guessed links off the types in signatures.

    Sphinx would link `type` to `wf.Tensor.type`, as it takes the end of any known name.
    """
    name = app.env.docname
    if name in SHALLOW:
        app.env.metadata[name]["tocdepth"] = SHALLOW[name]
    for link in list(doctree.findall(pending_xref)):
        if link.get("refdomain") == "py" and not link["reftarget"].startswith("wf."):
            link.replace_self(link.children)


def setup(app: Any) -> dict[str, bool]:
    """Connect the steps above."""
    os.chdir(ROOT)
    app.connect("env-get-outdated", lambda *call: LISTING)  # pages may have come or gone
    app.connect("source-read", _complete_page)
    app.connect("doctree-read", _correct_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
