"""Every network of `wf.models`, and with them those of the examples, exports and agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import isclass
from pathlib import Path
from typing import Any

import pytest
from tests.nightly import NIGHTLY

import weft as wf
from weft.models.clip import TextConfig
from weft.onnx import export

pytest.importorskip("onnx")
models = wf.models
Case = tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any]]


def images(batch: int, channels: int, size: int) -> wf.Tensor:
    return wf.random.normal((batch, channels, size, size), key=wf.random.key(1))


def rows(*shape: int) -> wf.Tensor:
    return wf.random.normal(shape, key=wf.random.key(2))


TOKENS = wf.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
IDS = wf.tensor([[1, 2, 3], [4, 5, 6]])
TIMES = wf.tensor([0, 5])
TEXT = {"tokens": {0: "batch", 1: "time"}}
BATCH = {"x": {0: "batch"}}
TIMED = {"x": {0: "batch"}, "time": {0: "batch"}}
SMALL = models.GPTConfig(vocabulary=20, width=16, layers=2, heads=2, context=16)


def llama() -> Any:
    return models.Llama(
        models.LlamaConfig(
            vocabulary=20, width=16, layers=2, heads=4, kv_heads=2, hidden=32, context=16
        )
    )


def with_lora() -> Any:
    net = models.GPT(SMALL)
    models.add_lora(net, rank=2, targets=("h.*",))
    return net


def bert() -> Any:
    return models.BERT(
        models.BERTConfig(vocabulary=20, width=16, layers=2, heads=2, hidden=32, context=16)
    )


def mistral() -> Any:
    """A Llama whose layers see three positions, or all."""
    return models.Llama(
        models.LlamaConfig(
            vocabulary=20, width=16, layers=2, heads=4, kv_heads=2, hidden=32, context=16,
            windows=(3, None),
        )
    )  # fmt: skip


VISION = models.ViTConfig(image=8, patch=4, width=8, layers=1, heads=2, hidden=16, labels=3)


def clip() -> Any:
    text = TextConfig(vocabulary=20, width=8, layers=1, heads=2, hidden=16, context=6)
    return models.CLIP(models.CLIPConfig(text, replace(VISION, labels=0), shared=4))


def whisper() -> Any:
    return models.Whisper(
        models.WhisperConfig(
            vocabulary=20, mels=4, width=8, layers=1, heads=2, hidden=16, frames=6, context=5,
            decoder_layers=1, decoder_heads=2, decoder_hidden=16,
        )
    )  # fmt: skip


def interests() -> Any:
    net = models.DIN(3, 50, 4, hidden=(8,))
    return lambda ids, history, mask: net(ids, history, mask=mask)


USUAL: dict[str, Case] = {
    "MLP": (lambda: models.MLP([8, 16, 3]), (rows(2, 8),), BATCH),
    "VAE": (lambda: models.VAE(16, 8, 4), (rows(2, 16),), BATCH),
    "GPT": (lambda: models.GPT(SMALL), (TOKENS,), TEXT),
    "Llama": (llama, (TOKENS,), TEXT),
    "LSTMLanguageModel": (lambda: models.LSTMLanguageModel(20, 8, 2), (TOKENS,), TEXT),
    "VGG": (
        lambda: models.VGG((1, 1), 5, 16, 8, batch_norm=True, widths=(4, 8)),
        (images(1, 3, 16),),
        BATCH,
    ),
}
MORE: dict[str, Case] = {
    "LeNet": (lambda: models.LeNet(size=8, padding=2), (images(2, 1, 8),), BATCH),
    "BERT": (bert, (TOKENS,), TEXT),
    "GPT2": (lambda: models.GPT2(SMALL), (TOKENS,), TEXT),
    "GPT with LoRA": (with_lora, (TOKENS,), TEXT),
    "DLRM": (
        lambda: models.DLRM(3, 50, 4, 5, (8,), (8,)),
        (IDS, rows(2, 5)),
        {"ids": {0: "batch"}, "dense": {0: "batch"}},
    ),
    "DeepFM": (lambda: models.DeepFM(3, 50, 4, 0, (8,)), (IDS,), {"ids": {0: "batch"}}),
    "Llama with windows": (mistral, (TOKENS,), TEXT),
    "ViT": (lambda: models.ViT(VISION), (images(2, 3, 8),), {"images": {0: "batch"}}),
    "CLIP": (
        clip,
        (TOKENS, images(2, 3, 8)),
        {"tokens": {0: "texts", 1: "time"}, "images": {0: "pictures"}},
    ),
    "Whisper": (
        whisper,
        (rows(2, 4, 12), TOKENS),
        {"spectrogram": {0: "batch"}, "tokens": {0: "batch", 1: "time"}},
    ),
    "DIN": (
        interests,
        (IDS, TOKENS, TOKENS > 0),
        {"ids": {0: "batch"}, "history": {0: "batch", 1: "time"}, "mask": {0: "batch", 1: "time"}},
    ),
    "MMoE": (
        lambda: models.MMoE(3, 50, 4, tasks=2, experts=3, expert=(8,), tower=(4,)),
        (IDS,),
        {"ids": {0: "batch"}},
    ),
    "WideAndDeep": (
        lambda: models.WideAndDeep(3, 50, 4, hidden=(8,)), (IDS,), {"ids": {0: "batch"}},
    ),
    "Seq2Seq": (
        lambda: models.Seq2Seq(20, 21, 16, 2, 1, 32),
        (TOKENS, TOKENS),
        {"source": {0: "batch", 1: "s"}, "target": {0: "batch", 1: "t"}},
    ),
    "ResNet-18": (lambda: models.resnet18(classes=5), (images(1, 3, 32),), BATCH),
    "ResNet-34": (lambda: models.resnet34(classes=5), (images(1, 3, 32),), BATCH),
    "ResNet-50": (lambda: models.resnet50(classes=5), (images(1, 3, 32),), BATCH),
    "UNet": (lambda: models.UNet(1, 1, (4, 8)), (images(1, 1, 8),), BATCH),
    "ImageDenoiser": (
        lambda: models.ImageDenoiser(1, (4, 8), 16), (images(2, 1, 8), TIMES), TIMED,
    ),
    "PointDenoiser": (lambda: models.PointDenoiser(2, 16, 2), (rows(2, 2), TIMES), TIMED),
}  # fmt: skip


PARTS = {"Diffusion", "LanguageModel", "LoRALinear", "ResNet", "TargetAttention"}
"""Parts of networks, and what they have in common: in DIN, GPT with LoRA, ResNet-18, denoisers."""


def test_every_network_of_the_models_is_tried() -> None:
    kinds = [getattr(models, name) for name in dir(models)]
    networks = {each.__name__ for each in kinds if isclass(each) and issubclass(each, wf.nn.Module)}
    assert networks - PARTS <= {*USUAL, *MORE}


@pytest.mark.parametrize("name", {**USUAL, **MORE} if NIGHTLY else USUAL)
def test_a_network_exports_and_agrees_at_two_sizes(name: str, tmp_path: Path) -> None:
    make, args, dynamic = {**USUAL, **MORE}[name]
    wf.random.seed(5)
    report = export(make(), args, tmp_path / "net.onnx", dynamic=dynamic)
    assert report.verification is not None
    assert len(report.verification.sizes) == 2
    assert report.verification.largest < 1e-5


@pytest.mark.parametrize("make", [llama, lambda: models.LSTMLanguageModel(20, 8, 2)])
def test_a_step_with_a_cache_exports_with_its_state(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    net = make()
    cache = net.new_cache(2, 16)
    report = export(net, (TOKENS[:, :1], cache), tmp_path / "step.onnx")
    assert len(report.inputs) == 1 + len(wf.tree.leaves(cache))
    assert len(report.outputs) == len(report.inputs)
