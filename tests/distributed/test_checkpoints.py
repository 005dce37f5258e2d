"""Checkpoints that processes write in parts, read by any number of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import distributed
from weft.train.checkpoints import CheckpointError, write_file


def _make(zero: int | None, width: int = 3) -> tuple[Any, Any]:
    first = wf.nn.Linear(5, width)
    if zero == 3:
        first = distributed.shard_parameters(first).module
    model = wf.nn.Sequential(first, wf.nn.BatchNorm1d(width))
    optimizer = wf.optim.Adam(model.parameters(), lr=0.1)
    if zero is not None:
        optimizer = distributed.data_parallel(optimizer, zero=zero)
    return model, optimizer


def _numbers(model: Any, optimizer: Any) -> dict[str, np.ndarray]:
    state = {**model.state_dict(), **optimizer.state_dict()}
    return {k: v.detach().numpy().copy() for k, v in state.items() if isinstance(v, wf.Tensor)}


def _save(folder: Path, zero: int) -> dict[str, np.ndarray]:
    model, optimizer = _make(zero)
    x = wf.tensor(np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5))
    optimizer.minimize((model(x) ** 2).sum())
    checkpoints = distributed.ShardedCheckpoints(folder)
    checkpoints.save(4, model, optimizer, {"epoch": 1})
    checkpoints.wait()
    return _numbers(model, optimizer)


def _load(folder: Path, zero: int | None) -> tuple[dict[str, np.ndarray], Any]:
    model, optimizer = _make(zero)
    facts = distributed.ShardedCheckpoints(folder).load(model, optimizer)
    return _numbers(model, optimizer), facts


@pytest.mark.parametrize(("zero", "writers"), [(0, 1), (0, 2), (2, 3)])
def test_what_some_processes_write_others_read(tmp_path: Path, zero: int, writers: int) -> None:
    written = distributed.run_threads(lambda: _save(tmp_path, zero), writers)[0]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]
    alone, facts = _load(tmp_path, None)
    others = distributed.run_threads(lambda: _load(tmp_path, 1), 2)
    for found, noted in [(alone, facts), *others]:
        assert (noted["step"], noted["epoch"], noted["shards"]) == (4, 1, writers)
        for name, array in written.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_an_unfinished_checkpoint_is_not_there(tmp_path: Path) -> None:
    model, optimizer = _make(None)
    checkpoints = distributed.ShardedCheckpoints(tmp_path)
    assert checkpoints.load(model, optimizer) is None
    (tmp_path / ".writing-step-00000009").mkdir()
    assert checkpoints.load(model, optimizer) is None


def test_a_missing_process_is_an_error_of_the_save(tmp_path: Path) -> None:
    def run_rank() -> str:
        model = wf.nn.Linear(2, 2)
        checkpoints = distributed.ShardedCheckpoints(tmp_path, timeout=0.1)
        checkpoints.save(1, model)
        checkpoints.wait()
        if distributed.rank() == 1:
            return ""
        checkpoints.save(2, model)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.wait()
        return caught.value.got

    assert "shard-00001" in distributed.run_threads(run_rank, 2)[0]


def test_a_save_that_is_given_up_leaves_no_checkpoint(tmp_path: Path) -> None:
    def run_rank() -> None:
        model = wf.nn.Linear(2, 2)
        checkpoints = distributed.ShardedCheckpoints(tmp_path)
        checkpoints.save(1, model)
        checkpoints.settle()
        if distributed.rank() == 0:
            checkpoints.save(2, model)  # the other one is lost
        checkpoints.give_up()

    begin = time.monotonic()
    distributed.run_threads(run_rank, 2)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000001"]
    assert time.monotonic() - begin < 60  # the save itself waits 600 s


def test_what_a_killed_job_left_unfinished_gets_into_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process takes files that are there for those of this save, so they must not be."""
    stale = tmp_path / ".writing-step-00000004"
    stale.mkdir()
    note = {"files": {"shard-00001.safetensors": {"bytes": 1, "sha256": "", "entries": {}}}}
    (stale / "shard-00001.safetensors.json").write_text(json.dumps({**note, "shapes": {}}))

    def write_slowly(path: Path, tensors: Any) -> Any:
        if path.name.startswith("shard-00001"):
            time.sleep(0.3)
        return write_file(path, tensors)

    monkeypatch.setattr("weft.distributed.checkpoints.write_file", write_slowly)

    def run_rank() -> np.ndarray:
        model, optimizer = _make(0)
        checkpoints = distributed.ShardedCheckpoints(tmp_path)
        checkpoints.save(4, model, optimizer)
        checkpoints.settle()
        return _numbers(model, optimizer)["0.weight"]

    written = distributed.run_threads(run_rank, 2)[0]
    np.testing.assert_array_equal(_load(tmp_path, None)[0]["0.weight"], written)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


def test_damage_and_another_model_are_refused(tmp_path: Path) -> None:
    _save_alone(tmp_path)
    model, optimizer = _make(None, width=4)
    before = _numbers(model, optimizer)
    with pytest.raises(CheckpointError, match="another model"):
        distributed.ShardedCheckpoints(tmp_path).load(model, optimizer)
    for name, array in _numbers(model, optimizer).items():
        np.testing.assert_array_equal(array, before[name])
    file = tmp_path / "step-00000004" / "shard-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="was changed"):
        distributed.ShardedCheckpoints(tmp_path).load(*_make(None))


def _save_alone(folder: Path) -> None:
    model, optimizer = _make(None)
    checkpoints = distributed.ShardedCheckpoints(folder, keep=1)
    for step in (3, 4):
        checkpoints.save(step, model, optimizer)
    checkpoints.wait()
    assert [path.name for path in folder.iterdir()] == ["step-00000004"]


def test_split_parameters_are_written_and_read_in_parts(tmp_path: Path) -> None:
    """Two processes write parts of parameters; three and one read them."""

    def write() -> None:
        model, optimizer = _make(3)
        checkpoints = distributed.ShardedCheckpoints(tmp_path)
        checkpoints.save(1, model, optimizer)
        checkpoints.wait()

    def read() -> np.ndarray:
        model, optimizer = _make(3)
        distributed.ShardedCheckpoints(tmp_path).load(model, optimizer)
        whole: np.ndarray = distributed.all_gather(model[0].weight).detach().numpy()
        return whole[:15].reshape(3, 5)

    distributed.run_threads(write, 2)
    alone = _load(tmp_path, None)[0]["0.weight"]
    for found in distributed.run_threads(read, 3):
        np.testing.assert_array_equal(found, alone)


# --- pipelines ---


def _mixture() -> Any:
    model = wf.nn.Sequential(wf.nn.Linear(5, 6), wf.nn.MixtureOfExperts(6, 4, experts=4))
    generator = np.random.default_rng(3)
    with wf.no_grad():
        for parameter in model.parameters():
            values = generator.normal(size=parameter.shape).astype(np.float32)
            parameter.copy_(wf.tensor(values))
    return model


def _whole_numbers(model: Any, optimizer: Any) -> dict[str, np.ndarray]:
    state = {**distributed.whole_state(model), **optimizer.state_dict()}
    kept = {name: value for name, value in state.items() if isinstance(value, wf.Tensor)}
    return {name: np.array(value.detach().numpy()) for name, value in kept.items()}


@pytest.mark.parametrize(
    ("way", "axes"),
    [
        ("experts", {"data": 4}), ("copies", {"data": 2, "expert": 2}),
        ("copies", {"expert": 2, "data": 2}), ("zero1", {"data": 2, "model": 2}),
        ("zero1", {"model": 2, "data": 2}),
    ],
)  # fmt: skip
def test_parts_along_an_axis_of_a_mesh_are_written_once_and_read_by_any_world(
    tmp_path: Path, way: str, axes: dict[str, int]
) -> None:
    x = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)

    def train(checkpoints: distributed.ShardedCheckpoints) -> Any:
        model = _mixture()
        if way == "copies":
            distributed.shard_experts(model, "expert", copies="data")
        if way == "experts":
            distributed.shard_experts(model)
        optimizer = wf.optim.Adam(dict(model.named_parameters()), lr=0.1)
        axis, zero = ("world" if way == "copies" else "data"), int(way == "zero1")
        distributed.data_parallel(optimizer, mesh_axis=axis, zero=zero)
        own = slice(2 * distributed.rank(), 2 * distributed.rank() + 2)
        optimizer.minimize((model(wf.tensor(x if way == "zero1" else x[own])) ** 2).mean())
        checkpoints.save(1, model, optimizer)
        checkpoints.wait()
        trained = _whole_numbers(model, optimizer)
        distributed.barrier()
        optimizer.minimize((model(wf.tensor(x[:2])) ** 2).mean())
        checkpoints.load(model, optimizer)
        return trained, _whole_numbers(model, optimizer)

    def run_rank() -> Any:
        return train(distributed.ShardedCheckpoints(tmp_path))

    model = _mixture()
    optimizer = wf.optim.Adam(dict(model.named_parameters()), lr=0.1)
    for trained, loaded in distributed.run_threads(run_rank, 4, axes):
        distributed.ShardedCheckpoints(tmp_path).load(model, optimizer)
        alone = _whole_numbers(model, optimizer)
        for name, value in trained.items():
            np.testing.assert_array_equal(loaded[name], value, err_msg=name)
            np.testing.assert_array_equal(alone[name], value, err_msg=name)


def _row() -> Any:
    """A row of modules with buffers, whose weights do not depend on the generator."""
    nn, generator = wf.nn, np.random.default_rng(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    with wf.no_grad():
        for parameter in model.parameters():
            values = generator.normal(size=parameter.shape).astype(np.float32)
            parameter.copy_(wf.tensor(values))
    return model


def _pipeline(cut: list[int] | None, zero: int = 0, data_axis: str | None = "data") -> Any:
    pipeline = distributed.Pipeline(_row(), wf.nn.functional.mse_loss, micro_batches=1, cut=cut)
    optimizer = wf.optim.Adam(pipeline.parameters(), lr=0.1)
    return pipeline, pipeline.share(optimizer, data_axis=data_axis, zero=zero)


def _state_of_row(model: Any, parameters: Any, optimizer: Any) -> dict[str, np.ndarray]:
    """Weights and buffers, and what is kept for parameters, by the model's names."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    kept = optimizer.state_dict()
    for name, parameter in zip(optimizer.groups[0].names, parameters, strict=True):
        for slot in optimizer.state[0]:
            found[f"{names[id(parameter)]}.{slot}"] = kept[f"state.{name}.{slot}"].numpy().copy()
    return {**found, "steps": kept["steps"].numpy().copy()}


def _write_row(folder: Path, cut: list[int], zero: int) -> dict[str, np.ndarray]:
    pipeline, optimizer = _pipeline(cut, zero)
    x = wf.tensor(np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5) ** 2)
    for _ in range(2):
        pipeline.step(x, x[:, :3])
        optimizer.step()
        optimizer.zero_grad()
    checkpoints = distributed.ShardedCheckpoints(folder)
    checkpoints.save(2, pipeline, optimizer, {"epoch": 1})
    checkpoints.wait()
    distributed.barrier()
    pipeline.gather_weights()
    return _state_of_row(pipeline.model, pipeline.parameters(), optimizer)


def _read_row(folder: Path, cut: list[int], zero: int = 0) -> dict[str, np.ndarray]:
    pipeline, optimizer = _pipeline(cut, zero)
    facts = distributed.ShardedCheckpoints(folder).load(pipeline, optimizer)
    assert facts is not None
    pipeline.gather_weights()
    return _state_of_row(pipeline.model, pipeline.parameters(), optimizer)


def _read_row_alone(folder: Path) -> dict[str, np.ndarray]:
    model = _row()
    optimizer = wf.optim.Adam(model.parameters(), lr=0.1)
    facts = distributed.ShardedCheckpoints(folder).load(model, optimizer)
    assert facts is not None
    assert (facts["step"], facts["epoch"]) == (2, 1)
    return _state_of_row(model, list(model.parameters()), optimizer)


@pytest.mark.parametrize("zero", [0, 2])
def test_a_pipeline_writes_its_stages_and_any_other_reads_them(tmp_path: Path, zero: int) -> None:
    """Two pipelines of two stages write; one process, another cut and other meshes read."""
    mesh = {"data": 2, "stage": 2}
    ranks = distributed.run_threads(lambda: _write_row(tmp_path, [1], zero), 4, mesh)
    written = {name: array for rank in reversed(ranks) for name, array in rank.items()}
    assert len(written) == 6 + 3 + 2 * 6 + 1  # weights, buffers, two moments each, steps
    assert not np.array_equal(written["3.weight"], _row()[3].weight.detach().numpy())
    alone = _read_row_alone(tmp_path)
    assert sorted(alone) == sorted(written)
    readers: list[tuple[int, dict[str, int], list[int], int]] = [
        (2, {"data": 1, "stage": 2}, [3], 0),
        (3, {"data": 1, "stage": 3}, [1, 3], 0),
        (4, mesh, [3], 2 - zero),
    ]
    found = [alone]
    for count, axes, cut, level in readers:
        read = lambda cut=cut, level=level: _read_row(tmp_path, cut, level)  # noqa: E731
        found += distributed.run_threads(read, count, axes)
    for state in found:
        for name, array in state.items():
            np.testing.assert_array_equal(array, written[name], err_msg=name)


def test_what_one_process_wrote_by_names_is_read_by_a_pipeline(tmp_path: Path) -> None:
    model = _row()
    optimizer = wf.optim.Adam(dict(model.named_parameters()), lr=0.1)
    optimizer.minimize((model(wf.ones((4, 5))) ** 2).sum() + (model(wf.zeros((4, 5))) ** 2).sum())
    written = _state_of_row(model, list(model.parameters()), optimizer)
    for folder, kept in (
        ("named", optimizer),
        ("numbered", wf.optim.Adam(model.parameters(), lr=0.1)),
    ):
        checkpoints = distributed.ShardedCheckpoints(tmp_path / folder)
        checkpoints.save(1, model, kept)
        checkpoints.wait()

    def read() -> dict[str, np.ndarray]:
        pipeline, optimizer = _pipeline([1], data_axis=None)
        with pytest.raises(CheckpointError, match=r"entry 'optimizer\.state\.\d\.\w+"):
            distributed.ShardedCheckpoints(tmp_path / "numbered").load(pipeline, optimizer)
        distributed.ShardedCheckpoints(tmp_path / "named").load(pipeline, optimizer)
        return _state_of_row(pipeline.model, pipeline.parameters(), optimizer)

    for state in distributed.run_threads(read, 2, {"stage": 2}):
        for name, array in state.items():
            np.testing.assert_array_equal(array, written[name], err_msg=name)
