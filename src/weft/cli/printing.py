"""What commands write for those who called them."""

from __future__ import annotations

import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
