"""Samplers: in which order the items of a dataset are visited, epoch by epoch.

A sampler is a pure function of the epoch: `indices(epoch)` is the whole order of that epoch. So an
order depends on the seed and on nothing else, and a run that resumes finds the same order again.

>>> from weft.data import RandomSampler
>>> sampler = RandomSampler(5, seed=0)
>>> sampler.indices(epoch=0).tolist(), sampler.indices(epoch=1).tolist()
([2, 4, 3, 0, 1], [2, 1, 0, 3, 4])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.dataset import Indices, check_count, check_natural, whole_numbers
from weft.data.scope import generator_of


class Sampler(ABC):
    """The order of each epoch; a subclass gives `indices(epoch)` and `__len__`.

    >>> from weft.data import Sampler
    >>> import numpy as np
    >>> class Backwards(Sampler):
    ...     def __len__(self): return 3
    ...     def indices(self, epoch): return np.array([2, 1, 0])
    >>> list(Backwards())
    [2, 1, 0]
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many items an epoch visits."""

    @abstractmethod
    def indices(self, epoch: int) -> Indices:
        """The items of this epoch, in order."""

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices(0).tolist())


class SequentialSampler(Sampler):
    """All items from first to last; takes a dataset or a number.

    >>> from weft.data import SequentialSampler
    >>> list(SequentialSampler(3))
    [0, 1, 2]
    """

    def __init__(self, dataset: Sized | int) -> None:
        self._size = _size("SequentialSampler", dataset)

    def __len__(self) -> int:
        return self._size

    def indices(self, epoch: int) -> Indices:
        """The items of this epoch, in order."""
        return np.arange(self._size)


class RandomSampler(Sampler):
    """All items in a random order, another one in each epoch; or draws with replacement.

    >>> from weft.data import RandomSampler
    >>> RandomSampler(3, replacement=True, num_samples=5).indices(epoch=0).tolist()
    [2, 0, 0, 0, 1]
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        seed: int = 0,
        replacement: bool = False,
        num_samples: int | None = None,
    ) -> None:
        self._size = _size("RandomSampler", dataset)
        self.seed = seed
        self.replacement = replacement
        self.num_samples = self._size if num_samples is None else num_samples
        check_count("RandomSampler", "num_samples", self.num_samples)
        if not replacement and self.num_samples > self._size:
            raise _too_many("RandomSampler", self.num_samples, self._size)

    def __len__(self) -> int:
        return self.num_samples

    def indices(self, epoch: int) -> Indices:
        """The items of this epoch, in order."""
        generator = generator_of(self.seed, epoch)
        if self.replacement:
            return generator.integers(self._size, size=self.num_samples)
        return generator.permutation(self._size)[: self.num_samples]


class WeightedSampler(Sampler):
    """Items drawn in proportion to their weights, so that rare classes are seen more often.

    >>> from weft.data import WeightedSampler
    >>> WeightedSampler([0.0, 1.0, 0.0], num_samples=3).indices(epoch=0).tolist()
    [1, 1, 1]
    """

    def __init__(
        self,
        weights: Sequence[float] | npt.NDArray[Any],
        *,
        num_samples: int | None = None,
        replacement: bool = True,
        seed: int = 0,
    ) -> None:
        self._chances = _chances(np.asarray(weights, np.float64))
        self.num_samples = len(self._chances) if num_samples is None else num_samples
        check_count("WeightedSampler", "num_samples", self.num_samples)
        self.replacement = replacement
        self.seed = seed
        possible = int(np.count_nonzero(self._chances))
        if not replacement and self.num_samples > possible:
            raise _too_many("WeightedSampler", self.num_samples, possible)

    def __len__(self) -> int:
        return self.num_samples

    def indices(self, epoch: int) -> Indices:
        """The items of this epoch, in order."""
        generator = generator_of(self.seed, epoch)
        return generator.choice(
            len(self._chances), self.num_samples, replace=self.replacement, p=self._chances
        )


class StratifiedSampler(Sampler):
    """All items in a random order that keeps the classes mixed in proportion everywhere.

    Each class is shuffled and spread evenly over the epoch, so every batch has nearly the
    proportions of the whole.

    >>> from weft.data import StratifiedSampler
    >>> labels = [0, 0, 0, 0, 1, 1]
    >>> [labels[i] for i in StratifiedSampler(labels).indices(epoch=0)]
    [0, 1, 0, 1, 0, 0]
    """

    def __init__(self, labels: Sequence[Any] | npt.NDArray[Any], *, seed: int = 0) -> None:
        _, self._classes = np.unique(np.asarray(labels), return_inverse=True)
        check_count("StratifiedSampler", "len(labels)", len(self._classes))
        self.seed = seed

    def __len__(self) -> int:
        return len(self._classes)

    def indices(self, epoch: int) -> Indices:
        """The items of this epoch, in order."""
        generator = generator_of(self.seed, epoch)
        # Each item gets a time in [0, 1), and items come in the order of their times.
        times = np.empty(len(self._classes))
        for label in range(self._classes.max() + 1):
            members = np.flatnonzero(self._classes == label)
            # One time in each of as many equal intervals as the class has items.
            class_times = (np.arange(len(members)) + generator.random(len(members))) / len(members)
            times[members] = generator.permutation(class_times)
        return np.argsort(times, kind="stable")


class DistributedSampler(Sampler):
    """The share of one of several processes: every `count`-th item of another sampler's order.

    All shares have the same length: the order is filled up from its start, or cut (`drop_last`).

    >>> from weft.data import DistributedSampler, SequentialSampler
    >>> [DistributedSampler(SequentialSampler(5), rank, 2).indices(0).tolist() for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        dataset: Sized | int | Sampler,
        rank: int,
        count: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.base = (
            dataset if isinstance(dataset, Sampler) else _item_sampler(dataset, shuffle, seed)
        )
        self.count = check_count("DistributedSampler", "count", count)
        self.rank = check_natural("DistributedSampler", "rank", rank)
        self.drop_last = drop_last
        if rank >= count:
            raise wf.ArgumentError(
                "DistributedSampler",
                "the rank is not one of the processes",
                expected="0 <= rank < count",
                got={"rank": rank, "count": count},
                fix=f"rank={count - 1}",
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.base), self.count)
        return whole + (rest > 0 and not self.drop_last)

    def indices(self, epoch: int) -> Indices:
        """The items of this epoch, in order."""
        order = self.base.indices(epoch)
        # `resize` repeats the order from its start where it is too short, and cuts it otherwise.
        return np.resize(order, len(self) * self.count)[self.rank :: self.count]


class BatchSampler:
    """Which items make up each batch of an epoch: consecutive ones of another sampler.

    >>> from weft.data import BatchSampler, SequentialSampler
    >>> [batch.tolist() for batch in BatchSampler(SequentialSampler(5), 2).batches(epoch=0)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self, sampler: Sampler | Iterable[int], batch_size: int, *, drop_last: bool = False
    ) -> None:
        self.sampler = sampler if isinstance(sampler, Sampler) else _Listed(sampler)
        self.batch_size = check_count("BatchSampler", "batch_size", batch_size)
        self.drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batches(self, epoch: int) -> list[Indices]:
        """The batches of this epoch, in order."""
        order = whole_numbers("sampler", self.sampler.indices(epoch))
        return _cut_batches(order, self.batch_size, self.drop_last)


class BucketSampler(BatchSampler):
    """Batches of items of similar length, so that little is padded, in a random order.

    Items are shuffled, sorted by length within stretches of `stretch` batches, and cut into
    batches, which are shuffled in turn.

    >>> from weft.data import BucketSampler
    >>> lengths = [9, 1, 8, 2, 9, 1]
    >>> batches = BucketSampler(lengths, batch_size=2).batches(epoch=0)
    >>> sorted([lengths[i] for i in batch] for batch in batches)
    [[1, 1], [2, 8], [9, 9]]
    """

    def __init__(
        self,
        lengths: Sequence[int] | npt.NDArray[Any],
        batch_size: int,
        *,
        seed: int = 0,
        stretch: int = 100,
        drop_last: bool = False,
    ) -> None:
        self.lengths = whole_numbers("BucketSampler", lengths)
        super().__init__(
            RandomSampler(len(self.lengths), seed=seed), batch_size, drop_last=drop_last
        )
        self.seed = seed
        self.stretch = check_count("BucketSampler", "stretch", stretch)

    def batches(self, epoch: int) -> list[Indices]:
        """The batches of this epoch, in order."""
        batches: list[Indices] = []
        for part in _cut_batches(
            self.sampler.indices(epoch), self.batch_size * self.stretch, False
        ):
            by_length = part[np.argsort(self.lengths[part], kind="stable")]
            batches += _cut_batches(by_length, self.batch_size, self.drop_last)
        order = generator_of(self.seed, epoch, 1).permutation(len(batches))
        return [batches[i] for i in order]


class _Listed(Sampler):
    """Any iterable of indices, read anew for each epoch."""

    def __init__(self, source: Iterable[int]) -> None:
        self.source = list(source) if isinstance(source, Iterator) else source

    def __len__(self) -> int:
        return len(self.source) if isinstance(self.source, Sized) else len(list(self.source))

    def indices(self, epoch: int) -> Indices:
        return whole_numbers("sampler", self.source)


def _size(op: str, dataset: Sized | int) -> int:
    size = dataset if isinstance(dataset, int) else len(dataset)
    if size < 1:
        raise wf.ArgumentError(
            op,
            "there is nothing to draw from",
            expected="a dataset with at least one item",
            got={"dataset": dataset},
            fix="look at what was loaded, or at what a filter left: len(dataset)",
        )
    return size


def _item_sampler(dataset: Sized | int, shuffle: bool, seed: int) -> Sampler:
    return RandomSampler(dataset, seed=seed) if shuffle else SequentialSampler(dataset)


def _cut_batches(order: Indices, size: int, drop_last: bool) -> list[Indices]:
    end = len(order) - len(order) % size if drop_last else len(order)
    return [order[start : start + size] for start in range(0, end, size)]


def _chances(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = weights.sum()
    if weights.ndim == 1 and np.isfinite(total) and total > 0 and weights.min() >= 0:
        return np.asarray(weights / total)
    raise wf.ArgumentError(
        "WeightedSampler",
        "the weights are no chances",
        expected="one finite weight per item, none below 0, not all 0",
        got={"weights": weights, "sum": float(total)},
        fix="for balanced classes: 1 / np.bincount(labels)[labels]",
    )


def _too_many(op: str, wanted: int, size: int) -> wf.WeftError:
    return wf.ArgumentError(
        op,
        "more items are wanted than there are",
        expected=f"num_samples <= {size}",
        got={"num_samples": wanted, "replacement": False},
        fix="replacement=True",
    )
