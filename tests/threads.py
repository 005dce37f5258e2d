"""The number of threads, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import weft as wf


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many threads inside a `with` block."""
    before = wf.get_num_threads()
    wf.set_num_threads(count)
    try:
        yield
    finally:
        wf.set_num_threads(before)
