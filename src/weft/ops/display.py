"""How tensors look: text for terminals, HTML for notebooks.

>>> import weft as wf
>>> wf.tensor([[1.0, 2.5], [3.0, 4.0]])
tensor([[1. , 2.5],
        [3. , 4. ]], dtype=float32, device=cpu)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.arrays import to_host
from weft.core.settings import settings
from weft.ir.tensor import Tensor, Traced

_CELLS = 12
"""How many rows and columns the HTML view shows at most."""


def text(tensor: Tensor) -> str:
    """Values, dtype and device; a traced tensor shows its type and its trace."""
    value = tensor._value
    if isinstance(value, Traced):
        return f"tensor(<{value.type}>, traced by {value.trace.name})"
    details = f"dtype={tensor.dtype.name}, device={tensor.device}"
    if tensor._node is not None:
        details += ", requires_grad=True"
    if 0 in value.shape:
        details = f"shape={value.shape}, {details}"
    return f"tensor({_values(to_host(value), 'tensor(')}, {details})"


def _values(array: np.ndarray[Any, Any], prefix: str = "") -> str:
    printable = array if array.dtype.kind != "V" else array.astype(np.float32)
    return np.array2string(
        printable,
        separator=", ",
        prefix=prefix,
        threshold=settings.print_elements,
        precision=settings.print_precision,
    )


def _escape_html(text: str) -> str:
    """Text as HTML; the standard library's own escape brings tables that take 2 ms to import."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def page(tensor: Tensor) -> str:
    """A small table of the values, with the type above it."""
    value = tensor._value
    title = f"<b>{_escape_html(str(tensor.type))}</b> on {tensor.device}"
    if isinstance(value, Traced):
        return f"<div>{title}, traced by {_escape_html(value.trace.name)}</div>"
    value = to_host(value)
    if value.ndim == 0 or value.ndim > 2 or value.size == 0:
        return f"<div>{title}<pre>{_values(value)}</pre></div>"
    rows = value.reshape(1, -1) if value.ndim == 1 else value
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows[:_CELLS])
    more = "<tr><td>⋮</td></tr>" if rows.shape[0] > _CELLS else ""
    return f"<div>{title}<table>{body}{more}</table></div>"


def _row(row: np.ndarray[Any, Any]) -> str:
    cells = "".join(f"<td>{_values(np.asarray(x))}</td>" for x in row[:_CELLS])
    return cells + ("<td>…</td>" if row.shape[0] > _CELLS else "")


def format_tensor(tensor: Tensor, specification: str) -> str:
    """`format(x, ".3f")` of a tensor with one element; without a specification its text."""
    value = tensor._value
    if specification and not isinstance(value, Traced) and tensor.size == 1:
        return format(to_host(value).item(), specification)
    return format(text(tensor), specification)
