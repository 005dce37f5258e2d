"""Worker processes: the same batches with any number of them, clear failures, nothing left behind.

No test waits for a certain time: each waits for an event that must come.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.data import transforms

import weft as wf
from weft.data import (
    ArrayDataset,
    DataLoader,
    WorkerError,
    from_iterable,
    pad_collate,
)
from weft.data.shared import Slot

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def segments() -> set[str]:
    """The shared memory that this process's loaders hold."""
    folder = Path("/dev/shm")
    prefix = f"weft{os.getpid()}"
    return {path.name for path in folder.glob(f"{prefix}*")} if folder.exists() else set()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert multiprocessing.active_children() == []
    assert segments() == set()
    assert [t for t in threading.enumerate() if t.name == "weft-prefetch"] == []


def is_running(pid: str) -> bool:
    """A process that has ended may stay in the table until it is waited for, in state Z."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def flat(batch: Any) -> list[Any]:
    if isinstance(batch, wf.Tensor):
        return [(batch.dtype, np.asarray(batch).tolist())]
    if isinstance(batch, dict):
        return [part for key in batch for part in (key, *flat(batch[key]))]
    if isinstance(batch, tuple | list):
        return [part for entry in batch for part in flat(entry)]
    return [batch]


def batches(loader: DataLoader) -> list[list[Any]]:
    return [flat(batch) for batch in loader]


DATA = {
    "records": transforms.Numbers(23).map(transforms.as_record),
    "noise": transforms.Numbers(23).map(transforms.noisy, random=True),
    "noise inside": transforms.Numbers(23).map(transforms.noisy_inside),
    "arrays": ArrayDataset(np.arange(46.0).reshape(23, 2), np.arange(23)),
    "growing": transforms.Numbers(9).map(transforms.growing),
}


def test_batches_do_not_depend_on_the_number_of_workers() -> None:
    """All data in one pool of each size, since processes take long to start."""
    whole = DATA["records"].zip(DATA["noise"], DATA["noise inside"], DATA["arrays"])
    loaders = [
        DataLoader(whole, 4, shuffle=True, seed=5, num_workers=count, persistent_workers=True)
        for count in (0, 1, 2)
    ]
    for _ in range(2):
        here, one, two = (batches(loader) for loader in loaders)
        assert len(here) == 6
        assert here == one == two
    for loader in loaders:
        loader.close()


def test_a_stream_keeps_its_order_with_workers() -> None:
    stream = from_iterable(transforms.squares).filter(transforms.is_even).shuffle(5, seed=1)
    stream = stream.map(transforms.noisy, random=True)
    loaders = [DataLoader(stream, 3, seed=2, num_workers=count) for count in (0, 2)]
    here, there = (batches(loader) for loader in loaders)
    assert len(here) == 4
    assert here == there
    assert batches(loaders[0]) != here  # the next epoch is shuffled anew


def test_a_run_resumes_in_mid_epoch_with_another_number_of_workers() -> None:
    def loader(workers: int) -> DataLoader:
        return DataLoader(DATA["noise"], 4, shuffle=True, seed=1, num_workers=workers)

    whole = loader(0)
    reference = batches(whole) + batches(whole)
    begun = loader(2)
    iterator = iter(begun)
    seen = [flat(next(iterator)) for _ in range(2)]
    state = begun.state_dict()
    del iterator
    resumed = loader(0)
    resumed.load_state_dict(state)
    assert seen + batches(resumed) + batches(resumed) == reference
    again = loader(1)
    again.load_state_dict(state)
    assert batches(again) == reference[2:6]


def test_a_stream_resumes_in_mid_epoch_with_another_number_of_workers() -> None:
    stream = from_iterable(range(20)).shuffle(6).map(transforms.noisy, random=True)
    reference = batches(DataLoader(stream, 3))
    begun = DataLoader(stream, 3, num_workers=1)
    iterator = iter(begun)
    seen = [flat(next(iterator)) for _ in range(3)]
    del iterator
    resumed = DataLoader(stream, 3, num_workers=2)
    resumed.load_state_dict(begun.state_dict())
    assert seen + batches(resumed) == reference


def test_batches_that_grow_get_larger_segments() -> None:
    loader = DataLoader(DATA["growing"], None, num_workers=1)
    assert [batch.shape[0] for batch in loader] == [5000 * (i + 1) for i in range(9)]


def test_an_exception_comes_with_the_workers_traceback_and_the_item() -> None:
    loader = DataLoader(transforms.Numbers(20).map(transforms.fail_at_seven), 4, num_workers=2)
    seen: list[list[int]] = []
    with pytest.raises(KeyError, match="seven") as caught:
        seen.extend(batch.tolist() for batch in loader)
    assert seen == [[0, 1, 2, 3]]
    text = "".join(traceback.format_exception(caught.value))
    assert "in fail_at_seven" in text
    assert 'raise KeyError("seven")' in text
    assert "while loading item 7 of the dataset (epoch 0)" in text
    assert "in worker 1 of 2" in text or "in worker 0 of 2" in text


@pytest.mark.parametrize(
    ("function", "kind"),
    [(transforms.fail_unpicklably, "Unpicklable"), (transforms.leave, "SystemExit")],
)
def test_what_cannot_be_raised_again_is_told(function: Any, kind: str) -> None:
    with pytest.raises(WorkerError, match=kind) as caught:
        batches(DataLoader(transforms.Numbers(4).map(function), 2, num_workers=1))
    assert f"in {function.__name__}" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("function", "how"),
    [
        (transforms.exit_at_seven, "ended with exit code 3"),
        (transforms.kill_at_seven, "was killed by SIGKILL"),
    ],
)
def test_a_worker_that_dies_is_named(function: Any, how: str) -> None:
    loader = DataLoader(transforms.Numbers(20).map(function), 4, num_workers=2)
    with pytest.raises(WorkerError) as caught:
        batches(loader)
    problem = caught.value.problem
    assert how in problem
    assert "while it loaded batch 1" in problem
    assert problem.startswith("worker ")
    assert "pid " in problem
    assert "[4, 5, 6, 7]" in caught.value.got


def test_a_pass_left_early_ends_its_workers() -> None:
    for batch in DataLoader(transforms.Numbers(40), 2, num_workers=2):
        assert batch.tolist() == [0, 1]
        break


def is_waiting_for_a_batch(thread: int) -> bool:
    frame: FrameType | None = sys._current_frames()[thread]
    modules = []
    while frame is not None:
        modules.append(frame.f_globals["__name__"])
        frame = frame.f_back
    return modules[0] == "threading" and "weft.data.loader" in modules


def test_an_interrupt_cleans_up() -> None:
    loader = DataLoader(transforms.Numbers(20).map(transforms.wait_for_ever), 2, num_workers=1)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    assert next(iterator).tolist() == [2, 3]
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while not is_waiting_for_a_batch(main):
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    # A shell's job in the background ignores the signal, and its processes inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            # The third batch never comes: the signal arrives when we wait for it.
            threading.Thread(target=interrupt).start()
            next(iterator)
    finally:
        signal.signal(signal.SIGINT, before)
    assert multiprocessing.active_children() == []


def test_persistent_workers_stay_between_epochs_and_after_an_early_end() -> None:
    loader = DataLoader(
        transforms.Numbers(12).map(transforms.process), 2, num_workers=1, persistent_workers=True
    )
    first = {pid for batch in loader for pid in batch.tolist()}
    next(iter(loader))
    gc.collect()
    assert {pid for batch in loader for pid in batch.tolist()} == first
    assert first == {child.pid for child in multiprocessing.active_children()}
    loader.close()


def test_two_passes_at_once_do_not_disturb_each_other() -> None:
    loader = DataLoader(transforms.Numbers(6), 2, num_workers=1, persistent_workers=True)
    pairs = [(x.tolist(), y.tolist()) for x, y in zip(loader, loader, strict=True)]
    assert pairs == [([i, i + 1], [i, i + 1]) for i in (0, 2, 4)]
    loader.close()


def test_workers_know_who_they_are_and_are_initialised() -> None:
    data = (
        transforms.Numbers(4).map(transforms.flag).zip(transforms.Numbers(4).map(transforms.where))
    )
    loader = DataLoader(data, 4, num_workers=1, worker_init=transforms.set_flag)
    flags, counts = next(iter(loader))
    assert (flags.tolist(), counts.tolist()) == ([0] * 4, [1] * 4)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_cannot_change_the_data_in_place(workers: int) -> None:
    data = ArrayDataset(np.zeros((4, 2))).map(transforms.write_to)
    with pytest.raises(ValueError, match="read-only"):
        batches(DataLoader(data, 2, num_workers=workers))


def test_a_lambda_is_refused_before_a_process_starts() -> None:
    loader = DataLoader(transforms.Numbers(4).map(lambda x: x), 2, num_workers=1)
    with pytest.raises(wf.ArgumentTypeError) as caught:
        iter(loader)
    assert "lambda" in caught.value.got
    assert "num_workers=0" in caught.value.fix


@pytest.mark.parametrize("workers", [0, 1])
def test_ragged_items_are_named_with_the_way_out(workers: int) -> None:
    with pytest.raises(wf.ShapeError) as caught:
        batches(DataLoader(transforms.Lengths(), 3, num_workers=workers, prefetch=1))
    assert caught.value.got == "item 0: ndarray float32[1]   item 1: ndarray float32[2]"
    assert "collate=wf.data.pad_collate" in caught.value.fix
    assert caught.value.at is not None
    assert Path(caught.value.at.file).name == Path(__file__).name
    padded = [
        batch.shape
        for batch in DataLoader(transforms.Lengths(), 3, num_workers=workers, collate=pad_collate)
    ]
    assert padded == [(3, 3), (3, 6)]


def test_forking_is_refused_because_of_threads() -> None:
    with pytest.raises(wf.ArgumentError, match="no such way"):
        DataLoader(transforms.Numbers(4), 2, num_workers=1, start_method="fork")


ENDLESS = """
import multiprocessing, sys
from tests.data import transforms
from weft.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(transforms.Numbers(20).map(transforms.wait_for_ever), 2, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if sys.argv[1] == "wait":
        list(iterator)
"""


@pytest.mark.parametrize("end", ["wait", "leave"])
def test_workers_do_not_outlive_their_owner(tmp_path: Path, end: str) -> None:
    """Killed or simply ended, the owner takes its workers and its memory along."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    owner = subprocess.Popen(
        [sys.executable, str(script), end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert owner.stdout is not None
    pids = owner.stdout.readline().split()
    assert len(pids) == 2
    if end == "wait":
        owner.kill()
    # Pipes that workers and the tracker inherited close only when all of them have ended.
    _, errors = owner.communicate()
    assert owner.returncode == (-signal.SIGKILL if end == "wait" else 0)
    assert [pid for pid in pids if is_running(pid)] == []
    if end == "leave":
        assert errors == ""
    assert list(Path("/dev/shm").glob(f"weft{owner.pid}*")) == []


def test_an_unguarded_script_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from tests.data import transforms\nfrom weft.data import DataLoader\n"
        "list(DataLoader(transforms.Numbers(4), 2, num_workers=1))\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert 'guard the entry of the script with: if __name__ == "__main__":' in done.stderr


def test_a_segment_that_was_never_given_a_size_is_removed() -> None:
    slot = Slot("weft-test-empty", 0)
    name = slot.offer.next_name
    descriptor = shared_memory._posixshmem.shm_open(f"/{name}", os.O_CREAT | os.O_RDWR, mode=0o600)
    os.close(descriptor)
    slot.remove_all()
    with pytest.raises(FileNotFoundError):
        shared_memory.SharedMemory(name)
