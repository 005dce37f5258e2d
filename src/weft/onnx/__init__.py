"""ONNX, both ways: `load` reads a model into a module, `export` writes one and compares it.

>>> import weft as wf
>>> "export" in dir(wf.onnx), "load" in dir(wf.onnx)
(True, True)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import weft as wf

__all__ = ["Report", "export", "load"]

_LAZY = {
    "Report": "weft.onnx.exporting.export",
    "export": "weft.onnx.exporting.export",
    "load": "weft.onnx.importing.loading",
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
        fix='wf.onnx.load("model.onnx"), or wf.onnx.export(net, (x,), "net.onnx")',
    )


def __dir__() -> list[str]:
    return __all__
