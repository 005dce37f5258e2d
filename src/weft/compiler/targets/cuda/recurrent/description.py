"""What a step of a recurrent layer is: one product with constant weights, and what is around it.

Values of a step have a row for each item of the batch, and one or several *parts* of as many
columns as there are units. Element by element, what belongs to one unit of one row depends on
nothing else but the product, so that a thread can keep it for all steps.

>>> import weft as wf
>>> kinds = [wf.spec("float32", shape) for shape in ((8, 16), (2, 8), (2, 16))]
>>> def step(weights, state, row):
...     left, right = wf.split(state @ weights + row, 2, axis=1)
...     return wf.tanh(left) * right
>>> found = describe_step(wf.ir.trace(step, *kinds), constants=1, carries=1)
>>> found.units, len(found.multiplied), found.products, found.inputs[-1].parts
(8, 1, 2, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal as Choice

from weft.compiler.targets.cuda.products.expressions import expand_expression
from weft.compiler.targets.cuda.products.fused import is_elementwise
from weft.core.dtypes import DType, float32, int64
from weft.core.errors import Unsupported
from weft.core.records import frozen
from weft.ir import scalars
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.scalar_functions import lower_element
from weft.ir.scalars import Scalar, nodes_in_order
from weft.ops.contraction import dot
from weft.ops.control_call import call
from weft.ops.movement import concatenate, reshape, slice_

__all__ = ["PRODUCT", "Input", "StepForm", "depends_on_product", "describe_step", "input_name"]

PRODUCT = "product"
"""What the names of the product's parts begin with."""
Role = Choice["constant", "carry", "row"]
Lies = Choice["matrix", "vector", "line", "scalar"]


@frozen(slots=False)
class Input:
    """An input of a step, which element by element reads: its parts, and how it lies.

    A matrix has a row for each item, a vector none; a line has one number for each item.
    """

    role: Role
    number: int
    parts: int
    lies: Lies = "matrix"
    dtype: DType = float32


@frozen(slots=False)
class StepForm:
    """One step: expressions for one unit of one row.

    Locals of expressions are parts of inputs (`input_name`) and of the product (`product0`, …).
    `multiplied` are the parts that are multiplied by the weights, constant number `weights`, which
    lie [summed, columns] or, `transposed`, [columns, summed].
    """

    units: int
    batch: int
    weights: int
    transposed: bool
    inputs: tuple[Input, ...]
    multiplied: tuple[Scalar, ...]
    products: int
    carries: tuple[Scalar, ...]
    rows: tuple[tuple[Scalar, ...], ...]


def input_name(each: Input, part: int) -> str:
    """The local that stands for a part of an input."""
    return f"{each.role}{each.number}_{part}"


def depends_on_product(x: Scalar) -> bool:
    """Whether an expression waits for the step's product."""
    return any(each.op == "local" and each.detail.startswith(PRODUCT) for each in nodes_in_order(x))


@lru_cache(maxsize=256)
def describe_step(graph: Graph, constants: int, carries: int) -> StepForm:
    """What a loop's body is; `Unsupported` with the reason where it is no such step."""
    return _Reader(graph, constants, carries).read()


Parts = tuple[Scalar, ...]


@frozen(slots=False)
class _Line:
    """A value with one number for each item, [batch] or [batch, 1], such as a mask."""

    number: Scalar


Known = Parts | _Line | int
"""What a value is, or the number of the body's input that it is."""


class _Reader:
    """Reads a body as expressions of single units."""

    def __init__(self, graph: Graph, constants: int, carries: int) -> None:
        self.graph, self.constants, self.carries = graph, constants, carries
        self.batch, self.units = _sizes_of_carry(graph, constants, carries)
        self.inputs: dict[int, Input] = {}
        self.weights, self.transposed = -1, False
        self.multiplied: Parts = ()
        self.products = 0

    def read(self) -> StepForm:
        """The whole form."""
        start: dict[Atom, Known] = {each: place for place, each in enumerate(self.graph.inputs)}
        outputs = [self._parts(*each) for each in self._outputs(self.graph, start)]
        if not self.multiplied:
            raise Unsupported("a step multiplies nothing")
        if any(atom.type.dtype is not float32 for atom in self.graph.outputs):
            raise Unsupported("a step makes other numbers than float32")
        expanded = [tuple(map(expand_expression, parts)) for parts in outputs]
        for parts, atom in zip(expanded, self.graph.outputs, strict=True):
            if atom.type.shape != (self.batch, len(parts) * self.units):
                raise Unsupported(f"a step makes {atom.type}, which has no row for each item")
        carried, rows = expanded[: self.carries], expanded[self.carries :]
        multiplied = tuple(map(expand_expression, self.multiplied))
        return StepForm(
            self.units, self.batch, self.weights, self.transposed, tuple(self.inputs.values()),
            multiplied, self.products, tuple(part for [part] in carried), tuple(rows),
        )  # fmt: skip

    def _outputs(self, graph: Graph, known: dict[Atom, Known]) -> list[tuple[Atom, Known]]:
        """What a graph gives, with what is known of its inputs."""
        for node in graph.nodes:
            given = [self._look_up(atom, known) for atom in node.operands]
            if node.primitive is call:
                inner = node.params["graph"]
                found = self._outputs(inner, dict(zip(inner.inputs, given, strict=True)))
                known.update(zip(node.results, (each for _, each in found), strict=True))
            else:
                known[node.results[0]] = self._result(node, given)
        return [(atom, self._look_up(atom, known)) for atom in graph.outputs]

    def _look_up(self, atom: Atom, known: dict[Atom, Known]) -> Known:
        if isinstance(atom, Variable):
            return known[atom]
        if atom.value.size != 1:
            raise Unsupported("a constant of a step has several elements")
        return (scalars.const(atom.value.reshape(()).item(), atom.type.dtype),)

    def _read_input(self, atom: Atom, known: Known) -> Known:
        """What is known of a value; an input is read here."""
        if not isinstance(known, int):
            return known
        if known not in self.inputs:
            self.inputs[known] = self._input(atom, known)
        each = self.inputs[known]
        numbers = [scalars.local(input_name(each, n), each.dtype) for n in range(each.parts)]
        return _Line(numbers[0]) if each.lies == "line" else tuple(numbers)

    def _parts(self, atom: Atom, known: Known) -> Parts:
        """The parts of a value; a line is one part, beside values with rows."""
        found = self._read_input(atom, known)
        if isinstance(found, _Line):
            if atom.type.shape != (self.batch, 1):
                raise Unsupported("numbers of items meet those of units")
            return (found.number,)
        assert not isinstance(found, int)
        return found

    def _input(self, atom: Atom, place: int) -> Input:
        role: Role = "row"
        number = place - self.constants - self.carries
        if number < 0:
            role, number = ("carry", number + self.carries)
            if number < 0:
                role, number = "constant", place
        dtype, inside = atom.type.dtype, atom.type.shape
        if dtype not in (float32, int64):
            raise Unsupported(f"a step reads {dtype}")
        while role == "constant" and dtype is float32 and inside and inside[0] == 1:
            inside = inside[1:]
        if not inside:
            return Input(role, number, 1, "scalar", dtype)
        if dtype is int64:
            if role != "constant" or inside != (self.batch,):
                raise Unsupported(f"a step reads {atom.type}")
            return Input(role, number, 1, "line", dtype)
        lies: Lies = "vector" if len(inside) == 1 and role == "constant" else "matrix"
        columns, is_matrix = inside[-1], len(inside) == 2 and inside[0] == self.batch
        if not isinstance(columns, int) or columns % self.units:
            raise Unsupported(f"{atom.type} has no part for each unit")
        if lies == "matrix" and not is_matrix:
            raise Unsupported(f"{atom.type} has no row for each item")
        return Input(role, number, columns // self.units, lies)

    # --- nodes ------------------------------------------------------------------------------------

    def _result(self, node: GraphNode, given: Sequence[Known]) -> Known:
        if node.primitive is dot:
            return self._product(node, given)
        read = [self._read_input(*each) for each in zip(node.operands, given, strict=True)]
        if any(isinstance(each, _Line) for each in read):
            shape = node.results[0].type.shape
            if shape in ((self.batch,), (self.batch, 1)):
                return self._line(node, read)
        operands = [self._parts(*each) for each in zip(node.operands, read, strict=True)]
        if node.primitive is slice_:
            return self._slice(node, operands[0])
        if node.primitive is concatenate and node.params["axis"] == node.results[0].type.ndim - 1:
            return tuple(part for parts in operands for part in parts)
        if not is_elementwise(node):
            raise Unsupported(f"{node.primitive.name} is not of single units")
        return self._elements(node, operands)

    def _line(self, node: GraphNode, read: Sequence[Known]) -> _Line:
        """A value with one number for each item."""
        if node.primitive is reshape and isinstance(read[0], _Line):
            return read[0]
        if not is_elementwise(node):
            raise Unsupported(f"{node.primitive.name} is not of single items")
        numbers = []
        for atom, each in zip(node.operands, read, strict=True):
            if isinstance(each, tuple) and any(size != 1 for size in atom.type.shape):
                raise Unsupported("numbers of items meet those of units")
            assert not isinstance(each, int)
            numbers.append(each.number if isinstance(each, _Line) else each[0])
        dtype = node.results[0].type.dtype
        return _Line(lower_element(node.primitive, numbers, dtype, node.params))

    def _slice(self, node: GraphNode, parts: Parts) -> Parts:
        shape, params = node.operands[0].type.shape, node.params
        *front, (start, stop) = zip(params["starts"], params["stops"], strict=True)
        whole = all(each == (0, size) for each, size in zip(front, shape, strict=False))
        if not whole or set(params["strides"]) != {1} or start % self.units or stop % self.units:
            raise Unsupported("a slice is not of whole parts")
        return parts[start // self.units : stop // self.units]

    def _elements(self, node: GraphNode, operands: Sequence[Parts]) -> Parts:
        dtype, count = node.results[0].type.dtype, max(map(len, operands))
        for atom, parts in zip(node.operands, operands, strict=True):
            is_one = len(parts) == 1 and atom.type.shape == (self.batch, 1)
            if len(parts) != count and not is_one and any(size != 1 for size in atom.type.shape):
                raise Unsupported("parts of units meet others")
        return tuple(
            lower_element(
                node.primitive, [parts[n % len(parts)] for parts in operands], dtype, node.params
            )
            for n in range(count)
        )

    def _product(self, node: GraphNode, given: Sequence[Known]) -> Parts:
        """The parts of the product, of which there may be one in a step."""
        (left, right), (rows, weights) = node.operands, given
        (left_axes, right_axes), batch = node.params["contract"], node.params["batch"]
        if self.multiplied or not isinstance(weights, int) or weights >= self.constants:
            raise Unsupported("a step has other products than one with constant weights")
        shape = right.type.shape
        if left_axes != (1,) or any(batch) or len(shape) != 2 or right.type.dtype is not float32:
            raise Unsupported("a product is not of rows with weights")
        self.weights, self.transposed = weights, right_axes == (1,)
        columns = shape[1 - right_axes[0]]
        self.multiplied = self._parts(left, rows)
        if not isinstance(columns, int) or columns % self.units:
            raise Unsupported("a product has no part for each unit")
        if node.results[0].type.shape != (self.batch, columns):
            raise Unsupported("a product has no row for each item")
        self.products = columns // self.units
        return tuple(scalars.local(f"{PRODUCT}{n}", float32) for n in range(self.products))


def _sizes_of_carry(graph: Graph, constants: int, carries: int) -> tuple[int, int]:
    """Rows of the carry and its units."""
    kinds = graph.input_types[constants : constants + carries]
    shapes = {kind.shape for kind in kinds}
    if len(shapes) != 1 or any(kind.dtype is not float32 for kind in kinds):
        raise Unsupported("the carries are not float32 of one shape")
    sizes = [size for size in next(iter(shapes)) if isinstance(size, int)]
    if len(sizes) != 2 or len(kinds[0].shape) != 2 or sizes[0] < 1 or sizes[1] < 2:
        raise Unsupported("the carry has no rows of units, or their number is not known")
    return sizes[0], sizes[1]
