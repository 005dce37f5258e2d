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

from weft.core.arrays import HostArray
from weft.core.deferred import deferred_call
from weft.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex_of,
    float32,
    int32,
    real_of,
    uint8,
)
from weft.core.errors import DTypeError, ShapeError, Unsupported
from weft.core.settings import settings
from weft.core.shapes import Dimension, broadcast_shapes
from weft.core.types import TensorType
from weft.ir.batching import move_axis
from weft.ir.derivatives import OperandDerivative, Tangent
from weft.ir.dispatch import OBSERVERS, apply, array_of_number, quiet
from weft.ir.eager import is_native
from weft.ir.eager_primitives import large_elementwise, record_large, times_large
from weft.ir.elsewhere import KnownCalls, elementwise_elsewhere
from weft.ir.kinds import Elementwise
from weft.ir.primitive import PRIMITIVES, Lower, Mistake, Primitive, Sample
from weft.ir.tape import LARGE, NO_PARAMS, Node, keep
from weft.ir.tensor import Tensor, grad_mode, wrap
from weft.ops.operands import DTYPE_CLASSES, promote_operands, wrong_dtype

Array = np.ndarray[Any, Any]
Function = Callable[..., Tensor]
Domain = tuple[float, float]
ELEMENTWISE = Elementwise()
_new = Tensor.__new__
_EXACT = 1 << 24
"""Python integers below this are the same number in every floating-point type they meet."""
_FURTHER = (float32, complex64, int32, uint8, bool_, bfloat16)
_PLAIN = frozenset(np.dtype(k) for k in ("f2", "f4", "f8", "c8", "c16"))

RESULTS: dict[str, Callable[[DType], DType]] = {
    "same": lambda dtype: dtype,
    "bool": lambda dtype: bool_,
    "real": real_of,
    "complex": complex_of,
}


def elementwise(
    name: str,
    *,
    doc: str,
    reference: Callable[..., Any],
    derivatives: Sequence[OperandDerivative] | Unsupported,
    lower: Lower | Unsupported,
    example: str = "",
    dtypes: str = "inexact",
    result: str = "same",
    domain: Domain | tuple[Domain, ...] = (-2.0, 2.0),
    exact: str = "",
    kernel: Callable[..., Any] | None = None,
    otherwise: Function | None = None,
    unlike: Callable[..., Tensor | None] | None = None,
    arity: int | None = None,
    samples: Callable[[], Sequence[Sample]] | None = None,
    kind: Elementwise = ELEMENTWISE,
    commutative: bool = False,
    cost: int | None = None,
) -> Function:
    """Define a primitive that works element by element, and the function that users call.

    lower: the scalar expression of one element; see `Primitive`.
    dtypes: the class of dtypes it is defined for. result: the dtype of the result.
    domain: where samples are taken from, for all operands or for each.
    example: operands and result, as in "[1.0], [2.0] -> [3.0]"; becomes the function's doctest.
    exact, kernel: the class of dtypes for which the short path is taken (default: all), and what
    it calls (default: the reference); a kernel may get a Python float for one of two operands.
    otherwise: what the function does with other dtypes, where promotion is not the answer.
    unlike: what it does with operands that have no common dtype; None where they have one.
    kind, commutative, cost: what else is true of it; see `Primitive`.
    Tangent rules are taken for multiplications by a number that depends on the operands
    analytically, so that they are their own transposes; see reverse.py.
    """
    count = arity or (1 if isinstance(derivatives, Unsupported) else len(derivatives))
    primitive = Primitive(
        name,
        doc,
        kind=kind,
        type_rule=_type_rule(name, dtypes, RESULTS[result]),
        reference=reference,
        derivatives=_diagonal(derivatives),
        batch=lambda size, operands, axes: batch_broadcast(primitive, operands, axes),
        samples=samples or (lambda: elementwise_samples(name, count, dtypes, domain)),
        mistakes=lambda: _mistakes(count, dtypes),
        broadcasts=True,
        commutative=commutative,
        lower=lower,
        cost=cost,
    )
    fast = frozenset(dtype.numpy for dtype in DTYPE_CLASSES[exact or dtypes])
    slow = _long_path(primitive, dtypes, otherwise, unlike)
    weak = fast & _PLAIN if kernel or isinstance(reference, np.ufunc) else frozenset()
    if count == 1:
        function = _unary(primitive, kernel or reference, fast, slow)
    else:
        function = _binary(primitive, kernel or reference, fast, weak, slow)
    return _publish_function(function, primitive, example)


def _publish_function(function: Function, primitive: Primitive, example: str) -> Function:
    """The function that users call, under the name of its primitive and with its text."""
    function.__name__ = function.__qualname__ = primitive.name
    function.__module__ = "weft"
    function.__doc__ = docstring_with_example(primitive.name, primitive.doc, example)
    function.primitive = primitive  # type: ignore[attr-defined]
    return function


def _type_rule(
    name: str, dtypes: str, result_dtype: Callable[[DType], DType]
) -> Callable[..., TensorType]:
    allowed = frozenset(DTYPE_CLASSES[dtypes])

    def type_rule(*types: TensorType) -> TensorType:
        dtype, shape = types[0].dtype, types[0].shape
        if dtype not in allowed or any(t.dtype is not dtype for t in types):
            raise wrong_dtype(name, dtypes, _types_by_name(types))
        if any(t.shape != shape for t in types):
            shape = broadcast_shapes(name, [t.shape for t in types], _types_by_name(types))
        return TensorType(result_dtype(dtype), shape)

    return type_rule


def docstring_with_example(name: str, doc: str, example: str) -> str:
    """A function's docstring with its example as a doctest."""
    if not example:
        return doc
    given, _, expected = example.partition(" -> ")
    operands = ", ".join(f"wf.tensor({part})" for part in _split_operands(given))
    return f"{doc}\n\n>>> import weft as wf\n>>> wf.{name}({operands}).tolist()\n{expected}\n"


def _split_operands(given: str) -> list[str]:
    """The operands of an example: lists side by side."""
    return [part if part.endswith("]") else part + "]" for part in given.split("], ")]


def _mistakes(arity: int, dtypes: str) -> list[Mistake]:
    """Operands that do not broadcast, and operands of a dtype that is not allowed."""
    form = _sample_dtype(dtypes).numpy
    excluded = [d for d in DTYPE_CLASSES["any"] if d not in DTYPE_CLASSES[dtypes]]
    mistakes = [
        Mistake((np.ones(2, d.numpy),) * arity, {}, DTypeError, "not defined for this dtype")
        for d in excluded[:1]
    ]
    if arity > 1:
        apart = (np.ones((2, 3), form), np.ones((2, 4), form))
        mistakes.append(Mistake(apart, {}, ShapeError, "shapes do not broadcast"))
    return mistakes


def _types_by_name(types: Sequence[object]) -> dict[str, object]:
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


def batch_broadcast(
    primitive: Primitive,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    **params: Any,
) -> tuple[Tensor, int]:
    """A batching rule for operands that broadcast.

    Batch axes go to the front; ones fill the gap to the longest shape.
    """
    pairs = list(zip(operands, axes, strict=True))
    known = {axis for _, axis in pairs if axis is not None}
    ranks = {operand.ndim for operand, axis in pairs if axis is not None}
    if len(known) == len(ranks) == 1 and all(a is not None or o.ndim == 0 for o, a in pairs):
        return apply(primitive, *operands, **params), known.pop()
    rank = max(operand.ndim - (axis is not None) for operand, axis in pairs)
    return apply(primitive, *[_align_batch(o, a, rank) for o, a in pairs], **params), 0


def _align_batch(operand: Tensor, axis: int | None, rank: int) -> Tensor:
    if axis is None:
        return operand
    front = move_axis(operand, axis, 0)
    missing = rank - (front.ndim - 1)
    if missing == 0:
        return front
    shape = (front.shape[0], *[1] * missing, *front.shape[1:])
    return apply(PRIMITIVES["reshape"], front, shape=shape)


def _long_path(
    primitive: Primitive,
    allowed: str,
    otherwise: Function | None,
    unlike: Callable[..., Tensor | None] | None,
) -> Function:
    """The function for all that the short path leaves: scalars, arrays, mixed dtypes, traces."""
    name = primitive.name
    choices = frozenset(DTYPE_CLASSES[allowed])

    def promote(*operands: Any) -> Tensor:
        node = deferred_call(promote, operands, {}, name)
        if node is not None:
            return node  # type: ignore[no-any-return]
        other_result = None if unlike is None else unlike(*operands)
        return (
            apply(primitive, *promote_operands(name, operands, allowed))
            if other_result is None
            else other_result
        )

    def promote_unless_other(*operands: Any) -> Tensor:
        assert otherwise is not None
        node = deferred_call(promote_unless_other, operands, {}, name)
        if node is not None:
            return node  # type: ignore[no-any-return]
        tensors = promote_operands(name, operands)
        if tensors[0].dtype in choices:
            return apply(primitive, *tensors)
        return otherwise(*tensors)

    return promote if otherwise is None else promote_unless_other


def function_elsewhere(primitive: Primitive, slow: Function) -> tuple[Function, KnownCalls]:
    """The function for tensors on other devices, beside which numbers may stand; `slow` else.

    With it the calls of arrays that are known, by their kinds.
    """
    compute, known = elementwise_elsewhere(primitive)

    def function(*operands: Any) -> Tensor:
        has_tape, given = False, []
        for x in operands:
            if type(x) is Tensor:
                given.append(x._value)
                has_tape = has_tape or x._node is not None
            else:
                given.append(_as_float(x))
        found = compute(given)
        if found is None:
            return slow(*operands)
        value, arrays = found
        tensor = _new(Tensor)
        tensor._value = value
        tensor._node = tensor._grad = tensor._origin = None
        if has_tape and grad_mode.enabled:
            parents = tuple([x._node if type(x) is Tensor else None for x in operands])
            tensor._node = tape_node(primitive, tuple(arrays), parents, value)
        return tensor

    return function, known


def _unary(
    primitive: Primitive, kernel: Callable[..., Any], fast: frozenset[Any], slow: Function
) -> Function:
    times, (large, native) = times_large(primitive), large_elementwise(primitive)
    elsewhere, known = function_elsewhere(primitive, slow)

    def function(x: Any, /) -> Tensor:
        if type(x) is Tensor:
            a = x._value
            if type(a) is HostArray and a.dtype in fast:
                if a.size >= settings.eager_elements * times:
                    found = None if native.recall is None else native.recall(x)
                    if found is not None:
                        return record_large(primitive, (x,), found)
                    found = large((x,))
                    if found is not None:
                        return found
                try:
                    value = quiet(kernel, a)
                except RuntimeError:
                    return slow(x)
                if type(value) is not HostArray:
                    value = np.asarray(value)
                tensor = _new(Tensor)
                tensor._value = value
                tensor._grad = tensor._origin = None
                node = x._node
                if node is not None and grad_mode.enabled:
                    tensor._node = tape_node(primitive, (a,), (node,), value)
                else:
                    tensor._node = None
                return tensor
            known_call = known.get((getattr(a, "kind", None),))
            if known_call is None or OBSERVERS or not is_native():
                return elsewhere(x)
            tensor = _new(Tensor)
            tensor._value = value = known_call[0]((a,))[0]
            tensor._grad = tensor._origin = tensor._node = None
            if x._node is not None and grad_mode.enabled:
                tensor._node = tape_node(primitive, (a,), (x._node,), value)
            return tensor
        return slow(x)

    return function


def _binary_elsewhere(
    primitive: Primitive, elsewhere: Function, known: KnownCalls
) -> Callable[[Tensor, Tensor, Any, Any], Tensor]:
    """The function of two tensors, with their values, on other devices than the host."""

    def known_elsewhere(x1: Tensor, x2: Tensor, a: Any, b: Any) -> Tensor:
        """The result of tensors on other devices, with little work where the call is known."""
        found = known.get((getattr(a, "kind", None), getattr(b, "kind", None)))
        if found is None or OBSERVERS or not is_native():
            return elsewhere(x1, x2)
        tensor = _new(Tensor)
        tensor._value = value = found[0]((a, b))[0]
        tensor._grad = tensor._origin = tensor._node = None
        node, other = x1._node, x2._node
        if (node is not None or other is not None) and grad_mode.enabled:
            tensor._node = tape_node(primitive, (a, b), (node, other), value)
        return tensor

    return known_elsewhere


def _large_binary(primitive: Primitive) -> Callable[[Tensor, Tensor], Tensor | None]:
    """What computes a primitive of two tensors, one of which is large; None for the reference."""
    large, native = large_elementwise(primitive)

    def large_result(x1: Tensor, x2: Tensor) -> Tensor | None:
        found = None if native.recall is None else native.recall(x1, x2)
        return large((x1, x2)) if found is None else record_large(primitive, (x1, x2), found)

    return large_result


def _binary(
    primitive: Primitive,
    kernel: Callable[..., Any],
    fast: frozenset[Any],
    weak: frozenset[Any],
    slow: Function,
) -> Function:
    """`weak` are the dtypes that a Python float may stand beside."""
    times, large_result = times_large(primitive), _large_binary(primitive)
    elsewhere, known = function_elsewhere(primitive, slow)
    known_elsewhere = _binary_elsewhere(primitive, elsewhere, known)

    def function(x1: Any, x2: Any, /) -> Tensor:
        if type(x1) is Tensor and type(x2) is Tensor:
            a, b = x1._value, x2._value
            if type(a) is not HostArray or type(b) is not HostArray:
                return known_elsewhere(x1, x2, a, b)
            if a.dtype is not b.dtype or a.dtype not in fast:
                return slow(x1, x2)
            node, other = x1._node, x2._node
            least = settings.eager_elements * times
            if a.size >= least or b.size >= least:
                found = large_result(x1, x2)
                if found is not None:
                    return found
        elif type(x1) is Tensor:
            a, b = x1._value, _as_float(x2)
            if type(b) is not float or type(a) is not HostArray or a.dtype not in weak:
                return elsewhere(x1, x2)
            if a.size >= settings.eager_elements * times:
                found = large_result(x1, wrap(array_of_number(b, a.dtype)))
                if found is not None:
                    return found
            node, other = x1._node, None
        else:
            a = _as_float(x1)
            if type(a) is not float or type(x2) is not Tensor:
                return slow(x1, x2)
            b = x2._value
            if type(b) is not HostArray or b.dtype not in weak:
                return elsewhere(x1, x2)
            if b.size >= settings.eager_elements * times:
                found = large_result(wrap(array_of_number(a, b.dtype)), x2)
                if found is not None:
                    return found
            node, other = None, x2._node
        try:
            value = quiet(kernel, a, b)
        except (RuntimeError, ValueError):
            return slow(x1, x2)
        if type(value) is not HostArray:
            value = np.asarray(value)
        tensor = _new(Tensor)
        tensor._value = value
        tensor._node = tensor._grad = tensor._origin = None
        if (node is not None or other is not None) and grad_mode.enabled:
            tensor._node = tape_node(primitive, (a, b), (node, other), value)
        return tensor

    return function


def _as_float(x: Any) -> Any:
    """A Python integer that a float holds exactly, as one; anything else as it is."""
    return float(x) if type(x) is int and -_EXACT < x < _EXACT else x


def tape_node(
    primitive: Primitive, values: tuple[Any, ...], parents: tuple[Any, ...], out: Array
) -> Node | None:
    """The tape node of a short path's result; None where it has no derivative."""
    if out.dtype.kind in "biu":
        return None
    if out.nbytes >= LARGE:
        values, out = keep(primitive, values, out)
    return Node(primitive, NO_PARAMS, values, parents, out)


def elementwise_samples(
    name: str, arity: int, dtypes: str, domain: Domain | tuple[Domain, ...]
) -> list[Sample]:
    """Operands from the domain: of equal shapes, broadcast shapes, no axes, and no elements.

    One more sample of each further kind of dtype that the primitive is defined for.
    """
    generator = np.random.default_rng(abs(hash_name(name)))
    domains = domain if isinstance(domain[0], tuple) else (domain,) * arity
    shapes: list[tuple[tuple[int, ...], ...]] = [(s,) * arity for s in ((3, 4), (), (0, 2))]
    if arity > 1:
        shapes += [((2, 1, 3), (4, 1)), ((3,), ())]
    form = _sample_dtype(dtypes)
    others = [d for d in _FURTHER if d in DTYPE_CLASSES[dtypes] and d is not form]

    def sample(each: tuple[tuple[int, ...], ...], dtype: DType) -> Sample:
        drawn = [_draw(generator, s, d, dtype) for s, d in zip(each, domains, strict=True)]
        return Sample(tuple(drawn), derivative=dtype.bits > 16)

    return [sample(s, form) for s in shapes] + [sample(((2, 3),) * arity, d) for d in others]


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
    if dtype.is_complex:
        drawn = drawn + 1j * generator.uniform(-0.5, 0.5, shape)
    elif dtype.is_integer:  # no zeros, which integers are not divided by
        drawn = np.where(np.abs(drawn) < 1, 1, drawn.round())
        drawn = np.abs(drawn) if dtype.kind == "unsigned" else drawn
    return np.asarray(drawn).astype(dtype.numpy)


def batch_each(
    primitive_of: Callable[[], Primitive], shift: Callable[..., dict[str, Any]]
) -> Callable[..., tuple[Tensor, int]]:
    """The batching rule of a primitive with one operand: batch axis first, axes shifted.

    `shift(**params)` gives the parameters that leave axis 0 alone.
    """

    def batch(
        size: Dimension,
        operands: tuple[Tensor, ...],
        places: tuple[int | None, ...],
        /,
        **params: Any,
    ) -> tuple[Tensor, int]:
        (operand,), (axis,) = operands, places
        assert axis is not None
        front = move_axis(operand, axis, 0)
        return apply(primitive_of(), front, **shift(size=size, **params)), 0

    return batch
