"""Members of a job that agree among themselves: who is lost, who joins, who is left out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distributed.jobs import launch
from tests.distributed.one_process import LINEAR_TRAINING, linear_training

import weft as wf
from weft.distributed import membership
from weft.distributed.doors import Door, reached_numbers
from weft.distributed.membership import LeftOut, Membership
from weft.distributed.regrouping import has_quorum


def _in_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    results: list[Any] = [None] * len(functions)

    def run(place: int) -> None:
        try:
            results[place] = functions[place]()
        except wf.ProcessError as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_those_that_are_left_agree_without_the_dead(tmp_path: Path) -> None:
    members = [Membership(tmp_path, number) for number in range(4)]
    os.close(members[2]._lock)  # which is what the end of a process does
    left = [each for each in members if each.own != 2]
    found = _in_threads([lambda each=each: each.meet(1, [0, 1, 2, 3]) for each in left])
    assert found == [[0, 1, 3]] * 3
    os.close(members[0]._lock)
    found = _in_threads([lambda each=each: each.meet(2, [0, 1, 3]) for each in left[1:]])
    assert found == [[1, 3]] * 2


def test_a_process_that_waits_is_taken_in_by_the_next_generation(tmp_path: Path) -> None:
    members = [Membership(tmp_path, number) for number in range(2)]
    newcomer = Membership(tmp_path, 3)
    admitted = threading.Event()

    def admit(each: Membership) -> list[int]:
        while not each.waiting():
            admitted.wait(0.01)
        return each.meet(1, [0, 1])

    found = _in_threads([newcomer.join, *[lambda each=each: admit(each) for each in members]])
    assert found[0] == (1, [0, 1, 3])
    assert found[1:] == [[0, 1, 3]] * 2
    assert members[0].waiting() == []


def test_a_process_that_is_only_stopped_is_left_out_and_told_so(tmp_path: Path) -> None:
    here, stopped = (Membership(tmp_path, number, timeout=0.2) for number in range(2))
    assert here.meet(1, [0, 1]) == [0]
    with pytest.raises(wf.ProcessError, match="went on without this process"):
        stopped.meet(1, [0, 1])


@pytest.mark.parametrize(
    ("halves", "chosen"), [([[0], [1, 2]], [1, 2]), ([[0, 3], [1, 2]], [0, 3])], ids=str
)
def test_of_two_halves_that_do_not_reach_each_other_all_choose_the_same(
    halves: list[list[int]], chosen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger one, and of two alike the one with the lowest rank, which has the quorum."""
    numbers = sorted(number for half in halves for number in half)
    half_of = {number: half for half in halves for number in half}
    monkeypatch.setattr(membership, "reached_numbers", lambda addresses, own: half_of[own])
    members = [Membership(tmp_path, number, timeout=5.0) for number in numbers]
    found = _in_threads([lambda each=each: each.meet(1, numbers) for each in members])
    for number, result in zip(numbers, found, strict=True):
        if number in chosen:
            assert result == chosen
        else:
            assert isinstance(result, LeftOut)
            assert f"rank: {number}" in result.got
    assert has_quorum(numbers, chosen)


def test_a_door_that_is_not_opened_is_not_reached() -> None:
    doors = [Door("localhost", number) for number in range(3)]
    addresses = {number: door.address for number, door in enumerate(doors)}
    assert reached_numbers(addresses, 0) == [0, 1, 2]
    doors[1].close()
    addresses[2] = doors[0].address  # another one answers there
    assert reached_numbers(addresses, 0) == [0]


def test_a_process_does_not_wait_for_a_training_that_is_over(tmp_path: Path) -> None:
    Membership(tmp_path, 0).finish()
    with pytest.raises(wf.ProcessError, match="did not take this process in"):
        Membership(tmp_path, 1).join()


ELASTIC = (
    """
import os, signal, time
from weft import distributed
from weft.distributed.process_group import restarts

distributed.init("gloo", timeout=60)
"""
    + LINEAR_TRAINING
    + """
own = int(os.environ["WEFT_RANK"])

class Kill(wf.train.Callback):
    writes = False
    def on_step_begin(self, trainer):
        if own == 1 and trainer.step == 5 and not restarts():
            os.kill(os.getpid(), signal.SIGKILL)
        members = trainer.strategy.members
        while trainer.step == 9 and distributed.world_size() == 2 and not members.is_joining \\
                and not distributed.world().engine.generation.membership.waiting():
            time.sleep(0.05)  # until the process is back

trainer = wf.train.Trainer(
    model, "mse_loss", optimizer, strategy=os.environ["STRATEGY"], recover=True,
    callbacks=[Kill()], progress=False, seed=0, checkpoint_folder=os.environ["OUTPUT"] + "-run")
trainer.fit(loader, epochs=4)
members = trainer.strategy.members
assert members.ranks == [0, 2, 4] and distributed.world_size() == 3, members.ranks
assert trainer.step == 16
if own != 1:
    assert members.joined == [4] and [lost for lost, _ in members.losses] == [[1]]
np.save(f"{os.environ['OUTPUT']}-{own}.npy", model.weight.detach().numpy())
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data", "zero2"])
def test_a_killed_process_is_started_again_and_joins(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATEGY", strategy)
    pytest.importorskip("xoscar", reason="the engine gloo is not installed")
    monkeypatch.setenv("OUTPUT", str(tmp_path / "weight"))
    job = launch(tmp_path, ELASTIC, "--engine", "gloo", "--restarts", "1", processes=3)
    assert job.returncode == 0, job.stderr
    weights = [np.load(tmp_path / f"weight-{rank}.npy") for rank in range(3)]
    for weight in weights[1:]:
        np.testing.assert_array_equal(weight, weights[0])
    np.testing.assert_allclose(weights[0], _weight_of_one_process(), rtol=1e-5, atol=1e-6)


def _weight_of_one_process() -> np.ndarray:
    model, optimizer, loader = linear_training()
    trainer = wf.train.Trainer(model, "mse_loss", optimizer, progress=False, seed=0)
    trainer.fit(loader, epochs=4)
    weight: np.ndarray = model.weight.detach().numpy()
    return weight
