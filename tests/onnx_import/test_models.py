"""Trained networks of others, with outputs that were computed by others."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.slow

SHARED = Path(__file__).parents[2].parent / "shared"
MODELS, DIGITS = SHARED / "models", SHARED / "datasets" / "mnist"


def needs(folder: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not folder.is_dir(), reason=f"{folder.name} is not there")


def read_digits(name: str, offset: int) -> Any:
    with gzip.open(DIGITS / name) as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


@needs(MODELS)
@needs(DIGITS)
@pytest.mark.parametrize(
    ("name", "right"), [("mnist-8", 9891), ("cnn_mnist_pytorch", 9904)], ids=lambda case: str(case)
)
def test_digits_are_told_as_well_as_the_reference_tells_them(name: str, right: int) -> None:
    images = read_digits("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 1, 28, 28)
    labels = read_digits("t10k-labels-idx1-ubyte.gz", 8)
    net = wf.onnx.load(MODELS / "onnx-mnist" / f"{name}.onnx")
    run = wf.jit(wf.vmap(net))  # the files are for one picture each
    with wf.no_grad():
        batches = [
            run(wf.asarray(images[i : i + 1000].astype(np.float32))).numpy()
            for i in range(0, len(images), 1000)
        ]
        first = net(images[0].astype(np.float32)).numpy()
    scores = np.concatenate(batches).reshape(-1, 10)
    assert int((scores.argmax(axis=1) == labels).sum()) == right
    stored = np.load(MODELS / "onnx-mnist" / "logits_first256.npz")[name.replace("-", "_")]
    np.testing.assert_allclose(scores[:256], stored, rtol=1e-5, atol=5e-3)
    np.testing.assert_allclose(first, stored[:1], rtol=1e-5, atol=5e-3)


def read_tensor(path: Path) -> Any:
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


@needs(MODELS)
@pytest.mark.parametrize("compile_", [lambda net: net, wf.jit], ids=["eager", "jit"])
def test_a_quantised_network_is_within_a_step_of_the_reference(
    compile_: Callable[[Any], Any],
) -> None:
    folder = MODELS / "onnx-mobilenetv2-qdq"
    net = wf.onnx.load(folder / "mobilenet_v2_qdq.onnx")
    scores = compile_(net)(wf.asarray(read_tensor(folder / "input_0.pb"))).numpy()
    stored = read_tensor(folder / "output_0.pb")
    step = 0.30619884  # of the scores: the network's last node rounds to it
    assert np.abs(scores - stored).max() <= step * 1.001
    assert scores.argmax() == stored.argmax() == 446


@needs(MODELS)
@pytest.mark.parametrize("compile_", [lambda net: net, wf.jit], ids=["eager", "jit"])
def test_speech_is_told_from_silence_as_the_reference_tells_it(
    compile_: Callable[[Any], Any],
) -> None:
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("silero-vad, which holds the weights, is not installed")
    folder = Path(package.submodule_search_locations[0]) / "data"
    net = compile_(wf.onnx.load(folder / "silero_vad_16k_op15.onnx"))
    stored = np.load(MODELS / "silero-vad-ref" / "io.npz")
    frames = stored["audio16k"].astype(np.float32).reshape(-1, 1, 512) / 32768
    context, state, rate = np.zeros((1, 64), np.float32), wf.zeros((2, 1, 128)), wf.tensor(16000)
    chances = []
    with wf.no_grad():
        for frame in frames:
            window = np.concatenate([context, frame], axis=1)
            chance, state = net(wf.asarray(window), state, rate)
            context = window[:, -64:]
            chances.append(chance.item())
    np.testing.assert_allclose(chances, stored["prob_op15"].reshape(-1), atol=1e-5)
    np.testing.assert_allclose(state.numpy(), stored["state_op15"], atol=1e-4)
