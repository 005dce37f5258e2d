"""Graphs in files: what comes back, in a process of its own, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.graph.files import CHECKSUM, NUMBER, OPERATIONS, TEXT, checksum


class Secret(nn.Module):
    """A model whose code is only here."""

    def __init__(self) -> None:
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.25), nn.Linear(8, 1))

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return wf.cond(wf.sum(x) > 0.0, lambda x: self.body(x), lambda x: -self.body(x), x)


def trained(path: Path) -> list[float]:
    """Train a little, save, and go on: the losses after the file was written."""
    x_values = np.random.default_rng(0).normal(size=(16, 3))
    wf.random.seed(0)
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 3), name="x")
        big = wf.asarray(np.linspace(0, 1, 24).reshape(8, 3), dtype="float32")
        net = Secret()
        answer = wf.graph.identity(net(x) + wf.sum(x @ big.T) * 0.01, name="answer")
        loss = wf.graph.identity(wf.mean(answer**2), name="loss")
        wf.optim.Adam(lr=0.01).minimize(loss)
        with wf.name_scope("eval"):
            net.eval()
            wf.graph.identity(net(x), name="answer")
        graph.outputs = [answer]
    with wf.Session(graph) as session:
        for _ in range(5):
            session.run("Adam/minimize", {x: x_values})
        graph.save(path, session)
        wf.random.seed(7)
        return [step(session, x_values) for _ in range(4)]


def step(session: wf.Session, x: Any) -> float:
    loss, _ = session.run(["loss", "Adam/minimize"], {"x": x})
    return float(loss.item())


@pytest.mark.slow
def test_a_graph_from_a_file_goes_on_training_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.weft"
    expected = trained(path)
    x_values = np.random.default_rng(0).normal(size=(16, 3))
    graph = wf.Graph.load(path)
    with wf.Session(graph) as session:
        wf.random.seed(7)
        assert [step(session, x_values) for _ in range(4)] == expected
        assert session.run("eval/answer", {"x": x_values[:2]}).shape == (2, 1)
        assert graph.outputs[0].shape[1] == 1
    with graph:  # it can be continued, and differentiated
        (slope,) = wf.gradients(graph.get_tensor_by_name("loss"), [graph.get_tensor_by_name("x")])
    assert slope is not None
    assert wf.Session(graph).run(slope, {"x": x_values}).shape == (16, 3)
    again = tmp_path / "again.weft"
    graph.save(again)
    assert [o.name for o in wf.Graph.load(again).operations] == [o.name for o in graph.operations]


@pytest.mark.slow
def test_a_file_runs_in_a_process_that_does_not_know_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.weft"
    trained(path)
    with wf.Session(wf.Graph.load(path)) as session:
        here = session.run("eval/answer", {"x": np.ones((2, 3))}).tolist()
    script = (
        "import sys, json, weft as wf\n"
        f"session = wf.Session(wf.Graph.load({str(path)!r}))\n"
        "print(json.dumps(session.run('eval/answer', {'x': [[1.0] * 3] * 2}).tolist()))\n"
        "assert 'weft.nn' not in sys.modules and 'weft.optim' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    np.testing.assert_allclose(json.loads(done.stdout), here, rtol=1e-6)


def test_assignments_and_their_order_come_back(tmp_path: Path) -> None:
    with wf.Graph() as graph:
        count = wf.Variable(0, name="count")
        add = count.assign_add(1)
        with graph.control_dependencies([add]):
            wf.graph.identity(count, name="after")
        wf.group(add, name="both")
        wf.global_variables_initializer()
    path = tmp_path / "count.weft"
    graph.save(path)
    with wf.Session(wf.Graph.load(path)) as session:
        assert [session.run("after").item() for _ in range(3)] == [1, 2, 3]
        assert session.run("both") is None
        assert session.run("count").item() == 4
        session.run("initialize")
        assert session.run("count").item() == 0


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 2), name="x")
        w = wf.Variable(np.arange(40.0, dtype=np.float32).reshape(2, 20), name="w")
        wf.graph.identity(x @ w, name="y")
        w.assign(w * 2.0)
    path = tmp_path / "graph.weft"
    graph.save(path)
    return path


def rewritten(path: Path, change: Any, honest: bool = False) -> None:
    tensors, notes = wf.load(path, map_file=False, metadata=True)
    change(tensors, notes)
    if honest:
        notes[CHECKSUM] = checksum(notes, tensors)
    wf.save(tensors, path, notes)


def refusal(path: Path) -> wf.WeftError:
    with pytest.raises(wf.WeftError) as caught:
        wf.Graph.load(path)
    return caught.value


def test_a_newer_version_is_refused(saved: Path) -> None:
    rewritten(saved, lambda tensors, notes: notes.update({NUMBER: "2"}), honest=True)
    error = refusal(saved)
    assert isinstance(error, wf.UnsupportedError)
    assert error.problem.startswith("the file is of version 2")


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    assert refusal(saved).problem


def test_every_part_of_a_file_that_is_tampered_with_is_noticed(saved: Path) -> None:
    data = saved.read_bytes()
    for place in range(8, len(data), max(1, len(data) // 60)):
        changed = bytearray(data)
        changed[place] ^= 0x01
        saved.write_bytes(bytes(changed))
        assert refusal(saved).problem


WRONG = {
    "no graph": lambda tensors, notes: notes.pop(TEXT),
    "program": lambda tensors, notes: notes.update({TEXT: "graph() { return }"}),
    "unknown primitive": lambda t, notes: notes.update(
        {TEXT: notes[TEXT].replace("dot(", "system(")}
    ),
    "a missing value": lambda tensors, notes: tensors.pop("cell.0"),
    "another type": lambda tensors, notes: tensors.update({"cell.0": wf.zeros((3,))}),
    "operations": lambda tensors, notes: notes.update({OPERATIONS: "[1, 2]"}),
    "nothing described": lambda t, notes: notes.update({OPERATIONS: '{"operations": []}'}),
    "a name twice": lambda t, n: n.update({OPERATIONS: n[OPERATIONS].replace('"y"', '"w"')}),
    "a bad target": lambda t, n: n.update(
        {OPERATIONS: n[OPERATIONS].replace('"target": 0', '"target": 9')}
    ),
}


@pytest.mark.parametrize("part", WRONG)
def test_a_file_whose_parts_do_not_fit_is_refused_even_with_a_right_checksum(
    saved: Path, part: str
) -> None:
    rewritten(saved, WRONG[part], honest=True)
    assert refusal(saved).fix


def test_a_file_of_tensors_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    wf.save({"w": wf.ones(2)}, tmp_path / "w.safetensors")
    assert refusal(tmp_path / "w.safetensors").problem == "the file is refused: it holds no graph"
    refusal(tmp_path / "nothing.weft")


def test_a_session_of_another_graph_is_not_saved(tmp_path: Path) -> None:
    with wf.Graph() as graph:
        wf.Variable(1.0)
    with wf.Session(wf.Graph()) as session, pytest.raises(wf.ArgumentError, match="another graph"):
        graph.save(tmp_path / "x.weft", session)


def test_a_breakpoint_in_a_file_is_refused(tmp_path: Path) -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (), name="x")
        wf.cond(x > 0.0, lambda x: wf.debug.breakpoint(x=x) or x, lambda x: x, x)
    graph.save(tmp_path / "x.weft")
    assert "breakpoint" in refusal(tmp_path / "x.weft").problem


def test_a_print_in_a_file_shows_whole_values_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.weft"
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (2,), name="x")
        wf.debug.print("x is {:.2f}", x)
        wf.graph.identity(x * 2.0, name="y")
    graph.save(path)
    with wf.Session(wf.Graph.load(path)) as session:
        assert session.run("y", {"x": np.ones(2)}).tolist() == [2.0, 2.0]
    asks = "{0.__init__.__globals__[sys].modules[os].environ}"
    rewritten(path, lambda t, n: n.update({TEXT: n[TEXT].replace("{0:.2f}", asks)}), honest=True)
    assert "is a part of a value" in refusal(path).problem
    assert "PATH" not in capsys.readouterr().out
