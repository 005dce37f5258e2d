"""`DataLoader`: batches of a dataset, in an order that depends on the seed and on nothing else.

The order of an epoch is a function of (seed, epoch); an item's random numbers are a function of
(seed, epoch, index). Neither the number of workers, nor prefetching, nor a stop in mid-epoch that
`state_dict` bridges, changes a bit of any batch.

>>> from weft.data import ArrayDataset, DataLoader
>>> loader = DataLoader(ArrayDataset([0, 1, 2, 3, 4]), batch_size=2, shuffle=True, seed=0)
>>> [batch.tolist() for batch in loader]
[[2, 4], [3, 0], [1]]
>>> [batch.tolist() for batch in loader]  # the next epoch
[[2, 1], [0, 3], [4]]
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.collate import Collate, convert_leaves
from weft.data.dataset import Dataset, Indices, check_count, check_natural
from weft.data.fetching import End, Fetcher, Job
from weft.data.prefetch import Prefetcher
from weft.data.samplers import BatchSampler, RandomSampler, Sampler, SequentialSampler
from weft.data.stream import IterableDataset, as_dataset
from weft.data.upload import UploadAhead, is_numeric
from weft.data.workers import Pool

Tasks = Iterator[tuple[int, Indices | None]]

_START_METHODS = ("spawn", "forkserver")
_OWN_OPERATIONS = {"DataLoader", "collate", "pad_collate"}
_STATE_KEYS = {"epoch", "batch", "seed", "batch_size", "length", "order"}


class DataLoader:
    """Batches of a dataset, as trees of tensors; each `iter(loader)` is one epoch.

    - `shuffle`, `seed`: a new order in each epoch, drawn from (seed, epoch); or give a `sampler`,
      or a `batch_sampler` that decides on whole batches. `batch_size=None` does not batch at all.
    - `num_workers`: processes that compute batches; 0 computes them here. `persistent_workers`
      keeps them between epochs. `worker_init(index)` runs once in each.
    - `prefetch`: how many batches a background thread keeps ready (2 with workers, else 0).
    - `collate`: a function from a list of items to a batch, such as `pad_collate`.
    - `numpy`: yield NumPy arrays instead of tensors; `device`: where the tensors go. To a card the
      next batch is copied while the one before it is worked on.

    `state_dict` says after which batch of which epoch the consumer is; after `load_state_dict` the
    next `iter` yields the rest of that epoch, with any number of workers.

    >>> from weft.data import ArrayDataset, DataLoader
    >>> loader = DataLoader(ArrayDataset([[1.0], [2.0], [3.0]], [0, 1, 0]), batch_size=2)
    >>> for inputs, labels in loader:
    ...     print(inputs.shape, labels.tolist())
    (2, 1) [0, 1]
    (1, 1) [0]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        sampler: Sampler | Iterable[int] | None = None,
        batch_sampler: BatchSampler | None = None,
        num_workers: int = 0,
        collate: Collate | None = None,
        drop_last: bool = False,
        prefetch: int | None = None,
        persistent_workers: bool = False,
        numpy: bool = False,
        device: Any = None,
        worker_init: Callable[[int], object] | None = None,
        start_method: str = "spawn",
    ) -> None:
        self.dataset = as_dataset(dataset)
        self.num_workers = check_natural("DataLoader", "num_workers", num_workers)
        self.prefetch = (
            2 * (num_workers > 0)
            if prefetch is None
            else check_natural("DataLoader", "prefetch", prefetch)
        )
        if batch_size is not None:
            check_count("DataLoader", "batch_size", batch_size)
        self.batch_size = batch_size
        self.seed = seed
        self.persistent_workers = persistent_workers
        self.start_method = _checked_start_method(start_method)
        self._job = Job(self.dataset, batch_size, drop_last, collate, seed, worker_init)
        self._batches = _batch_sampler(self._job, shuffle, sampler, batch_sampler)
        place = None if numpy or device is None else wf.device(device)
        self._card = place if place is not None and place.family == "cuda" else None
        self._convert: Callable[[Any], Any] | None = lambda array: _tensor(array, device)
        if numpy:
            self._convert = _as_is
        elif self._card is not None:
            self._convert = None  # `UploadAhead` makes tensors
        self._plan: tuple[int, list[Indices]] | None = None
        self._pool: Pool | None = None
        self._epoch = 0
        self._batch = 0
        self._begun = False
        self._share: tuple[int, int] | None = None
        self._pads = False

    def share(self, rank: int, count: int, *, pad: bool | None = None) -> None:
        """Give out only the part of each batch that belongs to one of `count` processes.

        Batches, their order and `state_dict` stay those of one process, so a run may be resumed by
        any number of processes. Every `count`-th item of a batch is in a part. A batch with fewer
        items than processes is left out; with `pad`, processes that get none of it are given its
        first item, and `part_rows` says that nothing of their part is theirs. None leaves that as
        it was.

        >>> from weft.data import ArrayDataset, DataLoader
        >>> loader = DataLoader(ArrayDataset([0, 1, 2, 3, 4, 5, 6]), batch_size=4)
        >>> loader.share(1, 2)
        >>> [batch.tolist() for batch in loader]
        [[1, 3], [5]]
        """
        check_count("DataLoader.share", "count", count)
        if not 0 <= rank < count:
            raise wf.ArgumentError(
                "DataLoader.share",
                "the rank is not one of the processes",
                expected="0 <= rank < count",
                got={"rank": rank, "count": count},
                fix=f"rank={count - 1}",
            )
        if self._batches is None and count > 1:
            raise wf.UnsupportedError(
                "DataLoader.share",
                "a stream decides on its own order",
                expected="a dataset with a length",
                got={"dataset": type(self.dataset)},
                fix="give each process a stream of its own: every count-th file, for example",
            )
        self._share, self._pads = (rank, count), self._pads if pad is None else pad

    def part_rows(self) -> list[int]:
        """How many items of each batch of the next pass belong to this process; 0 for padding.

        It is empty for a stream, and where nothing is shared.

        >>> from weft.data import ArrayDataset, DataLoader
        >>> loader = DataLoader(ArrayDataset([0, 1, 2, 3, 4]), batch_size=4)
        >>> loader.share(1, 2, pad=True)
        >>> loader.part_rows(), [part.tolist() for part in loader]
        ([2, 0], [[1, 3], [4]])
        """
        plan = self._batches_of_epoch(self._epoch + self._begun)
        if plan is None or self._share is None:
            return []
        rank, count = self._share
        return [len(indices[rank::count]) for indices in plan]

    def __len__(self) -> int:
        if self._batches is not None:
            if self._share is None or self._pads:
                return len(self._batches)
            plan = self._batches_of_epoch(self._epoch) or ()
            return sum(len(indices) >= self._share[1] for indices in plan)
        raise wf.ArgumentTypeError(
            "DataLoader",
            "a stream does not say how long it is",
            expected="a dataset with a length",
            got={"dataset": type(self.dataset)},
            fix="count the batches as they come: enumerate(loader)",
        )

    def __iter__(self) -> Iterator[Any]:
        if self._begun:  # a pass that was left before its end
            self.set_epoch(self._epoch + 1)
        self._begun = True
        return _Pass(self, self._epoch, self._batch)

    @property
    def epoch(self) -> int:
        """The epoch of the pass under way, or of the next one."""
        return self._epoch

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and how many of its batches the consumer has received."""
        return self._epoch, self._batch

    def seek(self, epoch: int, batch: int) -> None:
        """Make the next pass start behind so many batches of an epoch.

        >>> from weft.data import ArrayDataset, DataLoader
        >>> loader = DataLoader(ArrayDataset([1, 2, 3]), batch_size=1)
        >>> loader.seek(0, 2)
        >>> [batch.tolist() for batch in loader]
        [[3]]
        """
        self.set_epoch(epoch)
        self._batch = check_natural("DataLoader.seek", "batch", batch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass start at the beginning of this epoch."""
        self._epoch, self._batch, self._begun = (
            check_natural("DataLoader", "epoch", epoch),
            0,
            False,
        )

    def state_dict(self) -> dict[str, int | None]:
        """Where the consumer is, as plain numbers: what it has received, not what was prefetched.

        >>> from weft.data import ArrayDataset, DataLoader
        >>> loader = DataLoader(ArrayDataset([1, 2, 3]), batch_size=1)
        >>> first = next(iter(loader))
        >>> state = loader.state_dict()
        >>> state["epoch"], state["batch"]
        (0, 1)
        >>> again = DataLoader(ArrayDataset([1, 2, 3]), batch_size=1)
        >>> again.load_state_dict(state)
        >>> [batch.tolist() for batch in again]
        [[2], [3]]
        """
        return {"epoch": self._epoch, "batch": self._batch} | self._identity(self._epoch)

    def load_state_dict(self, state: Any) -> None:
        """Go on where another loader of the same data stood, with any number of workers."""
        if not isinstance(state, Mapping) or state.keys() != _STATE_KEYS:
            raise wf.ArgumentError(
                "DataLoader.load_state_dict",
                "this is not the state of a loader",
                expected=f"a dictionary with the keys {', '.join(sorted(_STATE_KEYS))}",
                got={"state": sorted(state) if isinstance(state, Mapping) else type(state)},
                fix="save what loader.state_dict() returned",
            )
        epoch = check_natural("DataLoader.load_state_dict", "epoch", state["epoch"] or 0)
        for key, value in self._identity(epoch).items():
            if state[key] != value:
                raise _other_run(key, state[key], value)
        self.seek(epoch, state["batch"] or 0)

    def close(self) -> None:
        """End the worker processes that `persistent_workers` keeps."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _identity(self, epoch: int) -> dict[str, int | None]:
        """The options that determine the batches; a state is only valid for the same ones."""
        length = len(self.dataset) if isinstance(self.dataset, Dataset) else None
        plan = self._batches_of_epoch(epoch)
        order = None
        if plan is not None:
            joined = np.concatenate([[len(indices), *indices] for indices in plan])
            order = zlib.crc32(joined.astype("<i8").tobytes())
        return {"seed": self.seed, "batch_size": self.batch_size, "length": length, "order": order}

    def _batches_of_epoch(self, epoch: int) -> list[Indices] | None:
        """The batches of an epoch, by index; drawn once, so that all who ask see the same."""
        if self._batches is None:
            return None
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, self._batches.batches(epoch)
        return self._plan[1]

    def _tasks(self, epoch: int, start: int) -> Tasks:
        plan = self._batches_of_epoch(epoch)
        if plan is None:
            return ((number, None) for number in count(start))
        if self._share is None:
            return ((number, plan[number]) for number in range(start, len(plan)))
        rank, parts = self._share
        return (
            (number, plan[number][rank if rank < len(plan[number]) else 0 :: parts])
            for number in range(start, len(plan))
            if self._pads or len(plan[number]) >= parts
        )

    def _take_pool(self) -> Pool:
        pool, self._pool = self._pool, None
        if pool is not None and not pool.is_closed:
            return pool
        return Pool(self._job, self.num_workers, self.prefetch, self.start_method)

    def _give_back(self, pool: Pool) -> None:
        if self.persistent_workers and not pool.is_closed and self._pool is None:
            self._pool = pool
        else:
            pool.close()


class _Pass(Iterator[Any]):
    """An iterator over one epoch, or over the rest of a resumed one."""

    def __init__(self, loader: DataLoader, epoch: int, start: int) -> None:
        self._loader = loader
        self._epoch = epoch
        self._delivered = start
        pool = loader._take_pool() if loader.num_workers else None
        tasks = loader._tasks(epoch, start)
        source: Any
        if pool is not None:
            source = pool.batches(epoch, tasks)
        else:
            source = _compute_batches(loader._job.fetcher(), epoch, tasks)
        self._source = Prefetcher(source, loader.prefetch) if loader.prefetch else source
        card = loader._card
        if card is not None:
            self._source = UploadAhead(self._source, card)
        # Also when this object is forgotten, and before the interpreter ends under a thread.
        self._release = weakref.finalize(self, _let_go, loader, pool, self._source)

    def __next__(self) -> Any:
        if not self._release.alive:
            raise StopIteration
        try:
            batch = next(self._source)
        except StopIteration:
            self.close()
            self._finish()
            raise
        except BaseException as error:
            self.close()
            raise _relocate_error(error) from error.__cause__
        self._delivered += 1
        if self._is_current():
            self._loader._batch = self._delivered
        convert = self._loader._convert
        return batch if convert is None else convert_leaves(batch, convert)

    def close(self) -> None:
        """Close the source and stop the workers."""
        self._release()

    def _is_current(self) -> bool:
        return self._loader._begun and self._loader._epoch == self._epoch

    def _finish(self) -> None:
        if self._delivered == 0:
            raise _empty_error(self._loader.dataset)
        if self._is_current():
            self._loader.set_epoch(self._epoch + 1)


def _let_go(loader: DataLoader, pool: Pool | None, source: Any) -> None:
    if pool is not None:
        pool.interrupt()
    source.close()
    if pool is not None:
        loader._give_back(pool)


def _compute_batches(fetch: Fetcher, epoch: int, tasks: Tasks) -> Iterator[Any]:
    for number, indices in tasks:
        batch = fetch(epoch, number, indices)
        if batch is End:
            return
        yield batch


def _relocate_error(error: BaseException) -> BaseException:
    """An error about a batch, made in a thread or a worker, points to who asked for the batch."""
    if isinstance(error, wf.WeftError) and error.op in _OWN_OPERATIONS:
        error.at = type(error)("", "", expected="", got={}, fix="").at
        error.called(error.op)
    return error


def _batch_sampler(
    job: Job,
    shuffle: bool,
    sampler: Sampler | Iterable[int] | None,
    batch_sampler: BatchSampler | None,
) -> BatchSampler | None:
    """Which items make up the batches; None for a stream, which decides on its own order."""
    if isinstance(job.dataset, IterableDataset):
        _refuse_orders(shuffle, sampler, batch_sampler)
        return None
    if (sampler is not None) + (batch_sampler is not None) + shuffle > 1:
        raise _two_orders(shuffle, sampler, batch_sampler)
    if len(job.dataset) == 0:
        raise _empty_error(job.dataset)
    if batch_sampler is not None:
        return batch_sampler
    if sampler is None:
        drawn = RandomSampler(job.dataset, seed=job.seed)
        sampler = drawn if shuffle else SequentialSampler(job.dataset)
    batches = BatchSampler(sampler, job.batch_size or 1, drop_last=job.drop_last)
    if len(batches) == 0:
        raise _empty_error(job.dataset, "drop_last leaves no batch", f"batch_size={job.batch_size}")
    return batches


def _as_is(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array


def _tensor(array: npt.NDArray[Any], device: Any) -> Any:
    """A tensor of the array, except where it holds text, dates or objects."""
    return wf.asarray(array, device=device) if is_numeric(array) else array


def _checked_start_method(name: str) -> str:
    if name in _START_METHODS:
        return name
    raise wf.ArgumentError(
        "DataLoader",
        "there is no such way to start a process",
        expected=f"one of {', '.join(_START_METHODS)}",
        got={"start_method": name},
        fix='start_method="spawn"',
    )


def _refuse_orders(shuffle: bool, sampler: object, batch_sampler: object) -> None:
    if shuffle or sampler is not None or batch_sampler is not None:
        raise wf.ArgumentError(
            "DataLoader",
            "a stream has its own order",
            expected="no shuffle, sampler or batch_sampler with an IterableDataset",
            got={"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler},
            fix="shuffle the stream: DataLoader(stream.shuffle(buffer_size=1000), ...)",
        )


def _two_orders(shuffle: bool, sampler: object, batch_sampler: object) -> wf.WeftError:
    return wf.ArgumentError(
        "DataLoader",
        "the order is said twice",
        expected="one of shuffle, sampler and batch_sampler",
        got={"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler},
        fix="leave shuffle out, and give the sampler a seed: RandomSampler(dataset, seed=0)",
    )


def _empty_error(
    dataset: Any, problem: str = "the dataset is empty", why: str = ""
) -> wf.WeftError:
    length = len(dataset) if isinstance(dataset, Dataset) else 0
    return wf.ArgumentError(
        "DataLoader",
        problem,
        expected="at least one batch",
        got={"dataset": type(dataset), "length": length},
        fix="look at what was loaded, or at what a filter left; or take a smaller batch_size",
        note=why,
    )


def _other_run(key: str, saved: object, here: object) -> wf.WeftError:
    problems = {
        "order": "the order of this epoch is another one",
        "length": "the dataset has another length",
    }
    return wf.ArgumentError(
        "DataLoader.load_state_dict",
        problems.get(key, f"the state was saved with another {key}"),
        expected=f"{key} as it was saved: {saved}",
        got={key: here},
        fix="make the loader with the same dataset, batch_size, seed and sampler as before",
        note="a sampler must depend on its seed and the epoch only" if key == "order" else "",
    )
