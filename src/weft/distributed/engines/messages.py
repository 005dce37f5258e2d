"""Messages between processes of one host, for an engine that has none which go on at once.

They are those of Python's `multiprocessing.connection`, over sockets in the job's folder. Threads
take in what arrives, so that a sender waits for nobody. The order of messages under one tag stays,
and a process that ends is noticed by those who wait for it.

>>> import tempfile
>>> import numpy as np
>>> folder = tempfile.mkdtemp()
>>> first, second = (Mailbox(folder, "example", rank, timeout=5.0) for rank in range(2))
>>> first.send(np.arange(3, dtype=np.uint8), 1, tag=7)
>>> second.receive(0, tag=7).tolist()
[0, 1, 2]
>>> first.close(), second.close()
(None, None)
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

from weft.distributed.engines.engine import LostProcess

__all__ = ["Mailbox"]

Array = np.ndarray[Any, Any]
PAUSE = 0.01
"""Seconds between two tries to reach a process that has not begun to listen."""


class Mailbox:
    """What one process of a group has received, and its ways to the others."""

    def __init__(self, folder: str, group: str, rank: int, timeout: float) -> None:
        digest = hashlib.blake2b(group.encode(), digest_size=6).hexdigest()  # paths are short
        self._folder, self._digest = os.path.join(folder, "messages"), digest
        self._rank, self._timeout = rank, timeout
        os.makedirs(self._folder, exist_ok=True)
        self._arrived: dict[tuple[int, int], deque[bytes]] = {}
        self._lost: set[int] = set()
        self._changed = threading.Condition()
        self._outward: dict[int, Any] = {}
        self._inward: list[Any] = []
        self._listener = Listener(self._path(rank), family="AF_UNIX", backlog=64)
        self._start(self._accept)

    def send(self, data: Array, target: int, tag: int) -> None:
        """Send bytes to one process, and go on."""
        try:
            connection = self._outward.get(target) or self._connect(target)
            connection.send_bytes(tag.to_bytes(8, "little", signed=True))
            connection.send_bytes(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise LostProcess(f"process {target} of the group does not listen: {error}") from error

    def receive(self, source: int, tag: int) -> Array:
        """The next bytes that a process has sent under a tag; waits for them."""
        key = (source, tag)
        with self._changed:
            self._changed.wait_for(
                lambda: self._arrived.get(key) or source in self._lost, self._timeout
            )
            if not self._arrived.get(key):
                reason = "ended" if source in self._lost else f"sent nothing in {self._timeout:g} s"
                raise LostProcess(f"process {source} of the group {reason}")
            return np.frombuffer(self._arrived[key].popleft(), np.uint8).copy()

    def close(self) -> None:
        """Take nothing in any more; those who wait for this process notice."""
        self._listener.close()
        for connection in [*self._outward.values(), *self._inward]:
            connection.close()

    def _path(self, rank: int) -> str:
        return os.path.join(self._folder, f"{self._digest}-{rank}")

    def _connect(self, target: int) -> Connection:
        """The way to a process, which may begin to listen later."""
        limit = time.monotonic() + self._timeout
        while True:
            try:
                connection = Client(self._path(target), family="AF_UNIX")
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > limit:
                    raise
                time.sleep(PAUSE)
        connection.send_bytes(self._rank.to_bytes(8, "little"))
        self._outward[target] = connection
        return connection

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # it was closed
                return
            self._inward.append(connection)
            self._start(self._take_in, connection)

    def _take_in(self, connection: Connection) -> None:
        """Keep all that comes from one process, until it ends."""
        source = -1
        try:
            source = int.from_bytes(connection.recv_bytes(), "little")
            while True:
                tag = int.from_bytes(connection.recv_bytes(), "little", signed=True)
                data = connection.recv_bytes()
                with self._changed:
                    self._arrived.setdefault((source, tag), deque()).append(data)
                    self._changed.notify_all()
        except (EOFError, OSError):
            with self._changed:
                self._lost.add(source)
                self._changed.notify_all()

    @staticmethod
    def _start(run: Any, *arguments: Any) -> None:
        threading.Thread(target=run, args=arguments, name="weft-messages", daemon=True).start()
