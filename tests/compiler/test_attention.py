"""Attention: its kernels give what its reference gives, and its derivatives what formulas give."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.compiler.limits import change_pass_limits
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu.target import CPU, compile_program
from weft.ir.dispatch import bind
from weft.ir.loop_verify import verify_kernel
from weft.ir.primitive import PRIMITIVES
from weft.ir.tensor import wrap
from weft.ir.tracing import trace

Array = np.ndarray[Any, Any]
Params = dict[str, Any]
LIMITS = {"float64": 1e-11, "float32": 5e-5, "float16": 1e-2, "bfloat16": 8e-2}

KEYS = CPU.limits.lowering.attention_block_keys
LANES = CPU.limits.lowering.attention_block_queries
# (q, k, v), mask, offset: odd sizes, more than a block of queries and of keys, and shared heads
SHAPES = {
    "small": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3)),
    "blocks": ((1, 2, LANES + 3, 8), (1, 2, 2 * KEYS + 2, 8), (1, 2, 2 * KEYS + 2, 5)),
    "groups": ((2, 4, 33, 6), (2, 2, 70, 6), (2, 2, 70, 6)),
    "many heads": ((3, 8, 20, 16), (3, 4, 65, 16), (3, 4, 65, 36)),
    "long keys": ((1, 1, 9, 8), (1, 1, 5 * KEYS + 1, 8), (1, 1, 5 * KEYS + 1, 8)),
    "no batch": ((2, 17, 4), (1, 20, 4), (1, 20, 4)),
    "nothing": ((0, 2, 5, 4), (0, 2, 7, 4), (0, 2, 7, 4)),
    "no queries": ((1, 2, 0, 4), (1, 2, 7, 4), (1, 2, 7, 4)),
    "no keys": ((1, 2, 5, 4), (1, 2, 0, 4), (1, 2, 0, 4)),
}


@pytest.fixture(autouse=True)
def kernels_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile attention as such for few queries too."""
    change_pass_limits(monkeypatch, attention_queries=0)


def drawn(name: str, dtype: str = "float64") -> list[Array]:
    rng = np.random.default_rng(len(name))
    kind = wf.spec(dtype, ()).dtype.numpy
    return [rng.normal(size=shape).astype(kind) for shape in SHAPES[name]]


def mask_of(kind: str, q: Array, k: Array) -> list[Array]:
    rng = np.random.default_rng(5)
    queries, keys = q.shape[-2], k.shape[-2]
    if kind == "truth":
        return [rng.random((queries, keys)) < 0.6]
    if kind == "keys":
        return [rng.random((*q.shape[:-3], 1, 1, keys)) < 0.6]
    if kind == "bias":
        return [rng.normal(size=(q.shape[-3], queries, keys)).astype(q.dtype)]
    return []


def gradient_operands(arrays: list[Array], params: Params) -> list[Array]:
    q, k, v, *mask = arrays
    out, lse = PRIMITIVES["attention"].reference(*arrays, **params)
    ct = np.random.default_rng(1).normal(size=out.shape).astype(out.dtype)
    delta = (ct.astype(lse.dtype) * out.astype(lse.dtype)).sum(-1)
    return [q, k, v, lse, ct, delta, *mask]


def assert_compiled(name: str, arrays: list[Array], params: Params) -> None:
    """The compiled primitive gives what its reference gives, without calling it."""
    kinds = [wrap(a).type for a in arrays]
    program = compile_program(trace(lambda *xs: bind(PRIMITIVES[name], *xs, **params), kinds).graph)
    for lowered in program.plan.every_lowered:
        verify_kernel(lowered.kernel)
    assert all(call.node is None for call in program.plan.launches)
    limit = LIMITS[kinds[0].dtype.name]
    expected = PRIMITIVES[name].reference(*arrays, **params)
    for found, wanted in zip(program.run(arrays), expected, strict=True):
        assert found.dtype == wanted.dtype
        a, b = found.astype(np.float64), np.asarray(wanted).astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "offset", "guarded"),
    [
        ("none", None, False),
        ("none", 3, False),
        ("truth", None, True),
        ("truth", 0, False),
        ("keys", -2, True),
        ("bias", 0, False),
    ],
)
def test_kernels_agree_with_the_references_for_every_mask(
    mask: str, offset: int | None, guarded: bool
) -> None:
    arrays = drawn("groups")
    arrays += mask_of(mask, arrays[0], arrays[1])
    params = {"offset": offset, "scale": 0.4, "guarded": guarded}
    assert_compiled("attention", arrays, params)
    operands = gradient_operands(arrays, params)
    if guarded or np.isfinite(operands[3]).all():  # how far a NaN goes depends on blocks
        assert_compiled("attention_gradient", operands, params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*[(name, "float32") for name in SHAPES], ("groups", "float16"), ("many heads", "bfloat16")],
)
def test_kernels_agree_with_the_references_for_every_size(name: str, dtype: str) -> None:
    arrays = drawn(name, dtype)
    params = {"offset": 1, "scale": 0.4, "guarded": True}
    assert_compiled("attention", arrays, params)
    assert_compiled("attention_gradient", gradient_operands(arrays, params), params)


@pytest.mark.slow
def test_sizes_may_be_unknown() -> None:
    def f(q: Any, k: Any, v: Any, ct: Any) -> Any:
        out, back = wf.vjp(
            lambda *xs: wf.scaled_dot_product_attention(*xs, causal=True, aligned="end"), q, k, v
        )
        return out, *back(ct)

    compiled = wf.jit(f)
    for queries, keys in ((40, 40), (70, 90), (33, 130), (2, 65)):
        rng = np.random.default_rng(queries)
        shapes = ((2, 2, queries, 8), (2, 2, keys, 8), (2, 2, keys, 8), (2, 2, queries, 8))
        xs = [wf.asarray(rng.normal(size=s).astype(np.float32)) for s in shapes]
        for found, wanted in zip(compiled(*xs), f(*xs), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
    assert len(compiled.compilations) <= 2


@pytest.mark.slow
def test_the_bits_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(0)
    few, many = (1, 2, 300, 16), (3, 4, 100, 16)
    for shape in (few, many):
        xs = [wf.asarray(rng.normal(size=shape).astype(np.float32)) for _ in range(4)]
        step = wf.jit(
            wf.grad(
                lambda q, k, v, c: (
                    wf.scaled_dot_product_attention(q, k, v, causal=True) * c
                ).sum(),
                argnums=(0, 1, 2),
            )
        )
        same_result_for_all_threads(partial(step, *xs))


def formula(q: Array, k: Array, v: Array, visible: Array | None, scale: float) -> Array:
    scores = np.einsum("...id,...jd->...ij", q, k) * scale
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("...ij,...jd->...id", powers / powers.sum(-1, keepdims=True), v)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_is_its_formula(compiled: bool) -> None:
    q, k, v = (x.astype(np.float32) for x in drawn("blocks"))
    rows, columns = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    gap = len(columns) - len(rows)
    cases: list[tuple[dict[str, Any], Array | None]] = [
        ({}, None),
        ({"causal": True}, columns <= rows),
        ({"causal": True, "aligned": "end"}, columns <= rows + gap),
        ({"mask": columns % 3 > 0}, np.broadcast_to(columns % 3 > 0, (len(rows), len(columns)))),
        ({"mask": columns < 50, "causal": True}, (columns < 50) & (columns <= rows)),
    ]
    for options, visible in cases:

        def f(q: Any, k: Any, v: Any, options: Any = options) -> Any:
            return wf.scaled_dot_product_attention(q, k, v, scale=0.3, **options)

        found = (wf.jit(f) if compiled else f)(*map(wf.asarray, (q, k, v)))
        wanted = formula(q, k, v, visible, 0.3)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-5, atol=2e-5)


def test_grouped_heads_see_the_keys_of_their_group() -> None:
    q, k, v = drawn("groups")
    found = wf.scaled_dot_product_attention(*map(wf.asarray, (q, k, v)), scale=1.0)
    wanted = formula(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1), None, 1.0)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_a_query_that_sees_nothing_gets_zeros_and_passes_none_back(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (wf.asarray(rng.normal(size=(1, 40, 4))) for _ in range(3))
    mask = np.ones((40, 40), bool)
    mask[3] = False

    def f(q: Any, k: Any, v: Any) -> Any:
        out = wf.scaled_dot_product_attention(q, k, v, wf.asarray(mask))
        return (out * out).sum(), out

    step = wf.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)
    (_, out), gradients = (wf.jit(step) if compiled else step)(q, k, v)
    np.testing.assert_array_equal(out.detach().numpy()[0, 3], np.zeros(4))
    assert all(np.isfinite(g.numpy()).all() for g in gradients)
    np.testing.assert_array_equal(gradients[0].numpy()[0, 3], np.zeros(4))


def test_what_a_query_does_not_see_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 150, 4)).astype(np.float32) for _ in range(3))
    k[:, 100:], v[:, 120:] = np.nan, np.inf
    f = wf.jit(lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, causal=True))
    found = f(*map(wf.asarray, (q, k, v))).numpy()[:, :64]
    wanted = f(*[wf.asarray(x[:, :64]) for x in (q, k, v)]).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_large_scores_do_not_overflow() -> None:
    q = wf.full((1, 70, 4), 200.0)
    v = wf.arange(70.0).reshape(1, 70, 1)
    found = wf.jit(lambda q, v: wf.scaled_dot_product_attention(q, q, v, scale=1.0))(q, v)
    np.testing.assert_allclose(found.numpy(), np.full((1, 70, 1), 34.5), rtol=1e-5)


def test_rows_of_the_lowest_numbers_see_all_keys_alike() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, LANES + 2, 4)).astype(np.float32)
    mask = np.full((LANES + 2, LANES + 2), np.finfo(np.float32).min)
    attend = wf.jit(lambda x, mask: wf.scaled_dot_product_attention(x, x, x, mask))
    found = attend(wf.asarray(x), wf.asarray(mask)).numpy()
    np.testing.assert_allclose(found[0, 0], [x.mean(axis=2)[0, 0]] * (LANES + 2), atol=1e-5)


def test_second_derivatives_agree_with_differences() -> None:
    q, k, v = (wf.asarray(x) for x in drawn("no batch"))
    mask = wf.asarray(np.random.default_rng(2).normal(size=(17, 20)))
    wf.testing.check_grads(
        lambda q, k, v, m: wf.scaled_dot_product_attention(q, k, v, m, causal=True),
        (q[:, :4], k[:, :5], v[:, :5], mask[:4, :5]),
        order=2,
        modes=("forward", "reverse"),
    )


@pytest.mark.slow
def test_a_bias_gets_a_gradient() -> None:
    q, k, v = (wf.asarray(x) for x in drawn("groups"))
    bias = wf.asarray(np.random.default_rng(2).normal(size=(4, 33, 70)))

    def by_hand(bias: Any) -> Any:
        pairs = [wf.repeat(x, 2, axis=1) for x in (k, v)]
        return (wf.softmax(q @ pairs[0].mT * 0.5 + bias) @ pairs[1] ** 2).sum()

    def fused(bias: Any) -> Any:
        return wf.scaled_dot_product_attention(q, k, v**2, bias, scale=0.5).sum()

    wanted = wf.grad(by_hand)(bias).numpy()
    for f in (wf.grad(fused), wf.jit(wf.grad(fused))):
        np.testing.assert_allclose(f(bias).numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward_agree_with_torch(causal: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, 3, 80, 16)).astype(np.float32) for _ in range(4)]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays[:3]]
    out = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=causal)
    wanted = [out, *torch.autograd.grad(out, theirs, torch.tensor(arrays[3]))]

    def f(q: Any, k: Any, v: Any, ct: Any) -> Any:
        out, back = wf.vjp(lambda *xs: wf.scaled_dot_product_attention(*xs, causal=causal), q, k, v)
        return out, *back(ct)

    for a, b in zip(wf.jit(f)(*map(wf.asarray, arrays)), wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_no_matrix_of_queries_and_keys_is_in_memory() -> None:
    kinds = [wf.zeros((2, 4, 512, 16)) for _ in range(3)]
    step = wf.jit(
        wf.grad(
            lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, causal=True).sum(),
            argnums=(0, 1, 2),
        )
    )
    scores = 2 * 4 * 512 * 512 * 4
    assert step.memory(*kinds).peak < scores


def test_wrong_calls_are_refused_under_the_name_of_the_function() -> None:
    q = wf.zeros((2, 5, 4))
    with pytest.raises(wf.ArgumentError, match="start or at the end") as caught:
        wf.scaled_dot_product_attention(q, q, q, causal=True, aligned="middle")  # type: ignore[arg-type]
    assert caught.value.op == "scaled_dot_product_attention"
    with pytest.raises(wf.ShapeError, match="does not broadcast") as refused:
        wf.scaled_dot_product_attention(q, q, q, wf.zeros((4, 4)))
    assert refused.value.op == "scaled_dot_product_attention"
    with pytest.raises(wf.ShapeError, match="stacks of heads"):
        wf.scaled_dot_product_attention(q, q, q[0])
    with pytest.raises(wf.DTypeError):
        wf.scaled_dot_product_attention(q.astype("complex64"), q, q)
    with pytest.raises(wf.ShapeError, match="no axes"):
        wf.scaled_dot_product_attention(wf.tensor(1.0), q, q)


def test_the_softmax_of_an_input_is_no_attention() -> None:
    kinds = [wf.spec("float32", (300, 300))] * 3
    graph = wf.ir.trace(lambda x, v, w: wf.softmax(x) @ v @ w, *kinds)
    names = {node.primitive.name for node in optimize(graph, CPU).nodes}
    assert "dot" in names
    assert "attention" not in names


@pytest.mark.parametrize("small", [0, 1 << 20])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_not_lost_by_dropout(
    number: float, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_pass_limits(monkeypatch, attention_queries=small)
    q, k, v = (wf.asarray(x[0]) for x in drawn("small"))
    q = wf.where(wf.arange(5)[:, None] > 0, number, q)

    def attend(*operands: Any) -> Any:
        return wf.scaled_dot_product_attention(*operands, dropout=0.8, key=wf.random.key(3))

    weights = wf.random.dropout(
        wf.softmax(q @ wf.matrix_transpose(k) * 0.5, axis=-1), 0.8, key=wf.random.key(3)
    )
    assert not wf.all(wf.any(wf.isnan(weights), axis=-1)[:, 1:]), "a whole row is dropped"
    wanted = (weights @ v).numpy()[:, :1]
    for found in (attend(q, k, v).numpy(), wf.jit(attend)(q, k, v).numpy()):
        assert np.isnan(found[:, 1:]).all()
        np.testing.assert_allclose(found[:, :1], wanted, rtol=1e-12)
