"""Check the built site: every link leads somewhere, and nothing is fetched from elsewhere.

`make docs` runs it on build/site.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

OUTSIDE = re.compile(r"^(https?:)?//")
STYLE_ADDRESS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that a browser fetches by itself, and where they say from where."""


class PageReader(HTMLParser):
    """Notes the links, the fetched addresses and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Sort an element's addresses by whether they are followed or fetched."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in FETCHED and FETCHED[tag] in values and values.get("rel") != "canonical":
            self.fetched.append(values[FETCHED[tag]])


@cache
def read_page(path: Path) -> PageReader:
    """A page of the site."""
    reader = PageReader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def faults_of_page(path: Path) -> list[str]:
    """What is wrong with the addresses of a page."""
    page = read_page(path)
    outside = [f"fetches {each}" for each in page.fetched if OUTSIDE.match(each)]
    inside = [each for each in [*page.links, *page.fetched] if not urlsplit(each).scheme]
    dead = [f"dead link {each}" for each in inside if not leads_somewhere(path, each)]
    return outside + dead


def leads_somewhere(page: Path, address: str) -> bool:
    """Whether an address relative to a page is a file of the site, and its anchor is there."""
    if OUTSIDE.match(address):
        return True
    parts = urlsplit(address)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target.suffix != ".html" or anchor in read_page(target).anchors


def faults_of_style(path: Path) -> list[str]:
    """Addresses elsewhere that a style sheet would fetch."""
    addresses = STYLE_ADDRESS.findall(path.read_text(encoding="utf-8"))
    return [f"fetches {each}" for each in addresses]


def faults_of_site(site: Path) -> list[str]:
    """Everything that is wrong, one line each."""
    found = {path: faults_of_page(path) for path in sorted(site.rglob("*.html"))}
    found |= {path: faults_of_style(path) for path in sorted(site.rglob("*.css"))}
    return [f"{path.relative_to(site)}: {fault}" for path in found for fault in found[path]]


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    faults = faults_of_site(folder)
    print("\n".join(faults) or f"{len(list(folder.rglob('*.html')))} pages in {folder}")
    sys.exit(1 if faults else 0)
