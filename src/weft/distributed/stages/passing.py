"""The micro-batches of one step on their way through the stages of a process.

What a stage returns is a tree of tensors. It goes to the process of the next stage, where its
floating tensors are leaves of a new graph of gradients; their gradients come back by the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

import weft as wf
from weft.distributed.stages.order import Task

if TYPE_CHECKING:
    from weft.distributed.stages.pipeline import Pipeline

__all__ = ["Passing", "gradient_array", "is_float", "slice_rows"]

Array = np.ndarray[Any, Any]


class Passing:
    """One step: what arrived, what is kept for the way back, and what the last stage gave."""

    def __init__(
        self, pipeline: Pipeline, parts: Sequence[Any], weights: Sequence[wf.Tensor | float]
    ) -> None:
        self._pipeline, self._parts, self._weights = pipeline, parts, weights
        self._local: dict[tuple[bool, int, int], tuple[list[Array], Any]] = {}
        """Messages from one stage of this process to another: by direction, stage, micro-batch."""
        self._inputs: dict[tuple[int, int], list[wf.Tensor]] = {}
        self._results: dict[tuple[int, int], list[wf.Tensor]] = {}
        self.losses: list[wf.Tensor] = []
        self._outputs: list[Any] = []

    def forward(self, task: Task) -> None:
        """Compute a stage for a micro-batch, and hand its results on."""
        stage, number = task.stage, task.micro_batch
        pipeline = self._pipeline
        inputs = self._inputs_of(task)
        if stage < pipeline.count - 1:
            outputs = pipeline.call_stage(stage, inputs)
            leaves, structure = wf.tree.flatten(outputs)
            self._keep(task, [leaf for leaf in leaves if is_float(leaf)])
            arrays = [_array_of(leaf) for leaf in leaves]
            self._send(Task(True, stage + 1, number), arrays, structure)
            return
        if pipeline.loss_function is None:
            self._outputs.append(pipeline.call_stage(stage, inputs))
            return
        target, weight = self._parts[number][1], _as_tensor(self._weights[number])
        weighted, loss, outputs = pipeline.call_stage(stage, inputs, target, weight)
        self._keep(task, [weighted])
        self.losses.append(loss)
        self._outputs.append(wf.tree.map_tree(lambda leaf: leaf.detach(), outputs))

    def backward(self, task: Task) -> None:
        """Go back through a stage for a micro-batch, and hand the gradients of its inputs back."""
        stage, number = task.stage, task.micro_batch
        results = self._results.pop((stage, number))
        if stage == self._pipeline.count - 1:
            results[0].backward()
        else:
            arrays, _ = self._receive(task)
            _go_back(results, [wf.tensor(array) for array in arrays])
        inputs = self._inputs.pop((stage, number))
        if stage > 0:
            gradients = [gradient_array(leaf) for leaf in inputs]
            self._send(Task(False, stage - 1, number), gradients, None)

    def joined_outputs(self) -> Any:
        """The outputs of all micro-batches, joined; None where the last stage is elsewhere."""
        if not self._outputs:
            return None
        return wf.tree.map_tree(lambda *leaves: wf.concat(leaves), *self._outputs)

    def _inputs_of(self, task: Task) -> Any:
        """What a stage is given: a part of the batch, or what the stage before has sent."""
        if task.stage == 0:
            self._inputs[task.stage, task.micro_batch] = []
            return self._parts[task.micro_batch][0]
        arrays, structure = self._receive(task)
        leaves = [wf.tensor(array) for array in arrays]
        floating = [leaf for leaf in leaves if is_float(leaf)]
        for leaf in floating:
            leaf.requires_grad_(True)
        self._inputs[task.stage, task.micro_batch] = floating
        return wf.tree.unflatten(structure, leaves)

    def _keep(self, task: Task, results: list[wf.Tensor]) -> None:
        """Keep results for the way back, where there is one."""
        if not wf.is_grad_enabled():
            del self._inputs[task.stage, task.micro_batch]
            return
        self._results[task.stage, task.micro_batch] = results

    def _send(self, task: Task, arrays: Sequence[Array], note: Any) -> None:
        """Send what another task needs to the process that does it."""
        pipeline, target = self._pipeline, self._pipeline.process_of(task.stage)
        if target == pipeline.rank:
            self._local[task] = [array.copy() for array in arrays], note
        else:
            pipeline.group.send(arrays, target, self._tag_of(task), note)

    def _receive(self, task: Task) -> tuple[list[Array], Any]:
        """What another task has sent for this one."""
        if task in self._local:
            return self._local.pop(task)
        pipeline = self._pipeline
        source = pipeline.process_of(task.stage - 1 if task.is_forward else task.stage + 1)
        return pipeline.group.receive(source, self._tag_of(task), f"for {task}")

    def _tag_of(self, task: Task) -> int:
        """A number for each task of a step; 0 is for other messages."""
        place = task.micro_batch * self._pipeline.count + task.stage
        return 1 + 2 * place + task.is_forward


def slice_rows(batch: Any, count: int) -> list[tuple[Any, int]]:
    """Parts of a batch along the first axis of its tensors, and how many rows each has.

    There are `count` of them, or as many as rows; the first ones have one row more where they do
    not divide.

    >>> [(part.tolist(), rows) for part, rows in slice_rows(wf.arange(5), 2)]
    [([0, 1, 2], 3), ([3, 4], 2)]
    """
    leaves, structure = wf.tree.flatten(batch)
    sizes = {int(leaf.shape[0]) for leaf in leaves if getattr(leaf, "shape", ())}
    if len(sizes) != 1 or 0 in sizes:
        raise wf.ShapeError(
            "distributed.Pipeline",
            "the batch cannot be cut into micro-batches",
            expected="tensors with the same number of rows, at least one",
            got={f"batch[{i}]": leaf for i, leaf in enumerate(leaves)},
            fix="give each tensor one row for each example",
        )
    (rows,) = sizes
    count = min(count, rows)
    bounds = [rows // count * i + min(i, rows % count) for i in range(count + 1)]
    return [
        (
            wf.tree.unflatten(
                structure,
                [x[start:end] if getattr(x, "shape", ()) else x for x in map(_as_tensor, leaves)],
            ),
            end - start,
        )
        for start, end in pairwise(bounds)
    ]


def is_float(leaf: wf.Tensor) -> bool:
    """Whether gradients flow through a tensor of this dtype."""
    return leaf.dtype.is_inexact


def gradient_array(leaf: wf.Tensor) -> Array:
    """The gradient of a tensor; zeros where it has none."""
    if leaf.grad is None:
        return np.zeros(leaf.shape, leaf.dtype.numpy)
    array: Array = leaf.grad.numpy()
    return array


def _as_tensor(leaf: Any) -> Any:
    is_number = isinstance(leaf, (np.ndarray, np.generic, float))
    return wf.asarray(leaf) if is_number else leaf


def _array_of(leaf: wf.Tensor) -> Array:
    array: Array = leaf.detach().numpy()
    return array


def _go_back(results: Sequence[wf.Tensor], gradients: Sequence[wf.Tensor]) -> None:
    """Go back from several results at once, through a graph that they share."""
    pairs = [(y, g) for y, g in zip(results, gradients, strict=True) if y.requires_grad]
    if len(pairs) == 1:
        pairs[0][0].backward(pairs[0][1])
    elif pairs:
        # The derivative of the sum of products with constants has these gradients.
        terms = [(y * g).sum() for y, g in pairs]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        total.backward()
