"""`export`: a function or a module as an ONNX file that has been run and compared.

>>> import tempfile
>>> import weft as wf
>>> from weft.onnx.exporting.export import export
>>> net = wf.nn.Sequential(wf.nn.Linear(4, 8), wf.nn.ReLU(), wf.nn.Linear(8, 3))
>>> path = tempfile.mkdtemp() + "/net.onnx"
>>> report = export(net, (wf.ones((2, 4)),), path, dynamic={"x": {0: "batch"}})
>>> report.operators, report.inputs
({'Gemm': 2, 'Relu': 1}, {'x': f32[batch, 4]})
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft as wf
from weft.onnx.exporting import control as control
from weft.onnx.exporting import division as division
from weft.onnx.exporting import elementwise as elementwise
from weft.onnx.exporting import indexing as indexing
from weft.onnx.exporting import joining as joining
from weft.onnx.exporting import movement as movement
from weft.onnx.exporting import products as products
from weft.onnx.exporting import recognising as recognising
from weft.onnx.exporting import recurrence as recurrence
from weft.onnx.exporting import reductions as reductions
from weft.onnx.exporting import special as special
from weft.onnx.exporting.blocks import write_nodes
from weft.onnx.exporting.programs import OP, Dynamic, Program, trace_program
from weft.onnx.exporting.protos import MESSAGE_LIMIT, element_type, model_message, require_onnx
from weft.onnx.exporting.verifying import Verification, verify_file
from weft.onnx.exporting.writing import LARGEST_OPSET, SMALLEST_OPSET, Block, Model, Node

__all__ = ["Report", "export"]

NO_STATE = "a file has no state: return the new value to have it"


@dataclass(frozen=True)
class Report:
    """What was written, and how it was judged."""

    path: Path
    opset: int
    inputs: dict[str, wf.TensorType]
    outputs: dict[str, wf.TensorType]
    operators: dict[str, int]
    parameters: int
    verification: Verification | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.operators.items())
        lines = [
            f"{self.path}: opset {self.opset}, {sum(self.operators.values())} nodes ({counts})",
            *[f"  input   {name}: {kind}" for name, kind in self.inputs.items()],
            *[f"  output  {name}: {kind}" for name, kind in self.outputs.items()],
        ]
        judged = self.verification
        if judged is None:
            lines.append("  not verified")
        else:
            sizes = " and ".join(
                ", ".join(f"{k} = {v}" for k, v in each.items()) for each in judged.sizes if each
            )
            lines.append(
                f"  {judged.compared} values agree to {judged.largest:.1e} in {judged.runtime}"
                + (f", at {sizes}" if sizes else "")
            )
        return "\n".join([*lines, *[f"  note    {note}" for note in self.notes]])


def export(
    f: Callable[..., Any],
    args: Any,
    path: str | os.PathLike[str],
    *,
    dynamic: Dynamic | None = None,
    opset: int | None = None,
    verify: bool = True,
    tolerance: float | None = None,
    external_data: bool | None = None,
) -> Report:
    """Write f as an ONNX file, run the file, and compare every value with Weft's.

    f: a module, or a function of tensors; modules are exported as in inference, and their
    parameters keep their names. args: a tuple of example tensors, or of types (`wf.spec`), whose
    symbols are kept. dynamic: sizes that may vary, by the name of the input:
    {"x": {0: "batch"}}. opset: 18 to 23; by default the lowest that has the operators. A file that
    does not agree, at two sizes where sizes vary, is not written: the error names the first value
    that differs and its line. external_data: the weights in a file beside the model, which happens
    by itself above 1.5 GiB.
    """
    require_onnx()
    target = Path(path)
    _check_target(target, opset)
    program = trace_program(f, args, dynamic or {})
    model = Model(LARGEST_OPSET if opset is None else opset)
    renamed = _write_program(model, program)
    if opset is not None:
        model.needed = opset
    size = sum(each.nbytes for each in model.constants.values())
    beside = size > MESSAGE_LIMIT if external_data is None else external_data
    folder = Path(tempfile.mkdtemp(prefix=".weft-onnx-", dir=target.parent))
    try:
        files = _write_files(model, program.name, renamed, folder / target.name, beside)
        judged = verify_file(files[0], program, model, renamed, tolerance) if verify else None
        for file in reversed(files):  # the model last: it appears when it is whole
            os.replace(file, target.with_name(file.name))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    writes = [f"a call changes {name} here, and {NO_STATE}" for name in program.written]
    notes = (*model.notes, *writes, *(judged.notes if judged else ()))
    kinds = {renamed.get(name, name): kind for name, kind in model.root.block.outputs}
    return Report(
        target,
        model.needed,
        program.inputs,
        kinds,
        dict(Counter(node.operator for node in _all_nodes(model)).most_common()),
        len(program.state),
        judged,
        notes,
    )


def _check_target(target: Path, opset: int | None) -> None:
    if opset is not None and not SMALLEST_OPSET <= opset <= LARGEST_OPSET:
        raise wf.ArgumentError(
            OP,
            f"opset {opset} is not written",
            expected=f"an opset from {SMALLEST_OPSET} to {LARGEST_OPSET}",
            got={"opset": opset},
            fix="leave it out: the lowest that has the operators is chosen",
        )
    if not target.parent.is_dir() or target.is_dir():
        raise wf.ArgumentError(
            OP,
            "the file cannot be written there",
            expected="a path of a file in a folder that exists",
            got={"path": str(target)},
            fix="make the folder first: mkdir -p " + str(target.parent),
        )


def _write_program(model: Model, program: Program) -> dict[str, str]:
    """Write a traced program into a model; gives the names that its outputs are to have."""
    root, graph = model.root, program.graph
    count = len(program.state)
    for name in (*program.inputs, *program.outputs):
        model.fresh(name)
    for variable, (name, tensor) in zip(graph.inputs[:count], program.state.items(), strict=True):
        root.values[variable] = name
        model.fresh(name)
        model.constants[name] = tensor.detach().numpy()
        root.parameters[variable] = model.constants[name]
    for variable, (name, kind) in zip(graph.inputs[count:], program.inputs.items(), strict=True):
        element_type(kind.dtype)
        root.values[variable] = name
        root.block.inputs.append((name, variable.type))
        for axis, dim in enumerate(variable.type.shape):
            if not isinstance(dim, int) and str(dim).isidentifier():
                model.sources.setdefault(str(dim), (name, axis))
    write_nodes(root, graph)
    return _write_outputs(model, program)


def _write_outputs(model: Model, program: Program) -> dict[str, str]:
    root = model.root
    own = {name for node in root.block.nodes for name in node.outputs}
    renamed: dict[str, str] = {}
    for atom, name in zip(program.graph.outputs, program.outputs, strict=True):
        element_type(atom.type.dtype)
        value = root.value(atom)
        if value not in own or value in renamed:
            value = root.op("Identity", value)
        renamed[value] = name
        root.block.outputs.append((value, atom.type))
    return renamed


def _write_files(
    model: Model, name: str, renamed: dict[str, str], path: Path, beside: bool
) -> list[Path]:
    """Write the model, and its weights beside it where asked for; gives the files, model first."""
    data_path = path.with_name(f"{path.name}.data")
    message, data = model_message(model, name, renamed, data_path.name if beside else None)
    path.write_bytes(message.SerializeToString())
    if not data:
        return [path]
    with data_path.open("wb") as file:
        file.writelines(data)
    return [path, data_path]


def _all_nodes(model: Model) -> list[Node]:
    """The nodes of all graphs."""
    waiting: list[Node] = [*model.root.prologue, *model.root.block.nodes]
    everything: list[Node] = []
    while waiting:
        node = waiting.pop()
        everything.append(node)
        for value in node.attributes.values():
            if isinstance(value, Block):
                waiting += value.nodes
    return everything
