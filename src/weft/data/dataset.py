"""Indexable data: a length and items by number, and views that map, choose, join and repeat them.

A `Dataset` is anything with `__len__` and `__getitem__`. The methods of this class return views
that compute an item when it is asked for; nothing is loaded before.

>>> from weft.data import ArrayDataset
>>> numbers = ArrayDataset([1, 2, 3, 4]).map(lambda x: x * 10).filter(lambda x: x > 10)
>>> [int(x) for x in numbers]
[20, 30, 40]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.collate import Collate, collate_items, convert_leaves
from weft.data.notebook import dataset_html
from weft.data.prefetch import Prefetcher
from weft.data.scope import generator_of, is_loading, item_generator, load_item, place

Indices = npt.NDArray[np.int64]


class Dataset(ABC):
    """Items by number: a subclass says how many (`__len__`) and which (`__getitem__`).

    >>> from weft.data import Dataset
    >>> class Squares(Dataset):
    ...     def __len__(self): return 5
    ...     def __getitem__(self, index): return index ** 2
    >>> list(Squares().map(lambda x: x + 1))
    [1, 2, 5, 10, 17]
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many items there are."""

    @abstractmethod
    def __getitem__(self, index: int, /) -> Any:
        """The item of this number, from 0."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __add__(self, other: Dataset) -> Dataset:
        return self.concat(other)

    def _repr_html_(self) -> str:
        return dataset_html(self)

    def gather(self, indices: Indices) -> Any:
        """A whole batch at once, already stacked; None where items have to be taken one by one."""
        return None

    def map(self, function: Callable[..., Any], *, random: bool = False) -> Dataset:
        """Each item through a function; with `random` it also gets the item's generator.

        The generator is a `numpy.random.Generator` made from the loader's seed, the epoch and the
        index, so that augmentation does not depend on worker processes or on the order.

        >>> from weft.data import ArrayDataset
        >>> jitter = lambda x, generator: int(x) + generator.integers(100)
        >>> [int(x) for x in ArrayDataset([0, 0, 0]).map(jitter, random=True)]
        [24, 33, 32]
        """
        return Mapped(self, function, random)

    def filter(self, predicate: Callable[[Any], bool]) -> Dataset:
        """The items for which the predicate holds; all items are looked at once, on first use.

        >>> from weft.data import ArrayDataset
        >>> len(ArrayDataset([3, 1, 2]).filter(lambda x: x > 1))
        2
        """
        return Filtered(self, predicate)

    def batch(
        self, batch_size: int, *, drop_last: bool = False, collate: Collate | None = None
    ) -> Dataset:
        """Consecutive items, stacked; the last batch may be smaller.

        >>> from weft.data import ArrayDataset
        >>> [batch.tolist() for batch in ArrayDataset([1, 2, 3]).batch(2)]
        [[1, 2], [3]]
        """
        return Batched(self, check_count("batch", "batch_size", batch_size), drop_last, collate)

    def shuffle(self, seed: int = 0) -> Subset:
        """The items in an order drawn once from the seed; `DataLoader(shuffle=True)` draws anew.

        >>> from weft.data import ArrayDataset
        >>> [int(x) for x in ArrayDataset([1, 2, 3, 4]).shuffle(seed=1)]
        [3, 1, 2, 4]
        """
        return Subset(self, generator_of(seed).permutation(len(self)))

    def take(self, count: int) -> Subset:
        """The first items.

        >>> from weft.data import ArrayDataset
        >>> [int(x) for x in ArrayDataset([1, 2, 3]).take(2)]
        [1, 2]
        """
        return Subset(self, np.arange(min(check_natural("take", "count", count), len(self))))

    def skip(self, count: int) -> Subset:
        """All but the first items.

        >>> from weft.data import ArrayDataset
        >>> [int(x) for x in ArrayDataset([1, 2, 3]).skip(2)]
        [3]
        """
        return Subset(
            self, np.arange(min(check_natural("skip", "count", count), len(self)), len(self))
        )

    def repeat(self, times: int) -> Dataset:
        """All items, several times over.

        >>> from weft.data import ArrayDataset
        >>> [int(x) for x in ArrayDataset([1, 2]).repeat(2)]
        [1, 2, 1, 2]
        """
        return Repeated(self, check_natural("repeat", "times", times))

    def concat(self, *others: Dataset) -> Dataset:
        """The items of this dataset, then those of the others.

        >>> from weft.data import ArrayDataset
        >>> [int(x) for x in ArrayDataset([1, 2]).concat(ArrayDataset([3]))]
        [1, 2, 3]
        """
        return Joined((self, *others), _addresses((self, *others)))

    def interleave(self, *others: Dataset) -> Dataset:
        """Items of each dataset in turn, until all have run out.

        >>> from weft.data import ArrayDataset
        >>> [int(x) for x in ArrayDataset([1, 2]).interleave(ArrayDataset([10, 20, 30]))]
        [1, 10, 2, 20, 30]
        """
        addresses = _addresses((self, *others))
        by_round = np.lexsort((addresses[:, 0], addresses[:, 1]))
        return Joined((self, *others), addresses[by_round])

    def zip(self, *others: Dataset) -> Dataset:
        """Tuples of one item of each dataset, as many as the shortest has.

        >>> from weft.data import ArrayDataset
        >>> [(int(x), int(y)) for x, y in ArrayDataset([1, 2]).zip(ArrayDataset([3, 4, 5]))]
        [(1, 3), (2, 4)]
        """
        return Zipped((self, *others))

    def cache(self) -> Dataset:
        """Items that are computed once and then kept in memory, in each process that uses them.

        What is random in them is drawn as in the first epoch, and then stays.

        >>> from weft.data import ArrayDataset
        >>> calls = []
        >>> kept = ArrayDataset([1, 2]).map(lambda x: calls.append(x) or x).cache()
        >>> [int(x) for x in kept], [int(x) for x in kept], len(calls)
        ([1, 2], [1, 2], 2)
        """
        return Cached(self)

    def prefetch(self, ahead: int = 2) -> Dataset:
        """The same items; whoever iterates has the next ones made ready by a thread.

        >>> from weft.data import ArrayDataset
        >>> [int(x) for x in ArrayDataset([1, 2, 3]).prefetch(2)]
        [1, 2, 3]
        """
        return Prefetched(self, check_count("prefetch", "ahead", ahead))


class View(Dataset):
    """A dataset over another one, item for item; subclasses change what they need to."""

    def __init__(self, base: Dataset) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int, /) -> Any:
        return self.base[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"


class Mapped(View):
    """A dataset with a function applied to each item; see `Dataset.map`."""

    def __init__(self, base: Dataset, function: Callable[..., Any], random: bool) -> None:
        super().__init__(base)
        self.function = function
        self.random = random

    def __getitem__(self, index: int, /) -> Any:
        if not is_loading():
            with load_item(0, 0, index):
                return self[index]
        item = self.base[index]
        return self.function(item, item_generator()) if self.random else self.function(item)


class Subset(View):
    """The items of a dataset at these indices, in this order.

    >>> from weft.data import ArrayDataset, Subset
    >>> [int(x) for x in Subset(ArrayDataset([10, 20, 30]), [2, 0])]
    [30, 10]
    """

    def __init__(self, base: Dataset, indices: Iterable[int] | Indices) -> None:
        super().__init__(base)
        self.indices = whole_numbers("Subset", indices)
        _check_bounds(self.indices, len(base))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int | slice, /) -> Any:
        if isinstance(index, slice):
            return sliced_batch(self, index)
        return self.base[int(self.indices[index])]

    def gather(self, indices: Indices) -> Any:
        """A whole batch at once, where the data behind allow it."""
        return self.base.gather(self.indices[indices])


class Filtered(View):
    """What `Dataset.filter` returns: a subset that is found when it is first needed."""

    def __init__(self, base: Dataset, predicate: Callable[[Any], bool]) -> None:
        super().__init__(base)
        self.predicate = predicate
        self._found: Subset | None = None

    @property
    def subset(self) -> Subset:
        """The items that passed the filter; random transforms are drawn as in the first epoch."""
        if self._found is None:
            self._found = Subset(self.base, [i for i in range(len(self.base)) if self._is_kept(i)])
        return self._found

    def _is_kept(self, index: int) -> bool:
        with load_item(place().seed, 0, index):
            return bool(self.predicate(self.base[index]))

    def __len__(self) -> int:
        return len(self.subset)

    def __getitem__(self, index: int, /) -> Any:
        return self.subset[index]

    def gather(self, indices: Indices) -> Any:
        """A whole batch at once, where the data behind allow it."""
        return self.subset.gather(indices)


class Batched(View):
    """A dataset of batches of items; see `Dataset.batch`."""

    def __init__(
        self, base: Dataset, batch_size: int, drop_last: bool, collate: Collate | None
    ) -> None:
        super().__init__(base)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.collate = collate

    def __len__(self) -> int:
        whole, rest = divmod(len(self.base), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __getitem__(self, index: int, /) -> Any:
        start = checked_index(index, len(self)) * self.batch_size
        rows = range(start, min(start + self.batch_size, len(self.base)))
        items = [self.base[row] for row in rows]
        return collate_items(items, rows) if self.collate is None else self.collate(items)


class Repeated(View):
    """A dataset repeated several times; see `Dataset.repeat`."""

    def __init__(self, base: Dataset, times: int) -> None:
        super().__init__(base)
        self.times = times

    def __len__(self) -> int:
        return len(self.base) * self.times

    def __getitem__(self, index: int, /) -> Any:
        return self.base[checked_index(index, len(self)) % len(self.base)]

    def gather(self, indices: Indices) -> Any:
        """A whole batch at once, where the data behind allow it."""
        return self.base.gather(indices % len(self.base))


class Joined(Dataset):
    """What `concat` and `interleave` return: which part, and which of its items, in order."""

    def __init__(self, parts: Sequence[Dataset], order: Indices) -> None:
        self.parts = tuple(parts)
        self.order = order  # [items, (part, index)]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int, /) -> Any:
        part, row = self.order[index]
        return self.parts[part][int(row)]


class Zipped(Dataset):
    """A dataset of tuples of items; see `Dataset.zip`."""

    def __init__(self, parts: Sequence[Dataset]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return min(len(part) for part in self.parts)

    def __getitem__(self, index: int, /) -> tuple[Any, ...]:
        row = checked_index(index, len(self))
        return tuple(part[row] for part in self.parts)


class Cached(View):
    """A dataset that keeps its items; see `Dataset.cache`."""

    def __init__(self, base: Dataset) -> None:
        super().__init__(base)
        self._kept: dict[int, Any] = {}

    def __getitem__(self, index: int, /) -> Any:
        row = checked_index(index, len(self))
        if row not in self._kept:
            # Not of this epoch: the value would depend on when it was first asked for, and where.
            with load_item(place().seed, 0, row):
                self._kept[row] = self.base[row]
        return self._kept[row]


class Prefetched(View):
    """A dataset whose items are computed ahead; see `Dataset.prefetch`."""

    def __init__(self, base: Dataset, ahead: int) -> None:
        super().__init__(base)
        self.ahead = ahead

    def __iter__(self) -> Iterator[Any]:
        return Prefetcher(iter(self.base), self.ahead)

    def gather(self, indices: Indices) -> Any:
        """A whole batch at once, where the data behind allow it."""
        return self.base.gather(indices)


class Indexed(Dataset):
    """Any object with a length and items by number, such as a list, as a dataset.

    >>> from weft.data.dataset import Indexed
    >>> Indexed(["a", "b"])[1]
    'b'
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> Any:
        return self.source[index]

    def __repr__(self) -> str:
        return f"Indexed({type(self.source).__name__} of {len(self)})"


class ArrayDataset(Dataset):
    """The rows of arrays that have the same length, as NumPy arrays.

    Several arrays give tuples; a dictionary or a named tuple of arrays gives items of its form. The
    rows are read-only views: a transform makes a new array.

    >>> from weft.data import ArrayDataset
    >>> data = ArrayDataset([[1.0, 2.0], [3.0, 4.0]], [0, 1])
    >>> data[1]
    (array([3., 4.]), np.int64(1))
    >>> ArrayDataset({"x": [1, 2, 3]})[0]
    {'x': np.int64(1)}
    """

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise wf.ArgumentError(
                "ArrayDataset",
                "there is no array",
                expected="at least one array",
                got={"arrays": arrays},
                fix="ArrayDataset(inputs, labels)",
            )
        leaf_arrays: list[npt.NDArray[Any]] = []
        tree = arrays[0] if len(arrays) == 1 else arrays
        self.arrays = _rows(tree, leaf_arrays)
        self._length = _common_length(leaf_arrays)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice, /) -> Any:
        if isinstance(index, slice):
            return sliced_batch(self, index)
        row = checked_index(index, self._length)
        return _select(self.arrays, row)

    def gather(self, indices: Indices) -> Any:
        """A whole batch at once, where the data behind allow it."""
        return _select(self.arrays, indices)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length} rows)"


class TensorDataset(ArrayDataset):
    """The rows of tensors that have the same length, as tensors.

    >>> import weft as wf
    >>> from weft.data import TensorDataset
    >>> inputs, label = TensorDataset(wf.ones((3, 2)), wf.arange(3))[2]
    >>> inputs.shape, label.item()
    ((2,), 2)
    """

    def __getitem__(self, index: int | slice, /) -> Any:
        return convert_leaves(super().__getitem__(index), wf.asarray)


def random_split(
    dataset: Dataset, parts: Sequence[int] | Sequence[float], *, seed: int = 0
) -> list[Subset]:
    """Divide a dataset at random into parts of these sizes, or of these fractions.

    >>> from weft.data import ArrayDataset, random_split
    >>> train, test = random_split(ArrayDataset(range(10)), [0.8, 0.2])
    >>> len(train), len(test)
    (8, 2)
    """
    sizes = _part_sizes(len(dataset), parts)
    order = generator_of(seed).permutation(len(dataset))
    return [Subset(dataset, part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def sliced_batch(dataset: Dataset, part: slice) -> Any:
    """The items of a slice as one batch, stacked: `dataset[:100]`; tensors where items are.

    >>> from weft.data import ArrayDataset
    >>> [column.tolist() for column in sliced_batch(ArrayDataset([1, 2, 3], [4, 5, 6]), slice(2))]
    [[1, 2], [4, 5]]
    """
    indices = np.arange(len(dataset))[part]
    batch = dataset.gather(indices)
    if batch is None:
        batch = collate_items([dataset[i] for i in indices.tolist()], indices.tolist())
    first = wf.tree.leaves(dataset[0]) if len(dataset) else []
    is_of_tensors = any(isinstance(leaf, wf.Tensor) for leaf in first)
    return convert_leaves(batch, wf.asarray) if is_of_tensors else batch


def checked_index(index: int, length: int) -> int:
    """An index from 0, also where it was counted from the end; IndexError outside.

    >>> from weft.data.dataset import checked_index
    >>> checked_index(-1, 10)
    9
    """
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range for {length} items")
    return int(index) % length


def check_count(op: str, name: str, value: int) -> int:
    """A whole number above 0, or an error in the name of `op`."""
    return _at_least(1, op, name, value)


def check_natural(op: str, name: str, value: int) -> int:
    """A whole number from 0, or an error in the name of `op`."""
    return _at_least(0, op, name, value)


def whole_numbers(op: str, values: Iterable[int] | Indices) -> Indices:
    """One-dimensional int64; anything that is not whole numbers is refused."""
    array = np.asarray(values if isinstance(values, np.ndarray) else list(values))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise wf.ArgumentTypeError(
            op,
            "indices are not whole numbers",
            expected="one-dimensional whole numbers",
            got={"indices": array},
            fix="for a mask: np.flatnonzero(mask)",
        )
    return array.astype(np.int64)


def _at_least(least: int, op: str, name: str, value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise wf.ArgumentError(
        op,
        f"{name} is not a whole number from {least} on",
        expected=f"{name} >= {least}",
        got={name: value},
        fix=f"{name}={max(least, 2)}",
    )


def _check_bounds(indices: Indices, length: int) -> None:
    outside = np.flatnonzero((indices < -length) | (indices >= length))
    if len(outside):
        raise wf.BoundsError(
            "Subset",
            "an index is outside the dataset",
            expected=f"-{length} <= index < {length}",
            got={f"indices[{outside[0]}]": int(indices[outside[0]]), "length": length},
            fix="take indices below len(dataset)",
        )


def _addresses(parts: Sequence[Dataset]) -> Indices:
    """Which part, and which of its items, for all items of all parts: [items, 2]."""
    sizes = [len(part) for part in parts]
    which = np.repeat(np.arange(len(parts)), sizes)
    return np.stack([which, np.concatenate([np.arange(size) for size in sizes])], axis=1)


def _rows(tree: Any, found: list[npt.NDArray[Any]]) -> Any:
    """The tree with read-only arrays in its leaves; lists are leaves."""
    if isinstance(tree, dict):
        return {key: _rows(value, found) for key, value in tree.items()}
    if isinstance(tree, tuple):
        parts = [_rows(value, found) for value in tree]
        return type(tree)._make(parts) if hasattr(tree, "_make") else tuple(parts)
    array = np.asarray(tree).view()
    array.flags.writeable = False
    found.append(array)
    return array


def _common_length(arrays: list[npt.NDArray[Any]]) -> int:
    for position, array in enumerate(arrays):
        if array.ndim == 0 or len(array) != len(arrays[0]):
            raise wf.ShapeError(
                "ArrayDataset",
                "the arrays have different lengths",
                expected="arrays with the same number of rows",
                got={"array 0": arrays[0], f"array {position}": array},
                fix="cut them to one length: ArrayDataset(x[:n], y[:n])",
            )
    return len(arrays[0]) if arrays else 0


def _select(tree: Any, rows: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _select(value, rows) for key, value in tree.items()}
    if isinstance(tree, tuple):
        parts = [_select(value, rows) for value in tree]
        return type(tree)._make(parts) if hasattr(tree, "_make") else tuple(parts)
    return tree[rows]


def _part_sizes(length: int, parts: Sequence[int] | Sequence[float]) -> list[int]:
    sizes = [int(part) for part in parts]
    if any(isinstance(part, float) for part in parts) and abs(sum(parts) - 1) < 1e-6:
        edges = np.round(np.cumsum([0.0, *parts]) * length).astype(int)
        sizes = np.diff(edges).tolist()
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise wf.ArgumentError(
            "random_split",
            "the parts do not make up the whole",
            expected=f"sizes with sum {length}, or fractions with sum 1.0",
            got={"parts": list(parts), "length": length},
            fix="random_split(dataset, [0.9, 0.1])",
        )
    return sizes
