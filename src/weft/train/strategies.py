"""How a trainer uses several processes: `Trainer(strategy="data")`, or "zero1" to "zero3".

Each process takes its part of every batch. Loss and gradients are those of the whole batch on all
processes, whatever the sizes of the parts; files are written by the first process alone. Pipelines
and meshes have modules of their own (pipeline_strategy.py, mesh_strategy.py).

>>> from weft.train.strategies import STRATEGIES, Strategy
>>> Strategy().size, list(STRATEGIES)
(1, ['data', 'zero1', 'zero2', 'zero3'])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import weft as wf
from weft.distributed.loaders import order_of_batches
from weft.distributed.sharing import split_anew
from weft.train.batches import size_of

__all__ = ["METRICS", "STRATEGIES", "DataStrategy", "LocalStrategy", "SplitStrategy", "Strategy",
           "WholeStrategy", "axes_of_experts", "no_average"]  # fmt: skip

STRATEGIES = {"data": 0, "zero1": 1, "zero2": 2, "zero3": 3}
"""The strategies, and what of the state each splits; see `wf.distributed.data_parallel`."""


METRICS = "counts of metrics"
"""What processes say that they gather; see `gather_objects`."""


class Strategy:
    """One process: nothing is shared. What is shared with others is written anew by a subclass."""

    rank = 0
    size = 1
    pads = False
    """Whether a batch with fewer rows than processes is filled up, with rows that weigh nothing."""
    plan: Any = None
    """The plan that it was chosen by, where it was."""
    chosen: str | None = None
    """With "auto": which strategy this is and why, in a line."""

    @property
    def is_joining(self) -> bool:
        """Whether others train already, and this process will take their state."""
        return False

    def share_trainer(self, trainer: Any) -> None:
        """Have the trainer's model and optimiser take part."""

    def called_model(self, model: Any) -> Any:
        """The model as it is called, which has the handles of the trainer's."""
        return model

    def run_step(self, trainer: Any, batch: Any, *settings: Any) -> tuple[wf.Tensor, Any, Any]:
        """Train on a batch: what is told of the loss, the outputs and the gradients.

        settings: the weight of the batch, that of all batches of the update, whether it is
        complete, and whether to keep its gradients.
        """
        results: tuple[wf.Tensor, Any, Any] = trainer.train_programs(
            batch, trainer.called_state(), *settings
        )
        return results

    def run_evaluation(self, trainer: Any, batch: Any) -> tuple[wf.Tensor, Any]:
        """The loss and the outputs of a batch, in evaluation mode."""
        results: tuple[wf.Tensor, Any] = trainer.evaluation_programs(batch, trainer.called_state())
        return results

    def begin_epoch(self, trainer: Any, loader: Any) -> None:
        """Note where the data stand at the beginning of an epoch, or of what is left of it."""

    def end_update(self, trainer: Any) -> None:
        """Note where the training stands after an update, or after an epoch."""

    def end_fit(self, trainer: Any) -> None:
        """Give all processes what they need of each other once a training is over."""

    def begin_anew(self, trainer: Any) -> None:
        """Take part in the group that is the world now; a checkpoint gives values afterwards."""

    def recovers_from(self, error: BaseException, trainer: Any, loader: Any) -> bool:
        """Whether the training can go on after an error; where it can, all is made ready."""
        return False

    def model_state(self, model: Any) -> Any:
        """The whole weights, as files hold them."""
        return model.state_dict()

    def load_model(self, model: Any, weights: Any) -> None:
        """Put whole weights in place."""
        model.load_state_dict(weights)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The whole state of the optimiser, as files hold it."""
        state: dict[str, Any] = optimizer.state_dict()
        return state

    def load_optimizer(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Put the whole state of an optimiser in place."""
        optimizer.load_state_dict(state)

    def begin_fit(self, trainer: Any, loader: Any) -> Any:
        """Make ready for a training; the loader to read from."""
        return self.share_loader(loader)

    def share_loader(self, loader: Any) -> Any:
        """The loader, which gives this process its part of each batch."""
        return loader

    def own_batches(self, batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """The batches that this process evaluates, and whether it counts each."""
        return ((each, True) for each in batches)

    def weigh(self, loss: wf.Tensor, rows: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        """A loss as the mean of all processes' gradients needs it, and what is told of it."""
        return loss, loss.detach()

    def mean_rows(self, rows: wf.Tensor) -> wf.Tensor:
        """The mean of all processes' numbers of rows."""
        return rows

    def read_loss(self, told: wf.Tensor, rows: int) -> tuple[float, int, str]:
        """The loss and the rows of the whole batch; where a number is missing, what is known."""
        return told.item(), rows, ""

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sums of all processes' numbers."""
        return list(numbers)

    @property
    def takes_counts(self) -> bool:
        """Whether this process goes on from joined counts of metrics; the others begin at none."""
        return True

    def joined_metrics(self, metrics: Sequence[Any]) -> list[Any]:
        """The counts of each metric, those of all processes together."""
        return [metric.state for metric in metrics]

    def join_metrics(self, metrics: Sequence[Any]) -> None:
        """Make the counts of metrics those of all processes."""
        for metric, state in zip(metrics, self.joined_metrics(metrics), strict=True):
            metric.state = state

    def write_once(self, write: Any) -> Any:
        """What a function returns that writes files, which one process calls."""
        return write()

    def agree_on_end(self, reason: str) -> str:
        """Why all processes end the training: the first reason that one of them has."""
        return reason


class WholeStrategy(Strategy):
    """Processes that all read whole batches, of which the first writes files."""

    def __init__(self) -> None:
        if not wf.distributed.is_initialized():
            wf.distributed.init()
        self.rank = wf.distributed.rank()

    def begin_fit(self, trainer: Any, loader: Any) -> Any:
        """See `Strategy`: processes that would train something else are named."""
        if wf.distributed.world_size() > 1:
            wf.distributed.world().compare_facts("train.Trainer", _facts_of(trainer, loader))
        return super().begin_fit(trainer, loader)

    def write_once(self, write: Any) -> Any:
        """See `Strategy`; the others wait, and an error of the writer is theirs, too."""
        result, error = None, None
        if self.rank == 0:
            try:
                result = write()
            except Exception as raised:
                error = raised
        result, failed = wf.distributed.broadcast_object((result, error))
        if failed is not None:
            raise error or failed
        return result

    def agree_on_end(self, reason: str) -> str:
        """See `Strategy`; where one alone ended, as for its clock, the others would wait for it."""
        return next(filter(None, wf.distributed.gather_objects(reason, "ends of epochs")), "")


class DataStrategy(WholeStrategy):
    """Data parallel training over the mesh axis "data"; over all processes where experts have one.

    On a mesh of data x expert every process has rows of its own.
    """

    pads = True
    axis = "data"
    exchanges_rows = False
    """Whether the model exchanges rows between processes, as divided experts do."""

    def __init__(self, zero: int) -> None:
        super().__init__()
        self.zero = zero
        self.find_place()

    def find_place(self) -> None:
        """Note who this process is, among all and along the axis of batches."""
        self.rank = wf.distributed.rank()
        self.size = wf.distributed.axis_size(self.axis)
        self.place = int(wf.distributed.axis_index(self.axis).item())

    def share_trainer(self, trainer: Any) -> None:
        """See `Strategy`."""
        axes = axes_of_experts(trainer.model)
        self.exchanges_rows = bool(axes)
        if axes - {"data", "world"}:
            self.axis = "world"
            self.find_place()
        wf.distributed.data_parallel(trainer.optimizer, zero=self.zero, mesh_axis=self.axis)

    def begin_anew(self, trainer: Any) -> None:
        """See `Strategy`: parts have the shape that they have among those that are left."""
        self.find_place()
        split_anew(trainer.model, trainer.optimizer)

    def share_loader(self, loader: Any) -> Any:
        """See `Strategy`; batches that are no loader's are the same on all processes."""
        if hasattr(loader, "share"):
            loader.share(self.place, self.size, pad=self.pads)
        return loader

    def own_batches(self, batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """See `Strategy`."""
        if self.exchanges_rows:
            return self._batches_of_all(batches)
        return ((each, True) for i, each in enumerate(batches) if i % self.size == self.place)

    def _batches_of_all(self, batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """Batches of as many rows at a time on all processes; the others all compute together."""
        remaining = iter(batches)
        while each := list(islice(remaining, self.size)):
            if len(each) == self.size and len({size_of(batch) for batch in each}) == 1:
                yield each[self.place], True
            else:
                yield from ((batch, self.place == 0) for batch in each)

    def weigh(self, loss: wf.Tensor, rows: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        """See `Strategy`: the mean over all rows, the loss of this process, all rows."""
        own, mean_rows = loss.detach(), DataStrategy.mean_rows(self, rows)
        share = rows / mean_rows
        whole = wf.distributed.all_reduce(own * share, self.axis, op="mean")
        return loss * share, wf.stack([whole, own, mean_rows * self.size])

    def mean_rows(self, rows: wf.Tensor) -> wf.Tensor:
        """See `Strategy`."""
        mean: wf.Tensor = wf.distributed.all_reduce(rows, self.axis, op="mean")
        return mean

    def read_loss(self, told: wf.Tensor, rows: int) -> tuple[float, int, str]:
        """See `Strategy`."""
        whole, own, all_rows = told.tolist()
        rows = rows if self.size == 1 else round(all_rows)
        if not math.isnan(whole):
            return whole, rows, ""
        flags = wf.distributed.gather_objects(math.isnan(own), "losses that are NaN")
        ranks = [str(rank) for rank, is_nan in enumerate(flags) if is_nan]
        return whole, rows, f" on rank {', '.join(ranks)}" if ranks else ""

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """See `Strategy`."""
        rows = wf.distributed.gather_objects(list(numbers), "sums of an evaluation")
        return [sum(column) for column in zip(*rows, strict=True)]

    @property
    def takes_counts(self) -> bool:
        """See `Strategy`."""
        return self.rank == 0

    def joined_metrics(self, metrics: Sequence[Any]) -> list[Any]:
        """See `Strategy`."""
        states = wf.distributed.gather_objects([each.state for each in metrics], METRICS)
        pairs = zip(metrics, zip(*states, strict=True), strict=True)
        return [metric.joined_state(each) for metric, each in pairs]

    def model_state(self, model: Any) -> Any:
        """See `Strategy`; parameters that processes have parts of are gathered."""
        return wf.distributed.whole_state(model)

    def load_model(self, model: Any, weights: Any) -> None:
        """See `Strategy`."""
        wf.distributed.load_whole_state(model, weights)


class SplitStrategy(DataStrategy):
    """Data parallel training with parameters, gradients and state split over the processes."""

    _called: Any = None

    def share_trainer(self, trainer: Any) -> None:
        """See `Strategy`."""
        if trainer.ema is not None:
            raise no_average("zero3")
        self._called = wf.distributed.shard_model(trainer.model, trainer.optimizer)
        super().share_trainer(trainer)

    def called_model(self, model: Any) -> Any:
        """See `Strategy`: modules that gather their parameters."""
        self._called.train(model.training)
        return self._called

    def own_batches(self, batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """See `Strategy`; all processes have as many, because they gather parameters together."""
        if self.exchanges_rows:
            yield from self._batches_of_all(batches)
            return
        remaining = iter(batches)
        while each := list(islice(remaining, self.size)):
            is_own = self.place < len(each)
            yield each[self.place if is_own else -1], is_own


class LocalStrategy(DataStrategy):
    """Steps that each process makes alone, with a mean of all parameters every so many updates.

    The mean is also taken before evaluation, before checkpoints and at the end.
    """

    pads = False

    def __init__(self, every: int) -> None:
        super().__init__(0)
        self.every = every
        self._local: Any = None

    def share_trainer(self, trainer: Any) -> None:
        """See `Strategy`."""
        self._local = wf.distributed.LocalSteps(trainer.optimizer, self.every)

    def weigh(self, loss: wf.Tensor, rows: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        """See `Strategy`; gradients are those of this process's rows."""
        _, told = super().weigh(loss, rows)
        return loss, told

    def mean_rows(self, rows: wf.Tensor) -> wf.Tensor:
        """See `Strategy`; accumulated gradients are a mean over this process's rows."""
        return rows

    def own_batches(self, batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
        """See `Strategy`."""
        self._local.take_mean()
        return super().own_batches(batches)

    def end_update(self, trainer: Any) -> None:
        """See `Strategy`."""
        if trainer.waiting == 0 and trainer.batches:
            self._local.step()

    def end_fit(self, trainer: Any) -> None:
        """See `Strategy`."""
        self._local.take_mean()

    def model_state(self, model: Any) -> Any:
        """See `Strategy`."""
        self._local.take_mean()
        return super().model_state(model)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """See `Strategy`."""
        self._local.take_mean()
        return super().optimizer_state(optimizer)


def axes_of_experts(model: Any) -> set[str]:
    """The mesh axes along which a model's experts are divided."""
    layers = [each for each in model.modules() if isinstance(each, wf.nn.MixtureOfExperts)]
    return {layer.mesh_axis for layer in layers if layer.mesh_axis is not None}


def _facts_of(trainer: Any, loader: Any) -> dict[str, str]:
    """What a training is, in texts that are the same on all processes."""
    loss = trainer.loss_function
    names = ("accumulate", "checkpoint_every", "schedule", "ema")
    settings = [f"{name}={getattr(trainer, name)!r}" for name in names]
    held_out = trainer.held_out
    return {
        "the model": repr(trainer.model),
        "the loss": getattr(loss, "__qualname__", None) or repr(loss),
        "the trainer's settings": "\n".join([type(trainer.strategy).__name__, *settings]),
        "the data": order_of_batches(loader),
        "the validation": "none" if held_out is None else order_of_batches(held_out),
    }


def no_average(strategy: str) -> wf.UnsupportedError:
    """The error for an average of weights that processes have parts of."""
    return wf.UnsupportedError(
        "train.Trainer",
        "an average of the weights is kept whole, and these are not",
        expected=f"no ema with strategy={strategy!r}",
        got={"strategy": strategy},
        fix='ema=None, or strategy="zero2"',
    )
