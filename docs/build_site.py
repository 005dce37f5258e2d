"""Build the static site: every Markdown document of the project as one HTML page.

Run it with `make docs`, which first runs the `docs/generate_*.py` scripts. The site mirrors the
repository (`README.md` is `index.html`, `docs/errors.md` is `docs/errors.html`), so the relative
links of the documents hold on the site once `.md` reads `.html`; other files that they link to are
copied beside them.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
from pathlib import Path
from string import Template

import markdown
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parents[1]
EXTENSIONS = ["fenced_code", "codehilite", "tables", "toc", "sane_lists"]
LOCAL_LINK = re.compile(r'href="(?!\w+:|//|#)(?P<path>[^"#]+)(?P<anchor>#[^"]*)?"')

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="stylesheet" href="${root}style.css">
</head>
<body>
<nav>$navigation</nav>
<main>
$body
</main>
</body>
</html>
""")

STYLE = """
:root { color-scheme: light; --line: #dde1e6; --ink: #1b1f24; --link: #0b5cad; --ground: #f6f8fa; }
body { margin: 0; display: grid; grid-template-columns: 15rem minmax(0, 1fr); color: var(--ink);
       font: 16px/1.55 system-ui, sans-serif; }
nav { border-right: 1px solid var(--line); background: var(--ground); padding: 2rem 1.2rem;
      min-height: 100vh; box-sizing: border-box; }
nav a { display: block; padding: .2rem 0; text-decoration: none; }
nav a[aria-current] { font-weight: 600; color: var(--ink); }
main { max-width: 52rem; padding: 1.5rem 2.5rem 4rem; }
a { color: var(--link); }
h1, h2, h3 { line-height: 1.25; margin: 1.8em 0 .6em; }
h1 { margin-top: .4em; }
pre { background: var(--ground); border: 1px solid var(--line); border-radius: 6px;
      padding: .8rem 1rem; overflow-x: auto; font-size: 14px; line-height: 1.45; }
code { font-family: ui-monospace, monospace; font-size: .92em; }
:not(pre) > code { background: var(--ground); border-radius: 4px; padding: .1em .3em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .35rem .7rem; text-align: left; }
th { background: var(--ground); }
@media (max-width: 48rem) {
  body { display: block; }
  nav { min-height: 0; border-right: 0; border-bottom: 1px solid var(--line); padding: 1rem; }
  main { padding: 1rem; }
}
"""


def build(target: Path) -> int:
    """Write the site into the folder `target` and return how many pages it has."""
    documents = [*sorted(ROOT.glob("*.md"), key=_readme_first), *sorted(ROOT.glob("docs/**/*.md"))]
    pages = {_page(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in documents}
    for page, text in pages.items():
        content = _render(page, text, pages)
        _place(target / page).write_text(content, encoding="utf-8")
        for link in LOCAL_LINK.finditer(content):
            linked = os.path.normpath(page.parent / link["path"])
            if (ROOT / linked).is_file():
                shutil.copyfile(ROOT / linked, _place(target / linked))
    colours = HtmlFormatter(style="default").get_style_defs(".codehilite")
    (target / "style.css").write_text(f"{STYLE}{colours}\n", encoding="utf-8")
    return len(pages)


def _place(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _readme_first(path: Path) -> tuple[bool, str]:
    return path.name != "README.md", path.name


def _page(document: Path) -> Path:
    page = document.with_suffix(".html")
    return page.with_name("index.html") if page.name == "README.html" else page


def _render(page: Path, text: str, pages: dict[Path, str]) -> str:
    root = "../" * (len(page.parts) - 1)
    body = markdown.markdown(
        text, extensions=EXTENSIONS, extension_configs={"codehilite": {"guess_lang": False}}
    )
    return PAGE.substitute(
        title=html.escape(_title(text)),
        root=root,
        navigation="\n".join(_entry(other, page, pages[other]) for other in pages),
        body=LOCAL_LINK.sub(_to_page, body),
    )


def _entry(other: Path, page: Path, text: str) -> str:
    address = Path(os.path.relpath(other, page.parent)).as_posix()
    current = ' aria-current="page"' if other == page else ""
    return f'<a href="{address}"{current}>{html.escape(_title(text))}</a>'


def _title(text: str) -> str:
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1].replace("`", "") if heading else "Weft"


def _to_page(link: re.Match[str]) -> str:
    path = Path(link["path"])
    page = _page(path) if path.suffix == ".md" else path
    return f'href="{page.as_posix()}{link["anchor"] or ""}"'


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(f"{build(folder)} pages in {folder}")
