"""Distillation: a model learns from another one's answers beside the true ones.

>>> import weft as wf
>>> teacher, student = wf.nn.Linear(2, 3), wf.nn.Linear(2, 3)
>>> optimizer = wf.optim.Adam(student.parameters(), lr=0.05)
>>> trainer = wf.train.Trainer(student, "cross_entropy", optimizer, progress=False,
...                            distillation=wf.train.Distillation(teacher, weight=1.0))
>>> x, y = wf.random.normal((32, 2)), wf.zeros(32, dtype="int64")
>>> history = trainer.fit((x, y), epochs=30, batch_size=32)
>>> bool(wf.all(wf.abs(wf.softmax(student(x), axis=1) - wf.softmax(teacher(x), axis=1)) < 0.3))
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.train import batches

__all__ = ["Distillation"]


class Distillation:
    """How a `Trainer` lets its model learn from a teacher.

    The loss of a step is (1 - weight) times the trainer's own, which needs true targets, and weight
    times how far the model is from the teacher: the cross entropy of probabilities along `axis`
    softened by the temperature, times its square, so that gradients keep their size (Hinton et al.,
    2015); or `loss(outputs, teacher's outputs)`. The teacher is called as in evaluation, without
    derivatives, on the same inputs, and is not changed. Evaluation is by the trainer's own loss.
    """

    def __init__(
        self,
        teacher: wf.nn.Module,
        weight: float = 0.5,
        temperature: float = 2.0,
        *,
        axis: int = -1,
        loss: Callable[[Any, Any], wf.Tensor] | None = None,
    ) -> None:
        if not isinstance(teacher, wf.nn.Module):
            raise wf.ArgumentTypeError(
                "train.Distillation",
                "the teacher is no module",
                expected="a wf.nn.Module that takes the same inputs",
                got={"teacher": type(teacher).__name__},
                fix="wf.train.Distillation(net, weight=0.5)",
            )
        if not 0 <= weight <= 1 or not temperature > 0:
            raise wf.ArgumentError(
                "train.Distillation",
                "the weight is no share, or the temperature is not positive",
                expected="0 <= weight <= 1, temperature > 0",
                got={"weight": weight, "temperature": temperature},
                fix="wf.train.Distillation(teacher, weight=0.5, temperature=2.0)",
            )
        self.teacher, self.weight, self.temperature = teacher.eval(), weight, temperature
        self.axis, self.loss = axis, loss

    @property
    def settings(self) -> tuple[Any, ...]:
        """What a step depends on beside the teacher."""
        return self.weight, self.temperature, self.axis, self.loss

    def total_loss(self, own: wf.Tensor, outputs: Any, batch: Any) -> wf.Tensor:
        """The loss of a step, given the trainer's own and what the model answered to a batch."""
        inputs, _ = batches.split(batch)
        with wf.no_grad():
            wanted = self.teacher(*inputs)
        apart = (self.loss or self._difference)(outputs, wanted)
        return (1 - self.weight) * own + self.weight * apart

    def _difference(self, outputs: Any, wanted: Any) -> wf.Tensor:
        if not isinstance(outputs, wf.Tensor) or outputs.shape != wanted.shape:
            raise wf.ShapeError(
                "train.Distillation",
                "the model and its teacher answer in other shapes",
                expected="one tensor of logits of each, of the same shape",
                got={"model": outputs, "teacher": wanted},
                fix="wf.train.Distillation(teacher, loss=lambda ours, theirs: ...)",
            )
        soft = wf.softmax(wf.moveaxis(wanted, self.axis, -1) / self.temperature, axis=-1)
        logits = wf.moveaxis(outputs, self.axis, -1) / self.temperature
        terms = -wf.sum(soft * F.log_softmax(logits, axis=-1), axis=-1)
        return wf.mean(terms) * self.temperature**2
