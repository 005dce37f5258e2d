"""Who belongs to a job, agreed on in a folder that all processes see, without a launcher.

A group is one generation of members. Where a member is lost, or a process wants to join, those that
are there form the next generation: each writes that it is here, and waits until every member of the
last one is here or dead, and then all take the first list that one of them writes. A process holds
a lock on a file as long as it lives, which the system releases however it ends, so who is dead is
known and not guessed; one that is only stopped is left out after `timeout` seconds, and finds out
when it goes on.

>>> import tempfile
>>> folder = Membership(tempfile.mkdtemp(), own=0)
>>> folder.meet(1, [0, 1])  # 1 has never been here
[0]
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import weft as wf

__all__ = ["Membership"]

POLL = 0.01
ALIVE, HERE, AGREED, JOINING, FINISHED = "alive-", "here-", "agreed", "joining-", "finished"


class Membership:
    """One process's view of the members of a job; `own` is its number, never used again."""

    def __init__(self, folder: str | os.PathLike[str], own: int, timeout: float = 60.0) -> None:
        self._folder, self.own, self._timeout = Path(folder), own, timeout
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._folder / f"{ALIVE}{own}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def meet(self, generation: int, before: Sequence[int]) -> list[int]:
        """The members of a generation: those of the last one that are here, then who joins."""
        place = self._place_of(generation)
        place.mkdir(exist_ok=True)
        (place / f"{HERE}{self.own}").touch()
        deadline = time.monotonic() + self._timeout
        while (members := self._agreed_members(generation)) is None:
            is_late = time.monotonic() > deadline
            here = [n for n in before if (place / f"{HERE}{n}").exists()]
            missing = [n for n in before if n not in here and self.is_alive(n)]
            if not missing or is_late:
                self._propose(generation, [*here, *self.waiting()])
            time.sleep(POLL)
        if self.own not in members:
            raise wf.ProcessError(
                "distributed.Recovery",
                "the others went on without this process",
                expected=f"to be there within {self._timeout:g} s",
                got={"rank": self.own, "members": members},
                fix="start it again: it joins the others",
            )
        return members

    def join(self) -> tuple[int, list[int]]:
        """Wait until the others take this process in: the generation and its members."""
        (self._folder / f"{JOINING}{self.own}").touch()
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            generation = self.newest()
            members = self._agreed_members(generation)
            if members is not None and self.own in members:
                return generation, members
            if (self._folder / FINISHED).exists():
                break
            time.sleep(POLL)
        raise wf.ProcessError(
            "distributed.Recovery",
            "the others did not take this process in",
            expected=f"a training that goes on, and looks within {self._timeout:g} s",
            got={"rank": self.own, "is finished": (self._folder / FINISHED).exists()},
            fix="nothing, if the training has ended meanwhile",
        )

    def waiting(self) -> list[int]:
        """The processes that want to join, and are alive."""
        numbers = [int(path.name[len(JOINING) :]) for path in self._folder.glob(f"{JOINING}*")]
        taken = self._agreed_members(self.newest()) or []
        return sorted(n for n in numbers if n not in taken and self.is_alive(n))

    def is_alive(self, number: int) -> bool:
        """Whether a process holds its lock."""
        if number == self.own:
            return True
        try:
            handle = os.open(self._folder / f"{ALIVE}{number}", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(handle)

    def newest(self) -> int:
        """The newest generation that was agreed on; 0 is that of the start."""
        places = self._folder.glob(f"generation-*/{AGREED}")
        return max([int(path.parent.name.rpartition("-")[2]) for path in places], default=0)

    def finish(self) -> None:
        """Tell who would join that the training is over."""
        (self._folder / FINISHED).touch()

    def _place_of(self, generation: int) -> Path:
        return self._folder / f"generation-{generation}"

    def _agreed_members(self, generation: int) -> list[int] | None:
        try:
            text = (self._place_of(generation) / AGREED).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        members: list[int] = json.loads(text)
        return members

    def _propose(self, generation: int, members: Sequence[int]) -> None:
        """Write the list of members, unless another process was first."""
        place = self._place_of(generation)
        draft = place / f"draft-{self.own}"
        draft.write_text(json.dumps(list(members)), encoding="utf-8")
        with suppress(FileExistsError):
            os.link(draft, place / AGREED)  # which is atomic, and fails where there is one
