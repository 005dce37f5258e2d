"""Processes with a card each, joined by NCCL through nccl4py.

This engine has not run anywhere yet: two processes of NCCL cannot share one card, and no machine
with two cards was at hand. It is refused until it has.
"""

from __future__ import annotations

from typing import NoReturn

import weft as wf

__all__ = ["nccl_world"]


def nccl_world(rank: int, size: int) -> NoReturn:
    """Refuse NCCL, with the reason and what works in its place."""
    raise wf.UnsupportedError(
        "distributed.init",
        "collectives between cards are not built yet",
        expected="an engine for the host: mpi or gloo",
        got={"engine": "nccl", "rank": rank, "world_size": size},
        fix='wf.distributed.init("mpi"): tensors on cards then pass through the host',
    )
