"""The rules of ONNX's operators, by family; each file enters its own into the table."""

from weft.onnx.importing.rules import (
    attention,
    classical,
    control,
    elementwise,
    indexing,
    learning,
    movement,
    normalization,
    products,
    quantization,
    randomness,
    recurrent,
    reductions,
    resizing,
    sampling,
    signals,
    sizes,
    windows,
)

__all__ = [
    "attention", "classical", "control", "elementwise", "indexing", "learning", "movement",
    "normalization", "products", "quantization", "randomness", "recurrent", "reductions",
    "resizing", "sampling", "signals", "sizes", "windows",
]  # fmt: skip
