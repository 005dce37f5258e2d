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
from weft.core.records import frozen
from weft.core.wrong_calls import RECALLS, Recall
from weft.ir.applications import Application, Sequential, traced_sequence
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import plain_key
from weft.ir.dispatch import OBSERVERS
from weft.ir.eager import Forms, is_native
from weft.ir.elsewhere import one_program
from weft.ir.tensor import Tensor, traces, wrap

Parameters = ParamSpec("Parameters")
MOST_CALLS = 1024
"""How many kinds of calls of one function are remembered before all are forgotten."""


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

    RECALLS[function] = Recall(recall)
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

    traced = traced_sequence(of_tensors, [x.type for x in operands])
    return None if traced is None else _call_of_sequence(traced[0], len(operands))


def _call_of_sequence(sequence: Sequential, count: int) -> Remembered | None:
    """A sequence of applications to so many tensors; None where it is none, or gives no result."""
    constants, applications = tuple(map(wrap, sequence.constants)), sequence.applications
    (result,) = sequence.results
    if result < count + len(constants) or not all(each.places for each in applications):
        return None
    is_single = len(applications) == 1 and applications[0].places == tuple(range(count))
    return Remembered(constants, applications, result, is_single)
