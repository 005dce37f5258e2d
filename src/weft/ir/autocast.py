"""`autocast`: a block in which products run in 16 or 8 bits, and what needs digits in float32.

Here is the state, and the block that changes it. Which function casts to what stands in one table,
`ops/composed/precision.py`; the reasons are in docs/design/mixed_precision.md.

>>> import weft as wf
>>> x = wf.ones((2, 2))
>>> with wf.autocast("bfloat16"):
...     (x @ x).dtype, wf.exp(x @ x).dtype
(weft.bfloat16, weft.float32)
"""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Self

import ml_dtypes
import numpy as np

from weft.core.dtypes import DType, as_dtype, bfloat16, float16, float32
from weft.core.errors import DTypeError

__all__ = ["autocast", "autocast_dtype"]


FLOAT8 = DType(
    "float8", "f8", "float", 8, np.dtype(ml_dtypes.float8_e4m3fn),
    is_integer=False, is_floating=True, is_complex=False, is_inexact=True,
)  # fmt: skip
"""What a block of float8 casts to. No tensor has this dtype: numbers that are rounded to 8 bits are
carried in bfloat16, as is all that such a block does not round; see ops/float8.py."""

AUTOCAST: ContextVar[DType | None] = ContextVar("weft_autocast", default=None)
"""The dtype that products are cast to in this thread or task; None where nothing is cast."""


def carried_dtype(dtype: DType | None) -> DType | None:
    """The dtype of the tensors that a block of this dtype makes."""
    return bfloat16 if dtype is FLOAT8 else dtype


class autocast_to(ContextDecorator):  # noqa: N801  a context manager, called as a function is
    """Cast to this dtype inside a `with` block, or in a function; None for no casts at all.

    Transforms use it to run a function a second time as it ran the first.
    """

    __slots__ = ("_before", "dtype")

    def __init__(self, dtype: DType | None) -> None:
        self.dtype = dtype
        self._before: list[DType | None] = []

    def __enter__(self) -> Self:
        self._before.append(AUTOCAST.get())
        AUTOCAST.set(self.dtype)
        return self

    def __exit__(self, *error: object) -> None:
        AUTOCAST.set(self._before.pop())

    def _recreate_cm(self) -> autocast_to:
        return autocast_to(self.dtype)  # a function may be run by several threads


class autocast(autocast_to):  # noqa: N801
    """Run products in bfloat16, float16 or float8, and what needs digits in float32.

    It is also a decorator.

    Inside the block, functions cast their floating-point arguments: products, convolutions,
    attention and linear layers to `dtype`; exponentials, logarithms, powers, softmax, sums and
    losses from 16 bits to float32; all others compute in the widest dtype that they are given.
    float64 and complex numbers are never made narrower, and tensors that were made before keep
    their dtype, so weights and their gradients stay float32. A block of "float8" is one of bfloat16
    in which linear layers multiply numbers that are rounded to 8 bits. With float32, or
    `enabled=False`, nothing is cast, also inside of another block. The block holds for this thread,
    or task.

    >>> import weft as wf
    >>> layer, x = wf.nn.Linear(2, 3), wf.ones((4, 2))
    >>> with wf.autocast("bfloat16"):
    ...     y = layer(x)
    ...     loss = wf.nn.functional.mse_loss(y, wf.zeros((4, 3)))
    >>> loss.backward()
    >>> y.dtype, loss.dtype, layer.weight.grad.dtype
    (weft.bfloat16, weft.float32, weft.float32)
    """

    def __init__(self, dtype: DType | str = bfloat16, enabled: bool = True) -> None:
        chosen = FLOAT8 if dtype == FLOAT8.name else as_dtype(dtype)
        if chosen not in (bfloat16, float16, float32, FLOAT8):
            raise DTypeError(
                "autocast",
                "products are not cast to this dtype",
                expected='"bfloat16", "float16", "float8", or "float32" for no casts',
                got={"dtype": chosen.name},
                fix='wf.autocast("bfloat16")',
            )
        super().__init__(chosen if enabled and chosen is not float32 else None)


def without_float8() -> autocast_to:
    """A block as the one that it stands in, with bfloat16 where that one has float8.

    It is for layers that lose more by rounding than they gain: the last one of a model, whose
    results are compared, and those that choose.
    """
    return autocast_to(carried_dtype(AUTOCAST.get()))


def autocast_dtype() -> DType | None:
    """The dtype that products are cast to here; None outside of `autocast`.

    In a block of float8 that is bfloat16, which carries the rounded numbers.

    >>> import weft as wf
    >>> with wf.autocast("float16"):
    ...     wf.autocast_dtype()
    weft.float16
    """
    return carried_dtype(AUTOCAST.get())
