"""Data that comes as a stream: items one after another, with the same transforms as indexable data.

A stream may be read by several worker processes, and its order must not depend on how many. So each
worker walks the whole stream, but only computes the batches that are its own: what is passed along
inside is not items but *thunks*, functions without arguments that compute an item when called.
`map`, `batch`, `zip`, `shuffle`, `take` and the others move thunks about without calling them; only
`filter` has to. The same laziness makes resuming cheap: what was already seen is not computed.

This needs a stream that yields the same items each time it is read in the same epoch.

>>> from weft.data import from_iterable
>>> stream = from_iterable(range(6)).filter(lambda x: x % 2 == 0).map(lambda x: x * 10)
>>> list(stream), list(stream.batch(2).map(lambda batch: batch.tolist()))
([0, 20, 40], [[0, 20], [40]])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np

import weft as wf
from weft.data.collate import Collate, collate_items
from weft.data.dataset import ArrayDataset, Dataset, Indexed, check_count, check_natural
from weft.data.prefetch import Prefetcher
from weft.data.scope import (
    Place,
    at_place,
    generator_of,
    is_loading,
    item_generator,
    load_item,
    place,
)

Thunk = Callable[[], Any]
Thunks = Iterator[Thunk]

_REPETITION = 2**32
"""How far apart the epochs of two repetitions of one stream are, for random numbers."""


class IterableDataset(ABC):
    """A stream of items: a subclass says how to read it from the start (`__iter__`).

    >>> from weft.data import IterableDataset
    >>> class Countdown(IterableDataset):
    ...     def __iter__(self): return iter([3, 2, 1])
    >>> list(Countdown().map(lambda x: -x))
    [-3, -2, -1]
    """

    stage = 0

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Read the stream from its start; each call is a new pass over the same items."""

    def thunks(self) -> Thunks:
        """The items, each as a function that computes it when called."""
        for item in self:
            yield partial(_identity, item)

    def map(self, function: Callable[..., Any], *, random: bool = False) -> IterableDataset:
        """Each item through a function; with `random` it also gets the item's generator.

        >>> from weft.data import from_iterable
        >>> jitter = lambda x, generator: x + int(generator.integers(100))
        >>> list(from_iterable([0, 0]).map(jitter, random=True))
        [94, 26]
        """
        return MappedStream(self, function, random)

    def filter(self, predicate: Callable[[Any], bool]) -> IterableDataset:
        """The items for which the predicate holds.

        Every worker has to compute the items it looks at: filter first, then map.

        >>> from weft.data import from_iterable
        >>> list(from_iterable(range(5)).filter(lambda x: x > 2))
        [3, 4]
        """
        return FilteredStream(self, predicate)

    def batch(
        self, batch_size: int, *, drop_last: bool = False, collate: Collate | None = None
    ) -> IterableDataset:
        """Consecutive items, stacked; the last batch may be smaller.

        >>> from weft.data import from_iterable
        >>> [batch.tolist() for batch in from_iterable([1, 2, 3]).batch(2, drop_last=True)]
        [[1, 2]]
        """
        return BatchedStream(
            self, check_count("batch", "batch_size", batch_size), drop_last, collate
        )

    def shuffle(self, buffer_size: int, *, seed: int = 0) -> IterableDataset:
        """Draw from a buffer that is filled from the stream; each epoch has its own order.

        >>> from weft.data import from_iterable
        >>> list(from_iterable(range(6)).shuffle(3, seed=1))
        [2, 0, 1, 4, 5, 3]
        """
        return ShuffledStream(self, check_count("shuffle", "buffer_size", buffer_size), seed)

    def take(self, count: int) -> IterableDataset:
        """The first items.

        >>> from weft.data import from_iterable
        >>> list(from_iterable(range(5)).take(2))
        [0, 1]
        """
        return SlicedStream(self, 0, check_natural("take", "count", count))

    def skip(self, count: int) -> IterableDataset:
        """All but the first items.

        >>> from weft.data import from_iterable
        >>> list(from_iterable(range(5)).skip(3))
        [3, 4]
        """
        return SlicedStream(self, check_natural("skip", "count", count), None)

    def repeat(self, times: int | None = None) -> IterableDataset:
        """The stream several times over, or for ever; each time is shuffled and drawn anew.

        >>> from weft.data import from_iterable
        >>> list(from_iterable([1, 2]).repeat().take(5))
        [1, 2, 1, 2, 1]
        """
        return RepeatedStream(
            self, None if times is None else check_natural("repeat", "times", times)
        )

    def concat(self, *others: IterableDataset) -> IterableDataset:
        """The items of this stream, then those of the others.

        >>> from weft.data import from_iterable
        >>> list(from_iterable([1]).concat(from_iterable([2, 3])))
        [1, 2, 3]
        """
        return ConcatenatedStream(self, others)

    def interleave(self, *others: IterableDataset) -> IterableDataset:
        """Items of each stream in turn, until all have run out.

        >>> from weft.data import from_iterable
        >>> list(from_iterable([1, 2]).interleave(from_iterable([10, 20, 30])))
        [1, 10, 2, 20, 30]
        """
        return InterleavedStream(self, others)

    def zip(self, *others: IterableDataset) -> IterableDataset:
        """Tuples of one item of each stream, until the shortest has run out.

        >>> from weft.data import from_iterable
        >>> list(from_iterable([1, 2]).zip(from_iterable("ab")))
        [(1, 'a'), (2, 'b')]
        """
        return ZippedStream(self, others)

    def cache(self) -> IterableDataset:
        """Items that are computed once and then kept in memory, in each process that uses them.

        >>> from weft.data import from_iterable
        >>> calls = []
        >>> kept = from_iterable([1, 2]).map(lambda x: calls.append(x) or x).cache()
        >>> list(kept), list(kept), calls
        ([1, 2], [1, 2], [1, 2])
        """
        return CachedStream(self)

    def prefetch(self, ahead: int = 2) -> IterableDataset:
        """The same items, made ready by a thread; a loader has its own, and leaves this one out.

        >>> from weft.data import from_iterable
        >>> list(from_iterable([1, 2]).prefetch(4))
        [1, 2]
        """
        return PrefetchedStream(self, check_count("prefetch", "ahead", ahead))


def from_iterable(source: Iterable[Any] | Callable[[], Iterable[Any]]) -> IterableDataset:
    """A stream of any iterable, or of what a generator function yields, called anew for each pass.

    >>> from weft.data import from_iterable
    >>> def squares():
    ...     for number in range(4):
    ...         yield number ** 2
    >>> list(from_iterable(squares)), list(from_iterable([1, 2]))
    ([0, 1, 4, 9], [1, 2])
    """
    if callable(source) or isinstance(source, Iterable):
        return SourceStream(source)
    raise wf.ArgumentTypeError(
        "from_iterable",
        "this is not a source of items",
        expected="an iterable, or a function that returns one",
        got={"source": type(source)},
        fix="from_iterable(lambda: read_items(path))",
    )


def as_dataset(source: Any) -> Dataset | IterableDataset:
    """Anything that holds items as a dataset: by number where it can be, else as a stream.

    Datasets are returned as they are; arrays and tensors give their rows; what has `__len__` and
    `__getitem__` (a list, a Hugging Face `datasets.Dataset`) its items; the rest is a stream.

    >>> from weft.data import as_dataset
    >>> len(as_dataset(["a", "b"])), list(as_dataset(letter for letter in "ab"))
    (2, ['a', 'b'])
    """
    if isinstance(source, Dataset | IterableDataset):
        return source
    if isinstance(source, np.ndarray | wf.Tensor):
        return ArrayDataset(source)
    if isinstance(source, dict):
        raise wf.ArgumentTypeError(
            "as_dataset",
            "a dictionary has no items by number",
            expected="a dataset, a sequence or an iterable of items",
            got={"source": type(source)},
            fix="for a dictionary of arrays: wf.data.ArrayDataset(source)",
        )
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Indexed(source)
    return from_iterable(source)


class SourceStream(IterableDataset):
    """A stream of an iterable or of a generator function; see `from_iterable`."""

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.source = source
        self._used = False

    def __iter__(self) -> Iterator[Any]:
        if not isinstance(self.source, Iterable):
            return iter(self.source())
        if self._used and isinstance(self.source, Iterator):
            raise wf.ArgumentError(
                "from_iterable",
                "this iterator was already read, and cannot be read again",
                expected="a source that can be read once per epoch",
                got={"source": type(self.source)},
                fix="give the function that makes it: from_iterable(lambda: make_iterator())",
            )
        self._used = True
        return iter(self.source)


class StreamView(IterableDataset):
    """A stream over another one; subclasses say what happens to its thunks."""

    def __init__(self, base: IterableDataset) -> None:
        self.base = base
        self.stage = base.stage + 1

    def __iter__(self) -> Iterator[Any]:
        for compute in self.thunks():
            yield compute()

    @abstractmethod
    def thunks(self) -> Thunks:
        """The thunks of this view, made from those of the base."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"


class MappedStream(StreamView):
    """A stream with a function applied to each item; see `IterableDataset.map`."""

    def __init__(self, base: IterableDataset, function: Callable[..., Any], random: bool) -> None:
        super().__init__(base)
        self.function = function
        self.random = random

    def thunks(self) -> Thunks:
        """Thunks that compute an item and apply the function."""
        now = place()
        for position, compute in enumerate(self.base.thunks()):
            yield partial(self._apply, compute, Place(now.seed, now.epoch, position, self.stage))

    def _apply(self, compute: Thunk, mine: Place) -> Any:
        item = compute()
        with at_place(mine):
            return self.function(item, item_generator()) if self.random else self.function(item)


class FilteredStream(StreamView):
    """A stream of the items that pass; see `IterableDataset.filter`."""

    def __init__(self, base: IterableDataset, predicate: Callable[[Any], bool]) -> None:
        super().__init__(base)
        self.predicate = predicate

    def thunks(self) -> Thunks:
        """Thunks of the items that pass the filter; to know that, each item is computed here."""
        for compute in self.base.thunks():
            item = compute()
            if self.predicate(item):
                yield partial(_identity, item)


class BatchedStream(StreamView):
    """A stream of batches; see `IterableDataset.batch`."""

    def __init__(
        self, base: IterableDataset, batch_size: int, drop_last: bool, collate: Collate | None
    ) -> None:
        super().__init__(base)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.collate = collate

    def thunks(self) -> Thunks:
        """Thunks of batches: each computes its items and stacks them."""
        source = self.base.thunks()
        for start in count(0, self.batch_size):
            group = list(islice(source, self.batch_size))
            if not group or (self.drop_last and len(group) < self.batch_size):
                return
            yield partial(self._stack, start, group)

    def _stack(self, start: int, group: list[Thunk]) -> Any:
        items = [compute() for compute in group]
        if self.collate is not None:
            return self.collate(items)
        return collate_items(items, range(start, start + len(items)))


class ShuffledStream(StreamView):
    """A stream shuffled through a buffer; see `IterableDataset.shuffle`."""

    def __init__(self, base: IterableDataset, buffer_size: int, seed: int) -> None:
        super().__init__(base)
        self.buffer_size = buffer_size
        self.seed = seed

    def thunks(self) -> Thunks:
        """The thunks in the order in which they are drawn from the buffer."""
        now = place()
        generator = generator_of(self.seed, now.seed, now.epoch, self.stage, 0)
        source = self.base.thunks()
        buffer = list(islice(source, self.buffer_size))
        for compute in source:
            chosen = int(generator.integers(len(buffer)))
            yield buffer[chosen]
            buffer[chosen] = compute
        for chosen in generator.permutation(len(buffer)):
            yield buffer[chosen]


class SlicedStream(StreamView):
    """A part of a stream; see `take` and `skip`."""

    def __init__(self, base: IterableDataset, start: int, stop: int | None) -> None:
        super().__init__(base)
        self.start = start
        self.stop = stop

    def thunks(self) -> Thunks:
        """The thunks from `start` to `stop`."""
        return islice(self.base.thunks(), self.start, self.stop)


class RepeatedStream(StreamView):
    """A stream repeated several times; see `IterableDataset.repeat`."""

    def __init__(self, base: IterableDataset, times: int | None) -> None:
        super().__init__(base)
        self.times = times

    def thunks(self) -> Thunks:
        """All thunks again and again, each time as of another epoch."""
        now = place()
        for repetition in count() if self.times is None else range(self.times):
            position = -1
            epoch = now.epoch + repetition * _REPETITION
            for position, compute in enumerate(_thunks_of_epoch(now.seed, epoch, self.base)):  # noqa: B007
                yield compute
            if position < 0:
                return  # an empty stream, which would be repeated for ever


class _JoinedStream(StreamView):
    """Several streams read together."""

    def __init__(self, base: IterableDataset, others: tuple[IterableDataset, ...]) -> None:
        super().__init__(base)
        self.parts = (base, *others)
        self.stage = 1 + max(part.stage for part in self.parts)


class ConcatenatedStream(_JoinedStream):
    """Streams one after the other; see `IterableDataset.concat`."""

    def thunks(self) -> Thunks:
        """The thunks of all parts, one part after the other."""
        for part in self.parts:
            yield from part.thunks()


class InterleavedStream(_JoinedStream):
    """Streams in turn, an item of each; see `IterableDataset.interleave`."""

    def thunks(self) -> Thunks:
        """The thunks of the parts in turn, one of each."""
        waiting = [part.thunks() for part in self.parts]
        while waiting:
            still = []
            for source in waiting:
                for compute in islice(source, 1):
                    yield compute
                    still.append(source)
            waiting = still


class ZippedStream(_JoinedStream):
    """A stream of tuples of items; see `IterableDataset.zip`."""

    def thunks(self) -> Thunks:
        """Thunks of tuples, with one item of each part."""
        for group in zip(*(part.thunks() for part in self.parts), strict=False):
            yield partial(_compute_group, group)


class CachedStream(StreamView):
    """A stream that keeps its items after one pass; see `IterableDataset.cache`."""

    def __init__(self, base: IterableDataset) -> None:
        super().__init__(base)
        self._kept: list[Thunk] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}

    def thunks(self) -> Thunks:
        """Thunks that remember their items."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Thunk] = []
        for compute in _thunks_of_epoch(place().seed, 0, self.base):
            kept.append(_Once(compute))
            yield kept[-1]
        self._kept = kept  # only a pass that came to its end has seen all items


class PrefetchedStream(StreamView):
    """A stream computed ahead by a thread; see `IterableDataset.prefetch`."""

    def __init__(self, base: IterableDataset, ahead: int) -> None:
        super().__init__(base)
        self.ahead = ahead

    def thunks(self) -> Thunks:
        """Thunks of items that a thread computes ahead; inside a loader, those of the base."""
        if is_loading():  # by a loader, which must not compute what other workers compute
            yield from self.base.thunks()
            return
        with closing(Prefetcher(iter(self.base), self.ahead)) as items:
            for item in items:
                yield partial(_identity, item)


class _Once:
    """A thunk that computes once and remembers."""

    def __init__(self, compute: Thunk) -> None:
        self._compute: Thunk | None = compute
        self._item: Any = None

    def __call__(self) -> Any:
        if self._compute is not None:
            self._item, self._compute = self._compute(), None
        return self._item


def _thunks_of_epoch(seed: int, epoch: int, stream: IterableDataset) -> Thunks:
    """The stream's thunks, with random numbers as of another epoch."""
    source = stream.thunks()
    for position in count():
        with load_item(seed, epoch, position):
            compute = next(source, None)
        if compute is None:
            return
        yield compute


def _identity(item: Any) -> Any:
    return item


def _compute_group(group: tuple[Thunk, ...]) -> tuple[Any, ...]:
    return tuple(compute() for compute in group)
