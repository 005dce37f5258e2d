"""Placements and strategies: how an operation is divided among the devices along one mesh axis.

Along one axis of a mesh a value is replicated, split along one of its own axes, or partial: each
device holds a term, and the value is the terms combined. A strategy says which placements of the
operands give which placements of the results, if every device applies the operation to its part.

A rule is `rule(operands, results, params, count)`: the strategies beside the one in which all is
replicated, given whole types and the number of devices. A rule may list strategies whose sizes do
not divide, or whose parts do not fit the type rule: `strategies_of` leaves those out.

>>> from weft.ir.sharding import Split, split_axes
>>> split_axes((0, None), (0,)).operands
(Split(axis=0), replicated)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.scalars import Combine

if TYPE_CHECKING:
    from weft.ir.primitive import Primitive
    from weft.ir.tensor import Tensor


@frozen(repr=False)
class Replicated:
    """Every device holds the whole value."""

    def __repr__(self) -> str:
        return "replicated"

    def __eq__(self, other: object) -> bool:
        return type(other) is Replicated

    def __hash__(self) -> int:
        return -7


@frozen
class Split:
    """Each device holds an equal, contiguous part along one axis of the value, in order."""

    axis: int

    # a search asks for these a million times
    def __eq__(self, other: object) -> bool:
        return type(other) is Split and other.axis == self.axis

    def __hash__(self) -> int:
        return self.axis


@frozen
class Partial:
    """Each device holds a term of the value's shape; all terms combined are the value."""

    combine: Combine = "add"


Placement: TypeAlias = Replicated | Split | Partial
REPLICATED = Replicated()
SUM = Partial("add")
Types = Sequence[TensorType]


@frozen
class Part:
    """Which device of how many a program runs on, along one mesh axis, and the operation there.

    index(): the device's number along the axis, as an int64 tensor without axes.
    """

    primitive: Primitive
    count: int
    index: Callable[[], Tensor]


Compute: TypeAlias = "Callable[..., Any]"
"""compute(part, *local operands, **params): the local result or results."""


@frozen
class Strategy:
    """Placements of the operands, those of the results, and what each device computes.

    By default a device applies the primitive itself to its parts, with the parameters `params`
    in place of those of the same names. `compute` replaces it by other operations.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    params: Mapping[str, Any] | None = None
    compute: Compute | None = None
    is_divided: bool = True
    """Whether each device does its share of the work alone, and not all of it."""


Rule: TypeAlias = "Callable[[Types, Types, Mapping[str, Any], int], Iterable[Strategy]]"


def split_axes(
    operands: Sequence[int | None],
    results: Sequence[int | None],
    compute: Compute | None = None,
    **params: Any,
) -> Strategy:
    """The strategy that splits these axes of operands and results; None: the value is whole."""
    return Strategy(_placements(operands), _placements(results), params or None, compute)


def split_to_terms(
    operands: Sequence[int | None], combine: Combine = "add", **params: Any
) -> Strategy:
    """The strategy that splits these axes of the operands, and gives one partial result."""
    return Strategy(_placements(operands), (Partial(combine),), params or None)


def _placements(axes: Sequence[int | None]) -> tuple[Placement, ...]:
    return tuple([REPLICATED if axis is None else Split(axis) for axis in axes])


def replace_size(shape: Sequence[Any], axis: int, size: Any) -> tuple[Any, ...]:
    """A shape with another size on one axis.

    >>> replace_size((2, 3), 1, 5)
    (2, 5)
    """
    return (*shape[:axis], size, *shape[axis + 1 :])


def local_type(whole: TensorType, placement: Placement, count: int) -> TensorType | None:
    """The type of one device's part; None where the axis does not divide among the devices.

    >>> import weft as wf
    >>> local_type(wf.spec("float32", (4, 3)), Split(0), 2)
    f32[2, 3]
    """
    if not isinstance(placement, Split):
        return whole
    if placement.axis >= whole.ndim:
        return None
    size = whole.shape[placement.axis]
    if not isinstance(size, int) or size == 0 or size % count:
        return None
    return whole.with_shape(replace_size(whole.shape, placement.axis, size // count))
