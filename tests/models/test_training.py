"""Every network: the shape of its result, that a step lowers its loss, and that jit agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import models
from weft.models.resnet import BasicBlock, Bottleneck
from weft.models.vgg import VGG19
from weft.nn import functional as F  # noqa: N812

pytestmark = pytest.mark.slow

Tensors = tuple[wf.Tensor, ...]


def classified(net: Any, x: wf.Tensor, labels: wf.Tensor) -> wf.Tensor:
    return F.cross_entropy(net(x), labels)


def continued(net: Any, tokens: wf.Tensor) -> wf.Tensor:
    logits = net(tokens[:, :-1])
    return F.cross_entropy(wf.reshape(logits, (-1, logits.shape[-1])), tokens[:, 1:].reshape(-1))


def own_loss(net: Any, x: wf.Tensor) -> wf.Tensor:
    return net.loss(x)


def clicked(net: Any, ids: wf.Tensor, dense: wf.Tensor, clicks: wf.Tensor) -> wf.Tensor:
    return F.binary_cross_entropy_with_logits(net(ids, dense), clicks)


def translated(net: Any, source: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
    logits = net(source, target[:, :-1])
    return F.cross_entropy(wf.reshape(logits, (-1, logits.shape[-1])), target[:, 1:].reshape(-1))


def encoded(net: Any, tokens: wf.Tensor) -> wf.Tensor:
    return wf.mean((net.pooled(net(tokens)) - 0.5) ** 2)


def segmented(net: Any, x: wf.Tensor) -> wf.Tensor:
    return wf.mean((net(x) - x) ** 2)


@dataclass(frozen=True)
class Case:
    """A network, what it is called with, the shape of its result, and its loss."""

    build: Callable[[], Any]
    inputs: Callable[[np.random.Generator], Tensors]
    result: tuple[int, ...]
    loss: Callable[..., wf.Tensor]
    given: int = 1
    """How many of the inputs the network itself takes."""
    lr: float = 0.05


def images(side: int, channels: int = 3, count: int = 4) -> Callable[..., Tensors]:
    def draw(rng: np.random.Generator) -> Tensors:
        x = rng.uniform(0, 1, (count, channels, side, side)).astype(np.float32)
        return wf.asarray(x), wf.asarray(np.arange(count) % 3)

    return draw


def tokens(batch: int, time: int, vocabulary: int, count: int = 1) -> Callable[..., Tensors]:
    def draw(rng: np.random.Generator) -> Tensors:
        return tuple(wf.asarray(rng.integers(1, vocabulary, (batch, time))) for _ in range(count))

    return draw


def clicks(rng: np.random.Generator) -> Tensors:
    dense = rng.normal(size=(8, 2)).astype(np.float32)
    return (
        wf.asarray(rng.integers(0, 1 << 40, (8, 3))),
        wf.asarray(dense),
        wf.asarray((dense[:, 0] > 0).astype(np.float32)),
    )


def points(rng: np.random.Generator) -> Tensors:
    return (wf.asarray(rng.normal(size=(64, 2)).astype(np.float32)),)


GPT = models.GPTConfig(vocabulary=11, width=16, layers=2, heads=2, context=12)
LLAMA = models.LlamaConfig(11, 16, 24, layers=2, heads=4, kv_heads=2, context=12)
BERT = models.BERTConfig(11, 16, 24, layers=1, heads=2, context=12, dropout=0.0)
CASES = {
    "MLP": Case(lambda: models.MLP([12, 8, 3]), images(2), (4, 3), classified),
    "LeNet": Case(lambda: models.LeNet(3, size=16), images(16, 1), (4, 3), classified),
    "ResNet": Case(
        lambda: models.ResNet(BasicBlock, (1, 1), 3, True, (4, 8)), images(8), (4, 3), classified
    ),
    "ResNet with bottlenecks": Case(
        lambda: models.ResNet(Bottleneck, (1, 1), 3, False, (4, 8)), images(16), (4, 3), classified
    ),
    "VGG": Case(
        lambda: models.VGG(
            (1, 1, 2), 3, 8, hidden=16, dropout=0.0, batch_norm=True, widths=(4, 4, 8)
        ),
        images(8), (4, 3), classified,
    ),
    "UNet": Case(
        lambda: models.UNet(1, 1, (4, 8)), lambda rng: images(8, 1)(rng)[:1], (4, 1, 8, 8),
        segmented,
    ),
    "GPT": Case(lambda: models.GPT(GPT), tokens(2, 8, 11), (2, 8, 11), continued),
    "GPT2": Case(lambda: models.GPT2(GPT), tokens(2, 8, 11), (2, 8, 11), continued),
    "Llama": Case(lambda: models.Llama(LLAMA), tokens(2, 8, 11), (2, 8, 11), continued),
    "BERT": Case(lambda: models.BERT(BERT), tokens(2, 8, 11), (2, 8, 16), encoded),
    "LSTM": Case(
        lambda: models.LSTMLanguageModel(11, 16, 2, tied=True), tokens(2, 8, 11), (2, 8, 11),
        continued,
    ),
    "Seq2Seq": Case(
        lambda: models.Seq2Seq(11, 11, 16, 2, 1, dropout=0.0), tokens(2, 6, 11, 2), (2, 6, 11),
        translated, given=2,
    ),
    "DLRM": Case(
        lambda: models.DLRM(3, 50, 4, 2, (8,), (8,)), clicks, (8,), clicked, given=2, lr=0.5
    ),
    "DeepFM": Case(
        lambda: models.DeepFM(3, 50, 4, 2, (8,)), clicks, (8,), clicked, given=2, lr=0.5
    ),
}  # fmt: skip


def step(net: Any, optimizer: Any, loss: Callable[..., wf.Tensor], inputs: Tensors) -> wf.Tensor:
    value = loss(net, *inputs)
    optimizer.minimize(value)
    return value


def trained(case: Case, inputs: Tensors, stepping: Any, count: int) -> tuple[list[float], Any]:
    wf.random.seed(0)
    net = case.build()
    optimizer = wf.optim.SGD(net.parameters(), lr=case.lr, momentum=0.5)
    return [stepping(net, optimizer, case.loss, inputs).item() for _ in range(count)], net


@pytest.mark.parametrize("name", CASES)
def test_the_result_has_its_shape(name: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    net = case.build().eval()
    result = net(*case.inputs(rng)[: case.given])
    assert tuple(result.shape) == case.result


@pytest.mark.parametrize("name", CASES)
def test_a_step_lowers_the_loss_and_a_compiled_step_is_the_same(
    name: str, rng: np.random.Generator
) -> None:
    case = CASES[name]
    inputs = case.inputs(rng)
    eager, net = trained(case, inputs, step, 3)
    assert eager[2] < eager[0]
    compiled = wf.jit(step)
    losses, other = trained(case, inputs, compiled, 3)
    assert len(compiled.compilations) == 1
    np.testing.assert_allclose(losses, eager, rtol=1e-4)
    for ours, theirs in zip(net.state_dict().items(), other.state_dict().items(), strict=True):
        assert ours[0] == theirs[0]
        np.testing.assert_allclose(ours[1].numpy(), theirs[1].numpy(), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    "build",
    [
        lambda: models.VAE(pixels=8, hidden=16, latent=2),
        lambda: models.Diffusion(models.PointDenoiser(2, 16, 1), steps=20),
        lambda: models.Diffusion(models.ImageDenoiser(1, (4,), 8), steps=20),
    ],
    ids=["VAE", "points", "images"],
)
def test_what_draws_at_random_learns_too(build: Any, rng: np.random.Generator) -> None:
    wf.random.seed(0)
    net = build()
    is_image = "ImageDenoiser" in repr(net)
    shape = (32, 1, 4, 4) if is_image else (32, 8) if isinstance(net, models.VAE) else (32, 2)
    kinds = (rng.uniform(0, 1, (2, *shape[1:])) > 0.5).astype(np.float32)
    x = wf.asarray(kinds[rng.integers(0, 2, shape[0])])  # two examples, over and over
    optimizer = wf.optim.Adam(net.parameters(), lr=0.02)
    stepping = wf.jit(step)
    losses = [stepping(net, optimizer, own_loss, (x,)).item() for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    assert len(stepping.compilations) == 1


def test_the_variational_bound_is_its_formula(rng: np.random.Generator) -> None:
    net = models.VAE(pixels=4, hidden=8, latent=2).eval()
    x = rng.uniform(0, 1, (3, 4)).astype(np.float32)
    logits, mean, log_variance = (part.detach().numpy() for part in net(wf.asarray(x)))
    lost = -(x * -np.log1p(np.exp(-logits)) + (1 - x) * -np.log1p(np.exp(logits))).sum()
    spread = 0.5 * (np.exp(log_variance) + mean**2 - 1 - log_variance).sum()
    assert net.loss(wf.asarray(x)).item() == pytest.approx((lost + spread) / 3, rel=1e-5)


def test_diffusion_that_knows_the_noise_finds_the_example() -> None:
    """A network that tells the noise of one point exactly leads every sample to it."""

    class Oracle(wf.nn.Module):
        def forward(self, x: wf.Tensor, time: wf.Tensor) -> wf.Tensor:
            share = wf.expand_dims(wf.take(kept, time, axis=0), axis=1)
            return (x - wf.sqrt(share) * point) / wf.sqrt(1 - share)

    point = wf.tensor([2.0, -1.0])
    process = models.Diffusion(Oracle(), steps=30)
    kept = process.kept
    for chance in (0.0, 1.0):
        found = process.sample((5, 2), wf.random.key(1), chance).numpy()
        np.testing.assert_allclose(found, np.tile([2.0, -1.0], (5, 1)), atol=1e-4)


def test_the_noise_of_the_first_step_is_small_and_of_the_last_all() -> None:
    kept = models.Diffusion(models.PointDenoiser(2, 8, 1), steps=100).kept.numpy()
    assert kept[0] > 0.99
    assert kept[-1] < 0.01
    assert (np.diff(kept) < 0).all()


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (lambda: models.resnet18(), 11_689_512),
        (lambda: models.LeNet(), 431_080),
    ],
    ids=["resnet18", "LeNet"],
)
def test_whole_networks_have_the_published_number_of_parameters(
    build: Any, parameters: int
) -> None:
    assert sum(p.size for p in build().parameters()) == parameters


def test_resnet50_and_vgg19_have_their_layers_without_being_run() -> None:
    resnet = models.ResNet(Bottleneck, (3, 4, 6, 3), 10, False, (2, 4, 8, 16))
    assert sum(isinstance(m, wf.nn.Conv2d) for m in resnet.modules()) == 53
    assert resnet.summary(wf.spec("float32", (1, 3, 64, 64))).operations > 0
    vgg = models.VGG(VGG19, 10, 32, 8, widths=(2, 4, 8, 8, 8))
    assert sum(isinstance(m, wf.nn.Conv2d) for m in vgg.modules()) == 16
    assert list(vgg.state_dict())[-2:] == ["classifier.6.weight", "classifier.6.bias"]


def test_a_translation_with_a_cache_is_the_one_without(rng: np.random.Generator) -> None:
    wf.random.seed(3)
    net = models.Seq2Seq(11, 11, 16, 2, 2, dropout=0.1).eval()
    source = rng.integers(3, 11, (3, 5))
    source[1, 3:] = 0  # padding
    found = net.translate(wf.asarray(source), begin=1, end=2, longest=6).numpy()
    words = np.full((3, 1), 1)
    with wf.no_grad():
        for _ in range(found.shape[1]):
            logits = net(wf.asarray(source), wf.asarray(words)).numpy()
            words = np.concatenate([words, logits[:, -1].argmax(-1)[:, None]], axis=1)
    for row, expected in zip(found, words[:, 1:], strict=True):
        ends = np.flatnonzero(expected == 2)
        length = ends[0] + 1 if len(ends) else len(expected)
        assert row[:length].tolist() == expected[:length].tolist()
        assert (row[length:] == 0).all()


def test_padding_does_not_change_a_translation(rng: np.random.Generator) -> None:
    net = models.Seq2Seq(11, 11, 16, 2, 1).eval()
    source = rng.integers(3, 11, (1, 4))
    padded = np.concatenate([source, np.zeros((1, 3), np.int64)], axis=1)
    target = wf.tensor([[1, 5, 6]])
    short, long = net(wf.asarray(source), target), net(wf.asarray(padded), target)
    np.testing.assert_allclose(short.detach().numpy(), long.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda: models.MLP([3]), "MLP([784, 512, 10])"),
        (lambda: models.LeNet(size=8), "LeNet(size=8, padding=2)"),
        (lambda: models.UNet(1, 1)(wf.ones((1, 1, 6, 6))), "pad the image to a multiple of 4"),
        (lambda: models.GPT(models.GPTConfig(width=10, heads=3)), "GPTConfig(width=96, heads=3)"),
        (lambda: models.GPT(GPT)(wf.zeros((1, 13), dtype=wf.int64)), "tokens[:, -12:]"),
        (lambda: models.DeepFM(3, 9)(wf.zeros((1, 2), dtype=wf.int64)), "DeepFM(features=2"),
    ],
)
def test_a_wrong_size_is_refused_with_a_fix(call: Any, fix: str) -> None:
    with pytest.raises(wf.WeftError) as caught:
        call()
    assert caught.value.fix.startswith(fix)
