"""Attention in the forms that people write: each is one pass, and gives what the formula gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.limits import change_pass_limits
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu.target import CPU
from weft.ir.graph import Graph

Array = np.ndarray[Any, Any]
QUERIES, KEYS, HEADS, HEAD = 37, 70, 2, 8
ROWS, COLUMNS = np.arange(QUERIES)[:, None], np.arange(KEYS)
RNG = np.random.default_rng(3)
SLOPES = np.array([0.5, 0.125]).reshape(HEADS, 1, 1)
LENGTHS = np.array([40, 70])
GIVEN = RNG.random((QUERIES, KEYS)) < 0.7
BIAS = RNG.normal(size=(HEADS, QUERIES, KEYS))
DOCUMENTS = np.sort(RNG.integers(0, 3, (2, KEYS)))
KEY = np.array([7, 9], np.uint32)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognise and compile attention of short sequences too."""
    change_pass_limits(monkeypatch, recognized_queries=0, attention_queries=0)


def i() -> Any:
    return wf.expand_dims(wf.arange(QUERIES), axis=1)


def j() -> Any:
    return wf.arange(KEYS)


def hidden(scores: Any, seen: Any) -> Any:
    return wf.where(seen, scores, -wf.inf)


def scores(q: Any, k: Any) -> Any:
    return q @ k.mT * 0.3


def of_weights(change: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose scores are changed before the softmax."""
    return lambda q, k, v, *more: wf.softmax(change(scores(q, k), *more)) @ v


def exponentials(q: Any, k: Any, v: Any) -> Any:
    powers = wf.exp(scores(q, k))
    return (powers / powers.sum(-1, keepdims=True)) @ v


def by_einsum(q: Any, k: Any, v: Any) -> Any:
    weights = wf.softmax(wf.einsum("bhqd,bhkd->bhqk", q * 0.3, k))
    return wf.einsum("bhqk,bhkd->bhqd", weights, v)


def biased(s: Any, slopes: Any) -> Any:
    """ALiBi."""
    return hidden(s + slopes.astype(s.dtype) * (j() - i() - 20).astype(s.dtype), j() <= i() + 20)


FORMS: dict[str, tuple[Callable[..., Any], list[Array], Any]] = {
    "plain": (of_weights(lambda s: s), [], 0.0),
    "exponentials": (exponentials, [], 0.0),
    "einsum": (by_einsum, [], 0.0),
    "causal with a cache": (
        of_weights(lambda s: hidden(s, j() <= i() + (KEYS - QUERIES))),
        [],
        np.where(COLUMNS <= ROWS + KEYS - QUERIES, 0, -np.inf),
    ),
    "sliding window": (
        of_weights(lambda s: hidden(s, (j() <= i() + 20) & (j() > i() - 5))),
        [],
        np.where((COLUMNS <= ROWS + 20) & (COLUMNS > ROWS - 5), 0, -np.inf),
    ),
    "window, said of what is hidden": (
        of_weights(lambda s: wf.where((j() > i() + 20) | (j() <= i() - 5), -wf.inf, s)),
        [],
        np.where((COLUMNS <= ROWS + 20) & (COLUMNS > ROWS - 5), 0, -np.inf),
    ),
    "alibi": (
        of_weights(biased),
        [SLOPES],
        np.where(COLUMNS <= ROWS + 20, SLOPES * (COLUMNS - ROWS - 20), -np.inf),
    ),
    "lengths": (
        of_weights(lambda s, n: hidden(s, j() < n.reshape(2, 1, 1, 1))),
        [LENGTHS],
        np.where(COLUMNS < LENGTHS.reshape(2, 1, 1, 1), 0, -np.inf),
    ),
    "documents": (
        of_weights(
            lambda s, d: hidden(
                s, d[:, :QUERIES].reshape(2, 1, QUERIES, 1) == d.reshape(2, 1, 1, KEYS)
            )
        ),
        [DOCUMENTS],
        np.where(DOCUMENTS[:, None, :QUERIES, None] == DOCUMENTS[:, None, None, :], 0, -np.inf),
    ),
    "given mask": (of_weights(hidden), [GIVEN], np.where(GIVEN, 0, -np.inf)),
    "given bias": (of_weights(lambda s, b: s + b.astype(s.dtype)), [BIAS], BIAS),
    "function with a window": (
        lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, abs(i() - j()) < 9, scale=0.3),
        [],
        np.where(abs(ROWS - COLUMNS) < 9, 0, -np.inf),
    ),
}


def formula(arrays: list[Array], added: Any, factor: Any = 1.0) -> list[Array]:
    """The result and the three gradients, in float64; `factor` multiplies probabilities."""
    q, k, v, ct = (np.asarray(x).astype(np.float64) for x in arrays)
    s = q @ k.swapaxes(-1, -2) * 0.3 + added
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    back = ct @ v.swapaxes(-1, -2) * factor
    ds = p * (back - (p * back).sum(-1, keepdims=True)) * 0.3
    dv = (p * factor).swapaxes(-1, -2) @ ct
    return [(p * factor) @ v, ds @ k, ds.swapaxes(-1, -2) @ q, dv]


def drawn(dtype: str = "float64", head: int = HEAD, lead: tuple[int, ...] = (2, HEADS)) -> Any:
    rng = np.random.default_rng(1)
    sizes = (QUERIES, head), (KEYS, head), (KEYS, head), (QUERIES, head)
    return [wf.asarray(rng.normal(size=(*lead, *each))).astype(dtype) for each in sizes]


def with_gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    def both(q: Any, k: Any, v: Any, ct: Any, *more: Any) -> Any:
        out, back = wf.vjp(lambda *xs: f(*xs, *more), q, k, v)
        return out, *back(ct)

    return both


def matrices(graph: Graph) -> list[str]:
    """The nodes that make a matrix of queries and keys."""
    return [
        node.primitive.name
        for node in graph.nodes
        for value in node.results
        if value.type.shape[-2:] == (QUERIES, KEYS)
    ]


def assert_agrees(
    f: Callable[..., Any], xs: list[Any], more: list[Any], added: Any, limit: float, factor: Any = 1
) -> None:
    given = [*xs, *[wf.asarray(x) for x in more]]
    wanted = formula([x.numpy() for x in xs], added, factor)
    for found, expected in zip(wf.jit(with_gradients(f))(*given), wanted, strict=True):
        assert found.dtype is xs[0].dtype
        error = np.abs(found.numpy().astype(np.float64) - expected).max()
        assert error <= limit * np.abs(expected).max()


def traced(f: Callable[..., Any], xs: list[Any], more: list[Any]) -> Graph:
    return optimize(wf.jit(with_gradients(f)).graph(*xs, *[wf.asarray(x) for x in more]), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_no_form_makes_a_matrix_of_queries_and_keys(name: str) -> None:
    f, more, added = FORMS[name]
    assert matrices(traced(f, drawn(), more)) == []
    assert_agrees(f, drawn(), more, added, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-5), ("bfloat16", 3e-2), ("float16", 4e-3)]
)
def test_short_floats_are_computed_in_float32(dtype: str, limit: float, mixed: bool) -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k).astype("float32") if mixed else scores(q, k)
        return wf.softmax(hidden(s, j() <= i() + 9)).astype(v.dtype) @ v

    assert matrices(traced(f, drawn(dtype), [])) == []
    assert_agrees(f, drawn(dtype), [], np.where(COLUMNS <= ROWS + 9, 0, -np.inf), limit)


@pytest.mark.slow
@pytest.mark.parametrize("head", [5, 20, 80, 96])
def test_heads_of_any_size(head: int) -> None:
    f = of_weights(lambda s: hidden(s, j() <= i()))
    xs = drawn("float32", head, (2,))
    assert matrices(traced(f, xs, [])) == []
    assert_agrees(f, xs, [], np.where(COLUMNS <= ROWS, 0, -np.inf), 1e-5)


def test_matrices_without_a_batch_are_attention_too() -> None:
    f, _, added = FORMS["plain"]
    assert matrices(traced(f, drawn(lead=()), [])) == []
    assert_agrees(f, drawn(lead=()), [], added, 1e-10)


# --- dropout -------------------------------------------------------------------------------------


def dropped(q: Any, k: Any, v: Any, key: Any) -> Any:
    weights = wf.softmax(hidden(scores(q, k), j() <= i() + 9))
    return wf.random.dropout(weights, 0.3, key=key) @ v


def called(q: Any, k: Any, v: Any, key: Any) -> Any:
    return wf.scaled_dot_product_attention(q, k, v, j() <= i() + 9, scale=0.3, dropout=0.3, key=key)


def factors(shape: tuple[int, ...]) -> Array:
    """What `wf.random.dropout` multiplies by."""
    stays = wf.random.dropout_mask(shape, 0.3, key=wf.asarray(KEY)).numpy()
    return np.where(stays, 1 / 0.7, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("f", [dropped, called])
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-10), ("bfloat16", 3e-2)])
def test_dropout_draws_the_numbers_of_the_plain_program(
    f: Callable[..., Any], dtype: str, limit: float
) -> None:
    xs, seen = drawn(dtype), np.where(COLUMNS <= ROWS + 9, 0, -np.inf)
    assert matrices(traced(f, xs, [KEY])) == []
    assert_agrees(f, xs, [KEY], seen, limit, factors((2, HEADS, QUERIES, KEYS)))


@pytest.mark.slow
def test_dropout_of_rows_that_are_whole_blocks_of_words_draws_the_same_numbers() -> None:
    rng = np.random.default_rng(2)
    xs = [wf.asarray(rng.normal(size=(1, 3, 44, 8))) for _ in range(4)]

    def f(q: Any, k: Any, v: Any, key: Any) -> Any:
        return wf.scaled_dot_product_attention(q, k, v, scale=0.3, dropout=0.3, key=key)

    assert_agrees(f, xs, [KEY], 0.0, 1e-10, factors((1, 3, 44, 44)))


@pytest.mark.slow
def test_every_layer_keeps_its_own_dropout() -> None:
    def f(q: Any, k: Any, v: Any, key: Any) -> Any:
        keys = wf.random.split(key, 2)
        between = wf.random.dropout(wf.softmax(scores(q, k)), 0.3, key=keys[0]) @ v
        return wf.random.dropout(wf.softmax(scores(between, k)), 0.5, key=keys[1]) @ v

    xs = drawn()
    assert matrices(traced(f, xs, [KEY])) == []
    given = *xs, wf.asarray(KEY)
    pairs = zip(wf.jit(with_gradients(f))(*given), with_gradients(f)(*given), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-10)


def test_keys_of_a_batch_draw_for_their_own_examples() -> None:
    q, k, v, _ = drawn()
    keys = wf.random.split(wf.random.key(0), 2)
    f = wf.jit(
        wf.vmap(lambda q, k, v, key: wf.scaled_dot_product_attention(q, k, v, dropout=0.4, key=key))
    )
    for number, found in enumerate(f(q, k, v, keys).numpy()):
        one = [x[number] for x in (q, k, v)]
        wanted = wf.scaled_dot_product_attention(*one, dropout=0.4, key=keys[number])
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-9, atol=1e-12)


def test_a_chance_of_dropout_is_a_share() -> None:
    q = wf.zeros((2, 5, 4))
    with pytest.raises(wf.ArgumentError, match="no share"):
        wf.scaled_dot_product_attention(q, q, q, dropout=1.5)
    assert wf.scaled_dot_product_attention(q, q, q + 1, dropout=1.0).sum().item() == 0.0


@pytest.mark.slow
def test_the_bits_do_not_depend_on_threads() -> None:
    xs = [*drawn("float32"), wf.asarray(KEY), wf.asarray(SLOPES)]

    def f(q: Any, k: Any, v: Any, key: Any, slopes: Any) -> Any:
        weights = wf.softmax(biased(scores(q, k), slopes))
        return wf.random.dropout(weights, 0.3, key=key) @ v

    step = wf.jit(with_gradients(f))
    same_result_for_all_threads(lambda: step(*xs))


# --- what stays as it is -------------------------------------------------------------------------


def late(q: Any, k: Any, v: Any) -> Any:
    """Divided after the product with values."""
    s = scores(q, k)
    powers = wf.exp(s - wf.stop_gradient(s.max(-1, keepdims=True)))
    return (powers @ v) / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("f", "more", "added"),
    [
        (late, [], 0.0),
        (lambda q, k, v: wf.exp(wf.log_softmax(scores(q, k))) @ v, [], 0.0),
        (of_weights(lambda s, m: wf.where(m, s, -1e9)), [GIVEN], np.where(GIVEN, 0, -np.inf)),
    ],
)
def test_other_forms_are_plain_and_right(f: Any, more: list[Array], added: Any) -> None:
    assert "attention" not in {node.primitive.name for node in traced(f, drawn(), more).nodes}
    assert_agrees(f, drawn(), more, added, 1e-10)


def test_what_stays_plain_says_why() -> None:
    q, k, v, _ = drawn("float32")
    f = wf.jit(lambda q, k, v, m: wf.softmax(wf.where(m, scores(q, k), -1e9)) @ v)
    told = str(f.explain(q, k, v, wf.asarray(GIVEN)))
    assert "its scores are more than a product, scaled and masked by -inf" in told


def test_weights_that_are_wanted_are_made() -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        weights = wf.softmax(scores(q, k))
        return weights @ v, weights

    q, k, v, _ = drawn()
    for found, wanted in zip(wf.jit(f)(q, k, v), f(q, k, v), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-10)


# --- movement around it --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_of_one_projection_are_moved_by_one_kernel(interleaved: bool) -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        y = x @ w + b  # [2, 40, 3 · 16]
        if interleaved:
            parts = wf.split(wf.reshape(y, (2, 40, 2, 24)), 3, axis=-1)
        else:
            parts = [wf.reshape(each, (2, 40, 2, 8)) for each in wf.split(y, 3, axis=-1)]
        q, k, v = (wf.swapaxes(each, 1, 2) for each in parts)
        out = wf.scaled_dot_product_attention(q, k, v, causal=True)
        return (wf.reshape(wf.swapaxes(out, 1, 2), (2, 40, 16)) ** 2).sum()

    rng = np.random.default_rng(0)
    xs = [wf.asarray(rng.normal(size=s)) for s in ((2, 40, 16), (16, 48), (48,))]
    step = wf.grad(f, argnums=(0, 1, 2))
    for found, wanted in zip(wf.jit(step)(*xs), step(*xs), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-11)
    if not interleaved:
        nodes = optimize(wf.ir.trace(step, *xs), CPU).nodes
        (bias,) = [node for node in nodes if node.primitive.name == "add"][:1]
        assert bias.results[0].type.shape == (2, 40, 6, 8)
