"""One process of a job: runs a script, and writes down how it ended.

`weft launch` starts it as `python -m weft.distributed.worker train.py ...`. A process that ends
in order leaves the file `done-RANK` in the job's folder, one that fails leaves `failed-RANK` with
the time, the exit code and the text of its error. So the launcher knows which failure came first,
and does not have to believe exit codes of an engine's launcher, which may be 0 after a loss.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import weft as wf
from weft.distributed.environment import LAUNCHER, find_launch
from weft.distributed.group import GIVE_UP
from weft.distributed.job_folder import hold_folder
from weft.distributed.regrouping import WENT_ON
from weft.distributed.status import DONE
from weft.files import write_text

__all__ = ["FAILED", "main"]

FAILED = "failed-"


def main(arguments: Sequence[str]) -> int:
    """Run a script with its arguments; the exit code."""
    _follow_launcher()
    launch = find_launch(os.environ)
    if launch is not None and launch.folder:
        hold_folder(launch.folder)
    record = _Record(launch.folder if launch else "", launch.rank if launch else 0)
    GIVE_UP.append(record.write_failure)
    if threads := os.environ.get("WEFT_THREADS"):
        wf.set_num_threads(int(threads))
    code = _run(arguments, record)
    if code == 0 and not record.has_losses():
        record.write_done()
        return 0
    if code == 0:
        wf.distributed.barrier()
        record.write_done()
    # The engine's own end would wait for processes that are gone, or that wait for this one.
    sys.stdout.flush()
    sys.stderr.flush()
    if code and record.is_kept:
        # Open MPI tells the others of a process that was killed, and not of one that exits; the
        # launcher takes the exit code from the record.
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(code)


def _follow_launcher() -> None:
    """End where the launcher that started this process is killed and can tell nobody."""
    launcher = os.environ.pop(LAUNCHER, "")
    if launcher and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != int(launcher):
            os._exit(128 + signal.SIGTERM)


class _Record:
    """How a process ended, in files of the job's folder; on the screen where there is none."""

    def __init__(self, folder: str, rank: int) -> None:
        self._folder, self._rank = folder, rank

    @property
    def is_kept(self) -> bool:
        """Whether a launcher reads it."""
        return bool(self._folder)

    def write_done(self) -> None:
        if self._folder:
            (Path(self._folder) / f"{DONE}{self._rank}").touch()

    def has_losses(self) -> bool:
        """Whether this process has gone on after the loss of another."""
        return bool(self._folder) and any(Path(self._folder).glob(f"{WENT_ON}*"))

    def write_failure(self, text: str, code: int, follows: bool = True) -> None:
        """Write the first failure down; `follows`: it may have come of another process's end."""
        if not self._folder:
            sys.stderr.write(text + "\n")
            return
        path = Path(self._folder) / f"{FAILED}{self._rank}"
        if not path.exists():
            record = {"time": time.time(), "code": code, "text": text, "follows": follows}
            write_text("distributed", path, json.dumps(record))  # the launcher may look at once


def _run(arguments: Sequence[str], record: _Record) -> int:
    script = arguments[0]
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code in (None, 0):
            return 0
        code = end.code if isinstance(end.code, int) else 1
        record.write_failure(f"SystemExit: {end.code}", code, follows=False)
        return code
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        record.write_failure(_own_frames(error), 1, isinstance(error, wf.ProcessError))
        return 1
    return 0


def _own_frames(error: BaseException) -> str:
    """The traceback without the library's frames, as far as there are others."""
    frames = traceback.extract_tb(error.__traceback__)
    library = str(Path(__file__).parents[1]) + os.sep
    hidden = (library, runpy.__file__, contextlib.__file__, "<frozen")
    shown = [frame for frame in frames if not frame.filename.startswith(hidden)]
    if not isinstance(error, wf.WeftError):
        shown = [f for f in frames if not f.filename.startswith((__file__, *hidden[1:]))]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
