"""Complex numbers as pairs of real ones: what stands for each primitive of complex operands.

A rule writes a primitive in terms of the parts of its operands. The laws re(x + iy) = x and
im(x + iy) = y then join neighbours, so that complex numbers are left only where a program reads,
writes or hands them on as a whole. Primitives without a rule (factorisations, transforms, a few
functions) take and give whole numbers.

>>> import weft as wf
>>> from weft.compiler.graph_passes.complex_numbers.split import split_complex
>>> graph = wf.ir.trace(lambda z: wf.real(wf.conj(z)), wf.spec("complex64", (3,)))
>>> [node.primitive.name for node in split_complex(graph).nodes]
['real']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from weft.core.dtypes import DType, bool_, real_of
from weft.ir.dispatch import apply
from weft.ir.kinds import Contraction, Gather, Movement, Reduction, Scatter, Window
from weft.ir.primitive import Primitive
from weft.ir.reverse import filled_like
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import negative
from weft.ops.comparison import equal, isfinite, isinf, isnan, not_equal
from weft.ops.conversion import as_parts, convert, of_parts
from weft.ops.logic import logical_and, logical_not, logical_or, logical_xor

__all__ = ["Part", "Parts", "Rule", "rule_of", "stands_for", "times"]


class Parts(NamedTuple):
    """The real and the imaginary part of complex numbers."""

    real: Tensor
    imag: Tensor


Part: TypeAlias = "Tensor | Parts"
"""An operand or a result: of a complex dtype its parts, else as it is."""
Rule: TypeAlias = Callable[..., Any]
"""What a primitive is of the parts of its operands, given its parameters by name."""

_ALIKE = ("add", None)
"""Where both parts are combined alike: in sums, and where an update replaces an element."""
_RULES: dict[str, Rule] = {}


R = TypeVar("R", bound=Callable[..., Any])


def stands_for(name: str) -> Callable[[R], R]:
    """Say of which primitive a rule is."""

    def register(rule: R) -> R:
        _RULES[name] = rule
        return rule

    return register


def rule_of(primitive: Primitive) -> Rule | None:
    """The rule of a primitive; None where it takes complex numbers as a whole."""
    kind = primitive.kind
    if primitive in (as_parts, of_parts):
        return None
    if isinstance(kind, Reduction | Scatter | Window):
        is_alike = kind.combine in _ALIKE
    else:
        is_alike = isinstance(kind, Movement | Gather)
    if is_alike:
        return lambda *operands, **params: part_by_part(primitive, operands, params)
    if isinstance(kind, Contraction) and kind.form != "attention":
        return lambda *operands, **params: product_of_parts(primitive, operands, params)
    rule = _RULES.get(primitive.name)
    if rule is not part_by_part:
        return rule
    return lambda *operands, **params: part_by_part(primitive, operands, params)


# --- by kind -------------------------------------------------------------------------------------


def part_by_part(
    primitive: Primitive, operands: Sequence[Part], params: Mapping[str, Any]
) -> Parts:
    """What treats both parts alike: movement, sums, choices."""

    def of_part(number: int) -> Tensor:
        tensors = [each[number] if isinstance(each, Parts) else each for each in operands]
        return apply(primitive, *tensors, **_params_of_part(params, number))

    return Parts(of_part(0), of_part(1))


def _params_of_part(params: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The parameters for a part: numbers to fill places with, and dtypes, are those of the part."""
    own = dict(params)
    for name, value in params.items():
        if isinstance(value, DType):
            own[name] = real_of(value)
        elif name == "value":
            own[name] = complex(value).real if number == 0 else complex(value).imag
    return own


def product_of_parts(
    primitive: Primitive, operands: Sequence[Part], params: Mapping[str, Any]
) -> Part:
    """(a + ib)(c + id) = (ac - bd) + i(ad + bc), for any product that is linear in both."""
    left, right = operands
    if not isinstance(left, Parts) or not isinstance(right, Parts):
        return part_by_part(primitive, operands, params)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return apply(primitive, a, b, **params)

    return Parts(
        product(left.real, right.real) - product(left.imag, right.imag),
        product(left.real, right.imag) + product(left.imag, right.real),
    )


# --- arithmetic ----------------------------------------------------------------------------------


@stands_for("conj")
def _conj(z: Parts) -> Parts:
    return Parts(z.real, negative(z.imag))


@stands_for("multiply")
def times(z: Parts, w: Parts) -> Parts:
    """The product."""
    return Parts(z.real * w.real - z.imag * w.imag, z.real * w.imag + z.imag * w.real)


@stands_for("square")
def _square(z: Parts) -> Parts:
    return times(z, z)


@stands_for("convert")
def _convert(x: Part, dtype: DType) -> Part:
    """To complex numbers from real ones, between complex ones, to real parts, and to truth."""
    if isinstance(x, Parts) and dtype.is_complex:
        return part_by_part(convert, [x], {"dtype": dtype})
    if isinstance(x, Parts):
        return _is_true(x) if dtype is bool_ else apply(convert, x.real, dtype=dtype)
    real = apply(convert, x, dtype=real_of(dtype))
    return Parts(real, filled_like(real, 0))


# What is linear, and what chooses, is the same for both parts.
stands_for("add")(part_by_part)
stands_for("subtract")(part_by_part)
stands_for("negative")(part_by_part)
stands_for("round")(part_by_part)
stands_for("where")(part_by_part)
stands_for("cumulative_sum")(part_by_part)


# --- questions -----------------------------------------------------------------------------------


def _is_true(x: Part) -> Tensor:
    """Whether numbers are not zero."""
    if isinstance(x, Parts):
        return logical_or(not_equal(x.real, 0.0), not_equal(x.imag, 0.0))
    return x if x.dtype is bool_ else not_equal(x, 0)


@stands_for("equal")
def _equal(z: Parts, w: Parts) -> Tensor:
    return logical_and(equal(z.real, w.real), equal(z.imag, w.imag))


@stands_for("not_equal")
def _not_equal(z: Parts, w: Parts) -> Tensor:
    return logical_or(not_equal(z.real, w.real), not_equal(z.imag, w.imag))


@stands_for("isfinite")
def _isfinite(z: Parts) -> Tensor:
    return logical_and(isfinite(z.real), isfinite(z.imag))


@stands_for("isinf")
def _isinf(z: Parts) -> Tensor:
    return logical_or(isinf(z.real), isinf(z.imag))


@stands_for("isnan")
def _isnan(z: Parts) -> Tensor:
    return logical_or(isnan(z.real), isnan(z.imag))


@stands_for("logical_not")
def _logical_not(z: Parts) -> Tensor:
    return logical_not(_is_true(z))


@stands_for("logical_and")
def _logical_and(z: Part, w: Part) -> Tensor:
    return logical_and(_is_true(z), _is_true(w))


@stands_for("logical_or")
def _logical_or(z: Part, w: Part) -> Tensor:
    return logical_or(_is_true(z), _is_true(w))


@stands_for("logical_xor")
def _logical_xor(z: Part, w: Part) -> Tensor:
    return logical_xor(_is_true(z), _is_true(w))
