"""The processes that are left after a loss, and those that join: one group again, with one state.

>>> has_quorum([0, 1, 2], [1, 2])
True
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.collectives import find_group
from weft.distributed.environment import find_launch
from weft.distributed.group import Group
from weft.distributed.membership import LeftOut
from weft.distributed.parameters import is_of_experts, part_facts
from weft.distributed.process_group import (
    gather_objects,
    join_world,
    mesh_axes,
    replace_world,
    restarts,
    world,
)
from weft.optim.states import named_tensors

__all__ = [
    "WENT_ON", "Members", "has_quorum", "is_loss", "joining_error", "mesh_of", "no_checkpoint",
    "take_newest", "training_handles",
]  # fmt: skip

WENT_ON = "went-on-"
"""Files in the job's folder: the ranks that the others went on without."""
ATTEMPTS = 8
"""How many losses in a row, each while recovering from the one before, are recovered from."""
MEETING = 60.0
"""Seconds that a meeting may take longer than another operation: for processes that are stopped,
and for new connections."""


def has_quorum(before: Sequence[int], left: Sequence[int]) -> bool:
    """Whether those that are left may go on: the majority, or half of them with the lowest rank.

    So of two halves of a group that was cut in two, never both go on.

    >>> has_quorum([0, 1, 2, 3], [1, 2, 3]), has_quorum([0, 1], [1]), has_quorum([0, 1], [0])
    (True, False, True)
    """
    twice = 2 * len(left)
    return twice > len(before) or (twice == len(before) and min(before) in left)


def mesh_of(
    count: int, axes: Mapping[str, int], experts: Sequence[tuple[str, int]] = ()
) -> dict[str, int] | None:
    """The largest mesh of at most so many processes; only the axis "data" may have another size.

    The others say which parts of a model a process has. experts: axes along which experts are
    divided, and how many there are. None where no mesh is that small.

    >>> mesh_of(5, {"data": 3, "stage": 2}), mesh_of(3, {"model": 4})
    ({'data': 2, 'stage': 2}, None)
    >>> mesh_of(3, {"data": 4}, [("data", 8)])
    {'data': 2}
    """
    others = math.prod(size for name, size in axes.items() if name != "data")
    most = count // others if "data" in axes else min(count // others, 1)
    for rows in range(most, 0, -1):
        mesh = {name: rows if name == "data" else size for name, size in axes.items()}
        sizes = {**mesh, "world": rows * others}
        if all(number % sizes[name] == 0 for name, number in experts):
            return mesh
    return None


JOINS = "a process joins the group"


def is_loss(error: BaseException) -> bool:
    """Whether an error says that a process is gone, or joins, so that a new group may go on."""
    if not isinstance(error, wf.ProcessError):
        return False
    return "lost" in error.problem or error.problem == JOINS


def joining_error() -> wf.ProcessError:
    """What interrupts a training to take a process in."""
    return wf.ProcessError(
        "distributed.Recovery",
        JOINS,
        expected="a training that goes on with a new group",
        got={"members": world().size},
        fix="nothing: it goes on",
    )


class Members:
    """The processes that are left of those at the start, and how they go on after a loss.

    They are laid out as the mesh that there was, with fewer places along "data". Those that it has
    no place for then are left out. `ranks` are their ranks at the start, `own` that of this one;
    `losses` holds, for each recovery, the ranks that were lost or left out and the seconds it took.
    """

    def __init__(self, op: str, optimizer: Any, has_checkpoints: bool = False) -> None:
        group = world()
        if not has_checkpoints:
            _check_state(op, optimizer)
        self._axes = mesh_axes()
        self._experts = _experts_of(optimizer)
        if group.size > 1 and not hasattr(group.engine, "survivors"):
            raise wf.UnsupportedError(
                op,
                f"groups of {group.engine.name} are not rebuilt after a loss",
                expected="processes joined by Open MPI or gloo: weft launch train.py",
                got={"engine": group.engine.name},
                fix='wf.distributed.init("mpi")',
            )
        self.is_joining = restarts() > 0
        """Whether this process was started again, and the others have not taken it in yet."""
        self.own, self.ranks = group.rank, list(range(group.size))
        self.joined: list[int] = []
        """The numbers of processes that have joined; they go on from those of the start."""
        self.losses: list[tuple[list[int], float]] = []

    def recover(self, error: wf.ProcessError, go_on: Any) -> None:
        """Form the group of those that are left, and have `go_on()` share its state.

        Where another process is lost meanwhile, it is done again.
        """
        begin, lost, first = time.monotonic(), [], error
        for _ in range(ATTEMPTS):
            try:
                lost += self._regroup(first)
                go_on()
            except wf.ProcessError as other:
                if not is_loss(other):
                    raise
                error = other
            else:
                break
        else:
            raise error
        if lost:
            self.losses.append((lost, time.monotonic() - begin))
            _note_losses(lost)

    def join(self, go_on: Any) -> None:
        """Be taken in by the others, and have `go_on()` take their state."""
        group = join_world()
        self.own = group.engine.generation.membership.own  # type: ignore[attr-defined]
        self.is_joining = False
        self._take_ranks(group, self._ranks_of(group))
        self.joined = []
        go_on()

    def has_waiting(self) -> bool:
        """Whether a process waits to join; all processes ask at once."""
        group = world()
        generation = getattr(group.engine, "generation", None)
        if generation is None:
            return False
        is_waiting = group.rank == 0 and bool(generation.membership.waiting())
        return bool(group.broadcast(np.array(is_waiting), 0))

    def finish(self) -> None:
        """Tell processes that wait to join that the training is over."""
        generation = getattr(world().engine, "generation", None)
        if generation is not None:
            generation.membership.finish()

    def _ranks_of(self, group: Group) -> list[int]:
        """The ranks at the start of the processes of a group, which it then knows."""
        ranks = [int(rank) for rank in group.all_gather(np.array(self.own))]
        launch = find_launch(os.environ)
        group.members = ranks if launch is None else [rank % launch.size for rank in ranks]
        return ranks

    def _take_ranks(self, whole: Group, present: list[int]) -> list[int]:
        """Make a group the world, as far as the mesh goes; the members of before that are out."""
        axes = mesh_of(whole.size, self._axes, self._experts)
        if axes is None:
            raise self._too_few(whole.size)
        places = math.prod(axes.values())
        group, ranks = self._group_of_mesh(whole, places), present[:places]
        replace_world(group, axes)
        lost = [rank for rank in self.ranks if rank not in ranks]
        self.joined += [rank for rank in ranks if rank not in self.ranks and rank != self.own]
        self.ranks = ranks
        return lost

    def _too_few(self, count: int) -> wf.ProcessError:
        """The error where those that are left are no mesh."""
        least = math.prod(size for name, size in self._axes.items() if name != "data")
        experts = "".join(f", of which {number} experts are divided" for _, number in self._experts)
        return wf.ProcessError(
            "distributed.Recovery",
            "those that are left are too few for the mesh",
            expected=f"at least {least} processes" if count < least else "a mesh that divides all",
            got={"left": count, "mesh": f"{self._axes}{experts[:60]}"},
            note='only the axis "data" may get smaller: others say which parts processes have',
            fix="start again with another mesh, from the last checkpoint: fit(..., resume=True)",
        )

    def _group_of_mesh(self, whole: Group, places: int) -> Group:
        """The group of the first so many processes; the others are left out, and told so."""
        if places == whole.size:
            return whole
        is_in = whole.rank < places
        own = range(places) if is_in else range(places, whole.size)
        group = whole.subgroup(own, "world")
        if is_in:
            return group
        _note_losses([self.own])  # the launcher lets the others go on
        raise wf.ProcessError(
            "distributed.Recovery",
            "the mesh of those that are left has no place for this process",
            expected=f"{places} of {whole.size} processes, with the mesh that was {self._axes}",
            got={"rank": self.own, "left": whole.size, "in the mesh": places},
            fix="nothing: the others go on without it",
        )

    def _regroup(self, error: wf.ProcessError) -> list[int]:
        """Make the world that of the processes that are left; the ranks that are not."""
        old, before = world(), self.ranks
        engine: Any = old.engine
        for axis in self._axes:
            along = find_group("distributed.Recovery", axis)
            if isinstance(along, Group) and along is not old:
                along.engine.interrupt()  # those that wait for this process along it come, too
        last = f"rank {self.own} was last in {error.op} at {error.at}"
        try:
            with old.watch.during("the meeting of those that are left", extra=MEETING):
                survivors = engine.survivors()
        except LeftOut as left_out:
            _note_losses([self.own])  # the launcher lets the others go on
            raise wf.ProcessError(
                "distributed.Recovery",
                left_out.problem,
                expected=left_out.expected,
                got={"rank": self.own},
                note=f"{left_out.got}; {last}",
                fix=left_out.fix,
                at=error.at,
            ) from error
        whole = Group(survivors, "world", old.watch, old.checks, ())
        present = self._ranks_of(whole)
        if not has_quorum(before, [rank for rank in present if rank in before]):
            raise wf.ProcessError(
                "distributed.Recovery",
                "too few processes are left to go on",
                expected=f"more than half of {len(before)}, or half with the lowest rank",
                got={"left": present, "lost": [rank for rank in before if rank not in present]},
                note=last,
                fix="start again from the last checkpoint",
                at=error.at,
            ) from error
        return self._take_ranks(whole, present)


def _check_state(op: str, optimizer: Any) -> None:
    """Refuse state of which a lost process has a part: no checkpoint brings it back."""
    sharing = optimizer.sharing
    if sharing is None or sharing.zero or any(sharing.are_split):
        raise wf.UnsupportedError(
            op,
            "a lost process had a part of the state that no other has",
            expected="an optimiser shared by data_parallel(optimizer) with zero=0, or checkpoints",
            got={"sharing": sharing},
            fix='Trainer(..., recover=True, checkpoint_folder="run"), or Recovery(..., '
            'checkpoints=ShardedCheckpoints("run"), every=100)',
        )


def _experts_of(optimizer: Any) -> list[tuple[str, int]]:
    """The axes that experts are divided along, and how many experts."""
    facts = [part_facts(each) for each in optimizer.parameters if is_of_experts(each)]
    return sorted({(known.mesh_axis, known.shape[0]) for known in facts if known is not None})


def take_newest(handles: Sequence[wf.Tensor], step: int, facts: Any) -> tuple[int, Any]:
    """Make tensors those of the process that came furthest; its step, and what it knows beside.

    Nothing is written before all has arrived: where the source is lost meanwhile, each process
    still has a state that belongs to one step.
    """
    group = world()
    steps = [int(each) for each in group.all_gather(np.array(step))]
    source = steps.index(max(steps))
    arrays = [
        group.broadcast(np.require(handle.detach().numpy(), requirements="C"), source)
        for handle in handles
    ]
    known = gather_objects(facts)[source]
    with wf.no_grad():
        for handle, array in zip(handles, arrays, strict=True):
            handle.copy_(wf.tensor(array))
    return steps[source], known


def training_handles(model: Any, optimizer: Any) -> list[wf.Tensor]:
    """The tensors that training goes on from."""
    buffers = [tensor for _, tensor in model.named_buffers()]
    kept = [tensor for _, tensor in named_tensors(optimizer)]
    return [*kept, *model.parameters(), *buffers]


def _note_losses(lost: Sequence[int]) -> None:
    """Tell the launcher which processes the others went on without."""
    launch = find_launch(os.environ)
    if launch is not None and launch.folder:
        for rank in lost:
            (Path(launch.folder) / f"{WENT_ON}{rank % launch.size}").touch()


def no_checkpoint(op: str, folder: Path) -> wf.ProcessError:
    """The error where processes that have parts of the state would go on, and there is no whole."""
    return wf.ProcessError(
        op,
        "the first checkpoint was not written yet, and a part of the state is gone",
        expected="a checkpoint to go on from",
        got={"folder": str(folder)},
        fix="start again",
    )
