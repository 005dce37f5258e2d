"""The command line: what it does, what it says of mistakes, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.cli import main, register_program
from weft.config.documents import parse_value

PROGRAM = """
import weft as wf

def build(lr=0.05, width=8, activation="relu"):
    x = wf.random.normal((40, 4), key=wf.random.key(3))
    y = x @ wf.tensor([[1.0], [2.0], [-1.0], [0.5]])
    model = wf.nn.Sequential(wf.nn.Linear(4, width), wf.nn.ReLU(), wf.nn.Linear(width, 1))
    return {
        "model": model,
        "loss": lambda outputs, target: ((outputs - target) ** 2).mean(),
        "optimizer": wf.optim.Adam(model.parameters(), lr=lr),
        "train_data": (x, y),
        "validation_data": (x, y),
        "metrics": ["mae"],
    }
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PROGRAM, encoding="utf-8")
    return "mine.py"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_a_file_is_trained_judged_shown_and_used(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(
        capsys, "train", program, "--epochs", "8", "--set", "lr=0.02", "--set", "width=16",
        "--folder", "run", "--csv", "log.csv", "--plot", "loss.png",
    )  # fmt: skip
    assert code == 0, err
    assert "epoch 8/8" in out
    assert "val_mae" in out
    assert (tmp_path / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert len((tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()) == 9
    settings = ["--set", "width=16", "--folder", "run"]
    code, out, _ = run(capsys, "eval", program, "--json", *settings)
    found = json.loads(out)
    assert code == 0
    last = (tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()[-1].split(",")
    assert found["mae"] == pytest.approx(float(last[5]), rel=1e-5)
    code, out, _ = run(capsys, "predict", program, "--output", "out.npy", *settings)
    assert code == 0
    assert np.load(tmp_path / "out.npy").shape == (40, 1)
    np.savetxt(tmp_path / "in.csv", np.zeros((3, 4)), delimiter=",")
    code, out, _ = run(capsys, "predict", program, "--input", "in.csv", *settings)
    assert code == 0
    assert len(out.splitlines()) == 3
    code, out, _ = run(capsys, "show", program, "--graph", "net.html", *settings)
    assert code == 0
    assert "Linear" in out
    assert (tmp_path / "net.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_run_in_16_bits_is_resumed_and_judged(
    precision: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--precision", precision, "--folder", "run"]
    with open(program, "a", encoding="utf-8") as file:
        file.write("""
def watched(build):
    def parts(**settings):
        made = build(**settings)
        plain = made["loss"]
        def loss(outputs, target):
            print("casts to", wf.autocast_dtype())
            return plain(outputs, target)
        return {**made, "loss": loss}
    return parts
build = watched(build)
""")
    code, out, err = run(capsys, "train", program, "--epochs", "2", *settings)
    assert code == 0, err
    assert f"casts to {'bf16' if precision == 'bfloat16' else 'f16'}" in out
    code, _, err = run(capsys, "train", program, "--epochs", "4", "--resume", *settings)
    assert code == 0, err
    code, out, err = run(capsys, "eval", program, "--folder", "run")
    assert code == 0, err
    assert "casts to None" in out  # float32 weights are judged in float32


def test_averaged_weights_are_what_is_judged(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--ema", "0.5", "--folder", "run", "--json", "log.jsonl", "--quiet"]
    assert run(capsys, "train", program, "--epochs", "3", *flags)[0] == 0
    last = json.loads((tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    code, out, _ = run(capsys, "eval", program, "--folder", "run", "--json")
    assert code == 0
    assert json.loads(out)["loss"] == pytest.approx(last["val_loss"], rel=1e-4)


def test_a_run_goes_on_with_resume(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "train", program, "--folder", "run", "--quiet")[0] == 0
    code, _, err = run(capsys, "train", program, "--folder", "run", "--quiet")
    assert code == 1
    assert "earlier run" in err
    code, out, _ = run(capsys, "train", program, "--folder", "run", "--resume", "--epochs", "3")
    assert code == 0
    assert "epoch 2/3" in out
    assert "epoch 1/3" not in out


def test_a_file_says_what_flags_say_and_flags_are_stronger(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'program = "mine.py"\nepochs = 5\n[set]\nlr = 0.01\n'
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    code, out, _ = run(capsys, "train", "--config", "run.toml", "--epochs", "2")
    assert code == 0
    assert "epoch 2/2" in out


def test_names_in_a_module_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = PROGRAM + "\nparts = build()\nglobals().update(parts)\ndel build\n"
    (tmp_path / "names.py").write_text(lines, encoding="utf-8")
    assert run(capsys, "train", "names.py", "--quiet")[0] == 0
    code, _, err = run(capsys, "train", "names.py", "--set", "lr=1")
    assert code == 2
    assert "no settings" in err


def test_a_registered_name_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    exec(PROGRAM, scope)
    register_program("slope", scope["build"])  # type: ignore[arg-type]
    assert run(capsys, "train", "slope", "--quiet")[0] == 0
    code, _, err = run(capsys, "train", "slop")
    assert code == 2
    assert "did you mean 'slope'?" in err


MISTAKES = [
    (["train", "mine.py", "--set", "widht=3"], "did you mean 'width'?"),
    (["train", "mine.py", "--set", "width"], "key=value"),
    (["train", "mine.py", "--set", "width=wide"], "not of type int"),
    (["train", "mine.py", "--epoch", "3"], "did you mean '--epochs'?"),
    (["trian", "mine.py"], "did you mean 'train'?"),
    (["train", "other.py"], "no such file: other.py"),
    (["train", "mine.py:biuld"], "did you mean 'build'?"),
    (["train", "mine.py", "--config", "none.toml"], "no such file: none.toml"),
    (["train", "mine.py", "--config", "typo.toml"], "did you mean 'epochs'?"),
    (["train", "mine.py", "--config", "kind.toml"], "epochs must be of type int"),
    (["train", "mine.py", "--config", "broken.toml"], "is not TOML"),
    (["train", "mine.py", "--resume"], "--resume needs --folder"),
    (["train"], "nothing to train"),
    (["eval", "mine.py", "--folder", "nowhere"], "no checkpoint"),
    (["predict", "mine.py", "--input", "none.csv"], "no such file: none.csv"),
    (["bench", "--directory", "nowhere"], "no benchmarks"),
    (["train", "mine.py", "--config", "deep.toml"], "is not TOML"),
    (["train", "mine.py", "--config", "long.toml"], "long.toml cannot be read"),
    (["train", "mine.py", "--config", "pipe"], "pipe cannot be read"),
    (["train", "mine.py", "--config", "."], "cannot be read"),
    (["train", "mine.py", "--set", "width=" + "[" * 50_000], "not of type int"),
    (["train", "mine.py", "--set", "width=" + "9" * 5000], "not of type int"),
    (["predict", "mine.py", "--input", "large.npy"], "large.npy cannot be read"),
    (["predict", "mine.py", "--input", "text.npy"], "text.npy cannot be read"),
    (["predict", "mine.py", "--input", "text.npz"], "text.npz cannot be read"),
    (["predict", "mine.py", "--input", "text.csv"], "text.csv cannot be read"),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKES, ids=lambda x: str(x)[:40])
def test_a_mistake_is_told_in_a_line_with_code_2(
    program: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    (tmp_path / "typo.toml").write_text("epoch = 3\n", encoding="utf-8")
    (tmp_path / "kind.toml").write_text('epochs = "three"\n', encoding="utf-8")
    (tmp_path / "broken.toml").write_text("epochs = = 3\n", encoding="utf-8")
    (tmp_path / "deep.toml").write_text("epochs = " + "[" * 50_000, encoding="utf-8")
    (tmp_path / "long.toml").write_text("#" * 2_000_000, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }\n"
    (tmp_path / "large.npy").write_bytes(b"\x93NUMPY\x01\x00" + bytes([len(head), 0]) + head)
    for name in ("text.npy", "text.npz", "text.csv"):
        (tmp_path / name).write_bytes(b"\xff\xfe text")
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "state.safetensors"])
@pytest.mark.parametrize("damage", ["change", "cut", "link", "remove"])
def test_a_damaged_checkpoint_is_told_by_its_file(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, damage: str
) -> None:
    assert run(capsys, "train", program, "--folder", "run", "--quiet")[0] == 0
    latest = wf.train.CheckpointFolder(tmp_path / "run").latest()
    assert latest is not None
    content = bytearray((latest / file).read_bytes())
    content[len(content) // 2] ^= 1
    (latest / file).unlink()
    if damage == "change":
        (latest / file).write_bytes(content)
    elif damage == "cut":
        (latest / file).write_bytes(content[:-30])
    elif damage == "link":
        (latest / file).symlink_to("/dev/zero")
    for command in (["eval"], ["predict"], ["train", "--resume"]):
        code, _, err = run(capsys, *command, program, "--folder", "run")
        assert code == 1
        assert err.startswith(f"error: train.checkpoint: {latest.name}/{file} ")
        assert "fix " in err
        assert "Traceback" not in err


def test_an_error_of_the_program_shows_its_own_lines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text("def build():\n    return 1 / 0\n", encoding="utf-8")
    code, _, err = run(capsys, "train", "wrong.py")
    assert code == 1
    assert "return 1 / 0" in err
    assert "ZeroDivisionError" in err
    assert "commands.py" not in err
    code, _, err = run(capsys, "train", "wrong.py", "--traceback")
    assert "commands.py" in err


def test_the_machine_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["weft"] == wf.__version__
    assert found["devices"] == ["cpu"]
    assert found["threads"] >= 1
    assert run(capsys, "info")[1].startswith("weft ")


def test_a_benchmark_is_found_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    text = "import sys\nprint('ran', sys.argv[1:])\n"
    (tmp_path / "benchmarks" / "eager.py").write_text(text, encoding="utf-8")
    assert "weft bench eager" in run(capsys, "bench")[1]
    assert "ran ['--rounds', '2']" in run(capsys, "bench", "eager", "--", "--rounds", "2")[1]
    assert "did you mean 'eager'?" in run(capsys, "bench", "eagre")[2]


def test_help_names_every_command_and_fits_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in ("train", "eval", "predict", "show", "bench", "info"):
        assert command in out
    assert max(map(len, out.splitlines())) <= 100
    assert run(capsys)[0] == 0


def test_values_are_read_as_toml_reads_them() -> None:
    texts = ["3", "1e-3", "true", "False", "relu", "[1, 2]", "'a b'", "None", "nan"]
    values = [3, 1e-3, True, False, "relu", [1, 2], "a b", None]
    assert [parse_value(text) for text in texts][:-1] == values


@pytest.mark.slow
def test_the_module_is_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft.cli", "train", "none.py"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert result.stderr == "error: no such file: none.py\n"


@pytest.mark.slow
def test_a_mistake_is_not_placed_in_the_script_that_pip_installs(tmp_path: Path) -> None:
    script = tmp_path / "weft"
    script.write_text("import sys\nfrom weft.cli import main\nsys.exit(main())\n")
    (tmp_path / "iris.toml").write_text('task = "classifier"\n[data]\nsource = "iris"\nrow = 3\n')
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "rows.toml").write_text(TABLE)
    for command, problem in (
        ([script, "train", "iris.toml"], "iris.toml, line 4"),
        ([script, "train", "rows.toml"], "there is no column 'c'"),
        (["./weft", "train", "rows.toml"], "there is no column 'c'"),
    ):
        result = subprocess.run(
            [sys.executable, *map(str, command)], capture_output=True, text=True, cwd=tmp_path,
            check=False,
        )  # fmt: skip
        assert result.returncode in (1, 2)
        assert problem in result.stderr
        assert "sys.exit(main())" not in result.stderr


TABLE = """
task = "recommender"
data = {source = "csv", path = "rows.csv", validation_path = ""}
model = {kind = "wide_deep"}
[features.a]
kind = "category"
columns = "c"
[targets.b]
"""


def test_a_file_that_is_not_there_is_told_with_its_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("c,b\nx,1\ny,0\n")
    Path("rows.toml").write_text(TABLE)
    _, _, said = run(capsys, "train", "rows.toml", "data.path=other.csv")
    assert "another: data.path=FILE" in said
    _, _, said = run(capsys, "train", "rows.toml", "data.validation_path=other.csv")
    assert "another: data.validation_path=FILE" in said
    join = 'data.join={path = "movies.csv", on = "c", columns = ["d"]}'
    _, _, said = run(capsys, "train", "rows.toml", join, "features.a.columns=d")
    assert "no such file: movies.csv" in said
    assert "another: data.join.path=FILE" in said
