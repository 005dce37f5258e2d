"""Families of primitives: what the shape of an operation decides, said once.

A family fills the slots that all its members share: type rule, batching and samples. For
element-wise primitives it also makes the function that users call, with a short path for concrete
operands of equal dtype: one NumPy call, one handle, and a tape node only when one is needed.

>>> import weft as wf
>>> wf.add(wf.tensor([1.0, 2.0]), 1).tolist()
[2.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import DType, bool_, float32, real_of
from weft.core.errors import Unsupported
from weft.core.shapes import Dimension, broadcast_shapes
from weft.core.types import TensorType
from weft.ir.batching import move_axis
from weft.ir.derivatives import OperandDerivative, Tangent
from weft.ir.dispatch import apply, bind, quiet
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.ir.tape import LARGE, NO_PARAMS, Node, keep
from weft.ir.tensor import Tensor, grad_mode
from weft.ops.operands import DTYPE_CLASSES, promoted, wrong_dtype

Array = np.ndarray[Any, Any]
Domain = tuple[float, float]
_new = Tensor.__new__
_ndarray = np.ndarray
_PLAIN = frozenset(np.dtype(k) for k in ("f2", "f4", "f8", "c8", "c16"))

RESULTS: dict[str, Callable[[DType], DType]] = {
    "same": lambda dtype: dtype,
    "bool": lambda dtype: bool_,
    "real": real_of,
}


def elementwise(
    name: str,
    *,
    doc: str,
    reference: Callable[..., Any],
    derivatives: Sequence[OperandDerivative] | Unsupported,
    dtypes: str = "inexact",
    result: str = "same",
    domain: Domain | tuple[Domain, ...] = (-2.0, 2.0),
    exact: str = "",
    arity: int | None = None,
    samples: Callable[[], Sequence[Sample]] | None = None,
) -> Callable[..., Tensor]:
    """Define a primitive that works element by element, and the function that users call.

    dtypes: the class of dtypes it is defined for. result: the dtype of the result.
    domain: where samples are taken from, for all operands or for each.
    exact: the class of dtypes for which `reference` on arrays of that dtype gives the result's
    dtype with no conversion; the short path is taken for those (default: all of `dtypes`, except
    integers where the operation works in floating point).
    """
    count = arity or (1 if isinstance(derivatives, Unsupported) else len(derivatives))
    allowed = frozenset(DTYPE_CLASSES[dtypes])
    result_dtype = RESULTS[result]

    def type_rule(*types: TensorType) -> TensorType:
        if types[0].dtype not in allowed or any(t.dtype is not types[0].dtype for t in types[1:]):
            raise wrong_dtype(name, dtypes, _named(types))
        shape = broadcast_shapes(name, [t.shape for t in types], _named(types))
        return TensorType(result_dtype(types[0].dtype), shape)

    primitive = Primitive(
        name,
        doc,
        type_rule=type_rule,
        reference=reference,
        derivatives=_diagonal(derivatives),
        batch=lambda size, operands, axes: _batch(primitive, operands, axes),
        samples=samples or (lambda: elementwise_samples(name, count, dtypes, domain)),
        broadcasts=True,
    )
    fast = frozenset(dtype.numpy for dtype in DTYPE_CLASSES[exact or dtypes])
    function = (_unary if count == 1 else _binary if count == 2 else _general)(
        primitive, reference, fast, dtypes
    )
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.primitive = primitive  # type: ignore[attr-defined]
    return function


def _named(types: Sequence[object]) -> dict[str, object]:
    if len(types) == 1:
        return {"x": types[0]}
    return {f"x{index + 1}": kind for index, kind in enumerate(types)}


def _diagonal(
    derivatives: Sequence[OperandDerivative] | Unsupported,
) -> tuple[OperandDerivative, ...] | Unsupported:
    """Tangent rules of element-wise primitives are their own transposes."""
    if isinstance(derivatives, Unsupported):
        return derivatives
    return tuple(Tangent(d.rule, True) if isinstance(d, Tangent) else d for d in derivatives)


def _batch(
    primitive: Primitive, operands: tuple[Tensor, ...], axes: tuple[int | None, ...]
) -> tuple[Tensor, int]:
    """Batch axes go to the front; ones fill the gap to the longest shape."""
    pairs = list(zip(operands, axes, strict=True))
    known = {axis for _, axis in pairs if axis is not None}
    ranks = {operand.ndim for operand, axis in pairs if axis is not None}
    if len(known) == len(ranks) == 1 and all(a is not None or o.ndim == 0 for o, a in pairs):
        return apply(primitive, *operands), known.pop()
    rank = max(operand.ndim - (axis is not None) for operand, axis in pairs)
    return apply(primitive, *[_aligned(o, a, rank) for o, a in pairs]), 0


def _aligned(operand: Tensor, axis: int | None, rank: int) -> Tensor:
    if axis is None:
        return operand
    front = move_axis(operand, axis, 0)
    missing = rank - (front.ndim - 1)
    if missing == 0:
        return front
    shape = (front.shape[0], *[1] * missing, *front.shape[1:])
    return apply(PRIMITIVES["reshape"], front, shape=shape)


def _unary(
    primitive: Primitive, kernel: Callable[..., Any], fast: frozenset[Any], allowed: str
) -> Callable[..., Tensor]:
    name = primitive.name

    def function(x: Any, /) -> Tensor:
        if type(x) is Tensor:
            a = x._value
            if type(a) is _ndarray and a.dtype in fast:
                try:
                    value = quiet(kernel, a)
                except RuntimeError:
                    return apply(primitive, x)
                if type(value) is not _ndarray:
                    value = np.asarray(value)
                tensor = _new(Tensor)
                tensor._value = value
                tensor._grad = None
                node = x._node
                if node is not None and grad_mode.enabled:
                    tensor._node = _record(primitive, (a,), (node,), value)
                else:
                    tensor._node = None
                return tensor
        return apply(primitive, *promoted(name, (x,), allowed))

    return function


def _binary(
    primitive: Primitive, kernel: Callable[..., Any], fast: frozenset[Any], allowed: str
) -> Callable[..., Tensor]:
    name = primitive.name
    with_scalars = fast & _PLAIN

    def function(x1: Any, x2: Any, /) -> Tensor:
        if type(x1) is Tensor:
            a = x1._value
            if type(a) is _ndarray:
                if type(x2) is Tensor:
                    b = x2._value
                    other = x2._node
                    short = type(b) is _ndarray and a.dtype is b.dtype and a.dtype in fast
                else:
                    b = x2
                    other = None
                    short = type(b) is float and a.dtype in with_scalars
                if short:
                    try:
                        value = quiet(kernel, a, b)
                    except (RuntimeError, ValueError):
                        return slow(x1, x2)
                    if type(value) is not _ndarray:
                        value = np.asarray(value)
                    tensor = _new(Tensor)
                    tensor._value = value
                    tensor._grad = None
                    node = x1._node
                    if (node is not None or other is not None) and grad_mode.enabled:
                        tensor._node = _record(primitive, (a, b), (node, other), value)
                    else:
                        tensor._node = None
                    return tensor
        return slow(x1, x2)

    def slow(x1: Any, x2: Any) -> Tensor:
        return apply(primitive, *promoted(name, (x1, x2), allowed))

    return function


def _general(
    primitive: Primitive, kernel: Callable[..., Any], fast: frozenset[Any], allowed: str
) -> Callable[..., Tensor]:
    name = primitive.name

    def function(*operands: Any) -> Tensor:
        return apply(primitive, *promoted(name, operands, allowed))

    return function


def _record(
    primitive: Primitive, values: tuple[Any, ...], parents: tuple[Any, ...], out: Array
) -> Node | None:
    if out.dtype.kind in "biu":
        return None
    if out.nbytes >= LARGE:
        values, out = keep(primitive, values, out)
    return Node(primitive, NO_PARAMS, values, parents, out)


def elementwise_samples(
    name: str, arity: int, dtypes: str, domain: Domain | tuple[Domain, ...]
) -> list[Sample]:
    """Operands from the domain: of equal shapes, broadcast shapes, no axes, and no elements."""
    generator = np.random.default_rng(abs(hash_name(name)))
    domains = domain if isinstance(domain[0], tuple) else (domain,) * arity
    shapes: list[tuple[tuple[int, ...], ...]] = [((3, 4),) * arity, ((),) * arity, ((0, 2),) * arity]
    if arity > 1:
        shapes += [((2, 1, 3), (4, 1)) + ((3,),) * (arity - 2), ((3,), ()) + ((3,),) * (arity - 2)]
    form = _sample_dtype(dtypes)
    return [
        Sample(tuple(_draw(generator, s, d, form) for s, d in zip(each, domains, strict=True)))
        for each in shapes
    ]


def hash_name(name: str) -> int:
    """A number for a name, the same in every process."""
    return int.from_bytes(name.encode(), "little") % (1 << 31)


def _sample_dtype(dtypes: str) -> DType:
    choices = DTYPE_CLASSES[dtypes]
    return float32 if float32 in choices else choices[-1]


def _draw(
    generator: np.random.Generator, shape: tuple[int, ...], domain: Any, dtype: DType
) -> Array:
    low, high = domain
    drawn = generator.uniform(low, high, shape)
    if dtype is bool_:
        return np.asarray(drawn > (low + high) / 2)
    return np.asarray(drawn.round() if dtype.is_integer else drawn).astype(dtype.numpy)


def batch_each(
    primitive_of: Callable[[], Primitive], shift: Callable[..., dict[str, Any]]
) -> Callable[..., tuple[Tensor, int]]:
    """The batching rule of a primitive with one operand: batch axis first, axes shifted.

    `shift(**params)` gives the parameters that leave axis 0 alone.
    """

    def batch(
        size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], **params: Any
    ) -> tuple[Tensor, int]:
        (operand,), (axis,) = operands, axes
        assert axis is not None
        front = move_axis(operand, axis, 0)
        return apply(primitive_of(), front, **shift(size=size, **params)), 0

    return batch
