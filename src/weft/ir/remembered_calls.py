"""Functions that are a few primitives: which ones, is remembered for the types that were given.

To find out what `sum(x, axis=1)` applies takes longer than to apply it to a small array: operands
are converted, axes are counted and checked, a dtype is chosen. All that depends on types and
options alone. The second call with the same ones is traced; from then on the primitives are applied
one after the other, as the function itself would, with the same results and the same tape.
On other devices than the host, where each would be a launch, the function is one program from its
first call on.

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
from weft.core.wrong_calls import RECALLS
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import plain_key
from weft.ir.dispatch import OBSERVERS, evaluate
from weft.ir.eager import Forms, is_native
from weft.ir.eager_primitives import Compute, known_computation
from weft.ir.elsewhere import one_program
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


@frozen
class Application:
    """A primitive that is applied to operands, tensors of the call, or earlier results."""

    primitive: Primitive
    params: dict[str, Any]
    places: tuple[int, ...]
    has_derivative: bool
    known: list[Compute | None] = field(default_factory=list)
    """What computes it with less work, or None where nothing does. Empty at first."""

    def __call__(self, given: Sequence[Tensor]) -> Tensor:
        """The result for tensors of the kinds that were remembered, with its place on the tape."""
        arrays = [x._value for x in given]
        known = self.known[0] if self.known else None
        made = known(arrays) if known is not None and is_native() else None
        result = self._compute(arrays) if made is None else wrap(made[0])
        if self.has_derivative and grad_mode.enabled:
            for x in given:
                if x._node is not None:
                    record(self.primitive, self.params, tuple(given), result)
                    break
        if self.primitive.part is not None:
            as_part(result, given[0], (self.primitive.part, self.params))
        return result

    def _compute(self, arrays: list[Any]) -> Tensor:
        result: Tensor = evaluate(self.primitive, arrays, self.params)
        if self.known or not arrays:
            return result
        if all(type(array) is HostArray for array in arrays):
            self.known[:] = [known_computation(self.primitive, arrays, self.params)]
        return result


@frozen
class Remembered:
    """What a call applies: to its tensors, then constants, then results in order."""

    constants: tuple[Tensor, ...]
    applications: tuple[Application, ...]
    result: int
    is_single: bool
    """Whether it is one primitive of the tensors as they are given."""

    def __call__(self, operands: list[Tensor]) -> Tensor:
        """The result for the tensors of a call."""
        if self.is_single:
            return self.applications[0](operands)
        values = [*operands, *self.constants]
        for each in self.applications:
            values.append(each([values[place] for place in each.places]))
        return values[self.result]


Applied = Callable[[list[Tensor]], Tensor]
"""What is computed of the tensors of a call."""


def remember_host_calls(f: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Mark a function as `remember_calls` does that is as written on other devices than the host.

    So are those whose options are places, which change from call to call: their primitives have one
    program for all places there (`PLACED` in elsewhere.py).
    """
    return remember_calls(f, _as_written_elsewhere)


def _as_written_elsewhere(forms: Forms, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return None


def remember_calls(
    f: Callable[Parameters, Tensor], find_elsewhere: Callable[..., Applied | None] = one_program
) -> Callable[Parameters, Tensor]:
    """Mark a function that applies a few primitives, by the types of its tensors and its options.

    It must call no unit (`weft.ir.eager`), which runs as a whole. A call that looks at values, as a
    trace finds out, is not remembered. On other devices than the host it is one program.
    """
    known: dict[Hashable, Applied | None] = {}
    seen: set[Hashable] = set()
    forms = Forms(f)

    def apply_known(key: Hashable | None, operands: list[Tensor]) -> Tensor | None:
        found = None if key is None else known.get(key)
        if found is None or (type(found) is not Remembered and not is_native()):
            return None
        return found(operands)

    def recall(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        return apply_known(*plain_key(args, kwargs)) if _may_be_known() else None

    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        if not _may_be_known():
            return f(*args, **kwargs)
        key, operands = plain_key(args, kwargs)
        result = apply_known(key, operands)
        return call_first(key, operands, args, kwargs) if result is None else result

    def call_first(
        key: Hashable | None, operands: list[Tensor], args: Any, kwargs: dict[str, Any]
    ) -> Tensor:
        if key is None or key in known or (len(operands) > 1 and not _on_one_device(operands)):
            return f(*args, **kwargs)
        if len(known) >= MOST_CALLS:
            seen.clear()
            known.clear()
        if operands and type(operands[0]._value) is not HostArray:
            if is_native():
                known[key] = find_elsewhere(forms, args, kwargs)
            applied = known.get(key)
            return f(*args, **kwargs) if applied is None else applied(operands)
        result = f(*args, **kwargs)
        if key in seen:
            known[key] = _trace_call(f, args, kwargs, operands)
        if len(seen) >= MOST_CALLS:
            seen.clear()
        seen.add(key)
        return result

    RECALLS[function] = recall
    return function


def _may_be_known() -> bool:
    """Whether calls are made as usual: nobody traces or watches them, or asks for other dtypes."""
    is_seen = traces.stack or OBSERVERS or traces.keeper is not None
    return not is_seen and AUTOCAST.get() is None


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
    is_single = len(applications) == 1 and given == tuple(range(len(graph.inputs)))
    return Remembered(tuple(constants), tuple(applications), places[output], is_single)


def _is_replayed(node: Any) -> bool:
    primitive = node.primitive
    is_plain = not primitive.multiple and not isinstance(primitive.kind, Collective | Control)
    return is_plain and is_pure(node) and bool(node.operands)
