"""Running a function twice: what the first run keeps for the second, and what happens only once.

`FirstRun` sees every call that a function makes, and keeps the results that are wanted. `SecondRun`
gives them back in the same order, so that they are not computed again; it also gives the function
the state that it found the first time, and puts back what it writes.

>>> import weft as wf
>>> with FirstRun(lambda primitive, types: primitive == "dot") as first:
...     result = wf.exp(wf.eye(2) @ wf.eye(2))
>>> [(call.primitive, call.types) for call in first.kept]
[('dot', (f32[2, 2],))]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeVar

from weft.core.errors import GradientError
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.dispatch import apply, compute
from weft.ir.graph import Graph, Variable
from weft.ir.kinds import Collective
from weft.ir.lifting import Lifting, lift
from weft.ir.primitive import Primitive
from weft.ir.sizes import specialize
from weft.ir.tensor import Tensor, Trace, Traced, traces, wrap
from weft.ops.control_call import call
from weft.ops.debugging import without_short_paths
from weft.ops.identity import barrier

__all__ = ["FirstRun", "Kept", "SecondRun", "Wanted"]

Result = TypeVar("Result")
Wanted = Callable[[str, tuple[TensorType, ...]], bool]
"""Whether the results of a primitive, given by its name and their types, are kept."""


@frozen
class Kept:
    """The results of one call."""

    primitive: str
    types: tuple[TensorType, ...]
    values: tuple[Any, ...]


@frozen
class State:
    """A handle that is written to, and what it stood for before."""

    handle: weakref.ref[Tensor]
    value: Any
    node: Any

    @classmethod
    def of_handle(cls, handle: Tensor) -> State:
        """The present value and node of a handle."""
        return cls(weakref.ref(handle), handle._value, handle._node)

    def lift(self) -> None:
        """Let the handle, if it is still there, stand for that again, in this thread."""
        handle = self.handle()
        if handle is not None:
            lift(handle)
            handle._value, handle._node = self.value, self.node


class _Run:
    """Stands in `traces.keeper` while a function runs: sees its calls, and what it writes to.

    Calls that belong to a transform inside of the function are let through: what the transform
    makes of them is seen. The results of all others outlive it.
    """

    def __init__(self, wanted: Wanted, quick: bool) -> None:
        self.wanted, self.quick = wanted, quick
        self.states: dict[int, State] = {}
        self.outer: Any = None
        self.level = 0
        self._paths = ExitStack()

    def __enter__(self) -> Self:
        self.outer, self.level = traces.keeper, len(traces.stack)
        if not self.quick:
            self._paths.enter_context(without_short_paths())
        traces.keeper = self
        return self

    def __exit__(self, *raised: object) -> None:
        traces.keeper = self.outer
        self._paths.close()
        self.outer = None

    def adopt(self, handle: Tensor) -> None:
        """Remember the value of a handle that is about to be written to."""
        self.states.setdefault(id(handle), State.of_handle(handle))
        if self.outer is not None:
            self.outer.adopt(handle)

    def process_primitive(
        self,
        primitive: Primitive,
        operands: tuple[Tensor, ...],
        params: dict[str, Any],
        types: Any,
        trace: Trace | None,
    ) -> Any:
        """The result of a call of the function."""
        call = (primitive, operands, params, types, trace)
        if trace is not None and trace.level > self.level:
            return compute(*call)
        results = types if primitive.multiple else (types,)
        happens_once = primitive.impure and not isinstance(primitive.kind, Collective)
        if primitive is barrier or not (happens_once or self.wanted(primitive.name, results)):
            return self._process_outside(*call)
        return self.result(primitive, results, lambda: self._process_outside(*call))

    def unit(
        self, graph: Graph, arrays: Sequence[Any], compute: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        """What a compiled unit of the function gives for arrays; see compiler/function/taped.py.

        It is kept where the policy wants a result of any operation in it.
        """

        def compute_outside() -> Sequence[Any]:
            outer = self.outer
            return self._run_outside(
                compute if outer is None else lambda: outer.unit(graph, arrays, compute)
            )

        known = specialize(graph, [wrap(array).type for array in arrays])
        if not any(self.wanted(n.primitive.name, _types_of(n.results)) for n in known.nodes):
            return compute_outside()
        made = self.result(call, known.output_types, lambda: tuple(map(wrap, compute_outside())))
        return [tensor._value for tensor in made]

    def _process_outside(self, *call: Any) -> Any:
        """A call, processed as outside this run."""
        process = compute if self.outer is None else self.outer.process_primitive
        return self._run_outside(lambda: process(*call))

    def _run_outside(self, run: Callable[[], Result]) -> Result:
        """What something gives while this run does not look."""
        traces.keeper = self.outer
        try:
            return run()
        finally:
            traces.keeper = self

    def result(
        self, primitive: Primitive, types: tuple[TensorType, ...], computed: Callable[[], Any]
    ) -> Any:
        """The result of a call that is wanted."""
        raise NotImplementedError


class FirstRun(_Run):
    """Keeps the results that are wanted, and what handles stood for that are written to.

    `quick`: nothing is wanted of what the short paths of element-wise functions compute.
    """

    def __init__(self, wanted: Wanted, quick: bool = False) -> None:
        super().__init__(wanted, quick)
        self.kept: list[Kept] = []

    def result(
        self, primitive: Primitive, types: tuple[TensorType, ...], computed: Callable[[], Any]
    ) -> Any:
        """See `_Run`."""
        new_result = computed()
        tensors = new_result if primitive.multiple else (new_result,)
        values = tuple(tensor._value for tensor in tensors)
        self.kept.append(Kept(primitive.name, types, values))
        return new_result

    def forget(self, results: Sequence[Tensor]) -> None:
        """Let go what handles stood for that only the function knew, or that are its results."""
        own = {id(result) for result in results}
        states = self.states.items()
        self.states = {key: s for key, s in states if key not in own and s.handle() is not None}


class SecondRun(_Run):
    """Gives back what the first run kept, and leaves no trace in what is written to."""

    def __init__(self, first: FirstRun) -> None:
        super().__init__(first.wanted, first.quick)
        self.first = first
        self._kept: Iterator[Kept] = iter(first.kept)
        self._lifting = Lifting()

    def __enter__(self) -> Self:
        super().__enter__()
        self._lifting.__enter__()
        for state in self.first.states.values():
            state.lift()
        return self

    def __exit__(self, *raised: object) -> None:
        self._lifting.__exit__()
        super().__exit__(*raised)
        left = next(self._kept, None)
        if not any(raised) and left is not None:
            raise _replay_error(left, None)

    def adopt(self, handle: Tensor) -> None:
        """Lift the handle, so that nobody else sees what the second run writes to it."""
        lift(handle)

    def result(
        self, primitive: Primitive, types: tuple[TensorType, ...], computed: Callable[[], Any]
    ) -> Any:
        """See `_Run`."""
        kept = next(self._kept, None)
        if kept is None or (kept.primitive, kept.types) != (primitive.name, types):
            raise _replay_error(kept, Kept(primitive.name, types, ()))
        tensors = tuple(_fence_value(value) for value in kept.values)
        return tensors if primitive.multiple else tensors[0]


def _types_of(values: Sequence[Variable]) -> tuple[TensorType, ...]:
    return tuple([value.type for value in values])


def _fence_value(value: Any) -> Tensor:
    """A kept value behind a barrier, so that the second run is not merged with the first."""
    return apply(barrier, wrap(value)) if isinstance(value, Traced) else wrap(value)


def _replay_error(first: Kept | None, second: Kept | None) -> GradientError:
    return GradientError(
        "checkpoint",
        "the function did something else when it was run again",
        expected="a function of its arguments, of tensors, and of random numbers from wf.random",
        got={"first": _call_text(first), "then": _call_text(second)},
        fix="pass what changes from call to call as an argument",
    )


def _call_text(kept: Kept | None) -> str:
    return "no more calls" if kept is None else f"{kept.primitive} -> {kept.types}"
