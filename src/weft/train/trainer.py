"""`Trainer`: the loop that trains a model, compiled, watched, saved, and resumed to the bit.

>>> import weft as wf
>>> wf.random.seed(0)
>>> x = wf.random.normal((64, 3))
>>> y = x @ wf.tensor([[1.0], [-2.0], [0.5]])
>>> model = wf.nn.Linear(3, 1)
>>> trainer = wf.train.Trainer(
...     model, wf.nn.functional.mse_loss, wf.optim.Adam(model.parameters(), lr=0.1), progress=False
... )
>>> history = trainer.fit((x, y), epochs=20, batch_size=16)
>>> history["loss"][-1] < 0.01 < history["loss"][0]
True
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import weft as wf
from weft.data.dataset import check_count
from weft.optim import LBFGS, ExponentialMovingAverage, LossScale, schedules
from weft.optim.precision import check_precision
from weft.optim.states import named_tensors
from weft.train import batches, resuming
from weft.train.automatic import find_strategy
from weft.train.callbacks import Callback, ScheduleCallback
from weft.train.distillation import Distillation
from weft.train.history import History
from weft.train.losses import as_loss
from weft.train.metrics import Metric, as_metrics
from weft.train.programs import Programs
from weft.train.progress import Progress
from weft.train.recovering import recovering_strategy
from weft.train.strategies import Strategy

__all__ = ["Trainer"]

_ONE = wf.tensor(1.0)


class Trainer:
    """Trains `model` to make `loss(model(inputs), target)` small; a loss may be given by name.

    Each step (forward, backward, update) is one compiled program, unless `compile=False`. What
    else can be said: `metrics` (objects, names or functions), `callbacks`, a `schedule` of the
    learning rate, `precision` ("bfloat16", "float16" or "float8": model and loss run inside of
    `wf.autocast`, for "float16" with a scaled loss), `accumulate` (batches to one update),
    `clip_norm`, `ema` (the decay of an average of the weights, which is what is evaluated),
    `checkpoint_folder` with `checkpoint_every` so many steps (else epochs) and `keep_last`, `seed`,
    `device` (the model is moved there, and batches go where it is), `strategy` for the processes of
    `weft launch`: "data" (each takes its part of a batch), "zero1" (and of the optimiser's state),
    "zero2" (and of the gradients), "zero3" (and of the parameters), a `MeshStrategy`, a
    `PipelineStrategy`, or "auto" (the fastest plan that fits); with `recover` the others go on
    after the loss of one, and `distillation` lets it learn from another model (`Distillation`). A
    subclass may define `objective` where the loss needs more than that.

    >>> import weft as wf
    >>> wf.random.seed(0)
    >>> x = wf.random.normal((64, 2))
    >>> net = wf.nn.Linear(2, 1)
    >>> trainer = Trainer(net, "mse_loss", wf.optim.SGD(net.parameters(), lr=0.1), progress=False)
    >>> history = trainer.fit((x, x.sum(axis=1, keepdims=True)), epochs=10, batch_size=16)
    >>> history["loss"][-1] < 0.01 * history["loss"][0]
    True
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[..., Any] | str | None,
        optimizer: Any,
        *,
        metrics: Iterable[Any] = (),
        callbacks: Iterable[Callback] = (),
        schedule: Any = None,
        precision: Any = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        ema: Any = None,
        compile: bool = True,
        checkpoint_folder: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        keep_last: int = 3,
        seed: int | None = None,
        progress: bool = True,
        device: Any = None,
        strategy: str | Strategy | None = None,
        recover: bool = False,
        distillation: Distillation | None = None,
    ) -> None:
        self.distillation = distillation
        self.model, self.loss_function = model, as_loss(loss)
        self.optimizer = _check_optimizer(optimizer)
        self.strategy = find_strategy(strategy, whole=recover)
        if device is not None:
            self._move(device)
        self.metrics: list[Metric] = as_metrics(metrics)
        self._all_callbacks = [*callbacks, *([Progress()] if progress else [])]
        self.choose_callbacks()
        self.accumulate = check_count("train.Trainer", "accumulate", accumulate)
        self.checkpoint_every = checkpoint_every and check_count(
            "train.Trainer", "checkpoint_every", checkpoint_every
        )
        self.checkpoint_folder = resuming.chosen_folder(
            checkpoint_folder, keep_last, self.checkpoint_every
        )
        self.seed = seed
        self.ema = ExponentialMovingAverage(model, ema) if isinstance(ema, float) else ema
        self._configure(precision, clip_norm)
        self.compile_programs(compile)
        self.strategy.share_trainer(self)
        if recover:
            self.strategy = recovering_strategy(self.strategy, self)
        self.schedule = self._attach_schedule(schedule)
        self._begin()

    def compile_programs(self, compile: bool) -> None:
        """Begin with new programs for the step and for evaluation."""
        self.train_programs = Programs(self._train_step, compile)
        self.evaluation_programs = Programs(self._evaluation_step, compile)

    def choose_callbacks(self) -> list[Callback]:
        """Keep the callbacks that this process calls: files are written by the first one alone.

        Those are returned that are called from now on, and were not before.
        """
        before = getattr(self, "callbacks", [])
        is_first = self.strategy.rank == 0
        chosen = [each for each in self._all_callbacks if is_first or not each.writes]
        own = [each for each in before if each not in self._all_callbacks]
        self.callbacks: list[Callback] = [*own, *chosen]
        return [each for each in chosen if each not in before]

    def _move(self, device: Any) -> None:
        """Move the model and what the optimiser keeps for it."""
        self.model.to(device)
        if self.distillation is not None:
            self.distillation.teacher.to(device)
        for _, handle in named_tensors(self.optimizer):
            if handle.ndim:
                handle.set_(handle.to(wf.device(device)))

    @property
    def device(self) -> wf.Device:
        """Where the model is, and batches go."""
        return next((p.device for p in self.model.parameters()), wf.device("cpu"))

    def _configure(self, precision: Any, clip_norm: float | None) -> None:
        """Give the optimiser what belongs to its step."""
        if isinstance(self.optimizer, LBFGS):
            raise wf.UnsupportedError(
                "train.Trainer",
                "LBFGS computes the loss several times in a step, and the trainer does so once",
                expected="an optimiser that takes one gradient, such as Adam",
                got={"optimizer": self.optimizer},
                fix="write the loop: for x, y in data: optimizer.step(closure)",
            )
        if precision is not None:
            self.optimizer.precision = check_precision("train.Trainer", precision)
            is_float16 = self.optimizer.precision == "float16"
            self.optimizer.scaling = LossScale() if is_float16 else None
        if clip_norm is not None:
            self.optimizer.clip_norm = clip_norm
        if self.accumulate > 1 and self.optimizer.accumulate > 1:
            raise wf.ArgumentError(
                "train.Trainer",
                "both the trainer and the optimiser accumulate",
                expected="accumulate in one of them",
                got={"trainer": self.accumulate, "optimizer": self.optimizer.accumulate},
                fix="leave accumulate out of the optimiser",
            )

    def _attach_schedule(self, schedule: Any) -> Any:
        """What must be told of steps: nothing for a formula, which the optimiser follows itself."""
        if isinstance(schedule, schedules.Schedule):
            self.optimizer.lr = schedule
            return None
        if callable(schedule) and not hasattr(schedule, "step"):
            self.callbacks.insert(0, ScheduleCallback(schedule))
            return None
        return schedule

    def _begin(self) -> None:
        """Reset all that a run counts and remembers."""
        self.epoch = self.step = self.batches = 0
        self.total_epochs = self.total_batches = 0
        self.history = History()
        self.row: dict[str, Any] = {}
        self.numbers: dict[str, float] = {}
        self.loss, self.batch_rows, self.nan_source = math.nan, 0, ""
        self.batch: Any = None
        self.stopped = ""
        self.gradients: dict[str, wf.Tensor] = {}
        self._wants_gradients = False
        self.loss_sum, self.loss_count, self.waiting, self.are_joined = 0.0, 0, 0, False
        self.loader_state: Any = None
        self.held_out: Any = None
        self.loader_restored = False
        self._part_rows: list[int] = []

    # --- the step, which is compiled ---------------------------------------------------------

    def objective(self, model: Any, batch: Any) -> tuple[Any, Any]:
        """The loss of a batch and the model's outputs; a subclass may compute them otherwise.

        >>> import weft as wf
        >>> class Autoencoding(wf.train.Trainer):
        ...     def objective(self, model, batch):
        ...         outputs = model(batch)
        ...         return ((outputs - batch) ** 2).mean(), outputs
        """
        inputs, target = batches.split(batch)
        outputs = model(*inputs)
        return self.loss_function(outputs, target), outputs

    def touched_rows(self) -> list[wf.optim.Rows]:
        """Gradients of some rows of tables, where `objective` took rows by `wf.optim.take_rows`.

        A subclass that trains large tables gives them here; without it every gradient is whole.
        """
        return []

    def _train_step(
        self,
        batch: Any,
        state: Sequence[Any],
        weight: wf.Tensor,
        total: wf.Tensor,
        update: bool,
        keep: bool,
    ) -> tuple[wf.Tensor, Any, dict[str, wf.Tensor]]:
        """Forward, backward and, where the batch completes one, the update."""
        _, optimizer, ema, *_ = state
        loss, outputs = self.precise_objective(batch)
        if self.distillation is not None:
            loss = self.distillation.total_loss(loss, outputs, batch)
        alone = self.accumulate == 1
        shared_loss, told = self.strategy.weigh(loss, weight)
        optimizer.scale(shared_loss if alone else loss * weight).backward()
        gradients: dict[str, wf.Tensor] = {}
        if update:
            if not alone:
                self.divide_gradients(self.strategy.mean_rows(total))
            if keep:
                optimizer.unscale()
                gradients = self.named_gradients()
            optimizer.step(rows=self.touched_rows())
            optimizer.zero_grad()
            if ema is not None:
                ema.update()
        return told, self._detached_outputs(outputs), gradients

    def _evaluation_step(self, batch: Any, state: Sequence[Any]) -> tuple[wf.Tensor, Any]:
        with wf.no_grad():
            loss, outputs = self.precise_objective(batch)
        return loss, self._detached_outputs(outputs)

    def precise_objective(self, batch: Any) -> tuple[wf.Tensor, Any]:
        """The objective in the precision that was chosen; loss and outputs are float32."""
        objective = self.optimizer.mixed(self.objective)
        loss, outputs = objective(self.strategy.called_model(self.model), batch)
        self._check_loss(loss)
        return loss, outputs

    def divide_gradients(self, total: wf.Tensor) -> None:
        """Make the mean over all examples of the sums over batches."""
        with wf.no_grad():
            for parameter in self.optimizer.parameters:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad / total

    def named_gradients(self) -> dict[str, wf.Tensor]:
        """The gradients that parameters have now, by name."""
        named = self.model.named_parameters()
        return {name: p.grad.detach() for name, p in named if p.grad is not None}

    def _detached_outputs(self, outputs: Any) -> Any:
        return wf.tree.map_tree(lambda x: x.detach(), outputs) if self.metrics else None

    def called_state(self) -> tuple[Any, ...]:
        """The state that the compiled step reads and writes, and functions that may read more."""
        model, loss = self.strategy.called_model(self.model), self.loss_function
        if self.distillation is None:
            return model, self.optimizer, self.ema, loss, None
        losses = loss, self.distillation.settings
        return model, self.optimizer, self.ema, losses, self.distillation.teacher

    @staticmethod
    def _check_loss(loss: Any) -> None:
        if not isinstance(loss, wf.Tensor) or loss.ndim != 0:
            raise wf.ShapeError(
                "train.Trainer",
                "the loss is not one number",
                expected="a tensor without axes",
                got={"loss": loss},
                fix="take the mean: loss.mean()",
            )

    # --- fitting -----------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        validation: Any = None,
        *,
        batch_size: int = 32,
        resume: bool = False,
    ) -> History:
        """Train for so many epochs and return what was measured.

        `data` and `validation` are loaders, data sets or arrays (inputs, targets), which are cut
        into batches of `batch_size`. With `resume`, the run goes on from the newest checkpoint in
        `checkpoint_folder`, if there is one, until it has `epochs` epochs in all; its weights are
        then bitwise those of a run that was never interrupted.
        """
        loader = batches.as_loader("fit", data, batch_size, shuffle=True, seed=self.seed)
        self.total_batches = batches.count_of(loader)
        self.held_out = self._validation(validation, batch_size)
        loader = self.strategy.begin_fit(self, loader)
        self.stopped = ""
        self.batches = 0
        done = self.epoch
        if loader is not data:
            loader.set_epoch(done)
        if resume:
            done = 0
            resuming.resume(self, loader)
        elif self.step == 0 and not self.strategy.is_joining:
            resuming.refuse_used_folder(self.checkpoint_folder)
            if self.seed is not None:
                wf.random.seed(self.seed)
        self.total_epochs = done + epochs
        if not self.model.training:
            self.model.train()  # else parts in evaluation mode are frozen on purpose
        self.optimizer.zero_grad()  # of backward before, or of a run that was interrupted
        try:
            self._call("on_fit_begin")
            while self.epoch < self.total_epochs and not self.stopped:
                try:
                    self._epoch(loader)
                except wf.ProcessError as error:
                    if not self.strategy.recovers_from(error, self, loader):
                        raise
            self.strategy.end_fit(self)
        finally:
            self._call("on_fit_end")
        return self.history

    def _validation(self, data: Any, batch_size: int) -> Any:
        if data is None:
            return None
        return batches.as_loader("fit", data, batch_size, shuffle=False, seed=None)

    def _epoch(self, loader: Any) -> None:
        """One epoch, or what is left of it."""
        begin = time.perf_counter()
        self.row = {}
        if self.batches == 0:
            self._reset_counts()
        self.strategy.begin_epoch(self, loader)
        shares = self.strategy.pads and hasattr(loader, "part_rows")
        self._part_rows = loader.part_rows() if shares else []
        self._call("on_epoch_begin")
        for batch, is_last in resuming.epoch_batches(self, loader):
            self._step(batch, is_last)
            due = self.checkpoint_every and self.step % self.checkpoint_every == 0
            if due and self.waiting == 0 and not is_last:
                self.save_checkpoint(loader=loader)
        self._part_rows = []
        self.epoch += 1
        self.strategy.join_metrics(self.metrics)
        self.are_joined = True
        measured = self._metric_values(self.metrics)
        self.row = {"epoch": self.epoch, "step": self.step, "loss": self.mean_loss, **measured}
        if self.held_out is not None:
            held_out_numbers = self.evaluate(self.held_out)
            self.row.update({f"val_{name}": value for name, value in held_out_numbers.items()})
        self._judge()
        self.row["seconds"] = time.perf_counter() - begin
        self._call("on_epoch_end")
        self.stopped = self.strategy.agree_on_end(self.stopped)
        self.history.rows.append(self.row)
        self.batches = 0
        if self._is_checkpoint_due():
            self.save_checkpoint(loader=loader)
        self.strategy.end_update(self)

    def _is_checkpoint_due(self) -> bool:
        if self.checkpoint_folder is None:
            return False
        ends = bool(self.stopped) or self.epoch == self.total_epochs
        return ends or self.checkpoint_every is None or self.step % self.checkpoint_every == 0

    def _step(self, batch: Any, is_last: bool) -> None:
        """Train on one batch."""
        self.batch, self.gradients = batch, {}
        self._call("on_step_begin")
        self.waiting += self.own_rows(batch)
        update = is_last or (self.batches + 1) % self.accumulate == 0
        outputs = self._run(batch, update)
        self.loss_sum += self.loss * self.batch_rows
        self.loss_count += self.batch_rows
        self.batches += 1
        self.step += update
        self.waiting = 0 if update else self.waiting
        if update and isinstance(self.schedule, schedules.Scheduler):
            self.schedule.step()
        self.numbers = {"loss": self.loss, "lr": float(self.optimizer.lr.item())}
        self._count_metrics(outputs, batch)
        if update:
            self.strategy.end_update(self)
        self._call("on_step_end")
        if math.isnan(self.loss) and self.optimizer.scaling is None:
            raise self._not_a_number()

    def _run(self, batch: Any, update: bool) -> Any:
        """The compiled step; the model's outputs, if metrics want them."""
        weight, total = self._weights(self.own_rows(batch))
        keep, self._wants_gradients = self._wants_gradients, False
        step_results = self.strategy.run_step(self, batch, weight, total, update, keep)
        told, outputs, self.gradients = step_results
        rows = self.own_rows(batch)
        self.loss, self.batch_rows, self.nan_source = self.strategy.read_loss(told, rows)
        return outputs if rows else None  # rows that fill a batch up are no one's

    def own_rows(self, batch: Any) -> int:
        """How many rows of a batch count: none of one that fills up a batch for other processes."""
        is_padding = self._part_rows[self.batches : self.batches + 1] == [0]
        return 0 if is_padding else batches.size_of(batch)

    def _weights(self, size: int) -> tuple[wf.Tensor, wf.Tensor]:
        """The weight of a batch among those of one update, and the sum of all their weights."""
        if self.accumulate == 1 and self.strategy.size == 1:
            return _ONE, _ONE
        return wf.tensor(float(size)), wf.tensor(float(self.waiting))

    def train_on(self, batch: Any) -> float:
        """One update for one batch, outside of any epoch; its loss."""
        self.waiting = batches.size_of(batch)
        self._run(batches.move_batch(batch, self.device), update=True)
        self.waiting = 0
        return self.loss

    def _not_a_number(self) -> wf.NanError:
        return wf.NanError(
            "train.Trainer",
            f"the loss of batch {self.batches - 1} of epoch {self.epoch + 1} is NaN"
            + self.nan_source,
            expected="a loss that is a number",
            got={"step": self.step, "lr": self.numbers["lr"], "batch": self.batch},
            fix="callbacks=[wf.train.StopOnNan()] names the line; or try a smaller lr",
        )

    def _judge(self) -> None:
        """Tell the epoch's loss to a schedule that waits for a plateau."""
        if isinstance(self.schedule, schedules.Plateau):
            self.schedule.step(self.row.get("val_loss", self.row["loss"]))

    def _count_metrics(self, outputs: Any, batch: Any) -> None:
        """Tell metrics of a batch, where its outputs are."""
        if outputs is not None:
            for metric in self.metrics:
                metric.update(outputs, batches.split(batch)[1])

    def _reset_counts(self) -> None:
        self.loss_sum, self.loss_count, self.waiting, self.are_joined = 0.0, 0, 0, False
        for metric in self.metrics:
            metric.reset()

    @property
    def mean_loss(self) -> float:
        """The mean loss of this epoch's examples so far."""
        return self.loss_sum / self.loss_count if self.loss_count else math.nan

    def stop(self, reason: str) -> None:
        """End the training after this epoch."""
        self.stopped = reason

    def keep_gradients(self) -> None:
        """Have the next step keep its gradients, by name, in `trainer.gradients`."""
        self._wants_gradients = True

    def save_checkpoint(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        kind: str = "step",
        keep: int | None = None,
        loader: Any = None,
    ) -> Path:
        """Write a checkpoint now, into the trainer's folder or another one."""
        return resuming.save(self, folder, kind, keep, loader)

    def load_checkpoint(
        self, path: str | os.PathLike[str] | None = None, kind: str = "step"
    ) -> None:
        """Take the state of a checkpoint: the newest of a kind, or that in a folder given."""
        resuming.load(self, path, kind)

    def _call(self, hook: str) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self)

    # --- using the model ---------------------------------------------------------------------

    def evaluate(self, data: Any, *, batch_size: int = 32) -> dict[str, Any]:
        """The loss and the metrics over all of the data, in evaluation mode.

        >>> import weft as wf
        >>> model = wf.nn.Identity()
        >>> weight = wf.nn.Parameter(wf.ones(1))
        >>> trainer = wf.train.Trainer(model, lambda out, y: ((out - y) ** 2).mean(),
        ...                            wf.optim.SGD([weight], lr=0.1), metrics=["mae"])
        >>> trainer.evaluate((wf.tensor([1.0, 2.0]), wf.tensor([1.0, 4.0])))
        {'loss': 2.0, 'mae': 1.0}
        """
        loader = batches.as_loader("evaluate", data, batch_size, shuffle=False, seed=None)
        training = {metric.name: metric.state for metric in self.metrics}
        for metric in self.metrics:
            metric.reset()
        total, count = 0.0, 0
        with self._evaluation_mode():
            every_batch = batches.batches_of("evaluate", loader, device=self.device)
            for batch, is_counted in self.strategy.own_batches(every_batch):
                loss, outputs = self.strategy.run_evaluation(self, batch)
                if not is_counted:
                    continue
                size = batches.size_of(batch)
                total, count = total + loss.item() * size, count + size
                self._count_metrics(outputs, batch)
        total, examples = self.strategy.sum_numbers([total, count])
        self.strategy.join_metrics(self.metrics)
        numbers = {"loss": total / examples, **self._metric_values(self.metrics)}
        for metric in self.metrics:
            metric.state = training[metric.name]
        return numbers

    def predict(self, data: Any, *, batch_size: int = 32) -> Any:
        """The model's outputs for all of the data, joined; inputs alone, or the first of tuples.

        >>> import weft as wf
        >>> weight = wf.nn.Parameter(wf.ones(1))
        >>> trainer = wf.train.Trainer(wf.nn.ReLU(), None, wf.optim.SGD([weight], lr=0.1))
        >>> trainer.predict(wf.tensor([[1.0], [-2.0], [3.0]])).tolist()
        [[1.0], [0.0], [3.0]]
        """
        whole = hasattr(data, "shape")
        loader = _slices(data, batch_size) if whole else data
        loader = batches.as_loader("predict", loader, batch_size, shuffle=False, seed=None)
        program = Programs(self._prediction_step, self.evaluation_programs.compiled)
        with self._evaluation_mode():
            parts = [
                program(batch if whole else batches.split(batch)[0], self.called_state())
                for batch in batches.batches_of("predict", loader, device=self.device)
            ]
        return wf.tree.map_tree(lambda *leaves: wf.concat(leaves), *parts)

    def _prediction_step(self, inputs: Any, state: Sequence[Any]) -> Any:
        with wf.no_grad():
            model = self.optimizer.mixed(self.strategy.called_model(self.model))
            return model(*(inputs if isinstance(inputs, tuple) else (inputs,)))

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Evaluation mode, with averaged weights if there are any; then as before."""
        averages = nullcontext() if self.ema is None else self.ema.applied()
        with wf.nn.evaluation_mode(self.model), averages:
            yield

    @staticmethod
    def _metric_values(metrics: Sequence[Metric]) -> dict[str, Any]:
        return {metric.name: metric.value() for metric in metrics}


def _slices(data: Any, batch_size: int) -> list[Any]:
    return [data[i : i + batch_size] for i in range(0, len(data), batch_size)]


def _check_optimizer(optimizer: Any) -> Any:
    if isinstance(optimizer, (str, type)):
        name = optimizer if isinstance(optimizer, str) else optimizer.__name__
        known = {each.lower(): each for each in wf.optim.__all__}
        raise wf.ArgumentTypeError(
            "train.Trainer",
            "an optimiser knows its parameters: neither a name nor a class will do",
            expected="an optimiser",
            got={"optimizer": optimizer},
            fix=f"wf.optim.{known.get(name.lower(), 'Adam')}(model.parameters(), lr=1e-3)",
        )
    return optimizer
