"""The one place that decides when work happens.

`bind` checks the types, then computes at once by the reference, or hands the call to the deepest
trace among its operands; and it records the call on the tape when a derivative may need it.

>>> import numpy as np
>>> from weft.ir.tensor import wrap
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.core.arrays import (
    CONCRETE,
    HostArray,
    can_compute_on,
    check_one_device,
    device_of,
    move,
    to_host,
)
from weft.core.devices import CPU, Device
from weft.core.dtypes import from_numpy
from weft.core.errors import OutOfMemoryError, UnsupportedError, WeftError
from weft.core.host_memory import CHECKED_BYTES, fits_memory
from weft.core.locations import Location, user_location
from weft.core.shapes import Dim
from weft.core.types import TensorType
from weft.ir.autocast import AUTOCAST
from weft.ir.constants import call_beside
from weft.ir.graph import graphs_in
from weft.ir.kinds import Collective, Control, Random
from weft.ir.parts import as_part
from weft.ir.places import TRANSFER
from weft.ir.primitive import Primitive
from weft.ir.tape import record
from weft.ir.tensor import Tensor, Trace, constants_on, grad_mode, leak_error, traces, wrap

_quiet_context = contextvars.copy_context()
_quiet_context.run(np.seterr, all="ignore")
quiet = _quiet_context.run
"""Calls a function with NumPy's floating-point warnings off; a RuntimeError when in use already."""


def array_of_number(number: Any, dtype: Any) -> Any:
    """An array of one number; one beyond the dtype is infinite, without a warning."""
    try:
        return quiet(np.array, number, dtype)
    except RuntimeError:  # another thread is quiet now
        with np.errstate(all="ignore"):
            return np.array(number, dtype)


Observer = Callable[[Primitive, Sequence[Any], Sequence[Any], Location | None], None]
OBSERVERS: list[Observer] = []
"""Called with each primitive computed by reference, its arrays, its results and the user's line.

The short paths of the families do not ask: who adds an observer closes them, as debug.py does.
"""


Native = Callable[[Primitive, Sequence[Any], dict[str, Any]], Any]
NATIVE: list[Native] = []
"""Computes a primitive by compiled code, or gives None; see eager.py."""


ELSEWHERE: list[Native] = []
"""Computes a primitive on another device than the host, or gives None; see elsewhere.py."""


KNOWN_ELSEWHERE: list[Callable[[Primitive, Sequence[Tensor], dict[str, Any]], Any]] = []
"""Computes a primitive on another device if it was computed there before, or gives None."""


@contextmanager
def active_trace(trace: Trace) -> Iterator[None]:
    """Make a trace the deepest one inside a `with` block."""
    trace.level = len(traces.stack) + 1
    trace.location = user_location()
    trace.stopped = grad_mode.stopped
    before = traces.recording
    traces.stack.append(trace)
    traces.recording = [*before, trace] if trace.stages else before
    try:
        yield
    finally:
        traces.recording = before
        traces.stack.pop()
        trace.active = False


class _Outside:
    """Leave a trace while it processes an operation, so that inner traces do not record that.

    Nothing is cast there: rules have the dtypes that they were written for.
    """

    __slots__ = ("_autocast", "_before", "_level")

    def __init__(self, trace: Trace) -> None:
        self._level = trace.level

    def __enter__(self) -> None:
        self._before = before = traces.recording
        traces.recording = [each for each in before if each.level < self._level]
        self._autocast = AUTOCAST.get()
        AUTOCAST.set(None)

    def __exit__(self, *raised: object) -> None:
        traces.recording = self._before
        AUTOCAST.set(self._autocast)


def bind(primitive: Primitive, *operands: Tensor, **params: Any) -> Any:
    """Apply a primitive to tensors: a tensor, or a tuple of them."""
    if operands and type(operands[0]._value) is not HostArray and not traces.stack:
        result = _bind_known(primitive, operands, params)
        if result is not None:
            return result
    types = primitive.type_rule(*[operand.type for operand in operands], **params)
    trace = deepest_trace(operands, primitive.name)
    if traces.stack:
        trace = (
            _trace_of_constants(primitive, params, operands)
            if trace is None
            else _claiming_trace(trace)
        )
        if isinstance(primitive.kind, Collective | Control):
            trace = _trace_of_shards(primitive, params, trace)
    if traces.keeper is None:
        result = compute(primitive, operands, params, types, trace)
    else:
        result = traces.keeper.process_primitive(primitive, operands, params, types, trace)
    if grad_mode.enabled and _may_be_differentiated(primitive, operands, types):
        record(primitive, params, operands, result)
    if primitive.part is not None:
        as_part(result, operands[0], (primitive.part, params))
    return result


def _bind_known(primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
    """What `bind` gives for a call that was made before on another device; None for any other."""
    if traces.keeper is not None or not KNOWN_ELSEWHERE:
        return None
    result = KNOWN_ELSEWHERE[0](primitive, operands, params)
    if result is None:
        return None
    if grad_mode.enabled and any(operand._node is not None for operand in operands):
        types = primitive.type_rule(*[operand.type for operand in operands], **params)
        if _may_be_differentiated(primitive, operands, types):
            record(primitive, params, operands, result)
    if primitive.part is not None:
        as_part(result, operands[0], (primitive.part, params))
    return result


def compute(
    primitive: Primitive,
    operands: tuple[Tensor, ...],
    params: dict[str, Any],
    types: Any,
    trace: Trace | None,
) -> Any:
    """The result of a call: computed now, or what a trace makes of it."""
    if trace is None:
        return evaluate(primitive, [operand._value for operand in operands], params)
    with _Outside(trace):
        if trace.stages:
            return trace.process_primitive(primitive, operands, params, types)
        return call_beside(trace.process_primitive, (primitive, operands, params, types), {})


apply: Callable[..., Tensor] = bind
"""`bind` for a primitive with one result."""
apply_multiple: Callable[..., tuple[Tensor, ...]] = bind
"""`bind` for a primitive with several results."""


def evaluate(primitive: Primitive, arrays: list[Any], params: dict[str, Any]) -> Any:
    """Compute a primitive now, by its reference, which is written with NumPy.

    A primitive that holds graphs evaluates others in turn, which see to warnings themselves; a
    collective must not be called again after an error.
    """
    for array in arrays:
        if type(array) is not HostArray:
            return _evaluate_elsewhere(primitive, arrays, params, device_of(array))
    device = traces.device
    if device is not None and device is not CPU and not any(array.ndim for array in arrays):
        return _evaluate_numbers(primitive, arrays, params, device)
    if "shape" in params:
        _check_room(primitive, arrays, params)
    if NATIVE and not OBSERVERS:
        found = NATIVE[0](primitive, arrays, params)
        if found is not None:
            return found
    try:
        if primitive.sees_to_warnings:
            result = primitive.reference(*arrays, **params)
        else:
            try:
                result = quiet(primitive.reference, *arrays, **params)
            except RuntimeError:  # the context is in use, by another thread
                with np.errstate(all="ignore"):
                    result = primitive.reference(*arrays, **params)
    except (MemoryError, ValueError, OverflowError) as error:
        refused = _too_large(primitive, arrays, params, error)
        if refused is None:
            raise
        raise refused from error
    if OBSERVERS:
        _observe(primitive, arrays, result)
    if primitive.multiple:
        return tuple(wrap(np.asarray(each)) for each in result)
    return wrap(result if type(result) in CONCRETE else np.asarray(result))


def _evaluate_numbers(
    primitive: Primitive, arrays: list[Any], params: dict[str, Any], device: Device
) -> Any:
    """Compute what is made of single numbers of the host, or of nothing, for a device.

    What has a shape is moved there. A number stays: it fits beside any tensor.
    """
    if not arrays:
        return _evaluate_elsewhere(primitive, arrays, params, device)
    with constants_on(CPU):
        results = evaluate(primitive, arrays, params)
    if traces.recording:  # constants of a program are the host's
        return results
    moved = [
        wrap(move(each._value, device)) if each.shape else each
        for each in (results if primitive.multiple else (results,))
    ]
    return tuple(moved) if primitive.multiple else moved[0]


def _evaluate_elsewhere(
    primitive: Primitive, arrays: list[Any], params: dict[str, Any], device: Device
) -> Any:
    """Compute a primitive on a device; by reference where there is no code for it."""
    if primitive.name == TRANSFER:  # its reference copies from any device to any
        return wrap(primitive.reference(*arrays, **params))
    if primitive.name == "call":  # its graph says what is computed where
        return tuple(map(wrap, primitive.reference(*arrays, **params)))
    if not can_compute_on(device):
        raise _no_target(primitive, arrays)
    if arrays:  # what is made of nothing differs in its shape: code for each would take too long
        found = ELSEWHERE[0](primitive, arrays, params)
        if found is not None:
            return found
    with constants_on(CPU):
        results = evaluate(primitive, [to_host(array) for array in arrays], params)
    if primitive.multiple:
        return tuple(wrap(move(each._value, device)) for each in results)
    return wrap(move(results._value, device))


def _no_target(primitive: Primitive, arrays: Sequence[Any]) -> UnsupportedError:
    """The error for arrays of a device for which nothing computes a primitive at once."""
    device = next(device_of(array) for array in arrays if type(array) is not HostArray)
    return UnsupportedError(
        primitive.name,
        f"nothing computes on {device} yet",
        expected="tensors on the CPU",
        got={f"x{i + 1}": wrap(array).type for i, array in enumerate(arrays)},
        fix='copy the tensors first: x.to("cpu")',
    )


def _check_room(primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]) -> None:
    """Refuse what is made of a shape alone, and of more elements than there is memory for."""
    if arrays and not isinstance(primitive.kind, Random):
        return  # a view
    if math.prod(params["shape"]) >= CHECKED_BYTES // LARGEST_ELEMENT:
        refused = _too_large(primitive, arrays, params, None)
        if refused is not None:
            raise refused


def _too_large(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any], error: Exception | None
) -> OutOfMemoryError | None:
    """The error for results that no memory holds; None for another one, or where there is room."""
    if isinstance(error, WeftError):
        return None
    given = [TensorType(from_numpy(array.dtype), array.shape) for array in arrays]
    ruled = primitive.type_rule(*given, **params)
    results = ruled if isinstance(ruled, tuple) else (ruled,)
    sizes = [kind.dtype.itemsize * int(math.prod(kind.shape)) for kind in results]
    if error is None and fits_memory(sum(sizes)):
        return None
    if isinstance(error, ValueError | OverflowError) and max(sizes, default=0) < BEYOND_MEMORY:
        return None
    return OutOfMemoryError(
        primitive.name,
        "there is not enough memory for the result",
        expected=f"room for {sum(sizes)} bytes",
        got={f"x{i + 1}": kind for i, kind in enumerate(given)} or {"result": results[0]},
        fix="make it in parts, or write the size that is meant",
    )


BEYOND_MEMORY = 1 << 47
"""More bytes than a process can address."""
LARGEST_ELEMENT = 16
"""Bytes of an element of the widest dtype."""


def _observe(primitive: Primitive, arrays: Sequence[Any], result: Any) -> None:
    results = result if primitive.multiple else (result,)
    for observe in OBSERVERS:
        observe(primitive, arrays, results, None)


def deepest_trace(operands: Sequence[Tensor], purpose: str) -> Trace | None:
    """The deepest trace among the operands'; None when all are concrete."""
    found: Trace | None = None
    is_checked = False
    for operand in operands:
        value = operand._value
        if type(value) is not HostArray:
            if type(value) in CONCRETE:
                if not is_checked and len(operands) > 1 and purpose != "call":
                    _place_traces(operands, device_of(value))
                    check_one_device(purpose, operands)
                    is_checked = True
                continue
            trace: Trace = value.trace
            if not trace.active:
                raise leak_error(value, purpose)
            if found is None or trace.level > found.level:
                found = trace
    return found


def _place_traces(operands: Sequence[Tensor], device: Device) -> None:
    """Let traces that know of no device yet be of the one that an operand is on, if it computes."""
    for operand in operands if can_compute_on(device) else ():
        value = operand._value
        if type(value) not in CONCRETE and not value.trace.is_placed:
            value.trace.device, value.trace.is_placed = device, True


def _trace_of_constants(
    primitive: Primitive, params: dict[str, Any], operands: tuple[Tensor, ...]
) -> Trace | None:
    """The trace for a call on nothing but constants: usually none, and it is computed at once.

    A call without operands (a constant of some shape, random bits), of a symbolic size, or with
    an effect belongs to the innermost trace that records.
    """
    if operands and not primitive.impure and not _symbolic(params):
        return None
    return traces.recording[-1] if traces.recording else None


def _claiming_trace(trace: Trace) -> Trace:
    """The trace itself, or the innermost one that records, where that takes all calls inside it."""
    inner = traces.recording[-1] if traces.recording else trace
    return inner if inner.claims and inner.level > trace.level else trace


def is_collective_over(primitive: Primitive, params: dict[str, Any], axis_name: str | None) -> bool:
    """Whether a call is a collective of a process's own shard over the mesh axis of a name."""
    return (
        axis_name is not None
        and isinstance(primitive.kind, Collective)
        and params["mesh_axis"] == axis_name
        and not params["stacked"]
    )


def _trace_of_shards(
    primitive: Primitive, params: dict[str, Any], trace: Trace | None
) -> Trace | None:
    """The trace for a collective: the one that holds the shards of its axis, if that is deeper.

    So a value that is the same on all processes takes part in it as well. The same goes for
    control flow that holds collectives.
    """
    for inner in reversed(traces.stack):
        if trace is not None and inner.level <= trace.level:
            return trace
        if _meets_over(primitive, params, inner.axis_name):
            return inner
    return trace


def _meets_over(primitive: Primitive, params: dict[str, Any], axis_name: str | None) -> bool:
    """Whether a call is a collective over a mesh axis, or control flow that holds one."""
    if axis_name is None or not isinstance(primitive.kind, Control):
        return is_collective_over(primitive, params, axis_name)
    graphs = [graph for value in params.values() for graph in graphs_in(value)]
    return any(
        _meets_over(node.primitive, node.params, axis_name)
        for graph in graphs
        for node in graph.nodes
    )


def _symbolic(params: dict[str, Any]) -> bool:
    return any(_has_symbol(value) for value in params.values())


def _has_symbol(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_has_symbol(each) for each in value)
    return isinstance(value, Dim)


def _may_be_differentiated(primitive: Primitive, operands: tuple[Tensor, ...], types: Any) -> bool:
    """Whether a derivative may be asked of the result."""
    for operand in operands:
        if operand._node is not None:
            results = types if primitive.multiple else (types,)
            return any(kind.dtype.is_inexact for kind in results)
    return False
