"""Going on after the loss of a process: the others agree on the step and take over its part.

    recovery = wf.distributed.Recovery(model, optimizer, loader, epochs=3)
    for batch in recovery:
        with recovery.step():
            train_step(model, optimizer, batch)

Where a process is lost in a step, those that are left form a new group, take the state of one that
came furthest, and go on with the batch after that state's last one. Global batches stay the same:
each process gets a larger part. At most the step under way is done again. `Trainer(recover=True)`
does the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.distributed.environment import find_launch
from weft.distributed.group import Group
from weft.distributed.membership import LeftOut
from weft.distributed.process_group import (
    gather_objects,
    join_world,
    replace_world,
    restarts,
    world,
)
from weft.optim.states import named_tensors

__all__ = ["Members", "Recovery", "has_quorum", "is_loss"]

WENT_ON = "went-on-"
"""Files in the job's folder: the ranks that the others went on without."""
ATTEMPTS = 8
"""How many losses in a row, each while recovering from the one before, are recovered from."""
MEETING = 60.0
"""Seconds that a meeting may take longer than another operation: for processes that are stopped,
and for new connections."""


def has_quorum(before: Sequence[int], left: Sequence[int]) -> bool:
    """Whether those that are left may go on: the majority, or half of them with the lowest rank.

    So of two halves of a group that was cut in two, never both go on.

    >>> has_quorum([0, 1, 2, 3], [1, 2, 3]), has_quorum([0, 1], [1]), has_quorum([0, 1], [0])
    (True, False, True)
    """
    twice = 2 * len(left)
    return twice > len(before) or (twice == len(before) and min(before) in left)


JOINS = "a process joins the group"


def is_loss(error: BaseException) -> bool:
    """Whether an error says that a process is gone, or joins, so that a new group may go on."""
    if not isinstance(error, wf.ProcessError):
        return False
    return "lost" in error.problem or error.problem == JOINS


def joining_error() -> wf.ProcessError:
    """What interrupts a training to take a process in."""
    return wf.ProcessError(
        "distributed.Recovery",
        JOINS,
        expected="a training that goes on with a new group",
        got={"members": world().size},
        fix="nothing: it goes on",
    )


class Members:
    """The processes that are left of those at the start, and how they go on after a loss.

    `ranks` are their ranks at the start, `own` that of this one; `losses` holds, for each
    recovery, the ranks that were lost and the seconds it took.
    """

    def __init__(self, op: str, optimizer: Any) -> None:
        group = world()
        if optimizer.sharing is None or optimizer.sharing.zero:
            raise wf.UnsupportedError(
                op,
                "a lost process had a part of the state that no other has",
                expected="an optimiser shared by data_parallel(optimizer) with zero=0",
                got={"sharing": optimizer.sharing},
                fix="go on from a checkpoint: Trainer(checkpoint_folder=...).fit(..., resume=True)",
            )
        if group.size > 1 and not hasattr(group.engine, "survivors"):
            raise wf.UnsupportedError(
                op,
                f"groups of {group.engine.name} are not rebuilt after a loss",
                expected="processes joined by Open MPI or gloo: weft launch train.py",
                got={"engine": group.engine.name},
                fix='wf.distributed.init("mpi")',
            )
        self.is_joining = restarts() > 0
        """Whether this process was started again, and the others have not taken it in yet."""
        self.own, self.ranks = group.rank, list(range(group.size))
        self.joined: list[int] = []
        """The numbers of processes that have joined; they go on from those of the start."""
        self.losses: list[tuple[list[int], float]] = []

    def recover(self, error: wf.ProcessError, go_on: Any) -> None:
        """Form the group of those that are left, and have `go_on()` share its state.

        Where another process is lost meanwhile, it is done again.
        """
        begin, lost, first = time.monotonic(), [], error
        for _ in range(ATTEMPTS):
            try:
                lost += self._regroup(first)
                go_on()
            except wf.ProcessError as other:
                if not is_loss(other):
                    raise
                error = other
            else:
                break
        else:
            raise error
        if lost:
            self.losses.append((lost, time.monotonic() - begin))
            _note_losses(lost)

    def join(self, go_on: Any) -> None:
        """Be taken in by the others, and have `go_on()` take their state."""
        group = join_world()
        self.own = group.engine.generation.membership.own  # type: ignore[attr-defined]
        self.is_joining = False
        self._take_ranks(group)
        self.joined = []
        go_on()

    def has_waiting(self) -> bool:
        """Whether a process waits to join; all processes ask at once."""
        group = world()
        generation = getattr(group.engine, "generation", None)
        if generation is None:
            return False
        is_waiting = group.rank == 0 and bool(generation.membership.waiting())
        return bool(group.broadcast(np.array(is_waiting), 0))

    def finish(self) -> None:
        """Tell processes that wait to join that the training is over."""
        generation = getattr(world().engine, "generation", None)
        if generation is not None:
            generation.membership.finish()

    def _take_ranks(self, group: Group) -> list[int]:
        """Make a group the world; the members of the one before that are not in it."""
        replace_world(group, {"data": group.size})
        ranks = [int(rank) for rank in group.all_gather(np.array(self.own))]
        lost = [rank for rank in self.ranks if rank not in ranks]
        self.joined += [rank for rank in ranks if rank not in self.ranks and rank != self.own]
        self.ranks = ranks
        launch = find_launch(os.environ)
        group.members = ranks if launch is None else [rank % launch.size for rank in ranks]
        return lost

    def _regroup(self, error: wf.ProcessError) -> list[int]:
        """Make the world that of the processes that are left; the ranks that are not."""
        old, before = world(), self.ranks
        engine: Any = old.engine
        last = f"rank {self.own} was last in {error.op} at {error.at}"
        try:
            with old.watch.during("the meeting of those that are left", extra=MEETING):
                survivors = engine.survivors()
        except LeftOut as left_out:
            _note_losses([self.own])  # the launcher lets the others go on
            raise wf.ProcessError(
                "distributed.Recovery",
                left_out.problem,
                expected=left_out.expected,
                got={"rank": self.own},
                note=f"{left_out.got}; {last}",
                fix=left_out.fix,
                at=error.at,
            ) from error
        lost = self._take_ranks(Group(survivors, "world", old.watch, old.checks, ()))
        if not has_quorum(before, [rank for rank in self.ranks if rank in before]):
            raise wf.ProcessError(
                "distributed.Recovery",
                "too few processes are left to go on",
                expected=f"more than half of {len(before)}, or half with the lowest rank",
                got={"left": self.ranks, "lost": lost},
                note=last,
                fix="start again from the last checkpoint",
                at=error.at,
            ) from error
        return lost


def take_newest(handles: Sequence[wf.Tensor], step: int, facts: Any) -> tuple[int, Any]:
    """Make tensors those of the process that came furthest; its step, and what it knows beside.

    Nothing is written before all has arrived: where the source is lost meanwhile, each process
    still has a state that belongs to one step.
    """
    group = world()
    steps = [int(each) for each in group.all_gather(np.array(step))]
    source = steps.index(max(steps))
    arrays = [
        group.broadcast(np.require(handle.detach().numpy(), requirements="C"), source)
        for handle in handles
    ]
    known = gather_objects(facts)[source]
    with wf.no_grad():
        for handle, array in zip(handles, arrays, strict=True):
            handle.copy_(wf.tensor(array))
    return steps[source], known


def training_handles(model: Any, optimizer: Any) -> list[wf.Tensor]:
    """The tensors that training goes on from."""
    buffers = [tensor for _, tensor in model.named_buffers()]
    kept = [tensor for _, tensor in named_tensors(optimizer)]
    return [*kept, *model.parameters(), *buffers]


def _note_losses(lost: Sequence[int]) -> None:
    """Tell the launcher which processes the others went on without."""
    launch = find_launch(os.environ)
    if launch is not None and launch.folder:
        for rank in lost:
            (Path(launch.folder) / f"{WENT_ON}{rank % launch.size}").touch()


class Recovery:
    """The batches of a training that goes on after losses.

    `losses` holds, for each recovery, the ranks that were lost and the seconds it took.
    """

    def __init__(self, model: Any, optimizer: Any, loader: Any, epochs: int = 1) -> None:
        self._members = Members("distributed.Recovery", optimizer)
        self.model, self.optimizer, self.loader, self.epochs = model, optimizer, loader, epochs
        self.steps = 0
        self._is_renewed = False
        self._is_new = self._members.is_joining
        loader.share(world().rank, world().size)
        self._place: tuple[int, int] = loader.position

    @property
    def members(self) -> list[int]:
        """The ranks at the start of those that are left."""
        return self._members.ranks

    @property
    def losses(self) -> list[tuple[list[int], float]]:
        """For each recovery, the ranks that were lost and the seconds it took."""
        return self._members.losses

    def __iter__(self) -> Iterator[Any]:
        if self._members.is_joining:
            self._members.join(self._go_on)
        while self.loader.position[0] < self.epochs:
            for batch in self.loader:
                if self._members.has_waiting():
                    self._members.recover(joining_error(), self._go_on)
                else:
                    yield batch
                if self._is_renewed:  # the loader stands elsewhere now, and has another part
                    break
            self._is_renewed = False
        self._members.finish()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of training; a loss inside ends it, and the next batch is the right one."""
        try:
            yield
        except wf.ProcessError as error:
            if not is_loss(error):
                raise
            self._members.recover(error, self._go_on)
        else:
            self.steps, self._place = self.steps + 1, self.loader.position

    def _go_on(self) -> None:
        """Take the newest state and place in the data, and this process's part of the batches."""
        handles = training_handles(self.model, self.optimizer)
        own_steps = -1 if self._is_new else self.steps
        self.steps, self._place = take_newest(handles, own_steps, self._place)
        self._is_new = False
        self.optimizer.zero_grad()  # of the step that was not finished
        self.loader.seek(*self._place)
        self.loader.share(world().rank, world().size)
        self.optimizer.sharing = replace(self.optimizer.sharing, size=world().size)
        self._is_renewed = True
