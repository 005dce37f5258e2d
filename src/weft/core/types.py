"""The type of a tensor: element type and shape.

>>> from weft.core.dtypes import float32
>>> from weft.core.types import TensorType
>>> print(TensorType(float32, (32, 784)))
f32[32, 784]
"""

from __future__ import annotations

from typing import NoReturn

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import ArgumentTypeError, short_repr
from weft.core.records import frozen
from weft.core.shapes import Dim, Dimension, Shape, check_size, size, symbol


@frozen
class TensorType:
    """The dtype and shape of a tensor, which are known before its values."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype.short}[{', '.join(str(d) for d in self.shape)}]"

    __repr__ = __str__

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Dimension:
        """The number of elements."""
        return size(self.shape)

    def __call__(self, dtype: object = None) -> NoReturn:
        """Refuse `x.type(dtype)`, by which PyTorch converts."""
        raise ArgumentTypeError(
            "x.type",
            "a tensor's type is its dtype and shape, not a method",
            expected="x.astype for a conversion, x.dtype for what it is",
            got={"x.type": self, "dtype": dtype},
            fix="x.dtype" if dtype is None else f"x.astype({_dtype_text(dtype)})",
        )

    def with_shape(self, shape: Shape) -> TensorType:
        """The same dtype with another shape."""
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape with another dtype."""
        return TensorType(dtype, self.shape)


def _dtype_text(dtype: object) -> str:
    """An element type as it is written in a call; PyTorch's names of tensor types are not."""
    return f"'{dtype.name}'" if isinstance(dtype, DType) else "dtype"


def spec(dtype: object, shape: tuple[int | str | Dim | None, ...] = ()) -> TensorType:
    """A type written by hand; names in the shape are symbolic dimensions.

    >>> spec("float32", ("batch", 784))
    f32[batch, 784]
    """
    if not isinstance(shape, (tuple, list)):
        raise ArgumentTypeError(
            "spec",
            "the shape is not a tuple",
            expected="a tuple of sizes and names of sizes",
            got={"shape": short_repr(shape)},
            fix='wf.spec("float32", ("batch", 784))',
        )
    dims = (symbol(f"dim{i}") if d is None else d for i, d in enumerate(shape))
    sizes = [symbol(d) if isinstance(d, str) else check_size("spec", "shape", d) for d in dims]
    return TensorType(as_dtype(dtype), tuple(sizes))
