"""A parameter server: tables whose rows lie on several shards, for embeddings beyond one host.

    server = wf.distributed.ParameterServer({"users": (10_000_000, 64)}, workers=4, shards=2)
    worker = server.worker(rank)
    rows = worker.pull("users", indices)          # a leaf: loss.backward() gives its gradient
    worker.push("users", indices, rows.grad)
    worker.finish_step()

Row r is on shard r % shards. With `staleness=0` training is synchronous: the gradients of a step
are applied when all workers have finished it, as the mean over workers. With `staleness=k` each
gradient is applied as it comes, and a worker waits where it is more than k steps ahead of the
slowest. Shards are actors of Ray (`weft[ray]`), or objects of this process for tests and one host.

>>> import weft as wf
>>> server = ParameterServer({"users": (4, 2)}, workers=1, optimizer=wf.optim.SGD, lr=0.5)
>>> worker = server.worker(0)
>>> before = worker.pull("users", [3]).tolist()
>>> worker.push("users", [3], wf.ones((1, 2)))
>>> worker.finish_step()
>>> [round(b - a, 6) for a, b in zip(worker.pull("users", [3]).tolist()[0], before[0])]
[0.5, 0.5]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

import weft as wf
from weft.optim.rows import Rows

__all__ = ["ParameterServer", "TableShard", "Worker"]

Array = np.ndarray[Any, Any]
POLL = 0.002
NAMESPACE = "weft"
"""Where actors have their names, for all programs that join a cluster of Ray."""


class TableShard:
    """Every `shards`-th row of each table, and what an optimiser keeps for them.

    It is the same object in an actor of Ray and in this process. All of its methods return at once.
    """

    def __init__(
        self,
        place: int,
        shards: int,
        tables: Mapping[str, tuple[int, int]],
        workers: int,
        staleness: int,
        optimizer: Callable[..., Any],
        options: Mapping[str, Any],
        seed: int = 0,
    ) -> None:
        self._workers, self._staleness = workers, staleness
        self._lock = threading.RLock()
        self._clocks = [0] * workers
        self._applied = 0
        self._waiting: dict[int, list[tuple[str, Array, Array]]] = {}
        self._tables: dict[str, wf.Tensor] = {}
        for number, (name, (count, width)) in enumerate(tables.items()):
            generator = np.random.default_rng((seed, number))
            # rows are drawn in order, so that they do not depend on how many shards there are
            values = generator.normal(size=(count, width)).astype(np.float32)[place::shards] * 0.01
            self._tables[name] = wf.tensor(values, requires_grad=True)
        self._optimizer = optimizer(self._tables, **options)

    def pull(self, name: str, rows: Array) -> Array:
        """Rows of a table, by their places on this shard."""
        with self._lock:
            found: Array = self._tables[name].detach().numpy()[rows]
            return found

    def push(self, step: int, name: str, rows: Array, gradients: Array) -> None:
        """Take gradients of rows: to be applied now, or when all workers have finished the step."""
        with self._lock:
            if self._staleness:
                self._apply([(name, rows, gradients)])
            else:
                self._waiting.setdefault(step, []).append((name, rows, gradients))

    def finish_step(self, worker: int, step: int) -> None:
        """Note that a worker has pushed all of a step; apply what is complete."""
        with self._lock:
            self._clocks[worker] = step + 1
            while self._applied < min(self._clocks):
                self._apply(self._waiting.pop(self._applied, []))
                self._applied += 1

    def is_ready(self, step: int) -> bool:
        """Whether a worker may begin a step: no other is too far behind."""
        with self._lock:
            return step - min(self._clocks) <= self._staleness

    def state(self) -> dict[str, Any]:
        """Everything that a shard goes on from; see `load_state`."""
        with self._lock:
            kept = {name: _as_array(value) for name, value in self._optimizer.state_dict().items()}
            tables = {name: table.detach().numpy().copy() for name, table in self._tables.items()}
            return {"tables": tables, "optimizer": kept, "clocks": list(self._clocks),
                    "applied": self._applied}  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        with self._lock, wf.no_grad():
            for name, value in state["tables"].items():
                self._tables[name].copy_(wf.tensor(value))
            self._optimizer.load_state_dict(
                {name: _as_tensor(value) for name, value in state["optimizer"].items()}
            )
            self._clocks, self._applied = list(state["clocks"]), state["applied"]
            self._waiting.clear()

    def _apply(self, pushed: Sequence[tuple[str, Array, Array]]) -> None:
        """One update for gradients of rows, which are a mean over workers."""
        together: dict[str, list[tuple[Array, Array]]] = {}
        for name, rows, gradients in pushed:
            if not rows.size:  # all rows of this push are on other shards
                continue
            together.setdefault(name, []).append((rows, gradients / self._workers))
        if not together:
            return
        updates = [
            Rows(
                self._tables[name],
                wf.tensor(np.concatenate([rows for rows, _ in parts])),
                wf.tensor(np.concatenate([gradients for _, gradients in parts])),
            )
            for name, parts in together.items()
        ]
        self._optimizer.step(rows=updates)


class ParameterServer:
    """Tables on shards, and the workers that train with them.

    tables: for each name the number of rows and their width. staleness: how many steps a worker may
    be ahead of the slowest; 0 is synchronous. optimizer and options: what each shard updates its
    rows with, a rule that treats all elements alike. engine: "local", or "ray" for actors, named so
    that workers in other processes find them: `ParameterServer.connect(name, ...)`.
    """

    def __init__(
        self,
        tables: Mapping[str, tuple[int, int]],
        workers: int,
        *,
        shards: int = 1,
        staleness: int = 0,
        optimizer: Callable[..., Any] | None = None,
        engine: str = "local",
        name: str = "weft-tables",
        seed: int = 0,
        **options: Any,
    ) -> None:
        _check_server(tables, workers, shards, staleness, engine)
        self.tables, self.workers, self.engine = dict(tables), workers, engine
        rule = optimizer or wf.optim.Adagrad
        settings = (shards, self.tables, workers, staleness, rule, options, seed)
        if engine == "local":
            self._shards: list[Any] = [TableShard(i, *settings) for i in range(shards)]
        else:
            ray = _load_ray()
            actor = ray.remote(TableShard)
            self._shards = [
                actor.options(
                    name=f"{name}-{i}", namespace=NAMESPACE, lifetime="detached", num_cpus=0
                ).remote(i, *settings)
                for i in range(shards)
            ]
            ray.get([shard.is_ready.remote(0) for shard in self._shards])

    @classmethod
    def connect(
        cls, tables: Mapping[str, tuple[int, int]], workers: int, *, shards: int = 1,
        name: str = "weft-tables",
    ) -> ParameterServer:  # fmt: skip
        """The server of a name that another process has started with Ray."""
        ray = _load_ray()
        server = cls.__new__(cls)
        server.tables, server.workers, server.engine = dict(tables), workers, "ray"
        server._shards = [ray.get_actor(f"{name}-{i}", NAMESPACE) for i in range(shards)]
        return server

    def worker(self, rank: int, timeout: float = 600.0) -> Worker:
        """What one worker pulls and pushes by; it waits `timeout` seconds for those behind it."""
        if not 0 <= rank < self.workers:
            raise wf.ArgumentError(
                "ParameterServer.worker",
                "there is no such worker",
                expected=f"a rank from 0 to {self.workers - 1}",
                got={"rank": rank},
                fix="worker(0)",
            )
        return Worker(self, rank, timeout)

    def state(self) -> list[dict[str, Any]]:
        """The state of all shards, to be saved while no worker pushes."""
        return self.call_each("state", [()] * len(self._shards))

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Have all shards go on from what `state` gave."""
        self.call_each("load_state", [(state,) for state in states])

    def close(self) -> None:
        """End the actors; rows are lost."""
        if self.engine == "ray":
            ray = _load_ray()
            for shard in self._shards:
                ray.kill(shard)
        self._shards = []

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A method of all shards, each with arguments of its own; the results in their order."""
        pairs = list(zip(self._shards, arguments, strict=True))
        if self.engine == "local":
            return [getattr(shard, method)(*given) for shard, given in pairs]
        results: list[Any] = _load_ray().get(
            [getattr(shard, method).remote(*given) for shard, given in pairs]
        )
        return results

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self._shards)


class Worker:
    """One worker's view of the tables; `step` is the number of the step that it is in."""

    def __init__(self, server: ParameterServer, rank: int, timeout: float) -> None:
        self._server, self._rank, self._timeout = server, rank, timeout
        self.step = 0

    def pull(self, name: str, indices: Any) -> wf.Tensor:
        """Rows of a table, one for each index, as a leaf that gets a gradient."""
        self._wait_for_others()
        flat, (_, width) = self._flat_indices(name, indices)
        places = self._places(flat)
        parts = self._server.call_each("pull", [(name, flat[place] // n) for place, n in places])
        rows = np.empty((flat.size, width), np.float32)
        for (place, _), part in zip(places, parts, strict=True):
            rows[place] = part
        return wf.tensor(rows, requires_grad=True)

    def push(self, name: str, indices: Any, gradients: Any) -> None:
        """Send the gradients of rows, one for each index; of an index twice, their sum counts."""
        flat, (_, width) = self._flat_indices(name, indices)
        if gradients is None:
            raise wf.ArgumentTypeError(
                "ParameterServer.push",
                "the rows have no gradient",
                expected=f"gradients [{flat.size}, {width}]",
                got={"gradients": None},
                fix="loss.backward() before push(name, indices, rows.grad)",
            )
        values = np.asarray(wf.asarray(gradients).detach().numpy(), np.float32)
        if values.shape != (flat.size, width):
            raise wf.ShapeError(
                "ParameterServer.push",
                "there is not one gradient for each index",
                expected=f"gradients [{flat.size}, {width}]",
                got={"gradients": values, "indices": flat},
                fix="push(name, indices, rows.grad), with the rows that pull gave",
            )
        places = self._places(flat)
        arguments = [(self.step, name, flat[place] // n, values[place]) for place, n in places]
        self._server.call_each("push", arguments)

    def finish_step(self) -> None:
        """Say that all gradients of this step are pushed."""
        given = (self._rank, self.step)
        self._server.call_each("finish_step", [given] * self._server.shards)
        self.step += 1

    def _places(self, flat: Array) -> list[tuple[Array, int]]:
        """For each shard, which of the indices it has; and how many shards there are."""
        count = self._server.shards
        return [(np.flatnonzero(flat % count == shard), count) for shard in range(count)]

    def _flat_indices(self, name: str, indices: Any) -> tuple[Array, tuple[int, int]]:
        """The indices as a vector of whole numbers in range, and the size of the table."""
        if name not in self._server.tables:
            raise wf.ArgumentError(
                "ParameterServer",
                "there is no such table",
                expected="one of " + ", ".join(self._server.tables),
                got={"table": name},
                fix=f"pull({next(iter(self._server.tables))!r}, indices)",
            )
        size = self._server.tables[name]
        given = np.asarray(wf.asarray(indices).numpy()).reshape(-1)
        if given.size and given.dtype.kind not in "iu":
            raise wf.DTypeError(
                "ParameterServer",
                "indices are no whole numbers",
                expected=f"indices from 0 to {size[0] - 1}",
                got={"indices": given},
                fix='indices.astype("int64")',
            )
        flat = given.astype(np.int64)
        if flat.size and not (flat.min() >= 0 and flat.max() < size[0]):
            raise wf.BoundsError(
                "ParameterServer",
                "an index is out of range",
                expected=f"indices from 0 to {size[0] - 1}",
                got={"least": int(flat.min()), "largest": int(flat.max())},
                fix=f"give the table {int(flat.max()) + 1} rows"
                if flat.min() >= 0
                else "count rows from 0",
            )
        return flat, size

    def _wait_for_others(self) -> None:
        """Return once no worker is too far behind."""
        deadline = time.monotonic() + self._timeout
        arguments = [(self.step,)] * self._server.shards
        while not all(self._server.call_each("is_ready", arguments)):
            if time.monotonic() > deadline:
                raise wf.ProcessError(
                    "ParameterServer.pull",
                    "another worker is late",
                    expected=f"step {self.step} within {self._timeout:g} s",
                    got={"worker": self._rank, "step": self.step},
                    fix="look at the other workers: each has to call finish_step in every step",
                )
            time.sleep(POLL)


def _load_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise wf.UnsupportedError(
            "ParameterServer",
            "the engine of actors is not installed",
            expected="ray",
            got={"engine": "ray"},
            note=str(error),
            fix='pip install "weft[ray]", or engine="local"',
        ) from error


def _check_server(
    tables: Mapping[str, tuple[int, int]], workers: int, shards: int, staleness: int, engine: str
) -> None:
    sizes = [size for pair in tables.values() for size in pair]
    counts = [workers, shards, *sizes]
    are_counts = all(type(count) is int and count > 0 for count in counts)
    is_known = engine in ("local", "ray")
    if not (tables and are_counts and type(staleness) is int and staleness >= 0 and is_known):
        raise wf.ArgumentError(
            "ParameterServer",
            "these are no settings of a parameter server",
            expected='tables {name: (rows, width)}, whole numbers, engine "local" or "ray"',
            got={"tables": dict(tables), "workers": workers, "shards": shards,
                 "staleness": staleness, "engine": engine},
            fix='ParameterServer({"users": (1000, 16)}, workers=2)',
        )  # fmt: skip


def _as_array(value: Any) -> Any:
    return value.detach().numpy().copy() if isinstance(value, wf.Tensor) else value


def _as_tensor(value: Any) -> Any:
    return wf.tensor(value) if isinstance(value, np.ndarray) else value
