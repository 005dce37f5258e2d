"""The page of runs: what a log writes is what the page holds, however odd the files are."""

from __future__ import annotations

import json
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.cli import main
from weft.tools.board.page import export_page, sample_bytes
from weft.tools.board.reading import POINTS, read_runs, thin_out
from weft.tools.board.server import BoardServer


def train(folder: Path, steps: int = 6, **callbacks: Any) -> wf.train.RunLog:
    wf.random.seed(0)
    log = wf.train.RunLog(folder, settings={"lr": 0.1, "shape": (2, 3)})
    net = wf.nn.Linear(3, 1)
    x, y = wf.random.normal((4 * steps, 3)), wf.zeros((4 * steps, 1))

    class Samples(wf.train.Callback):
        def on_epoch_end(self, trainer: Any) -> None:
            log.text("words", "<b>once</b> </script>")
            log.image("weights/first", np.eye(4))
            log.audio("tone", np.sin(np.arange(100)))

    trainer = wf.train.Trainer(
        net,
        "mse_loss",
        wf.optim.SGD(net.parameters(), lr=0.1),
        callbacks=[log, Samples(), *callbacks.values()],
        progress=False,
    )
    trainer.fit((x, y), 2, batch_size=4)
    return log


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("first", "deep/second"):
        train(tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_a_run_is_read_as_it_was_written(runs: Path) -> None:
    second, first = read_runs(runs)
    assert (second["name"], first["name"]) == ("deep/second", "first")
    assert first["settings"] == {"lr": 0.1, "shape": "(2, 3)"}
    assert first["status"] == "ended"
    assert [step for step, _ in first["curves"]["step/loss"]] == [*range(1, 13)]
    assert first["curves"]["step/loss"] == second["curves"]["step/loss"]
    losses = [loss for _, loss in first["curves"]["epoch/loss"]]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert first["use"]["memory, MB"][0][1] > 1
    assert [each["message"] for each in first["messages"]] == ["begins", "ended"]
    kinds = [key for sample in first["samples"] for key in sample if key not in ("step", "sample")]
    assert kinds == ["text", "image", "audio"] * 2


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    def fail(trainer: Any) -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        train(tmp_path / "run", broken=wf.train.LambdaCallback(on_epoch_end=fail))
    (run,) = read_runs(tmp_path)
    assert run["status"] == "failed: ValueError"


def test_one_file_holds_everything_and_nothing_of_a_run_is_markup(
    runs: Path, tmp_path: Path
) -> None:
    text = export_page(runs, tmp_path / "page.html").read_text()
    assert text.count("</script>") == 2  # the data's and the script's own
    assert "data:image/png;base64," in text
    assert "data:audio/wav;base64," in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    begin = text.index('id="data">') + len('id="data">')
    data = json.loads(text[begin : text.index("</script>", begin)])
    assert data[1]["samples"][0]["text"] == "<b>once</b> </script>"


def test_long_curves_keep_their_peaks_and_gaps() -> None:
    points: list[tuple[float, float | None]] = [(float(i), math.sin(i / 900)) for i in range(9000)]
    points[4000] = (4000.0, 50.0)
    points[5000] = (5000.0, None)
    kept = thin_out(points)
    assert len(kept) <= POINTS
    assert (4000.0, 50.0) in kept
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", b"{"),
        ("run.json", b"[1]"),
        ("run.json", b"[" * 100_000),
        ("log.jsonl", b'{"step": 1, "loss": NaN}\n{"step": "x", "loss": 1}\n[3]\n{"step": 2, "lo'),
        ("log.jsonl", b"\xff\xfe\x00"),
        ("log.jsonl", b'{"step": 1, "sample": "x", "image": "../../run.json"}\n'),
    ],
)
def test_damaged_files_of_a_run_hide_no_other_run(runs: Path, file: str, content: bytes) -> None:
    (runs / "first" / file).write_bytes(content)
    page = export_page(runs, runs / "page.html")
    assert '"deep/second"' in page.read_text()


def test_samples_lie_in_their_folder(runs: Path) -> None:
    outside = runs / "secret.png"
    outside.write_bytes(b"secret")
    for name in ("../secret.png", "../../secret.png", str(outside), "..", "", "a\0.png"):
        assert sample_bytes(runs / "first", name) is None
    assert sample_bytes(runs / "first", "weights_first-6.png") is not None


@pytest.fixture
def server(runs: Path) -> Iterator[BoardServer]:
    with BoardServer(runs) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(server: BoardServer, path: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(server.address + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_server_shows_runs_and_samples_to_this_machine_alone(server: BoardServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "")[1].startswith(b"<!doctype html>")
    assert [run["name"] for run in json.loads(ask(server, "runs")[1])] == ["deep/second", "first"]
    status, data = ask(server, "sample/deep/second/weights_first-6.png")
    assert (status, data[1:4]) == (200, b"PNG")
    assert ask(server, "sample/first/../../secret.png")[0] == 404
    assert ask(server, "elsewhere")[0] == 404
    assert ask(server, "runs", Host="elsewhere.example:80")[0] == 403


def test_a_port_that_is_taken_is_said(server: BoardServer, runs: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="the port cannot be taken"):
        BoardServer(runs, server.server_address[1])


def test_the_command_writes_runs_and_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = tmp_path / "runs" / "a", tmp_path / "a.html"
    assert main(["train", "digits", "--quiet", "--set", "lr=0.02", "--board", str(run)]) == 0
    assert main(["board", str(tmp_path / "runs"), "--export", str(page)]) == 0
    assert '"lr": 0.02' in page.read_text()
    assert main(["board", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_an_image_of_another_shape_is_refused(tmp_path: Path) -> None:
    log = train(tmp_path / "run", steps=1)
    with pytest.raises(wf.ShapeError, match="this is no image"):
        log.image("wrong", np.zeros((3, 8, 8)))


@pytest.mark.parametrize("loss", ["mse_los", 3])
def test_what_is_no_loss_is_refused(loss: Any) -> None:
    net = wf.nn.Linear(1, 1)
    with pytest.raises((wf.NameUnknownError, wf.ArgumentError), match="loss"):
        wf.train.Trainer(net, loss, wf.optim.SGD(net.parameters(), lr=0.1))
