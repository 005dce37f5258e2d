"""Recurrent layers, attention, positions and Transformers, with caches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.nn import functional as F  # noqa: N812

Array = np.ndarray[Any, Any]


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm_step(w: dict[str, Array], x: Array, state: Any, end: str) -> Any:
    gates = x @ w[f"weight_ih_{end}"].T + w[f"bias_ih_{end}"]
    gates = gates + state[0] @ w[f"weight_hh_{end}"].T + w[f"bias_hh_{end}"]
    i, f, g, o = np.split(gates, 4, -1)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(w: dict[str, Array], x: Array, state: Any, end: str) -> Any:
    r, z, n = np.split(x @ w[f"weight_ih_{end}"].T + w[f"bias_ih_{end}"], 3, -1)
    hr, hz, hn = np.split(state[0] @ w[f"weight_hh_{end}"].T + w[f"bias_hh_{end}"], 3, -1)
    new = np.tanh(n + sigmoid(r + hr) * hn)
    keep = sigmoid(z + hz)
    return ((1 - keep) * new + keep * state[0],)


def rnn_step(w: dict[str, Array], x: Array, state: Any, end: str) -> Any:
    y = x @ w[f"weight_ih_{end}"].T + w[f"bias_ih_{end}"]
    return (np.tanh(y + state[0] @ w[f"weight_hh_{end}"].T + w[f"bias_hh_{end}"]),)


KINDS = {"LSTM": (lstm_step, 2), "GRU": (gru_step, 1), "RNN": (rnn_step, 1)}


def by_hand(kind: str, w: dict[str, Array], x: Array, layers: int) -> tuple[Array, list[Array]]:
    """One sequence [time, in] through stacked layers in both directions."""
    step, states = KINDS[kind]
    ends = []
    for layer in range(layers):
        sides = []
        for end, order in ((f"l{layer}", x), (f"l{layer}_reverse", x[::-1])):
            hidden = w[f"weight_hh_{end}"].shape[1]
            state, outputs = (np.zeros(hidden),) * states, []
            for each in order:
                state = step(w, each, state, end)
                outputs.append(state[0])
            sides.append(np.stack(outputs if end[-1] != "e" else outputs[::-1]))
            ends.append(state[0])
        x = np.concatenate(sides, -1)
    return x, ends


@pytest.mark.parametrize("kind", list(KINDS))
def test_recurrent_layers_are_loops_over_each_sequence_of_its_own_length(kind: str) -> None:
    net = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True)
    weights = {name: x.numpy() for name, x in net.state_dict().items()}
    x, lengths = draw(5, 3, 3), [5, 2, 4]
    call = wf.jit(lambda net, x, lengths: net(x, lengths=lengths))
    for function in (call, lambda net, x, lengths: net(x, lengths=lengths)):
        y, state = function(net, wf.tensor(x), wf.tensor(lengths))
        h = state[0] if kind == "LSTM" else state
        for number, length in enumerate(lengths):
            wanted, ends = by_hand(kind, weights, x[:length, number].astype(np.float64), 2)
            got = y.detach().numpy()[:, number]
            np.testing.assert_allclose(got[:length], wanted, rtol=1e-4, atol=1e-5)
            assert not got[length:].any()
            np.testing.assert_allclose(h.detach().numpy()[:, number], ends, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_cell_is_one_step_of_its_layer(kind: str) -> None:
    layer, cell = getattr(nn, kind)(3, 4), getattr(nn, f"{kind}Cell")(3, 4)
    cell.load_state_dict({n.removesuffix("_l0"): x for n, x in layer.state_dict().items()})
    x, state, outputs = wf.tensor(draw(4, 2, 3)), None, []
    for each in x:
        state = cell(each, state)
        outputs.append(state[0] if kind == "LSTM" else state)
    wanted, _ = layer(x)
    np.testing.assert_allclose(
        wf.stack(outputs).detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-6
    )


def test_dropout_between_layers_is_for_training_only() -> None:
    net, x = nn.GRU(3, 4, num_layers=2, dropout=0.9), wf.tensor(draw(5, 2, 3))
    assert net(x)[0].tolist() != net(x)[0].tolist()
    net.eval()
    assert net(x)[0].tolist() == net(x)[0].tolist()


def attended(q: Array, k: Array, v: Array, visible: Array | None = None) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def heads(x: Array, count: int) -> Array:
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


@pytest.mark.parametrize(("kv", "causal"), [(4, False), (4, True), (2, True), (1, False)])
def test_attention_is_its_formula_with_heads_shared_in_groups(kv: int, causal: bool) -> None:
    net = nn.MultiheadAttention(8, 4, num_kv_heads=kv, batch_first=True)
    x = draw(2, 5, 8)
    w = {name: t.numpy().astype(np.float64) for name, t in net.state_dict().items()}
    q, k, v = np.split(x @ w["in_proj_weight"].T + w["in_proj_bias"], [8, 8 + 2 * kv], -1)
    shared = [heads(each, kv).repeat(4 // kv, axis=1) for each in (k, v)]
    visible = np.tril(np.ones((5, 5), bool)) if causal else None
    out = attended(heads(q, 4), *shared, visible).swapaxes(1, 2).reshape(2, 5, 8)
    wanted = out @ w["out_proj.weight"].T + w["out_proj.bias"]
    for need_weights in (False, True):
        got, weights = net(wf.tensor(x), is_causal=causal, need_weights=need_weights)
        np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weights.sum(-1).detach().numpy(), np.ones((2, 5)), rtol=1e-5)


def test_attention_with_dropped_weights_keeps_its_mean_and_differs_each_time() -> None:
    wf.random.seed(0)
    q = wf.zeros((1, 64, 4))
    v = wf.ones((1, 64, 4))
    y = F.scaled_dot_product_attention(q, q, v, dropout=0.5)
    assert abs(float(y.mean()) - 1) < 0.1
    assert float(wf.std(y)) > 0.01


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    weights = F.attention_weights(wf.ones((2, 4)), wf.ones((3, 4)), wf.zeros((2, 3), dtype=wf.bool))
    assert weights.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_products_depend_on_the_distance_only(interleaved: bool) -> None:
    rotary = nn.RotaryPosition(8, interleaved=interleaved)
    q, k = wf.tensor(draw(1, 8)), wf.tensor(draw(1, 8, seed=1))
    near = [(rotary(q, start + 3) * rotary(k, start)).sum().item() for start in (0, 5, 50)]
    np.testing.assert_allclose(near, near[0], rtol=1e-3)
    assert abs((q * k).sum().item() - near[0]) > 1e-3
    np.testing.assert_allclose(
        wf.linalg.norm(rotary(q, 7)).item(), wf.linalg.norm(q).item(), rtol=1e-5
    )


def test_interleaved_rotary_pairs_are_complex_numbers_turned() -> None:
    x = draw(3, 4)
    turned = x.view(np.complex64) * np.exp(1j * np.arange(3)[:, None] * np.array([1.0, 0.01]))
    got = nn.RotaryPosition(4, interleaved=True)(wf.tensor(x))
    np.testing.assert_allclose(got.numpy(), turned.astype(np.complex64).view(np.float32), atol=1e-5)


def language_model(rotary: bool) -> nn.TransformerEncoder:
    wf.random.seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True)
    if rotary:
        layer.self_attn.rotary = nn.RotaryPosition(4)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8)).eval()


@pytest.mark.parametrize("rotary", [False, True], ids=["plain", "rotary"])
def test_cached_steps_equal_the_whole_sequence_in_one_compilation(rotary: bool) -> None:
    net, x = language_model(rotary), wf.tensor(draw(2, 7, 8))
    whole = net(x, is_causal=True).detach().numpy()
    step = wf.jit(lambda net, x, cache: net(x, cache=cache))
    prompt, caches = net(x[:, :3], cache=net.new_cache(2, capacity=10))
    np.testing.assert_allclose(prompt.detach().numpy(), whole[:, :3], rtol=1e-4, atol=1e-5)
    caches = wf.tree.map_tree(lambda leaf: leaf.detach(), caches)
    with wf.no_grad():
        for time in range(3, 7):
            y, caches = step(net, x[:, time : time + 1], caches)
            np.testing.assert_allclose(y.numpy()[:, 0], whole[:, time], rtol=1e-4, atol=1e-5)
    assert caches[1].length.item() == 7
    assert len(step.compilations) == 1


def test_a_full_cache_is_an_error_eager_and_compiled() -> None:
    net, x = language_model(False), wf.ones((1, 2, 8))
    step = wf.jit(lambda net, x, cache: net(x, cache=cache))
    for call in (lambda net, x, cache: net(x, cache=cache), step):
        with wf.no_grad():
            _, caches = call(net, x, net.new_cache(1, 3))
            with pytest.raises(wf.BoundsError):
                call(net, x, caches)


def test_a_decoder_with_a_cache_equals_the_whole_target() -> None:
    wf.random.seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerDecoder(layer, 2).eval()
    memory, target = wf.tensor(draw(2, 5, 8)), wf.tensor(draw(2, 4, 8, seed=1))
    whole = net(target, memory, tgt_is_causal=True).detach().numpy()
    caches = net.new_cache(2, 4)
    for time in range(4):
        y, caches = net(target[:, time : time + 1], memory, cache=caches)
        np.testing.assert_allclose(y.detach().numpy()[:, 0], whole[:, time], rtol=1e-4, atol=1e-5)


def test_padding_and_masks_hide_what_they_say() -> None:
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = draw(1, 5, 8)
    other = x.copy()
    other[0, 3:] = 9.0
    padding = wf.tensor([[False, False, False, True, True]])
    results = [net(wf.tensor(a), src_key_padding_mask=padding).detach().numpy() for a in (x, other)]
    np.testing.assert_allclose(results[0][0, :3], results[1][0, :3], rtol=1e-5)
    mask = wf.tensor(np.triu(np.ones((5, 5), bool), 1))
    masked = net(wf.tensor(x), src_mask=mask).detach().numpy()
    np.testing.assert_allclose(
        masked, net(wf.tensor(x), is_causal=True).detach().numpy(), rtol=1e-4, atol=1e-6
    )


def test_masks_of_whole_numbers_are_refused() -> None:
    x, ones = wf.tensor(draw(2, 3, 8)), wf.ones((2, 3), dtype="int64")
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    for call in (
        lambda: attention(x, key_padding_mask=ones),
        lambda: attention(x, attn_mask=wf.ones((3, 3), dtype="uint8")),
        lambda: encoder(x, src_key_padding_mask=ones),
        lambda: nn.functional.attention_weights(x, x, ones[:1]),
        lambda: nn.functional.scaled_dot_product_attention(x, x, x, ones[:1]),
    ):
        with pytest.raises(wf.DTypeError) as caught:
            call()
        assert "mask == 0" in str(caught.value.fix) or "mask != 0" in str(caught.value.fix)


def test_a_padding_mask_has_one_value_for_each_key_of_each_example() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1)
    x = wf.tensor(draw(5, 3, 8))  # [time, batch, width]
    with pytest.raises(wf.ShapeError) as caught:
        encoder(x, src_key_padding_mask=wf.zeros((5, 3), dtype="bool"))
    assert caught.value.fix == "key_padding_mask.mT"
    with pytest.raises(wf.ShapeError):
        encoder(x, src_key_padding_mask=wf.zeros((3, 1), dtype="bool"))
    assert encoder(x, src_key_padding_mask=wf.zeros((3, 5), dtype="bool")).shape == (5, 3, 8)
    alone = encoder(x[:, 0], src_key_padding_mask=wf.zeros(5, dtype="bool"))
    assert alone.shape == (5, 8)


@pytest.mark.parametrize("transformed", [lambda f: f, wf.jit], ids=["eager", "compiled"])
def test_attention_and_unpooling_take_batches_without_examples(transformed: Any) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    x, hidden = wf.zeros((0, 3, 8)), wf.zeros((0, 3), dtype="bool")
    seen = wf.zeros((0, 3, 3), dtype="bool")
    assert transformed(lambda: attention(x, attn_mask=seen)[0])().shape == (0, 3, 8)
    assert transformed(lambda: encoder(x, src_key_padding_mask=hidden))().shape == (0, 3, 8)
    pool, unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
    images = wf.zeros((0, 2, 4, 4))
    assert transformed(lambda: unpool(*pool(images)))().shape == images.shape
