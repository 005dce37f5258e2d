"""A product with what follows it as one node: a `call` whose graph is what a kernel computes.

The graph holds a product, element-wise nodes behind it, and sums over its rows. `describe_fused`
says what a kernel's epilogue must do for it: which inputs it reads and how, what it stores.

>>> import weft as wf
>>> kinds = *[wf.spec("bfloat16", (64, 64))] * 2, wf.spec("float32", (64,))
>>> graph = wf.ir.trace(lambda a, b, c: wf.relu(a @ b + c).astype("bfloat16"), *kinds)
>>> [str(step.operands[0].name) for step in describe_fused(graph).steps]
['operand2']
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from weft.compiler.lowering.matrix_products import Product, form_of
from weft.compiler.targets.cuda.products.description import (
    Compute,
    Keep,
    Matrix,
    Scalar,
    Step,
    Sum,
    Vector,
)
from weft.compiler.targets.cuda.products.expressions import expand_expression, instruction_count
from weft.compiler.targets.cuda.products.float8 import decoders_of
from weft.core.dtypes import DType, bfloat16, float16, float32
from weft.core.errors import Unsupported
from weft.core.records import frozen
from weft.core.shapes import Shape
from weft.ir import scalars
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Elementwise
from weft.ir.scalar_functions import lower_element
from weft.ir.walking import is_pure
from weft.ops.contraction import dot, free_axes
from weft.ops.control_call import call
from weft.ops.conversion import convert
from weft.ops.movement import reshape
from weft.ops.reduction import reduce_sum

__all__ = ["MULTIPLIED", "ROWS_OF_SUM", "Fused", "describe_fused", "is_elementwise", "is_fused"]

MULTIPLIED = (float32, bfloat16, float16)
"""The dtypes whose products have kernels of their own; others are loops."""
ROWS_OF_SUM = 64
"""Rows of the product that one row of partial sums is of."""
MOST_INSTRUCTIONS = 120
"""Of an epilogue, for one element: more take longer than a kernel of their own."""
MOST_MATRICES = 2
"""That an epilogue reads beside the product: more cost more than they save."""


@frozen(slots=False)
class Fused:
    """What a kernel does behind a product.

    `factors` are the positions of the graph's inputs that are multiplied; `pair` names their
    formats where they are codes of 8-bit floats. `names` are the operands that steps read, by
    position, too. `stored` are the names of the graph's outputs, in their order; the last that is
    no sum is `out`.
    """

    form: Product
    factors: tuple[int, int]
    pair: str
    steps: tuple[Step, ...]
    names: tuple[tuple[int, str], ...]
    stored: tuple[str, ...]
    output: DType


def is_fused(node: GraphNode) -> bool:
    """Whether a node is a product with what follows it, for which there is a kernel."""
    if node.primitive is not call:
        return False
    try:
        describe_fused(node.params["graph"])
    except Unsupported:
        return False
    return True


def is_elementwise(node: GraphNode) -> bool:
    """Whether a node computes its one result element by element."""
    primitive = node.primitive
    return (
        isinstance(primitive.kind, Elementwise)
        and not primitive.multiple
        and is_pure(node)
        and not node.results[0].type.dtype.is_complex
    )


@lru_cache(maxsize=1024)
def describe_fused(graph: Graph) -> Fused:
    """What a kernel does for a graph; `Unsupported` with the reason where none can."""
    return _Description(graph).describe()


class _Description:
    """Reads a graph of one product and what follows it as a product with an epilogue."""

    def __init__(self, graph: Graph) -> None:
        products = [node for node in graph.nodes if node.primitive is dot]
        if len(products) != 1:
            raise Unsupported(f"there are {len(products)} products")
        self.graph, self.product = graph, products[0]
        form = form_of(self.product)
        if form is None or form.dtype not in MULTIPLIED:
            raise Unsupported("the product has no kernel of its own")
        self.form = form
        self.makers = {result: node for node in graph.nodes for result in node.results}
        self.value = self.product.results[0]
        self.positions = {variable: k for k, variable in enumerate(graph.inputs)}
        self.decoders = decoders_of(self.product, self.makers) or ()
        factors = [node.operands[0] for node in self.decoders] or self.product.operands
        given = [self.positions[atom] for atom in factors if atom in self.positions]
        if len(given) != len(factors):
            raise Unsupported("a factor is a constant, which has a place in the whole plan only")
        self.factors = given[0], given[1]

    def describe(self) -> Fused:
        """The product and its steps; `Unsupported` where the kernel has none for them."""
        self._check_shape()
        sums = [each for each in self.graph.outputs if self._is_sum(each)]
        matrices = [each for each in self.graph.outputs if each not in sums]
        if not 1 <= len(matrices) <= 2 or len(sums) > 1:
            raise Unsupported(f"{len(matrices)} matrices and {len(sums)} sums are stored")
        out = matrices[-1]
        operands: dict[str, int] = {}
        steps: list[Step] = self._scaling(operands)
        names = dict.fromkeys(matrices, "kept") | {out: "out"} | dict.fromkeys(sums, "sums")
        start: dict[Atom, scalars.Scalar] = {self.value: scalars.local("x", self.value.type.dtype)}
        for target in matrices:
            self._check_stored(target)
            steps += self._step_to(target, start, operands)
            if target is not out:
                steps.append(Keep("kept", target.type.dtype.name))
            # what others read of it is rounded, as it is where it is stored
            x = scalars.local("x", float32)
            start = {target: scalars.cast(x, target.type.dtype)}
        if sums:
            if self._source_of_sum(sums[0]) is not out:
                raise Unsupported("the sum is not of what is stored last")
            steps.append(Sum("sums", "rows"))
        stored = tuple(names[each] for each in self.graph.outputs)
        read = tuple((position, name) for name, position in operands.items())
        self._check_cost(steps)
        pair = " by ".join([node.params["format"] for node in self.decoders])
        return Fused(self.form, self.factors, pair, tuple(steps), read, stored, out.type.dtype)

    def _scaling(self, operands: dict[str, int]) -> list[Step]:
        """The step from sums of products of codes to those of numbers.

        Scales are powers of two, and together they may leave float32 where the result does not: so
        the smaller one comes first.
        """
        if not self.decoders:
            return []
        read: dict[str, Scalar | Vector | Matrix] = {}
        left, right = [self._leaf(node.operands[1], read, operands) for node in self.decoders]
        x = scalars.local("x", float32)
        scaled = x * scalars.minimum(left, right) * scalars.maximum(left, right)
        return [Compute(expand_expression(scaled), tuple(read.values()))]

    # --- checks -----------------------------------------------------------------------------------

    def _check_shape(self) -> None:
        b, batch = self.product.operands[1].type, self.product.params["batch"][1]
        free = free_axes(b.ndim, self.product.params["contract"][1], batch)
        inner = self.form.shape[3]
        if len(free) != 1 or not isinstance(inner, int) or inner == 0:
            raise Unsupported("the product has no axis of columns, or nothing may be summed")

    def _check_stored(self, value: Atom) -> None:
        if value.type.dtype not in MULTIPLIED or value.type.shape != self.value.type.shape:
            raise Unsupported(f"{value.type} is no result of an epilogue")

    def _check_cost(self, steps: Sequence[Step]) -> None:
        computed = [step for step in steps if isinstance(step, Compute)]
        if sum(instruction_count(step.expression) for step in computed) > MOST_INSTRUCTIONS:
            raise Unsupported("it has too many instructions")
        read = {each for step in computed for each in step.operands if isinstance(each, Matrix)}
        if len(read) > MOST_MATRICES:
            raise Unsupported("it reads too many matrices")

    # --- sums -------------------------------------------------------------------------------------

    def _is_sum(self, value: Atom) -> bool:
        node = self.makers.get(value) if isinstance(value, Variable) else None
        return node is not None and node.primitive is reduce_sum

    def _source_of_sum(self, value: Atom) -> Atom:
        """What partial sums are of: a reshape, in float32, of a stored value."""
        node = self.makers[value] if isinstance(value, Variable) else None
        assert node is not None
        rows = self.form.shape[1]
        if not isinstance(rows, int) or rows % ROWS_OF_SUM or node.params["axes"] != (1,):
            raise Unsupported("rows do not come out even")
        atom = node.operands[0]
        while isinstance(atom, Variable) and atom in self.makers:
            made = self.makers[atom]
            if made.primitive not in (reshape, convert) or atom in self.graph.outputs:
                break
            atom = made.operands[0]
        return atom

    # --- expressions ------------------------------------------------------------------------------

    def _step_to(
        self, target: Atom, start: dict[Atom, scalars.Scalar], operands: dict[str, int]
    ) -> list[Step]:
        """The step from where the epilogue stands to a value."""
        read: dict[str, Scalar | Vector | Matrix] = {}
        done = dict(start)
        pending = [target]
        while pending:
            atom = pending[-1]
            if atom in done:
                pending.pop()
                continue
            node = self.makers.get(atom) if isinstance(atom, Variable) else None
            if node is None:
                done[atom] = self._leaf(atom, read, operands)
                continue
            if not is_elementwise(node):
                raise Unsupported(f"{node.primitive.name} is not element-wise")
            missing = [each for each in node.operands if each not in done]
            if missing:
                pending += missing
                continue
            dtype = node.results[0].type.dtype
            done[atom] = lower_element(
                node.primitive, [done[each] for each in node.operands], dtype, node.params
            )
        if target in start:
            expression = start[target]
            if expression.op == "local":
                return []
        expression = expand_expression(done[target])
        if expression is scalars.local("x", float32):
            return []
        return [Compute(expression, tuple(read.values()))]

    def _leaf(
        self, atom: Atom, read: dict[str, Scalar | Vector | Matrix], operands: dict[str, int]
    ) -> scalars.Scalar:
        dtype = atom.type.dtype
        if isinstance(atom, Literal):
            if atom.value.size != 1:
                raise Unsupported("a constant has several elements")
            return scalars.const(atom.value.reshape(()).item(), dtype)
        if dtype not in MULTIPLIED:
            raise Unsupported(f"epilogues read floats, not {dtype}")
        position = self.positions.get(atom)
        if position is None or atom is self.value:
            raise Unsupported("it reads what is not given")
        name = f"operand{position}"
        read[name] = self._operand(name, dtype, atom.type.shape)
        operands[name] = position
        return scalars.local(name, dtype)

    def _operand(self, name: str, dtype: DType, shape: Shape) -> Scalar | Vector | Matrix:
        """How an operand of a shape lies beside the product."""
        whole = self.value.type.shape
        if shape == whole:
            return Matrix(name, dtype.name)
        inside = shape
        while inside and inside[0] == 1:
            inside = inside[1:]
        if not inside and dtype is float32:
            return Scalar(name)
        if inside == whole[-1:]:
            return Vector(name, dtype.name)
        if shape == (*whole[:-1], 1) and not self.product.params["batch"][0]:
            return Vector(name, dtype.name, per="row")
        raise Unsupported(f"{shape} does not lie along rows or columns of {whole}")
