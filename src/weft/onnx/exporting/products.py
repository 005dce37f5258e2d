"""Products, convolutions and attention.

>>> from weft.onnx.exporting.rules import RULES
>>> "dot" in RULES
True
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.onnx.exporting.movement import expand_value
from weft.onnx.exporting.randomness import DRAW, random_words
from weft.onnx.exporting.rules import (
    INLINE,
    as_sum,
    computed_in,
    program,
    refuse,
    rule,
    summed_in,
)
from weft.onnx.exporting.writing import Writer

__all__ = ["matrix_product", "write_convolution"]

ATTENTION_OPSET = 23


@rule("dot")
def _dot(writer: Writer, node: Any, a: str, b: str) -> str:
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, "f16 f32 f64 i32 i64")
    inputs = [writer.cast(each, dtype, wide) for each in (a, b)]
    kinds = [operand.type for operand in node.operands]
    plain = matrix_product(kinds, node.params["contract"], node.params["batch"])
    if not node.params["contract"][0] and not node.params["batch"][0]:
        column = [*kinds[0].shape, *[1] * kinds[1].ndim]
        left = writer.reshape(inputs[0], column) if kinds[0].ndim and kinds[1].ndim else inputs[0]
        value = writer.op("Mul", left, inputs[1])
    elif plain is None:
        value = writer.op("Einsum", *inputs, equation=_equation(node))
    elif plain == "transposed" and kinds[1].ndim == 2 and kinds[0].ndim == 2 and wide.is_floating:
        value = writer.op("Gemm", *inputs, transB=1)
    elif plain == "transposed":
        order = [*range(kinds[1].ndim - 2), kinds[1].ndim - 1, kinds[1].ndim - 2]
        value = writer.op("MatMul", inputs[0], writer.op("Transpose", inputs[1], perm=order))
    else:
        value = writer.op("MatMul", *inputs)
    return writer.cast(value, wide, dtype)


def matrix_product(kinds: Sequence[wf.TensorType], contract: Any, batch: Any) -> str | None:
    """The word "plain" for MatMul, "transposed" where the second is turned first; None for else."""
    a, b = kinds
    (left, right), stack = contract, len(batch[0])
    if len(left) != 1 or left != (a.ndim - 1,) or a.ndim - stack < 1:
        return None
    if tuple(batch[0]) != tuple(range(stack)) or tuple(batch[1]) != tuple(range(stack)):
        return None
    if b.ndim - stack != 2 or (stack and a.ndim - stack != 2):
        return None
    if right == (stack,):
        return "plain"
    return "transposed" if right == (stack + 1,) else None


def _equation(node: Any) -> str:
    """The product as Einsum writes it: batch axes, then the free axes of both."""
    letters = iter(string.ascii_letters)
    a, b = (operand.type.ndim for operand in node.operands)
    left, right = [""] * a, [""] * b
    for pairs in (node.params["batch"], node.params["contract"]):
        for i, j in zip(*pairs, strict=True):
            left[i] = right[j] = next(letters)
    left = [each or next(letters) for each in left]
    right = [each or next(letters) for each in right]
    stack = [left[i] for i in node.params["batch"][0]]
    summed = {left[i] for i in node.params["contract"][0]}
    free = [each for each in (*left, *right) if each not in summed and each not in stack]
    return f"{''.join(left)},{''.join(right)}->{''.join([*stack, *free])}"


@rule("conv")
def write_convolution(writer: Writer, node: Any, x: str, w: str, bias: str | None = None) -> str:
    """A convolution, perhaps with a number added to each channel."""
    dtype, params = node.operands[0].type.dtype, node.params
    terms = math.prod(node.operands[1].type.shape[1:])
    wide = summed_in(dtype, "f16 f32 f64", 2, terms)
    given = [x, w] if bias is None else [x, w, bias]
    value = writer.op(
        "Conv",
        *[writer.cast(each, dtype, wide) for each in given],
        strides=list(params["strides"]),
        pads=[low for low, _ in params["padding"]] + [high for _, high in params["padding"]],
        dilations=list(params["dilation"]),
        group=params["groups"],
        kernel_shape=list(node.operands[1].type.shape[2:]),
    )
    return as_sum(writer, value, wide, dtype)


# --- attention -----------------------------------------------------------------------------------


@rule("attention")
def _attention(writer: Writer, node: Any, *operands: str) -> Sequence[str]:
    """The operator Attention, where it says the same, else the formula."""
    params, mask = node.params, node.operands[3].type if len(node.operands) > 3 else None
    if not _is_operator(writer, node, mask) or not writer.model.allows(ATTENTION_OPSET):
        return _write_formula(writer, node, operands)
    inputs = list(operands)
    shared = _sharing_heads(node)
    if shared > 1:  # definitions of the operator differ in which heads share keys
        for place in (1, 2):
            kind = node.operands[place].type
            repeated = wf.ir.trace(lambda x: wf.repeat(x, shared, axis=1), kind)
            inputs[place] = INLINE[0](writer, repeated, [operands[place]])[0]
    if mask is not None:  # runtimes repeat its batch and heads alone
        sizes = node.operands[0].type.shape[2], node.operands[1].type.shape[2]
        inputs[3] = expand_value(writer, operands[3], mask, (*mask.shape[:2], *sizes))
    value = writer.op(
        "Attention",
        *inputs,
        scale=params["scale"],
        is_causal=None if params["offset"] is None else 1,
    )
    if mask is not None and params["guarded"]:
        value = _zero_unseen_rows(writer, value, operands[3], node.operands[0].type)
    return value, ""


def _sharing_heads(node: Any) -> int:
    """How many heads of the queries share one of the keys; 1 where each has its own."""
    heads, shared = (node.operands[place].type.shape[-3] for place in (0, 1))
    return 1 if heads == shared else int(heads) // int(shared)


def _is_operator(writer: Writer, node: Any, mask: wf.TensorType | None) -> bool:
    """Whether the operator says the same: no dropout, one batch axis, no other causal offset."""
    q, offset = node.operands[0].type, node.params["offset"]
    is_plain = node.params.get("kept", 1.0) == 1.0 and q.ndim == 4
    is_aligned = offset is None or (isinstance(offset, int) and offset == 0)
    is_seen = mask is None or (mask.dtype is wf.bool and mask.ndim == 4)
    has_kernel = q.dtype in (wf.float32, wf.float64, wf.float16)
    return is_plain and is_aligned and is_seen and has_kernel and node.results[1] in writer.unread


def _write_formula(writer: Writer, node: Any, operands: Sequence[str]) -> Sequence[str]:
    types = [operand.type for operand in node.operands]
    if node.results[1] not in writer.unread:
        graph = wf.ir.trace(lambda *tensors: _formula(*tensors, **node.params), *types)
        return INLINE[0](writer, graph, operands)
    graph = wf.ir.trace(lambda *tensors: _formula(*tensors, **node.params)[0], *types)
    return [*INLINE[0](writer, graph, operands), ""]


def _zero_unseen_rows(writer: Writer, value: str, mask: str, q: wf.TensorType) -> str:
    """The result with zeros for queries that see no key."""
    last = writer.integers(-1)
    seen = writer.op("ReduceMax", writer.op("Cast", mask, to=wf.int32), last, keepdims=1)
    return writer.op("Where", writer.op("Cast", seen, to=wf.bool), value, writer.number(0, q.dtype))


def _formula(
    q: wf.Tensor,
    k: wf.Tensor,
    v: wf.Tensor,
    *more: wf.Tensor,
    offset: Any,
    scale: float,
    guarded: bool,
    kept: float = 1.0,
) -> tuple[wf.Tensor, wf.Tensor]:
    """Attention made of products; heads that share keys are repeated."""
    mask = more[0] if len(more) in (1, 3) else None
    dtype = q.dtype
    if dtype.itemsize == 2:
        q, k, v = (x.astype(wf.float32) for x in (q, k, v))
    group = 1 if q.shape[-3] == k.shape[-3] else int(q.shape[-3]) // int(k.shape[-3])
    if group > 1:
        k, v = wf.repeat(k, group, axis=-3), wf.repeat(v, group, axis=-3)
    if isinstance(k.shape[-2], int) and k.shape[-2] == 0:
        rows = wf.zeros((*q.shape[:-1], v.shape[-1]), dtype=dtype)
        return rows, wf.full(q.shape[:-1], -wf.inf, dtype=q.dtype)
    scores = _scores(q, k, mask, offset, scale)
    sees_all = offset is None or (isinstance(offset, int) and offset >= 0)
    if mask is None and sees_all and kept == 1.0:  # each query sees a key
        out = wf.softmax(scores, axis=-1) @ v
        return out.astype(dtype), wf.logsumexp(scores, axis=-1)
    top = wf.max(scores, axis=-1, keepdims=True)
    powers = wf.exp(scores - wf.where(wf.isneginf(top), 0.0, top))
    total = wf.sum(powers, axis=-1, keepdims=True)
    lse = wf.where(wf.isneginf(top), -wf.inf, top + wf.log(total))
    if guarded:
        total = wf.where(wf.equal(total, 0), 1.0, total)
    out = (_drop(powers, more[-2:] if kept < 1 else (), kept) / total) @ v
    return out.astype(dtype), wf.squeeze(lse, axis=-1)


def _drop(x: wf.Tensor, drawn_by: Sequence[wf.Tensor], kept: float) -> wf.Tensor:
    """[..., heads, queries, keys] with the factors of dropout, drawn as Weft draws them."""
    if not drawn_by:
        return x
    key, data = drawn_by
    words = random_words(key, data, x.shape[data.ndim :], wf.uint32, DRAW)
    drawn = (words >> 8).astype(wf.float32) * 2.0**-24
    return wf.where(drawn < kept, x / kept if kept else x * 0.0, 0.0)


@program("attention_gradient")
def _attention_gradient(
    *operands: wf.Tensor, offset: Any, scale: float, guarded: bool, kept: float = 1.0
) -> tuple[wf.Tensor, ...]:
    """Probabilities again from the scores and lse, and from them the gradients of q, k and v."""
    drawn_by = operands[-2:] if kept < 1 else ()
    operands = operands[: len(operands) - len(drawn_by)]
    dtype, shared = operands[0].dtype, operands[1].shape[-3]
    wide = [x.astype(wf.float32) if x.dtype.itemsize == 2 else x for x in operands]
    q, k, v, lse, ct, delta, *mask = wide
    group = 1 if q.shape[-3] == shared else int(q.shape[-3]) // int(shared)
    if group > 1:
        k, v = wf.repeat(k, group, axis=-3), wf.repeat(v, group, axis=-3)
    scores = _scores(q, k, mask[0] if mask else None, offset, scale)
    lse, delta = wf.expand_dims(lse, axis=-1), wf.expand_dims(delta, axis=-1)
    weights = wf.exp(scores - (wf.where(wf.isneginf(lse), 0.0, lse) if guarded else lse))
    dscores = weights * (_drop(ct @ v.mT, drawn_by, kept) - delta) * scale
    dk, dv = dscores.mT @ q, _drop(weights, drawn_by, kept).mT @ ct
    if group > 1:  # all heads of a group add to the one that they share
        dk, dv = (
            wf.sum(wf.reshape(x, (*x.shape[:-3], shared, group, *x.shape[-2:])), axis=-3)
            for x in (dk, dv)
        )
    return tuple(x.astype(dtype) for x in (dscores @ k, dk, dv))


def _scores(q: wf.Tensor, k: wf.Tensor, mask: Any, offset: Any, scale: float) -> Any:
    """Scaled products, -inf where a key is hidden: [..., heads, queries, keys]."""
    scores = (q @ k.mT) * scale
    if mask is not None:
        is_boolean = mask.dtype is wf.bool
        scores = wf.where(mask, scores, -wf.inf) if is_boolean else scores + mask.astype(q.dtype)
    if offset is not None:
        queries = wf.expand_dims(wf.arange(scores.shape[-2]), axis=1) + offset
        scores = wf.where(wf.arange(scores.shape[-1]) <= queries, scores, -wf.inf)
    return scores


# --- linear algebra ------------------------------------------------------------------------------

_NO_FACTORIZATION = "ONNX has no operator for factorizations, eigenvalues or solving"
refuse("adjugate_slope", _NO_FACTORIZATION)
refuse("adjugate", _NO_FACTORIZATION)
refuse("slogdet", _NO_FACTORIZATION)
refuse("eig", _NO_FACTORIZATION)
refuse("eigh", _NO_FACTORIZATION)
refuse("eigvals", _NO_FACTORIZATION)
refuse("eigvalsh", _NO_FACTORIZATION)
refuse("lu", _NO_FACTORIZATION)
refuse("qr", _NO_FACTORIZATION)
refuse("svd", _NO_FACTORIZATION)
refuse("svdvals", _NO_FACTORIZATION)
refuse("cholesky", _NO_FACTORIZATION)
refuse("inv", _NO_FACTORIZATION)
refuse("pinv", _NO_FACTORIZATION)
refuse("solve", _NO_FACTORIZATION)
refuse("triangular_solve", _NO_FACTORIZATION)
refuse("fft", "its results are complex numbers, which ONNX operators do not have")
refuse("rfft", "its results are complex numbers, which ONNX operators do not have")
refuse("irfft", "its operands are complex numbers, which ONNX operators do not have")


@rule("det")
def _det(writer: Writer, node: Any, x: str) -> str:
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, "f32 f64")
    return writer.cast(writer.op("Det", writer.cast(x, dtype, wide)), wide, dtype)
