"""Packages that are needed for some sources only, and are imported when such a source is used.

>>> from weft.data.optional import require
>>> require("json", "json", "the example").dumps([1])
'[1]'
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import weft as wf


def require(module: str, package: str, purpose: str, extra: str = "") -> Any:
    """The module; where it is not installed, an error that says how to install its package.

    `extra` is the extra of Weft that brings the package along.
    """
    try:
        return import_module(module)
    except ImportError as error:
        reason = wf.UnsupportedError(
            purpose,
            f"the package {package} is not installed",
            expected=f"{package}, which Weft uses here but does not require",
            got={"import": f"{type(error).__name__}: {error}"},
            fix=f'pip install "weft[{extra}]"' if extra else f"pip install {package}",
        )
        reason.reason = reason.problem
        raise reason from error
