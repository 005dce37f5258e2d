"""Layers against NumPy formulas, compiled against eager, and what wrong inputs get."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def normalized(x: Array, axes: tuple[int, ...], eps: float = 1e-5) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def convolved(x: Array, weight: Array, bias: Array, stride: int) -> Array:
    """A convolution by its definition, without padding."""
    batch, _, height, width = x.shape
    out, _, kh, kw = weight.shape
    y = np.zeros((batch, out, (height - kh) // stride + 1, (width - kw) // stride + 1))
    for i in range(y.shape[2]):
        for j in range(y.shape[3]):
            window = x[:, :, i * stride : i * stride + kh, j * stride : j * stride + kw]
            y[:, :, i, j] = np.einsum("bchw,ochw->bo", window, weight) + bias
    return y


def state(layer: nn.Module) -> dict[str, Array]:
    return {name: tensor.numpy() for name, tensor in layer.state_dict().items()}


Formula = Callable[[dict[str, Array], Array], Array]
FORMULAS: list[tuple[nn.Module, tuple[int, ...], Formula]] = [
    (nn.Linear(3, 5), (4, 3), lambda s, x: x @ s["weight"].T + s["bias"]),
    (nn.Linear(3, 5, activation="relu"), (4, 3),
     lambda s, x: np.maximum(x @ s["weight"].T + s["bias"], 0)),
    (nn.Conv2d(2, 3, 3, stride=2), (2, 2, 7, 7),
     lambda s, x: convolved(x, s["weight"], s["bias"], 2)),
    (nn.MaxPool2d(2), (2, 3, 4, 6), lambda s, x: x.reshape(2, 3, 2, 2, 3, 2).max((3, 5))),
    (nn.AvgPool2d(2), (2, 3, 4, 6), lambda s, x: x.reshape(2, 3, 2, 2, 3, 2).mean((3, 5))),
    (nn.AdaptiveAvgPool2d(1), (2, 3, 4, 6), lambda s, x: x.mean((2, 3), keepdims=True)),
    (nn.AdaptiveMaxPool1d(2), (2, 3, 4), lambda s, x: x.reshape(2, 3, 2, 2).max(3)),
    (nn.BatchNorm2d(3, eps=0.1), (2, 3, 4, 5), lambda s, x: normalized(x, (0, 2, 3), 0.1)),
    (nn.BatchNorm1d(3).eval(), (4, 3), lambda s, x: x / np.sqrt(1 + 1e-5)),
    (nn.LayerNorm((4, 5), eps=0.1), (2, 3, 4, 5), lambda s, x: normalized(x, (2, 3), 0.1)),
    (nn.InstanceNorm2d(3, eps=0.1), (2, 3, 4, 5), lambda s, x: normalized(x, (2, 3), 0.1)),
    (nn.GroupNorm(2, 4), (2, 4, 3),
     lambda s, x: normalized(x.reshape(2, 2, 2, 3), (2, 3)).reshape(2, 4, 3)),
    (nn.RMSNorm(5, eps=0.1), (3, 5),
     lambda s, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1)),
    (nn.GELU("tanh"), (9,),
     lambda s, x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    (nn.SiLU(), (9,), lambda s, x: x * sigmoid(x)),
    (nn.Mish(), (9,), lambda s, x: x * np.tanh(np.log1p(np.exp(x)))),
    (nn.ELU(0.5), (9,), lambda s, x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    (nn.LeakyReLU(0.1), (9,), lambda s, x: np.where(x > 0, x, 0.1 * x)),
    (nn.PReLU(), (9,), lambda s, x: np.where(x > 0, x, 0.25 * x)),
    (nn.Hardswish(), (9,), lambda s, x: x * np.clip(x + 3, 0, 6) / 6),
    (nn.Softplus(2.0), (9,), lambda s, x: np.log1p(np.exp(2 * x)) / 2),
    (nn.GLU(), (3, 4), lambda s, x: x[:, :2] * sigmoid(x[:, 2:])),
    (nn.Softmax(), (3, 4), lambda s, x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    (nn.Flatten(), (2, 3, 4), lambda s, x: x.reshape(2, 12)),
    (nn.Unflatten(-1, (2, 2)), (3, 4), lambda s, x: x.reshape(3, 2, 2)),
    (nn.Upsample(scale_factor=2), (1, 2, 3), lambda s, x: x.repeat(2, -1)),
    (nn.PixelShuffle(2), (1, 8, 3, 2),
     lambda s, x: x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 6, 4)),
    (nn.ZeroPad2d((1, 0, 2, 0)), (1, 1, 2, 2),
     lambda s, x: np.pad(x, [(0, 0), (0, 0), (2, 0), (1, 0)])),
    (nn.ReflectionPad1d(2), (1, 2, 4),
     lambda s, x: np.pad(x, [(0, 0), (0, 0), (2, 2)], mode="reflect")),
    (nn.Identity("anything"), (3,), lambda s, x: x),
    (nn.Dropout(0.5).eval(), (3,), lambda s, x: x),
    (nn.SinusoidalPosition(4), (3, 4), lambda s, x: x + np.stack(
        [f(np.arange(3) * w) for w in (1.0, 0.01) for f in (np.sin, np.cos)], -1)),
    (nn.LearnedPosition(8, 4), (2, 3, 4), lambda s, x: x + s["weight"][:3]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "shape", "formula"), FORMULAS, ids=[repr(row[0])[:60] for row in FORMULAS]
)
def test_a_layer_is_its_formula_eager_and_compiled(layer: Any, shape: Any, formula: Any) -> None:
    array = draw(*shape)
    wanted = formula(state(layer), array.astype(np.float64))
    x = wf.tensor(array)
    for got in (layer(x), wf.jit(layer)(x)):
        np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-4, atol=1e-5)


DIFFERENTIATED = [
    (nn.Linear(3, 2, activation="tanh"), (2, 3)), (nn.Conv1d(2, 2, 3, padding=1), (1, 2, 4)),
    (nn.ConvTranspose1d(2, 2, 2, stride=2), (1, 2, 3)), (nn.BatchNorm1d(2), (3, 2)),
    (nn.LayerNorm(4), (2, 4)), (nn.GroupNorm(1, 2), (2, 2, 2)), (nn.RMSNorm(4), (2, 4)),
    (nn.LSTM(2, 2), (3, 1, 2)), (nn.GRU(2, 2), (3, 1, 2)),
    (nn.MultiheadAttention(4, 2), (3, 1, 4)),
    (nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, activation="gelu"), (2, 1, 4)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "shape"), DIFFERENTIATED, ids=[type(row[0]).__name__ for row in DIFFERENTIATED]
)
def test_gradients_are_those_of_finite_differences(layer: Any, shape: Any) -> None:
    layer = wf.tree.map_tree(lambda p: p, layer).to("float64")
    params = {name: p.detach() for name, p in layer.named_parameters()}

    def f(params: Any, x: wf.Tensor) -> wf.Tensor:
        return wf.sum(wf.square(wf.tree.leaves(wf.functional_call(layer, params, x))[0] + 0.3))

    x = wf.tensor(draw(*shape), dtype="float64")
    wf.testing.check_grads(f, (params, x), order=1, modes=("reverse",))


def test_batch_statistics_move_and_are_used_in_evaluation() -> None:
    norm, x = nn.BatchNorm1d(2, momentum=0.25), wf.tensor([[1.0, 10.0], [3.0, 30.0]])
    step = wf.jit(lambda norm, x: norm(x))
    for module in (norm, norm):
        step(module, x)
    assert norm.num_batches_tracked.item() == 2
    mean, var = np.zeros(2), np.ones(2)
    for _ in range(2):
        mean, var = (
            0.75 * mean + 0.25 * np.array([2.0, 20.0]),
            0.75 * var + 0.25 * np.array([2, 200]),
        )
    np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(norm.running_var.numpy(), var, rtol=1e-6)
    wanted = (x.numpy() - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(norm.eval()(x).detach().numpy(), wanted, rtol=1e-5)


def test_running_statistics_without_momentum_are_the_mean_of_all_batches() -> None:
    norm = nn.BatchNorm1d(1, momentum=None)
    for value in (1.0, 4.0):
        norm(wf.tensor([[value], [value + 2.0]]))
    assert norm.running_mean.tolist() == [3.5]


def test_half_precision_norms_keep_their_statistics_wide() -> None:
    x = wf.full((2, 64), 200.0, dtype="float16") + wf.arange(64).astype("float16")
    for layer in (nn.LayerNorm(64), nn.RMSNorm(64)):
        y = layer.to("float16")(x)
        assert y.dtype is wf.float16
        assert bool(wf.all(wf.isfinite(y)))


DROPOUTS = [
    (nn.Dropout(0.25), (4000,), ()), (nn.Dropout1d(0.25), (1000, 4, 3), (2,)),
    (nn.Dropout2d(0.25), (1000, 4, 2, 2), (2, 3)), (nn.DropPath(0.25), (4000, 2, 2), (1, 2)),
    (nn.Dropout3d(0.25), (1000, 4, 2, 1, 2), (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "shape", "whole"), DROPOUTS, ids=[type(row[0]).__name__ for row in DROPOUTS]
)
def test_dropout_drops_its_share_whole_and_keeps_the_mean(
    layer: Any, shape: Any, whole: Any
) -> None:
    wf.random.seed(0)
    eager, compiled = layer(wf.ones(shape)).numpy(), wf.jit(layer)(wf.ones(shape)).numpy()
    for y in (eager, compiled):
        assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
        assert abs(y.mean() - 1) < 0.03
        assert not whole or (y.max(whole) == y.min(whole)).all()
    assert (eager != compiled).any()


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    wf.random.seed(0)
    y = nn.AlphaDropout(0.3)(wf.random.normal((20000,))).numpy()
    assert abs(y.mean()) < 0.03
    assert abs(y.std() - 1) < 0.03


def test_embeddings_look_up_and_leave_padding_alone() -> None:
    layer = nn.Embedding(4, 3, padding_idx=-1)
    assert layer.weight[3].tolist() == [0.0, 0.0, 0.0]
    layer(wf.tensor([[3, 1], [1, 3]])).sum().backward()
    assert layer.weight.grad.tolist() == [[0.0] * 3, [2.0] * 3, [0.0] * 3, [0.0] * 3]
    short = nn.Embedding(2, 2, max_norm=1.0)
    short.load_state_dict({"weight": wf.tensor([[3.0, 4.0], [3.0, 4.0]])})
    np.testing.assert_allclose(short(wf.tensor([0])).detach().numpy(), [[0.6, 0.8]], rtol=1e-5)
    assert short.weight[1].tolist() == [3.0, 4.0]


def test_bags_are_sums_means_and_maxima() -> None:
    table = wf.tensor([[1.0], [2.0], [4.0]])
    index, offsets = wf.tensor([0, 1, 2, 2]), wf.tensor([0, 2, 2])
    bag = wf.nn.functional.embedding_bag
    assert bag(index, table, offsets, "sum").tolist() == [[3.0], [0.0], [8.0]]
    assert bag(index, table, offsets, "mean").tolist() == [[1.5], [0.0], [4.0]]
    assert bag(index, table, offsets, "max").tolist() == [[2.0], [0.0], [4.0]]
    scaled = wf.jit(lambda w: bag(index, table, offsets, "sum", w))(wf.tensor([1.0, 0.5, 2.0, 0.0]))
    assert scaled.tolist() == [[2.0], [0.0], [8.0]]


def cached_with_a_mask() -> Any:
    net = nn.MultiheadAttention(4, 2)
    return net(wf.ones((1, 1, 4)), attn_mask=wf.ones((1, 1)), cache=net.new_cache(1, 2))


WRONG: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (wf.ShapeError, "features", lambda: nn.Linear(3, 2)(wf.ones((2, 4)))),
    (wf.ShapeError, "fit the weight", lambda: nn.Bilinear(2, 3, 1)(wf.ones(3), wf.ones(3))),
    (wf.ArgumentError, "groups", lambda: nn.Conv2d(3, 4, 3, groups=2)),
    (wf.ArgumentError, "stride of 1", lambda: nn.Conv1d(1, 1, 3, stride=2, padding="same")),
    (wf.ArgumentError, "padding_mode", lambda: nn.Conv1d(1, 1, 3, padding_mode="mirror")),
    (wf.ArgumentError, "kernel_size", lambda: nn.Conv2d(1, 1, (3, 3, 3))),
    (wf.ShapeError, "channels", lambda: nn.Conv2d(1, 1, 3)(wf.ones((1, 2, 5, 5)))),
    (wf.ShapeError, "channels", lambda: nn.BatchNorm2d(3)(wf.ones((2, 4, 2, 2)))),
    (wf.ShapeError, "no variance", lambda: nn.BatchNorm1d(3)(wf.ones((1, 3)))),
    (wf.ShapeError, "normalise", lambda: nn.LayerNorm(3)(wf.ones((2, 4)))),
    (wf.ArgumentError, "groups", lambda: nn.GroupNorm(2, 3)),
    (wf.ArgumentError, "probability", lambda: nn.Dropout(1.5)),
    (wf.ShapeError, "spatial", lambda: nn.Dropout2d()(wf.ones(3))),
    (wf.BoundsError, "index 4 at 1, 0", lambda: nn.Embedding(4, 2)(wf.tensor([[0], [4]]))),
    (wf.BoundsError, "index -1", lambda: nn.Embedding(4, 2)(wf.tensor(-1))),
    (wf.DTypeError, "whole number", lambda: nn.Embedding(4, 2)(wf.ones(2))),
    (wf.BoundsError, "out of range", lambda: wf.jit(nn.Embedding(4, 2))(wf.tensor([4]))),
    (wf.BoundsError, "out of range", lambda: wf.jit(nn.Embedding(4, 2))(wf.tensor([-1]))),
    (wf.BoundsError, "padding_idx", lambda: nn.Embedding(4, 2, padding_idx=4)),
    (wf.ArgumentError, "mode", lambda: nn.EmbeddingBag(4, 2, mode="min")),
    (wf.ShapeError, "bags", lambda: nn.EmbeddingBag(4, 2)(wf.tensor([1]))),
    (wf.ShapeError, "axes or the features", lambda: nn.LSTM(2, 3)(wf.ones((2, 1, 4)))),
    (wf.ShapeError, "state", lambda: nn.GRU(2, 3)(wf.ones((2, 1, 2)), wf.zeros((2, 1, 3)))),
    (wf.ArgumentError, "length", lambda: nn.GRU(2, 3)(wf.ones((2, 1, 2)), lengths=[3])),
    (wf.ArgumentError, "nonlinearity", lambda: nn.RNN(2, 3, nonlinearity="sin")),
    (wf.ArgumentError, "heads", lambda: nn.MultiheadAttention(8, 3)),
    (wf.ShapeError, "widths", lambda: nn.MultiheadAttention(8, 2)(wf.ones((1, 1, 7)))),
    (wf.ArgumentError, "pairs", lambda: nn.RotaryPosition(3)),
    (wf.ShapeError, "width", lambda: nn.RotaryPosition(2)(wf.ones((3, 8)))),
    (wf.ShapeError, "channels", lambda: nn.GroupNorm(1, 3)(wf.ones((2, 4)))),
    (wf.UnsupportedError, "without other masks", cached_with_a_mask),
    (wf.ArgumentError, "offsets", lambda: nn.EmbeddingBag(4, 2)(wf.tensor([1]), wf.tensor([1]))),
    (wf.BoundsError, "position 4", lambda: nn.LearnedPosition(4, 2)(wf.ones((5, 2)))),
    (wf.ShapeError, "divided", lambda: nn.PixelShuffle(2)(wf.ones((1, 3, 2, 2)))),
    (wf.ArgumentError, "edge", lambda: nn.ZeroPad2d((1, 2))),
    (wf.ShapeError, "axes", lambda: nn.init.xavier_uniform_(wf.ones(3))),
    (wf.ArgumentError, "gain", lambda: nn.init.calculate_gain("cosine")),
    (wf.ArgumentError, "mode", lambda: nn.init.kaiming_normal_(wf.ones((2, 2)), mode="fan")),
]  # fmt: skip


@pytest.mark.parametrize(
    "row", WRONG, ids=[f"{r[0].__name__}-{r[1]}-{i}" for i, r in enumerate(WRONG)]
)
def test_a_wrong_input_is_refused_with_a_reason(row: Any) -> None:
    kind, words, wrong = row
    with pytest.raises(kind, match=words) as caught:
        wrong()
    assert caught.value.fix
    assert caught.value.expected


def test_initial_values_have_the_moments_they_promise() -> None:
    wf.random.seed(0)
    shape, init = (200, 50), nn.init
    bound = math.sqrt(6 / 250)
    drawn = init.xavier_uniform_(wf.empty(shape)).numpy()
    assert abs(drawn).max() <= bound
    assert drawn.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    normal = init.kaiming_normal_(wf.empty(shape), nonlinearity="relu").numpy()
    assert normal.std() == pytest.approx(math.sqrt(2 / 50), rel=0.03)
    cut = init.trunc_normal_(wf.empty(shape), mean=1.0, std=1.0, a=0.0, b=1.5).numpy()
    assert cut.min() >= 0
    assert cut.max() <= 1.5
    q = init.orthogonal_(wf.empty((6, 2, 2)), gain=3.0).numpy().reshape(6, 4)
    np.testing.assert_allclose(q.T @ q, 9 * np.eye(4), atol=1e-4)
    x = draw(1, 3, 5)
    kernel = init.dirac_(wf.empty((3, 3, 3)))
    np.testing.assert_allclose(wf.conv1d(wf.tensor(x), kernel, padding=1).numpy(), x, rtol=1e-6)
    handle = nn.Parameter(wf.zeros(2))
    assert init.constant_(handle, 3.0) is handle
    assert handle.requires_grad


@pytest.mark.parametrize("norm", [nn.functional.layer_norm, nn.functional.rms_norm])
def test_a_norm_over_a_size_that_became_a_symbol(norm: Callable[..., wf.Tensor]) -> None:
    compiled = wf.jit(lambda x: norm(x, x.shape[-1]))
    for size in (3, 4, 6):
        x = wf.asarray(draw(2, size))
        np.testing.assert_allclose(compiled(x).numpy(), norm(x, size).numpy(), rtol=1e-5, atol=1e-6)


def test_prelu_keeps_the_shape_of_a_number() -> None:
    assert nn.PReLU()(wf.tensor(-4.0)).shape == ()
    assert nn.PReLU()(wf.tensor(-4.0)).item() == -1.0
    assert F.prelu(wf.tensor(-4.0), wf.tensor([0.5])).item() == -2.0
    assert F.prelu(-wf.ones((2, 3)), wf.tensor([0.5])).shape == (2, 3)
    with pytest.raises(wf.ShapeError, match="has no channels"):
        F.prelu(wf.tensor(-4.0), wf.tensor([0.5, 0.25]))


NUMBER, LINE = wf.tensor(0.5), wf.ones(3)
WITHOUT_AXES: dict[str, Callable[[], object]] = {
    "linear": lambda: F.linear(LINE, NUMBER),
    "bilinear": lambda: F.bilinear(NUMBER, NUMBER, wf.ones((1, 1, 1))),
    "bilinear weight": lambda: F.bilinear(LINE, LINE, NUMBER),
    "embedding": lambda: F.embedding(wf.tensor([0]), NUMBER),
    "attention_weights": lambda: F.attention_weights(NUMBER, NUMBER),
    "apply_rotary": lambda: F.apply_rotary(NUMBER, NUMBER, NUMBER),
}


@pytest.mark.parametrize("name", WITHOUT_AXES)
def test_a_number_where_axes_are_needed_is_refused(name: str) -> None:
    with pytest.raises(wf.ShapeError) as caught:
        WITHOUT_AXES[name]()
    assert caught.value.op in name
    assert "axes" in caught.value.problem


def test_batch_norm_has_the_derivatives_of_its_plain_form_in_both_modes_and_twice() -> None:
    rng = np.random.default_rng(0)
    shapes = ((4, 3, 5), (3,), (3,), (4, 3, 5))
    x, w, b, direction = (wf.tensor(rng.normal(size=shape)) for shape in shapes)
    x = x + 100.0  # far from zero: nothing may cancel

    def plain(x: wf.Tensor) -> wf.Tensor:
        mean = wf.mean(x, axis=(0, 2), keepdims=True)
        var = wf.mean(wf.square(x - mean), axis=(0, 2), keepdims=True)
        return (x - mean) * wf.rsqrt(var + 1e-5) * w.reshape(3, 1) + b.reshape(3, 1)

    def layer(x: wf.Tensor) -> wf.Tensor:
        return wf.nn.functional.batch_norm(x, None, None, w, b, training=True)

    def derivatives(f: Any) -> list[Any]:
        once = wf.grad(lambda x: wf.sin(f(x)).sum())
        twice = wf.grad(lambda x: (once(x) * direction).sum())
        return [once(x), twice(x), wf.jvp(f, (x,), (direction,))[1]]

    for found, wanted in zip(derivatives(layer), derivatives(plain), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-11)
