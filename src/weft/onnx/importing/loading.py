"""`load`: the way from an ONNX file to a module."""

from __future__ import annotations

from typing import Any

from weft.onnx.importing import rules  # noqa: F401  enters them into the table
from weft.onnx.importing.module import OnnxModule
from weft.onnx.importing.program import build_program
from weft.onnx.importing.reading import read_model

LARGEST = 1 << 28
"""Elements of a value whose size the file decides, unless the user allows more."""
MOST_STEPS = 100_000
"""Steps that a loop takes one by one, unless the user allows more."""


def load(source: Any, *, largest: int = LARGEST, most_steps: int = MOST_STEPS) -> OnnxModule:
    """The model in an ONNX file, as a module: named parameters, differentiable, compilable.

    `source` is a path, the bytes of a file, or an `onnx.ModelProto`. Floating-point initialisers
    become parameters, other tensors buffers; what decides sizes becomes part of the program. The
    module is in inference mode, and needs the package `onnx` (`pip install weft[onnx]`) to be read.

    A file may ask for more than any machine holds: a value whose size it decides has at most
    `largest` elements, and a loop that runs step by step takes at most `most_steps`.
    """
    model, folder = read_model(source)
    program = build_program(model, folder)
    version = next((each.version for each in model.opset_import if not each.domain), 0)
    producer = " ".join(filter(None, [model.producer_name, model.producer_version]))
    title = f"{model.graph.name or 'graph'}, opset {version}{f', by {producer}' * bool(producer)}"
    return OnnxModule(program, title, largest, most_steps).eval()
