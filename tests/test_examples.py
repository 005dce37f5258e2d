"""The examples do what they say: each learns, compiled and at once alike."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tests.scripts import load_script

import weft as wf

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"

Results = dict[str, float]


@pytest.fixture(autouse=True)
def _in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example may import another, as it can when it is run."""
    monkeypatch.syspath_prepend(EXAMPLES)


def load(name: str) -> ModuleType:
    """An example as a module."""
    return load_script(EXAMPLES / f"{name}.py", f"example_{name}")


def run(command: str) -> Results:
    """What an example measured, in its quick form."""
    name, *flags = command.split()
    found: Results = load(name).main(["--quick", *flags])
    return found


LEARNS: dict[str, Callable[[Results], bool]] = {
    "linear_regression": lambda r: r["difference"] < 1e-2 and r["loss"] < 0.02,
    "housing": lambda r: r["r2"] > 0.6,
    "define_then_run": lambda r: r["r2"] > 0.6 and r["loaded"] == r["r2"],
    "digits --model mlp": lambda r: r["accuracy"] > 0.85,
    "digits --model lenet": lambda r: r["accuracy"] > 0.5,
    "images --model resnet18": lambda r: r["last loss"] < 0.75 * r["first loss"],
    "images --model vgg19": lambda r: r["last loss"] < 0.95 * r["first loss"],
    "segmentation": lambda r: r["overlap"] > 0.5 and r["last loss"] < 0.5 * r["first loss"],
    "shakespeare": lambda r: r["loss"] < 2.8,
    "text_generation --model llama": lambda r: r["right"] == 1 and r["agree"] == 1,
    "text_generation --model gpt2": lambda r: r["right"] == 1 and r["agree"] == 1,
    "names": lambda r: r["loss"] < 2.9,
    "translation": lambda r: r["last loss"] < 0.75 * r["first loss"],
    "autoencoder": lambda r: r["error"] < 0.6 * r["blind"],
    "diffusion": lambda r: r["distance"] < 0.5 * r["blind"],
    "recommender --model deepfm": lambda r: r["auc"] > 0.62 and r["touched"] < 0.03,
    "recommender --model dlrm": lambda r: r["auc"] > 0.62 and r["touched"] < 0.03,
    "differential_equation": lambda r: r["error"] < 0.02,
    "per_sample_gradients": lambda r: r["difference"] < 1e-5 and r["accuracy"] > 0.85,
    "meta_learning": lambda r: (
        r["maml after 1"] < 0.6 * min(r["maml after 0"], r["all after 1"])
    ),
    "distillation": lambda r: r["teacher"] > 0.9 and r["student"] > r["alone"] + 0.1,
    "lora": lambda r: (
        r["after"] < r["before"] - 0.4 and abs(r["merged"] - r["after"]) < 1e-3 and r["kept"] == 1
    ),
}  # fmt: skip
"""What must hold after a run of a few seconds."""


OTHER_MODELS = {
    "images --model vgg19",
    "recommender --model dlrm",
    "text_generation --model gpt2",
}
"""Models of which tests of their own say that they learn, in examples that run with another."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=[pytest.mark.nightly] if each in OTHER_MODELS else [])
        for each in LEARNS
    ],
)
def test_an_example_learns(command: str) -> None:
    results = run(command)
    assert LEARNS[command](results), results


def test_every_example_is_tested() -> None:
    tested = {command.split()[0] for command in LEARNS} | {"demo"}
    assert tested == {path.stem for path in EXAMPLES.glob("*.py")}


def test_every_example_is_listed() -> None:
    listed = set(re.findall(r"\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text()))
    assert listed | {"demo"} == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") < 200
    assert f"python examples/{path.name}" in (load(path.stem).__doc__ or "")


SHORT = {
    "linear_regression": "--epochs 5",
    "housing": "--epochs 1",
    "segmentation": "--steps 2",
    "text_generation": "--steps 3",
    "names": "--epochs 1",
    "recommender": "--epochs 1",
    "differential_equation": "--steps 3",
    "per_sample_gradients": "--epochs 1",
    "meta_learning": "--steps 5",
    "lora": "--steps 4",
}


@pytest.mark.parametrize("name", SHORT)
def test_an_example_gives_the_same_without_compiling(name: str) -> None:
    compiled, eager = (run(f"{name} {SHORT[name]}{flag}") for flag in ("", " --eager"))
    assert compiled == pytest.approx(eager, rel=2e-3, abs=2e-3)


OTHER_DATA = {
    "digits --data datasets/mnist --epochs 1": "accuracy",
    "images --data datasets/cifar10-subset --epochs 1": "last loss",
    "translation --data datasets/multi30k-en-de --epochs 1": "last loss",
    "names --data datasets/names/names.txt --epochs 1": "loss",
    "recommender --data datasets/criteo-sample/criteo_sample.txt --rows 5000": "last loss",
    "linear_regression --data datasets/sklearn-tabular/iris.csv": "loss",
    "text_generation --data models/stories260K --prompt Once": "agree",
}


@pytest.mark.parametrize("command", OTHER_DATA)
def test_an_example_takes_other_data(command: str) -> None:
    words = command.split()
    place = words.index("--data") + 1
    words[place] = str(SHARED / words[place])
    if not Path(words[place]).exists():
        pytest.skip(f"{words[place]} is not there")
    assert OTHER_DATA[command] in run(" ".join(words))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the demo printed, run the way a user does, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--quick", "--folder", str(folder)]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, folder


def test_the_demo_learns(demo: tuple[str, Path]) -> None:
    loss = re.search(r"loss on unseen text: ([\d.]+)", demo[0])
    assert loss is not None, demo[0]
    assert float(loss[1]) < 2.9


def test_the_demo_writes_before_and_after_and_says_what_to_try(demo: tuple[str, Path]) -> None:
    assert 0 <= demo[0].index("--- before") < demo[0].index("--- after")
    assert "What to try next" in demo[0]


def test_the_demo_prints_plain_lines_when_nobody_watches(demo: tuple[str, Path]) -> None:
    assert "\r" not in demo[0]
    assert "\x1b" not in demo[0]


def test_the_demo_keeps_a_plot_and_a_network(demo: tuple[str, Path]) -> None:
    folder = demo[1]
    assert (folder / "loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    (weights,) = folder.glob("run-*/step-*/model.safetensors")
    assert wf.load(weights)["wte.weight"].shape == (65, 32)
