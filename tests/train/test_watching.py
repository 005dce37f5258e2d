"""What people look at while and after training: charts, live curves, and other programs' logs."""

from __future__ import annotations

import io
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import weft as wf
from weft.train import plots
from weft.train.live import text_chart
from weft.train.plots import Curve
from weft.train.svg_chart import svg_chart


def trainer_with(*callbacks: Any, folder: Path | None = None) -> wf.train.Trainer:
    wf.random.seed(0)
    net = wf.nn.Linear(2, 1)
    return wf.train.Trainer(
        net, "mse_loss", wf.optim.SGD(net.parameters(), lr=0.1), callbacks=callbacks,
        progress=False, compile=False, checkpoint_folder=folder,
    )  # fmt: skip


DATA = wf.ones((8, 2)), wf.ones((8, 1))

# --- charts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "begin"), [("png", b"\x89PNG"), ("PNG", b"\x89PNG"), ("svg", b"<")]
)
def test_a_chart_has_the_form_that_its_ending_names(
    ending: str, begin: bytes, tmp_path: Path
) -> None:
    path = wf.train.plot({"loss": [2.0, 1.0]}, tmp_path / f"loss.{ending}")
    assert path.read_bytes().startswith(begin)


def test_an_ending_that_nothing_draws_is_refused(tmp_path: Path) -> None:
    for name in ("loss.txt", "loss", "loss.html"):
        with pytest.raises(wf.ArgumentError, match=r"\.png"):
            wf.train.plot({"loss": [2.0, 1.0]}, tmp_path / name)
        assert not (tmp_path / name).exists()


def test_what_needs_matplotlib_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(wf.UnsupportedError, match=r"weft\[plot\]"):
        wf.train.plot({"loss": [2.0, 1.0]}, tmp_path / "loss.pdf")


def test_matplotlib_draws_where_it_is_installed(tmp_path: Path) -> None:
    if find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    for name, begin in (("a.pdf", b"%PDF"), ("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        path = wf.train.plot({"loss": [2.0, 1.0, math.nan]}, tmp_path / name)
        assert path.read_bytes().startswith(begin)


def test_an_svg_chart_has_gaps_where_numbers_are_missing() -> None:
    text = svg_chart([Curve("<loss>", [1.0, 2.0, 3.0, 4.0], [1.0, math.nan, 2.0, 3.0])])
    assert "&lt;loss&gt;" in text
    path = text.partition('d="')[2].partition('"')[0]
    assert path.count("M") == 2
    assert "nan" not in text


def test_a_long_curve_is_thinned_out() -> None:
    values = [float(i) for i in range(10_000)]
    assert svg_chart([Curve("loss", values, values)]).count("L") < 500


# --- live curves ---------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_curves_are_drawn_in_a_terminal_and_not_into_a_file() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        trainer_with(wf.train.LiveCurves(stream=stream)).fit(DATA, epochs=2, batch_size=2)
    assert "loss of 8 steps" in terminal.getvalue()
    assert any(0x2801 <= ord(character) <= 0x28FF for character in terminal.getvalue())
    assert file.getvalue() == ""


def test_a_text_chart_shows_its_ends_and_leaves_gaps() -> None:
    lines = text_chart([4.0, 2.0, math.nan, 1.0], 20, 4).splitlines()
    assert len(lines) == 4
    assert lines[0].split()[0] == "4"
    assert lines[-1].split()[0] == "1"
    assert text_chart([math.nan]) == ""
    assert text_chart([2.0, 2.0], 4, 1).strip().startswith("2")


def test_one_picture_is_drawn_anew_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures: list[str] = []

    class ZMQInteractiveShell:
        pass

    display = ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda *shown, display_id: SimpleNamespace(update=pictures.append)  # type: ignore[attr-defined]
    notebook = ModuleType("IPython")
    notebook.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    trainer_with(wf.train.LiveCurves()).fit(DATA, epochs=2, batch_size=2, validation=DATA)
    assert "<svg" in pictures[-1]
    assert "val_loss" in pictures[-1]


# --- other programs ------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_are_written_for_mlflow_and_go_on(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path / "checkpoints"
    for epochs in (1, 2):
        log = wf.train.MLflowLogger("lines", tmp_path / "mlruns", settings={"lr": 0.1})
        trainer_with(log, folder=folder).fit(DATA, epochs=epochs, batch_size=2, resume=True)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("lines").experiment_id])
    assert run.data.params == {"lr": "0.1"}
    assert len(client.get_metric_history(run.info.run_id, "step/loss")) == 8
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_runs_are_written_for_weights_and_biases_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    log = wf.train.WandbLogger("lines", tmp_path, settings={"lr": 0.1})
    trainer_with(log).fit(DATA, epochs=1, batch_size=2)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.stat().st_size > 100


@pytest.mark.parametrize(
    ("kind", "package"), [("WandbLogger", "wandb"), ("MLflowLogger", "mlflow")]
)
def test_a_missing_program_is_named_with_its_extra(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(wf.UnsupportedError, match=rf"weft\[{package}\]"):
        trainer_with(getattr(wf.train, kind)("lines")).fit(DATA)


# --- notebooks -----------------------------------------------------------------------------------


def html_of(thing: Any) -> str:
    text: str = thing._repr_html_()
    assert text.count("<div") == text.count("</div>")
    assert text.count("<details") == text.count("</details>")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    return text


def test_what_notebooks_show_is_html_of_the_same_facts() -> None:
    net = wf.nn.Sequential(wf.nn.Linear(4, 3), wf.nn.BatchNorm1d(3))
    assert "21 parameters" in html_of(net)
    assert "running_mean" in html_of(net)
    assert "operations" in html_of(net.summary(wf.ones((2, 4))))
    step = wf.jit(lambda x: wf.softmax(x @ x.T))
    assert "launch" in html_of(step.explain(wf.ones((4, 4))))
    assert "peak" in html_of(step.memory(wf.ones((4, 4))))
    assert "transpose" in html_of(step.graph(wf.ones((4, 4))))
    with wf.Graph() as graph:
        wf.placeholder("float32", (None,), name="x") * 2
    assert "multiply" in html_of(graph)
    rows = [{"epoch": 1, "step": 3, "loss": 0.5, "val_accuracy": 0.9}]
    assert html_of(wf.train.History(rows)).count("<svg") == 2


def test_text_from_outside_is_escaped_in_notebooks() -> None:
    dataset = wf.data.ArrayDataset({"<script>": ["<b>", "x"]})
    text = html_of(dataset)
    assert "<script>" not in text
    assert "&lt;b&gt;" in text
    assert "2 items" in text
    history = wf.train.History([{"epoch": 1, "<i>loss": 1.0}])
    assert "<i>" not in html_of(history)


def test_an_empty_data_set_and_an_empty_history_are_shown() -> None:
    assert "0 items" in html_of(wf.data.ArrayDataset(wf.zeros((0, 2)).numpy()))
    assert "0 epochs" in html_of(wf.train.History())


def test_the_drawers_are_those_without_a_dependency() -> None:
    assert sorted(plots.DRAWERS) == [".png", ".svg"]
