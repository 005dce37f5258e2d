"""Callbacks: what else happens while a model is trained, in hooks that are given the trainer.

A hook reads and changes the trainer: `trainer.epoch` and `step`, `loss` and `numbers` of the last
step, `row` of the epoch that ends (what is put there is logged), `model`, `optimizer`,
`stop(reason)`. What a callback must remember when a run is resumed, it returns from `state_dict`.

>>> import weft as wf
>>> class Shout(wf.train.Callback):
...     def on_epoch_end(self, trainer):
...         trainer.row["shout"] = trainer.row["loss"] * 100
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft as wf
from weft.train.names import unknown

__all__ = [
    "BestCheckpoint", "Callback", "EarlyStopping", "LambdaCallback", "LearningRateLogger",
    "ScheduleCallback",
]  # fmt: skip

HOOKS = (
    "on_fit_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end", "on_fit_end",
)  # fmt: skip


class Callback:
    """The hooks, each of which does nothing unless it is written anew.

    >>> import weft as wf
    >>> class Cheer(wf.train.Callback):
    ...     def on_epoch_end(self, trainer):
    ...         print(f"epoch {trainer.epoch} is done")
    >>> net = wf.nn.Linear(2, 1)
    >>> optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
    >>> trainer = wf.train.Trainer(
    ...     net, "mse_loss", optimizer, callbacks=[Cheer()], progress=False
    ... )
    >>> _ = trainer.fit((wf.ones((4, 2)), wf.ones((4, 1))), epochs=2)
    epoch 1 is done
    epoch 2 is done
    """

    writes = False
    """Whether it writes files or on the screen, which of several processes only the first does."""

    def on_fit_begin(self, trainer: Any) -> None:
        """Before the first epoch, after a checkpoint was read."""

    def on_epoch_begin(self, trainer: Any) -> None:
        """Before the first batch of an epoch."""

    def on_step_begin(self, trainer: Any) -> None:
        """Before each batch, which is `trainer.batch`."""

    def on_step_end(self, trainer: Any) -> None:
        """After each batch; `trainer.loss` and `trainer.numbers` tell of it."""

    def on_epoch_end(self, trainer: Any) -> None:
        """After the validation of an epoch; `trainer.row` is what will be logged."""

    def on_fit_end(self, trainer: Any) -> None:
        """At the end, also where it ends with an error."""

    def state_dict(self) -> dict[str, Any]:
        """What must be remembered: tensors, numbers, texts, lists and dictionaries of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class LambdaCallback(Callback):
    """Functions for some of the hooks.

    >>> import weft as wf
    >>> tell = wf.train.LambdaCallback(on_epoch_end=lambda trainer: print(trainer.row["loss"]))
    """

    def __init__(self, **hooks: Callable[[Any], None]) -> None:
        for name, function in hooks.items():
            if name not in HOOKS:
                raise unknown("train.LambdaCallback", "hook", name, HOOKS)
            setattr(self, name, function)


class Monitor(Callback):
    """What callbacks share that watch one number of the epochs for an improvement."""

    def __init__(
        self, monitor: str = "val_loss", *, min_delta: float = 0.0, mode: str = ""
    ) -> None:
        if mode not in ("", "min", "max"):
            raise wf.ArgumentError(
                f"train.{type(self).__name__}",
                "no such mode",
                expected="'min' where lower is better, 'max' where higher is, or nothing",
                got={"mode": mode},
                fix='mode="min"',
            )
        self.monitor, self.min_delta, self.mode = monitor, min_delta, mode
        self.best = math.nan
        self.best_epoch = 0

    def has_improved(self, trainer: Any) -> bool:
        """Whether the epoch's number is the best so far, which is then remembered."""
        if self.monitor not in trainer.row:
            raise unknown(f"train.{type(self).__name__}", "number", self.monitor, trainer.row)
        value = float(trainer.row[self.monitor])
        sign = -1.0 if self._higher_is_better(trainer) else 1.0
        first = math.isnan(self.best) and not math.isnan(value)
        if first or sign * value < sign * self.best - self.min_delta:
            self.best, self.best_epoch = value, trainer.epoch
            return True
        return False

    def _higher_is_better(self, trainer: Any) -> bool:
        if self.mode:
            return self.mode == "max"
        metrics = {metric.name: metric.higher_is_better for metric in trainer.metrics}
        return bool(metrics.get(self.monitor.removeprefix("val_"), False))

    def state_dict(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember the best so far."""
        self.best, self.best_epoch = state["best"], state["best_epoch"]


class EarlyStopping(Monitor):
    """Stop when a number was not improved by more than `min_delta` for `patience` epochs.

    With `restore_best`, the model ends with the weights of its best epoch.

    >>> import weft as wf
    >>> stopping = wf.train.EarlyStopping("val_loss", patience=5)
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 3,
        *,
        min_delta: float = 0.0,
        mode: str = "",
        restore_best: bool = False,
    ) -> None:
        super().__init__(monitor, min_delta=min_delta, mode=mode)
        self.patience, self.restore_best = patience, restore_best
        self.waited = 0
        self.weights: dict[str, wf.Tensor] = {}

    def on_epoch_end(self, trainer: Any) -> None:
        """Look whether the epoch was better."""
        if self.has_improved(trainer):
            self.waited = 0
            if self.restore_best:
                state = trainer.model.state_dict()
                self.weights = {name: tensor.detach() for name, tensor in state.items()}
            return
        self.waited += 1
        if self.waited >= self.patience:
            trainer.stop(f"{self.monitor} was best in epoch {self.best_epoch}: {self.best:.6g}")

    def on_fit_end(self, trainer: Any) -> None:
        """Give the best weights back."""
        if self.weights:
            trainer.model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """The best so far, and how long ago that was."""
        return {**super().state_dict(), "waited": self.waited, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember the best so far."""
        super().load_state_dict(state)
        self.waited, self.weights = state["waited"], state["weights"]


class BestCheckpoint(Monitor):
    """Keep a checkpoint of the best epoch, called `best-...`, in the trainer's or another folder.

    >>> import weft as wf
    >>> best = wf.train.BestCheckpoint("val_accuracy")
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        folder: str = "",
        *,
        min_delta: float = 0.0,
        mode: str = "",
    ) -> None:
        super().__init__(monitor, min_delta=min_delta, mode=mode)
        self.folder = folder

    def on_fit_begin(self, trainer: Any) -> None:
        """Refuse to begin without a folder to save to."""
        if not self.folder and trainer.checkpoint_folder is None:
            raise wf.ArgumentError(
                "train.BestCheckpoint",
                "there is no folder for it",
                expected="a folder here or a checkpoint_folder of the trainer",
                got={"folder": self.folder},
                fix='wf.train.BestCheckpoint("val_loss", folder="run")',
            )

    def on_epoch_end(self, trainer: Any) -> None:
        """Save if the epoch was better."""
        if self.has_improved(trainer):
            trainer.save_checkpoint(self.folder or None, kind="best", keep=1)


class ScheduleCallback(Callback):
    """Set the learning rate by a function of the step or of the epoch, both counted from 0.

    >>> import weft as wf
    >>> halving = wf.train.ScheduleCallback(lambda epoch: 0.1 * 0.5**epoch, per="epoch")
    """

    def __init__(self, rate: Callable[[int], float], per: str = "step") -> None:
        if per not in ("step", "epoch"):
            raise unknown("train.ScheduleCallback", "unit", per, ("step", "epoch"))
        self.rate, self.per = rate, per

    def on_epoch_begin(self, trainer: Any) -> None:
        """Set the epoch's rate."""
        if self.per == "epoch":
            trainer.optimizer.lr = self.rate(trainer.epoch)

    def on_step_begin(self, trainer: Any) -> None:
        """Set the step's rate."""
        if self.per == "step":
            trainer.optimizer.lr = self.rate(trainer.step)


class LearningRateLogger(Callback):
    """Remember the learning rate of each step, in `rates`, and put the last into the epoch's row.

    >>> import weft as wf
    >>> wf.train.LearningRateLogger().rates
    []
    """

    def __init__(self) -> None:
        self.rates: list[tuple[int, float]] = []

    def on_step_end(self, trainer: Any) -> None:
        """Remember the step's rate."""
        self.rates.append((trainer.step, trainer.numbers["lr"]))

    def on_epoch_end(self, trainer: Any) -> None:
        """Log the last rate."""
        trainer.row["lr"] = trainer.numbers["lr"]

    def state_dict(self) -> dict[str, Any]:
        """The rates so far."""
        return {"rates": [list(pair) for pair in self.rates]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember the rates so far."""
        self.rates = [(int(step), float(rate)) for step, rate in state["rates"]]
