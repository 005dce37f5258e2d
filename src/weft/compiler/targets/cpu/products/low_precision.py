"""Products of short elements with wide sums: where they stand in a program, and their calls.

`dot_wide` is what such a product becomes where the machine has an instruction for it: bfloat16 by
bfloat16 to float32, which the program then rounds once, and 8-bit integers to int32. Other 16-bit
floats are widened while they are packed. A user writes
`a @ b` of bfloat16, or of 8-bit integers converted to int32: a conversion before a product is left
out, since the sums are the same.

>>> import numpy as np
>>> ones = np.ones((2, 200), np.int8)
>>> dot_wide.reference(ones, ones, contract=((1,), (1,)), batch=((), ())).tolist()
[[200, 200], [200, 200]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.compiler.graph_passes.dead_code import remove_dead_code
from weft.compiler.graph_passes.short_operands import ShortOperands
from weft.compiler.lowering.matrix_products import Product, form_of
from weft.compiler.plan.launch import Kind, Launch, Sizes
from weft.compiler.targets.cpu.products.dot_instructions import functions
from weft.compiler.targets.cpu.products.dot_packing import (
    COLUMNS,
    ROWS,
    Words,
    has_instruction,
    widened_words,
    words_of,
)
from weft.compiler.targets.cpu.products.select import CHUNK, CHUNKS
from weft.compiler.targets.cpu.products.tile_plans import BLOCK, DEPTH, LOW
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import bfloat16, float16, float32, int32, int64
from weft.core.errors import DTypeError, Unsupported
from weft.core.shapes import Dimension, size
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.primitive import Primitive, Sample
from weft.ir.walking import Tally
from weft.ops.contraction import Axes, dot, free_axes
from weft.ops.conversion import convert

MOST = 1 << 16
"""The most terms of 8-bit numbers whose sum is certain to be an int32."""
_REASON = Unsupported("it stands in compiled programs only, after derivatives and batching")


def _wide_type(a: TensorType, b: TensorType, contract: Axes, batch: Axes) -> TensorType:
    words = words_of(a.dtype, b.dtype) or widened_words(a.dtype, b.dtype)
    if words is None:
        raise DTypeError(
            "dot_wide",
            "there is no product of these with wide sums",
            expected="two of bfloat16 or float16, or int8 or uint8 and int8",
            got={"a": a, "b": b},
            fix="convert both operands",
        )
    kinds = [replace(kind, dtype=words.total) for kind in (a, b)]
    return dot.type_rule(*kinds, contract=contract, batch=batch)  # type: ignore[return-value]


def _wide_reference(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], contract: Axes, batch: Axes
) -> Any:
    kind = np.int32 if b.dtype.itemsize == 1 else np.float32
    return dot.reference(a.astype(kind), b.astype(kind), contract=contract, batch=batch)


def _samples() -> list[Sample]:
    rng = np.random.default_rng(4)
    whole = rng.integers(-128, 128, (2, 5, 7)).astype(np.int8)
    other = rng.integers(-128, 128, (2, 7, 3)).astype(np.int8)
    stacked: dict[str, Any] = {"contract": ((2,), (1,)), "batch": ((0,), (0,))}
    pairs = [(whole, other), (whole.view(np.uint8), other)]
    floats = [each.numpy for each in (bfloat16, float16)]
    pairs += [((whole / 64).astype(each), (other / 64).astype(each)) for each in floats]
    return [Sample(pair, stacked, derivative=False) for pair in pairs]


dot_wide = Primitive(
    "dot_wide",
    "The product of two tensors of short elements, in sums of 32 bits.",
    kind=dot.kind,
    lower=_REASON,
    type_rule=_wide_type,
    reference=_wide_reference,
    derivatives=_REASON,
    batch=_REASON,
    samples=_samples,
)


# --- programs ------------------------------------------------------------------------------------


def shorten_products(graph: Graph, tally: Tally, machine: Machine) -> Graph:
    """The graph with products of short elements as such, where the machine multiplies them."""
    if all(node.primitive is not dot for node in graph.nodes):
        return graph
    producer = {result: node for node in graph.nodes for result in node.results}
    nodes = [each for node in graph.nodes for each in _Site(node, producer, machine).nodes()]
    count = sum(node.primitive is dot_wide for node in nodes)
    if count == 0:
        return graph
    tally["product of short elements"] += count
    made = Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)
    return remove_dead_code(made, None)  # conversions that no product reads any more


class _Site(ShortOperands):
    """A node that may be a product of short elements."""

    def __init__(
        self, node: GraphNode, producer: Mapping[Variable, GraphNode], machine: Machine
    ) -> None:
        super().__init__(producer)
        self.node, self.machine = node, machine

    def nodes(self) -> list[GraphNode]:
        """The node, or the nodes that make the same."""
        node = self.node
        if node.primitive is not dot or not self.is_many():
            return [node]
        operands = [self.short_operand(operand) for operand in node.operands]
        found = [operand for operand in operands if operand is not None]
        words = words_for(found[0], found[1], self.machine) if len(found) == 2 else None
        if words is None or not self.is_held(words):
            return [node]
        if words.terms == 1:
            found[0] = self.widen_left(found[0])
        kind = replace(node.results[0].type, dtype=words.total)
        if kind.dtype is node.results[0].type.dtype:
            return [*self.before, self.wide_product(found, node.results)]
        total, params = Variable(kind), {"dtype": node.results[0].type.dtype}
        after = GraphNode(convert, (total,), params, node.results, node.location)
        return [*self.before, self.wide_product(found, (total,)), after]

    def wide_product(self, operands: Sequence[Atom], results: tuple[Variable, ...]) -> GraphNode:
        return GraphNode(dot_wide, tuple(operands), self.node.params, results, self.node.location)

    def widen_left(self, left: Atom) -> Atom:
        """A left operand that is read as it lies as float32, which the calls before it may make."""
        form = form_of(self.node)
        if form is None or form.turned[0]:
            return left
        wide, params = Variable(replace(left.type, dtype=float32)), {"dtype": float32}
        self.before.append(GraphNode(convert, (left,), params, (wide,), self.node.location))
        return wide

    def is_many(self) -> bool:
        """Whether there are terms, and rows or columns; inner products are made elsewhere."""
        contract, batch = self.node.params["contract"], self.node.params["batch"]
        counts = [
            size(atom.type.shape[axis] for axis in free_axes(atom.type.ndim, inner, stack))
            for atom, inner, stack in zip(self.node.operands, contract, batch, strict=True)
        ]
        return bool(contract[0]) and any(count != 1 for count in counts)

    def is_held(self, words: Words) -> bool:
        """Whether sums of 32 bits hold what the node's own sums do."""
        if self.node.results[0].type.dtype is not int64:
            return True
        left = self.node.operands[0].type.shape
        terms = size(left[axis] for axis in self.node.params["contract"][0])
        return words.total is int32 and isinstance(terms, int) and terms <= MOST


def words_for(left: Atom, right: Atom, machine: Machine) -> Words | None:
    """The words that a machine multiplies two operands by; None where it multiplies none."""
    for words in (found(left.type.dtype, right.type.dtype) for found in (words_of, widened_words)):
        if words is not None and has_instruction(words, machine):
            return words
    return None


# --- calls ---------------------------------------------------------------------------------------


def wide_launches(node: GraphNode, machine: Machine) -> tuple[Product, list[Launch]] | None:
    """A product of short elements and the launches that make it; None where there is none."""
    if node.primitive is not dot_wide:
        return None
    words, product = words_for(node.operands[0], node.operands[1], machine), form_of(node)
    if words is None or product is None:
        return None
    return product, _Wide(node, product, words).launches()


class _Wide:
    """Writes the launches of one product."""

    def __init__(self, node: GraphNode, product: Product, words: Words) -> None:
        self.node, self.product, self.words = node, product, words
        self.functions = functions(words)
        _, rows, _, terms = product.shape
        self.is_low = isinstance(rows, int) and rows <= LOW
        if words.terms == 1:
            self.is_read = words.left is float32 and not product.turned[0]
        else:
            whole = isinstance(terms, int) and terms % words.terms == 0
            self.is_read = whole and not product.turned[0]

    def launches(self) -> list[Launch]:
        """The packing of operands, and the product."""
        stack, rows, columns, _ = self.product.shape
        left: Atom = self.node.operands[0]
        before = []
        if not self.is_read:
            panels = (rows + (ROWS - 1)) // ROWS
            left = Variable(TensorType(int32, (stack, panels, self.count, ROWS)))
            before.append(self.pack(0, left, ROWS, turned=not self.product.turned[0]))
        panels = (columns + (COLUMNS - 1)) // COLUMNS
        shape = (stack, panels, self.count + self.words.lead, COLUMNS)
        right = Variable(TensorType(int32, shape))
        before.append(self.pack(1, right, COLUMNS, turned=self.product.turned[1]))
        return [*before, self.dot(left, right)]

    @property
    def count(self) -> Dimension:
        """How many words a sum has."""
        return (self.product.shape[3] + (self.words.terms - 1)) // self.words.terms

    def word_count(self, terms: int) -> int:
        """The same, as a number."""
        return -(-terms // self.words.terms)

    def pack(self, side: int, target: Variable, width: int, *, turned: bool) -> Launch:
        """The launch that packs an operand: of the left one, rows are what columns are here."""
        lead = self.words.lead if side else 0

        def panels(sizes: Sizes) -> int:
            return -(-self.product.numbers(sizes)[1 + side] // width)

        def table(sizes: Sizes) -> list[int]:
            across, terms = (
                self.product.numbers(sizes)[1 + side],
                self.product.numbers(sizes)[3],
            )
            return [across, terms, panels(sizes), width, lead]

        return Launch(
            Kind.PACK,
            "pack",
            self.functions["pack_turned" if turned else "pack_plain"],
            (self.node.operands[side], target),
            (target,),
            table,
            lambda sizes: self.product.numbers(sizes)[0] * panels(sizes),
            lambda sizes: max(1, 32768 // max(1, self.product.numbers(sizes)[3] * width)),
        )

    def dot(self, left: Atom, right: Variable) -> Launch:
        """The launch that multiplies."""
        entry, extent = ("columns", self.in_columns) if self.is_low else ("rows", self.in_rows)
        return Launch(
            Kind.PRODUCT,
            "dot",
            self.functions[entry],
            (left, right, *self.node.results),
            self.node.results,
            self.table,
            extent,
            self.panels_at_once if self.is_low else self.rows_at_once,
            by_rows={} if self.is_low else self.by_rows(left),
        )

    def by_rows(self, left: Atom) -> Mapping[Variable, Dimension]:
        """A row of the result is made of a row of the left operand, if that is not packed."""
        _, _, columns, terms = self.product.shape
        found = {self.node.results[0]: columns}
        if isinstance(left, Variable) and self.is_read:
            found[left] = terms
        return found

    def table(self, sizes: Sizes) -> list[int]:
        """What the native function is given."""
        _, rows, columns, terms = self.product.numbers(sizes)
        words = self.word_count(terms)
        if self.is_read:
            left = [words, 1, rows * words, max(1, rows), 0]
        else:
            left = [1, ROWS, -(-rows // ROWS) * words * ROWS, ROWS, words * ROWS]
        panel = (words + self.words.lead) * COLUMNS
        right = [-(-columns // COLUMNS) * panel, panel]
        block = max(1, rows) if self.is_low else BLOCK
        return [rows, columns, words, *left, *right, self.depth(words), block]

    def depth(self, words: int) -> int:
        """How many words are multiplied at a time: parts of about one length."""
        parts = max(1, -(-words // (DEPTH // 4)))
        return max(1, -(-words // parts))

    def in_rows(self, sizes: Sizes) -> int:
        """The rows of all products."""
        stack, rows, _, _ = self.product.numbers(sizes)
        return stack * rows

    def in_columns(self, sizes: Sizes) -> int:
        """The panels of all products."""
        stack, _, columns, _ = self.product.numbers(sizes)
        return stack * -(-columns // COLUMNS)

    def rows_at_once(self, sizes: Sizes) -> int:
        """How many rows a chunk has."""
        _, _, columns, terms = self.product.numbers(sizes)
        least = CHUNK * self.words.terms // max(1, 2 * columns * terms) + 1
        wanted = max(least, min(BLOCK, self.in_rows(sizes) // CHUNKS))
        return -(-wanted // 6) * 6

    def panels_at_once(self, sizes: Sizes) -> int:
        """How many panels a chunk has."""
        _, rows, _, terms = self.product.numbers(sizes)
        least = CHUNK * self.words.terms // max(1, 2 * rows * COLUMNS * terms) + 1
        return max(least, self.in_columns(sizes) // (4 * CHUNKS))
