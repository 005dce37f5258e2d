"""Attention: one operator, computed by the fused one of Weft wherever that says the same.

The standard's first definition of it (onnx 1.18) has mistakes that later ones correct: queries of
three axes were reshaped and not transposed, heads that share keys were dealt out in turns, causal
queries behind a cache did not see it, and a cap on scores let masked keys through. What is computed
here is what runtimes compute.
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.onnx.importing.reading import ELEMENTS
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call

Tensor = wf.Tensor


def _heads(call: Call, x: Tensor, attribute: str) -> Tensor:
    """[batch, time, heads * head] as [batch, heads, time, head]; four axes stay as they are."""
    if x.ndim == 4:
        return x
    count = call.get(attribute)
    if x.ndim != 3 or not count:
        raise call.refuse(f"inputs of {x.ndim} axes need {attribute}, and only 3 axes may have it")
    batch, time, width = x.shape
    return wf.swapaxes(x.reshape((batch, time, count, width // count)), 1, 2)


@rule("Attention", since=23)
def attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """The mean of values, weighted by the softmax of products with the keys."""
    if lengths is not None:
        raise call.refuse("keys of different lengths (nonpad_kv_seqlen)")
    q = _heads(call, query, "q_num_heads")
    k, v = (_heads(call, x, "kv_num_heads") for x in (key, value))
    key_count = k.shape[2]
    if past_key is not None and past_value is not None:
        k, v = wf.concat([past_key, k], axis=2), wf.concat([past_value, v], axis=2)
    offset = None if not call.get("is_causal", 0) else k.shape[2] - key_count
    cap, scores = float(call.get("softcap") or 0.0), None
    if cap or call.wants(3):
        out, scores = _written_out(call, q, k, v, mask, cap, offset)
    else:
        out = _fused_attention(q, k, v, mask, offset, call.get("scale"))
    if query.ndim == 3:
        batch, heads, time, head = out.shape
        out = wf.swapaxes(out, 1, 2).reshape((batch, time, heads * head))
    return out, k, v, scores


def _fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: Any, scale: float | None
) -> Tensor:
    """Attention by one primitive; offset: how many keys more than its own number a query sees."""
    aligned: Any = "start"
    if offset is not None and offset != 0:
        aligned = "end"
        if offset != k.shape[2] - q.shape[2]:  # neither end of the keys is where queries end
            mask, offset = _causal(k.shape[2], q.shape[2], offset, mask), None
    causal = offset is not None
    return wf.scaled_dot_product_attention(
        q, k, v, mask, causal=causal, aligned=aligned, scale=scale
    )


def _causal(keys: Any, queries: Any, offset: Any, mask: Tensor | None) -> Tensor:
    """The mask that keeps the keys up to each query's own, together with another mask."""
    seen: Tensor = wf.arange(keys) <= wf.arange(queries)[:, None] + offset
    if mask is None:
        return seen
    return seen & mask if mask.dtype is wf.bool else wf.where(seen, mask, -wf.inf)


def _written_out(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, cap: float, offset: Any
) -> tuple[Tensor, Tensor]:
    """Attention step by step, and the scores that the node shows."""
    shared = q.shape[1] // k.shape[1]
    if shared != 1:
        k, v = wf.repeat(k, shared, axis=1), wf.repeat(v, shared, axis=1)
    given = call.get("scale")
    scale = q.shape[-1] ** -0.5 if given is None else given
    if offset is not None:
        mask = _causal(k.shape[2], q.shape[2], offset, mask)
    scores = (scale * wf.matmul(q, wf.matrix_transpose(k))).astype(q.dtype)
    capped = cap * wf.tanh(scores / cap) if cap else scores  # [batch, heads, queries, keys]
    hidden = _masked_scores(capped, mask)
    code = call.get("softmax_precision")
    wide = hidden if not code else hidden.astype(ELEMENTS[code].name)
    unseen = wf.all(wf.isneginf(wide), axis=-1, keepdims=True)
    weights = wf.softmax(wf.where(unseen, 0.0, wide), axis=-1)
    weights = wf.where(unseen, 0.0, weights).astype(q.dtype)
    shown = (scores, _masked_scores(scores, mask), hidden, weights)[call["qk_matmul_output_mode"]]
    return wf.matmul(weights, v), shown


def _masked_scores(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores with -inf where a query does not see a key, or with what a mask adds."""
    if mask is None:
        return scores
    return wf.where(mask, scores, -wf.inf) if mask.dtype is wf.bool else scores + mask
