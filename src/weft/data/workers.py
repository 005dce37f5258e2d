"""Worker processes: a pool that computes batches ahead and hands them over in order.

Workers are started with `spawn`: a new interpreter that imports what it needs. A forked process
would inherit the locks of Weft's own threads, of NumPy's and of the prefetch thread in whatever
state they happen to be, which ends in a rare, silent hang; `forkserver` is as safe and may be asked
for, but leaves a process behind. The price is that what is sent to a worker has to be picklable,
and that a script has to guard its entry with `if __name__ == "__main__":`.

Each worker has a pipe of its own and shares no lock with the others, so that one that is killed,
at whatever moment, stops nobody else and is noticed at once. A thread in each worker reads its
pipe; when the pipe ends, the worker ends too, so that no worker outlives its owner.

>>> from weft.data.workers import describe_exit
>>> describe_exit(-9), describe_exit(3)
('was killed by SIGKILL', 'ended with exit code 3')
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection as connections
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, NoReturn

import weft as wf
from weft.data.dataset import Indices
from weft.data.fetching import End, Job
from weft.data.scope import WorkerInfo, become_worker
from weft.data.shared import Desk, Offer, Parcel, Placed, Slot, new_prefix, open_parcel

_JOIN_SECONDS = 5.0
_PER_WORKER = 2
"""How many batches each worker is asked for ahead, when nothing else is said."""


class WorkerError(wf.WeftError, RuntimeError):
    """A worker process ended, or raised what cannot be raised here."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the one raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Task(NamedTuple):
    """One batch to compute. `run` tells the batches of one pass from those of an abandoned one."""

    run: int
    number: int
    epoch: int
    indices: Indices | None
    offer: Offer


class Failure(NamedTuple):
    """An exception in a worker: pickled where that works, and as text with its traceback."""

    pickled: bytes | None
    text: str
    kind: str


class Done(NamedTuple):
    """A worker's answer to a task: where the batch lies, or that there is none, or what failed."""

    run: int
    number: int
    slot: int
    name: str
    skeleton: Any


class _Worker:
    """One worker process, as the pool knows it."""

    def __init__(self, index: int, process: BaseProcess, pipe: Connection) -> None:
        self.index = index
        self.process = process
        self.pipe = pipe
        self.tasks: dict[tuple[int, int], Task] = {}
        self.is_ready = False

    def __str__(self) -> str:
        return f"worker {self.index} (pid {self.process.pid})"


class Pool:
    """Worker processes, their pipes and the shared memory between, until `close`."""

    def __init__(self, job: Job, count: int, ahead: int, start_method: str) -> None:
        self._prefix = new_prefix()
        self._window = count * (ahead or _PER_WORKER)
        self._slots = [Slot(self._prefix, number) for number in range(self._window)]
        self._free = list(range(self._window))
        self._run = 0
        self._wake_up, self._waker = multiprocessing.Pipe(duplex=False)
        self._parcel = _pack_job(self._prefix, job)
        self._workers: list[_Worker] = []
        resources = (self._workers, self._slots, self._parcel, [self._wake_up, self._waker])
        self._finalizer = weakref.finalize(self, _clean_up, os.getpid(), *resources)
        context = multiprocessing.get_context(start_method)
        # All processes must tell one tracker about segments, or the others would report leaks.
        resource_tracker.ensure_running()
        with _interrupts_held_back():
            for index in range(count):
                self._workers.append(_start(context, WorkerInfo(index, count), self._parcel))

    def batches(self, epoch: int, tasks: Iterator[tuple[int, Indices | None]]) -> Iterator[Any]:
        """The batches of these numbers and indices, computed by all workers, in order."""
        self._run += 1  # answers to an earlier, abandoned pass are told by its number
        while self._wake_up.poll():
            self._wake_up.recv()
        ready: dict[int, Any] = {}
        order: deque[int] = deque()  # what was handed out and not yet handed over
        while self._hand_out(epoch, tasks, order) or order:
            if not order or order[0] not in ready:
                if self._receive(ready):
                    continue
                return
            batch = ready.pop(order.popleft())
            if batch is End:
                return
            if isinstance(batch, Failure):
                raise _rebuilt_error(batch)
            yield batch

    def interrupt(self) -> None:
        """Let a thread that waits for a batch return; safe to call from any other thread."""
        with suppress(OSError):
            self._waker.send(None)

    def close(self) -> None:
        """End the processes and give the shared memory back."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether the pool can compute no more."""
        return not self._finalizer.alive

    def _hand_out(
        self, epoch: int, tasks: Iterator[tuple[int, Indices | None]], order: deque[int]
    ) -> bool:
        """Give tasks to the least busy workers; False when there are no more."""
        while self._free and len(order) < self._window:
            numbered_indices = next(tasks, None)
            if numbered_indices is None:
                return False
            number, indices = numbered_indices
            worker = min(self._workers, key=lambda worker: len(worker.tasks))
            slot = self._free.pop()
            task = Task(self._run, number, epoch, indices, self._slots[slot].offer)
            worker.tasks[self._run, number] = task
            order.append(number)
            try:
                worker.pipe.send(task)
            except OSError:
                self._raise_lost(worker)
        return True

    def _receive(self, ready: dict[int, Any]) -> bool:
        """Wait for news of any worker; False when the wait was interrupted."""
        pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers}
        for pipe in connections.wait([*pipes, self._wake_up]):
            if pipe is self._wake_up:
                return False
            worker = pipes[pipe]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                self._raise_lost(worker)
            self._note(worker, message, ready)
        return True

    def _note(self, worker: _Worker, message: Any, ready: dict[int, Any]) -> None:
        """Take a worker's message: None when it has started, else an answer or a failure."""
        worker.is_ready = True
        if message is None:
            return
        if isinstance(message, Failure):  # the worker could not even begin
            self.close()
            raise _rebuilt_error(message)
        run, number, slot, name, skeleton = message
        worker.tasks.pop((run, number), None)
        # Without a segment the answer is in the message itself: the end, or a failure.
        batch = self._slots[slot].take(name, skeleton) if name else skeleton
        self._free.append(slot)
        if run == self._run:
            ready[number] = batch

    def _raise_lost(self, worker: _Worker) -> NoReturn:
        worker.process.join(_JOIN_SECONDS)
        error = _death(worker)
        self.close()
        raise error from None


def describe_exit(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _pack_job(prefix: str, job: Job) -> Parcel:
    try:
        return Parcel(prefix, job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise wf.ArgumentTypeError(
            "DataLoader",
            "the dataset cannot be sent to worker processes",
            expected="a dataset, transforms and a collate function that can be pickled",
            got={"error": f"{type(error).__name__}: {error}"},
            fix="define functions with def at the top of a module (no lambda), or num_workers=0",
        ) from error


def _start(context: Any, info: WorkerInfo, parcel: Parcel) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(
        target=work,
        args=(theirs, info, *parcel.label()),
        name=f"weft-worker-{info.index}",
        daemon=True,
    )
    try:
        process.start()
    finally:
        theirs.close()
    return _Worker(info.index, process, ours)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A block in which Ctrl-C is held back, also in the processes started inside.

    New processes inherit the signal mask, so that Ctrl-C cannot end them before they ignore it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _clean_up(
    owner: int,
    workers: list[_Worker],
    slots: list[Slot],
    parcel: Parcel,
    wake_up: list[Connection],
) -> None:
    if os.getpid() != owner:
        return  # a forked copy of the owner, to which nothing of this belongs
    for end in [*wake_up, *(worker.pipe for worker in workers)]:
        with suppress(OSError):
            end.close()  # which ends the worker
    for worker in workers:
        _end(worker.process)
    for slot in slots:
        slot.remove_all()
    parcel.remove()


def _end(process: BaseProcess) -> None:
    """Wait for a process to end by itself; then ask it to, and then kill it."""
    for stop in (process.terminate, process.kill):
        process.join(_JOIN_SECONDS)
        if process.exitcode is not None:
            break
        stop()
    process.join()


def _death(worker: _Worker) -> WorkerError:
    tasks = list(worker.tasks.values())
    doing = f"while it loaded batch {tasks[0].number}" if tasks else "while it had nothing to do"
    if not worker.is_ready:
        doing = "before it was ready"
    got: dict[str, object] = {"exit code": worker.process.exitcode}
    if tasks and tasks[0].indices is not None:
        got["items"] = tasks[0].indices.tolist()
    return WorkerError(
        "DataLoader",
        f"{worker} {describe_exit(worker.process.exitcode)} {doing}",
        expected="worker processes that live until the loader ends them",
        got=got,
        fix=_remedy(worker),
    )


def _remedy(worker: _Worker) -> str:
    if worker.process.exitcode == -9:
        return "SIGKILL often means that memory ran out: fewer workers, or smaller batches"
    if not worker.is_ready:
        return 'guard the entry of the script with: if __name__ == "__main__":'
    return "load the items it was at with num_workers=0, where the fault can be seen"


def _rebuilt_error(failure: Failure) -> BaseException:
    error: BaseException | None = None
    if failure.pickled is not None:
        with suppress(Exception):
            error = pickle.loads(failure.pickled)
    if error is None or not isinstance(error, Exception):
        error = WorkerError(
            "DataLoader",
            f"a worker raised {failure.kind}, which cannot be raised again here",
            expected="exceptions that can be pickled",
            got={"exception": failure.kind},
            fix="the worker's own traceback is above; or try num_workers=0",
        )
    error.__cause__ = WorkerTraceback(failure.text)
    return error


# What runs in a worker process.


def work(
    pipe: Connection,
    info: WorkerInfo,
    data: bytes,
    segment: str | None,
    places: list[Placed],
) -> None:
    """The main function of a worker: open the parcel, then answer one task after another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which ends the workers
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    become_worker(info)
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
    try:
        # The owner may use all cores; a worker adds one thread, not as many again.
        wf.set_num_threads(1)
        job, _memory = open_parcel(data, segment, places)
        if job.worker_init is not None:
            job.worker_init(info.index)
        fetch = job.fetcher()
    except BaseException as error:
        _send(pipe, _failure(error, info))
        return
    desk = Desk()
    _send(pipe, None)
    while True:
        task = tasks.get()
        _send(pipe, _answer(task, fetch, desk, info))
        sys.stdout.flush()


def _send(pipe: Connection, message: Done | Failure | None) -> None:
    try:
        pipe.send(message)
    except OSError:  # nobody wants to know any more
        os._exit(0)


def _listen(pipe: Connection, tasks: queue.SimpleQueue[Task]) -> None:
    """Take tasks off the pipe at once, so that the owner never waits to hand them out."""
    with suppress(EOFError, OSError):
        while True:
            tasks.put(pipe.recv())
    os._exit(0)  # at once, also out of the middle of an item


def _answer(task: Task, fetch: Any, desk: Desk, info: WorkerInfo) -> Done:
    heading = (task.run, task.number, task.offer.slot)
    try:
        batch = fetch(task.epoch, task.number, task.indices)
        if batch is End:
            return Done(*heading, "", End)
        return Done(*heading, *desk.put(batch, task.offer))
    except BaseException as error:
        return Done(*heading, "", _failure(error, info))


def _failure(error: BaseException, info: WorkerInfo) -> Failure:
    error.add_note(f"in worker {info.index} of {info.count} (pid {os.getpid()})")
    text = "".join(traceback.format_exception(error))
    return Failure(_pickle_error(error), text, type(error).__name__)


def _pickle_error(error: BaseException) -> bytes | None:
    """The error as bytes; None if it does not survive pickling, which is tried at once."""
    with suppress(Exception):
        data = pickle.dumps(error)
        if type(pickle.loads(data)) is type(error):
            return data
    return None
