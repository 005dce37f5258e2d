"""The launches that a product becomes: packing of its right operand, and the product itself.

Which function makes a product is decided here: one for a vector or a few (gemv.py), or tiles, by
rows or by columns; docs/design/products.md has the measurements behind it.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.products.forms import product_of
>>> kinds = wf.spec("float32", (512, 512)), wf.spec("float32", (512, 512))
>>> node = wf.ir.trace(lambda a, b: a @ b, *kinds).nodes[0]
>>> [launch.name for launch in product_launches(node, product_of(node), host())]
['pack', 'dot']
"""

from __future__ import annotations

from weft.compiler.lowering.matrix_products import Product
from weft.compiler.plan.launch import Kind, Launch, Sizes, Value
from weft.compiler.targets.cpu.cache.symbols import symbol_of
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products import forms
from weft.compiler.targets.cpu.products.gemm import functions
from weft.compiler.targets.cpu.products.gemv import vector_launches
from weft.compiler.targets.cpu.products.tile_plans import Plan, measured_plan, usual_plan
from weft.compiler.targets.cpu.products.tiles import Tile, tile_of
from weft.compiler.targets.llvm.machine import Machine
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Variable

CHUNK = 1_000_000
"""The least floating-point operations of a chunk."""
PART = 250_000
"""The same where threads divide columns, of which there are few chunks."""
COPIED = 32768
"""The least elements of a chunk of packing."""
PADDED = 1.25
"""How much longer rows may be in an operand that a row fusion packs, long before it is read."""
CHUNKS = 8
"""Into how many chunks a product is cut, where they are not too small or too large."""


def product_launches(node: GraphNode, product: Product, machine: Machine) -> list[Launch]:
    """The launches that make a product on a machine, in order."""
    plan = measured_plan(product) if machine == host() else None
    if plan is None or plan.form == "usual":
        vector = vector_launches(node, product, machine)
        if vector is not None:
            return vector
        plan = usual_plan(product, machine)
    if plan.form == "blas":
        return [_by_blas(node, product)]
    return _Generated(node, product, plan, machine).launches()


def _by_blas(node: GraphNode, product: Product) -> Launch:
    def shape(sizes: Sizes) -> list[int]:
        return product.numbers(sizes)

    return Launch(
        Kind.PRODUCT,
        "blas",
        symbol_of(forms.product_address(product.dtype)),
        (*node.operands, *node.results),
        node.results,
        lambda sizes: forms.table(product, shape(sizes)),
        lambda sizes: shape(sizes)[0] * forms.panels(shape(sizes)),
        lambda sizes: max(1, forms.PANEL // forms.product_work(shape(sizes))),
    )


class _Generated:
    """Writes the launches of one product that is made of tiles."""

    def __init__(self, node: GraphNode, product: Product, plan: Plan, machine: Machine) -> None:
        self.node, self.product, self.plan = node, product, plan
        self.tile: Tile = tile_of(product.dtype, machine)
        self.functions = functions(product.dtype, machine)
        self.right: Value = node.operands[1]
        self.is_low, self.packed = plan.form == "columns", plan.packed

    def launches(self) -> list[Launch]:
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

    def pack(self, target: Variable) -> Launch:
        """The launch that copies the right operand into panels."""
        turned = self.product.turned[1]

        def table(sizes: Sizes) -> list[int]:
            _, _, columns, terms = self.product.numbers(sizes)
            return [columns, terms, self.count(columns)]

        values = self.node.operands[1], target
        if turned:
            function, grain = self.functions["pack_turned"], self.panels_of_copies
            return Launch(
                Kind.PACK, "pack", function, values, (target,), table, self.in_columns,
                grain,
            )  # fmt: skip
        function, source = self.functions["pack_plain"], values[0]
        columns, rows = self.product.shape[2], dict[Variable, Dimension]()
        if isinstance(source, Variable) and isinstance(columns, int):
            wide = self.count(columns) * self.tile.columns
            rows = {source: columns} if wide <= columns * PADDED else {}
        return Launch(
            Kind.PACK, "pack", function, values, (target,), table, self.in_terms,
            self.terms_of_copies, by_rows=rows,
        )  # fmt: skip

    def panels_of_copies(self, sizes: Sizes) -> int:
        """How many panels a chunk of packing has."""
        return max(1, COPIED // max(1, self.product.numbers(sizes)[3] * self.tile.columns))

    def terms_of_copies(self, sizes: Sizes) -> int:
        """How many rows, which are terms, a chunk of packing has."""
        return max(1, COPIED // max(1, self.product.numbers(sizes)[2]))

    def in_terms(self, sizes: Sizes) -> int:
        """The terms of all products."""
        stack, _, _, terms = self.product.numbers(sizes)
        return stack * terms

    def count(self, columns: int) -> int:
        """The panels, as a number."""
        return -(-columns // self.tile.columns)

    def in_columns(self, sizes: Sizes) -> int:
        """The panels of all products."""
        stack, _, columns, _ = self.product.numbers(sizes)
        return stack * self.count(columns)

    def in_rows(self, sizes: Sizes) -> int:
        """The rows of all products."""
        stack, rows, _, _ = self.product.numbers(sizes)
        return stack * rows

    def dot(self) -> Launch:
        """The launch that multiplies."""
        values = (self.node.operands[0], self.right, *self.node.results)
        entry, extent = ("columns", self.in_columns) if self.is_low else ("rows", self.in_rows)
        grain = self.panels_at_once if self.is_low else self.rows_at_once
        rows = {} if self.is_low else self.by_rows()
        function = self.functions[entry]
        return Launch(
            Kind.PRODUCT, "dot", function, values, self.node.results, self.table, extent, grain,
            by_rows=rows,
        )  # fmt: skip

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
        _, rows, columns, terms = self.product.numbers(sizes)
        width, left = self.tile.columns, self.product.turned[0]
        if self.packed:
            right = [self.count(columns) * terms * width, width, terms * width]
        else:
            right = [terms * columns, columns, width]
        steps = [1, rows] if left else [terms, 1]
        block = rows if self.is_low else self.plan.block
        return [rows, columns, terms, *steps, rows * terms, *right, self.depth(terms), block, left]

    def depth(self, terms: int) -> int:
        """How many terms are multiplied at a time: parts of about one length."""
        most = self.plan.depth // self.product.dtype.itemsize
        parts = max(1, -(-terms // most))
        return max(1, -(-terms // parts))

    def rows_at_once(self, sizes: Sizes) -> int:
        """How many rows a chunk has."""
        _, _, columns, terms = self.product.numbers(sizes)
        least = CHUNK // max(1, 2 * columns * terms) + 1
        wanted = max(least, min(self.plan.block, self.in_rows(sizes) // CHUNKS))
        return -(-wanted // self.tile.rows) * self.tile.rows

    def panels_at_once(self, sizes: Sizes) -> int:
        """How many panels a chunk has."""
        _, rows, _, terms = self.product.numbers(sizes)
        least = PART // max(1, 2 * rows * self.tile.columns * terms) + 1
        return max(least, self.in_columns(sizes) // (4 * CHUNKS))
