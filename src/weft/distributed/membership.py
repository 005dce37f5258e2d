"""Who belongs to a job, agreed on in a folder that all processes see, without a launcher.

A group is one generation of members. Where a member is lost, or a process wants to join, those that
are there form the next generation: each writes that it is here, and waits until every member of the
last one is here or dead. Then each writes whom it reaches, and all take the first list that one of
them writes: the most of them that reach each other. A process holds a lock on a file as long as it
lives, which the system releases however it ends, so who is dead is known and not guessed; one that
is only stopped is left out after `timeout` seconds, and finds out when it goes on.

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
from weft.distributed.doors import KNOCK, Address, Door, largest_circle, reached_numbers
from weft.files import write_text

__all__ = ["LeftOut", "Membership"]

POLL = 0.01
ALIVE, HERE, REACHED, AGREED = "alive-", "here-", "reached-", "agreed"
JOINING, FINISHED = "joining-", "finished"


class LeftOut(wf.ProcessError):
    """The others agreed on a group without this process."""


class Membership:
    """One process's view of the members of a job; `own` is its number, never used again.

    host: the name or address of this host, by which the others reach it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        own: int,
        timeout: float = 60.0,
        host: str = "localhost",
    ) -> None:
        self._folder, self.own, self._timeout = Path(folder), own, timeout
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._folder / f"{ALIVE}{own}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._door = Door(host, own)
        os.write(self._lock, json.dumps(self._door.address).encode())

    def meet(self, generation: int, before: Sequence[int]) -> list[int]:
        """The members of a generation: those of the last one that are here, then who joins.

        Those are here that have come, and of them the most that reach each other.
        """
        place = self._place_of(generation)
        place.mkdir(exist_ok=True)
        (place / f"{HERE}{self.own}").touch()
        here = self._wait_for(generation, HERE, before, self._timeout)
        newcomers = self.waiting()
        addresses = {n: self._address_of(n) for n in [*here, *newcomers]}
        reached = reached_numbers({n: a for n, a in addresses.items() if a}, self.own)
        write_text("distributed.Recovery", place / f"{REACHED}{self.own}", json.dumps(reached))
        told = self._wait_for(generation, REACHED, here, 2 * KNOCK + self._timeout)
        if (members := self._agreed_members(generation)) is None:
            rows = {n: json.loads((place / f"{REACHED}{n}").read_text()) for n in told}
            circle = largest_circle(rows)
            joining = [n for n in newcomers if all(n in rows[each] for each in circle)]
            self._propose(generation, [*circle, *joining])
            members = self._agreed_members(generation) or []
        if self.own not in members:
            raise LeftOut(
                "distributed.Recovery",
                "the others went on without this process",
                expected=f"to be there within {self._timeout:g} s, and to reach the others",
                got={"rank": self.own, "members": members, "reached": reached},
                fix="start it again: it joins the others",
            )
        return members

    def _wait_for(
        self, generation: int, mark: str, numbers: Sequence[int], seconds: float
    ) -> list[int]:
        """The processes that have left a mark, once all have that live; or too much time passed.

        It ends, too, where members have been agreed on.
        """
        place, deadline = self._place_of(generation), time.monotonic() + seconds
        while True:
            present = [n for n in numbers if (place / f"{mark}{n}").exists()]
            missing = [n for n in numbers if n not in present and self.is_alive(n)]
            is_over = not missing or time.monotonic() > deadline
            if is_over or self._agreed_members(generation) is not None:
                return present
            time.sleep(POLL)

    def _address_of(self, number: int) -> Address | None:
        """Where the door of a process is; None where it has not said so."""
        try:
            host, port = json.loads((self._folder / f"{ALIVE}{number}").read_text())
        except (OSError, ValueError):
            return None
        return str(host), int(port)

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
