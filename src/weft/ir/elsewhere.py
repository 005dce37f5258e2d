"""Eager work on other devices: what was computed before is found by the kinds of its operands.

A primitive with the kinds of its operands (device, dtype and shape as one object) and the bytes of
its parameters is one key. What is found by it needs no type rule and no check of devices.

>>> import weft as wf
>>> key_elsewhere(wf.ir.primitive.PRIMITIVES["exp"], [wf.ones(3).numpy()], {}) is None
True
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from marshal import dumps
from typing import Any

import numpy as np

from weft.core.arrays import CONCRETE, HostArray, can_compute_on, move
from weft.core.dtypes import BY_NUMPY
from weft.core.settings import settings
from weft.ir.dispatch import ELSEWHERE, KNOWN_ELSEWHERE, OBSERVERS, bind
from weft.ir.eager import COMPILE, FORMS, Forms, forms_of, is_native, static_key
from weft.ir.primitive import Primitive
from weft.ir.tensor import Tensor, wrap


def run_elsewhere(primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
    """The result of a primitive on another device, compiled; None where it is not to be compiled.

    There is no size below which the host would be faster: the elements are not there.
    """
    if OBSERVERS or not settings.compiler or not COMPILE:
        return None
    forms = forms_of(primitive, params)
    if forms is None:
        return None
    run, handles = forms.find(tuple([wrap(array) for array in arrays]), {})
    result = None if run is None else run(handles)
    compute, quick = getattr(run, "compute", None), getattr(run, "quick_compute", None)
    key = key_elsewhere(primitive, arrays, params)
    if compute is not None and quick is not None and key is not None:
        if len(_computing) >= FORMS:
            _computing.clear()
        _computing[key] = quick(arrays) or compute
    return result


def run_known_elsewhere(
    primitive: Primitive, operands: Sequence[Tensor], params: dict[str, Any]
) -> Any:
    """The result of a primitive that was computed on the same device before; None for any other.

    What was computed before needs no check of types, devices and parameters.
    """
    arrays = [operand._value for operand in operands]
    compute = known_compute(primitive, arrays, params)
    if compute is None or OBSERVERS or not is_native():
        return None
    results = compute(arrays)
    return tuple(map(wrap, results)) if primitive.multiple else wrap(results[0])


def known_compute(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]
) -> Compute | None:
    """What computes a primitive of arrays of these kinds, if that was done before."""
    key = key_elsewhere(primitive, arrays, params)
    return None if key is None else _computing.get(key)


def key_elsewhere(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]
) -> Hashable | None:
    """All that a program of a primitive depends on; None where that makes no key.

    Bytes tell apart what Python says is equal: 1, 1.0 and True.
    """
    key: list[Any] = [primitive.name]
    for array in arrays:
        kind = getattr(array, "kind", None)
        if kind is None or type(array) not in CONCRETE:
            return None
        key.append(kind)
    if params:
        try:
            key.append(dumps(tuple(params.values()), _PLAIN_BYTES))
        except ValueError:  # a dtype, say
            key += [static_key(pair) for pair in params.items()]
    found = tuple(key)
    try:
        hash(found)
    except TypeError:
        return None
    return found


_computing: dict[Hashable, Callable[[Sequence[Any]], Sequence[Any]]] = {}
"""What computes primitives on other devices, by all that their programs depend on."""
_PLAIN_BYTES = 2
"""The version of Python's own bytes in which equal values have equal bytes."""


ELSEWHERE.append(run_elsewhere)
KNOWN_ELSEWHERE.append(run_known_elsewhere)


Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes the arrays of results of arrays."""
Computed = tuple[Any, Sequence[Any]]
"""The array of a result, and those of the operands."""


KnownCalls = dict[Hashable, tuple[Compute, Any]]
"""By the kinds of arrays, and numbers: what computes a call, and the array of a number."""


def elementwise_elsewhere(
    primitive: Primitive,
) -> tuple[Callable[[Sequence[Any]], Computed | None], KnownCalls]:
    """What computes an element-wise primitive of arrays on another device.

    One of two operands may be a Python float beside an array of inexact numbers. None where the
    call has to go the long way: under an observer, for dtypes or shapes that do not fit. The calls
    that are known are returned, too: those of arrays alone are found by the kinds of all of them.
    """
    known: KnownCalls = {}
    find = _finder(primitive)

    def compute(operands: Sequence[Any]) -> Computed | None:
        if OBSERVERS or not is_native():
            return None
        parts: list[Any] = []
        for x in operands:
            if type(x) is float:
                parts.append(x or repr(x))  # there are two zeros
            elif type(x) is HostArray or type(x) not in CONCRETE:
                return None
            else:
                parts.append(x.kind)
        key = tuple(parts)
        found = known.get(key)
        if found is None:
            return compute_first(operands, key)
        run, number = found
        if number is not None:
            operands = [number if type(x) is float else x for x in operands]
        return run(operands)[0], operands

    def compute_first(operands: Sequence[Any], key: Hashable) -> Computed | None:
        found = find(operands)
        if found is None:
            return None
        run, number = found
        arrays = [number if type(x) is float else x for x in operands]
        result = run.compute(arrays)[0]
        if len(known) >= FORMS:
            known.clear()
        known[key] = run.quick_compute(arrays) or run.compute, number
        return result, arrays

    return compute, known


def _finder(primitive: Primitive) -> Callable[[Sequence[Any]], tuple[Any, Any] | None]:
    """What finds the program of a call: what runs it, and the array of a number beside arrays."""
    forms = Forms(lambda *operands: bind(primitive, *operands))

    def find(operands: Sequence[Any]) -> tuple[Any, Any] | None:
        arrays = [x for x in operands if type(x) is not float]
        if not arrays or any(x.kind is None for x in arrays):
            return None
        place, dtype, number = arrays[0].device, arrays[0].dtype, None
        if any(x.device is not place for x in arrays) or not can_compute_on(place):
            return None
        if len(arrays) < len(operands):
            value = next(x for x in operands if type(x) is float)
            if not BY_NUMPY[dtype].is_inexact or value != value:
                return None
            with np.errstate(all="ignore"):
                number = move(np.array(value, dtype), place)
        given = tuple([wrap(number if type(x) is float else x) for x in operands])
        run = forms.find(given, {})[0]
        return (run, number) if hasattr(run, "compute") else None

    return find
