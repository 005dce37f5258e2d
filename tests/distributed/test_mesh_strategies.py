"""Trainers whose step is divided over a mesh, by a plan that is given or looked for."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distributed.jobs import launch
from tests.hammer import NIGHTLY

import weft as wf
from weft import distributed, nn
from weft.distributed import Costs, divided, split
from weft.train import automatic

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(44, 8)).astype(np.float32)
Y = GENERATOR.normal(size=(44, 4)).astype(np.float32)
WEIGHTS = [(16, 8), (16,), (16, 16), (16,), (4, 16), (4,)]
PLAN = {"0.*": split(0, "model"), "2.weight": split(1, "model")}
FREE_LINKS = Costs(latency=0.0, bandwidth=1e15)
SLOW_PRODUCTS = Costs(latency=1e-3, flops=1e6, memory=1e8, bandwidth=1e9, overhead=0.02)
NARROW_LINKS = Costs(latency=1e-4, flops=1e6, memory=1e9, bandwidth=1e5)


def _model() -> nn.Sequential:
    layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
    net, generator = nn.Sequential(*layers), np.random.default_rng(1)
    with wf.no_grad():
        for parameter in net.parameters():
            values = 0.3 * generator.normal(size=parameter.shape)
            parameter.copy_(wf.tensor(values.astype(np.float32)))
    return net


def _fit(strategy: Any, **settings: Any) -> tuple[np.ndarray, wf.train.Trainer]:
    """What is measured in training, with a last batch that does not divide."""
    net = _model()
    optimizer = wf.optim.AdamW(net.parameters(), lr=0.02)
    trainer = wf.train.Trainer(
        net, "mse_loss", optimizer, strategy=strategy, progress=False, seed=0, metrics=["mae"],
        clip_norm=0.5, **settings,
    )  # fmt: skip
    history = trainer.fit((X, Y), epochs=2, batch_size=16, validation=(X[:20], Y[:20]))
    measured = [history["loss"], history["val_loss"], history["mae"]]
    return np.array(measured), trainer


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    return _fit(None)[0]


@pytest.mark.parametrize(
    ("difference", "told"),
    [("weights", "numbers.*net.0.weight"), ("rows", "numbers.*x: "), ("function", "the program")],
)
@pytest.mark.parametrize("is_scattered", [False, True])
def test_a_partitioned_function_that_is_called_otherwise_on_one_process_is_refused(
    difference: str, told: str, is_scattered: bool
) -> None:
    """As with models from other seeds: each process would keep weights of its own."""

    def run_rank() -> None:
        net, own = _model(), distributed.rank()
        if difference == "weights" and own:
            with wf.no_grad():
                net[0].weight.copy_(2 * net[0].weight)
        rows = wf.tensor(X + own if difference == "rows" else X)
        power = 2 + own if difference == "function" else 2

        def step(net: Any, optimizer: Any, x: wf.Tensor) -> None:
            optimizer.minimize((net(x) ** power).mean())

        divided_step = distributed.partition(step, distributed.Mesh(model=2), {"net.0.*": split(0)})
        arguments = net, wf.optim.SGD(net.parameters(), lr=0.1), rows
        (divided_step.scatter if is_scattered else divided_step)(*arguments)

    with pytest.raises(wf.ProcessError, match="rank 1 differs") as caught:
        distributed.run_threads(run_rank, 2, {"model": 2})
    assert re.search(told, str(caught.value), re.DOTALL)


def test_a_mesh_whose_processes_read_other_numbers_is_refused() -> None:
    """As with what is drawn at random for items: each would compute a part of another batch."""

    def run_rank() -> None:
        net = _model()
        optimizer = wf.optim.AdamW(net.parameters(), lr=0.02)
        strategy = wf.train.MeshStrategy(PLAN, model=2)
        trainer = wf.train.Trainer(net, "mse_loss", optimizer, strategy=strategy, progress=False)
        trainer.fit((X + distributed.rank(), Y), batch_size=16)

    with pytest.raises(wf.ProcessError, match="disagree on the numbers of a batch"):
        distributed.run_threads(run_rank, 2)


@pytest.mark.slow
def test_state_that_is_gathered_between_batches_of_an_update_keeps_the_gradient_that_waits() -> (
    None
):
    """Weights and moments are read after every batch, of which three make an update."""

    class Save(wf.train.Callback):
        def on_step_end(self, trainer: Any) -> None:
            trainer.strategy.model_state(trainer.model)
            if trainer.batches % 2:
                trainer.strategy.optimizer_state(trainer.optimizer)

    expected, _ = _fit(None, accumulate=3)

    def run_rank() -> np.ndarray:
        strategy = wf.train.MeshStrategy(PLAN, model=2)
        return _fit(strategy, accumulate=3, callbacks=[Save()])[0]

    for measured in distributed.run_threads(run_rank, 2):
        np.testing.assert_allclose(measured, expected, rtol=1e-5)


MESHES: list[dict[str, int]] = [{"model": 2}, {"data": 2, "model": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("axes", MESHES if NIGHTLY else MESHES[1:], ids=str)
def test_a_step_over_a_mesh_trains_as_one_process(axes: dict[str, int], alone: np.ndarray) -> None:
    count = int(np.prod(list(axes.values())))
    moments = {"optimizer.state[[]4[]]*": divided("data")} if "data" in axes else {}

    def run_rank() -> tuple[np.ndarray, list[tuple[int, ...]], list[tuple[int, ...]]]:
        strategy = wf.train.MeshStrategy({**PLAN, **moments}, **axes)
        parts: list[tuple[int, ...]] = []

        class Look(wf.train.Callback):
            def on_step_end(self, trainer: Any) -> None:
                parts[:] = [p.shape for p in trainer.model.parameters()]

        measured, trainer = _fit(strategy, callbacks=[Look()])
        return measured, parts, [p.shape for p in trainer.model.parameters()]

    for measured, parts, after in distributed.run_threads(run_rank, count):
        np.testing.assert_allclose(measured, alone, rtol=1e-5)
        assert parts == [(8, 8), (8,), (16, 8), (16,), (4, 16), (4,)]
        assert after == WEIGHTS


def test_checkpoints_of_a_mesh_are_whole_and_are_resumed_by_one_process(tmp_path: Any) -> None:
    def run_rank() -> None:
        _fit(wf.train.MeshStrategy(PLAN, model=2), checkpoint_folder=tmp_path / "mesh")

    distributed.run_threads(run_rank, 2)
    _fit(None, checkpoint_folder=tmp_path / "one")
    resumed = []
    for name in ("mesh", "one"):
        net = _model()
        optimizer = wf.optim.AdamW(net.parameters(), lr=0.02)
        trainer = wf.train.Trainer(
            net, "mse_loss", optimizer, progress=False, checkpoint_folder=tmp_path / name
        )
        resumed.append(trainer.fit((X, Y), 3, batch_size=16, resume=True)["loss"][-1])
    np.testing.assert_allclose(resumed[0], resumed[1], rtol=1e-5)


def test_a_plan_that_names_nothing_or_a_mesh_that_does_not_fit_is_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="no parameter has a name like 'query'"):
        _fit(wf.train.MeshStrategy({"query": split(0, "model")}, model=1))
    with pytest.raises(wf.ArgumentError, match="does not fit the world"):
        wf.train.MeshStrategy(PLAN, model=2)
    with pytest.raises(wf.UnsupportedError, match="divided as a program"):
        _fit(wf.train.MeshStrategy(model=1), compile=False)
    experts = distributed.shard_experts(nn.MixtureOfExperts(4, 4, experts=2), "model")
    optimizer = wf.optim.SGD(experts.parameters())
    with pytest.raises(wf.UnsupportedError, match="processes have parts of these"):
        wf.train.Trainer(experts, "mse_loss", optimizer, strategy=wf.train.MeshStrategy(model=1))
    distributed.shutdown()


MIXTURES = """
import sys
import numpy as np
import weft as wf
from tests.distributed.test_mesh_strategies import PLAN, _fit
from weft.distributed import divided

alone = _fit(None)[0]
all_of_it = {**PLAN, "4.*": divided("data")}
strategies = {
    "data x tensor": lambda: wf.train.MeshStrategy(PLAN, data=2, model=2),
    "ZeRO x tensor": lambda: wf.train.MeshStrategy(all_of_it, data=2, model=2),
    "data x pipeline": lambda: wf.train.PipelineStrategy(2, micro_batches=2, cut=[2]),
    "ZeRO x pipeline": lambda: wf.train.PipelineStrategy(2, micro_batches=2, cut=[4], zero=2),
}
for name in sys.argv[1:] or strategies:
    np.testing.assert_allclose(_fit(strategies[name]())[0], alone, rtol=1e-5, err_msg=name)
    print(name, flush=True)
"""


@pytest.mark.slow
def test_mixtures_of_strategies_train_as_one_process_in_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py", reason="the engine mpi is not installed")
    sources = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sources)))
    # the update of a stage with few elements is eager, that of another is compiled
    monkeypatch.setenv("WEFT_EAGER_ELEMENTS", "200")
    names = () if NIGHTLY else ("ZeRO x tensor", "ZeRO x pipeline")
    job = launch(tmp_path, MIXTURES, "--timeout", "60", processes=4, arguments=names)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("ZeRO x pipeline") == 4


CHOICES = [
    (2, None, None, "PlannedMeshStrategy", "Mesh(data=1, model=2)"),  # each computes all of it
    (2, SLOW_PRODUCTS, None, "DataStrategy", "Mesh(data=2, model=1)"),
    (2, FREE_LINKS, None, "SplitStrategy", "Mesh(data=2, model=1)"),
    (2, None, 8000, "PipelineStrategy", "Mesh(data=1, stage=2)"),
    (4, FREE_LINKS, None, "PlannedMeshStrategy", "Mesh(data=2, model=2)"),
    (4, NARROW_LINKS, None, "PipelineStrategy", "Mesh(data=2, stage=2)"),  # half the gradients
]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "costs", "memory", "kind", "mesh"), CHOICES)
def test_the_automatic_strategy_is_the_fastest_plan_and_trains_as_one_process(
    count: int, costs: Costs | None, memory: int | None, kind: str, mesh: str, alone: np.ndarray
) -> None:
    def run_rank() -> tuple[np.ndarray, Any]:
        measured, trainer = _fit(wf.train.AutoStrategy(memory, costs))
        return measured, trainer.strategy

    for measured, strategy in distributed.run_threads(run_rank, count):
        np.testing.assert_allclose(measured, alone, rtol=1e-5)
        assert (type(strategy).__name__, str(strategy.plan.best.mesh)) == (kind, mesh)


def _shown(model: Any = None, **settings: Any) -> tuple[Any, str]:
    """The strategy that "auto" has become, and what the progress of two processes shows."""
    net, stream = model or _model(), io.StringIO()
    rule = settings.pop("rule", wf.optim.AdamW)
    settings.setdefault("strategy", "auto")
    trainer = wf.train.Trainer(
        net, "mse_loss", rule(net.parameters(), lr=0.01), progress=False,
        callbacks=[wf.train.Progress(stream)], **settings,
    )  # fmt: skip
    trainer.fit((X[:16], Y[:16]), batch_size=16)
    return trainer.strategy, stream.getvalue()


def test_the_automatic_strategy_says_what_was_chosen_and_why_others_lost() -> None:
    (_, first), (_, second) = distributed.run_threads(_shown, 2)
    line, _, chosen, other = first.splitlines()[:4]
    assert line.startswith("strategy auto: Mesh(data=1, model=2), replicated, planned to take")
    assert "; the next best is Mesh(" in line
    assert "chosen" in chosen
    assert "of the time" in other
    assert second == ""


class _Wrapped(nn.Module):
    """A model that is no row of modules."""

    def __init__(self) -> None:
        self.net = _model()

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        y: wf.Tensor = self.net(x)
        return y


REFUSED = [
    ({"compile": False}, "but: the step is not compiled"),
    ({"ema": 0.9}, "but: the average of the weights is kept whole"),
    (
        {"rule": wf.optim.Adafactor, "costs": FREE_LINKS, "compile": False},
        "but: Adafactor looks at whole parameters",
    ),
    ({"model": _Wrapped}, "; no pipelines, because the model is no Sequential of several modules"),
    ({"memory": 8000}, "but: needs 1."),
    ({"recover": True}, "auto: data, because recover=True needs all state in each process"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_faster_but_cannot_be_run_is_said_and_the_best_that_can_is_run(
    settings: dict[str, Any], said: str
) -> None:
    given = dict(settings)
    limits = {name: given.pop(name) for name in ("costs", "memory") if name in given}
    model = given.pop("model", _model)

    def run_rank() -> tuple[Any, str]:
        if limits:
            return _shown(model(), strategy=wf.train.AutoStrategy(**limits), **given)
        return _shown(model(), **given)

    count = 1 if "recover" in given else 2  # groups of threads are not rebuilt
    for strategy, _ in distributed.run_threads(run_rank, count):
        assert said in strategy.chosen
        assert "\n" not in strategy.chosen


def test_divided_experts_stay_divided_with_the_automatic_strategy() -> None:
    def run_rank() -> str:
        experts = nn.MixtureOfExperts(8, 4, experts=2)
        net = nn.Sequential(nn.Linear(8, 8), distributed.shard_experts(experts))
        optimizer = wf.optim.SGD(net.parameters(), lr=0.01)
        trainer = wf.train.Trainer(net, "mse_loss", optimizer, strategy="auto", progress=False)
        trainer.fit((X[:16], X[:16]), batch_size=16)
        return str(trainer.strategy.chosen)

    expected = "strategy auto: data, because experts are divided already"
    assert distributed.run_threads(run_rank, 2) == [expected] * 2


def test_no_plan_fits_too_little_memory_on_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "memory_of_process", lambda: 900.0)

    def run_rank() -> str:
        with pytest.raises(wf.OutOfMemoryError, match="no choice fits") as caught:
            _fit("auto")
        return caught.value.problem

    assert len(distributed.run_threads(run_rank, 2)) == 2
