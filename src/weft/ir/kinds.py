"""Kinds: what sort of operation a primitive is, said once, in its definition.

Passes, grouping, layouts, costs and tools ask for a primitive's kind and what it says; none of them
keeps a list of names. `docs/design/primitives.md` shows how a primitive of each kind is added.

>>> import weft as wf
>>> wf.ir.PRIMITIVES["reduce_max"].kind
Reduction(combine='maximum')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from weft.core.records import frozen
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.affine_index import Affine
from weft.ir.ranges import Bounds, Order
from weft.ir.scalars import Combine

if TYPE_CHECKING:
    from weft.ir.graph import Atom, GraphNode

__all__ = [
    "Collective",
    "Contraction",
    "Control",
    "Cumulative",
    "Effect",
    "ElementReader",
    "Elementwise",
    "Gather",
    "Kind",
    "MatrixFunction",
    "Movement",
    "Opaque",
    "Random",
    "Reduction",
    "Scatter",
    "Search",
    "Sort",
    "Transform",
    "Window",
]  # fmt: skip

DEAR = 1024
"""The cost of what takes many operations for each byte: it is computed again as a last resort."""

T = TypeVar("T")
Index = tuple[Affine, ...]
Condition = tuple[Affine, Dimension]
"""An index and a bound: the condition that the index is not below 0 and below the bound."""


class ElementReader(Protocol[T]):
    """How a movement describes one element of its result: by elements of its operands.

    The compiler has two readers: one collects which stored elements are read, the other writes the
    element as a scalar expression.
    """

    def element_at(self, atom: Atom, index: Index) -> T:
        """The element of an operand at an index."""

    def number(self, value: Any, node: GraphNode) -> T:
        """A number of the node's dtype."""

    def position(self, index: Affine, node: GraphNode) -> T:
        """An index as a number of the node's dtype."""

    def choice(self, conditions: Sequence[Condition], inside: T, outside: T) -> T:
        """The first element where all conditions hold, the second elsewhere."""

    def only_where(self, conditions: Sequence[Condition], element: T) -> T:
        """An element that nobody uses, and that is not read, where a condition does not hold."""


Read = Callable[[ElementReader[Any], "GraphNode", Index], Any]
Operations = Callable[[Sequence[TensorType], Sequence[TensorType], Mapping[str, Any]], Dimension]


@frozen
class Elementwise:
    """Each element of the result is computed of the operands' elements at its place.

    rounds: gives whole numbers, and leaves whole numbers as they are. needs_positive: where an
    operand is not positive, the result or its derivative is not finite. compares: whether x1 < x2,
    or which other order of the two is asked for. bounds: between which numbers results lie; by
    default, any. `Primitive.lower` writes one element.
    """

    rounds: bool = False
    needs_positive: bool = False
    compares: Order | None = None
    bounds: Bounds | None = None


@frozen
class Reduction:
    """All elements along the parameter `axes` of one operand, combined; the axes are dropped.

    `Primitive.lower`, where it is given, writes what is combined of an element.
    """

    combine: Combine

    @property
    def is_idempotent(self) -> bool:
        """Whether an element combined with itself is itself, so that no order rounds otherwise."""
        return self.combine not in ("add", "multiply")


@frozen
class Movement:
    """Each element of the result is one of the operands', or a number; nothing is computed.

    read: says which; None where a kernel of the compiler moves the elements. reads_if(params):
    whether it can say so with these parameters; by default it always can. fill(params): the number
    that stands where no operand's element does. by_place: which operand's element it is, or
    what number, depends on the place, so that neighbouring loops are not one. is_alias: the result
    lies where the operand does. view: of an array without gaps a view, by a way of NumPy's that
    reads no element, and gives an array without axes too.
    """

    read: Read | None = None
    reads_if: Callable[[Mapping[str, Any]], bool] | None = None
    fill: Callable[[Mapping[str, Any]], Any] | None = None
    by_place: bool = False
    is_alias: bool = False
    view: Callable[..., Any] | None = None


@frozen
class Contraction:
    """Products that are summed: many operations for each byte that is read or written.

    operations(operands, results, params): how many, of types.
    """

    operations: Operations
    form: Literal["product", "convolution", "attention"]


@frozen
class Window:
    """Elements of each window along the last axes, combined; None where there is more to it."""

    combine: Combine | None


class _Plain:
    """A kind that says nothing more. No data class: each takes a millisecond to make."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class Cumulative(_Plain):
    """Each element is computed of its own and all before it along an axis."""

    __slots__ = ()


@frozen
class Gather:
    """Elements at places that are data. checked: a place out of range is an error."""

    checked: bool


@frozen
class Scatter:
    """Elements written to places that are data.

    combine: how an update meets the element at its place; None where it replaces it. checked: a
    place out of range is an error.
    """

    combine: Combine | None
    checked: bool


class Search(_Plain):
    """The place of an element: of an extreme, or of a value searched for."""

    __slots__ = ()


@frozen
class Sort:
    """Elements in order. values: the first result is made of the operand's own elements."""

    values: bool


class Random(_Plain):
    """Bits that depend on keys and places alone."""

    __slots__ = ()


class Control(_Plain):
    """What runs graphs, which are among its parameters: loops, choices and calls."""

    __slots__ = ()


class Effect(_Plain):
    """An operation with an effect beside its result: a print, a check, a breakpoint."""

    __slots__ = ()


class Collective(_Plain):
    """What processes of a mesh compute together, each from its shard.

    Parameters: `mesh_axis`, the name of the axis; `size`, the number of its shards; `stacked`,
    whether the operand holds all shards along its first axis, or the shard of this process alone.
    """

    __slots__ = ()


class Opaque(_Plain):
    """What nothing else is known of: it may fail, and is dear to compute again."""

    __slots__ = ()


@frozen
class MatrixFunction(Opaque):
    """A function of each matrix of a stack, by a loop of `numpy.linalg`.

    loop(params): the name of the loop, a ufunc that takes and gives what the primitive does.
    may_fail: whether it says that it has failed. needs_finite: whether others are refused before.
    """

    loop: Callable[[Mapping[str, Any]], str]
    may_fail: bool = True
    needs_finite: bool = False


@frozen
class Transform(Opaque):
    """A Fourier transform along the parameter `axis`, or `axes`, by a loop of `numpy.fft`.

    loop(params, n): the name of the loop for rows of n numbers. is_inverse(params): the direction.
    """

    loop: Callable[[Mapping[str, Any], int], str]
    is_inverse: Callable[[Mapping[str, Any]], bool]


Kind: TypeAlias = (
    Elementwise | Reduction | Movement | Contraction | Window | Cumulative | Gather | Scatter
    | Search | Sort | Random | Control | Effect | Collective | Opaque
)  # fmt: skip
