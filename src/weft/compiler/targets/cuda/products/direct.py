"""An epilogue's steps on pairs of neighbours in registers, with masked loads and stores.

A thread holds pairs of neighbours in a row of the result, at fixed distances from its first row and
column. Each step takes the values of the step before it; loads and stores are masked by the
result's sizes, so any alignment will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from weft.compiler.targets.cuda.products.description import (
    Apply,
    Combine,
    Compute,
    Constant,
    Keep,
    Matrix,
    Operand,
    Plan,
    ProductSpec,
    Scalar,
    Step,
    Sum,
    Vector,
    dtype_bytes,
)
from weft.compiler.targets.cuda.products.expressions import write_expression
from weft.compiler.targets.cuda.products.functions import scalar_function
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
)
from weft.compiler.targets.cuda.warpgroup import packed_pair
from weft.core.errors import UnsupportedError
from weft.core.records import frozen

__all__ = ["DirectEpilogue", "Fragment", "Tile", "operands_and_sizes"]

BATCH = 4
"""Fragments whose instructions stand side by side: one warp alone must not wait for each result."""


@frozen(slots=False)
class Tile:
    """The part of the result that a group of threads holds: its first row and column, its batch."""

    row: Value
    column: Value
    batch: Value | None
    number_n: Value  # of the tile along the columns

    @classmethod
    def at_number(
        cls, number: Value, limits: tuple[Value, Value], spec: ProductSpec, plan: Plan
    ) -> Self:
        """The tile of a number: down the columns of a result of m by n, and batch by batch."""
        m, n = limits
        tiles_m = (m + (plan.tile_m - 1)) // plan.tile_m
        tiles_n = (n + (plan.tile_n - 1)) // plan.tile_n
        batch, within = None, number
        if spec.batched:
            batch = number // (tiles_m * tiles_n)
            within = number - batch * (tiles_m * tiles_n)
        number_n = within // tiles_m
        number_m = within - number_n * tiles_m
        return cls(number_m * plan.tile_m, number_n * plan.tile_n, batch, number_n)


def operands_and_sizes(spec: ProductSpec, others: Sequence[Parameter]) -> list[Parameter]:
    """Parameters of a product whose operands are read by addresses, with others in between."""
    found: list[Parameter] = []
    for name in ("a", "b"):
        strides = [f"{name}_stride", *([f"{name}_batch_stride"] if spec.batched else [])]
        found += [Pointer(name), *map(Word, strides)]
    sizes = ["m", "n", "k", *(["batch"] if spec.batched else [])]
    return [*found, *others, *map(Word, sizes)]


@frozen(slots=False)
class Fragment:
    """Two neighbours in a row: the `j`-th pair of columns and the `h`-th row of a thread's own."""

    j: int
    h: int
    values: list[Value]


@dataclass
class DirectEpilogue:
    """Writes the epilogue of a tile into a kernel: everything read and stored by each thread.

    `row` and `column` are the thread's first in its tile, `row_offsets` and `column_offsets` how
    far its other rows and pairs of columns are from these.
    """

    kernel: Kernel
    spec: ProductSpec
    parameters: Sequence[Parameter]
    row: Value
    column: Value
    row_offsets: Sequence[int]
    column_offsets: Sequence[int]
    limits: tuple[Value, Value]  # m, n
    values: dict[str, Value] = field(default_factory=dict)  # of parameters, by name

    def prepare(self) -> None:
        """Code before the first tile."""
        self.values = {each.name: self.kernel.parameter(each.name) for each in self.parameters}

    def finish(self, tile: Tile, sums: Sequence[Value]) -> None:
        """Code after a tile's sums: the steps, and the stores."""
        for j in range(len(self.column_offsets)):
            for h in range(len(self.row_offsets)):
                first = 2 * (j * len(self.row_offsets) + h)
                self.run_steps(tile, [Fragment(j, h, list(sums[first : first + 2]))])

    def run_steps(self, tile: Tile, fragments: list[Fragment]) -> None:
        """All steps for some of a tile's fragments."""
        waiting: list[Apply | Combine | Compute] = []
        for step in self.spec.epilogue:
            if isinstance(step, Apply | Combine | Compute):
                waiting.append(step)
            elif isinstance(step, Keep):
                fragments = self._store(tile, step.name, fragments, waiting)
                waiting = []
            else:
                fragments = [
                    each
                    for some in self._in_batches(fragments)
                    for each in self._apply_steps(tile, some, waiting)
                ]
                waiting = []
                self._sum(tile, step, fragments)
        self._store(tile, "out", fragments, waiting)

    def _apply_steps(
        self, tile: Tile, fragments: Sequence[Fragment], steps: Sequence[Step]
    ) -> list[Fragment]:
        """Fragments after some steps."""
        for step in steps:
            if isinstance(step, Compute):
                fragments = self._compute(tile, fragments, step)
            else:
                fragments = [self._apply(tile, fragment, step) for fragment in fragments]
        return list(fragments)

    def _apply(self, tile: Tile, fragment: Fragment, step: Step) -> Fragment:
        """A fragment after one function."""
        values = fragment.values
        if isinstance(step, Apply):
            function = scalar_function(step.function, 1)
            values = [function(self.kernel, value) for value in values]
        elif isinstance(step, Combine):
            function = scalar_function(step.function, 2)
            others = self._operand(tile, fragment, step.operand)
            values = [function(self.kernel, *pair) for pair in zip(values, others, strict=True)]
        return Fragment(fragment.j, fragment.h, values)

    def _compute(self, tile: Tile, fragments: Sequence[Fragment], step: Compute) -> list[Fragment]:
        """The values of an expression at fragments."""
        read = [
            {"x": fragment.values}
            | {each.name: self._operand(tile, fragment, each) for each in step.operands}
            for fragment in fragments
        ]
        values = write_expression(self.kernel, step.expression, read)
        pairs = zip(fragments, values, strict=True)
        return [Fragment(fragment.j, fragment.h, pair) for fragment, pair in pairs]

    def _operand(self, tile: Tile, fragment: Fragment, operand: Operand) -> list[Value]:
        """The operand's two numbers at a fragment."""
        kernel = self.kernel
        if isinstance(operand, Constant):
            return [kernel.variable("f32", operand.number)] * 2
        if isinstance(operand, Scalar):
            return [kernel.let("f32", "ld.global.f32", at(self.values[operand.name]))] * 2
        if isinstance(operand, Matrix):
            return self._loaded_pair(tile, fragment, operand)
        if operand.per == "row":
            row = self._row(tile, fragment)
            return [self._element(operand, row, row < self.limits[0])] * 2
        columns = [self._column(tile, fragment) + t for t in (0, 1)]
        return [self._element(operand, each, each < self.limits[1]) for each in columns]

    # Rows and columns of the result.

    def _row(self, tile: Tile, fragment: Fragment) -> Value:
        return tile.row + self.row + self.row_offsets[fragment.h]

    def _column(self, tile: Tile, fragment: Fragment) -> Value:
        return tile.column + self.column + self.column_offsets[fragment.j]

    def _element_address(self, tile: Tile, fragment: Fragment, matrix: Matrix) -> Value:
        kernel, size = self.kernel, dtype_bytes(matrix.dtype)
        index = kernel.let(
            "u64", "mul.wide.u32", self._row(tile, fragment), self.values[f"{matrix.name}_stride"]
        )
        if tile.batch:
            stride = self.values[f"{matrix.name}_batch_stride"]
            index = index + kernel.let("u64", "mul.wide.u32", tile.batch, stride)
        index = index + kernel.let("u64", "cvt.u64.u32", self._column(tile, fragment))
        return self.values[matrix.name] + index * size

    def _is_inside(self, tile: Tile, fragment: Fragment) -> tuple[Value, Value]:
        """Whether the fragment's two elements lie in the matrix."""
        row, column = self._row(tile, fragment), self._column(tile, fragment)
        in_rows = row < self.limits[0]
        return in_rows & (column < self.limits[1]), in_rows & (column + 1 < self.limits[1])

    # Loads and stores.

    def _element(self, vector: Vector, index: Value, inside: Value) -> Value:
        return self._float(vector.dtype, self._raw_element(vector, index, inside))

    def _raw_element(self, vector: Vector, index: Value, inside: Value) -> Value:
        """An element of a vector in its own bits, for which nobody waits yet."""
        kernel, size = self.kernel, dtype_bytes(vector.dtype)
        place = kernel.address(self.values[vector.name], index, size)
        return self._load_number(place, vector.dtype, inside)

    def _load_number(self, place: Value, dtype: str, inside: Value) -> Value:
        """A number in its own bits; zero outside."""
        kind = "f32" if dtype == "float32" else "b16"
        number = self.kernel.variable(kind, 0)
        self.kernel.do(f"ld.global.{kind}", number, at(place), when=inside)
        return number

    def _float(self, dtype: str, number: Value) -> Value:
        kernel = self.kernel
        if dtype == "float32":
            return number
        if dtype == "float16":
            return kernel.let("f32", "cvt.f32.f16", number)
        return kernel.let("f32", "mov.b32", braces([kernel.variable("b16", 0), number]))

    def _loaded_pair(self, tile: Tile, fragment: Fragment, matrix: Matrix) -> list[Value]:
        place, size = self._element_address(tile, fragment, matrix), dtype_bytes(matrix.dtype)
        inside = self._is_inside(tile, fragment)
        numbers = [self._load_number(place + size * t, matrix.dtype, inside[t]) for t in (0, 1)]
        return [self._float(matrix.dtype, number) for number in numbers]

    def _store(
        self, tile: Tile, name: str, fragments: list[Fragment], steps: Sequence[Step]
    ) -> list[Fragment]:
        """Store fragments after some steps, a few at a time, as registers are scarce."""
        [matrix] = [each for each in self.spec.outputs if each.name == name]
        stored = []
        for some in self._in_batches(fragments):
            for fragment in self._apply_steps(tile, some, steps):
                self._store_directly(tile, fragment, matrix)
                stored.append(fragment)
        return stored

    def _in_batches(self, fragments: Sequence[Fragment]) -> Iterator[Sequence[Fragment]]:
        """Fragments that are computed side by side."""
        for first in range(0, len(fragments), BATCH):
            yield fragments[first : first + BATCH]

    def _sum(self, tile: Tile, step: Sum, fragments: list[Fragment]) -> None:
        raise UnsupportedError(
            "epilogue",
            "partial sums are made by the kernels of the tensor cores alone",
            expected="operands of a 16-bit dtype or tfloat32, with rows of whole 16 bytes",
            got={"product": self.spec},
            fix="sum the stored result in a kernel of its own",
        )

    def _store_directly(self, tile: Tile, fragment: Fragment, matrix: Matrix) -> None:
        kernel = self.kernel
        place, inside = (
            self._element_address(tile, fragment, matrix),
            self._is_inside(tile, fragment),
        )
        if dtype_bytes(matrix.dtype) == 4:
            if self.spec.aligned_output:
                pair_text = braces(fragment.values)
                kernel.do("st.global.v2.f32", at(place), pair_text, when=inside[0])
                return
            for t, value in enumerate(fragment.values):
                kernel.do("st.global.f32", at(place, 4 * t), value, when=inside[t])
            return
        pair = packed_pair(kernel, matrix.dtype, *fragment.values)
        if self.spec.aligned_output:
            kernel.do("st.global.b32", at(place), pair, when=inside[0])
            return
        halves = kernel.registers("b16", "half", 2)
        kernel.do("mov.b32", braces(halves), pair)
        for t, half in enumerate(halves):
            kernel.do("st.global.b16", at(place, 2 * t), half, when=inside[t])
