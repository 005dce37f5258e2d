"""Plans: simulated steps, the choice among meshes, and the command that prints it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.cli.application import main
from weft.collectives import bound_groups
from weft.distributed import Costs, measuring, plan, plan_pipeline
from weft.distributed.engines.threads import run_threads
from weft.distributed.stages.choices import ModuleWork, module_works, simulated_choice
from weft.distributed.stages.order import pipeline_order
from weft.distributed.stages.timeline import simulate_pipeline
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


@pytest.mark.slow
def test_every_mesh_is_looked_at_and_the_fastest_is_chosen() -> None:
    found = plan(step, *network(), wf.ones((64, 32)), devices=4)
    meshes = {tuple(choice.mesh.axes.values()) for choice in found.choices}
    assert meshes == {(4, 1), (2, 2), (1, 4)}
    seconds = [choice.simulated.seconds for choice in found.choices]
    assert seconds == sorted(seconds)
    assert found.best is found.choices[0]
    assert "chosen" in str(found)


@pytest.mark.slow
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


# --- pipelines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("processes", "micro_batches"), [(2, 4), (4, 4), (4, 16), (3, 7)])
def test_simulated_pipelines_are_idle_as_the_formula_says(
    processes: int, micro_batches: int
) -> None:
    each = [1.0] * processes, [2.0] * processes
    for name in ("gpipe", "1f1b"):
        step_in_time = simulate_pipeline(pipeline_order(name, processes, micro_batches), *each)
        bubble = (processes - 1) / (micro_batches + processes - 1)
        assert step_in_time.idle == pytest.approx(bubble)
        assert step_in_time.seconds == pytest.approx(3 * (micro_batches + processes - 1))


def test_chunks_make_a_simulated_pipeline_less_idle_and_messages_more() -> None:
    def idle(name: str, chunks: int, message: float) -> float:
        stages = 4 * chunks
        order = pipeline_order(name, 4, 8, chunks)
        work = [1.0 / chunks] * stages, [2.0 / chunks] * stages
        return simulate_pipeline(order, *work, message).idle

    bubble = 3 / (8 + 3)
    assert idle("interleaved", 2, 0.0) == pytest.approx(bubble / 2 / (1 - bubble / 2), rel=0.15)
    assert idle("interleaved", 4, 0.0) < idle("interleaved", 2, 0.0) < idle("1f1b", 1, 0.0)
    assert idle("1f1b", 1, 1.0) > idle("1f1b", 1, 0.0)


def test_events_of_a_pipeline_do_not_overlap_on_a_process_and_wait_for_messages() -> None:
    order = pipeline_order("interleaved", 2, 4, 2)
    in_time = simulate_pipeline(order, [1.0, 2.0, 1.0, 1.0], [2.0] * 4, 0.25)
    ends = {event.name: event.end for event in in_time.timeline}
    for place in range(2):
        events = [e for e in in_time.timeline if e.place == f"process {place}"]
        for before, after in pairwise(events):
            assert after.start >= before.end
    for event in in_time.timeline:
        stage, number = map(int, event.name[1:].split("."))
        if event.name[0] == "F" and stage:
            assert event.start >= ends[f"F{stage - 1}.{number}"] + 0.25


def test_a_plan_of_pipelines_cuts_by_work_and_refuses_what_does_not_fit() -> None:
    wf.random.seed(0)
    sizes = [(32, 32), (32, 32), (32, 512), (512, 512)]
    net = nn.Sequential(*[nn.Linear(*size) for size in sizes])
    found = plan_pipeline(net, wf.ones((64, 32)), devices=2, costs=Costs(latency=0.0))
    assert found.best.pipeline is not None
    assert found.best.pipeline["cut"] == [3]
    assert found.best.mesh.axes == {"data": 1, "stage": 2}
    with pytest.raises(wf.UnsupportedError, match="is a pipeline"):
        found.partition()
    with pytest.raises(wf.ArgumentError, match="no pipeline fits"):
        plan_pipeline(net, wf.ones((64, 32)), devices=7)
    memories = {c.state: c.simulated.memory for c in found.choices if c.pipeline["chunks"] == 1}
    assert memories["1f1b, 16 micro-batches"] < memories["gpipe, 16 micro-batches"]


def test_a_process_that_loses_its_core_once_does_not_change_the_latency_of_a_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])
    calls = []

    def take_time(x: wf.Tensor) -> wf.Tensor:
        calls.append(x)
        clock[0] += 100.0 if len(calls) == 7 else 1.0
        return x

    wf.distributed.init()
    assert measuring._seconds_of_sum(take_time, wf.ones(1), repeats=5) == 1.0
    wf.distributed.shutdown()


def test_the_way_back_of_a_product_is_two_products() -> None:
    """Its derivative does not read its result, whose work is then not part of the way back."""
    work = Costs(flops=1e9, memory=1e15, overhead=1e-6)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 32))
    for each in module_works(list(layers), wf.ones((16, 64)), work):
        assert each.backward == pytest.approx(2 * each.forward, rel=1e-3)


def test_gradients_of_later_micro_batches_take_the_time_to_add_them() -> None:
    links = Costs(bandwidth=1e15, latency=0.0, memory=1e6)
    works = [ModuleWork(1.0, 2.0, 1000, 0, 0), ModuleWork(1.0, 2.0, 0, 0, 0)]

    def seconds(micro_batches: int) -> float:
        settings = (2, 1, micro_batches, "gpipe", 1)
        return float(simulated_choice(works, *settings, links).simulated.seconds)

    update = 7 * 1000 / links.memory
    for count in (1, 2, 4):
        adding = 3 * (count - 1) * 1000 / links.memory  # two reads and a write of each element
        assert seconds(count) == pytest.approx(3.0 * (count + 1) + adding + update, rel=1e-9)


def test_recomputation_is_chosen_where_memory_asks_for_it_and_not_before() -> None:
    wf.random.seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())]
    net, x = nn.Sequential(*layers), wf.ones((512, 16))
    found = plan_pipeline(net, x, devices=2)
    settings = {(c.state, c.pipeline["chunks"]): c.simulated for c in found.choices}
    for (state, chunks), plain in settings.items():
        if "recomputed" not in state:
            again = settings[f"{state}, recomputed", chunks]
            assert again.seconds > plain.seconds
            assert "1f1b" in state or again.memory < plain.memory
    assert not found.best.pipeline["recompute"]
    least = min(c.simulated.memory for c in found.choices if not c.pipeline["recompute"])
    tight = plan_pipeline(net, x, devices=2, memory=least - 1)
    assert tight.best.pipeline["recompute"]

    def run_rank() -> float:
        pipeline = wf.distributed.Pipeline(net, nn.functional.mse_loss, **tight.best.pipeline)
        return float(pipeline.step(x, wf.zeros((512, 16))).item())

    losses = wf.distributed.run_threads(run_rank, 2, {"data": 1, "stage": 2})
    whole = nn.functional.mse_loss(net(x), wf.zeros((512, 16))).item()
    np.testing.assert_allclose(losses, whole, rtol=1e-5)


def test_measured_costs_are_positive_and_the_same_on_all_processes() -> None:
    def run_rank() -> Costs:
        return wf.distributed.measure_costs(repeats=1)

    first, second = wf.distributed.run_threads(run_rank, 2)
    assert first == second
    assert min(first.bandwidth, first.latency, first.flops, first.memory, first.overhead) > 0


@pytest.mark.slow
def test_the_command_measures_and_keeps_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    program, path = f"{tmp_path / 'model.py'}:net", str(tmp_path / "costs.json")
    inputs = ["--input", "8x16", "--target", "int64:8", "--loss", "cross_entropy"]
    measure = ["--measure", "--save-costs", path]
    assert main(["plan", program, *inputs, "--devices", "1", *measure]) == 0
    assert "measured: " in capsys.readouterr().out
    assert main(["plan", program, *inputs, "--devices", "2", "--costs", path]) == 0
    assert "1f1b, 2 micro-batches" in capsys.readouterr().out
