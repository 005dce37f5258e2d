"""Operators that take a neighbour in: a product with its bias, a pooled mean, a plain index.

>>> import weft as wf
>>> from weft.onnx.exporting.joining import join
>>> from weft.onnx.exporting.writing import Model
>>> graph = wf.ir.trace(lambda x, w, b: x @ w.mT + b, *[wf.spec("float32", (2, 2))] * 3)
>>> [node.primitive.name for node in join(Model().root, graph)]
['dot', 'add']
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import weft as wf
from weft.onnx.exporting.blocks import RECOGNISERS, Match
from weft.onnx.exporting.indexing import write_gather, write_transposed
from weft.onnx.exporting.matching import View
from weft.onnx.exporting.products import matrix_product, write_convolution
from weft.onnx.exporting.writing import Writer

__all__ = ["join"]

GEMM = (wf.float16, wf.float32, wf.float64)


def join(writer: Writer, graph: Any) -> dict[Any, Match]:
    """The nodes that are written together with those behind them."""
    view = View(graph)
    matches: dict[Any, Match] = {}
    for node in graph.nodes:
        for find in (_gemm, _convolution, _pooled_mean, _counted_from_end):
            match = find(view, node)
            if match is not None:
                matches[node] = match
    return matches


RECOGNISERS.append(join)


def _gemm(view: View, node: Any) -> Match | None:
    """x · w + b of matrices, where w may be transposed."""
    product, bias = node, None
    if node.primitive.name == "add":
        product, bias = _with_other(view, node, "dot")
        if product is None or bias is None or bias.type.ndim > 2 or not _fits_rows(bias, node):
            return None
    if product.primitive.name != "dot" or product.results[0].type.dtype not in GEMM:
        return None
    a, b = product.operands
    plain = matrix_product([a.type, b.type], product.params["contract"], product.params["batch"])
    if plain is None or a.type.ndim != 2 or b.type.ndim != 2:
        return None
    turned = view.maker(b, "transpose")
    is_turned = plain == "transposed"
    if turned is not None:
        b, is_turned = turned.operands[0], not is_turned
    if bias is None and not is_turned:
        return None  # MatMul as it is

    def write(writer: Writer, node: Any, values: Sequence[str]) -> str:
        return writer.op("Gemm", *values, transB=1 if is_turned else None)

    return Match((a, b) if bias is None else (a, b, bias), write)


def _with_other(view: View, node: Any, name: str) -> tuple[Any, Any]:
    """The operand's maker of a primitive and the other operand of a sum."""
    for position in (0, 1):
        maker = view.maker(node.operands[position], name)
        if maker is not None:
            return maker, node.operands[1 - position]
    return None, None


def _fits_rows(bias: Any, node: Any) -> bool:
    """Whether a bias only repeats: the sum has the shape of the product."""
    wanted = node.results[0].type.shape
    sizes = zip(bias.type.shape[::-1], wanted[::-1], strict=False)
    return all(size == 1 or size == whole for size, whole in sizes)


def _convolution(view: View, node: Any) -> Match | None:
    """A convolution and a number for each channel."""
    if node.primitive.name != "add":
        return None
    product, bias = _with_other(view, node, "conv")
    if product is None:
        product, bias = _with_other(view, node, "conv_input_gradient")
    column = view.maker(bias, "reshape") if product is not None else None
    if column is None or str(product.results[0].type) != str(node.results[0].type):
        return None
    channels = product.results[0].type.shape[1]
    spatial = len(product.params["strides"])
    shape = tuple(column.params["shape"])
    if shape not in ((channels, *[1] * spatial), (1, channels, *[1] * spatial)):
        return None
    if column.operands[0].type.ndim != 1:
        return None

    def write(writer: Writer, node: Any, values: Sequence[str]) -> str:
        is_plain = product.primitive.name == "conv"
        return (write_convolution if is_plain else write_transposed)(writer, product, *values)

    return Match((*product.operands, column.operands[0]), write)


def _pooled_mean(view: View, node: Any) -> Match | None:
    """A sum over windows divided by the size of a window."""
    if node.primitive.name != "divide" or not isinstance(node.operands[1], wf.ir.Literal):
        return None
    pooled = view.maker(node.operands[0], "window_sum")
    if pooled is None or node.operands[1].value.ndim:
        return None
    params = pooled.params
    is_mean = float(node.operands[1].value) == prod(params["window"])
    kind = pooled.operands[0].type
    widths = zip(params["padding"], params["window"], strict=True)
    fits = all(low < width and high < width for (low, high), width in widths)
    has_holes = any(step != 1 for step in params["dilation"])
    if (
        not is_mean
        or not fits
        or has_holes
        or 0 in kind.shape
        or kind.ndim != len(params["window"]) + 2
    ):
        return None

    def write(writer: Writer, node: Any, values: Sequence[str]) -> str:
        pads = [low for low, _ in params["padding"]] + [high for _, high in params["padding"]]
        return writer.op(
            "AveragePool",
            *values,
            kernel_shape=list(params["window"]),
            strides=list(params["strides"]),
            pads=pads,
            count_include_pad=1 if any(pads) else None,
        )

    return Match((pooled.operands[0],), write) if kind.dtype in GEMM[:2] else None


def _counted_from_end(view: View, node: Any) -> Match | None:
    """A gather whose indices below zero count from the end, as they do in ONNX by themselves."""
    if node.primitive.name != "gather":
        return None
    x, *indices = node.operands
    pairs = zip(indices, node.params["axes"], strict=True)
    plain = [_plain_index(view, index, x.type.shape[axis]) for index, axis in pairs]
    if all(new is old for new, old in zip(plain, indices, strict=True)):
        return None

    def write(writer: Writer, node: Any, values: Sequence[str]) -> Any:
        return write_gather(writer, node, *values)

    return Match((x, *plain), write)


def _plain_index(view: View, index: Any, size: Any) -> Any:
    """The index i behind where(i < 0, i + size, i); the index itself where it is none."""
    chosen = view.maker(index, "where")
    if chosen is None:
        return index
    test, moved, plain = chosen.operands
    below, sum_ = view.maker(test, "less"), view.maker(moved, "add")
    if below is None or sum_ is None or below.operands[0] is not plain:
        return index
    is_zero = _is_number(below.operands[1], 0)
    is_size = sum_.operands[0] is plain and _is_number(sum_.operands[1], size)
    return plain if is_zero and is_size else index


def _is_number(atom: Any, number: Any) -> bool:
    is_plain = isinstance(atom, wf.ir.Literal) and atom.value.ndim == 0
    return is_plain and isinstance(number, int) and int(atom.value) == number
