"""Whether the process's memory is so divided that neighbouring parts may lie far apart.

A GPU's driver maps terabytes of addresses. What is mapped afterwards takes small gaps first, so
that two parts of one object file may be more than 2 GB apart, which is as far as code refers.

>>> isinstance(is_divided(), bool)
True
"""

from __future__ import annotations

_state = {"divided": False}


def is_divided() -> bool:
    """Whether something, such as a GPU's driver, has mapped large parts of the addresses."""
    return _state["divided"]


def mark_divided() -> None:
    """Note that large parts of the addresses are mapped; it holds until the process ends."""
    _state["divided"] = True
