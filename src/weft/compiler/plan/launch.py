"""Launches: what a plan is made of, as values that know no machine.

A launch is one unit of work that a target starts: a kernel of the loop language, a function that
the target knows by a symbol, a call of the reference, or launches inside it that run as one. It
says which values it touches and how large it is, for any sizes; where values lie, and which address
a symbol stands for, is the executable's.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.targets.cpu.target import CPU
>>> kinds = wf.spec("float32", (512, 512)), wf.spec("float32", (512, 512))
>>> node = wf.ir.trace(lambda a, b: a @ b, *kinds).nodes[0]
>>> [str(launch.kind) for launch in CPU.launches(node, Literal(np.zeros(1, np.int32))) or ()]
['pack', 'product']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from weft.compiler.fusion.grouping import Group, Single, Step
from weft.compiler.lowering.groups import Lowered
from weft.compiler.lowering.nodes import NodeKernel
from weft.core.dtypes import uint8
from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape, size, substitute
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode, Literal, Variable
from weft.ir.loops import Kernel
from weft.ir.sizes import resolve_graph

if TYPE_CHECKING:
    from weft.compiler.plan.control_flow import Nested
    from weft.compiler.plan.row_fusion import RowBlocks

Sizes = Mapping[str, int]
Value = Variable | Literal
Root = Callable[[Value], Value]
"""The value whose memory a value shares."""
Symbol = tuple[str, ...]
"""The name of a function that a target has: whose it is, and which."""


class Kind(StrEnum):
    """What a launch is."""

    LOOP = "loop"
    """A kernel of the loop language."""
    PRODUCT = "product"
    """A product of matrices."""
    VECTOR_PRODUCT = "vector product"
    """A product with a vector; each element of the result is a row."""
    CONVOLUTION = "convolution"
    PACK = "pack"
    """A copy of an operand in the order in which a product or a convolution reads it."""
    SUM = "sum"
    """Adds up partial results of the launch before it."""
    SORT = "sort"
    FACTORIZATION = "factorization"
    """A linear system or a factorisation, by a library of the target's."""
    TRANSFORM = "transform"
    """A Fourier transform along an axis, by a library of the target's."""
    COPY = "copy"
    """A copy that is nothing where the result has taken the operand's place."""
    LIBRARY = "library"
    """A function of a user's library."""
    COLLECTIVE = "collective"
    """A sum over processes, by the engine that joins them."""
    REFERENCE = "reference"
    """The primitive's reference, called back in Python."""
    CONTROL = "control"
    """A loop or a choice, which runs plans inside."""
    ROW_FUSION = "row fusion"
    """Launches that run one after the other for each block of rows."""
    GROUPED = "grouped"
    """Launches that do not wait for each other, run as one: horizontal fusion."""


@frozen(eq=False)
class Launch:
    """One launch of a plan: what it runs, the values it touches, and what depends on the sizes."""

    kind: Kind
    name: str
    kernel: Kernel | Symbol
    """What runs: a kernel that the target compiles, or a function that it has."""
    values: tuple[Value, ...]
    """Its buffers, in the order in which the kernel is given them."""
    writes: tuple[Variable, ...]
    numbers: Callable[[Sizes], list[int]]
    """What the kernel is given beside its buffers."""
    extent: Callable[[Sizes], int]
    """How many iterations there are, in any order."""
    grain: Callable[[Sizes], int]
    """How many iterations are worth being a chunk of their own."""
    node: GraphNode | None = None
    """The node that is called by reference, if it is."""
    checked: GraphNode | None = None
    """The node whose reference says what is wrong, if the kernel reports that something is."""
    is_sure: bool = False
    """Whether a launch before it has checked the same, so that it cannot fail."""
    nested: Nested | None = None
    """The plans that it runs, if it is a loop or a choice."""
    work: Callable[[Sizes], float] | None = None
    """How long it takes, in chunks of element operations; None: it is not grouped with others."""
    in_place: tuple[tuple[Variable, Variable], ...] = ()
    """Values it stores, and values it reads only where it then stores the former."""
    by_rows: Mapping[Variable, Dimension] = field(default_factory=dict)
    """Values of which an iteration touches its own part only, with the elements of that part."""
    blocks: RowBlocks | None = None
    """The launches of a row fusion, which run one after the other for each block of rows."""
    members: tuple[Launch, ...] = ()
    """The launches of a group, which run as one."""
    updates: tuple[Variable, ...] = ()
    """Those of the values it writes that another launch has begun: it changes them in places."""
    report: Callable[[], BaseException] | None = None
    """What went wrong, if the function says so itself."""
    group: Group | None = None
    """What is fused in its kernel."""
    computes: Graph | None = None
    """What a function of the target computes, where its symbol alone does not say it."""
    halves: Callable[[], tuple[Launch, Launch]] | None = None
    """What gives a launch that begins it and one that waits for it, if it can run beside others."""

    @property
    def stages(self) -> tuple[Launch, ...]:
        """The launches of a row fusion, in order."""
        return () if self.blocks is None else tuple(s.launch for s in self.blocks.stages)

    @property
    def is_pinned(self) -> bool:
        """Whether it has an effect or may fail."""
        may_fail = self.checked is not None and not self.is_sure
        return self.node is not None or may_fail or self.nested is not None

    @property
    def identity(self) -> Symbol:
        """What tells two kernels apart: equal ones compute the same."""
        kernel = self.kernel
        return ("kernel", kernel.digest) if isinstance(kernel, Kernel) else kernel

    def nested_launches(self) -> Iterator[Launch]:
        """The launch, and all that it is made of."""
        yield self
        for part in (*self.stages, *self.members):
            yield from part.nested_launches()


def kernel_launch(step: Step, lowered: Lowered, chunk: int) -> Launch:
    """The launch of a generated kernel, in chunks of about `chunk` element operations."""
    kernel = lowered.kernel
    names = kernel.sizes
    work = lowered.work
    if work is None:
        work = size(step.outer + step.inner) if isinstance(step, Group) else 1

    def extent(sizes: Sizes) -> int:
        return kernel.iterations({**sizes, **lowered.known})

    def grain(sizes: Sizes) -> int:
        total = max(1, substitute_all(work, sizes))
        return max(1, chunk * max(1, extent(sizes)) // total)

    return Launch(
        Kind.LOOP,
        kernel.name,
        kernel,
        lowered.values,
        lowered.written,
        lambda sizes: [({**sizes, **lowered.known})[name] for name in names],
        extent,
        grain,
        checked=step.node if isinstance(step, Single) and _is_checked(lowered) else None,
        work=(lambda sizes: substitute_all(work, sizes) / chunk)
        if isinstance(step, Group)
        else None,
        in_place=lowered.in_place,
        by_rows=lowered.by_rows,
        group=step if isinstance(step, Group) else None,
    )


def _is_checked(lowered: Lowered) -> bool:
    return isinstance(lowered, NodeKernel) and lowered.checked


def node_kernels_in_order(own: Sequence[Launch], kernels: Sequence[Lowered]) -> list[Launch]:
    """The launches of one node's kernels: what checks comes first, then copies, then updates."""
    launches: list[Launch] = []
    checked: tuple[Variable, ...] = ()
    for launch, lowered in zip(own, kernels, strict=True):
        if not launch.writes:
            checked = (Variable(TensorType(uint8, (0,))),)  # what others wait for
            launch = replace(launch, writes=checked, values=launch.values + checked)
        if isinstance(lowered, NodeKernel) and lowered.copied is not None:
            launches.append(copy_launch(*lowered.copied, checked))
            launch = replace(launch, updates=launch.writes)
        launches.append(launch)
    return launches


def continue_joins(launches: Sequence[Launch]) -> list[Launch]:
    """Of the launches that store parts of one value, all but the first change what is there.

    Launches that were put together may stand elsewhere than before, so another one may be first.
    """
    started = {v for launch in launches for v in launch.writes if v not in launch.updates}
    begun: set[Variable] = set()
    continued: list[Launch] = []
    for launch in launches:
        updates = tuple(
            v for v in launch.writes if v in begun or (v in launch.updates and v not in started)
        )
        is_same = set(updates) == set(launch.updates)
        continued.append(launch if is_same else replace(launch, updates=updates))
        begun.update(launch.writes)
    return continued


def copy_launch(result: Variable, operand: Value, awaited: tuple[Variable, ...] = ()) -> Launch:
    """A copy of an operand, which is left out where the result has taken its place."""
    return Launch(
        Kind.COPY, "copy", ("copy",), (operand, result, *awaited), (result,),
        lambda sizes: [bytes_of(result.type, sizes)], one, one,
        in_place=((result, operand),) if isinstance(operand, Variable) else (),
    )  # fmt: skip


def substitute_all(dim: Dimension, sizes: Sizes) -> int:
    """A dimension as a number."""
    return int(substitute(dim, dict(sizes)))


def static_shape(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    """A shape as numbers."""
    return tuple([dim if type(dim) is int else substitute_all(dim, sizes) for dim in shape])


def bytes_of(kind: TensorType, sizes: Sizes) -> int:
    """How many bytes a value of a type has."""
    return substitute_all(byte_count(kind), sizes)


def byte_count(kind: TensorType) -> Dimension:
    """How many bytes a value of a type has, as a dimension."""
    return size(kind.shape) * kind.dtype.itemsize


def bound_params(node: GraphNode, sizes: Sizes) -> dict[str, Any]:
    """The parameters that a node's reference takes: with numbers for symbols, in graphs too."""
    return {key: _bind_sizes(value, sizes) for key, value in node.params.items()}


def _bind_sizes(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, tuple):
        return tuple(_bind_sizes(each, sizes) for each in value)
    if isinstance(value, Graph):
        return resolve_graph(value, lambda dim: substitute(dim, dict(sizes)))
    return substitute_all(value, sizes) if hasattr(value, "symbols") else value


def no_numbers(sizes: Sizes) -> list[int]:
    """No numbers, whatever the sizes."""
    return []


def one(sizes: Sizes) -> int:
    """One, whatever the sizes: for launches that are not divided."""
    return 1
