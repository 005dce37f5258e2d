"""Forward mode: carrying a tangent beside every value.

>>> import weft as wf
>>> y, t = wf.jvp(lambda x: x * x, (wf.tensor(3.0),), (wf.tensor(1.0),))
>>> float(t)
6.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.devices import Device
from weft.core.errors import GradientError, Unsupported
from weft.ir.derivatives import Additive, Constant, Joint, Linear
from weft.ir.dispatch import active_trace, bind
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.reverse import zeros
from weft.ir.tape_order import next_node_number, off_finished_tapes
from weft.ir.tensor import Tensor, Trace, Traced, grad_mode, host_array, wrap

Tangents = Sequence[Tensor | None]


class Dual(Traced):
    """A value with its tangent; the tangent is None where it is zero."""

    __slots__ = ("primal", "tangent")
    primal: Tensor
    tangent: Tensor | None

    @property
    def device(self) -> Device:
        """Where the value is."""
        return self.primal.device

    def host_array(self, purpose: str) -> np.ndarray[Any, Any]:
        """The value's array: Python control flow on values works under jvp."""
        return host_array(self.primal, purpose)


def has_derivative(x: Tensor) -> bool:
    """Whether a derivative is being taken of a tensor, in either mode, at any level."""
    while True:
        if x._node is not None and grad_mode.enabled:
            return True
        value = x._value
        if not isinstance(value, Dual):
            return False
        if value.tangent is not None:
            return True
        x = value.primal


def without_zero_tangents(value: Any) -> Any:
    """A tensor's value, taken out of all duals in which nothing moves.

    So state that has no derivative (a count, a statistic) is left as plain values by a jvp.
    """
    while isinstance(value, Dual) and value.tangent is None:
        value = value.primal._value
    return value


def refuse_derivative(op: str, name: str, value: object) -> None:
    """Refuse a tensor of which a derivative is taken, where it would be lost."""
    if isinstance(value, Tensor) and has_derivative(value):
        raise GradientError(
            op,
            f"{name} is read as a number, and its derivative would be lost",
            expected=f"a constant for {name}",
            got={name: value},
            fix="give the derivative up on purpose: x.detach() in place of x",
        )


class ForwardTrace(Trace):
    """Applies each primitive to values and tangents."""

    name = "jvp"

    def tensor(self, primal: Tensor, tangent: Tensor | None) -> Tensor:
        """A tensor that carries a tangent in this trace."""
        value = Dual()
        value.trace = self
        value.type = primal.type
        value.primal = primal
        value.tangent = tangent
        return wrap(value)

    def primal_and_tangent(self, tensor: Tensor) -> tuple[Tensor, Tensor | None]:
        """A tensor's value and tangent in this trace."""
        value = tensor._value
        if isinstance(value, Dual) and value.trace is self:
            return value.primal, value.tangent
        return tensor, None

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        pairs = [self.primal_and_tangent(operand) for operand in operands]
        primals = [primal for primal, _ in pairs]
        moving = [None if self.is_stopping() else tangent for _, tangent in pairs]
        out, tangents = push(primitive, primals, moving, params)
        if primitive.multiple:
            return tuple(self.tensor(o, t) for o, t in zip(out, tangents, strict=True))
        return self.tensor(out, tangents)


def push(
    primitive: Primitive, primals: Sequence[Tensor], tangents: Tangents, params: dict[str, Any]
) -> tuple[Any, Any]:
    """A primitive's result and its tangent; a tangent of None is zero."""
    out = bind(primitive, *primals, **params)
    derivatives = primitive.derivatives
    nothing = tuple(None for _ in out) if primitive.multiple else None
    if all(tangent is None for tangent in tangents) or not _has_derivatives(out):
        return out, nothing
    if isinstance(derivatives, Unsupported):
        got = {f"x{i + 1}": primal for i, primal in enumerate(primals)}
        raise derivatives.error(primitive.name, "a derivative", got)
    if isinstance(derivatives, Joint):
        return out, derivatives.jvp(primals, tangents, out, **params)
    total: Any = None
    for term in _terms(primitive, primals, tangents, out, params):
        total = term if total is None else _plus(total, term)
    if total is None:
        return out, nothing
    if primitive.broadcasts and total.shape != out.shape:
        total = bind(PRIMITIVES["broadcast_to"], total, shape=out.shape)
    return out, total


def _has_derivatives(out: Any) -> bool:
    results = out if isinstance(out, tuple) else (out,)
    return any(result.dtype.is_inexact for result in results)


def _terms(
    primitive: Primitive,
    primals: Sequence[Tensor],
    tangents: Tangents,
    out: Any,
    params: dict[str, Any],
) -> list[Any]:
    """What each operand's tangent contributes to the result's."""
    terms = []
    kinds = [primitive.derivative(index) for index in range(len(primals))]
    additive = [isinstance(kind, Additive) for kind in kinds]
    moving = [t is not None and a for t, a in zip(tangents, additive, strict=True)]
    if any(moving):
        operands = [
            primal if not a else zeros(primal.type) if t is None else t
            for primal, t, a in zip(primals, tangents, additive, strict=True)
        ]
        terms.append(bind(primitive, *operands, **params))
    for index, (kind, tangent) in enumerate(zip(kinds, tangents, strict=True)):
        if tangent is None or isinstance(kind, (Additive, Constant)):
            continue
        if isinstance(kind, Linear):
            operands = [*primals[:index], tangent, *primals[index + 1 :]]
            terms.append(bind(primitive, *operands, **params))
        else:
            terms.append(kind.rule(tangent, out, *primals, **params))
    return terms


def _plus(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(_plus(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a if b is None else b
    return a + b


def jvp(
    f: Callable[..., Sequence[Tensor]], primals: Sequence[Tensor], tangents: Tangents
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The results of f and their tangents; None stands for a zero tangent."""
    trace, since = ForwardTrace(), next_node_number()
    with active_trace(trace):
        arguments = [trace.tensor(p, t) for p, t in zip(primals, tangents, strict=True)]
        pairs = [trace.primal_and_tangent(result) for result in f(*arguments)]
    results = off_finished_tapes([primal for primal, _ in pairs], since)
    return results, off_finished_tapes([tangent for _, tangent in pairs], since)
