"""The calls of a convolution by the algorithm of Winograd: which ones take it, and its plan.

>>> from weft.core.dtypes import float32
>>> from weft.compiler.lowering.convolution_sizes import Sizes
>>> from weft.compiler.targets.cpu.machine import host
>>> sizes = Sizes(32, 1, 64, 64, (16, 16), (16, 16), (3, 3), (1, 1), (1, 1), (1, 1))
>>> fits(sizes, float32, host()), fits(sizes, float64, host())
(True, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from weft.compiler.lowering.convolution_sizes import Sizes
from weft.compiler.plan.launch import Kind, Launch
from weft.compiler.targets.cpu.convolution import gathered
from weft.compiler.targets.cpu.convolution.packing import packing_launch, sum_launch
from weft.compiler.targets.cpu.convolution.plans import TASKS, cut_blocks, pairs
from weft.compiler.targets.cpu.convolution.winograd import (
    COUNT,
    RESULT,
    SIDE,
    WEIGHT,
    WEIGHTS,
    WINOGRAD,
)
from weft.compiler.targets.cpu.products.tiles import tile_of
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType, float32, float64
from weft.core.shapes import Dimension, substitute
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import For, Kernel, Let, Statement, Store
from weft.ir.scalars import Buffer, Scalar

Numbers = Mapping[str, int]
Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
DEEP = 64
"""Terms whose weights are transformed at a time, where they are on the way."""
FEW = 8
"""Tiles from which it pays."""
NARROW = 32
"""Channels from which it pays."""
SMALL = 16 << 20
"""Bytes of transformed weights that stay in cache."""
PARTIAL = 16 << 20
"""Bytes of partial sums of weights."""

__all__ = ["fits", "float64", "winograd_launches"]


def fits(s: Sizes, dtype: DType, machine: Machine) -> bool:
    """Whether a convolution is one of 3x3 in float32, with channels in whole vectors."""
    plain = s.kernel == (3, 3) and s.strides == s.dilation == (1, 1) and s.groups == 1
    lanes = tile_of(float32, machine).lanes
    whole = s.channels % lanes == s.outputs % lanes == 0
    wide = min(s.channels, s.outputs) >= NARROW and min(*s.counts, *s.area) >= RESULT // 2
    return dtype is float32 and plain and whole and wide and _has_many_tiles(s)


def _has_many_tiles(s: Sizes) -> bool:
    """Whether there are tiles enough to pay for the transform of the weights."""
    tiles = prod(-(-dim // RESULT) for dim in s.counts)
    return not isinstance(s.images, int) or s.images * tiles >= FEW


def winograd_launches(node: GraphNode, s: Sizes, machine: Machine) -> list[Launch] | None:
    """The calls of a node whose sizes fit; None where another way is to be taken."""
    if node.primitive.name == "conv_last_weight_gradient":
        return _Weights(node, s, machine).launches()
    if node.primitive.name == "conv_last":
        return _Places(node, s, machine, turned=False).launches()
    low = tuple(2 - each for each in s.low)
    other = replace(
        s, channels=s.outputs, outputs=s.channels, area=s.counts, counts=s.area, low=low
    )
    return _Places(node, other, machine, turned=True).launches()


class _Writer:
    """What the forms share."""

    def __init__(self, node: GraphNode, s: Sizes, machine: Machine) -> None:
        self.node, self.s, self.machine = node, s, machine
        self.width = tile_of(float32, machine).columns
        self.functions = gathered.functions(float32, machine)
        self.strips, self.across = (-(-dim // RESULT) for dim in s.counts)

    def images(self, sizes: Numbers) -> int:
        """How many images there are."""
        return int(substitute(self.s.images, dict(sizes)))

    def choose_blocks(self, tiles: int) -> None:
        """Choose blocks of about so many tiles."""
        self.rows, self.at_once = cut_blocks(self.s.images, self.strips, self.across, tiles, 1)
        self.blocks = -(-self.strips // self.rows)
        self.most = self.at_once * self.rows * self.across

    def head(self, sizes: Numbers) -> list[int]:
        """What the frame of x, and all of it, is told."""
        s = self.s
        frame = [self.rows * RESULT + 2, 1, self.across * RESULT + 2]
        return [
            self.images(sizes), self.at_once, self.blocks, self.rows, RESULT,
            prod(s.area) * s.channels, s.channels, s.low[0], 0, s.low[1], *frame,
            s.area[0], 1, s.area[1], self.strips, self.across, self.most,
        ]  # fmt: skip


class _Places(_Writer):
    """A convolution, or the gradient of its input."""

    def __init__(self, node: GraphNode, s: Sizes, machine: Machine, *, turned: bool) -> None:
        super().__init__(node, s, machine)
        self.turned = turned
        self.panels = -(-s.outputs // self.width)
        self.raw = COUNT * s.channels * s.outputs * 4 > SMALL
        self.choose_blocks(16 if s.channels * s.outputs <= 64 * 64 else 32)
        images = s.images if isinstance(s.images, int) else TASKS * self.at_once
        tasks = -(-images // self.at_once) * self.blocks
        self.parts = 1 if tasks >= TASKS else min(self.panels, -(-TASKS // max(1, tasks)))

    def launches(self) -> list[Launch]:
        """The transform of the weights, and the convolution."""
        s = self.s
        size = self.panels * s.channels * self.width
        if not self.raw:
            weights = Variable(TensorType(float32, (COUNT, size)))
            steps = [s.channels * self.width, self.width, 0, 0]
            return [self.transform(weights), self.convolution(weights, s.channels, steps)]
        weights = Variable(TensorType(float32, (9, size)))
        line = 9 * self.width
        steps = [s.channels * line, line, 0, self.width]
        if self.turned:
            steps = [line, self.panels * line, 8 * self.width, -self.width]
        pack = packing_launch(
            self.node.operands[1], weights, s.outputs, self.machine, turned=self.turned
        )
        return [pack, self.convolution(weights, min(DEEP, s.channels), steps)]

    def transform(self, target: Variable) -> Launch:
        """The launch that transforms weights."""
        s = self.s
        steps = (9, s.outputs * 9) if self.turned else (s.channels * 9, 9)
        kernel = weight_kernel(s.outputs, s.channels, self.width, steps, self.turned)
        return Launch(
            Kind.PACK,
            "pack",
            kernel,
            (self.node.operands[1], target),
            (target,),
            lambda sizes: [],
            lambda sizes: self.panels * s.channels,
            lambda sizes: 8,
        )

    def convolution(self, weights: Variable, deep: int, steps: list[int]) -> Launch:
        """The launch that multiplies; steps: of panels, terms, to the first tap, and of taps."""
        s, result = self.s, self.node.results[0]
        image = prod(s.counts) * s.outputs

        def table(sizes: Numbers) -> list[int]:
            start = len(WINOGRAD)
            head = [
                *self.head(sizes), image, *s.counts, s.channels, s.outputs, self.parts, start,
                start + 2 * self.most, deep, *steps,
            ]  # fmt: skip
            tiles, terms = np.arange(self.most), np.arange(s.channels)
            tables = [
                pairs(tiles * s.channels, tiles * self.width),
                pairs(terms, terms * self.width),
            ]
            return [*head, *[int(each) for array in tables for each in array]]

        return Launch(
            Kind.CONVOLUTION,
            "conv",
            self.functions["winograd"],
            (self.node.operands[0], weights, result),
            (result,),
            table,
            lambda sizes: -(-self.images(sizes) // self.at_once) * self.blocks * self.parts,
            lambda sizes: 1,
            by_rows=self.by_rows(result, image),
        )

    def by_rows(self, result: Variable, image: int) -> dict[Variable, Dimension]:
        """A block of the result is its own part, where all blocks are of one size."""
        s = self.s
        whole = s.counts[0] == self.rows * self.blocks * RESULT
        whole = whole and (self.at_once == 1 or s.images % self.at_once == 0)
        return {result: image * self.at_once // self.blocks} if whole and self.parts == 1 else {}


class _Weights(_Writer):
    """The gradient of the weights."""

    def launches(self) -> list[Launch] | None:
        """Sums of products of transformed tiles, and what makes weights of them."""
        s, width = self.s, self.width
        if any(dim % width and dim > width for dim in (s.channels, s.outputs)):
            return None
        self.choose_blocks(32)
        self.channel_parts, self.output_parts = -(-s.channels // width), -(-s.outputs // width)
        own = self.channel_parts * self.output_parts
        images = s.images if isinstance(s.images, int) else TASKS
        size = 9 * s.channels * s.outputs * 4
        wanted = max(1, min(-(-TASKS // own), PARTIAL // size))
        self.splits = min(wanted, max(1, -(-images // self.at_once) * self.blocks))
        shape = (self.splits, 1, s.channels * 9, s.outputs)
        partial = Variable(TensorType(float32, shape))
        return [self.products(partial), sum_launch(self.node, partial)]

    def products(self, target: Variable) -> Launch:
        """The launch that multiplies."""
        s = self.s

        def table(sizes: Numbers) -> list[int]:
            start = len(WEIGHTS)
            wide, high = min(s.channels, self.width), min(s.outputs, self.width)
            rows, terms = np.arange(wide), np.arange(self.most)
            behind = start + 2 * wide
            head = self.head(sizes)
            numbers = [
                s.channels, s.outputs, self.splits, self.channel_parts, self.output_parts, start,
                behind, behind + 2 * self.most,
            ]  # fmt: skip
            tables = [pairs(rows, rows * self.width), pairs(terms * wide, terms * high)]
            flat = [int(each) for array in tables for each in array]
            return [*head, *numbers, *flat, *self.numbers_of_frame(sizes)]

        return Launch(
            Kind.CONVOLUTION,
            "conv",
            self.functions["winograd_weights"],
            (*self.node.operands, target),
            (target,),
            table,
            lambda sizes: self.splits * self.channel_parts * self.output_parts,
            lambda sizes: 1,
        )

    def numbers_of_frame(self, sizes: Numbers) -> list[int]:
        """What the frame of y is told."""
        s = self.s
        frame = [self.rows * RESULT, 1, self.across * RESULT]
        return [
            self.images(sizes), self.at_once, self.blocks, self.rows, RESULT,
            prod(s.counts) * s.outputs, s.outputs, 0, 0, 0, *frame, s.counts[0], 1, s.counts[1],
        ]  # fmt: skip


# --- the transforms of weights -------------------------------------------------------------------


def _number(value: int) -> Scalar:
    return scalars.const(value, scalars.index("i").dtype)


def _apply_matrix(
    matrix: Matrix, given: list[Scalar], name: str, body: list[Statement]
) -> list[Scalar]:
    """A matrix times scalars, each of which is a local of its own."""
    found = []
    for number, row in enumerate(matrix):
        total: Scalar | None = None
        for factor, value in zip(row, given, strict=True):
            if factor != 0:
                term = value if factor == 1 else value * scalars.const(float(factor), float32)
                total = term if total is None else total + term
        assert total is not None
        local = scalars.local(f"{name}{number}", float32)
        body.append(Let(local, total))
        found.append(local)
    return found


def _transform_square(
    matrix: Matrix,
    square: list[list[Scalar]],
    body: list[Statement],
) -> list[list[Scalar]]:
    """A matrix times the columns of a square, and then times its rows."""
    columns = [
        _apply_matrix(matrix, list(column), f"c{number}_", body)
        for number, column in enumerate(zip(*square, strict=True))
    ]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return [_apply_matrix(matrix, row, f"r{number}_", body) for number, row in enumerate(rows)]


def weight_kernel(
    columns: int, terms: int, width: int, steps: tuple[int, int], turned: bool
) -> Kernel:
    """The kernel from weights to `COUNT` matrices in panels; steps: of a column and of a term."""
    source, target = Buffer("w", float32), Buffer("u", float32, "write")
    i, j = scalars.index("i"), scalars.index("j")
    panel, term = i // _number(terms), i % _number(terms)
    column = panel * _number(width) + j
    inside = scalars.less(column, _number(columns))
    start = column * _number(steps[0]) + term * _number(steps[1])
    body: list[Statement] = []
    square = []
    for k in range(3):
        line: list[Scalar] = []
        for m in range(3):
            tap = 8 - (3 * k + m) if turned else 3 * k + m
            local = scalars.local(f"w{k}_{m}", float32)
            body.append(Let(local, scalars.load(source, start + _number(tap), inside)))
            line.append(local)
        square.append(line)
    size = -(-columns // width) * terms * width
    for k, values in enumerate(_transform_square(WEIGHT, square, body)):
        for m, value in enumerate(values):
            at = _number((k * SIDE + m) * size) + i * _number(width) + j
            body.append(Store(target, at, value))
    inner = For(j, _number(width), tuple(body), "vector")
    outer = For(i, _number(-(-columns // width) * terms), (inner,), "parallel")
    return Kernel("winograd_weights", (source, target), (), (outer,))
