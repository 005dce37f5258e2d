"""Small real data sets inside the package, so that examples and tests need no network.

Each loader returns a `Split` into training and test examples. The split is fixed: every fifth
example of each class is for testing, so both parts hold the classes in the same proportion. Text
comes as a `TextSplit`.
`SOURCES.md` beside this file says where the data come from and under which licence.

>>> from weft.data.sets import load_iris
>>> (inputs, labels), test = load_iris()
>>> inputs.shape, labels.shape, test.inputs.shape
((120, 4), (120,), (30, 4))
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import weft as wf

IRIS_SPECIES = ("setosa", "versicolor", "virginica")

HOUSING_MEASURES = (
    "crime rate", "large plots, %", "industry, %", "by the river", "nitric oxides", "rooms",
    "built before 1940, %", "distance to work", "highway access", "tax rate", "pupils per teacher",
    "lower status, %",
)  # fmt: skip

_FOLDER = Path(__file__).parent


class Examples(NamedTuple):
    """Inputs, one example per row, and the label of each: a class or a number."""

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
    return _split_examples(images.astype(np.float32) / full_ink, labels)


def load_iris() -> Split:
    """Iris flowers: four lengths in centimetres float32[n, 4]; labels int64[n] into `IRIS_SPECIES`.

    >>> from weft.data.sets import IRIS_SPECIES, load_iris
    >>> IRIS_SPECIES[load_iris().test.labels[0].item()]
    'setosa'
    """
    return _split_examples(*_read("iris.npz"))


def load_housing() -> Split:
    """Boston house prices of 1970: measures float32[n, 12]; labels float32[n], in $1000.

    The columns are `HOUSING_MEASURES`, not scaled. The variable B of the original, made from the
    share of Black residents, is left out.

    >>> from weft.data.sets import load_housing
    >>> train, test = load_housing()
    >>> train.inputs.shape, test.inputs.shape, train.labels[0].item()
    ((405, 12), (101, 12), 24.0)
    """
    with np.load(_FOLDER / "housing.npz", allow_pickle=False) as archive:
        inputs, prices = archive["inputs"], archive["prices"]
    is_test = np.arange(len(prices)) % 5 == 4
    return Split(_examples(inputs, prices, ~is_test), _examples(inputs, prices, is_test))


class TextSplit(NamedTuple):
    """The text to learn from and the text to be judged by: one string, or one per example."""

    train: Any
    test: Any


def load_names() -> TextSplit:
    """First names in small letters, as tuples of strings; every fifth is for testing.

    >>> from weft.data.sets import load_names
    >>> train, test = load_names()
    >>> len(train), len(test), train[:3]
    (25627, 6406, ('emma', 'olivia', 'ava'))
    """
    names = _read_text("names.txt.gz").split()
    test = tuple(names[4::5])
    del names[4::5]
    return TextSplit(tuple(names), test)


def load_shakespeare() -> TextSplit:
    """40,000 lines of Shakespeare's plays as text; the last tenth is for testing.

    >>> from weft.data.sets import load_shakespeare
    >>> train, test = load_shakespeare()
    >>> len(train), len(test), train[:14]
    (1003854, 111540, 'First Citizen:')
    """
    text = _read_text("shakespeare.txt.gz")
    cut = len(text) * 9 // 10
    return TextSplit(text[:cut], text[cut:])


def _read_text(name: str) -> str:
    return gzip.decompress((_FOLDER / name).read_bytes()).decode("utf-8")


def _read(name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    with np.load(_FOLDER / name, allow_pickle=False) as archive:
        return archive["inputs"], archive["labels"].astype(np.int64)


def _split_examples(inputs: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> Split:
    is_test = np.zeros(labels.shape, bool)
    for label in np.unique(labels):
        is_test[np.flatnonzero(labels == label)[4::5]] = True
    return Split(_examples(inputs, labels, ~is_test), _examples(inputs, labels, is_test))


def _examples(
    inputs: npt.NDArray[Any], labels: npt.NDArray[Any], rows: npt.NDArray[np.bool_]
) -> Examples:
    return Examples(wf.asarray(inputs[rows]), wf.asarray(labels[rows]))
