"""Run the notebooks of build/notebooks in fresh kernels; a failing cell is an error.

`make nightly` runs it. The notebooks are left as they are.
"""

from __future__ import annotations

import tempfile
import time

import nbformat
from generate_notebooks import FOLDER, main
from nbclient import NotebookClient


def run_all() -> None:
    """Run each notebook in an empty folder, and say how long it took."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        content = nbformat.read(path, as_version=4)
        nbformat.validate(content)
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(content, timeout=600, resources={"metadata": {"path": folder}})
            client.execute()
        print(f"{path.name}: {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
    run_all()
