"""The model as the package `onnx` has it: the only place that builds its messages.

>>> from weft.onnx.exporting.protos import MESSAGE_LIMIT
>>> MESSAGE_LIMIT < 2**31
True
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.exporting.writing import Block, Model, Node

__all__ = ["MESSAGE_LIMIT", "model_message", "require_onnx"]

MESSAGE_LIMIT = 3 << 29
"""The most bytes of constants inside one file: a message has less than 2 GiB."""
LARGE = 1 << 10
"""The fewest bytes of a constant that is written beside the model."""
_ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip


def require_onnx() -> Any:
    """The package `onnx`, or an error that says how to install it."""
    try:
        return import_module("onnx")
    except ImportError as error:
        raise wf.UnsupportedError(
            "onnx.export",
            "the package onnx is not installed",
            expected="onnx, which Weft uses here but does not require",
            got={"import": str(error)},
            fix='pip install "weft[onnx]"',
        ) from error


def element_type(dtype: wf.DType) -> int:
    """The number that ONNX has for a dtype."""
    if dtype.name not in _ELEMENT_TYPES:
        raise wf.UnsupportedError(
            "onnx.export",
            f"ONNX graphs hold no {dtype.name}",
            expected="real numbers, integers or truth values",
            got={"dtype": dtype.name},
            fix="export the real and the imaginary part as two tensors",
        )
    return _ELEMENT_TYPES[dtype.name]


def model_message(
    model: Model, name: str, renamed: dict[str, str], external: str | None = None
) -> tuple[Any, list[bytes]]:
    """The model's message, and the blocks of bytes of the file `external` beside it."""
    onnx = require_onnx()
    builder = _Builder(onnx, renamed)
    root = model.root.block
    graph = builder.graph(
        Block(root.inputs, [*model.root.prologue, *root.nodes], root.outputs), name
    )
    used = _names_read([*model.root.prologue, *root.nodes]) | {each for each, _ in root.outputs}
    data: list[bytes] = []
    offset = 0
    for constant, value in model.constants.items():
        if constant not in used:
            continue
        tensor, content = builder.tensor(constant, value), _little_endian(value)
        if external is None or len(content) < LARGE:
            tensor.raw_data = content
        else:
            padding = -offset % 4096 if data else 0
            data.append(b"\0" * padding + content)
            builder.place_outside(tensor, external, offset + padding, len(content))
            offset += padding + len(content)
        graph.initializer.append(tensor)
    message = onnx.helper.make_model(
        graph,
        producer_name="weft",
        producer_version=wf.__version__,
        opset_imports=[onnx.helper.make_opsetid("", model.needed)],
    )
    message.ir_version = 8 if model.needed <= 18 else 9 if model.needed <= 20 else 10
    return message, data


def _names_read(nodes: Sequence[Node]) -> set[str]:
    """The names that nodes read, those in the graphs inside them included."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.inputs)
        for value in node.attributes.values():
            if isinstance(value, Block):
                names |= _names_read(value.nodes) | {each for each, _ in value.outputs}
    return names


def _little_endian(value: Any) -> bytes:
    array = np.ascontiguousarray(value)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


class _Builder:
    """Messages of nodes, types and tensors, under the names that users see."""

    def __init__(self, onnx: Any, renamed: dict[str, str]) -> None:
        self.onnx = onnx
        self.renamed = renamed

    def name(self, name: str) -> str:
        return self.renamed.get(name, name)

    def graph(self, block: Block, name: str) -> Any:
        """The message of a block."""
        return self.onnx.helper.make_graph(
            [self.node(node) for node in block.nodes],
            name,
            [self.value(*each) for each in block.inputs],
            [self.value(*each) for each in block.outputs],
        )

    def value(self, name: str, kind: wf.TensorType) -> Any:
        """The name and type of a value; a symbolic size is written as text."""
        shape = [dim if isinstance(dim, int) else str(dim) for dim in kind.shape]
        return self.onnx.helper.make_tensor_value_info(
            self.name(name), element_type(kind.dtype), shape
        )

    def node(self, node: Node) -> Any:
        """The message of a node, with the user's line as its note."""
        attributes = {
            key: self._attribute(key, value, node) for key, value in node.attributes.items()
        }
        return self.onnx.helper.make_node(
            node.operator,
            [self.name(each) for each in node.inputs],
            [self.name(each) for each in node.outputs],
            name=node.name,
            doc_string=node.place,
            **attributes,
        )

    def _attribute(self, key: str, value: Any, node: Node) -> Any:
        if isinstance(value, Block):
            return self.graph(value, f"{node.name}/{key}")
        return element_type(value) if isinstance(value, wf.DType) else value

    def tensor(self, name: str, value: Any) -> Any:
        """The message of a constant without its content."""
        tensor = self.onnx.TensorProto()
        tensor.name = self.name(name)
        tensor.data_type = element_type(wf.asarray(value).dtype)
        tensor.dims.extend(value.shape)
        return tensor

    def place_outside(self, tensor: Any, file: str, offset: int, length: int) -> None:
        """Say where in the file beside the model a constant stands."""
        tensor.data_location = self.onnx.TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", offset), ("length", length)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
