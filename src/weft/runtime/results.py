"""Room for a program's results, which are not part of its arena.

>>> import numpy as np
>>> from weft.core.dtypes import float32
>>> from weft.core.types import TensorType
>>> shape = (10**7, 10**7)
>>> print(too_large([TensorType(float32, shape)], [(0, shape, np.dtype("float32"))]).expected)
room for 400.0 TB
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.errors import OutOfMemoryError
from weft.core.host_memory import fits_memory
from weft.core.types import TensorType
from weft.runtime.arena import readable_size

Places = Sequence[tuple[int, Sequence[int], np.dtype[Any]]]
"""Slot, shape and dtype of each result."""


def check_room(types: Sequence[TensorType], places: Places) -> None:
    """Refuse results that no memory holds.

    Where the system promises more than it has, writing would end the process.
    """
    if not fits_memory(_bytes(places)):
        raise too_large(types, places)


def too_large(types: Sequence[TensorType], places: Places) -> OutOfMemoryError:
    """The error for results that no memory holds."""
    shown = [
        kind.with_shape(tuple(shape)) for kind, (_, shape, _) in zip(types, places, strict=True)
    ]
    names = ["result"] if len(shown) == 1 else [f"result {i}" for i in range(len(shown))]
    return OutOfMemoryError(
        "memory",
        "there is not enough memory for the result",
        expected=f"room for {readable_size(_bytes(places))}",
        got=dict(zip(names, shown, strict=True)),
        fix="make it in parts, or write the sizes that are meant",
    )


def _bytes(places: Places) -> int:
    return sum(dtype.itemsize * prod(map(int, shape)) for _, shape, dtype in places)
