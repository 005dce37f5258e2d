"""Draws of a key as compiled programs, one for all counts, in eager work on the host.

A sampler's numbers must not depend on how many are drawn: those of a smaller shape are the first
ones of a larger one. A program for all counts computes each element alike, and runs whatever the
count, so that this holds; by reference a draw of few numbers costs a hundred calls of NumPy.

>>> import weft as wf
>>> key = wf.random.key(1)
>>> few, many = wf.random.normal((5,), key=key), wf.random.normal((5000,), key=key)
>>> bool(wf.all(few == many[:5]))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

import numpy as np

from weft.core.arrays import HostArray
from weft.core.dtypes import DType, uint32
from weft.core.host_memory import fits_memory
from weft.core.shapes import Shape, is_static
from weft.ir.dispatch import OBSERVERS, apply
from weft.ir.eager import Forms
from weft.ir.tensor import Tensor, traces, wrap
from weft.ops.logic import bitwise_and, bitwise_right_shift
from weft.ops.movement import concatenate, reshape
from weft.ops.operands import convert_to

__all__: list[str] = []

Draw = Callable[[Tensor, Shape, DType], Tensor]
"""Numbers of a key, in a shape and a dtype, each of which depends on its place alone."""


def compile_draws(f: Draw) -> Draw:
    """Mark a function of a key, a shape and a dtype whose elements are computed one by one."""
    forms: dict[DType, Forms] = {}

    @wraps(f)
    def function(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
        array = key._value
        is_watched = traces.stack or OBSERVERS or traces.keeper is not None
        if type(array) is not HostArray or is_watched or traces.device is not None:
            return f(key, shape, dtype)
        count = int(math.prod(shape)) if is_static(shape) else 0
        fits = fits_memory(count * dtype.bits // 8)  # where it does not, the reference says so
        if not count or array.shape != (2,) or not fits:
            return f(key, shape, dtype)
        found = forms.get(dtype)
        if found is None:
            found = forms[dtype] = Forms(_program_of(f, dtype), share=math.inf)
        drawn = _run(found, array, max(count, 2))
        return f(key, shape, dtype) if drawn is None else wrap(drawn[:count].reshape(shape))

    return function


def _run(forms: Forms, key: np.ndarray, count: int) -> np.ndarray | None:
    """As many numbers, computed by the program; None where there is none."""
    # The words of the key as one number: only the count is a size that programs could be for.
    words = np.array(int(key[0]) | int(key[1]) << 32, np.uint64)
    operands = wrap(words), wrap(np.empty(count, np.uint8))
    before, traces.by_reference = traces.by_reference, False
    try:
        run, handles = forms.find(operands, {})
        return None if run is None else run(handles)._value
    finally:
        traces.by_reference = before


def _program_of(f: Draw, dtype: DType) -> Callable[[Tensor, Tensor], Tensor]:
    """The draw as a function of a key's words and of as many bytes, which nothing reads."""

    def draw(words: Tensor, like: Tensor) -> Tensor:
        halves = bitwise_and(words, 0xFFFFFFFF), bitwise_right_shift(words, 32)
        rows = [apply(reshape, convert_to(half, uint32), shape=(1,)) for half in halves]
        key = apply(concatenate, *rows, axis=0)
        return f(key, like.shape, dtype)

    draw.own_sizes = 0  # type: ignore[attr-defined]
    return draw
