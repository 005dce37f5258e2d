"""A thread that works ahead: it keeps a few results ready while the consumer computes.

The order is the source's order, and the source is only ever used by that one thread. What the
source raises is raised to the consumer, in its place in the order. The consumer's end (`close`, or
the last reference gone) ends the thread and closes the source.

>>> from weft.data.prefetch import Prefetcher
>>> list(Prefetcher(iter([1, 2, 3]), ahead=2))
[1, 2, 3]
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

from weft.data.scope import Place, at_place, is_loading, place

_JOIN_SECONDS = 5.0


class Prefetcher(Iterator[Any]):
    """The source's results in order, up to `ahead` of them made before they are asked for."""

    def __init__(self, source: Iterator[Any], ahead: int) -> None:
        self._buffer = _Buffer(max(1, ahead))
        # The thread must not hold this object, or forgetting it could not end the thread.
        self._thread = threading.Thread(
            target=_fill,
            args=(source, self._buffer, place() if is_loading() else None),
            name="weft-prefetch",
            daemon=True,
        )
        self._thread.start()

    def __next__(self) -> Any:
        return self._buffer.get()

    def close(self) -> None:
        """End the thread and wait until it has let go of the source."""
        self._buffer.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class _Buffer:
    """Results on their way from one thread to another, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._end: BaseException | None = None

    def put(self, result: Any) -> bool:
        """Wait for room; False when nobody wants results any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._results) < self._size)
            if self._closed:
                return False
            self._results.append(result)
            self._changed.notify_all()
            return True

    def finish(self, end: BaseException) -> None:
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def get(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._end or self._closed)
            if self._results:
                result = self._results.popleft()
                self._changed.notify_all()
                return result
            end, self._end = self._end, StopIteration()
        raise end or StopIteration

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._results.clear()
            self._changed.notify_all()


def _fill(source: Iterator[Any], buffer: _Buffer, where: Place | None) -> None:
    end: BaseException = StopIteration()
    try:
        with at_place(where) if where else nullcontext():
            for result in source:
                if not buffer.put(result):
                    break
    except BaseException as error:
        end = error
    finally:
        if hasattr(source, "close"):
            source.close()
        buffer.finish(end)
