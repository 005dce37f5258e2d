"""The compiler: from a graph to one native program. `docs/design/compiler.md` gives the way.

What users may rely on is here, loaded on first use: `rewrite` adds a law, `rewrites` lists them.

>>> import weft as wf
>>> wf.compiler.rewrites()
()
"""

from importlib import import_module as _import_module
from typing import Any as _Any

__all__ = ["Rewrite", "rewrite", "rewrites"]


def __getattr__(name: str) -> _Any:
    """Load what is public on first use."""
    if name in __all__:
        return getattr(_import_module("weft.compiler.graph_passes.user_rules"), name)
    raise AttributeError(f"module 'weft.compiler' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
