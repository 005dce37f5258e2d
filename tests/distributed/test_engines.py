"""Engines and groups: each operation against the reference, and what processes that differ get."""

from __future__ import annotations

import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft import distributed
from weft.collectives import bound_groups
from weft.distributed.engines.engine import LostProcess
from weft.distributed.engines.gloo import Place, gloo_world
from weft.distributed.engines.threads import ThreadEngine, run_threads
from weft.distributed.environment import find_launch
from weft.distributed.group import Group, Watch
from weft.distributed.status import Doing, StatusBoard

SIZE = 3


def _group(engine: ThreadEngine) -> Group:
    return Group(engine, "data", Watch(engine.rank, 20.0))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", ml_dtypes.bfloat16])
def test_threads_compute_what_the_reference_of_each_collective_computes(dtype: object) -> None:
    numbers = np.arange(SIZE * 6) * 5 % 7
    stack = (numbers % 2 if dtype == "bool" else numbers).reshape(SIZE, 6).astype(dtype)

    def each(x: wf.Tensor) -> list[wf.Tensor]:
        results = [
            distributed.all_gather(x, "data"),
            distributed.all_to_all(x, "data"),
            distributed.broadcast(x, "data", root=2),
            distributed.permute(x, "data", pairs=[(0, 1), (1, 2)]),
            distributed.axis_index("data"),
        ]
        if dtype != "bool":
            results += [distributed.all_reduce(x, "data"), distributed.reduce_scatter(x, "data")]
        if dtype != "complex64":
            results += [distributed.all_reduce(x, "data", op=op) for op in ("max", "min")]
        return results

    def run_rank(engine: ThreadEngine) -> list[np.ndarray]:
        with bound_groups({"data": _group(engine)}):
            return [result.numpy() for result in each(wf.tensor(stack[engine.rank]))]

    expected = distributed.simulate(each, {"data": SIZE})(wf.tensor(stack))
    for rank, found in enumerate(run_threads(run_rank, SIZE)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other.numpy()[rank])


def test_compiled_programs_find_the_group_of_their_thread() -> None:
    step = wf.jit(lambda x: distributed.all_reduce(x * 2, "data") + 1)

    def run_rank(engine: ThreadEngine) -> list[float]:
        with bound_groups({"data": _group(engine)}):
            return step(wf.tensor([float(engine.rank)])).tolist()

    assert run_threads(run_rank, SIZE) == [[7.0]] * SIZE


def test_processes_that_differ_are_named_on_every_process() -> None:
    def run_rank(engine: ThreadEngine) -> str:
        with bound_groups({"data": _group(engine)}):
            with pytest.raises(wf.ProcessError) as caught:
                distributed.all_reduce(wf.ones(4 if engine.rank == 1 else 3), "data")
            return f"{caught.value.problem} {caught.value.got}"

    for said in run_threads(run_rank, SIZE):
        assert "rank 1 differs" in said
        assert "rank 1: all_reduce_sum(data) of 4 float32" in said


def test_a_thread_that_fails_wakes_the_others() -> None:
    def run_rank(engine: ThreadEngine) -> None:
        if engine.rank == 1:
            raise ValueError("bad luck")
        with pytest.raises(wf.ProcessError, match="lost"):
            _group(engine).barrier()

    with pytest.raises(ValueError, match="bad luck"):
        run_threads(run_rank, SIZE)


def test_late_threads_are_not_waited_for_longer_than_was_said() -> None:
    def run_rank(engine: ThreadEngine) -> None:
        if engine.rank == 0:
            with pytest.raises(LostProcess):
                engine.barrier()
        else:
            time.sleep(0.4)

    begin = time.monotonic()
    run_threads(run_rank, 2, timeout=0.1)
    assert time.monotonic() - begin < 5


def test_the_board_says_who_is_furthest_back(tmp_path: object) -> None:
    board = StatusBoard(str(tmp_path), 3)
    board.write(0, Doing(7, time.time(), "barrier", "train.py:3"))
    board.write(1, Doing(5, time.time(), "all_reduce", "train.py:2"))
    board.write(
        2, Doing(9, time.time(), "all_reduce", "train.py:2", error="NanError: " + "x" * 5000)
    )
    lines = board.report(0)
    assert [line.split(":")[0] for line in lines] == ["rank 2", "rank 1"]
    assert "ended with NanError" in lines[0]
    assert "operation 5: all_reduce at train.py:2" in lines[1]
    board.close()


def test_launchers_are_told_by_their_variables() -> None:
    found = find_launch({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert found is not None
    assert (found.launcher, found.rank, found.size, found.role) == ("mpiexec", 1, 2, "worker")
    with pytest.raises(wf.ArgumentError, match="WEFT_ROLE"):
        find_launch({"WEFT_ROLE": "king"})
    with pytest.raises(wf.ArgumentError, match="no number of a process"):
        find_launch({"WEFT_RANK": "first", "WEFT_WORLD_SIZE": "2"})


def test_a_program_without_a_launcher_is_a_world_of_one() -> None:
    distributed.init()
    try:
        assert (distributed.rank(), distributed.world_size(), distributed.local_rank()) == (0, 1, 0)
        assert distributed.all_reduce(wf.ones(2)).tolist() == [1.0, 1.0]
        assert distributed.gather_objects("x") == ["x"]
        with pytest.raises(wf.ArgumentError, match="does not fit the world"):
            distributed.bind_axes({"data": 2, "model": 2})
        with pytest.raises(wf.ArgumentError, match="joined its group already"):
            distributed.init()
    finally:
        distributed.shutdown()
    with pytest.raises(wf.ProcessError, match="has not joined"):
        distributed.rank()


def test_a_world_of_the_wrong_size_and_unknown_engines_are_refused() -> None:
    with pytest.raises(wf.ProcessError, match="needs 4 processes, and there are 1"):
        distributed.init(world_size=4)
    with pytest.raises(wf.ArgumentError, match="no such engine"):
        distributed.init("pigeons")
    with pytest.raises(wf.UnsupportedError, match="cards"):
        distributed.init("nccl")
    assert not distributed.is_initialized()


def test_groups_of_the_same_processes_are_made_as_often_as_asked(tmp_path: Path) -> None:
    """A mesh has one for each axis of size 1, and a pipeline's mesh follows that of `init`."""
    pytest.importorskip("xoscar", reason="the engine gloo is not installed")
    engine = gloo_world(0, 1, Place(str(tmp_path), 20.0))
    groups = [engine.subgroup([0]) for _ in range(2)]
    assert [group.all_gather(np.ones(2)).tolist() for group in groups] == [[[1.0, 1.0]]] * 2
    for group in (*groups, engine):
        group.close()
