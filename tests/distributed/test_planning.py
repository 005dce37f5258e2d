"""Plans: simulated steps, the choice among meshes, and the command that prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.cli.application import main
from weft.collectives import bound_groups
from weft.distributed import Costs, plan
from weft.distributed.engines.threads import run_threads
from weft.sharding import simulate_step

SLOW_LINK = Costs(bandwidth=1e6, latency=1e-3)


def network(width: int = 32) -> tuple[Any, Any]:
    wf.random.seed(0)
    net = nn.Linear(width, width)
    return net, wf.optim.Adam(net.parameters(), lr=1e-2)


def step(net: Any, optimizer: Any, x: wf.Tensor) -> wf.Tensor:
    loss = (net(x) ** 2).mean()
    optimizer.minimize(loss)
    return loss


def test_every_mesh_is_looked_at_and_the_fastest_is_chosen() -> None:
    found = plan(step, *network(), wf.ones((64, 32)), devices=4)
    meshes = {tuple(choice.mesh.axes.values()) for choice in found.choices}
    assert meshes == {(4, 1), (2, 2), (1, 4)}
    seconds = [choice.simulated.seconds for choice in found.choices]
    assert seconds == sorted(seconds)
    assert found.best is found.choices[0]
    assert "chosen" in str(found)


def test_what_does_not_fit_is_not_chosen() -> None:
    arguments = (*network(), wf.ones((8, 32)))
    free = plan(step, *arguments, devices=2)
    most = max(choice.simulated.memory for choice in free.choices)
    least = min(choice.simulated.memory for choice in free.choices)
    tight = plan(step, *arguments, devices=2, memory=(most + least) // 2)
    assert tight.best.simulated.memory <= (most + least) // 2
    assert "of the memory" in tight.choices[-1].verdict
    with pytest.raises(wf.OutOfMemoryError, match="no choice fits"):
        _ = plan(step, *arguments, devices=2, memory=10).best


def test_the_step_of_a_plan_makes_the_same_updates() -> None:
    x = wf.asarray(np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32))
    net, optimizer = network()
    plain_net, plain_optimizer = network()
    found = plan(step, net, optimizer, x, devices=2, costs=Costs(latency=0.0, flops=1e9))
    divided = found.partition()
    for _ in range(2):
        wanted = step(plain_net, plain_optimizer, x)
        np.testing.assert_allclose(divided(net, optimizer, x).item(), wanted.item(), rtol=1e-5)
    assert len(divided.explain(net, optimizer, x).transfers) > 0


def test_slow_links_make_each_device_work_alone() -> None:
    found = plan(step, *network(), wf.ones((8, 32)), devices=2, costs=SLOW_LINK)
    assert found.best.simulated.sending == 0.0


def test_a_transfer_runs_beside_work_that_does_not_wait_for_it() -> None:
    def f(x: wf.Tensor, w: wf.Tensor) -> Any:
        total = wf.distributed.all_reduce(x, "data")
        product = (w @ w).sum()
        return total.sum(), product

    def g(x: wf.Tensor, w: wf.Tensor) -> Any:
        total = wf.distributed.all_reduce(x, "data")
        return ((w + total.sum()) @ w).sum()

    beside, behind = (_simulated(h) for h in (f, g))
    assert beside.seconds < 0.9 * (beside.computing + beside.sending)
    assert behind.seconds > 0.9 * (behind.computing + behind.sending)


def _simulated(f: Any) -> Any:
    """The program of one of two processes, in time."""
    kinds = [wf.spec("float32", (500, 500))] * 2

    def run_rank(engine: Any) -> Any:
        with bound_groups({"data": engine}):
            return wf.ir.trace(f, *kinds)

    costs = Costs(flops=1e12, bandwidth=4e9)
    return simulate_step(run_threads(run_rank, 2)[0], {"data": costs}, costs)


def test_no_number_of_devices_is_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="no number of devices"):
        plan(step, *network(), wf.ones((8, 32)), devices=0)


MODEL = """
import weft as wf
net = wf.nn.Sequential(wf.nn.Linear(16, 8), wf.nn.ReLU(), wf.nn.Linear(8, 4))
"""


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    program = f"{tmp_path / 'model.py'}:net"
    inputs = ["--input", "8x16", "--target", "int64:8", "--loss", "cross_entropy"]
    assert main(["plan", program, *inputs, "--devices", "2", "--memory", "1GB"]) == 0
    assert "chosen: Mesh(" in capsys.readouterr().out
    assert main(["plan", program, *inputs, "--devices", "2", "--link", "fast"]) != 0
    assert "no speed of a link" in capsys.readouterr().err
