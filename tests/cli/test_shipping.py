"""`weft export` in the hands of a beginner: each mistake is told in the words of the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.cli.application import main

PROGRAM = """
import weft as wf
from weft import nn

net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))


def add(x, y):
    return x + y


def solve(a):
    return wf.linalg.solve(a, a)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "taken").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("mine.py:net", "give --input for each, such as --input 1x3x224x224"),
        ("mine.py:nett --input 1x6", "did you mean 'net'?"),
        ("mine.py:net --input batchx6", "sizes with names need commas: batch,6"),
        ("mine.py:net --input 1xwidth", "sizes with names need commas: 1,width"),
        ("mine.py:net --input 1x6x", "is no type: write 1x3x224x224"),
        ("mine.py:net --input 0x6", "--input 0x6 is empty"),
        ("mine.py:net --input float32:batch,6", "how large may batch be? Add --most batch=64"),
        ("mine.py:net --input float32:batch,6 --most batch=0", "--most batch=0 says no largest"),
        ("mine.py:net --input float32:n,6 --most n=4 --most m=2", "there is n"),
        ("mine.py:net --input 1x6 --most batch=2", "no --input has a size of that name"),
        ("mine.py:net --input 1x6 --target arm64", "did you mean 'aarch64-linux'?"),
        ("mine.py:net --input 1x6 --target Darwin", "did you mean 'aarch64-macos'?"),
        ("mine.py:net --input 1x6 --target toaster", "there are host, x86-64-linux"),
        ("mine.py:net --input 1x6 --name my-net", "write --name my_net"),
        ("mine.py:net --input 1x6 --threads 0", "1 thread or more"),
        ("mine.py:net --input 1x6 -o taken", "-o taken is a file: name a folder"),
        ("mine.py:net --input 1x6 --folder nowhere", "no checkpoint called step-... in nowhere"),
        ("mine.py:add --input 6", "takes (x, y), and there is 1 --input"),
        ("mine.py:add --input 6 --input 6 --folder .", "--folder has no weights to give it"),
        ("nothing.onnx --input 1x6", "no such file: nothing.onnx"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_the_command(
    words: str, told: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *words.split()]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.startswith("error: ")
    assert not (program / "model").exists()


def test_what_cannot_leave_python_is_told_with_the_users_line(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "mine.py:solve", "--input", "3x3"]) == 1
    said = capsys.readouterr().err
    assert "solve has no code of its own" in said
    assert "mine.py:13" in said
    assert not (program / "model").exists()


def test_a_checkpoint_gives_a_named_network_its_weights(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wf.random.seed(3)
    net = wf.nn.Sequential(wf.nn.Linear(6, 4), wf.nn.ReLU(), wf.nn.Dropout(0.5), wf.nn.Linear(4, 2))
    trainer = wf.train.Trainer(
        net, "mse_loss", wf.optim.SGD(net.parameters(), lr=0.0), progress=False,
        checkpoint_folder=program / "run",
    )  # fmt: skip
    trainer.fit((wf.ones((4, 6)), wf.ones((4, 2))), epochs=1, batch_size=4)
    flags = ["--folder", "run", "--input", "1x6", "--weights", "beside"]
    assert main(["export", "mine.py:net", *flags]) == 0
    written = wf.load(program / "model" / "model.safetensors")
    held = {tuple(t.shape): t.numpy() for t in written.values()}
    np.testing.assert_array_equal(held[4, 6], net[0].weight.detach().numpy())


def test_an_onnx_file_is_a_program(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    wf.onnx.export(wf.nn.Linear(6, 2), (wf.ones((1, 6)),), program / "line.onnx")
    assert main(["export", "line.onnx", "--input", "1x6", "-o", "shipped"]) == 0
    assert (program / "shipped" / "model.h").exists()
