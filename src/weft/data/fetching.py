"""One batch at a time: the part of loading that is the same in this process and in a worker.

A fetcher is called with the epoch, the batch's number and, for indexable data, its indices. It
computes the batch as a tree of NumPy arrays, each item under its own (seed, epoch, index).

>>> import numpy as np
>>> from weft.data import ArrayDataset
>>> from weft.data.fetching import Job
>>> Job(ArrayDataset([10, 20, 30])).fetcher()(0, 0, np.array([2, 0]))
array([30, 10])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from weft.data.collate import Collate, collate_items
from weft.data.dataset import Dataset, Indices
from weft.data.scope import load_item
from weft.data.stream import IterableDataset, Thunk, Thunks

Fetcher = Callable[[int, int, Indices | None], Any]


class End:
    """Stands for a batch where the stream has run out."""


@dataclass(frozen=True)
class Job:
    """What is needed to compute batches; it is sent to each worker."""

    dataset: Dataset | IterableDataset
    batch_size: int | None = 1
    drop_last: bool = False
    collate: Collate | None = None
    seed: int = 0
    worker_init: Callable[[int], object] | None = None

    def fetcher(self) -> Fetcher:
        """A function that computes batches of this dataset."""
        if isinstance(self.dataset, IterableDataset):
            return StreamFetcher(self, self.dataset)
        return ItemFetcher(self, self.dataset)

    def collate_batch(self, items: list[Any], names: Sequence[int]) -> Any:
        """Items as a batch; a dataset that is not to be batched gives single items."""
        if self.batch_size is None:
            return items[0] if self.collate is None else self.collate(items[0])
        return collate_items(items, names) if self.collate is None else self.collate(items)


@dataclass(frozen=True)
class ItemFetcher:
    """Batches of indexable data."""

    job: Job
    dataset: Dataset

    def __call__(self, epoch: int, number: int, indices: Indices | None) -> Any:
        """The batch of this number; `indices` are None for a stream."""
        if indices is None or len(indices) == 0:
            return self.job.collate_batch([], [])
        if self.job.collate is None and self.job.batch_size is not None:
            whole = self.dataset.gather(indices)
            if whole is not None:
                return whole
        names = indices.tolist()
        return self.job.collate_batch([self._item(epoch, index) for index in names], names)

    def _item(self, epoch: int, index: int) -> Any:
        try:
            with load_item(self.job.seed, epoch, index):
                return self.dataset[index]
        except Exception as error:
            error.add_note(f"while loading item {index} of the dataset (epoch {epoch})")
            raise


class StreamFetcher:
    """Batches of a stream: walks on to the batch that is asked for, without computing others."""

    def __init__(self, job: Job, stream: IterableDataset) -> None:
        self.job = job
        self.stream = stream
        self._size = job.batch_size or 1
        self._epoch: int | None = None
        self._position = 0
        self._thunks: Thunks = iter(())

    def __call__(self, epoch: int, number: int, indices: Indices | None) -> Any:
        """The batch of this number; `indices` are None for a stream."""
        start = number * self._size
        if epoch != self._epoch or start < self._position:
            self._epoch, self._position, self._thunks = epoch, 0, self.stream.thunks()
        for _ in self._walk(start - self._position):
            pass
        group = list(self._walk(self._size))
        if not group or (self.job.drop_last and len(group) < self._size):
            return End
        items = [self._compute(thunk, start + i) for i, thunk in enumerate(group)]
        return self.job.collate_batch(items, range(start, start + len(items)))

    def _walk(self, count: int) -> Thunks:
        for _ in range(count):
            try:
                with load_item(self.job.seed, self._epoch or 0, self._position):
                    next_thunk = list(islice(self._thunks, 1))
            except Exception as error:
                self._epoch = None
                error.add_note(f"while reading item {self._position} of the stream")
                raise
            if not next_thunk:
                return
            self._position += 1
            yield next_thunk[0]

    def _compute(self, thunk: Thunk, index: int) -> Any:
        try:
            with load_item(self.job.seed, self._epoch or 0, index):
                return thunk()
        except Exception as error:
            error.add_note(f"while loading item {index} of the stream (epoch {self._epoch})")
            raise
