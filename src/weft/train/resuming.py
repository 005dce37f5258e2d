"""A trainer's state in a checkpoint, and a trainer that goes on from one.

Everything that the next step depends on is in it: weights, the optimiser's state, schedule and
averages, the random generator, where the data stand, what was counted in the epoch, the sizes that
programs were chosen by, and what callbacks remember.

>>> import weft as wf
>>> from weft.train.resuming import state_of
>>> model = wf.nn.Linear(2, 1)
>>> trainer = wf.train.Trainer(model, None, wf.optim.SGD(model.parameters(), lr=0.1))
>>> sorted(state_of(trainer, None))[:4]
['callbacks', 'ema', 'loader', 'loss']
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.train.batches import batches_of
from weft.train.checkpoints import Checkpoint, CheckpointError, CheckpointFolder
from weft.train.history import History
from weft.train.packing import pack, unpack

__all__ = ["chosen_folder", "epoch_batches", "go_on_from", "load", "named_callbacks",
           "refuse_used_folder", "resume", "save", "state_of", "state_or_none"]  # fmt: skip


def save(
    trainer: Any,
    folder: Any = None,
    kind: str = "step",
    keep: int | None = None,
    loader: Any = None,
) -> Path:
    """Write a checkpoint of a trainer."""
    chosen = _folder(trainer, folder)
    if keep is not None:
        chosen = CheckpointFolder(chosen.path, keep)
    tensors: dict[str, wf.Tensor] = {}
    state = {name: pack(value, name, tensors) for name, value in state_of(trainer, loader).items()}
    facts = {
        "step": trainer.step,
        "epoch": trainer.epoch,
        "batches": trainer.batches,
        "history": pack(trainer.history.rows, "history", tensors),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "optimizer": type(trainer.optimizer).__name__,
        "state": state,
    }
    groups = {"model": trainer.strategy.model_state(trainer.model), "state": tensors}
    path: Path = trainer.strategy.write_once(lambda: chosen.save(groups, facts, kind))
    return path


def state_of(trainer: Any, loader: Any) -> dict[str, Any]:
    """The state of training besides the model's."""
    return {
        "optimizer": trainer.strategy.optimizer_state(trainer.optimizer),
        "schedule": state_or_none(trainer.schedule),
        "ema": state_or_none(trainer.ema),
        "random": tuple(wf.random.get_state()),
        "loader": trainer.loader_state if trainer.batches else state_or_none(loader),
        "metrics": _metric_states(trainer),
        "loss": [trainer.loss_sum, trainer.loss_count],
        "sizes": [trainer.train_programs.first, trainer.evaluation_programs.first],
        "callbacks": {name: each.state_dict() for name, each in named_callbacks(trainer)},
        "stopped": trainer.stopped,
    }


def _metric_states(trainer: Any) -> dict[str, Any]:
    """The counts of the epoch's metrics by name, of all processes; each may have its own so far."""
    metrics, strategy = trainer.metrics, trainer.strategy
    joined = trainer.are_joined
    states = [each.state for each in metrics] if joined else strategy.joined_metrics(metrics)
    return {metric.name: state for metric, state in zip(metrics, states, strict=True)}


def state_or_none(value: Any) -> Any:
    """The state of what has one."""
    return value.state_dict() if hasattr(value, "state_dict") else None


def named_callbacks(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Callbacks by class, and by number where there are several of one."""
    seen: dict[str, int] = {}
    for callback in trainer.callbacks:
        name = type(callback).__name__
        seen[name] = seen.get(name, 0) + 1
        yield f"{name}.{seen[name]}", callback


def load(trainer: Any, path: Any = None, kind: str = "step") -> dict[str, Any]:
    """Put a checkpoint's state into a trainer; the state as it was saved."""
    folder = trainer.checkpoint_folder
    if folder is None:
        folder = CheckpointFolder(_require_folder(path))
    checkpoint = folder.load(_checkpoint_inside(path, kind), kind)
    weights = checkpoint.require("model", trainer.strategy.model_state(trainer.model))
    with _name_file_in_errors(checkpoint.path / "state.safetensors"):
        state: dict[str, Any] = unpack(checkpoint.facts["state"], checkpoint.tensors["state"])
        trainer.strategy.load_optimizer(trainer.optimizer, state["optimizer"])
        for name in ("schedule", "ema"):
            if state[name] is not None and getattr(trainer, name) is not None:
                getattr(trainer, name).load_state_dict(state[name])
        takes_counts = trainer.strategy.takes_counts or checkpoint.facts["batches"] == 0
        for metric in trainer.metrics:
            if metric.name in state["metrics"]:
                metric.reset()
                metric.state = state["metrics"][metric.name] if takes_counts else metric.state
        for name, callback in named_callbacks(trainer):
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])
    trainer.strategy.load_model(trainer.model, weights)
    with _name_file_in_errors(checkpoint.path / "manifest.json"):
        _place(trainer, checkpoint, state)
    return state


def _place(trainer: Any, found: Checkpoint, state: dict[str, Any]) -> None:
    """Set the trainer's counts, history and random state to the checkpoint's."""
    facts = found.facts
    trainer.epoch, trainer.step, trainer.batches = facts["epoch"], facts["step"], facts["batches"]
    trainer.history = History(unpack(facts["history"], found.tensors["state"]))
    trainer.loss_sum, trainer.loss_count = state["loss"]
    trainer.waiting = 0
    trainer.train_programs.first, trainer.evaluation_programs.first = state["sizes"]
    trainer.loader_state = state["loader"]
    trainer.stopped = state["stopped"]
    wf.random.set_state(wf.random.GeneratorState(*state["random"]))


def resume(trainer: Any, loader: Any) -> None:
    """Go on from the newest checkpoint, if there is one."""
    folder: CheckpointFolder | None = trainer.checkpoint_folder
    if folder is None:
        raise wf.ArgumentError(
            "fit",
            "there is no folder to resume from",
            expected="a trainer with a checkpoint_folder",
            got={"checkpoint_folder": None},
            fix='wf.train.Trainer(..., checkpoint_folder="run")',
        )
    path = folder.latest()
    if path is None:
        if trainer.seed is not None:
            wf.random.seed(trainer.seed)
        return
    go_on_from(trainer, loader, path)


def go_on_from(trainer: Any, loader: Any, path: Path) -> None:
    """Put a checkpoint's state into a trainer, and its place in the data into the loader."""
    state = load(trainer, path)
    if state["loader"] is not None and hasattr(loader, "load_state_dict"):
        with _name_file_in_errors(path / "manifest.json"):
            loader.load_state_dict(state["loader"])
        trainer.loader_restored = True


def epoch_batches(trainer: Any, loader: Any) -> Iterator[tuple[Any, bool]]:
    """The epoch's batches that are left, and whether each is its last.

    A batch is given out after the next was asked for, so where the loader stood is noted before.
    """
    start = trainer.batches
    skipped = 0 if trainer.loader_restored else start
    trainer.loader_restored = False
    rest: Iterable[Any] = islice(loader, skipped, None) if skipped else loader
    iterator = iter(batches_of("fit", rest, start, trainer.device))
    held = next(iterator, _END)
    while held is not _END:
        state = state_or_none(loader) if _is_due(trainer) else None
        following = next(iterator, _END)
        trainer.loader_state = state
        yield held, following is _END
        held = following


_END = object()


def _is_due(trainer: Any) -> bool:
    """Whether a checkpoint will be written after the next batch."""
    every, updates = trainer.checkpoint_every, (trainer.batches + 1) % trainer.accumulate == 0
    return every is not None and updates and (trainer.step + 1) % every == 0


def chosen_folder(path: Any, keep_last: int, every: int | None) -> CheckpointFolder | None:
    """Where checkpoints go, if they are wanted; refused where `every` says so without a folder."""
    if every is not None:
        _require_folder(path)
    return None if path is None else CheckpointFolder(path, keep_last)


def refuse_used_folder(folder: CheckpointFolder | None) -> None:
    """Do not mix a new run with the checkpoints of another."""
    latest = None if folder is None else folder.latest()
    if latest is not None:
        raise wf.ArgumentError(
            "fit",
            "the checkpoint folder holds those of an earlier run",
            expected="an empty checkpoint_folder, or a run that goes on",
            got={"checkpoint": str(latest)},
            fix="fit(..., resume=True), or another checkpoint_folder",
        )


def _folder(trainer: Any, folder: str | os.PathLike[str] | None) -> CheckpointFolder:
    if folder is not None:
        return CheckpointFolder(folder)
    if trainer.checkpoint_folder is None:
        _require_folder(None)
    chosen: CheckpointFolder = trainer.checkpoint_folder
    return chosen


def _require_folder(path: Any) -> Any:
    if path is None:
        raise wf.ArgumentError(
            "train.checkpoint",
            "there is no folder for checkpoints",
            expected="a folder, or a trainer with a checkpoint_folder",
            got={"checkpoint_folder": None},
            fix='wf.train.Trainer(..., checkpoint_folder="run")',
        )
    return path


def _checkpoint_inside(path: Any, kind: str) -> Path | None:
    """A checkpoint's folder; of a folder with several, the newest."""
    if path is None:
        return None
    chosen = Path(path)
    return (
        chosen
        if (chosen / "manifest.json").exists()
        else CheckpointFolder(chosen).latest(kind) or chosen
    )


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    """Say which file a state that does not fit comes from."""
    try:
        yield
    except (CheckpointError, wf.ProcessError):  # others can go on after the loss of a process
        raise
    except (wf.WeftError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError,
            RecursionError) as error:  # fmt: skip
        problem = error.problem if isinstance(error, wf.WeftError) else repr(error)
        raise CheckpointError(
            "train.checkpoint",
            f"{path.parent.name}/{path.name} does not fit this trainer: {problem}",
            expected=getattr(error, "expected", "the state of such a trainer"),
            got={"file": str(path), "found": getattr(error, "got", repr(error))},
            fix="make the optimiser, schedule and ema as they were when it was saved",
        ) from error
