"""`Trainer(strategy="auto")`: the plan for a model and its first batch that takes least time.

The step of the trainer is planned as `weft plan` does: every mesh of data x model, with state that
is replicated or divided, and for a row of modules every pipeline, with its cut, schedule,
micro-batches and recomputation. Each is simulated; the fastest that fits the memory of a process
and that the trainer can run is taken, and a line says which, and what was faster but cannot be run.
Costs are given, not measured, so that the choice, and with it the bits of a training, do not depend
on the time of day.

>>> import weft as wf
>>> wf.random.seed(0)
>>> net = wf.nn.Linear(3, 1)
>>> trainer = wf.train.Trainer(
...     net, "mse_loss", wf.optim.Adam(net.parameters()), strategy="auto", progress=False
... )
>>> history = trainer.fit((wf.ones((8, 3)), wf.ones((8, 1))), batch_size=4)
>>> trainer.strategy.plan.best.mesh, trainer.strategy.plan.best.state
(Mesh(data=1, model=1), 'replicated')
>>> trainer.strategy.chosen.split(",")[0]
'strategy auto: Mesh(data=1'
>>> wf.distributed.shutdown()
"""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

import weft as wf
from weft.distributed.parameters import is_part
from weft.distributed.planning import Choice, Plan
from weft.sharding import Costs, parse_bytes
from weft.train import batches
from weft.train.mesh_strategy import MeshStrategy
from weft.train.pipeline_strategy import PipelineStrategy
from weft.train.strategies import STRATEGIES, DataStrategy, SplitStrategy, Strategy, WholeStrategy

__all__ = ["AutoStrategy", "find_strategy", "memory_of_process"]

PROCESSOR = Costs(bandwidth=4e9, latency=2e-5, flops=5e10, memory=1e10, overhead=1e-4)
"""About what a core does, and Open MPI on one host, for models that are on no card."""
LEVELS = {"replicated": 0, "moments divided": 2, "all divided": 3}
"""The level of ZeRO that keeps state as a choice of a plan says, where batches alone are split."""


class AutoStrategy(WholeStrategy):
    """The plan with which a step takes least time, looked for when a training begins.

    memory: of a process, in bytes or as "8GB"; else that of its host, divided among its processes.
    costs: of links and work, as `wf.distributed.read_costs` reads them; else about those of a
    core or, for a model on a card, of `Costs()`. What was chosen then takes the place of this
    strategy, with the plan as its `plan`.
    """

    def __init__(self, memory: str | int | None = None, costs: Any = None) -> None:
        super().__init__()
        self._memory, self._costs = memory, costs

    def begin_fit(self, trainer: Any, loader: Any) -> Any:
        """See `Strategy`: choose, and go on as the one that was chosen."""
        if any(is_part(parameter) for parameter in trainer.model.parameters()):
            return self._go_on(trainer, loader, _data_because("experts are divided already"))
        memory = int(memory_of_process()) if self._memory is None else self._memory
        searched = self.write_once(lambda: self._look(trainer, loader, memory))
        found = Plan(_no_step, searched.choices, parse_bytes("train.Trainer", memory))
        strategy = strategy_of(found.best)
        strategy.plan, strategy.chosen = found, text_of_choice(found, searched)
        return self._go_on(trainer, loader, strategy)

    def _go_on(self, trainer: Any, loader: Any, strategy: Strategy) -> Any:
        """Put a strategy in this one's place; the loader to read from."""
        trainer.strategy = strategy
        strategy.share_trainer(trainer)
        return strategy.begin_fit(trainer, loader)

    def _look(self, trainer: Any, loader: Any, memory: Any) -> Searched:
        """All choices for the loader's first batch."""
        place = loader.position if hasattr(loader, "position") else None
        batch = batches.as_batch(next(iter(loader)))
        if place is not None:
            loader.seek(*place)
        usual = PROCESSOR if trainer.device.kind == "cpu" else Costs()
        costs = usual if self._costs is None else self._costs
        return choices_of(trainer, batch, wf.distributed.world_size(), memory, costs)


def _no_step(*_: Any) -> None:
    """The trainer runs the step, and not its plan."""


class Searched(NamedTuple):
    """The choices that the trainer can run, and those that it cannot, each with the reason."""

    choices: list[Choice]
    refused: list[tuple[Choice, str]]
    without_stages: str | None
    """Why there are no pipelines among them, where there are none."""


def choices_of(trainer: Any, batch: Any, devices: int, memory: Any, costs: Any) -> Searched:
    """The ways to train on a batch on so many devices, each simulated."""
    one = wf.tensor(1.0)

    def step(batch: Any, model: Any, optimizer: Any, ema: Any, loss: Any, teacher: Any) -> Any:
        state = (model, optimizer, ema, loss, teacher)
        return trainer.train_programs.function(batch, state, one, one, True, False)[0]

    found = wf.distributed.plan(
        step, batch, *trainer.called_state(), devices=devices, memory=memory, costs=costs
    )
    pairs = [(choice, _reason_against(choice, trainer)) for choice in found.choices]
    choices = [choice for choice, reason in pairs if reason is None]
    refused = [(choice, reason) for choice, reason in pairs if reason is not None]
    without_stages = _reason_against_stages(trainer, batch) if devices > 1 else None
    if devices > 1 and without_stages is None:
        try:
            choices += wf.distributed.plan_pipeline(
                trainer.model, batch[0], devices=devices, memory=memory, costs=costs
            ).choices
        except wf.ArgumentError as error:  # rows, or modules, do not divide
            without_stages = error.problem
    return Searched(choices, refused, without_stages)


def _reason_against(choice: Choice, trainer: Any) -> str | None:
    """Why the trainer cannot run a choice of one program; None where it can."""
    optimizer = trainer.optimizer
    if choice.mesh.axes["model"] > 1 and not trainer.train_programs.compiled:
        return "the step is not compiled"
    is_whole = choice.mesh.axes["model"] == 1 and choice.state != "all divided"
    if trainer.ema is not None and not is_whole:
        return "the average of the weights is kept whole"
    if choice.mesh.axes["model"] > 1 or choice.state == "replicated":
        return None
    if not optimizer.rowwise:
        return f"{type(optimizer).__name__} looks at whole parameters"
    return None if optimizer.waiting is None else "the optimiser accumulates by itself"


def _reason_against_stages(trainer: Any, batch: Any) -> str | None:
    """Why the trainer cannot run the model as a pipeline; see `PipelineStrategy`."""
    is_pair = isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[0], wf.Tensor)
    has_own_objective = type(trainer).objective is not wf.train.Trainer.objective
    reasons = {
        "the model is no Sequential of several modules": not isinstance(
            trainer.model, wf.nn.Sequential
        )
        or len(trainer.model) < 2,
        "batches are no pairs of a tensor and a target": not is_pair,
        "the trainer has an objective of its own": has_own_objective,
        "the loss has parameters": hasattr(trainer.loss_function, "named_parameters"),
        "a teacher is asked": trainer.distillation is not None,
        "the optimiser accumulates by itself": trainer.optimizer.waiting is not None,
        "the average of the weights is kept whole": trainer.ema is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def text_of_choice(found: Plan, searched: Searched) -> str:
    """One line: what was chosen, what is next, and what would be faster but cannot be run."""
    best = found.best
    seconds = max(best.simulated.seconds, 1e-12)
    parts = [f"strategy auto: {_name(best)}, planned to take {seconds * 1e3:.3g} ms a step"]
    fitting = [each for each in found.choices[1:] if each.verdict.startswith("takes")]
    if fitting:
        parts.append(f"the next best is {_name(fitting[0])}, which {fitting[0].verdict}")
    lost = [(each, each.verdict) for each in found.choices if each.verdict.startswith("needs")]
    lost += searched.refused
    faster = sorted(
        (each for each in lost if each[0].simulated.seconds < seconds),
        key=lambda each: each[0].simulated.seconds,
    )
    if faster:
        choice, reason = faster[0]
        share = choice.simulated.seconds / seconds
        parts.append(f"{_name(choice)} would take {share:.2f} of the time, but: {reason}")
    if searched.without_stages is not None:
        parts.append(f"no pipelines, because {searched.without_stages}")
    return "; ".join(parts)


def _name(choice: Choice) -> str:
    return f"{choice.mesh}, {choice.state}"


class PlannedMeshStrategy(MeshStrategy):
    """A mesh with the placements that a choice has for every value of the step."""

    def __init__(self, choice: Choice) -> None:
        super().__init__(mesh=choice.mesh)
        self._chosen = choice.placements

    def placements(self, trainer: Any) -> dict[str, Any]:
        """See `MeshStrategy`; batches are placed by their rows."""
        return {name: spec for name, spec in self._chosen.items() if not name.startswith("batch")}


def strategy_of(choice: Choice) -> Strategy:
    """The strategy that runs a choice."""
    if choice.pipeline is not None:
        return PipelineStrategy(choice.mesh.axes["stage"], **choice.pipeline)
    if choice.mesh.axes["model"] > 1:
        return PlannedMeshStrategy(choice)
    level = LEVELS[choice.state]
    return SplitStrategy(level) if level == 3 else DataStrategy(level)


def find_strategy(wanted: str | Strategy | None, *, whole: bool = False) -> Strategy:
    """The strategy of a name, or the one given; None is that of one process.

    whole: whether "auto" must leave each process all parameters and state, as recovery needs.

    >>> find_strategy(None).size
    1
    """
    if wanted is None:
        return Strategy()
    if isinstance(wanted, Strategy):
        return wanted
    if wanted == "auto":
        reason = "recover=True needs all state in each process"
        return _data_because(reason) if whole else AutoStrategy()
    if wanted not in STRATEGIES:
        raise wf.ArgumentError(
            "train.Trainer",
            "there is no such strategy",
            expected="None, auto, one of " + ", ".join(STRATEGIES) + ", or a strategy of wf.train: "
            "MeshStrategy(plan, data=2, model=2), PipelineStrategy(stages=2), "
            "LocalStrategy(every=8), AutoStrategy(costs=...)",
            got={"strategy": wanted},
            fix='strategy="data"',
        )
    level = STRATEGIES[wanted]
    return SplitStrategy(level) if level == 3 else DataStrategy(level)


def _data_because(reason: str) -> DataStrategy:
    """Data parallel training with whole state, where nothing else can be run."""
    strategy = DataStrategy(0)
    strategy.chosen = f"strategy auto: data, because {reason}"
    return strategy


def memory_of_process() -> float:
    """The memory of a host for each process on it, of the host that has least."""
    own = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    rows = wf.distributed.gather_objects((socket.gethostname(), own))
    names = [name for name, _ in rows]
    return float(min(memory / names.count(name) for name, memory in rows))
