"""Running a program: node by node, on tensors that are concrete or traced.

What decides sizes is computed on the host, symbols among them, so that a traced program has its
sizes as constants or symbols. An error says which node of the file it came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.program import Node, Program, expand
from weft.onnx.importing.reading import ELEMENTS, Array, onnx_module
from weft.onnx.importing.registry import SIZE_RULES, Rule
from weft.onnx.importing.values import (
    Narrow,
    Value,
    as_tensor,
    host_value,
    is_symbolic,
    tidy_sizes,
)

MISTAKES = (
    TypeError, ValueError, KeyError, IndexError, ArithmeticError, AttributeError, MemoryError,
    RecursionError,
)  # fmt: skip
"""What Python and NumPy raise on arguments that a rule did not expect."""


@dataclass(frozen=True)
class Session:
    """What all programs of one call share."""

    states: Mapping[int, Mapping[str, Value]]
    """The module's tensors, by the number of a program and the name of a value in it."""
    largest: int
    """Elements that a value may have whose size the file decides."""
    most_steps: int
    """Steps that a loop may take one by one."""
    origins: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """By identity: references to tensors of this call that were dequantised, and from what."""


class Scope:
    """The values of one program while it runs; names it does not have are the outer one's."""

    def __init__(self, outer: Scope | None, session: Session) -> None:
        self.outer, self.session = outer, session
        self.values: dict[str, Value] = {}

    def find(self, name: str) -> Value:
        """The value of a name; None for an output that a function leaves out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None


class Call:
    """One node as its rule sees it."""

    def __init__(self, node: Node, scope: Scope) -> None:
        self.node, self.scope = node, scope
        self.version = node.version
        self.count = len(node.outputs)

    def __getitem__(self, attribute: str) -> Any:
        return self.node.attributes[attribute]

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute that may be left out."""
        return self.node.attributes.get(attribute, default)

    def wants(self, place: int) -> bool:
        """Whether the file uses an output."""
        return place < len(self.node.outputs) and bool(self.node.outputs[place])

    def known_array(self, value: Value, what: str) -> Array:
        """The host array of a value; an error where it depends on the data of a traced program."""
        array = host_value(value)
        if array is None:
            raise data_dependent(self.node, what)
        return array

    def run(self, program: Program, inputs: Sequence[Value]) -> list[Value]:
        """The results of a graph that is an attribute of this node."""
        return run_program(program, inputs, self.scope, self.scope.session)

    def check_room(self, shape: Any) -> None:
        """Refuse a value that the file makes larger than its user allows."""
        sizes = [size for size in shape if not isinstance(size, wf.Dim)]
        largest = self.scope.session.largest
        if any(size < 0 for size in sizes) or math.prod(sizes) > largest:
            raise wf.OutOfMemoryError(
                str(self.node),
                "the sizes in the model make a value that is too large, or negative",
                expected=f"at most {largest} elements",
                got={"shape": tuple(shape)},
                fix="check the inputs, or allow more: wf.onnx.load(path, largest=2**32)",
            )

    def refuse(self, why: str) -> wf.UnsupportedError:
        """The error for what this node asks and Weft does not do."""
        error = wf.UnsupportedError(
            str(self.node),
            why,
            expected="what the table in docs/onnx_operators.md lists",
            got={"operator": self.node.operator, "version": self.version},
            fix="export the model without it",
        )
        error.reason = why
        return error


def data_dependent(node: Node, what: str) -> wf.UnsupportedError:
    """The error for sizes or choices that a traced program cannot have."""
    error = wf.UnsupportedError(
        str(node),
        f"{what} depends on data, which is not known while the program is traced",
        expected="sizes and choices that follow from shapes and constants",
        got={"operator": node.operator},
        fix="call the module without wf.jit, or pass the value as a Python number or a NumPy array",
    )
    error.reason = "sizes that depend on data"
    return error


def run_program(
    program: Program,
    inputs: Sequence[Value],
    outer: Scope | None,
    session: Session,
) -> list[Value]:
    """The outputs of a program on its inputs, in order; an input left out is None."""
    scope = Scope(outer, session)
    values = scope.values
    values.update(program.constants)
    values.update(session.states.get(program.number, {}))
    for port, value in zip(program.inputs, inputs, strict=False):
        values[port.name] = value
    for port in program.inputs[len(inputs) :]:
        values.setdefault(port.name, None)
    for node in program.nodes:
        results = run_node(node, scope)
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                values[name] = value
        for name in node.releases:
            values.pop(name, None)
    return [scope.find(port.name) for port in program.outputs]


def run_node(node: Node, scope: Scope) -> Sequence[Value]:
    """The outputs of a node; an error is told under its name."""
    inputs = [scope.find(name) if name else None for name in node.inputs]
    try:
        if node.body is not None:
            return run_program(node.body, inputs, None, scope.session)
        if node.rule is None:
            body = expand(node, tuple([_type_of(value) for value in inputs]))
            return run_program(body, inputs, None, scope.session)
        return _apply(node.rule, Call(node, scope), inputs)
    except wf.WeftError as error:
        if "node '" not in error.op:
            error.called(f"{node}: {error.op}")
        raise
    except MISTAKES as error:
        raise wf.ArgumentError(
            str(node),
            f"its inputs or attributes do not fit: {type(error).__name__}: {error}",
            expected=f"inputs and attributes that {node.operator} is defined for",
            got={f"input {i}": _shown_value(value) for i, value in enumerate(inputs)},
            fix="check the sizes of the inputs, and the file",
        ) from error


def _shown_value(value: Value) -> Any:
    return value if isinstance(value, (wf.Tensor, np.ndarray)) else type(value).__name__


def _apply(rule: Rule, call: Call, inputs: Sequence[Value]) -> Sequence[Value]:
    sizes = _computed_sizes(call, inputs)
    if sizes is not None:
        return sizes
    element = None

    def tensor_of(value: Value) -> Value:
        """A value as the rule takes it: for one that moves elements, the bytes of narrow ones."""
        nonlocal element
        if isinstance(value, Narrow) and not rule.narrow:
            if not rule.moves:
                raise call.refuse(f"no arithmetic on {value.element.name}")
            element, value = value.element, value.tensor
        return value

    prepared: list[Value] = []
    for place, given in enumerate(inputs):
        value = tensor_of(given)
        if value is not None and not isinstance(value, list):
            if rule.needs_known(place) and not isinstance(value, Narrow):
                value = call.known_array(value, f"input {place}")
            else:
                value = tensor_of(as_tensor(value))
        prepared.append(value)
    results = rule.function(call, *prepared)
    results = results if isinstance(results, tuple) else (results,)
    if element is None:
        return results
    return [Narrow(element, each) if isinstance(each, wf.Tensor) else each for each in results]


def _computed_sizes(call: Call, inputs: Sequence[Value]) -> Sequence[Value] | None:
    """The results of a node that computes sizes from sizes, on the host; None for other nodes."""
    function = SIZE_RULES.get(call.node.operator)
    given = [value for value in inputs if value is not None]
    if function is None or call.node.domain or not given:
        return None
    symbolic = any(map(is_symbolic, given))
    arrays = [host_value(v) if symbolic and isinstance(v, wf.Tensor) else v for v in inputs]
    for value, array in zip(inputs, arrays, strict=True):
        if value is not None and not (isinstance(array, np.ndarray) and array.dtype.kind in "biuO"):
            return None  # a traced tensor, a sequence, or numbers that are no sizes
    results = function(call, *arrays)
    if results is None:
        return None
    results = results if isinstance(results, tuple) else (results,)
    return [tidy_sizes(each) for each in results]


def _type_of(value: Value) -> bytes:
    """The serialised type of a value, for operators whose meaning depends on it."""
    proto = onnx_module().TypeProto()
    if value is None:
        return bytes(proto.SerializeToString())
    if isinstance(value, list):
        inner = _type_of(value[0]) if value else b""
        proto.sequence_type.elem_type.ParseFromString(inner)
        return bytes(proto.SerializeToString())
    value = as_tensor(value)
    name = value.element.name if isinstance(value, Narrow) else value.dtype.name
    tensor = value.tensor if isinstance(value, Narrow) else value
    code = next(code for code, element in ELEMENTS.items() if element.name == name)
    proto.tensor_type.elem_type = code
    proto.tensor_type.shape.SetInParent()
    for size in tensor.shape:
        dim = proto.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
    return bytes(proto.SerializeToString())
