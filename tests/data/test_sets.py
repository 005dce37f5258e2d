"""The data inside the package: whole, split fairly, and credited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from weft.data import sets
from weft.data.sets import (
    HOUSING_MEASURES,
    Examples,
    Split,
    load_digits,
    load_housing,
    load_iris,
    load_names,
    load_shakespeare,
)

FOLDER = Path(sets.__file__).parent


def joined(split: Split) -> tuple[np.ndarray, np.ndarray]:
    parts = [(np.asarray(part.inputs), np.asarray(part.labels)) for part in split]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def test_digits_are_images_with_ink_from_0_to_1() -> None:
    images, labels = joined(load_digits())
    assert images.shape == (1797, 8, 8)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert labels.dtype == np.int64
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_iris_holds_fishers_150_flowers() -> None:
    lengths, species = joined(load_iris())
    assert lengths.shape == (150, 4)
    assert lengths.dtype == np.float32
    assert np.bincount(species).tolist() == [50, 50, 50]
    means = [lengths[species == label].mean(axis=0) for label in range(3)]
    expected = [
        [5.006, 3.428, 1.462, 0.246],
        [5.936, 2.77, 4.26, 1.326],
        [6.588, 2.974, 5.552, 2.026],
    ]
    np.testing.assert_allclose(means, expected, rtol=1e-5)


@pytest.mark.parametrize("load", [load_digits, load_iris])
def test_a_fifth_of_each_class_is_for_testing(load: Callable[[], Split]) -> None:
    train, test = load()
    in_train, in_test = (np.bincount(np.asarray(part.labels)) for part in (train, test))
    np.testing.assert_array_equal(in_test, (in_train + in_test) // 5)


@pytest.mark.parametrize("load", [load_digits, load_iris])
def test_loading_twice_gives_the_same_split(load: Callable[[], Split]) -> None:
    for once, again in zip(load(), load(), strict=True):
        np.testing.assert_array_equal(np.asarray(once.inputs), np.asarray(again.inputs))
        np.testing.assert_array_equal(np.asarray(once.labels), np.asarray(again.labels))


def test_examples_unpack_into_inputs_and_labels() -> None:
    inputs, labels = load_iris().train
    assert Examples(inputs, labels).inputs is inputs
    assert inputs.shape[0] == labels.shape[0]


def test_housing_is_the_set_of_1978_without_its_racial_variable() -> None:
    measures, prices = joined(load_housing())
    assert measures.shape == (506, 12) == (506, len(HOUSING_MEASURES))
    assert measures.dtype == prices.dtype == np.float32
    # The means of rooms, taxes and prices, and the number of districts by the river.
    means = [measures[:, 5].mean(), measures[:, 9].mean(), prices.mean()]
    np.testing.assert_allclose(means, [6.2846, 408.2372, 22.5328], rtol=1e-5)
    assert measures[:, HOUSING_MEASURES.index("by the river")].sum() == 35


def test_names_are_all_there_and_divided_without_overlap_of_places() -> None:
    train, test = load_names()
    assert len(train) + len(test) == 32033
    assert (train[0], train[4], test[0]) == ("emma", "charlotte", "sophia")
    assert set("".join(train)) == set("abcdefghijklmnopqrstuvwxyz")


def test_shakespeare_has_65_characters_and_its_usual_cut() -> None:
    train, test = load_shakespeare()
    assert len(train) + len(test) == 1_115_394
    assert len(set(train + test)) == 65
    assert len(train) == int(0.9 * 1_115_394)


def test_every_set_has_its_source_and_licence_and_is_small() -> None:
    sources = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    archives = sorted([*FOLDER.glob("*.npz"), *FOLDER.glob("*.gz")])
    assert len(archives) == 5
    for archive in archives:
        assert f"`{archive.name}`" in sources
    assert sum(archive.stat().st_size for archive in archives) < 700_000
