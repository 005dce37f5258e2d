"""The calls that a product becomes: packing of its right operand, and the product itself.

Which function makes a product is decided here: a generated one, by rows or by columns, or the BLAS
for a product with a vector; docs/design/products.md has the measurements behind it.

>>> import weft as wf
>>> from weft.compiler.products import product_of
>>> kinds = wf.spec("float32", (512, 512)), wf.spec("float32", (512, 512))
>>> node = wf.ir.trace(lambda a, b: a @ b, *kinds).nodes[0]
>>> [piece.name for piece in pieces(node, product_of(node))]
['pack', 'dot']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weft.compiler import products
from weft.compiler.llvm.machine import host
from weft.compiler.matmul.native import functions
from weft.compiler.matmul.tiles import Tile, tile_of
from weft.compiler.products import Product
from weft.core.shapes import Dimension, substitute
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Literal, Variable

Sizes = Mapping[str, int]
Value = Variable | Literal

DEPTH = 4096
"""Bytes of a row of the left operand that are multiplied at a time."""
BLOCK = 192
"""Rows that are multiplied by a panel while it is in cache."""
LOW = 48
"""Rows up to which threads divide columns."""
SMALL = 64 * 1024
"""Elements of a right operand that are quick to reach as they lie."""
CHUNK = 1_000_000
"""The least floating-point operations of a chunk."""
CHUNKS = 8
"""Into how many chunks a product is cut, where they are not too small or too large."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One call: a native function, its buffers, and what depends on the sizes.

    by_rows: for a call whose iterations are rows, the values of which an iteration touches nothing
    but its own part, with the elements of that part.
    """

    name: str
    function: int
    values: tuple[Value, ...]
    writes: tuple[Variable, ...]
    sizes: Callable[[Sizes], list[int]]
    extent: Callable[[Sizes], int]
    grain: Callable[[Sizes], int]
    by_rows: Mapping[Variable, Dimension] = field(default_factory=dict)


def pieces(node: GraphNode, product: Product) -> list[Piece]:
    """The calls that make a product, in order."""
    _, rows, columns, _ = product.shape
    if (rows == 1 or columns == 1) and products.gemm_address(product.dtype) is not None:
        return [_by_blas(node, product)]
    return _Generated(node, product).pieces()


def _by_blas(node: GraphNode, product: Product) -> Piece:
    def shape(sizes: Sizes) -> list[int]:
        return numbers(product, sizes)

    return Piece(
        "blas",
        products.product_address(product.dtype),
        (*node.operands, *node.results),
        node.results,
        lambda sizes: products.table(product, shape(sizes)),
        lambda sizes: shape(sizes)[0] * products.panels(shape(sizes)),
        lambda sizes: max(1, products.PANEL // products.product_work(shape(sizes))),
    )


def numbers(product: Product, sizes: Sizes) -> list[int]:
    """How many products, rows, columns and terms there are."""
    return [int(substitute(dim, dict(sizes))) for dim in product.shape]


class _Generated:
    """Writes the calls of one product."""

    def __init__(self, node: GraphNode, product: Product) -> None:
        self.node, self.product = node, product
        self.tile: Tile = tile_of(product.dtype, host())
        self.functions = functions(product.dtype)
        self.right: Value = node.operands[1]
        rows = product.shape[1]
        self.is_low = isinstance(rows, int) and rows <= LOW
        self.packed = not self.is_ready()

    def is_ready(self) -> bool:
        """Whether the right operand may stay as it is: few rows use it, or it is small."""
        _, _, columns, terms = self.product.shape
        whole = isinstance(columns, int) and columns % self.tile.columns == 0
        if self.product.turned[1] or not (whole or self.tile.masked):
            return False
        known = isinstance(columns, int) and isinstance(terms, int)
        return self.is_low or (known and columns * terms <= SMALL)

    def pieces(self) -> list[Piece]:
        """Packing, if it is needed, and the product."""
        if not self.packed:
            return [self.dot()]
        stack, _, _, terms = self.product.shape
        shape = (stack, self.panels, terms, self.tile.columns)
        self.right = Variable(TensorType(self.product.dtype, shape))
        return [self.pack(self.right), self.dot()]

    @property
    def panels(self) -> Dimension:
        """How many panels the columns are cut into."""
        return (self.product.shape[2] + (self.tile.columns - 1)) // self.tile.columns

    def pack(self, target: Variable) -> Piece:
        """The call that copies the right operand into panels."""
        turned = self.product.turned[1]

        def sizes_of(sizes: Sizes) -> list[int]:
            _, _, columns, terms = numbers(self.product, sizes)
            return [columns, terms, self.count(columns)]

        return Piece(
            "pack",
            self.functions["pack_turned" if turned else "pack_plain"],
            (self.node.operands[1], target),
            (target,),
            sizes_of,
            lambda sizes: self.in_columns(sizes),
            lambda sizes: max(1, 32768 // max(1, numbers(self.product, sizes)[3] * 64)),
        )

    def count(self, columns: int) -> int:
        """The panels, as a number."""
        return -(-columns // self.tile.columns)

    def in_columns(self, sizes: Sizes) -> int:
        """The panels of all products."""
        stack, _, columns, _ = numbers(self.product, sizes)
        return stack * self.count(columns)

    def in_rows(self, sizes: Sizes) -> int:
        """The rows of all products."""
        stack, rows, _, _ = numbers(self.product, sizes)
        return stack * rows

    def dot(self) -> Piece:
        """The call that multiplies."""
        values = (self.node.operands[0], self.right, *self.node.results)
        entry, extent = ("columns", self.in_columns) if self.is_low else ("rows", self.in_rows)
        grain = self.panels_at_once if self.is_low else self.rows_at_once
        rows = {} if self.is_low else self.by_rows()
        function = self.functions[entry]
        return Piece("dot", function, values, self.node.results, self.table, extent, grain, rows)

    def by_rows(self) -> dict[Variable, Dimension]:
        """A row of the result is made of a row of the left operand, unless that lies transposed.

        A left operand that is the right one, too, is read as a whole.
        """
        _, _, columns, terms = self.product.shape
        left, found = self.node.operands[0], {self.node.results[0]: columns}
        if isinstance(left, Variable) and not self.product.turned[0] and left is not self.right:
            found[left] = terms
        return found

    def table(self, sizes: Sizes) -> list[int]:
        """What the native function is given."""
        _, rows, columns, terms = numbers(self.product, sizes)
        width, left = self.tile.columns, self.product.turned[0]
        if self.packed:
            right = [self.count(columns) * terms * width, width, terms * width]
        else:
            right = [terms * columns, columns, width]
        steps = [1, rows] if left else [terms, 1]
        block = rows if self.is_low else BLOCK
        return [rows, columns, terms, *steps, rows * terms, *right, self.depth(terms), block, left]

    def depth(self, terms: int) -> int:
        """How many terms are multiplied at a time: parts of about one length."""
        most = DEPTH // self.product.dtype.itemsize
        parts = max(1, -(-terms // most))
        return max(1, -(-terms // parts))

    def rows_at_once(self, sizes: Sizes) -> int:
        """How many rows a chunk has."""
        _, _, columns, terms = numbers(self.product, sizes)
        least = CHUNK // max(1, 2 * columns * terms) + 1
        wanted = max(least, min(BLOCK, self.in_rows(sizes) // CHUNKS))
        return -(-wanted // self.tile.rows) * self.tile.rows

    def panels_at_once(self, sizes: Sizes) -> int:
        """How many panels a chunk has."""
        _, rows, _, terms = numbers(self.product, sizes)
        least = CHUNK // max(1, 2 * rows * self.tile.columns * terms) + 1
        return max(least, self.in_columns(sizes) // (4 * CHUNKS))
