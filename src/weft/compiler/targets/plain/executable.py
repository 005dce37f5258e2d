"""What runs a plan plainly: one launch after the other, in the memory that is planned for it.

Before a run the memory is filled with bytes that are NaN in every floating-point type, so that a
value that is read before it is written is seen in the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.compiler.plan.interpreting import NoSuchBranch, run_control
from weft.compiler.plan.launch import (
    Kind,
    Launch,
    Sizes,
    Value,
    bound_params,
    bytes_of,
    static_shape,
)
from weft.compiler.plan.program_plan import ProgramPlan, read_sizes
from weft.compiler.targets.target import Donation, Observer, Reuse, Span
from weft.core.errors import UnsupportedError
from weft.ir.graph import GraphNode, Literal
from weft.ir.loop_reference import run_reference
from weft.ir.loops import Kernel

Array = np.ndarray[Any, Any]
UNWRITTEN = 0xFF
"""What memory is filled with: NaN, in floating-point numbers of any width."""


OBSERVERS: list[Observer] = []
"""What is told of every run; see `watched_launches`."""


@contextmanager
def watched_launches(observe: Observer) -> Iterator[None]:
    """See `Target`: inside, every run is timed launch by launch."""
    OBSERVERS.append(observe)
    try:
        yield
    finally:
        OBSERVERS.remove(observe)


class PlainExecutable:
    """A plan, run by NumPy."""

    def __init__(self, plan: ProgramPlan) -> None:
        self.plan = plan

    @property
    def donations(self) -> Mapping[int, tuple[int, ...]]:
        """See `Executable`."""
        return self.plan.donations

    @property
    def settled_outputs(self) -> Collection[int]:
        """See `Executable`."""
        return self.plan.settled_outputs

    def run(
        self,
        arrays: Sequence[Array],
        donated: Sequence[Donation] = (),
        finished: list[Array] | None = None,
        reused: Sequence[Reuse] = (),
    ) -> list[Array]:
        """See `Executable`."""
        sizes, graph = read_sizes(self.plan.graph, arrays), self.plan.graph
        inputs = [_bytes(array) for array in arrays]
        written = [*[(output, arrays[place]) for output, place in donated], *reused]
        given = {graph.outputs[output]: array for output, array in written}
        run = _Run(self.plan, sizes, inputs, {v: _bytes(a) for v, a in given.items()})
        spans: list[Span] = []
        try:
            made = run.outputs(spans)
        finally:
            for observe in OBSERVERS:
                observe(self.plan, sizes, spans)
        outputs = [
            given[atom] if atom in given else _typed_array(data, atom, sizes)
            for atom, data in zip(graph.outputs, made, strict=True)
        ]
        if finished is not None:
            finished += outputs
        return outputs

    def recycle(self, array: Array) -> None:
        """See `Executable`: memory is asked of the system each time."""

    def share_memory(self) -> None:
        """See `Executable`; it keeps none."""

    def release(self) -> None:
        """See `Executable`: nothing is kept."""


class _Run:
    """The memory of one run of a plan, as bytes."""

    def __init__(
        self,
        plan: ProgramPlan,
        sizes: Sizes,
        inputs: Sequence[Array],
        given: Mapping[Value, Array] | None = None,
    ) -> None:
        self.plan, self.sizes = plan, sizes
        self.memory = plan.planner.plan_for(sizes)
        self.arena = np.full(self.memory.peak, UNWRITTEN, np.uint8)
        self.error = np.zeros(1, np.int32)
        self.held: dict[Value, Array] = dict(zip(plan.graph.inputs, inputs, strict=True))
        self.held |= given or {}
        self.held[plan.error] = self.error.view(np.uint8)

    def outputs(self, spans: list[Span]) -> list[Array]:
        """The bytes of the outputs, once all launches have run, each with its time."""
        for launch in self.plan.launches:
            start = perf_counter_ns()
            try:
                self.launch(launch)
            finally:
                spans.append((start, perf_counter_ns()))
        return [self.bytes_of(atom).copy() for atom in self.plan.graph.outputs]

    def bytes_of(self, value: Value) -> Array:
        """The bytes of a value, where the plan has put it."""
        root = self.plan.root(value)
        if root not in self.held:
            self.held[root] = self._place(root)
        return self.held[root]

    def _place(self, root: Value) -> Array:
        if isinstance(root, Literal):
            return _bytes(root.value).copy()
        size = bytes_of(root.type, self.sizes)
        offset = self.memory.offsets.get(str(self.plan.slots.get(root)))
        if offset is None:  # an output, or what only the stages of a row fusion know
            return np.full(size, UNWRITTEN, np.uint8)
        return self.arena[offset : offset + size]

    def launch(self, launch: Launch) -> None:
        """Run one launch, or those that it is made of."""
        for part in (*launch.stages, *launch.members):
            self.launch(part)
        if launch.stages or launch.members:
            return
        if launch.nested is not None:
            self._control(launch)
        elif launch.node is not None:
            self._reference(launch.node)
        elif launch.kind is Kind.COPY:
            self.bytes_of(launch.values[1])[:] = self.bytes_of(launch.values[0]).copy()
        elif isinstance(launch.kernel, Kernel):
            own = launch.values[: len(launch.kernel.buffers)]  # behind them is what it waits for
            buffers = [_flat(self.bytes_of(value), value) for value in own]
            numbers = launch.numbers(self.sizes)
            run_reference(launch.kernel, buffers, numbers, 0, launch.extent(self.sizes))
        else:
            raise UnsupportedError(
                "plain",
                f"the launch {launch.name} is a function of another target",
                expected="a plan that was made for the plain target",
                got={"launch": launch.name, "made for": self.plan.target.name},
                fix="plan_program(graph, PLAIN)",
            )
        if self.error[0]:
            assert launch.checked is not None
            self._reference(launch.checked)  # which says what is wrong
            raise RuntimeError(f"the kernel {launch.name} reported an error")

    def _reference(self, node: GraphNode) -> None:
        operands = [_typed_array(self.bytes_of(atom), atom, self.sizes) for atom in node.operands]
        params = bound_params(node, self.sizes)
        with np.errstate(all="ignore"):
            given = node.primitive.reference(*operands, **params)
        for result, array in zip(
            node.results, given if node.primitive.multiple else (given,), strict=True
        ):
            data = np.ascontiguousarray(array, result.type.dtype.numpy)
            self.bytes_of(result)[:] = _bytes(data)

    def _control(self, launch: Launch) -> None:
        assert launch.nested is not None
        form, node = launch.nested.form, launch.nested.node

        def run(number: int, inputs: list[Array]) -> list[Array]:
            return _Run(form.plans[number], self.sizes, inputs).outputs([])

        operands = [self.bytes_of(atom).copy() for atom in node.operands]
        try:
            results = run_control(form, operands, self.sizes, run)
        except NoSuchBranch:
            self._reference(node)  # which says what is wrong
            raise
        for result, data in zip(node.results, results, strict=True):
            self.bytes_of(result)[:] = data


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _flat(data: Array, value: Value) -> Array:
    return data.view(value.type.dtype.numpy)


def _typed_array(data: Array, value: Value, sizes: Sizes) -> Array:
    shape = static_shape(value.type.shape, sizes)
    return data.view(value.type.dtype.numpy).reshape(shape)
