"""The number of threads, for a while, and results that must not depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import weft as wf


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many threads inside a `with` block."""
    before = wf.get_num_threads()
    wf.set_num_threads(count)
    try:
        yield
    finally:
        wf.set_num_threads(before)


def same_result_for_all_threads(run: Callable[[], Any], counts: tuple[int, ...] = (1, 2, 3)) -> Any:
    """What `run` gives, which must have the same bits for each number of threads."""
    results = []
    for count in counts:
        with threads(count):
            results.append(run())
    bits = [_bits(each) for each in results]
    assert all(each == bits[0] for each in bits[1:])
    return results[0]


def _bits(result: Any) -> Any:
    """The bytes of all tensors and arrays, in their order."""
    if isinstance(result, wf.Tensor | np.ndarray):
        return np.asarray(result).tobytes()
    return [_bits(each) for each in result]
