"""Eager work on other devices: what was computed before is found by the kinds of its operands.

A primitive with the kinds of its operands (device, dtype and shape as one object) and the bytes of
its parameters is one key. What is found by it needs no type rule and no check of devices.

>>> import weft as wf
>>> key_elsewhere(wf.ir.primitive.PRIMITIVES["exp"], [wf.ones(3).numpy()], {}) is None
True
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import wraps
from marshal import dumps
from typing import Any, ParamSpec

import numpy as np

from weft.core.arrays import CONCRETE, HostArray, can_compute_on, move
from weft.core.dtypes import BY_NUMPY
from weft.core.records import frozen
from weft.core.settings import settings
from weft.core.wrong_calls import RECALLS, Recall
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import static_key
from weft.ir.constants import beside_operands
from weft.ir.dispatch import ELSEWHERE, KNOWN_ELSEWHERE, OBSERVERS, bind
from weft.ir.eager import COMPILE, FORMS, Forms, is_native, unit
from weft.ir.eager_primitives import forms_of
from weft.ir.kinds import Movement
from weft.ir.number_arrays import number_array
from weft.ir.parts import as_part
from weft.ir.primitive import Primitive
from weft.ir.tensor import Tensor, traces, wrap

Parameters = ParamSpec("Parameters")
Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes the arrays of results of arrays."""


def run_elsewhere(primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
    """The result of a primitive on another device, compiled; None where it is not to be compiled.

    There is no size below which the host would be faster: the elements are not there.
    """
    if OBSERVERS or not settings.compiler or not COMPILE:
        return None
    if primitive.name == "dot":
        arrays, params = product_of_sources(arrays, params)
    compute = _shown_stretch(primitive, arrays, params) or _exchanged_axes(
        primitive, arrays, params
    )
    if compute is not None:
        _remember_computing(primitive, arrays, params, compute)
        return wrap(compute(arrays)[0])
    run, numbers = _find_placed(primitive, arrays, params)
    if run is None:
        numbers, forms = (), forms_of(primitive, params)
        run = None if forms is None else forms.find(tuple(map(wrap, arrays)), {})[0]
    if run is None:
        return None
    given = [*arrays, *numbers]
    result = run([*map(wrap, given)])
    if hasattr(run, "compute") and hasattr(run, "quick_compute"):
        compute = run.quick_compute(given) or run.compute
        if numbers:
            compute = _beside_numbers(compute, numbers)
        _remember_computing(primitive, arrays, params, compute)
    return result


def _remember_computing(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any], compute: Compute
) -> None:
    """Let later calls on arrays of the same kinds find what computes them."""
    key = key_elsewhere(primitive, arrays, params)
    if key is not None:
        if len(_computing) >= FORMS:
            _computing.clear()
        _computing[key] = compute


def _beside_numbers(compute: Compute, numbers: Sequence[Any]) -> Compute:
    """What computes a call whose last operands are these numbers."""
    return lambda arrays: compute([*arrays, *numbers])


def _shown_stretch(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]
) -> Compute | None:
    """What gives a movement whose elements lie one after the other, without a launch.

    None for any other. There is no code for it either, whatever its places are.
    """
    view = primitive.kind.view if type(primitive.kind) is Movement else None
    if view is None or not is_native() or getattr(arrays[0], "kind", None) is None:
        return None
    if not hasattr(arrays[0], "part_at"):
        return None
    stretch = arrays[0].kind.stretch(view(arrays[0].kind.layout, **params))
    return None if stretch is None else lambda arrays: (arrays[0].part_at(*stretch),)


def _exchanged_axes(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]
) -> Compute | None:
    """What gives matrices with their axes exchanged, without a launch; None for other calls.

    They are copied when something else than a product reads them.
    """
    if primitive.name != "transpose" or not hasattr(arrays[0], "exchange_axes") or not is_native():
        return None
    order = tuple(params["order"])
    *front, row, column = range(max(2, len(order)))
    if order != (*front, column, row):
        return None
    forms = forms_of(primitive, params)
    run: Any = None if forms is None else forms.find((wrap(arrays[0]),), {})[0]
    if not hasattr(run, "compute") or not hasattr(run, "quick_compute"):
        return None

    def copy(source: Any) -> Any:
        return (run.quick_compute([source]) or run.compute)([source])[0]

    EXCHANGED[:] = [True]
    return lambda arrays: (arrays[0].exchange_axes(order, copy),)


EXCHANGED: list[bool] = []
"""Not empty once there was an array with its axes exchanged and not copied."""


def _is_turned(array: Any) -> bool:
    return getattr(array, "turned_from", None) is not None


def from_sources(
    product: Callable[[Any, Any], Tensor],
) -> Callable[[Any, Any], Tensor]:
    """A unit that is a product of two tensors, which goes to its primitive for exchanged axes.

    A program is found by kinds, which do not tell them apart, and would be given a copy.
    """
    plain, recall = product.__wrapped__, RECALLS[product]  # type: ignore[attr-defined]

    def is_exchanged(operands: Sequence[Any]) -> bool:
        return (
            not traces.stack
            and AUTOCAST.get() is None
            and any(type(each) is Tensor and _is_turned(each._value) for each in operands)
        )

    @wraps(plain)
    def function(x1: Any, x2: Any, /) -> Tensor:
        if EXCHANGED and is_exchanged((x1, x2)):
            found: Tensor = plain(x1, x2)
            return found
        return product(x1, x2)

    function.weights = product.weights  # type: ignore[attr-defined]
    RECALLS[function] = Recall(
        lambda args, kwargs: (
            None if EXCHANGED and is_exchanged(args) else recall.find(args, kwargs)
        ),
        recall.native,  # which knows arrays of the host alone
    )
    return function


def product_of_sources(
    arrays: Sequence[Any], params: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Operands of a product as they lie in memory, and its axes there.

    An operand of several axes that are not summed stays: their order is that of the result.
    """
    if not EXCHANGED or not any(map(_is_turned, arrays)):
        return arrays, params
    stored, axes = [*arrays], {name: [*params[name]] for name in ("contract", "batch")}
    for side, array in enumerate(arrays):
        taken = len(params["contract"][side]) + len(params["batch"][side])
        turned = getattr(array, "turned_from", None)
        while turned is not None and len(array.shape) - taken <= 1:
            stored[side], order, _ = turned
            for pair in axes.values():
                pair[side] = tuple([order[axis] for axis in pair[side]])
            turned = stored[side].turned_from
    return stored, {name: tuple(pair) for name, pair in axes.items()}


@frozen
class PlacedCall:
    """A call of a primitive with its places as data: one program computes it for all places.

    function: of the operands, a list of the places as tensors without axes, and the options.
    """

    function: Callable[..., Tensor]
    places: tuple[int, ...]
    options: tuple[Any, ...]


PLACED: dict[str, Callable[..., PlacedCall | None]] = {}
"""For primitives with places among their parameters: what such a call is, given shapes of operands
and the parameters; None where nothing in it is a place."""
_placed_forms: dict[Callable[..., Tensor], Forms] = {}


def _find_placed(
    primitive: Primitive, arrays: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """What runs a call with its places as data, and their arrays; None where that is not done."""
    read = PLACED.get(primitive.name)
    call = None if read is None else read(*[array.shape for array in arrays], **params)
    if call is None:
        return None, ()
    device = arrays[0].device
    places = [number_array(place, _PLACE, device) for place in call.places]
    forms = _placed_forms.get(call.function)
    if forms is None:
        forms = _placed_forms.setdefault(call.function, Forms(call.function))
    return forms.find((*map(wrap, arrays), [*map(wrap, places)], *call.options), {})[0], places


_PLACE = np.dtype("int64")


def run_known_elsewhere(
    primitive: Primitive, operands: Sequence[Tensor], params: dict[str, Any]
) -> Any:
    """The result of a primitive that was computed on the same device before; None for any other.

    What was computed before needs no check of types, devices and parameters.
    """
    arrays: Sequence[Any] = [operand._value for operand in operands]
    if primitive.name == "dot":
        arrays, params = product_of_sources(arrays, params)
    key = key_elsewhere(primitive, arrays, params)
    compute = None if key is None else _computing.get(key)
    if compute is None or OBSERVERS or not is_native():
        return None
    results = compute(arrays)
    return tuple(map(wrap, results)) if primitive.multiple else wrap(results[0])


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


_computing: dict[Hashable, Compute] = {}
"""What computes primitives on other devices, by all that their programs depend on."""
_PLAIN_BYTES = 2
"""The version of Python's own bytes in which equal values have equal bytes."""


ELSEWHERE.append(run_elsewhere)
KNOWN_ELSEWHERE.append(run_known_elsewhere)


Computed = tuple[Any, Sequence[Any]]
"""The array of a result, and those of the operands."""


Numbers = Sequence[tuple[int, Any]]
"""Places of operands that are numbers, and their arrays."""
KnownCalls = dict[Hashable, tuple[Compute, Numbers]]
"""By the kinds of arrays, and numbers: what computes a call, and the arrays of numbers."""


def elementwise_elsewhere(
    primitive: Primitive,
) -> tuple[Callable[[Sequence[Any]], Computed | None], KnownCalls]:
    """What computes an element-wise primitive of arrays on another device.

    Operands may be Python floats beside an array of inexact numbers. None where the
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
        run, numbers = found
        if numbers:
            operands = with_numbers(operands, numbers)
        return run(operands)[0], operands

    def compute_first(operands: Sequence[Any], key: Hashable) -> Computed | None:
        found = find(operands)
        if found is None:
            return None
        run, numbers = found
        arrays = with_numbers(operands, numbers) if numbers else operands
        result = run.compute(arrays)[0]
        if len(known) >= FORMS:
            known.clear()
        known[key] = run.quick_compute(arrays) or run.compute, numbers
        return result, arrays

    return compute, known


def with_numbers(operands: Sequence[Any], numbers: Numbers) -> list[Any]:
    """The arrays of a call, those of numbers among them."""
    arrays = [*operands]
    for place, array in numbers:
        arrays[place] = array
    return arrays


def _finder(primitive: Primitive) -> Callable[[Sequence[Any]], tuple[Any, Numbers] | None]:
    """What finds the program of a call: what runs it, and the arrays of numbers beside arrays."""
    forms = Forms(lambda *operands: bind(primitive, *operands))

    def find(operands: Sequence[Any]) -> tuple[Any, Numbers] | None:
        arrays = [x for x in operands if type(x) is not float]
        if not arrays or any(x.kind is None for x in arrays):
            return None
        place, numbers = arrays[0].device, list[tuple[int, Any]]()
        if any(x.device is not place for x in arrays) or not can_compute_on(place):
            return None
        if len(arrays) < len(operands):
            inexact = [x.dtype for x in arrays if BY_NUMPY[x.dtype].is_inexact]
            if not inexact or any(x != x for x in operands if type(x) is float):
                return None
            with np.errstate(all="ignore"):
                numbers = [
                    (position, move(np.array(x, inexact[0]), place))
                    for position, x in enumerate(operands)
                    if type(x) is float
                ]
        given = with_numbers(operands, numbers) if numbers else operands
        run = forms.find(tuple([wrap(x) for x in given]), {})[0]
        return (run, numbers) if hasattr(run, "compute") else None

    return find


def one_program(
    forms: Forms, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[list[Tensor]], Any] | None:
    """What runs a function of tensors on another device as one program; None where it cannot.

    Its result is marked as a part of its operand where the function's own is; see parts.py.
    """
    run: Any = forms.find(args, kwargs)[0]
    if not hasattr(run, "part"):
        return None
    part: tuple[int, Any] | None = run.part
    if part is None:
        return None if run.gives_operand else run
    place, how = part

    def run_as_part(operands: list[Tensor]) -> Tensor:
        return as_part(run(operands), operands[place], how)

    return run_as_part


def device_unit(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Mark a function of tensors that is one program on other devices, and a unit on the host.

    A call that looks at values, as a trace finds out, is as written on every device, and so is one
    of a device's tensors and values of the host: these may be others each time, and can be checked
    at once.
    """
    forms, plain, on_host = Forms(f), beside_operands(f), unit(f)

    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        if len(CONCRETE) == 1:
            return on_host(*args, **kwargs)
        if traces.stack or OBSERVERS or traces.keeper is not None:
            return plain(*args, **kwargs)
        if _are_on_host(args) and _are_on_host(kwargs.values()):
            return on_host(*args, **kwargs)
        if not _are_elsewhere(args) or (kwargs and not _are_elsewhere(kwargs.values(), least=0)):
            return plain(*args, **kwargs)
        run, handles = forms.find(args, kwargs)
        if run is None or getattr(run, "gives_operand", True):
            return plain(*args, **kwargs)
        result: Tensor = run(handles)
        return result

    return function


def _are_on_host(values: Iterable[Any]) -> bool:
    """Whether no tensor among some values is on another device than the host."""
    return all(type(x) is not Tensor or type(x._value) is HostArray for x in values)


def _are_elsewhere(values: Iterable[Any], least: int = 1) -> bool:
    """Whether all tensors among some values are on other devices than the host, and enough of them.

    Lists and arrays are values of the host.
    """
    count = 0
    for value in values:
        kind = type(value)
        if kind is Tensor:
            if type(value._value) is HostArray:
                return False
            count += 1
        elif kind is list or kind is HostArray:
            return False
    return count >= least
