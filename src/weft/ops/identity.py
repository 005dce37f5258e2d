"""Identities: the same value, with a mark on it.

>>> import weft as wf
>>> float(wf.grad(lambda x: x * wf.stop_gradient(x))(wf.tensor(3.0)))
3.0
"""

from __future__ import annotations

from weakref import ref

import numpy as np

from weft.core.arrays import is_concrete
from weft.ir.derivatives import constant, linear
from weft.ir.dispatch import apply
from weft.ir.forward import Dual
from weft.ir.kinds import Movement
from weft.ir.parts import living_origin
from weft.ir.primitive import Primitive, Sample
from weft.ir.tensor import Tensor, wrap
from weft.ops import movement_reads as reads
from weft.ops.operands import as_tensor

__all__ = ["stop_gradient"]


def _samples(derivative: bool) -> list[Sample]:
    return [Sample((np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),), {}, derivative)]


stopped: Primitive = Primitive(
    "stop_gradient",
    "The same value, of which no derivative is taken.",
    kind=Movement(reads.of_identity),
    type_rule=lambda x: x,
    reference=lambda x: x,
    derivatives=[constant("this is what the operation is for")],
    batch=lambda size, operands, axes: (apply(stopped, *operands), axes[0]),
    samples=lambda: _samples(derivative=False),
)

barrier: Primitive = Primitive(
    "barrier",
    "The same value, not merged with equal computations: what is recomputed on purpose stays so.",
    kind=Movement(reads.of_identity, is_alias=True),
    type_rule=lambda x: x,
    reference=lambda x: x,
    derivatives=[linear(lambda ct, x: ct)],
    batch=lambda size, operands, axes: (apply(barrier, *operands), axes[0]),
    samples=lambda: _samples(derivative=True),
    impure=True,
)


def stop_gradient(x: Tensor, /) -> Tensor:
    """The same value, of which no derivative is taken, in any mode.

    >>> import weft as wf
    >>> wf.grad(lambda x: x * wf.stop_gradient(x))(wf.tensor(3.0)).item()
    3.0
    """
    x = as_tensor("stop_gradient", x)
    value = x._value
    while isinstance(value, Dual) and value.trace.active:
        value = value.primal._value  # without a tangent a value is its own dual number
    part = wrap(value if is_concrete(value) else apply(stopped, wrap(value))._value)
    part._origin = (ref(x), "x.detach()", x._origin and living_origin(x._origin))
    return part
