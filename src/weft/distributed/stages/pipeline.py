"""Pipelines: a model cut into stages along a mesh axis, through which micro-batches pass.

    pipeline = wf.distributed.Pipeline(model, loss, micro_batches=8)
    optimizer = pipeline.share(wf.optim.AdamW(pipeline.parameters()))
    for x, y in loader:
        loss = pipeline.step(x, y)
        optimizer.step()
        optimizer.zero_grad()

Each process computes its stages for one micro-batch after another, in the order of a schedule
(order.py), and hands results on and gradients back by messages. Gradients are the sums over
micro-batches in their order, so they are those of one process that does the same.

>>> import weft as wf
>>> wf.distributed.init(axes={"stage": 1})
>>> model = wf.nn.Sequential(wf.nn.Linear(2, 4), wf.nn.Tanh(), wf.nn.Linear(4, 1))
>>> pipeline = Pipeline(model, wf.nn.functional.mse_loss, micro_batches=2)
>>> pipeline.step(wf.ones((4, 2)), wf.zeros((4, 1))).ndim, model[0].weight.grad.shape
(0, (4, 2))
>>> wf.distributed.shutdown()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.collectives import find_group
from weft.distributed.group import Group
from weft.distributed.sharing import data_parallel, share_stages
from weft.distributed.stages.cutting import cut_stages
from weft.distributed.stages.order import Task, pipeline_order
from weft.distributed.stages.passing import Passing, gradient_array, slice_rows
from weft.distributed.stages.tensor_parallel import TensorParallel
from weft.nn import Module

__all__ = ["Pipeline"]


class Pipeline:
    """The stages of this process, and the steps that all processes along an axis make together.

    model: a Sequential, or a list of modules or functions of which each takes what the one before
    returns; the first takes the inputs of a batch. Every process is given all of it, and keeps its
    stages. loss: of the last one's result and the target, a mean over rows. micro_batches: into how
    many a batch is cut; four for each process by default. schedule: "gpipe", "1f1b" or
    "interleaved", with `chunks` stages on each process. cut: the places in the list where a stage
    begins; without it stages have as even numbers of parameters as can be. recompute: keep the
    inputs of stages alone, and compute the rest again on the way back. mixed: what is around each
    stage, as `optimizer.mixed` for a lower precision. plan: placements along the mesh axis
    `model_axis` by patterns of the names of parameters, as `{"*.query.weight": split(0)}`;
    processes along it compute each stage together, and keep parts of what the plan splits.
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[..., wf.Tensor] | None = None,
        *,
        micro_batches: int | None = None,
        schedule: str = "1f1b",
        chunks: int = 1,
        cut: Sequence[int] | None = None,
        recompute: bool = False,
        compile: bool = True,
        mixed: Callable[[Any], Any] | None = None,
        mesh_axis: str = "stage",
        plan: Mapping[str, Any] | None = None,
        model_axis: str = "model",
    ) -> None:
        group = find_group("distributed.Pipeline", mesh_axis)
        assert isinstance(group, Group)
        self.group, self.mesh_axis = group, mesh_axis
        self.micro_batches = 4 * group.size if micro_batches is None else micro_batches
        self.schedule, self.chunks = schedule, chunks
        pipeline_order(schedule, group.size, self.micro_batches, chunks)  # refuses what is wrong
        rows = cut_stages(model, group.size * chunks, cut)
        self.count = len(rows)
        stages = [Stage(row) for row in rows]
        own = range(self.rank, self.count, group.size)
        self.stages = {number: stages[number] for number in own}
        self.tied = _tied_parameters(stages, self.process_of)
        self.loss_function = loss
        self._names = _names_of_parameters(model, self.stages)
        self.model = model
        self.owners = self._find_owners(stages)
        wrappers = [mixed] if mixed is not None else []
        wrappers += [wf.checkpoint] if recompute else []
        for parameter, _ in self.tied:
            _copy_from_first(parameter, mesh_axis)
        self.tensor_parallel: TensorParallel | None = None
        if plan is not None:
            _check_compiled(compile)
            named = _names_of_parameters(model, dict(enumerate(stages)))
            self.tensor_parallel = TensorParallel(plan, model_axis, named)
            self.tensor_parallel.copy_from_first([handle for handle, _ in self.owners])
        divide = wf.jit if self.tensor_parallel is None else self.tensor_parallel.program
        wrappers += [divide] if compile else []
        self._programs = {i: self._program_of(i, wrappers) for i in self.stages}
        self.scatter()

    def scatter(self) -> None:
        """Leave this process its parts of what the plan splits; see `gather_weights`."""
        if self.tensor_parallel is not None:
            self.tensor_parallel.scatter()

    @property
    def rank(self) -> int:
        """The number of this process along the axis."""
        return self.group.rank

    @property
    def has_loss(self) -> bool:
        """Whether this process holds the last stage, which computes the loss and the outputs."""
        return self.count - 1 in self.stages

    def process_of(self, stage: int) -> int:
        """The process along the axis that holds a stage."""
        return stage % self.group.size

    def parameters(self) -> list[wf.Tensor]:
        """The parameters of this process's stages."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_parameters(self) -> Iterator[tuple[str, wf.Tensor]]:
        """The parameters of this process's stages, by their names in the model."""
        return iter(self._names)

    def train(self, mode: bool = True) -> None:
        """Set the training mode of this process's stages."""
        for stage in self.stages.values():
            stage.train(mode)

    def share(self, optimizer: Any, *, zero: int = 0, data_axis: str | None = None) -> Any:
        """The optimiser of this process's stages, whose steps agree with those of the others.

        Norms are of all stages' gradients. Where a mesh axis `data_axis` is given, processes along
        it take parts of the batch; zero: as for `data_parallel`, 0 to 2.
        """
        if zero == 3:
            raise wf.UnsupportedError(
                "distributed.Pipeline",
                "the parameters of stages are not split along the axis of batches (ZeRO 3)",
                expected="zero: 0, 1 or 2",
                got={"zero": zero, "data_axis": data_axis},
                note="every micro-batch would gather all parameters of its stage, twice",
                fix="zero=2, and more stages, or a plan that splits parameters along a model axis",
            )
        self.scatter()
        if self.tensor_parallel is not None:
            self.tensor_parallel.share_slots(optimizer)
        if data_axis is not None:
            data_parallel(optimizer, zero=zero, mesh_axis=data_axis)
        first = {id(parameter) for parameter, owner in self.tied if owner != self.rank}
        counted = tuple(id(parameter) not in first for parameter in optimizer.parameters)
        return share_stages(optimizer, self.mesh_axis, counted)

    def step(self, *batch: Any, factor: wf.Tensor | float = 1.0) -> wf.Tensor:
        """The mean loss of a batch, on all processes; gradients are added to the parameters'.

        batch: the inputs of the first stage, then the target; the same on all processes along the
        axis. factor: what the loss is multiplied by on the way back, as a loss scale.
        """
        loss, _ = self.run(batch[:-1], batch[-1], factor=factor)
        return loss

    def run(
        self, inputs: Sequence[Any], target: Any, *, factor: wf.Tensor | float = 1.0
    ) -> tuple[wf.Tensor, Any]:
        """The mean loss of a batch, and the model's outputs where they are: else None."""
        self._check_loss_function()
        parts, shares = self._micro_batches((tuple(inputs), target))
        passing = Passing(self, parts, [share * factor for share in shares])
        for task in self._tasks(len(parts)):
            passing.forward(task) if task.is_forward else passing.backward(task)
        self._sum_tied_gradients()
        return self._shared_loss(passing.losses, shares), passing.joined_outputs()

    def evaluate(self, inputs: Sequence[Any], target: Any) -> tuple[wf.Tensor, Any]:
        """The mean loss without gradients, and the outputs where they are: else None."""
        self._check_loss_function()
        parts, shares = self._micro_batches((tuple(inputs), target))
        passing = Passing(self, parts, shares)
        self._go_forward(passing, len(parts))
        return self._shared_loss(passing.losses, shares), passing.joined_outputs()

    def predict(self, *inputs: Any) -> Any:
        """The model's outputs, on all processes along the axis."""
        parts, shares = self._micro_batches((tuple(inputs), None))
        passing = Passing(self, parts, shares)
        self._go_forward(passing, len(parts))
        outputs, last = passing.joined_outputs(), self.process_of(self.count - 1)
        leaves, structure = wf.tree.flatten(outputs)
        if self.rank == last:
            arrays = [leaf.detach().numpy() for leaf in leaves]
            for other in range(self.group.size):
                if other != last:
                    self.group.send(arrays, other, 0, structure)
            return outputs
        arrays, structure = self.group.receive(last, 0, "outputs")
        return wf.tree.unflatten(structure, map(wf.tensor, arrays))

    def _go_forward(self, passing: Passing, micro_batches: int) -> None:
        with wf.no_grad():
            for task in self._tasks(micro_batches):
                if task.is_forward:
                    passing.forward(task)

    def _tasks(self, micro_batches: int) -> list[Task]:
        """The tasks of this process; a short batch of any number goes forward first."""
        uneven = self.schedule == "interleaved" and micro_batches % self.group.size
        name = "gpipe" if uneven else self.schedule
        return pipeline_order(name, self.group.size, micro_batches, self.chunks)[self.rank]

    def _micro_batches(self, batch: Any) -> tuple[list[Any], list[float]]:
        """The micro-batches of a batch, and what share of its rows each has."""
        if wf.ir.is_tracing():
            raise wf.UnsupportedError(
                "distributed.Pipeline",
                "a pipeline exchanges messages, and cannot be part of a compiled function",
                expected="a call outside of wf.jit; each stage is compiled by itself",
                got={"schedule": self.schedule},
                fix="call pipeline.step(x, y) in the loop, then optimizer.step()",
            )
        if self.tensor_parallel is not None:
            self.tensor_parallel.compare(batch)
            self.tensor_parallel.scatter()
        parts = slice_rows(batch, self.micro_batches)
        rows = [count for _, count in parts]
        return [part for part, _ in parts], [count / sum(rows) for count in rows]

    def _program_of(self, stage: int, wrappers: Sequence[Callable[[Any], Any]]) -> Any:
        """The function of a stage: its outputs, and of the last one the weighted loss, too."""
        is_last = stage == self.count - 1

        def outputs_of(module: Stage, inputs: Any) -> Any:
            return module(*inputs) if stage == 0 else module(inputs)

        def loss_of(module: Stage, inputs: Any, target: Any, weight: Any) -> Any:
            outputs = outputs_of(module, inputs)
            assert self.loss_function is not None
            loss = self.loss_function(outputs, target)
            return loss * weight, loss.detach(), outputs

        function: Callable[..., Any] = outputs_of
        if is_last and self.loss_function is not None:
            function = loss_of
        for wrap in wrappers:
            function = wrap(function)
        return function

    def _find_owners(self, stages: Sequence[Stage]) -> list[tuple[wf.Tensor, int]]:
        """The parameters and buffers of all stages, each with the first process that has it."""
        owners: dict[int, tuple[wf.Tensor, int]] = {}
        for number, stage in enumerate(stages):
            for handle in [*stage.parameters(), *[buffer for _, buffer in stage.named_buffers()]]:
                owners.setdefault(id(handle), (handle, self.process_of(number)))
        return list(owners.values())

    def gather_weights(self) -> None:
        """Give the model on each process the parameters and buffers of all stages, whole.

        The next step takes the parts again that a plan splits.
        """
        self.exchange_weights()
        if self.tensor_parallel is not None:
            self.tensor_parallel.gather()

    def exchange_weights(self) -> None:
        """Give each process what others have of their stages; what is a part stays one."""
        with wf.no_grad():
            for handle, owner in self.owners:
                array = np.require(handle.detach().numpy(), requirements="C")
                handle.copy_(wf.tensor(self.group.broadcast(array, owner)))

    def call_stage(self, stage: int, *arguments: Any) -> Any:
        """What a stage of this process returns."""
        return self._programs[stage](self.stages[stage], *arguments)

    def _shared_loss(self, losses: Sequence[wf.Tensor], shares: Sequence[float]) -> wf.Tensor:
        """The mean of the losses by shares, on all processes along the axis."""
        total = np.zeros((), np.float32)
        for loss, share in zip(losses, shares, strict=False):
            total += np.float32(share) * loss.detach().astype("float32").numpy()
        return wf.tensor(self.group.broadcast(total, self.process_of(self.count - 1)))

    def _sum_tied_gradients(self) -> None:
        """Add the gradients of a parameter that several processes hold."""
        own = {id(parameter) for parameter in self.parameters()}
        for parameter, _ in self.tied:
            array = np.require(gradient_array(parameter), requirements="C")
            total = self.group.all_reduce(array, "sum")
            if id(parameter) in own:
                parameter.grad = wf.tensor(total)

    def _check_loss_function(self) -> None:
        if self.loss_function is None:
            raise wf.ArgumentError(
                "distributed.Pipeline",
                "the pipeline was given no loss",
                expected="a loss of the outputs and the target",
                got={"loss": None},
                fix="Pipeline(model, wf.nn.functional.cross_entropy)",
            )


def _check_compiled(is_compiled: bool) -> None:
    if not is_compiled:
        raise wf.UnsupportedError(
            "distributed.Pipeline",
            "a plan divides stages as programs",
            expected="compile=True with a plan",
            got={"compile": False},
            fix="leave compile out",
        )


class Stage(Module):
    """Modules and functions, each of which takes what the one before returns."""

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__()
        self.parts = list(parts)

    def forward(self, *inputs: Any) -> Any:
        """What the last part returns."""
        result = self.parts[0](*inputs)
        for part in self.parts[1:]:
            result = part(result)
        return result


def _tied_parameters(
    stages: Sequence[Any], process_of: Callable[[int], int]
) -> list[tuple[wf.Tensor, int]]:
    """Parameters that stages of several processes have in common, and the first of these."""
    found: dict[int, tuple[wf.Tensor, set[int]]] = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters():
            found.setdefault(id(parameter), (parameter, set()))[1].add(process_of(number))
    return [(parameter, min(owners)) for parameter, owners in found.values() if len(owners) > 1]


def _names_of_parameters(model: Any, stages: dict[int, Any]) -> list[tuple[str, wf.Tensor]]:
    """The parameters of stages, each once, by name: the model's own, or stage and place in it."""
    own = {id(parameter) for stage in stages.values() for parameter in stage.parameters()}
    if hasattr(model, "named_parameters"):
        return [(name, p) for name, p in model.named_parameters() if id(p) in own]
    names: dict[int, tuple[str, wf.Tensor]] = {}
    for number, part in enumerate(model):
        for name, parameter in part.named_parameters() if hasattr(part, "named_parameters") else ():
            names.setdefault(id(parameter), (f"{number}.{name}", parameter))
    return [pair for key, pair in names.items() if key in own]


def _copy_from_first(parameter: wf.Tensor, mesh_axis: str) -> None:
    with wf.no_grad():
        parameter.copy_(wf.distributed.broadcast(parameter, mesh_axis))
