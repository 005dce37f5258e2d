"""Whether processes reach each other: a socket of each, at which others knock.

After a cut link all processes live, and all of them may see the folder in which they meet, but some
do not reach each other. Who goes on together must reach each other, so each knocks at the doors of
the others, and `largest_circle` says who may be the next group.

>>> first, second = Door("localhost", 0), Door("localhost", 1)
>>> reached_numbers({0: first.address, 1: second.address}, own=0)
[0, 1]
>>> second.close()
>>> reached_numbers({0: first.address, 1: second.address}, own=0)
[0]
>>> first.close()
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

__all__ = ["Address", "Door", "largest_circle", "reached_numbers"]

Address = tuple[str, int]
"""The name of a host, and a port there."""
KNOCK = 2.0
"""Seconds in which a process that is reached answers."""


class Door:
    """A socket of a process, at which it says its number to whoever knocks."""

    def __init__(self, host: str, own: int) -> None:
        self._server = socket.create_server((host, 0), backlog=128)
        self._answer = str(own).encode()
        self.address: Address = (host, int(self._server.getsockname()[1]))
        threading.Thread(target=self._open, name="weft-door", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # which ends the wait of the thread
        self._server.close()

    def _open(self) -> None:
        while True:
            try:
                visitor, _ = self._server.accept()
            except OSError:  # it was closed
                return
            with visitor, suppress(OSError):
                visitor.sendall(self._answer)


def _answers(address: Address, number: int) -> bool:
    try:
        with socket.create_connection(address, timeout=KNOCK) as visit:
            return visit.makefile("rb").read() == str(number).encode()
    except OSError:
        return False


def reached_numbers(addresses: Mapping[int, Address], own: int) -> list[int]:
    """The processes that answer this one, itself among them; all doors are tried at once."""
    found = [own]

    def knock(number: int, address: Address) -> None:
        if _answers(address, number):
            found.append(number)

    others = [(number, address) for number, address in addresses.items() if number != own]
    threads = [threading.Thread(target=knock, args=each, daemon=True) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * KNOCK)
    return sorted(found)


def largest_circle(reached: Mapping[int, Sequence[int]]) -> list[int]:
    """The most processes that all reach each other; of two such groups that with the lowest number.

    reached: for each process, those that it reaches. Processes are taken in their order, so that
    every process finds the same group.

    >>> largest_circle({0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]})
    [0, 1]
    >>> largest_circle({0: [0], 1: [1, 2], 2: [1, 2]})
    [1, 2]
    """
    circles = []
    for first in sorted(reached):
        circle = [first]
        for number in sorted(reached):
            both = all(number in reached[each] and each in reached[number] for each in circle)
            if number != first and both:
                circle.append(number)
        circles.append(sorted(circle))
    return max(circles, key=lambda each: (len(each), -each[0]), default=[])
