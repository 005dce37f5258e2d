"""Batches on a card, each copied there while the one before it is worked on.

>>> from weft.data.upload import UploadAhead
>>> UploadAhead.__name__
'UploadAhead'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

import weft as wf
from weft.data.collate import convert_leaves


class UploadAhead(Iterator[Any]):
    """The batches of a source on a card, in order; the copy of the next is under way.

    What the source raises is raised in its place in the order.
    """

    def __init__(self, source: Any, device: wf.Device) -> None:
        self._source = source
        self._staging = wf.cuda.Staging(device.index)
        self._ahead: deque[tuple[Any, Any]] = deque()
        self._end: BaseException | None = None

    def __next__(self) -> Any:
        while len(self._ahead) < 2 and self._end is None:
            self._begin_next()
        if not self._ahead:
            assert self._end is not None
            raise self._end
        batch, upload = self._ahead.popleft()
        upload.finish()
        return batch

    def _begin_next(self) -> None:
        try:
            batch = next(self._source)
        except BaseException as end:  # also StopIteration
            self._end = end
            return
        upload = self._staging.begin()

        def on_card(array: npt.NDArray[Any]) -> Any:
            if not is_numeric(array):
                return array
            return wf.asarray(upload.add(wf.asarray(array, device="cpu").numpy()))

        placed = convert_leaves(batch, on_card)
        upload.end()
        self._ahead.append((placed, upload))

    def close(self) -> None:
        """Close the source, and let go of batches that nobody asked for."""
        self._ahead.clear()
        self._source.close()


def is_numeric(array: npt.NDArray[Any]) -> bool:
    """Whether a tensor can be made of an array: not of text, dates or objects."""
    return array.dtype.kind not in "USOMm"
