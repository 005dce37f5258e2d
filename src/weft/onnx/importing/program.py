"""The program of a model: nodes in order, with what each needs, checked against the operators.

Everything that can be refused is refused here, before anything runs: operators and element types
that are not known, values that nothing computes, functions that call themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import (
    Array,
    Element,
    element_of,
    malformed_model,
    onnx_module,
    read_sparse,
    read_tensor,
)
from weft.onnx.importing.registry import Rule, find_rule

MOST_NODES = 50_000
"""Nodes that functions may stand for when they are written out: a few can stand for any number."""
DEEPEST = 64
"""How deep functions and graphs may lie in each other."""
SMALL = 64
"""Elements up to which a Constant is part of the program, rather than a tensor of the module."""
NO_RULE = "Weft has no rule for it"
REFUSED = dict.fromkeys(
    ["StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch"],
    "strings: Weft computes with numbers",
) | {
    "ImageDecoder": "pictures are decoded before the model: wf.data reads them",
    "Gradient": "derivatives are taken of the module: wf.grad(net)",
}
"""Operators that are left out, and why."""


@dataclass(frozen=True)
class Port:
    """An input or output of a program: its name, and what its type says of it."""

    name: str
    element: Element | None
    """The element type of a tensor; None for sequences, optionals, and where it is not said."""
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape or ())
        kind = self.element.name if self.element else "value"
        return f"{self.name}: {kind}{f'[{sizes}]' if self.shape is not None else ''}"


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an operator."""

    operator: str
    domain: str
    name: str
    version: int
    """The version that introduced the operator in the form that is meant here."""
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    rule: Rule | None
    body: Program | None
    """What a function stands for."""
    releases: tuple[str, ...] = ()
    """Values that no later node reads."""
    expansions: dict[tuple[bytes, ...], Program] = field(default_factory=dict)
    """What the operator stands for, by the types of its inputs; see `expand`."""

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.operator})"


Slot = tuple[int, str, tuple[str, ...], int | None]
"""The number of a program, the name of a value in it, the module's path to its tensor, and the
code of its element type where that is carried by a wider one."""


class Program:
    """A graph or function: compared by identity, so that a module can hold it."""

    def __init__(self, name: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
        self.name, self.inputs, self.outputs = name, inputs, outputs
        self.number = 0
        """Its place among the programs of a module."""
        self.slots: tuple[Slot, ...] = ()
        """Where the module has the tensors of this program and those inside of it."""
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        """Values that are part of the program, by name."""
        self.tensors: dict[str, tuple[Array, bool]] = {}
        """Values that become a module's tensors, and whether they are initialisers."""
        self.shaping: set[str] = set()
        """Values that decide sizes, those of outer programs too."""
        self.captures: set[str] = set()
        """Values of outer programs."""

    @property
    def required_inputs(self) -> tuple[Port, ...]:
        """The inputs that have no value of their own."""
        return tuple([port for port in self.inputs if port.name not in self.tensors])


@dataclass(frozen=True)
class Context:
    """Where a graph or function stands: what surrounds it."""

    versions: dict[str, int]
    known: frozenset[str] = frozenset()
    """Values that outer programs have computed."""
    calls: tuple[Any, ...] = ()
    """The functions that are being written out."""
    given: dict[str, Any] = field(default_factory=dict)
    """The attributes of the function's call."""
    depth: int = 0


class Builder:
    """Builds programs from a model's protos."""

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.folder = folder
        self.count = 0
        self.outermost = Context(_versions(model.opset_import))
        self.functions = {
            (_domain(proto.domain), proto.name, proto.overload): proto for proto in model.functions
        }

    def graph(self, proto: Any, context: Context) -> Program:
        """The program of a graph."""
        inputs = tuple(_port(each) for each in proto.input)
        program = Program(proto.name, inputs, tuple(_port(each) for each in proto.output))
        for tensor in proto.initializer:
            value = read_tensor(tensor, self.folder, f"initialiser {tensor.name!r}")
            program.tensors[tensor.name] = value, True
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            program.tensors[name] = read_sparse(sparse, self.folder, f"initialiser {name!r}"), True
        defined = {port.name for port in inputs} | set(program.tensors)
        self._fill(program, proto.node, defined, context)
        for port in program.outputs:
            if port.name not in defined and port.name not in context.known:
                raise malformed_model("nothing computes an output of a graph", output=port.name)
        return program

    def function(self, proto: Any, attributes: dict[str, Any], context: Context) -> Program:
        """The program of a function with the attributes of one call."""
        versions = {**context.versions, **_versions(proto.opset_import)}
        inside = replace(
            context, versions=versions, known=frozenset(), given={}, depth=context.depth + 1
        )
        given = {each.name: self._attribute(each, inside) for each in proto.attribute_proto}
        given.update(attributes)
        inputs = tuple(Port(name, None, None) for name in proto.input)
        outputs = tuple(Port(name, None, None) for name in proto.output)
        program = Program(proto.name, inputs, outputs)
        self._fill(program, proto.node, set(proto.input), replace(inside, given=given))
        return program

    def _fill(self, program: Program, nodes: Any, own: set[str], context: Context) -> None:
        """Add the nodes of a graph or function, and what is known of its values."""
        if context.depth > DEEPEST:
            raise malformed_model(
                "graphs or functions lie too deep in each other", depth=context.depth
            )
        for number, proto in enumerate(nodes):
            self.count += bool(context.calls)
            if self.count > MOST_NODES:
                raise malformed_model("functions stand for too many nodes", nodes=self.count)
            node = self._node(proto, number, own, context)
            _check_names(node, own, context.known)
            own.update(name for name in node.outputs if name)
            if node.operator == "Constant" and not node.domain:
                _add_constant(program, node)
            else:
                program.nodes.append(node)
        _find_captures(program, own)
        _find_shaping(program)
        _find_releases(program)

    def _node(self, proto: Any, number: int, own: set[str], context: Context) -> Node:
        domain, operator = _domain(proto.domain), proto.op_type
        name = proto.name or f"{operator}_{number}"
        attributes = self._attributes(proto, own, context)
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        key = domain, operator, proto.overload
        body: Program | None = None
        if key in self.functions:
            body = self._call(self.functions[key], key, attributes, context)
            _check_count(name, operator, len(inputs), 0, len(body.inputs), "inputs")
            _check_count(name, operator, len(outputs), 0, len(body.outputs), "outputs")
            return Node(operator, domain, name, 0, 0, inputs, outputs, attributes, None, body)
        opset = context.versions.get(domain, 0)
        schema = _schema(operator, domain, opset, name)
        _check_count(name, operator, len(inputs), schema.min_input, schema.max_input, "inputs")
        _check_count(name, operator, len(outputs), schema.min_output, schema.max_output, "outputs")
        attributes = _complete(schema, attributes, name)
        rule = find_rule(domain, operator, schema.since_version)
        if rule is None and schema.has_function:
            body = self._call(schema.function_body, key, attributes, context)
        is_value = operator == "Constant" and not domain
        if not (rule or is_value or schema.has_function or schema.has_context_dependent_function):
            raise unknown_operator(operator, domain, name, REFUSED.get(operator, NO_RULE))
        version = schema.since_version
        return Node(operator, domain, name, version, opset, inputs, outputs, attributes, rule, body)

    def _call(self, proto: Any, key: Any, attributes: dict[str, Any], context: Context) -> Program:
        """The program of a function that a node stands for."""
        if key in context.calls:
            raise malformed_model("a function calls itself", function=proto.name)
        inside = replace(context, calls=(*context.calls, key))
        return self.function(proto, attributes, inside)

    def _attributes(self, proto: Any, own: set[str], context: Context) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for each in proto.attribute:
            is_graph = each.type == onnx_module().AttributeProto.GRAPH
            inside = replace(context, known=context.known | own) if is_graph else context
            value = self._attribute(each, inside)
            if value is not None:
                values[each.name] = value
        return values

    def _attribute(self, proto: Any, context: Context) -> Any:
        """The value of an attribute; None where it refers to one that the caller left out."""
        if proto.ref_attr_name:
            return context.given.get(proto.ref_attr_name)
        what = f"attribute {proto.name!r}"
        kinds = onnx_module().AttributeProto
        if proto.type == kinds.GRAPH:
            return self.graph(proto.g, replace(context, depth=context.depth + 1))
        if proto.type == kinds.TENSOR:
            return read_tensor(proto.t, self.folder, what)
        if proto.type == kinds.SPARSE_TENSOR:
            return read_sparse(proto.sparse_tensor, self.folder, what)
        if proto.type == kinds.TENSORS:
            return [read_tensor(each, self.folder, what) for each in proto.tensors]
        if proto.type == kinds.TYPE_PROTO:
            return proto.tp
        if proto.type == kinds.STRING:
            return proto.s.decode("utf-8", "replace")
        if proto.type == kinds.STRINGS:
            return [each.decode("utf-8", "replace") for each in proto.strings]
        plain = {kinds.FLOAT: "f", kinds.INT: "i", kinds.FLOATS: "floats", kinds.INTS: "ints"}
        if proto.type not in plain:
            raise malformed_model(f"{what} is of a kind that no operator has", kind=proto.type)
        value = getattr(proto, plain[proto.type])
        return value if isinstance(value, (int, float)) else list(value)


def build_program(model: Any, folder: Path | None) -> Program:
    """The program of a model's graph."""
    builder = Builder(model, folder)
    return builder.graph(model.graph, builder.outermost)


def expand(node: Node, types: tuple[bytes, ...]) -> Program:
    """The program that an operator stands for, given the types of its inputs."""
    known = node.expansions.get(types)
    if known is not None:
        return known
    onnx = onnx_module()
    schema = _schema(node.operator, node.domain, node.opset, node.name)
    versions = sorted(schema.context_dependent_function_opset_versions)
    version = max([each for each in versions if each <= node.opset], default=versions[0])
    proto = onnx.helper.make_node(
        node.operator, node.inputs, node.outputs, domain=node.domain, **node.attributes
    )
    body = schema.get_context_dependent_function_with_opset_version(
        version, proto.SerializeToString(), list(types)
    )
    function = onnx.FunctionProto.FromString(body)
    model = onnx.ModelProto(opset_import=[onnx.helper.make_opsetid("", node.opset)])
    builder = Builder(model, None)
    program = builder.function(function, node.attributes, builder.outermost)
    for each in all_programs(program):
        each.number = -1  # of no module: all its values are constants
        each.constants.update({name: value for name, (value, _) in each.tensors.items()})
    node.expansions[types] = program
    return program


def all_programs(program: Program) -> Iterator[Program]:
    """A program and those inside of it."""
    yield program
    for node in program.nodes:
        for each in _inner_programs(node) if node.body is None else [node.body]:
            yield from all_programs(each)


def _add_constant(program: Program, node: Node) -> None:
    """A node that holds a value: small ones are part of the program, others tensors."""
    value = _constant_value(node)
    if value.size > SMALL and value.dtype.kind != "b":
        program.tensors[node.outputs[0]] = value, False
    else:
        program.constants[node.outputs[0]] = value


# --- checks --------------------------------------------------------------------------------------


def unknown_operator(operator: str, domain: str, name: str, why: str) -> wf.UnsupportedError:
    """The error for an operator that cannot be computed."""
    error = wf.UnsupportedError(
        "onnx.load",
        f"the operator {operator} cannot be imported: {why}",
        expected="operators of the table in docs/onnx_operators.md, or functions of the model",
        got={"node": name, "operator": operator, "domain": domain or "ai.onnx"},
        fix="export the model without it, or write it into the file as a function",
    )
    error.reason = why
    return error


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _versions(imports: Any) -> dict[str, int]:
    return {_domain(each.domain): each.version for each in imports}


def _schema(operator: str, domain: str, opset: int, name: str) -> Any:
    onnx = onnx_module()
    if not opset:
        why = f"the model does not say which version of the domain {domain!r} it uses"
        raise unknown_operator(operator, domain, name, why)
    if not 1 <= opset < 1 << 31:
        raise malformed_model("the version of the operators does not exist", version=opset)
    try:
        return onnx.defs.get_schema(operator, opset, domain)
    except onnx.defs.SchemaError:
        why = f"it is no operator of this domain in version {opset}"
        raise unknown_operator(operator, domain, name, why) from None


def _check_count(name: str, operator: str, count: int, least: int, most: int, what: str) -> None:
    if not least <= count <= most:
        raise malformed_model(
            f"a node does not have as many {what} as {operator} takes", node=name, count=count
        )


def _complete(schema: Any, attributes: dict[str, Any], name: str) -> dict[str, Any]:
    """The attributes with those that were left out; kinds are checked."""
    complete: dict[str, Any] = {}
    helper = onnx_module().helper
    for key, definition in schema.attributes.items():
        if key not in attributes:
            if definition.required:
                raise malformed_model(f"{schema.name} lacks its attribute {key!r}", node=name)
            if definition.default_value.type:
                complete[key] = _decode_texts(helper.get_attribute_value(definition.default_value))
            continue
        value = attributes[key]
        if not _is_kind(value, str(definition.type).rpartition(".")[2]):
            raise malformed_model(
                f"the attribute {key!r} of {schema.name} is of another kind", node=name, value=value
            )
        complete[key] = value
    return complete


def _decode_texts(value: Any) -> Any:
    """A default with its texts as strings."""
    if isinstance(value, list):
        return [_decode_texts(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def _is_kind(value: Any, kind: str) -> bool:
    """Whether a value is what an attribute of a kind holds; an empty list fits all lists."""
    if kind in ("INTS", "FLOATS", "STRINGS"):
        inner: Any = {"INTS": int, "FLOATS": (int, float), "STRINGS": str}[kind]
        return isinstance(value, list) and all(isinstance(each, inner) for each in value)
    kinds: dict[str, Any] = {
        "INT": int, "FLOAT": (int, float), "STRING": str, "TENSOR": np.ndarray, "GRAPH": Program,
        "SPARSE_TENSOR": np.ndarray, "TENSORS": list,
    }  # fmt: skip
    return kind not in kinds or isinstance(value, kinds[kind])


def _check_names(node: Node, own: set[str], known: frozenset[str]) -> None:
    for name in node.inputs:
        if name and name not in own and name not in known:
            raise malformed_model(
                "a node reads a value that nothing computes before it",
                fix="sort the nodes by what they read; a cycle is no program",
                node=node.name,
                operator=node.operator,
                value=name,
            )
    for name in node.outputs:
        if name and name in own:
            raise malformed_model("two nodes compute the same value", node=node.name, value=name)


def _port(info: Any) -> Port:
    kind = info.type
    if kind.HasField("tensor_type") or kind.HasField("sparse_tensor_type"):
        tensor = kind.tensor_type if kind.HasField("tensor_type") else kind.sparse_tensor_type
        what = f"value {info.name!r}"
        element = element_of(tensor.elem_type, what) if tensor.elem_type else None
        if not tensor.HasField("shape"):
            return Port(info.name, element, None)
        return Port(info.name, element, tuple(_size(each) for each in tensor.shape.dim))
    return Port(info.name, None, None)


def _size(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return dim.dim_param or None


def _constant_value(node: Node) -> Array:
    if len(node.attributes) != 1:
        raise malformed_model("a Constant does not have one value", node=node.name)
    [(key, value)] = node.attributes.items()
    if key in ("value_string", "value_strings"):
        element_of(8, str(node))
    forms = {"value_int": np.int64, "value_ints": np.int64,
             "value_float": np.float32, "value_floats": np.float32}  # fmt: skip
    return np.array(value, forms[key]) if key in forms else value


# --- what is known of values ---------------------------------------------------------------------


def _inner_programs(node: Node) -> list[Program]:
    return [value for value in node.attributes.values() if isinstance(value, Program)]


def _find_captures(program: Program, own: set[str]) -> None:
    reads = {name for node in program.nodes for name in node.inputs if name}
    reads.update(port.name for port in program.outputs)
    for node in program.nodes:
        for inner in _inner_programs(node):
            reads |= inner.captures
    program.captures = reads - own


def _find_shaping(program: Program) -> None:
    """The values that decide sizes: what rules need to know, and what that is computed from."""
    shaping = program.shaping
    for node in reversed(program.nodes):
        for inner in _inner_programs(node):
            shaping |= inner.shaping & inner.captures
        if node.rule is not None:
            shaping.update(
                name for place, name in enumerate(node.inputs) if node.rule.needs_known(place)
            )
        if node.operator not in ("Shape", "Size") and not shaping.isdisjoint(node.outputs):
            shaping.update(node.inputs)
        if node.body is not None:
            inner_names = {port.name for port in node.body.inputs} & node.body.shaping
            pairs = zip(node.inputs, node.body.inputs, strict=False)
            shaping.update(name for name, port in pairs if port.name in inner_names)


def _find_releases(program: Program) -> None:
    """Let each node say which values are read by it for the last time."""
    kept = {port.name for port in program.outputs}
    for number in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[number]
        reads = {name for name in node.inputs if name}
        for inner in _inner_programs(node):
            reads |= inner.captures
        last = reads - kept
        kept |= reads
        object.__setattr__(node, "releases", tuple(sorted(last)))
