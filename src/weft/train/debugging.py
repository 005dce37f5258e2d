"""The NaN stop: it names the line that made the first NaN of a training.

>>> import weft as wf
>>> model = wf.nn.Linear(1, 1)
>>> def loss(outputs, target):
...     return wf.log(outputs - outputs - 1).mean()
>>> optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
>>> trainer = wf.train.Trainer(
...     model, loss, optimizer, callbacks=[wf.train.StopOnNan()], progress=False
... )
>>> try:
...     _ = trainer.fit((wf.ones((4, 1)), wf.ones((4, 1))))
... except wf.NanError as error:
...     print(error.op, "-", error.problem)
log - the first NaN is made here
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import weft as wf
from weft.train.callbacks import Callback

__all__ = ["StopOnNan"]


class StopOnNan(Callback):
    """Stop at the first loss that is NaN, with the operation and the line that made it.

    The weights before each step are kept until it is over, which costs their memory once more. A
    step that gives NaN is run again from them, eagerly, under `wf.debug.nans`.
    """

    def __init__(self) -> None:
        self.weights: dict[str, wf.Tensor] = {}
        self.random: Any = None

    def on_step_begin(self, trainer: Any) -> None:
        """Keep the weights: values that no update changes, so nothing is copied."""
        self.weights, self.random = trainer.model.state_dict(), wf.random.get_state()

    def on_step_end(self, trainer: Any) -> None:
        """Look at the loss."""
        if not math.isnan(trainer.loss):
            return
        _refuse("the weights were NaN before this step", trainer, self.weights)
        leaves = [x for x in wf.tree.leaves(trainer.batch) if isinstance(x, wf.Tensor)]
        _refuse("the batch holds NaN", trainer, {f"batch[{i}]": x for i, x in enumerate(leaves)})
        trainer.model.load_state_dict(self.weights)
        wf.random.set_state(self.random)
        with wf.debug.nans():
            loss, _ = trainer.precise_objective(trainer.batch)
            loss.backward()

    def on_fit_end(self, trainer: Any) -> None:
        """Drop the kept weights."""
        self.weights = {}


def _refuse(problem: str, trainer: Any, tensors: Mapping[str, wf.Tensor]) -> None:
    for name, tensor in tensors.items():
        array = tensor.detach().numpy()
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise wf.NanError(
                "train.StopOnNan",
                f"{problem}: {name}",
                expected="numbers only",
                got={name: tensor, "epoch": trainer.epoch + 1, "batch": trainer.batches - 1},
                fix="clean the data, or load a checkpoint from before",
            )
