"""The model that is being written: nodes, constants, names and sizes, before they are a file.

A `Writer` fills one ONNX graph; the bodies of loops and branches have writers of their own, which
see the values of those around them. All names are distinct in the whole model. Rules speak to a
writer in names of values, and nothing here needs the package `onnx`.

>>> import weft as wf
>>> from weft.onnx.exporting.writing import Model, Writer
>>> writer = Writer(Model(opset=18))
>>> writer.op("Add", "x", writer.number(1.0, wf.float32))
'add'
>>> [(node.operator, node.inputs) for node in writer.block.nodes], writer.model.constants
([('Add', ('x', 'constant'))], {'constant': array(1., dtype=float32)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft as wf

__all__ = ["LARGEST_OPSET", "SMALLEST_OPSET", "Block", "Model", "Node", "Writer", "evaluate_size"]

Array = np.ndarray[Any, Any]
SMALLEST_OPSET, LARGEST_OPSET = 18, 23
SHARED = 1 << 12
"""The most elements of a constant that is looked up among those before it."""


@dataclass(frozen=True)
class Node:
    """One ONNX node; a `Block` among the attributes is a graph of its own."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    place: str
    """The user's line."""
    name: str


@dataclass
class Block:
    """One ONNX graph: its nodes, and the names and types of what goes in and comes out."""

    inputs: list[tuple[str, wf.TensorType]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[tuple[str, wf.TensorType]] = field(default_factory=list)


class Model:
    """What all graphs of a model share: constants, names, sizes, and the operators' version."""

    def __init__(self, opset: int = LARGEST_OPSET) -> None:
        self.allowed = opset
        self.needed = SMALLEST_OPSET
        self.constants: dict[str, Array] = {}
        self.notes: list[str] = []
        self.sources: dict[str, tuple[str, int]] = {}
        """For each symbolic size, the input and the axis that have it."""
        self.root = Writer(self)
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._counts: dict[str, int] = {}
        self._sizes: dict[str, str] = {}

    def fresh(self, hint: str) -> str:
        """A name that nothing has yet."""
        count = self._counts.get(hint, 0)
        self._counts[hint] = count + 1
        name = hint if count == 0 else f"{hint}_{count}"
        return name if count == 0 or name not in self._counts else self.fresh(hint)

    def allows(self, opset: int) -> bool:
        """Whether operators of a version may be used; if so, the model needs it."""
        if opset > self.allowed:
            return False
        self.needed = max(self.needed, opset)
        return True

    def constant(self, value: Array, hint: str = "constant") -> str:
        """The name of a constant; equal small ones are one."""
        key = (str(value.dtype), value.shape, value.tobytes() if value.size <= SHARED else b"")
        known = self._shared.get(key) if value.size <= SHARED else None
        if known is None:
            known = self.fresh(hint)
            self.constants[known] = value
            if value.size <= SHARED:
                self._shared[key] = known
        return known

    def size(self, dim: Any) -> str:
        """The name of a size as int64[1], computed at the start of the model from its inputs."""
        if isinstance(dim, int):
            return self.constant(np.array([dim], np.int64), "size")
        text = str(dim)
        if text not in self._sizes:
            self._sizes[text] = self._computed_size(dim)
        return self._sizes[text]

    def _computed_size(self, dim: Any) -> str:
        total = ""
        for monomial, coefficient in dim.terms:
            term = self.size(coefficient) if coefficient != 1 or not monomial else ""
            for atom in monomial:
                factor = self._factor(atom)
                term = self._start("Mul", term, factor) if term else factor
            total = self._start("Add", total, term) if total else term
        return total

    def _factor(self, atom: Any) -> str:
        """A symbol, or a quotient rounded down, as int64[1]."""
        if not isinstance(atom, str):
            return self._start("Div", self.size(atom.numerator), self.size(atom.denominator))
        if atom not in self._sizes:
            if atom not in self.sources:
                raise wf.UnsupportedError(
                    "onnx.export",
                    f"no input has an axis of the size {atom} alone",
                    expected="each symbol as the size of an axis of an input",
                    got={"size": atom},
                    fix=f'pass an input with such an axis: dynamic={{"x": {{0: "{atom}"}}}}',
                )
            source, axis = self.sources[atom]
            self._sizes[atom] = self._start("Shape", source, start=axis, end=axis + 1)
        return self._sizes[atom]

    def vector(self, dims: Sequence[Any]) -> str:
        """The name of a tensor of sizes, int64[n]."""
        if all(isinstance(dim, int) for dim in dims):
            return self.constant(np.array(dims, np.int64).reshape(-1), "shape")
        text = f"[{', '.join(map(str, dims))}]"
        if text not in self._sizes:
            parts = [self.size(dim) for dim in dims]
            self._sizes[text] = (
                parts[0] if len(parts) == 1 else self._start("Concat", *parts, axis=0)
            )
        return self._sizes[text]

    def _start(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The output of a node that stands at the start of the model."""
        output = self.fresh("size")
        node = Node(operator, inputs, (output,), attributes, "a size of the inputs", output)
        self.root.prologue.append(node)
        return output


class Writer:
    """Fills a block. `place` and `scope` are those of the Weft node that is being written."""

    def __init__(self, model: Model, outer: Writer | None = None) -> None:
        self.model = model
        self.outer = outer
        self.block = Block()
        self.prologue: list[Node] = []
        self.place: str = outer.place if outer else ""
        self.scope: str = outer.scope if outer else ""
        self.origin: Any = outer.origin if outer else None
        self.within_node: bool = outer.within_node if outer else False
        """Whether what is written is part of one node, whose line it has."""
        self.values: dict[Any, str] = {}
        self.makers: dict[Any, Any] = {}
        """For each variable, the Weft node that makes it, where a rule may look behind it."""
        self.parameters: dict[Any, Array] = outer.parameters if outer else {}
        """The numbers of the inputs that are parameters."""
        self.unread: set[Any] = set()
        """Results that nothing reads, which a rule need not write."""

    def nested_writer(self) -> Writer:
        """The writer of a graph inside this one."""
        return Writer(self.model, self)

    def sharing_writer(self, values: dict[Any, str]) -> Writer:
        """A writer into the same block, for a graph whose inputs have these values."""
        writer = Writer(self.model, self)
        writer.block, writer.values, writer.within_node = self.block, values, True
        return writer

    def value(self, atom: Any) -> str:
        """The name of a variable's value, or of a constant."""
        if isinstance(atom, wf.ir.Literal):
            return self.model.constant(np.asarray(atom.value))
        writer: Writer | None = self
        while writer is not None:
            if atom in writer.values:
                return writer.values[atom]
            writer = writer.outer
        raise KeyError(f"no value of {atom}")

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node."""
        return self.ops(operator, inputs, 1, **attributes)[0]

    def ops(
        self, operator: str, inputs: Sequence[str], count: int, **attributes: Any
    ) -> tuple[str, ...]:
        """The outputs of a new node that has several."""
        outputs = tuple(self.model.fresh(operator.lower()) for _ in range(count))
        self.emit(operator, inputs, outputs, **attributes)
        return outputs

    def emit(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Add a node whose outputs have names already; attributes that are None are left out."""
        given = {key: value for key, value in attributes.items() if value is not None}
        name = self.model.fresh(f"{self.scope}/{operator}" if self.scope else f"/{operator}")
        self.block.nodes.append(
            Node(operator, tuple(inputs), tuple(outputs), given, self.place, name)
        )

    def number(self, value: Any, dtype: wf.DType) -> str:
        """The name of a number, as a constant without axes."""
        return self.model.constant(np.array(value, dtype.numpy))

    def integers(self, *values: int) -> str:
        """The name of a constant int64[n]."""
        return self.model.constant(np.array(values, np.int64).reshape(-1), "shape")

    def cast(self, value: str, dtype: wf.DType, target: wf.DType) -> str:
        """A value in another dtype; the value itself where it has it."""
        return value if dtype is target else self.op("Cast", value, to=target)

    def reshape(self, value: str, shape: Sequence[Any]) -> str:
        """A value in another shape, of which one symbolic size needs no computing."""
        symbolic = [dim for dim in shape if not isinstance(dim, int)]
        if len(symbolic) == 1 and 0 not in [dim for dim in shape if isinstance(dim, int)]:
            sizes = [dim if isinstance(dim, int) else -1 for dim in shape]
            return self.op("Reshape", value, self.integers(*sizes))
        zeros = any(isinstance(dim, int) and dim == 0 for dim in shape)
        return self.op("Reshape", value, self.model.vector(shape), allowzero=1 if zeros else None)


def evaluate_size(dim: Any, sizes: Mapping[str, int]) -> int:
    """A size with numbers in the place of its symbols.

    >>> evaluate_size(wf.symbol("time") // 2 + 1, {"time": 7})
    4
    """
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        term = coefficient
        for atom in monomial:
            if isinstance(atom, str):
                term *= sizes[atom]
            else:
                numerator = evaluate_size(atom.numerator, sizes)
                term *= numerator // evaluate_size(atom.denominator, sizes)
        total += term
    return int(total)
