"""Pipelines as a setting of the trainer: `Trainer(strategy=PipelineStrategy(stages=2))`.

The model is a row of modules (a Sequential); each process trains the stages that it holds, with the
batches of its place along the axis "data". Weights and state in checkpoints are whole, so that a
run is resumed by any number of processes, with any strategy.

>>> import weft as wf
>>> wf.random.seed(0)
>>> net = wf.nn.Sequential(wf.nn.Linear(2, 8), wf.nn.Tanh(), wf.nn.Linear(8, 1))
>>> strategy = PipelineStrategy(stages=1, micro_batches=2)
>>> trainer = wf.train.Trainer(
...     net, "mse_loss", wf.optim.Adam(net.parameters(), lr=0.1), strategy=strategy, progress=False
... )
>>> x = wf.random.normal((32, 2))
>>> history = trainer.fit((x, x.sum(axis=1, keepdims=True)), epochs=20, batch_size=16)
>>> history["loss"][-1] < 0.1 * history["loss"][0]
True
>>> wf.distributed.shutdown()
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.distributed.parameters import forget_values
from weft.optim.states import parameters_of_slots
from weft.train import batches
from weft.train.strategies import METRICS, DataStrategy, axes_of_experts, no_average

__all__ = ["PipelineStrategy"]


class PipelineStrategy(DataStrategy):
    """Stages of a model along the mesh axis "stage", and data parallel training along "data".

    stages: how many processes a model is cut over; the world has a multiple of them. model: how
    many compute each stage together, with `plan`, as for `MeshStrategy`, for what is split along
    the axis "model". zero: what is split along "data" (0, 1, 2). The other settings are those of
    `wf.distributed.Pipeline`.
    """

    def __init__(
        self,
        stages: int,
        *,
        model: int = 1,
        plan: Mapping[str, Any] | None = None,
        zero: int = 0,
        **settings: Any,
    ) -> None:
        if not wf.distributed.is_initialized():
            wf.distributed.init()
        world = wf.distributed.world_size()
        _check_mesh(stages, model, world)
        rows = world // (stages * model)
        wf.distributed.bind_axes({"data": rows, "stage": stages, "model": model})
        super().__init__(zero)
        self._settings = {**settings, "plan": plan if plan or model == 1 else {}}
        self.pipeline: Any = None
        self._slots_of_all: frozenset[str] = frozenset()
        self._groups: list[tuple[Any, list[wf.Tensor]]] = []
        """The names and parameters of the optimiser's groups, of all stages."""

    def share_trainer(self, trainer: Any) -> None:
        """See `Strategy`: the optimiser keeps the parameters of this process's stages."""
        if trainer.ema is not None:
            raise no_average("pipeline")
        _check_objective(trainer)
        optimizer = trainer.optimizer
        self._groups = [(group.names, group.parameters) for group in optimizer.groups]
        self._slots_of_all = frozenset(parameters_of_slots(optimizer))
        self.exchanges_rows = bool(axes_of_experts(trainer.model))
        self._cut_stages(trainer)

    def begin_anew(self, trainer: Any) -> None:
        """See `Strategy`: stages are given out anew, and the optimiser is one of all of them."""
        self.find_place()
        optimizer = trainer.optimizer
        for parameter in trainer.model.parameters():
            parameter.grad = None
            forget_values(parameter)
        for group, (names, parameters) in zip(optimizer.groups, self._groups, strict=True):
            group.names, group.parameters = names, parameters
        optimizer.state, optimizer.sharing = optimizer.initial_states(), None
        self._cut_stages(trainer)

    def _cut_stages(self, trainer: Any) -> None:
        """Keep the stages of this process, and what the optimiser has for them."""
        optimizer = trainer.optimizer
        self.pipeline = wf.distributed.Pipeline(
            trainer.model,
            trainer.loss_function,
            mixed=optimizer.mixed,
            compile=trainer.train_programs.compiled,
            **self._settings,
        )
        keep_parameters(optimizer, self.pipeline.parameters())
        self.pipeline.share(optimizer, zero=self.zero, data_axis="data")

    def run_step(self, trainer: Any, batch: Any, *settings: Any) -> tuple[wf.Tensor, Any, Any]:
        """See `Strategy`: each stage is compiled by itself, and the update is."""
        weight, total, update, keep = settings
        optimizer, alone = trainer.optimizer, trainer.accumulate == 1
        inputs, target = batches.split(batch)
        share = weight / self.mean_rows(weight)
        factor = optimizer.scale(share if alone else weight)
        self.pipeline.train(trainer.model.training)
        loss, outputs = self.pipeline.run(inputs, target, factor=factor)
        _, told = self.weigh(loss, weight)
        gradients: dict[str, wf.Tensor] = {}
        if update:
            if not alone:
                trainer.divide_gradients(self.mean_rows(total))
            if keep:
                optimizer.unscale()
                gradients = trainer.named_gradients()
            optimizer.step()
            optimizer.zero_grad()
        return told, outputs if trainer.metrics else None, gradients

    def run_evaluation(self, trainer: Any, batch: Any) -> tuple[wf.Tensor, Any]:
        """See `Strategy`."""
        self.pipeline.train(trainer.model.training)
        loss, outputs = self.pipeline.evaluate(*batches.split(batch))
        return loss, outputs if trainer.metrics else None

    @property
    def _counts(self) -> bool:
        """Whether this process has seen outputs that none of lower rank has seen as well."""
        is_first = wf.distributed.axis_index("model").item() == 0  # others have seen the same
        return bool(self.pipeline.has_loss and is_first)

    @property
    def takes_counts(self) -> bool:
        """See `Strategy`."""
        return self._counts and self.place == 0

    def joined_metrics(self, metrics: Sequence[Any]) -> list[Any]:
        """See `Strategy`; processes with the last stage have seen the outputs."""
        mine = [metric.state for metric in metrics] if self._counts else None
        states = [each for each in wf.distributed.gather_objects(mine, METRICS) if each is not None]
        pairs = zip(metrics, zip(*states, strict=True), strict=True)
        return [metric.joined_state(each) for metric, each in pairs]

    def end_fit(self, trainer: Any) -> None:
        """See `Strategy`: the model on all processes gets the weights of all stages."""
        self.pipeline.gather_weights()

    def model_state(self, model: Any) -> Any:
        """See `Strategy`."""
        self.pipeline.exchange_weights()
        return super().model_state(model)  # which gathers what processes have parts of

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """See `Strategy`: what each stage keeps, under the names of the whole."""
        self.pipeline.scatter()  # after a training, weights are whole and what is kept is not
        own = {name: _as_array(value) for name, value in optimizer.state_dict().items()}
        parts = self.pipeline.group.gather_bytes(pickle.dumps(own))
        whole: dict[str, Any] = {}
        for part in parts:
            whole |= {name: _as_tensor(value) for name, value in pickle.loads(part).items()}
        return whole

    def load_optimizer(self, optimizer: Any, state: dict[str, Any]) -> None:
        """See `Strategy`: the entries of this process's stages."""
        self.pipeline.scatter()
        mine = parameters_of_slots(optimizer)
        chosen = {
            name: value
            for name, value in state.items()
            if name in mine or name not in self._slots_of_all
        }
        optimizer.load_state_dict(chosen)


def _check_mesh(stages: int, model: int, world: int) -> None:
    """Refuse numbers of processes along the axes that the world does not have."""
    are_numbers = type(stages) is type(model) is int and stages > 0 and model > 0
    if not are_numbers or world % (stages * model):
        count = stages * model if are_numbers else 2
        raise wf.ArgumentError(
            "train.PipelineStrategy",
            "the processes do not make pipelines of so many stages"
            if model == 1
            else 'the processes do not make a mesh of so many along "stage" and "model"',
            expected=f"stages x model: a divisor of {world}, the number of processes",
            got={"stages": stages, "model": model, "processes": world},
            fix=f"weft launch -n {count} train.py",
        )


def keep_parameters(optimizer: Any, parameters: Sequence[wf.Tensor]) -> None:
    """Have an optimiser keep some of its parameters, under the names that they have."""
    if optimizer.waiting is not None:
        raise wf.UnsupportedError(
            "train.PipelineStrategy",
            "the optimiser accumulates gradients by itself",
            expected="Trainer(accumulate=...) in place of the optimiser's",
            got={"accumulate": optimizer.accumulate},
            fix="leave accumulate out of the optimiser",
        )
    own = {id(parameter) for parameter in parameters}
    states = iter(list(optimizer.state))
    kept = []
    for group in optimizer.groups:
        triples = [
            (name, parameter, next(states))
            for name, parameter in zip(group.names, group.parameters, strict=True)
        ]
        chosen = [each for each in triples if id(each[1]) in own]
        group.names = tuple(name for name, _, _ in chosen)
        group.parameters = [parameter for _, parameter, _ in chosen]
        kept += [slots for _, _, slots in chosen]
    optimizer.state = kept


def _check_objective(trainer: Any) -> None:
    """Refuse losses that are more than a function of the last stage's outputs and the target."""
    is_own = type(trainer).objective is not wf.train.Trainer.objective
    if is_own or hasattr(trainer.loss_function, "named_parameters"):
        raise wf.UnsupportedError(
            "train.PipelineStrategy",
            "the loss is computed by the last stage, from its outputs and the target alone",
            expected="a loss without parameters, and the trainer's own objective",
            got={"trainer": type(trainer).__name__, "loss": trainer.loss_function},
            fix="put what the loss needs into the last module of the model",
        )


def _as_array(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, wf.Tensor) else value


def _as_tensor(value: Any) -> Any:
    return wf.tensor(value) if isinstance(value, np.ndarray) else value
