"""The comparison's networks without a compiler, beside PyTorch without one."""

from __future__ import annotations

from dataclasses import replace

from suite.task import Workload
from suite.workloads import WORKLOADS as COMPARED
from suite.workloads import lenet

AIM = 1.0
"""Weft's time at most, as a multiple of PyTorch's."""


def _eager(workload: Workload) -> Workload:
    """The workload for Weft and PyTorch, which alone can run it eagerly here."""
    sides = {name: workload.sides[name] for name in ("weft", "torch")}
    return replace(workload, sides=sides, aim=AIM, rivals=("torch",))


TRAINING = {
    name: _eager(COMPARED[name]) for name in ("mlp", "lenet", "gpt", "resnet", "lstm", "deepfm")
}
INFERENCE = {name: _eager(COMPARED[name]) for name in ("mlp-infer", "lenet-infer", "gpt-infer")}
FIRST = {
    "lenet-adam": replace(
        _eager(COMPARED["lenet"]),
        title="LeNet 20-50-500, batch 64, Adam",
        sizes={**COMPARED["lenet"].sizes, "rule": lenet.ADAM},
    )
}
"""The step whose first time is measured."""
