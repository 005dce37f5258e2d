"""Checkpoints that processes write in parts, read by any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import distributed
from weft.train.checkpoints import CheckpointError


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
        if distributed.rank() == 1:
            return ""
        model = wf.nn.Linear(2, 2)
        checkpoints = distributed.ShardedCheckpoints(tmp_path, timeout=0.1)
        checkpoints.save(1, model)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.wait()
        return caught.value.got

    assert "shard-00001" in distributed.run_threads(run_rank, 2)[0]


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
