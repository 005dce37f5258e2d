"""A trainer that goes on after the loss of a process: `Trainer(strategy="data", recover=True)`.

Those that are left form a new group. Where each has all of the state, they take that of one that
came furthest, and go on with the batch after its last update; global batches stay the same. What
only the lost process had counted for the training metrics of the epoch is left out of them; losses
are those of all. With ZeRO, divided experts, meshes and pipelines a lost process had a part of the
state, so all go on from the last checkpoint, as the mesh that there was with fewer places along the
axis "data".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import weft as wf
from weft.distributed.parameters import is_part
from weft.distributed.regrouping import (
    Members,
    is_loss,
    joining_error,
    no_checkpoint,
    take_newest,
)
from weft.train import resuming
from weft.train.mesh_strategy import MeshStrategy
from weft.train.pipeline_strategy import PipelineStrategy
from weft.train.strategies import DataStrategy, SplitStrategy, Strategy

__all__ = ["RecoveringStrategy", "recovering_strategy"]


class Place(NamedTuple):
    """Where a training stands after an update, as far as it is not in tensors."""

    progress: int
    """A number that grows with every update, and with every epoch that is over."""
    counts: dict[str, Any]
    rows: list[dict[str, Any]]
    schedule: Any
    callbacks: dict[str, Any]
    random: tuple[Any, ...]
    loader_epoch: int


COUNTS = ("epoch", "step", "batches", "loss_sum", "loss_count", "stopped", "total_epochs")
"""What a trainer counts and remembers in plain attributes."""


class MembersStrategy(Strategy):
    """What goes on after losses has beside what it is: `members` says who is left."""

    members: Members

    @classmethod
    def take_over(cls, strategy: Strategy, members: Members) -> Self:
        """A strategy that has shared a trainer, among these members."""
        self = cls.__new__(cls)
        vars(self).update(vars(strategy))
        self.members = members
        return self

    def run_step(self, trainer: Any, batch: Any, *settings: Any) -> tuple[wf.Tensor, Any, Any]:
        """See `Strategy`; between updates, processes are taken in that wait to join."""
        is_first = trainer.waiting == trainer.own_rows(batch)
        if is_first and self._takes_in() and self.members.has_waiting():
            raise joining_error()
        return super().run_step(trainer, batch, *settings)

    def _takes_in(self) -> bool:
        """Whether processes may join now, which all processes know alike."""
        return True

    @property
    def is_joining(self) -> bool:
        """See `Strategy`."""
        return self.members.is_joining

    def end_fit(self, trainer: Any) -> None:
        """See `Strategy`."""
        super().end_fit(trainer)
        self.members.finish()

    def recovers_from(self, error: BaseException, trainer: Any, loader: Any) -> bool:
        """See `Strategy`."""
        if not is_loss(error):
            return False
        assert isinstance(error, wf.ProcessError)
        if self.members.is_joining:
            self.members.join(lambda: self._go_on(trainer, loader))
        else:
            self.members.recover(error, lambda: self._go_on(trainer, loader))
        for callback in trainer.choose_callbacks():
            callback.on_fit_begin(trainer)
        return True

    def _go_on(self, trainer: Any, loader: Any) -> None:
        """Take the state and the place in the data that the training goes on from."""
        raise NotImplementedError


class RecoveringStrategy(MembersStrategy, DataStrategy):
    """Data parallel training of which each process has all state, that goes on after losses."""

    _place: Place | None = None
    _loader_epoch = 0
    _metric_states: Sequence[Any] = ()

    def begin_epoch(self, trainer: Any, loader: Any) -> None:
        """See `Strategy`."""
        self._loader_epoch = loader.position[0] if hasattr(loader, "position") else 0
        if self._place is None:
            self.end_update(trainer)
        if self.members.is_joining:
            assert self._place is not None
            self._place = self._place._replace(progress=-1)
            raise joining_error()

    def end_update(self, trainer: Any) -> None:
        """See `Strategy`."""
        callbacks = {name: each.state_dict() for name, each in resuming.named_callbacks(trainer)}
        self._place = Place(
            trainer.step * EPOCHS + trainer.epoch,
            {name: getattr(trainer, name) for name in COUNTS},
            list(trainer.history.rows),
            resuming.state_or_none(trainer.schedule),
            callbacks,
            tuple(wf.random.get_state()),
            self._loader_epoch + (trainer.batches == 0 and trainer.step > 0),
        )
        self._metric_states = [copy.deepcopy(metric.state) for metric in trainer.metrics]

    def end_fit(self, trainer: Any) -> None:
        """See `Strategy`."""
        self._place = None
        super().end_fit(trainer)

    def _go_on(self, trainer: Any, loader: Any) -> None:
        """Take the newest state and place in the data, and this process's part of the batches."""
        assert self._place is not None
        handles = wf.tree.leaves(trainer.called_state())
        tensors = [handle for handle in handles if isinstance(handle, wf.Tensor)]
        _, place = take_newest(tensors, self._place.progress, self._place)
        self._place = place
        self._put_back(trainer, place)
        self.find_place()
        optimizer = trainer.optimizer
        optimizer.zero_grad()  # of the update that was not finished
        optimizer.sharing = replace(optimizer.sharing, size=self.size)
        _renew_programs(trainer)
        if hasattr(loader, "share"):
            loader.seek(place.loader_epoch, trainer.batches)
            trainer.loader_restored = True
        super().share_loader(loader)

    def _put_back(self, trainer: Any, place: Place) -> None:
        """Set what the trainer counts to a place."""
        for name, value in place.counts.items():
            setattr(trainer, name, value)
        trainer.history.rows[:] = place.rows
        trainer.waiting = 0
        if place.schedule is not None:
            trainer.schedule.load_state_dict(place.schedule)
        for name, callback in resuming.named_callbacks(trainer):
            if name in place.callbacks:
                callback.load_state_dict(place.callbacks[name])
        for metric, state in zip(trainer.metrics, self._metric_states, strict=True):
            metric.state = copy.deepcopy(state)
        wf.random.set_state(wf.random.GeneratorState(*place.random))


class RestoringStrategy(MembersStrategy):
    """Training with divided state, which goes on from the last checkpoint.

    Processes that come back are taken in where one was just written, so that nothing is redone.
    """

    _is_saved = False

    def begin_epoch(self, trainer: Any, loader: Any) -> None:
        """See `Strategy`; the first epoch begins with a checkpoint."""
        if self.is_joining:
            raise joining_error()
        if wf.distributed.broadcast_object(trainer.checkpoint_folder.latest()) is None:
            trainer.save_checkpoint(loader=loader)

    def write_once(self, write: Any) -> Any:
        """See `Strategy`."""
        result = super().write_once(write)
        self._is_saved = True
        return result

    def _takes_in(self) -> bool:
        is_saved, self._is_saved = self._is_saved, False
        return is_saved

    def _go_on(self, trainer: Any, loader: Any) -> None:
        """Take the state of the last checkpoint, and this process's part of the batches."""
        folder = trainer.checkpoint_folder
        told = wf.distributed.broadcast_object((folder.latest(), trainer.total_epochs))
        path, trainer.total_epochs = told
        if path is None:
            raise no_checkpoint("train.Trainer", folder.path)
        _renew_programs(trainer)
        self.begin_anew(trainer)
        resuming.go_on_from(trainer, loader, path)
        trainer.optimizer.zero_grad()  # of the update that was not finished
        self.share_loader(loader)
        self._is_saved = True


class RestoringData(RestoringStrategy, DataStrategy):
    """Data parallel training with parts of state, or of experts."""


class RestoringSplit(RestoringStrategy, SplitStrategy):
    """The same, where parameters are split as well."""


class RestoringMesh(RestoringStrategy, MeshStrategy):
    """A step that is divided over a mesh."""


class RestoringPipeline(RestoringStrategy, PipelineStrategy):
    """Stages of a model."""


RESTORING: dict[type[Strategy], type[MembersStrategy]] = {
    DataStrategy: RestoringData,
    SplitStrategy: RestoringSplit,
    MeshStrategy: RestoringMesh,
    PipelineStrategy: RestoringPipeline,
}
"""How strategies go on from a checkpoint."""


def recovering_strategy(strategy: Strategy, trainer: Any) -> Strategy:
    """The strategy of a trainer, which goes on after losses."""
    kind = type(strategy)
    if kind not in RESTORING:
        raise wf.UnsupportedError(
            "train.Trainer",
            "this strategy does not go on after the loss of a process",
            expected='recover=True with strategy="data", "zero1", "zero2" or "zero3", a '
            "MeshStrategy or a PipelineStrategy",
            got={"strategy": kind.__name__},
            fix='strategy="data", or checkpoint_folder=... and fit(..., resume=True)',
        )
    is_whole = kind is DataStrategy and not _has_parts(trainer.optimizer)
    if not is_whole and trainer.checkpoint_folder is None:
        raise wf.UnsupportedError(
            "train.Trainer",
            "a lost process had a part of the state that no other has",
            expected="checkpoints to go on from, with recover=True and divided state",
            got={"strategy": kind.__name__, "checkpoint_folder": None},
            fix='checkpoint_folder="run", checkpoint_every=1000; or strategy="data"',
        )
    members = Members("train.Trainer", trainer.optimizer, has_checkpoints=not is_whole)
    return (RecoveringStrategy if is_whole else RESTORING[kind]).take_over(strategy, members)


def _has_parts(optimizer: Any) -> bool:
    """Whether processes have parts of what an optimiser trains and keeps."""
    return optimizer.sharing.zero > 0 or any(map(is_part, optimizer.parameters))


EPOCHS = 1 << 20
"""More than the epochs of any training."""


def _renew_programs(trainer: Any) -> None:
    """Forget programs for a group of another size; sizes of batches are chosen by as before."""
    before = trainer.train_programs, trainer.evaluation_programs
    trainer.compile_programs(before[0].compiled)
    trainer.train_programs.first = before[0].first
    trainer.evaluation_programs.first = before[1].first
