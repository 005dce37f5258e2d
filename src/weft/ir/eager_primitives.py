"""Primitives that are applied by themselves: compiled where `eager.py` says so, else by reference.

What was computed before, of arrays of the same types, is computed again with less work around it
(`known_computation`, `large_elementwise`).

>>> import numpy as np
>>> import weft as wf
>>> exp = wf.ir.primitive.PRIMITIVES["exp"]
>>> run_primitive(exp, [np.zeros(3, np.float32)], {}) is None  # it is small: by reference
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from weft.core.arrays import HostArray
from weft.core.settings import settings
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import static_key
from weft.ir.derivatives import Tangent
from weft.ir.dispatch import NATIVE, OBSERVERS, bind, quiet
from weft.ir.eager import (
    CHEAP,
    COPIED,
    COPY,
    DIFFERENTIATED,
    DRAWN,
    FORMS,
    REPEATED,
    WORTHWHILE,
    Forms,
    NativeCalls,
    is_native,
)
from weft.ir.kinds import Elementwise, Movement, Random
from weft.ir.primitive import Primitive
from weft.ir.tape import record
from weft.ir.tensor import Tensor, grad_mode, traces, wrap

_primitives: dict[Hashable, Forms] = {}
"""The compiled forms of primitives with their parameters."""


def times_large(primitive: Primitive) -> int:
    """From how many times `eager_elements` on a primitive runs compiled; 0 for never."""
    if type(primitive.kind) is not Elementwise:
        return WORTHWHILE.get(type(primitive.kind), 0)
    rules = primitive.derivatives
    is_curved = type(rules) is tuple and any(isinstance(rule, Tangent) for rule in rules)
    return DIFFERENTIATED if is_curved else CHEAP


def forms_of(primitive: Primitive, params: dict[str, Any]) -> Forms | None:
    """The compiled forms of a primitive with its parameters; None where these make no key."""
    key = primitive.name, *[static_key(pair) for pair in params.items()]
    try:
        forms = _primitives.get(key)
    except TypeError:
        return None
    if forms is None:
        if len(_primitives) >= FORMS:
            _primitives.clear()
        forms = _primitives[key] = Forms(lambda *operands: bind(primitive, *operands, **params))
    return forms


def run_primitive(primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
    """The result of a primitive by itself, compiled; None where it is to run by reference."""
    elements = settings.eager_elements
    for array in arrays:  # most calls end here
        if array.size >= elements:
            break
    else:
        is_drawn = type(primitive.kind) is Random
        return _run_draw(primitive, arrays, params) if is_drawn else None
    times = times_large(primitive)
    if not times and primitive.name == "reshape" and not arrays[0].flags.c_contiguous:
        return _reshape_copy(arrays[0], params["shape"])
    if not times or traces.stack:
        return None
    least = elements * times
    if all(array.size < least or not array.flags.forc for array in arrays):
        return None
    forms = forms_of(primitive, params)
    if forms is None:
        return None
    run, handles = forms.find(tuple([wrap(array) for array in arrays]), {})
    return None if run is None else run(handles)


Compute = Callable[[Sequence[Any]], Any]
"""Computes the arrays of results; None where a call is to go the whole way."""


def known_computation(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]
) -> Compute | None:
    """What computes a primitive once more for arrays of the host of the same types, with less work.

    It is asked while work is native (`is_native`). None where the primitive goes the whole way.
    """
    kind = primitive.kind
    if isinstance(kind, Movement) and kind.view is not None and len(arrays) == 1:
        return _known_reshape(params) if primitive.name == "reshape" else _known_view(kind, params)
    least = settings.eager_elements * _times_repeated(primitive)
    if least == 0 or all(array.size < least for array in arrays):
        return _known_reference(primitive, params)
    are_plain = all(array.flags.c_contiguous for array in arrays)
    return _known_native(primitive, arrays, params) if are_plain else None


def _times_repeated(primitive: Primitive) -> int:
    """From how many times `eager_elements` on a call that is made again runs compiled."""
    return times_large(primitive) or REPEATED.get(primitive.name, 0)


def _known_reference(primitive: Primitive, params: dict[str, Any]) -> Compute | None:
    """What computes a primitive of arrays that are small, or that is never compiled.

    An error is left to the whole way, which explains it.
    """
    elements, reference = settings.eager_elements, primitive.reference
    if primitive.sees_to_warnings or isinstance(primitive.kind, Random):
        return None

    def compute(arrays: Sequence[Any]) -> Any:
        if settings.eager_elements != elements:
            return None
        try:
            result = quiet(reference, *arrays, **params)
        except Exception:
            return None
        return (result if type(result) is HostArray else np.asarray(result),)

    return compute


def _known_view(kind: Movement, params: dict[str, Any]) -> Compute:
    """What shows elements of an array: nothing is computed, whatever its size."""
    view = kind.view
    return lambda arrays: (view(arrays[0], **params),)  # type: ignore[misc]


def _known_reshape(params: dict[str, Any]) -> Compute:
    """What gives an array another shape: it is copied where its elements are not in order."""
    shape = params["shape"]

    def reshape(arrays: Sequence[Any]) -> Any:
        array = arrays[0]
        copy = None if array.flags.c_contiguous else _native_copy(array)
        return ((array if copy is None else copy).reshape(shape),)

    return reshape


def _known_native(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]
) -> Compute | None:
    """What computes a primitive compiled; None where it is computed by reference."""
    elements = settings.eager_elements
    if not is_native():
        return None
    forms = forms_of(primitive, params)
    run, handles = (None, ()) if forms is None else forms.find(tuple(map(wrap, arrays)), {})
    compute = getattr(run, "compute_known", None)
    if run is None or compute is None:
        return None
    run(handles)  # so that it is known

    def compute_again(arrays: Sequence[Any]) -> Any:
        is_same = settings.eager_elements == elements and traces.device is None
        return compute(arrays) if is_same else None

    return compute_again


def _run_draw(primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
    """Bits of one key, compiled; None where they are few.

    They are integers, which are the same in any way. A program is for all counts: it is given an
    array of as many bytes, which nothing reads.
    """
    shape = params["shape"]
    count = math.prod(shape)
    if count < DRAWN or traces.stack or arrays[1].size != 1:
        return None
    rest = {name: value for name, value in params.items() if name != "shape"}
    key = "draw", primitive.name, *[static_key(pair) for pair in rest.items()]
    forms = _primitives.get(key)
    if forms is None:
        forms = _primitives[key] = Forms(
            lambda key, data, like: bind(primitive, key, data, shape=like.shape, **rest)
        )
    operands = (*[wrap(array) for array in arrays], wrap(np.empty(count, np.uint8)))
    before, traces.by_reference = traces.by_reference, False
    try:
        run, handles = forms.find(operands, {})
    finally:
        traces.by_reference = before
    return None if run is None else run(handles).reshape(shape)


NATIVE.append(run_primitive)


def _reshape_copy(array: Any, shape: Any) -> Tensor | None:
    """An array with another order of axes in memory in a new shape; None where that is no copy."""
    copy = _native_copy(array) if is_native() else None
    return None if copy is None else wrap(copy.reshape(shape))


def _native_copy(array: Any) -> Any:
    is_large = array.size >= COPIED * settings.eager_elements
    return COPY[0](array) if COPY and is_large else None


def contiguous_array(array: Any) -> Any:
    """The array without gaps and in row-major order, as programs take it.

    NumPy's own function would give one without axes an axis.
    """
    if type(array) is not HostArray or array.flags.c_contiguous:  # others have no gaps
        return array
    copy = _native_copy(array)
    return np.ascontiguousarray(array) if copy is None else copy


def large_elementwise(
    primitive: Primitive,
) -> tuple[Callable[[tuple[Tensor, ...]], Tensor | None], NativeCalls]:
    """What computes an element-wise primitive of large tensors, with its place on the tape.

    None where it is to run by reference. Where a derivative is no more than the cotangent, or its
    product with an operand, the tape keeps the primitive itself; others are compiled both ways.
    With it the calls that native code knows, which gives those of the first kind no place on the
    tape: see `record_large`.
    """
    forms = Forms(lambda *operands: bind(primitive, *operands))
    native = NativeCalls(is_final=not primitive.is_multilinear)
    known: dict[Hashable, tuple[Any, int, bool]] = {}
    """By dtypes and shapes: what computes arrays without gaps, `eager_elements`, and whether native
    code is to be told of it."""

    def compute(operands: tuple[Tensor, ...]) -> Tensor | None:
        if traces.stack or OBSERVERS:
            return None
        arrays, parts, has_node = list[Any](), list[Any](), False
        for operand in operands:
            array = operand._value
            arrays.append(array)
            parts += (array.dtype, array.shape)
            has_node = has_node or operand._node is not None
        key, is_recorded = tuple(parts), has_node and grad_mode.enabled
        if is_recorded and not primitive.is_multilinear:
            return compute_first(key, operands)
        found, made = known.get(key), None
        if found is not None and traces.device is None and traces.keeper is None:
            run, elements, is_new = found
            if AUTOCAST.get() is None and elements == settings.eager_elements and is_native():
                if is_new:
                    known[key] = run, elements, False
                    native.add(operands, {}, run, operands)
                made = run.compute_known(arrays)
        result = compute_first(key, operands) if made is None else wrap(made[0])
        if is_recorded and result is not None:
            _record_inexact(primitive, operands, result)
        return result

    def compute_first(key: Hashable, operands: tuple[Tensor, ...]) -> Tensor | None:
        for operand in operands:
            if not operand._value.flags.c_contiguous:
                return None
        run, handles = forms.find(operands, {})
        if run is None:
            return None
        if primitive.is_multilinear:  # `compute` sees to the tape
            handles = [wrap(handle._value) for handle in handles]
        result: Tensor = run(handles)
        is_usual = traces.device is None and AUTOCAST.get() is None
        if is_usual and hasattr(run, "compute_known"):
            if len(known) >= FORMS:
                known.clear()
            known[key] = run, settings.eager_elements, True
        return result

    return compute, native


def record_large(primitive: Primitive, operands: tuple[Tensor, ...], result: Tensor) -> Tensor:
    """The result of native code, with its place on the tape where an operand has one."""
    for operand in operands:
        if operand._node is not None:
            if primitive.is_multilinear and grad_mode.enabled:
                _record_inexact(primitive, operands, result)
            break
    return result


def _record_inexact(primitive: Primitive, operands: tuple[Tensor, ...], result: Tensor) -> None:
    """Give a result its place on the tape; truth values, such as a comparison's, have none."""
    if result.dtype.is_inexact:
        record(primitive, {}, operands, result)
