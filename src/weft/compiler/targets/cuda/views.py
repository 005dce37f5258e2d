"""Views: what a kernel reads or writes inside of another value, by strides and an offset.

Kernels that copy by tensor maps take any strides, so a head need not be moved to the front before
attention reads it. Plans know whole values; a view stands for a part of one while a launch is
bound.

>>> import weft as wf
>>> from weft.core.types import spec
>>> whole = Variable(spec("bfloat16", (2, 8, 6, 64)))
>>> part = view_of(whole, (2, 8, 3, 64), axis=2, start=3).with_axes((0, 2, 1, 3))
>>> part.type.shape, part.strides, part.offset
((2, 3, 8, 64), (3072, 64, 384, 1), 192)
"""

from __future__ import annotations

from math import prod

from weft.core.records import frozen
from weft.core.shapes import Shape
from weft.ir.graph import Literal, Variable

__all__ = ["View", "view_of"]


@frozen(eq=False, slots=False)
class View(Variable):
    """A value that lies inside of another: elements from one index to the next, and where it is."""

    base: Variable | Literal | None = None
    strides: tuple[int, ...] = ()
    offset: int = 0

    def with_axes(self, order: tuple[int, ...]) -> View:
        """The same elements with axes in another order."""
        kind = self.type.with_shape(tuple(self.type.shape[axis] for axis in order))
        strides = tuple(self.strides[axis] for axis in order)
        return View(kind, self.name, self.base, strides, self.offset)


def view_of(base: Variable | Literal, shape: Shape, axis: int = 0, start: int = 0) -> View:
    """A part of a value of known sizes, which begins somewhere along one axis."""
    sizes = [int(dim) for dim in base.type.shape]
    strides = tuple(prod(sizes[number + 1 :]) for number in range(len(sizes)))
    return View(base.type.with_shape(shape), "", base, strides, start * strides[axis])
