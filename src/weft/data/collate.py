"""From items to batches: numbers and arrays are stacked, containers keep their form.

An item is a tree of tuples, named tuples, lists and dictionaries. A batch is the same tree, with
arrays one dimension larger in its leaves. Everything here is NumPy, so that worker processes stay
light; the loader turns arrays into tensors at the very end.

>>> import numpy as np
>>> from weft.data import default_collate
>>> batch = default_collate([{"x": np.ones(3), "y": 0}, {"x": np.zeros(3), "y": 1}])
>>> batch["x"].shape, batch["y"].tolist()
((2, 3), [0, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf

Array = npt.NDArray[Any]
Stack = Callable[[list[Array], str, Sequence[int]], Any]
Collate = Callable[[list[Any]], Any]


def default_collate(items: Sequence[Any]) -> Any:
    """Stack items into a batch; items that differ in form or shape are refused by position.

    Python numbers become int64, float32, bool or complex64; text stays a list.

    >>> from weft.data import default_collate
    >>> inputs, labels, names = default_collate([(1.5, 0, "a"), (2.5, 1, "b")])
    >>> inputs.tolist(), str(inputs.dtype), names
    ([1.5, 2.5], 'float32', ['a', 'b'])
    """
    return collate_items(items, range(len(items)))


def pad_collate(items: Sequence[Any], *, value: float = 0, multiple_of: int = 1) -> Any:
    """Stack items of different lengths: each axis is padded at its end to the longest.

    Give another value, or lengths rounded up, with
    `functools.partial(wf.data.pad_collate, value=-1, multiple_of=8)`.

    >>> from weft.data import pad_collate
    >>> import numpy as np
    >>> pad_collate([np.array([1, 2, 3]), np.array([4])]).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """

    def pad_arrays(arrays: list[Array], path: str, names: Sequence[int]) -> Array:
        return _pad(arrays, path, names, value, multiple_of)

    return _collate(items, range(len(items)), "", pad_arrays)


def collate_items(items: Sequence[Any], names: Sequence[int]) -> Any:
    """Stack items; errors call them by these names, which are their indices in the dataset."""
    return _collate(items, names, "", _stack)


def convert_leaves(tree: Any, convert: Callable[[Array], Any]) -> Any:
    """The same tree with each array (and each tensor, as an array) converted.

    >>> from weft.data.collate import convert_leaves
    >>> import numpy as np
    >>> convert_leaves((np.array([1, 2]), ["a"]), lambda array: array.sum().item())
    (3, ['a'])
    """
    if isinstance(tree, wf.Tensor):
        return convert(np.asarray(tree))
    if isinstance(tree, np.ndarray | np.generic):
        return convert(np.asarray(tree))
    if isinstance(tree, Mapping):
        return {key: convert_leaves(value, convert) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return _same_container(tree, [convert_leaves(value, convert) for value in tree])
    return tree


def _collate(items: Sequence[Any], names: Sequence[int], path: str, stack: Stack) -> Any:
    """One batch of the parts at `path`, such as `[0]['x']`, of all items."""
    if len(items) == 0:
        raise wf.ArgumentError(
            "collate",
            "a batch has no items",
            expected="at least one item",
            got={"items": items},
            fix="leave out empty batches, or look at what the sampler or the filter yields",
        )
    first = items[0]
    if isinstance(first, str | bytes) or first is None:
        _check_kinds(items, names, path)
        return None if first is None else list(items)
    if isinstance(first, Mapping):
        return _collate_mappings(items, names, path, stack)
    if isinstance(first, tuple | list):
        return _collate_sequences(items, names, path, stack)
    arrays = [_array(item, names[i], path) for i, item in enumerate(items)]
    return stack(arrays, path, names)


def _collate_mappings(items: Sequence[Any], names: Sequence[int], path: str, stack: Stack) -> Any:
    _check_kinds(items, names, path)
    keys = items[0].keys()
    for name, item in zip(names, items, strict=True):
        if item.keys() != keys:
            raise _difference_error(
                path, names[0], list(keys), name, list(item.keys()), "the same keys"
            )
    return {
        key: _collate([item[key] for item in items], names, f"{path}[{key!r}]", stack)
        for key in keys
    }


def _collate_sequences(items: Sequence[Any], names: Sequence[int], path: str, stack: Stack) -> Any:
    _check_kinds(items, names, path)
    length = len(items[0])
    for name, item in zip(names, items, strict=True):
        if len(item) != length:
            fix = "give arrays instead of lists: map(np.asarray), then collate=wf.data.pad_collate"
            raise _difference_error(
                path, names[0], length, name, len(item), "the same number of parts", fix
            )
    columns = zip(*items, strict=True)
    parts = [_collate(part, names, f"{path}[{i}]", stack) for i, part in enumerate(columns)]
    return _same_container(items[0], parts)


def _same_container(container: tuple[Any, ...] | list[Any], parts: list[Any]) -> Any:
    if isinstance(container, list):
        return parts
    return type(container)._make(parts) if hasattr(container, "_make") else tuple(parts)


def _check_kinds(items: Sequence[Any], names: Sequence[int], path: str) -> None:
    kind = type(items[0])
    for name, item in zip(names, items, strict=True):
        if type(item) is not kind:
            raise _difference_error(path, names[0], kind, name, type(item), "items of one kind")


def _array(value: Any, name: int, path: str) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, bool | int | np.generic):
        return np.asarray(value)
    if isinstance(value, float):
        return np.asarray(value, np.float32)
    if isinstance(value, complex):
        return np.asarray(value, np.complex64)
    array = np.asarray(value)
    if array.dtype != object:
        return array
    raise wf.ArgumentTypeError(
        "collate",
        "an item holds something that is not numbers, text or a container of these",
        expected="numbers, arrays, tensors, text; tuples, lists and dictionaries of these",
        got={f"item {name}{path}": type(value)},
        fix="convert it in a transform: dataset.map(to_arrays), or give collate=your_function",
    )


def _stack(arrays: list[Array], path: str, names: Sequence[int]) -> Array:
    shape = arrays[0].shape
    for name, array in zip(names, arrays, strict=True):
        if array.shape != shape:
            raise wf.ShapeError(
                "collate",
                "the items of a batch have different shapes",
                expected="items of one shape",
                got={f"item {names[0]}{path}": arrays[0], f"item {name}{path}": array},
                fix="pad them: DataLoader(..., collate=wf.data.pad_collate)",
            )
    return np.stack(arrays)


def _pad(
    arrays: list[Array], path: str, names: Sequence[int], value: float, multiple_of: int
) -> Array:
    rank = arrays[0].ndim
    for name, array in zip(names, arrays, strict=True):
        if array.ndim != rank:
            raise wf.ShapeError(
                "pad_collate",
                "the items of a batch have different numbers of axes",
                expected="items with the same number of axes",
                got={f"item {names[0]}{path}": arrays[0], f"item {name}{path}": array},
                fix="reshape them in a transform: dataset.map(to_one_rank)",
            )
    longest = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    shape = [-(-size // multiple_of) * multiple_of for size in longest]  # rounded up
    batch = np.full((len(arrays), *shape), value, np.result_type(*arrays))
    for i, array in enumerate(arrays):
        inside: tuple[Any, ...] = (i, *(slice(size) for size in array.shape))
        batch[inside] = array
    return batch


def _difference_error(
    path: str, first: int, has: object, other: int, instead: object, expected: str, fix: str = ""
) -> wf.WeftError:
    return wf.ArgumentError(
        "collate",
        "the items of a batch differ in form",
        expected=expected,
        got={f"item {first}{path}": has, f"item {other}{path}": instead},
        fix=fix or "make them alike in a transform: dataset.map(to_one_form)",
    )
