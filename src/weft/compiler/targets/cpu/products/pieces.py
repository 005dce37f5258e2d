"""Pieces: the native calls that a node becomes, before a section makes them its own.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.products.forms import product_of
>>> kinds = wf.spec("float32", (4, "n")), wf.spec("float32", ("n", 5))
>>> numbers(product_of(wf.ir.trace(lambda a, b: a @ b, *kinds).nodes[0]), {"n": 3})
[1, 4, 5, 3]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weft.compiler.targets.cpu.products.forms import Product
from weft.core.shapes import Dimension, substitute
from weft.ir.graph import Literal, Variable

Sizes = Mapping[str, int]
Value = Variable | Literal


@dataclass(frozen=True, slots=True)
class Piece:
    """One call: a native function, its buffers, and what depends on the sizes.

    by_rows: for a call whose iterations are rows, the values of which an iteration touches nothing
    but its own part, with the elements of that part.
    """

    name: str
    function: int
    values: tuple[Value, ...]
    writes: tuple[Variable, ...]
    sizes: Callable[[Sizes], list[int]]
    extent: Callable[[Sizes], int]
    grain: Callable[[Sizes], int]
    by_rows: Mapping[Variable, Dimension] = field(default_factory=dict)


def numbers(product: Product, sizes: Sizes) -> list[int]:
    """How many products, rows, columns and terms there are."""
    return [int(substitute(dim, dict(sizes))) for dim in product.shape]
