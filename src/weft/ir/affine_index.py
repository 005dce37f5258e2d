"""Affine indices: where an access of a tensor lands, as a linear function of loop variables.

>>> from weft.ir.affine_index import Affine
>>> i, j = Affine.variable(0), Affine.variable(1)
>>> i * 4 + j + 1
4*i0 + i1 + 1
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape


@frozen
class Affine:
    """A sum of loop variables times sizes, and a constant."""

    terms: tuple[tuple[int, Dimension], ...] = ()
    constant: Dimension = 0

    @staticmethod
    def variable(loop: int) -> Affine:
        """The variable of one loop."""
        return Affine(((loop, 1),))

    def __add__(self, other: Affine | Dimension) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.terms, self.constant + other)
        factors = dict(self.terms)
        for loop, factor in other.terms:
            factors[loop] = factors.get(loop, 0) + factor
        return Affine(_nonzero_factors(factors), self.constant + other.constant)

    def __mul__(self, factor: Dimension) -> Affine:
        scaled = {loop: each * factor for loop, each in self.terms}
        return Affine(_nonzero_factors(scaled), self.constant * factor)

    def factor(self, loop: int) -> Dimension:
        """By how much the index moves when a loop moves by one."""
        return dict(self.terms).get(loop, 0)

    def range(self, extents: Shape) -> tuple[Dimension, Dimension]:
        """The least and the largest value in loops that run so often.

        >>> (Affine.variable(0) * -2 + 7).range((3, 5))
        (3, 7)
        """
        least = most = self.constant
        for loop, factor in self.terms:
            last = factor * (extents[loop] - 1)
            least, most = (least, most + last) if factor > 0 else (least + last, most)
        return least, most

    def __repr__(self) -> str:
        parts = [f"i{loop}" if f == 1 else f"{f}*i{loop}" for loop, f in self.terms]
        if self.constant != 0 or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


def _nonzero_factors(factors: dict[int, Dimension]) -> tuple[tuple[int, Dimension], ...]:
    return tuple((loop, factor) for loop, factor in sorted(factors.items()) if factor != 0)


def strides(shape: Shape) -> tuple[Dimension, ...]:
    """How far apart neighbours along each axis are, in a contiguous tensor.

    >>> strides((2, 3, 4))
    (12, 4, 1)
    """
    reversed_steps: list[Dimension] = []
    step: Dimension = 1
    for dim in reversed(shape):
        reversed_steps.append(step)
        step = step * dim
    return tuple(reversed(reversed_steps))


def offset(index: Sequence[Affine], shape: Shape) -> Affine:
    """Where an index lands in the memory of a contiguous tensor."""
    factors: dict[int, Dimension] = {}
    constant: Dimension = 0
    step: Dimension = 1
    for position, dim in zip(reversed(index), reversed(shape), strict=True):
        if dim != 1:
            for loop, factor in position.terms:
                factors[loop] = factors.get(loop, 0) + factor * step
            constant = constant + position.constant * step
        step = step * dim
    return Affine(_nonzero_factors(factors), constant)
