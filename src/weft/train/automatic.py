"""`Trainer(strategy="auto")`: the way to share the work that sends least, among those that fit.

What processes hold of parameters, gradients and the optimiser's state is known before the first
batch, and so are the bytes that each sends in a step. What activations take is not: half of the
memory is left to them.

>>> import weft as wf
>>> net = wf.nn.Linear(1000, 1000)
>>> optimizer = wf.optim.Adam(net.parameters())
>>> ranked = ranked_strategies(optimizer, processes=4, memory=32e6)
>>> [(each.name, each.fits) for each in ranked]
[('zero2', True), ('zero1', True), ('zero3', True), ('data', False)]
"""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

import weft as wf

__all__ = ["SharedState", "choose_strategy", "ranked_strategies"]

SHARE = 0.5
"""The part of a process's memory that parameters, gradients and state may take."""


class SharedState(NamedTuple):
    """One way to share: its name, the bytes that a process holds, and those that it sends."""

    name: str
    held: float
    sent: float
    fits: bool


def ranked_strategies(
    optimizer: Any, *, processes: int, memory: float, whole: bool = False
) -> list[SharedState]:
    """The strategies for an optimiser's parameters, the best first.

    memory: what each process has. whole: whether parameters and state must stay whole.
    """
    parameters = float(_bytes_of(optimizer.parameters))
    state = float(_bytes_of([value for slots in optimizer.state for value in slots.values()]))
    n = processes
    part = (n - 1) / n * parameters  # what one gathering, or one scattering, sends
    ways = {
        "data": (2 * parameters + state, 2 * part),
        "zero2": (2 * parameters + state / n, 2 * part),
        "zero1": (2 * parameters + state / n, 3 * part),
        "zero3": ((2 * parameters + state) / n, 3 * part),
    }
    is_divisible = optimizer.rowwise and optimizer.waiting is None and not whole
    found = [
        SharedState(name, held, sent, held <= SHARE * memory)
        for name, (held, sent) in ways.items()
        if name == "data" or is_divisible
    ]
    return sorted(found, key=lambda each: (not each.fits, each.sent if each.fits else each.held))


def choose_strategy(optimizer: Any, *, whole: bool = False) -> str:
    """The name of the best strategy that fits; the same on all processes."""
    if not wf.distributed.is_initialized():
        wf.distributed.init()
    memory, processes = memory_of_process(), wf.distributed.world_size()
    best, *_ = ranked_strategies(optimizer, processes=processes, memory=memory, whole=whole)
    if not best.fits:
        raise wf.OutOfMemoryError(
            "train.Trainer",
            "no strategy fits the memory of a process",
            expected=f"at most {SHARE * memory:,.0f} bytes of parameters, gradients and state",
            got={"strategy": best.name, "bytes": f"{best.held:,.0f}", "processes": processes},
            fix="start more processes, on more hosts; or name a strategy to try it all the same",
        )
    return best.name


def memory_of_process() -> float:
    """The memory of a host for each process on it, of the host that has least."""
    own = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    rows = wf.distributed.gather_objects((socket.gethostname(), own))
    names = [name for name, _ in rows]
    return float(min(memory / names.count(name) for name, memory in rows))


def _bytes_of(tensors: Any) -> int:
    return sum(int(tensor.size) * tensor.dtype.itemsize for tensor in tensors)
