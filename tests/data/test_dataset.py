"""Datasets and streams: the transforms do what their names say, on both, and agree."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.data import transforms

import weft as wf
from weft.data import (
    ArrayDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    as_dataset,
    default_collate,
    from_iterable,
    pad_collate,
    random_split,
)
from weft.data.prefetch import Prefetcher
from weft.data.scope import load_item


class Pair(NamedTuple):
    x: Any
    y: Any


Transform = Callable[[Any, Any], Any]

BOTH: dict[str, tuple[Transform, list[Any]]] = {
    "map": (lambda a, b: a.map(lambda x: x * 2), [0, 2, 4, 6, 8]),
    "filter": (lambda a, b: a.filter(lambda x: x % 2), [1, 3]),
    "take": (lambda a, b: a.take(2), [0, 1]),
    "take more than there is": (lambda a, b: a.take(9), [0, 1, 2, 3, 4]),
    "skip": (lambda a, b: a.skip(3), [3, 4]),
    "repeat": (lambda a, b: a.take(2).repeat(2), [0, 1, 0, 1]),
    "concat": (lambda a, b: a.concat(b), [0, 1, 2, 3, 4, 10, 20]),
    "interleave": (lambda a, b: a.interleave(b), [0, 10, 1, 20, 2, 3, 4]),
    "zip": (lambda a, b: a.zip(b), [(0, 10), (1, 20)]),
    "cache": (lambda a, b: a.cache(), [0, 1, 2, 3, 4]),
    "prefetch": (lambda a, b: a.prefetch(2), [0, 1, 2, 3, 4]),
    "batch": (lambda a, b: a.batch(2).map(np.ndarray.tolist), [[0, 1], [2, 3], [4]]),
    "chain": (lambda a, b: a.map(lambda x: x + 1).filter(lambda x: x > 2).take(2), [3, 4]),
    "filter after prefetch": (lambda a, b: a.prefetch().filter(lambda x: x > 2), [3, 4]),
}


@pytest.mark.parametrize("name", BOTH)
def test_a_transform_gives_what_it_says(name: str) -> None:
    transform, expected = BOTH[name]
    data = transform(transforms.Numbers(5), as_dataset([10, 20]))
    assert isinstance(data, Dataset)
    assert len(data) == len(expected)
    assert [data[i] for i in range(len(data))] == expected
    assert list(data) == list(data) == expected


@pytest.mark.parametrize("name", BOTH)
def test_a_stream_gives_the_same(name: str) -> None:
    transform, expected = BOTH[name]
    stream = transform(from_iterable(range(5)), from_iterable([10, 20]))
    assert isinstance(stream, IterableDataset)
    assert list(stream) == list(stream) == expected


def test_items_beyond_the_end_are_refused() -> None:
    data = transforms.Numbers(4)
    views = [data.take(2), data.repeat(2), data.zip(data), data.cache(), data.batch(2)]
    for view in [*views, ArrayDataset([1, 2]), data.concat(data)]:
        with pytest.raises(IndexError):
            view[len(view)]


def test_shuffling_a_dataset_is_a_permutation_that_the_seed_decides() -> None:
    data = transforms.Numbers(50)
    assert sorted(data.shuffle(1)) == list(range(50))
    assert list(data.shuffle(1)) == list(data.shuffle(1)) != list(data.shuffle(2))


def test_shuffling_a_stream_stays_within_the_buffer_and_changes_with_the_epoch() -> None:
    stream = from_iterable(range(100)).shuffle(10, seed=3)
    order = list(stream)
    assert sorted(order) == list(range(100)) != order
    assert all(item <= position + 9 for position, item in enumerate(order))
    with load_item(seed=0, epoch=1, index=0):
        assert list(stream) != order
    assert list(stream) == order


def test_a_repeated_stream_is_shuffled_anew_each_time() -> None:
    twice = list(from_iterable(range(20)).shuffle(20).repeat(2))
    assert sorted(twice[:20]) == sorted(twice[20:]) == list(range(20))
    assert twice[:20] != twice[20:]


def test_an_empty_stream_cannot_be_repeated_for_ever() -> None:
    assert list(from_iterable([]).repeat()) == []


def test_a_stream_computes_only_what_is_asked_for() -> None:
    seen: list[int] = []
    stream = from_iterable(range(100)).map(lambda x: seen.append(x) or x)
    assert list(stream.skip(5).take(2)) == [5, 6]
    assert seen == [5, 6]


def test_random_maps_draw_by_place_and_not_by_history() -> None:
    data = transforms.Numbers(5).map(transforms.noisy, random=True)
    forwards = [data[i] for i in range(5)]
    backwards = [data[i] for i in reversed(range(5))][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    assert not np.array_equal(forwards[0] - 0, forwards[1] - 1)


def test_two_random_maps_do_not_draw_the_same_numbers() -> None:
    def draw(item: tuple[float, ...], generator: np.random.Generator) -> tuple[float, ...]:
        return (*item, generator.random())

    for data in (as_dataset([()]), from_iterable([()])):
        (first, second), *_ = data.map(draw, random=True).map(draw, random=True)
        assert first != second


def test_a_cache_holds_what_the_first_epoch_would_draw() -> None:
    noisy = transforms.Numbers(3).map(transforms.noisy, random=True)
    with load_item(seed=4, epoch=0, index=1):
        expected = noisy[1]
    late = noisy.cache()
    with load_item(seed=4, epoch=7, index=1):
        np.testing.assert_array_equal(late[1], expected)


def test_rows_of_arrays_keep_the_form_of_the_tree() -> None:
    data = ArrayDataset(Pair(np.arange(6).reshape(3, 2), {"z": [1.5, 2.5, 3.5]}))
    item = data[1]
    assert isinstance(item, Pair)
    assert (item.x.tolist(), item.y["z"]) == ([2, 3], 2.5)
    batch = data.gather(np.array([2, 0]))
    np.testing.assert_array_equal(batch.x, default_collate([data[2], data[0]]).x)


def test_rows_of_tensors_are_tensors() -> None:
    x, y = TensorDataset(wf.ones((3, 2)), wf.arange(3))[1]
    assert isinstance(x, wf.Tensor)
    assert (x.shape, y.item()) == ((2,), 1)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(wf.ShapeError) as caught:
        ArrayDataset(np.zeros((3, 2)), np.zeros(4))
    assert "float64[3, 2]" in caught.value.got
    assert "float64[4]" in caught.value.got


def test_a_subset_outside_the_dataset_is_refused() -> None:
    with pytest.raises(wf.BoundsError) as caught:
        Subset(transforms.Numbers(3), [0, 3])
    assert "indices[1]: 3" in caught.value.got


def test_a_mask_is_not_taken_for_indices() -> None:
    with pytest.raises(wf.ArgumentTypeError, match="whole numbers"):
        Subset(transforms.Numbers(2), np.array([True, False]))


def test_a_random_split_divides_without_rest() -> None:
    data = transforms.Numbers(11)
    for parts in ([6, 5], [0.5, 0.3, 0.2]):
        split = random_split(data, parts, seed=1)
        assert sorted(item for part in split for item in part) == list(range(11))
    with pytest.raises(wf.ArgumentError, match="make up the whole"):
        random_split(data, [5, 5])


def test_an_iterator_can_be_read_once_only() -> None:
    stream = from_iterable(iter([1, 2]))
    assert list(stream) == [1, 2]
    with pytest.raises(wf.ArgumentError, match="already read"):
        list(stream)


def test_what_holds_no_items_is_refused() -> None:
    with pytest.raises(wf.ArgumentTypeError):
        from_iterable(3)
    with pytest.raises(wf.ArgumentTypeError, match="dictionary"):
        as_dataset({"x": [1]})


def test_batches_are_trees_like_their_items() -> None:
    items = [Pair([i, float(i)], {"n": f"n{i}", "none": None}) for i in range(2)]
    batch = default_collate(items)
    assert isinstance(batch, Pair)
    assert [part.tolist() for part in batch.x] == [[0, 1], [0.0, 1.0]]
    assert [str(part.dtype) for part in batch.x] == ["int64", "float32"]
    assert batch.y == {"n": ["n0", "n1"], "none": None}


@pytest.mark.parametrize(
    ("items", "got"),
    [
        ([{"a": 1}, {"b": 1}], "item 0: ['a']   item 1: ['b']"),
        ([(1, 2), (1,)], "item 0: 2   item 1: 1"),
        ([(1, "a"), (1, 2)], "item 0[1]: <class 'str'>   item 1[1]: <class 'int'>"),
        ([(np.ones(2),), (np.ones(3),)], "item 0[0]: ndarray float64[2]   item 1[0]: ndarray"),
    ],
)
def test_items_that_differ_are_named(items: list[Any], got: str) -> None:
    with pytest.raises(wf.WeftError) as caught:
        default_collate(items)
    assert caught.value.got.startswith(got)


def test_an_empty_batch_and_odd_items_are_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="no items"):
        default_collate([])
    with pytest.raises(wf.ArgumentTypeError, match="not numbers"):
        default_collate([object()])


def test_padding_fills_each_axis_to_the_longest() -> None:
    ragged = [(np.ones((1, 2)), 1), (np.ones((2, 1)), 2)]
    padded, numbers = pad_collate(ragged, value=-1, multiple_of=4)
    assert padded.shape == (2, 4, 4)
    assert padded[0, 0].tolist() == [1, 1, -1, -1]
    assert padded.sum() == 2 + 2 - 28
    assert numbers.tolist() == [1, 2]
    with pytest.raises(wf.ShapeError, match="numbers of axes"):
        pad_collate([np.ones(2), np.ones((2, 2))])


def test_a_prefetcher_raises_in_its_place_and_stops_when_closed() -> None:
    def source() -> Any:
        yield 1
        raise KeyError("two")

    items = Prefetcher(source(), ahead=3)
    assert next(items) == 1
    with pytest.raises(KeyError, match="two"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)
    made: list[int] = []
    endless = Prefetcher((made.append(i) or i for i in iter(int, 1)), ahead=2)
    assert next(endless) == 0
    endless.close()
    assert len(made) <= 5


def test_datasets_and_streams_can_be_pickled() -> None:
    data = transforms.Numbers(5).map(transforms.as_record).shuffle().cache()
    stream = from_iterable(range(5)).map(transforms.noisy, random=True).cache()
    assert len(list(stream)) == 5
    again_data, again_stream = pickle.loads(pickle.dumps((data, stream)))
    assert again_data[2]["name"] == data[2]["name"]
    np.testing.assert_array_equal(list(again_stream), list(stream))
