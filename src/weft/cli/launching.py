"""`weft launch`: the processes of a job, started, prefixed, and judged.

    weft launch -n 4 train.py --epochs 3

The job's exit code is that of its first failure. It is 0 only if every process ended in order, or
if the others wrote down that they went on without it.

>>> mpi_command(2, ["a", "b"])[-4:]
['--host', 'a:1,b:1', '--map-by', 'ppr:1:node']
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from weft.cli.from_files import is_settings
from weft.cli.mistakes import Mistake
from weft.distributed.environment import HOST, LAUNCHER, RESTARTS
from weft.distributed.group import TIMED_OUT
from weft.distributed.job_folder import make_job_folder, remove_job_folder
from weft.distributed.process_group import USUAL_TIMEOUT
from weft.distributed.regrouping import WENT_ON
from weft.distributed.status import DONE, STATUS, StatusBoard
from weft.distributed.worker import FAILED

__all__ = ["launch", "mpi_command"]

_TAG = re.compile(r"^\[[^\]]*,(\d+)\]<std(?:out|err)>: ?")
POLL, GRACE = 0.05, 10.0
"""Seconds between looks at a job, and those that it has for its end once it is done, or once one of
its processes has failed."""
LOST = 70
"""The exit code where a process was lost and nothing else is known."""
FOLLOW = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM) if sys.platform == "linux" else None
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that becomes another one, which is told to end where the launcher is killed."""
ALONE = (
    "the {} processes exchanged nothing: each ran the whole script by itself. "
    "wf.distributed.init() and data_parallel(optimizer), or Trainer(strategy=...), "
    "make them one training\n"
)
SSH_LOST = 255
"""The exit code of ssh where a process was killed, or the connection was."""


class Failure(NamedTuple):
    """How a process ended, if not in order."""

    rank: int
    code: int
    text: str
    time: float = float("inf")
    follows: bool = False
    """Whether it may have come of another process's end."""


def launch(flags: Namespace) -> int:
    """Start the processes, pass their output on, and judge how the job ended."""
    _check(flags)
    folder = make_job_folder(flags.folder)
    environment = {**os.environ, "WEFT_JOB_FOLDER": str(folder)}
    if flags.timeout is not None:
        environment["WEFT_TIMEOUT"] = str(flags.timeout)
    here = -(-flags.processes // (flags.hosts.count(",") + 1 if flags.hosts else 1))
    environment["WEFT_THREADS"] = str(flags.threads or max((os.cpu_count() or 1) // here, 1))
    program = [sys.executable, "-m", "weft.distributed.worker", *_script(flags)]
    try:
        with _raise_signals():
            if flags.engine == "gloo":
                code = _run_alone(flags, program, environment, folder)
            else:
                code = _run_mpi(flags, program, environment, folder)
            return _judge(folder, flags.processes, code)
    except _Ended as ended:
        return 128 + ended.signal
    finally:
        remove_job_folder(folder)


class _Ended(BaseException):
    """A signal asked the launcher to end; its processes are told so first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@contextmanager
def _raise_signals() -> Iterator[None]:
    """Have signals that would end the launcher alone be exceptions, as an interrupt is one."""

    def end(number: int, _: Any) -> None:
        raise _Ended(number)

    kinds = (signal.SIGTERM, signal.SIGHUP)
    is_main = threading.current_thread() is threading.main_thread()
    before = {
        kind: signal.signal(kind, end)
        for kind in (kinds if is_main else ())
        if signal.getsignal(kind) is not signal.SIG_IGN  # as nohup has it
    }
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _script(flags: Namespace) -> list[str]:
    """The script and its arguments; a file of settings is what `weft train` gets."""
    if is_settings(flags.script):
        command = str(Path(__file__).with_name("__main__.py"))
        return [command, "train", flags.script, *flags.arguments]
    return [flags.script, *flags.arguments]


def _check(flags: Namespace) -> None:
    if flags.processes < 1:
        raise Mistake(f"-n {flags.processes}: a job has at least one process")
    if not Path(flags.script).is_file():
        raise Mistake(f"no such file: {flags.script}")
    if flags.folder and not Path(flags.folder).is_dir():
        raise Mistake(f"no such folder: {flags.folder}")
    if flags.restarts and flags.engine != "gloo":
        raise Mistake("--restarts needs --engine gloo: others cannot join Open MPI's processes")
    if flags.hosts and flags.engine == "gloo" and not flags.folder:
        raise Mistake("--hosts with --engine gloo needs --folder, which all of the hosts see")


def mpi_command(processes: int, hosts: Sequence[str] = ()) -> list[str]:
    """The command of Open MPI that starts processes and lives through the loss of some.

    Processes are not bound to cores, where their threads would share one.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    command = str(beside) if beside.exists() else shutil.which("mpiexec")
    if command is None:
        raise Mistake('mpiexec is not installed: pip install "weft[mpi]"')
    words = [command, "-n", str(processes), "--with-ft", "ulfm", "--bind-to", "none"]
    words += ["--oversubscribe", "--output", "tag"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-run-as-root")
    if hosts:
        each = -(-processes // len(hosts))
        listed = ",".join(f"{host}:{each}" for host in hosts)
        words += ["--host", listed, "--map-by", f"ppr:{each}:node"]
    return words


def _run_mpi(
    flags: Namespace, program: list[str], environment: Mapping[str, str], folder: Path
) -> int:
    hosts = flags.hosts.split(",") if flags.hosts else []
    words = mpi_command(flags.processes, hosts)
    if hosts:  # daemons of hosts that are cut off end by themselves
        words += ["--prtemca", "oob_tcp_keepalive_time", str(int(flags.timeout or USUAL_TIMEOUT))]
        words += ["--prtemca", "oob_tcp_keepalive_intvl", "5"]
        words += ["--prtemca", "oob_tcp_keepalive_probes", "3"]
    for name in sorted(environment):
        if _is_passed(name):
            words += ["-x", name]
    job = _start([sys.executable, "-I", "-S", "-c", FOLLOW, *words, *program], environment)
    readers = [
        _pass_on(stream, target, None)
        for stream, target in ((job.stdout, sys.stdout), (job.stderr, sys.stderr))
    ]
    return _wait([job], readers, folder, flags.processes)[0]


def _run_alone(
    flags: Namespace, program: list[str], environment: Mapping[str, str], folder: Path
) -> int:
    """Start processes without an engine's launcher; one that fails ends the others.

    One that is killed is started again as often as allowed, and joins the others.
    """
    jobs: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    started = [0] * flags.processes
    hosts = flags.hosts.split(",") if flags.hosts else []
    each = -(-flags.processes // max(len(hosts), 1))

    def start_rank(rank: int) -> subprocess.Popen[str]:
        own = {"WEFT_RANK": rank, "WEFT_LOCAL_RANK": rank % each}
        own |= {"WEFT_WORLD_SIZE": flags.processes, RESTARTS: started[rank]}
        own |= {} if hosts else {LAUNCHER: os.getpid()}
        started[rank] += 1
        settings = {**environment, **{name: str(own[name]) for name in own}}
        if hosts:
            settings[HOST] = hosts[rank // each]
            job = _start(_command_by_ssh(settings[HOST], program, settings), environment)
        else:
            job = _start(program, settings)
        readers.extend(
            [_pass_on(job.stdout, sys.stdout, rank), _pass_on(job.stderr, sys.stderr, rank)]
        )
        return job

    def start_again() -> None:
        for rank, job in enumerate(jobs):
            code = job.poll()
            is_killed = code is not None and (code < 0 or code == SSH_LOST)
            is_told = any((folder / f"{mark}{rank}").exists() for mark in (DONE, FAILED))
            if is_killed and not is_told and started[rank] <= flags.restarts:
                jobs[rank] = start_rank(rank)

    try:
        jobs.extend(start_rank(rank) for rank in range(flags.processes))
    except BaseException:
        _end_all(jobs, signal.SIGTERM)
        raise
    codes = _wait(jobs, readers, folder, flags.processes, start_again)
    return next((code for code in codes if code), 0)


def _command_by_ssh(host: str, program: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """The command that runs a program on another host, in the folder of this one.

    >>> _command_by_ssh("one", ["python", "a.py"], {"WEFT_RANK": "0", "HOME": "/"})[:3]
    ['ssh', '-oBatchMode=yes', 'one']
    """
    passed = [f"{name}={value}" for name, value in sorted(settings.items()) if _is_passed(name)]
    words = shlex.join(["env", *passed, *program])
    return ["ssh", "-oBatchMode=yes", host, f"cd {shlex.quote(os.getcwd())} && exec {words}"]


def _is_passed(name: str) -> bool:
    """Whether processes on other hosts get a variable of this one's environment."""
    return name.startswith("WEFT_") or name in ("PYTHONPATH", "PATH")


def _start(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )


_DROPPED = "NBC_Progress: an error"
"""How a line begins, with an empty one behind it, that Open MPI's library prints where a process is
lost. The job says which one was, and why."""


def _pass_on(stream: IO[str] | None, target: Any, rank: int | None) -> threading.Thread:
    """Write the lines of a stream, each with the rank it comes from in front."""
    assert stream is not None

    def copy_lines() -> None:
        was_dropped = False
        for line in stream:
            shown = _prefix(line, rank)
            text = shown.partition("] ")[2].strip()
            was_dropped = text.startswith(_DROPPED) or (was_dropped and not text)
            if not was_dropped:
                target.write(shown)
                target.flush()

    thread = threading.Thread(target=copy_lines, daemon=True)
    thread.start()
    return thread


def _prefix(line: str, rank: int | None) -> str:
    """A line with its rank in front.

    >>> _prefix("[job@1,3]<stdout>: loss 0.5", None), _prefix("loss 0.5", 2)
    ('[3] loss 0.5', '[2] loss 0.5')
    """
    if rank is not None:
        return f"[{rank}] {line}"
    tag = _TAG.match(line)
    return line if tag is None else f"[{tag[1]}] {line[tag.end() :]}"


def _wait(
    jobs: Sequence[subprocess.Popen[str]],
    readers: Sequence[threading.Thread],
    folder: Path,
    processes: int,
    look_after: Callable[[], None] = lambda: None,
) -> list[int]:
    """Exit codes, once all have ended; an interrupt is passed on, and then waited for.

    An engine may not come to its end after a loss: once all processes have written that they are
    done, or one that it has failed, it is given a few seconds.
    """
    try:
        while any(job.poll() is None for job in jobs):
            time.sleep(POLL)
            look_after()
            failures = _failures(folder, processes)
            if not failures or any(failure.time < float("inf") for failure in failures):
                break
        codes = [_end(job) for job in jobs]
    except (KeyboardInterrupt, _Ended) as ended:
        _end_all(jobs, ended.signal if isinstance(ended, _Ended) else signal.SIGINT)
        raise
    for reader in readers:
        reader.join(timeout=5)
    return [code if code >= 0 else 128 - code for code in codes]


def _end_all(jobs: Sequence[subprocess.Popen[str]], number: int) -> None:
    """Pass a signal on, and wait; those that do not end by it are killed."""
    for job in jobs:
        job.send_signal(number)
    for job in jobs:
        _end(job)


def _end(job: subprocess.Popen[str]) -> int:
    try:
        return job.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        job.terminate()
    try:
        return job.wait(timeout=3)
    except subprocess.TimeoutExpired:  # it waits for a host that it does not reach any more
        job.kill()
        return job.wait()


def _judge(folder: Path, processes: int, code: int) -> int:
    """The job's exit code; the first failure is told first."""
    failures = sorted(
        _failures(folder, processes), key=lambda each: (each.follows, each.time, each.rank)
    )
    left_behind = [rank for rank in range(processes) if (folder / f"{WENT_ON}{rank}").exists()]
    if left_behind:
        ranks = ", ".join(map(str, left_behind))
        sys.stderr.write(f"rank {ranks} was lost; the others went on without it\n")
        for each in _recorded_failures(folder, left_behind):
            _tell_failure(f"rank {each.rank} ended with exit code {each.code}", each)
    if not failures:
        if processes > 1 and not _have_exchanged(folder, processes):
            sys.stderr.write(ALONE.format(processes))
        is_done = left_behind or _all_done(folder, processes)
        return 0 if is_done else code or LOST
    first, *others = failures
    _tell_failure(f"rank {first.rank} failed first, with exit code {first.code}", first)
    for each in others:
        last_line = next((x for x in each.text.splitlines() if _is_message(x)), each.text)
        sys.stderr.write(f"rank {each.rank} ended with {each.code}: {last_line.strip()}\n")
    return first.code or code or LOST


def _have_exchanged(folder: Path, processes: int) -> bool:
    """Whether a process on this host has taken part in an operation of several."""
    if not (folder / STATUS).exists():
        return False
    board = StatusBoard(folder, processes)
    try:
        return any(board.read(rank) is not None for rank in range(processes))
    finally:
        board.close()


def _tell_failure(title: str, failure: Failure) -> None:
    """Say all that is known of how a process ended."""
    sys.stderr.write(f"{title}:\n")
    sys.stderr.write("".join(f"  {line}\n" for line in failure.text.splitlines()))


def _is_message(line: str) -> bool:
    return bool(line) and not line.startswith((" ", "Traceback"))


def _all_done(folder: Path, processes: int) -> bool:
    return all((folder / f"{DONE}{rank}").exists() for rank in range(processes))


def _failures(folder: Path, processes: int) -> list[Failure]:
    """The processes that neither ended in order nor were left behind by a recovery."""
    ranks = [
        rank
        for rank in range(processes)
        if not any((folder / f"{mark}{rank}").exists() for mark in (DONE, WENT_ON))
    ]
    recorded = _recorded_failures(folder, ranks)
    told = {failure.rank for failure in recorded}
    # What others waited for until their time was over was stopped, or hangs, and was ended here.
    is_late = any(failure.code == TIMED_OUT for failure in recorded)
    text = "late: others waited for it" if is_late else "lost: it ended without a word"
    return [
        *recorded,
        *(
            Failure(rank, LOST, _text_of_lost(folder, processes, rank, text), follows=is_late)
            for rank in ranks
            if rank not in told
        ),
    ]


def _text_of_lost(folder: Path, processes: int, rank: int, text: str) -> str:
    """What is said of a process that wrote nothing: its last operation, where it is known here."""
    if not (folder / STATUS).exists():
        return text
    board = StatusBoard(folder, processes)
    doing = board.read(rank)
    board.close()
    return text if doing is None else f"{text}; its last was {doing}"


def _recorded_failures(folder: Path, ranks: Sequence[int]) -> list[Failure]:
    """What processes have written down of their failure."""
    paths = {rank: folder / f"{FAILED}{rank}" for rank in ranks}
    return [
        Failure(rank, **json.loads(path.read_text(encoding="utf-8")))
        for rank, path in paths.items()
        if path.exists()
    ]
