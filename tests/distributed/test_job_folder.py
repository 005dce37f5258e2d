"""What a job leaves where its launcher is killed, and who removes it."""

from __future__ import annotations

import os
from pathlib import Path

from weft.distributed import job_folder
from weft.distributed.job_folder import (
    HELD,
    SEGMENTS,
    SHARED,
    hold_folder,
    make_job_folder,
    remove_abandoned,
)


def _let_go() -> None:
    """End what the end of this process would: the locks on folders."""
    while job_folder._held:
        os.close(job_folder._held.pop())


def test_what_a_killed_launcher_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = make_job_folder(str(tmp_path))
    segment, other = Path(f"{SEGMENTS}test-{os.getpid()}"), tmp_path / "other"
    segment.touch()
    other.touch()
    (left / f"{SHARED}0").write_text(f"{segment}\n{other}\n{SEGMENTS}/../../{other}\n")
    _let_go()
    following = make_job_folder(str(tmp_path))
    assert [path.name for path in tmp_path.glob("weft-job-*")] == [following.name]
    assert not segment.exists()
    assert other.exists()  # which is none of an engine's
    _let_go()


def test_the_folder_of_a_job_that_runs_stays_also_without_its_launcher(tmp_path: Path) -> None:
    folder = make_job_folder(str(tmp_path))
    hold_folder(folder)  # as a process of the job does
    os.close(job_folder._held.pop(0))
    assert remove_abandoned(tmp_path) == []
    _let_go()
    (folder / HELD).write_text("another-host")
    assert remove_abandoned(tmp_path) == []
    assert folder.is_dir()
