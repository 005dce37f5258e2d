"""Parameter servers: tables on shards, trained as embeddings of one process are."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.distributed import ParameterServer
from weft.distributed.tables import TableShard

INDICES = np.random.default_rng(0).integers(0, 7, size=(2, 6, 5))  # [worker, step, rows]
TARGETS = np.random.default_rng(1).normal(size=(2, 6, 5, 3)).astype(np.float32)


def _server(**options: Any) -> ParameterServer:
    settings: dict[str, Any] = {"optimizer": wf.optim.Adagrad, "lr": 0.1, **options}
    return ParameterServer({"users": (7, 3)}, settings.pop("workers", 2), **settings)


def _train(worker: Any, rank: int, steps: int = 6) -> None:
    for step in range(steps):
        rows = worker.pull("users", INDICES[rank, step])
        ((rows - wf.tensor(TARGETS[rank, step])) ** 2).mean().backward()
        worker.push("users", INDICES[rank, step], rows.grad)
        worker.finish_step()


def _whole_table(server: ParameterServer) -> np.ndarray:
    table = np.empty((7, 3), np.float32)
    for shard, state in enumerate(server.state()):
        table[shard :: server.shards] = state["tables"]["users"]
    return table


def _train_in_threads(server: ParameterServer) -> np.ndarray:
    threads = [
        threading.Thread(target=_train, args=(server.worker(rank), rank)) for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _whole_table(server)


def _train_plain(steps: int = 6) -> np.ndarray:
    """One process, whose steps see the rows of both workers, each of which counts half."""
    start = _whole_table(_server())
    table = wf.tensor(start, requires_grad=True)
    optimizer = wf.optim.Adagrad([table], lr=0.1)
    for step in range(steps):
        losses = [
            ((table[wf.tensor(INDICES[r, step])] - wf.tensor(TARGETS[r, step])) ** 2).mean()
            for r in range(2)
        ]
        optimizer.minimize((losses[0] + losses[1]) / 2)
    weights: np.ndarray = table.detach().numpy()
    return weights


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_synchronous_workers_train_as_one_process(shards: int) -> None:
    found = _train_in_threads(_server(shards=shards))
    np.testing.assert_allclose(found, _train_plain(), rtol=1e-5, atol=1e-6)


def test_rows_begin_the_same_on_any_number_of_shards() -> None:
    np.testing.assert_array_equal(_whole_table(_server(shards=3)), _whole_table(_server()))


def test_a_worker_waits_where_it_would_be_too_far_ahead() -> None:
    server = _server(staleness=2)
    fast, slow = server.worker(0, timeout=0.1), server.worker(1)
    for _ in range(3):
        fast.pull("users", [0])
        fast.finish_step()
    with pytest.raises(wf.ProcessError, match="another worker is late"):
        fast.pull("users", [0])
    slow.finish_step()
    fast.pull("users", [0])


def test_stale_gradients_are_applied_at_once_and_fresh_ones_together() -> None:
    for staleness, changed in ((1, True), (0, False)):
        server = _server(staleness=staleness, optimizer=wf.optim.SGD, lr=1.0)
        worker, before = server.worker(0), _whole_table(server)
        worker.push("users", [2, 2], np.ones((2, 3), np.float32))
        moved = before - _whole_table(server)
        expected = np.zeros((7, 3), np.float32)
        expected[2] = 1.0 if changed else 0.0  # two of one row, each half of two workers
        np.testing.assert_allclose(moved, expected, atol=1e-6)


def test_a_shard_without_any_of_the_rows_stays_as_it_is() -> None:
    server = _server(shards=3, workers=1)
    before, worker = _whole_table(server), server.worker(0)
    worker.push("users", [3, 0], np.ones((2, 3), np.float32))
    worker.push("users", [], np.ones((0, 3), np.float32))
    worker.finish_step()
    assert np.flatnonzero((before != _whole_table(server)).any(axis=1)).tolist() == [0, 3]


def test_a_server_goes_on_from_its_state() -> None:
    server = _server(shards=2, workers=1)
    _train(server.worker(0), 0, steps=3)
    other = _server(shards=2, workers=1)
    other.load_state(server.state())
    for each in (server, other):
        worker = each.worker(0)
        worker.step = 3
        rows = worker.pull("users", [1, 4])
        worker.push("users", [1, 4], wf.ones_like(rows))
        worker.finish_step()
    np.testing.assert_array_equal(_whole_table(server), _whole_table(other))


def test_wrong_calls_are_refused() -> None:
    server = _server()
    with pytest.raises(wf.ArgumentError, match="no such worker"):
        server.worker(2)
    worker = server.worker(0)
    with pytest.raises(wf.ArgumentError, match="no such table"):
        worker.pull("items", [0])
    with pytest.raises(wf.BoundsError, match="out of range"):
        worker.pull("users", [7])
    with pytest.raises(wf.ShapeError, match="one gradient for each index"):
        worker.push("users", [1, 2], np.ones((1, 3), np.float32))
    with pytest.raises(wf.ArgumentTypeError, match="have no gradient"):
        worker.push("users", [1], worker.pull("users", [1]).grad)
    with pytest.raises(wf.DTypeError, match="no whole numbers"):
        worker.pull("users", [1.7])
    with pytest.raises(wf.ArgumentError, match="no settings"):
        _server(staleness=-1)


def test_actors_of_ray_hold_the_same_tables() -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        server = _server(shards=2, engine="ray", name="test-tables")
        connected = ParameterServer.connect({"users": (7, 3)}, 2, shards=2, name="test-tables")

        def train(rank: int) -> None:
            _train((server if rank else connected).worker(rank), rank)

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_allclose(_whole_table(server), _train_plain(), rtol=1e-5, atol=1e-6)
        server.close()
    finally:
        ray.shutdown()


def test_without_ray_its_engine_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(wf.UnsupportedError, match="not installed") as caught:
        _server(engine="ray")
    assert "weft[ray]" in str(caught.value)
    assert isinstance(_server()._shards[0], TableShard)
