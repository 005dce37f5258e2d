"""Draws of a key as compiled programs, in eager work: one for all counts on the host.

A sampler's numbers must not depend on how many are drawn: those of a smaller shape are the first
ones of a larger one. A program for all counts computes each element alike, and runs whatever the
count, so that this holds; by reference a draw of few numbers costs a hundred calls of NumPy. On
other devices, whose programs are for one size each, some more are drawn than asked for.

>>> import weft as wf
>>> key = wf.random.key(1)
>>> few, many = wf.random.normal((5,), key=key), wf.random.normal((5000,), key=key)
>>> bool(wf.all(few == many[:5]))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

from weft.core.arrays import CONCRETE, HostArray, can_compute_on
from weft.core.devices import CPU
from weft.core.dtypes import DType, uint32
from weft.core.host_memory import fits_memory
from weft.core.shapes import Shape, is_static
from weft.ir.dispatch import OBSERVERS, apply
from weft.ir.eager import Forms
from weft.ir.tensor import Tensor, traces, wrap
from weft.ops.logic import bitwise_and, bitwise_right_shift
from weft.ops.movement import concatenate, reshape, slice_
from weft.ops.operands import convert_to

__all__: list[str] = []

Draw = Callable[[Tensor, Shape, DType], Tensor]
"""Numbers of a key, in a shape and a dtype, each of which depends on its place alone."""


def compile_draws(f: Draw) -> Draw:
    """Mark a function of a key, a shape and a dtype whose elements are computed one by one."""
    here: dict[DType, Forms] = {}
    there: dict[DType, Forms] = {}

    @wraps(f)
    def function(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
        array = key._value
        if traces.stack or OBSERVERS or traces.keeper is not None:
            return f(key, shape, dtype)
        count = int(math.prod(shape)) if is_static(shape) and array.shape == (2,) else 0
        if type(array) is HostArray and traces.device in (None, CPU):
            # where it does not fit, the reference says so
            if not count or not fits_memory(count * dtype.bits // 8):
                return f(key, shape, dtype)
            forms = here.get(dtype) or here.setdefault(dtype, _forms(_program_of_words(f, dtype)))
            drawn = _run_here(forms, array, max(count, 2))
            return f(key, shape, dtype) if drawn is None else wrap(drawn[:count].reshape(shape))
        if not _computes_there(array):
            return f(key, shape, dtype)
        with allow_programs():
            if not count:
                return f(key, shape, dtype)
            forms = there.get(dtype) or there.setdefault(dtype, _forms(_program_of_key(f, dtype)))
            numbers = _run_there(forms, key, rounded_count(count))
            return (
                f(key, shape, dtype) if numbers is None else _first_numbers(numbers, shape, count)
            )

    return function


@contextmanager
def allow_programs() -> Iterator[None]:
    """Inside, work is compiled even where samples are drawn: each element depends on its place."""
    before, traces.by_reference = traces.by_reference, False
    try:
        yield
    finally:
        traces.by_reference = before


def _computes_there(array: Any) -> bool:
    """Whether a key is on another device than the host, which computes what is drawn."""
    device = traces.device
    return (
        device is not None
        and device is not CPU
        and can_compute_on(device)
        and type(array) in CONCRETE
        and array.device is device
    )


def _forms(program: Callable[..., Tensor]) -> Forms:
    return Forms(program, share=math.inf)


def _run_here(forms: Forms, key: np.ndarray, count: int) -> np.ndarray | None:
    """As many numbers, computed by the program; None where there is none."""
    # The words of the key as one number: only the count is a size that programs could be for.
    words = np.array(int(key[0]) | int(key[1]) << 32, np.uint64)
    with allow_programs():
        run, handles = forms.find((wrap(words), wrap(np.empty(count, np.uint8))), {})
        return None if run is None else run(handles)._value


def rounded_count(count: int) -> int:
    """How many numbers are drawn where so many are asked for: at most an eighth more, or 64.

    A device's programs are for one size each, and these are few.

    >>> rounded_count(1), rounded_count(1000), rounded_count(1 << 20)
    (64, 1024, 1048576)
    """
    step = max(64, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _run_there(forms: Forms, key: Tensor, count: int) -> Tensor | None:
    """The same on a key's device."""
    run, handles = forms.find((key, count), {})
    drawn: Tensor | None = None if run is None else run(handles)
    return drawn


def _first_numbers(drawn: Tensor, shape: Shape, count: int) -> Tensor:
    """The first numbers of those on a device, in a shape."""
    if drawn.size != count:
        drawn = apply(slice_, drawn, starts=(0,), stops=(count,), strides=(1,))
    return drawn if shape == drawn.shape else apply(reshape, drawn, shape=shape)


def _program_of_key(f: Draw, dtype: DType) -> Callable[[Tensor, int], Tensor]:
    """The draw as a function of a key and a count."""
    return lambda key, count: f(key, (count,), dtype)


def _program_of_words(f: Draw, dtype: DType) -> Callable[[Tensor, Tensor], Tensor]:
    """The draw as a function of a key's words and of as many bytes, which nothing reads."""

    def draw(words: Tensor, like: Tensor) -> Tensor:
        halves = bitwise_and(words, 0xFFFFFFFF), bitwise_right_shift(words, 32)
        rows = [apply(reshape, convert_to(half, uint32), shape=(1,)) for half in halves]
        key = apply(concatenate, *rows, axis=0)
        return f(key, like.shape, dtype)

    draw.own_sizes = 0  # type: ignore[attr-defined]
    return draw
