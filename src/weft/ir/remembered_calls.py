"""Functions that are a few primitives: which ones, is remembered for the types that were given.

To find out what `sum(x, axis=1)` applies takes longer than to apply it to a small array: operands
are converted, axes are counted and checked, a dtype is chosen. All that depends on types and
options alone. The second call with the same ones is traced; from then on the primitives are applied
one after the other, as the function itself would, with the same results and the same tape.

>>> import weft as wf
>>> x = wf.tensor([[1.0, 2.0], [3.0, 4.0]])
>>> [wf.sum(x, axis=1).tolist() for _ in range(3)]
[[3.0, 7.0], [3.0, 7.0], [3.0, 7.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from weft.core.arrays import CONCRETE, HostArray
from weft.core.errors import WeftError
from weft.core.records import field, frozen
from weft.ir.autocast import AUTOCAST
from weft.ir.dispatch import OBSERVERS, evaluate
from weft.ir.eager import is_native
from weft.ir.elsewhere import Compute, known_compute
from weft.ir.graph import Graph, Literal
from weft.ir.kinds import Collective, Control
from weft.ir.parts import as_part
from weft.ir.primitive import Primitive
from weft.ir.tape import record
from weft.ir.tensor import Tensor, grad_mode, traces, wrap
from weft.ir.tracing import trace
from weft.ir.walking import is_pure

Parameters = ParamSpec("Parameters")
MOST_CALLS = 1024
"""How many kinds of calls of one function are remembered before all are forgotten."""
LONGEST = 8
"""Primitives of a function that is remembered, at most."""
DEEPEST = 8
"""How deep lists in the arguments of a call that is remembered may lie."""
_SIMPLE = frozenset([int, bool, str, type(None)])


@frozen
class Application:
    """A primitive that is applied to operands, tensors of the call, or earlier results."""

    primitive: Primitive
    params: dict[str, Any]
    places: tuple[int, ...]
    has_derivative: bool
    known: list[Compute] = field(default_factory=list)
    """What computes it on another device than the host, once it has been computed there."""

    def compute(self, arrays: list[Any]) -> Tensor:
        """The result for arrays of the kinds that were remembered."""
        if self.known and is_native():
            return wrap(self.known[0](arrays)[0])
        result: Tensor = evaluate(self.primitive, arrays, self.params)
        if arrays and type(arrays[0]) is not HostArray:
            found = known_compute(self.primitive, arrays, self.params)
            if found is not None:
                self.known[:] = [found]
        return result


@frozen
class Remembered:
    """What a call applies: to its tensors, then constants, then results in order."""

    constants: tuple[Tensor, ...]
    applications: tuple[Application, ...]
    result: int

    def __call__(self, operands: list[Tensor]) -> Tensor:
        """The result for the tensors of a call."""
        values = [*operands, *self.constants]
        for each in self.applications:
            primitive, params = each.primitive, each.params
            given = tuple([values[place] for place in each.places])
            result = each.compute([x._value for x in given])
            if each.has_derivative and grad_mode.enabled:
                for x in given:
                    if x._node is not None:
                        record(primitive, params, given, result)
                        break
            if primitive.part is not None:
                as_part(result, given[0], (primitive.part, params))
            values.append(result)
        return values[self.result]


def remember_calls(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Mark a function that applies a few primitives, by the types of its tensors and its options.

    It must call no unit (`weft.ir.eager`), which runs as a whole. A call that looks at values, as a
    trace finds out, is not remembered.
    """
    known: dict[Hashable, Remembered | None] = {}
    seen: set[Hashable] = set()

    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        if traces.stack or OBSERVERS or traces.keeper is not None:
            return f(*args, **kwargs)
        if AUTOCAST.get() is not None:
            return f(*args, **kwargs)
        parts: list[Any] = []
        operands: list[Tensor] = []
        is_plain = _read(args, parts, operands)
        if kwargs:
            parts.extend(kwargs)
            is_plain = is_plain and _read(kwargs.values(), parts, operands)
        if not is_plain or (len(operands) > 1 and not _on_one_device(operands)):
            return f(*args, **kwargs)
        key = tuple(parts)
        found = known.get(key)
        if found is not None:
            return found(operands)
        result = f(*args, **kwargs)
        if key in seen and key not in known:
            known[key] = _trace_call(f, args, kwargs, operands)
        if len(seen) >= MOST_CALLS:
            seen.clear()
            known.clear()
        seen.add(key)
        return result

    return function


def _read(values: Any, parts: list[Any], operands: list[Tensor], depth: int = 0) -> bool:
    """Add what a call depends on to its key, and its tensors; False where that makes no key."""
    if depth > DEEPEST:  # a list may hold itself
        return False
    for value in values:
        kind = type(value)
        if kind is Tensor:
            array = value._value
            operands.append(value)
            if type(array) is HostArray:
                parts += (array.dtype, array.shape)
            elif type(array) in CONCRETE and array.kind is not None:
                parts.append(array.kind)
            else:
                return False
        elif kind in _SIMPLE:
            parts += (kind, value)
        elif kind is tuple or kind is list:
            parts += (kind, len(value))
            if not _read(value, parts, operands, depth + 1):
                return False
        else:
            return False
    return True


def _on_one_device(operands: Sequence[Tensor]) -> bool:
    """Whether all tensors of a call are on one device; others are refused, or single numbers."""
    if len(CONCRETE) == 1:
        return True
    first = operands[0].device
    return all(operand.device is first for operand in operands)


def _trace_call(
    f: Callable[..., Tensor], args: Any, kwargs: Any, operands: Sequence[Tensor]
) -> Remembered | None:
    """What a call applies; None where that is too long, or cannot be told beforehand."""

    def of_tensors(*given: Tensor) -> list[Tensor]:
        rest = iter(given)

        def put(value: Any) -> Any:
            if type(value) is Tensor:
                return next(rest)
            return type(value)(map(put, value)) if type(value) in (tuple, list) else value

        return [f(*put(tuple(args)), **{name: put(value) for name, value in kwargs.items()})]

    try:
        closure = trace(of_tensors, [x.type for x in operands])
    except WeftError:  # it looks at values
        return None
    return None if closure.captured else _graph_applications(closure.graph)


def _graph_applications(graph: Graph) -> Remembered | None:
    """The nodes of a graph as applications; None where it is too long, or not plain."""
    is_short = 0 < len(graph.nodes) <= LONGEST
    if not is_short or not all(map(_is_replayed, graph.nodes)):
        return None
    places: dict[Any, int] = {variable: place for place, variable in enumerate(graph.inputs)}
    constants: list[Tensor] = []
    for node in graph.nodes:
        for atom in node.operands:
            if isinstance(atom, Literal) and id(atom) not in places:
                places[id(atom)] = len(graph.inputs) + len(constants)
                constants.append(wrap(atom.value))
    applications = []
    for node in graph.nodes:
        given = tuple([places[id(a) if isinstance(a, Literal) else a] for a in node.operands])
        is_inexact = node.results[0].type.dtype.is_inexact
        applications.append(Application(node.primitive, node.params, given, is_inexact))
        places[node.results[0]] = len(places)
    (output,) = graph.outputs
    if isinstance(output, Literal) or output in graph.inputs:
        return None
    return Remembered(tuple(constants), tuple(applications), places[output])


def _is_replayed(node: Any) -> bool:
    primitive = node.primitive
    is_plain = not primitive.multiple and not isinstance(primitive.kind, Collective | Control)
    return is_plain and is_pure(node) and bool(node.operands)
