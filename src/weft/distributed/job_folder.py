"""The folder of a job, what belongs to it in memory, and what a killed launcher left of others.

The launcher and the processes of a job on its host hold a lock on a file in the folder, which the
system releases however they end. A folder that nobody holds is what is left of a job whose launcher
was killed: the next one that starts beside it removes it. Files in memory that an engine's library
keeps there when it is killed are noted in the folder, and go with it.

>>> import tempfile
>>> parent = tempfile.mkdtemp()
>>> folder = make_job_folder(parent)
>>> remove_abandoned(parent), folder.is_dir()  # this process holds it
([], True)
>>> remove_job_folder(folder), folder.is_dir()
(None, False)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["hold_folder", "make_job_folder", "note_shared_memory", "remove_abandoned",
           "remove_job_folder"]  # fmt: skip

JOB = "weft-job-"
"""How the names of jobs' folders begin."""
HELD = "held"
"""The file in a job's folder that is locked, with the name of the launcher's host."""
SHARED = "shared-memory-"
"""What names of files begin with that list files in memory, one for each process."""
SEGMENTS = "/dev/shm/sm_segment."
"""How the paths of the files begin by which Open MPI's processes on a host exchange messages."""
_held: list[int] = []
"""Handles of locks, which last as long as the process."""


def make_job_folder(parent: str | None = None) -> Path:
    """A new folder for a job, held by this process; what nobody holds beside it is removed."""
    folder = Path(tempfile.mkdtemp(prefix=JOB, dir=parent))
    (folder / HELD).touch()
    hold_folder(folder)
    (folder / HELD).write_text(socket.gethostname(), encoding="utf-8")  # before it is no one's
    remove_abandoned(folder.parent)
    return folder


def hold_folder(folder: str | os.PathLike[str]) -> None:
    """Hold a job's folder as long as this process lives, where it is on the launcher's host."""
    with suppress(OSError):
        handle = os.open(Path(folder) / HELD, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)
        _held.append(handle)


def note_shared_memory(folder: str | os.PathLike[str], rank: int) -> None:
    """Note by which files in memory this process and others of the job exchange messages."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        paths = sorted({line.split(maxsplit=5)[-1] for line in lines if SEGMENTS in line})
        (Path(folder) / f"{SHARED}{rank}").write_text("\n".join(paths), encoding="utf-8")


def remove_abandoned(parent: str | os.PathLike[str]) -> Sequence[str]:
    """Remove what is left of jobs of this host whose processes are all gone; their names."""
    removed = []
    for folder in Path(parent).glob(f"{JOB}*"):
        with suppress(OSError):
            is_here = (folder / HELD).read_text(encoding="utf-8") == socket.gethostname()
            if is_here and folder.stat().st_uid == os.getuid() and not _is_held(folder):
                remove_job_folder(folder)
                removed.append(folder.name)
    return removed


def _is_held(folder: Path) -> bool:
    handle = os.open(folder / HELD, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def remove_job_folder(folder: Path) -> None:
    """Remove a job's folder, and what its processes have left in memory."""
    for note in folder.glob(f"{SHARED}*"):
        with suppress(OSError):
            for path in note.read_text(encoding="utf-8").splitlines():
                if path.startswith(SEGMENTS) and path.count("/") == SEGMENTS.count("/"):
                    Path(path).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
