"""What the launcher says about a process, in environment variables: rank, world, host and role.

>>> from weft.distributed.environment import find_launch
>>> found = find_launch({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"})
>>> found[:5], found.host
(('slurm', 3, 4, 1, 'worker'), 'localhost')
>>> find_launch({}) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import weft as wf

__all__ = ["HOST", "LAUNCHER", "RESTARTS", "ROLES", "Launch", "find_launch"]

ROLES = ("worker", "server", "evaluator")
RESTARTS = "WEFT_RESTARTS"
"""The variable that says how often a process was started again."""
LAUNCHER = "WEFT_LAUNCHER"
"""The variable with the number of the process that started this one, and that it ends with."""
HOST = "WEFT_HOST"
"""The variable with the name or address by which other hosts reach this one."""
_VARIABLES = {
    "weft": ("WEFT_RANK", "WEFT_WORLD_SIZE", "WEFT_LOCAL_RANK"),
    "mpiexec": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpich": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
"""For each launcher: the variables of rank, world size and local rank, asked in this order."""


class Launch(NamedTuple):
    """What is known of a process before any engine runs."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    role: str
    folder: str
    """Where processes of the job on this host meet; empty where nobody made such a folder."""
    restarts: int = 0
    """How often this process was started again; then it joins the others while they train."""
    host: str = "localhost"
    """The name or address by which processes on other hosts reach this one."""


def find_launch(environment: Mapping[str, str]) -> Launch | None:
    """What a launcher said; None where the process was started by hand."""
    role = environment.get("WEFT_ROLE", "worker")
    if role not in ROLES:
        raise wf.ArgumentError(
            "distributed.init",
            "a process has no such role",
            expected="WEFT_ROLE: one of " + ", ".join(ROLES),
            got={"WEFT_ROLE": role},
            fix="WEFT_ROLE=worker",
        )
    for launcher, (rank, size, local) in _VARIABLES.items():
        if rank in environment and size in environment:
            numbers = [_number(environment, name) for name in (rank, size)]
            local_rank = _number(environment, local) if local in environment else numbers[0]
            folder = environment.get("WEFT_JOB_FOLDER", "")
            restarts = _number(environment, RESTARTS) if RESTARTS in environment else 0
            host = environment.get(HOST, "localhost")
            own, count = numbers
            return Launch(launcher, own, count, local_rank, role, folder, restarts, host)
    return None


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise wf.ArgumentError(
            "distributed.init",
            f"{name} is no number of a process",
            expected="a number, set by the launcher",
            got={name: environment[name]},
            fix=f"unset {name}, or start the program by `weft launch -n 2 train.py`",
        )
    return int(environment[name])
