"""Calls: what kernels, products, convolutions and copies become in a section of a program.

>>> import weft as wf
>>> kinds = wf.spec("float32", (512, 512)), wf.spec("float32", (512, 512))
>>> node = wf.ir.trace(lambda a, b: a @ b, *kinds).nodes[0]
>>> [call.name for call in node_calls(node, np.zeros(1, np.int32)) or ()]
['pack', 'dot']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.fusion.grouping import Group, Single, Step
from weft.compiler.lowering.groups import Lowered
from weft.compiler.lowering.nodes import SingleKernel
from weft.compiler.targets.cpu.convolution import select as convolutions
from weft.compiler.targets.cpu.products.forms import PANEL, Product, product_of
from weft.compiler.targets.cpu.products.low_precision import wide_pieces
from weft.compiler.targets.cpu.products.pieces import Piece
from weft.compiler.targets.cpu.products.select import pieces
from weft.compiler.targets.cpu.runtime.copies import copy_address, numbers
from weft.compiler.targets.cpu.runtime.library_kernels import Layout, failure, foreign_address
from weft.compiler.targets.cpu.sorting import pieces as sort_pieces
from weft.core.dtypes import uint8
from weft.core.shapes import Dimension, Shape, size, substitute
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Literal, Variable

if TYPE_CHECKING:
    from weft.compiler.plan.program_plan import Section, Tables

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
Value = Variable | Literal

ROW = 32 * 1024
"""About how many element operations one chunk of a divided kernel should be."""
STEP = 4096
"""The same in the steps of a loop, between which threads do not go to sleep."""
PANEL_CHUNKS = 8.0
"""How many such chunks take as long as a panel of a product."""


@dataclass(slots=True)
class Call:
    """One call of a program: a native function, its buffers, and what depends on the sizes."""

    name: str
    function: int
    values: tuple[Value, ...]
    writes: tuple[Variable, ...]
    sizes: Callable[[Sizes], list[int]]
    extent: Callable[[Sizes], int]
    grain: Callable[[Sizes], int]
    node: GraphNode | None = None
    """The node that is called by reference, if it is."""
    checked: GraphNode | None = None
    """The node whose reference says what is wrong, if the kernel reports that something is."""
    nested: Nested | None = None
    """The sections that the function runs, if it is a loop or a choice."""
    work: Callable[[Sizes], float] | None = None
    """How long it takes, in chunks of element operations; None: it is no part of ensembles."""
    in_place: tuple[tuple[Variable, Variable], ...] = ()
    """Values it stores, and values it reads only where it then stores the former."""
    by_rows: Mapping[Variable, Dimension] = field(default_factory=dict)
    """Values of which an iteration touches its own part only, with the elements of that part."""
    stages: tuple[Call, ...] = ()
    """The calls of a chain, which run one after the other for each block of rows."""
    members: tuple[Call, ...] = ()
    """The calls of an ensemble, which run as one."""

    def parts(self) -> Iterator[Call]:
        """The call, and all that it is made of."""
        yield self
        for part in (*self.stages, *self.members):
            yield from part.parts()

    updates: tuple[Variable, ...] = ()
    """Those of the values it writes that another call has begun: it changes them in places."""
    report: Callable[[], BaseException] | None = None
    """What went wrong, if the function says so itself."""
    group: Group | None = None
    """What is fused in its kernel."""


@dataclass(slots=True)
class Nested:
    """The sections inside a call, and the scratch memory that they share."""

    node: GraphNode
    sections: tuple[Section, ...]
    scratch: Variable
    bytes: Callable[[Sizes], int]
    """How much scratch memory they need."""
    numbers: Callable[[Sizes, Sequence[Tables], Array, list[Array]], list[int]]
    """What the native function is given, from the sections' tables and where it says how far it
    came; arrays that must live as long are appended to the list."""
    steps: Callable[[Sizes], int]
    """How often the sections are run, as far as that is known."""


def kernel_call(step: Step, lowered: Lowered, address: int, row: int) -> Call:
    """The call of a generated kernel, in chunks of about `row` element operations."""
    kernel = lowered.kernel
    names = kernel.sizes
    if isinstance(step, Group):
        work = size(step.outer + step.inner)
    else:
        assert isinstance(lowered, SingleKernel)
        work = lowered.work

    def extent(sizes: Sizes) -> int:
        return kernel.iterations({**sizes, **lowered.known})

    def grain(sizes: Sizes) -> int:
        total = max(1, substitute_all(work, sizes))
        return max(1, row * max(1, extent(sizes)) // total)

    return Call(
        kernel.name,
        address,
        lowered.values,
        lowered.written,
        lambda sizes: [({**sizes, **lowered.known})[name] for name in names],
        extent,
        grain,
        checked=step.node if isinstance(step, Single) and _is_checked(lowered) else None,
        work=(lambda sizes: substitute_all(work, sizes) / row) if isinstance(step, Group) else None,
        in_place=lowered.in_place,
        by_rows=lowered.by_rows,
        group=step if isinstance(step, Group) else None,
    )


def in_order(made: Sequence[Call], kernels: Sequence[Lowered]) -> list[Call]:
    """The calls of one node's kernels: what checks comes first, then copies, then updates."""
    calls: list[Call] = []
    checked: tuple[Variable, ...] = ()
    for call, lowered in zip(made, kernels, strict=True):
        if not call.writes:
            checked = call.writes = (Variable(TensorType(uint8, (0,))),)  # what others wait for
            call.values += checked
        if isinstance(lowered, SingleKernel) and lowered.copied is not None:
            calls.append(_copy_call(*lowered.copied, checked))
            call.updates = call.writes
        calls.append(call)
    return calls


def continue_joins(calls: Sequence[Call]) -> None:
    """Of the calls that store parts of one value, all but the first change what is there."""
    begun: set[Variable] = set()
    for call in calls:
        call.updates += tuple(v for v in call.writes if v in begun and v not in call.updates)
        begun.update(call.writes)


def _copy_call(result: Variable, operand: Value, awaited: tuple[Variable, ...]) -> Call:
    """A copy of an operand, which is left out where the result has taken its place."""
    return Call(
        "copy", copy_address(), (operand, result, *awaited), (result,),
        lambda sizes: numbers(bytes_of(result.type, sizes)), one, one,
        in_place=((result, operand),) if isinstance(operand, Variable) else (),
    )  # fmt: skip


def _foreign_call(node: GraphNode, error: Array) -> Call:
    """The call of a library's function, for a primitive that has one."""
    native, types = node.primitive.native, [atom.type for atom in node.operands]
    layout = Layout(native, native.kernel(types), len(types), native.values(node.params))
    buffers = (*node.operands, *node.results)

    def numbers(sizes: Sizes) -> list[int]:
        return layout.numbers([(v.type.dtype, static(v.type.shape, sizes)) for v in buffers])

    given = (Literal(layout.data), Literal(error), Literal(layout.message))
    return Call(
        node.primitive.name, foreign_address(), (*buffers, *given), node.results, numbers, one, one,
        checked=node, report=lambda: failure(native.name, layout.message, types, node.location),
    )  # fmt: skip


def _is_checked(lowered: Lowered) -> bool:
    return isinstance(lowered, SingleKernel) and lowered.checked


def _product_calls(node: GraphNode, product: Product, made: Sequence[Piece]) -> list[Call]:
    def work(sizes: Sizes) -> float:
        shape = [substitute_all(dim, sizes) for dim in product.shape]
        return PANEL_CHUNKS * math.prod(shape) * 2 / PANEL

    def copying(sizes: Sizes) -> float:
        return substitute_all(node.operands[1].type.size, sizes) / ROW

    return [_piece_call(each, copying if each.name == "pack" else work) for each in made]


def _convolution_call(piece: Piece, node: GraphNode) -> Call:
    def work(sizes: Sizes) -> float:
        return PANEL_CHUNKS * convolutions.flops(node, sizes) / PANEL

    def copying(sizes: Sizes) -> float:
        return substitute_all(piece.values[0].type.size, sizes) / ROW

    return _piece_call(piece, work if piece.name == "conv" else copying)


def _piece_call(piece: Piece, work: Callable[[Sizes], float] | None = None) -> Call:
    return Call(
        piece.name, piece.function, piece.values, piece.writes, piece.sizes, piece.extent,
        piece.grain, work=work, by_rows=piece.by_rows,
    )  # fmt: skip


def node_calls(node: GraphNode, error: Array) -> list[Call] | None:
    """The calls of a node that has native functions of its own; None where it has none."""
    product = product_of(node) if node.primitive.name == "dot" else None
    if product is not None:
        return _product_calls(node, product, pieces(node, product))
    wide = wide_pieces(node)
    if wide is not None:
        return _product_calls(node, *wide)
    convolution = convolutions.pieces(node)
    if convolution is not None:
        return [_convolution_call(piece, node) for piece in convolution]
    sorting = sort_pieces(node)
    if sorting is not None:
        return [_piece_call(piece) for piece in sorting]
    return [_foreign_call(node, error)] if node.primitive.native is not None else None


def substitute_all(dim: Dimension, sizes: Sizes) -> int:
    """A dimension as a number."""
    return int(substitute(dim, dict(sizes)))


def static(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    """A shape as numbers."""
    return tuple(substitute_all(dim, sizes) for dim in shape)


def bytes_of(kind: TensorType, sizes: Sizes) -> int:
    """How many bytes a value of a type has."""
    return substitute_all(byte_count(kind), sizes)


def byte_count(kind: TensorType) -> Dimension:
    """How many bytes a value of a type has, as a dimension."""
    return size(kind.shape) * kind.dtype.itemsize


def nothing(sizes: Sizes) -> list[int]:
    """No numbers, whatever the sizes."""
    return []


def one(sizes: Sizes) -> int:
    """One, whatever the sizes: for calls that are not divided."""
    return 1
