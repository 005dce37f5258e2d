"""Going on after the loss of a process: the others agree on the step and take over its part.

    recovery = wf.distributed.Recovery(model, optimizer, loader, epochs=3)
    for batch in recovery:
        with recovery.step():
            train_step(model, optimizer, batch)

Where a process is lost in a step, those that are left form a new group, take the state of one that
came furthest, and go on with the batch after that state's last one. Global batches stay the same:
each process gets a larger part. At most the step under way is done again.
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
from weft.distributed.process_group import gather_objects, replace_world, world
from weft.optim.states import named_tensors

__all__ = ["Recovery", "has_quorum"]

WENT_ON = "went-on-"
"""Files in the job's folder: the ranks that the others went on without."""


def has_quorum(before: Sequence[int], left: Sequence[int]) -> bool:
    """Whether those that are left may go on: the majority, or half of them with the lowest rank.

    So of two halves of a group that was cut in two, never both go on.

    >>> has_quorum([0, 1, 2, 3], [1, 2, 3]), has_quorum([0, 1], [1]), has_quorum([0, 1], [0])
    (True, False, True)
    """
    twice = 2 * len(left)
    return twice > len(before) or (twice == len(before) and min(before) in left)


class Recovery:
    """The batches of a training that goes on after losses.

    `losses` holds, for each recovery, the ranks that were lost and the seconds it took.
    """

    def __init__(self, model: Any, optimizer: Any, loader: Any, epochs: int = 1) -> None:
        group = world()
        if optimizer.sharing is None or optimizer.sharing.zero:
            raise wf.UnsupportedError(
                "distributed.Recovery",
                "a lost process had a part of the state that no other has",
                expected="an optimiser shared by data_parallel(optimizer) with zero=0",
                got={"sharing": optimizer.sharing},
                fix="go on from a checkpoint: Trainer(checkpoint_folder=...).fit(..., resume=True)",
            )
        if group.size > 1 and not hasattr(group.engine, "survivors"):
            raise wf.UnsupportedError(
                "distributed.Recovery",
                f"groups of {group.engine.name} are not rebuilt after a loss",
                expected="processes joined by Open MPI: weft launch train.py",
                got={"engine": group.engine.name},
                fix='wf.distributed.init("mpi")',
            )
        self.model, self.optimizer, self.loader, self.epochs = model, optimizer, loader, epochs
        self.steps = 0
        self.members = list(range(group.size))
        """The ranks at the start of those that are left."""
        self.losses: list[tuple[list[int], float]] = []
        self._is_renewed = False
        loader.share(group.rank, group.size)
        self._place: tuple[int, int] = loader.position

    def __iter__(self) -> Iterator[Any]:
        while self.loader.position[0] < self.epochs:
            for batch in self.loader:
                yield batch
                if self._is_renewed:  # the loader stands elsewhere now, and has another part
                    break
            self._is_renewed = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of training; a loss inside ends it, and the next batch is the right one."""
        try:
            yield
        except wf.ProcessError as error:
            if "lost" not in error.problem:
                raise
            self._recover(error)
        else:
            self.steps, self._place = self.steps + 1, self.loader.position

    def _recover(self, error: wf.ProcessError) -> None:
        """Shrink, check the quorum, agree on the step, and take the newest state."""
        begin = time.monotonic()
        old = world()
        left = Group(old.engine.survivors(), "world", old.watch, old.checks)  # type: ignore[attr-defined]
        replace_world(left, {"data": left.size})
        own = self.members[old.rank]
        ranks = [int(rank) for rank in left.all_gather(np.array(own))]
        lost = [rank for rank in self.members if rank not in ranks]
        if not has_quorum(self.members, ranks):
            raise wf.ProcessError(
                "distributed.Recovery",
                "too few processes are left to go on",
                expected=f"more than half of {len(self.members)}, or half with the lowest rank",
                got={"left": ranks, "lost": lost},
                fix="start again from the last checkpoint",
            ) from error
        self.members = ranks
        self._take_newest_state(left)
        self.loader.share(left.rank, left.size)
        self.optimizer.sharing = replace(self.optimizer.sharing, size=left.size)
        self._is_renewed = True
        self.losses.append((lost, time.monotonic() - begin))
        _note_losses(lost)

    def _take_newest_state(self, left: Group) -> None:
        """Make model, optimiser, step and place in the data those of who came furthest."""
        steps = [int(step) for step in left.all_gather(np.array(self.steps))]
        source = steps.index(max(steps))
        with wf.no_grad():
            for handle in self._handles():
                array = np.require(handle.detach().numpy(), requirements="C")
                handle.copy_(wf.tensor(left.broadcast(array, source)))
        self.optimizer.zero_grad()  # of the step that was not finished
        places = gather_objects(self._place)
        self.steps, self._place = max(steps), places[source]
        self.loader.seek(*self._place)

    def _handles(self) -> list[wf.Tensor]:
        buffers = [tensor for _, tensor in self.model.named_buffers()]
        kept = [tensor for _, tensor in named_tensors(self.optimizer)]
        return [*kept, *self.model.parameters(), *buffers]


def _note_losses(lost: Sequence[int]) -> None:
    """Tell the launcher which processes the others went on without."""
    launch = find_launch(os.environ)
    if launch is not None and launch.folder:
        for rank in lost:
            (Path(launch.folder) / f"{WENT_ON}{rank}").touch()
