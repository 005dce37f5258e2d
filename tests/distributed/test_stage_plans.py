"""Tensor parallel inside of the stages of a pipeline gives what one process gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distributed.jobs import launch
from tests.hammer import NIGHTLY

import weft as wf
from weft import distributed, nn
from weft.distributed import replicated, split

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(8, 4, 8)).astype(np.float32)
Y = GENERATOR.normal(size=(8, 4, 3)).astype(np.float32)
MESH = {"stage": 2, "model": 2}
PLAN = {
    "*.attention.query.*": split(0),
    "*.attention.key.*": split(0, "model"),
    "*.attention.value.*": split(0),
    "*.attention.output.weight": split(1),
    "*.up.*": split(0),
    "*.down.weight": ("model", None),
    "3.bias": replicated,
}
SPLIT = ("query", "key", "value", "output.weight", "up", "down.weight")


class Attention(nn.Module):
    """Two heads of attention, from three products."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)
        self.key = nn.Linear(8, 8, bias=False)  # a bias has no gradient but for rounding
        self.output = nn.Linear(8, 8)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            each(x).reshape(rows, length, 2, 4).transpose(0, 2, 1, 3)
            for each in (self.query, self.key, self.value)
        )
        mixed = wf.softmax(q @ k.mT / 2.0, axis=-1) @ v
        return self.output(mixed.transpose(0, 2, 1, 3).reshape(rows, length, 8))


class Block(nn.Module):
    """Attention, then two layers of which the second has its rows split."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(wf.gelu(self.up(x)))


def fill(model: Any, seed: int = 1) -> Any:
    """Weights that do not depend on the generator, which threads share."""
    generator = np.random.default_rng(seed)
    with wf.no_grad():
        for parameter in model.parameters():
            values = 0.4 * generator.normal(size=parameter.shape)
            parameter.copy_(wf.tensor(values.astype(np.float32)))
    return model


def make_model(seed: int = 1) -> Any:
    return fill(nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 3)), seed)


def loss_of(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
    return wf.nn.functional.mse_loss(outputs, target)


def is_split(name: str) -> bool:
    return any(part in name for part in SPLIT)


# --- steps of one's own --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batches": 2},
        {"micro_batches": 3, "schedule": "gpipe", "recompute": True},
        {"micro_batches": 2, "schedule": "interleaved", "chunks": 2},
    ],
    ids=str,
)
def test_gradients_of_divided_stages_are_parts_of_those_of_one_process(options: Any) -> None:
    plain = make_model()
    whole = loss_of(plain(wf.tensor(X)), wf.tensor(Y))
    whole.backward()
    expected = {name: p.grad.numpy() for name, p in plain.named_parameters()}

    def run_rank() -> Any:
        place = int(distributed.axis_index("model").item())
        # processes may have made other weights: those of the first count
        pipeline = distributed.Pipeline(make_model(1 + place), loss_of, plan=PLAN, **options)
        loss = pipeline.step(wf.tensor(X), wf.tensor(Y)).item()
        found = {name: p.grad.numpy() for name, p in pipeline.named_parameters()}
        evaluated, _ = pipeline.evaluate([wf.tensor(X)], wf.tensor(Y))
        return place, loss, evaluated.item(), found

    for place, loss, evaluated, gradients in distributed.run_threads(run_rank, 4, MESH):
        assert loss == pytest.approx(whole.item(), rel=1e-6)
        assert evaluated == pytest.approx(whole.item(), rel=1e-6)
        for name, value in gradients.items():
            other = expected[name]
            if is_split(name):
                axis = 1 if "output" in name else 0
                other = np.split(other, 2, axis)[place]
            assert value.shape == other.shape, name
            atol = 4e-6 * max(1.0, np.abs(expected[name]).max())
            np.testing.assert_allclose(value, other, rtol=0, atol=atol, err_msg=name)


def _train(pipeline: Any, optimizer: Any, rows: slice, steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(pipeline.step(wf.tensor(X[rows]), wf.tensor(Y[rows])).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _train_plain(**options: Any) -> tuple[list[float], Any, Any]:
    model, losses = make_model(), []
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.02, **options)
    for _ in range(3):
        loss = loss_of(model(wf.tensor(X)), wf.tensor(Y))
        losses.append(loss.item())
        optimizer.minimize(loss)
    return losses, model, optimizer


@pytest.mark.slow
@pytest.mark.parametrize(("zero", "clip_norm"), [(0, 0.1), (1, 0.1), (2, None)])
def test_stages_model_and_data_train_as_one_process(zero: int, clip_norm: float | None) -> None:
    _, plain, _ = _train_plain(clip_norm=clip_norm)
    expected = {name: p.detach().numpy() for name, p in plain.named_parameters()}

    def run_rank() -> dict[str, np.ndarray]:
        model = make_model()
        pipeline = distributed.Pipeline(model, loss_of, micro_batches=2, plan=PLAN)
        optimizer = wf.optim.AdamW(pipeline.parameters(), lr=0.02, clip_norm=clip_norm)
        pipeline.share(optimizer, zero=zero, data_axis="data")
        own = slice(int(distributed.axis_index("data").item()), None, 2)
        _train(pipeline, optimizer, own)
        pipeline.gather_weights()
        return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}

    for found in distributed.run_threads(run_rank, 8, {"data": 2, **MESH}):
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_weights_are_whole_after_gathering_and_parts_again_in_the_next_step() -> None:
    losses, plain, kept = _train_plain()
    state = kept.state_dict()

    def run_rank() -> Any:
        model = make_model()
        pipeline = distributed.Pipeline(model, loss_of, micro_batches=2, plan=PLAN)
        optimizer = pipeline.share(wf.optim.AdamW(pipeline.parameters(), lr=0.02))
        found = _train(pipeline, optimizer, slice(None), 2)
        pipeline.gather_weights()
        between = [parameter.shape for parameter in model.parameters()]
        found += _train(pipeline, optimizer, slice(None), 1)
        own = optimizer.state_dict()  # whole, of this process's stages
        names = [name for name, _ in pipeline.named_parameters()]
        parts = {name: p.shape for name, p in pipeline.named_parameters()}
        return found, between, own, names, parts, distributed.whole_state(model)

    whole = {name: p.shape for name, p in plain.named_parameters()}
    names = list(whole)
    for found, between, own, mine, parts, weights in distributed.run_threads(run_rank, 4, MESH):
        np.testing.assert_allclose(found, losses, rtol=1e-6)
        assert between == list(whole.values())
        assert all((parts[name] != whole[name]) == is_split(name) for name in mine)
        for place, name in enumerate(mine):
            np.testing.assert_allclose(
                weights[name].numpy(), plain.state_dict()[name].numpy(), rtol=1e-5, atol=1e-6
            )
            moment = own[f"state.{place}.mean"].numpy()
            other = state[f"state.{names.index(name)}.mean"].numpy()
            np.testing.assert_allclose(moment, other, rtol=1e-4, atol=1e-7, err_msg=name)


class Tied(nn.Module):
    """A use of another module's weight, transposed."""

    def __init__(self, weight: wf.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return x @ self.weight


def test_a_split_weight_that_two_stages_share_gets_both_gradients() -> None:
    def stages() -> Any:
        first = nn.Linear(8, 6, bias=False)
        return fill(nn.Sequential(first, nn.Tanh(), Tied(first.weight)))

    plain = stages()
    wf.nn.functional.mse_loss(plain(wf.tensor(X)), wf.tensor(X)).backward()
    expected = plain[0].weight.grad.numpy()

    def run_rank() -> Any:
        plan = {"*weight": split(0)}
        pipeline = distributed.Pipeline(stages(), loss_of, micro_batches=2, plan=plan)
        optimizer = pipeline.share(wf.optim.SGD(pipeline.parameters(), lr=1.0))
        pipeline.step(wf.tensor(X), wf.tensor(X))
        gradients = [parameter.grad for parameter in optimizer.parameters]
        place = int(distributed.axis_index("model").item())
        return place, gradients[0].numpy(), optimizer._norm(gradients).item()

    for place, gradient, norm in distributed.run_threads(run_rank, 4, MESH):
        np.testing.assert_allclose(gradient, expected[3 * place :][:3], rtol=1e-5, atol=1e-6)
        assert norm == pytest.approx(float(np.linalg.norm(expected)), rel=1e-5)


@pytest.mark.slow
def test_float16_steps_are_skipped_where_one_part_is_not_finite() -> None:
    def run_rank() -> tuple[float, int]:
        pipeline = distributed.Pipeline(make_model(), loss_of, micro_batches=2, plan=PLAN)
        optimizer = wf.optim.SGD(pipeline.parameters(), lr=0.1, precision="float16")
        pipeline.share(optimizer)
        factor = optimizer.scale(wf.tensor(1.0))
        pipeline.step(wf.tensor(X), wf.tensor(Y), factor=factor)
        if pipeline.rank == 0 and distributed.axis_index("model").item() == 1:
            named = dict(pipeline.named_parameters())["1.attention.query.weight"]
            named.grad = named.grad * np.inf
        optimizer.step()
        return optimizer.scaling.scale.item(), int(optimizer.steps.item())

    assert distributed.run_threads(run_rank, 4, MESH) == [(32768.0, 0)] * 4


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "kind", "problem"),
    [
        ({"*.qwery": split(0)}, wf.ArgumentError, "no parameter has a name like '.\\.qwery'"),
        ({"*.up.weight": split(0, "data")}, wf.ArgumentError, "the mesh has no axis 'data'"),
        ({"3.*": split(0)}, wf.ShapeError, "does not divide among 2 devices"),
        ({"0.bias": split(1)}, wf.AxisError, "has no axis 1 to split"),
    ],
    ids=str,
)
def test_plans_that_do_not_fit_are_refused_by_name(plan: Any, kind: Any, problem: str) -> None:
    def run_rank() -> None:
        with pytest.raises(kind, match=problem) as caught:
            distributed.Pipeline(make_model(), loss_of, plan=plan)
        assert caught.value.op == "distributed.Pipeline"
        assert caught.value.fix

    distributed.run_threads(run_rank, 4, MESH)


def _stages_to_save(zero: int, plan: Any, data_axis: str | None) -> tuple[Any, Any]:
    pipeline = distributed.Pipeline(make_model(), loss_of, micro_batches=2, plan=plan)
    optimizer = wf.optim.AdamW(pipeline.parameters(), lr=0.02)
    return pipeline, pipeline.share(optimizer, zero=zero, data_axis=data_axis)


def _write_divided(folder: Path, zero: int) -> dict[str, np.ndarray]:
    pipeline, optimizer = _stages_to_save(zero, PLAN, "data")
    _train(pipeline, optimizer, slice(int(distributed.axis_index("data").item()), None, 2), 2)
    pipeline.gather_weights()  # a save takes the parts again
    checkpoints = distributed.ShardedCheckpoints(folder)
    checkpoints.save(2, pipeline, optimizer)
    checkpoints.settle()
    distributed.barrier()
    return _weights_after(pipeline, optimizer, "data")


def _weights_after(pipeline: Any, optimizer: Any, data_axis: str | None) -> dict[str, np.ndarray]:
    """The model's weights as they are, and after one more step, which also reads the moments."""
    pipeline.gather_weights()
    found = {f"now.{k}": v.numpy().copy() for k, v in pipeline.model.state_dict().items()}
    step = slice(int(distributed.axis_index("data").item()), None, 2) if data_axis else slice(None)
    _train(pipeline, optimizer, step, 1)
    pipeline.gather_weights()
    return found | {k: v.numpy().copy() for k, v in pipeline.model.state_dict().items()}


def _read_divided(folder: Path, zero: int, plan: Any, axis: str | None) -> dict[str, np.ndarray]:
    pipeline, optimizer = _stages_to_save(zero, plan, axis)
    facts = distributed.ShardedCheckpoints(folder).load(pipeline, optimizer)
    assert facts is not None
    assert facts["step"] == 2
    return _weights_after(pipeline, optimizer, axis)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1] if NIGHTLY else [1])
def test_divided_stages_write_checkpoints_that_any_mesh_reads(tmp_path: Path, zero: int) -> None:
    """Another plan, no plan, other stages, and one process go on from what eight have written."""
    mesh = {"data": 2, **MESH}
    written = distributed.run_threads(lambda: _write_divided(tmp_path, zero), 8, mesh)[0]
    plan = {"*.up.*": split(0), "*.query.weight": split(1)}
    readers: list[tuple[int, dict[str, int], int, Any]] = [
        (4, MESH, 0, plan), (8, mesh, 1 - zero, PLAN), (3, {"stage": 3}, 0, None),
        (2, {"stage": 1, "model": 2}, 0, PLAN),
    ]  # fmt: skip
    for count, axes, level, chosen in readers:
        axis = "data" if "data" in axes else None
        read = lambda a=axis, z=level, p=chosen: _read_divided(tmp_path, z, p, a)  # noqa: E731
        for found in distributed.run_threads(read, count, axes):
            for name, value in found.items():
                atol = 0.0 if name.startswith("now.") else 2e-6
                np.testing.assert_allclose(value, written[name], rtol=0, atol=atol, err_msg=name)
    alone = make_model()
    optimizer = wf.optim.AdamW(alone.parameters(), lr=0.02)
    distributed.ShardedCheckpoints(tmp_path).load(alone, optimizer)
    for name, value in alone.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), written[f"now.{name}"], err_msg=name)
    optimizer.minimize(loss_of(alone(wf.tensor(X)), wf.tensor(Y)))
    for name, value in alone.state_dict().items():
        np.testing.assert_allclose(value.numpy(), written[name], rtol=0, atol=2e-6, err_msg=name)


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    def run_rank() -> None:
        with pytest.raises(wf.UnsupportedError, match="a plan divides stages as programs"):
            distributed.Pipeline(make_model(), loss_of, plan=PLAN, compile=False)
        with pytest.raises(wf.ArgumentError, match="bound to the axis 'tensor'"):
            distributed.Pipeline(make_model(), loss_of, plan=PLAN, model_axis="tensor")
        pipeline = distributed.Pipeline(make_model(), loss_of, plan=PLAN)
        with pytest.raises(wf.UnsupportedError, match="parts of parameters along 'model'"):
            pipeline.share(wf.optim.Adafactor(pipeline.parameters()))
        with pytest.raises(wf.UnsupportedError, match=r"axis of batches \(ZeRO 3\)"):
            pipeline.share(wf.optim.AdamW(pipeline.parameters()), zero=3)
        files = distributed.ShardedCheckpoints(tmp_path)
        with pytest.raises(wf.UnsupportedError, match="of a pipeline has other tensors"):
            files.save(1, pipeline.stages[pipeline.rank])
        optimizer = pipeline.share(wf.optim.AdamW(pipeline.parameters()))
        pipeline.gather_weights()
        with pytest.raises(wf.UnsupportedError, match="of a pipeline has other tensors"):
            files.save(1, pipeline.stages[pipeline.rank], optimizer)

    distributed.run_threads(run_rank, 4, MESH)


@pytest.mark.parametrize("rows", [[8, 6], [8, 8]], ids=["other rows", "other seed"])
def test_processes_along_model_that_are_given_other_things_are_told(rows: list[int]) -> None:
    def run_rank() -> str:
        place = int(distributed.axis_index("model").item())
        pipeline = distributed.Pipeline(make_model(), loss_of, micro_batches=2, plan=PLAN)
        if rows[0] == rows[1]:
            real = pipeline.tensor_parallel.group
            compare = real.compare
            real.compare = lambda text: compare(f"{text} {place}")
        mine = slice(rows[place])
        with pytest.raises(wf.ProcessError, match="processes disagree") as caught:
            pipeline.step(wf.tensor(X[mine]), wf.tensor(Y[mine]))
        return str(caught.value)

    for text in distributed.run_threads(run_rank, 4, MESH):
        assert "a step of a pipeline along model" in text


def test_processes_with_other_plans_are_told_what_each_splits() -> None:
    def run_rank() -> str:
        place = int(distributed.axis_index("model").item())
        plan = {"*.up.weight": split(place)}
        with pytest.raises(wf.ProcessError, match="processes disagree") as caught:
            distributed.Pipeline(make_model(), loss_of, plan=plan)
        return str(caught.value)

    for text in distributed.run_threads(run_rank, 4, MESH):
        assert "splits along model: 1.up.weight 0" in text
        assert "splits along model: 1.up.weight 1" in text


# --- the trainer ---------------------------------------------------------------------------------


def _fit(strategy: Any, folder: Any = None, epochs: int = 2, **options: Any) -> dict[str, Any]:
    """Train by the trainer, with a last batch that does not split evenly."""
    model = make_model()
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.02, clip_norm=0.5)
    trainer = wf.train.Trainer(
        model, loss_of, optimizer, metrics=["mae"], strategy=strategy, seed=3, progress=False,
        checkpoint_folder=folder, **options,
    )  # fmt: skip
    newest = None if folder is None else trainer.checkpoint_folder.latest()
    history = trainer.fit((X[:7], Y[:7]), epochs, (X, Y), batch_size=4, resume=newest is not None)
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    return {"weights": weights, "row": history.rows[-1]}


def _check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected["weights"].items():
        np.testing.assert_allclose(found["weights"][name], value, rtol=2e-5, atol=2e-6)
    for name in ("loss", "val_loss", "val_mae", "mae"):
        np.testing.assert_allclose(found["row"][name], expected["row"][name], rtol=1e-5)


SETTINGS = [
    (4, {"zero": 0}, {}),
    (8, {"zero": 1, "schedule": "interleaved", "chunks": 2}, {"accumulate": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "settings", "options"), SETTINGS)
def test_a_trainer_of_divided_stages_does_what_one_process_does(
    processes: int, settings: Any, options: Any
) -> None:
    expected = _fit(None, **options)

    def run_rank() -> dict[str, Any]:
        strategy = wf.train.PipelineStrategy(2, model=2, plan=PLAN, micro_batches=2, **settings)
        return _fit(strategy, **options)

    for found in distributed.run_threads(run_rank, processes):
        _check_same(found, expected)


@pytest.mark.slow
def test_checkpoints_of_divided_stages_are_resumed_by_one_process_and_back(tmp_path: Path) -> None:
    expected = _fit(None, epochs=3)

    def run_rank(epochs: int, folder: Any) -> dict[str, Any]:
        strategy = wf.train.PipelineStrategy(2, model=2, plan=PLAN, micro_batches=2)
        return _fit(strategy, folder, epochs=epochs)

    distributed.run_threads(lambda: run_rank(2, tmp_path / "stages"), 4)
    _check_same(_fit(None, tmp_path / "stages", epochs=3), expected)
    _fit(None, tmp_path / "alone", epochs=2)
    for found in distributed.run_threads(lambda: run_rank(3, tmp_path / "alone"), 4):
        _check_same(found, expected)


def test_meshes_that_do_not_fit_the_world_are_refused() -> None:
    def run_rank() -> None:
        with pytest.raises(wf.ArgumentError, match='along "stage" and "model"') as caught:
            wf.train.PipelineStrategy(2, model=2, plan=PLAN)
        assert caught.value.fix == "weft launch -n 4 train.py"

    distributed.run_threads(run_rank, 2)


REAL = """
import numpy as np
import weft as wf
from tests.distributed.test_stage_plans import PLAN, X, Y, _check_same, _fit, _train, _train_plain
from tests.distributed.test_stage_plans import loss_of, make_model

alone = _fit(None)
losses = _train_plain(clip_norm=0.1)[0]
strategy = wf.train.PipelineStrategy(2, model=2, plan=PLAN, micro_batches=2)
_check_same(_fit(strategy), alone)
print("trainer", flush=True)
pipeline = wf.distributed.Pipeline(make_model(), loss_of, micro_batches=2, plan=PLAN)
optimizer = wf.optim.AdamW(pipeline.parameters(), lr=0.02, clip_norm=0.1)
pipeline.share(optimizer)
np.testing.assert_allclose(_train(pipeline, optimizer, slice(None)), losses, rtol=1e-6)
print("loop", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("eager", ["", "200"] if NIGHTLY else [""])
def test_four_real_processes_train_divided_stages_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eager: str
) -> None:
    pytest.importorskip("mpi4py", reason="the engine mpi is not installed")
    sources = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sources)))
    if eager:
        monkeypatch.setenv("WEFT_EAGER_ELEMENTS", eager)
    job = launch(tmp_path, REAL, "--timeout", "60", processes=4)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("loop") == 4
