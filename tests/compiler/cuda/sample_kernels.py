"""The kernels of all primitives' samples, as the compiler lowers them, and values for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from weft.compiler.lowering.groups import Lowered
from weft.compiler.plan.planning import WrittenKernels, plan_program
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.target import CPU
from weft.core.shapes import substitute
from weft.core.types import TensorType
from weft.ir.dispatch import bind
from weft.ir.graph import Literal, Variable
from weft.ir.loops import Kernel
from weft.ir.primitive import PRIMITIVES
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import trace

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SampleProgram:
    """The kernels of one sample, in the order that they run, its operands and symbols' sizes."""

    primitive: str
    number: int
    program: ProgramPlan
    operands: tuple[Array, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"sample {self.number} of {self.primitive}"


def program_of(function: Callable[..., Any], types: Sequence[TensorType]) -> ProgramPlan:
    """A function's program, written but not compiled."""

    def call(*given: Tensor) -> list[Tensor]:
        results = function(*given)
        return list(results) if isinstance(results, tuple) else [results]

    return plan_program(trace(call, list(types)).graph, CPU, (), WrittenKernels())


@cache
def sample_programs() -> list[SampleProgram]:
    """The programs of all samples that lower to kernels."""
    found = []
    for name, primitive in sorted(PRIMITIVES.items()):
        for number, sample in enumerate(primitive.samples()):
            types = [wrap(np.asarray(operand)).type for operand in sample.operands]
            program = program_of(partial(bind, primitive, **sample.params), types)
            if program.every_lowered:
                operands = tuple(np.asarray(wrap(np.asarray(x)).numpy()) for x in sample.operands)
                found.append(SampleProgram(name, number, program, operands))
    return found


@cache
def sample_kernels() -> dict[str, tuple[str, Kernel]]:
    """The different kernels of all samples by digest, each with the name of its first sample."""
    found: dict[str, tuple[str, Kernel]] = {}
    for each in sample_programs():
        for lowered in each.program.every_lowered:
            digest = lowered.kernel.digest
            found.setdefault(digest, (str(each), replace(lowered.kernel, name=digest)))
    return found


class Values:
    """Arrays of a program's values: its operands, what kernels have written, and random numbers."""

    def __init__(self, sample: SampleProgram) -> None:
        self._program = sample.program
        inputs = sample.program.graph.inputs
        self._known: dict[Any, Array] = dict(zip(inputs, sample.operands, strict=True))
        self._sizes = dict(sample.sizes)
        self._random = np.random.default_rng(len(sample.primitive) + sample.number)

    def arrays(self, lowered: Lowered) -> list[Array]:
        """Flat arrays for the buffers of a kernel."""
        copied = getattr(lowered, "copied", None)
        if copied is not None:
            self._known[self._program.root(copied[0])] = self._array(copied[1]).copy()
        return [np.ascontiguousarray(self._array(value)).reshape(-1) for value in lowered.values]

    def write(self, lowered: Lowered, arrays: list[Array]) -> None:
        """Keep what a kernel has written."""
        for value, array in zip(lowered.values, arrays, strict=True):
            if isinstance(value, Variable):
                self._known[self._program.root(value)] = array

    def _array(self, value: Variable | Literal) -> Array:
        if isinstance(value, Literal):
            return np.asarray(value.value)
        root = self._program.root(value)
        if isinstance(root, Literal):
            return np.asarray(root.value)
        if root not in self._known:
            self._known[root] = self._drawn(value)
        return self._known[root]

    def _drawn(self, value: Variable) -> Array:
        dtype = value.type.dtype
        shape = [substitute(dim, self._sizes) for dim in value.type.shape]
        count = int(np.prod(np.array(shape, np.int64), dtype=np.int64))
        if dtype.is_floating:
            return self._random.normal(size=count).astype(dtype.numpy)
        return np.zeros(count, dtype.numpy)


def runs() -> Iterator[tuple[SampleProgram, Lowered]]:
    """Every kernel of every sample."""
    for sample in sample_programs():
        for lowered in sample.program.every_lowered:
            yield sample, lowered
