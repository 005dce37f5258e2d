"""One step over a mesh as a setting of the trainer: `Trainer(strategy=MeshStrategy(...))`.

The step is one program over whole values, divided as `wf.distributed.partition` does: data, tensor
and sequence parallel by a plan of placements. Every process reads whole batches, keeps its part of
what the plan splits, and sees whole outputs, so metrics and losses are those of one process.

>>> import weft as wf
>>> from weft.distributed import split
>>> wf.random.seed(0)
>>> net = wf.nn.Sequential(wf.nn.Linear(2, 8), wf.nn.Tanh(), wf.nn.Linear(8, 1))
>>> plan = {"0.*": split(0, "model"), "2.weight": split(1, "model")}
>>> trainer = wf.train.Trainer(
...     net, "mse_loss", wf.optim.Adam(net.parameters(), lr=0.1), progress=False,
...     strategy=MeshStrategy(plan, data=1, model=1),
... )
>>> x = wf.random.normal((32, 2))
>>> history = trainer.fit((x, x.sum(axis=1, keepdims=True)), epochs=20, batch_size=16)
>>> history["loss"][-1] < 0.1 * history["loss"][0]
True
>>> wf.distributed.shutdown()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import weft as wf
from weft.distributed.parameters import is_part
from weft.distributed.partitioning import digest_of_numbers
from weft.distributed.placing import match_plan
from weft.distributed.process_group import mesh_axes
from weft.distributed.stages.tensor_parallel import unknown_pattern
from weft.train.strategies import WholeStrategy

__all__ = ["MeshStrategy"]


class MeshStrategy(WholeStrategy):
    """Training by one program that is divided over the mesh axes given, which fit the world.

    plan: placements by patterns of the names of parameters; the first that matches counts, and what
    the optimiser keeps for a parameter is placed as it is. Names of `optimizer.state` may be given,
    too: `{"optimizer.state*": wf.distributed.divided("data")}`. Rows of batches are split along the
    axis "data", where it is there and they divide. What is not named is replicated.
    """

    def __init__(
        self, plan: Mapping[str, Any] | None = None, *, mesh: Any = None, **axes: int
    ) -> None:
        super().__init__()
        self.mesh = wf.distributed.Mesh(**axes) if mesh is None else mesh
        self.mesh.check_world(wf.distributed.world_size())
        wf.distributed.bind_axes(self.mesh.axes)
        self._plan = dict(plan or {})
        self._divided: Any = None
        self._is_scattered = False

    def share_trainer(self, trainer: Any) -> None:
        """See `Strategy`: state becomes that of the first process, and the step is divided."""
        if not trainer.train_programs.compiled:
            raise wf.UnsupportedError(
                "train.MeshStrategy",
                "a step is divided as a program",
                expected="Trainer(compile=True)",
                got={"compile": False},
                fix="leave compile out",
            )
        if any(is_part(parameter) for parameter in trainer.model.parameters()):
            raise wf.UnsupportedError(
                "train.MeshStrategy",
                "a plan places whole parameters, and processes have parts of these",
                expected="a model without shard_experts and shard_parameters",
                got={"mesh": self.mesh},
                fix='strategy="data" with divided experts; divided("data") in a plan for ZeRO',
            )
        self._copy_state(trainer)
        self._divide(trainer)

    def begin_anew(self, trainer: Any) -> None:
        """See `Strategy`: the step is divided over the mesh of those that are left."""
        self.rank = wf.distributed.rank()
        self._divided.forget(*trainer.called_state())
        self._is_scattered = False
        self.mesh = wf.distributed.Mesh(costs=self.mesh.costs, **mesh_axes())
        self._divide(trainer)

    def _divide(self, trainer: Any) -> None:
        """Divide the step, and evaluation, over the mesh."""
        functions = trainer.train_programs.function, trainer.evaluation_programs.function

        def divided_step(
            batch: Any, model: Any, optimizer: Any, ema: Any, loss: Any, teacher: Any,
            *settings: Any,
        ) -> Any:  # fmt: skip
            state, marked = (model, optimizer, ema, loss, teacher), self._mark_rows(batch)
            if not settings:
                return functions[1](marked, state)
            return functions[0](marked, state, *settings)

        placements = self.placements(trainer)
        self._divided = wf.distributed.partition(divided_step, self.mesh, placements)

    def _copy_state(self, trainer: Any) -> None:
        with wf.no_grad():
            for handle in wf.tree.leaves(trainer.called_state()):
                if isinstance(handle, wf.Tensor):
                    handle.copy_(wf.distributed.broadcast(handle, "world"))

    def _mark_rows(self, batch: Any) -> Any:
        """A batch whose rows are split along data, where they divide."""
        count = self.mesh.axes.get("data", 1)

        def mark(leaf: Any) -> Any:
            if not isinstance(leaf, wf.Tensor) or not leaf.ndim or leaf.shape[0] % count:
                return leaf
            return wf.distributed.shard(leaf, {"data": wf.distributed.split(0)})

        return wf.tree.map_tree(mark, batch) if count > 1 else batch

    def placements(self, trainer: Any) -> dict[str, Any]:
        """The plan under the names that values have in the step."""
        names = [name for name, _ in trainer.model.named_parameters()]
        for pattern, spec in self._plan.items():
            is_used = any(match_plan({pattern: spec}, name)[0] for name in names)
            if not is_used and not pattern.startswith(STATE):
                raise unknown_pattern("train.MeshStrategy", pattern, names)
        found = {name: spec for name, spec in self._plan.items() if name.startswith(STATE)}
        handles = dict(trainer.model.named_parameters())
        specs = {name: match_plan(self._plan, name) for name in names}
        placed = {id(handles[name]): spec for name, (is_named, spec) in specs.items() if is_named}
        found |= {f"model.{name}": spec for name, (is_named, spec) in specs.items() if is_named}
        optimizer = trainer.optimizer
        pairs = zip(optimizer.parameters, optimizer.state, strict=True)
        for number, (parameter, slots) in enumerate(pairs):
            if id(parameter) in placed:
                for slot, value in slots.items():
                    if value.shape == parameter.shape:
                        found[f"{STATE}[{number}].{slot}"] = placed[id(parameter)]
        return found

    def run_step(self, trainer: Any, batch: Any, *settings: Any) -> tuple[wf.Tensor, Any, Any]:
        """See `Strategy`: this process's part of the step."""
        if trainer.batches == 0:
            self._compare_numbers(batch)
        arguments = (batch, *trainer.called_state(), *settings)
        if not self._is_scattered:
            self._divided.scatter(*arguments)
            self._is_scattered = True
        results: tuple[wf.Tensor, Any, Any] = self._divided(*arguments)
        return results

    def _compare_numbers(self, batch: Any) -> None:
        """Refuse an epoch whose first batch is another one on some process.

        Each computes a part of one batch: of two, with what was drawn at random for items, it would
        be a mixture of both.
        """
        if self.mesh.size == 1:
            return
        leaves = [leaf for leaf in wf.tree.leaves(batch) if isinstance(leaf, wf.Tensor)]
        facts = {"the numbers of a batch": "\n".join(map(digest_of_numbers, leaves))}
        wf.distributed.world().compare_facts("train.MeshStrategy", facts)

    def run_evaluation(self, trainer: Any, batch: Any) -> tuple[wf.Tensor, Any]:
        """See `Strategy`."""
        results: tuple[wf.Tensor, Any] = self._divided(batch, *trainer.called_state())
        return results

    def _gather(self, *holders: Any) -> None:
        """Give what holders have parts of its whole value; the next step divides it again."""
        if self._is_scattered:
            self._divided.gather(None, *holders)

    def end_fit(self, trainer: Any) -> None:
        """See `Strategy`: the model and the optimiser are whole on all processes."""
        self._gather(*trainer.called_state())
        self._is_scattered = False

    def model_state(self, model: Any) -> Any:
        """See `Strategy`."""
        self._gather(model)
        self._is_scattered = False
        return super().model_state(model)

    def load_model(self, model: Any, weights: Any) -> None:
        """See `Strategy`."""
        self._gather(model)
        self._is_scattered = False
        super().load_model(model, weights)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """See `Strategy`."""
        self._gather(optimizer)
        self._is_scattered = False
        return super().optimizer_state(optimizer)

    def load_optimizer(self, optimizer: Any, state: dict[str, Any]) -> None:
        """See `Strategy`."""
        self._gather(optimizer)
        self._is_scattered = False
        super().load_optimizer(optimizer, state)


STATE = "optimizer.state"
"""How the names of what an optimiser keeps begin."""
