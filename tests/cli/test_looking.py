"""`weft show FILE:net` and `weft check`: from the command line to a picture, or an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft as wf
from weft.cli import main
from weft.cli.looking import parsed_type
from weft.cli.mistakes import Mistake

MODEL = """
import weft as wf
from weft import nn

net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
pooled = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(8 * 4 * 4, 10),
)
wrong = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(5, 2))

class Small(nn.Module):
    def __init__(self, width=4):
        self.body = nn.Linear(7, width)
        self.unused = nn.Linear(width, 3)
    def forward(self, x):
        return self.body(x)

def square_sum(outputs):
    return (outputs ** 2).sum()

def function(a, b):
    return (a @ b).sum()
"""


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL, encoding="utf-8")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_types_are_read_as_they_are_written() -> None:
    assert str(parsed_type("1x3x224x224")) == "f32[1, 3, 224, 224]"
    assert str(parsed_type("float32:batch,784")) == "f32[batch, 784]"
    assert str(parsed_type("int64:8")) == "i64[8]"
    assert str(parsed_type("bool:2x3")) == "bool[2, 3]"
    for wrong in ("float33:3", "3;4", "float32:a-b"):
        with pytest.raises(Mistake, match="is no type"):
            parsed_type(wrong)


@pytest.mark.parametrize("net", ["net", "pooled"])
def test_a_network_is_shown_as_a_page(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    step = ["show", f"model.py:{net}", "--input", "1x3x8x8", "-o", "net.html"]
    code, out, err = run(capsys, *step)
    assert code == 0, err
    assert "0: Conv2d" in out
    assert "graph: net.html" in out
    page = Path("net.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert '"seconds":' in page
    assert '"phase":"backward"' not in page


def test_a_training_step_is_shown_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    step = ["show", "model.py:net", "--input", "2x3x8x8", "--train", "--loss", "cross_entropy"]
    step += ["--target", "int64:2", "--no-measure"]
    for ending in ("html", "svg", "dot"):
        code, _, err = run(capsys, *step, "-o", f"step.{ending}")
        assert code == 0, err
        text = Path(f"step.{ending}").read_text(encoding="utf-8")
        for word in ("forward", "backward", "update", "cross_entropy", "Sequential"):
            assert word in text
    code, _, err = run(capsys, *step, "--tensorboard", "events")
    assert code == 0, err
    assert b"backward/Sequential/3/" in next(Path("events").iterdir()).read_bytes()


def test_a_class_and_a_function_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "model.py:Small", "--set", "width=9", "--input", "2x7")
    assert code == 0, err
    assert "f32[2, 9]" in out
    inputs = ["--input", "2x3", "--input", "3x4"]
    code, _, err = run(capsys, "show", "model.py:function", *inputs, "-o", "f.svg")
    assert code == 0, err
    assert ">dot<" in Path("f.svg").read_text(encoding="utf-8")


def test_a_correct_network_passes_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check", "model.py:net", "--input", "float32:batch,3,8,8")
    assert code == 0, err
    assert "nothing wrong was found" in out
    assert "f32[batch, 3, 8, 8] -> f32[batch, 5]" in out


def test_an_error_fails_the_check_with_file_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "model.py:wrong", "--input", "float32:batch,7")
    assert code == 1
    assert "error: ShapeError" in out
    line = MODEL.splitlines().index(next(t for t in MODEL.splitlines() if t.startswith("wrong")))
    assert f"model.py:{line + 1}" in out


def test_warnings_pass_unless_the_check_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    check = ["check", "model.py:Small", "--input", "float32:batch,7", "--json"]
    code, out, err = run(capsys, *check)
    assert code == 0, err
    found = json.loads(out)
    assert (found["errors"], found["warnings"]) == (0, 1)
    assert found["findings"][0]["line"] == 1 + MODEL.splitlines().index(
        "        self.unused = nn.Linear(width, 3)"
    )
    assert run(capsys, *check, "--strict")[0] == 1


def test_the_loss_may_be_one_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    network = ["check", "model.py:net", "--input", "float32:batch,3,8,8"]
    code, out, err = run(capsys, *network, "--loss", "square_sum")
    assert code == 0, err
    assert "-> f32[]" in out
    code, _, err = run(capsys, *network, "--loss", "cross_entropi")
    assert code == 2
    assert "did you mean 'cross_entropy'?" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "model.py:net", "-o", "net.html"], "give --input"),
        (["show", "model.py:net", "--input", "batch,3,8,8", "-o", "n.html"], "give a number"),
        (["check", "model.py:net"], "give --input"),
        (["check", "model.py:nett", "--input", "3"], "did you mean 'net'?"),
        (["check", "model.py", "--input", "3"], "does not define model"),
        (["check", "other.py:net", "--input", "3"], "no such file"),
        (["show", "model.py:net", "--set", "a=1", "--input", "3"], "nothing to set"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1


def test_a_picture_of_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "show", "model.py:net", "--input", "1x3x8x8", "-o", "net.png")
    assert code == 1
    assert "not written" in err
    assert wf.tools.__all__ == ["check", "profile", "show", "write_graph_events"]


def test_a_network_becomes_an_onnx_file_that_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    code, out, err = run(
        capsys, "onnx", "model.py:net", "--input", "float32:batch,3,8,8", "-o", "net.onnx"
    )
    assert (code, err) == (0, "")
    assert "output  output: f32[batch, 5]" in out
    assert "at batch = 2 and batch = 5" in out
    assert Path("net.onnx").stat().st_size > 0
    code, out, err = run(capsys, "onnx", "model.py:wrong", "--input", "2x7", "-o", "wrong.onnx")
    assert code == 1
    assert "linear: the input does not have as many features" in err
    assert not Path("wrong.onnx").exists()
