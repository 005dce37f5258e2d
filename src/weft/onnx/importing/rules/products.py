"""Matrix products, and what is made of them."""

from __future__ import annotations

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.elementwise import align
from weft.onnx.importing.rules.integer_products import Quantised, integer_matmul, origin_of
from weft.onnx.importing.running import Call

Tensor = wf.Tensor


@rule("MatMul")
def matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices, or of stacks of them."""
    whole = integer_matmul(origin_of(call, a), origin_of(call, b))
    return wf.matmul(a, b) if whole is None else whole


@rule("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha a b + beta c, with either matrix transposed."""
    whole = integer_matmul(_origin_in_order(call, "transA", a), _origin_in_order(call, "transB", b))
    product = whole
    if product is None:
        product = wf.matmul(a.T if call["transA"] else a, b.T if call["transB"] else b)
    product = product if call["alpha"] == 1.0 else (call["alpha"] * product).astype(a.dtype)
    if c is None:
        return product
    c = align(call, product, c)
    return product + (c if call["beta"] == 1.0 else (call["beta"] * c).astype(a.dtype))


def _origin_in_order(call: Call, attribute: str, value: Tensor) -> Quantised | None:
    """What an operand was dequantised from, transposed where the node says so."""
    origin = origin_of(call, value)
    return origin.transpose() if origin is not None and call[attribute] else origin


@rule("Einsum")
def einsum(call: Call, *operands: Tensor) -> Tensor:
    """A sum of products in Einstein's notation."""
    return wf.einsum(call["equation"].replace(" ", ""), *operands)


@rule("Det")
def determinant(call: Call, x: Tensor) -> Tensor:
    """The determinant of matrices."""
    return wf.linalg.det(x)


@rule("Trilu", known=(1,), moves=True)
def triangle(call: Call, x: Tensor, k: Array | None = None) -> Tensor:
    """The upper or lower triangle of matrices."""
    offset = 0 if k is None else int(k.reshape(-1)[0])
    return wf.triu(x, k=offset) if call["upper"] else wf.tril(x, k=offset)
