"""Where in a network something happened: the module that is called, and the phase of a step.

Both are remembered with each node that is traced, in its location; nothing of this is done where
nothing is traced.

>>> from weft.core.scopes import scope, scopes
>>> with scope("net/body", phase="backward"):
...     scopes.module, scopes.phase
('net/body', 'backward')
>>> scopes.module, scopes.phase
('', 'forward')
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

FORWARD, BACKWARD = "forward", "backward"
"""The phases of a training step; the third is "update"."""


class Scopes(threading.local):
    """The module path that this thread is in, joined by slashes, and the phase."""

    module: str = ""
    phase: str = FORWARD


scopes = Scopes()


@contextmanager
def scope(module: str | None = None, phase: str | None = None) -> Iterator[None]:
    """Set the module path and phase of nodes traced inside; None keeps the present one."""
    before = scopes.module, scopes.phase
    scopes.module = before[0] if module is None else module
    scopes.phase = before[1] if phase is None else phase
    try:
        yield
    finally:
        scopes.module, scopes.phase = before
