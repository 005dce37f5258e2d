"""Small real data sets inside the package, so that examples and tests need no network.

Each loader returns a `Split` into training and test examples. The split is fixed: every fifth
example of each class is for testing, so both parts hold the classes in the same proportion.
`SOURCES.md` beside this file says where the data come from and under which licence.

>>> from weft.data.sets import load_iris
>>> (inputs, labels), test = load_iris()
>>> inputs.shape, labels.shape, test.inputs.shape
((120, 4), (120,), (30, 4))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import weft as wf

IRIS_SPECIES = ("setosa", "versicolor", "virginica")

_FOLDER = Path(__file__).parent


class Examples(NamedTuple):
    """Inputs, one example per row, and the class of each."""

    inputs: wf.Tensor
    labels: wf.Tensor


class Split(NamedTuple):
    """The examples to learn from and the examples to be judged by."""

    train: Examples
    test: Examples


def load_digits() -> Split:
    """Handwritten digits: images float32[n, 8, 8], ink from 0 to 1; labels int64[n], 0 to 9.

    >>> from weft.data.sets import load_digits
    >>> train, test = load_digits()
    >>> train.inputs.shape, test.inputs.shape
    ((1442, 8, 8), (355, 8, 8))
    """
    images, labels = _read("digits.npz")
    full_ink = np.float32(16)
    return _split(images.astype(np.float32) / full_ink, labels)


def load_iris() -> Split:
    """Iris flowers: four lengths in centimetres float32[n, 4]; labels int64[n] into `IRIS_SPECIES`.

    >>> from weft.data.sets import IRIS_SPECIES, load_iris
    >>> IRIS_SPECIES[load_iris().test.labels[0].item()]
    'setosa'
    """
    return _split(*_read("iris.npz"))


def _read(name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    with np.load(_FOLDER / name, allow_pickle=False) as archive:
        return archive["inputs"], archive["labels"].astype(np.int64)


def _split(inputs: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> Split:
    is_test = np.zeros(labels.shape, bool)
    for label in np.unique(labels):
        is_test[np.flatnonzero(labels == label)[4::5]] = True
    return Split(_examples(inputs, labels, ~is_test), _examples(inputs, labels, is_test))


def _examples(
    inputs: npt.NDArray[Any], labels: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]
) -> Examples:
    return Examples(wf.asarray(inputs[rows]), wf.asarray(labels[rows]))
