"""Kernels of products that are not of floats: plain and blocked loops, for any order of axes.

A task is a block of rows and columns of one product of a stack. It copies what it needs of both
operands into scratch memory, whatever the order of their axes, and multiplies a few rows at a time
with columns in vectors. Products with a vector, and those without a sum, are plain loops.

>>> import weft as wf
>>> wf.jit(wf.matmul)(wf.tensor([[1, 2]]), wf.tensor([[3], [4]])).tolist()
[[11]]
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    Loop,
    NodeKernel,
    compute_dtype,
    kernel_of,
    nest,
    widen_element,
)
from weft.core.dtypes import INDEX
from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape, size
from weft.ir import scalars
from weft.ir.affine_index import strides
from weft.ir.loops import Accumulate, For, Let, Scratch, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar
from weft.ops.contraction import free_axes


@frozen
class _Axes:
    """Axes of a product that belong together: their sizes, and strides in a, b and the result."""

    shape: Shape
    a: tuple[Dimension, ...]
    b: tuple[Dimension, ...]
    out: tuple[Dimension, ...]


@kernel_of("dot")
def dot(builder: KernelBuilder) -> NodeKernel:
    """The product of two tensors."""
    stack, rows, columns, terms = _roles(builder)
    work = size(builder.shape(-1)) * size(terms.shape)
    if all(size(axes.shape) != 1 for axes in (rows, columns, terms)):
        return _Blocked(builder, stack, rows, columns, terms).kernel(work)
    return builder.kernel(_element_loops(builder, (stack, rows), columns, terms), work)


def _roles(builder: KernelBuilder) -> tuple[_Axes, _Axes, _Axes, _Axes]:
    """The axes that are walked through together, those of rows, of columns and of sums."""
    contract, batch = builder.params["contract"], builder.params["batch"]
    a, b = builder.shape(0), builder.shape(1)
    left, right, out = builder.strides(0), builder.strides(1), builder.strides(-1)
    rows, columns = (
        free_axes(len(a), contract[0], batch[0]),
        free_axes(len(b), contract[1], batch[1]),
    )
    first, second = len(batch[0]), len(batch[0]) + len(rows)

    def pick(values: Sequence[Dimension], axes: Sequence[int]) -> tuple[Dimension, ...]:
        return tuple(values[axis] for axis in axes)

    none = (0,) * (len(a) + len(b))
    return (
        _Axes(pick(a, batch[0]), pick(left, batch[0]), pick(right, batch[1]), out[:first]),
        _Axes(pick(a, rows), pick(left, rows), none[: len(rows)], out[first:second]),
        _Axes(pick(b, columns), none[: len(columns)], pick(right, columns), out[second:]),
        _Axes(
            pick(a, contract[0]),
            pick(left, contract[0]),
            pick(right, contract[1]),
            none[: len(contract[0])],
        ),
    )


# --- plain loops ---------------------------------------------------------------------------------


def _element_loops(
    builder: KernelBuilder, outer: Sequence[_Axes], columns: _Axes, terms: _Axes
) -> tuple[Statement, ...]:
    """Each element by itself; columns are in vectors, or else the sums are."""
    shape = tuple(dim for axes in outer for dim in axes.shape)
    steps = [tuple(s for axes in outer for s in getattr(axes, n)) for n in ("a", "b", "out")]
    row_loops, row = builder.walk("i", shape, *steps)
    column_loops, column = builder.walk("j", columns.shape, columns.a, columns.b, columns.out)
    term_loops, term = builder.walk("k", terms.shape, terms.a, terms.b)
    x = widen_element(builder.operands[0][row[0] + column[0] + term[0]])
    y = widen_element(builder.operands[1][row[1] + column[1] + term[1]])
    total, body = _sum_over_loops(x * y, term_loops)
    if terms.shape and not term_loops and total.dtype.is_inexact:
        total = total + scalars.const(0, total.dtype)  # a sum of one term is no negative zero
    value = scalars.cast(total, builder.result.dtype)
    body = (*body, Store(builder.result, row[2] + column[2], value))
    in_vectors = bool(column_loops) or not term_loops
    return nest([*row_loops, *column_loops], body, vector=in_vectors)


def _sum_over_loops(value: Scalar, terms: Sequence[Loop]) -> tuple[Scalar, tuple[Statement, ...]]:
    """The sum of an expression over loops, and the statements that make it."""
    body: tuple[Statement, ...] = ()
    for number, (index, extent) in enumerate(reversed(terms)):
        local = scalars.local(f"sum{number}", value.dtype)
        body = (Accumulate(index, extent, (Update(local, "add", value),), body),)
        value = local
    return value, body


# --- blocks --------------------------------------------------------------------------------------


class _Blocked:
    """Writes the tasks of a stack of products of matrices."""

    row, column, product = (scalars.local(n, INDEX) for n in ("row", "column", "product"))

    def __init__(
        self, builder: KernelBuilder, stack: _Axes, rows: _Axes, columns: _Axes, terms: _Axes
    ) -> None:
        self.builder = builder
        self.block, self.rows_at_once = (
            builder.limits.product_block,
            builder.limits.accumulated_rows,
        )
        self.stack, self.rows, self.columns, self.terms = stack, rows, columns, terms
        self.depth = builder.extent(size(terms.shape))
        dtype = compute_dtype(builder.result.dtype)
        self.left, self.right = Buffer("left", dtype, "scratch"), Buffer("right", dtype, "scratch")

    def kernel(self, work: Dimension) -> NodeKernel:
        """All tasks, divided over threads."""
        task = scalars.index("task")
        many, wide_ = (self._blocks(axes) for axes in (self.rows, self.columns))
        body = (
            Let(self.product, task // (many * wide_)),
            Let(self.row, task // wide_ % many * self.block),
            Let(self.column, task % wide_ * self.block),
            *self._pack_block(self.rows, 0, self.row, self.left),
            *self._pack_block(self.columns, 1, self.column, self.right),
            *self._multiply_block(),
        )
        stack = self.builder.extent(size(self.stack.shape))
        scratch = tuple(Scratch(each, self.depth * self.block) for each in (self.left, self.right))
        return self.builder.kernel(
            (For(task, stack * many * wide_, body, "parallel"),), work, scratch
        )

    def _blocks(self, axes: _Axes) -> Scalar:
        return self.builder.extent((size(axes.shape) + (self.block - 1)) // self.block)

    def _part(self, axes: _Axes, start: Scalar) -> Scalar:
        """How many rows or columns a task has."""
        rest = self.builder.extent(size(axes.shape)) - start
        return scalars.minimum(scalars.const(self.block, INDEX), rest)

    def _place(self, axes: _Axes, number: Scalar, steps: Sequence[Dimension]) -> Scalar:
        """Where a number that counts through axes leads."""
        extent, total = self.builder.extent, ZERO
        for axis, (dim, counted) in enumerate(zip(axes.shape, strides(axes.shape), strict=True)):
            along = number // extent(counted)
            along = along % extent(dim) if axis else along
            total = total + along * extent(steps[axis])
        return total

    def _pack_block(
        self, axes: _Axes, operand: int, start: Scalar, target: Buffer
    ) -> tuple[Statement, ...]:
        """Copy rows to [row, term], or columns to [term, column], in the dtype of sums."""
        one, base = scalars.index("one"), scalars.local(f"base{operand}", INDEX)
        own, shared = ("a", "b")[operand], getattr(self.stack, ("a", "b")[operand])
        steps = getattr(self.terms, own)
        loops, (at, term) = self.builder.walk(
            "k", self.terms.shape, steps, strides(self.terms.shape)
        )
        place = self._place(axes, start + one, getattr(axes, own))
        place = place + self._place(self.stack, self.product, shared)
        to = term * self.block + one if operand else one * self.depth + term
        store = Store(target, to, widen_element(self.builder.operands[operand][base + at]))
        inside = nest(loops, (store,), parallel=False, vector=not operand)
        return (For(one, self._part(axes, start), (Let(base, place), *inside)),)

    def _multiply_block(self) -> tuple[Statement, ...]:
        """Some rows at a time, all columns in vectors; rows beyond the last are the last again."""
        rows, columns = (
            self._part(self.rows, self.row),
            self._part(self.columns, self.column),
        )
        i, j, k = scalars.index("i"), scalars.index("j"), scalars.index("k")
        lets: list[Statement] = []
        updates, stores = [], []
        base = self._place(self.stack, self.product, self.stack.out)
        for number in range(self.rows_at_once):
            row = scalars.local(f"row{number}", INDEX)
            place = scalars.local(f"out{number}", INDEX)
            own = self._place(self.rows, self.row + row, self.rows.out)
            here = scalars.minimum(i * self.rows_at_once + number, rows - 1)
            lets += [Let(row, here), Let(place, base + own)]
            total = scalars.local(f"sum{number}", self.left.dtype)
            value = self.left[row * self.depth + k] * self.right[k * self.block + j]
            updates.append(Update(total, "add", value))
            result = scalars.cast(total, self.builder.result.dtype)
            # the result's columns lie side by side, whatever axes they are made of
            stores.append(Store(self.builder.result, place + self.column + j, result))
        sums = Accumulate(k, self.depth, tuple(updates))
        inner = For(j, columns, (sums, *stores), "vector")
        count = (rows + (self.rows_at_once - 1)) // self.rows_at_once
        return (For(i, count, (*lets, inner)),)
