"""A step of a pipeline in time, event by event, without running it.

Each process does its tasks in the order of the schedule; a task waits for the message that it
needs. Messages go beside the work, one after the other on the way between two processes.

>>> from weft.distributed.stages.order import pipeline_order
>>> order = pipeline_order("1f1b", processes=2, micro_batches=4)
>>> step = simulate_pipeline(order, forward=[1.0, 1.0], backward=[2.0, 2.0], message=0.0)
>>> step.seconds, round(step.idle, 6)  # (p - 1) / (m + p - 1) of the time
(15.0, 0.2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.distributed.stages.order import Task
from weft.sharding import Event

__all__ = ["PipelineStep", "simulate_pipeline"]


class PipelineStep(NamedTuple):
    """A simulated step: its seconds, the share of them that processes are idle, and its events.

    kept: for each process, the most micro-batches whose results it holds at once, over its stages.
    """

    seconds: float
    idle: float
    kept: list[int]
    timeline: list[Event]


def simulate_pipeline(
    order: Sequence[Sequence[Task]],
    forward: Sequence[float],
    backward: Sequence[float],
    message: float | Sequence[float] = 0.0,
) -> PipelineStep:
    """Do the tasks of all processes in time.

    forward, backward: the seconds of each stage for a micro-batch. message: those of handing the
    result of a stage on, or a gradient back to it; one number, or one for each stage.
    """
    last, count = len(forward) - 1, len(order)
    per_stage = [message] * (last + 1) if isinstance(message, (int, float)) else list(message)
    arrived: dict[Task, float] = {}
    free = [0.0] * count
    links: dict[tuple[int, int], float] = {}
    waiting = [list(reversed(tasks)) for tasks in order]
    timeline: list[Event] = []
    busy = 0.0
    while any(waiting):
        place = _next_process(waiting, arrived)
        task = waiting[place].pop()
        seconds = (forward if task.is_forward else backward)[task.stage]
        start = max(free[place], arrived.pop(task, 0.0))
        end = free[place] = start + seconds
        busy += seconds
        timeline.append(Event(f"process {place}", str(task), start, end))
        following = _following_task(task, last)
        if following is None:
            continue
        target = following.stage % count
        if target == place:
            arrived[following] = end
        else:
            sent = per_stage[min(task.stage, following.stage)]
            begin = max(end, links.get((place, target), 0.0))
            arrived[following] = links[place, target] = begin + sent
    total = max(free)
    idle = 1 - busy / (count * total) if total else 0.0
    return PipelineStep(total, idle, [_most_kept(tasks) for tasks in order], timeline)


def _following_task(task: Task, last: int) -> Task | None:
    """The task that needs what this one gives, on another stage or on its own."""
    if task.is_forward:
        forward = task.stage < last
        return task._replace(stage=task.stage + 1) if forward else task._replace(is_forward=False)
    return task._replace(stage=task.stage - 1) if task.stage else None


def _next_process(waiting: Sequence[Sequence[Task]], arrived: dict[Task, float]) -> int:
    """A process whose next task has what it needs."""
    for place, tasks in enumerate(waiting):
        if tasks and (tasks[-1] in arrived or (tasks[-1].is_forward and tasks[-1].stage == 0)):
            return place
    raise AssertionError("the processes wait for each other")


def _most_kept(tasks: Sequence[Task]) -> int:
    held = most = 0
    for task in tasks:
        held += 1 if task.is_forward else -1
        most = max(most, held)
    return most
