"""The loader without workers: order, epochs, state, samplers, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.data import transforms

import weft as wf
from weft.data import (
    ArrayDataset,
    BatchSampler,
    BucketSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StratifiedSampler,
    WeightedSampler,
    from_iterable,
)


def values(loader: DataLoader) -> list[Any]:
    return [batch.tolist() for batch in loader]


def test_each_epoch_is_another_permutation_that_the_seed_decides() -> None:
    loader = DataLoader(transforms.Numbers(10), 4, shuffle=True, seed=3)
    first, second = values(loader), values(loader)
    assert [len(batch) for batch in first] == [4, 4, 2]
    for epoch in (first, second):
        assert sorted(item for batch in epoch for item in batch) == list(range(10))
    assert first != second
    again = DataLoader(transforms.Numbers(10), 4, shuffle=True, seed=3)
    assert (values(again), values(again)) == (first, second)
    again.set_epoch(0)
    assert values(again) == first
    assert values(DataLoader(transforms.Numbers(10), 4, shuffle=True, seed=4)) != first


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_prefetching_changes_nothing(prefetch: int) -> None:
    data = transforms.Numbers(10).map(transforms.noisy, random=True)
    loader = DataLoader(data, 4, shuffle=True, prefetch=prefetch)
    plain = DataLoader(data, 4, shuffle=True)
    assert (values(loader), values(loader)) == (values(plain), values(plain))


def test_augmentation_depends_on_seed_epoch_and_index_only() -> None:
    data = transforms.Numbers(6).map(transforms.noisy, random=True)

    def by_item(loader: DataLoader) -> dict[int, tuple[float, ...]]:
        # Noise is small against 1000: the item can be told from its values.
        return {round(row[0] / 1000): tuple(row) for batch in values(loader) for row in batch}

    scaled = transforms.Numbers(6).map(lambda x: x * 1000).map(transforms.noisy, random=True)
    assert by_item(DataLoader(scaled, 2)) == by_item(DataLoader(scaled, 3, shuffle=True))
    loader = DataLoader(data, 6)
    assert values(loader) != values(loader)
    assert values(DataLoader(data, 6, seed=1)) != values(DataLoader(data, 6, seed=2))


def test_batches_are_tensors_or_arrays_on_request() -> None:
    data = transforms.Numbers(4).map(transforms.as_record)
    batch = next(iter(DataLoader(data, 2)))
    assert isinstance(batch["x"], wf.Tensor)
    assert (batch["x"].shape, batch["pair"][1].dtype, batch["name"]) == (
        (2, 2, 3),
        wf.float32,
        ["n0", "n1"],
    )
    assert isinstance(next(iter(DataLoader(data, 2, numpy=True)))["x"], np.ndarray)


def test_batch_size_none_leaves_items_as_they_are() -> None:
    loader = DataLoader(transforms.Numbers(4).batch(3), None)
    assert values(loader) == [[0, 1, 2], [3]]
    assert list(DataLoader(["a", "b"], None)) == ["a", "b"]


def test_the_last_batch_can_be_dropped() -> None:
    loader = DataLoader(transforms.Numbers(5), 2, drop_last=True)
    assert len(loader) == 2
    assert values(loader) == [[0, 1], [2, 3]]
    assert values(DataLoader(from_iterable(range(5)), 2, drop_last=True)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_a_state_resumes_after_any_batch(stop: int) -> None:
    def loader() -> DataLoader:
        data = transforms.Numbers(9).map(transforms.noisy, random=True)
        return DataLoader(data, 3, shuffle=True, seed=2, prefetch=2)

    whole = loader()
    reference = values(whole) + values(whole)
    begun = loader()
    iterator = iter(begun)
    seen = [next(iterator).tolist() for _ in range(stop)]
    state = json.loads(json.dumps(begun.state_dict()))
    resumed = loader()
    resumed.load_state_dict(state)
    assert resumed.epoch == 0
    assert seen + values(resumed) + values(resumed) == reference


def test_the_state_after_an_epoch_is_the_start_of_the_next() -> None:
    loader = DataLoader(transforms.Numbers(4), 2, shuffle=True)
    values(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    other = DataLoader(transforms.Numbers(4), 2, shuffle=True)
    other.load_state_dict(state)
    assert values(other) == values(loader)


def test_leaving_a_pass_early_goes_on_with_the_next_epoch() -> None:
    loader = DataLoader(transforms.Numbers(8), 2, shuffle=True)
    next(iter(loader))
    expected = RandomSampler(8, seed=0).indices(epoch=1).reshape(4, 2).tolist()
    assert values(loader) == expected


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"seed": 1}, "another seed"),
        ({"batch_size": 3}, "another batch_size"),
        ({"dataset": transforms.Numbers(9)}, "another length"),
        ({"shuffle": False}, "order of this epoch"),
    ],
)
def test_the_state_of_another_run_is_refused(change: dict[str, Any], problem: str) -> None:
    options = {"dataset": transforms.Numbers(8), "batch_size": 2, "shuffle": True, "seed": 0}
    state = DataLoader(**options).state_dict()
    with pytest.raises(wf.ArgumentError, match=problem):
        DataLoader(**(options | change)).load_state_dict(state)


def test_junk_is_not_taken_for_a_state() -> None:
    loader = DataLoader(transforms.Numbers(8), 2)
    for junk in ({}, {"epoch": 1}, None, [1]):
        with pytest.raises(wf.ArgumentError, match="not the state of a loader"):
            loader.load_state_dict(junk)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"dataset": []}, "empty"),
        ({"dataset": transforms.Numbers(3), "batch_size": 0}, "batch_size"),
        ({"dataset": transforms.Numbers(3), "batch_size": 4, "drop_last": True}, "no batch"),
        ({"dataset": transforms.Numbers(3), "num_workers": -1}, "num_workers"),
        ({"dataset": transforms.Numbers(3), "shuffle": True, "sampler": [0]}, "said twice"),
        ({"dataset": from_iterable([1]), "shuffle": True}, "its own order"),
        ({"dataset": transforms.Numbers(3), "start_method": "magic"}, "no such way"),
    ],
)
def test_what_makes_no_batches_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(wf.ArgumentError, match=problem):
        DataLoader(**arguments)


def test_an_empty_stream_and_an_empty_filter_are_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="empty"):
        list(DataLoader(from_iterable([]), 2))
    with pytest.raises(wf.ArgumentError, match="empty"):
        DataLoader(transforms.Numbers(4).filter(lambda x: x > 9), 2)


def test_a_stream_has_no_length() -> None:
    loader = DataLoader(from_iterable([1, 2]), 2)
    with pytest.raises(TypeError, match="how long"):
        len(loader)
    assert values(loader) == [[1, 2]]


def test_an_exception_names_the_item() -> None:
    loader = DataLoader(transforms.Numbers(9).map(transforms.fail_at_seven), 2, shuffle=True)
    with pytest.raises(KeyError) as caught:
        values(loader)
    assert caught.value.__notes__ == ["while loading item 7 of the dataset (epoch 0)"]
    stream = from_iterable(range(9)).map(transforms.fail_at_seven)
    with pytest.raises(KeyError) as caught:
        values(DataLoader(stream, 2))
    assert "item 7 of the stream" in caught.value.__notes__[0]


# Samplers.


def test_a_weighted_sampler_draws_in_proportion() -> None:
    sampler = WeightedSampler([1.0, 0.0, 3.0], num_samples=4000)
    counts = np.bincount(sampler.indices(epoch=0), minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / 4000 - 0.75) < 0.03
    without = WeightedSampler([1.0, 0.0, 3.0], num_samples=2, replacement=False)
    assert sorted(without.indices(0)) == [0, 2]


def test_a_stratified_sampler_keeps_proportions_in_every_stretch() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    sampler = StratifiedSampler(labels, seed=1)
    order = sampler.indices(epoch=2)
    assert sorted(order) == list(range(100))
    for start in range(0, 100, 20):
        counts = np.bincount(labels[order[start : start + 20]], minlength=3)
        assert np.abs(counts - [12, 6, 2]).max() <= 2
    assert sampler.indices(3).tolist() != order.tolist()


@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_shares_have_one_length_and_cover_the_data(drop_last: bool) -> None:
    shares = [
        DistributedSampler(10, rank, 4, shuffle=True, drop_last=drop_last) for rank in range(4)
    ]
    found = [share.indices(epoch=1) for share in shares]
    assert {len(indices) for indices in found} == {len(share) for share in shares}
    assert len(shares[0]) == (2 if drop_last else 3)
    joined = np.stack(found, axis=1).reshape(-1)
    order = RandomSampler(10).indices(epoch=1)
    np.testing.assert_array_equal(joined[:8], order[:8])
    assert drop_last or set(joined) == set(range(10))


def test_buckets_hold_items_of_similar_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 64)
    sampler = BucketSampler(lengths, 8, seed=1)
    batches = sampler.batches(epoch=0)
    assert len(batches) == len(sampler) == 8
    assert sorted(np.concatenate(batches)) == list(range(64))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    plain = sum(len(b) * lengths[b].max() for b in np.arange(64).reshape(8, 8))
    assert padded < 0.75 * plain
    loader = DataLoader(transforms.Numbers(64), batch_sampler=sampler)
    assert values(loader) == [batch.tolist() for batch in batches]


def test_a_sampler_of_ones_own_or_a_list_decides_the_order() -> None:
    class Backwards(Sampler):
        def __len__(self) -> int:
            return 4

        def indices(self, epoch: int) -> np.ndarray:
            return np.arange(4)[::-1]

    assert values(DataLoader(transforms.Numbers(4), 3, sampler=Backwards())) == [[3, 2, 1], [0]]
    loader = DataLoader(transforms.Numbers(4), 2, sampler=[3, 0])
    assert values(loader) == values(loader) == [[3, 0]]
    assert len(BatchSampler(SequentialSampler(5), 2, drop_last=True)) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomSampler(0),
        lambda: RandomSampler(3, num_samples=4),
        lambda: WeightedSampler([0.0, 0.0]),
        lambda: WeightedSampler([1.0, -1.0]),
        lambda: WeightedSampler([1.0, np.nan]),
        lambda: WeightedSampler([1.0, 0.0], num_samples=2, replacement=False),
        lambda: DistributedSampler(4, rank=2, count=2),
        lambda: StratifiedSampler([]),
    ],
)
def test_a_sampler_that_cannot_draw_is_refused(make: Any) -> None:
    with pytest.raises(wf.ArgumentError):
        make()


def test_indices_outside_the_dataset_are_named() -> None:
    with pytest.raises(IndexError):
        values(DataLoader(ArrayDataset([1, 2]), 2, sampler=[0, 5]))
    with pytest.raises(IndexError) as caught:
        values(DataLoader(transforms.Numbers(2), 2, sampler=[0, 5]))
    assert "item 5" in caught.value.__notes__[0]
