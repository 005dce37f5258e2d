"""Every network of `wf.models`, and with them those of the examples, exports and agrees."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft as wf
from weft.onnx import export

pytest.importorskip("onnx")
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
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
