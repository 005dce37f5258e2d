"""The processes of this job: who this one is, and the groups that collectives run on.

    wf.distributed.init()
    print(wf.distributed.rank(), wf.distributed.world_size())

A program that no launcher started is a world of one process, so the same script runs alone.

>>> import weft as wf
>>> wf.distributed.init()
>>> wf.distributed.rank(), wf.distributed.world_size(), wf.distributed.broadcast_object("x")
(0, 1, 'x')
>>> wf.distributed.shutdown()
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import weft as wf
from weft.collectives import bind_groups, bind_thread_groups
from weft.distributed.engines.engine import Engine
from weft.distributed.engines.gloo import Place, gloo_world, join_gloo_world
from weft.distributed.engines.mpi import mpi_world
from weft.distributed.engines.nccl import nccl_world
from weft.distributed.engines.threads import ThreadEngine, thread_engines
from weft.distributed.engines.threads import run_threads as run_in_threads
from weft.distributed.environment import Launch, find_launch
from weft.distributed.group import Group, Watch
from weft.distributed.job_folder import note_shared_memory
from weft.distributed.status import StatusBoard

__all__ = [
    "barrier", "bind_axes", "broadcast_object", "gather_objects", "init", "is_initialized",
    "local_rank", "mesh_axes", "number_of_module", "rank", "role", "run_threads", "shutdown",
    "world", "world_size",
]  # fmt: skip

Result = TypeVar("Result")
ALONE = Launch("none", 0, 1, 0, "worker", "")
USUAL_TIMEOUT = 600.0
ENGINES = ("auto", "mpi", "gloo", "nccl")


class _Job:
    """The world of this process, once `init` has been called."""

    world: Group | None = None
    launch: Launch = ALONE
    axes: Mapping[str, int] = {}
    """The mesh that the processes are laid out as."""
    modules: int = 0
    """How many split modules were made; all processes make them in the same order."""


class _ThreadJob(threading.local):
    """The world of a thread that stands for a process; see `run_threads`."""

    job: _Job | None = None


_process_job = _Job()
_thread = _ThreadJob()


def _job() -> _Job:
    return _thread.job or _process_job


def init(
    engine: str = "auto",
    *,
    axes: Mapping[str, int] | None = None,
    timeout: float | None = None,
    world_size: int | None = None,
    check: bool = True,
) -> None:
    """Join the processes that were started with this one.

    engine: "mpi" (started by mpiexec, Slurm or `weft launch`), "gloo" (`weft launch --engine
    gloo`), "nccl" (a card for each process, with one of these beside it), or "auto". axes: a mesh,
    as in {"data": 2, "model": 2}; without it the axes "world" and "data" stand for all processes.
    timeout: seconds after which a process that waits says who is late and ends; else WEFT_TIMEOUT,
    or 600. world_size: how many processes the program needs. check: whether processes compare what
    they are about to do; see docs/distributed.md.
    """
    if (present := _job().world) is not None:
        raise wf.ArgumentError(
            "distributed.init",
            "this process has joined its group already",
            expected="one call of init",
            got={"rank": present.rank, "world_size": present.size},
            fix="wf.distributed.shutdown() first",
        )
    launch = find_launch(os.environ) or ALONE
    seconds = float(os.environ.get("WEFT_TIMEOUT", USUAL_TIMEOUT)) if timeout is None else timeout
    joined_engine = _start_engine(engine, launch, seconds)
    _check_world(joined_engine, launch, world_size)
    if launch.folder and joined_engine.size > 1:
        note_shared_memory(launch.folder, launch.rank)
    board = StatusBoard(launch.folder, launch.size) if launch.folder else None
    grace = seconds / 2 if joined_engine.ends_waits else 0.0  # its own error comes first
    watch = Watch(joined_engine.rank, seconds, board, grace)
    _process_job.launch = launch
    _process_job.world = Group(joined_engine, "world", watch, check)
    if joined_engine.size > 1:
        watch.start()
    bind_axes(axes or {"data": joined_engine.size})
    atexit.register(shutdown)


def _start_engine(engine: str, launch: Launch, timeout: float) -> Engine:
    if engine not in ENGINES:
        raise wf.ArgumentError(
            "distributed.init",
            "there is no such engine",
            expected="one of " + ", ".join(ENGINES),
            got={"engine": engine},
            fix='engine="auto"',
        )
    if (launch.size == 1 and engine == "auto") or launch.restarts:
        return thread_engines(1)[0]  # one that was started again joins when it trains
    if engine == "nccl":
        host = "gloo" if launch.launcher == "weft" else "mpi"
        beside = thread_engines(1)[0] if launch.size == 1 else _start_engine(host, launch, timeout)
        return nccl_world(beside, launch.local_rank)
    if engine == "gloo" or (engine == "auto" and launch.launcher == "weft"):
        return gloo_world(launch.rank, launch.size, _meeting_place(launch, timeout))
    return mpi_world()


def _meeting_place(launch: Launch, timeout: float) -> Place:
    if launch.launcher == "none" or not launch.folder:
        raise _missing_launcher("gloo needs a folder in which processes meet", launch.size)
    return Place(os.path.join(launch.folder, "gloo"), timeout, launch.host)


def _missing_launcher(problem: str, size: int) -> wf.ProcessError:
    return wf.ProcessError(
        "distributed.init",
        problem,
        expected=f"{size} processes, started together",
        got={"launcher": (find_launch(os.environ) or ALONE).launcher},
        fix=f"weft launch -n {max(size, 2)} train.py",
    )


def _check_world(engine: Engine, launch: Launch, wanted: int | None) -> None:
    """Refuse a world of another size than the launcher or the program says."""
    if launch.restarts:
        return
    if engine.size != launch.size:
        raise _missing_launcher(
            f"{launch.launcher} started {launch.size} processes, "
            f"and {engine.name} joined {engine.size} of them",
            launch.size,
        )
    if wanted is not None and wanted != engine.size:
        raise _missing_launcher(
            f"the program needs {wanted} processes, and there are {engine.size}", wanted
        )


def bind_axes(axes: Mapping[str, int]) -> None:
    """Lay the processes out as a mesh, in the order of ranks, the last axis quickest.

    Collectives over an axis then run among the processes that differ along it alone.
    """
    whole = world()
    sizes = list(axes.values())
    if any(type(size) is not int or size < 1 for size in sizes) or math.prod(sizes) != whole.size:
        raise wf.ArgumentError(
            "distributed.bind_axes",
            "the mesh does not fit the world",
            expected=f"sizes whose product is {whole.size}, the number of processes",
            got=dict(axes),
            note=f"{' * '.join(map(str, sizes)) or 1} = {math.prod(sizes)}",
            fix=f"start {math.prod(sizes)} processes, or use a mesh such as "
            f'{{"data": {whole.size}}}',
        )
    groups = axis_groups(whole, axes)
    _job().axes = dict(axes)
    if _thread.job is None:
        bind_groups(groups)
    else:
        bind_thread_groups(groups)


def mesh_axes() -> dict[str, int]:
    """The mesh that the processes are laid out as, with its sizes."""
    return dict(_job().axes)


def number_of_module() -> int:
    """The number of a split module that is made now, the same on all processes."""
    _job().modules += 1
    return _job().modules


def axis_groups(whole: Group, axes: Mapping[str, int]) -> dict[str, Group]:
    """The groups of this process along each axis of a mesh, and that of all processes."""
    sizes = list(axes.values())
    groups = {"world": whole}
    place = whole.rank
    for number, (name, size) in reversed(list(enumerate(axes.items()))):
        stride = math.prod(sizes[number + 1 :])
        first = whole.rank - (place % size) * stride
        ranks = [first + i * stride for i in range(size)]
        groups[name] = whole if size == whole.size else whole.subgroup(ranks, name)
        place //= size
    return groups


def world() -> Group:
    """The group of all processes."""
    job = _job()
    if job.world is None:
        raise wf.ProcessError(
            "distributed",
            "this process has not joined a group",
            expected="wf.distributed.init() at the start of the program",
            got={"launcher": (find_launch(os.environ) or ALONE).launcher},
            fix="wf.distributed.init()",
        )
    return job.world


def join_world() -> Group:
    """The group that takes this process in, which was started again while the others trained."""
    launch, alone = _job().launch, world()
    place = _meeting_place(launch, alone.watch.timeout)
    engine = join_gloo_world(launch.rank, launch.size, place, launch.restarts)
    alone.watch.start()
    return Group(engine, "world", alone.watch, alone.checks, ())


def restarts() -> int:
    """How often this process was started again."""
    return _job().launch.restarts


def replace_world(group: Group, axes: Mapping[str, int]) -> None:
    """Go on with another group: that of the processes that are left."""
    _job().world = group
    bind_axes(axes)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not yet."""
    return _job().world is not None


def rank() -> int:
    """The number of this process, from 0."""
    return world().rank


def world_size() -> int:
    """How many processes there are."""
    return world().size


def local_rank() -> int:
    """The number of this process among those on its host."""
    world()
    return _job().launch.local_rank


def role() -> str:
    """What this process is for: "worker", "server" or "evaluator", as WEFT_ROLE says."""
    return _job().launch.role


def barrier() -> None:
    """Return once all processes are here."""
    world().barrier()


def broadcast_object(value: Any, root: int = 0) -> Any:
    """A Python object of one process, on all of them; it is pickled."""
    group = world()
    data = pickle.dumps(value) if group.rank == root else b""
    if group.size == 1:
        return value
    return pickle.loads(group.broadcast_bytes(data, root))


def gather_objects(value: Any, what: str = "") -> list[Any]:
    """The Python objects of all processes, in the order of ranks; they are pickled.

    what: what they are, a text; processes that gather something else are named in an error.
    """
    group = world()
    if group.size == 1:
        return [value]
    with group.saying(what):
        rows = group.gather_bytes(pickle.dumps(value))
    return [pickle.loads(data) for data in rows]


def shutdown() -> None:
    """Leave the group; collectives over its axes are errors from now on."""
    job = _job()
    group, job.world = job.world, None
    if _thread.job is None:
        bind_groups({})
    if group is not None:
        group.watch.stop()


def run_threads(
    f: Callable[[], Result], size: int, axes: Mapping[str, int] | None = None
) -> list[Result]:
    """Run a function as each of `size` processes would, in threads; the results by rank.

    For tests: `rank()`, collectives and trainers work inside as in processes of their own.

    >>> import weft as wf
    >>> run_threads(lambda: wf.distributed.all_reduce(wf.distributed.axis_index("data")).item(), 3)
    [3, 3, 3]
    """

    def run_rank(engine: ThreadEngine) -> Result:
        _thread.job = _Job()
        _thread.job.world = Group(engine, "world", Watch(engine.rank, USUAL_TIMEOUT))
        _thread.job.launch = ALONE._replace(rank=engine.rank, size=size, local_rank=engine.rank)
        bind_axes(axes or {"data": size})
        return f()

    return run_in_threads(run_rank, size)
