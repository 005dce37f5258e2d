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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import weft as wf
from weft.collectives import axis_index, axis_size
from weft.data.dataset import check_count
from weft.distributed.checkpoints import ShardedCheckpoints
from weft.distributed.loaders import share_loader
from weft.distributed.process_group import broadcast_object
from weft.distributed.regrouping import (
    Members,
    is_loss,
    joining_error,
    no_checkpoint,
    take_newest,
    training_handles,
)
from weft.distributed.sharing import split_anew

__all__ = ["Recovery"]


class Recovery:
    """The batches of a training that goes on after losses.

    `losses` holds, for each recovery, the ranks that were lost and the seconds it took. Processes
    that have parts of the state (ZeRO) need `checkpoints`, which are written after every so many
    steps: those that are left then go on from the last one, and the training begins with it.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loader: Any,
        epochs: int = 1,
        *,
        checkpoints: ShardedCheckpoints | None = None,
        every: int = 100,
    ) -> None:
        has_checkpoints = checkpoints is not None
        _check_optimizer(optimizer)
        self._members = Members("distributed.Recovery", optimizer, has_checkpoints)
        self.model, self.optimizer, self.loader, self.epochs = model, optimizer, loader, epochs
        self.checkpoints = checkpoints
        self.every = check_count("distributed.Recovery", "every", every)
        self.steps = 0
        self._is_renewed = False
        self._is_new = self._members.is_joining
        self._is_saved = not has_checkpoints
        """Whether what others would go on from is what this process has."""
        share_loader(loader, optimizer.sharing.mesh_axis)
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
        elif self.checkpoints is not None:
            self._begin(self.checkpoints)
        while self.loader.position[0] < self.epochs or not self._is_written():
            for batch in self.loader:
                if self._is_saved and self._members.has_waiting():
                    self._take_in()
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
            self.steps, self._place = self.steps + 1, self.loader.position
            if self.checkpoints is not None:
                self._is_saved = self.steps % self.every == 0
                if self._is_saved:
                    self._save(self.checkpoints)
        except wf.ProcessError as error:
            if not is_loss(error):
                raise
            self._members.recover(error, self._go_on)

    def _begin(self, checkpoints: ShardedCheckpoints) -> None:
        """Go on from the last checkpoint, or write the first one."""
        if self._restore(checkpoints):
            self.loader.seek(*self._place)
        else:
            self._save(checkpoints)

    def _is_written(self) -> bool:
        """Whether the last checkpoint is there; where a process is lost meanwhile, it is redone."""
        try:
            if self.checkpoints is not None:
                self.checkpoints.settle()
        except wf.ProcessError as error:
            if not is_loss(error):
                raise
            self._members.recover(error, self._go_on)
            return False
        return True

    def _take_in(self) -> None:
        """Go on with processes that wait to join."""
        if self._is_written():
            self._members.recover(joining_error(), self._go_on)

    def _save(self, checkpoints: ShardedCheckpoints) -> None:
        """Write a checkpoint beside the next steps."""
        checkpoints.settle()
        key, counter = wf.random.get_state()
        facts = {"place": self._place, "random": [key.tolist(), counter.tolist()]}
        checkpoints.save(self.steps, self.model, self.optimizer, facts)

    def _go_on(self) -> None:
        """Take the newest state and place in the data, and this process's part of the batches."""
        if self.checkpoints is None:
            self._take_state()
        elif not self._restore(self.checkpoints):
            raise no_checkpoint("distributed.Recovery", self.checkpoints.path)
        self._is_new = False
        self.optimizer.zero_grad()  # of the step that was not finished
        self.loader.seek(*self._place)
        self._share_loader()
        self._is_renewed = True

    def _share_loader(self) -> None:
        """Take this process's part of the batches, along the axis that gradients are shared on."""
        axis = self.optimizer.sharing.mesh_axis
        self.loader.share(int(axis_index(axis).item()), axis_size(axis))

    def _take_state(self) -> None:
        """Take the state of the process that came furthest."""
        handles = training_handles(self.model, self.optimizer)
        own_steps = -1 if self._is_new else self.steps
        self.steps, self._place = take_newest(handles, own_steps, self._place)
        sharing = self.optimizer.sharing
        self.optimizer.sharing = replace(sharing, size=axis_size(sharing.mesh_axis))

    def _restore(self, checkpoints: ShardedCheckpoints) -> bool:
        """Take the state of the last checkpoint; whether there is one."""
        checkpoints.give_up()
        path = broadcast_object(checkpoints.latest())
        if path is None:
            return False
        split_anew(self.model, self.optimizer)
        facts = checkpoints.load(self.model, self.optimizer, path)
        assert facts is not None
        first, second = facts["place"]
        self.steps, self._place, self._is_saved = facts["step"], (first, second), True
        key, counter = facts["random"]
        state = wf.tensor(key, dtype="uint32"), wf.tensor(counter, dtype="uint64")
        wf.random.set_state(wf.random.GeneratorState(*state))
        return True


def _check_optimizer(optimizer: Any) -> None:
    """Refuse an optimiser that no sharing tells of, and one of a pipeline's stages."""
    sharing = optimizer.sharing
    if sharing is None or sharing.stage_axis is not None:
        raise wf.UnsupportedError(
            "distributed.Recovery",
            "processes with other stages cannot take over from each other in a loop of one's own"
            if sharing is not None
            else "the optimiser is not shared with other processes",
            expected="an optimiser shared by data_parallel(optimizer)",
            got={"sharing": sharing},
            fix="Trainer(..., strategy=PipelineStrategy(...), recover=True)"
            if sharing is not None
            else "optimizer = wf.distributed.data_parallel(optimizer)",
        )
