"""Where loading stands: the seed, the epoch and the item, and the random numbers that belong to it.

A transform that draws random numbers must not care which process runs it, or after which other
item. So each item has a generator of its own, made from (seed, epoch, index): `map(f, random=True)`
passes it as second argument, and code that is called deeper asks for it with `item_generator()`.

>>> from weft.data.scope import item_generator, load_item
>>> with load_item(seed=0, epoch=3, index=17):
...     first = item_generator().integers(1000)
>>> with load_item(seed=0, epoch=3, index=17):
...     again = item_generator().integers(1000)
>>> bool(first == again)
True
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Place:
    """A point of a run: which item of which epoch is being loaded, under which seed.

    `stage` tells the transforms of a stream apart: each has items of its own numbering.
    """

    seed: int = 0
    epoch: int = 0
    index: int = 0
    stage: int = 0

    def generator(self) -> np.random.Generator:
        """The random numbers of this item, from their start."""
        return generator_of(self.seed, self.epoch, self.index, self.stage)


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker process this is, of how many."""

    index: int
    count: int


@dataclass
class _Current(threading.local):
    """The item that each thread is loading now."""

    place: Place | None = None
    generator: np.random.Generator | None = None


_current = _Current()
_worker: list[WorkerInfo] = []


def load_item(seed: int, epoch: int, index: int, stage: int = 0) -> AbstractContextManager[None]:
    """A block that loads one item: random numbers inside depend on its place alone."""
    return at_place(Place(seed, epoch, index, stage))


@contextmanager
def at_place(place: Place) -> Iterator[None]:
    """Everything inside loads the item of this place."""
    outside = _current.place, _current.generator
    _current.place, _current.generator = place, None
    try:
        yield
    finally:
        _current.place, _current.generator = outside


def place() -> Place:
    """The item that this thread loads; seed, epoch and index 0 where none is being loaded."""
    return _current.place or Place()


def is_loading() -> bool:
    """Whether this thread is loading an item, so that its generator is already decided."""
    return _current.place is not None


def item_generator() -> np.random.Generator:
    """The random numbers of the item being loaded, made from (seed, epoch, index).

    Within one item all callers draw from the same generator, one after another.

    >>> from weft.data import ArrayDataset, DataLoader, item_generator
    >>> noisy = ArrayDataset([0, 0]).map(lambda x: x + item_generator().integers(100))
    >>> next(iter(DataLoader(noisy, batch_size=2, seed=7))).tolist()
    [26, 52]
    """
    if _current.generator is None:
        _current.generator = place().generator()
        if _current.place is None:
            # Nothing ends this place, so nobody else may go on from where its numbers stopped.
            generator, _current.generator = _current.generator, None
            return generator
    return _current.generator


def generator_of(*numbers: int) -> np.random.Generator:
    """A generator that depends on these numbers only, each of any size and sign."""
    # NumPy takes [1] and [1, 0] for the same seed, so the length has to be part of it.
    return np.random.default_rng([len(numbers), *(number % 2**64 for number in numbers)])


def worker_info() -> WorkerInfo | None:
    """Which worker this process is, or None in the process that owns the loader.

    >>> from weft.data import worker_info
    >>> worker_info() is None
    True
    """
    return _worker[0] if _worker else None


def become_worker(info: WorkerInfo) -> None:
    """Note that this process is a worker."""
    _worker[:] = [info]
