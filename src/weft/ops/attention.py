"""Scaled dot-product attention: its result and its gradient, each as one primitive.

With q: [..., heads, queries, head], k: [..., heads/g, keys, head], v: [..., heads/g, keys, value],
where g heads of queries share a head of keys and values:

    s[i, j] = scale · q[i] · k[j]  (+ mask[i, j], or hidden where mask[i, j] is false)
    p = softmax(s) along j,   out = p · v,   lse[i] = log Σⱼ exp s[i, j]

A key that a query does not see counts as if it were not there. With an `offset`, query i sees the
keys j ≤ i + offset: 0 lets equal positions meet, keys - queries lets the last query see the last
key. A row that sees no key has an lse of -inf; with `guarded` it is 0, without it is NaN.

With `kept` below 1 the last operands are a key, [..., 2], and data beside it, [...], and a
probability stays, divided by `kept`, where the uniform number drawn for it is less; the others are
0. They are the numbers that `wf.random.dropout` draws for the matrix of probabilities.

`attention_gradient` gets probabilities back from scores and lse, so that nothing of size queries ×
keys has to be kept. Derivatives of it, and forward mode, go through the plain formula.

>>> import weft as wf
>>> q = wf.ones((1, 2, 4))
>>> wf.scaled_dot_product_attention(q, q, wf.tensor([[[1.0], [3.0]]]), causal=True).tolist()
[[[1.0], [2.0]]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.dtypes import INDEX, DType, bfloat16, bool_, float16, float32, uint32, uint64
from weft.core.errors import DTypeError, ShapeError
from weft.core.shapes import Dimension, Shape, require_equal, size
from weft.core.types import TensorType
from weft.ir import forward, reverse
from weft.ir.batching import to_front
from weft.ir.derivatives import joint
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.kinds import Contraction, Operations
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.comparison import equal, less, less_equal
from weft.ops.contraction import dot
from weft.ops.creation import iota
from weft.ops.elementary import exp, log
from weft.ops.identity import stop_gradient
from weft.ops.logic import bitwise_right_shift
from weft.ops.movement import reshape
from weft.ops.operands import DTYPE_CLASSES, convert_to, wrong_dtype
from weft.ops.random_bits import DRAW, random_bits
from weft.ops.reduction import reduce_max, reduce_sum
from weft.ops.selection import where

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Offset = Dimension | None


# --- types -------------------------------------------------------------------------------------


def wide_dtype(dtype: DType) -> DType:
    """The dtype that sums are kept in: float32 for 16-bit floats."""
    return float32 if dtype in (float16, bfloat16) else dtype


def _check(op: str, got: dict[str, TensorType]) -> None:
    """Refuse queries, keys, values and masks that do not belong together."""
    q, k, v = got["q"], got["k"], got["v"]
    if len({x.dtype for x in (q, k, v)}) > 1 or q.dtype not in DTYPE_CLASSES["float"]:
        raise wrong_dtype(op, "float", got)
    if q.ndim < 3 or not q.ndim == k.ndim == v.ndim:
        raise ShapeError(
            op,
            "q, k and v are not stacks of heads",
            expected="[..., heads, time, head] for q, k and v, with as many axes in each",
            got=got,
            fix="give each an axis for heads: x[..., None, :, :]",
        )
    pairs = [
        (q, k, -1, "the sizes of a head of q and k differ"),
        (k, v, -2, "k and v have different numbers of keys"),
        (k, v, -3, "k and v have different numbers of heads"),
        *[(q, x, axis, "batch axes differ") for x in (k, v) for axis in range(q.ndim - 3)],
    ]
    for a, b, axis, problem in pairs:
        require_equal(
            op,
            a.shape[axis],
            b.shape[axis],
            expected="equal sizes there",
            got=got,
            fix="broadcast or repeat the smaller one: wf.broadcast_to(x, shape)",
            what=problem,
        )
    _check_heads(op, q, k, got)
    if "mask" in got:
        _check_mask(op, got)
    if "key" in got:
        _check_key(op, got)


def _check_heads(op: str, q: TensorType, k: TensorType, got: dict[str, TensorType]) -> None:
    heads, shared = q.shape[-3], k.shape[-3]
    whole = isinstance(heads, int) and isinstance(shared, int) and shared > 0
    if heads == shared or (whole and heads % shared == 0):
        return
    raise ShapeError(
        op,
        "the heads of q are not a multiple of those of k and v",
        expected="q.shape[-3] % k.shape[-3] == 0",
        got=got,
        fix="use as many heads, or heads that groups of q's share",
    )


def _check_mask(op: str, got: dict[str, TensorType]) -> None:
    mask, wanted = got["mask"], scores_shape(got["q"].shape, got["k"].shape)
    if mask.dtype not in (bool_, got["q"].dtype, wide_dtype(got["q"].dtype)):
        raise DTypeError(
            op,
            "the mask is neither of truth values nor of q's dtype",
            expected=f"bool, or {got['q'].dtype} that is added to scores",
            got=got,
            fix="mask.astype(q.dtype)" if mask.dtype.is_inexact else "mask != 0",
        )
    sizes = zip(mask.shape[::-1], wanted[::-1], strict=False)
    if mask.ndim > len(wanted) or any(a not in (1, b) for a, b in sizes):
        raise ShapeError(
            op,
            "the mask does not broadcast to the scores",
            expected=f"a shape that broadcasts to {wanted}: [..., heads, queries, keys]",
            got=got,
            fix="give it axes of size 1: mask[:, None, None, :] hides keys of each batch",
        )


def scores_shape(q: Shape, k: Shape) -> Shape:
    """[..., heads, queries, keys]."""
    return (*q[:-1], k[-2])


def _operands_by_name(operands: Sequence[Any], *more: str, kept: float) -> dict[str, Any]:
    """Operands by name; there may be a mask, and there is a key where probabilities are dropped."""
    drawn = ("key", "data") if kept < 1 else ()
    names = ("q", "k", "v", *more)
    masks = ("mask",) if len(operands) > len(names) + len(drawn) else ()
    return dict(zip((*names, *masks, *drawn), operands, strict=True))


def _check_key(op: str, got: dict[str, TensorType]) -> None:
    key, data, lead = got["key"], got["data"], got["q"].shape[:-3]
    words = key.dtype is uint32 and data.dtype is uint64 and key.shape == (*data.shape, 2)
    if words and data.shape == lead[: data.ndim]:
        return
    raise ShapeError(
        op,
        "the key is not two words, or not one key for each of the first axes",
        expected="key: u32[2] and data: u64[], or u32[batch, 2] and u64[batch]",
        got=got,
        fix="wf.random.key(0)",
    )


def _attention_type(
    *operands: TensorType, offset: Offset, scale: float, guarded: bool, kept: float = 1.0
) -> tuple[TensorType, TensorType]:
    got = _operands_by_name(operands, kept=kept)
    _check("attention", got)
    q, v = got["q"], got["v"]
    out = q.with_shape((*q.shape[:-1], v.shape[-1]))
    return out, TensorType(wide_dtype(q.dtype), q.shape[:-1])


def _gradient_type(
    *operands: TensorType, offset: Offset, scale: float, guarded: bool, kept: float = 1.0
) -> tuple[TensorType, TensorType, TensorType]:
    got = _operands_by_name(operands, "lse", "ct", "delta", kept=kept)
    _check("attention_gradient", got)
    out, rows = _attention_type(
        *[got[name] for name in ("q", "k", "v")], offset=offset, scale=scale, guarded=guarded
    )
    if got["ct"] != out or got["lse"] != rows or got["delta"] != rows:
        raise ShapeError(
            "attention_gradient",
            "lse, ct and delta are not of this attention",
            expected=f"ct: {out}, lse and delta: {rows}",
            got=got,
            fix="use what attention has returned for the same q, k and v",
        )
    return got["q"], got["k"], got["v"]


# --- the reference -----------------------------------------------------------------------------


def _scores(q: Array, k: Array, mask: Array | None, offset: Any, scale: float) -> Array:
    """Scores in the dtype of sums, -inf where a key is hidden: [..., shared, group, i, j]."""
    # Queries [..., shared, group, i, head] times keys [..., shared, 1, head, j].
    scores: Array = q @ _transpose_keys(k) * q.dtype.type(scale)
    if mask is not None:
        grouped_mask = _group_mask(mask, k.shape[-3], q.shape[-3], scores.ndim)
        is_boolean = mask.dtype == bool
        scores = np.where(grouped_mask, scores, -np.inf) if is_boolean else scores + grouped_mask
    if offset is not None:
        i, j = np.arange(scores.shape[-2]), np.arange(scores.shape[-1])
        scores = np.where(j <= i[:, None] + offset, scores, -np.inf)
    return scores.astype(q.dtype, copy=False)


def _group_mask(mask: Array, shared: int, group: int, ndim: int) -> Array:
    """The mask with its axis of heads, if it has more than one, divided into groups."""
    # Axes of size 1 in front, up to [..., heads, queries, keys].
    wide = mask.reshape(*[1] * (ndim - 1 - mask.ndim), *mask.shape)
    heads = wide.shape[-3]
    groups = (shared, group) if heads > 1 else (1, 1)
    return wide.reshape(*wide.shape[:-3], *groups, *wide.shape[-2:])


def _transpose_keys(x: Array) -> Array:
    """Keys or values as [..., shared, 1, head, keys]."""
    return x[..., None, :, :].swapaxes(-1, -2)


def _in_groups(x: Array, shared: int) -> Array:
    """Queries as [..., shared, group, queries, head]."""
    heads = x.shape[-3]
    return x.reshape(*x.shape[:-3], shared, heads // max(1, shared), *x.shape[-2:])


def _in_float32(got: dict[str, Array]) -> dict[str, Array]:
    """16-bit operands as float32; what is float32 already, or no number, stays as it is."""
    narrow = got["q"].dtype.itemsize == 2
    unchanged = ("lse", "delta", "key", "data")
    return {
        name: x.astype(np.float32) if narrow and x.dtype != bool and name not in unchanged else x
        for name, x in got.items()
    }


def _apply_dropout(x: Array, got: dict[str, Array], kept: float) -> Array:
    """Powers, or their cotangents, with dropout: [..., shared, group, i, j]."""
    if kept >= 1:
        return x
    q, k, key, data = (got[name] for name in ("q", "k", "key", "data"))
    shape = scores_shape(q.shape, k.shape)[data.ndim :]
    params = {"shape": shape, "dtype": uint32, "domain": DRAW}
    # 24 bits are what a float32 holds exactly: a uniform number in [0, 1), as `dropout` draws it.
    high = random_bits.reference(key, data, **params) >> np.uint32(8)
    stays = _in_groups(high.astype(np.float32) * np.float32(2**-24) < np.float32(kept), k.shape[-3])
    scaled: Array = x * q.dtype.type(1 / kept if kept else 0)
    return np.where(stays, scaled, q.dtype.type(0))


def _attention(
    *operands: Array, offset: Any, scale: float, guarded: bool, kept: float = 1.0
) -> tuple[Array, Array]:
    dtype, shape = operands[0].dtype, operands[0].shape
    got = _in_float32(_operands_by_name(operands, kept=kept))
    q, k, v = (got[name] for name in "qkv")
    with np.errstate(all="ignore"):
        # [..., shared, group, queries, keys]; rows without a key are -inf throughout.
        scores = _scores(_in_groups(q, k.shape[-3]), k, got.get("mask"), offset, scale)
        top = scores.max(axis=-1, initial=-np.inf)
        # The maximum is subtracted so that no power overflows; -inf less -inf would be NaN.
        powers = np.exp(scores - np.where(np.isneginf(top), 0, top)[..., None])
        total = powers.sum(axis=-1)
        lse = np.where(np.isneginf(top), -np.inf, top + np.log(total))
        safe = np.where(total == 0, 1, total) if guarded or not k.shape[-2] else total
        # [..., shared, group, queries, keys] times values [..., shared, 1, keys, value]; divided
        # last: where scores are no numbers nor is the result, whatever is dropped
        out = _apply_dropout(powers, got, kept) @ v[..., None, :, :] / safe[..., None]
    out = out.reshape(*shape[:-1], v.shape[-1]).astype(dtype, copy=False)
    return out, lse.reshape(shape[:-1]).astype(q.dtype, copy=False)


def _attention_gradient(
    *operands: Array, offset: Any, scale: float, guarded: bool, kept: float = 1.0
) -> tuple[Array, Array, Array]:
    dtype, shape = operands[0].dtype, operands[0].shape
    got = _in_float32(_operands_by_name(operands, "lse", "ct", "delta", kept=kept))
    k, v = got["k"], got["v"]
    shared = k.shape[-3]
    q, ct = _in_groups(got["q"], shared), _in_groups(got["ct"], shared)
    lse, delta = (_in_groups(got[name][..., None], shared) for name in ("lse", "delta"))
    with np.errstate(all="ignore"):
        scores = _scores(q, k, got.get("mask"), offset, scale)
        # Probabilities again, [..., shared, group, queries, keys]: softmax(s) = exp(s - lse).
        weights = np.exp(scores - (np.where(np.isneginf(lse), 0, lse) if guarded else lse))
        # The softmax's derivative: p · (dp - Σ dp·p), where the sum is delta.
        back = _apply_dropout(ct @ _transpose_keys(v), got, kept)
        dscores = weights * (back - delta) * q.dtype.type(scale)
        dq = (dscores @ k[..., None, :, :]).reshape(shape)
        # All query heads of a group add to the one head of keys and values that they share.
        dk = (dscores.swapaxes(-1, -2) @ q).sum(axis=-3)
        dv = (_apply_dropout(weights, got, kept).swapaxes(-1, -2) @ ct).sum(axis=-3)
    return dq.astype(dtype), dk.astype(dtype), dv.astype(dtype)


# --- the plain formula, for derivatives ----------------------------------------------------------


class _Plain:
    """Attention made of products; the heads of a group lie one after the other as more queries."""

    def __init__(self, got: dict[str, Tensor], kept: float) -> None:
        q, k, v = (got[name] for name in "qkv")
        self.shape, self.dtype, self.mask = q.shape, q.dtype, got.get("mask")
        self.key, self.data, self.kept = got.get("key"), got.get("data"), kept
        self.shared, self.stack = k.shape[-3], q.ndim - 2
        self.k, self.v = (convert_to(x, wide_dtype(x.dtype)) for x in (k, v))
        self.q = self.group_queries(q)

    def group_queries(self, x: Tensor) -> Tensor:
        """Queries as [..., shared, group · queries, last], in the dtype of sums."""
        group = 0 if self.shared == 0 else self.shape[-3] // self.shared
        shape = (*x.shape[:-3], self.shared, group * x.shape[-2], x.shape[-1])
        return apply(reshape, convert_to(x, wide_dtype(x.dtype)), shape=shape)

    def ungroup_queries(self, x: Tensor) -> Tensor:
        """The inverse of `group_queries`: [..., heads, queries, last]."""
        return apply(reshape, x, shape=(*self.shape[:-1], x.shape[-1]))

    def product(self, a: Tensor, b: Tensor, left: int, right: int) -> Tensor:
        """a times b in each stack, summed over axis `left` of a's matrices and `right` of b's."""
        contract, axes = ((self.stack + left,), (self.stack + right,)), tuple(range(self.stack))
        return apply(dot, a, b, contract=contract, batch=(axes, axes))

    def scores(self, offset: Offset, scale: float) -> Tensor:
        """[..., heads, queries, keys], -inf where a key is hidden."""
        s = self.ungroup_queries(self.product(self.q, self.k, 1, 1)) * scale
        if self.mask is not None and self.mask.dtype is bool_:
            s = where(self.mask, s, -np.inf)
        elif self.mask is not None:
            s = s + convert_to(self.mask, s.dtype)
        return s if offset is None else where(_causal_mask(s.shape, offset), s, -np.inf)

    def apply_dropout(self, x: Tensor) -> Tensor:
        """[..., heads, queries, keys] with the factors of dropout."""
        if self.key is None or self.data is None:
            return x
        params = {"shape": x.shape[self.data.ndim :], "dtype": uint32, "domain": DRAW}
        words = apply(random_bits, self.key, self.data, **params)
        drawn = convert_to(bitwise_right_shift(words, 8), float32) * 2.0**-24
        return where(less(drawn, self.kept), x / self.kept if self.kept else x * 0.0, 0.0)


def _causal_mask(shape: Shape, offset: Dimension) -> Tensor:
    """Whether key j is not after query i + offset."""
    i, j = (apply(iota, shape=tuple(shape[-2:]), dtype=INDEX, axis=axis) for axis in (0, 1))
    return less_equal(j, i + offset)


def _rows(x: Tensor) -> Tensor:
    """A number for each query, [..., queries, 1], to broadcast along the keys."""
    return apply(reshape, x, shape=(*x.shape, 1))


def _or_zero(x: Tensor) -> Tensor:
    """The tensor with 0 in place of -inf."""
    return where(equal(x, -np.inf), 0.0, x)


def plain_attention(
    *operands: Tensor, offset: Offset, scale: float, guarded: bool, kept: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What `attention` computes, made of products and exponentials."""
    plain, q = _Plain(_operands_by_name(operands, kept=kept), kept), operands[0]
    scores = plain.scores(offset, scale)
    last = (scores.ndim - 1,)
    if is_zero(plain.k.shape[-2]):
        top = reverse.filled_tensor(q.shape[:-1], scores.dtype, -np.inf)
    else:
        top = apply(reduce_max, stop_gradient(scores), axes=last)
    powers = exp(scores - _rows(_or_zero(top)))  # [..., heads, queries, keys]
    total = apply(reduce_sum, powers, axes=last)  # [..., heads, queries]
    empty = equal(total, 0.0)
    nonzero_total = where(empty, 1.0, total)
    lse = where(empty, -np.inf, _or_zero(top) + log(nonzero_total))
    weighted = plain.product(plain.group_queries(plain.apply_dropout(powers)), plain.v, 1, 0)
    is_guarded = guarded or is_zero(plain.k.shape[-2])
    out = plain.ungroup_queries(weighted) / _rows(nonzero_total if is_guarded else total)
    return convert_to(out, q.dtype), lse


def plain_gradient(
    *operands: Tensor, offset: Offset, scale: float, guarded: bool, kept: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """What `attention_gradient` computes, made of products and exponentials."""
    got = _operands_by_name(operands, "lse", "ct", "delta", kept=kept)
    plain, q, lse = _Plain(got, kept), got["q"], got["lse"]
    scores = plain.scores(offset, scale)
    weights = exp(scores - _rows(_or_zero(lse) if guarded else lse))  # [..., heads, queries, keys]
    ct = plain.group_queries(got["ct"])  # [..., shared, group · queries, value]
    dweights = plain.apply_dropout(plain.ungroup_queries(plain.product(ct, plain.v, 1, 1)))
    dscores = plain.group_queries(weights * (dweights - _rows(got["delta"])) * scale)
    dq = plain.ungroup_queries(plain.product(dscores, plain.k, 1, 0))
    # The sum over the rows of a group runs over its query heads too.
    dk = plain.product(dscores, plain.q, 0, 0)
    dv = plain.product(plain.group_queries(plain.apply_dropout(weights)), ct, 0, 0)
    return convert_to(dq, q.dtype), convert_to(dk, q.dtype), convert_to(dv, q.dtype)


# --- derivatives -------------------------------------------------------------------------------


Formula = Callable[..., tuple[Tensor, ...]]
Found = Sequence[Tensor | None]


def _forward_rule(formula: Formula) -> Callable[..., tuple[Tensor | None, ...]]:
    """Forward mode through the plain formula."""

    def push(primals: Sequence[Tensor], tangents: Found, out: Any, **params: Any) -> Any:
        _, output_tangents = forward.jvp(lambda *xs: formula(*xs, **params), primals, tangents)
        return tuple(output_tangents)

    return push


def _reverse_rule(formula: Formula) -> Callable[..., Found]:
    """Reverse mode through the plain formula."""

    def pull(
        cotangents: Found, out: Any, primals: Sequence[Tensor], wanted: Any, **params: Any
    ) -> Found:
        _, pullback = reverse.vjp(lambda *xs: formula(*xs, **params), *primals)
        backs = zip(pullback(cotangents), wanted, strict=True)
        return [back if want else None for back, want in backs]

    return pull


def _attention_reverse(
    cotangents: Found, out: Sequence[Tensor], primals: Sequence[Tensor], wanted: Any, **params: Any
) -> Found:
    """By `attention_gradient`; by the plain formula where the mask needs a gradient.

    A mask's gradient is as large as the scores, so that `attention_gradient` would save nothing.
    """
    named = _operands_by_name(primals, kept=params.get("kept", 1.0))
    if "mask" in named and wanted[3] and primals[3].dtype.is_inexact:
        return _reverse_rule(plain_attention)(cotangents, out, primals, wanted, **params)
    ct, lse_cotangent = cotangents
    assert ct is not None
    assert lse_cotangent is not None
    result, lse = out
    last = (result.ndim - 1,)
    wide = [convert_to(x, lse.dtype) for x in (ct, result)]
    # Σⱼ dp[i, j] · p[i, j] is ct[i] · out[i], as out is p · v; the derivative of lse is p.
    delta = apply(reduce_sum, wide[0] * wide[1], axes=last) - lse_cotangent
    q, k, v, *rest = primals
    gradients = apply_multiple(attention_gradient, q, k, v, lse, ct, delta, *rest, **params)
    return [*gradients, *[None for _ in rest]]


# --- batching ----------------------------------------------------------------------------------


def _batch(count: int, primitive_of: Callable[[], Primitive]) -> Callable[..., Any]:
    """The batch axis is one more in front; a mask gets axes of size 1 between it and its own."""

    def batch(
        size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], **params: Any
    ) -> Any:
        fronts = [to_front(size, x, axis) for x, axis in zip(operands, axes, strict=True)]
        masks = fronts[count:] if params.get("kept", 1.0) >= 1 else fronts[count:-2]
        for place, mask in enumerate(masks, count):
            missing = fronts[0].ndim - mask.ndim
            shape = (mask.shape[0], *[1] * missing, *mask.shape[1:])
            fronts[place] = apply(reshape, mask, shape=shape)
        results = apply_multiple(primitive_of(), *fronts, **params)
        return results, (0,) * len(results)

    return batch


# --- samples -----------------------------------------------------------------------------------


_PLAIN: dict[str, Any] = {"offset": None, "scale": 0.5, "guarded": False}


_KEYS, _DATA = np.array([[5, 6]], np.uint32), np.array([1 << 33], np.uint64)


def _sample_array(*shape: int, dtype: Any = np.float32) -> Array:
    seed = sum(shape) + 31 * len(shape)
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _mask() -> Array:
    """A mask that hides each key from some query, and all keys from one query."""
    return np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], bool)


def _cases() -> list[tuple[tuple[Array, ...], dict[str, Any]]]:
    q, k, v = _sample_array(2, 3, 4), _sample_array(2, 4, 4) * 2, _sample_array(2, 4, 2)
    shared = _sample_array(1, 1, 4, 4), _sample_array(1, 1, 4, 3)
    wide = _sample_array(1, 2, 3, 4)
    return [
        ((q, k, v), _PLAIN),
        ((q, k, v), {**_PLAIN, "offset": 1}),
        ((wide, *shared), {**_PLAIN, "offset": 0, "scale": 1.0}),
        ((wide, *shared, _sample_array(2, 1, 4)), _PLAIN),
        ((q, k, v, _mask()), {**_PLAIN, "guarded": True}),
        ((q, k, v, _mask()[2:]), _PLAIN),
        ((q, k, v, _sample_array(3, 4)), {**_PLAIN, "offset": -1, "guarded": True}),
        ((q, k, v, _KEYS[0], _DATA[0]), {**_PLAIN, "kept": 0.6}),
        ((wide, *shared, _sample_array(3, 4), _KEYS, _DATA), {**_PLAIN, "offset": 0, "kept": 0.3}),
    ]


def _samples() -> list[Sample]:
    empty = _sample_array(1, 2, 3), _sample_array(1, 0, 3), _sample_array(1, 0, 2)
    narrow = tuple(_sample_array(1, 2, 4, dtype=np.float16) for _ in range(3))
    return [
        *[Sample(given, params) for given, params in _cases() if _sees_keys(given, params)],
        Sample(empty, _PLAIN, derivative=False),
        Sample(narrow, _PLAIN, derivative=False),
    ]


def _sees_keys(operands: tuple[Array, ...], params: dict[str, Any]) -> bool:
    """Whether each query sees a key: finite differences need a finite lse."""
    return bool(np.isfinite(_attention(*operands, **params)[1]).all())


def _gradient_samples() -> list[Sample]:
    samples = []
    for forward_operands, params in _cases():
        q, k, v, *mask = forward_operands
        out, lse = _attention(*forward_operands, **params)
        ct = _sample_array(*out.shape)
        operands = (q, k, v, lse, ct, (ct * out).sum(-1), *mask)
        samples.append(Sample(operands, params, _sees_keys(forward_operands, params)))
    return samples


def _mistakes() -> list[Mistake]:
    q, k, v = _sample_array(2, 3, 4), _sample_array(2, 5, 4), _sample_array(2, 5, 2)
    return [
        Mistake((q[0], k[0], v[0]), _PLAIN, ShapeError, "not stacks of heads"),
        Mistake((q, k, v.astype(np.float64)), _PLAIN, DTypeError, "not defined for this dtype"),
        Mistake((q[..., :3], k, v), _PLAIN, ShapeError, "sizes of a head"),
        Mistake((q, k, v[:, :4]), _PLAIN, ShapeError, "numbers of keys"),
        Mistake((q, k[:1], v), _PLAIN, ShapeError, "numbers of heads"),
        Mistake((_sample_array(3, 3, 4), k, v), _PLAIN, ShapeError, "not a multiple"),
        Mistake((q, k, v, _sample_array(4, 5)), _PLAIN, ShapeError, "does not broadcast"),
        Mistake((q, k, v, np.ones((3, 5), np.int32)), _PLAIN, DTypeError, "neither of truth"),
        Mistake(
            (q, k, v, _KEYS[0, :1], _DATA[0]), {**_PLAIN, "kept": 0.5}, ShapeError, "not two words"
        ),
    ]


def _operations(heads: int, values: int) -> Operations:
    """For each query and key, products over a head and over a value; and an exponential."""

    def count(operands: Sequence[TensorType], *_: Any) -> Dimension:
        q, k, v = (kind.shape for kind in operands[:3])
        return size(q[:-1]) * k[-2] * (2 * heads * q[-1] + 2 * values * v[-1] + 1)

    return count


attention: Primitive = Primitive(
    "attention",
    "The mean of values, weighted by the softmax of scaled products of queries and keys; and lse.",
    kind=Contraction(_operations(1, 1), "attention"),
    sharding=shardings.of_attention,
    type_rule=_attention_type,
    reference=_attention,
    derivatives=joint(jvp=_forward_rule(plain_attention), vjp=_attention_reverse),
    batch=_batch(3, lambda: attention),
    samples=_samples,
    mistakes=_mistakes,
    multiple=True,
)

attention_gradient: Primitive = Primitive(
    "attention_gradient",
    "The cotangents of attention's q, k and v; delta is the sum of ct · out, less that of lse.",
    kind=Contraction(_operations(3, 2), "attention"),
    sharding=shardings.of_attention,
    type_rule=_gradient_type,
    reference=_attention_gradient,
    derivatives=joint(jvp=_forward_rule(plain_gradient), vjp=_reverse_rule(plain_gradient)),
    batch=_batch(6, lambda: attention_gradient),
    samples=_gradient_samples,
    multiple=True,
)
