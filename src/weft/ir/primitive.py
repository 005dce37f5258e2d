"""Primitives: the closed vocabulary that graphs are made of, each defined whole in one place.

A primitive is a value with all the framework knows about one operation. Constructing it registers
it; a slot is filled, or holds `Unsupported("reason")`.

>>> from weft.ir.primitive import PRIMITIVES
>>> isinstance(PRIMITIVES, dict)
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from weft.core.errors import ArgumentError, NameUnknownError, Unsupported, WeftError
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.derivatives import Derivatives, Every, Joint, OperandDerivative, Tangent
from weft.ir.kinds import DEAR, Collective, Contraction, Control, Elementwise, Kind, Opaque, Sort
from weft.ir.scalars import Scalar
from weft.ir.sharding import Rule

Types = TensorType | tuple[TensorType, ...]
Lower = Callable[..., Scalar]
LOCAL = "#local "


@frozen
class Sample:
    """One correct call: operands as NumPy arrays, and parameters.

    `derivative` is false where finite differences do not apply (a kink, a discrete result).
    """

    operands: tuple[Any, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    derivative: bool = True


@frozen
class Mistake:
    """One wrong call and the error it must give."""

    operands: tuple[Any, ...]
    params: Mapping[str, Any]
    error: type[WeftError]
    problem: str


@frozen(eq=False)
class Primitive:
    """One operation.

    type_rule(*types, **params): the result's type or types, or an error for wrong operands.
    reference(*arrays, **params): the result by NumPy; results have exactly the ruled types.
    derivatives: one per operand (see derivatives.py), or why there is none.
    batch(size, operands, axes, **params): operands with a batch axis (or None) to (result, axis).
    samples(): correct calls, from which the tests are derived.
    kind: what sort of operation it is, and what follows from that; see kinds.py.
    lower(scalars, *operands, **params): one element of an element-wise primitive's result, or what
    a reduction combines of an element, given the module `weft.ir.scalars` and one element of each
    operand, never a 16-bit float or complex; raises `Unsupported` for dtypes without an expression.
    Call it by `scalar_functions.lower_element`. None where the kind says it all, or where the
    compiler has a kernel of the primitive (`weft.compiler.lowering.nodes`), which it checks when it
    is imported; `Unsupported("why")` where the primitive is called by reference.
    loops(builder): the kernel of a primitive that is not element-wise, as those in lowering/nodes.
    native: the functions of a shared library that compute it; the target calls them.
    """

    name: str
    doc: str
    type_rule: Callable[..., Types]
    reference: Callable[..., Any]
    derivatives: Derivatives | Unsupported
    batch: Callable[..., Any] | Unsupported
    samples: Callable[[], Sequence[Sample]]
    kind: Kind = field(kw_only=True)
    mistakes: Callable[[], Sequence[Mistake]] = tuple
    multiple: bool = False
    """Whether the result is a tuple."""
    broadcasts: bool = False
    """Whether operands broadcast against each other, element by element."""
    impure: bool = False
    """Whether equal calls may not be merged."""
    part: Callable[..., Any] | None = None
    """How the result is a part of its operand, given the parameters; see parts.py."""
    commutative: bool = False
    """Whether two operands give the same in both orders."""
    lower: Lower | Unsupported | None = None
    cost: int | None = None
    """How many plain operations an element is, where kind and scalar expression do not say it."""
    loops: Callable[..., Any] | None = None
    native: Any = None
    sharding: Rule | None = None
    """How it is divided among devices, where the kind does not say it; see sharding.py."""
    fingerprint: str = ""
    """What tells a user's primitive from others of its name; `LOCAL` stands first where only
    this process knows how it is computed, so that programs with it are not stored."""
    is_multilinear: bool = field(init=False, default=False)
    """Whether no derivative reads the result."""
    sees_to_warnings: bool = field(init=False, default=False)
    """Whether its reference turns NumPy's warnings off itself, as one that holds graphs does."""

    def __post_init__(self) -> None:
        if self.name in PRIMITIVES:
            raise ArgumentError(
                "primitive",
                f"a primitive called {self.name!r} exists",
                expected="a new name",
                got={"name": self.name},
                fix=f'choose another name, for example "{self.name}_of_mine"',
            )
        if isinstance(self.derivatives, list):
            object.__setattr__(self, "derivatives", tuple(self.derivatives))
        if self.broadcasts and not isinstance(self.kind, Elementwise):
            raise TypeError(f"{self.name} broadcasts, so that its kind is Elementwise")
        rules = self.derivatives if isinstance(self.derivatives, tuple) else ()
        plain = bool(rules) and not any(isinstance(rule, Tangent) for rule in rules)
        object.__setattr__(self, "is_multilinear", plain)
        holds_graphs = isinstance(self.derivatives, Joint)
        is_collective = isinstance(self.kind, Collective)
        object.__setattr__(self, "sees_to_warnings", holds_graphs or is_collective)
        PRIMITIVES[self.name] = self

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    @property
    def is_dear(self) -> bool:
        """Whether it takes many operations for each byte, so that its results are kept."""
        if self.cost is not None:
            return self.cost >= DEAR
        return isinstance(self.kind, Contraction | Control | Sort | Collective | Opaque)

    def __reduce__(self) -> tuple[object, ...]:
        return find, (self.name,)

    def derivative(self, index: int) -> OperandDerivative:
        """The derivative of operand `index`; raises its reason where there is none."""
        derivatives = self.derivatives
        if isinstance(derivatives, Every):
            return derivatives.at(index)
        if isinstance(derivatives, Unsupported):
            raise derivatives.error(self.name, "a derivative", {"operation": self.name})
        if isinstance(derivatives, Joint):
            raise TypeError(f"{self.name} has one derivative for all operands")
        return derivatives[index]


PRIMITIVES: dict[str, Primitive] = {}


def find(name: str) -> Primitive:
    """The primitive of that name."""
    primitive = PRIMITIVES.get(name)
    if primitive is None:
        raise NameUnknownError(
            "primitive",
            f"no primitive is called {name!r}",
            expected="a name in weft.ir.PRIMITIVES",
            got={"name": name},
            fix="check the spelling, or import the module that defines it",
        )
    return primitive
