"""The order in which each process of a pipeline computes the stages of its micro-batches.

A pipeline of P processes with C chunks on each has P * C stages; stage s runs on process s % P. An
order is a list of tasks for each process. Messages are sent at once and received when they are
needed, so any order is right whose tasks do not wait for each other in a circle. Stages go back
over the micro-batches from first to last in every order: all of them sum gradients alike.

>>> for tasks in pipeline_order("1f1b", processes=2, micro_batches=3):
...     print(*tasks)
F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
"""

from __future__ import annotations

from typing import NamedTuple

import weft as wf

__all__ = ["ORDERS", "Task", "pipeline_order"]

ORDERS = ("gpipe", "1f1b", "interleaved")
"""All forward passes first (Huang et al., 2019); one forward, one backward (PipeDream-flush,
Narayanan et al., 2021); the same with several chunks of layers on each process (ibid.)."""


class Task(NamedTuple):
    """One stage for one micro-batch, on the way forward or back."""

    is_forward: bool
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{'F' if self.is_forward else 'B'}{self.stage}.{self.micro_batch}"


def pipeline_order(
    name: str, processes: int, micro_batches: int, chunks: int = 1
) -> list[list[Task]]:
    """The tasks of each process, in order."""
    _check_order(name, processes, micro_batches, chunks)
    ranks = range(processes)
    if name == "gpipe":
        return [_all_forward_first(rank, processes, micro_batches, chunks) for rank in ranks]
    if name == "1f1b":
        return [_one_forward_one_back(rank, processes, micro_batches) for rank in ranks]
    return [_interleaved_chunks(rank, processes, micro_batches, chunks) for rank in ranks]


def _check_order(name: str, processes: int, micro_batches: int, chunks: int) -> None:
    if name not in ORDERS:
        raise wf.ArgumentError(
            "distributed.Pipeline",
            "there is no such schedule",
            expected="one of " + ", ".join(ORDERS),
            got={"schedule": name},
            fix='schedule="1f1b"',
        )
    counts = {"processes": processes, "micro_batches": micro_batches, "chunks": chunks}
    if any(type(count) is not int or count < 1 for count in counts.values()):
        raise wf.ArgumentError(
            "distributed.Pipeline",
            "these are no numbers of things",
            expected="whole numbers of at least 1",
            got=counts,
            fix="micro_batches=4, chunks=1",
        )
    if name == "1f1b" and chunks > 1:
        raise wf.ArgumentError(
            "distributed.Pipeline",
            "this schedule has one chunk of layers on each process",
            expected='schedule="interleaved" for several chunks',
            got={"schedule": name, "chunks": chunks},
            fix=f'schedule="interleaved", chunks={chunks}',
        )
    if name == "interleaved" and micro_batches % processes:
        raise wf.ArgumentError(
            "distributed.Pipeline",
            "the micro-batches do not go around the processes evenly",
            expected=f"micro_batches: a multiple of {processes}, the number of processes",
            got=counts,
            fix=f"micro_batches={-(-micro_batches // processes) * processes}, "
            'or schedule="gpipe", which takes any number',
        )


def _all_forward_first(rank: int, processes: int, micro_batches: int, chunks: int) -> list[Task]:
    own = [chunk * processes + rank for chunk in range(chunks)]
    forward = [Task(True, stage, m) for stage in own for m in range(micro_batches)]
    back = [Task(False, stage, m) for stage in reversed(own) for m in range(micro_batches)]
    return [*forward, *back]


def _one_forward_one_back(rank: int, processes: int, micro_batches: int) -> list[Task]:
    """As many forward passes ahead as there are processes behind this one, then in turn."""
    forward = [Task(True, rank, m) for m in range(micro_batches)]
    back = [Task(False, rank, m) for m in range(micro_batches)]
    return _in_turn(forward, back, processes - rank - 1)


def _interleaved_chunks(rank: int, processes: int, micro_batches: int, chunks: int) -> list[Task]:
    """Rounds of P micro-batches pass through one chunk after another.

    The pass ahead is Megatron-LM's: two tasks for each process behind this one, and all chunks but
    one of the first round.
    """
    total = micro_batches * chunks
    round_size = processes * chunks
    forward, back = [], []
    for count in range(total):
        chunk = count % round_size // processes
        micro_batch = count // round_size * processes + count % processes
        forward.append(Task(True, chunk * processes + rank, micro_batch))
        back.append(Task(False, (chunks - 1 - chunk) * processes + rank, micro_batch))
    return _in_turn(forward, back, 2 * (processes - rank - 1) + (chunks - 1) * processes)


def _in_turn(forward: list[Task], back: list[Task], ahead: int) -> list[Task]:
    """The first tasks forward, then one forward and one back in turn, then the rest back."""
    ahead = min(ahead, len(forward))
    pairs = zip(forward[ahead:], back, strict=False)
    turns = [task for pair in pairs for task in pair]
    return [*forward[:ahead], *turns, *back[len(forward) - ahead :]]
