"""Functions that run as one compiled unit where they are called eagerly; the policy is in ir/eager.

>>> import weft as wf
>>> run = compile_unit(wf.sin, (wf.zeros(3),), {})
>>> run([wf.zeros(3)]).tolist()
[0.0, 0.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from inspect import unwrap
from itertools import count
from operator import attrgetter
from typing import Any

from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.jit import Jit
from weft.compiler.function.stretches import stretch_of
from weft.compiler.function.taped import Taped, run_kept, unit_executable
from weft.compiler.graph_passes.user_rules import rewrites
from weft.compiler.targets.target import Executable
from weft.core.arrays import HostArray
from weft.ir.dispatch import apply
from weft.ir.eager import Declined, Orders
from weft.ir.eager_primitives import contiguous_array
from weft.ir.reverse import recording
from weft.ir.tape import Leaf
from weft.ir.tensor import Tensor, about_to_write, grad_mode, traces, wrap
from weft.ops.control import Marks
from weft.ops.control_call import call_graph
from weft.ops.movement import transpose
from weft.ops.movement_backs import inverse

Run = Callable[[Sequence[Tensor]], Any]
Quick = Callable[[Sequence[Any]], Sequence[Any] | None]
"""Computes the outputs of a program of arrays; None where that takes more than little work."""
value_of = attrgetter("_value")
OWN_SIZES = 4
"""How many sizes of its arguments a unit has programs of its own for, before there is one for all.

A program for all sizes may round otherwise than one for a single size. Batches for training and for
judging, and the last, short ones of both, are four: their bits then do not depend on which was seen
first, so that a run that is resumed has the bits of one that was not.
"""


@lru_cache(maxsize=1024)
def _compilations(
    function: Callable[..., Any], orders: tuple[tuple[int, tuple[int, ...]], ...] = ()
) -> Jit:
    """What a function was compiled to, for any sizes, given tensors with axes in these orders."""
    own_sizes = getattr(function, "own_sizes", OWN_SIZES)
    return Jit(_of_stored(function, dict(orders)) if orders else function, own_sizes=own_sizes)


def _of_stored(function: Callable[..., Any], orders: Orders) -> Callable[..., Any]:
    """The function of tensors with their axes in the order of memory, which it puts in their own.

    Where axes only lie in another order, nothing is copied: a program reads them as they are.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        places = count()

        def in_own_order(value: Any) -> Any:
            if isinstance(value, Tensor):
                order = orders.get(next(places))
                return value if order is None else apply(transpose, value, order=inverse(order))
            return type(value)(map(in_own_order, value)) if type(value) in (tuple, list) else value

        return function(
            *map(in_own_order, args),
            **{name: in_own_order(value) for name, value in kwargs.items()},
        )

    return call


class _Operands:
    """The tensors of a call as tensors of their own; nothing of it refers to itself.

    What did would hold them until garbage is collected.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self.fresh: list[Tensor] = []
        self.exact: list[Any] = []
        """Places and shapes of those that programs are for one size of: weights, and leaves."""

    def rewrap(self, value: Any, is_weight: bool) -> Any:
        """The value with tensors of its own."""
        if isinstance(value, Tensor):
            if is_weight or type(value._node) is Leaf:
                self.exact.append((len(self.fresh), value.shape))
            order = self._orders.get(len(self.fresh))
            array = value._value if order is None else value._value.transpose(order)
            self.fresh.append(wrap(array))
            return self.fresh[-1]
        if type(value) in (tuple, list):
            return type(value)([self.rewrap(each, is_weight) for each in value])
        return value


def compile_unit(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    weights: Sequence[str] = (),
    orders: Orders | None = None,
) -> Run | None:
    """What runs calls of a function, given the tensors of their arguments in order.

    None where it cannot be compiled: it looks at values, writes to tensors from elsewhere, or is
    called wrongly, and the error of the call by reference then names the user's line.
    weights: see `unit`. orders: of tensors, by place, whose axes lie in memory in another order;
    what runs a call is given them in that one.
    """
    orders = orders or {}
    operands = _Operands(orders)
    names = unwrap(function).__code__.co_varnames
    given = tuple(
        [
            operands.rewrap(x, place < len(names) and names[place] in weights)
            for place, x in enumerate(args)
        ]
    )
    named = {name: operands.rewrap(value, name in weights) for name, value in kwargs.items()}
    compilations = _compilations(function, tuple(orders.items()))
    try:
        with recording(False):
            call = compilations._read(given, named)
            call.kind = call.kind, *operands.exact
            call.distinguish(frozenset())
            found = compilations._find(call)
    except Exception:
        return None
    # The trace has no tape, so that all calls share it; a call that needs one says so when it runs.
    found.recording = replace(found.recording, differentiable=True)
    sources = [write.source for write in found.recording.writes]
    if any(source.gradient or source.handle is not None for source in sources):
        return None
    if not found.is_silent:
        return None
    if compilations.values_outside(given, named) and not sources:
        return partial(_run_anew, compilations, given, named)
    fresh = operands.fresh
    places = [[*map(id, fresh)].index(id(handle)) for handle in call.handles]
    if found.places is not None and not sources:
        return UnitCall(found, [places[place] for place in found.places], len(fresh))
    written = [places[source.argument] for source in sources if source.argument is not None]
    return _run_checked(found, places, written)


class UnitCall:
    """Runs a function that reads its arguments and nothing else, and writes nothing."""

    __slots__ = ("_found", "_in_order", "_is_quick", "_places", "_position", "_program", "_quick",
                 "_quick_forward", "gives_operand")  # fmt: skip

    def __init__(self, found: Compiled, places: list[int], count: int) -> None:
        self._found, self._places = found, places
        self._in_order = places == [*range(count)]
        """Whether the program takes all tensors as they are given."""
        self._program: Executable | None = None
        self._quick: Quick | None = None
        """What runs a program of one result with little work, or declines; see `quick_compute`."""
        self._is_quick: bool | None = None
        """Whether there is such a way; None before the first run."""
        self._position: Any = found.result
        graph = found.recording.graph
        self.gives_operand = (
            found.result is not None and graph.outputs[found.result] in graph.inputs
        )
        """Whether the result is one of the tensors as it is given."""
        self._quick_forward: dict[Marks, tuple[Taped, Quick]] = {}
        """The same with a place on the tape, by which tensors have one."""

    def __call__(self, handles: Sequence[Tensor]) -> Any:
        """The result for the tensors of a call's arguments."""
        quick = self._quick
        if (quick is not None or self._quick_forward) and traces.keeper is None and not rewrites():
            for tensor in handles:
                if tensor._node is not None and grad_mode.enabled:
                    recorded = self._run_recorded(handles)
                    if recorded is not None:
                        return recorded
                    break
            else:
                made = None if quick is None else quick([*map(value_of, handles)])
                if made is not None:
                    return wrap(made[self._position])
        inputs = handles if self._in_order else [handles[place] for place in self._places]
        arrays, is_recorded = [], False
        for tensor in inputs:
            array = tensor._value
            is_ready = type(array) is HostArray and array.flags.c_contiguous
            arrays.append(array if is_ready else contiguous_array(array))
            is_recorded = is_recorded or tensor._node is not None
        found = self._found
        if rewrites():
            outputs = list(call_graph(found.recording.graph, *inputs))
        elif is_recorded and grad_mode.enabled:
            taped = found.taped_for(inputs)
            outputs = taped(inputs, arrays)
            self._remember_forward(taped, inputs, arrays)
        else:
            made = self._run_first(arrays)
            if found.result is not None:
                return wrap(made[found.result])
            outputs = [wrap(array) for array in made]
        result = found.result
        return outputs[result] if result is not None else found.recording.rebuild(outputs)

    def _run_first(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The outputs, with no place on a tape; later calls are quick where there is a way."""
        graph = self._found.recording.graph
        if self._is_quick is None and traces.keeper is None and self._position is not None:
            self._quick = stretch_of(graph, arrays) if self._in_order else None
            stretch = None if self._quick is None else self._quick(arrays)
            if stretch is not None:
                return stretch
        if self._program is None:
            self._program = unit_executable(graph, self._found.target)
        outputs = run_kept(graph, self._program, arrays)
        if self._is_quick is None and self._position is not None:
            self._quick = self.quick_compute(arrays)
            self._is_quick = self._quick is not None
        return outputs

    def _remember_forward(
        self, taped: Taped, inputs: Sequence[Tensor], arrays: Sequence[Any]
    ) -> None:
        """Let later calls with the same tensors on the tape be quick, where a device has a way."""
        if self._position is None or not self._in_order or type(arrays[0]) is HostArray:
            return
        quick = stretch_of(self._found.recording.graph, arrays) if taped.saves_nothing else None
        quick = quick or taped.quick_forward(arrays)
        if quick is not None:
            self._quick_forward[tuple([tensor._node is not None for tensor in inputs])] = (
                taped,
                quick,
            )

    def _run_recorded(self, handles: Sequence[Tensor]) -> Tensor | None:
        """The result on a device, with one node of the tape behind it; None for no quick way."""
        known = self._quick_forward.get(tuple([tensor._node is not None for tensor in handles]))
        if known is None:
            return None
        taped, quick = known
        arrays = [*map(value_of, handles)]
        outputs = quick(arrays)
        if outputs is None:
            return None
        results = [*map(wrap, outputs[: taped.count])]
        taped.attach(handles, arrays, results, outputs)
        result: Tensor = results[self._position]
        return result

    @property
    def part(self) -> tuple[int, Any] | None:
        """Which tensor the result is a part of, and how, as parts.py has it; None for no such."""
        graph, result = self._found.recording.graph, self._found.result
        if result is None or self.gives_operand:
            return None
        makers = {each: node for node in graph.nodes for each in node.results}
        atom, steps = graph.outputs[result], list[Any]()
        while atom in makers and makers[atom].primitive.part is not None:
            steps.append((makers[atom].primitive.part, makers[atom].params))
            atom = makers[atom].operands[0]
        if atom not in graph.inputs:
            return None
        how = steps[0] if len(steps) == 1 else None
        return self._places[graph.inputs.index(atom)], how

    def compute_known(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        """The outputs for arrays of the host, with little work; None where it takes more."""
        quick = self._quick
        return None if quick is None or rewrites() else quick(arrays)

    def compute(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The outputs for the arrays of a call's tensors, with no place on a tape."""
        if self._program is None:
            self._program = unit_executable(self._found.recording.graph, self._found.target)
        return self._program.run([arrays[place] for place in self._places])

    def quick_compute(self, arrays: Sequence[Any]) -> Quick | None:
        """What does the same for arrays of these kinds with less work, once it was done for them.

        None where the program knows no such way.
        """
        if not self._in_order:
            return None
        stretch = stretch_of(self._found.recording.graph, arrays)
        find = getattr(self._program, "quick_call", None)
        found: Quick | None = stretch or (None if find is None else find(arrays))
        return found

    def native_run(self, arrays: Sequence[Any]) -> Any:
        """The program as one native function of arrays of these kinds, with one result, or None.

        It was run for them before.
        """
        find = getattr(self._program, "native_run", None)
        is_alone = self._position == 0 and len(self._found.recording.graph.outputs) == 1
        return find(arrays) if find is not None and is_alone and self._in_order else None

    def attach(self, handles: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
        """Give results that were found otherwise their place on the tape; False where it cannot."""
        inputs = [handles[place] for place in self._places]
        taped = self._found.taped_for(inputs)
        outputs = [each.position for each in self._found.recording.results]
        if rewrites() or not taped.saves_nothing or outputs != [*range(len(results))]:
            return False
        arrays = [tensor._value for tensor in inputs]
        taped.attach(inputs, arrays, results, [result._value for result in results])
        return True


def _run_anew(
    compilations: Jit, args: tuple[Any, ...], kwargs: dict[str, Any], handles: Sequence[Tensor]
) -> Any:
    """Run a function of the user's that reads what may be another thing at each call."""
    rest = iter(handles)

    def put(value: Any) -> Any:
        if isinstance(value, Tensor):
            return next(rest)
        return type(value)(map(put, value)) if type(value) in (tuple, list) else value

    return compilations(*map(put, args), **{name: put(each) for name, each in kwargs.items()})


def _run_checked(found: Compiled, places: Sequence[int], written: Sequence[int]) -> Run:
    """What runs a function that reads more than its arguments, or writes to some of them.

    It tells who watches what is written, and declines where something is not as it was when the
    function was traced, or to write to a part of a tensor, whose whole has to change.
    """

    def run(handles: Sequence[Tensor]) -> Any:
        if not found.fits() or any(handles[place]._origin is not None for place in written):
            raise Declined
        for place in written:
            about_to_write(handles[place])
        return found([handles[place] for place in places])

    return run
