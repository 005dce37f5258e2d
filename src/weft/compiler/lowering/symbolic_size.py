"""Sizes as expressions of the loop language: a kernel is given the symbols that they are made of.

>>> from weft.core.dimensions import symbol
>>> extents = Extents()
>>> print(extents.extent_of(symbol("batch") * 4 + 1), tuple(extents.symbols))
batch * 4 + 1 ('batch',)
"""

from __future__ import annotations

from dataclasses import replace

from weft.core.dimensions import Dim, Floor
from weft.core.dtypes import INDEX
from weft.core.shapes import Dimension
from weft.ir import scalars
from weft.ir.loops import For, Statement, has_loops
from weft.ir.scalars import Scalar


class Extents:
    """Writes sizes, and remembers the symbols that were met."""

    def __init__(self) -> None:
        self.symbols: dict[str, None] = {}

    def extent_of(self, dim: Dimension) -> Scalar:
        """A size as an int64 expression."""
        if not isinstance(dim, Dim):
            return scalars.const(int(dim), INDEX)
        total = scalars.const(0, INDEX)
        for monomial, factor in dim.terms:
            product = scalars.const(1, INDEX)
            for atom in monomial:
                product = product * self._atom(atom)
            total = total + product * factor
        return total

    def _atom(self, atom: str | Floor) -> Scalar:
        if isinstance(atom, Floor):
            return self.extent_of(atom.numerator) // self.extent_of(atom.denominator)
        self.symbols[atom] = None
        return scalars.size(atom)


def count_at_run_time(
    body: tuple[Statement, ...],
) -> tuple[tuple[Statement, ...], dict[str, int]]:
    """A body that is one loop over elements, with its extent given at run time.

    Kernels that differ in their sizes only, such as the updates of an optimiser, are then one.
    """
    loop = body[0] if len(body) == 1 else None
    if not isinstance(loop, For) or loop.kind != "parallel vector" or has_loops(loop.body):
        return body, {}
    if loop.extent.op != "const":
        return body, {}
    return (replace(loop, extent=scalars.size("count")),), {"count": int(loop.extent.detail)}
