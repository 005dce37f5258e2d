"""ONNX: `export` writes a function or a module as a file that has been run and compared.

>>> import weft as wf
>>> "export" in dir(wf.onnx)
True
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import weft as wf

__all__ = ["Report", "export"]

_LAZY = {
    "Report": "weft.onnx.exporting.export",
    "export": "weft.onnx.exporting.export",
}
"""Public names, and where they are."""


def __getattr__(name: str) -> Any:
    """Load a part on first use."""
    if name in _LAZY:
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value
    if name.startswith("_"):
        raise AttributeError(f"module 'weft.onnx' has no attribute {name!r}")
    raise wf.NameUnknownError(
        "wf.onnx",
        f"there is nothing called {name!r}",
        expected=" or ".join(f"wf.onnx.{each}" for each in __all__),
        got={"name": name},
        fix='wf.onnx.export(net, (x,), "net.onnx")',
    )


def __dir__() -> list[str]:
    return __all__
