"""The workloads of the eager mode: small operations, single functions, and whole networks.

A name says everything about a workload, so that the controller and a worker agree by the name
alone: `gelu-64K` is GELU of 65,536 elements, `gelu-64K-backward` the same with its gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.eager import functions, networks, small
from suite.task import Workload

GROUPS = ("small", "functions", "training", "inference")


def names(sizes: Sequence[int]) -> dict[str, list[str]]:
    """The workloads of each group; functions with these counts of elements."""
    return {
        "small": list(small.WORKLOADS),
        "functions": functions.names(sizes),
        "training": list(networks.TRAINING),
        "inference": list(networks.INFERENCE),
    }


def workload(name: str) -> Workload:
    """The workload of a name; an unknown one is a KeyError."""
    whole = small.WORKLOADS | networks.TRAINING | networks.INFERENCE | networks.FIRST
    return whole[name] if name in whole else functions.workload(name)
