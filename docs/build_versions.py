"""Build the sites of several versions beside each other, with links from each to the others.

    python docs/build_versions.py build/versions v0.2.0 v0.1.0

Each revision is built from its own files and by its own scripts, in a folder named after it. The
folder of all opens at the first.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def version_name(revision: str) -> str:
    """The name of a revision's folder: a tag without its v, and `latest` for what is checked out.

    >>> version_name("v0.1.0"), version_name("HEAD")
    ('0.1.0', 'latest')
    """
    if revision == "HEAD":
        return "latest"
    return revision.removeprefix("v").replace("/", "-")


def extract(revision: str, folder: Path) -> None:
    """Write the files of a revision into a folder."""
    command = ["git", "archive", "--format=tar", revision]
    packed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def build(tree: Path, site: Path, versions: list[str]) -> None:
    """The site of one tree; its pages link to all versions."""
    surroundings = {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
        "SITE_VERSIONS": " ".join(versions),
    }
    sphinx = ["-m", "sphinx", "-q", "-b", "html", "-c", "docs", ".", str(site)]
    scripts = [[str(path)] for path in sorted((tree / "docs").glob("generate_*.py"))]
    for arguments in [*scripts, sphinx]:
        subprocess.run([sys.executable, *arguments], cwd=tree, env=surroundings, check=True)


def build_versions(folder: Path, revisions: list[str]) -> None:
    """All sites, and the page that leads to the first."""
    versions = [version_name(revision) for revision in revisions]
    for revision, version in zip(revisions, versions, strict=True):
        with tempfile.TemporaryDirectory() as place:
            extract(revision, Path(place))
            build(Path(place), (folder / version).resolve(), versions)
    opening = (ROOT / "docs" / "templates" / "to_docs.html").read_text(encoding="utf-8")
    page = opening.replace("docs/index.html", f"{versions[0]}/docs/index.html")
    (folder / "index.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    build_versions(Path(sys.argv[1]), sys.argv[2:] or ["HEAD"])
    print(f"{sys.argv[1]}: {', '.join(map(version_name, sys.argv[2:] or ['HEAD']))}")
