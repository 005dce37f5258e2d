"""Modules as HTML, which notebooks show: a tree that opens, with shapes and numbers of parameters.

>>> import weft as wf
>>> "8 parameters" in wf.nn.Linear(3, 2)._repr_html_()
True
"""

from __future__ import annotations

from typing import Any

from weft.notebook import block, opening, table

__all__ = ["module_html"]


def module_html(module: Any, name: str = "", depth: int = 0) -> str:
    """A module, its own parameters and buffers, and the modules inside; the first level is open."""
    count = sum(parameter.size for parameter in module.parameters())
    head = f"{type(module).__name__}({module.extra_repr()})"
    label = f"{name + ': ' if name else ''}{head}   {count:,} parameters"
    own = [(key, value) for key, value in module.named_parameters() if "." not in key]
    rows = [(key, str(value.type), "learned" if value.requires_grad else "fixed")
            for key, value in own]  # fmt: skip
    rows += [(key, str(value.type), "buffer") for key, value in module.named_buffers()
             if "." not in key]  # fmt: skip
    parts = [table(["tensor", "type", ""], rows)] if rows else []
    parts += [module_html(child, key, depth + 1) for key, child in module.named_children()]
    tree = opening(label, "".join(parts), is_open=depth == 0)
    return block(tree) if depth == 0 else tree
