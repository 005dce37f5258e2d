"""What the kernels of single nodes are written with.

A `KernelBuilder` knows one node. It names the node's buffers, writes sizes as expressions, and
turns shapes and strides into loops and offsets; neighbouring axes that every access runs through in
one stretch become one loop.

>>> merge_axes((2, 3, 4), ((12, 4, 1), (0, 4, 1)))
((2, 12), ((12, 1), (0, 1)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from weft.compiler.fusion.long_sums import with_blocks
from weft.compiler.lowering.groups import Lowered
from weft.compiler.lowering.symbolic_size import Extents
from weft.compiler.targets.limits import LoweringLimits
from weft.core.dtypes import INDEX, DType, bfloat16, float16, float32, int32
from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape
from weft.ir import scalars
from weft.ir.affine_index import strides
from weft.ir.graph import Atom, GraphNode, Literal, Variable
from weft.ir.loops import For, Kernel, Kind, Scratch, Statement, Store
from weft.ir.scalars import Buffer, Scalar
from weft.ir.walking import one_number

Producers: TypeAlias = Mapping[Variable, GraphNode]
Loop: TypeAlias = tuple[Scalar, Scalar]
"""An index, and how often it runs."""
ZERO, ONE = scalars.const(0, INDEX), scalars.const(1, INDEX)


@frozen
class NodeKernel(Lowered):
    """The kernel of one node; whether it checks its operands.

    copied: a result, and the operand that it is a copy of before the kernel changes it in places.
    """

    checked: bool = False
    copied: tuple[Variable, Variable | Literal] | None = None


NodeKernels: TypeAlias = NodeKernel | tuple[NodeKernel, ...] | None
"""What a node becomes: one kernel, several that run in order, or none."""


Write: TypeAlias = "Callable[[KernelBuilder], NodeKernels]"
NODE_KERNELS: dict[str, Write] = {}
"""The kernel of each primitive that has one of its own; see `weft.compiler.lowering.nodes`."""


def kernel_of(*names: str) -> Callable[[Write], Write]:
    """Say of which primitives a function is the kernel.

    It gives None, or raises `Unsupported`, where it cannot be written for these operands.
    """

    def register(write: Write) -> Write:
        NODE_KERNELS.update(dict.fromkeys(names, write))
        return write

    return register


class KernelBuilder:
    """The state of writing the kernel of one node with one result."""

    def __init__(
        self, node: GraphNode, producers: Producers, error: Literal, limits: LoweringLimits
    ) -> None:
        self.node, self.limits = node, limits
        self.params = node.params
        self.producers = producers
        self.extents = Extents()
        self.operands = tuple(
            Buffer(f"a{i}", atom.type.dtype) for i, atom in enumerate(node.operands)
        )
        self.result = Buffer("out", node.results[0].type.dtype, "both")
        self.report = Buffer("error", int32, "write")
        self.error = error

    def shape(self, operand: int) -> Shape:
        """The shape of an operand; that of the result for -1."""
        atom = self.node.results[0] if operand < 0 else self.node.operands[operand]
        return atom.type.shape

    def strides(self, operand: int) -> tuple[Dimension, ...]:
        """How far apart neighbours along each axis of an operand, or of the result, are."""
        return strides(self.shape(operand))

    def extent(self, dim: Dimension) -> Scalar:
        """A size as an expression."""
        return self.extents.extent_of(dim)

    def walk(
        self, prefix: str, shape: Shape, *steps: Sequence[Dimension]
    ) -> tuple[list[Loop], list[Scalar]]:
        """Loops over a shape, and for each access the offset that its strides lead to."""
        dims, along = merge_axes(shape, steps)
        loops = [
            (scalars.index(f"{prefix}{number}"), self.extent(dim))
            for number, dim in enumerate(dims)
        ]
        return loops, [self.offset([i for i, _ in loops], each) for each in along]

    def offset(self, index: Sequence[Scalar], steps: Sequence[Dimension]) -> Scalar:
        """Where an index leads to."""
        total = ZERO
        for i, step in zip(index, steps, strict=True):
            total = total + i * self.extent(step)
        return total

    def refuse(self, where: Scalar) -> Store:
        """Report that the operands are wrong: the reference then says how."""
        return Store(self.report, ZERO, scalars.const(1, int32), where)

    def kernel(
        self, body: tuple[Statement, ...], work: Dimension, scratch: tuple[Scratch, ...] = ()
    ) -> NodeKernel:
        """The finished kernel."""
        name = self.node.primitive.name
        read = any(self.report in _stored_buffers(statement) for statement in body)
        buffers, values = (*self.operands, self.result), (*self.node.operands, *self.node.results)
        if read:
            buffers, values = (*buffers, self.report), (*values, self.error)
        kernel = Kernel(name, buffers, tuple(self.extents.symbols), with_blocks(body), scratch)
        return NodeKernel(kernel, values, self.node.results, work=work, checked=read)

    def update(self, body: tuple[Statement, ...], work: Dimension) -> NodeKernel:
        """A kernel that changes a copy of operand 0 in places, and reads the other operands."""
        buffers, values = (*self.operands[1:], self.result), self.node.operands[1:]
        name, result = self.node.primitive.name, self.node.results[0]
        shown: tuple[Atom, ...] = (*values, result)
        reports = any(self.report in _stored_buffers(statement) for statement in body)
        if reports:
            buffers, shown = (*buffers, self.report), (*shown, self.error)
        kernel = Kernel(name, buffers, tuple(self.extents.symbols), body)
        copied = result, self.node.operands[0]
        return NodeKernel(kernel, shown, (result,), work=work, checked=reports, copied=copied)

    def check(
        self, body: tuple[Statement, ...], work: Dimension, operands: Sequence[int]
    ) -> NodeKernel:
        """A kernel that does nothing but look at some operands, before others write."""
        buffers = (*[self.operands[number] for number in operands], self.report)
        values = (*[self.node.operands[number] for number in operands], self.error)
        kernel = Kernel("check", buffers, tuple(self.extents.symbols), body)
        return NodeKernel(kernel, values, (), work=work, checked=True)


def _stored_buffers(statement: Statement) -> set[Buffer]:
    own = {statement.buffer} if isinstance(statement, Store) else set()
    return own.union(*[_stored_buffers(each) for each in getattr(statement, "body", ())])


def merge_axes(
    shape: Shape, steps: Sequence[Sequence[Dimension]]
) -> tuple[Shape, tuple[tuple[Dimension, ...], ...]]:
    """A shape with its strides, without axes of size 1, neighbours made one where they can be."""
    kept: list[tuple[Dimension, tuple[Dimension, ...]]] = []
    for axis, dim in enumerate(shape):
        along = tuple(each[axis] for each in steps)
        if dim == 1:
            continue
        if kept and all(a == b * dim for a, b in zip(kept[-1][1], along, strict=True)):
            kept[-1] = (kept[-1][0] * dim, along)
        else:
            kept.append((dim, along))
    dims = tuple(dim for dim, _ in kept)
    return dims, tuple(tuple(along[k] for _, along in kept) for k in range(len(steps)))


def nest(
    loops: Sequence[Loop],
    body: tuple[Statement, ...],
    *,
    parallel: bool = True,
    vector: bool = True,
) -> tuple[Statement, ...]:
    """Statements inside loops: the first divided over threads, the last in vectors."""
    for number, (index, extent) in reversed(list(enumerate(loops))):
        divided = parallel and number == 0
        kinds = ("parallel " * divided + "vector" * (vector and number == len(loops) - 1)).strip()
        kind: Kind = kinds or "serial"  # type: ignore[assignment]
        body = (For(index, extent, body, kind),)
    return body


def is_short(dtype: DType) -> bool:
    """Whether a dtype is a 16-bit float, which is computed with in float32."""
    return dtype in (float16, bfloat16)


def compute_dtype(dtype: DType) -> DType:
    """The dtype that elements are computed in."""
    return float32 if is_short(dtype) else dtype


def widen_element(x: Scalar) -> Scalar:
    """An element in the dtype that it is computed in."""
    return scalars.cast(x, compute_dtype(x.dtype))


def all_conditions(conditions: Sequence[Scalar]) -> Scalar | None:
    """Whether all conditions hold; None where there are none."""
    total: Scalar | None = None
    for each in conditions:
        total = each if total is None else scalars.and_(total, each)
    return total


def is_within(x: Scalar, extent: Scalar) -> Scalar:
    """Whether an index is not below 0, and below an extent."""
    return scalars.and_(scalars.less_equal(ZERO, x), scalars.less(x, extent))


def uniform(atom: Variable | Literal, producers: Producers) -> Scalar | None:
    """The number that all elements of a value are; None where they may differ."""
    if isinstance(atom, Literal):
        number = one_number(atom.value)
        return None if number is None else scalars.const(number.item(), atom.type.dtype)
    node = producers.get(atom)
    if node is not None and node.primitive.name == "full":
        value = atom.type.dtype.numpy.type(node.params["value"])
        return scalars.const(value.item(), atom.type.dtype)
    return None
