"""What a trainer is given as data, made into batches of tensors that were looked at.

Data is a loader (anything that can be iterated again and again, with `state_dict` to resume
exactly), a data set, a stream of batches, or arrays of inputs and targets. Of a batch that is a
tuple, the last is the target and the others are the model's inputs; any other batch is input and
target at once.

>>> import weft as wf
>>> inputs, target = split(as_batch([[1.0, 2.0], [0.0, 1.0]]))
>>> inputs[0].shape, target.shape
((2, 2), (2, 2))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np

import weft as wf
from weft.data import ArrayDataset, DataLoader, Dataset, IterableDataset
from weft.data.dataset import Batched

__all__ = ["as_batch", "as_loader", "batches_of", "count_of", "move_batch", "size_of",
           "split"]  # fmt: skip


def as_loader(op: str, data: Any, batch_size: int, *, shuffle: bool, seed: int | None) -> Any:
    """Something to iterate over, for a loader, a data set or arrays."""
    if _is_arrays(data):
        lengths = {len(part) for part in data}
        if len(lengths) != 1:
            raise wf.ShapeError(
                op,
                "inputs and targets differ in number",
                expected="as many targets as inputs",
                got={f"data[{i}]": part for i, part in enumerate(data)},
                fix="pass inputs and targets of the same examples",
            )
        data = ArrayDataset(*data)
    if isinstance(data, (Dataset, IterableDataset)):
        is_batched = isinstance(data, (Batched, IterableDataset))
        size, shuffled = (None, False) if is_batched else (batch_size, shuffle)
        return DataLoader(data, batch_size=size, shuffle=shuffled, seed=seed or 0)
    if not isinstance(data, Iterable) or isinstance(data, (wf.Tensor, np.ndarray, str)):
        raise wf.ArgumentTypeError(
            op,
            "this is not data",
            expected="a DataLoader, a Dataset, arrays (inputs, targets), or a list of batches",
            got={"data": data},
            fix=f"inputs and targets together, {op}((x, y)), or wf.data.DataLoader(dataset)",
        )
    if isinstance(data, Iterator):
        raise wf.ArgumentTypeError(
            op,
            "these batches can be iterated over only once",
            expected="something that begins anew in each epoch",
            got={"data": data},
            fix="list(batches), or a class with __iter__",
        )
    return data


def _is_arrays(data: Any) -> bool:
    kinds = (wf.Tensor, np.ndarray)
    return isinstance(data, tuple) and len(data) > 1 and all(isinstance(x, kinds) for x in data)


def batches_of(
    op: str, loader: Any, start: int = 0, device: wf.Device | None = None
) -> Iterator[Any]:
    """The batches of one epoch, from a number on, converted, checked and moved to a device."""
    number = start - 1
    for number, batch in enumerate(loader, start):
        yield move_batch(check_batch(op, as_batch(batch), number), device)
    if number < 0:
        raise wf.ArgumentError(
            op,
            "the data is empty",
            expected="at least one batch",
            got={"data": loader},
            fix="look at it: next(iter(data)); drop_last=True drops a short only batch",
        )


def as_batch(batch: Any) -> Any:
    """The batch with tensors for arrays; a list of two is a pair."""
    if isinstance(batch, list):
        numbers = all(isinstance(x, (int, float)) for x in batch)
        batch = np.asarray(batch) if numbers or _is_nested(batch) else tuple(batch)
    if isinstance(batch, np.ndarray) and batch.dtype == np.float64:
        batch = batch.astype(np.float32)
    return wf.tree.map_tree(_as_tensor, batch)


def move_batch(batch: Any, device: wf.Device | None) -> Any:
    """The batch with its tensors on a device."""
    if device is None:
        return batch
    return wf.tree.map_tree(lambda x: x.to(device) if isinstance(x, wf.Tensor) else x, batch)


def _is_nested(batch: list[Any]) -> bool:
    return all(isinstance(x, list) for x in batch)


def _as_tensor(leaf: Any) -> Any:
    return wf.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf


def check_batch(op: str, batch: Any, number: int) -> Any:
    """The batch, refused if it is empty or if its parts do not belong together."""
    shapes = [leaf.shape for leaf in wf.tree.leaves(batch) if isinstance(leaf, wf.Tensor)]
    sizes = [shape[0] for shape in shapes if shape]
    named = dict(enumerate(batch)) if isinstance(batch, tuple) else {0: batch}
    got = {f"batch[{i}]": part for i, part in named.items()}
    if not shapes or 0 in sizes:
        raise wf.ArgumentError(
            op,
            f"batch {number} is empty",
            expected="batches of at least one example",
            got=got,
            fix="leave empty batches out, or drop_last=True",
        )
    tensors = isinstance(batch, tuple) and all(isinstance(x, wf.Tensor) for x in batch)
    if tensors and len(set(sizes)) > 1:
        raise wf.ShapeError(
            op,
            f"batch {number} is ragged: its parts differ in length",
            expected="as many targets as inputs",
            got=got,
            fix="give each part one row for each example",
        )
    return batch


def split(batch: Any) -> tuple[tuple[Any, ...], Any]:
    """The model's inputs and the target."""
    if isinstance(batch, tuple) and len(batch) > 1:
        return batch[:-1], batch[-1]
    single = batch[0] if isinstance(batch, tuple) else batch
    return (single,), single


def size_of(batch: Any) -> int:
    """How many examples there are: the length of the first tensor that has one."""
    shapes = [leaf.shape for leaf in wf.tree.leaves(batch) if isinstance(leaf, wf.Tensor)]
    return next((int(shape[0]) for shape in shapes if shape), 1)


def count_of(loader: Any) -> int:
    """How many batches an epoch has; 0 if that is not known."""
    try:
        return len(loader) if isinstance(loader, Sized) else 0
    except (TypeError, NotImplementedError):
        return 0
